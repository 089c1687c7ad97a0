"""The process dies, or the power goes, at disk calls of a node while a transaction begins, is written and ends: it is there as
a whole or not at all, and what was acknowledged is there."""

from __future__ import annotations

import pytest

from ottla.sim.disk import Loss
from sim.cut_transactions import cut_at
from sim.many_seeds import cut_everywhere, quiet
from sim.stage import Story
from sim.transaction_mutants import markers_before_the_outcome_is_durable

__all__ = ["quiet"]


def cut(step: int, generation: int) -> tuple[list[str], int]:
    def at(call: int, loss: Loss | None) -> tuple[Story, int]:
        return cut_at(call, loss, generation)

    wrong, cuts, _ = cut_everywhere(at, step)
    return wrong, cuts


@pytest.mark.timeout(600)
@pytest.mark.parametrize(("generation", "step"), [(2, 5), (1, 9)])
def test_transactions_survive_cuts_at_disk_calls(generation: int, step: int) -> None:
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
def test_markers_that_are_written_too_early_are_noticed(monkeypatch: pytest.MonkeyPatch) -> None:
    """A planted mistake. Among these cuts are those between the syncs that belong to the first commit; after one the
    producer is replaced, so that the commit is not asked for again."""
    markers_before_the_outcome_is_durable(monkeypatch)
    assert any(cut_at(call, Loss.LOST)[0].anomalies for call in range(27, 6, -2))
