"""What tasks have made waits here for the driver: small amounts in memory, large ones in files.

A task hands its batches to the driver as a *parcel*: a list of what is in it, and the bytes. Up to a limit the bytes
travel with Spark's own commit message. Beyond it they go into a file, and the message only names that: the driver reads
it batch by batch while it sends, so its memory does not grow with the amount.

    <spool>/<sink>/<write>/<number>.batches

The driver makes `<write>`, under a name that nobody else has, before any task runs. So a task that finds it knows that the
driver and it see the same disk; one that does not is on another machine, and must be given a place that both can reach.
When the driver has committed, which only the rightful one can, it removes `<sink>` with all in it: also what dead drivers
have left. When it gives up, it removes its own `<write>`. What nobody comes back for is swept away by the next driver that
spools to the same directory, when it is a day old; in a store far away that is left to the store's own rules.
"""

from __future__ import annotations

import contextlib
import os
import tempfile
import uuid
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple
from urllib.parse import quote

from pyarrow import fs

from ottla.pipeline.rows import Made
from ottla.wire.errors import Error, KafkaError
from ottla.wire.records import crc_ok, look
from ottla.world import wall_clock_ms

# A task that cannot spool where the driver looks holds at most this.
MEMORY_BYTES_MAX = 128 << 20
LEFT_OVER_SECONDS = 24 * 3600.0
# Names of files have at most 255 bytes.
NAME_BYTES_MAX = 200


class SpoolError(RuntimeError):
    """There is no place for so much. The message says which option gives one."""


class Entry(NamedTuple):
    topic: str
    partition: int
    size: int


class Parcel(NamedTuple):
    """Batches that follow one another, in `data` or in a file."""

    entries: tuple[Entry, ...]
    data: bytes
    path: str | None = None

    @property
    def size(self) -> int:
        return sum(entry.size for entry in self.entries)


class Spool(NamedTuple):
    """A place for what one write has too much of. `root` is a directory, or a URI that pyarrow knows (file, s3, gs, hdfs)."""

    root: str
    sink: str
    write: str

    @classmethod
    def prepare(cls, root: str | None, sink: str) -> Spool:
        """On the driver, before tasks run."""
        given = root if root is None or "://" in root else os.path.abspath(root)
        spool = cls(given or _own_directory(), _file_name(sink), uuid.uuid4().hex)
        try:
            place, path = spool._open()
            if isinstance(place, fs.LocalFileSystem):  # stores have no directories, and each question costs
                place.create_dir(f"{path}/{spool.write}", recursive=True)
                spool._sweep()
        except (OSError, ValueError) as error:
            raise SpoolError(f"spoolPath {root!r} cannot be used: {error}") from error
        return spool

    def reachable(self) -> bool:
        """Whether the driver sees what is written here. Of a store that is far away, that is taken for granted."""
        place, path = self._open()
        if not isinstance(place, fs.LocalFileSystem):
            return True
        return bool(place.get_file_info(f"{path}/{self.write}").type == fs.FileType.Directory)

    def new_file(self) -> tuple[str, fs.NativeFile]:
        place, path = self._open()
        name = f"{path}/{self.write}/{uuid.uuid4().hex}.batches"
        return name, place.open_output_stream(name)

    def read(self, parcel: Parcel) -> Iterator[tuple[Entry, bytearray]]:
        """What was packed, batch by batch. A batch that is not what the task wrote is an error."""
        if parcel.path is None:
            position = 0
            for entry in parcel.entries:
                yield entry, bytearray(memoryview(parcel.data)[position : position + entry.size])
                position += entry.size
            return
        place, _ = self._open()
        with place.open_input_stream(parcel.path) as file:
            for entry in parcel.entries:
                batch = bytearray(entry.size)
                if (
                    file.readinto(batch) != entry.size
                    or look(batch).size != entry.size
                    or not crc_ok(batch, 0, entry.size)
                ):
                    raise KafkaError(Error.CORRUPT_MESSAGE, f"{parcel.path} is not as the task wrote it")
                yield entry, batch

    def remove(self, path: str) -> None:
        place, _ = self._open()
        with contextlib.suppress(OSError):
            place.delete_file(path)

    def clear(self) -> None:
        """On the driver, when it has committed: everything of this sink goes."""
        self._delete("")

    def give_up(self) -> None:
        """On the driver, when it has not: what this write has made goes."""
        self._delete(f"/{self.write}")

    def _delete(self, below: str) -> None:
        place, path = self._open()
        with contextlib.suppress(OSError):
            place.delete_dir(path + below)

    def _sweep(self) -> None:
        """Remove sinks that nobody has touched for a day."""
        place, path = self._open()
        for found in place.get_file_info(fs.FileSelector(path.rpartition("/")[0], allow_not_found=True)):
            if found.type == fs.FileType.Directory and found.mtime is not None:
                age_s = wall_clock_ms() / 1000 - found.mtime.timestamp()
                if age_s > LEFT_OVER_SECONDS and found.base_name != self.sink:
                    with contextlib.suppress(OSError):  # another has swept it
                        place.delete_dir(found.path)

    def _open(self) -> tuple[fs.FileSystem, str]:
        place, path = fs.FileSystem.from_uri(self.root)
        return place, f"{path.rstrip('/')}/{self.sink}"


class Filling:
    """What a task makes, on its way into a parcel. Use it in a `with` block: what is not sealed leaves no file."""

    def __init__(self, spool: Spool, above_bytes: int) -> None:
        self.spool, self.above_bytes = spool, above_bytes
        self._entries: list[Entry] = []
        self._held: list[bytearray] = []
        self._held_bytes = 0
        self._path: str | None = None
        self._file: fs.NativeFile | None = None
        self._sealed = False

    def __enter__(self) -> Filling:
        return self

    def __exit__(self, *_: object) -> None:
        if self._file is not None:
            self._file.close()
        if self._path is not None and not self._sealed:
            self.spool.remove(self._path)

    def add(self, made: Made) -> None:
        self._entries.append(Entry(made.topic, made.partition, len(made.data)))
        if self._file is not None:
            self._file.write(made.data)
            return
        self._held.append(made.data)
        self._held_bytes += len(made.data)
        if self._held_bytes > self.above_bytes:
            self._move()

    def seal(self) -> Parcel:
        if self._file is not None:
            self._file.close()
        self._sealed = True
        return Parcel(tuple(self._entries), b"".join(self._held), self._path)

    def _move(self) -> None:
        """Out of memory, into a file."""
        if not self.spool.reachable():
            if self._held_bytes > MEMORY_BYTES_MAX:
                raise SpoolError(
                    f"a task has more than {MEMORY_BYTES_MAX} bytes for the driver, and {self.spool.root!r} is not a "
                    "directory that both see: set the option spoolPath to one (a mounted directory, or s3://...), or make "
                    "tasks smaller (more partitions, or maxOffsetsPerTrigger at the source)"
                )
            return
        self._path, self._file = self.spool.new_file()
        for data in self._held:
            self._file.write(data)
        self._held.clear()


def _own_directory() -> str:
    """In the machine's directory for temporary files, which others may write to as well: one that only we can read."""
    path = Path(tempfile.gettempdir()) / f"ottla-spool-{os.getuid()}"
    path.mkdir(mode=0o700, exist_ok=True)
    if path.is_symlink() or path.stat().st_uid != os.getuid():
        raise SpoolError(f"{path} belongs to somebody else: set the option spoolPath to a directory of your own")
    return str(path)


def _file_name(sink: str) -> str:
    name = quote(sink, safe="").replace(".", "%2E")
    return (
        name if len(name) <= NAME_BYTES_MAX else f"{name[:NAME_BYTES_MAX]}-{uuid.uuid5(uuid.NAMESPACE_OID, sink).hex}"
    )
