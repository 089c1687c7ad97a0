"""Files that were damaged while nobody looked: bits flipped, indexes lost."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from conftest import StartNode
from harness import Node, free_port
from operations.speaking import Line, batch_of, eventually, samples, segments
from ottla.wire.records import batches

CORRUPT_MESSAGE, STORAGE_ERROR = 2, 56
COUNT = 60
METRIC = "ottla_corrupt_batches_total"


def value(number: int) -> bytes:
    return b"%06d" % number * 10_000


def fill(broker: Node) -> None:
    """Sixty batches of one record each, 60 KB large, in segments of 1 MiB."""
    with Line(broker.address) as line:
        assert line.create("events", segment_bytes="1048576", index_interval_bytes="100000") == 0
        for number in range(COUNT):
            assert line.produce("events", batch_of(value(number))).error_code == 0


def flip(path: Path, position: int) -> None:
    data = bytearray(path.read_bytes())
    data[position] ^= 0x10
    path.write_bytes(data)


def readable(line: Line) -> tuple[dict[int, bytes | None], list[int]]:
    """What can be read, one batch at a time, and the offsets that cannot."""
    found, refused = {}, []
    for offset in range(COUNT):
        part = line.fetch("events", offset, bytes_max=1)
        if part.error_code == CORRUPT_MESSAGE:
            refused.append(offset)
            continue
        assert part.error_code == 0
        record = next(line.records("events", offset, bytes_max=1))
        found[record.offset] = record.value
    return found, refused


@pytest.mark.parametrize("clean", [True, False], ids=["after a clean stop", "after kill -9"])
@pytest.mark.parametrize("place", ["record", "header"])
def test_a_flipped_bit_hides_one_batch_and_nothing_else(node: StartNode, clean: bool, place: str) -> None:
    """LOG-05, LOG-18: in a closed segment below the recovery point that batch answers CORRUPT_MESSAGE, all others are
    served, nothing is cut off, and a metric tells."""
    metrics = free_port()
    settings = {"log.flush.offset.checkpoint.interval.ms": "200", "log.initial.task.delay.ms": "100"}
    broker = node(settings=settings, options=["--metrics-port", str(metrics)])
    fill(broker)
    broker.stop()
    if not clean:
        broker.start()
        broker.kill()
    path = segments(broker.directory, "events")[1]
    positions = [(at, head.base_offset) for at, head in batches(path.read_bytes())]
    at, damaged = positions[len(positions) // 2]
    size = path.stat().st_size
    flip(path, at + (30_000 if place == "record" else 35))
    broker.start()
    with Line(broker.address) as line:
        assert samples(metrics)[METRIC] == 0
        found, refused = readable(line)
        assert refused == [damaged]
        assert found == {number: value(number) for number in range(COUNT) if number != damaged}
        assert samples(metrics)[METRIC] == 1
        whole = line.fetch("events", positions[0][1])
        assert [head.base_offset for _, head in batches(whole.records)] == [n for _, n in positions if n < damaged]
        assert line.fetch("events", damaged).error_code == CORRUPT_MESSAGE
        assert samples(metrics)[METRIC] == 1, "the same batch again is no further damage"
        assert line.offset("events") == COUNT
        assert line.produce("events", batch_of(b"more")).base_offset == COUNT
    assert path.stat().st_size == size


def remove(path: Path) -> None:
    path.unlink()


def empty(path: Path) -> None:
    path.write_bytes(b"")


def shorten(path: Path) -> None:
    path.write_bytes(path.read_bytes()[:-5])


def garble(path: Path) -> None:
    path.write_bytes(bytes(range(1, 1 + len(path.read_bytes()))))


def overrun(path: Path) -> None:
    """As a killed Apache node leaves it: 10 MiB, zeros behind the entries (TRAP-03)."""
    path.write_bytes(path.read_bytes() + bytes((10 << 20) - path.stat().st_size))


@pytest.mark.parametrize("clean", [True, False], ids=["after a clean stop", "after kill -9"])
@pytest.mark.parametrize("harm", [remove, empty, shorten, garble, overrun], ids=lambda harm: harm.__name__)
def test_indexes_that_are_lost_or_wrong_are_made_again(
    node: StartNode, clean: bool, harm: Callable[[Path], None]
) -> None:
    """LOG-11, LOG-12, LOG-18, TRAP-03: they only say where to look, so no damage to them may hide a record."""
    broker = node()
    fill(broker)
    broker.stop()
    if not clean:
        broker.start()
        broker.kill()
    for suffix in ("index", "timeindex"):
        for path in (broker.directory / "events-0").glob(f"*.{suffix}"):
            if path.stat().st_size or harm in (remove, overrun):
                harm(path)
    broker.start()
    with Line(broker.address) as line:
        assert [record.value for record in line.records("events")] == [value(number) for number in range(COUNT)]
        found, refused = readable(line)
        assert not refused and len(found) == COUNT
        if harm is not shorten:  # a time index that ends after a whole entry looks sound; Kafka believes it as well
            stamps = [record.timestamp for record in line.records("events")]
            for number in (0, COUNT // 2, COUNT - 1):
                assert line.offset("events", stamps[number]) == stamps.index(stamps[number])
        assert line.produce("events", batch_of(b"more")).base_offset == COUNT
    assert broker.stop() == 0


def test_a_partition_whose_files_cannot_be_made_waits_for_it(node: StartNode) -> None:
    """LOG-09, LOG-23: it answers with a storage error and is tried again; the topic's other partitions are served, and
    so is everything else."""
    metrics = free_port()
    broker = node(options=["--metrics-port", str(metrics)])
    in_the_way = broker.directory / "events-1"
    in_the_way.write_text("a file where a directory should be")
    with Line(broker.address) as line:
        assert line.create("events", 3) == 0
        assert line.produce("events", batch_of(b"value"), 0).error_code == 0
        assert line.produce("events", batch_of(b"value"), 1).error_code == STORAGE_ERROR
        assert line.fetch("events", 0, partition=1).error_code == STORAGE_ERROR
        assert samples(metrics)["ottla_failed_partitions"] == 1
        in_the_way.unlink()
        eventually(lambda: line.produce("events", batch_of(b"value"), 1).error_code == 0)
        assert samples(metrics)["ottla_failed_partitions"] == 0
    assert broker.restart().is_running()
    with Line(broker.address) as line:
        assert [record.value for record in line.records("events", partition=1)] == [b"value"]
