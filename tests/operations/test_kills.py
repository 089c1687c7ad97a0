"""kill -9 at random moments under load, again and again on one directory."""

from __future__ import annotations

import random
import re
import struct
import threading
import time
from pathlib import Path

import pytest
from confluent_kafka import Producer

from conftest import StartNode
from harness import Node
from operations.speaking import Line, batch_of, eventually, segments

TOPIC = "events"
PARTITIONS = 3
IN_FLIGHT_MAX = 3000
GATE_KILLS = 20
LONG_KILLS = 200
# Enough for the disk to be busy; a check reads all there is, so it must not be too much.
RECORDS_PER_SECOND = 4000


class Load:
    """An idempotent producer that never stops, and remembers what was acknowledged: offset by (partition, number)."""

    def __init__(self, address: str) -> None:
        self.acknowledged: dict[tuple[int, int], int] = {}
        self.failed: list[str] = []
        self._producer = Producer(
            {
                "bootstrap.servers": address,
                "enable.idempotence": True,
                "linger.ms": 1,
                "message.timeout.ms": 120_000,
                "reconnect.backoff.ms": 10,
                "reconnect.backoff.max.ms": 100,
                "retry.backoff.ms": 10,
                "retry.backoff.max.ms": 50,
                "log_level": 0,
            }
        )
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._run)
        self._thread.start()

    def _run(self) -> None:
        number = 0
        while not self._stop.is_set():
            for partition in range(PARTITIONS):
                value = struct.pack(">iq", partition, number) + bytes(number % 200)
                self._producer.produce(TOPIC, value, partition=partition, on_delivery=self._delivered)
            number += 1
            self._producer.poll(PARTITIONS / RECORDS_PER_SECOND)
            while len(self._producer) > IN_FLIGHT_MAX and not self._stop.is_set():
                self._producer.poll(0.01)

    def _delivered(self, error: object, message: object) -> None:
        if error is not None:
            self.failed.append(str(error))
            return
        partition, number = struct.unpack_from(">iq", message.value())  # type: ignore[attr-defined]
        self.acknowledged[partition, number] = message.offset()  # type: ignore[attr-defined]

    def finish(self) -> None:
        self._stop.set()
        self._thread.join()
        assert self._producer.flush(60) == 0


def check(broker: Node, acknowledged: dict[tuple[int, int], int], seen_up_to: list[int]) -> None:
    """Whatever was acknowledged before the kill is where it was said to be, and nothing is there twice."""
    with Line(broker.address) as line:
        for partition in range(PARTITIONS):
            expected = {number: at for (of, number), at in acknowledged.items() if of == partition}
            found: dict[int, int] = {}
            for record in line.records(TOPIC, 0, partition):
                of, number = struct.unpack_from(">iq", record.value or b"")
                assert of == partition
                assert number not in found, f"{number} lies at {found[number]} and at {record.offset}"
                found[number] = record.offset
            missing = {n: at for n, at in expected.items() if found.get(n) != at}
            assert not missing, f"partition {partition}: acknowledged, but not there: {sorted(missing.items())[:5]}"
            assert sorted(found) == list(range(len(found))), "the order of one producer was kept, without gaps"
            seen_up_to[partition] = len(found)


def run(broker: Node, kills: int, rng: random.Random) -> list[float]:
    with Line(broker.address) as line:
        assert line.create(TOPIC, PARTITIONS, segment_bytes="1048576") == 0
    load = Load(broker.address)
    recoveries, seen = [], [0] * PARTITIONS
    try:
        for number in range(kills):
            before = len(load.acknowledged)
            eventually(lambda before=before: len(load.acknowledged) > before, pause=0.005)
            time.sleep(rng.uniform(0, 0.3))
            broker.kill()
            acknowledged = dict(load.acknowledged)
            began = time.monotonic()
            broker.start()
            recoveries.append(time.monotonic() - began)
            if (number + 1) % max(5, kills // 8) == 0:
                check(broker, acknowledged, seen)
    finally:
        load.finish()
    assert not load.failed
    check(broker, load.acknowledged, seen)
    assert sum(seen) == len(load.acknowledged) > 100 * kills
    return recoveries


def told(capsys: pytest.CaptureFixture[str], recoveries: list[float]) -> None:
    middle = sorted(recoveries)[len(recoveries) // 2]
    with capsys.disabled():
        print(f" [{len(recoveries)} kills; ready again after {middle:.2f} s, worst {max(recoveries):.2f} s]", end="")


@pytest.mark.timeout(600)
def test_nothing_acknowledged_is_lost_or_doubled_by_kills(node: StartNode, capsys: pytest.CaptureFixture[str]) -> None:
    """IDM-06, LOG-04, LOG-18, LOG-19: after each kill -9 every acknowledged record is at its offset exactly once, although
    the producer sends again what was not answered."""
    told(capsys, run(node(), GATE_KILLS, random.Random(2026)))


@pytest.mark.slow
@pytest.mark.timeout(900)
def test_two_hundred_kills(node: StartNode, capsys: pytest.CaptureFixture[str]) -> None:
    """IDM-06, LOG-18: the same for longer, with checkpoints in between."""
    settings = {"log.flush.offset.checkpoint.interval.ms": "300", "log.initial.task.delay.ms": "100"}
    told(capsys, run(node(settings=settings), LONG_KILLS, random.Random(2027)))


SCANNED = re.compile(r"after (a clean|an unclean) stop: (\d+) MB scanned, (\d+) bytes cut")


def last_scan(broker: Node) -> tuple[str, int, int]:
    kind, scanned, cut = SCANNED.findall(broker.log_text())[-1]
    return kind, int(scanned), int(cut)


def test_only_what_follows_the_recovery_point_is_scanned(node: StartNode, capsys: pytest.CaptureFixture[str]) -> None:
    """LOG-18, LOG-19: of 60 segments of 1 MiB only the last few are read after a kill -9; a torn tail is cut; and how long
    it took is told. After a clean stop nothing is scanned."""
    broker = node(settings={"log.flush.offset.checkpoint.interval.ms": "200", "log.initial.task.delay.ms": "200"})
    with Line(broker.address) as line:
        assert line.create(TOPIC, segment_bytes="1048576") == 0
        large = batch_of(bytes(500_000))
        for _ in range(120):
            assert line.produce(TOPIC, large).error_code == 0
    files = segments(broker.directory, TOPIC)
    assert len(files) == 60
    eventually(lambda: recovery_point(broker.directory) >= 116)
    broker.kill()
    whole = files[-1].stat().st_size
    torn = batch_of(b"torn", base_offset=120)[:-1]
    with files[-1].open("ab") as tail:
        tail.write(torn)
    broker.start()
    kind, scanned, cut = last_scan(broker)
    assert kind == "an unclean" and scanned <= 3
    assert cut == len(torn) and files[-1].stat().st_size == whole
    with Line(broker.address) as line:
        assert line.offset(TOPIC) == 120
        assert sum(1 for _ in line.records(TOPIC)) == 120
    with capsys.disabled():
        print(f" [{scanned} of 60 MB scanned]", end="")
    assert broker.restart().is_running()
    assert last_scan(broker)[:2] == ("a clean", 0)


def recovery_point(data: Path) -> int:
    path = data / "recovery-point-offset-checkpoint"
    text = path.read_text() if path.exists() else ""
    found = re.search(rf"^{TOPIC} 0 (\d+)$", text, re.MULTILINE)
    return int(found[1]) if found else -1


def test_a_log_that_fell_silent_is_not_scanned(node: StartNode) -> None:
    """Between two checkpoints without a record it is synced with its indexes, and the recovery point follows."""
    broker = node(settings={"log.flush.offset.checkpoint.interval.ms": "400"})
    with Line(broker.address) as line:
        assert line.create("events") == 0
        for _ in range(5):
            assert line.produce("events", batch_of(bytes(900_000))).error_code == 0
        checkpoint = broker.directory / "recovery-point-offset-checkpoint"
        assert eventually(lambda: checkpoint.exists() and "events 0 5" in checkpoint.read_text())
        broker.kill()
    broker.start()
    assert "after an unclean stop: 0 MB scanned, 0 bytes cut" in broker.log_text()
    with Line(broker.address) as line:
        assert line.produce("events", batch_of(b"more")).base_offset == 5
