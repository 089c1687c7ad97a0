"""Memory of consumer groups follows their records: as they are written, and when they are read back, also Apache's own.

What a tombstone names may be unknown already, because compaction has removed what it ended: then it means nothing.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

from ottla.coordination import advancing
from ottla.coordination.consumer_group import ConsumerGroup, Resolved
from ottla.coordination.consumer_member import LEFT_EPOCH, UNKNOWN, UNREVOKED, ClassicSide, Member, read_held
from ottla.coordination.groups import Groups
from ottla.coordination.machine import Moment
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
from ottla.metadata.image import Delta, Image
from ottla.wire.schema import Message


def _group(groups: Groups, group_id: str, value: Message | None) -> ConsumerGroup | None:
    """The group that a record is about; a value brings it into being, in the place of whatever else had its name."""
    group = groups.by_id.get(group_id)
    if isinstance(group, ConsumerGroup):
        return group
    if value is None:
        return None
    created = groups.by_id[group_id] = ConsumerGroup(group_id)
    return created


def replay_group(groups: Groups, record: Record, offset: int) -> None:
    key, value = record
    assert isinstance(key, ConsumerGroupMetadataKey)
    group = _group(groups, key.group_id, value)
    if group is None:
        return
    if value is None:
        del groups.by_id[key.group_id]
        return
    assert isinstance(value, ConsumerGroupMetadataValue)
    group.epoch, group.metadata_hash = value.epoch, value.metadata_hash


def replay_partition_metadata(groups: Groups, record: Record, offset: int) -> None:
    key, value = record
    assert isinstance(key, ConsumerGroupPartitionMetadataKey)
    group = _group(groups, key.group_id, value)
    if group is not None:
        group.has_partition_metadata = value is not None


def replay_member(groups: Groups, record: Record, offset: int) -> None:
    key, value = record
    assert isinstance(key, ConsumerGroupMemberMetadataKey)
    group = _group(groups, key.group_id, value)
    if group is None:
        return
    if value is None:
        group.remove(key.member_id)
        return
    assert isinstance(value, ConsumerGroupMemberMetadataValue)
    group.put(
        replace(
            group.members.get(key.member_id) or Member(key.member_id),
            instance_id=value.instance_id,
            rack_id=value.rack_id,
            client_id=value.client_id,
            client_host=value.client_host,
            names=frozenset(value.subscribed_topic_names),
            regex=value.subscribed_topic_regex,
            rebalance_timeout_ms=value.rebalance_timeout_ms,
            assignor=value.server_assignor,
            classic=_classic_side(value.classic_member_metadata),
        )
    )


def _classic_side(written: ConsumerGroupMemberMetadataValue.Classic | None) -> ClassicSide | None:
    if written is None:
        return None
    protocols = tuple((protocol.name, bytes(protocol.metadata)) for protocol in written.supported_protocols)
    return ClassicSide(written.session_timeout_ms, protocols)


def replay_target_epoch(groups: Groups, record: Record, offset: int) -> None:
    key, value = record
    assert isinstance(key, ConsumerGroupTargetAssignmentMetadataKey)
    group = _group(groups, key.group_id, value)
    if group is None:
        return
    if value is None:
        group.assignment_epoch, group.assigned_at_ms = -1, 0
        return
    assert isinstance(value, ConsumerGroupTargetAssignmentMetadataValue)
    group.assignment_epoch, group.assigned_at_ms = value.assignment_epoch, value.assignment_timestamp


def replay_target(groups: Groups, record: Record, offset: int) -> None:
    key, value = record
    assert isinstance(key, ConsumerGroupTargetAssignmentMemberKey)
    group = _group(groups, key.group_id, value)
    if group is None:
        return
    if value is None:
        group.targets.pop(key.member_id, None)
        return
    assert isinstance(value, ConsumerGroupTargetAssignmentMemberValue)
    group.targets[key.member_id] = {topic.topic_id: frozenset(topic.partitions) for topic in value.topic_partitions}


def replay_current(groups: Groups, record: Record, offset: int) -> None:
    key, value = record
    assert isinstance(key, ConsumerGroupCurrentMemberAssignmentKey)
    group = _group(groups, key.group_id, value)
    if group is None:
        return
    member = group.members.get(key.member_id)
    if value is None:
        if member is not None:
            group.put(replace(member, epoch=LEFT_EPOCH, previous_epoch=LEFT_EPOCH, assigned={}, revoking={}))
        return
    assert isinstance(value, ConsumerGroupCurrentMemberAssignmentValue)
    group.put(
        replace(
            member or Member(key.member_id),
            epoch=value.member_epoch,
            previous_epoch=value.previous_member_epoch,
            state=value.state if value.state in (0, 1, 2) else UNKNOWN,
            assigned=read_held(value.assigned_partitions, value.member_epoch),
            revoking=read_held(value.partitions_pending_revocation, value.member_epoch),
        )
    )


def replay_regex(groups: Groups, record: Record, offset: int) -> None:
    key, value = record
    assert isinstance(key, ConsumerGroupRegularExpressionKey)
    group = _group(groups, key.group_id, value)
    if group is None:
        return
    if value is None:
        group.regexes.pop(key.regular_expression, None)
        return
    assert isinstance(value, ConsumerGroupRegularExpressionValue)
    group.regexes[key.regular_expression] = Resolved(frozenset(value.topics), value.version, value.timestamp)


REPLAY: dict[int, Callable[[Groups, Record, int], None]] = {
    ConsumerGroupMetadataKey.key: replay_group,
    ConsumerGroupPartitionMetadataKey.key: replay_partition_metadata,
    ConsumerGroupMemberMetadataKey.key: replay_member,
    ConsumerGroupTargetAssignmentMetadataKey.key: replay_target_epoch,
    ConsumerGroupTargetAssignmentMemberKey.key: replay_target,
    ConsumerGroupCurrentMemberAssignmentKey.key: replay_current,
    ConsumerGroupRegularExpressionKey.key: replay_regex,
}


# --- what else changes memory: the beginning of a leadership, and the cluster


def after_load(groups: Groups, moment: Moment) -> None:
    """Everybody has a full session from here on, and those who have to give up partitions a full rebalance timeout."""
    groups.topics_came_at = groups.image.offset
    for group in groups.by_id.values():
        if not isinstance(group, ConsumerGroup):
            continue
        timeout_ms = advancing.group_setting(groups, group.group_id, advancing.SESSION_TIMEOUT)
        for member in group.members.values():
            groups.timers.set((advancing.SESSION, group.group_id, member.id), moment.elapsed_ms + timeout_ms)
            if member.state == UNREVOKED:
                alarm = (advancing.REVOCATION, group.group_id, member.id)
                groups.timers.set(alarm, moment.elapsed_ms + member.rebalance_timeout_ms)


def topics_changed(groups: Groups, image: Image, delta: Delta) -> None:
    """Groups that subscribe to topics that came, went or changed look at them again, at the next heartbeat."""
    if delta.created:
        groups.topics_came_at = image.offset
    names = delta.names(image)
    for group in groups.by_id.values():
        if isinstance(group, ConsumerGroup) and not names.isdisjoint(group.topics()):
            group.topics_known_at_epoch = None
    for name in [name for name in groups.topic_hashes if name in names]:
        del groups.topic_hashes[name]
