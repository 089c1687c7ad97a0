"""The state machine of one partition of `__consumer_offsets`, as its driver sees it: replay, ring, and follow the cluster.

Which function replays a kind of record and which one answers an alarm stands in two tables here; the functions themselves
live with what they are about. What clients ask is decided by functions of those rooms, called by the handlers with
`Coordinator.groups`.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from ottla.coordination import classic_group, classic_rebalance, commits, consumer, consumer_replay
from ottla.coordination.groups import Groups
from ottla.coordination.machine import Decision, Moment
from ottla.coordination.offsets import NO_PRODUCER
from ottla.coordination.records import (
    ConsumerGroupMetadataKey,
    GroupMetadataKey,
    OffsetCommitKey,
    Record,
    pack,
    unpack,
)
from ottla.metadata.image import Delta, Image

# A record's key layout -> what it does to the groups. The offset is the record's own in the topic.
REPLAY: dict[int, Callable[[Groups, Record, int], None]] = {
    GroupMetadataKey.key: classic_group.replay,
    **consumer_replay.REPLAY,
}
# Kind of alarm -> what to do about it, for a group and a member.
ALARMS: dict[str, Callable[[Groups, str, str, Moment], Decision[Any]]] = {
    commits.EXPIRY: commits.expire,
    commits.DELETION: commits.go_on_deleting,
    **classic_rebalance.ALARMS,
    **consumer.ALARMS,
}


# Key and value of a record, as they stand in the topic.
Packed = tuple[bytes, bytes | None]
# Decisions are taken one after another: each sees what the one before it changed.
Later = Callable[[], Decision[Any]]


class Coordinator:
    def __init__(self, groups: Groups) -> None:
        self.groups = groups

    def replay(self, record: Record, offset: int, producer_id: int = NO_PRODUCER, packed: Packed | None = None) -> None:
        """Memory follows a record that was appended, by a producer if it was in a transaction."""
        subject = record.key
        if isinstance(subject, OffsetCommitKey):
            key, value = pack(record) if packed is None else packed
            self.groups.offsets.replay(key, value, offset, producer_id)
            return
        REPLAY[type(subject).key](self.groups, record, offset)
        if record.value is None and isinstance(subject, (GroupMetadataKey, ConsumerGroupMetadataKey)):
            self.groups.offsets.forget(subject.group if isinstance(subject, GroupMetadataKey) else subject.group_id)

    def read(self, key: bytes | None, value: bytes | None, offset: int, producer_id: int = NO_PRODUCER) -> None:
        """Memory follows a record as it stands in the topic: nearly all are offsets, which need not be taken apart."""
        if key is not None and self.groups.offsets.replay(key, value, offset, producer_id):
            return
        record = unpack(key, value)
        if record is not None:
            self.replay(record, offset, producer_id)

    def end_transaction(self, producer_id: int, committed: bool) -> None:
        """A marker in the topic: the offsets of a transaction hold, or never were."""
        self.groups.offsets.end_transaction(producer_id, committed)

    def loaded(self, moment: Moment) -> list[Later]:
        """Everything was read back: members get a full session from here on, and chores begin."""
        commits.begin_expiry(self.groups, moment)
        consumer_replay.after_load(self.groups, moment)
        return [*classic_rebalance.after_load(self.groups, moment)]

    def ring(self, moment: Moment) -> list[Later]:
        """The alarms that are due, each to be decided when the one before it was carried out."""
        groups = self.groups
        return [
            lambda kind=kind, group=group, member=member: ALARMS[kind](groups, group, member, moment)  # type: ignore[misc]
            for kind, group, member in groups.timers.take_due(moment.elapsed_ms)
        ]

    def follow(self, old: Image, new: Image, delta: Delta, moment: Moment) -> list[Later]:
        """The cluster changed: topics that were deleted, grew or came into being."""
        consumer_replay.topics_changed(self.groups, old, new, delta)
        return [
            decision
            for topic in delta.deleted.values()
            for decision in commits.topic_deleted(self.groups, topic.name, topic.id, moment)
        ]
