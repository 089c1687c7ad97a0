"""Waiting for the disk: one sync for all who wait, off the loop, and never believed after an error."""

from __future__ import annotations

import asyncio
import sys
from pathlib import Path

import pytest

from ottla.log.producers import Origin
from ottla.log.settings import LogSettings
from ottla.sim.disk import SimDisk
from ottla.wire.errors import Error, KafkaError

sys.path.insert(0, str(Path(__file__).parent))
from logs import NOW_MS, batch, fill, make_log, put, run


def syncs(disk: SimDisk, suffix: str = ".log") -> int:
    return sum(kind == "sync" and path.endswith(suffix) for kind, path in disk.trace or ())


def test_appends_do_not_sync() -> None:
    """LOG-16: durability comes from replication unless a topic asks for more."""
    disk = SimDisk()
    log = make_log(disk)
    put(log, batch())
    disk.trace = []
    fill(log, 60)
    assert not [path for kind, path in disk.trace if kind.startswith("sync")]
    assert log.unflushed == 121 and log.needs_flush  # closed segments wait for the next flush


def test_one_sync_serves_everybody_who_waited_for_it() -> None:
    """LOG-17: group commit."""

    async def scenario() -> None:
        disk = SimDisk(latency_s=0.01)
        log = make_log(disk, LogSettings(flush_messages=1))
        put(log, batch())
        disk.trace = []

        async def produce() -> None:
            appended = log.append(batch(), Origin.CLIENT, 0, NOW_MS)
            log.publish()
            await log.flush(appended.last_offset + 1)
            assert log.synced_end > appended.last_offset

        await asyncio.gather(*(produce() for _ in range(100)))
        assert syncs(disk) <= 2

    run(scenario())


def test_whoever_comes_during_a_sync_waits_for_the_next() -> None:
    """The running one may have begun before their bytes were written."""

    async def scenario() -> None:
        disk = SimDisk(latency_s=0.01)
        log = make_log(disk, LogSettings())
        put(log, batch())
        disk.trace = []
        first = asyncio.create_task(log.flush())
        await asyncio.sleep(0)
        put(log, batch())
        second = asyncio.create_task(log.flush())
        await first
        assert log.synced_end == 1
        await second
        assert log.synced_end == 2 and syncs(disk) == 2

    run(scenario())


def test_a_cancelled_waiter_harms_nobody() -> None:
    async def scenario() -> None:
        disk = SimDisk(latency_s=0.01)
        log = make_log(disk, LogSettings())
        put(log, batch())
        tasks = [asyncio.create_task(log.flush()) for _ in range(4)]
        await asyncio.sleep(0)
        tasks[0].cancel()
        tasks[2].cancel()
        results = await asyncio.gather(*tasks, return_exceptions=True)
        assert [type(result) for result in results] == [
            asyncio.CancelledError,
            type(None),
            asyncio.CancelledError,
            type(None),
        ]
        assert log.synced_end == 1

    run(scenario())


def test_flush_syncs_closed_segments_with_all_that_belongs_to_them_before_the_recovery_point_rises() -> None:
    """TRAP-11: log, indexes, snapshot and directory of every closed segment; of the active one the log."""
    disk = SimDisk()
    log = make_log(disk)
    fill(log, 60)
    closed = [segment.path for segment in log.segments[:-1]]
    disk.trace = []
    run(log.flush())
    synced = {path for kind, path in disk.trace if kind == "sync"}
    assert synced >= {path + suffix for path in closed for suffix in (".log", ".index", ".timeindex")}
    assert {log.snapshot_path(segment.base) for segment in log.segments[1:]} <= synced
    assert disk.trace[-1] == ("sync directory", log.directory)
    assert (log.synced_end, log.recovery_point) == (120, log.active.base) and not log.needs_flush
    disk.trace = []
    put(log, batch())
    run(log.flush())
    assert next(path for kind, path in disk.trace if kind == "sync") == log.active.path + ".log"
    assert not any(path in synced - {log.active.path + ".log"} for kind, path in disk.trace if ".snapshot" not in path)


def test_needs_flush_by_count() -> None:
    """LOG-17: `flush.messages`"""
    log = make_log(settings=LogSettings(flush_messages=5))
    put(log, batch(4))
    assert not log.needs_flush
    put(log, batch(1))
    assert log.needs_flush and log.unflushed == 5
    run(log.flush())
    assert not log.needs_flush and log.unflushed == 0


def test_an_error_counts_even_if_nobody_waits_for_the_answer() -> None:
    async def scenario() -> None:
        disk = SimDisk(latency_s=0.005)
        log = make_log(disk, LogSettings())
        put(log, batch())
        disk.failing_syncs = lambda path: True
        with pytest.raises(KafkaError) as caught:
            await log.flush()
        assert caught.value.error is Error.KAFKA_STORAGE_ERROR
        disk.failing_syncs = None
        with pytest.raises(KafkaError):
            await log.flush()
        assert log.synced_end == 0 and log.failed is not None

    run(scenario())


def test_a_write_that_fails_lowers_the_recovery_point_to_its_segment() -> None:
    """The cut of its bytes is not on disk: after a power cut they may be back, and are looked for only above that point."""
    disk = SimDisk()
    log = make_log(disk)
    fill(log, 60)
    run(log.settle())
    assert log.recovery_point == log.end_offset == 120
    disk.capacity = disk.used + 50
    log.append(batch(), Origin.CLIENT, 0, NOW_MS)
    with pytest.raises(OSError):
        log.publish()
    assert log.recovery_point == log.active.base < 120


def test_truncation_during_a_sync_does_not_leave_a_point_beyond_the_end() -> None:
    async def scenario() -> None:
        disk = SimDisk(latency_s=0.01)
        log = make_log(disk)
        fill(log, 20)
        flush = asyncio.create_task(log.flush())
        await asyncio.sleep(0)
        await log.truncate_to(4)
        await flush
        assert log.synced_end <= log.end_offset == 4 and log.recovery_point <= 4

    run(scenario())
