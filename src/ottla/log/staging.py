"""What is staged for a log, how it gets into the file, and the segments it goes to.

`publish` writes everything staged with one call and only then moves what others can see: the end offset, index entries,
timestamps, producers, transactions. If the write fails, the file is cut back, everything staged is forgotten, and the owner
of each staged batch is told; nobody ever saw any of it.

    start_offset   first offset that may be read (records below it are deleted, or are about to be)
    end_offset     one past the last published record
    staged_end     one past the last staged record; equal to end_offset between two turns, unless a flight is under way
    synced_end     every record below it survives a power cut
    recovery_point whole segments below it are on disk with all that belongs to them: a start after a crash scans from the
                   segment it lies in

A write may also be a *flight*: begun here, it goes on beside the loop while the loop receives more. A flight has the log to
itself: whoever wants to append, publish, roll or cut finishes it first, and else `landed` of the tower does.

The order of things that make a crash harmless: a roll writes the producer snapshot and the indexes of the old segment without
waiting for the disk, and `flush` later syncs log, indexes, snapshot and directory *before* recovery_point passes them. After
a failed sync nothing is believed any more: the log refuses appends until the process starts anew.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence
from contextlib import suppress
from errno import EIO
from typing import Protocol

from ottla.log import aborted
from ottla.log.epochs import EpochCache
from ottla.log.files import OpenFiles
from ottla.log.index import RELATIVE_MAX
from ottla.log.producers import Producers
from ottla.log.segment import Segment, stem
from ottla.log.settings import LONG_MAX, LogSettings
from ottla.wire.errors import Error, KafkaError
from ottla.world import Bytes, Disk, File, Flight

RECENT_MAX = 64
# The size at which a segment is full while a flight is on its way to it: nothing fits.
IN_FLIGHT = -1


class Owner(Protocol):
    """Who wants to know that a staged batch was lost after all."""

    def fail(self, error: KafkaError) -> None: ...


class Tally(Protocol):
    """Where what was written is counted."""

    bytes_in: int
    records_in: int


class Uncounted:
    bytes_in = records_in = 0


UNCOUNTED = Uncounted()


class Tower(Protocol):
    """Who watches over the flights of a log, and publishes what they brought."""

    def took_off(self) -> None: ...
    def landed(self) -> None: ...


class Staging:
    __slots__ = (
        "_active",
        "_after_max_ms",
        "_batches",
        "_bytes_max",
        "_copies_below",
        "_flight",
        "_interval",
        "_large",
        "_now_ms",
        "_plain",
        "_random",
        "_roll_offset",
        "_roll_size",
        "_roll_timestamp",
        "_staged",
        "_staged_size",
        "_stamps",
        "directory",
        "disk",
        "end_offset",
        "epochs",
        "failed",
        "files",
        "fresh",
        "partition",
        "producers",
        "recovery_point",
        "refused",
        "segments",
        "settings",
        "snapshots",
        "staged_end",
        "start_offset",
        "synced_end",
        "tally",
        "topic",
        "topic_id",
        "tower",
        "unsynced",
        "with_aborted",
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
        self.disk = disk
        self.files = files
        self.directory = directory
        self.topic = topic
        self.partition = partition
        self.topic_id = topic_id
        self._now_ms = now_ms
        self._random = rng
        self.epochs = EpochCache(disk, directory)
        self.producers = Producers()
        self.segments: list[Segment] = []
        self.snapshots: list[int] = []
        self.start_offset = self.end_offset = self.staged_end = self.synced_end = self.recovery_point = 0
        self.failed: BaseException | None = None
        self.with_aborted: set[int] = set()
        # Closed segments of which something (bytes, indexes) may not have reached the disk yet.
        self.unsynced: list[Segment] = []
        # Failed writes that were cut off since the last sync.
        self.refused = 0
        self.fresh = True
        self._staged = bytearray()
        self._large: Bytes | None = None  # comes behind what is in _staged
        self._batches: list[tuple[int, int, int, Owner | None]] = []
        self._staged_size = 0
        self._copies_below = disk.copies_below
        self._flight: Flight | None = None
        # While nobody would publish after a flight, all is written at once.
        self.tower: Tower | None = None
        self.tally: Tally = UNCOUNTED
        self._roll_size = self._roll_offset = self._roll_timestamp = 0
        self._active: Segment
        self.configure(settings)

    def configure(self, settings: LogSettings) -> None:
        """Obey these settings from now on."""
        self.settings = settings
        self._interval = settings.index_interval_bytes
        self._bytes_max = settings.max_message_bytes
        self._after_max_ms = settings.message_timestamp_after_max_ms
        self._stamps = settings.stamps_append_time
        # Plain: a batch enters as it came, unless its timestamps lie in the future.
        self._plain = settings.takes_headers_word and not settings.stamps_append_time
        if self.segments:
            self._aim_roll()

    @property
    def name(self) -> str:
        return f"{self.topic}-{self.partition}"

    @property
    def active(self) -> Segment:
        return self._active

    @property
    def is_flying(self) -> bool:
        """A large write is under way, and `publish` would have to wait for it."""
        return self._flight is not None and not self._flight.is_over

    def wait_for_landing(self) -> None:
        """Return when no write is under way. How it went is for `publish` to find out."""
        if self._flight is not None:
            with suppress(Exception):
                self._flight.finish()

    # -- publish

    def publish(self) -> None:
        """Write what is staged, then let it be seen. OSError: nothing of it was, and its owners know."""
        if not self._batches:
            return
        segment = self._active
        producers = self.producers
        try:
            if self._flight is not None:
                self._land(self._flight)
            elif segment.file is None or segment.torn or self.failed is not None or self._large is not None:
                self._ready_file().write_at(segment.size, self._parts())
            else:
                segment.file.write_at(segment.size, (self._staged,))
            if producers.events:
                self._write_aborted(segment)
        except Exception as error:
            self._discard(error)  # whatever it was: else what comes next could be written in front of it
            raise
        segment.used = True
        position = segment.size
        lasts, positions, interval = segment.recent_lasts, segment.recent_positions, self._interval
        assert lasts is not None and positions is not None
        for last, size, max_timestamp, _ in self._batches:
            if max_timestamp > segment.max_timestamp:
                segment.max_timestamp = max_timestamp
                segment.max_timestamp_offset = last
            if position - segment.indexed_at > interval and size:
                segment.index_batch(last, position)
                if segment.is_full(self.settings.segment_index_bytes):
                    self._roll_size = 0
            if size:
                lasts.append(last)
                positions.append(position)
                position += size
        if len(lasts) > RECENT_MAX:
            del lasts[: -RECENT_MAX // 2], positions[: -RECENT_MAX // 2]
        tally = self.tally
        tally.bytes_in += position - segment.size
        tally.records_in += self.staged_end - self.end_offset
        segment.size = position
        self.end_offset = self.staged_end
        if producers.staged:
            producers.merge()
        self._staged = bytearray()
        self._large = None
        self._batches.clear()

    def _parts(self) -> Sequence[Bytes]:
        return (self._staged,) if self._large is None else (self._staged, self._large)

    def _ready_file(self) -> File:
        """The active file, with nothing in it behind what was published."""
        segment = self._active
        if self.failed is not None:
            raise OSError(EIO, "the disk failed before", self.directory)
        file = segment.file or segment.open()
        if segment.torn:
            file.truncate(segment.size)
            segment.torn = False
        return file

    def _land(self, flight: Flight) -> None:
        try:
            flight.finish()
        except OSError:
            raise
        except Exception as error:  # no memory in its thread, say
            raise OSError(EIO, f"the write ended with {error!r}", self.directory) from error
        finally:
            self._flight = None
            self._aim_size()
        if self.failed is not None:
            raise OSError(EIO, "the disk failed meanwhile", self.directory)

    def _write_aborted(self, segment: Segment) -> None:
        rows = self.producers.aborted_rows()
        if rows:
            file = self.disk.open(segment.path + ".txnindex", create=True)
            self.with_aborted.add(segment.base)  # not before: readers expect to find the file
            end = file.size()
            try:
                file.write_at(end - end % aborted.ROW_BYTES, [aborted.pack(rows)])
            except OSError:
                file.truncate(end)
                raise

    def _discard(self, error: Exception) -> None:
        """The write failed. Cut the file back (or, if even that fails, before the next write) and forget what was staged."""
        segment = self._active
        batches, self._batches = self._batches, []
        self._staged = bytearray()
        self._large = None
        self.producers.discard()
        self.staged_end = self.end_offset
        self._staged_size = segment.size
        # Until the cut is synced, a power cut could bring the failed bytes back: the segment must be looked at again.
        self.recovery_point = min(self.recovery_point, segment.base)
        self.refused += 1
        if not segment.size:
            segment.first_timestamp = -2
        self._aim_roll()
        segment.torn = True
        try:
            segment.open().truncate(segment.size)
            segment.torn = False
        except OSError:
            pass
        for _, _, _, owner in batches:
            if owner is not None:
                owner.fail(storage_error(error))

    def _take_off(self, large: Bytes, tower: Tower) -> None:
        """Begin to write this one batch, which is all that is staged: replies to what was staged before it would leave at
        the end of this turn, and not wait for a landing."""
        try:
            file = self._ready_file()
        except OSError as error:
            self._discard(error)
            raise storage_error(error)
        self._flight = self.disk.begin(file.write_at, self._active.size, (large,), over=tower.landed)
        self._roll_size = IN_FLIGHT
        tower.took_off()

    def _publish_or_refuse(self) -> None:
        try:
            self.publish()
        except OSError as error:
            raise storage_error(error)

    # -- roll

    def _first_batch(self, max_timestamp: int, now_ms: int) -> None:
        self._active.first_timestamp = max_timestamp
        self._active.created_ms = now_ms
        self._aim_roll()

    def _aim_roll(self) -> None:
        """Work out at what size, timestamp and offset the active segment is full, so that an append compares three numbers."""
        segment, settings = self._active, self.settings
        self._roll_offset = segment.base + RELATIVE_MAX
        self._aim_size()
        first = segment.load_first_timestamp()
        jitter = min(settings.segment_jitter_ms, settings.roll_ms)
        wait = settings.roll_ms - (self._random.randrange(jitter) if jitter else 0)
        if first == -2:
            self._roll_timestamp = LONG_MAX
        elif first >= 0:
            self._roll_timestamp = first + wait
        else:  # without timestamps in it, the segment's age is measured by the clock, at every append
            self._roll_timestamp = -LONG_MAX

    def _aim_size(self) -> None:
        if self._flight is not None:
            self._roll_size = IN_FLIGHT
        else:
            is_full = self._active.is_full(self.settings.segment_index_bytes)
            self._roll_size = 0 if is_full else self.settings.segment_bytes

    def _make_room(
        self, size: int, max_timestamp: int, first: int, last: int, now_ms: int, is_copy: bool = False
    ) -> None:
        """One of the three numbers was passed: roll, unless only a flight had to land, or the clock to be asked.

        A copy that is larger than a segment gets one of its own: segments were larger when its leader took it."""
        if self._flight is not None:
            self._publish_or_refuse()
            if (
                self._staged_size + size <= self._roll_size
                and max_timestamp <= self._roll_timestamp
                and last <= self._roll_offset
            ):
                return
        if size > self.settings.segment_bytes and not is_copy:
            raise KafkaError(Error.RECORD_LIST_TOO_LARGE, f"{size} bytes do not fit into a segment")
        segment = self._active
        if (
            self._roll_timestamp == -LONG_MAX
            and last <= self._roll_offset
            and self._staged_size + size <= self._roll_size
        ):
            if now_ms - segment.created_ms <= self.settings.roll_ms:
                return
        elif not self._staged_size and last <= self._roll_offset:
            return
        self._publish_or_refuse()
        try:
            self.roll(first)
        except OSError as error:
            raise storage_error(error)

    def roll(self, base: int | None = None) -> Segment:
        """Close the active segment and begin a new one at the log end (or at `base`, where the next batch will lie)."""
        base = self.end_offset if base is None else base
        old = self._active
        if not old.size and old.base == base:
            return old
        self.write_snapshot(base)
        segment = Segment(self.files, self.directory, base, 0)
        try:
            segment.begin(self._now_ms())
            old.retire()
        except OSError:
            segment.remove()
            raise
        self.fresh = True
        self.unsynced.append(old)
        self.segments.append(segment)
        self._take_active(segment)
        return segment

    def _take_active(self, segment: Segment) -> None:
        self._active = segment
        self._staged_size = segment.size
        self._aim_roll()

    def adopt(self, segments: list[Segment]) -> None:
        """These are the segments now; the last one takes appends."""
        self.segments = segments
        active = segments[-1]
        self.unsynced = [segment for segment in self.unsynced if segment is not active]
        if active.index is None:
            active.activate(self._now_ms())
        self._take_active(active)
        self.staged_end = self.end_offset

    # -- snapshots

    def snapshot_path(self, offset: int) -> str:
        return stem(self.directory, offset) + ".snapshot"

    def write_snapshot(self, offset: int) -> None:
        """What is known of producers below `offset`. Not synced here: `flush` does it before the recovery point passes."""
        if offset <= (self.snapshots[-1] if self.snapshots else self.start_offset):
            return
        data = self.producers.snapshot()
        file = self.disk.open(self.snapshot_path(offset), create=True)
        file.write_at(0, [data])
        file.truncate(len(data))
        self.snapshots.append(offset)


def storage_error(error: BaseException) -> KafkaError:
    refused = KafkaError(Error.KAFKA_STORAGE_ERROR, f"the disk refused: {error}")
    refused.__cause__ = error
    return refused
