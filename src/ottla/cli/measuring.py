"""How fast records go in and out: the work behind `ottla perf` and Kafka's two perf tools.

Latencies are counted per record from the moment it is handed to the producer until its batch is acknowledged. Of very
many records, one in so many is kept for the percentiles, as Kafka's tool does, so that memory stays bounded.
"""

from __future__ import annotations

import asyncio
import random
import time
from collections.abc import Callable, Iterator
from functools import partial
from typing import NamedTuple

from ottla.client.cluster import TopicPartition
from ottla.client.consumer import Consumed
from ottla.client.group import GroupConsumer
from ottla.client.producer import Producer, Sent

SAMPLES_MAX = 500_000
# How many records go into the buffer before the loop gets a turn to send them; how many come out of it at once.
TURN, POLL_RECORDS_MAX = 50, 500
MEGABYTE = 1024 * 1024
LETTERS = bytes(65 + byte % 26 for byte in range(256))


def clock_ms() -> float:
    return time.monotonic() * 1000


class Window(NamedTuple):
    """What happened since the last report, or altogether."""

    records: int
    elapsed_ms: float
    size: int
    latency_total_ms: float
    latency_max_ms: float

    @property
    def per_second(self) -> float:
        return 1000.0 * self.records / max(self.elapsed_ms, 1)

    @property
    def megabytes_per_second(self) -> float:
        return 1000.0 * self.size / max(self.elapsed_ms, 1) / MEGABYTE

    @property
    def latency_mean_ms(self) -> float:
        return self.latency_total_ms / self.records if self.records else 0.0


class Latencies:
    """Counts records as they are acknowledged."""

    def __init__(self, expected: int, interval_ms: float, report: Callable[[Window], None] | None) -> None:
        self.started = self._window_at = clock_ms()
        self.interval_ms = interval_ms
        self.report = report
        self.count = self.bytes = self._window_count = self._window_bytes = 0
        self.total_ms = self.max_ms = self._window_total_ms = self._window_max_ms = 0.0
        self._every = max(1, expected // min(max(expected, 1), SAMPLES_MAX))
        self._samples: list[int] = []

    def add(self, latency_ms: float, size: int, now_ms: float) -> None:
        if self.count % self._every == 0:
            self._samples.append(int(latency_ms))
        self.count += 1
        self.bytes += size
        self.total_ms += latency_ms
        self.max_ms = max(self.max_ms, latency_ms)
        self._window_count += 1
        self._window_bytes += size
        self._window_total_ms += latency_ms
        self._window_max_ms = max(self._window_max_ms, latency_ms)
        if now_ms - self._window_at >= self.interval_ms:
            self._close_window(now_ms)

    def _close_window(self, now_ms: float) -> None:
        if self.report is not None:
            elapsed = now_ms - self._window_at
            self.report(
                Window(self._window_count, elapsed, self._window_bytes, self._window_total_ms, self._window_max_ms)
            )
        self._window_at = now_ms
        self._window_count = self._window_bytes = 0
        self._window_total_ms = self._window_max_ms = 0.0

    def total(self) -> Window:
        return Window(self.count, clock_ms() - self.started, self.bytes, self.total_ms, self.max_ms)

    def percentiles(self, *shares: float) -> list[int]:
        ordered = sorted(self._samples)
        return [ordered[min(int(share * len(ordered)), len(ordered) - 1)] if ordered else 0 for share in shares]


def random_payloads(size: int) -> Iterator[bytes]:
    """Capital letters without end, the same ones in every run."""
    rng = random.Random(0)
    while True:
        yield rng.randbytes(size).translate(LETTERS)


class Producing(NamedTuple):
    topic: str
    records: int
    throughput: float  # records per second; below zero: as fast as possible
    payloads: Iterator[bytes]
    transaction_ms: float | None = None  # a transaction is committed by the first record that comes so late in it


class Transacting:
    """Begins and commits transactions around the records, if there are to be any."""

    def __init__(self, producer: Producer, duration_ms: float | None) -> None:
        self.producer = producer
        self.duration_ms = duration_ms
        self._since_ms: float | None = None

    async def init(self) -> None:
        if self.duration_ms is not None:
            await self.producer.init()

    def before(self) -> None:
        if self.duration_ms is not None and self._since_ms is None:
            self.producer.begin()
            self._since_ms = clock_ms()

    async def after(self, now_ms: float) -> None:
        if self.duration_ms is not None and self._since_ms is not None and now_ms - self._since_ms >= self.duration_ms:
            await self.commit()

    async def commit(self) -> None:
        if self._since_ms is not None:
            await self.producer.commit()
            self._since_ms = None


async def produce(producer: Producer, work: Producing, sinks: Callable[[int], list[Latencies]]) -> list[BaseException]:
    """Send all; `sinks` says who counts the record of that number. What failed is handed back, the rest is counted."""
    failures: list[BaseException] = []
    transacting = Transacting(producer, work.transaction_ms)
    await transacting.init()
    started = clock_ms()

    def acknowledged(since_ms: float, size: int, counting: list[Latencies], future: asyncio.Future[Sent]) -> None:
        error = future.exception()
        if error is not None:
            failures.append(error)
            return
        now_ms = clock_ms()
        for latencies in counting:
            latencies.add(now_ms - since_ms, size, now_ms)

    for number in range(work.records):
        payload = next(work.payloads)
        transacting.before()
        since_ms, counting = clock_ms(), sinks(number)
        future = await producer.post(work.topic, payload)
        future.add_done_callback(partial(acknowledged, since_ms, len(payload), counting))
        await transacting.after(since_ms)
        pause_s = _pause(work.throughput, number, started)
        if pause_s or number % TURN == 0:
            await asyncio.sleep(pause_s)
    await transacting.commit()
    await producer.close()
    await asyncio.sleep(0)  # callbacks of the last batch run in the next turn
    return failures


def _pause(throughput: float, number: int, started_ms: float) -> float:
    """Seconds to wait so that no more than `throughput` records go each second."""
    if throughput < 0:
        return 0.0
    due_ms = started_ms + 1000.0 * number / max(throughput, 1e-9)
    return max(0.0, (due_ms - clock_ms()) / 1000)


class Progress(NamedTuple):
    """How far reading has come; `joining_ms` is the time without any partition."""

    records: int
    bytes: int
    joining_ms: float
    now_ms: float


class Joining:
    """How long the member was without partitions."""

    def __init__(self) -> None:
        self.total_ms = 0.0
        self._since_ms = clock_ms()
        self._owned: set[TopicPartition] = set()

    async def assigned(self, partitions: list[TopicPartition]) -> None:
        if not self._owned:
            self.total_ms += clock_ms() - self._since_ms
        self._owned |= set(partitions)

    async def revoked(self, partitions: list[TopicPartition]) -> None:
        self._owned -= set(partitions)
        if not self._owned:
            self._since_ms = clock_ms()


async def consume(
    consumer: GroupConsumer, joining: Joining, wanted: int, timeout_ms: float, tell: Callable[[Progress], None]
) -> Progress:
    """Read until there are enough, or none came for so long; `tell` hears of every poll."""
    records = size = 0
    heard_ms = clock_ms()
    while records < wanted and clock_ms() - heard_ms <= timeout_ms:
        found = await _next(consumer, heard_ms + timeout_ms - clock_ms())
        if found:
            heard_ms = clock_ms()
        for start in range(0, len(found), POLL_RECORDS_MAX):
            if records >= wanted:
                break
            part = found[start : start + POLL_RECORDS_MAX]
            records += len(part)
            size += sum(len(record.key or b"") + len(record.value or b"") for record in part)
            tell(Progress(records, size, joining.total_ms, clock_ms()))
    return Progress(records, size, joining.total_ms, clock_ms())


async def _next(consumer: GroupConsumer, left_ms: float) -> list[Consumed]:
    task = asyncio.ensure_future(consumer.fetch())
    try:
        await asyncio.wait([task], timeout=max(0.0, left_ms) / 1000)
    finally:
        if not task.done():
            task.cancel()
            await asyncio.wait([task])
    return [] if task.cancelled() else task.result()
