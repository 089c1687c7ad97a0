"""Transactions told to a broker request by request, also in ways that no client library would: to have some that hang.

The producers here speak as clients of the first generation did (Produce 11, EndTxn 4): every partition is added first, or,
by `write(..., added=False)`, is not.
"""

from __future__ import annotations

from ottla.client.cluster import Cluster, TopicPartition
from ottla.client.connection import Connection, check
from ottla.client.coordinator import TRANSACTION, find
from ottla.client.transaction_admin import TransactionAdmin
from ottla.wire.errors import Error, KafkaError
from ottla.wire.messages.produce import ProduceRequest
from ottla.wire.messages.transactions import (
    AddPartitionsToTxnRequest,
    EndTxnRequest,
    InitProducerIdRequest,
    TopicPartitions,
)
from ottla.wire.records import Record, build

PRODUCE, INIT, TWO_PHASE, ADD, END = 11, 5, 6, 3, 4
STATES = {True: "CompleteCommit", False: "CompleteAbort"}


class Hand:
    """One producer. Without `begin` its id is what it was given, and no coordinator knows of it."""

    def __init__(self, cluster: Cluster, transactional_id: str, producer_id: int = -1, epoch: int = 0) -> None:
        self.cluster, self.transactional_id = cluster, transactional_id
        self.producer_id, self.epoch = producer_id, epoch
        self.sequences: dict[TopicPartition, int] = {}

    async def init(self, timeout_ms: int = 60_000, *, two_phase: bool = False) -> Hand:
        async def step() -> None:
            request = InitProducerIdRequest(
                transactional_id=self.transactional_id, transaction_timeout_ms=timeout_ms, enable_2pc=two_phase
            )
            version = TWO_PHASE if two_phase else INIT
            answer = await (await self._coordinator()).request(request, version=version)
            check(answer.error_code)
            self.producer_id, self.epoch = answer.producer_id, answer.producer_epoch

        await self.cluster.retrying(step)
        return self

    async def write(
        self, topic: str, partition: int, value: bytes = b"v", *, timestamp: int = 0, added: bool = True
    ) -> None:
        where = TopicPartition(topic, partition)
        if added:
            await self.cluster.retrying(lambda: self._add(where))
        sequence = self.sequences.get(where, 0)
        batch = build(
            [Record(timestamp=timestamp or self.cluster.now_ms(), key=b"k", value=value)],
            producer_id=self.producer_id,
            producer_epoch=self.epoch,
            base_sequence=sequence,
            transactional=True,
        )
        kind = ProduceRequest.Topic
        request = ProduceRequest(
            transactional_id=self.transactional_id,
            acks=-1,
            timeout_ms=30_000,
            topic_data=[kind(name=topic, partition_data=[kind.Partition(index=partition, records=batch)])],
        )
        connection, _ = await self.cluster.leader(where)
        answer = await connection.request(request, version=PRODUCE)
        found = answer.responses[0].partition_responses[0]
        check(found.error_code, found.error_message)
        self.sequences[where] = sequence + 1

    async def end(self, committed: bool) -> Hand:
        """Until the coordinator says that all markers are written."""
        request = EndTxnRequest(
            transactional_id=self.transactional_id,
            producer_id=self.producer_id,
            producer_epoch=self.epoch,
            committed=committed,
        )

        async def step() -> None:
            check((await (await self._coordinator()).request(request, version=END)).error_code)
            state = (await TransactionAdmin(self.cluster).describe(self.transactional_id)).state
            if state != STATES[committed]:
                raise KafkaError(Error.CONCURRENT_TRANSACTIONS, state)

        await self.cluster.retrying(step)
        return self

    async def _add(self, where: TopicPartition) -> None:
        request = AddPartitionsToTxnRequest(
            v3_and_below_transactional_id=self.transactional_id,
            v3_and_below_producer_id=self.producer_id,
            v3_and_below_producer_epoch=self.epoch,
            v3_and_below_topics=[TopicPartitions(name=where.topic, partitions=[where.partition])],
        )
        answer = await (await self._coordinator()).request(request, version=ADD)
        check(answer.results_by_topic_v3_and_below[0].results_by_partition[0].partition_error_code)

    async def _coordinator(self) -> Connection:
        node = await find(self.cluster, self.transactional_id, TRANSACTION)
        return await self.cluster.broker(node.node_id)
