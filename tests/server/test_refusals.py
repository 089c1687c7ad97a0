"""A defect of ours is answered, in the shape that each API has for it."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from desk import on_loop
from ottla.server.refusals import refusal
from ottla.wire.codec import decode, encode
from ottla.wire.errors import Error, KafkaError
from ottla.wire.messages import REQUESTS, RESPONSES
from ottla.wire.messages.cluster import DescribeLogDirsRequest
from ottla.wire.messages.credentials import AlterUserScramCredentialsRequest
from ottla.wire.messages.fetch import FetchRequest
from ottla.wire.messages.offsets import ListOffsetsRequest
from ottla.wire.messages.quotas import AlterClientQuotasRequest
from ottla.wire.messages.settings import AlterConfigsRequest
from ottla.wire.messages.topics import CreateTopicsRequest, DeleteTopicsRequest
from ottla.wire.schema import Layout, ListOf
from served import serving

UNKNOWN = KafkaError(Error.UNKNOWN_SERVER_ERROR)


@on_loop
async def test_a_handler_that_stumbles_is_answered_for(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    async with serving(tmp_path) as served:
        client = await served.connect()

        async def defect(_: Any) -> None:
            raise ZeroDivisionError

        sound, served.node.controller.propose = served.node.controller.propose, defect  # type: ignore[method-assign]
        resource = AlterConfigsRequest.Resource(resource_type=2, resource_name="t")
        (answer,) = (await client.call(AlterConfigsRequest(resources=[resource]), 2)).responses
        assert (answer.error_code, answer.error_message, answer.resource_name) == (-1, None, "t")
        assert "AlterConfigs version 2 failed" in caplog.text
        served.node.controller.propose = sound  # type: ignore[method-assign]
        (answer,) = (await client.call(AlterConfigsRequest(resources=[resource]), 2)).responses
        assert answer.error_code == Error.UNKNOWN_TOPIC_OR_PARTITION.code, "on the same connection"


def test_things_are_told_by_name() -> None:
    create = refusal(CreateTopicsRequest(topics=[CreateTopicsRequest.Topic(name="a", num_partitions=3)]), UNKNOWN)
    assert [(t.name, t.error_code, t.num_partitions) for t in create.topics] == [("a", -1, -1)]  # type: ignore[attr-defined]
    delete = refusal(DeleteTopicsRequest(topic_names=["a", "b"]), UNKNOWN)
    assert [(t.name, t.error_code) for t in delete.responses] == [("a", -1), ("b", -1)]  # type: ignore[attr-defined]
    part = ListOffsetsRequest.Topic.Partition(partition_index=3, timestamp=5)
    listed = refusal(ListOffsetsRequest(topics=[ListOffsetsRequest.Topic(name="a", partitions=[part])]), UNKNOWN)
    (told,) = listed.topics[0].partitions  # type: ignore[attr-defined]
    assert (told.partition_index, told.error_code, told.timestamp) == (3, -1, -1)
    dirs = DescribeLogDirsRequest(topics=[DescribeLogDirsRequest.Topic(topic="a", partitions=[0])])
    refused = refusal(dirs, UNKNOWN)
    assert (refused.error_code, refused.results) == (-1, [])  # type: ignore[attr-defined]


def test_a_refused_fetch_has_no_records_but_not_null() -> None:
    """librdkafka takes null for a broken answer."""
    part = FetchRequest.Topic.Partition(partition=3)
    answer = refusal(FetchRequest(topics=[FetchRequest.Topic(topic="a", partitions=[part])]), UNKNOWN)
    (told,) = answer.responses[0].partitions  # type: ignore[attr-defined]
    assert (told.partition_index, told.error_code, told.records, told.high_watermark) == (3, -1, b"", -1)


def one_of_each(layout: Layout) -> Any:
    """A request, or a thing in it, that names one thing of every kind."""
    made = layout()
    for field in layout.fields:
        if isinstance(field.kind, ListOf):
            element = field.kind.element
            setattr(made, field.name, [one_of_each(element) if isinstance(element, Layout) else element.zero])
    return made


def told_in(answer: Any) -> list[int]:
    """All errors in it, and what stands where there could be one."""
    found: list[int] = []
    for field in type(answer).fields:
        value = getattr(answer, field.name)
        if field.name in ("error_code", "partition_error_code"):
            found.append(value)
        elif isinstance(value, list):
            found += [code for each in value if isinstance(type(each), Layout) for code in told_in(each)]
    return found


def has_room(layout: Layout) -> bool:
    inner = [f.kind.element for f in layout.fields if isinstance(f.kind, ListOf) and isinstance(f.kind.element, Layout)]
    return any("error_code" in field.name for field in layout.fields) or any(map(has_room, inner))


# DescribeLogDirs had no place for an error at first, but in directories, which nobody asks for.
WITHOUT_ROOM = {(DescribeLogDirsRequest.key, version) for version in (1, 2)}


@pytest.mark.parametrize("key", sorted(REQUESTS))
def test_no_refusal_looks_like_success(key: int) -> None:
    """A client that is told nothing of what it asked for takes it for done."""
    request, response = REQUESTS[key], RESPONSES[key]
    for version in request.versions:
        decode(response, encode(refusal(request(), UNKNOWN), version), version)
        asked = decode(request, encode(one_of_each(request), version), version)
        told = told_in(decode(response, encode(refusal(asked, UNKNOWN), version), version))
        if has_room(response) and (key, version) not in WITHOUT_ROOM:
            assert Error.UNKNOWN_SERVER_ERROR.code in told, version


def test_who_is_refused_is_named_where_a_request_has_other_words_for_it() -> None:
    scram = AlterUserScramCredentialsRequest
    asked = scram(deletions=[scram.Deletion(name="a")], upsertions=[scram.Upsertion(name="b")])
    assert [(each.user, each.error_code) for each in refusal(asked, UNKNOWN).results] == [("a", -1), ("b", -1)]  # type: ignore[attr-defined]
    quotas = AlterClientQuotasRequest.Entry
    entity = [quotas.Entity(entity_type="user", entity_name="a")]
    (entry,) = refusal(AlterClientQuotasRequest(entries=[quotas(entity=entity)]), UNKNOWN).entries  # type: ignore[attr-defined]
    assert [(each.entity_type, each.entity_name) for each in entry.entity] == [("user", "a")]
