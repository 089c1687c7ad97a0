"""A map that never changes: a change makes a new one and costs what it changes, not what the map holds.

Entries are spread over small dicts. A new map shares all dicts with the old one except those that hold a changed key.
Plain Python, because a copied dict of 10,000 topics costs a tenth of a millisecond per change and a hash trie in a
compiled dependency would buy little: with at most 32 entries in a dict on average, a change costs a few microseconds.

Keys are spread by CRC, not by `hash`, which differs from process to process for strings: two runs of one seed must walk
a map in the same order.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Generic, TypeVar, overload
from zlib import crc32

K = TypeVar("K")
V = TypeVar("V")
D = TypeVar("D")

BUCKETS_MIN = 16
ENTRIES_PER_BUCKET = 32


def _spread(key: object) -> int:
    if isinstance(key, bytes):
        return crc32(key)
    if isinstance(key, str):
        return crc32(key.encode())
    return crc32(repr(key).encode())


class FrozenMap(Generic[K, V]):
    __slots__ = ("_buckets", "_mask", "_size")

    def __init__(self, entries: Mapping[K, V] | None = None) -> None:
        self._buckets: list[dict[K, V]] = [{} for _ in range(BUCKETS_MIN)]
        self._mask = BUCKETS_MIN - 1
        self._size = 0
        if entries:
            filled = self.changed(entries)
            self._buckets, self._mask, self._size = filled._buckets, filled._mask, filled._size

    @overload
    def get(self, key: K) -> V | None: ...
    @overload
    def get(self, key: K, default: D) -> V | D: ...
    def get(self, key: K, default: D | None = None) -> V | D | None:
        return self._buckets[_spread(key) & self._mask].get(key, default)

    def __getitem__(self, key: K) -> V:
        return self._buckets[_spread(key) & self._mask][key]

    def __contains__(self, key: K) -> bool:
        return key in self._buckets[_spread(key) & self._mask]

    def __len__(self) -> int:
        return self._size

    def __iter__(self) -> Iterator[K]:
        for bucket in self._buckets:
            yield from bucket

    def values(self) -> Iterator[V]:
        for bucket in self._buckets:
            yield from bucket.values()

    def items(self) -> Iterator[tuple[K, V]]:
        for bucket in self._buckets:
            yield from bucket.items()

    def __eq__(self, other: object) -> bool:
        return isinstance(other, FrozenMap) and dict(self.items()) == dict(other.items())

    __hash__ = None  # type: ignore[assignment]

    def changed(self, changes: Mapping[K, V | None]) -> FrozenMap[K, V]:
        """The map with `changes` made; None takes a key away."""
        if not changes:
            return self
        new: FrozenMap[K, V] = FrozenMap.__new__(FrozenMap)
        new._mask, new._size = self._mask, self._size
        new._buckets = self._buckets.copy()
        own: set[int] = set()
        for key, value in changes.items():
            new._put(key, value, own)
        return new

    def _put(self, key: K, value: V | None, own: set[int]) -> None:
        """Change an entry of a map that nobody else has seen yet; `own` names the dicts that are already its own."""
        if self._size > len(self._buckets) * ENTRIES_PER_BUCKET:
            self._grow(own)
        place = _spread(key) & self._mask
        bucket = self._buckets[place]
        if place not in own:
            own.add(place)
            bucket = self._buckets[place] = bucket.copy()
        self._size -= key in bucket
        if value is None:
            bucket.pop(key, None)
        else:
            bucket[key] = value
            self._size += 1

    def _grow(self, own: set[int]) -> None:
        old = self._buckets
        self._buckets = [{} for _ in range(len(old) * 8)]
        self._mask = len(self._buckets) - 1
        for bucket in old:
            for key, value in bucket.items():
                self._buckets[_spread(key) & self._mask][key] = value
        own.clear()
        own.update(range(len(self._buckets)))
