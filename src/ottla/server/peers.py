"""Requests to other nodes.

A *line* leads to one node for one purpose. Purposes do not share lines, because answers come in the order of the questions:
a heartbeat must not wait behind a fetch that the other side holds back. A line is opened when something is asked, and again
at the next question after it was lost. Every question has a time limit, the opening included; whoever finds the line lost,
or nobody who listens, is told at once. That is how a node notices that another one has died.

A question whose line was lost may or may not have taken effect: whether it may be asked again, only the asker knows.
"""

from __future__ import annotations

import asyncio
import errno
import random
import re
from collections.abc import Callable
from typing import Any, NamedTuple

from ottla.client.connection import Connection, GoOn, Lost
from ottla.config import BrokerConfig
from ottla.metadata.image import Delta, Image
from ottla.server.quorum import Quorum
from ottla.wire.schema import Message
from ottla.world import World

# After a failure to connect the next attempt waits so long, twice as long after each further one.
AGAIN_S = 0.05
AGAIN_MAX_S = 0.5
JITTER = 0.2
OPENING_MS = "socket.connection.setup.timeout.ms"
# The controller knows by then whether a broker is gone that can be known to be gone.
DOUBT_S = 0.5
# Clients move to other leaders by then, away from a broker that is thought dead.
FAREWELL_S = 2.0


class Place(NamedTuple):
    host: str
    port: int


class Line:
    """Made by `Peers`. Questions go out one after the other, or, on a `concurrent` line, as they come."""

    def __init__(
        self,
        name: str,
        find: Callable[[], list[Place]],
        rng: random.Random,
        *,
        concurrent: bool,
        opening_s: Callable[[], float],
    ) -> None:
        self.name = name
        self.is_refused = False  # nobody listened at the last attempt to connect
        self._find = find
        self._rng = rng
        self._opening_s = opening_s
        self._loop = asyncio.get_running_loop()
        self._turn = None if concurrent else asyncio.Lock()
        self._door = asyncio.Lock()
        self._connection: Connection | None = None
        self._place: Place | None = None
        self._failures = 0
        self._again_at = 0.0

    async def ask(self, request: Message, timeout_s: float, go_on: GoOn | None = None) -> Any:
        """The answer. OSError (mostly `Lost`) when there is none; KafkaError when the other side does not know the API.

        Who has the next question as soon as there is an answer says so with `go_on` (`Connection.request`)."""
        turn = self._turn
        if (turn is None or not turn.locked()) and (connection := self._usable()) is not None:
            # Nothing but the answer is to be waited for, and the connection keeps the time.
            if turn is None:
                return await connection.request(request, timeout_s, go_on=go_on)
            async with turn:
                return await connection.request(request, timeout_s, go_on=go_on)
        if asyncio.current_task() is not None:
            return await self._ask(request, timeout_s, go_on)
        # Handlers of requests run without a task, and time limits need one.
        asking = self._loop.create_task(self._ask(request, timeout_s, go_on))
        try:
            return await asking
        finally:
            asking.cancel()

    def hurry(self) -> None:
        """What failed before says nothing about now: do not wait for it."""
        self._failures, self._again_at = 0, 0.0

    async def lost(self) -> None:
        """Return when the line that was last asked on is lost."""
        if self._connection is not None:
            await self._connection.over()

    def is_in_doubt(self) -> bool:
        """Whether the other side was lost a moment ago, without a word, and is not there again."""
        connection = self._connection
        return connection is not None and connection.closed and self._loop.time() < connection.ended + DOUBT_S

    def close(self) -> None:
        """Whoever waits for an answer is told; the next question opens the line again."""
        if self._connection is not None:
            self._connection.close()
            self._connection = None

    async def _ask(self, request: Message, timeout_s: float, go_on: GoOn | None) -> Any:
        deadline = self._loop.time() + timeout_s
        if self._turn is None:
            return await self._send(request, timeout_s, deadline, go_on)
        await self._in_time(self._turn.acquire(), deadline)
        try:
            return await self._send(request, timeout_s, deadline, go_on)
        finally:
            self._turn.release()

    async def _send(self, request: Message, timeout_s: float, deadline: float, go_on: GoOn | None) -> Any:
        connection = self._usable() or await self._in_time(self._open(), deadline)
        # What took long now must not shorten the time of all questions that follow.
        left_s = max(deadline - self._loop.time(), 0) if go_on is None else timeout_s
        return await connection.request(request, left_s, go_on=go_on)

    async def _in_time(self, awaited: Any, deadline: float) -> Any:
        try:
            async with asyncio.timeout_at(deadline):
                return await awaited
        except TimeoutError as error:
            raise Lost(f"{self.name}: no connection in time") from error

    # --- opening

    def _usable(self) -> Connection | None:
        """The connection there is, unless it is lost, or the node is to be found elsewhere by now."""
        if self._connection is None or self._connection.closed:
            return None
        if self._place not in self._find():
            self.close()
        return self._connection

    async def _open(self) -> Connection:
        async with self._door:
            if (usable := self._usable()) is not None:  # somebody else has just opened it
                return usable
            await asyncio.sleep(self._again_at - self._loop.time())
            places = self._find()
            if not places:
                self._failed(is_refused=False)
                raise Lost(f"{self.name}: nobody knows its address")
            return await self._open_to(places[self._failures % len(places)])

    async def _open_to(self, place: Place) -> Connection:
        try:
            connection = await Connection.open(*place, client_id=self.name, timeout_s=self._opening_s())
        except OSError as error:
            self._failed(is_refused=_is_refusal(error))
            raise
        except asyncio.CancelledError:
            self._failed(is_refused=False)
            raise
        self._connection, self._place = connection, place
        self._failures, self._again_at, self.is_refused = 0, 0.0, False
        return connection

    def _failed(self, *, is_refused: bool) -> None:
        self.is_refused = is_refused
        pause_s = min(AGAIN_S * 2**self._failures, AGAIN_MAX_S)
        self._failures = min(self._failures + 1, 1000)
        jitter = 1 + JITTER * (2 * self._rng.random() - 1)
        self._again_at = self._loop.time() + pause_s * jitter


def _is_refusal(error: OSError) -> bool:
    """A name with several addresses fails with one error that only quotes those of its addresses."""
    if error.errno is None and (numbers := re.findall(r"\[Errno (\d+)\]", str(error))):
        return all(int(number) == errno.ECONNREFUSED for number in numbers)
    return isinstance(error, ConnectionRefusedError)


class Peers:
    """The lines of a node. Asked for again with the same words, a line is the same one."""

    def __init__(self, config: BrokerConfig, world: World, quorum: Quorum) -> None:
        self._config = config
        self._world = world
        self._quorum = quorum
        self._listener = config.inter_broker_listener
        self._lines: dict[tuple[str, object], Line] = {}
        self._left_until: dict[int, float] = {}
        quorum.connect(self.line_to)

    def line(self, purpose: str, broker_id: int, *, concurrent: bool = False) -> Line:
        """To a broker, at the listener that brokers use among themselves."""
        return self._line(purpose, broker_id, lambda: self._broker_places(broker_id), concurrent)

    def to_controller(self, purpose: str, controller_id: int, *, concurrent: bool = False) -> Line:
        whom = f"controller {controller_id}"
        return self._line(purpose, whom, lambda: self._controller_places(controller_id), concurrent)

    def line_to(self, purpose: str, host: str, port: int, *, concurrent: bool = False) -> Line:
        places = [Place(host, port)]
        return self._line(purpose, places[0], lambda: places, concurrent)

    def follow(self, old: Image, delta: Delta) -> None:
        """A broker that is thought dead will not answer: who asked it is told at once, and looks for those that took over."""
        gone = {broker_id for broker_id, broker in delta.brokers.items() if broker is None or broker.fenced}
        until = asyncio.get_running_loop().time() + FAREWELL_S
        self._left_until.update((each, until) for each in gone if (was := old.broker(each)) and not was.fenced)
        for (_, whom), line in self._lines.items():
            if whom in gone:
                line.close()

    def in_doubt(self) -> set[int]:
        """Brokers from which we copied until a moment ago: are they gone?"""
        return {
            whom
            for (purpose, whom), line in self._lines.items()
            if purpose == "replica" and isinstance(whom, int) and line.is_in_doubt()
        }

    def just_left(self) -> list[int]:
        """Brokers that were alive a moment ago."""
        if self._left_until:
            now = asyncio.get_running_loop().time()
            self._left_until = {each: until for each, until in self._left_until.items() if now < until}
        return list(self._left_until)

    def close(self) -> None:
        lines, self._lines = list(self._lines.values()), {}
        for line in lines:
            line.close()

    def _line(self, purpose: str, whom: object, find: Callable[[], list[Place]], concurrent: bool) -> Line:
        line = self._lines.get((purpose, whom))
        if line is None:
            name = f"{purpose}-{self._config.node_id}"
            line = self._lines[purpose, whom] = Line(
                name, find, self._world.random, concurrent=concurrent, opening_s=self._opening_s
            )
        return line

    def _opening_s(self) -> float:
        return float(self._config[OPENING_MS] / 1000)

    # --- addresses

    def _broker_places(self, broker_id: int) -> list[Place]:
        broker = self._quorum.newest.broker(broker_id)
        endpoint = None if broker is None else broker.endpoints.get(self._listener)
        return [] if endpoint is None else [Place(endpoint.host, endpoint.port)]

    def _controller_places(self, controller_id: int) -> list[Place]:
        """Where it registered, and where the voters' record has it: it may have moved since the one or the other."""
        names = [name.upper() for name in self._config["controller.listener.names"]]
        registered = self._quorum.newest.controllers.get(controller_id)
        voter = self._quorum.voters.voter(controller_id)
        places = [Place(e.host, e.port) for name in names if registered and (e := registered.endpoints.get(name))]
        if voter is not None:
            ours = [address for address in voter.addresses if address.name in ("", *names)]
            places += [Place(address.host, address.port) for address in ours or voter.addresses]
        return list(dict.fromkeys(places))
