"""`make fuzz`: a million damaged requests against a node of our own."""

from __future__ import annotations

import argparse
import asyncio
import sys
import tempfile
import time
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

from fuzz.attack import Outcome, attack
from harness import Node, resident_bytes

GROWTH_MAX = 64 << 20
LINES_SHOWN = 100


def main() -> int:
    options = argparse.ArgumentParser(description=__doc__)
    options.add_argument("--requests", type=int, default=1_000_000)
    options.add_argument("--seed", type=int, default=int(time.time()))
    chosen = options.parse_args()
    print(f"seed {chosen.seed}")
    with tempfile.TemporaryDirectory() as directory:
        node = Node(Path(directory) / "data", options=["--log-level", "error"])
        node.start()
        try:
            # What a node needs once (compiled codecs, first topics) is not growth.
            asyncio.run(attack("127.0.0.1", node.port, chosen.seed + 1, chosen.requests // 50))
            before = resident_bytes(node.pid)
            outcome = asyncio.run(attack("127.0.0.1", node.port, chosen.seed, chosen.requests, show))
            after = resident_bytes(node.pid)
            said = node.log_text()
        finally:
            node.stop()
    show(outcome)
    complaints = said.count("Traceback")
    print(f"memory: {before >> 20} MiB before, {after >> 20} MiB after; tracebacks in the log: {complaints}")
    if complaints:
        print("the end of the log:", *said.splitlines()[-LINES_SHOWN:], sep="\n")
    return 0 if outcome.worst_s < 1 and after - before < GROWTH_MAX and not complaints else 1


def show(outcome: Outcome) -> None:
    print(
        f"{outcome.seen:,} requests looked at, {outcome.answered:,} answered, {outcome.connections:,} connections; a healthy "
        f"client waited {outcome.p99_s * 1000:.1f} ms (p99), {outcome.worst_s * 1000:.0f} ms (worst)",
        flush=True,
    )


if __name__ == "__main__":
    sys.exit(main())
