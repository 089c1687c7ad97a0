"""What a node may touch outside itself: a disk, the wall clock, randomness, and somewhere to do heavy work.

Everything else in the house is plain computation, or asyncio, whose loop is the port for time and network. The
simulator has its own Disk, clock, random source and work, and runs the rest unchanged.

Disk and File calls are plain and block. What may take long (fsync, reads of cold data, removing trees) is wrapped in
`await disk.away(call, ...)`, which runs it off the loop; appends and small reads are called directly, and a large append
is a Flight: begun, left alone, and finished by whoever needs it done. Before a node serves, everything may be called
directly.
"""

from __future__ import annotations

import asyncio
import concurrent.futures
import contextlib
import errno
import fcntl
import functools
import os
import random
import shutil
import threading
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol, TypeVar

T = TypeVar("T")
Bytes = bytes | bytearray | memoryview

# The kernel takes at most this many pieces in one pwritev (IOV_MAX).
PIECES_MAX = 1024
# A read with this flag gives what is in memory. Where system or file system do not know it, every read may wait.
NOWAIT = getattr(os, "RWF_NOWAIT", 0)
# How often its own size is read behind a range that was brought in.
# Data is brought in by small steps: many a kernel lets nobody else have the processor during one call.
BRING_IN_STEP = 128 << 10
READ_AHEAD = 4
NOWHERE = bytearray(64 << 10)
# One page in so many bytes is looked at to find out whether a range is in memory.
PROBE_BYTES = 256 << 10
COPIES_BELOW = 16 << 10
# Handing a write to a thread costs as much as writing some ten kilobytes. No buffer that connections share is as large as
# this, so what is written meanwhile stays where it lies.
FLIES_FROM = 256 << 10
# Children for work that takes long; how many there are is decided by how much of it is begun at the same time.
TOILERS_MAX = 32
TOILERS_NICENESS = 10
# A child that was killed is gone at once, unless its disk keeps it.
DEATH_S = 10.0
# Bytes per second that no disk reaches, and the shortest time worth sleeping.
UNLIMITED = 1e15
PACE_STEP_S = 0.01


class File(Protocol):
    """An open file. `fd` is its descriptor, or None where there is none (the simulator), so that sendfile can be used."""

    path: str
    fd: int | None

    def size(self) -> int: ...
    def read_at(self, position: int, size: int) -> bytes:
        """What is there; shorter than asked for only at the end of the file."""
        ...

    def read_cached(self, position: int, size: int) -> Bytes | None:
        """Exactly what was asked for, or None where that would mean to wait for a device."""
        ...

    def is_cached(self, position: int, size: int) -> bool:
        """Whether a range can be read without waiting for a device, as far as a few looks can tell."""
        ...

    def bring_in(self, position: int, size: int) -> None:
        """Have a range in memory, and begin to read what lies behind it, because most readers go on."""
        ...

    def write_at(self, position: int, parts: Sequence[Bytes]) -> None:
        """All parts, one after the other, or an OSError (then any prefix may have been written)."""
        ...

    def truncate(self, size: int) -> None: ...
    def sync(self) -> None:
        """On return every earlier write to this file survives a power cut. An error must never be retried and believed."""
        ...

    def close(self) -> None: ...


class Disk(Protocol):
    """A tree of files. Paths are plain strings with `/`."""

    copies_below: int  # what is smaller is better copied and written together with more
    flies_from: int  # what is as large as this is better written in a Flight

    def open(self, path: str, *, create: bool = False) -> File:
        """Open for reading and writing. With `create` the file may not exist yet (an existing one is opened as it is)."""
        ...

    def read(self, path: str) -> bytes: ...
    def replace(self, path: str, data: bytes) -> None:
        """Old content or new, never a mix, also after a power cut: temp file, fsync, rename, fsync of the directory."""
        ...

    def names(self, path: str) -> list[str]:
        """Sorted names inside a directory."""
        ...

    def exists(self, path: str) -> bool: ...
    def is_directory(self, path: str) -> bool: ...
    def size(self, path: str) -> int: ...
    def make_directory(self, path: str) -> None:
        """With its parents; an existing one is fine."""
        ...

    def rename(self, old: str, new: str) -> None: ...
    def remove(self, path: str) -> None: ...
    def remove_tree(self, path: str) -> None: ...
    def sync_directory(self, path: str) -> None: ...
    def set_mode(self, path: str, mode: int) -> None: ...
    def lock(self, path: str) -> Callable[[], None]:
        """Take the lock file; the answer releases it. BlockingIOError when another process holds it."""
        ...

    def space(self, path: str) -> tuple[int, int]:
        """Bytes in all and bytes free on the volume that holds `path`."""
        ...

    async def away(self, call: Callable[..., T], *args: Any) -> T:
        """Run a blocking call without stalling the loop."""
        ...

    def begin(self, call: Callable[..., None], *args: Any, over: Callable[[], None]) -> Flight:
        """Run a blocking call beside the loop, which calls `over` some time after it ended."""
        ...


class Flight(Protocol):
    """A blocking call that runs beside the loop."""

    @property
    def is_over(self) -> bool: ...

    def finish(self) -> None:
        """Return when the call is over, however long that takes; raises what it raised."""
        ...


@dataclass(slots=True)
class Slice:
    """A piece of an open file that is to be sent: bytes that nobody has copied yet."""

    file: File
    position: int
    size: int

    def read(self) -> bytes:
        return self.file.read_at(self.position, self.size)


Watch = Callable[[float, bool], None]


def nobody(seconds: float, failed: bool) -> None:
    """Nobody wants to know how long a sync took."""


class RealFile:
    """A file of the operating system. Dropping the last reference closes it."""

    __slots__ = ("_nowait", "_watch", "fd", "path")

    def __init__(self, path: str, flags: int, watch: Watch = nobody) -> None:
        self.path = path
        self._watch = watch
        self._nowait = NOWAIT
        self.fd: int | None = None
        self.fd = os.open(path, flags | os.O_CLOEXEC, 0o644)

    def _open_fd(self) -> int:
        if self.fd is None:
            raise OSError(errno.EBADF, "file is closed", self.path)
        return self.fd

    def size(self) -> int:
        return os.fstat(self._open_fd()).st_size

    def read_at(self, position: int, size: int) -> bytes:
        return os.pread(self._open_fd(), size, position)

    def read_cached(self, position: int, size: int) -> bytearray | None:
        data = bytearray(size)
        return data if self._read_now(position, data) == size else None

    def is_cached(self, position: int, size: int) -> bool:
        byte = bytearray(1)
        for at in range(position, position + size, PROBE_BYTES):
            if self._read_now(at, byte) < 0:
                return False
        return self._read_now(position + size - 1, byte) >= 0

    def _read_now(self, position: int, into: bytearray) -> int:
        """How many bytes could be read without waiting; -1 for none."""
        fd = self._open_fd()
        try:
            return os.preadv(fd, (into,), position, self._nowait)
        except BlockingIOError:
            return -1
        except OSError as error:
            if error.errno != errno.EOPNOTSUPP:
                raise
            self._nowait = 0
            return os.preadv(fd, (into,), position)

    def bring_in(self, position: int, size: int) -> None:
        fd, end, got = self._open_fd(), position + size, 1
        self._advise(fd, 0, 0, "POSIX_FADV_RANDOM")  # or the kernel reads ahead by itself, on the loop's time
        for ahead in range(position, end + READ_AHEAD * size, BRING_IN_STEP):
            self._advise(fd, ahead, BRING_IN_STEP, "POSIX_FADV_WILLNEED")
        while position < end and got:
            # All into the same few pages: what counts is that the kernel has it.
            pieces = -(-min(end - position, BRING_IN_STEP) // len(NOWHERE))
            got = os.preadv(fd, [NOWHERE] * pieces, position)
            position += got

    @staticmethod
    def _advise(fd: int, position: int, size: int, advice: str) -> None:
        if hasattr(os, "posix_fadvise"):
            os.posix_fadvise(fd, position, size, getattr(os, advice))

    def write_at(self, position: int, parts: Sequence[Bytes]) -> None:
        fd = self.fd
        if fd is None:
            fd = self._open_fd()
        if len(parts) == 1:
            part = parts[0]
            if os.pwrite(fd, part, position) == len(part):
                return
        elif len(parts) <= PIECES_MAX and os.pwritev(fd, parts, position) == sum(map(len, parts)):
            return
        self._write_piecewise(fd, position, parts)

    @staticmethod
    def _write_piecewise(fd: int, position: int, parts: Sequence[Bytes]) -> None:
        """The rare way: too many pieces for one call, or the kernel took only some of them."""
        for part in parts:
            rest = memoryview(part)
            while rest:
                written = os.pwrite(fd, rest, position)
                if written == 0:
                    raise OSError(errno.ENOSPC, "nothing more could be written")
                position += written
                rest = rest[written:]

    def truncate(self, size: int) -> None:
        os.ftruncate(self._open_fd(), size)

    def sync(self) -> None:
        watched_sync(self._open_fd(), self._watch)

    def close(self) -> None:
        fd, self.fd = self.fd, None
        if fd is not None:
            os.close(fd)

    def __del__(self) -> None:
        with contextlib.suppress(OSError):
            self.close()


def watched_sync(fd: int, watch: Watch) -> None:
    began, failed = time.perf_counter(), True
    try:
        os.fsync(fd)
        failed = False
    finally:
        watch(time.perf_counter() - began, failed)


class RealFlight:
    """A call in the hands of a thread, or, if none is free when somebody needs it done, of whoever needs it."""

    __slots__ = ("_args", "_call", "_claim", "_future")

    def __init__(self, threads: concurrent.futures.Executor, call: Callable[..., None], args: tuple[Any, ...]) -> None:
        self._call, self._args = call, args
        self._claim = threading.Lock()  # whoever gets it makes the call, and never gives it back
        self._future: concurrent.futures.Future[None] = concurrent.futures.Future()
        try:
            threads.submit(self._happen)
        except RuntimeError:  # no thread can be started; yet the executor keeps the work for one that may come
            self._happen()

    @property
    def is_over(self) -> bool:
        return self._future.done()

    def _happen(self) -> None:
        if not self._claim.acquire(blocking=False):
            return
        try:
            self._call(*self._args)
        except BaseException as error:
            self._future.set_exception(error)
        else:
            self._future.set_result(None)

    def finish(self) -> None:
        self._happen()
        self._future.result()

    def then(self, over: Callable[[], None]) -> None:
        loop = asyncio.get_running_loop()

        def tell(_: object) -> None:
            with contextlib.suppress(RuntimeError):  # the loop has ended, and with it everybody who could care
                loop.call_soon_threadsafe(over)

        self._future.add_done_callback(tell)


class RealDisk:
    """The file system of this machine, with a few threads for calls that block.

    `watch(seconds, failed)` is told of every sync of a file, on whichever thread it happens.
    """

    def __init__(self, threads: int = 4, watch: Watch = nobody) -> None:
        self.watch = watch
        self.copies_below = COPIES_BELOW
        self.flies_from = FLIES_FROM
        self._threads = concurrent.futures.ThreadPoolExecutor(threads, thread_name_prefix="disk")
        # Apart from the others, so that no write waits behind a sync.
        self._writers = concurrent.futures.ThreadPoolExecutor(2, thread_name_prefix="write")

    def __reduce__(self) -> tuple[Any, ...]:
        return RealDisk, ()  # a child that gets it has threads of its own, and nobody there watches its syncs

    def open(self, path: str, *, create: bool = False) -> RealFile:
        return RealFile(path, os.O_RDWR | (os.O_CREAT if create else 0), self.watch)

    def read(self, path: str) -> bytes:
        with open(path, "rb") as file:
            return file.read()

    def replace(self, path: str, data: bytes) -> None:
        temporary = path + ".tmp"
        fd = os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC, 0o644)
        try:
            RealFile._write_piecewise(fd, 0, [data])
            watched_sync(fd, self.watch)
        finally:
            os.close(fd)
        os.replace(temporary, path)
        self.sync_directory(os.path.dirname(path) or ".")

    def names(self, path: str) -> list[str]:
        return sorted(os.listdir(path))

    def exists(self, path: str) -> bool:
        return os.path.lexists(path)

    def is_directory(self, path: str) -> bool:
        return os.path.isdir(path)

    def size(self, path: str) -> int:
        return os.stat(path).st_size

    def make_directory(self, path: str) -> None:
        os.makedirs(path, exist_ok=True)

    def rename(self, old: str, new: str) -> None:
        os.rename(old, new)

    def remove(self, path: str) -> None:
        os.unlink(path)

    def remove_tree(self, path: str) -> None:
        shutil.rmtree(path)

    def sync_directory(self, path: str) -> None:
        fd = os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
        try:
            os.fsync(fd)
        finally:
            os.close(fd)

    def set_mode(self, path: str, mode: int) -> None:
        os.chmod(path, mode)

    def lock(self, path: str) -> Callable[[], None]:
        fd = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o644)
        try:
            # lockf, not flock: the Java FileLock of an Apache broker on the same directory takes POSIX locks.
            fcntl.lockf(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError as error:
            os.close(fd)
            if error.errno in (errno.EACCES, errno.EAGAIN):
                raise BlockingIOError(errno.EAGAIN, "locked by another process", path) from error
            raise
        return lambda: os.close(fd)

    def space(self, path: str) -> tuple[int, int]:
        stat = os.statvfs(path)
        return stat.f_frsize * stat.f_blocks, stat.f_frsize * stat.f_bavail

    async def away(self, call: Callable[..., T], *args: Any) -> T:
        return await asyncio.get_running_loop().run_in_executor(self._threads, call, *args)

    def begin(self, call: Callable[..., None], *args: Any, over: Callable[[], None]) -> RealFlight:
        flight = RealFlight(self._writers, call, args)
        flight.then(over)
        return flight


class Workshop:
    """Where CPU-bound work runs: spawned children, started when first needed. One does what somebody waits for, others
    toil at what takes long, and give way to everybody.

    Never a thread: one busy Python thread beside the loop cut 60,800 requests/s to 513.
    """

    def __init__(self) -> None:
        self._pools: dict[int, concurrent.futures.ProcessPoolExecutor] = {}
        self._opening = threading.Lock()
        self._is_closed = False

    async def work(self, call: Callable[..., T], *args: Any) -> T:
        return await self._do(1, 0, call, *args)

    async def toil(self, call: Callable[..., T], *args: Any) -> T:
        return await self._do(TOILERS_MAX, TOILERS_NICENESS, call, *args)

    async def _do(self, children: int, niceness: int, call: Callable[..., T], *args: Any) -> T:
        begin = functools.partial(self._begin, children, niceness, call, *args)
        try:
            if niceness or not self._pools:  # to start a child takes milliseconds, and the first one longer
                done: concurrent.futures.Future[T] = await asyncio.get_running_loop().run_in_executor(None, begin)
            else:
                done = begin()
            return await asyncio.wrap_future(done)
        except concurrent.futures.BrokenExecutor as error:
            self._pools.pop(niceness, None)  # or nothing would ever be done again
            raise ChildProcessError(errno.ECHILD, "a child process died at its work") from error

    def _begin(self, children: int, niceness: int, call: Callable[..., T], *args: Any) -> concurrent.futures.Future[T]:
        with self._opening:
            if self._is_closed:
                raise ChildProcessError(errno.ECHILD, "the node has stopped")
            if niceness not in self._pools:
                import multiprocessing  # a node that has just started can do without

                spawn = multiprocessing.get_context("spawn")
                self._pools[niceness] = concurrent.futures.ProcessPoolExecutor(
                    children, mp_context=spawn, initializer=_begin_work, initargs=(niceness,)
                )
            return self._pools[niceness].submit(call, *args)

    def close(self) -> None:
        """Whatever is being done there ends now: files must not be written after the node has let go of them."""
        with self._opening:
            self._is_closed = True
            pools, self._pools = self._pools, {}
        children = [child for pool in pools.values() for child in (pool._processes or {}).values()]
        for pool in pools.values():
            pool.shutdown(wait=False, cancel_futures=True)
        for child in children:
            child.kill()
        for child in children:
            child.join(DEATH_S)


def _begin_work(niceness: int) -> None:
    """In a child: give way to the loop's process if asked to, and end when that process ends, however it does."""
    import multiprocessing
    import multiprocessing.connection

    os.nice(niceness)
    parent = multiprocessing.parent_process()
    if parent is not None:

        def end_with(sentinel: int) -> None:
            multiprocessing.connection.wait([sentinel])
            os._exit(1)

        threading.Thread(target=end_with, args=(parent.sentinel,), daemon=True).start()


class Pace:
    """Lets no more than so many bytes per second pass, by sleeping. For children only."""

    def __init__(self, bytes_per_second: float) -> None:
        self._rate = bytes_per_second
        self._free_at = 0.0

    def spend(self, size: int) -> None:
        if self._rate >= UNLIMITED:
            return
        now = time.monotonic()
        self._free_at = max(self._free_at, now) + size / self._rate
        if self._free_at - now > PACE_STEP_S:
            time.sleep(self._free_at - now)


def wall_clock_ms() -> int:
    return time.time_ns() // 1_000_000


class Works(Protocol):
    """Runs a plain, picklable function on heavy input, somewhere that does not stall the loop."""

    async def work(self, call: Callable[..., T], *args: Any) -> T: ...
    async def toil(self, call: Callable[..., T], *args: Any) -> T:
        """The same for what takes so long that nobody waits for it."""
        ...

    def close(self) -> None: ...


@dataclass
class World:
    """One node's surroundings. The defaults are the real ones."""

    disk: Disk = field(default_factory=RealDisk)
    now_ms: Callable[[], int] = wall_clock_ms
    random: random.Random = field(default_factory=random.SystemRandom)
    workshop: Works = field(default_factory=Workshop)
