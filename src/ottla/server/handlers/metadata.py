"""Where things are: Metadata and DescribeTopicPartitions.

Metadata versions: 0 takes no topics for all of them, 1 null for all and tells the controller, 4 may forbid auto-creation,
5 offline replicas, 6 LISTENER_NOT_FOUND, 7 leader epochs, 8 authorized operations, 10 topic ids in answers, 12 in requests,
13 an error of its own.

A broker that was killed is known to be gone some tens of milliseconds later, and clients ask at once when they lose a leader:
an answer that names one whose connections to us have just broken waits for that moment. And it is still listed for a while,
though it leads nothing. librdkafka would hear of the old leader, and ask again after a second; and it takes another second if
the broker that it is moving away from vanishes meanwhile.

A topic that does not exist is created soon, if client and broker allow it; the answer says that it is not known, as
Apache Kafka's does, and the client asks again. Brokers are told by the address of the listener that the client came in
on.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Iterable

from ottla.metadata.controller import NewTopic
from ottla.metadata.image import Broker, Image, Partition, Topic
from ottla.metadata.topics import (
    check_name,
    is_internal,
)
from ottla.server.access import CLUSTER_OPERATIONS, TOPIC_OPERATIONS
from ottla.server.context import Context
from ottla.server.creation import auto_topic
from ottla.server.dispatch import serves
from ottla.server.handlers.cluster import alive_on, controller_for_clients
from ottla.server.quotas import Mutations
from ottla.wire.errors import Error, KafkaError
from ottla.wire.messages.cluster import NO_OPERATIONS
from ottla.wire.messages.metadata import (
    DescribeTopicPartitionsRequest,
    DescribeTopicPartitionsResponse,
    MetadataRequest,
    MetadataResponse,
)
from ottla.wire.messages.quorum import METADATA_TOPIC
from ottla.wire.schema import ZERO_UUID

# How often to look whether there is another leader in the place of one that may be gone.
LOOK_S = 0.01
PAGE_SETTING = "max.request.partition.size.limit"

Described = DescribeTopicPartitionsResponse.Topic


# --- Metadata


@serves(MetadataRequest, versions="0-13")
async def metadata(request: MetadataRequest, ctx: Context) -> MetadataResponse:
    refusal = _refusal(request, ctx.version)
    if refusal is not None:
        return _refused(request, refusal)
    topics, missing = _wanted(request, ctx)
    while (doubtful := ctx.node.peers.in_doubt()) and _names(topics, doubtful):
        await _another_picture(ctx)
        topics, missing = _wanted(request, ctx)
    if missing:
        _create_missing(request, [topic.name or "" for topic in missing], ctx)
    image = ctx.image
    alive = alive_on(image, ctx.listener)
    asked_operations = ctx.version >= 8 and request.include_cluster_authorized_operations
    return MetadataResponse(
        brokers=[
            MetadataResponse.Broker(
                node_id=broker.id,
                host=broker.endpoints[ctx.listener].host,
                port=broker.endpoints[ctx.listener].port,
                rack=broker.rack,
            )
            for broker in [*alive, *_just_left(ctx)]
        ],
        cluster_id=image.cluster_id,
        controller_id=controller_for_clients(ctx, alive),
        topics=[*topics, *missing],
        cluster_authorized_operations=CLUSTER_OPERATIONS if asked_operations else NO_OPERATIONS,
    )


async def _another_picture(ctx: Context) -> None:
    """Or nobody is in doubt any more. An answer about ten thousand partitions is not made anew at every look."""
    image = ctx.image
    while ctx.image is image and ctx.node.peers.in_doubt():
        await asyncio.sleep(LOOK_S)


def _just_left(ctx: Context) -> list[Broker]:
    left = (ctx.image.broker(each) for each in ctx.node.peers.just_left())
    return [broker for broker in left if broker is not None and broker.fenced and ctx.listener in broker.endpoints]


def _names(topics: list[MetadataResponse.Topic], leaders: set[int]) -> bool:
    return any(partition.leader_id in leaders for topic in topics for partition in topic.partitions)


def _refusal(request: MetadataRequest, version: int) -> Error | None:
    """Topic ids came with version 10 and work from 12 on. Neither name nor id: Apache Kafka stumbles over that."""
    topics = request.topics or ()
    if version < 12 and any(topic.name is None or topic.topic_id != ZERO_UUID for topic in topics):
        return Error.INVALID_REQUEST
    if any(topic.name is None for topic in topics) and all(topic.topic_id == ZERO_UUID for topic in topics):
        return Error.UNKNOWN_SERVER_ERROR
    return None


def _refused(request: MetadataRequest, error: Error) -> MetadataResponse:
    topics = [
        MetadataResponse.Topic(error_code=error.code, name=topic.name or "", topic_id=topic.topic_id)
        for topic in request.topics or ()
    ]
    return MetadataResponse(topics=topics, error_code=error.code)


def _wanted(
    request: MetadataRequest, ctx: Context
) -> tuple[list[MetadataResponse.Topic], list[MetadataResponse.Topic]]:
    """Answers for the topics that are there, or asked for by id, and for names that nobody has."""
    image, operations = ctx.image, TOPIC_OPERATIONS if request.include_topic_authorized_operations else NO_OPERATIONS
    if request.topics is None or (ctx.version == 0 and not request.topics):
        return [_shown(topic, image, operations, ctx) for topic in image.topics.values()], []
    ids = dict.fromkeys(topic.topic_id for topic in request.topics if topic.topic_id != ZERO_UUID)
    if ids:
        # One id among the topics, and names count for nothing.
        return [_shown_by_id(topic_id, image, operations, ctx) for topic_id in ids], []
    names = dict.fromkeys(topic.name or "" for topic in request.topics)
    found = {name: topic for name in names if (topic := image.topic(name)) is not None}
    shown = [_shown(topic, image, operations, ctx) for topic in found.values()]
    return shown, [_unknown(name, operations) for name in names if name not in found]


def _shown_by_id(topic_id: bytes, image: Image, operations: int, ctx: Context) -> MetadataResponse.Topic:
    topic = image.topic_by_id(topic_id)
    if topic is None:
        return MetadataResponse.Topic(error_code=Error.UNKNOWN_TOPIC_ID.code, name=None, topic_id=topic_id)
    return _shown(topic, image, operations, ctx)


def _shown(topic: Topic, image: Image, operations: int, ctx: Context) -> MetadataResponse.Topic:
    return MetadataResponse.Topic(
        name=topic.name,
        topic_id=topic.id,
        is_internal=is_internal(topic.name),
        partitions=[_shown_partition(index, topic.partitions[index], image, ctx) for index in sorted(topic.partitions)],
        topic_authorized_operations=operations,
    )


def _shown_partition(index: int, partition: Partition, image: Image, ctx: Context) -> MetadataResponse.Topic.Partition:
    replicas, isr = list(partition.replicas), list(partition.isr)
    if ctx.version == 0:
        # The oldest clients cannot look up a broker that is not listed: leave it out and say that something is missing.
        replicas, isr = _reachable(replicas, image, ctx.listener), _reachable(isr, image, ctx.listener)
    error = _leader_error(partition.leader, image, ctx)
    if error is Error.NONE and (len(replicas) < len(partition.replicas) or len(isr) < len(partition.isr)):
        error = Error.REPLICA_NOT_AVAILABLE
    leaderless = error in (Error.LEADER_NOT_AVAILABLE, Error.LISTENER_NOT_FOUND)
    return MetadataResponse.Topic.Partition(
        error_code=error.code,
        partition_index=index,
        leader_id=-1 if leaderless else partition.leader,
        leader_epoch=partition.leader_epoch,
        replica_nodes=replicas,
        isr_nodes=isr,
        offline_replicas=_offline(partition, image, ctx.listener),
    )


def _leader_error(leader: int, image: Image, ctx: Context) -> Error:
    broker = image.broker(leader)
    if broker is None or broker.fenced:
        return Error.LEADER_NOT_AVAILABLE
    if ctx.listener not in broker.endpoints:
        return Error.LISTENER_NOT_FOUND if ctx.version >= 6 else Error.LEADER_NOT_AVAILABLE
    return Error.NONE


def _reachable(replicas: Iterable[int], image: Image, listener: str) -> list[int]:
    brokers = ((replica, image.broker(replica)) for replica in replicas)
    return [replica for replica, b in brokers if b is not None and not b.fenced and listener in b.endpoints]


def _offline(partition: Partition, image: Image, listener: str) -> list[int]:
    online = _reachable(partition.replicas, image, listener)
    return [
        replica
        for replica in partition.replicas
        if replica not in online or not image.brokers[replica].has_online(partition.directory_of(replica))
    ]


def _unknown(name: str, operations: int) -> MetadataResponse.Topic:
    error = _name_error(name)
    return MetadataResponse.Topic(
        error_code=error.code, name=name, is_internal=is_internal(name), topic_authorized_operations=operations
    )


def _name_error(name: str) -> Error:
    try:
        check_name(name)
    except KafkaError as error:
        return error.error
    return Error.UNKNOWN_TOPIC_OR_PARTITION


# --- auto-creation


def _create_missing(request: MetadataRequest, names: Iterable[str], ctx: Context) -> None:
    config = ctx.node.config
    if request.allow_auto_topic_creation and config["auto.create.topics.enable"]:
        wanted = [auto_topic(name, config) for name in names if _may_be_created(name)]
        creator = ctx.node.controller if ctx.node.controller.is_active else ctx.node.creation
        creator.create_soon(_affordable(wanted, ctx))


def _affordable(wanted: list[NewTopic], ctx: Context) -> list[NewTopic]:
    """Those that the quota on changes of topics leaves room for; of the others the client is told that they are not there."""
    if ctx.node.charging is None:
        return wanted
    mutations, left = Mutations(ctx, strict_since=0), []
    for new in wanted:
        with contextlib.suppress(KafkaError):
            mutations.charge(new.partitions if new.partitions > 0 else ctx.node.config["num.partitions"])
            left.append(new)
    return left


def _may_be_created(name: str) -> bool:
    """The metadata log has that name on disk, and no topic may share it."""
    return name != METADATA_TOPIC and _name_error(name) is Error.UNKNOWN_TOPIC_OR_PARTITION


# --- DescribeTopicPartitions


@serves(DescribeTopicPartitionsRequest, versions="0-0")
async def describe_topic_partitions(
    request: DescribeTopicPartitionsRequest, ctx: Context
) -> DescribeTopicPartitionsResponse:
    """One page: topics in the order of their names, from the cursor on, as many partitions as are allowed."""
    cursor = request.cursor
    start = "" if cursor is None else cursor.topic_name
    asked = [topic.name for topic in request.topics] or ctx.image.topic_ids
    names = sorted({name for name in asked if name >= start})
    if cursor is not None and (cursor.partition_index < 0 or (request.topics and start not in names)):
        code = Error.INVALID_REQUEST.code
        return DescribeTopicPartitionsResponse(
            topics=[Described(error_code=code, name=topic.name) for topic in request.topics]
        )
    left = max(min(ctx.node.config[PAGE_SETTING], request.response_partition_limit), 1)
    first = {start: cursor.partition_index} if cursor is not None else {}
    return _page(names, first, left, ctx)


def _page(names: list[str], first: dict[str, int], left: int, ctx: Context) -> DescribeTopicPartitionsResponse:
    answer = DescribeTopicPartitionsResponse()
    for name in names:
        if left == 0:
            answer.next_cursor = _cursor(name, 0)
            break
        topic = ctx.image.topic(name)
        if topic is None:
            answer.topics.append(_not_described(name))
            continue
        start = first.get(name, 0)
        end = min(start + left, len(topic.partitions))
        answer.topics.append(_described(topic, range(start, end), ctx))
        if end < len(topic.partitions):
            answer.next_cursor = _cursor(name, end)
            break
        left -= max(end - start, 0)
    return answer


def _cursor(name: str, index: int) -> DescribeTopicPartitionsResponse.Cursor:
    return DescribeTopicPartitionsResponse.Cursor(topic_name=name, partition_index=index)


def _not_described(name: str) -> Described:
    return Described(
        error_code=_name_error(name).code,
        name=name,
        is_internal=is_internal(name),
        topic_authorized_operations=TOPIC_OPERATIONS,
    )


def _described(topic: Topic, indexes: range, ctx: Context) -> Described:
    return Described(
        name=topic.name,
        topic_id=topic.id,
        is_internal=is_internal(topic.name),
        partitions=[_described_partition(index, topic.partitions[index], ctx) for index in indexes],
        topic_authorized_operations=TOPIC_OPERATIONS,
    )


def _described_partition(index: int, partition: Partition, ctx: Context) -> Described.Partition:
    reachable = _reachable([partition.leader], ctx.image, ctx.listener)
    return Described.Partition(
        partition_index=index,
        leader_id=partition.leader if reachable else -1,
        leader_epoch=partition.leader_epoch,
        replica_nodes=list(partition.replicas),
        isr_nodes=list(partition.isr),
        eligible_leader_replicas=list(partition.elr),
        last_known_elr=list(partition.last_known_elr),
        offline_replicas=_offline(partition, ctx.image, ctx.listener),
    )
