"""Where requests about groups come in: whoever knocks, the kind of the group decides who answers.

Joining an empty consumer group makes it a classic one: that is for the classic side to do, like all that is about groups that
do not exist.
"""

from __future__ import annotations

from ottla.coordination import bridge, classic, consumer
from ottla.coordination.classic_rebalance import refused_join
from ottla.coordination.consumer_group import ConsumerGroup
from ottla.coordination.groups import Groups
from ottla.coordination.machine import Caller, Decision, Moment
from ottla.wire.errors import KafkaError
from ottla.wire.messages.groups import (
    HeartbeatRequest,
    HeartbeatResponse,
    JoinGroupRequest,
    JoinGroupResponse,
    LeaveGroupRequest,
    LeaveGroupResponse,
    SyncGroupRequest,
    SyncGroupResponse,
)

consumer_heartbeat = consumer.heartbeat


def join(groups: Groups, request: JoinGroupRequest, caller: Caller, moment: Moment) -> Decision[JoinGroupResponse]:
    group = _consumer_group(groups, request.group_id)
    if group is not None:
        try:
            return bridge.join(groups, group, request, caller, moment)
        except KafkaError as error:  # which in Apache Kafka does not name the member
            return Decision(refused_join(error.error, "", caller.version))
    return classic.join(groups, request, caller, moment)


def sync(groups: Groups, request: SyncGroupRequest, caller: Caller, moment: Moment) -> Decision[SyncGroupResponse]:
    group = _consumer_group(groups, request.group_id)
    if group is not None:
        return bridge.sync(groups, group, request, caller, moment)
    return classic.sync(groups, request, caller, moment)


def heartbeat(groups: Groups, request: HeartbeatRequest, caller: Caller, moment: Moment) -> Decision[HeartbeatResponse]:
    group = _consumer_group(groups, request.group_id)
    if group is not None:
        return bridge.heartbeat(groups, group, request, caller, moment)
    return classic.heartbeat(groups, request, caller, moment)


def leave(groups: Groups, request: LeaveGroupRequest, caller: Caller, moment: Moment) -> Decision[LeaveGroupResponse]:
    group = _consumer_group(groups, request.group_id)
    if group is not None:
        return bridge.leave(groups, group, request, caller, moment)
    return classic.leave(groups, request, caller, moment)


def _consumer_group(groups: Groups, group_id: str) -> ConsumerGroup | None:
    """The group, if it is a consumer group with somebody in it."""
    group = groups.by_id.get(group_id)
    return group if isinstance(group, ConsumerGroup) and group.members else None
