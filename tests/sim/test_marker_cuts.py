"""The process dies, or the power goes, at disk calls of a node while transactions end: markers everywhere, or nowhere yet."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from ottla.coordination.transaction_coordinator import TransactionCoordinator
from ottla.log.producers import Producers
from ottla.server.markers import Markers, Outcome
from sim.many_seeds import caught, cut_everywhere, quiet
from sim.marker_script import cut_at

__all__ = ["quiet"]

NEVER = 10**9


@pytest.mark.timeout(600)
def test_markers_survive_cuts_at_disk_calls() -> None:
    """TXN-03, TXN-07: adding, producing, deciding, markers and completion, with a cut at every ninth call."""
    wrong, cuts, _ = cut_everywhere(cut_at, 9)
    assert not wrong, "\n".join(wrong[:20])
    assert cuts > 20


@pytest.mark.slow
@pytest.mark.timeout(3600)
def test_markers_survive_a_cut_at_every_disk_call(capsys: pytest.CaptureFixture[str]) -> None:
    wrong, cuts, _ = cut_everywhere(cut_at, 1)
    with capsys.disabled():
        print(f"\n{cuts} cuts of a node whose transactions end")
    assert not wrong, "\n".join(wrong[:20])


# -- a harness that catches nothing proves nothing


def complete_without_markers(monkeypatch: pytest.MonkeyPatch) -> None:
    async def nothing(_markers: Markers, _marker: object, _places: object) -> Outcome:
        return Outcome([], None)

    monkeypatch.setattr(Markers, "_write", nothing)


def ends_are_forgotten_by_a_start(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(TransactionCoordinator, "loaded", lambda machine, moment: [])


def aborted_ones_are_not_listed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Producers, "aborted_rows", lambda producers: [])


@pytest.mark.timeout(600)
@pytest.mark.parametrize(
    "plant", [complete_without_markers, ends_are_forgotten_by_a_start, aborted_ones_are_not_listed]
)
def test_planted_mistakes_about_markers_are_caught(
    plant: Callable[[pytest.MonkeyPatch], None], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Without a cut, or else with one at some call of the second half, where the transactions are."""
    plant(monkeypatch)
    calls = (NEVER, *range(60, 135))
    assert any(caught(lambda call, _: cut_at(call, None)[0], call, 0) for call in calls), "not caught"
