"""Groups of real clients on three brokers, and coordinators that are killed under them.

A group lives in the log of its coordinator, and all of it that was answered is on two brokers at least: members find the
next coordinator, and go on with the generation and the partitions they have. So nothing is read twice.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator

import pytest
from confluent_kafka import Producer

from apache import kafka
from cluster.conftest import KIND
from cluster.coordination import committed, coordinator_of, give_back
from cluster.nodes import Cluster, eventually
from compat.members import Jvm, Troop, records, wait_until

PARTITIONS = 6
MEMBERS = 2
HALF = [3, 3]
# A member that is not heard of for longer than it takes to find the next coordinator would be thrown out, and rightly so.
CLASSIC = {"session.timeout.ms": 20_000, "heartbeat.interval.ms": 500}
SETTINGS = {"group.consumer.heartbeat.interval.ms": "500", "group.consumer.min.heartbeat.interval.ms": "100"}
ASSIGNORS = {"confluent": "cooperative-sticky", "kafka-python": "range", "aiokafka": "roundrobin", "java": "range"}


@pytest.fixture(scope="module")
def shared(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cluster]:
    directory = tmp_path_factory.mktemp("groups")
    with Cluster(directory, settings=SETTINGS, kinds=dict.fromkeys((1, 2, 3), KIND)) as made:
        yield made.start()


class Reading:
    """A topic that is filled, and groups of several kinds that read it."""

    def __init__(self, nodes: Cluster, topic: str, jvm: Callable[[], Jvm]) -> None:
        self.nodes, self.topic, self.count = nodes, topic, 0
        self._jvm = jvm
        self.groups: dict[str, Troop] = {}
        nodes.create(topic, PARTITIONS)
        self._producer = Producer({"bootstrap.servers": nodes.bootstrap, "enable.idempotence": True, "log_level": 0})

    def join(self, client: str, protocol: str) -> None:
        name = f"{self.topic}-{client}-{protocol}"
        classic = {"partition.assignment.strategy": ASSIGNORS[client], **CLASSIC}
        settings = {"group.protocol": "consumer"} if protocol == "consumer" else classic
        # Orders to the JVM have commas between settings.
        bootstrap = self.nodes.bootstrap.split(",")[0] if client == "java" else self.nodes.bootstrap
        troop = self.groups[name] = Troop(self._jvm, bootstrap, name, self.topic, **settings)
        for _ in range(MEMBERS):
            troop.add(client)

    def settle(self) -> None:
        for troop in self.groups.values():
            troop.settle(PARTITIONS, HALF)

    def write(self, count: int) -> None:
        """So many records to every partition, and everybody reads and commits them."""
        for number, partition in itertools.product(range(count), range(PARTITIONS)):
            self._producer.produce(self.topic, b"%d" % number, partition=partition)
        assert self._producer.flush(60) == 0
        self.count += count
        wanted = records(range(PARTITIONS), 0, self.count)
        for name, troop in self.groups.items():
            wait_until(lambda troop=troop: troop.read().keys() >= wanted, f"{name} to read every record")
        self.wait_committed()

    def wait_committed(self) -> None:
        for name in self.groups:
            eventually(
                lambda name=name: committed(self.nodes, name, self.topic, PARTITIONS) == [self.count] * PARTITIONS,
                f"{name} has committed {self.count} in each partition",
            )

    def owned(self) -> dict[str, list[list[int] | None]]:
        return {name: [member.owns for member in troop.members] for name, troop in self.groups.items()}

    def coordinators(self) -> dict[str, int]:
        return {name: coordinator_of(self.nodes, name) for name in self.groups}

    def check(self) -> None:
        """Nobody read anything twice, or anything else."""
        for name, troop in self.groups.items():
            read = troop.read()
            assert set(read) == records(range(PARTITIONS), 0, self.count), name
            assert set(read.values()) == {1}, (name, troop.told(), [each for each in read.items() if each[1] > 1][:5])

    def close(self) -> None:
        for troop in self.groups.values():
            troop.close()


@pytest.fixture
def reading(three: Cluster, jvm: Callable[[], Jvm], request: pytest.FixtureRequest) -> Iterator[Callable[..., Reading]]:
    begun: list[Reading] = []

    def begin(*kinds: tuple[str, str]) -> Reading:
        if any(client == "java" for client, _ in kinds) and (reason := kafka.why_missing()):
            pytest.skip(reason)
        begun.append(Reading(three, request.node.originalname.removeprefix("test_").replace("_", "-"), jvm))
        for kind in kinds:
            begun[-1].join(*kind)
        # What is read while members still come may be read again by those who come: nothing is written before.
        begun[-1].settle()
        begun[-1].write(5)
        return begun[-1]

    yield begin
    for each in begun:
        each.close()


def test_groups_outlive_their_coordinator(reading: Callable[..., Reading], three: Cluster) -> None:
    """REP-12, OFF-02, OPS-04: the broker of one group is killed; both kinds of groups go on where they were. So they do when
    the coordinator moves from one living broker to another."""
    groups = reading(("confluent", "classic"), ("confluent", "consumer"))
    groups.write(10)
    before, owned = groups.coordinators(), groups.owned()
    for gone in sorted(set(before.values())):
        three.members[gone].kill()
        eventually(lambda gone=gone: gone not in groups.coordinators().values(), "other coordinators")
        groups.wait_committed()
        groups.write(10)
        three.mend()
        for topic in ("__consumer_offsets", groups.topic):
            three.wait_in_sync(topic)
    give_back(three)
    eventually(lambda: groups.coordinators() == before, "the first coordinators have their groups again")
    groups.write(10)
    assert groups.owned() == owned
    groups.check()
    assert {len(part.replica_nodes) for part in three.partitions("__consumer_offsets")} == {3}


@pytest.mark.slow
@pytest.mark.apache
def test_every_broker_is_killed_under_every_library(reading: Callable[..., Reading], three: Cluster) -> None:
    """REP-12, OFF-02: two members of each library and protocol; each broker in turn is killed and comes back."""
    groups = reading(
        *((client, "classic") for client in ("confluent", "kafka-python", "aiokafka", "java")),
        *((client, "consumer") for client in ("confluent", "java")),
    )
    owned = groups.owned()
    for member in list(three.members.values()):
        groups.write(10)
        member.kill()
        groups.write(10)
        three.mend()
        for topic in ("__consumer_offsets", groups.topic):
            three.wait_in_sync(topic)
    groups.write(10)
    assert groups.owned() == owned
    groups.check()
