"""Damage below the recovery point. What is there was synced once, so it is no torn tail:
recovery leaves it, and readers are told."""

from __future__ import annotations

import random
import sys
from pathlib import Path

import pytest

from ottla.log import retention
from ottla.log.log import Log
from ottla.log.settings import LogSettings
from ottla.sim.disk import SimDisk
from ottla.wire.errors import Error, KafkaError

sys.path.insert(0, str(Path(__file__).parent))
from logs import NOW_MS, Clock, batch, closed_log, fill, make_log, offsets, put, read_batches, reopen, run

ROOMY = LogSettings(index_interval_bytes=512)
BATCHES = 40
BATCH_BYTES = 285


def settled_then_more() -> Log:
    """Forty batches that were settled, and one after that which was not even synced: a crash now means a scan."""
    log = make_log(SimDisk(), ROOMY)
    fill(log, BATCHES)
    run(log.settle())
    assert log.active.batch_size(0) == BATCH_BYTES
    put(log, batch(2))
    return log


def rot(log: Log, position: int, bit: int = 0) -> None:
    disk = log.disk
    assert isinstance(disk, SimDisk)
    disk.rot(log.active.path + ".log", position * 8 + bit)


def check_all_but(log: Log, number: int) -> None:
    """Every batch can be read but this one, which answers CORRUPT_MESSAGE."""
    for other in range(BATCHES):
        if other != number:
            assert offsets(read_batches(log, 2 * other, 400))[:1] == [2 * other]
    with pytest.raises(KafkaError) as told:
        read_batches(log, 2 * number, 400)
    assert told.value.error is Error.CORRUPT_MESSAGE


@pytest.mark.parametrize("number", [0, 1, 17, BATCHES - 1])
@pytest.mark.parametrize("byte", [17, 60, 100, BATCH_BYTES - 1])
def test_a_flipped_bit_costs_one_batch(number: int, byte: int) -> None:
    """The faults matrix: a node must not "repair" by cutting off what it had promised to keep."""
    log = settled_then_more()
    rot(log, number * BATCH_BYTES + byte)
    again = reopen(log, clean=False, recovery_point=2 * BATCHES)
    assert again.end_offset == 2 * BATCHES + 2
    assert again.recovered is not None and not again.recovered.truncated_bytes
    check_all_but(again, number)
    assert again.corrupt_batches == 1


def test_a_batch_without_a_readable_length_costs_no_more_than_an_index_entry() -> None:
    """The old index knows where it goes on."""
    log = settled_then_more()
    for byte in (8, 9, 16):
        rot(log, 7 * BATCH_BYTES + byte, 6)
    again = reopen(log, clean=False, recovery_point=2 * BATCHES)
    assert again.end_offset == 2 * BATCHES + 2
    for number in (0, 6, 10, 20, BATCHES - 1):
        assert offsets(read_batches(again, 2 * number, 400))[:1] == [2 * number]
    with pytest.raises(KafkaError):
        read_batches(again, 14, 400)


def test_any_flipped_bit_leaves_the_end_where_it_was() -> None:
    """Offsets that somebody was given are not given again, whatever bit it is."""
    chance = random.Random(4)
    for _ in range(150):
        log = settled_then_more()
        rot(log, chance.randrange(BATCHES * BATCH_BYTES), chance.randrange(8))
        again = reopen(log, clean=False, recovery_point=2 * BATCHES)
        assert again.end_offset == 2 * BATCHES + 2
        put(again, batch(2))
        assert offsets(read_batches(again, 2 * BATCHES + 2)) == [2 * BATCHES + 2]


def test_above_the_recovery_point_a_bad_batch_still_ends_the_log() -> None:
    """There it is most likely the tail of a write that the crash tore."""
    log = settled_then_more()
    put(log, batch(2))
    rot(log, BATCHES * BATCH_BYTES + 70)
    again = reopen(log, clean=False, recovery_point=2 * BATCHES)
    assert again.end_offset == 2 * BATCHES


def test_a_missing_index_and_a_flipped_bit_cost_one_batch() -> None:
    """An index is built anew also over damage."""
    log = make_log(SimDisk(), LogSettings(segment_bytes=BATCHES * BATCH_BYTES, index_interval_bytes=512))
    fill(log, BATCHES + 5)
    first = log.segments[0]
    log.close()
    rot_at = 9 * BATCH_BYTES + 100
    assert isinstance(log.disk, SimDisk)
    log.disk.rot(first.path + ".log", rot_at * 8)
    log.disk.remove(first.path + ".index")
    again = reopen(log, clean=True, recovery_point=log.end_offset)
    assert again.segments[0].size == BATCHES * BATCH_BYTES
    check_all_but(again, 9)


def test_segments_below_the_log_start_are_not_looked_at() -> None:
    """Retention was cut short by a power cut, and of three old segments the one in the middle is gone: nobody minds."""
    log = make_log(SimDisk(), LogSettings(segment_bytes=1000, index_interval_bytes=512))
    fill(log, 20)
    run(log.flush())
    start, gone = log.segments[3].base, log.segments[1]
    gone.remove()
    again = reopen(log, clean=False, recovery_point=0, start_offset=start)
    assert (again.start_offset, again.end_offset) == (start, 40)
    assert offsets(read_batches(again, start))[0] == start


def test_what_lies_behind_damage_does_not_age_with_what_lies_before_it() -> None:
    """A closed segment without a sound time index, and with a batch that ends the walk over its headers."""
    log = make_log(SimDisk(), LogSettings(segment_bytes=4096, retention_ms=10_000))
    fill(log, 30, step_ms=1000)
    run(log.settle())
    first, number = log.segments[0], 3
    last_ms = first.load_max_timestamp()
    assert last_ms > NOW_MS + 10_000
    log.disk.open(first.path + ".timeindex").truncate(7)
    log.disk.open(first.path + ".log").write_at(number * BATCH_BYTES + 16, [b"\x09"])
    clock = Clock()
    clock.now_ms = last_ms
    again = closed_log(log.disk, log.settings, log.directory, clock)
    again.load(clean=True)
    for _ in range(2):
        assert retention.plan(again, last_ms + 5_000, again.end_offset) == 0
    assert retention.plan(again, last_ms + 11_000, again.end_offset) > 0  # as old as our knowledge of it
