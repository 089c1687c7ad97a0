"""The client behind a door: results and errors come out, and closing leaves no thread behind."""

from __future__ import annotations

import asyncio
import threading

import pytest

from ottla.client.cluster import Unreachable
from ottla.pipeline.blocking import Broker


def test_what_a_coroutine_returns_comes_out(broker: str) -> None:
    with Broker(broker) as door:
        metadata = door.run(door.cluster.metadata([]))
        assert metadata.brokers


def test_what_it_raises_comes_out() -> None:
    with Broker("127.0.0.1:1") as door, pytest.raises(Unreachable, match=r"127\.0\.0\.1:1 \(connection refused\)"):
        door.run(door.cluster.metadata([]))


def test_several_are_under_way_at_once() -> None:
    async def say(word: str) -> str:
        await asyncio.sleep(0)
        return word

    with Broker("127.0.0.1:1") as door:
        started = [door.start(say(word)) for word in ("a", "b", "c")]
        assert [one.result(10) for one in started] == ["a", "b", "c"]


def test_closing_cancels_and_ends_the_thread(broker: str) -> None:
    before = set(threading.enumerate())
    door = Broker(broker)
    door.run(door.cluster.metadata([]))
    endless = door.start(asyncio.sleep(3600))
    door.close()
    door.close()
    assert endless.cancelled()
    assert not set(threading.enumerate()) - before
    with pytest.raises(RuntimeError, match="closed"):
        door.run(asyncio.sleep(0))


def test_a_caller_who_waits_no_longer_stops_it() -> None:
    with Broker("127.0.0.1:1") as door:
        cancelled = threading.Event()

        async def wait() -> None:
            try:
                await asyncio.sleep(3600)
            finally:
                cancelled.set()

        with pytest.raises(TimeoutError):
            door.run(wait(), timeout_s=0.2)
        assert cancelled.wait(10)
