"""Logs to compact, a workshop that works at once, and what is left afterwards."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeVar

from ottla.log import compaction
from ottla.log.compacting import Outcome
from ottla.log.compaction import Dirt, Tools
from ottla.log.log import Log
from ottla.log.producers import Origin
from ottla.log.settings import LogSettings
from ottla.wire.records import Batch, Record, batches, build, end_marker, iterate
from ottla.world import UNLIMITED

T = TypeVar("T")

NOW_MS = 1_767_225_600_000
COMPACT = LogSettings(
    cleanup_policy=frozenset({"compact"}), segment_bytes=1000, index_interval_bytes=200, delete_retention_ms=1000
)
TOOLS = Tools(map_bytes=1 << 20, chunk_bytes=4096, bytes_per_second=UNLIMITED)


class Here:
    """Works at once, in this process."""

    async def work(self, call: Callable[..., T], *args: Any) -> T:
        return call(*args)

    toil = work

    def close(self) -> None:
        pass


class Between(Here):
    """Lets something happen after the child has done its work, and before the node learns of it."""

    def __init__(self, then: Callable[[], None]) -> None:
        self._then = then

    async def toil(self, call: Callable[..., T], *args: Any) -> T:
        done = call(*args)
        self._then()
        return done


async def clean(
    log: Log, *, now_ms: int = NOW_MS, tools: Tools = TOOLS, workshop: Here | None = None, upto: int | None = None
) -> list[Outcome]:
    """A round whatever the ratio, over all closed segments."""
    await log.flush()
    dirt = compaction.survey(log, now_ms, log.end_offset if upto is None else upto)
    return await compaction.perform(log, dirt, now_ms, tools, workshop or Here())


def dirt_of(log: Log, now_ms: int = NOW_MS, high_watermark: int | None = None) -> Dirt:
    return compaction.survey(log, now_ms, log.end_offset if high_watermark is None else high_watermark)


def keyed(log: Log, *pairs: tuple[bytes, bytes | None], timestamp: int = NOW_MS, **options: Any) -> int:
    """One batch of records with these keys and values; its first offset."""
    data = build([Record(timestamp=timestamp, key=key, value=value) for key, value in pairs], **options)
    first = log.append(memoryview(bytearray(data)), Origin.CLIENT, 0, NOW_MS).first_offset
    log.publish()
    return first


def transactional(log: Log, producer_id: int, sequence: int, *pairs: tuple[bytes, bytes | None], epoch: int = 0) -> int:
    return keyed(log, *pairs, producer_id=producer_id, producer_epoch=epoch, base_sequence=sequence, transactional=True)


def decide(log: Log, producer_id: int, commit: bool, epoch: int = 0) -> int:
    marker = end_marker(commit, NOW_MS, producer_id=producer_id, producer_epoch=epoch, coordinator_epoch=0)
    first = log.append(memoryview(bytearray(marker)), Origin.COORDINATOR, 0, NOW_MS).first_offset
    log.publish()
    return first


async def contents(log: Log, at_a_time: int = 500) -> list[tuple[Batch, bytes]]:
    """Every batch, read as a consumer would."""
    found: list[tuple[Batch, bytes]] = []
    offset = log.start_offset
    while offset < log.end_offset:
        located = await log.read(offset, at_a_time, log.end_offset)
        if not located.size:
            break
        data = located.read()
        for position, head in batches(data):
            assert head.next_offset > offset, "a reader is led back"
            found.append((head, bytes(data[position : position + head.size])))
            offset = head.next_offset
    return found


async def records(log: Log) -> list[Record]:
    return [record for head, data in await contents(log) if not head.is_control for record in iterate(data)]


async def offsets(log: Log) -> list[int]:
    return [record.offset for record in await records(log)]
