"""The power goes at every disk call there is, and what was promised is there afterwards."""

from __future__ import annotations

import copy
import random
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from ottla.sim.disk import Loss, PowerCut, SimDisk

sys.path.insert(0, str(Path(__file__).parent))
from crashing import Promises, Stage, Workload, check_after


@pytest.fixture
def stage() -> Iterator[Stage]:
    stage = Stage()
    yield stage
    stage.close()


def calls_of_whole_run(stage: Stage) -> int:
    disk, promises = SimDisk(), Promises()
    stage.run(Workload(disk, promises).run())
    assert promises.restarts == 1
    return disk.calls


def cut_at(stage: Stage, call: int) -> tuple[SimDisk, Promises]:
    disk, promises = SimDisk(stop_at=call), Promises()
    with pytest.raises(PowerCut):
        stage.run(Workload(disk, promises).run())
    return disk, promises


def enumerate_cuts(stage: Stage, calls: range, seeds: int) -> int:
    checked = 0
    for call in calls:
        disk, promises = cut_at(stage, call)
        for loss in Loss:
            for seed in range(1 if loss is Loss.LOST else seeds):
                try:
                    stage.run(check_after(disk.crash(random.Random(call * 1000 + seed), loss), copy.deepcopy(promises)))
                except BaseException as error:
                    raise AssertionError(f"cut before call {call}, {loss.value}, seed {seed}: {error!r}") from error
                checked += 1
    return checked


@pytest.mark.parametrize("seeds", [3, pytest.param(60, marks=[pytest.mark.slow, pytest.mark.timeout(1800)])])
def test_every_call_cut_with_three_loss_models(stage: Stage, seeds: int) -> None:
    """TRAP-11, LOG-18: recovery keeps every acknowledged record at any cut; the second start has nothing to repair."""
    total, begun = calls_of_whole_run(stage), time.perf_counter()
    checked = enumerate_cuts(stage, range(1, total + 1), seeds)
    print(f"{total} disk calls in the workload, {checked} crashes checked in {time.perf_counter() - begun:.1f} s")
    assert total > 300
