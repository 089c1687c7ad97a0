"""The record layouts, against a metadata log and a snapshot that Apache Kafka 4.3.1 wrote."""

from __future__ import annotations

from pathlib import Path

import pytest

from ottla.metadata import records
from ottla.metadata.records import KINDS, UnknownRecord, frame, unframe
from ottla.wire.records import batches, iterate

GOLDEN = Path(__file__).parent / "apache_4_3_1"
LOG = GOLDEN / "00000000000000000000.log"
SNAPSHOT = GOLDEN / "00000000000000000065-0000000001.checkpoint"


def values(path: Path) -> list[bytes]:
    data = path.read_bytes()
    return [
        record.value or b""
        for position, batch in batches(data)
        if not batch.is_control
        for record in iterate(memoryview(data)[position:])
    ]


@pytest.mark.parametrize("path", [LOG, SNAPSHOT])
def test_every_record_apache_kafka_wrote_is_read_and_written_back_to_the_same_bytes(path: Path) -> None:
    """TRAP-30, KRF-03."""
    seen = set()
    for value in values(path):
        record = unframe(value)
        seen.add(type(record))
        assert frame(record, value[2]) == value
    assert len(seen) >= 9


def test_all_kinds_of_records_have_their_own_key() -> None:
    assert len(KINDS) == 26
    assert KINDS[28] is records.ClearElrRecord


@pytest.mark.parametrize("kind", KINDS.values(), ids=lambda kind: kind.__name__)
def test_every_version_of_every_kind_goes_round(kind: type[records.Message]) -> None:
    low, high = kind.versions
    for version in range(low, high + 1):
        assert unframe(frame(kind(), version)) == kind()


@pytest.mark.parametrize(
    "value", [b"", b"\x01", b"\x01\x06\x00", b"\x02\x02\x00", b"\x01\x02\x01\x00", b"\x80\x80\x80\x80\x80\x80"]
)
def test_what_cannot_be_read_is_refused_by_name(value: bytes) -> None:
    with pytest.raises(UnknownRecord):
        unframe(value)
