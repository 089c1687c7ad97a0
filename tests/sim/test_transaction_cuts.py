"""The process dies, or the power goes, at disk calls of a node while a transaction begins, is written and ends: it is there as
a whole or not at all, and what was acknowledged is there."""

from __future__ import annotations

import pytest

from ottla.sim.disk import Loss
from sim.cut_transactions import cut_at
from sim.many_seeds import caught, cut_everywhere, quiet
from sim.stage import Story
from sim.transaction_mutants import CUT_MUTANTS

__all__ = ["quiet"]


def cut(step: int, generation: int) -> tuple[list[str], int]:
    def at(call: int, loss: Loss | None) -> tuple[Story, int]:
        return cut_at(call, loss, generation)

    wrong, cuts, _ = cut_everywhere(at, step)
    return wrong, cuts


@pytest.mark.timeout(600)
@pytest.mark.parametrize(("generation", "step"), [(2, 5), (1, 9)])
def test_transactions_survive_cuts_at_disk_calls(generation: int, step: int) -> None:
    """TXN-03, TXN-07, TRAP-61: two commits and an abort, with offsets, each time with another loss."""
    wrong, cuts = cut(step, generation)
    assert not wrong, "\n".join(wrong[:20])
    assert cuts > 10


@pytest.mark.slow
@pytest.mark.timeout(3600)
@pytest.mark.parametrize("generation", [1, 2])
def test_transactions_survive_a_cut_at_every_disk_call(generation: int, capsys: pytest.CaptureFixture[str]) -> None:
    wrong, cuts = cut(1, generation)
    with capsys.disabled():
        print(f"\n{cuts} cuts of a node with transactions of generation {generation}")
    assert not wrong, "\n".join(wrong[:20])


@pytest.mark.timeout(600)
@pytest.mark.parametrize("name", CUT_MUTANTS)
def test_planted_mistakes_about_the_order_of_writes_are_noticed(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Among these cuts are those between the syncs that belong to the first commit, whose order is a matter of chance."""
    CUT_MUTANTS[name](monkeypatch)
    assert any(
        caught(lambda call, turn: cut_at(call, Loss.LOST, turn=turn)[0], call, turn)
        for turn in range(12)
        for call in range(24, 31)
    ), f"{name} went unnoticed"
