"""CreateTopics, DeleteTopics, CreatePartitions: requests in, responses out, on a real metadata log."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from desk import Desk, on_loop
from ottla.server.handlers.topics import create_partitions, create_topics, delete_topics
from ottla.wire.codec import decode, encode
from ottla.wire.errors import Error
from ottla.wire.messages.topics import (
    CreatePartitionsRequest,
    CreateTopicsRequest,
    CreateTopicsResponse,
    DeleteTopicsRequest,
)

New = CreateTopicsRequest.Topic


def new(name: str, partitions: int = 1, factor: int = 1, **more: Any) -> New:
    return New(name=name, num_partitions=partitions, replication_factor=factor, **more)


async def created(desk: Desk, *topics: New, **more: Any) -> dict[str, CreateTopicsResponse.Topic]:
    response = await create_topics(CreateTopicsRequest(topics=list(topics), **more), desk.ctx())
    for version in range(2, 8):
        decode(CreateTopicsResponse, encode(response, version), version)
    return {topic.name: topic for topic in response.topics}


def codes(response: Any) -> dict[Any, int]:
    return {topic.name: topic.error_code for topic in getattr(response, "responses", None) or response.results}


@on_loop
async def test_a_created_topic_is_described_in_the_answer_and_there(tmp_path: Path) -> None:
    """TRAP-79."""
    async with Desk(tmp_path) as desk:
        config = New.Config(name="retention.ms", value="77")
        answer = (await created(desk, new("t", -1, -1, configs=[config])))["t"]
        topic = desk.quorum.image.topic("t")
        assert topic is not None and topic.id == answer.topic_id
        assert (answer.error_code, answer.num_partitions, answer.replication_factor) == (0, 1, 1)
        shown = {c.name: (c.value, c.config_source) for c in answer.configs or ()}
        assert shown["retention.ms"] == ("77", 1) and shown["cleanup.policy"] == ("delete", 5)
        assert list(shown) == sorted(shown)


@on_loop
async def test_topics_fail_one_by_one(tmp_path: Path) -> None:
    async with Desk(tmp_path) as desk:
        unknown = [New.Config(name="no.such", value="1")]
        answers = await created(
            desk,
            new("twice"),
            new("twice"),
            new("__cluster_metadata"),
            new("bad/name"),
            new("c", configs=unknown),
            new("ok"),
        )
        assert {name: answer.error_code for name, answer in answers.items()} == {
            "twice": Error.INVALID_REQUEST.code,
            "__cluster_metadata": Error.INVALID_REQUEST.code,
            "bad/name": Error.INVALID_TOPIC_EXCEPTION.code,
            "c": Error.INVALID_CONFIG.code,
            "ok": 0,
        }
        assert sorted(desk.quorum.image.topic_ids) == ["ok"]


@on_loop
async def test_only_validating_creates_nothing(tmp_path: Path) -> None:
    async with Desk(tmp_path) as desk:
        answer = (await created(desk, new("t", 3), validate_only=True))["t"]
        assert answer.error_code == 0 and answer.num_partitions == 3 and not len(desk.quorum.image.topics)


@on_loop
async def test_a_request_without_time_is_not_begun(tmp_path: Path) -> None:
    """TRAP-78, as 4.3.1 answers: timed out, unless nothing was left to do anyway."""
    async with Desk(tmp_path) as desk:
        late = Error.REQUEST_TIMED_OUT.code
        answers = await created(desk, new("t"), new("__cluster_metadata"), timeout_ms=0)
        assert {a.error_code for a in answers.values()} == {late}
        answers = await created(desk, new("__cluster_metadata"), timeout_ms=0)
        assert answers["__cluster_metadata"].error_code == Error.INVALID_REQUEST.code
        request = DeleteTopicsRequest(topics=[DeleteTopicsRequest.Topic(name="t")], timeout_ms=-1)
        assert codes(await delete_topics(request, desk.ctx(6))) == {"t": late}
        more = CreatePartitionsRequest(topics=[CreatePartitionsRequest.Topic(name="t", count=2, assignments=None)])
        assert codes(await create_partitions(more, desk.ctx())) == {"t": late}


@on_loop
async def test_too_much_at_once_fails_as_a_whole(tmp_path: Path) -> None:
    async with Desk(tmp_path) as desk:
        answers = await created(desk, new("a", 6000), new("b", 6000))
        assert {a.error_code for a in answers.values()} == {Error.POLICY_VIOLATION.code}


@on_loop
async def test_deleting_by_name_and_by_id(tmp_path: Path) -> None:
    async with Desk(tmp_path) as desk:
        ids = {name: a.topic_id for name, a in (await created(desk, *(new(n) for n in "abcdef"))).items()}
        asked = DeleteTopicsRequest.Topic
        request = DeleteTopicsRequest(
            topics=[
                asked(name="a"),
                asked(topic_id=ids["b"]),
                asked(name="c", topic_id=ids["c"]),
                asked(name="d"),
                asked(name="d"),
                asked(topic_id=ids["e"]),
                asked(name="e"),
                asked(name="none"),
                asked(topic_id=b"x" * 16),
                asked(),
            ],
            timeout_ms=1000,
        )
        response = await delete_topics(request, desk.ctx(6))
        invalid = Error.INVALID_REQUEST.code
        assert sorted((r.name or "", r.topic_id, r.error_code) for r in response.responses) == sorted(
            [
                ("a", ids["a"], 0),
                ("b", ids["b"], 0),
                ("c", ids["c"], invalid),
                ("d", bytes(16), invalid),
                ("e", ids["e"], invalid),
                ("none", bytes(16), Error.UNKNOWN_TOPIC_OR_PARTITION.code),
                ("", b"x" * 16, Error.UNKNOWN_TOPIC_ID.code),
                ("", bytes(16), invalid),
            ]
        )
        assert sorted(desk.quorum.image.topic_ids) == ["c", "d", "e", "f"]
        old = DeleteTopicsRequest(topic_names=["f", "none"], timeout_ms=1000)
        assert codes(await delete_topics(old, desk.ctx(5))) == {"f": 0, "none": 3}


@pytest.mark.parametrize(("version", "error"), [(1, Error.INVALID_REQUEST), (6, Error.TOPIC_DELETION_DISABLED)])
def test_deletion_can_be_switched_off(tmp_path: Path, version: int, error: Error) -> None:
    @on_loop
    async def check() -> None:
        async with Desk(tmp_path, delete_topic_enable="false") as desk:
            await created(desk, new("t"))
            request = DeleteTopicsRequest(topic_names=["t"], timeout_ms=1000)
            assert codes(await delete_topics(request, desk.ctx(version))) == {"t": error.code}
            assert desk.quorum.image.topic("t") is not None

    check()


@on_loop
async def test_partitions_are_added(tmp_path: Path) -> None:
    async with Desk(tmp_path) as desk:
        await created(desk, new("a"), new("b"), new("c", 2))
        more = CreatePartitionsRequest.Topic
        hand = [more.Assignment(broker_ids=[1])]
        request = CreatePartitionsRequest(
            topics=[
                more(name="a", count=3, assignments=None),
                more(name="b", count=2, assignments=hand),
                more(name="c", count=2, assignments=None),
                more(name="d", count=2, assignments=None),
                more(name="twice", count=2, assignments=None),
                more(name="twice", count=3, assignments=None),
            ],
            timeout_ms=1000,
        )
        assert codes(await create_partitions(request, desk.ctx())) == {
            "a": 0,
            "b": 0,
            "c": Error.INVALID_PARTITIONS.code,
            "d": Error.UNKNOWN_TOPIC_OR_PARTITION.code,
            "twice": Error.INVALID_REQUEST.code,
        }
        image = desk.quorum.image
        assert {t.name: len(t.partitions) for t in image.topics.values()} == {"a": 3, "b": 2, "c": 2}
