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
from ottla.wire.messages.fetch import FetchRequest
from ottla.wire.messages.offsets import ListOffsetsRequest
from ottla.wire.messages.settings import AlterConfigsRequest
from ottla.wire.messages.topics import CreateTopicsRequest, DeleteTopicsRequest
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


@pytest.mark.parametrize("key", sorted(REQUESTS))
def test_every_refusal_can_be_written(key: int) -> None:
    for version in REQUESTS[key].versions:
        answer = refusal(REQUESTS[key](), UNKNOWN)
        decode(RESPONSES[key], encode(answer, version), version)
