"""Which client asked what, in which version, and was answered: the table in docs/compatibility.md, from a run.

Each client has a node of its own, in this process, whose connections are watched while the client runs its errands
(errands.py). `make matrix` does it and writes the table; an errand that fails ends it, and the table stays as it was.
"""

from __future__ import annotations

import asyncio
import re
import sys
import tempfile
import threading
import time
from collections import defaultdict
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

from compat.clients import every_client
from compat.errands import ERRANDS, TOPICS
from ottla.server.connection import Connection
from ottla.server.dispatch import HANDLERS, Exchange
from served import serving

PAGE = Path(__file__).resolve().parent.parent.parent / "docs" / "compatibility.md"
BEGIN, END = "<!-- matrix: written by `make matrix` -->", "<!-- end of matrix -->"
START_SECONDS = 30.0
# A group of one need not wait for others, and a short errand is to see heartbeats.
SETTINGS = {
    "group.initial.rebalance.delay.ms": "0",
    "group.consumer.min.heartbeat.interval.ms": "100",
    "group.consumer.heartbeat.interval.ms": "200",
}

Versions = dict[int, set[int]]


@contextmanager
def watched_node(asked: Versions) -> Iterator[str]:
    """A node on a thread of its own, with the topics of the errands; every request that a client is answered is noted."""
    answered = Connection.answered

    def note(self: Any, exchange: Exchange) -> None:
        if not self.listener.is_controller:  # there the node talks to itself
            asked[exchange.handler.key].add(exchange.version)
        answered(self, exchange)

    started, done, address = threading.Event(), threading.Event(), [""]

    async def run(directory: str) -> None:
        async with serving(Path(directory), SETTINGS) as served:
            for topic in TOPICS:
                await served.topic(topic)
            address[0] = served.node.addresses
            started.set()
            while not done.is_set():
                await asyncio.sleep(0.05)

    Connection.answered = note  # type: ignore[method-assign]
    with tempfile.TemporaryDirectory() as directory:
        thread = threading.Thread(target=lambda: asyncio.run(run(directory)))
        thread.start()
        try:
            assert started.wait(START_SECONDS), "the node did not start"
            yield address[0]
        finally:
            done.set()
            thread.join()
            Connection.answered = answered  # type: ignore[method-assign]


def asked_by(name: str) -> Versions | None:
    """What a client asked while it ran its errands; None if it is not here."""
    asked: Versions = defaultdict(set)
    with watched_node(asked) as address:
        client = every_client(address)[name]
        if reason := client.why_missing():
            print(f"{name}: {reason}", file=sys.stderr)
            return None
        try:
            for errand in ERRANDS[name]:
                begun = time.monotonic()
                errand(client, address)
                print(f"{name}: {errand.__name__}, {time.monotonic() - begun:.1f} s", file=sys.stderr)
        finally:
            client.close()
    return asked


def table(asked: dict[str, Versions]) -> str:
    """A row for each API that somebody asked, and a sentence about the others."""
    rows = [f"| API | {' | '.join(asked)} |", "|---|" + "---|" * len(asked)]
    unasked = []
    for key, handler in sorted(HANDLERS.items()):
        cells = [", ".join(map(str, sorted(versions.get(key, ())))) for versions in asked.values()]
        if any(cells):
            rows.append(f"| {handler.name} | {' | '.join(cell or '·' for cell in cells)} |")
        else:
            unasked.append(handler.name)
    rest = f"\n\nServed as well, and asked by none of them: {', '.join(unasked)}." if unasked else ""
    return "\n".join(rows) + rest


def main() -> int:
    found = {name: asked_by(name) for name in ERRANDS}
    written = table({name: asked for name, asked in found.items() if asked is not None})
    inside = f"{BEGIN}\n\n{written}\n\n{END}"
    text = PAGE.read_text()
    PAGE.write_text(re.sub(f"{re.escape(BEGIN)}.*{re.escape(END)}", lambda _: inside, text, flags=re.DOTALL))
    print(written)
    return 0


if __name__ == "__main__":
    sys.exit(main())
