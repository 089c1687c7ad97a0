"""kafka-server-stop.sh: end the servers that kafka-server-start.sh started, all of them or those with a role or number."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING

from ottla.cli.kafka.options import Failed, guarded

if TYPE_CHECKING:
    from collections.abc import Sequence

NOTHING = "No kafka server to stop"


def main(argv: Sequence[str] | None = None) -> int:
    words = list(sys.argv[1:] if argv is None else argv)
    return guarded(lambda: _run(words))


def _run(words: list[str]) -> int:
    from ottla.cli.kafka.running import servers, stop

    role, node_id = _wanted(words)
    chosen = servers()
    if not chosen:
        print(NOTHING)
        return 1
    # A node's number says more than its role.
    if node_id:
        chosen = [server for server in chosen if server.node_id == node_id]
    elif role:
        chosen = [server for server in chosen if role in server.roles]
    if not chosen:
        what = f"with the provided 'node-id' {node_id}" if node_id else f"with the role {role}"
        print(f"{NOTHING}: no server {what}")
        return 1
    for server in chosen:
        stop(server)
    return 0


def _wanted(words: list[str]) -> tuple[str, str]:
    found = {"process-role": "", "node-id": ""}
    rest = list(words)
    while rest:
        word = rest.pop(0)
        name, equals, value = word.lstrip("-").partition("=")
        if name not in found or not word.startswith("--"):
            raise Failed(f"{name} is not a recognized option")
        if not equals and not rest:
            raise Failed(f"Option {name} requires an argument")
        found[name] = value if equals else rest.pop(0)
    return found["process-role"], found["node-id"]
