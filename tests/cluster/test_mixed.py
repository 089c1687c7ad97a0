"""Nodes of ours and of Apache Kafka 4.3.1 in one cluster: each leads what the other copies, and either may be the controller.

An Apache node comes with levels of features that we do not serve (share groups, streams groups); the cluster has agreed to do
without them before one of ours joins.
"""

from __future__ import annotations

import signal
from collections.abc import Iterator
from pathlib import Path

import confluent_kafka
import pytest
from confluent_kafka.admin import AdminClient, ConfigResource, NewTopic

from apache import kafka
from cluster.coordination import TRANSACTION, coordinator_of
from cluster.generations import GENERATIONS, Speakers, ends_as, speakers
from cluster.loads import Writer
from cluster.nodes import DYNAMIC, STATIC, ApacheMember, Cluster, Member, eventually

__all__ = ["speakers"]

pytestmark = pytest.mark.apache

PARTITIONS = 6
COMBINED, BROKER = "broker,controller", "broker"
# The controller is node 1. Snapshots of the metadata come often, and nothing older is kept (Apache Kafka looks for that only
# once in a minute).
SETTINGS = {
    "broker.session.timeout.ms": "6000",
    "broker.heartbeat.interval.ms": "500",
    "metadata.log.max.record.bytes.between.snapshots": "2000",
    "metadata.max.retention.bytes": "1000",
}
WITHOUT = ("share.version", "streams.version")


class Beside(ApacheMember):
    """A node of Apache Kafka among ours."""

    def format(self, *options: str) -> None:
        lower = [option for feature in WITHOUT for option in ("--feature", f"{feature}=0")]
        super().format(*options, *lower)


LAYOUTS: dict[str, dict[int, type[Member]]] = {
    "our-controller": {1: Member, 2: Beside, 3: Member},
    "their-controller": {1: Beside, 2: Member, 3: Member},
}


@pytest.fixture(scope="module", params=LAYOUTS)
def running(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cluster]:
    if reason := kafka.why_missing():
        pytest.skip(reason)
    roles = {1: COMBINED, 2: BROKER, 3: BROKER}
    made = Cluster(tmp_path_factory.mktemp("mixed"), settings=SETTINGS, roles=roles, kinds=LAYOUTS[request.param])
    with made:
        yield made.start()


@pytest.fixture
def mixed(running: Cluster) -> Cluster:
    running.mend()
    return running


def led(mixed: Cluster, topic: str) -> dict[str, set[int]]:
    """Which partitions of a topic are led by nodes of ours, and which by Apache's."""
    found: dict[str, set[int]] = {}
    for part in mixed.partitions(topic):
        found.setdefault(mixed.members[int(part.leader_id)].name, set()).add(int(part.partition_index))
    return found


def test_each_leads_what_the_other_copies(mixed: Cluster) -> None:
    """Followers of both kinds stay in sync with leaders of both kinds, and files are equal at the end."""
    mixed.create("shared", PARTITIONS)
    assert set(led(mixed, "shared")) == {"ottla", "apache"}
    with Writer(mixed.bootstrap, "shared", PARTITIONS) as writer:
        writer.wait_for(300)
        writer.finish()
    writer.check(mixed.bootstrap)
    mixed.wait_in_sync("shared")
    eventually(lambda: len({tuple(_logs(mixed, n, "shared")) for n in mixed.members}) == 1, "logs are equal")


def _logs(mixed: Cluster, node_id: int, topic: str) -> list[bytes]:
    parts = (mixed.members[node_id].directory / f"{topic}-{n}" for n in range(PARTITIONS))
    return [b"".join(path.read_bytes() for path in sorted(part.glob("*.log"))) for part in parts]


@pytest.mark.parametrize("node_id", [pytest.param(2, marks=pytest.mark.slow), 3])
def test_a_broker_is_killed_and_comes_back(mixed: Cluster, node_id: int) -> None:
    """Whoever copied it takes over, and it catches up with whoever that was; then it leads again."""
    topic = f"killed-{node_id}"
    mixed.create(topic, PARTITIONS)
    with Writer(mixed.bootstrap, topic, PARTITIONS) as writer:
        writer.wait_for(100)
        mixed.members[node_id].kill()
        mixed.wait_in_sync(topic, {1, 2, 3} - {node_id})
        writer.wait_for(100)
        mixed.members[node_id].start()
        mixed.wait_in_sync(topic)
        writer.finish()
    writer.check(mixed.bootstrap)


@pytest.mark.parametrize("node_id", [pytest.param(2, marks=pytest.mark.slow), 3])
def test_a_broker_hands_over_before_it_stops(mixed: Cluster, node_id: int) -> None:
    """Controlled shutdown: when the process has ended, nobody takes it for a leader."""
    topic = f"stopped-{node_id}"
    mixed.create(topic, PARTITIONS)
    with Writer(mixed.bootstrap, topic, PARTITIONS) as writer:
        writer.wait_for(100)
        assert mixed.members[node_id].stop(60) in (0, 128 + signal.SIGTERM)
        eventually(
            lambda: all(int(p.leader_id) not in (node_id, -1) for p in mixed.partitions(topic)), "it leads nothing"
        )
        writer.wait_for(100)
        mixed.members[node_id].start()
        mixed.wait_in_sync(topic)
        writer.finish()
    writer.check(mixed.bootstrap)


@pytest.mark.parametrize("node_id", [1, 2, 3])
def test_any_node_takes_what_the_controller_decides(mixed: Cluster, node_id: int) -> None:
    """Envelopes of ours to their controller, and of theirs to ours; what was decided is read by everybody."""
    admin = AdminClient({"bootstrap.servers": mixed.members[node_id].address})
    topic = f"asked-of-{node_id}"
    admin.create_topics([NewTopic(topic, 3, 3, config={"retention.ms": "86400000"})])[topic].result(30)
    for of in mixed.members:
        eventually(lambda of=of: len(mixed.partitions(topic, of)) == 3, f"node {of} knows it")
    resource = ConfigResource(ConfigResource.Type.TOPIC, topic)
    assert admin.describe_configs([resource])[resource].result(30)["retention.ms"].value == "86400000"
    admin.delete_topics([topic])[topic].result(30)


@pytest.mark.parametrize("protocol", ["classic", "consumer"])
def test_groups_whoever_coordinates_them(mixed: Cluster, protocol: str) -> None:
    """Six groups, so that their coordinators are of both kinds; each reads everything and commits."""
    topic = f"read-by-{protocol}"
    mixed.create(topic, PARTITIONS)
    with Writer(mixed.bootstrap, topic, PARTITIONS) as writer:
        writer.wait_for(10)
        writer.finish()
    for n in range(PARTITIONS):
        group = f"{topic}-{n}"
        settings = {"bootstrap.servers": mixed.bootstrap, "group.id": group, "auto.offset.reset": "earliest"}
        consumer = confluent_kafka.Consumer(settings | {"group.protocol": protocol, "enable.auto.commit": False})
        consumer.subscribe([topic])
        for read in range(writer.count):
            message = consumer.poll(60)
            assert message is not None and message.error() is None, f"{group}: {read} of {writer.count} were read"
        consumer.commit(asynchronous=False)
        consumer.close()


@pytest.mark.parametrize("generation", GENERATIONS)
def test_transactions_whoever_coordinates_them(mixed: Cluster, speakers: Speakers, generation: int) -> None:
    """Markers go from coordinators of both kinds to leaders of both kinds; in generation 2 leaders of both kinds add their
    partitions at coordinators of both kinds."""
    topic = f"whole-{generation}"
    mixed.create(topic, PARTITIONS)
    coordinators = set()
    for n in range(PARTITIONS):
        name = f"{topic}-{n}"
        producer = speakers[generation].producer(mixed.bootstrap, name).init()
        coordinators.add(mixed.members[coordinator_of(mixed, name, TRANSACTION)].name)
        for commits in (False, True):
            with ends_as(mixed, name, generation):
                producer.begin()
                for partition in range(PARTITIONS):
                    producer.send(topic, "kept" if commits else "dropped", partition)
                producer.flush()
                (producer.commit if commits else producer.abort)()
        producer.close()
    assert coordinators == {"ottla", "apache"}
    for partition in range(PARTITIONS):
        assert _committed(mixed, topic, partition) == [b"kept"] * PARTITIONS


def _committed(mixed: Cluster, topic: str, partition: int) -> list[bytes | None]:
    """All that a reader of committed records is given; the last thing in the log is a marker, which it never sees."""
    settings = {"bootstrap.servers": mixed.bootstrap, "group.id": "committed", "enable.partition.eof": True}
    consumer = confluent_kafka.Consumer(settings)
    consumer.assign([confluent_kafka.TopicPartition(topic, partition, 0)])
    found = []
    while (message := consumer.poll(30)) is not None and message.error() is None:
        found.append(message.value())
    consumer.close()
    assert message is not None, f"{topic}-{partition}: the end was not reached after {found}"
    return found


@pytest.mark.slow
def test_a_wiped_broker_is_filled_again(mixed: Cluster) -> None:
    """KRF-10: it begins with the controller's snapshot, for there is no log from the start any more, and copies all logs."""
    mixed.create("refilled", PARTITIONS)
    with Writer(mixed.bootstrap, "refilled", PARTITIONS) as writer:
        writer.wait_for(50)
        writer.finish()
    mixed.members[2].kill()
    mixed.wait_in_sync("refilled", {1, 3})
    mixed.wipe(2)
    mixed.members[2].start()
    mixed.wait_in_sync("refilled")
    eventually(lambda: _logs(mixed, 1, "refilled") == _logs(mixed, 2, "refilled"), "logs are equal")
    if mixed.members[1].name == "ottla":
        metadata = mixed.members[2].directory / "__cluster_metadata-0"
        assert min(path.name for path in metadata.glob("*.log")) > f"{0:020d}.log"


@pytest.mark.slow
@pytest.mark.timeout(300)
@pytest.mark.parametrize(("controller", "quorum"), [(Member, STATIC), (Beside, DYNAMIC)], ids=["ours", "theirs"])
def test_three_controllers_apart_from_brokers(tmp_path: Path, controller: type[Member], quorum: str) -> None:
    """KRF-07, KRF-11: the active controller is killed twice; brokers of both kinds find the next."""
    roles = dict.fromkeys((1, 2, 3), "controller") | dict.fromkeys((4, 5), BROKER)
    kinds = dict.fromkeys((1, 2, 3), controller) | {4: Beside, 5: Member}
    settings = SETTINGS | {"min.insync.replicas": "1"}
    with Cluster(tmp_path, 5, quorum=quorum, settings=settings, roles=roles, kinds=kinds) as apart:
        apart.start()
        for turn in range(2):
            killed = apart.active_controller()
            apart.members[killed].kill()
            apart.create(f"turn-{turn}", 2, copies=2)
            assert apart.active_controller() != killed
            apart.members[killed].start()
        with Writer(apart.bootstrap, "turn-1", 2) as writer:
            writer.wait_for(50)
            writer.finish()
        writer.check(apart.bootstrap)
        apart.wait_in_sync("turn-1", {4, 5})
