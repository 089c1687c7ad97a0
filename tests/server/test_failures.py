"""Error codes are found in answers wherever their layout has them."""

from __future__ import annotations

import sys

import pytest

from ottla.server.dispatch import HANDLERS
from ottla.server.failures import error_codes, source_of
from ottla.server.node import FAMILIES
from ottla.wire.messages.fetch import FetchResponse
from ottla.wire.messages.metadata import MetadataResponse
from ottla.wire.messages.produce import ProduceResponse
from ottla.wire.messages.transactions import AddedTopic, AddPartitionsToTxnResponse


def test_one_code_for_each_partition() -> None:
    answer = ProduceResponse(
        responses=[
            ProduceResponse.Topic(partition_responses=[ProduceResponse.Topic.Partition(error_code=code)])
            for code in (0, 3, 0, 56)
        ]
    )
    assert error_codes(ProduceResponse)(answer) == [3, 56]


def test_the_answer_s_own_and_those_inside_it() -> None:
    part = FetchResponse.Topic.Partition(error_code=1)
    answer = FetchResponse(error_code=71, responses=[FetchResponse.Topic(partitions=[part, part])])
    assert sorted(error_codes(FetchResponse)(answer)) == [1, 1, 71]


def test_codes_that_have_a_name_of_their_own() -> None:
    parts = [
        AddedTopic.Partition(partition_index=index, partition_error_code=code) for index, code in enumerate((0, 55, 3))
    ]
    topics = [AddedTopic(name="t", results_by_partition=parts)]
    answer = AddPartitionsToTxnResponse(results_by_topic_v3_and_below=topics)
    assert error_codes(AddPartitionsToTxnResponse)(answer) == [55, 3]


def test_lists_that_are_null_and_answers_without_errors() -> None:
    topic = MetadataResponse.Topic(error_code=17)
    topic.partitions = None  # type: ignore[assignment]
    assert error_codes(MetadataResponse)(MetadataResponse(topics=[topic])) == [17]
    assert error_codes(MetadataResponse)(MetadataResponse()) == []


@pytest.mark.parametrize("handler", [HANDLERS[key] for key in sorted(HANDLERS)], ids=lambda handler: handler.name)
def test_every_api_that_is_served_has_a_place_for_errors(handler: object) -> None:
    """An answer whose errors cannot be found would be counted as a success."""
    assert FAMILIES
    answer = answer_of(handler.request)  # type: ignore[attr-defined]
    assert error_codes(answer)(answer()) == []
    assert "found.append" in source_of(answer)


def answer_of(request: type) -> type:
    name = request.__name__.removesuffix("Request") + "Response"
    return getattr(sys.modules[request.__module__], name)  # type: ignore[no-any-return]
