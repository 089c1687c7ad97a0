"""Three unmodified nodes under the simulated loop, with everything that machines, disks, networks and clocks do to them; and
the promises of a cluster are kept. The workload is in cluster_play.py, what happens in cluster_nemesis.py, the oracle in
ottla/sim/checks.py (what clients were told) and ottla/sim/cluster_checks.py (what nodes hold)."""

from __future__ import annotations

import subprocess
import time
from collections.abc import Iterable

import pytest

from sim.cluster_play import play
from sim.figures import note
from sim.many_seeds import TESTS, assert_same_in_every_process, quiet
from sim.simulate import Seed, Tally, asked, attempt, command, seeds, shrunk

__all__ = ["quiet"]

TITLE = "a cluster"
SEEDS = range(90)
# Each of these is to happen in every run, so that none is forgotten by accident.
FAULTS = [
    *("kill, nothing lost", "kill of two, nothing lost", "kill at a disk call, nothing lost"),
    *("cut off", "cut off from peers", "one-way cut", "partial partition", "slow link", "connections reset", "stall"),
    *("pause", "slow disk", "clean stop"),
]


def played(title: str, seeds: Iterable[Seed], capsys: pytest.CaptureFixture[str]) -> Tally:
    """Figures of these seeds, of which none may go wrong: at once where one process plays, and in the end."""
    began, tally = time.perf_counter(), Tally()
    for seed in seeds:
        tally.add(*attempt(seed))
    note(title, tally.figures, tally.simulated_s)
    with capsys.disabled():
        print("", f"{title}, simulated, in {time.perf_counter() - began:.1f} s", *tally.lines(), sep="\n")
    assert not tally.wrong, "\n".join(f"{command(seed, shrunk(seed))}\n{why}" for seed, why in tally.wrong.items())
    return tally


@pytest.mark.timeout(1200)
def test_promises_of_a_cluster_are_kept(capsys: pytest.CaptureFixture[str]) -> None:
    """REP-01, REP-05, REP-06, REP-07, KRF-01: one leader per epoch, equal logs below the watermarks, nothing acknowledged is
    lost, doubled or reordered, and after the last fault the cluster is whole again by itself."""
    tally = played(TITLE, SEEDS, capsys)
    rare = [kind for kind in FAULTS if not tally.figures[f"fault: {kind}"]]
    assert not rare, f"never tried: {rare}"


def test_same_seed_same_history_in_every_process() -> None:
    assert_same_in_every_process("sim.cluster_play", ["1", "2", "3"])


def test_a_failing_seed_is_shrunk_to_the_faults_that_matter() -> None:
    def fails(seed: int, rounds: int, only: list[int]) -> str | None:
        return "wrong" if {2, 5} <= set(only) else None

    assert shrunk(7, 6, fails) == [2, 5]
    assert command(7, [2, 5]) == "cd tests; python -m sim.cluster_play 7:2,5"


@pytest.mark.parametrize("letter, play", [("", ""), ("m", "operated"), ("v", "voters")])
def test_make_simulates_each_play(letter: str, play: str) -> None:
    command = ["make", "-n", "-C", str(TESTS.parent), "simulate", "FIRST=4", "SEEDS=3", f"PLAY={play}"]
    said = subprocess.run(command, check=True, capture_output=True, text=True).stdout
    [words] = [line.partition("sim.simulate ")[2].split() for line in said.splitlines() if "sim.simulate" in line]
    assert seeds(asked(words)) == [f"{letter}{number}" if letter else number for number in (4, 5, 6)]


def test_a_fault_that_is_left_out_does_not_happen() -> None:
    whole, part, none = play(3), play(3, only=[1, 2]), play(3, only=[])
    assert sum(none.faults.values()) == 0
    assert sum(part.faults.values()) < sum(whole.faults.values())
