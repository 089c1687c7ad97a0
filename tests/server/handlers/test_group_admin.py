"""ListGroups, DescribeGroups and DeleteGroups over a socket."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from desk import on_loop
from ottla.wire.errors import Error
from ottla.wire.messages.commits import OffsetCommitRequest, OffsetFetchRequest
from ottla.wire.messages.groups import (
    NO_OPERATIONS,
    ConsumerGroupDescribeRequest,
    ConsumerGroupHeartbeatRequest,
    DeleteGroupsRequest,
    DescribeGroupsRequest,
    HeartbeatRequest,
    JoinGroupRequest,
    LeaveGroupRequest,
    ListGroupsRequest,
    SyncGroupRequest,
)
from served import Client, Served, serving

PROMPT = {"group.initial.rebalance.delay.ms": "0"}
PATIENT = {"session_timeout_ms": 30_000, "rebalance_timeout_ms": 30_000}
OPERATIONS = 1 << 3 | 1 << 6 | 1 << 8 | 1 << 10 | 1 << 11


async def stocked(served: Served) -> Client:
    await served.topic("__consumer_offsets", 3)
    await served.topic("t", 2)
    return await served.connect()


async def commit(client: Client, group: str, **more: Any) -> int:
    partition = OffsetCommitRequest.Topic.Partition(partition_index=0, committed_offset=5)
    topics = [OffsetCommitRequest.Topic(name="t", partitions=[partition])]
    answer = await client.call(OffsetCommitRequest(group_id=group, topics=topics, **more), 8)
    code: int = answer.topics[0].partitions[0].error_code
    return code


async def join(client: Client, group: str, protocol_type: str = "consumer") -> Any:
    """One member, in a stable group."""
    protocols = [JoinGroupRequest.Protocol(name="range", metadata=b"\0\1\0\0\0\1\0\1t\xff\xff\xff\xff\0\0\0\0")]
    request = JoinGroupRequest(group_id=group, protocol_type=protocol_type, protocols=protocols, **PATIENT)
    joined = await client.call(request, 3)
    assert joined.error_code == 0
    given = [SyncGroupRequest.Assignment(member_id=joined.member_id, assignment=b"mine")]
    request = SyncGroupRequest(
        group_id=group, generation_id=joined.generation_id, member_id=joined.member_id, assignments=given
    )
    synced = await client.call(request, 3)
    assert (synced.error_code, synced.assignment) == (0, b"mine")
    return joined


async def listed(client: Client, version: int = 5, **filters: list[str]) -> set[tuple[str, str, str, str]]:
    answer = await client.call(ListGroupsRequest(**filters), version)
    assert answer.error_code == 0
    return {(g.group_id, g.protocol_type, g.group_state, g.group_type) for g in answer.groups}


async def described(client: Client, *groups: str, version: int = 6, **more: Any) -> list[Any]:
    answer = await client.call(DescribeGroupsRequest(groups=list(groups), **more), version)
    return list(answer.groups)


async def deleted(client: Client, *groups: str, version: int = 2) -> dict[str, int]:
    answer = await client.call(DeleteGroupsRequest(groups_names=list(groups)), version)
    return {result.group_id: result.error_code for result in answer.results}


@on_loop
async def test_groups_are_listed_by_state_and_type(tmp_path: Path) -> None:
    async with serving(tmp_path, PROMPT) as served:
        client = await stocked(served)
        for number in range(4):
            await commit(client, f"simple{number}")
        await join(client, "stable")
        await join(client, "workers", "connect")
        simple = {(f"simple{number}", "", "Empty", "classic") for number in range(4)}
        stable = {("stable", "consumer", "Stable", "classic"), ("workers", "connect", "Stable", "classic")}
        assert await listed(client) == simple | stable
        assert await listed(client, states_filter=[" EMPTY"]) == simple
        assert await listed(client, states_filter=["stable", "Dead"]) == stable
        assert await listed(client, states_filter=["no such state"]) == set()
        assert await listed(client, types_filter=["classic"]) == simple | stable
        assert await listed(client, types_filter=["Consumer"]) == set()
        assert await listed(client, types_filter=["whatever"]) == set()
        assert await listed(client, states_filter=["empty"], types_filter=["CLASSIC"]) == simple


@pytest.mark.parametrize("version", range(6))
@on_loop
async def test_every_version_lists(tmp_path: Path, version: int) -> None:
    async with serving(tmp_path) as served:
        client = await stocked(served)
        await commit(client, "g")
        state, kind = "Empty" if version >= 4 else "", "classic" if version >= 5 else ""
        assert await listed(client, version) == {("g", "", state, kind)}


@on_loop
async def test_a_list_that_would_not_be_complete_is_refused(tmp_path: Path) -> None:
    async with serving(tmp_path) as served:
        client = await stocked(served)
        await commit(client, "g")
        shard = served.node.groups.shard_of("g")
        machine, shard.machine = shard.machine, None
        answer = await client.call(ListGroupsRequest(), 5)
        assert (answer.error_code, answer.groups) == (Error.COORDINATOR_LOAD_IN_PROGRESS.code, [])
        shard.machine = machine


@pytest.mark.parametrize("version", range(7))
@on_loop
async def test_groups_are_described(tmp_path: Path, version: int) -> None:
    async with serving(tmp_path, PROMPT) as served:
        client = await stocked(served)
        await commit(client, "simple")
        member = (await join(client, "stable")).member_id
        asked = {"include_authorized_operations": True} if version >= 3 else {}
        simple, stable, dead = await described(client, "simple", "stable", "dead", version=version, **asked)
        assert (simple.group_state, simple.protocol_type, simple.protocol_data, simple.members) == ("Empty", "", "", [])
        assert (stable.group_state, stable.protocol_type, stable.protocol_data) == ("Stable", "consumer", "range")
        (only,) = stable.members
        assert (only.member_id, only.client_id, only.client_host) == (member, "test", "/127.0.0.1")
        assert (only.member_metadata[:2], only.member_assignment) == (b"\0\1", b"mine")
        assert dead.group_state == "Dead"
        if version < 6:
            assert dead.error_code == 0
        else:
            assert (dead.error_code, dead.error_message) == (
                Error.GROUP_ID_NOT_FOUND.code,
                "Group dead not found.",
            )
        operations = OPERATIONS if version >= 3 else NO_OPERATIONS
        assert [g.authorized_operations for g in (simple, stable)] == [operations] * 2
        assert dead.authorized_operations == (operations if version < 6 else NO_OPERATIONS)


@on_loop
async def test_what_members_say_is_told_only_while_the_group_is_stable_and_what_they_had_always(tmp_path: Path) -> None:
    async with serving(tmp_path, PROMPT) as served:
        client = await stocked(served)
        await join(client, "g")
        other = await served.connect()
        protocols = [JoinGroupRequest.Protocol(name="range", metadata=b"x")]
        request = JoinGroupRequest(group_id="g", protocol_type="consumer", protocols=protocols, **PATIENT)
        other.send(request, 3)
        group = (await described(client, "g"))[0]
        while group.group_state == "Stable":
            group = (await described(client, "g"))[0]
        assert (group.group_state, group.protocol_data) == ("PreparingRebalance", "")
        assert [(m.member_metadata, m.member_assignment) for m in group.members] == [(b"", b"mine"), (b"", b"")]


@pytest.mark.parametrize("version", range(3))
@on_loop
async def test_an_empty_group_can_be_deleted(tmp_path: Path, version: int) -> None:
    """Also one with members that left; not one that has some; each once."""
    async with serving(tmp_path, PROMPT) as served:
        client = await stocked(served)
        for group in ("a", "b"):
            await commit(client, group)
        joined = await join(client, "g")
        assert await deleted(client, "a", "g", "no", "a", version=version) == {
            "a": 0,
            "g": Error.NON_EMPTY_GROUP.code,
            "no": Error.GROUP_ID_NOT_FOUND.code,
        }
        assert {group for group, *_ in await listed(client)} == {"b", "g"}
        await client.call(LeaveGroupRequest(group_id="g", member_id=joined.member_id), 2)
        assert await deleted(client, "g", version=version) == {"g": 0}
        assert {group for group, *_ in await listed(client)} == {"b"}
        wanted = OffsetFetchRequest(groups=[OffsetFetchRequest.Group(group_id="a", topics=None)])
        assert (await client.call(wanted, 8)).groups[0].topics == []


@on_loop
async def test_deleted_groups_stay_deleted(tmp_path: Path) -> None:
    async with serving(tmp_path) as served:
        client = await stocked(served)
        for group in ("a", "b"):
            await commit(client, group)
        await deleted(client, "a")
    async with serving(tmp_path) as served:
        client = await served.connect()
        while (answer := await client.call(ListGroupsRequest(), 5)).error_code:
            pass
        assert [group.group_id for group in answer.groups] == ["b"]


@on_loop
async def test_a_group_with_more_offsets_than_fit_into_one_batch(tmp_path: Path) -> None:
    async with serving(tmp_path) as served:
        client = await stocked(served)
        await served.topic("wide", 4_000)
        for begin in range(0, 4_000, 1_000):
            partitions = [
                OffsetCommitRequest.Topic.Partition(partition_index=index, committed_offset=1)
                for index in range(begin, begin + 1_000)
            ]
            topics = [OffsetCommitRequest.Topic(name="wide", partitions=partitions)]
            await client.call(OffsetCommitRequest(group_id="g", topics=topics), 8)
        assert await deleted(client, "g") == {"g": 0}
        assert await listed(client) == set()


@on_loop
async def test_a_commit_is_as_good_as_a_heartbeat(tmp_path: Path) -> None:
    """A member of a classic group that only commits stays a member."""
    settings = {**PROMPT, "group.min.session.timeout.ms": "1"}
    async with serving(tmp_path, settings) as served:
        client = await stocked(served)
        joined = await join(client, "g")
        groups = served.node.groups.shard_of("g").state
        alarm = next(alarm for alarm in groups.timers._due if alarm[1:] == ("g", joined.member_id))
        before = groups.timers.due_at(alarm)
        groups.timers.set(alarm, 1 << 50)  # a time that no heartbeat would set
        more = {"member_id": joined.member_id, "generation_id_or_member_epoch": joined.generation_id}
        assert await commit(client, "g", **more) == 0
        after = groups.timers.due_at(alarm)
        assert before is not None
        assert after is not None
        assert before <= after < 1 << 50


@on_loop
async def test_who_may_commit_to_a_group_with_members(tmp_path: Path) -> None:
    """OFF-10: offsets of a group cannot be reset while members are there."""
    async with serving(tmp_path, PROMPT) as served:
        client = await stocked(served)
        joined = await join(client, "g")
        mine = {"member_id": joined.member_id, "generation_id_or_member_epoch": joined.generation_id}
        assert await commit(client, "g") == Error.UNKNOWN_MEMBER_ID.code
        assert await commit(client, "g", **{**mine, "member_id": "x"}) == Error.UNKNOWN_MEMBER_ID.code
        old = {**mine, "generation_id_or_member_epoch": 9}
        assert await commit(client, "g", **old) == Error.ILLEGAL_GENERATION.code
        assert await commit(client, "g", **mine) == 0
        heartbeat = HeartbeatRequest(group_id="g", generation_id=joined.generation_id, member_id=joined.member_id)
        assert (await client.call(heartbeat, 3)).error_code == 0
        await client.call(LeaveGroupRequest(group_id="g", member_id=joined.member_id), 2)
        assert await commit(client, "g") == 0


# --- consumer groups


async def join_consumers(client: Client, group: str, topic: str = "t") -> Any:
    """One member of a consumer group, which has got all partitions."""
    request = ConsumerGroupHeartbeatRequest(
        group_id=group,
        member_id="m",
        rebalance_timeout_ms=30_000,
        subscribed_topic_names=[topic],
        topic_partitions=[],
        rack_id="r",
    )
    joined = await client.call(request, 1)
    assert joined.error_code == 0
    while joined.assignment is None or not joined.assignment.topic_partitions:  # Apache assigns a second later
        again = ConsumerGroupHeartbeatRequest(group_id=group, member_id="m", member_epoch=joined.member_epoch)
        joined = await client.call(again, 1)
        assert joined.error_code == 0
    return joined


async def described_consumers(client: Client, *groups: str, version: int = 1, **more: Any) -> list[Any]:
    answer = await client.call(ConsumerGroupDescribeRequest(group_ids=list(groups), **more), version)
    return list(answer.groups)


@pytest.mark.parametrize("version", [0, 1])
@on_loop
async def test_consumer_groups_are_described_and_classic_ones_are_not(tmp_path: Path, version: int) -> None:
    async with serving(tmp_path, PROMPT) as served:
        client = await stocked(served)
        await join(client, "classic")
        joined = await join_consumers(client, "g")
        asked = ("g", "classic", "no", "")
        group, classic, unknown, nameless = await described_consumers(
            client, *asked, version=version, include_authorized_operations=True
        )
        assert (group.error_code, group.group_epoch, group.assignor_name) == (0, joined.member_epoch, "uniform")
        assert group.authorized_operations == OPERATIONS
        (member,) = group.members
        assert (member.member_id, member.client_id, member.client_host) == ("m", "test", "/127.0.0.1")
        assert (member.rack_id, member.instance_id, member.member_epoch) == ("r", None, joined.member_epoch)
        assert member.subscribed_topic_names == ["t"]
        assert member.member_type == (1 if version == 1 else -1)
        for has in (member.assignment, member.target_assignment):
            assert [(topic.topic_name, topic.partitions) for topic in has.topic_partitions] == [("t", [0, 1])]
        not_found = Error.GROUP_ID_NOT_FOUND.code
        assert (classic.error_code, classic.error_message) == (not_found, "Group classic is not a consumer group.")
        assert (unknown.error_code, unknown.error_message) == (not_found, "Group no not found.")
        assert (nameless.error_code, nameless.error_message) == (Error.INVALID_GROUP_ID.code, None)


@on_loop
async def test_a_consumer_group_seen_by_older_requests(tmp_path: Path) -> None:
    async with serving(tmp_path) as served:
        client = await stocked(served)
        await join_consumers(client, "g")
        ((group, protocol_type, _, kind),) = await listed(client, types_filter=["consumer"])
        assert (group, protocol_type, kind) == ("g", "consumer", "consumer")
        (old,) = await described(client, "g", version=5)
        assert (old.error_code, old.group_state) == (0, "Dead")
        (new,) = await described(client, "g")
        assert (new.error_code, new.error_message) == (
            Error.GROUP_ID_NOT_FOUND.code,
            "Group g is not a classic group.",
        )
        assert await deleted(client, "g") == {"g": Error.NON_EMPTY_GROUP.code}


@on_loop
async def test_commits_and_fetches_of_consumer_groups_name_the_epoch(tmp_path: Path) -> None:
    """KIP-848: an epoch that is not the member's is stale, for both."""
    async with serving(tmp_path) as served:
        client = await stocked(served)
        joined = await join_consumers(client, "g")

        async def fetch(member_id: str | None, epoch: int) -> int:
            topic = OffsetFetchRequest.Group.Topic(name="t", partition_indexes=[0])
            group = OffsetFetchRequest.Group(group_id="g", member_id=member_id, member_epoch=epoch, topics=[topic])
            code: int = (await client.call(OffsetFetchRequest(groups=[group]), 9)).groups[0].error_code
            return code

        async def commit_as(member_id: str, epoch: int, version: int = 9) -> int:
            partition = OffsetCommitRequest.Topic.Partition(partition_index=0, committed_offset=5)
            topics = [OffsetCommitRequest.Topic(name="t", partitions=[partition])]
            request = OffsetCommitRequest(
                group_id="g", topics=topics, member_id=member_id, generation_id_or_member_epoch=epoch
            )
            code: int = (await client.call(request, version)).topics[0].partitions[0].error_code
            return code

        unknown, stale = Error.UNKNOWN_MEMBER_ID.code, Error.STALE_MEMBER_EPOCH.code
        assert await commit_as("m", joined.member_epoch) == 0
        assert await commit_as("m", joined.member_epoch + 1) == stale
        assert await commit_as("x", joined.member_epoch) == unknown
        assert await commit_as("", -1) == unknown
        assert await commit_as("m", joined.member_epoch, version=8) == Error.UNSUPPORTED_VERSION.code
        assert await fetch("m", joined.member_epoch) == 0
        assert await fetch("m", joined.member_epoch + 1) == stale
        assert await fetch("x", 1) == unknown
        assert await fetch(None, -1) == 0
        assert await fetch("", -1) == unknown
