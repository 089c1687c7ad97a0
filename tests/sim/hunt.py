"""Looks for each planted mistake among many seeds: `make mutants`, or `cd tests; python -m sim.hunt [name ...]`.

First with the faults that suit it, up to DIRECTED_SEEDS of them, then with all, up to GENERAL_SEEDS. What is printed is the
seed that showed it and what was noticed. Whatever goes unnoticed is a hole in the simulation.
"""

from __future__ import annotations

import argparse
import logging
import multiprocessing
import os
import sys
from typing import NamedTuple

import pytest

from sim.cluster_mutants import mutant
from sim.cluster_play import play, prepare_all
from sim.many_seeds import caught
from sim.planting import Kinds

ROUNDS = 5
DIRECTED_SEEDS = 50
GENERAL_SEEDS = 500


class Catch(NamedTuple):
    seed: int
    what: str


class Found(NamedTuple):
    name: str
    directed: Catch | None
    general: Catch | None


def search(name: str, kinds: Kinds, seeds: int) -> Catch | None:
    """The first seed that shows the mistake, and nothing without it."""
    for seed in range(seeds):
        patch = pytest.MonkeyPatch()
        mutant.plants[name](patch)
        noticed = look(seed, kinds)
        patch.undo()
        if noticed is not None and look(seed, kinds) is None:
            return Catch(seed, noticed)
    return None


def look(seed: int, kinds: Kinds) -> str | None:
    return caught(lambda seed, rounds: play(seed, rounds, kinds=kinds), seed, ROUNDS)


def hunt(job: tuple[str, int]) -> Found:
    name, general = job
    logging.disable(logging.CRITICAL)
    prepare_all()
    directed = search(name, mutant.directed[name], DIRECTED_SEEDS)
    return Found(name, directed, search(name, None, general) if general else None)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("names", nargs="*")
    parser.add_argument("--processes", type=int, default=os.cpu_count() or 1)
    parser.add_argument("--general", type=int, default=GENERAL_SEEDS)
    arguments = parser.parse_args()
    jobs = [(name, arguments.general) for name in arguments.names or mutant.plants]
    missed = 0
    with multiprocessing.get_context("spawn").Pool(arguments.processes, maxtasksperchild=1) as pool:
        for found in pool.imap_unordered(hunt, jobs):
            directed, general = found.directed, found.general
            print(found.name, "directed:", directed and directed.seed, "general:", general and general.seed, flush=True)
            print("   ", (directed or general or Catch(0, "went unnoticed")).what[:200], flush=True)
            missed += directed is None and general is None
    print(f"{len(jobs) - missed} of {len(jobs)} planted mistakes were noticed")
    return 1 if missed else 0


if __name__ == "__main__":
    sys.exit(main())
