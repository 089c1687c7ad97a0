"""Plays many seeds of the cluster on all cores: `make simulate SEEDS=50000`, or `cd tests; python -m sim.simulate 0 50000`.

With `--operated` (`make simulate PLAY=operated`) somebody moves replicas and changes settings meanwhile (`operated_play`):
seeds `m0` and so on. With `--voters` (`PLAY=voters`) clusters have other shapes, and somebody changes who votes
(`voters_play`): seeds `v0` and so on.

A seed that fails is shrunk: its faults are left out one by one for as long as it still fails. What is printed then is the
command that plays what is left again.
"""

from __future__ import annotations

import argparse
import logging
import multiprocessing
import os
import sys
import time
from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from types import ModuleType

from sim import cluster_play, operated_play, voters_play
from sim.stage import Story

ROUNDS = 5

Seed = int | str


def play_of(seed: Seed) -> ModuleType:
    """`7` is a seed of `cluster_play`, `m7` one of `operated_play`, `v7` one of `voters_play`."""
    return {"m": operated_play, "v": voters_play}.get(str(seed)[0], cluster_play)


def play(seed: Seed, rounds: int, only: Sequence[int] | None = None) -> Story:
    story: Story = play_of(seed).play(seed, rounds, only)
    return story


def fails(seed: Seed, rounds: int = ROUNDS, only: Sequence[int] | None = None) -> str | None:
    """What went wrong, in one line."""
    try:
        story = play(seed, rounds, only)
    except Exception as error:
        return f"{type(error).__name__}: {error}"
    return ": ".join(story.anomalies[0]) if story.anomalies else None


def shrunk(seed: Seed, rounds: int = ROUNDS, fails: Callable[..., str | None] = fails) -> list[int]:
    """The faults without which this seed would not fail."""
    left = list(range(1, rounds + 1))
    for number in list(left):
        without = [other for other in left if other != number]
        if fails(seed, rounds, without) is not None:
            left = without
    return left


def command(seed: Seed, faults: Iterable[int]) -> str:
    return f"cd tests; python -m {play_of(seed).__name__} {seed}:{','.join(map(str, faults))}"


def attempt(seed: Seed) -> tuple[Seed, str | None, Counter[str], float, float]:
    """One seed in a child: what went wrong, figures, simulated seconds, seconds of the processor."""
    logging.disable(logging.CRITICAL)
    began = time.process_time()
    figures: Counter[str] = Counter()
    try:
        story = play(seed, ROUNDS)
    except Exception as error:
        return seed, f"{type(error).__name__}: {str(error)[:1500]}", figures, 0.0, time.process_time() - began
    figures.update(story.figures)
    figures.update({f"fault: {kind}": count for kind, count in story.faults.items()})
    figures["restarts"] += story.restarts
    wrong = ": ".join(story.anomalies[0]) if story.anomalies else None
    return seed, wrong, figures, story.simulated_s, time.process_time() - began


class Tally:
    """What became of all seeds so far."""

    def __init__(self) -> None:
        self.figures: Counter[str] = Counter()
        self.simulated_s = self.cpu_s = 0.0
        self.wrong: dict[Seed, str] = {}
        self.slowest = 0.0

    def add(self, seed: Seed, wrong: str | None, figures: Counter[str], simulated_s: float, cpu_s: float) -> None:
        self.figures.update(figures)
        self.figures["seeds"] += 1
        self.slowest = max(self.slowest, figures["ms until whole"] / 1000)
        self.simulated_s += simulated_s
        self.cpu_s += cpu_s
        if wrong is not None:
            self.wrong[seed] = wrong

    def lines(self) -> list[str]:
        rate = self.simulated_s / max(self.cpu_s, 1e-9)
        hours = f"{self.simulated_s / 3600:.2f} simulated hours, {rate:.1f} per hour of a core"
        return [
            f"{self.figures['seeds']} seeds, {len(self.wrong)} wrong; {hours}; whole after {self.slowest:.1f} s at most",
            *(f"  {count:>9}  {what}" for what, count in sorted(self.figures.items()) if what != "ms until whole"),
        ]


def simulate(seeds: Iterable[Seed], processes: int, say: Callable[[str], None] = print) -> Tally:
    tally, began = Tally(), time.monotonic()
    with multiprocessing.get_context("spawn").Pool(processes) as pool:
        for outcome in pool.imap_unordered(attempt, seeds, chunksize=4):
            tally.add(*outcome)
            if outcome[1] is not None:
                say(f"seed {outcome[0]}: {outcome[1]}")
            if tally.figures["seeds"] % 100 == 0:
                say(f"after {time.monotonic() - began:.0f} s: {tally.lines()[0]}")
    return tally


def asked(words: Sequence[str] | None = None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("first", type=int)
    parser.add_argument("count", type=int)
    parser.add_argument("--processes", type=int, default=os.cpu_count() or 1)
    parser.add_argument("--shrink", type=int, default=3, help="how many of those that fail are shrunk")
    parser.add_argument("--operated", action="store_true", help="somebody moves replicas and changes settings")
    parser.add_argument("--voters", action="store_true", help="clusters of other shapes, whose voters change")
    return parser.parse_args(words)


def seeds(arguments: argparse.Namespace) -> list[Seed]:
    letter = "m" if arguments.operated else "v" if arguments.voters else ""
    numbers = range(arguments.first, arguments.first + arguments.count)
    return [f"{letter}{number}" if letter else number for number in numbers]


def main() -> int:
    arguments = asked()
    sys.stdout.reconfigure(line_buffering=True)
    tally = simulate(seeds(arguments), arguments.processes)
    logging.disable(logging.CRITICAL)
    for seed in sorted(tally.wrong, key=str)[: arguments.shrink]:
        print(f"seed {seed}: {tally.wrong[seed][:300]}\n    {command(seed, shrunk(seed))}", flush=True)
    print(*tally.lines(), sep="\n")
    return 1 if tally.wrong else 0


if __name__ == "__main__":
    sys.exit(main())
