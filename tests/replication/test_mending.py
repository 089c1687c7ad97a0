"""A batch that a disk has damaged comes back from another replica, whoever leads."""

from __future__ import annotations

import asyncio
import sys
from pathlib import Path
from typing import Any

from ottla.replication.mending import REST_S
from ottla.wire.errors import Error
from ottla.wire.messages.fetch import FetchRequest

sys.path.insert(0, str(Path(__file__).parent))
from replica_sets import TOPIC, Cluster, told, until
from test_copies import played, three

COUNT = 10
HURT = 4
PATH = f"/d/{TOPIC}-0/00000000000000000000.log"


async def ten_batches() -> Cluster:
    cluster = await three()
    for number in range(COUNT):
        await cluster.brokers[1].write(b"%d" % number * 100)
    await until(lambda: all(broker.partition.high_watermark.value == COUNT for broker in cluster.brokers.values()))
    return cluster


async def damaged(*ids: int) -> tuple[Cluster, list[tuple[int, bytes]]]:
    """All were stopped, the disks of some were damaged, and all are back; and what they had."""
    cluster = await ten_batches()
    before = await cluster.brokers[1].records()
    at = sum(len(data) for _, data in before[:HURT])
    for broker_id in (1, 2, 3):
        await cluster.brokers[broker_id].stop()
        cluster.kill(broker_id)
        if broker_id in ids:
            cluster.disks[broker_id].rot(PATH, (at + 100) * 8)
    await cluster.start(1, 2, 3)
    await cluster.elect(1)
    await until(lambda: cluster.brokers[1].partition.high_watermark.value == COUNT)
    return cluster, before


async def fetched(cluster: Cluster, broker_id: int, wait_ms: int = 0) -> Any:
    part = FetchRequest.Topic.Partition(partition=0, fetch_offset=HURT, partition_max_bytes=1)
    topic = FetchRequest.Topic(topic=TOPIC, topic_id=cluster.brokers[1].partition.topic_id, partitions=[part])
    return told(await cluster.brokers[broker_id].answer(FetchRequest(topics=[topic], max_bytes=1, max_wait_ms=wait_ms)))


async def refused_then_mended(cluster: Cluster, broker_id: int, before: list[tuple[int, bytes]]) -> None:
    broker = cluster.brokers[broker_id]
    assert (await fetched(cluster, broker_id)).error_code == Error.CORRUPT_MESSAGE.code
    await until(lambda: broker.replicas.mending.mended == 1, 1.0)
    assert bytes((await fetched(cluster, broker_id)).records) == before[HURT][1]
    assert await broker.records() == before


@played
async def test_the_leader_gets_it_from_a_follower() -> None:
    """REP-20, LOG-05: readers were sent away for ever, although two others had the batch."""
    cluster, before = await damaged(1)
    await refused_then_mended(cluster, 1, before)


@played
async def test_who_can_wait_notices_nothing() -> None:
    cluster, before = await damaged(1, 2)
    answers = await asyncio.gather(*(fetched(cluster, 1, 500) for _ in range(5)))
    assert [bytes(answer.records) for answer in answers] == [before[HURT][1]] * 5
    assert cluster.brokers[1].replicas.mending.mended == 1


@played
async def test_a_follower_gets_it_from_the_leader() -> None:
    cluster, before = await damaged(2)
    await refused_then_mended(cluster, 2, before)


@played
async def test_whoever_has_it_is_found() -> None:
    """And who was asked, and found that its own is damaged, has it mended as well."""
    cluster, before = await damaged(1, 2)
    await refused_then_mended(cluster, 1, before)
    await until(lambda: cluster.brokers[2].replicas.mending.mended == 1, 1.0)
    assert await cluster.brokers[2].records() == before


@played
async def test_where_nobody_has_it() -> None:
    """It stays, and is not asked for again and again. Nothing else is lost."""
    cluster, before = await damaged(1, 2, 3)
    asked = []
    answer = cluster.brokers[2].answer

    async def counted(request: Any, version: int = 0) -> Any:
        if isinstance(request, FetchRequest) and request.replica_state.replica_id < 0:
            asked.append(request)
        return await answer(request, version)

    cluster.brokers[2].answer = counted  # type: ignore[method-assign]
    for _ in range(20):
        assert (await fetched(cluster, 1)).error_code == Error.CORRUPT_MESSAGE.code
        await asyncio.sleep(REST_S / 40)
    assert len(asked) == 2, "the third, when it was asked, looked for somebody else too"
    await asyncio.sleep(REST_S)
    assert (await fetched(cluster, 1)).error_code == Error.CORRUPT_MESSAGE.code
    await until(lambda: len(asked) == 4)
    log = cluster.brokers[1].partition.log
    assert log.end_offset == COUNT and log.size == sum(len(data) for _, data in before)
