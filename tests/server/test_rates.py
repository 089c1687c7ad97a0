"""Rates and buckets: how long a client that was too fast has to wait. The figures are those of Kafka's formulas."""

from __future__ import annotations

import math
import random

from ottla.server.rates import THROTTLE_MS_MAX, Bucket, Rate, Windows

USUAL = Windows(11, 1000)


def test_a_burst_after_silence_is_spread_over_all_windows_but_the_last() -> None:
    """KIP-13: 2,000 in the first millisecond are 200 a second over ten seconds; at 100 a second that is ten too many."""
    rate = Rate(USUAL)
    rate.record(2000, 50_000)
    assert rate.excess_ms(100, 50_000) == 10_000
    assert rate.excess_ms(200, 50_000) == 0
    assert rate.excess_ms(199, 50_000) == 50


def test_a_steady_rate_below_the_limit_never_waits_and_one_above_it_does() -> None:
    slow, fast = Rate(USUAL), Rate(USUAL)
    waits = 0
    for now_ms in range(0, 60_000, 100):
        slow.record(9, now_ms)
        fast.record(11, now_ms)
        assert slow.excess_ms(100, now_ms) == 0
        waits += fast.excess_ms(100, now_ms) > 0
    assert waits > 400


def test_samples_leave_after_all_windows() -> None:
    rate = Rate(USUAL)
    rate.record(5000, 0)
    assert rate.total(10_999) == 5000
    assert rate.total(11_000) == 0
    assert rate.excess_ms(1, 11_000) == 0


def test_what_is_taken_back_does_not_count() -> None:
    rate = Rate(USUAL)
    rate.record(5000, 10)
    rate.record(-5000, 10)
    assert rate.total(20) == 0


def test_odd_limits_make_nobody_wait_or_overflow() -> None:
    rate = Rate(Windows(2, 1000))
    rate.record(1e18, 0)
    assert rate.excess_ms(math.inf, 0) == rate.excess_ms(math.nan, 0) == 0
    assert rate.excess_ms(1e-9, 0) == THROTTLE_MS_MAX


def test_a_bucket_is_full_at_first_may_be_overdrawn_once_and_fills_again() -> None:
    """KIP-599: eleven windows of one second at 2 a second are 22."""
    bucket = Bucket(USUAL)
    bucket.take(22, 2, 5000)
    assert bucket.excess_ms(2, 5000) == 0
    bucket.take(10, 2, 5000)
    assert bucket.excess_ms(2, 5000) == 5000
    assert bucket.excess_ms(2, 8000) == 2000
    assert bucket.excess_ms(2, 10_000) == 0
    bucket.take(22, 2, 500_000)
    assert bucket.excess_ms(2, 500_000) == 0, "it never holds more than all windows together"
    bucket.take(1, 2, 500_000)
    assert bucket.excess_ms(2, 500_000) == 500


class Plain:
    """The same by the book: nothing is kept but the samples, and they are looked at one by one."""

    def __init__(self, windows: Windows) -> None:
        self.windows = windows
        self.samples: list[list[float]] = []  # start, last event, value
        self.current = -1

    def record(self, value: float, now_ms: int) -> None:
        if self.current < 0 or now_ms - self.samples[self.current][0] >= self.windows.size_ms:
            self.current = (self.current + 1) % (self.windows.samples + 1)
            self.samples[self.current : self.current + 1] = [[now_ms, now_ms, 0.0]]
        self.samples[self.current][1] = now_ms
        self.samples[self.current][2] += value

    def excess_ms(self, limit: float, now_ms: int) -> int:
        count, size_ms = self.windows
        self.samples = [s if now_ms - s[1] < count * size_ms else [now_ms, now_ms, 0.0] for s in self.samples]
        elapsed = int(now_ms - min(sample[0] for sample in self.samples))
        span_ms = max(1, elapsed + max(0, count - 1 - elapsed // size_ms) * size_ms)
        rate = sum(sample[2] for sample in self.samples) / span_ms * 1000
        return math.floor((rate - limit) / limit * span_ms + 0.5) if rate > limit else 0


def test_the_quick_way_gives_the_same_as_the_plain_one() -> None:
    """Loads that change and pause, in windows of several lengths."""
    rng = random.Random(7)
    waits = 0
    for _ in range(60):
        windows = Windows(rng.choice([1, 2, 3, 11]), rng.choice([100, 1000]))
        quick, plain, now_ms = Rate(windows), Plain(windows), rng.randrange(10**6)
        limit = float(rng.choice([10, 100, 1000]))
        for _ in range(100):
            now_ms += rng.choice([0, 1, 50, 100, 1000, windows.samples * windows.size_ms + rng.randrange(3)])
            value = rng.randrange(1, 400)
            quick.record(value, now_ms)
            plain.record(value, now_ms)
            for pause_ms in (0, rng.choice([0, 99, 1000])):
                now_ms += pause_ms
                expected = plain.excess_ms(limit, now_ms)
                assert abs(quick.excess_ms(limit, now_ms) - expected) <= 1
                waits += expected > 0
    assert waits > 500
