"""Leader epochs, truncation, retention, DeleteRecords."""

from __future__ import annotations

import asyncio
import sys
import threading
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from ottla.log import flushing, retention
from ottla.log.epochs import EpochCache
from ottla.log.log import Log
from ottla.log.producers import Origin
from ottla.log.settings import LogSettings
from ottla.sim.disk import UNLIMITED, SimDisk
from ottla.wire.errors import Error, KafkaError
from ottla.world import RealDisk

sys.path.insert(0, str(Path(__file__).parent))
from logs import NOW_MS, SMALL, Clock, batch, fill, make_log, offsets, put, read_batches, reopen, run

DAY_MS = 86_400_000


def cache(*entries: tuple[int, int]) -> EpochCache:
    disk = SimDisk()
    disk.make_directory("/log")
    made = EpochCache(disk, "/log")
    for epoch, offset in entries:
        made.assign(epoch, offset)
    return made


# -- epochs


def test_where_an_epoch_ended() -> None:
    """TRAP-48: older than all known gives the start of the first known one; the current one ends at the log end."""
    epochs = cache((2, 10), (4, 20), (7, 35))
    asked = {1: (1, 10), 2: (2, 20), 3: (2, 20), 4: (4, 35), 6: (4, 35), 7: (7, 99), 8: (-1, -1), -1: (-1, -1)}
    assert {epoch: epochs.end_offset_for(epoch, 99) for epoch in asked} == asked
    assert cache().end_offset_for(0, 5) == (-1, -1)
    assert [epochs.epoch_for_offset(at) for at in (9, 10, 20, 34, 35, 90)] == [-1, 2, 4, 4, 7, 7]


def test_a_new_entry_removes_what_contradicts_it() -> None:
    epochs = cache((1, 0), (3, 10), (5, 20))
    epochs.assign(5, 25)
    assert epochs.entries == [(1, 0), (3, 10), (5, 20)]
    epochs.assign(4, 15)
    assert epochs.entries == [(1, 0), (3, 10), (4, 15)]
    epochs.assign(6, 10)
    assert epochs.entries == [(1, 0), (6, 10)]


def test_an_epoch_is_on_disk_before_the_recovery_point_passes_it() -> None:
    """TRAP-14: noted before any append of that epoch; above the recovery point the batches themselves tell it."""
    disk = SimDisk()
    log = make_log(disk)
    disk.sync_directory("/data")
    disk.sync_directory("/")
    put(log, batch(3), epoch=0)
    disk.trace = []
    put(log, batch(), epoch=5)
    assert log.epochs.entries == [(0, 0), (5, 3)]
    assert not any("leader-epoch" in path for _, path in disk.trace)
    run(log.flush())
    synced = [path for call, path in disk.trace if call == "sync"]
    assert synced.index(f"{log.directory}/leader-epoch-checkpoint.tmp") < synced.index(f"{log.active.path}.log")
    assert disk.read(f"{log.directory}/leader-epoch-checkpoint") == b"0\n2\n0 0\n5 3\n"
    again = EpochCache(disk, log.directory)
    again.load()
    assert again.entries == [(0, 0), (5, 3)]


def test_an_epoch_begins_behind_what_was_staged_before_it() -> None:
    log = make_log()
    log.append(batch(3), Origin.CLIENT, 0, NOW_MS)
    log.append(batch(), Origin.CLIENT, 5, NOW_MS)
    assert log.epochs.entries == [(0, 0), (5, 3)]


def test_truncation_drops_epochs_even_if_no_record_goes() -> None:
    """TRAP-14: a leadership that wrote nothing leaves an entry at the log end, which must not survive."""
    log = make_log()
    put(log, batch(4), epoch=1)
    log.begin_epoch(2)
    assert log.epochs.entries == [(1, 0), (2, 4)]
    assert run(log.truncate_to(4)) is False
    assert log.epochs.entries == [(1, 0)]
    assert reopen(log, clean=True).epochs.entries == [(1, 0)]


def test_epochs_follow_the_start_of_the_log() -> None:
    epochs = cache((1, 0), (3, 10), (5, 20))
    epochs.truncate_start(10)
    assert epochs.entries == [(3, 10), (5, 20)]
    epochs.truncate_start(15)
    assert epochs.entries == [(3, 15), (5, 20)]
    epochs.truncate_start(90)
    assert epochs.entries == [(5, 90)]


# -- truncation


@pytest.mark.parametrize("offset", [0, 1, 7, 30, 31, 88, 119])
def test_truncating_cuts_at_a_batch_and_the_log_goes_on_from_there(offset: int) -> None:
    log = make_log()
    fill(log, 60)
    assert run(log.truncate_to(offset))
    assert log.end_offset == offset
    end = offset // 2 * 2
    assert log.active.size == log.disk.size(log.active.path + ".log")
    fill(log, 3)
    assert log.end_offset == offset + 6
    kept = [head for base in [segment.base for segment in log.segments] for head in read_batches(log, base)]
    assert offsets(kept) == [*range(0, end, 2), offset, offset + 2, offset + 4]
    log.close()
    again = reopen(log, clean=False)
    assert again.recovered is not None and not again.recovered.truncated_bytes
    assert again.end_offset == log.end_offset and again.active.max_timestamp == log.active.max_timestamp


def test_truncating_below_the_first_segment_empties_the_log() -> None:
    log = make_log()
    fill(log, 60)
    log.delete_records(50, 120)
    run(retention.perform(log, retention.plan(log, NOW_MS, 120)))
    assert log.segments[0].base > 10
    assert run(log.truncate_to(10))
    assert (log.start_offset, log.end_offset, len(log.segments)) == (10, 10, 1)
    assert put(log, batch()) == [10]


def test_the_recovery_point_falls_on_disk_before_the_log_is_cut() -> None:
    """TRAP-11: or a crash could leave new records below a point that was true of the old ones only."""
    log, seen = make_log(), []

    async def checkpoint() -> None:
        seen.append((log.recovery_point, log.end_offset))

    fill(log, 60)
    run(log.settle())
    log.checkpoint = checkpoint
    run(log.truncate_to(8))
    assert seen == [(8, 120)] and log.synced_end == 8


@pytest.mark.parametrize("ends_before_the_cut", [True, False])
@pytest.mark.parametrize("settle", [False, True])
def test_a_sync_beside_a_cut_does_not_vouch_for_what_comes_after_it(settle: bool, ends_before_the_cut: bool) -> None:
    """TRAP-49: it began when the cut had been announced and waited for its checkpoint, and so for records that are gone. What
    was copied in their place passed for synced, and the leader was told so."""
    points: list[int] = []

    async def scenario() -> None:
        disk = Slow()
        log = make_log(disk, replace(SMALL, flush_messages=1))
        fill(log, 60)
        await log.settle()
        fill(log, 30)
        disk.may_sync.clear()
        announced = asyncio.Event()

        async def checkpoint() -> None:
            points.append(log.recovery_point)
            announced.set()
            await turns()
            if ends_before_the_cut:
                disk.may_sync.set()
                await syncing

        log.checkpoint = checkpoint
        cutting = asyncio.create_task(log.truncate_to(21))
        await announced.wait()
        syncing = asyncio.create_task(log.settle() if settle else log.flush())
        await turns(30)
        disk.may_sync.set()
        await asyncio.gather(cutting, syncing)
        assert log.end_offset == 21
        fill(log, 10)
        assert log.synced_end <= 21 and log.recovery_point <= 21 and log.unflushed == 20
        assert points[-1] <= 21

    run(scenario())


async def turns(count: int = 10) -> None:
    for _ in range(count):
        await asyncio.sleep(0)


class Slow(SimDisk):
    """Syncs of logs end when they may."""

    def __init__(self) -> None:
        super().__init__()
        self.may_sync = asyncio.Event()
        self.may_sync.set()

    async def away(self, call: Callable[..., Any], *args: Any) -> Any:
        if call is flushing.sync:
            await self.may_sync.wait()
        return await super().away(call, *args)


def test_a_cut_is_on_disk_before_anything_is_appended_behind_it() -> None:
    """Or a power cut could bring back records that contradict those that came since."""
    disk = SimDisk()
    log = make_log(disk)
    fill(log, 60)
    run(log.settle())
    cut = log.segments[1].base + 2
    disk.trace = []
    run(log.truncate_to(cut))
    assert log.active.size and disk.trace[-2:] == [
        ("sync", f"{log.active.path}.log"),
        ("sync directory", log.directory),
    ]


def test_epochs_are_not_written_by_two_at_once(tmp_path: Path) -> None:
    """They replace one file: of two who do that together one finds that what it wrote is gone, and takes it for a disk that
    fails."""
    written, may_go_on = threading.Event(), threading.Event()

    def watch(seconds: float, failed: bool) -> None:
        if threading.current_thread() is not threading.main_thread() and not written.is_set():
            written.set()
            assert may_go_on.wait(60)

    async def scenario() -> None:
        log = make_log(disk, directory=str(tmp_path / "topic-0"))
        fill(log, 3)
        log.begin_epoch(1)
        syncing = asyncio.create_task(log.flush())
        while not written.is_set():
            await asyncio.sleep(0.001)
        assert not log.is_at_rest
        cutting = asyncio.create_task(log.truncate_to(6))
        await turns()
        may_go_on.set()
        await asyncio.gather(syncing, cutting)
        assert log.failed is None
        again = EpochCache(disk, log.directory)
        assert again.load() and again.entries == log.epochs.entries == [(0, 0)]

    disk = RealDisk(watch=watch)
    run(scenario())


def test_starting_over_at_an_offset() -> None:
    log = make_log()
    fill(log, 60)
    log.truncate_fully_and_start_at(500)
    assert put(log, batch()) == [500]
    log.close()
    assert (reopen(log).start_offset, reopen(log).end_offset) == (500, 501)


def nearly_full(room: int) -> tuple[SimDisk, Log]:
    """A log that has written out none of its indexes, on a disk with so much room."""
    disk = SimDisk()
    log = make_log(disk, replace(SMALL, index_interval_bytes=1, segment_bytes=1 << 20))
    for epoch in range(20):
        log.begin_epoch(epoch)
        put(log, *(batch(2) for _ in range(10)), epoch=epoch)
    disk.capacity = disk.used + room
    return disk, log


@pytest.mark.parametrize("room", range(0, 1600, 80))
def test_a_cut_that_finds_the_disk_full_has_changed_nothing_and_can_be_tried_again(room: int) -> None:
    """TRAP-18: a log that says it ends behind what is in its file would get a hole, or never copy again."""
    disk, log = nearly_full(room)
    try:
        assert run(log.truncate_to(371))
    except OSError:
        assert log.failed is None
    end, epoch = (400, 19) if log.end_offset == 400 else (371, 18)
    assert (log.end_offset, log.epochs.latest) == (end, epoch)
    assert read_batches(log, 0, 1 << 24)[-1].next_offset == end // 2 * 2
    disk.capacity = UNLIMITED
    assert run(log.truncate_to(371)) is (end == 400)
    log.begin_epoch(30)
    assert put(log, batch(), epoch=30) == [371]
    assert offsets(read_batches(log, 0, 1 << 24))[-2:] == [368, 371]
    log.close()
    again = reopen(log, clean=False)
    assert (again.end_offset, again.epochs.entries) == (372, log.epochs.entries)


def test_a_log_that_cannot_begin_anew_on_a_full_disk_is_what_it_was() -> None:
    disk, log = nearly_full(0)
    before = log.epochs.entries
    with pytest.raises(OSError):
        log.truncate_fully_and_start_at(500)
    assert (log.end_offset, log.epochs.entries, log.failed) == (400, before, None)
    assert len(read_batches(log, 0, 1 << 24)) == 200
    disk.capacity = UNLIMITED
    log.truncate_fully_and_start_at(500)
    assert put(log, batch(), epoch=30) == [500]


def fail_at(disk: SimDisk, number: int) -> None:
    """This change from now on fails, and those that follow do not."""
    step, left = disk.step, number

    def failing(kind: str, path: str) -> None:
        nonlocal left
        left -= 1
        if left == 0:
            raise OSError(5, f"cannot {kind}", path)
        step(kind, path)

    disk.step = failing  # type: ignore[method-assign]


@pytest.mark.parametrize("anew", [False, True])
def test_a_disk_that_fails_while_records_are_taken_away(anew: bool) -> None:
    """TRAP-18: at whichever change, the log is what it was, or all of it was done, or it is closed."""
    came_of_it = set()
    for number in range(1, 100):
        disk = SimDisk()
        log = make_log(disk)
        for epoch in range(6):
            put(log, *(batch(2) for _ in range(10)), epoch=epoch)
        before, cut = log.epochs.entries, log.segments[1].base + 2
        fail_at(disk, number)
        try:
            if anew:
                log.truncate_fully_and_start_at(500)
            else:
                assert run(log.truncate_to(cut))
        except OSError:
            if log.failed is not None:
                came_of_it.add("closed")
            elif log.end_offset == 120:
                came_of_it.add("as it was")
                assert log.epochs.entries == before and disk.exists(f"{log.segments[-1].path}.log")
                assert read_batches(log, log.segments[-1].base)[-1].next_offset == 120
            else:
                assert log.end_offset == cut and put(log, batch(), epoch=9) == [cut]
        else:
            break
    assert number > 5 and came_of_it == {"as it was", "closed"}


# -- retention


def aged(settings: LogSettings, clock: Clock | None = None, days: int = 10) -> Log:
    """A segment per day, the newest of today."""
    log = make_log(settings=settings, clock=clock)
    for day in range(days, 0, -1):
        put(log, batch(2, timestamp=NOW_MS - day * DAY_MS))
    return log


def retain(log: Log, high_watermark: int | None = None, now_ms: int = NOW_MS) -> int:
    mark = log.end_offset if high_watermark is None else high_watermark
    return run(retention.perform(log, retention.plan(log, now_ms, mark)))


DAILY = LogSettings(segment_ms=DAY_MS // 2, retention_ms=7 * DAY_MS)


def test_segments_older_than_the_retention_time_go() -> None:
    """RET-01, RET-04, RET-09, TRAP-05: by the largest record timestamp; the log start moves up."""
    log = aged(DAILY)
    assert len(log.segments) == 10
    freed = retain(log)
    assert freed == 3 * len(batch(2))
    assert (log.start_offset, log.segments[0].base, len(log.segments)) == (6, 6, 7)
    with pytest.raises(KafkaError) as caught:
        log.locate(5, 100, 20)
    assert caught.value.error is Error.OFFSET_OUT_OF_RANGE
    assert offsets(read_batches(log, 6)) == [6]


def test_nothing_at_or_above_the_high_watermark_goes() -> None:
    """TRAP-05"""
    log = aged(DAILY)
    retain(log, high_watermark=3)
    assert log.start_offset == 2


def test_the_active_segment_is_rolled_and_deleted_when_it_is_old() -> None:
    """TRAP-05: an idle topic expires too; an empty segment stays."""
    log = aged(DAILY)
    retain(log, now_ms=NOW_MS + 30 * DAY_MS)
    assert (log.start_offset, log.end_offset, len(log.segments), log.size) == (20, 20, 1, 0)
    assert retain(log, now_ms=NOW_MS + 90 * DAY_MS) == 0
    assert put(log, batch()) == [20]


def test_a_timestamp_from_the_future_pins_its_segment() -> None:
    """TRAP-05"""
    log = make_log(settings=LogSettings(segment_ms=DAY_MS, message_timestamp_after_max_ms=10**15, retention_ms=DAY_MS))
    put(log, batch(timestamp=NOW_MS + 100 * DAY_MS))
    put(log, batch(timestamp=NOW_MS + 300 * DAY_MS))
    assert len(log.segments) == 2
    retain(log, now_ms=NOW_MS + 100 * DAY_MS)
    assert log.start_offset == 0
    retain(log, now_ms=NOW_MS + 102 * DAY_MS)
    assert log.start_offset == 1


def test_retention_by_size_keeps_at_least_that_much() -> None:
    """RET-02: the oldest segments go while what stays is still as large as asked for."""
    log = make_log(settings=LogSettings(segment_bytes=1000, retention_bytes=3500, retention_ms=-1))
    fill(log, 40)
    before = log.size
    freed = retain(log)
    assert freed > 0 and log.size == before - freed and 3500 <= log.size < 3500 + 1000
    assert make_log().size == 0 and retain(make_log(settings=LogSettings(retention_bytes=0))) == 0


def test_retention_needs_the_delete_policy_but_the_log_start_does_not() -> None:
    log = aged(LogSettings(cleanup_policy=frozenset({"compact"}), segment_ms=DAY_MS // 2, retention_ms=DAY_MS))
    assert retain(log) == 0
    log.delete_records(9, log.end_offset)
    retain(log)
    assert log.segments[0].base == 8 and log.start_offset == 9


def test_retention_works_on_what_was_loaded() -> None:
    log = aged(DAILY)
    log.close()
    again = reopen(log)
    retain(again)
    assert again.start_offset == 6


def test_deleted_files_stay_until_their_delay_is_over() -> None:
    """RET-01: readers may still hold them; then they are handed out for removal."""
    clock = Clock()
    log = aged(DAILY, clock)
    located = run(log.read(0, 1000, log.end_offset))
    retain(log)
    aside = [name for name in log.disk.names(log.directory) if name.endswith(".deleted")]
    assert len(aside) == 9
    assert located.size > 0 and len(located.read()) == located.size
    assert log.sweep(NOW_MS + 59_999) == []
    assert sorted(path.rpartition("/")[2] for path in log.sweep(NOW_MS + 60_000)) == aside
    assert log.sweep(NOW_MS + 60_000) == []


def test_the_delay_is_the_topics_own() -> None:
    """RET-01: `file.delete.delay.ms`."""
    log = aged(replace(DAILY, file_delete_delay_ms=5), Clock())
    retain(log)
    assert log.sweep(NOW_MS + 4) == []
    assert log.sweep(NOW_MS + 5)


def test_snapshots_of_deleted_segments_go_with_them() -> None:
    log = aged(DAILY)
    retain(log)
    assert log.snapshots[0] == log.segments[0].base


# -- DeleteRecords


def test_delete_records_moves_the_log_start() -> None:
    """LOG-08, RET-04: up to the high watermark, never beyond; -1 means all of it; never backwards."""
    log = make_log()
    fill(log, 60)
    assert log.delete_records(33, 100) == 33
    assert log.delete_records(10, 100) == 33
    for target in (101, -2):
        with pytest.raises(KafkaError) as caught:
            log.delete_records(target, 100)
        assert caught.value.error is Error.OFFSET_OUT_OF_RANGE
    assert log.delete_records(-1, 100) == 100
    retain(log)
    assert log.segments[0].base <= 100 < log.segments[1].base
    assert offsets(read_batches(log, 100))[:3] == [100, 102, 104]


def test_epochs_below_a_log_start_that_rose_are_forgotten() -> None:
    """TRAP-48: whoever asks for one of them is told where the first known one begins."""
    log = make_log()
    put(log, batch(3), epoch=1)
    put(log, batch(3), epoch=2)
    log.delete_records(4, 6)
    assert log.end_offset_for_epoch(1) == (1, 4)


def test_the_log_start_survives_a_restart_by_its_checkpoint() -> None:
    log = make_log(settings=SMALL)
    fill(log, 60)
    log.delete_records(33, 120)
    log.close()
    again = reopen(log, start_offset=33)
    assert again.start_offset == 33 and again.epochs.entries == [(0, 33)]


def test_retention_whose_names_cannot_be_synced_is_the_end_of_the_log() -> None:
    """A later sync that works proves nothing about this one. If it were believed, the log start would no longer be written
    down, and a power cut could bring files back that stand before a hole."""
    disk = SimDisk()
    log = make_log(disk, LogSettings(segment_bytes=600, retention_bytes=1000, retention_ms=-1))
    fill(log, 20)
    disk.failing_syncs = lambda path: path == log.directory
    with pytest.raises(OSError, match="could not sync"):
        run(retention.perform(log, retention.plan(log, NOW_MS, log.end_offset)))
    disk.failing_syncs = None
    assert log.failed is not None
    with pytest.raises(KafkaError):
        put(log, batch())
