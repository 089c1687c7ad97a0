"""A member of a consumer group (KIP-848), and the records that say who it is and where it stands.

A member has a *current* assignment: partitions that it may use (`assigned`), and partitions that it was told to give up and
has not yet reported as given up (`revoking`). Each carries the epoch in which it got it (KIP-1251): a commit from an older
epoch of the member is good for partitions that it has held since. What the member is to have in the end, its *target*,
stands in the group.

`epoch` says how far it has come: the assignment epoch of the group it has reconciled with, 0 for one that joins, -1 for
one that left, -2 for a static member that will be back. `previous_epoch` is the one before: a member that did not get our
last answer still uses it.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import NamedTuple

from ottla.coordination.records import (
    ConsumerGroupCurrentMemberAssignmentKey,
    ConsumerGroupCurrentMemberAssignmentValue,
    ConsumerGroupMemberMetadataKey,
    ConsumerGroupMemberMetadataValue,
    ConsumerGroupMetadataKey,
    ConsumerGroupMetadataValue,
    ConsumerGroupPartitionMetadataKey,
    ConsumerGroupRegularExpressionKey,
    ConsumerGroupRegularExpressionValue,
    ConsumerGroupTargetAssignmentMemberKey,
    ConsumerGroupTargetAssignmentMemberValue,
    ConsumerGroupTargetAssignmentMetadataKey,
    ConsumerGroupTargetAssignmentMetadataValue,
    Record,
)
from ottla.wire.schema import Message

# States of a member on its way to its target, as they are written down.
STABLE, UNREVOKED, UNRELEASED, UNKNOWN = 0, 1, 2, 127

JOINING_EPOCH, LEFT_EPOCH, AWAY_EPOCH = 0, -1, -2

# Partitions of a topic with the epoch in which the member got each, by topic id.
Held = Mapping[bytes, Mapping[int, int]]
# Partitions of a topic, by topic id.
Target = Mapping[bytes, frozenset[int]]


class ClassicSide(NamedTuple):
    """What a member that speaks the classic protocol said when it joined: the assignors it knows, each with metadata."""

    session_timeout_ms: int
    protocols: tuple[tuple[str, bytes], ...]


@dataclass(frozen=True, slots=True)
class Member:
    id: str
    epoch: int = JOINING_EPOCH
    previous_epoch: int = -1
    state: int = STABLE
    instance_id: str | None = None
    rack_id: str | None = None
    rebalance_timeout_ms: int = -1
    client_id: str = ""
    client_host: str = ""
    names: frozenset[str] = frozenset()
    regex: str | None = ""
    assignor: str | None = None
    assigned: Held = field(default_factory=dict)
    revoking: Held = field(default_factory=dict)
    classic: ClassicSide | None = None

    @property
    def is_away(self) -> bool:
        return self.epoch == AWAY_EPOCH

    def is_reconciled_to(self, epoch: int) -> bool:
        return self.state == STABLE and self.epoch == epoch

    def held_since(self, topic_id: bytes, partition: int) -> int | None:
        """The epoch in which it got this partition, if it has it, or has yet to give it up."""
        since = self.assigned.get(topic_id, {}).get(partition)
        return self.revoking.get(topic_id, {}).get(partition) if since is None else since


def held(partitions: Target, epoch: int) -> Held:
    """The same partitions, all got in one epoch."""
    return {topic_id: dict.fromkeys(sorted(those), epoch) for topic_id, those in partitions.items()}


# --- records


def member_record(group_id: str, member: Member) -> Record:
    classic = ConsumerGroupMemberMetadataValue.Classic
    side = member.classic and classic(
        session_timeout_ms=member.classic.session_timeout_ms,
        supported_protocols=[classic.Protocol(name=n, metadata=m) for n, m in member.classic.protocols],
    )
    value = ConsumerGroupMemberMetadataValue(
        instance_id=member.instance_id,
        rack_id=member.rack_id,
        client_id=member.client_id,
        client_host=member.client_host,
        subscribed_topic_names=sorted(member.names),
        subscribed_topic_regex=member.regex,
        rebalance_timeout_ms=member.rebalance_timeout_ms,
        server_assignor=member.assignor,
        classic_member_metadata=side,
    )
    return Record(ConsumerGroupMemberMetadataKey(group_id=group_id, member_id=member.id), value)


def current_record(group_id: str, member: Member) -> Record:
    value = ConsumerGroupCurrentMemberAssignmentValue(
        member_epoch=member.epoch,
        previous_member_epoch=member.previous_epoch,
        state=member.state,
        assigned_partitions=_written(member.assigned),
        partitions_pending_revocation=_written(member.revoking),
    )
    return Record(ConsumerGroupCurrentMemberAssignmentKey(group_id=group_id, member_id=member.id), value)


def _written(partitions: Held) -> list[ConsumerGroupCurrentMemberAssignmentValue.TopicPartitions]:
    return [
        ConsumerGroupCurrentMemberAssignmentValue.TopicPartitions(
            topic_id=topic_id, partitions=list(those), assignment_epochs=list(those.values())
        )
        for topic_id, those in partitions.items()
    ]


def read_held(
    topics: Iterable[ConsumerGroupCurrentMemberAssignmentValue.TopicPartitions], member_epoch: int
) -> dict[bytes, dict[int, int]]:
    """As it stands in a record. Releases before 4.3 wrote no epochs: then the member's own is the best guess."""
    found = {}
    for topic in topics:
        epochs, since = topic.assignment_epochs, max(member_epoch, 0)
        if epochs is None or len(epochs) != len(topic.partitions):
            epochs = [since] * len(topic.partitions)
        found[topic.topic_id] = dict(zip(topic.partitions, epochs, strict=True))
    return found


def target_record(group_id: str, member_id: str, target: Target) -> Record:
    topics = [
        ConsumerGroupTargetAssignmentMemberValue.TopicPartitions(topic_id=topic_id, partitions=sorted(those))
        for topic_id, those in target.items()
    ]
    key = ConsumerGroupTargetAssignmentMemberKey(group_id=group_id, member_id=member_id)
    return Record(key, ConsumerGroupTargetAssignmentMemberValue(topic_partitions=topics))


def target_epoch_record(group_id: str, epoch: int, made_ms: int) -> Record:
    value = ConsumerGroupTargetAssignmentMetadataValue(assignment_epoch=epoch, assignment_timestamp=made_ms)
    return Record(ConsumerGroupTargetAssignmentMetadataKey(group_id=group_id), value)


def epoch_record(group_id: str, epoch: int, metadata_hash: int) -> Record:
    value = ConsumerGroupMetadataValue(epoch=epoch, metadata_hash=metadata_hash)
    return Record(ConsumerGroupMetadataKey(group_id=group_id), value)


def regex_record(group_id: str, regex: str, topics: Iterable[str], version: int, at_ms: int) -> Record:
    value = ConsumerGroupRegularExpressionValue(topics=sorted(topics), version=version, timestamp=at_ms)
    return Record(ConsumerGroupRegularExpressionKey(group_id=group_id, regular_expression=regex), value)


def no_regex_record(group_id: str, regex: str) -> Record:
    return Record(ConsumerGroupRegularExpressionKey(group_id=group_id, regular_expression=regex), None)


def no_partition_metadata_record(group_id: str) -> Record:
    """Releases before 4.1 described the group's topics; the first change of the group does away with that."""
    return Record(ConsumerGroupPartitionMetadataKey(group_id=group_id), None)


def gone_records(group_id: str, member_id: str) -> list[Record]:
    """A member is no more: where it stood, what it was to have, who it was."""
    kinds: list[type[Message]] = [
        ConsumerGroupCurrentMemberAssignmentKey,
        ConsumerGroupTargetAssignmentMemberKey,
        ConsumerGroupMemberMetadataKey,
    ]
    return [Record(kind(group_id=group_id, member_id=member_id), None) for kind in kinds]


def end_records(group_id: str, member_ids: Iterable[str], regexes: Iterable[str]) -> list[Record]:
    """The whole group is no more."""
    ids = list(member_ids)
    current = [ConsumerGroupCurrentMemberAssignmentKey(group_id=group_id, member_id=m) for m in ids]
    targets = [ConsumerGroupTargetAssignmentMemberKey(group_id=group_id, member_id=m) for m in ids]
    who = [ConsumerGroupMemberMetadataKey(group_id=group_id, member_id=m) for m in ids]
    patterns = [ConsumerGroupRegularExpressionKey(group_id=group_id, regular_expression=r) for r in regexes]
    keys: list[Message] = [
        *current,
        *targets,
        ConsumerGroupTargetAssignmentMetadataKey(group_id=group_id),
        *who,
        *patterns,
        ConsumerGroupPartitionMetadataKey(group_id=group_id),
        ConsumerGroupMetadataKey(group_id=group_id),
    ]
    return [Record(key, None) for key in keys]
