"""Committed offsets: kept, told, forgotten.

OffsetCommit versions: 2-4 may say how long to keep an offset, 6 leader epochs (KIP-320), 7 static members (KIP-345), 8
flexible, 9 members of consumer groups (KIP-848), 10 topic ids (KIP-516). OffsetFetch: 2 all topics and an error for the whole
group, 5 leader epochs, 6 flexible, 7 stable offsets (KIP-447), 8 many groups (KIP-709), 9 members of consumer groups, 10
topic ids. TxnOffsetCommit: 2 leader epochs, 3 members (KIP-447), 4 TRANSACTION_ABORTABLE, 5 the partition of the group comes
into the transaction by itself (KIP-890).

Partitions that do not exist are refused here, each for itself, and before anybody asks whether the group does: a commit
that names nothing else never reaches the coordinator.
"""

from __future__ import annotations

from collections.abc import Container
from typing import Any

from ottla.coordination import commits
from ottla.coordination.checks import check_named
from ottla.coordination.commits import Wanted, WantedTopic, not_told
from ottla.metadata.image import Image
from ottla.metadata.topics import CONSUMER_OFFSETS
from ottla.server.context import Context
from ottla.server.coordinators import partition_of
from ottla.server.dispatch import serves
from ottla.server.portions import Portions
from ottla.server.shard import ProducerKey, told
from ottla.server.verifying import Entrant, Manner, admit
from ottla.wire.errors import Error, KafkaError
from ottla.wire.messages.commits import (
    OffsetCommitRequest,
    OffsetCommitResponse,
    OffsetDeleteRequest,
    OffsetDeleteResponse,
    OffsetFetchRequest,
    OffsetFetchResponse,
)
from ottla.wire.messages.transactions import TxnOffsetCommitRequest, TxnOffsetCommitResponse
from ottla.wire.schema import ZERO_UUID

IDS_SINCE = 10
MANY_GROUPS_SINCE = 8
GROUP_ERROR_SINCE = 2
# Of TxnOffsetCommit: older producers end on COORDINATOR_LOAD_IN_PROGRESS; what they know about transactions.
LOADING_SINCE, ABORTS_SINCE, ADDS_SINCE = 2, 4, 5
NO_SEQUENCE = -1

# --- OffsetCommit

Committing = OffsetCommitRequest.Topic
Committed = OffsetCommitResponse.Topic


@serves(OffsetCommitRequest, versions="2-10")
async def offset_commit(request: OffsetCommitRequest, ctx: Context) -> OffsetCommitResponse:
    by_id = ctx.version >= IDS_SINCE
    request.topics, refused = _existing(request.topics, ctx.image, by_id)
    answer = OffsetCommitResponse()
    if request.topics:
        try:
            answer = await ctx.groups.decide(request.group_id, commits.commit, request, ctx)
        except KafkaError as error:
            answer.topics = [_not_committed(topic, error.error, topic.partitions) for topic in request.topics]
    if refused:
        answer = OffsetCommitResponse(topics=_joined(refused, answer.topics, "topic_id" if by_id else "name"))
    return answer


def _existing(asked: list[Committing], image: Image, by_id: bool) -> tuple[list[Committing], list[Committed]]:
    """What exists, with names and ids; and answers for what does not."""
    existing, refused = [], []
    for topic in asked:
        known = image.topic_by_id(topic.topic_id) if by_id else image.topic(topic.name)
        if known is None:
            error = Error.UNKNOWN_TOPIC_ID if by_id else Error.UNKNOWN_TOPIC_OR_PARTITION
            refused.append(_not_committed(topic, error, topic.partitions))
            continue
        there = [p for p in topic.partitions if p.partition_index in known.partitions]
        if len(there) < len(topic.partitions):
            missing = [p for p in topic.partitions if p.partition_index not in known.partitions]
            refused.append(_not_committed(topic, Error.UNKNOWN_TOPIC_OR_PARTITION, missing))
        if there:
            topic.name, topic.topic_id, topic.partitions = known.name, known.id, there
            existing.append(topic)
    return existing, refused


def _not_committed(topic: Committing, error: Error, partitions: list[Committing.Partition]) -> Committed:
    told = [Committed.Partition(partition_index=p.partition_index, error_code=error.code) for p in partitions]
    return Committed(name=topic.name, topic_id=topic.topic_id, partitions=told)


def _joined(refused: list[Any], answered: list[Any], named_by: str) -> list[Any]:
    """One answer for each topic, what was refused first. What was answered may still be revoked, and only that."""
    topics: dict[object, Any] = {}
    for topic in (*refused, *answered):
        known = topics.setdefault(getattr(topic, named_by), topic)
        if known is not topic:
            known.partitions += topic.partitions
    return list(topics.values())


# --- TxnOffsetCommit

Holding = TxnOffsetCommitRequest.Topic
Held = TxnOffsetCommitResponse.Topic


@serves(TxnOffsetCommitRequest, versions="0-5")
async def txn_offset_commit(request: TxnOffsetCommitRequest, ctx: Context) -> TxnOffsetCommitResponse:
    request.topics, refused = _existing_to_hold(request.topics, ctx.image)
    answer = await _hold(request, ctx) if request.topics else TxnOffsetCommitResponse()
    if refused:
        answer = TxnOffsetCommitResponse(topics=_joined(refused, answer.topics, "name"))
    return answer


def _existing_to_hold(asked: list[Holding], image: Image) -> tuple[list[Holding], list[Held]]:
    existing, refused = [], []
    for topic in asked:
        known = image.topic(topic.name)
        indexes: Container[int] = () if known is None else known.partitions
        there = [p for p in topic.partitions if p.partition_index in indexes]
        missing = [p for p in topic.partitions if p.partition_index not in indexes]
        if missing or known is None:
            refused.append(_not_held(topic.name, Error.UNKNOWN_TOPIC_OR_PARTITION, missing))
        if there:
            existing.append(Holding(name=topic.name, partitions=there))
    return existing, refused


def _not_held(topic: str, error: Error, partitions: list[Holding.Partition]) -> Held:
    told = [Held.Partition(partition_index=p.partition_index, error_code=error.code) for p in partitions]
    return Held(name=topic, partitions=told)


async def _hold(request: TxnOffsetCommitRequest, ctx: Context) -> TxnOffsetCommitResponse:
    try:
        check_named(request.group_id)
        producer = await _admitted(request, ctx)
        return await ctx.groups.decide(request.group_id, commits.commit_in_transaction, request, ctx, producer)
    except KafkaError as error:
        why = error.error
    if why is Error.COORDINATOR_LOAD_IN_PROGRESS and ctx.version < LOADING_SINCE:
        why = Error.COORDINATOR_NOT_AVAILABLE
    return TxnOffsetCommitResponse(topics=[_not_held(t.name, why, t.partitions) for t in request.topics])


async def _admitted(request: TxnOffsetCommitRequest, ctx: Context) -> ProducerKey:
    """The transaction must have a coordinator that knows of it, or nobody would ever end it."""
    topic = ctx.image.topic(CONSUMER_OFFSETS)
    if topic is None:
        raise KafkaError(Error.COORDINATOR_NOT_AVAILABLE)
    place = CONSUMER_OFFSETS, partition_of(request.group_id, len(topic.partitions))
    manner = Manner.ADDS if ctx.version >= ADDS_SINCE else Manner(ctx.version >= ABORTS_SINCE)
    entrant = Entrant(request.transactional_id, request.producer_id, request.producer_epoch, manner)
    verdict = (await admit(ctx.node, entrant, {place: NO_SEQUENCE}))[place]
    if isinstance(verdict, KafkaError):
        raise told(verdict)
    return ProducerKey(request.producer_id, request.producer_epoch, verdict)


# --- OffsetFetch


@serves(OffsetFetchRequest, versions="1-10")
async def offset_fetch(request: OffsetFetchRequest, ctx: Context) -> OffsetFetchResponse:
    if ctx.version < MANY_GROUPS_SINCE:
        topics = request.topics
        group = OffsetFetchRequest.Group(
            group_id=request.group_id,
            topics=None
            if topics is None
            else [OffsetFetchRequest.Group.Topic(name=t.name, partition_indexes=t.partition_indexes) for t in topics],
        )
        return _as_one_group(await _fetch(group, request.require_stable, ctx))
    portions = Portions(OffsetFetchResponse, len(request.groups), ctx)
    for group in request.groups:
        await portions.add(group.group_id, await _fetch(group, request.require_stable, ctx))
    return portions.answer


async def _fetch(group: OffsetFetchRequest.Group, require_stable: bool, ctx: Context) -> OffsetFetchResponse.Group:
    topics, refused = _wanted(group, ctx)
    wanted = Wanted(group.group_id, topics, group.member_id, group.member_epoch, require_stable)
    try:
        answer = await ctx.groups.decide(group.group_id, commits.fetch, wanted, ctx)
    except KafkaError as error:
        return _no_group(group, error.error, ctx.version)
    if topics is None and ctx.version >= IDS_SINCE:
        answer.topics = [topic for topic in answer.topics if _identified(topic, ctx.image)]
    answer.topics += refused
    return answer


def _wanted(
    group: OffsetFetchRequest.Group, ctx: Context
) -> tuple[list[WantedTopic] | None, list[OffsetFetchResponse.Group.Topic]]:
    """Topics by name, and answers for ids that nobody has. A name may be of a topic that does not exist."""
    if group.topics is None:
        return None, []
    if ctx.version < IDS_SINCE:
        return [WantedTopic(topic.name, ZERO_UUID, topic.partition_indexes) for topic in group.topics], []
    wanted, refused = [], []
    for topic in group.topics:
        known = ctx.image.topic_by_id(topic.topic_id)
        if known is None:
            told = [not_told(index, Error.UNKNOWN_TOPIC_ID) for index in topic.partition_indexes]
            refused.append(OffsetFetchResponse.Group.Topic(topic_id=topic.topic_id, partitions=told))
        else:
            wanted.append(WantedTopic(known.name, known.id, topic.partition_indexes))
    return wanted, refused


def _identified(topic: OffsetFetchResponse.Group.Topic, image: Image) -> bool:
    """Give a topic the id it has now; one that does not exist any more cannot be told by id."""
    known = image.topic(topic.name)
    if known is not None:
        topic.topic_id = known.id
    return known is not None


def _no_group(group: OffsetFetchRequest.Group, error: Error, version: int) -> OffsetFetchResponse.Group:
    """Consumers before 3.9 do not try again when the coordinator is not available, so they are sent to look for it. Some
    libraries (aiokafka) look at partitions alone, and take one that is not told for one without an offset: they would begin
    anew, because a coordinator is loading."""
    if error is Error.COORDINATOR_NOT_AVAILABLE:
        error = Error.NOT_COORDINATOR
    answer = OffsetFetchResponse.Group(group_id=group.group_id, error_code=error.code)
    if version < GROUP_ERROR_SINCE or (version < MANY_GROUPS_SINCE and error.retriable):
        answer.topics = [
            OffsetFetchResponse.Group.Topic(name=t.name, partitions=[not_told(i, error) for i in t.partition_indexes])
            for t in group.topics or ()
        ]
    return answer


def _as_one_group(group: OffsetFetchResponse.Group) -> OffsetFetchResponse:
    """Before version 8 an answer is about one group, and its fields have other places."""
    topics = [
        OffsetFetchResponse.Topic(
            name=topic.name,
            partitions=[
                OffsetFetchResponse.Topic.Partition(
                    partition_index=told.partition_index,
                    committed_offset=told.committed_offset,
                    committed_leader_epoch=told.committed_leader_epoch,
                    metadata=told.metadata,
                    error_code=told.error_code,
                )
                for told in topic.partitions
            ],
        )
        for topic in group.topics
    ]
    return OffsetFetchResponse(topics=topics, error_code=group.error_code)


# --- OffsetDelete

Deleting = OffsetDeleteRequest.Topic
Deleted = OffsetDeleteResponse.Topic


@serves(OffsetDeleteRequest, versions="0-0")
async def offset_delete(request: OffsetDeleteRequest, ctx: Context) -> OffsetDeleteResponse:
    request.topics, refused = _existing_to_delete(request.topics, ctx.image)
    try:
        check_named(request.group_id)
        answer = await ctx.groups.decide(request.group_id, commits.delete, request, ctx)
    except KafkaError as error:
        return OffsetDeleteResponse(error_code=error.code)
    if refused:
        answer.topics = _joined(refused, answer.topics, "name")
    return answer


def _existing_to_delete(asked: list[Deleting], image: Image) -> tuple[list[Deleting], list[Deleted]]:
    existing, refused = [], []
    for topic in asked:
        known = image.topic(topic.name)
        indexes: frozenset[int] | set[int] = frozenset() if known is None else set(known.partitions)
        there = [p for p in topic.partitions if p.partition_index in indexes]
        code = Error.UNKNOWN_TOPIC_OR_PARTITION.code
        missing = [
            Deleted.Partition(partition_index=p.partition_index, error_code=code)
            for p in topic.partitions
            if p.partition_index not in indexes
        ]
        if missing or known is None:
            refused.append(Deleted(name=topic.name, partitions=missing))
        if there:
            existing.append(Deleting(name=topic.name, partitions=there))
    return existing, refused
