"""The end of a turn of the loop, and when it asks for events."""

from __future__ import annotations

import asyncio
import signal
import socket
import time
from collections.abc import Callable, Coroutine, Iterator
from contextlib import contextmanager
from typing import Any

from ottla.server import loop as room
from ottla.server.loop import Loop, Turns


def on_our_loop(test: Callable[[Loop], Coroutine[Any, Any, None]]) -> Callable[[], None]:
    def run() -> None:
        with asyncio.Runner(loop_factory=Loop) as runner:
            ours = runner.get_loop()
            assert isinstance(ours, Loop)
            runner.run(test(ours))

    return run


@contextmanager
def readable(count: int) -> Iterator[list[socket.socket]]:
    """Sockets that all have something to read."""
    pairs = [socket.socketpair() for _ in range(count)]
    try:
        for ours, theirs in pairs:
            ours.setblocking(False)
            theirs.send(b"x")
        yield [ours for ours, _ in pairs]
    finally:
        for pair in pairs:
            for end in pair:
                end.close()


async def turns(count: int) -> None:
    for _ in range(count):
        await asyncio.sleep(0)


@on_our_loop
async def test_a_turn_ends_when_everybody_has_read(loop: Loop) -> None:
    did: list[str] = []

    def reads(name: str, end: socket.socket) -> None:
        end.recv(1)
        did.append(f"read {name}")
        loop.at_end_of_turn(lambda: did.append(f"end of {name}"))
        loop.call_soon(did.append, f"after {name}")

    with readable(2) as ends:
        for name, end in zip("ab", ends, strict=True):
            loop.add_reader(end, reads, name, end)
        await asyncio.sleep(0.01)
        for end in ends:
            loop.remove_reader(end)
    read = [f"read {name}" for name in "ab"]
    assert sorted(did[:2]) == read
    order = [each[-1] for each in did[:2]]
    assert did[2:] == [f"end of {name}" for name in order] + [f"after {name}" for name in order]


@on_our_loop
async def test_what_comes_when_nobody_reads_is_done_in_the_next_turn(loop: Loop) -> None:
    did: list[str] = []
    loop.at_end_of_turn(lambda: did.append("end"))
    assert did == []
    await turns(2)
    assert did == ["end"]
    loop.call_later(0.001, loop.at_end_of_turn, lambda: did.append("after a timer"))
    await asyncio.sleep(0.01)
    assert did == ["end", "after a timer"]


@on_our_loop
async def test_a_failure_at_the_end_of_a_turn_holds_up_nobody(loop: Loop) -> None:
    did: list[str] = []
    told: list[dict[str, Any]] = []
    loop.set_exception_handler(lambda _, context: told.append(context))

    def reads(end: socket.socket) -> None:
        end.recv(1)
        loop.at_end_of_turn(lambda: 1 / 0)
        loop.at_end_of_turn(lambda: did.append("end"))

    with readable(1) as (end,):
        loop.add_reader(end, reads, end)
        await asyncio.sleep(0.01)
        loop.remove_reader(end)
    assert did == ["end"]
    assert [type(context["exception"]) for context in told] == [ZeroDivisionError]


@on_our_loop
async def test_whoever_always_has_more_to_do_keeps_nobody_from_reading(loop: Loop) -> None:
    counted = 0

    def again() -> None:
        nonlocal counted
        counted += 1
        loop.call_soon(again)

    heard = loop.create_future()
    with readable(1) as (end,):
        again()
        loop.add_reader(end, lambda: heard.done() or heard.set_result(counted))
        assert await heard <= 4
        loop.remove_reader(end)


@on_our_loop
async def test_whoever_was_held_up_while_it_waited_reads_before_it_judges(loop: Loop) -> None:
    """As after SIGSTOP and SIGCONT: a signal interrupts the wait, and when it goes on the time is over."""
    did: list[str] = []
    ours, theirs = socket.socketpair()

    def reads() -> None:
        did.append("read")
        ours.recv(1)

    def is_held_up(*_: object) -> None:
        time.sleep(0.2)
        theirs.send(b"x")

    usual = signal.signal(signal.SIGALRM, is_held_up)
    try:
        with ours, theirs:
            loop.add_reader(ours, reads)
            loop.call_later(0.1, did.append, "judge")
            loop.call_later(0.1, loop.call_soon, did.append, "judge later")
            signal.setitimer(signal.ITIMER_REAL, 0.05)
            await asyncio.sleep(0.15)
            loop.remove_reader(ours)
    finally:
        signal.signal(signal.SIGALRM, usual)
    assert did == ["read", "judge", "judge later"]


def test_only_a_turn_right_after_another_asks_for_no_events(monkeypatch) -> None:
    monkeypatch.setattr(room, "JUST_NOW_S", 60.0)
    with readable(1) as (end,):
        selector = Turns()
        selector.register(end, 1)
        assert len(selector.select(None)) == 1
        assert selector.select(0) == []  # it is still readable: nobody asked
        assert len(selector.select(0)) == 1
        assert selector.select(0) == []
        assert len(selector.select(1)) == 1  # who would wait always asks
        monkeypatch.setattr(room, "JUST_NOW_S", 0.0005)
        time.sleep(0.001)
        assert len(selector.select(0)) == 1  # that was not just now: who was paused asks before it judges others
        selector.close()
