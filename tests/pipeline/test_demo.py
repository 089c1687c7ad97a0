"""`ottla demo`, as `make run` starts it: a node, a shop that writes, a pipeline on Spark that counts."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from harness import HOST, die_with_parent, free_port
from ottla.cli import demo, shop
from ottla.pipeline.files.spec import read_file

# Patience, not a promise: on a machine that is busy otherwise Spark alone takes three quarters of a minute to start.
SECONDS = 240.0


@contextmanager
def running(tmp_path: Path, *options: str, env: dict[str, str] | None = None) -> Iterator[subprocess.Popen[str]]:
    command = [sys.executable, "-m", "ottla.cli.main", "demo", "--data", str(tmp_path / "data"), *options]
    process = subprocess.Popen(
        [*command, "--listen", f"{HOST}:{free_port()}"],
        stdout=(tmp_path / "said").open("w"),
        stderr=subprocess.STDOUT,
        text=True,
        env=os.environ | (env or {}),
        preexec_fn=die_with_parent,
    )
    try:
        yield process
    finally:
        process.kill()
        process.wait()


def wait_for(process: subprocess.Popen[str], said: Path, *words: str) -> str:
    deadline = time.monotonic() + SECONDS
    while not all(word in (text := said.read_text()) for word in words):
        assert process.poll() is None and time.monotonic() < deadline, text
        time.sleep(0.1)
    return text


@pytest.mark.timeout(400)
def test_the_shop_is_counted_and_closes_in_good_order(tmp_path: Path) -> None:
    """FTM-01, STR-02, STR-05: results come out of Spark, Ctrl-C ends the pipeline before the node, and files are kept."""
    said = tmp_path / "said"
    with running(tmp_path) as process:
        wait_for(process, said, "first result in page-counts", "first result in decisions")
        process.send_signal(signal.SIGINT)
        assert process.wait(150) == 0, said.read_text()
    text = said.read_text()
    assert "stopping: each query finishes its micro-batch" in text, text
    assert "the next run goes on from here" in text, text
    assert "java." not in text, text
    assert "Traceback" not in text and "has ended with" not in text, text
    home = tmp_path / "data-demo"
    assert (home / "pipeline.yml").read_text() == demo.PIPELINE.read_text()


def test_without_java_the_node_runs_alone(tmp_path: Path) -> None:
    """FTM-03: what is missing is said, with what brings it."""
    with running(tmp_path, env={"JAVA_HOME": str(tmp_path)}) as process:
        text = wait_for(process, tmp_path / "said", "read    key b'first'", "Any Kafka client works as well")
        assert "The pipeline is left out" in text and "Java 17" in text
        process.send_signal(signal.SIGINT)
        assert process.wait(60) == 0
    assert not (tmp_path / "data-demo").exists()


def test_its_pipeline_reads_what_the_shop_writes(tmp_path: Path) -> None:
    file = tmp_path / "pipeline.yml"
    file.write_text(demo.PIPELINE.read_text())
    spec = read_file(file)
    assert [source.target for source in spec.sources] == [shop.VIEWS, shop.ORDERS]
    assert {sink.target for sink in spec.sinks if sink.kind == "topic"} == set(demo.RESULTS)
