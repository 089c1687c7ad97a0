"""Offsets that groups have committed: written, read and forgotten."""

from ottla.wire.schema import Message, Struct, boolean, int16, int32, int64, string, uuid, v


class OffsetCommitRequest(Message, key=8, versions="2-10", flexible="8+"):
    """How far a group has come.

    Versions 2-4 may say how long to keep it, 6 has leader epochs (KIP-320), 7 static members (KIP-345), 9 is for members of
    consumer groups (KIP-848), 10 names topics by id (KIP-516).
    """

    class Topic(Struct):
        class Partition(Struct):
            partition_index: int32 = v("0+")
            committed_offset: int64 = v("0+")
            committed_leader_epoch: int32 = v("6+", -1)
            committed_metadata: string | None = v("0+", nullable="0+")

        name: string = v("0-9")
        topic_id: uuid = v("10+")
        partitions: list[Partition] = v("0+")

    group_id: string = v("0+")
    generation_id_or_member_epoch: int32 = v("1+", -1)
    member_id: string = v("1+")
    group_instance_id: string | None = v("7+", None, nullable="7+")
    retention_time_ms: int64 = v("2-4", -1)
    topics: list[Topic] = v("0+")


class OffsetCommitResponse(Message, key=8, versions="2-10", flexible="8+"):
    """What became of each."""

    class Topic(Struct):
        class Partition(Struct):
            partition_index: int32 = v("0+")
            error_code: int16 = v("0+")

        name: string = v("0-9")
        topic_id: uuid = v("10+")
        partitions: list[Partition] = v("0+")

    throttle_time_ms: int32 = v("3+")
    topics: list[Topic] = v("0+")


class OffsetFetchRequest(Message, key=9, versions="1-10", flexible="6+"):
    """What groups have committed; null topics mean all of them.

    Version 7 may insist on offsets that no open transaction is about to change (KIP-447), 8 asks for many groups (KIP-709),
    9 is for members of consumer groups (KIP-848), 10 names topics by id (KIP-516).
    """

    class Topic(Struct):
        name: string = v("0-7")
        partition_indexes: list[int32] = v("0-7")

    class Group(Struct):
        class Topic(Struct):
            name: string = v("8-9")
            topic_id: uuid = v("10+")
            partition_indexes: list[int32] = v("8+")

        group_id: string = v("8+")
        member_id: string | None = v("9+", None, nullable="9+")
        member_epoch: int32 = v("9+", -1)
        topics: list[Topic] | None = v("8+", nullable="8+")

    group_id: string = v("0-7")
    topics: list[Topic] | None = v("0-7", nullable="2-7")
    groups: list[Group] = v("8+")
    require_stable: boolean = v("7+")


class OffsetFetchResponse(Message, key=9, versions="1-10", flexible="6+"):
    """The offsets, -1 where nothing was committed."""

    class Topic(Struct):
        class Partition(Struct):
            partition_index: int32 = v("0-7")
            committed_offset: int64 = v("0-7")
            committed_leader_epoch: int32 = v("5-7", -1)
            metadata: string | None = v("0-7", nullable="0-7")
            error_code: int16 = v("0-7")

        name: string = v("0-7")
        partitions: list[Partition] = v("0-7")

    class Group(Struct):
        class Topic(Struct):
            class Partition(Struct):
                partition_index: int32 = v("8+")
                committed_offset: int64 = v("8+")
                committed_leader_epoch: int32 = v("8+", -1)
                metadata: string | None = v("8+", nullable="8+")
                error_code: int16 = v("8+")

            name: string = v("8-9")
            topic_id: uuid = v("10+")
            partitions: list[Partition] = v("8+")

        group_id: string = v("8+")
        topics: list[Topic] = v("8+")
        error_code: int16 = v("8+")

    throttle_time_ms: int32 = v("3+")
    topics: list[Topic] = v("0-7")
    error_code: int16 = v("2-7")
    groups: list[Group] = v("8+")


class OffsetDeleteRequest(Message, key=47, versions="0"):
    """Offsets of a group to forget (KIP-496)."""

    class Topic(Struct):
        class Partition(Struct):
            partition_index: int32 = v("0+")

        name: string = v("0+")
        partitions: list[Partition] = v("0+")

    group_id: string = v("0+")
    topics: list[Topic] = v("0+")


class OffsetDeleteResponse(Message, key=47, versions="0"):
    """What became of each."""

    class Topic(Struct):
        class Partition(Struct):
            partition_index: int32 = v("0+")
            error_code: int16 = v("0+")

        name: string = v("0+")
        partitions: list[Partition] = v("0+")

    error_code: int16 = v("0+")
    throttle_time_ms: int32 = v("0+")
    topics: list[Topic] = v("0+")
