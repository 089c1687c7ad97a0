"""A log against a list of batches: long random histories with failures, restarts and crashes in between."""

from __future__ import annotations

import random
import sys
from pathlib import Path

import pytest

from ottla.log import retention
from ottla.log.log import Log
from ottla.log.producers import Origin
from ottla.log.settings import LogSettings
from ottla.sim.disk import Loss, SimDisk
from ottla.wire.errors import Error, KafkaError
from ottla.wire.records import Record, batches, build, end_marker

sys.path.insert(0, str(Path(__file__).parent))
from logs import NOW_MS, closed_log, make_log, run

SETTINGS = LogSettings(segment_bytes=900, index_interval_bytes=200, retention_bytes=5000, retention_ms=-1)


class Model:
    """What the log should hold: batches by first offset, published and synced, and who produced them."""

    def __init__(self, rng: random.Random) -> None:
        self.rng = rng
        self.disk = SimDisk()
        self.log = make_log(self.disk, SETTINGS)
        self.disk.sync_directory("/")
        self.disk.sync_directory("/data")
        self.staged: list[tuple[int, bytes]] = []
        self.published: list[tuple[int, bytes]] = []
        self.start = 0
        self.refused = False
        self.sequences: dict[int, int] = {}
        self.remembered: dict[int, int] = {}
        self.staged_sequences: dict[int, int] = {}

    # -- what can happen

    def append(self) -> None:
        producer = self.rng.choice([-1, -1, 1, 2])
        count = self.rng.randint(1, 4)
        records = [
            Record(timestamp=NOW_MS + self.rng.randrange(50), value=self.rng.randbytes(self.rng.randrange(150)))
        ] * count
        sequence = self.staged_sequences.get(producer, self.sequences.get(producer, 0))
        data = (
            build(records)
            if producer < 0
            else build(records, producer_id=producer, producer_epoch=0, base_sequence=sequence)
        )
        try:
            appended = self.log.append(memoryview(bytearray(data)), Origin.CLIENT, 0, NOW_MS)
        except KafkaError as error:
            assert error.error is Error.KAFKA_STORAGE_ERROR, error
            self.lost()
            return
        self.staged.append((appended.first_offset, data))
        if producer >= 0:
            self.staged_sequences[producer] = sequence + count
        self.note_published()

    def publish(self) -> None:
        try:
            self.log.publish()
        except OSError:
            self.lost()
        self.note_published()

    def lost(self) -> None:
        """A write failed: whatever was staged and is not below the log end never happened."""
        self.note_published()
        self.staged.clear()
        self.staged_sequences.clear()
        self.refused = True

    def note_published(self) -> None:
        for at, data in self.staged:
            if at < self.log.end_offset:
                self.published.append((at, data))
        if any(at < self.log.end_offset for at, _ in self.staged):
            self.staged = [(at, data) for at, data in self.staged if at >= self.log.end_offset]
            self.recount()

    def recount(self) -> None:
        self.sequences |= self.remembered
        for at, data in self.published:
            [(_, head)] = batches(data)
            if head.producer_id >= 0:
                self.sequences[head.producer_id] = head.base_sequence + head.count
            assert at >= 0
        if not self.staged:
            self.staged_sequences.clear()

    def fill_disk(self) -> None:
        self.disk.capacity = self.disk.used + self.rng.randrange(300)

    def free_disk(self) -> None:
        self.disk.capacity = 1 << 60

    def flush(self) -> None:
        self.free_disk()
        self.publish()
        run(self.log.flush() if self.rng.random() < 0.6 else self.log.settle())
        self.refused = False

    def retain(self) -> None:
        self.free_disk()
        self.publish()
        run(retention.perform(self.log, retention.plan(self.log, NOW_MS, self.log.end_offset)))
        self.start = self.log.start_offset

    def truncate(self) -> None:
        self.free_disk()
        self.publish()
        if not self.published or self.log.end_offset == self.log.start_offset:
            return
        offset = self.rng.choice([at for at, _ in self.published if at >= self.start] or [self.log.end_offset])
        run(self.log.truncate_to(offset))
        self.published = [(at, data) for at, data in self.published if at < offset]
        self.sequences.clear()
        self.recount()

    def restart(self) -> None:
        self.free_disk()
        self.publish()
        self.log.close()
        self.reload(clean=True)
        assert self.log.recovered is not None and not self.log.recovered.repaired

    def kill(self) -> None:
        """The process dies, the machine does not: everything written is there."""
        self.free_disk()
        self.publish()
        self.reload(clean=False)

    def power_cut(self) -> None:
        self.free_disk()
        self.publish()
        if self.refused:  # what was written in part and cut off again may come back, until the cut is synced
            self.flush()
        synced = self.log.synced_end
        self.disk = self.disk.crash(self.rng, self.rng.choice(list(Loss)))
        self.reload(clean=False)
        assert self.log.end_offset >= synced
        # Of segments that were never synced, an early one may be lost and a later one be there.
        assert self.log.start_offset == self.start or synced <= self.start
        self.published = [(at, data) for at, data in self.published if at < self.log.end_offset]
        self.sequences.clear()
        if self.log.start_offset > self.start:
            self.lose_the_beginning()
        self.recount()

    def lose_the_beginning(self) -> None:
        """A snapshot may be left that remembers producers of what is gone."""
        self.start = self.log.start_offset
        self.published = [(at, data) for at, data in self.published if at >= self.start]
        for producer in (1, 2):
            known = self.log.producers.known(producer)
            gone = [sent for sent in (known.batches if known else ()) if sent.last_offset < self.start]
            if gone:
                self.remembered[producer] = gone[-1].last_sequence + 1

    def reload(self, clean: bool) -> None:
        point, start = self.log.recovery_point, self.log.start_offset
        self.log = closed_log(self.disk, SETTINGS)
        self.log.load(clean=clean, recovery_point=point, start_offset=start)

    # -- what must hold

    def check(self) -> None:
        log, expected = self.log, [(at, data) for at, data in self.published if at >= self.start]
        offset, found = log.start_offset, []
        while offset < log.end_offset:
            located = run(log.read(offset, self.rng.choice([100, 700, 5000]), log.end_offset))
            assert located.size > 0
            data = located.read()
            for position, head in batches(data):
                found.append((head.base_offset, data[position : position + head.size]))
                offset = head.next_offset
        assert [at for at, _ in found] == [at for at, _ in expected]
        assert all(ours[1][16:] == theirs[1][16:] for ours, theirs in zip(found, expected, strict=True))
        assert sum(len(data) for _, data in found) == log.bytes_from(log.start_offset, log.end_offset)
        for producer, following in self.sequences.items():
            known = log.producers.known(producer)
            assert known is None or self.staged_sequences or (known.last_sequence + 1) == following


@pytest.mark.parametrize(
    "seed",
    [
        *range(30),
        72,
        92,
        97,
        231,
        514,
        638,
        1642,
        1997,
        2283,
        *(pytest.param(n, marks=pytest.mark.slow) for n in range(1000, 2500)),
    ],
)
def test_a_long_history(seed: int) -> None:
    """LOG-04, LOG-05, IDM-06: whatever happens, the log is the list of what was published, less what was given up."""
    model = Model(random.Random(seed))
    steps = [model.append] * 12 + [model.publish] * 6 + [model.fill_disk, model.free_disk, model.flush, model.retain]
    steps += [model.truncate, model.restart, model.kill, model.power_cut]
    for _ in range(150):
        model.rng.choice(steps)()
        if model.rng.random() < 0.2:
            model.check()
    model.check()


def test_markers_and_data_of_many_transactions_in_one_turn() -> None:
    log: Log = make_log(settings=SETTINGS)
    for number in range(10):
        data = build([Record(value=b"x")], producer_id=1, producer_epoch=0, base_sequence=number, transactional=True)
        log.append(memoryview(bytearray(data)), Origin.CLIENT, 0, NOW_MS)
        marker = end_marker(number % 2 == 0, NOW_MS, producer_id=1, producer_epoch=0, coordinator_epoch=0)
        log.append(memoryview(marker), Origin.COORDINATOR, 0, NOW_MS)
    log.publish()
    assert [row.first_offset for row in log.aborted_transactions(0, 20)] == [2, 6, 10, 14, 18]
    assert log.last_stable_offset(20) == 20
