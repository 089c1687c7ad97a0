"""Walking a file of batches with every CRC checked: for recovery, and before cold bytes are sent."""

from __future__ import annotations

from collections.abc import Iterator

from crc32c import crc32c

from ottla.wire.records import CRC_FROM, HEADER, HEADER_BYTES, MAGIC, PREFIX_BYTES
from ottla.world import File

# Small enough to stay in the processor's cache between the read and the checksum.
CHUNK_BYTES = 512 << 10

_unpack = HEADER.unpack_from


def sound_batches(
    file: File, position: int, end: int, chunk_usual: int = CHUNK_BYTES
) -> Iterator[tuple[int, tuple[int, ...], memoryview]]:
    """(position, header fields, the batch) up to `end`, or up to the first thing that is no batch with a right CRC."""
    chunk_bytes = chunk_usual
    while position < end:
        chunk = memoryview(file.read_at(position, min(chunk_bytes, end - position)))
        at, size, length = 0, 0, len(chunk)
        while length - at >= HEADER_BYTES:
            fields = _unpack(chunk, at)
            size = fields[1] + PREFIX_BYTES
            if fields[3] != MAGIC or size < HEADER_BYTES or position + at + size > end:
                return
            after = at + size
            if after > length:
                chunk_bytes = max(chunk_usual, 4 * size)  # or every second read would be of half a batch
                break
            if crc32c(chunk[at + CRC_FROM : after]) != fields[4]:
                return
            yield position + at, fields, chunk[at:after]
            at = after
        if at == 0:
            if length < HEADER_BYTES or length >= min(size, end - position):
                return
            yield from _one_large(file, position, size)
            at = size
        position += at


def _one_large(file: File, position: int, size: int) -> Iterator[tuple[int, tuple[int, ...], memoryview]]:
    """A batch that is larger than a chunk."""
    batch = memoryview(file.read_at(position, size))
    fields = _unpack(batch)
    if len(batch) == size and crc32c(batch[CRC_FROM:]) == fields[4]:
        yield position, fields, batch
