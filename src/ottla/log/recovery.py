"""Opening a log: after a clean stop by looking at its tail, after a crash by scanning what was not synced.

Below the recovery point everything was synced and is believed. Segments from the one that holds the recovery point on are
scanned batch by batch with their CRCs. The first batch that is not right ends the log: the segment is cut there, later
segments go. (Below the recovery point it does not: see `damage`.) Indexes, transaction indexes, leader epochs and producers
are built again from the same scan. A log whose recovery point is its end, with settled indexes and a snapshot there, needs no
scan at all, also after a crash.

Files of interrupted work are dealt with first, by Kafka's rules: `.deleted` and `.cleaned` go; a `.swap` at or above the
smallest `.cleaned` goes, because its compaction was not complete; other `.swap` files replace the segments they span.

What recovery removes or cuts is synced before it is over. Otherwise the next crash could bring back old files beside new
records that contradict them.
"""

from __future__ import annotations

from contextlib import closing, suppress
from dataclasses import dataclass
from typing import TYPE_CHECKING
from zlib import crc32

from ottla.log import aborted
from ottla.log.damage import Walk
from ottla.log.files import OpenFiles
from ottla.log.index import OffsetIndex
from ottla.log.producers import BadSnapshot
from ottla.log.scanning import sound_batches
from ottla.log.segment import ATTRIBUTES, BASE, DELTA, EPOCH, LENGTH, MAX_TIME, NO_TIMESTAMP, PRODUCER, Segment
from ottla.wire.errors import Error, KafkaError
from ottla.wire.records import CONTROL_BIT, PREFIX_BYTES, Batch
from ottla.world import Disk

if TYPE_CHECKING:
    from ottla.log.log import Log


# Above every offset.
EVERYTHING = 2**63


class OldFormat(KafkaError):
    """Records that are sound, but written in a format of before 2017. They are not ours to cut off: the node says which file
    it is, and does not start."""

    def __init__(self, message: str) -> None:
        super().__init__(Error.UNSUPPORTED_FOR_MESSAGE_FORMAT, message)


@dataclass(slots=True)
class Report:
    """What opening a log took."""

    scanned_bytes: int = 0
    truncated_bytes: int = 0
    segments_removed: int = 0
    indexes_rebuilt: int = 0

    @property
    def repaired(self) -> bool:
        return bool(self.truncated_bytes or self.segments_removed or self.indexes_rebuilt)


def load(log: Log, clean: bool, recovery_point: int, start_offset: int) -> Report:
    report = Report()
    names = _tidy(log)
    has_epochs = log.epochs.load()
    log.start_offset = start_offset
    log.snapshots = sorted(int(name[:20]) for name in names if name.endswith(".snapshot") and name[:20].isdigit())
    segments = _without_strays(log, _segments(log, names), report)
    if not segments:
        segments = [_begin(log, start_offset)]
    if not has_epochs or (not log.epochs.entries and (clean or recovery_point)):
        _find_epochs(log, segments)
    end = _tail(segments[-1], names)
    settled = end is not None and end == recovery_point and (end in log.snapshots or end <= start_offset)
    scan = end is None or not (clean or settled)
    if end is None or scan:
        clean = False
        end = _recover(log, segments, recovery_point, report)
    else:
        _rebuild_missing(log, segments, names, report)
        _mend_aborted(log, segments, report)
    if end < log.start_offset and clean and end == recovery_point:
        log.start_offset = 0  # all that the stop left is there: it is the checkpoint of the start that is damaged
    if end < log.start_offset:
        segments, end = _begin_anew(log, segments, report), log.start_offset
    log.start_offset = max(log.start_offset, segments[0].base)
    log.end_offset = end
    log.synced_end = log.recovery_point = end if clean or settled else min(recovery_point, end)
    _keep_snapshots(log, segments, end)
    log.adopt(segments)
    _trim_epochs(log)
    if clean and not log.snapshots:
        log.producers.clear()  # closed before there were any producers, or snapshots
    elif not scan:
        rebuild_producers(log)
    log.fresh = not (clean or settled)
    for segment in segments:
        segment.close()  # most partitions are idle: a file is opened again when somebody comes
    return report


def ends_before(disk: Disk, files: OpenFiles, directory: str, offset: int) -> bool:
    """Whether a log that was closed cleanly is shorter than that by now, or its end cannot be believed. Looks at its tail."""
    try:
        last = max((name[:20] for name in disk.names(directory) if name.endswith(".log")), default=None)
        if last is None:
            return True
        segment = Segment(files, directory, int(last), disk.size(f"{directory}/{last}.log"))
        with closing(segment):
            return segment.end_from_tail() < offset
    except (OSError, KafkaError):
        return True


def _begin_anew(log: Log, segments: list[Segment], report: Report) -> list[Segment]:
    """Files were taken away under us, and the log ends below its start: nothing of it may be read any more."""
    report.segments_removed += len(segments)
    _remove(log, segments)
    log.epochs.clear()
    log.producers.clear()
    return [_begin(log, log.start_offset)]


def _find_epochs(log: Log, segments: list[Segment]) -> None:
    """The file is damaged, or lost with records that will not be scanned: every batch says in which epoch it was written."""
    for segment in segments:
        with suppress(KafkaError):  # a damaged batch hides the rest of its segment
            for _, fields in segment.headers(0):
                log.epochs.note(fields[EPOCH], fields[BASE])


def _trim_epochs(log: Log) -> None:
    log.epochs.truncate_end(log.end_offset)
    log.epochs.truncate_start(log.start_offset)
    if log.epochs.unwritten:
        log.epochs.write()


# -- files


def _tidy(log: Log) -> list[str]:
    """Finish or undo interrupted deletions and compactions; the names that remain."""
    disk, directory = log.disk, log.directory
    names = disk.names(directory)
    odd = [name for name in names if name.endswith((".deleted", ".cleaned", ".swap", ".tmp"))]
    odd = [name for name in odd if name[:20].isdigit() or name.endswith(".tmp")]
    if not odd:
        return names
    cleaned = [int(name[:20]) for name in odd if name.endswith(".cleaned")]
    smallest = min(cleaned, default=2**63)
    swaps = [name for name in odd if name.endswith(".swap") and int(name[:20]) < smallest]
    incomplete = [name for name in odd if name.endswith(".swap") and name not in swaps]
    for name in incomplete:
        disk.remove(f"{directory}/{name}")
    if incomplete:  # or, without the .cleaned beside them, they would be taken for complete after another crash
        disk.sync_directory(directory)
    for name in odd:
        if not name.endswith(
            (".swap", ".checkpoint.deleted")
        ):  # the metadata log's snapshots are looked after elsewhere
            disk.remove(f"{directory}/{name}")
    if swaps:
        _finish_swap(log, swaps)
    disk.sync_directory(directory)
    return disk.names(directory)


def _finish_swap(log: Log, swaps: list[str]) -> None:
    """A compaction had chosen its new segments: remove the old ones they span, then give them their names."""
    disk, directory = log.disk, log.directory
    low, high = 2**63, -1
    for name in swaps:
        if name.endswith(".log.swap"):
            base = int(name[:20])
            end = base
            for _, fields, _ in sound_batches(file := disk.open(f"{directory}/{name}"), 0, file.size()):
                end = fields[BASE] + fields[DELTA] + 1
            low, high = min(low, base), max(high, end)
    for name in disk.names(directory):
        if not name.endswith(".swap") and name[:20].isdigit() and low <= int(name[:20]) < high:
            disk.remove(f"{directory}/{name}")
    disk.sync_directory(directory)  # or an old one that is inside a new one could come back
    for name in swaps:
        disk.rename(f"{directory}/{name}", f"{directory}/{name.removesuffix('.swap')}")


def _segments(log: Log, names: list[str]) -> list[Segment]:
    bases = {name[:20] for name in names if name.endswith(".log")}
    for name in names:
        if name.endswith((".index", ".timeindex", ".txnindex")) and name[:20] not in bases:
            log.disk.remove(f"{log.directory}/{name}")
    log.with_aborted = {int(name[:20]) for name in names if name.endswith(".txnindex") and name[:20] in bases}
    sizes = ((int(base), log.disk.size(f"{log.directory}/{base}.log")) for base in sorted(bases))
    segments = [Segment(log.files, log.directory, base, size) for base, size in sizes]
    for segment in segments:
        segment.created_ms = log.now_ms()
    return segments


def _without_strays(log: Log, segments: list[Segment], report: Report) -> list[Segment]:
    """Without empty segments where the log does not end: a roll, or a cut, that did not come off left them."""
    kept = segments[:1]
    for segment in segments[1:]:
        if not segment.size and _is_stray(log, kept[-1], segment, segment is segments[-1]):
            report.segments_removed += 1
            _remove(log, [segment])
        else:
            kept.append(segment)
    return kept


def _is_stray(log: Log, previous: Segment, segment: Segment, is_last: bool) -> bool:
    try:
        end = previous.end_from_tail()
    except KafkaError:
        return False  # a scan will find out
    return segment.base < end or (is_last and _breaks(log, segment, end))


def _begin(log: Log, offset: int) -> Segment:
    segment = Segment(log.files, log.directory, offset, 0)
    segment.begin(log.now_ms())
    if offset:
        # From now on only the name of this file says where the log starts: a checkpoint leaves out what a name says.
        log.disk.sync_directory(log.directory)
    return segment


def _remove(log: Log, segments: list[Segment]) -> None:
    for segment in segments:
        log.with_aborted.discard(segment.base)
        segment.remove()
    log.disk.sync_directory(log.directory)


def _tail(segment: Segment, names: list[str]) -> int | None:
    """The log end by the last segment's tail, or None if its index or its last headers cannot be believed."""
    if f"{segment.base:020d}.index" not in names and segment.size:
        return None
    try:
        return segment.end_from_tail()
    except KafkaError:
        return None


def _rebuild_missing(log: Log, segments: list[Segment], names: list[str], report: Report) -> None:
    """An index file that is not there is built again, also below the recovery point."""
    have = set(names)
    for segment in segments:
        if segment.size and not {f"{segment.base:020d}.index", f"{segment.base:020d}.timeindex"} <= have:
            _scan(log, segment, report, EVERYTHING, with_producers=False)
            segment.retire()
            log.unsynced.append(segment)


# -- scanning


def _recover(log: Log, segments: list[Segment], recovery_point: int, report: Report) -> int:
    """Scan from the segment that holds the recovery point on, or the log start; the log end.

    Below the log start there may be holes: a power cut while retention was at work took some names and brought others back.
    """
    first, known = 0, max(recovery_point, log.start_offset)
    while first + 1 < len(segments) and segments[first + 1].base <= known:
        first += 1
    _rebuild_missing(log, segments[:first], log.disk.names(log.directory), report)
    _mend_aborted(log, segments[:first], report)
    if first:
        _cut_garbage(segments[first - 1], segments[first].base, report)
    log.segments = segments[:first]
    log.end_offset = end = segments[first].base
    log.drop_snapshots(lambda offset: offset <= end)
    rebuild_producers(log)
    number = first
    while number < len(segments):
        segment = segments[number]
        if (
            number > first and segment.base < end
        ):  # a stray that overlaps the log, whose next segment goes on at its end
            _drop(log, segments, number, number + 1, report)
            continue
        if number > first and _breaks(log, segment, end):
            _drop(log, segments, number, len(segments), report)
            break
        log.write_snapshot(segment.base)
        end, was_cut = _scan(log, segment, report, recovery_point)
        number += 1
        if was_cut:
            _drop(log, segments, number, len(segments), report)
        if number < len(segments):
            segment.retire()
            log.unsynced.append(segment)
    return end


def _cut_garbage(segment: Segment, after: int, report: Report) -> None:
    """The rest of a write that failed on a full disk may be back behind the last batch of a segment that was synced before."""
    end, offset = 0, segment.base
    try:
        for position, fields in segment.headers(segment.last_indexed()):
            end, offset = position + fields[LENGTH] + PREFIX_BYTES, fields[BASE] + fields[DELTA] + 1
    except KafkaError:
        if offset == after:  # all records are there: what follows them is not one
            report.truncated_bytes += segment.size - end
            segment.open().truncate(end)
            segment.open().sync()
            segment.size = end
            segment.trusted_from = min(segment.trusted_from, end)


def _breaks(log: Log, segment: Segment, end: int) -> bool:
    """Whether a segment does not continue the log, because records before it are missing (compaction may do that)."""
    return segment.base > end and not log.settings.compacts


def _drop(log: Log, segments: list[Segment], first: int, end: int, report: Report) -> None:
    doomed = segments[first:end]
    if doomed:
        report.segments_removed += len(doomed)
        _remove(log, doomed)
        del segments[first:end]


def _scan(log: Log, segment: Segment, report: Report, known: int, with_producers: bool = True) -> tuple[int, bool]:
    """Walk all batches of a segment and rebuild all that derives from them: (end offset, whether it had to be cut).

    Below the offset `known` all was synced before, so nothing is cut there.
    """
    index_before, times_before = segment.read_index(), segment.read_times()
    aborted_before = log.disk.read(segment.path + ".txnindex") if segment.base in log.with_aborted else b""
    file, size = segment.open(), segment.size
    segment.size = segment.indexed_at = 0
    segment.max_timestamp, segment.max_timestamp_offset = NO_TIMESTAMP, segment.base
    segment.index, segment.times = OffsetIndex(), bytearray()
    interval, end, rows = log.settings.index_interval_bytes, segment.base, b""
    trusted_from = 0
    for position, fields, batch in Walk(file, size, segment.base, index_before, known):
        end = fields[BASE] + fields[DELTA] + 1
        if batch is None or position > segment.size:
            trusted_from = _pass_damage(log, segment, position, fields, batch is None)
        if batch is None:
            continue
        segment.add(end - 1, len(batch), fields[MAX_TIME], interval)
        if fields[EPOCH] > log.epochs.latest:
            log.epochs.note(fields[EPOCH], fields[BASE])
        if with_producers and fields[PRODUCER] >= 0:
            rows += _replay(log, fields, batch)
    if segment.size < size:
        _refuse_old_format(segment, file.read_at(segment.size, size - segment.size))
    segment.index_time()
    report.scanned_bytes += size
    report.truncated_bytes += size - segment.size
    if segment.size < size:
        file.truncate(segment.size)
        file.sync()
    if segment.index != index_before or segment.times != times_before:
        report.indexes_rebuilt += 1
    segment.index_settled = segment.times_settled = 0
    segment.settle()
    if with_producers and rows != aborted_before:
        _write_aborted(log, segment, rows)
    segment.trusted_from, segment.checked = trusted_from, None
    log.end_offset = end
    _prepare_active(segment, log.now_ms())
    return end, segment.size < size


def _pass_damage(log: Log, segment: Segment, position: int, fields: tuple[int, ...], is_damaged: bool) -> int:
    """Go on after damage: where the damaged batch ends, or at a sound one that is indexed as the only way in from now on."""
    log.note_corrupt(segment.base, segment.size)
    segment.size = position
    if is_damaged:
        segment.size += fields[LENGTH] + PREFIX_BYTES
    else:
        segment.index_batch(fields[BASE] + fields[DELTA], position)
    return segment.size


def _refuse_old_format(segment: Segment, rest: bytes) -> None:
    """Before anything is cut: is it damage, or a whole message of format 0 or 1, which brokers before 3.0 may have left?"""
    length = int.from_bytes(rest[8:12], "big")
    is_old = rest[16:17] in (b"\0", b"\1") and 14 <= length <= len(rest) - PREFIX_BYTES
    if is_old and crc32(rest[16 : PREFIX_BYTES + length]) == int.from_bytes(rest[12:16], "big"):
        raise OldFormat(f"{segment.path}.log holds records of format {rest[16]}, which cannot be read any more")


def _prepare_active(segment: Segment, now_ms: int) -> None:
    """What `activate` would do, with the indexes that the scan has just built."""
    index, times = segment.index, segment.times
    segment.activate(now_ms)
    segment.index, segment.times = index, times


def _replay(log: Log, fields: tuple[int, ...], batch: memoryview) -> bytes:
    """Apply one batch to the producers; rows for the transaction index, if it ends aborted transactions."""
    head = Batch._make(fields)
    try:
        entry, completed = log.replay_producer(head, batch)
    except KafkaError:
        return b""  # a control batch whose CRC is right and whose record is nonsense
    if entry is not None:
        log.producers.stage(head.producer_id, entry, completed)
    rows = aborted.pack(log.producers.aborted_rows()) if completed else b""
    log.producers.merge()
    return rows


def _mend_aborted(log: Log, segments: list[Segment], report: Report) -> None:
    """A damaged transaction index is built again from the headers of its segment and the snapshot at its base."""
    for number, segment in enumerate(segments):
        if segment.base not in log.with_aborted:
            continue
        try:
            aborted.check(log.disk.read(segment.path + ".txnindex"), segment.base)
        except aborted.BadTransactionIndex:
            snapshots = log.snapshots
            log.snapshots = [offset for offset in snapshots if offset <= segment.base]
            log.segments, log.end_offset = segments[:number], segment.base
            rebuild_producers(log)
            log.end_offset, log.snapshots = 2**63, snapshots
            _write_aborted(log, segment, _replay_segment(log, segment, segment.base))
            report.indexes_rebuilt += 1


def _write_aborted(log: Log, segment: Segment, rows: bytes) -> None:
    path = segment.path + ".txnindex"
    if not rows:
        log.with_aborted.discard(segment.base)
        log.disk.remove(path)
        return
    log.with_aborted.add(segment.base)
    file = log.disk.open(path, create=True)
    file.write_at(0, [rows])
    file.truncate(len(rows))


# -- producers


def _keep_snapshots(log: Log, segments: list[Segment], end: int) -> None:
    """Those at segment bases, and the largest one above the last base; none beyond the log end."""
    bases = {segment.base for segment in segments}
    above = max((offset for offset in log.snapshots if segments[-1].base < offset <= end), default=-1)
    before = len(log.snapshots)
    log.drop_snapshots(lambda offset: offset <= end and (offset in bases or offset == above))
    if len(log.snapshots) < before:
        log.disk.sync_directory(log.directory)


def rebuild_producers(log: Log) -> None:
    """Producers as of the log end: the newest sound snapshot, then the batches after it."""
    log.producers.clear()
    since = _load_snapshot(log)
    if since >= log.end_offset:
        return
    for segment in log.segments:
        if segment.base >= log.end_offset:
            break
        number = log.segment_number(segment.base)
        after = log.segments[number + 1].base if number + 1 < len(log.segments) else log.end_offset
        if after <= since or not segment.size:
            continue
        _replay_segment(log, segment, max(since, segment.base))


def _load_snapshot(log: Log) -> int:
    """Load the newest snapshot that is whole and lies within the log; bad ones are deleted. Offset, or the log's first."""
    while log.snapshots:
        offset = log.snapshots[-1]
        if offset <= log.end_offset:
            try:
                data = log.disk.read(log.snapshot_path(offset))
                log.producers.load(data, log.now_ms(), log.settings.producer_id_expiration_ms)
                return offset
            except (BadSnapshot, FileNotFoundError):
                pass
        log.drop_snapshots(lambda kept, bad=offset: kept != bad)  # type: ignore[misc]
    return log.segments[0].base if log.segments else log.end_offset


def _replay_segment(log: Log, segment: Segment, since: int) -> bytes:
    """Apply the batches of one segment to the producers; the rows of its transaction index."""
    rows = b""
    try:
        for position, fields in segment.headers(segment.position_of(since)):
            if fields[BASE] >= log.end_offset:
                break
            if fields[PRODUCER] >= 0 and fields[BASE] >= since:
                size = fields[1] + 12 if fields[ATTRIBUTES] & CONTROL_BIT else 0
                rows += _replay(log, fields, memoryview(segment.open().read_at(position, size) if size else b""))
    except KafkaError:
        return rows  # a damaged batch below the recovery point hides the rest of this segment; readers will be told
    return rows


# -- closing


def close(log: Log) -> None:
    """What a clean stop leaves: everything written, trimmed and synced, and a snapshot at the log end."""
    log.publish()
    active = log.active
    if log.failed is None and log.end_offset > 0:  # nothing can be lost of a log that never had a record
        active.index_time()
        if not log.is_settled:
            _close_synced(log)
    for segment in log.segments:
        segment.close()
        log.files.drop_index(segment.at(".index"))


def _close_synced(log: Log) -> None:
    log.write_out()
    if log.epochs.unwritten:
        log.epochs.write()
    bases = {segment.base for segment in log.segments}
    log.drop_snapshots(lambda offset: offset in bases or offset == log.end_offset)
    for segment in [*log.unsynced, log.active]:
        for suffix in (".log", ".index", ".timeindex", ".txnindex"):
            path = segment.at(suffix)
            if suffix != ".txnindex" or segment.base in log.with_aborted:
                log.disk.open(path).sync()
    for offset in log.snapshots:
        if offset >= log.synced_end:
            log.disk.open(log.snapshot_path(offset)).sync()
    log.disk.sync_directory(log.directory)
    log.synced_end = log.recovery_point = log.end_offset
    log.unsynced = []
    log.refused = 0
    log.fresh = False
