"""Messages of the quorum speak of one partition, that of the metadata, in the shape of messages about many.

Here they are put together and taken apart, so that the rest reads as if they were flat.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from ottla.raft.quorum import Address, Key
from ottla.raft.snapshots import SnapshotId
from ottla.wire.messages.fetch import FetchRequest
from ottla.wire.messages.quorum import (
    METADATA_TOPIC,
    METADATA_TOPIC_ID,
    BeginQuorumEpochRequest,
    EndQuorumEpochRequest,
    FetchSnapshotRequest,
    LeaderEndpoint,
    VoteRequest,
)
from ottla.wire.messages.quorum import SnapshotId as NamedSnapshot


def only(topics: Sequence[Any], name: str = "topic_name", index: str = "partition_index") -> Any | None:
    """The metadata partition in a message that holds nothing else; None for any other message."""
    if len(topics) != 1 or len(topics[0].partitions) != 1:
        return None
    topic, partition = topics[0], topics[0].partitions[0]
    return partition if getattr(topic, name) == METADATA_TOPIC and getattr(partition, index) == 0 else None


def only_fetched(topics: Sequence[Any], index: str) -> Any | None:
    """The same in a Fetch. That must name the topic by id, so older versions than 13 get nothing, as in Apache Kafka."""
    if len(topics) != 1 or len(topics[0].partitions) != 1:
        return None
    topic, partition = topics[0], topics[0].partitions[0]
    return partition if topic.topic_id == METADATA_TOPIC_ID and getattr(partition, index) == 0 else None


def endpoints(addresses: Sequence[Address]) -> list[LeaderEndpoint]:
    return [LeaderEndpoint(name=a.name, host=a.host, port=a.port) for a in addresses]


def addresses_of(listed: Sequence[Any]) -> tuple[Address, ...]:
    return tuple(Address(each.name, each.host, each.port) for each in listed)


def vote(cluster_id: str, epoch: int, me: Key, voter: Key, last: tuple[int, int], pre_vote: bool) -> VoteRequest:
    """`last` is the epoch of our last record and the offset behind it."""
    partition = VoteRequest.Topic.Partition(
        replica_epoch=epoch,
        replica_id=me.id,
        replica_directory_id=me.directory,
        voter_directory_id=voter.directory,
        last_offset_epoch=last[0],
        last_offset=last[1],
        pre_vote=pre_vote,
    )
    topics = [VoteRequest.Topic(topic_name=METADATA_TOPIC, partitions=[partition])]
    return VoteRequest(cluster_id=cluster_id, voter_id=voter.id, topics=topics)


def begin_epoch(
    cluster_id: str, epoch: int, leader: int, voter: Key, addresses: Sequence[Address]
) -> BeginQuorumEpochRequest:
    partition = BeginQuorumEpochRequest.Topic.Partition(
        voter_directory_id=voter.directory, leader_id=leader, leader_epoch=epoch
    )
    return BeginQuorumEpochRequest(
        cluster_id=cluster_id,
        voter_id=voter.id,
        topics=[BeginQuorumEpochRequest.Topic(topic_name=METADATA_TOPIC, partitions=[partition])],
        leader_endpoints=endpoints(addresses),
    )


def end_epoch(
    cluster_id: str, epoch: int, leader: int, successors: Sequence[Key], addresses: Sequence[Address]
) -> EndQuorumEpochRequest:
    kind = EndQuorumEpochRequest.Topic.Partition
    partition = kind(
        leader_id=leader,
        leader_epoch=epoch,
        preferred_successors=[key.id for key in successors],
        preferred_candidates=[
            kind.ReplicaInfo(candidate_id=key.id, candidate_directory_id=key.directory) for key in successors
        ],
    )
    return EndQuorumEpochRequest(
        cluster_id=cluster_id,
        topics=[EndQuorumEpochRequest.Topic(topic_name=METADATA_TOPIC, partitions=[partition])],
        leader_endpoints=endpoints(addresses),
    )


def fetch(
    cluster_id: str, epoch: int, me: Key, last: tuple[int, int], watermark: int, bytes_max: int, wait_ms: int
) -> FetchRequest:
    kind = FetchRequest.Topic
    partition = kind.Partition(
        current_leader_epoch=epoch,
        last_fetched_epoch=last[0],
        fetch_offset=last[1],
        replica_directory_id=me.directory,
        high_watermark=watermark,
    )
    return FetchRequest(
        cluster_id=cluster_id,
        replica_id=me.id,
        replica_state=FetchRequest.ReplicaState(replica_id=me.id),
        max_wait_ms=wait_ms,
        max_bytes=bytes_max,
        topics=[kind(topic=METADATA_TOPIC, topic_id=METADATA_TOPIC_ID, partitions=[partition])],
    )


def fetch_snapshot(
    cluster_id: str, epoch: int, me: Key, snapshot: SnapshotId, position: int, bytes_max: int
) -> FetchSnapshotRequest:
    kind = FetchSnapshotRequest.Topic
    partition = kind.Partition(
        current_leader_epoch=epoch,
        snapshot_id=NamedSnapshot(end_offset=snapshot.end_offset, epoch=snapshot.epoch),
        position=position,
        replica_directory_id=me.directory,
    )
    return FetchSnapshotRequest(
        cluster_id=cluster_id,
        replica_id=me.id,
        max_bytes=bytes_max,
        topics=[kind(name=METADATA_TOPIC, partitions=[partition])],
    )
