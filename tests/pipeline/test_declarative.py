"""`ottla pipeline export`: what is written, what is refused, and that `spark-pipelines` runs it."""

from __future__ import annotations

import json
import os
import re
import shlex
import subprocess
import sys
from importlib.util import find_spec
from pathlib import Path

import pyarrow.parquet
import pytest

from harness import HOST, Node, die_with_parent, stop_all
from ottla.cli.main import main
from ottla.pipeline.files import declarative
from ottla.pipeline.files.nodes import WrongPipeline
from ottla.pipeline.files.spec import read_file
from spark_topics import Topics

SECONDS = 500
PIPELINE = """
name: shop
trigger: 5 seconds
quarantine: bad
spark: {spark.sql.shuffle.partitions: 2, spark.driver.memory: 700m}
sources:
  views: {topic: views, format: json, schema: "user STRING, n INT"}
  names: {topic: names, as: table, format: json, schema: "name STRING", quarantine: ""}
steps:
  named:
    sql: |
      -- of those that are
      WITH many AS (SELECT * FROM views WHERE n > 0)
      SELECT many._key, many.n, names.name, '{}' AS braces FROM many LEFT JOIN names ON many.user = names._key;
  doubled: {python: "own.py:doubled", arguments: {times: 2}}
sinks:
  out: {from: doubled, topic: out}
  kept: {from: named, parquet: kept, partition_by: [name]}
"""
STEPS = "def doubled(named, times):\n    return named.withColumn('n', named.n * times)\n"


def written(directory: Path, text: str) -> Path:
    (directory / "own.py").write_text(STEPS)
    file = directory / "shop.yml"
    file.write_text(text)
    return file


def exported(directory: Path, text: str) -> None:
    file = written(directory, text)
    declarative.export(read_file(file), file, None, directory / "declarative")


def test_what_is_written_and_what_is_said(tmp_path, capsys):
    file = written(tmp_path, PIPELINE)
    assert main(["pipeline", "export", str(file), str(tmp_path / "declarative"), "-b", "broker:9092"]) == 0
    said = capsys.readouterr().out
    assert "sink 'out': trigger '5 seconds' has no counterpart" in said
    assert "sink 'kept' is the table 'kept' of Spark's catalog, and not files in kept" in said
    assert "sink 'kept': 'partition_by' has no counterpart" in said
    code = (tmp_path / "declarative" / "definitions.py").read_text()
    compile(code, "definitions.py", "exec")
    assert re.findall(r"create_sink\('(\w+)'|table\(name='(\w+)'", code) == [
        ("quarantine_views", ""),
        ("out", ""),
        ("", "kept"),
    ]
    assert f"Exported(spark, {str(file)!r}, 'broker:9092')" in code
    settings = (tmp_path / "declarative" / "spark-pipeline.yml").read_text()
    assert 'spark.sql.shuffle.partitions: "2"' in settings and "spark.driver.memory" not in settings
    defaults = (tmp_path / "declarative" / "conf" / "spark-defaults.conf").read_text()
    assert "spark.driver.memory 700m\n" in defaults and "shuffle" not in defaults, "what a session cannot change"


@pytest.mark.parametrize(
    ("was", "becomes", "said"),
    [
        ("topic: out}", "topic: out, mode: update}", "sink 'out' has no counterpart: .* 'mode: update'"),
        ("topic: out}", "console: ''}", "sink 'out' has no counterpart: a declarative pipeline has no console"),
        ("{topic: names, as: table, format: json, schema: \"name STRING\", quarantine: \"\"}", "{rate: 5}", "source 'names'"),
    ],
)  # fmt: skip
def test_what_has_no_counterpart_is_refused_by_name(tmp_path, was, becomes, said):
    assert was in PIPELINE
    with pytest.raises(WrongPipeline, match=said):
        exported(tmp_path, PIPELINE.replace(was, becomes))
    assert not (tmp_path / "declarative").exists()


def records(values: list[object]) -> list[bytes]:
    return [value if isinstance(value, bytes) else json.dumps(value).encode() for value in values]


def run(command: str, directory: Path) -> None:
    """As it was printed, in a shell."""
    scripts = f"{Path(sys.executable).parent}:{os.environ['PATH']}"
    env = os.environ | {"PATH": scripts, "SPARK_LOCAL_IP": HOST}
    command = command.replace(shlex.quote("local[*]"), shlex.quote("local[2]"))
    quiet = {"capture_output": True, "text": True, "timeout": SECONDS, "preexec_fn": die_with_parent}
    done = subprocess.run(f"exec env {command}", shell=True, cwd=directory, env=env, **quiet)
    assert done.returncode == 0, done.stdout[-5000:] + done.stderr[-10000:]


@pytest.mark.slow
@pytest.mark.timeout(2 * SECONDS + 60)
@pytest.mark.skipif(find_spec("grpc") is None, reason="Spark Connect is not installed: pip install 'ottla[connect]'")
def test_spark_runs_it_and_goes_on_with_what_is_new(tmp_path):
    """Steps in SQL and Python, a table, a quarantine, a topic and Parquet; two runs, and every row once."""
    node = Node(tmp_path / "data")
    try:
        topics = Topics(node.start().address)
        exported(tmp_path, f"bootstrap: {node.address}\n{PIPELINE}")
        command = declarative.command(tmp_path / "declarative")
        for name in ("views", "names", "out", "bad"):
            topics.make(name)
        topics.write("names", records([{"name": "Ann"}]))
        [name] = topics.rows({"subscribe": "names"})
        user = bytes(name["key"]).decode()  # type: ignore[call-overload]
        topics.write("views", records([{"user": user, "n": 1}, b"{oops", {"user": "?", "n": 2}, {"user": "?", "n": 0}]))
        run(command, tmp_path)
        topics.write("views", records([{"user": user, "n": 3}]))
        run(command, tmp_path)
        out = [json.loads(bytes(row["value"])) for row in topics.rows({"subscribe": "out"})]  # type: ignore[call-overload]
        bad = [bytes(row["value"]) for row in topics.rows({"subscribe": "bad"})]  # type: ignore[call-overload]
        topics.close()
    finally:
        stop_all([node])
    found = sorted((row["n"], row["name"], row["braces"]) for row in out)
    assert found == [(2, "Ann", "{}"), (4, None, "{}"), (6, "Ann", "{}")]
    assert bad == [b"{oops"]
    [kept] = (tmp_path / "declarative" / "tables").glob("**/kept")
    files = [pyarrow.parquet.ParquetFile(file).read() for file in kept.glob("**/*.parquet")]
    assert sorted(number for file in files for number in file.column("n").to_pylist()) == [1, 2, 3]
