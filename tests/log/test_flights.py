"""Large writes go on beside the loop: nothing of them is seen before they have landed, and nothing overtakes them."""

from __future__ import annotations

import asyncio
import errno
import random
import sys
import threading
from collections.abc import Sequence
from pathlib import Path

import pytest

from ottla.log import retention
from ottla.log.directories import Directories
from ottla.log.log import Log
from ottla.log.producers import Origin
from ottla.log.settings import LogSettings
from ottla.server import connection
from ottla.sim.disk import SimDisk
from ottla.wire.errors import Error, KafkaError
from ottla.world import FLIES_FROM, Bytes, RealDisk, RealFile

sys.path.insert(0, str(Path(__file__).parent))
from logs import NOW_MS, batch, make_log, offsets, put, read_batches, reopen

LARGE = bytes(2000)


class Tower:
    """Publishes when a flight is over, as a partition does."""

    def __init__(self, log: Log) -> None:
        self.log = log
        self.took_off_count = self.landed_count = 0
        log.tower = self

    def took_off(self) -> None:
        self.took_off_count += 1

    def landed(self) -> None:
        self.landed_count += 1
        if not self.log.is_flying:
            self.log.publish()


class Owner:
    def __init__(self) -> None:
        self.errors: list[KafkaError] = []

    def fail(self, error: KafkaError) -> None:
        self.errors.append(error)


def flying_log(settings: LogSettings | None = None) -> tuple[Log, SimDisk, Tower]:
    disk = SimDisk(latency_s=0.01)
    disk.copies_below, disk.flies_from = 700, 1000
    log = make_log(disk, settings or LogSettings())
    return log, disk, Tower(log)


def append(log: Log, data: memoryview, owner: Owner | None = None) -> int:
    return log.append(data, Origin.CLIENT, 0, NOW_MS, owner).first_offset


async def landing(tower: Tower) -> None:
    while tower.landed_count < tower.took_off_count:
        await asyncio.sleep(0.001)


def large(count: int = 1) -> memoryview:
    return batch(count, value=LARGE)


def test_nothing_is_seen_before_the_landing() -> None:
    async def check() -> None:
        log, _, tower = flying_log()
        put(log, batch())
        append(log, large(2))
        assert log.is_flying and (log.end_offset, log.staged_end) == (1, 3)
        await landing(tower)
        assert (log.end_offset, log.staged_end) == (3, 3)

    asyncio.run(check())


def test_what_was_staged_before_is_not_taken_along() -> None:
    """Whoever sent it is told at the end of this turn that it is written: so it is, and the large batch with it."""

    async def check(fails: bool) -> None:
        log, disk, tower = flying_log()
        owner = Owner()
        append(log, batch(), owner)
        if fails:
            disk.capacity = disk.used + 500
            with pytest.raises(KafkaError):
                append(log, large())
        else:
            append(log, large())
        assert tower.took_off_count == 0 and log.end_offset == (0 if fails else 2)
        assert len(owner.errors) == fails

    for fails in (False, True):
        asyncio.run(check(fails))


def test_an_append_waits_for_the_flight_before_it() -> None:
    async def check() -> Log:
        log, _, tower = flying_log()
        assert [append(log, data) for data in (large(), batch(), large(), large(), batch())] == [0, 1, 2, 3, 4]
        assert (log.end_offset, log.staged_end) == (4, 5)
        await landing(tower)
        log.publish()
        assert tower.took_off_count == 2 and log.end_offset == 5
        return log

    log = asyncio.run(check())
    assert offsets(read_batches(log, 0)) == [0, 1, 2, 3, 4]


@pytest.mark.parametrize("step", ["publish", "roll", "cut", "configure", "close"])
def test_whoever_needs_the_log_lands_the_flight(step: str) -> None:
    async def check() -> None:
        log, _, tower = flying_log(LogSettings(segment_bytes=3000))
        append(log, large())
        if step == "publish":
            log.publish()
        elif step == "roll":
            append(log, large())
        elif step == "cut":
            await log.truncate_to(1)
        elif step == "configure":
            log.configure(LogSettings(segment_bytes=5000))
            append(log, batch())
        else:
            log.close()
        assert log.end_offset == 1
        await landing(tower)
        log.publish()
        again = reopen(log, clean=False)
        assert again.end_offset == log.end_offset == log.staged_end
        assert len(log.segments) == (2 if step == "roll" else 1)

    asyncio.run(check())


def test_a_flight_that_fails_takes_all_that_was_staged_with_it() -> None:
    """Its owners are told, the file is cut back, and the log goes on as if nothing had been sent."""

    async def check() -> Log:
        log, disk, tower = flying_log()
        put(log, batch())
        size, owner = log.active.size, Owner()
        disk.capacity = disk.used + 500
        append(log, large(), owner)
        with pytest.raises(OSError):
            log.publish()
        assert [error.error for error in owner.errors] == [Error.KAFKA_STORAGE_ERROR]
        assert log.end_offset == log.staged_end == 1 and disk.size(log.active.path + ".log") == size
        disk.capacity = 1 << 40
        await landing(tower)
        assert append(log, large()) == 1
        await landing(tower)
        return log

    assert offsets(read_batches(asyncio.run(check()), 0)) == [0, 1]


def test_an_append_behind_a_flight_that_fails_is_refused() -> None:
    async def check() -> None:
        log, disk, _ = flying_log()
        disk.capacity = disk.used + 500
        append(log, large())
        with pytest.raises(KafkaError) as refused:
            append(log, batch())
        assert refused.value.error is Error.KAFKA_STORAGE_ERROR
        disk.capacity = 1 << 40
        assert append(log, batch()) == 0

    asyncio.run(check())


def test_a_repeated_batch_hangs_on_the_flight_of_the_first() -> None:
    """IDM-02: the same answer, and the same failure."""

    async def check(fails: bool) -> list[Owner]:
        log, disk, tower = flying_log()
        owners = [Owner(), Owner()]
        if fails:
            disk.capacity = disk.used + 500
        data = batch(2, value=LARGE, producer_id=7, producer_epoch=0, base_sequence=0)
        again = memoryview(bytearray(data))
        assert [append(log, data, owners[0]), append(log, again, owners[1])] == [0, 0]
        try:
            log.publish()
        except OSError:
            assert fails
        assert log.end_offset == (0 if fails else 2)
        await landing(tower)
        return owners

    assert [len(owner.errors) for owner in asyncio.run(check(fails=False))] == [0, 0]
    assert [len(owner.errors) for owner in asyncio.run(check(fails=True))] == [1, 1]


def test_a_flight_that_lands_after_a_failed_sync_is_not_believed() -> None:
    async def check() -> None:
        log, _, _ = flying_log()
        owner = Owner()
        append(log, large(), owner)
        log.failed = OSError(errno.EIO, "a sync failed")
        with pytest.raises(OSError):
            log.publish()
        assert log.end_offset == 0 and [error.error for error in owner.errors] == [Error.KAFKA_STORAGE_ERROR]

    asyncio.run(check())


def test_retention_does_not_take_what_is_in_flight() -> None:
    """What it planned to delete was there before; what lands meanwhile is new, and nobody has seen it."""

    async def check() -> None:
        log, _, tower = flying_log(LogSettings(retention_ms=1000))
        put(log, batch(timestamp=NOW_MS - 5000))
        append(log, large())
        await retention.perform(log, retention.plan(log, NOW_MS, log.end_offset))
        await landing(tower)
        assert (log.start_offset, log.end_offset) == (0, 2)

    asyncio.run(check())


def test_a_sync_does_not_vouch_for_a_cut_that_came_after_it_began() -> None:
    """A write that fails during the sync is cut off, and the cut is not on disk: the segment must be looked at again."""

    async def check() -> None:
        log, disk, _ = flying_log()
        put(log, batch())
        disk.capacity = disk.used + 500
        settling = asyncio.create_task(log.settle())
        await asyncio.sleep(0)
        append(log, large())
        with pytest.raises(OSError):
            log.publish()
        await settling
        assert log.refused == 1 and log.recovery_point == 0
        await log.flush()
        await log.settle()
        assert log.recovery_point == log.end_offset == 1

    asyncio.run(check())


class Torn(Exception):
    """Whatever a thread may end with that no disk says."""


@pytest.mark.parametrize("kind", ["small", "middle", "large"])
def test_a_write_that_ends_in_no_known_way_is_taken_back(kind: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Its bytes must not stay behind as staged: what comes next would be written in front of them."""

    async def check() -> Log:
        log, _, tower = flying_log()
        put(log, batch())
        file, owner = log.active.open(), Owner()
        monkeypatch.setattr(type(file), "write_at", torn)
        with pytest.raises((Torn, OSError)):  # at once, or with the publish
            append(log, {"small": batch(), "middle": batch(value=bytes(800)), "large": large()}[kind], owner)
            log.publish()
        monkeypatch.undo()
        assert log.end_offset == log.staged_end == 1 and not log.is_flying
        assert append(log, batch()) == 1
        log.publish()
        await landing(tower)
        return log

    def torn(self: object, position: int, parts: Sequence[Bytes]) -> None:
        raise Torn

    assert offsets(read_batches(asyncio.run(check()), 0)) == [0, 1]


class HeldFile(RealFile):
    """Writes of records wait for a sign."""

    sign = threading.Event()

    def write_at(self, position: int, parts: Sequence[Bytes]) -> None:
        if sum(map(len, parts)) >= FLIES_FROM and not self.sign.wait(30):
            raise OSError(errno.EIO, "no sign came")
        super().write_at(position, parts)


class HeldDisk(RealDisk):
    def open(self, path: str, *, create: bool = False) -> RealFile:
        return HeldFile(path, 0o102 if create else 0o2, self.watch)


def test_the_loop_goes_on_while_a_thread_writes(tmp_path: Path) -> None:
    async def check() -> Log:
        HeldFile.sign.clear()
        log = make_log(HeldDisk(), LogSettings(), str(tmp_path / "topic-0"))
        tower = Tower(log)
        append(log, batch(value=bytes(FLIES_FROM)))
        await asyncio.sleep(0.05)  # other work of the loop
        assert log.is_flying and log.end_offset == 0
        HeldFile.sign.set()
        await landing(tower)
        assert log.end_offset == 1
        return log

    assert offsets(read_batches(asyncio.run(check()), 0)) == [0]


def test_a_flight_that_lands_while_the_node_stops_is_published_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Logs are closed off the loop; were the flight still under way then, the loop would publish at the same time."""
    publishing: list[int] = []
    publish = Log.publish

    def noted(self: Log) -> None:
        if self.staged_end > self.end_offset:
            publishing.append(threading.get_ident())
        publish(self)

    async def check() -> Directories:
        directories = Directories(HeldDisk(), [str(tmp_path)], 1, lambda: NOW_MS, random.Random(1))
        HeldFile.sign.set()
        directories.open()
        log = await directories.log("topic", 0, bytes(15) + b"\7", LogSettings(), bytes(16))
        Tower(log)
        HeldFile.sign.clear()
        append(log, batch(value=bytes(FLIES_FROM)))
        threading.Timer(0.1, HeldFile.sign.set).start()
        await directories.close(1)
        await asyncio.sleep(0.05)
        return directories

    monkeypatch.setattr(Log, "publish", noted)
    log = asyncio.run(check()).all[0].logs["topic", 0]
    assert publishing == [threading.get_ident()]
    assert log.is_settled and reopen(log).end_offset == 1


def test_without_a_thread_the_write_is_done_at_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """An executor that can start no thread says so, but keeps the work: whoever comes later must not do it again."""

    def none_left(self: threading.Thread) -> None:
        raise RuntimeError("can't start new thread")

    async def check() -> Log:
        log = make_log(RealDisk(), LogSettings(), str(tmp_path / "topic-0"))
        tower = Tower(log)
        with monkeypatch.context() as patch:
            patch.setattr(threading.Thread, "start", none_left)
            append(log, batch(value=bytes(FLIES_FROM)))
        await landing(tower)
        await log.truncate_to(0)
        append(log, batch(value=b"\1" * FLIES_FROM))
        await landing(tower)
        return log

    log = asyncio.run(check())
    assert log.end_offset == 1
    assert offsets(read_batches(reopen(log, clean=False), 0)) == [0]


def test_what_flies_lies_in_no_buffer_that_connections_share() -> None:
    assert connection.SHARED_BUFFER <= FLIES_FROM


def test_a_buffer_is_not_used_again_while_a_batch_in_it_is_written() -> None:
    buffers = connection.Buffers()
    buffer = bytearray(1 << 20)
    view = memoryview(buffer)[100:]
    buffers.give_back(buffer)
    assert buffers.take(1 << 20, 0) is not buffer
    view.release()
    assert buffers.take(1 << 20, 0) is buffer
