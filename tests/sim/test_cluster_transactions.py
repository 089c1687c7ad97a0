"""Transactions on three unmodified nodes under the simulated loop. Whoever coordinates one, whoever leads one of its
partitions, and both at once, fall at each of its steps. The workload is in cluster_transaction_play.py, the oracles in
ottla/sim/transaction_checks.py and ottla/sim/cluster_checks.py."""

from __future__ import annotations

import time
from collections.abc import Sequence
from itertools import chain

import pytest

from ottla.server import markers
from ottla.server.couriers import Codes
from ottla.wire.errors import Error, KafkaError, error_of
from sim.cluster_transaction_nemesis import MOMENTS
from sim.cluster_transaction_play import play
from sim.many_seeds import assert_same_in_every_process, caught, play_all, quiet, show

__all__ = ["quiet"]

SEEDS, ROUNDS = (*range(24), 40), 3
SEEDS_SLOW, ROUNDS_SLOW = 500, 9
# Each step with each victim happens in these seeds; a change of their histories that loses one is to be seen. (40 begins like
# 16, in which nobody commits offsets in time.)
FAULTS = [f"{step}: {victims}" for step, victims in MOMENTS]
FAULTS += ["late EndTxnRequest", "late ProduceRequest", "late TxnOffsetCommitRequest", "late AddPartitionsToTxnRequest"]


def played(seeds: Sequence[int], rounds: int, capsys: pytest.CaptureFixture[str]) -> None:
    began = time.perf_counter()
    wrong, figures = play_all(play, seeds, rounds)
    with capsys.disabled():
        show("transactions on three nodes", figures, began)
    assert not wrong, "\n".join(wrong[:20])
    assert figures["transactions committed"] > 10 * len(seeds) and figures["transactions aborted"] > 3 * len(seeds)
    never = [kind for kind in FAULTS if not figures[f"fault: {kind}"]]
    assert not never, f"never tried: {never}"


@pytest.mark.timeout(1200)
def test_transactions_keep_their_promises_whoever_falls_at_which_step(capsys: pytest.CaptureFixture[str]) -> None:
    """TXN-03, TXN-04, TXN-05, TXN-06, TXN-07, TXN-08, TXN-09, REP-12: nothing aborted is read, nothing is read too
    early, torn, lost or doubled; after the last fault nothing hangs in any replica, and every transactional id is good for
    another transaction."""
    played(SEEDS, ROUNDS, capsys)


@pytest.mark.slow
@pytest.mark.timeout(7200)
def test_transactions_of_three_nodes_keep_their_promises_through_many_seeds(capsys: pytest.CaptureFixture[str]) -> None:
    played(range(10_000, 10_000 + SEEDS_SLOW), ROUNDS_SLOW, capsys)


def test_same_seed_same_history_of_transactions_on_three_nodes_in_every_process() -> None:
    assert_same_in_every_process("sim.cluster_transaction_play", ["1", "2"])


# The first of the seeds above that notices it.
SEED_OF_SILENCE = 10


@pytest.mark.timeout(1200)
def test_silence_that_is_taken_for_a_marker_is_noticed(monkeypatch: pytest.MonkeyPatch) -> None:
    """A harness that catches no planted mistake proves nothing, and this one can be made only where others lead."""

    def refused(codes: Codes, _: list[markers.Place]) -> dict[markers.Place, KafkaError]:
        errors = {place: error_of(code) for place, code in codes.items()}
        return {place: KafkaError(error) for place, error in errors.items() if error is not Error.NONE}

    monkeypatch.setattr(markers, "_refused", refused)
    assert any(caught(play, seed, ROUNDS) for seed in chain((SEED_OF_SILENCE,), SEEDS))
