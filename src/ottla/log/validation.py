"""What a client's batch must look like before it enters a log.

Apache Kafka walks every record of every batch; we look at the header and walk records only where the topic's settings force
it: a compacted topic needs keys, a codec of the topic's own means recompression, and timestamp bounds may be undecidable from
the header's base and largest timestamp. Some clients leave the largest one out (sarama before 1.45.1): then it is found and
written in, because retention, expiry and whoever asks for a time go by it. `prepare` is a plain function of bytes and
settings, so that a large batch can be prepared in another process (`bytes_to_walk` says what it comes to) while small ones are
done in place.
"""

from __future__ import annotations

from struct import Struct
from typing import Any

from crc32c import crc32c

from ottla.log.settings import LONG_MAX, LogSettings
from ottla.wire.compression import Codec, inflate
from ottla.wire.errors import Error, KafkaError
from ottla.wire.records import (
    CONTROL_BIT,
    CRC_FROM,
    HEADER,
    HEADER_BYTES,
    LOG_APPEND_TIME_BIT,
    MAGIC,
    NO_TIMESTAMP,
    Batch,
    iterate,
    largest_timestamp,
    recompress,
    set_log_append_time,
    set_max_timestamp,
)
from ottla.world import Bytes

CODECS = {
    "uncompressed": Codec.NONE,
    "none": Codec.NONE,
    "gzip": Codec.GZIP,
    "snappy": Codec.SNAPPY,
    "lz4": Codec.LZ4,
    "zstd": Codec.ZSTD,
}
# Preparing more unpacked bytes than this in place would hold up everybody else on the loop.
INLINE_BYTES_MAX = 16 << 10
ERRORS_SHOWN = 3
# A batch may hold millions of records: of those that are to blame the first are told one by one, the others only counted.
ERRORS_TOLD_MAX = 1000

_crc_and_attributes = Struct(">Ih")
_CRC_AT = 17


class RecordsRefused(KafkaError):
    """Single records are to blame: (index in the batch, why), for the Produce response."""

    record_errors: list[tuple[int, str]]

    def __init__(self, error: Error, message: str, record_errors: list[tuple[int, str]]) -> None:
        super().__init__(error, message)
        self.record_errors = record_errors

    def __reduce__(self) -> tuple[Any, ...]:
        return RecordsRefused, (self.error, self.message, self.record_errors)


def check_header(data: Bytes, settings: LogSettings) -> Batch:
    """Refuse what no topic accepts from a client, in the order in which Kafka finds it."""
    if len(data) < HEADER_BYTES:
        raise KafkaError(Error.CORRUPT_MESSAGE, f"{len(data)} bytes are no record batch")
    head = Batch._make(HEADER.unpack_from(data))
    if head.magic != MAGIC:
        raise KafkaError(Error.INVALID_RECORD, f"record format {head.magic} is not accepted")
    if head.size != len(data):
        why = "more than one batch" if HEADER_BYTES <= head.size < len(data) else "a batch of the wrong length"
        raise KafkaError(Error.INVALID_RECORD if why.startswith("more") else Error.CORRUPT_MESSAGE, why)
    if head.base_offset != 0:
        raise invalid(f"the base offset of a batch must be 0, but it is {head.base_offset}")
    if head.size > settings.max_message_bytes:
        raise too_large(head.size, settings.max_message_bytes)
    if crc32c(memoryview(data)[CRC_FROM:]) != head.crc:
        raise KafkaError(Error.CORRUPT_MESSAGE, f"record batch is corrupt (stored crc = {head.crc})")
    if head.count <= 0 or head.count != head.last_offset_delta + 1:
        raise invalid(f"{head.count} records do not fit an offset range of {head.last_offset_delta + 1}")
    if head.attributes & CONTROL_BIT:
        raise invalid("clients are not allowed to write control records")
    if head.producer_id >= 0 and head.base_sequence < 0:
        raise invalid(f"sequence {head.base_sequence} in a batch with a producer id")
    if head.codec > Codec.ZSTD:
        raise KafkaError(Error.UNKNOWN_SERVER_ERROR, f"unknown codec {head.codec}")
    return head


def bytes_to_walk(data: Bytes, settings: LogSettings, now_ms: int) -> int:
    """How much has to be looked at before this batch may enter, unpacked; 0 where the header is enough. What is more than may
    be done in place is not counted to its end, and neither is what cannot be unpacked."""
    if len(data) < HEADER_BYTES:
        return 0
    head = Batch._make(HEADER.unpack_from(data))
    if head.codec == target_codec(head, settings) and not (
        must_walk(head, settings, now_ms) or lacks_largest_timestamp(head, settings)
    ):
        return 0
    if head.codec == Codec.NONE or len(data) > INLINE_BYTES_MAX:
        return len(data)
    try:
        return len(inflate(head.codec, memoryview(data)[HEADER_BYTES:], INLINE_BYTES_MAX))
    except KafkaError:
        return INLINE_BYTES_MAX + 1


def prepare(data: Bytes, settings: LogSettings, now_ms: int) -> bytearray:
    """The batch as this topic stores it, but for offset and epoch; RecordsRefused (which survives the way from another
    process) if the topic does not accept it."""
    try:
        return _prepared(data, settings, now_ms)
    except RecordsRefused:
        raise
    except KafkaError as error:
        raise RecordsRefused(error.error, error.message, []) from None


def _prepared(data: Bytes, settings: LogSettings, now_ms: int) -> bytearray:
    head = check_header(data, settings)
    if settings.stamps_append_time and head.attributes & LOG_APPEND_TIME_BIT:
        why = "Invalid timestamp type LogAppendTime"
        told = min(head.count, ERRORS_TOLD_MAX)
        raise RecordsRefused(Error.INVALID_TIMESTAMP, why, [(number, why) for number in range(told)])
    codec = target_codec(head, settings)
    largest = _largest_if_good(data, head, codec, settings, now_ms)
    if codec == head.codec:
        batch = bytearray(data)
    else:
        batch = recompress(data, codec, level=level_of(codec, settings), inflated_max=settings.inflated_max)
        if len(batch) > settings.max_message_bytes:
            raise too_large(len(batch), settings.max_message_bytes)
    if settings.stamps_append_time:
        set_log_append_time(batch, now_ms)
    elif head.attributes & LOG_APPEND_TIME_BIT:
        clear_log_append_time(batch)
    if largest != head.max_timestamp and not settings.stamps_append_time:
        set_max_timestamp(batch, largest)
    return batch


def _largest_if_good(data: Bytes, head: Batch, codec: int, settings: LogSettings, now_ms: int) -> int:
    """The largest timestamp. Looks at the records if it has to, and refuses those that the topic does not accept."""
    try:
        if lacks_largest_timestamp(head, settings):
            head = head._replace(max_timestamp=largest_timestamp(data, inflated_max=settings.inflated_max))
        if codec != head.codec or must_walk(head, settings, now_ms):
            return check_records(data, settings, now_ms)
        return head.max_timestamp
    except KafkaError as error:
        if error.error is Error.CORRUPT_MESSAGE:
            # It was not damaged on its way, its CRC is right: sending it again would not help.
            raise KafkaError(Error.UNKNOWN_SERVER_ERROR, f"unreadable records: {error.message}") from error
        raise


def target_codec(head: Batch, settings: LogSettings) -> int:
    return head.codec if settings.compression_type == "producer" else CODECS[settings.compression_type]


def level_of(codec: int, settings: LogSettings) -> int | None:
    levels = {
        Codec.GZIP: settings.compression_gzip_level,
        Codec.LZ4: settings.compression_lz4_level,
        Codec.ZSTD: settings.compression_zstd_level,
    }
    return {int(known): level for known, level in levels.items()}.get(int(codec))


def lacks_largest_timestamp(head: Batch, settings: LogSettings) -> bool:
    return head.max_timestamp < head.base_timestamp and not settings.stamps_append_time


def must_walk(head: Batch, settings: LogSettings, now_ms: int) -> bool:
    """Whether only the records themselves can tell if the topic accepts them."""
    if settings.compacts:
        return True
    if settings.stamps_append_time:
        return False
    if head.max_timestamp - now_ms > settings.message_timestamp_after_max_ms:
        return True
    before = settings.message_timestamp_before_max_ms
    if before == LONG_MAX:
        return False
    # The first record's timestamp says nothing of the others, which may lie before it.
    return head.count > 1 or now_ms - head.base_timestamp > before


def check_records(data: Bytes, settings: LogSettings, now_ms: int) -> int:
    """Look at each; the largest timestamp among them, whatever the header says."""
    largest = NO_TIMESTAMP
    timestamps, others = Faults(), Faults()
    low, high = now_ms - settings.message_timestamp_before_max_ms, now_ms + settings.message_timestamp_after_max_ms
    bounded = not settings.stamps_append_time
    for number, record in enumerate(iterate(data, inflated_max=settings.inflated_max)):
        largest = max(largest, record.timestamp)
        if settings.compacts and record.key is None:
            others.add(number, "Compacted topic cannot accept message without key")
        elif bounded and record.timestamp != -1 and not low <= record.timestamp <= high:
            timestamps.add(
                number, f"Timestamp {record.timestamp} of message with offset {record.offset} is out of range"
            )
        elif record.offset != number:
            others.add(number, f"record {number} has offset {record.offset}")
    if timestamps.count:
        text = "One or more records have been rejected due to invalid timestamp"
        raise RecordsRefused(Error.INVALID_TIMESTAMP, text, sorted(timestamps.told + others.told))
    if others.count:
        shown = "; ".join(why for _, why in others.told[:ERRORS_SHOWN])
        text = f"One or more records have been rejected due to {others.count} record errors in total: {shown}"
        raise RecordsRefused(Error.INVALID_RECORD, text, others.told)
    return largest


class Faults:
    """Records that are to blame: how many, and the first of them."""

    def __init__(self) -> None:
        self.count = 0
        self.told: list[tuple[int, str]] = []

    def add(self, number: int, why: str) -> None:
        self.count += 1
        if self.count <= ERRORS_TOLD_MAX:
            self.told.append((number, why))


def clear_log_append_time(batch: bytearray) -> None:
    """A producer may not choose the type: on a topic with CreateTime the bit goes, and the CRC follows."""
    _, attributes = _crc_and_attributes.unpack_from(batch, _CRC_AT)
    _crc_and_attributes.pack_into(batch, _CRC_AT, 0, attributes & ~LOG_APPEND_TIME_BIT)
    crc = crc32c(memoryview(batch)[CRC_FROM:])
    _crc_and_attributes.pack_into(batch, _CRC_AT, crc, attributes & ~LOG_APPEND_TIME_BIT)


def invalid(why: str) -> KafkaError:
    return KafkaError(Error.INVALID_RECORD, why)


def too_large(size: int, limit: int) -> KafkaError:
    return KafkaError(Error.MESSAGE_TOO_LARGE, f"a batch of {size} bytes exceeds max.message.bytes of {limit}")
