"""Batches by column give what a walk record by record gives, and nonsense gives an error that says where."""

from __future__ import annotations

import struct
from datetime import UTC, datetime, timedelta
from itertools import pairwise

import pyarrow as pa
import pytest
from crc32c import crc32c
from hypothesis import given
from hypothesis import strategies as st
from pyspark.sql.pandas.types import to_arrow_schema

from ottla.client.cluster import TopicPartition
from ottla.client.consumer import Aborted
from ottla.pipeline import columns, format
from ottla.pipeline.columns import Decoder
from ottla.wire.compression import Codec
from ottla.wire.errors import KafkaError
from ottla.wire.messages.fetch import FetchResponse
from ottla.wire.records import (
    HEADER_BYTES,
    LOG_APPEND_TIME,
    Record,
    build,
    end_marker,
    iterate,
    look,
    set_log_append_time,
    stamp,
    varint,
)

WHERE = TopicPartition("orders", 3)
FAR = 1 << 62
EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
Found = FetchResponse.Topic.Partition


def decoded(data: bytes, start: int = 0, end: int = FAR, *, headers: bool = True) -> list[dict[str, object]]:
    return [row for batch in Decoder(WHERE, start, end, headers=headers).decode(data) for row in batch.to_pylist()]


def expected(data: bytes) -> list[dict[str, object]]:
    """One batch as rows, the slow way."""
    kind = look(data).timestamp_type
    return [
        {
            "key": record.key,
            "value": record.value,
            "topic": WHERE.topic,
            "partition": WHERE.partition,
            "offset": record.offset,
            "timestamp": EPOCH + timedelta(milliseconds=record.timestamp),
            "timestampType": kind,
            "headers": [{"key": name, "value": value} for name, value in record.headers] or None,
        }
        for record in iterate(data)
    ]


SIZED = st.sampled_from([0, 1, 62, 63, 64, 65, 8150, 8190, 8191, 8192, 20_000]).map(lambda size: b"v" * size)
BINARY = st.one_of(st.none(), st.binary(max_size=9), SIZED)
HEADERS = st.lists(st.tuples(st.text(max_size=5), st.one_of(st.none(), st.binary(max_size=70))), max_size=2).map(tuple)
TIMES = st.integers(-1, 253_402_300_799_000)
RECORDS = st.lists(
    st.builds(Record, st.integers(0, 5), TIMES, BINARY, BINARY, st.one_of(st.just(()), HEADERS)),
    min_size=1,
    max_size=12,
)


def with_offsets(records: list[Record], base: int) -> list[Record]:
    """Offsets with holes, as compaction leaves them: what was drawn is the distance to the one before."""
    placed = []
    for record in records:
        base += record.offset + 1
        placed.append(record._replace(offset=base))
    return placed


@given(st.lists(st.tuples(RECORDS, st.sampled_from(list(Codec)), st.booleans()), min_size=1, max_size=3), st.data())
def test_columns_are_what_a_walk_gives(drawn: list[tuple[list[Record], Codec, bool]], data: st.DataObject) -> None:
    """Every codec, holes, nulls, sizes around a varint's edge, headers, both kinds of time, and any cut."""
    base, raw, rows = 0, b"", []
    for records, codec, by_log in drawn:
        placed = with_offsets(records, base)
        batch = bytearray(build(placed, codec=codec, base_offset=base))
        if by_log:
            set_log_append_time(batch, 1_700_000_000_000)
        base = look(batch).next_offset
        raw, rows = raw + bytes(batch), rows + expected(bytes(batch))
    start = data.draw(st.integers(0, base))
    end = data.draw(st.integers(start, base + 1))
    wanted = [row for row in rows if start <= row["offset"] < end]
    assert decoded(raw, start, end) == wanted
    for row in wanted:
        del row["headers"]
    assert decoded(raw, start, end, headers=False) == wanted


@pytest.mark.parametrize("sizes", [[100] * 300, list(range(300)), [5] * 99 + [6] * 99 + [7, 8, 9] * 30, [0, 9000] * 99])
def test_records_of_one_size_and_of_any(sizes: list[int]) -> None:
    """Runs are found in one go, and given up where there are none: over several batches, so that one follows the other."""
    raw, rows = b"", []
    for number in range(3):
        records = [Record(timestamp=number, value=b"v" * size, key=b"") for size in sizes]
        batch = build(records, base_offset=number * len(sizes))
        raw, rows = raw + batch, rows + expected(batch)
    assert decoded(raw) == rows


@given(RECORDS, st.data())
def test_any_damage_under_a_true_checksum_is_an_error_or_a_record(records: list[Record], data: st.DataObject) -> None:
    """Never another exception, and where the slow walk gives rows, so do the columns, the same ones."""
    batch = bytearray(build(with_offsets(records, 0)))
    for _ in range(data.draw(st.integers(1, 4))):
        batch[data.draw(st.integers(HEADER_BYTES, len(batch) - 1))] = data.draw(st.integers(0, 255))
    raw = sealed(batch)
    try:
        found = decoded(raw)
    except KafkaError as error:
        assert "orders-3 cannot be read at offset" in str(error)
        return
    except UnicodeDecodeError:
        pytest.fail("a header's name must not be trusted")
    try:
        slow = list(iterate(raw))
    except KafkaError:
        return
    assert [(row["offset"], row["key"], row["value"]) for row in found] == [
        (record.offset, record.key, record.value) for record in slow
    ]


def sealed(batch: bytearray) -> bytes:
    struct.pack_into(">I", batch, 17, crc32c(memoryview(batch)[21:]))
    return bytes(batch)


def nonsense(body: bytes, count: int = 1) -> bytes:
    """A batch with a true checksum around these bytes."""
    batch = bytearray(build([Record(value=b"x")] * count, base_offset=70))
    made = batch[:HEADER_BYTES] + body
    struct.pack_into(">i", made, 8, len(made) - 12)
    return sealed(made)


@pytest.mark.parametrize(
    ("body", "said"),
    [
        (b"", "0 bytes cannot hold 1 records"),
        (varint(-3) + bytes(6), "a length below zero"),
        (varint(60) + bytes(6), "its records go on behind its end"),
        (varint(2) + bytes(6), "records end -4 bytes"),
        (varint(6) + b"\0\0\0\x01\x01\0" + b"\0", "records end -1 bytes"),
        (varint(6) + b"\0\0\0" + varint(50) + b"\0\0", "a record ends before its fields do"),
        (varint(6) + b"\0\0\0\x01\x01\x02", "does not end where its length says"),
        (varint(6) + b"\0\0\0\x01\x01\x01", "does not end where its length says"),
        (varint(12) + b"\0\0" + b"\xff" * 6 + bytes(4), "too many bytes"),
        (b"\xff" * 8, "too many bytes"),
    ],
)
def test_nonsense_is_named_with_its_place(body: bytes, said: str) -> None:
    good = build([Record(value=b"fine")] * 3)
    with pytest.raises(KafkaError) as caught:
        decoded(good + nonsense(body))
    assert "orders-3 cannot be read at offset 70: " in str(caught.value)
    assert said in str(caught.value)


def test_a_wrong_checksum_is_named_with_its_place() -> None:
    first, second = build([Record(value=b"a")] * 2), bytearray(build([Record(value=b"b")], base_offset=2))
    second[-1] ^= 1
    with pytest.raises(KafkaError, match=r"orders-3 cannot be read at offset 2: the checksum of the batch is wrong"):
        decoded(first + bytes(second))


def test_a_stream_that_cannot_be_unpacked_is_named_with_its_place() -> None:
    batch = bytearray(build([Record(value=b"a" * 100)], codec=Codec.GZIP, base_offset=9))
    batch[HEADER_BYTES] ^= 0xFF
    with pytest.raises(KafkaError, match=r"orders-3 cannot be read at offset 9: not a gzip stream"):
        decoded(sealed(batch), start=9)


def test_a_time_that_spark_cannot_hold_is_named_with_its_place() -> None:
    with pytest.raises(KafkaError, match=r"offset 4: its timestamp \d+ ms is no time"):
        decoded(build([Record(timestamp=1 << 60)], base_offset=4))


def test_a_batch_cut_off_at_the_end_is_left_for_the_next_fetch() -> None:
    first, second = build([Record(value=b"a")] * 2), build([Record(value=b"b")], base_offset=2)
    decoder = Decoder(WHERE, 0, FAR)
    assert sum(batch.num_rows for batch in decoder.decode(first + second[:-1])) == 2
    assert decoder.position == 2


def test_the_position_reaches_the_end_over_holes_and_markers() -> None:
    """TRAP-72: a range ends where the position does, not at the last record."""
    later = build([Record(value=b"c")], base_offset=90)
    decoder = Decoder(WHERE, 0, 50)
    rows = [
        r
        for b in decoder.decode(build([Record(value=b"a")] * 2) + marker(7, 2, commit=True) + later)
        for r in b.to_pylist()
    ]
    assert [row["offset"] for row in rows] == [0, 1]
    assert decoder.position == 50


def transactional(producer: int, base: int, count: int = 2) -> bytes:
    return build(
        [Record(value=b"%d" % producer)] * count,
        base_offset=base,
        transactional=True,
        producer_id=producer,
        producer_epoch=0,
        base_sequence=0,
    )


def marker(producer: int, base: int, *, commit: bool) -> bytes:
    made = bytearray(end_marker(commit, 5, producer_id=producer, producer_epoch=0, coordinator_epoch=0))
    stamp(made, base, 0)
    return bytes(made)


def test_aborted_transactions_are_hidden_and_markers_never_shown() -> None:
    raw = (
        transactional(7, 0)
        + transactional(8, 2)
        + marker(7, 4, commit=False)
        + marker(8, 5, commit=True)
        + transactional(7, 6)
        + marker(7, 8, commit=True)
    )
    assert [row["offset"] for row in decoded(raw)] == [0, 1, 2, 3, 6, 7]
    found = Found(aborted_transactions=[Found.AbortedTransaction(producer_id=7, first_offset=0)])
    batches = Decoder(WHERE, 0, FAR).decode(raw, 0, Aborted(found))
    assert [row["offset"] for batch in batches for row in batch.to_pylist()] == [2, 3, 6, 7]


def test_many_rows_come_in_batches_of_a_good_size(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(columns, "CHUNK_ROWS", 100)
    raw = b"".join(build([Record(value=b"%d" % n)] * 30, base_offset=30 * n) for n in range(20))
    made = list(Decoder(WHERE, 0, FAR).decode(raw))
    assert [batch.num_rows for batch in made] == [120, 120, 120, 120, 120]
    offsets = pa.Table.from_batches(made)["offset"].to_pylist()
    assert all(b - a == 1 for a, b in pairwise(offsets))
    assert len(offsets) == 600


def test_an_empty_batch_moves_the_position_only() -> None:
    empty = bytearray(build([], base_offset=0))
    struct.pack_into(">i", empty, 23, 9)
    decoder = Decoder(WHERE, 0, FAR)
    assert list(decoder.decode(sealed(empty))) == []
    assert decoder.position == 10


def test_times_set_by_the_log_say_so() -> None:
    batch = bytearray(build([Record(timestamp=5, value=b"a")]))
    set_log_append_time(batch, 1_700_000_000_000)
    (row,) = decoded(bytes(batch))
    assert row["timestampType"] == LOG_APPEND_TIME
    assert row["timestamp"] == datetime(2023, 11, 14, 22, 13, 20, tzinfo=UTC)


def test_the_schemas_of_arrow_and_spark_are_one() -> None:
    """Spark compares them field by field and refuses what is merely alike."""
    for arrow, spark in (
        (columns.ARROW_SCHEMA, format.SCHEMA),
        (columns.ARROW_SCHEMA_WITH_HEADERS, format.SCHEMA_WITH_HEADERS),
    ):
        assert to_arrow_schema(spark, timezone="UTC").equals(arrow)
