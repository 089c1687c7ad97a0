"""The light half of compaction: new segments take the place of old ones, in the log and on the disk.

The names tell after a crash how far it was, by Kafka's rules (see `recovery`), and each step is synced before the next begins:

1. `.cleaned` becomes `.swap`. Once all files of a segment have that name, the exchange is decided.
2. The log's readers get the new segment; the old ones become `.deleted`, where whoever still reads them finds them.
3. `.swap` becomes the name for good. The old names must be gone by then, or a power cut could bring back what lies inside the
   new segment.

Syncs run off the loop. Renames do not: while they are thought about elsewhere, the topic could be deleted and made anew, and
they would hit another log's files. Nothing is exchanged in a log that was cut, deleted or shortened since the work began.
"""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

from ottla.log.compacting import Cleaned
from ottla.log.index import OffsetIndex
from ottla.log.segment import CLEANED, SUFFIXES, SWAP, Segment
from ottla.log.trimming import put_aside, sync_names

if TYPE_CHECKING:
    from ottla.log.log import Log

# The loop gets a turn after so many segments were renamed.
RENAMED_TOGETHER = 32


async def swap(log: Log, cleaned: Cleaned, cuts: int) -> bool:
    """Exchange segments; False if the log is not any more what the new one was made of."""
    if log.arranging or not _is_as_it_was(log, cleaned, cuts):
        return False
    log.arranging = True
    try:
        return await _swap(log, cleaned, cuts)
    finally:
        log.arranging = False


async def _swap(log: Log, cleaned: Cleaned, cuts: int) -> bool:
    segment = _made_of(log, cleaned)
    index = await log.disk.away(segment.fetch_index)
    if not _is_as_it_was(log, cleaned, cuts):
        return False
    _rename(log, segment, SWAP)
    await log.disk.away(sync_names, log)
    if not _is_as_it_was(log, cleaned, cuts):
        await _take_back(log, segment)
        return False
    gone = set(cleaned.replaces) - {cleaned.base}
    try:
        await _put_away(log, _take_in(log, segment, cleaned, index), segment, cleaned)
        await log.disk.away(sync_names, log)
        if log.failed is not None or segment not in log.segments:
            return True  # deleted or cut meanwhile; a start finds out by the names
        _rename(log, segment, "")
        segment.keep_index(index)
        log.drop_snapshots(lambda offset: offset not in gone)
        await log.disk.away(sync_names, log)
    except OSError as error:
        log.failed = log.failed or error  # what the names are is for the next start to see
        raise
    return True


def _is_as_it_was(log: Log, cleaned: Cleaned, cuts: int) -> bool:
    if log.failed is not None or log.cuts != cuts:
        return False
    number = log.segment_number(cleaned.base)
    there = tuple(segment.base for segment in log.segments[number : number + len(cleaned.replaces)])
    return there == cleaned.replaces and log.active.base not in there


def _made_of(log: Log, cleaned: Cleaned) -> Segment:
    segment = Segment(log.files, log.directory, cleaned.base, cleaned.size)
    segment.mark = CLEANED
    segment.max_timestamp, segment.max_timestamp_offset = cleaned.max_timestamp, cleaned.max_timestamp_offset
    segment.created_ms = log.now_ms()
    return segment


def _rename(log: Log, segment: Segment, mark: str) -> None:
    names = [segment.at(suffix) for suffix in SUFFIXES]
    log.files.drop_index(segment.at(".index"))
    segment.mark = mark
    for name, suffix in zip(names, SUFFIXES, strict=True):
        if suffix != ".txnindex" or log.disk.exists(name):
            log.disk.rename(name, segment.at(suffix))


async def _take_back(log: Log, segment: Segment) -> None:
    if log.failed is None:
        segment.remove()
        await log.disk.away(sync_names, log)


def _take_in(log: Log, segment: Segment, cleaned: Cleaned, index: OffsetIndex) -> list[Segment]:
    """The new segment is the one that is read from now on; those it replaces."""
    number = log.segment_number(cleaned.base)
    old = log.segments[number : number + len(cleaned.replaces)]
    log.segments[number : number + len(old)] = [segment]
    segment.keep_index(index)
    return old


async def _put_away(log: Log, old: list[Segment], segment: Segment, cleaned: Cleaned) -> None:
    for first in range(0, len(old), RENAMED_TOGETHER):
        if first:
            await asyncio.sleep(0)
        if log.failed is not None:
            return
        put_aside(log, old[first : first + RENAMED_TOGETHER])
        if not first and cleaned.has_aborted and segment in log.segments:
            log.with_aborted.add(segment.base)
