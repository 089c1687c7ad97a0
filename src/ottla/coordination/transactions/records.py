"""The records of `__transaction_state`, in Apache Kafka's own layouts, so that its tools and its brokers can read them.

A key begins with two bytes that say what it is about, and a value with two bytes for its version. There is one kind: where a
transactional id stands. A null value means that the id is forgotten.
"""

from ottla.coordination.records import Record
from ottla.wire.codec import Malformed, decode, encode
from ottla.wire.schema import Message, Struct, int8, int16, int32, int64, string, v


class TransactionLogKey(Message, key=0, versions="0"):
    """A transactional id."""

    transactional_id: string = v("0")


class TransactionLogValue(Message, key=0, versions="0-1", flexible="1+"):
    """Where a transactional id stands: its producer, and what its transaction has written to."""

    class PartitionsSchema(Struct):
        topic: string = v("0+")
        partition_ids: list[int32] = v("0+")

    producer_id: int64 = v("0+")
    previous_producer_id: int64 = v("1+", -1, tag=0)
    next_producer_id: int64 = v("1+", -1, tag=1)
    producer_epoch: int16 = v("0+")
    next_producer_epoch: int16 = v("1+", -1, tag=3)
    transaction_timeout_ms: int32 = v("0+")
    transaction_status: int8 = v("0+")
    transaction_partitions: list[PartitionsSchema] | None = v("0+", nullable="0+")
    transaction_last_update_timestamp_ms: int64 = v("0+")
    transaction_start_timestamp_ms: int64 = v("0+")
    client_transaction_version: int16 = v("1+", 0, tag=2)


KINDS: dict[int, tuple[type[Message], type[Message]]] = {
    TransactionLogKey.key: (TransactionLogKey, TransactionLogValue)
}


def pack(record: Record, version: int) -> tuple[bytes, bytes | None]:
    """Key and value as they stand in the topic; the value in this version."""
    key = TransactionLogKey.key.to_bytes(2, "big") + encode(record.key, 0)
    return key, None if record.value is None else version.to_bytes(2, "big") + encode(record.value, version)


def unpack(key: bytes | None, value: bytes | None) -> Record | None:
    """What stands in the topic, or None for a kind that nobody here knows. Malformed if it cannot be read.

    A version that nobody knows cannot be passed over: the id would be back where an older record left it.
    """
    if key is None or len(key) < 2:
        raise Malformed("a record of the transactions topic without a key")
    if int.from_bytes(key[:2], "big") not in KINDS:
        return None
    subject: Message = decode(TransactionLogKey, key, 0, 2)
    if value is None:
        return Record(subject, None)
    version = int.from_bytes(value[:2], "big", signed=True)
    if version not in TransactionLogValue.versions:
        raise Malformed(f"a transactional id in version {version}, which this release cannot read")
    return Record(subject, decode(TransactionLogValue, value, version, 2))
