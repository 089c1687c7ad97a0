"""What producers may ask for: acks, idempotence, auto-creation, limits; and what consumers get of it."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any

import confluent_kafka
import pytest
from confluent_kafka.admin import AdminClient

from compat.clients import Aiokafka, Client, Confluent, Java, JavaError, KafkaPython
from compat.corpus import Record

Topic = Callable[..., str]
FEW = [Record(b"k%d" % n, b"v%d" % n) for n in range(50)]


def values(client: Client, topic: str, count: int, **options: Any) -> list[bytes | None]:
    return [seen.record.value for seen in client.consume(topic, 0, 0, count, **options)]


def end_of(broker: str, topic: str) -> int:
    consumer = confluent_kafka.Consumer({"bootstrap.servers": broker, "group.id": "ends"})
    try:
        return int(consumer.get_watermark_offsets(confluent_kafka.TopicPartition(topic, 0), timeout=60)[1])
    finally:
        consumer.close()


def settles(probe: Callable[[], Any], expected: Any, seconds: float = 60.0) -> None:
    deadline = time.monotonic() + seconds
    while (found := probe()) != expected and time.monotonic() < deadline:
        time.sleep(0.05)
    assert found == expected


@pytest.mark.parametrize("acks", ["0", "1", "all"])
def test_acks_with_librdkafka(acks: str, broker: str, confluent: Confluent, topic: Topic) -> None:
    """PRD-02, PRD-03, PRD-04, PRT-11: with acks=0 no answer comes, and the records are there all the same."""
    where = topic(f"acks-{acks}")
    confluent.produce(where, 0, FEW, "none", **{"acks": acks, "enable.idempotence": False})
    settles(lambda: end_of(broker, where), len(FEW))
    assert values(confluent, where, len(FEW)) == [r.value for r in FEW]


@pytest.mark.parametrize("acks", [0, 1, "all"])
def test_acks_with_aiokafka(acks: int | str, broker: str, confluent: Confluent, topic: Topic) -> None:
    """PRD-02, PRD-03, PRD-04."""
    where = topic(f"aio-acks-{acks}")
    Aiokafka(broker).produce(where, 0, FEW, "gzip", acks=acks)
    settles(lambda: end_of(broker, where), len(FEW))


@pytest.mark.apache
@pytest.mark.parametrize("acks", ["0", "1", "all"])
def test_acks_with_java(acks: str, broker: str, java: Java, topic: Topic) -> None:
    """PRD-02, PRD-03, PRD-04."""
    where = topic(f"java-acks-{acks}")
    java.produce(where, 0, FEW, "lz4", f"acks={acks},enable.idempotence=false")
    settles(lambda: end_of(broker, where), len(FEW))


def test_idempotent_librdkafka(broker: str, confluent: Confluent, topic: Topic) -> None:
    """IDM-01, IDM-02, IDM-05: small batches, five requests in flight, order kept."""
    where = topic("idempotent")
    many = [Record(b"k", b"%d" % n) for n in range(2000)]
    confluent.produce(where, 0, many, "none", **{"enable.idempotence": True, "batch.num.messages": 10, "linger.ms": 0})
    assert values(confluent, where, len(many)) == [r.value for r in many]
    assert end_of(broker, where) == len(many)


def test_idempotent_python_clients(broker: str, confluent: Confluent, topic: Topic) -> None:
    """IDM-01, IDM-07: one setting is all it takes."""
    where = topic("idempotent-py")
    Aiokafka(broker).produce(where, 0, FEW, "none", enable_idempotence=True)
    KafkaPython(broker).produce(where, 0, FEW, "none", enable_idempotence=True)
    assert values(confluent, where, 2 * len(FEW)) == [r.value for r in FEW + FEW]


@pytest.mark.apache
def test_idempotent_java(broker: str, java: Java, topic: Topic) -> None:
    """PRT-10, IDM-05: the Java default asks for a producer id before its first record."""
    where = topic("idempotent-java")
    many = [Record(b"k", b"%d" % n) for n in range(2000)]
    java.produce(where, 0, many, "none", "batch.size=200,linger.ms=0")
    assert values(java, where, len(many)) == [r.value for r in many]


@pytest.mark.parametrize("client", [Confluent, Aiokafka, KafkaPython])
def test_a_topic_is_made_by_the_first_record(client: type[Client], broker: str, admin: AdminClient) -> None:
    """PRT-17: auto-creation through Metadata, with the broker's default number of partitions."""
    where = f"born-of-{client.name}-{time.monotonic_ns()}"
    client(broker).produce(where, 0, [Record(b"k", b"first", timestamp_ms=int(time.time() * 1000))], "none")
    assert values(client(broker), where, 1) == [b"first"]
    assert len(admin.list_topics(where, timeout=60).topics[where].partitions) == 1


def test_too_large_is_refused(broker: str, confluent: Confluent, topic: Topic) -> None:
    """PRT-17: max.message.bytes gives MESSAGE_TOO_LARGE, and the log is unchanged."""
    where = topic("small", max_message_bytes="1000")
    with pytest.raises(confluent_kafka.KafkaException) as refused:
        confluent.produce(where, 0, [Record(None, bytes(2000))], "none")
    assert refused.value.args[0].code() == confluent_kafka.KafkaError.MSG_SIZE_TOO_LARGE
    confluent.produce(where, 0, [Record(None, b"fits")], "none")
    assert values(confluent, where, 1) == [b"fits"]


@pytest.mark.apache
def test_too_large_is_refused_to_java(java: Java, topic: Topic) -> None:
    where = topic("small-java", max_message_bytes="1000")
    with pytest.raises(JavaError) as refused:
        java.produce(where, 0, [Record(None, bytes(2000))], "none")
    assert refused.value.kind == "RecordTooLargeException"


def test_a_keyless_record_on_a_compacted_topic_is_refused(confluent: Confluent, topic: Topic) -> None:
    """PRT-17."""
    where = topic("compacted", cleanup_policy="compact")
    with pytest.raises(confluent_kafka.KafkaException) as refused:
        confluent.produce(where, 0, [Record(None, b"no key")], "none")
    assert refused.value.args[0].code() == confluent_kafka.KafkaError.INVALID_RECORD
    confluent.produce(where, 0, [Record(b"key", b"fine")], "none")


@pytest.mark.parametrize("isolation", ["read_uncommitted", "read_committed"])
def test_isolation_levels_of_plain_data(isolation: str, broker: str, confluent: Confluent, topic: Topic) -> None:
    """Without transactions both see everything."""
    where = topic(isolation.replace("_", "-"))
    confluent.produce(where, 0, FEW, "none")
    expected = [r.value for r in FEW]
    assert values(confluent, where, len(FEW), **{"isolation.level": isolation}) == expected
    assert values(Aiokafka(broker), where, len(FEW), isolation_level=isolation) == expected
    assert values(KafkaPython(broker), where, len(FEW), isolation_level=isolation) == expected


@pytest.mark.apache
@pytest.mark.parametrize("isolation", ["read_uncommitted", "read_committed"])
def test_isolation_levels_of_plain_data_in_java(isolation: str, confluent: Confluent, java: Java, topic: Topic) -> None:
    where = topic("java-" + isolation.replace("_", "-"))
    confluent.produce(where, 0, FEW, "none")
    assert values(java, where, len(FEW), options=f"isolation.level={isolation}") == [r.value for r in FEW]


def test_log_append_time_replaces_the_clients_clock(confluent: Confluent, topic: Topic) -> None:
    """TRAP-21: the broker stamps the batch, and its CRC is right again."""
    where = topic("append-time", message_timestamp_type="LogAppendTime")
    before = int(time.time() * 1000) - 1000
    confluent.produce(where, 0, FEW, "none")
    for seen in confluent.consume(where, 0, 0, len(FEW), **{"check.crcs": True}):
        assert seen.record.timestamp_ms >= before


@pytest.mark.parametrize("codec", ["gzip", "snappy", "lz4", "zstd", "uncompressed"])
def test_the_topics_own_compression(codec: str, confluent: Confluent, topic: Topic) -> None:
    """REC-10: whatever the producer used, the topic's codec is stored, and every client's records come back."""
    where = topic(f"recompressed-{codec}", compression_type=codec)
    for used in ("none", "zstd"):
        confluent.produce(where, 0, FEW, used)
    assert values(confluent, where, 2 * len(FEW), **{"check.crcs": True}) == [r.value for r in FEW + FEW]


def test_out_of_range_is_told(confluent: Confluent, topic: Topic) -> None:
    """RET-04: an offset beyond the end is refused, and the client's reset policy decides."""
    where = topic("short")
    confluent.produce(where, 0, FEW, "none")
    with pytest.raises(confluent_kafka.KafkaException):
        confluent.consume(where, 0, 5000, 1)
    seen = confluent.consume(where, 0, 5000, 3, **{"auto.offset.reset": "earliest"})
    assert [s.offset for s in seen] == [0, 1, 2]
