"""Which servers were started by kafka-server-start.sh, so that kafka-server-stop.sh ends those and no other process.

Kafka's own script looks for "kafka.Kafka" in the list of all processes. Here each server leaves a note with its number and
the moment at which it began, since numbers of processes are used again.
"""

from __future__ import annotations

import contextlib
import json
import os
import signal
import tempfile
from collections.abc import Iterator, Mapping
from typing import Any, NamedTuple

RUN_DIRECTORY = "OTTLA_RUN_DIR"


class Server(NamedTuple):
    pid: int
    node_id: str
    roles: list[str]
    note: str


def _directory() -> str:
    """Where the notes lie: one directory per user."""
    chosen = os.environ.get(RUN_DIRECTORY)
    if chosen:
        return chosen
    base = os.environ.get("XDG_RUNTIME_DIR") or tempfile.gettempdir()
    return os.path.join(base, f"ottla-servers-{os.getuid()}")


def _began(pid: int) -> str:
    """When a process began, in the kernel's own count; nothing where that cannot be told."""
    with contextlib.suppress(OSError, IndexError), open(f"/proc/{pid}/stat") as stat:
        return stat.read().rsplit(")", 1)[1].split()[19]
    return ""


@contextlib.contextmanager
def noted(settings: Mapping[str, str]) -> Iterator[None]:
    """This process is a server, as long as the block lasts."""
    pid, directory = os.getpid(), _directory()
    os.makedirs(directory, mode=0o700, exist_ok=True)
    path = os.path.join(directory, f"{pid}.json")
    facts = {
        "pid": pid,
        "began": _began(pid),
        "node.id": settings.get("node.id", ""),
        "process.roles": settings.get("process.roles", ""),
    }
    with open(path, "w", encoding="utf-8") as file:
        json.dump(facts, file)
    try:
        yield
    finally:
        with contextlib.suppress(OSError):
            os.remove(path)


def servers() -> list[Server]:
    """Those that run now; notes of others are swept away."""
    found = []
    with contextlib.suppress(FileNotFoundError):
        for name in sorted(os.listdir(_directory())):
            path = os.path.join(_directory(), name)
            server = _read(path)
            if server is None:
                with contextlib.suppress(OSError):
                    os.remove(path)
            else:
                found.append(server)
    return found


def _read(path: str) -> Server | None:
    try:
        with open(path, encoding="utf-8") as file:
            facts: dict[str, Any] = json.load(file)
        pid = int(facts["pid"])
        os.kill(pid, 0)
    except (OSError, ValueError, KeyError, TypeError):
        return None
    if facts.get("began") != _began(pid):
        return None
    roles = [role.strip() for role in str(facts.get("process.roles", "")).split(",") if role.strip()]
    return Server(pid, str(facts.get("node.id", "")), roles, path)


def stop(server: Server) -> None:
    os.kill(server.pid, signal.SIGTERM)
