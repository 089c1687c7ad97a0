"""An answer that refuses all of a request, made from the layouts of both.

A handler that stumbles over a defect of ours must not leave its client without an answer: like Apache Kafka we say
UNKNOWN_SERVER_ERROR in every place that has room for an error, and log what happened. Where request and answer list the same
things (topics, partitions, resources), each that was asked about is told by its name or number.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator
from typing import Any

from ottla.server.failures import ERRORS
from ottla.wire.errors import Error, KafkaError
from ottla.wire.messages import RESPONSES
from ottla.wire.schema import Field, Layout, ListOf, Message

log = logging.getLogger("ottla.server")

# What a topic, a partition, a group or a resource is called, in requests and answers alike.
NAMES = {"name", "topic", "topic_id", "partition", "partition_index", "index", "resource_type", "resource_name"}
NAMES |= {"group_id", "member_id", "key", "transactional_id", "user", "entity", "topic_name", "partition_id"}
# The same where it is one of several; by itself it is what a client wants to be given, and does not get.
NAMES_INSIDE = NAMES | {"producer_id"}
# Where an answer has another word for it than the request.
ALIASES = {"partition_index": "partition", "user": "name", "topic_name": "name"}
# Where a request says nothing but names: DeleteTopics before version 6, DescribeGroups, FindCoordinator, or but numbers.
BARE = {"name", "group_id", "key", "transactional_id"}
BARE_NUMBERS = {"partition_index", "partition", "partition_id"}
# AlterUserScramCredentials and AlterReplicaLogDirs ask in several lists for what is answered in one.
IN_SEVERAL: dict[int, Callable[[Any], list[Any]]] = {
    51: lambda request: [*request.deletions, *request.upsertions],
    34: lambda request: [topic for directory in request.dirs for topic in directory.topics],
}
# What a refused fetch says, as Apache Kafka does: for librdkafka null in place of records is a broken answer.
NOTHING_READ = {"records": b"", "high_watermark": -1}

# AlterPartition and FetchSnapshot: the request is refused, and nothing is said of what it named, as in Apache Kafka.
AS_A_WHOLE = {56, 59}


def answer_to(error: Exception, request: Message, version: int) -> Message:
    """What a client hears whose request was not answered, but ended in this."""
    if isinstance(error, KafkaError):
        return refusal(request, error)
    log.error("%s version %d failed", type(request).__name__.removesuffix("Request"), version, exc_info=error)
    return refusal(request, KafkaError(Error.UNKNOWN_SERVER_ERROR))


def refusal(request: Message, error: KafkaError) -> Message:
    """Nothing but this error, for the request and for each thing in it."""
    asked = None if type(request).key in AS_A_WHOLE else request
    answer = _refused(asked, RESPONSES[type(request).key], error)
    assert isinstance(answer, Message)
    return answer


def _refused(asked: Any, answer: Layout, error: KafkaError) -> Any:
    told = answer()
    names = NAMES if isinstance(told, Message) else NAMES_INSIDE
    for field in answer.fields:
        said = field.name if hasattr(asked, field.name) else ALIASES.get(field.name, field.name)
        if field.name in ERRORS:
            setattr(told, field.name, error.code)
        elif field.name == "error_message":
            told.error_message = None if error.error is Error.UNKNOWN_SERVER_ERROR else error.message
        elif field.name in NOTHING_READ:
            setattr(told, field.name, NOTHING_READ[field.name])
        elif (isinstance(asked, str) and field.name in BARE) or (isinstance(asked, int) and field.name in BARE_NUMBERS):
            setattr(told, field.name, asked)
        elif field.name in names and hasattr(asked, said):
            setattr(told, field.name, getattr(asked, said))
        elif (inner := _element(field)) is not None and _is_named(inner):
            setattr(told, field.name, [_refused(each, inner, error) for each in _things(asked)])
    return told


def _things(asked: Any) -> Iterator[Any]:
    """What a request, or a topic in it, is about: its first list that is not empty."""
    if isinstance(asked, Message) and type(asked).key in IN_SEVERAL:
        yield from IN_SEVERAL[type(asked).key](asked)
    elif isinstance(type(asked), Layout):
        lists = (getattr(asked, field.name) for field in type(asked).fields if isinstance(field.kind, ListOf))
        yield from next((found for found in lists if found), ())


def _element(field: Field) -> Layout | None:
    element = field.kind.element if isinstance(field.kind, ListOf) else None
    return element if isinstance(element, Layout) else None


def _is_named(layout: Layout) -> bool:
    """Whether these are things that were asked about and have an error each, or hold such things."""
    names = {field.name for field in layout.fields}
    inner = (_element(field) for field in layout.fields)
    return bool(names & NAMES_INSIDE) and bool(
        names & ERRORS or any(_is_named(one) for one in inner if one is not None)
    )
