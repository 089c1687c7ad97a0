"""Several replicas with pretended disks and a pretended network, and the rules that no schedule may break.

A peer keeps its promise and the synced part of its log through a crash, and nothing else. Messages wait in `wire` until
somebody delivers, doubles or drops them. What is checked after every step is in `Rules`.
"""

from __future__ import annotations

import json
import random
from dataclasses import dataclass, field, replace
from typing import Any

from ottla.raft import partition
from ottla.raft.connections import Send
from ottla.raft.history import History
from ottla.raft.leading import Verdict
from ottla.raft.quorum import Address, Key, QuorumState, Voter, VoterSet
from ottla.raft.replica import Ready, Replica, Timing
from ottla.raft.roles import Candidate, Follower, Leader, Prospective, Resigned, Unattached
from ottla.raft.snapshots import SnapshotId
from ottla.wire.errors import Error, KafkaError
from ottla.wire.messages.cluster import ApiVersionsRequest, ApiVersionsResponse
from ottla.wire.messages.fetch import FetchRequest, FetchResponse
from ottla.wire.messages.quorum import (
    METADATA_TOPIC,
    METADATA_TOPIC_ID,
    BeginQuorumEpochRequest,
    EndQuorumEpochRequest,
    FetchSnapshotRequest,
    FetchSnapshotResponse,
    KRaftVersionRecord,
    UpdateRaftVoterRequest,
    UpdateRaftVoterResponse,
    VoteRequest,
)
from ottla.wire.schema import Message

CLUSTER = "cluster"
EMPTY_MS = 50.0  # how long a Fetch that finds nothing waits
NAMES = {
    Unattached: "unattached",
    Prospective: "prospective",
    Candidate: "candidate",
    Leader: "leader",
    Follower: "follower",
    Resigned: "resigned",
}


def directory(node_id: int, disk: int = 0) -> bytes:
    return bytes([0x40, disk, *([0] * 12), 0x80, node_id])


def voter(node_id: int, disk: int = 0) -> Voter:
    return Voter(node_id, directory(node_id, disk), (Address("CONTROLLER", f"host{node_id}", 9093),))


@dataclass
class Disk:
    """What a peer's log holds. `synced` entries survive."""

    entries: list[tuple[int, Any]] = field(default_factory=list)
    synced: int = 0
    checked: int = 0  # up to where the rules have looked at it, and at what of it is committed
    judged: int = 0
    start_offset: int = 0
    snapshots: list[SnapshotId] = field(default_factory=list)
    snapshot_notes: dict[SnapshotId, list[Message]] = field(default_factory=dict)

    @property
    def end_offset(self) -> int:
        return self.start_offset + len(self.entries)

    @property
    def synced_end(self) -> int:
        return self.synced

    @property
    def last_epoch(self) -> int:
        if self.entries:
            return self.entries[-1][0]
        return self.snapshots[-1].epoch if self.snapshots else 0

    @property
    def earliest_snapshot(self) -> SnapshotId | None:
        return self.snapshots[0] if self.snapshots else None

    @property
    def latest_snapshot(self) -> SnapshotId | None:
        return self.snapshots[-1] if self.snapshots else None

    def end_offset_for_epoch(self, epoch: int) -> tuple[int, int]:
        epochs = [entry[0] for entry in self.entries]
        if not epochs or epoch > epochs[-1]:
            return -1, -1
        upto = [at for at, each in enumerate(epochs) if each <= epoch]
        if not upto:
            return epoch, self.start_offset
        return epochs[upto[-1]], self.start_offset + upto[-1] + 1

    def at(self, offset: int) -> tuple[int, Any]:
        return self.entries[offset - self.start_offset]

    def truncate(self, offset: int) -> None:
        del self.entries[offset - self.start_offset :]
        self.synced, self.checked = min(self.synced, offset), min(self.checked, offset)
        self.judged = min(self.judged, offset)

    def crash(self) -> None:
        self.truncate(self.synced)


class Rules:
    """What must hold whatever happens."""

    def __init__(self) -> None:
        self.leaders: dict[int, int] = {}
        self.votes: dict[tuple[int, int], int] = {}
        self.written: dict[tuple[int, int], Any] = {}
        self.committed: dict[int, tuple[int, Any]] = {}
        self._looked_at = (0, 0)

    def check(self, peers: dict[int, Peer]) -> None:
        for peer in peers.values():
            if peer.replica is not None:
                self._check_peer(peer, peer.replica)

    def _check_peer(self, peer: Peer, replica: Replica) -> None:
        disk = peer.disk
        if isinstance(replica.role, Leader):
            assert self.leaders.setdefault(replica.epoch, peer.id) == peer.id, f"two leaders in epoch {replica.epoch}"
            mark, start = replica.role.watermark, replica.role.epoch_start
            assert mark < 0 or mark > start, f"{peer.id} counts {mark} as committed, and its epoch begins at {start}"
            newest = max(self.leaders)  # an older one does not know yet that it is none any more
            if replica.epoch == newest and (peer.id, newest) != self._looked_at:
                self._looked_at = (peer.id, newest)
                self._check_leader(disk)
        for offset in range(max(disk.start_offset, disk.checked), disk.end_offset):
            epoch, value = disk.at(offset)
            known = self.written.setdefault((offset, epoch), value)
            assert known is value, f"two records at offset {offset} of epoch {epoch}"
        disk.checked = disk.end_offset
        assert disk.end_offset >= replica.high_watermark, f"{peer.id} lost what was committed"
        for offset in range(max(disk.start_offset, disk.judged), replica.high_watermark):
            known_entry = self.committed.setdefault(offset, disk.at(offset))
            assert known_entry == disk.at(offset), f"{peer.id} has something else committed at {offset}"
        disk.judged = max(disk.judged, replica.high_watermark)

    def _check_leader(self, disk: Disk) -> None:
        for offset, entry in self.committed.items():
            if offset >= disk.start_offset:
                assert offset < disk.end_offset, f"the leader lacks offset {offset}, which was committed"
                assert disk.at(offset) == entry, f"the leader has something else at {offset}"

    def check_vote(self, voter_id: int, epoch: int, candidate: int) -> None:
        given = self.votes.setdefault((voter_id, epoch), candidate)
        assert given == candidate, f"{voter_id} voted for {given} and {candidate} in epoch {epoch}"


@dataclass
class Flight:
    """A request or an answer on its way."""

    source: int
    target: int
    send: Send
    answer: Message | None = None
    due_ms: float = 0


class Peer:
    kind: type[Replica] = Replica

    def __init__(self, node_id: int, house: Assembly, disk_number: int = 0) -> None:
        self.id = node_id
        self.house = house
        self.me = voter(node_id, disk_number)
        self.disk = Disk()
        self.promise = QuorumState()
        self.is_sound = True
        self.replica: Replica | None = None
        self.parts = b""
        self.auto_sync = True

    def start(self) -> None:
        house = self.house
        history = History(house.fixed)
        for snapshot in self.disk.snapshots:
            for message in self.disk.snapshot_notes.get(snapshot, []):
                history.note(snapshot.end_offset - 1, message)
        for offset in range(self.disk.start_offset, self.disk.end_offset):
            value = self.disk.at(offset)[1]
            if isinstance(value, Message):
                history.note(offset, value)
        bootstrap = [Address("", f"host{each}", 9093) for each in house.bootstrap]
        self.replica = self.kind(
            *(self.me, CLUSTER, self.disk, history, self.promise, house.rng, house.now_ms),
            *(house.timing, bootstrap, self.is_sound),
        )
        self.step()

    def crash(self) -> None:
        self.replica = None
        self.disk.crash()

    def step(self) -> None:
        """Do what there is to do, in the order in which it must be done."""
        replica = self.replica
        if replica is None:
            return
        was = type(replica.role), replica.epoch
        ready = replica.take_ready(self.house.now_ms)
        if (type(replica.role), replica.epoch) != was or self.house.shown.get(self.id) != self._shown(replica):
            self.house.tell(self.id, self._shown(replica))
        self._do(replica, ready)
        for send in ready.sends:
            self.house.request(self.id, send)
        if ready.changes_log:
            self.step()

    def _shown(self, replica: Replica) -> str:
        of = f" of {replica.leader_id}" if isinstance(replica.role, Follower) else ""
        return f"{NAMES[type(replica.role)]}{of} in epoch {replica.epoch}"

    def _do(self, replica: Replica, ready: Ready) -> None:
        if ready.promise is not None:
            self.promise = ready.promise
        if ready.truncate_to is not None:
            self.house.tell(self.id, f"cuts its log to {ready.truncate_to}")
            self.disk.truncate(ready.truncate_to)
            replica.truncated(ready.truncate_to)
        if ready.append:
            first = self.disk.end_offset
            values = [(epoch, self.house.values[number]) for epoch, number in json.loads(ready.append)]
            self.disk.entries += values
            replica.appended([(first + at, v) for at, (_, v) in enumerate(values) if isinstance(v, Message)])
        if ready.notes:
            self.append(list(ready.notes))
        if ready.snapshot is not None:
            self._keep(replica, ready)
        if self.auto_sync:
            self.sync()

    def _keep(self, replica: Replica, ready: Ready) -> None:
        part = ready.snapshot
        assert part is not None
        self.parts = self.parts[: part.position] + part.data
        if not part.is_last:
            replica.kept()
            return
        notes = self.house.values[int(self.parts)]
        self.disk.entries, self.disk.start_offset = [], part.snapshot.end_offset
        self.disk.synced = part.snapshot.end_offset
        self.disk.snapshots = [part.snapshot]
        self.disk.snapshot_notes = {part.snapshot: notes}
        self.house.tell(self.id, f"took the snapshot at {part.snapshot.end_offset}")
        replica.installed(part.snapshot.end_offset, notes)

    def append(self, values: list[Any]) -> None:
        """As a leader."""
        replica, first = self.replica, self.disk.end_offset
        assert replica is not None
        self.house.remember(values)
        self.disk.entries += [(replica.epoch, value) for value in values]
        replica.appended([(first + at, value) for at, value in enumerate(values) if isinstance(value, Message)])
        if self.auto_sync:
            self.sync()

    def sync(self) -> None:
        self.disk.synced = self.disk.end_offset
        if self.replica is not None:
            self.replica.synced()

    def snapshot(self) -> None:
        """Write one of what is committed, and let the log before it go."""
        replica = self.replica
        assert replica is not None
        end = min(replica.high_watermark, self.disk.synced)
        if end <= self.disk.start_offset:
            return
        name = SnapshotId(end, self.disk.at(end - 1)[0])
        history = replica.history
        notes: list[Message] = []
        if history.kraft_version:
            notes = [
                KRaftVersionRecord(kraft_version=history.kraft_version),
                history.voters_as_of(end - 1).to_record(),
            ]
        self.house.remember([notes])
        self.disk.snapshots = [name]
        self.disk.snapshot_notes = {name: notes}
        del self.disk.entries[: end - self.disk.start_offset]
        self.disk.start_offset = end

    # --- being asked

    def serve(self, request: Any) -> Message:
        replica, now_ms = self.replica, self.house.now_ms
        assert replica is not None
        if isinstance(request, VoteRequest):
            answer = replica.vote(request, now_ms)
            asked, given = request.topics[0].partitions[0], answer.topics[0].partitions[0]
            if given.vote_granted and not asked.pre_vote:
                self.house.rules.check_vote(self.id, asked.replica_epoch, asked.replica_id)
            return answer
        if isinstance(request, BeginQuorumEpochRequest):
            return replica.begin_epoch(request, now_ms)
        if isinstance(request, EndQuorumEpochRequest):
            return replica.end_epoch(request, now_ms)
        if isinstance(request, FetchRequest):
            return self._serve_fetch(replica, request)
        if isinstance(request, FetchSnapshotRequest):
            return self._serve_snapshot(replica, request)
        if isinstance(request, ApiVersionsRequest):
            feature = ApiVersionsResponse.SupportedFeature(name="kraft.version", min_version=0, max_version=1)
            return ApiVersionsResponse(supported_features=[feature])
        assert isinstance(request, UpdateRaftVoterRequest)
        return self._serve_update(replica, request)

    def _serve_update(self, replica: Replica, request: UpdateRaftVoterRequest) -> UpdateRaftVoterResponse:
        feature, error = request.kraft_version_feature, replica.leader_refusal(request.current_leader_epoch)
        now = Voter(
            request.voter_id,
            request.voter_directory_id,
            partition.addresses_of(request.listeners),
            (feature.min_supported_version, feature.max_supported_version),
        )
        try:
            if error is None:
                replica.update_voter(now, self.house.now_ms)
        except KafkaError as refusal:
            error = refusal.error
        leader = UpdateRaftVoterResponse.CurrentLeader(leader_id=replica.leader_id, leader_epoch=replica.epoch)
        return UpdateRaftVoterResponse(error_code=(error or Error.NONE).code, current_leader=leader)

    def _serve_fetch(self, replica: Replica, request: FetchRequest) -> FetchResponse:
        verdict: Verdict = replica.fetch(request, self.house.now_ms)
        kind = FetchResponse.Topic.Partition
        answer = kind(error_code=verdict.error.code, high_watermark=verdict.watermark, aborted_transactions=None)
        answer.current_leader = kind.LeaderIdAndEpoch(leader_id=replica.leader_id, leader_epoch=replica.epoch)
        answer.records = None
        if verdict.diverging is not None:
            answer.diverging_epoch = kind.EpochEndOffset(epoch=verdict.diverging[0], end_offset=verdict.diverging[1])
        elif verdict.snapshot is not None:
            answer.snapshot_id = kind.SnapshotId(end_offset=verdict.snapshot.end_offset, epoch=verdict.snapshot.epoch)
        elif verdict.has_records:
            first = request.topics[0].partitions[0].fetch_offset
            some = self.disk.entries[first - self.disk.start_offset :][:3]
            answer.records = self.house.encoded(some) if some else None
        topic = FetchResponse.Topic(topic=METADATA_TOPIC, topic_id=METADATA_TOPIC_ID, partitions=[answer])
        endpoint = FetchResponse.NodeEndpoint
        where = [endpoint(node_id=e.node_id, host=e.host, port=e.port) for e in replica.where_leader_is()]
        return FetchResponse(responses=[topic], node_endpoints=where)

    def _serve_snapshot(self, replica: Replica, request: FetchSnapshotRequest) -> FetchSnapshotResponse:
        kind = FetchSnapshotResponse.Topic.Partition
        asked = request.topics[0].partitions[0]
        answer = kind(snapshot_id=asked.snapshot_id, unaligned_records=b"")
        answer.current_leader = kind.LeaderIdAndEpoch(leader_id=replica.leader_id, leader_epoch=replica.epoch)
        name = SnapshotId(asked.snapshot_id.end_offset, asked.snapshot_id.epoch)
        error = replica.leader_refusal(asked.current_leader_epoch)
        if error is None and name not in self.disk.snapshots:
            answer.error_code = 98
        elif error is not None:
            answer.error_code = error.code
        else:
            data = str(self.house.number_of(self.disk.snapshot_notes[name])).encode()
            answer.size, answer.position = len(data), asked.position
            answer.unaligned_records = data[asked.position :][:2]
            replica.snapshot_served(request, self.house.now_ms)
        topic = FetchSnapshotResponse.Topic(name=METADATA_TOPIC, partitions=[answer])
        return FetchSnapshotResponse(topics=[topic])


class Assembly:
    """The peers, the wire between them, the clock."""

    peer_kind: type[Peer] = Peer

    def __init__(
        self,
        ids: list[int],
        seed: int = 0,
        observers: tuple[int, ...] = (),
        dynamic: bool = True,
        timing: Timing | None = None,
    ) -> None:
        self.rng = random.Random(seed)
        self.timing = timing or Timing()
        self.now_ms = 1000.0
        self.rules = Rules()
        self.wire: list[Flight] = []
        self.cut: set[tuple[int, int]] = set()
        self.trace: list[str] = []
        self.shown: dict[int, str] = {}
        self.values: list[Any] = []
        voters = VoterSet(tuple(voter(each) for each in ids))
        self.fixed = VoterSet() if dynamic else VoterSet(tuple(replace_directory(v) for v in voters.voters))
        self.bootstrap = tuple(ids)
        self.peers = {each: self.peer_kind(each, self) for each in (*ids, *observers)}
        if dynamic:
            self.format(voters)

    def format(self, voters: VoterSet) -> None:
        """As the storage tool leaves a directory: the first voters stand in the snapshot at offset 0."""
        notes: list[Message] = [KRaftVersionRecord(kraft_version=1), voters.to_record()]
        first = SnapshotId(0, 0)
        for each in voters.ids:
            disk = self.peers[each].disk
            disk.snapshots, disk.snapshot_notes = [first], {first: notes}

    # --- values on the wire

    def remember(self, values: list[Any]) -> None:
        self.values += values

    def number_of(self, value: Any) -> int:
        return next(at for at, each in enumerate(self.values) if each is value)

    def encoded(self, entries: list[tuple[int, Any]]) -> bytes:
        return json.dumps([[epoch, self.number_of(value)] for epoch, value in entries]).encode()

    # --- running

    def start(self, *ids: int) -> None:
        for each in ids or tuple(self.peers):
            self.peers[each].start()
        self.rules.check(self.peers)

    def tell(self, node_id: int, what: str) -> None:
        if self.shown.get(node_id) != what:
            self.shown[node_id] = what
            self.trace.append(f"{node_id} {what}")

    def request(self, source: int, send: Send) -> None:
        target = int(send.destination.host.removeprefix("host"))
        self.wire.append(Flight(source, target, send, None, self.now_ms + 1))

    def deliver(self, at: int = 0, again: bool = False) -> None:
        flight = self.wire[at] if again else self.wire.pop(at)
        if flight.answer is not None:
            self._deliver_answer(flight)
        elif (flight.source, flight.target) in self.cut:
            self.fail(flight)
        else:
            self._deliver_request(flight)
        self.rules.check(self.peers)

    def _deliver_answer(self, flight: Flight) -> None:
        peer = self.peers[flight.source]
        if (flight.target, flight.source) in self.cut:
            self.fail(flight)
        elif peer.replica is not None and flight.answer is not None:
            peer.replica.answered(flight.send.number, flight.answer, self.now_ms)
            peer.step()

    def _deliver_request(self, flight: Flight) -> None:
        peer = self.peers.get(flight.target)
        if peer is None or peer.replica is None:
            source = self.peers[flight.source].replica
            if source is not None:
                source.refused(flight.send.number, self.now_ms)
                self.peers[flight.source].step()
            return
        answer = peer.serve(flight.send.request)
        peer.step()
        is_empty = isinstance(answer, FetchResponse) and _is_empty(answer)
        due_ms = self.now_ms + (EMPTY_MS if is_empty else 1)
        self.wire.append(replace(flight, answer=answer, due_ms=due_ms))

    def fail(self, flight: Flight) -> None:
        peer = self.peers[flight.source]
        if peer.replica is not None:
            peer.replica.failed(flight.send.number, self.now_ms)
            peer.step()

    def lose(self, at: int) -> None:
        self.fail(self.wire.pop(at))
        self.rules.check(self.peers)

    def next_ms(self) -> float:
        wakes = [peer.replica.wake_ms for peer in self.peers.values() if peer.replica is not None]
        return min([*wakes, *(flight.due_ms for flight in self.wire)], default=float("inf"))

    def tick(self) -> None:
        """Let the next thing happen that is due."""
        self.now_ms = max(self.now_ms, self.next_ms())
        due = [at for at, flight in enumerate(self.wire) if flight.due_ms <= self.now_ms]
        if due:
            self.deliver(due[0])
        for peer in self.peers.values():
            if peer.replica is not None and peer.replica.wake_ms <= self.now_ms:
                peer.step()
        self.rules.check(self.peers)

    def run(self, milliseconds: float) -> None:
        end = self.now_ms + milliseconds
        while self.next_ms() <= end:
            self.tick()
        self.now_ms = end

    def run_until(self, done: Any, limit_ms: float = 60_000) -> float:
        """How long it took."""
        began = self.now_ms
        while not done():
            assert self.now_ms - began < limit_ms, f"still not: {self.trace[-20:]}"
            assert self.next_ms() < float("inf"), "nothing will ever happen again"
            self.tick()
        return self.now_ms - began

    # --- what tests ask

    @property
    def leader(self) -> Peer | None:
        leading = [p for p in self.peers.values() if p.replica is not None and isinstance(p.replica.role, Leader)]
        return max(leading, key=lambda peer: peer.replica.epoch if peer.replica else 0, default=None)

    def replica(self, node_id: int) -> Replica:
        found = self.peers[node_id].replica
        assert found is not None
        return found

    def elect(self) -> Peer:
        self.run_until(lambda: self.leader is not None)
        leader = self.leader
        assert leader is not None
        return leader

    def propose(self, *values: Any) -> int:
        """Append at the leader; the offset behind it."""
        leader = self.leader
        assert leader is not None and leader.replica is not None
        leader.append(list(values))
        leader.step()
        self.rules.check(self.peers)
        return leader.disk.end_offset

    def everybody_has(self, end: int, *ids: int) -> bool:
        chosen = ids or tuple(each for each, peer in self.peers.items() if peer.replica is not None)
        return all(self.replica(each).high_watermark >= end for each in chosen)

    def isolate(self, node_id: int) -> None:
        self.cut |= {(node_id, each) for each in self.peers} | {(each, node_id) for each in self.peers}

    def heal(self) -> None:
        self.cut.clear()


def replace_directory(one: Voter) -> Voter:
    """Under kraft.version 0 nobody writes down the directories of voters."""
    return one._replace(directory=bytes(16))


def _is_empty(answer: FetchResponse) -> bool:
    part = answer.responses[0].partitions[0]
    told = part.error_code or part.diverging_epoch.epoch >= 0 or part.snapshot_id.epoch >= 0
    return not told and not part.records


def key(node_id: int, disk: int = 0) -> Key:
    return Key(node_id, directory(node_id, disk))
