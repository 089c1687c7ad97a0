"""Finding batches by offset and by time; what may be sent, and what a flipped bit does."""

from __future__ import annotations

import asyncio
import errno
import random
import struct
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from crc32c import crc32c
from hypothesis import given, settings
from hypothesis import strategies as st

from ottla.log import reading
from ottla.log.files import OpenFiles
from ottla.log.log import Log
from ottla.log.producers import Origin
from ottla.log.segment import Segment
from ottla.log.settings import LogSettings
from ottla.sim.disk import Loss, SimDisk
from ottla.wire.compression import Codec
from ottla.wire.errors import Error, KafkaError
from ottla.wire.records import Record, batches, build, look
from ottla.world import RealDisk, RealFile

sys.path.insert(0, str(Path(__file__).parent))
from logs import NOW_MS, SMALL, batch, fill, make_log, offsets, put, read_batches, reopen, run


def filled(count: int = 60) -> Log:
    """Several segments of two-record batches."""
    log = make_log()
    fill(log, count)
    assert len(log.segments) > 2
    return log


def test_a_fetch_inside_a_batch_returns_the_whole_batch() -> None:
    """LOG-12: the batch that holds the offset is the first one given."""
    log = filled()
    for again in (log, closed_and_reopened(log)):
        for offset in range(log.end_offset):
            assert read_batches(again, offset)[0].base_offset == offset // 2 * 2


def test_the_loop_does_not_wait_for_the_disk_to_find_an_offset() -> None:
    """What a power cut left is in nobody's memory; it is looked for off the loop, once."""
    log = filled()
    log.close()
    log.disk.sync_directory(log.directory)
    for segment in log.segments:
        for suffix in (".log", ".index", ".timeindex"):
            log.disk.open(segment.path + suffix).sync()
    assert isinstance(log.disk, SimDisk)
    log.disk.sync_directory("/")
    log.disk.sync_directory("/data")
    again = reopen(log, disk=log.disk.crash(random.Random(1), Loss.LOST))
    for bytes_max in (300, 1 << 20):
        offset = again.segments[1].base + 2 if bytes_max == 300 else again.segments[2].base + 2
        found = again.locate(offset, bytes_max, again.end_offset, may_wait=False)
        assert not found.verified and not found.size
        assert read_batches(again, offset, bytes_max)[0].base_offset == offset
        found = again.locate(offset, bytes_max, again.end_offset, may_wait=False)
        assert found.verified and found.size


def test_where_a_small_read_ended_is_forgotten_with_a_cut() -> None:
    """LOG-12: what lies there now may be another batch."""
    log = make_log()
    large, small = next((one, third) for one in range(200) for third in range(30) if sized(one) == 3 * sized(third))
    fill(log, 4, large)
    for offset in range(8):
        assert read_batches(log, offset, sized(large))[0].base_offset == offset // 2 * 2
    run(log.truncate_to(2))
    fill(log, 6, small)
    for offset in range(14):
        assert read_batches(log, offset, sized(large))[0].base_offset == offset // 2 * 2


def sized(value: int) -> int:
    return len(batch(2, value=b"x" * value))


def test_a_reader_goes_on_where_its_last_small_read_ended() -> None:
    """It need not be led there by the index."""
    log = make_log()
    fill(log, 4)
    located = log.locate(0, 300, 8)
    assert log.active.ends == {2: located.position + located.size}
    found = log.locate(2, 300, 8)
    assert found.position == located.size and found.read() == log.active.open().read_at(located.size, found.size)


def closed_and_reopened(log: Log) -> Log:
    log.close()
    return reopen(log)


def test_reading_from_start_to_end_gives_everything_once_in_order() -> None:
    """LOG-05, LOG-07, LOG-08: any number of readers at any place; reading takes nothing away."""
    log = filled()
    for bytes_max in (1, 300, 1000, 1 << 20):
        offset, seen = 0, []
        while offset < log.end_offset:
            heads = read_batches(log, offset, bytes_max)
            seen += offsets(heads)
            offset = heads[-1].next_offset
        assert seen == list(range(0, 120, 2))


def test_outside_of_the_log_is_out_of_range() -> None:
    """RET-04: below the start and above the end; the end itself is just empty."""
    log = filled()
    log.delete_records(11, log.end_offset)
    for offset in (-1, 10, 121):
        with pytest.raises(KafkaError) as caught:
            log.locate(offset, 1000, log.end_offset)
        assert caught.value.error is Error.OFFSET_OUT_OF_RANGE
    assert log.locate(120, 1000, 120).size == 0
    assert read_batches(log, 11)[0].base_offset == 10


def test_an_oversized_first_batch_is_given_whole_or_not_at_all() -> None:
    """PRT-15: progress is never blocked by a limit smaller than a batch."""
    log = make_log(settings=LogSettings())
    put(log, batch(value=b"x" * 5000), batch())
    assert offsets(read_batches(log, 0, 10)) == [0]
    assert log.locate(0, 10, 2, whole_first=False).size == 0
    assert log.locate(0, 5000, 2, whole_first=False).size == 0
    assert offsets(read_batches(log, 0, 6000)) == [0, 1]


def test_a_bound_cuts_before_the_batch_that_holds_it() -> None:
    log = filled()
    assert offsets(read_batches(log, 0, bound=5)) == [0, 2]
    assert offsets(read_batches(log, 0, bound=4)) == [0, 2]
    assert log.locate(4, 1000, 4).size == 0
    assert log.locate(5, 1000, 5).size == 0


@given(
    sizes=st.lists(st.integers(1, 900), min_size=1, max_size=60),
    bytes_max=st.integers(1, 3000),
    seed=st.integers(0, 2**32),
    again=st.booleans(),
)
@settings(max_examples=60, deadline=None)
def test_any_cut_is_whole_batches_below_the_bound_and_the_limit(
    sizes: list[int], bytes_max: int, seed: int, again: bool
) -> None:
    """LOG-12: found by index or in memory, fresh or after a restart, the answer obeys the same rules."""
    rng = random.Random(seed)
    log = make_log()
    lasts = []
    for size in sizes:
        put(log, batch(rng.randint(1, 4), value=b"v" * (size // 2)))
        lasts.append(log.end_offset - 1)
    log = closed_and_reopened(log) if again else log
    for _ in range(20):
        offset, bound = rng.randrange(log.end_offset), rng.randint(0, log.end_offset)
        located = run(log.read(offset, bytes_max, bound))
        if located.size == 0:
            assert bound <= min(last for last in lasts if last >= offset)
            continue
        data = located.read()
        heads = [head for _, head in batches(data)]
        assert sum(head.size for head in heads) == len(data)
        assert heads[0].base_offset <= offset <= heads[0].last_offset
        assert heads[-1].last_offset < bound
        assert len(data) <= bytes_max or len(heads) == 1
        following = [last for last in lasts if heads[-1].last_offset < last < bound]
        if following and located.position + located.size < located.segment.size:
            assert (len(data) + read_batches(log, following[0])[0].size) * 2 > bytes_max


def test_readers_at_the_tail_touch_no_file() -> None:
    """LOG-06: the newest boundaries are in memory."""
    log = filled()

    class Untouchable:
        fd, path = None, "nowhere"

        def read_at(self, position: int, size: int) -> bytes:
            raise AssertionError("the file was read")

    log.active.file = Untouchable()  # type: ignore[assignment]
    for back in (1, 2, 3):
        located = log.locate(log.end_offset - back, 1 << 20, log.end_offset)
        assert located.verified and located.size > 0


def test_bytes_between_offsets_by_position() -> None:
    log = filled()
    sizes = {head.base_offset: head.size for head in everything(log)}
    for first, bound in ((0, 120), (4, 10), (5, 10), (100, 120), (7, 7), (30, 20)):
        wanted = sum(size for at, size in sizes.items() if first // 2 * 2 <= at < bound) if first < bound else 0
        assert log.bytes_from(first, bound) == wanted


def everything(log: Log) -> list[object]:
    heads, offset = [], log.start_offset
    while offset < log.end_offset:
        heads += read_batches(log, offset)
        offset = heads[-1].next_offset
    return heads  # type: ignore[return-value]


def test_a_hole_left_by_compaction_is_stepped_over() -> None:
    """LOG-12: a replica of a compacted log has gaps, inside segments and between them."""
    log = make_log(settings=LogSettings(segment_bytes=300))
    for base in (0, 10, 500, 1000):
        data = build([Record(value=b"x" * 100)], base_offset=base, leader_epoch=0)
        put(log, memoryview(data), origin=Origin.REPLICATION)
    for offset, found in ((1, 10), (10, 10), (11, 500), (501, 1000), (1000, 1000)):
        assert read_batches(log, offset)[0].base_offset == found
        assert read_batches(closed_and_reopened(log), offset)[0].base_offset == found


# -- what may be sent


def test_only_what_was_verified_since_the_start_may_be_sent() -> None:
    """A slice says whether its checksums were checked; verifying it once is enough."""
    log = closed_and_reopened(filled())
    located = log.locate(0, 500, log.end_offset)
    assert not located.verified
    assert run(log.verify(located)).verified
    assert log.locate(0, 500, log.end_offset).verified
    assert not log.locate(0, 5000, log.end_offset).verified
    put(log, batch())
    assert log.locate(log.end_offset - 1, 500, log.end_offset).verified


def test_recovery_verifies_what_it_scans() -> None:
    log = filled()
    again = reopen(log, clean=False)
    assert again.locate(0, 1 << 20, again.end_offset).verified


@pytest.mark.parametrize("region", ["length", "crc", "body"])
def test_a_flipped_bit_in_a_closed_segment_spoils_only_its_batch(region: str) -> None:
    """REC-04: CORRUPT_MESSAGE for that batch, everything else is served, nothing is truncated, and it is counted."""
    log = make_log(settings=LogSettings(segment_bytes=8192, index_interval_bytes=100))
    fill(log, 60)
    log.close()
    again = reopen(log)
    segment = again.segments[0]
    position, size = segment.position_of(20), segment.batch_size(segment.position_of(20))
    byte = {"length": 9, "crc": 18, "body": size - 5}[region]
    sizes = [closed.size for closed in again.segments]
    again.disk.rot(segment.path + ".log", (position + byte) * 8 + 3)  # type: ignore[attr-defined]
    with pytest.raises(KafkaError) as caught:
        read_batches(again, 20)
    assert caught.value.error is Error.CORRUPT_MESSAGE
    assert offsets(read_batches(again, 16)) == [16, 18]
    assert again.corrupt_batches == 1
    for offset in (22, 24, 40, segment.base + 60, again.end_offset - 1):
        assert read_batches(again, offset)[0].base_offset == offset // 2 * 2
    assert [closed.size for closed in again.segments] == sizes


@pytest.mark.parametrize("bit", range(0, 64, 5))
def test_a_flipped_bit_in_an_offset_is_noticed_too(bit: int) -> None:
    """Offsets lie outside the CRC: a batch that contradicts its neighbours is not served as another one."""
    log = make_log(settings=LogSettings(segment_bytes=8192, index_interval_bytes=100))
    fill(log, 60)
    log.close()
    again = reopen(log)
    segment = again.segments[0]
    position = segment.position_of(20)
    again.disk.rot(segment.path + ".log", position * 8 + bit)  # type: ignore[attr-defined]
    for offset in range(0, 60, 2):
        try:
            heads = read_batches(again, offset)
        except KafkaError as error:
            assert error.error is Error.CORRUPT_MESSAGE and offset == 20
        else:
            assert offsets(heads) == list(range(offset, offset + 2 * len(heads), 2)) and offset != 20


def test_an_index_with_other_offsets_than_the_log_is_rebuilt() -> None:
    """LOG-12: a rotten index costs a walk over the headers, not the data."""
    log = filled()
    log.close()
    path = log.segments[0].path + ".index"
    log.disk.rot(path, 8 * 8 + 30)  # type: ignore[attr-defined]
    again = reopen(log)
    for offset in range(again.end_offset):
        assert read_batches(again, offset)[0].base_offset == offset // 2 * 2


# -- by time


def test_the_first_record_at_or_after_a_timestamp() -> None:
    log = make_log()
    fill(log, 60, step_ms=10)
    for again in (log, closed_and_reopened(log)):
        for number in (0, 1, 7, 30, 59):
            found = run(again.offset_for_timestamp(NOW_MS + number * 10))
            assert found == (NOW_MS + number * 10, number * 2, 0)
            assert run(again.offset_for_timestamp(NOW_MS + number * 10 - 3)) == found
        assert run(again.offset_for_timestamp(NOW_MS + 591)) is None
        again.delete_records(21, again.end_offset)
        assert run(again.offset_for_timestamp(0)) == (NOW_MS + 100, 21, 0)
        assert run(again.max_timestamp()) == (NOW_MS + 590, 118, 0)


@pytest.mark.parametrize("codec", list(Codec))
def test_the_record_inside_a_batch(codec: int) -> None:
    log = make_log()
    times = [NOW_MS + 5, NOW_MS + 90, NOW_MS + 20, NOW_MS + 90]
    put(log, batch(), memoryview(bytearray(build([Record(timestamp=time) for time in times], codec=codec))))
    assert run(log.offset_for_timestamp(NOW_MS + 6)) == (NOW_MS + 90, 2, 0)
    assert run(log.max_timestamp()) == (NOW_MS + 90, 2, 0)


def test_the_largest_timestamp_may_lie_in_an_old_segment() -> None:
    log = make_log()
    put(log, batch(timestamp=NOW_MS + 1000))
    fill(log, 60, step_ms=0)
    assert run(closed_and_reopened(log).max_timestamp()) == (NOW_MS + 1000, 0, 0)
    assert run(make_log().max_timestamp()) is None


def test_a_record_that_was_deleted_has_no_largest_timestamp() -> None:
    log = make_log()
    put(log, batch(2, timestamp=NOW_MS + 9), batch(timestamp=NOW_MS), batch(timestamp=NOW_MS + 9))
    for before, expected in ((1, (NOW_MS + 9, 1, 0)), (2, (NOW_MS + 9, 3, 0)), (4, None)):
        log.delete_records(before, log.end_offset)
        assert run(log.max_timestamp()) == expected


def test_headers_that_lie_are_not_followed_through_a_whole_segment(monkeypatch: pytest.MonkeyPatch) -> None:
    """The largest timestamp is looked for in the first batch that claims to have it, as in Apache Kafka."""
    looked: list[int] = []
    find = reading._find_in_batch

    async def count(log: Log, segment: Segment, position: int, *rest: Any) -> reading.Found | None:
        looked.append(position)
        return await find(log, segment, position, *rest)

    monkeypatch.setattr(reading, "_find_in_batch", count)
    log = make_log()
    put(log, *[lying(batch(timestamp=NOW_MS), NOW_MS + 50) for _ in range(9)])
    assert run(log.max_timestamp()) is None and looked == [0]
    monkeypatch.setattr(reading, "HEADERS_PER_TURN", 3)
    log.delete_records(1, log.end_offset)
    put(log, *[batch(timestamp=NOW_MS - 1)] * 5)
    assert run(log.max_timestamp()) is None and len(looked) == 2


def lying(data: memoryview, largest: int) -> memoryview:
    struct.pack_into(">q", data, 35, largest)
    struct.pack_into(">I", data, 17, crc32c(data[21:]))
    return data


def test_others_get_their_turn_while_a_timestamp_is_looked_for_in_a_large_batch() -> None:
    records = [Record(timestamp=NOW_MS + number, value=b"v") for number in range(5000)]
    log = make_log(settings=LogSettings())
    put(log, memoryview(bytearray(build(records, codec=Codec.ZSTD))))
    turns = 0

    async def others() -> None:
        nonlocal turns
        while True:
            turns += 1
            await asyncio.sleep(0)

    async def ask() -> None:
        task = asyncio.ensure_future(others())
        assert await log.offset_for_timestamp(NOW_MS + 4999) == (NOW_MS + 4999, 4999, 0)
        task.cancel()

    run(ask())
    assert turns > 5000 // reading.RECORDS_PER_TURN - 2


def test_a_long_way_to_a_timestamp_is_gone_in_pieces_off_the_loop(monkeypatch: pytest.MonkeyPatch) -> None:
    """Where timestamps do not rise the time index says nothing: four million batches were walked through in one go."""
    log, pieces = make_log(settings=LogSettings()), 0
    put(log, *[batch(timestamp=NOW_MS)] * 5000, batch(timestamp=NOW_MS + 1))
    away = log.disk.away

    async def piece(call: Callable[..., Any], *args: Any) -> Any:
        nonlocal pieces
        pieces += 1
        return await away(call, *args)

    monkeypatch.setattr(log.disk, "away", piece)
    assert run(log.offset_for_timestamp(NOW_MS + 1)) == (NOW_MS + 1, 5000, 0)
    assert pieces > 5000 // reading.HEADERS_PER_TURN


def test_the_largest_timestamp_where_no_record_has_one_is_that_of_the_first() -> None:
    log = make_log()
    put(log, batch(2, timestamp=-1), batch(timestamp=-1))
    for again in (log, closed_and_reopened(log)):
        assert run(again.max_timestamp()) == (-1, 0, 0)


# -- handles


def test_open_files_are_bounded_and_a_slice_keeps_its_own(tmp_path: Path) -> None:
    """LOG-24: segments let their files go; a slice being sent still reads."""
    log = make_log(RealDisk(), SMALL, str(tmp_path / "topic-0"))
    log.files.files_max = 3
    fill(log, 200)
    located = run(log.read(0, 1000, log.end_offset))
    for segment in log.segments:
        read_batches(log, segment.base)
    assert len(log.segments) > 6 and len(log.files) == 3
    assert log.segments[0].file is None and located.size > 0
    assert look(located.read()).base_offset == 0
    put(log, batch())


def test_the_cost_of_finding_does_not_grow_with_the_log() -> None:
    """LOG-06: reads per lookup at 300 and at 3,000 batches in one segment are the same."""

    class Counting(SimDisk):
        reads = 0

    def reads_at(count: int) -> int:
        log = make_log(Counting(), LogSettings(index_interval_bytes=512))
        fill(log, count)
        file, counted = log.active.open(), [0]

        class Counted:
            fd, path = None, ""

            def read_at(self, position: int, size: int) -> bytes:
                counted[0] += 1
                return file.read_at(position, size)

        log.active.file = Counted()  # type: ignore[assignment]
        log.locate(count, 1 << 20, log.end_offset)
        return counted[0]

    assert reads_at(3000) == reads_at(300) <= 2


def test_a_limit_that_falls_behind_a_damaged_header_cuts_before_it() -> None:
    log = make_log(settings=LogSettings(segment_bytes=8192, index_interval_bytes=2000))
    fill(log, 60)
    log.close()
    again = reopen(log)
    segment = again.segments[0]
    position, size = segment.position_of(6), segment.batch_size(0)
    again.disk.rot(segment.path + ".log", (position + 9) * 8)  # type: ignore[attr-defined]
    assert offsets(read_batches(again, 0, size * 6)) == [0, 2, 4]
    with pytest.raises(KafkaError):
        read_batches(again, 6, size * 6)


def test_fewer_descriptors_than_expected(tmp_path: Path) -> None:
    """LOG-24: when the machine refuses another file, older ones are let go."""

    class Stingy(RealDisk):
        refusals = 1

        def open(self, path: str, *, create: bool = False) -> RealFile:
            if self.refusals and len(files) > 4 and path.endswith(".log"):
                self.refusals -= 1
                raise OSError(errno.EMFILE, "too many open files")
            return super().open(path, create=create)

    files: OpenFiles | tuple[()] = ()
    log = make_log(disk := Stingy(), SMALL, str(tmp_path / "topic-0"))
    files = log.files
    fill(log, 200)
    for segment in log.segments:
        read_batches(log, segment.base)
    assert not disk.refusals and len(log.files) <= 2
