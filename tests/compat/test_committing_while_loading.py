"""Whoever asks for its offsets while its coordinator is still loading gets them, and does not begin anew."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from pathlib import Path

import pytest
from aiokafka import AIOKafkaConsumer, TopicPartition  # type: ignore[import-untyped]
from confluent_kafka import Consumer
from confluent_kafka import TopicPartition as ConfluentPartition
from kafka import KafkaConsumer  # type: ignore[import-untyped]
from kafka import TopicPartition as KafkaPythonPartition

from ottla.wire.messages.commits import OffsetCommitRequest
from ottla.wire.messages.groups import FindCoordinatorRequest
from served import Served, batch, serving

First = Callable[[str], Awaitable[int]]
SECONDS = 20.0
COMMITTED = 2


async def by_aiokafka(address: str) -> int:
    consumer = AIOKafkaConsumer(
        bootstrap_servers=address, group_id="g", auto_offset_reset="earliest", enable_auto_commit=False
    )
    await consumer.start()
    try:
        consumer.assign([TopicPartition("t", 0)])
        return int((await consumer.getone()).offset)
    finally:
        await consumer.stop()


async def by_confluent(address: str) -> int:
    def first() -> int:
        settings = {"auto.offset.reset": "earliest", "enable.auto.commit": False}
        consumer = Consumer({"bootstrap.servers": address, "group.id": "g", **settings})
        consumer.assign([ConfluentPartition("t", 0)])
        record = consumer.poll(SECONDS)
        consumer.close()
        assert record is not None and not record.error()
        return record.offset() or 0

    return await asyncio.to_thread(first)


async def by_kafka_python(address: str) -> int:
    def first() -> int:
        consumer = KafkaConsumer(
            bootstrap_servers=address, group_id="g", auto_offset_reset="earliest", enable_auto_commit=False
        )
        consumer.assign([KafkaPythonPartition("t", 0)])
        found = next(iter(consumer))
        consumer.close()
        return int(found.offset)

    return await asyncio.to_thread(first)


async def loading(served: Served) -> None:
    """Groups of this node are loaded after half a second, long after anybody has asked for the first time."""
    shard = served.node.groups.shards[0]
    await asyncio.sleep(0.5)
    await shard.load()


@pytest.mark.parametrize("first", [by_aiokafka, by_confluent, by_kafka_python])
def test_begins_where_it_was(tmp_path: Path, first: First) -> None:
    """OFF-02"""

    async def scene() -> None:
        async with serving(tmp_path, {"offsets.topic.num.partitions": "1"}) as served:
            await served.topic("t")
            client = await served.connect()
            await client.produce("t", batch(b"0", b"1", b"2", b"3"))
            await client.call(FindCoordinatorRequest(coordinator_keys=["g"]), 4)
            part = OffsetCommitRequest.Topic.Partition(partition_index=0, committed_offset=COMMITTED)
            topic = OffsetCommitRequest.Topic(name="t", partitions=[part])
            answer = await client.call(OffsetCommitRequest(group_id="g", topics=[topic]), 8)
            assert answer.topics[0].partitions[0].error_code == 0
            served.node.groups.shards[0].machine = None  # as it is while it loads
            comes = asyncio.create_task(loading(served))
            async with asyncio.timeout(SECONDS):
                assert await first(f"127.0.0.1:{served.port}") == COMMITTED
            await comes

    asyncio.run(scene())
