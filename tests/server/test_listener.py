"""Connections on real sockets: frames in pieces, buffers that are shared, back-pressure, and ends."""

from __future__ import annotations

import asyncio
import random
import socket
from pathlib import Path

import pytest

from desk import on_loop
from ottla.server import listener as listener_module
from ottla.server.connection import FIRST_BUFFER, POOLED_BYTES_FROM, SHARED_BUFFER, Buffers, Connection
from ottla.wire.messages.cluster import ApiVersionsRequest
from served import SECONDS, Served, TouchyDisk, batch, fetch_request, frame, produce_request, serving, until, values


@pytest.mark.parametrize("piece", [1, 3, 4, 7, 1000])
@on_loop
async def test_frames_may_come_in_pieces_of_any_size(tmp_path: Path, piece: int) -> None:
    async with serving(tmp_path) as served:
        await served.topic("t")
        client = await served.connect()
        stream = b"".join(frame(produce_request("t", {0: batch(b"v%d" % n)}), 9, n) for n in range(5))
        for start in range(0, len(stream), piece):
            client.writer.write(stream[start : start + piece])
            await asyncio.sleep(0.0005)
        for n in range(5):
            assert int.from_bytes((await client.frame())[:4], "big") == n
        assert values((await client.fetch("t", 0)).records) == [b"v%d" % n for n in range(5)]


@on_loop
async def test_frames_larger_than_the_shared_buffer(tmp_path: Path) -> None:
    """A frame continues in a buffer of its own that grows with what came, also when only its length came first."""
    async with serving(tmp_path) as served:
        await served.topic("t", max_message_bytes="10000000")
        client = await served.connect()
        sizes = [SHARED_BUFFER - 200, SHARED_BUFFER, 1_000_000, 5_000_000, 10, 3_000_000]
        for size in sizes:
            whole = frame(produce_request("t", {0: batch(b"%d" % (size % 7) * size)}), 9)
            client.writer.write(whole[:2])
            await asyncio.sleep(0.01)
            client.writer.write(whole[2:6])
            await asyncio.sleep(0.01)
            client.writer.write(whole[6:])
            await client.frame()
        for offset, size in enumerate(sizes):
            fetched = await client.fetch("t", offset, partition_max_bytes=1)
            assert values(fetched.records) == [b"%d" % (size % 7) * size]


@on_loop
async def test_three_producers_share_a_buffer_and_nothing_is_mixed_up(tmp_path: Path) -> None:
    """CVE-2026-35554: different batches of 4 KB, interleaved, with waits in the handlers; every record is checked."""
    disk = TouchyDisk()
    async with serving(tmp_path, disk=disk) as served:
        for name, configs in (("a", {}), ("b", {"flush_messages": "1"}), ("c", {"compression_type": "gzip"})):
            await served.topic(name, **configs)
        rng = random.Random(5)
        clients = {name: await served.connect() for name in "abc"}
        sent: dict[str, list[bytes | None]] = {name: [] for name in "abc"}
        for _ in range(120):
            name = rng.choice("abc")
            value = name.encode() * 8 + rng.randbytes(rng.choice([50, 4_000, 4_000, 17_000, 70_000]))
            sent[name].append(value)
            clients[name].send(produce_request(name, {0: batch(value)}), 9)
            if rng.random() < 0.3:
                await asyncio.sleep(0)
        for name, client in clients.items():
            for expected in range(len(sent[name])):
                answer = (await client.receive()).responses[0].partition_responses[0]
                assert (answer.error_code, answer.base_offset) == (0, expected)
        for name, client in clients.items():
            found: list[bytes | None] = []
            while len(found) < len(sent[name]):
                found += values((await client.fetch(name, len(found), partition_max_bytes=1 << 24)).records)
            assert found == sent[name]


@on_loop
async def test_what_a_handler_keeps_is_not_touched_by_the_next_read(tmp_path: Path) -> None:
    """Poison: the whole shared buffer is overwritten right after the handler's first step."""
    async with serving(tmp_path) as served:
        await served.topic("t", compression_type="zstd")
        client = await served.connect()
        value = b"good" * 25_000  # recompressed in another process, so the handler waits before it appends
        client.send(produce_request("t", {0: batch(value)}), 9)
        (connection,) = served.node.listeners[0].connections
        async with asyncio.timeout(SECONDS):
            while not connection.exchanges:
                await asyncio.sleep(0)
        shared = served.node.listeners[0].buffers.shared
        shared[:] = b"\xee" * len(shared)
        assert (await client.receive()).responses[0].partition_responses[0].error_code == 0
        assert values((await client.fetch("t", 0)).records) == [value]


def test_a_buffer_that_somebody_still_reads_is_not_used_again() -> None:
    buffers = Buffers()
    free, busy = bytearray(2 * POOLED_BYTES_FROM), bytearray(2 * POOLED_BYTES_FROM)
    view = memoryview(busy)
    buffers.give_back(busy)
    buffers.give_back(free)
    size = 2 * POOLED_BYTES_FROM
    assert buffers.take(size, size) is free and len(free) == size
    assert buffers.take(size, size) is not busy
    view.release()


def test_buffers_grow_with_what_came_and_not_with_what_was_promised() -> None:
    """faults 2.3: no allocation on trust of the length."""
    assert len(Buffers().take(100 << 20, 10)) == FIRST_BUFFER
    assert len(Buffers().take(100 << 20, SHARED_BUFFER)) == 2 * SHARED_BUFFER


@on_loop
async def test_a_large_frame_after_a_waiting_one_gets_a_buffer(tmp_path: Path) -> None:
    """A produce waits for its fsync and so holds on to the buffer it came in; the next large frame must not need it."""
    disk = TouchyDisk()
    async with serving(tmp_path, disk=disk) as served:
        await served.topic("t", flush_messages="1")
        clients = [await served.connect() for _ in range(3)]
        disk.slow = True
        for n, client in enumerate(clients):
            whole = frame(produce_request("t", {0: batch(bytes([65 + n]) * (150_000 * (n + 1)))}, timeout_ms=20_000), 9)
            client.writer.write(whole[:3])
            await asyncio.sleep(0.02)
            client.writer.write(whole[3:])
            await asyncio.sleep(0.05)
        disk.slow = False
        disk.let_go()
        for client in clients:
            await client.frame()
        offset, found = 0, []
        while offset < 3:
            found += values((await clients[0].fetch("t", offset, partition_max_bytes=1 << 24)).records)
            offset = len(found)
        assert found == [bytes([65 + n]) * (150_000 * (n + 1)) for n in range(3)]


@on_loop
async def test_a_connection_with_too_much_in_flight_is_not_read(tmp_path: Path) -> None:
    async with serving(tmp_path, {"ottla.connection.requests.in.flight.max": "3"}) as served:
        await served.topic("t")
        client, other = await served.connect(), await served.connect()
        client.send(fetch_request("t", {0: 0}, max_wait_ms=60_000), 12)
        for _ in range(200):
            client.send(ApiVersionsRequest(), 0)
        await until(lambda: any(connection.exchanges for connection in served.node.listeners[0].connections))
        await asyncio.sleep(0.1)
        busy = max(served.node.listeners[0].connections, key=lambda connection: len(connection.exchanges))
        assert len(busy.exchanges) == 3
        assert (await other.produce("t", batch(b"v"))).error_code == 0
        for _ in range(201):
            await client.receive()


def stuck(served: Served) -> list[Connection]:
    """Those whose peers do not take what they are sent."""
    return [c for c in served.node.listeners[0].connections if c.outbox is not None and c.outbox.is_stuck]


@on_loop
async def test_a_slow_reader_hurts_only_itself(tmp_path: Path) -> None:
    """It asks for 200 MB and takes nothing: reading stops, memory does not grow, the others are served."""
    async with serving(tmp_path) as served:
        await served.topic("t")
        writer = await served.connect()
        for _ in range(4):
            await writer.produce("t", batch(b"x" * 1_000_000))
        slow = socket.create_connection(("127.0.0.1", served.port))
        slow.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
        question = frame(fetch_request("t", {0: 0}, partition_max_bytes=1 << 24), 12)
        slow.setblocking(False)
        slow.send(question * 50)
        await until(lambda: stuck(served))
        await asyncio.sleep(0.1)
        (one,) = stuck(served)
        held = sum(part.size if hasattr(part, "size") else len(part) for part in one.outbox._queue)  # type: ignore[union-attr]
        assert len(one.exchanges) <= served.node.listeners[0].in_flight_max
        written = sum(len(part) for part in one.outbox._queue if not hasattr(part, "size"))  # type: ignore[union-attr,arg-type]
        assert written < 100_000 < held, "slices wait in their files"
        async with asyncio.timeout(SECONDS):
            for _ in range(50):
                assert (await writer.produce("t", batch(b"v"))).error_code == 0
        slow.close()


@on_loop
async def test_idle_connections_are_cut_and_waiting_ones_are_not(tmp_path: Path) -> None:
    async with serving(tmp_path, {"connections.max.idle.ms": "1200"}) as served:
        await served.topic("t")
        idle, waiting = await served.connect(), await served.connect()
        waiting.send(fetch_request("t", {0: 0}, max_wait_ms=3_500), 12)
        assert await idle.is_cut()
        assert (await waiting.receive()).responses[0].partitions[0].error_code == 0


@on_loop
async def test_a_stopping_node_says_what_it_still_has_to_say(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(listener_module, "CLOSE_SECONDS", SECONDS)
    async with serving(tmp_path) as served:
        await served.topic("t")
        client = await served.connect(limit=1 << 14)
        await client.produce("t", batch(b"x" * 1_000_000))
        for _ in range(10):
            client.send(fetch_request("t", {0: 0}, partition_max_bytes=1 << 24), 12)
        await until(lambda: stuck(served))
        closing = asyncio.create_task(served.node.listeners[0].close())
        answered = 0
        while answered < 10 and not client.reader.at_eof():
            try:
                await client.receive()
            except asyncio.IncompleteReadError as cut:
                assert not cut.partial, "no answer is cut in the middle"
                break
            answered += 1
        assert answered >= 1
        await closing


@on_loop
async def test_both_families_of_addresses_and_several_listeners(tmp_path: Path) -> None:
    """Issue section 5."""
    listeners = "PLAINTEXT://127.0.0.1:0,SIX://[::1]:0,CONTROLLER://127.0.0.1:0"
    protocols = "PLAINTEXT:PLAINTEXT,SIX:PLAINTEXT,CONTROLLER:PLAINTEXT"
    settings = {"listeners": listeners, "listener.security.protocol.map": protocols}
    async with serving(tmp_path, settings) as served:
        assert [listener.name for listener in served.node.listeners] == ["PLAINTEXT", "SIX", "CONTROLLER"]
        for listener, host in zip(served.node.listeners, ("127.0.0.1", "::1", "127.0.0.1"), strict=True):
            reader, writer = await asyncio.open_connection(host, listener.port)
            writer.write(frame(ApiVersionsRequest(), 0, 77))
            assert int.from_bytes((await reader.readexactly(8))[4:], "big") == 77
            writer.close()


@on_loop
async def test_a_half_closed_connection_is_over(tmp_path: Path) -> None:
    async with serving(tmp_path) as served:
        client = await served.connect()
        client.writer.write(frame(ApiVersionsRequest(), 0))
        await client.frame()
        client.writer.write_eof()
        assert await client.is_cut()
        await until(lambda: not served.node.listeners[0].connections)
        assert served.node.limits.connections == 0


@on_loop
async def test_what_came_before_a_request_nobody_understands_is_answered(tmp_path: Path) -> None:
    """As in Kafka, which looks at one request after the other; what comes after it is not looked at."""
    async with serving(tmp_path) as served:
        await served.topic("t")
        client = await served.connect()
        for wait_ms in (100, 300):
            client.send(fetch_request("none-yet", {0: 0}, max_wait_ms=wait_ms), 12)
            client.send(fetch_request("t", {0: 9}, max_wait_ms=wait_ms, min_bytes=9), 12)
        client.send(fetch_request("t", {0: 0}, max_wait_ms=100), 12)
        client.send(fetch_request("t", {0: 0}, max_wait_ms=300), 12)
        client.writer.write(b"\0\0\0\4\xff\xff\xff\xff")
        after = frame(produce_request("t", {0: batch(b"after")}), 9)
        client.writer.write(after)
        await asyncio.sleep(0.05)
        client.writer.write(after)
        for _ in range(6):
            await client.receive()
        assert await client.is_cut()
        assert served.partition("t").log.end_offset == 0


@on_loop
async def test_a_peer_that_does_not_take_its_answers_is_idle(tmp_path: Path) -> None:
    async with serving(tmp_path, {"connections.max.idle.ms": "1200"}) as served:
        await served.topic("t")
        writer = await served.connect()
        for _ in range(8):
            await writer.produce("t", batch(b"x" * 1_000_000))
        slow = socket.create_connection(("127.0.0.1", served.port))
        slow.setblocking(False)
        slow.send(frame(fetch_request("t", {0: 0}, partition_max_bytes=1 << 24), 12) * 20)
        await until(lambda: not served.node.limits.connections)
        slow.close()


@on_loop
async def test_many_small_slices_are_not_all_read_for_one_who_takes_nothing(tmp_path: Path) -> None:
    """Below its limit a slice is joined with the header; beyond a megabyte in all the rest stays in its files."""
    async with serving(tmp_path) as served:
        await served.topic("t", 60)
        writer = await served.connect()
        for index in range(60):
            await writer.produce("t", batch(b"x" * 40_000), index=index)
        response = await writer.call(fetch_request("t", dict.fromkeys(range(60), 0)), 12)
        assert [values(part.records) for part in response.responses[0].partitions] == [[b"x" * 40_000]] * 60
        slow = socket.create_connection(("127.0.0.1", served.port))
        slow.setblocking(False)
        slow.send(frame(fetch_request("t", dict.fromkeys(range(60), 0)), 12) * 20)
        await until(lambda: stuck(served))
        await asyncio.sleep(0.1)
        (one,) = stuck(served)
        assert one.outbox is not None
        in_memory = sum(len(part) for part in one.outbox._queue if not hasattr(part, "size"))  # type: ignore[arg-type]
        assert in_memory < 4 << 20
        slow.close()


@pytest.mark.parametrize("size", [100, 100_000])
@on_loop
async def test_a_file_shorter_than_what_was_promised_ends_the_connection(tmp_path: Path, size: int) -> None:
    """TRAP-28: the length is on the wire already."""
    async with serving(tmp_path) as served:
        await served.topic("t")
        client = await served.connect()
        await client.produce("t", batch(b"x" * size))
        segment = served.partition("t").log.active
        segment.open().truncate(segment.size - 50)
        client.send(fetch_request("t", {0: 0}), 12)
        with pytest.raises((asyncio.IncompleteReadError, ConnectionError)):
            await client.receive()
