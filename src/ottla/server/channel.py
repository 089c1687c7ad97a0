"""The active controller, wherever it is.

In its own process it is called as its handlers are; elsewhere it is asked on its listener. A question that it cannot answer,
because it is the controller no more, because the connection was lost or because nobody knows of a controller, is asked again,
until its time is over: all that brokers ask of a controller may be asked twice.

A controller that has been deposed may not know it and never answer: while a question is out, the news of another one ends
the waiting for it.
"""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine
from typing import TYPE_CHECKING, Any

from ottla.client.connection import Lost
from ottla.raft.quorum import NOBODY
from ottla.server.context import ITSELF
from ottla.server.dispatch import ON_CONTROLLER
from ottla.server.failures import Codes, error_codes
from ottla.server.forwarding import Inside
from ottla.server.peers import Line
from ottla.wire.errors import Error
from ottla.wire.schema import Message

if TYPE_CHECKING:
    from ottla.server.node import Node

# How long to wait before the next attempt, and how often to look whether there is another controller meanwhile.
AGAIN_S = 0.02
AGAIN_MAX_S = 0.1
LOOK_S = 0.1


class ControllerChannel:
    def __init__(self, node: Node) -> None:
        self._node = node
        self._codes: dict[type[Message], Codes] = {}

    async def ask(self, request: Message, timeout_s: float) -> Any:
        """The answer of the active controller. `Lost` if there was none in time."""
        loop, pause_s = asyncio.get_running_loop(), AGAIN_S
        deadline = loop.time() + timeout_s
        while True:
            try:
                answer = await self._try(request, deadline)
                if not self.tells_of_another(answer):
                    return answer
                why = "it is the controller no more"
            except OSError as error:
                why = str(error)
            pause_s = min(pause_s * (1 + self._node.world.random.random()), AGAIN_MAX_S)
            if loop.time() + pause_s > deadline:
                raise Lost(f"no controller answered within {timeout_s:g} s: {why}")
            await asyncio.sleep(pause_s)

    def tells_of_another(self, answer: Message) -> bool:
        """Whether an answer says in any place that its author is not the controller."""
        codes = self._codes.get(type(answer))
        if codes is None:
            codes = self._codes[type(answer)] = error_codes(type(answer))
        return Error.NOT_CONTROLLER.code in codes(answer)

    async def _try(self, request: Message, deadline: float) -> Any:
        node, quorum = self._node, self._node.quorum
        if node.controller.is_active:
            return await self._answer(self._here(request), None, deadline)
        leader = quorum.leader_id
        if leader in (NOBODY, node.config.node_id):
            raise Lost("no controller is known")
        line = node.peers.to_controller(type(request).__name__.removesuffix("Request"), leader, concurrent=True)
        asking = line.ask(request, max(deadline - asyncio.get_running_loop().time(), 0))
        return await self._answer(asking, line, deadline)

    async def _here(self, request: Message) -> Any:
        """What the handler of this very node answers."""
        handler = ON_CONTROLLER[type(request).key]
        ctx = Inside(self._node, None, handler.newest(self._node.config), ITSELF, "")
        return await handler.answer(request, ctx)

    async def _answer(self, asking: Coroutine[Any, Any, Any], line: Line | None, deadline: float) -> Any:
        """The answer, unless the time is over or somebody else is the controller."""
        loop, quorum = asyncio.get_running_loop(), self._node.quorum
        leader, task = quorum.leader_id, asyncio.get_running_loop().create_task(asking)
        try:
            while not task.done():
                if loop.time() >= deadline:
                    raise Lost("no answer in time")
                if quorum.leader_id not in (leader, NOBODY):
                    if line is not None:
                        line.close()
                    raise Lost("another one is the controller")
                await asyncio.wait([task], timeout=min(LOOK_S, deadline - loop.time()))
            return task.result()
        finally:
            task.cancel()
