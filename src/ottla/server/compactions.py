"""Compaction of this node's logs: the dirtiest first, as many at a time as `log.cleaner.threads` says.

The work is done by child processes that give way to the loop. A log that cannot be read is left out from then on, until the
next start, and told; one that failed for another reason (a full disk, say) is tried again after the pause.
"""

from __future__ import annotations

import asyncio
import logging
from typing import TYPE_CHECKING

from ottla.log import compaction
from ottla.log.compacting import Outcome
from ottla.log.compaction import Dirt, Tools
from ottla.log.log import Log
from ottla.wire.errors import KafkaError

if TYPE_CHECKING:
    from ottla.server.node import Node

log_ = logging.getLogger("ottla.compaction")

# Between this many logs the loop gets a turn.
LOGS_PER_TURN = 20
CHUNK_BYTES_MIN = 4096


class Compactions:
    def __init__(self, node: Node) -> None:
        self._node = node
        # By path: where a topic is deleted and made anew, its namesake must wait until the child is done with the old one.
        self._busy: set[str] = set()
        self._put_off: set[str] = set()
        node.measures.uncleanable.read = lambda: sum(partition.log.uncleanable for partition in node.replicas.all())

    async def run(self) -> None:
        """Until nothing is due."""
        if self._node.config["log.cleaner.enable"]:
            self._put_off = set()
            threads = max(1, self._node.config["log.cleaner.threads"])
            await asyncio.gather(*(self._in_turn(threads) for _ in range(threads)))

    async def _in_turn(self, threads: int) -> None:
        while (found := await self._dirtiest()) is not None:
            log, dirt = found
            if log.directory in self._busy:
                continue  # somebody was faster
            place = log.directory
            self._busy.add(place)
            try:
                await self._compact(log, dirt, self._tools(threads))
            finally:
                self._busy.discard(place)

    def _tools(self, threads: int) -> Tools:
        config = self._node.config
        share = config["log.cleaner.dedupe.buffer.size"] / threads * config["log.cleaner.io.buffer.load.factor"]
        chunk = config["log.cleaner.io.buffer.size"] // threads // 2
        return Tools(
            max(1, int(share)),
            max(CHUNK_BYTES_MIN, chunk),
            config["log.cleaner.io.max.bytes.per.second"] / threads,
        )

    async def _dirtiest(self) -> tuple[Log, Dirt] | None:
        """Of all that are due."""
        found: tuple[Log, Dirt] | None = None
        largest = 0.0
        for number, partition in enumerate(self._node.replicas.all()):
            if number % LOGS_PER_TURN == LOGS_PER_TURN - 1:
                await asyncio.sleep(0)
            log = partition.log
            if not self._may_be_compacted(log):
                continue
            dirt = self._survey(log, partition.high_watermark.value)
            if dirt is None:
                continue
            largest = max(largest, dirt.ratio)
            if compaction.is_due(log, dirt) and (found is None or dirt.ratio > found[1].ratio):
                found = log, dirt
        self._node.measures.dirtiest_ratio.value = largest
        return found

    def _survey(self, log: Log, high_watermark: int) -> Dirt | None:
        try:
            return compaction.survey(log, self._node.world.now_ms(), high_watermark)
        except KafkaError as error:  # it does not even begin with a batch: others must not wait for this one
            self._leave_out(log, error)
            return None

    def _leave_out(self, log: Log, error: Exception) -> None:
        log_.warning("%s cannot be compacted any more: %s", log.name, error)
        log.uncleanable = True

    def _may_be_compacted(self, log: Log) -> bool:
        return (
            log.settings.compacts
            and len(log.segments) > 1
            and log.failed is None
            and not log.uncleanable
            and log.directory not in self._busy
            and log.directory not in self._put_off
            # A copy that got a record before a round, and looks for its tombstone after the next, would keep the record.
            and (log.topic, log.partition) not in self._node.replicas.moves.under_way
            and not self._node.groups.is_loading(log)  # the same for those who read it back
            and not self._node.transactions.is_loading(log)
        )

    async def _compact(self, log: Log, dirt: Dirt, tools: Tools) -> None:
        node, began = self._node, self._node.loop.time()
        try:
            steps = await compaction.perform(log, dirt, node.world.now_ms(), tools, node.world.workshop)
        except (OSError, KafkaError) as error:
            log_.error("%s: %s; will try again", log.name, error)
            node.directories.relieve(error)
            self._put_off.add(log.directory)
        except Exception as error:  # Unreadable, or a defect: others must not wait for this one
            self._leave_out(log, error)
        else:
            if steps:
                self._tell(log, dirt, steps, node.loop.time() - began)
            else:
                self._put_off.add(log.directory)  # it changed meanwhile

    def _tell(self, log: Log, dirt: Dirt, steps: list[Outcome], seconds: float) -> None:
        measures = self._node.measures
        read, written = sum(step.bytes_read for step in steps), sum(step.bytes_written for step in steps)
        measures.compaction.observe(seconds)
        measures.compaction_read.value += read
        measures.compaction_written.value += written
        measures.compaction_map.value = max(step.map_used for step in steps)
        log_.info(
            "%s: compacted offsets %d to %d, %d bytes are %d now, %d records of %d, in %.1f s",
            *(log.name, dirt.first_dirty, steps[0].end, read, written),
            *(sum(step.records_kept for step in steps), sum(step.records_read for step in steps), seconds),
        )
