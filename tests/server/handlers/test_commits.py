"""OffsetCommit, OffsetFetch and OffsetDelete over a socket."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from desk import on_loop
from ottla.server.dispatch import HANDLERS
from ottla.wire.errors import Error
from ottla.wire.messages.commits import OffsetCommitRequest, OffsetDeleteRequest, OffsetFetchRequest
from ottla.wire.messages.topics import DeleteTopicsRequest
from served import Client, Served, TouchyDisk, serving

NOTHING = (-1, -1, "", 0)


def commit_request(
    offsets: dict[tuple[str, int], int], ids: dict[str, bytes] | None = None, note: str | None = "", **more: Any
) -> OffsetCommitRequest:
    topics: dict[str, OffsetCommitRequest.Topic] = {}
    for (name, index), offset in offsets.items():
        topic_id = bytes(16) if ids is None else ids[name]
        topic = topics.setdefault(name, OffsetCommitRequest.Topic(name=name, topic_id=topic_id))
        topic.partitions.append(
            OffsetCommitRequest.Topic.Partition(
                partition_index=index, committed_offset=offset, committed_leader_epoch=7, committed_metadata=note
            )
        )
    return OffsetCommitRequest(topics=list(topics.values()), **{"group_id": "g", **more})


def fetch_request(partitions: dict[str, list[int]] | None, version: int, group: str = "g", **more: Any) -> Any:
    if version < 8:
        old = (
            None
            if partitions is None
            else [OffsetFetchRequest.Topic(name=name, partition_indexes=wanted) for name, wanted in partitions.items()]
        )
        return OffsetFetchRequest(group_id=group, topics=old, **more)
    return OffsetFetchRequest(groups=[fetch_group(partitions, group)], **more)


def fetch_group(partitions: dict[Any, list[int]] | None, group: str = "g", **more: Any) -> OffsetFetchRequest.Group:
    topics = (
        None
        if partitions is None
        else [
            OffsetFetchRequest.Group.Topic(
                **({"topic_id": name} if isinstance(name, bytes) else {"name": name}), partition_indexes=wanted
            )
            for name, wanted in partitions.items()
        ]
    )
    return OffsetFetchRequest.Group(group_id=group, topics=topics, **more)


def committed(response: Any, by: str = "name") -> dict[Any, int]:
    return {(getattr(t, by), p.partition_index): p.error_code for t in response.topics for p in t.partitions}


def fetched(response: Any, version: int) -> dict[Any, tuple[int, int, str, int]]:
    topics = response.topics if version < 8 else response.groups[0].topics
    by = "topic_id" if version >= 10 else "name"
    return {
        (getattr(t, by), p.partition_index): (
            *(p.committed_offset, p.committed_leader_epoch, p.metadata),
            p.error_code,
        )
        for t in topics
        for p in t.partitions
    }


async def stocked(served: Served, *topics: str) -> tuple[Client, dict[str, bytes]]:
    await served.topic("__consumer_offsets", 3)
    ids = {topic: await served.topic(topic, 2) for topic in topics}
    return await served.connect(), ids


@pytest.mark.parametrize("version", range(2, 11))
@on_loop
async def test_what_was_committed_is_told(tmp_path: Path, version: int) -> None:
    """OFF-02, OFF-08: every version of both requests; what was not committed is -1."""
    async with serving(tmp_path) as served:
        client, ids = await stocked(served, "t", "u")
        by_id = ids if version >= 10 else None
        request = commit_request({("t", 0): 5, ("u", 1): 6}, by_id, note="mark")
        answer = committed(await client.call(request, version), "topic_id" if version >= 10 else "name")
        names: Any = ids if version >= 10 else {name: name for name in ids}
        assert answer == {(names["t"], 0): 0, (names["u"], 1): 0}
        for asked in range(1, 11):
            epoch = 7 if version >= 6 and asked >= 5 else -1
            names = ids if asked >= 10 else {name: name for name in ids}
            wanted = {names["t"]: [0, 1], names["u"]: [1]}
            told = fetched(await client.call(fetch_request(wanted, asked), asked), asked)
            assert told == {
                (names["t"], 0): (5, epoch, "mark", 0),
                (names["t"], 1): NOTHING,
                (names["u"], 1): (6, epoch, "mark", 0),
            }
            if asked >= 2:
                told = fetched(await client.call(fetch_request(None, asked), asked), asked)
                assert told == {(names["t"], 0): (5, epoch, "mark", 0), (names["u"], 1): (6, epoch, "mark", 0)}


@on_loop
async def test_partitions_that_do_not_exist_are_refused_one_by_one(tmp_path: Path) -> None:
    async with serving(tmp_path) as served:
        client, ids = await stocked(served, "t")
        unknown, unknown_id = Error.UNKNOWN_TOPIC_OR_PARTITION.code, Error.UNKNOWN_TOPIC_ID.code
        offsets = {("t", 0): 1, ("t", 9): 1, ("no", 0): 1, ("t", 1): 2}
        answer = await client.call(commit_request(offsets), 9)
        assert committed(answer) == {("t", 9): unknown, ("no", 0): unknown, ("t", 0): 0, ("t", 1): 0}
        assert [topic.name for topic in answer.topics] == ["t", "no"]
        offsets = {("t", 0): 3, ("t", 9): 1, ("no", 0): 1}
        answer = await client.call(commit_request(offsets, {**ids, "no": b"no such topic id"}), 10)
        assert committed(answer, "topic_id") == {
            (ids["t"], 9): unknown,
            (b"no such topic id", 0): unknown_id,
            (ids["t"], 0): 0,
        }
        told = fetched(await client.call(fetch_request({"t": [0, 1]}, 9), 9), 9)
        assert [offset for offset, *_ in told.values()] == [3, 2]


@on_loop
async def test_a_commit_of_nothing_that_exists_does_not_ask_for_the_group(tmp_path: Path) -> None:
    async with serving(tmp_path) as served:
        client, _ = await stocked(served)
        more = {"generation_id_or_member_epoch": 5, "member_id": "m"}
        assert committed(await client.call(commit_request({("t", 0): 1}, **more), 9)) == {("t", 0): 3}


@pytest.mark.parametrize(
    ("version", "generation", "error"),
    [(8, 0, Error.ILLEGAL_GENERATION), (9, 0, Error.GROUP_ID_NOT_FOUND), (10, 4, Error.GROUP_ID_NOT_FOUND)],
)
@on_loop
async def test_a_generation_of_a_group_that_does_not_exist(
    tmp_path: Path, version: int, generation: int, error: Error
) -> None:
    async with serving(tmp_path) as served:
        client, ids = await stocked(served, "t")
        offsets = {("t", 0): 1, ("t", 1): 1, ("t", 9): 1}
        request = commit_request(offsets, ids, generation_id_or_member_epoch=generation, member_id="m")
        codes = committed(await client.call(request, version), "topic_id" if version >= 10 else "name")
        assert [code for _, code in sorted(codes.items())] == [error.code, error.code, 3]


@on_loop
async def test_a_generation_of_a_group_that_nobody_joined(tmp_path: Path) -> None:
    async with serving(tmp_path) as served:
        client, _ = await stocked(served, "t")
        await client.call(commit_request({("t", 0): 1}), 9)
        for more in ({}, {"member_id": "m"}, {"group_instance_id": "i"}):
            request = commit_request({("t", 0): 2}, generation_id_or_member_epoch=0, **more)
            assert committed(await client.call(request, 9)) == {("t", 0): Error.UNKNOWN_MEMBER_ID.code}
        assert fetched(await client.call(fetch_request({"t": [0]}, 9), 9), 9)["t", 0][0] == 1


@on_loop
async def test_a_note_that_is_too_long_refuses_its_partition_alone(tmp_path: Path) -> None:
    async with serving(tmp_path, {"offset.metadata.max.bytes": "4"}) as served:
        client, _ = await stocked(served, "t")
        request = commit_request({("t", 0): 1, ("t", 1): 1}, note="four")
        request.topics[0].partitions[0].committed_metadata = "fives"
        codes = committed(await client.call(request, 9))
        assert codes == {("t", 0): Error.OFFSET_METADATA_TOO_LARGE.code, ("t", 1): 0}
        told = fetched(await client.call(fetch_request({"t": [0, 1]}, 9), 9), 9)
        assert told == {("t", 0): NOTHING, ("t", 1): (1, 7, "four", 0)}


@on_loop
async def test_no_note_is_an_empty_note(tmp_path: Path) -> None:
    async with serving(tmp_path) as served:
        client, _ = await stocked(served, "t")
        await client.call(commit_request({("t", 0): 1}, note=None), 9)
        assert fetched(await client.call(fetch_request({"t": [0]}, 9), 9), 9) == {("t", 0): (1, 7, "", 0)}


@on_loop
async def test_many_groups_in_one_request(tmp_path: Path) -> None:
    """OFF-09, KIP-709: groups that do not exist have committed nothing; no topics at all are no topics."""
    async with serving(tmp_path) as served:
        client, _ = await stocked(served, "t")
        for number in range(5):
            await client.call(commit_request({("t", 0): number}, group_id=f"g{number}"), 9)
        groups = [fetch_group({"t": [0]}, f"g{number}") for number in range(6)]
        groups += [fetch_group(None, "g1"), fetch_group(None, "g5"), fetch_group({}, "g1"), fetch_group(None, "")]
        answer = await client.call(OffsetFetchRequest(groups=groups), 9)
        offsets = [[p.committed_offset for t in g.topics for p in t.partitions] for g in answer.groups]
        assert offsets == [[0], [1], [2], [3], [4], [-1], [1], [], [], []]
        assert [g.error_code for g in answer.groups] == [0] * 10


@on_loop
async def test_a_topic_that_was_made_anew_has_no_offsets(tmp_path: Path) -> None:
    """A topic takes its offsets with it, for those who ask by name and by id."""
    async with serving(tmp_path) as served:
        client, ids = await stocked(served, "t", "u")
        await client.call(commit_request({("t", 0): 4, ("u", 0): 5}), 9)
        assert (await client.call(DeleteTopicsRequest(topic_names=["t"], timeout_ms=1_000), 5)).responses
        new_id = await served.topic("t", 1)
        told = fetched(await client.call(fetch_request({"t": [0], "u": [0]}, 9), 9), 9)
        assert told == {("t", 0): NOTHING, ("u", 0): (5, 7, "", 0)}
        wanted: Any = {new_id: [0], ids["t"]: [0]}
        told = fetched(await client.call(fetch_request(wanted, 10), 10), 10)
        assert told[new_id, 0] == NOTHING
        assert told[ids["t"], 0] == (-1, -1, "", Error.UNKNOWN_TOPIC_ID.code)


@on_loop
async def test_offsets_can_be_deleted(tmp_path: Path) -> None:
    """KIP-496."""
    async with serving(tmp_path) as served:
        client, _ = await stocked(served, "t")
        await client.call(commit_request({("t", 0): 4, ("t", 1): 5}), 9)

        async def delete(partitions: dict[str, list[int]], group: str = "g") -> Any:
            topics = [
                OffsetDeleteRequest.Topic(
                    name=name,
                    partitions=[OffsetDeleteRequest.Topic.Partition(partition_index=index) for index in indexes],
                )
                for name, indexes in partitions.items()
            ]
            return await client.call(OffsetDeleteRequest(group_id=group, topics=topics), 0)

        answer = await delete({"t": [0, 9], "no": [0]})
        assert answer.error_code == 0
        assert committed(answer) == {("t", 9): 3, ("no", 0): 3, ("t", 0): 0}
        told = fetched(await client.call(fetch_request({"t": [0, 1]}, 9), 9), 9)
        assert [offset for offset, *_ in told.values()] == [-1, 5]
        assert (await delete({"t": [0]})).error_code == 0  # the second time there is nothing to do
        assert (await delete({"t": [0]}, "nobody")).error_code == Error.GROUP_ID_NOT_FOUND.code
        assert (await delete({"t": [0]}, "")).error_code == Error.INVALID_GROUP_ID.code


@on_loop
async def test_without_the_topic_there_is_no_coordinator(tmp_path: Path) -> None:
    """OFF-02: aiokafka looks at partitions alone, and begins at 0 where it is told of none."""
    async with serving(tmp_path) as served:
        client = await served.connect()
        await served.topic("t")
        error = Error.NOT_COORDINATOR.code
        assert committed(await client.call(commit_request({("t", 0): 1}), 9)) == {("t", 0): error}
        assert (await client.call(fetch_request({"t": [0]}, 9), 9)).groups[0].error_code == error
        assert (await client.call(fetch_request({"t": [0]}, 7), 7)).error_code == error
        for version in range(1, 8):
            answer = await client.call(fetch_request({"t": [0]}, version), version)
            assert fetched(answer, version) == {("t", 0): (-1, -1, "", error)}


@on_loop
async def test_offsets_are_there_after_a_start(tmp_path: Path) -> None:
    """OFF-02, TRAP-59: what was answered is read back from the topic."""
    async with serving(tmp_path) as served:
        client, _ = await stocked(served, "t")
        for number in range(20):
            await client.call(commit_request({("t", 0): number, ("t", 1): 2}, group_id=f"g{number % 7}"), 9)
    async with serving(tmp_path) as served:
        client = await served.connect()
        for number in range(7):
            told: dict[Any, Any] = {}
            while ("t", 0) not in told:  # COORDINATOR_LOAD_IN_PROGRESS, at first
                told = fetched(await client.call(fetch_request({"t": [0]}, 9, group=f"g{number}"), 9), 9)
            assert told["t", 0][0] == (number + 14 if number < 6 else 13)


@on_loop
async def test_a_commit_that_could_not_be_written_is_not_remembered(tmp_path: Path) -> None:
    """The machine forgets what its log does not hold."""
    disk = TouchyDisk()
    async with serving(tmp_path, disk=disk) as served:
        client, _ = await stocked(served, "t")
        await client.call(commit_request({("t", 0): 1}), 9)
        disk.full = True
        codes = committed(await client.call(commit_request({("t", 0): 2}), 9))
        assert codes["t", 0] in (Error.NOT_COORDINATOR.code, Error.COORDINATOR_NOT_AVAILABLE.code)
        disk.full = False
        told: dict[Any, Any] = {}
        while ("t", 0) not in told:
            told = fetched(await client.call(fetch_request({"t": [0]}, 9), 9), 9)
        assert told["t", 0][0] == 1


@on_loop
async def test_a_commit_that_is_too_large_changes_nothing(tmp_path: Path) -> None:
    """More than a batch may hold: Apache has no better word for it either."""
    async with serving(tmp_path) as served:
        client, _ = await stocked(served, "t")
        request = commit_request({("t", 0): 1}, note="x" * 4_000)
        request.topics[0].partitions *= 300
        codes = committed(await client.call(request, 9))
        assert codes == {("t", 0): Error.UNKNOWN_SERVER_ERROR.code}
        assert fetched(await client.call(fetch_request({"t": [0]}, 9), 9), 9) == {("t", 0): NOTHING}


def test_versions() -> None:
    served = {key: (HANDLERS[key].low, HANDLERS[key].high) for key in (8, 9, 47)}
    assert served == {8: (2, 10), 9: (1, 10), 47: (0, 0)}
