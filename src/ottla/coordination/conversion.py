"""Groups that change their kind while their members go on: classic to consumer, and back (KIP-848).

*Up*: when a member that speaks the new protocol joins a classic group of consumers. Its members stay, each with the part it
had, and go on in the classic protocol inside the consumer group (`bridge.py`) until their clients are restarted with the new
one. *Down*: when the last member that speaks the new protocol goes and classic ones are left. They become a classic group
with what they have as their parts, and are asked to join anew. An empty group has nobody to care: whoever comes first decides.

`group.consumer.migration.policy` says which ways are open. Only groups of consumers can change: what their members said to
one another can be read here, except the data of assignors that users wrote, and that would get lost.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from ottla.coordination.advancing import (
    REVOCATION,
    SESSION,
    SESSION_TIMEOUT,
    Turn,
    group_setting,
    hash_of,
    remove_members,
    silence,
)
from ottla.coordination.classic_group import SESSION as CLASSIC_SESSION
from ottla.coordination.classic_group import STABLE, ClassicGroup, ClassicMember
from ottla.coordination.classic_rebalance import JOIN_PHASE, SYNC_PHASE, Step, prepare
from ottla.coordination.consumer_group import ConsumerGroup
from ottla.coordination.consumer_member import (
    UNREVOKED,
    ClassicSide,
    Member,
    Target,
    current_record,
    end_records,
    epoch_record,
    held,
    member_record,
    target_epoch_record,
    target_record,
)
from ottla.coordination.groups import CONSUMER_PROTOCOL, EMPTY, Groups
from ottla.coordination.machine import Alarm, Moment
from ottla.coordination.simple import SimpleGroup
from ottla.metadata.image import Image
from ottla.wire.codec import Malformed
from ottla.wire.errors import Error, KafkaError
from ottla.wire.messages.subscriptions import (
    VERSION,
    VERSION_BYTES,
    ConsumerProtocolAssignment,
    ConsumerProtocolSubscription,
    packed,
    unpacked,
)

POLICY = "group.consumer.migration.policy"
UP, DOWN, BOTH, NEITHER = "upgrade", "downgrade", "bidirectional", "disabled"

# Partitions by the name of their topic, as consumers tell one another.
Named = list[tuple[str, list[int]]]


def policy(groups: Groups) -> str:
    said: str = groups.config[POLICY]
    return said.lower()


# --- up


def upgrade(groups: Groups, group_id: str, moment: Moment) -> Turn:
    """A consumer group for one that joins: in the place of what was there before, if anything was."""
    turn = Turn(groups, ConsumerGroup(group_id), moment)
    group = groups.by_id.get(group_id)
    if group is None and group_id in groups.offsets:
        turn.records += SimpleGroup(group_id).tombstones()
    elif isinstance(group, ClassicGroup):
        turn.records += group.tombstones()
        if group.state != EMPTY:
            _check_upgrade(groups, group)
            _move_in(turn, group)
        turn.former = group
    elif group is not None:
        raise KafkaError(Error.GROUP_ID_NOT_FOUND, f"Group {group_id} is not a consumer group.")
    return turn


def _check_upgrade(groups: Groups, group: ClassicGroup) -> None:
    if policy(groups) not in (UP, BOTH):
        raise _no_upgrade(group, "online upgrade is disabled.")
    if group.protocol_type != CONSUMER_PROTOCOL:
        raise _no_upgrade(group, "the group does not use the consumer embedded protocol.")
    if len(group.members) > groups.config["group.consumer.max.size"]:
        raise _no_upgrade(group, "the group size exceeds the consumer group maximum size.")


def _no_upgrade(group: ClassicGroup, why: str) -> KafkaError:
    said = f"Cannot upgrade classic group {group.group_id} to consumer group because {why}"
    return KafkaError(Error.GROUP_ID_NOT_FOUND, said)


def _move_in(turn: Turn, classic: ClassicGroup) -> None:
    """The group that this decision goes on with has the members of the classic one, and the records say so."""
    group, group_id = turn.group, classic.group_id
    group.epoch = group.assignment_epoch = classic.generation
    said = {member.member_id: _subscription(classic, member) for member in classic.members.values()}
    group.targets = _parts(turn.groups.image, classic, said)
    for member in classic.members.values():
        group.put(_newcomer(classic, member, said[member.member_id], group.targets[member.member_id]))
    group.metadata_hash = hash_of(turn, group.topics())
    members = group.members.values()
    turn.records += [member_record(group_id, member) for member in members]
    turn.records.append(epoch_record(group_id, group.epoch, group.metadata_hash))
    turn.records += [target_record(group_id, member.id, group.targets[member.id]) for member in members]
    turn.records.append(target_epoch_record(group_id, group.assignment_epoch, 0))
    turn.records += [current_record(group_id, member) for member in members]


def _parts(image: Image, group: ClassicGroup, said: Mapping[str, ConsumerProtocolSubscription]) -> dict[str, Target]:
    """What each member may be using, as far as it exists: what the leader gave to it, and what it owned when it last
    joined. Cooperative ones (KIP-429) go on with that until they get their next part, and that may never come: what is to
    change hands is given to nobody at first, or the rebalance begins anew. Each partition counts as one member's: the one's
    to whom it was given before the one's who says so, and then the one's who had its part later (KIP-792)."""
    claims = [(member.member_id, _given(group, member)) for member in group.members.values()]
    latest = sorted(said, key=lambda member_id: said[member_id].generation_id, reverse=True)
    claims += [(member_id, _named(said[member_id].owned_partitions)) for member_id in latest]
    taken: set[tuple[bytes, int]] = set()
    parts: dict[str, dict[bytes, frozenset[int]]] = {member_id: {} for member_id in group.members}
    for member_id, claimed in claims:
        for name, partitions in claimed:
            if (topic := image.topic(name)) is not None:
                free = frozenset(p for p in partitions if p in topic.partitions and (topic.id, p) not in taken)
                taken.update((topic.id, p) for p in free)
                if free:
                    parts[member_id][topic.id] = parts[member_id].get(topic.id, frozenset()) | free
    return dict(parts)


def _given(group: ClassicGroup, member: ClassicMember) -> Named:
    if not member.assignment:
        return []  # the leader has not spoken yet, or had nothing for it
    try:
        assignment = unpacked(ConsumerProtocolAssignment, bytes(member.assignment))
    except Malformed:
        raise _no_upgrade(group, "the embedded consumer protocol is malformed.")
    if assignment.user_data:
        why = "an unsupported custom assignor is in use. Please refer to the documentation or switch to a default assignor"
        raise _no_upgrade(group, f"{why} before re-attempting the upgrade.")
    return _named(assignment.assigned_partitions)


def _named(
    topics: Iterable[ConsumerProtocolAssignment.TopicPartition | ConsumerProtocolSubscription.TopicPartition],
) -> Named:
    return [(topic.topic, topic.partitions) for topic in topics]


def _subscription(group: ClassicGroup, member: ClassicMember) -> ConsumerProtocolSubscription:
    """One that has just come need not speak what the others agreed on before."""
    spoken = dict(member.protocols)
    try:
        return unpacked(ConsumerProtocolSubscription, spoken.get(group.protocol or "", member.protocols[0][1]))
    except Malformed:
        raise _no_upgrade(group, "the embedded consumer protocol is malformed.")


def _newcomer(
    group: ClassicGroup, member: ClassicMember, subscription: ConsumerProtocolSubscription, target: Target
) -> Member:
    return Member(
        member.member_id,
        epoch=group.generation,
        previous_epoch=group.generation,
        instance_id=member.instance_id,
        rack_id=subscription.rack_id or None,
        rebalance_timeout_ms=member.rebalance_timeout_ms,
        client_id=member.client_id,
        client_host=member.client_host,
        names=frozenset(subscription.topics),
        assigned=held(target, group.generation),
        classic=ClassicSide(member.session_timeout_ms, member.protocols),
    )


def close_classic(turn: Turn) -> None:
    """The classic group is over: whoever waits in it is to join again, and its members' sessions count here."""
    former, timers, now_ms = turn.former, turn.groups.timers, turn.moment.elapsed_ms
    if former is None:
        return
    step = Step(turn.groups, former, turn.moment)
    for member in former.members.values():
        step.refuse_join(member, Error.REBALANCE_IN_PROGRESS, member.member_id)
        step.refuse_sync(member, Error.REBALANCE_IN_PROGRESS)
        timers.set((SESSION, former.group_id, member.member_id), now_ms + member.session_timeout_ms)
    for alarm in _classic_alarms(former):
        if (due_ms := timers.due_at(alarm)) is not None:
            turn.silenced[alarm] = due_ms
            timers.cancel(alarm)
    turn.answers += step.answers


def _classic_alarms(group: ClassicGroup) -> list[Alarm]:
    sessions = [(CLASSIC_SESSION, group.group_id, member_id) for member_id in (*group.members, *group.pending)]
    return [*sessions, (JOIN_PHASE, group.group_id, ""), (SYNC_PHASE, group.group_id, "")]


def reopen_classic(turn: Turn) -> None:
    """It could not be written that the group is a consumer group now. It goes on as a classic one; those who waited in it are
    told to join again all the same."""
    former, timers = turn.former, turn.groups.timers
    if former is None:
        return
    for alarm, due_ms in turn.silenced.items():
        timers.set(alarm, due_ms)
    step = Step(turn.groups, former, turn.moment)
    for member in former.members.values():
        timers.cancel((SESSION, former.group_id, member.member_id))
        if (CLASSIC_SESSION, former.group_id, member.member_id) not in timers:
            step.expect_heartbeat(member)  # it was excused while it waited


# --- down


def fence(turn: Turn, members: list[Member]) -> None:
    """These members are out of the group. If all who are left speak the classic protocol, it becomes a classic one."""
    left = len(turn.group.members) - len(members)
    classic_left = turn.group.classic_members - sum(member.classic is not None for member in members)
    if left > 0 and classic_left == left and may_downgrade(turn.groups, left):
        downgrade(turn, [m for m in turn.group.members.values() if m not in members], None, must_rebalance=True)
    else:
        remove_members(turn, members)


def may_downgrade(groups: Groups, members: int) -> bool:
    return policy(groups) in (DOWN, BOTH) and members <= groups.config["group.max.size"]


def downgrade(turn: Turn, members: list[Member], former: Member | None, *, must_rebalance: bool) -> None:
    """Tombstones for all of the consumer group, and the classic one in its place. `former`: the last of the members has
    come back, under a new id, for this one. What else this decision has to say about the consumer group needs no record."""
    group, groups, moment = turn.group, turn.groups, turn.moment
    turn.records = end_records(group.group_id, group.members, group.regexes)
    classic = ClassicGroup(group.group_id, CONSUMER_PROTOCOL, STABLE, moment.wall_ms, group.epoch)
    for member in members:
        assert member.classic is not None
        side = member.classic
        who = (member.id, member.instance_id, member.client_id, member.client_host)
        timeouts = (member.rebalance_timeout_ms, side.session_timeout_ms)
        classic.add(ClassicMember(*who, *timeouts, side.protocols), CONSUMER_PROTOCOL)
    classic.protocol = classic.elected_protocol()
    for classic_member in classic.members.values():
        is_back = former is not None and classic_member.member_id == members[-1].id
        target = group.target_of(former.id if former is not None and is_back else classic_member.member_id)
        if must_rebalance:
            target = _used(group.members[classic_member.member_id] if not is_back else members[-1])
        version = _version(classic_member.subscription(classic.protocol))
        classic_member.assignment = assignment_bytes(groups.image, target, version)
    turn.records.append(classic.record(moment.wall_ms))
    _open_classic(turn, classic, must_rebalance)


def _used(member: Member) -> Target:
    """What it may be using. A member that is asked to join, and has not heard so yet, goes on with what it has: should the
    group become a consumer group again before it does, nobody may get that. (Apache Kafka writes down the target.)"""
    topic_ids = (*member.assigned, *(topic_id for topic_id in member.revoking if topic_id not in member.assigned))
    held_by = (member.assigned, member.revoking)
    return {each: frozenset(p for part in held_by for p in part.get(each, ())) for each in topic_ids}


def _open_classic(turn: Turn, classic: ClassicGroup, must_rebalance: bool) -> None:
    """The group is a classic one from here on; its records only say so."""
    groups, group = turn.groups, turn.group
    for member_id in group.members:
        silence(groups, group.group_id, member_id)
    groups.by_id[group.group_id] = classic
    step = Step(groups, classic, turn.moment)
    for member in classic.members.values():
        step.expect_heartbeat(member)
    if must_rebalance:
        prepare(step)
    turn.answers += step.answers
    turn.successor = classic


def undo(turn: Turn) -> None:
    """It could not be written: the consumer group is still there, and all who are in it. Alarms that were silenced are set
    anew: a member whose last word could not be written would otherwise stay for ever."""
    groups, group, now_ms = turn.groups, turn.group, turn.moment.elapsed_ms
    if turn.successor is not None:
        for member_id in turn.successor.members:
            groups.timers.cancel((CLASSIC_SESSION, group.group_id, member_id))
        Step(groups, turn.successor, turn.moment).cancel_phase(JOIN_PHASE)
        groups.by_id[group.group_id] = group
    usual_ms = group_setting(groups, group.group_id, SESSION_TIMEOUT)
    for member in group.members.values():
        session, revocation = ((kind, group.group_id, member.id) for kind in (SESSION, REVOCATION))
        if session not in groups.timers:
            groups.timers.set(session, now_ms + (member.classic.session_timeout_ms if member.classic else usual_ms))
        if member.state == UNREVOKED and member.classic is None and revocation not in groups.timers:
            groups.timers.set(revocation, now_ms + member.rebalance_timeout_ms)


# --- what consumers say to one another


def _version(subscription: bytes) -> int:
    """Of what a member said: it is answered in the same one."""
    return min(max(int.from_bytes(subscription[:VERSION_BYTES], "big", signed=True), 0), VERSION)


def assignment_for(image: Image, member: Member) -> bytes:
    """What a classic member of a consumer group has, in the words that it understands."""
    assert member.classic is not None
    target = {topic_id: frozenset(those) for topic_id, those in member.assigned.items()}
    return assignment_bytes(image, target, _version(member.classic.protocols[0][1]))


def assignment_bytes(image: Image, target: Target, version: int) -> bytes:
    topics = [
        ConsumerProtocolAssignment.TopicPartition(topic=topic.name, partitions=sorted(partitions))
        for topic_id, partitions in target.items()
        if (topic := image.topic_by_id(topic_id)) is not None
    ]
    return packed(ConsumerProtocolAssignment(assigned_partitions=topics), version)
