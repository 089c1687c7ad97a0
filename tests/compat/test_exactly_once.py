"""Exactly-once with real clients: consume, transform, produce, while clients and broker are killed with -9 in turn.

OTTLA_TRANSACTIONS_ON_APACHE runs the same on Apache Kafka, to tell a client's habits from our mistakes. How long the long ones
last is said by OTTLA_KILLING_SECONDS.
"""

from __future__ import annotations

import contextlib
import os
import random
from collections.abc import Iterator
from pathlib import Path

import pytest

from apache import kafka
from compat.exactly_once import SETTINGS, Begin, JavaLoop, Loop, trials
from harness import Node, Server, stop_all

pytestmark = pytest.mark.apache

PYTHON_LIBRARIES = ("confluent", "kafka-python", "aiokafka")
LONG_SECONDS = float(os.environ.get("OTTLA_KILLING_SECONDS", "300"))


@pytest.fixture
def trial(tmp_path: Path) -> Iterator[Begin]:
    made = kafka.Apache if os.environ.get("OTTLA_TRANSACTIONS_ON_APACHE") else Node
    server: Server = made(tmp_path / "data", settings=SETTINGS)
    with contextlib.ExitStack() as ends:
        ends.callback(stop_all, [server])
        yield ends.enter_context(trials(server))


@pytest.mark.timeout(400)
def test_exactly_once_although_everybody_is_killed(trial: Begin, capsys: pytest.CaptureFixture[str]) -> None:
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
    copying.tell(capsys)


@pytest.mark.slow
@pytest.mark.timeout(900)
def test_exactly_once_for_five_minutes(trial: Begin, capsys: pytest.CaptureFixture[str]) -> None:
    """TXN-06, TXN-10, TXN-11: with groups too, whose members take over from each other."""

    def loops(at: str) -> list[Loop]:
        groups = [Loop(at, name, 4, "group", copiers=2) for name in ("confluent", "kafka-python")]
        return [*(Loop(at, name) for name in PYTHON_LIBRARIES), *groups, JavaLoop(at), JavaLoop(at, 2, "group")]

    copying, rng = trial(loops, per_second=100), random.Random(2026)
    copying.die_at_every_step()
    copying.kill_somebody(LONG_SECONDS, rng, pause_max_s=6, brokers=0.3)
    copying.check(seconds=180)
    copying.tell(capsys)
