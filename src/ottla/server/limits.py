"""Bounds on connections (how many in all, how many from one address) and on files that are kept open."""

from __future__ import annotations

import resource
from typing import Any

# Descriptors that are neither connections nor segments: sockets that listen, locks, threads at work, a scrape.
OTHER_FILES = 64
# A connection takes one, and a second one once it was sent a large answer; that is expected of half of them.
FILES_PER_CONNECTION = 1.5
# With room for fewer connections than this the node says so when it starts.
CONNECTIONS_USUAL = 1000


class Limits:
    def __init__(self, config: Any, descriptors_max: int | None = None) -> None:
        """`descriptors_max`: how many descriptors there are for connections; the logs need the others."""
        self._connections_max: int = config["max.connections"]
        if descriptors_max is not None:
            self._connections_max = min(self._connections_max, connections_of(descriptors_max))
        self._per_host_max: int = config["max.connections.per.ip"]
        self._per_host_overrides = _overrides(config["max.connections.per.ip.overrides"])
        self._by_host: dict[str, int] = {}
        self._count = 0

    def admit(self, host: str) -> bool:
        """Count one more connection from `host`, unless that is one too many."""
        of_host = self._by_host.get(host, 0)
        if self._count >= self._connections_max or of_host >= self._per_host_overrides.get(host, self._per_host_max):
            return False
        self._count += 1
        self._by_host[host] = of_host + 1
        return True

    def forget(self, host: str) -> None:
        self._count -= 1
        left = self._by_host[host] - 1
        if left:
            self._by_host[host] = left
        else:
            del self._by_host[host]

    @property
    def connections(self) -> int:
        return self._count


def _overrides(text: str) -> dict[str, int]:
    """`hostName:100,127.0.0.1:200`, as `max.connections.per.ip.overrides` is written."""
    pairs = (entry.rsplit(":", 1) for entry in text.split(",") if entry.strip())
    return {host.strip(): int(count) for host, count in pairs}


def raise_file_limit() -> int:
    """Use all the descriptors that the system allows this process without asking anybody; how many that is."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if soft != hard:
        try:
            resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
        except (OSError, ValueError):  # macOS says "unlimited" and means something else
            return soft
    return hard


def segment_files(limit: int, directories: int, wanted: int) -> int:
    """How many segments of each directory may be open: at most half of all descriptors are for them."""
    if limit == resource.RLIM_INFINITY:
        return wanted
    return max(16, min(wanted, limit // 2 // directories))


def connection_files(limit: int, for_segments: int) -> int | None:
    """How many descriptors are left for connections; None if there is no limit."""
    return None if limit == resource.RLIM_INFINITY else limit - for_segments - OTHER_FILES


def file_warning(for_connections: int | None) -> str | None:
    """What to say at the start if descriptors may run out."""
    if for_connections is None or connections_of(for_connections) >= CONNECTIONS_USUAL:
        return None
    return f"the limit of open files allows only {connections_of(for_connections)} connections: raise it (ulimit -n)"


def connections_of(descriptors: int) -> int:
    """How many connections so many descriptors are enough for; always one."""
    return max(1, int(descriptors / FILES_PER_CONNECTION))
