"""Writes docs/status.md: which behaviour is covered, by which test. `make status` runs it; a test holds it to the truth.

Behaviours have ids (LOG-12, PRT-15, TRAP-06). A test that covers one names it in its name, its docstring or a comment.
"""

from __future__ import annotations

import ast
import functools
import re
import sys
from collections import defaultdict
from pathlib import Path

TESTS = Path(__file__).parent
PAGE = TESTS.parent / "docs" / "status.md"

# Family, how many behaviours it has, what it is about.
FAMILIES = [
    ("LOG", 24, "log and files on disk"),
    ("REC", 10, "record batches and compression"),
    ("IO", 13, "how bytes move"),
    ("RET", 11, "retention and compaction"),
    ("PRD", 19, "producing"),
    ("IDM", 7, "idempotent producers"),
    ("TXN", 12, "transactions"),
    ("GRP", 29, "consumers and groups"),
    ("OFF", 11, "committed offsets"),
    ("REP", 27, "replication"),
    ("KRF", 21, "controller and metadata log"),
    ("ZK", 4, "what ZooKeeper did"),
    ("TS", 13, "tiered storage"),
    ("CC", 7, "rebalancing the cluster"),
    ("CON", 11, "connectors"),
    ("STR", 10, "stream processing"),
    ("SR", 4, "schema registry"),
    ("SEC", 6, "security"),
    ("SHR", 3, "share groups"),
    ("GEO", 4, "geo-replication and tenants"),
    ("CLI", 20, "Kafka's command line"),
    ("API", 6, "client libraries"),
    ("OPS", 8, "operations"),
    ("FTM", 14, "the first ten minutes"),
    ("PRT", 20, "protocol rules and what clients need"),
    ("TRAP", 79, "known traps"),
]

# Why a behaviour of a family that is otherwise claimed has no test. `test_status.py` wants a test or a reason for each.
TIERED = "There is no tiered storage yet."
REASONS = [
    ("IO-12", "What disks can do; it decides nothing here, and the benchmark reports rates of the node itself."),
    ("IO-13, RET-10", TIERED),
    ("RET-11", "Arithmetic for whoever plans disks; no part of the node."),
    ("KRF-13", "A size: `make bench` makes 10,000 partitions with three copies, and says what they cost."),
    ("STR-04", "A query grows with the executors of Spark, not with members of a group."),
    ("STR-06", "Spark brings rows with the same key together by itself, however the topics are partitioned."),
    ("TRAP-76", "There are no share groups yet."),
]

NAMES = "|".join(name for name, _, _ in FAMILIES)
ID = re.compile(rf"\b({NAMES})-(\d\d)(?:\s*(?:\.\.|to)\s*(?:(?:{NAMES})-)?(\d\d))?\b")

HEAD = """# Status: which behaviour is there, and which test shows it

Written by `make status` from the ids that tests name; do not edit. A behaviour without a test is not claimed; the last
table says why some have none.

"""


def ids_in(text: str) -> set[str]:
    """LOG-12, and for LOG-01..03 all three."""
    found = set()
    for family, first, last in ID.findall(text):
        for number in range(int(first), int(last or first) + 1):
            found.add(f"{family}-{number:02}")
    return found


@functools.cache
def tests_by_id() -> dict[str, list[str]]:
    covered: dict[str, list[str]] = defaultdict(list)
    for path in sorted(set(TESTS.rglob("test_*.py")) - {TESTS / "test_status.py"}):
        source = path.read_text()
        lines = source.splitlines()
        for node in ast.walk(ast.parse(source)):
            if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef) and node.name.startswith("test_"):
                text = "\n".join(lines[node.lineno - 1 : node.end_lineno]).replace("_", "-")
                for each in ids_in(text):
                    covered[each].append(f"{path.relative_to(TESTS)}::{node.name}")
    return covered


def page() -> str:
    covered = tests_by_id()
    parts = [HEAD, "| family | about | covered |\n|---|---|---|\n"]
    for family, count, about in FAMILIES:
        done = sum(f"{family}-{number:02}" in covered for number in range(1, count + 1))
        parts.append(f"| {family} | {about} | {done} of {count} |\n")
    for family, count, about in FAMILIES:
        rows = [each for number in range(1, count + 1) if (each := f"{family}-{number:02}") in covered]
        if rows:
            parts.append(f"\n## {family}: {about}\n\n| id | tests |\n|---|---|\n")
            parts += [f"| {each} | {'<br>'.join(f'`{test}`' for test in sorted(covered[each]))} |\n" for each in rows]
    parts.append("\n## No test, and why\n\n| id | reason |\n|---|---|\n")
    parts += [f"| {ids} | {reason} |\n" for ids, reason in REASONS]
    return "".join(parts)


if __name__ == "__main__":
    PAGE.write_text(page())
    print(f"wrote {PAGE}", file=sys.stderr)
