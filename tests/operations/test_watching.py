"""The HTTP port of a real node: pages that parse, and numbers that move with what the node does."""

from __future__ import annotations

import socket
import struct
import threading
import time

import pytest

from conftest import StartNode
from harness import Node, free_port, split
from operations.speaking import Line, batch_of, eventually, page, samples
from ottla.metrics import CONTENT_TYPE
from ottla.wire.messages.fetch import FetchRequest


@pytest.fixture
def watched(node: StartNode) -> tuple[Node, int]:
    """A node and its HTTP port."""
    port = free_port()
    return node(options=["--metrics-port", str(port)]), port


def test_traffic_is_counted(watched: tuple[Node, int]) -> None:
    """requests, bytes, records and errors, by API and by topic, exactly."""
    broker, port = watched
    batch = batch_of(b"one", b"two", b"three")
    with Line(broker.address) as line:
        assert line.create("orders", 2) == 0
        for _ in range(4):
            assert line.produce("orders", batch).error_code == 0
        assert line.produce("orders", batch[:-1] + b"?").error_code == 2
        assert line.produce("nowhere", batch).error_code == 3
        assert len(list(line.records("orders"))) == 12
        assert line.fetch("orders", 99).error_code == 1
        now = samples(port)
        assert now['ottla_request_seconds_count{api="Produce"}'] == 6
        assert now['ottla_request_seconds_count{api="Fetch"}'] == 3
        assert now['ottla_request_seconds_count{api="CreateTopics"}'] == 1
        assert now['ottla_request_errors_total{api="Produce",error="CORRUPT_MESSAGE"}'] == 1
        assert now['ottla_request_errors_total{api="Produce",error="UNKNOWN_TOPIC_OR_PARTITION"}'] == 1
        assert now['ottla_request_errors_total{api="Fetch",error="OFFSET_OUT_OF_RANGE"}'] == 1
        assert 6 * len(batch) < now['ottla_request_bytes_total{api="Produce"}'] < 6 * (len(batch) + 100)
        assert 4 * len(batch) < now['ottla_response_bytes_total{api="Fetch"}'] < 4 * len(batch) + 300
        assert now['ottla_topic_records_in_total{topic="orders"}'] == 12
        assert now['ottla_topic_bytes_in_total{topic="orders"}'] == 4 * len(batch)
        assert now['ottla_topic_bytes_out_total{topic="orders"}'] == 4 * len(batch)
        assert now['ottla_topic_produces_total{topic="orders"}'] == 5
        assert now['ottla_topic_failed_produces_total{topic="orders"}'] == 1
        assert now['ottla_topic_fetches_total{topic="orders"}'] == 3
        assert now['ottla_topic_failed_fetches_total{topic="orders"}'] == 1
        assert now['ottla_log_bytes{topic="orders"}'] == 4 * len(batch)
        assert now['ottla_connections{listener="PLAINTEXT"}'] == 1
        assert now['ottla_connections_opened_total{listener="PLAINTEXT"}'] >= 2


def test_the_state_of_the_node_is_told(watched: tuple[Node, int]) -> None:
    """partitions, segments, producers, metadata, disk, loop and process."""
    broker, port = watched
    with Line(broker.address) as line:
        assert line.create("orders", 3) == 0
        batch = batch_of(b"value", producer_id=4242, producer_epoch=0, base_sequence=0)
        assert line.produce("orders", batch).error_code == 0
        assert line.produce("orders", batch).error_code == 0, "a duplicate"
    before = samples(port)
    assert before["ottla_topics"] == 1
    assert before["ottla_partitions"] == before["ottla_leader_partitions"] == before["ottla_log_segments"] == 3
    assert before["ottla_producer_ids"] == 1
    assert before['ottla_topic_records_in_total{topic="orders"}'] == 1, "a duplicate is not appended"
    assert before["ottla_under_replicated_partitions"] == before["ottla_offline_partitions"] == 0
    assert before["ottla_under_min_isr_partitions"] == before["ottla_directories_full"] == 0
    assert before["ottla_active_controller"] == 1
    assert before["ottla_metadata_offset"] == before["ottla_metadata_end_offset"] - 1 > 0
    assert before["ottla_metadata_epoch"] == 1
    assert before[f'ottla_directory_free_bytes{{directory="{broker.directory}"}}'] > 1 << 20
    assert before["ottla_fsync_seconds_count"] > 0
    assert 10 << 20 < before["process_resident_memory_bytes"] < 200 << 20
    assert abs(before["process_start_time_seconds"] - time.time()) < 120
    assert before["ottla_scrape_failures_total"] == 0
    with Line(broker.address) as line:
        assert line.create("more", 1) == 0
    eventually(lambda: samples(port)["ottla_loop_stall_seconds_count"] > before["ottla_loop_stall_seconds_count"])
    after = samples(port)
    assert after["ottla_fsync_seconds_count"] > before["ottla_fsync_seconds_count"]
    assert after["ottla_metadata_offset"] > before["ottla_metadata_offset"]


def test_waiting_requests_and_bad_ones_are_seen(watched: tuple[Node, int]) -> None:
    """Fetches that wait, and frames that are none."""
    broker, port = watched
    with Line(broker.address) as line, Line(broker.address) as patient:
        assert line.create("orders") == 0
        part = FetchRequest.Topic.Partition(partition=0, fetch_offset=0, partition_max_bytes=1 << 20)
        asked = FetchRequest.Topic(topic="orders", partitions=[part])
        patient.say(FetchRequest(max_wait_ms=20_000, min_bytes=1, topics=[asked]), 11)
        eventually(lambda: samples(port)["ottla_fetches_waiting"] == 1)
        assert line.produce("orders", batch_of(b"value")).error_code == 0
        eventually(lambda: samples(port)["ottla_fetches_waiting"] == 0)
    with socket.create_connection(split(broker.address)) as stranger:
        stranger.sendall(struct.pack(">ihhih", 10, 999, 0, 1, -1))
        assert stranger.recv(1) == b""
    assert samples(port)["ottla_malformed_requests_total"] == 1


def test_a_page_that_any_reader_understands(watched: tuple[Node, int]) -> None:
    """families with HELP and TYPE, each series once."""
    _, port = watched
    status, text = page(port)
    assert status == 200 and "version=0.0.4" in CONTENT_TYPE
    names = [line.rsplit(" ", 1)[0] for line in text.splitlines() if not line.startswith("#")]
    assert len(names) == len(set(names)) > 100
    declared = {line.split()[2] for line in text.splitlines() if line.startswith("# TYPE")}
    assert {line.split()[2] for line in text.splitlines() if line.startswith("# HELP")} == declared
    assert page(port, "/live") == (200, "live\n")
    assert page(port, "/nowhere")[0] == 404


def test_alive_but_not_ready_while_logs_are_recovered(node: StartNode) -> None:
    """the port is open before the node serves, and says so."""
    port = free_port()
    broker = node(options=["--metrics-port", str(port)])
    with Line(broker.address) as line:
        assert line.create("orders", 50) == 0
        for partition in range(50):
            for _ in range(3):
                assert line.produce("orders", batch_of(bytes(900_000)), partition).error_code == 0
    broker.kill()
    seen: set[tuple[int, str]] = set()
    broker.launch()
    watching = threading.Thread(target=broker.wait_ready)
    watching.start()
    while watching.is_alive():
        seen.add(page(port, "/ready"))
        live = page(port, "/live")
        assert live in ((0, ""), (200, "live\n"))
    assert (503, "not ready: the node is starting or stopping\n") in seen
    assert page(port, "/ready") == (200, "ready\n")
    told = samples(port)
    assert told["ottla_recovery_seconds"] > 0 and told["ottla_recovery_scanned_bytes"] >= 128 << 20
