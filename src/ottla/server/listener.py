"""Addresses that clients connect to: who is let in there, how soon, and who is cut off.

What is said on a connection once it is in stands in `connection.py`.
"""

from __future__ import annotations

import asyncio
import errno
import logging
import math
from collections.abc import Coroutine
from typing import TYPE_CHECKING, Any

from ottla.server.connection import QUESTIONS_IN_FLIGHT_MAX, Buffers, Connection, ControllerConnection
from ottla.server.limits import Pace

if TYPE_CHECKING:
    from ottla.config import Endpoint
    from ottla.server.node import Node

log = logging.getLogger("ottla.server")

# How long a stopping node waits for clients to take their last replies.
CLOSE_SECONDS = 2.0


class Listener:
    """One named address that clients connect to, and the limits that hold there."""

    def __init__(self, node: Node, endpoint: Endpoint, loop: asyncio.AbstractEventLoop, is_controller: bool) -> None:
        self.node, self.loop, self.is_controller = node, loop, is_controller
        self.name, self.host, self.port = endpoint.name, endpoint.host, endpoint.port
        config = node.config
        self.frame_bytes_max: int = config["socket.request.max.bytes"]
        self.in_flight_max: int = config["ottla.connection.requests.in.flight.max"]
        self.questions_max = min(QUESTIONS_IN_FLIGHT_MAX, self.in_flight_max)
        self.first_frame_s: float = config["ottla.connection.frame.deadline.ms"] / 1000
        idle_ms: int = config["connections.max.idle.ms"]
        self.idle_s = idle_ms / 1000 if idle_ms >= 0 else math.inf
        self.backlog: int = config["socket.listen.backlog.size"]
        self.buffers = Buffers()
        self.connections: dict[Connection, None] = {}
        self._pace = Pace()
        self._in_queue = 0
        self._unwelcome: dict[Connection, asyncio.TimerHandle] = {}
        self.obey()
        self._server: asyncio.Server | None = None
        self._sweep: asyncio.TimerHandle | None = None

    async def bind(self) -> None:
        """Take the address; clients are let in by `serve`. A free port (0) is known after this."""
        # localhost has two addresses, and a free port of one need not be free on the other.
        host = "127.0.0.1" if self.port == 0 and self.host == "localhost" else self.host or None
        try:
            self._server = await self._listen(host, self.port)
            if self.is_controller and self._may_move():
                self._hold(self._server)
        except OSError as error:
            if error.errno != errno.EADDRINUSE or not (self.is_controller and self._may_move()):
                raise
            if self._server is not None:
                self._server.close()
            self._server = await self._listen("127.0.0.1" if host == "localhost" else host, 0)
            log.warning("port %d is taken: the controller listens on another one", self.port)
        self.port = self._server.sockets[0].getsockname()[1]

    def _hold(self, server: asyncio.Server) -> None:
        """Two nodes that start at once may both bind one port, and only one may listen there: that is settled now, while
        the other can still move. Whoever connects waits in the queue until we serve."""
        for bound in server.sockets:
            with bound.dup() as own:
                own.listen(max(self.backlog, 1))

    def _may_move(self) -> bool:
        may: bool = self.node.config["ottla.controller.port.fallback"]
        return may

    def _listen(self, host: str | None, port: int) -> Coroutine[Any, Any, asyncio.Server]:
        kind = ControllerConnection if self.is_controller else self.node.connection_kind
        backlog = max(self.backlog, 1)
        return self.loop.create_server(lambda: kind(self), host, port, backlog=backlog, start_serving=False)

    async def serve(self) -> None:
        assert self._server is not None
        await self._server.start_serving()
        self._sweep = self.loop.call_later(1, self._cut_idle)

    def stop_accepting(self) -> None:
        if self._sweep is not None:
            self._sweep.cancel()
        if self._server is not None:
            self._server.close()

    async def close(self) -> None:
        """Let every connection say what it still has to say, then end it."""
        for connection in list(self.connections):
            connection.close()
        deadline = self.loop.time() + CLOSE_SECONDS
        while self.connections and self.loop.time() < deadline:
            await asyncio.sleep(0.01)
        for connection in [*self.connections, *self._unwelcome]:
            connection.abort("the node stops")

    def obey(self) -> None:
        """Take over the settings of this listener that can change while it runs."""
        self._connections_max: int = self.node.config.of_listener(self.name, "max.connections")
        self._pace.per_second = self.node.config.of_listener(self.name, "max.connection.creation.rate")

    def opened(self, connection: Connection) -> None:
        measures, now = self.node.measures, self.loop.time()
        if wait_s := self.node.quotas.connection_wait_s(connection.peer_host):
            measures.connections_refused.labels("quota").value += 1
            self._turn_away(connection, wait_s)
            return
        turn = max(self.node.limits.pace.turn(now), self._pace.turn(now))
        if not self._has_room(turn - now) or not self.node.limits.admit(connection.peer_host):
            measures.connections_refused.labels("limit").value += 1
            connection.abort("too many connections")
            return
        self.node.limits.pace.take(now)
        self._pace.take(now)
        measures.connections_opened.labels(self.name).value += 1
        self.connections[connection] = None
        if turn > now:
            self._in_queue += 1
            connection.hold(self)
            self.loop.call_at(turn, self._let_in, connection)

    def _turn_away(self, connection: Connection, wait_s: float) -> None:
        """Close it, but not before its client would have been welcome: it would only come again at once (KIP-612)."""
        if len(self._unwelcome) >= self.backlog:
            connection.abort("too many connections from this address")
            return
        connection.hold(self)
        self._unwelcome[connection] = self.loop.call_later(
            wait_s, connection.abort, "too many connections from this address"
        )

    def _has_room(self, wait_s: float) -> bool:
        """Whether one more fits. As many wait for their turn as would in the kernel's queue if we accepted more slowly."""
        if len(self.connections) >= self._connections_max or wait_s == math.inf:
            return False
        return wait_s <= 0 or self._in_queue < self.backlog

    def _let_in(self, connection: Connection) -> None:
        self._in_queue -= 1
        connection.last_active = self.loop.time()
        connection.release(self)

    def closed(self, connection: Connection) -> None:
        if timer := self._unwelcome.pop(connection, None):
            timer.cancel()
        if connection in self.connections:
            del self.connections[connection]
            self.node.limits.forget(connection.peer_host)

    def _cut_idle(self) -> None:
        """Close connections that say nothing for long, and new ones that do not finish the first frame they began."""
        now = self.loop.time()
        for connection in list(self.connections):
            if connection.is_overdue(now):
                self.node.measures.connections_refused.labels("deadline").value += 1
                connection.abort("idle, or a frame not finished in time")
        self._sweep = self.loop.call_later(1, self._cut_idle)
