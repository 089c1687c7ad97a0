"""The records of `__consumer_offsets`, in Apache Kafka's own layouts, so that its tools and its brokers can read them.

A key begins with two bytes that say what it is about, and a value with two bytes for its version; a null value is a
tombstone: what the key names is gone. Kinds that are not known here (share groups, streams groups, later releases) are
passed over when the topic is read, and compaction keeps them.
"""

import struct
from typing import NamedTuple

from ottla.wire.codec import Malformed, Unencodable, decode, encode
from ottla.wire.schema import ZERO_UUID, Message, Struct, byte_string, int8, int32, int64, string, uuid, v


class OffsetCommitKey(Message, key=1, versions="0"):
    group: string = v("0")
    topic: string = v("0")
    partition: int32 = v("0")


class OffsetCommitValue(Message, key=1, versions="0-4", flexible="4+"):
    """An offset that a group committed. Version 1 is the one with an expiry of its own, 4 has the topic's id."""

    offset: int64 = v("0+")
    leader_epoch: int32 = v("3+", -1)
    metadata: string = v("0+")
    commit_timestamp: int64 = v("0+")
    expire_timestamp: int64 = v("1", -1)
    topic_id: uuid = v("4+", tag=0)


class GroupMetadataKey(Message, key=2, versions="0"):
    group: string = v("0")


class GroupMetadataValue(Message, key=2, versions="0-4", flexible="4+"):
    """A classic group as one generation left it."""

    class Member(Struct):
        member_id: string = v("0+")
        group_instance_id: string | None = v("3+", None, nullable="3+")
        client_id: string = v("0+")
        client_host: string = v("0+")
        rebalance_timeout: int32 = v("1+", -1)
        session_timeout: int32 = v("0+")
        subscription: byte_string = v("0+")
        assignment: byte_string = v("0+")

    protocol_type: string = v("0+")
    generation: int32 = v("0+")
    protocol: string | None = v("0+", nullable="0+")
    leader: string | None = v("0+", nullable="0+")
    current_state_timestamp: int64 = v("2+", -1)
    members: list[Member] = v("0+")


class ConsumerGroupMetadataKey(Message, key=3, versions="0"):
    group_id: string = v("0")


class ConsumerGroupMetadataValue(Message, key=3, versions="0", flexible="0+"):
    """A consumer group (KIP-848) exists, in this epoch."""

    epoch: int32 = v("0+")
    metadata_hash: int64 = v("0+", tag=0)  # of the topics it subscribes to


class ConsumerGroupPartitionMetadataKey(Message, key=4, versions="0"):
    group_id: string = v("0")


class ConsumerGroupPartitionMetadataValue(Message, key=4, versions="0", flexible="0+"):
    """The topics of a group as releases before 4.1 wrote them down; later ones keep only a hash."""

    class Topic(Struct):
        class Partition(Struct):
            partition: int32 = v("0+")
            racks: list[string] = v("0+")

        topic_id: uuid = v("0+")
        topic_name: string = v("0+")
        num_partitions: int32 = v("0+")
        partition_metadata: list[Partition] = v("0+")

    topics: list[Topic] = v("0+")


class ConsumerGroupMemberMetadataKey(Message, key=5, versions="0"):
    group_id: string = v("0")
    member_id: string = v("0")


class ConsumerGroupMemberMetadataValue(Message, key=5, versions="0", flexible="0+"):
    """Who a member is and what it subscribes to; with `classic_member_metadata` it still speaks the classic protocol."""

    class Classic(Struct):
        class Protocol(Struct):
            name: string = v("0+")
            metadata: byte_string = v("0+")

        session_timeout_ms: int32 = v("0+")
        supported_protocols: list[Protocol] = v("0+")

    instance_id: string | None = v("0+", nullable="0+")
    rack_id: string | None = v("0+", nullable="0+")
    client_id: string = v("0+")
    client_host: string = v("0+")
    subscribed_topic_names: list[string] = v("0+")
    subscribed_topic_regex: string | None = v("0+", nullable="0+")
    rebalance_timeout_ms: int32 = v("0+", -1)
    server_assignor: string | None = v("0+", nullable="0+")
    classic_member_metadata: Classic | None = v("0+", nullable="0+", tag=0)  # null is said aloud, as Apache does


class ConsumerGroupTargetAssignmentMetadataKey(Message, key=6, versions="0"):
    group_id: string = v("0")


class ConsumerGroupTargetAssignmentMetadataValue(Message, key=6, versions="0", flexible="0+"):
    """The group epoch that the target assignment was made for."""

    assignment_epoch: int32 = v("0+")
    assignment_timestamp: int64 = v("0+", tag=0)


class ConsumerGroupTargetAssignmentMemberKey(Message, key=7, versions="0"):
    group_id: string = v("0")
    member_id: string = v("0")


class ConsumerGroupTargetAssignmentMemberValue(Message, key=7, versions="0", flexible="0+"):
    """What a member is to have in the end."""

    class TopicPartitions(Struct):
        topic_id: uuid = v("0+")
        partitions: list[int32] = v("0+")

    topic_partitions: list[TopicPartitions] = v("0+")


class ConsumerGroupCurrentMemberAssignmentKey(Message, key=8, versions="0"):
    group_id: string = v("0")
    member_id: string = v("0")


class ConsumerGroupCurrentMemberAssignmentValue(Message, key=8, versions="0", flexible="0+"):
    """Where a member stands on its way to its target."""

    class TopicPartitions(Struct):
        topic_id: uuid = v("0+")
        partitions: list[int32] = v("0+")
        assignment_epochs: list[int32] | None = v("0+", None, nullable="0+", tag=0)  # of each, to fence old commits

    member_epoch: int32 = v("0+")
    previous_member_epoch: int32 = v("0+")
    state: int8 = v("0+")
    assigned_partitions: list[TopicPartitions] = v("0+")
    partitions_pending_revocation: list[TopicPartitions] = v("0+")


class ConsumerGroupRegularExpressionKey(Message, key=16, versions="0"):
    group_id: string = v("0")
    regular_expression: string = v("0")


class ConsumerGroupRegularExpressionValue(Message, key=16, versions="0", flexible="0+"):
    """The topics that a group's regular expression matched when it was last evaluated."""

    topics: list[string] = v("0+")
    version: int64 = v("0+")
    timestamp: int64 = v("0+")


class Record(NamedTuple):
    """What a key is about, and what is so from now on; no value means that it is gone."""

    key: Message
    value: Message | None


_PAIRS: tuple[tuple[type[Message], type[Message]], ...] = (
    (OffsetCommitKey, OffsetCommitValue),
    (GroupMetadataKey, GroupMetadataValue),
    (ConsumerGroupMetadataKey, ConsumerGroupMetadataValue),
    (ConsumerGroupPartitionMetadataKey, ConsumerGroupPartitionMetadataValue),
    (ConsumerGroupMemberMetadataKey, ConsumerGroupMemberMetadataValue),
    (ConsumerGroupTargetAssignmentMetadataKey, ConsumerGroupTargetAssignmentMetadataValue),
    (ConsumerGroupTargetAssignmentMemberKey, ConsumerGroupTargetAssignmentMemberValue),
    (ConsumerGroupCurrentMemberAssignmentKey, ConsumerGroupCurrentMemberAssignmentValue),
    (ConsumerGroupRegularExpressionKey, ConsumerGroupRegularExpressionValue),
)
KINDS: dict[int, tuple[type[Message], type[Message]]] = {key.key: (key, value) for key, value in _PAIRS}
# In the oldest releases the layout of offsets had another number; the bytes are the same.
KINDS[0] = OffsetCommitKey, OffsetCommitValue

# The versions that Apache Kafka 4.3 writes, where that is not 0.
WRITTEN = {GroupMetadataValue.key: 3, OffsetCommitValue.key: 4}
# An offset with an expiry of its own is written in the one version that has a place for it.
WITH_EXPIRY = 1


# A value as nearly all are: version 4, a short note, a topic id.
USUAL_HEAD = b"\0\4"
TOPIC_ID_FOLLOWS = b"\1\0\x10"  # one tagged field, number 0, 16 bytes
_SHORT_NOTE_MAX = 126
_SIZE = struct.Struct(">h").pack
_PARTITION = struct.Struct(">i").pack
_OFFSET = struct.Struct(">qiB").pack
_TIME = struct.Struct(">q").pack


def pack(record: Record) -> tuple[bytes, bytes | None]:
    """Key and value as they stand in the topic."""
    key, value = record
    if type(value) is OffsetCommitValue and type(key) is OffsetCommitKey:
        note = value.metadata.encode()
        if len(note) <= _SHORT_NOTE_MAX and value.expire_timestamp == -1 and value.topic_id != ZERO_UUID:
            return _pack_usual(key, value, note)
    number = type(key).key
    packed = number.to_bytes(2, "big") + encode(key, 0)
    if value is None:
        return packed, None
    version = WRITTEN.get(number, 0)
    if isinstance(value, OffsetCommitValue) and value.expire_timestamp != -1:
        version = WITH_EXPIRY
    return packed, version.to_bytes(2, "big") + encode(value, version)


def _pack_usual(key: OffsetCommitKey, value: OffsetCommitValue, note: bytes) -> tuple[bytes, bytes]:
    """Thousands of these come per second: by hand, in a third of the time."""
    group, topic = key.group.encode(), key.topic.encode()
    try:
        place = (_SIZE(len(group)), group, _SIZE(len(topic)), topic, _PARTITION(key.partition))
        head = _OFFSET(value.offset, value.leader_epoch, len(note) + 1)
    except struct.error as why:
        raise Unencodable(f"an offset of a group: {why}") from why
    time = _TIME(value.commit_timestamp)
    said = b"".join((USUAL_HEAD, head, note, time, TOPIC_ID_FOLLOWS, value.topic_id))
    return b"".join((b"\0\1", *place)), said


def unpack(key: bytes | None, value: bytes | None) -> Record | None:
    """What stands in the topic, or None for a kind or a version that nobody here knows. Malformed if it cannot be read."""
    if key is None or len(key) < 2:
        raise Malformed("a record of the offsets topic without a key")
    layouts = KINDS.get(int.from_bytes(key[:2], "big"))
    if layouts is None:
        return None
    subject: Message = decode(layouts[0], key, 0, 2)
    if value is None:
        return Record(subject, None)
    version = int.from_bytes(value[:2], "big", signed=True)
    if version not in layouts[1].versions:
        return None
    return Record(subject, decode(layouts[1], value, version, 2))
