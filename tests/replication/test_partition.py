"""One replica: what its roles and its log make of each other."""

from __future__ import annotations

import asyncio
import errno
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from ottla.log.ballast import Ballast
from ottla.log.log import Log
from ottla.log.producers import Origin
from ottla.log.settings import LogSettings
from ottla.metadata.image import Partition as Assignment
from ottla.replication.partition import Partition
from ottla.sim.disk import SimDisk
from ottla.wire.errors import Error, KafkaError

sys.path.insert(0, str(Path(__file__).parent.parent / "log"))
from logs import NOW_MS, batch, make_log, run

ME = 1


class Traffic:
    bytes_in = bytes_out = records_in = produces = failed_produces = fetches = failed_fetches = 0


class Answer:
    error: KafkaError | None = None

    def fail(self, error: KafkaError) -> None:
        self.error = error


def leading(log: Log, write_failed: Callable[[Log, BaseException], None] = lambda log, error: None) -> Partition:
    partition = Partition(
        *(log, "topic", bytes(16), 0, ME, lambda dirty: None, lambda work: asyncio.ensure_future(work)),
        *(Ballast(log.disk, "/data"), Traffic(), write_failed),
    )
    partition.configure(log.settings, 1)
    partition.lead(Assignment((ME,), (ME,), ME, 0))
    return partition


def append(partition: Partition, data: Any = None) -> Answer:
    answer = Answer()
    partition.append(data or batch(2), NOW_MS, Origin.CLIENT, answer)
    return answer


def test_an_epoch_begins_behind_what_was_accepted_before_it() -> None:
    """TRAP-14: two logs agree up to where their epochs part, so an epoch must not claim records of the one before."""

    async def scenario() -> None:
        log = make_log()
        partition = leading(log)
        append(partition)
        partition.lead(Assignment((ME,), (ME,), ME, 1))
        append(partition)
        partition.write()
        assert log.epochs.entries == [(0, 0), (1, 2)]
        located = await log.read(0, 1 << 20, log.end_offset)
        assert located.size == log.active.size

    run(scenario())


def test_a_sync_that_cannot_begin_is_told_and_tried_again(monkeypatch: pytest.MonkeyPatch) -> None:
    """Without a free descriptor nothing is lost and nothing is broken, but nobody may be told that records are safe."""

    async def scenario() -> None:
        disk = SimDisk()
        log = make_log(disk, LogSettings(flush_messages=1))
        partition = leading(log)
        append(partition)
        partition.write()
        await partition.acknowledged(2, 1.0)
        append(partition)
        partition.log.publish()
        open_file = disk.open

        def none_left(path: str, *, create: bool = False) -> Any:
            raise OSError(errno.EMFILE, "too many open files", path)

        log.files.close(log.active)
        monkeypatch.setattr(disk, "open", none_left)
        partition.write()
        with pytest.raises(KafkaError) as refused:
            await partition.acknowledged(4, 1.0)
        assert refused.value.error is Error.KAFKA_STORAGE_ERROR
        assert log.failed is None and partition.high_watermark.value == 2
        monkeypatch.setattr(disk, "open", open_file)
        append(partition)
        partition.write()
        await partition.acknowledged(6, 1.0)
        assert log.synced_end == 6

    run(scenario())


def test_records_that_cannot_be_taken_away_are_a_failed_write() -> None:
    """A cut needs room as an append does: whoever sees to full disks has to hear of it."""

    async def scenario() -> None:
        disk, failures = SimDisk(), 0

        def failed(log: Log, error: BaseException) -> None:
            nonlocal failures
            failures += 1

        partition = leading(make_log(disk, LogSettings(index_interval_bytes=1)), failed)
        for _ in range(9):
            append(partition)
            partition.write()
        disk.capacity = disk.used
        with pytest.raises(KafkaError) as refused:
            await partition.cut(15)
        assert refused.value.error is Error.KAFKA_STORAGE_ERROR and failures == 1
        partition.log.epochs.unwritten = True
        with pytest.raises(KafkaError):
            partition.begin_anew(90)
        assert (partition.log.end_offset, failures) == (18, 2)

    run(scenario())


def flying() -> tuple[Partition, SimDisk]:
    disk = SimDisk(latency_s=0.01)
    disk.copies_below = disk.flies_from = 1000
    return leading(make_log(disk, LogSettings())), disk


def large() -> Any:
    return batch(value=bytes(2000))


async def landing(partition: Partition) -> None:
    while partition.log.is_flying:
        await asyncio.sleep(0.001)


def test_an_epoch_begins_behind_what_flies() -> None:
    """TRAP-14: a batch that is on its way to the file belongs to the epoch it was accepted in."""

    async def scenario() -> None:
        partition, _ = flying()
        append(partition, large())
        partition.write()
        partition.lead(Assignment((ME,), (ME,), ME, 1))
        append(partition)
        partition.write()
        assert partition.log.epochs.entries == [(0, 0), (1, 1)]

    run(scenario())


def test_nothing_is_acknowledged_before_it_is_in_the_file() -> None:
    """A small batch is acknowledged with the turn it came in, even if a large one came behind it."""

    async def scenario(fails: bool) -> None:
        partition, disk = flying()
        if fails:
            disk.capacity = disk.used + 500
        answer = append(partition)
        assert partition.acknowledges_on_write
        try:
            append(partition, large())
        except KafkaError:
            assert fails
        partition.write()  # and now its reply leaves
        assert partition.log.end_offset == (0 if fails else 3)
        assert (answer.error is not None) == fails

    run(scenario(fails=False))
    run(scenario(fails=True))


def test_what_is_written_is_seen_while_the_next_write_goes_on() -> None:
    """Whoever waits for one flight does not wait for all that follow it."""

    async def scenario() -> None:
        partition, _ = flying()
        append(partition, large())
        first = asyncio.ensure_future(partition.acknowledged(1, 1.0))
        await asyncio.sleep(0)
        append(partition, large())
        assert partition.log.is_flying
        partition.write()
        await first
        assert partition.log.is_flying and partition.high_watermark.value == 1
        await landing(partition)

    run(scenario())


def test_a_flight_is_waited_for_however_little_time_a_client_gives() -> None:
    """A write on the loop could not be too late either: nobody is told to send again what lies in the file."""

    async def scenario() -> None:
        partition, _ = flying()
        append(partition, large())
        waiting = asyncio.ensure_future(partition.acknowledged(1, 0.0))
        await landing(partition)
        partition.write()
        await waiting

    run(scenario())
