"""Files of batches, read from the outside: nothing here locks, repairs or believes anything."""

from __future__ import annotations

import mmap
from collections.abc import Callable, Iterator
from typing import NamedTuple

from ottla.wire.compression import Codec
from ottla.wire.errors import KafkaError
from ottla.wire.records import HEADER_BYTES, Batch, Record, crc_ok, iterate, look_ahead

# A bit of a batch's attributes: its base timestamp says when its tombstones may go.
DELETE_HORIZON_BIT = 0x40
BYTES_MAX = (1 << 31) - 1
CODECS = {int(codec): codec.name.lower() for codec in Codec}


class Found(NamedTuple):
    """A batch in a file: where it begins, its header, all its bytes, and whether its CRC is right."""

    position: int
    head: Batch
    raw: bytes
    is_valid: bool

    @property
    def delete_horizon_ms(self) -> int | None:
        return self.head.base_timestamp if self.head.attributes & DELETE_HORIZON_BIT else None

    @property
    def codec(self) -> str:
        return CODECS.get(self.head.codec, f"unknown({self.head.codec})")

    def records(self) -> Iterator[Record]:
        return iterate(self.raw)

    def sequence(self, record: Record) -> int:
        """Sequences are stored once per batch."""
        if self.head.base_sequence < 0:
            return -1
        return (self.head.base_sequence + record.offset - self.head.base_offset) % (1 << 31)


class SegmentFile:
    """The batches of a file, up to so many bytes. After the walk `valid_bytes` says where the last whole one ended."""

    def __init__(self, path: str, bytes_max: int = BYTES_MAX, start: int = 0) -> None:
        self.path = path
        self.valid_bytes = start
        self.size = 0
        self._bytes_max = bytes_max
        self._start = start

    def __iter__(self) -> Iterator[Found]:
        return self.batches()

    def batches(self, progress: Callable[[int, int], None] | None = None) -> Iterator[Found]:
        """Each whole batch. What follows the last one is not looked at."""
        with open(self.path, "rb") as file:
            file.seek(0, 2)
            self.size = min(file.tell(), self._start + self._bytes_max)
            if self.size == 0:
                return
            with mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) as data:
                position = self._start
                while (found := _batch_at(data, position, self.size)) is not None:
                    position += found.head.size
                    self.valid_bytes = position
                    if progress is not None:
                        progress(position, self.size)
                    yield found


def _batch_at(data: mmap.mmap, position: int, end: int) -> Found | None:
    if end - position < HEADER_BYTES:
        return None
    try:
        head = look_ahead(data[position : position + HEADER_BYTES])
    except KafkaError:
        return None
    if head.size > end - position:
        return None
    raw = data[position : position + head.size]
    return Found(position, head, raw, crc_ok(raw, 0, head.size))
