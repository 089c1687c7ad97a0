"""Frames and headers: cut from a stream, read, written, and refused."""

import struct
import tracemalloc

import pytest

from ottla.wire.codec import Malformed, decode, encode, size_of
from ottla.wire.frames import Frames, read_request_header, read_response_header, request_frame, response_frame
from ottla.wire.messages import REQUESTS, RESPONSES
from ottla.wire.messages.cluster import ApiVersionsRequest, ApiVersionsResponse
from ottla.wire.messages.fetch import FetchResponse
from ottla.wire.messages.metadata import MetadataRequest, MetadataResponse
from ottla.wire.primitives import varint


def header(key, version, client_id=b"\0\2me", tags=b""):
    return struct.pack(">hhi", key, version, 5) + client_id + tags


def test_request_header_before_and_after_flexible_versions():
    """The client id keeps its 16-bit length in both; only the second has tagged fields."""
    assert read_request_header(header(3, 8)) == (3, 8, 5, "me", 12)
    assert read_request_header(header(3, 9, tags=b"\0")) == (3, 9, 5, "me", 13)
    assert read_request_header(memoryview(header(3, 9, tags=b"\0"))) == (3, 9, 5, "me", 13)
    assert read_request_header(header(3, 8, b"\xff\xff")) == (3, 8, 5, None, 10)
    assert read_request_header(header(3, 8, b"\0\0")) == (3, 8, 5, "", 10)


def test_tagged_fields_of_a_header_are_skipped():
    assert read_request_header(header(3, 9, tags=b"\2\0\3abc\7\0")) == (3, 9, 5, "me", 20)


def test_an_api_versions_request_of_the_future_can_still_be_answered():
    """PRT-01: its correlation id is readable although nobody knows the body."""
    assert read_request_header(header(18, 99, tags=b"\0") + b"???") == (18, 99, 5, "me", 13)


@pytest.mark.parametrize(
    "data",
    [
        b"",
        header(3, 8)[:9],
        header(3, 8)[:11],
        header(3, 8, b"\xff\xfe"),
        header(3, 8, b"\x7f\xff"),
        header(3, 8, b"\0\1\xff"),
        header(3, 9),
        header(3, 9, tags=b"\1"),
        header(3, 9, tags=b"\1\0\5abc"),
        header(3, 9, tags=b"\x80\x80\x80\x80\x80\x80"),
        header(999, 0),
        header(-1, 0),
    ],
)
def test_headers_that_are_refused(data):
    for kind in (bytes, memoryview):
        with pytest.raises(Malformed):
            read_request_header(kind(data))


def test_a_header_with_two_billion_tagged_fields_costs_nothing():
    data = header(18, 3, tags=varint(2**31 - 1) + bytes(100_000))
    tracemalloc.start()
    with pytest.raises(Malformed):
        read_request_header(data)
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert peak < 10_000


def test_frames_there_and_back():
    for version in (0, 8, 9, 13):
        request = MetadataRequest(topics=[MetadataRequest.Topic(name="t")])
        parts = request_frame(request, version, 41, None)
        (frame,) = Frames().feed(b"".join(parts))
        key, said, correlation_id, client_id, position = read_request_header(frame)
        assert (key, said, correlation_id, client_id) == (3, version, 41, None)
        assert decode(MetadataRequest, frame, version, position) == request

        response = MetadataResponse(cluster_id=None, controller_id=-1)
        (frame,) = Frames().feed(b"".join(response_frame(response, version, 41)))
        correlation_id, position = read_response_header(frame, MetadataResponse, version)
        assert correlation_id == 41
        assert decode(MetadataResponse, frame, version, position) == response


def test_the_answer_to_api_versions_has_the_oldest_header():
    """PRT-01."""
    body = encode(ApiVersionsResponse(), 3)
    assert b"".join(response_frame(ApiVersionsResponse(), 3, 1)) == struct.pack(">ii", 4 + len(body), 1) + body
    assert read_response_header(b"\0\0\0\1" + body, ApiVersionsResponse, 3) == (1, 4)
    request = b"".join(request_frame(ApiVersionsRequest(), 3, 1, "c"))
    assert read_request_header(request[4:])[4] == 12


def test_response_headers_with_tagged_fields():
    assert read_response_header(b"\0\0\0\1\1\0\3abc", MetadataResponse, 9) == (1, 10)
    many = varint(200) + b"\0\0" * 200
    assert read_response_header(b"\0\0\0\1" + many, MetadataResponse, 9) == (1, 4 + len(many))
    assert read_request_header(header(3, 9, tags=many)) == (3, 9, 5, "me", 12 + len(many))
    for wrong in (b"\0\0\0", b"\0\0\0\1", b"\0\0\0\1\1\0\4abc"):
        with pytest.raises(Malformed):
            read_response_header(wrong, MetadataResponse, 9)


def test_the_length_counts_holes():
    class Piece:
        size = 1_000_000

    Topic = FetchResponse.Topic
    response = FetchResponse(responses=[Topic(topic="t", partitions=[Topic.Partition(records=Piece)])])
    parts = response_frame(response, 11, 1)
    assert struct.unpack(">i", parts[0][:4]) == (size_of(parts) - 4,)
    assert size_of(parts) > 1_000_000


def test_every_request_has_its_response():
    """Same key, same versions, flexible at the same one: the header of an answer is chosen by the response class."""
    assert REQUESTS.keys() == RESPONSES.keys()
    for key, request in REQUESTS.items():
        assert request.versions == RESPONSES[key].versions
        assert request.flexible_from == RESPONSES[key].flexible_from


@pytest.mark.parametrize("step", [1, 2, 3, 7, 1000])
def test_frames_come_out_whole_however_they_went_in(step):
    frames = [b"one", b"", b"x" * 500, b"four"]
    stream = b"".join(struct.pack(">i", len(frame)) + frame for frame in frames)
    cutter = Frames()
    assert [f for at in range(0, len(stream), step) for f in cutter.feed(stream[at : at + step])] == frames


@pytest.mark.parametrize("size", [-1, -(2**31), 1001, 2**31 - 1])
def test_lengths_that_are_refused(size):
    cutter = Frames(bytes_max=1000)
    assert cutter.feed(b"\0\0\0\1a") == [b"a"]
    with pytest.raises(Malformed):
        cutter.feed(struct.pack(">i", size))


def test_a_promised_length_reserves_nothing():
    tracemalloc.start()
    cutter = Frames()
    assert cutter.feed(struct.pack(">i", 100_000_000) + b"a") == []
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert peak < 10_000
