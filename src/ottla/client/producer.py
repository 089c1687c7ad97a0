"""A producer: records go into batches, batches to whoever leads their partition.

The open batch of a partition is closed when it is full or when its first record has waited `linger_ms`; then it is sent,
and tried again as the same bytes until it is acknowledged, refused for good, or older than `delivery_s`. What happens to
it on the way is told in `batches.py` and `sending.py`. Records of one partition are written in the order they were posted.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator, Mapping

from ottla.client.batches import NOT_WRITTEN, Identity, Lane, Pending, Sent, size_of
from ottla.client.cluster import Cluster, TopicPartition
from ottla.client.commits import Committed, GroupMetadata
from ottla.client.connection import check
from ottla.client.partitioning import Partitioner, by_key
from ottla.client.sending import FLYING_MAX, Manner, Sender
from ottla.client.transactions import INIT_STABLE, TIMEOUT_MS, Outcome, Prepared, State, Transactions
from ottla.wire.compression import Codec
from ottla.wire.errors import Error, KafkaError
from ottla.wire.messages.transactions import InitProducerIdRequest, InitProducerIdResponse
from ottla.wire.records import Headers, Record

BUFFER_BYTES_MAX = 32 << 20


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
        flying_max: int | None = None,
        partitioner: Partitioner = by_key,
        create_topics: bool = True,
        delivery_s: float = 120.0,
        transactional_id: str | None = None,
        transaction_timeout_ms: int = TIMEOUT_MS,
        two_phase_commit: bool = False,
    ) -> None:
        """`flying_max` batches of a partition are under way at once: by default 5, and without idempotence 1, because
        then a retry could overtake what came later. With a `transactional_id` see the second half of this class."""
        if transactional_id is not None and not idempotent:
            raise ValueError("a transactional producer is idempotent")
        if two_phase_commit and transactional_id is None:
            raise ValueError("two-phase commit needs a transactional id")
        if idempotent and acks != -1:
            raise ValueError("an idempotent producer needs acks=all")
        if idempotent and not 1 <= (flying_max or FLYING_MAX) <= FLYING_MAX:
            raise ValueError(f"an idempotent producer has 1 to {FLYING_MAX} batches of a partition under way")
        self.cluster = cluster
        self.linger_s = linger_ms / 1000
        self.batch_bytes = batch_bytes
        self.partitioner = partitioner
        self.create_topics = create_topics
        self.delivery_s = delivery_s
        flying_max = flying_max or (FLYING_MAX if idempotent else 1)
        manner = Manner(acks, codec, level, idempotent, flying_max)
        self._sender = Sender(cluster, manner, self._name, self._close, self._settled)
        self._transactions: Transactions | None = None
        if transactional_id is not None:
            self._transactions = self._sender.gate = Transactions(
                cluster,
                self._sender,
                transactional_id,
                timeout_ms=transaction_timeout_ms,
                two_phase=two_phase_commit,
                patience_s=delivery_s,
            )
        self._sticky: dict[str, int] = {}
        self._buffered = 0
        self._room = asyncio.Event()

    async def __aenter__(self) -> Producer:
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.close()

    async def close(self) -> None:
        """Everything posted is sent; a transaction that is open is aborted."""
        if self._transactions is not None:
            await self._transactions.close()
        await self.flush()

    @property
    def requests(self) -> int:
        """How many Produce requests were made."""
        return self._sender.requests

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
        count = await self._room_for(topic)
        where = TopicPartition(topic, self._choose(topic, key, count) if partition is None else partition)
        _check(where, count)
        record = Record(-1, self.cluster.now_ms() if timestamp is None else timestamp, key, value, headers)
        return self._put(where, record)

    async def post_batch(self, where: TopicPartition, batch: bytearray) -> asyncio.Future[Sent]:
        """Put a batch on its way that was built elsewhere, with offsets from 0 on and nobody's name in it.

        It is sent as it is but for the name, the numbers and the CRC in its header, which are written into `batch`: leave
        it alone from here on. The answer is where its first record went. Codec and size are the builder's choice.
        """
        _check(where, await self._room_for(where.topic))
        return self._put_built(where, batch)

    async def _room_for(self, topic: str) -> int:
        """Wait until something more may be posted; how many partitions the topic has."""
        count = self.cluster.partitions_at_hand(topic)
        if count is None:
            count = await self.cluster.partition_count(topic, create=self.create_topics)
        while self._buffered > BUFFER_BYTES_MAX:
            self._room.clear()
            await self._room.wait()
        if self._transactions is not None:
            self._transactions.may_post()
        return count

    async def flush(self) -> None:
        """Return when everything posted so far has been acknowledged or refused."""
        await self._sender.flush()

    # Transactions. Their rules, and the states they go through, are told in `transactions.py`.

    async def init(self, keep_prepared: bool = False) -> Prepared:
        """Become the one producer of the transactional id: what another left open is aborted, unless it is to be kept."""
        return await self._tx.init(keep_prepared)

    def begin(self) -> None:
        self._tx.begin()

    async def send_offsets(self, offsets: Mapping[TopicPartition, Committed], group: str | GroupMetadata) -> None:
        """Commit offsets of a group with the transaction; `GroupConsumer.metadata` is the group as its member sees it."""
        await self._tx.send_offsets(offsets, group)

    async def prepare(self) -> Prepared:
        """Everything is written and waits: store the name of the transaction where it is decided, then commit or abort."""
        return await self._tx.prepare()

    async def commit(self) -> None:
        await self._tx.commit()

    async def abort(self) -> None:
        await self._tx.abort()

    async def complete(self, prepared: Prepared) -> Outcome:
        """After a crash: commit what was kept by `init(keep_prepared=True)` if it is this, abort it if not."""
        return await self._tx.complete(prepared)

    @contextlib.asynccontextmanager
    async def transaction(self) -> AsyncIterator[Producer]:
        """What is posted in the block is committed at its end, or aborted when it raises."""
        self.begin()
        try:
            yield self
            await self.commit()
        except BaseException:
            if self._tx.state in (State.OPEN, State.FAILED):
                await self.abort()
            raise

    @property
    def _tx(self) -> Transactions:
        if self._transactions is None:
            raise ValueError("this producer has no transactional id")
        return self._transactions

    def _choose(self, topic: str, key: bytes | None, count: int) -> int:
        chosen = self.partitioner(topic, key, count)
        if chosen is not None:
            return chosen
        if topic not in self._sticky:
            self._sticky[topic] = self.cluster.rng.randrange(count)
        return self._sticky[topic]

    def _put(self, where: TopicPartition, record: Record) -> asyncio.Future[Sent]:
        loop = asyncio.get_running_loop()
        lane = self._sender.lane(where)
        size = size_of(record)
        batch = lane.queue[-1] if lane.queue else None
        if batch is not None and batch.size + size > self.batch_bytes and not batch.closed:
            self._close(lane)
        if batch is None or batch.closed:
            batch = self._open(lane, loop)
        batch.records.append(record)
        batch.size += size
        self._buffered += size
        if batch.size >= self.batch_bytes:
            self._close(lane)
        future: asyncio.Future[Sent] = loop.create_future()
        batch.futures.append(future)
        return future

    def _put_built(self, where: TopicPartition, built: bytearray) -> asyncio.Future[Sent]:
        loop = asyncio.get_running_loop()
        lane = self._sender.lane(where)
        if lane.queue and not lane.queue[-1].closed:
            self._close(lane)  # what was posted before it is written before it
        batch = Pending(loop.time(), loop.time() + self.delivery_s)
        batch.built, batch.size, batch.closed = built, len(built), True
        lane.queue.append(batch)
        self._buffered += batch.size
        self._sender.wake(lane)
        future: asyncio.Future[Sent] = loop.create_future()
        batch.futures.append(future)
        return future

    def _open(self, lane: Lane, loop: asyncio.AbstractEventLoop) -> Pending:
        due = loop.time() + self.linger_s
        batch = Pending(due, due + self.delivery_s)
        lane.queue.append(batch)
        if self.linger_s > 0:
            loop.call_at(due, self._sender.wake, lane)
        else:
            self._sender.wake(lane)
        return batch

    def _close(self, lane: Lane) -> None:
        """Nothing more goes into the lane's last batch, and records without a key move on to another partition."""
        lane.queue[-1].closed = True
        self._sender.wake(lane)
        if self._sticky.get(lane.where.topic) == lane.where.partition:
            del self._sticky[lane.where.topic]

    def _settled(self, size: int) -> None:
        self._buffered -= size
        self._room.set()

    async def _name(self) -> Identity:
        return await self.cluster.retrying(self._ask_identity, self.delivery_s)

    async def _ask_identity(self) -> Identity:
        request = InitProducerIdRequest(transactional_id=None, transaction_timeout_ms=TIMEOUT_MS)
        connection = await self.cluster.any()
        version = min(connection.version_of(InitProducerIdRequest), INIT_STABLE)
        response: InitProducerIdResponse = await connection.request(request, version=version)
        check(response.error_code)
        return Identity(response.producer_id, response.producer_epoch)


def _check(where: TopicPartition, count: int) -> None:
    if not 0 <= where.partition < count:
        raise KafkaError(Error.UNKNOWN_TOPIC_OR_PARTITION, f"topic {where.topic!r} has no partition {where.partition}")


__all__ = ["NOT_WRITTEN", "Producer", "Sent"]
