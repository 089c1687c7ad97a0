"""Offsets without records: by timestamp, by leader epoch, and the cut at the head of a log."""

from ottla.wire.schema import Message, Struct, int8, int16, int32, int64, string, v


class ListOffsetsRequest(Message, key=2, versions="1-11", flexible="6+"):
    """Asks for the offset at a timestamp, or at one of the marks below zero.

    Version 2 adds the isolation level, 4 fencing by leader epoch, 7 the mark -3 for the largest timestamp (KIP-734), 8
    the mark -4 for the local log start (KIP-405), 9 the mark -5 for the last tiered offset (KIP-1005), 10 the timeout
    (KIP-1075), 11 the mark -6 for the first offset not yet uploaded (KIP-1023).
    """

    class Topic(Struct):
        class Partition(Struct):
            partition_index: int32 = v("0+")
            current_leader_epoch: int32 = v("4+", -1)
            timestamp: int64 = v("0+")  # -1 latest, -2 earliest, and the marks above

        name: string = v("0+")
        partitions: list[Partition] = v("0+")

    replica_id: int32 = v("0+")
    isolation_level: int8 = v("2+")
    topics: list[Topic] = v("0+")
    timeout_ms: int32 = v("10+")


class ListOffsetsResponse(Message, key=2, versions="1-11", flexible="6+"):
    """The offset found in each partition, -1 when there is none. Version 5 allows OFFSET_NOT_AVAILABLE."""

    class Topic(Struct):
        class Partition(Struct):
            partition_index: int32 = v("0+")
            error_code: int16 = v("0+")
            timestamp: int64 = v("1+", -1)
            offset: int64 = v("1+", -1)
            leader_epoch: int32 = v("4+", -1)

        name: string = v("0+")
        partitions: list[Partition] = v("0+")

    throttle_time_ms: int32 = v("2+")
    topics: list[Topic] = v("0+")


class OffsetForLeaderEpochRequest(Message, key=23, versions="2-4", flexible="4+"):
    """Asks where a leader epoch ended, to find where two logs part."""

    class Topic(Struct):
        class Partition(Struct):
            partition: int32 = v("0+")
            current_leader_epoch: int32 = v("2+", -1)
            leader_epoch: int32 = v("0+")

        topic: string = v("0+")
        partitions: list[Partition] = v("0+")

    replica_id: int32 = v("3+", -2)  # -2: a consumer that may see beyond the high watermark
    topics: list[Topic] = v("0+")


class OffsetForLeaderEpochResponse(Message, key=23, versions="2-4", flexible="4+"):
    """The largest epoch not above the one asked for, and the offset after its last record."""

    class Topic(Struct):
        class Partition(Struct):
            error_code: int16 = v("0+")
            partition: int32 = v("0+")
            leader_epoch: int32 = v("1+", -1)
            end_offset: int64 = v("0+", -1)  # exclusive

        topic: string = v("0+")
        partitions: list[Partition] = v("0+")

    throttle_time_ms: int32 = v("2+")
    topics: list[Topic] = v("0+")


class DeleteRecordsRequest(Message, key=21, versions="0-2", flexible="2+"):
    """Moves the start of each log up to an offset; everything before it may be removed."""

    class Topic(Struct):
        class Partition(Struct):
            partition_index: int32 = v("0+")
            offset: int64 = v("0+")  # -1: the high watermark

        name: string = v("0+")
        partitions: list[Partition] = v("0+")

    topics: list[Topic] = v("0+")
    timeout_ms: int32 = v("0+")


class DeleteRecordsResponse(Message, key=21, versions="0-2", flexible="2+"):
    """The new start of each log."""

    class Topic(Struct):
        class Partition(Struct):
            partition_index: int32 = v("0+")
            low_watermark: int64 = v("0+")
            error_code: int16 = v("0+")

        name: string = v("0+")
        partitions: list[Partition] = v("0+")

    throttle_time_ms: int32 = v("0+")
    topics: list[Topic] = v("0+")
