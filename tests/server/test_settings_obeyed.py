"""What some settings of a node bring about, each with a value of its own."""

from __future__ import annotations

import asyncio
import os
from pathlib import Path
from typing import Any

import pytest

from desk import on_loop
from ottla.metadata.topics import CONSUMER_OFFSETS
from ottla.replication.moves import Move, Moves
from ottla.replication.partition import Assignment, Partition
from ottla.wire.errors import Error
from ottla.wire.messages.commits import OffsetCommitRequest
from ottla.wire.messages.groups import FindCoordinatorRequest
from ottla.wire.messages.metadata import DescribeTopicPartitionsRequest
from ottla.wire.messages.placement import AlterReplicaLogDirsRequest
from served import fetch_request, serving, until


@on_loop
async def test_how_long_a_commit_may_take(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """offsets.commit.timeout.ms: a copy that is in sync, and never comes for the records."""
    settings = {"offsets.topic.num.partitions": "1", "offsets.commit.timeout.ms": "57"}
    waits: list[float] = []
    acknowledged = Partition.acknowledged

    async def noted(partition: Partition, offset: int, seconds: float, mark: Any = None) -> None:
        waits.append(seconds)
        await acknowledged(partition, offset, seconds, mark)

    async with serving(tmp_path, settings) as served:
        await served.topic("t")
        await served.topic(CONSUMER_OFFSETS, 1, cleanup_policy="compact")
        served.partition(CONSUMER_OFFSETS).lead(Assignment((1, 2), (1, 2), 1, 0, 1))
        monkeypatch.setattr(Partition, "acknowledged", noted)
        client = await served.connect()
        part = OffsetCommitRequest.Topic.Partition(partition_index=0, committed_offset=1)
        topics = [OffsetCommitRequest.Topic(name="t", partitions=[part])]
        answer = await client.call(OffsetCommitRequest(group_id="g", topics=topics), 8)
        assert answer.topics[0].partitions[0].error_code == Error.COORDINATOR_NOT_AVAILABLE.code
        assert waits == [0.057]


@on_loop
async def test_the_size_of_segments_with_offsets(tmp_path: Path) -> None:
    """offsets.topic.segment.bytes"""
    settings = {"offsets.topic.num.partitions": "1", "offsets.topic.segment.bytes": "1234567"}
    async with serving(tmp_path, settings) as served:
        client = await served.connect()
        found = await client.call(FindCoordinatorRequest(coordinator_keys=["g"]), 4)
        assert found.coordinators[0].error_code == 0
        assert served.partition(CONSUMER_OFFSETS).log.settings.segment_bytes == 1234567


@on_loop
async def test_how_many_fetch_sessions_there_may_be(tmp_path: Path) -> None:
    """max.incremental.fetch.session.cache.slots: whoever comes later is served without a session."""
    async with serving(tmp_path, {"max.incremental.fetch.session.cache.slots": "2"}) as served:
        await served.topic("t")
        ids = []
        for _ in range(4):
            client = await served.connect()
            answer = await client.call(fetch_request("t", {0: 0}, session_id=0, session_epoch=0), 12)
            assert answer.error_code == 0
            ids.append(answer.session_id)
        assert [bool(session) for session in ids] == [True, True, False, False]


@on_loop
async def test_how_many_partitions_are_described_at_a_time(tmp_path: Path) -> None:
    """max.request.partition.size.limit: a request may ask for fewer, not for more."""
    async with serving(tmp_path, {"max.request.partition.size.limit": "3"}) as served:
        await served.topic("t", partitions=5)
        client = await served.connect()
        topics = [DescribeTopicPartitionsRequest.Topic(name="t")]
        for asked, told in ((2000, 3), (2, 2)):
            request = DescribeTopicPartitionsRequest(topics=topics, response_partition_limit=asked)
            answer = await client.call(request, 0)
            assert len(answer.topics[0].partitions) == told
            assert answer.next_cursor.partition_index == told


@pytest.mark.parametrize(("threads", "together"), [(None, 2), ("1", 1), ("3", 3)])
@on_loop
async def test_how_many_replicas_move_at_a_time(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, threads: str | None, together: int
) -> None:
    """num.replica.alter.log.dirs.threads: as many as there are directories, where nothing is said."""
    settings = {"log.dirs": f"{tmp_path}/one,{tmp_path}/two"}
    settings |= {} if threads is None else {"num.replica.alter.log.dirs.threads": threads}
    moving, most, let_go, arrive = 0, 0, asyncio.Event(), Moves._arrive

    async def noted(moves: Moves, move: Move) -> bool:
        nonlocal moving, most
        moving += 1
        most = max(most, moving)
        await let_go.wait()
        try:
            return await arrive(moves, move)
        finally:
            moving -= 1

    monkeypatch.setattr(Moves, "_arrive", noted)
    async with serving(tmp_path, settings) as served:
        await served.topic("t", partitions=6)
        directories, moves = served.node.directories, served.node.replicas.moves
        homes = {index: directories.home_of(served.partition("t", index).log).path for index in range(6)}
        kind = AlterReplicaLogDirsRequest.Directory
        dirs = [
            kind(
                path=os.path.abspath(to), topics=[kind.Topic(name="t", partitions=[i for i in homes if homes[i] != to])]
            )
            for to in (f"{tmp_path}/one", f"{tmp_path}/two")
        ]
        client = await served.connect()
        answer = await client.call(AlterReplicaLogDirsRequest(dirs=dirs), 2)
        assert {p.error_code for topic in answer.results for p in topic.partitions} == {0}
        await until(lambda: moving > 0 and all(move.has_begun for move in moves.under_way.values()))
        await asyncio.sleep(0.05)
        let_go.set()
        await until(lambda: not moves.under_way)
        assert most == together
        assert all(directories.home_of(served.partition("t", i).log).path != homes[i] for i in homes)
