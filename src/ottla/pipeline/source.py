"""Topics as DataFrames, in batches and as streams, without a jar.

Spark makes these objects on the driver, asks them what there is to read, pickles them, and calls `read` in a worker for
each piece. So nothing that is connected is kept in them except where the driver needs it: in a stream's reader, which
lives as long as the query and is asked every few hundred milliseconds.
"""

from __future__ import annotations

import asyncio
import logging
import time
import uuid
from collections.abc import Iterable, Iterator, Mapping
from concurrent.futures import Future, wait
from typing import Any

import pyarrow as pa
from pyspark.sql.datasource import DataSourceReader, DataSourceStreamReader, InputPartition
from pyspark.sql.streaming.datasource import (
    ReadAllAvailable,
    ReadLimit,
    ReadMaxRows,
    ReadMinRows,
    SupportsTriggerAvailableNow,
)

from ottla.client.cluster import TopicPartition
from ottla.client.commits import Committed, commit
from ottla.client.coordinator import Coordinator
from ottla.pipeline import fetching
from ottla.pipeline.blocking import Broker
from ottla.pipeline.filters import Narrowing
from ottla.pipeline.offsets import Finder, Found, Positions, Range, StreamOffset, limited, lost, split
from ottla.pipeline.options import ANEW, NARROWS, NARROWS_NOT, BadOption, Reading
from ottla.wire.errors import Error, KafkaError

log = logging.getLogger(__name__)

GROUP_NAME_MAX = 120
COMMIT_SECONDS = 10.0
IDLE_SECONDS = 0.5
# Well within what brokers are set to (`offsets.retention.minutes`, seven days).
ANEW_SECONDS = 3600.0
COORDINATOR_COMES = {Error.COORDINATOR_LOAD_IN_PROGRESS, Error.COORDINATOR_NOT_AVAILABLE, Error.NOT_COORDINATOR}


def batch_reader(options: Mapping[str, str]) -> Reader:
    reading = Reading.batch(options)
    return READERS[reading.pushdown](reading)


def stream_reader(options: Mapping[str, str]) -> DataSourceStreamReader:
    """Spark has nobody to stop when this raises, fails over that, and ends its message with it: so what is wrong with the
    options is said when Spark asks for the first time."""
    try:
        return StreamReader(Reading.stream(options))
    except BadOption as error:
        return Refusing(error)


class Reader(DataSourceReader):
    """History between two points, both fixed when the query is planned."""

    def __init__(self, reading: Reading) -> None:
        self.reading = reading

    def partitions(self) -> list[InputPartition]:
        with self.reading.connect.broker() as broker:
            ranges = broker.run(self.ranges(Finder(broker.cluster, self.reading)))
        pieces = split(ranges, self.reading.min_partitions, self.reading.partition_records_max)
        return [InputPartition(piece) for piece in pieces]

    async def ranges(self, finder: Finder) -> list[Range]:
        found = await finder.partitions()
        start = await finder.resolve(self.reading.start, found.partitions, is_start=True)
        end = await finder.resolve(self.reading.end, found.partitions, is_start=False)
        for where in sorted(found.partitions):
            if start[where] > end[where]:
                name = f"{where.topic}-{where.partition}"
                raise BadOption(f"{name} would be read from {start[where]} to {end[where]}, which is before it")
        return ranges_of(start, end, found)

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        if isinstance(partition.value, Range):  # Spark makes an empty one when there is nothing to read
            yield from fetching.read(self.reading, partition.value)


class NarrowedReader(Reader):
    """The same with conditions on partition, offset and time looked up instead of filtered.

    Spark refuses every reader that could do this unless `spark.sql.python.filterPushdown.enabled` is set, and does not tell
    a reader whether it is: hence two classes and an option.
    """

    def __init__(self, reading: Reading) -> None:
        super().__init__(reading)
        self.narrowing = Narrowing()

    def pushFilters(self, filters: list[Any]) -> Iterable[Any]:
        return [condition for condition in filters if not self.narrowing.take(condition)]

    async def ranges(self, finder: Finder) -> list[Range]:
        return await self.narrowing.apply(finder, await super().ranges(finder))


class AnewReader(Reader):
    """One that is planned anew for each query with a condition, and leaves every condition to Spark.

    Spark plans a frame once, when it is first computed, and keeps that for all that is made of the frame: offsets that were
    the latest then are where it ends for ever. Conditions that are pushed down are planned with, and what comes of them takes
    the place of what was planned before, for *all* uses of the frame: with `WHERE topic = 'a'` here and `'b'` there, both
    would be read with the narrowing of whichever was planned last, and the other find nothing. Where everything that is
    planned is the same but for being newer, as here, that does no harm.
    """

    def pushFilters(self, filters: list[Any]) -> Iterable[Any]:
        return filters


READERS: Mapping[str, type[Reader]] = {NARROWS_NOT: Reader, NARROWS: NarrowedReader, ANEW: AnewReader}


def ranges_of(start: Mapping[TopicPartition, int], end: Mapping[TopicPartition, int], found: Found) -> list[Range]:
    return [
        Range(where.topic, where.partition, start[where], end[where], found.ids.get(where.topic, ""))
        for where in sorted(end)
        if where in start
    ]


class StreamReader(DataSourceStreamReader, SupportsTriggerAvailableNow):
    """A stream: where it begins, how far it may go now, which tasks that makes, and what has been done."""

    def __init__(self, reading: Reading) -> None:
        self.reading = reading
        self._broker: Broker | None = None
        self._available_now = False
        self._target: tuple[Found, Positions] | None = None
        self._latest: StreamOffset | None = None
        self._started_at: float | None = None
        self._planned: tuple[Any, Any, list[InputPartition]] | None = None
        self._mirroring: Future[None] | None = None
        self._mirrored: Mapping[TopicPartition, int] = {}
        self._mirrored_at = 0.0
        self._one_at_a_time = asyncio.Lock()
        self._coordinator: Coordinator | None = None

    @property
    def broker(self) -> Broker:
        """Made when the driver first asks something; a copy in a worker never does."""
        if self._broker is None:
            self._broker = self.reading.connect.broker()
        return self._broker

    @property
    def finder(self) -> Finder:
        return Finder(self.broker.cluster, self.reading)

    # Where it begins.

    def initialOffset(self) -> dict[str, Any]:
        return self.broker.run(self._initial()).text()

    async def _initial(self) -> StreamOffset:
        found = await self.finder.partitions()
        positions = await self.finder.resolve(self.reading.start, found.partitions, is_start=True)
        return StreamOffset(positions, found.ids, self._group_name(), positions)

    def _group_name(self) -> str:
        """A name of its own for each query. It goes into the offsets, and so comes back with the checkpoint."""
        topics = self.reading.topics
        names = topics.names or ([topics.pattern] if topics.pattern else sorted({w.topic for w in topics.assigned}))
        readable = "".join(c if c.isalnum() or c in "._-" else "_" for c in "-".join(names))[:GROUP_NAME_MAX]
        return self.reading.group_id or f"{self.reading.group_prefix}-{readable}-{uuid.uuid4().hex[:8]}"

    # How far it may go now.

    def getDefaultReadLimit(self) -> ReadLimit:
        if self.reading.offsets_per_trigger_max is not None:
            return ReadMaxRows(self.reading.offsets_per_trigger_max)
        if self.reading.offsets_per_trigger_min is not None:
            return ReadMinRows(self.reading.offsets_per_trigger_min)
        return ReadAllAvailable()

    def prepareForTriggerAvailableNow(self) -> None:
        self._available_now = True

    def latestOffset(self, start: dict[str, Any], limit: ReadLimit) -> dict[str, Any]:
        """Spark asks when the batch that ended at `start` is done, and tells so by `commit` only when the next one is made.
        So this is when progress is known."""
        self.commit(start)
        end = self.broker.run(self._advance(start, limit))
        if end == start:
            self._settle(IDLE_SECONDS)
        return end

    async def _advance(self, text: dict[str, Any], limit: ReadLimit) -> dict[str, Any]:
        start = StreamOffset.of(text)
        group = start.group or self._group_name()
        found, end = await self._ends(start)
        begin = await self._begin(start, found, end)
        self._latest = StreamOffset(end, found.ids, group)
        if not isinstance(limit, ReadAllAvailable):
            if self._must_wait(begin, end):
                return text
            if self.reading.offsets_per_trigger_max is not None:
                end = limited(self.reading.offsets_per_trigger_max, begin, end)
        if end == start.positions and found.ids == start.ids:
            return text
        # The initial offset carries its own beginning; the end of the first batch says where it began, later ones need not.
        first = start.begun is not None and start.begun == start.positions
        return StreamOffset(end, found.ids, group, begin if first else None).text()

    async def _ends(self, start: StreamOffset) -> tuple[Found, Positions]:
        if self._target is not None:
            return self._target
        found = await self.finder.partitions_left(frozenset(start.positions))
        ends = found, await self.finder.latest(found.partitions, start.positions)
        if self._available_now:
            self._target = ends
        return ends

    async def _begin(self, start: StreamOffset, found: Found, end: Positions) -> Positions:
        """Where each partition goes on. New partitions begin at their beginning; what is not there any more is a loss."""
        kept = {
            where: at for where, at in start.positions.items() if not self._made_again(where.topic, start, found.ids)
        }
        for where in sorted(kept.keys() - end.keys()):
            name = f"{where.topic}-{where.partition}"
            lost(self.reading, f"{name} does not exist any more, and was read up to {kept.pop(where)}: was it deleted?")
        for where, at in kept.items():
            if end[where] < at:
                name = f"{where.topic}-{where.partition}"
                lost(self.reading, f"{name} ends at {end[where]}, and was read up to {at} before: the log was cut back")
        new = await self.finder.earliest(end.keys() - kept.keys())
        for (topic, partition), first in sorted(new.items()):
            if first > 0:
                lost(
                    self.reading,
                    f"{topic}-{partition} is new to this query and begins at {first}: what came before is gone",
                )
        return {**kept, **new}

    def _made_again(self, topic: str, start: StreamOffset, ids: Mapping[str, str]) -> bool:
        before, now = start.ids.get(topic), ids.get(topic)
        if not before or not now or before == now:
            return False
        lost(
            self.reading,
            f"topic {topic!r} was deleted and made again (its id was {before} and is {now} now): "
            "what the old one still had cannot be read, and the offsets of this query mean nothing in the new one",
        )
        return True

    def _must_wait(self, begin: Positions, end: Positions) -> bool:
        """Whether there is too little for a batch yet. The first is always made, and so is one that waited long enough."""
        fewest = self.reading.offsets_per_trigger_min
        if fewest is None or self._available_now:
            return False
        now = time.monotonic()
        waited = self._started_at is None or now - self._started_at >= self.reading.trigger_delay_ms / 1000
        if not waited and sum(until - begin.get(where, 0) for where, until in end.items()) < fewest:
            return True
        self._started_at = now
        return False

    def reportLatestOffset(self) -> dict[str, Any] | None:
        return None if self._latest is None else self._latest.text()

    # Which tasks that makes.

    def partitions(self, start: dict[str, Any], end: dict[str, Any]) -> list[InputPartition]:
        """Spark asks more than once for the same batch."""
        if self._planned is None or self._planned[:2] != (start, end):
            pieces = self.broker.run(self._plan(StreamOffset.of(start), StreamOffset.of(end)))
            self._planned = start, end, [InputPartition(piece) for piece in pieces]
        return self._planned[2]

    async def _plan(self, start: StreamOffset, end: StreamOffset) -> list[Range]:
        if end.begun is not None:
            start = StreamOffset(end.begun, end.ids, end.group)
        begin = await self._begin(start, Found(frozenset(end.positions), end.ids), dict(end.positions))
        ranges = ranges_of(begin, end.positions, Found(frozenset(), end.ids))
        return split(ranges, self.reading.min_partitions, self.reading.partition_records_max)

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        if isinstance(partition.value, Range):
            yield from fetching.read(self.reading, partition.value)

    # What has been done.

    def commit(self, end: dict[str, Any]) -> None:
        """Mirrors progress into a group, for tools that show lag. Spark's checkpoint is what counts, so nothing waits for
        this, and whatever goes wrong with it is a warning. A query that has nothing to do is asked as well: brokers forget
        what is not committed anew."""
        done, now = StreamOffset.of(end), time.monotonic()
        if not (self.reading.group_id or done.group):
            return
        if done.positions == self._mirrored and now - self._mirrored_at < ANEW_SECONDS:
            return
        self._mirrored, self._mirrored_at = done.positions, now
        self._mirroring = self.broker.start(self._mirror(done))

    def _settle(self, seconds: float) -> bool:
        """Give what is being mirrored some time; whether it got there."""
        return self._mirroring is None or not wait([self._mirroring], seconds).not_done

    async def _mirror(self, done: StreamOffset) -> None:
        group = self.reading.group_id or done.group
        self._coordinator = self._coordinator or Coordinator(self.broker.cluster, group)
        try:
            async with self._one_at_a_time:
                if done.positions == self._mirrored:  # else a newer one waits behind this
                    await self.broker.cluster.retrying(lambda: self._mirror_once(done), COMMIT_SECONDS)
        except Exception as error:
            log.warning("progress could not be mirrored into group %r: %s", group, error)

    async def _mirror_once(self, done: StreamOffset) -> None:
        """Only a coordinator that is about to be there is worth waiting for: the next batch tells more."""
        assert self._coordinator is not None
        try:
            await commit(self._coordinator, {where: Committed(offset) for where, offset in done.positions.items()})
        except (KafkaError, OSError) as error:
            if isinstance(error, KafkaError) and error.error in COORDINATOR_COMES:
                raise
            raise RuntimeError(str(error))

    def stop(self) -> None:
        if self._broker is None:
            return
        if not self._settle(COMMIT_SECONDS):
            log.warning("the last progress was not mirrored: no answer within %g s", COMMIT_SECONDS)
        if self._coordinator is not None:
            self._coordinator.close()
        self._broker.close()
        self._broker = None


class Refusing(DataSourceStreamReader):
    """A stream that cannot be read as it was asked for."""

    def __init__(self, why: BadOption) -> None:
        self.why = why

    def initialOffset(self) -> dict[str, Any]:
        raise self.why

    def latestOffset(self, start: dict[str, Any], limit: ReadLimit) -> dict[str, Any]:
        raise self.why

    def partitions(self, start: dict[str, Any], end: dict[str, Any]) -> list[InputPartition]:
        raise self.why

    def getDefaultReadLimit(self) -> ReadLimit:
        raise self.why

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        raise self.why
