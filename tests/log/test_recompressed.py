"""Batches that a topic stores with another codec than they came with."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from ottla.log.producers import Origin
from ottla.log.settings import LogSettings
from ottla.wire.compression import Codec
from ottla.wire.errors import Error, KafkaError
from ottla.wire.records import HEADER_BYTES, recompress

sys.path.insert(0, str(Path(__file__).parent))
from logs import NOW_MS, batch, make_log, put, run


def test_what_is_stored_must_fit_as_well() -> None:
    """REC-10, PRT-17: `max.message.bytes` bounds what came and what would lie on the disk."""
    log = make_log(settings=LogSettings(compression_type="uncompressed", max_message_bytes=5000))
    small = batch(10, value=b"x" * 1000, codec=Codec.GZIP)
    assert len(small) < 1000
    with pytest.raises(KafkaError) as caught:
        log.append(small, Origin.CLIENT, 0, NOW_MS)
    assert caught.value.error is Error.MESSAGE_TOO_LARGE
    assert put(log, batch(3, value=b"x" * 1000, codec=Codec.GZIP)) == [0]
    assert 3000 < log.size < 5000


@pytest.mark.parametrize(
    ("codec", "low", "high"), [(Codec.GZIP, 1, 9), (Codec.LZ4, 1, 17), (Codec.ZSTD, 1, 19)], ids=["gzip", "lz4", "zstd"]
)
def test_the_level_of_a_codec_is_obeyed(codec: Codec, low: int, high: int) -> None:
    """REC-10: `compression.NAME.level` decides how hard the broker tries, and it is not the codec's usual level."""
    text = b" ".join(b"%d" % (number * number % 9973) for number in range(8000))
    came = batch(value=text)
    stored = []
    for level in (low, high):
        values = {"compression.type": codec.name.lower(), f"compression.{codec.name.lower()}.level": level}
        log = make_log(settings=LogSettings.of(values))
        put(log, came)
        stored.append(bytes(run(log.read(0, 1 << 20, 1)).read()))
        wanted = recompress(came, codec, level=level, inflated_max=1 << 20)
        assert stored[-1][HEADER_BYTES:] == wanted[HEADER_BYTES:]
    assert stored[0] != stored[1]
