"""One partition's log: what others call.

Appending is in `writer`, and below it writing (`publish`, `roll`) in `staging`; finding bytes to send in `reading`; opening
and recovering in `recovery`; taking records away in `trimming`; waiting for the disk in `flushing`. This class is the one
face of all of them.
"""

from __future__ import annotations

import random
from bisect import bisect_right
from collections.abc import Awaitable, Callable
from operator import attrgetter

from ottla.log import aborted, reading, recovery, trimming
from ottla.log.files import OpenFiles
from ottla.log.flushing import Flusher
from ottla.log.segment import stem
from ottla.log.settings import LogSettings
from ottla.log.staging import Owner, storage_error
from ottla.log.writer import Appended, Writer
from ottla.world import Disk

__all__ = ["Appended", "Log", "Owner", "storage_error"]

_base_of = attrgetter("base")


class Log(Writer):
    __slots__ = (
        "_corrupt",
        "_flusher",
        "arranging",
        "checkpoint",
        "cleaned_to",
        "cuts",
        "deleted",
        "recovered",
        "uncleanable",
    )

    def __init__(
        self,
        disk: Disk,
        files: OpenFiles,
        directory: str,
        topic: str,
        partition: int,
        settings: LogSettings,
        now_ms: Callable[[], int],
        rng: random.Random,
        topic_id: bytes = bytes(16),
    ) -> None:
        super().__init__(disk, files, directory, topic, partition, settings, now_ms, rng, topic_id)
        self._flusher = Flusher(self)
        self._corrupt: frozenset[tuple[int, int]] = frozenset()
        # How the directory makes log start and recovery point durable; how often the end was cut; files put aside.
        self.checkpoint: Callable[[], Awaitable[None]] | None = None
        self.cuts = 0
        # Compaction: whether segments are being exchanged or deleted, up to where all is compacted (-1: nothing is), and
        # whether it cannot be.
        self.arranging = self.uncleanable = False
        self.cleaned_to = -1
        self.deleted: list[tuple[int, str]] | None = None
        self.recovered: recovery.Report | None = None

    @property
    def size(self) -> int:
        """Bytes of all segments."""
        return sum(segment.size for segment in self.segments)

    @property
    def corrupt_batches(self) -> int:
        """Batches that failed their CRC when somebody wanted to read them."""
        return len(self._corrupt)

    def note_corrupt(self, base: int, position: int) -> None:
        self._corrupt |= {(base, position)}

    @property
    def unflushed(self) -> int:
        """Records that a power cut could take."""
        return self.end_offset - self.synced_end

    @property
    def is_settled(self) -> bool:
        """Whether a crash right now would need no scan: all is synced, indexes and a snapshot at the end included."""
        active = self._active
        return (
            self.recovery_point == self.synced_end == self.end_offset
            and not self.fresh
            and not self.unsynced
            and not self.refused
            and active.index_settled == len(active.index or ())
            and active.times_settled == len(active.times or b"")
            and (self.end_offset <= self.start_offset or self.end_offset in self.snapshots[-1:])
        )

    @property
    def needs_flush(self) -> bool:
        """A closed segment, or more records than `flush.messages` allows, wait for the disk."""
        return bool(self.unsynced or self.refused) or self.unflushed >= self.settings.flush_messages

    # -- finding segments

    def segment_number(self, offset: int) -> int:
        """Which segment holds `offset`."""
        return max(0, bisect_right(self.segments, offset, key=_base_of) - 1)

    def drop_snapshots(self, wanted: Callable[[int], bool]) -> None:
        """Remove the snapshots that are not wanted any more."""
        gone = [offset for offset in self.snapshots if not wanted(offset)]
        self.snapshots = [offset for offset in self.snapshots if wanted(offset)]
        for offset in gone:
            path = self.snapshot_path(offset)
            if self.disk.exists(path):
                self.disk.remove(path)

    def write_out(self) -> None:
        """Indexes of the active segment and a snapshot at the log end, in place of the last one that is at no segment."""
        self._active.index_time()
        self._active.settle()
        self.write_snapshot(self.end_offset)
        bases = {segment.base for segment in self.segments}
        self.drop_snapshots(lambda offset: offset in bases or offset == self.end_offset)

    def follow(self, directory: str) -> None:
        """The directory has another name now. Work that is still under way goes on there, not in what takes its old name."""
        self.directory = directory
        self.epochs.follow(directory)
        for segment in self.segments:
            segment.path = stem(directory, segment.base)

    def reload_producers(self) -> None:
        recovery.rebuild_producers(self)

    def now_ms(self) -> int:
        return self._now_ms()

    # -- the rest lives next door

    def locate(
        self, offset: int, bytes_max: int, bound: int, whole_first: bool = True, may_wait: bool = True
    ) -> reading.Located:
        return reading.locate(self, offset, bytes_max, bound, whole_first, may_wait)

    async def verify(self, located: reading.Located) -> reading.Located:
        return await reading.verify(self, located)

    async def read(self, offset: int, bytes_max: int, bound: int, whole_first: bool = True) -> reading.Located:
        """Locate and verify, with whatever is not at hand read in off the loop."""
        return await reading.read(self, offset, bytes_max, bound, whole_first)

    def bytes_from(self, offset: int, bound: int) -> int:
        return reading.bytes_from(self, offset, bound)

    def last_stable_offset(self, high_watermark: int) -> int:
        """Where read_committed ends: the first offset of a transaction not decided below the watermark, or the watermark."""
        producers = self.producers
        if producers.first_undecided < 0 and not producers.completed:
            return high_watermark
        first = producers.first_unstable(high_watermark)
        return high_watermark if first < 0 else min(high_watermark, max(first, self.start_offset))

    def aborted_transactions(self, first: int, end: int) -> list[aborted.AbortedTransaction]:
        return reading.aborted_transactions(self, first, end)

    def upper_bound(self, located: reading.Located) -> int:
        return reading.upper_bound(self, located)

    async def offset_for_timestamp(self, timestamp: int) -> reading.Found | None:
        return await reading.offset_for_timestamp(self, timestamp)

    async def max_timestamp(self) -> reading.Found | None:
        return await reading.max_timestamp(self)

    def end_offset_for_epoch(self, epoch: int) -> tuple[int, int]:
        """(epoch, end offset) as OffsetForLeaderEpoch answers."""
        return self.epochs.end_offset_for(epoch, self.end_offset)

    async def truncate_to(self, offset: int) -> bool:
        return await trimming.truncate_to(self, offset)

    def truncate_fully_and_start_at(self, offset: int) -> None:
        trimming.truncate_fully_and_start_at(self, offset)

    def delete_records(self, before: int, high_watermark: int) -> int:
        return trimming.delete_records(self, before, high_watermark)

    def sweep(self, now_ms: int) -> list[str]:
        return trimming.sweep(self, now_ms)

    def load(self, *, clean: bool, recovery_point: int = 0, start_offset: int = 0) -> recovery.Report:
        """Open what lies in the directory, recovering it after an unclean stop. Blocks."""
        self.recovered = recovery.load(self, clean, recovery_point, start_offset)
        return self.recovered

    async def flush(self, upto: int | None = None) -> None:
        """Return once everything below `upto` (the log end) survives a power cut. Callers that meet share one sync."""
        await self._flusher.flush(self.end_offset if upto is None else upto)

    @property
    def is_at_rest(self) -> bool:
        """Whether no sync is under way."""
        return self._flusher.is_at_rest

    async def at_rest(self) -> None:
        """Return when no sync is under way: what is done then, before anything is waited for, meets none."""
        await self._flusher.at_rest()

    async def settle(self) -> None:
        """Flush, and also the active segment's indexes and a snapshot: a crash right after it needs no scan."""
        await self._flusher.settle()

    def close(self) -> None:
        """Publish, snapshot, write and sync everything: what a clean stop leaves behind. Blocks."""
        recovery.close(self)
