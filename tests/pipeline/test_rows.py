"""Rows into record batches: what `wire/records.py` reads back is what went in, where Java's client would have put it."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from datetime import UTC, datetime, timedelta
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from ottla.client.partitioning import by_key, murmur2
from ottla.pipeline import rows
from ottla.pipeline.rows import CHUNK_BYTES, Encoder, Made, RowError, Shape, murmur2_of
from ottla.wire.compression import Codec
from ottla.wire.records import Record, batches, build, crc_ok, iterate, look

NOW = 1_700_000_000_000
HEADERS = pa.list_(pa.struct([("key", pa.string()), ("value", pa.binary())]))
TYPES = {
    "key": pa.binary(),
    "value": pa.binary(),
    "headers": HEADERS,
    "topic": pa.string(),
    "partition": pa.int32(),
    "timestamp": pa.timestamp("us", "UTC"),
}
# Key, and Utils.toPositive(Utils.murmur2(key)) % 12: printed by kafka-clients 4.3.1.
JAVA = {
    "21": 0,
    "foobar": 6,
    "a-little-bit-long-string": 8,
    "a-little-bit-longer-string": 11,
    "lkjh234lh9fiuh90y23oiuhsafujhadof229phr9h19h89h8": 5,
    "abc": 3,
    "": 9,
    "äöü": 8,
    "k1": 5,
    "k2": 9,
    "12345678": 6,
}


def table(**columns: Sequence[Any]) -> pa.RecordBatch:
    arrays = [pa.array(values, TYPES[name]) for name, values in columns.items()]
    return pa.record_batch(arrays, names=list(columns))


def encoder(partitions: int = 4, size_max: int = 1 << 20, topic: str | None = "t", **options: Any) -> Encoder:
    return Encoder(lambda _: Shape(partitions, size_max), topic=topic, now_ms=lambda: NOW, **options)


def encode(made_by: Encoder, *parts: pa.RecordBatch) -> list[Made]:
    return [made for part in parts for made in made_by.add(part)] + list(made_by.finish())


def records(made: Iterable[Made]) -> dict[tuple[str, int], list[Record]]:
    """What a consumer would get of each partition; each batch is looked at as a broker does."""
    found: dict[tuple[str, int], list[Record]] = {}
    for topic, partition, data in made:
        assert [batch.size for _, batch in batches(data)] == [len(data)]
        head = look(data)
        assert crc_ok(data, 0, len(data))
        inside = list(iterate(data))
        assert head.count == len(inside) == head.last_offset_delta + 1
        assert [record.offset for record in inside] == list(range(len(inside)))
        assert head.max_timestamp == max(record.timestamp for record in inside)
        assert (head.producer_id, head.producer_epoch, head.base_sequence) == (-1, -1, -1)
        found.setdefault((topic, partition), []).extend(record._replace(offset=-1) for record in inside)
    return found


def test_keys_go_where_java_sends_them():
    """PRD-09: the same placement as Java's client."""
    column = pa.array([key.encode() for key in JAVA], pa.binary())
    made = encode(encoder(12), pa.record_batch([column, column], names=["key", "value"]))
    found = {record.key.decode(): partition for (_, partition), inside in records(made).items() for record in inside}
    assert found == JAVA


@given(st.lists(st.none() | st.binary(max_size=40), max_size=60), st.integers(0, 3))
def test_murmur2_by_column_is_murmur2_by_key(keys, skipped):
    """Of a slice too, whose bytes do not begin where the buffer does."""
    column = pa.array(keys, pa.binary()).slice(min(skipped, len(keys)))
    assert murmur2_of(column).tolist() == [murmur2(key or b"") for key in keys[skipped:]]


def test_a_few_keys_that_are_much_longer_than_the_others():
    keys = [b"k" * size for size in (5, 1000, 7, 50_001)] + [b"%d" % i for i in range(100)]
    assert murmur2_of(pa.array(keys, pa.binary())).tolist() == [murmur2(key) for key in keys]


some_bytes = st.none() | st.binary(max_size=300)
some_headers = st.none() | st.lists(st.tuples(st.text(max_size=9), some_bytes), max_size=3)
some_times = st.none() | st.integers(-(10**12), 4 * 10**12).map(lambda ms: EPOCH + timedelta(milliseconds=ms))
EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
some_rows = st.lists(
    st.tuples(some_bytes, some_bytes, some_headers, some_times, st.none() | st.integers(0, 4)), max_size=40
)


@given(
    some_rows,
    st.sampled_from(list(Codec)),
    st.integers(0, 40),
    st.sampled_from([1, 300, 1 << 20]),
    st.sets(st.sampled_from(["key", "headers", "timestamp", "partition"])),
)
def test_what_goes_in_comes_out(given_rows, codec, split, batch_bytes, without):
    """Every column or its absence, every codec, rows in one part or two, batches of many rows or of one."""
    names = ["key", "value", "headers", "timestamp", "partition"]
    columns = dict(zip(names, zip(*given_rows, strict=True), strict=True)) if given_rows else {n: [] for n in names}
    columns["headers"] = [
        None if pairs is None else [{"key": key, "value": value} for key, value in pairs]
        for pairs in columns["headers"]
    ]
    whole = table(**{name: values for name, values in columns.items() if name not in without})
    made = encode(encoder(5, codec=codec, batch_bytes=batch_bytes), whole.slice(0, split), whole.slice(split))
    if batch_bytes == 1:
        assert len(made) == len(given_rows)
    found = records(made)
    expected: dict[int | None, list[Record]] = {}
    for key, value, headers, time, partition in given_rows:
        key = None if "key" in without else key
        where = by_key("t", key, 5) if "partition" in without or partition is None else partition
        named = "headers" not in without and headers
        at = NOW if "timestamp" in without or time is None else round((time - EPOCH) / timedelta(milliseconds=1))
        record = Record(-1, at, key, value, tuple(tuple(pair) for pair in headers) if named else ())
        expected.setdefault(where, []).append(record)
    free = expected.pop(None, [])
    for (_, partition), inside in found.items():
        fixed = iter(expected.get(partition, []))
        upcoming = next(fixed, None)
        for record in inside:  # in order; what is not the next of this partition was free to go anywhere
            if record == upcoming:
                upcoming = next(fixed, None)
            else:
                free.remove(record)
        assert upcoming is None
    assert not free and set(expected) <= {partition for _, partition in found}


def test_the_bytes_are_those_of_the_other_builder():
    given_records = [Record(timestamp=NOW + i % 7, key=b"k%d" % i, value=b"v" * i) for i in range(300)]
    columns: dict[str, list[Any]] = {
        "key": [record.key for record in given_records],
        "value": [record.value for record in given_records],
        "timestamp": [EPOCH + timedelta(milliseconds=record.timestamp) for record in given_records],
    }
    (made,) = encode(encoder(1), table(**columns))
    assert bytes(made.data) == build(given_records)


def test_text_is_taken_as_its_bytes():
    columns = [pa.array(["ä", None], kind) for kind in (pa.string(), pa.large_string())]
    made = encode(encoder(1), pa.record_batch(columns, names=["key", "value"]))
    assert [(r.key, r.value) for r in records(made)["t", 0]] == [("ä".encode(), "ä".encode()), (None, None)]


def test_columns_that_only_look_like_ours_are_passed_over():
    """The connector takes names letter by letter, and knows no column of times: what is none may have that name."""
    columns = {
        "value": pa.array(["v"]),
        "Key": pa.array([7]),
        "Partition": pa.array([2], pa.int32()),
        "timestamp": pa.array([5]),
    }
    (record,) = records(encode(encoder(1), pa.record_batch(columns)))["t", 0]
    assert (record.key, record.value, record.timestamp) == (None, b"v", NOW)


def test_rows_without_a_key_fill_one_batch_after_the_other():
    """PRD-10: a batch's worth to a partition, then the next; another task begins elsewhere."""
    part = table(value=[bytes(100)] * 400)
    made = encode(encoder(3, batch_bytes=4000, start=1), part)
    counts = {where: len(inside) for where, inside in records(made).items()}
    assert sum(counts.values()) == 400 and max(counts.values()) - min(counts.values()) < 100
    assert all(len(data) <= 4000 for _, _, data in made) and len(made) < 20
    first = {start: encode(encoder(3, start=start), part)[0].partition for start in range(3)}
    assert first == {0: 0, 1: 1, 2: 2}


def test_keys_may_have_no_say():
    """`partitioner.ignore.keys` of Java's producer: rows with one key are spread."""
    part = table(key=[b"k"] * 400, value=[bytes(100)] * 400)
    made = records(encode(encoder(3, batch_bytes=4000, ignores_keys=True), part))
    assert {where: len(inside) > 100 for where, inside in made.items()} == {("t", n): True for n in range(3)}
    assert {record.key for inside in made.values() for record in inside} == {b"k"}


def test_the_topic_of_the_option_wins_over_the_column():
    part = table(value=[b"1", b"2", b"3"], topic=["a", "b", "a"])
    assert [topic for topic, _, _ in encode(encoder(1), part)] == ["t"]
    by_column = records(encode(encoder(1, topic=None), part))
    assert {where: [r.value for r in inside] for where, inside in by_column.items()} == {
        ("a", 0): [b"1", b"3"],
        ("b", 0): [b"2"],
    }


@pytest.mark.parametrize("column", [pa.array([{"a": 1}]), pa.array([b"\xff"]), pa.array([["x"]]), pa.array([7])])
def test_where_the_option_names_the_topic_such_a_column_may_be_anything(column):
    made = encoder(1)
    part = pa.RecordBatch.from_arrays([column, pa.array([b"1"])], ["topic", "value"])
    assert [topic for topic, _, _ in (*made.add(part), *made.finish())] == ["t"]


def test_each_topic_has_its_own_count_and_limit():
    shapes = {"a": Shape(2, 1000), "b": Shape(7, 3000)}
    made_by = Encoder(shapes.__getitem__, topic=None, now_ms=lambda: NOW, batch_bytes=1 << 20)
    keys = [b"%d" % (i % 50) for i in range(2000)]
    made = encode(made_by, table(key=keys, value=[bytes(20)] * 2000, topic=["a", "b"] * 1000))
    for (topic, partition), inside in records(made).items():
        assert {by_key(topic, record.key, shapes[topic].partitions) for record in inside} == {partition}
    assert {topic: max(len(m.data) for m in made if m.topic == topic) // 1000 for topic in shapes} == {"a": 0, "b": 2}


@pytest.mark.parametrize(
    ("part", "message"),
    [
        ({"value": [b"1"]}, "topic option required when no 'topic' attribute is present"),
        ({"value": [b"1"], "topic": [None]}, "null topic present in the data"),
        ({"value": [b"1"], "topic": ["t"], "partition": [4]}, "partition 4 of topic 't', which has 4"),
        ({"value": [b"1"], "topic": ["t"], "partition": [-1]}, "partition -1 of topic 't'"),
        ({"value": [b"1"], "topic": ["t"], "headers": [[{"key": None, "value": b"x"}]]}, "a header has no key"),
        (
            {"value": [b"small", b"v" * 2000], "topic": ["t", "t"], "key": [b"k", b"kk"]},
            "key of 2 and a value of 2000 b",
        ),
    ],
)
def test_rows_that_cannot_be_written(part, message):
    with pytest.raises(RowError, match=message):
        encode(encoder(4, size_max=1500, topic=None), table(**part))


def test_a_row_may_be_larger_than_a_batch_usually_is_and_small_when_packed():
    """The limit is on what goes over the wire; many rows in a batch stay below it whatever they are packed to."""
    made = encode(encoder(1, size_max=1500, codec=Codec.ZSTD), table(value=[bytes(100_000), b"x"]))
    assert [look(data).count for _, _, data in made] == [1, 1]
    assert look(made[0].data).codec == Codec.ZSTD and look(made[1].data).codec == Codec.NONE


def test_of_a_row_that_its_topic_does_not_take_a_piece_is_written():
    """Where that is asked for: the first bytes of key and value, the last headers, and what is missing."""
    given = [{"key": "far", "value": b"h" * 2000}, {"key": "near", "value": b"why"}]
    part = table(key=[b"k" * 3000, b"k"], value=[b"v" * 4000, b"w" * 3000], headers=[given, None])
    found = [
        record for inside in records(encode(encoder(4, size_max=2000, cuts=True), part)).values() for record in inside
    ]
    large, other = sorted(found, key=lambda record: len(record.headers), reverse=True)
    assert (large.key, large.value) == (b"k" * 500, b"v" * 500)
    told = b"key: the first 500 of 3000 bytes; value: the first 500 of 4000 bytes; headers: 1 of 2 are left out"
    assert list(large.headers) == [("near", b"why"), ("ottla.cut", told)]
    assert (other.key, other.value) == (b"k", b"w" * 500)
    assert list(other.headers) == [("ottla.cut", b"value: the first 500 of 3000 bytes")]
    [place] = records(encode(encoder(4, size_max=2000, cuts=True), part.slice(0, 1)))
    assert place == ("t", by_key("t", b"k" * 3000, 4)), "where it would be if it fitted"


def test_rows_that_fit_are_not_cut():
    part = table(value=[b"v" * 1500, None], headers=[[{"key": "h", "value": None}], None])
    assert encode(encoder(1, size_max=2000, cuts=True), part) == encode(encoder(1, size_max=2000), part)
    with pytest.raises(RowError, match="takes at most 70"):
        encode(encoder(1, size_max=70, cuts=True), part)


def test_rows_are_encoded_as_they_come_and_not_all_at_once():
    """A task holds a chunk, not all of its rows; one part that is larger is cut."""
    made_by = encoder(1)
    part = table(value=[bytes(1000)] * 4000)
    got = [len(list(made_by.add(part))) for _ in range(10)]
    assert sum(map(bool, got)) >= 2 and made_by._bytes <= CHUNK_BYTES
    large = table(value=[bytes(100_000)] * 500)
    seen = [look(made.data).count for made in encode(encoder(1), large)]
    assert sum(seen) == 500 and large.nbytes > 2 * CHUNK_BYTES


def test_a_batch_has_no_more_records_than_its_deltas_allow(monkeypatch):
    monkeypatch.setattr(rows, "BATCH_RECORDS_MAX", 100)
    made = encode(encoder(1), table(value=[b""] * 250))
    assert [look(data).count for _, _, data in made] == [100, 100, 50]
