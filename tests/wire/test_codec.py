"""The codec by itself: what lies where, what is refused, and what a hostile frame may cost.

That every message agrees with other implementations is shown in test_against_kio and test_golden.
"""

import struct
import tracemalloc

import pytest

from ottla.wire.codec import Malformed, Unencodable, decode, decoder, encode, encode_parts, size_of, source_of
from ottla.wire.generator import MEMORY_FREE, MEMORY_MAX, MEMORY_PER_BYTE
from ottla.wire.messages import REQUESTS, RESPONSES
from ottla.wire.messages.fetch import FetchRequest, FetchResponse
from ottla.wire.messages.metadata import DescribeTopicPartitionsRequest, MetadataRequest, MetadataResponse
from ottla.wire.messages.offsets import ListOffsetsRequest
from ottla.wire.messages.produce import ProduceRequest, ProduceResponse
from ottla.wire.messages.settings import IncrementalAlterConfigsRequest
from ottla.wire.messages.topics import CreateTopicsRequest, DeleteTopicsRequest
from ottla.wire.primitives import INLINE_MAX, varint
from ottla.wire.schema import Kind, Layout, ListOf, Message, Struct, byte_string, int8, int16, int32, string, uuid, v

MEGABYTE = 1 << 20


class Sample(Message, versions="0-1", flexible="1+"):
    """A bit of everything."""

    class Part(Struct):
        index: int32 = v("0+")
        label: string | None = v("0+", None, nullable="0+")

    name: string = v("0+")
    blob: byte_string | None = v("0+", None, nullable="0+")
    ids: list[uuid] = v("0+")
    sizes: list[int16] | None = v("0+", nullable="0+")
    parts: list[Part] = v("0+")
    owner: Part | None = v("0+", None, nullable="0+")
    late: int8 = v("1+", 9)
    hint: string = v("1+", "none", tag=1)
    extra: list[int8] = v("1+", tag=130)


FULL = Sample(
    name="é",
    blob=b"xy",
    ids=[bytes(16), b"a" * 16],
    sizes=[1, -2],
    parts=[Sample.Part(index=7, label="p"), Sample.Part()],
    owner=Sample.Part(index=1),
    late=3,
    hint="yes",
    extra=[1],
)


def test_bytes_of_an_old_version():
    assert encode(FULL, 0).hex(" ") == (
        "00 02 c3 a9 00 00 00 02 78 79 00 00 00 02 "
        + "00 " * 16 + "61 " * 16
        + "00 00 00 02 00 01 ff fe 00 00 00 02 00 00 00 07 00 01 70 00 00 00 00 ff ff 01 00 00 00 01 ff ff"
    )  # fmt: skip


def test_bytes_of_a_flexible_version():
    """The tag of the second tagged field needs two bytes."""
    assert encode(FULL, 1).hex(" ") == (
        "03 c3 a9 03 78 79 03 " + "00 " * 16 + "61 " * 16
        + "03 00 01 ff fe 03 00 00 00 07 02 70 00 00 00 00 00 00 00 01 00 00 00 01 00 00 03 "
        + "02 01 04 04 79 65 73 82 01 02 02 01"
    )  # fmt: skip


def test_what_is_absent_takes_its_default():
    expected = Sample(**{name: getattr(FULL, name) for name in ("name", "blob", "ids", "sizes", "parts", "owner")})
    assert decode(Sample, encode(FULL, 0), 0) == expected
    assert expected.late == 9
    assert decode(Sample, encode(FULL, 1), 1) == FULL
    assert decode(Sample, encode(Sample(), 1), 1) == Sample()


def test_tagged_fields_at_their_default_are_not_written():
    assert encode(Sample(), 1).endswith(b"\x09\x00")
    assert encode(Sample(hint="x"), 1).endswith(b"\x09\x01\x01\x02\x02x")


def test_unknown_tagged_fields_are_skipped():
    data = encode(Sample(), 1)[:-1] + b"\x03" + b"\x01\x04\x04yes" + b"\x05\x02??" + b"\xff\x01\x00"
    assert decode(Sample, data, 1) == Sample(hint="yes")
    request = encode(MetadataRequest(topics=[MetadataRequest.Topic(name="t")]), 9)
    assert request.endswith(b"\x02t\x00\x01\x00\x00\x00")
    grown = request[:-5] + b"\x01\x09\x02ab" + request[-4:]
    assert decode(MetadataRequest, grown, 9) == decode(MetadataRequest, request, 9)


def test_position_and_trailing_bytes():
    data = b"header" + encode(FULL, 1)
    assert decode(Sample, data, 1, 6) == FULL
    with pytest.raises(Malformed, match="2 bytes too many"):
        decode(Sample, data + b"??", 1, 6)
    assert decode(Sample, data + b"??", 1, 6, trailing=True) == FULL
    assert decoder(Sample, 1)(data + b"??", 6) == (FULL, len(data))


@pytest.mark.parametrize("kind", [bytes, bytearray, memoryview])
@pytest.mark.parametrize("version", [0, 1])
def test_any_bytes_like_will_do(kind, version):
    data = encode(FULL, version)
    assert encode(decode(Sample, kind(data), version), version) == data


def test_records_are_a_view_of_the_frame():
    Partition = ProduceRequest.Topic.Partition
    request = ProduceRequest(
        topic_data=[ProduceRequest.Topic(name="t", partition_data=[Partition(index=1, records=b"batch"), Partition()])]
    )
    for version in (8, 9):
        frame = bytearray(encode(request, version))
        first, second = decode(ProduceRequest, memoryview(frame), version).topic_data[0].partition_data
        assert first.records == b"batch"
        frame[frame.index(b"batch")] = ord("c")
        assert first.records == b"catch"
        assert second.records is None


class Piece:
    """Stands for a slice of a file."""

    def __init__(self, size):
        self.size = size


@pytest.mark.parametrize("version", [4, 11, 12, 18])
def test_holes(version):
    """What has a size is left out; all parts joined are what would have been written with the bytes in place."""
    Partition = FetchResponse.Topic.Partition
    large, hole = b"x" * (INLINE_MAX + 1), Piece(5)

    def response(third):
        pieces = [b"small", large, third, b""]
        partitions = [Partition(partition_index=n, records=piece) for n, piece in enumerate(pieces)]
        return FetchResponse(responses=[FetchResponse.Topic(topic="t", partitions=partitions)])

    parts = encode_parts(response(hole), version, b"head")
    assert parts[0].startswith(b"head")
    assert parts[1] is large
    assert parts[3] is hole
    whole = encode(response(b"12345"), version)
    assert size_of(parts) == len(b"head") + len(whole)
    assert b"".join(b"12345" if part is hole else part for part in parts) == b"head" + whole


def test_varints_of_every_length():
    """As the number of a tagged field nobody knows."""
    body = encode(MetadataRequest(), 9)[:-1]
    for value, size in ((0, 1), (127, 1), (128, 2), (16383, 2), (16384, 3), (2**28, 5), (2**32 - 1, 5)):
        assert len(varint(value)) == size
        assert decode(MetadataRequest, body + b"\x01" + varint(value) + b"\x00", 9) == MetadataRequest()


def test_strings_of_every_length_class():
    for size in (0, 126, 127, 128, 16382, 16383, 32767):
        for version in (0, 1):
            sample = Sample(name="n" * size, hint="h" * size)
            back = decode(Sample, encode(sample, version), version)
            assert back.name == sample.name
            assert back.hint == (sample.hint if version else "none")


# Refused.


def refused(cls, version, data):
    for kind in (bytes, memoryview):
        with pytest.raises(Malformed):
            decode(cls, kind(data), version)


@pytest.mark.parametrize("version", [0, 1])
def test_every_shorter_frame_is_malformed(version):
    """Also where what follows is none of the message's business."""
    data = encode(FULL, version)
    for size in range(len(data)):
        for kind in (bytes, memoryview):
            with pytest.raises(Malformed):
                decode(Sample, kind(data[:size]), version, trailing=True)


def test_text_at_the_end_is_not_quietly_shortened():
    data = encode(FetchRequest(rack_id="rack"), 11)
    with pytest.raises(Malformed):
        decode(FetchRequest, data[:-1], 11, trailing=True)


def test_negative_lengths():
    rest = encode(Sample(), 0)[2:]
    refused(Sample, 0, b"\xff\xff" + rest)  # null name
    refused(Sample, 0, b"\xff\xfe" + rest)
    refused(Sample, 0, b"\0\0" + b"\xff\xff\xff\xfe" + rest[4:])  # blob of -2 bytes
    refused(Sample, 0, b"\0\0" + rest[:4] + b"\xff\xff\xff\xff" + rest[8:])  # null ids
    refused(Sample, 0, b"\0\0" + rest[:8] + b"\xff\xff\xff\xfb" + rest[12:])  # -5 sizes
    assert decode(Sample, b"\0\0" + rest[:8] + b"\xff\xff\xff\xff" + rest[12:], 0).sizes is None


@pytest.mark.parametrize(("version", "count"), [(8, struct.pack(">i", 9)), (9, varint(10))])
def test_counts_are_compared_with_the_bytes_that_remain(version, count):
    """Before the first element is read: nine topics of two bytes each do not fit into seventeen."""
    with pytest.raises(Malformed, match="topics is null or beyond the end"):
        decode(MetadataRequest, count + bytes(17), version)


def test_null_where_a_flexible_version_has_none():
    data = encode(Sample(), 1)
    refused(Sample, 1, b"\0" + data[1:])
    refused(Sample, 1, data[:2] + b"\0" + data[3:])


def test_text_must_be_utf8():
    refused(Sample, 0, b"\0\1\xff" + encode(Sample(), 0)[2:])
    refused(Sample, 1, b"\2\xff" + encode(Sample(), 1)[1:])


def test_varints_of_more_than_32_bits():
    rest = encode(Sample(), 1)[1:]
    refused(Sample, 1, b"\x80\x80\x80\x80\x80\x00" + rest)
    refused(Sample, 1, b"\xff\xff\xff\xff\x1f" + rest)
    refused(Sample, 1, b"\xff\xff\xff\xff\x0f" + rest)  # 32 bits, but nobody has so much text
    refused(Sample, 1, encode(Sample(), 1)[:-1] + b"\x01" + b"\xff\xff\xff\xff\x1f" + b"\x00")  # number of a tag


def test_a_flexible_string_may_not_be_longer_than_a_plain_one():
    refused(Sample, 1, varint(32769) + b"n" * 32768 + encode(Sample(), 1)[1:])


def test_tagged_fields_that_lie():
    data = encode(Sample(), 1)[:-1]
    refused(Sample, 1, data + b"\x01\x01\x05\x04yes")  # size of 5, is 4
    refused(Sample, 1, data + b"\x01\x01\x05\x04yes?")
    refused(Sample, 1, data + b"\x01\x01\x03\x04yes")
    refused(Sample, 1, data + b"\x01\x07\x7f")  # unknown, beyond the end
    refused(Sample, 1, data + b"\x02\x01\x04\x04yes")  # two announced, one there


def test_versions_that_do_not_exist():
    with pytest.raises(ValueError, match="0-1"):
        decode(Sample, b"", 2)
    with pytest.raises(ValueError, match="3-13"):
        encode(ProduceRequest(), 2)


# Hostile: nothing is allocated because a number says so (faults: amplification).


def peak(cls, version, data):
    decoder(cls, version)
    tracemalloc.start()
    try:
        decode(cls, data, version)
    except Malformed:
        return tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    raise AssertionError("was accepted")


HUGE = varint(2**31 - 1)
HOSTILE = {
    "count of 2^31-1": (MetadataRequest, 8, struct.pack(">i", 2**31 - 1) + bytes(100)),
    "compact count of 2^31-1": (MetadataRequest, 9, HUGE + bytes(100)),
    "compact count of 2^32-1": (MetadataRequest, 9, varint(2**32 - 1) + bytes(100)),
    "one more element than bytes": (MetadataRequest, 9, varint(40_000) + bytes(40_000 * 2 - 100)),
    "count of numbers": (DescribeTopicPartitionsRequest, 0, b"\x02\x02t\x00" + b"\x00\x00\x00\x01\x01" + HUGE),
    "string of 2 GB": (MetadataRequest, 9, b"\x02" + HUGE + bytes(100)),
    "records of 2 GB": (ProduceRequest, 9, b"\0\0\0\0\0\0\0\2\2t\2\0\0\0\1" + HUGE + bytes(100)),
    "tagged fields": (MetadataRequest, 9, encode(MetadataRequest(), 9)[:-1] + HUGE + bytes(100_000)),
    "known tagged fields": (ProduceResponse, 10, encode(ProduceResponse(), 10)[:-1] + HUGE + b"\x07\x00" * 50_000),
    "a tagged array": (ProduceResponse, 10, encode(ProduceResponse(), 10)[:-1] + b"\x01\x00\x05" + HUGE + bytes(100)),
    "nested arrays": (CreateTopicsRequest, 5, b"\x02" + b"\x02t" + bytes(6) + b"\x02" + bytes(4) + HUGE + bytes(999)),
    "a megabyte of empty names": (DeleteTopicsRequest, 4, varint(MEGABYTE + 1) + b"\x01" * MEGABYTE + bytes(5)),
    "a megabyte of topics": (MetadataRequest, 9, varint(MEGABYTE // 2 + 1) + b"\x01\x00" * (MEGABYTE // 2) + bytes(3)),
}  # fmt: skip


@pytest.mark.parametrize("what", HOSTILE)
def test_a_hostile_frame_costs_at_most_twice_its_size_and_a_megabyte(what):
    cls, version, data = HOSTILE[what]
    assert peak(cls, version, data) <= 2 * len(data) + MEGABYTE


def heaviest(kind, version):
    """A value whose objects are as large as they can be for few bytes: wide text, numbers that Python does not share."""
    if isinstance(kind, ListOf):
        return []
    if isinstance(kind, Kind):
        wide = {"string": "\U0001f600", "byte_string": b"ab", "records": b"", "boolean": True, "float64": 0.1}
        return wide.get(kind.name, bytes(range(16)) if kind.size == 16 else 2 ** (8 * kind.size - 1) - 1)
    held = {field.name: heaviest(field.kind, version) for field in kind.fields if version in field.versions}
    return kind(**held)


def filled(cls, version, path, count):
    """A request in which the array at the end of the path has that many elements, and those on the way have one."""
    (name, kind), *rest = path
    if not rest:
        return cls(**{name: [heaviest(kind, version)] * count})
    return cls(**{name: [filled(kind, version, rest, count)]})


def arrays(cls, version, way=()):
    for field in cls.fields:
        if version in field.versions and isinstance(field.kind, ListOf):
            path = (*way, (field.name, field.kind.element))
            yield path
            if isinstance(field.kind.element, Layout):
                yield from arrays(field.kind.element, version, path)


ARRAYS = [
    (cls, version, path)
    for cls in REQUESTS.values()
    for version in sorted(set(cls.versions))
    for path in arrays(cls, version)
]


@pytest.mark.parametrize(
    ("cls", "version", "path"), ARRAYS, ids=[f"{c.__name__}-{n}-{'.'.join(w for w, _ in p)}" for c, n, p in ARRAYS]
)
def test_the_dearest_well_formed_frames(cls, version, path):
    """Python objects are larger than their bytes: arrays of them cost what the account says, and then are refused."""
    data = encode(filled(cls, version, path, 2000), version)
    large = encode(filled(cls, version, path, 10_000), version)
    for frame in (data + b"?", large + b"?"):
        assert peak(cls, version, frame) <= min(MEMORY_FREE + MEMORY_PER_BYTE * len(frame), MEMORY_MAX) * 1.1


def test_no_frame_costs_more_than_the_account_holds():
    """Ten megabytes of empty record sets, and of long topic names with one wide character each."""
    empty = b"\0\0\0\0\1\0"
    data = b"\0\0\xff\0\0\0\0\2\2t" + varint(100_001) + empty * 100_000 + b"\0\0" + bytes(10 * MEGABYTE) + b"?"
    assert MEMORY_MAX / 4 < peak(ProduceRequest, 9, data) < MEMORY_MAX
    name = "\U0001f600" + "x" * 32_000
    wide = ProduceRequest(topic_data=[ProduceRequest.Topic(name=name)] * 400)
    assert peak(ProduceRequest, 9, encode(wide, 9) + b"?") < MEMORY_MAX


def test_the_account_of_memory_covers_nested_arrays():
    """Each array is small, together they are too many for so few bytes."""
    few = varint(1001) + b"\x01\x00\x00\x00" * 1000  # empty name, operation, null value, no tags
    resource = b"\x02\x01" + few + b"\x00"  # type, empty name, settings, no tags
    data = varint(5) + resource * 4 + b"\x00\x00"
    assert len(decode(IncrementalAlterConfigsRequest, data, 1).resources) == 4
    refused(IncrementalAlterConfigsRequest, 1, varint(41) + resource * 40 + b"\x00\x00")
    names = varint(30_001) + b"\x01" * 30_000
    refused(DeleteTopicsRequest, 4, names + bytes(4) + b"\x00")


def partitions_of(topic, **facts):
    return [topic(partitions=[topic.Partition(**facts) for _ in range(100_000)])]


# What large clusters and eager tools send: ten thousand topics, or a hundred thousand partitions.
HONEST = {
    "metadata": lambda: MetadataRequest(topics=[MetadataRequest.Topic(name=f"t{n}") for n in range(10_000)]),
    "fetch": lambda: FetchRequest(topics=partitions_of(FetchRequest.Topic, fetch_offset=2**40)),
    "list offsets": lambda: ListOffsetsRequest(topics=partitions_of(ListOffsetsRequest.Topic, timestamp=-1)),
    "create": lambda: CreateTopicsRequest(topics=[NEW_TOPIC] * 10_000),
    "delete": lambda: DeleteTopicsRequest(topic_names=[f"t{n}" for n in range(10_000)]),
}
NEW_TOPIC = CreateTopicsRequest.Topic(
    name="some-topic", configs=[CreateTopicsRequest.Topic.Config(name="retention.ms", value="1000")]
)


@pytest.mark.parametrize("name", HONEST)
def test_a_large_honest_request_passes(name):
    request = HONEST[name]()
    for version in {type(request).versions.low, 5}:
        data = encode(request, version)
        assert encode(decode(type(request), data, version), version) == data


def test_a_large_honest_response_passes():
    Topic = MetadataResponse.Topic
    partitions = [
        Topic.Partition(partition_index=n, replica_nodes=[1, 2, 3], isr_nodes=[1, 2, 3]) for n in range(50_000)
    ]
    response = MetadataResponse(topics=[Topic(name="t", partitions=partitions)])
    assert decode(MetadataResponse, encode(response, 12), 12) == response


# Writing.


@pytest.mark.parametrize("size", [0, 126, 127, 16_382, 16_383, (1 << 21) - 2, (1 << 21) - 1])
def test_where_the_length_of_records_grows_by_a_byte(size):
    partition = ProduceRequest.Topic.Partition(index=7, records=bytes(size))
    data = encode(ProduceRequest(topic_data=[ProduceRequest.Topic(name="t", partition_data=[partition])]), 9)
    (topic,) = decode(ProduceRequest, data, 9).topic_data
    assert bytes(topic.partition_data[0].records) == bytes(size)
    groups = [size + 1 >> shift & 127 for shift in range(0, 28, 7) if size + 1 >> shift]
    assert bytes([group | 128 for group in groups[:-1]] + groups[-1:]) + bytes(size) in data


def test_elements_with_and_without_something_to_say():
    """Partitions without an error are written in one piece, between others that are not."""
    Partition = ProduceResponse.Topic.Partition
    head = {"log_append_time_ms": -1, "log_start_offset": 5}
    plain = Partition(index=1, error_code=0, base_offset=2**40, **head)
    telling = Partition(index=2, error_code=87, base_offset=-1, error_message="no", **head)
    first, second = struct.pack(">ihqqq", 1, 0, 2**40, -1, 5), struct.pack(">ihqqq", 2, 87, -1, -1, 5)
    response = ProduceResponse(responses=[ProduceResponse.Topic(name="t", partition_responses=[plain, telling, plain])])
    old = [first + struct.pack(">ih", 0, -1), second + struct.pack(">ih", 0, 2) + b"no"]
    new = [first + b"\1\0\0", second + b"\1\3no\0"]
    assert old[0] + old[1] + old[0] in encode(response, 8)
    assert new[0] + new[1] + new[0] in encode(response, 9)
    assert new[0] + new[1] + new[0] in encode(response, 13)
    plain.record_errors = None
    with pytest.raises(Unencodable):
        encode(response, 9)


def test_null_where_the_version_has_none():
    with pytest.raises(Unencodable):
        encode(MetadataRequest(topics=None), 0)
    assert encode(MetadataRequest(topics=None), 1) == b"\xff\xff\xff\xff"
    with pytest.raises(Unencodable):
        encode(MetadataRequest(topics=[MetadataRequest.Topic(name=None)]), 9)
    for name in ("name", "ids", "parts", "late", "hint", "extra"):
        with pytest.raises(Unencodable):
            encode(Sample(**{name: None}), 1)


def test_values_that_do_not_fit():
    for wrong in (
        Sample(late=128),
        Sample(late="x"),
        Sample(name="\ud800"),
        Sample(name="n" * 32768),
        Sample(name=b"n"),
    ):
        with pytest.raises(Unencodable):
            encode(wrong, 1)
    with pytest.raises(Unencodable):
        encode(Sample(name="n" * 32768), 0)


def test_a_field_the_version_does_not_have_is_left_out():
    assert encode(Sample(late=1, hint="x"), 0) == encode(Sample(), 0)


# How.


def test_fixed_fields_are_read_in_one_go():
    """The run goes on over the length of what follows it, and over the count of tagged fields."""
    reading = source_of(ProduceResponse, 9, reading=True)
    assert ".index, o" in reading
    assert reading.count("unpack") == 0
    line = next(line for line in reading.splitlines() if ".base_offset" in line)
    assert line.count(",") == 6  # five fields, the count of record errors, and (d, p)
    writing = source_of(ProduceResponse, 9, reading=False)
    assert max(line.count(",") for line in writing.splitlines() if ".base_offset" in line) == 5


@pytest.mark.parametrize("cls", [*REQUESTS.values(), *RESPONSES.values()], ids=lambda cls: cls.__name__)
def test_every_message_compiles_in_every_version_and_round_trips_empty(cls):
    for version in range(cls.versions.low, cls.versions.high + 1):
        assert decode(cls, encode(cls(), version), version) == cls()
