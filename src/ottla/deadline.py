"""One timer for moments that are nearly always taken back before they come.

A request has a time limit, and a fetch that waits has one too: thousands in a second, of which hardly any is reached. A timer
of the loop for each costs more than much of what a request does. A `Deadline` keeps one: it is set for a moment, taken back,
and set again; the loop's timer stays where it is meanwhile, and looks again when it goes off too early.
"""

from __future__ import annotations

import asyncio
import math
from collections.abc import Callable

NEVER = math.inf


class Deadline:
    __slots__ = ("_callback", "_timer", "at", "loop")

    def __init__(self, loop: asyncio.AbstractEventLoop, callback: Callable[[], None]) -> None:
        self.loop = loop
        self._callback = callback
        self._timer: asyncio.TimerHandle | None = None
        self.at = NEVER

    def set(self, at: float) -> None:
        """Go off at that moment, or sooner if that was wanted before."""
        if at < self.at:
            self.at = at
            if self._timer is None or at < self._timer.when():
                self._begin(at)

    def clear(self) -> None:
        """Nothing is waited for any more."""
        self.at = NEVER

    def close(self) -> None:
        """Nothing will be waited for again: let go of the loop's timer too."""
        self.at = NEVER
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    def _begin(self, at: float) -> None:
        if self._timer is not None:
            self._timer.cancel()
        self._timer = self.loop.call_at(at, self._go_off)

    def _go_off(self) -> None:
        timer, self._timer = self._timer, None
        if self.at == NEVER or timer is None:
            return
        if self.at > timer.when():
            self._begin(self.at)
        else:
            self.at = NEVER
            self._callback()
