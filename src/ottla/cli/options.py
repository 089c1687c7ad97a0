"""Options that several verbs share, and how their values are read."""

from __future__ import annotations

import argparse
import os
import re
from collections.abc import Iterable
from typing import TYPE_CHECKING, Any

from ottla.cli.mistakes import Mistake

if TYPE_CHECKING:
    from ottla.client.cluster import Cluster

BOOTSTRAP = "localhost:9092"
# As in the example of a pipeline and the cells of the documentation: one setting for all that is tried in one shell.
BOOTSTRAP_VARIABLE = "OTTLA_BOOTSTRAP"
# How long a person waits for what may pass by itself, such as an election.
BUDGET_SECONDS = 10.0
UNITS_MS = {"ms": 1, "s": 1000, "m": 60_000, "h": 3_600_000, "d": 86_400_000, "w": 604_800_000}
RELATIVE = re.compile(r"(\d+)(ms|s|m|h|d|w)")


def add_bootstrap(parser: argparse.ArgumentParser, default: str = "") -> None:
    parser.add_argument(
        "-b",
        "--bootstrap-server",
        default=default or os.environ.get(BOOTSTRAP_VARIABLE) or BOOTSTRAP,
        metavar="HOST:PORT",
        help=f"a broker to begin with, or several with commas between them (${BOOTSTRAP_VARIABLE}, or {BOOTSTRAP})",
    )


def cluster_of(args: argparse.Namespace) -> Cluster:
    """The cluster that --bootstrap-server names."""
    from ottla.cli.meant import Helpful

    try:
        return Helpful(args.bootstrap_server, client_id="ottla-cli", budget_s=BUDGET_SECONDS)
    except ValueError as error:
        raise Mistake(f"--bootstrap-server: {error}")


def add_json(parser: argparse.ArgumentParser, what: str = "print JSON") -> None:
    parser.add_argument("--json", action="store_true", help=what)


def add_bare_action(actions: Any, name: str, what: str, example: str) -> argparse.ArgumentParser:
    """One of the things a verb can do."""
    parser: argparse.ArgumentParser = actions.add_parser(
        name,
        help=what,
        description=f"{what[0].upper()}{what[1:]}.",
        epilog=f"example:\n  {example}",
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    return parser


def add_action(actions: Any, name: str, what: str, example: str) -> argparse.ArgumentParser:
    """One that asks a cluster, and can print JSON."""
    parser = add_bare_action(actions, name, what, example)
    add_bootstrap(parser)
    add_json(parser)
    return parser


def add_action_below(actions: Any, name: str, what: str, example: str) -> argparse.ArgumentParser:
    """One under an action that has the same options: what stands there counts, unless it is said again."""
    parser = add_bare_action(actions, name, what, example)
    add_bootstrap(parser, default=argparse.SUPPRESS)
    parser.add_argument("--json", action="store_true", default=argparse.SUPPRESS, help="print JSON")
    return parser


def pairs(texts: Iterable[str] | None, option: str) -> dict[str, str]:
    """`name=value` options as a dict; the later of two counts."""
    found = {}
    for text in texts or ():
        name, equals, value = text.partition("=")
        if not equals or not name.strip():
            raise Mistake(f"{option} {text!r}: write name=value")
        found[name.strip()] = value.strip()
    return found


def moment_ms(text: str, now_ms: int) -> int:
    """A time as milliseconds since 1970: `now`, that number itself, `10m` for ten minutes ago, or an ISO time."""
    from datetime import datetime

    if text == "now":
        return now_ms
    if text.isdigit():
        return int(text)
    if match := RELATIVE.fullmatch(text):
        return now_ms - int(match[1]) * UNITS_MS[match[2]]
    try:
        return round(datetime.fromisoformat(text).timestamp() * 1000)
    except ValueError:
        raise Mistake(f"{text!r} is not a time: write 10m (ago), 2026-11-15T12:00:00Z, or milliseconds since 1970")


def duration_ms(text: str) -> int:
    """How long: `500ms`, `30s`, `5m`, `2h`; a number alone is milliseconds."""
    if text.isdigit():
        return int(text)
    if match := RELATIVE.fullmatch(text):
        return int(match[1]) * UNITS_MS[match[2]]
    raise Mistake(f"{text!r} is not a length of time: write 30s, 5m or 2h")
