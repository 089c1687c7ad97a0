"""The table of handlers, and how one handler call is stepped to its end."""

from __future__ import annotations

import asyncio
import gc
import logging
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from desk import on_loop
from ottla.server.connection import SHARED_BUFFER, is_free
from ottla.server.dispatch import HANDLERS, Handler
from ottla.server.node import FAMILIES
from ottla.wire.messages.cluster import ApiVersionsRequest, ApiVersionsResponse
from ottla.wire.messages.produce import ProduceResponse
from served import Client, Served, batch, fetch_request, produce_request, serving, until

assert FAMILIES, "importing the node fills the table"


@pytest.fixture
def borrowed() -> Iterator[Handler]:
    """The handler of ApiVersions, whose call a test may replace."""
    handler = HANDLERS[18]
    call = handler.call
    yield handler
    handler.call, handler.ordered = call, False


async def waiting_client(served: Served, borrowed: Handler, call: Any) -> Client:
    """One whose request has come to this handler, which waits."""
    client = await served.connect()
    borrowed.call = call
    client.send(ApiVersionsRequest(), 0)
    await until(lambda: any(connection.exchanges for connection in served.node.listeners[0].connections))
    return client


def forget_the_past(caplog: pytest.LogCaptureFixture) -> None:
    """What other tests have left behind is told when it is collected, and would be taken for ours."""
    gc.collect()
    caplog.clear()


def test_every_handler_serves_versions_its_layout_has() -> None:
    """PRT-13: what is advertised is served, but for Produce 0-2 (PRT-03)."""
    for key, handler in HANDLERS.items():
        assert handler.request.key == key
        assert all(version in handler.request.versions for version in (handler.low, handler.high))
        assert handler.advertised_low == (0 if key == 0 else handler.low)


@on_loop
async def test_an_unguarded_handler_that_fails_costs_its_client_the_connection_and_nobody_else(
    tmp_path: Path, borrowed: Handler, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(borrowed, "guarded", False)

    async def broken(request: Any, ctx: Any) -> ApiVersionsResponse:
        await asyncio.sleep(0)
        raise RuntimeError("a defect")

    async with serving(tmp_path) as served:
        await served.topic("t")
        client, other = await served.connect(), await served.connect()
        borrowed.call = broken
        with caplog.at_level(logging.CRITICAL, "ottla.server"):
            client.send(ApiVersionsRequest(), 0)
            assert await client.is_cut()
        assert (await other.produce("t", batch(b"v"))).error_code == 0


@on_loop
async def test_a_cancelled_future_fails_its_handler(
    tmp_path: Path, borrowed: Handler, caplog: pytest.LogCaptureFixture
) -> None:
    """CancelledError is no Exception: unnoticed it would block the connection for ever."""

    async def waits(request: Any, ctx: Any) -> ApiVersionsResponse:
        future = asyncio.get_running_loop().create_future()
        asyncio.get_running_loop().call_soon(future.cancel)
        await future
        return ApiVersionsResponse()

    async with serving(tmp_path) as served:
        client = await served.connect()
        borrowed.call = waits
        with caplog.at_level(logging.CRITICAL, "ottla.server"):
            client.send(ApiVersionsRequest(), 0)
            assert await client.is_cut()


@on_loop
async def test_a_produce_that_waits_leaves_its_buffer_to_others(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What it needs of its records it has copied or written: a bulk producer would fault in fresh memory for each frame."""
    waiting: list[asyncio.Future[None]] = []

    async def later(answer: ProduceResponse) -> ProduceResponse:
        waiting.append(asyncio.get_running_loop().create_future())
        await waiting[0]
        return answer

    monkeypatch.setattr(HANDLERS[0], "call", lambda request, ctx: later(ProduceResponse()))
    async with serving(tmp_path) as served:
        await served.topic("t")
        client = await served.connect()
        client.send(produce_request("t", {0: batch(bytes(2 * SHARED_BUFFER))}), 9)
        await until(lambda: bool(waiting))
        [buffer] = served.node.listeners[0].buffers._spare
        assert is_free(buffer)
        waiting[0].set_result(None)
        assert (await client.receive()).responses == []


@on_loop
async def test_several_handlers_wait_for_one_future(tmp_path: Path, borrowed: Handler) -> None:
    """The flag that a Task clears after a step must be cleared here too, or the second one to await is refused."""
    gate: list[asyncio.Future[None]] = []

    async def waits(request: Any, ctx: Any) -> ApiVersionsResponse:
        await gate[0]
        await asyncio.sleep(0.001)
        return ApiVersionsResponse(error_code=7)

    async with serving(tmp_path) as served:
        gate.append(asyncio.get_running_loop().create_future())
        clients = [await served.connect() for _ in range(5)]
        borrowed.call = waits
        for client in clients:
            client.send(ApiVersionsRequest(), 0)
        task = asyncio.create_task(waits(None, None))
        await asyncio.sleep(0.05)
        gate[0].set_result(None)
        for client in clients:
            assert (await client.receive()).error_code == 7
        assert (await task).error_code == 7


@on_loop
async def test_a_lost_connection_ends_its_handlers_and_runs_their_finally(tmp_path: Path, borrowed: Handler) -> None:
    ended: list[str] = []

    async def waits(request: Any, ctx: Any) -> ApiVersionsResponse:
        try:
            await asyncio.get_running_loop().create_future()
        finally:
            ended.append("cleaned up")
        return ApiVersionsResponse()

    async with serving(tmp_path) as served:
        client = await waiting_client(served, borrowed, waits)
        assert ended == []
        client.close()
        await until(lambda: ended)
        assert ended == ["cleaned up"]


@pytest.mark.parametrize("error", [None, TimeoutError()], ids=["answered", "timed out"])
@on_loop
async def test_a_connection_lost_in_the_turn_its_handler_wakes_is_no_error(
    tmp_path: Path, borrowed: Handler, caplog: pytest.LogCaptureFixture, error: Exception | None
) -> None:
    """The step is already scheduled when the connection goes; then nobody hears of an error that it would have met."""
    gate: list[asyncio.Future[None]] = []

    async def waits(request: Any, ctx: Any) -> ApiVersionsResponse:
        await gate[0]
        return ApiVersionsResponse()

    forget_the_past(caplog)
    async with serving(tmp_path) as served:
        gate.append(asyncio.get_running_loop().create_future())
        client = await waiting_client(served, borrowed, waits)
        (connection,) = served.node.listeners[0].connections
        with caplog.at_level(logging.INFO):
            if error is None:
                gate[0].set_result(None)
            else:
                gate[0].set_exception(error)
            connection.connection_lost(None)
            await asyncio.sleep(0.05)
            gate.clear()
            gc.collect()
        assert not [record for record in caplog.records if record.levelno >= logging.ERROR]
        client.close()


@on_loop
async def test_an_error_that_comes_after_the_connection_is_gone_is_no_error(
    tmp_path: Path, borrowed: Handler, caplog: pytest.LogCaptureFixture
) -> None:
    """As that of a block of producer ids, which several wait for, each behind a shield."""
    failing = asyncio.get_running_loop().create_future()

    async def waits(request: Any, ctx: Any) -> ApiVersionsResponse:
        await asyncio.shield(failing)
        return ApiVersionsResponse()

    forget_the_past(caplog)
    async with serving(tmp_path) as served:
        client = await waiting_client(served, borrowed, waits)
        (connection,) = served.node.listeners[0].connections
        with caplog.at_level(logging.INFO):
            connection.connection_lost(None)
            failing.set_exception(TimeoutError())
            await asyncio.sleep(0.05)
            gc.collect()
        assert not [record for record in caplog.records if record.levelno >= logging.ERROR]
        client.close()


@on_loop
async def test_a_request_that_waits_before_it_took_effect_holds_back_the_next(
    tmp_path: Path, borrowed: Handler
) -> None:
    """Ordered handlers: until it says `effective` nothing further of its connection starts; others are not touched."""
    gate: list[asyncio.Future[None]] = []

    async def waits(request: Any, ctx: Any) -> ApiVersionsResponse:
        await gate[0]
        ctx.effective()
        await gate[1]
        return ApiVersionsResponse(error_code=9)

    async with serving(tmp_path) as served:
        await served.topic("t")
        gate += [asyncio.get_running_loop().create_future() for _ in range(2)]
        borrowed.call, borrowed.ordered = waits, True
        client, other = await served.connect(), await served.connect()
        client.send(ApiVersionsRequest(), 0)
        client.send(produce_request("t", {0: batch(b"held")}), 9)
        await asyncio.sleep(0.05)
        client.send(produce_request("t", {0: batch(b"held too")}), 9)
        assert (await other.produce("t", batch(b"v"))).base_offset == 0
        gate[0].set_result(None)
        await until(lambda: served.partition("t").log.end_offset == 3)
        gate[1].set_result(None)
        assert (await client.receive()).error_code == 9, "answers keep the order of the requests"
        assert (await client.receive()).responses[0].partition_responses[0].base_offset == 1
        assert (await client.receive()).responses[0].partition_responses[0].base_offset == 2


@on_loop
async def test_a_held_connection_goes_on_when_the_request_ends_without_effect(
    tmp_path: Path, borrowed: Handler
) -> None:
    gate: list[asyncio.Future[None]] = []

    async def waits(request: Any, ctx: Any) -> ApiVersionsResponse:
        await gate[0]
        return ApiVersionsResponse(error_code=9)

    async with serving(tmp_path) as served:
        await served.topic("t")
        gate.append(asyncio.get_running_loop().create_future())
        borrowed.call, borrowed.ordered = waits, True
        client = await served.connect()
        client.send(ApiVersionsRequest(), 0)
        for _ in range(300):  # more than may be in flight, and more than one read brings
            client.send(produce_request("t", {0: batch(b"v" * 2000)}), 9)
        await asyncio.sleep(0.05)
        assert served.partition("t").log.end_offset == 0
        gate[0].set_result(None)
        assert (await client.receive()).error_code == 9
        for expected in range(300):
            assert (await client.receive()).responses[0].partition_responses[0].base_offset == expected


@on_loop
async def test_answers_keep_the_order_of_requests_even_if_a_later_one_is_ready_first(tmp_path: Path) -> None:
    """PRT-19."""
    async with serving(tmp_path) as served:
        await served.topic("t")
        client = await served.connect()
        client.send(fetch_request("t", {0: 0}, max_wait_ms=200), 12)
        for _ in range(3):
            client.send(ApiVersionsRequest(), 0)
        for _ in range(4):
            await client.receive()  # checks the correlation ids
        client.send(ApiVersionsRequest(), 0)
        client.send(fetch_request("t", {0: 0}, max_wait_ms=200), 12)
        client.send(ApiVersionsRequest(), 0)
        for _ in range(3):
            await client.receive()


def test_no_handler_uses_what_needs_a_task() -> None:
    """wait_for, timeout and TaskGroup need a task around them from Python 3.12 on, and handlers run without one."""
    handlers = Path(__file__).parents[2] / "src/ottla/server/handlers"
    for path in handlers.glob("*.py"):
        text = path.read_text()
        assert not [word for word in ("wait_for", "asyncio.timeout", "TaskGroup", "current_task") if word in text], path
