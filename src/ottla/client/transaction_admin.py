"""Looking at transactions from outside, and ending those that nobody else will end.

A transaction *hangs* when a partition holds open what its coordinator knows nothing of: no marker will ever come, and who
reads committed records only stands still at its first record. `hanging` finds such ones as Kafka's tool does: first what
has been open for long in the partitions, then whose it is, then whether the coordinator still counts the partition in.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Collection, Iterable, Sequence
from itertools import islice
from typing import NamedTuple

from ottla.client.cluster import Cluster, TopicPartition, by_topic
from ottla.client.connection import Connection, check, failure
from ottla.client.coordinator import TRANSACTION, find
from ottla.wire.errors import Error, KafkaError
from ottla.wire.messages.transactions import (
    NO_TIMEOUT_MS,
    DescribeProducersRequest,
    DescribeProducersResponse,
    DescribeTransactionsRequest,
    DescribeTransactionsResponse,
    InitProducerIdRequest,
    InitProducerIdResponse,
    ListTransactionsRequest,
    ListTransactionsResponse,
    WriteTxnMarkersRequest,
    WriteTxnMarkersResponse,
)

# Partitions that are asked about in one request.
CHUNK = 500
# What fencing asks for as the timeout of a transaction that will never be begun.
FENCE_TIMEOUT_MS = 30_000
DURATIONS_VERSION, PATTERNS_VERSION = 1, 2
NO_DURATION = -1


class TransactionListing(NamedTuple):
    transactional_id: str
    coordinator: int
    producer_id: int
    state: str


class TransactionInfo(NamedTuple):
    """A transactional id. `partitions` are those that wait for a marker, or will when the transaction ends."""

    transactional_id: str
    coordinator: int
    producer_id: int
    epoch: int
    state: str
    timeout_ms: int
    start_ms: int | None
    partitions: list[TopicPartition]

    @property
    def is_two_phase(self) -> bool:
        return self.timeout_ms == NO_TIMEOUT_MS


class ProducerInfo(NamedTuple):
    """What a partition remembers of a producer; the last field is where its open transaction began."""

    producer_id: int
    epoch: int
    coordinator_epoch: int | None
    last_sequence: int
    last_timestamp_ms: int
    start_offset: int | None


class OpenTransaction(NamedTuple):
    where: TopicPartition
    producer: ProducerInfo


class Abortion(NamedTuple):
    """A transaction in one partition that is to be given up."""

    where: TopicPartition
    producer_id: int
    epoch: int
    coordinator_epoch: int


def abortion_of(found: OpenTransaction) -> Abortion:
    """Its producer may never have ended a transaction here; no coordinator has an epoch below 0."""
    return Abortion(
        found.where, found.producer.producer_id, found.producer.epoch, max(0, found.producer.coordinator_epoch or 0)
    )


class TransactionAdmin:
    def __init__(self, cluster: Cluster) -> None:
        self.cluster = cluster

    async def transactions(
        self,
        *,
        states: Sequence[str] = (),
        producer_ids: Collection[int] = (),
        longer_than_ms: int = NO_DURATION,
        pattern: str | None = None,
    ) -> list[TransactionListing]:
        """The transactional ids that all brokers coordinate."""
        request = ListTransactionsRequest(
            state_filters=list(states),
            producer_id_filters=sorted(producer_ids),
            duration_filter=longer_than_ms,
            transactional_id_pattern=pattern,
        )
        return await self.cluster.retrying(lambda: self._list_all(request))

    async def _list_all(self, request: ListTransactionsRequest) -> list[TransactionListing]:
        """When a broker is gone, others have its ids: all of them are asked again, and only those that are there."""
        found: list[TransactionListing] = []
        for node_id in sorted(broker.node_id for broker in (await self.cluster.metadata([])).brokers):
            found += [
                TransactionListing(each.transactional_id, node_id, each.producer_id, each.transaction_state)
                for each in (await self._list(node_id, request)).transaction_states
            ]
        return sorted(found)

    async def _list(self, node_id: int, request: ListTransactionsRequest) -> ListTransactionsResponse:
        connection = await self.cluster.broker(node_id)
        _must_understand(connection, request)
        response: ListTransactionsResponse = await connection.request(request)
        check(response.error_code)
        return response

    async def describe(self, transactional_id: str) -> TransactionInfo:
        """TRANSACTIONAL_ID_NOT_FOUND for an id that nobody uses, or that was forgotten."""
        return await self.cluster.retrying(lambda: self._describe(transactional_id))

    async def _describe(self, transactional_id: str) -> TransactionInfo:
        node_id, connection = await self._coordinator(transactional_id)
        request = DescribeTransactionsRequest(transactional_ids=[transactional_id])
        response: DescribeTransactionsResponse = await connection.request(request)
        (found,) = response.transaction_states
        check(found.error_code)
        start_ms = found.transaction_start_time_ms
        return TransactionInfo(
            found.transactional_id,
            node_id,
            found.producer_id,
            found.producer_epoch,
            found.transaction_state,
            found.transaction_timeout_ms,
            start_ms if start_ms >= 0 else None,
            sorted(TopicPartition(topic.topic, number) for topic in found.topics for number in topic.partitions),
        )

    async def two_phase(self, listed: Iterable[TransactionListing]) -> set[str]:
        """Those that an outside coordinator ends. Whoever lists them does not say so: they are described, many at once. One
        that is gone by now, or that somebody else coordinates, is not among them."""
        by_node: dict[int, list[str]] = {}
        for each in listed:
            by_node.setdefault(each.coordinator, []).append(each.transactional_id)
        found: set[str] = set()
        for node_id, names in sorted(by_node.items()):
            for first in range(0, len(names), CHUNK):
                found |= await self._two_phase_of(node_id, names[first : first + CHUNK])
        return found

    async def _two_phase_of(self, node_id: int, names: list[str]) -> set[str]:
        request = DescribeTransactionsRequest(transactional_ids=names)

        async def once() -> DescribeTransactionsResponse:
            response: DescribeTransactionsResponse = await (await self.cluster.broker(node_id)).request(request)
            return response

        states = (await self.cluster.retrying(once)).transaction_states
        return {each.transactional_id for each in states if each.transaction_timeout_ms == NO_TIMEOUT_MS}

    async def _coordinator(self, transactional_id: str) -> tuple[int, Connection]:
        node = await find(self.cluster, transactional_id, TRANSACTION)
        return node.node_id, await self.cluster.broker(node.node_id)

    async def fence(self, transactional_id: str) -> None:
        """Abort what is open under this id, and shut out the producer that uses it. An unknown id becomes known."""

        async def step() -> None:
            _, connection = await self._coordinator(transactional_id)
            request = InitProducerIdRequest(transactional_id=transactional_id, transaction_timeout_ms=FENCE_TIMEOUT_MS)
            response: InitProducerIdResponse = await connection.request(request)
            check(response.error_code)

        await self.cluster.retrying(step)

    # Partitions.

    async def producers(
        self, partitions: Iterable[TopicPartition], broker: int | None = None
    ) -> dict[TopicPartition, list[ProducerInfo]]:
        """What the leaders of partitions remember, or one broker that holds them."""
        found: dict[TopicPartition, list[ProducerInfo]] = {}
        todo = iter(partitions)
        while chunk := list(islice(todo, CHUNK)):
            if broker is None:
                found |= await self.cluster.retrying(lambda chunk=chunk: self._producers(chunk, None))  # type: ignore[misc]
            else:  # a broker that was chosen and holds no copy will not hold one in a moment either
                found |= await self._producers(chunk, broker)
        return found

    async def _producers(
        self, partitions: Sequence[TopicPartition], broker: int | None
    ) -> dict[TopicPartition, list[ProducerInfo]]:
        wanted = dict.fromkeys(partitions)
        if broker is None:
            parts = await self.cluster.by_leader(wanted)
        else:
            parts = {await self.cluster.broker(broker): wanted}
        found: dict[TopicPartition, list[ProducerInfo]] = {}
        for connection, part in parts.items():
            response: DescribeProducersResponse = await connection.request(_producers_request(part))
            for topic in response.topics:
                for partition in topic.partitions:
                    if partition.error_code:
                        self.cluster.forget(topic.name)
                        raise failure(partition.error_code, partition.error_message)
                    where = TopicPartition(topic.name, partition.partition_index)
                    found[where] = [_producer(each) for each in partition.active_producers]
        return found

    async def open_at(self, where: TopicPartition, start_offset: int) -> OpenTransaction | None:
        """The transaction that began at this offset, if it is open."""
        for producer in (await self.producers([where]))[where]:
            if producer.start_offset == start_offset:
                return OpenTransaction(where, producer)
        return None

    async def abort(self, what: Abortion) -> None:
        """Write the marker that is missing in one partition; whatever coordinator there was is not asked."""
        await self.cluster.retrying(lambda: self._abort(what))

    async def _abort(self, what: Abortion) -> None:
        connection, _ = await self.cluster.leader(what.where)
        marker = WriteTxnMarkersRequest.Marker(
            producer_id=what.producer_id,
            producer_epoch=what.epoch,
            transaction_result=False,
            topics=[
                WriteTxnMarkersRequest.Marker.Topic(name=what.where.topic, partition_indexes=[what.where.partition])
            ],
            coordinator_epoch=what.coordinator_epoch,
        )
        response: WriteTxnMarkersResponse = await connection.request(WriteTxnMarkersRequest(markers=[marker]))
        code = response.markers[0].topics[0].partitions[0].error_code
        if code:
            self.cluster.forget(what.where.topic)
            raise failure(code)

    # Those that hang.

    async def hanging(
        self, partitions: Iterable[TopicPartition], longer_than_ms: int, broker: int | None = None
    ) -> list[OpenTransaction]:
        """Transactions that have been open for longer than that, and that no coordinator will end."""
        candidates = [each async for each in self._long_open(partitions, longer_than_ms, broker)]
        if not candidates:
            return []
        listed = await self.transactions(producer_ids={each.producer.producer_id for each in candidates})
        ids = {listing.producer_id: listing.transactional_id for listing in listed}
        cared_for = {name: await self._cared_for(name) for name in sorted(set(ids.values()))}
        return [
            each for each in candidates if each.where not in cared_for.get(ids.get(each.producer.producer_id, ""), ())
        ]

    async def _long_open(
        self, partitions: Iterable[TopicPartition], longer_than_ms: int, broker: int | None
    ) -> AsyncIterator[OpenTransaction]:
        for where, producers in sorted((await self.producers(partitions, broker)).items()):
            for producer in producers:
                is_old = self.cluster.now_ms() - producer.last_timestamp_ms > longer_than_ms
                if producer.start_offset is not None and is_old:
                    yield OpenTransaction(where, producer)

    async def _cared_for(self, transactional_id: str) -> list[TopicPartition]:
        """The partitions that this id's coordinator will write markers to."""
        try:
            return (await self.describe(transactional_id)).partitions
        except KafkaError as error:
            if error.error is not Error.TRANSACTIONAL_ID_NOT_FOUND:
                raise
            return []


def _must_understand(connection: Connection, request: ListTransactionsRequest) -> None:
    """An older broker would leave out the filter and answer with more than was asked for."""
    version = connection.version_of(ListTransactionsRequest)
    if request.duration_filter >= 0 and version < DURATIONS_VERSION:
        raise KafkaError(Error.UNSUPPORTED_VERSION, f"{connection.address} cannot look for transactions by duration")
    if request.transactional_id_pattern and version < PATTERNS_VERSION:
        raise KafkaError(Error.UNSUPPORTED_VERSION, f"{connection.address} cannot look for transactions by a pattern")


def _producers_request(part: dict[TopicPartition, None]) -> DescribeProducersRequest:
    topic = DescribeProducersRequest.Topic
    return DescribeProducersRequest(
        topics=[
            topic(name=name, partition_indexes=[p.partition for p in each]) for name, each in by_topic(part).items()
        ]
    )


def _producer(found: DescribeProducersResponse.Topic.Partition.Producer) -> ProducerInfo:
    return ProducerInfo(
        found.producer_id,
        found.producer_epoch,
        found.coordinator_epoch if found.coordinator_epoch >= 0 else None,
        found.last_sequence,
        found.last_timestamp,
        found.current_txn_start_offset if found.current_txn_start_offset >= 0 else None,
    )
