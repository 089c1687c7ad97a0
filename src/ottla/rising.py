"""A number that rises during one leadership, and those who wait for it.

This one idea stands where Apache Kafka has purgatories: a produce with acks=all waits until the high watermark reaches
its last offset + 1, a fetch that found too little watches for any rise. When the leadership ends the number is closed and
whoever waits gets the error; the next leadership starts with a new Rising, because the number itself may fall.

A waiter that gives up is forgotten at once, so a million expired waits on an idle partition leave nothing behind.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from contextvars import Context, copy_context
from typing import NamedTuple

from ottla.deadline import NEVER, Deadline

Step = Callable[[], None]
Tell = Callable[[Step, Context], None]


class Prompt(asyncio.Future[None]):
    """A future for one who waits, with or without a task. Who has none says where it wants to be told (`told_by`), and goes on
    in the turn of the loop in which the prompt is given, instead of the next one."""

    __slots__ = ("_told",)

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        super().__init__(loop=loop)
        self._told: tuple[Tell, Step, Context] | None = None

    def told_by(self, tell: Tell, step: Step) -> None:
        """`tell` is called once, with the step and the context in which it is to be done: that of whoever waits, as with any
        callback of a future."""
        self._told = tell, step, copy_context()

    def forget(self) -> None:
        """Nobody wants to be told any more."""
        self._told = None

    def give(self, error: BaseException | None = None) -> None:
        """What was waited for is there, or never will be. Only the first counts."""
        if self.done():
            return
        if error is None:
            self.set_result(None)
        else:
            self.set_exception(error)
        if self._told is not None:
            tell, step, context = self._told
            tell(step, context)


class Waiter(NamedTuple):
    value: int
    until: float


class Rising:
    __slots__ = ("_deadline", "_error", "_waiters", "_watchers", "value")

    def __init__(self, value: int) -> None:
        self.value = value
        self._error: BaseException | None = None
        self._deadline: Deadline | None = None
        self._waiters: dict[Prompt, Waiter] = {}
        self._watchers: dict[Callable[[], None], None] = {}

    def rise(self, value: int) -> None:
        """Move up to `value`; a lower or equal one changes nothing."""
        if value <= self.value:
            return
        self.value = value
        if self._waiters:
            for prompt in [prompt for prompt, waiter in self._waiters.items() if waiter.value <= value]:
                del self._waiters[prompt]
                prompt.give()
        if self._watchers:
            self._notify()

    async def reaches(self, value: int, seconds: float | None = None) -> None:
        """Return once the number is at least `value`; raise the closing error if it never will be.

        TimeoutError after `seconds`. `asyncio.wait_for` needs a task, and handlers run without one.
        """
        if self.value >= value:
            return
        if self._error is not None:
            raise self._error.with_traceback(None)  # or each raise of the one error would keep its frames for ever
        deadline = self._deadline
        if deadline is None:
            deadline = self._deadline = Deadline(asyncio.get_running_loop(), self._expire)
        prompt = Prompt(deadline.loop)
        until = NEVER if seconds is None else deadline.loop.time() + seconds
        self._waiters[prompt] = Waiter(value, until)
        deadline.set(until)
        try:
            await prompt
        finally:
            self._waiters.pop(prompt, None)
            if not self._waiters:
                deadline.clear()

    def _expire(self) -> None:
        """Some have waited long enough."""
        assert self._deadline is not None
        now = self._deadline.loop.time()
        for prompt in [prompt for prompt, waiter in self._waiters.items() if waiter.until <= now]:
            del self._waiters[prompt]
            prompt.give(TimeoutError())
        if self._waiters:
            self._deadline.set(min(waiter.until for waiter in self._waiters.values()))

    def dismiss(self, above: int, error: BaseException) -> None:
        """Whoever waits for more than `above` waits in vain and gets `error`; the number itself goes on."""
        for prompt in [prompt for prompt, waiter in self._waiters.items() if waiter.value > above]:
            del self._waiters[prompt]
            prompt.give(error)

    def watch(self, callback: Callable[[], None]) -> None:
        """Call back at every rise, and at the close, until `unwatch`."""
        self._watchers[callback] = None

    def unwatch(self, callback: Callable[[], None]) -> None:
        self._watchers.pop(callback, None)

    def close(self, error: BaseException) -> None:
        """The leadership is over: everybody who waits gets `error`, and so does whoever would wait later."""
        self._error = error
        waiters, self._waiters = self._waiters, {}
        for prompt in waiters:
            prompt.give(error)
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
