"""Three unmodified nodes with everything that befalls them, while somebody moves replicas, calls moves off, elects leaders,
changes settings and widens topics: the promises of a cluster are kept, and what the operator was told is so. The workload
is in operated_play.py and cluster_operator.py."""

from __future__ import annotations

import pytest

from sim.many_seeds import assert_same_in_every_process, quiet
from sim.operated_mutants import KNOWN, mutant
from sim.operated_play import play
from sim.operated_seeds import NAMED
from sim.simulate import ROUNDS, command
from sim.test_cluster_faults import played

__all__ = ["quiet"]

SEEDS = range(25)
# Each of these is to happen in every run, so that none is forgotten by accident.
DEEDS = [
    *("moves from 3 to 2", "moves from 2 to 3", "moves from 2 to 2", "moves from 3 to 3", "moves called off"),
    *("elections", "settings", "throttles", "topics widened", "answers lost"),
]
FAULTS = ["kill of who decides, nothing lost", "kill of who moves, nothing lost", "cut off who moves"]


@pytest.mark.timeout(1200)
def test_promises_are_kept_while_somebody_operates_the_cluster(capsys: pytest.CaptureFixture[str]) -> None:
    """REP-01, REP-20, KRF-01, KRF-11: moves, elections and settings are what was acknowledged, whoever dies meanwhile; nothing
    acknowledged is lost, and all three replicas are in sync in the end."""
    tally = played("an operated cluster", [f"m{seed}" for seed in SEEDS], capsys)
    wanted = [f"operator: {deed}" for deed in DEEDS] + [f"fault: {kind}" for kind in FAULTS]
    rare = [what for what in wanted if not tally.figures[what]]
    assert not rare, f"never tried: {rare}"


@pytest.mark.timeout(300)
def test_same_seed_same_history_in_every_process() -> None:
    assert_same_in_every_process("sim.operated_play", ["m1", "m2"])


def test_a_failing_seed_is_told_as_a_command() -> None:
    assert command("m7", [2, 5]) == "cd tests; python -m sim.operated_play m7:2,5"


@pytest.mark.parametrize("finding", NAMED)
def test_what_was_found_once_stays_found(finding: str) -> None:
    for seed in NAMED[finding]:
        assert play(seed, ROUNDS).anomalies == []


@pytest.mark.timeout(300)
@pytest.mark.parametrize("name", KNOWN)
def test_planted_mistakes_are_noticed(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    mutant.assert_noticed(name, KNOWN[name], play, ROUNDS, monkeypatch)


def test_seeds_are_of_mistakes_that_exist() -> None:
    assert set(KNOWN) == set(mutant.plants)
