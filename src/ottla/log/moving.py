"""A log on its way to another data directory of the same node (KIP-113).

While a log moves there is a copy of it in the other directory, named `<topic>-<partition>.<id>-future` as in Apache Kafka.
The copy gets the same batches with the same offsets, read from the log like any consumer reads it, while producers write
on. How a move ends, and why no crash loses anything:

1. The copy has caught up but for what came in the last moment. It is synced, and its directory renamed to
   `<topic>-<partition>`; the new name is synced too. Now two directories have a log of that name, and the first is the
   longer one.
2. Without giving the loop back, the rest is copied and the partition writes to the copy from then on. Now the copy is at
   least as long.
3. The copy is synced up to its end. Then, and not before, the old log is put aside to be deleted.

Until 2 the copy is a beginning of the log, after it the log is a beginning of the copy. So a start that finds two logs of one
partition takes the longer one, whenever the crash was (see `Directories.load`). What was promised as synced is in that one:
before 2 it was synced in the log, after it in the copy, and what is synced is at its place whole.

A follower's log may be cut while it moves, because its leader has other records. Then the copy is of something that was, and
begins anew. If the process ends before, the start takes the log with records of the later leader, also where it is shorter.

A copy that was under way when the process ended is begun anew: it lies in a directory that says what was wanted.
"""

from __future__ import annotations

import random
from contextlib import suppress
from dataclasses import replace

from ottla.log import identity
from ottla.log.directory import NAME_BYTES_MAX, DataDirectory
from ottla.log.epochs import UNDEFINED
from ottla.log.flushing import Deleted
from ottla.log.log import Log
from ottla.log.producers import Origin
from ottla.log.trimming import raise_start
from ottla.wire.errors import Error, KafkaError
from ottla.wire.records import batches

# What is read and written at a time, and what may be missing when the copy takes over: that much is copied at once.
CHUNK_BYTES = 1 << 20
# So much may wait for the disk before the copy is synced in between.
UNSYNCED_BYTES = 64 << 20
FUTURE = "-future"
NO_EPOCH = -1


def future_name(topic: str, partition: int, rng: random.Random) -> str:
    """What the directory of a copy is called; an error where no file system has room for that."""
    name = f"{topic}-{partition}.{rng.getrandbits(128):032x}{FUTURE}"
    if len(name) > NAME_BYTES_MAX:
        raise KafkaError(Error.INVALID_TOPIC_EXCEPTION, "The topic name is too long.")
    return name


class Overtaken(Exception):
    """The log lost its beginning faster than it was copied, or an end that was copied already: the copy begins anew."""


class Copy:
    """The log in its new directory, as far as it is copied."""

    def __init__(self, source: Log, home: DataDirectory, rng: random.Random) -> None:
        self.source = source
        self.home = home
        self.path = self._future_path = f"{home.path}/{future_name(source.topic, source.partition, rng)}"
        # Batches that are there must fit, also if segments were larger when they were written.
        largest = max(segment.size for segment in source.segments)
        settings = replace(source.settings, segment_bytes=max(source.settings.segment_bytes, largest))
        self.log = Log(
            *(home.disk, home.files, self.path, source.topic, source.partition, settings),
            *(source.now_ms, rng, source.topic_id),
        )
        self.log.checkpoint = home.checkpoint
        self._cuts = source.cuts
        self._unsynced = 0

    async def begin(self) -> None:
        """Make the directory, and an empty log that begins where the first batch will."""
        base = await self._first_base()
        await self.home.disk.away(self._make)
        self.log.load(clean=True, start_offset=base)
        self.log.fresh = True

    def _make(self) -> None:
        self.home.disk.make_directory(self.path)
        identity.write_topic_id(self.home.disk, self.path, self.source.topic_id)
        self.home.disk.sync_directory(self.home.path)

    async def _first_base(self) -> int:
        """The log may start in the middle of a batch; the batch is copied whole."""
        source = self.source
        located = await source.read(source.start_offset, 1, source.end_offset)
        if not located.size:
            return source.start_offset
        data = await source.disk.away(located.read)
        return min(next(batches(data))[1].base_offset, source.start_offset)

    @property
    def lag(self) -> int:
        """How many offsets are still to be copied."""
        return max(0, self.source.end_offset - self.log.end_offset)

    @property
    def is_close(self) -> bool:
        """Whether so little is missing that it can be copied at once."""
        at, end = self.log.end_offset, self.source.end_offset
        is_there = at >= self.source.start_offset and not self._is_outdated
        return is_there and self.source.bytes_from(at, end) <= CHUNK_BYTES

    @property
    def _is_outdated(self) -> bool:
        """The log was cut since (a follower's, where its leader has other records): what is copied may be what went."""
        return self.source.cuts != self._cuts

    async def copy_some(self) -> int:
        """One piece further; how many bytes that were. None are left at 0."""
        source, log = self.source, self.log
        at, end = log.end_offset, source.end_offset
        if at >= end and not self._is_outdated:
            return 0
        data = await self._read(max(at, source.start_offset), end)
        if self._is_outdated:
            raise Overtaken
        if at < source.start_offset and (not data or next(batches(data))[1].base_offset > at):
            raise Overtaken
        self._take(data, end)
        self._unsynced += len(data)
        if self._unsynced >= UNSYNCED_BYTES:
            await log.flush()
            self._unsynced = 0
        return max(1, len(data))

    async def _read(self, offset: int, end: int) -> bytes:
        source = self.source
        try:
            located = await source.read(offset, CHUNK_BYTES, end)
            return await source.disk.away(located.read) if located.size else b""
        except KafkaError:
            if self._is_outdated:  # it read what was going away
                raise Overtaken from None
            raise

    def _take(self, data: bytes, end: int) -> None:
        log = self.log
        if data:
            log.append(memoryview(data), Origin.REPLICATION, NO_EPOCH, log.now_ms())
            log.publish()
        else:  # a hole that compaction left at the end
            log.roll(end)
            log.end_offset = log.staged_end = end

    async def put_in_place(self) -> None:
        """Sync what is copied, and give the directory its own name."""
        await self.log.settle()
        if self.log.failed is not None:
            raise KafkaError(Error.KAFKA_STORAGE_ERROR, f"the copy could not be synced: {self.log.failed}")
        name = f"{self.home.path}/{self.source.topic}-{self.source.partition}"
        await self.home.free_name(self.source.topic, self.source.partition)
        await self.home.disk.away(self._rename, name)
        self.log.follow(name)

    def _rename(self, name: str) -> None:
        self.home.disk.rename(self.path, name)
        self.path = name
        self.home.disk.sync_directory(self.home.path)

    def finish(self) -> None:
        """Copy the rest at once, and all that batches do not tell. Nothing may be staged in the log, or on its way to it."""
        source, log = self.source, self.log
        while log.end_offset < source.end_offset:
            end = source.end_offset
            self._take(source.locate(log.end_offset, CHUNK_BYTES, end).read(), end)
        raise_start(log, source.start_offset)
        for epoch, offset in source.epochs.entries:
            log.epochs.assign(epoch, offset)
        # The log remembers producers whose records are gone by now.
        log.producers = source.producers
        log.configure(source.settings)
        assert log.end_offset == source.end_offset and log.start_offset == source.start_offset

    async def close(self) -> None:
        """Leave behind what a clean stop leaves: another release, or Apache Kafka, may go on with it."""
        await self.home.disk.away(self.log.close)

    async def drop(self) -> None:
        """The copy is not wanted any more."""
        log = self.log
        log.failed = log.failed or Deleted("the copy was dropped")
        for segment in log.segments:
            segment.close()
            self.home.files.drop_index(segment.path + ".index")
        with suppress(OSError):  # what cannot be removed now is removed by the next start
            await self.home.disk.away(self._remove)

    def _remove(self) -> None:
        """A copy that has its place gives it up first: half of it could pass for the log when the node starts again."""
        if not self.path.endswith(FUTURE):
            self._rename(self._future_path)
        self.home.disk.remove_tree(self.path)


def futures_in(directory: DataDirectory) -> list[tuple[str, int, bytes]]:
    """Copies that a process left behind: path, partition, topic id. Blocks."""
    found = []
    for name in directory.disk.names(directory.path):
        stem, _, ending = name.rpartition(".")
        number = stem.rpartition("-")[2]
        path = f"{directory.path}/{name}"
        if ending.endswith(FUTURE) and number.isdigit() and directory.disk.is_directory(path):
            found.append((path, int(number), identity.read_topic_id(directory.disk, path) or bytes(16)))
    return found


def how_far(log: Log, newest_epoch: int) -> tuple[bool, int, int]:
    """Of two logs of one partition the one with more of this is the one that counts: the longer one, with more in it. But if
    the other has records of a later leader, this is a copy of what was cut off there (see `Copy`), however long it is. A log
    of which all is deleted knows of no leader."""
    return log.epochs.latest in (newest_epoch, UNDEFINED), log.end_offset, -log.start_offset
