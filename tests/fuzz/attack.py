"""Sends damaged requests over several connections while a healthy client keeps asking and is timed.

Requests go out in bursts that end in an honest question. A damaged request may cost its connection; then what came after it
in the burst is sent again on a new one, so that every request is looked at. What was looked at is counted, not what was sent.

Answers come in the order of the requests, so it is always known which one the node owes. If that one may wait, because of
what it is or because damage made it say so, its connection is soon given up. Any other must be answered or cost its
connection: one that does neither hangs, and ends the attack.
"""

from __future__ import annotations

import asyncio
import contextlib
import random
import time
from collections.abc import Callable
from dataclasses import dataclass, field

from fuzz.healthy import Waits, stay_healthy
from fuzz.requests import SHORT, Maker
from ottla.wire.codec import Malformed, decode
from ottla.wire.frames import FRAME_BYTES_MAX, Frames, read_request_header, request_frame
from ottla.wire.messages import REQUESTS
from ottla.wire.messages.brokers import UnregisterBrokerRequest
from ottla.wire.messages.cluster import ApiVersionsRequest
from ottla.wire.messages.groups import JoinGroupRequest, SyncGroupRequest
from ottla.wire.messages.produce import ProduceRequest
from ottla.wire.schema import Message

BURST = 20
CONNECTIONS = 8
LIES = 0.01
CHUNK = 1 << 16
ANSWER_BYTES_MAX = 2**31 - 1
# Whoever may wait is given up after this.
PATIENCE_S = 0.25
# Whoever may not hangs after this: longer than anything the node waits for by itself (request.timeout.ms), on a busy machine.
HANG_S = 60.0
# A request that is ready to wait for longer may do so.
WAIT_MS = 1_000
# Members of a group wait for each other, for as long as the slowest of them has asked for.
WAIT_FOR_OTHERS = (JoinGroupRequest, SyncGroupRequest)
BROKER_ID = 1  # of the node that is attacked


def question(correlation_id: int) -> bytes:
    parts = request_frame(ApiVersionsRequest(), 0, correlation_id, "fuzz")
    return b"".join(bytes(part) for part in parts)  # type: ignore[arg-type]


LAST = question(-77)


@dataclass
class Outcome:
    seen: int = 0
    answered: int = 0
    connections: int = 0
    given_up: int = 0
    hanging: list[bytes] = field(default_factory=list)
    waits: Waits = field(default_factory=dict)

    @property
    def worst_s(self) -> float:
        return max((max(waits) for waits in self.waits.values()), default=0.0)


async def attack(
    host: str,
    port: int,
    seed: int,
    requests: int,
    told: Callable[[Outcome], None] | None = None,
    clock: Callable[[], float] = time.monotonic,
) -> Outcome:
    """`clock` tells what the healthy client's waits are measured in. A node is attacked with each seed once at most."""
    outcome = Outcome()
    stop = asyncio.Event()
    healthy = asyncio.create_task(stay_healthy(host, port, f"healthy-{seed}", outcome.waits, stop, clock))
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
    while done < requests and not outcome.hanging:
        while len(waiting) < BURST:
            frame = maker.frame()
            if not is_the_end(frame):
                waiting.append(frame)
        seen = await burst(host, port, waiting[:BURST], maker.lie() if rng.random() < LIES * BURST else b"", outcome)
        del waiting[:seen]
        done += seen


async def burst(host: str, port: int, frames: list[bytes], lie: bytes, outcome: Outcome) -> int:
    """How many of the frames were certainly looked at: those answered, and the one that waits or ended the connection."""
    reader, writer = await asyncio.open_connection(host, port)
    outcome.connections += 1
    sent, answers, owed = [*frames, lie or LAST], Frames(ANSWER_BYTES_MAX), 0
    with contextlib.suppress(ConnectionError):
        writer.write(b"".join(sent))
        while owed < len(sent) and (data := await hear(reader, sent[owed], outcome)):
            for answer in answers.feed(data):
                owed = after(answer, sent, owed)
    writer.transport.abort()
    seen = min(owed + 1, len(frames))
    outcome.answered += min(owed, len(frames))
    outcome.seen += seen
    return seen


async def hear(reader: asyncio.StreamReader, owed: bytes, outcome: Outcome) -> bytes:
    """What the node says next; nothing when it has closed the connection, or when we wait no longer for what it owes."""
    for patience_s in (PATIENCE_S, HANG_S):
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(patience_s):
                return await reader.read(CHUNK)
        if may_wait(owed):
            outcome.given_up += 1
            return b""
    outcome.hanging.append(owed)
    return b""


def after(answer: bytes, sent: list[bytes], owed: int) -> int:
    """Which request comes next, after the one that this answers. Only a Produce may be left without answer (acks=0)."""
    while sent[owed][8:12] != answer[:4]:
        assert int.from_bytes(sent[owed][4:6], "big") == ProduceRequest.key, f"no answer to {sent[owed].hex()}"
        owed += 1
    return owed + 1


def may_wait(frame: bytes) -> bool:
    """Whether a request may be left without an answer for long, and its connection open. One that nobody can read may not."""
    size = int.from_bytes(frame[:4], "big", signed=True)
    if size != len(frame) - 4:
        return len(frame) - 4 < size <= FRAME_BYTES_MAX  # the rest of it could still come
    request = read(frame)
    if isinstance(request, ProduceRequest) and request.acks == 0:
        return True
    return isinstance(request, WAIT_FOR_OTHERS) or max(getattr(request, name, 0) for name in SHORT) > WAIT_MS


def is_the_end(frame: bytes) -> bool:
    """Whether it asks lawfully that the only broker serve nobody any more. Nothing but refusals would come after it."""
    unregisters = int.from_bytes(frame[4:6], "big") == UnregisterBrokerRequest.key
    return unregisters and getattr(read(frame), "broker_id", None) == BROKER_ID


def read(frame: bytes) -> Message | None:
    """None if it is no request that a node could read."""
    try:
        key, version, _, _, position = read_request_header(frame[4:])
        layout = REQUESTS[key]
        return decode(layout, frame[4:], version, position, trailing=True) if version in layout.versions else None
    except Malformed:
        return None
