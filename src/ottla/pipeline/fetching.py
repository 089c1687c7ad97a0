"""One range of one partition, fetched from its leader by the task that needs it.

The next fetch is under way while the last is decoded: where it has to begin is known from the headers of the batches, long
before their records are. A fetch is as large as a partition's share may be, and smaller towards the end of a range, so that
a short piece of a long partition does not bring megabytes that belong to somebody else.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Iterator
from functools import partial
from typing import NamedTuple

import pyarrow as pa

from ottla.client.cluster import EARLIEST, LATEST, Cluster, NoTopic
from ottla.client.consumer import Aborted
from ottla.client.fetching import Found, Terms, fetch_one
from ottla.pipeline.blocking import Broker
from ottla.pipeline.columns import Decoder
from ottla.pipeline.offsets import Range, lost
from ottla.pipeline.options import Reading
from ottla.wire.errors import Error, KafkaError
from ottla.wire.ids import uuid_text
from ottla.wire.records import Bytes, batches, look_ahead
from ottla.wire.schema import ZERO_UUID

WAIT_MS = 500
# As long as the size of its records is not known. Most who look at a first row want no more than a few.
FIRST_FETCH_BYTES = 1 << 20
# A broker that says there is no such topic may only not have heard of it yet: it is believed when it says so for this long.
BELIEVED_SECONDS = 1.0
ASK_AGAIN_SECONDS = 0.05


class Silent(Exception):
    """The leader has nothing where there should be records."""


def read(reading: Reading, piece: Range) -> Iterator[pa.RecordBatch]:
    """The rows of a range."""
    decoder = Decoder(piece.where, piece.start, piece.end, headers=reading.headers)
    with reading.connect.broker() as broker:
        for step in fetched(broker, reading, piece):
            aborted = Aborted(step.found) if reading.read_committed else None
            yield from decoder.decode(step.found.records or b"", step.asked, aborted)


class Step(NamedTuple):
    """What a fetch brought, from which offset on, and where the next begins."""

    found: Found
    asked: int
    position: int


def fetched(broker: Broker, reading: Reading, piece: Range) -> Iterator[Step]:
    """All fetches of a range, one of them always under way."""
    work = _Fetching(broker.cluster, reading, piece)
    under_way = broker.start(work.step(piece.start))
    while True:
        step = under_way.result()
        if step.position < piece.end:
            under_way = broker.start(work.step(step.position))
        yield step
        if step.position >= piece.end:
            return


class _Fetching:
    def __init__(self, cluster: Cluster, reading: Reading, piece: Range) -> None:
        self.cluster = cluster
        self.reading = reading
        self.piece = piece
        self.name = f"{piece.topic}-{piece.partition}"
        # How large records have been so far, per offset; unknown before the first fetch.
        self._offset_bytes: float | None = None

    async def step(self, position: int) -> Step:
        """The next batches from `position` on, however often a leader has to be found for that."""
        loop = asyncio.get_running_loop()
        deadline = loop.time() + self.reading.poll_s
        believed_at = loop.time() + BELIEVED_SECONDS
        while True:
            try:
                found = await self.cluster.retrying(partial(self._fetch, position), self.reading.poll_s)
            except NoTopic:
                if loop.time() < believed_at:
                    self.cluster.forget(self.piece.topic)
                    await self.cluster.pause(ASK_AGAIN_SECONDS)
                    continue
                lost(self.reading, f"topic {self.piece.topic!r} was deleted before {self._rest(position)} were read")
                return Step(Found(), position, self.piece.end)
            except KafkaError as error:
                if error.error is not Error.OFFSET_OUT_OF_RANGE:
                    raise
                position = await self._after_the_gap(position)
                if position >= self.piece.end:
                    return Step(Found(), position, position)
                continue
            records = found.records or b""
            behind = _behind(records, position)
            if behind > position:
                self._offset_bytes = len(records) / (behind - position)
                return Step(found, position, behind)
            if records:
                raise self._stuck(records, position)
            if loop.time() > deadline:
                await self._must_be_cut(position)
                return Step(Found(), position, self.piece.end)

    def _stuck(self, records: Bytes, position: int) -> KafkaError:
        """Bytes came that do not bring us further."""
        why = f"the leader sent {len(records)} bytes without a whole batch from there on"
        try:
            look_ahead(records)
        except KafkaError as error:
            why = error.message
        return KafkaError(Error.CORRUPT_MESSAGE, f"{self.name} cannot be read at offset {position}: {why}")

    async def _fetch(self, position: int) -> Found:
        await self.cluster.leader(self.piece.where)
        self._check_id()
        terms = Terms(
            read_committed=self.reading.read_committed,
            wait_ms=WAIT_MS,
            partition_bytes_max=self._bytes_for(self.piece.end - position),
            bytes_max=self.reading.bytes_max,
        )
        return await fetch_one(self.cluster, self.piece.where, position, terms)

    def _bytes_for(self, offsets: int) -> int:
        most = self.reading.partition_bytes_max
        if self._offset_bytes is None:
            return min(most, FIRST_FETCH_BYTES)
        # A little more than the rest should take: one more fetch costs more than these bytes.
        return min(most, int(1.1 * offsets * self._offset_bytes) + (64 << 10))

    def _check_id(self) -> None:
        there = self.cluster.topic_id(self.piece.topic)
        if not self.piece.topic_id or there in (ZERO_UUID, b""):
            return
        if uuid_text(there) != self.piece.topic_id:
            raise NoTopic(self.piece.topic)

    async def _after_the_gap(self, position: int) -> int:
        """The log does not have this offset: where to go on, if the user wants to."""
        where = self.piece.where
        first = (await self.cluster.list_offsets({where: EARLIEST}))[where].offset
        if position < first:
            until = min(first, self.piece.end)
            gone = f"{until - position} offsets from {position} on were removed before they were read"
            lost(self.reading, f"{self.name} begins at {first} now: {gone} (by retention, or by DeleteRecords)")
            return until
        self._cut_back(position, await self._last())
        return self.piece.end

    async def _must_be_cut(self, position: int) -> None:
        """Nothing came for a long time. A log that ends here has less than was to be read, which may be what the user can do
        without; one that has more, and does not give it, is broken, or has a transaction open that may still be committed."""
        last = await self._last()
        if position < last:
            raise Silent(self._why_silent(position))
        self._cut_back(position, last)

    async def _last(self) -> int:
        return (await self.cluster.list_offsets({self.piece.where: LATEST}))[self.piece.where].offset

    def _cut_back(self, position: int, last: int) -> None:
        lost(
            self.reading,
            f"{self.name} ends at {last} now, before {self._rest(position)}: "
            "the log was cut back, or the query was to read more than there is",
        )

    def _rest(self, position: int) -> str:
        return f"offsets {position} to {self.piece.end - 1}"

    def _why_silent(self, position: int) -> str:
        return (
            f"{self.name} gave nothing at offset {position} for {self.reading.poll_s:g} s, though it has more and the query "
            f"was to read up to {self.piece.end}: does its leader answer others, or is a transaction open there?"
        )


def _behind(records: Bytes, position: int) -> int:
    """The offset behind the last whole batch, or the position when there is none. What is no batch is left to the decoder,
    which says where it is."""
    with contextlib.suppress(KafkaError):
        for _, batch in batches(records):
            position = max(position, batch.next_offset)
    return position
