"""What a node does for its logs when nobody asks: flush, checkpoint, retention, compaction, forgetting producers, removing
files.

Each chore has its own interval from the settings and works through the logs one by one, giving the loop back in between, so
that ten thousand partitions do not stall it. What blocks runs off the loop. A log whose disk failed is left alone: nothing in
it is touched until the next start looks at what the disk really holds.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable
from typing import TYPE_CHECKING

from ottla.log import retention
from ottla.log.flushing import Deleted
from ottla.log.log import Log
from ottla.log.settings import LONG_MAX
from ottla.server.compactions import Compactions
from ottla.wire.errors import KafkaError

if TYPE_CHECKING:
    from ottla.server.node import Node

log_ = logging.getLogger("ottla.upkeep")

# How often rolled segments are looked for that wait for their fsync, and deleted files for their removal.
FLUSH_CHECK_S = 1.0
# How often a full disk is looked at, and those partitions that found no place on it.
ROOM_CHECK_S = 1.0
# Between this many logs the loop gets a turn.
LOGS_PER_TURN = 50


class Upkeep:
    def __init__(self, node: Node) -> None:
        self._node = node
        self._tasks: list[asyncio.Task[None]] = []
        self.compactions = Compactions(node)
        self._unflushed_since: dict[Log, float] = {}
        self._ends: dict[Log, int] = {}  # where each log ended at the last checkpoint

    def start(self) -> None:
        config = self._node.config
        chores: list[tuple[str, Callable[[], float], Callable[[], Awaitable[None]]]] = [
            ("room", lambda: ROOM_CHECK_S, self.find_room),
            ("flush", lambda: FLUSH_CHECK_S, self.flush),
            ("retention", lambda: config["log.retention.check.interval.ms"] / 1000, self.retain),
            ("compaction", lambda: config["log.cleaner.backoff.ms"] / 1000, self.compactions.run),
            ("recovery points", lambda: config["log.flush.offset.checkpoint.interval.ms"] / 1000, self.checkpoint),
            ("laggards", lambda: config["replica.lag.time.max.ms"] / 2000, self.look_for_laggards),
            (
                "watermarks",
                lambda: config["replica.high.watermark.checkpoint.interval.ms"] / 1000,
                self.note_watermarks,
            ),
            ("producer ids", lambda: config["producer.id.expiration.check.interval.ms"] / 1000, self.expire_producers),
        ]
        for name, seconds, chore in chores:
            self._tasks.append(asyncio.create_task(self._repeat(name, seconds, chore), name=name))

    async def stop(self) -> None:
        for task in self._tasks:
            task.cancel()
        for task in self._tasks:
            await asyncio.wait([task])

    async def _repeat(self, name: str, seconds: Callable[[], float], chore: Callable[[], Awaitable[None]]) -> None:
        await asyncio.sleep(min(seconds(), self._node.config["log.initial.task.delay.ms"] / 1000))
        while True:
            try:
                try:
                    await chore()
                except OSError as error:
                    if not self._node.directories.relieve(error):
                        raise
                    log_.error("%s: %s; the ballast was let go", name, error)
                    await chore()
            except (OSError, KafkaError) as error:
                log_.error("%s: %s; will try again", name, error)
            except Exception as error:
                # A defect. A node that never flushes again, or never looks for room, would be worse.
                asyncio.get_running_loop().call_exception_handler({"message": f"{name} failed", "exception": error})
            await asyncio.sleep(seconds())

    async def find_room(self) -> None:
        """Once a full disk has room again, take records again; open what could not be opened; leave what failed to others."""
        for path in await self._node.directories.regain():
            log_.info("%s has room again and takes records", path)
        await self._node.disks.look()
        if self._node.replicas.homeless:
            await self._node.replicas.house()
            self._node.groups.take_up()
            self._node.transactions.take_up()

    async def flush(self) -> None:
        """Closed segments reach the disk soon after they are rolled; so does what has waited for `flush.ms`."""
        logs = self._logs()
        now_ms = asyncio.get_running_loop().time() * 1000  # no clock that anybody can set back
        self._unflushed_since = {log: self._unflushed_since[log] for log in logs if log in self._unflushed_since}
        for number, log in enumerate(logs):
            if log.needs_flush or self._has_waited(log, now_ms):
                self._unflushed_since.pop(log, None)
                await self._sync(log, log.flush())
            if number % LOGS_PER_TURN == 0:
                await asyncio.sleep(0)
        await self._node.directories.sweep()

    async def _sync(self, log: Log, syncing: Awaitable[None]) -> None:
        """A sync that fails is never tried again: what it should have saved may be gone from memory too. Nobody misses what a
        log would have saved that was deleted meanwhile."""
        try:
            await syncing
        except KafkaError as error:
            if isinstance(log.failed, Deleted):
                return
            log_.error("%s: fsync failed, the partition takes no more writes: %s", log.name, error.message)

    def _has_waited(self, log: Log, now_ms: float) -> bool:
        if log.settings.flush_ms == LONG_MAX or not log.unflushed:
            self._unflushed_since.pop(log, None)
            return False
        return now_ms - self._unflushed_since.setdefault(log, now_ms) >= log.settings.flush_ms

    async def retain(self) -> None:
        """Delete segments that are too old or too many. Never past the high watermark."""
        for number, partition in enumerate(self._node.replicas.all()):
            log = partition.log
            if log.failed is not None:
                continue
            freed = await retention.perform(
                log, retention.plan(log, self._node.world.now_ms(), partition.high_watermark.value)
            )
            if freed:
                log_.info("%s: retention freed %d bytes, the log now starts at %d", log.name, freed, log.start_offset)
            if number % LOGS_PER_TURN == 0:
                await asyncio.sleep(0)

    async def checkpoint(self) -> None:
        """Write down from where a crash needs a scan, and where consumers may read to."""
        await self._settle_quiet()
        await self._node.directories.checkpoint(self._node.replicas.watermarks())

    async def note_watermarks(self) -> None:
        """The watermark of a log that has no copies is its end."""
        if any(len(partition.replicas) > 1 for partition in self._node.replicas.all()):
            await self._node.directories.checkpoint(self._node.replicas.watermarks())

    async def look_for_laggards(self) -> None:
        """One more turn of the loop: fetches that have arrived count."""
        await asyncio.sleep(0)
        self._node.replicas.look_for_laggards()

    async def _settle_quiet(self) -> None:
        """A log that got nothing since the last checkpoint is synced with its indexes, so that no crash has to scan it.

        Apache Kafka syncs when a segment is rolled and leaves the rest to the system, which has long written by now."""
        ends = {log: log.end_offset for log in self._logs()}
        for number, (log, end) in enumerate(ends.items()):
            if self._ends.get(log) == end == log.staged_end and log.failed is None and not log.is_settled:
                await self._sync(log, log.settle())
            if number % LOGS_PER_TURN == 0:
                await asyncio.sleep(0)
        self._ends = ends

    async def expire_producers(self) -> None:
        now_ms = self._node.world.now_ms()
        for log in self._logs():
            log.producers.expire(now_ms, log.settings.producer_id_expiration_ms)

    def _logs(self) -> list[Log]:
        return [partition.log for partition in self._node.replicas.all() if partition.log.failed is None]
