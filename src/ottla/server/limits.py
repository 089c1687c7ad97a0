"""Bounds on connections (how many in all, from one address, how many new ones a second) and on files that are kept open.

The settings behind them may change while the node runs: `Limits.obey` takes over what they say now.
"""

from __future__ import annotations

import math
import resource
from typing import Any

# Descriptors that are neither connections nor segments: sockets that listen, locks, threads at work, a scrape.
OTHER_FILES = 64
# A connection takes one, and a second one once it was sent a large answer; that is expected of half of them.
FILES_PER_CONNECTION = 1.5
# What Kafka's tables have for "no limit".
UNLIMITED = 2**31 - 1
# With room for fewer connections than this the node says so when it starts.
CONNECTIONS_USUAL = 1000


class Limits:
    def __init__(self, config: Any, descriptors_max: int | None = None) -> None:
        """`descriptors_max`: how many descriptors there are for connections; the logs need the others."""
        self._descriptors_max = descriptors_max
        self._by_host: dict[str, int] = {}
        self._count = 0
        self.pace = Pace()
        self.obey(config)

    def obey(self, config: Any) -> None:
        """Take over the settings as they are now; connections that were let in stay."""
        self._connections_max: int = config["max.connections"]
        if self._descriptors_max is not None:
            self._connections_max = min(self._connections_max, connections_of(self._descriptors_max))
        self._per_host_max: int = config["max.connections.per.ip"]
        self._per_host_overrides = _overrides(config["max.connections.per.ip.overrides"])
        self.pace.per_second = config["max.connection.creation.rate"]

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

    @property
    def excess(self) -> int:
        """How many connections there are too many, because the limit was lowered."""
        return max(0, self._count - self._connections_max)


class Pace:
    """So many a second (KIP-612): what one second allows may come at once, all further ones wait for their turn."""

    __slots__ = ("_latest", "per_second")

    def __init__(self, per_second: int = UNLIMITED) -> None:
        self.per_second = per_second
        self._latest = -math.inf

    def turn(self, now: float) -> float:
        """When the next one may begin; never, if none may."""
        if self.per_second >= UNLIMITED:
            return now
        return max(self._latest, now - 1) + 1 / self.per_second if self.per_second else math.inf

    def take(self, now: float) -> None:
        if self.per_second < UNLIMITED:
            self._latest = self.turn(now)


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
