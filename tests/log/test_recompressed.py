"""Batches that a topic stores with another codec than they came with."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from ottla.log.producers import Origin
from ottla.log.settings import LogSettings
from ottla.wire.compression import Codec
from ottla.wire.errors import Error, KafkaError

sys.path.insert(0, str(Path(__file__).parent))
from logs import NOW_MS, batch, make_log, put


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
