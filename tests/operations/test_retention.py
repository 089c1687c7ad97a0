"""Records go when they are too old or too many, on a node that checks every few hundred milliseconds."""

from __future__ import annotations

import contextlib
import time
from pathlib import Path

import confluent_kafka
import confluent_kafka.admin

from conftest import StartNode
from operations.speaking import Line, batch_of, eventually, ottla, segments

DAY_MS = 24 * 3600 * 1000
OUT_OF_RANGE = 1
OFTEN = {
    "log.retention.check.interval.ms": "300",
    "log.initial.task.delay.ms": "100",
    "log.segment.delete.delay.ms": "500",
}
VALUE = bytes(300_000)


def fill(line: Line, topic: str, count: int, age_ms: int = 0) -> None:
    now_ms = int(time.time() * 1000)
    for _ in range(count):
        assert line.produce(topic, batch_of(VALUE, now_ms=now_ms - age_ms)).error_code == 0


def names(data: Path, topic: str) -> list[str]:
    return sorted(path.name for path in (data / f"{topic}-0").iterdir() if ".log" in path.name)


def test_old_segments_go(node: StartNode) -> None:
    """RET-01, RET-03, RET-04, RET-09: whole segments older than a week (the default) go at the next check although nobody
    ever read them, also the newest one if it is old; younger ones stay; the log start moves, and below it is nothing."""
    broker = node(settings=OFTEN)
    with Line(broker.address) as line:
        # A check in the middle of this would find other segments: nothing goes before all of them are there.
        for topic in ("mixed", "old"):
            assert line.create(topic, segment_bytes="1048576", retention_ms="-1") == 0
        fill(line, "old", 7, 8 * DAY_MS)
        fill(line, "mixed", 6, 8 * DAY_MS)
        fill(line, "mixed", 6, 6 * DAY_MS)
        for topic in ("mixed", "old"):
            altered = ottla("topic", "alter", topic, "--delete-config", "retention.ms", "-b", broker.address)
            assert altered.returncode == 0, altered.stderr
        eventually(lambda: line.offset("mixed", -2) > 0)
        eventually(lambda: line.offset("old", -2) == 7)
        assert line.offset("mixed", -2) == 6 and line.offset("mixed") == 12
        assert line.offset("old") == 7
        assert line.fetch("mixed", 5).error_code == OUT_OF_RANGE
        assert [record.offset for record in line.records("mixed", 6)] == list(range(6, 12))
        assert segments(broker.directory, "mixed")[0].name == f"{6:020}.log"
        assert line.produce("old", batch_of(b"new")).base_offset == 7, "offsets are never used again"
    eventually(lambda: not [name for name in names(broker.directory, "mixed") if name.endswith(".deleted")])
    assert [text for text in broker.log_text().splitlines() if "retention freed" in text]
    broker.restart()
    with Line(broker.address) as line:
        assert line.offset("mixed", -2) == 6 and line.offset("old", -2) == 7 and line.offset("old") == 8


def test_too_many_bytes_go(node: StartNode) -> None:
    """RET-02, RET-04, LOG-21: the oldest segments go until what is left is near `retention.bytes`, never below it; a
    consumer that lags behind is put where its settings say."""
    broker = node(settings=OFTEN)
    with Line(broker.address) as line:
        assert line.create("kept", segment_bytes="1048576") == 0
        assert line.create("bounded", segment_bytes="1048576", retention_bytes="2000000") == 0
        for topic in ("kept", "bounded"):
            fill(line, topic, 30)
        eventually(lambda: size(broker.directory, "bounded") <= 2_000_000 + 1_048_576)
        time.sleep(0.7)  # two more checks
        start = line.offset("bounded", -2)
        assert 2_000_000 <= size(broker.directory, "bounded") <= 2_000_000 + 1_048_576
        assert line.offset("kept", -2) == 0, "without a limit nothing goes"
        assert line.fetch("bounded", start - 1).error_code == OUT_OF_RANGE
        assert first_seen(broker.address, "earliest", line) == start
        assert first_seen(broker.address, "latest", line) >= 30


def size(data: Path, topic: str) -> int:
    """The bytes of all its segments; one that goes while they are looked at has none."""
    found = 0
    for path in segments(data, topic):
        with contextlib.suppress(FileNotFoundError):
            found += path.stat().st_size
    return found


def first_seen(address: str, reset: str, line: Line) -> int:
    """Where a consumer goes on whose position is gone, while new records keep coming."""
    consumer = confluent_kafka.Consumer(
        {"bootstrap.servers": address, "group.id": "late", "auto.offset.reset": reset, "enable.auto.commit": False}
    )
    try:
        consumer.assign([confluent_kafka.TopicPartition("bounded", 0, 1)])
        for _ in range(600):
            message = consumer.poll(0.1)
            if message is not None:
                assert message.error() is None
                return int(message.offset())
            assert line.produce("bounded", batch_of(b"new")).error_code == 0
        raise AssertionError("nothing came")
    finally:
        consumer.close()


def test_records_from_the_future_stay(node: StartNode) -> None:
    """RET-01, TRAP-05: age is the largest timestamp of a segment; and nothing happens to a topic that keeps all."""
    broker = node(settings=OFTEN)
    with Line(broker.address) as line:
        assert line.create("pinned", segment_bytes="1048576", retention_ms="60000") == 0
        assert line.create("forever", segment_bytes="1048576", retention_ms="-1") == 0
        for topic in ("pinned", "forever"):
            fill(line, topic, 3, 8 * DAY_MS)
            fill(line, topic, 1, -1800 * 1000)
            fill(line, topic, 3, 8 * DAY_MS)
        time.sleep(1)
        assert line.offset("forever", -2) == 0
        assert line.offset("pinned", -2) <= 3, "the segment with the future record and all after it stay"
        assert line.fetch("pinned", 3).error_code == 0


def test_a_setting_takes_effect_while_the_node_runs(node: StartNode) -> None:
    """RET-01, RET-02, LOG-21: retention of a topic is changed, and the next check obeys."""
    broker = node(settings=OFTEN)
    admin = confluent_kafka.admin.AdminClient({"bootstrap.servers": broker.address})
    with Line(broker.address) as line:
        assert line.create("events", segment_bytes="1048576") == 0
        fill(line, "events", 9, DAY_MS)
        time.sleep(0.8)
        assert line.offset("events", -2) == 0
        change = confluent_kafka.admin.ConfigEntry(
            "retention.ms", "1000", incremental_operation=confluent_kafka.admin.AlterConfigOpType.SET
        )
        resource = confluent_kafka.admin.ConfigResource("topic", "events", incremental_configs=[change])
        admin.incremental_alter_configs([resource])[resource].result(60)
        eventually(lambda: line.offset("events", -2) == 9)
