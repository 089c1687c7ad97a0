"""Groups of both protocols on one unmodified node under the simulated loop, through everything that the disk, the network and
their own members have to offer. The workload is in group_play.py, the oracle in ottla/sim/group_checks.py."""

from __future__ import annotations

import time

import pytest

from ottla.client.cluster import TopicPartition
from ottla.sim.group_checks import Ledger
from sim.group_mutants import MUTANTS
from sim.group_play import play
from sim.many_seeds import assert_same_in_every_process, caught, play_all, quiet, show

__all__ = ["quiet"]

SEEDS, ROUNDS = 40, 4
SEEDS_FOR_MUTANTS = range(15, 165)
SEEDS_SLOW, ROUNDS_SLOW = 2000, 10
# In none of the first seeds the node is stopped as it should be.
SEED_WITH_A_CLEAN_STOP = 49
# Each of these happens in these seeds; a change of their histories that loses one is to be seen.
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


@pytest.mark.timeout(600)
def test_groups_keep_their_promises_whatever_happens(capsys: pytest.CaptureFixture[str]) -> None:
    """GRP-03, GRP-15, OFF-02, TRAP-54, TRAP-56, TRAP-59: no acknowledged commit is lost or goes back, no partition is used by
    two, generations and epochs rise, everybody is answered, and after the last fault each partition has one owner."""
    began = time.perf_counter()
    wrong, figures = play_all(play, [*range(SEEDS), SEED_WITH_A_CLEAN_STOP], ROUNDS)
    with capsys.disabled():
        show("groups", figures, began)
    assert not wrong, "\n".join(wrong[:20])
    assert figures["acked"] > 50 * SEEDS and figures["taken"] > 10 * SEEDS
    never = [kind for kind in FAULTS if not figures[f"fault: {kind}"]]
    assert not never, f"never tried: {never}"


@pytest.mark.slow
@pytest.mark.timeout(7200)
def test_groups_keep_their_promises_through_thousands_of_seeds(capsys: pytest.CaptureFixture[str]) -> None:
    began = time.perf_counter()
    wrong, figures = play_all(play, range(10_000, 10_000 + SEEDS_SLOW), ROUNDS_SLOW)
    with capsys.disabled():
        show("groups", figures, began)
    assert not wrong, "\n".join(wrong[:20])


@pytest.mark.parametrize("is_deposed", [False, True])
def test_who_is_heard_by_a_coordinator_of_before_has_no_claim(is_deposed: bool) -> None:
    """And whoever is heard by the right one has it until its session is over."""
    ledger, where = Ledger(3.0), TopicPartition("t", 0)
    ledger.heard("first", ledger.sending(1.0))
    ledger.took("g", "first", 1, [where], 1.0)
    ledger.may_be_old = lambda: is_deposed
    ledger.heard("first", ledger.sending(3.5))
    ledger.may_be_old = lambda: False
    ledger.heard("second", ledger.sending(4.5))
    ledger.took("g", "second", 2, [where], 4.6)
    assert [anomaly.kind for anomaly in ledger.found] == ([] if is_deposed else ["owned-twice"])


def test_same_seed_same_history_of_groups_in_every_process() -> None:
    assert_same_in_every_process("sim.group_play", ["1", "2"])


@pytest.mark.timeout(600)
@pytest.mark.parametrize("name", MUTANTS)
def test_planted_mistakes_about_groups_are_noticed(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """A harness that catches none proves nothing."""
    MUTANTS[name](monkeypatch)
    assert any(caught(play, seed, ROUNDS) for seed in SEEDS_FOR_MUTANTS), f"{name} went unnoticed"
