"""Reading records: consumers and followers pull with the same request."""

from ottla.wire import schema
from ottla.wire.schema import Message, Struct, int8, int16, int32, int64, string, uuid, v


class FetchRequest(Message, key=1, versions="4-18", flexible="12+"):
    """What a consumer or follower wants next from each partition, and how long it is willing to wait.

    Version 5 adds the follower's log start, 7 sessions (KIP-227), 9 fencing by leader epoch (KIP-320), 10 zstd
    (KIP-110), 11 racks (KIP-392), 12 divergence detection (KIP-595), 13 topic ids (KIP-516), 14
    OFFSET_MOVED_TO_TIERED_STORAGE (KIP-405), 15 the replica's epoch (KIP-903), 17 directory ids (KIP-853), 18 the
    replica's high watermark (KIP-1166).
    """

    class ReplicaState(Struct):
        replica_id: int32 = v("15+", -1)
        replica_epoch: int64 = v("15+", -1)

    class Topic(Struct):
        class Partition(Struct):
            partition: int32 = v("0+")
            current_leader_epoch: int32 = v("9+", -1)
            fetch_offset: int64 = v("0+")
            last_fetched_epoch: int32 = v("12+", -1)  # lets the leader see divergence
            log_start_offset: int64 = v("5+", -1)  # of a follower
            partition_max_bytes: int32 = v("0+")
            replica_directory_id: uuid = v("17+", tag=0)
            # known to the replica; the default means it does not say
            high_watermark: int64 = v("18+", 2**63 - 1, tag=1)

        topic: string = v("0-12")
        topic_id: uuid = v("13+")
        partitions: list[Partition] = v("0+")

    class ForgottenTopic(Struct):
        topic: string = v("7-12")
        topic_id: uuid = v("13+")
        partitions: list[int32] = v("7+")

    cluster_id: string | None = v("12+", None, nullable="12+", tag=0)
    replica_id: int32 = v("0-14", -1)  # -1 for consumers; from version 15 on in replica_state
    replica_state: ReplicaState = v("15+", tag=1)
    max_wait_ms: int32 = v("0+")
    min_bytes: int32 = v("0+")
    max_bytes: int32 = v("3+", 2**31 - 1)
    isolation_level: int8 = v("4+")  # 0 read uncommitted, 1 read committed
    session_id: int32 = v("7+")
    session_epoch: int32 = v("7+", -1)  # -1 outside any session, 0 to open one
    topics: list[Topic] = v("0+")
    forgotten_topics_data: list[ForgottenTopic] = v("7+")
    rack_id: string = v("11+")


class FetchResponse(Message, key=1, versions="4-18", flexible="12+"):
    """Whole record batches per partition, as they lie on disk.

    Versions follow those of the request; 16 adds where the leaders named in it can be found (KIP-951).
    """

    class Topic(Struct):
        class Partition(Struct):
            class EpochEndOffset(Struct):
                epoch: int32 = v("12+", -1)
                end_offset: int64 = v("12+", -1)

            class LeaderIdAndEpoch(Struct):
                leader_id: int32 = v("12+", -1)
                leader_epoch: int32 = v("12+", -1)

            class SnapshotId(Struct):
                end_offset: int64 = v("0+", -1)
                epoch: int32 = v("0+", -1)

            class AbortedTransaction(Struct):
                producer_id: int64 = v("4+")
                first_offset: int64 = v("4+")

            partition_index: int32 = v("0+")
            error_code: int16 = v("0+")
            high_watermark: int64 = v("0+")
            last_stable_offset: int64 = v("4+", -1)
            log_start_offset: int64 = v("5+", -1)
            diverging_epoch: EpochEndOffset = v("12+", tag=0)  # the logs part here: truncate and ask again
            current_leader: LeaderIdAndEpoch = v("12+", tag=1)
            snapshot_id: SnapshotId = v("12+", tag=2)
            # sorted by first offset; null when reading uncommitted
            aborted_transactions: list[AbortedTransaction] | None = v("4+", nullable="4+")
            preferred_read_replica: int32 = v("11+", -1)
            # never null in an answer of ours: librdkafka stumbles over it
            records: schema.records = v("0+", nullable="0+")

        topic: string = v("0-12")
        topic_id: uuid = v("13+")
        partitions: list[Partition] = v("0+")

    class NodeEndpoint(Struct):
        node_id: int32 = v("16+")
        host: string = v("16+")
        port: int32 = v("16+")
        rack: string | None = v("16+", None, nullable="16+")

    throttle_time_ms: int32 = v("1+")
    error_code: int16 = v("7+")
    session_id: int32 = v("7+")
    responses: list[Topic] = v("0+")
    node_endpoints: list[NodeEndpoint] = v("16+", tag=0)
