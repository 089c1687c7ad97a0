"""How fast replicas may be brought to another broker (KIP-73): so many bytes in a second for those that are named throttled.

Those in sync are never held back, or a limit that is too low would throw them out.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from ottla.replication.partition import Partition

NO_LIMIT = 2**63 - 1
WINDOW_S = 10.0


class Throttle:
    # How long somebody who is too fast pauses.
    wait_s = 0.5

    def __init__(
        self,
        rate: Callable[[], int] = lambda: NO_LIMIT,
        concerns: Callable[[Partition], bool] = lambda partition: False,
    ) -> None:
        self._rate = rate
        self.concerns = concerns
        self._moved: deque[tuple[float, int]] = deque()
        self._total = 0

    def record(self, size: int, now: float) -> None:
        self._moved.append((now, size))
        self._total += size

    def is_exceeded(self, now: float) -> bool:
        if not self._moved:
            return False
        while self._moved and self._moved[0][0] <= now - WINDOW_S:
            self._total -= self._moved.popleft()[1]
        return self._total > self._rate() * WINDOW_S


def names(throttled: list[str], index: int, broker_id: int) -> bool:
    """Whether a topic's list of throttled replicas names this one: `*`, or pairs of partition and broker."""
    return "*" in throttled or f"{index}:{broker_id}" in throttled
