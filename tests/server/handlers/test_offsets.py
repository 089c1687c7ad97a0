"""ListOffsets, OffsetForLeaderEpoch and DeleteRecords on the wire."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from desk import on_loop
from ottla.metadata.image import Partition as Assignment
from ottla.wire.errors import Error
from ottla.wire.messages.offsets import DeleteRecordsRequest, ListOffsetsRequest, OffsetForLeaderEpochRequest
from served import Client, Served, batch, produce_request, serving

LATEST, EARLIEST, MAX_TIMESTAMP, EARLIEST_LOCAL, LATEST_TIERED, PENDING_UPLOAD = -1, -2, -3, -4, -5, -6


async def filled(served: Served, **configs: str) -> Client:
    """Three batches with timestamps 1000-1001, 5000-5001 and 3000."""
    await served.topic("t", **configs)
    client = await served.connect()
    for data in (batch(b"a", b"b"), batch(b"c", b"d", timestamp=5_000), batch(b"e", timestamp=3_000)):
        assert (await client.produce("t", data)).error_code == 0
    return client


@pytest.mark.parametrize("version", range(1, 12))
@on_loop
async def test_every_version_answers_the_marks_it_knows(tmp_path: Path, version: int) -> None:
    """KIP-734, KIP-405, KIP-1005, KIP-1023: a mark that came later is UNSUPPORTED_VERSION for that partition."""
    known = {LATEST: 1, EARLIEST: 1, MAX_TIMESTAMP: 7, EARLIEST_LOCAL: 8, LATEST_TIERED: 9, PENDING_UPLOAD: 11}
    found = {
        LATEST: (-1, 5, 0),
        EARLIEST: (-1, 0, 0),
        MAX_TIMESTAMP: (5_001, 3, 0),
        EARLIEST_LOCAL: (-1, 0, 0),
        LATEST_TIERED: (-1, -1, -1),
        PENDING_UPLOAD: (-1, -1, -1),
    }
    async with serving(tmp_path) as served:
        client = await filled(served)
        for mark, since in known.items():
            answer = await client.list_offsets("t", mark, version=version)
            if version < since:
                assert answer.error_code == Error.UNSUPPORTED_VERSION.code
                continue
            timestamp, offset, epoch = found[mark]
            assert (answer.error_code, answer.timestamp, answer.offset) == (0, timestamp, offset), mark
            assert answer.leader_epoch == (epoch if version >= 4 else -1)


@pytest.mark.parametrize("version", [1, 6, 11])
@on_loop
async def test_marks_that_nobody_knows(tmp_path: Path, version: int) -> None:
    """As Apache 4.3.1: refused before anybody looks for the partition."""
    async with serving(tmp_path) as served:
        client = await filled(served)
        for topic, mark in (("t", -7), ("t", -(2**63)), ("none", -7)):
            answer = await client.list_offsets(topic, mark, version=version)
            assert (answer.error_code, answer.offset) == (Error.UNSUPPORTED_VERSION.code, -1)


@pytest.mark.parametrize("level", [2, -1, 127])
@on_loop
async def test_isolation_levels_that_do_not_exist(tmp_path: Path, level: int) -> None:
    async with serving(tmp_path) as served:
        client = await filled(served)
        answer = await client.list_offsets("t", LATEST, isolation_level=level)
        assert (answer.error_code, answer.offset) == (Error.UNKNOWN_SERVER_ERROR.code, -1)


@on_loop
async def test_a_timestamp_is_the_first_record_at_or_after_it(tmp_path: Path) -> None:
    """PRT-17."""
    async with serving(tmp_path) as served:
        client = await filled(served)
        for timestamp, expected in ((0, (1_000, 0)), (1_001, (1_001, 1)), (1_002, (5_000, 2)), (5_001, (5_001, 3))):
            answer = await client.list_offsets("t", timestamp)
            assert (answer.timestamp, answer.offset) == expected
        after = await client.list_offsets("t", 9_999_999)
        assert (after.error_code, after.timestamp, after.offset, after.leader_epoch) == (0, -1, -1, -1)


@on_loop
async def test_an_empty_log_has_ends_and_no_timestamps(tmp_path: Path) -> None:
    async with serving(tmp_path) as served:
        await served.topic("t")
        client = await served.connect()
        for mark, offset in ((LATEST, 0), (EARLIEST, 0), (MAX_TIMESTAMP, -1), (5, -1)):
            answer = await client.list_offsets("t", mark)
            assert (answer.error_code, answer.offset) == (0, offset)


@on_loop
async def test_committed_readers_are_told_the_last_stable_offset(tmp_path: Path) -> None:
    async with serving(tmp_path) as served:
        client = await filled(served)
        data = batch(b"x", timestamp=9_000, producer_id=1, producer_epoch=0, base_sequence=0, transactional=True)
        served.append_in_transaction("t", data)
        assert (await client.list_offsets("t", LATEST)).offset == 6
        assert (await client.list_offsets("t", LATEST, isolation_level=1)).offset == 5
        assert (await client.list_offsets("t", 9_000)).offset == 5
        assert (await client.list_offsets("t", 9_000, isolation_level=1)).offset == -1, "not beyond the stable end"
        served.end_transaction("t", 1, 0, commit=True)
        assert (await client.list_offsets("t", LATEST, isolation_level=1)).offset == 7


@on_loop
async def test_a_written_record_is_counted_at_once(tmp_path: Path) -> None:
    async with serving(tmp_path) as served:
        client = await filled(served)
        client.send(produce_request("t", {0: batch(b"v")}), 9)
        asked = ListOffsetsRequest.Topic.Partition(partition_index=0, timestamp=LATEST)
        client.send(
            ListOffsetsRequest(replica_id=-1, topics=[ListOffsetsRequest.Topic(name="t", partitions=[asked])]), 11
        )
        await client.receive()
        assert (await client.receive()).topics[0].partitions[0].offset == 6


@on_loop
async def test_a_partition_asked_twice_is_refused_once(tmp_path: Path) -> None:
    """As Apache 4.3.1 answers: merged by topic, empty topics left out."""
    async with serving(tmp_path) as served:
        client = await filled(served)
        topic, part = ListOffsetsRequest.Topic, ListOffsetsRequest.Topic.Partition
        request = ListOffsetsRequest(
            replica_id=-1,
            topics=[
                topic(
                    name="t", partitions=[part(partition_index=0, timestamp=-1), part(partition_index=0, timestamp=-2)]
                ),
                topic(name="empty", partitions=[]),
                topic(name="t", partitions=[part(partition_index=1, timestamp=-1)]),
            ],
        )
        (answered,) = (await client.call(request, 11)).topics
        assert [(p.partition_index, p.error_code) for p in answered.partitions] == [
            (0, Error.INVALID_REQUEST.code),
            (1, Error.UNKNOWN_TOPIC_OR_PARTITION.code),
        ]


@on_loop
async def test_epochs_are_fenced(tmp_path: Path) -> None:
    async with serving(tmp_path) as served:
        client = await filled(served)
        partition = served.partition("t")
        partition.lead(Assignment((1,), (1,), 1, 2))
        assert (await client.list_offsets("t", LATEST, current_leader_epoch=1)).error_code == 74
        assert (await client.list_offsets("t", LATEST, current_leader_epoch=3)).error_code == 75
        assert (await client.list_offsets("t", LATEST, current_leader_epoch=-2)).error_code == 74
        latest = await client.list_offsets("t", LATEST, current_leader_epoch=2)
        assert (latest.offset, latest.leader_epoch) == (5, 2)
        partition.follow(Assignment((1, 7), (7,), 7, 3))
        assert (await client.list_offsets("t", LATEST)).error_code == Error.NOT_LEADER_OR_FOLLOWER.code


# --- OffsetForLeaderEpoch


async def epoch_end(client: Client, epoch: int, current: int = -1, version: int = 4, index: int = 0) -> Any:
    asked = OffsetForLeaderEpochRequest.Topic.Partition(
        partition=index, current_leader_epoch=current, leader_epoch=epoch
    )
    topics = [OffsetForLeaderEpochRequest.Topic(topic="t", partitions=[asked])]
    response = await client.call(OffsetForLeaderEpochRequest(topics=topics), version)
    return response.topics[0].partitions[0]


@pytest.mark.parametrize("version", [2, 3, 4])
@on_loop
async def test_where_an_epoch_ended(tmp_path: Path, version: int) -> None:
    """TRAP-48: older than all known: the start of the first known; the current one: the log end; an unknown later one: -1."""
    async with serving(tmp_path) as served:
        client = await filled(served)
        partition = served.partition("t")
        partition.lead(Assignment((1,), (1,), 1, 4))
        await client.produce("t", batch(b"f"))
        for epoch, expected in ((0, (0, 5)), (2, (0, 5)), (4, (4, 6)), (9, (-1, -1))):
            answer = await epoch_end(client, epoch, version=version)
            assert (answer.error_code, answer.leader_epoch, answer.end_offset) == (0, *expected), epoch
        assert (await epoch_end(client, 0, current=1, version=version)).error_code == Error.FENCED_LEADER_EPOCH.code
        assert (await epoch_end(client, 0, current=-7, version=version)).error_code == Error.FENCED_LEADER_EPOCH.code
        missing = await epoch_end(client, 0, version=version, index=9)
        assert (missing.error_code, missing.leader_epoch, missing.end_offset) == (3, -1, -1)


# --- DeleteRecords


async def delete(client: Client, offset: int, topic: str = "t", version: int = 2) -> Any:
    asked = DeleteRecordsRequest.Topic.Partition(partition_index=0, offset=offset)
    request = DeleteRecordsRequest(topics=[DeleteRecordsRequest.Topic(name=topic, partitions=[asked])], timeout_ms=1000)
    return (await client.call(request, version)).topics[0].partitions[0]


@pytest.mark.parametrize("version", [0, 1, 2])
@on_loop
async def test_deleted_records_are_gone(tmp_path: Path, version: int) -> None:
    async with serving(tmp_path) as served:
        client = await filled(served)
        answer = await delete(client, 3, version=version)
        assert (answer.error_code, answer.low_watermark) == (0, 3)
        assert (await client.fetch("t", 2)).error_code == Error.OFFSET_OUT_OF_RANGE.code
        assert (await client.fetch("t", 3)).log_start_offset == 3
        assert (await client.list_offsets("t", EARLIEST)).offset == 3
        assert (await client.list_offsets("t", 0)).offset == 3, "the batch holds 2 as well, which is deleted"
        assert (await delete(client, 1)).low_watermark == 3, "the start never moves back"
        assert (await delete(client, -1)).low_watermark == 5, "-1 is the high watermark"
        assert (await client.produce("t", batch(b"v"))).log_start_offset == 5


@on_loop
async def test_what_may_not_be_deleted(tmp_path: Path) -> None:
    async with serving(tmp_path) as served:
        client = await filled(served)
        await served.topic("compacted", cleanup_policy="compact")
        await served.topic("__transaction_state")
        for topic, offset, error in (
            ("t", 6, Error.OFFSET_OUT_OF_RANGE),
            ("t", -2, Error.OFFSET_OUT_OF_RANGE),
            ("none", 0, Error.UNKNOWN_TOPIC_OR_PARTITION),
            ("compacted", 0, Error.POLICY_VIOLATION),
            ("__transaction_state", 0, Error.INVALID_TOPIC_EXCEPTION),
        ):
            answer = await delete(client, offset, topic)
            assert (answer.error_code, answer.low_watermark) == (error.code, -1), topic
