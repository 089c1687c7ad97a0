"""Disks that fail to sync. The kernel may have dropped the pages, so a second attempt that succeeds proves nothing."""

from __future__ import annotations

import contextlib
import threading
import time

from conftest import StartNode
from harness import free_port
from operations.speaking import Line, batch_of, eventually, samples
from operations.tracing import failing_syncs, needs_strace, traced

STORAGE_ERROR = 56


def test_a_failed_sync_of_a_partition_is_never_believed(node: StartNode) -> None:
    """LOG-17, LOG-18: the partition refuses writes from then on, also when the disk syncs again; others go on; the next
    start looks at what is there, and what was acknowledged is."""
    needs_strace()
    metrics = free_port()
    broker = node(options=["--metrics-port", str(metrics)])
    with Line(broker.address) as line:
        assert line.create("events", 2, flush_messages="1") == 0
        for value in (b"0", b"1", b"2"):
            assert line.produce("events", batch_of(value)).error_code == 0
        with failing_syncs(broker, broker.directory / "events-0" / "00000000000000000000.log"):
            assert line.produce("events", batch_of(b"lost")).error_code == STORAGE_ERROR
            assert line.produce("events", batch_of(b"lost")).error_code == STORAGE_ERROR
            assert line.produce("events", batch_of(b"fine"), partition=1).error_code == 0
        assert line.produce("events", batch_of(b"late")).error_code == STORAGE_ERROR
        assert [record.value for record in line.records("events")] == [b"0", b"1", b"2"]
        measured = samples(metrics)
        assert measured["ottla_fsync_failures_total"] >= 1
        assert measured["ottla_failed_partitions"] == 1
        assert line.create("another") == 0
    assert broker.stop() == 0
    assert not (broker.directory / ".kafka_cleanshutdown").exists(), "this was no clean stop"
    broker.start()
    with Line(broker.address) as line:
        values = [record.value for record in line.records("events")]
        assert values[:3] == [b"0", b"1", b"2"] and set(values[3:]) <= {b"lost"}
        assert line.produce("events", batch_of(b"again")).error_code == 0
        assert [record.value for record in line.records("events", partition=1)] == [b"fine"]


def test_a_failed_sync_in_the_background_closes_only_its_partition(node: StartNode) -> None:
    """LOG-17: `flush.ms` syncs a while after the ack. When that fails, later writes are refused, and the syncs of other
    partitions, which stand behind this one in the row, still happen."""
    needs_strace()
    metrics = free_port()
    broker = node(options=["--metrics-port", str(metrics)])
    with Line(broker.address) as line:
        assert line.create("events", 2, flush_ms="100") == 0
        with failing_syncs(broker, broker.directory / "events-0" / "00000000000000000000.log"):
            for partition in (0, 1):
                assert line.produce("events", batch_of(b"value"), partition).error_code == 0
            eventually(lambda: samples(metrics)["ottla_failed_partitions"] == 1)
        assert line.produce("events", batch_of(b"late")).error_code == STORAGE_ERROR
        synced = samples(metrics)["ottla_fsync_seconds_count"]
        for _ in range(2):
            assert line.produce("events", batch_of(b"value"), 1).error_code == 0
            eventually(lambda: samples(metrics)["ottla_fsync_seconds_count"] > synced)
    assert "fsync failed, the partition takes no more writes" in broker.log_text()


def test_a_failed_sync_of_the_metadata_log_ends_the_node(node: StartNode) -> None:
    """What is committed must be on disk. A node that cannot know that says so and exits non-zero; no traceback of
    ours reaches the operator without a line that explains it."""
    needs_strace()
    broker = node()
    log = broker.directory / "__cluster_metadata-0" / "00000000000000000000.log"
    process = broker.process
    assert process is not None
    with Line(broker.address) as line:
        assert line.create("before") == 0
        with failing_syncs(broker, log):
            with contextlib.suppress(ConnectionError):  # it may be gone before it can say so, which is as good
                assert line.create("lost") != 0
            assert process.wait(60) == 1
    assert "its metadata cannot be kept" in broker.log_text()
    broker.process = None
    broker.start()
    with Line(broker.address) as line:
        assert "before" in [topic.name for topic in line.metadata().topics]
        assert line.create("after") == 0


def test_a_slow_sync_holds_up_nobody_else(node: StartNode) -> None:
    """LOG-17: a disk that takes two seconds to sync delays those who asked for it; others do not wait for it at all."""
    needs_strace()
    broker = node()
    with Line(broker.address) as slow, Line(broker.address) as quick:
        assert slow.create("safe", flush_messages="1") == 0
        assert slow.create("fast") == 0
        options = ("-P", str(broker.directory / "safe-0" / "00000000000000000000.log"), "-e", "trace=fsync")
        with traced(broker, *options, "-e", "inject=fsync:delay_exit=2000000"):
            began = time.monotonic()
            waiting = threading.Thread(target=slow.produce, args=("safe", batch_of(b"value")))
            waiting.start()
            served = 0
            while waiting.is_alive():
                assert quick.produce("fast", batch_of(b"value")).error_code == 0
                served += 1
            assert time.monotonic() - began >= 2
    assert served > 20, "whoever waits for the sync is served once while it lasts"
