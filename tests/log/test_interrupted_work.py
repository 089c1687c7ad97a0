"""Work on a log's files that a crash cut short: what a start makes of its remains, and what a cut must not leave behind."""

from __future__ import annotations

import sys
from pathlib import Path

from ottla.log.aborted import AbortedTransaction, pack
from ottla.log.log import Log
from ottla.log.producers import Origin
from ottla.log.settings import LogSettings
from ottla.wire.records import Record, build, end_marker

sys.path.insert(0, str(Path(__file__).parent))
from logs import NOW_MS, batch, fill, make_log, offsets, put, read_batches, reopen, run


def synced(count: int) -> Log:
    log = make_log()
    fill(log, count)
    run(log.flush())
    return log


def write(log: Log, base: int, suffix: str, data: bytes = b"") -> None:
    log.disk.replace(f"{log.directory}/{base:020d}{suffix}", data)


def compacted(log: Log, base: int, last: int, suffix: str) -> None:
    """A segment that compaction made of the offsets from `base` to `last`."""
    kept = (build([Record(timestamp=NOW_MS, value=b"kept")], base_offset=at, leader_epoch=0) for at in (base, last))
    write(log, base, ".log" + suffix, b"".join(kept))
    for kind in (".index", ".timeindex"):
        write(log, base, kind + suffix)


def names(log: Log, *endings: str) -> list[str]:
    return [name for name in log.disk.names(log.directory) if name.endswith(endings)]


def test_the_smallest_of_several_cleaned_files_decides() -> None:
    """TRAP-15: a swap between two cleaned files belongs to a compaction that was not complete; one before both does not."""
    log = synced(80)
    bases = [segment.base for segment in log.segments]
    assert len(bases) > 4
    for number in (2, 4):
        compacted(log, bases[number], bases[number] + 1, ".cleaned")
    compacted(log, bases[3], bases[3] + 1, ".swap")
    compacted(log, bases[0], bases[1] - 1, ".swap")
    again = reopen(log, clean=False)
    assert not names(again, ".swap", ".cleaned")
    assert [segment.base for segment in again.segments] == bases
    assert offsets(read_batches(again, 0)) == [0, bases[1] - 1]
    assert offsets(read_batches(again, bases[3]))[:2] == [bases[3], bases[3] + 2], "as it was before"


def test_a_swap_takes_the_place_of_all_that_belonged_to_the_old_segment() -> None:
    """TRAP-15: an index of aborted transactions that the compacted segment no longer has goes with the old one."""
    log = synced(60)
    second = log.segments[1].base
    write(log, 0, ".txnindex", pack([AbortedTransaction(1, 0, 5, 6)]))
    compacted(log, 0, second - 1, ".swap")
    again = reopen(log, clean=True)
    assert not names(again, ".txnindex")
    assert again.aborted_transactions(0, second) == []


def test_a_cut_leaves_no_snapshot_of_the_future() -> None:
    """TRAP-06, IDM-06: the next records above the cut are others, and a snapshot that was true of the old ones would, after
    a crash, be taken for the truth about them."""
    log = make_log(settings=LogSettings(segment_bytes=600))
    for number in range(30):
        put(log, batch(producer_id=5, producer_epoch=0, base_sequence=number))
    assert max(log.snapshots) > 12
    run(log.truncate_to(12))
    assert max(log.snapshots) <= 12
    assert max(int(name[:20]) for name in names(log, ".snapshot")) <= 12
    for number in range(30):
        put(log, batch(producer_id=6, producer_epoch=0, base_sequence=number))
    again = reopen(log, clean=False)
    assert (again.producers.entries[5].last_sequence, again.producers.entries[6].last_sequence) == (11, 29)


def test_a_lost_snapshot_is_no_reason_to_forget_producers() -> None:
    """TRAP-07, IDM-06: everything is synced, but the snapshot at the end is gone: an unclean start reads the log instead."""
    log = make_log()
    for number in range(3):
        put(log, batch(producer_id=5, producer_epoch=0, base_sequence=number))
    run(log.settle())
    assert log.is_settled and log.snapshots[-1] == 3
    log.disk.remove(log.snapshot_path(3))
    again = reopen(log, clean=False, recovery_point=3)
    assert again.recovered is not None and again.recovered.scanned_bytes == again.size
    assert again.append(batch(producer_id=5, producer_epoch=0, base_sequence=1), Origin.CLIENT, 0, NOW_MS).duplicate


def test_aborted_transactions_are_synced_with_the_records_they_speak_of() -> None:
    """LOG-17, TRAP-61: of an active segment too, whose index of them is written beside the log."""
    log = make_log(settings=LogSettings())
    data = batch(producer_id=5, producer_epoch=0, base_sequence=0, transactional=True)
    marker = end_marker(False, NOW_MS, producer_id=5, producer_epoch=0, coordinator_epoch=0)
    put(log, data)
    put(log, memoryview(marker), origin=Origin.COORDINATOR)
    log.disk.trace = []  # type: ignore[attr-defined]
    run(log.flush())
    assert ("sync", log.active.path + ".txnindex") in log.disk.trace  # type: ignore[attr-defined]


def test_a_snapshot_at_the_synced_end_is_synced_too() -> None:
    """TRAP-06, TRAP-11: a roll right after a sync writes one exactly there, and the recovery point will rely on it."""
    log = make_log()
    put(log, batch(producer_id=5, producer_epoch=0, base_sequence=0))
    run(log.flush())
    assert log.synced_end == 1
    log.roll()
    put(log, batch(producer_id=5, producer_epoch=0, base_sequence=1))
    log.disk.trace = []  # type: ignore[attr-defined]
    run(log.flush())
    assert ("sync", log.snapshot_path(1)) in log.disk.trace  # type: ignore[attr-defined]
