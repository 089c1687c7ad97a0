"""Bounds on connections: how many in all, and how many from one address."""

from __future__ import annotations

from typing import Any


class Limits:
    def __init__(self, config: Any) -> None:
        self._connections_max: int = config["max.connections"]
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
