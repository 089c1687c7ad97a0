"""Appends: what enters a log, checked and numbered.

Everything that arrives in one turn of the loop is staged by `append`, and one `publish` (next door, in `staging`) writes it.
A batch below 16 KiB is copied when it is staged, because the buffer it came in is reused. A larger one is written from where
it lies, together with whatever was staged before it; or, from 256 KiB on and if nothing was, in a flight.

Batches of clients get their offsets here, and so do those of this broker's coordinators; what comes from a leader or from the
metadata quorum has them already.
"""

from __future__ import annotations

from struct import Struct
from struct import error as StructError

from crc32c import crc32c

from ottla.log.producers import CLIENT, UNGUARDED, Completed, Guard, Marker, Origin, Producer, Sent
from ottla.log.staging import Owner, Staging, storage_error
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
    end_marker,
    iterate,
    marker_epoch,
)
from ottla.world import Bytes

_header = HEADER.unpack_from
_stamp = Struct(">qii").pack_into


class Appended:
    """Where a batch went. For a duplicate: where it went the first time, and with which append time."""

    __slots__ = ("append_time_ms", "duplicate", "first_offset", "last_offset")

    def __init__(self, first_offset: int, last_offset: int, append_time_ms: int = -1, duplicate: bool = False) -> None:
        self.first_offset = first_offset
        self.last_offset = last_offset
        self.append_time_ms = append_time_ms
        self.duplicate = duplicate


class Writer(Staging):
    __slots__ = ()

    def append(
        self,
        data: memoryview,
        origin: Origin,
        leader_epoch: int,
        now_ms: int,
        owner: Owner | None = None,
        prepared: bool = False,
        transaction_version: int = 0,
        guard: Guard | None = UNGUARDED,
    ) -> Appended:
        """Stage one batch (or, from replication and raft, a row of them). KafkaError if it may not enter. One in a
        transaction comes with the `guard` that it was given, or None if the transaction was open already."""
        if origin is not CLIENT:
            return self._append_own(data, origin, leader_epoch, now_ms, owner, transaction_version, guard)
        try:
            fields = _header(data)
        except StructError:
            raise KafkaError(Error.CORRUPT_MESSAGE, f"{len(data)} bytes are no record batch")
        base, length, _, magic, crc, attributes, delta, first_time, max_timestamp, producer_id, _, _, count = fields
        # One condition for nearly every batch there is: 0 to 4 are codecs, 16 to 20 the same inside a transaction.
        if not (
            self._plain
            and magic == 2
            and base == 0
            and 0 < count == delta + 1
            and (0 <= attributes <= 4 or 16 <= attributes <= 20)
            and length + 12 == len(data) <= self._bytes_max
            and first_time <= max_timestamp <= now_ms + self._after_max_ms
            and crc32c(data[21:]) == crc
        ):
            data = self._look_closer(data, now_ms, prepared)
            fields = _header(data)
            _, length, _, _, _, _, delta, _, max_timestamp, producer_id, _, _, _ = fields
        if leader_epoch != self.epochs.latest or self.failed is not None:
            self._begin_epoch(leader_epoch)
        first, entry = self.staged_end, None
        if producer_id >= 0:
            entry = self._continue_producer(fields, first, transaction_version, guard)
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
        if size < self._copies_below:
            staged = self._staged
            at = len(staged)
            staged += data
            _stamp(staged, at, first, length, leader_epoch)
            self._batches.append((last, size, max_timestamp, owner))
        else:
            self._write_large(data, first, last, length, max_timestamp, leader_epoch, owner)
        return Appended(first, last, max_timestamp if self._stamps else -1)

    def _look_closer(self, data: memoryview, now_ms: int, prepared: bool) -> memoryview:
        """The batch as the topic stores it, if its settings want more than a look at the header; or say what is wrong."""
        if prepared:
            check_header(data, self.settings)
            return data
        return memoryview(prepare(data, self.settings, now_ms))

    def _continue_producer(
        self, fields: tuple[int, ...], first: int, transaction_version: int, guard: Guard | None
    ) -> Producer | Sent:
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
            CLIENT,
            transaction_version,
            guard,
        )

    def _duplicate(self, sent: Sent, owner: Owner | None) -> Appended:
        """Accepted before. If that was in this very turn, this answer hangs on the same write."""
        if sent.last_offset >= self.end_offset and owner is not None:
            self._batches.append((self._batches[-1][0], 0, -1, owner))
        # As in Kafka, whatever kind of timestamp the topic has.
        return Appended(sent.first_offset, sent.last_offset, sent.timestamp, True)

    def _write_large(
        self,
        data: memoryview,
        first: int,
        last: int,
        length: int,
        max_timestamp: int,
        leader_epoch: int,
        owner: Owner | None,
    ) -> None:
        """A large batch is not copied: its offset is stamped where it lies, and its write ends or begins here."""
        piece: Bytes = bytearray(data) if data.readonly else data
        _stamp(piece, 0, first, length, leader_epoch)
        self._large = piece
        if length < self.disk.flies_from or self.tower is None or self._batches:
            self._batches.append((last, length + 12, max_timestamp, None))
            self._publish_or_refuse()
        else:
            self._batches.append((last, length + 12, max_timestamp, owner))
            self._take_off(piece, self.tower)

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
        guard: Guard | None,
    ) -> Appended:
        if self.failed is not None:
            raise storage_error(self.failed)
        if origin is Origin.COORDINATOR:
            return self._append_made(data, leader_epoch, now_ms, owner, transaction_version, guard)
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

    def _append_made(
        self,
        data: memoryview,
        leader_epoch: int,
        now_ms: int,
        owner: Owner | None,
        transaction_version: int,
        guard: Guard | None,
    ) -> Appended:
        """Number and stage a batch that this broker made a moment ago: nothing can have happened to it since."""
        self._begin_epoch(leader_epoch)
        head = Batch._make(_header(data))
        first, last, size = self.staged_end, self.staged_end + head.last_offset_delta, len(data)
        entry, completed = None, None
        if head.producer_id >= 0:
            head = head._replace(base_offset=first)
            entry, completed = self.replay_producer(head, data, Origin.COORDINATOR, transaction_version, guard)
        self._stage_numbered(data, first, last, head.max_timestamp, now_ms, owner)
        _stamp(self._staged, len(self._staged) - size, first, size - PREFIX_BYTES, leader_epoch)
        if entry is not None:
            self.producers.stage(head.producer_id, entry, completed, head.is_control)
        return Appended(first, last)

    def _append_numbered(
        self,
        data: Bytes,
        origin: Origin,
        now_ms: int,
        owner: Owner | None,
        transaction_version: int,
        guard: Guard | None = UNGUARDED,
    ) -> Appended:
        """Stage a batch whose offsets and epoch are already in it."""
        is_copy = origin is Origin.REPLICATION
        head = self._check_numbered(data, is_copy)
        if head.leader_epoch > self.epochs.latest:
            self._publish_or_refuse()
            self.epochs.assign(head.leader_epoch, head.base_offset)
        entry, completed = None, None
        if head.producer_id >= 0:
            entry, completed = self.replay_producer(head, data, origin, transaction_version, guard)
        self._stage_numbered(data, head.base_offset, head.last_offset, head.max_timestamp, now_ms, owner, is_copy)
        if entry is not None:
            self.producers.stage(head.producer_id, entry, completed, head.is_control)
        return Appended(head.base_offset, head.last_offset)

    def _stage_numbered(
        self,
        data: Bytes,
        first: int,
        last: int,
        max_timestamp: int,
        now_ms: int,
        owner: Owner | None,
        is_copy: bool = False,
    ) -> None:
        size = len(data)
        if (
            self._staged_size + size > self._roll_size
            or max_timestamp > self._roll_timestamp
            or last > self._roll_offset
        ):
            self._make_room(size, max_timestamp, first, last, now_ms, is_copy)
        if not self._staged_size:
            self._first_batch(max_timestamp, now_ms)
        self._staged += data
        self._batches.append((last, size, max_timestamp, owner))
        self._staged_size += size
        self.staged_end = last + 1

    def append_marker(self, marker: Marker, leader_epoch: int, now_ms: int, owner: Owner | None = None) -> Appended:
        """Stage the end of a transaction. Thousands of them come in a second, so nothing looks at the batch it becomes."""
        self._begin_epoch(leader_epoch)
        producer_id, epoch, coordinator_epoch, committed, transaction_version = marker
        first = self.staged_end
        entry, completed = None, None
        if producer_id >= 0:
            decision = (coordinator_epoch, first, now_ms, not committed)
            entry, completed = self.producers.marker(
                producer_id, epoch, *decision, Origin.COORDINATOR, transaction_version
            )
        batch = end_marker(
            committed,
            now_ms,
            producer_id=producer_id,
            producer_epoch=epoch,
            coordinator_epoch=coordinator_epoch,
            leader_epoch=leader_epoch,
            base_offset=first,
        )
        self._stage_numbered(batch, first, first, now_ms, now_ms, owner)
        if entry is not None:
            self.producers.stage(producer_id, entry, completed, is_marker=True)
        return Appended(first, first)

    def _check_numbered(self, data: Bytes, is_copy: bool) -> Batch:
        head = Batch._make(_header(data))
        if head.magic != MAGIC or crc32c(memoryview(data)[CRC_FROM:]) != head.crc:
            raise KafkaError(Error.CORRUPT_MESSAGE, f"batch at offset {head.base_offset} fails its CRC")
        if head.base_offset < self.staged_end or head.last_offset_delta < 0:
            raise KafkaError(
                Error.UNKNOWN_SERVER_ERROR, f"batch begins at {head.base_offset}, below the log end {self.staged_end}"
            )
        if head.size > self.settings.segment_bytes and not is_copy:
            raise KafkaError(Error.RECORD_LIST_TOO_LARGE, f"{head.size} bytes do not fit into a segment")
        return head

    def replay_producer(
        self,
        head: Batch,
        data: Bytes,
        origin: Origin = Origin.REPLICATION,
        transaction_version: int = 0,
        guard: Guard | None = UNGUARDED,
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
                guard,
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
