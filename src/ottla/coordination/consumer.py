"""The consumer protocol of KIP-848: a member's heartbeat says everything, and its answer says everything.

A member joins with epoch 0, lives on with the epoch it was told, and leaves with -1, or with -2 if it is a static one that
will be back. What it does not mention has not changed. The answer tells its epoch and, when that changed or the member asked
in full, its assignment. What happens in between stands in `advancing.py`.

A member that is not heard of for the session timeout is out of the group, and so is one that does not give up partitions
within its rebalance timeout. Expressions are evaluated apart from heartbeats, by an alarm that rings at once and orders it:
the first answer to a member that brings one is empty, and a later one has the topics.
"""

from __future__ import annotations

from dataclasses import replace
from typing import NamedTuple

from ottla.coordination import subscriptions
from ottla.coordination.advancing import (
    HEARTBEAT_INTERVAL,
    JOIN,
    REGEX,
    REVOCATION,
    SESSION,
    SESSION_TIMEOUT,
    SYNC,
    Turn,
    group_setting,
    hash_of,
    make_target,
    note_member,
    raise_epoch,
    reconcile,
    replace_member,
    topics_have_expired,
)
from ottla.coordination.consumer_group import ConsumerGroup
from ottla.coordination.consumer_member import (
    AWAY_EPOCH,
    JOINING_EPOCH,
    LEFT_EPOCH,
    UNREVOKED,
    Held,
    Member,
    current_record,
    epoch_record,
    no_regex_record,
    regex_record,
)
from ottla.coordination.conversion import close_classic, fence, reopen_classic, undo, upgrade
from ottla.coordination.groups import Groups
from ottla.coordination.machine import Caller, Decision, Moment
from ottla.coordination.reconciliation import Owned
from ottla.coordination.subscriptions import Evaluation
from ottla.metadata.image import Image
from ottla.wire.errors import Error, KafkaError
from ottla.wire.ids import random_id, uuid_text
from ottla.wire.messages.groups import ConsumerGroupHeartbeatRequest, ConsumerGroupHeartbeatResponse

# Expressions are not evaluated more often than this.
REGEX_REST_MS = 10_000

Request = ConsumerGroupHeartbeatRequest
Response = ConsumerGroupHeartbeatResponse


# --- heartbeats


def heartbeat(groups: Groups, request: Request, caller: Caller, moment: Moment) -> Decision[Response]:
    if request.member_epoch in (LEFT_EPOCH, AWAY_EPOCH):
        return _leave(groups, request, moment)
    turn = _turn(groups, request, moment)
    check_room(groups, turn.group, request.member_id)
    owned = _owned(request)
    before = _member(turn, request, request.member_id or uuid_text(random_id(groups.chance)), owned)
    after = _updated(before, request, caller)
    names_changed = note_member(turn, before, after)
    regex_changed, is_resolved = note_regex(turn, before, after)
    epoch = turn.group.epoch
    if names_changed or is_resolved or topics_have_expired(turn.group):
        epoch = raise_epoch(turn, before, after, names_changed or is_resolved)
    assignment_epoch, target = make_target(turn, epoch, before, after)
    after = reconcile(turn, after, assignment_epoch, target, owned, names_changed or regex_changed)
    keep_session(groups, turn.group.group_id, after.id, moment)
    close_classic(turn)
    decision = Decision(_answer(groups, request, before, after), turn.records, turn.answers)
    if turn.former is not None:
        decision.refused = lambda error: _not_upgraded(turn, error)
    return decision


def _not_upgraded(turn: Turn, error: KafkaError) -> Decision[Response]:
    reopen_classic(turn)
    return Decision(Response(error_code=error.code, error_message=error.message), [], turn.answers)


def _turn(groups: Groups, request: Request, moment: Moment) -> Turn:
    """The group: a new one, or a classic one that becomes one, if somebody joins."""
    group = groups.by_id.get(request.group_id)
    if isinstance(group, ConsumerGroup):
        return Turn(groups, group, moment)
    if request.member_epoch == JOINING_EPOCH:
        return upgrade(groups, request.group_id, moment)
    if group is None and request.group_id not in groups.offsets:
        raise KafkaError(Error.GROUP_ID_NOT_FOUND, f"Consumer group {request.group_id} not found.")
    raise KafkaError(Error.GROUP_ID_NOT_FOUND, f"Group {request.group_id} is not a consumer group.")


def check_room(groups: Groups, group: ConsumerGroup, member_id: str) -> None:
    most = groups.config["group.consumer.max.size"]
    if len(group.members) >= most and member_id not in group.members:
        said = f"The consumer group has reached its maximum capacity of {most} members."
        raise KafkaError(Error.GROUP_MAX_SIZE_REACHED, said)


def _owned(request: Request) -> Owned:
    if request.topic_partitions is None:
        return None
    owned: dict[bytes, frozenset[int]] = {}
    for topic in request.topic_partitions:
        owned[topic.topic_id] = owned.get(topic.topic_id, frozenset()).union(topic.partitions)
    return owned


def _member(turn: Turn, request: Request, member_id: str, owned: Owned) -> Member:
    """The member as it was before this heartbeat: a new one, perhaps."""
    group, is_joining = turn.group, request.member_epoch == JOINING_EPOCH
    if request.instance_id is not None:
        return _static_member(turn, request, member_id, owned)
    member = group.members.get(member_id) if is_joining else group.member(member_id)
    if member is None:
        return Member(member_id)
    _check_epoch(member, request.member_epoch, owned)
    return member


def _static_member(turn: Turn, request: Request, member_id: str, owned: Owned) -> Member:
    group, instance_id = turn.group, request.instance_id or ""
    member = group.static_member(instance_id)
    if request.member_epoch != JOINING_EPOCH:
        member = check_instance(member, member_id, instance_id)
        _check_epoch(member, request.member_epoch, owned)
        return member
    if member is None:
        return group.members.get(member_id) or Member(member_id)
    if member.classic is None and not member.is_away:
        said = (
            f"Static member {member_id} with instance id {instance_id} cannot join the group because the instance id "
        )
        raise KafkaError(Error.UNRELEASED_INSTANCE_ID, f"{said}is owned by {member.id} member.")
    again = replace(member, id=member_id, epoch=JOINING_EPOCH, previous_epoch=0)
    replace_member(turn, member, again)
    return again


def check_instance(member: Member | None, member_id: str, instance_id: str) -> Member:
    """The static member, if it is known under this id."""
    if member is None:
        raise KafkaError(Error.UNKNOWN_MEMBER_ID, f"Instance id {instance_id} is unknown.")
    if member.id != member_id:
        said = f"Static member {member_id} with instance id {instance_id} was fenced by member {member.id}."
        raise KafkaError(Error.FENCED_INSTANCE_ID, said)
    return member


def _check_epoch(member: Member, epoch: int, owned: Owned) -> None:
    """A member may be one answer behind, but then it must not own anything that it should not."""
    if epoch in (JOINING_EPOCH, member.epoch):
        return
    if epoch == member.previous_epoch and epoch < member.epoch and _within(owned, member.assigned):
        return
    compared = "greater" if epoch > member.epoch else "smaller"
    raise KafkaError(
        Error.FENCED_MEMBER_EPOCH,
        f"The consumer group member has a {compared} member epoch ({epoch}) than the one known by the group "
        f"coordinator ({member.epoch}). The member must abandon all its partitions and rejoin.",
    )


def _within(owned: Owned, assigned: Held) -> bool:
    if owned is None:
        return False
    return all(topic_id in assigned and those <= assigned[topic_id].keys() for topic_id, those in owned.items())


def _updated(member: Member, request: Request, caller: Caller) -> Member:
    names, timeout_ms = request.subscribed_topic_names, request.rebalance_timeout_ms
    return replace(
        member,
        instance_id=member.instance_id if request.instance_id is None else request.instance_id,
        rack_id=member.rack_id if request.rack_id is None else request.rack_id,
        rebalance_timeout_ms=member.rebalance_timeout_ms if timeout_ms == -1 else timeout_ms,
        assignor=member.assignor if request.server_assignor is None else request.server_assignor,
        names=member.names if names is None else frozenset(names),
        regex=member.regex if request.subscribed_topic_regex is None else request.subscribed_topic_regex,
        client_id=caller.client_id,
        client_host=caller.host,
        classic=None,
    )


def keep_session(groups: Groups, group_id: str, member_id: str, moment: Moment) -> None:
    timeout_ms = group_setting(groups, group_id, SESSION_TIMEOUT)
    groups.timers.set((SESSION, group_id, member_id), moment.elapsed_ms + timeout_ms)


def _answer(groups: Groups, request: Request, before: Member, after: Member) -> Response:
    """The assignment is told to whoever asks in full, and when it has changed."""
    says_what_it_wants = request.subscribed_topic_names is not None or request.subscribed_topic_regex is not None
    is_full = request.rebalance_timeout_ms != -1 and says_what_it_wants and request.topic_partitions is not None
    response = Response(
        member_id=after.id,
        member_epoch=after.epoch,
        heartbeat_interval_ms=group_setting(groups, request.group_id, HEARTBEAT_INTERVAL),
    )
    if request.member_epoch == JOINING_EPOCH or is_full or before.assigned != after.assigned:
        topics = [
            Response.Assignment.TopicPartitions(topic_id=topic_id, partitions=list(those))
            for topic_id, those in after.assigned.items()
        ]
        response.assignment = Response.Assignment(topic_partitions=topics)
    return response


# --- leaving


def _leave(groups: Groups, request: Request, moment: Moment) -> Decision[Response]:
    turn = Turn(groups, find(groups, request.group_id), moment)
    instance_id, group = request.instance_id, turn.group
    response = Response(member_id=request.member_id, member_epoch=request.member_epoch)
    if instance_id is None:
        member = group.member(request.member_id)
    else:
        member = check_instance(group.static_member(instance_id), request.member_id, instance_id)
        if request.member_epoch == AWAY_EPOCH:
            return Decision(response, [current_record(group.group_id, _away(member))])
    return _fenced(turn, member, response)


def _fenced(turn: Turn, member: Member, response: Response | None) -> Decision[Response]:
    fence(turn, [member])
    decision = Decision(response, turn.records, turn.answers)
    decision.refused = lambda error: _not_fenced(turn, error)
    return decision


def _not_fenced(turn: Turn, error: KafkaError) -> Decision[Response]:
    undo(turn)
    raise error


def _away(member: Member) -> Member:
    """A static member keeps its partitions while it is away, but no epoch in which it could have got them."""
    assigned = {topic_id: dict.fromkeys(those, 0) for topic_id, those in member.assigned.items()}
    return replace(member, epoch=AWAY_EPOCH, assigned=assigned, revoking={})


def find(groups: Groups, group_id: str) -> ConsumerGroup:
    group = groups.by_id.get(group_id)
    if isinstance(group, ConsumerGroup):
        return group
    if group is None and group_id not in groups.offsets:
        raise KafkaError(Error.GROUP_ID_NOT_FOUND, f"Group {group_id} not found.")
    raise KafkaError(Error.GROUP_ID_NOT_FOUND, f"Group {group_id} is not a consumer group.")


def session_ended(groups: Groups, group_id: str, member_id: str, moment: Moment) -> Decision[Response]:
    """A member was not heard of, or as a classic one did not join or sync in time."""
    group = groups.by_id.get(group_id)
    if not isinstance(group, ConsumerGroup) or member_id not in group.members:
        return Decision()
    return _fenced(Turn(groups, group, moment), group.members[member_id], None)


def revocation_ended(groups: Groups, group_id: str, member_id: str, moment: Moment) -> Decision[Response]:
    """A member was too slow to give up what it should. One that has gone on since is left alone."""
    group = groups.by_id.get(group_id)
    member = group.members.get(member_id) if isinstance(group, ConsumerGroup) else None
    if member is None or member.state != UNREVOKED or member.is_away:
        return Decision()
    return session_ended(groups, group_id, member_id, moment)


# --- expressions


def note_regex(turn: Turn, before: Member, after: Member) -> tuple[bool, bool]:
    """Has the member another expression, and do we know already what it stands for? Evaluate it soon, if not."""
    group = turn.group
    changed = before.regex != after.regex
    is_resolved = is_unknown = False
    if changed:
        if before.regex and group.expressions[before.regex] == 1:
            turn.records.append(no_regex_record(group.group_id, before.regex))
        if not after.regex:
            is_resolved = bool(before.regex)
        elif group.expressions[after.regex] == 0:
            subscriptions.check(after.regex)
            is_unknown = True
        else:
            is_resolved = after.regex in group.regexes
    if is_unknown or group.expressions:
        _evaluate_soon(turn, before, after, is_unknown)
    return changed, is_resolved


def _evaluate_soon(turn: Turn, before: Member, after: Member, is_unknown: bool) -> None:
    group, groups, now_ms = turn.group, turn.groups, turn.moment.wall_ms
    alarm = (REGEX, group.group_id, "")
    since_ms = now_ms - group.regexes_resolved_ms
    if alarm in groups.timers or group.is_evaluating or since_ms <= REGEX_REST_MS:
        return
    expressions = group.expressions.copy()
    expressions.subtract([before.regex] if before.regex else [])
    expressions.update([after.regex] if after.regex else [])
    in_use = [regex for regex, count in expressions.items() if count > 0]
    is_due = (
        is_unknown
        or len(in_use) != len(group.regexes)
        or group.regexes_version < groups.topics_came_at
        or since_ms > groups.config["group.consumer.regex.refresh.interval.ms"]
    )
    if is_due and in_use:
        groups.timers.set(alarm, turn.moment.elapsed_ms)


class Evaluating(NamedTuple):
    """An order: go on with the evaluation, and when it is over, let `resolve` decide."""

    group: ConsumerGroup
    image: Image
    evaluation: Evaluation


def evaluate(groups: Groups, group_id: str, member_id: str, moment: Moment) -> Decision[Response]:
    """What do the group's expressions stand for now? That may be long work, which the driver does in slices."""
    group = groups.by_id.get(group_id)
    if not isinstance(group, ConsumerGroup):
        return Decision()
    group.is_evaluating, image = True, groups.image
    return Decision(orders=[Evaluating(group, image, Evaluation(group.expressions, image.topic_ids))])


def resolve(groups: Groups, order: Evaluating, moment: Moment) -> Decision[Response]:
    """If the expressions stand for something else than before, the group gets a new epoch. Those that nobody has any more
    are forgotten; those that came meanwhile have to wait for their turn."""
    group = order.group
    group.is_evaluating = False
    if groups.by_id.get(group.group_id) is not group:
        return Decision()
    turn, others = Turn(groups, group, moment), False
    found = {regex: topics for regex, topics in order.evaluation.found.items() if regex in group.expressions}
    for regex, topics in found.items():
        before = group.regexes.get(regex)
        others = others or topics != (before.topics if before else frozenset())
        turn.records.append(regex_record(group.group_id, regex, topics, order.image.offset, moment.wall_ms))
    metadata_hash = hash_of(turn, set(group.names).union(*found.values()))
    if others or metadata_hash != group.metadata_hash:
        turn.records.append(epoch_record(group.group_id, group.epoch + 1, metadata_hash))
        group.topics_known_at_epoch = group.epoch + 1
    return Decision(records=turn.records)


ALARMS = {
    SESSION: session_ended,
    JOIN: session_ended,
    SYNC: session_ended,
    REVOCATION: revocation_ended,
    REGEX: evaluate,
}
