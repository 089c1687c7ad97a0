"""Starting again after a stop that was not clean, and after files were tampered with."""

from __future__ import annotations

import sys
from pathlib import Path
from zlib import crc32

import pytest

from ottla.log.log import Log
from ottla.log.producers import Origin
from ottla.log.recovery import OldFormat
from ottla.log.settings import LogSettings
from ottla.sim.disk import SimDisk
from ottla.wire.errors import KafkaError
from ottla.wire.records import Record, build, end_marker

sys.path.insert(0, str(Path(__file__).parent))
from logs import NOW_MS, SMALL, batch, fill, make_log, offsets, put, read_batches, reopen, run


def synced(count: int, settings: LogSettings = SMALL) -> Log:
    log = make_log(settings=settings)
    fill(log, count)
    run(log.flush())
    return log


def active_bytes(log: Log) -> bytes:
    return log.disk.read(log.active.path + ".log")


def rewrite(log: Log, path: str, data: bytes) -> None:
    file = log.disk.open(path, create=True)
    file.truncate(0)
    file.write_at(0, [data])


def test_the_log_is_cut_at_every_byte_of_its_last_two_batches() -> None:
    """LOG-18, TRAP-11: whatever is left of the tail, the log ends after the last whole batch."""
    log = synced(5, LogSettings())
    whole = active_bytes(log)
    size = log.active.batch_size(0)
    for length in range(len(whole) - 2 * size, len(whole) + 1):
        rewrite(log, log.active.path + ".log", whole[:length])
        again = reopen(log, clean=False)
        assert again.end_offset == length // size * 2
        assert again.active.size == length // size * size == again.disk.size(again.active.path + ".log")
        assert offsets(read_batches(again, 0)) == list(range(0, again.end_offset, 2))


@pytest.mark.parametrize(
    "tail", [bytes(1), bytes(700), b"\xff" * 100, b"garbage" * 30], ids=["0", "zeros", "ones", "text"]
)
def test_garbage_at_the_end_goes(tail: bytes) -> None:
    """LOG-18: zero tails and garbage tails; a length beyond the file is never believed."""
    log = synced(5, LogSettings())
    whole = active_bytes(log)
    rewrite(log, log.active.path + ".log", whole + tail)
    again = reopen(log, clean=False)
    assert again.end_offset == 10 and active_bytes(again) == whole
    assert again.recovered is not None and again.recovered.truncated_bytes == len(tail)
    put(again, batch())
    assert offsets(read_batches(again, 8)) == [8, 10]


def test_a_bad_batch_ends_the_log_and_later_segments_go() -> None:
    """TRAP-11, REC-04: everything from the first bad batch at or above the recovery point."""
    log = synced(60)
    victim = log.segments[1]
    log.disk.rot(victim.path + ".log", (victim.position_of(victim.base + 4) + 70) * 8)  # type: ignore[attr-defined]
    again = reopen(log, clean=False)
    assert again.end_offset == victim.base + 4
    assert [segment.base for segment in again.segments] == [0, victim.base]
    assert again.recovered is not None and again.recovered.segments_removed == len(log.segments) - 2
    assert not any(int(name[:20]) > victim.base for name in again.disk.names(again.directory) if name[:20].isdigit())


def test_below_the_recovery_point_nothing_is_scanned() -> None:
    """LOG-19, TRAP-11: recovery time follows what was not synced; damage below is for readers to find, not to truncate."""
    log = synced(60)
    first, active = log.segments[0], log.active
    log.disk.rot(first.path + ".log", 80 * 8)  # type: ignore[attr-defined]
    again = reopen(log, clean=False, recovery_point=active.base)
    assert again.end_offset == 120
    assert again.recovered is not None and again.recovered.scanned_bytes == active.size
    assert not again.recovered.truncated_bytes


def test_settled_logs_need_no_scan_even_after_a_crash() -> None:
    """LOG-19: everything below the recovery point, indexes and a snapshot there: nothing to do."""
    log = make_log()
    fill(log, 60)
    run(log.settle())
    again = reopen(log, clean=False, recovery_point=log.recovery_point)
    assert log.recovery_point == again.end_offset == 120
    assert again.recovered is not None and not again.recovered.scanned_bytes
    put(log, batch())
    assert reopen(log, clean=False, recovery_point=120).end_offset == 121


def test_the_second_start_finds_nothing_to_do() -> None:
    """LOG-18: what recovery repairs is repaired for good."""
    log = synced(60)
    rewrite(log, log.active.path + ".log", active_bytes(log)[:-10])
    again = reopen(log, clean=False)
    assert again.recovered is not None and again.recovered.repaired
    run(again.settle())
    third = reopen(again, clean=False, recovery_point=again.recovery_point)
    assert third.recovered is not None and not third.recovered.repaired
    third.close()
    fourth = reopen(third)
    assert fourth.recovered is not None and not fourth.recovered.scanned_bytes


def test_a_last_segment_that_vanished_is_begun_again() -> None:
    """LOG-18: an empty directory, or one whose newest segment never made it to the disk."""
    log = synced(60)
    last = log.segments[-1].base
    for suffix in (".log", ".index", ".timeindex"):
        log.disk.remove(log.segments[-1].path + suffix)
    again = reopen(log, clean=False)
    assert again.end_offset == last
    for name in again.disk.names(again.directory):
        if name[:20].isdigit():
            again.disk.remove(f"{again.directory}/{name}")
    assert reopen(log, clean=False).end_offset == 0
    assert put(reopen(log, clean=False, start_offset=500), batch()) == [500]


def test_a_missing_segment_in_the_middle_ends_the_log_there() -> None:
    """TRAP-11: records behind a hole were never promised, and offsets must not jump."""
    log = synced(60)
    log.disk.remove(log.segments[1].path + ".log")
    again = reopen(log, clean=False)
    assert again.end_offset == log.segments[1].base and len(again.segments) == 1


def test_in_a_compacted_log_a_hole_between_segments_is_nothing_that_is_missing() -> None:
    """Apache Kafka's compaction leaves such holes, and what lies behind them was promised."""
    log = synced(60, LogSettings(segment_bytes=4096, index_interval_bytes=512, cleanup_policy=frozenset({"compact"})))
    log.disk.remove(log.segments[1].path + ".log")
    again = reopen(log, clean=False)
    assert again.end_offset == 120 and len(again.segments) == len(log.segments) - 1


def test_what_a_failed_write_left_behind_a_segment_that_is_done_goes() -> None:
    """Its cut may not have reached the disk before the power went."""
    log = synced(60)
    first, size = log.segments[0], log.segments[0].size
    log.disk.open(first.path + ".log").write_at(size, [b"half a batch"])
    again = reopen(log, clean=False, recovery_point=log.segments[1].base)
    assert again.recovered is not None and again.recovered.truncated_bytes == len(b"half a batch")
    assert log.disk.size(first.path + ".log") == size and again.end_offset == 120


def test_a_log_that_ends_before_its_start_begins_anew_at_the_start() -> None:
    log = synced(10)
    again = reopen(log, clean=False, start_offset=1000)
    assert (again.start_offset, again.end_offset) == (1000, 1000)
    assert put(again, batch()) == [1000]


def test_a_start_beyond_a_log_that_is_whole_is_not_believed() -> None:
    """A bit in the text of its checkpoint makes 60 of 20, and all of the log went."""
    log = synced(10)
    log.close()
    again = reopen(log, clean=True, recovery_point=20, start_offset=60)
    assert (again.start_offset, again.end_offset) == (0, 20)
    assert offsets(read_batches(again, 0)) == list(range(0, 20, 2))


@pytest.mark.parametrize("clean", [True, False])
@pytest.mark.parametrize("left", [None, b"", b"0\n0\n"])
def test_leader_epochs_that_are_lost_are_found_again_where_nothing_is_scanned(clean: bool, left: bytes | None) -> None:
    """TRAP-48: a log that knows of none is never found to part from another."""
    log = make_log()
    for epoch in (0, 3, 4):
        put(log, batch(2), epoch=epoch)
    run(log.settle()) if not clean else log.close()
    path = f"{log.directory}/leader-epoch-checkpoint"
    log.disk.remove(path)
    if left is not None:
        log.disk.replace(path, left)
    again = reopen(log, clean=clean, recovery_point=6)
    assert again.recovered is not None and not again.recovered.scanned_bytes
    assert again.epochs.entries == [(0, 0), (3, 2), (4, 4)]
    assert log.disk.read(path) == b"0\n3\n0 0\n3 2\n4 4\n"


def test_leader_epochs_are_found_again_in_the_batches() -> None:
    """TRAP-14: an epoch file that is missing or behind is completed from what was scanned."""
    log = make_log()
    for epoch in (0, 3, 4):
        put(log, batch(2), epoch=epoch)
    assert not log.disk.exists(f"{log.directory}/leader-epoch-checkpoint")
    again = reopen(log, clean=False)
    assert again.epochs.entries == [(0, 0), (3, 2), (4, 4)]
    assert again.disk.read(f"{log.directory}/leader-epoch-checkpoint") == b"0\n3\n0 0\n3 2\n4 4\n"
    rewrite(log, log.active.path + ".log", active_bytes(log)[:-5])
    assert reopen(log, clean=False).epochs.entries == [(0, 0), (3, 2)]


# -- interrupted deletions and compactions


def segment_files(log: Log, base: int, data: bytes, suffix: str) -> None:
    for kind, content in ((".log", data), (".index", b""), (".timeindex", b"")):
        rewrite(log, f"{log.directory}/{base:020d}{kind}{suffix}", content)


def compacted(base: int, last: int) -> bytes:
    first = build([Record(timestamp=NOW_MS, value=b"kept")], base_offset=base, leader_epoch=0)
    return first + build([Record(timestamp=NOW_MS, value=b"kept")], base_offset=last, leader_epoch=0)


def names(log: Log) -> set[str]:
    return {name for name in log.disk.names(log.directory) if name.endswith((".deleted", ".cleaned", ".swap"))}


def test_deleted_and_cleaned_files_go() -> None:
    """TRAP-15"""
    log = synced(60)
    segment_files(log, 7000, b"x", ".deleted")
    segment_files(log, 0, compacted(0, 10), ".cleaned")
    again = reopen(log, clean=False)
    assert not names(again) and again.end_offset == 120


def test_a_swap_file_replaces_the_segments_it_spans() -> None:
    """TRAP-15: the compaction had been decided; the start finishes it."""
    log = synced(60)
    bases = [segment.base for segment in log.segments]
    segment_files(log, 0, compacted(0, bases[2] - 1), ".swap")
    again = reopen(log, clean=True)
    assert not names(again)
    assert [segment.base for segment in again.segments] == [0, *bases[2:]]
    assert offsets(read_batches(again, 0)) == [0, bases[2] - 1]


def test_a_swap_file_at_or_above_the_smallest_cleaned_one_is_dropped() -> None:
    """TRAP-15: that compaction was not complete."""
    log = synced(60)
    bases = [segment.base for segment in log.segments]
    segment_files(log, bases[1], compacted(bases[1], bases[1] + 1), ".swap")
    segment_files(log, bases[1], compacted(bases[1], bases[1] + 1), ".cleaned")
    again = reopen(log, clean=False)
    assert not names(again) and [segment.base for segment in again.segments] == bases


def test_orphaned_indexes_go() -> None:
    log = synced(10)
    for suffix in (".index", ".timeindex", ".txnindex"):
        rewrite(log, f"{log.directory}/{900:020d}{suffix}", b"")
    again = reopen(log)
    assert not [name for name in again.disk.names(again.directory) if name.startswith(f"{900:020d}")]


def test_unwritten_space_at_the_end_of_a_file_is_no_batch() -> None:
    """LOG-18: a file grown with zeros by the file system."""
    disk = SimDisk()
    log = make_log(disk, LogSettings())
    fill(log, 3)
    log.active.open().truncate(log.active.size + 4096)
    assert reopen(log, clean=False).end_offset == 6


@pytest.mark.parametrize(
    "damage", [b"\1", bytes(34) + b"\0\0\0", b"\0\7" + bytes(32)], ids=["torn", "longer", "version"]
)
@pytest.mark.parametrize("clean", [True, False])
def test_a_damaged_transaction_index_is_rebuilt_without_cutting_anything(damage: bytes, clean: bool) -> None:
    """TRAP-61: also below the recovery point, from the headers and the snapshot at the segment's base."""
    log = make_log(settings=LogSettings(segment_bytes=700))
    for number in range(6):
        numbered = {"producer_id": 5, "producer_epoch": 0, "base_sequence": number, "transactional": True}
        put(log, batch(**numbered), batch(value=b"x" * 100))
        marker = end_marker(False, NOW_MS, producer_id=5, producer_epoch=0, coordinator_epoch=0)
        put(log, memoryview(marker), origin=Origin.COORDINATOR)
    rows = log.aborted_transactions(0, log.end_offset)
    log.close()
    assert len(rows) == 6 and len(log.with_aborted) > 1
    path = log.segments[0].path + ".txnindex"
    whole = log.disk.read(path)
    rewrite(log, path, damage)
    again = reopen(log, clean=clean, recovery_point=log.active.base)
    assert again.disk.read(path) == whole
    assert again.aborted_transactions(0, again.end_offset) == rows
    assert again.producers.entries[5].last_sequence == 5
    assert again.snapshots == [segment.base for segment in log.segments[1:]] + ([log.end_offset] if clean else [])


def test_records_of_an_old_format_are_not_cut_off() -> None:
    """LOG-18: a whole message of format 1 is no damage. Better no start than a silent loss."""
    log = synced(3)
    body = b"\1\0" + bytes(8) + (0xFFFFFFFF).to_bytes(4, "big") + (3).to_bytes(4, "big") + b"old"
    message = bytes(8) + (4 + len(body)).to_bytes(4, "big") + crc32(body).to_bytes(4, "big") + body
    rewrite(log, log.active.path + ".log", active_bytes(log) + message)
    with pytest.raises(OldFormat) as told:
        reopen(log, clean=False)
    assert isinstance(told.value, KafkaError) and log.active.path in told.value.message  # `serve` says it in one line
    assert active_bytes(log).endswith(b"old")


@pytest.mark.parametrize("clean", [True, False])
@pytest.mark.parametrize("base", [3, 7, 119, 500])
def test_an_empty_segment_where_the_log_does_not_end_is_a_stray(base: int, clean: bool) -> None:
    """LOG-18: seeds 231 and 514 of the model: the leftover of a roll on a full disk must not cut or lengthen the log."""
    log = synced(60)
    log.close()
    segment_files(log, base, b"", "")
    again = reopen(log, clean=clean)
    assert again.end_offset == 120 and [segment.base for segment in again.segments] == [
        segment.base for segment in log.segments
    ]
    assert [read_batches(again, offset)[0].base_offset for offset in range(120)] == [
        offset // 2 * 2 for offset in range(120)
    ]


def test_a_segment_that_overlaps_the_log_does_not_take_later_ones_with_it() -> None:
    log = synced(60)
    segment_files(log, 5, compacted(5, 30), "")
    again = reopen(log, clean=False)
    assert again.end_offset == 120 and [segment.base for segment in again.segments] == [
        segment.base for segment in log.segments
    ]
