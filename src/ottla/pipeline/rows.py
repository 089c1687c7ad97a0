"""Rows of a DataFrame become record batches, one row after the other for each partition, by column and not row by row.

The columns are those that Spark's Kafka sink takes: `value`, and where they are there `key`, `headers`, `topic` and
`partition`; and `timestamp`, which ours takes too. A row goes to the partition that its column names; else where murmur2
of its key sends it, bit for bit as Java's client; else it is *spread*: rows without a key fill a batch for one partition
and then move on to the next, each task from a start of its own.

All numbers of a record (see `wire/records.py`) are computed as arrays, their varints scattered into one buffer, and Arrow
joins them with keys and values: what comes out is, in one piece, the records as they stand on the wire. A loop runs only
over batches, over the bytes of a varint, and over every fourth byte of the longest key.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from ottla.client.partitioning import murmur2
from ottla.pipeline import cutting
from ottla.wire.compression import Codec, compress
from ottla.wire.records import HEADER_BYTES, frame

Numbers = npt.NDArray[np.int64]
Words = npt.NDArray[np.uint32]

# So many bytes of rows are encoded at once: enough for good batches in some tens of partitions.
CHUNK_BYTES = 16 << 20
# With more records in a batch, offset deltas would need a fourth byte.
BATCH_RECORDS_MAX = 1 << 20
# What a record has beside its timestamp, key, value and headers: lengths and delta at their longest, and attributes.
RECORD_OVERHEAD = 5 + 1 + 3 + 5 + 5
# With fewer keys left that are so long, numbers in Python are faster than arrays.
FEW_KEYS = 16


def _constant(data: bytes) -> pa.BinaryScalar:
    """Not by `pa.scalar`, which imports pandas where there is one: half a second in each process that imports this."""
    edges = pa.py_buffer(np.array([0, len(data)], np.int32))
    return pa.Array.from_buffers(pa.binary(), 1, [None, edges, pa.py_buffer(data)])[0]


EMPTY = _constant(b"")
NO_HEADERS = _constant(b"\0")
HEADERS = pa.list_(pa.struct([("key", pa.string()), ("value", pa.binary())]))
_MULTIPLIER = np.uint32(0x5BD1E995)
_SEED = np.uint32(0x9747B28C)


class RowError(ValueError):
    """A row that cannot be written. The message says which, and what to do."""


class Shape(NamedTuple):
    """What must be known of a topic to fill it: how many partitions it has, and how large a batch may be."""

    partitions: int
    batch_bytes_max: int
    limited_by: str = "kafka.max.request.size"


class Made(NamedTuple):
    """A batch for a partition."""

    topic: str
    partition: int
    data: bytearray


class Encoder:
    """Takes rows and gives batches: `add` as soon as there are enough of them, `finish` the rest."""

    def __init__(
        self,
        shape_of: Callable[[str], Shape],
        *,
        topic: str | None,
        now_ms: Callable[[], int],
        codec: int = Codec.NONE,
        level: int | None = None,
        batch_bytes: int = 512 << 10,
        start: int = 0,
        cuts: bool = False,
        ignores_keys: bool = False,
    ) -> None:
        """`topic` wins over a column of that name. `start` says with which partition rows without a key begin. With `cuts`, of
        a row that the topic does not take it gets a piece. With `ignores_keys`, rows with a key are spread as those without
        (`partitioner.ignore.keys` of Java's producer)."""
        self.shape_of, self.topic, self.now_ms, self.cuts = shape_of, topic, now_ms, cuts
        self.codec, self.level, self.batch_bytes, self.ignores_keys = codec, level, batch_bytes, ignores_keys
        self._start = start
        self._turns: dict[str, int] = {}
        self._waiting: list[pa.RecordBatch] = []
        self._bytes = 0

    def add(self, rows: pa.RecordBatch) -> Iterator[Made]:
        step = max(rows.num_rows * CHUNK_BYTES // max(rows.nbytes, 1), 1)
        for first in range(0, rows.num_rows, step):
            piece = rows.slice(first, step)
            if self._bytes + piece.nbytes > CHUNK_BYTES:
                yield from self.finish()
            self._waiting.append(piece)
            self._bytes += piece.nbytes

    def finish(self) -> Iterator[Made]:
        waiting, self._waiting, self._bytes = self._waiting, [], 0
        if waiting:
            yield from self._encode(Columns.of(pa.Table.from_batches(waiting).combine_chunks()))

    def _encode(self, columns: Columns) -> Iterator[Made]:
        names, topics = self._topics(columns)
        timestamps = columns.timestamps(self.now_ms())
        fields = Fields.of(columns, timestamps)
        shapes = [self.shape_of(name) for name in names]
        partitions = self._partitions(columns, fields.sizes, names, shapes, topics)
        # One number for a place among all: topics in order, and in each its partitions.
        firsts = np.cumsum([0, *(shape.partitions for shape in shapes)])
        places = firsts[topics] + partitions
        order = _order(places)
        limits = [self._limit(shape) for shape in shapes]
        per_place = np.repeat(np.array(limits, np.int64), [shape.partitions for shape in shapes])
        starts = _cut(places[order], fields.sizes[order], per_place)
        records = fields.joined(timestamps, order, starts)
        for first, end in zip(starts, [*starts[1:], len(order)], strict=True):
            row = int(order[first])
            topic = int(topics[row])
            data = self._frame(records, timestamps[order[first:end]], int(first), int(end))
            if len(data) > shapes[topic].batch_bytes_max and self.cuts:
                data = self._cut(columns, row, timestamps, shapes[topic])
            if len(data) > shapes[topic].batch_bytes_max:
                raise RowError(_too_large(columns, row, names[topic], len(data), shapes[topic]))
            yield Made(names[topic], int(partitions[row]), data)

    def _cut(self, columns: Columns, row: int, timestamps: Numbers, shape: Shape) -> bytearray:
        """A batch with what is kept of it. Where there are several rows in a batch, they are below the limit."""
        one, at, first = columns.cut(row, shape.batch_bytes_max), timestamps[row : row + 1], np.zeros(1, np.int64)
        return self._frame(Fields.of(one, at).joined(at, first, first), at, 0, 1)

    def _limit(self, shape: Shape) -> int:
        """Records of a batch come to no more than this, if there are more than one."""
        return max(min(self.batch_bytes, shape.batch_bytes_max) - HEADER_BYTES, 1)

    def _frame(self, records: pa.BinaryArray, timestamps: Numbers, first: int, end: int) -> bytearray:
        data = _bytes_between(records, first, end)
        packed: bytes | memoryview = data
        codec = self.codec
        if codec:
            packed = compress(codec, data, self.level)
            if len(packed) >= len(data):  # what does not get smaller would only be unpacked in vain
                packed, codec = data, Codec.NONE
        return frame(packed, codec, int(timestamps[0]), int(timestamps.max()), end - first)

    def _topics(self, columns: Columns) -> tuple[list[str], Numbers]:
        """The topics there are, and which of them each row goes to."""
        if self.topic is not None:
            return [self.topic], np.zeros(columns.height, np.int64)
        if columns.topic is None:
            raise RowError(NO_TOPIC)
        if columns.topic.null_count:
            raise RowError("null topic present in the data. Use the topic option for setting a topic.")
        coded = columns.topic.dictionary_encode()
        return coded.dictionary.to_pylist(), np.asarray(coded.indices).astype(np.int64)

    def _partitions(
        self, columns: Columns, sizes: Numbers, names: Sequence[str], shapes: Sequence[Shape], topics: Numbers
    ) -> Numbers:
        counts = np.array([shape.partitions for shape in shapes], np.int64)[topics]
        chosen = np.full(columns.height, -1, np.int64)
        if columns.key is not None and not self.ignores_keys:
            keyed = np.asarray(columns.key.is_valid())
            hashed = murmur2_of(columns.key) & np.uint32(0x7FFFFFFF)
            chosen = np.where(keyed, hashed % counts, chosen)
        if columns.partition is not None:
            given = np.asarray(columns.partition.is_valid())
            wanted = np.asarray(columns.partition.fill_null(0)).astype(np.int64)
            wrong = np.flatnonzero(given & ((wanted < 0) | (wanted >= counts)))
            if len(wrong):
                row = wrong[0]
                raise RowError(
                    f"a row names partition {wanted[row]} of topic {names[topics[row]]!r}, "
                    f"which has {counts[row]}: they are counted from 0"
                )
            chosen = np.where(given, wanted, chosen)
        for number, name in enumerate(names):
            free = np.flatnonzero((topics == number) & (chosen < 0))
            if len(free):
                chosen[free] = self._spread(name, sizes[free], shapes[number])
        return chosen

    def _spread(self, topic: str, sizes: Numbers, shape: Shape) -> Numbers:
        """A batch's worth of rows to one partition, and the next to the next."""
        turns = self._turns.get(topic, self._start) + (np.cumsum(sizes) - 1) // self._limit(shape)
        self._turns[topic] = int(turns[-1]) + 1
        return turns % shape.partitions


NO_TOPIC = (
    "topic option required when no 'topic' attribute is present. Use the topic option for setting a topic: "
    ".option('topic', 'a-topic')"
)


class Columns(NamedTuple):
    """The columns that matter, as arrays of one type each."""

    height: int
    value: pa.BinaryArray
    key: pa.BinaryArray | None
    headers: pa.ListArray | None
    topic: pa.StringArray | None
    partition: pa.Array | None
    timestamp: pa.Array | None

    @classmethod
    def of(cls, table: pa.Table) -> Columns:
        """Of a table whose columns are in one piece."""
        found = dict(zip(table.column_names, table.columns, strict=True))
        # The connector knows no such column: one that is no time means something else, and is none of ours.
        if "timestamp" in found and not pa.types.is_timestamp(found["timestamp"].type):
            del found["timestamp"]
        # Where the option names the topic, a column of this name may be anything.
        if "topic" in found and found["topic"].type not in (pa.string(), pa.large_string()):
            del found["topic"]

        def column(name: str, kind: pa.DataType | None = None) -> Any:
            if name not in found:
                return None
            array = found[name].chunk(0)
            return array if kind is None or array.type == kind else array.cast(kind)

        return cls(
            table.num_rows,
            column("value", pa.binary()),
            column("key", pa.binary()),
            column("headers"),
            column("topic", pa.string()),
            column("partition"),
            column("timestamp", pa.timestamp("us", "UTC")),
        )

    def cut(self, row: int, limit: int) -> Columns:
        """One row, made small enough for this limit."""
        headers = self.headers[row].as_py() if self.headers is not None else None
        given = [(each["key"], each["value"]) for each in headers or []]
        key = None if self.key is None else self.key[row].as_py()
        kept = cutting.cut(cutting.Row(key, self.value[row].as_py(), given), limit)
        packed = pa.array([[{"key": name, "value": value} for name, value in kept.headers]], HEADERS)
        columns = pa.array([kept.value], pa.binary()), pa.array([kept.key], pa.binary())
        return Columns(1, *columns, packed, None, None, None)

    def timestamps(self, now_ms: int) -> Numbers:
        if self.timestamp is None:
            return np.full(self.height, now_ms, np.int64)
        micros = np.asarray(self.timestamp.cast(pa.int64()).fill_null(now_ms * 1000)).astype(np.int64)
        return micros // 1000


class Fields(NamedTuple):
    """What a record is made of, but for what its place in a batch decides."""

    key: pa.BinaryArray | None
    value: pa.BinaryArray
    headers: pa.BinaryArray | None
    key_lengths: Numbers  # -1 for null
    value_lengths: Numbers
    header_lengths: Numbers
    sizes: Numbers  # at most so long is the record

    @classmethod
    def of(cls, columns: Columns, timestamps: Numbers) -> Fields:
        key_lengths = np.full(columns.height, -1) if columns.key is None else _lengths(columns.key)
        value_lengths = _lengths(columns.value)
        headers = None if columns.headers is None else _packed_headers(columns.headers)
        header_lengths = np.ones(columns.height, np.int64) if headers is None else _lengths(headers)
        span = _zigzag(np.array([timestamps.max() - timestamps.min()]))
        sizes = (
            RECORD_OVERHEAD
            + _widths(span)[0]
            + np.maximum(key_lengths, 0)
            + np.maximum(value_lengths, 0)
            + header_lengths
        )
        return cls(columns.key, columns.value, headers, key_lengths, value_lengths, header_lengths, sizes)

    def joined(self, timestamps: Numbers, order: Numbers, starts: Numbers) -> pa.BinaryArray:
        """The records in their new order, each with its place in its batch."""
        batch_lengths = np.diff([*starts, len(order)])
        deltas = np.empty_like(order)
        deltas[order] = np.arange(len(order)) - np.repeat(starts, batch_lengths)
        since = np.empty_like(order)
        since[order] = timestamps[order] - np.repeat(timestamps[order[starts]], batch_lengths)
        numbers = [np.zeros_like(order), since, deltas, self.key_lengths]
        fields = [_zigzag(field) for field in numbers]
        value_length = _zigzag(self.value_lengths)
        widths = [_widths(field) for field in fields]
        value_width = _widths(value_length)
        lengths = (
            sum(widths[1:], widths[0])
            + value_width
            + np.maximum(self.key_lengths, 0)
            + np.maximum(self.value_lengths, 0)
            + self.header_lengths
        )
        length = _zigzag(lengths)
        head = [(length, _widths(length)), *zip(fields, widths, strict=True)]
        tail = NO_HEADERS if self.headers is None else self.headers
        if self.key is None:
            parts = [_varints([*head, (value_length, value_width)]), self.value, tail]
        else:
            parts = [_varints(head), self.key, _varints([(value_length, value_width)]), self.value, tail]
        records = _join(parts)
        in_order = len(order) < 2 or bool((np.diff(order) == 1).all())
        return records if in_order else records.take(pa.array(order))


# Places.


def _order(places: Numbers) -> Numbers:
    """Rows sorted by place; those of one place stay as they were."""
    if len(places) < 2 or bool((places[1:] >= places[:-1]).all()):
        return np.arange(len(places))
    small = places.astype(np.uint16) if places.max() < 1 << 16 else places  # two bytes are sorted by radix
    return np.argsort(small, kind="stable")


def _cut(places: Numbers, sizes: Numbers, limits: Numbers) -> Numbers:
    """Where batches begin: at each new place, and before what would exceed the limit."""
    before = np.concatenate(([0], np.cumsum(sizes)))
    edges = np.flatnonzero(np.diff(places)) + 1
    starts: list[int] = []
    for first, end in zip([0, *edges.tolist()], [*edges.tolist(), len(places)], strict=True):
        limit = int(limits[places[first]])
        while first < end:
            starts.append(first)
            fits = int(np.searchsorted(before, before[first] + limit, "right")) - 1
            first = min(max(fits, first + 1), first + BATCH_RECORDS_MAX, end)
    return np.array(starts, np.int64)


def murmur2_of(keys: pa.BinaryArray) -> Words:
    """MurmurHash 2 of each, with the seed of Kafka; of null, as of nothing."""
    starts, lengths, data = _laid_out(keys)
    hashes = _SEED ^ lengths.astype(np.uint32)
    at, rows = starts.copy(), np.arange(len(starts))
    left = lengths.copy()
    words = _words(data)
    with np.errstate(over="ignore"):
        while True:
            rows = rows[left[rows] >= 4]
            if len(rows) < FEW_KEYS:
                break
            mixed = words[at[rows]] * _MULTIPLIER
            mixed = (mixed ^ mixed >> np.uint32(24)) * _MULTIPLIER
            hashes[rows] = hashes[rows] * _MULTIPLIER ^ mixed
            at[rows] += 4
            left[rows] -= 4
        done = np.flatnonzero(left < 4)
        hashes[done] = _last_bytes(hashes[done], data, at[done], left[done])
    for row in rows:  # the few that are longer than all others
        hashes[row] = murmur2(data[starts[row] : starts[row] + lengths[row]].tobytes())
    return hashes


def _last_bytes(hashes: Words, data: npt.NDArray[np.uint8], at: Numbers, left: Numbers) -> Words:
    for index in (2, 1, 0):
        rows = np.flatnonzero(left > index)
        hashes[rows] ^= data[at[rows] + index].astype(np.uint32) << np.uint32(8 * index)
    rows = np.flatnonzero(left > 0)
    hashes[rows] *= _MULTIPLIER
    hashes ^= hashes >> np.uint32(13)
    hashes *= _MULTIPLIER
    hashes ^= hashes >> np.uint32(15)
    return hashes


def _words(data: npt.NDArray[np.uint8]) -> Words:
    """Four bytes from each position on, read as one number."""
    if len(data) < 4:
        return np.zeros(0, np.uint32)
    return np.ndarray((len(data) - 3,), "<u4", data, strides=(1,))


# Bytes.


def _laid_out(array: pa.BinaryArray) -> tuple[Numbers, Numbers, npt.NDArray[np.uint8]]:
    """Where each value begins, how long it is (null: 0), and the bytes."""
    _, offsets, data = array.buffers()
    edges = np.frombuffer(offsets, np.int32, len(array) + 1, array.offset * 4).astype(np.int64)
    content = np.frombuffer(data, np.uint8) if data is not None and data.size else np.zeros(0, np.uint8)
    lengths = np.diff(edges)
    if array.null_count:
        lengths = np.where(np.asarray(array.is_valid()), lengths, 0)
    return edges[:-1], lengths, content


def _lengths(array: pa.BinaryArray) -> Numbers:
    """The length of each, -1 for null."""
    edges = np.frombuffer(array.buffers()[1], np.int32, len(array) + 1, array.offset * 4).astype(np.int64)
    lengths: Numbers = edges[1:] - edges[:-1]
    return np.where(np.asarray(array.is_valid()), lengths, -1) if array.null_count else lengths


def _bytes_between(array: pa.BinaryArray, first: int, end: int) -> memoryview:
    """What the values of these rows come to, one behind the other as they lie."""
    _, offsets, data = array.buffers()
    edges = np.frombuffer(offsets, np.int32, len(array) + 1, array.offset * 4)
    return memoryview(data)[int(edges[first]) : int(edges[end])]


def _join(parts: Sequence[Any]) -> pa.BinaryArray:
    """Row by row, one behind the other; null adds nothing."""
    return pc.binary_join_element_wise(*parts, EMPTY, null_handling="replace", null_replacement="")


def _zigzag(numbers: Numbers) -> npt.NDArray[np.uint64]:
    return ((numbers << 1) ^ (numbers >> 63)).astype(np.uint64)


def _widths(numbers: npt.NDArray[np.uint64]) -> Numbers:
    """How many bytes each takes as a varint."""
    widths = np.ones(len(numbers), np.int64)
    largest, shift = int(numbers.max(initial=0)), 7
    while largest >> shift:
        widths += numbers >= np.uint64(1 << shift)
        shift += 7
    return widths


def _varints(fields: Sequence[tuple[npt.NDArray[np.uint64], Numbers]]) -> pa.BinaryArray:
    """For each row its numbers, one behind the other; of each number the widths are given."""
    total = sum((widths for _, widths in fields[1:]), fields[0][1])
    edges = np.zeros(len(total) + 1, np.int32)
    np.cumsum(total, out=edges[1:])
    out = np.empty(int(edges[-1]), np.uint8)
    at = edges[:-1].astype(np.int64)
    for numbers, widths in fields:
        out[at] = (numbers & np.uint64(0x7F)).astype(np.uint8) | ((widths > 1).astype(np.uint8) << 7)
        for index in range(1, int(widths.max(initial=0))):
            rows = np.flatnonzero(widths > index)
            more = (widths[rows] > index + 1).astype(np.uint8) << 7
            out[at[rows] + index] = (numbers[rows] >> np.uint64(7 * index) & np.uint64(0x7F)).astype(np.uint8) | more
        at += widths
    return pa.Array.from_buffers(pa.binary(), len(total), [None, pa.py_buffer(edges), pa.py_buffer(out)])


def _number(numbers: Numbers) -> pa.BinaryArray:
    zigzagged = _zigzag(numbers)
    return _varints([(zigzagged, _widths(zigzagged))])


def _packed_headers(headers: pa.ListArray) -> pa.BinaryArray:
    """For each row how many headers it has, and these; a list that is null is empty."""
    counts = np.asarray(pc.list_value_length(headers).fill_null(0)).astype(np.int64)
    flat = headers.flatten()
    names, values = (column.cast(pa.binary()) for column in flat.flatten())
    if names.null_count:
        raise RowError("a header has no key: a header is a struct of key (text) and value (binary, may be null)")
    entries = _join([_number(_lengths(names)), names, _number(_lengths(values)), values])
    edges = np.concatenate(([0], np.cumsum(counts))).astype(np.int32)
    joined = pc.binary_join(pa.ListArray.from_arrays(pa.array(edges), entries), EMPTY)
    return _join([_number(counts), joined])


def _too_large(columns: Columns, row: int, topic: str, size: int, shape: Shape) -> str:
    def length(array: pa.Array | None) -> int:
        return 0 if array is None or not array[row].is_valid else len(array[row].as_py())

    return (
        f"a row with a key of {length(columns.key)} and a value of {length(columns.value)} bytes makes a batch of {size} "
        f"bytes for topic {topic!r}, which takes at most {shape.batch_bytes_max} ({shape.limited_by}): "
        "make the row smaller, or allow more there and in kafka.max.request.size"
    )
