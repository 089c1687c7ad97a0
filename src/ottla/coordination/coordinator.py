"""The state machine of one partition of `__consumer_offsets`, as its driver sees it: replay, ring, and follow the cluster.

Which function replays a kind of record and which one answers an alarm stands in two tables here; the functions themselves
live with what they are about. What clients ask is decided by functions of those rooms, called by the handlers with
`Coordinator.groups`.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from ottla.coordination.groups import Groups
from ottla.coordination.machine import Decision, Moment
from ottla.coordination.records import Record
from ottla.metadata.image import Delta, Image

# A record's key layout -> what it does to the groups. The offset is the record's own in the topic.
REPLAY: dict[int, Callable[[Groups, Record, int], None]] = {}
# Kind of alarm -> what to do about it, for a group and a member.
ALARMS: dict[str, Callable[[Groups, str, str, Moment], Decision[Any]]] = {}


# Decisions are taken one after another: each sees what the one before it changed.
Later = Callable[[], Decision[Any]]


class Coordinator:
    def __init__(self, groups: Groups) -> None:
        self.groups = groups

    def replay(self, record: Record, offset: int) -> None:
        """Memory follows a record that was appended, or read back."""
        REPLAY[type(record.key).key](self.groups, record, offset)

    def loaded(self, moment: Moment) -> list[Later]:
        """Everything was read back: members get a full session from here on, and chores begin."""
        return []

    def ring(self, moment: Moment) -> list[Later]:
        """The alarms that are due, each to be decided when the one before it was carried out."""
        groups = self.groups
        return [
            lambda kind=kind, group=group, member=member: ALARMS[kind](groups, group, member, moment)  # type: ignore[misc]
            for kind, group, member in groups.timers.take_due(moment.elapsed_ms)
        ]

    def follow(self, old: Image, new: Image, delta: Delta, moment: Moment) -> list[Later]:
        """The cluster changed: topics that were deleted, grew or came into being."""
        return []
