"""Producer ids and transactions."""

from ottla.wire.schema import Message, Struct, boolean, int8, int16, int32, int64, string, v

# The timeout of transactions that an outside coordinator ends: they wait as long as it takes (KIP-939).
NO_TIMEOUT_MS = 2**31 - 1


class InitProducerIdRequest(Message, key=22, versions="0-6", flexible="2+"):
    """Asks for a producer id, or for a new epoch of one.

    Version 3 may bring the current id along to bump it (KIP-360), 4 allows PRODUCER_FENCED (KIP-588), 5
    TRANSACTION_ABORTABLE (KIP-890), 6 two-phase commit (KIP-939), which Kafka still marks unstable.
    """

    transactional_id: string | None = v("0+", nullable="0+")  # null: idempotent only
    transaction_timeout_ms: int32 = v("0+")
    producer_id: int64 = v("3+", -1)
    producer_epoch: int16 = v("3+", -1)
    enable_2pc: boolean = v("6+")
    keep_prepared_txn: boolean = v("6+")


class InitProducerIdResponse(Message, key=22, versions="0-6", flexible="2+"):
    """The producer id and epoch to write with."""

    throttle_time_ms: int32 = v("0+")
    error_code: int16 = v("0+")
    producer_id: int64 = v("0+", -1)
    producer_epoch: int16 = v("0+")
    ongoing_txn_producer_id: int64 = v("6+", -1)
    ongoing_txn_producer_epoch: int16 = v("6+", -1)


class EndTxnMarker(Message, versions="0"):
    """Value of the control record that ends a transaction in a partition; its key says commit or abort."""

    coordinator_epoch: int32 = v("0+")


class DescribeProducersRequest(Message, key=61, versions="0", flexible="0+"):
    """Asks which producers a partition remembers (KIP-664)."""

    class Topic(Struct):
        name: string = v("0+")
        partition_indexes: list[int32] = v("0+")

    topics: list[Topic] = v("0+")


class DescribeProducersResponse(Message, key=61, versions="0", flexible="0+"):
    """Producers with their last sequence, and where their transaction began, if one is open."""

    class Topic(Struct):
        class Partition(Struct):
            class Producer(Struct):
                producer_id: int64 = v("0+")
                producer_epoch: int32 = v("0+")
                last_sequence: int32 = v("0+", -1)
                last_timestamp: int64 = v("0+", -1)
                coordinator_epoch: int32 = v("0+")
                current_txn_start_offset: int64 = v("0+", -1)

            partition_index: int32 = v("0+")
            error_code: int16 = v("0+")
            error_message: string | None = v("0+", None, nullable="0+")
            active_producers: list[Producer] = v("0+")

        name: string = v("0+")
        partitions: list[Partition] = v("0+")

    throttle_time_ms: int32 = v("0+")
    topics: list[Topic] = v("0+")


class TopicPartitions(Struct):
    """Partitions of a topic that a transaction writes to."""

    name: string = v("0+")
    partitions: list[int32] = v("0+")


class AddPartitionsToTxnRequest(Message, key=24, versions="0-5", flexible="3+"):
    """Partitions that a transaction is about to write to.

    Version 2 allows PRODUCER_FENCED. From 4 on brokers ask, for many transactions at once, and may only want to know whether
    the partitions are in there (KIP-890); 5 allows TRANSACTION_ABORTABLE. Clients stay at 3.
    """

    class Transaction(Struct):
        transactional_id: string = v("4+")
        producer_id: int64 = v("4+")
        producer_epoch: int16 = v("4+")
        verify_only: boolean = v("4+")
        topics: list[TopicPartitions] = v("4+")

    transactions: list[Transaction] = v("4+")
    v3_and_below_transactional_id: string = v("0-3")
    v3_and_below_producer_id: int64 = v("0-3")
    v3_and_below_producer_epoch: int16 = v("0-3")
    v3_and_below_topics: list[TopicPartitions] = v("0-3")


class AddedTopic(Struct):
    """What became of the partitions of a topic."""

    class Partition(Struct):
        partition_index: int32 = v("0+")
        partition_error_code: int16 = v("0+")

    name: string = v("0+")
    results_by_partition: list[Partition] = v("0+")


class AddPartitionsToTxnResponse(Message, key=24, versions="0-5", flexible="3+"):
    """What became of each partition."""

    class Result(Struct):
        transactional_id: string = v("4+")
        topic_results: list[AddedTopic] = v("4+")

    throttle_time_ms: int32 = v("0+")
    error_code: int16 = v("4+")
    results_by_transaction: list[Result] = v("4+")
    results_by_topic_v3_and_below: list[AddedTopic] = v("0-3")


class AddOffsetsToTxnRequest(Message, key=25, versions="0-4", flexible="3+"):
    """A transaction is about to commit offsets of a group. Version 2 allows PRODUCER_FENCED, 4 TRANSACTION_ABORTABLE."""

    transactional_id: string = v("0+")
    producer_id: int64 = v("0+")
    producer_epoch: int16 = v("0+")
    group_id: string = v("0+")


class AddOffsetsToTxnResponse(Message, key=25, versions="0-4", flexible="3+"):
    """Whether it may."""

    throttle_time_ms: int32 = v("0+")
    error_code: int16 = v("0+")


class EndTxnRequest(Message, key=26, versions="0-5", flexible="3+"):
    """Ends a transaction.

    Version 2 allows PRODUCER_FENCED, 4 TRANSACTION_ABORTABLE; from 5 on every end brings a new epoch (KIP-890).
    """

    transactional_id: string = v("0+")
    producer_id: int64 = v("0+")
    producer_epoch: int16 = v("0+")
    committed: boolean = v("0+")


class EndTxnResponse(Message, key=26, versions="0-5", flexible="3+"):
    """Whether it ended, and who the producer is from here on."""

    throttle_time_ms: int32 = v("0+")
    error_code: int16 = v("0+")
    producer_id: int64 = v("5+", -1)
    producer_epoch: int16 = v("5+", -1)


class WriteTxnMarkersRequest(Message, key=27, versions="1-2", flexible="1+"):
    """A coordinator tells the leaders of partitions how transactions ended. Version 2 says of which generation (KIP-1228)."""

    class Marker(Struct):
        class Topic(Struct):
            name: string = v("0+")
            partition_indexes: list[int32] = v("0+")

        producer_id: int64 = v("0+")
        producer_epoch: int16 = v("0+")
        transaction_result: boolean = v("0+")  # true: committed
        topics: list[Topic] = v("0+")
        coordinator_epoch: int32 = v("0+")
        transaction_version: int8 = v("2+")

    markers: list[Marker] = v("0+")


class WriteTxnMarkersResponse(Message, key=27, versions="1-2", flexible="1+"):
    """What became of each marker."""

    class Marker(Struct):
        class Topic(Struct):
            class Partition(Struct):
                partition_index: int32 = v("0+")
                error_code: int16 = v("0+")

            name: string = v("0+")
            partitions: list[Partition] = v("0+")

        producer_id: int64 = v("0+")
        topics: list[Topic] = v("0+")

    markers: list[Marker] = v("0+")


class TxnOffsetCommitRequest(Message, key=28, versions="0-5", flexible="3+"):
    """Offsets of a group that hold once the transaction is committed.

    Version 2 has leader epochs (KIP-320), 3 the member of the group (KIP-447), 4 allows TRANSACTION_ABORTABLE; 5 adds the
    group to the transaction by itself (KIP-890).
    """

    class Topic(Struct):
        class Partition(Struct):
            partition_index: int32 = v("0+")
            committed_offset: int64 = v("0+")
            committed_leader_epoch: int32 = v("2+", -1)
            committed_metadata: string | None = v("0+", nullable="0+")

        name: string = v("0+")
        partitions: list[Partition] = v("0+")

    transactional_id: string = v("0+")
    group_id: string = v("0+")
    producer_id: int64 = v("0+")
    producer_epoch: int16 = v("0+")
    generation_id: int32 = v("3+", -1)
    member_id: string = v("3+")
    group_instance_id: string | None = v("3+", None, nullable="3+")
    topics: list[Topic] = v("0+")


class TxnOffsetCommitResponse(Message, key=28, versions="0-5", flexible="3+"):
    """What became of each."""

    class Topic(Struct):
        class Partition(Struct):
            partition_index: int32 = v("0+")
            error_code: int16 = v("0+")

        name: string = v("0+")
        partitions: list[Partition] = v("0+")

    throttle_time_ms: int32 = v("0+")
    topics: list[Topic] = v("0+")


class DescribeTransactionsRequest(Message, key=65, versions="0", flexible="0+"):
    """Asks where transactional ids stand (KIP-664)."""

    transactional_ids: list[string] = v("0+")


class DescribeTransactionsResponse(Message, key=65, versions="0", flexible="0+"):
    """Where they stand; while a transaction is being ended, only partitions whose marker is missing."""

    class TransactionState(Struct):
        class TopicData(Struct):
            topic: string = v("0+")
            partitions: list[int32] = v("0+")

        error_code: int16 = v("0+")
        transactional_id: string = v("0+")
        transaction_state: string = v("0+")
        transaction_timeout_ms: int32 = v("0+")
        transaction_start_time_ms: int64 = v("0+")
        producer_id: int64 = v("0+")
        producer_epoch: int16 = v("0+")
        topics: list[TopicData] = v("0+")

    throttle_time_ms: int32 = v("0+")
    transaction_states: list[TransactionState] = v("0+")


class ListTransactionsRequest(Message, key=66, versions="0-2", flexible="0+"):
    """Asks for the transactional ids of a broker (KIP-664); 1 by how long they run (KIP-994), 2 by pattern (KIP-1152)."""

    state_filters: list[string] = v("0+")
    producer_id_filters: list[int64] = v("0+")
    duration_filter: int64 = v("1+", -1)
    transactional_id_pattern: string | None = v("2+", None, nullable="2+")


class ListTransactionsResponse(Message, key=66, versions="0-2", flexible="0+"):
    """The ids, and the states that were asked for and do not exist."""

    class TransactionState(Struct):
        transactional_id: string = v("0+")
        producer_id: int64 = v("0+")
        transaction_state: string = v("0+")

    throttle_time_ms: int32 = v("0+")
    error_code: int16 = v("0+")
    unknown_state_filters: list[string] = v("0+")
    transaction_states: list[TransactionState] = v("0+")
