"""What a node costs: system calls, memory, descriptors."""

from __future__ import annotations

import contextlib
import re
import resource
import shutil
import socket
import struct
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from conftest import StartNode
from harness import Node, free_port, split, stop_all
from operations.speaking import Line, batch_of, eventually, open_files, samples
from operations.tracing import needs_strace, traced

MIB = 1 << 20
API_VERSIONS = struct.pack(">ihhih", 10, 18, 0, 1, -1)
IDLE_CONNECTIONS = 5000


def fill(line: Line, topic: str, mib: int, **configs: str) -> None:
    """So many batches of one MiB."""
    assert line.create(topic, max_message_bytes=str(2 * MIB), **configs) == 0
    batch = batch_of(bytes(MIB - 100))
    for _ in range(mib):
        assert line.produce(topic, batch).error_code == 0


def sent_by_sendfile(calls: str) -> int:
    return sum(int(count) for count in re.findall(r"sendfile(?:\(| resumed).*= (\d+)", calls))


def test_large_fetches_go_out_by_sendfile(node: StartNode) -> None:
    """IO-03: the kernel moves the bytes from the file to the socket; the process does not read them. The first read of
    a range is the exception: its CRCs are checked once."""
    needs_strace()
    broker = node()
    with Line(broker.address) as line:
        fill(line, "large", 8)
        with traced(broker, "-e", "trace=sendfile,pread64,preadv,read") as found:
            answer = line.fetch("large", 0, bytes_max=16 * MIB)
            assert len(answer.records) >= 8 * (MIB - 100)
            line.offset("large")  # when this is answered, the last call for the answer before it has returned
        calls = "\n".join(found)
        assert sent_by_sendfile(calls) == len(answer.records)
        assert sum(int(n) for n in re.findall(r"pread64\(.*= (\d+)", calls)) < MIB


def test_small_fetches_are_one_call(node: StartNode) -> None:
    """IO-07: at the tail a record is read from the page cache and joined with its answer, because a second call would
    cost more than the copy. No disk is read: the kernel counts what it had to bring in."""
    broker = node()
    with Line(broker.address) as line:
        fill(line, "small", 1)
        assert len(list(line.records("small"))) == 1  # and whatever code that needs is loaded now
        before = bytes_from_disk(broker)
        for _ in range(100):
            offset = line.produce("small", batch_of(b"value")).base_offset
            assert [record.offset for record in line.records("small", offset)] == [offset]
        # A page of its own code that the machine has given away meanwhile is no record.
        assert bytes_from_disk(broker) - before < 100 * 4096, "less than a page for each"


def bytes_from_disk(broker: Node) -> int:
    with open(f"/proc/{broker.pid}/io") as counts:
        return int(next(line for line in counts if line.startswith("read_bytes")).split()[1])


def test_memory_does_not_grow_with_what_is_served(node: StartNode, capsys: pytest.CaptureFixture[str]) -> None:
    """IO-08, IO-09, LOG-15: half a gigabyte is written, and half a gigabyte read, cold (after a restart, with CRCs
    checked) and warm; no cache of our own grows with it."""
    broker = node(settings={"log.segment.bytes": str(64 * MIB)})
    with Line(broker.address) as line:
        fill(line, "large", 16)
        warmed = broker.rss_bytes()
        fill(line, "larger", 240)
        after_writing = broker.rss_bytes()
    broker.restart()
    with Line(broker.address) as line:
        served(line, 16)
        base = broker.rss_bytes()
        total = served(line, 240) + served(line, 240)
        grown = broker.rss_bytes() - base
    with capsys.disabled():
        print(
            f" [{total >> 20} MB served: {base >> 20} MB + {grown / MIB:.1f}; "
            f"240 MB written: {warmed >> 20} MB + {(after_writing - warmed) / MIB:.1f}]",
            end="",
        )
    assert total >= 475 * MIB
    assert grown < 20 * MIB
    assert after_writing - warmed < 20 * MIB


def served(line: Line, mib: int) -> int:
    """Read so many MiB of "larger" from its start, in answers of 8."""
    offset, total = 0, 0
    while offset < mib:
        answer = line.fetch("larger", offset, bytes_max=8 * MIB)
        assert answer.error_code == 0 and answer.records
        total += len(answer.records)
        offset += len(answer.records) // (MIB - 100)
    return total


@contextlib.contextmanager
def connections(broker: Node, count: int) -> Iterator[None]:
    """Connections that asked one thing and then fell silent."""
    with contextlib.ExitStack() as held:
        for _ in range(count):
            connection = held.enter_context(socket.create_connection(split(broker.address), 60))
            connection.sendall(API_VERSIONS)
            assert connection.recv(4)  # one at a time: the kernel keeps only 50 that were not accepted yet
        yield


def test_idle_connections_are_cheap(node: StartNode, capsys: pytest.CaptureFixture[str]) -> None:
    """IO-09: five thousand of them take less than 60 MB and next to no processor time; their descriptors come back."""
    allowed = resource.getrlimit(resource.RLIMIT_NOFILE)[1]
    if allowed < 3 * IDLE_CONNECTIONS:
        pytest.skip(f"only {allowed} open files are allowed here")
    resource.setrlimit(resource.RLIMIT_NOFILE, (allowed, allowed))
    broker = node()
    with connections(broker, 50):
        base, files = broker.rss_bytes(), open_files(broker)
    with connections(broker, IDLE_CONNECTIONS):
        grown = broker.rss_bytes() - base
        before = broker.cpu_seconds()
        time.sleep(2)
        busy = (broker.cpu_seconds() - before) / 2
        with Line(broker.address) as line:
            assert line.create("events") == 0
    eventually(lambda: open_files(broker) <= files)
    with capsys.disabled():
        print(f" [{grown / MIB:.0f} MB for {IDLE_CONNECTIONS} connections, {busy:.1%} of a core]", end="")
    assert grown < 60 * MIB
    assert busy < 0.1


class Limited(Node):
    """A node that may hold only so many files open."""

    files_max = 512

    def command(self) -> list[str]:
        return ["prlimit", f"--nofile={self.files_max}:{self.files_max}", *super().command()]


@pytest.fixture
def limited(tmp_path: Path) -> Iterator[Limited]:
    if shutil.which("prlimit") is None:
        pytest.skip("prlimit is not installed")
    broker = Limited(tmp_path / "data")
    try:
        broker.start()
        yield broker
    finally:
        stop_all([broker])


def test_open_files_are_bounded(limited: Limited, capsys: pytest.CaptureFixture[str]) -> None:
    """LOG-24: partitions hold a descriptor only while they are used, and at most half of those allowed are for them;
    the node says at its start when there are too few."""
    with Line(limited.address) as line:
        assert line.create("many", 400) == 0
        for partition in range(400):
            assert line.produce("many", batch_of(b"value"), partition).error_code == 0
        for partition in range(400):
            assert [record.value for record in line.records("many", partition=partition)] == [b"value"]
        most = open_files(limited)
        assert line.create("one-more") == 0
    assert most < limited.files_max // 2 + 64
    limited.restart()
    assert "allows only 128 connections" in limited.log_text()
    with capsys.disabled():
        print(f" [{most} open files for 400 partitions with a limit of {limited.files_max}]", end="")


def is_served(connection: socket.socket) -> bool:
    connection.settimeout(60)
    try:
        return len(connection.recv(4)) == 4
    except ConnectionError:
        return False


def test_too_many_connections_for_the_open_files_allowed(limited: Limited) -> None:
    """LOG-24: those that came first are served on, the others are closed, because the logs need descriptors, too; when
    some leave, all is as before."""
    with Line(limited.address) as line, contextlib.ExitStack() as held:
        assert line.create("events") == 0
        crowd = []
        for _ in range(limited.files_max):
            crowd.append(held.enter_context(socket.create_connection(split(limited.address), 60)))
            with contextlib.suppress(ConnectionError):
                crowd[-1].sendall(API_VERSIONS)
        assert sum(is_served(connection) for connection in crowd) == (limited.files_max // 2 - 64) * 2 // 3 - 1
        for _ in range(20):
            assert line.produce("events", batch_of(b"value")).error_code == 0
    eventually(lambda: open_files(limited) < 100)
    with Line(limited.address) as line:
        assert line.create("more") == 0
        assert len(list(line.records("events"))) == 20


@pytest.mark.slow
@pytest.mark.timeout(600)
def test_two_thousand_partitions(node: StartNode, capsys: pytest.CaptureFixture[str]) -> None:
    """LOG-24, IO-10: what they cost in descriptors and memory, idle and written to, and how soon they are back after a
    kill; no index is mapped into memory, so mappings do not grow with them."""
    port = free_port()
    broker = node(options=["--metrics-port", str(port)])
    with Line(broker.address) as line:
        base, mapped = broker.rss_bytes(), mappings(broker)
        assert line.create("many", 2000) == 0
        idle, idle_files = broker.rss_bytes(), open_files(broker)
        for partition in range(2000):
            assert line.produce("many", batch_of(b"value"), partition).error_code == 0
        used, used_files = broker.rss_bytes(), open_files(broker)
        assert samples(port)["ottla_partitions"] == 2000
    assert mappings(broker) - mapped < 50
    broker.kill()
    began = time.monotonic()
    broker.start(120)
    back = time.monotonic() - began
    with capsys.disabled():
        print(
            f" [2,000 partitions: idle {(idle - base) >> 20} MB and {idle_files} files, "
            f"used {(used - base) >> 20} MB and {used_files} files, back {back:.1f} s after a kill]",
            end="",
        )
    assert used_files <= 4096 + 64
    assert used - base < 100 * MIB


def mappings(broker: Node) -> int:
    with open(f"/proc/{broker.pid}/maps") as lines:
        return sum(1 for _ in lines)
