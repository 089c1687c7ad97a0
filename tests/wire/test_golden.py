"""Bytes written by Apache Kafka 4.3.1's own classes, read and written again by ours.

`golden/cases.json` says what each message means, in the JSON of Kafka's own converters; `golden/frames.json` holds the
frames that `golden/Capture.java` made of them, headers included.
"""

import base64
import json
from pathlib import Path

import pytest

from ottla.wire.codec import decode, encode
from ottla.wire.frames import read_request_header, read_response_header, request_frame, response_frame
from ottla.wire.messages import REQUESTS, RESPONSES, quorum
from ottla.wire.messages.cluster import ApiVersionsResponse
from ottla.wire.messages.fetch import FetchRequest
from ottla.wire.messages.metadata import MetadataResponse
from ottla.wire.messages.produce import ProduceRequest
from ottla.wire.schema import Layout, ListOf

GOLDEN = Path(__file__).parent / "golden"
CASES = json.loads((GOLDEN / "cases.json").read_text())
FRAMES = json.loads((GOLDEN / "frames.json").read_text())
CLASSES = {cls.__name__: cls for cls in (*REQUESTS.values(), *RESPONSES.values(), *vars(quorum).values())
           if isinstance(cls, Layout)}  # fmt: skip
each_frame = pytest.mark.parametrize(
    ("case", "frame"),
    list(zip(CASES, FRAMES, strict=True)),
    ids=[f"{frame['message']}-{frame['version']}-{n}" for n, frame in enumerate(FRAMES)],
)


def from_json(kind, value):
    if value is None:
        return None
    if isinstance(kind, ListOf):
        return [from_json(kind.element, element) for element in value]
    if isinstance(kind, Layout):
        given = {name.lower(): element for name, element in value.items()}
        fields = [(field, field.name.replace("_", "")) for field in kind.fields]
        return kind(**{field.name: from_json(field.kind, given[name]) for field, name in fields if name in given})
    if kind.name == "uuid":
        return base64.urlsafe_b64decode(value + "==")
    return base64.b64decode(value) if kind.name in ("records", "byte_string") else value


def message_in(data, cls, version):
    """Read a frame as a broker or client would, checking its header."""
    if cls.__name__.endswith("Request"):
        key, said, correlation_id, client_id, position = read_request_header(data)
        assert (key, said, correlation_id, client_id) == (cls.key, version, 77, "golden")
    elif cls.__name__.endswith("Response"):
        correlation_id, position = read_response_header(data, cls, version)
        assert correlation_id == 77
    else:
        position = 0
    return decode(cls, data, version, position)


def frame_of(message, version):
    name = type(message).__name__
    if name.endswith("Request"):
        return b"".join(request_frame(message, version, 77, "golden"))[4:]
    if name.endswith("Response"):
        return b"".join(response_frame(message, version, 77))[4:]
    return encode(message, version)


@each_frame
def test_apaches_bytes_are_ours(case, frame):
    cls, version, data = CLASSES[frame["message"]], frame["version"], bytes.fromhex(frame["hex"])
    meant = from_json(cls, case["fields"])
    assert message_in(data, cls, version) == meant, case["what"]
    assert message_in(memoryview(data), cls, version) == meant
    assert frame_of(meant, version) == data, case["what"]


def one(name, version, what):
    return next(
        message_in(bytes.fromhex(frame["hex"]), CLASSES[name], version)
        for case, frame in zip(CASES, FRAMES, strict=True)
        if (frame["message"], frame["version"], case["what"]) == (name, version, what)
    )


def test_a_few_of_them_spelled_out():
    """The table above compares what was meant by code; these are compared by a reader."""
    produce = one("ProduceRequest", 9, "an idempotent producer, two partitions, one without records")
    assert isinstance(produce, ProduceRequest)
    assert (produce.transactional_id, produce.acks, produce.timeout_ms) == (None, -1, 30000)
    (topic,) = produce.topic_data
    assert (topic.name, [p.index for p in topic.partition_data]) == ("orders", [0, 7])
    assert len(topic.partition_data[0].records) == 64
    assert topic.partition_data[1].records is None

    fetch = one("FetchRequest", 18, "a follower goes on in its session and forgets a topic")
    assert isinstance(fetch, FetchRequest)
    assert (fetch.replica_state.replica_id, fetch.replica_state.replica_epoch, fetch.cluster_id) == (2, 77, "abc")
    assert fetch.topics[0].partitions[0].high_watermark == 1
    assert fetch.forgotten_topics_data[0].partitions == [1, 2, 3]

    metadata = one("MetadataResponse", 12, "two brokers and a topic")
    assert isinstance(metadata, MetadataResponse)
    assert [(b.node_id, b.host, b.port, b.rack) for b in metadata.brokers] == [
        (1, "localhost", 9092, None),
        (2, "b2", 9093, "r"),
    ]
    assert metadata.topics[0].partitions[0].offline_replicas == [2]


def test_api_versions_answers_with_the_oldest_header():
    """PRT-01: the header of the answer has no tagged fields, even when its body is flexible."""
    for version in (0, 3, 4):
        data = b"".join(response_frame(ApiVersionsResponse(error_code=35), version, 77))[4:]
        assert data[:6] == b"\0\0\0\x4d\0\x23"
