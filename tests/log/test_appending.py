"""Append stages, publish writes; what a batch must be, where it goes, and what a failed write leaves."""

from __future__ import annotations

import random
import struct
import sys
from pathlib import Path
from typing import Any

import pytest
from crc32c import crc32c

from ottla.log.producers import Origin
from ottla.log.settings import LogSettings
from ottla.log.validation import ERRORS_TOLD_MAX, INLINE_BYTES_MAX, RecordsRefused, bytes_to_walk, prepare
from ottla.sim.disk import SimDisk
from ottla.wire.compression import Codec
from ottla.wire.errors import Error, KafkaError
from ottla.wire.records import LOG_APPEND_TIME, Record, build, crc_ok, iterate, look
from ottla.world import RealDisk

sys.path.insert(0, str(Path(__file__).parent))
from logs import NOW_MS, SMALL, batch, fill, make_log, offsets, put, read_batches, reopen, run

HOUR_MS = 3_600_000


class Owner:
    def __init__(self) -> None:
        self.errors: list[BaseException] = []

    def fail(self, error: BaseException) -> None:
        self.errors.append(error)


def recrc(data: memoryview) -> memoryview:
    struct.pack_into(">I", data, 17, crc32c(data[21:]))
    return data


def changed(data: memoryview, at: int, layout: str, value: int) -> memoryview:
    struct.pack_into(layout, data, at, value)
    return recrc(data) if at >= 21 else data


def refused(data: memoryview, settings: LogSettings = SMALL) -> Error:
    log = make_log(settings=settings)
    with pytest.raises(KafkaError) as caught:
        log.append(data, Origin.CLIENT, 0, NOW_MS)
    log.publish()
    assert log.end_offset == log.staged_end == 0 and log.size == 0
    return caught.value.error


def test_offsets_start_at_0_and_go_on_without_gaps() -> None:
    """LOG-02, LOG-03, LOG-04: 0, 1, 2, ... and further after a restart."""
    log = make_log()
    assert put(log, batch(3), batch(1), batch(2)) == [0, 3, 4]
    assert log.end_offset == 6
    log.close()
    assert put(reopen(log), batch()) == [6]


def test_staged_batches_are_invisible_until_they_are_written() -> None:
    log = make_log()
    appended = log.append(batch(2), Origin.CLIENT, 0, NOW_MS)
    assert (appended.first_offset, appended.last_offset) == (0, 1)
    assert (log.staged_end, log.end_offset, log.active.size) == (2, 0, 0)
    log.publish()
    assert (log.staged_end, log.end_offset) == (2, 2)


def test_one_publish_is_one_write() -> None:
    disk = SimDisk()
    log = make_log(disk)
    put(log, batch())
    disk.trace = []
    for _ in range(5):
        log.append(batch(), Origin.CLIENT, 0, NOW_MS)
    log.publish()
    assert [kind for kind, _ in disk.trace] == ["write"]


def test_bytes_are_the_producers_own_but_for_offset_and_epoch() -> None:
    """REC-02, LOG-05: byte for byte what was sent; reading twice gives the same."""
    log = make_log()
    sent = batch(3)
    original = bytes(sent)
    put(log, batch(), sent, epoch=7)
    located = run(log.read(1, 1000, log.end_offset))
    assert located.size > 0
    stored = located.read()
    assert stored == located.read()
    assert stored[8:12] + stored[16:] == original[8:12] + original[16:]
    assert look(stored).base_offset == 1 and look(stored).leader_epoch == 7


def test_a_small_batch_is_copied_because_its_buffer_is_reused() -> None:
    log = make_log()
    data = batch(2)
    log.append(data, Origin.CLIENT, 0, NOW_MS)
    data[:] = bytes(len(data))
    log.publish()
    assert offsets(read_batches(log, 0)) == [0]


def test_a_large_batch_is_written_at_once_with_what_was_staged_before() -> None:
    log = make_log(settings=LogSettings())
    log.append(batch(), Origin.CLIENT, 0, NOW_MS)
    log.append(batch(value=b"x" * 20_000), Origin.CLIENT, 0, NOW_MS)
    assert log.end_offset == 2
    assert offsets(read_batches(log, 0)) == [0, 1]


@pytest.mark.parametrize(
    ("data", "error"),
    [
        (changed(batch(), 0, ">q", 5), Error.INVALID_RECORD),
        (changed(batch(), 57, ">i", 2), Error.INVALID_RECORD),
        (changed(batch(), 23, ">i", 4), Error.INVALID_RECORD),
        (changed(batch(), 57, ">i", 0), Error.INVALID_RECORD),
        (batch(control=True), Error.INVALID_RECORD),
        (batch(producer_id=1, producer_epoch=0, base_sequence=-1), Error.INVALID_RECORD),
        (memoryview(bytearray(bytes(batch()) + bytes(batch(codec=Codec.GZIP)))), Error.INVALID_RECORD),
        (changed(batch(), 17, ">I", 1), Error.CORRUPT_MESSAGE),
        (changed(batch(), 16, ">b", 1), Error.INVALID_RECORD),
        (changed(batch(), 16, ">b", 3), Error.INVALID_RECORD),
        (changed(batch(), 8, ">i", 10), Error.CORRUPT_MESSAGE),
        (changed(batch(), 8, ">i", 1 << 30), Error.CORRUPT_MESSAGE),
        (memoryview(bytearray(20)), Error.CORRUPT_MESSAGE),
        (changed(batch(), 21, ">h", 7), Error.UNKNOWN_SERVER_ERROR),
        (batch(value=b"x" * 1000), Error.MESSAGE_TOO_LARGE),
    ],
)
def test_batches_no_topic_accepts(data: memoryview, error: Error) -> None:
    """TRAP-19, REC-04: header checks give 87, a wrong CRC gives 2, too many bytes give 10; the log is unchanged."""
    assert refused(data, LogSettings(max_message_bytes=900)) is error


def test_timestamps_out_of_bounds() -> None:
    """TRAP-17: an hour into the future is the default bound; the past is open unless bounded."""
    assert refused(batch(timestamp=NOW_MS + HOUR_MS + 1)) is Error.INVALID_TIMESTAMP
    assert put(make_log(), batch(timestamp=NOW_MS + HOUR_MS)) == [0]
    assert put(make_log(), batch(timestamp=0), batch(timestamp=-1)) == [0, 1]
    bounded = LogSettings(message_timestamp_before_max_ms=1000)
    assert refused(batch(timestamp=NOW_MS - 1001), bounded) is Error.INVALID_TIMESTAMP
    assert put(make_log(settings=bounded), batch(timestamp=NOW_MS - 1000)) == [0]


@pytest.mark.parametrize("bound", [1000, 2 * HOUR_MS], ids=["narrower", "wider"])
def test_the_bound_of_the_future_is_the_topics_own(bound: int) -> None:
    """TRAP-17: `message.timestamp.after.max.ms`."""
    settings = LogSettings.of({"message.timestamp.after.max.ms": bound})
    assert refused(batch(timestamp=NOW_MS + bound + 1), settings) is Error.INVALID_TIMESTAMP
    assert put(make_log(settings=settings), batch(timestamp=NOW_MS + bound)) == [0]


def test_a_record_below_the_bound_is_found_behind_a_first_one_above_it() -> None:
    data = build([Record(timestamp=NOW_MS), Record(timestamp=NOW_MS - 5000)])
    bounded = LogSettings(message_timestamp_before_max_ms=1000)
    with pytest.raises(RecordsRefused) as caught:
        make_log(settings=bounded).append(memoryview(bytearray(data)), Origin.CLIENT, 0, NOW_MS)
    assert [number for number, _ in caught.value.record_errors] == [1]


@pytest.mark.parametrize(
    "settings", [SMALL, LogSettings(cleanup_policy=frozenset({"compact"}))], ids=["plain", "compacted"]
)
@pytest.mark.parametrize("codec", list(Codec))
@pytest.mark.parametrize("said", [-1, NOW_MS + 89], ids=["nothing", "too little"])
def test_the_largest_timestamp_is_found_where_a_client_left_it_out(
    said: int, codec: Codec, settings: LogSettings
) -> None:
    """OFF-11: sarama before 1.45.1 does. Where records are walked anyway, a wrong one is put right too."""
    times = [NOW_MS + 5, NOW_MS + 90, NOW_MS - 2**40, NOW_MS]
    records = [Record(timestamp=time, key=b"k", headers=(("h", b"v" * 70),)) for time in times]
    log = make_log(settings=settings)
    put(log, changed(memoryview(bytearray(build(records, codec=codec))), 35, ">q", said))
    is_mended = said < 0 or settings.compacts
    assert [head.max_timestamp for head in read_batches(log, 0)] == [NOW_MS + 90 if is_mended else said]
    data = run(log.read(0, 1000, 4)).read()
    assert crc_ok(data, 0, len(data)) and [record.timestamp for record in iterate(data)] == times
    assert run(log.offset_for_timestamp(NOW_MS + 90)) == ((NOW_MS + 90, 1, 0) if is_mended else None)


def test_the_bound_of_the_future_holds_for_a_largest_timestamp_that_was_left_out() -> None:
    late = changed(batch(timestamp=NOW_MS + HOUR_MS + 1), 35, ">q", -1)
    assert refused(late) is Error.INVALID_TIMESTAMP


@pytest.mark.parametrize("length", [0, 0x7F, 0x7E], ids=["none", "negative", "too much"])
def test_records_that_cannot_be_told_apart_have_no_largest_timestamp(length: int) -> None:
    unsaid = changed(batch(3), 35, ">q", -1)
    assert refused(changed(unsaid, 61, ">B", length)) is Error.INVALID_RECORD


def test_a_compacted_topic_wants_keys() -> None:
    data = memoryview(bytearray(build([Record(key=b"k"), Record(key=None)], codec=Codec.ZSTD)))
    assert refused(data, LogSettings(cleanup_policy=frozenset({"compact"}))) is Error.INVALID_RECORD
    assert put(make_log(settings=LogSettings(cleanup_policy=frozenset({"compact"}))), batch()) == [0]


@pytest.mark.parametrize("codec", [Codec.NONE, Codec.LZ4])
def test_log_append_time_is_inside_the_crc(codec: int) -> None:
    """TRAP-21: the bit and the largest timestamp are set, and the checksum follows."""
    log = make_log(settings=LogSettings(message_timestamp_type="LogAppendTime"))
    appended = log.append(batch(2, timestamp=5, codec=codec), Origin.CLIENT, 0, NOW_MS)
    log.publish()
    located = run(log.read(0, 1000, 2))
    assert located.size > 0
    data = located.read()
    assert crc_ok(data, 0, len(data)) and look(data).timestamp_type == LOG_APPEND_TIME
    assert [record.timestamp for record in iterate(data)] == [NOW_MS] * 2
    assert appended.append_time_ms == NOW_MS


def test_a_producer_may_not_choose_the_timestamp_type() -> None:
    data = batch(timestamp_type=LOG_APPEND_TIME)
    assert refused(data, LogSettings(message_timestamp_type="LogAppendTime")) is Error.INVALID_TIMESTAMP
    log = make_log()
    put(log, batch(timestamp_type=LOG_APPEND_TIME))
    [head] = read_batches(log, 0)
    assert head.timestamp_type == 0


@pytest.mark.parametrize("wanted", ["gzip", "snappy", "lz4", "zstd", "uncompressed"])
@pytest.mark.parametrize("sent", list(Codec))
def test_a_topics_own_codec(wanted: str, sent: int) -> None:
    """REC-10: recompressed when it differs, the same records inside."""
    log = make_log(settings=LogSettings(compression_type=wanted))
    put(log, batch(5, value=b"abc" * 20, codec=sent))
    located = run(log.read(0, 10_000, 5))
    assert located.size > 0
    data = located.read()
    assert look(data).codec == {"gzip": 1, "snappy": 2, "lz4": 3, "zstd": 4, "uncompressed": 0}[wanted]
    assert [record.value for record in iterate(data)] == [b"abc" * 20] * 5


def test_only_large_batches_that_must_be_looked_into_are_worth_another_process() -> None:
    large, small = batch(value=random.Random(1).randbytes(20_000)), batch()
    gzip = LogSettings(compression_type="gzip")
    assert bytes_to_walk(large, gzip, NOW_MS) > INLINE_BYTES_MAX >= bytes_to_walk(small, gzip, NOW_MS) > 0
    assert bytes_to_walk(large, LogSettings(), NOW_MS) == 0
    log = make_log(settings=gzip)
    prepared = memoryview(prepare(bytes(large), gzip, NOW_MS))
    assert log.append(prepared, Origin.CLIENT, 0, NOW_MS, prepared=True).first_offset == 0
    assert [head.codec for head in read_batches(log, 0)] == [Codec.GZIP]


COMPACTED = LogSettings(cleanup_policy=frozenset({"compact"}))


@pytest.mark.parametrize("codec", list(Codec)[1:])
@pytest.mark.parametrize(
    "settings, largest",
    [(COMPACTED, NOW_MS), (SMALL, NOW_MS - 1), (SMALL, NOW_MS + 2 * HOUR_MS)],
    ids=["compacted", "no largest timestamp", "in the future"],
)
def test_what_is_small_only_while_it_is_packed_is_worth_another_process(
    codec: Codec, settings: LogSettings, largest: int
) -> None:
    """A batch of a kilobyte held the loop for two seconds."""
    packed = changed(batch(2000, codec=codec), 35, ">q", largest)
    assert len(packed) < INLINE_BYTES_MAX < bytes_to_walk(packed, settings, NOW_MS)
    assert 0 < bytes_to_walk(changed(batch(2, codec=codec), 35, ">q", largest), settings, NOW_MS) < 100
    assert bytes_to_walk(changed(batch(2000, codec=codec), 35, ">q", NOW_MS), SMALL, NOW_MS) == 0


@pytest.mark.parametrize("codec", list(Codec)[1:])
@pytest.mark.parametrize("settings", [SMALL, COMPACTED], ids=["plain", "compacted"])
def test_what_cannot_be_unpacked_is_not_asked_for_again(codec: Codec, settings: LogSettings) -> None:
    """CORRUPT_MESSAGE would be retried; these bytes are what the client wanted to say."""
    nonsense = bytearray(batch(codec=codec)[:61]) + b"\xff" * 50
    struct.pack_into(">i", nonsense, 8, len(nonsense) - 12)
    assert refused(changed(memoryview(nonsense), 35, ">q", -1), settings) is Error.UNKNOWN_SERVER_ERROR


def test_timestamps_below_none_count_as_none() -> None:
    for settings in (SMALL, COMPACTED):
        log = make_log(settings=settings)
        put(log, changed(batch(timestamp=-95), 35, ">q", -100))
        assert [head.max_timestamp for head in read_batches(log, 0)] == [-1]


def test_of_many_records_that_are_to_blame_the_first_are_told() -> None:
    keyless = build([Record()] * (ERRORS_TOLD_MAX + 5))
    with pytest.raises(RecordsRefused, match=f"due to {ERRORS_TOLD_MAX + 5} record errors") as caught:
        prepare(keyless, COMPACTED, NOW_MS)
    assert [number for number, _ in caught.value.record_errors] == [*range(ERRORS_TOLD_MAX)]


def test_a_refusal_survives_the_way_from_another_process() -> None:
    import pickle

    with pytest.raises(RecordsRefused) as caught:
        prepare(bytes(batch(control=True)), SMALL, NOW_MS)
    again = pickle.loads(pickle.dumps(caught.value))
    assert (again.error, again.message, again.record_errors) == (Error.INVALID_RECORD, caught.value.message, [])


def test_a_full_disk_refuses_and_recovers_by_itself() -> None:
    """LOG-23: nothing staged survives, owners are told, readers read on, and appends go on when there is room."""
    disk = SimDisk()
    log = make_log(disk, LogSettings())
    fill(log, 3)
    before, owner = log.active.size, Owner()
    disk.capacity = disk.used + 100
    for sequence in range(2):
        data = batch(producer_id=9, producer_epoch=0, base_sequence=sequence)
        log.append(data, Origin.CLIENT, 0, NOW_MS, owner)
    with pytest.raises(OSError):
        log.publish()
    assert len(owner.errors) == 2
    assert (log.end_offset, log.staged_end, log.active.size) == (6, 6, before)
    assert disk.size(log.active.path + ".log") == before
    assert log.producers.known(9) is None
    assert offsets(read_batches(log, 0)) == [0, 2, 4]
    disk.capacity += 1000
    assert put(log, batch(producer_id=9, producer_epoch=0, base_sequence=0)) == [6]
    assert offsets(read_batches(log, 0)) == [0, 2, 4, 6]


def test_a_large_batch_on_a_full_disk_is_refused_with_56() -> None:
    disk = SimDisk()
    log = make_log(disk, LogSettings())
    fill(log, 1)
    disk.capacity = disk.used + 5000
    with pytest.raises(KafkaError) as caught:
        log.append(batch(value=b"x" * 20_000), Origin.CLIENT, 0, NOW_MS)
    assert caught.value.error is Error.KAFKA_STORAGE_ERROR
    assert log.end_offset == 2 and disk.size(log.active.path + ".log") == log.active.size


def test_a_roll_that_finds_the_disk_full_can_be_tried_again() -> None:
    """LOG-23: at whatever file of the roll the space ends, the log goes on afterwards as if nothing had been."""
    for spare in range(0, 400, 7):
        disk = SimDisk()
        log = make_log(disk, LogSettings(segment_bytes=700, index_interval_bytes=100))
        fill(log, 2)
        put(log, batch(producer_id=3, producer_epoch=0, base_sequence=0))
        disk.capacity = disk.used + spare
        try:
            put(log, batch(value=b"y" * 280))
        except (KafkaError, OSError):
            disk.capacity += 10_000
            put(log, batch(value=b"y" * 280))
        disk.capacity += 10_000
        fill(log, 3)
        log.close()
        again = reopen(log)
        assert offsets(read_batches(again, 0, bound=5))[:2] == [0, 2]
        assert again.end_offset == 12 and next(segment.base for segment in again.segments) == 0


def test_if_even_the_cut_fails_the_next_write_repairs_first() -> None:
    disk = SimDisk()
    log = make_log(disk, LogSettings())
    fill(log, 1)
    log.append(batch(value=b"z" * 500), Origin.CLIENT, 0, NOW_MS)
    disk.capacity = disk.used + 200
    file = log.active.open()

    def broken(size: int) -> None:
        raise OSError(5, "cannot cut")

    class Stubborn:
        def __getattr__(self, name: str) -> Any:
            return broken if name == "truncate" else getattr(file, name)

    log.active.file = Stubborn()  # type: ignore[assignment]
    with pytest.raises(OSError):
        log.publish()
    assert log.active.torn and disk.size(log.active.path + ".log") > log.active.size
    log.active.file, disk.capacity = file, disk.used + 10_000
    put(log, batch())
    log.close()
    assert offsets(read_batches(reopen(log, clean=False), 0)) == [0, 2]


def test_after_a_failed_sync_the_log_takes_no_more() -> None:
    """The error is never retried and believed: appends are refused until the next start."""
    disk = SimDisk()
    log = make_log(disk, LogSettings())
    fill(log, 1)
    disk.failing_syncs = lambda path: path.endswith(".log")
    with pytest.raises(KafkaError) as caught:
        run(log.flush())
    assert caught.value.error is Error.KAFKA_STORAGE_ERROR and log.synced_end == 0
    disk.failing_syncs = None
    with pytest.raises(KafkaError) as caught:
        run(log.flush())
    with pytest.raises(KafkaError) as caught:
        put(log, batch())
    assert caught.value.error is Error.KAFKA_STORAGE_ERROR


def test_followers_take_the_leaders_offsets_and_epochs() -> None:
    """LOG-02: batches from replication keep their numbers, gaps included, and going back is refused."""
    log = make_log()
    rows = build([Record(value=b"a")], base_offset=5, leader_epoch=2) + build(
        [Record()] * 2, base_offset=9, leader_epoch=4
    )
    appended = log.append(memoryview(rows + b"\0" * 30), Origin.REPLICATION, -1, NOW_MS)
    log.publish()
    assert (appended.first_offset, appended.last_offset, log.end_offset) == (5, 10, 11)
    assert log.epochs.entries == [(2, 5), (4, 9)]
    with pytest.raises(KafkaError):
        log.append(memoryview(build([Record()], base_offset=8)), Origin.REPLICATION, -1, NOW_MS)
    assert offsets(read_batches(log, 7)) == [9]


def test_appends_on_a_real_disk_survive_closing(tmp_path: Path) -> None:
    """LOG-15: what was published is on disk, and nothing is kept in memory to answer readers."""
    disk = RealDisk()
    log = make_log(disk, SMALL, str(tmp_path / "topic-0"))
    fill(log, 40)
    log.close()
    again = reopen(log)
    assert again.end_offset == 80 and again.recovered is not None and not again.recovered.scanned_bytes
    assert sum(len(read_batches(again, segment.base)) for segment in again.segments) == 40
