"""A replica of the metadata log: KRaft, told as a machine that is handed events and says what to do.

**The log.** Records are appended by one leader per *epoch*. An epoch is a number that only rises; who leads it is decided
by a majority of *voters*, each of which gives its vote once. Everybody else *pulls*: a Fetch says up to where a replica
has the log, and which epoch its last record is from; the answer brings records, or says where the two logs part, or
names a snapshot to take first. There is no push: the offset in a voter's next Fetch is its acknowledgement.

**Commitment.** What a majority has synced is committed, the leader's own disk counted only as far as it is synced, and
only once a record of the leader's own epoch is among it. The first record of every epoch is there for that purpose.

**Promises.** Epoch, vote and leader are on disk before anybody hears of them. A replica that led an epoch and starts
again never leads that epoch again. One that had voted for itself asks for votes only in a new epoch: its log may be
shorter now than what it was elected for.

**Roles** are in `roles.py`, with the moves between them. Each role has a function that is called whenever something has
happened or its time is up (POLLS below), and each answer to a question of ours has one (ANSWERS).

**What a crash takes.** Only what was synced is there afterwards. A log that lost more than that, because its checks failed
when it was opened, is not *sound*: the replica neither stands nor votes until it has caught up with a leader. And nothing
that is known to be committed is ever cut off: rather the node ends.

**Time** is handed in, in milliseconds of any clock that only rises. `take_ready` is to be called after every event and at
`wake_ms`; what it returns is to be done in the order of its fields, and the doing to be told: `appended`, `synced`,
`truncated`, `kept`, `installed`, each of which is an event too; and for each request that went out exactly one of
`answered`, `failed`, `refused`.

Ours alone, against Apache Kafka 4.3: a follower that is *refused* a connection by its leader's machine, because nobody
listens there any more, does not wait for its fetch timeout to ask for an election.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import Any

from ottla.raft import elections, following, leading, partition, reconfiguring
from ottla.raft.connections import NEVER, Send
from ottla.raft.history import History
from ottla.raft.leading import Verdict
from ottla.raft.member import NOTHING, Chance, Journal, Lost, Member, Ready, SnapshotPart, Timing
from ottla.raft.quorum import NOBODY, Address, Key, QuorumState, Voter, VoterSet
from ottla.raft.roles import (
    Candidate,
    Change,
    Follower,
    Leader,
    Progress,
    Prospective,
    Resigned,
    Role,
    Unattached,
)
from ottla.wire.errors import Error, error_of
from ottla.wire.messages.cluster import ApiVersionsRequest
from ottla.wire.messages.fetch import FetchRequest, FetchResponse
from ottla.wire.messages.quorum import (
    BeginQuorumEpochRequest,
    BeginQuorumEpochResponse,
    EndQuorumEpochRequest,
    EndQuorumEpochResponse,
    FetchSnapshotRequest,
    FetchSnapshotResponse,
    NodeEndpoint,
    UpdateRaftVoterResponse,
    VoteRequest,
    VoteResponse,
)
from ottla.wire.messages.voters import AddRaftVoterResponse, RemoveRaftVoterResponse
from ottla.wire.schema import Message

__all__ = ["Lost", "Ready", "Replica", "SnapshotPart", "Timing", "Verdict"]

POLLS: dict[type, Callable[[Member, Any, float], float]] = {
    Unattached: elections.poll_unattached,
    Prospective: elections.poll_nominee,
    Candidate: elections.poll_nominee,
    Leader: leading.poll_leader,
    Follower: following.poll_follower,
    Resigned: elections.poll_resigned,
}

# Who takes up what an answer says of the one partition.
ANSWERS: dict[type, Callable[[Member, Send, Any, float], bool]] = {
    VoteResponse: elections.vote_answered,
    BeginQuorumEpochResponse: lambda member, send, answer, now_ms: True,  # who knows it fetches
    EndQuorumEpochResponse: lambda member, send, answer, now_ms: elections.end_answered(member, send),
    FetchResponse: following.fetch_answered,
    FetchSnapshotResponse: following.snapshot_answered,
}


class Replica:
    def __init__(
        self,
        me: Voter,
        cluster_id: str,
        journal: Journal,
        history: History,
        promise: QuorumState,
        rng: Chance,
        now_ms: float,
        timing: Timing | None = None,
        bootstrap: Sequence[Address] = (),
        is_sound: bool = True,
        joins: bool = False,
    ) -> None:
        self.member = Member(me, cluster_id, journal, history, rng, timing or Timing(), bootstrap, is_sound, joins)
        self.wake_ms = NEVER
        self._begin(promise, now_ms)

    def _begin(self, promise: QuorumState, now_ms: float) -> None:
        """Take up what was promised before the start."""
        member = self.member
        member.epoch, member.promised = promise.epoch, promise
        member.is_blank = promise == QuorumState() and member.last == NOTHING and member.history.kraft_version == 0
        voted = None if promise.voted == NOBODY else Key(promise.voted, promise.voted_directory)
        deadline = now_ms if member.is_only_voter else member.election_deadline(now_ms)
        addresses = member.addresses_of(promise.leader)
        if promise.epoch < member.journal.last_epoch:
            member.epoch, member.role = member.journal.last_epoch, Unattached(deadline)
        elif promise.leader == member.me.id and not member.is_only_voter:
            # Any of the others may lead, and the first that hears of it need not wait: who is behind is not elected.
            others = [voter for voter in member.voters.voters if voter.id != member.me.id]
            successors = tuple(voter.key for voter in others)
            member.role = Resigned(deadline, member.me.id, {voter.id for voter in others}, successors)
        elif promise.leader not in (NOBODY, member.me.id) and addresses:
            fetch_ms = now_ms + member.timing.fetch_timeout_ms
            member.role = Follower(fetch_ms, promise.leader, addresses, voted, update_ms=fetch_ms)
        else:
            leader = NOBODY if promise.leader == member.me.id else promise.leader
            # Perhaps all of them start, and nobody need wait for a leader; if there is one, nobody lets us stand.
            soon = now_ms if member.is_only_voter else now_ms + member.between(*member.timing.refused_ms)
            member.role = Unattached(soon, leader, voted)
        member.promise()

    # --- what it is

    @property
    def role(self) -> Role:
        return self.member.role

    @property
    def epoch(self) -> int:
        return self.member.epoch

    @property
    def leader_id(self) -> int:
        return self.member.leader_id

    @property
    def is_leader(self) -> bool:
        return self.member.is_leader

    @property
    def is_voter(self) -> bool:
        return self.member.is_voter

    @property
    def voters(self) -> VoterSet:
        return self.member.voters

    @property
    def history(self) -> History:
        return self.member.history

    @property
    def high_watermark(self) -> int:
        """What this replica knows to be committed. It never falls."""
        return self.member.high_watermark

    # --- what to do

    def take_ready(self, now_ms: float) -> Ready:
        """Everything that is to be done now. Afterwards `wake_ms` says when to ask again if nothing happens."""
        member = self.member
        while True:
            role = member.role
            self.wake_ms = POLLS[type(role)](member, role, now_ms)
            if member.role is role:
                break
        ready, member.ready = member.ready, Ready()
        return ready

    def resign(self, now_ms: float) -> None:
        """We are about to stop: the others should not have to find out."""
        if isinstance(self.member.role, Leader) and not self.member.is_only_voter:
            leading.resign(self.member, self.member.role, now_ms)

    # --- what was done

    def appended(self, notes: Iterable[tuple[int, Message]] = ()) -> None:
        """Records are in the log, of ours or of the leader's; `notes` are the control records among them."""
        for offset, message in notes:
            self.member.history.note(offset, message)
        self.member.is_changing_log = False
        self._log_changed()

    def synced(self) -> None:
        """The journal's synced end has risen."""
        self._log_changed()

    def truncated(self, offset: int) -> None:
        self.member.history.truncate(offset)
        self.member.is_changing_log = False

    def kept(self) -> None:
        """A part of a snapshot is kept, and it was not the last."""
        self.member.is_changing_log = False

    def installed(self, end_offset: int, notes: Iterable[Message]) -> None:
        """A snapshot of the leader's has taken the place of log and history."""
        self.member.history.forget()
        for message in notes:
            self.member.history.note(end_offset - 1, message)
        self.member.is_changing_log = False
        self.member.rise(end_offset)
        self._log_changed()

    def _log_changed(self) -> None:
        if isinstance(self.member.role, Leader):
            leading.advance(self.member, self.member.role)
        else:
            following.learn_watermark(self.member)

    # --- others ask

    def vote(self, request: VoteRequest, now_ms: float, listener: str = "") -> VoteResponse:
        return elections.vote(self.member, request, now_ms, listener)

    def begin_epoch(
        self, request: BeginQuorumEpochRequest, now_ms: float, listener: str = ""
    ) -> BeginQuorumEpochResponse:
        return elections.begin_epoch(self.member, request, now_ms, listener)

    def end_epoch(self, request: EndQuorumEpochRequest, now_ms: float, listener: str = "") -> EndQuorumEpochResponse:
        return elections.end_epoch(self.member, request, now_ms, listener)

    def fetch(self, request: FetchRequest, now_ms: float) -> Verdict:
        """What a Fetch gets. Cluster and partition are to be checked before."""
        asked = partition.only_fetched(request.topics, "partition")
        if asked is None or request.max_wait_ms < 0:
            return Verdict(Error.INVALID_REQUEST)
        replica_id = request.replica_id if request.replica_id >= 0 else request.replica_state.replica_id
        key = Key(replica_id, asked.replica_directory_id)
        offset, epoch = asked.fetch_offset, asked.current_leader_epoch
        return leading.fetch(self.member, key, epoch, offset, asked.last_fetched_epoch, now_ms)

    def snapshot_served(self, request: FetchSnapshotRequest, now_ms: float) -> None:
        """Who copies a snapshot is alive."""
        asked = partition.only(request.topics, "name", "partition")
        if asked is not None and isinstance(self.member.role, Leader):
            key = Key(request.replica_id, asked.replica_directory_id)
            leading.hear_from(self.member, self.member.role, key, now_ms)

    def where_leader_is(self, listener: str = "") -> list[NodeEndpoint]:
        """For answers that name it; nothing if nobody knows."""
        return elections.where(self.member, listener)

    def leader_refusal(self, epoch: int) -> Error | None:
        return leading.leader_refusal(self.member, epoch)

    def is_another_cluster(self, cluster_id: str | None) -> bool:
        return elections.wrong_cluster(self.member, cluster_id)

    def add_voter(self, new: Voter, now_ms: float, until_committed: bool = True) -> Change:
        return reconfiguring.add(self.member, new, now_ms, until_committed)

    def remove_voter(self, key: Key, now_ms: float) -> Change:
        return reconfiguring.remove(self.member, key, now_ms)

    def update_voter(self, now: Voter, now_ms: float) -> None:
        reconfiguring.update(self.member, now, now_ms)

    def check_upgrade(self, level: int) -> None:
        reconfiguring.named_voters(self.member, level)

    def upgrade(self, level: int, now_ms: float) -> Change:
        return reconfiguring.upgrade(self.member, level, now_ms)

    def progress(self, now_ms: float) -> tuple[dict[Key, Progress], dict[Key, Progress]]:
        """How far voters and observers are, as the leader knows it."""
        member, role = self.member, self.member.role
        if not isinstance(role, Leader):
            return {}, {}
        watching = leading.observers(member, role, now_ms)
        return {voter.key: role.replicas.get(voter.key, Progress()) for voter in member.voters.voters}, watching

    # --- others answer

    def answered(self, number: int, response: Message, now_ms: float) -> None:
        """An answer has come. What it says about epoch and leader counts first."""
        member = self.member
        send = member.connections.take(number)
        if send is None:
            return
        if not self._take_up(send, response, now_ms):
            member.connections.rest(send.destination.id, now_ms)

    def _take_up(self, send: Send, response: Any, now_ms: float) -> bool:
        member = self.member
        if isinstance(send.request, ApiVersionsRequest):
            return reconfiguring.added(member, send.destination.id, response, now_ms)
        if isinstance(response, UpdateRaftVoterResponse):
            leader = response.current_leader
            error = error_of(response.error_code)
            if self._news(error, leader.leader_id, leader.leader_epoch, (), now_ms):
                following.told(member, error)
            return True
        if isinstance(response, AddRaftVoterResponse | RemoveRaftVoterResponse):
            return True  # whether it worked, the log will tell; if not, it is asked again
        if response.error_code:
            return False
        answer = _only(response)
        if answer is None:
            return False
        error = error_of(answer.error_code)
        leader_id, epoch = _leader_in(answer)
        if not self._news(error, leader_id, epoch, _addresses(response, leader_id), now_ms):
            return not isinstance(member.role, Unattached)  # whoever knows no leader either is left alone for a moment
        if error is Error.SNAPSHOT_NOT_FOUND or error is Error.POSITION_OUT_OF_RANGE:
            following.snapshot_refused(member)
        if error is not Error.NONE:
            return error is Error.INVALID_VOTER_KEY
        return ANSWERS[type(response)](member, send, answer, now_ms)

    def _news(self, error: Error, leader: int, epoch: int, addresses: tuple[Address, ...], now_ms: float) -> bool:
        """What an answer says about who leads; whether the rest of it still matters."""
        member = self.member
        if epoch < member.epoch or error is Error.UNKNOWN_LEADER_EPOCH:
            return False
        stale = epoch > member.epoch or error in (Error.FENCED_LEADER_EPOCH, Error.NOT_LEADER_OR_FOLLOWER)
        member.hear_of(epoch, leader, addresses, now_ms)
        return not stale

    def failed(self, number: int, now_ms: float) -> None:
        """No answer came: the connection was lost, or it took too long."""
        self._unanswered(number, now_ms)

    def refused(self, number: int, now_ms: float) -> None:
        """No answer will come: nobody listens there."""
        send = self._unanswered(number, now_ms)
        if send is not None:
            following.refused(self.member, send, now_ms)

    def _unanswered(self, number: int, now_ms: float) -> Send | None:
        send = self.member.connections.take(number)
        if send is not None:
            if isinstance(send.request, ApiVersionsRequest):
                reconfiguring.added(self.member, send.destination.id, None, now_ms)
            self.member.connections.rest(send.destination.id, now_ms)
        return send


def _only(response: Any) -> Any | None:
    if isinstance(response, FetchResponse):
        return partition.only_fetched(response.responses, "partition_index")
    if isinstance(response, FetchSnapshotResponse):
        return partition.only(response.topics, "name", "index")
    return partition.only(response.topics)


def _leader_in(answer: Any) -> tuple[int, int]:
    named = getattr(answer, "current_leader", answer)
    return named.leader_id, named.leader_epoch


def _addresses(response: Any, leader_id: int) -> tuple[Address, ...]:
    """Where an answer says that the leader is."""
    found = (each for each in response.node_endpoints if each.node_id == leader_id)
    return tuple(Address("", each.host, each.port) for each in found)
