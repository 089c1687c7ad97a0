"""FindCoordinator: which broker coordinates a group, a transactional id or a share partition.

Versions: 1 kinds of keys other than groups, 3 flexible, 4 many keys, 6 share partitions (KIP-932).

What a coordinator remembers lives in an internal topic; whoever leads the partition that a key hashes to is its coordinator.
Apache Kafka answers COORDINATOR_NOT_AVAILABLE while it makes the topic; here the first client waits for it.
"""

from __future__ import annotations

import logging

from ottla.metadata.controller import NewTopic, create_topics
from ottla.metadata.topics import CONSUMER_OFFSETS, TRANSACTION_STATE
from ottla.server.context import Context
from ottla.server.coordinators import partition_of
from ottla.server.creation import auto_topic
from ottla.server.dispatch import serves
from ottla.wire.errors import Error, KafkaError
from ottla.wire.ids import uuid_bytes
from ottla.wire.messages.groups import FindCoordinatorRequest, FindCoordinatorResponse

log = logging.getLogger("ottla.coordination")

GROUP, TRANSACTION, SHARE = range(3)
# The topic of each kind of key that is coordinated here.
TOPICS = {GROUP: CONSUMER_OFFSETS, TRANSACTION: TRANSACTION_STATE}
# What cannot begin without it, and the setting that is usually to blame.
NEEDED_BY = {
    CONSUMER_OFFSETS: ("group", "offsets.topic.replication.factor"),
    TRANSACTION_STATE: ("transaction", "transaction.state.log.replication.factor"),
}
MANY_KEYS, SHARE_KEYS = 4, 6

Coordinator = FindCoordinatorResponse.Coordinator


@serves(FindCoordinatorRequest, versions="0-6")
async def find_coordinator(request: FindCoordinatorRequest, ctx: Context) -> FindCoordinatorResponse:
    if ctx.version >= MANY_KEYS:
        found = [await _coordinator(key, request.key_type, ctx) for key in request.coordinator_keys]
        return FindCoordinatorResponse(coordinators=found)
    one = await _coordinator(request.key, request.key_type, ctx)
    return FindCoordinatorResponse(
        error_code=one.error_code,
        error_message=one.error_message or "NONE",  # as Apache Kafka says it
        node_id=one.node_id,
        host=one.host,
        port=one.port,
    )


async def _coordinator(key: str, kind: int, ctx: Context) -> Coordinator:
    try:
        if kind not in (GROUP, TRANSACTION, SHARE) or (kind == SHARE and not _names_share_partition(key, ctx)):
            raise KafkaError(Error.INVALID_REQUEST)
        if kind not in TOPICS:
            raise KafkaError(Error.COORDINATOR_NOT_AVAILABLE, "share partitions are not coordinated here")
        return await _leader(key, TOPICS[kind], ctx)
    except KafkaError as error:
        return Coordinator(key=key, node_id=-1, host="", port=-1, error_code=error.code, error_message=error.message)


def _names_share_partition(key: str, ctx: Context) -> bool:
    """Whether it reads group:topic id:partition. The name of a group may have colons of its own."""
    try:
        group, topic_id, partition = key.rsplit(":", 2)
        uuid_bytes(topic_id)
        int(partition)
    except ValueError:
        return False
    return ctx.version >= SHARE_KEYS and bool(group.strip())


async def _leader(key: str, name: str, ctx: Context) -> Coordinator:
    """Who leads the partition of an internal topic that the key belongs to."""
    topic = ctx.image.topic(name)
    if topic is None:
        await _make(name, ctx)
        topic = ctx.image.topic(name)
        if topic is None:
            raise KafkaError(Error.COORDINATOR_NOT_AVAILABLE)
    broker = ctx.image.broker(topic.partitions[partition_of(key, len(topic.partitions))].leader)
    if broker is None or broker.fenced or ctx.listener not in broker.endpoints:
        raise KafkaError(Error.COORDINATOR_NOT_AVAILABLE)
    endpoint = broker.endpoints[ctx.listener]
    return Coordinator(key=key, node_id=broker.id, host=endpoint.host, port=endpoint.port, error_message="")


async def _make(name: str, ctx: Context) -> None:
    new = auto_topic(name, ctx.node.config)
    error = await (_decide(new, ctx) if ctx.node.controller.is_active else ctx.node.creation.create(new))
    if error is not None and error.error is Error.REQUEST_TIMED_OUT:
        raise KafkaError(Error.COORDINATOR_NOT_AVAILABLE, error.message)
    if error is not None:
        # Clients ask again and again, and say nothing to whoever waits for them.
        what, setting = NEEDED_BY[name]
        log.warning("no %s can begin: %s Start more brokers, or lower %s.", what, error.message, setting)


async def _decide(new: NewTopic, ctx: Context) -> KafkaError | None:
    active, rng = ctx.node.controller, ctx.node.world.random
    try:
        outcomes = await active.propose(lambda image: create_topics(image, [new], active.rules, rng))
    except KafkaError as error:
        raise KafkaError(Error.COORDINATOR_NOT_AVAILABLE, error.message)
    outcome = outcomes[new.name]
    failed = isinstance(outcome, KafkaError) and outcome.error is not Error.TOPIC_ALREADY_EXISTS
    return outcome if failed else None  # type: ignore[return-value]
