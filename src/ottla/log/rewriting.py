"""A batch without some of its records, or with the time at which its tombstones may go.

Compaction looks at keys and passes over the rest, so records are not decoded here: an entry says where one lies, and what
stays is copied from there. Only timestamps are written anew, when the base they are relative to gives way to a delete horizon.
"""

from __future__ import annotations

from struct import Struct
from typing import NamedTuple

from crc32c import crc32c

from ottla.log.segment import ATTRIBUTES, BASE, BASE_TIME, COUNT, DELTA, EPOCH, LENGTH, MAX_TIME
from ottla.wire.compression import compress, inflate
from ottla.wire.errors import Error, KafkaError
from ottla.wire.records import (
    CODEC_BITS,
    CONTROL_BIT,
    DELETE_HORIZON_BIT,
    HEADER_BYTES,
    LOG_APPEND_TIME_BIT,
    MAGIC,
    PREFIX_BYTES,
    TRANSACTIONAL_BIT,
    varint,
)

Fields = tuple[int, ...]
NO_TIMESTAMP = -1
RECORD_BYTES_MIN = 7

_FRONT = Struct(">qiibI")
_REST = Struct(">hiqqqhii")
_new = tuple.__new__


class Entry(NamedTuple):
    """What compaction must know of a record, and where it lies among the records of its batch."""

    offset: int
    time_delta: int
    key: bytes | None
    is_tombstone: bool
    start: int
    end: int


def entries(fields: Fields, batch: memoryview, inflated_max: int) -> tuple[bytes, list[Entry]]:
    """The unpacked records of a batch, and where each lies in them. KafkaError if they are nonsense."""
    size, base, count = fields[LENGTH] + PREFIX_BYTES, fields[BASE], fields[COUNT]
    data = inflate(fields[ATTRIBUTES] & CODEC_BITS, batch[HEADER_BYTES:size], inflated_max) if count else b""
    found: list[Entry] = []
    at, whole = 0, len(data)
    if not 0 <= count * RECORD_BYTES_MIN <= whole:
        raise _nonsense(f"{whole} bytes cannot hold {count} records")
    try:
        for _ in range(count):
            start = at
            number, at = data[at], at + 1
            if number & 0x80:
                number, at = _wide(data, at)
            end = at + (number >> 1)
            number, at = data[at + 1], at + 2
            if number & 0x80:
                number, at = _wide(data, at)
            time_delta = (number >> 1) ^ -(number & 1)
            number, at = data[at], at + 1
            if number & 0x80:
                number, at = _wide(data, at)
            offset = base + ((number >> 1) ^ -(number & 1))
            number, at = data[at], at + 1
            if number & 0x80:
                number, at = _wide(data, at)
            key = None
            if not number & 1:  # odd numbers are below zero: null
                key = data[at : at + (number >> 1)]
                at += number >> 1
            number, at = data[at], at + 1
            if number & 0x80:
                number, at = _wide(data, at)
            if at + (0 if number & 1 else number >> 1) >= end or end > whole:
                raise _nonsense("a record does not end where its length says")
            found.append(_new(Entry, (offset, time_delta, key, bool(number & 1), start, end)))
            at = end
    except IndexError:
        raise _nonsense(f"the records end before the {count} that the batch states") from None
    if at != whole:
        raise _nonsense(f"{whole - at} bytes follow the last record")
    return data, found


def _wide(data: bytes, at: int) -> tuple[int, int]:
    """The whole of a varint of several bytes, of which the first has been read; and where it ends."""
    value, byte = data[at - 1] & 0x7F, data[at]
    if byte < 0x80:
        return value | byte << 7, at + 1
    for shift in range(7, 64, 7):
        byte, at = data[at], at + 1
        value |= (byte & 0x7F) << shift
        if byte < 0x80:
            return value, at
    raise _nonsense("a number has too many bytes")


def _nonsense(why: str) -> KafkaError:
    return KafkaError(Error.INVALID_RECORD, why)


def without(fields: Fields, data: bytes, kept: list[Entry]) -> tuple[bytes, int]:
    """The batch with only these records, and its largest timestamp."""
    records = b"".join([data[entry.start : entry.end] for entry in kept])
    return _rebuilt(fields, fields[ATTRIBUTES], fields[BASE_TIME], records, kept)


def with_horizon(fields: Fields, data: bytes, kept: list[Entry], horizon_ms: int) -> tuple[bytes, int]:
    """The same, with the time at which its tombstones may go in place of the base timestamp."""
    shift = fields[BASE_TIME] - horizon_ms
    records = b"".join([_shifted(data, entry, shift) for entry in kept])
    return _rebuilt(fields, fields[ATTRIBUTES] | DELETE_HORIZON_BIT, horizon_ms, records, kept)


def _shifted(data: bytes, entry: Entry, shift: int) -> bytes:
    """A record whose timestamp is relative to another base."""
    at = entry.start
    while data[at] & 0x80:  # its length
        at += 1
    attributes, at = data[at + 1 : at + 2], at + 2
    while data[at] & 0x80:  # its timestamp
        at += 1
    record = attributes + varint(entry.time_delta + shift) + data[at + 1 : entry.end]
    return varint(len(record)) + record


def _rebuilt(fields: Fields, attributes: int, base_time: int, records: bytes, kept: list[Entry]) -> tuple[bytes, int]:
    largest = fields[MAX_TIME]
    if not attributes & LOG_APPEND_TIME_BIT:
        largest = fields[BASE_TIME] + max(entry.time_delta for entry in kept)
    codec = attributes & CODEC_BITS
    packed = compress(codec, records, None) if codec else records
    return _assembled(fields, attributes, base_time, largest, len(kept), packed), largest


def emptied(fields: Fields) -> bytes:
    """The batch without any record: what is left are its offsets and its producer's numbers."""
    attributes = fields[ATTRIBUTES] & (LOG_APPEND_TIME_BIT | TRANSACTIONAL_BIT | CONTROL_BIT)
    return _assembled(fields, attributes, NO_TIMESTAMP, fields[MAX_TIME], 0, b"")


def _assembled(fields: Fields, attributes: int, base_time: int, max_time: int, count: int, packed: bytes) -> bytes:
    producer = fields[MAX_TIME + 1 : COUNT]
    rest = _REST.pack(attributes, fields[DELTA], base_time, max_time, *producer, count)
    length = HEADER_BYTES - PREFIX_BYTES + len(packed)
    front = _FRONT.pack(fields[BASE], length, fields[EPOCH], MAGIC, crc32c(packed, crc32c(rest)))
    return front + rest + packed
