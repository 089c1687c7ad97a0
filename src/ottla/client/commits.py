"""Offsets that a group has committed: read, written and forgotten, through the group's coordinator."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import NamedTuple

from ottla.client.cluster import Cluster, TopicPartition, by_topic
from ottla.client.connection import failure
from ottla.client.coordinator import Coordinator
from ottla.wire.errors import KafkaError
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

TOPIC_ID_VERSION = 10
MANY_GROUPS_VERSION = 8


class Committed(NamedTuple):
    """An offset to go on from (one after the last that was processed), and what its committer noted beside it."""

    offset: int
    leader_epoch: int = -1
    metadata: str | None = ""


class Committer(NamedTuple):
    """Who commits: a member in a generation (or at an epoch), or nobody in particular."""

    member_id: str = ""
    generation: int = -1
    instance_id: str | None = None


ANYBODY = Committer()


class GroupMetadata(NamedTuple):
    """A group, and the member of it that speaks; by the group's id alone, nobody in particular."""

    group_id: str
    committer: Committer = ANYBODY


async def commit(
    coordinator: Coordinator, offsets: Mapping[TopicPartition, Committed], committer: Committer = ANYBODY
) -> None:
    """One attempt. The first error of any partition is raised."""
    names = list(by_topic(offsets))
    version = await _version(coordinator, OffsetCommitRequest.versions.high, names, OffsetCommitRequest)
    request = _commit_request(coordinator, offsets, committer)
    response: OffsetCommitResponse = await coordinator.ask(request, version=version)
    for topic in response.topics:
        for partition in topic.partitions:
            coordinator.judge(partition.error_code)


async def commit_in_transaction(
    coordinator: Coordinator,
    offsets: Mapping[TopicPartition, Committed],
    group: GroupMetadata,
    producer: tuple[str, int, int],
    version_max: int,
) -> None:
    """The offsets hold once the transaction is committed. `producer` is its transactional id, id and epoch. One attempt."""
    transactional_id, producer_id, epoch = producer
    request = TxnOffsetCommitRequest(
        transactional_id=transactional_id,
        group_id=group.group_id,
        producer_id=producer_id,
        producer_epoch=epoch,
        generation_id=group.committer.generation,
        member_id=group.committer.member_id,
        group_instance_id=group.committer.instance_id,
        topics=[
            TxnOffsetCommitRequest.Topic(
                name=topic,
                partitions=[
                    TxnOffsetCommitRequest.Topic.Partition(
                        partition_index=where.partition,
                        committed_offset=what.offset,
                        committed_leader_epoch=what.leader_epoch,
                        committed_metadata=what.metadata,
                    )
                    for where, what in part.items()
                ],
            )
            for topic, part in by_topic(offsets).items()
        ],
    )
    response: TxnOffsetCommitResponse = await coordinator.ask_up_to(version_max, request)
    for answered in response.topics:
        for partition in answered.partitions:
            coordinator.judge(partition.error_code)


async def fetch(
    coordinator: Coordinator,
    partitions: Iterable[TopicPartition] | None = None,
    *,
    require_stable: bool = True,
    committer: Committer = ANYBODY,
) -> dict[TopicPartition, Committed]:
    """What was committed for these partitions, or for all; those without a commit are left out. One attempt."""
    wanted = None if partitions is None else by_topic(dict.fromkeys(partitions, 0))
    # Without names to ask for, the answer names topics that may not exist any more: an id would tell us nothing.
    limit = OffsetFetchRequest.versions.high if wanted is not None else TOPIC_ID_VERSION - 1
    version = await _version(coordinator, limit, list(wanted or ()), OffsetFetchRequest)
    request = _fetch_request(coordinator, wanted, require_stable, committer)
    response: OffsetFetchResponse = await coordinator.ask(request, version=version)
    return _read_offsets(coordinator, response, version)


async def delete(
    coordinator: Coordinator, partitions: Iterable[TopicPartition]
) -> dict[TopicPartition, KafkaError | None]:
    """Forget commits; what became of each. One attempt."""
    request = OffsetDeleteRequest(
        group_id=coordinator.key,
        topics=[
            OffsetDeleteRequest.Topic(
                name=topic,
                partitions=[OffsetDeleteRequest.Topic.Partition(partition_index=where.partition) for where in part],
            )
            for topic, part in by_topic(dict.fromkeys(partitions, 0)).items()
        ],
    )
    response: OffsetDeleteResponse = await coordinator.ask(request)
    coordinator.judge(response.error_code)
    results: dict[TopicPartition, KafkaError | None] = {}
    for topic in response.topics:
        for partition in topic.partitions:
            code = partition.error_code
            results[TopicPartition(topic.name, partition.partition_index)] = failure(code) if code else None
    return results


async def _version(coordinator: Coordinator, limit: int, topics: list[str], request: type) -> int:
    """The version to speak: topics are named by id only when the ids of all are known."""
    connection = await coordinator.connection()
    version = min(limit, connection.version_of(request))  # type: ignore[arg-type]
    if version >= TOPIC_ID_VERSION and any(coordinator.cluster.topic_id(topic) == ZERO_UUID for topic in topics):
        return TOPIC_ID_VERSION - 1
    return version


def _commit_request(
    coordinator: Coordinator, offsets: Mapping[TopicPartition, Committed], committer: Committer
) -> OffsetCommitRequest:
    partition = OffsetCommitRequest.Topic.Partition
    return OffsetCommitRequest(
        group_id=coordinator.key,
        generation_id_or_member_epoch=committer.generation,
        member_id=committer.member_id,
        group_instance_id=committer.instance_id,
        topics=[
            OffsetCommitRequest.Topic(
                name=topic,
                topic_id=coordinator.cluster.topic_id(topic),
                partitions=[
                    partition(
                        partition_index=where.partition,
                        committed_offset=what.offset,
                        committed_leader_epoch=what.leader_epoch,
                        committed_metadata=what.metadata,
                    )
                    for where, what in part.items()
                ],
            )
            for topic, part in by_topic(offsets).items()
        ],
    )


def _fetch_request(
    coordinator: Coordinator,
    wanted: dict[str, dict[TopicPartition, int]] | None,
    require_stable: bool,
    committer: Committer,
) -> OffsetFetchRequest:
    old = many = None
    if wanted is not None:
        numbers = {topic: [where.partition for where in part] for topic, part in wanted.items()}
        old = [OffsetFetchRequest.Topic(name=topic, partition_indexes=part) for topic, part in numbers.items()]
        many = [
            OffsetFetchRequest.Group.Topic(
                name=topic, topic_id=coordinator.cluster.topic_id(topic), partition_indexes=part
            )
            for topic, part in numbers.items()
        ]
    group = OffsetFetchRequest.Group(
        group_id=coordinator.key,
        member_id=committer.member_id or None,
        member_epoch=committer.generation,
        topics=many,
    )
    return OffsetFetchRequest(group_id=coordinator.key, topics=old, groups=[group], require_stable=require_stable)


def _read_offsets(
    coordinator: Coordinator, response: OffsetFetchResponse, version: int
) -> dict[TopicPartition, Committed]:
    if version < MANY_GROUPS_VERSION:
        coordinator.judge(response.error_code)
        topics = [(topic.name, topic.partitions) for topic in response.topics]
    else:
        (group,) = response.groups
        coordinator.judge(group.error_code)
        topics = [(_name(coordinator.cluster, topic), topic.partitions) for topic in group.topics]  # type: ignore[misc]
    found: dict[TopicPartition, Committed] = {}
    for name, partitions in topics:
        for partition in partitions:
            coordinator.judge(partition.error_code)
            if partition.committed_offset >= 0:
                what = Committed(partition.committed_offset, partition.committed_leader_epoch, partition.metadata)
                found[TopicPartition(name, partition.partition_index)] = what
    return found


def _name(cluster: Cluster, topic: OffsetFetchResponse.Group.Topic) -> str:
    return topic.name or cluster.topic_of(topic.topic_id)
