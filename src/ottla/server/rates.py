"""How fast something goes, measured as Apache Kafka measures it, so that the same load is slowed down by the same time.

A `Rate` keeps what came in a number of windows, the last of them unfinished. It is measured over all of them, also over
those in which nothing was recorded yet: a burst after silence counts as if it had been spread over the whole time.

A `Bucket` is for few and large things (KIP-599): it fills at the rate of the quota up to what all windows together allow,
and may be overdrawn once.
"""

from __future__ import annotations

import math
from typing import NamedTuple

# What fits into the field of an answer.
THROTTLE_MS_MAX = 2**31 - 1


class Windows(NamedTuple):
    """So many samples of such a length."""

    samples: int
    size_ms: int

    @property
    def seconds(self) -> float:
        return self.samples * self.size_ms / 1000


class Sample:
    __slots__ = ("last_ms", "start_ms", "value")

    def __init__(self, now_ms: int) -> None:
        self.reset(now_ms)

    def reset(self, now_ms: int) -> None:
        self.start_ms = self.last_ms = now_ms
        self.value = 0.0


class Rate:
    __slots__ = ("_current", "_good_until_ms", "_samples", "_total", "_windows")

    def __init__(self, windows: Windows) -> None:
        self._windows = windows
        self._samples: list[Sample] = []
        self._current = 0
        self._total = 0.0  # of all samples, as long as none of them is too old
        self._good_until_ms = 0

    def record(self, value: float, now_ms: int) -> None:
        sample = self._sample(now_ms)
        sample.value += value
        sample.last_ms = now_ms
        self._total += value

    def _sample(self, now_ms: int) -> Sample:
        samples = self._samples
        if samples and now_ms - samples[self._current].start_ms < self._windows.size_ms:
            return samples[self._current]
        # One more than there are windows, for the one that is leaving.
        self._current = (self._current + 1) % (self._windows.samples + 1) if samples else 0
        if self._current == len(samples):
            samples.append(Sample(now_ms))
        else:
            samples[self._current].reset(now_ms)
        self._add_up(now_ms)
        return samples[self._current]

    def total(self, now_ms: int) -> float:
        """All that came in the windows up to now."""
        if now_ms >= self._good_until_ms:
            self._add_up(now_ms)
        return self._total

    def _add_up(self, now_ms: int) -> None:
        expired_ms = self._windows.samples * self._windows.size_ms
        for sample in self._samples:
            if now_ms - sample.last_ms >= expired_ms:
                sample.reset(now_ms)
        self._total = math.fsum(sample.value for sample in self._samples)
        self._good_until_ms = min((sample.last_ms for sample in self._samples), default=now_ms) + expired_ms

    def _span_ms(self, now_ms: int) -> int:
        """How long the windows are; those that have not begun yet are counted as whole."""
        count, size_ms = self._windows
        elapsed = now_ms - min((sample.start_ms for sample in self._samples), default=now_ms)
        missing = max(0, count - 1 - elapsed // size_ms)
        return max(elapsed + missing * size_ms, 1)

    def excess_ms(self, limit: float, now_ms: int) -> int:
        """For how long nothing may come until the rate is `limit` a second again; 0 if it is not above that."""
        total = self.total(now_ms)
        if total <= limit * (self._windows.samples - 1) * self._windows.size_ms / 1000:
            return 0  # the span is never shorter
        span_ms = self._span_ms(now_ms)
        rate = total / (span_ms / 1000)
        return _rounded((rate - limit) / limit * span_ms) if rate > limit else 0


class Bucket:
    __slots__ = ("_filled_ms", "_tokens", "_windows")

    def __init__(self, windows: Windows) -> None:
        self._windows = windows
        self._tokens = 0.0
        self._filled_ms: int | None = None

    def take(self, count: float, limit: float, now_ms: int) -> None:
        self._fill(limit, now_ms)
        self._tokens -= count

    def excess_ms(self, limit: float, now_ms: int) -> int:
        """How long it takes until the bucket is not overdrawn any more."""
        self._fill(limit, now_ms)
        return _rounded(-self._tokens / limit * 1000) if self._tokens < 0 else 0

    def _fill(self, limit: float, now_ms: int) -> None:
        full = limit * self._windows.seconds
        gained = full if self._filled_ms is None else limit * (now_ms - self._filled_ms) / 1000
        self._tokens = min(full, self._tokens + gained)
        self._filled_ms = now_ms


def _rounded(ms: float) -> int:
    return min(math.floor(ms + 0.5), THROTTLE_MS_MAX) if ms < THROTTLE_MS_MAX else THROTTLE_MS_MAX
