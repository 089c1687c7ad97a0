"""A number that rises during one leadership, and those who wait for it.

This one idea stands where Apache Kafka has purgatories: a produce with acks=all waits until the high watermark reaches
its last offset + 1, a fetch that found too little watches for any rise. When the leadership ends the number is closed and
whoever waits gets the error; the next leadership starts with a new Rising, because the number itself may fall.

A waiter that gives up is forgotten at once, so a million expired waits on an idle partition leave nothing behind.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable


class Rising:
    __slots__ = ("_error", "_waiters", "_watchers", "value")

    def __init__(self, value: int) -> None:
        self.value = value
        self._error: BaseException | None = None
        self._waiters: dict[asyncio.Future[None], int] = {}
        self._watchers: dict[Callable[[], None], None] = {}

    def rise(self, value: int) -> None:
        """Move up to `value`; a lower or equal one changes nothing."""
        if value <= self.value:
            return
        self.value = value
        if self._waiters:
            for future in [f for f, wanted in self._waiters.items() if wanted <= value]:
                del self._waiters[future]
                if not future.done():
                    future.set_result(None)
        if self._watchers:
            self._notify()

    async def reaches(self, value: int, seconds: float | None = None) -> None:
        """Return once the number is at least `value`; raise the closing error if it never will be.

        TimeoutError after `seconds`: an own timer, because `asyncio.wait_for` needs a task and handlers run without one.
        """
        if self.value >= value:
            return
        if self._error is not None:
            raise self._error.with_traceback(None)  # or each raise of the one error would keep its frames for ever
        loop = asyncio.get_running_loop()
        future: asyncio.Future[None] = loop.create_future()
        self._waiters[future] = value
        timer = None if seconds is None else loop.call_later(seconds, _expire, future)
        try:
            await future
        finally:
            self._waiters.pop(future, None)
            if timer is not None:
                timer.cancel()

    def dismiss(self, above: int, error: BaseException) -> None:
        """Whoever waits for more than `above` waits in vain and gets `error`; the number itself goes on."""
        for future in [f for f, wanted in self._waiters.items() if wanted > above]:
            del self._waiters[future]
            if not future.done():
                future.set_exception(error)

    def watch(self, callback: Callable[[], None]) -> None:
        """Call back at every rise, and at the close, until `unwatch`."""
        self._watchers[callback] = None

    def unwatch(self, callback: Callable[[], None]) -> None:
        self._watchers.pop(callback, None)

    def close(self, error: BaseException) -> None:
        """The leadership is over: everybody who waits gets `error`, and so does whoever would wait later."""
        self._error = error
        waiters, self._waiters = self._waiters, {}
        for future in waiters:
            if not future.done():
                future.set_exception(error)
        self._notify()

    @property
    def closed(self) -> bool:
        return self._error is not None

    @property
    def waiting(self) -> int:
        return len(self._waiters) + len(self._watchers)

    def _notify(self) -> None:
        for callback in list(self._watchers):
            callback()


def _expire(future: asyncio.Future[None]) -> None:
    if not future.done():
        future.set_exception(TimeoutError())
