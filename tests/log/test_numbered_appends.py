"""Batches that others numbered (a leader, a raft voter, a coordinator), and where numbers come to their limits."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from ottla.log.log import Log
from ottla.log.producers import Origin
from ottla.log.settings import LogSettings
from ottla.wire.errors import Error, KafkaError
from ottla.wire.records import Record, build

sys.path.insert(0, str(Path(__file__).parent))
from logs import NOW_MS, batch, make_log, put

RELATIVE_MAX = 2**31 - 1


def numbered(base: int, size: int = 5) -> memoryview:
    return memoryview(build([Record(timestamp=NOW_MS, value=b"x" * size)], base_offset=base, leader_epoch=0))


def bases(log: Log) -> list[int]:
    return [segment.base for segment in log.segments]


def test_a_row_that_overlaps_what_was_staged_in_the_same_turn_is_refused() -> None:
    """LOG-04: the end that counts is the staged one, or two batches of one turn could hold the same offsets."""
    log = make_log()
    log.append(numbered(0), Origin.REPLICATION, 0, NOW_MS)
    assert (log.end_offset, log.staged_end) == (0, 1)
    with pytest.raises(KafkaError):
        log.append(numbered(0), Origin.REPLICATION, 0, NOW_MS)
    log.append(numbered(1), Origin.REPLICATION, 0, NOW_MS)
    log.publish()
    assert log.end_offset == 2


@pytest.mark.parametrize("origin", [Origin.RAFT, Origin.COORDINATOR])
def test_a_batch_that_no_segment_could_hold_is_refused(origin: Origin) -> None:
    """LOG-13: whoever makes it; and what comes next is numbered as if it had never been there."""
    log = make_log(settings=LogSettings(segment_bytes=300))
    with pytest.raises(KafkaError) as caught:
        log.append(numbered(0, 300), origin, 0, NOW_MS)
    assert caught.value.error is Error.RECORD_LIST_TOO_LARGE
    assert put(log, numbered(0), origin=origin) == [0]
    assert all(segment.size <= 300 for segment in log.segments)


def test_a_copy_that_no_segment_could_hold_gets_one_of_its_own() -> None:
    """LOG-13: the leader took it when segments were larger. A follower that refused it would never be in sync again (seeds m11
    and m15 of the operated cluster)."""
    log = make_log(settings=LogSettings(segment_bytes=300))
    for offset, value_bytes in enumerate((10, 400, 500, 10, 10)):
        assert put(log, numbered(offset, value_bytes), origin=Origin.REPLICATION) == [offset]
    assert [segment.base for segment in log.segments] == [0, 1, 2, 3]
    assert log.end_offset == 5


def test_a_clients_batch_rolls_before_offsets_outgrow_the_index() -> None:
    """TRAP-04: an entry of the index has 31 bits above the base, and the limit itself is still inside."""
    log = make_log()
    put(log, numbered(0), numbered(RELATIVE_MAX - 2), origin=Origin.REPLICATION)
    assert put(log, batch(2)) == [RELATIVE_MAX - 1]
    assert bases(log) == [0]
    put(log, batch())
    assert bases(log) == [0, RELATIVE_MAX + 1]


def test_a_clients_batch_that_only_its_end_would_carry_over_the_limit_rolls_as_a_whole() -> None:
    """TRAP-04"""
    log = make_log()
    put(log, numbered(0), numbered(RELATIVE_MAX - 1), origin=Origin.REPLICATION)
    assert put(log, batch(2)) == [RELATIVE_MAX]
    assert bases(log) == [0, RELATIVE_MAX]
