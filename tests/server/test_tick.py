"""Once per turn of the loop: first what was accepted is written, then the replies leave."""

from __future__ import annotations

import asyncio
import socket
from collections.abc import Callable
from contextvars import copy_context
from pathlib import Path

import pytest

from desk import on_loop
from ottla.server.connection import Connection
from ottla.server.dispatch import dispatch
from ottla.server.tick import Tick
from ottla.wire.errors import Error
from served import TouchyDisk, batch, serving


class Told:
    """A partition and a connection in one: it writes down what it is asked for."""

    is_exempt = False

    def __init__(self, did: list[str], name: str, write: Callable[[], None] = lambda: None) -> None:
        self.did, self.name, self.on_write = did, name, write

    def write(self) -> None:
        self.did.append(f"write {self.name}")
        self.on_write()

    def flush(self) -> None:
        self.did.append(f"flush {self.name}")

    def abort(self, reason: str) -> None:
        self.did.append(f"abort {self.name}")


def fails() -> None:
    raise RuntimeError("a defect")


@on_loop
async def test_replies_leave_after_the_writes_of_their_turn() -> None:
    did: list[str] = []
    tick = Tick(asyncio.get_running_loop(), lambda error: None)
    tick.talk(Told(did, "c"))  # type: ignore[arg-type]
    tick.dirty(Told(did, "p"))  # type: ignore[arg-type]
    tick.dirty(Told(did, "q"))  # type: ignore[arg-type]
    assert did == []
    await asyncio.sleep(0.01)
    assert did == ["write p", "write q", "flush c"]


@on_loop
async def test_what_was_read_is_written_and_answered_before_the_next_turn() -> None:
    did: list[str] = []
    loop = asyncio.get_running_loop()
    tick = Tick(loop, lambda error: None)
    ours, theirs = socket.socketpair()

    def reads() -> None:
        loop.remove_reader(ours)
        loop.call_soon(did.append, "next turn")
        tick.talk(Told(did, "c"))  # type: ignore[arg-type]
        tick.dirty(Told(did, "p"))  # type: ignore[arg-type]

    with ours, theirs:
        loop.add_reader(ours, reads)
        theirs.send(b"x")
        await asyncio.sleep(0.05)
    assert did == ["write p", "flush c", "next turn"]


@on_loop
async def test_after_a_defect_in_a_write_nobody_is_told_anything() -> None:
    """Nobody knows what the file holds: an acknowledgement could be a lie, so none leaves and the node ends."""
    did: list[str] = []
    fatal: list[BaseException] = []
    tick = Tick(asyncio.get_running_loop(), fatal.append)
    tick.dirty(Told(did, "p", fails))  # type: ignore[arg-type]
    tick.talk(Told(did, "c"))  # type: ignore[arg-type]
    await asyncio.sleep(0.01)
    tick.talk(Told(did, "later"))  # type: ignore[arg-type]
    await asyncio.sleep(0.01)
    assert did == ["write p"]
    assert [str(error) for error in fatal] == ["a defect"]


@on_loop
async def test_a_reply_that_cannot_be_sent_costs_only_its_own_connection() -> None:
    did: list[str] = []
    broken = Told(did, "broken")
    broken.flush = fails  # type: ignore[method-assign]
    tick = Tick(asyncio.get_running_loop(), lambda error: None)
    tick.talk(broken)  # type: ignore[arg-type]
    tick.talk(Told(did, "c"))  # type: ignore[arg-type]
    await asyncio.sleep(0.01)
    assert did == ["abort broken", "flush c"]


@on_loop
async def test_whoever_waited_for_a_write_goes_on_and_answers_in_the_same_turn() -> None:
    did: list[str] = []
    turns = 0
    loop = asyncio.get_running_loop()
    tick = Tick(loop, lambda error: None)

    def count() -> None:
        nonlocal turns
        turns += 1
        loop.call_soon(count)

    def goes_on() -> None:
        did.append("step")
        tick.talk(Told(did, "c"))  # type: ignore[arg-type]

    tick.dirty(Told(did, "p", lambda: tick.step(goes_on, copy_context())))  # type: ignore[arg-type]
    loop.call_soon(count)
    while "flush c" not in did:
        await asyncio.sleep(0)
    assert did == ["write p", "step", "flush c"]
    assert turns <= 2


@on_loop
async def test_what_a_step_stages_is_written_before_anybody_is_told() -> None:
    did: list[str] = []
    tick = Tick(asyncio.get_running_loop(), lambda error: None)

    def stages() -> None:
        tick.dirty(Told(did, "q"))  # type: ignore[arg-type]
        tick.talk(Told(did, "c"))  # type: ignore[arg-type]

    tick.step(stages, copy_context())
    tick.dirty(Told(did, "p"))  # type: ignore[arg-type]
    await asyncio.sleep(0.01)
    assert did == ["write p", "write q", "flush c"]


@on_loop
async def test_what_another_node_waits_for_leaves_before_the_next_step() -> None:
    did: list[str] = []
    tick = Tick(asyncio.get_running_loop(), lambda error: None)
    follower = Told(did, "follower")
    follower.is_exempt = True

    def answers(connection: Told) -> Callable[[], None]:
        return lambda: tick.talk(connection)  # type: ignore[arg-type]

    tick.step(answers(Told(did, "client")), copy_context())
    tick.step(answers(follower), copy_context())
    tick.step(lambda: did.append("step"), copy_context())
    await asyncio.sleep(0.01)
    assert did == ["flush follower", "step", "flush client"]


@on_loop
async def test_but_not_before_what_was_staged_is_written() -> None:
    did: list[str] = []
    tick = Tick(asyncio.get_running_loop(), lambda error: None)
    follower = Told(did, "follower")
    follower.is_exempt = True

    def stages() -> None:
        tick.dirty(Told(did, "p"))  # type: ignore[arg-type]
        tick.talk(follower)  # type: ignore[arg-type]

    tick.step(stages, copy_context())
    tick.step(lambda: did.append("step"), copy_context())
    await asyncio.sleep(0.01)
    assert did == ["step", "write p", "flush follower"]


@on_loop
async def test_a_step_that_fails_holds_up_nobody() -> None:
    did: list[str] = []
    tick = Tick(asyncio.get_running_loop(), lambda error: None)
    tick.step(fails, copy_context())
    tick.step(lambda: did.append("step"), copy_context())
    tick.talk(Told(did, "c"))  # type: ignore[arg-type]
    await asyncio.sleep(0.01)
    assert did == ["step", "flush c"]


@on_loop
async def test_room_in_a_connection_lets_no_answer_out_before_its_write(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The rest of a large answer has left, and in the same turn a Produce came: it was acknowledged, and then refused."""

    def drained_and_dispatch(connection: Connection, frame: memoryview) -> None:
        assert connection.outbox is not None
        asyncio.get_running_loop().call_soon(connection.outbox._on_drain)
        dispatch(connection, frame)

    async with serving(tmp_path, disk=(disk := TouchyDisk())) as served:
        await served.topic("t")
        client = await served.connect()
        assert (await client.produce("t", batch(b"v"))).error_code == 0
        monkeypatch.setattr(Connection, "dispatch", drained_and_dispatch)
        disk.full = True
        assert (await client.produce("t", batch(b"w"))).error_code == Error.KAFKA_STORAGE_ERROR.code
        assert served.partition("t").log.end_offset == 1
