"""The small HTTP port of a node: /metrics for Prometheus, /live and /ready for whoever supervises it.

This is a web server for a handful of pages that are made in memory and fetched by GET or HEAD. It reads no bodies, so
its whole grammar is a request line and headers, and everything outside it is answered with 400 and a closed door. Every
connection has a deadline, every request a size limit, and there are only so many connections: a stuck scraper must not
cost the broker anything.

`LoopProbe` lives here because it, too, exists only to be watched: it measures how late the loop runs its timers.
"""

from __future__ import annotations

import asyncio
import logging
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from http import HTTPStatus
from typing import Any

from ottla.metrics import CONTENT_TYPE, Histogram

REQUEST_BYTES_MAX = 8 * 1024
REQUEST_SECONDS = 10.0  # from connecting, or from the first byte of a later request, to its end
IDLE_SECONDS = 75.0  # between two requests: longer than scrapers usually pause
CONNECTIONS_MAX = 64
PROBE_SECONDS = 0.1

_REQUEST_LINE = re.compile(rb"([!#$%&'*+.^_`|~0-9A-Za-z-]+) ([!-~]+) HTTP/1\.([01])")
_HEADER = re.compile(rb"([!#$%&'*+.^_`|~0-9A-Za-z-]+):[ \t]*([^\x00-\x08\x0a-\x1f\x7f]*)")

log = logging.getLogger("ottla.http")


@dataclass(frozen=True, slots=True)
class Response:
    body: str
    status: int = 200
    content_type: str = "text/plain; charset=utf-8"
    more_headers: tuple[str, ...] = ()


Routes = Mapping[str, Callable[[], Response]]


def node_routes(
    render: Callable[[], str], why_not_ready: Callable[[], str | None]
) -> dict[str, Callable[[], Response]]:
    """The pages of a node. `why_not_ready` answers None once the node serves."""

    def ready() -> Response:
        reason = why_not_ready()
        return Response("ready\n") if reason is None else Response(f"not ready: {reason}\n", 503)

    return {
        "/metrics": lambda: Response(render(), content_type=CONTENT_TYPE),
        "/live": lambda: Response("live\n"),
        "/ready": ready,
    }


async def start_http(host: str | None, port: int, routes: Routes) -> asyncio.AbstractServer:
    """Serve these pages. Closing the server ends new connections; those open die by their deadlines."""
    door = _Door(routes)
    server: asyncio.AbstractServer = await asyncio.get_running_loop().create_server(
        lambda: _Connection(door), host, port
    )
    return server


class _Door:
    """What the connections of one server share."""

    def __init__(self, routes: Routes) -> None:
        self._routes = routes
        self.connections = 0

    def answer(self, method: str, path: str) -> Response:
        page = self._routes.get(path)
        if page is None:
            return _plain(HTTPStatus.NOT_FOUND)
        if method not in ("GET", "HEAD"):
            return _plain(HTTPStatus.METHOD_NOT_ALLOWED, "Allow: GET, HEAD")
        try:
            return page()
        except Exception:
            log.exception("could not make the page %s", path)
            return _plain(HTTPStatus.INTERNAL_SERVER_ERROR)


def _plain(status: HTTPStatus, *headers: str) -> Response:
    return Response(f"{status.value} {status.phrase}\n", status.value, more_headers=headers)


@dataclass(frozen=True, slots=True)
class _Request:
    method: str
    path: str
    keep_alive: bool


class _Refused(Exception):
    """The request cannot be read; answer and close."""

    def __init__(self, status: HTTPStatus) -> None:
        super().__init__(status.phrase)
        self.status = status


class _Connection(asyncio.Protocol):
    def __init__(self, door: _Door) -> None:
        self._door = door
        self._loop = asyncio.get_running_loop()
        self._buffer = bytearray()
        self._timer: asyncio.TimerHandle | None = None
        self._transport: Any = None
        self._full = False

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = transport
        self._door.connections += 1
        self._deadline(REQUEST_SECONDS)
        if self._door.connections > CONNECTIONS_MAX:
            self._send(_plain(HTTPStatus.SERVICE_UNAVAILABLE), keep_alive=False)

    def connection_lost(self, error: Exception | None) -> None:
        self._door.connections -= 1
        if self._timer is not None:
            self._timer.cancel()

    def pause_writing(self) -> None:
        self._full = True
        self._transport.pause_reading()  # who does not read our answers gets no more of them

    def resume_writing(self) -> None:
        self._full = False
        self._loop.call_soon(self._serve)

    def data_received(self, data: bytes) -> None:
        if not self._buffer:
            self._deadline(REQUEST_SECONDS)
        self._buffer += data
        self._serve()

    def _serve(self) -> None:
        """One request; another one in a later turn of the loop, so that a pipeline of them cannot hold it."""
        if self._full or self._transport.is_closing():
            return
        try:
            request = self._next_request()
        except _Refused as refused:
            self._send(_plain(refused.status), keep_alive=False)
            return
        if request is None:
            self._transport.resume_reading()
            return
        self._send(self._door.answer(request.method, request.path), request.keep_alive, request.method == "HEAD")
        if self._buffer:
            self._transport.pause_reading()
            self._loop.call_soon(self._serve)
        elif not self._full:
            self._transport.resume_reading()

    def _next_request(self) -> _Request | None:
        while self._buffer[:2] == b"\r\n":
            del self._buffer[:2]  # RFC 9112, 2.2: empty lines before a request are to be ignored
        end = self._buffer.find(b"\r\n\r\n", 0, REQUEST_BYTES_MAX)
        if end >= 0:
            head = bytes(self._buffer[:end])
            del self._buffer[: end + 4]
            return read_request(head)
        if len(self._buffer) >= REQUEST_BYTES_MAX:
            raise _Refused(HTTPStatus.REQUEST_HEADER_FIELDS_TOO_LARGE)
        return None

    def _send(self, response: Response, keep_alive: bool, head_only: bool = False) -> None:
        self._transport.write(encode(response, keep_alive, head_only))
        self._deadline(IDLE_SECONDS)
        if not keep_alive:
            self._transport.close()
            self._deadline(REQUEST_SECONDS)

    def _deadline(self, seconds: float) -> None:
        if self._timer is not None:
            self._timer.cancel()
        self._timer = self._loop.call_later(seconds, self._expire)

    def _expire(self) -> None:
        self._transport.abort()


def read_request(head: bytes) -> _Request:
    """Request line and headers, without the empty line after them."""
    line, *header_lines = head.split(b"\r\n")
    match = _REQUEST_LINE.fullmatch(line)
    if match is None:
        raise _Refused(HTTPStatus.BAD_REQUEST)
    method, target, minor = match.groups()
    headers = _headers(header_lines)
    if minor == b"1" and b"host" not in headers:
        raise _Refused(HTTPStatus.BAD_REQUEST)
    if headers.get(b"content-length", b"0") != b"0" or b"transfer-encoding" in headers:
        raise _Refused(HTTPStatus.REQUEST_ENTITY_TOO_LARGE)
    wishes = {wish.strip() for wish in headers.get(b"connection", b"").lower().split(b",")}
    keep_alive = b"close" not in wishes and (minor == b"1" or b"keep-alive" in wishes)
    return _Request(method.decode(), _path(target.decode()), keep_alive)


def _headers(lines: list[bytes]) -> dict[bytes, bytes]:
    headers: dict[bytes, bytes] = {}
    for line in lines:
        match = _HEADER.fullmatch(line)
        if match is None:
            raise _Refused(HTTPStatus.BAD_REQUEST)
        name = match[1].lower()
        if name in headers and name in (b"host", b"content-length"):
            raise _Refused(HTTPStatus.BAD_REQUEST)  # two answers to one question: somebody is being tricked
        headers[name] = match[2].strip()
    return headers


def _path(target: str) -> str:
    if target.startswith(("http://", "https://")):
        target = "/" + target.split("/", 3)[3] if target.count("/") > 2 else "/"
    return target.split("?", 1)[0].split("#", 1)[0]


def encode(response: Response, keep_alive: bool, head_only: bool = False) -> bytes:
    body = response.body.encode(errors="backslashreplace")
    lines = [
        f"HTTP/1.1 {response.status} {HTTPStatus(response.status).phrase}",
        f"Content-Type: {response.content_type}",
        f"Content-Length: {len(body)}",
        "Cache-Control: no-store",
        "X-Content-Type-Options: nosniff",
        *response.more_headers,
        f"Connection: {'keep-alive' if keep_alive else 'close'}",
    ]
    head = "\r\n".join(lines).encode() + b"\r\n\r\n"
    return head if head_only else head + body


class LoopProbe:
    """Says how late the loop is: a timer is due every tenth of a second, and runs when the loop gets to it."""

    def __init__(self, stalls: Histogram, interval_s: float = PROBE_SECONDS, complain_s: float = 1.0) -> None:
        self._stalls = stalls
        self._interval_s = interval_s
        self._complain_s = complain_s
        self._timer: asyncio.TimerHandle | None = None

    def start(self) -> None:
        self._loop = asyncio.get_running_loop()
        self._arm()

    def stop(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    def _arm(self) -> None:
        self._due = self._loop.time() + self._interval_s
        self._timer = self._loop.call_at(self._due, self._measure)

    def _measure(self) -> None:
        late = max(0.0, self._loop.time() - self._due)
        self._stalls.observe(late)
        if late >= self._complain_s:
            log.warning("the event loop stood still for %.2f s", late)
        self._arm()
