"""Ids as people write them, and Kafka's words for those that are none."""

from __future__ import annotations

import base64
import binascii

from ottla.cli.kafka.options import Failed
from ottla.wire.ids import ID_BYTES

TEXT_MAX = 24


def uuid_of(text: str) -> bytes:
    """The 16 bytes that the text stands for."""
    if len(text) > TEXT_MAX:
        raise Failed(f"Input string with prefix `{text[:TEXT_MAX]}` is too long to be decoded as a base64 UUID")
    if len(text) == 1:
        raise Failed("Input byte[] should at least have 2 bytes for base64 bytes")
    try:
        value = base64.urlsafe_b64decode(text + "=" * (-len(text) % 4))
    except (binascii.Error, ValueError):
        raise Failed(f"Illegal base64 character in {text}")
    if len(value) != ID_BYTES:
        expected = f"which is not equal to the expected {ID_BYTES} bytes of a base64-encoded UUID"
        raise Failed(f"Input string `{text}` decoded as {len(value)} bytes, {expected}")
    return value
