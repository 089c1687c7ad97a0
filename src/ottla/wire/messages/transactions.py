"""Producer ids and transactions."""

from ottla.wire.schema import Message, Struct, boolean, int16, int32, int64, string, v


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
