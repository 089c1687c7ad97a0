"""Groups of both protocols on one unmodified node under the simulated loop, through everything that the disk, the network and
their own members have to offer. The workload is in group_play.py, the oracle in ottla/sim/group_checks.py."""

from __future__ import annotations

import logging
import os
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import pytest

from ottla.sim.loop import Mishap, Stuck
from ottla.wire.errors import KafkaError
from sim.group_mutants import MUTANTS
from sim.group_play import play

SEEDS, ROUNDS = 40, 4
SEEDS_FOR_MUTANTS = range(15, 165)
SEEDS_SLOW, ROUNDS_SLOW = 2000, 10
TESTS = Path(__file__).parent.parent
FAULTS = [
    *(
        "kill, nothing lost",
        "kill, power lost",
        "kill at a disk call, nothing lost",
        "kill while starting, nothing lost",
    ),
    *("clean stop", "connection reset", "stall", "node paused", "client paused", "member cut off", "clock jump"),
    *("member slow", "slow disk", "full disk", "fsync error of the offsets", "node and members die"),
]


@pytest.fixture(autouse=True)
def quiet() -> Iterator[None]:
    """Nodes that are killed on purpose have a lot to say."""
    logging.disable(logging.CRITICAL)
    yield
    logging.disable(logging.NOTSET)


def play_all(seeds: range, rounds: int) -> tuple[list[str], Counter[str]]:
    """Play them; what went wrong in words that a reader can play again, and the figures."""
    wrong: list[str] = []
    figures: Counter[str] = Counter()
    for seed in seeds:
        try:
            story = play(seed, rounds)
        except Exception as error:
            wrong.append(f"play({seed}, {rounds}): {type(error).__name__}: {str(error)[:2000]}")
            continue
        wrong += [f"play({seed}, {rounds}): {': '.join(anomaly)}" for anomaly in story.anomalies]
        figures.update(acked=story.acked, shown=story.shown, taken=story.taken, restarts=story.restarts)
        figures["simulated seconds"] += round(story.simulated_s)
        figures.update({f"fault: {kind}": count for kind, count in story.faults.items()})
    return wrong, figures


def show(figures: Counter[str], began: float) -> None:
    lines = [f"  {count:>8}  {what}" for what, count in sorted(figures.items())]
    print("", f"groups, simulated, in {time.perf_counter() - began:.1f} s", *lines, sep="\n")


@pytest.mark.timeout(600)
def test_groups_keep_their_promises_whatever_happens(capsys: pytest.CaptureFixture[str]) -> None:
    """GRP-03, GRP-15, OFF-02, TRAP-54, TRAP-56, TRAP-59: no acknowledged commit is lost or goes back, no partition is used by
    two, generations and epochs rise, everybody is answered, and after the last fault each partition has one owner."""
    began = time.perf_counter()
    wrong, figures = play_all(range(SEEDS), ROUNDS)
    with capsys.disabled():
        show(figures, began)
    assert not wrong, "\n".join(wrong[:20])
    assert figures["acked"] > 50 * SEEDS and figures["taken"] > 10 * SEEDS
    never = [kind for kind in FAULTS if not figures[f"fault: {kind}"]]
    assert len(never) < 3, f"never tried: {never}"


@pytest.mark.slow
@pytest.mark.timeout(7200)
def test_groups_keep_their_promises_through_thousands_of_seeds(capsys: pytest.CaptureFixture[str]) -> None:
    began = time.perf_counter()
    wrong, figures = play_all(range(10_000, 10_000 + SEEDS_SLOW), ROUNDS_SLOW)
    with capsys.disabled():
        show(figures, began)
    assert not wrong, "\n".join(wrong[:20])


def test_same_seed_same_history_of_groups_in_every_process() -> None:
    told = set()
    for hash_seed in ("0", "4242"):
        environment = {**os.environ, "PYTHONHASHSEED": hash_seed}
        command = [sys.executable, "-m", "sim.group_play", "1", "2"]
        done = subprocess.run(command, env=environment, cwd=TESTS, check=True, capture_output=True, text=True)
        told.add(done.stdout)
    assert len(told) == 1
    assert len({line.split()[1] for line in told.pop().splitlines()}) == 2


def caught(seed: int) -> str | None:
    try:
        story = play(seed, ROUNDS)
    except (Mishap, Stuck, KafkaError, OSError, AssertionError) as error:
        return f"{type(error).__name__}: {error}"
    return ": ".join(story.anomalies[0]) if story.anomalies else None


@pytest.mark.timeout(600)
@pytest.mark.parametrize("name", MUTANTS)
def test_planted_mistakes_about_groups_are_noticed(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """A harness that catches none proves nothing."""
    MUTANTS[name](monkeypatch)
    assert any(caught(seed) for seed in SEEDS_FOR_MUTANTS), f"{name} went unnoticed"
