"""Mistakes planted into a simulated cluster, each with a seed that shows it; what the simulation once found; and more seeds,
because this file has a core of its own."""

from __future__ import annotations

import pytest

from sim.cluster_mutants import KNOWN, mutant
from sim.cluster_play import play
from sim.cluster_seeds import NAMED
from sim.hunt import Catch, Found, counts
from sim.many_seeds import quiet
from sim.test_cluster_faults import SEEDS, TITLE, played

__all__ = ["quiet"]

ROUNDS = 5
MORE = range(SEEDS.stop, SEEDS.stop + 60)


@pytest.mark.timeout(1200)
def test_promises_of_a_cluster_are_kept_by_others_too(capsys: pytest.CaptureFixture[str]) -> None:
    played(TITLE, MORE, capsys)


@pytest.mark.parametrize("finding", NAMED)
def test_what_was_found_once_stays_found(finding: str) -> None:
    seed, rounds = NAMED[finding]
    assert play(seed, rounds).anomalies == []


@pytest.mark.timeout(300)
@pytest.mark.parametrize("name", KNOWN)
def test_planted_mistakes_are_noticed(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """A harness that catches none proves nothing. `make mutants` looks for them without being told where."""
    mutant.assert_noticed(name, KNOWN[name], play, ROUNDS, monkeypatch)


def test_seeds_are_of_mistakes_that_exist() -> None:
    assert set(KNOWN) <= set(mutant.plants)


def test_a_hunt_tells_both_counts() -> None:
    catch = Catch(7, "lost")
    found = [Found("a", catch, None), Found("b", None, catch), Found("c", catch, catch), Found("d", None, None)]
    noticed, directed = "3 of 4 planted mistakes were noticed", "2 with the faults that suit them, in 50 seeds"
    assert counts(found, 0) == [noticed, directed]
    assert counts(found, 9) == [noticed, directed, "2 with all faults, in 9 seeds", "    not a", "    not d"]
