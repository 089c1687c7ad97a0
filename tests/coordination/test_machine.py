"""Alarms: set, put off, cancelled, taken when due."""

from hypothesis import given
from hypothesis import strategies as st

from ottla.coordination.machine import Decision, Timers


def alarm(name: str) -> tuple[str, str, str]:
    return "session", name, ""


def test_an_alarm_that_is_put_off_rings_only_then() -> None:
    timers = Timers()
    timers.set(alarm("a"), 10)
    timers.set(alarm("a"), 20)
    assert timers.take_due(15) == []
    assert timers.take_due(20) == [alarm("a")]
    assert timers.take_due(99) == []


def test_an_alarm_may_be_brought_forward_and_cancelled() -> None:
    timers = Timers()
    timers.set(alarm("a"), 20)
    timers.set(alarm("b"), 30)
    timers.set(alarm("a"), 10)
    timers.cancel(alarm("b"))
    assert timers.next_ms == 10
    assert timers.take_due(50) == [alarm("a")]
    assert timers.next_ms is None


def test_an_alarm_that_another_one_puts_off_or_cancels_in_the_same_moment_does_not_ring() -> None:
    timers, rung = Timers(), []

    def answer(kind: str, name: str, member: str) -> Decision[object]:
        rung.append(name)
        if name == "a":
            timers.set(alarm("b"), 30)
            timers.cancel(alarm("c"))
        return Decision()

    for name in "abcd":
        timers.set(alarm(name), 10)
    for decide in timers.ring(10, answer):
        assert decide() == Decision()
    assert rung == ["a", "d"]
    assert timers.ring(29, answer) == []
    for decide in timers.ring(30, answer):
        decide()
    assert rung == ["a", "d", "b"]


def test_a_million_heartbeats_leave_nothing_behind() -> None:
    timers = Timers()
    for now in range(10_000):
        for name in "abc":
            timers.set(alarm(name), now + 100)
        timers.take_due(now)
    for number in range(10_000):
        timers.set(alarm(str(number)), 10**9)
        timers.cancel(alarm(str(number)))
    assert len(timers._queue) < 100


@given(st.lists(st.tuples(st.sampled_from("abcd"), st.integers(0, 50) | st.none()), max_size=40), st.integers(0, 60))
def test_what_is_due_is_what_was_set_last(steps: list[tuple[str, int | None]], now: int) -> None:
    timers, model = Timers(), {}
    for name, at in steps:
        if at is None:
            timers.cancel(alarm(name))
            model.pop(name, None)
        else:
            timers.set(alarm(name), at)
            model[name] = at
    due = sorted((at, name) for name, at in model.items() if at <= now)
    assert sorted((model[name], name) for _, name, _ in timers.take_due(now)) == due
    left = [at for at in model.values() if at > now]
    assert timers.next_ms is None or not left or timers.next_ms <= min(left)
    assert not left or timers.next_ms is not None
