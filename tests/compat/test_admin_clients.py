"""Topics, partitions, settings and offsets through the admin clients that people use."""

from __future__ import annotations

import time
from collections.abc import Callable

import confluent_kafka
import pytest
from confluent_kafka import TopicPartition
from confluent_kafka.admin import (  # type: ignore[attr-defined]
    AdminClient,
    AlterConfigOpType,
    ConfigEntry,
    ConfigResource,
    NewPartitions,
    NewTopic,
    OffsetSpec,
    ResourceType,
)
from kafka import KafkaAdminClient  # type: ignore[import-untyped]
from kafka.admin import NewTopic as KafkaPythonTopic  # type: ignore[import-untyped]

from compat.clients import Confluent, Java, JavaError
from compat.corpus import EPOCH_MS, Record

Topic = Callable[..., str]
EARLIEST, LATEST, LARGEST_TIMESTAMP = (getattr(OffsetSpec, name)() for name in ("earliest", "latest", "max_timestamp"))
SPACED = [Record(b"k", b"%d" % n, timestamp_ms=EPOCH_MS + 1000 * n) for n in range(100)]


def code_of(call: Callable[[], object]) -> int:
    with pytest.raises(confluent_kafka.KafkaException) as refused:
        call()
    return int(refused.value.args[0].code())


def partitions_of(admin: AdminClient, name: str) -> int:
    topics = admin.list_topics(timeout=60).topics
    return len(topics[name].partitions) if name in topics else 0


def settles(probe: Callable[[], object], expected: object, seconds: float = 60.0) -> None:
    deadline = time.monotonic() + seconds
    while (found := probe()) != expected and time.monotonic() < deadline:
        time.sleep(0.05)
    assert found == expected


def config_of(admin: AdminClient, name: str) -> dict[str, ConfigEntry]:
    which = ConfigResource(ResourceType.TOPIC, name)
    return dict(admin.describe_configs([which])[which].result(60))


def change(admin: AdminClient, name: str, key: str, operation: AlterConfigOpType, value: str | None) -> None:
    entry = ConfigEntry(key, value, incremental_operation=operation)
    which = ConfigResource(ResourceType.TOPIC, name, incremental_configs=[entry])
    admin.incremental_alter_configs([which])[which].result(60)


class TestConfluent:
    def test_the_life_of_a_topic(self, admin: AdminClient, topic: Topic) -> None:
        """PRT-17: create, grow, refuse to shrink, delete; the same name can be made again."""
        name = topic("life", partitions=2)
        assert partitions_of(admin, name) == 2
        admin.create_partitions([NewPartitions(name, 5)])[name].result(60)
        settles(lambda: partitions_of(admin, name), 5)
        shrink = lambda: admin.create_partitions([NewPartitions(name, 3)])[name].result(60)  # noqa: E731
        assert code_of(shrink) == confluent_kafka.KafkaError.INVALID_PARTITIONS
        admin.delete_topics([name])[name].result(60)
        settles(lambda: partitions_of(admin, name), 0)
        admin.create_topics([NewTopic(name, 1)])[name].result(60)
        settles(lambda: partitions_of(admin, name), 1)

    @pytest.mark.parametrize(
        ("wanted", "code"),
        [
            (NewTopic("bad/name", 1), confluent_kafka.KafkaError.TOPIC_EXCEPTION),
            (NewTopic("..", 1), confluent_kafka.KafkaError.TOPIC_EXCEPTION),
            (NewTopic("x" * 250, 1), confluent_kafka.KafkaError.TOPIC_EXCEPTION),
            (
                NewTopic("too-many-copies", 1, replication_factor=3),
                confluent_kafka.KafkaError.INVALID_REPLICATION_FACTOR,
            ),
            (NewTopic("odd-config", 1, config={"no.such": "1"}), confluent_kafka.KafkaError.INVALID_CONFIG),
            (NewTopic("odd-value", 1, config={"retention.ms": "x"}), confluent_kafka.KafkaError.INVALID_CONFIG),
        ],
    )
    def test_what_cannot_be_created(self, admin: AdminClient, wanted: NewTopic, code: int) -> None:
        assert code_of(lambda: admin.create_topics([wanted])[wanted.topic].result(60)) == code
        assert partitions_of(admin, wanted.topic) == 0

    def test_twice_the_same_name(self, admin: AdminClient, topic: Topic) -> None:
        name = topic("twice")
        again = lambda: admin.create_topics([NewTopic(name, 1)])[name].result(60)  # noqa: E731
        assert code_of(again) == confluent_kafka.KafkaError.TOPIC_ALREADY_EXISTS

    def test_validate_only_makes_nothing(self, admin: AdminClient) -> None:
        admin.create_topics([NewTopic("only-thought", 3)], validate_only=True)["only-thought"].result(60)
        assert partitions_of(admin, "only-thought") == 0

    def test_settings_of_a_topic(self, admin: AdminClient, topic: Topic) -> None:
        """PRT-17: every setting with its default and source; SET, DELETE, APPEND and SUBTRACT."""
        name = topic("settings", segment_bytes="2000000")
        found = config_of(admin, name)
        assert found["segment.bytes"].value == "2000000"
        assert found["max.message.bytes"].value == "1048588"
        assert found["max.message.bytes"].is_default
        assert len(found) >= 25
        change(admin, name, "retention.ms", AlterConfigOpType.SET, "5000000")
        change(admin, name, "segment.bytes", AlterConfigOpType.DELETE, None)
        change(admin, name, "cleanup.policy", AlterConfigOpType.APPEND, "compact")
        settles(lambda: config_of(admin, name)["retention.ms"].value, "5000000")
        assert config_of(admin, name)["segment.bytes"].value == str(1 << 30)
        assert set((config_of(admin, name)["cleanup.policy"].value or "").split(",")) == {"delete", "compact"}
        change(admin, name, "cleanup.policy", AlterConfigOpType.SUBTRACT, "delete")
        settles(lambda: config_of(admin, name)["cleanup.policy"].value, "compact")

    def test_the_old_way_replaces_all_settings(self, admin: AdminClient, topic: Topic) -> None:
        name = topic("old-way", segment_bytes="2000000")
        which = ConfigResource(ResourceType.TOPIC, name, set_config={"retention.ms": "7000000"})
        admin.alter_configs([which])[which].result(60)
        settles(lambda: config_of(admin, name)["retention.ms"].value, "7000000")
        assert config_of(admin, name)["segment.bytes"].value == str(1 << 30)

    def test_settings_of_the_broker(self, admin: AdminClient) -> None:
        which = ConfigResource(ResourceType.BROKER, "1")
        found = admin.describe_configs([which])[which].result(60)
        assert found["num.partitions"].value == "1"
        assert "log.retention.hours" in found

    def test_offsets_by_place_and_time(self, admin: AdminClient, confluent: Confluent, topic: Topic) -> None:
        """PRT-17: earliest, latest, by timestamp, largest timestamp."""
        name = topic("times")
        confluent.produce(name, 0, SPACED, "none", **{"batch.num.messages": 7})
        which = TopicPartition(name, 0)
        asked = {
            EARLIEST: 0,
            LATEST: 100,
            OffsetSpec.for_timestamp(EPOCH_MS): 0,
            OffsetSpec.for_timestamp(EPOCH_MS + 41_500): 42,
            OffsetSpec.for_timestamp(EPOCH_MS + 99_000): 99,
            OffsetSpec.for_timestamp(EPOCH_MS + 99_001): -1,
            LARGEST_TIMESTAMP: 99,
        }
        found = {spec: admin.list_offsets({which: spec})[which].result(60).offset for spec in asked}
        assert found == asked

    def test_deleted_records_are_gone(self, admin: AdminClient, confluent: Confluent, topic: Topic) -> None:
        """RET-04: DeleteRecords moves the start; below it is out of range; beyond the end is refused."""
        name = topic("cut")
        confluent.produce(name, 0, SPACED, "none")
        answer = admin.delete_records([TopicPartition(name, 0, 40)])[TopicPartition(name, 0)].result(60)
        assert answer.low_watermark == 40
        seen = confluent.consume(name, 0, 0, 60, **{"auto.offset.reset": "earliest"})
        assert [s.offset for s in seen] == list(range(40, 100))
        beyond = lambda: admin.delete_records([TopicPartition(name, 0, 500)])[TopicPartition(name, 0)].result(60)  # noqa: E731
        assert code_of(beyond) == confluent_kafka.KafkaError.OFFSET_OUT_OF_RANGE
        answer = admin.delete_records([TopicPartition(name, 0, -1)])[TopicPartition(name, 0)].result(60)
        assert answer.low_watermark == 100

    def test_the_cluster(self, admin: AdminClient) -> None:
        found = admin.describe_cluster().result(60)
        assert [node.id for node in found.nodes] == [1]
        assert found.controller.id == 1
        assert found.cluster_id

    def test_a_topic_described(self, admin: AdminClient, topic: Topic) -> None:
        name = topic("described", partitions=3)
        found = admin.describe_topics(confluent_kafka.TopicCollection([name]))[name].result(60)
        assert [p.id for p in found.partitions] == [0, 1, 2]
        assert all(p.leader.id == 1 and len(p.isr) == 1 for p in found.partitions)
        assert found.topic_id is not None


class TestKafkaPython:
    def test_the_life_of_a_topic(self, broker: str, admin: AdminClient) -> None:
        name = f"kafka-python-{time.monotonic_ns()}"
        client = KafkaAdminClient(bootstrap_servers=broker)
        try:
            client.create_topics([KafkaPythonTopic(name=name, num_partitions=2, replication_factor=1)])
            settles(lambda: partitions_of(admin, name), 2)
            described = client.describe_topics([name])
            assert len(described[0]["partitions"]) == 2
            client.create_partitions({name: 4})
            settles(lambda: partitions_of(admin, name), 4)
            assert client.describe_cluster()["cluster_id"]
            client.delete_topics([name])
            settles(lambda: partitions_of(admin, name), 0)
        finally:
            client.close()


@pytest.mark.apache
class TestJava:
    @pytest.fixture(params=["java-4.3", "java-3.9"])
    def client(self, request: pytest.FixtureRequest, usable: Callable[[str], Java]) -> Java:
        return usable(request.param)

    def test_the_life_of_a_topic(self, client: Java) -> None:
        """PRT-09: describeTopics asks with DescribeTopicPartitions first."""
        name = f"{client.name}-life-{time.monotonic_ns()}"
        client.order("create", name, 2, "retention.ms=-1")
        assert [line.split("\t")[:2] for line in client.order("describe", name)] == [["0", "1"], ["1", "1"]]
        client.order("partitions", name, 4)
        settles(lambda: len(client.order("describe", name)), 4)
        with pytest.raises(JavaError, match="InvalidPartitionsException"):
            client.order("partitions", name, 3)
        with pytest.raises(JavaError, match="TopicExistsException"):
            client.order("create", name, 1, "")
        assert name in client.order("list")
        client.order("delete", name)
        settles(lambda: name in client.order("list"), False)
        with pytest.raises(JavaError, match="UnknownTopicOrPartitionException"):
            client.order("delete", name)

    def test_what_cannot_be_created(self, client: Java) -> None:
        with pytest.raises(JavaError, match="InvalidTopicException"):
            client.order("create", "bad/name", 1, "")
        with pytest.raises(JavaError, match="InvalidPartitionsException"):
            client.order("create", "none-at-all", 0, "")
        with pytest.raises(JavaError, match="InvalidConfigurationException"):
            client.order("create", "odd", 1, "no.such=1")

    def test_settings(self, client: Java, topic: Topic) -> None:
        name = topic(f"{client.name}-settings", segment_bytes="2000000")
        found = {line.split("\t")[0]: line.split("\t")[1:] for line in client.order("configs", "TOPIC", name)}
        assert found["segment.bytes"] == ["2000000", "DYNAMIC_TOPIC_CONFIG", "false", "false", "INT"]
        assert found["index.interval.bytes"] == ["4096", "DEFAULT_CONFIG", "false", "false", "INT"]
        client.order("alter", name, "SET", "max.message.bytes", "5000")
        client.order("alter", name, "APPEND", "cleanup.policy", "compact")
        client.order("alter", name, "DELETE", "segment.bytes", "")
        found = {line.split("\t")[0]: line.split("\t")[1:] for line in client.order("configs", "TOPIC", name)}
        assert (found["max.message.bytes"][0], found["segment.bytes"][0]) == ("5000", str(1 << 30))
        assert set(found["cleanup.policy"][0].split(",")) == {"delete", "compact"}
        with pytest.raises(JavaError, match="InvalidConfigurationException"):
            client.order("alter", name, "SET", "retention.ms", "soon")
        broker = {line.split("\t")[0]: line.split("\t")[1] for line in client.order("configs", "BROKER", "1")}
        assert broker["num.partitions"] == "1"

    def test_offsets_by_place_and_time(self, client: Java, confluent: Confluent, topic: Topic) -> None:
        name = topic(f"{client.name}-times")
        confluent.produce(name, 0, SPACED, "snappy", **{"batch.num.messages": 7})

        def ask(spec: object) -> list[str]:
            return client.order("offset", name, 0, spec)

        assert ask("earliest") == ["0\t-1"]
        assert ask("latest") == ["100\t-1"]
        assert ask("earliest-local") == ["0\t-1"]
        assert ask("latest-tiered") == ["-1\t-1"]
        assert ask("max") == [f"99\t{EPOCH_MS + 99_000}"]
        assert ask(EPOCH_MS + 41_500) == [f"42\t{EPOCH_MS + 42_000}"]
        assert ask(EPOCH_MS + 99_001) == ["-1\t-1"]
        assert client.order("times", name, 0, EPOCH_MS + 41_500) == [f"0\t100\t42\t{EPOCH_MS + 42_000}"]

    def test_deleted_records_are_gone(self, client: Java, confluent: Confluent, topic: Topic) -> None:
        name = topic(f"{client.name}-cut")
        confluent.produce(name, 0, SPACED, "none")
        assert client.order("deleterecords", name, 0, 40) == ["40"]
        assert client.order("offset", name, 0, "earliest") == ["40\t-1"]
        if client.name == "java-3.9":  # 4.3.1 asks again for ever when the offset is out of range, of Apache too
            with pytest.raises(JavaError, match="OffsetOutOfRangeException"):
                client.order("deleterecords", name, 0, 500)
        assert [seen.offset for seen in client.consume(name, 0, 40, 60)] == list(range(40, 100))

    def test_the_cluster_and_its_directories(self, client: Java, confluent: Confluent, topic: Topic) -> None:
        name = topic(f"{client.name}-sizes")
        confluent.produce(name, 0, SPACED, "none")
        cluster, nodes, controller = client.order("cluster")[0].split("\t")
        assert (bool(cluster), nodes, controller) == (True, "1", "1")
        sizes = {line.split("\t")[0]: int(line.split("\t")[1]) for line in client.order("logdirs")}
        assert sizes[f"{name}-0"] > 500
