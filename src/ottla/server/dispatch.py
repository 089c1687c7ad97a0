"""Key -> handler: the one table that ApiVersions, version checks, decoding and the tests all read.

A frame is decoded and its handler stepped at once, before the receive buffer can be used again: up to its first await a
handler may use views into the frame, after that it may not. A handler that never waits costs one coroutine and no task;
one that waits is stepped on by the future it waits for (`Exchange`), or by the tick (`Prompt`). There is no task around
a handler, so `asyncio.timeout`, `wait_for` and `TaskGroup`, which need one, do not work in it. The two busiest handlers
are plain functions that answer at once where they can, and else hand back a coroutine for what is left to do.

A listener for clients and one of the controller serve different APIs: there is a table for each. What only the active
controller can decide is `forwarded` to it by every other node (`forwarding`).
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Coroutine
from types import CoroutineType
from typing import TYPE_CHECKING, Any, TypeVar

from ottla.config import BrokerConfig
from ottla.rising import Prompt
from ottla.server.context import Context
from ottla.server.forwarding import Call, forwarding, may_forward
from ottla.server.refusals import answer_to
from ottla.wire.allowance import Overlarge
from ottla.wire.codec import Malformed, decoder
from ottla.wire.frames import API_VERSIONS, read_request_header
from ottla.wire.schema import Message

if TYPE_CHECKING:
    from ottla.server.connection import Connection

log = logging.getLogger("ottla.server")

# Only records are large. Any other request of this size would be hundreds of thousands of names or numbers, each of them an
# object: it could hold up the loop for seconds.
PLAIN_BYTES_MAX = 4 * 1024 * 1024
# An envelope is a little larger than the request inside, which is looked at when it is opened.
MAY_BE_LARGE = frozenset({0, 58})

# Where each API is served, as Kafka's message files have it: what is in neither set belongs to brokers alone. Fetch is on
# both kinds of listeners too, but means the metadata log on the one: `serves` is told so. What nobody serves yet is there as
# well, so that a login or an access rule is not forgotten on the controller once there is a handler.
ON_BOTH = frozenset(
    {17, 18, 19, 20, *range(29, 34), *range(36, 42), *range(43, 47), 49, 50, 51, 55, 57, 60, 64, 80, 81}
)
ONLY_ON_CONTROLLER = frozenset({52, 53, 54, 56, 58, 59, 62, 63, 67, 70, 73, 82})

C = TypeVar("C", bound=Call)


class Handler:
    """One API as this broker serves it."""

    __slots__ = (
        "advertised_low",
        "call",
        "decoders",
        "forwarded",
        "guarded",
        "high",
        "key",
        "low",
        "name",
        "newest_needs",
        "ordered",
        "request",
    )

    def __init__(
        self,
        request: type[Message],
        low: int,
        high: int,
        call: Call,
        advertised_low: int,
        ordered: bool,
        newest_needs: str | None = None,
        forwarded: bool = False,
        guarded: bool = True,
    ) -> None:
        self.request, self.low, self.high, self.call = request, low, high, call
        self.key: int = request.key
        self.name = request.__name__.removesuffix("Request")
        self.advertised_low = advertised_low
        self.ordered = ordered
        self.newest_needs = newest_needs
        self.forwarded = forwarded
        self.guarded = guarded
        self.decoders: dict[int, Callable[..., Any]] = {}

    def learn(self, version: int) -> Callable[..., Any]:
        """How to read this version, for its first request and all later ones."""
        decode = self.decoders[version] = decoder(self.request, version)
        return decode

    def newest(self, config: BrokerConfig) -> int:
        """The highest version that a node with these settings serves."""
        return self.high + 1 if self.newest_needs is not None and config[self.newest_needs] else self.high

    async def answer(self, request: Any, ctx: Context) -> Any:
        """What a client would hear, for whoever asks from within this node: no `Exchange` is there to guard the call."""
        try:
            answer = self.call(request, ctx)
            return await answer if type(answer) is CoroutineType else answer
        except Exception as error:
            if not self.guarded:
                raise
            return answer_to(error, request, ctx.version)


# By key: what listeners for clients serve, and what those of the controller do.
HANDLERS: dict[int, Handler] = {}
ON_CONTROLLER: dict[int, Handler] = {}


def serves(
    request: type[Message],
    versions: str,
    *,
    advertised_low: int | None = None,
    ordered: bool = False,
    guarded: bool = True,
    newest_needs: str | None = None,
    forwarded: bool = False,
    only_on_controller: bool = False,
) -> Callable[[C], C]:
    """Register a handler for all versions of `versions` ("3-13").

    `advertised_low` is told to clients instead of the true lowest version where a client needs to see it (KAFKA-18659).
    `ordered`: requests of one connection take effect in the order they came, even if this one has to wait first.
    `guarded`: what the handler raises becomes its answer. The two busiest do without: a defect costs the connection.
    `newest_needs`: the version after the last of `versions` is served as well while this setting is true.
    `forwarded`: on a listener for clients, a node that is not the active controller passes it on to that one.
    `only_on_controller`: what it means on a listener of the controller, where the table of keys does not say it.
    """
    low, high = (int(part) for part in versions.split("-"))

    def register(call: C) -> C:
        advertised = low if advertised_low is None else advertised_low
        handler = Handler(request, low, high, call, advertised, ordered, newest_needs, forwarded, guarded)
        _enter(handler, only_on_controller or request.key in ONLY_ON_CONTROLLER)
        return call

    return register


def _enter(handler: Handler, only_on_controller: bool) -> None:
    if only_on_controller or handler.key in ON_BOTH:
        ON_CONTROLLER[handler.key] = handler
    if not only_on_controller:
        HANDLERS[handler.key] = handler


class Exchange(Context):
    """One request on its way through its handler, and the place of its reply in the connection's order.

    It is also the context that its handler sees: one object less for every request.
    """

    __slots__ = (
        "_coroutine",
        "_request",
        "_waiting",
        "answer_version",
        "correlation_id",
        "handler",
        "ready",
        "response",
        "size",
        "spent_s",
        "started",
    )
    spent_s: float  # there only where quotas are kept, and only once the handler has waited

    def __init__(
        self,
        connection: Connection,
        handler: Handler,
        version: int,
        correlation_id: int,
        client_id: str | None,
        size: int,
    ) -> None:
        self.node = connection.node
        self.connection = connection
        self.client_id = client_id
        self.version = self.answer_version = version
        self.took_effect = self.ready = False
        self.handler = handler
        self.correlation_id = correlation_id
        self.size = size
        self.response: Message | None = None
        self.started = connection.last_active
        self._request: Any = None
        self._coroutine: Coroutine[Any, Any, Message | None] | None = None
        self._waiting: asyncio.Future[Any] | None = None

    def start(self, request: Any, call: Call) -> None:
        """Call the handler, or whoever stands in for it; for most requests that is all."""
        # Not that of a Produce: records would keep the buffer they came in from being used again until they are acknowledged.
        if self.handler.guarded:
            self._request = request
        try:
            answer = call(request, self)
        except Exception as error:
            self._fail(error)
            return
        if type(answer) is CoroutineType:
            self._coroutine = answer
            self._step()
        else:
            self.response = answer  # type: ignore[assignment]
            self.ready = True
            self.connection.answered(self)

    def _step(self, _: object = None) -> None:
        if self._coroutine is None:  # cancelled after this step was scheduled
            return
        try:
            waiting = self._coroutine.send(None)
        except StopIteration as stop:
            self._finish(stop.value)
        except (Exception, asyncio.CancelledError) as error:
            self._fail(error)  # a cancelled future fails its handler like any other error
        else:
            self._wait(waiting)

    def _wait(self, waiting: asyncio.Future[Any] | None) -> None:
        step = self._step
        if self.node.charging is not None:
            self.node.charging.waits(self)
            step = self._resume
        if waiting is None:  # sleep(0)
            asyncio.get_running_loop().call_soon(step)
            return
        # A Task clears this flag as well: if it stayed, the next coroutine to await the same future would be refused.
        waiting._asyncio_future_blocking = False
        if type(waiting) is Prompt:
            waiting.told_by(self.node.tick.step, step)
        else:
            waiting.add_done_callback(step)
        self._waiting = waiting

    def _resume(self, _: object = None) -> None:
        """The same where the time of each step is measured."""
        if self.node.charging is not None:
            self.node.charging.begins()
        self._step()

    def _finish(self, response: Message | None) -> None:
        self._coroutine = self._waiting = None
        self.response = response
        self.ready = True
        self.connection.answered(self)

    def _fail(self, error: BaseException) -> None:
        if isinstance(error, Overlarge):
            self._refuse(error)
            return
        if self.handler.guarded and isinstance(error, Exception):
            self._finish(answer_to(error, self._request, self.version))
            return
        self._coroutine = self._waiting = None
        log.error("%s version %d failed", self.handler.name, self.version, exc_info=error)
        self.connection.abort(f"{self.handler.name} could not be answered")

    def _refuse(self, error: Overlarge) -> None:
        """What came before is answered, what came after is not: answers have no gaps."""
        self._coroutine = self._waiting = None
        connection = self.connection
        log.warning("%s v%d of %s is not answered: %s", self.handler.name, self.version, connection.peer_host, error)
        while connection.exchanges and (last := connection.exchanges.pop()) is not self:
            last.cancel()
        connection.refuse(str(error))

    def cancel(self) -> None:
        """The connection is gone. `finally` blocks of the handler run; nobody wants its answer."""
        coroutine, self._coroutine = self._coroutine, None
        if self._waiting is not None:
            if type(self._waiting) is Prompt:
                self._waiting.forget()
            self._waiting.remove_done_callback(self._step)
            self._waiting.remove_done_callback(self._resume)
            self._waiting.remove_done_callback(_hear)  # others may have left it as well
            self._waiting.add_done_callback(_hear)
            self._waiting = None
        if coroutine is not None:
            coroutine.close()


def _hear(waiting: asyncio.Future[Any]) -> None:
    """asyncio complains about an error that nobody was told of."""
    if not waiting.cancelled():
        waiting.exception()


def dispatch(connection: Connection, frame: memoryview) -> None:
    """Start the handler of one request frame. A request that cannot be understood costs the client its connection."""
    try:
        if len(frame) > PLAIN_BYTES_MAX:
            _check_large(frame)
        key, version, correlation_id, client_id, position = read_request_header(frame)
        handler = connection.handlers.get(key)
        if handler is None:
            raise Malformed(f"no API with the key {key} is served here")
        exchange = Exchange(connection, handler, version, correlation_id, client_id, len(frame) + 4)
        if not handler.low <= version <= handler.high and version != handler.newest(connection.node.config):
            exchange.answer_version = 0
            request = _as_oldest(handler, version)
        else:
            decode = handler.decoders.get(version) or handler.learn(version)
            # What follows the last field is not looked at: librdkafka sends three bytes too many with Metadata 13.
            request = decode(frame, position)[0]
    except Malformed as problem:
        connection.node.measures.malformed.value += 1
        connection.refuse(str(problem))
        return
    connection.exchanges.append(exchange)
    if handler.forwarded and may_forward(exchange):
        exchange.start(request, forwarding(bytes(frame)))
    else:
        exchange.start(request, handler.call)
    if handler.ordered and not exchange.ready and not exchange.took_effect:
        connection.hold(exchange)


def _check_large(frame: memoryview) -> None:
    key = int.from_bytes(frame[:2], "big")
    if key not in MAY_BE_LARGE:
        raise Malformed(f"a request of {len(frame)} bytes with key {key}: only Produce may be that large")


def _as_oldest(handler: Handler, version: int) -> Any:
    """KIP-511: ApiVersions of a version we do not know is answered as version 0, which every client can read."""
    if handler.key != API_VERSIONS:
        raise Malformed(f"{handler.name} version {version} is not supported")
    return handler.request()
