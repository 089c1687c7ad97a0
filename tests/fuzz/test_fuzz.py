"""Twenty thousand damaged requests against a node as a user starts it. `make fuzz` sends a million."""

from __future__ import annotations

import asyncio
import random
from collections.abc import Callable

import pytest

from fuzz.attack import attack
from fuzz.requests import Maker
from harness import Node, resident_bytes

REQUESTS = 20_000


def test_the_same_seed_makes_the_same_requests() -> None:
    first, second = (Maker(random.Random(9)) for _ in range(2))
    assert [first.frame() for _ in range(200)] == [second.frame() for _ in range(200)]


@pytest.mark.timeout(600)
def test_damaged_requests_hurt_nobody(node: Callable[..., Node]) -> None:
    """Goal 10: no crash, no hang over a second, memory stays, and no handler fails; a healthy client is served throughout.

    What it waits for is measured in the node's processor time, because the machine has other things to do as well.
    """
    running = node(options=["--log-level", "error"])
    asyncio.run(attack("127.0.0.1", running.port, 2, 1_000))
    before = resident_bytes(running.pid)
    outcome = asyncio.run(attack("127.0.0.1", running.port, 1, REQUESTS, clock=running.cpu_seconds))
    assert running.is_running()
    assert outcome.seen >= REQUESTS and outcome.answered > REQUESTS // 3
    assert outcome.worst_s < 1
    assert resident_bytes(running.pid) - before < 64 << 20
    assert "Traceback" not in running.log_text(), "a handler failed: it must refuse instead"
