"""Making, growing and removing topics.

CreateTopics versions: 4 lets the broker choose both counts (KIP-464), 5 returns the settings of the new topic (KIP-525),
7 its id (KIP-516). DeleteTopics: 5 error messages, 6 by id. CreatePartitions: 2 flexible.

When an answer says that a topic was made, the topic can be used on this node at once. A request whose timeout leaves no
time at all is not begun: all its topics get REQUEST_TIMED_OUT, as in Apache Kafka.

Partitions that are made or removed count for the quota of whoever asks (KIP-599). Above it, each topic is refused from
version 6 (CreateTopics), 5 (DeleteTopics) and 3 (CreatePartitions) on; before, the client is made to wait afterwards.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence

from ottla.config import BrokerConfig
from ottla.config.describe import created_topic
from ottla.metadata import controller
from ottla.metadata.controller import MorePartitions, NewTopic
from ottla.metadata.image import Image, Topic
from ottla.server.context import Context
from ottla.server.dispatch import serves
from ottla.server.quotas import Mutations
from ottla.wire.errors import Error, KafkaError
from ottla.wire.messages.quorum import METADATA_TOPIC
from ottla.wire.messages.topics import (
    CreatePartitionsRequest,
    CreatePartitionsResponse,
    CreateTopicsRequest,
    CreateTopicsResponse,
    DeleteTopicsRequest,
    DeleteTopicsResponse,
)
from ottla.wire.schema import ZERO_UUID

UNKNOWN_TOPIC = KafkaError(Error.UNKNOWN_TOPIC_OR_PARTITION, "This server does not host this topic-partition.")
UNKNOWN_ID = KafkaError(Error.UNKNOWN_TOPIC_ID, "This server does not host this topic ID.")


def said(error: KafkaError) -> str | None:
    """What an error says beyond its number. Apache Kafka sends null where that is nothing."""
    return None if error.message == error.error.message else error.message


# --- CreateTopics


@serves(CreateTopicsRequest, versions="2-7", forwarded=True)
async def create_topics(request: CreateTopicsRequest, ctx: Context) -> CreateTopicsResponse:
    mutations = Mutations(ctx, strict_since=6)
    counts = Counter(topic.name for topic in request.topics)
    wanted = [_new_topic(t) for t in request.topics if counts[t.name] == 1 and t.name != METADATA_TOPIC]
    try:
        if wanted and request.timeout_ms <= 0:
            raise KafkaError(Error.REQUEST_TIMED_OUT)
        outcomes = await _create(wanted, request.validate_only, ctx, mutations)
    except KafkaError as error:
        return CreateTopicsResponse(topics=[_not_created(topic.name, error) for topic in request.topics])
    answers = [_created(new, outcomes[new.name], ctx.node.config) for new in wanted]
    for name, count in counts.items():
        if count > 1:
            answers.append(_not_created(name, KafkaError(Error.INVALID_REQUEST, "Duplicate topic name.")))
        elif name == METADATA_TOPIC:
            why = f"Creation of internal topic {name} is prohibited."
            answers.append(_not_created(name, KafkaError(Error.INVALID_REQUEST, why)))
    return CreateTopicsResponse(topics=answers, throttle_time_ms=mutations.wait_ms)


def _new_topic(asked: CreateTopicsRequest.Topic) -> NewTopic:
    return NewTopic(
        name=asked.name,
        partitions=asked.num_partitions,
        replication_factor=asked.replication_factor,
        assignments=[(given.partition_index, given.broker_ids) for given in asked.assignments],
        configs={config.name: config.value for config in asked.configs},
    )


async def _create(
    wanted: list[NewTopic], validate_only: bool, ctx: Context, mutations: Mutations
) -> dict[str, Topic | KafkaError]:
    if not wanted:
        return {}
    active, rng = ctx.node.controller, ctx.node.world.random
    return await active.propose(
        lambda image: controller.create_topics(
            image, wanted, active.rules, rng, validate_only=validate_only, charge=mutations.charge
        )
    )


def _created(new: NewTopic, outcome: Topic | KafkaError, config: BrokerConfig) -> CreateTopicsResponse.Topic:
    if isinstance(outcome, KafkaError):
        return _not_created(new.name, outcome)
    own = {name: value for name, value in new.configs.items() if value is not None}
    return CreateTopicsResponse.Topic(
        name=new.name,
        topic_id=outcome.id,
        error_message=None,
        num_partitions=len(outcome.partitions),
        replication_factor=len(outcome.partitions[0].replicas),
        configs=[
            CreateTopicsResponse.Topic.Config(
                name=entry.name,
                value=entry.value,
                read_only=entry.read_only,
                config_source=entry.source,
                is_sensitive=entry.sensitive,
            )
            for entry in created_topic(config, own)
        ],
    )


def _not_created(name: str, error: KafkaError) -> CreateTopicsResponse.Topic:
    return CreateTopicsResponse.Topic(name=name, error_code=error.code, error_message=said(error))


# --- DeleteTopics

Refused = tuple[str | None, bytes, KafkaError]


@serves(DeleteTopicsRequest, versions="1-6", forwarded=True)
async def delete_topics(request: DeleteTopicsRequest, ctx: Context) -> DeleteTopicsResponse:
    mutations = Mutations(ctx, strict_since=5)
    asked: list[tuple[str | None, bytes]] = [(topic.name, topic.topic_id) for topic in request.topics]
    asked += [(name, ZERO_UUID) for name in request.topic_names]
    try:
        if not ctx.node.config["delete.topic.enable"]:
            raise KafkaError(Error.INVALID_REQUEST if ctx.version < 3 else Error.TOPIC_DELETION_DISABLED)
        names, ids, refused = _sorted_out(asked)
        if (names or ids) and request.timeout_ms <= 0:
            raise KafkaError(Error.REQUEST_TIMED_OUT)
        answers = [*map(_not_deleted, refused), *await _delete(names, ids, ctx, mutations)]
        return DeleteTopicsResponse(responses=answers, throttle_time_ms=mutations.wait_ms)
    except KafkaError as error:
        return DeleteTopicsResponse(responses=[_not_deleted((name, topic_id, error)) for name, topic_id in asked])


def _sorted_out(asked: Sequence[tuple[str | None, bytes]]) -> tuple[list[str], list[bytes], list[Refused]]:
    """Names, ids, and what makes no sense: both, neither, or one of them twice."""
    refused: list[Refused] = []
    names: Counter[str] = Counter()
    ids: Counter[bytes] = Counter()
    both = KafkaError(Error.INVALID_REQUEST, "You may not specify both topic name and topic id.")
    neither = KafkaError(Error.INVALID_REQUEST, "Neither topic name nor id were specified.")
    for name, topic_id in asked:
        if name is not None and topic_id == ZERO_UUID:
            names[name] += 1
        elif name is None and topic_id != ZERO_UUID:
            ids[topic_id] += 1
        else:
            refused.append((name, topic_id, neither if name is None else both))
    name_twice = KafkaError(Error.INVALID_REQUEST, "Duplicate topic name.")
    id_twice = KafkaError(Error.INVALID_REQUEST, "Duplicate topic id.")
    refused += [(name, ZERO_UUID, name_twice) for name, count in names.items() if count > 1]
    refused += [(None, topic_id, id_twice) for topic_id, count in ids.items() if count > 1]
    return [n for n, count in names.items() if count == 1], [i for i, count in ids.items() if count == 1], refused


async def _delete(
    names: list[str], ids: list[bytes], ctx: Context, mutations: Mutations
) -> list[DeleteTopicsResponse.Topic]:
    """All in one decision, so that a name means the topic that it names when the deletion is written."""
    answers: list[DeleteTopicsResponse.Topic] = []
    if not names and not ids:
        return answers

    def decide(image: Image) -> controller.Decision[None]:
        chosen = _chosen(image, names, ids, answers)
        decision = controller.delete_topics(image, list(chosen), charge=mutations.charge)
        for topic_id, error in decision.reply.items():
            answers.append(_deleted(chosen[topic_id], topic_id, error))
        return controller.Decision(decision.records, None)

    await ctx.node.controller.propose(decide)
    return answers


def _chosen(
    image: Image, names: list[str], ids: list[bytes], answers: list[DeleteTopicsResponse.Topic]
) -> dict[bytes, str]:
    """The topics that exist, by id, with their names; answers for those that do not."""
    chosen: dict[bytes, str] = {}
    for topic_id in ids:
        topic = image.topic_by_id(topic_id)
        if topic is None:
            answers.append(_not_deleted((None, topic_id, UNKNOWN_ID)))
        else:
            chosen[topic_id] = topic.name
    for name in names:
        topic = image.topic(name)
        if topic is None:
            answers.append(_not_deleted((name, ZERO_UUID, UNKNOWN_TOPIC)))
        elif topic.id in chosen:
            why = "The provided topic name maps to an ID that was already supplied."
            answers.append(_not_deleted((name, topic.id, KafkaError(Error.INVALID_REQUEST, why))))
            del chosen[topic.id]
        else:
            chosen[topic.id] = name
    return chosen


def _deleted(name: str, topic_id: bytes, error: KafkaError | None) -> DeleteTopicsResponse.Topic:
    if error is not None:
        return _not_deleted((name, topic_id, error))
    return DeleteTopicsResponse.Topic(name=name, topic_id=topic_id)


def _not_deleted(refused: Refused) -> DeleteTopicsResponse.Topic:
    name, topic_id, error = refused
    return DeleteTopicsResponse.Topic(name=name, topic_id=topic_id, error_code=error.code, error_message=said(error))


# --- CreatePartitions


@serves(CreatePartitionsRequest, versions="0-3", forwarded=True)
async def create_partitions(request: CreatePartitionsRequest, ctx: Context) -> CreatePartitionsResponse:
    mutations = Mutations(ctx, strict_since=3)
    counts = Counter(topic.name for topic in request.topics)
    wanted = [_more(topic) for topic in request.topics if counts[topic.name] == 1]
    answers = [
        _grown(name, KafkaError(Error.INVALID_REQUEST, "Duplicate topic name."))
        for name, count in counts.items()
        if count > 1
    ]
    try:
        if wanted and request.timeout_ms <= 0:
            raise KafkaError(Error.REQUEST_TIMED_OUT)
        outcomes = await _grow(wanted, request.validate_only, ctx, mutations)
    except KafkaError as error:
        return CreatePartitionsResponse(results=[_grown(topic.name, error) for topic in request.topics])
    answers += [_grown(name, error) for name, error in outcomes.items()]
    return CreatePartitionsResponse(results=answers, throttle_time_ms=mutations.wait_ms)


def _more(asked: CreatePartitionsRequest.Topic) -> MorePartitions:
    given = None if asked.assignments is None else [assignment.broker_ids for assignment in asked.assignments]
    return MorePartitions(asked.name, asked.count, given)


async def _grow(
    wanted: list[MorePartitions], validate_only: bool, ctx: Context, mutations: Mutations
) -> dict[str, KafkaError | None]:
    if not wanted:
        return {}
    rng = ctx.node.world.random
    return await ctx.node.controller.propose(
        lambda image: controller.add_partitions(
            image, wanted, rng, validate_only=validate_only, charge=mutations.charge
        )
    )


def _grown(name: str, error: KafkaError | None) -> CreatePartitionsResponse.Topic:
    if error is None:
        return CreatePartitionsResponse.Topic(name=name)
    return CreatePartitionsResponse.Topic(name=name, error_code=error.code, error_message=said(error))
