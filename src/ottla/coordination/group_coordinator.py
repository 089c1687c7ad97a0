"""The state machine of one partition of `__consumer_offsets`, as its driver sees it: replay, ring, and follow the cluster.

Which function replays a kind of record and which one answers an alarm stands in two tables here; the functions themselves
live with what they are about. What clients ask is decided by functions of those rooms, called by the handlers with
`GroupCoordinator.state`.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from ottla.coordination import classic_group, classic_rebalance, commits, consumer, consumer_replay
from ottla.coordination.groups import Groups
from ottla.coordination.machine import NO_PRODUCER, Decision, Later, Moment, Packed, Timers
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


class GroupCoordinator:
    def __init__(self, groups: Groups) -> None:
        self.state = groups

    @property
    def timers(self) -> Timers:
        return self.state.timers

    def pack(self, record: Record) -> Packed:
        return pack(record)

    def replay(self, record: Record, offset: int, producer_id: int = NO_PRODUCER, packed: Packed | None = None) -> None:
        subject = record.key
        if isinstance(subject, OffsetCommitKey):
            key, value = pack(record) if packed is None else packed
            self.state.offsets.replay(key, value, offset, producer_id)
            return
        REPLAY[type(subject).key](self.state, record, offset)
        if record.value is None and isinstance(subject, (GroupMetadataKey, ConsumerGroupMetadataKey)):
            self.state.offsets.forget(subject.group if isinstance(subject, GroupMetadataKey) else subject.group_id)

    def read(self, key: bytes | None, value: bytes | None, offset: int, producer_id: int = NO_PRODUCER) -> None:
        """Memory follows a record as it stands in the topic: nearly all are offsets, which need not be taken apart."""
        if key is not None and self.state.offsets.replay(key, value, offset, producer_id):
            return
        record = unpack(key, value)
        if record is not None:
            self.replay(record, offset, producer_id)

    def end_transaction(self, producer_id: int, committed: bool) -> None:
        self.state.offsets.end_transaction(producer_id, committed)

    def loaded(self, moment: Moment) -> list[Later]:
        """Everything was read back: members get a full session from here on, and chores begin."""
        commits.begin_expiry(self.state, moment)
        consumer_replay.after_load(self.state, moment)
        return [*classic_rebalance.after_load(self.state, moment)]

    def ring(self, moment: Moment) -> list[Later]:
        return self.timers.ring(
            moment.elapsed_ms, lambda kind, group, member: ALARMS[kind](self.state, group, member, moment)
        )

    def follow(self, image: Image, delta: Delta, moment: Moment) -> list[Later]:
        """The cluster changed: topics that were deleted, grew or came into being."""
        consumer_replay.topics_changed(self.state, image, delta)
        return [
            decision
            for topic in delta.deleted.values()
            for decision in commits.topic_deleted(self.state, topic.name, topic.id, moment)
        ]
