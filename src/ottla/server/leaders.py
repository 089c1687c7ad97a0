"""Whoever came to the wrong broker is told the right one in the same answer (KIP-951), and need not ask for metadata."""

from __future__ import annotations

from typing import TypeVar

from ottla.metadata.image import Image, Partition
from ottla.wire.errors import Error
from ottla.wire.messages.fetch import FetchResponse
from ottla.wire.messages.produce import ProduceResponse
from ottla.wire.schema import ZERO_UUID

FETCH_SINCE = 16
WRONG_FOR_PRODUCE = Error.NOT_LEADER_OR_FOLLOWER.code
WRONG_FOR_FETCH = (Error.NOT_LEADER_OR_FOLLOWER.code, Error.FENCED_LEADER_EPOCH.code)

Place = TypeVar("Place", ProduceResponse.NodeEndpoint, FetchResponse.NodeEndpoint)


def tell_leaders_to_producer(answer: ProduceResponse, image: Image, listener: str) -> None:
    kind, leaders = ProduceResponse.Topic.Partition.LeaderIdAndEpoch, {}
    for topic in answer.responses:
        for told in topic.partition_responses:
            if told.error_code == WRONG_FOR_PRODUCE:
                known = _partition(image, topic.topic_id, topic.name, told.index)
                if known is not None:
                    told.current_leader = kind(leader_id=known.leader, leader_epoch=known.leader_epoch)
                    leaders[known.leader] = True
    answer.node_endpoints = _places(ProduceResponse.NodeEndpoint, leaders, image, listener)


def tell_leaders_to_reader(answer: FetchResponse, image: Image, listener: str) -> None:
    kind, leaders = FetchResponse.Topic.Partition.LeaderIdAndEpoch, {}
    for topic in answer.responses:
        for told in topic.partitions:
            if told.error_code in WRONG_FOR_FETCH:
                known = _partition(image, topic.topic_id, topic.topic, told.partition_index)
                if known is not None:
                    told.current_leader = kind(leader_id=known.leader, leader_epoch=known.leader_epoch)
                    leaders[known.leader] = True
    answer.node_endpoints = _places(FetchResponse.NodeEndpoint, leaders, image, listener)


def _partition(image: Image, topic_id: bytes, name: str, index: int) -> Partition | None:
    topic = image.topic(name) if topic_id == ZERO_UUID else image.topic_by_id(topic_id)
    return None if topic is None else topic.partitions.get(index)


def _places(kind: type[Place], leaders: dict[int, bool], image: Image, listener: str) -> list[Place]:
    """Of those that live, and that can be reached by the listener the client came in on."""
    brokers = (image.broker(leader) for leader in leaders)
    return [
        kind(node_id=b.id, host=b.endpoints[listener].host, port=b.endpoints[listener].port, rack=b.rack)
        for b in brokers
        if b is not None and not b.fenced and listener in b.endpoints
    ]
