"""How a classic group comes to its next generation: the phases of a rebalance, and the alarms that push it on.

A `Step` is one decision about a group in the making: it gathers what is written and who is answered. The functions here
take a step and go as far as the group can go at this moment:

- `prepare`: everybody is to join. Whoever waits for its part is told to join again. The very first rebalance of a group is
  held back by `group.initial.rebalance.delay.ms`, again and again as long as others come, so that a fleet that starts does
  not rebalance once per member; the rebalance timeout ends it.
- `complete_join`: the next generation begins with those who have joined. Those who have not are out, unless they are static:
  these have until their session ends to come back.
- The generation's parts are to be asked for within the rebalance timeout; who does not ask is out.

Three alarms: a member's session (also a pending one's, and a newcomer's patience), the end of the join phase, the end of
the time to ask for one's part. A member whose join or sync waits here does not need to send heartbeats: its session may ring
without effect, and begins anew when it gets its answer.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any, TypeVar

from ottla.coordination.classic_group import (
    COMPLETING,
    PREPARING,
    SESSION,
    STABLE,
    ClassicGroup,
    ClassicMember,
    Delay,
    Waiting,
)
from ottla.coordination.groups import EMPTY, Groups
from ottla.coordination.machine import Decision, Moment, Waiter
from ottla.coordination.records import Record
from ottla.wire.errors import Error
from ottla.wire.messages.groups import JoinGroupResponse, SyncGroupResponse

JOIN_PHASE = "classic join phase"  # alarm: those who have not joined by now are out
SYNC_PHASE = "classic sync phase"  # alarm: those who have not asked for their part by now are out

INITIAL_DELAY = "group.initial.rebalance.delay.ms"
# From this version on, no name is null and not empty.
NULLABLE_PROTOCOL = 7

Reply = TypeVar("Reply")


class Step:
    """One decision about a group: what it writes, and whom it answers."""

    __slots__ = ("answers", "group", "groups", "moment", "records")

    def __init__(self, groups: Groups, group: ClassicGroup, moment: Moment) -> None:
        self.groups = groups
        self.group = group
        self.moment = moment
        self.records: list[Record] = []
        self.answers: list[tuple[Waiter, object]] = []

    def decision(self, reply: Reply | None = None) -> Decision[Reply]:
        return Decision(reply, self.records, self.answers)

    # --- alarms

    def expect(self, member_id: str, within_ms: int) -> None:
        self.groups.timers.set((SESSION, self.group.group_id, member_id), self.moment.elapsed_ms + within_ms)

    def expect_heartbeat(self, member: ClassicMember) -> None:
        self.expect(member.member_id, member.session_timeout_ms)

    def set_phase(self, phase: str, within_ms: int) -> None:
        self.groups.timers.set((phase, self.group.group_id, ""), self.moment.elapsed_ms + within_ms)

    def cancel_phase(self, phase: str) -> None:
        self.groups.timers.cancel((phase, self.group.group_id, ""))

    # --- answers

    def answer_join(self, member: ClassicMember, response: JoinGroupResponse) -> None:
        """Nothing happens if it does not wait."""
        waiting = self.group.take_join(member)
        if waiting is not None:
            self.answers.append((waiting.waiter, response))

    def refuse_join(self, member: ClassicMember, error: Error, member_id: str = "") -> None:
        if member.join is not None:
            self.answer_join(member, refused_join(error, member_id, member.join.version))

    def answer_sync(self, member: ClassicMember, response: SyncGroupResponse) -> None:
        """Its session begins anew: it may have rung while the member was waiting."""
        waiting, member.sync = member.sync, None
        if waiting is not None:
            self.answers.append((waiting.waiter, response))
            self.expect_heartbeat(member)

    def refuse_sync(self, member: ClassicMember, error: Error) -> None:
        self.answer_sync(member, SyncGroupResponse(error_code=error.code))

    def park_join(self, member: ClassicMember, waiting: Waiting) -> None:
        """It waits from now on. An earlier join that still waits has lost its reader, and gets the least harmful answer."""
        self.refuse_join(member, Error.REBALANCE_IN_PROGRESS, member.member_id)
        self.group.park_join(member, waiting)

    def park_sync(self, member: ClassicMember, waiting: Waiting) -> None:
        self.refuse_sync(member, Error.REBALANCE_IN_PROGRESS)
        member.sync = waiting

    # --- members

    def remove(self, member_id: str) -> None:
        """A member, or a pending one, is out. If it waits, it is told so, and may come as somebody new."""
        group = self.group
        member = group.members.get(member_id)
        if member is not None:
            self.refuse_join(member, Error.UNKNOWN_MEMBER_ID)
            self.refuse_sync(member, Error.UNKNOWN_MEMBER_ID)
        group.remove(member_id)
        self.groups.timers.cancel((SESSION, group.group_id, member_id))


def refused_join(error: Error, member_id: str, version: int) -> JoinGroupResponse:
    return JoinGroupResponse(error_code=error.code, protocol_name=nameless(version), member_id=member_id)


def nameless(version: int) -> str | None:
    """How the answer to a join says that there is no protocol."""
    return None if version >= NULLABLE_PROTOCOL else ""


def current_generation(group: ClassicGroup, member_id: str) -> JoinGroupResponse:
    """What a member is told about the generation it is in; the leader learns who else is."""
    return JoinGroupResponse(
        generation_id=group.generation,
        protocol_type=group.protocol_type,
        protocol_name=group.protocol,
        leader=group.leader or "",
        member_id=member_id,
        members=group.roll_call() if group.leader == member_id else [],
    )


def rebalance(step: Step) -> None:
    """Something changed that concerns all: begin a rebalance, or go on with the one that is under way."""
    if step.group.state == PREPARING:
        complete_join_if_possible(step)
    else:
        prepare(step)


def prepare(step: Step) -> None:
    """Everybody is to join."""
    group = step.group
    if group.state == COMPLETING:
        call_back(step, Error.REBALANCE_IN_PROGRESS)
    group.awaited.clear()
    step.cancel_phase(SYNC_PHASE)
    is_first = group.state == EMPTY
    group.move(PREPARING, step.moment.wall_ms)
    if is_first:
        begin_delay(step)
    elif group.has_all_joined:
        complete_join(step)
    else:
        step.set_phase(JOIN_PHASE, group.rebalance_timeout_ms)


def call_back(step: Step, error: Error) -> None:
    """Nobody gets a part in this generation."""
    for member in step.group.members.values():
        member.assignment = b""
        step.refuse_sync(member, error)


def begin_delay(step: Step) -> None:
    group, delay_ms = step.group, step.groups.config[INITIAL_DELAY]
    group.delay = Delay(delay_ms, max(group.rebalance_timeout_ms - delay_ms, 0))
    group.grew = False
    step.set_phase(JOIN_PHASE, delay_ms)


def complete_join_if_possible(step: Step) -> None:
    """All are there, and the group is not held back because it is new."""
    group = step.group
    if group.state == PREPARING and group.delay is None and group.has_all_joined:
        complete_join(step)


def complete_join(step: Step) -> None:
    """The next generation begins."""
    group = step.group
    step.cancel_phase(JOIN_PHASE)
    absent = [m for m in group.members.values() if m.join is None and m.instance_id is None]
    for member in absent:
        step.remove(member.member_id)
    if not group.elect_joined_leader() and group.members:
        group.delay = None
        step.set_phase(JOIN_PHASE, group.rebalance_timeout_ms)  # only absent static members are left: give them time
        return
    group.begin_generation(step.moment.wall_ms)
    if group.state == EMPTY:
        step.records.append(group.record(step.moment.wall_ms))
    else:
        announce(step)


def announce(step: Step) -> None:
    """Tell those who have joined; all are to ask for their part."""
    group = step.group
    for member in group.members.values():
        if member.join is not None:
            step.answer_join(member, current_generation(group, member.member_id))
        step.expect_heartbeat(member)
        member.is_new = False
    step.set_phase(SYNC_PHASE, group.rebalance_timeout_ms)


def heard_sync(step: Step, member_id: str) -> None:
    group = step.group
    group.awaited.pop(member_id, None)
    if not group.awaited:
        step.cancel_phase(SYNC_PHASE)


# --- alarms


def _found(groups: Groups, group_id: str, moment: Moment) -> Step | None:
    group = groups.by_id.get(group_id)
    return Step(groups, group, moment) if isinstance(group, ClassicGroup) else None


def carried_on(step: Step) -> Decision[Any]:
    """What nobody asked for. Should an empty group not be written, those who are owed an answer get it all the same."""
    decision: Decision[Any] = step.decision()
    decision.refused = lambda error: Decision(None, [], step.answers)
    return decision


def session_ended(groups: Groups, group_id: str, member_id: str, moment: Moment) -> Decision[Any]:
    step = _found(groups, group_id, moment)
    if step is None:
        return Decision()
    group = step.group
    member = group.members.get(member_id)
    if (member is None and member_id not in group.pending) or (member is not None and member.is_excused):
        return Decision()
    step.remove(member_id)
    if group.state == PREPARING:
        if group.has_all_joined:
            complete_join(step)
    elif member is not None:
        prepare(step)
    return carried_on(step)


def join_phase_ended(groups: Groups, group_id: str, _: str, moment: Moment) -> Decision[Any]:
    step = _found(groups, group_id, moment)
    if step is None or step.group.state != PREPARING:
        return Decision()
    if not extended_delay(step):
        complete_join(step)
    return carried_on(step)


def extended_delay(step: Step) -> bool:
    """Others came while the first rebalance was held back: hold it back some more, if there is time left."""
    group, delay = step.group, step.group.delay
    if delay is None or not group.grew or delay.remaining_ms == 0:
        return False
    group.grew = False
    next_ms = min(step.groups.config[INITIAL_DELAY], delay.remaining_ms)
    group.delay = Delay(next_ms, max(delay.remaining_ms - delay.ms, 0))
    step.set_phase(JOIN_PHASE, next_ms)
    return True


def sync_phase_ended(groups: Groups, group_id: str, _: str, moment: Moment) -> Decision[Any]:
    step = _found(groups, group_id, moment)
    if step is None or step.group.state not in (COMPLETING, STABLE) or not step.group.awaited:
        return Decision()
    for member_id in list(step.group.awaited):
        step.remove(member_id)
    prepare(step)
    return carried_on(step)


def after_load(groups: Groups, moment: Moment) -> list[Callable[[], Decision[Any]]]:
    """Every member has a full session from here on. A group that has become too large rebalances, and so shrinks."""
    loaded = [Step(groups, group, moment) for group in groups.by_id.values() if isinstance(group, ClassicGroup)]
    for step in loaded:
        for member in step.group.members.values():
            step.expect_heartbeat(member)
    most = groups.config["group.max.size"]
    return [partial(_shrink, step) for step in loaded if len(step.group.members) > most]


def _shrink(step: Step) -> Decision[Any]:
    prepare(step)
    return carried_on(step)


ALARMS = {SESSION: session_ended, JOIN_PHASE: join_phase_ended, SYNC_PHASE: sync_phase_ended}
