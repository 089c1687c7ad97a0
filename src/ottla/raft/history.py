"""What the log says about its own quorum: who votes and by which version, from which offset on.

A voter set counts as soon as its record is in the log, committed or not, and is forgotten when the record is cut off
again (KIP-853). What a snapshot says stands at the last offset before its end. Under kraft.version 0 nothing stands in
the log, and the setting `controller.quorum.voters` decides.
"""

from __future__ import annotations

from typing import Generic, TypeVar

from ottla.raft.quorum import VoterSet
from ottla.wire.messages.quorum import KRaftVersionRecord, VotersRecord
from ottla.wire.schema import Message

T = TypeVar("T")


class Course(Generic[T]):
    """A value that changes at offsets."""

    def __init__(self) -> None:
        self.entries: list[tuple[int, T]] = []

    def add(self, offset: int, value: T) -> None:
        self.truncate(offset)
        self.entries.append((offset, value))

    def truncate(self, offset: int) -> None:
        """Nothing at or above `offset` is in the log any more."""
        self.entries = [entry for entry in self.entries if entry[0] < offset]

    def trim(self, offset: int) -> None:
        """Nobody will ask for anything below `offset` any more; what holds there stays."""
        below = [entry for entry in self.entries if entry[0] < offset]
        self.entries = below[-1:] + [entry for entry in self.entries if entry[0] >= offset]

    def at(self, offset: int) -> T | None:
        """What holds after the record at `offset`."""
        held = [value for where, value in self.entries if where <= offset]
        return held[-1] if held else None


class History:
    def __init__(self, fixed: VoterSet | None = None) -> None:
        self._fixed = fixed or VoterSet()
        self._voters: Course[VoterSet] = Course()
        self._versions: Course[int] = Course()

    def note(self, offset: int, message: Message) -> bool:
        """Take note of a control record; whether it says anything about the quorum."""
        if isinstance(message, KRaftVersionRecord):
            self._versions.add(offset, message.kraft_version)
        elif isinstance(message, VotersRecord):
            self._voters.add(offset, VoterSet.of_record(message))
        else:
            return False
        return True

    def truncate(self, offset: int) -> None:
        self._voters.truncate(offset)
        self._versions.truncate(offset)

    def trim(self, offset: int) -> None:
        self._voters.trim(offset)
        self._versions.trim(offset)

    def forget(self) -> None:
        """A snapshot of the leader takes the place of everything."""
        self._voters, self._versions = Course(), Course()

    @property
    def voters(self) -> VoterSet:
        return self._voters.entries[-1][1] if self._voters.entries else self._fixed

    @property
    def voters_at(self) -> int | None:
        """Where the voters in force are written down; None if nowhere."""
        return self._voters.entries[-1][0] if self._voters.entries else None

    @property
    def voters_before(self) -> VoterSet:
        """Those whom the voters in force replaced."""
        return self._voters.entries[-2][1] if len(self._voters.entries) > 1 else VoterSet()

    @property
    def kraft_version(self) -> int:
        return self._versions.entries[-1][1] if self._versions.entries else 0

    def voters_as_of(self, offset: int) -> VoterSet:
        """Those that a snapshot up to and including `offset` has to name."""
        return self._voters.at(offset) or self._fixed
