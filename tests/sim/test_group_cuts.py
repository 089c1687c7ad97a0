"""The process dies, or the power goes, at disk calls of a node that serves groups: what was acknowledged is still there."""

from __future__ import annotations

import logging
from collections.abc import Iterator

import pytest

from ottla.sim.disk import Loss
from sim.group_script import cut_at

LOSSES = (None, *Loss)


@pytest.fixture(autouse=True)
def quiet() -> Iterator[None]:
    logging.disable(logging.CRITICAL)
    yield
    logging.disable(logging.NOTSET)


def cut_everywhere(step: int) -> tuple[list[str], int]:
    """Cut at every `step`th disk call, each time with another loss, or at every one with all; what went wrong, and cuts."""
    calls = {loss: cut_at(1_000_000, loss)[1] for loss in LOSSES}
    wrong, cuts = [], 0
    for number, call in enumerate(range(1, max(calls.values()) + 1, step)):
        for loss in LOSSES if step == 1 else (LOSSES[number % 4],):
            cuts += 1
            try:
                story, _ = cut_at(call, loss)
            except Exception as error:
                wrong.append(f"cut_at({call}, {loss}): {type(error).__name__}: {str(error)[:2000]}")
                continue
            wrong += [f"cut_at({call}, {loss}): {': '.join(anomaly)}" for anomaly in story.anomalies]
    return wrong, cuts


@pytest.mark.timeout(600)
def test_groups_survive_cuts_at_disk_calls() -> None:
    """OFF-02, GRP-15: commits, rebalances and the deletion of a group, with a cut at every seventh call."""
    wrong, cuts = cut_everywhere(7)
    assert not wrong, "\n".join(wrong[:20])
    assert cuts > 50


@pytest.mark.slow
@pytest.mark.timeout(3600)
def test_groups_survive_a_cut_at_every_disk_call(capsys: pytest.CaptureFixture[str]) -> None:
    wrong, cuts = cut_everywhere(1)
    with capsys.disabled():
        print(f"\n{cuts} cuts of a node with groups")
    assert not wrong, "\n".join(wrong[:20])
