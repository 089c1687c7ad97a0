"""Logs on a simulated or a real disk, and batches to put into them."""

from __future__ import annotations

import asyncio
import random
from collections.abc import Callable, Coroutine, Iterable
from typing import Any, TypeVar

import pytest

from ottla.log.files import OpenFiles
from ottla.log.log import Log
from ottla.log.producers import Origin
from ottla.log.settings import LogSettings
from ottla.sim.disk import SimDisk
from ottla.wire.errors import Error, KafkaError
from ottla.wire.records import Batch, Record, batches, build
from ottla.world import Disk

T = TypeVar("T")

NOW_MS = 1_767_225_600_000
SMALL = LogSettings(segment_bytes=4096, index_interval_bytes=512)


def run(coroutine: Coroutine[Any, Any, T]) -> T:
    return asyncio.run(coroutine)


class Clock:
    def __init__(self) -> None:
        self.now_ms = NOW_MS

    def __call__(self) -> int:
        return self.now_ms


def make_log(
    disk: Disk | None = None,
    settings: LogSettings = SMALL,
    directory: str = "/data/topic-0",
    clock: Clock | None = None,
) -> Log:
    """An empty log, ready for appends."""
    disk = disk or SimDisk()
    disk.make_directory(directory)
    log = closed_log(disk, settings, directory, clock)
    log.load(clean=True)
    return log


def closed_log(
    disk: Disk, settings: LogSettings = SMALL, directory: str = "/data/topic-0", clock: Clock | None = None
) -> Log:
    """A log object over what lies in the directory, not loaded yet."""
    return Log(disk, OpenFiles(disk), directory, "topic", 0, settings, clock or Clock(), random.Random(1))


def reopen(
    log: Log, *, clean: bool = True, recovery_point: int = 0, start_offset: int = 0, disk: Disk | None = None
) -> Log:
    """The log as the next process would load it."""
    again = closed_log(disk or log.disk, log.settings, log.directory)
    again.load(clean=clean, recovery_point=recovery_point, start_offset=start_offset)
    return again


def batch(count: int = 1, *, value: bytes = b"value", timestamp: int = NOW_MS, **options: Any) -> memoryview:
    """A client's batch, in a buffer that the log may write into."""
    records = [Record(timestamp=timestamp, key=b"key", value=value) for _ in range(count)]
    return memoryview(bytearray(build(records, **options)))


def put(log: Log, *data: memoryview, origin: Origin = Origin.CLIENT, epoch: int = 0, now_ms: int = NOW_MS) -> list[int]:
    """Append and publish; the first offsets."""
    firsts = [log.append(one, origin, epoch, now_ms).first_offset for one in data]
    log.publish()
    return firsts


def fill(log: Log, count: int, size: int = 100, step_ms: int = 1) -> None:
    """`count` batches of two records each."""
    for number in range(count):
        put(log, batch(2, value=b"x" * size, timestamp=NOW_MS + number * step_ms))


def read_batches(log: Log, offset: int, bytes_max: int = 1 << 20, bound: int | None = None) -> list[Batch]:
    located = run(log.read(offset, bytes_max, log.end_offset if bound is None else bound))
    if located.size == 0:
        return []
    return [head for _, head in batches(located.read())]


def offsets(heads: Iterable[Batch]) -> list[int]:
    return [head.base_offset for head in heads]


def refusal(call: Callable[..., object], *args: object, **options: object) -> Error:
    """What a call is refused with."""
    with pytest.raises(KafkaError) as caught:
        call(*args, **options)
    return caught.value.error
