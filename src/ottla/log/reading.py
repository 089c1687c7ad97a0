"""Finding bytes to send: slices of whole batches, by index and file position, never by reading records.

`locate` answers from what is in memory, plus at most a few small reads of headers; on the loop it is told not to wait for a
disk, and `read` does where it must, off the loop. Whether the bytes found may be sent is another question: a slice is
`verified` when its CRCs were checked since this process opened the segment. If not, `verify` reads it off the loop and checks
it batch by batch. A batch that fails is CORRUPT_MESSAGE when it is the one
asked for, and otherwise the end of the slice; nothing is cut off or repaired here, and what lies behind it can be asked for.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from itertools import islice
from typing import TYPE_CHECKING, NamedTuple

from ottla.log import aborted
from ottla.log import index as rows
from ottla.log.scanning import sound_batches
from ottla.log.segment import BASE, DELTA, EPOCH, LENGTH, MAX_TIME, SCAN_BYTES, UNKNOWN, Segment, corrupt
from ottla.wire.errors import Error, KafkaError
from ottla.wire.records import PREFIX_BYTES, Record, crc_ok, iterate
from ottla.world import File, Slice

if TYPE_CHECKING:
    from ottla.log.log import Log


# Up to this size a range is read while it is looked for, instead of being left for the connection to send.
READ_AT_ONCE = 16 << 10
# As much of a cold range is read in when its first batches are looked for; the rest when it is sent.
BRING_IN_BYTES = 1 << 20
# After so many records of a batch others get their turn.
RECORDS_PER_TURN = 500
# So many headers are looked at, off the loop, before others get their turn.
HEADERS_PER_TURN = 1000

# Place and header of a batch.
Match = tuple[int, tuple[int, ...]]


class Located:
    """Whole batches that lie together in one segment: a `slice` of its file, or `data` if they were small enough to be
    read on the way. Neither where there is nothing to send."""

    __slots__ = ("data", "offset", "position", "segment", "size", "slice", "verified")

    def __init__(self, offset: int, segment: Segment, position: int, size: int, data: bytes = b"") -> None:
        self.offset = offset
        self.segment = segment
        self.position = position
        self.size = size
        self.slice: Slice | None = None
        self.data = data
        self.verified = True
        if size and not data:
            self.slice = Slice(segment.file or segment.open(), position, size)
            segment.used = True
            self.verified = position >= segment.trusted_from or segment.is_checked(position, position + size)

    def read(self) -> bytes:
        """The bytes of the batches."""
        return self.data if self.slice is None else self.slice.read()


class Found(NamedTuple):
    """A record found by its timestamp."""

    timestamp: int
    offset: int
    leader_epoch: int


def locate(log: Log, offset: int, bytes_max: int, bound: int, whole_first: bool, may_wait: bool = True) -> Located:
    """Batches from the one that holds `offset` on, below offset `bound`, in at most `bytes_max` bytes.

    With `whole_first` the first batch is given even if it alone is larger. Without `may_wait` the answer is `unknown`
    where the disk would have to be waited for.
    """
    end = log.end_offset
    if not log.start_offset <= offset <= end:
        raise KafkaError(
            Error.OFFSET_OUT_OF_RANGE, f"offset {offset} is outside of {log.start_offset} to {end} of {log.name}"
        )
    segment = log.active
    if offset >= bound:
        return Located(offset, segment, 0, 0)
    after, number = end, len(log.segments) - 1
    if offset < segment.base:
        number = log.segment_number(offset)
        segment, after = log.segments[number], log.segments[number + 1].base
        if not may_wait and not segment.is_warm:
            return unknown(offset, segment)
    if bytes_max <= READ_AT_ONCE and bound >= after:
        found = segment.small_range(offset, bytes_max, segment.size)
        if found is not None and found[1]:
            return Located(offset, segment, found[0], len(found[1]), found[1])
    if not may_wait and not _is_at_hand(segment, offset):
        return unknown(offset, segment)
    start = segment.position_of(offset)
    while start >= segment.size and number + 1 < len(log.segments):  # a hole between two segments, left by compaction
        number += 1
        segment, start = log.segments[number], 0
        after = log.segments[number + 1].base if number + 1 < len(log.segments) else end
    limit = segment.size if bound >= after else segment.position_of(bound)
    if limit <= start:
        return Located(offset, segment, start, 0)
    stop = segment.cut(start, bytes_max, limit)
    if stop <= start:
        stop = start + (segment.batch_size(start) if whole_first else 0)
    return Located(offset, segment, start, stop - start)


def unknown(offset: int, segment: Segment) -> Located:
    """Nothing can be said before the disk has been waited for."""
    located = Located(offset, segment, 0, 0)
    located.verified = False
    return located


def _is_at_hand(segment: Segment, offset: int) -> bool:
    """Whether the place of an offset can be found without waiting for the disk."""
    lasts = segment.recent_lasts
    return bool(lasts and offset > lasts[0]) or segment.open().is_cached(*_way_to(segment, offset))


def _way_to(segment: Segment, offset: int) -> tuple[int, int]:
    """Position and size of what is walked over to find an offset: from the indexed batch before it to the second after."""
    index = segment.read_index()
    slot = index.up_to_offset(offset - segment.base)
    start = index.entry(slot - 1)[1] if slot else 0
    end = index.entry(slot + 1)[1] + SCAN_BYTES if slot + 1 < len(index) else segment.size
    return start, min(end, segment.size) - start


async def read(log: Log, offset: int, bytes_max: int, bound: int, whole_first: bool) -> Located:
    if log.start_offset <= offset < bound:
        segment = log.segments[log.segment_number(offset)]
        await _warm(log, segment)
        if not _is_at_hand(segment, offset):
            start, size = _way_to(segment, offset)
            await log.disk.away(segment.open().bring_in, start, max(size, min(bytes_max, BRING_IN_BYTES)))
    located = locate(log, offset, bytes_max, bound, whole_first)
    return located if located.verified else await verify(log, located)


async def _warm(log: Log, segment: Segment) -> None:
    """Have a segment's index at hand."""
    if not segment.is_warm:
        segment.keep_index(await log.disk.away(segment.fetch_index))


async def verify(log: Log, located: Located) -> Located:
    """The same slice with its CRCs checked, cut before the first bad batch. CORRUPT_MESSAGE if that is the first one."""
    if located.verified or located.slice is None:
        return located
    segment, start, cuts = located.segment, located.position, log.cuts
    end = start + located.size
    good = await log.disk.away(_good_until, located.slice.file, start, end, located.offset)
    if good < end:
        log.note_corrupt(segment.base, good)
        if good == start:
            raise corrupt(segment, start)
    if log.cuts == cuts:
        segment.mark_checked(start, good)
    return Located(located.offset, segment, start, good - start)


def _good_until(file: File, start: int, end: int, offset: int) -> int:
    """Where the first bad batch begins, or `end`.

    Offsets lie outside the CRC. So where two batches overlap, the one that does not continue what came before is bad too,
    and so is a first batch that ends before the offset it was found by.
    """
    good, before, previous, previous_base, previous_last = start, -1, start, -1, -1
    for position, fields, batch in sound_batches(file, start, end):
        base, last = fields[BASE], fields[BASE] + fields[DELTA]
        if position == start and last < offset:
            return start
        if position > start and base <= previous_last:
            continues = previous_base == before + 1 if previous > start else previous_base <= offset
            return position if continues else previous
        before, previous, previous_base, previous_last = previous_last, position, base, last
        good = position + len(batch)
    return good


def bytes_from(log: Log, offset: int, bound: int) -> int:
    """How many bytes lie between two offsets, by file position, without reading records."""
    if offset >= bound:
        return 0
    offset, bound = max(offset, log.start_offset), min(bound, log.end_offset)
    first, last = log.segment_number(offset), log.segment_number(bound)
    segments = log.segments
    end = segments[last].size if bound == log.end_offset else segments[last].position_of(bound)
    if first == last:
        return end - segments[first].position_of(offset)
    between = sum(segment.size for segment in segments[first + 1 : last])
    return segments[first].size - segments[first].position_of(offset) + between + end


# -- transactions


def aborted_transactions(log: Log, first: int, end: int) -> list[aborted.AbortedTransaction]:
    """Aborted transactions that overlap the offsets from `first` to before `end`, by first offset."""
    found: list[aborted.AbortedTransaction] = []
    if not log.with_aborted:
        return found
    for segment in log.segments[log.segment_number(first) :]:
        if segment.base not in log.with_aborted:
            continue
        for row in aborted.from_marker(segment.open_aborted(), first):
            if row.first_offset < end:
                found.append(row)
            if row.last_stable_offset >= end:
                return sorted(found, key=lambda row: row.first_offset)
    return sorted(found, key=lambda row: row.first_offset)


def upper_bound(log: Log, located: Located) -> int:
    """An offset at or above everything in the slice: what the index says of the place where it ends."""
    segment = located.segment
    end = located.position + located.size
    if segment is log.active and end == segment.size:
        return log.end_offset
    index = segment.read_index()
    slot = index.up_to_position(end - 1)
    if slot < len(index):
        return segment.base + index.entry(slot)[0]
    number = log.segment_number(segment.base) + 1
    return log.segments[number].base if number < len(log.segments) else log.end_offset


# -- timestamps


async def offset_for_timestamp(log: Log, timestamp: int) -> Found | None:
    """The first record at or after `timestamp`."""
    for segment in list(log.segments):
        if segment.max_timestamp == UNKNOWN:
            await log.disk.away(segment.load_max_timestamp)
        if segment.max_timestamp < timestamp:
            continue
        await _warm(log, segment)
        entry = rows.last_time_before(await _times(log, segment), timestamp)
        relative = max(log.start_offset - segment.base, entry[1] if entry else 0)
        position = segment.read_index().position_before_offset(relative)
        while position < segment.size:
            position, match = await log.disk.away(_look_for, segment, position, timestamp, log.start_offset)
            if match is not None:
                found = await _find_in_batch(log, segment, *match, timestamp)
                if found is not None:
                    return found
    return None


async def max_timestamp(log: Log) -> Found | None:
    """The first record that has the largest timestamp of all; the first record if none has one. None if that was deleted and
    no other one that is found soon has the same."""
    for segment in list(log.segments):
        if segment.max_timestamp == UNKNOWN:
            await log.disk.away(segment.load_max_timestamp)
    segment = max(log.segments, key=lambda segment: segment.max_timestamp)
    largest, start_offset = segment.max_timestamp, log.start_offset
    await _warm(log, segment)
    relative = max(segment.max_timestamp_offset, start_offset) - segment.base
    position = segment.read_index().position_before_offset(relative)
    _, match = await log.disk.away(_look_for, segment, position, largest, start_offset)
    return await _find_in_batch(log, segment, *match, largest) if match is not None else None


def _look_for(segment: Segment, position: int, timestamp: int, start_offset: int) -> tuple[int, Match | None]:
    """Where to look next; and the first batch from here on that claims this timestamp or a later one and is not deleted, if it
    is among the next few. The time index leads near it, except where timestamps do not rise."""
    for at, fields in islice(segment.headers(position), HEADERS_PER_TURN):
        position = at + fields[LENGTH] + PREFIX_BYTES
        if fields[MAX_TIME] >= timestamp and fields[BASE] + fields[DELTA] >= start_offset:
            return position, (at, fields)
    return position, None


async def _times(log: Log, segment: Segment) -> bytes | bytearray:
    return segment.times if segment.times is not None else await log.disk.away(segment.read_times)


async def _find_in_batch(
    log: Log, segment: Segment, position: int, fields: tuple[int, ...], timestamp: int
) -> Found | None:
    size = fields[LENGTH] + PREFIX_BYTES
    data = await log.disk.away(segment.open().read_at, position, size)
    if len(data) != size or not crc_ok(data, 0, size):
        raise corrupt(segment, position)
    records = iterate(data, inflated_max=log.settings.inflated_max)
    some = await log.disk.away(_next_of, records)  # the first ones wait until all are unpacked
    while some:
        for record in some:
            if record.timestamp >= timestamp and record.offset >= log.start_offset:
                return Found(record.timestamp, record.offset, fields[EPOCH])
        await asyncio.sleep(0)
        some = _next_of(records)
    return None


def _next_of(records: Iterator[Record]) -> list[Record]:
    return list(islice(records, RECORDS_PER_TURN))
