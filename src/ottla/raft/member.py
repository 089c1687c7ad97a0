"""One replica's standing in the quorum: what it has promised, what it is, what is to be done next.

This is the ground that elections, leading, following and changes of the voters stand on. They are functions of a
Member; none of them touches disk or network. What has to be done is collected in a `Ready`, and the order of its fields
is the order in which it must be done: the promise is on disk before anybody hears of it.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Protocol

from ottla.raft.connections import Connections, Destination, Send
from ottla.raft.history import History
from ottla.raft.quorum import NOBODY, Address, Key, QuorumState, Voter, VoterSet
from ottla.raft.roles import MOVES, Follower, Leader, Prospective, Role, Unattached
from ottla.raft.snapshots import SnapshotId
from ottla.wire.errors import Error
from ottla.wire.schema import ZERO_UUID, Message

# The last epoch and the end of an empty log.
NOTHING = (0, 0)


class Chance(Protocol):
    """Where jitter comes from; it is handed in."""

    def random(self) -> float: ...


class Journal(Protocol):
    """What a replica may know about its log at any time. It changes only by what is done with a Ready."""

    @property
    def start_offset(self) -> int: ...
    @property
    def end_offset(self) -> int: ...
    @property
    def synced_end(self) -> int:
        """Below this a crash takes nothing away."""
        ...

    @property
    def last_epoch(self) -> int:
        """That of the last record, or of the snapshot that the log begins with; 0 if there is neither."""
        ...

    @property
    def earliest_snapshot(self) -> SnapshotId | None: ...
    @property
    def latest_snapshot(self) -> SnapshotId | None: ...

    def end_offset_for_epoch(self, epoch: int) -> tuple[int, int]:
        """The largest epoch up to `epoch` that the log has, and where it ends; (-1, -1) beyond its last."""
        ...


class Lost(Exception):
    """A leader wants us to forget what was committed. One of us holds a log that it should not have: nobody may go on."""


@dataclass(frozen=True, slots=True)
class Timing:
    """Apache's defaults. The last pair is ours: how soon a pre-vote follows when nobody listens where the leader was."""

    election_timeout_ms: float = 1000
    election_backoff_max_ms: float = 1000
    fetch_timeout_ms: float = 2000
    request_timeout_ms: float = 2000
    retry_backoff_ms: float = 20
    fetch_wait_ms: int = 500
    fetch_bytes_max: int = 8 << 20
    snapshot_bytes_max: int = 1 << 20
    refused_ms: tuple[float, float] = (25, 150)


@dataclass(frozen=True, slots=True)
class SnapshotPart:
    """Bytes of the leader's snapshot to be kept at `position`; with the last ones it takes the place of the log."""

    snapshot: SnapshotId
    position: int
    data: bytes
    is_last: bool


@dataclass(slots=True)
class Ready:
    promise: QuorumState | None = None
    truncate_to: int | None = None
    append: bytes = b""
    notes: list[Message] = field(default_factory=list)
    snapshot: SnapshotPart | None = None
    sends: list[Send] = field(default_factory=list)

    @property
    def changes_log(self) -> bool:
        return bool(self.truncate_to is not None or self.append or self.notes or self.snapshot)


class Member:
    def __init__(
        self,
        me: Voter,
        cluster_id: str,
        journal: Journal,
        history: History,
        rng: Chance,
        timing: Timing,
        bootstrap: Sequence[Address] = (),
        is_sound: bool = True,
        joins: bool = False,
    ) -> None:
        self.me = me
        # Whether it asks to become a voter when it is none (KIP-1186).
        self.joins = joins
        self.cluster_id = cluster_id
        self.journal = journal
        self.history = history
        self.timing = timing
        self.connections = Connections(timing.request_timeout_ms, timing.retry_backoff_ms)
        self.bootstrap = [Destination(-2 - at, each.host, each.port) for at, each in enumerate(bootstrap)]
        self.epoch = 0
        self.role: Role = Unattached(0)
        self.promised = QuorumState()
        self.ready = Ready()
        # What we know to be committed; what a snapshot holds always was.
        snapshot = journal.latest_snapshot
        self.high_watermark = 0 if snapshot is None else snapshot.end_offset
        # As the leader of this epoch said last.
        self.leader_watermark = -1
        # A log that lost something it once had synced must neither stand nor vote until it has caught up again.
        self.is_sound = is_sound
        # A voter without directory id (kraft.version 0) that remembers nothing is either new or was wiped. It votes only
        # for one that has nothing either, until it has caught up or has taken part in an election.
        self.is_blank = False
        # A part of a Ready changes the log; until that is done there is nothing to ask for.
        self.is_changing_log = False
        self._rng = rng

    # --- who we are

    @property
    def key(self) -> Key:
        return self.me.key

    @property
    def voters(self) -> VoterSet:
        return self.history.voters

    @property
    def is_voter(self) -> bool:
        return self.voters.voter_of(self.key) is not None

    @property
    def may_lead(self) -> bool:
        """A voter may, and so may one whose removal is not committed yet: perhaps only its log has that record."""
        at = self.history.voters_at
        is_leaving = at is not None and at >= self.high_watermark
        return self.is_voter or (is_leaving and self.history.voters_before.voter_of(self.key) is not None)

    @property
    def is_only_voter(self) -> bool:
        """Whether nobody else has a say. A log that has lost something may have lost who came since it was alone."""
        return self.is_sound and self.is_voter and len(self.voters.voters) == 1

    @property
    def leader_id(self) -> int:
        return NOBODY if not hasattr(self.role, "leader") else self.role.leader

    @property
    def is_leader(self) -> bool:
        return isinstance(self.role, Leader)

    @property
    def last(self) -> tuple[int, int]:
        """The epoch of the last record and the offset behind it: logs are compared by this."""
        return self.journal.last_epoch, self.journal.end_offset

    # --- chance

    def election_deadline(self, now_ms: float) -> float:
        return now_ms + self.timing.election_timeout_ms * (1 + self._rng.random())

    def between(self, low: float, high: float) -> float:
        return low + (high - low) * self._rng.random()

    # --- moving

    def become(self, role: Role, epoch: int | None = None) -> None:
        """Change role, and promise what has to outlive us."""
        if type(role) not in MOVES[type(self.role)]:
            raise AssertionError(f"{type(self.role).__name__} cannot become {type(role).__name__}")
        if isinstance(self.role, Leader) and self.role.change is not None:
            self.role.change.end(Error.NOT_LEADER_OR_FOLLOWER)
        if epoch is not None and epoch != self.epoch:
            self.epoch, self.leader_watermark = epoch, -1
        self.role = role
        self.connections.reset()
        self.promise()

    def promise(self) -> None:
        """What of our state must be on disk before anybody hears of it."""
        voted = self.role.voted or Key(NOBODY, ZERO_UUID)
        state = QuorumState(self.epoch, self.leader_id, voted.id, voted.directory)
        if state != self.promised:
            self.promised = self.ready.promise = state

    def unattach(self, epoch: int, now_ms: float, leader: int = NOBODY) -> None:
        """Nobody to follow. In the same epoch a vote stays given; what was left of a wait is left."""
        role = self.role
        is_beaten = isinstance(role, Prospective) and role.ballots.is_lost
        keeps_time = not isinstance(role, Leader | Follower) and not is_beaten and role.deadline_ms > now_ms
        deadline = role.deadline_ms if keeps_time else self.election_deadline(now_ms)
        voted = role.voted if epoch == self.epoch else None
        self.become(Unattached(deadline, leader, voted), epoch)

    def follow(self, epoch: int, leader: int, addresses: tuple[Address, ...], now_ms: float) -> None:
        if leader == self.me.id:
            raise AssertionError("a replica cannot follow itself")
        timing, voted = self.timing, self.role.voted if epoch == self.epoch else None
        self.become(
            Follower(
                now_ms + timing.fetch_timeout_ms,
                leader,
                addresses,
                voted,
                update_ms=now_ms + timing.fetch_timeout_ms,
            ),
            epoch,
        )

    def hear_of(self, epoch: int, leader: int, addresses: tuple[Address, ...], now_ms: float) -> None:
        """A message names an epoch and perhaps its leader: move if that is news."""
        addresses = addresses or self.addresses_of(leader)
        if epoch == self.epoch and leader == self.me.id and not self.is_leader:
            return  # we did lead it, before we resigned
        if epoch > self.epoch:
            if leader != NOBODY and leader != self.me.id and addresses:
                self.follow(epoch, leader, addresses, now_ms)
            else:
                self.unattach(epoch, now_ms, leader if leader != self.me.id else NOBODY)
        elif epoch == self.epoch and leader != NOBODY and self._is_news(leader, addresses):
            self.follow(epoch, leader, addresses, now_ms)

    def _is_news(self, leader: int, addresses: tuple[Address, ...]) -> bool:
        if not addresses or isinstance(self.role, Leader):
            return False
        if isinstance(self.role, Follower):
            return self.role.leader == leader and len(addresses) > len(self.role.addresses)
        return self.leader_id == NOBODY or (isinstance(self.role, Unattached) and self.leader_id == leader)

    def rise(self, watermark: int) -> None:
        self.high_watermark = max(self.high_watermark, watermark)

    # --- where others are

    def addresses_of(self, node_id: int) -> tuple[Address, ...]:
        if node_id == self.me.id:
            return self.me.addresses
        voter = self.voters.voter(node_id)
        return () if voter is None else voter.addresses

    @property
    def leader_addresses(self) -> tuple[Address, ...]:
        if isinstance(self.role, Follower | Prospective):
            return self.role.addresses
        return self.addresses_of(self.leader_id)

    def leader_address(self, listener: str = "") -> Address | None:
        """Under the name of the listener on which somebody asked, if the leader has it."""
        return self.choose(self.leader_addresses, listener)

    def choose(self, addresses: Sequence[Address], listener: str = "") -> Address | None:
        """The address that belongs to our own first listener, unless another name is wanted; else any."""
        wanted = listener or (self.me.addresses[0].name if self.me.addresses else "")
        return next((each for each in addresses if each.name == wanted), addresses[0] if addresses else None)

    def destination(self, node_id: int, addresses: Sequence[Address]) -> Destination | None:
        address = self.choose(addresses)
        return None if address is None else Destination(node_id, address.host, address.port)

    # --- asking

    def send(self, destination: Destination | None, request: Message, now_ms: float) -> float:
        """Ask if that node is free. When to look again."""
        if destination is None:
            return now_ms + self.timing.retry_backoff_ms
        free_ms = self.connections.free_ms(destination.id, now_ms)
        if free_ms > now_ms:
            return free_ms
        self.ready.sends.append(self.connections.ask(destination, request, now_ms))
        return now_ms + self.timing.request_timeout_ms

    def any_server(self, now_ms: float) -> Destination | None:
        """Somebody who may know the leader: one that is free, chosen by chance."""
        others = [
            place
            for voter in self.voters.voters
            if voter.id != self.me.id and (place := self.destination(voter.id, voter.addresses)) is not None
        ]
        free = [place for place in self.bootstrap or others if self.connections.free_ms(place.id, now_ms) <= now_ms]
        return free[int(self.between(0, len(free)))] if free else None
