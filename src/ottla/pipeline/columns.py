"""Record batches into columns: what a fetch brought, without an object per record.

The columns are those of Spark's Kafka connector, in its order and with its types. A fetch holds whole batches, each with
a header of its own; a *chunk* is several of them, taken together until there are enough rows for one Arrow batch.

Only one thing goes record by record in Python: stepping from length to length, because each record says where the next
begins. All other numbers are read by numpy for the whole chunk at once, field by field: position after position moves
past a varint, a key, a value. Keys and values then become Arrow arrays without being touched one by one: an array is laid
over the whole chunk whose elements are, in turn, a value and the gap up to the next; `take` keeps the values.

A broker looks at headers and not at records, so a batch may have a true CRC and nonsense inside. Every position is
checked before it is read from, and what does not fit is reported with partition and offset.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from ottla.client.cluster import TopicPartition
from ottla.client.consumer import Aborted
from ottla.wire.compression import Codec, inflate
from ottla.wire.errors import Error, KafkaError
from ottla.wire.records import (
    HEADER_BYTES,
    HEADERS_MAX,
    INFLATED_BYTES_MAX,
    LOG_APPEND_TIME_BIT,
    Batch,
    Bytes,
    batches,
    crc_ok,
)

Ints = npt.NDArray[np.int64]
Flags = npt.NDArray[np.bool_]
Octets = npt.NDArray[np.uint8]

# As `format.SCHEMA` has them; Spark takes no batch that differs.
ARROW_SCHEMA = pa.schema(
    {
        "key": pa.binary(),
        "value": pa.binary(),
        "topic": pa.string(),
        "partition": pa.int32(),
        "offset": pa.int64(),
        "timestamp": pa.timestamp("us", tz="UTC"),
        "timestampType": pa.int32(),
    }
)
_HEADERS = pa.list_(pa.field("element", pa.struct([("key", pa.string()), ("value", pa.binary())])))
ARROW_SCHEMA_WITH_HEADERS = ARROW_SCHEMA.append(pa.field("headers", _HEADERS))

# A chunk ends behind the batch that reaches one of these.
CHUNK_ROWS = 32_768
CHUNK_BYTES = 8 << 20

# So many records of one size are a run, and after so many that were none runs are not looked for.
RUN_MIN = 16
MISSES_MAX = 4

_RECORD_BYTES_MIN = 7
# Zigzag numbers of one byte.
_SMALL: Ints = np.array([(octet >> 1) ^ -(octet & 1) for octet in range(128)], dtype=np.int64)
_MICROSECONDS_MAX = ((1 << 63) - 1) // 1000


class Nonsense(Exception):
    """Bytes that are no records: why, and in which of the rows, where that is known."""

    def __init__(self, why: str, row: int = 0) -> None:
        super().__init__(why)
        self.row = row


class Part(NamedTuple):
    """The records of one batch, unpacked."""

    batch: Batch
    data: Bytes


class Decoder:
    """The records of one partition from `start` up to `end` (exclusive), fetch by fetch.

    `position` is behind the last batch that was looked at. It moves over holes and control batches as well, and so
    reaches `end` whatever is in the log.
    """

    def __init__(self, where: TopicPartition, start: int, end: int, *, headers: bool = False) -> None:
        self.where = where
        self.position, self.end = start, end
        self.headers = headers
        self.schema = ARROW_SCHEMA_WITH_HEADERS if headers else ARROW_SCHEMA
        self._topics = pa.array([], pa.string())
        self._partitions = pa.array([], pa.int32())

    def decode(self, records: Bytes, asked: int = 0, aborted: Aborted | None = None) -> Iterator[pa.RecordBatch]:
        """What a fetch brought that began at `asked`: a leader sends the whole of the batch that has this offset.
        With `aborted`, batches of aborted transactions are left out."""
        start = self.position = max(self.position, asked)
        parts: list[Part] = []
        rows = size = 0
        for part in self._wanted(memoryview(records), aborted):
            parts.append(part)
            rows, size = rows + part.batch.count, size + len(part.data)
            if rows >= CHUNK_ROWS or size >= CHUNK_BYTES:
                yield from self._chunk(parts, start)
                parts, rows, size = [], 0, 0
        yield from self._chunk(parts, start)

    def _wanted(self, records: memoryview, aborted: Aborted | None) -> Iterator[Part]:
        """The batches that have records for us, checked and unpacked."""
        base = self.position
        try:
            for at, batch in batches(records):
                base = batch.base_offset
                if batch.base_offset >= self.end:
                    self.position = self.end
                    return
                if batch.last_offset < self.position and aborted is None:
                    continue
                data = records[at : at + batch.size]
                if not crc_ok(data, 0, batch.size):
                    raise KafkaError(Error.CORRUPT_MESSAGE, "the checksum of the batch is wrong")
                hidden = aborted is not None and aborted.hides(batch, data)
                if not hidden and not batch.is_control and batch.last_offset >= self.position:
                    yield Part(batch, _unpacked(batch, data))
                self.position = max(self.position, batch.next_offset)
        except KafkaError as error:
            raise self._damaged(base, error.message or error.error.name, error.error)

    def _chunk(self, parts: list[Part], start: int) -> Iterator[pa.RecordBatch]:
        parts = [part for part in parts if part.batch.count]
        if not parts:
            return
        try:
            made = self._columns(_Chunk(parts), start)
        except Nonsense as nonsense:
            ends = np.cumsum([part.batch.count for part in parts])
            part = parts[int(np.searchsorted(ends, nonsense.row, side="right"))]
            raise self._damaged(part.batch.base_offset, str(nonsense), Error.INVALID_RECORD)
        if made.num_rows:
            yield made

    def _damaged(self, offset: int, why: str, error: Error) -> KafkaError:
        topic, partition = self.where
        return KafkaError(error, f"{topic}-{partition} cannot be read at offset {offset}: {why}")

    def _columns(self, chunk: _Chunk, start: int) -> pa.RecordBatch:
        offsets = chunk.offsets
        kept = (offsets >= start) & (offsets < self.end)
        rows = None if kept.all() else np.flatnonzero(kept)
        count = len(offsets) if rows is None else len(rows)
        columns = [
            chunk.binary(chunk.keys, rows),
            chunk.binary(chunk.values, rows),
            *self._constants(count),
            pa.array(_picked(offsets, rows)),
            pa.array(_picked(chunk.microseconds(), rows)).cast(ARROW_SCHEMA.field("timestamp").type),
            pa.array(_picked(chunk.timestamp_types(), rows)),
        ]
        if self.headers:
            columns.append(chunk.headers(rows))
        return pa.RecordBatch.from_arrays(columns, schema=self.schema)

    def _constants(self, count: int) -> tuple[pa.Array, pa.Array]:
        """Topic and partition, the same in each row: made once, and cut to length from then on."""
        if len(self._topics) < count:
            name = self.where.topic.encode()
            ends = np.arange(0, len(name) * (count + 1), len(name), dtype=np.int32)
            buffers = [None, pa.py_buffer(ends), pa.py_buffer(name * count)]
            self._topics = pa.Array.from_buffers(pa.string(), count, buffers)
            self._partitions = pa.array(np.full(count, self.where.partition, dtype=np.int32))
        return self._topics.slice(0, count), self._partitions.slice(0, count)


def _unpacked(batch: Batch, data: memoryview) -> Bytes:
    packed = data[HEADER_BYTES : batch.size]
    records = packed if batch.codec == Codec.NONE else inflate(batch.codec, packed, INFLATED_BYTES_MAX)
    if not 0 <= batch.count * _RECORD_BYTES_MIN <= len(records):
        raise KafkaError(Error.INVALID_RECORD, f"{len(records)} bytes cannot hold {batch.count} records")
    return records


def _picked(column: Any, rows: Ints | None) -> Any:
    return column if rows is None else column[rows]


class Field(NamedTuple):
    """Where a key or a value lies in each row; `null` where there is none."""

    begins: Ints
    ends: Ints
    null: Flags


class _Chunk:
    """The records of some batches behind one another, and where in them everything is."""

    def __init__(self, parts: list[Part]) -> None:
        self.parts = parts
        self.counts = np.array([part.batch.count for part in parts])
        self.data = b"".join([part.data for part in parts])
        self.octets: Octets = np.frombuffer(self.data, dtype=np.uint8)
        self.ends = _record_ends(self.data, self.octets, parts)
        at = np.empty_like(self.ends)
        at[0], at[1:] = 0, self.ends[:-1]
        _, at = self._numbers(at, 5)  # the length once more, to be behind it
        self.time_deltas, at = self._numbers(at + 1, 10)  # attributes, of which none is in use, come first
        offset_deltas, at = self._numbers(at, 5)
        self._check_deltas(offset_deltas)
        self.offsets = self._of_batch([part.batch.base_offset for part in parts]) + offset_deltas
        self.keys, at = self._field(at)
        self.values, at = self._field(at)
        self.header_counts, self.headers_at = self._numbers(at, 5)
        self._check_ends()

    def _of_batch(self, values: list[int]) -> Ints:
        """A number of each batch, for each of its rows."""
        return np.repeat(np.array(values, dtype=np.int64), self.counts)

    def _numbers(self, at: Ints, bytes_max: int) -> tuple[Ints, Ints]:
        """The zigzag varints at these positions, and the positions behind them. Nearly all have one byte or two, so these
        are read for all rows; what is longer is looked at row by row of those."""
        self._check_inside(at)
        first = self.octets.take(at)
        more = first >= 0x80
        if not more.any():
            return _SMALL.take(first), at + 1
        after = at + 1
        second = self.octets.take(after, mode="clip")  # where there is none, it is not looked at
        number = first.astype(np.int64)
        number += (second.astype(np.int64) - 1 << 7) * more  # less the bit that says that it goes on
        after += more
        self._check_inside(after - 1)
        rows = np.flatnonzero(more & (second >= 0x80))
        if len(rows):
            return self._long_numbers(number, after, rows, bytes_max)
        return (number >> 1) ^ -(number & 1), after

    def _long_numbers(self, number: Ints, after: Ints, rows: Ints, bytes_max: int) -> tuple[Ints, Ints]:
        """The same with three bytes and more in these rows."""
        value = number.view(np.uint64)
        value[rows] -= np.uint64(1 << 14)  # the second goes on as well
        for shift in range(14, 7 * bytes_max, 7):
            here = after[rows]
            self._check_inside(here, rows)
            octet = self.octets[here].astype(np.uint64)
            value[rows] += (octet & np.uint64(0x7F)) << np.uint64(shift)
            after[rows] += 1
            rows = rows[octet >= 0x80]
            if not len(rows):
                return _unzigzag(value & np.uint64(0xFFFFFFFF) if bytes_max == 5 else value), after
        raise Nonsense("a number has too many bytes", int(rows[0]))

    def _check_inside(self, at: Ints, rows: Ints | None = None) -> None:
        outside = at >= (self.ends if rows is None else self.ends[rows])
        if outside.any():
            row = int(np.argmax(outside))
            raise Nonsense("a record ends before its fields do", row if rows is None else int(rows[row]))

    def _check_deltas(self, deltas: Ints) -> None:
        """A record with an offset outside of its batch would be passed over as if it had been read before."""
        wrong = (deltas < 0) | (deltas > self._of_batch([part.batch.last_offset_delta for part in self.parts]))
        if wrong.any():
            raise Nonsense("a record has an offset outside of its batch", int(np.argmax(wrong)))

    def _field(self, at: Ints) -> tuple[Field, Ints]:
        sizes, begins = self._numbers(at, 5)
        null = sizes < 0
        ends = begins + np.maximum(sizes, 0)
        return Field(begins, ends, null), ends

    def _check_ends(self) -> None:
        """Behind the last field is the end; headers take two bytes each at least."""
        rest = self.ends - self.headers_at
        wrong = (rest < 2 * self.header_counts) | (self.header_counts < 0) | ((self.header_counts == 0) & (rest != 0))
        if wrong.any():
            raise Nonsense("a record does not end where its length says", int(np.argmax(wrong)))

    def binary(self, field: Field, rows: Ints | None) -> pa.Array:
        """The bytes of a field: an array of field, gap, field, gap over the whole chunk, of which every second is taken."""
        bounds = np.empty(2 * len(field.begins), dtype=np.int32)
        bounds[0::2], bounds[1::2] = field.begins, field.ends
        buffers = [None, pa.py_buffer(bounds), pa.py_buffer(self.data)]
        over_all = pa.Array.from_buffers(pa.binary(), len(bounds) - 1, buffers)
        chosen = np.arange(0, len(bounds), 2) if rows is None else 2 * rows
        null = _picked(field.null, rows)
        return over_all.take(pa.array(chosen, mask=null) if null.any() else pa.array(chosen))

    def microseconds(self) -> Ints:
        """Timestamps as Spark has them. Those set by the log are the same for a whole batch."""
        bases = self._of_batch([part.batch.base_timestamp for part in self.parts])
        milliseconds = bases + self.time_deltas
        wrapped = ((bases ^ milliseconds) & (self.time_deltas ^ milliseconds)) < 0
        by_log = [bool(part.batch.attributes & LOG_APPEND_TIME_BIT) for part in self.parts]
        if any(by_log):
            newest = self._of_batch([part.batch.max_timestamp for part in self.parts])
            milliseconds = np.where(np.repeat(np.array(by_log), self.counts), newest, milliseconds)
        wrong = wrapped | (milliseconds > _MICROSECONDS_MAX) | (milliseconds < -_MICROSECONDS_MAX)
        if wrong.any():
            row = int(np.argmax(wrong))
            raise Nonsense(f"its timestamp {milliseconds[row]} ms is no time that Spark can hold", row)
        return milliseconds * 1000

    def timestamp_types(self) -> npt.NDArray[np.int32]:
        types = np.array([part.batch.timestamp_type for part in self.parts], dtype=np.int32)
        return np.repeat(types, self.counts)

    def headers(self, rows: Ints | None) -> pa.Array:
        """Record by record: few records have headers, and those that do have few. No headers are null, as in Java."""
        if not self.header_counts.any():
            return pa.nulls(len(self.ends) if rows is None else len(rows), _HEADERS)
        counts, ats, ends = self.header_counts.tolist(), self.headers_at.tolist(), self.ends.tolist()
        chosen = range(len(counts)) if rows is None else rows.tolist()
        return pa.array([self._headers(row, counts[row], ats[row], ends[row]) for row in chosen], _HEADERS)

    def _headers(self, row: int, count: int, at: int, end: int) -> list[dict[str, object]] | None:
        if not count:
            return None
        if count > HEADERS_MAX:
            raise Nonsense(f"a record cannot have {count} headers", row)
        found: list[dict[str, object]] = []
        for _ in range(count):
            key, at = self._sized(at, end, row)
            value, at = self._sized(at, end, row)
            if key is None:
                raise Nonsense("a header without a name", row)
            found.append({"key": key.decode("utf-8", "replace"), "value": value})
        if at != end:
            raise Nonsense("a record does not end where its length says", row)
        return found

    def _sized(self, at: int, end: int, row: int) -> tuple[bytes | None, int]:
        size, at = _number(self.data, at, row)
        if size < 0:
            return None, at
        if at + size > end:
            raise Nonsense("a header is longer than its record", row)
        return self.data[at : at + size], at + size


def _unzigzag(number: npt.NDArray[np.uint64]) -> Ints:
    signed: Ints = (number >> np.uint64(1)).view(np.int64) ^ -(number & np.uint64(1)).view(np.int64)
    return signed


def _record_ends(data: bytes, octets: Octets, parts: list[Part]) -> Ints:
    """Where each record ends: the one thing that cannot be read for all at once, as each says where the next begins."""
    walk = _Walk(data, octets)
    for part in parts:
        walk.batch(part.batch.count, walk.at + len(part.data))
    return np.concatenate(walk.found) if len(walk.found) > 1 else walk.found[0]


class _Walk:
    """From length to length. Records of one size often follow one another, and such a run is found in one go: as long as the
    length is the same, so is the distance to the next. Where there are no runs, this is given up for the chunk."""

    def __init__(self, data: bytes, octets: Octets) -> None:
        self.data, self.octets = data, octets
        self.at = self.rows = self.misses = 0
        self.found: list[Ints] = []

    def batch(self, count: int, stop: int) -> None:
        left = count
        while left and self.misses < MISSES_MAX:
            left -= self._run(left, stop)
        if left:
            self._one_by_one(left)
        if self.at != stop:
            raise Nonsense(f"its {count} records end {self.at - stop:+d} bytes from where it does", self.rows - 1)

    def _run(self, most: int, stop: int) -> int:
        """Take the records from here on that have the length of the first."""
        start = self.at
        size, body = _number(self.data, start, self.rows)
        if size < 0:
            raise Nonsense("a record with a length below zero", self.rows)
        step = body - start + size
        if start + step > stop:
            raise Nonsense("its records go on behind its end", self.rows)
        count = min(most, (stop - start) // step)
        for octet in range(start, body):
            same = self.octets[octet : octet + (count - 1) * step + 1 : step] == self.octets[octet]
            if not same.all():
                count = int(same.argmin())
        self.misses += count < RUN_MIN
        self.found.append(np.arange(start + step, start + count * step + 1, step))
        self.at, self.rows = start + count * step, self.rows + count
        return count

    def _one_by_one(self, count: int) -> None:
        """It holds as little as it can."""
        data, at = self.data, self.at
        ends: list[int] = []
        ended = ends.append
        try:
            for _ in range(count):
                size = data[at]
                if size < 0x80:
                    at += 1
                else:
                    high = data[at + 1]
                    if high < 0x80:
                        size, at = size & 0x7F | high << 7, at + 2
                    else:
                        size, at = _number(data, at, self.rows + len(ends))
                        size <<= 1
                if size & 1 or size < 0:
                    raise Nonsense("a record with a length below zero", self.rows + len(ends))
                at += size >> 1
                ended(at)
        except IndexError:
            raise Nonsense("its records go on behind its end", self.rows + len(ends))
        self.found.append(np.array(ends, dtype=np.int64))
        self.at, self.rows = at, self.rows + count


def _number(data: bytes, at: int, row: int) -> tuple[int, int]:
    """One zigzag varint of at most five bytes, and where it ends."""
    value = 0
    for shift in range(0, 35, 7):
        if at >= len(data):
            raise Nonsense("it ends within a number", row)
        octet, at = data[at], at + 1
        value |= (octet & 0x7F) << shift
        if octet < 0x80:
            value &= 0xFFFFFFFF
            return (value >> 1) ^ -(value & 1), at
    raise Nonsense("a number has too many bytes", row)
