"""Records of internal topics that this node does not write itself, but can show: those of share groups."""

from ottla.wire.schema import Message, Struct, int8, int16, int32, int64, string, uuid, v


class ShareGroupMemberMetadataKey(Message, key=10, versions="0"):
    """A member of a share group."""

    group_id: string = v("0")
    member_id: string = v("0")


class ShareGroupMemberMetadataValue(Message, key=10, versions="0", flexible="0+"):
    """Who the member is, and what it wants to read."""

    rack_id: string | None = v("0+", nullable="0+")
    client_id: string = v("0+")
    client_host: string = v("0+")
    subscribed_topic_names: list[string] = v("0+")


class ShareGroupMetadataKey(Message, key=11, versions="0"):
    """A share group."""

    group_id: string = v("0")


class ShareGroupMetadataValue(Message, key=11, versions="0", flexible="0+"):
    """The epoch of the group."""

    epoch: int32 = v("0+")
    metadata_hash: int64 = v("0+")


class ShareGroupTargetAssignmentMetadataKey(Message, key=12, versions="0"):
    """A share group, for its target assignment."""

    group_id: string = v("0")


class ShareGroupTargetAssignmentMetadataValue(Message, key=12, versions="0", flexible="0+"):
    """The epoch of the assignment."""

    assignment_epoch: int32 = v("0+")
    assignment_timestamp: int64 = v("0+", 0, tag=0)


class ShareGroupTargetAssignmentMemberKey(Message, key=13, versions="0"):
    """A member of a share group, for its target assignment."""

    group_id: string = v("0")
    member_id: string = v("0")


class ShareGroupTargetAssignmentMemberValue(Message, key=13, versions="0", flexible="0+"):
    """What the member shall read."""

    class TopicPartition(Struct):
        topic_id: uuid = v("0+")
        partitions: list[int32] = v("0+")

    topic_partitions: list[TopicPartition] = v("0+")


class ShareGroupCurrentMemberAssignmentKey(Message, key=14, versions="0"):
    """A member of a share group, for what it reads now."""

    group_id: string = v("0")
    member_id: string = v("0")


class TopicPartitions(Struct):
    """Partitions of a topic."""

    topic_id: uuid = v("0+")
    partitions: list[int32] = v("0+")


class ShareGroupCurrentMemberAssignmentValue(Message, key=14, versions="0", flexible="0+"):
    """What the member reads now."""

    member_epoch: int32 = v("0+")
    previous_member_epoch: int32 = v("0+")
    state: int8 = v("0+")
    assigned_partitions: list[TopicPartitions] = v("0+")


class ShareGroupStatePartitionMetadataKey(Message, key=15, versions="0"):
    """A share group, for the places where its progress is kept."""

    group_id: string = v("0")


class TopicPartitionsInfo(Struct):
    """Partitions of a topic, with its name."""

    topic_id: uuid = v("0+")
    topic_name: string = v("0+")
    partitions: list[int32] = v("0+")


class TopicInfo(Struct):
    """A topic with its name."""

    topic_id: uuid = v("0+")
    topic_name: string = v("0+")


class ShareGroupStatePartitionMetadataValue(Message, key=15, versions="0", flexible="0+"):
    """Which partitions have such a place, or are about to get or lose one."""

    initializing_topics: list[TopicPartitionsInfo] = v("0+")
    initialized_topics: list[TopicPartitionsInfo] = v("0+")
    deleting_topics: list[TopicInfo] = v("0+")


class ShareSnapshotKey(Message, key=0, versions="0"):
    """A partition that a share group reads."""

    group_id: string = v("0")
    topic_id: uuid = v("0")
    partition: int32 = v("0")


class StateBatch(Struct):
    """A range of records, and how far their delivery is."""

    first_offset: int64 = v("0+")
    last_offset: int64 = v("0+")
    delivery_state: int8 = v("0+")
    delivery_count: int16 = v("0+")


class ShareSnapshotValue(Message, key=0, versions="0", flexible="0+"):
    """The whole state of the partition."""

    snapshot_epoch: int32 = v("0+")
    state_epoch: int32 = v("0+")
    leader_epoch: int32 = v("0+")
    start_offset: int64 = v("0+")
    delivery_complete_count: int32 = v("0+", -1, tag=0)
    create_timestamp: int64 = v("0+")
    write_timestamp: int64 = v("0+")
    state_batches: list[StateBatch] = v("0+")


class ShareUpdateKey(Message, key=1, versions="0"):
    """A partition that a share group reads, for what changed since the last snapshot."""

    group_id: string = v("0")
    topic_id: uuid = v("0")
    partition: int32 = v("0")


class ShareUpdateValue(Message, key=1, versions="0", flexible="0+"):
    """What changed since the last snapshot."""

    snapshot_epoch: int32 = v("0+")
    leader_epoch: int32 = v("0+")
    start_offset: int64 = v("0+")
    delivery_complete_count: int32 = v("0+", -1, tag=0)
    state_batches: list[StateBatch] = v("0+")


Pair = tuple[type[Message], type[Message]]


def _by_key(*pairs: Pair) -> dict[int, Pair]:
    return {key.key: (key, value) for key, value in pairs}


SHARE_STATE_KINDS = _by_key((ShareSnapshotKey, ShareSnapshotValue), (ShareUpdateKey, ShareUpdateValue))
SHARE_GROUP_KINDS = _by_key(
    (ShareGroupMemberMetadataKey, ShareGroupMemberMetadataValue),
    (ShareGroupMetadataKey, ShareGroupMetadataValue),
    (ShareGroupTargetAssignmentMetadataKey, ShareGroupTargetAssignmentMetadataValue),
    (ShareGroupTargetAssignmentMemberKey, ShareGroupTargetAssignmentMemberValue),
    (ShareGroupCurrentMemberAssignmentKey, ShareGroupCurrentMemberAssignmentValue),
    (ShareGroupStatePartitionMetadataKey, ShareGroupStatePartitionMetadataValue),
)
