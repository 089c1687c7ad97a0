"""Sequences, duplicates, epochs; open, committed and aborted transactions; snapshots."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from ottla.log.log import Appended, Log
from ottla.log.producers import BadSnapshot, Origin, Producers, read_snapshot, sequence_minus, sequence_plus
from ottla.log.settings import LogSettings
from ottla.sim.disk import SimDisk
from ottla.wire.errors import Error
from ottla.wire.records import end_marker

sys.path.insert(0, str(Path(__file__).parent))
from logs import NOW_MS, batch, fill, make_log, offsets, put, read_batches, refusal, reopen, run

LAST = 2**31 - 1
DAY_MS = 86_400_000


def send(
    log: Log,
    sequence: int,
    count: int = 1,
    *,
    epoch: int = 0,
    producer_id: int = 5,
    transactional: bool = False,
    **more: int,
) -> Appended:
    timestamp = more.pop("timestamp", NOW_MS)
    data = batch(
        count,
        timestamp=timestamp,
        producer_id=producer_id,
        producer_epoch=epoch,
        base_sequence=sequence,
        transactional=transactional,
    )
    appended = log.append(data, Origin.CLIENT, 0, NOW_MS, **more)
    log.publish()
    return appended


def mark(
    log: Log, commit: bool, *, producer_id: int = 5, epoch: int = 0, coordinator: int = 0, version: int = 0
) -> Appended:
    marker = end_marker(commit, NOW_MS, producer_id=producer_id, producer_epoch=epoch, coordinator_epoch=coordinator)
    appended = log.append(memoryview(marker), Origin.COORDINATOR, 0, NOW_MS, transaction_version=version)
    log.publish()
    return appended


# -- sequences


def test_a_batch_that_continues_is_accepted_and_a_gap_is_not() -> None:
    """IDM-02, IDM-04: 0, then what follows; anything else is OUT_OF_ORDER_SEQUENCE_NUMBER."""
    log = make_log()
    assert [send(log, 0, 3).first_offset, send(log, 3, 2).first_offset] == [0, 3]
    assert refusal(send, log, 6) is Error.OUT_OF_ORDER_SEQUENCE_NUMBER
    assert refusal(send, log, 4) is Error.OUT_OF_ORDER_SEQUENCE_NUMBER
    assert send(log, 5).first_offset == 5


def test_the_last_five_batches_are_recognised_with_their_original_offsets() -> None:
    """IDM-03, IDM-05, TRAP-20: a repeated batch is answered with where it went, and is not appended again."""
    log = make_log()
    for number in range(7):
        send(log, number * 2, 2)
    end = log.end_offset
    for number in range(2, 7):
        again = send(log, number * 2, 2)
        assert (again.duplicate, again.first_offset, again.last_offset) == (True, number * 2, number * 2 + 1)
    assert log.end_offset == end
    assert refusal(send, log, 2, 2) is Error.OUT_OF_ORDER_SEQUENCE_NUMBER
    assert refusal(send, log, 12, 1) is Error.OUT_OF_ORDER_SEQUENCE_NUMBER


def test_a_duplicate_has_the_original_append_time() -> None:
    """TRAP-20: with LogAppendTime the time of the first append is repeated."""
    log = make_log(settings=LogSettings(message_timestamp_type="LogAppendTime"))
    data = [batch(producer_id=5, producer_epoch=0, base_sequence=0) for _ in range(2)]
    first = log.append(data[0], Origin.CLIENT, 0, NOW_MS)
    log.publish()
    again = log.append(data[1], Origin.CLIENT, 0, NOW_MS + 999)
    assert again.duplicate and again.append_time_ms == first.append_time_ms == NOW_MS


def test_a_duplicate_of_something_staged_hangs_on_the_same_write() -> None:
    log = make_log(disk := SimDisk(), LogSettings())
    fill(log, 1)

    class Owner:
        failed = False

        def fail(self, error: BaseException) -> None:
            self.failed = True

    disk.capacity, owner = disk.used, Owner()
    log.append(batch(producer_id=5, producer_epoch=0, base_sequence=0), Origin.CLIENT, 0, NOW_MS)
    again = log.append(batch(producer_id=5, producer_epoch=0, base_sequence=0), Origin.CLIENT, 0, NOW_MS, owner)
    assert again.duplicate
    with pytest.raises(OSError):
        log.publish()
    assert owner.failed


def test_sequences_wrap() -> None:
    """TRAP-09: after 2^31-1 comes 0, also inside a batch."""
    assert sequence_plus(LAST, 1) == 0 and sequence_minus(0, 1) == LAST
    log = make_log()
    send(log, LAST - 1, 2)
    assert send(log, 0, 2).first_offset == 2
    log = make_log()
    send(log, LAST - 1, 4)
    assert send(log, 2).first_offset == 4
    assert send(log, LAST - 1, 4).duplicate


def test_an_unknown_producer_begins_anywhere_except_in_transactions_of_generation_2() -> None:
    """TRAP-09: records of an idle producer may have been forgotten; newer transactions know better."""
    assert send(make_log(), 17).first_offset == 0
    assert send(make_log(), 17, transactional=True).first_offset == 0
    strict = refusal(send, make_log(), 17, transactional=True, transaction_version=2)
    assert strict is Error.OUT_OF_ORDER_SEQUENCE_NUMBER
    assert send(make_log(), 0, transactional=True, transaction_version=2).first_offset == 0


def test_a_new_epoch_begins_at_0_and_fences_the_old() -> None:
    """TRAP-09, TRAP-63: 47 for the older epoch."""
    log = make_log()
    send(log, 0, 5)
    assert refusal(send, log, 5, epoch=1) is Error.OUT_OF_ORDER_SEQUENCE_NUMBER
    send(log, 0, epoch=1)
    assert refusal(send, log, 5, epoch=0) is Error.INVALID_PRODUCER_EPOCH
    assert send(log, 1, epoch=1).first_offset == 6


def test_a_silent_producer_is_forgotten_by_its_last_batch_timestamp_but_not_inside_a_transaction() -> None:
    """TRAP-10: expiry counts from the batch's timestamp; an open transaction keeps its producer."""
    log = make_log()
    send(log, 0, producer_id=1, timestamp=NOW_MS - DAY_MS)
    send(log, 0, producer_id=2, timestamp=NOW_MS - DAY_MS + 1)
    send(log, 0, producer_id=3, timestamp=NOW_MS - 2 * DAY_MS, transactional=True)
    log.producers.expire(NOW_MS, DAY_MS)
    assert sorted(log.producers.entries) == [2, 3]


# -- restarts


@pytest.mark.parametrize("clean", [True, False])
def test_duplicates_are_known_after_a_restart(clean: bool) -> None:
    """IDM-06, TRAP-08: one batch from the snapshot, and whatever was scanned again."""
    log = make_log()
    for number in range(6):
        send(log, number)
    if clean:
        log.close()
    again = reopen(log, clean=clean)
    assert send(again, 5).duplicate
    if clean:
        assert refusal(send, again, 4) is Error.OUT_OF_ORDER_SEQUENCE_NUMBER
    else:
        assert send(again, 1).duplicate
    assert send(again, 6).first_offset == 6


def test_snapshots_lie_at_segment_bases_and_at_the_clean_end() -> None:
    """TRAP-06: `N.snapshot` covers offsets below N; at load those at bases stay, and the largest above."""
    log = make_log(settings=LogSettings(segment_bytes=400))
    for number in range(14):
        send(log, number, timestamp=NOW_MS)
    bases = [segment.base for segment in log.segments]
    log.close()
    assert len(bases) > 2 and log.snapshots == [*bases[1:], 14]
    for offset in (1, 13):
        log.disk.open(log.snapshot_path(offset), create=True).write_at(0, [log.producers.snapshot()])
    again = reopen(log)
    assert again.snapshots == [*bases[1:], 14]
    assert not log.disk.exists(log.snapshot_path(13))


def test_a_corrupt_snapshot_is_deleted_and_the_older_one_used() -> None:
    """TRAP-07: nothing is lost, because the records after the older one are replayed."""
    log = make_log(settings=LogSettings(segment_bytes=600))
    for number in range(14):
        send(log, number)
    log.close()
    log.disk.rot(log.snapshot_path(14), 100)  # type: ignore[attr-defined]
    again = reopen(log)
    assert 14 not in again.snapshots and again.producers.entries[5].last_sequence == 13


def test_no_snapshot_and_a_clean_mark_means_no_scan_but_an_unclean_stop_means_all_of_it() -> None:
    """TRAP-07: without snapshots producers are rebuilt only after an unclean stop, from the first segment on."""
    log = make_log(settings=LogSettings(segment_bytes=600))
    for number in range(14):
        send(log, number)
    log.close()
    for offset in log.snapshots:
        log.disk.remove(log.snapshot_path(offset))
    assert not reopen(log, clean=True).producers.entries
    assert reopen(log, clean=False, recovery_point=14).producers.entries[5].last_sequence == 13


def test_snapshots_of_other_versions_or_lengths_are_refused() -> None:
    log = make_log()
    send(log, 0)
    data = log.producers.snapshot()
    assert read_snapshot(data) == log.producers.entries
    for bad in (b"", data[:-1], data + b"\0", b"\0\2" + data[2:], data[:20] + b"\xff" + data[21:]):
        with pytest.raises(BadSnapshot):
            read_snapshot(bad)


# -- transactions


def test_the_last_stable_offset_holds_until_the_marker_is_below_the_watermark() -> None:
    """TRAP-60: the decision itself must be safe before anybody may see what it decides."""
    log = make_log()
    put(log, batch(2))
    send(log, 0, 3, transactional=True)
    assert log.last_stable_offset(5) == 2
    assert log.last_stable_offset(1) == 1
    marker = mark(log, commit=True).first_offset
    assert marker == 5
    assert log.last_stable_offset(5) == 2
    assert log.last_stable_offset(6) == 6


def test_the_first_of_several_open_transactions_counts() -> None:
    log = make_log()
    send(log, 0, transactional=True, producer_id=1)
    send(log, 0, transactional=True, producer_id=2)
    mark(log, commit=True, producer_id=1)
    assert log.last_stable_offset(3) == 1
    mark(log, commit=True, producer_id=2)
    assert log.last_stable_offset(4) == 4


def test_aborted_transactions_are_listed_by_first_offset_for_a_range() -> None:
    """TRAP-61: only aborted ones with data; sorted; across segments and a restart."""
    log = make_log(settings=LogSettings(segment_bytes=600))
    send(log, 0, transactional=True, producer_id=1)
    send(log, 0, transactional=True, producer_id=2)
    mark(log, commit=False, producer_id=2)
    fill(log, 4)
    mark(log, commit=False, producer_id=1)
    mark(log, commit=False, producer_id=3)
    send(log, 0, transactional=True, producer_id=4)
    mark(log, commit=True, producer_id=4)
    for _ in range(2):
        rows = log.aborted_transactions(0, log.end_offset)
        assert [(row.producer_id, row.first_offset, row.last_offset) for row in rows] == [(1, 0, 11), (2, 1, 2)]
        assert [row.producer_id for row in log.aborted_transactions(3, log.end_offset)] == [1]
        assert log.aborted_transactions(12, log.end_offset) == []
        log.close()
        log = reopen(log, clean=False)


def aborted(log: Log, first: int = 0) -> list[int]:
    return [row.first_offset for row in log.aborted_transactions(first, log.end_offset)]


def test_the_list_of_aborted_transactions_is_opened_once_and_counts_among_the_open_files() -> None:
    """TRAP-61: every read_committed fetch looks into it. What happens to the segment happens to what is kept of it."""
    log = make_log(settings=LogSettings(segment_bytes=600))
    for producer_id in range(1, 31):
        send(log, 0, transactional=True, producer_id=producer_id)
        mark(log, commit=False, producer_id=producer_id)
    everything = list(range(0, 60, 2))
    assert aborted(log) == everything and len(log.segments) > 3
    opened: list[str] = []
    usual = log.disk.open
    log.disk.open = lambda path, **more: opened.append(path) or usual(path, **more)  # type: ignore
    assert aborted(log) == everything and aborted(log, 10) == everything[5:] and not opened

    log.files.files_max = 2
    log.roll()
    assert aborted(log) == everything and opened and len(log.files) <= 2
    log.files.files_max = 100
    aborted(log)
    run(log.truncate_to(31))
    assert aborted(log) == everything[:15], "the marker of the last one is gone"
    mark(log, commit=False, producer_id=16)
    assert aborted(log) == everything[:16]
    log.close()
    assert not len(log.files)


def test_an_open_transaction_survives_restarts_and_ends_later() -> None:
    log = make_log()
    send(log, 0, transactional=True)
    log.close()
    log = reopen(log)
    assert log.last_stable_offset(1) == 0
    mark(log, commit=False)
    assert [row.first_offset for row in log.aborted_transactions(0, 2)] == [0]
    assert log.last_stable_offset(2) == 2


def test_markers_of_an_older_epoch_or_coordinator_are_fenced() -> None:
    """TRAP-62: generation 2 must rise, generation 1 must not fall; an older coordinator epoch is fenced."""
    log = make_log()
    send(log, 0, transactional=True, epoch=4)
    assert refusal(mark, log, True, epoch=3) is Error.INVALID_PRODUCER_EPOCH
    assert refusal(mark, log, True, epoch=4, version=2) is Error.INVALID_PRODUCER_EPOCH
    mark(log, True, epoch=5, coordinator=8, version=2)
    send(log, 0, transactional=True, epoch=5)
    assert refusal(mark, log, True, epoch=6, coordinator=7, version=2) is Error.TRANSACTION_COORDINATOR_FENCED
    mark(log, True, epoch=5, coordinator=8)


def test_a_plain_batch_inside_a_transaction_is_refused() -> None:
    log = make_log()
    send(log, 0, transactional=True)
    assert refusal(send, log, 1) is Error.INVALID_TXN_STATE


def test_offsets_of_a_group_coordinator_have_no_sequence() -> None:
    log = make_log()
    data = batch(producer_id=5, producer_epoch=2, transactional=True)
    assert put(log, data, origin=Origin.COORDINATOR) == [0]
    assert log.last_stable_offset(1) == 0
    old = batch(producer_id=5, producer_epoch=1, transactional=True)
    assert refusal(put, log, old, origin=Origin.COORDINATOR) is Error.INVALID_PRODUCER_EPOCH


def test_truncation_takes_transactions_and_sequences_back() -> None:
    """IDM-06: after a cut the producer continues where the log now ends."""
    log = make_log(settings=LogSettings(segment_bytes=600))
    send(log, 0, transactional=True)
    mark(log, commit=False)
    for number in range(1, 12):
        send(log, number, transactional=True)
    mark(log, commit=False)
    run(log.truncate_to(5))
    assert log.end_offset == 5 and log.last_stable_offset(5) == 2
    assert [row.first_offset for row in log.aborted_transactions(0, 5)] == [0]
    assert send(log, 4, transactional=True).first_offset == 5
    run(log.truncate_to(1))
    assert log.last_stable_offset(1) == 0 and log.aborted_transactions(0, 1) == []


def test_a_failed_write_forgets_staged_transactions() -> None:
    disk = SimDisk()
    log = make_log(disk, LogSettings())
    fill(log, 1)
    disk.capacity = disk.used
    with pytest.raises(OSError):
        send(log, 0, transactional=True)
    assert log.last_stable_offset(2) == 2 and not log.producers.ongoing
    disk.capacity += 1000
    send(log, 0, transactional=True)
    assert log.last_stable_offset(3) == 2
    disk.capacity = disk.used + 80
    with pytest.raises(OSError):
        mark(log, commit=False)
    assert log.last_stable_offset(3) == 2 and log.end_offset == 3
    assert log.aborted_transactions(0, 4) == []
    disk.capacity += 1000
    mark(log, commit=False)
    assert len(log.aborted_transactions(0, 4)) == 1
    assert offsets(read_batches(log, 0)) == [0, 2, 3]


def test_an_empty_table_has_an_empty_snapshot() -> None:
    assert read_snapshot(Producers().snapshot()) == {}
