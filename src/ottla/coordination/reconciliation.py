"""How a member of a consumer group gets from what it has to what it is to have (KIP-848).

Two rules keep a partition from being used twice:
- A member first gives up what it is to lose. Until it reports that it did (its heartbeat names the partitions that it still
  owns), it stays in its epoch, UNREVOKED, and gets nothing new.
- A partition is handed out only when nobody has it: a member that waits for one is in its new epoch already, UNRELEASED, with
  the rest of its target.
A member that has all of its target is STABLE. UNKNOWN stands for a state of a later release: such a member has to give up
everything and come back.

The target may name topics that the member does not subscribe to any more, because the target is not made anew at every
change (`group.consumer.assignment.interval.ms`). Those it must not keep: they count as not in its target.
"""

from __future__ import annotations

from collections.abc import Callable, Set
from dataclasses import replace
from typing import NamedTuple

from ottla.coordination.consumer_member import STABLE, UNKNOWN, UNRELEASED, UNREVOKED, Held, Member, Target
from ottla.wire.errors import Error, KafkaError

NOTHING: dict[int, int] = {}

# The partitions that a member says it still owns; None when it did not say.
Owned = Target | None


class Goal(NamedTuple):
    """Where a member is to arrive."""

    epoch: int
    target: Target
    subscribed: Set[bytes]  # ids of the topics that the member subscribes to
    has_owner: Callable[[bytes, int], bool]  # somebody may still use this partition


class Steps(NamedTuple):
    """What lies between a member and its goal."""

    keep: dict[bytes, dict[int, int]]
    revoke: dict[bytes, dict[int, int]]
    add: dict[bytes, dict[int, int]]
    waits: bool  # something of the target is still in use by others


def reconciled(member: Member, goal: Goal, owned: Owned, subscription_changed: bool) -> Member:
    """The member, one step further, or as it was when it can do no step."""
    if member.state == UNKNOWN:
        if owned is None or owned:
            raise KafkaError(
                Error.FENCED_MEMBER_EPOCH,
                "The consumer group member is in a unknown state. "
                "The member must abandon all its partitions and rejoin.",
            )
        return _next(member, goal, goal.epoch, owned)
    is_there = member.state == STABLE and member.epoch == goal.epoch
    must_wait = member.state == UNREVOKED and _still_owns(owned, member.revoking)
    if is_there or must_wait:
        return _unsubscribed(member, goal, owned) if subscription_changed else member
    return _next(member, goal, member.epoch, owned)


def _next(member: Member, goal: Goal, epoch: int, owned: Owned) -> Member:
    steps = _steps(member, goal)
    if steps.revoke and _still_owns(owned, steps.revoke):
        return _moved(member, UNREVOKED, epoch, steps.keep, steps.revoke)
    assigned = steps.keep
    for topic_id, added in steps.add.items():
        assigned[topic_id] = dict(sorted({**assigned.get(topic_id, NOTHING), **added}.items()))
    return _moved(member, UNRELEASED if steps.waits else STABLE, goal.epoch, assigned, {})


def _moved(member: Member, state: int, epoch: int, assigned: Held, revoking: Held) -> Member:
    return replace(member, state=state, epoch=epoch, previous_epoch=member.epoch, assigned=assigned, revoking=revoking)


def _steps(member: Member, goal: Goal) -> Steps:
    keep: dict[bytes, dict[int, int]] = {}
    revoke: dict[bytes, dict[int, int]] = {}
    add: dict[bytes, dict[int, int]] = {}
    waits = False
    for topic_id in sorted({*goal.target, *member.assigned}):
        target = goal.target.get(topic_id, frozenset()) if topic_id in goal.subscribed else frozenset()
        have = member.assigned.get(topic_id, NOTHING)
        revoking = member.revoking.get(topic_id, NOTHING)
        wanted = sorted(target - have.keys())
        # What it has just given up is free for itself, though it is written down as its own.
        free = [p for p in wanted if p in revoking or not goal.has_owner(topic_id, p)]
        waits = waits or len(free) < len(wanted)
        _put(keep, topic_id, {p: since for p, since in have.items() if p in target})
        _put(revoke, topic_id, {p: since for p, since in have.items() if p not in target})
        _put(add, topic_id, dict.fromkeys(free, goal.epoch))
    return Steps(keep, revoke, add, waits)


def _put(partitions: dict[bytes, dict[int, int]], topic_id: bytes, those: dict[int, int]) -> None:
    if those:
        partitions[topic_id] = those


def _unsubscribed(member: Member, goal: Goal, owned: Owned) -> Member:
    """Topics that it does not subscribe to any more are to be given up at once, before there is a new target."""
    lost = {topic_id: those for topic_id, those in member.assigned.items() if topic_id not in goal.subscribed}
    if not lost:
        return member
    keep = {topic_id: those for topic_id, those in member.assigned.items() if topic_id not in lost}
    revoking = {**member.revoking}
    for topic_id, those in lost.items():
        revoking[topic_id] = {**revoking.get(topic_id, NOTHING), **those}
    if _still_owns(owned, revoking):
        return _moved(member, UNREVOKED, member.epoch, keep, revoking)
    return replace(member, previous_epoch=member.epoch, assigned=keep)


def _still_owns(owned: Owned, partitions: Held) -> bool:
    """One that does not say what it owns may own everything."""
    if owned is None:
        return True
    return any(partitions.get(topic_id, NOTHING).keys() & those for topic_id, those in owned.items())
