"""Members of classic groups whose wait is disturbed: whatever happens to the one who asked, nobody waits for ever."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

from desk import on_loop
from ottla.wire.errors import Error
from ottla.wire.messages.groups import FindCoordinatorRequest, HeartbeatRequest, JoinGroupRequest, SyncGroupRequest
from served import Client, Served, serving

SETTINGS = {
    "offsets.topic.num.partitions": "1",
    "group.initial.rebalance.delay.ms": "0",
    "group.min.session.timeout.ms": "100",
}


def join_request(member: str = "", session_ms: int = 10_000) -> JoinGroupRequest:
    return JoinGroupRequest(
        group_id="g",
        session_timeout_ms=session_ms,
        rebalance_timeout_ms=60_000,
        member_id=member,
        protocol_type="consumer",
        protocols=[JoinGroupRequest.Protocol(name="range", metadata=b"")],
    )


async def known(served: Served, session_ms: int = 10_000) -> tuple[Client, str]:
    """A connection, and the id that a newcomer was given on it."""
    client = await served.connect()
    await client.call(FindCoordinatorRequest(coordinator_keys=["g"]), 4)
    told = await client.call(join_request(session_ms=session_ms), 9)
    assert told.error_code == Error.MEMBER_ID_REQUIRED.code
    return client, told.member_id


async def stable_leader(served: Served) -> tuple[Client, str]:
    client, member = await known(served)
    joined = await client.call(join_request(member), 9)
    assert (await sync(client, joined)).error_code == 0
    return client, member


async def sync(client: Client, joined: Any) -> Any:
    request = SyncGroupRequest(group_id="g", generation_id=joined.generation_id, member_id=joined.member_id)
    request.protocol_type, request.protocol_name = "consumer", "range"
    if joined.leader == joined.member_id:
        request.assignments = [
            SyncGroupRequest.Assignment(member_id=each.member_id, assignment=b"part") for each in joined.members
        ]
    return await client.call(request, 5)


async def until_rebalancing(client: Client, member: str) -> None:
    request = HeartbeatRequest(group_id="g", generation_id=1, member_id=member)
    while (await client.call(request, 4)).error_code != Error.REBALANCE_IN_PROGRESS.code:
        await asyncio.sleep(0.01)


@on_loop
async def test_an_id_that_was_given_and_never_used_holds_up_others_no_longer_than_a_session(tmp_path: Path) -> None:
    """KIP-394: the answer got lost and the client began anew; the id it never heard of counts as expected for a while."""
    async with serving(tmp_path, settings=SETTINGS) as served:
        leader, member = await stable_leader(served)
        await known(served, session_ms=300)
        other, newcomer = await known(served)
        other.send(join_request(newcomer), 9)
        await until_rebalancing(leader, member)
        joined = await leader.call(join_request(member), 9)
        assert joined.error_code == 0 and {each.member_id for each in joined.members} == {member, newcomer}
        assert (await other.receive()).generation_id == joined.generation_id


@on_loop
async def test_a_member_that_joins_again_on_another_connection_is_answered_there(tmp_path: Path) -> None:
    """Its first connection is gone, and with it the join that waited; another member's wait is not disturbed."""
    async with serving(tmp_path, settings=SETTINGS) as served:
        leader, member = await stable_leader(served)
        first, newcomer = await known(served)
        first.send(join_request(newcomer), 9)
        await until_rebalancing(leader, member)
        first.close()
        second = await served.connect()
        second.send(join_request(newcomer), 9)
        await second.writer.drain()
        joined = await leader.call(join_request(member), 9)
        answered = await second.receive()
        assert answered.error_code in (0, Error.REBALANCE_IN_PROGRESS.code)
        if answered.error_code:
            answered = await second.call(join_request(newcomer), 9)
        assert (answered.error_code, answered.generation_id) == (0, joined.generation_id)
        second.send(syncing(answered), 5)
        assert (await sync(leader, joined)).error_code == 0
        assert bytes((await second.receive()).assignment) == b"part"


def syncing(joined: Any) -> SyncGroupRequest:
    request = SyncGroupRequest(group_id="g", generation_id=joined.generation_id, member_id=joined.member_id)
    request.protocol_type, request.protocol_name = "consumer", "range"
    return request


@on_loop
async def test_those_who_wait_for_their_part_hear_of_a_newcomer(tmp_path: Path) -> None:
    """A leader that is slow to divide, a follower that waits, and somebody who comes between: all meet in the next one."""
    async with serving(tmp_path, settings=SETTINGS) as served:
        leader, member = await stable_leader(served)
        second, follower = await known(served)
        second.send(join_request(follower), 9)
        await until_rebalancing(leader, member)
        joined = await leader.call(join_request(member), 9)
        second.send(syncing(await second.receive()), 5)
        third, newcomer = await known(served)
        third.send(join_request(newcomer), 9)
        assert (await second.receive()).error_code == Error.REBALANCE_IN_PROGRESS.code
        second.send(join_request(follower), 9)
        assert (await sync(leader, joined)).error_code == Error.REBALANCE_IN_PROGRESS.code
        again = await leader.call(join_request(member), 9)
        assert {each.member_id for each in again.members} == {member, follower, newcomer}
        assert {(await each.receive()).generation_id for each in (second, third)} == {again.generation_id}
