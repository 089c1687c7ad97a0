"""Retention: which whole segments are too old, too many, or below the log start. First a plan, then the doing.

Age is the largest record timestamp of a segment, never the file's: records from the future pin their segment. Nothing at or
above the high watermark is taken, nor what is on its way to the file. The active segment counts too: if it is due and not
empty, an empty one is begun first.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

from ottla.log import trimming
from ottla.log.segment import NO_TIMESTAMP, Segment
from ottla.wire.errors import KafkaError

if TYPE_CHECKING:
    from ottla.log.log import Log


def plan(log: Log, now_ms: int, high_watermark: int) -> int:
    """How many of the oldest segments may go. Reads the last timestamps of segments not looked at before."""
    settings = log.settings
    due = _leading(log, high_watermark, lambda number: _is_below_start(log, number))
    if not settings.deletes:
        return due
    if settings.retention_bytes >= 0:
        due = max(due, _by_size(log, high_watermark, log.size - settings.retention_bytes))
    if settings.retention_ms >= 0:
        oldest = now_ms - settings.retention_ms
        due = max(due, _leading(log, high_watermark, lambda number: _timestamp(log.segments[number], now_ms) < oldest))
    return due


def _timestamp(segment: Segment, now_ms: int) -> int:
    """Without any timestamp in it a segment is as old as the time since we know it; one without records has no age."""
    if not segment.size:
        return NO_TIMESTAMP
    try:
        largest = segment.load_max_timestamp()
    except KafkaError:  # damaged, its time index too: what lies behind the damage may be young
        largest = NO_TIMESTAMP
    return largest if largest >= 0 else segment.created_ms or now_ms


def _is_below_start(log: Log, number: int) -> bool:
    return number + 1 < len(log.segments) and log.segments[number + 1].base <= log.start_offset


def _by_size(log: Log, high_watermark: int, excess: int) -> int:
    def fits(number: int) -> bool:
        nonlocal excess
        excess -= log.segments[number].size
        return excess >= 0

    return _leading(log, high_watermark, fits)


def _leading(log: Log, high_watermark: int, is_due: Callable[[int], bool]) -> int:
    """How many segments from the oldest on are due, end below the watermark, and are not an empty active one."""
    segments = log.segments
    for number, segment in enumerate(segments):
        is_last = number + 1 == len(segments)
        end = log.staged_end if is_last else segments[number + 1].base
        if end > high_watermark or (is_last and not segment.size) or not is_due(number):
            return number
    return len(segments)


async def perform(log: Log, count: int) -> int:
    """Delete the `count` oldest segments; bytes freed. The new log start is on disk before the first file goes.

    While compaction exchanges segments nothing is done: those counted may be parts of others by then."""
    if not count or log.arranging:
        return 0
    log.arranging = True
    try:
        return await _perform(log, count)
    finally:
        log.arranging = False


async def _perform(log: Log, count: int) -> int:
    if count == len(log.segments):
        log.publish()
        log.roll()
    first = log.segments[count]
    trimming.raise_start(log, first.base)
    if log.checkpoint is not None:
        await log.checkpoint()
    if log.failed is not None or first not in log.segments:
        return 0  # deleted meanwhile, or cut below: whatever bears these names now is not what was to go
    gone = [segment for segment in log.segments if segment.base < first.base]
    trimming.put_aside(log, gone)
    log.segments = [segment for segment in log.segments if segment.base >= first.base]
    log.drop_snapshots(lambda offset: offset >= first.base)
    # Once the log start is where the first segment begins it is no longer checkpointed: the names must be gone by then.
    await log.disk.away(trimming.sync_names, log)
    return sum(segment.size for segment in gone)
