"""A consumer of partitions that it names itself: fetch from a position, walk the batches, move the position.

There is one fetch under way per leader. A partition is finished when its *position* reaches its end, not when the last
record is seen: a range may end in control records, or in a hole that compaction left.

Reading committed data takes work on this side. The broker sends no further than the last stable offset, and with the
records a list of the transactions in them that were aborted: (producer id, first offset). From that offset on the
producer's transactional batches are passed over, until its abort marker is met.

Positions move when records are handed out, not when they arrive. So at any moment between two fetches they say what the
caller has got, which is what a member of a group commits; and a partition can be taken away, or its position changed,
while an answer is under way: what was asked at another position is then passed over.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Mapping
from typing import NamedTuple

from ottla.client.cluster import (
    EARLIEST,
    LATEST,
    PAUSE_SECONDS,
    PAUSE_SECONDS_MAX,
    Cluster,
    TopicPartition,
    by_topic,
    may_pass,
)
from ottla.client.connection import REQUEST_SECONDS, Connection, check, failure
from ottla.client.fetching import FETCH_BYTES_MAX, PARTITION_BYTES_MAX, WAIT_MS, Found, Terms, fetch_request
from ottla.wire.errors import Error, KafkaError
from ottla.wire.messages.fetch import FetchRequest, FetchResponse
from ottla.wire.records import (
    CREATE_TIME,
    Batch,
    ControlType,
    Headers,
    batches,
    control_type,
    crc_ok,
    iterate,
)


class Consumed(NamedTuple):
    topic: str
    partition: int
    offset: int
    timestamp: int
    key: bytes | None
    value: bytes | None
    headers: Headers
    timestamp_type: int = CREATE_TIME


class Fetch(NamedTuple):
    """What was asked of a leader: positions of partitions, and the answer that is under way."""

    part: Mapping[TopicPartition, int]
    task: asyncio.Task[FetchResponse]


class Consumer:
    """`async for record in consumer` gives records until every partition has reached its end; without ends, for ever."""

    def __init__(
        self,
        cluster: Cluster,
        positions: Mapping[TopicPartition, int],
        *,
        ends: Mapping[TopicPartition, int] | None = None,
        read_committed: bool = False,
        wait_ms: int = WAIT_MS,
        partition_bytes_max: int = PARTITION_BYTES_MAX,
        bytes_max: int = FETCH_BYTES_MAX,
        bytes_min: int = 1,
        reset: int | None = None,
    ) -> None:
        """`positions` are offsets, or the marks EARLIEST and LATEST; `ends` are exclusive.

        `reset` is the mark to go to when the log does not have the position (any more); without one that is an error.
        """
        self.cluster = cluster
        self.positions = dict(positions)
        self.ends = None if ends is None else dict(ends)
        self.read_committed = read_committed
        self.wait_ms = wait_ms
        self.partition_bytes_max = partition_bytes_max
        self.bytes_max, self.bytes_min = bytes_max, bytes_min
        self.reset = reset
        # The leader epoch of the last batch handed out of each partition: it is committed along with the position.
        self.leader_epochs: dict[TopicPartition, int] = {}
        self._fetches: dict[Connection, Fetch] = {}
        self._trouble_since: float | None = None
        self._pause = PAUSE_SECONDS

    async def __aiter__(self) -> AsyncIterator[Consumed]:
        try:
            while self.open_partitions():
                for record in await self.fetch():
                    yield record
        finally:
            self.close()

    def close(self) -> None:
        for fetch in self._fetches.values():
            fetch.task.cancel()
        self._fetches.clear()

    def seek(self, where: TopicPartition, position: int) -> None:
        """Go on from here: an offset, or a mark."""
        self.positions[where] = position

    def drop(self, where: TopicPartition) -> None:
        """Read this partition no longer."""
        self.positions.pop(where, None)
        self.leader_epochs.pop(where, None)

    def open_partitions(self) -> dict[TopicPartition, int]:
        """Positions of the partitions that have not reached their end."""
        if self.ends is None:
            return self.positions
        return {where: at for where, at in self.positions.items() if at < 0 or at < self.ends[where]}

    async def fetch(self) -> list[Consumed]:
        """The next records, or none when the brokers had nothing for a while."""
        try:
            await self._find_marks()
            records = await self._round()
        except (KafkaError, OSError) as error:
            await self._survive(error)
            return []
        self._trouble_since, self._pause = None, PAUSE_SECONDS
        return records

    async def _survive(self, error: KafkaError | OSError) -> None:
        """Wait and let the caller try again, unless that cannot help or has not helped for long enough."""
        now = asyncio.get_running_loop().time()
        self._trouble_since = now if self._trouble_since is None else self._trouble_since
        if not may_pass(error) or now - self._trouble_since > self.cluster.budget_s:
            raise error
        for topic in by_topic(self.positions):
            self.cluster.forget(topic)
        await self.cluster.pause(self._pause)
        self._pause = min(2 * self._pause, PAUSE_SECONDS_MAX)

    async def _find_marks(self) -> None:
        marks = {where: at for where, at in self.positions.items() if at < 0}
        if marks:
            found = await self.cluster.list_offsets(marks, read_committed=self.read_committed)
            self.positions.update({where: offset.offset for where, offset in found.items()})

    async def _round(self) -> list[Consumed]:
        """Ask every leader that is not being asked, then take what the first to answer has."""
        for connection, part in (await self.cluster.by_leader(self.open_partitions())).items():
            if connection not in self._fetches:
                task = asyncio.get_running_loop().create_task(self._ask(connection, part))
                task.add_done_callback(_heard)
                self._fetches[connection] = Fetch(part, task)
        if self._fetches:
            tasks = [fetch.task for fetch in self._fetches.values()]
            await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
        return self._collect([connection for connection, fetch in self._fetches.items() if fetch.task.done()])

    def _collect(self, done: list[Connection]) -> list[Consumed]:
        """The records of these answers. Trouble with one of them is told when there is nothing else to tell."""
        records: list[Consumed] = []
        trouble: Exception | None = None
        for connection in done:
            part, task = self._fetches.pop(connection)
            try:
                records += self._accept(part, task.result())
            except (KafkaError, OSError) as error:
                trouble = error
        if trouble is not None and not records:
            raise trouble
        return records

    async def _ask(self, connection: Connection, part: Mapping[TopicPartition, int]) -> FetchResponse:
        timeout_s = REQUEST_SECONDS + self.wait_ms / 1000
        response: FetchResponse = await connection.request(self._request(part), timeout_s)
        return response

    def _accept(self, part: Mapping[TopicPartition, int], response: FetchResponse) -> list[Consumed]:
        check(response.error_code)
        records: list[Consumed] = []
        trouble: KafkaError | None = None
        for topic in response.responses:
            name = topic.topic or self.cluster.topic_of(topic.topic_id)
            for found in topic.partitions:
                where = TopicPartition(name, found.partition_index)
                if where not in part or self.positions.get(where) != part[where]:
                    continue
                if found.error_code == Error.OFFSET_OUT_OF_RANGE.code and self.reset is not None:
                    self.positions[where] = self.reset
                elif found.error_code:
                    trouble = self._explain(where, found)
                else:
                    trouble = self._take(where, found, records) or trouble
        if trouble is not None and not records:
            raise trouble
        return records

    def _explain(self, where: TopicPartition, found: Found) -> KafkaError:
        if found.error_code == Error.OFFSET_OUT_OF_RANGE.code:
            text = f"{where.topic}-{where.partition} has no offset {self.positions[where]}"
            return KafkaError(Error.OFFSET_OUT_OF_RANGE, text)
        return failure(found.error_code)

    def _request(self, part: Mapping[TopicPartition, int]) -> FetchRequest:
        terms = Terms(self.read_committed, self.wait_ms, self.partition_bytes_max, self.bytes_max, self.bytes_min)
        return fetch_request(self.cluster, part, terms)

    def _take(self, where: TopicPartition, found: Found, records: list[Consumed]) -> KafkaError | None:
        """Add the records of one answer from our position on; the position moves behind them, and no further than they go:
        in front of a batch that cannot be read it stays, and what is wrong with that is returned."""
        data = memoryview(found.records if found.records is not None else b"")
        aborted = Aborted(found) if self.read_committed else None
        try:
            for at, batch in batches(data):
                if batch.last_offset >= self.positions[where]:
                    records += self._read(where, batch, data[at : at + batch.size], aborted)
                    self.positions[where] = batch.next_offset
                    self.leader_epochs[where] = batch.leader_epoch
        except KafkaError as error:
            return error
        return None

    def _read(self, where: TopicPartition, batch: Batch, data: memoryview, aborted: Aborted | None) -> list[Consumed]:
        position, end = self.positions[where], None if self.ends is None else self.ends[where]
        if not crc_ok(data, 0, batch.size):
            raise KafkaError(Error.CORRUPT_MESSAGE, f"{where.topic}-{where.partition} is damaged at {position}")
        if (aborted is not None and aborted.hides(batch, data)) or batch.is_control:
            return []
        kind = batch.timestamp_type
        return [
            Consumed._make((*where, *record, kind))
            for record in iterate(data)
            if record.offset >= position and (end is None or record.offset < end)
        ]


def _heard(task: asyncio.Task[FetchResponse]) -> None:
    """Nobody may be left to ask for the answer, and then nobody minds what went wrong with it."""
    if not task.cancelled():
        task.exception()


class Aborted:
    """The aborted transactions of one answer, walked along with its batches."""

    def __init__(self, found: Found) -> None:
        transactions = found.aborted_transactions or []
        self._ahead = sorted(((t.first_offset, t.producer_id) for t in transactions), reverse=True)
        self._producers: set[int] = set()

    def hides(self, batch: Batch, data: memoryview) -> bool:
        """Whether the batch belongs to an aborted transaction."""
        while self._ahead and self._ahead[-1][0] <= batch.last_offset:
            self._producers.add(self._ahead.pop()[1])
        if batch.is_control and batch.is_transactional:
            if any(control_type(record.key) == ControlType.ABORT for record in iterate(data)):
                self._producers.discard(batch.producer_id)
            return True
        return batch.is_transactional and batch.producer_id in self._producers


__all__ = ["EARLIEST", "LATEST", "Consumed", "Consumer"]
