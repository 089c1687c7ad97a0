"""InitProducerId: the id with which a producer numbers its batches. DescribeProducers: those a log remembers.

InitProducerId versions: 3 may bring the current id along (KIP-360), 4 knows PRODUCER_FENCED, 6 two-phase commit (KIP-939).
With a transactional id it goes to the coordinator of that id; without one it is answered by any broker.
"""

from __future__ import annotations

from collections.abc import Awaitable

from ottla.coordination.transactions import init
from ottla.log.producers import Producer
from ottla.metadata.topics import check_name
from ottla.server.context import Context
from ottla.server.dispatch import serves
from ottla.server.handlers.transactions import with_producer_id
from ottla.server.portions import Portions
from ottla.wire.allowance import Allowance
from ottla.wire.errors import Error, KafkaError
from ottla.wire.messages.transactions import (
    DescribeProducersRequest,
    DescribeProducersResponse,
    InitProducerIdRequest,
    InitProducerIdResponse,
)


@serves(InitProducerIdRequest, versions="0-5", newest_needs="transaction.two.phase.commit.enable")
async def init_producer_id(request: InitProducerIdRequest, ctx: Context) -> InitProducerIdResponse:
    try:
        init.check(request, ctx.node.config)
        if request.transactional_id is None:
            return InitProducerIdResponse(producer_id=await ctx.node.membership.producer_id(), producer_epoch=0)
        return await _init_transactions(request, request.transactional_id, ctx)
    except KafkaError as error:
        return init.refused(error.error, ctx.version)


async def _init_transactions(
    request: InitProducerIdRequest, transactional_id: str, ctx: Context
) -> InitProducerIdResponse:
    def ask(fresh: int | None) -> Awaitable[InitProducerIdResponse]:
        wanted = init.Initiating(request, fresh)
        return ctx.transactions.decide(transactional_id, init.init_producer_id, wanted, ctx)

    return await with_producer_id(ask, ctx)


Described = DescribeProducersResponse.Topic
# What they take in an answer, about.
PARTITION_BYTES, PRODUCER_BYTES = 9, 38


@serves(DescribeProducersRequest, versions="0-0")
async def describe_producers(request: DescribeProducersRequest, ctx: Context) -> DescribeProducersResponse:
    """Producers whose batches a partition remembers, with the transactions they have open (KIP-664)."""
    portions, allowance = Portions(DescribeProducersResponse, len(request.topics), ctx), Allowance()
    for topic in request.topics:
        partitions = _described(topic.name, topic.partition_indexes, ctx, allowance)
        await portions.add(topic.name, Described(name=topic.name, partitions=partitions))
    return portions.answer


def _described(topic: str, indexes: list[int], ctx: Context, allowance: Allowance) -> list[Described.Partition]:
    try:
        check_name(topic)
        if ctx.image.topic(topic) is None:
            raise KafkaError(Error.UNKNOWN_TOPIC_OR_PARTITION, "This server does not host this topic-partition.")
    except KafkaError as error:
        refused = Described.Partition
        return [refused(partition_index=i, error_code=error.code, error_message=error.message) for i in indexes]
    told: dict[int, Described.Partition] = {}
    for index in indexes:
        if index not in told:
            told[index] = _producers(topic, index, ctx)
        allowance.take((topic, index), PARTITION_BYTES + PRODUCER_BYTES * len(told[index].active_producers))
    return [told[index] for index in indexes]


def _producers(topic: str, index: int, ctx: Context) -> Described.Partition:
    try:
        partition = ctx.replicas.find(topic, index)
    except KafkaError as error:
        return Described.Partition(partition_index=index, error_code=error.code)
    known = partition.log.producers.entries.items()
    return Described.Partition(partition_index=index, active_producers=[_producer(*each) for each in known])


def _producer(producer_id: int, producer: Producer) -> Described.Partition.Producer:
    return Described.Partition.Producer(
        producer_id=producer_id,
        producer_epoch=producer.epoch,
        last_sequence=producer.last_sequence,
        last_timestamp=producer.timestamp,
        coordinator_epoch=producer.coordinator_epoch,
        current_txn_start_offset=producer.transaction_first,
    )
