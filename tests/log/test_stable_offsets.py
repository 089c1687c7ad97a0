"""Where read_committed ends when decided and undecided transactions lie among each other."""

from __future__ import annotations

import sys
from dataclasses import replace
from errno import EMFILE
from pathlib import Path

import pytest

from ottla.log.log import Log
from ottla.log.producers import Origin
from ottla.sim.disk import SimDisk, SimFile
from ottla.wire.records import end_marker

sys.path.insert(0, str(Path(__file__).parent))
from compacted import COMPACT, clean, contents, decide, keyed, records, transactional
from logs import NOW_MS, batch, make_log, put, reopen, run


def begin(log: Log, producer_id: int) -> None:
    put(log, batch(producer_id=producer_id, producer_epoch=0, base_sequence=0, transactional=True))


def end(log: Log, producer_id: int, *, commit: bool) -> None:
    marker = end_marker(commit, NOW_MS, producer_id=producer_id, producer_epoch=0, coordinator_epoch=0)
    put(log, memoryview(marker), origin=Origin.COORDINATOR)


def test_a_decision_above_the_watermark_counts_before_a_later_open_transaction() -> None:
    """TRAP-60: 0 is decided at 2, 1 is open. Until 2 is safe, the decision about 0 may yet be lost."""
    log = make_log()
    begin(log, 5)
    begin(log, 6)
    end(log, 5, commit=True)
    assert log.last_stable_offset(2) == 0
    assert log.last_stable_offset(3) == 1
    end(log, 6, commit=False)
    assert log.last_stable_offset(3) == 1
    assert log.last_stable_offset(4) == 4


def test_an_aborted_transaction_is_told_to_whoever_reads_its_last_record() -> None:
    """PRT-16, TRAP-61: the list covers the range from its first offset to its marker, both ends inside."""
    log = make_log()
    begin(log, 5)
    put(log, batch(2))
    end(log, 5, commit=False)
    begin(log, 6)
    end(log, 6, commit=False)
    for again in (log, reopen(log, clean=False)):
        told = {
            (first, bound): [row.first_offset for row in again.aborted_transactions(first, bound)]
            for first, bound in ((0, 1), (1, 3), (3, 4), (4, 5), (3, 6), (5, 6), (0, 6))
        }
        assert told == {
            (0, 1): [0], (1, 3): [0], (3, 4): [0], (4, 5): [4], (3, 6): [0, 4], (5, 6): [4], (0, 6): [0, 4],
        }  # fmt: skip


def test_a_transaction_that_was_open_for_long_is_found_behind_others() -> None:
    """PRT-16, TRAP-61: rows lie in the order of markers, so the search may not end at the first one that lies behind."""
    log = make_log()
    begin(log, 5)
    for producer in (6, 7, 8):
        begin(log, producer)
        end(log, producer, commit=False)
    end(log, 5, commit=False)
    assert [row.first_offset for row in log.aborted_transactions(0, 1)] == [0]
    assert [row.first_offset for row in log.aborted_transactions(3, 5)] == [0, 3]
    assert [row.first_offset for row in log.aborted_transactions(0, 8)] == [0, 1, 3, 5]


def test_aborted_transactions_are_found_among_very_many() -> None:
    """PRT-16: by halves, over several segments, and the same as looking at every one."""
    log = make_log()
    for number in range(900):
        begin(log, number)
        end(log, number, commit=number % 3 == 0)
        if number == 400:
            log.roll()
    every = [(2 * number, 2 * number + 1) for number in range(900) if number % 3]
    assert len(log.with_aborted) > 1
    for first, bound in (
        (0, 1800),
        (0, 1),
        (2, 4),
        (3, 4),
        (700, 707),
        (803, 900),
        (1799, 1800),
        (1, 1797),
        (1300, 1500),
    ):
        expected = [row for row in every if row[1] >= first and row[0] < bound]
        rows = log.aborted_transactions(first, bound)
        assert [(row.first_offset, row.last_offset) for row in rows] == expected, (first, bound)


def test_an_index_of_aborted_transactions_that_cannot_be_made_is_not_looked_for() -> None:
    """PRT-16: the marker comes again, into another segment; readers of the first one find no file there, nor expect one."""

    class NoDescriptors(SimDisk):
        is_out = False

        def open(self, path: str, *, create: bool = False) -> SimFile:
            if self.is_out and create:
                raise OSError(EMFILE, "too many open files", path)
            return super().open(path, create=create)

    disk = NoDescriptors()
    log = make_log(disk)
    begin(log, 5)
    disk.is_out = True
    with pytest.raises(OSError, match="too many"):
        end(log, 5, commit=False)
    disk.is_out = False
    log.roll()
    end(log, 5, commit=False)
    assert [row.first_offset for row in log.aborted_transactions(0, 2)] == [0]


def test_who_was_away_until_a_marker_was_compacted_has_to_be_told_by_hand() -> None:
    """It took a record of a transaction and was gone. When producers are forgotten and tombstones may go, the others have
    neither the record, because newer ones have its key, nor the marker. docs/operations.md says what to do."""
    leader, away = (make_log(settings=replace(COMPACT, delete_retention_ms=0)) for _ in range(2))
    transactional(leader, 7, 0, (b"key", b"old"))
    copy(leader, away)
    decide(leader, 7, True)
    for number in range(60):
        keyed(leader, (b"key", b"%d" % number), (b"other", b"x" * 30))
    leader.producers.expire(NOW_MS + 1, 1)
    for later in range(3):
        run(clean(leader, now_ms=NOW_MS + later))
    assert all(head.producer_id < 0 for head, _ in run(contents(leader)))
    copy(leader, away)
    assert away.last_stable_offset(away.end_offset) == 0
    decide(away, 7, False)
    assert away.last_stable_offset(away.end_offset) == away.end_offset
    assert (b"key", b"59") in {(record.key, record.value) for record in run(records(away))}


def copy(leader: Log, follower: Log) -> None:
    while follower.end_offset < leader.end_offset:
        data = run(leader.read(follower.end_offset, 1 << 20, leader.end_offset)).read()
        follower.append(memoryview(bytearray(data)), Origin.REPLICATION, 0, NOW_MS)
        follower.publish()
