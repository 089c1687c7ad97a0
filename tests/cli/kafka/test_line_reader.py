"""Lines as records, and settings of Java's clients as ours."""

from __future__ import annotations

import pytest

from ottla.cli.kafka.client_settings import consumer_options, pairs, producer_options
from ottla.cli.kafka.line_reader import Line, LineReader
from ottla.cli.kafka.options import Failed
from ottla.client.cluster import EARLIEST
from ottla.wire.compression import Codec


def read(text: bytes, **properties: str) -> Line:
    return LineReader({name.replace("_", "."): value for name, value in properties.items()}).read(text)


def test_a_line_is_a_value() -> None:
    assert read(b"a\tb") == Line(None, b"a\tb", ())
    assert read(b"\xff\x00") == Line(None, b"\xff\x00", ()), "bytes that are no text stay as they are"


def test_keys_and_headers() -> None:
    """CLI-03"""
    assert read(b"k:v:w", parse_key="true", key_separator=":") == Line(b"k", b"v:w", ())
    assert read(b"a:1,b:\tk\tv", parse_key="TRUE", parse_headers="true") == Line(b"k", b"v", (("a", b"1"), ("b", b"")))
    assert read(b"NIL\tNIL\tNIL", parse_key="true", parse_headers="true", null_marker="NIL") == Line(None, None, ())
    assert read(b"a:NIL\tv", parse_headers="true", null_marker="NIL").headers == (("a", None),)


@pytest.mark.parametrize(
    ("text", "properties", "complaint"),
    [
        (b"v", {"parse_key": "true"}, "No key separator found on line number 1: 'v'"),
        (b"v", {"parse_headers": "true"}, "No headers delimiter found on line number 1: 'v'"),
        (b"a\tv", {"parse_headers": "true"}, "No header key separator found in pair 'a' on line number 1"),
        (
            b"N:1\tv",
            {"parse_headers": "true", "null_marker": "N"},
            "Header keys should not be equal to the null marker",
        ),
        (b"", {"headers_delimiter": ","}, "headers.delimiter and headers.separator may not be equal"),
        (b"", {"null_marker": "\t"}, "null.marker and key.separator may not be equal"),
    ],
)
def test_what_cannot_be_read(text: bytes, properties: dict[str, str], complaint: str) -> None:
    with pytest.raises(Failed, match=complaint):
        read(text, **properties)


def test_errors_can_be_ignored() -> None:
    assert read(b"v", parse_key="true", ignore_error="true") == Line(None, b"v", ())
    assert read(b"a\tv", parse_headers="true", ignore_error="true") == Line(None, b"v", (("a", None),))


def test_producer_settings() -> None:
    """CLI-05; idempotence gives way to acks, unless it was asked for by name."""
    usual = producer_options({})
    assert (usual["acks"], usual["idempotent"], usual["codec"], usual["batch_bytes"]) == (-1, True, Codec.NONE, 16384)
    chosen = producer_options(pairs(["acks=1", "compression.type=lz4", "compression.lz4.level=9", "linger.ms=7", "x"]))
    assert (chosen["acks"], chosen["idempotent"], chosen["codec"], chosen["level"]) == (1, False, Codec.LZ4, 9)
    assert chosen["linger_ms"] == 7
    for wrong in ({"acks": "2"}, {"batch.size": "many"}, {"enable.idempotence": "true", "acks": "0"}):
        with pytest.raises(Failed, match=r"ConfigException: "):
            producer_options(wrong)


def test_consumer_settings() -> None:
    chosen = consumer_options(
        {
            "auto.offset.reset": "earliest",
            "enable.auto.commit": "false",
            "group.protocol": "CONSUMER",
            "group.instance.id": "i",
            "session.timeout.ms": "9000",
            "partition.assignment.strategy": "org.apache.kafka.clients.consumer.RoundRobinAssignor,range",
        }
    )
    assert (chosen["reset"], chosen["auto_commit_ms"], chosen["protocol"]) == (EARLIEST, None, "consumer")
    manners = chosen["manners"]
    assert (manners.instance_id, manners.session_timeout_ms) == ("i", 9000)
    assert [assignor.name for assignor in manners.assignors] == ["roundrobin", "range"]
    assert consumer_options({})["auto_commit_ms"] == 5000
    with pytest.raises(Failed, match=r"Class my\.Assignor could not be found"):
        consumer_options({"partition.assignment.strategy": "my.Assignor"})
