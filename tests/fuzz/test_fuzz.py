"""Twenty thousand damaged requests against a node as a user starts it. `make fuzz` sends a million.

And the attacker himself: does he notice a node that leaves requests without an answer, or records that are wrong?
"""

from __future__ import annotations

import asyncio
import random
from collections.abc import Awaitable, Callable

import pytest

from fuzz import attack as attacking
from fuzz.attack import LAST, Outcome, attack, burst, is_the_end, may_wait
from fuzz.healthy import Healthy
from fuzz.requests import Maker
from harness import Node, resident_bytes
from ottla.wire.messages.brokers import UnregisterBrokerRequest
from ottla.wire.messages.fetch import FetchRequest
from ottla.wire.messages.groups import HeartbeatRequest, JoinGroupRequest
from ottla.wire.messages.produce import ProduceRequest
from served import Client, batch, frame

REQUESTS = 20_000
HEARTBEAT = frame(HeartbeatRequest(group_id="g"), 4)
SLOW_FETCH, QUICK_FETCH = (frame(FetchRequest(max_wait_ms=ms), 12) for ms in (60_000, 20))
Answering = Callable[[asyncio.StreamReader, asyncio.StreamWriter], Awaitable[None]]


def test_the_same_seed_makes_the_same_requests() -> None:
    first, second = (Maker(random.Random(9)) for _ in range(2))
    assert [first.frame() for _ in range(200)] == [second.frame() for _ in range(200)]


def test_who_may_wait() -> None:
    joins, unread = frame(JoinGroupRequest(group_id="g"), 9), frame(ProduceRequest(acks=0, timeout_ms=0), 9)
    assert all(may_wait(request) for request in (SLOW_FETCH, joins, unread))
    assert not any(may_wait(request) for request in (QUICK_FETCH, HEARTBEAT, HEARTBEAT[:4] + SLOW_FETCH[4:], LAST))


def test_who_is_waited_for_though_it_says_another_length() -> None:
    """More than there is may still come; what is too much or less than nothing must be refused."""
    lies = [size.to_bytes(4, "big", signed=True) + HEARTBEAT[4:] for size in (len(HEARTBEAT), 0, -1, 2**31 - 1)]
    assert [may_wait(lie) for lie in lies] == [True, False, False, False]


def test_nobody_asks_the_only_broker_to_go() -> None:
    assert [is_the_end(frame(UnregisterBrokerRequest(broker_id=broker), 0)) for broker in (0, 1)] == [False, True]
    assert not is_the_end(HEARTBEAT)


async def sent_to(answering: Answering, frames: list[bytes]) -> tuple[int, Outcome]:
    outcome = Outcome()
    async with await asyncio.start_server(answering, "127.0.0.1", 0) as server:
        host, port = server.sockets[0].getsockname()
        return await burst(host, port, frames, b"", outcome), outcome


async def first_only(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    """A node that answers one request, and then nothing any more."""
    await reader.readexactly(len(HEARTBEAT))
    writer.write((4).to_bytes(4, "big") + HEARTBEAT[8:12])
    await reader.read()
    writer.close()


def test_a_request_without_an_answer_is_told_with_its_bytes(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(attacking, "HANG_S", 0.1)
    seen, outcome = asyncio.run(sent_to(first_only, [HEARTBEAT, QUICK_FETCH, HEARTBEAT]))
    assert (seen, outcome.answered, outcome.given_up, outcome.hanging) == (2, 1, 0, [QUICK_FETCH])


def test_a_request_that_may_wait_is_given_up() -> None:
    seen, outcome = asyncio.run(sent_to(first_only, [HEARTBEAT, SLOW_FETCH, HEARTBEAT]))
    assert (seen, outcome.answered, outcome.given_up, outcome.hanging) == (2, 1, 1, [])


def test_a_healthy_client_notices_what_became_of_its_records(node: Callable[..., Node]) -> None:
    port = node().port

    async def spoilt() -> None:
        client = Client(*await asyncio.open_connection("127.0.0.1", port))
        healthy = Healthy(client, "healthy", {}, lambda: 0.0)
        await healthy.make_topic()
        await client.produce("healthy", batch(b"of somebody else"))
        healthy.written = 1
        await healthy.write()
        await healthy.read(1)
        await healthy.read(0)

    with pytest.raises(AssertionError, match="of somebody else"):
        asyncio.run(spoilt())


@pytest.mark.timeout(600)
def test_damaged_requests_hurt_nobody(node: Callable[..., Node]) -> None:
    """Goal 10: no crash, no hang over a second, memory stays, and no handler fails; a healthy client is served throughout.

    What it waits for is measured in the node's processor time, because the machine has other things to do as well.
    """
    running = node(options=["--log-level", "error"])
    first = asyncio.run(attack("127.0.0.1", running.port, 2, 1_000))
    before = resident_bytes(running.pid)
    outcome = asyncio.run(attack("127.0.0.1", running.port, 1, REQUESTS, clock=running.cpu_seconds))
    assert running.is_running()
    assert outcome.seen >= REQUESTS and outcome.answered > REQUESTS // 3
    assert not first.hanging + outcome.hanging, "neither answered nor refused"
    assert set(outcome.waits) == {"versions", "produce", "fetch"} and outcome.worst_s < 1
    assert resident_bytes(running.pid) - before < 64 << 20
    assert "Traceback" not in running.log_text(), "a handler failed: it must refuse instead"
