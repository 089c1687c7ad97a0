"""A workload over a data directory on a simulated disk, what it was promised, and what must hold after the power went."""

from __future__ import annotations

import asyncio
import random
from collections.abc import Coroutine
from dataclasses import dataclass, field
from typing import Any, TypeVar

from ottla.log import retention
from ottla.log.directory import DataDirectory, Key
from ottla.log.identity import MetaProperties
from ottla.log.index import OffsetIndex, time_entry
from ottla.log.log import Log
from ottla.log.producers import Marker, Origin
from ottla.log.settings import LogSettings
from ottla.sim.disk import Loss, SimDisk
from ottla.wire.records import ControlType, Record, batches, build, control_type, crc_ok, end_marker, iterate, look

T = TypeVar("T")

NOW_MS = 1_767_225_600_000
SETTINGS = LogSettings(segment_bytes=600, index_interval_bytes=150, retention_bytes=1000, retention_ms=-1)
PRODUCER = 7
# Batches of several sectors, so that a torn write can have a sound header and a hole behind it.
LARGE = LogSettings(segment_bytes=9000, index_interval_bytes=150, retention_ms=-1)


def settings_of(topic: str) -> LogSettings:
    return LARGE if topic == "large" else SETTINGS


@dataclass
class Promises:
    """What clients were told: batches acknowledged after a sync, by log and first offset; how far deletion may have gone."""

    synced: dict[Key, dict[int, bytes]] = field(default_factory=dict)
    written: dict[Key, dict[int, bytes]] = field(default_factory=dict)
    start_at_most: dict[Key, int] = field(default_factory=dict)
    restarts: int = 0


class Workload:
    """Produce, roll, flush, retention, create and delete, checkpoints, a clean stop and a start."""

    def __init__(self, disk: SimDisk, promises: Promises) -> None:
        self.disk = disk
        self.promises = promises
        self.sequences: dict[Key, int] = {}
        self.directory: DataDirectory

    async def run(self) -> None:
        self.directory = open_directory(self.disk)
        self.directory.format(MetaProperties("cluster", 1, b"d" * 16))
        await self.directory.load(settings_of)
        for key in (("plain", 0), ("idempotent", 0), ("transactions", 0)):
            await self.create(key)
        await self.create(("large", 0))
        await self.produce(("plain", 0), 6, flush=True)
        await self.produce(("large", 0), 5, size=40)
        await self.produce(("idempotent", 0), 9, producer=True)
        await self.transactions(("transactions", 0))
        await self.directory.checkpoint()
        await self.flush(("idempotent", 0))
        await self.produce(("plain", 0), 14)
        await self.flush(("transactions", 0))
        await self.retain(("plain", 0))
        await self.create(("short-lived", 3))
        await self.produce(("short-lived", 3), 3, flush=True)
        await self.delete(("short-lived", 3))
        await self.produce(("idempotent", 0), 4, producer=True, flush=True)
        await self.directory.sweep()
        await self.restart()
        await self.produce(("plain", 0), 9, flush=True)
        await self.produce(("idempotent", 0), 7, producer=True)
        await self.delete_records(("plain", 0))
        await self.directory.logs["idempotent", 0].settle()
        self.keep(("idempotent", 0))
        await self.directory.checkpoint()
        await self.produce(("idempotent", 0), 4, producer=True)
        await self.directory.logs["idempotent", 0].settle()
        self.keep(("idempotent", 0))
        await self.produce(("idempotent", 0), 3, producer=True, flush=True)
        await self.directory.checkpoint()
        await self.transactions(("transactions", 0))
        await self.retain(("plain", 0))
        await self.flush(("transactions", 0))

    async def create(self, key: Key) -> None:
        await self.directory.create(*key, b"t" * 16, settings_of(key[0]))
        self.promises.synced[key], self.promises.written[key] = {}, {}
        self.promises.start_at_most[key] = 0

    async def delete(self, key: Key) -> None:
        del self.promises.synced[key], self.promises.written[key]
        await self.directory.delete(*key)

    async def produce(self, key: Key, count: int, producer: bool = False, flush: bool = False, size: int = 1) -> None:
        log = self.directory.logs[key]
        for number in range(count):
            batch = self._next_batch(key, number, producer, size)
            self._append(log, key, batch, Origin.CLIENT)
            if number % 2:
                log.publish()
        log.publish()
        if flush:
            await self.flush(key)

    def _next_batch(self, key: Key, number: int, producer: bool, factor: int) -> bytes:
        size = (1 + number % 3) * factor
        records = [
            Record(timestamp=NOW_MS + number, value=b"%d-%d" % (number, n) * (number % 9 + 1)) for n in range(size)
        ]
        if not producer:
            return build(records)
        sequence = self.sequences.get(key, 0)
        self.sequences[key] = sequence + size
        return build(records, producer_id=PRODUCER, producer_epoch=0, base_sequence=sequence)

    def _append(self, log: Log, key: Key, batch: bytes, origin: Origin) -> None:
        appended = log.append(memoryview(bytearray(batch)), origin, 0, NOW_MS)
        self.promises.written[key][appended.first_offset] = batch

    async def transactions(self, key: Key) -> None:
        log = self.directory.logs[key]
        for number, commit in enumerate((True, False, True)):
            for producer_id in (20 + number, 30 + number):
                records = [Record(timestamp=NOW_MS, value=b"in a transaction %d" % number)]
                batch = build(records, producer_id=producer_id, producer_epoch=0, base_sequence=0, transactional=True)
                known = log.producers.known(producer_id)
                if known is not None and known.batches:
                    batch = build(
                        records,
                        producer_id=producer_id,
                        producer_epoch=0,
                        base_sequence=known.last_sequence + 1,
                        transactional=True,
                    )
                self._append(log, key, batch, Origin.CLIENT)
            self._end(log, key, 20 + number, commit)
            log.publish()

    def _end(self, log: Log, key: Key, producer_id: int, commit: bool) -> None:
        appended = log.append_marker(Marker(producer_id, 0, 0, commit), 0, NOW_MS)
        marker = end_marker(commit, NOW_MS, producer_id=producer_id, producer_epoch=0, coordinator_epoch=0)
        self.promises.written[key][appended.first_offset] = marker

    async def flush(self, key: Key) -> None:
        await self.directory.logs[key].flush()
        self.keep(key)

    def keep(self, key: Key) -> None:
        """Everything up to the synced end is promised now."""
        end = self.directory.logs[key].synced_end
        self.promises.synced[key] = {at: data for at, data in self.promises.written[key].items() if at < end}

    async def retain(self, key: Key) -> None:
        log = self.directory.logs[key]
        count = retention.plan(log, NOW_MS, log.end_offset)
        assert count
        bases = [segment.base for segment in log.segments]
        self.promises.start_at_most[key] = bases[count] if count < len(bases) else log.end_offset
        await retention.perform(log, count)

    async def delete_records(self, key: Key) -> None:
        log = self.directory.logs[key]
        target = log.start_offset + 3
        self.promises.start_at_most[key] = max(target, self.promises.start_at_most[key])
        log.delete_records(target, log.end_offset)
        await self.directory.checkpoint()

    async def restart(self) -> None:
        self.directory.close(broker_epoch=5)
        for key in self.promises.synced:
            self.promises.synced[key] = dict(self.promises.written[key])
        self.directory = open_directory(self.disk)
        loading = await self.directory.load(settings_of)
        assert loading.clean and not loading.repaired and not loading.scanned_bytes
        self.promises.restarts += 1


def open_directory(disk: SimDisk) -> DataDirectory:
    directory = DataDirectory(disk, "/data", now_ms=lambda: NOW_MS, rng=random.Random(1))
    directory.open()
    return directory


async def check_after(disk: SimDisk, promises: Promises) -> None:
    """Recover, and hold the result against the promises; then the next starts must find nothing to repair."""
    directory = open_directory(disk)
    await directory.load(settings_of)
    for key, batches_promised in promises.synced.items():
        if key in directory.logs:
            await check_log(directory.logs[key], batches_promised, promises, key)
        else:
            assert not batches_promised, f"{key} is gone"
    for log in directory.logs.values():
        check_indexes(log)
        check_producers(log)
        await log.settle()
    await directory.checkpoint()
    directory = open_directory(disk := disk.crash(random.Random(2), Loss.LOST))
    again = await directory.load(settings_of)
    assert not again.repaired and not again.truncated_bytes, "a second repair was needed"
    for log in directory.logs.values():
        log.append(memoryview(bytearray(build([Record(timestamp=NOW_MS, value=b"new")]))), Origin.CLIENT, 3, NOW_MS)
        log.publish()
    directory.close()
    directory = open_directory(disk)
    again = await directory.load(settings_of)
    assert again.clean and not again.repaired and not again.scanned_bytes
    for log in directory.logs.values():
        await read_all(log)


async def check_log(log: Log, promised: dict[int, bytes], promises: Promises, key: Key) -> None:
    found = await read_all(log)
    for at, batch in promised.items():
        if at >= promises.start_at_most[key]:
            assert at in found, f"{key}: acknowledged batch at {at} is lost; the log has {sorted(found)}"
            assert found[at][16:] == batch[16:], f"{key}: other bytes at {at}"
    for at, data in found.items():
        written = promises.written[key].get(at)
        assert written is not None and data[16:] == written[16:], f"{key}: batch at {at} was never written"

    check_transactions(log, found)
    numbered = [at for at, data in found.items() if look(data).producer_id == PRODUCER]
    known = log.producers.known(PRODUCER)
    if numbered:
        assert known is not None and known.batches, f"{key}: the producer is forgotten"
        assert known.batches[-1].first_offset == max(numbered), f"{key}: the producer's last batch is forgotten"


def check_transactions(log: Log, found: dict[int, bytes]) -> None:
    """Open and aborted transactions are those that the batches in the log tell of."""
    ongoing: dict[int, int] = {}
    aborted: list[tuple[int, int]] = []
    for at, data in sorted(found.items()):
        head = look(data)
        if head.is_control:
            first = ongoing.pop(head.producer_id, None)
            if control_type(next(iterate(data)).key) == ControlType.ABORT and first is not None:
                aborted.append((first, at))
        elif head.is_transactional:
            ongoing.setdefault(head.producer_id, at)
    rows = [(row.first_offset, row.last_offset) for row in log.aborted_transactions(log.start_offset, log.end_offset)]
    assert rows == sorted(aborted), f"{log.name}: aborted {rows} instead of {sorted(aborted)}"
    assert log.last_stable_offset(log.end_offset) == min(ongoing.values(), default=log.end_offset), log.name


async def read_all(log: Log) -> dict[int, bytes]:
    """Every batch by first offset; all CRCs right and no offset missing."""
    found: dict[int, bytes] = {}
    offset = log.start_offset
    while offset < log.end_offset:
        located = await log.read(offset, 700, log.end_offset)
        assert located.size > 0 and located.verified
        data = located.read()
        for position, head in batches(data):
            assert crc_ok(data, position, head.size)
            assert head.base_offset <= offset <= head.last_offset, f"{log.name}: hole at {offset}"
            found[head.base_offset] = data[position : position + head.size]
            offset = head.next_offset
    return found


def check_indexes(log: Log) -> None:
    """Each closed segment that can be read has all the entries that its batches call for, and its largest timestamp."""
    for segment in log.segments[log.segment_number(log.start_offset) : -1]:
        index, times, largest, indexed_at = OffsetIndex(), segment.read_times(), -1, 0
        for position, fields in segment.headers(0):
            if position - indexed_at > SETTINGS.index_interval_bytes:
                index.add(fields[0] + fields[6] - segment.base, position)
                indexed_at = position
            largest = max(largest, fields[8])
        assert segment.read_index() == index, f"{log.name}: index of {segment.base}"
        assert times and time_entry(times, len(times) // 12 - 1)[0] == largest, (
            f"{log.name}: time index of {segment.base}"
        )


def check_producers(log: Log) -> None:
    """The last numbered batch in the log is recognised when it comes again."""
    known = log.producers.known(PRODUCER)
    if known is None or not known.batches:
        return
    sent = known.batches[-1]
    size = sent.last_offset - sent.first_offset + 1
    records = [Record(timestamp=NOW_MS, value=b"again")] * size
    batch = build(records, producer_id=PRODUCER, producer_epoch=0, base_sequence=sent.first_sequence)
    again = log.append(memoryview(bytearray(batch)), Origin.CLIENT, 0, NOW_MS)
    assert again.duplicate and again.first_offset == sent.first_offset


class Stage:
    """One event loop for thousands of short runs."""

    def __init__(self) -> None:
        self.loop = asyncio.new_event_loop()

    def run(self, coroutine: Coroutine[Any, Any, T]) -> T:
        return self.loop.run_until_complete(coroutine)

    def close(self) -> None:
        self.loop.close()
