"""Ids of clusters, topics and directories: 16 bytes, spelled in base64 that is safe in names, without padding."""

from __future__ import annotations

import base64
from typing import Protocol

ID_BYTES = 16
# These have, or may get, a meaning of their own: a directory that is unassigned, lost, migrating (KIP-858).
RESERVED = 100


class Chance(Protocol):
    """Where randomness comes from; it is handed in."""

    def randbytes(self, n: int, /) -> bytes: ...


def random_id(rng: Chance) -> bytes:
    """A version 4 UUID, hence none of the reserved ones, whose text no tool would take for an option."""
    while True:
        raw = bytearray(rng.randbytes(ID_BYTES))
        raw[6] = raw[6] & 0x0F | 0x40
        raw[8] = raw[8] & 0x3F | 0x80
        if not uuid_text(raw).startswith("-"):
            return bytes(raw)


def is_reserved(value: bytes) -> bool:
    return int.from_bytes(value, "big") < RESERVED


def uuid_text(value: bytes | bytearray) -> str:
    return base64.urlsafe_b64encode(value).rstrip(b"=").decode()


def uuid_bytes(text: str) -> bytes:
    """The 16 bytes behind the text; ValueError for anything else."""
    try:
        value = base64.urlsafe_b64decode(text + "==")
    except ValueError as error:
        raise ValueError(f"{text!r} is no id") from error
    if len(value) != ID_BYTES:
        raise ValueError(f"{text!r} is no id of {ID_BYTES} bytes")
    return value
