"""Requests that are almost right: valid ones made from the layouts, then damaged in ways a decoder cares about."""

from __future__ import annotations

import random
import struct
from typing import Any

from ottla.server.dispatch import HANDLERS
from ottla.server.node import FAMILIES
from ottla.wire import frames
from ottla.wire.codec import Unencodable
from ottla.wire.records import Record, build
from ottla.wire.schema import Field, Kind, Layout, ListOf

assert FAMILIES, "importing the node fills the table of handlers"

TOPICS = [
    "fuzz-a",
    "fuzz-a",
    "fuzz-b",
    "no-such-topic",
    "",
    "..",
    "bad/name",
    "x" * 250,
    "__consumer_offsets",
    "ünïcode\x00",
]
# Where a name is no topic's: groups, members, protocols, expressions.
NAMES = [
    *("", "a", "a", "a", "1", "consumer", "range", "uniform", "é" * 20, "../../up", "%s%n", "{0}", "(a+)+$", "(", ".*"),
    *("x" * 3000, "nul\0"),
]
# The words of consumers to one another, and what only looks like them.
SUBSCRIPTIONS = [
    b"\0\0\0\0\0\1\0\6fuzz-a\xff\xff\xff\xff",
    b"\0\1\0\0\0\1\0\6fuzz-a\0\0\0\1\0\0\0\2\0\0\0\0\0\0\0\1",
    b"\0\3\x7f\xff\xff\xff",
    bytes(3000),
]
EXTREMES = [
    b"\x7f\xff\xff\xff",
    b"\xff\xff\xff\xff",
    b"\x80\0\0\0",
    b"\xff\xff\xff\xfb",
    b"\xff\xff\xff\xff\x0f",
    bytes(4),
]
# Long waits are by design, not a hang: keep the ones we ask for on purpose short.
SHORT = {"max_wait_ms": 20, "timeout_ms": 20}
TOPIC_NAMES = {"topic", "topics", "name", "topic_name", "topic_names"}
# Partition counts that would only measure how fast directories are made.
SMALL = {"num_partitions": 3, "count": 4}

ODD_BATCHES = [
    b"",
    build([Record(key=b"k", value=b"v")]),
    build([Record(key=b"k", value=b"v" * 100, timestamp=n) for n in range(20)], codec=1),
    build([Record(value=b"v")] * 3, producer_id=7, producer_epoch=0, base_sequence=3),
    build([Record(key=b"k", value=b"v")], producer_id=8, producer_epoch=0, base_sequence=0, transactional=True),
    build([Record(key=b"k")])[:50],
    b"\xff" * 80,
]


class Maker:
    def __init__(self, rng: random.Random) -> None:
        self.rng = rng

    def frame(self) -> bytes:
        """One frame with its true length, damaged more often than not."""
        rng = self.rng
        handler = HANDLERS[rng.choice(sorted(HANDLERS))]
        version = rng.randint(handler.low, handler.high)
        try:
            parts = frames.request_frame(self.struct(handler.request, version), version, rng.randrange(1 << 31), "fuzz")
        except (Unencodable, struct.error, UnicodeError):
            return self.frame()
        body = self.damaged(b"".join(bytes(part) for part in parts)[4:])  # type: ignore[arg-type]
        return struct.pack(">i", len(body)) + body

    def lie(self) -> bytes:
        """A frame whose length is not true: where the next one begins, nobody can tell."""
        frame = self.frame()
        return struct.pack(">i", self.rng.choice([-1, -(2**31), 2**31 - 1, 0, len(frame), 104857601])) + frame[4:]

    def damaged(self, whole: bytes) -> bytes:
        rng = self.rng
        body = bytearray(whole)
        for _ in range(rng.choice([0, 0, 0, 1, 1, 2, 5])):
            at = rng.randrange(len(body)) if body else 0
            how = rng.randrange(6)
            if how == 0 and body:
                body[at] ^= 1 << rng.randrange(8)
            elif how == 1:
                extreme = rng.choice(EXTREMES)
                body[at : at + len(extreme)] = extreme
            elif how == 2:
                del body[at:]
            elif how == 3:
                body += rng.randbytes(rng.randrange(1, 40))
            elif how == 4 and len(body) > 4:
                body[0:4] = struct.pack(
                    ">hh", rng.choice([*HANDLERS, -1, 999]), rng.choice([-1, 0, 1, 5, 13, 99, 32767])
                )
            elif how == 5:
                body[at : at + 2] = rng.randbytes(2)
        return bytes(body)

    def struct(self, layout: Layout, version: int) -> Any:
        fields = [field for field in layout.fields if version in field.versions]
        return layout(**{field.name: self.field(field, version) for field in fields})

    def field(self, field: Field, version: int) -> Any:
        rng = self.rng
        if version in field.nullable and rng.random() < 0.15:
            return None
        if field.name in SHORT:
            return rng.choice([0, 1, SHORT[field.name]])
        if field.name in SMALL:
            return rng.choice([-1, 0, 1, SMALL[field.name]])
        return self.value(field.kind, field.name, version)

    def value(self, kind: Any, name: str, version: int) -> Any:
        rng = self.rng
        if isinstance(kind, ListOf):
            return [self.value(kind.element, name, version) for _ in range(rng.choice([0, 1, 1, 2, 3]))]
        if isinstance(kind, Layout):
            return self.struct(kind, version)
        assert isinstance(kind, Kind)
        if kind.name == "records":
            return rng.choice(ODD_BATCHES)
        if kind.name == "string":
            return rng.choice(TOPICS if name in TOPIC_NAMES or "topic_name" in name else NAMES)
        if kind.name == "boolean":
            return rng.random() < 0.5
        if kind.name == "uuid":
            return rng.choice([bytes(16), rng.randbytes(16)])
        if kind.name == "byte_string":
            return rng.choice(SUBSCRIPTIONS) if rng.random() < 0.5 else rng.randbytes(rng.randrange(20))
        if kind.name == "float64":
            return rng.random()
        bits = 8 * kind.size
        number = rng.choice([0, 0, 1, 2, -1, -2, rng.getrandbits(bits - 1), 2 ** (bits - 1) - 1, -(2 ** (bits - 1))])
        return abs(number) if kind.name.startswith("uint") else number
