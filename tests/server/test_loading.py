"""Reading back an internal topic: whatever way a record was written, the machine gets it as it is."""

from __future__ import annotations

import random
from typing import Any

import pytest

from ottla.server import loading
from ottla.wire import records as wire
from ottla.wire.errors import KafkaError
from ottla.wire.records import Record, build, end_marker


class Listening:
    """A machine that notes what it is told."""

    def __init__(self) -> None:
        self.heard: list[Any] = []

    def read(self, key: bytes, value: bytes | None, offset: int, producer_id: int = -1) -> None:
        self.heard.append((key, value, offset, producer_id))

    def end_transaction(self, producer_id: int, committed: bool) -> None:
        self.heard.append((producer_id, committed))


def replayed(data: bytes) -> tuple[list[Any], int, int]:
    listening = Listening()
    count, next_offset = loading.replay(listening, data)  # type: ignore[arg-type]
    return listening.heard, count, next_offset


@pytest.mark.parametrize("codec", [0, 1, 3])
@pytest.mark.parametrize("seed", range(5))
def test_records_come_as_they_were_written(seed: int, codec: int) -> None:
    """Sizes of all kinds of numbers, holes that compaction left, no values, times that go back."""
    rng = random.Random(seed)
    data, expected, offset = bytearray(), [], rng.choice([0, 5, 2**40])
    for _ in range(20):
        records = []
        for _ in range(rng.choice([1, 1, 3, 200])):
            key, value = rng.randbytes(rng.choice([1, 40, 63, 64, 300])), rng.randbytes(rng.choice([0, 5, 64, 9_000]))
            told = None if rng.random() < 0.2 else value
            headers = (("h", b"x"),) if rng.random() < 0.1 else ()
            records.append(Record(offset, rng.choice([0, 10**12, 10**12 + 5]), key, told, headers))
            expected.append((key, told, offset, -1))
            offset += rng.choice([1, 1, 2, 100])
        data += build(records, codec=codec)
    heard, count, next_offset = replayed(bytes(data))
    assert heard == expected
    assert (count, next_offset) == (len(expected), expected[-1][2] + 1)


def test_transactions_and_their_ends() -> None:
    """TRAP-53: who sent it goes with each record, and the marker with its verdict; in the order of the log."""
    batches = [
        build([Record(0, 1, b"k", b"v")], producer_id=9, producer_epoch=0, base_sequence=0, transactional=True),
        build([Record(1, 1, b"k2", b"v")], producer_id=8, producer_epoch=0, base_sequence=0),
        end_marker(True, 1, producer_id=9, producer_epoch=0, coordinator_epoch=0),
        end_marker(False, 1, producer_id=9, producer_epoch=0, coordinator_epoch=0),
    ]
    heard, count, _ = replayed(b"".join(bytes(batch) for batch in batches))
    assert heard == [(b"k", b"v", 0, 9), (b"k2", b"v", 1, -1), (9, True), (9, False)]
    assert count == 4


def test_a_batch_that_is_not_whole_is_left_for_the_next_read() -> None:
    first, second = (build([Record(offset, 1, b"key", b"v")]) for offset in (0, 1))
    for cut in (0, 1, 20, 60, 61, len(second) - 1):
        heard, count, next_offset = replayed(first + second[:cut])
        assert (heard, count, next_offset) == ([(b"key", b"v", 0, -1)], 1, 1)


@pytest.mark.parametrize("seed", range(20))
def test_records_that_make_no_sense_are_refused(seed: int) -> None:
    """They never come to this, because their CRC is checked before; but nobody must wait for ever."""
    rng = random.Random(seed)
    good = bytearray(build([Record(n, 1, b"key", b"v" * 70) for n in range(5)]))
    for _ in range(200):
        data = good.copy()
        for _ in range(rng.choice([1, 2])):
            data[rng.randrange(wire.HEADER_BYTES, len(data))] = rng.randrange(256)
        try:
            heard, *_ = replayed(bytes(data))
            assert len(heard) == 5
        except KafkaError:
            pass
