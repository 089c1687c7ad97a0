"""`ottla demo`, as `make run` starts it: a node, a shop that writes, a pipeline on Spark that counts."""

from __future__ import annotations

import contextlib
import json
import os
import re
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pyarrow as pa
import pytest
from pyarrow import parquet

from harness import HOST, die_with_parent, free_port
from ottla.cli import demo, shop
from ottla.pipeline.files.spec import read_file

# Patience, not a promise: on a machine that is busy otherwise Spark alone takes three quarters of a minute to start.
SECONDS = 240.0


@contextmanager
def running(tmp_path: Path, *options: str, env: dict[str, str] | None = None) -> Iterator[subprocess.Popen[str]]:
    command = [sys.executable, "-m", "ottla", "demo", "--data", str(tmp_path / "data"), *options]
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


def stop(process: subprocess.Popen[str], said: Path) -> str:
    process.send_signal(signal.SIGINT)
    assert process.wait(150) == 0, said.read_text()
    text = said.read_text()
    assert "stopping: each query finishes its micro-batch" in text, text
    assert "the next run goes on from here" in text, text
    assert "java." not in text, text
    assert "Traceback" not in text and "has ended with" not in text, text
    return text


def batches(text: str) -> dict[str, list[int]]:
    """The numbers of micro-batches that each query told of, in order."""
    told = [json.loads(line) for line in text.splitlines() if line.startswith("{")]
    return {
        each["name"]: [one["batch"] for one in told if one["name"] == each["name"] and one["batch"] is not None]
        for each in told
    }


def committed(home: Path) -> dict[str, set[int]]:
    """The micro-batches that each query has done, as its checkpoint has it: of one that ends while it closes nobody tells."""
    return {
        f"shop.{commits.parent.name}": {int(file.name) for file in commits.iterdir() if file.name.isdigit()}
        for commits in home.rglob("commits")
    }


def rows_kept(directory: Path) -> int:
    """In files of Parquet that are whole."""
    found = 0
    for file in directory.glob("*.parquet"):
        with contextlib.suppress(OSError, pa.ArrowInvalid):
            found += parquet.read_metadata(file).num_rows
    return found


def memory_mb(pid: int) -> float:
    """Of a process and all it has started, in the way that counts a page once that several of them share (PSS)."""
    found = 0.0
    with contextlib.suppress(OSError):
        pss = re.search(r"^Pss:\s+(\d+) kB", Path(f"/proc/{pid}/smaps_rollup").read_text(), re.MULTILINE)
        found += int(pss[1]) / 1000 if pss else 0
        for task in Path(f"/proc/{pid}/task").iterdir():
            found += sum(memory_mb(int(child)) for child in (task / "children").read_text().split())
    return found


@pytest.mark.timeout(900)
def test_the_shop_is_counted_closes_in_good_order_and_opens_again(tmp_path: Path) -> None:
    """FTM-01, STR-02, STR-05: results come out of Spark, Ctrl-C ends the pipeline before the node, files are kept, and the
    next run goes on with the micro-batch after the last one. Each run waits for results that the other does not wait for."""
    said, home = tmp_path / "said", tmp_path / "data-demo"
    with running(tmp_path) as process:
        wait_for(process, said, "first result in page-counts")
        first = batches(stop(process, said))
    assert (home / "pipeline.yml").read_text() == demo.PIPELINE.read_text()
    assert first["shop.page_counts"], "whoever has written a result has told of its micro-batch"
    done = committed(home)
    with running(tmp_path) as process:
        wait_for(process, said, "first result in decisions")
        wait_for_rows(process, said, home / "revenue")
        memory = memory_mb(process.pid)
        second = batches(stop(process, said))
    for name, numbers in first.items():
        last = max(done[name], default=-1)
        assert numbers == sorted(numbers) and max(numbers, default=-1) <= last, name
        assert min(second[name], default=-1) > last, name
    assert all(numbers == set(range(len(numbers))) for numbers in committed(home).values()), "none twice, none left out"
    print(f"memory of the whole demo: {memory:.0f} MB (PSS)")
    assert memory < 2000


def wait_for_rows(process: subprocess.Popen[str], said: Path, directory: Path) -> None:
    deadline = time.monotonic() + SECONDS
    while not rows_kept(directory):
        assert process.poll() is None and time.monotonic() < deadline, said.read_text()
        time.sleep(0.2)


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
