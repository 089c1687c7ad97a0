"""`ottla pipeline` as far as it goes without Spark: what it writes, what it refuses, and what it says is missing."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
import time
from pathlib import Path

import pytest

from harness import HOST, free_port
from ottla.cli import pipeline
from ottla.cli.main import main
from ottla.pipeline import needs
from ottla.pipeline.files import checking, status
from ottla.pipeline.files.spec import read_file

EXAMPLES = Path(__file__).parents[2] / "examples" / "pipelines"


@pytest.fixture
def file(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    assert main(["pipeline", "init"]) == 0
    assert "ottla pipeline check pipeline.yml" in capsys.readouterr().out
    return tmp_path / "pipeline.yml"


def said(capsys) -> str:
    return capsys.readouterr().err


def test_init_writes_an_example_and_nothing_over_another(file, capsys):
    assert main(["pipeline", "init"]) == 2
    assert "is there already: name another file, or write over it with --force" in said(capsys)
    assert main(["pipeline", "init", "--force"]) == 0


def test_what_init_writes_is_no_other_example(file):
    """Two pipelines of one name refuse each other's output."""
    examples = [read_file(path) for path in EXAMPLES.glob("*.yml")]
    mine = read_file(file)
    assert len(examples) >= 2 and mine.name not in {example.name for example in examples}
    taken = {sink.target for example in examples for sink in example.sinks if sink.kind == "topic"}
    assert not taken & {sink.target for sink in mine.sinks if sink.kind == "topic"}


def test_commands_that_init_names_make_the_topics_that_it_reads(file, broker, monkeypatch):
    """As they stand in its comments, one after the other."""
    lines = [line.removeprefix("#   ") for line in file.read_text().splitlines() if line.startswith("#   ")]
    commands = [line for line in lines if "topic create" in line or "ottla produce" in line]
    assert len(commands) == 4
    ottla = f"{sys.executable} -m ottla"
    for command in commands:
        here = re.sub(r"ottla (topic create|produce)", rf"{ottla} \1 -b {broker}", command)
        subprocess.run(here, shell=True, check=True, capture_output=True)
    spec = read_file(file, broker)
    clusters = checking.look(spec)
    assert checking.missing(spec, clusters) == []
    assert all(sum(last - first for first, last in live.ends.values()) == 2 for live in clusters.values())


def test_mistakes_have_a_line_and_an_advice(file, capsys):
    """All of them at once, in the order of the file."""
    file.write_text(file.read_text().replace("trigger:", "triger:").replace("mode: update", "mode: updat"))
    for action in (["run"], ["check"], ["status"], ["stop"]):
        assert main(["pipeline", *action, "pipeline.yml"]) == 2
        first, second = said(capsys).strip().splitlines()
        assert first == "ottla: pipeline.yml:22: a pipeline has no 'triger': did you mean 'trigger'?"
        assert second == "pipeline.yml:74: 'mode' cannot be 'updat': did you mean 'update'?"


def test_a_file_that_is_not_there(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    assert main(["pipeline", "run", "other.yml"]) == 2
    assert "there is no file other.yml: `ottla pipeline init other.yml` writes an example" in said(capsys)


def test_status_and_stop_of_one_that_does_not_run(file, capsys):
    assert main(["pipeline", "status", "pipeline.yml"]) == 0
    assert capsys.readouterr().out == "it has not run yet\n"
    assert main(["pipeline", "stop", "pipeline.yml"]) == 0
    assert capsys.readouterr().out == "it does not run\n"


def query(**more: object) -> dict[str, object]:
    return {
        "name": "first.counts",
        "into": "topic x",
        "state": "running",
        "batch": 3,
        "rows": 10,
        "late": 4,
        "rows_per_second": 2.5,
        "lag": None,
        "batch_seconds": 0.5,
        "restarts": 1,
        "error": "broker gone",
        **more,
    }


def test_status_of_one_that_ran(file, capsys):
    directory = file.parent / ".ottla" / "first"
    directory.mkdir(parents=True)
    status.write(directory, {"name": "first", "at": 1_700_000_000, "queries": [query()]})
    assert main(["pipeline", "status", "pipeline.yml"]) == 0
    out = capsys.readouterr().out
    assert "first does not run; it did until" in out
    assert "stopped" in out and "first.counts: broker gone" in out
    assert main(["pipeline", "status", "pipeline.yml", "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["running"] is False


def test_status_of_one_that_runs(file, capsys):
    """While it starts, nothing is said of the run before it; before a micro-batch has ended, nothing of one."""

    def told() -> str:
        assert main(["pipeline", "status", "pipeline.yml"]) == 0
        return capsys.readouterr().out

    directory = file.parent / ".ottla" / "first"
    with status.running(directory):
        status.write(directory, {"name": "first", "at": time.time() - 3600, "queries": [query()]})
        assert told() == f"it starts, as process {os.getpid()}\n"
        status.write(directory, {"name": "first", "at": time.time() + 3600, "queries": [query(batch=None, error="")]})
        first, _, row = told().splitlines()
        assert first == f"first runs as process {os.getpid()}"
        assert row.split() == ["first.counts", "running", "10", "4", "1"]
        os.utime(directory / status.LOCK, (0, 0))
        status.write(directory, {"name": "first", "at": 1_700_000_000, "queries": [query()]})
        assert f"first runs as process {os.getpid()}, which has told nothing since " in told()


def test_without_the_extra_it_says_what_to_install(file, monkeypatch, capsys):
    monkeypatch.setattr(needs, "_is_there", lambda name: name != "pyspark")
    assert main(["pipeline", "run", "pipeline.yml"]) == 2
    assert "this needs pyspark, which is not installed: pip install 'ottla[spark]'" in said(capsys)


def test_without_java_it_says_so(file, tmp_path, monkeypatch, capsys):
    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.delenv("JAVA_HOME", raising=False)
    assert main(["pipeline", "run", "pipeline.yml"]) == 2
    assert "Spark needs Java 17 or later, and there is none" in said(capsys)


class SparkStarts(Exception):
    """As far as these tests go."""


@pytest.fixture
def no_spark(monkeypatch):
    def start(*args: object) -> None:
        raise SparkStarts

    monkeypatch.setattr(needs, "java", lambda: None)
    monkeypatch.setattr(pipeline, "_session", start)


@pytest.mark.parametrize("action", ["run", "check"])
def test_without_a_broker_it_ends_before_spark_starts(file, no_spark, monkeypatch, capsys, action):
    """With what to do about it; `run` would wait for one without an end otherwise."""
    monkeypatch.setattr(checking, "BUDGET_S", 0.5)
    nobody = f"{HOST}:{free_port()}"
    assert main(["pipeline", action, "pipeline.yml", "-b", nobody]) == 1
    assert f"no broker at {nobody}" in (text := said(capsys)) and "start one with `ottla serve`" in text, text


@pytest.mark.parametrize("action", ["run", "check"])
def test_topics_that_are_not_there_are_told_before_spark_starts(file, no_spark, broker, capsys, action):
    file.write_text(file.read_text().replace("topic: users", "topic: nobody-made-this"))
    with pytest.raises(SparkStarts):
        main(["pipeline", action, "pipeline.yml", "-b", broker])
    text = said(capsys)
    assert (
        "there is no topic 'nobody-made-this'" in text and f"`ottla topic create nobody-made-this -b {broker}`" in text
    )
    assert text.splitlines()[-1].startswith("starting Spark")


def test_one_is_not_many():
    assert [checking.counted(number, "problem") for number in (0, 1, 2)] == ["0 problems", "1 problem", "2 problems"]
