"""Leader epochs: with which offset each leadership began in this log.

Two logs of one partition agree up to the point where their epochs part, so a follower (or a consumer that kept a position)
asks "where did epoch E end?" and cuts there. The list rises in both epoch and offset. A new leader notes its epoch with
its log end before its first append; truncation at either end drops or moves entries, also when no record is cut.

The file is replaced whole and synced whenever the recovery point is about to pass a new epoch, not at every new leadership:
above the recovery point a start finds the epochs in the batches themselves, and ten thousand idle partitions cost nothing
when they get a leader. Entries removed by truncation reach the file with the next write: an entry too many is dropped again
at load, an entry too few would not be.
"""

from __future__ import annotations

from bisect import bisect_right

from ottla.log.checkpoints import LEADER_EPOCHS, BadCheckpoint, read_epochs, write_epochs
from ottla.world import Disk

UNDEFINED = -1


class EpochCache:
    __slots__ = ("_disk", "_path", "entries", "latest", "unwritten")

    def __init__(self, disk: Disk, directory: str) -> None:
        self._disk = disk
        self.follow(directory)
        self.entries: list[tuple[int, int]] = []
        self.latest = UNDEFINED
        self.unwritten = False

    def follow(self, directory: str) -> None:
        """The file is in this directory."""
        self._path = f"{directory}/{LEADER_EPOCHS}"

    def load(self) -> bool:
        """Whether the file could be read; if not, the batches must tell."""
        try:
            found = read_epochs(self._disk, self._path)
        except BadCheckpoint:
            return False
        for epoch, offset in found:
            self._add(epoch, offset)
        return True

    def assign(self, epoch: int, offset: int) -> None:
        """Epoch begins at offset. Entries that contradict it go."""
        if self._add(epoch, offset):
            self.unwritten = True

    def note(self, epoch: int, offset: int) -> None:
        """The same for recovery, which finds epochs in batches: only newer ones count."""
        if epoch > self.latest:
            self.assign(epoch, offset)

    def _add(self, epoch: int, offset: int) -> bool:
        if epoch < 0 or offset < 0:
            return False
        if self.entries and epoch == self.latest and offset >= self.entries[-1][1]:
            return False
        while self.entries and (self.entries[-1][0] >= epoch or self.entries[-1][1] >= offset):
            self.entries.pop()
        self.entries.append((epoch, offset))
        self.latest = epoch
        return True

    def write(self) -> None:
        """Blocks on the disk. May run off the loop: an entry that comes meanwhile is written the next time."""
        self.unwritten = False
        try:
            write_epochs(self._disk, self._path, list(self.entries))
        except OSError:
            self.unwritten = True
            raise

    def truncate_end(self, offset: int) -> None:
        """Nothing at or above `offset` exists any more."""
        while self.entries and self.entries[-1][1] >= offset:
            self.entries.pop()
            self.unwritten = True
        self.latest = self.entries[-1][0] if self.entries else UNDEFINED

    def truncate_start(self, offset: int) -> None:
        """Nothing below `offset` exists any more: the epoch it lies in now begins there."""
        below = bisect_right(self.entries, offset, key=lambda entry: entry[1])
        if below == 0 or (below == 1 and self.entries[0][1] == offset):
            return
        self.entries[:below] = [(self.entries[below - 1][0], offset)]
        self.unwritten = True

    def clear(self) -> None:
        self.unwritten = self.unwritten or bool(self.entries)
        self.entries = []
        self.latest = UNDEFINED

    def forget(self) -> None:
        """All of them, in the file too. If that cannot be written, nothing is forgotten."""
        entries, latest = self.entries, self.latest
        self.clear()
        if self.unwritten:
            try:
                self.write()
            except OSError:
                self.entries, self.latest = entries, latest
                raise

    def end_offset_for(self, epoch: int, log_end: int) -> tuple[int, int]:
        """(epoch, its end offset) as OffsetForLeaderEpoch answers; (-1, -1) where nothing can be said."""
        if epoch == UNDEFINED or epoch > self.latest:
            return UNDEFINED, UNDEFINED
        if epoch == self.latest:
            return epoch, log_end
        later = bisect_right(self.entries, epoch, key=lambda entry: entry[0])
        end = self.entries[later][1]
        return (self.entries[later - 1][0] if later else epoch), end

    def epoch_for_offset(self, offset: int) -> int:
        """The leader epoch in which `offset` was written, or -1."""
        at = bisect_right(self.entries, offset, key=lambda entry: entry[1])
        return self.entries[at - 1][0] if at else UNDEFINED
