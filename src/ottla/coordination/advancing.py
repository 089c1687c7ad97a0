"""What every heartbeat of a member of a consumer group sets in motion, in three steps (KIP-848).

1. Did the member change its subscription, or a topic change? Then the group gets a new epoch.
2. Is the target older than the group? Then an assignor makes a new one; not more often than every
   `group.consumer.assignment.interval.ms`, so that many who come at once cost one target.
3. Is the member not yet where its target wants it? Then it does the next step there (`reconciliation.py`).

Each step writes records of what it changed, and only of that. Nobody is pushed: a member hears of the new target at its own
next heartbeat. The same three steps are gone for members that speak the classic protocol, when they join (`bridge.py`).
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Any

from ottla.coordination import assignors
from ottla.coordination.classic_group import ClassicGroup
from ottla.coordination.consumer_group import ConsumerGroup
from ottla.coordination.consumer_member import (
    UNREVOKED,
    Member,
    Target,
    current_record,
    epoch_record,
    gone_records,
    member_record,
    no_partition_metadata_record,
    no_regex_record,
    target_epoch_record,
    target_record,
)
from ottla.coordination.fingerprints import group_hash
from ottla.coordination.groups import Groups
from ottla.coordination.machine import Alarm, Moment, Waiter
from ottla.coordination.reconciliation import Goal, Owned, reconciled
from ottla.coordination.records import Record
from ottla.metadata.image import GROUP, Image

# Alarms of a member.
SESSION = "consumer session"  # nothing was heard of it
REVOCATION = "consumer revocation"  # it does not give up what it should
JOIN, SYNC = "bridge join", "bridge sync"  # it speaks the classic protocol, and did not join, or sync, in time
REGEX = "consumer regex"  # of a group: its expressions are to be evaluated

SESSION_TIMEOUT = "consumer.session.timeout.ms"
HEARTBEAT_INTERVAL = "consumer.heartbeat.interval.ms"
ASSIGNMENT_INTERVAL = "consumer.assignment.interval.ms"


@dataclass(slots=True)
class Turn:
    """One decision about a group: what it sees, the records it has so far, and who is to be answered."""

    groups: Groups
    group: ConsumerGroup
    moment: Moment
    records: list[Record] = field(default_factory=list)
    answers: list[tuple[Waiter, object]] = field(default_factory=list)
    former: ClassicGroup | None = None  # the group was this one before
    successor: ClassicGroup | None = None  # the group is this one from now on
    silenced: dict[Alarm, int] = field(default_factory=dict)  # alarms of the former group, and when they were due


def group_setting(groups: Groups, group_id: str, name: str) -> int:
    """What was set for this very group, or else for the broker."""
    text = groups.image.configs(GROUP, group_id).get(name)
    value: Any = groups.config[f"group.{name}"] if text is None else text
    return int(value)


# --- step 1: subscriptions


def note_member(turn: Turn, before: Member, after: Member) -> bool:
    """Write down who the member is, if that is new. True if it subscribes to other names than before."""
    if after == before:
        return False
    turn.records.append(member_record(turn.group.group_id, after))
    return after.names != before.names


def topics_have_expired(group: ConsumerGroup) -> bool:
    """Topics of the group have to be looked at: some changed, or the group was just loaded."""
    known = group.topics_known_at_epoch
    return known is None or group.epoch < known


def raise_epoch(turn: Turn, before: Member, after: Member, must_rise: bool) -> int:
    """The epoch of the group, a new one if it must rise or its topics are not what they were."""
    group = turn.group
    metadata_hash = hash_of(turn, group.topics_after([before], after))
    epoch = group.epoch
    if must_rise or metadata_hash != group.metadata_hash:
        epoch += 1
        turn.records.append(epoch_record(group.group_id, epoch, metadata_hash))
    group.topics_known_at_epoch = epoch
    if group.has_partition_metadata:
        turn.records.append(no_partition_metadata_record(group.group_id))
    return epoch


def hash_of(turn: Turn, topics: Iterable[str]) -> int:
    return group_hash(turn.groups.image, topics, turn.groups.topic_hashes)


# --- step 2: the target


def make_target(turn: Turn, epoch: int, before: Member, after: Member) -> tuple[int, Target]:
    """The assignment epoch, and what this member is to have in it."""
    group = turn.group
    if group.assignment_epoch >= epoch or not _may_assign(turn):
        return group.assignment_epoch, group.target_of(after.id, after.instance_id)
    candidates = _candidates(turn, after)
    topics = set[bytes]().union(*(candidate.topics for candidate in candidates.values()))
    counts = {topic_id: len(turn.groups.image.topics[topic_id].partitions) for topic_id in topics}
    targets = assignors.ASSIGNORS[_assignor(turn, before, after)](candidates, counts)
    turn.records += [
        target_record(group.group_id, member_id, target)
        for member_id, target in targets.items()
        if group.targets.get(member_id) != target
    ]
    turn.records.append(target_epoch_record(group.group_id, epoch, turn.moment.wall_ms))
    return epoch, targets[after.id]


def _may_assign(turn: Turn) -> bool:
    last_ms = turn.group.assigned_at_ms
    interval_ms = group_setting(turn.groups, turn.group.group_id, ASSIGNMENT_INTERVAL)
    return not last_ms or not interval_ms or turn.moment.wall_ms >= last_ms + interval_ms


def _assignor(turn: Turn, before: Member, after: Member) -> str:
    served = assignors.named(turn.groups.config["group.consumer.assignors"])
    wanted = turn.group.preferred_assignor(before, after)
    return wanted if wanted in served else served[0]


def _candidates(turn: Turn, after: Member) -> dict[str, assignors.Candidate]:
    """All members, this one as it will be; its former self, if it is a static one that came back, is not among them."""
    group, image = turn.group, turn.groups.image
    members = {**group.members, after.id: after}
    former_id = group.instances.get(after.instance_id) if after.instance_id is not None else None
    if former_id is not None and former_id != after.id:
        members.pop(former_id, None)
    ids: dict[frozenset[str], frozenset[bytes]] = {}
    candidates = {}
    for member_id, member in members.items():
        names = group.topics_of(member)
        if names not in ids:
            ids[names] = topic_ids(image, names)
        target = group.target_of(member_id, member.instance_id if member is after else None)
        candidates[member_id] = assignors.Candidate(member.instance_id, ids[names], target)
    return candidates


def topic_ids(image: Image, names: Iterable[str]) -> frozenset[bytes]:
    """Ids of those that exist."""
    return frozenset(found for name in names if (found := image.topic_ids.get(name)) is not None)


# --- step 3: the member


def reconcile(turn: Turn, member: Member, epoch: int, target: Target, owned: Owned, is_other: bool) -> Member:
    """The member one step nearer to its target. `is_other`: it does not subscribe to what it did before."""
    group, timers = turn.group, turn.groups.timers
    if not is_other and member.is_reconciled_to(epoch):
        return member
    goal = Goal(epoch, target, topic_ids(turn.groups.image, group.topics_of(member)), group.has_holder)
    after = reconciled(member, goal, owned, is_other)
    if after != member:
        turn.records.append(current_record(group.group_id, after))
        alarm = (REVOCATION, group.group_id, member.id)
        if after.classic is None and after.state == UNREVOKED:
            timers.set(alarm, turn.moment.elapsed_ms + after.rebalance_timeout_ms)
        elif after.classic is None:
            timers.cancel(alarm)
    return after


# --- members that go


def remove_members(turn: Turn, members: list[Member]) -> None:
    """These are no more: the group gets a new epoch, and their alarms are silent."""
    group = turn.group
    for member in members:
        turn.records += gone_records(group.group_id, member.id)
    turn.records += [no_regex_record(group.group_id, regex) for regex in _orphans(group, members)]
    metadata_hash = hash_of(turn, group.topics_after(members))
    turn.records.append(epoch_record(group.group_id, group.epoch + 1, metadata_hash))
    for member in members:
        silence(turn.groups, group.group_id, member.id)


def _orphans(group: ConsumerGroup, members: list[Member]) -> list[str]:
    """Expressions that only these members have."""
    counts: dict[str, int] = {}
    for member in members:
        if member.regex:
            counts[member.regex] = counts.get(member.regex, 0) + 1
    return [regex for regex, count in counts.items() if group.expressions[regex] == count]


def silence(groups: Groups, group_id: str, member_id: str) -> None:
    for kind in (SESSION, REVOCATION, JOIN, SYNC):
        groups.timers.cancel((kind, group_id, member_id))


def replace_member(turn: Turn, former: Member, member: Member) -> None:
    """A static member came back under another id, and takes over what its former self had."""
    group_id = turn.group.group_id
    turn.records += gone_records(group_id, former.id)
    turn.records.append(member_record(group_id, member))
    turn.records.append(target_record(group_id, member.id, turn.group.target_of(former.id)))
    turn.records.append(current_record(group_id, member))
