"""`make fuzz`: a million damaged requests against a node of our own."""

from __future__ import annotations

import argparse
import asyncio
import sys
import tempfile
import time
from collections import Counter
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

from fuzz.attack import HANG_S, Outcome, attack
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
            first = asyncio.run(attack("127.0.0.1", node.port, chosen.seed + 1, chosen.requests // 50))
            before = resident_bytes(node.pid)
            outcome = asyncio.run(attack("127.0.0.1", node.port, chosen.seed, chosen.requests, show))
            after = resident_bytes(node.pid)
            said = node.log_text()
        except Exception:
            print("the end of the log:", node.log_tail(LINES_SHOWN), sep="\n")
            raise
        finally:
            node.stop()
    show(outcome)
    complaints = said.count("Traceback")
    print(f"memory: {before >> 20} MiB before, {after >> 20} MiB after; tracebacks in the log: {complaints}")
    if complaints:
        print("the end of the log:", *said.splitlines()[-LINES_SHOWN:], sep="\n")
        failures = Counter(line.partition(" ")[2] for line in said.splitlines() if " ERROR " in line)
        print("what failed how often:", *(f"{times:6} {line}" for line, times in failures.most_common()), sep="\n")
    hanging = first.hanging + outcome.hanging
    for frame in hanging:
        print(f"neither answered nor refused in {HANG_S:g} s: {frame.hex()}")
    well = outcome.worst_s < 1 and after - before < GROWTH_MAX and not complaints and not hanging
    return 0 if well else 1


def show(outcome: Outcome) -> None:
    waits = ", ".join(f"{kind} {told(waits)}" for kind, waits in outcome.waits.items())
    print(
        f"{outcome.seen:,} requests looked at, {outcome.answered:,} answered, {outcome.given_up:,} left waiting, "
        f"{outcome.connections:,} connections; a healthy client waited (p99/worst) for {waits}",
        flush=True,
    )


def told(waits: list[float]) -> str:
    return f"{sorted(waits)[int(len(waits) * 0.99)] * 1000:.1f}/{max(waits) * 1000:.0f} ms"


if __name__ == "__main__":
    sys.exit(main())
