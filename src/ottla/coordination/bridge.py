"""Members that speak the classic protocol inside a consumer group (KIP-848): join, sync, heartbeat, leave.

To such a member everything looks as it always did. Its generation is its member epoch, nobody is the leader, and what it gets
when it syncs is what the coordinator assigned to it. When there is something to be done (a new target, partitions to give up,
partitions that were released) its heartbeat is answered with REBALANCE_IN_PROGRESS; it joins again, says what it owns as
far as its assignor tells (KIP-429), and so goes one step. It has its rebalance timeout to join, and as much to sync.
"""

from __future__ import annotations

from dataclasses import replace

from ottla.coordination.advancing import (
    JOIN,
    SESSION,
    SYNC,
    Turn,
    make_target,
    note_member,
    raise_epoch,
    reconcile,
    replace_member,
    topics_have_expired,
)
from ottla.coordination.classic import JOINS_WITH_KNOWN_ID, LEAVES_OF_MANY, left, protocols_of, rebalance_timeout_of
from ottla.coordination.classic_rebalance import refused_join
from ottla.coordination.consumer import check_instance, check_room, note_regex
from ottla.coordination.consumer_group import ConsumerGroup
from ottla.coordination.consumer_member import UNRELEASED, UNREVOKED, ClassicSide, Member
from ottla.coordination.conversion import (
    NEITHER,
    assignment_for,
    downgrade,
    fence,
    may_downgrade,
    policy,
    undo,
)
from ottla.coordination.groups import CONSUMER_PROTOCOL, Groups
from ottla.coordination.machine import Caller, Decision, Moment
from ottla.coordination.reconciliation import Owned
from ottla.metadata.image import Image
from ottla.wire.codec import Malformed
from ottla.wire.errors import Error, KafkaError
from ottla.wire.ids import random_id, uuid_text
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
from ottla.wire.messages.subscriptions import ConsumerProtocolSubscription, unpacked

# --- join


def join(
    groups: Groups, group: ConsumerGroup, request: JoinGroupRequest, caller: Caller, moment: Moment
) -> Decision[JoinGroupResponse]:
    member_id = request.member_id or uuid_text(random_id(groups.chance))
    _check_join(groups, group, request, member_id)
    if caller.version >= JOINS_WITH_KNOWN_ID and not request.member_id and request.group_instance_id is None:
        return Decision(refused_join(Error.MEMBER_ID_REQUIRED, member_id, caller.version))
    turn = Turn(groups, group, moment)
    former = group.static_member(request.group_instance_id)
    before = _member(turn, request, member_id, former)
    after, owned = _updated(groups.image, before, request, caller)
    is_other = note_member(turn, before, after)
    is_other = note_regex(turn, before, after)[0] or is_other
    epoch = raise_epoch(turn, before, after, is_other) if is_other or topics_have_expired(group) else group.epoch
    if former is not None and _is_last_of_its_kind(groups, group, former):
        after = _become_classic(turn, former, after, epoch, owned, is_other)
    else:
        after = reconcile(turn, after, *make_target(turn, epoch, before, after), owned, is_other)
        _expect(turn, after, request.session_timeout_ms)
    decision = Decision(_joined(after), turn.records, turn.answers)
    decision.refused = lambda error: _not_joined(turn, error)
    return decision


def _check_join(groups: Groups, group: ConsumerGroup, request: JoinGroupRequest, member_id: str) -> None:
    if policy(groups) == NEITHER:
        said = (
            f"Cannot join the consumer group {group.group_id} with the classic protocol because the group migration is"
        )
        raise KafkaError(Error.INCONSISTENT_GROUP_PROTOCOL, f"{said} disabled.")
    check_room(groups, group, member_id)
    speaks = (group.classic_protocols[protocol.name] == group.classic_members for protocol in request.protocols)
    if request.protocol_type != CONSUMER_PROTOCOL or not any(speaks):
        raise KafkaError(Error.INCONSISTENT_GROUP_PROTOCOL, f"Member {member_id}'s protocols are not supported.")


def _member(turn: Turn, request: JoinGroupRequest, member_id: str, former: Member | None) -> Member:
    """The member as it was before it joined. A static one takes the place of its former self, whatever that spoke."""
    instance_id = request.group_instance_id
    if instance_id is None:
        return turn.group.members.get(member_id) or Member(member_id)
    if request.member_id:
        return check_instance(former, member_id, instance_id)
    if former is None:
        return Member(member_id)
    again = replace(former, id=member_id, epoch=0, previous_epoch=0)
    replace_member(turn, former, again)
    return again


def _updated(image: Image, member: Member, request: JoinGroupRequest, caller: Caller) -> tuple[Member, Owned]:
    protocols = protocols_of(request)
    try:
        subscription = unpacked(ConsumerProtocolSubscription, protocols[0][1])
    except Malformed:
        raise KafkaError(Error.UNKNOWN_SERVER_ERROR)
    named = ((image.topic(topic.topic), topic.partitions) for topic in subscription.owned_partitions)
    owned = {topic.id: frozenset(partitions) for topic, partitions in named if topic is not None}
    timeout_ms, instance_id = rebalance_timeout_of(request, caller.version), request.group_instance_id
    after = replace(
        member,
        instance_id=member.instance_id if instance_id is None else instance_id,
        rack_id=subscription.rack_id or member.rack_id,
        rebalance_timeout_ms=member.rebalance_timeout_ms if timeout_ms == -1 else timeout_ms,
        names=frozenset(subscription.topics),
        regex="",
        client_id=caller.client_id,
        client_host=caller.host,
        classic=ClassicSide(request.session_timeout_ms, protocols),
    )
    return after, owned


def _is_last_of_its_kind(groups: Groups, group: ConsumerGroup, former: Member) -> bool:
    """All others speak the classic protocol already, and now this one does."""
    others = len(group.members) - 1
    return former.classic is None and group.classic_members == others and may_downgrade(groups, others + 1)


def _become_classic(turn: Turn, former: Member, after: Member, epoch: int, owned: Owned, is_other: bool) -> Member:
    """With a target that is as new as the group, nobody needs to do anything; else all are asked to join."""
    group = turn.group
    is_stale = group.assignment_epoch < epoch
    if not is_stale:
        target = group.target_of(after.id, after.instance_id)
        after = reconcile(turn, after, group.assignment_epoch, target, owned, is_other)
    others = [member for member in group.members.values() if member.id != former.id]
    downgrade(turn, [*others, after], former, must_rebalance=is_stale)
    return after


def _expect(turn: Turn, member: Member, session_timeout_ms: int) -> None:
    timers, group_id, now_ms = turn.groups.timers, turn.group.group_id, turn.moment.elapsed_ms
    timers.cancel((JOIN, group_id, member.id))
    timers.set((SESSION, group_id, member.id), now_ms + session_timeout_ms)
    timers.set((SYNC, group_id, member.id), now_ms + member.rebalance_timeout_ms)


def _joined(member: Member) -> JoinGroupResponse:
    assert member.classic is not None
    return JoinGroupResponse(
        generation_id=member.epoch,
        protocol_type=CONSUMER_PROTOCOL,
        protocol_name=member.classic.protocols[0][0],
        member_id=member.id,
    )


def _not_joined(turn: Turn, error: KafkaError) -> Decision[JoinGroupResponse]:
    undo(turn)
    raise error


# --- sync


def sync(
    groups: Groups, group: ConsumerGroup, request: SyncGroupRequest, caller: Caller, moment: Moment
) -> Decision[SyncGroupResponse]:
    member = _known(group, request.member_id, request.group_instance_id, request.generation_id)
    _check_protocol(member, request)
    if group.assignment_epoch > member.epoch and member.state != UNREVOKED:
        _expect_join(groups, group, member, moment)
        said = (
            f"A new rebalance is triggered in group {group.group_id} and member {member.id} should rejoin to catch up."
        )
        raise KafkaError(Error.REBALANCE_IN_PROGRESS, said)
    groups.timers.cancel((SYNC, group.group_id, member.id))
    _keep_session(groups, group, member, moment)
    return Decision(
        SyncGroupResponse(
            protocol_type=request.protocol_type,
            protocol_name=request.protocol_name,
            assignment=assignment_for(groups.image, member),
        )
    )


def _known(group: ConsumerGroup, member_id: str, instance_id: str | None, generation: int) -> Member:
    """The member, if it speaks the classic protocol and is in this generation."""
    if instance_id is None:
        member = group.member(member_id)
    else:
        found = group.static_member(instance_id)
        if found is None:
            said = f"Member with instance id {instance_id} is not a member of group {group.group_id}."
            raise KafkaError(Error.UNKNOWN_MEMBER_ID, said)
        member = check_instance(found, member_id, instance_id)
    if member.classic is None:
        raise KafkaError(Error.UNKNOWN_MEMBER_ID, f"Member {member.id} does not use the classic protocol.")
    if generation != member.epoch:
        said = f"The request generation id {generation} is not equal to the member epoch {member.epoch} of member"
        raise KafkaError(Error.ILLEGAL_GENERATION, f"{said} {member.id}.")
    return member


def _check_protocol(member: Member, request: SyncGroupRequest) -> None:
    assert member.classic is not None
    if request.protocol_type not in (None, CONSUMER_PROTOCOL):
        raise KafkaError(Error.INCONSISTENT_GROUP_PROTOCOL)
    if request.protocol_name not in (None, member.classic.protocols[0][0]):
        raise KafkaError(Error.INCONSISTENT_GROUP_PROTOCOL)


def _expect_join(groups: Groups, group: ConsumerGroup, member: Member, moment: Moment) -> None:
    alarm = (JOIN, group.group_id, member.id)
    if alarm not in groups.timers:
        groups.timers.set(alarm, moment.elapsed_ms + member.rebalance_timeout_ms)


def _keep_session(groups: Groups, group: ConsumerGroup, member: Member, moment: Moment) -> None:
    assert member.classic is not None
    at_ms = moment.elapsed_ms + member.classic.session_timeout_ms
    groups.timers.set((SESSION, group.group_id, member.id), at_ms)


# --- heartbeat


def heartbeat(
    groups: Groups, group: ConsumerGroup, request: HeartbeatRequest, caller: Caller, moment: Moment
) -> Decision[HeartbeatResponse]:
    member = _known(group, request.member_id, request.group_instance_id, request.generation_id)
    _keep_session(groups, group, member, moment)
    released = member.state == UNRELEASED and not _waits_for_others(group, member)
    if member.epoch < group.assignment_epoch or member.state == UNREVOKED or released or _lacks_a_target(group):
        _expect_join(groups, group, member, moment)
        return Decision(HeartbeatResponse(error_code=Error.REBALANCE_IN_PROGRESS.code))
    return Decision(HeartbeatResponse())


def _lacks_a_target(group: ConsumerGroup) -> bool:
    """Only heartbeats of the new protocol make targets, and only joins of the classic one. Where the way down is closed, a
    group may be left with classic members alone: somebody has to join. (In Apache Kafka it waits for a newcomer.)"""
    return group.epoch > group.assignment_epoch and group.classic_members == len(group.members)


def _waits_for_others(group: ConsumerGroup, member: Member) -> bool:
    """Somebody still has a partition of its target."""
    return any(
        partition not in member.assigned.get(topic_id, {}) and group.has_holder(topic_id, partition)
        for topic_id, partitions in group.target_of(member.id).items()
        for partition in partitions
    )


# --- leave


def leave(
    groups: Groups, group: ConsumerGroup, request: LeaveGroupRequest, caller: Caller, moment: Moment
) -> Decision[LeaveGroupResponse]:
    """Members go; also an administrator may send away members that speak the new protocol."""
    leaving = request.members
    if caller.version < LEAVES_OF_MANY:
        leaving = [LeaveGroupRequest.Member(member_id=request.member_id)]
    gone: dict[str, Member] = {}
    outcomes = []
    for one in leaving:
        outcome = LeaveGroupResponse.Member(member_id=one.member_id, group_instance_id=one.group_instance_id)
        try:
            member = _leaving(group, one)
            gone[member.id] = member
        except KafkaError as error:
            outcome.error_code = error.code
        outcomes.append(outcome)
    turn = Turn(groups, group, moment)
    if gone:
        fence(turn, list(gone.values()))
    decision = Decision(left(outcomes, caller), turn.records, turn.answers)
    decision.refused = lambda error: _not_left(turn, error)
    return decision


def _not_left(turn: Turn, error: KafkaError) -> Decision[LeaveGroupResponse]:
    undo(turn)
    return Decision(LeaveGroupResponse(error_code=error.code))


def _leaving(group: ConsumerGroup, one: LeaveGroupRequest.Member) -> Member:
    if one.group_instance_id is None:
        return group.member(one.member_id)
    member = group.static_member(one.group_instance_id)
    known_as = one.member_id or (member.id if member is not None else "")
    return check_instance(member, known_as, one.group_instance_id)
