"""The same numbers for Prometheus, on a port of their own."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from threading import Thread

from ottla.metrics import CONTENT_TYPE, Labels, Registry
from ottla.pipeline.files.progress import State

# Name, kind, what it is, and how to read it off a query.
TABLE: list[tuple[str, str, str, Callable[[State], float | None]]] = [
    ("ottla_pipeline_up", "gauge", "1 while the query runs.", lambda s: float(s.state == "running")),
    ("ottla_pipeline_rows_total", "counter", "Rows read since the start.", lambda s: s.rows),
    ("ottla_pipeline_late_rows_total", "counter", "Rows left out: behind the watermark.", lambda s: s.late),
    ("ottla_pipeline_rows_per_second", "gauge", "Rows in a second, in the last batch.", lambda s: s.rows_per_second),
    ("ottla_pipeline_lag", "gauge", "Offsets that are there and not read; absent if unknown.", lambda s: s.lag),
    ("ottla_pipeline_batch", "gauge", "Number of the last micro-batch.", lambda s: s.batch),
    ("ottla_pipeline_batch_seconds", "gauge", "How long the last micro-batch took.", lambda s: s.batch_seconds),
    ("ottla_pipeline_restarts_total", "counter", "Times the query was started again.", lambda s: s.restarts),
]


def registry(states: Sequence[State]) -> Registry:
    made = Registry()
    for name, kind, text, read in TABLE:
        made.readings(name, text, "query", kind=kind).read = _reading(states, read)
    return made


def _reading(
    states: Sequence[State], read: Callable[[State], float | None]
) -> Callable[[], Iterator[tuple[Labels, float]]]:
    def series() -> Iterator[tuple[Labels, float]]:
        for state in states:
            value = read(state)
            if value is not None:
                yield (state.name,), value

    return series


@contextmanager
def served(states: Sequence[State], port: int | None, host: str = "127.0.0.1") -> Iterator[int | None]:
    """On `/metrics` while the block runs; 0 takes a free port, None serves nothing."""
    if port is None:
        yield None
        return
    metrics = registry(states)

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            body = metrics.render().encode() if self.path == "/metrics" else b"/metrics\n"
            self.send_response(200 if self.path == "/metrics" else 404)
            self.send_header("Content-Type", CONTENT_TYPE)
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)

        def log_message(self, format: str, *args: object) -> None:
            """Nobody wants a line for each scrape."""

    server = ThreadingHTTPServer((host, port), Handler)
    Thread(target=server.serve_forever, name="metrics", daemon=True).start()
    try:
        yield int(server.server_address[1])
    finally:
        server.shutdown()
        server.server_close()
