"""Lines to other nodes: what is said on them arrives, and whoever waits for an answer that will not come is told."""

from __future__ import annotations

import asyncio
import random
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest

from desk import on_loop
from harness import free_port
from ottla.client.connection import Lost
from ottla.server.peers import Line, Peers, Place
from ottla.sim.cluster import SimCluster
from ottla.sim.loop import SimLoop, run
from ottla.wire.errors import Error, KafkaError
from ottla.wire.messages.brokers import BrokerHeartbeatRequest
from ottla.wire.messages.fetch import FetchRequest, FetchResponse
from ottla.wire.messages.metadata import MetadataRequest
from ottla.wire.messages.voters import DescribeQuorumRequest
from served import Served, fetch_request, serving, until


def line(*places: tuple[str, int], concurrent: bool = False) -> Line:
    found = [Place(*place) for place in places]
    return Line("test-1", lambda: found, random.Random(1), concurrent=concurrent, opening_s=lambda: 5.0)


@asynccontextmanager
async def silence() -> AsyncIterator[int]:
    """A port where connections are taken and nothing is ever said, as by a process that is stopped."""
    taken: list[asyncio.StreamWriter] = []
    server = await asyncio.start_server(lambda _, writer: taken.append(writer), "127.0.0.1", 0)
    yield server.sockets[0].getsockname()[1]
    server.close()
    for writer in taken:
        writer.transport.abort()


def waiting_fetch(topic_id: bytes) -> FetchRequest:
    """One that the other side holds back, because there is nothing to read."""
    return fetch_request(topic_id, {0: 0}, max_wait_ms=60_000)


def fetches(served: Served) -> list[Any]:
    connections = (each for listener in served.node.listeners for each in listener.connections)
    return [each for connection in connections for each in connection.exchanges if each.handler.name == "Fetch"]


@on_loop
async def test_addresses_come_from_the_metadata(tmp_path: Path) -> None:
    async with serving(tmp_path) as served:
        peers: Peers = served.node.peers
        broker, controller = peers.line("test", 1), peers.to_controller("test", 1)
        assert (await broker.ask(MetadataRequest(topics=[]), 10)).brokers[0].node_id == 1
        described = await controller.ask(DescribeQuorumRequest(), 10)
        assert described.error_code == 0
        assert peers.line("test", 1) is broker and peers.line("other", 1) is not broker is not controller
        with pytest.raises(Lost, match="address"):
            await peers.line("test", 2).ask(MetadataRequest(), 10)


@on_loop
async def test_a_line_is_used_again_and_opened_again(tmp_path: Path) -> None:
    async with serving(tmp_path) as served:
        mine = line(("127.0.0.1", served.port))
        await mine.ask(MetadataRequest(topics=[]), 10)
        (before,) = served.node.listeners[0].connections
        await mine.ask(MetadataRequest(topics=[]), 10)
        assert list(served.node.listeners[0].connections) == [before]
        before.abort("the test wants it so")
        await until(lambda: not served.node.listeners[0].connections)
        await mine.ask(MetadataRequest(topics=[]), 10)
        (after,) = served.node.listeners[0].connections
        assert after is not before
        mine.close()
        await until(lambda: not served.node.listeners[0].connections)


@on_loop
async def test_a_node_that_is_to_be_found_elsewhere_by_now_is_asked_there(tmp_path: Path) -> None:
    """Where it was somebody else may listen, or its former self that hangs."""
    async with serving(tmp_path) as served:
        places = [Place("127.0.0.1", served.port)]
        mine = Line("test-1", lambda: places, random.Random(1), concurrent=False, opening_s=lambda: 5.0)
        await mine.ask(MetadataRequest(topics=[]), 10)
        (before,) = served.node.listeners[0].connections
        places[:] = [Place("localhost", served.port)]
        await mine.ask(MetadataRequest(topics=[]), 10)
        await until(lambda: before not in served.node.listeners[0].connections)
        mine.close()


@on_loop
async def test_nobody_listens() -> None:
    """The difference between a node that is dead and one that is slow: an election need not wait."""
    for host in ("127.0.0.1", "localhost"):
        mine = line((host, free_port()))
        for _ in range(3):
            with pytest.raises(OSError):
                await mine.ask(MetadataRequest(), 10)
            assert mine.is_refused
    async with silence() as port:
        mine = line(("127.0.0.1", port))
        with pytest.raises(Lost):
            await mine.ask(MetadataRequest(), 0.05)
        assert not mine.is_refused


@on_loop
async def test_a_node_that_has_moved_is_found(tmp_path: Path) -> None:
    """One of its addresses is old."""
    async with serving(tmp_path) as served:
        mine = line(("127.0.0.1", free_port()), ("127.0.0.1", served.port))
        with pytest.raises(ConnectionRefusedError):
            await mine.ask(MetadataRequest(), 10)
        assert (await mine.ask(MetadataRequest(topics=[]), 10)).brokers
        assert not mine.is_refused


@on_loop
async def test_a_lost_connection_is_noticed_at_once(tmp_path: Path) -> None:
    async with serving(tmp_path) as served:
        topic_id = await served.topic("t")
        mine = line(("127.0.0.1", served.port))
        asked = asyncio.ensure_future(mine.ask(waiting_fetch(topic_id), 60))
        await until(lambda: fetches(served))
        fetches(served)[0].connection.abort("the test wants it so")
        with pytest.raises(Lost):
            await asyncio.wait_for(asked, 20)
        await mine.lost()


@on_loop
async def test_whoever_is_in_a_hurry_does_not_wait_for_what_failed_before() -> None:
    mine = line(("127.0.0.1", free_port()))
    for _ in range(6):
        began = asyncio.get_running_loop().time()
        with pytest.raises(OSError):
            await mine.ask(MetadataRequest(), 10)
        assert mine._again_at > began
        mine.hurry()
        assert mine._again_at < asyncio.get_running_loop().time()


@on_loop
async def test_questions_wait_for_their_turn_unless_the_line_is_concurrent(tmp_path: Path) -> None:
    async with serving(tmp_path) as served:
        topic_id = await served.topic("t")
        for concurrent in (False, True):
            mine = line(("127.0.0.1", served.port), concurrent=concurrent)
            asked = [asyncio.ensure_future(mine.ask(waiting_fetch(topic_id), 60)) for _ in range(2)]
            await until(lambda: fetches(served))
            if concurrent:
                await until(lambda: len(fetches(served)) == 2)
            else:
                with pytest.raises(Lost, match="in time"):
                    await mine.ask(MetadataRequest(), 0.05)
                assert len(fetches(served)) == 1
            for each in asked:
                each.cancel()
            mine.close()
            await until(lambda: not fetches(served))


@on_loop
async def test_one_that_gives_up_does_not_end_the_line(tmp_path: Path) -> None:
    async with serving(tmp_path) as served:
        topic_id = await served.topic("t")
        mine = line(("127.0.0.1", served.port))
        asked = asyncio.ensure_future(mine.ask(fetch_request(topic_id, {0: 0}, max_wait_ms=1000), 60))
        await until(lambda: fetches(served))
        asked.cancel()
        assert (await mine.ask(MetadataRequest(topics=[]), 10)).brokers
        assert len(served.node.listeners[0].connections) == 1


@on_loop
async def test_questions_that_follow_have_their_turn_and_their_time(tmp_path: Path) -> None:
    """Whoever asks on and on keeps the turn; and if the line took long to open, that is not taken off each question."""
    async with serving(tmp_path) as served:
        topic_id = await served.topic("t")
        mine, heard = line(("127.0.0.1", served.port)), []
        fetch = fetch_request(topic_id, {0: 0}, max_wait_ms=600)

        def ask_on(response: FetchResponse) -> FetchRequest | None:
            heard.append(response)
            return fetch if len(heard) < 3 else None

        mine._again_at = asyncio.get_running_loop().time() + 0.9
        asked = asyncio.ensure_future(mine.ask(fetch, 1.2, ask_on))
        await until(lambda: len(heard) == 1)
        assert (await mine.ask(MetadataRequest(topics=[]), 10)).brokers
        assert asked.done() and (await asked) is heard[2]


@on_loop
async def test_a_line_that_is_closed_between_questions_ends_the_waiting(tmp_path: Path) -> None:
    async with serving(tmp_path) as served:
        topic_id = await served.topic("t")
        mine, heard = line(("127.0.0.1", served.port)), []

        def ask_on(response: FetchResponse) -> FetchRequest:
            heard.append(response)
            mine.close()
            return fetch_request(topic_id, {0: 0})

        with pytest.raises(Lost):
            await mine.ask(fetch_request(topic_id, {0: 0}), 60, ask_on)
        assert len(heard) == 1
        assert (await mine.ask(MetadataRequest(topics=[]), 10)).brokers


@on_loop
async def test_what_the_other_side_does_not_speak(tmp_path: Path) -> None:
    """Heartbeats of brokers belong on a controller's listener."""
    async with serving(tmp_path) as served:
        with pytest.raises(KafkaError) as refused:
            await line(("127.0.0.1", served.port)).ask(BrokerHeartbeatRequest(), 10)
        assert refused.value.error is Error.UNSUPPORTED_VERSION


@on_loop
async def test_whoever_runs_without_a_task_can_ask_too(tmp_path: Path) -> None:
    """Handlers are stepped by hand."""
    async with serving(tmp_path) as served:
        loop, done = asyncio.get_running_loop(), asyncio.get_running_loop().create_future()
        coroutine = line(("127.0.0.1", served.port)).ask(MetadataRequest(topics=[]), 10)

        def step(_: object = None) -> None:
            try:
                waiting = coroutine.send(None)
            except StopIteration as stop:
                done.set_result(stop.value)
            else:
                waiting._asyncio_future_blocking = False
                waiting.add_done_callback(step)

        loop.call_soon(step)
        assert (await done).brokers


@pytest.mark.parametrize("seed", range(5))
def test_in_simulation(seed: int) -> None:
    """A killed node is known to be dead without waiting; one that is cut off holds nobody longer than he wants."""

    async def main(loop: SimLoop) -> None:
        cluster = SimCluster(loop)
        machine = cluster.add("b1")
        cluster.boot("b1")
        await until(lambda: machine.is_ready)
        mine = line(("b1", 9092))
        assert (await mine.ask(MetadataRequest(topics=[]), 10)).brokers
        loop.network.isolate("b1")
        began = loop.time()
        for _ in range(2):  # once on the connection there is, once on one to be opened
            with pytest.raises(Lost):
                await mine.ask(MetadataRequest(topics=[]), 3)
        assert loop.time() - began < 6.5 and not mine.is_refused
        loop.network.heal_all()
        assert (await mine.ask(MetadataRequest(topics=[]), 10)).brokers
        cluster.kill("b1")
        began = loop.time()
        with pytest.raises(OSError):
            await mine.ask(MetadataRequest(), 100)
        with pytest.raises(OSError):
            await mine.ask(MetadataRequest(), 100)
        assert loop.time() - began < 2 and mine.is_refused

    run(seed, main)
