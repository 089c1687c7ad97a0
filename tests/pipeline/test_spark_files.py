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
from collections.abc import Iterable, Iterator
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest

from harness import TREE, Node, die_with_parent, stop_all
from ottla.client.cluster import Cluster
from ottla.client.producer import Producer
from ottla.pipeline import Pipeline, table, to_memory, to_parquet, to_topic, topic
from ottla.pipeline.committing import SinkError
from ottla.pipeline.files import checking, formats, sinks, sources, status
from ottla.pipeline.files.nodes import WrongPipeline
from ottla.pipeline.files.running import Failed
from ottla.pipeline.files.spec import read_file, read_object
from ottla.pipeline.files.status import Runs

pytestmark = pytest.mark.timeout(400)
RECORD = "key BINARY, value BINARY, topic STRING, partition INT, offset BIGINT, timestamp TIMESTAMP"
MOMENT = datetime(2026, 1, 1, tzinfo=UTC)
AVRO = {"type": "record", "name": "V", "fields": [{"name": "user", "type": "string"}, {"name": "n", "type": "int"}]}


@pytest.fixture(scope="module")
def address(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """A node for this file: the examples name their topics."""
    node = Node(tmp_path_factory.mktemp("files") / "data")
    try:
        yield node.start().address
    finally:
        stop_all([node])


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
]
CSV = [
    (b"1,x", (1, "x")),
    (b"1", "1 fields instead of 2"),
    (b"1,x,3", "3 fields instead of 2"),
    (b"y,x", "does not fit the columns"),
    (b"", "0 fields instead of 2"),
]


@pytest.mark.parametrize(
    ("words", "given"),
    [
        ({"format": "json", "schema": "a INT, b STRING, c STRUCT<d: INT>", "quarantine": "q"}, JSON),
        ({"format": "csv", "schema": "a INT, b STRING", "quarantine": "q"}, CSV),
    ],
    ids=["json", "csv"],
)
def test_what_fits_and_what_does_not(spark, tmp_path, words, given):
    """A malformed record is recognised, whatever is wrong with it, and gets its reason."""
    source = source_of(words, tmp_path)
    decoded = formats.decoded(records(spark, [value for value, _ in given]), source, tmp_path)
    good = formats.good(decoded, source).orderBy("_offset").collect()
    width = len(good[0]) - 6
    assert [tuple(row)[:width] for row in good] == [told for _, told in given if isinstance(told, tuple)]
    bad = formats.bad(decoded, source, tmp_path).collect()
    told = {headers["ottla.offset"]: headers for row in bad for headers in [headers_of(row)]}
    expected = {str(number): text for number, (_, text) in enumerate(given) if isinstance(text, str)}
    assert told.keys() == expected.keys()
    for offset, text in expected.items():
        assert told[offset]["ottla.error"].startswith(text)
        assert (told[offset]["ottla.topic"], told[offset]["ottla.partition"]) == ("t", "3")
    assert {bytes(row.value) for row in bad} == {value for value, text in given if isinstance(text, str)}


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


def test_a_schema_that_is_none_is_told_with_its_place(spark, tmp_path):
    with pytest.raises(WrongPipeline, match="'schema' is not a list of columns"):
        formats.fields_of(source_of({"format": "json", "schema": "a WRONG"}, tmp_path).format, tmp_path)


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
    command = [sys.executable, "-m", "ottla.cli.main", "pipeline", *words]
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
        told = next(line for line in lines if line["batch"] >= 0)
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
    assert found == {("2026-01-01T10:00:00.000Z", "CZ"): 2, ("2026-01-01T10:01:00.000Z", "unknown"): 1}
    assert len(read(spark, address, "page-views-quarantine")) == 1
    archived = spark.read.parquet(str(tmp_path / "archive")).select("user", "country").collect()
    assert sorted(map(tuple, archived)) == [("u1", "CZ"), ("u2", "CZ"), ("u3", "unknown")]


def test_the_example_of_orders(spark, address, tmp_path, monkeypatch):
    """STR-02, STR-03: a stream-stream join, duplicates dropped, and state of our own in RocksDB."""
    send(address, "orders", ORDERS)
    send(address, "payments", PAYMENTS)
    example("orders.yml", address, tmp_path, monkeypatch).run()
    [paid] = values(spark, address, "paid-orders")
    assert (paid["id"], paid["paid_at"]) == (1, "2026-01-01T10:30:00.000Z")
    spent = {row["customer"]: (row["spent"], row["alarm"]) for row in values(spark, address, "spending")}
    assert spent == {"ann": (160.0, True), "bob": (5.0, False)}


CELL = re.compile(r"<!-- cell -->\n```python\n(.*?)```", re.DOTALL)


def cells() -> list[str]:
    pages = [TREE / "docs" / "pipeline.md", TREE / "docs" / "streams-to-spark.md"]
    return [cell for page in pages if page.exists() for cell in CELL.findall(page.read_text())]


@pytest.mark.parametrize("cell", cells(), ids=lambda cell: cell.strip().splitlines()[0].strip("# ")[:40])
def test_cells_of_the_documentation_run_as_they_are(spark, address, tmp_path, monkeypatch, capsys, cell):
    """FTM-09: copied and pasted, including the line that installs the package."""
    monkeypatch.setenv("OTTLA_BOOTSTRAP", address)
    monkeypatch.chdir(tmp_path)
    expected = re.findall(r"^# -> (.*)$", cell, re.MULTILINE)
    exec(compile(cell, "docs", "exec"), {"__name__": "__main__"})
    shown = capsys.readouterr().out
    for text in expected:
        assert text in shown, shown


def test_parquet_in_python_is_the_same_word(tmp_path):
    spec = Pipeline("p", directory=tmp_path).source("r", {"rate": 1}).sink("o", to_parquet("out"), of="r").spec
    assert (spec.sinks[0].kind, spec.sinks[0].target) == ("parquet", "out")
