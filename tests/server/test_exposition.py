"""The HTTP port, over real sockets and over the simulated network alike."""

import asyncio
import http.client
import threading
import time
from collections.abc import Awaitable, Callable
from typing import Any

import pytest

from ottla.metrics import Histogram
from ottla.server import exposition
from ottla.server.exposition import LoopProbe, Response, node_routes, start_http
from ottla.sim.loop import run as run_simulated

ROUTES = {
    "/metrics": lambda: Response("some_total 1\n"),
    "/big": lambda: Response("x" * 1_000_000),
    "/broken": lambda: Response(str(1 // 0)),
    "/umlaut": lambda: Response("grüße \ud800"),
}

Body = Callable[[int], Awaitable[Any]]


def on_real_sockets(body: Body, routes: Any = ROUTES) -> Any:
    async def main() -> Any:
        server = await start_http("127.0.0.1", 0, routes)
        try:
            return await asyncio.wait_for(body(server.sockets[0].getsockname()[1]), 60)  # type: ignore[attr-defined]
        finally:
            server.close()

    return asyncio.run(main())


def on_simulated_sockets(body: Body, routes: Any = ROUTES) -> Any:
    async def main(loop: Any) -> Any:
        await start_http("127.0.0.1", 8080, routes)
        return await body(8080)

    return [run_simulated(seed, main) for seed in range(5)][-1]


@pytest.fixture(params=[on_real_sockets, on_simulated_sockets])
def serving(request: pytest.FixtureRequest) -> Any:
    return request.param


async def exchange(port: int, sent: bytes) -> bytes:
    """All that comes back until the server closes."""
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    writer.write(sent)
    try:
        return await reader.read()
    finally:
        writer.close()


def ask(path: str, method: str = "GET", headers: str = "Host: x\r\n", version: str = "1.1") -> bytes:
    return f"{method} {path} HTTP/{version}\r\n{headers}Connection: close\r\n\r\n".encode()


def split(answer: bytes) -> tuple[int, dict[str, str], bytes]:
    head, _, body = answer.partition(b"\r\n\r\n")
    line, *headers = head.decode().split("\r\n")
    return int(line.split()[1]), dict(h.split(": ", 1) for h in headers), body


def test_a_page(serving: Any):
    status, headers, body = split(serving(lambda port: exchange(port, ask("/metrics?a=b"))))
    assert (status, body) == (200, b"some_total 1\n")
    assert headers["Content-Length"] == "13" and headers["Connection"] == "close"


def test_a_big_page_arrives_whole(serving: Any):
    assert split(serving(lambda port: exchange(port, ask("/big"))))[2] == b"x" * 1_000_000


def test_head_sends_the_length_but_no_body(serving: Any):
    status, headers, body = split(serving(lambda port: exchange(port, ask("/metrics", "HEAD"))))
    assert (status, headers["Content-Length"], body) == (200, "13", b"")


def test_text_outside_ascii_has_its_length_in_bytes(serving: Any):
    _, headers, body = split(serving(lambda port: exchange(port, ask("/umlaut"))))
    assert len(body) == int(headers["Content-Length"]) and body.decode() == "grüße \\ud800"


@pytest.mark.parametrize(
    ("request_bytes", "status"),
    [
        (ask("/nothing"), 404),
        (ask("/../metrics"), 404),
        (ask("/metrics", "POST"), 405),
        (ask("/metrics", "DELETE"), 405),
        (ask("/broken"), 500),
        (ask("http://somewhere/metrics"), 200),
        (ask("/metrics", headers="", version="1.0"), 200),
        (ask("/metrics", headers=""), 400),
        (ask("/metrics", version="2.0"), 400),
        (ask("/metrics", headers="Host: x\r\nHost: y\r\n"), 400),
        (ask("/metrics", headers="Host: x\r\n folded: y\r\n"), 400),
        (ask("/metrics", headers="Host: x\r\nSpace : y\r\n"), 400),
        (ask("/metrics", headers="Host: x\r\nNul: \0\r\n"), 400),
        (ask("/metrics", headers="Host: x\r\nContent-Length: 5\r\n") + b"hello", 413),
        (ask("/metrics", headers="Host: x\r\nTransfer-Encoding: chunked\r\n"), 413),
        (b"GET  /metrics HTTP/1.1\r\nHost: x\r\n\r\n", 400),
        (b"GET /metrics\r\n\r\n", 400),
        (b"\x00\x00\x00\x10\x00\x12\x00\x03\x00\x00\x00\x01\r\n\r\n", 400),
        (b"GET /" + b"a" * 9000 + b" HTTP/1.1\r\nHost: x\r\n\r\n", 431),
        (b"a" * 20_000, 431),
    ],
)
def test_what_is_asked_wrongly_is_told_so_and_closed(serving: Any, request_bytes: bytes, status: int):
    assert split(serving(lambda port: exchange(port, request_bytes)))[0] == status


def test_405_says_what_is_allowed(serving: Any):
    assert split(serving(lambda port: exchange(port, ask("/metrics", "PUT"))))[1]["Allow"] == "GET, HEAD"


def test_many_requests_on_one_connection(serving: Any):
    async def body(port: int) -> bytes:
        reader, writer = await asyncio.open_connection("127.0.0.1", port)
        for _ in range(3):
            writer.write(b"\r\nGET /metrics HTTP/1.1\r\nHost: x\r\n\r\n")
            head = await reader.readuntil(b"\r\n\r\n")
            assert b"keep-alive" in head
            assert await reader.readexactly(13) == b"some_total 1\n"
        writer.write(ask("/metrics"))
        return await reader.read()

    assert split(serving(body))[0] == 200


def test_a_pipeline_is_answered_in_order_and_in_pieces_of_any_size(serving: Any):
    async def body(port: int) -> bytes:
        reader, writer = await asyncio.open_connection("127.0.0.1", port)
        requests = b"".join(b"GET /%d HTTP/1.1\r\nHost: x\r\n\r\n" % n for n in range(20)) + ask("/big")
        for position in range(0, len(requests), 7):
            writer.write(requests[position : position + 7])
            await asyncio.sleep(0)
        return await reader.read()

    answer = serving(body)
    assert answer.count(b"HTTP/1.1 404") == 20
    assert answer.endswith(b"x" * 1_000_000)


def test_who_pipelines_without_reading_is_not_served_without_bound():
    """A thousand requests for a megabyte each, and nobody reads: the server stops making pages after a few."""
    made = 0

    def page() -> Response:
        nonlocal made
        made += 1
        return Response("x" * 1_000_000)

    async def body(port: int) -> None:
        _, writer = await asyncio.open_connection("127.0.0.1", port, limit=1024)
        writer.write(b"GET /page HTTP/1.1\r\nHost: x\r\n\r\n" * 1000)
        await asyncio.sleep(5)
        writer.transport.abort()
        await asyncio.sleep(1)

    on_simulated_sockets(body, {"/page": page})
    assert made <= 5 * 3  # five seeds


def test_deadlines(monkeypatch: pytest.MonkeyPatch):
    """Slow loris: half a request, nothing at all, and a connection kept for too long. In virtual time."""

    async def body(port: int) -> list[float]:
        loop = asyncio.get_running_loop()
        lived = []
        for sent in (b"", b"GET /metrics HT", b"GET /metrics HTTP/1.1\r\nHost: x\r\n\r\n"):
            started = loop.time()
            reader, writer = await asyncio.open_connection("127.0.0.1", port)
            writer.write(sent)
            await reader.read()
            lived.append(round(loop.time() - started))
        return lived

    assert on_simulated_sockets(body) == [10, 10, 75]


def test_a_byte_now_and_then_does_not_move_the_deadline():
    async def body(port: int) -> float:
        started = asyncio.get_running_loop().time()
        reader, writer = await asyncio.open_connection("127.0.0.1", port)
        for byte in b"GET /metrics HTTP/1.1":
            writer.write(bytes([byte]))
            await asyncio.sleep(1)
            if reader.at_eof():
                break
        return asyncio.get_running_loop().time() - started

    assert on_simulated_sockets(body) < 12


def test_the_number_of_connections_is_bounded(monkeypatch: pytest.MonkeyPatch, serving: Any):
    monkeypatch.setattr(exposition, "CONNECTIONS_MAX", 3)

    async def body(port: int) -> tuple[int, int]:
        open_ones = [await asyncio.open_connection("127.0.0.1", port) for _ in range(3)]
        for reader, writer in open_ones:  # who was answered has been counted
            writer.write(b"GET /metrics HTTP/1.1\r\nHost: x\r\n\r\n")
            await reader.readuntil(b"some_total 1\n")
        refused = split(await exchange(port, b""))[0]
        for reader, writer in open_ones:
            writer.write_eof()
            assert await reader.read() == b""
            writer.close()
        return refused, split(await exchange(port, ask("/metrics")))[0]

    assert serving(body) == (503, 200)


def test_the_pages_of_a_node():
    reason: str | None = "recovering logs"
    routes = node_routes(lambda: "a_total 1\n", lambda: reason)
    assert routes["/live"]().status == 200
    assert (routes["/ready"]().status, "recovering" in routes["/ready"]().body) == (503, True)
    reason = None
    assert routes["/ready"]().status == 200
    assert "version=0.0.4" in routes["/metrics"]().content_type


def test_python_own_http_client_understands_it():
    async def body(port: int) -> list[tuple[int, bytes]]:
        def fetch() -> list[tuple[int, bytes]]:
            client = http.client.HTTPConnection("127.0.0.1", port, timeout=30)
            answers = []
            for path in ("/metrics", "/nothing", "/metrics"):
                client.request("GET", path)
                answer = client.getresponse()
                answers.append((answer.status, answer.read()))
            client.close()
            return answers

        return await asyncio.get_running_loop().run_in_executor(None, fetch)

    assert on_real_sockets(body) == [(200, b"some_total 1\n"), (404, b"404 Not Found\n"), (200, b"some_total 1\n")]


def test_the_probe_sees_a_loop_that_stands_still(caplog: pytest.LogCaptureFixture):
    async def main() -> Histogram:
        stalls = Histogram((0.05, 0.1))
        probe = LoopProbe(stalls, interval_s=0.01, complain_s=0.15)
        probe.start()
        await asyncio.sleep(0.03)
        time.sleep(0.2)
        await asyncio.sleep(0.03)
        probe.stop()
        return stalls

    threads = set(threading.enumerate())
    stalls = asyncio.run(main())
    assert stalls.counts[-1] >= 1 and stalls.total > 0.15 and stalls.count >= 3
    assert "stood still" in caplog.text
    assert set(threading.enumerate()) <= threads, "others may have ended meanwhile"


def test_a_stopped_probe_measures_no_more():
    async def main(loop: Any) -> tuple[int, int]:
        stalls = Histogram()
        probe = LoopProbe(stalls)
        probe.start()
        await asyncio.sleep(1.05)
        probe.stop()
        before = stalls.count
        await asyncio.sleep(10)
        return before, stalls.count

    assert run_simulated(1, main) == (10, 10)
