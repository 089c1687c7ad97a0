"""Topics and settings: make, list, describe, change, remove. Each call raises KafkaError when the cluster says no."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any, NamedTuple

from ottla.client.cluster import Cluster, NoTopic, TopicPartition, by_topic
from ottla.client.connection import check
from ottla.wire.errors import Error
from ottla.wire.messages.metadata import MetadataResponse
from ottla.wire.messages.offsets import DeleteRecordsRequest, DeleteRecordsResponse
from ottla.wire.messages.settings import (
    DescribeConfigsRequest,
    DescribeConfigsResponse,
    IncrementalAlterConfigsRequest,
    IncrementalAlterConfigsResponse,
)
from ottla.wire.messages.topics import (
    CreatePartitionsRequest,
    CreatePartitionsResponse,
    CreateTopicsRequest,
    CreateTopicsResponse,
    DeleteTopicsRequest,
    DeleteTopicsResponse,
)
from ottla.wire.schema import Message

TOPIC, BROKER = 2, 4
SET, DELETE = 0, 1
TIMEOUT_MS = 30000
# Where a setting's value comes from, by its number in DescribeConfigs.
SOURCES = {
    1: "topic",
    2: "broker",
    3: "all brokers",
    4: "file",
    5: "default",
    6: "logger",
    7: "client metrics",
    8: "group",
}


class PartitionInfo(NamedTuple):
    partition: int
    leader: int
    leader_epoch: int
    replicas: list[int]
    isr: list[int]
    offline: list[int]


class TopicInfo(NamedTuple):
    name: str
    topic_id: bytes
    is_internal: bool
    partitions: list[PartitionInfo]


class Setting(NamedTuple):
    name: str
    value: str | None
    source: str
    read_only: bool
    sensitive: bool


class Admin:
    def __init__(self, cluster: Cluster) -> None:
        self.cluster = cluster

    async def create_topic(
        self,
        name: str,
        *,
        partitions: int = -1,
        replication_factor: int = -1,
        configs: Mapping[str, str] | None = None,
        validate_only: bool = False,
    ) -> CreateTopicsResponse.Topic:
        """-1 leaves the number to the cluster."""
        topic = CreateTopicsRequest.Topic(
            name=name,
            num_partitions=partitions,
            replication_factor=replication_factor,
            configs=[CreateTopicsRequest.Topic.Config(name=k, value=value) for k, value in (configs or {}).items()],
        )
        request = CreateTopicsRequest(topics=[topic], timeout_ms=TIMEOUT_MS, validate_only=validate_only)

        async def step() -> CreateTopicsResponse.Topic:
            response: CreateTopicsResponse = await self._ask(request)
            check(response.topics[0].error_code, response.topics[0].error_message)
            return response.topics[0]

        return await self.cluster.retrying(step)

    async def delete_topic(self, name: str) -> None:
        # Which of the two fields goes out depends on the version.
        topics = [DeleteTopicsRequest.Topic(name=name)]
        request = DeleteTopicsRequest(topics=topics, topic_names=[name], timeout_ms=TIMEOUT_MS)
        response: DeleteTopicsResponse = await self._ask(request)
        self.cluster.forget(name)
        if response.responses[0].error_code == Error.UNKNOWN_TOPIC_OR_PARTITION.code:
            raise NoTopic(name)
        check(response.responses[0].error_code, response.responses[0].error_message)

    async def create_partitions(self, name: str, count: int) -> None:
        """`count` is what the topic has in the end."""
        topic = CreatePartitionsRequest.Topic(name=name, count=count, assignments=None)
        response: CreatePartitionsResponse = await self._ask(
            CreatePartitionsRequest(topics=[topic], timeout_ms=TIMEOUT_MS)
        )
        self.cluster.forget(name)
        check(response.results[0].error_code, response.results[0].error_message)

    async def topics(self) -> list[str]:
        response = await self.cluster.metadata(None)
        return sorted(topic.name or "" for topic in response.topics)

    async def describe_topics(self, names: Iterable[str] | None = None) -> list[TopicInfo]:
        """All of them without names; NoTopic for a name that does not exist."""
        response = await self.cluster.metadata(None if names is None else list(names))
        for topic in response.topics:
            if topic.error_code == Error.UNKNOWN_TOPIC_OR_PARTITION.code:
                raise NoTopic(topic.name or "")
            check(topic.error_code)
        return sorted((_topic_info(topic) for topic in response.topics), key=lambda topic: topic.name)

    async def configs(self, name: str, kind: int = TOPIC) -> list[Setting]:
        resource = DescribeConfigsRequest.Resource(resource_type=kind, resource_name=name, configuration_keys=None)
        response: DescribeConfigsResponse = await self._ask(DescribeConfigsRequest(resources=[resource]))
        result = response.results[0]
        if kind == TOPIC and result.error_code == Error.UNKNOWN_TOPIC_OR_PARTITION.code:
            raise NoTopic(name)
        check(result.error_code, result.error_message)
        found = [_setting(config) for config in result.configs]
        return sorted(found, key=lambda setting: setting.name)

    async def alter_configs(
        self, name: str, *, put: Mapping[str, str] | None = None, delete: Iterable[str] = (), kind: int = TOPIC
    ) -> None:
        """Change single settings; the others stay as they are."""
        config = IncrementalAlterConfigsRequest.Resource.Config
        changes = [config(name=key, config_operation=SET, value=value) for key, value in (put or {}).items()]
        changes += [config(name=key, config_operation=DELETE, value=None) for key in delete]
        resource = IncrementalAlterConfigsRequest.Resource(resource_type=kind, resource_name=name, configs=changes)
        response: IncrementalAlterConfigsResponse = await self._ask(
            IncrementalAlterConfigsRequest(resources=[resource])
        )
        check(response.responses[0].error_code, response.responses[0].error_message)

    async def delete_records(self, before: Mapping[TopicPartition, int]) -> dict[TopicPartition, int]:
        """Move the start of partitions up to an offset (-1: to the end). Answers with the new starts."""
        starts: dict[TopicPartition, int] = {}
        for connection, part in (await self.cluster.by_leader(before)).items():
            response: DeleteRecordsResponse = await connection.request(_delete_records_request(part))
            for topic in response.topics:
                for partition in topic.partitions:
                    check(partition.error_code)
                    starts[TopicPartition(topic.name, partition.partition_index)] = partition.low_watermark
        return starts

    async def _ask(self, request: Message) -> Any:
        """Any broker will do: it hands on what only the controller decides."""
        return await (await self.cluster.any()).request(request)


def _delete_records_request(part: Mapping[TopicPartition, int]) -> DeleteRecordsRequest:
    return DeleteRecordsRequest(
        timeout_ms=TIMEOUT_MS,
        topics=[
            DeleteRecordsRequest.Topic(
                name=topic,
                partitions=[
                    DeleteRecordsRequest.Topic.Partition(partition_index=where.partition, offset=offset)
                    for where, offset in partitions.items()
                ],
            )
            for topic, partitions in by_topic(part).items()
        ],
    )


def _topic_info(topic: MetadataResponse.Topic) -> TopicInfo:
    partitions = [
        PartitionInfo(p.partition_index, p.leader_id, p.leader_epoch, p.replica_nodes, p.isr_nodes, p.offline_replicas)
        for p in topic.partitions
    ]
    return TopicInfo(topic.name or "", topic.topic_id, topic.is_internal, sorted(partitions))


def _setting(config: DescribeConfigsResponse.Resource.Config) -> Setting:
    source = SOURCES.get(config.config_source, "unknown")
    return Setting(config.name, config.value, source, config.read_only, config.is_sensitive)
