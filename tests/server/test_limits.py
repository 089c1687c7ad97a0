"""How many connections there may be, in all and from one address."""

from __future__ import annotations

import asyncio
import socket
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from desk import on_loop
from harness import Node, resident_bytes
from ottla.server.limits import Limits, Pace
from ottla.wire.messages.cluster import ApiVersionsRequest
from ottla.wire.messages.settings import IncrementalAlterConfigsRequest
from served import Served, frame, serving, until

COUNT = 5_000
UNLIMITED = 2**31 - 1
BASE = {
    "max.connections": 3,
    "max.connections.per.ip": 2,
    "max.connections.per.ip.overrides": "",
    "max.connection.creation.rate": UNLIMITED,
}


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
            assert await (await served.connect()).is_cut()
        clients.pop().close()
        await until(lambda: served.node.limits.connections == 4)
        newcomer = await served.connect()
        for client in [*clients, newcomer]:
            await client.call(ApiVersionsRequest(), 0)
        assert served.node.limits.connections == 5


async def change(served: Served, name: str, value: str | None, broker: str = "1") -> None:
    """IncrementalAlterConfigs of the running broker, by a connection that is gone afterwards."""
    before = served.node.limits.connections
    client = await served.connect()
    entry = IncrementalAlterConfigsRequest.Resource.Config(name=name, config_operation=0 if value else 1, value=value)
    resource = IncrementalAlterConfigsRequest.Resource(resource_type=4, resource_name=broker, configs=[entry])
    answer = await client.call(IncrementalAlterConfigsRequest(resources=[resource]), 1)
    assert answer.responses[0].error_code == 0, answer.responses[0].error_message
    client.close()
    await until(lambda: served.node.limits.connections <= before)


async def are_served(served: Served, count: int) -> list[bool]:
    """Which of so many new connections get an answer. They are gone afterwards."""
    before = served.node.limits.connections
    clients = [await served.connect() for _ in range(count)]
    for client in clients:
        client.send(ApiVersionsRequest(), 0)
    found = []
    for client in clients:
        try:
            await client.receive()
            found.append(True)
        except (asyncio.IncompleteReadError, ConnectionError):
            found.append(False)
    for client in clients:
        client.close()
    await until(lambda: served.node.limits.connections <= before)
    return found


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("max.connections", "2"),
        ("max.connections.per.ip", "2"),
        ("max.connections.per.ip.overrides", "127.0.0.1:2"),
        ("listener.name.plaintext.max.connections", "2"),
    ],
)
@on_loop
async def test_limits_change_while_the_node_runs(tmp_path: Path, name: str, value: str) -> None:
    """For this broker, and for all; and back again."""
    for broker in ("1", "") if name == "max.connections" else ("1",):
        async with serving(tmp_path) as served:
            assert await are_served(served, 4) == [True] * 4
            await change(served, name, value, broker)
            assert await are_served(served, 4) == [True, True, False, False]
            await change(served, name, None, broker)
            assert await are_served(served, 4) == [True] * 4


@on_loop
async def test_a_limit_that_was_changed_holds_after_a_restart(tmp_path: Path) -> None:
    async with serving(tmp_path) as served:
        await change(served, "max.connections", "2")
    async with serving(tmp_path) as served:
        assert await are_served(served, 4) == [True, True, False, False]


@on_loop
async def test_a_lowered_limit_ends_those_that_were_silent_longest(tmp_path: Path) -> None:
    """As Apache Kafka does."""
    async with serving(tmp_path) as served:
        clients = [await served.connect() for _ in range(5)]
        for client in reversed(clients):
            await client.call(ApiVersionsRequest(), 0)
        await change(served, "max.connections", "3")  # whoever changes it is the sixth
        assert [await client.is_cut() for client in clients[2:]] == [True, True, True]
        assert [await client.is_cut(0.2) for client in clients[:2]] == [False, False]


@on_loop
async def test_listeners_cannot_be_changed_while_the_node_runs(tmp_path: Path) -> None:
    """What is not obeyed is not accepted."""
    async with serving(tmp_path) as served:
        with pytest.raises(AssertionError, match="where the node is started"):
            await change(served, "listeners", "PLAINTEXT://127.0.0.1:1")


def test_a_pace_allows_a_second_at_once_and_then_one_after_the_other() -> None:
    """KIP-612."""
    pace = Pace(4)
    turns = []
    for _ in range(8):
        turns.append(pace.turn(100.0))
        pace.take(100.0)
    assert turns == [99.25, 99.5, 99.75, 100.0, 100.25, 100.5, 100.75, 101.0]
    assert pace.turn(200.0) == 199.25, "what was not used long ago is not saved up"
    assert Pace().turn(5.0) == 5.0


@pytest.mark.parametrize(
    "name", ["max.connection.creation.rate", "listener.name.plaintext.max.connection.creation.rate"]
)
@on_loop
async def test_new_connections_come_in_at_their_pace(tmp_path: Path, name: str) -> None:
    """KIP-612: those above the rate are answered later, and who is in already is not held up."""
    async with serving(tmp_path, {"socket.listen.backlog.size": "8"}) as served:
        early = await served.connect()
        await change(served, name, "5")
        loop = asyncio.get_running_loop()
        began = loop.time()
        clients = [await served.connect() for _ in range(9)]
        for client in clients:
            client.send(ApiVersionsRequest(), 0)
        last = asyncio.create_task(clients[-1].receive())
        await early.call(ApiVersionsRequest(), 0)
        assert not last.done() or loop.time() - began > 0.7, "unless this machine has slept until it was its turn"
        for client in clients[:-1]:
            await client.receive()
        await last
        assert loop.time() - began > 0.7
        for client in clients:
            await client.call(ApiVersionsRequest(), 0)


@on_loop
async def test_only_so_many_wait_for_their_turn(tmp_path: Path) -> None:
    """A flood of connections is not kept for hours."""
    settings = {"max.connection.creation.rate": "1", "socket.listen.backlog.size": "2"}
    async with serving(tmp_path, settings) as served:
        assert await are_served(served, 5) == [True, True, True, False, False]
        assert served.node.limits.connections == 0


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
