"""Finding a group's coordinator, and being a member: the classic protocol and the consumer protocol of KIP-848.

FindCoordinator versions: 1 other kinds of keys, 3 flexible, 4 many keys. What the others changed stands with their layouts in
`wire/messages/groups.py`; what they do is decided in `coordination/`.

Apache Kafka answers COORDINATOR_NOT_AVAILABLE while it makes the offsets topic; here the first client waits for it.
"""

from __future__ import annotations

import logging

from ottla.coordination import doors
from ottla.coordination.checks import check_consumer, check_join, check_named, check_sync
from ottla.metadata.controller import create_topics
from ottla.metadata.topics import CONSUMER_OFFSETS
from ottla.server.context import Context
from ottla.server.coordinators import partition_of
from ottla.server.dispatch import serves
from ottla.server.handlers.metadata import auto_topic
from ottla.wire.errors import Error, KafkaError
from ottla.wire.ids import uuid_bytes
from ottla.wire.messages.groups import (
    ConsumerGroupHeartbeatRequest,
    ConsumerGroupHeartbeatResponse,
    FindCoordinatorRequest,
    FindCoordinatorResponse,
    HeartbeatRequest,
    HeartbeatResponse,
    JoinGroupRequest,
    JoinGroupResponse,
    LeaveGroupRequest,
    LeaveGroupResponse,
    SyncGroupRequest,
    SyncGroupResponse,
)

log = logging.getLogger("ottla.groups")

GROUP, TRANSACTION, SHARE = range(3)
MANY_KEYS, SHARE_KEYS = 4, 6
# Errors about the coordinator, and not about what was asked: in Apache Kafka they come without a text, and name no member.
SAYS_ALL = (
    Error.COORDINATOR_LOAD_IN_PROGRESS,
    Error.COORDINATOR_NOT_AVAILABLE,
    Error.NOT_COORDINATOR,
    Error.UNKNOWN_SERVER_ERROR,
    Error.UNSUPPORTED_VERSION,
)

Coordinator = FindCoordinatorResponse.Coordinator


@serves(FindCoordinatorRequest, versions="0-6")
async def find_coordinator(request: FindCoordinatorRequest, ctx: Context) -> FindCoordinatorResponse:
    if ctx.version >= MANY_KEYS:
        found = [await _coordinator(key, request.key_type, ctx) for key in request.coordinator_keys]
        return FindCoordinatorResponse(coordinators=found)
    one = await _coordinator(request.key, request.key_type, ctx)
    return FindCoordinatorResponse(
        error_code=one.error_code,
        error_message=one.error_message or "NONE",  # as Apache Kafka says it
        node_id=one.node_id,
        host=one.host,
        port=one.port,
    )


async def _coordinator(key: str, kind: int, ctx: Context) -> Coordinator:
    try:
        if kind not in (GROUP, TRANSACTION, SHARE) or (kind == SHARE and not _names_share_partition(key, ctx)):
            raise KafkaError(Error.INVALID_REQUEST)
        if kind != GROUP:
            raise KafkaError(Error.COORDINATOR_NOT_AVAILABLE, "only groups are coordinated here")
        return await _coordinator_of_group(key, ctx)
    except KafkaError as error:
        return Coordinator(key=key, node_id=-1, host="", port=-1, error_code=error.code, error_message=error.message)


def _names_share_partition(key: str, ctx: Context) -> bool:
    """Whether it reads group:topic id:partition. The name of a group may have colons of its own."""
    try:
        group, topic_id, partition = key.rsplit(":", 2)
        uuid_bytes(topic_id)
        int(partition)
    except ValueError:
        return False
    return ctx.version >= SHARE_KEYS and bool(group.strip())


async def _coordinator_of_group(key: str, ctx: Context) -> Coordinator:
    topic = ctx.image.topic(CONSUMER_OFFSETS)
    if topic is None:
        await _make_offsets_topic(ctx)
        topic = ctx.image.topic(CONSUMER_OFFSETS)
        if topic is None:
            raise KafkaError(Error.COORDINATOR_NOT_AVAILABLE)
    broker = ctx.image.broker(topic.partitions[partition_of(key, len(topic.partitions))].leader)
    if broker is None or broker.fenced or ctx.listener not in broker.endpoints:
        raise KafkaError(Error.COORDINATOR_NOT_AVAILABLE)
    endpoint = broker.endpoints[ctx.listener]
    return Coordinator(key=key, node_id=broker.id, host=endpoint.host, port=endpoint.port, error_message="")


async def _make_offsets_topic(ctx: Context) -> None:
    quorum, rng = ctx.node.quorum, ctx.node.world.random
    wanted = [auto_topic(CONSUMER_OFFSETS, ctx.node.config)]
    try:
        outcomes = await quorum.propose(lambda image: create_topics(image, wanted, quorum.rules, rng))
    except KafkaError as error:
        raise KafkaError(Error.COORDINATOR_NOT_AVAILABLE, error.message)
    if (
        isinstance(outcome := outcomes[CONSUMER_OFFSETS], KafkaError)
        and outcome.error is not Error.TOPIC_ALREADY_EXISTS
    ):
        # Clients ask again and again, and say nothing to whoever waits for them.
        log.warning("no group can begin: %s (offsets.topic.replication.factor)", outcome.message)


@serves(JoinGroupRequest, versions="0-9")
async def join_group(request: JoinGroupRequest, ctx: Context) -> JoinGroupResponse:
    try:
        check_join(request, ctx.node.config)
        return await ctx.groups.decide(request.group_id, doors.join, request, ctx)
    except KafkaError as error:
        nameless = None if ctx.version >= 7 else ""
        who = "" if error.error in SAYS_ALL else request.member_id
        return JoinGroupResponse(error_code=error.code, protocol_name=nameless, member_id=who)


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
