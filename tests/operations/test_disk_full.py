"""A disk that is really full: a small tmpfs that the node fills up to the last page."""

from __future__ import annotations

import os
import subprocess
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from conftest import RunTool, StartNode
from harness import free_port
from operations.speaking import Line, batch_of, eventually, ottla, samples, segments

VOLUME_MIB = 64
FREED_MIB = 16
STORAGE_ERROR = 56
VALUE = b"x" * 60_000


@pytest.fixture
def volume(tmp_path: Path) -> Iterator[Path]:
    """A file system of its own, 64 MiB large."""
    place = tmp_path / "volume"
    place.mkdir()
    mount = ["mount", "-t", "tmpfs", "-o", f"size={VOLUME_MIB}m", "tmpfs", str(place)]
    if os.geteuid() or subprocess.run(mount, capture_output=True).returncode:
        pytest.skip("only root may mount a small file system to fill")
    try:
        yield place
    finally:
        subprocess.run(["umount", "-l", str(place)], check=True)


def occupy(volume: Path, mib: int) -> Path:
    """A file that is in the way."""
    path = volume / "in-the-way"
    path.write_bytes(bytes(mib << 20))
    return path


def fill(line: Line, topic: str) -> list[int]:
    """Produce until it is refused three times in a row; the offsets that were acknowledged."""
    acknowledged, refused = [], 0
    while refused < 3:
        answer = line.produce(topic, batch_of(VALUE))
        if answer.error_code == 0:
            acknowledged.append(answer.base_offset)
            refused = 0
        else:
            assert answer.error_code == STORAGE_ERROR
            refused += 1
    return acknowledged


def test_a_full_disk_refuses_records_and_nothing_else(
    node: StartNode, volume: Path, apache_tool: RunTool, capsys: pytest.CaptureFixture[str]
) -> None:
    """LOG-23: Produce is refused with a storage error, everything acknowledged stays readable, metadata goes on, and once
    there is room, appends resume by themselves. Nothing is damaged, also in the eyes of Apache's own tool."""
    data, metrics = volume / "data", free_port()
    in_the_way = occupy(volume, FREED_MIB)
    broker = node(data, options=["--metrics-port", str(metrics)])
    with Line(broker.address) as line:
        assert line.create("events", 2) == 0
        acknowledged = fill(line, "events")
        assert acknowledged == list(range(len(acknowledged)))
        assert len(acknowledged) > 500
        assert line.produce("events", batch_of(b"small"), partition=1).error_code == STORAGE_ERROR
        assert [record.offset for record in line.records("events")] == acknowledged
        assert [topic.name for topic in line.metadata().topics] == ["events"]
        assert line.create("more") == STORAGE_ERROR
        full = samples(metrics)
        assert full["ottla_directories_full"] == 1
        assert full["ottla_write_failures_total"] >= 1
        assert full['ottla_request_errors_total{api="Produce",error="KAFKA_STORAGE_ERROR"}'] >= 4
        in_the_way.unlink()
        freed = time.monotonic()
        eventually(lambda: line.produce("events", batch_of(b"again")).error_code == 0)
        resumed = time.monotonic() - freed
        assert line.create("more") == 0
        values = [record.value for record in line.records("events")]
        assert values == [VALUE] * len(acknowledged) + [b"again"]
        assert samples(metrics)["ottla_directories_full"] == 0
    with capsys.disabled():
        print(f" [appends resumed {resumed:.2f} s after there was room]", end="")
    assert broker.stop() == 0
    dumped = apache_tool(
        "org.apache.kafka.tools.DumpLogSegments",
        "--files",
        ",".join(map(str, segments(data, "events"))),
        "--deep-iteration",
    )
    assert dumped.count("isvalid: true") >= len(acknowledged) and "isvalid: false" not in dumped
    broker.start()
    with Line(broker.address) as line:
        assert sum(1 for _ in line.records("events")) == len(acknowledged) + 1


def test_topics_can_be_deleted_on_a_full_disk(node: StartNode, volume: Path) -> None:
    """LOG-23, TRAP-18: the way out of a full disk leads through the metadata log, which is on the full disk as well; and
    retention must write a checkpoint before it deletes anything. A little room was kept back for both. What is deleted does
    not wait for `log.segment.delete.delay.ms`, which is a minute."""
    broker = node(volume / "data", settings={"log.retention.check.interval.ms": "500"})
    with Line(broker.address) as line:
        for topic in ("kept", "wide", "long"):
            assert line.create(topic, segment_bytes="1048576") == 0
        for topic in ("wide", "long"):
            for _ in range(200):
                assert line.produce(topic, batch_of(VALUE)).error_code == 0
        acknowledged = fill(line, "kept")
        assert line.delete("wide") == 0
        eventually(lambda: line.produce("kept", batch_of(b"again")).error_code == 0)
        acknowledged += fill(line, "kept")
        altered = ottla("topic", "alter", "long", "--config", "retention.bytes=1", "-b", broker.address)
        assert altered.returncode == 0, altered.stderr
        eventually(lambda: line.produce("kept", batch_of(b"again")).error_code == 0)
        assert len([1 for _ in line.records("kept")]) == len(acknowledged) + 2
        assert line.offset("long", -2) > 0
    assert broker.is_running()


def test_a_node_starts_on_a_full_disk_and_is_killed_there(node: StartNode, volume: Path) -> None:
    """LOG-23, LOG-18: also an unclean stop and a start while there is no room lose nothing."""
    in_the_way = occupy(volume, FREED_MIB)
    broker = node(volume / "data")
    with Line(broker.address) as line:
        assert line.create("events") == 0
        acknowledged = fill(line, "events")
    broker.kill()
    broker.start()
    with Line(broker.address) as line:
        assert line.produce("events", batch_of(b"again")).error_code == STORAGE_ERROR
        assert [record.offset for record in line.records("events")] == acknowledged
    assert broker.stop() == 0, "a clean stop needs room, too"
    broker.start()
    assert "after a clean stop" in broker.log_text()
    with Line(broker.address) as line:
        assert [record.offset for record in line.records("events")] == acknowledged
        in_the_way.unlink()
        eventually(lambda: line.produce("events", batch_of(b"again")).error_code == 0)
    assert "the disk is full" in broker.log_text()


def test_creating_topics_on_a_disk_that_fills_up_never_kills_the_node(node: StartNode, volume: Path) -> None:
    """LOG-23, TRAP-18: a topic whose metadata still found room, but its files did not, is refused or waits for room."""
    broker = node(volume / "data")
    in_the_way = volume / "in-the-way"
    free = os.statvfs(volume).f_bavail * os.statvfs(volume).f_frsize
    in_the_way.write_bytes(bytes(free - 256 * 1024))
    with Line(broker.address) as line:
        codes = [line.create(f"topic-{number}", 4) for number in range(80)]
        assert codes[0] == 0 and codes[-1] == STORAGE_ERROR and set(codes) == {0, STORAGE_ERROR}
        made = [number for number, code in enumerate(codes) if code == 0]
        in_the_way.unlink()
        for number in (made[0], made[-1]):
            eventually(lambda name=f"topic-{number}": line.produce(name, batch_of(b"a"), 3).error_code == 0)
    assert broker.stop() == 0
    broker.start()


def test_no_room_for_a_new_directory(volume: Path) -> None:
    """LOG-23, FTM-03: one clear line."""
    with (volume / "in-the-way").open("wb") as file, pytest.raises(OSError):
        while True:
            os.write(file.fileno(), bytes(4096))
    told = ottla("serve", "--data", str(volume / "data"), "--listen", f"127.0.0.1:{free_port()}")
    assert told.returncode == 1
    assert told.stderr.strip().splitlines()[-1].startswith("ottla: no space left")
    assert "Traceback" not in told.stderr
