"""Open files and index bytes of one data directory, both bounded.

A broker may hold far more segments than a process may hold descriptors. Segments open their file when it is needed and the
least recently used ones are let go: dropping the reference is enough, because a file closes when nobody refers to it, and a
slice that is still being sent refers to it. "Recently" is a mark set by use and wiped in passing (the clock algorithm), so
that an append costs one assignment and no bookkeeping. Index bytes go in the order they came.

Apart from loading, only the loop's thread changes these tables; what reads off the loop hands its bytes over to it.
"""

from __future__ import annotations

from collections import OrderedDict
from errno import EMFILE, ENFILE
from typing import Protocol

from ottla.log.index import OffsetIndex
from ottla.world import Disk, File

FILES_MAX = 4096
INDEX_ENTRIES_MAX = 4 << 20


class Holder(Protocol):
    """Whoever keeps an open file: a segment its records, and beside them an index that is read from the file."""

    file: File | None
    used: bool


class Beside:
    """A second file of a segment, open while it is used."""

    __slots__ = ("file", "used")

    def __init__(self) -> None:
        self.file: File | None = None
        self.used = False


class OpenFiles:
    __slots__ = ("_holders", "_index_entries", "_indexes", "disk", "files_max")

    def __init__(self, disk: Disk, files_max: int = FILES_MAX) -> None:
        self.disk = disk
        self.files_max = files_max
        self._holders: OrderedDict[Holder, None] = OrderedDict()
        self._indexes: OrderedDict[str, OffsetIndex] = OrderedDict()
        self._index_entries = 0

    def __len__(self) -> int:
        return len(self._holders)

    def open(self, holder: Holder, path: str, create: bool = False) -> File:
        try:
            file = self.disk.open(path, create=create)
        except OSError as error:
            if error.errno not in (EMFILE, ENFILE) or not self._holders:
                raise
            # The machine allows fewer than we thought: make do with half of what we have.
            self.files_max = max(1, len(self._holders) // 2)
            while len(self._holders) > self.files_max:
                self._let_one_go()
            file = self.disk.open(path, create=create)
        holder.file, holder.used = file, True
        self._holders[holder] = None
        while len(self._holders) > self.files_max:
            self._let_one_go()
        return file

    def _let_one_go(self) -> None:
        while True:
            holder, _ = self._holders.popitem(last=False)
            if not holder.used:
                holder.file = None
                return
            holder.used = False
            self._holders[holder] = None

    def close(self, holder: Holder) -> None:
        holder.file = None
        self._holders.pop(holder, None)

    def index(self, path: str) -> OffsetIndex | None:
        """The offset index of a closed segment, if it is at hand."""
        return self._indexes.get(path)

    def keep_index(self, path: str, index: OffsetIndex) -> None:
        self.drop_index(path)
        self._indexes[path] = index
        self._index_entries += len(index)
        while self._index_entries > INDEX_ENTRIES_MAX and len(self._indexes) > 1:
            _, dropped = self._indexes.popitem(last=False)
            self._index_entries -= len(dropped)

    def recount(self) -> None:
        """After logs were loaded by several threads, whose counting may have collided."""
        self._index_entries = sum(map(len, self._indexes.values()))

    def drop_index(self, path: str) -> None:
        data = self._indexes.pop(path, None)
        if data is not None:
            self._index_entries -= len(data)
