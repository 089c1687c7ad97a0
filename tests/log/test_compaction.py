"""Compaction: what goes, what stays and why, and that nothing else about the log changes."""

from __future__ import annotations

import random
import sys
from collections.abc import Callable, Coroutine
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from crc32c import crc32c

from ottla.log import compaction, retention
from ottla.log.checkpoints import CLEANED_TO
from ottla.log.compacting import KEY_BYTES_MAX, Unreadable
from ottla.log.compaction import Tools
from ottla.log.directory import DataDirectory
from ottla.log.identity import MetaProperties
from ottla.log.log import Log
from ottla.log.producers import Origin
from ottla.log.settings import LogSettings
from ottla.log.trimming import sync_names
from ottla.sim.disk import SimDisk
from ottla.wire.compression import Codec
from ottla.wire.records import CRC_FROM, DELETE_HORIZON_BIT, LOG_APPEND_TIME, Record, build
from ottla.world import UNLIMITED

sys.path.insert(0, str(Path(__file__).parent))
from compacted import (
    COMPACT,
    NOW_MS,
    Between,
    clean,
    contents,
    decide,
    dirt_of,
    keyed,
    offsets,
    records,
    transactional,
)
from logs import make_log, reopen, run


def one_key(count: int, settings: LogSettings = COMPACT) -> Log:
    log = make_log(settings=settings)
    for number in range(count):
        keyed(log, (b"key", b"value %d" % number))
    return log


def names(log: Log, *endings: str) -> list[str]:
    return [name for name in log.disk.names(log.directory) if name.endswith(endings)]


# -- what stays


def test_only_the_newest_record_of_a_key_stays() -> None:
    """RET-05, RET-06, RET-07: all older ones are gone below the active segment, offsets are what they were."""
    log = one_key(100)
    active, end = log.active.base, log.end_offset
    run(clean(log))
    assert (log.start_offset, log.end_offset, log.active.base) == (0, end, active)
    left = run(records(log))
    assert [record.offset for record in left] == [active - 1, *range(active, 100)]
    assert all(record.value == b"value %d" % record.offset for record in left)
    assert log.cleaned_to == active
    assert all(segment.size == 61 for segment in log.segments[:-2]), "the last batch of each, empty"
    run(clean(log))
    assert len(log.segments) == 2


def test_other_keys_stay_where_they_were() -> None:
    """RET-07: order and offsets, also inside a batch of which something goes."""
    log = make_log(settings=COMPACT)
    keyed(log, (b"a", b"1"), (b"b", b"1"), (b"c", b"1"), timestamp=NOW_MS + 5)
    keyed(log, (b"b", b"2"))
    log.roll()
    before = {record.offset: record for record in run(records(log))}
    run(clean(log))
    left = run(records(log))
    assert left == [before[0], before[2], before[3]]
    head = run(contents(log))[0][0]
    assert (head.base_offset, head.last_offset, head.count) == (0, 2, 2)


def test_a_batch_of_which_nothing_goes_is_copied_byte_by_byte() -> None:
    log = make_log(settings=COMPACT)
    keyed(log, (b"a", b"1"), (b"b", b"1"), codec=Codec.LZ4)
    keyed(log, (b"c", b"1"))
    log.roll()
    before = run(contents(log))
    run(clean(log))
    assert run(contents(log)) == before


@pytest.mark.parametrize("codec", list(Codec))
def test_the_codec_of_a_batch_is_kept(codec: Codec) -> None:
    log = make_log(settings=COMPACT)
    keyed(log, (b"a", b"1" * 300), (b"b", b"2" * 300), codec=codec)
    keyed(log, (b"a", b"3" * 300), codec=codec)
    log.roll()
    run(clean(log))
    assert [head.codec for head, _ in run(contents(log))] == [codec, codec]
    assert [(record.offset, record.value) for record in run(records(log))] == [(1, b"2" * 300), (2, b"3" * 300)]


def test_timestamps_are_kept() -> None:
    """Those of the records, and the largest of what is left as the batch's own."""
    log = make_log(settings=COMPACT)
    data = [Record(timestamp=NOW_MS + ms, key=key, value=b"v") for ms, key in ((0, b"a"), (-50, b"b"), (90, b"a"))]
    log.append(memoryview(bytearray(build([*data, data[0]._replace(timestamp=NOW_MS - 7)]))), Origin.CLIENT, 0, NOW_MS)
    log.publish()
    log.roll()
    run(clean(log))
    assert [(record.offset, record.timestamp) for record in run(records(log))] == [(1, NOW_MS - 50), (3, NOW_MS - 7)]
    assert run(contents(log))[0][0].max_timestamp == log.segments[0].load_max_timestamp() == NOW_MS - 7
    assert reopen(log).segments[0].load_max_timestamp() == NOW_MS - 7


def test_append_time_is_kept() -> None:
    log = make_log(settings=replace(COMPACT, message_timestamp_type="LogAppendTime"))
    keyed(log, (b"a", b"1"), (b"b", None))
    keyed(log, (b"a", b"2"))
    log.roll()
    before = {record.offset: record for record in run(records(log))}
    run(clean(log))
    assert run(records(log)) == [before[1], before[2]]
    assert {head.timestamp_type for head, _ in run(contents(log))} == {LOG_APPEND_TIME}


def test_a_record_without_key_goes() -> None:
    """RET-05: from before the topic was compacted; Apache drops those too."""
    log = make_log(settings=replace(COMPACT, cleanup_policy=frozenset({"delete"})))
    for key in (None, b"a", None):
        log.append(memoryview(bytearray(build([Record(timestamp=NOW_MS, key=key)]))), Origin.CLIENT, 0, NOW_MS)
    log.publish()
    log.configure(COMPACT)
    keyed(log, (b"b", b"1"))
    log.roll()
    run(clean(log))
    assert run(offsets(log)) == [1, 3]


def test_long_keys_are_told_apart() -> None:
    log = make_log(settings=COMPACT)
    long = [b"x" * size + tail for size in (KEY_BYTES_MAX - 1, KEY_BYTES_MAX, 300) for tail in (b"", b"y", b"z")]
    for number in range(3):
        for key in long:
            keyed(log, (key, b"%d" % number))
    log.roll()
    run(clean(log))
    assert [record.key for record in run(records(log))] == long


# -- tombstones


def test_a_tombstone_stays_for_its_time_and_goes_then() -> None:
    """RET-07, TRAP-70: by the delete horizon that the first round writes into its batch, in place of the base timestamp."""
    log = make_log(settings=COMPACT)
    keyed(log, (b"a", b"1"))
    keyed(log, (b"a", None), (b"b", b"1"), timestamp=NOW_MS - 3)
    log.roll()
    keyed(log, (b"c", b"1"))
    log.roll()
    run(clean(log))
    assert run(offsets(log)) == [1, 2, 3]
    head = run(contents(log))[0][0]
    assert head.attributes & DELETE_HORIZON_BIT and head.base_timestamp == NOW_MS + 1000
    assert {record.timestamp for record in run(records(log)) if record.offset < 3} == {NOW_MS - 3}
    for later, left in ((999, [1, 2, 3, 4]), (1000, [2, 3, 4, 5])):
        keyed(log, (b"%d" % later, b"1"))
        log.roll()
        run(clean(log, now_ms=NOW_MS + later))
        assert run(offsets(log)) == left
    assert run(contents(log))[0][0].base_timestamp == NOW_MS + 1000, "the horizon was not set anew"


def test_a_tombstone_that_is_superseded_goes_at_once() -> None:
    log = make_log(settings=COMPACT)
    keyed(log, (b"a", None))
    keyed(log, (b"a", b"1"))
    log.roll()
    run(clean(log))
    assert run(offsets(log)) == [1]


# -- bounds


def test_never_the_active_segment() -> None:
    """TRAP-69."""
    log = one_key(3)
    assert dirt_of(log).dirty_bytes == 0 and dirt_of(log).upper == 0


def test_never_past_the_high_watermark() -> None:
    """TRAP-69: only whole segments below it."""
    log = one_key(60)
    run(log.flush())
    bases = [segment.base for segment in log.segments]
    for watermark in (bases[2] - 1, bases[2], bases[2] + 1):
        expected = bases[1] if watermark < bases[2] else bases[2]
        assert dirt_of(log, high_watermark=watermark).upper == expected
    run(clean(log, upto=bases[2] + 1))
    assert run(offsets(log))[0] == bases[2] - 1


def test_never_past_the_last_stable_offset() -> None:
    """TRAP-69: a transaction that is open, or whose marker is not below the watermark, is not touched."""
    log = make_log(settings=COMPACT)
    for _ in range(3):
        keyed(log, (b"a", b"1"))
        log.roll()
    first = transactional(log, 7, 0, (b"a", b"2"))
    log.roll()
    keyed(log, (b"a", b"3"))
    log.roll()
    run(clean(log))
    assert run(offsets(log)) == [2, 3, 4]
    marker = decide(log, 7, True)
    log.roll()
    assert dirt_of(log, high_watermark=marker).upper == first
    run(clean(log))
    assert run(offsets(log)) == [4]


def test_never_what_is_not_synced() -> None:
    """A scan after a crash must not find holes."""
    log = one_key(60)
    assert log.recovery_point == 0 and dirt_of(log).dirty_bytes == 0
    run(log.flush())
    assert dirt_of(log).upper == log.active.base


def test_the_youngest_records_wait() -> None:
    """RET-05: `min.compaction.lag.ms`, by the largest timestamp of each segment."""
    log = make_log(settings=replace(COMPACT, min_compaction_lag_ms=500))
    for age in (2000, 1000, 400, 800):
        keyed(log, (b"a", b"1"), timestamp=NOW_MS - age)
        log.roll()
    run(log.flush())
    assert dirt_of(log).upper == 2
    assert dirt_of(log, now_ms=NOW_MS + 100).upper == 4


# -- when


def test_a_log_is_due_by_its_share_of_dirty_bytes() -> None:
    """RET-05: `min.cleanable.dirty.ratio`."""
    log = one_key(60)
    run(log.flush())
    dirt = dirt_of(log)
    assert dirt.ratio == 1.0 and compaction.is_due(log, dirt)
    run(clean(log))
    assert dirt_of(log).ratio == 0.0
    log.configure(replace(COMPACT, min_cleanable_dirty_ratio=0.5))
    for number in range(40):
        keyed(log, (b"other %d" % number, b"1" * 100))
    run(log.flush())
    dirt = dirt_of(log)
    clean_bytes = sum(segment.size for segment in log.segments if segment.base < log.cleaned_to)
    assert 0 < clean_bytes == dirt.clean_bytes
    assert 0.5 < dirt.ratio == dirt.dirty_bytes / (dirt.dirty_bytes + clean_bytes) < 1
    assert compaction.is_due(log, dirt)
    log.configure(replace(COMPACT, min_cleanable_dirty_ratio=1.0))
    assert not compaction.is_due(log, dirt)


def test_a_log_is_due_when_it_has_waited_too_long() -> None:
    """RET-05: `max.compaction.lag.ms`; it also ends the active segment in time."""
    log = make_log(settings=replace(COMPACT, max_compaction_lag_ms=5000, min_cleanable_dirty_ratio=1.0))
    keyed(log, (b"a", b"1"))
    keyed(log, (b"a", b"2"), timestamp=NOW_MS + 5000)
    assert len(log.segments) == 1
    keyed(log, (b"a", b"3"), timestamp=NOW_MS + 5001)
    assert len(log.segments) == 2
    run(log.flush())
    assert not compaction.is_due(log, dirt_of(log, now_ms=NOW_MS + 5000))
    assert compaction.is_due(log, dirt_of(log, now_ms=NOW_MS + 5001))


def test_a_point_that_cannot_be_right_is_not_believed() -> None:
    """Above the end after a cut, or below the start: all of the log is dirty."""
    log = one_key(60)
    run(log.flush())
    for cleaned_to in (61, -1):
        log.cleaned_to = cleaned_to
        assert dirt_of(log).first_dirty == 0
    run(clean(log))
    run(log.truncate_to(5))
    assert log.cleaned_to <= 5


def test_rounds_go_as_far_as_the_map_reaches() -> None:
    """RET-05: the memory for keys is bounded; what did not fit is for the next round."""
    log = make_log(settings=COMPACT)
    for number in range(120):
        keyed(log, (b"key %d" % (number % 40), b"%d" % number))
    log.roll()
    tools = Tools(map_bytes=5 * 160, chunk_bytes=4096, bytes_per_second=UNLIMITED)
    ends = []
    while log.cleaned_to < log.active.base:
        before = log.cleaned_to
        run(clean(log, tools=tools))
        assert log.cleaned_to > before
        ends.append(log.cleaned_to)
        newest = {record.key: record.value for record in run(records(log))}
        assert newest == {b"key %d" % (number % 40): b"%d" % number for number in range(80, 120)}
    assert len(ends) > 10
    assert run(offsets(log)) == list(range(80, 120))


def test_many_small_segments_become_few() -> None:
    """LOG-21: up to the size of one, by log and by index."""
    log = make_log(settings=replace(COMPACT, segment_bytes=600))
    for number in range(60):
        keyed(log, (b"key %d" % number, b"v"))
    log.configure(replace(COMPACT, segment_bytes=2000))
    before = len(log.segments)
    log.roll()
    run(clean(log))
    assert len(log.segments) <= before / 2
    assert all(segment.size <= 2000 for segment in log.segments)
    assert run(offsets(log)) == list(range(60))
    assert names(log, ".cleaned", ".swap") == []


def test_segments_whose_indexes_would_not_fit_into_one_stay_apart() -> None:
    """LOG-21: `segment.index.bytes` bounds what becomes one, as it bounds what is appended to."""

    def left(index_bytes: int) -> int:
        log = make_log(settings=replace(COMPACT, segment_bytes=600, index_interval_bytes=100))
        for number in range(200):
            keyed(log, (b"key %d" % number, b"v"))
        log.configure(replace(log.settings, segment_bytes=1 << 20, segment_index_bytes=index_bytes))
        log.roll()
        run(clean(log))
        return len(log.segments)

    assert left(10 << 20) == 2 < left(480) < left(240)


def test_a_large_log_is_done_step_by_step(monkeypatch: pytest.MonkeyPatch) -> None:
    """What is written is swapped in before more is: a round needs little room on the disk. Transactions may span steps."""
    monkeypatch.setattr("ottla.log.compacting.WRITTEN_MAX", 1)
    log = make_log(settings=replace(COMPACT, segment_bytes=700))
    transactional(log, 9, 0, (b"aborted", b"1"))
    for number in range(40):
        keyed(log, (b"key %d" % (number % 30), b"%d" % number * 30))
    transactional(log, 9, 1, (b"aborted", b"2"))
    decide(log, 9, False)
    log.producers.entries.clear()
    log.roll()
    steps = run(clean(log))
    assert len(steps) > 3 and {step.end for step in steps} == {log.active.base}
    assert {record.key: record.value for record in run(records(log))} == {
        b"key %d" % (number % 30): b"%d" % number * 30 for number in range(10, 40)
    }
    assert [head.is_control for head, _ in run(contents(log)) if head.producer_id == 9] == [True]


# -- producers and transactions


def test_the_last_batch_of_a_known_producer_stays_without_its_records() -> None:
    """TRAP-69, IDM-06: its numbers are there after a restart without snapshots, and a repeated batch is recognised."""
    log = make_log(settings=COMPACT)
    keyed(log, (b"a", b"1"), (b"b", b"1"), producer_id=5, producer_epoch=2, base_sequence=0)
    keyed(log, (b"a", b"2"), (b"b", b"2"), producer_id=5, producer_epoch=2, base_sequence=2)
    keyed(log, (b"a", b"3"), (b"b", b"3"))
    log.roll()
    run(clean(log))
    kept = run(contents(log))[0][0]
    assert (kept.base_offset, kept.last_offset, kept.count, kept.size) == (2, 3, 0, 61)
    assert (kept.producer_id, kept.producer_epoch, kept.base_sequence, kept.last_sequence) == (5, 2, 2, 3)
    assert run(offsets(log)) == [4, 5]
    for name in names(log, ".snapshot"):
        log.disk.remove(f"{log.directory}/{name}")
    again = reopen(log, clean=False)
    pair = [Record(timestamp=NOW_MS, key=b"a"), Record(timestamp=NOW_MS, key=b"b")]
    repeated = build(pair, producer_id=5, producer_epoch=2, base_sequence=2)
    answer = again.append(memoryview(bytearray(repeated)), Origin.CLIENT, 0, NOW_MS)
    assert answer.duplicate and answer.first_offset == 2
    log.producers.entries.clear()
    log.roll()
    keyed(log, (b"c", b"3"))
    log.roll()
    run(clean(log))
    assert [head.base_offset for head, _ in run(contents(log))] == [4, 6], "a producer that is forgotten holds nothing"


def test_the_last_batch_of_a_round_stays() -> None:
    """TRAP-69: also empty, so that a log which ends there still knows its end."""
    log = make_log(settings=COMPACT)
    keyed(log, (b"a", b"1"))
    transactional(log, 3, 0, (b"a", b"2"))
    decide(log, 3, False)
    log.producers.entries.clear()
    log.roll()
    run(clean(log))
    heads = [head for head, _ in run(contents(log))]
    assert [(head.base_offset, head.count) for head in heads] == [(0, 1), (2, 1)]
    end = log.end_offset
    log.disk.remove(log.active.path + ".log")
    assert reopen(log).end_offset == end


def test_aborted_records_go_and_their_marker_follows() -> None:
    """TRAP-70: the marker stays in the round that takes the records, then for `delete.retention.ms`, and is gone then."""
    log = make_log(settings=COMPACT)
    keyed(log, (b"a", b"1"))
    first = transactional(log, 3, 0, (b"a", b"aborted"))
    marker = decide(log, 3, False)
    transactional(log, 4, 0, (b"b", b"committed"))
    committed = decide(log, 4, True)
    log.producers.entries.clear()
    keyed(log, (b"z", b"1"))
    log.roll()
    run(clean(log))
    assert [head.base_offset for head, _ in run(contents(log))] == [0, marker, 3, committed, 5]
    (row,) = log.aborted_transactions(0, log.end_offset)
    assert (row.first_offset, row.last_offset) == (first, marker)
    assert names(log, ".txnindex") == [f"{0:020d}.txnindex"]

    keyed(log, (b"b", b"2"))
    log.roll()
    run(clean(log))
    heads = [head for head, _ in run(contents(log))]
    assert [head.base_offset for head in heads] == [0, marker, committed, 5, 6]
    assert heads[1].attributes & DELETE_HORIZON_BIT and heads[1].base_timestamp == NOW_MS + 1000
    assert not heads[2].attributes & DELETE_HORIZON_BIT, "a batch of its transaction was there in this round"
    assert log.aborted_transactions(0, log.end_offset) == [] and not names(log, ".txnindex")

    for later, left in ((999, [0, marker, committed, 5, 6, 7]), (1000, [0, committed, 5, 6, 7, 8])):
        keyed(log, (b"more %d" % later, b"1"))
        log.roll()
        run(clean(log, now_ms=NOW_MS + later))
        assert [head.base_offset for head, _ in run(contents(log))] == left


def test_a_marker_is_kept_by_the_empty_batch_of_its_transaction() -> None:
    """TRAP-70: else the transaction would seem to be open after a restart."""
    log = make_log(settings=COMPACT)
    transactional(log, 3, 0, (b"a", b"aborted"))
    decide(log, 3, False)
    keyed(log, (b"a", b"2"))
    log.roll()
    for round in range(3):
        keyed(log, (b"x %d" % round, b"1"))
        log.roll()
        run(clean(log, now_ms=NOW_MS + 2000 * round))
        heads = [head for head, _ in run(contents(log))][:3]
        assert [(head.base_offset, head.count) for head in heads] == [(0, 0), (1, 1), (2, 1)]
        assert log.last_stable_offset(log.end_offset) == log.end_offset
    again = reopen(log, clean=False)
    assert again.last_stable_offset(again.end_offset) == again.end_offset


def test_aborted_records_do_not_hide_older_ones() -> None:
    log = make_log(settings=COMPACT)
    keyed(log, (b"a", b"1"))
    transactional(log, 3, 0, (b"a", b"aborted"), (b"b", b"aborted"))
    log.roll()
    decide(log, 3, False)  # in a later segment than its records
    log.roll()
    run(clean(log, upto=3))
    run(clean(log))
    assert [record.value for record in run(records(log))] == [b"1"]


# -- files


def test_indexes_lead_to_every_record() -> None:
    """LOG-12: and a start finds nothing to rebuild."""
    log = make_log(settings=replace(COMPACT, segment_bytes=3000, index_interval_bytes=100))
    for number in range(200):
        keyed(log, (b"key %d" % (number * 7 % 90), b"%d" % number), timestamp=NOW_MS + number)
    log.roll()
    run(clean(log))
    left = run(records(log))
    again = reopen(log)
    for one in (log, again):
        for record in left:
            located = run(one.read(record.offset, 1, one.end_offset))
            assert located.size
            found = run(one.offset_for_timestamp(record.timestamp))
            assert found is not None and found.offset == record.offset
    assert again.recovered is not None and not again.recovered.repaired
    assert [segment.read_index() for segment in again.segments] == [segment.read_index() for segment in log.segments]
    assert max(len(segment.read_index()) for segment in log.segments) > 3


def test_snapshots_of_segments_that_are_gone_go_with_them() -> None:
    """TRAP-06."""
    log = make_log(settings=COMPACT)
    for number in range(60):
        keyed(log, (b"k", b"%d" % number), producer_id=5, producer_epoch=0, base_sequence=number)
    log.roll()
    assert len(log.snapshots) > 3
    run(clean(log))
    run(clean(log))
    assert log.snapshots == [log.active.base]
    assert [int(name[:20]) for name in names(log, ".snapshot")] == log.snapshots


def test_whoever_reads_an_old_segment_goes_on_undisturbed() -> None:
    """LOG-08: a slice that is on its way, and a reader that has only just found the segment."""

    async def story() -> None:
        log = one_key(100)
        located = await log.read(0, 1 << 20, log.end_offset)
        before, segment = located.read(), log.segments[1]
        assert located.slice is not None
        await clean(log)
        assert located.read() == before
        assert segment.mark == ".deleted" and next(segment.headers(0))[1][0] == segment.base
        assert log.deleted is not None and len(log.deleted) >= 3
        for path in log.sweep(NOW_MS + 60_000):
            log.disk.remove(path)
        assert located.read() == before
        assert names(log, ".deleted") == []

    run(story())


def test_readers_find_everything_at_every_moment_of_a_swap() -> None:
    """LOG-08: between any two steps of it."""

    async def story() -> None:
        log = one_key(100)
        await log.flush()
        active = log.active.base

        disk = log.disk
        away, looks = disk.away, 0

        async def look(call: object, *args: object) -> object:
            nonlocal looks
            done: object = await away(call, *args)  # type: ignore[arg-type]
            if log.arranging:
                looks += 1
                for segment in log.segments:
                    log.files.close(segment)
                    log.files.drop_index(segment.at(".index"))
                located = log.locate(0, 1 << 20, log.end_offset)
                assert located.size
                assert log.locate(active - 1, 1 << 20, log.end_offset).size
            return done

        disk.away = look  # type: ignore[method-assign, assignment]
        await clean(log)
        assert looks >= 4

    run(story())


def test_the_point_is_written_as_apache_writes_it() -> None:
    """LOG-20: `cleaner-offset-checkpoint`, and it is believed by the next start; a deleted topic is not in it."""

    async def story() -> None:
        disk = SimDisk()
        directory = DataDirectory(disk, "/data", now_ms=lambda: NOW_MS, rng=random.Random(1))
        directory.open()
        directory.format(MetaProperties("cluster", 1, b"d" * 16))
        await directory.load(lambda topic: COMPACT)
        for topic in ("one", "two"):
            log = await directory.create(topic, 3, b"t" * 16, COMPACT)
            for number in range(30):
                keyed(log, (b"k", b"%d" % number))
            await clean(log)
        ends = [log.active.base for log in directory.logs.values()]
        text = disk.read(f"/data/{CLEANED_TO}").decode()
        assert text == f"0\n2\none 3 {ends[0]}\ntwo 3 {ends[1]}\n"
        await directory.delete("one", 3)
        directory.close()
        assert disk.read(f"/data/{CLEANED_TO}").decode() == f"0\n1\ntwo 3 {ends[1]}\n"
        again = DataDirectory(disk, "/data", now_ms=lambda: NOW_MS, rng=random.Random(1))
        again.open()
        await again.load(lambda topic: COMPACT)
        assert again.logs["two", 3].cleaned_to == ends[1]

    run(story())


# -- what happens meanwhile


def test_appends_meanwhile_are_kept() -> None:
    log = one_key(60)
    active = log.active.base

    def go_on() -> None:
        for _ in range(30):
            keyed(log, (b"key", b"later"))

    run(clean(log, workshop=Between(go_on)))
    assert run(offsets(log)) == [active - 1, *range(active, 90)]


def test_a_log_that_was_cut_meanwhile_is_left_alone() -> None:
    """TRAP-69: and what had been made is removed by the next round, or the next start."""
    log = one_key(60)
    cut = log.segments[1].base + 1
    assert run(clean(log, workshop=Between(lambda: at_once(log.truncate_to(cut))))) == []
    assert log.end_offset == cut and run(offsets(log)) == list(range(cut))
    for number in range(60):
        keyed(log, (b"key", b"%d" % number))
    run(clean(log))
    assert names(log, ".cleaned", ".swap") == []


def test_a_log_that_is_cut_while_new_segments_get_their_names_is_left_alone() -> None:
    log, away = one_key(60), SimDisk.away
    cut = log.segments[1].base + 1

    async def and_then_cut(disk: SimDisk, call: Callable[..., Any], *args: Any) -> Any:
        done = await away(disk, call, *args)
        if call is sync_names and names(log, ".swap"):
            monkey.undo()
            await log.truncate_to(cut)
        return done

    with pytest.MonkeyPatch.context() as monkey:
        monkey.setattr(SimDisk, "away", and_then_cut)
        assert run(clean(log)) == []
    assert log.end_offset == cut and run(offsets(log)) == list(range(cut))
    assert names(log, ".swap") == []


def test_what_comes_in_the_place_of_what_was_cut_off_is_not_compacted() -> None:
    """The cut comes when the last new segment has its name, and the round is as good as over."""
    log, away = one_key(60), SimDisk.away
    cut = log.segments[1].base + 1

    async def and_then_cut(disk: SimDisk, call: Callable[..., Any], *args: Any) -> Any:
        done = await away(disk, call, *args)
        if call is sync_names and not names(log, ".swap", ".cleaned"):
            monkey.undo()
            await log.truncate_to(cut)
        return done

    with pytest.MonkeyPatch.context() as monkey:
        monkey.setattr(SimDisk, "away", and_then_cut)
        assert len(run(clean(log))) == 1
    assert log.end_offset == cut and log.cleaned_to <= cut


def test_the_recovery_point_is_written_down_before_a_log_gets_holes() -> None:
    """A crash must not scan what is being compacted: where the scan begins has to be known."""
    log, order = one_key(60), list[str]()

    async def checkpoint() -> None:
        order.append("checkpoint")

    log.checkpoint = checkpoint
    run(clean(log, workshop=Between(lambda: order.append("compact"))))
    assert order == ["checkpoint", "compact", "checkpoint"]


def at_once(coroutine: Coroutine[Any, Any, Any]) -> None:
    """In the middle of another: on a simulated disk nothing really waits."""
    with pytest.raises(StopIteration):
        while True:
            coroutine.send(None)


def test_a_log_that_was_deleted_meanwhile_is_left_alone() -> None:
    log = one_key(60)

    def delete() -> None:
        log.failed = FileNotFoundError("deleted")
        log.disk.rename(log.directory, log.directory + "-delete")
        log.disk.make_directory(log.directory)
        log.follow(log.directory + "-delete")

    assert run(clean(log, workshop=Between(delete))) == []
    assert log.disk.names("/data/topic-0") == [], "a namesake would live here now"


def test_segments_that_were_deleted_meanwhile_do_not_come_back() -> None:
    """RET-08: retention takes the first of those that are being compacted."""
    log = one_key(60, replace(COMPACT, cleanup_policy=frozenset({"compact", "delete"}), retention_bytes=2500))
    count = retention.plan(log, NOW_MS, log.end_offset)
    assert count >= 2
    start = log.segments[count].base

    assert run(clean(log, workshop=Between(lambda: at_once(retention.perform(log, count))))) == []
    assert (log.start_offset, log.segments[0].base) == (start, start)
    assert run(offsets(log)) == list(range(start, 60))


def test_retention_and_compaction_together() -> None:
    """RET-08: `compact,delete`: the newest of a key, for as long as its segment is young enough."""
    both = replace(COMPACT, cleanup_policy=frozenset({"compact", "delete"}), retention_ms=10_000)
    log = make_log(settings=both)
    for number in range(60):
        keyed(log, (b"key %d" % (number % 50), b"%d" % number), timestamp=NOW_MS + number * 1000)
    run(clean(log, now_ms=NOW_MS))
    newest = run(records(log))
    assert {record.key: record.value for record in newest} == {b"key %d" % (n % 50): b"%d" % n for n in range(10, 60)}
    now = NOW_MS + 45_000
    run(retention.perform(log, retention.plan(log, now, log.end_offset)))
    assert 0 < log.start_offset == log.segments[0].base
    assert [record for record in newest if record.offset >= log.start_offset] == run(records(log))
    assert log.segments[0].load_max_timestamp() >= now - 10_000
    assert dirt_of(log).first_dirty >= log.start_offset


def test_an_undecodable_batch_stops_the_round_and_nothing_else() -> None:
    """TRAP-71: its CRC is right, its records are nonsense."""
    log = make_log(settings=COMPACT)
    keyed(log, (b"a", b"1"))
    good = bytearray(build([Record(timestamp=NOW_MS, key=b"a", value=b"2")]))
    good[61:62] = b"\x7f"  # the length of the record
    good[17:21] = crc32c(bytes(good[CRC_FROM:])).to_bytes(4, "big")
    log.append(memoryview(good), Origin.COORDINATOR, 0, NOW_MS)
    log.publish()
    keyed(log, (b"a", b"3"))
    log.roll()
    before = [data for _, data in run(contents(log))]
    with pytest.raises(Unreadable, match="the batch at offset 1"):
        run(clean(log))
    assert [data for _, data in run(contents(log))] == before
    keyed(log, (b"a", b"4"))


def test_a_damaged_batch_is_never_copied() -> None:
    """TRAP-71."""
    log = one_key(60)
    file = log.segments[0].open()
    file.write_at(70, [b"\0\0\0\0"])
    with pytest.raises(Unreadable, match="position 0 of segment 0"):
        run(clean(log))
