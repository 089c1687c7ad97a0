from __future__ import annotations

import pytest

from ottla.wire.ids import uuid_bytes, uuid_text

DIRECTORY = bytes.fromhex("155016ee7f664d638679de1f663c0c86")


def test_ids_are_spelled_as_kafka_does() -> None:
    assert uuid_text(DIRECTORY) == "FVAW7n9mTWOGed4fZjwMhg"
    assert uuid_text(b"\xff" * 16) == "_" * 21 + "w", "no character that a path or a shell would stumble over"
    for value in (DIRECTORY, bytes(16), b"\xff" * 16):
        assert uuid_bytes(uuid_text(value)) == value


@pytest.mark.parametrize("text", ["", "AAAA", "A", "FVAW7n9mTWOGed4fZjwMhgAA", "ü" * 22])
def test_what_is_no_id(text: str) -> None:
    with pytest.raises(ValueError, match="no id"):
        uuid_bytes(text)
