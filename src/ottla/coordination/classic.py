"""What members of classic groups ask: join, sync, heartbeat, leave.

What a group is stands in `classic_group.py`, how it comes to its next generation in `classic_rebalance.py`.

A *join* is answered at once if nothing is to change (a follower that lost the answer to its last one, a static member that
came back unchanged to a stable group), and else together with everybody else's. A newcomer is told its id first and comes
back with it (version 4, KIP-394), so that joins whose answers get lost do not leave members behind that nobody plays. A
*sync* is answered when the leader has brought all parts and they are written down.
"""

from __future__ import annotations

from ottla.coordination.classic_group import (
    COMPLETING,
    PREPARING,
    SESSION,
    STABLE,
    ClassicGroup,
    ClassicMember,
    Protocols,
    Waiting,
    new_member_id,
)
from ottla.coordination.classic_rebalance import (
    JOIN_PHASE,
    Step,
    call_back,
    complete_join_if_possible,
    current_generation,
    heard_sync,
    prepare,
    rebalance,
    refused_join,
)
from ottla.coordination.groups import CONSUMER, EMPTY, Group, Groups
from ottla.coordination.machine import Caller, Decision, Moment
from ottla.wire.errors import Error, KafkaError
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

# Versions of requests from which on something holds.
JOINS_WITH_REBALANCE_TIMEOUT = 1
JOINS_WITH_KNOWN_ID = 4  # KIP-394
JOINS_SKIPPING_ASSIGNMENT = 9
LEAVES_OF_MANY = 3

# Kinds of groups in whose place a classic one may come while nobody is in them. Kafka's list has streams groups as well; all
# others, such as share groups, keep their name and all they have written down.
GIVES_WAY = frozenset((CONSUMER,))

# The join of a newcomer does not wait longer than this: it may have gone, and could not send heartbeats before its answer.
NEWCOMER_PATIENCE_MS = 5 * 60 * 1000


# --- join


def join(groups: Groups, request: JoinGroupRequest, caller: Caller, moment: Moment) -> Decision[JoinGroupResponse]:
    """Take part in the next generation."""
    group = groups.by_id.get(request.group_id)
    if isinstance(group, ClassicGroup):
        return _join(Step(groups, group, moment), request, caller)
    if group is not None and group.kind not in GIVES_WAY:  # which in Apache Kafka does not name the member
        return Decision(refused_join(Error.INCONSISTENT_GROUP_PROTOCOL, "", caller.version))
    return _found(groups, request, caller, moment)


def _found(groups: Groups, request: JoinGroupRequest, caller: Caller, moment: Moment) -> Decision[JoinGroupResponse]:
    """The first member of a group. That the group exists is written down, even if the member cannot be let in; one that has
    committed offsets exists already."""
    before = groups.by_id.get(request.group_id)
    group = ClassicGroup(request.group_id, state_ms=moment.wall_ms)
    has_offsets = before is None and request.group_id in groups.offsets
    if has_offsets and not group.can_speak(request.protocol_type, protocols_of(request)):
        raise KafkaError(Error.INCONSISTENT_GROUP_PROTOCOL)
    if request.member_id or (before is not None and before.state != EMPTY):
        raise KafkaError(Error.UNKNOWN_MEMBER_ID)
    step = Step(groups, group, moment)
    step.records = [] if before is None else before.tombstones()
    step.records.append(group.birth())
    groups.by_id[request.group_id] = group
    try:
        decision = _join(step, request, caller)
    except KafkaError as error:
        decision = step.decision(refused_join(error.error, request.member_id, caller.version))
    decision.refused = lambda error: _not_founded(step, before, error, caller)
    return decision


def _not_founded(step: Step, before: Group | None, error: KafkaError, caller: Caller) -> Decision[JoinGroupResponse]:
    """It could not be written that the group exists: it does not."""
    groups, group = step.groups, step.group
    for member_id in [*group.members, *group.pending]:
        groups.timers.cancel((SESSION, group.group_id, member_id))
    step.cancel_phase(JOIN_PHASE)
    del groups.by_id[group.group_id]
    if before is not None:
        groups.by_id[group.group_id] = before
    return Decision(refused_join(error.error, "", caller.version))


def _join(step: Step, request: JoinGroupRequest, caller: Caller) -> Decision[JoinGroupResponse]:
    if not step.group.accepts(request.member_id, step.groups.config["group.max.size"]):
        step.remove(request.member_id)
        complete_join_if_possible(step)
        return step.decision(refused_join(Error.GROUP_MAX_SIZE_REACHED, "", caller.version))
    if not step.group.can_speak(request.protocol_type, protocols_of(request)):
        raise KafkaError(Error.INCONSISTENT_GROUP_PROTOCOL)
    if not request.member_id:
        return _join_newcomer(step, request, caller)
    if request.member_id in step.group.pending:
        return _join_pending(step, request, caller)
    return _join_again(step, request, caller)


def protocols_of(request: JoinGroupRequest) -> Protocols:
    return tuple((protocol.name, bytes(protocol.metadata)) for protocol in request.protocols)


def rebalance_timeout_of(request: JoinGroupRequest, version: int) -> int:
    return request.rebalance_timeout_ms if version >= JOINS_WITH_REBALANCE_TIMEOUT else request.session_timeout_ms


def _join_newcomer(step: Step, request: JoinGroupRequest, caller: Caller) -> Decision[JoinGroupResponse]:
    group, instance = step.group, request.group_instance_id
    member_id = new_member_id(caller.client_id if instance is None else instance, step.groups.chance)
    if instance is not None and instance in group.by_instance:
        return _join_instance(step, group.members[group.by_instance[instance]], member_id, request, caller)
    if instance is None and caller.version >= JOINS_WITH_KNOWN_ID:
        group.pending[member_id] = None
        step.expect(member_id, request.session_timeout_ms)
        return step.decision(refused_join(Error.MEMBER_ID_REQUIRED, member_id, caller.version))
    return _add(step, member_id, request, caller)


def _join_pending(step: Step, request: JoinGroupRequest, caller: Caller) -> Decision[JoinGroupResponse]:
    if request.group_instance_id is not None:
        # A static member with an id that was given to a dynamic one: Apache Kafka does not expect it either.
        return step.decision(refused_join(Error.UNKNOWN_SERVER_ERROR, "", caller.version))
    return _add(step, request.member_id, request, caller)


def _add(step: Step, member_id: str, request: JoinGroupRequest, caller: Caller) -> Decision[JoinGroupResponse]:
    """Somebody new."""
    group = step.group
    member = ClassicMember(
        member_id,
        request.group_instance_id,
        caller.client_id,
        caller.host,
        rebalance_timeout_of(request, caller.version),
        request.session_timeout_ms,
        protocols_of(request),
        is_new=True,
        join=Waiting(caller.waiter, caller.version),
    )
    group.grew = group.grew or group.delay is not None
    group.add(member, request.protocol_type)
    step.expect(member_id, NEWCOMER_PATIENCE_MS)
    rebalance(step)
    return step.decision()


def _join_again(step: Step, request: JoinGroupRequest, caller: Caller) -> Decision[JoinGroupResponse]:
    group = step.group
    member = group.known(request.member_id, request.group_instance_id)
    is_same = member.protocols == protocols_of(request)
    # In a stable group a leader joins to bring about a rebalance: something changed that subscriptions do not show.
    is_quiet = group.state == COMPLETING or (group.state == STABLE and group.leader != member.member_id)
    if is_same and is_quiet:
        step.expect_heartbeat(member)
        return step.decision(current_generation(group, member.member_id))
    _update(step, member, request, caller)
    step.park_join(member, Waiting(caller.waiter, caller.version))
    rebalance(step)
    return step.decision()


def _update(step: Step, member: ClassicMember, request: JoinGroupRequest, caller: Caller) -> None:
    step.group.speak(member, protocols_of(request))
    member.rebalance_timeout_ms = rebalance_timeout_of(request, caller.version)
    member.session_timeout_ms = request.session_timeout_ms


def _join_instance(
    step: Step, before: ClassicMember, member_id: str, request: JoinGroupRequest, caller: Caller
) -> Decision[JoinGroupResponse]:
    """A static member came back with nothing but its instance id: it takes the place of its former self, who is fenced."""
    group, leader_before = step.group, step.group.leader
    step.refuse_join(before, Error.FENCED_INSTANCE_ID, before.member_id)
    step.refuse_sync(before, Error.FENCED_INSTANCE_ID)
    step.groups.timers.cancel((SESSION, group.group_id, before.member_id))
    member = group.rename(before, member_id)
    step.expect_heartbeat(member)
    _update(step, member, request, caller)
    if group.state == STABLE and group.elected_protocol() == group.protocol:
        return _resume(step, member, before, leader_before, caller)
    step.park_join(member, Waiting(caller.waiter, caller.version))
    rebalance(step)
    return step.decision()


def _resume(
    step: Step, member: ClassicMember, before: ClassicMember, leader_before: str | None, caller: Caller
) -> Decision[JoinGroupResponse]:
    """Nothing changes for the others: no rebalance, but it is written down who plays this member now."""
    group = step.group
    response = current_generation(group, member.member_id)
    if caller.version >= JOINS_SKIPPING_ASSIGNMENT:
        response.skip_assignment = (
            group.leader == member.member_id
        )  # it leads, but the parts stay as they are (KIP-814)
    else:
        # Older clients must not take themselves for leaders, whose assignment a stable group would not hear.
        response.leader, response.members = leader_before or "", []
    step.records.append(group.record(step.moment.wall_ms))
    decision = step.decision(response)
    decision.refused = lambda error: _not_resumed(step, member, before, leader_before, error)
    return decision


def _not_resumed(
    step: Step, member: ClassicMember, before: ClassicMember, leader_before: str | None, error: KafkaError
) -> Decision[JoinGroupResponse]:
    """It could not be written: the former self is back in its place."""
    group = step.group
    step.groups.timers.cancel((SESSION, group.group_id, member.member_id))
    group.speak(member, before.protocols)
    member.rebalance_timeout_ms, member.session_timeout_ms = before.rebalance_timeout_ms, before.session_timeout_ms
    step.expect_heartbeat(group.rename(member, before.member_id))
    response = current_generation(group, "")
    response.error_code, response.leader = error.code, leader_before or ""
    return Decision(response, [], step.answers)


# --- sync


def sync(groups: Groups, request: SyncGroupRequest, caller: Caller, moment: Moment) -> Decision[SyncGroupResponse]:
    """Ask for one's part; the leader brings everybody's."""
    group = groups.by_id.get(request.group_id)
    if not isinstance(group, ClassicGroup):
        raise KafkaError(Error.UNKNOWN_MEMBER_ID)
    member = _checked_sync(group, request)
    step = Step(groups, group, moment)
    heard_sync(step, member.member_id)
    if group.state == STABLE:
        # Its session begins anew, as that of those who were waiting has: the answer may be long on its way, and nobody sends
        # heartbeats before it is there. (Apache Kafka counts on from the end of the join.)
        step.expect_heartbeat(member)
        return step.decision(_part(group, bytes(member.assignment)))
    step.park_sync(member, Waiting(caller.waiter, caller.version))
    if group.leader == member.member_id:
        return _divide(step, request)
    return step.decision()


def _checked_sync(group: ClassicGroup, request: SyncGroupRequest) -> ClassicMember:
    member = group.known(request.member_id, request.group_instance_id)
    if request.generation_id != group.generation:
        raise KafkaError(Error.ILLEGAL_GENERATION)
    if differs(request.protocol_type, group.protocol_type) or differs(request.protocol_name, group.protocol):
        raise KafkaError(Error.INCONSISTENT_GROUP_PROTOCOL)
    if group.state == PREPARING:
        raise KafkaError(Error.REBALANCE_IN_PROGRESS)
    return member


def differs(said: str | None, known: str | None) -> bool:
    """Versions before 5 do not say it."""
    return said is not None and known is not None and said != known


def _part(group: ClassicGroup, assignment: bytes) -> SyncGroupResponse:
    return SyncGroupResponse(protocol_type=group.protocol_type, protocol_name=group.protocol, assignment=assignment)


def _divide(step: Step, request: SyncGroupRequest) -> Decision[SyncGroupResponse]:
    """The leader's word: it is written down, which makes the group stable, and everybody who waits gets its part. The leader
    has its own by the time that anybody who comes later has the next: its answer takes the way that theirs takes."""
    group, instead = step.group, Step(step.groups, step.group, step.moment)
    instead.answers = list(step.answers)
    given = {each.member_id: bytes(each.assignment) for each in request.assignments}
    waiting = {member.member_id: member.sync for member in group.members.values()}
    step.records.append(group.record(step.moment.wall_ms, given))
    leader = group.members[request.member_id]
    leader.sync = None
    step.expect_heartbeat(leader)
    for member in group.members.values():
        step.answer_sync(member, _part(group, given.get(member.member_id, b"")))
    decision = step.decision(_part(group, given.get(leader.member_id, b"")))
    decision.refused = lambda error: _not_divided(instead, waiting, error)
    return decision


def _not_divided(step: Step, waiting: dict[str, Waiting | None], error: KafkaError) -> Decision[SyncGroupResponse]:
    """It could not be written: everybody hears so, and joins again."""
    for member in step.group.members.values():
        member.sync = waiting[member.member_id]
    call_back(step, error.error)
    prepare(step)
    return step.decision()


# --- heartbeat


def heartbeat(groups: Groups, request: HeartbeatRequest, caller: Caller, moment: Moment) -> Decision[HeartbeatResponse]:
    """Still here. Thousands of these come per second: one look at the group, one entry among the alarms."""
    group = groups.by_id.get(request.group_id)
    if not isinstance(group, ClassicGroup):
        raise KafkaError(Error.UNKNOWN_MEMBER_ID)
    member = group.known(request.member_id, request.group_instance_id)
    if request.generation_id != group.generation:
        raise KafkaError(Error.ILLEGAL_GENERATION)
    groups.timers.set((SESSION, group.group_id, member.member_id), moment.elapsed_ms + member.session_timeout_ms)
    if group.state == PREPARING:
        return Decision(HeartbeatResponse(error_code=Error.REBALANCE_IN_PROGRESS.code))
    return Decision(HeartbeatResponse())


# --- leave


def leave(groups: Groups, request: LeaveGroupRequest, caller: Caller, moment: Moment) -> Decision[LeaveGroupResponse]:
    """Members go, or an administrator removes static ones by instance."""
    leaving = request.members
    if caller.version < LEAVES_OF_MANY:
        leaving = [LeaveGroupRequest.Member(member_id=request.member_id)]
    group = groups.by_id.get(request.group_id)
    if not isinstance(group, ClassicGroup):
        return Decision(left([_outcome(member, Error.UNKNOWN_MEMBER_ID) for member in leaving], caller))
    step = Step(groups, group, moment)
    outcomes = [_leave_one(step, member) for member in leaving]
    if group.state != EMPTY and any(not outcome.error_code for outcome in outcomes):
        rebalance(step)
    decision = step.decision(left(outcomes, caller))
    decision.refused = lambda error: Decision(LeaveGroupResponse(error_code=error.code), [], step.answers)
    return decision


def left(outcomes: list[LeaveGroupResponse.Member], caller: Caller) -> LeaveGroupResponse:
    if caller.version < LEAVES_OF_MANY:
        return LeaveGroupResponse(error_code=outcomes[0].error_code)
    return LeaveGroupResponse(members=outcomes)


def _leave_one(step: Step, leaving: LeaveGroupRequest.Member) -> LeaveGroupResponse.Member:
    group, instance = step.group, leaving.group_instance_id
    if not leaving.member_id:
        member_id = group.by_instance.get(instance) if instance is not None else None
        if member_id is None:
            return _outcome(leaving, Error.UNKNOWN_MEMBER_ID)
    elif leaving.member_id in group.pending:
        member_id = leaving.member_id
    else:
        try:
            member_id = group.known(leaving.member_id, instance).member_id
        except KafkaError as error:
            return _outcome(leaving, error.error)
    step.remove(member_id)
    return _outcome(leaving, Error.NONE)


def _outcome(leaving: LeaveGroupRequest.Member, error: Error) -> LeaveGroupResponse.Member:
    return LeaveGroupResponse.Member(
        member_id=leaving.member_id, group_instance_id=leaving.group_instance_id, error_code=error.code
    )
