"""Producer ids and transactions."""

from ottla.wire.schema import Message, boolean, int16, int32, int64, string, v


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
