"""One replica: what its roles and its log make of each other."""

from __future__ import annotations

import asyncio
import errno
import sys
from pathlib import Path
from typing import Any

import pytest

from ottla.log.ballast import Ballast
from ottla.log.log import Log
from ottla.log.producers import Origin
from ottla.log.settings import LogSettings
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


def leading(log: Log) -> Partition:
    partition = Partition(
        *(log, "topic", bytes(16), 0, ME, lambda dirty: None, lambda work: asyncio.ensure_future(work)),
        *(Ballast(log.disk, "/data"), Traffic(), lambda error: None),
    )
    partition.configure(log.settings, 1)
    partition.lead(0, (ME,))
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
        partition.lead(1, (ME,))
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
