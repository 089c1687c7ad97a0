"""What producers and leaders of partitions ask the coordinator of a transactional id, and what tools ask about it.

AddPartitionsToTxn versions: 4 many transactions at once, asked by brokers, also to verify only. AddOffsetsToTxn adds the
partition where the offsets of a group live. EndTxn: 5 brings a new epoch. All know PRODUCER_FENCED from version 2 on. What
else the versions changed stands with their layouts in `wire/messages/transactions.py`; what is done is decided in
`coordination/transactions/`.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Collection, Iterable
from typing import TypeVar

from ottla.coordination.transactions import adding, describing, ending
from ottla.coordination.transactions.adding import Admission, Outcomes
from ottla.coordination.transactions.states import TopicPartition, as_known
from ottla.coordination.transactions.waiting import WantsProducerId
from ottla.metadata.topics import CONSUMER_OFFSETS, is_internal
from ottla.server.context import Context
from ottla.server.coordinators import partition_of
from ottla.server.dispatch import serves
from ottla.server.portions import Portions
from ottla.wire.errors import Error, KafkaError
from ottla.wire.messages.transactions import (
    AddedTopic,
    AddOffsetsToTxnRequest,
    AddOffsetsToTxnResponse,
    AddPartitionsToTxnRequest,
    AddPartitionsToTxnResponse,
    DescribeTransactionsRequest,
    DescribeTransactionsResponse,
    EndTxnRequest,
    EndTxnResponse,
    ListTransactionsRequest,
    ListTransactionsResponse,
    TopicPartitions,
)

KNOWS_FENCED = 2
# From this version on brokers ask, for many transactions.
MANY_TRANSACTIONS = 4

Reply = TypeVar("Reply")
Result = AddPartitionsToTxnResponse.Result
Described = DescribeTransactionsResponse.TransactionState


async def with_producer_id(ask: Callable[[int | None], Awaitable[Reply]], ctx: Context) -> Reply:
    """Ask; and again with a fresh producer id, if it takes one. Most requests do not."""
    try:
        return await ask(None)
    except WantsProducerId:
        return await ask(await ctx.node.membership.producer_id())


def _told(error: Error, version: int) -> int:
    return as_known(error, version, KNOWS_FENCED).code


# --- adding


@serves(AddPartitionsToTxnRequest, versions="0-5")
async def add_partitions_to_txn(request: AddPartitionsToTxnRequest, ctx: Context) -> AddPartitionsToTxnResponse:
    if ctx.version < MANY_TRANSACTIONS:
        topics = request.v3_and_below_topics
        return AddPartitionsToTxnResponse(
            results_by_topic_v3_and_below=await _admit(_of_client(request), topics, ctx),
        )
    asked = request.transactions
    found = await asyncio.gather(*(_admit(_of_broker(each), each.topics, ctx) for each in asked))
    return AddPartitionsToTxnResponse(
        results_by_transaction=[
            Result(transactional_id=each.transactional_id, topic_results=results)
            for each, results in zip(asked, found, strict=True)
        ]
    )


def _of_client(request: AddPartitionsToTxnRequest) -> Admission:
    return Admission(
        request.v3_and_below_transactional_id,
        request.v3_and_below_producer_id,
        request.v3_and_below_producer_epoch,
        _partitions(request.v3_and_below_topics),
        transaction_version=0,
    )


def _of_broker(wanted: AddPartitionsToTxnRequest.Transaction) -> Admission:
    return Admission(
        wanted.transactional_id,
        wanted.producer_id,
        wanted.producer_epoch,
        _partitions(wanted.topics),
        verify_only=wanted.verify_only,
    )


def _partitions(topics: Iterable[TopicPartitions]) -> tuple[TopicPartition, ...]:
    return tuple(dict.fromkeys((topic.name, index) for topic in topics for index in topic.partitions))


async def _admit(admission: Admission, topics: list[TopicPartitions], ctx: Context) -> list[AddedTopic]:
    """One partition that cannot be added keeps all of them out."""
    if refused := _refusals(admission.partitions, ctx):
        left = Error.OPERATION_NOT_ATTEMPTED
        return _by_topic({each: refused.get(each, left) for each in admission.partitions}, ctx.version)
    outcomes = await _ask(admission, ctx)
    return _by_topic(outcomes, ctx.version) if admission.verify_only else _as_asked(topics, outcomes, ctx.version)


async def _ask(admission: Admission, ctx: Context) -> Outcomes:
    if not admission.transactional_id:
        return admission.all(Error.INVALID_REQUEST)
    try:
        return await ctx.transactions.decide(admission.transactional_id, adding.admit, admission, ctx)
    except KafkaError as error:
        return admission.all(error.error)


def _refusals(partitions: Iterable[TopicPartition], ctx: Context) -> Outcomes:
    """No client writes to internal topics; brokers ask on behalf of those who commit offsets."""
    refused: Outcomes = {}
    there: dict[str, Collection[int]] = {}
    for name, index in partitions:
        if ctx.version < MANY_TRANSACTIONS and is_internal(name):
            refused[name, index] = Error.TOPIC_AUTHORIZATION_FAILED
            continue
        if name not in there:
            topic = ctx.image.topic(name)
            there[name] = () if topic is None else topic.partitions
        if index not in there[name]:
            refused[name, index] = Error.UNKNOWN_TOPIC_OR_PARTITION
    return refused


def _as_asked(topics: list[TopicPartitions], outcomes: Outcomes, version: int) -> list[AddedTopic]:
    """For each topic as it was asked for, even if that was for nothing, or twice."""
    kind = AddedTopic.Partition
    return [
        AddedTopic(
            name=topic.name,
            results_by_partition=[
                kind(partition_index=index, partition_error_code=_told(outcomes[topic.name, index], version))
                for index in topic.partitions
            ],
        )
        for topic in topics
    ]


def _by_topic(outcomes: Outcomes, version: int) -> list[AddedTopic]:
    topics: dict[str, list[AddedTopic.Partition]] = {}
    for (name, index), error in outcomes.items():
        told = AddedTopic.Partition(partition_index=index, partition_error_code=_told(error, version))
        topics.setdefault(name, []).append(told)
    return [AddedTopic(name=name, results_by_partition=partitions) for name, partitions in topics.items()]


@serves(AddOffsetsToTxnRequest, versions="0-4")
async def add_offsets_to_txn(request: AddOffsetsToTxnRequest, ctx: Context) -> AddOffsetsToTxnResponse:
    place = _place_of_offsets(request.group_id, ctx)
    admission = Admission(
        request.transactional_id, request.producer_id, request.producer_epoch, (place,), transaction_version=0
    )
    try:
        if not request.transactional_id:
            raise KafkaError(Error.INVALID_REQUEST)
        outcomes = await ctx.transactions.decide(request.transactional_id, adding.admit, admission, ctx)
        return AddOffsetsToTxnResponse(error_code=_told(outcomes[place], ctx.version))
    except KafkaError as error:
        return AddOffsetsToTxnResponse(error_code=error.code)


def _place_of_offsets(group_id: str, ctx: Context) -> TopicPartition:
    """Also where nobody has asked for the group yet: the topic is made when somebody does."""
    topic = ctx.image.topic(CONSUMER_OFFSETS)
    count = ctx.node.config["offsets.topic.num.partitions"] if topic is None else len(topic.partitions)
    return CONSUMER_OFFSETS, partition_of(group_id, count)


# --- ending


@serves(EndTxnRequest, versions="0-5")
async def end_txn(request: EndTxnRequest, ctx: Context) -> EndTxnResponse:
    def ask(fresh: int | None) -> Awaitable[EndTxnResponse]:
        wanted = ending.Ending(request, fresh)
        return ctx.transactions.decide(request.transactional_id, ending.end, wanted, ctx)

    try:
        if not request.transactional_id:
            raise KafkaError(Error.INVALID_REQUEST)
        return await with_producer_id(ask, ctx)
    except KafkaError as error:
        return EndTxnResponse(error_code=error.code)


# --- looking


@serves(DescribeTransactionsRequest, versions="0-0")
async def describe_transactions(request: DescribeTransactionsRequest, ctx: Context) -> DescribeTransactionsResponse:
    portions = Portions(DescribeTransactionsResponse, len(request.transactional_ids), ctx)
    for name in request.transactional_ids:
        await portions.add(name, await _described(name, ctx))
    return portions.answer


async def _described(transactional_id: str, ctx: Context) -> Described:
    try:
        if not transactional_id:
            raise KafkaError(Error.INVALID_REQUEST)
        return await ctx.transactions.decide(transactional_id, describing.describe, transactional_id, ctx)
    except KafkaError as error:
        return Described(error_code=error.code, transactional_id=transactional_id)


@serves(ListTransactionsRequest, versions="0-2")
async def list_transactions(request: ListTransactionsRequest, ctx: Context) -> ListTransactionsResponse:
    """Of this broker's partitions; while one of them is loading, none."""
    try:
        wanted, shards = describing.Filter.of(request), ctx.transactions.all()
        known = describing.passing([shard.state for shard in shards], wanted, ctx.now_ms)
        matched = describing.matching(known, wanted)
        while not matched.go_on():
            await asyncio.sleep(0)
        found = describing.listed(known, matched)
        for shard in shards:
            await shard.committed()
    except KafkaError as error:
        return ListTransactionsResponse(error_code=error.code)
    return ListTransactionsResponse(unknown_state_filters=wanted.unknown_states, transaction_states=found)
