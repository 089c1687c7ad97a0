"""A producer: records go into batches, one batch per partition is under way at a time.

Records for one partition form a *lane*. The lane's open batch is closed when it is full or when its first record has
waited `linger_ms`; then it is sent, and tried again as the same bytes until it is acknowledged, refused for good, or
older than `delivery_s`. Because a lane never has two batches under way, a retry cannot overtake what came later.

An idempotent producer numbers its records: the broker then recognises a batch it has already written and only repeats
the answer. When the fate of a batch stays unknown, the numbers can no longer be trusted; all lanes then start from 0
with a new producer id.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections import deque
from typing import NamedTuple

from ottla.client.cluster import Cluster, TopicPartition, may_pass
from ottla.client.connection import REQUEST_SECONDS, Connection, Lost, check
from ottla.client.partitioning import Partitioner, by_key
from ottla.wire.compression import Codec
from ottla.wire.errors import Error, KafkaError
from ottla.wire.messages.produce import ProduceRequest, ProduceResponse
from ottla.wire.messages.transactions import InitProducerIdRequest, InitProducerIdResponse
from ottla.wire.records import SEQUENCE_MODULUS, Headers, Record, build

# A record in a batch is at most this much longer than its key, value and headers.
RECORD_OVERHEAD = 21
BUFFER_BYTES_MAX = 32 << 20
PAUSE_SECONDS = 0.05
PAUSE_SECONDS_MAX = 1.0


class Sent(NamedTuple):
    """Where a record went. The offset is -1 when nobody was asked (acks=0)."""

    partition: int
    offset: int
    timestamp: int


class Identity(NamedTuple):
    producer_id: int
    epoch: int


NOBODY = Identity(-1, -1)


class Pending:
    """A batch being filled or sent, and those who wait for its records."""

    __slots__ = ("closed", "due", "futures", "records", "size")

    def __init__(self, due: float) -> None:
        self.due = due
        self.closed = False
        self.records: list[Record] = []
        self.futures: list[asyncio.Future[Sent]] = []
        self.size = 0


class Lane:
    """What is on its way to one partition."""

    def __init__(self, where: TopicPartition) -> None:
        self.where = where
        self.batches: deque[Pending] = deque()
        self.hurry = asyncio.Event()
        self.task: asyncio.Task[None] | None = None
        self.identity = NOBODY
        self.sequence = 0


class Producer:
    """`await producer.send("topic", value=b"...")` answers when the record is written."""

    def __init__(
        self,
        cluster: Cluster,
        *,
        acks: int = -1,
        codec: int = Codec.NONE,
        level: int | None = None,
        linger_ms: float = 5,
        batch_bytes: int = 16384,
        idempotent: bool = True,
        partitioner: Partitioner = by_key,
        create_topics: bool = True,
        delivery_s: float = 120.0,
    ) -> None:
        if idempotent and acks != -1:
            raise ValueError("an idempotent producer needs acks=all")
        self.cluster = cluster
        self.acks = acks
        self.codec, self.level = codec, level
        self.linger_s = linger_ms / 1000
        self.batch_bytes = batch_bytes
        self.idempotent = idempotent
        self.partitioner = partitioner
        self.create_topics = create_topics
        self.delivery_s = delivery_s
        self.requests = 0
        self._lanes: dict[TopicPartition, Lane] = {}
        self._sticky: dict[str, int] = {}
        self._identity: Identity | None = None if idempotent else NOBODY
        self._identifying = asyncio.Lock()
        self._buffered = 0
        self._room = asyncio.Event()

    async def __aenter__(self) -> Producer:
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.flush()

    async def send(
        self,
        topic: str,
        *,
        value: bytes | None,
        key: bytes | None = None,
        headers: Headers = (),
        partition: int | None = None,
        timestamp: int | None = None,
    ) -> Sent:
        """Write one record and wait until it is acknowledged."""
        return await (await self.post(topic, value, key, headers, partition, timestamp))

    async def post(
        self,
        topic: str,
        value: bytes | None,
        key: bytes | None = None,
        headers: Headers = (),
        partition: int | None = None,
        timestamp: int | None = None,
    ) -> asyncio.Future[Sent]:
        """Put one record on its way; it waits only for room in the buffer, and for news of a topic not seen before."""
        count = await self.cluster.partition_count(topic, create=self.create_topics)
        while self._buffered > BUFFER_BYTES_MAX:
            self._room.clear()
            await self._room.wait()
        where = TopicPartition(topic, self._choose(topic, key, count) if partition is None else partition)
        if not 0 <= where.partition < count:
            raise KafkaError(Error.UNKNOWN_TOPIC_OR_PARTITION, f"topic {topic!r} has no partition {where.partition}")
        record = Record(-1, self.cluster.now_ms() if timestamp is None else timestamp, key, value, headers)
        return self._put(where, record)

    async def flush(self) -> None:
        """Return when everything posted so far has been acknowledged or refused."""
        tasks = [(lane, lane.task) for lane in self._lanes.values() if lane.task is not None]
        for lane, _ in tasks:
            if lane.batches:
                self._close(lane)
        for _, task in tasks:
            await asyncio.wait([task])

    def _choose(self, topic: str, key: bytes | None, count: int) -> int:
        chosen = self.partitioner(topic, key, count)
        if chosen is not None:
            return chosen
        if topic not in self._sticky:
            self._sticky[topic] = self.cluster.rng.randrange(count)
        return self._sticky[topic]

    def _put(self, where: TopicPartition, record: Record) -> asyncio.Future[Sent]:
        loop = asyncio.get_running_loop()
        lane = self._lanes.get(where)
        if lane is None:
            lane = self._lanes[where] = Lane(where)
        size = _size(record)
        if lane.batches and lane.batches[-1].size + size > self.batch_bytes:
            self._close(lane)
        if not lane.batches or lane.batches[-1].closed:
            lane.batches.append(Pending(loop.time() + self.linger_s))
        batch = lane.batches[-1]
        batch.records.append(record)
        batch.size += size
        self._buffered += size
        if batch.size >= self.batch_bytes:
            self._close(lane)
        if lane.task is None:
            lane.task = loop.create_task(self._empty(lane))
        future: asyncio.Future[Sent] = loop.create_future()
        batch.futures.append(future)
        return future

    def _close(self, lane: Lane) -> None:
        """Nothing more goes into the lane's last batch, and records without a key move on to another partition."""
        lane.batches[-1].closed = True
        lane.hurry.set()
        if self._sticky.get(lane.where.topic) == lane.where.partition:
            del self._sticky[lane.where.topic]

    async def _empty(self, lane: Lane) -> None:
        """Send what is in the lane, batch by batch, until nothing is left."""
        while lane.batches:
            if not lane.batches[0].closed:
                await _linger(lane)
            if not lane.batches[0].closed:
                self._close(lane)
            batch = lane.batches.popleft()
            try:
                _acknowledge(lane.where.partition, batch, await self._deliver(lane, batch))
            except Exception as error:
                _refuse(batch, error)
            self._buffered -= batch.size
            self._room.set()
        lane.task = None

    async def _deliver(self, lane: Lane, batch: Pending) -> ProduceResponse.Topic.Partition:
        loop = asyncio.get_running_loop()
        deadline = loop.time() + self.delivery_s
        pause = PAUSE_SECONDS
        data = await self._seal(lane, batch)
        sent = 0
        while True:
            try:
                connection, _ = await self.cluster.leader(lane.where)
                sent += 1
                answer = await self._ask(connection, lane.where, data)
                lane.sequence = (lane.sequence + len(batch.records)) % SEQUENCE_MODULUS
                return answer
            except (KafkaError, OSError) as error:
                if not may_pass(error) or loop.time() + pause > deadline:
                    raise self._failed(lane, error, sent > 1)
                self.cluster.forget(lane.where.topic)
            await self.cluster.pause(pause)
            pause = min(2 * pause, PAUSE_SECONDS_MAX)

    async def _seal(self, lane: Lane, batch: Pending) -> bytes:
        """The batch as bytes. They stay the same however often they are sent."""
        identity = self._identity or await self._identify()
        if lane.identity != identity:
            lane.identity, lane.sequence = identity, 0
        return build(
            batch.records,
            codec=self.codec,
            level=self.level,
            producer_id=identity.producer_id,
            producer_epoch=identity.epoch,
            base_sequence=lane.sequence if self.idempotent else -1,
        )

    async def _identify(self) -> Identity:
        async with self._identifying:
            if self._identity is None:
                self._identity = await self.cluster.retrying(self._ask_identity, self.delivery_s)
            return self._identity

    async def _ask_identity(self) -> Identity:
        request = InitProducerIdRequest(transactional_id=None, transaction_timeout_ms=60000)
        connection = await self.cluster.any()
        # Version 6 is for two-phase commit, and not stable.
        version = min(connection.version_of(InitProducerIdRequest), 5)
        response: InitProducerIdResponse = await connection.request(request, version=version)
        check(response.error_code)
        return Identity(response.producer_id, response.producer_epoch)

    def _failed(self, lane: Lane, error: KafkaError | OSError, is_retry: bool) -> Exception:
        """What to tell of a batch that failed. Unless it was surely not written, numbers that follow it cannot be trusted.

        A retry can be refused (the broker's clock was set back, say) although the first attempt was written and only its
        answer got lost. Going on with the same numbers, the next batch would be taken for that one, and dropped.
        """
        refused = isinstance(error, KafkaError) and error.error in NOT_WRITTEN
        if self.idempotent and self._identity == lane.identity and (is_retry or not refused):
            self._identity = None
        if refused and is_retry:
            return Lost(f"an earlier attempt may have been written, but a retry was refused: {error}")
        return error

    async def _ask(self, connection: Connection, where: TopicPartition, data: bytes) -> ProduceResponse.Topic.Partition:
        request = self._request(where, data)
        self.requests += 1
        if self.acks == 0:
            connection.tell(request)
            return ProduceResponse.Topic.Partition(index=where.partition, base_offset=-1)
        response: ProduceResponse = await connection.request(request)
        answer = response.responses[0].partition_responses[0]
        if answer.error_code != Error.DUPLICATE_SEQUENCE_NUMBER.code:
            check(answer.error_code, answer.error_message)
        return answer

    def _request(self, where: TopicPartition, data: bytes) -> ProduceRequest:
        partition = ProduceRequest.Topic.Partition(index=where.partition, records=data)
        topic_id = self.cluster.topic_id(where.topic)
        topic = ProduceRequest.Topic(name=where.topic, topic_id=topic_id, partition_data=[partition])
        return ProduceRequest(acks=self.acks, timeout_ms=int(REQUEST_SECONDS * 1000), topic_data=[topic])


# Errors that come before the broker has looked at sequence numbers.
NOT_WRITTEN = {
    Error.MESSAGE_TOO_LARGE,
    Error.RECORD_LIST_TOO_LARGE,
    Error.INVALID_RECORD,
    Error.INVALID_TIMESTAMP,
    Error.INVALID_TOPIC_EXCEPTION,
    Error.UNSUPPORTED_COMPRESSION_TYPE,
    Error.TOPIC_AUTHORIZATION_FAILED,
    Error.CLUSTER_AUTHORIZATION_FAILED,
}


async def _linger(lane: Lane) -> None:
    """Until the open batch is due or closed."""
    lane.hurry.clear()
    with contextlib.suppress(TimeoutError):
        async with asyncio.timeout_at(lane.batches[0].due):
            await lane.hurry.wait()


def _size(record: Record) -> int:
    headers = sum(len(name) + len(value or b"") + 10 for name, value in record.headers)
    return RECORD_OVERHEAD + len(record.key or b"") + len(record.value or b"") + headers


def _acknowledge(partition: int, batch: Pending, answer: ProduceResponse.Topic.Partition) -> None:
    for i, (record, future) in enumerate(zip(batch.records, batch.futures, strict=True)):
        offset = answer.base_offset + i if answer.base_offset >= 0 else -1
        timestamp = record.timestamp if answer.log_append_time_ms < 0 else answer.log_append_time_ms
        if not future.done():
            future.set_result(Sent(partition, offset, timestamp))


def _refuse(batch: Pending, error: Exception) -> None:
    for future in batch.futures:
        if not future.done():
            future.set_exception(error)
