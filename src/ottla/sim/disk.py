"""A disk in memory that can lose power.

Per file it keeps what was synced and, apart, every write and truncation since; per directory the entries that were synced
and every creation, rename and removal since. `crash` decides what is left of the unsynced part, by one of three models:

    LOST    nothing of it
    SUBSET  each unsynced write, truncation and directory change is kept or lost by the toss of a coin, later ones without
            earlier ones too
    TORN    everything up to some moment is kept; of the write under way at that moment a random set of 512-byte sectors

A write that survives beyond the synced end of its file leaves a hole of zeros where earlier ones were lost.

The power can also go at a chosen call: every call that changes something is counted, and the call with number `stop_at`
raises `PowerCut`, as do all calls after it. Composite calls (`replace`, `remove_tree`) count each of their steps. Cutting
before call 1, 2, 3, ... therefore visits every state that the disk can be in. `crash` gives the disk as the next process
finds it, and may be asked again with another model; files opened before it belong to the dead and raise. `outlive` is what
a kill -9 leaves: the process is gone, the machine runs on, and nothing is lost, nor synced. `at_cut` is called when the
power goes at a call, so that whoever runs the process can end it in that very moment.

Faults on purpose: a `capacity` beyond which writes fail with ENOSPC after writing what fits, `failing_syncs` whose sync raises
EIO, and `rot` that flips a bit.
"""

from __future__ import annotations

import asyncio
import errno
import random
from collections.abc import Callable, Sequence
from enum import Enum
from typing import Any, TypeVar

from ottla.world import COPIES_BELOW, FLIES_FROM, Bytes

T = TypeVar("T")

SECTOR = 512
UNLIMITED = 1 << 60


class PowerCut(BaseException):
    """The machine is off. Not an Exception: no handler may carry on."""


class Loss(Enum):
    LOST = "lost"
    SUBSET = "subset"
    TORN = "torn"


class Content:
    """One file's bytes: as everybody sees them, as they were synced, and the changes in between."""

    __slots__ = ("changes", "durable", "is_cached", "now")

    def __init__(self) -> None:
        self.is_cached = True  # not what a crash left, until somebody has read it
        self.now = bytearray()
        self.durable = bytearray()
        # (position, bytes) for a write, (size, None) for a truncation.
        self.changes: list[tuple[int, bytes | None]] = []

    def change(self, position: int, data: bytes | None) -> None:
        apply(self.now, position, data)
        self.changes.append((position, data))

    def sync(self) -> None:
        for position, data in self.changes:
            apply(self.durable, position, data)
        self.changes.clear()


def apply(content: bytearray, position: int, data: bytes | None) -> None:
    """One write or truncation; holes are zeros."""
    if data is None and position <= len(content):
        del content[position:]
        return
    if position > len(content):
        content += bytes(position - len(content))
    if data is not None:
        content[position : position + len(data)] = data


class Folder:
    """One directory: its entries as everybody sees them, as they were synced, and the changes in between."""

    __slots__ = ("changes", "durable", "entries")

    def __init__(self) -> None:
        self.entries: dict[str, Content | Folder] = {}
        self.durable: dict[str, Content | Folder] = {}
        # (name, node): the name now means this node; (name, None): removed; (old, new): renamed.
        self.changes: list[tuple[str, Content | Folder | str | None]] = []

    def change(self, name: str, what: Content | Folder | str | None) -> None:
        enter(self.entries, name, what)
        self.changes.append((name, what))

    def sync(self) -> None:
        for name, what in self.changes:
            enter(self.durable, name, what)
        self.changes.clear()


def enter(entries: dict[str, Content | Folder], name: str, what: Content | Folder | str | None) -> None:
    """One creation, removal or rename; a rename whose source never became durable leaves nothing."""
    if isinstance(what, str):
        node = entries.pop(name, None)
        if node is not None:
            entries[what] = node
    elif what is None:
        entries.pop(name, None)
    else:
        entries[name] = what


class SimFile:
    __slots__ = ("_content", "_disk", "fd", "path")

    def __init__(self, disk: SimDisk, path: str, content: Content) -> None:
        self._disk = disk
        self._content = content
        self.path = path
        self.fd: int | None = None

    def size(self) -> int:
        self._disk.check()
        return len(self._content.now)

    def read_at(self, position: int, size: int) -> bytes:
        self._disk.check()
        self._content.is_cached = True
        return bytes(self._content.now[position : position + size])

    def read_cached(self, position: int, size: int) -> bytes | None:
        data = self.read_at(position, size) if self.is_cached(position, size) else b""
        return data if len(data) == size else None

    def is_cached(self, position: int, size: int) -> bool:
        self._disk.check()
        return self._content.is_cached

    def bring_in(self, position: int, size: int) -> None:
        self.read_at(position, size)

    def write_at(self, position: int, parts: Sequence[Bytes]) -> None:
        self._disk.step("write", self.path)
        data = b"".join(parts)
        room = self._disk.room_for(position + len(data) - len(self._content.now))
        if room < 0:
            data = data[:room]
        if data:
            self._content.change(position, data)
        if room < 0:
            raise OSError(errno.ENOSPC, "no space left on the simulated disk", self.path)

    def truncate(self, size: int) -> None:
        self._disk.step("truncate", self.path)
        self._disk.used += size - len(self._content.now)
        self._content.change(size, None)

    def sync(self) -> None:
        self._disk.step("sync", self.path)
        self._disk.may_fail(self.path)
        self._content.sync()

    def close(self) -> None:
        pass


class SimFlight:
    """A call that happens when its time has come, or when somebody needs it done."""

    def __init__(self, call: Callable[[], None]) -> None:
        self._call: Callable[[], None] | None = call
        self._error: Exception | None = None
        self.is_over = False

    def happen(self) -> None:
        call, self._call = self._call, None
        if call is not None:
            try:
                call()
            except Exception as error:
                self._error = error

    def finish(self) -> None:
        self.happen()
        self.is_over = True
        if self._error is not None:
            raise self._error


class SimDisk:
    """See the top of this file. `latency_s` is the mean delay of a call made through `away` or `begin`."""

    def __init__(
        self,
        rng: random.Random | None = None,
        *,
        capacity: int = UNLIMITED,
        latency_s: float = 0.0,
        stop_at: int | None = None,
    ) -> None:
        self._rng = rng or random.Random(0)
        self._root = Folder()
        self._dead = False
        self._locks: set[str] = set()
        self.capacity = capacity
        self.latency_s = latency_s
        self.stop_at = stop_at
        self.copies_below, self.flies_from = COPIES_BELOW, FLIES_FROM
        self.calls = 0
        self.used = 0
        self.trace: list[tuple[str, str]] | None = None
        self.failing_syncs: Callable[[str], bool] | None = None
        self.at_cut: Callable[[], None] | None = None

    # -- power, space and faults

    def check(self) -> None:
        if self._dead:
            raise PowerCut

    def step(self, kind: str, path: str) -> None:
        """A change is about to happen. Is there still power?"""
        self.check()
        self.calls += 1
        if self.trace is not None:
            self.trace.append((kind, path))
        if self.stop_at is not None and self.calls >= self.stop_at:
            self._dead = True
            if self.at_cut is not None:
                self.at_cut()
            raise PowerCut

    def room_for(self, growth: int) -> int:
        """Take space for a write; a negative answer says by how much it does not fit."""
        fits = min(growth, self.capacity - self.used)
        if growth > 0:
            self.used += fits
        return 0 if growth <= 0 else fits - growth

    def may_fail(self, path: str) -> None:
        if self.failing_syncs is not None and self.failing_syncs(path):
            raise OSError(errno.EIO, "the simulated disk could not sync", path)

    def rot(self, path: str, bit: int) -> None:
        """Flip one bit, on the disk and in every cache."""
        content = self._content(path)
        for data in (content.now, content.durable):
            if bit // 8 < len(data):
                data[bit // 8] ^= 1 << bit % 8

    def crash(self, rng: random.Random, loss: Loss) -> SimDisk:
        """The disk that the next process finds. This one is dead."""
        self._dead = True
        return self.survivors(rng, loss)

    def survivors(self, rng: random.Random, loss: Loss) -> SimDisk:
        """What a crash at this moment would leave, while this disk goes on."""
        after = self._like_this()
        after._root = _survivors(self._root, rng, loss, rng.random(), {})
        after.used = _total(after._root)
        return after

    def outlive(self) -> SimDisk:
        """The disk that the next process finds when only this one died: what was written is there, synced or not."""
        after = self._successor()
        after._root, after.used = self._root, self.used
        return after

    def copy(self, rng: random.Random) -> SimDisk:
        """Another disk with the same content, all of it synced long ago: somewhere to begin from, again and again."""
        after = self._like_this()
        after._rng = rng
        after._root = _copied(self._root)
        after.used = self.used
        return after

    def wipe(self) -> SimDisk:
        """An empty disk in the place of this one."""
        return self._successor()

    def _successor(self) -> SimDisk:
        self._dead = True
        return self._like_this()

    def _like_this(self) -> SimDisk:
        disk = SimDisk(self._rng, capacity=self.capacity, latency_s=self.latency_s)
        disk.copies_below, disk.flies_from = self.copies_below, self.flies_from
        return disk

    # -- Disk

    def open(self, path: str, *, create: bool = False) -> SimFile:
        self.check()
        folder, name = self._parent(path)
        node = folder.entries.get(name)
        if node is None:
            if not create:
                raise FileNotFoundError(errno.ENOENT, "no such file", path)
            self.step("create", path)
            node = Content()
            folder.change(name, node)
        if isinstance(node, Folder):
            raise IsADirectoryError(errno.EISDIR, "is a directory", path)
        return SimFile(self, path, node)

    def read(self, path: str) -> bytes:
        self.check()
        return bytes(self._content(path).now)

    def replace(self, path: str, data: bytes) -> None:
        temporary = path + ".tmp"
        file = self.open(temporary, create=True)
        file.truncate(0)
        file.write_at(0, [data])
        file.sync()
        self.rename(temporary, path)
        self.sync_directory(path.rpartition("/")[0])

    def peek(self, path: str) -> bytearray | None:
        """The bytes as they are now, for onlookers: nothing happens by it, and the dead may be looked at too."""
        node = self._find(path)
        return node.now if isinstance(node, Content) else None

    def peek_at_names(self, path: str) -> list[str]:
        """What is in a directory, for onlookers."""
        node = self._find(path)
        return sorted(node.entries) if isinstance(node, Folder) else []

    def names(self, path: str) -> list[str]:
        self.check()
        return sorted(self._folder(path).entries)

    def exists(self, path: str) -> bool:
        self.check()
        return self._find(path) is not None

    def is_directory(self, path: str) -> bool:
        self.check()
        return isinstance(self._find(path), Folder)

    def size(self, path: str) -> int:
        self.check()
        return len(self._content(path).now)

    def make_directory(self, path: str) -> None:
        folder = self._root
        for name in _words(path):
            node = folder.entries.get(name)
            if node is None:
                self.step("make directory", path)
                node = Folder()
                folder.change(name, node)
            if not isinstance(node, Folder):
                raise FileExistsError(errno.EEXIST, "is a file", path)
            folder = node

    def rename(self, old: str, new: str) -> None:
        self.step("rename", old)
        source, name = self._parent(old)
        target, new_name = self._parent(new)
        if source is not target:
            raise OSError(errno.EXDEV, "only renames inside one directory are simulated", old)
        if name not in source.entries:
            raise FileNotFoundError(errno.ENOENT, "no such file", old)
        self._free(target.entries.get(new_name))
        source.change(name, new_name)

    def remove(self, path: str) -> None:
        self.step("remove", path)
        folder, name = self._parent(path)
        if name not in folder.entries:
            raise FileNotFoundError(errno.ENOENT, "no such file", path)
        self._free(folder.entries[name])
        folder.change(name, None)

    def remove_tree(self, path: str) -> None:
        for name in self.names(path):
            inside = f"{path}/{name}"
            if self.is_directory(inside):
                self.remove_tree(inside)
            else:
                self.remove(inside)
        self.remove(path)

    def sync_directory(self, path: str) -> None:
        self.step("sync directory", path)
        self.may_fail(path)
        self._folder(path).sync()

    def set_mode(self, path: str, mode: int) -> None:
        self.check()
        self._content(path)

    def lock(self, path: str) -> Callable[[], None]:
        self.open(path, create=True)
        if path in self._locks:
            raise BlockingIOError(errno.EAGAIN, "locked by another process", path)
        self._locks.add(path)
        return lambda: self._locks.discard(path)

    def space(self, path: str) -> tuple[int, int]:
        self.check()
        return self.capacity, self.capacity - self.used

    async def away(self, call: Callable[..., T], *args: Any) -> T:
        """The call happens at some moment between being asked for and being answered."""
        delay = self._rng.expovariate(1 / self.latency_s) if self.latency_s else 0.0
        before = delay * self._rng.random() if delay else 0.0
        if before:
            await asyncio.sleep(before)
        answer = call(*args)
        if delay:
            await asyncio.sleep(delay - before)
        self.check()
        return answer

    def begin(self, call: Callable[..., None], *args: Any, over: Callable[[], None]) -> SimFlight:
        """As `away`; what is written is copied now, because the buffer it lies in may be one that connections share."""
        position, parts = args
        flight = SimFlight(lambda: call(position, copies))
        copies = [bytes(part) for part in parts]

        def end() -> None:
            flight.happen()
            flight.is_over = True
            over()

        delay = self._rng.expovariate(1 / self.latency_s) if self.latency_s else 0.0
        loop = asyncio.get_running_loop()
        loop.call_later(delay * self._rng.random(), flight.happen)
        loop.call_later(delay, end)
        return flight

    # -- the tree

    def _find(self, path: str) -> Content | Folder | None:
        node: Content | Folder | None = self._root
        for name in _words(path):
            if not isinstance(node, Folder):
                return None
            node = node.entries.get(name)
        return node

    def _folder(self, path: str) -> Folder:
        node = self._find(path)
        if not isinstance(node, Folder):
            raise FileNotFoundError(errno.ENOENT, "no such directory", path)
        return node

    def _content(self, path: str) -> Content:
        node = self._find(path)
        if not isinstance(node, Content):
            raise FileNotFoundError(errno.ENOENT, "no such file", path)
        return node

    def _parent(self, path: str) -> tuple[Folder, str]:
        directory, _, name = path.rpartition("/")
        return self._folder(directory), name

    def _free(self, node: Content | Folder | None) -> None:
        if isinstance(node, Content):
            self.used -= len(node.now)


def _words(path: str) -> list[str]:
    return [word for word in path.split("/") if word]


def _total(node: Content | Folder) -> int:
    if isinstance(node, Content):
        return len(node.now)
    return sum(map(_total, node.entries.values()))


def _copied(folder: Folder) -> Folder:
    after = Folder()
    for name, node in folder.entries.items():
        if isinstance(node, Folder):
            after.entries[name] = _copied(node)
        else:
            content = after.entries[name] = Content()
            content.now, content.durable = bytearray(node.now), bytearray(node.now)
    after.durable = dict(after.entries)
    return after


# -- what a crash leaves


def _survivors(folder: Folder, rng: random.Random, loss: Loss, moment: float, done: dict[int, Any]) -> Folder:
    """A copy of the tree as it is found after the crash: everything in it is synced."""
    left = dict(folder.durable)
    for name, what in _kept(folder.changes, rng, loss, moment):
        enter(left, name, what)
    after = Folder()
    for name in sorted(left):
        node = left[name]
        if isinstance(node, Folder):
            after.entries[name] = _survivors(node, rng, loss, moment, done)
        else:
            if id(node) not in done:
                done[id(node)] = _surviving(node, rng, loss, moment)
            after.entries[name] = done[id(node)]
    after.durable = dict(after.entries)
    return after


def _kept(changes: list[Any], rng: random.Random, loss: Loss, moment: float) -> list[Any]:
    if loss is Loss.LOST:
        return []
    if loss is Loss.SUBSET:
        return [change for change in changes if rng.random() < 0.5]
    return changes[: round(len(changes) * moment)]


def _surviving(content: Content, rng: random.Random, loss: Loss, moment: float) -> Content:
    left = bytearray(content.durable)
    kept = _kept(content.changes, rng, loss, moment)
    for position, data in kept:
        apply(left, position, data)
    if loss is Loss.TORN and len(kept) < len(content.changes):
        position, data = content.changes[len(kept)]
        if data is not None:
            _tear(left, position, data, rng)
    after = Content()
    after.now, after.durable = left, bytearray(left)
    after.is_cached = False
    return after


def _tear(content: bytearray, position: int, data: bytes, rng: random.Random) -> None:
    """Some sectors of a write reached the platter, the others did not."""
    at = 0
    while at < len(data):
        size = min(SECTOR - (position + at) % SECTOR, len(data) - at)
        if rng.random() < 0.5:
            apply(content, position + at, data[at : at + size])
        at += size
