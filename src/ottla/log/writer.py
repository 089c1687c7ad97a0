"""The writing half of a log: segments in order, the newest of which takes appends.

`append` stages and `publish` writes. Everything that arrives in one turn of the loop is checked, numbered and put aside by
`append`; then one `publish` writes all of it with one call and only then moves what others can see: the end offset, index
entries, timestamps, producers, transactions. If the write fails, the file is cut back, everything staged is forgotten, and
the owner of each staged batch is told; nobody ever saw any of it.

    start_offset   first offset that may be read (records below it are deleted, or are about to be)
    end_offset     one past the last published record
    staged_end     one past the last staged record; equal to end_offset between two turns
    synced_end     every record below it survives a power cut
    recovery_point whole segments below it are on disk with all that belongs to them: a start after a crash scans from the
                   segment it lies in

A batch below 16 KiB is copied when it is staged, because the buffer it came in is reused; a larger one is written at once,
from where it lies, together with whatever was staged before it.

The order of things that make a crash harmless: a roll writes the producer snapshot and the indexes of the old segment without
waiting for the disk, and `flush` later syncs log, indexes, snapshot and directory *before* recovery_point passes them. After
a failed sync nothing is believed any more: the log refuses appends until the process starts anew.
"""

from __future__ import annotations

import random
from collections.abc import Callable
from errno import EIO
from struct import Struct
from struct import error as StructError
from typing import Protocol

from crc32c import crc32c

from ottla.log import aborted
from ottla.log.epochs import EpochCache
from ottla.log.files import OpenFiles
from ottla.log.index import RELATIVE_MAX
from ottla.log.producers import Completed, Origin, Producer, Producers, Sent
from ottla.log.segment import Segment, stem
from ottla.log.settings import LONG_MAX, LogSettings
from ottla.log.validation import check_header, invalid, prepare
from ottla.wire.errors import Error, KafkaError
from ottla.wire.records import (
    CONTROL_BIT,
    CRC_FROM,
    HEADER,
    HEADER_BYTES,
    MAGIC,
    PREFIX_BYTES,
    TRANSACTIONAL_BIT,
    Batch,
    ControlType,
    control_type,
    iterate,
    marker_epoch,
)
from ottla.world import Bytes, Disk

COPY_BELOW = 16 << 10
RECENT_MAX = 64

_header = HEADER.unpack_from
_stamp = Struct(">qii").pack_into


class Owner(Protocol):
    """Who wants to know that a staged batch was lost after all."""

    def fail(self, error: KafkaError) -> None: ...


class Appended:
    """Where a batch went. For a duplicate: where it went the first time, and with which append time."""

    __slots__ = ("append_time_ms", "duplicate", "first_offset", "last_offset")

    def __init__(self, first_offset: int, last_offset: int, append_time_ms: int = -1, duplicate: bool = False) -> None:
        self.first_offset = first_offset
        self.last_offset = last_offset
        self.append_time_ms = append_time_ms
        self.duplicate = duplicate


class Writer:
    __slots__ = (
        "_active",
        "_after_max_ms",
        "_batches",
        "_bytes_max",
        "_interval",
        "_now_ms",
        "_pieces",
        "_plain",
        "_random",
        "_roll_offset",
        "_roll_size",
        "_roll_timestamp",
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
        "topic",
        "topic_id",
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
        self._pieces: list[Bytes] = []
        self._batches: list[tuple[int, int, int, Owner | None]] = []
        self._staged_size = 0
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
        # Plain: no setting can make us change a batch or look into its records, unless its timestamps lie in the future.
        self._plain = (
            not settings.compacts
            and not settings.stamps_append_time
            and settings.compression_type == "producer"
            and settings.message_timestamp_before_max_ms == LONG_MAX
        )
        if self.segments:
            self._aim_roll()

    @property
    def name(self) -> str:
        return f"{self.topic}-{self.partition}"

    @property
    def active(self) -> Segment:
        return self._active

    # -- append

    def append(
        self,
        data: memoryview,
        origin: Origin,
        leader_epoch: int,
        now_ms: int,
        owner: Owner | None = None,
        *,
        transaction_version: int = 0,
        prepared: bool = False,
    ) -> Appended:
        """Stage one batch (or, from replication and raft, a row of them). KafkaError if it may not enter."""
        if origin is not Origin.CLIENT:
            return self._append_own(data, origin, leader_epoch, now_ms, owner, transaction_version)
        try:
            fields = _header(data)
        except StructError:
            raise KafkaError(Error.CORRUPT_MESSAGE, f"{len(data)} bytes are no record batch")
        base, length, _, magic, crc, attributes, delta, _, max_timestamp, producer_id, _, _, count = fields
        # One condition for nearly every batch there is: 0 to 4 are codecs, 16 to 20 the same inside a transaction.
        if not (
            self._plain
            and magic == 2
            and base == 0
            and 0 < count == delta + 1
            and (0 <= attributes <= 4 or 16 <= attributes <= 20)
            and length + 12 == len(data) <= self._bytes_max
            and max_timestamp - now_ms <= self._after_max_ms
            and crc32c(data[21:]) == crc
        ):
            data = self._look_closer(data, now_ms, prepared)
            fields = _header(data)
            _, length, _, _, _, _, delta, _, max_timestamp, producer_id, _, _, _ = fields
        if leader_epoch != self.epochs.latest or self.failed is not None:
            self._begin_epoch(leader_epoch)
        first, entry = self.staged_end, None
        if producer_id >= 0:
            entry = self._continue_producer(fields, first, transaction_version)
            if type(entry) is Sent:
                return self._duplicate(entry, owner)
        position, size, last = self._staged_size, length + 12, first + delta
        if position + size > self._roll_size or max_timestamp > self._roll_timestamp or last > self._roll_offset:
            self._make_room(size, max_timestamp, first, last, now_ms)
            position = self._staged_size
        if not position:
            self._first_batch(max_timestamp, now_ms)
        if entry is not None:
            self.producers.stage(producer_id, entry)  # type: ignore[arg-type]
        self.staged_end = last + 1
        self._staged_size = position + size
        if size < COPY_BELOW:
            piece = bytearray(data)
            _stamp(piece, 0, first, length, leader_epoch)
            self._pieces.append(piece)
            self._batches.append((last, size, max_timestamp, owner))
        else:
            self._write_now(data, first, last, length, max_timestamp, leader_epoch)
        return Appended(first, last, max_timestamp if self._stamps else -1)

    def _look_closer(self, data: memoryview, now_ms: int, prepared: bool) -> memoryview:
        """The batch as the topic stores it, if its settings want more than a look at the header; or say what is wrong."""
        if prepared:
            check_header(data, self.settings)
            return data
        return memoryview(prepare(data, self.settings, now_ms))

    def _continue_producer(self, fields: tuple[int, ...], first: int, transaction_version: int) -> Producer | Sent:
        _, _, _, _, _, attributes, delta, _, max_timestamp, producer_id, producer_epoch, sequence, _ = fields
        if sequence < 0:
            raise invalid(f"sequence {sequence} in a batch with a producer id")
        transactional = attributes & TRANSACTIONAL_BIT != 0
        return self.producers.data_batch(
            producer_id,
            producer_epoch,
            sequence,
            first,
            delta,
            max_timestamp,
            transactional,
            Origin.CLIENT,
            transaction_version,
        )

    def _duplicate(self, sent: Sent, owner: Owner | None) -> Appended:
        """Accepted before. If that was in this very turn, this answer hangs on the same write."""
        if sent.last_offset >= self.end_offset and owner is not None:
            self._batches.append((self._batches[-1][0], 0, -1, owner))
        append_time = sent.timestamp if self._stamps else -1
        return Appended(sent.first_offset, sent.last_offset, append_time, True)

    def _write_now(
        self, data: memoryview, first: int, last: int, length: int, max_timestamp: int, leader_epoch: int
    ) -> None:
        """A large batch is not copied: its offset is stamped where it lies, and it is written before this returns."""
        piece: Bytes = bytearray(data) if data.readonly else data
        _stamp(piece, 0, first, length, leader_epoch)
        self._pieces.append(piece)
        self._batches.append((last, length + 12, max_timestamp, None))
        self._publish_or_refuse()

    def _publish_or_refuse(self) -> None:
        try:
            self.publish()
        except OSError as error:
            raise storage_error(error)

    def _begin_epoch(self, leader_epoch: int) -> None:
        """The rare part of an append: the first one of a leadership, or one to a log whose disk failed."""
        if self.failed is not None:
            raise storage_error(self.failed)
        if leader_epoch > self.epochs.latest:
            self._publish_or_refuse()
            self.begin_epoch(leader_epoch)

    def begin_epoch(self, leader_epoch: int) -> None:
        """Note (epoch, log end) before any append of that epoch."""
        self.epochs.assign(leader_epoch, self.end_offset)

    # -- append: ours, and what others numbered

    def _append_own(
        self,
        data: memoryview,
        origin: Origin,
        leader_epoch: int,
        now_ms: int,
        owner: Owner | None,
        transaction_version: int,
    ) -> Appended:
        if self.failed is not None:
            raise storage_error(self.failed)
        if origin is Origin.COORDINATOR:
            self._begin_epoch(leader_epoch)
            batch = bytearray(data)
            _stamp(batch, 0, self.staged_end, len(batch) - PREFIX_BYTES, leader_epoch)
            return self._append_numbered(batch, origin, now_ms, owner, transaction_version)
        position, first, last = 0, -1, -1
        while position < len(data):
            size = int.from_bytes(data[position + 8 : position + 12], "big", signed=True) + PREFIX_BYTES
            if size < HEADER_BYTES or position + size > len(data):
                break  # a fetch response may end in the middle of a batch
            done = self._append_numbered(data[position : position + size], origin, now_ms, owner, transaction_version)
            first, last = (done.first_offset if first < 0 else first), done.last_offset
            position += size
        if first < 0:
            raise KafkaError(Error.CORRUPT_MESSAGE, "no whole batch to append")
        return Appended(first, last)

    def _append_numbered(
        self, data: Bytes, origin: Origin, now_ms: int, owner: Owner | None, transaction_version: int
    ) -> Appended:
        """Stage a batch whose offsets and epoch are already in it."""
        head = self._check_numbered(data)
        if head.leader_epoch > self.epochs.latest:
            self._publish_or_refuse()
            self.epochs.assign(head.leader_epoch, head.base_offset)
        entry, completed = None, None
        if head.producer_id >= 0:
            entry, completed = self.replay_producer(head, data, origin, transaction_version)
        size, last = head.size, head.last_offset
        if (
            self._staged_size + size > self._roll_size
            or head.max_timestamp > self._roll_timestamp
            or last > self._roll_offset
        ):
            self._make_room(size, head.max_timestamp, head.base_offset, last, now_ms)
        if not self._staged_size:
            self._first_batch(head.max_timestamp, now_ms)
        if entry is not None:
            self.producers.stage(head.producer_id, entry, completed)
        self._pieces.append(data if isinstance(data, bytearray) else bytes(data))
        self._batches.append((last, size, head.max_timestamp, owner))
        self._staged_size += size
        self.staged_end = last + 1
        return Appended(head.base_offset, last)

    def _check_numbered(self, data: Bytes) -> Batch:
        head = Batch._make(_header(data))
        if head.magic != MAGIC or crc32c(memoryview(data)[CRC_FROM:]) != head.crc:
            raise KafkaError(Error.CORRUPT_MESSAGE, f"batch at offset {head.base_offset} fails its CRC")
        if head.base_offset < self.staged_end or head.last_offset_delta < 0:
            raise KafkaError(
                Error.UNKNOWN_SERVER_ERROR, f"batch begins at {head.base_offset}, below the log end {self.staged_end}"
            )
        if head.size > self.settings.segment_bytes:
            raise KafkaError(Error.RECORD_LIST_TOO_LARGE, f"{head.size} bytes do not fit into a segment")
        return head

    def replay_producer(
        self, head: Batch, data: Bytes, origin: Origin = Origin.REPLICATION, transaction_version: int = 0
    ) -> tuple[Producer | None, Completed | None]:
        """What a batch with a producer id makes of that producer, and the transaction it completes."""
        if not head.attributes & CONTROL_BIT:
            entry = self.producers.data_batch(
                head.producer_id,
                head.producer_epoch,
                head.base_sequence,
                head.base_offset,
                head.last_offset_delta,
                head.max_timestamp,
                head.is_transactional,
                origin,
                transaction_version,
            )
            assert isinstance(entry, Producer)
            return entry, None
        record = next(iterate(data), None)
        if record is None:
            return None, None  # compaction took the marker and left the batch
        kind = control_type(record.key)
        if kind not in (ControlType.ABORT, ControlType.COMMIT):
            return None, None
        return self.producers.marker(
            head.producer_id,
            head.producer_epoch,
            marker_epoch(record.value),
            head.base_offset,
            record.timestamp,
            kind == ControlType.ABORT,
            origin,
            transaction_version,
        )

    # -- publish

    def publish(self) -> None:
        """Write what is staged, then let it be seen. OSError: nothing of it was, and its owners know."""
        if not self._pieces:
            return
        segment = self._active
        producers = self.producers
        try:
            if self.failed is not None:
                raise OSError(EIO, "the disk failed before", self.directory)
            file = segment.file or segment.open()
            if segment.torn:
                file.truncate(segment.size)
                segment.torn = False
            file.write_at(segment.size, self._pieces)
            if producers.events:
                self._write_aborted(segment)
        except OSError as error:
            self._discard(error)
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
        segment.size = position
        self.end_offset = self.staged_end
        if producers.staged:
            producers.merge()
        self._pieces.clear()
        self._batches.clear()

    def _write_aborted(self, segment: Segment) -> None:
        rows = self.producers.aborted_rows()
        if rows:
            self.with_aborted.add(segment.base)
            file = self.disk.open(segment.path + ".txnindex", create=True)
            end = file.size()
            try:
                file.write_at(end - end % aborted.ROW_BYTES, [aborted.pack(rows)])
            except OSError:
                file.truncate(end)
                raise

    def _discard(self, error: OSError) -> None:
        """The write failed. Cut the file back (or, if even that fails, before the next write) and forget what was staged."""
        segment = self._active
        batches, self._batches = self._batches, []
        self._pieces = []
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

    # -- roll

    def _first_batch(self, max_timestamp: int, now_ms: int) -> None:
        self._active.first_timestamp = max_timestamp
        self._active.created_ms = now_ms
        self._aim_roll()

    def _aim_roll(self) -> None:
        """Work out at what size, timestamp and offset the active segment is full, so that an append compares three numbers."""
        segment, settings = self._active, self.settings
        self._roll_offset = segment.base + RELATIVE_MAX
        self._roll_size = 0 if segment.is_full(settings.segment_index_bytes) else settings.segment_bytes
        first = segment.load_first_timestamp()
        jitter = min(settings.segment_jitter_ms, settings.segment_ms)
        wait = settings.segment_ms - (self._random.randrange(jitter) if jitter else 0)
        if first == -2:
            self._roll_timestamp = LONG_MAX
        elif first >= 0:
            self._roll_timestamp = first + wait
        else:  # without timestamps in it, the segment's age is measured by the clock, at every append
            self._roll_timestamp = -LONG_MAX

    def _make_room(self, size: int, max_timestamp: int, first: int, last: int, now_ms: int) -> None:
        """One of the three numbers was passed: roll, unless it was only the clock that had to be asked."""
        if size > self.settings.segment_bytes:
            raise KafkaError(Error.RECORD_LIST_TOO_LARGE, f"{size} bytes do not fit into a segment")
        segment = self._active
        if (
            self._roll_timestamp == -LONG_MAX
            and last <= self._roll_offset
            and self._staged_size + size <= self._roll_size
        ):
            if now_ms - segment.created_ms <= self.settings.segment_ms:
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
