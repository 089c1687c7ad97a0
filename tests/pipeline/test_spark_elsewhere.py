"""The same pipeline on a standalone cluster of Spark, and on a server of Spark Connect: only the address changes."""

from __future__ import annotations

import json
import os
import shutil
import signal
import socket
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import pytest
from pyarrow import dataset

from harness import HOST, TREE, Node, die_with_parent, free_port
from ottla.client.producer import Producer
from pipeline.standalone import SPARK, running, standalone
from pipeline.test_spark_files import ORDERS, PAYMENTS, USERS, VIEWS, as_bytes
from spark_topics import Topics

pytestmark = [pytest.mark.slow, pytest.mark.timeout(5400)]

needs_connect = pytest.mark.skipif(
    find_spec("grpc") is None, reason="Spark Connect is not installed: pip install 'ottla[connect]'"
)

# Patience, not a promise: with many others on two cores, three minutes go by before Spark has started.
SECONDS = 900
RECORDS = 5_000
PIPELINE = """
name: elsewhere
trigger: available-now
checkpoints: {checkpoints}
sources:
  words: {{topic: words, format: raw, start: earliest}}
steps:
  shouted: {{sql: "SELECT _key, upper(CAST(value AS STRING)) AS word FROM words"}}
sinks:
  shouts: {{from: shouted, topic: shouts, key: _key}}
"""
# What `ottla pipeline init` writes has these as well: sinks that do not append go through a function that Spark calls.
CHANGING = """
name: changing
trigger: available-now
checkpoints: {checkpoints}
quarantine: apart
spark: {{spark.sql.shuffle.partitions: "2"}}
sources:
  sales: {{topic: sales, format: json, schema: "shop STRING, n INT", start: earliest}}
steps:
  sums: {{sql: "SELECT shop, sum(n) AS n FROM sales GROUP BY shop"}}
sinks:
  updated: {{from: sums, topic: updated, key: shop, mode: update}}
  whole: {{from: sums, topic: whole, key: shop, mode: complete}}
"""


@pytest.fixture
def topics(tmp_path: Path) -> Iterator[Topics]:
    node = Node(tmp_path / "data")
    node.start()
    try:
        made = Topics(node.address)
        for name in ("words", "shouts"):
            made.make(name, 2)
        for partition in range(2):
            made.write("words", [b"word %d %d" % (partition, n) for n in range(RECORDS)], partition)
        yield made
        made.close()
    finally:
        node.kill()


def run(topics: Topics, tmp_path: Path, *where: str) -> None:
    """Twice: the second time there is nothing more to do. How many rows that were is told in the same way everywhere."""
    assert [run_once(PIPELINE, topics, tmp_path, *where) for _ in range(2)] == [2 * RECORDS, 0]
    found = sorted(str(bytes(row["value"])) for row in topics.rows({"subscribe": "shouts"}))  # type: ignore[arg-type]
    expected = [b'{"word":"WORD %d %d"}' % (partition, n) for partition in range(2) for n in range(RECORDS)]
    assert found == sorted(map(str, expected))


def run_once(text: str, topics: Topics, tmp_path: Path, *where: str) -> int:
    """How many rows it says to have read."""
    file = tmp_path / "pipeline.yml"
    file.write_text(text.format(checkpoints=tmp_path / "checkpoints"))
    done = subprocess.run(
        command(file, topics, *where), capture_output=True, text=True, timeout=SECONDS, preexec_fn=die_with_parent
    )
    assert done.returncode == 0, done.stdout + done.stderr
    rows = sum({told["name"]: told["rows"] for told in map(json.loads, done.stdout.splitlines())}.values())
    assert done.stderr.endswith(f"done: {rows:,} rows read\n"), done.stderr
    return rows


def command(file: Path, topics: Topics, *where: str) -> list[str]:
    return [sys.executable, "-m", "ottla", "pipeline", "run", str(file), "-b", topics.address, *where]


def changing(topics: Topics, tmp_path: Path, *where: str) -> None:
    """A run, then one whose first micro-batch is repeated although its output was committed, then one that adds."""
    for name in ("sales", "updated", "whole", "apart"):
        topics.make(name, 1)
    topics.write("sales", [b'{"shop":"a","n":1}', b"oops", b'{"shop":"b","n":2}'])
    run_once(CHANGING, topics, tmp_path, *where)
    for sink in ("updated", "whole"):
        for done in (tmp_path / "checkpoints" / sink / "commits").iterdir():
            done.unlink()
    run_once(CHANGING, topics, tmp_path, *where)
    first = [b'{"shop":"a","n":1}', b'{"shop":"b","n":2}']
    assert (values(topics, "updated"), values(topics, "whole")) == (first, first), "repeated, and not written again"
    topics.write("sales", [b'{"shop":"a","n":3}'])
    run_once(CHANGING, topics, tmp_path, *where)
    assert values(topics, "updated") == sorted([*first, b'{"shop":"a","n":4}'])
    assert values(topics, "whole") == sorted([*first, b'{"shop":"a","n":4}', b'{"shop":"b","n":2}'])
    assert values(topics, "apart") == [b"oops"]


def values(topics: Topics, name: str) -> list[bytes]:
    return sorted(bytes(row["value"]) for row in topics.rows({"subscribe": name}))  # type: ignore[arg-type]


def examples(topics: Topics, tmp_path: Path, *where: str) -> None:
    """Those of the tree, as they are, over what is there: tables, joins, windows, duplicates, state in Python, Parquet. Then
    once more for what has come since, with state and files from before."""
    for name in ("page-views.yml", "orders.yml"):
        shutil.copy(TREE / "examples" / "pipelines" / name, tmp_path)
    shutil.copy(TREE / "examples" / "pipelines" / "spending.py", tmp_path)
    for name, records in {"page-views": VIEWS, "users": USERS, "orders": ORDERS, "payments": PAYMENTS}.items():
        fill(topics, name, records)
    for name in ("page-views.yml", "orders.yml"):
        example(topics, tmp_path / name, *where)
    assert objects(topics, "views-per-country") == [("10:00", "CZ", 2), ("10:01", "unknown", 1)]
    assert archived(tmp_path) == {("u1", "CZ"): 1, ("u2", "CZ"): 1, ("u3", "unknown"): 1}
    assert values(topics, "page-views-quarantine") == [b"?"]
    assert objects(topics, "paid-orders") == [(1, "ann", 80.0, "10:00", "10:30")]
    assert objects(topics, "spending") == [("ann", 160.0, True), ("bob", 5.0, False)]

    fill(topics, "page-views", [VIEWS[2], VIEWS[3]])
    fill(topics, "orders", [("3", {**ORDERS[2][1], "id": 3, "amount": 100.0}), ORDERS[0]])
    for name in ("page-views.yml", "orders.yml"):
        example(topics, tmp_path / name, *where)
    assert objects(topics, "views-per-country")[1:] == [("10:01", "unknown", 1), ("10:01", "unknown", 2)]
    assert archived(tmp_path) == {("u1", "CZ"): 1, ("u2", "CZ"): 1, ("u3", "unknown"): 2}
    assert values(topics, "page-views-quarantine") == [b"?", b"?"]
    assert len(objects(topics, "paid-orders")) == 1
    later = [("ann", 240.0, True), ("bob", 105.0, True)]
    assert objects(topics, "spending") == sorted([("ann", 160.0, True), ("bob", 5.0, False), *later])


def fill(topics: Topics, name: str, records: Iterable[tuple[str, Any]]) -> None:
    async def send(producer: Producer) -> None:
        for key, value in records:
            await producer.post(name, as_bytes(value), key.encode())

    topics.produce(send)


def example(topics: Topics, file: Path, *where: str) -> None:
    words = command(file, topics, "--available-now", *where)
    done = subprocess.run(words, capture_output=True, text=True, timeout=SECONDS, preexec_fn=die_with_parent)
    assert done.returncode == 0, done.stdout + done.stderr


def objects(topics: Topics, name: str) -> list[tuple[Any, ...]]:
    """In the order of their columns, moments as hours and minutes."""
    found = [json.loads(value).values() for value in values(topics, name)]
    return sorted(tuple(one[11:16] if str(one).startswith("2026-") else one for one in each) for each in found)


def archived(tmp_path: Path) -> Counter[tuple[str, str]]:
    rows = dataset.dataset(tmp_path / "archive", format="parquet", partitioning="hive").to_table().to_pylist()
    return Counter((row["user"], row["country"]) for row in rows)


def test_on_a_standalone_cluster_of_two_workers(topics: Topics, tmp_path: Path) -> None:
    """STR-01, STR-05: executors are processes elsewhere; the output is exact."""
    # A cluster shuffles over 200 partitions, each with a store of state on disk: here over as many as it has processors.
    few = ("--conf", "spark.executor.memory=512m", "--conf", "spark.sql.shuffle.partitions=2")
    with standalone(tmp_path) as cluster:
        run(topics, tmp_path, "--master", cluster.address, *few)
        examples(topics, tmp_path, "--master", cluster.address, *few)


@needs_connect
def test_on_a_server_of_spark_connect(topics: Topics, tmp_path: Path) -> None:
    with connect() as (address, _):
        run(topics, tmp_path, "--remote", address)
        changing(topics, tmp_path, "--remote", address)
        examples(topics, tmp_path, "--remote", address)


@contextmanager
def connect() -> Iterator[tuple[str, int]]:
    """Where the server is, and its process."""
    port = free_port()
    server = [
        str(SPARK / "bin" / "spark-submit"),
        *("--class", "org.apache.spark.sql.connect.service.SparkConnectServer", "--master", "local[2]"),
        *("--conf", f"spark.connect.grpc.binding.port={port}", "--conf", f"spark.driver.bindAddress={HOST}"),
        *("--conf", "spark.ui.enabled=false", "spark-internal"),
    ]
    with running(server) as (pid,):
        until_open(port)
        yield f"sc://{HOST}:{port}", pid


@needs_connect
def test_the_end_of_a_server_is_told_in_one_line(topics: Topics, tmp_path: Path) -> None:
    """Killed under a query that goes on: there is no trace of Python's."""
    file = tmp_path / "pipeline.yml"
    text = PIPELINE.replace("trigger: available-now\n", "")
    file.write_text(text.format(checkpoints=tmp_path / "checkpoints"))
    with connect() as (address, server), started(command(file, topics, "--remote", address)) as runs:
        assert runs.stdout is not None
        assert any(json.loads(line)["rows"] == 2 * RECORDS for line in runs.stdout)
        os.kill(server, signal.SIGKILL)
        told = runs.communicate(timeout=SECONDS)[1]
    assert runs.returncode == 1 and "Traceback" not in told, told
    said = [line for line in told.splitlines() if line.startswith("ottla: ")]
    assert len(said) == 1, told
    assert said[0].startswith("ottla: Spark's server does not answer any more ("), told
    assert said[0].endswith("start it again, and it goes on where it was"), told


@contextmanager
def started(words: list[str]) -> Iterator[subprocess.Popen[str]]:
    """Something that runs, with what it says."""
    pipes = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE}
    with subprocess.Popen(words, text=True, preexec_fn=die_with_parent, **pipes) as process:  # type: ignore[call-overload]
        try:
            yield process
        finally:
            process.kill()


def until_open(port: int) -> None:
    deadline = time.monotonic() + SECONDS
    while time.monotonic() < deadline:
        try:
            socket.create_connection((HOST, port), 1).close()
            return
        except OSError:
            time.sleep(0.2)
    raise AssertionError(f"nobody listens on {port}")
