"""What a client's batch must look like before it enters a log.

Apache Kafka walks every record of every batch; we look at the header and walk records only where the topic's settings force
it: a compacted topic needs keys, a codec of the topic's own means recompression, and timestamp bounds may be undecidable from
the header's base and largest timestamp. `prepare` is a plain function of bytes and settings, so that a large batch can be
prepared in another process (`needs_work` says when that is worth it) while small ones are done in place.
"""

from __future__ import annotations

from struct import Struct
from typing import Any

from crc32c import crc32c

from ottla.log.settings import LONG_MAX, LogSettings
from ottla.wire.compression import Codec
from ottla.wire.errors import Error, KafkaError
from ottla.wire.records import (
    CONTROL_BIT,
    CRC_FROM,
    HEADER,
    HEADER_BYTES,
    LOG_APPEND_TIME_BIT,
    MAGIC,
    Batch,
    iterate,
    recompress,
    set_log_append_time,
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
# Preparing more than this in place would hold up everybody else on the loop.
INLINE_BYTES_MAX = 16 << 10
ERRORS_SHOWN = 3

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


def needs_work(data: Bytes, settings: LogSettings, now_ms: int) -> bool:
    """Whether preparing this batch would take long enough to do it elsewhere."""
    if len(data) < INLINE_BYTES_MAX:
        return False
    head = Batch._make(HEADER.unpack_from(data))
    return target_codec(head, settings) != head.codec or must_walk(head, settings, now_ms)


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
        numbers = (number for number, _ in enumerate(iterate(data, inflated_max=settings.inflated_max)))
        raise RecordsRefused(Error.INVALID_TIMESTAMP, why, [(number, why) for number in numbers])
    codec = target_codec(head, settings)
    if codec != head.codec or must_walk(head, settings, now_ms):
        try:
            check_records(data, settings, now_ms)
        except KafkaError as error:
            if error.error is Error.CORRUPT_MESSAGE:
                # It was not damaged on its way, its CRC is right: sending it again would not help.
                raise KafkaError(Error.UNKNOWN_SERVER_ERROR, f"unreadable records: {error.message}") from error
            raise
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
    return batch


def target_codec(head: Batch, settings: LogSettings) -> int:
    return head.codec if settings.compression_type == "producer" else CODECS[settings.compression_type]


def level_of(codec: int, settings: LogSettings) -> int | None:
    levels = {
        Codec.GZIP: settings.compression_gzip_level,
        Codec.LZ4: settings.compression_lz4_level,
        Codec.ZSTD: settings.compression_zstd_level,
    }
    return {int(known): level for known, level in levels.items()}.get(int(codec))


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


def check_records(data: Bytes, settings: LogSettings, now_ms: int) -> None:
    timestamps: list[tuple[int, str]] = []
    others: list[tuple[int, str]] = []
    low, high = now_ms - settings.message_timestamp_before_max_ms, now_ms + settings.message_timestamp_after_max_ms
    bounded = not settings.stamps_append_time
    for number, record in enumerate(iterate(data, inflated_max=settings.inflated_max)):
        if settings.compacts and record.key is None:
            others.append((number, "Compacted topic cannot accept message without key"))
        elif bounded and record.timestamp != -1 and not low <= record.timestamp <= high:
            timestamps.append(
                (number, f"Timestamp {record.timestamp} of message with offset {record.offset} is out of range")
            )
        elif record.offset != number:
            others.append((number, f"record {number} has offset {record.offset}"))
    if timestamps:
        text = "One or more records have been rejected due to invalid timestamp"
        raise RecordsRefused(Error.INVALID_TIMESTAMP, text, sorted(timestamps + others))
    if others:
        shown = "; ".join(why for _, why in others[:ERRORS_SHOWN])
        text = f"One or more records have been rejected due to {len(others)} record errors in total: {shown}"
        raise RecordsRefused(Error.INVALID_RECORD, text, others)


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
