"""Records as kafka-console-consumer.sh writes them."""

from __future__ import annotations

import struct

import pytest

from ottla.cli.kafka.deserializers import Undecodable, deserializer, java_float
from ottla.cli.kafka.formatters import formatter
from ottla.cli.kafka.options import Usage
from ottla.client.consumer import Consumed
from ottla.coordination import records

RECORD = Consumed("t", 3, 7, 1_700_000_000_000, b"k", b"v", (("a", b"1"), ("b", None)))
PACKAGE = "org.apache.kafka.tools.consumer."


def shown(record: Consumed = RECORD, name: str = "DefaultMessageFormatter", **properties: str) -> bytes:
    return formatter(PACKAGE + name, {key.replace("_", "."): value for key, value in properties.items()})(record)


def test_columns() -> None:
    """CLI-06"""
    assert shown() == b"v\n"
    names = ("timestamp", "partition", "offset", "headers", "key")
    everything = {f"print_{name}": "true" for name in names}
    assert shown(**everything) == b"CreateTime:1700000000000\tPartition:3\tOffset:7\ta:1,b:null\tk\tv\n"
    assert shown(print_value="false") == b""
    assert shown(print_value="false", print_key="true", line_separator="#") == b"k#"
    late = RECORD._replace(timestamp_type=1, headers=(), key=None, value=None)
    assert shown(late, **everything, null_literal="-").split(b"\t")[0] == b"LogAppendTime:1700000000000"
    assert shown(late, print_headers="true", print_key="true", null_literal="-") == b"NO_HEADERS\t-\t-\n"


def test_other_formatters(capsys: pytest.CaptureFixture[str]) -> None:
    assert shown(name="NoOpMessageFormatter") == b""
    assert shown(name="LoggingMessageFormatter") == b"v\n"
    assert capsys.readouterr().err == "INFO CreateTime:1700000000000, key:k, value:v\n"
    with pytest.raises(Usage, match=r"org.apache.kafka.tools.consumer.Own"):
        shown(name="Own")


def test_records_of_internal_topics() -> None:
    key, value = records.OffsetCommitKey(group="g", topic="t", partition=1), records.OffsetCommitValue(offset=5)
    raw_key, raw_value = records.pack(records.Record(key, value))
    commit = RECORD._replace(key=raw_key, value=raw_value)
    start = b'{"key":{"type":1,"data":{"group":"g","topic":"t","partition":1}},"value":{"version":'
    assert shown(commit, "OffsetsMessageFormatter").startswith(start)
    assert shown(commit, "GroupMetadataMessageFormatter") == b"", "not its business"
    gone = commit._replace(value=None)
    assert shown(gone, "OffsetsMessageFormatter").endswith(b',"value":null}')
    assert shown(RECORD, "OffsetsMessageFormatter") == b""


def test_numbers() -> None:
    package = "org.apache.kafka.common.serialization."
    for name, layout, value in (("Integer", ">i", -5), ("Long", ">q", 1 << 60), ("Short", ">h", 7)):
        read = deserializer(f"{package}{name}Deserializer")
        assert read is not None and read(struct.pack(layout, value)) == str(value).encode()
        with pytest.raises(Undecodable, match=f"Size of data received by {name}Deserializer is not"):
            read(b"123")
    assert deserializer("my.Deserializer") is None
    boolean = deserializer("BooleanDeserializer")
    assert boolean is not None and boolean(b"\x01") == b"true"


@pytest.mark.parametrize(
    ("value", "text"),
    [
        (1.0, "1.0"),
        (-0.5, "-0.5"),
        (1e7, "1.0E7"),
        (9999999.0, "9999999.0"),
        (1e-3, "0.001"),
        (1e-4, "1.0E-4"),
        (-1.5e300, "-1.5E300"),
        (0.0, "0.0"),
        (float("inf"), "Infinity"),
        (float("nan"), "NaN"),
    ],
)
def test_numbers_with_a_point_are_written_as_in_java(value: float, text: str) -> None:
    assert java_float(value) == text


def test_single_precision() -> None:
    (third,) = struct.unpack(">f", struct.pack(">f", 0.1))
    assert java_float(third, is_single=True) == "0.1"
