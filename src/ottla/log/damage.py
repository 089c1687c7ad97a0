"""Walking over damage in a part of a log that was synced.

Above the recovery point a batch that is not right is the tail of a write that a crash tore, and the log ends before it. Below,
everything was on the disk once and was promised: damage there is damage of the medium. To cut the log at it would throw away
all the sound records after it and give their offsets to others. So the walk goes on after it, and whoever reads the damaged
batch is told.

A damaged batch is stepped over by its own header, if that leads to a neighbour; otherwise by the next entry of the old index.
"""

from __future__ import annotations

from collections.abc import Iterator

from ottla.log.index import RELATIVE_MAX, OffsetIndex
from ottla.log.scanning import sound_batches
from ottla.log.segment import BASE, DELTA, LENGTH, MAGIC_AT
from ottla.wire.records import HEADER, HEADER_BYTES, MAGIC, PREFIX_BYTES
from ottla.world import File

Fields = tuple[int, ...]
# Position, header fields, and the batch; None for one that is damaged.
Found = tuple[int, Fields, memoryview | None]


class Walk:
    """The batches of one segment file, the damaged ones below the offset `floor` among them."""

    def __init__(self, file: File, size: int, base: int, index: OffsetIndex, floor: int) -> None:
        self._file = file
        self._size = size
        self._base = base
        self._index = index
        self._floor = floor
        self._position, self._end = 0, base

    def __iter__(self) -> Iterator[Found]:
        while True:
            yield from self._sound()
            if self._end >= self._floor or self._position >= self._size:
                return
            damaged = self._header(self._position)
            if damaged is not None and self._leads_on(damaged):
                damaged = (self._end, *damaged[1:])
                yield self._position, damaged, None
                self._step(damaged)
            elif not self._jump():
                return

    def first_gap(self, offset: int) -> tuple[int, int] | None:
        """Where the batches stop being sound, and the offset that is missing there; None if they reach beyond `offset`."""
        self._skip_before(offset)
        if any(_end_of(fields) > offset for _, fields, _ in self._sound()):
            return None
        return self._position, self._end

    def _skip_before(self, offset: int) -> None:
        """Begin at an indexed batch, not the last before `offset`, which may be the damaged one itself."""
        slot = self._index.up_to_offset(offset - self._base) - 2
        if slot < 0:
            return
        relative, position = self._index.entry(slot)
        found = next(sound_batches(self._file, position, self._size), None)
        if found is not None and _end_of(found[1]) - 1 == self._base + relative:
            self._position, self._end = position, found[1][BASE]

    def _sound(self) -> Iterator[Found]:
        """Up to the first batch that fails its CRC, or goes back in offsets, which the CRC does not cover."""
        for position, fields, batch in sound_batches(self._file, self._position, self._size):
            if fields[BASE] < self._end or not 0 <= _end_of(fields) - 1 - self._base <= RELATIVE_MAX:
                return
            if fields[BASE] > self._end and self._end < self._floor and self._strays(position, fields):
                return
            yield position, fields, batch
            self._step(fields)

    def _step(self, fields: Fields) -> None:
        self._position += fields[LENGTH] + PREFIX_BYTES
        self._end = _end_of(fields)

    def _strays(self, position: int, fields: Fields) -> bool:
        """Whether a batch that leaves a gap has a wrong offset: the next one goes on where the gap began."""
        after = self._header(position + fields[LENGTH] + PREFIX_BYTES)
        return after is not None and after[BASE] == self._end + fields[DELTA] + 1

    def _header(self, position: int) -> Fields | None:
        data = self._file.read_at(position, HEADER_BYTES)
        return HEADER.unpack(data) if len(data) == HEADER_BYTES else None

    def _leads_on(self, fields: Fields) -> bool:
        """Whether a damaged batch stands where it should, and the next one (or the end of the file) right behind it."""
        size, end = fields[LENGTH] + PREFIX_BYTES, self._end + fields[DELTA] + 1
        if fields[MAGIC_AT] != MAGIC or size < HEADER_BYTES or fields[DELTA] < 0 or end > self._floor:
            return False
        after = self._position + size
        if after == self._size:
            return end == self._floor
        following = self._header(after)
        return following is not None and following[BASE] == end

    def _jump(self) -> bool:
        """Go on at the next indexed batch that is sound."""
        for slot in range(len(self._index)):
            _, position = self._index.entry(slot)
            if position > self._position:
                found = next(sound_batches(self._file, position, self._size), None)
                if found is not None and found[1][BASE] >= self._end:
                    self._position, self._end = position, found[1][BASE]
                    return True
        return False


def _end_of(fields: Fields) -> int:
    return fields[BASE] + fields[DELTA] + 1
