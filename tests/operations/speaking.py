"""A few words of the protocol, spoken plainly over one socket, and little questions about a process.

Operational tests want to see error codes and bytes as the broker sent them, without a client library that retries.
"""

from __future__ import annotations

import os
import socket
import struct
import subprocess
import sys
import time
import urllib.error
import urllib.request
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

from harness import TREE, Server, split
from ottla.wire.codec import decode
from ottla.wire.errors import Error
from ottla.wire.frames import read_response_header, request_frame
from ottla.wire.messages.fetch import FetchRequest, FetchResponse
from ottla.wire.messages.metadata import MetadataRequest, MetadataResponse
from ottla.wire.messages.offsets import ListOffsetsRequest, ListOffsetsResponse
from ottla.wire.messages.produce import ProduceRequest, ProduceResponse
from ottla.wire.messages.topics import (
    CreateTopicsRequest,
    CreateTopicsResponse,
    DeleteTopicsRequest,
    DeleteTopicsResponse,
)
from ottla.wire.records import Record, batches, build, iterate
from ottla.wire.schema import Message

SECONDS = 30.0
BYTES_MAX = 50 << 20


class Line:
    """One connection. Each call sends a request and waits for its answer."""

    def __init__(self, address: str) -> None:
        self._socket = socket.create_connection(split(address), SECONDS)
        self._socket.settimeout(SECONDS)
        self._socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self._correlation = 0

    def __enter__(self) -> Line:
        return self

    def __exit__(self, *_: object) -> None:
        self._socket.close()

    def say(self, request: Message, version: int) -> None:
        """Send a request, and leave it at that."""
        self._correlation += 1
        self._socket.sendall(b"".join(request_frame(request, version, self._correlation, "operations")))

    def ask(self, request: Message, answer: type[Message], version: int) -> Any:
        self.say(request, version)
        (size,) = struct.unpack(">i", self._read(4))
        frame = self._read(size)
        correlation, position = read_response_header(frame, answer, version)
        assert correlation == self._correlation
        return decode(answer, frame, version, position)

    def _read(self, size: int) -> bytearray:
        data = bytearray(size)
        view, have = memoryview(data), 0
        while have < size:
            count = self._socket.recv_into(view[have:])
            if not count:
                raise ConnectionError("the broker closed the connection")
            have += count
        return data

    # --- requests

    def create(self, topic: str, partitions: int = 1, **configs: str) -> int:
        """The error code."""
        asked = CreateTopicsRequest.Topic(name=topic, num_partitions=partitions, replication_factor=1)
        asked.configs = [
            CreateTopicsRequest.Topic.Config(name=name.replace("_", "."), value=value)
            for name, value in configs.items()
        ]
        request = CreateTopicsRequest(topics=[asked], timeout_ms=20_000)
        return int(self.ask(request, CreateTopicsResponse, 5).topics[0].error_code)

    def delete(self, topic: str) -> int:
        request = DeleteTopicsRequest(topic_names=[topic], timeout_ms=20_000)
        return int(self.ask(request, DeleteTopicsResponse, 4).responses[0].error_code)

    def produce(self, topic: str, batch: bytes, partition: int = 0, acks: int = -1) -> Any:
        """The answer for the partition."""
        part = ProduceRequest.Topic.Partition(index=partition, records=batch)
        asked = ProduceRequest.Topic(name=topic, partition_data=[part])
        request = ProduceRequest(acks=acks, timeout_ms=20_000, topic_data=[asked])
        return self.ask(request, ProduceResponse, 9).responses[0].partition_responses[0]

    def fetch(self, topic: str, offset: int, partition: int = 0, bytes_max: int = BYTES_MAX) -> Any:
        """The answer for the partition; it does not wait for records to come."""
        part = FetchRequest.Topic.Partition(
            partition=partition, fetch_offset=offset, partition_max_bytes=bytes_max, current_leader_epoch=-1
        )
        request = FetchRequest(max_wait_ms=0, min_bytes=1, max_bytes=bytes_max, session_epoch=-1, replica_id=-1)
        request.topics = [FetchRequest.Topic(topic=topic, partitions=[part])]
        return self.ask(request, FetchResponse, 11).responses[0].partitions[0]

    def offset(self, topic: str, timestamp: int = -1, partition: int = 0) -> int:
        """The log's end (-1), start (-2), or the first offset at a time."""
        part = ListOffsetsRequest.Topic.Partition(partition_index=partition, timestamp=timestamp)
        request = ListOffsetsRequest(replica_id=-1, topics=[ListOffsetsRequest.Topic(name=topic, partitions=[part])])
        answer = self.ask(request, ListOffsetsResponse, 5).topics[0].partitions[0]
        assert answer.error_code == 0, Error(answer.error_code)  # type: ignore[call-arg]
        return int(answer.offset)

    def metadata(self, *topics: str, auto_create: bool = False) -> Any:
        asked = [MetadataRequest.Topic(name=name) for name in topics] if topics else None
        request = MetadataRequest(topics=asked, allow_auto_topic_creation=auto_create)
        return self.ask(request, MetadataResponse, 9)

    def records(self, topic: str, offset: int = 0, partition: int = 0, bytes_max: int = BYTES_MAX) -> Iterator[Record]:
        """Everything from an offset to the end, with every CRC checked on the way."""
        while True:
            part = self.fetch(topic, offset, partition, bytes_max)
            assert part.error_code == 0, Error(part.error_code)  # type: ignore[call-arg]
            if not part.records:
                return
            for at, head in batches(memoryview(part.records)):
                for record in iterate(memoryview(part.records)[at : at + head.size]):
                    if record.offset >= offset:
                        yield record
                        offset = record.offset + 1


def batch_of(*values: bytes, now_ms: int | None = None, **options: Any) -> bytes:
    """One batch of records without keys, stamped with the time of today."""
    stamp = int(time.time() * 1000) if now_ms is None else now_ms
    return bytes(build([Record(timestamp=stamp, value=value) for value in values], **options))


def eventually(is_so: Callable[[], Any], seconds: float = 60.0, pause: float = 0.05) -> Any:
    """What `is_so` answers once that is true. Only what never comes takes so long."""
    deadline = time.monotonic() + seconds
    while True:
        answer = is_so()
        if answer:
            return answer
        assert time.monotonic() < deadline, f"still not so after {seconds} s"
        time.sleep(pause)


# --- the command, and the HTTP port


def ottla(*arguments: str, seconds: float = 60.0, prefix: Sequence[str] = ()) -> subprocess.CompletedProcess[str]:
    """Runs the command to its end."""
    command = [*prefix, sys.executable, "-m", "ottla", *arguments]
    return subprocess.run(command, capture_output=True, text=True, timeout=seconds, cwd=TREE)


def page(port: int, path: str = "/metrics", seconds: float = SECONDS) -> tuple[int, str]:
    """Status and text of a page of the HTTP port; status 0 if nobody listens there."""
    try:
        with urllib.request.urlopen(f"http://127.0.0.1:{port}{path}", timeout=seconds) as answer:
            return answer.status, answer.read().decode()
    except urllib.error.HTTPError as error:
        return error.code, error.read().decode()
    except OSError:
        return 0, ""


def samples(port: int) -> dict[str, float]:
    """The numbers of /metrics by name and labels, as they stand on the page."""
    status, text = page(port)
    assert status == 200
    pairs = (line.rsplit(" ", 1) for line in text.splitlines() if not line.startswith("#"))
    return {name: float(value) for name, value in pairs}


# --- a process


def open_files(server: Server) -> int:
    return len(os.listdir(f"/proc/{server.pid}/fd"))


def segments(data: Path, topic: str, partition: int = 0) -> list[Path]:
    return sorted((data / f"{topic}-{partition}").glob("*.log"))
