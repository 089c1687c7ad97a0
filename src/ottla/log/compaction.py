"""Compaction of one log: when it is due, and a round of it.

A log is *clean* up to where the last round ended and *dirty* from there on. It is due when more than
`min.cleanable.dirty.ratio` of its bytes are dirty, or when its oldest dirty record is older than `max.compaction.lag.ms`. A
round looks at whole closed segments only. It never reaches the active one, nor the last stable offset, nor a segment with a
record younger than `min.compaction.lag.ms`, nor anything that is not synced.

The work itself is done elsewhere (`compacting`, in a child process), and what came of it is brought in by `swapping`. Where a
round ended is written down after its last exchange; after a crash before that, the same part is looked at again.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

from ottla.log.compacting import Active, Job, Outcome, Piece, Unreadable, compact
from ottla.log.segment import Segment
from ottla.log.settings import LONG_MAX
from ottla.log.swapping import swap
from ottla.world import Works

if TYPE_CHECKING:
    from ottla.log.log import Log


class Tools(NamedTuple):
    """What the broker's settings allow one round to use."""

    map_bytes: int
    chunk_bytes: int
    bytes_per_second: float


class Dirt(NamedTuple):
    """How a log looks to compaction."""

    first_dirty: int
    # Where a round would end: the base of a segment.
    upper: int
    clean_bytes: int
    dirty_bytes: int
    is_overdue: bool

    @property
    def ratio(self) -> float:
        whole = self.clean_bytes + self.dirty_bytes
        return self.dirty_bytes / whole if whole else 0.0


def survey(log: Log, now_ms: int, high_watermark: int) -> Dirt:
    """Reads the timestamps of closed segments, if settings make them matter, the first time they are asked for."""
    first_dirty = log.cleaned_to
    if not log.start_offset <= first_dirty <= log.end_offset:
        first_dirty = log.start_offset
    closed = log.segments[:-1]
    dirty = closed[log.segment_number(first_dirty) :]
    bound = min(log.last_stable_offset(high_watermark), log.active.base, log.recovery_point)
    bound = min([bound, *_too_young(log, dirty, now_ms)])
    upper = log.segments[log.segment_number(max(first_dirty, bound))].base
    clean_bytes = sum(segment.size for segment in closed if segment.base < first_dirty)
    dirty_bytes = sum(segment.size for segment in dirty if segment.base < upper)
    return Dirt(first_dirty, upper, clean_bytes, dirty_bytes, _is_overdue(log, dirty, now_ms))


def _too_young(log: Log, dirty: list[Segment], now_ms: int) -> list[int]:
    lag = log.settings.min_compaction_lag_ms
    young = (segment.base for segment in dirty if lag > 0 and segment.load_max_timestamp() > now_ms - lag)
    return [base for base, _ in zip(young, range(1), strict=False)]


def _is_overdue(log: Log, dirty: list[Segment], now_ms: int) -> bool:
    lag = log.settings.max_compaction_lag_ms
    if lag == LONG_MAX:
        return False
    return any(0 < segment.load_first_timestamp() < now_ms - lag for segment in dirty)


def is_due(log: Log, dirt: Dirt) -> bool:
    return dirt.dirty_bytes > 0 and (dirt.is_overdue or dirt.ratio > log.settings.min_cleanable_dirty_ratio)


def job_of(log: Log, dirt: Dirt, now_ms: int, tools: Tools) -> Job:
    settings = log.settings
    return Job(
        directory=log.directory,
        pieces=tuple(Piece(segment.base, segment.size) for segment in log.segments if segment.base < dirt.upper),
        first_dirty=dirt.first_dirty,
        upper=dirt.upper,
        producers={
            producer_id: Active(entry.batches[-1].last_offset if entry.batches else -1, entry.epoch)
            for producer_id, entry in log.producers.entries.items()
        },
        aborted_paths=tuple(segment.at(".txnindex") for segment in log.segments if segment.base in log.with_aborted),
        now_ms=now_ms,
        delete_retention_ms=settings.delete_retention_ms,
        segment_bytes=settings.segment_bytes,
        index_bytes=settings.segment_index_bytes,
        index_interval_bytes=settings.index_interval_bytes,
        inflated_max=settings.inflated_max,
        map_bytes=tools.map_bytes,
        chunk_bytes=tools.chunk_bytes,
        bytes_per_second=tools.bytes_per_second,
    )


async def perform(log: Log, dirt: Dirt, now_ms: int, tools: Tools, workshop: Works) -> list[Outcome]:
    """One round: the outcome of each step. Empty if the log changed under it, and all is as it was or partly compacted."""
    cuts, job, done = log.cuts, job_of(log, dirt, now_ms, tools), list[Outcome]()
    if log.checkpoint is not None:
        await log.checkpoint()  # the recovery point: a crash must not scan what is about to have holes
    while True:
        try:
            outcome = await workshop.toil(compact, log.disk, job)
        except (Unreadable, FileNotFoundError):
            if log.failed is not None or log.cuts != cuts or not _has_all(log, job):
                return []  # it read what was going away
            raise
        for cleaned in outcome.cleaned:
            if not await swap(log, cleaned, cuts):
                return []
        done.append(outcome)
        if outcome.next_base < 0:
            break
        job = job_of(log, dirt, now_ms, tools)
        job.end, job.next_base, job.transactions = done[0].end, outcome.next_base, outcome.transactions
    if log.cuts != cuts:
        return done  # what comes in the place of what was cut off is not compacted
    log.cleaned_to = done[0].end
    if log.checkpoint is not None:
        await log.checkpoint()
    return done


def _has_all(log: Log, job: Job) -> bool:
    """Whether no segment that was to be read has been deleted since."""
    bases = {segment.base for segment in log.segments}
    return all(piece.base in bases for piece in job.pieces if piece.base >= job.next_base)
