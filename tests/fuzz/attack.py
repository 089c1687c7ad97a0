"""Sends damaged requests over several connections while a healthy client keeps asking and is timed."""

from __future__ import annotations

import asyncio
import contextlib
import random
from collections.abc import Callable
from dataclasses import dataclass, field

from fuzz.requests import Maker
from ottla.wire.frames import request_frame
from ottla.wire.messages.cluster import ApiVersionsRequest

BURST = 40
CONNECTIONS = 8


@dataclass
class Outcome:
    sent: int = 0
    connections: int = 0
    latencies: list[float] = field(default_factory=list)

    @property
    def worst_s(self) -> float:
        return max(self.latencies)

    @property
    def p99_s(self) -> float:
        return sorted(self.latencies)[int(len(self.latencies) * 0.99)]


async def attack(host: str, port: int, seed: int, requests: int, told: Callable[[Outcome], None] | None = None) -> Outcome:
    outcome = Outcome()
    stop = asyncio.Event()
    healthy = asyncio.create_task(stay_healthy(host, port, outcome, stop))
    per_connection = -(-requests // CONNECTIONS)
    fuzzers = [asyncio.create_task(fuzz(host, port, f"{seed}/{n}", per_connection, outcome)) for n in range(CONNECTIONS)]
    while not all(task.done() for task in fuzzers):
        await asyncio.wait([*fuzzers, healthy], timeout=5, return_when=asyncio.FIRST_EXCEPTION)
        if healthy.done():
            break
        if told is not None:
            told(outcome)
    stop.set()
    await healthy
    for task in fuzzers:
        await task
    return outcome


async def fuzz(host: str, port: int, seed: str, requests: int, outcome: Outcome) -> None:
    """Bursts of damaged frames, each on its own connection; whatever comes back is read and thrown away."""
    maker = Maker(random.Random(seed))
    sent = 0
    while sent < requests:
        reader, writer = await asyncio.open_connection(host, port)
        outcome.connections += 1
        with contextlib.suppress(ConnectionError):
            writer.write(b"".join(maker.frame() for _ in range(BURST)))
            await writer.drain()
            with contextlib.suppress(TimeoutError):
                await asyncio.wait_for(_swallow(reader), 0.05)
        writer.transport.abort()
        sent += BURST
        outcome.sent += BURST


async def _swallow(reader: asyncio.StreamReader) -> None:
    while await reader.read(1 << 16):
        pass


async def stay_healthy(host: str, port: int, outcome: Outcome, stop: asyncio.Event) -> None:
    """An honest client: asks every few milliseconds and must always be answered."""
    reader, writer = await asyncio.open_connection(host, port)
    loop = asyncio.get_running_loop()
    question = b"".join(bytes(p) for p in request_frame(ApiVersionsRequest(), 0, 1, "healthy"))  # type: ignore[arg-type]
    while not stop.is_set():
        asked = loop.time()
        writer.write(question)
        size = int.from_bytes(await asyncio.wait_for(reader.readexactly(4), 30), "big")
        await asyncio.wait_for(reader.readexactly(size), 30)
        outcome.latencies.append(loop.time() - asked)
        await asyncio.sleep(0.005)
    writer.close()
