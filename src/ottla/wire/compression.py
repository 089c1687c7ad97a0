"""The four codecs of record batches, each with a ceiling on what comes out.

A batch says which codec its records are packed with, and nothing about their size unpacked. One megabyte from a hostile
producer can stand for ten gigabytes, so nothing here believes a size it is told: gzip, lz4 and zstd are unpacked piece
by piece and given up at the first byte over the ceiling; snappy states its size in front, so that is checked before
anything is reserved (and against what snappy can reach at all: 64 bytes from three).

Two errors come out, and no others. CORRUPT_MESSAGE: this is not that codec's format. INVALID_RECORD: it is, but more
than we are willing to unpack.

Clients differ in framing. Java packs snappy into the blocks of the xerial library, librdkafka sends one raw block; both
are read, xerial is written, as Java does. lz4 is the frame format; Java reads only frames whose blocks stand alone, so
ours do. The modules that do the work are loaded when first used: a broker passes batches on as they are, and most
processes never need them.
"""

from __future__ import annotations

import struct
import zlib
from collections.abc import Iterator
from enum import IntEnum
from functools import cache
from typing import TYPE_CHECKING

from ottla.wire.errors import Error, KafkaError

if TYPE_CHECKING:
    import zstandard

Bytes = bytes | bytearray | memoryview


class Codec(IntEnum):
    """The lowest three bits of a batch's attributes."""

    NONE = 0
    GZIP = 1
    SNAPPY = 2
    LZ4 = 3
    ZSTD = 4


# How much is unpacked, or handed to a codec, at a time.
PIECE_BYTES = 1 << 20
INPUT_BYTES = 1 << 16
# A codec's stream may consist of several, one after the other. No producer does that more than a few times.
MEMBERS_MAX = 64
# What zstd may look back. Level 22 needs this much, and it is what Java's reader allows. Pages never written to cost
# nothing, so it is the ceiling on output that bounds memory.
ZSTD_WINDOW_BYTES_MAX = 1 << 27
# What levels up to 19 use.
ZSTD_WINDOW_BYTES_USUAL = 1 << 23
# The block size of Java's snappy, and the least it can be told to use.
XERIAL_BLOCK_BYTES = 32 * 1024
XERIAL_BLOCK_BYTES_MIN = 1024
XERIAL_MAGIC = b"\x82SNAPPY\x00"
XERIAL_HEADER = XERIAL_MAGIC + struct.pack(">ii", 1, 1)
_INT32 = struct.Struct(">i")
_XERIAL_MAGIC_AS_SIZE = _INT32.unpack_from(XERIAL_MAGIC)[0]


def compress(codec: int, data: Bytes, level: int | None = None) -> bytes:
    """Pack `data`. `level` means what it means to the codec; None is its usual one."""
    if codec == Codec.NONE:
        return bytes(data)
    if codec == Codec.GZIP:
        packer = zlib.compressobj(-1 if level is None else level, wbits=31)
        return packer.compress(data) + packer.flush()
    if codec == Codec.SNAPPY:
        return _compress_snappy(data)
    if codec == Codec.LZ4:
        return _compress_lz4(data, level)
    if codec == Codec.ZSTD:
        return _zstd_packer(3 if level is None else level).compress(data)
    raise _unknown(codec)


def inflate(codec: int, data: Bytes, size_max: int) -> bytes:
    """Unpack `data`, which may come to at most `size_max` bytes."""
    if codec == Codec.NONE:
        return bytes(data)
    if codec == Codec.GZIP:
        return _inflate_gzip(memoryview(data), size_max)
    if codec == Codec.SNAPPY:
        return _inflate_snappy(memoryview(data), size_max)
    if codec == Codec.LZ4:
        return _inflate_lz4(data, size_max)
    if codec == Codec.ZSTD:
        return _inflate_zstd(data, size_max)
    raise _unknown(codec)


def _unknown(codec: int) -> KafkaError:
    return KafkaError(Error.UNSUPPORTED_COMPRESSION_TYPE, f"there is no compression type {codec}")


def _corrupt(codec: str, why: object) -> KafkaError:
    return KafkaError(Error.CORRUPT_MESSAGE, f"not a {codec} stream: {why}")


def _too_large(size_max: int) -> KafkaError:
    return KafkaError(Error.INVALID_RECORD, f"the records come to more than {size_max} bytes when unpacked")


class _Pieces:
    """What has come out so far. It never holds more than the ceiling and one piece."""

    __slots__ = ("pieces", "room", "size_max")

    def __init__(self, size_max: int) -> None:
        self.pieces: list[bytes] = []
        self.size_max = self.room = size_max

    def add(self, piece: bytes) -> None:
        self.room -= len(piece)
        if self.room < 0:
            raise _too_large(self.size_max)
        if piece:
            self.pieces.append(piece)

    def joined(self) -> bytes:
        return self.pieces[0] if len(self.pieces) == 1 else b"".join(self.pieces)


def _inflate_gzip(data: memoryview, size_max: int) -> bytes:
    out = _Pieces(size_max)
    position = 0
    for _ in range(MEMBERS_MAX):
        try:
            position = _gzip_member(data, position, out)
        except zlib.error as error:
            raise _corrupt("gzip", error)
        if position == len(data):
            return out.joined()
    raise _corrupt("gzip", "too many members")


def _gzip_member(data: memoryview, position: int, out: _Pieces) -> int:
    """Unpack one member from `position`; say where it ends."""
    stream = zlib.decompressobj(31)
    while not stream.eof:
        fed = data[position : position + INPUT_BYTES]
        position += len(fed)
        tail: Bytes = fed
        while True:
            piece = stream.decompress(tail, PIECE_BYTES)
            out.add(piece)
            tail = stream.unconsumed_tail
            if stream.eof or not tail:
                break
        if not fed and not piece and not stream.eof:
            raise _corrupt("gzip", "it ends early")
    return position - len(stream.unused_data)


def _inflate_lz4(data: Bytes, size_max: int) -> bytes:
    import lz4.frame

    out = _Pieces(size_max)
    rest: bytes | bytearray | memoryview = data
    for _ in range(MEMBERS_MAX):
        stream = lz4.frame.LZ4FrameDecompressor()
        try:
            out.add(stream.decompress(rest, PIECE_BYTES))
            while not (stream.eof or stream.needs_input):
                out.add(stream.decompress(b"", PIECE_BYTES))
        except RuntimeError as error:
            raise _corrupt("lz4", error)
        if not stream.eof:
            raise _corrupt("lz4", "it ends early")
        rest = stream.unused_data or b""
        if not rest:
            return out.joined()
    raise _corrupt("lz4", "too many frames")


def _compress_lz4(data: Bytes, level: int | None) -> bytes:
    import lz4.frame

    packed: bytes = lz4.frame.compress(data, compression_level=level or 0, block_linked=False, store_size=False)
    return packed


@cache
def _zstd_packer(level: int) -> zstandard.ZstdCompressor:
    import zstandard

    return zstandard.ZstdCompressor(level=level)


@cache
def _zstd_unpacker() -> zstandard.ZstdDecompressor:
    import zstandard

    return zstandard.ZstdDecompressor(max_window_size=ZSTD_WINDOW_BYTES_MAX)


def _inflate_zstd(data: Bytes, size_max: int) -> bytes:
    """A stream cut short gives what was there: the count of records, which the batch states, tells."""
    import zstandard

    out = _Pieces(size_max)
    try:
        if zstandard.get_frame_parameters(data).window_size > ZSTD_WINDOW_BYTES_USUAL:
            _measure_zstd(data, size_max)
        for piece in _zstd_pieces(data):
            out.add(piece)
    except zstandard.ZstdError as error:
        raise _corrupt("zstd", error)
    return out.joined()


def _measure_zstd(data: Bytes, size_max: int) -> None:
    """With a wide window zstd holds all it has put out, and so would we: run through it once, keeping nothing."""
    room = size_max
    for piece in _zstd_pieces(data):
        room -= len(piece)
        if room < 0:
            raise _too_large(size_max)


def _zstd_pieces(data: Bytes) -> Iterator[bytes]:
    stream = _zstd_unpacker().stream_reader(data, read_across_frames=True)
    size = min(PIECE_BYTES, INPUT_BYTES + 4 * len(data))
    while piece := stream.read(size):
        yield piece


def _compress_snappy(data: Bytes) -> bytes:
    from cramjam import snappy

    parts = [XERIAL_HEADER]
    view = memoryview(data)
    for start in range(0, len(view), XERIAL_BLOCK_BYTES):
        block = bytes(snappy.compress_raw(view[start : start + XERIAL_BLOCK_BYTES]))
        parts += (_INT32.pack(len(block)), block)
    return b"".join(parts)


def _inflate_snappy(data: memoryview, size_max: int) -> bytes:
    if data[: len(XERIAL_MAGIC)] != XERIAL_MAGIC:
        return _snappy_block(data, size_max)
    out = _Pieces(size_max)
    blocks_left = MEMBERS_MAX + size_max // XERIAL_BLOCK_BYTES_MIN
    position = len(XERIAL_HEADER)
    while position < len(data):
        blocks_left -= 1
        if blocks_left < 0:
            raise _too_large(size_max)
        if position + 4 > len(data):
            raise _corrupt("snappy", "it ends early")
        size = _INT32.unpack_from(data, position)[0]
        if size == _XERIAL_MAGIC_AS_SIZE:
            position += len(XERIAL_HEADER)  # a second stream follows the first
            continue
        position += 4 + size
        if size <= 0 or position > len(data):
            raise _corrupt("snappy", f"a block of {size} bytes")
        out.add(_snappy_block(data[position - size : position], out.room))
    return out.joined()


def _snappy_block(data: memoryview, size_max: int) -> bytes:
    from cramjam import DecompressionError, snappy

    claimed = _snappy_size(data)
    if claimed > size_max:
        raise _too_large(size_max)
    if claimed > 22 * len(data):
        raise _corrupt("snappy", f"{len(data)} bytes cannot hold {claimed}")
    try:
        return bytes(snappy.decompress_raw(data, output_len=claimed))
    except DecompressionError as error:
        raise _corrupt("snappy", error)


def _snappy_size(data: memoryview) -> int:
    """The varint in front of a raw block: how large it says it will be."""
    value = shift = 0
    for byte in data[:5]:
        value |= (byte & 0x7F) << shift
        if byte < 0x80:
            return value
        shift += 7
    raise _corrupt("snappy", "no size in front")
