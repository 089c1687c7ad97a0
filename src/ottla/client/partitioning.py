"""Which partition a record goes to.

A partitioner is any callable (topic, key, partition count) -> partition, or None for "wherever the batch being filled
goes": the sticky way, which sends few large batches instead of many small ones (KIP-480). Records with a key go by
murmur2 of the key, bit for bit as in Java's client, so that producers in both languages agree where a key lives.
"""

from __future__ import annotations

from collections.abc import Callable

Partitioner = Callable[[str, bytes | None, int], int | None]

_MASK = 0xFFFFFFFF
_MULTIPLIER = 0x5BD1E995
_SEED = 0x9747B28C


def murmur2(data: bytes) -> int:
    """MurmurHash 2 of 32 bits, with the seed of Kafka; unsigned."""
    size = len(data)
    h = _SEED ^ size
    whole = size & ~3
    for position in range(0, whole, 4):
        k = int.from_bytes(data[position : position + 4], "little") * _MULTIPLIER & _MASK
        k = (k ^ k >> 24) * _MULTIPLIER & _MASK
        h = (h * _MULTIPLIER & _MASK) ^ k
    if rest := data[whole:]:
        h = (h ^ int.from_bytes(rest, "little")) * _MULTIPLIER & _MASK
    h = (h ^ h >> 13) * _MULTIPLIER & _MASK
    return h ^ h >> 15


def by_key(_topic: str, key: bytes | None, count: int) -> int | None:
    """The default: keys by hash, the rest sticky."""
    return None if key is None else (murmur2(key) & 0x7FFFFFFF) % count


class RoundRobin:
    """One record to each partition in turn, keys or not."""

    def __init__(self) -> None:
        self._next: dict[str, int] = {}

    def __call__(self, topic: str, _key: bytes | None, count: int) -> int:
        turn = self._next.get(topic, 0)
        self._next[topic] = turn + 1
        return turn % count
