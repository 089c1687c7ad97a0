"""What a replica can be, and what it remembers only while it is that.

    Unattached    knows of no leader it could ask; may have voted. A voter stands when its time is up
    Prospective   asks whether standing would make sense, without raising the epoch (pre-vote, KIP-996)
    Candidate     has raised the epoch and voted for itself
    Leader        appends; the others pull from it
    Follower      pulls from a leader
    Resigned      led this epoch and never will again: it has said so, or was started anew

Who is not among the voters only observes: it is Unattached or Follower and never stands.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field

from ottla.raft.connections import NEVER
from ottla.raft.quorum import NOBODY, Address, Key, Voter
from ottla.raft.snapshots import SnapshotId
from ottla.wire.errors import Error
from ottla.wire.schema import ZERO_UUID

UNKNOWN = -1


class Ballots:
    """The votes of one election."""

    def __init__(self, voter_ids: Iterable[int], me: int) -> None:
        self._given: dict[int, bool | None] = dict.fromkeys(voter_ids)
        self._majority = len(self._given) // 2 + 1
        self.record(me, granted=True)

    def record(self, voter_id: int, *, granted: bool) -> None:
        if voter_id in self._given:
            self._given[voter_id] = granted

    @property
    def granting(self) -> tuple[int, ...]:
        return tuple(voter_id for voter_id, given in self._given.items() if given)

    @property
    def missing(self) -> tuple[int, ...]:
        return tuple(voter_id for voter_id, given in self._given.items() if given is None)

    @property
    def is_won(self) -> bool:
        return len(self.granting) >= self._majority

    @property
    def is_lost(self) -> bool:
        return len(self.granting) + len(self.missing) < self._majority


@dataclass(slots=True)
class Unattached:
    deadline_ms: float
    leader: int = NOBODY
    voted: Key | None = None


@dataclass(slots=True)
class Prospective:
    deadline_ms: float
    ballots: Ballots
    leader: int = NOBODY
    addresses: tuple[Address, ...] = ()
    voted: Key | None = None


@dataclass(slots=True)
class Candidate:
    deadline_ms: float
    ballots: Ballots
    voted: Key


@dataclass(slots=True)
class Follower:
    deadline_ms: float
    leader: int
    addresses: tuple[Address, ...]
    voted: Key | None = None
    # Whether this leader has answered: then no other needs our pre-vote.
    has_fetched: bool = False
    # When to tell the leader, once more, where we listen; and whether it knows, where no log does (kraft.version 0).
    update_ms: float = 0
    has_told: bool = False
    # The snapshot being copied, and how much of it we have.
    snapshot: SnapshotId | None = None
    snapshot_bytes: int = 0


@dataclass(slots=True)
class Resigned:
    deadline_ms: float
    leader: int
    # Who has not heard of it yet, and who should follow, the best first.
    unaware: set[int] = field(default_factory=set)
    successors: tuple[Key, ...] = ()
    voted: None = None


@dataclass(slots=True)
class Progress:
    """How far one other replica is, as its fetches tell."""

    end: int = UNKNOWN
    fetched_ms: float | None = None
    caught_up_ms: float | None = None
    leader_end: int = UNKNOWN

    def report(self, end: int, leader_end: int, now_ms: float) -> None:
        if end >= leader_end:
            self.caught_up_ms = now_ms
        elif 0 < self.leader_end <= end:  # by now it has all there was when it last asked
            self.caught_up_ms = self.fetched_ms
        self.end, self.leader_end, self.fetched_ms = end, leader_end, now_ms


@dataclass(slots=True)
class Change:
    """A change of the voters under way; `error` is None until it has an outcome."""

    deadline_ms: float
    key: Key
    addresses: tuple[Address, ...] = ()
    # An added voter is asked first what it can speak; the record is at `offset` once it is in the log.
    is_asked: bool = False
    offset: int | None = None
    is_written_enough: bool = False
    error: Error | None = None
    message: str | None = None

    def end(self, error: Error, message: str | None = None) -> None:
        self.error, self.message = error, message


@dataclass(slots=True)
class Leader:
    leader: int
    epoch_start: int
    granting: tuple[int, ...]
    check_ms: float
    begin_ms: float
    # Unknown until a record of this epoch is committed.
    watermark: int = UNKNOWN
    replicas: dict[Key, Progress] = field(default_factory=dict)
    fetched: set[int] = field(default_factory=set)
    change: Change | None = None
    # What fixed voters have told of themselves, by their ids: so they can be named when the log is to name them.
    told: dict[int, Voter] = field(default_factory=dict)
    voted: None = None
    deadline_ms: float = NEVER


Role = Unattached | Prospective | Candidate | Leader | Follower | Resigned

# From what to what. Anything else is a mistake in this program.
MOVES: dict[type, frozenset[type]] = {
    Unattached: frozenset({Unattached, Prospective, Follower}),
    Prospective: frozenset({Unattached, Candidate, Follower}),
    Candidate: frozenset({Unattached, Prospective, Leader, Follower}),
    Leader: frozenset({Unattached, Follower, Resigned}),
    Follower: frozenset({Unattached, Prospective, Follower}),
    Resigned: frozenset({Unattached, Follower}),
}


def grants(role: Role, candidate: Key, is_up_to_date: bool, is_pre_vote: bool) -> bool:
    """Whether a candidate of this replica's own epoch gets its vote, or its word that a vote makes sense."""
    if isinstance(role, Leader):
        return False
    if is_pre_vote:
        return is_up_to_date and not (isinstance(role, Follower) and role.has_fetched)
    if not isinstance(role, Unattached | Prospective):
        return False
    if role.voted is not None:
        return role.voted.id == candidate.id and role.voted.directory in (ZERO_UUID, candidate.directory)
    return role.leader == NOBODY and is_up_to_date
