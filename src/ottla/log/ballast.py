"""Room kept back for the day the disk is full.

A full disk refuses more than records: the checkpoint that retention must write before it may delete anything, and the metadata
log, through which an operator would delete a topic. So each data directory carries a file that only takes up room. When the
disk is full it is removed, and from then on the directory takes no records, or they would eat up that room as well; upkeep
and metadata go on. Once there is room for several such files, it is made anew and records are welcome.
"""

from __future__ import annotations

import errno
from contextlib import suppress

from ottla.wire.errors import KafkaError
from ottla.world import Disk

NAME = ".ottla-ballast"
BYTES = 1 << 20
# With less than this much room a write that failed is put down to a full disk; with the other one, records are taken again.
SHORT_BYTES = 2 * BYTES
AMPLE_BYTES = 4 * BYTES
NO_ROOM = (errno.ENOSPC, errno.EDQUOT)


def is_full(error: BaseException | None) -> bool:
    """Whether this error, or the one behind it, says that there is no room on the disk."""
    if isinstance(error, KafkaError):
        error = error.__cause__
    return isinstance(error, OSError) and error.errno in NO_ROOM


class Ballast:
    """The file of one directory. While it is `released`, the directory takes no records."""

    __slots__ = ("_disk", "_path", "directory", "released")

    def __init__(self, disk: Disk, directory: str) -> None:
        self._disk = disk
        self._path = f"{directory}/{NAME}"
        self.directory = directory
        self.released = False

    def take(self) -> bool:
        """Have the file, if there is room for it; whether it is there now. Blocks."""
        try:
            self._fill()
        except OSError as error:
            self.release()
            if not is_full(error):
                raise
            return False
        self.released = False
        return True

    def _fill(self) -> None:
        file = self._disk.open(self._path, create=True)
        try:
            if file.size() != BYTES:
                file.truncate(0)
                file.write_at(0, [bytes(BYTES)])
        finally:
            file.close()

    def release(self) -> None:
        """Give the room back to whoever needs it now."""
        self.released = True
        with suppress(FileNotFoundError):
            self._disk.remove(self._path)

    def has_room(self) -> bool:
        """Whether the disk has room for records; more of it is asked for once there was none, so that nobody flutters."""
        return self._disk.space(self.directory)[1] >= (AMPLE_BYTES if self.released else SHORT_BYTES)
