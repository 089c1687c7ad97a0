"""Exactly once on three brokers: consume, transform, produce, while brokers and clients are killed with -9 in turn.

How long the long one lasts is said by OTTLA_KILLING_SECONDS.
"""

from __future__ import annotations

import itertools
import os
import random
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from apache import kafka
from cluster.conftest import KIND
from cluster.coordination import committed
from cluster.nodes import Cluster
from compat.exactly_once import SETTINGS, Begin, JavaLoop, Loop, Trial, trials
from compat.test_streams import Application, Orders

pytestmark = pytest.mark.apache

# kafka-python 3.0.12 forgets a request whose coordinator it cannot connect to, and waits for its answer for ever: the long
# test ends who hangs. aiokafka is told for each partition that its coordinator has moved: it would begin at 0 again, if only
# the whole OffsetFetch were refused.
PYTHON_LIBRARIES = ("confluent", "kafka-python", "aiokafka")
SECONDS = float(os.environ.get("OTTLA_KILLING_SECONDS", "60"))


class Brokers:
    """A cluster with the face of one server: whoever kills it kills the next broker of three."""

    def __init__(self, nodes: Cluster) -> None:
        self.nodes, self.address = nodes, nodes.bootstrap
        self._turns = itertools.cycle(nodes.members)

    def kill(self) -> None:
        self.nodes.members[next(self._turns)].kill()

    def start(self) -> None:
        """The next one may be killed when everything is on all three again."""
        if self.nodes.running:
            self.nodes.mend()
        else:
            self.nodes.start()
        topics = [topic.name for topic in self.nodes.ask(lambda line: line.metadata()).topics]
        for topic in topics:
            self.nodes.wait_in_sync(topic)


class ClusterTrial(Trial):
    server: Brokers

    def _offsets(self, loop: Loop) -> int:
        found = committed(self.server.nodes, loop.group, loop.input, loop.partitions)
        return sum(max(0, offset) for offset in found)


@pytest.fixture
def nodes(tmp_path: Path) -> Iterator[Cluster]:
    with Cluster(tmp_path, settings=SETTINGS, kinds=dict.fromkeys((1, 2, 3), KIND)) as made:
        yield made


@pytest.fixture
def trial(nodes: Cluster) -> Iterator[Begin]:
    with trials(Brokers(nodes), ClusterTrial) as begin:
        yield begin


@pytest.mark.timeout(300)
def test_exactly_once_although_each_broker_is_killed(trial: Begin, capsys: pytest.CaptureFixture[str]) -> None:
    """TXN-06, TXN-11, REP-12: whoever leads or coordinates dies."""
    copying = trial(lambda at: [Loop(at, "confluent")], per_second=50)
    copying.tend(2)
    for _ in range(3):
        copying.kill_broker()
        copying.tend(0.5)
    copying.check(seconds=120)
    copying.tell(capsys)


@pytest.mark.slow
@pytest.mark.timeout(900)
def test_exactly_once_for_a_minute(trial: Begin, capsys: pytest.CaptureFixture[str]) -> None:
    """TXN-06, TXN-10, TXN-11: three libraries, with groups too, killed after every step; brokers in turn."""

    def loops(at: str) -> list[Loop]:
        group = Loop(at, "confluent", 4, "group", copiers=2)
        return [*(Loop(at, name) for name in PYTHON_LIBRARIES), group, JavaLoop(at)]

    copying, rng = trial(loops, per_second=50), random.Random(2026)
    copying.die_at_every_step()
    copying.kill_somebody(SECONDS, rng, pause_max_s=4, brokers=0.6)
    copying.check(seconds=180)
    copying.tell(capsys)


@pytest.mark.slow
@pytest.mark.timeout(900)
def test_streams_exactly_once_for_a_minute(nodes: Cluster, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """TXN-06, TXN-11, STR-05, STR-07: Kafka Streams with exactly_once_v2, a join and a state store. The application is killed,
    or the next broker; orders are numbered once."""
    if reason := kafka.why_missing():
        pytest.skip(reason)
    brokers, rng = Brokers(nodes), random.Random(2026)
    brokers.start()
    application, orders = Application(nodes.bootstrap, tmp_path), Orders(nodes.bootstrap)
    try:
        application.start()
        deadline, kills = time.monotonic() + SECONDS, 0
        while time.monotonic() < deadline:
            for _ in range(rng.randrange(5, 25)):
                orders.place(20)
                time.sleep(0.1)
            kills += 1
            victim = brokers if rng.random() < 0.6 else application
            victim.kill()
            victim.start()
        orders.check()
    finally:
        application.kill()
    with capsys.disabled():
        print(f" [{orders.count} orders, {kills} kills, {application.starts} starts]", end="")
