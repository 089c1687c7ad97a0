"""Answers about many things, made thing by thing, so that nobody waits for the whole of a long one.

A handler that answers for each thing its request names adds them one by one. While they are few they stay objects. When they
have come to `TURN_BYTES` they become the bytes that will be sent, which take a tenth of the memory and are not looked at
again, and so does each one that follows; and others have their turn after every so many bytes. The whole has an `Allowance`.
"""

from __future__ import annotations

import asyncio
from typing import Any, Generic, TypeVar

from ottla.server.context import Context
from ottla.wire.allowance import Allowance
from ottla.wire.schema import Message
from ottla.wire.told import KEYS, Told, alone, things_of

A = TypeVar("A", bound=Message)

# A few milliseconds of work.
TURN_BYTES = 64 * 1024
# What has hardly a byte to tell had to be looked for nevertheless.
BYTES_EACH = 128


class Portions(Generic[A]):
    """An answer that grows. What it is about stands in its last field, a list."""

    def __init__(self, kind: type[A], count: int, ctx: Context) -> None:
        """`count`: how many things will be added. One alone is not looked at more closely."""
        assert kind.key in KEYS, f"{kind.__name__} would be sent without what was told: name it in wire/told.KEYS"
        self._kind, self._ctx, self._is_one = kind, ctx, count == 1
        self._things: list[Any] = []
        self._told = Told()
        self._allowance = Allowance()
        self._since_turn = 0

    async def add(self, name: object, thing: Any) -> None:
        """`name` tells it from the other things that the request names."""
        if self._is_one:
            self._things.append(thing)
            return
        written = alone(self._kind, thing, self._ctx.version)
        self._allowance.take(name, len(written))
        self._since_turn += BYTES_EACH + len(written)
        if self._told.things:
            self._tell(thing, written)
        else:
            self._things.append(thing)
        if self._since_turn >= TURN_BYTES:
            self._since_turn = 0
            self._tell_all()
            await asyncio.sleep(0)

    @property
    def answer(self) -> A:
        """The whole of it, when everything was added."""
        return self._kind(**{things_of(self._kind): self._told if self._told.things else self._things})

    def _tell_all(self) -> None:
        things, self._things = self._things, []
        for thing in things:
            self._tell(thing, alone(self._kind, thing, self._ctx.version))

    def _tell(self, thing: Any, written: bytes) -> None:
        """The errors in it are counted now: nobody can find them in bytes."""
        self._told.things.append(written)
        self._ctx.node.measures.api[self._kind.key].look(self._kind(**{things_of(self._kind): [thing]}))
