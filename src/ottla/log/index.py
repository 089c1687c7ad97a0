"""The two sparse indexes of a segment, kept in memory exactly as they lie in their files.

`.index` holds (last offset of a batch - base offset, start position of that batch), `.timeindex` holds (largest timestamp so
far, last offset of its batch - base offset), both big-endian and rising. An index is a row of such entries in a bytes-like
object: the file's own bytes for a closed segment, a growing bytearray for the active one. So nothing is converted when an
index is read, written or trimmed, and a search unpacks only the entries it looks at.

Apache Kafka preallocates these files and trims them when it closes them; one that was killed leaves a tail of zeros. Such a
tail, or anything else that does not rise, is not part of the index (`sound`).
"""

from __future__ import annotations

from bisect import bisect_right
from itertools import islice
from operator import lt
from struct import Struct

from ottla.world import Bytes

OFFSET_ENTRY = Struct(">ii")
TIME_ENTRY = Struct(">qi")
OFFSET_BYTES = OFFSET_ENTRY.size
TIME_BYTES = TIME_ENTRY.size

_position = Struct(">4xi").unpack_from
_relative = Struct(">i").unpack_from
_time = Struct(">q").unpack_from
_offset_entry = OFFSET_ENTRY.unpack_from
_time_entry = TIME_ENTRY.unpack_from

RELATIVE_MAX = 2**31 - 1


def offset_entry(index: Bytes, n: int) -> tuple[int, int]:
    """The n-th (relative offset, position)."""
    entry: tuple[int, int] = _offset_entry(index, n * OFFSET_BYTES)
    return entry


def time_entry(index: Bytes, n: int) -> tuple[int, int]:
    """The n-th (timestamp, relative offset)."""
    entry: tuple[int, int] = _time_entry(index, n * TIME_BYTES)
    return entry


def position_before_offset(index: Bytes, relative: int) -> int:
    """Where to start reading for an offset: the position of the last indexed batch that ends at or before it, or 0."""
    slot = slots_up_to_offset(index, relative)
    return offset_entry(index, slot - 1)[1] if slot else 0


def slot_after_position(index: Bytes, position: int) -> int:
    """How many entries point at or below `position`: also the number of the first entry above it."""
    return bisect_right(
        range(len(index) // OFFSET_BYTES), position, key=lambda n: int(_position(index, n * OFFSET_BYTES)[0])
    )


def boundary_before(index: Bytes, position: int) -> int:
    """The largest batch start known to the index that is at or below `position`; 0 if it knows none."""
    slot = slot_after_position(index, position)
    return offset_entry(index, slot - 1)[1] if slot else 0


def last_time_before(index: Bytes, timestamp: int) -> tuple[int, int] | None:
    """The last (timestamp, relative offset) whose timestamp is at most the one asked for."""
    slot = bisect_right(range(len(index) // TIME_BYTES), timestamp, key=lambda n: int(_time(index, n * TIME_BYTES)[0]))
    return time_entry(index, slot - 1) if slot else None


def slots_up_to_offset(index: Bytes, relative: int) -> int:
    return bisect_right(
        range(len(index) // OFFSET_BYTES), relative, key=lambda n: int(_relative(index, n * OFFSET_BYTES)[0])
    )


def offsets_below(index: Bytes, relative: int) -> int:
    """How many bytes of an offset index stay when everything from `relative` on is cut off."""
    return slots_up_to_offset(index, relative - 1) * OFFSET_BYTES


def times_below(index: Bytes, relative: int) -> int:
    """The same for a time index; its offsets rise too, because an entry is added only when the timestamp does."""
    count = len(index) // TIME_BYTES
    return bisect_right(range(count), relative - 1, key=lambda n: time_entry(index, n)[1]) * TIME_BYTES


def sound_offsets(raw: bytes, log_size: int) -> bytes:
    """The part of an `.index` file that can be believed: whole entries that rise and point into the log."""
    entries = raw[: _without_tail(raw, OFFSET_BYTES)]
    count = len(entries) // OFFSET_BYTES
    numbers = [number for entry in OFFSET_ENTRY.iter_unpack(entries) for number in entry]
    relatives, positions = numbers[0::2], numbers[1::2]
    good = min(_rising(relatives), _rising(positions), count)
    while good and (positions[good - 1] >= log_size or relatives[good - 1] < 0):
        good -= 1
    return entries[: good * OFFSET_BYTES]


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
