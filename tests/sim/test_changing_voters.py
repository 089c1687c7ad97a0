"""Clusters of several shapes with everything that befalls them, while somebody changes the voters of the quorum: the promises
of a cluster are kept, and who votes is what was acknowledged. The workload is in voters_play.py and voters_operator.py, the
oracle in ottla/sim/voter_checks.py."""

from __future__ import annotations

import pytest

from sim.many_seeds import assert_same_in_every_process, quiet
from sim.simulate import ROUNDS, command
from sim.test_cluster_faults import played
from sim.voters_mutants import KNOWN, mutant
from sim.voters_play import play
from sim.voters_seeds import NAMED

__all__ = ["quiet"]

SEEDS = range(4, 12)
# Each of these is to happen in every run, so that none is forgotten by accident.
DEEDS = ["add: done", "remove: done", "leaders removed", "two at once", "refused", "answers lost"]
FAULTS = ["kill of who decides, nothing lost", "kill of who comes or goes, nothing lost", "two halves"]


@pytest.mark.timeout(300)
def test_promises_are_kept_while_voters_change(capsys: pytest.CaptureFixture[str]) -> None:
    """KRF-01, KRF-05: one change at a time, each by a majority of those it leaves; all end with the voters of the log."""
    tally = played("changing voters", [f"v{seed}" for seed in SEEDS], capsys)
    wanted = [f"operator: {deed}" for deed in DEEDS] + [f"fault: {kind}" for kind in FAULTS]
    rare = [what for what in wanted if not tally.figures[what]]
    assert not rare, f"never tried: {rare}"


def test_promises_are_kept_while_disks_of_voters_are_wiped() -> None:
    """A wipe waits until the others are a majority without that voter: among all faults it is rare."""
    stories = [play(f"v{seed}", kinds=["wiped_disk"]) for seed in range(4)]
    assert [story.anomalies for story in stories] == [[], [], [], []]
    assert sum(story.faults["wiped disk"] for story in stories) >= 4


@pytest.mark.parametrize("finding", NAMED)
def test_what_was_found_once_stays_found(finding: str) -> None:
    for seed in NAMED[finding]:
        assert play(seed, ROUNDS).anomalies == []


@pytest.mark.timeout(300)
def test_same_seed_same_history_in_every_process() -> None:
    assert_same_in_every_process("sim.voters_play", ["v1", "v2"])


def test_a_failing_seed_is_told_as_a_command() -> None:
    assert command("v7", [2, 5]) == "cd tests; python -m sim.voters_play v7:2,5"


@pytest.mark.timeout(300)
@pytest.mark.parametrize("name", KNOWN)
def test_planted_mistakes_are_noticed(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    mutant.assert_noticed(name, KNOWN[name], play, ROUNDS, monkeypatch)


def test_seeds_are_of_mistakes_that_exist() -> None:
    assert set(KNOWN) == set(mutant.plants)
