"""Taking records away: from the end when another leader's log disagrees, from the start by retention or on request.

Files are never removed at once. They get the suffix `.deleted`, because somebody may be reading them and because removing
a large file takes long; `sweep` hands out those whose delay is over, to be removed off the loop. A start after a crash
removes them too.

The log start rises, and is on disk in its checkpoint, before the first file goes: after a crash in the middle, segments that
are still there lie below the log start and are invisible. The recovery point falls, and is on disk, before the log is cut:
otherwise a crash could leave new records below a recovery point that was true only of the old ones. So does the log start,
where the cut is below it: a start would take a log that ends there for one that lost its files, and begin it anew.

No sync is under way while epochs are written here, or both would write one file.

What needs room on the disk is done before anything is taken away: a cut that fails for want of it has changed nothing, and can
be tried again. If it fails later, nobody knows what the log holds, and it is closed.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING

from ottla.log import aborted
from ottla.log import index as rows
from ottla.log.segment import DELETED, NO_TIMESTAMP, SUFFIXES, UNKNOWN, Segment
from ottla.wire.errors import Error, KafkaError
from ottla.world import File

if TYPE_CHECKING:
    from ottla.log.log import Log


async def truncate_to(log: Log, offset: int) -> bool:
    """Nothing at or above `offset` stays. False if there was nothing."""
    log.publish()
    if offset >= log.end_offset:
        log.epochs.truncate_end(offset)
        await log.at_rest()
        write_epochs(log)
        return False
    await lower_recovery_point(log, offset)
    if offset < log.segments[0].base:
        truncate_fully_and_start_at(log, offset)
        return True
    keep = log.segment_number(offset) + 1
    kept, removed = log.segments[:keep], log.segments[keep:]
    position = shorten_indexes(kept[-1], offset)
    with _closed_by_failure(log):
        cut_segment(log, kept[-1], position, offset)
        log.end_offset = offset
        log.adopt(kept)
        put_aside(log, removed)
        log.drop_snapshots(lambda at: at <= offset)
        log.epochs.truncate_end(offset)
        log.reload_producers()
    await log.disk.away(_make_durable, log, log.active.open())
    await log.at_rest()
    write_epochs(log)
    return True


@contextmanager
def _closed_by_failure(log: Log) -> Iterator[None]:
    try:
        yield
    except OSError as error:
        log.failed = error
        raise


def _make_durable(log: Log, file: File) -> None:
    """A cut that is not on disk could bring back, after a crash, what contradicts the records that came since."""
    try:
        file.sync()
    except OSError as error:
        log.failed = error
        raise
    sync_names(log)


def sync_names(log: Log) -> None:
    """Blocks. A failed sync is not believed the next time either: whatever the names are after a crash, this log ends here."""
    try:
        log.disk.sync_directory(log.directory)
    except OSError as error:
        log.failed = error
        raise


def truncate_fully_and_start_at(log: Log, offset: int) -> None:
    """An empty log that begins at `offset`: a follower whose whole log the leader no longer has."""
    assert log.is_at_rest, f"{log.name} is being synced"
    log.publish()
    log.epochs.forget()
    log.cuts += 1
    log.cleaned_to = -1
    log.recovery_point, log.synced_end = min(log.recovery_point, offset), min(log.synced_end, offset)
    with _closed_by_failure(log):
        log.producers.clear()
        log.drop_snapshots(lambda at: False)
        put_aside(log, log.segments)
        log.start_offset = log.end_offset = offset
        fresh = Segment(log.files, log.directory, offset, 0)
        fresh.begin(log.now_ms())
        log.disk.sync_directory(log.directory)  # where the log begins is told by this name alone
        log.adopt([fresh])


def write_epochs(log: Log) -> None:
    if log.epochs.unwritten:
        log.epochs.write()


async def lower_recovery_point(log: Log, offset: int) -> None:
    """When this returns the log is at rest, and the cut follows without a wait in between. A sync that begins or ends while
    this waits for the disk speaks of records that are about to go, and would vouch for those that come in their place."""
    await log.at_rest()
    while _lower(log, offset) and log.checkpoint is not None:
        await log.checkpoint()
        await log.at_rest()


def _lower(log: Log, offset: int) -> bool:
    """Forget whatever is known of records above; whether the checkpoints say something else."""
    log.cuts += 1
    log.cleaned_to = min(log.cleaned_to, offset)
    lowered = log.recovery_point > offset or log.start_offset > offset
    log.start_offset = min(log.start_offset, offset)
    log.recovery_point = min(log.recovery_point, offset)
    log.synced_end = min(log.synced_end, offset)
    return lowered


def shorten_indexes(segment: Segment, offset: int) -> int:
    """They end before the batch that holds `offset`, on the disk too; where that batch begins in the log. A log that is longer
    than its indexes is in order, so nothing is lost if there is no room for them or nothing follows."""
    position = segment.position_of(offset)
    relative = offset - segment.base
    index, times = segment.read_index(), segment.read_times()
    before = segment.index, segment.times
    segment.index = index.below(relative)
    segment.times = bytearray(times[: rows.times_below(times, relative)])
    segment.index_settled = segment.times_settled = 0
    try:
        segment.settle()
    except OSError:
        segment.index, segment.times = before
        raise
    return position


def cut_segment(log: Log, segment: Segment, position: int, offset: int) -> None:
    """Everything goes from the batch at `position` on, which is the one that holds `offset`."""
    if segment.base in log.with_aborted:
        path = segment.at(".txnindex")
        log.disk.open(path).truncate(aborted.bytes_below(log.disk.read(path), offset))
    segment.open().truncate(position)
    segment.size = position
    segment.trusted_from = min(segment.trusted_from, position)
    segment.checked = [(low, min(high, position)) for low, high in segment.checked or () if low < position]
    log.files.drop_index(segment.at(".index"))
    reopen(segment)


def reopen(segment: Segment) -> None:
    """Forget what only held for the longer segment, so that taking it as the active one works it out again."""
    segment.index = segment.times = segment.recent_lasts = segment.recent_positions = segment.ends = None
    segment.max_timestamp = UNKNOWN
    segment.max_timestamp_offset = segment.base
    if not segment.size:
        segment.first_timestamp = UNKNOWN
    largest, at = segment.load_max_timestamp(), segment.max_timestamp_offset
    index = segment.read_index()
    for _, fields in segment.headers(index.position_before_offset(at - segment.base)):
        if fields[8] > largest:
            largest, at = fields[8], fields[0] + fields[6]
    segment.max_timestamp, segment.max_timestamp_offset = largest if segment.size else NO_TIMESTAMP, at


def put_aside(log: Log, segments: list[Segment]) -> None:
    """Rename a segment's files so that no start finds them; they are removed after `file.delete.delay.ms`."""
    due = log.now_ms() + log.settings.file_delete_delay_ms
    waiting = log.deleted or []
    for segment in segments:
        log.with_aborted.discard(segment.base)
        if segment in log.unsynced:
            log.unsynced.remove(segment)
        segment.close()
        log.files.drop_index(segment.at(".index"))
        for suffix in SUFFIXES:
            aside = segment.path + suffix + DELETED
            if log.disk.exists(segment.at(suffix)):
                log.disk.rename(segment.at(suffix), aside)
                waiting.append((due, aside))
        segment.mark = DELETED  # whoever still looks at it finds it there
    log.deleted = waiting or None


def sweep(log: Log, now_ms: int) -> list[str]:
    """Paths whose time has come; whoever asks removes them, off the loop."""
    waiting = log.deleted or []
    log.deleted = [(due, path) for due, path in waiting if due > now_ms] or None
    return [path for due, path in waiting if due <= now_ms]


def raise_start(log: Log, offset: int) -> bool:
    """Records below `offset` are gone for readers from now on."""
    if offset <= log.start_offset:
        return False
    log.start_offset = offset
    log.epochs.truncate_start(offset)
    return True


def delete_records(log: Log, before: int, high_watermark: int) -> int:
    """DeleteRecords: the new log start. -1 means the high watermark. Segments go with the next retention check."""
    target = high_watermark if before == -1 else before
    if target > high_watermark or target < 0:
        raise KafkaError(
            Error.OFFSET_OUT_OF_RANGE, f"cannot delete up to {target}: the high watermark is {high_watermark}"
        )
    raise_start(log, target)
    return log.start_offset
