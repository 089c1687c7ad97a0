"""A number that rises, and those who wait for it."""

from __future__ import annotations

import asyncio
import gc
from typing import Any

import pytest

from ottla.rising import Rising


def run(main):  # type: ignore[no-untyped-def]
    return asyncio.run(main)


def test_whoever_waits_is_woken_when_the_number_is_reached() -> None:
    async def main() -> list[str]:
        mark, seen = Rising(0), []

        async def waits_for(value: int) -> None:
            await mark.reaches(value)
            seen.append(f"{value} at {mark.value}")

        tasks = [asyncio.create_task(waits_for(value)) for value in (3, 1, 2)]
        await asyncio.sleep(0)
        mark.rise(1)
        await asyncio.sleep(0.001)
        mark.rise(3)
        await asyncio.gather(*tasks)
        return seen

    assert run(main()) == ["1 at 1", "3 at 3", "2 at 3"]


def test_a_number_that_was_reached_does_not_suspend() -> None:
    waiting = Rising(5).reaches(5)
    with pytest.raises(StopIteration):
        waiting.send(None)


def test_it_never_falls() -> None:
    mark = Rising(5)
    mark.rise(3)
    assert mark.value == 5


def test_closing_fails_those_who_wait_and_those_who_come_later() -> None:
    async def main() -> None:
        mark = Rising(0)
        task = asyncio.create_task(mark.reaches(1))
        await asyncio.sleep(0)
        mark.close(ValueError("leadership is over"))
        for waiting in (task, mark.reaches(1)):
            with pytest.raises(ValueError, match="over"):
                await waiting
        assert mark.closed

    run(main())


def test_a_wait_with_a_deadline_gives_up() -> None:
    async def main() -> None:
        mark = Rising(0)
        with pytest.raises(TimeoutError):
            await mark.reaches(1, seconds=0.001)
        assert mark.waiting == 0

    run(main())


def test_expired_waits_leave_nothing_behind() -> None:
    async def main() -> None:
        before, mark = pending(), Rising(0)
        for _ in range(2_000):
            task = asyncio.create_task(mark.reaches(1))
            await asyncio.sleep(0)
            task.cancel()
            with pytest.raises(asyncio.CancelledError):
                await task
        assert mark.waiting == 0
        assert pending() <= before

    run(main())


def pending() -> int:
    """Futures that somebody may still wait for; other tests of this process may have left some."""
    gc.collect()
    return sum(isinstance(thing, asyncio.Future) and not thing.done() for thing in gc.get_objects())


def test_watchers_hear_of_every_rise_and_of_the_close() -> None:
    mark, heard = Rising(0), []

    def watcher() -> None:
        heard.append((mark.value, mark.closed))

    mark.watch(watcher)
    mark.rise(1)
    mark.rise(1)
    mark.rise(4)
    mark.close(ValueError())
    mark.unwatch(watcher)
    assert heard == [(1, False), (4, False), (4, True)]
    assert mark.waiting == 0


def test_whoever_has_no_task_is_told_where_it_wants_to_be() -> None:
    """A handler goes on in the turn in which the number rose, when its tick says so."""

    async def main() -> list[str]:
        mark, did, told = Rising(0), [], []
        for name in ("first", "second"):
            waiting = mark.reaches(1)
            prompt = waiting.send(None)

            def step(name: str = name, waiting: Any = waiting) -> None:
                with pytest.raises(StopIteration):
                    waiting.send(None)
                did.append(name)

            prompt._asyncio_future_blocking = False
            prompt.told_by(lambda step, context: told.append((step, context)), step)
        mark.rise(1)
        assert did == []
        for step, context in told:
            context.run(step)
        return did

    assert run(main()) == ["first", "second"]


def test_some_wait_longer_than_others() -> None:
    async def main() -> list[str]:
        mark, did = Rising(0), []

        async def waits(seconds: float) -> None:
            try:
                await mark.reaches(1, seconds)
                did.append(f"{seconds} reached")
            except TimeoutError:
                did.append(f"{seconds} in vain")

        tasks = [asyncio.create_task(waits(seconds)) for seconds in (60.0, 0.01, 0.02)]
        await asyncio.wait(tasks[1:])
        mark.rise(1)
        await tasks[0]
        return did

    assert run(main()) == ["0.01 in vain", "0.02 in vain", "60.0 reached"]
