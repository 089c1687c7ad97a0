"""A broker with hundreds of partitions: what happens to one of them must not cost what all of them cost."""

from __future__ import annotations

import asyncio
import sys
from pathlib import Path
from typing import Any

from ottla.metadata import records as r
from ottla.replication.in_sync import ASKED_AT_ONCE
from ottla.server.handlers.fetch import PARTITIONS_PER_TURN
from ottla.sim.loop import run
from ottla.wire.messages.fetch import FetchRequest

sys.path.insert(0, str(Path(__file__).parent))
from replica_sets import TOPIC_ID, Broker, Cluster, until

MANY = 300


class Counted:
    """How many partitions a leader's followers name, fetch by fetch."""

    def __init__(self, leader: Broker) -> None:
        self.named: list[int] = []
        self.anew: list[int] = []
        self._answer = leader.answer
        leader.answer = self.answer  # type: ignore[method-assign]

    async def answer(self, request: Any, version: int = 0) -> Any:
        if isinstance(request, FetchRequest):
            count = sum(len(topic.partitions) for topic in request.topics)
            (self.named if request.session_epoch else self.anew).append(count)
        return await self._answer(request, version)


async def with_many(count: int = MANY, isr: list[int] | None = None) -> tuple[Cluster, Counted]:
    cluster = Cluster()
    await cluster.start(1, 2)
    counted = Counted(cluster.brokers[1])
    cluster.create([1, 2], count=count, isr=isr)
    await cluster.tell()
    await until(lambda: followed(cluster) == count and sum(counted.anew) >= count)
    await asyncio.sleep(2)
    return cluster, counted


def followed(cluster: Cluster) -> int:
    return len(cluster.brokers[2].replicas.fetchers)


async def add(cluster: Cluster, index: int) -> None:
    cluster.replay(
        r.PartitionRecord(partition_id=index, topic_id=TOPIC_ID, replicas=[1, 2], isr=[1, 2], leader=1, leader_epoch=0)
    )
    await cluster.tell()


def test_new_partition_is_copied_soon_though_its_follower_has_many() -> None:
    """A fetch that waits for the others is interrupted for it."""

    async def scene(loop: Any) -> None:
        cluster, _ = await with_many()
        await add(cluster, MANY)
        partition = cluster.brokers[1].replicas.find("t", MANY)
        appended = cluster.brokers[1].produce(b"a", index=MANY)
        began = loop.time()
        await partition.acknowledged(appended.last_offset + 1, 5.0)
        assert loop.time() - began < 0.1
        await end()

    run(1, scene)


def test_partitions_that_come_one_after_the_other_do_not_make_all_be_named_each_time() -> None:
    """A hundred new ones in two seconds: interrupted fifty times, their follower would name 15,000."""

    async def scene(loop: Any) -> None:
        cluster, counted = await with_many()
        counted.named.clear()
        counted.anew.clear()
        for index in range(MANY, MANY + 100):
            await add(cluster, index)
            await asyncio.sleep(0.02)
        await until(lambda: followed(cluster) == MANY + 100)
        await asyncio.sleep(1)
        leader = cluster.brokers[1].replicas
        assert all(leader.find("t", index).leadership.followers[2].end == 0 for index in range(MANY + 100))  # type: ignore[union-attr]
        assert MANY <= sum(counted.anew) < 5 * MANY
        await end()

    run(2, scene)


def test_many_leaderships_that_move_at_once_leave_the_loop_its_turns() -> None:
    """A broker died that led hundreds: whoever takes over answers meanwhile for those that it has taken over."""

    async def scene(loop: Any) -> None:
        cluster, _ = await with_many()
        heir = cluster.brokers[2]
        cluster.replay(
            *(r.PartitionChangeRecord(partition_id=index, topic_id=TOPIC_ID, leader=2) for index in range(MANY))
        )
        seeing = asyncio.ensure_future(heir.see())
        seen = set()
        while not seeing.done():
            await asyncio.sleep(0)
            seen.add(sum(heir.replicas.find("t", index).leader == 2 for index in range(MANY)))
        assert len(seen & set(range(1, MANY))) >= 2
        assert MANY in seen and heir.replicas.find("t", 7).leader_epoch == 1
        await end()

    run(3, scene)


def test_one_that_is_being_mended_holds_up_nobody_else() -> None:
    """Its leader has died without a word while it was asked where the two logs part."""

    async def scene(loop: Any) -> None:
        cluster, _ = await with_many()
        heir = cluster.brokers[2]
        (fetcher,) = heir.replicas.fetchers.by_leader.values()
        fetcher.followed[TOPIC_ID, 0].busy = busy = loop.create_future()
        loop.call_later(30.0, busy.set_result, None)
        cluster.replay(
            *(r.PartitionChangeRecord(partition_id=index, topic_id=TOPIC_ID, leader=2) for index in range(MANY))
        )
        seeing = asyncio.ensure_future(heir.see())
        await asyncio.sleep(1)
        assert [index for index in range(MANY) if heir.replicas.find("t", index).leader != 2] == [0]
        await seeing
        assert heir.replicas.find("t", 0).leader == 2
        await end()

    run(6, scene)


def test_many_that_are_in_sync_again_are_told_the_controller_some_at_a_time() -> None:
    """It decides about all that one request names in one go, and so do those who hear of it."""

    async def scene(loop: Any) -> None:
        cluster, _ = await with_many(2 * ASKED_AT_ONCE + 10, isr=[1])
        leader = cluster.brokers[1].replicas
        await until(lambda: all(leader.find("t", index).isr == (1, 2) for index in range(2 * ASKED_AT_ONCE + 10)))
        counts = [len(topic.partitions) for request in cluster.asked for topic in request.topics]
        assert max(counts) <= ASKED_AT_ONCE and sum(counts) == 2 * ASKED_AT_ONCE + 10, "each of them once"
        await end()

    run(4, scene)


def test_fetch_of_many_partitions_leaves_the_loop_its_turns() -> None:
    """And answers for all of them."""

    async def scene(loop: Any) -> None:
        cluster, _ = await with_many()
        cluster.brokers[1].produce(b"a", index=MANY - 1)
        await until(lambda: cluster.brokers[1].replicas.find("t", MANY - 1).high_watermark.value == 1)
        kind = FetchRequest.Topic
        asked = [kind.Partition(partition=index, partition_max_bytes=1 << 20) for index in range(MANY)]
        request = FetchRequest(max_wait_ms=0, max_bytes=1 << 20, topics=[kind(topic_id=TOPIC_ID, partitions=asked)])
        answering, turns = asyncio.ensure_future(cluster.brokers[1].answer(request)), 0
        while not answering.done():
            await asyncio.sleep(0)
            turns += 1
        (topic,) = (await answering).responses
        assert [part.partition_index for part in topic.partitions] == list(range(MANY))
        assert [bool(part.records) for part in topic.partitions] == [False] * (MANY - 1) + [True]
        assert turns > MANY // PARTITIONS_PER_TURN
        await end()

    run(5, scene)


async def end() -> None:
    for task in asyncio.all_tasks() - {asyncio.current_task()}:
        task.cancel()
