"""Being a member of a group: the classic protocol and the consumer protocol of KIP-848.

What each version changed stands with the layouts in `wire/messages/groups.py`; what is done is decided in `coordination/`.
"""

from __future__ import annotations

from ottla.coordination import doors
from ottla.coordination.checks import check_consumer, check_join, check_named, check_sync
from ottla.coordination.classic_rebalance import nameless, refused_join
from ottla.server.context import Context
from ottla.server.dispatch import serves
from ottla.wire.errors import Error, KafkaError
from ottla.wire.messages.groups import (
    ConsumerGroupHeartbeatRequest,
    ConsumerGroupHeartbeatResponse,
    HeartbeatRequest,
    HeartbeatResponse,
    JoinGroupRequest,
    JoinGroupResponse,
    LeaveGroupRequest,
    LeaveGroupResponse,
    SyncGroupRequest,
    SyncGroupResponse,
)

# Errors about the coordinator, and not about what was asked: in Apache Kafka they come without a text, and name no member.
SAYS_ALL = (
    Error.COORDINATOR_LOAD_IN_PROGRESS,
    Error.COORDINATOR_NOT_AVAILABLE,
    Error.NOT_COORDINATOR,
    Error.UNKNOWN_SERVER_ERROR,
    Error.UNSUPPORTED_VERSION,
)


@serves(JoinGroupRequest, versions="0-9")
async def join_group(request: JoinGroupRequest, ctx: Context) -> JoinGroupResponse:
    try:
        check_join(request, ctx.node.config)
        answer = await ctx.groups.decide(request.group_id, doors.join, request, ctx)
    except KafkaError as error:
        answer = refused_join(error.error, "" if error.error in SAYS_ALL else request.member_id, ctx.version)
    answer.protocol_name = answer.protocol_name or nameless(ctx.version)  # members may agree on one that has no name
    return answer


@serves(SyncGroupRequest, versions="0-5")
async def sync_group(request: SyncGroupRequest, ctx: Context) -> SyncGroupResponse:
    try:
        check_sync(request, ctx.version)
        return await ctx.groups.decide(request.group_id, doors.sync, request, ctx)
    except KafkaError as error:
        return SyncGroupResponse(error_code=error.code)


@serves(HeartbeatRequest, versions="0-4")
async def heartbeat(request: HeartbeatRequest, ctx: Context) -> HeartbeatResponse:
    try:
        check_named(request.group_id)
        return await ctx.groups.decide(request.group_id, doors.heartbeat, request, ctx)
    except KafkaError as error:
        if error.error is Error.COORDINATOR_LOAD_IN_PROGRESS:
            return HeartbeatResponse()  # Java's consumer ends on that word. Once all is loaded, sessions begin anew
        return HeartbeatResponse(error_code=error.code)


@serves(LeaveGroupRequest, versions="0-5")
async def leave_group(request: LeaveGroupRequest, ctx: Context) -> LeaveGroupResponse:
    try:
        check_named(request.group_id)
        return await ctx.groups.decide(request.group_id, doors.leave, request, ctx)
    except KafkaError as error:
        return LeaveGroupResponse(error_code=error.code)


@serves(ConsumerGroupHeartbeatRequest, versions="0-1")
async def consumer_group_heartbeat(
    request: ConsumerGroupHeartbeatRequest, ctx: Context
) -> ConsumerGroupHeartbeatResponse:
    try:
        check_consumer(request, ctx.version, ctx.node.config, ctx.image)
        return await ctx.groups.decide(request.group_id, doors.consumer_heartbeat, request, ctx)
    except KafkaError as error:
        said = None if error.error in SAYS_ALL else error.message
        return ConsumerGroupHeartbeatResponse(error_code=error.code, error_message=said)
