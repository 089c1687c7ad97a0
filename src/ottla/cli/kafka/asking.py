"""Questions that several tools put to a cluster; the answers as they came, in the broker's order."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from ottla.cli.kafka.controllers import Controllers
from ottla.client.cluster import Cluster
from ottla.client.connection import check
from ottla.wire.errors import Error, KafkaError
from ottla.wire.messages.metadata import DescribeTopicPartitionsRequest, DescribeTopicPartitionsResponse
from ottla.wire.messages.placement import ListPartitionReassignmentsRequest, ListPartitionReassignmentsResponse
from ottla.wire.messages.settings import DescribeConfigsRequest, DescribeConfigsResponse
from ottla.wire.schema import Message

TOPIC, BROKER, BROKER_LOGGER, CLIENT_METRICS, GROUP = 2, 4, 8, 16, 32
PAGE = 2000
# The source of a setting that nobody set.
DEFAULT_SOURCE = 5

Described = DescribeTopicPartitionsResponse.Topic
Moving = ListPartitionReassignmentsResponse.Topic.Partition
Config = DescribeConfigsResponse.Resource.Config


async def ask(cluster: Cluster, request: Message, node_id: int | None = None) -> Any:
    """The answer of one broker, or of any."""
    connection = await (cluster.any() if node_id is None else cluster.broker(node_id))
    return await connection.request(request)


async def node_ids(cluster: Cluster) -> list[int]:
    """The brokers that live; or the controllers, where only those are asked."""
    if isinstance(cluster, Controllers):
        return sorted(cluster.brokers)
    return sorted(broker.node_id for broker in (await cluster.metadata([])).brokers)


async def topic_ids(cluster: Cluster, *, internal: bool = True) -> dict[str, bytes]:
    """All topics with their ids, by name."""
    response = await cluster.metadata(None)
    found = [topic for topic in response.topics if internal or not topic.is_internal]
    return {topic.name or "": topic.topic_id for topic in sorted(found, key=lambda topic: topic.name or "")}


async def describe_topics(cluster: Cluster, names: Sequence[str], page: int = PAGE) -> list[Described]:
    """Topics with their partitions, page by page. From brokers that cannot do that, what Metadata knows."""
    found: dict[str, Described] = {}
    cursor: Any = None
    request = DescribeTopicPartitionsRequest
    while names:
        wanted = [request.Topic(name=name) for name in sorted(names)]
        answer = await ask(cluster, request(topics=wanted, response_partition_limit=page, cursor=cursor))
        for topic in answer.topics:
            check(topic.error_code)
            known = found.setdefault(topic.name or "", topic)
            if known is not topic:
                known.partitions += topic.partitions
        if answer.next_cursor is None:
            break
        cursor = request.Cursor(
            topic_name=answer.next_cursor.topic_name, partition_index=answer.next_cursor.partition_index
        )
        names = [name for name in names if name >= cursor.topic_name]
    return list(found.values())


async def configs(
    cluster: Cluster, kind: int, names: Iterable[str], *, synonyms: bool = False, node_id: int | None = None
) -> dict[str, list[Config]]:
    """Settings of several things of one kind, by the thing's name."""
    resource = DescribeConfigsRequest.Resource
    wanted = [resource(resource_type=kind, resource_name=name, configuration_keys=None) for name in names]
    if not wanted:
        return {}
    answer = await ask(cluster, DescribeConfigsRequest(resources=wanted, include_synonyms=synonyms), node_id)
    for result in answer.results:
        check(result.error_code, result.error_message)
    return {result.resource_name: result.configs for result in answer.results}


async def reassignments(
    cluster: Cluster, partitions: Mapping[str, Sequence[int]] | None = None
) -> dict[tuple[str, int], Moving]:
    """What moves between brokers now. A broker that does not know the question moves nothing."""
    request = ListPartitionReassignmentsRequest
    topics = None
    if partitions is not None:
        topics = [request.Topic(name=name, partition_indexes=list(each)) for name, each in partitions.items()]
    try:
        answer = await ask(cluster, request(topics=topics))
    except KafkaError as error:
        if error.error is Error.UNSUPPORTED_VERSION:
            return {}
        raise
    check(answer.error_code, answer.error_message)
    return {(topic.name, each.partition_index): each for topic in answer.topics for each in topic.partitions}
