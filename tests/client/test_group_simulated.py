"""Members of a group on the simulator's loop: the node is killed, members die, connections break; nothing is missed."""

from __future__ import annotations

import asyncio
import random
from collections import Counter
from functools import partial
from typing import Any

import pytest

from ottla.client.admin import Admin
from ottla.client.assignors import COOPERATIVE_STICKY, RANGE, Assignor
from ottla.client.cluster import EARLIEST, Cluster, TopicPartition
from ottla.client.consumer import Consumed
from ottla.client.group import GroupConsumer
from ottla.client.groups import GroupAdmin
from ottla.client.membership import Manners
from ottla.client.producer import Producer
from ottla.sim.cluster import SimCluster
from ottla.sim.loop import SimLoop, run

NODE, TOPIC, GROUP = "n1", "shared", "readers"
PARTITIONS, RECORDS = 4, 120
SETTINGS = {
    "offsets.topic.num.partitions": "2",
    "group.min.session.timeout.ms": "1000",
    "group.consumer.min.session.timeout.ms": "1000",
    "group.consumer.session.timeout.ms": "3000",
    "group.consumer.min.heartbeat.interval.ms": "100",
    "group.consumer.heartbeat.interval.ms": "300",
}


class Play:
    def __init__(self, loop: SimLoop, protocol: str, assignors: tuple[Assignor, ...]) -> None:
        self.loop = loop
        self.protocol = protocol
        self.manners = Manners(session_timeout_ms=3000, heartbeat_ms=300, assignors=assignors)
        self.cluster = SimCluster(loop)
        self.machine = self.cluster.add(NODE, SETTINGS)
        self.seen: dict[str, list[Consumed]] = {}
        self.readers: list[GroupConsumer] = []

    def connect(self, name: str) -> Cluster:
        rng = random.Random(f"{self.loop.chance('client', name).random()}")
        return Cluster(
            self.cluster.bootstrap, client_id=name, budget_s=60, now_ms=lambda: int(self.loop.time() * 1000), rng=rng
        )

    async def run(self) -> tuple[Counter[bytes | None], dict[TopicPartition, int], str]:
        await self.boot()
        await self.cluster.client("writer", self.write(0))
        for name in ("m1", "m2", "m3"):
            self.cluster.client(name, self.read(name))
        await asyncio.sleep(5)
        self.cluster.kill(NODE)
        await asyncio.sleep(0.5)
        await self.boot()
        await self.cluster.client("writer", self.write(RECORDS))
        await asyncio.sleep(2 * self.loop.chance("when").random())  # it may have read what it has not committed
        self.loop.kill("m2")
        self.loop.network.reset("m1", NODE)
        await self.cluster.client("writer", self.write(2 * RECORDS))
        while len(set(self.values())) < 3 * RECORDS:
            await asyncio.sleep(0.1)
        await asyncio.sleep(6)  # the last of them are committed
        committed = await self.cluster.client("judge", self.committed())
        return Counter(self.values()), committed, self.loop.trace()

    async def boot(self) -> None:
        self.cluster.boot(NODE)
        while not self.machine.is_ready:
            await asyncio.sleep(0.01)

    def values(self) -> list[bytes | None]:
        return [record.value for records in self.seen.values() for record in records]

    async def write(self, start: int) -> None:
        async with self.connect("writer") as cluster:
            if start == 0:
                await Admin(cluster).create_topic(TOPIC, partitions=PARTITIONS)
            async with Producer(cluster) as producer:
                for i in range(start, start + RECORDS):
                    await producer.post(TOPIC, b"%d" % i, partition=i % PARTITIONS)

    async def read(self, name: str, pace_s: float = 0) -> None:
        seen = self.seen.setdefault(name, [])
        async with self.connect(name) as cluster:
            options = {"protocol": self.protocol, "manners": self.manners, "reset": EARLIEST, "auto_commit_ms": 1000}
            consumer = GroupConsumer(cluster, GROUP, [TOPIC], **options)  # type: ignore[arg-type]
            self.readers.append(consumer)
            while True:
                for record in await consumer.fetch():
                    await asyncio.sleep(pace_s)
                    seen.append(record)

    async def committed(self) -> dict[TopicPartition, int]:
        async with self.connect("judge") as cluster:
            found = await GroupAdmin(cluster).offsets(GROUP)
            return {where: what.offset for where, what in found.items()}


def play(
    seed: int, protocol: str, assignors: tuple[Assignor, ...]
) -> tuple[Counter[bytes | None], dict[TopicPartition, int], str]:
    async def main(loop: SimLoop) -> tuple[Counter[bytes | None], dict[TopicPartition, int], str]:
        return await Play(loop, protocol, assignors).run()

    return run(seed, main, limit_s=300)


@pytest.mark.parametrize(
    ("protocol", "assignors"),
    [("classic", (RANGE,)), ("classic", (COOPERATIVE_STICKY,)), ("consumer", (RANGE,))],
    ids=["range", "cooperative", "consumer"],
)
@pytest.mark.parametrize("seed", [1, 2, 3])
def test_nothing_is_missed(seed: int, protocol: str, assignors: tuple[Assignor, ...]) -> None:
    """OFF-05, GRP-15: killed node, killed member, broken connection: each record at least once, and all are committed."""
    seen, committed, _ = play(seed, protocol, assignors)
    assert set(seen) == {b"%d" % i for i in range(3 * RECORDS)}
    assert committed == {TopicPartition(TOPIC, p): 3 * RECORDS // PARTITIONS for p in range(PARTITIONS)}


async def _seconds_to_read(loop: SimLoop, protocol: str, readers: int) -> float:
    """How long a group takes for records of each of which somebody thinks for 50 ms."""
    play = Play(loop, protocol, (RANGE,))
    await play.boot()
    await play.cluster.client("writer", play.write(0))
    for number in range(readers):
        play.cluster.client(f"m{number}", play.read(f"m{number}", pace_s=0.05))
    shares = [len(range(number, PARTITIONS, readers)) for number in range(readers)]
    while sorted((len(one.assignment) for one in play.readers), reverse=True) != shares:
        await asyncio.sleep(0.01)
    while len(play.values()) < RECORDS:
        await asyncio.sleep(0.01)
    began = loop.time()
    await play.cluster.client("writer", play.write(RECORDS))
    while len(play.values()) < 2 * RECORDS:
        await asyncio.sleep(0.001)
    return loop.time() - began


@pytest.mark.parametrize("protocol", ["classic", "consumer"])
def test_each_consumer_more_adds_its_share_until_there_are_as_many_as_partitions(protocol: str) -> None:
    """GRP-23, GRP-10: in simulated time, where no reader takes the processor from another."""
    took = {n: run(1, partial(_seconds_to_read, protocol=protocol, readers=n), limit_s=300) for n in (1, 2, 4, 6)}
    for readers, busy in ((1, 1), (2, 2), (4, 4), (6, 4)):
        assert took[readers] == pytest.approx(RECORDS * 0.05 / busy, abs=0.2), took


def test_same_seed_same_history() -> None:
    first, second = (play(5, "consumer", (RANGE,)) for _ in range(2))
    assert first == second


def test_an_assignment_whose_answer_was_lost_is_asked_for_again() -> None:
    """The heartbeat that brought it was heard and its answer was not: the next one says everything, and so is told again."""

    async def main(loop: SimLoop) -> None:
        play = Play(loop, "consumer", (RANGE,))
        await play.boot()
        await play.cluster.client("writer", play.write(0))
        play.cluster.client("m1", play.read("m1"))
        while not play.seen.get("m1"):
            await asyncio.sleep(0.01)
        play.cluster.client("m2", play.read("m2"))
        while len(members_of(play)) < 2 or any(held(member) == PARTITIONS for member in members_of(play)):
            await asyncio.sleep(0.001)
        loop.network.cut(NODE, "m2")  # the other has given up its half, and the next heartbeat of this one will get it
        while [held(member) for member in members_of(play)] != [PARTITIONS // 2] * 2:
            await asyncio.sleep(0.001)
        loop.network.reset(NODE, "m2")
        loop.network.heal_all()
        await play.cluster.client("writer", play.write(RECORDS))
        async with asyncio.timeout(30):
            while not play.seen["m2"]:
                await asyncio.sleep(0.1)

    run(3, main, limit_s=300)


def members_of(play: Play) -> list[Any]:
    assert play.machine.node is not None
    group = play.machine.node.groups.shard_of(GROUP).state.by_id.get(GROUP)
    return [] if group is None else list(group.members.values())  # type: ignore[attr-defined]


def held(member: Any) -> int:
    return sum(len(those) for part in (member.assigned, member.revoking) for those in part.values())
