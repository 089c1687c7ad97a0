"""Kafka's spelling of ids in files, on command lines and in messages: base64 that is safe in names, without padding."""

from __future__ import annotations

import base64

ID_BYTES = 16


def uuid_text(value: bytes) -> str:
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
