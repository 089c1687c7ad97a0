"""Rates and buckets: how long a client that was too fast has to wait. The figures are those of Kafka's formulas."""

from __future__ import annotations

import math

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
