"""What the four codecs cost, against what they save."""

from __future__ import annotations

import json
import time

from ottla.wire.compression import Codec, compress, inflate

LINES = [
    json.dumps({"user": n * 7919 % 5000, "page": f"/item/{n * 31 % 977}", "country": "CZ", "agent": "Mozilla/5.0"})
    for n in range(2000)
]
SAMPLE = "\n".join(LINES).encode()


def seconds(codec: Codec) -> float:
    """Processor time for packing and unpacking the sample, the best of several tries: the machine may be busy."""
    tries = []
    for _ in range(9):
        began = time.process_time()
        for _ in range(4):
            inflate(codec, compress(codec, SAMPLE), len(SAMPLE))
        tries.append(time.process_time() - began)
    return min(tries)


def test_order_of_costs() -> None:
    """REC-08: lz4 and snappy take the least time, zstd more, gzip by far the most."""
    cost = {codec: seconds(codec) for codec in (Codec.LZ4, Codec.SNAPPY, Codec.ZSTD, Codec.GZIP)}
    assert max(cost[Codec.LZ4], cost[Codec.SNAPPY]) < cost[Codec.ZSTD] < cost[Codec.GZIP] / 1.5
