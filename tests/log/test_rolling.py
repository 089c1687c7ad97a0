"""When a new segment begins, and what the old one leaves behind; indexes."""

from __future__ import annotations

import random
import sys
from pathlib import Path

import pytest

from ottla.log import index
from ottla.log.files import OpenFiles
from ottla.log.log import Log
from ottla.log.producers import Origin
from ottla.log.settings import LogSettings
from ottla.sim.disk import SimDisk
from ottla.wire.errors import Error, KafkaError
from ottla.wire.records import Record, build

sys.path.insert(0, str(Path(__file__).parent))
from logs import NOW_MS, Clock, batch, fill, make_log, put, reopen

HOUR_MS = 3_600_000


def bases(log: Log) -> list[int]:
    return [segment.base for segment in log.segments]


def test_a_segment_rolls_when_a_batch_would_not_fit() -> None:
    """LOG-13, LOG-21: exactly one active segment, never larger than `segment.bytes`."""
    size = len(batch(value=b"x" * 100))
    log = make_log(settings=LogSettings(segment_bytes=size * 3))
    for _ in range(7):
        put(log, batch(value=b"x" * 100))
    assert bases(log) == [0, 3, 6]
    assert all(segment.size <= size * 3 for segment in log.segments)
    assert log.disk.names(log.directory)[:4] == [
        f"{0:020d}.index",
        f"{0:020d}.log",
        f"{0:020d}.timeindex",
        f"{3:020d}.index",
    ]


def test_a_batch_larger_than_a_segment_is_refused() -> None:
    log = make_log(settings=LogSettings(segment_bytes=300))
    for where in ("empty", "with a batch"):
        with pytest.raises(KafkaError) as caught:
            put(log, batch(value=b"x" * 300))
        assert caught.value.error is Error.RECORD_LIST_TOO_LARGE, where
        put(log, batch())


def test_several_batches_of_one_turn_may_cross_a_roll() -> None:
    log = make_log(settings=LogSettings(segment_bytes=250))
    for _ in range(6):
        log.append(batch(), Origin.CLIENT, 0, NOW_MS)
    log.publish()
    assert log.end_offset == 6 and len(log.segments) > 1
    assert sum(segment.size for segment in log.segments) == 6 * len(batch())


def test_a_segment_rolls_by_the_timestamps_of_its_records() -> None:
    """TRAP-04: compared with the first batch's, whatever the clock says."""
    log = make_log(settings=LogSettings(segment_ms=HOUR_MS))
    put(log, batch(timestamp=1000), batch(timestamp=1000 + HOUR_MS))
    assert bases(log) == [0]
    put(log, batch(timestamp=1001 + HOUR_MS))
    assert bases(log) == [0, 2]
    put(log, batch(timestamp=5))
    assert bases(log) == [0, 2]
    log.close()
    log = reopen(log)
    put(log, batch(timestamp=1002 + 2 * HOUR_MS))
    assert bases(log) == [0, 2, 4]


def test_two_batches_of_one_turn_roll_by_time_too() -> None:
    """TRAP-04"""
    log = make_log(settings=LogSettings(segment_ms=HOUR_MS))
    put(log, batch(timestamp=1000), batch(timestamp=1001 + HOUR_MS))
    assert bases(log) == [0, 1]


def test_without_timestamps_the_clock_decides() -> None:
    """TRAP-04: a first batch without a timestamp makes the segment's age count."""
    clock = Clock()
    log = make_log(settings=LogSettings(segment_ms=HOUR_MS), clock=clock)
    put(log, batch(timestamp=-1), batch(timestamp=NOW_MS))
    assert bases(log) == [0]
    put(log, batch(timestamp=-1), now_ms=NOW_MS + HOUR_MS)
    assert bases(log) == [0]
    put(log, batch(timestamp=-1), now_ms=NOW_MS + HOUR_MS + 1)
    assert bases(log) == [0, 3]


def test_jitter_makes_segments_roll_earlier_but_never_later() -> None:
    """TRAP-04: logs that were created together do not all roll together."""
    rolled_at = set()
    for seed in range(12):
        settings = LogSettings(segment_ms=HOUR_MS, segment_jitter_ms=HOUR_MS // 2)
        disk = SimDisk()
        disk.make_directory("/d")
        log = Log(disk, OpenFiles(disk), "/d", "t", 0, settings, Clock(), random.Random(seed))
        log.load(clean=True)
        for minute in range(62):
            put(log, batch(timestamp=NOW_MS - 10 * HOUR_MS + minute * 60_000 + 1))
        rolled_at.add(bases(log)[1])
    assert len(rolled_at) > 3 and max(rolled_at) <= 61 and min(rolled_at) >= 30


def test_a_segment_rolls_before_offsets_outgrow_the_index() -> None:
    """TRAP-04: at most 2^31-1 above the base."""
    log = make_log(settings=LogSettings(cleanup_policy=frozenset({"compact"})))
    for base in (0, 2**31 - 1, 2**31, 2**31 + 5, 2**33):
        put(log, memoryview(build([Record(key=b"k")], base_offset=base, leader_epoch=0)), origin=Origin.REPLICATION)
    assert bases(log) == [0, 2**31, 2**33]
    log.close()
    assert bases(reopen(log, clean=False)) == [0, 2**31, 2**33]


@pytest.mark.parametrize(("index_bytes", "batches"), [(24, 4), (36, 4)])
def test_a_full_index_rolls(index_bytes: int, batches: int) -> None:
    """TRAP-02: one slot of the time index is kept free for the last entry."""
    log = make_log(settings=LogSettings(segment_index_bytes=index_bytes, index_interval_bytes=10))
    fill(log, 9)
    rolled = log.segments[1].base // 2
    entries = index_bytes // 8 if index_bytes == 24 else 3
    assert rolled <= entries + 1
    for segment in log.segments[:-1]:
        assert log.disk.size(segment.path + ".index") <= index_bytes
        assert log.disk.size(segment.path + ".timeindex") <= index_bytes


def test_index_entries() -> None:
    """LOG-11, TRAP-01, TRAP-02: (last offset, start position) after more than the interval, none for the first batch."""
    log = make_log(settings=LogSettings(index_interval_bytes=250))
    size = len(batch(2, value=b"x" * 40))
    for number in range(8):
        put(log, batch(2, value=b"x" * 40, timestamp=NOW_MS + (number if number != 4 else 0)))
    assert 250 / 2 < size < 250
    log.close()
    offsets_written = log.disk.read(log.active.path + ".index")
    assert list(index.OFFSET_ENTRY.iter_unpack(offsets_written)) == [(5, 2 * size), (9, 4 * size), (13, 6 * size)]
    times = log.disk.read(log.active.path + ".timeindex")
    assert [index.time_entry(times, n) for n in range(len(times) // 12)] == [
        (NOW_MS + 2, 5),
        (NOW_MS + 3, 7),
        (NOW_MS + 6, 13),
        (NOW_MS + 7, 15),
    ]


def test_searching_an_index() -> None:
    """LOG-12: binary search by offset and by position."""
    raw = b"".join(index.OFFSET_ENTRY.pack(offset, offset * 10) for offset in (5, 9, 20))
    rows = index.OffsetIndex(raw)
    found = {at: rows.position_before_offset(at) for at in (0, 4, 5, 8, 9, 19, 20, 99)}
    assert found == {0: 0, 4: 0, 5: 50, 8: 50, 9: 90, 19: 90, 20: 200, 99: 200}
    assert [rows.boundary_before(at) for at in (0, 49, 50, 91, 1000)] == [0, 0, 50, 90, 200]
    assert [len(rows.below(at)) for at in (0, 5, 6, 9, 10, 21)] == [0, 0, 1, 1, 2, 3]
    assert (rows.bytes_from(0), rows.bytes_from(2), rows.last_position) == (raw, raw[16:], 200)
    times = b"".join(index.TIME_ENTRY.pack(time, time // 10) for time in (50, 90, 200))
    assert [index.last_time_before(times, at) for at in (49, 50, 95)] == [None, (50, 5), (90, 9)]
    assert [index.times_below(times, at) // 12 for at in (5, 6, 21)] == [0, 1, 3]


def test_what_is_no_part_of_an_index() -> None:
    """TRAP-03: zeros at the end, and everything from the first entry that does not rise."""
    rows = [(5, 50), (9, 90), (20, 200)]
    sound = b"".join(index.OFFSET_ENTRY.pack(*row) for row in rows)
    assert index.sound_offsets(sound + bytes(80), 1000).bytes_from(0) == sound
    assert index.sound_offsets(sound + index.OFFSET_ENTRY.pack(20, 300), 1000).bytes_from(0) == sound
    assert index.sound_offsets(sound + index.OFFSET_ENTRY.pack(30, 200), 1000).bytes_from(0) == sound
    assert index.sound_offsets(sound, 200).bytes_from(0) == sound[:16]
    assert index.sound_offsets(sound + b"\1\2\3", 1000).bytes_from(0) == sound
    times = b"".join(index.TIME_ENTRY.pack(*row) for row in [(500, 5), (900, 9), (901, 9)])
    assert index.sound_times(times + bytes(24)) == times
    assert index.sound_times(times + index.TIME_ENTRY.pack(901, 12)) == times
    assert index.sound_times(times + index.TIME_ENTRY.pack(950, 3)) == times
    assert index.sound_times(b"") == index.sound_offsets(b"", 0).bytes_from(0) == b""
