"""Brokers that die while Spark copies a topic: the copy goes on or says why it ended, and is exact when it is done.

The driver is started again when it has ended with an error, as `ottla pipeline run` does with its queries.
"""

from __future__ import annotations

import os
import random
import re
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from apache.kafka import Apache, why_missing
from cluster.coordination import TRANSACTION, coordinator_of
from cluster.nodes import Cluster
from harness import Node, Server, die_with_parent
from pipeline.copies import Copy

pytestmark = [pytest.mark.slow, pytest.mark.timeout(1800)]

KILLS = 5
ROWS = 200_000
BATCH = ROWS // 50
MINUTE = 60.0
SECONDS = 300
# What a query says when it gives up on a broker.
EXPLAINED = re.compile(
    r"no broker at|the batch may not have been written|the batch could not be written|gave nothing at"
)


class Watched:
    """A copy that is started again whenever it ends with an error, and how often that was."""

    def __init__(self, copy: Copy, rows: int = ROWS, batch: int = BATCH) -> None:
        self.copy, self.rows, self.batch = copy, rows, batch
        self.failures, self.done = 0, False
        copy.fill(rows)
        self.start()

    def start(self) -> None:
        self.copy.start(self.batch)
        assert self.copy.wait_for("started"), self.copy.log_tail()

    def at_work(self) -> bool:
        """Whether there is more to do, once something was written from now on. Its broker must run."""
        before = self.copy.written()
        while self.copy.written() <= before:
            if not self.copy.running() and self.is_done():
                return False
            time.sleep(0.05)
        return True

    def is_done(self) -> bool:
        """Of a driver that ended: whether all is copied. Else it has said why, and another is started."""
        self.done = self.done or self.copy.wait_for("done")
        if self.done:
            return True
        said = self.copy.log.read_text(errors="replace")
        assert EXPLAINED.search(said), self.copy.log_tail()
        self.failures += 1
        self.copy.log.unlink()
        self.copy.kill()
        self.start()
        return False

    def finish(self) -> None:
        while not self.is_done():
            pass
        self.copy.kill()

    def report(self, what: str) -> tuple[int, int]:
        lost, doubled = self.copy.misfits(self.rows)
        print(f"{self.rows} rows, {what}: {self.failures} errors, {lost} lost, {doubled} doubled", flush=True)
        return lost, doubled


@pytest.fixture(params=["ottla", "apache"])
def server(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Server]:
    if request.param == "apache" and (reason := why_missing()):
        pytest.skip(reason)
    made: Server = Node(tmp_path / "data") if request.param == "ottla" else Apache(tmp_path / "data")
    made.start()
    yield made
    made.kill()


@pytest.fixture
def node(tmp_path: Path) -> Iterator[Server]:
    made = Node(tmp_path / "data")
    made.start()
    yield made
    made.kill()


def test_a_broker_is_killed_again_and_again(server: Server, tmp_path: Path) -> None:
    """STR-05: away for up to five seconds each time, which is waited for. OTTLA_SEED chooses the moments."""
    rng = random.Random(int(os.environ.get("OTTLA_SEED", "1")))
    watched = Watched(Copy(server.address, tmp_path))
    done = 0
    while done < KILLS and watched.at_work():
        time.sleep(rng.uniform(0, 1))
        server.kill()
        time.sleep(rng.uniform(0, 5))
        server.start()
        done += 1
        print(f"kill {done} of the broker: {watched.failures} errors", flush=True)
    watched.finish()
    assert watched.report(f"{done} kills of the broker") == (0, 0)
    assert done >= KILLS // 2, "the copy was finished before the broker could be killed often enough"
    assert watched.failures == 0, "a broker that comes back soon is waited for"


def test_the_coordinator_of_the_sink_is_killed(tmp_path: Path) -> None:
    """STR-05, TXN-07: in a cluster of three, whoever coordinates the sink's transactions, again and again."""
    rng = random.Random(int(os.environ.get("OTTLA_SEED", "1")))
    with Cluster(tmp_path / "nodes") as nodes:
        nodes.start()
        watched = Watched(Copy(nodes.bootstrap, tmp_path))
        done = 0
        while done < KILLS and watched.at_work():
            time.sleep(rng.uniform(0, 1))
            gone = coordinator_of(nodes, f"ottla-sink-{watched.copy.target}", TRANSACTION)
            nodes.members[gone].kill()
            time.sleep(rng.uniform(0, 8))
            nodes.mend()
            for topic in ("__transaction_state", "__consumer_offsets", watched.copy.source, watched.copy.target):
                nodes.wait_in_sync(topic)
            done += 1
            print(f"kill {done} of the coordinator, node {gone}: {watched.failures} errors", flush=True)
        watched.finish()
        assert watched.report(f"{done} kills of the coordinator") == (0, 0)
    assert done >= KILLS // 2, "the copy was finished before the coordinator could be killed often enough"
    assert watched.failures == 0, "two brokers of three can go on without it"


def test_a_broker_is_gone_for_a_minute(node: Server, tmp_path: Path) -> None:
    """A query of one's own: it goes on, or ends with an error that names the broker, and goes on when started again."""
    watched = Watched(Copy(node.address, tmp_path))
    assert watched.at_work()
    node.kill()
    time.sleep(MINUTE)
    node.start()
    watched.finish()
    assert watched.report("a broker gone for a minute") == (0, 0)


PIPELINE = """
name: patient
trigger: available-now
checkpoints: {checkpoints}
sources:
  numbers: {{topic: {source}, format: raw, start: earliest, options: {{maxOffsetsPerTrigger: {batch}}}}}
steps:
  same: {{sql: "SELECT _key AS key, value FROM numbers"}}
sinks:
  out: {{from: same, topic: {target}, format: raw}}
"""


def test_a_pipeline_outlasts_a_broker_that_is_gone_for_a_minute(node: Server, tmp_path: Path) -> None:
    """Nobody starts anything again but the pipeline itself."""
    copy = Copy(node.address, tmp_path)
    copy.fill(ROWS)
    file, log = tmp_path / "pipeline.yml", tmp_path / "pipeline.log"
    words = {"source": copy.source, "target": copy.target, "batch": BATCH, "checkpoints": tmp_path / "checkpoints"}
    file.write_text(PIPELINE.format(**words))
    command = [sys.executable, "-m", "ottla", "pipeline", "run", str(file), "-b", node.address]
    with log.open("wb") as said:
        pipeline = subprocess.Popen(command, stdout=said, stderr=said, preexec_fn=die_with_parent)
    try:
        while not copy.written():
            assert pipeline.poll() is None, log.read_text()
            time.sleep(0.1)
        node.kill()
        time.sleep(MINUTE)
        node.start()
        assert pipeline.wait(SECONDS) == 0, log.read_text()
    finally:
        pipeline.kill()
        pipeline.wait()
    lost, doubled = copy.misfits(ROWS)
    print(f"{ROWS} rows, a pipeline and a broker gone for a minute: {lost} lost, {doubled} doubled", flush=True)
    assert (lost, doubled) == (0, 0)
    told = [line for line in log.read_text().splitlines() if EXPLAINED.search(line)]
    print("\n".join(told) or "it went on", flush=True)
