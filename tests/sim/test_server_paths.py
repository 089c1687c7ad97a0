"""The server's edge under the simulated loop: listener, dispatch, tick and outbox, with handlers made for the purpose.

Many clients pipeline requests whose handlers answer at once, after a while, in one write or from a large slice of a
file; readers are slow, links stall, connections break. Whatever happens, replies come in the order of the requests, each
whole and right, and a broken connection hurts only itself."""

import asyncio
import contextlib
import logging
import random
import struct
from collections.abc import Awaitable, Callable, Iterator
from types import SimpleNamespace
from typing import Any

import pytest

from ottla.config import BrokerConfig, Endpoint
from ottla.metadata.frozen import FrozenMap
from ottla.server.connection import Connection
from ottla.server.dispatch import HANDLERS, Handler
from ottla.server.limits import Limits
from ottla.server.listener import Listener
from ottla.server.measures import NodeMetrics
from ottla.server.quotas import Quotas
from ottla.server.tick import Tick
from ottla.sim.disk import SimDisk
from ottla.sim.loop import SimLoop, run
from ottla.wire.codec import decode
from ottla.wire.frames import read_response_header, request_frame
from ottla.wire.messages.fetch import FetchRequest, FetchResponse
from ottla.wire.messages.offsets import ListOffsetsRequest, ListOffsetsResponse
from ottla.wire.messages.produce import ProduceRequest, ProduceResponse
from ottla.world import Slice

PORT = 9092
VERSION = {0: 9, 1: 12, 2: 6}
RESPONSES = {0: ProduceResponse, 1: FetchResponse, 2: ListOffsetsResponse}
PATTERN = bytes(range(256)) * 8192  # 2 MiB in which every position shows where it is


class Memory:
    """A file without a descriptor, as the simulated disk has them; some of it has to be brought in before it is read."""

    path, fd = "memory", None

    def __init__(self) -> None:
        self.brought: set[int] = set()

    def read_at(self, position: int, size: int) -> bytes:
        assert self.is_cached(position, size)
        return PATTERN[position : position + size]

    def read_cached(self, position: int, size: int) -> bytes | None:
        return self.read_at(position, size) if self.is_cached(position, size) else None

    def is_cached(self, position: int, size: int) -> bool:
        """Every second piece of 64 KiB is cold at first."""
        pieces = range(position >> 16, (position + size - 1 >> 16) + 1)
        return not size or all(piece % 2 == 0 or piece in self.brought for piece in pieces)

    def bring_in(self, position: int, size: int) -> None:
        self.brought.update(range(position >> 16, (position + size - 1 >> 16) + 1))


class Service:
    """Handlers whose answers can be foretold from their requests, and what they saw."""

    def __init__(self) -> None:
        self.appended: list[tuple[str, int]] = []
        self.cancelled = 0
        self.running = self.running_most = 0
        self.gate: asyncio.Future[None] | None = None

    async def produce(self, request: ProduceRequest, ctx: Any) -> ProduceResponse | None:
        """Takes effect in order although some wait first: `timeout_ms` is how long, before the append."""
        number = int(request.topic_data[0].name)
        if request.timeout_ms:
            await asyncio.sleep(request.timeout_ms / 1000)
        self.appended.append((ctx.client_id, number))
        ctx.effective()
        if request.acks == 0:
            return None
        await asyncio.sleep(0.001)
        return ProduceResponse(throttle_time_ms=number)

    async def fetch(self, request: FetchRequest, ctx: Any) -> FetchResponse:
        """`min_bytes` bytes from position `max_bytes`, after `max_wait_ms`."""
        self.running += 1
        self.running_most = max(self.running, self.running_most)
        try:
            if request.max_wait_ms:
                await asyncio.sleep(request.max_wait_ms / 1000)
        except GeneratorExit:
            self.cancelled += 1
            raise
        finally:
            self.running -= 1
        piece: Any = Slice(Memory(), request.max_bytes, request.min_bytes)  # type: ignore[arg-type]
        partition = FetchResponse.Topic.Partition(records=piece)
        return FetchResponse(responses=[FetchResponse.Topic(topic="t", partitions=[partition])])

    async def list_offsets(self, request: ListOffsetsRequest, ctx: Any) -> ListOffsetsResponse:
        """Waits for the gate if there is one, then yields to the loop a few times without waiting for anything."""
        if self.gate is not None:
            await self.gate
        for _ in range(request.replica_id % 4):
            await asyncio.sleep(0)
        return ListOffsetsResponse(throttle_time_ms=request.replica_id)


@pytest.fixture
def service(monkeypatch: pytest.MonkeyPatch) -> Iterator[Service]:
    made = Service()
    for request, call, ordered in (
        (ProduceRequest, made.produce, True),
        (FetchRequest, made.fetch, False),
        (ListOffsetsRequest, made.list_offsets, False),
    ):
        version = VERSION[request.key]
        monkeypatch.setitem(HANDLERS, request.key, Handler(request, version, version, call, version, ordered))
    yield made


async def serve(
    settings: dict[str, str], listeners: list[Listener] | None = None, limits: dict[str, float] | None = None
) -> None:
    """The main of a node that consists of its edge only. `limits`: of every client."""
    loop = asyncio.get_running_loop()
    config = BrokerConfig(settings)
    measures = NodeMetrics({key: handler.name for key, handler in HANDLERS.items()})
    quotas = Quotas(config, loop.time, measures)
    node: Any = SimpleNamespace(
        config=config,
        connection_kind=Connection,
        quotas=quotas,
        charging=quotas.obey(FrozenMap({(("client-id", None),): limits} if limits else {})),
        limits=Limits(config),
        tick=Tick(loop, loop.call_exception_handler),
        measures=measures,
        world=SimpleNamespace(disk=SimDisk(random.Random(1), latency_s=0.001)),
    )
    listener = Listener(node, Endpoint("PLAINTEXT", "", PORT, "PLAINTEXT"), loop, is_controller=False)
    if listeners is not None:
        listeners.append(listener)
    if hasattr(listener, "bind"):
        await listener.bind()
        await listener.serve()
    else:
        await listener.start()
    await asyncio.Event().wait()


def frame(request: Any, number: int, client: str = "c") -> bytes:
    return b"".join(bytes(part) for part in request_frame(request, VERSION[type(request).key], number, client))


def produce(number: int, wait_ms: int = 0, acks: int = 1) -> ProduceRequest:
    records = PATTERN[: number * 37 % 3000]
    partition = ProduceRequest.Topic.Partition(index=0, records=records)
    topic = ProduceRequest.Topic(name=str(number), partition_data=[partition])
    return ProduceRequest(acks=acks, timeout_ms=wait_ms, topic_data=[topic])


def fetch(position: int, size: int, wait_ms: int = 0) -> FetchRequest:
    return FetchRequest(max_wait_ms=wait_ms, min_bytes=size, max_bytes=position)


async def read_frame(reader: asyncio.StreamReader) -> bytes:
    (size,) = struct.unpack(">i", await reader.readexactly(4))
    return await reader.readexactly(size)


def check(answer: bytes, request: Any, number: int) -> None:
    """The answer is to this request, and it is right to the last byte."""
    cls = RESPONSES[type(request).key]
    correlation_id, position = read_response_header(answer, cls, VERSION[type(request).key])
    assert correlation_id == number
    response: Any = decode(cls, memoryview(answer), VERSION[type(request).key], position)
    if type(request).key == 1:
        records = bytes(response.responses[0].partitions[0].records)
        assert records == PATTERN[request.max_bytes : request.max_bytes + request.min_bytes]
    else:
        expected = int(request.topic_data[0].name) if type(request).key == 0 else request.replica_id
        assert response.throttle_time_ms == expected


def any_request(rng: Any, number: int) -> Any:
    kind = rng.randrange(5)
    if kind == 0:
        return produce(number, wait_ms=rng.choice([0, 0, 3]), acks=rng.choice([0, 1, -1]))
    if kind == 1:
        return ListOffsetsRequest(replica_id=number)
    size = rng.choice([0, 10, 2000, 60_000, 300_000])
    return fetch(rng.randrange(1_000_000), size, wait_ms=rng.choice([0, 0, 1, 20]))


async def converse(name: str, count: int) -> int:
    """Pipeline `count` requests and check every answer, over as many connections as it takes; how many were tried."""
    loop: Any = asyncio.get_running_loop()
    rng, number, tries = loop.chance(name), 0, 0
    while number < count:
        tries += 1
        try:
            reader, writer = await asyncio.wait_for(asyncio.open_connection("b0", PORT), 5)
            while number < count:
                batch = [(n, any_request(rng, n)) for n in range(number, min(count, number + rng.randrange(1, 30)))]
                for n, request in batch:
                    writer.write(frame(request, n, name))
                for n, request in batch:
                    if getattr(request, "acks", 1) != 0:
                        check(await asyncio.wait_for(read_frame(reader), 10), request, n)
                    if rng.random() < 0.05:
                        await asyncio.sleep(0.05)  # a slow reader
                number += len(batch)
            writer.close()
        except (OSError, TimeoutError, asyncio.IncompleteReadError):
            await asyncio.sleep(0.1)
    return tries


Main = Callable[[SimLoop], Awaitable[Any]]


def test_replies_come_in_order_whole_and_right(service: Service):
    """Five clients, pipelined; the same seed gives the same history twice. (PRT: order of replies per connection)"""

    async def main(loop: SimLoop) -> str:
        loop.boot("b0", serve({}))
        await asyncio.sleep(0.1)
        clients = [loop.boot(f"c{n}", converse(f"c{n}", 120)) for n in range(5)]
        assert [await client for client in clients] == [1] * 5
        return loop.trace()

    for seed in range(6):
        assert run(seed, main) == run(seed, main)


def test_through_stalls_resets_and_restarts(service: Service, caplog: pytest.LogCaptureFixture):
    async def main(loop: SimLoop) -> int:
        loop.boot("b0", serve({}))
        await asyncio.sleep(0.1)
        clients = [loop.boot(f"c{n}", converse(f"c{n}", 100)) for n in range(4)]
        rng = loop.chance("weather")
        for _ in range(10):
            await asyncio.sleep(rng.random() * 0.3)
            fault = rng.choice(["reset", "stall", "pause", "kill"])
            if fault == "reset":
                loop.network.reset("b0", f"c{rng.randrange(4)}")
            elif fault == "stall":
                loop.network.stall(*rng.sample(["b0", f"c{rng.randrange(4)}"], 2), rng.random())
            elif fault == "pause":
                loop.pause("b0")
                await asyncio.sleep(rng.random())
                loop.resume("b0")
            else:
                loop.kill("b0")
                loop.boot("b0", serve({}))
        return sum([await client for client in clients])

    assert sum(run(seed, main) for seed in range(8)) > 8 * 4
    assert "Traceback" not in caplog.text and "failed" not in caplog.text


def test_clients_that_are_muted_after_most_answers(service: Service, caplog: pytest.LogCaptureFixture):
    """Handlers that tell a time to wait; replies stay in order through it, and broken connections leave nothing behind."""

    async def main(loop: SimLoop) -> tuple[int, str]:
        listeners: list[Listener] = []
        loop.boot("b0", serve({}, listeners, {"request_percentage": 1e9}))
        await asyncio.sleep(0.1)
        clients = [loop.boot(f"c{n}", converse(f"c{n}", 80)) for n in range(4)]
        rng = loop.chance("weather")
        for _ in range(6):
            await asyncio.sleep(rng.random())
            if rng.random() < 0.5:
                loop.network.reset("b0", f"c{rng.randrange(4)}")
            else:
                loop.network.stall(*rng.sample(["b0", f"c{rng.randrange(4)}"], 2), rng.random())
        tries = sum([await client for client in clients])
        await asyncio.sleep(5)
        assert not listeners[0].connections
        assert loop.time() > 3, "nobody was muted"
        return tries, loop.trace()

    outcomes = [run(seed, main) for seed in range(6)]
    assert sum(tries for tries, _ in outcomes) > 6 * 4
    assert run(3, main) == outcomes[3]
    assert "Traceback" not in caplog.text and "failed" not in caplog.text


def test_a_quota_on_a_producer_slows_it_down_and_nobody_else(service: Service):
    """A hundred bytes a second, in virtual time; with pipelining, and with produces that have to wait first."""

    async def main(loop: SimLoop) -> tuple[float, float]:
        service.appended.clear()
        loop.boot("b0", serve({}, None, {"producer_byte_rate": 100.0}))
        await asyncio.sleep(0.1)

        async def client(name: str, request: Any) -> float:
            reader, writer = await asyncio.open_connection("b0", PORT)
            writer.write(b"".join(frame(request, number, name) for number in range(40)))
            began = loop.time()
            for number in range(40):
                answer = await read_frame(reader)
                assert answer[:4] == struct.pack(">i", number)
            return loop.time() - began

        slow = loop.boot("slow", client("slow", produce(0, wait_ms=5)))
        quick = loop.boot("quick", client("quick", fetch(0, 10)))
        return await slow, await quick

    for seed in range(4):
        slow, quick = run(seed, main)
        assert slow > 5 and quick < 2  # 1.7 kB, of which ten windows allow one at once
        assert [number for _, number in service.appended] == [0] * 40


def test_ordered_requests_take_effect_in_the_order_they_came(service: Service):
    """A produce that must wait before it appends holds back the later ones of its connection, and of no other."""

    async def main(loop: SimLoop) -> list[tuple[str, int]]:
        service.appended.clear()
        loop.boot("b0", serve({}))
        await asyncio.sleep(0.1)

        async def client(name: str, wait_ms: int) -> None:
            reader, writer = await asyncio.open_connection("b0", PORT)
            for number in range(20):
                writer.write(frame(produce(number, wait_ms if number % 5 == 0 else 0), number, name))
            for number in range(20):
                check(await read_frame(reader), produce(number), number)

        slow, quick = loop.boot("slow", client("slow", 500)), loop.boot("quick", client("quick", 0))
        await slow
        await quick
        return service.appended

    for seed in range(10):
        appended = run(seed, main)
        for name in ("slow", "quick"):
            assert [number for who, number in appended if who == name] == list(range(20))
        assert appended.index(("quick", 19)) < appended.index(("slow", 1))


def test_requests_in_flight_are_bounded(service: Service):
    async def main(loop: SimLoop) -> int:
        service.running_most = 0
        loop.boot("b0", serve({"ottla.connection.requests.in.flight.max": "4"}))
        await asyncio.sleep(0.1)
        reader, writer = await asyncio.open_connection("b0", PORT)
        requests = [fetch(number, 100, wait_ms=10) for number in range(100)]
        writer.write(b"".join(frame(request, number) for number, request in enumerate(requests)))
        for number, request in enumerate(requests):
            check(await read_frame(reader), request, number)
        return service.running_most

    for seed in range(5):
        assert run(seed, main) == 4


def test_a_reader_that_takes_nothing_is_not_read_from_for_ever(service: Service):
    """200 fetches of 1 MB each, unread: the node reads the files piece by piece and stops when the window is full."""

    async def main(loop: SimLoop) -> tuple[int, int]:
        listeners: list[Listener] = []
        loop.boot("b0", serve({}, listeners))
        await asyncio.sleep(0.1)
        transport, _ = await loop.create_connection(asyncio.Protocol, "b0", PORT)
        transport.pause_reading()
        for number in range(200):
            transport.write(frame(fetch(0, 1_000_000), number))
        quick = loop.boot("c1", converse("c1", 50))
        assert await quick == 1
        (stuck,) = [c for c in listeners[0].connections if c.peer_host == "10.0.0.1"]
        assert stuck.transport is not None
        return stuck.transport.get_write_buffer_size(), len(stuck.exchanges)

    for seed in range(5):
        buffered, exchanges = run(seed, main)
        assert buffered <= 256 * 1024 and exchanges <= 200


def test_a_lost_connection_cancels_its_handlers(service: Service, caplog: pytest.LogCaptureFixture):
    async def main(loop: SimLoop) -> int:
        service.cancelled = 0
        loop.boot("b0", serve({}))
        await asyncio.sleep(0.1)
        transport, _ = await loop.create_connection(asyncio.Protocol, "b0", PORT)
        for number in range(5):
            transport.write(frame(fetch(0, 10, wait_ms=60_000), number))
        await asyncio.sleep(1)
        transport.abort()
        await asyncio.sleep(1)
        return service.cancelled

    assert run(1, main) == 5
    assert service.running == 0 and caplog.text == ""


def test_a_wait_that_ends_in_the_turn_its_connection_is_lost(service: Service, caplog: pytest.LogCaptureFixture):
    """The future is done and its callback on the way when the exchange is cancelled: nothing may be told as a failure."""

    async def main(loop: SimLoop) -> None:
        loop.boot("b0", serve({}))
        await asyncio.sleep(0.1)
        for _ in range(5):
            service.gate = loop.create_future()
            transport, _ = await loop.create_connection(asyncio.Protocol, "b0", PORT)
            for number in range(8):
                transport.write(frame(ListOffsetsRequest(replica_id=number), number))
            await asyncio.sleep(1)
            service.gate.set_result(None)
            loop.network.reset("b0", "outside")

    with caplog.at_level(logging.INFO):
        for seed in range(10):
            run(seed, main)
    assert "failed" not in caplog.text


def test_a_bad_frame_behind_a_full_outbox_ends_the_connection_cleanly(service: Service):
    """The bad frame is looked at when the outbox drains, which is inside resume_writing: aborting there runs
    connection_lost twice on Python 3.11. The simulator counts that as an error nobody caught."""

    async def main(loop: SimLoop) -> None:
        loop.boot("b0", serve({"ottla.connection.requests.in.flight.max": "3"}))
        await asyncio.sleep(0.1)
        reader, writer = await asyncio.open_connection("b0", PORT)
        good = b"".join(frame(fetch(0, 300_000), number) for number in range(3))
        writer.write(good + struct.pack(">ihhih", 10, 999, 0, 1, -1))
        with contextlib.suppress(ConnectionError):
            while await reader.read(100_000):
                await asyncio.sleep(0.001)

    for seed in range(20):
        run(seed, main)


@pytest.mark.parametrize("bad", [b"\xff\xff\xff\xff", b"\x7f\xff\xff\xff", struct.pack(">ihhih", 10, 999, 0, 1, -1)])
def test_a_frame_nobody_can_read_hurts_only_its_own_connection(service: Service, bad: bytes):
    async def main(loop: SimLoop) -> bytes:
        loop.boot("b0", serve({}))
        await asyncio.sleep(0.1)
        other = loop.boot("c1", converse("c1", 60))
        reader, writer = await asyncio.open_connection("b0", PORT)
        writer.write(bad)
        answer = b""
        with contextlib.suppress(ConnectionError):
            answer = await asyncio.wait_for(reader.read(), 5)
        assert await other == 1
        return answer

    for seed in range(5):
        assert run(seed, main) == b""


def test_an_answer_that_cannot_be_encoded_hurts_only_its_own_connection(
    service: Service, monkeypatch: pytest.MonkeyPatch
):
    """A defect in one handler must not take the replies of everybody else in that turn with it."""

    async def broken(request: ListOffsetsRequest, ctx: Any) -> ListOffsetsResponse:
        answer = ListOffsetsResponse()
        answer.throttle_time_ms = "soon"  # type: ignore[assignment]
        return answer

    monkeypatch.setitem(HANDLERS, 2, Handler(ListOffsetsRequest, 6, 6, broken, 6, False))

    async def main(loop: SimLoop) -> int:
        loop.boot("b0", serve({}))
        await asyncio.sleep(0.1)

        async def breaker() -> None:
            for number in range(20):
                transport, _ = await loop.create_connection(asyncio.Protocol, "b0", PORT)
                transport.write(frame(ListOffsetsRequest(), number))
                await asyncio.sleep(0.003)

        async def healthy() -> None:
            reader, writer = await asyncio.open_connection("b0", PORT)
            for number in range(100):
                writer.write(frame(fetch(number, 10), number))
                check(await asyncio.wait_for(read_frame(reader), 1), fetch(number, 10), number)

        loop.network.latency_mean_s = 0.0  # so that requests of several connections fall into one turn
        breaking = loop.boot("c0", breaker())
        await asyncio.gather(*(loop.boot(f"c{n}", healthy()) for n in range(1, 5)))
        await breaking
        loop.mishaps.clear()  # the defect itself is told, of course
        return 1

    for seed in range(5):
        run(seed, main)


def test_idle_and_unfinished_connections_are_cut(service: Service):
    """Virtual time: ten minutes of silence, and a first frame that comes one byte at a time."""

    async def main(loop: SimLoop) -> list[float]:
        settings = {"connections.max.idle.ms": "600000", "ottla.connection.frame.deadline.ms": "10000"}
        loop.boot("b0", serve(settings))
        await asyncio.sleep(0.1)
        lived = []

        async def drip(writer: asyncio.StreamWriter) -> None:
            for byte in frame(fetch(0, 10), 1)[:-1]:
                writer.write(bytes([byte]))
                await asyncio.sleep(3)

        for dripping in (False, True):
            started = loop.time()
            reader, writer = await asyncio.open_connection("b0", PORT)
            task = asyncio.create_task(drip(writer)) if dripping else None
            with contextlib.suppress(ConnectionError):
                await reader.read()
            lived.append(loop.time() - started)
            if task is not None:
                task.cancel()
        return lived

    silent, dripping = run(1, main)
    assert 600 <= silent <= 603 and 10 <= dripping <= 16
