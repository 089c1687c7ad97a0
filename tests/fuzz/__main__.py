"""`make fuzz`: a million damaged requests against a node of our own."""

from __future__ import annotations

import argparse
import asyncio
import sys
import tempfile
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parent.parent))

from fuzz.attack import Outcome, attack
from harness import Node, resident_bytes


def main() -> int:
    options = argparse.ArgumentParser(description=__doc__)
    options.add_argument("--requests", type=int, default=1_000_000)
    options.add_argument("--seed", type=int, default=1)
    chosen = options.parse_args()
    with tempfile.TemporaryDirectory() as directory:
        node = Node(Path(directory) / "data").start()
        before = resident_bytes(node.pid)
        try:
            outcome = asyncio.run(attack("127.0.0.1", node.port, chosen.seed, chosen.requests, show))
            after = resident_bytes(node.pid)
        finally:
            node.stop()
    show(outcome)
    print(f"memory: {before >> 20} MiB before, {after >> 20} MiB after")
    return 0 if outcome.worst_s < 1 else 1


def show(outcome: Outcome) -> None:
    print(
        f"{outcome.sent:,} requests over {outcome.connections:,} connections; a healthy client waited "
        f"{outcome.p99_s * 1000:.1f} ms (p99), {outcome.worst_s * 1000:.0f} ms (worst)",
        flush=True,
    )


if __name__ == "__main__":
    sys.exit(main())
