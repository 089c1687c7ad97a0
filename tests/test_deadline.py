"""One timer for moments that are nearly always taken back."""

from __future__ import annotations

import asyncio
from collections.abc import Callable

from ottla.deadline import NEVER, Deadline
from ottla.sim.loop import SimLoop


def when_it_goes_off(play: Callable[[Deadline, SimLoop], None]) -> list[float]:
    loop = SimLoop(1)
    moments: list[float] = []

    async def main() -> None:
        play(Deadline(loop, lambda: moments.append(round(loop.time(), 3))), loop)
        await asyncio.sleep(100)

    try:
        loop.run_until_complete(main())
    finally:
        loop.close()
    return moments


def test_it_goes_off_once_when_the_moment_comes() -> None:
    assert when_it_goes_off(lambda deadline, loop: deadline.set(2.0)) == [2.0]


def test_the_soonest_moment_counts() -> None:
    def play(deadline: Deadline, loop: SimLoop) -> None:
        for at in (5.0, 3.0, 9.0):
            deadline.set(at)

    assert when_it_goes_off(play) == [3.0]


def test_what_is_taken_back_does_not_happen() -> None:
    def play(deadline: Deadline, loop: SimLoop) -> None:
        deadline.set(2.0)
        deadline.clear()

    assert when_it_goes_off(play) == []


def test_a_later_moment_after_one_that_was_taken_back() -> None:
    """The timer of the first is still under way: it goes off too early, and looks again."""

    def play(deadline: Deadline, loop: SimLoop) -> None:
        deadline.set(2.0)
        deadline.clear()
        deadline.set(7.0)

    assert when_it_goes_off(play) == [7.0]


def test_a_sooner_moment_after_one_that_was_taken_back() -> None:
    def play(deadline: Deadline, loop: SimLoop) -> None:
        deadline.set(7.0)
        deadline.clear()
        deadline.set(2.0)

    assert when_it_goes_off(play) == [2.0]


def test_it_can_be_set_again_when_it_goes_off_and_later() -> None:
    def play(deadline: Deadline, loop: SimLoop) -> None:
        deadline.set(2.0)
        loop.call_at(2.5, deadline.set, 4.0)
        loop.call_at(6.0, deadline.set, 5.0)  # that is over: at once

    assert when_it_goes_off(play) == [2.0, 4.0, 6.0]


def test_never_is_no_moment() -> None:
    assert when_it_goes_off(lambda deadline, loop: deadline.set(NEVER)) == []


def test_a_thousand_moments_that_are_taken_back_are_one_timer() -> None:
    async def main() -> int:
        loop = asyncio.get_running_loop()
        deadline = Deadline(loop, lambda: None)
        for number in range(1000):
            deadline.set(loop.time() + 60 + number)
            deadline.clear()
        timers = len(loop._scheduled)  # type: ignore[attr-defined]
        deadline.close()
        return timers

    assert asyncio.run(main()) == 1
