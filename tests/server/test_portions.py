"""Requests that name much, or one thing many times: their answers are made in portions, and have an end."""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest

from desk import on_loop
from ottla.coordination.records import OffsetCommitKey, OffsetCommitValue, Record, pack
from ottla.rising import Rising
from ottla.server import portions
from ottla.wire import allowance
from ottla.wire.errors import Error
from ottla.wire.messages.cluster import ApiVersionsRequest
from ottla.wire.messages.commits import OffsetFetchRequest
from ottla.wire.messages.groups import (
    ConsumerGroupDescribeRequest,
    ConsumerGroupHeartbeatRequest,
    DescribeGroupsRequest,
    FindCoordinatorRequest,
    JoinGroupRequest,
    SyncGroupRequest,
)
from ottla.wire.messages.metadata import MetadataResponse
from ottla.wire.messages.settings import DescribeConfigsRequest
from ottla.wire.messages.transactions import (
    DescribeProducersRequest,
    DescribeTransactionsRequest,
    InitProducerIdRequest,
)
from ottla.wire.schema import Message
from served import Client, Served, fetch_request, serving

ONE = {"offsets.topic.num.partitions": "1", "transaction.state.log.num.partitions": "1"}
SETTINGS = {**ONE, "group.initial.rebalance.delay.ms": "0"}
BROKER, TOPIC = 4, 2
TOLD = "OffsetFetch v8 of 127.0.0.1 is not answered: what is named more than once would take more than 4000000 bytes"


@contextlib.asynccontextmanager
async def turns() -> AsyncIterator[list[int]]:
    """How many turns the loop has taken so far."""
    counted = [0]

    async def count() -> None:
        while True:
            counted[0] += 1
            await asyncio.sleep(0)

    counting = asyncio.create_task(count())
    yield counted
    counting.cancel()


async def coordinated(served: Served) -> Client:
    client = await served.connect()
    for kind in (0, 1):
        found = await client.call(FindCoordinatorRequest(key_type=kind, coordinator_keys=["g"]), 4)
        assert found.coordinators[0].error_code == 0
    return client


def commit(served: Served, group: str, count: int) -> None:
    """Offsets that were committed before anybody came."""
    offsets = served.node.groups.shard_of(group).state.offsets
    for partition in range(count):
        key = OffsetCommitKey(group=group, topic="t", partition=partition)
        offsets.replay(*pack(Record(key, OffsetCommitValue(offset=partition))), partition, -1)


def offsets_of(*groups: str) -> OffsetFetchRequest:
    return OffsetFetchRequest(groups=[OffsetFetchRequest.Group(group_id=group, topics=None) for group in groups])


async def is_healthy(served: Served) -> bool:
    return (await (await served.connect()).call(ApiVersionsRequest(), 0)).error_code == 0


@on_loop
async def test_a_group_that_is_named_a_few_times_is_told_each_time_with_turns_for_others(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(portions, "TURN_BYTES", 10_000)
    async with serving(tmp_path, settings=SETTINGS) as served, turns() as counted:
        client = await coordinated(served)
        commit(served, "g", 1_000)
        before = counted[0]
        told = (await client.call(offsets_of("none", *["g"] * 50), 8)).groups
        assert [group.group_id for group in told] == ["none", *["g"] * 50]
        wanted = list(range(1_000))
        assert all([p.committed_offset for p in group.topics[0].partitions] == wanted for group in told[1:])
        assert counted[0] - before > 50


@on_loop
async def test_a_group_that_is_named_thousands_of_times_costs_the_connection(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What was asked before is answered; what was asked behind is not, and nobody waits for it any more."""
    monkeypatch.setattr(allowance, "REPEATED_BYTES_MAX", 4_000_000)
    watch, watched = Rising.watch, []
    monkeypatch.setattr(Rising, "watch", lambda mark, callback: (watched.append(mark), watch(mark, callback)))
    async with serving(tmp_path, settings=SETTINGS) as served, turns() as counted:
        await served.topic("t")
        client = await coordinated(served)
        commit(served, "g", 1_000)
        before, mark = counted[0], served.partition("t").high_watermark
        client.send(ApiVersionsRequest(), 0)
        client.send(offsets_of(*["g"] * 3_000), 8)
        client.send(fetch_request("t", {0: 0}, max_wait_ms=600_000), 12)
        client.send(ApiVersionsRequest(), 0)
        assert await client.receive()
        assert await is_healthy(served)
        assert await client.is_cut()
        assert counted[0] - before > 40
        assert mark in watched and not mark.waiting
    assert [record.message for record in caplog.records if record.levelno >= logging.WARNING] == [TOLD]


@on_loop
async def test_long_metadata_of_an_offset_that_is_asked_for_again_and_again(tmp_path: Path) -> None:
    async with serving(tmp_path, settings=SETTINGS) as served:
        client = await coordinated(served)
        value = OffsetCommitValue(offset=1, metadata="m" * 4_000)
        key = OffsetCommitKey(group="g", topic="t", partition=0)
        served.node.groups.shard_of("g").state.offsets.replay(*pack(Record(key, value)), 0, -1)
        for version in (7, 8):
            few, many = (_one_partition(count, version) for count in (5, 100_000))
            answer = await client.call(few, version)
            (topic,) = answer.topics if version == 7 else answer.groups[0].topics
            assert [len(told.metadata) for told in topic.partitions] == [4_000] * 5
            other = await served.connect()
            other.send(many, version)
            assert await other.is_cut()


def _one_partition(count: int, version: int) -> OffsetFetchRequest:
    if version < 8:
        topic = OffsetFetchRequest.Topic(name="t", partition_indexes=[0] * count)
        return OffsetFetchRequest(group_id="g", topics=[topic])
    group = OffsetFetchRequest.Group.Topic(name="t", partition_indexes=[0] * count)
    return OffsetFetchRequest(groups=[OffsetFetchRequest.Group(group_id="g", topics=[group])])


@on_loop
async def test_ordinary_large_requests(tmp_path: Path) -> None:
    """A group with a hundred thousand offsets beside hundreds of groups. Of thousands that are not there little is told, and
    others have their turn all the same; the errors in the answer are counted."""
    async with serving(tmp_path, settings=SETTINGS) as served, turns() as counted:
        client = await coordinated(served)
        commit(served, "large", 100_000)
        for number in range(300):
            commit(served, f"g{number}", 20)
        told = (await client.call(offsets_of("large", *(f"g{number}" for number in range(300))), 8)).groups
        assert [len(group.topics[0].partitions) for group in told] == [100_000] + [20] * 300
        unknown, before = [f"unknown {number}" for number in range(20_000)], counted[0]
        groups = (await client.call(DescribeGroupsRequest(groups=unknown), 6)).groups
        assert counted[0] - before > 40
        assert [group.group_id for group in groups] == unknown
        assert {group.error_code for group in groups} == {Error.GROUP_ID_NOT_FOUND.code}
        assert served.node.measures.api[15].errors == {"GROUP_ID_NOT_FOUND": 20_000}


@on_loop
async def test_a_member_with_a_large_assignment_in_a_group_that_is_named_thousands_of_times(tmp_path: Path) -> None:
    """That was an attempt at a frame of 3 GB."""
    async with serving(tmp_path, settings=SETTINGS) as served:
        client = await coordinated(served)
        large = bytes(400_000)
        joining = JoinGroupRequest(group_id="g", session_timeout_ms=10_000, rebalance_timeout_ms=10_000)
        joining.protocol_type = "consumer"
        joining.protocols = [JoinGroupRequest.Protocol(name="range", metadata=large)]
        joined = await client.call(joining, 3)
        sync = SyncGroupRequest(group_id="g", generation_id=1, member_id=joined.member_id)
        sync.assignments = [SyncGroupRequest.Assignment(member_id=joined.member_id, assignment=large)]
        assert (await client.call(sync, 3)).error_code == 0
        few = (await client.call(DescribeGroupsRequest(groups=["g"] * 5), 5)).groups
        assert [len(group.members[0].member_assignment) for group in few] == [400_000] * 5
        client.send(DescribeGroupsRequest(groups=["g"] * 4_000), 5)
        assert await client.is_cut()
        assert await is_healthy(served)


def repeated(count: int) -> dict[str, tuple[Message, int, str]]:
    """Requests that name one thing so often; the version, and the list in the answer."""
    broker = DescribeConfigsRequest.Resource(resource_type=BROKER, resource_name="1")
    topic = DescribeProducersRequest.Topic(name="t", partition_indexes=[0])
    return {
        "DescribeConfigs": (DescribeConfigsRequest(resources=[broker] * count), 4, "results"),
        "ConsumerGroupDescribe": (ConsumerGroupDescribeRequest(group_ids=["c"] * count), 1, "groups"),
        "DescribeTransactions": (DescribeTransactionsRequest(transactional_ids=["x"] * count), 0, "transaction_states"),
        "DescribeProducers": (DescribeProducersRequest(topics=[topic] * count), 0, "topics"),
    }


@pytest.mark.parametrize("name", repeated(0))
@on_loop
async def test_every_api_that_answers_by_name(tmp_path: Path, name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(allowance, "REPEATED_BYTES_MAX", 500_000)
    async with serving(tmp_path, settings=SETTINGS) as served:
        await served.topic("t")
        client = await coordinated(served)
        beat = ConsumerGroupHeartbeatRequest(group_id="c", member_id="m", rebalance_timeout_ms=10_000)
        beat.subscribed_topic_names, beat.topic_partitions = ["t"], []
        assert (await client.call(beat, 1)).error_code == 0
        begun = await client.call(InitProducerIdRequest(transactional_id="x", transaction_timeout_ms=9_000), 4)
        assert begun.error_code == 0
        request, version, things = repeated(5)[name]
        told: list[Any] = getattr(await client.call(request, version), things)
        assert len(told) == 5 and told == told[:1] * 5
        client.send(*repeated(50_000)[name][:2])
        assert await client.is_cut()
        assert await is_healthy(served)


def test_an_answer_that_the_codec_does_not_know_to_be_told_in_portions() -> None:
    """Its list would be sent empty, and only where it is long."""
    with pytest.raises(AssertionError, match="MetadataResponse would be sent without what was told"):
        portions.Portions(MetadataResponse, 2, None)  # type: ignore[arg-type]


@on_loop
async def test_one_partition_that_is_named_again_and_again_within_its_topic(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(allowance, "REPEATED_BYTES_MAX", 500_000)
    async with serving(tmp_path, settings=SETTINGS) as served:
        await served.topic("t")
        client = await served.connect()
        few, many = (
            DescribeProducersRequest(
                topics=[DescribeProducersRequest.Topic(name="t", partition_indexes=[0, 9] * count)]
            )
            for count in (3, 100_000)
        )
        (topic,) = (await client.call(few, 0)).topics
        assert [told.error_code for told in topic.partitions] == [0, Error.UNKNOWN_TOPIC_OR_PARTITION.code] * 3
        client.send(many, 0)
        assert await client.is_cut()
