"""Putting right what was damaged on the disk, with the bytes that another replica has for the same offsets.

Replicas have the same batches byte for byte, unless one of them was compacted meanwhile. So a gap, which is where the sound
batches of a file stop, is filled only by batches that fit exactly: the first has the offset that is missing, all were written
in the epoch that was noted for their offsets, and behind the last the file goes on with the offset that follows. Nothing
moves, no index changes, nothing is cut off. A crash in between leaves damage where damage was.

Only below the recovery point: above it a batch that is half written would be the end of the log at the next start.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

from ottla.log.damage import Walk
from ottla.log.index import OffsetIndex
from ottla.log.scanning import sound_batches
from ottla.log.segment import BASE, Segment
from ottla.wire.errors import KafkaError
from ottla.wire.records import batches, crc_ok
from ottla.world import Bytes, File

if TYPE_CHECKING:
    from ottla.log.log import Log


class Gap(NamedTuple):
    """A place where sound batches stop, the offset that is missing there, and how often the log had been cut by then."""

    segment: Segment
    position: int
    offset: int
    cuts: int


async def find(log: Log, offset: int) -> Gap | None:
    """The first gap in the way of whoever wants to read `offset`; None if there is none, or none that may be filled."""
    segment, cuts = log.segments[log.segment_number(offset)], log.cuts
    index = segment.read_index() if segment.is_warm else OffsetIndex()
    walk = Walk(segment.open(), segment.size, segment.base, index, log.recovery_point)
    found = await log.disk.away(walk.first_gap, offset)
    if found is None or found[1] >= log.recovery_point:
        return None
    return Gap(segment, *found, cuts)


async def fill(log: Log, gap: Gap, data: Bytes, bound: int) -> int:
    """Write what fits of another replica's batches into a gap; how many bytes that were. `bound` is the offset below which
    both have the same records."""
    segment = gap.segment
    if not _is_as_it_was(log, gap):
        return 0
    file, bound = segment.open(), min(bound, log.recovery_point)
    size = await log.disk.away(_fitting, log, gap, file, _following(log, segment), data, bound)
    if not size or not _is_as_it_was(log, gap):
        return 0
    file.write_at(gap.position, (memoryview(data)[:size],))
    log.uncleanable = False
    try:
        await log.disk.away(file.sync)
    except OSError as error:
        log.failed = error  # what else the disk has lost with it, nobody knows
        raise
    return size


def _is_as_it_was(log: Log, gap: Gap) -> bool:
    """Not cut, closed or compacted since. Between this and a write nothing may be waited for."""
    return log.failed is None and log.cuts == gap.cuts and gap.segment in log.segments


def _following(log: Log, segment: Segment) -> int:
    """The offset that comes after a segment."""
    number = log.segments.index(segment) + 1
    return log.segments[number].base if number < len(log.segments) else log.end_offset


def _fitting(log: Log, gap: Gap, file: File, following: int, data: Bytes, bound: int) -> int:
    """How many bytes of `data` fill the gap. Blocks."""
    end = gap.offset
    try:
        for at, batch in batches(data):
            is_ours = batch.base_offset == end and batch.leader_epoch == log.epochs.epoch_for_offset(end)
            end = batch.next_offset
            if not is_ours or end > bound or not crc_ok(data, at, batch.size):
                return 0
            if _goes_on(file, gap.segment.size, gap.position + at + batch.size, end, following):
                return at + batch.size
    except KafkaError:
        pass  # what came is no batch
    return 0


def _goes_on(file: File, size: int, position: int, end: int, following: int) -> bool:
    """Whether a batch with the offset `end` is at this position, or the segment ends there and the next begins with it."""
    if position >= size:
        return position == size and end == following
    after = next(sound_batches(file, position, size), None)
    return after is not None and after[1][BASE] == end
