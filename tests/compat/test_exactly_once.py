"""Exactly-once with real clients: consume, transform, produce, while clients and broker are killed with -9 in turn.

OTTLA_TRANSACTIONS_ON_APACHE runs the same on Apache Kafka, to tell a client's habits from our mistakes. How long the long ones
last is said by OTTLA_KILLING_SECONDS.
"""

from __future__ import annotations

import os
import random
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from apache import kafka
from compat.exactly_once import SETTINGS, JavaLoop, Loop, Trial
from harness import Node, Server, stop_all

pytestmark = pytest.mark.apache

PYTHON_LIBRARIES = ("confluent", "kafka-python", "aiokafka")
LONG_SECONDS = float(os.environ.get("OTTLA_KILLING_SECONDS", "300"))


@pytest.fixture
def trial(tmp_path: Path) -> Iterator[Callable[..., Trial]]:
    if reason := kafka.why_missing():
        pytest.skip(reason)
    on_apache = os.environ.get("OTTLA_TRANSACTIONS_ON_APACHE")
    made = kafka.Apache if on_apache else Node
    server: Server = made(tmp_path / "data", settings=SETTINGS)
    trials: list[Trial] = []

    def begin(make: Callable[[str], list[Loop]], per_second: int) -> Trial:
        server.start()
        trials.append(Trial(server, make(server.address), per_second))
        return trials[-1]

    try:
        yield begin
    finally:
        for each in trials:
            each.stop()
        stop_all([server])


def told(capsys: pytest.CaptureFixture[str], trial: Trial) -> None:
    with capsys.disabled():
        print(f" [{trial.told()}]", end="")


@pytest.mark.timeout(400)
def test_exactly_once_although_everybody_is_killed(
    trial: Callable[..., Trial], capsys: pytest.CaptureFixture[str]
) -> None:
    """TXN-06, TXN-11: four libraries at once, each killed after every step of a transaction, and the broker in between."""
    copying = trial(lambda at: [*(Loop(at, name) for name in PYTHON_LIBRARIES), JavaLoop(at)], per_second=100)
    copying.die_at_every_step()
    copying.tend(3)
    copying.kill_broker()
    copying.tend(120, lambda: not copying.steps_left())
    copying.loops[-1].kill(random.Random(1))
    copying.kill_broker()
    copying.tend(1)
    copying.check(seconds=150)
    told(capsys, copying)


@pytest.mark.slow
@pytest.mark.timeout(900)
def test_exactly_once_for_five_minutes(trial: Callable[..., Trial], capsys: pytest.CaptureFixture[str]) -> None:
    """TXN-06, TXN-10, TXN-11: with groups too, whose members take over from each other."""

    def loops(at: str) -> list[Loop]:
        groups = [Loop(at, name, 4, "group", copiers=2) for name in ("confluent", "kafka-python")]
        return [*(Loop(at, name) for name in PYTHON_LIBRARIES), *groups, JavaLoop(at), JavaLoop(at, 2, "group")]

    copying, rng = trial(loops, per_second=100), random.Random(2026)
    copying.die_at_every_step()
    deadline = time.monotonic() + LONG_SECONDS
    while time.monotonic() < deadline:
        copying.tend(rng.uniform(0.5, 6))
        if rng.random() < 0.3:
            copying.kill_broker()
        else:
            rng.choice(copying.loops).kill(rng)
    copying.check(seconds=180)
    told(capsys, copying)
