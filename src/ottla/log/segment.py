"""One file of batches with its sparse offset and time index.

A segment is named by its base offset and holds batches back to back. The active segment keeps its indexes in memory and
writes them out when it is rolled, settled or closed; after a crash they are built again from the batches. A closed segment
keeps nothing but its size: its index is read when somebody asks, and may be forgotten again.

Positions are found by binary search in the index and a walk over headers from there, which reads about
`index.interval.bytes`. The newest batch boundaries of the active segment are remembered, so that readers at the tail, which
are most readers, find their place without touching the file.

Nothing is sent that was not checked: bytes this process appended or scanned in recovery are known to be right
(`trusted_from` to the end), other ranges are added to `checked` when somebody has verified their CRCs.
"""

from __future__ import annotations

from array import array
from bisect import bisect_left, bisect_right
from collections.abc import Iterator
from contextlib import suppress
from struct import Struct
from struct import error as StructError

from ottla.log import index as rows
from ottla.log.files import Beside, OpenFiles
from ottla.log.index import OffsetIndex
from ottla.wire.errors import Error, KafkaError
from ottla.wire.records import HEADER, HEADER_BYTES, MAGIC, PREFIX_BYTES
from ottla.world import File

SCAN_BYTES = 8192
# How many ends of small reads a segment remembers.
ENDS_MAX = 256
SUFFIXES = (".log", ".index", ".timeindex", ".txnindex")
# What names of segments end with that are not (yet, or any more) part of the log.
CLEANED, SWAP, DELETED = ".cleaned", ".swap", ".deleted"
UNKNOWN = -2
NO_TIMESTAMP = -1

_unpack = HEADER.unpack_from
# Base offset, length and last offset delta: all it takes to walk over batches that are known to be right.
_glance = Struct(">qi11xi").unpack_from
# Fields of an unpacked header.
(
    BASE,
    LENGTH,
    EPOCH,
    MAGIC_AT,
    CRC,
    ATTRIBUTES,
    DELTA,
    BASE_TIME,
    MAX_TIME,
    PRODUCER,
    PRODUCER_EPOCH,
    SEQUENCE,
    COUNT,
) = range(13)


def stem(directory: str, base: int) -> str:
    return f"{directory}/{base:020d}"


class Segment:
    __slots__ = (
        "_files",
        "aborted",
        "base",
        "checked",
        "created_ms",
        "ends",
        "file",
        "first_timestamp",
        "index",
        "index_settled",
        "indexed_at",
        "mark",
        "max_timestamp",
        "max_timestamp_offset",
        "path",
        "recent_lasts",
        "recent_positions",
        "repaired",
        "size",
        "times",
        "times_settled",
        "torn",
        "trusted_from",
        "used",
    )

    def __init__(self, files: OpenFiles, directory: str, base: int, size: int) -> None:
        self._files = files
        self.base = base
        self.path = stem(directory, base)
        self.mark = ""  # what its names end with when it is not part of the log, or not for good
        self.size = size
        self.file: File | None = None
        self.used = False
        self.aborted: Beside | None = None
        self.index: OffsetIndex | None = None
        self.times: bytearray | None = None
        self.index_settled = self.times_settled = 0
        self.indexed_at = 0
        self.max_timestamp = UNKNOWN
        self.max_timestamp_offset = base
        self.first_timestamp = UNKNOWN
        self.created_ms = 0
        self.trusted_from = size
        self.checked: list[tuple[int, int]] | None = None
        self.torn = self.repaired = False
        self.ends: dict[int, int] | None = None  # where small reads ended: the next offset, and its position
        self.recent_lasts: array[int] | None = None
        self.recent_positions: array[int] | None = None

    def open(self) -> File:
        self.used = True
        return self.file or self._files.open(self, self.at(".log"))

    def open_aborted(self) -> File:
        """The index of aborted transactions, where there is one: every read_committed fetch looks into it."""
        if self.aborted is None:
            self.aborted = Beside()
        self.aborted.used = True
        return self.aborted.file or self._files.open(self.aborted, self.at(".txnindex"))

    def close(self) -> None:
        self._files.close(self)
        if self.aborted is not None:
            self._files.close(self.aborted)
            self.aborted = None

    def at(self, suffix: str) -> str:
        """The path of one of its files."""
        return self.path + suffix + self.mark

    # -- being the active one

    def begin(self, now_ms: int) -> None:
        """A fresh segment: its three files, empty."""
        for suffix in (".index", ".timeindex"):
            _emptied(self._files.disk.open(self.at(suffix), create=True))
        _emptied(self._files.open(self, self.at(".log"), create=True))
        self.index, self.times = OffsetIndex(), bytearray()
        self.recent_lasts, self.recent_positions = array("q"), array("q")
        self.max_timestamp = NO_TIMESTAMP
        self.created_ms = now_ms
        self.trusted_from = 0

    def remove(self) -> None:
        """Take the files of a segment away, as far as they are there."""
        disk = self._files.disk
        self.close()
        self._files.drop_index(self.at(".index"))
        for suffix in SUFFIXES:
            if disk.exists(self.at(suffix)):
                disk.remove(self.at(suffix))

    def activate(self, now_ms: int) -> None:
        """An existing segment that takes appends again."""
        self.index, self.times = self.read_index(), bytearray(self.read_times())
        self.index_settled, self.times_settled = len(self.index), len(self.times)
        self.recent_lasts, self.recent_positions = array("q"), array("q")
        self.indexed_at = self.index.last_position
        self.load_max_timestamp()
        self.created_ms = now_ms
        self._files.drop_index(self.at(".index"))

    def add(self, last_offset: int, size: int, max_timestamp: int, interval: int) -> None:
        """Account for one batch that lies at the end of the file."""
        position = self.size
        if max_timestamp > self.max_timestamp:
            self.max_timestamp, self.max_timestamp_offset = max_timestamp, last_offset
        if position - self.indexed_at > interval:
            self.index_batch(last_offset, position)
        self.size = position + size

    def index_batch(self, last_offset: int, position: int) -> None:
        assert self.index is not None
        self.index.add(last_offset - self.base, position)
        self.indexed_at = position
        self.index_time()

    def index_time(self) -> None:
        """The largest timestamp so far, if it rose since the last entry."""
        times = self.times
        assert times is not None
        last = rows.time_entry(times, -1 + len(times) // 12)[0] if times else NO_TIMESTAMP
        if self.max_timestamp > last:
            times += rows.TIME_ENTRY.pack(self.max_timestamp, self.max_timestamp_offset - self.base)

    def is_full(self, index_bytes: int) -> bool:
        """No room in an index for another entry (one slot of the time index is kept for the last entry)."""
        assert self.index is not None and self.times is not None
        return len(self.index) >= index_bytes // 8 or len(self.times) // 12 >= index_bytes // 12 - 1

    def settle(self) -> None:
        """Write out what the index files lack, and cut them to their entries."""
        if self.index is not None and self.times is not None:
            self._write_out(".index", self.index.bytes_from(self.index_settled), self.index_settled * rows.OFFSET_BYTES)
            self._write_out(".timeindex", bytes(self.times[self.times_settled :]), self.times_settled)
            self.index_settled, self.times_settled = len(self.index), len(self.times)

    def _write_out(self, suffix: str, data: bytes, position: int) -> None:
        """Write `data` at `position`, and let the file end with it."""
        file = self._files.disk.open(self.at(suffix), create=True)
        if data:
            file.write_at(position, [data])
        if file.size() != position + len(data):
            file.truncate(position + len(data))

    def retire(self) -> None:
        """No more appends: add the last time entry, write the indexes, forget what only the active segment needs."""
        self.index_time()
        self.settle()
        self._files.drop_index(self.at(".index"))  # what was kept under this name before may say something else
        if self.index:
            self._files.keep_index(self.at(".index"), self.index)
        self.index = self.times = self.recent_lasts = self.recent_positions = None

    # -- indexes

    @property
    def is_warm(self) -> bool:
        """Whether a position can be found without reading an index file."""
        return self.index is not None or self.size <= SCAN_BYTES or self._files.index(self.at(".index")) is not None

    def read_index(self) -> OffsetIndex:
        if self.index is not None:
            return self.index
        path = self.at(".index")
        data = self._files.index(path)
        if data is None:
            data = self.fetch_index()
            self.keep_index(data)
        return data

    def fetch_index(self) -> OffsetIndex:
        """The index as it lies on disk; touches nothing else, so it may run off the loop."""
        return rows.sound_offsets(self._read(".index"), self.size)

    def keep_index(self, index: OffsetIndex) -> None:
        self._files.keep_index(self.at(".index"), index)

    def read_times(self) -> bytes | bytearray:
        return self.times if self.times is not None else rows.sound_times(self._read(".timeindex"))

    def _read(self, suffix: str) -> bytes:
        disk = self._files.disk
        with suppress(FileNotFoundError):
            return disk.read(self.at(suffix))
        with suppress(FileNotFoundError):  # a swap may have ended while this was read off the loop
            return disk.read(self.path + suffix) if self.mark != DELETED else b""
        return b""

    def load_max_timestamp(self) -> int:
        """The largest record timestamp, which for a closed segment is the last time entry."""
        if self.max_timestamp == UNKNOWN:
            times = self._last_time()
            if times:
                self.max_timestamp, relative = rows.time_entry(times, -1 + len(times) // 12)
                self.max_timestamp_offset = self.base + relative
            else:
                self._find_max_timestamp()
        return self.max_timestamp

    def _find_max_timestamp(self) -> None:
        """Without a time index: no record has a timestamp, or the file is damaged. Only the headers can tell."""
        largest, at = NO_TIMESTAMP, self.max_timestamp_offset
        for _, fields in self.headers(0):
            if fields[MAX_TIME] > largest:
                largest, at = fields[MAX_TIME], fields[BASE] + fields[DELTA]
        self.max_timestamp, self.max_timestamp_offset = largest, at  # not before all were seen: one may be damaged

    def _last_time(self) -> bytes | bytearray:
        """Time entries up to the last one, if possible without reading the others; empty if the file is not sound."""
        if self.times is not None:
            return self.times
        disk, path = self._files.disk, self.at(".timeindex")
        size = disk.size(path) if disk.exists(path) else 0
        if size < rows.TIME_BYTES or size % rows.TIME_BYTES:
            return b""
        last = disk.open(path).read_at(size - rows.TIME_BYTES, rows.TIME_BYTES)
        return last if any(last) else self.read_times()  # a killed Apache node leaves a tail of zeros

    def load_first_timestamp(self) -> int:
        """The largest timestamp of the first batch, which decides when the segment is old enough to roll."""
        if self.first_timestamp == UNKNOWN:
            if not self.size:
                return UNKNOWN
            self.first_timestamp = next((fields[MAX_TIME] for _, fields in self.headers(0)), NO_TIMESTAMP)
        return self.first_timestamp

    # -- finding

    def headers(self, position: int, end: int | None = None) -> Iterator[tuple[int, tuple[int, ...]]]:
        """(position, header fields) of each batch from a batch boundary on. CORRUPT_MESSAGE where no batch can be."""
        chunk, start = b"", position
        end = self.size if end is None else end
        while position < end:
            at = position - start
            if at + HEADER_BYTES > len(chunk):
                chunk = self.open().read_at(position, min(SCAN_BYTES, self.size - position))
                start, at = position, 0
            if at + HEADER_BYTES > len(chunk):
                raise corrupt(self, position)
            fields = _unpack(chunk, at)
            size = fields[LENGTH] + PREFIX_BYTES
            if fields[MAGIC_AT] != MAGIC or size < HEADER_BYTES or position + size > self.size:
                raise corrupt(self, position)
            yield position, fields
            position += size

    def position_of(self, offset: int) -> int:
        """Where the first batch begins whose last offset is at or above `offset`; the segment's size if there is none."""
        lasts = self.recent_lasts
        if lasts and offset > lasts[0]:
            at = bisect_left(lasts, offset)
            assert self.recent_positions is not None
            return self.recent_positions[at] if at < len(lasts) else self.size
        if offset <= self.base:
            return 0
        try:
            return self._walk_to(offset)
        except KafkaError:
            # A batch on the way is damaged, or the index is. The next indexed batch is another way in.
            if self.repair_index():
                return self._walk_to(offset)
            return self._walk_to(offset, skip=1)

    def _walk_to(self, offset: int, skip: int = 0) -> int:
        """Walk headers from an indexed batch on. Offsets lie outside the CRC, so they are held against their neighbours."""
        index = self.read_index()
        slot = index.up_to_offset(offset - self.base) + skip
        position, last_known = 0, None
        if slot:
            if slot > len(index):
                raise corrupt(self, self.size)
            relative, position = index.entry(slot - 1)
            last_known = self.base + relative
        if skip:
            return self._indexed_batch_with(offset, position, last_known)
        expected = self.base
        walk = self.headers(position)
        found = next(walk, None)
        while found is not None:
            position, fields = found
            base, last = fields[BASE], fields[BASE] + fields[DELTA]
            if last_known is not None:
                if last != last_known:
                    raise corrupt(self, position)
                expected, last_known = base, None
            found = next(walk, None)
            if base < expected or (base > expected and found is not None and found[1][BASE] <= last):
                last = expected + fields[DELTA]  # this header lies about its offset: verification will say so
            if last >= offset:
                return position
            expected = last + 1
        return self.size

    def _indexed_batch_with(self, offset: int, position: int, last: int | None) -> int:
        """The batch at an index entry, if it holds `offset`; what lies between it and a damaged one before cannot be found."""
        for at, fields in self.headers(position):
            if fields[BASE] + fields[DELTA] == last and fields[BASE] <= offset:
                return at
            break
        raise corrupt(self, position)

    def repair_index(self) -> bool:
        """Build the offset index anew by walking all headers, if that works and gives another one. Once per segment."""
        if self.index is not None or self.repaired:
            return False
        self.repaired = True
        fresh, indexed_at = OffsetIndex(), 0
        try:
            for position, fields in self.headers(0):
                if position - indexed_at > SCAN_BYTES // 2:
                    fresh.add(fields[BASE] + fields[DELTA] - self.base, position)
                    indexed_at = position
        except (KafkaError, StructError):
            return False
        if fresh == self.read_index():
            return False
        self._write_out(".index", fresh.bytes_from(0), 0)
        self.keep_index(fresh)
        return True

    def small_range(self, offset: int, bytes_max: int, limit: int) -> tuple[int, bytes] | None:
        """Whole batches from the one with `offset` on, and where they lie, found and read with one small read.

        None where that is not the way: a range that is not known to be right or not in memory, or batches too large for
        it. `bytes_max` must be small, and the answer is empty if not even the first batch fits.
        """
        position, size = self.ends.get(offset) if self.ends else None, bytes_max
        if position is None:
            position = self.read_index().position_before_offset(offset - self.base)
            size += SCAN_BYTES
        if position < self.trusted_from:
            return None
        chunk = (self.file or self.open()).read_cached(position, min(size, limit - position))
        if chunk is None:
            return None
        whole, at = len(chunk) - HEADER_BYTES, 0
        if whole < 0:
            return None
        base, length, delta = _glance(chunk)
        while base + delta < offset:
            at += length + PREFIX_BYTES
            if at > whole:
                return None
            base, length, delta = _glance(chunk, at)
        start, end, last = at, at + length + PREFIX_BYTES, min(at + bytes_max, len(chunk))
        following = offset
        while end <= last:
            at, following = end, base + delta + 1
            if at > whole:
                break
            base, length, delta = _glance(chunk, at)
            end = at + length + PREFIX_BYTES
        self._remember_end(following, position + at)
        return position + start, bytes(chunk[start:at])

    def _remember_end(self, following: int, position: int) -> None:
        """Most readers go on where they ended: they need not be led there by the index."""
        if self.ends is None or len(self.ends) >= ENDS_MAX:
            self.ends = {}
        self.ends[following] = position

    def cut(self, start: int, bytes_max: int, limit: int) -> int:
        """The end of the whole batches from `start` that fit into `bytes_max` and end by `limit`; maybe `start` itself."""
        want = start + bytes_max
        if want >= limit:
            return limit
        positions = self.recent_positions
        if positions and want >= positions[0]:
            boundary = positions[bisect_right(positions, want) - 1]
            if boundary > start:
                return boundary
        boundary = self.read_index().boundary_before(want)
        if boundary > start and (want - boundary) * 2 <= bytes_max:
            return boundary
        end = max(boundary, start)
        try:
            for position, fields in self.headers(end, limit):
                end = position
                if end + fields[LENGTH] + PREFIX_BYTES > want:
                    return end
                end += fields[LENGTH] + PREFIX_BYTES
        except KafkaError:
            if end == start:
                raise
        return end  # at the limit, or before a damaged batch

    def batch_size(self, position: int) -> int:
        positions = self.recent_positions
        if positions and position >= positions[0]:
            after = bisect_right(positions, position)
            return (positions[after] if after < len(positions) else self.size) - position
        for _, fields in self.headers(position):
            return fields[LENGTH] + PREFIX_BYTES
        return 0

    def last_indexed(self) -> int:
        """Where the last batch begins that the index knows."""
        return self.read_index().last_position

    def end_from_tail(self) -> int:
        """The offset after the last batch, by index and a walk over the last headers; KafkaError if they do not add up."""
        end = self.base
        for _, fields in self.headers(self.last_indexed()):
            end = fields[BASE] + fields[DELTA] + 1
        return end

    # -- what was verified

    def is_checked(self, start: int, end: int) -> bool:
        if start >= self.trusted_from:
            return True
        return any(low <= start and end <= high for low, high in self.checked or ())

    def mark_checked(self, start: int, end: int) -> None:
        """Remember a verified range, joined with the ranges it touches."""
        apart = []
        for low, high in self.checked or ():
            if high < start or low > end:
                apart.append((low, high))
            else:
                start, end = min(low, start), max(high, end)
        if end >= self.trusted_from:
            self.trusted_from = min(self.trusted_from, start)
        else:
            apart.append((start, end))
        self.checked = apart or None


def _emptied(file: File) -> None:
    """A roll that failed half-way may have left something."""
    if file.size():
        file.truncate(0)


def corrupt(segment: Segment, position: int) -> KafkaError:
    return KafkaError(Error.CORRUPT_MESSAGE, f"no sound batch at position {position} of segment {segment.base}")
