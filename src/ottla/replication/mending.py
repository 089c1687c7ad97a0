"""A replica whose disk has damaged a batch gets it from another that is in sync (`log/mending.py` says when that is right).

It begins when somebody wants to read the batch. Who can wait for it reads it then as if nothing had happened; who cannot, or
not long enough, is told CORRUPT_MESSAGE, and finds it mended the next time. Whether this replica leads or follows makes no
difference: the other is asked as a consumer would, so it gives only what lies below its watermark. It is asked not to wait,
or two that have to mend would wait for each other.

Where nobody has the same bytes (the only replica; a topic that was compacted here and there at different times) the batch
stays as it is, and so do all others.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Coroutine
from typing import TYPE_CHECKING, Any

from ottla.log.mending import Gap, fill, find
from ottla.replication.neighbours import Neighbours
from ottla.wire.errors import Error, KafkaError, error_of
from ottla.wire.messages.fetch import FetchRequest, FetchResponse

if TYPE_CHECKING:
    from ottla.log.log import Log
    from ottla.replication.partition import Partition

log_ = logging.getLogger("ottla.replication")

# The other gives at least one whole batch, however large; so much if several lie side by side.
ASKED_BYTES = 4 << 20
# What could not be mended is tried again when somebody asks for it after so long.
REST_S = 5.0


class Mending:
    """The partitions that are being mended, and those that have just been tried in vain."""

    def __init__(
        self,
        node_id: int,
        neighbours: Neighbours,
        spawn: Callable[[Coroutine[Any, Any, bool]], asyncio.Task[bool]],
        write_failed: Callable[[Log, BaseException], None],
    ) -> None:
        self._node_id = node_id
        self._neighbours = neighbours
        self._spawn = spawn
        self._write_failed = write_failed
        self._under_way: dict[tuple[bytes, int], asyncio.Task[bool]] = {}
        self._in_vain: dict[tuple[bytes, int], None] = {}
        self.mended = 0

    async def mends(self, partition: Partition, offset: int, error: KafkaError, patience_s: float) -> bool:
        """Whether somebody who met this error at this offset can read there now, or within the time that it can wait."""
        if error.error is not Error.CORRUPT_MESSAGE or partition.key in self._in_vain or not self._others(partition):
            return False
        work = self._under_way.get(partition.key)
        if work is None:
            work = self._under_way[partition.key] = self._spawn(self._see_to(partition, offset))
        if patience_s > 0:
            await asyncio.wait([work], timeout=patience_s)
        return work.done() and not work.cancelled() and work.result()

    def _others(self, partition: Partition) -> list[int]:
        return [broker_id for broker_id in partition.isr if broker_id != self._node_id]

    async def _see_to(self, partition: Partition, offset: int) -> bool:
        is_mended = False
        try:
            is_mended = await self._mend(partition, offset)
        except OSError as error:
            log_.error("%s: damage could not be mended: %s", partition.log.name, error)
        finally:
            del self._under_way[partition.key]
        if not is_mended:
            self._in_vain[partition.key] = None
            asyncio.get_running_loop().call_later(REST_S, self._in_vain.pop, partition.key, None)
        return is_mended

    async def _mend(self, partition: Partition, offset: int) -> bool:
        log = partition.log
        gap = await find(log, offset)
        if gap is None:
            return False
        for broker_id in self._others(partition):
            data = await self._ask(broker_id, partition, gap)
            if log is partition.log and await self._fill(partition, gap, data):
                self.mended += 1
                log_.warning("%s: damaged at offset %d, mended as broker %d has it", log.name, gap.offset, broker_id)
                return True
        log_.error("%s: damaged at offset %d, and no other replica has the same there", log.name, gap.offset)
        return False

    async def _fill(self, partition: Partition, gap: Gap, data: bytes) -> int:
        try:
            return await fill(partition.log, gap, data, partition.high_watermark.value)
        except OSError as error:
            self._write_failed(partition.log, error)
            raise

    async def _ask(self, broker_id: int, partition: Partition, gap: Gap) -> bytes:
        """What another replica has from the gap on; nothing if it does not tell."""
        asked = FetchRequest.Topic.Partition(
            partition=partition.index, fetch_offset=gap.offset, partition_max_bytes=ASKED_BYTES
        )
        topic = FetchRequest.Topic(topic_id=partition.topic_id, partitions=[asked])
        request = FetchRequest(max_wait_ms=0, min_bytes=0, max_bytes=ASKED_BYTES, topics=[topic])
        timeout_s = self._neighbours.seconds("replica.socket.timeout.ms")
        try:
            response: FetchResponse = await self._neighbours.open_line("mending", broker_id).ask(request, timeout_s)
        except (OSError, KafkaError) as error:
            log_.info("broker %d was not reached: %s", broker_id, error)
            return b""
        told = [told for topic in response.responses for told in topic.partitions]
        if not told or error_of(told[0].error_code) is not Error.NONE:
            return b""
        return bytes(told[0].records or b"")
