"""Committed offsets and groups, as the libraries that people use write them, read them and look at them."""

from __future__ import annotations

import asyncio
import itertools
import time
from collections.abc import Callable, Iterator
from typing import Any

import confluent_kafka
import pytest
from aiokafka import AIOKafkaConsumer  # type: ignore[import-untyped]
from aiokafka import TopicPartition as AIOKafkaPartition
from confluent_kafka import Consumer, ConsumerGroupTopicPartitions, Producer, TopicPartition
from confluent_kafka.admin import AdminClient, NewTopic  # type: ignore[attr-defined]
from kafka import KafkaAdminClient, KafkaConsumer  # type: ignore[import-untyped]
from kafka import TopicPartition as KafkaPythonPartition
from kafka.structs import OffsetAndMetadata  # type: ignore[import-untyped]

from harness import Node, stop_all

RECORDS = 10
SECONDS = 60.0


@pytest.fixture(scope="module")
def address(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    settings = {"group.initial.rebalance.delay.ms": "0", "group.min.session.timeout.ms": "1000"}
    node = Node(tmp_path_factory.mktemp("committing") / "data", settings=settings)
    try:
        yield node.start().address
    finally:
        stop_all([node])


@pytest.fixture(scope="module")
def admin(address: str) -> AdminClient:
    return AdminClient({"bootstrap.servers": address})


@pytest.fixture
def topic(address: str, admin: AdminClient, request: pytest.FixtureRequest) -> str:
    """Two partitions with ten numbered records each; groups are named after it."""
    name = request.node.name.replace("[", "-").replace("]", "")
    admin.create_topics([NewTopic(name, 2)])[name].result(SECONDS)
    producer = Producer({"bootstrap.servers": address})
    for partition, number in itertools.product(range(2), range(RECORDS)):
        producer.produce(name, b"%d" % number, partition=partition)
    assert producer.flush(SECONDS) == 0
    return name


def consumer(address: str, group: str, on_commit: Callable[..., None] | None = None, **settings: Any) -> Consumer:
    dotted: dict[str, Any] = {name.replace("_", "."): value for name, value in settings.items()}
    quiet = {"enable.auto.commit": False, "auto.offset.reset": "earliest"}
    if on_commit is not None:
        dotted["on_commit"] = on_commit
    return Consumer({"bootstrap.servers": address, "group.id": group, **quiet, **dotted})


def numbers(reader: Consumer, count: int) -> list[int]:
    found: list[int] = []
    deadline = time.monotonic() + SECONDS
    while len(found) < count and time.monotonic() < deadline:
        for message in reader.consume(count - len(found), 0.2):
            assert message.error() is None
            found.append(int(message.value() or b""))
    return found


def until(is_so: Callable[[], bool]) -> None:
    deadline = time.monotonic() + SECONDS
    while not is_so():
        assert time.monotonic() < deadline
        time.sleep(0.05)


def code_of(call: Callable[[], object]) -> int:
    with pytest.raises(confluent_kafka.KafkaException) as refused:
        call()
    return int(refused.value.args[0].code())


# --- consumers that assign to themselves


def test_confluent_commits_without_a_subscription(address: str, topic: str) -> None:
    """OFF-01, OFF-08: where a consumer stands is its own affair; the broker knows what was committed, with its note."""
    first = consumer(address, topic)
    first.assign([TopicPartition(topic, 0, 0)])
    assert numbers(first, 5) == [0, 1, 2, 3, 4]
    assert first.committed([TopicPartition(topic, 0)], SECONDS)[0].offset == confluent_kafka.OFFSET_INVALID
    first.commit(offsets=[TopicPartition(topic, 0, 3, metadata="half way")], asynchronous=False)
    first.close()
    second = consumer(address, topic)
    (told, none) = second.committed([TopicPartition(topic, 0), TopicPartition(topic, 1)], SECONDS)
    assert (told.offset, told.metadata, none.offset) == (3, "half way", confluent_kafka.OFFSET_INVALID)
    second.assign([TopicPartition(topic, 0)])
    assert numbers(second, 7) == [3, 4, 5, 6, 7, 8, 9]
    second.close()


def test_kafka_python_commits_without_a_subscription(address: str, topic: str) -> None:
    """OFF-01, OFF-08."""
    partition = KafkaPythonPartition(topic, 0)
    settings = {"bootstrap_servers": address, "group_id": topic, "enable_auto_commit": False}
    with KafkaConsumer(**settings) as first:
        first.assign([partition])
        assert first.committed(partition) is None
        first.commit({partition: OffsetAndMetadata(3, "half way", -1)})
    with KafkaConsumer(**settings) as second:
        second.assign([partition])
        assert second.committed(partition) == 3
        assert second.position(partition) == 3


def test_aiokafka_commits_without_a_subscription(address: str, topic: str) -> None:
    """OFF-01, OFF-08."""

    async def commit_and_look() -> None:
        for expected in (None, 3):
            reader = AIOKafkaConsumer(bootstrap_servers=address, group_id=topic, enable_auto_commit=False)
            await reader.start()
            try:
                partition = AIOKafkaPartition(topic, 0)
                reader.assign([partition])
                assert await reader.committed(partition) == expected
                await reader.commit({partition: (3, "half way")})
            finally:
                await reader.stop()

    asyncio.run(commit_and_look())


def test_where_a_group_without_offsets_begins(address: str, topic: str) -> None:
    """OFF-07, OFF-09: each group for itself."""
    earliest = consumer(address, f"{topic}-early")
    earliest.assign([TopicPartition(topic, 0)])
    assert numbers(earliest, 2) == [0, 1]
    latest = consumer(address, f"{topic}-late", auto_offset_reset="latest")
    latest.assign([TopicPartition(topic, 0)])
    latest.poll(0)
    until(
        lambda: latest.poll(0.1) is None and latest.get_watermark_offsets(TopicPartition(topic, 0), cached=True)[1] > 0
    )
    producer = Producer({"bootstrap.servers": address})
    producer.produce(topic, b"99", partition=0)
    producer.flush(SECONDS)
    assert numbers(latest, 1) == [99]
    earliest.close()
    latest.close()


# --- members


def test_what_auto_commit_risks(address: str, topic: str) -> None:
    """OFF-03, OFF-04: what was polled counts as done. A consumer that dies before it has worked on it loses it."""
    first = consumer(address, topic, enable_auto_commit=True, auto_commit_interval_ms=50)
    first.subscribe([topic])
    got = numbers(first, 2 * RECORDS)
    assert len(got) == 2 * RECORDS  # and now it dies, with nothing done

    def committed() -> int:
        first.poll(0)
        return sum(
            max(0, told.offset) for told in first.committed([TopicPartition(topic, p) for p in range(2)], SECONDS)
        )

    until(lambda: committed() == 2 * RECORDS)
    first.close()
    second = consumer(address, topic)
    second.subscribe([topic])
    assert numbers_for(second, 1.0) == []
    second.close()


def numbers_for(reader: Consumer, seconds: float) -> list[int]:
    """What comes once partitions are assigned, and for a while after that."""
    until(lambda: reader.poll(0.1) is None and bool(reader.assignment()))
    deadline, found = time.monotonic() + seconds, []
    while time.monotonic() < deadline:
        found += [int(message.value() or b"") for message in reader.consume(100, 0.2)]
    return found


def test_commits_that_nobody_waits_for_tell_how_they_went(address: str, topic: str) -> None:
    """OFF-06: the callback hears of success, and of a commit to a group that has other members."""
    heard: list[Any] = []
    member = consumer(address, topic, on_commit=lambda error, partitions: heard.append((error, partitions)))
    member.subscribe([topic])
    assert len(numbers(member, 2 * RECORDS)) == 2 * RECORDS
    member.commit(asynchronous=True)
    until(lambda: member.poll(0.1) is None and bool(heard))
    (error, partitions) = heard[0]
    assert error is None
    assert sorted(told.offset for told in partitions) == [RECORDS, RECORDS]
    stranger = consumer(address, topic)
    stranger.assign([TopicPartition(topic, 0)])
    refused = code_of(lambda: stranger.commit(offsets=[TopicPartition(topic, 0, 1)], asynchronous=False))
    assert refused == confluent_kafka.KafkaError.UNKNOWN_MEMBER_ID
    stranger.close()
    member.close()


# --- administrators


@pytest.mark.parametrize("protocol", ["classic", "consumer"])
def test_confluent_looks_at_groups(address: str, admin: AdminClient, topic: str, protocol: str) -> None:
    """List, describe, alter offsets, delete: refused while members are there."""
    member = consumer(address, topic, group_protocol=protocol, client_id="somebody")
    member.subscribe([topic])
    assert len(numbers(member, 2 * RECORDS)) == 2 * RECORDS
    member.commit(asynchronous=False)
    listed = {group.group_id: group for group in admin.list_consumer_groups().result(SECONDS).valid}
    assert listed[topic].type.name == protocol.upper()
    assert not listed[topic].is_simple_consumer_group
    described = admin.describe_consumer_groups([topic], include_authorized_operations=True)[topic].result(SECONDS)
    (only,) = described.members
    assert (described.state.name, only.client_id, only.host) == ("STABLE", "somebody", "/127.0.0.1")
    assert len(only.assignment.topic_partitions) == 2
    assert {operation.name for operation in described.authorized_operations} == {
        *("READ", "DELETE", "DESCRIBE", "DESCRIBE_CONFIGS", "ALTER_CONFIGS"),
    }
    moved = [ConsumerGroupTopicPartitions(topic, [TopicPartition(topic, 0, 4)])]
    non_empty = confluent_kafka.KafkaError.NON_EMPTY_GROUP
    assert code_of(lambda: admin.delete_consumer_groups([topic])[topic].result(SECONDS)) == non_empty
    altered = admin.alter_consumer_group_offsets(moved)[topic].result(SECONDS).topic_partitions
    assert altered[0].error.code() == confluent_kafka.KafkaError.UNKNOWN_MEMBER_ID
    member.close()
    altered = admin.alter_consumer_group_offsets(moved)[topic].result(SECONDS).topic_partitions
    assert altered[0].error is None
    asked = [ConsumerGroupTopicPartitions(topic)]
    offsets = admin.list_consumer_group_offsets(asked)[topic].result(SECONDS).topic_partitions
    assert sorted((told.partition, told.offset) for told in offsets) == [(0, 4), (1, RECORDS)]
    admin.delete_consumer_groups([topic])[topic].result(SECONDS)
    assert topic not in {group.group_id for group in admin.list_consumer_groups().result(SECONDS).valid}


def test_kafka_python_looks_at_groups(address: str, topic: str) -> None:
    """Of a simple group: list, describe, alter and delete offsets, delete."""
    partitions = [KafkaPythonPartition(topic, index) for index in range(2)]
    admin = KafkaAdminClient(bootstrap_servers=address)
    try:
        admin.alter_group_offsets(topic, {part: OffsetAndMetadata(4, "set", -1) for part in partitions})
        assert topic in {group["group_id"] for group in admin.list_groups()}
        described = admin.describe_groups([topic])[topic]
        assert (described["group_state"], described["members"]) == ("Empty", [])
        assert {part: told.offset for part, told in admin.list_group_offsets(topic)[topic].items()} == dict.fromkeys(
            partitions, 4
        )
        admin.delete_group_offsets(topic, partitions[:1])
        assert set(admin.list_group_offsets(topic)[topic]) == set(partitions[1:])
        admin.delete_groups([topic])
        assert topic not in {group["group_id"] for group in admin.list_groups()}
    finally:
        admin.close()
