"""asyncio's loop, with an end to each of its turns.

In one turn asyncio looks which sockets are readable, and calls who waits for them. What these leave for later (`call_soon`)
is done in the next turn, which looks at the sockets first. A turn costs as much as a small request, so a broker that reads a
request in one and answers it in the next pays for it twice.

- `at_end_of_turn`: to be done when everybody was called whose socket was readable. It is one more event of the selector,
  the last one, so that the loop itself calls it.
- A turn that was begun only because something was left for later does not ask the kernel for events again, if it was asked
  a moment ago. Of a process that was stopped since then that moment is long over, so it asks.
- Timers are called after all that could be read, in every turn: who accuses others of silence has heard what they said. A
  process that is stopped while it waits would call them without that: the kernel ends the wait when it goes on, and Python
  finds that the time is over and does not look what came meanwhile.
"""

from __future__ import annotations

import asyncio
import selectors
import time
from collections.abc import Callable
from typing import Any

# Longer than a turn that does little, and much shorter than any time that somebody is given to answer.
JUST_NOW_S = 0.0005


class Turns(selectors.DefaultSelector):
    """Events of sockets, and behind them one that stands for the end of the turn."""

    def __init__(self) -> None:
        super().__init__()
        self.is_open = False  # the end of this turn is still to come
        self._may_skip = False
        self._looked = 0.0
        self._end: tuple[selectors.SelectorKey, int] | None = None

    def end_with(self, handle: asyncio.Handle) -> None:
        """What the loop is to call after each turn's readers."""
        self._end = selectors.SelectorKey(self, -1, selectors.EVENT_READ, (handle, None)), selectors.EVENT_READ

    def select(self, timeout: float | None = None) -> list[Any]:
        if timeout == 0 and self._may_skip and time.monotonic() - self._looked < JUST_NOW_S:
            self._may_skip = False
            return []
        events: list[Any] = super().select(timeout)
        if not events and timeout:
            events = super().select(0)  # the wait may have been interrupted
        self._looked = time.monotonic()
        self._may_skip = True
        if events and self._end is not None:
            self.is_open = True
            events.append(self._end)
        return events


class Loop(asyncio.SelectorEventLoop):
    time = staticmethod(time.monotonic)  # the same clock, without a call in between

    def __init__(self) -> None:
        self._turns = Turns()
        self._last: list[Callable[[], object]] = []
        super().__init__(self._turns)
        self._turns.end_with(asyncio.Handle(self._end_turn, (), self))

    def at_end_of_turn(self, callback: Callable[[], object]) -> None:
        """Call it when all that could be read in this turn was read; in the next turn if that moment is over."""
        if self._turns.is_open:
            self._last.append(callback)
        else:
            self.call_soon(callback)

    def _end_turn(self) -> None:
        self._turns.is_open = False
        last, self._last = self._last, []
        for callback in last:
            try:
                callback()
            except Exception as error:
                self.call_exception_handler({"message": "the end of a turn failed", "exception": error})
