"""Sends damaged requests over several connections while a healthy client keeps asking and is timed.

Requests go out in bursts that end in an honest question. A damaged request may cost its connection; then what came after it
in the burst is sent again on a new one, so that every request is looked at. What was looked at is counted, not what was sent.
"""

from __future__ import annotations

import asyncio
import contextlib
import random
import time
from collections.abc import Callable
from dataclasses import dataclass, field

from fuzz.requests import Maker
from ottla.wire.frames import request_frame
from ottla.wire.messages.cluster import ApiVersionsRequest

BURST = 20
CONNECTIONS = 8
# A damaged request may ask for a long wait, which is no hang: after this its connection is given up.
PATIENCE_S = 0.25
LIES = 0.01


def question(correlation_id: int) -> bytes:
    parts = request_frame(ApiVersionsRequest(), 0, correlation_id, "healthy")
    return b"".join(bytes(part) for part in parts)  # type: ignore[arg-type]


LAST_ID = -77
LAST = question(LAST_ID)


@dataclass
class Outcome:
    seen: int = 0
    answered: int = 0
    connections: int = 0
    latencies: list[float] = field(default_factory=list)

    @property
    def worst_s(self) -> float:
        return max(self.latencies, default=0.0)

    @property
    def p99_s(self) -> float:
        return sorted(self.latencies)[int(len(self.latencies) * 0.99)] if self.latencies else 0.0


async def attack(
    host: str,
    port: int,
    seed: int,
    requests: int,
    told: Callable[[Outcome], None] | None = None,
    clock: Callable[[], float] = time.monotonic,
) -> Outcome:
    """`clock` tells what the healthy client's waits are measured in."""
    outcome = Outcome()
    stop = asyncio.Event()
    healthy = asyncio.create_task(stay_healthy(host, port, outcome, stop, clock))
    share = -(-requests // CONNECTIONS)
    fuzzers = [asyncio.create_task(fuzz(host, port, f"{seed}/{n}", share, outcome)) for n in range(CONNECTIONS)]
    pending: set[asyncio.Task[None]] = {*fuzzers, healthy}
    while pending - {healthy} and not healthy.done():
        done, pending = await asyncio.wait(pending, timeout=5, return_when=asyncio.FIRST_COMPLETED)
        for task in done:
            task.result()
        if told is not None:
            told(outcome)
    stop.set()
    await healthy
    return outcome


async def fuzz(host: str, port: int, seed: str, requests: int, outcome: Outcome) -> None:
    rng = random.Random(seed)
    maker = Maker(rng)
    waiting: list[bytes] = []
    done = 0
    while done < requests:
        while len(waiting) < BURST:
            waiting.append(maker.frame())
        seen = await burst(host, port, waiting[:BURST], maker.lie() if rng.random() < LIES * BURST else b"", outcome)
        del waiting[:seen]
        done += seen


async def burst(host: str, port: int, frames: list[bytes], lie: bytes, outcome: Outcome) -> int:
    """How many of the frames were certainly looked at: those answered, and the one that ended the connection."""
    reader, writer = await asyncio.open_connection(host, port)
    outcome.connections += 1
    answered = 0
    with contextlib.suppress(ConnectionError, asyncio.IncompleteReadError, TimeoutError):
        writer.write(b"".join(frames) + (lie or LAST))
        async with asyncio.timeout(PATIENCE_S):
            while True:
                size = int.from_bytes(await reader.readexactly(4), "big")
                answer = await reader.readexactly(size)
                if int.from_bytes(answer[:4], "big", signed=True) == LAST_ID:
                    answered = len(frames)
                    break
                answered += 1
    writer.transport.abort()
    seen = min(answered + 1, len(frames))
    outcome.answered += answered
    outcome.seen += seen
    return seen


async def stay_healthy(host: str, port: int, outcome: Outcome, stop: asyncio.Event, clock: Callable[[], float]) -> None:
    """An honest client: asks every few milliseconds and must always be answered."""
    reader, writer = await asyncio.open_connection(host, port)
    while not stop.is_set():
        asked = clock()
        writer.write(question(1))
        size = int.from_bytes(await asyncio.wait_for(reader.readexactly(4), 30), "big")
        await asyncio.wait_for(reader.readexactly(size), 30)
        outcome.latencies.append(clock() - asked)
        await asyncio.sleep(0.005)
    writer.close()
