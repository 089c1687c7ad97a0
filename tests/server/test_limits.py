"""How many connections there may be, in all and from one address."""

from __future__ import annotations

import asyncio
import socket
import time
from collections.abc import Callable
from pathlib import Path

from desk import on_loop
from harness import Node, resident_bytes
from ottla.server.limits import Limits
from ottla.wire.messages.cluster import ApiVersionsRequest
from served import frame, serving

COUNT = 5_000
BASE = {"max.connections": 3, "max.connections.per.ip": 2, "max.connections.per.ip.overrides": ""}


def test_counts_by_address_and_in_all() -> None:
    limits = Limits(BASE)
    assert [limits.admit(host) for host in ("a", "a", "a", "b", "c")] == [True, True, False, True, False]
    assert limits.connections == 3
    limits.forget("a")
    assert limits.admit("c") and not limits.admit("d")


def test_overrides_by_address() -> None:
    limits = Limits(BASE | {"max.connections": 100, "max.connections.per.ip.overrides": "a:3, ::1:1"})
    assert [limits.admit("a") for _ in range(4)] == [True, True, True, False]
    assert [limits.admit("::1") for _ in range(2)] == [True, False]


def test_an_address_that_left_leaves_nothing_behind() -> None:
    limits = Limits(BASE)
    for number in range(1000):
        assert limits.admit(str(number))
        limits.forget(str(number))
    assert limits.connections == 0 and not limits._by_host


@on_loop
async def test_one_connection_too_many_is_closed_and_the_others_stay(tmp_path: Path) -> None:
    async with serving(tmp_path, {"max.connections": "5"}) as served:
        clients = [await served.connect() for _ in range(5)]
        for client in clients:
            await client.call(ApiVersionsRequest(), 0)
        for _ in range(3):
            assert await (await served.connect()).is_cut(2)
        clients.pop().close()
        await asyncio.sleep(0.05)
        newcomer = await served.connect()
        for client in [*clients, newcomer]:
            await client.call(ApiVersionsRequest(), 0)
        assert served.node.limits.connections == 5


def test_idle_connections_cost_little(node: Callable[..., Node]) -> None:
    """Goal 13, issue section 7: 5,000 idle connections well below 60 MB, and one descriptor each, not two."""
    running = node(settings={"socket.listen.backlog.size": "4096"}, options=["--log-level", "error"])
    question = frame(ApiVersionsRequest(), 0)
    assert_answers(socket.create_connection(("127.0.0.1", running.port)), question)
    before, files = resident_bytes(running.pid), descriptors(running.pid)
    clients = [socket.create_connection(("127.0.0.1", running.port)) for _ in range(COUNT)]
    for client in clients:
        client.sendall(question)
    for client in clients:
        assert_answers(client)
    grown = resident_bytes(running.pid) - before
    assert descriptors(running.pid) - files <= COUNT + 10
    assert grown < COUNT * 8_000, f"{grown / COUNT:.0f} bytes a connection"
    used = running.cpu_seconds()
    time.sleep(1)
    assert running.cpu_seconds() - used < 0.1, "idle means idle"
    for client in clients:
        client.close()


def assert_answers(client: socket.socket, question: bytes = b"") -> None:
    client.sendall(question)
    size = int.from_bytes(client.recv(4, socket.MSG_WAITALL), "big")
    assert len(client.recv(size, socket.MSG_WAITALL)) == size


def descriptors(pid: int) -> int:
    return len(list(Path(f"/proc/{pid}/fd").iterdir()))
