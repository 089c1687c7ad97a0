"""The same pipeline on a standalone cluster of Spark, and on a server of Spark Connect: only the address changes."""

from __future__ import annotations

import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from importlib.util import find_spec
from pathlib import Path

import pytest

from harness import HOST, Node, die_with_parent, free_port
from pipeline.standalone import SPARK, running, standalone
from spark_topics import Topics

pytestmark = [pytest.mark.slow, pytest.mark.timeout(600)]

SECONDS = 300
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
    """Twice: the second time there is nothing more to do."""
    for _ in range(2):
        run_once(PIPELINE, topics, tmp_path, *where)
    found = sorted(str(bytes(row["value"])) for row in topics.rows({"subscribe": "shouts"}))  # type: ignore[arg-type]
    expected = [b'{"word":"WORD %d %d"}' % (partition, n) for partition in range(2) for n in range(RECORDS)]
    assert found == sorted(map(str, expected))


def run_once(text: str, topics: Topics, tmp_path: Path, *where: str) -> None:
    file = tmp_path / "pipeline.yml"
    file.write_text(text.format(checkpoints=tmp_path / "checkpoints"))
    command = [sys.executable, "-m", "ottla.cli.main", "pipeline", "run", str(file), "-b", topics.address, *where]
    done = subprocess.run(command, capture_output=True, text=True, timeout=SECONDS, preexec_fn=die_with_parent)
    assert done.returncode == 0, done.stdout + done.stderr


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


def test_on_a_standalone_cluster_of_two_workers(topics: Topics, tmp_path: Path) -> None:
    """STR-01, STR-05: executors are processes elsewhere; the output is exact."""
    with standalone(tmp_path) as cluster:
        run(topics, tmp_path, "--master", cluster.address, "--conf", "spark.executor.memory=512m")


@pytest.mark.skipif(find_spec("grpc") is None, reason="Spark Connect is not installed: pip install 'ottla[connect]'")
def test_on_a_server_of_spark_connect(topics: Topics, tmp_path: Path) -> None:
    port = free_port()
    server = [
        str(SPARK / "bin" / "spark-submit"),
        *("--class", "org.apache.spark.sql.connect.service.SparkConnectServer", "--master", "local[2]"),
        *("--conf", f"spark.connect.grpc.binding.port={port}", "--conf", f"spark.driver.bindAddress={HOST}"),
        *("--conf", "spark.ui.enabled=false", "spark-internal"),
    ]
    with running(server):
        until_open(port)
        run(topics, tmp_path, "--remote", f"sc://{HOST}:{port}")
        changing(topics, tmp_path, "--remote", f"sc://{HOST}:{port}")


def until_open(port: int) -> None:
    deadline = time.monotonic() + SECONDS
    while time.monotonic() < deadline:
        try:
            socket.create_connection((HOST, port), 1).close()
            return
        except OSError:
            time.sleep(0.2)
    raise AssertionError(f"nobody listens on {port}")
