"""The power goes at every disk call of a compaction and of the exchange of segments, and again while a start repairs that."""

from __future__ import annotations

import random
import sys
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from pathlib import Path

import pytest

from ottla.log import recovery, swapping
from ottla.log.directory import DataDirectory
from ottla.log.identity import MetaProperties
from ottla.log.log import Log
from ottla.sim.disk import Loss, PowerCut, SimDisk, SimFile
from ottla.wire.records import iterate

sys.path.insert(0, str(Path(__file__).parent))
from compacted import COMPACT, NOW_MS, clean, contents, decide, keyed, transactional
from crashing import Stage

SETTINGS = replace(COMPACT, segment_bytes=600, delete_retention_ms=1000)
# What is true of every key in the end, whatever was compacted by then.
NEWEST = {b"k%d" % key: b"%d" % (key + 40) * 9 for key in range(8)} | {b"gone": None, b"undecided": b"before"}


@pytest.fixture
def stage() -> Iterator[Stage]:
    stage = Stage()
    yield stage
    stage.close()


def opened(disk: SimDisk) -> DataDirectory:
    directory = DataDirectory(disk, "/data", now_ms=lambda: NOW_MS, rng=random.Random(1))
    directory.open()
    return directory


async def prepare(disk: SimDisk) -> DataDirectory:
    directory = opened(disk)
    directory.format(MetaProperties("cluster", 1, b"d" * 16))
    await directory.load(lambda topic: SETTINGS)
    log = await directory.create("t", 0, b"t" * 16, SETTINGS)
    keyed(log, (b"gone", b"once"))
    keyed(log, (b"undecided", b"before"))
    for number in range(24):
        keyed(log, (b"k%d" % (number % 8), b"%d" % number * 9))
    keyed(log, (b"gone", None))
    transactional(log, 9, 0, (b"undecided", b"aborted"))
    log.roll()
    decide(log, 9, False)
    for number in range(24, 48):
        keyed(
            log, (b"k%d" % (number % 8), b"%d" % number * 9), producer_id=5, producer_epoch=0, base_sequence=number - 24
        )
    log.roll()
    await log.flush()
    await directory.checkpoint()
    return directory


async def workload(disk: SimDisk) -> None:
    """Rounds that take records, then merge segments, then take the tombstone and the marker."""
    directory = await prepare(disk)
    log = directory.logs["t", 0]
    disk.began = disk.calls  # type: ignore[attr-defined]
    await clean(log)
    await clean(log, now_ms=NOW_MS + 500)
    await directory.sweep(at_once=True)
    log.producers.entries.pop(9)
    await clean(log, now_ms=NOW_MS + 2000)
    await directory.sweep(at_once=True)
    assert b"gone" not in {record.key for head, data in await contents(log) for record in iterate(data)}


async def check_after(disk: SimDisk) -> None:
    """All newest values are there, nothing came back, and the names say nothing of compaction any more."""
    directory = opened(disk)
    await directory.load(lambda topic: SETTINGS)
    log = directory.logs["t", 0]
    await check(log)
    await clean(log, now_ms=NOW_MS + 3000)
    await check(log)
    directory.close()
    again = opened(disk)
    loading = await again.load(lambda topic: SETTINGS)
    assert loading.clean and not loading.repaired
    await check(again.logs["t", 0])


async def check(log: Log) -> None:
    odd = [name for name in log.disk.names(log.directory) if name.endswith((".swap", ".cleaned"))]
    assert not odd, odd
    assert (log.start_offset, log.end_offset) == (0, 53)
    bases = [segment.base for segment in log.segments]
    assert bases == sorted(set(bases)) and bases[0] == 0
    ends = [segment.end_from_tail() for segment in log.segments[:-1]]
    assert all(end <= base for end, base in zip(ends, bases[1:], strict=True)), "segments overlap"
    found: dict[bytes | None, bytes | None] = {}
    aborted = log.aborted_transactions(0, log.end_offset)
    for head, data in await contents(log):
        for record in [] if head.is_control else iterate(data):
            if not any(row.producer_id == head.producer_id for row in aborted):
                found[record.key] = record.value
    found.setdefault(b"gone", None)
    assert found == NEWEST
    known = log.producers.known(5)
    assert known is not None and known.last_sequence == 23
    assert log.last_stable_offset(log.end_offset) == log.end_offset


def calls_of_whole_run(stage: Stage) -> range:
    disk = SimDisk()
    stage.run(workload(disk))
    return range(disk.began + 1, disk.calls + 1)  # type: ignore[attr-defined]


def cut_at(stage: Stage, call: int) -> SimDisk:
    disk = SimDisk(stop_at=call)
    with pytest.raises(PowerCut):
        stage.run(workload(disk))
    return disk


def enumerate_cuts(stage: Stage, calls: Sequence[int], seeds: int) -> int:
    checked = 0
    for call in calls:
        disk = cut_at(stage, call)
        for loss in Loss:
            for seed in range(1 if loss is Loss.LOST else seeds):
                try:
                    stage.run(check_after(disk.crash(random.Random(call * 1000 + seed), loss)))
                except BaseException as error:
                    raise AssertionError(f"cut before call {call}, {loss.value}, seed {seed}: {error!r}") from error
                checked += 1
    return checked


@pytest.mark.parametrize("seeds", [1, pytest.param(40, marks=[pytest.mark.slow, pytest.mark.timeout(1800)])])
def test_every_call_of_compaction_cut(stage: Stage, seeds: int) -> None:
    """TRAP-15, RET-05, RET-07: old or new, never a mix, and no key comes back from the dead."""
    calls = calls_of_whole_run(stage)
    print(f"{len(calls)} disk calls, {enumerate_cuts(stage, calls, seeds)} crashes checked")
    assert len(calls) > 150


@pytest.mark.parametrize("every", [12, pytest.param(1, marks=[pytest.mark.slow, pytest.mark.timeout(1800)])])
def test_a_second_cut_while_the_first_is_repaired(stage: Stage, every: int) -> None:
    """TRAP-15: what a start does about the remains of a compaction can be interrupted like anything else."""
    checked = 0
    for call in calls_of_whole_run(stage)[::every]:
        disk, rng = cut_at(stage, call), random.Random(call)
        for again in range(1, 200):
            broken = disk.crash(random.Random(call), Loss.SUBSET)
            broken.stop_at = again
            try:
                stage.run(opened(broken).load(lambda topic: SETTINGS))
            except PowerCut:
                stage.run(check_after(broken.crash(rng, Loss.SUBSET)))
                checked += 1
            else:
                break
    assert checked > 50


# -- each of these mistakes must be caught


def new_segments_are_not_synced(monkeypatch: pytest.MonkeyPatch) -> None:
    sync = SimFile.sync
    monkeypatch.setattr(SimFile, "sync", lambda file: None if file.path.endswith(".cleaned") else sync(file))


def names_are_not_synced(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(swapping, "sync_names", lambda log: None)


def old_segments_stay(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(swapping, "put_aside", lambda log, segments: None)


def half_a_swap_is_believed(monkeypatch: pytest.MonkeyPatch) -> None:
    def without_the_old(log: Log, swaps: list[str]) -> None:
        for name in swaps:
            log.disk.rename(f"{log.directory}/{name}", f"{log.directory}/{name.removesuffix('.swap')}")

    monkeypatch.setattr(recovery, "_finish_swap", without_the_old)


@pytest.mark.parametrize(
    "mistake", [new_segments_are_not_synced, names_are_not_synced, old_segments_stay, half_a_swap_is_believed]
)
def test_the_enumeration_catches(
    stage: Stage, mistake: Callable[[pytest.MonkeyPatch], None], monkeypatch: pytest.MonkeyPatch
) -> None:
    mistake(monkeypatch)
    calls = calls_of_whole_run(stage)
    with pytest.raises(AssertionError, match="cut before call"):
        enumerate_cuts(stage, calls[::3], 2)
