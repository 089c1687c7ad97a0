"""The four codecs: what Java and others pack is unpacked, and nothing is unpacked beyond its ceiling."""

from __future__ import annotations

import gzip
import os
import random
import struct
import subprocess
import sys
import time
import zlib

import lz4.frame
import pytest
import zstandard
from cramjam import snappy
from hypothesis import example, given
from hypothesis import strategies as st

from ottla.wire.compression import XERIAL_HEADER, Codec, compress, inflate
from ottla.wire.errors import Error, KafkaError

PACKED = [Codec.GZIP, Codec.SNAPPY, Codec.LZ4, Codec.ZSTD]
CEILING = 10 << 20
SAMPLE = b"".join(b'{"user": %d, "page": "/products/%d"}\n' % (i * 7919 % 1000, i % 17) for i in range(5000))


@pytest.mark.parametrize("codec", Codec)
@given(data=st.binary(max_size=5000), times=st.integers(1, 60))
@example(data=b"", times=1)
def test_what_goes_in_comes_out(codec, data, times):
    assert inflate(codec, compress(codec, data * times), len(data) * times) == data * times


@pytest.mark.parametrize("codec", PACKED)
def test_several_pieces(codec):
    """More than one piece of input and of output."""
    data = random.Random(1).randbytes(3 << 20) + SAMPLE * 5
    assert inflate(codec, compress(codec, data), len(data)) == data


@pytest.mark.parametrize("codec", PACKED)
def test_one_byte_over_the_ceiling_is_refused(codec):
    packed = compress(codec, SAMPLE)
    assert inflate(codec, packed, len(SAMPLE)) == SAMPLE
    with pytest.raises(KafkaError) as refused:
        inflate(codec, packed, len(SAMPLE) - 1)
    assert refused.value.error is Error.INVALID_RECORD


@pytest.mark.parametrize("codec", PACKED)
@given(
    data=st.binary(max_size=300),
    cut=st.integers(0, 200),
    flips=st.lists(st.tuples(st.integers(0, 199), st.integers(1, 255))),
)
def test_garbage_raises_nothing_else(codec, data, cut, flips):
    damaged = bytearray(compress(codec, data))
    for where, bits in flips:
        damaged[where % len(damaged)] ^= bits
    for rubbish in (data, bytes(damaged), bytes(damaged[: -cut or None])):
        try:
            assert len(inflate(codec, rubbish, 4096)) <= 4096
        except KafkaError as refused:
            assert refused.error in (Error.CORRUPT_MESSAGE, Error.INVALID_RECORD)


@pytest.mark.parametrize("codec", [Codec.GZIP, Codec.LZ4, Codec.SNAPPY])
def test_cut_short(codec):
    with pytest.raises(KafkaError) as refused:
        inflate(codec, compress(codec, SAMPLE)[:-9], CEILING)
    assert refused.value.error is Error.CORRUPT_MESSAGE


def test_unknown_codec():
    for act in (lambda: compress(5, b""), lambda: inflate(7, b"", 10)):
        with pytest.raises(KafkaError) as refused:
            act()
        assert refused.value.error is Error.UNSUPPORTED_COMPRESSION_TYPE


def test_both_framings_of_snappy():
    """librdkafka sends one raw block, Java xerial blocks; a second xerial stream may follow the first."""
    assert inflate(Codec.SNAPPY, bytes(snappy.compress_raw(SAMPLE)), CEILING) == SAMPLE
    twice = compress(Codec.SNAPPY, SAMPLE) + compress(Codec.SNAPPY, b"more")
    assert twice.startswith(b"\x82SNAPPY\x00\0\0\0\1\0\0\0\1")
    assert inflate(Codec.SNAPPY, twice, CEILING) == SAMPLE + b"more"


def test_streams_that_follow_each_other():
    zstd_of_unknown_size = zstandard.ZstdCompressor(write_content_size=False).compress(SAMPLE)
    assert inflate(Codec.ZSTD, zstd_of_unknown_size + compress(Codec.ZSTD, b"more"), CEILING) == SAMPLE + b"more"
    assert inflate(Codec.GZIP, gzip.compress(SAMPLE) + gzip.compress(b"more"), CEILING) == SAMPLE + b"more"
    assert inflate(Codec.LZ4, lz4.frame.compress(SAMPLE) + lz4.frame.compress(b"more"), CEILING) == SAMPLE + b"more"


@pytest.mark.parametrize(
    "options", [{"block_linked": True}, {"content_checksum": True}, {"block_checksum": True}, {"store_size": True}]
)
@pytest.mark.parametrize("block_size", [lz4.frame.BLOCKSIZE_MAX64KB, lz4.frame.BLOCKSIZE_MAX4MB])
def test_every_kind_of_lz4_frame(options, block_size):
    assert inflate(Codec.LZ4, lz4.frame.compress(SAMPLE, block_size=block_size, **options), CEILING) == SAMPLE


def test_our_lz4_blocks_stand_alone():
    """Java refuses frames whose blocks depend on each other: bit 5 of the flags."""
    assert compress(Codec.LZ4, SAMPLE)[4] & 0x20


@pytest.mark.parametrize("level", [1, 19, 22])
def test_levels_of_zstd(level):
    streamed = zstandard.ZstdCompressor(level=level, write_content_size=False).compressobj()
    assert inflate(Codec.ZSTD, streamed.compress(SAMPLE) + streamed.flush(), CEILING) == SAMPLE
    assert inflate(Codec.ZSTD, compress(Codec.ZSTD, SAMPLE, level), CEILING) == SAMPLE


@pytest.mark.parametrize(("codec", "low", "high"), [(Codec.GZIP, 1, 9), (Codec.LZ4, 0, 12), (Codec.ZSTD, 1, 19)])
def test_a_higher_level_packs_tighter(codec, low, high):
    assert len(compress(codec, SAMPLE, high)) < len(compress(codec, SAMPLE, low))


def test_order_of_ratios():
    """REC-08: gzip or zstd tightest, then lz4, then snappy, on lines of JSON."""
    sizes = {codec: len(compress(codec, SAMPLE)) for codec in PACKED}
    assert max(sizes[Codec.GZIP], sizes[Codec.ZSTD]) < min(sizes[Codec.LZ4], sizes[Codec.SNAPPY]) < len(SAMPLE) / 3


# Bombs. Four codecs, five shapes each; every one must be refused in less than 50 ms and 20 MB.

PLENTY = 128 << 20


def _gzip_of_zeros(size: int) -> bytes:
    packer = zlib.compressobj(9, wbits=31)
    return b"".join(packer.compress(bytes(1 << 20)) for _ in range(size >> 20)) + packer.flush()


def _zstd_of_zeros(size: int, **options: object) -> bytes:
    packer = zstandard.ZstdCompressor(**options).compressobj()
    return b"".join(packer.compress(bytes(1 << 20)) for _ in range(size >> 20)) + packer.flush()


def _zstd_header(window_descriptor: int) -> bytes:
    return b"\x28\xb5\x2f\xfd" + bytes([0, window_descriptor])


def _rle_blocks(count: int) -> bytes:
    """Four bytes each, 128 KiB of the same byte."""
    return struct.pack("<I", (128 << 10) << 3 | 1 << 1)[:3] + b"A" if count == 1 else _rle_blocks(1) * count


def _lz4_of_zeros(size: int, **options: object) -> bytes:
    return lz4.frame.compress(bytes(size), **options)


def _snappy_zeros(size: int) -> bytes:
    return bytes(snappy.compress_raw(bytes(size)))


def _xerial(*blocks: bytes) -> bytes:
    return XERIAL_HEADER + b"".join(struct.pack(">i", len(block)) + block for block in blocks)


def _varint(number: int) -> bytes:
    out = b""
    while number > 127:
        out, number = out + bytes([number & 127 | 128]), number >> 7
    return out + bytes([number])


BOMBS = {
    "gzip-zeros": (Codec.GZIP, lambda: _gzip_of_zeros(PLENTY)),
    "gzip-cut": (Codec.GZIP, lambda: _gzip_of_zeros(PLENTY)[:-1000]),
    "gzip-members": (Codec.GZIP, lambda: gzip.compress(b"") * 50_000),
    "gzip-members-of-zeros": (Codec.GZIP, lambda: _gzip_of_zeros(1 << 20) * 1000),
    "gzip-name-without-end": (Codec.GZIP, lambda: b"\x1f\x8b\x08\x08\0\0\0\0\0\xff" + b"a" * (1 << 20)),
    "zstd-zeros": (Codec.ZSTD, lambda: _zstd_of_zeros(PLENTY)),
    "zstd-window-2-gib": (Codec.ZSTD, lambda: _zstd_header(21 << 3) + _rle_blocks(200_000)),
    "zstd-window-128-mib": (Codec.ZSTD, lambda: _zstd_header(17 << 3) + _rle_blocks(200_000)),
    "zstd-frames": (Codec.ZSTD, lambda: _zstd_of_zeros(1 << 20) * 10_000),
    "zstd-claims-a-terabyte": (
        Codec.ZSTD,
        lambda: b"\x28\xb5\x2f\xfd\xe0" + struct.pack("<Q", 1 << 40) + _rle_blocks(200_000),
    ),
    "lz4-zeros": (Codec.LZ4, lambda: _lz4_of_zeros(200 << 20, block_size=lz4.frame.BLOCKSIZE_MAX4MB)),
    "lz4-small-blocks": (Codec.LZ4, lambda: _lz4_of_zeros(200 << 20, block_linked=False)),
    "lz4-frames": (Codec.LZ4, lambda: _lz4_of_zeros(1 << 20) * 200),
    "lz4-cut": (Codec.LZ4, lambda: _lz4_of_zeros(200 << 20)[:-1]),
    "lz4-empty-frames": (Codec.LZ4, lambda: lz4.frame.compress(b"", store_size=False) * 90_000),
    "snappy-zeros": (Codec.SNAPPY, lambda: _snappy_zeros(20 << 20)),
    "snappy-claims-4-gib": (Codec.SNAPPY, lambda: _varint((1 << 32) - 1) + b"\0a"),
    "snappy-claims-the-ceiling": (Codec.SNAPPY, lambda: _varint(CEILING) + b"\0a"),
    "snappy-xerial-zeros": (Codec.SNAPPY, lambda: _xerial(*[_snappy_zeros(1 << 20)] * 20)),
    "snappy-xerial-dust": (Codec.SNAPPY, lambda: _xerial(*[_snappy_zeros(1)] * 150_000)),
}


@pytest.mark.parametrize("name", BOMBS)
def test_bombs(name):
    """Each in a process of its own, so that its peak of memory is its own. Processor time: the machine may be busy."""
    codec, make = BOMBS[name]
    report = subprocess.run(
        [sys.executable, __file__, str(int(codec))], input=make(), capture_output=True, check=True
    ).stdout.decode()
    error, seconds, grown = report.split()
    assert error in ("INVALID_RECORD", "CORRUPT_MESSAGE")
    assert float(seconds) < 0.05
    assert int(grown) < 20_000_000


def _refuse_in_this_process(codec: int) -> None:
    inflate(codec, compress(codec, SAMPLE), CEILING)  # load the codec before measuring
    packed = sys.stdin.buffer.read()
    best = 1.0
    before = _peak_bytes(reset=True)
    for _ in range(5):
        started = time.process_time()
        try:
            inflate(codec, packed, CEILING)
            name = "accepted"
        except KafkaError as refused:
            name = refused.error.name
        best = min(best, time.process_time() - started)
    os.write(1, f"{name} {best} {_peak_bytes() - before}".encode())


def _peak_bytes(reset: bool = False) -> int:
    """Not getrusage: its figure begins with that of the parent."""
    if reset:
        with open("/proc/self/clear_refs", "w") as file:
            file.write("5")
    with open("/proc/self/status") as file:
        return next(int(line.split()[1]) * 1024 for line in file if line.startswith("VmHWM"))


if __name__ == "__main__":
    _refuse_in_this_process(int(sys.argv[1]))
