"""Pipelines on a real Spark and a real node: formats, whole pipelines that are stopped and go on, the command, the examples
and the cells of the documentation."""

from __future__ import annotations

import asyncio
import json
import os
import re
import shutil
import subprocess
import sys
import time
from collections.abc import Iterable
from datetime import UTC, datetime
from decimal import Decimal
from pathlib import Path
from typing import Any

import pytest

from harness import TREE, die_with_parent
from ottla.client.admin import Admin
from ottla.client.cluster import Cluster
from ottla.client.producer import Producer
from ottla.pipeline import Pipeline, table, to_memory, to_parquet, to_topic, topic
from ottla.pipeline.committing import SinkError
from ottla.pipeline.files import building, checking, failures, formats, modes, sinks, sources, status
from ottla.pipeline.files.nodes import WrongPipeline
from ottla.pipeline.files.running import Failed
from ottla.pipeline.files.spec import read_file, read_object
from ottla.pipeline.files.status import Runs
from ottla.wire.compression import Codec

pytestmark = pytest.mark.timeout(400)
RECORD = "key BINARY, value BINARY, topic STRING, partition INT, offset BIGINT, timestamp TIMESTAMP"
MOMENT = datetime(2026, 1, 1, tzinfo=UTC)
AVRO = {"type": "record", "name": "V", "fields": [{"name": "user", "type": "string"}, {"name": "n", "type": "int"}]}


@pytest.fixture(scope="module")
def address(own_broker: str) -> str:
    return own_broker


def send(address: str, name: str, records: Iterable[tuple[str | None, Any]]) -> None:
    async def sending() -> None:
        async with Cluster(address, client_id="test") as cluster, Producer(cluster, linger_ms=5) as producer:
            for key, value in records:
                await producer.send(name, key=key.encode() if key else None, value=as_bytes(value))

    asyncio.run(sending())


def as_bytes(value: Any) -> bytes | None:
    return value if value is None or isinstance(value, bytes) else json.dumps(value).encode()


def read(spark, address: str, name: str, headers: bool = False) -> list[Any]:
    options = {"kafka.bootstrap.servers": address, "subscribe": name, "includeHeaders": str(headers).lower()}
    return spark.read.format("ottla").options(**options).load().orderBy("partition", "offset").collect()


def values(spark, address: str, name: str) -> list[Any]:
    return [json.loads(row.value) for row in read(spark, address, name)]


def source_of(words: dict[str, Any], tmp_path: Path) -> Any:
    sink = {"out": {"from": "s", "console": ""}}
    return read_object({"sources": {"s": {"topic": "t", **words}}, "sinks": sink}, tmp_path).sources[0]


def records(spark, values: list[bytes | None]) -> Any:
    rows = [(b"k", value, "t", 3, number, MOMENT) for number, value in enumerate(values)]
    return spark.createDataFrame(rows, RECORD)


JSON = [
    (b'{"a": 1, "b": "x"}', (1, "x", None)),
    (b"{}", (None, None, None)),
    (None, (None, None, None)),
    (b'{"a": "x"}', 'a is "x", not INT'),
    (b'{"a": 1', "not JSON"),
    (b"", "not JSON"),
    (b"null", "not an object"),
    (b"[]", "not an object"),
    (b'{"a": 1}{"a": 2}', "not JSON: Extra data"),
    (b'{"a": 1} x', "not JSON: Extra data"),
    (b'{"a": 1},"x": 2', "not JSON: Extra data"),
    (b'{"a": 1},{"a": 2}', "not JSON: Extra data"),
    (b'{"a": 1}} x', "not JSON: Extra data"),
    (b'{"a": 1}],[{"a": 2}', "not JSON: Extra data"),
    (b'{"a": 1}},[{"a": 2}]', "not JSON: Extra data"),
    (b' {"a": 3, "e": [{"f": "},"}]}\n', (3, None, None)),
    (b'{"c": {"d": "x"}}', "does not fit the columns"),
    (b"\xff", "not UTF-8"),
    (b'{"a":' * 1500 + b"1" + b"}" * 1500, "not JSON that can be read: it is nested too deeply"),
]
CSV = [
    (b"1,x", (1, "x")),
    (b"1", "1 fields instead of 2"),
    (b"1,x,3", "3 fields instead of 2"),
    (b"y,x", "does not fit the columns"),
    (b"", "0 fields instead of 2"),
    (b"1,x\n2,y", "2 lines instead of one"),
    (b"1,x\r\n2,y", "2 lines instead of one"),
    (b"y," + b"x" * 200_000, "does not fit the columns"),
    (b"1" + b",x" * 140_000, "140001 fields instead of 2"),
    (b'1,"' + b",x" * 30_000 + b'"', (1, ",x" * 30_000)),
]


INFINITE = float("inf")
# Columns as NUMBERS and NESTED have them.
JSON_NUMBERS = [
    (b'{"t": -56, "p": 1.23, "w": 0.3, "f": 0.1, "d": 1e300}', (-56, *map(Decimal, ("1.23", "0.3")), 0.1, 1e300, None)),
    (b'{"t": 200}', "t is 200, which TINYINT cannot hold"),
    (b'{"p": 1.239}', "p is 1.239, which DECIMAL(5,2) cannot hold"),
    (b'{"p": "1.239"}', 'p is "1.239", not DECIMAL(5,2)'),
    (b'{"p": "1.2\\u00339"}', 'p is "1.239", not DECIMAL(5,2)'),
    (b'{"p": "1.23"}', (None, Decimal("1.23"), None, None, None, None)),
    (b'{"p": 1.2300}', (None, Decimal("1.23"), None, None, None, None)),
    (b'{"p": 12.5e-1}', (None, Decimal("1.25"), None, None, None, None)),
    (b'{"p": 1e2}', (None, Decimal(100), None, None, None, None)),
    (b'{"p": 1e-5}', "p is 1e-5, which DECIMAL(5,2) cannot hold"),
    (b'{"w": 0.30000000000000004}', "w is 0.30000000000000004, which DECIMAL(38,2) cannot hold"),
    (b'{"w": 12345678901234567890123456789012345.678}', "w is 1234"),
    (b'{"w": 12345678901234567890123456789012345.67, "x": {"s": "1.239"}}', "does not fit the columns"),
    (b'{"f": 1e60}', "f is 1e60, which FLOAT cannot hold"),
    (b'{"d": -1e400}', "d is -1e400, which DOUBLE cannot hold"),
    (b'{"d": "Infinity", "f": -Infinity}', (None, None, None, -INFINITE, INFINITE, None)),
    (b'{"d": "Infinity", "f": 1e60}', "f is 1e60, which FLOAT cannot hold"),
    (b'{"x": {"s": [{"t": 1}, {"t": 200}]}}', "does not fit the columns"),
    (b'{"x": {"m": {"a": 1.23, "b": 1.239}}}', "does not fit the columns"),
    (b'{"x": {"s": [{"t": -1}, null], "m": {"a": 1.23}}}', (None,) * 5 + (([(-1,), None], {"a": Decimal("1.23")}),)),
]
CSV_NUMBERS = [
    (b"-56,1.230,0.3,0.1,1e300", (-56, Decimal("1.23"), Decimal("0.3"), 0.1, 1e300)),
    (b"200,1,1,1,1", "does not fit the columns"),
    (b"1,1.239,1,1,1", "p is 1.239, which DECIMAL(5,2) cannot hold"),
    (b'1,"1,1.239",1,1,1', "does not fit the columns"),
    (b"1,1,0.30000000000000004,1,1", "w is 0.30000000000000004, which DECIMAL(38,2) cannot hold"),
    (b"1,1e-5,1,1,1", "p is 1e-5, which DECIMAL(5,2) cannot hold"),
    (b"1,1,1,1e60,1", "f is 1e60, which FLOAT cannot hold"),
    (b"1,1,1,1,1e400", "d is 1e400, which DOUBLE cannot hold"),
    (b"1,1,1,Inf,-Infinity", (1, Decimal(1), Decimal(1), INFINITE, -INFINITE)),
    (b"1," + b"1.239," * 140_000, "140002 fields instead of 5"),
]
LAST = datetime(9999, 12, 31, 23, 59, 59)
TEN = datetime(2026, 1, 1, 10, tzinfo=UTC)
JSON_TIMES = [
    (b'{"at": "2026-01-01T10:00:00Z", "s": "10:30"}', (TEN, None, "10:30", None)),
    (b'{"at": 1767261600, "s": "T9:30"}', (TEN, None, "T9:30", None)),
    (b'{"at": "2026-01-01 14:00:00+04:00", "local": "9999-12-31T23:59:59"}', (TEN, LAST, None, None)),
    (
        b'{"at": 1767261600123}',
        "at is 1767261600123: TIMESTAMP takes seconds; of milliseconds make a BIGINT and timestamp_m",
    ),
    (b'{"at": -99999999999999}', "at is -99999999999999: TIMESTAMP takes seconds"),
    (b'{"at": "10:00"}', 'at is "10:00", which has no day: another one each day'),
    (b'{"at": "T9:30", "s": "x"}', 'at is "T9:30", which has no day'),
    (b'{"at": "\\u00310:00"}', 'at is "10:00", which has no day'),
    (b'{"at": "+12026-01-01"}', "does not fit the columns"),
    (b'{"local": "+12026-01-01T00:00:00"}', "does not fit the columns"),
    (b'{"l": ["2026-01-01T10:00:00Z", "10:00"]}', "does not fit the columns"),
    (b'{"l": [1767261600123]}', "does not fit the columns"),
]
CSV_TIMES = [
    (b"2026-01-01T10:00:00Z,10:30", (TEN, "10:30")),
    (b"10:00,x", 'at is "10:00", which has no day'),
    (b'"9:30:15",x', 'at is "9:30:15", which has no day'),
    (b"+12026-01-01T10:00:00Z,x", "does not fit the columns"),
]
QUOTED = [
    (b'1,"a ""q"" b"', (1, 'a "q" b')),
    (b'1,"a\nb"', (1, "a\nb")),
    (b'1,"a\\"', (1, "a\\")),
    (b'1," a, b "', (1, " a, b ")),
]
TIMES = "at TIMESTAMP, local TIMESTAMP_NTZ, s STRING, l ARRAY<TIMESTAMP>"
NUMBERS = "t TINYINT, p DECIMAL(5, 2), w DECIMAL(38, 2), f FLOAT, d DOUBLE"
NESTED = "x STRUCT<s: ARRAY<STRUCT<t: TINYINT>>, m: MAP<STRING, DECIMAL(5, 2)>>"


@pytest.mark.parametrize(
    ("words", "given"),
    [
        ({"format": "json", "schema": "a INT, b STRING, c STRUCT<d: INT>", "quarantine": "q"}, JSON),
        ({"format": "csv", "schema": "a INT, b STRING", "quarantine": "q"}, CSV + QUOTED),
        ({"format": "json", "schema": f"{NUMBERS}, {NESTED}", "quarantine": "q"}, JSON_NUMBERS),
        ({"format": "csv", "schema": NUMBERS, "quarantine": "q"}, CSV_NUMBERS),
        ({"format": "json", "schema": TIMES, "quarantine": "q"}, JSON_TIMES),
        ({"format": "csv", "schema": "at TIMESTAMP, s STRING", "quarantine": "q"}, CSV_TIMES),
        (
            {
                "format": "json",
                "schema": "at TIMESTAMP",
                "quarantine": "q",
                "format_options": {"timestampFormat": "HH:mm"},
            },
            [(b'{"at": "10:00"}', (datetime(1970, 1, 1, 10, tzinfo=UTC),))],
        ),
    ],
    ids=["json", "csv", "numbers in json", "numbers in csv", "times in json", "times in csv", "times by a format"],
)
def test_what_fits_and_what_does_not(spark, tmp_path, words, given):
    """A malformed record is recognised, whatever is wrong with it, and gets its reason."""
    source = source_of(words, tmp_path)
    decoded = formats.decoded(records(spark, [value for value, _ in given]), source, tmp_path)
    good = formats.good(decoded, source).orderBy("_offset").collect()
    width = len(good[0]) - 6
    assert [tuple(map(comparable, row))[:width] for row in good] == [
        told for _, told in given if isinstance(told, tuple)
    ]
    bad = formats.bad(decoded, source, tmp_path).collect()
    told = {headers["ottla.offset"]: headers for row in bad for headers in [headers_of(row)]}
    expected = {str(number): text for number, (_, text) in enumerate(given) if isinstance(text, str)}
    assert told.keys() == expected.keys()
    for offset, text in expected.items():
        assert told[offset]["ottla.error"].startswith(text)
        assert (told[offset]["ottla.topic"], told[offset]["ottla.partition"]) == ("t", "3")
    assert {bytes(row.value) for row in bad} == {value for value, text in given if isinstance(text, str)}


def comparable(value: Any) -> Any:
    """A FLOAT as it is written; a moment in UTC, as which Spark hands out what is local here."""
    if isinstance(value, datetime) and value != LAST:
        return value.astimezone(UTC)
    return float(f"{value:.7g}") if isinstance(value, float) else value


WRITTEN = [
    (datetime(2026, 1, 2, 3, 4, 5, 123456, UTC), 'a "q" b'),
    (datetime(2026, 1, 2, 3, 4, 5, tzinfo=UTC), " x "),
    (datetime(1969, 12, 31, 23, 59, 59, 999999, UTC), "a\nb,c"),
    (None, "\\"),
    (datetime(2026, 1, 2, tzinfo=UTC), 'a\\"b'),
]


@pytest.mark.parametrize("form", ["json", "csv"])
def test_times_and_texts_come_back_as_they_were_written(spark, tmp_path, form):
    """With their microseconds, quotes and spaces; quotes stand twice, as everybody writes them."""
    source = source_of({"format": form, "schema": "at TIMESTAMP, local TIMESTAMP_NTZ, s STRING"}, tmp_path)
    rows = [(number, at, at and at.replace(tzinfo=None), text) for number, (at, text) in enumerate(WRITTEN)]
    given = spark.createDataFrame(rows, "i INT, at TIMESTAMP, local TIMESTAMP_NTZ, s STRING")
    written = formats.encoded(given.orderBy("i").drop("i"), source.format, "", tmp_path).collect()
    read_again = formats.good(
        formats.decoded(records(spark, [bytes(row.value) for row in written]), source, tmp_path), source
    )
    micros = "unix_micros(at)", "unix_micros(CAST(local AS TIMESTAMP))", "s"
    expected = given.orderBy("i").selectExpr(*micros).collect()
    assert read_again.orderBy("_offset").selectExpr(*micros).collect() == expected
    if form == "csv":
        assert bytes(written[0].value).startswith(b"2026-01-02T03:04:05.123456Z,2026-01-02T03:04:05.123456,")
        assert bytes(written[0].value).endswith(b',"a ""q"" b"')
    else:
        assert json.loads(written[0].value)["at"] == "2026-01-02T03:04:05.123456Z"


def test_options_of_a_format_are_those_of_spark_and_win(spark, tmp_path):
    words = {"format": "csv", "schema": "at TIMESTAMP, s STRING", "quarantine": "q"}
    options = {"Escape": "\\", "TIMESTAMPFORMAT": "yyyy-MM-dd HH:mm", "sep": ";"}
    source = source_of({**words, "format_options": options}, tmp_path)
    row = spark.createDataFrame([(MOMENT, 'a "q"; b')], "at TIMESTAMP, s STRING")
    [written] = formats.encoded(row, source.format, "", tmp_path).collect()
    assert bytes(written.value) == b'2026-01-01 00:00;"a \\"q\\"; b"'
    decoded = formats.decoded(records(spark, [bytes(written.value), b"1"]), source, tmp_path)
    assert [each.s for each in formats.good(decoded, source).collect()] == ['a "q"; b']
    [bad] = formats.bad(decoded, source, tmp_path).collect()
    assert headers_of(bad)["ottla.error"] == "1 fields instead of 2"


def headers_of(row: Any) -> dict[str, str]:
    return {header.key: bytes(header.value).decode() for header in row.headers}


def test_without_a_quarantine_the_first_bad_record_is_an_error_that_names_it(spark, tmp_path):
    source = source_of({"format": "json", "schema": "a INT"}, tmp_path)
    frame = formats.good(formats.decoded(records(spark, [b'{"a":1}', b"oops"]), source, tmp_path), source)
    with pytest.raises(Exception, match=r"source 's': the record at t-3 offset 1: does not fit the schema"):
        frame.collect()


@pytest.mark.parametrize(
    ("quarantine", "values", "row"),
    [
        ({}, [b"oops", b'{"a":2}'], 2),
        ({"quarantine": "q"}, [b"oops", b'{"a":2}'], 2),
        ({"quarantine": "q"}, [b'{"a":1}', b"oops"], 1),
        ({}, [b"oops", None], None),
        ({}, [b'{"a":1}', b"oops"], "the record at t-3 offset 1"),
    ],
)
def test_a_bad_record_of_a_table_counts_until_something_newer_takes_its_place(spark, tmp_path, quarantine, values, row):
    source = source_of({"format": "json", "schema": "a INT", "as": "table", **quarantine}, tmp_path)
    frame = sources.table_of(records(spark, values), source, tmp_path)
    if isinstance(row, str):
        with pytest.raises(Exception, match=row):
            frame.collect()
    else:
        assert [each.a for each in frame.collect()] == ([] if row is None else [row])


@pytest.mark.parametrize("form", ["json", "raw"])
@pytest.mark.parametrize("quarantine", ["", "q"])
def test_a_table_of_several_topics_is_a_table_of_each(spark, tmp_path, quarantine, form):
    """An offset of one says nothing about another: the newest of a key is that of its topic, and so is a delete."""
    records = [("a", 0, b"k", 1), ("a", 9, b"k", 2), ("b", 3, b"k", 3), ("b", 4, b"l", 4), ("a", 10, b"l", None)]
    schema = {"format": "json", "schema": "n INT"} if form == "json" else {"format": "raw"}
    words = {"topics": ["a", "b"], "as": "table", **schema, "quarantine": quarantine}
    sink = {"out": {"from": "s", "console": ""}}
    source = read_object({"sources": {"s": words}, "sinks": sink}, tmp_path).sources[0]
    frame = sources.table_of(of_topics(spark, records), source, tmp_path)
    column = "n" if form == "json" else "get_json_object(CAST(value AS STRING), '$.n')"
    found = frame.selectExpr("_topic", "_key", f"CAST({column} AS INT)").collect()
    assert sorted(map(tuple, found)) == [("a", "k", 2), ("b", "k", 3), ("b", "l", 4)]


def of_topics(spark, records: list[tuple[str, int, bytes | None, int | None]]) -> Any:
    rows = [(key, None if n is None else b'{"n":%d}' % n, name, 0, offset, MOMENT) for name, offset, key, n in records]
    return spark.createDataFrame(rows, RECORD)


@pytest.mark.parametrize("schema", [{"format": "json", "schema": "n INT"}, {"format": "raw"}], ids=["json", "raw"])
def test_a_record_without_a_key_is_none_of_a_table(spark, tmp_path, schema):
    """All of them would be one row. They go where records go that do not fit; a stream takes them."""
    given = of_topics(spark, [("a", 0, None, 1), ("a", 1, None, 2), ("a", 2, b"k", 3)])
    source = source_of({**schema, "as": "table", "quarantine": "q"}, tmp_path)
    assert [row._offset for row in sources.table_of(given, source, tmp_path).collect()] == [2]
    bad = formats.bad(formats.decoded(given, source, tmp_path), source, tmp_path).collect()
    told = {headers_of(row)["ottla.offset"]: headers_of(row)["ottla.error"] for row in bad}
    assert told == dict.fromkeys(("0", "1"), "has no key, and in a table each record needs one")
    strict = source_of({**schema, "as": "table"}, tmp_path)
    with pytest.raises(Exception, match=r"the record at a-0 offset 1: has no key, .*; name a quarantine topic"):
        sources.table_of(given, strict, tmp_path).collect()
    stream = source_of({**schema, "quarantine": "q"}, tmp_path)
    assert formats.good(formats.decoded(given, stream, tmp_path), stream).count() == 3


def test_a_table_of_bytes_has_a_quarantine_and_is_judged(spark, address, tmp_path):
    send(address, "keyless", [("k", {"n": 1}), (None, {"n": 2})])
    words = {"topic": "keyless", "as": "table", "format": "raw"}
    given = {
        "bootstrap": address,
        "sources": {"apart": {**words, "quarantine": "q"}, "strict": words, "s": {"topic": "keyless", "format": "raw"}},
        "sinks": {"out": {"from": "s", "console": ""}},
    }
    spec = read_object(given, tmp_path)
    made = building.queries_of(spark, spec, building.views_of(spark, spec))
    assert [query.name for query in made] == ["pipeline.quarantine.apart", "pipeline.out"]
    report = checking.check(spark, spec, checking.look(spec), 20)
    assert [problem for problem in report.problems if "keyless-0 offset 1 does not fit: has no key" in problem]
    assert len(report.problems) == 1


def test_avro_through_python_both_ways(spark, tmp_path):
    (tmp_path / "v.avsc").write_text(json.dumps(AVRO))
    source = source_of({"format": "avro", "schema": "v.avsc", "quarantine": "q"}, tmp_path)
    rows = spark.createDataFrame([("u1", 1), ("u2", 2)], "user STRING, n INT")
    sent = formats.encoded(rows, source.format, "upper(user)", tmp_path).collect()
    assert [bytes(row.key) for row in sent] == [b"U1", b"U2"]
    decoded = formats.decoded(records(spark, [*(bytes(row.value) for row in sent), b"\x01"]), source, tmp_path)
    good = formats.good(decoded, source).select("user", "n").collect()
    assert [tuple(row) for row in good] == [("u1", 1), ("u2", 2)]
    assert [bytes(row.value) for row in formats.bad(decoded, source, tmp_path).collect()] == [b"\x01"]


def test_avro_is_not_given_a_number_that_its_schema_cannot_hold(spark, tmp_path):
    """A sum is a BIGINT: where the schema says int, it is told by its name, and nothing is started again and again."""
    (tmp_path / "v.avsc").write_text(json.dumps(AVRO))
    source = source_of({"format": "avro", "schema": "v.avsc"}, tmp_path)
    rows = spark.createDataFrame([("u1", 1), ("u2", 3_000_000_000)], "user STRING, n BIGINT")
    with pytest.raises(Exception, match="n is 3000000000, which int cannot hold") as caught:
        formats.encoded(rows, source.format, "user", tmp_path).collect()
    assert failures.is_fatal(str(caught.value))
    assert failures.cause(str(caught.value)).startswith("a row does not fit the schema that it is to be written with")


@pytest.mark.parametrize(
    ("schema", "told"),
    [
        ("a STRNG", r"'schema' is not a list of columns: .* data type \"STRNG\".*: did you mean 'STRING'\?"),
        ("a WRONG", r".*\"WRONG\".*: write one of STRING, INT, "),
        ("a", r"'schema' is not a list of columns: .*Syntax error"),
    ],
)
def test_a_schema_that_is_none_is_told_with_its_place(spark, tmp_path, schema, told):
    file = tmp_path / "p.yml"
    file.write_text(f"sources:\n  s:\n    topic: t\n    schema: {schema}\nsinks:\n  o: {{from: s, console: ''}}\n")
    with pytest.raises(WrongPipeline, match=rf"p.yml:4: {told}"):
        formats.fields_of(read_file(file).sources[0].format, tmp_path)


def test_a_pipeline_goes_on_where_it_was_and_sees_the_table_of_the_day(spark, address, tmp_path):
    """STR-02, STR-05: a stream joined with a table, bad records in quarantine, each row once over two runs."""
    send(address, "views", [("u1", {"user": "u1", "n": 1}), ("bad", b"{oops"), ("u2", {"user": "u2", "n": 2})])
    send(address, "names", [("u1", {"name": "Ann"}), ("u2", {"name": "Bob"}), ("u1", {"name": "Anna"}), ("u2", None)])
    pipeline = (
        Pipeline("both", bootstrap=address, trigger="available-now", directory=tmp_path)
        .source("views", topic("views", format="json", schema="user STRING, n INT", quarantine="bad"))
        .source("names", table("names", format="json", schema="name STRING"))
        .sql("named", "SELECT v.n, u.name, v._key FROM views v LEFT JOIN names u ON v.user = u._key")
        .step("doubled", lambda named, times: named.withColumn("n", named.n * times), arguments={"times": 2})
        .sink("out", to_topic("named"), of="doubled")
    )
    pipeline.run()
    assert values(spark, address, "named") == [{"n": 2, "name": "Anna"}, {"n": 4, "name": None}]
    send(address, "names", [("u1", {"name": "Zoe"})])
    send(address, "views", [("u1", {"user": "u1", "n": 3})])
    running = pipeline.start()
    assert running.wait(300)
    assert [state.state for state in running.states] == ["done", "done"]
    found = read(spark, address, "named")
    assert [json.loads(row.value) for row in found][2:] == [{"n": 6, "name": "Zoe"}]
    assert [bytes(row.key) for row in found] == [b"u1", b"u2", b"u1"]
    [bad] = read(spark, address, "bad", headers=True)
    assert (bytes(bad.key), bytes(bad.value)) == (b"bad", b"{oops")
    assert headers_of(bad)["ottla.error"].startswith("not JSON")


def test_a_table_is_looked_at_anew_for_each_micro_batch(spark, address, tmp_path):
    """Spark plans a batch read from Python once, unless a filter is pushed down: if that changes, this fails."""
    send(address, "numbers", [(None, {"n": 1})])
    send(address, "words", [("1", {"word": "one"})])
    pipeline = (
        Pipeline("fresh", bootstrap=address, directory=tmp_path)
        .source("numbers", topic("numbers", format="json", schema="n INT"))
        .source("words", table("words", format="json", schema="word STRING"))
        .sql("said", "SELECT n, word FROM numbers JOIN words ON CAST(n AS STRING) = words._key")
        .sink("said", to_memory("said_words"), of="said")
    )
    running = pipeline.start()
    try:
        until(lambda: running.states[0].rows >= 1 or running.wait(0))
        with pytest.raises(Runs, match=f"runs already, as process {os.getpid()}"):
            pipeline.run()  # a second one would write under the same names
        assert status.read(tmp_path / ".ottla" / "fresh")["queries"][0]["state"] == "running"
        send(address, "words", [("1", {"word": "uno"})])
        send(address, "numbers", [(None, {"n": 1})])
        until(lambda: running.states[0].rows >= 2 or running.wait(0))
    finally:
        running.stop()
    assert [row.word for row in spark.table("said_words").collect()] == ["one", "uno"]
    assert status.pid(tmp_path / ".ottla" / "fresh") is None, "the lock is let go"
    assert status.read(tmp_path / ".ottla" / "fresh")["queries"][0]["state"] == "stopped"


def test_rows_behind_the_watermark_are_counted(spark, address, tmp_path):
    """Spark leaves them out without a word."""
    times = [
        "10:00",
        "10:30",
        "10:31",
        "10:01",
    ]  # the last of them in the second micro-batch after the watermark passed
    send(address, "late", [(None, {"at": f"2026-01-01T{time}:00Z"}) for time in times])
    one_by_one = {"format": "json", "schema": "at TIMESTAMP", "options": {"maxOffsetsPerTrigger": 1}}
    pipeline = Pipeline("late", bootstrap=address, trigger="available-now", directory=tmp_path)
    pipeline.source("late", topic("late", **one_by_one, watermark={"column": "at", "delay": "1 minute"}))
    pipeline.sql("counts", "SELECT count(*) AS n FROM late GROUP BY window(at, '1 minute')")
    running = pipeline.sink("counts", to_memory("late_counts", mode="update"), of="counts").start()
    assert running.wait(300)
    assert [(state.rows, state.late) for state in running.states] == [(4, 1)]


def until(condition) -> None:
    deadline = time.monotonic() + 300
    while not condition():
        assert time.monotonic() < deadline
        time.sleep(0.05)


def test_a_record_that_does_not_fit_ends_it_and_is_named(spark, address, tmp_path):
    """And a quarantine that is named then gets it, although it is not among the latest any more."""

    def run(quarantine: str = "") -> None:
        given = topic("misfits", format="json", schema="n INT", start="latest", quarantine=quarantine)
        made = Pipeline("strict", bootstrap=address, trigger="available-now", directory=tmp_path)
        made.source("misfits", given).sink("out", to_topic("fits"), of="misfits").run()

    send(address, "misfits", [("k", {"n": 0})])
    run()
    send(address, "misfits", [("k", {"n": "many"}), ("k", {"n": 2})])
    with pytest.raises(Failed, match=r"the record at misfits-0 offset 1: does not fit the schema"):
        run()
    run("misfits-apart")
    assert values(spark, address, "fits") == [{"n": 2}]
    assert values(spark, address, "misfits-apart") == [{"n": "many"}]


def test_what_was_aborted_is_no_record(spark, address, tmp_path):
    """STR-05: exactly once from one pipeline to the next: what a driver had written when it died lies in the topic, and is
    read by nobody, as a stream or as a table."""

    async def main() -> None:
        async with Cluster(address) as cluster, Producer(cluster, transactional_id="of-aborted") as producer:
            await producer.init()
            for number, ends in enumerate((producer.abort, producer.commit, producer.abort)):
                producer.begin()
                await producer.send("aborted", value=b'{"n": %d}' % number, key=b"k")
                await ends()

    asyncio.run(main())
    words = {"format": "json", "schema": "n INT"}
    made = Pipeline("aborted", bootstrap=address, trigger="available-now", directory=tmp_path)
    made.source("stream", topic("aborted", **words)).source("newest", table("aborted", **words))
    assert [row.n for row in made.views()["newest"].collect()] == [1]
    made.sink("out", to_memory("not_aborted"), of="stream").run()
    assert [row.n for row in spark.table("not_aborted").collect()] == [1]


def test_a_failure_that_may_pass_is_waited_for(spark, address, tmp_path):
    """Whatever words stand in the plan of the query, which Spark tells as well: here those for a record that does not fit."""

    def frail(strict_words: Any) -> Any:
        def once(parts: Any) -> Any:
            if not (tmp_path / "failed").exists():
                (tmp_path / "failed").touch()
                raise OSError("gone for a moment")
            yield from parts

        return strict_words.select("n").mapInArrow(once, "n INT")

    send(address, "weather", [("k", {"n": 1})])
    made = Pipeline("weather", bootstrap=address, trigger="available-now", directory=tmp_path)
    made.source("strict_words", topic("weather", format="json", schema="n INT")).step("frail", frail)
    running = made.sink("out", to_memory("weathered"), of="frail").start()
    assert running.wait(300)
    assert [(state.state, state.restarts) for state in running.states] == [("done", 1)]
    assert [row.n for row in spark.table("weathered").collect()] == [1]


def test_a_large_record_that_does_not_fit_ends_nothing(spark, address, tmp_path):
    """What a producer packed into a megabyte is packed again; of what cannot be written as it is there is a piece, and its
    place. Options of the quarantine are those of the sink, and say where it is."""
    packed, noise = b"{" + b"x" * 3_000_000, b"{" + os.urandom(900_000)
    sent = [b'{"n": 1}', packed, noise]

    async def sending() -> None:
        async with Cluster(address, client_id="test") as cluster, Producer(cluster, codec=Codec.ZSTD) as producer:
            for value in sent:
                await producer.send("large", key=b"k", value=value, headers=[("whose", b"mine")])

    asyncio.run(sending())
    create(address, "large-apart", max_message_bytes="800000")
    options = {"kafka.bootstrap.servers": address}
    given = topic("large", format="json", schema="n INT", quarantine="large-apart", options=options)
    pipeline = Pipeline(
        "large", bootstrap="127.0.0.1:1", quarantine_options=options, trigger="available-now", directory=tmp_path
    )
    pipeline.source("large", given).sink("out", to_topic("large-fits", options=options), of="large").run()
    assert values(spark, address, "large-fits") == [{"n": 1}]
    whole, piece = read(spark, address, "large-apart", headers=True)
    assert bytes(whole.value) == packed and "ottla.cut" not in headers_of(whole)
    assert (bytes(piece.key), bytes(piece.value)) == (b"k", noise[: 64 << 10])
    told = headers_of(piece)
    assert told["ottla.cut"] == f"value: the first 65536 of {len(noise)} bytes"
    assert (told["whose"], told["ottla.topic"], told["ottla.partition"]) == ("mine", "large", "0")
    assert (told["ottla.offset"], told["ottla.error"]) == ("2", "not UTF-8")


def create(address: str, name: str, **configs: str) -> None:
    async def creating() -> None:
        async with Cluster(address, client_id="test") as cluster:
            settings = {setting.replace("_", "."): value for setting, value in configs.items()}
            await Admin(cluster).create_topic(name, configs=settings)

    asyncio.run(creating())


def test_files_whose_checkpoint_is_gone_are_not_added_to(spark, address, tmp_path):
    """Spark would take new micro-batches for those of the same numbers that are there, and pass over them in silence."""
    pipeline = Pipeline("kept", bootstrap=address, trigger="available-now", directory=tmp_path)
    pipeline.source("kept", topic("kept", format="json", schema="n INT")).sink("out", to_parquet("out"), of="kept")
    send(address, "kept", [(None, {"n": 1})])
    pipeline.run()
    send(address, "kept", [(None, {"n": 2})])
    pipeline.run()
    assert {row.n for row in spark.read.parquet(str(tmp_path / "out")).collect()} == {1, 2}
    shutil.rmtree(tmp_path / ".ottla" / "kept" / "checkpoints")
    send(address, "kept", [(None, {"n": 3})])
    with pytest.raises(WrongPipeline, match=r"out has micro-batches up to 1, .* up to -1: .* another directory"):
        pipeline.run()


def test_what_updates_notices_a_checkpoint_that_was_put_back(spark, address, tmp_path):
    """One micro-batch older than the output: its next one has the number of the last, and more in it."""
    place, backup = tmp_path / ".ottla" / "back" / "checkpoints", tmp_path / "backup"
    pipeline = Pipeline("back", bootstrap=address, trigger="available-now", directory=tmp_path)
    pipeline.source("back", topic("back", format="json", schema="n INT"))
    pipeline.sink("out", to_topic("back-again", mode="update"), of="back")
    for number in (1, 2):
        send(address, "back", [(None, {"n": number})])
        pipeline.run()
        if number == 1:
            shutil.copytree(place, backup)
    shutil.rmtree(place)
    shutil.move(backup, place)
    send(address, "back", [(None, {"n": 4})])
    with pytest.raises(Failed, match="its checkpoint is an older copy"):
        pipeline.run()
    assert [row["n"] for row in values(spark, address, "back-again")] == [1, 2]


def test_a_table_in_memory_begins_anew_with_each_run(spark, tmp_path):
    """Its rows are gone with the run before it, so that a checkpoint must not say that they are there."""
    (tmp_path / "in").mkdir()
    pipeline = Pipeline("again", trigger="available-now", directory=tmp_path)
    pipeline.source("s", {"files": "in", "as": "stream", "format": "json", "schema": "n INT"})
    pipeline.sink("out", to_memory("found_again"), of="s")
    for number in (1, 2):
        (tmp_path / "in" / f"{number}.json").write_text(json.dumps({"n": number}))
        pipeline.run()
        assert {row.n for row in spark.table("found_again").collect()} == set(range(1, number + 1))


def test_views_can_be_looked_at_before_there_are_sinks(spark, tmp_path):
    (tmp_path / "n.json").write_text('{"n": 20}')
    pipeline = Pipeline("looking", directory=tmp_path).source("s", {"files": "n.json", "format": "json"})
    assert pipeline.sql("more", "SELECT n + 1 AS n FROM s").views()["more"].first().n == 21
    with pytest.raises(WrongPipeline, match="a pipeline needs 'sinks'"):
        pipeline.run()


def test_a_checkpoint_says_whose_it_is_where_spark_does_not(spark, tmp_path, monkeypatch):
    """In a function that a server of Spark Connect calls, nobody else knows the query, and exactly once needs it."""
    place = tmp_path / "checkpoint"
    writer = spark.readStream.format("rate").load().writeStream.format("noop").option("checkpointLocation", str(place))
    handle = writer.start()
    handle.stop()
    monkeypatch.setattr(sinks, "is_remote", lambda: True)
    asked = sinks.Asked(str(place))
    assert asked.query_of(spark.range(1)) == handle.id
    for file in (place / "metadata", place / ".metadata.crc"):
        file.unlink()
    assert asked.query_of(spark.range(1)) == handle.id, "it stays the same while a query runs"
    (place / "metadata").write_text('{"nothing": 1}')
    with pytest.raises(SinkError, match="metadata does not say which query this is"):
        sinks.Asked(str(place)).query_of(spark.range(1))


def test_check_holds_a_file_against_the_live_topics(spark, address, tmp_path):
    send(address, "checked", [("k", {"n": 1}), ("k", {"n": "x"})])
    words = {"format": "json", "schema": "n INT"}
    spec = read_object(
        {
            "bootstrap": address,
            "sources": {
                "good": {"topic": "checked", **words, "quarantine": "q"},
                "not_there": {"topic": "chekced", **words},
            },
            "steps": {"wrong": {"sql": "SELECT m FROM good"}},
            "sinks": {"out": {"from": "good", "topic": "checked", "key": "n"}},
        },
        tmp_path,
    )
    report = checking.check(spark, spec, checking.look(spec), 20)
    notes = {part.name: " | ".join(part.notes) for part in report.parts}
    assert "topic checked: 1 partition, 2 offsets" in notes["good"]
    assert "1 of the last 2 records fit" in notes["good"] and 'n is "x", not INT' in notes["good"]
    assert "to try the format on" not in notes["not_there"], "there is no topic that could be empty"
    assert "exactly once" in next(part.what for part in report.parts if part.name == "out")
    assert [problem.split(": ")[0] for problem in report.problems] == ["sources.not_there", "steps.wrong"]
    assert "there is no topic 'chekced': did you mean 'checked'?" in report.problems[0]
    assert f"`ottla topic create chekced -b {address}`" in report.problems[0]
    assert "UNRESOLVED_COLUMN" in report.problems[1]


TICKS = {"rate": 1, "watermark": {"column": "timestamp", "delay": "1 minute"}}
ONE_HOUR = "b.timestamp BETWEEN a.timestamp AND a.timestamp + INTERVAL 1 HOUR"
# A step, the mode of its sink, and what Spark does not like about it.
REFUSED = [
    ("SELECT value, count(*) AS n FROM ticks GROUP BY value", "append", "aggregations without watermark"),
    ("SELECT value FROM ticks GROUP BY session_window(timestamp, '1 minute'), value", "update", "session window"),
    ("SELECT value FROM ticks", "complete", "no streaming aggregations"),
    ("SELECT n, count(*) FROM (SELECT count(*) AS n FROM ticks GROUP BY value) GROUP BY n", "update", "'correctness'"),
    ("SELECT * FROM ticks ORDER BY value", "append", "Sorting is not supported"),
    ("SELECT * FROM ticks LIMIT 1", "update", "Limits are not supported"),
    ("SELECT a.value FROM free a LEFT JOIN ticks b ON a.value = b.value", "append", "join between two streaming"),
    ("SELECT row_number() OVER (ORDER BY timestamp) FROM ticks", "append", "NON_TIME_WINDOW_NOT_SUPPORTED"),
]
ALLOWED = [
    ("SELECT value, count(*) AS n FROM ticks GROUP BY value", "update"),
    ("SELECT value FROM ticks GROUP BY session_window(timestamp, '1 minute'), value", "append"),
    (f"SELECT a.value FROM ticks a LEFT JOIN tocks b ON a.value = b.value AND {ONE_HOUR}", "append"),
]


def test_what_spark_does_not_do_in_a_mode_is_told_before_anything_starts(spark, tmp_path):
    """With what to write: each advice is for something that Spark of this version refuses in these words."""
    steps: dict[str, Any] = {f"s{n}": {"sql": each[0]} for n, each in enumerate([*REFUSED, *ALLOWED])}
    sinks: dict[str, Any] = {
        f"k{n}": {"from": f"s{n}", "console": "", "mode": each[1]} for n, each in enumerate([*REFUSED, *ALLOWED])
    }
    steps["twice"] = {"sql": "SELECT value FROM ticks", "deduplicate": {"columns": ["value"]}}
    sinks["twice"] = {"from": "twice", "console": ""}
    given = {"sources": {"ticks": TICKS, "tocks": TICKS, "free": {"rate": 1}}, "steps": steps, "sinks": sinks}
    report = checking.check(spark, read_object(given, tmp_path), {}, 0)
    signs = [sign for _, _, sign in REFUSED] + ["dropDuplicatesWithinWatermark"]
    assert len(report.problems) == len(signs) == len(modes.ADVICE)
    for problem, sign in zip(report.problems, signs, strict=True):
        assert sign in problem and modes.advice(problem) and problem.endswith(modes.advice(problem))


def test_a_step_that_reads_what_is_not_there_is_told_so(spark, tmp_path):
    """Even if the session knows a view of that name from before; and of what is wrong itself it is said once."""
    spark.range(1).createOrReplaceTempView("later")
    steps = {
        "early": {"sql": "SELECT * FROM later"},
        "later": {"sql": "SELECT value FROM tikcs"},
        "after": {"sql": "SELECT * FROM later"},
        "called": {"python": lambda tikcs: tikcs},
    }
    sinks = {"out": {"from": "after", "console": ""}}
    spec = read_object({"sources": {"ticks": {"rate": 1}}, "steps": steps, "sinks": sinks}, tmp_path)
    report = checking.check(spark, spec, {}, 0)
    assert [problem.split(": ", 1) for problem in report.problems] == [
        ["steps.early", "step 'early' reads 'later': there is no such source or step before it: write one of ticks"],
        ["steps.later", "step 'later' reads 'tikcs': there is no such source or step before it: did you mean 'ticks'?"],
        [
            "steps.called",
            "<lambda> asks for 'tikcs', which is no argument: there is no such source or step before it: "
            "did you mean 'ticks'?",
        ],
    ]
    assert [part.notes for part in report.parts if part.name == "after"] == [["not judged: later is wrong"]]
    with pytest.raises(WrongPipeline, match="step 'early' reads 'later'"):
        building.views_of(spark, spec)


def test_check_asks_the_cluster_that_a_source_or_a_sink_names(spark, address, tmp_path):
    """Its own option, however it is written, counts more than that of the pipeline: there is nobody at that address."""
    send(address, "far-away", [("k", {"n": 1}), ("k", {"n": "x"})])
    there = {"Kafka.Bootstrap.Servers": address}
    words = {"topic": "far-away", "format": "json", "schema": "n INT", "options": there}
    out = {"from": "far", "topic": "far-away", "options": there}
    given = {"bootstrap": "127.0.0.1:1", "sources": {"far": words}, "sinks": {"out": out}}
    spec = read_object(given, tmp_path)
    report = checking.check(spark, spec, checking.look(spec), 20)
    notes = {part.name: " | ".join(part.notes) for part in report.parts}
    assert "topic far-away: 1 partition, 2 offsets" in notes["far"] and "1 of the last 2 records fit" in notes["far"]
    assert "topic far-away: 1 partition" in notes["out"]
    [problem] = report.problems
    assert 'far-away-0 offset 1 does not fit: n is "x", not INT' in problem


def ottla(*words: str, **more: Any) -> subprocess.Popen[str]:
    command = [sys.executable, "-m", "ottla", "pipeline", *words]
    return subprocess.Popen(command, text=True, preexec_fn=die_with_parent, **more)


def test_the_command_runs_a_file_tells_about_it_and_stops_it(tmp_path):
    """Progress as JSON where nobody watches; `status` and `stop` find the process, which ends cleanly, and so do the
    workers of its Python step: none of them says that its socket was closed."""
    file = tmp_path / "p.yml"
    file.write_text(
        "sources: {r: {rate: 5}}\nsteps: {s: {python: 'own.py:s'}}\nsinks: {out: {from: s, parquet: out}}\n"
    )
    (tmp_path / "own.py").write_text("def s(r):\n    return r.mapInArrow(lambda batches: batches, r.schema)\n")
    options = ["--master", "local[1]", "--conf", "spark.sql.shuffle.partitions=1"]
    with ottla("run", str(file), *options, stdout=subprocess.PIPE, stderr=subprocess.PIPE) as process:
        assert process.stdout is not None
        lines = (json.loads(line) for line in process.stdout)
        told = next(line for line in lines if line["batch"] is not None)
        assert (told["name"], told["state"]) == ("p.out", "running")
        until(lambda: (tmp_path / ".ottla" / "p" / "status.json").exists())
        with ottla("status", str(file), "--json", stdout=subprocess.PIPE) as status:
            found = json.loads(status.communicate(timeout=60)[0])
        assert (found["running"], found["pid"]) == (True, process.pid)
        with ottla("stop", str(file), stdout=subprocess.PIPE) as stop:
            assert stop.communicate(timeout=90)[0] == f"process {process.pid} has ended\n"
        assert process.wait(90) == 0
        assert "Traceback" not in process.stderr.read()  # type: ignore[union-attr]
    assert list((tmp_path / "out").glob("*.parquet"))


VIEWS = [
    ("u1", {"user": "u1", "page": "/", "at": "2026-01-01T10:00:10Z"}),
    ("u2", {"user": "u2", "page": "/", "at": "2026-01-01T10:00:20Z"}),
    ("u3", {"user": "u3", "page": "/", "at": "2026-01-01T10:01:20Z"}),
    ("xx", b"?"),
]
USERS = [("u1", {"name": "Ann", "country": "CZ"}), ("u2", {"name": "Bob", "country": "CZ"})]
ORDERS = [
    ("1", {"id": 1, "customer": "ann", "amount": 80.0, "at": "2026-01-01T10:00:00Z"}),
    ("1", {"id": 1, "customer": "ann", "amount": 80.0, "at": "2026-01-01T10:00:00Z"}),
    ("2", {"id": 2, "customer": "bob", "amount": 5.0, "at": "2026-01-01T10:00:00Z"}),
]
PAYMENTS = [("1", b"1,2026-01-01T10:30:00Z"), ("2", b"2,2026-01-01T12:30:00Z")]


def example(name: str, address: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Pipeline:
    """The example as it is, run once over what is there."""
    shutil.copytree(
        TREE / "examples" / "pipelines", tmp_path, dirs_exist_ok=True, ignore=shutil.ignore_patterns(".ottla")
    )
    monkeypatch.setenv("OTTLA_BOOTSTRAP", address)
    file = tmp_path / name
    file.write_text(f"trigger: available-now\n{file.read_text()}")
    read_file(file)
    return Pipeline.from_file(file)


def test_the_example_of_page_views(spark, address, tmp_path, monkeypatch):
    """STR-02, STR-08: a stream-table join and windows in SQL, into a topic and into Parquet."""
    send(address, "page-views", VIEWS)
    send(address, "users", USERS)
    example("page-views.yml", address, tmp_path, monkeypatch).run()
    found = {(row["minute"], row["country"]): row["views"] for row in values(spark, address, "views-per-country")}
    assert found == {("2026-01-01T10:00:00.000000Z", "CZ"): 2, ("2026-01-01T10:01:00.000000Z", "unknown"): 1}
    assert len(read(spark, address, "page-views-quarantine")) == 1
    archived = spark.read.parquet(str(tmp_path / "archive")).select("user", "country").collect()
    assert sorted(map(tuple, archived)) == [("u1", "CZ"), ("u2", "CZ"), ("u3", "unknown")]


def test_the_example_of_orders(spark, address, tmp_path, monkeypatch):
    """STR-02, STR-03: a stream-stream join, duplicates dropped, and state of our own in RocksDB."""
    send(address, "orders", ORDERS)
    send(address, "payments", PAYMENTS)
    example("orders.yml", address, tmp_path, monkeypatch).run()
    [paid] = values(spark, address, "paid-orders")
    assert (paid["id"], paid["paid_at"]) == (1, "2026-01-01T10:30:00.000000Z")
    spent = {row["customer"]: (row["spent"], row["alarm"]) for row in values(spark, address, "spending")}
    assert spent == {"ann": (160.0, True), "bob": (5.0, False)}


CELL = re.compile(r"<!-- (cell|first cell|next cell) -->\n```python\n(.*?)```", re.DOTALL)
SHOWN = re.compile(r"^(\+[-+]+\+)\n.*\n\1\n((?:\|.*\n)*)\1$", re.MULTILINE)


def cells() -> list[list[str]]:
    """Each with what is run before it: nothing, or the first cell of its page."""
    found: list[list[str]] = []
    for page in ("pipeline.md", "streams-to-spark.md"):
        before: list[str] = []
        for place, cell in CELL.findall((TREE / "docs" / page).read_text()):
            if place == "first cell":
                before = [cell]
            else:
                found.append([*before, cell] if place == "next cell" else [cell])
    return found


def title(cells: list[str]) -> str:
    return cells[-1].splitlines()[0].strip("# ")[:40]


@pytest.mark.parametrize("cells", cells(), ids=title)
def test_cells_of_the_documentation_run_as_they_are(spark, address, tmp_path, monkeypatch, capfd, cells):
    """FTM-09, STR-02, STR-03, STR-08, STR-10: copied and pasted, they show the rows that the page says, and no others."""
    monkeypatch.setenv("OTTLA_BOOTSTRAP", address)
    monkeypatch.chdir(tmp_path)
    names = {"__name__": "__main__"}
    for cell in cells:
        exec(compile(cell, title([cell]), "exec"), names)
    shown = capfd.readouterr().out
    rows = [row for table in SHOWN.findall(shown) for row in table[1].splitlines()]
    assert rows == re.findall(r"^# -> (.*)$", cells[-1], re.MULTILINE), shown


def test_parquet_in_python_is_the_same_word(tmp_path):
    spec = Pipeline("p", directory=tmp_path).source("r", {"rate": 1}).sink("o", to_parquet("out"), of="r").spec
    assert (spec.sinks[0].kind, spec.sinks[0].target) == ("parquet", "out")
