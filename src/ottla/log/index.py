"""The two sparse indexes of a segment.

`.index` holds (last offset of a batch - base offset, start position of that batch), `.timeindex` holds (largest timestamp so
far, last offset of its batch - base offset), both big-endian and rising. Every fetch searches the offset index, so it is kept
as two arrays of numbers that `bisect` can search by itself (`OffsetIndex`); the time index is rarely asked and stays in the
bytes of its file.

Apache Kafka preallocates these files and trims them when it closes them; one that was killed leaves a tail of zeros. Such a
tail, or anything else that does not rise, is not part of the index (`sound`).
"""

from __future__ import annotations

import sys
from array import array
from bisect import bisect_right
from itertools import islice
from operator import lt
from struct import Struct

from ottla.world import Bytes

OFFSET_ENTRY = Struct(">ii")
TIME_ENTRY = Struct(">qi")
OFFSET_BYTES = OFFSET_ENTRY.size
TIME_BYTES = TIME_ENTRY.size

_time = Struct(">q").unpack_from
_time_entry = TIME_ENTRY.unpack_from

RELATIVE_MAX = 2**31 - 1


class OffsetIndex:
    """Entries (offset relative to the segment's base, position), both rising. Its length is the number of entries."""

    __slots__ = ("positions", "relatives")

    def __init__(self, raw: bytes = b"") -> None:
        """From the bytes of a file, which must be whole entries."""
        numbers = _swapped(array("i", raw))
        self.relatives, self.positions = numbers[0::2], numbers[1::2]

    def __len__(self) -> int:
        return len(self.positions)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, OffsetIndex) and self.bytes_from(0) == other.bytes_from(0)

    __hash__ = None  # type: ignore[assignment]

    def add(self, relative: int, position: int) -> None:
        self.relatives.append(relative)
        self.positions.append(position)

    def entry(self, n: int) -> tuple[int, int]:
        """The n-th (relative offset, position)."""
        return self.relatives[n], self.positions[n]

    @property
    def last_position(self) -> int:
        """Where the last indexed batch begins; 0 if there is none."""
        return self.positions[-1] if self.positions else 0

    def up_to_offset(self, relative: int) -> int:
        """How many entries are at or below a relative offset."""
        return bisect_right(self.relatives, relative)

    def up_to_position(self, position: int) -> int:
        """How many entries point at or below `position`: also the number of the first entry above it."""
        return bisect_right(self.positions, position)

    def position_before_offset(self, relative: int) -> int:
        """Where to start reading for an offset: the position of the last indexed batch that ends at or before it, or 0."""
        slot = bisect_right(self.relatives, relative)
        return self.positions[slot - 1] if slot else 0

    def boundary_before(self, position: int) -> int:
        """The largest batch start known to the index that is at or below `position`; 0 if it knows none."""
        slot = bisect_right(self.positions, position)
        return self.positions[slot - 1] if slot else 0

    def below(self, relative: int) -> OffsetIndex:
        """What stays when everything from a relative offset on is cut off."""
        kept = OffsetIndex()
        count = bisect_right(self.relatives, relative - 1) if relative > 0 else 0
        kept.relatives, kept.positions = self.relatives[:count], self.positions[:count]
        return kept

    def bytes_from(self, n: int) -> bytes:
        """Entries from the n-th on, as they stand in the file."""
        numbers = array("i", bytes(OFFSET_BYTES * (len(self) - n)))
        numbers[0::2], numbers[1::2] = self.relatives[n:], self.positions[n:]
        return _swapped(numbers).tobytes()


def _swapped(numbers: array[int]) -> array[int]:
    """From the order of the file to that of this machine, or back."""
    if sys.byteorder == "little":
        numbers.byteswap()
    return numbers


def time_entry(index: Bytes, n: int) -> tuple[int, int]:
    """The n-th (timestamp, relative offset)."""
    entry: tuple[int, int] = _time_entry(index, n * TIME_BYTES)
    return entry


def last_time_before(index: Bytes, timestamp: int) -> tuple[int, int] | None:
    """The last (timestamp, relative offset) whose timestamp is at most the one asked for."""
    slot = bisect_right(range(len(index) // TIME_BYTES), timestamp, key=lambda n: int(_time(index, n * TIME_BYTES)[0]))
    return time_entry(index, slot - 1) if slot else None


def times_below(index: Bytes, relative: int) -> int:
    """How many bytes of a time index stay when everything from `relative` on is cut off; its offsets rise too."""
    count = len(index) // TIME_BYTES
    return bisect_right(range(count), relative - 1, key=lambda n: time_entry(index, n)[1]) * TIME_BYTES


def sound_offsets(raw: bytes, log_size: int) -> OffsetIndex:
    """The part of an `.index` file that can be believed: whole entries that rise and point into the log."""
    entries = raw[: _without_tail(raw, OFFSET_BYTES)]
    count = len(entries) // OFFSET_BYTES
    numbers = [number for entry in OFFSET_ENTRY.iter_unpack(entries) for number in entry]
    relatives, positions = numbers[0::2], numbers[1::2]
    good = min(_rising(relatives), _rising(positions), count)
    while good and (positions[good - 1] >= log_size or relatives[good - 1] < 0):
        good -= 1
    return OffsetIndex(entries[: good * OFFSET_BYTES])


def sound_times(raw: bytes) -> bytes:
    """The same for a `.timeindex` file, where a repeated offset is legal but a repeated timestamp is not."""
    entries = raw[: _without_tail(raw, TIME_BYTES)]
    pairs = list(TIME_ENTRY.iter_unpack(entries))
    good = _rising([timestamp for timestamp, _ in pairs])
    for n in range(1, good):
        if pairs[n][1] < pairs[n - 1][1]:
            good = n
            break
    return entries[: good * TIME_BYTES]


def _without_tail(raw: bytes, entry_bytes: int) -> int:
    """Length without zeros at the end, in whole entries. (No real entry is all zeros: timestamps and positions rise.)"""
    kept = len(raw.rstrip(b"\0"))
    return min(-(-kept // entry_bytes) * entry_bytes, len(raw) // entry_bytes * entry_bytes)


def _rising(numbers: list[int]) -> int:
    """How many of the first numbers rise strictly."""
    if all(map(lt, numbers, islice(numbers, 1, None))):
        return len(numbers)
    return next(n for n in range(1, len(numbers)) if numbers[n] <= numbers[n - 1])
