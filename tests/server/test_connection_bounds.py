"""What one connection may cost, on real sockets: how long it may be silent, and how much it may leave waiting."""

from __future__ import annotations

import asyncio
import contextlib
import socket
import tracemalloc
from collections import deque
from collections.abc import Callable
from pathlib import Path

import pytest

from desk import on_loop
from harness import Node, resident_bytes
from ottla.server.connection import QUESTIONS_IN_FLIGHT_MAX
from ottla.server.dispatch import Exchange
from ottla.wire.messages.cluster import ApiVersionsRequest
from ottla.wire.messages.metadata import MetadataRequest
from ottla.wire.messages.topics import CreateTopicsRequest
from served import SECONDS, Served, TouchyDisk, batch, fetch_request, frame, produce_request, serving, until

QUESTION = frame(ApiVersionsRequest(), 0)


@pytest.mark.parametrize(
    ("is_introduced", "said"),
    [
        (False, b""),
        (False, QUESTION[:2]),
        (False, QUESTION[:9]),
        (True, b""),
        (True, QUESTION[:3]),
        (True, QUESTION[:9]),
    ],
    ids=["nothing", "half a length", "half a frame", "one request", "then half a length", "then half a frame"],
)
@on_loop
async def test_whoever_falls_silent_is_cut(tmp_path: Path, is_introduced: bool, said: bytes) -> None:
    async with serving(tmp_path, {"connections.max.idle.ms": "1000"}) as served:
        loop = asyncio.get_running_loop()
        began = loop.time()
        client = await served.connect()
        if is_introduced:
            await client.call(ApiVersionsRequest(), 0)
        client.writer.write(said)
        assert await client.is_cut()
        assert loop.time() - began > 0.9
        assert not served.node.listeners[0].connections and served.node.limits.connections == 0


@on_loop
async def test_a_first_request_in_drops_is_not_waited_for(tmp_path: Path) -> None:
    """Silence would not end this one: every drop is a sign of life."""
    async with serving(tmp_path, {"ottla.connection.frame.deadline.ms": "800"}) as served:
        began = asyncio.get_running_loop().time()
        client = await served.connect()
        for byte in b"\0\0\1\0" + bytes(40):
            client.writer.write(bytes([byte]))
            if await client.is_cut(0.1):
                break
        else:
            pytest.fail("it was waited for")
        assert asyncio.get_running_loop().time() - began > 0.7


@on_loop
async def test_a_negative_time_means_never(tmp_path: Path) -> None:
    """As in Apache Kafka."""
    async with serving(tmp_path, {"connections.max.idle.ms": "-1"}) as served:
        client = await served.connect()
        assert not await client.is_cut(2.2)
        await client.call(ApiVersionsRequest(), 0)


@on_loop
async def test_few_questions_and_many_produces_are_worked_on_at_a_time(tmp_path: Path) -> None:
    """An answer that waits behind another one waits in memory; only Produce needs a deep pipeline."""
    disk = TouchyDisk()
    async with serving(tmp_path, disk=disk) as served:
        await served.topic("t", flush_messages="1")
        asking, writing = await served.connect(), await served.connect()
        asking.send(fetch_request("t", {0: 0}, max_wait_ms=60_000), 12)
        disk.slow = True
        for _ in range(50):
            asking.send(MetadataRequest(topics=None), 12)
            writing.send(produce_request("t", {0: batch(b"v")}), 9)
        wanted = [QUESTIONS_IN_FLIGHT_MAX, 50]
        await until(lambda: sorted(len(each.exchanges) for each in served.node.listeners[0].connections) == wanted)
        await asyncio.sleep(0.1)
        assert sorted(len(each.exchanges) for each in served.node.listeners[0].connections) == wanted
        disk.slow = False
        disk.let_go()
        for _ in range(50):
            assert (await writing.receive()).responses[0].partition_responses[0].error_code == 0
        for _ in range(51):
            await asking.receive()
        writing.send(produce_request("t", {0: batch(b"v")}), 9)
        assert (await writing.receive()).responses[0].partition_responses[0].base_offset == 50


@on_loop
async def test_records_are_not_kept_until_they_are_safe(tmp_path: Path) -> None:
    """A hundred produces of one connection may wait for the disk or for other replicas, and what they brought is written."""
    disk, size, count = TouchyDisk(), 1 << 20, 30
    async with serving(tmp_path, {"message.max.bytes": str(2 * size)}, disk=disk) as served:
        await served.topic("t", flush_messages="1")
        client = await served.connect()
        disk.slow = True
        tracemalloc.start()
        try:
            for number in range(1, count + 1):
                client.send(produce_request("t", {0: batch(bytes(size))}), 9)
                await client.writer.drain()
                await until(lambda: len(waiting(served)) == number)  # noqa: B023
            kept, _ = tracemalloc.get_traced_memory()
        finally:
            tracemalloc.stop()
        disk.slow = False
        disk.let_go()
        for _ in range(count):
            assert (await client.receive()).responses[0].partition_responses[0].error_code == 0
    assert kept < 10 * size, f"{kept >> 20} MB"


def waiting(served: Served) -> deque[Exchange]:
    (connection,) = served.node.listeners[0].connections
    return connection.exchanges


def test_whoever_asks_and_never_reads_costs_little(node: Callable[..., Node]) -> None:
    """A hundred answers about two thousand partitions would be 50 MB; and others are served meanwhile."""
    running = node(options=["--log-level", "error"])
    with socket.create_connection(("127.0.0.1", running.port)) as client:
        client.settimeout(SECONDS)
        for name in ("a", "b"):
            new = CreateTopicsRequest.Topic(name=name, num_partitions=1000, replication_factor=1)
            ask(client, frame(CreateTopicsRequest(topics=[new], timeout_ms=30_000), 7))
        ask(client, frame(MetadataRequest(topics=None), 12))
        before = resident_bytes(running.pid)
        with socket.create_connection(("127.0.0.1", running.port)) as deaf:
            deaf.settimeout(0.05)
            peak = 0
            for _ in range(20):
                with contextlib.suppress(TimeoutError):
                    deaf.send(frame(MetadataRequest(topics=None), 12) * 1000)
                ask(client, QUESTION)
                peak = max(peak, resident_bytes(running.pid) - before)
    assert peak < 20 << 20, f"{peak >> 20} MB"


def ask(client: socket.socket, question: bytes) -> None:
    client.sendall(question)
    size = int.from_bytes(client.recv(4, socket.MSG_WAITALL), "big")
    while size:
        size -= len(client.recv(size, socket.MSG_WAITALL))
