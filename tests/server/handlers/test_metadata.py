"""Metadata and DescribeTopicPartitions over all versions, as Apache Kafka 4.3.1 answers them."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import pytest

from desk import Desk, on_loop
from ottla.metadata import controller
from ottla.metadata.controller import NewTopic, Rules
from ottla.metadata.image import TOPIC
from ottla.server.handlers.metadata import describe_topic_partitions, metadata
from ottla.wire.codec import decode, encode
from ottla.wire.errors import Error
from ottla.wire.messages.metadata import (
    DescribeTopicPartitionsRequest,
    DescribeTopicPartitionsResponse,
    MetadataRequest,
    MetadataResponse,
)

Asked = MetadataRequest.Topic
NOT_ASKED = -(2**31)
SOON = 0.1


async def made(desk: Desk, *names: str) -> None:
    """Wait for topics that were asked for and that nobody promised: they come when the disk has them."""
    async with asyncio.timeout(60):
        while not all(desk.quorum.image.topic(name) for name in names):
            await asyncio.sleep(0.01)


async def create(desk: Desk, **partitions: int) -> None:
    wanted = [NewTopic(name, count) for name, count in partitions.items()]
    await desk.controller.propose(lambda image: controller.create_topics(image, wanted, Rules(), desk.world.random))


async def ask(desk: Desk, version: int, topics: list[Any] | None, listener: str = "PLAINTEXT", **more: Any) -> Any:
    """Through the bytes of that version, both ways."""
    asked = None if topics is None else [t if isinstance(t, Asked) else Asked(name=t) for t in topics]
    request = decode(MetadataRequest, encode(MetadataRequest(topics=asked, **more), version), version)
    response = await metadata(request, desk.ctx(version, listener))
    return decode(MetadataResponse, encode(response, version), version)


def by_name(response: MetadataResponse) -> dict[str | None, int]:
    return {topic.name: topic.error_code for topic in response.topics}


@on_loop
async def test_every_version_tells_brokers_and_partitions(tmp_path: Path) -> None:
    async with Desk(tmp_path) as desk:
        await create(desk, a=2)
        for version in range(14):
            response = await ask(desk, version, ["a"])
            (broker,) = response.brokers
            assert (broker.node_id, broker.host, broker.port) == (1, "localhost", 9092)
            (topic,) = response.topics
            assert [(p.partition_index, p.leader_id, p.replica_nodes, p.isr_nodes) for p in topic.partitions] == [
                (0, 1, [1], [1]),
                (1, 1, [1], [1]),
            ]
            assert response.controller_id == (1 if version >= 1 else -1)
            assert response.cluster_id == (desk.directories.cluster_id if version >= 2 else None)
            assert (topic.topic_id != bytes(16)) == (version >= 10)


@on_loop
async def test_which_listener_a_client_came_in_on_decides_what_it_is_told(tmp_path: Path) -> None:
    async with Desk(tmp_path) as desk:
        await create(desk, a=1)
        response = await ask(desk, 13, ["a"], "INSIDE")
        assert [(b.host, b.port) for b in response.brokers] == [("inside", 9094)]
        for version, error in ((5, Error.LEADER_NOT_AVAILABLE), (6, Error.LISTENER_NOT_FOUND)):
            response = await ask(desk, version, ["a"], "ELSEWHERE")
            (partition,) = response.topics[0].partitions
            assert (partition.error_code, partition.leader_id, partition.offline_replicas) == (error.code, -1, [1])
            assert response.brokers == [] and response.controller_id == -1
        (partition,) = (await ask(desk, 0, ["a"], "ELSEWHERE")).topics[0].partitions
        assert (partition.replica_nodes, partition.isr_nodes) == ([], [])


@on_loop
async def test_all_topics_or_none(tmp_path: Path) -> None:
    async with Desk(tmp_path) as desk:
        await create(desk, a=1, b=1)
        assert by_name(await ask(desk, 0, [])) == {"a": 0, "b": 0}
        assert by_name(await ask(desk, 1, [])) == {}
        assert by_name(await ask(desk, 1, None)) == {"a": 0, "b": 0}
        assert by_name(await ask(desk, 13, None)) == {"a": 0, "b": 0}
        assert by_name(await ask(desk, 13, ["a", "a"])) == {"a": 0}


@on_loop
async def test_unknown_topics_are_created_where_both_sides_allow_it(tmp_path: Path) -> None:
    """PRT-17, TRAP-79: the answer is still "unknown", as Apache's is, and the next one is not."""
    async with Desk(tmp_path, num_partitions="4") as desk:
        assert by_name(await ask(desk, 4, ["new"], allow_auto_topic_creation=False)) == {"new": 3}
        assert desk.quorum.image.topic("new") is None
        assert by_name(await ask(desk, 4, ["new", "bad/name", ""])) == {"new": 3, "bad/name": 17, "": 17}
        assert by_name(await ask(desk, 4, ["new"])) == {"new": 3}
        await made(desk, "new")
        (topic,) = (await ask(desk, 4, ["new"])).topics
        assert topic.error_code == 0 and len(topic.partitions) == 4
        assert by_name(await ask(desk, 0, ["old"])) == {"old": 3}
        await made(desk, "old")  # versions before 4 always allow it


@on_loop
async def test_no_topic_takes_the_name_of_the_metadata_log(tmp_path: Path) -> None:
    """Its directory would be the one in which the cluster's metadata lies."""
    async with Desk(tmp_path) as desk:
        assert by_name(await ask(desk, 13, ["__cluster_metadata", "new"])) == {"__cluster_metadata": 3, "new": 3}
        await made(desk, "new")
        assert list(desk.quorum.image.topic_ids) == ["new"]


@on_loop
async def test_no_auto_creation_on_a_broker_that_does_not_want_it(tmp_path: Path) -> None:
    async with Desk(tmp_path, auto_create_topics_enable="false") as desk:
        assert by_name(await ask(desk, 13, ["new"])) == {"new": 3}
        await asyncio.sleep(SOON)
        assert desk.quorum.image.topic("new") is None


@on_loop
async def test_internal_topics_are_created_as_their_coordinators_want_them(tmp_path: Path) -> None:
    """TRAP-57: with the settings of a single node."""
    async with Desk(tmp_path, offsets_topic_num_partitions="5") as desk:
        response = await ask(desk, 12, ["__consumer_offsets", "__transaction_state", "__share_group_state"])
        assert all(topic.is_internal and topic.error_code == 3 for topic in response.topics)
        await made(desk, *(topic.name for topic in response.topics))
        image = desk.quorum.image
        topic = image.topic("__consumer_offsets")
        assert topic is not None and len(topic.partitions) == 5
        assert image.configs(TOPIC, "__consumer_offsets") == {
            "cleanup.policy": "compact",
            "compression.type": "producer",
            "segment.bytes": "104857600",
        }
        assert image.configs(TOPIC, "__transaction_state")["min.insync.replicas"] == "1"
        assert image.configs(TOPIC, "__share_group_state")["retention.ms"] == "-1"


@on_loop
async def test_topic_ids(tmp_path: Path) -> None:
    async with Desk(tmp_path) as desk:
        await create(desk, a=1)
        topic_id, unknown = desk.quorum.image.topic_ids["a"], b"u" * 16
        by_id = [Asked(topic_id=topic_id, name=None), Asked(topic_id=unknown, name=None)]
        response = await ask(desk, 12, by_id)
        assert {t.topic_id: (t.name, t.error_code) for t in response.topics} == {
            topic_id: ("a", 0),
            unknown: (None, Error.UNKNOWN_TOPIC_ID.code),
        }
        mixed = await ask(desk, 13, ["a", Asked(topic_id=unknown, name=None)])
        assert by_name(mixed) == {None: Error.UNKNOWN_TOPIC_ID.code}, "one id, and names count for nothing"


@pytest.mark.parametrize(
    ("version", "topic", "error"),
    [
        (10, Asked(topic_id=b"u" * 16, name=None), Error.INVALID_REQUEST),
        (11, Asked(topic_id=b"u" * 16, name="a"), Error.INVALID_REQUEST),
        (11, Asked(name=None), Error.INVALID_REQUEST),
        (12, Asked(name=None), Error.UNKNOWN_SERVER_ERROR),
    ],
)
def test_requests_that_make_no_sense_get_nothing_but_the_error(
    tmp_path: Path, version: int, topic: Asked, error: Error
) -> None:
    @on_loop
    async def check() -> None:
        async with Desk(tmp_path) as desk:
            response = await ask(desk, version, [topic])
            assert [(t.name, t.error_code) for t in response.topics] == [(topic.name or "", error.code)]
            assert response.brokers == [] and response.cluster_id is None and response.controller_id == -1

    check()


@on_loop
async def test_operations_are_told_only_when_asked_for(tmp_path: Path) -> None:
    async with Desk(tmp_path) as desk:
        await create(desk, a=1)
        asked = {"include_topic_authorized_operations": True, "include_cluster_authorized_operations": True}
        for version in (8, 10):
            response = await ask(desk, version, ["a"], **asked)
            assert response.topics[0].topic_authorized_operations == 3576
            assert response.cluster_authorized_operations == 8096
        quiet = await ask(desk, 9, ["a"])
        assert quiet.topics[0].topic_authorized_operations == quiet.cluster_authorized_operations == NOT_ASKED


@on_loop
async def test_a_fenced_broker_is_not_told_and_leads_nothing(tmp_path: Path) -> None:
    async with Desk(tmp_path) as desk:
        await create(desk, a=1)
        await desk.controller.propose(lambda image: controller.fence(image, 1, Rules()))
        response = await ask(desk, 13, ["a"])
        assert response.brokers == []
        (partition,) = response.topics[0].partitions
        assert (partition.error_code, partition.leader_id) == (Error.LEADER_NOT_AVAILABLE.code, -1)
        assert partition.offline_replicas == [1]


async def page(desk: Desk, topics: list[str], limit: int = 2000, cursor: tuple[str, int] | None = None) -> Any:
    kind = DescribeTopicPartitionsRequest
    request = kind(
        topics=[kind.Topic(name=name) for name in topics],
        response_partition_limit=limit,
        cursor=None if cursor is None else kind.Cursor(topic_name=cursor[0], partition_index=cursor[1]),
    )
    response = await describe_topic_partitions(decode(kind, encode(request, 0), 0), desk.ctx())
    return decode(DescribeTopicPartitionsResponse, encode(response, 0), 0)


def pages(response: Any) -> tuple[list[tuple[str, int, list[int]]], tuple[str, int] | None]:
    shown = [(t.name, t.error_code, [p.partition_index for p in t.partitions]) for t in response.topics]
    cursor = response.next_cursor
    return shown, None if cursor is None else (cursor.topic_name, cursor.partition_index)


@on_loop
async def test_topics_in_pages(tmp_path: Path) -> None:
    """PRT-09; every answer here was seen from 4.3.1."""
    async with Desk(tmp_path) as desk:
        await create(desk, b=2, a=3)
        assert pages(await page(desk, ["b", "a", "b"])) == ([("a", 0, [0, 1, 2]), ("b", 0, [0, 1])], None)
        assert pages(await page(desk, [], 2)) == ([("a", 0, [0, 1])], ("a", 2))
        assert pages(await page(desk, [], 3)) == ([("a", 0, [0, 1, 2])], ("b", 0))
        assert pages(await page(desk, [], -5)) == ([("a", 0, [0])], ("a", 1))
        assert pages(await page(desk, [], 2000, ("a", 2))) == ([("a", 0, [2]), ("b", 0, [0, 1])], None)
        assert pages(await page(desk, ["a", "b"], 2000, ("a", 9))) == ([("a", 0, []), ("b", 0, [0, 1])], None)
        assert pages(await page(desk, [], 2000, ("aa", 1))) == ([("b", 0, [0, 1])], None)
        assert pages(await page(desk, ["none", "x/y"])) == ([("none", 3, []), ("x/y", 17, [])], None)
        assert pages(await page(desk, ["a"], 2000, ("a", -1))) == ([("a", 42, [])], None)
        assert pages(await page(desk, ["a"], 2000, ("b", 0))) == ([("a", 42, [])], None)
        (topic,) = (await page(desk, ["a"])).topics
        assert topic.topic_authorized_operations == 3576
        assert topic.partitions[0].eligible_leader_replicas == topic.partitions[0].last_known_elr == []
