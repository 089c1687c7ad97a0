"""Looks for each planted mistake among many seeds: `make mutants`, or `cd tests; python -m sim.hunt [name ...]`.

First with the faults that suit it, up to DIRECTED_SEEDS of them, then with all, up to GENERAL_SEEDS. What is printed is the
seed that showed it and what was noticed. Whatever goes unnoticed is a hole in the simulation. Each mistake is looked for in
the play that it was planted for: of clusters, of those that somebody operates, or of those whose voters change.
"""

from __future__ import annotations

import argparse
import logging
import multiprocessing
import os
import sys
from collections.abc import Callable, Sequence
from typing import NamedTuple

import pytest

from sim import cluster_mutants, cluster_play, operated_mutants, operated_play, voters_mutants, voters_play
from sim.many_seeds import caught
from sim.planting import Kinds, Planting
from sim.stage import Story

ROUNDS = 5
DIRECTED_SEEDS = 50
GENERAL_SEEDS = 500
HUNTS = [
    (cluster_mutants.mutant, cluster_play.play),
    (operated_mutants.mutant, operated_play.play),
    (voters_mutants.mutant, voters_play.play),
]


class Catch(NamedTuple):
    seed: int
    what: str


class Found(NamedTuple):
    name: str
    directed: Catch | None
    general: Catch | None


class Hunt(NamedTuple):
    """For one mistake, in the play that has to notice it."""

    name: str
    planting: Planting
    play: Callable[..., Story]

    def search(self, kinds: Kinds, seeds: int) -> Catch | None:
        """The first seed that shows the mistake, and nothing without it."""
        for seed in range(seeds):
            with pytest.MonkeyPatch.context() as patch:
                self.planting.plants[self.name](patch)
                noticed = self.look(seed, kinds)
            if noticed is not None and self.look(seed, kinds) is None:
                return Catch(seed, noticed)
        return None

    def look(self, seed: int, kinds: Kinds) -> str | None:
        return caught(lambda seed, rounds: self.play(seed, rounds, kinds=kinds), seed, ROUNDS)


def hunts() -> dict[str, Hunt]:
    return {name: Hunt(name, planting, play) for planting, play in HUNTS for name in planting.plants}


def hunt(job: tuple[str, int]) -> Found:
    """In a process of its own."""
    name, general = job
    logging.disable(logging.CRITICAL)
    one = hunts()[name]
    one.planting.prepare()
    directed = one.search(one.planting.directed[name], DIRECTED_SEEDS)
    return Found(name, directed, one.search(None, general) if general else None)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("names", nargs="*")
    parser.add_argument("--processes", type=int, default=os.cpu_count() or 1)
    parser.add_argument("--general", type=int, default=GENERAL_SEEDS)
    arguments = parser.parse_args()
    jobs, found = [(name, arguments.general) for name in arguments.names or hunts()], []
    with multiprocessing.get_context("spawn").Pool(arguments.processes, maxtasksperchild=1) as pool:
        for each in pool.imap_unordered(hunt, jobs):
            directed, general = each.directed, each.general
            print(each.name, "directed:", directed and directed.seed, "general:", general and general.seed, flush=True)
            print("   ", (directed or general or Catch(0, "went unnoticed")).what[:200], flush=True)
            found.append(each)
    print(*counts(found, arguments.general), sep="\n")
    return 0 if all(each.directed or each.general for each in found) else 1


def counts(found: Sequence[Found], general: int) -> list[str]:
    """Both of them: with the faults that suit a mistake it is looked for by somebody who knows of it."""
    noticed = [each for each in found if each.directed or each.general]
    told = [
        f"{len(noticed)} of {len(found)} planted mistakes were noticed",
        f"{sum(each.directed is not None for each in found)} with the faults that suit them, in {DIRECTED_SEEDS} seeds",
    ]
    if general:
        unnoticed = [each.name for each in found if each.general is None]
        told.append(f"{len(found) - len(unnoticed)} with all faults, in {general} seeds")
        told += [f"    not {name}" for name in unnoticed]
    return told


if __name__ == "__main__":
    sys.exit(main())
