"""An answer about many things, of which each has been written down already.

Such an answer is a list of things behind a few other fields. In place of the list it has a `Told`, which holds the bytes of
the things; to everybody else it looks like an empty list. The codec writes the answer as if it were empty, and the bytes are
put in: behind the count, before the tagged fields that end a flexible answer, of which there are none.
"""

from __future__ import annotations

import struct
from typing import Any

from ottla.wire.codec import Encoder, Part, encode, encoder
from ottla.wire.primitives import varint
from ottla.wire.schema import Layout, ListOf, Message

# OffsetFetch, DescribeGroups, DescribeConfigs, DescribeProducers, DescribeTransactions, ConsumerGroupDescribe.
KEYS = frozenset({9, 15, 32, 61, 65, 69})


class Told(list[Any]):
    """`things`: the bytes of each."""

    __slots__ = ("things",)

    def __init__(self) -> None:
        super().__init__()
        self.things: list[bytes] = []


def things_of(answer: Layout) -> str:
    """The name of the field with the list: the last one."""
    field = answer.fields[-1]
    assert isinstance(field.kind, ListOf) and field.tag is None, f"{answer.__name__} does not end in a list"
    return field.name


def alone(answer: Layout, thing: Any, version: int) -> bytes:
    """The bytes of one thing, as they stand in an answer of this version."""
    before = _head_bytes(answer, version)
    data = encode(answer(**{things_of(answer): [thing]}), version)
    return data[before : len(data) - _tail_bytes(answer, version)]


def telling(answer: Layout, version: int) -> Encoder:
    """An encoder that also takes answers with a `Told`."""
    name, plain, tail = things_of(answer), encoder(answer, version), _tail_bytes(answer, version)
    count_bytes = 1 if tail else 4

    def run(message: Any, buffer: bytearray, parts: list[Part]) -> bytearray:
        told, buffer = getattr(message, name), plain(message, buffer, parts)
        if type(told) is Told:
            del buffer[len(buffer) - tail - count_bytes :]
            buffer += varint(len(told.things) + 1) if tail else struct.pack(">i", len(told.things))
            parts += [buffer, *told.things]
            buffer = bytearray(tail)
        return buffer

    return run


def _tail_bytes(answer: Layout, version: int) -> int:
    return int(version >= answer.flexible_from)


def _head_bytes(answer: Layout, version: int) -> int:
    """Everything before the first thing: one thing and none differ in the value of the count, not in its size."""
    empty: Message = answer()
    return len(encode(empty, version)) - _tail_bytes(answer, version)
