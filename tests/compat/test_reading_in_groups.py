"""What a consumer may do with its position, and what groups do not do to one another."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Iterator
from typing import Any

import pytest
from aiokafka.admin import AIOKafkaAdminClient  # type: ignore[import-untyped]
from confluent_kafka import Consumer, Message, Producer, TopicPartition

SECONDS = 30.0

Topic = Callable[..., str]
Join = Callable[..., Consumer]


@pytest.fixture
def join(broker: str) -> Iterator[Join]:
    """Makes consumers that belong to a group, and closes them."""
    made: list[Consumer] = []

    def begin(group: str, topic: str, **settings: Any) -> Consumer:
        consumer = Consumer(
            {
                "bootstrap.servers": broker,
                "group.id": group,
                "auto.offset.reset": "earliest",
                **{name.replace("_", "."): value for name, value in settings.items()},
            }
        )
        consumer.subscribe([topic])
        made.append(consumer)
        return consumer

    yield begin
    for consumer in made:
        consumer.close()


def write(broker: str, topic: str, first: int, count: int) -> None:
    producer = Producer({"bootstrap.servers": broker})
    for number in range(first, first + count):
        producer.produce(topic, b"%d" % number, partition=0)
    assert producer.flush(SECONDS) == 0


def read(consumer: Consumer, count: int) -> list[Message]:
    found: list[Message] = []
    deadline = time.monotonic() + SECONDS
    while len(found) < count and time.monotonic() < deadline:
        found += [message for message in consumer.consume(count - len(found), 0.5) if not message.error()]
    return found


def values(messages: list[Message]) -> list[int]:
    return [int(message.value() or b"") for message in messages]


def test_seek_to_any_offset_and_read_again(broker: str, topic: Topic, join: Join) -> None:
    """GRP-26: inside a group, forwards and backwards, without a trace in what others read."""
    name = topic("seek")
    write(broker, name, 0, 100)
    consumer = join(name, name, enable_auto_commit=False)
    assert values(read(consumer, 100)) == list(range(100))
    for offset in (40, 99, 0):
        consumer.seek(TopicPartition(name, 0, offset))
        assert values(read(consumer, 100 - offset)) == list(range(offset, 100))


def test_one_group_reads_the_tail_while_another_reads_from_the_start(broker: str, topic: Topic, join: Join) -> None:
    """GRP-24, GRP-08, LOG-08: neither notices the other."""
    name = topic("tail-and-replay")
    write(broker, name, 0, 20_000)
    tail = join(f"{name}-tail", name)
    assert len(read(tail, 20_000)) == 20_000
    replay = join(f"{name}-replay", name)
    seen: list[int] = []
    for number in range(20_000, 20_010):
        write(broker, name, number, 1)
        assert values(read(tail, 1)) == [number]
        seen += values(read(replay, 1_500))
    seen += values(read(replay, 20_010 - len(seen)))
    assert seen == list(range(20_010))


def test_without_rules_anybody_may_read_anything_in_any_group(broker: str, topic: Topic, join: Join) -> None:
    """GRP-29: also the topic that groups are kept in. What rules forbid is for when there are rules."""
    name = topic("open")
    write(broker, name, 0, 1)
    consumer = join(name, name)
    assert len(read(consumer, 1)) == 1
    consumer.commit(asynchronous=False)
    assert read(join(f"{name}-curious", "__consumer_offsets"), 1)[0].key() is not None


def test_nobody_is_sent_what_he_did_not_ask_for(broker: str, topic: Topic, join: Join) -> None:
    """GRP-01: a consumer that asks no more is sent no more, however much there is."""
    name = topic("pull")
    consumer = join(name, name)
    write(broker, name, 0, 1)
    assert len(read(consumer, 1)) == 1
    consumer.pause([TopicPartition(name, 0)])
    write(broker, name, 1, 100)
    assert [m for m in consumer.consume(100, 1.0) if not m.error()] == []
    consumer.resume([TopicPartition(name, 0)])
    assert values(read(consumer, 100)) == list(range(1, 101))


def test_aiokafka_lists_groups(broker: str, topic: Topic, join: Join) -> None:
    """PRT-14: what it calls version 2 of the request says 1 on the wire."""
    name = topic("listed")
    write(broker, name, 0, 1)
    assert len(read(join(name, name), 1)) == 1

    async def listed() -> list[tuple[str, ...]]:
        admin = AIOKafkaAdminClient(bootstrap_servers=broker)
        await admin.start()
        try:
            groups: list[tuple[str, ...]] = await admin.list_consumer_groups()
            return groups
        finally:
            await admin.close()

    assert (name, "consumer") in asyncio.run(listed())
