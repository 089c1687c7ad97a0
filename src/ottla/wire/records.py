"""Record batches, format 2: look at one, check it, walk its records, build one.

A batch is what a producer packs, what lies on disk and what a consumer gets: the same bytes all the way. It begins with
a header of 61 bytes, in this order (all big-endian; `HEADER` unpacks it in one call):

    base_offset        int64    offset of the first record; the leader writes it             outside the CRC
    length             int32    bytes that follow this field                                 outside the CRC
    leader_epoch       int32    epoch of the leader that appended it; the leader writes it   outside the CRC
    magic              int8     2
    crc                uint32   CRC-32C of everything from `attributes` to the end
    attributes         int16    bits 0-2 codec, 3 timestamps set by the log, 4 transactional, 5 control,
                                6 base_timestamp is the delete horizon
    last_offset_delta  int32    offset of the last record ever in it, less base_offset
    base_timestamp     int64    what the records' timestamps are relative to
    max_timestamp      int64
    producer_id        int64    -1 without idempotence
    producer_epoch     int16
    base_sequence      int32
    count              int32    records in it (fewer than last_offset_delta + 1 after compaction)

Offset and epoch lie outside the CRC, so a leader stamps them in place and the rest stays the producer's own bytes.

The records follow, packed by the codec as one stream. Each is a length and then attributes (always 0), timestamp delta,
offset delta, key, value, headers; numbers are zigzag varints, and a length below zero means null.

A broker looks at headers and never at records, except where a topic's settings force it. So a log may hold batches
whose CRC is right and whose records are nonsense: whoever walks records gets KafkaError (CORRUPT_MESSAGE or
INVALID_RECORD), never anything else, and never takes more memory than the ceiling allows.

Control batches carry notes of the cluster to itself: ends of transactions, and in the metadata log the leader, the
voters and the frame of a snapshot. The key of such a record says what it is.
"""

from __future__ import annotations

import struct
from collections import deque
from collections.abc import Iterable, Iterator
from enum import IntEnum
from typing import NamedTuple

from crc32c import crc32c

from ottla.wire.compression import Codec, compress, inflate
from ottla.wire.errors import Error, KafkaError

Bytes = bytes | bytearray | memoryview
Headers = tuple[tuple[str, bytes | None], ...]

MAGIC = 2
HEADER = struct.Struct(">qiibIhiqqqhii")
HEADER_BYTES = HEADER.size
# Base offset and length stand before what `length` counts.
PREFIX_BYTES = 12
# The CRC covers everything from here.
CRC_FROM = 21
# No batch is unpacked to more than this, whatever the caller would allow.
INFLATED_BYTES_MAX = 100 << 20
# A header takes two bytes on the wire and thirty times that in memory.
HEADERS_MAX = 1 << 16

CODEC_BITS = 0x07
LOG_APPEND_TIME_BIT = 0x08
TRANSACTIONAL_BIT = 0x10
CONTROL_BIT = 0x20
DELETE_HORIZON_BIT = 0x40

CREATE_TIME = 0
LOG_APPEND_TIME = 1
NO_TIMESTAMP = -1
NO_PRODUCER_ID = -1
SEQUENCE_MODULUS = 1 << 31
# Epochs of producers have 16 bits, and do not wrap.
PRODUCER_EPOCH_MAX = 2**15 - 1

_RECORD_BYTES_MIN = 7
_LENGTH_MIN = HEADER_BYTES - PREFIX_BYTES
_FRONT = struct.Struct(">qiibI")
_REST = struct.Struct(">hiqqqhii")
_BASE_OFFSET = struct.Struct(">q")
_LEADER_EPOCH = struct.Struct(">i")
_LEADER_EPOCH_AT = 12
_CRC = struct.Struct(">I")
_CRC_AT = 17
_ATTRIBUTES = struct.Struct(">h")
_MAX_TIMESTAMP = struct.Struct(">q")
_MAX_TIMESTAMP_AT = 35
_PRODUCER = struct.Struct(">qhi")
_PRODUCER_AT = 43
_INT64_MAX = (1 << 63) - 1
_new = tuple.__new__


class Record(NamedTuple):
    """One record. `offset` -1 asks `build` for the offset that follows the record before it.

    Header keys are text; bytes in them that are not UTF-8 come out as lone surrogates and go back in unchanged.
    """

    offset: int = -1
    timestamp: int = NO_TIMESTAMP
    key: bytes | None = None
    value: bytes | None = None
    headers: Headers = ()


class Batch(NamedTuple):
    """A batch's header, field by field in the order of the wire."""

    base_offset: int
    length: int
    leader_epoch: int
    magic: int
    crc: int
    attributes: int
    last_offset_delta: int
    base_timestamp: int
    max_timestamp: int
    producer_id: int
    producer_epoch: int
    base_sequence: int
    count: int  # type: ignore[assignment]  # hides tuple.count, which nobody asks of a header

    @property
    def size(self) -> int:
        """Bytes of the whole batch."""
        return self.length + PREFIX_BYTES

    @property
    def last_offset(self) -> int:
        return self.base_offset + self.last_offset_delta

    @property
    def next_offset(self) -> int:
        return self.base_offset + self.last_offset_delta + 1

    @property
    def last_sequence(self) -> int:
        """Sequences go on from 0 after 2^31 - 1."""
        if self.base_sequence < 0:
            return self.base_sequence
        return (self.base_sequence + self.last_offset_delta) % SEQUENCE_MODULUS

    @property
    def codec(self) -> int:
        return self.attributes & CODEC_BITS

    @property
    def timestamp_type(self) -> int:
        return LOG_APPEND_TIME if self.attributes & LOG_APPEND_TIME_BIT else CREATE_TIME

    @property
    def is_transactional(self) -> bool:
        return self.attributes & TRANSACTIONAL_BIT != 0

    @property
    def is_control(self) -> bool:
        return self.attributes & CONTROL_BIT != 0


def look(data: Bytes, position: int = 0) -> Batch:
    """The header of the batch at `position`, which must be there as a whole. Neither CRC nor records are looked at."""
    try:
        fields = HEADER.unpack_from(data, position)
    except struct.error:
        raise _corrupt(f"{len(data) - position} bytes are no batch")
    if fields[3] != MAGIC or not _LENGTH_MIN <= fields[1] <= len(data) - position - PREFIX_BYTES:
        _refuse(fields[3], fields[1])
    return _new(Batch, fields)


def look_ahead(header: Bytes, position: int = 0) -> Batch:
    """The same when only the header's 61 bytes are at hand, as when one walks a file."""
    try:
        fields = HEADER.unpack_from(header, position)
    except struct.error:
        raise _corrupt(f"{len(header) - position} bytes are no batch")
    if fields[3] != MAGIC or fields[1] < _LENGTH_MIN:
        _refuse(fields[3], fields[1])
    return _new(Batch, fields)


def batches(data: Bytes) -> Iterator[tuple[int, Batch]]:
    """Position and header of each whole batch; what a size limit cut off at the end is left out."""
    position, end = 0, len(data)
    while end - position >= HEADER_BYTES:
        batch = look_ahead(data, position)
        if batch.size > end - position:
            return
        yield position, batch
        position += batch.size


def crc_ok(data: Bytes, position: int, size: int) -> bool:
    """Whether the batch of `size` bytes at `position` is the one whose CRC its header carries."""
    view = memoryview(data)
    expected: int = _CRC.unpack_from(data, position + _CRC_AT)[0]
    return crc32c(view[position + CRC_FROM : position + size]) == expected


def stamp(batch: bytearray | memoryview, base_offset: int, leader_epoch: int, position: int = 0) -> None:
    """Write what the leader decides, in place; the CRC stays true."""
    _BASE_OFFSET.pack_into(batch, position, base_offset)
    _LEADER_EPOCH.pack_into(batch, position + _LEADER_EPOCH_AT, leader_epoch)


def set_log_append_time(batch: bytearray | memoryview, now_ms: int) -> None:
    """All records get the time of the append: a bit and the largest timestamp, both inside the CRC."""
    attributes: int = _ATTRIBUTES.unpack_from(batch, CRC_FROM)[0]
    _ATTRIBUTES.pack_into(batch, CRC_FROM, attributes | LOG_APPEND_TIME_BIT)
    _MAX_TIMESTAMP.pack_into(batch, _MAX_TIMESTAMP_AT, now_ms)
    _CRC.pack_into(batch, _CRC_AT, crc32c(memoryview(batch)[CRC_FROM:]))


def set_max_timestamp(batch: bytearray, largest: int) -> None:
    """Say what the producer should have said, inside the CRC."""
    _MAX_TIMESTAMP.pack_into(batch, _MAX_TIMESTAMP_AT, largest)
    _CRC.pack_into(batch, _CRC_AT, crc32c(memoryview(batch)[CRC_FROM:]))


def set_producer(
    batch: bytearray | memoryview, producer_id: int, producer_epoch: int, base_sequence: int, transactional: bool
) -> None:
    """Say who writes this batch, which somebody else has built: names, numbers and one bit, all inside the CRC."""
    attributes: int = _ATTRIBUTES.unpack_from(batch, CRC_FROM)[0] & ~TRANSACTIONAL_BIT
    _ATTRIBUTES.pack_into(batch, CRC_FROM, attributes | (TRANSACTIONAL_BIT if transactional else 0))
    _PRODUCER.pack_into(batch, _PRODUCER_AT, producer_id, producer_epoch, base_sequence)
    _CRC.pack_into(batch, _CRC_AT, crc32c(memoryview(batch)[CRC_FROM:]))


def frame(packed: Bytes, codec: int, base_timestamp: int, max_timestamp: int, count: int) -> bytearray:
    """A batch of `count` records that are packed already, their offsets from 0 on; nobody's, until `set_producer`."""
    rest = _REST.pack(codec, count - 1, base_timestamp, max_timestamp, NO_PRODUCER_ID, -1, -1, count)
    return bytearray(_assemble(0, -1, rest, packed))


def iterate(batch: Bytes, *, inflated_max: int = INFLATED_BYTES_MAX) -> Iterator[Record]:
    """The records of the batch at the start of `batch`, unpacked when the first is asked for. No CRC is checked."""
    head = look(batch)
    return _walk(head, memoryview(batch)[HEADER_BYTES : head.size], min(inflated_max, INFLATED_BYTES_MAX))


def largest_timestamp(batch: Bytes, *, inflated_max: int = INFLATED_BYTES_MAX) -> int:
    """Of the records, whatever the header says, without a look at anything else in them."""
    head = look(batch)
    data = inflate(head.codec, memoryview(batch)[HEADER_BYTES : head.size], min(inflated_max, INFLATED_BYTES_MAX))
    position, latest = 0, -_INT64_MAX
    try:
        for _ in range(head.count):
            length, position = _number(data, position)
            number = data[position + 1]  # behind the attributes
            if number & 0x80:
                number, _ = _wide(data, position + 2, 10)
            if (delta := (number >> 1) ^ -(number & 1)) > latest:
                latest = delta
            if length < _RECORD_BYTES_MIN - 1:
                raise _invalid(f"a record cannot have a length of {length}")
            position += length
    except IndexError:
        raise _invalid(f"the records end before the {head.count} that the batch states")
    if head.base_timestamp + latest > _INT64_MAX:
        raise _invalid("a timestamp out of range")
    return max(head.base_timestamp + latest, NO_TIMESTAMP)


def recompress(
    batch: Bytes, codec: int, *, level: int | None = None, inflated_max: int = INFLATED_BYTES_MAX
) -> bytearray:
    """The same records packed by another codec. A batch whose records are nonsense is refused."""
    head = look(batch)
    data = inflate(head.codec, memoryview(batch)[HEADER_BYTES : head.size], min(inflated_max, INFLATED_BYTES_MAX))
    deque(_parse(head, data), maxlen=0)
    packed = compress(codec, data, level)
    rest = _REST.pack(head.attributes & ~CODEC_BITS | codec, *head[6:])
    return bytearray(_assemble(head.base_offset, head.leader_epoch, rest, packed))


def _corrupt(why: str) -> KafkaError:
    return KafkaError(Error.CORRUPT_MESSAGE, why)


def _invalid(why: str) -> KafkaError:
    return KafkaError(Error.INVALID_RECORD, why)


def _refuse(magic: int, length: int) -> None:
    if magic in (0, 1):
        raise _invalid(f"record format {magic} is no longer read, only {MAGIC}")
    if magic != MAGIC:
        raise _corrupt(f"there is no record format {magic}")
    raise _corrupt(f"a batch cannot have a length of {length} here")


def _walk(head: Batch, packed: memoryview, inflated_max: int) -> Iterator[Record]:
    yield from _parse(head, inflate(head.codec, packed, inflated_max))


def _parse(head: Batch, data: bytes) -> Iterator[Record]:
    """One loop with everything in it: a call per number would cost more than the rest."""
    count, base_offset, base_timestamp = head.count, head.base_offset, head.base_timestamp
    append_time = head.max_timestamp if head.attributes & LOG_APPEND_TIME_BIT else None
    position, size = 0, len(data)
    if not 0 <= count * _RECORD_BYTES_MIN <= size:
        raise _invalid(f"{size} bytes cannot hold {count} records")
    try:
        for _ in range(count):
            number, position = data[position], position + 1
            if number & 0x80:
                number, position = _wide(data, position)
            end = position + ((number >> 1) ^ -(number & 1))
            number, position = data[position + 1], position + 2  # attributes, of which none is in use, come first
            if number & 0x80:
                number, position = _wide(data, position, 10)
            timestamp = base_timestamp + ((number >> 1) ^ -(number & 1))
            if not -_INT64_MAX <= timestamp <= _INT64_MAX:
                raise _invalid("a timestamp out of range")
            number, position = data[position], position + 1
            if number & 0x80:
                number, position = _wide(data, position)
            offset = base_offset + ((number >> 1) ^ -(number & 1))
            number, position = data[position], position + 1
            if number & 0x80:
                number, position = _wide(data, position)
            key = None
            if not number & 1:  # odd numbers are below zero: null
                start, position = position, position + (number >> 1)
                key = data[start:position]
            number, position = data[position], position + 1
            if number & 0x80:
                number, position = _wide(data, position)
            value = None
            if not number & 1:
                start, position = position, position + (number >> 1)
                value = data[start:position]
            number, position = data[position], position + 1
            headers: Headers = ()
            if number:
                headers, position = _headers(data, position - 1, end)
            if position != end or end > size:
                raise _invalid("a record does not end where its length says")
            if append_time is not None:
                timestamp = append_time
            yield _new(Record, (offset, timestamp, key, value, headers))
    except IndexError:
        raise _invalid(f"the records end before the {count} that the batch states")
    if position != size:
        raise _invalid(f"{size - position} bytes follow the last record")


def _headers(data: bytes, position: int, end: int) -> tuple[Headers, int]:
    count, position = _number(data, position)
    if not 0 <= count <= min(HEADERS_MAX, (end - position) // 2):
        raise _invalid(f"a record cannot have {count} headers")
    headers: list[tuple[str, bytes | None]] = []
    for _ in range(count):
        size, start = _number(data, position)
        if not 0 <= size <= end - start:
            raise _invalid(f"a header's name cannot have {size} bytes")
        name = data[start : start + size].decode("utf-8", "surrogateescape")
        size, position = _number(data, start + size)
        value = None
        if size >= 0:
            value, position = data[position : position + size], position + size
        headers.append((name, value))
    return tuple(headers), position


def _number(data: bytes, position: int) -> tuple[int, int]:
    number, position = data[position], position + 1
    if number & 0x80:
        number, position = _wide(data, position)
    return (number >> 1) ^ -(number & 1), position


def _wide(data: bytes, position: int, bytes_max: int = 5) -> tuple[int, int]:
    """The whole of a varint of several bytes, of which the first has been read; and where it ends."""
    value, byte = data[position - 1] & 0x7F, data[position]
    if byte < 0x80:
        return value | byte << 7, position + 1
    for shift in range(7, 7 * bytes_max, 7):
        byte, position = data[position], position + 1
        value |= (byte & 0x7F) << shift
        if byte < 0x80:
            return value & (0xFFFFFFFF if bytes_max == 5 else 0xFFFFFFFFFFFFFFFF), position
    raise _invalid("a number has too many bytes")


def varint(number: int) -> bytes:
    """Zigzag, seven bits at a time, the lowest first."""
    rest = (number << 1) ^ (number >> 63)
    out = bytearray()
    while rest > 0x7F:
        out.append(rest & 0x7F | 0x80)
        rest >>= 7
    out.append(rest)
    return bytes(out)


# Nearly every number in a record is one of these.
_SMALL = tuple(varint(number) for number in range(2048))
_NULL = varint(-1)


def _short(number: int) -> bytes:
    return _SMALL[number] if 0 <= number < 2048 else varint(number)


def _sized(data: Bytes | None) -> tuple[bytes, Bytes]:
    return (_NULL, b"") if data is None else (_short(len(data)), data)


def build(
    records: Iterable[Record],
    *,
    codec: int = Codec.NONE,
    level: int | None = None,
    base_offset: int = 0,
    leader_epoch: int = -1,
    producer_id: int = NO_PRODUCER_ID,
    producer_epoch: int = -1,
    base_sequence: int = -1,
    transactional: bool = False,
    control: bool = False,
    timestamp_type: int = CREATE_TIME,
) -> bytes:
    """A batch of these records; it may be empty. Offsets are kept, and may have gaps."""
    parts, count, last_delta, base_timestamp, max_timestamp = _pack_records(records, base_offset)
    attributes = (
        codec
        | (LOG_APPEND_TIME_BIT if timestamp_type == LOG_APPEND_TIME else 0)
        | (TRANSACTIONAL_BIT if transactional else 0)
        | (CONTROL_BIT if control else 0)
    )
    packed = b"".join(parts)
    if codec:
        packed = compress(codec, packed, level)
    producer = (producer_id, producer_epoch, base_sequence)
    rest = _REST.pack(attributes, last_delta, base_timestamp, max_timestamp, *producer, count)
    return _assemble(base_offset, leader_epoch, rest, packed)


def _assemble(base_offset: int, leader_epoch: int, rest: bytes, packed: Bytes) -> bytes:
    crc = crc32c(packed, crc32c(rest))
    front = _FRONT.pack(base_offset, _LENGTH_MIN + len(packed), leader_epoch, MAGIC, crc)
    return b"".join((front, rest, packed))


def _pack_records(records: Iterable[Record], base_offset: int) -> tuple[list[Bytes], int, int, int, int]:
    """The records' bytes, how many, the last offset delta, the first timestamp and the largest."""
    parts: list[Bytes] = []
    count, delta, base_timestamp, max_timestamp = 0, -1, NO_TIMESTAMP, NO_TIMESTAMP
    for offset, timestamp, key, value, headers in records:
        delta = offset - base_offset if offset >= 0 else delta + 1
        if count == 0:
            base_timestamp = timestamp
        if timestamp > max_timestamp:
            max_timestamp = timestamp
        count += 1
        since = _short(timestamp - base_timestamp)
        key_size, key_bytes = _sized(key)
        value_size, value_bytes = _sized(value)
        record = b"".join(
            (b"\0", since, _short(delta), key_size, key_bytes, value_size, value_bytes, _pack_headers(headers))
        )
        parts.append(_short(len(record)))
        parts.append(record)
    return parts, count, max(delta, 0), base_timestamp, max_timestamp


def _pack_headers(headers: Headers) -> bytes:
    if not headers:
        return b"\0"
    parts: list[Bytes] = [_short(len(headers))]
    for name, value in headers:
        parts += (*_sized(name.encode("utf-8", "surrogateescape")), *_sized(value))
    return b"".join(parts)


class ControlType(IntEnum):
    """What the key of a control record says it is."""

    ABORT = 0
    COMMIT = 1
    LEADER_CHANGE = 2
    SNAPSHOT_HEADER = 3
    SNAPSHOT_FOOTER = 4
    KRAFT_VERSION = 5
    KRAFT_VOTERS = 6


_CONTROL_KEY = struct.Struct(">hh")
_END_MARKER = struct.Struct(">hi")
# What follows the CRC in a batch with one end of a transaction: its header, and a record of 16 bytes (key 4, value 6).
_MARKER = struct.Struct(">hiqqqhii5shhBhiB")
_MARKER_KEY = b"\x20\x00\x00\x00\x08"
_MARKER_LENGTH = _MARKER.size + CRC_FROM - PREFIX_BYTES


def control_key(kind: ControlType) -> bytes:
    return _CONTROL_KEY.pack(0, kind)


def control_type(key: bytes | None) -> int:
    """The number of the kind; those that do not exist yet are passed on, for the caller to skip."""
    if key is None or len(key) < _CONTROL_KEY.size:
        raise _invalid("the key of a control record has no type")
    version, kind = _CONTROL_KEY.unpack_from(key)
    if version < 0:
        raise _invalid(f"the key of a control record cannot have version {version}")
    return int(kind)


def marker_epoch(value: bytes | None) -> int:
    """Epoch of the coordinator that ended the transaction."""
    if value is None or len(value) < _END_MARKER.size:
        raise _invalid("the end of a transaction has no coordinator epoch")
    version, epoch = _END_MARKER.unpack_from(value)
    if version < 0:
        raise _invalid(f"the end of a transaction cannot have version {version}")
    return int(epoch)


def build_control(
    notes: Iterable[tuple[ControlType, bytes]],
    now_ms: int,
    *,
    base_offset: int = 0,
    leader_epoch: int = -1,
) -> bytes:
    """A control batch of (type, value) pairs. The values of the metadata log are messages of their own."""
    return build(
        [Record(timestamp=now_ms, key=control_key(kind), value=value) for kind, value in notes],
        base_offset=base_offset,
        leader_epoch=leader_epoch,
        control=True,
    )


def end_marker(
    commit: bool,
    now_ms: int,
    *,
    producer_id: int,
    producer_epoch: int,
    coordinator_epoch: int,
    leader_epoch: int = -1,
    base_offset: int = 0,
) -> bytes:
    """The batch that ends a producer's transaction in one partition. Always of one shape, and so packed with one call."""
    kind = ControlType.COMMIT if commit else ControlType.ABORT
    producer = (producer_id, producer_epoch, -1)
    rest = _MARKER.pack(
        TRANSACTIONAL_BIT | CONTROL_BIT,
        0,
        now_ms,
        now_ms,
        *producer,
        1,
        _MARKER_KEY,
        0,
        kind,
        12,
        0,
        coordinator_epoch,
        0,
    )
    return _FRONT.pack(base_offset, _MARKER_LENGTH, leader_epoch, MAGIC, crc32c(rest)) + rest
