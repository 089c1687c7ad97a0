"""Records that clients must carry unchanged: every awkward key, value, header and size in one short list."""

from __future__ import annotations

import base64
import random
import time
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

CODECS = ("none", "gzip", "snappy", "lz4", "zstd")
EPOCH_MS = int(time.time() - 3600) * 1000  # so young that no broker's retention looks at it
LARGEST = 1_000_000

Headers = tuple[tuple[str, bytes | None], ...]


@dataclass(frozen=True)
class Record:
    key: bytes | None
    value: bytes | None
    headers: Headers = ()
    timestamp_ms: int = EPOCH_MS

    def __repr__(self) -> str:
        return f"Record({_short(self.key)}, {_short(self.value)}, {self.headers!r}, {self.timestamp_ms})"


@dataclass(frozen=True)
class Seen:
    """A record as a consumer got it."""

    offset: int
    record: Record


def corpus(seed: str) -> list[Record]:
    """The records of one test, different for each seed so that a mixed-up topic is noticed."""
    rng = random.Random(seed)
    bare = [Record(b"k%d" % size, _value(rng, size)) for size in (1, 2, 10, 127, 128, 1000, 10_000, 100_000, LARGEST)]
    awkward = [
        Record(None, b"no key"),
        Record(b"tombstone", None),
        Record(b"", b"empty key"),
        Record(b"empty value", b""),
        Record(bytes(range(256)), bytes(reversed(range(256)))),
        Record("ключ-鍵".encode(), "値 значение".encode()),
        Record(b"h1", b"one header", (("trace", b"abc"),)),
        Record(b"h2", b"many headers", (("a", b"1"), ("b", b""), ("a", b"2"), ("größe", "µ".encode()))),
        Record(b"h3", b"null header", (("nothing", None),)),
        Record(None, None),
    ]
    small = [Record(b"s%d" % (n % 7), _value(rng, rng.randint(1, 300))) for n in range(60)]
    return [_at(record, EPOCH_MS + 10 * n) for n, record in enumerate(bare + awkward + small)]


def write_lines(records: Iterable[Record], path: Path) -> None:
    """One record a line, as the Java side reads them."""
    path.write_text(
        "".join(f"{r.timestamp_ms}\t{_text(r.key)}\t{_text(r.value)}\t{_headers_text(r.headers)}\n" for r in records)
    )


def read_line(line: str) -> Seen:
    """One record as the Java side prints it."""
    offset, timestamp, key, value, headers = line.split("\t")
    pairs = tuple((name, _bytes(data)) for name, _, data in (h.partition(":") for h in headers.split(",") if h))
    return Seen(int(offset), Record(_bytes(key), _bytes(value), pairs, int(timestamp)))


def _value(rng: random.Random, size: int) -> bytes:
    """Half noise, half repetition, so that compression has something to do but cannot do everything."""
    noise = rng.randbytes((size + 1) // 2)
    return (noise + b"ottla " * (size // 12 + 1))[:size]


def _at(record: Record, timestamp_ms: int) -> Record:
    return Record(record.key, record.value, record.headers, timestamp_ms)


def _text(data: bytes | None) -> str:
    return "-" if data is None else base64.b64encode(data).decode()


def _bytes(text: str) -> bytes | None:
    return None if text == "-" else base64.b64decode(text)


def _headers_text(headers: Headers) -> str:
    return ",".join(f"{name}:{_text(value)}" for name, value in headers)


def _short(data: bytes | None) -> str:
    return repr(data) if data is None or len(data) <= 40 else f"{data[:20]!r}...{len(data)} B"
