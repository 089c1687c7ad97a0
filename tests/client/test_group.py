"""Members of groups against a real coordinator: ours, or Apache's where OTTLA_GROUPS_ON_APACHE is set."""

from __future__ import annotations

import asyncio
import itertools
import os
import re
from collections.abc import Awaitable, Callable, Iterator
from typing import Any

import pytest

from apache import kafka
from harness import Node, Server, stop_all
from ottla.client.admin import Admin
from ottla.client.assignors import COOPERATIVE_STICKY, RANGE, ROUND_ROBIN, Assignor
from ottla.client.cluster import EARLIEST, Cluster, TopicPartition
from ottla.client.commits import Committed
from ottla.client.consumer import Consumed
from ottla.client.group import GroupConsumer, NoOffset
from ottla.client.groups import GroupAdmin
from ottla.client.membership import Manners
from ottla.client.producer import Producer
from ottla.wire.errors import Error, KafkaError

QUICK = {
    "group.initial.rebalance.delay.ms": "0",
    "group.min.session.timeout.ms": "1000",
    "group.consumer.min.heartbeat.interval.ms": "100",
    "group.consumer.heartbeat.interval.ms": "200",
    "group.consumer.min.session.timeout.ms": "1000",
}
NUMBERS = itertools.count()
PROTOCOLS = ("classic", "consumer")
LIMIT_S = 60


@pytest.fixture(scope="module")
def coordinator(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    directory = tmp_path_factory.mktemp("members") / "data"
    on_apache = os.environ.get("OTTLA_GROUPS_ON_APACHE")
    server: Server = kafka.Apache(directory, settings=QUICK) if on_apache else Node(directory, settings=QUICK)
    try:
        yield server.start().address
    finally:
        stop_all([server])


def run(address: str, act: Callable[[Cluster, str], Awaitable[Any]], partitions: int = 4) -> Any:
    """`act` gets a cluster, and a name for a topic and its group that nobody has used; the topic has 40 records."""

    async def main() -> Any:
        async with asyncio.timeout(LIMIT_S), Cluster(address, budget_s=45) as cluster:
            name = f"members-{os.getpid()}-{next(NUMBERS)}"
            await Admin(cluster).create_topic(name, partitions=partitions)
            await fill(cluster, name, partitions)
            return await act(cluster, name)

    return asyncio.run(main())


async def fill(cluster: Cluster, topic: str, partitions: int = 4, start: int = 0) -> None:
    async with Producer(cluster) as producer:
        for i in range(start, start + 40):
            await producer.post(topic, b"%d" % i, partition=i % partitions)


def member(cluster: Cluster, name: str, protocol: str = "classic", **more: Any) -> GroupConsumer:
    manners = Manners(heartbeat_ms=100, session_timeout_ms=30_000, **more.pop("manners", {}))
    more = {"reset": EARLIEST, "wait_ms": 50, "topics": [name], **more}
    return GroupConsumer(
        cluster, more.pop("group", name), more.pop("topics"), protocol=protocol, manners=manners, **more
    )


class Readers:
    """Members that read all the time, each noting what it got."""

    def __init__(self) -> None:
        self.members: list[GroupConsumer] = []
        self.seen: list[list[Consumed]] = []
        self._tasks: list[asyncio.Task[None]] = []

    def add(self, consumer: GroupConsumer) -> None:
        self.members.append(consumer)
        self.seen.append([])
        self._tasks.append(asyncio.create_task(self._read(consumer, self.seen[-1])))

    async def _read(self, consumer: GroupConsumer, seen: list[Consumed]) -> None:
        while True:
            seen += await consumer.fetch()

    async def settled(self, *sizes: int) -> None:
        """Until the members own so many partitions, in any order, and no partition has two owners."""
        while True:
            owned = [where for consumer in self.members for where in consumer.assignment]
            found = sorted(len(consumer.assignment) for consumer in self.members)
            if found == sorted(sizes) and len(set(owned)) == len(owned):
                return
            await self._go_on()

    async def records(self, count: int) -> None:
        while sum(len(seen) for seen in self.seen) < count:
            await self._go_on()

    async def _go_on(self) -> None:
        for task in self._tasks:
            if task.done():
                task.result()
        await asyncio.sleep(0.02)

    async def stop(self, number: int) -> None:
        """This one goes, in good order."""
        self._tasks[number].cancel()
        await asyncio.wait([self._tasks.pop(number)])
        await self.members.pop(number).close()

    async def close(self) -> None:
        while self.members:
            await self.stop(0)


@pytest.mark.parametrize(
    ("protocol", "assignors"),
    [
        ("classic", (RANGE, COOPERATIVE_STICKY)),
        ("classic", (ROUND_ROBIN,)),
        ("classic", (COOPERATIVE_STICKY,)),
        ("consumer", ()),
    ],
    ids=["range", "roundrobin", "cooperative", "consumer"],
)
def test_partitions_are_shared_out_and_move_on(
    coordinator: str, protocol: str, assignors: tuple[Assignor, ...]
) -> None:
    """GRP-05, GRP-09, GRP-14, OFF-08: alone, with a second, with a third, without the first; records once, in order."""

    async def act(cluster: Cluster, name: str) -> None:
        readers = Readers()
        more = {"manners": {"assignors": assignors or (RANGE,)}}
        for sizes in ((4,), (2, 2), (1, 1, 2)):
            readers.add(member(cluster, name, protocol, **more))
            await readers.settled(*sizes)
        await readers.stop(0)
        await readers.settled(2, 2)
        await readers.records(40)
        everything = [record for seen in readers.seen for record in seen]
        assert sorted(int(record.value or b"") for record in everything) == list(range(40)), (
            "once each: nobody was lost"
        )
        for seen in readers.seen:
            for partition in range(4):
                offsets = [record.offset for record in seen if record.partition == partition]
                assert offsets == sorted(offsets)
        await readers.close()
        committed = await GroupAdmin(cluster).offsets(name)
        assert {where.partition: what.offset for where, what in committed.items()} == dict.fromkeys(range(4), 10)

    run(coordinator, act)


@pytest.mark.parametrize("protocol", PROTOCOLS)
def test_a_group_goes_on_where_it_committed(coordinator: str, protocol: str) -> None:
    """OFF-05, OFF-09: positions are kept by the group, and each group has its own."""

    async def act(cluster: Cluster, name: str) -> None:
        async with member(cluster, name, protocol, auto_commit_ms=None) as first:
            seen: list[Consumed] = []
            while len(seen) < 40:
                seen += await first.fetch()
            half = {TopicPartition(name, p): Committed(5, -1, f"note {p}") for p in range(4)}
            await first.commit(half)
            assert await first.committed(list(half)) == half
        async with member(cluster, name, protocol, auto_commit_ms=None) as second:
            again = []
            while len(again) < 20:
                again += await second.fetch()
        assert sorted(record.offset for record in again) == sorted([5, 6, 7, 8, 9] * 4)
        async with member(cluster, name, protocol, group=f"{name}-other") as other:
            fresh = []
            while len(fresh) < 40:
                fresh += await other.fetch()
        assert len(fresh) == 40

    run(coordinator, act)


def test_what_was_returned_is_committed_by_the_next_fetch(coordinator: str) -> None:
    """OFF-03, OFF-04: and not before: a crash between the two means reading again, never skipping."""

    async def act(cluster: Cluster, name: str) -> None:
        consumer = member(cluster, name, auto_commit_ms=0)
        while not (records := await consumer.fetch()):
            pass
        committed = await GroupAdmin(cluster).offsets(name)
        assert all(what.offset == 0 for what in committed.values())
        await consumer.fetch()
        committed = await GroupAdmin(cluster).offsets(name)
        read = {TopicPartition(r.topic, r.partition): r.offset + 1 for r in records}
        assert {where: what.offset for where, what in committed.items() if what.offset} == read
        assert {what.leader_epoch for where, what in committed.items() if where in read} == {0}
        await consumer.close()

    run(coordinator, act)


def test_where_to_start_without_a_commit(coordinator: str) -> None:
    """OFF-07"""

    async def act(cluster: Cluster, name: str) -> None:
        async with member(cluster, name, reset=None) as strict:
            with pytest.raises(NoOffset):
                await strict.fetch()
        async with member(cluster, name, reset=-1) as late:
            while len(late.assignment) < 4 or any(at < 0 for at in late.reader.positions.values()):
                assert await late.fetch() == []
            await fill(cluster, name, start=100)
            seen: list[Consumed] = []
            while len(seen) < 40:
                seen += await late.fetch()
            assert min(int(record.value or b"") for record in seen) == 100

    run(coordinator, act)


@pytest.mark.parametrize("protocol", PROTOCOLS)
def test_callbacks_hear_what_comes_and_goes(coordinator: str, protocol: str) -> None:
    async def act(cluster: Cluster, name: str) -> None:
        heard: list[tuple[str, int]] = []

        async def came(partitions: list[TopicPartition]) -> None:
            heard.append(("came", len(partitions)))

        async def went(partitions: list[TopicPartition]) -> None:
            heard.append(("went", len(partitions)))

        readers = Readers()
        manners = {"assignors": (COOPERATIVE_STICKY,)}
        readers.add(member(cluster, name, protocol, manners=manners, on_assigned=came, on_revoked=went))
        await readers.settled(4)
        readers.add(member(cluster, name, protocol, manners=manners))
        await readers.settled(2, 2)
        await readers.close()
        assert [entry for entry in heard if entry[1]] == [("came", 4), ("went", 2), ("went", 2)]

    run(coordinator, act)


@pytest.mark.parametrize("protocol", PROTOCOLS)
def test_a_static_member_comes_back_to_what_it_had(coordinator: str, protocol: str) -> None:
    """A restart within the session moves nothing (KIP-345)."""

    async def act(cluster: Cluster, name: str) -> None:
        readers = Readers()
        readers.add(member(cluster, name, protocol, manners={"instance_id": "one"}))
        readers.add(member(cluster, name, protocol, manners={"instance_id": "two"}))
        await readers.settled(2, 2)
        had = readers.members[1].assignment
        await readers.stop(1)
        info = await GroupAdmin(cluster).describe(name)
        assert sorted(m.instance_id or "" for m in info.members) == ["one", "two"]
        readers.add(member(cluster, name, protocol, manners={"instance_id": "two"}))
        await readers.settled(2, 2)
        assert readers.members[1].assignment == had
        await readers.close()

    run(coordinator, act)


@pytest.mark.parametrize("protocol", PROTOCOLS)
def test_a_member_that_was_thrown_out_joins_again(coordinator: str, protocol: str) -> None:
    """Its partitions are lost to it, not revoked: another may have them already."""

    async def act(cluster: Cluster, name: str) -> None:
        lost: list[int] = []

        async def gone(partitions: list[TopicPartition]) -> None:
            lost.append(len(partitions))

        readers = Readers()
        readers.add(member(cluster, name, protocol, on_lost=gone))
        await readers.settled(4)
        await readers.records(40)
        await throw_out(readers.members[0])
        while not lost:
            await readers._go_on()
        await readers.settled(4)
        assert lost == [4]
        await fill(cluster, name, start=40)
        await readers.records(80)
        await readers.close()

    run(coordinator, act)


async def throw_out(consumer: GroupConsumer) -> None:
    """Somebody else leaves in this member's name."""
    from ottla.wire.messages.groups import ConsumerGroupHeartbeatRequest, LeaveGroupRequest

    group, member_id = consumer.coordinator.key, consumer.member.committer.member_id
    connection = await consumer.cluster.any()
    if type(consumer.member).__name__ == "ConsumerMember":
        await connection.request(ConsumerGroupHeartbeatRequest(group_id=group, member_id=member_id, member_epoch=-1))
    else:
        leaver = LeaveGroupRequest.Member(member_id=member_id)
        await connection.request(LeaveGroupRequest(group_id=group, member_id=member_id, members=[leaver]))


def test_a_pattern_finds_topics_that_come_later(coordinator: str) -> None:
    async def act(cluster: Cluster, name: str) -> None:
        pattern = re.compile(re.escape(name) + ".*")
        readers = Readers()
        readers.add(member(cluster, name, topics=pattern, refresh_s=0.1))
        await readers.settled(4)
        await Admin(cluster).create_topic(f"{name}-more", partitions=2)
        await readers.settled(6)
        await Admin(cluster).create_partitions(f"{name}-more", 3)
        await readers.settled(7)
        await readers.close()

    run(coordinator, act)


def test_groups_seen_from_outside(coordinator: str) -> None:
    """OFF-10: listed, described, their offsets changed only while nobody is there, deleted."""

    async def act(cluster: Cluster, name: str) -> None:
        groups = GroupAdmin(cluster)
        readers = Readers()
        readers.add(member(cluster, name))
        await readers.settled(4)
        info = await groups.describe(name)
        assert (info.state, info.kind, info.assignor) == ("Stable", "Classic", "range")
        (only,) = info.members
        assert sorted(only.assignment) == [TopicPartition(name, p) for p in range(4)]
        assert (only.client_id, only.host) == ("ottla", "/127.0.0.1")
        assert name in [g.group for g in await groups.groups(states=["Stable"])]
        assert name not in [g.group for g in await groups.groups(kinds=["Consumer"])]
        where = TopicPartition(name, 0)
        for change in (groups.delete(name), groups.alter_offsets(name, {where: Committed(3)})):
            with pytest.raises(KafkaError) as refused:
                await change
            assert refused.value.error in (Error.NON_EMPTY_GROUP, Error.UNKNOWN_MEMBER_ID)
        subscribed = await groups.delete_offsets(name, [where])
        assert (error := subscribed[where]) is not None and error.error is Error.GROUP_SUBSCRIBED_TO_TOPIC
        await readers.close()
        await groups.alter_offsets(name, {where: Committed(3, -1, "by hand")})
        assert (await groups.offsets(name))[where] == Committed(3, -1, "by hand")
        assert await groups.delete_offsets(name, [where]) == {where: None}
        assert where not in await groups.offsets(name)
        await groups.delete(name)
        with pytest.raises(KafkaError) as missing:
            await groups.describe(name)
        assert missing.value.error is Error.GROUP_ID_NOT_FOUND

    run(coordinator, act)


def test_members_of_both_protocols_in_one_group(coordinator: str) -> None:
    """A group of the consumer protocol takes classic members in (KIP-848: online migration)."""

    async def act(cluster: Cluster, name: str) -> None:
        readers = Readers()
        readers.add(member(cluster, name, "consumer"))
        await readers.settled(4)
        readers.add(member(cluster, name, "classic", manners={"assignors": (COOPERATIVE_STICKY,)}))
        await readers.settled(2, 2)
        info = await GroupAdmin(cluster).describe(name)
        assert sorted(bool(m.is_upgraded) for m in info.members) == [False, True]
        await readers.close()

    run(coordinator, act)
