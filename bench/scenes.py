"""The loads, gathered by the server they need: each scene starts a server on a fresh directory and yields figures.

A scene is given the server, how large to be, and which lines are wanted; it puts what it measured into a Tally. Each
load runs to warm up (a JIT compiler needs it, and so does the page cache) and then as often as asked.
"""

from __future__ import annotations

import contextlib
import os
import statistics
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Protocol

from bench import client, drivers
from bench.drivers import CannotMeasure, Figures
from bench.limit import TOPIC, Nothing
from harness import Server

PARTITIONS = 6
KILL_PARTITIONS = 170

# A JIT compiler goes on learning for ten seconds of small requests; to measure before that would flatter us.
REQUEST_WARM_UPS = 4


@dataclass(frozen=True)
class Size:
    """How much of everything; `quick` is for trying the benchmark itself."""

    repeats: int = 3
    messages_100: int = 3_000_000
    messages_1k: int = 600_000
    seconds: float = 3.0
    latency_seconds: float = 5.0
    kill_messages: int = 3_000_000
    big_messages: int = 10_000_000
    partitions: int = 10_000
    connections: int = 5_000
    groups: int = 2_000
    members: int = 200
    churn_seconds: float = 60.0
    offsets: int = 1_000_000


QUICK = Size(1, 300_000, 60_000, 1.0, 1.0, 100_000, 500_000, 500, 500, 200, 20, 5.0, 50_000)


@dataclass
class Tally:
    """Figures by line, one for each repetition."""

    wanted: frozenset[str]
    say: Callable[[str], None]
    figures: dict[str, list[float]] = field(default_factory=dict)
    costs: dict[str, list[float]] = field(default_factory=dict)

    def wants(self, *keys: str) -> bool:
        return bool(self.wanted.intersection(keys))

    def add(self, key: str, value: float) -> None:
        if key in self.wanted:
            self.figures.setdefault(key, []).append(value)
            self.say(f"{key} {value:,.2f}")

    def add_rate(self, key: str, figures: Figures, unit: str = "per_second") -> None:
        """A rate, and what each message or request cost the broker's processors."""
        self.add(key, figures[unit])
        if key in self.wanted:
            self.costs.setdefault(key, []).append(figures["cpu_us_each"])

    def failed(self, key: str, error: Exception) -> None:
        self.say(f"{key} could not be measured: {error}")


class Scene(Protocol):
    def __call__(self, server: Server, size: Size, tally: Tally) -> None: ...


def rounds(size: Size, warm_ups: int = 1) -> Iterator[bool]:
    """False for each warm-up, then True for each repetition."""
    yield from [False] * warm_ups
    yield from [True] * size.repeats


@contextlib.contextmanager
def attempt(tally: Tally, key: str) -> Iterator[None]:
    """A load that cannot run costs its own line only."""
    try:
        yield
    except (CannotMeasure, OSError) as error:
        tally.failed(key, error)


def everyday(server: Server, size: Size, tally: Tally) -> None:
    """One server for most lines: memory when idle, bulk, small requests, latency, memory after all that, starts."""
    server.start()
    time.sleep(3)
    tally.add("memory-idle", server.rss_bytes() / 1e6)
    bulk_loads(server, size, tally)
    small_requests(server, size, tally)
    latencies(server, size, tally)
    if tally.wants("memory-loaded"):
        tally.add("memory-loaded", server.rss_bytes() / 1e6)
    synced_acks(server, size, tally)
    ten_consumers(server, size, tally)
    connections(server, size, tally)
    starts(server, size, tally)
    server.stop()


def bulk_loads(server: Server, size: Size, tally: Tally) -> None:
    for name, count, value in (("100", size.messages_100, 100), ("1k", size.messages_1k, 1024)):
        if tally.wants(f"produce-{name}", f"consume-{name}", "memory-loaded"):
            with attempt(tally, f"produce-{name}"):
                bulk_load(server, size, tally, name, count, value)


def bulk_load(server: Server, size: Size, tally: Tally, name: str, count: int, value: int) -> None:
    topic = f"bulk-{name}"
    client.make_topic(server, topic, PARTITIONS)
    for counts in rounds(size):
        written = costed(server, lambda: drivers.bulk(server, "produce", topic, PARTITIONS, count, value))
        if counts:
            tally.add_rate(f"produce-{name}", written)
    for counts in rounds(size):
        read = costed(server, lambda: drivers.bulk(server, "consume", topic, PARTITIONS, count))
        if counts:
            tally.add_rate(f"consume-{name}", read)


def small_requests(server: Server, size: Size, tally: Tally) -> None:
    loads: list[tuple[str, int, Callable[[], Figures]]] = [
        ("small-produce", 1, lambda: drivers.raw(server, "produce", "small", size.seconds, 20, 5, 1, 100)),
        ("small-fetch", 1, lambda: drivers.raw(server, "fetch", "small", size.seconds, 20, 5, 1000, 10_000)),
        (
            "produce-100-partitions",
            100,
            lambda: drivers.raw(server, "produce", "hundred", size.seconds, 10, 2, 100, 100),
        ),
    ]
    for key, partitions, load in loads:
        if not tally.wants(key) and not (key == "small-produce" and tally.wants("small-fetch")):
            continue
        with attempt(tally, key):
            client.make_topic(server, "small" if partitions == 1 else "hundred", partitions)
            for counts in rounds(size, REQUEST_WARM_UPS):
                figures = costed(server, load)
                if counts:
                    tally.add_rate(key, figures)


def latencies(server: Server, size: Size, tally: Tally) -> None:
    limit_of_acks(server, size, tally)
    for name, rate in (("1k", 1000), ("10k", 10_000)):
        keys = [f"ack-{name}-{p}" for p in ("p50", "p99")]
        if not tally.wants(*keys):
            continue
        with attempt(tally, keys[0]):
            client.make_topic(server, "paced")
            for counts in rounds(size):
                figures = drivers.bulk(server, "ack", "paced", rate, size.latency_seconds, 100)
                if counts:
                    tally.add(keys[0], figures["p50_us"])
                    tally.add(keys[1], figures["p99_us"])


def limit_of_acks(server: Server, size: Size, tally: Tally) -> None:
    """The same load on a server that does nothing, while the one that is measured rests."""
    if not tally.wants("ack-10k-limit"):
        return
    nothing = Nothing(Path(server.directory).parent / "nothing")
    nothing.start()
    try:
        for counts in rounds(size):
            figures = drivers.bulk(nothing, "ack", TOPIC, 10_000, size.latency_seconds, 100)
            if counts:
                tally.add("ack-10k-limit", figures["p50_us"])
    finally:
        nothing.kill()


def synced_acks(server: Server, size: Size, tally: Tally) -> None:
    if not tally.wants("fsync-produce"):
        return
    with attempt(tally, "fsync-produce"):
        client.make_topic(server, "synced", 1, {"flush.messages": "1"})
        for counts in rounds(size):
            figures = costed(server, lambda: drivers.raw(server, "produce", "synced", size.seconds, 20, 5, 1, 100))
            if counts:
                tally.add_rate("fsync-produce", figures)


def ten_consumers(server: Server, size: Size, tally: Tally) -> None:
    if not tally.wants("ten-consumers"):
        return
    with attempt(tally, "ten-consumers"):
        client.make_topic(server, "shared", PARTITIONS)
        drivers.bulk(server, "produce", "shared", PARTITIONS, size.messages_1k, 1024)
        for counts in rounds(size):
            figures = costed(server, lambda: drivers.raw(server, "stream", "shared", 120, 10, PARTITIONS, 1_048_576))
            if counts:
                tally.add_rate("ten-consumers", figures, "mb_per_second")


def connections(server: Server, size: Size, tally: Tally) -> None:
    if not tally.wants("connections-memory"):
        return
    with attempt(tally, "connections-memory"):
        before = server.rss_bytes()
        with client.idle_connections(server, size.connections):
            time.sleep(1)
            tally.add("connections-memory", (server.rss_bytes() - before) / 1e6)


def starts(server: Server, size: Size, tally: Tally) -> None:
    """From a clean stop: how long until the first record is acknowledged."""
    if not tally.wants("start"):
        return
    client.make_topic(server, "first")
    with attempt(tally, "start"):
        for _ in range(size.repeats):
            server.stop()
            begun = time.monotonic()
            server.launch()
            client.wait_first_ack(server, "first")
            tally.add("start", time.monotonic() - begun)


def killed(server: Server, size: Size, tally: Tally) -> None:
    """3 GB in 170 partitions, producers at work, kill -9, and at once a new start."""
    server.start()
    client.make_topic(server, "many", KILL_PARTITIONS)
    drivers.bulk(server, "produce", "many", KILL_PARTITIONS, size.kill_messages, 1024)
    for _ in range(size.repeats):
        load = drivers.start(drivers.raw_command(server, "produce", "many", 600, 10, 2, KILL_PARTITIONS, 100))
        try:
            time.sleep(2)
            server.kill()
        finally:
            load.kill()
            load.wait()
        begun = time.monotonic()
        server.launch()
        client.wait_first_ack(server, "many")
        tally.add("kill", time.monotonic() - begun)
        time.sleep(1)
    server.stop(60)


def many_partitions(server: Server, size: Size, tally: Tally) -> None:
    """Ten thousand partitions that nobody uses."""
    server.start()
    topics = max(1, size.partitions // 1000)
    for n in range(topics):
        client.make_topic(server, f"idle-{n}", size.partitions // topics)
    time.sleep(10 if size.repeats > 1 else 2)
    for _ in range(size.repeats):
        before, begun = server.cpu_seconds(), time.monotonic()
        time.sleep(5)
        tally.add("partitions-cpu", 100 * (server.cpu_seconds() - before) / (time.monotonic() - begun))
        tally.add("partitions-memory", server.rss_bytes() / 1e6)
    server.stop(120)


def big_log(server: Server, size: Size, tally: Tally) -> None:
    """One partition that grows from 100 MB to 10 GB: what an append and a read at its tail cost; then a cold replay."""
    server.start()
    for topic in ("big", "tail"):
        client.make_topic(server, topic)
    if tally.wants("append-growth", "tail-read-growth"):
        drivers.bulk(server, "produce", "big", 1, 100_000, 1024)
        append_cost(server, size)
        before = append_cost(server, size), tail_read_cost(server, size)
        drivers.bulk(server, "produce", "big", 1, size.big_messages, 1024)
        after = append_cost(server, size), tail_read_cost(server, size)
        tally.add("append-growth", after[0] / before[0])
        tally.add("tail-read-growth", after[1] / before[1])
    elif tally.wants(*TAIL):
        drivers.bulk(server, "produce", "big", 1, size.big_messages, 1024)
    with attempt(tally, "tail-quiet-p99"):
        replay(server, size, tally)
    server.stop(60)


def append_cost(server: Server, size: Size) -> float:
    """Processor time of the broker for one small produce; the median of three, because it is compared with itself."""
    return _cost(server, lambda: drivers.raw(server, "produce", "big", size.seconds, 20, 5, 1, 100))


def tail_read_cost(server: Server, size: Size) -> float:
    base = client.log_end(server, "big") - 10_000
    return _cost(server, lambda: drivers.raw(server, "fetch", "big", size.seconds, 20, 5, 1000, 9000, base))


def _cost(server: Server, load: Callable[[], Figures]) -> float:
    return statistics.median(costed(server, load)["cpu_us_each"] for _ in range(3))


def costed(server: Server, load: Callable[[], Figures]) -> Figures:
    """A load's figures, and with them the broker's processor time for each message or request."""
    before = server.cpu_seconds()
    figures = load()
    return {**figures, "cpu_us_each": 1e6 * (server.cpu_seconds() - before) / figures["count"]}


def replay(server: Server, size: Size, tally: Tally) -> None:
    """How late the tail is read while old data comes from the disk."""
    if not tally.wants(*TAIL):
        return
    drivers.bulk(server, "tail", "tail", 1000, size.latency_seconds, 100)
    for _ in range(size.repeats):
        quiet = drivers.bulk(server, "tail", "tail", 1000, size.latency_seconds, 100)["p99_us"]
        evict(server.directory / "big-0")
        reader = drivers.start(drivers.raw_command(server, "stream", "big", 600, 1, 1, 1_048_576))
        try:
            busy = drivers.bulk(server, "tail", "tail", 1000, size.latency_seconds, 100)["p99_us"]
        finally:
            reader.kill()
            reader.wait()
        tally.add("tail-quiet-p99", quiet)
        tally.add("tail-replay-p99", busy)
        tally.add("tail-replay-cost", busy / quiet)


def evict(directory: Path) -> None:
    """Drops a directory's files from the page cache, so that reading them is reading a disk."""
    for path in directory.glob("*.log"):
        fd = os.open(path, os.O_RDONLY)
        try:
            os.fsync(fd)
            os.posix_fadvise(fd, 0, 0, os.POSIX_FADV_DONTNEED)
        finally:
            os.close(fd)


EVERYDAY = [
    *("produce-100", "produce-1k", "consume-100", "consume-1k"),
    *("small-produce", "small-fetch", "produce-100-partitions"),
    *("ack-1k-p50", "ack-1k-p99", "ack-10k-p50", "ack-10k-p99", "ack-10k-limit"),
    *("start", "memory-idle", "memory-loaded", "fsync-produce", "ten-consumers", "connections-memory"),
]
TAIL = ["tail-quiet-p99", "tail-replay-p99", "tail-replay-cost"]
BIG = ["append-growth", "tail-read-growth", *TAIL]

# Which lines each scene yields, so that a scene nobody asked for is not played.
SCENES: dict[str, tuple[Scene, frozenset[str]]] = {
    "everyday": (everyday, frozenset(EVERYDAY)),
    "killed": (killed, frozenset({"kill"})),
    "partitions": (many_partitions, frozenset({"partitions-memory", "partitions-cpu"})),
    "big": (big_log, frozenset(BIG)),
}
