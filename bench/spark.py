"""Spark on topics: `format("ottla")` on Ottla beside Spark's own connector on Apache Kafka, with the options that suit it.

The connector is that of `make spark`, with the newest Spark for which all its jars are to be had; ours runs on the Spark that
`ottla[spark]` brings. Both have two cores, which they share with the broker. What is written by ours is written exactly once,
what is written by the connector at least once.
"""

from __future__ import annotations

import json
import subprocess
import sys
import time
from pathlib import Path

from bench import client, drivers
from bench.drivers import CannotMeasure
from bench.scenes import Size, Tally, attempt
from harness import Node, Server, die_with_parent

TREE = Path(__file__).resolve().parent.parent
CONNECTOR_PYTHON = TREE / ".venv-spark" / "bin" / "python"
CONNECTOR_JARS = TREE / "tests" / "spark" / "jars"
JOBS = Path(__file__).with_name("spark_jobs.py")
PARTITIONS = 4
# Spark's compiler goes on learning for that long.
WARM_UPS, WARM_UPS_QUICK = 4, 1
SECONDS_MAX = 300.0
ROWS_WRITTEN = 1_000_000
RATES = {
    "spark-read": "batch_read",
    "spark-group-by": "group_by",
    "spark-stream-read": "stream_read",
    "spark-copy": "copy",
    "spark-write": "write",
}
MEDIANS = {
    "spark-small-batch": "small_batches",
    "spark-small-copy": "small_copies",
    "spark-empty": "empty_triggers",
}
LINES = frozenset({*RATES, *MEDIANS, "spark-session", "spark-first-row"})


class Spark:
    """A process that does one job after the other."""

    def __init__(self, server: Server) -> None:
        is_ours = isinstance(server, Node)
        if not is_ours and not (CONNECTOR_PYTHON.exists() and CONNECTOR_JARS.exists()):
            raise CannotMeasure("Spark's connector is not here: `make spark` fetches it, and so does `make bench`")
        jars = ",".join(map(str, sorted(CONNECTOR_JARS.glob("*.jar"))))
        words = ("ottla", "") if is_ours else ("kafka", jars)
        self._process = subprocess.Popen(
            [sys.executable if is_ours else str(CONNECTOR_PYTHON), str(JOBS), words[0], server.address, words[1]],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            text=True,
            start_new_session=True,
            preexec_fn=die_with_parent,
        )

    def __enter__(self) -> Spark:
        return self

    def __exit__(self, *_: object) -> None:
        assert self._process.stdin is not None
        self._process.stdin.close()
        self._process.wait(SECONDS_MAX)

    def do(self, job: str) -> tuple[float, float | None]:
        """How long it took, and what it tells."""
        assert self._process.stdin is not None and self._process.stdout is not None
        self._process.stdin.write(f"{job}\n")
        self._process.stdin.flush()
        if not (line := self._process.stdout.readline()):
            raise CannotMeasure(f"Spark ended in {job}")
        answer = json.loads(line)
        return answer["seconds"], answer["told"]

    def cpu_seconds(self) -> tuple[float, float]:
        """Of the JVM, and of Python: the driver and the workers, those that have ended included."""
        jvm = python = 0.0
        for name, own, of_ended in drivers.family_cpu(self._process.pid):
            # All that a JVM has started, and waited for, are processes of Python.
            jvm, python = (jvm + own, python + of_ended) if name == "java" else (jvm, python + own + of_ended)
        return jvm, python


def spark(server: Server, size: Size, tally: Tally) -> None:
    server.start()
    rows = size.messages_100 * 2 // 3
    for topic in ("rows", "copy", "written"):
        client.make_topic(server, topic, PARTITIONS)
    drivers.bulk(server, "produce", "rows", PARTITIONS, rows, 100)
    with attempt(tally, "spark-first-row"):
        first_rows(server, size, tally)
    with attempt(tally, "spark"), Spark(server) as running:
        for key, job in RATES.items():
            if tally.wants(key):
                rates(key, job, ROWS_WRITTEN if job == "write" else rows, running, server, size, tally)
        for key, job in MEDIANS.items():
            for counts in _rounds(size) if tally.wants(key) else ():
                _, told = running.do(job)
                if counts and told is not None:
                    tally.add(key, told)
    server.stop(60)


def first_rows(server: Server, size: Size, tally: Tally) -> None:
    """From the start of the program to the first row of a topic; and how much of that is Spark's own start."""
    if not tally.wants("spark-first-row", "spark-session"):
        return
    for _ in range(size.repeats):
        began = time.monotonic()
        with Spark(server) as running:
            running.do("session_made")
            tally.add("spark-session", time.monotonic() - began)
            running.do("first_row")
            tally.add("spark-first-row", time.monotonic() - began)


def rates(key: str, job: str, rows: int, running: Spark, server: Server, size: Size, tally: Tally) -> None:
    """Rows in a second; and what each row cost: the broker's processors under the key of the line, as everywhere, and those of
    Spark apart, because ours does in Python what the connector does in the JVM."""
    for counts in _rounds(size):
        before = *running.cpu_seconds(), server.cpu_seconds()
        seconds, _ = running.do(job)
        if counts:
            after = *running.cpu_seconds(), server.cpu_seconds()
            used = [now - then for now, then in zip(after, before, strict=True)]
            for name, cpu_s in zip((f"{key}-jvm", f"{key}-python", key), used, strict=True):
                tally.costs.setdefault(name, []).append(cpu_s * 1e6 / rows)
            tally.add(key, rows / seconds)
            told = "JVM {:.2f} s, Python {:.2f} s, broker {:.2f} s of a core".format(*used)
            tally.say(f"{key} {rows / seconds:,.0f} rows/s; {told}")


def _rounds(size: Size) -> list[bool]:
    """Which rounds count."""
    warm_ups = WARM_UPS if size.repeats > 1 else WARM_UPS_QUICK
    return [False] * warm_ups + [True] * size.repeats
