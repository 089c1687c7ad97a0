"""Groups of real clients on one topic: who owns what, that nothing is read twice while nobody is lost, and that nothing is
missed when somebody is killed.

OTTLA_GROUPS_ON_APACHE runs the same on Apache Kafka, to tell a client's habits from our mistakes.
"""

from __future__ import annotations

import asyncio
import itertools
import os
from collections.abc import Callable, Iterator

import pytest
from confluent_kafka import ConsumerGroupState, Producer
from confluent_kafka.admin import (  # type: ignore[attr-defined]
    AdminClient,
    AlterConfigOpType,
    ConfigEntry,
    ConfigResource,
    NewTopic,
    ResourceType,
)

from apache import kafka
from compat.members import Jvm, Troop, records, wait_until
from harness import Node, Server, stop_all
from ottla.client.cluster import Cluster
from ottla.client.groups import GroupAdmin
from ottla.wire.messages.groups import HeartbeatRequest

QUICK = {
    "group.min.session.timeout.ms": "1000",
    "group.initial.rebalance.delay.ms": "300",
    "group.consumer.min.session.timeout.ms": "1000",
    "group.consumer.min.heartbeat.interval.ms": "100",
    "group.consumer.heartbeat.interval.ms": "300",
}
CLASSIC = {"session.timeout.ms": 45_000, "heartbeat.interval.ms": 300}
# Members that are killed are missed sooner than by default, or these tests would last for minutes. Where nobody is killed, a
# busy machine must not look like somebody who was.
MISSED_AFTER_MS = 3000

pytestmark = pytest.mark.apache
Recruit = Callable[..., Troop]


@pytest.fixture(scope="module")
def address(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    if reason := kafka.why_missing():
        pytest.skip(reason)
    directory = tmp_path_factory.mktemp("groups") / "data"
    on_apache = os.environ.get("OTTLA_GROUPS_ON_APACHE")
    server: Server = kafka.Apache(directory, settings=QUICK) if on_apache else Node(directory, settings=QUICK)
    try:
        yield server.start().address
    finally:
        stop_all([server])


class Topic:
    """A topic whose records are counted."""

    def __init__(self, address: str, name: str, partitions: int) -> None:
        self.name, self.partitions, self.count = name, partitions, 0
        admin = AdminClient({"bootstrap.servers": address})
        admin.create_topics([NewTopic(name, num_partitions=partitions)], request_timeout=15)[name].result()
        self._producer = Producer({"bootstrap.servers": address})

    def write(self, count: int) -> None:
        """So many records to every partition."""
        for number, partition in itertools.product(range(count), range(self.partitions)):
            self._producer.produce(self.name, b"%d" % number, partition=partition)
        assert self._producer.flush(30) == 0
        self.count += count

    @property
    def all(self) -> set[tuple[int, int]]:
        return records(range(self.partitions), 0, self.count)


@pytest.fixture
def troop(address: str, jvm: Callable[[], Jvm], request: pytest.FixtureRequest) -> Iterator[Callable[..., Troop]]:
    """Recruits groups: `troop(topic)`, with the settings that all members have."""
    troops: list[Troop] = []

    def recruit(topic: Topic, protocol: str = "classic", assignor: str = "", *, doomed: bool = False) -> Troop:
        name = f"{topic.name}-{len(troops)}"
        settings: dict[str, object] = {"partition.assignment.strategy": assignor or "range", **CLASSIC}
        if protocol == "consumer":
            settings = {"group.protocol": "consumer", **({"group.remote.assignor": assignor} if assignor else {})}
            miss_soon(address, name) if doomed else None
        elif doomed:
            settings["session.timeout.ms"] = MISSED_AFTER_MS
        troops.append(Troop(jvm, address, name, topic.name, **settings))
        return troops[-1]

    yield recruit
    for each in troops:
        each.close()


@pytest.fixture
def topic(address: str, request: pytest.FixtureRequest) -> Callable[[int], Topic]:
    return lambda partitions: Topic(address, f"{request.node.name.replace('[', '-').rstrip(']')}", partitions)


def miss_soon(address: str, group: str) -> None:
    """In the newer protocol it is the group that says how long a member may be silent."""
    entry = ConfigEntry(
        "consumer.session.timeout.ms", str(MISSED_AFTER_MS), incremental_operation=AlterConfigOpType.SET
    )
    resource = ConfigResource(ResourceType.GROUP, group, incremental_configs=[entry])
    admin = AdminClient({"bootstrap.servers": address})
    admin.incremental_alter_configs([resource])[resource].result(30)


def wait_for_members(address: str, group: str, count: int) -> None:
    """One who owns nothing looks like one who has not joined yet, and whoever joins has others hand over while they read."""
    admin = AdminClient({"bootstrap.servers": address})

    def are_there() -> bool:
        told = admin.describe_consumer_groups([group])[group].result(60)
        return (told.state.name, len(told.members)) == ("STABLE", count)

    wait_until(are_there, f"{count} members")


def wait_for_all(group: Troop, topic: Topic) -> None:
    wait_until(lambda: group.read().keys() >= topic.all, "every record")


def check_nothing_was_read_twice(group: Troop) -> None:
    everybody = (*group.members, *group.gone)
    for record in [record for record, times in group.read().items() if times > 1]:
        readers = [
            (member.name, index) for member in everybody for index, one in enumerate(member.read) if one == record
        ]
        raise AssertionError(f"partition and offset {record} were read by {readers}, of {[m.name for m in everybody]}")


def check_strategy(address: str, group: Troop, assignor: str) -> None:
    """The broker says which strategy was chosen, and the shares are as that one divides: in a row, or like cards.

    While members still join (a cooperative group does once more after its shares are even) no strategy is chosen."""
    admin = AdminClient({"bootstrap.servers": address})
    chosen: set[str] = set()

    def is_stable() -> bool:
        told = admin.describe_consumer_groups([group.name])[group.name].result(60)
        chosen.add(told.partition_assignor)
        return bool(told.state == ConsumerGroupState.STABLE)

    wait_until(is_stable, "a stable group")
    assert chosen - {""} == {assignor or "uniform"}
    count, owned = len(group.members), sorted(member.owns or [] for member in group.members)
    if assignor == "roundrobin":
        assert owned == [list(range(6))[place::count] for place in range(count)]
    if assignor == "range":
        assert [partition for share in owned for partition in share] == list(range(6))


def check_stickiness(group: Troop, before: dict[str, set[int]]) -> dict[str, set[int]]:
    """Whoever has to give gives only what is too much, and whoever gets more keeps what it had."""
    now = {member.name: set(member.owns or ()) for member in group.members}
    for name in before.keys() & now.keys():
        assert before[name] <= now[name] or now[name] <= before[name], f"{name} had {before[name]}, has {now[name]}"
    return now


EVEN = {1: [6], 2: [3, 3], 3: [2, 2, 2], 5: [2, 1, 1, 1, 1]}
KINDS = [
    ("confluent", "classic", "range"),
    ("confluent", "classic", "roundrobin"),
    ("confluent", "classic", "cooperative-sticky"),
    ("confluent", "consumer", ""),
    ("confluent", "consumer", "range"),
    ("kafka-python", "classic", "range"),
    ("kafka-python", "classic", "roundrobin"),
    ("kafka-python", "classic", "sticky"),
    ("kafka-python", "classic", "cooperative-sticky"),
    ("aiokafka", "classic", "range"),
    ("aiokafka", "classic", "roundrobin"),
    ("aiokafka", "classic", "sticky"),
    ("java", "classic", "range"),
    ("java", "classic", "roundrobin"),
    ("java", "classic", "sticky"),
    ("java", "classic", "cooperative-sticky"),
    ("java", "consumer", ""),
    ("java", "consumer", "range"),
]


@pytest.mark.parametrize(("client", "protocol", "assignor"), KINDS)
def test_every_record_once_while_nobody_is_lost(
    client: str, protocol: str, assignor: str, address: str, topic: Callable[[int], Topic], troop: Recruit
) -> None:
    """GRP-02, GRP-03, GRP-04, GRP-09, GRP-14, GRP-16, GRP-17, GRP-18, GRP-19, OFF-03: two, three and five consumers."""
    orders = topic(6)
    group = troop(orders, protocol, assignor)
    had: dict[str, set[int]] = {}
    for members in (2, 3, 5):
        while len(group.members) < members:
            group.add(client)
        group.settle(6, EVEN[members])
        check_strategy(address, group, assignor)
        had = check_stickiness(group, had) if "sticky" in assignor else had
        orders.write(20)
        wait_for_all(group, orders)
    group.leave(group.members[0])
    group.leave(group.members[0])
    group.settle(6, EVEN[3])
    check_strategy(address, group, assignor)
    check_stickiness(group, had)
    orders.write(20)
    wait_for_all(group, orders)
    check_nothing_was_read_twice(group)
    for member in (*group.members, *group.gone):
        for partition in range(6):
            offsets = [offset for where, offset in member.read if where == partition]
            assert offsets == sorted(offsets), "out of order"


@pytest.mark.parametrize(
    ("client", "protocol", "assignor"),
    [
        ("confluent", "classic", "range"),
        ("confluent", "classic", "roundrobin"),
        ("confluent", "classic", "cooperative-sticky"),
        ("confluent", "consumer", ""),
        ("kafka-python", "classic", "range"),
        ("kafka-python", "classic", "cooperative-sticky"),
        ("aiokafka", "classic", "range"),
        ("aiokafka", "classic", "sticky"),
    ],
)
def test_every_record_although_members_are_killed(
    client: str, protocol: str, assignor: str, topic: Callable[[int], Topic], troop: Recruit
) -> None:
    """GRP-12, GRP-15, OFF-05: one of three consumers on three partitions is killed with -9."""
    orders = topic(3)
    group = troop(orders, protocol, assignor, doomed=True)
    for _ in range(3):
        group.add(client)
    group.settle(3, [1, 1, 1])
    orders.write(50)
    group.kill(group.members[1])
    orders.write(50)
    group.settle(3, [2, 1])
    wait_for_all(group, orders)


def test_java_members_that_are_killed(topic: Callable[[int], Topic], troop: Recruit) -> None:
    """GRP-15: the others take over what it had, in both protocols."""
    orders = topic(2)
    for protocol in ("classic", "consumer"):
        group = troop(orders, protocol, doomed=True)
        doomed = group.add("java", own_jvm=True)
        group.add("confluent")
        group.settle(2, [1, 1])
        orders.write(20)
        group.kill(doomed)
        orders.write(20)
        group.settle(2, [2])
        wait_for_all(group, orders)


@pytest.mark.parametrize(
    ("protocol", "assignor", "clients", "shares"),
    [
        ("classic", "range", ("confluent", "java", "kafka-python", "aiokafka"), [2, 2, 1, 1]),
        ("classic", "cooperative-sticky", ("confluent", "java", "kafka-python"), [2, 2, 2]),
        ("consumer", "", ("confluent", "java", "confluent"), [2, 2, 2]),
    ],
    ids=["range", "cooperative-sticky", "consumer"],
)
def test_libraries_in_one_group(
    protocol: str,
    assignor: str,
    clients: tuple[str, ...],
    shares: list[int],
    topic: Callable[[int], Topic],
    troop: Recruit,
) -> None:
    """GRP-13, CLI-18: all that have such groups; they know nothing of each other but what the broker tells them."""
    orders = topic(6)
    group = troop(orders, protocol, assignor)
    for client in clients:
        group.add(client)
    group.settle(6, shares)
    orders.write(20)
    wait_for_all(group, orders)
    check_nothing_was_read_twice(group)


def test_shares_of_four_partitions(address: str, topic: Callable[[int], Topic], troop: Recruit) -> None:
    """GRP-05, GRP-06, GRP-08, GRP-10: 4, 2 + 2, 2 + 1 + 1, 1 each, one idle; and in another group as it likes, all of it."""
    orders = topic(4)
    first, second = troop(orders), troop(orders, "consumer")
    for shares in ([4], [2, 2], [2, 1, 1], [1, 1, 1, 1], [1, 1, 1, 1, 0]):
        first.add("confluent")
        first.settle(4, shares)
    wait_for_members(address, first.group, 5)
    for shares in ([4], [2, 2], [2, 1, 1]):
        second.add("confluent")
        second.settle(4, shares)
    orders.write(10)
    wait_for_all(first, orders)
    wait_for_all(second, orders)
    check_nothing_was_read_twice(first)
    check_nothing_was_read_twice(second)


@pytest.mark.parametrize("protocol", ["classic", "consumer"])
def test_twelve_consumers_of_twelve_partitions(protocol: str, topic: Callable[[int], Topic], troop: Recruit) -> None:
    """GRP-07."""
    orders = topic(12)
    group = troop(orders, protocol)
    for _ in range(12):
        group.add("java")
    group.settle(12, [1] * 12)
    orders.write(10)
    wait_for_all(group, orders)


with_static_members = pytest.mark.parametrize(
    ("client", "protocol"),
    [
        ("confluent", "classic"),
        ("confluent", "consumer"),
        ("kafka-python", "classic"),
        ("aiokafka", "classic"),
        ("java", "classic"),
        ("java", "consumer"),
    ],
)


@with_static_members
def test_a_static_member_comes_back_to_what_it_had(
    client: str, protocol: str, address: str, topic: Callable[[int], Topic], troop: Recruit
) -> None:
    """KIP-345: nobody else notices that it was away: the group is not divided anew."""
    orders = topic(6)
    group = troop(orders, protocol)
    others = [group.add(client, group_instance_id=f"static-{n}") for n in range(2)]
    static = group.add(client, group_instance_id="static-9")
    group.settle(6, [2, 2, 2])
    before, turn = [member.owns for member in group.members], asyncio.run(turn_of(address, group.name))
    group.leave(static)
    back = group.add(client, group_instance_id="static-9")
    group.settle(6, [2, 2, 2])
    assert [*(member.owns for member in others), back.owns] == before
    orders.write(10)
    wait_for_all(group, orders)
    check_nothing_was_read_twice(group)
    assert asyncio.run(turn_of(address, group.name)) == turn


@with_static_members
def test_a_static_member_is_killed_and_started_again(
    client: str, protocol: str, address: str, topic: Callable[[int], Topic], troop: Recruit
) -> None:
    """GRP-15, KIP-345: in the classic protocol it has its part back before anybody has missed it. In the newer one nobody may
    be that instance until the session of the one that was killed is over; the others have its part meanwhile."""
    orders = topic(6)
    group = troop(orders, protocol, doomed=protocol == "consumer")
    for number in range(2):
        group.add(client, group_instance_id=f"static-{number}")
    static = group.add(client, group_instance_id="static-9", own_jvm=client == "java")
    group.settle(6, [2, 2, 2])
    before, turn = static.owns, asyncio.run(turn_of(address, group.name))
    orders.write(20)
    group.kill(static)
    orders.write(20)
    if protocol == "consumer":
        group.settle(6, [3, 3])
    back = group.add(client, group_instance_id="static-9")
    group.settle(6, [2, 2, 2])
    wait_for_all(group, orders)
    if protocol == "classic":
        assert back.owns == before
        assert asyncio.run(turn_of(address, group.name)) == turn


async def turn_of(address: str, group: str) -> int:
    """How often a group was divided: its epoch; or its generation, which a classic group tells only by what it takes from
    its members, so one of them seems to say with every number that it is alive."""
    async with Cluster(address) as cluster:
        found = await GroupAdmin(cluster).describe(group)
        if found.epoch is not None:
            return found.epoch
        line, member = await cluster.broker(found.coordinator.node_id), found.members[0]
        for generation in range(1, 100):
            alive = HeartbeatRequest(
                group_id=group,
                generation_id=generation,
                member_id=member.member_id,
                group_instance_id=member.instance_id,
            )
            if (await line.request(alive)).error_code == 0:
                return generation
    raise AssertionError(f"no member of {group} is in any generation")


OLD = {"partition_assignment_strategy": "range", "session_timeout_ms": 45_000, "heartbeat_interval_ms": 300}
NEW = {"group_protocol": "consumer"}


@pytest.mark.parametrize(("client", "other"), [("confluent", "java"), ("java", "confluent")])
def test_a_group_changes_its_protocol_while_it_reads(
    client: str, other: str, address: str, jvm: Callable[[], Jvm], topic: Callable[[int], Topic]
) -> None:
    """Up, with members of both protocols in between, and down again: one member after another is replaced."""
    orders = topic(6)
    group = Troop(jvm, address, f"{orders.name}-turns", orders.name)
    try:
        for one in (client, other):
            group.add(one, **OLD)
        group.settle(6, [3, 3])
        for settings in (NEW, OLD):
            for _ in range(2):
                orders.write(10)
                group.add(other, **settings)
                group.settle(6, [2, 2, 2])
                orders.write(10)
                wait_for_all(group, orders)
                group.leave(group.members[0])
                group.settle(6, [3, 3])
        orders.write(10)
        wait_for_all(group, orders)
    finally:
        group.close()


@pytest.mark.parametrize("client", ["confluent", "java"])
def test_consumers_that_subscribe_to_a_pattern(
    client: str, address: str, jvm: Callable[[], Jvm], topic: Callable[[int], Topic]
) -> None:
    """The broker finds out what it stands for, and later what else it stands for."""
    orders = topic(6)
    group = Troop(jvm, address, f"{orders.name}-pattern", f"^{orders.name}.*")
    try:
        for shares in ([6], [3, 3]):
            group.add(client, **NEW)
            group.settle(6, shares)
        orders.write(10)
        wait_for_all(group, orders)
        if client == "java":  # expressions are evaluated every ten seconds at most, so once will do
            later = Topic(address, f"{orders.name}-later", 2)
            later.write(100)
            wait_until(lambda: (1, 99) in group.read() and group.shares() == [4, 4], "a topic that came later")
    finally:
        group.close()
