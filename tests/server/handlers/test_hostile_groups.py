"""Hostile requests about groups on real sockets: nothing touches the file system, nothing stalls, nobody else is harmed."""

from __future__ import annotations

import asyncio
import contextlib
import gc
import logging
import os
import time
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest

from desk import on_loop
from ottla.coordination import subscriptions
from ottla.coordination.subscriptions import Evaluation
from ottla.wire.errors import Error
from ottla.wire.messages.commits import OffsetCommitRequest, OffsetFetchRequest
from ottla.wire.messages.groups import (
    ConsumerGroupHeartbeatRequest,
    DeleteGroupsRequest,
    DescribeGroupsRequest,
    FindCoordinatorRequest,
    JoinGroupRequest,
    LeaveGroupRequest,
    SyncGroupRequest,
)
from served import Client, serving

pytestmark = pytest.mark.usefixtures("own_garbage")
ONE = {"offsets.topic.num.partitions": "1", "group.initial.rebalance.delay.ms": "0"}
# A catastrophe lasts for hours. Processor time: how long others keep this process waiting is not what is measured.
STALL_S = 2.0
ODD_NAMES = [
    *(
        "../../../../tmp/owned",
        "/etc/passwd",
        "..",
        ".",
        "a/b\\c",
        "nul\0byte",
        "line\nbreak",
        "\r\x1b[31m",
        "%s%s%n%d",
    ),
    *("{0.__class__}", "${jndi:x}", "__consumer_offsets", "\U0001f600", "ünï", " ", "x" * 20_000),
]


@contextlib.asynccontextmanager
async def never_stalled() -> AsyncIterator[None]:
    """The loop, which is the node's too, was never held up for long."""
    worst = 0.0

    async def tick() -> None:
        nonlocal worst
        while True:
            before = time.thread_time()
            await asyncio.sleep(0.005)
            worst = max(worst, time.thread_time() - before)

    ticking = asyncio.create_task(tick())
    yield
    await asyncio.sleep(0.01)
    ticking.cancel()
    assert worst < STALL_S, f"the loop stood still for {worst:.2f} s"


async def made(client: Client) -> None:
    found = await client.call(FindCoordinatorRequest(coordinator_keys=["g"]), 4)
    assert found.coordinators[0].error_code == 0


def join_request(group: str, member: str = "", metadata: bytes = b"", name: str = "range") -> JoinGroupRequest:
    return JoinGroupRequest(
        group_id=group,
        session_timeout_ms=10_000,
        rebalance_timeout_ms=10_000,
        member_id=member,
        protocol_type="consumer",
        protocols=[JoinGroupRequest.Protocol(name=name, metadata=metadata)],
    )


async def join(client: Client, group: str, metadata: bytes = b"", name: str = "range") -> Any:
    told = await client.call(join_request(group, "", metadata, name), 9)
    assert told.error_code == Error.MEMBER_ID_REQUIRED.code
    return await client.call(join_request(group, told.member_id, metadata, name), 9)


@pytest.mark.parametrize(("version", "told"), [(3, ""), (6, ""), (7, None), (9, None)])
@on_loop
async def test_a_protocol_without_a_name_is_told_as_none(version: int, told: str | None, tmp_path: Path) -> None:
    """As Apache Kafka: null where it may be null, whether or not there is an agreement."""
    async with serving(tmp_path, settings=ONE) as served:
        client = await served.connect()
        await made(client)
        joined = await client.call(join_request("g", name=""), version)
        if joined.error_code == Error.MEMBER_ID_REQUIRED.code:
            assert joined.protocol_name == told
            joined = await client.call(join_request("g", joined.member_id, name=""), version)
        assert (joined.error_code, joined.generation_id, joined.protocol_name) == (0, 1, told)


def beat(group: str, member: str, **said: Any) -> ConsumerGroupHeartbeatRequest:
    request = ConsumerGroupHeartbeatRequest(group_id=group, member_id=member, rebalance_timeout_ms=10_000)
    request.topic_partitions = []
    for name, value in said.items():
        setattr(request, name, value)
    return request


@on_loop
async def test_names_of_groups_are_only_names(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    """Paths, formats and control characters: joined, committed, described, and no file has such a name."""
    gc.collect()
    caplog.clear()
    caplog.set_level(logging.DEBUG)
    async with serving(tmp_path, settings=ONE) as served:
        await served.topic("t")
        client = await served.connect()
        await made(client)
        before = set(os.listdir(tmp_path)), len(list(tmp_path.rglob("*")))
        for number, group in enumerate(ODD_NAMES):
            part = OffsetCommitRequest.Topic.Partition(
                partition_index=0, committed_offset=number, committed_metadata=group[:50]
            )
            topics = [OffsetCommitRequest.Topic(name="t", partitions=[part])]
            done = await client.call(OffsetCommitRequest(group_id=group, topics=topics), 8)
            assert done.topics[0].partitions[0].error_code == 0
            wanted = OffsetFetchRequest.Group(group_id=group, topics=None)
            found = (await client.call(OffsetFetchRequest(groups=[wanted]), 8)).groups[0]
            assert found.topics[0].partitions[0].committed_offset == number
            joined = await join(client, group, name=group[:200])
            assert joined.error_code == 0 and joined.protocol_name == group[:200]
            assert (
                await client.call(beat(f"{group}848", group, subscribed_topic_names=["t", group]), 1)
            ).error_code in (
                0,
                Error.INVALID_REQUEST.code,  # nothing but blanks
            )
        described = await client.call(DescribeGroupsRequest(groups=ODD_NAMES), 5)
        assert [group.error_code for group in described.groups] == [0] * len(ODD_NAMES)
        deleted = await client.call(DeleteGroupsRequest(groups_names=ODD_NAMES), 2)
        assert {result.error_code for result in deleted.results} == {Error.NON_EMPTY_GROUP.code}
        assert (set(os.listdir(tmp_path)), len(list(tmp_path.rglob("*")))) == before
    # What other tests of this process have started, or left behind to be collected, may have its own to tell.
    assert not [record for record in caplog.records if record.exc_info and record.name.startswith(("ottla", "asyncio"))]


@on_loop
async def test_expressions_that_take_for_ever_elsewhere_do_not_stall_the_node(tmp_path: Path) -> None:
    """Python's own engine would need longer than the universe has been there."""
    name = "a" * 200 + "b"
    expressions = [
        "(a+)+$",
        "(a|a)*$",
        "(a*)*c",
        "(.*)*x",
        "((a{1,100}){1,10})*$",
        "(" * 200 + "a" + ")" * 200,
        "a{1000}{2}",
    ]
    async with serving(tmp_path, settings=ONE) as served, never_stalled():
        for topic in (name, "a" * 100):
            await served.topic(topic)
        client = await served.connect()
        await made(client)
        fits = 0
        for number, expression in enumerate(expressions):
            request = beat(f"g{number}", "m", subscribed_topic_regex=expression)
            answer = await client.call(request, 1)
            assert answer.error_code in (0, Error.INVALID_REGULAR_EXPRESSION.code)
            fits += answer.error_code == 0
        assert fits >= 4
        for number in range(2):
            again = beat(f"g{number}", "m", subscribed_topic_regex=expressions[number], member_epoch=0)
            await client.call(again, 1)
            group = served.node.groups.shard_of(f"g{number}").state.by_id[f"g{number}"]
            assert group.regexes[expressions[number]].topics == {"a" * 100}  # type: ignore[attr-defined]


@on_loop
async def test_groups_with_expressions_share_one_slice_of_every_turn(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """However many they are, and whoever asks for something else is answered meanwhile."""
    turn, turns, go_on = 0, [], Evaluation.go_on

    def noted(evaluation: Evaluation) -> bool:
        turns.append(turn)
        return go_on(evaluation)

    async def count() -> None:
        nonlocal turn
        while True:
            turn += 1
            await asyncio.sleep(0)

    monkeypatch.setattr(Evaluation, "go_on", noted)
    monkeypatch.setattr(subscriptions, "SLICE_WORK", 1)
    async with serving(tmp_path) as served:
        for number in range(20):
            await served.topic(f"t{number}")
        client = await served.connect()
        await made(client)
        counting = asyncio.create_task(count())
        for number in range(10):
            assert (await client.call(beat(f"g{number}", "m", subscribed_topic_regex="t.*"), 1)).error_code == 0
        while len(turns) < 10 * 23:  # one for each expression, for each of 21 topics, and one to see that it is over
            await client.call(DescribeGroupsRequest(groups=["g0"]), 5)
        await client.call(DescribeGroupsRequest(groups=["g0"]), 5)
        counting.cancel()
        assert len(turns) == len(set(turns)) == 10 * 23
        for number in range(10):
            group = served.node.groups.shard_of(f"g{number}").state.by_id[f"g{number}"]
            assert len(group.regexes["t.*"].topics) == 20  # type: ignore[attr-defined]


@on_loop
async def test_garbage_where_subscriptions_and_assignments_should_be(tmp_path: Path) -> None:
    """They are opaque to a classic group. What has to read them, an upgrade or an expiry, refuses or goes on without."""
    garbage = [b"", b"\xff", b"\0\1\x7f\xff\xff\xff", bytes(range(256)), b"\0\3" + b"\xff" * 50, os.urandom(2000)]
    async with serving(tmp_path, settings=ONE) as served, never_stalled():
        await served.topic("t")
        client = await served.connect()
        await made(client)
        for number, junk in enumerate(garbage):
            group = f"g{number}"
            joined = await join(client, group, junk)
            assignment = SyncGroupRequest.Assignment(member_id=joined.member_id, assignment=junk)
            sync = SyncGroupRequest(
                group_id=group,
                generation_id=1,
                member_id=joined.member_id,
                protocol_type="consumer",
                protocol_name="range",
            )
            sync.assignments = [assignment, SyncGroupRequest.Assignment(member_id="nobody", assignment=junk)]
            synced = await client.call(sync, 5)
            assert synced.error_code == 0 and bytes(synced.assignment) == junk
            other = await client.call(beat(group, "newcomer", subscribed_topic_names=["t"]), 1)
            assert other.error_code in (0, Error.GROUP_ID_NOT_FOUND.code)
            described = await client.call(DescribeGroupsRequest(groups=[group]), 5)
            assert described.groups[0].error_code in (0, Error.GROUP_ID_NOT_FOUND.code)


@on_loop
async def test_subscriptions_too_large_to_be_written_down(tmp_path: Path) -> None:
    """All who wait are told, and the group can go on with smaller ones."""
    async with serving(tmp_path, settings=ONE) as served, never_stalled():
        client = await served.connect()
        await made(client)
        joined = await join(client, "g", b"x" * 1_200_000)
        sync = SyncGroupRequest(
            group_id="g", generation_id=1, member_id=joined.member_id, protocol_type="consumer", protocol_name="range"
        )
        assert (await client.call(sync, 5)).error_code == Error.UNKNOWN_SERVER_ERROR.code
        again = await client.call(join_request("g", joined.member_id, b"small"), 9)
        assert again.error_code == 0
        sync.generation_id = again.generation_id
        assert (await client.call(sync, 5)).error_code == 0


@on_loop
async def test_thousands_of_members_and_groups_in_one_request(tmp_path: Path) -> None:
    many = [f"m{number}" for number in range(5_000)]
    async with serving(tmp_path, settings=ONE) as served, never_stalled():
        client = await served.connect()
        await made(client)
        await join(client, "g")
        members = [LeaveGroupRequest.Member(member_id=member) for member in many]
        left = await client.call(LeaveGroupRequest(group_id="g", members=members), 5)
        assert {member.error_code for member in left.members} == {Error.UNKNOWN_MEMBER_ID.code}
        described = await client.call(DescribeGroupsRequest(groups=many), 5)
        assert len(described.groups) == len(many)
        wanted = [OffsetFetchRequest.Group(group_id=member, topics=None) for member in many]
        found = await client.call(OffsetFetchRequest(groups=wanted), 8)
        assert len(found.groups) == len(many)
        owned = [ConsumerGroupHeartbeatRequest.TopicPartitions(topic_id=os.urandom(16), partitions=[0] * 5_000)]
        odd = beat("g848", "m", subscribed_topic_names=many)
        joined = await client.call(odd, 1)
        assert joined.error_code == 0
        odd.member_epoch, odd.topic_partitions = joined.member_epoch, owned
        assert (await client.call(odd, 1)).error_code == 0
