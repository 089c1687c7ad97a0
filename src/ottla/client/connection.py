"""One connection to one broker: requests go out as they come, answers come back in the same order.

The first thing said on a connection is ApiVersions; from then on every request is written in the highest version that
both sides know. Several requests may be under way at once. A request that gets no answer in time ends the connection,
because every later answer would have to wait behind the missing one. One deadline serves all of them.

Only `loop.create_connection` and timers of the loop are used, so a simulated loop will do as well.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple, TypeAlias, cast

from ottla import __version__
from ottla.deadline import NEVER, Deadline
from ottla.wire.codec import Malformed, decode
from ottla.wire.errors import Error, KafkaError, error_of
from ottla.wire.frames import Frames, read_response_header, request_frame
from ottla.wire.messages import RESPONSES
from ottla.wire.messages.cluster import ApiVersionsRequest, ApiVersionsResponse
from ottla.wire.schema import Layout, Message

CONNECT_SECONDS = 10.0
REQUEST_SECONDS = 30.0


class Lost(ConnectionError):
    """The connection ended before the answer came: the request may or may not have taken effect."""


# Given an answer: the question of the same kind that follows at once, if there is one.
GoOn: TypeAlias = Callable[[Any], Message | None]


class Awaited(NamedTuple):
    correlation_id: int
    response: Layout
    version: int
    answer: asyncio.Future[Any]
    seconds: float
    until: float
    go_on: GoOn | None


def failure(code: int, message: str | None = None) -> KafkaError:
    """The error of an answer; a number that is newer than our table keeps its meaning of "no"."""
    error = error_of(code)
    return KafkaError(error, message if error.code == code else message or f"error {code}")


def check(code: int, message: str | None = None) -> None:
    """Raise what an answer's error code says, if it says anything."""
    if code:
        raise failure(code, message)


class Connection(asyncio.Protocol):
    """Made by `Connection.open`."""

    def __init__(self, address: str, client_id: str) -> None:
        self.address = address
        self.client_id = client_id
        self.served: dict[int, tuple[int, int]] = {}
        self.features: dict[str, int] = {}
        self.heard = self.ended = (
            0.0  # when the other side last said something, and when that was over, by the loop's clock
        )
        self._transport: asyncio.Transport | None = None
        self._frames = Frames()
        self._awaited: deque[Awaited] = deque()
        self._correlation_id = 0
        self._why_closed: str | None = None
        self._over = asyncio.Event()
        self._loop = asyncio.get_running_loop()
        self._deadline = Deadline(self._loop, self._lose_patience)

    @classmethod
    async def open(
        cls, host: str, port: int, *, client_id: str = "ottla", timeout_s: float = CONNECT_SECONDS
    ) -> Connection:
        """Connect and learn what the broker speaks. OSError or Lost when there is no broker."""
        connection = cls(address_text(host, port), client_id)
        try:
            async with asyncio.timeout(timeout_s):
                await connection._loop.create_connection(lambda: connection, host, port)
                await connection._negotiate()
        except TimeoutError:
            connection.close()
            raise Lost(f"{connection.address} did not answer within {timeout_s:g} s")
        except BaseException:
            connection.close()
            raise
        return connection

    @property
    def closed(self) -> bool:
        return self._why_closed is not None

    async def over(self) -> None:
        """Return when the connection is closed, by whichever side."""
        await self._over.wait()

    def close(self, why: str = "closed by this client") -> None:
        if self._transport is not None:
            self._transport.abort()
        self._end(why)

    def version_of(self, request: Layout) -> int:
        """The highest version of this request that both sides know."""
        low, high = self.served.get(request.key, (0, -1))
        version = min(high, request.versions.high)
        if version < max(low, request.versions.low):
            what = request.__name__.removesuffix("Request")
            raise KafkaError(Error.UNSUPPORTED_VERSION, f"the broker at {self.address} has no {what} that we speak")
        return version

    async def request(
        self,
        message: Message,
        timeout_s: float = REQUEST_SECONDS,
        version: int | None = None,
        go_on: GoOn | None = None,
    ) -> Any:
        """Send, and wait for the answer: an object of the response class that belongs to the request.

        What `go_on` has to ask next leaves as soon as there is an answer, which saves a turn of the loop, and has as much
        time again; the answer to wait for is the one upon which it asks nothing. What it raises ends the waiting.
        """
        version = self.version_of(type(message)) if version is None else version
        answer = self._loop.create_future()
        self._send(message, version, timeout_s, answer, go_on)
        try:
            return await answer
        finally:
            if not answer.done():
                answer.cancel()  # nobody waits for it any more

    def tell(self, message: Message) -> None:
        """Send what is not answered: Produce with acks=0."""
        self._write(message, self.version_of(type(message)))

    async def _negotiate(self) -> None:
        versions = await self._ask_versions(ApiVersionsRequest.versions.high)
        if versions.error_code == Error.UNSUPPORTED_VERSION.code:
            # KIP-511: the answer of an older broker says up to where it knows this request.
            highest = max((api.max_version for api in versions.api_keys if api.api_key == 18), default=0)
            versions = await self._ask_versions(min(highest, ApiVersionsRequest.versions.high))
        check(versions.error_code)
        self.served = {api.api_key: (api.min_version, api.max_version) for api in versions.api_keys}
        self.features = {feature.name: feature.max_version_level for feature in versions.finalized_features}

    async def _ask_versions(self, version: int) -> ApiVersionsResponse:
        hello = ApiVersionsRequest(client_software_name="ottla", client_software_version=__version__)
        return cast(ApiVersionsResponse, await self.request(hello, NEVER, version))  # whoever opens keeps the time

    def _send(
        self, message: Message, version: int, timeout_s: float, answer: asyncio.Future[Any], go_on: GoOn | None
    ) -> None:
        self._write(message, version)
        until, response = self._loop.time() + timeout_s, RESPONSES[type(message).key]
        self._awaited.append(Awaited(self._correlation_id, response, version, answer, timeout_s, until, go_on))
        self._deadline.set(until)

    def _lose_patience(self) -> None:
        """Who gave up waiting has no claim any more."""
        now = self._loop.time()
        waiting = [awaited for awaited in self._awaited if not awaited.answer.done()]
        soonest = min(waiting, key=lambda awaited: awaited.until, default=None)
        if soonest is None:
            return
        if soonest.until > now:
            self._deadline.set(soonest.until)
            return
        what = soonest.response.__name__.replace("Response", "Request")
        self.close(f"{what} got no answer within {soonest.seconds:g} s")

    def _write(self, message: Message, version: int) -> None:
        if self._why_closed is not None or self._transport is None:
            raise Lost(f"{self.address}: {self._why_closed}")
        self._correlation_id = (self._correlation_id + 1) & 0x7FFFFFFF
        parts = request_frame(message, version, self._correlation_id, self.client_id)
        if len(parts) == 1:
            self._transport.write(cast(bytes, parts[0]))
        else:
            self._transport.writelines(cast(Sequence[bytes], parts))

    # What the loop calls.

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast(asyncio.Transport, transport)

    def data_received(self, data: bytes) -> None:
        self.heard = self._loop.time()
        try:
            for frame in self._frames.feed(data):
                self._answer(frame)
        except Malformed as error:
            self.close(f"not an answer in Kafka's protocol: {error}")

    def connection_lost(self, error: Exception | None) -> None:
        self._end(f"the connection was lost: {error}" if error else "the broker closed the connection")

    def _answer(self, frame: bytes) -> None:
        if not self._awaited:
            raise Malformed("an answer nobody asked for")
        awaited = self._awaited.popleft()
        try:
            response = _read_response(frame, awaited)
        except Malformed as error:
            _fail(awaited.answer, Lost(f"{self.address}: {error}"))
            raise
        if not self._awaited:
            self._deadline.clear()
        if not awaited.answer.done() and not self._goes_on(awaited, response):
            awaited.answer.set_result(response)

    def _goes_on(self, awaited: Awaited, response: Message) -> bool:
        """Whether there is a question that follows, or nothing to wait for any more."""
        if awaited.go_on is None:
            return False
        try:
            following = awaited.go_on(response)
            if following is not None:
                self._send(following, awaited.version, awaited.seconds, awaited.answer, awaited.go_on)
        except Exception as error:
            _fail(awaited.answer, error)
            return True
        return following is not None

    def _end(self, why: str) -> None:
        if self._why_closed is None:
            self._why_closed, self.ended = why, self._loop.time()
            self._over.set()
            self._deadline.close()
        waiting, self._awaited = self._awaited, deque()
        for awaited in waiting:
            _fail(awaited.answer, Lost(f"{self.address}: {self._why_closed}"))


def _read_response(frame: bytes, awaited: Awaited) -> Message:
    correlation_id, position = read_response_header(frame, awaited.response, awaited.version)
    if correlation_id != awaited.correlation_id:
        raise Malformed(f"answer {correlation_id} came where {awaited.correlation_id} was due")
    version = awaited.version
    if awaited.response is ApiVersionsResponse and frame[position : position + 2] == b"\0\x23":
        version = 0  # UNSUPPORTED_VERSION is said in words that everybody understands
    response: Message = decode(awaited.response, frame, version, position)  # type: ignore[arg-type]
    return response


def _fail(answer: asyncio.Future[Any], error: Exception) -> None:
    if not answer.done():
        answer.set_exception(error)


def address_text(host: str, port: int) -> str:
    return f"[{host}]:{port}" if ":" in host else f"{host}:{port}"
