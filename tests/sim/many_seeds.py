"""Plays many seeds, or cuts a script at many places: what went wrong, in words that a reader can play again."""

from __future__ import annotations

import logging
import os
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path

import pytest

from ottla.sim.disk import Loss
from ottla.sim.loop import Mishap, Stuck
from ottla.wire.errors import KafkaError
from sim.figures import note
from sim.stage import Story

TESTS = Path(__file__).parent.parent
LOSSES = (None, *Loss)

Play = Callable[[int, int], Story]
# A story that is cut at this disk call, with this loss, and how many calls its first process made.
CutAt = Callable[[int, Loss | None], tuple[Story, int]]


@pytest.fixture(autouse=True)
def quiet() -> Iterator[None]:
    """Nodes that are killed on purpose have a lot to say."""
    logging.disable(logging.CRITICAL)
    yield
    logging.disable(logging.NOTSET)


def play_all(play: Play, seeds: Iterable[int], rounds: int) -> tuple[list[str], Counter[str]]:
    """Play them; what went wrong, and the figures."""
    wrong: list[str] = []
    figures: Counter[str] = Counter()
    for seed in seeds:
        name = f"play({seed}, {rounds})"
        if (story := attempted(name, lambda seed=seed: play(seed, rounds), wrong)) is None:  # type: ignore[misc]
            continue
        figures.update(story.figures)
        figures.update(seeds=1, restarts=story.restarts)
        figures["simulated seconds"] += round(story.simulated_s)
        figures.update({f"fault: {kind}": count for kind, count in story.faults.items()})
    return wrong, figures


def attempted(name: str, tell: Callable[[], Story], wrong: list[str]) -> Story | None:
    try:
        story = tell()
    except Exception as error:
        wrong.append(f"{name}: {type(error).__name__}: {str(error)[:2000]}")
        return None
    wrong += [f"{name}: {': '.join(anomaly)}" for anomaly in story.anomalies]
    return story


def show(title: str, figures: Counter[str], began: float) -> None:
    """At once where one process plays, and in the end."""
    note(title, figures, figures["simulated seconds"])
    lines = [f"  {count:>8}  {what}" for what, count in sorted(figures.items())]
    print("", f"{title}, simulated, in {time.perf_counter() - began:.1f} s", *lines, sep="\n")


def caught(play: Play, seed: int, rounds: int) -> str | None:
    """What was noticed of a planted mistake, if anything was."""
    try:
        story = play(seed, rounds)
    except (Mishap, Stuck, KafkaError, OSError, AssertionError) as error:
        return f"{type(error).__name__}: {error}"
    return ": ".join(story.anomalies[0]) if story.anomalies else None


def assert_same_in_every_process(module: str, seeds: list[str], hash_seeds: tuple[str, ...] = ("0", "4242")) -> None:
    """Sets of strings, addresses of objects, clocks and threads would show here."""
    told = set()
    for hash_seed in hash_seeds:
        environment = {**os.environ, "PYTHONHASHSEED": hash_seed}
        command = [sys.executable, "-m", module, *seeds]
        done = subprocess.run(command, env=environment, cwd=TESTS, check=True, capture_output=True, text=True)
        told.add(done.stdout)
    assert len(told) == 1
    assert len({line.split()[1] for line in told.pop().splitlines()}) == len(seeds)


def cut_everywhere(cut_at: CutAt, step: int) -> tuple[list[str], int, int]:
    """Cut at every `step`th disk call of a first life, each time with another loss, or at every one with all of them.

    What went wrong, cuts, and calls there are."""
    calls = max(cut_at(1_000_000, loss)[1] for loss in LOSSES)
    wrong: list[str] = []
    cuts = 0
    for number, call in enumerate(range(1, calls + 1, step)):
        for loss in LOSSES if step == 1 else (LOSSES[number % len(LOSSES)],):
            cuts += 1
            attempted(f"cut_at({call}, {loss})", lambda c=call, how=loss: cut_at(c, how)[0], wrong)  # type: ignore[misc]
    return wrong, cuts, calls
