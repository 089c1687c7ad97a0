"""Fetch requests, and a fetch of one partition whose records stay the bytes they are."""

from __future__ import annotations

from collections.abc import Mapping
from typing import NamedTuple

from ottla.client.cluster import Cluster, TopicPartition, by_topic
from ottla.client.connection import REQUEST_SECONDS, check
from ottla.wire.errors import Error, KafkaError
from ottla.wire.messages.fetch import FetchRequest, FetchResponse

FETCH_BYTES_MAX = 50 << 20
PARTITION_BYTES_MAX = 1 << 20
WAIT_MS = 500

Found = FetchResponse.Topic.Partition


class Terms(NamedTuple):
    """How much a fetch may bring, how long a leader may wait for it, and whether open transactions are held back."""

    read_committed: bool = False
    wait_ms: int = WAIT_MS
    partition_bytes_max: int = PARTITION_BYTES_MAX
    bytes_max: int = FETCH_BYTES_MAX
    bytes_min: int = 1


def fetch_request(cluster: Cluster, part: Mapping[TopicPartition, int], terms: Terms) -> FetchRequest:
    """The next records of each partition from these positions on."""
    return FetchRequest(
        max_wait_ms=terms.wait_ms,
        min_bytes=terms.bytes_min,
        max_bytes=terms.bytes_max,
        isolation_level=int(terms.read_committed),
        topics=[
            FetchRequest.Topic(
                topic=topic,
                topic_id=cluster.topic_id(topic),
                partitions=[
                    FetchRequest.Topic.Partition(
                        partition=where.partition,
                        current_leader_epoch=cluster.epoch_at_hand(where),
                        fetch_offset=at,
                        partition_max_bytes=terms.partition_bytes_max,
                    )
                    for where, at in partitions.items()
                ],
            )
            for topic, partitions in by_topic(part).items()
        ],
    )


async def fetch_one(cluster: Cluster, where: TopicPartition, position: int, terms: Terms) -> Found:
    """What the leader has from `position` on: whole batches, as they lie in its log. One attempt.

    What is wrong with the partition is raised; the next attempt then asks who leads it.
    """
    connection, _ = await cluster.leader(where)
    request = fetch_request(cluster, {where: position}, terms)
    try:
        response: FetchResponse = await connection.request(request, REQUEST_SECONDS + terms.wait_ms / 1000)
        check(response.error_code)
        for found in (partition for topic in response.responses for partition in topic.partitions):
            check(found.error_code)
            return found
        raise KafkaError(Error.UNKNOWN_TOPIC_OR_PARTITION, f"no answer about {where.topic}-{where.partition}")
    except (KafkaError, OSError):
        cluster.forget(where.topic)
        raise
