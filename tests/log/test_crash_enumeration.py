"""The power goes at every disk call there is, and what was promised is there afterwards."""

from __future__ import annotations

import copy
import random
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

import pytest

from ottla.log import flushing, identity, recovery, scanning
from ottla.log.log import Log
from ottla.log.segment import Segment
from ottla.sim.disk import Loss, PowerCut, SimDisk, SimFile
from ottla.wire.errors import KafkaError

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


def enumerate_cuts(stage: Stage, calls: Sequence[int], seeds: int) -> int:
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


# -- a harness that catches nothing proves nothing: each of these mistakes must be caught


def log_is_not_synced(monkeypatch: pytest.MonkeyPatch) -> None:
    sync = SimFile.sync
    monkeypatch.setattr(SimFile, "sync", lambda file: None if file.path.endswith(".log") else sync(file))


def names_are_not_synced(monkeypatch: pytest.MonkeyPatch) -> None:
    sync = SimDisk.sync_directory
    skip = lambda disk, path: None if path.endswith("-0") else sync(disk, path)  # noqa: E731
    monkeypatch.setattr(SimDisk, "sync_directory", skip)


def indexes_and_snapshots_are_not_synced(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(flushing, "what_to_sync", lambda log, closed, settle: ([], log.active.open()))


def recovery_point_passes_unsynced_indexes(monkeypatch: pytest.MonkeyPatch) -> None:
    sync = flushing.Flusher._sync

    async def too_eager(flusher: flushing.Flusher, settle: bool) -> None:
        await sync(flusher, settle)
        flusher._log.recovery_point = flusher._log.synced_end

    monkeypatch.setattr(flushing.Flusher, "_sync", too_eager)


def checksums_are_not_checked(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(scanning, "crc32c", lambda data: ANYTHING)


def later_segments_survive_a_cut(monkeypatch: pytest.MonkeyPatch) -> None:
    drop = recovery._drop

    def only_strays(log: Log, segments: list[Segment], first: int, end: int, report: recovery.Report) -> None:
        if end == first + 1 < len(segments):
            drop(log, segments, first, end, report)

    monkeypatch.setattr(recovery, "_drop", only_strays)


def holes_between_segments_are_fine(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(recovery, "_breaks", lambda log, segment, end: False)


def clean_mark_stays(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(SimDisk, "remove", _except(SimDisk.remove, identity.CLEAN_MARK))


def stop_does_not_sync(monkeypatch: pytest.MonkeyPatch) -> None:
    def close(log: Log) -> None:
        log.publish()
        log.write_out()

    monkeypatch.setattr(recovery, "close", close)


def topic_id_is_not_synced(monkeypatch: pytest.MonkeyPatch) -> None:
    def write(disk: SimDisk, directory: str, topic_id: bytes) -> None:
        disk.open(f"{directory}/partition.metadata", create=True).write_at(0, [b"version: 0\ntopic_id: " + b"A" * 22])

    monkeypatch.setattr(identity, "write_topic_id", write)


def producers_are_forgotten(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(recovery, "_load_snapshot", lambda log: log.end_offset)


def aborted_transactions_are_not_rebuilt(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(recovery, "_write_aborted", lambda log, segment, rows: None)


def recovery_does_not_cut(monkeypatch: pytest.MonkeyPatch) -> None:
    truncate = SimFile.truncate
    keep = lambda file, size: None if file.path.endswith(".log") and size else truncate(file, size)  # noqa: E731
    monkeypatch.setattr(SimFile, "truncate", keep)


def _except(call: Callable[..., None], name: str) -> Callable[..., None]:
    return lambda disk, path: None if path.endswith(name) else call(disk, path)


class Anything:
    """Equal to every checksum."""

    def __eq__(self, other: object) -> bool:
        return True

    def __ne__(self, other: object) -> bool:
        return False

    __hash__ = None  # type: ignore[assignment]


ANYTHING = Anything()


@pytest.mark.parametrize(
    "mistake",
    [
        log_is_not_synced,
        names_are_not_synced,
        indexes_and_snapshots_are_not_synced,
        recovery_point_passes_unsynced_indexes,
        checksums_are_not_checked,
        later_segments_survive_a_cut,
        holes_between_segments_are_fine,
        clean_mark_stays,
        stop_does_not_sync,
        topic_id_is_not_synced,
        producers_are_forgotten,
        aborted_transactions_are_not_rebuilt,
        recovery_does_not_cut,
    ],
)
def test_planted_mistakes_are_caught(
    stage: Stage, mistake: Callable[[pytest.MonkeyPatch], None], monkeypatch: pytest.MonkeyPatch
) -> None:
    mistake(monkeypatch)
    with pytest.raises(AssertionError) as caught:
        calls = list(range(1, calls_of_whole_run(stage) + 1))
        random.Random(7).shuffle(calls)
        enumerate_cuts(stage, calls, seeds=4)
    print(f"{mistake.__name__}: {caught.value}")
    assert isinstance(caught.value.__cause__, AssertionError | KafkaError)
