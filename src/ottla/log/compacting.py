"""The heavy half of compaction: find the newest offset of every key, and write segments without what it supersedes.

This is a plain function over a Disk that runs in a child process. It reads closed segments and writes `.cleaned` files beside
them; nothing of the log changes until the node swaps those in (`swapping`). By Kafka's rules:

- A record goes if a newer one with its key lies in the part that was mapped; a record without key goes too. A tombstone, which
  is a record without value, stays until the *delete horizon* of its batch has passed. The horizon is written into the batch
  (attribute bit 6, in place of the base timestamp) when compaction first sees the tombstone: now + `delete.retention.ms`.
- Records of aborted transactions go. The marker of a transaction stays while any batch of it was still there in this round;
  then it gets a delete horizon as well, and goes when that has passed.
- A batch keeps its base offset, its last offset and its producer's numbers, whatever is left of it. Without records it goes
  too, unless it is the last of a producer that is still known (its sequence would be forgotten), or ends the round.
- A batch of which nothing goes is copied as it is.

Beyond Kafka's rules, the last batch of every new segment stays, even empty: so a new segment spans exactly what it replaces,
and after a power cut in the middle of a swap it is known which old segments must not come back.

Keys are mapped whole up to 48 bytes, and beyond that by a digest that is longer than those, so that the two never meet. Kafka
maps MD5 digests, of which anybody can make two alike for different keys, and then compaction would lose a record. What the
map may take is counted as Python's dictionary takes it; when it is full the round ends there, and the next one goes on.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Iterator
from dataclasses import dataclass, field
from hashlib import blake2b
from typing import NamedTuple

from ottla.log import aborted
from ottla.log.files import OpenFiles
from ottla.log.index import RELATIVE_MAX
from ottla.log.rewriting import Entry, emptied, entries, with_horizon, without
from ottla.log.scanning import sound_batches
from ottla.log.segment import (
    ATTRIBUTES,
    BASE,
    BASE_TIME,
    CLEANED,
    COUNT,
    DELTA,
    MAX_TIME,
    PRODUCER,
    PRODUCER_EPOCH,
    SWAP,
    Segment,
    stem,
)
from ottla.wire.errors import KafkaError
from ottla.wire.records import CONTROL_BIT, DELETE_HORIZON_BIT, TRANSACTIONAL_BIT, ControlType, control_type, iterate
from ottla.world import Bytes, Disk, Pace

# Longer keys are mapped by their digest, which is longer than any key that is not.
KEY_BYTES_MAX = 48
# What a key takes in the map beside its own bytes: two objects, and their place in a dictionary that has just grown and in the
# list of newest offsets.
ENTRY_BYTES = 158
WRITE_BYTES = 1 << 20
# The node swaps in what is there when this much is written: room on the disk is short-lived.
WRITTEN_MAX = 1 << 30

Fields = tuple[int, ...]


class Piece(NamedTuple):
    """A closed segment."""

    base: int
    size: int


class Active(NamedTuple):
    """A producer that the log knows: its last data (-1 if a new epoch has none yet), and its epoch."""

    last_offset: int
    epoch: int


class Unreadable(Exception):
    """A batch that cannot be read: the partition cannot be compacted."""


@dataclass(slots=True)
class Transactions:
    """Which transactions the walk is in the middle of."""

    committed: set[int] = field(default_factory=set)
    aborted: dict[int, aborted.AbortedTransaction] = field(default_factory=dict)
    # Aborted ones of which a batch was seen.
    seen: set[int] = field(default_factory=set)
    # Where those begin that were not reached yet.
    reached: int = -1


@dataclass(slots=True)
class Job:
    """One round: all that the child must know."""

    directory: str
    pieces: tuple[Piece, ...]
    first_dirty: int
    # Nothing from here on is looked at; the base of a segment.
    upper: int
    producers: dict[int, Active]
    aborted_paths: tuple[str, ...]
    now_ms: int
    delete_retention_ms: int
    segment_bytes: int
    index_bytes: int
    index_interval_bytes: int
    inflated_max: int
    map_bytes: int
    chunk_bytes: int
    bytes_per_second: float
    # Where to go on: the offset up to which the first step mapped, the first base not done, and open transactions.
    end: int = -1
    next_base: int = 0
    transactions: Transactions = field(default_factory=Transactions)


class Cleaned(NamedTuple):
    """A new segment that lies there as `.cleaned`, synced."""

    base: int
    replaces: tuple[int, ...]
    size: int
    max_timestamp: int
    max_timestamp_offset: int
    has_aborted: bool


@dataclass(slots=True)
class Outcome:
    """What one step of a round made. `next_base` is -1 when the round is over."""

    end: int
    next_base: int = -1
    cleaned: list[Cleaned] = field(default_factory=list)
    transactions: Transactions = field(default_factory=Transactions)
    bytes_read: int = 0
    bytes_written: int = 0
    records_read: int = 0
    records_kept: int = 0
    map_used: float = 0.0


def compact(disk: Disk, job: Job) -> Outcome:
    """Write new segments. Unreadable where a batch cannot be decoded; OSError where a file is gone or the disk is full."""
    _remove_remains(disk, job.directory)
    pace = Pace(job.bytes_per_second)
    rows = _aborted_rows(disk, job)
    survey = Survey(disk, job, rows, pace)
    newest, end, used = survey.newest()
    outcome = Outcome(end, transactions=job.transactions, map_used=used)
    rewriter = Rewriter(disk, job, rows, newest, survey.survivors(end), outcome, pace)
    for group in grouped(disk, job, end):
        if outcome.bytes_written >= WRITTEN_MAX:
            outcome.next_base = group[0].base
            break
        outcome.cleaned.append(rewriter.rewrite(group))
    disk.sync_directory(job.directory)
    return outcome


def _remove_remains(disk: Disk, directory: str) -> None:
    """Of a round that was given up. Those that a start could take for the whole of a swap go first."""
    for mark in (SWAP, CLEANED):
        remains = [name for name in disk.names(directory) if name.endswith(mark)]
        for name in remains:
            disk.remove(f"{directory}/{name}")
        if remains:
            disk.sync_directory(directory)


def _aborted_rows(disk: Disk, job: Job) -> list[aborted.AbortedTransaction]:
    rows = [row for path in job.aborted_paths for row in aborted.unpack(disk.read(path))]
    return sorted(rows, key=lambda row: row.first_offset)


def batches(disk: Disk, job: Job, piece: Piece, pace: Pace) -> Iterator[tuple[int, Fields, memoryview]]:
    """Every batch of a segment, with its position; Unreadable if one is damaged."""
    file, position = disk.open(stem(job.directory, piece.base) + ".log"), 0
    try:
        for position, fields, batch in sound_batches(file, 0, piece.size, job.chunk_bytes):
            pace.spend(len(batch))
            yield position, fields, batch
            position += len(batch)
    finally:
        file.close()
    if position != piece.size:
        raise Unreadable(f"no sound batch at position {position} of segment {piece.base}")


def grouped(disk: Disk, job: Job, end: int) -> Iterator[list[Piece]]:
    """Neighbours that together are no larger than one segment may be, so that many small ones become few."""
    pieces = [piece for piece in job.pieces if job.next_base <= piece.base < end]
    after = [piece.base for piece in pieces[1:]] + [job.upper]
    group: list[Piece] = []
    size = index_size = times_size = 0
    for piece, following in zip(pieces, after, strict=False):
        path = stem(job.directory, piece.base)
        index, times = (disk.size(path + s) if disk.exists(path + s) else 0 for s in (".index", ".timeindex"))
        fits = (
            size + piece.size <= job.segment_bytes
            and index_size + index <= job.index_bytes
            and times_size + times <= job.index_bytes
            and (not piece.size or not group or following - 1 - group[0].base <= RELATIVE_MAX)
        )
        if group and not fits:
            yield group
            group, size, index_size, times_size = [], 0, 0, 0
        group.append(piece)
        size, index_size, times_size = size + piece.size, index_size + index, times_size + times
    if group:
        yield group


# -- transactions


class Decisions:
    """Follows transactions along the log: what of them may go, and which rows an index still needs."""

    def __init__(self, state: Transactions, rows: list[aborted.AbortedTransaction], inflated_max: int) -> None:
        self._state = state
        self._rows = [row for row in rows if row.first_offset > state.reached]
        self._next = 0
        self._inflated_max = inflated_max
        # Rows of markers that stay, for the index of the segment that is being written.
        self.kept: list[aborted.AbortedTransaction] = []

    def _reach(self, last_offset: int) -> None:
        state, rows = self._state, self._rows
        while self._next < len(rows) and rows[self._next].first_offset <= last_offset:
            state.aborted.setdefault(rows[self._next].producer_id, rows[self._next])
            self._next += 1
        state.reached = max(state.reached, last_offset)

    def of_data(self, fields: Fields) -> bool:
        """Whether a batch belongs to an aborted transaction."""
        self._reach(fields[BASE] + fields[DELTA])
        if not fields[ATTRIBUTES] & TRANSACTIONAL_BIT:
            return False
        if fields[PRODUCER] in self._state.aborted:
            self._state.seen.add(fields[PRODUCER])
            return True
        self._state.committed.add(fields[PRODUCER])
        return False

    def of_marker(self, fields: Fields, batch: memoryview) -> bool:
        """Whether nothing of its transaction was there any more."""
        self._reach(fields[BASE] + fields[DELTA])
        record = next(iterate(batch, inflated_max=self._inflated_max), None)
        if record is None:
            return True
        kind, producer, state = control_type(record.key), fields[PRODUCER], self._state
        if kind == ControlType.COMMIT:
            had_data = producer in state.committed
            state.committed.discard(producer)
            return not had_data
        if kind != ControlType.ABORT:
            return False
        row, had_data = state.aborted.pop(producer, None), producer in state.seen
        state.seen.discard(producer)
        if row is not None and had_data:
            self.kept.append(row)
        return row is None or not had_data


# -- the map


def mapped(key: bytes) -> bytes:
    return key if len(key) <= KEY_BYTES_MAX else blake2b(key, digest_size=KEY_BYTES_MAX + 1).digest()


class Survivors:
    """Where the newest record of each key lies. Of most batches that tells without a look inside whether all of their records
    stay, or none."""

    def __init__(self, offsets: list[int], start: int, end: int, intricate: set[int]) -> None:
        self._offsets, self._start, self.end, self._intricate = offsets, start, end, intricate

    def of(self, fields: Fields) -> int | None:
        """How many records of a batch stay; None if only a look inside can tell."""
        base, after = fields[BASE], fields[BASE] + fields[DELTA] + 1
        if base < self._start or after > self.end or base in self._intricate:
            return None
        return bisect_left(self._offsets, after) - bisect_left(self._offsets, base)


class Survey:
    """Walks the dirty part once and notes the newest offset of every key."""

    def __init__(self, disk: Disk, job: Job, rows: list[aborted.AbortedTransaction], pace: Pace) -> None:
        self._disk, self._job, self._pace = disk, job, pace
        self._start = max(job.first_dirty, job.next_base)
        later = [row for row in rows if row.last_offset >= self._start]
        self._decisions = Decisions(Transactions(), later, job.inflated_max)
        self._newest: dict[bytes, int] = {}
        self._key_bytes = 0
        # Bases of batches with tombstones, or of aborted transactions: how many of their records are newest does not say all.
        self._intricate: set[int] = set()
        # Every record lies between the first and the last offset of its batch.
        self._is_orderly = True

    def newest(self) -> tuple[dict[bytes, int], int, float]:
        """The map, the offset up to which it speaks, and how full it is."""
        job = self._job
        limit = job.upper if job.end < 0 else job.end
        after = [piece.base for piece in job.pieces[1:]] + [job.upper]
        end = self._start
        for piece, following in zip(job.pieces, after, strict=False):
            if following <= self._start or piece.base >= limit:
                continue
            end, is_full = self._segment(piece, end, limit)
            if is_full:
                return self._newest, end, 1.0
            end = min(following, limit)
        return self._newest, end, self._bytes / job.map_bytes

    def survivors(self, end: int) -> Survivors:
        """What is known of the records below `end`, up to which the map speaks."""
        if not self._is_orderly:
            return Survivors([], end, end, set())
        return Survivors(sorted(self._newest.values()), self._start, end, self._intricate)

    @property
    def _bytes(self) -> int:
        return self._key_bytes + len(self._newest) * ENTRY_BYTES

    def _segment(self, piece: Piece, end: int, limit: int) -> tuple[int, bool]:
        for _, fields, batch in batches(self._disk, self._job, piece, self._pace):
            last = fields[BASE] + fields[DELTA]
            if fields[BASE] >= limit:
                return end, False
            if last < self._start:
                continue
            if self._bytes >= self._job.map_bytes:
                return end, True
            self._batch(fields, batch)
            end = last + 1
        return end, False

    def _batch(self, fields: Fields, batch: memoryview) -> None:
        try:
            if fields[ATTRIBUTES] & CONTROL_BIT:
                self._decisions.of_marker(fields, batch)
                return
            if self._decisions.of_data(fields):
                self._intricate.add(fields[BASE])
                return
            newest, start, base, last = self._newest, self._start, fields[BASE], fields[BASE] + fields[DELTA]
            for offset, _, key, is_tombstone, _, _ in entries(fields, batch, self._job.inflated_max)[1]:
                if is_tombstone:
                    self._intricate.add(base)
                if not base <= offset <= last:
                    self._is_orderly = False
                if key is not None and offset >= start:
                    key = key if len(key) <= KEY_BYTES_MAX else mapped(key)
                    if key not in newest:
                        self._key_bytes += len(key)
                    newest[key] = offset
        except KafkaError as error:
            raise unreadable(fields, error) from None


def unreadable(fields: Fields, error: KafkaError) -> Unreadable:
    return Unreadable(f"the batch at offset {fields[BASE]}: {error.message}")


# -- writing


class Rewriter:
    """Copies groups of segments into one new segment each, without what may go."""

    def __init__(
        self,
        disk: Disk,
        job: Job,
        rows: list[aborted.AbortedTransaction],
        newest: dict[bytes, int],
        survivors: Survivors,
        outcome: Outcome,
        pace: Pace,
    ) -> None:
        self._disk, self._job, self._newest, self._end = disk, job, newest, survivors.end
        self._survivors = survivors
        self._outcome, self._pace = outcome, pace
        self._files = OpenFiles(disk)
        self._decisions = Decisions(outcome.transactions, rows, job.inflated_max)
        self._segment: Segment
        self._parts: list[Bytes] = []
        self._waiting = 0

    def rewrite(self, group: list[Piece]) -> Cleaned:
        self._segment = segment = Segment(self._files, self._job.directory, group[0].base, 0)
        segment.mark = CLEANED
        segment.begin(self._job.now_ms)
        self._decisions.kept = []
        last = next((piece for piece in reversed(group) if piece.size), None)
        for piece in group:
            for position, fields, batch in batches(self._disk, self._job, piece, self._pace):
                self._outcome.bytes_read += len(batch)
                try:
                    self._batch(fields, batch, piece is last and position + len(batch) == piece.size)
                except KafkaError as error:
                    raise unreadable(fields, error) from None
            self._write()  # what is still to be written lies in the chunk it was read in
        self._finish()
        bases = tuple(piece.base for piece in group)
        times = (segment.max_timestamp, segment.max_timestamp_offset)
        return Cleaned(group[0].base, bases, segment.size, *times, bool(self._decisions.kept))

    def _batch(self, fields: Fields, batch: memoryview, ends_segment: bool) -> None:
        attributes, last = fields[ATTRIBUTES], fields[BASE] + fields[DELTA]
        horizon = fields[BASE_TIME] if attributes & DELETE_HORIZON_BIT else None
        is_control = bool(attributes & CONTROL_BIT)
        is_over = self._decisions.of_marker(fields, batch) if is_control else self._decisions.of_data(fields)
        goes = is_over and (not is_control or (horizon is not None and horizon <= self._job.now_ms))
        self._outcome.records_read += fields[COUNT]
        if not goes and fields[BASE] >= self._end:
            self._add(fields, batch, fields[MAX_TIME], fields[COUNT])
        elif not goes and fields[COUNT] and is_control:
            self._keep_marker(fields, batch, is_over and horizon is None)
        elif not goes and self._filter(fields, batch, horizon):
            pass
        elif ends_segment or last + 1 == self._job.upper or self._ends_producer(fields):
            self._add(fields, emptied(fields) if fields[COUNT] else batch, fields[MAX_TIME], 0)

    def _ends_producer(self, fields: Fields) -> bool:
        """Whether the log's memory of a producer comes from this batch."""
        known = self._job.producers.get(fields[PRODUCER]) if fields[PRODUCER] >= 0 else None
        if known is None:
            return False
        if known.last_offset >= 0:
            return fields[BASE] + fields[DELTA] == known.last_offset
        return bool(fields[ATTRIBUTES] & CONTROL_BIT) and fields[PRODUCER_EPOCH] == known.epoch

    @property
    def _horizon(self) -> int:
        return self._job.now_ms + self._job.delete_retention_ms

    def _keep_marker(self, fields: Fields, batch: memoryview, begins_to_wait: bool) -> None:
        if not begins_to_wait:
            self._add(fields, batch, fields[MAX_TIME], fields[COUNT])
            return
        data, found = entries(fields, batch, self._job.inflated_max)
        self._add(fields, *with_horizon(fields, data, found, self._horizon), fields[COUNT])

    def _filter(self, fields: Fields, batch: memoryview, horizon: int | None) -> bool:
        """Write what stays of a batch. False if nothing does."""
        survivors = self._survivors.of(fields)
        if survivors == 0:
            return False
        if survivors == fields[COUNT]:
            self._add(fields, batch, fields[MAX_TIME], survivors)
            return True
        data, found = entries(fields, batch, self._job.inflated_max)
        keeps_tombstones = horizon is None or self._job.now_ms < horizon
        kept = [entry for entry in found if self._stays(entry, keeps_tombstones)]
        if not kept:
            return False
        if horizon is None and any(entry.is_tombstone for entry in kept):
            self._add(fields, *with_horizon(fields, data, kept, self._horizon), len(kept))
        elif len(kept) == len(found):
            self._add(fields, batch, fields[MAX_TIME], len(kept))
        else:
            self._add(fields, *without(fields, data, kept), len(kept))
        return True

    def _stays(self, entry: Entry, keeps_tombstones: bool) -> bool:
        offset, key = entry.offset, entry.key
        if offset >= self._end:
            return True
        if key is None or (entry.is_tombstone and not keeps_tombstones):
            return False
        return offset >= self._newest.get(key if len(key) <= KEY_BYTES_MAX else mapped(key), -1)

    def _add(self, fields: Fields, batch: Bytes, max_timestamp: int, records: int) -> None:
        self._outcome.records_kept += records
        self._outcome.bytes_written += len(batch)
        self._pace.spend(len(batch))
        self._segment.add(fields[BASE] + fields[DELTA], len(batch), max_timestamp, self._job.index_interval_bytes)
        self._parts.append(batch)
        self._waiting += len(batch)
        if self._waiting >= WRITE_BYTES:
            self._write()

    def _write(self) -> None:
        if self._parts:
            self._segment.open().write_at(self._segment.size - self._waiting, self._parts)
            self._parts, self._waiting = [], 0

    def _finish(self) -> None:
        segment, rows = self._segment, self._decisions.kept
        segment.index_time()
        segment.settle()
        suffixes = [".index", ".timeindex"]
        if rows:
            suffixes.append(".txnindex")
            self._disk.open(segment.at(".txnindex"), create=True).write_at(0, [aborted.pack(rows)])
        segment.open().sync()
        for suffix in suffixes:
            self._disk.open(segment.at(suffix)).sync()
        segment.close()
