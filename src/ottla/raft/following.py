"""Following: pull what the leader has, cut off what it does not have, take its snapshot when the log is gone.

The next Fetch goes out only when everything fetched before is synced, because its offset is our word for that. The
leader's answers also carry what is committed.
"""

from __future__ import annotations

from typing import Any

from ottla.raft import elections, leading, partition
from ottla.raft.connections import NEVER, Destination, Send
from ottla.raft.member import Lost, Member, SnapshotPart
from ottla.raft.quorum import SUPPORTED_KRAFT_VERSIONS
from ottla.raft.roles import Follower
from ottla.raft.snapshots import SnapshotId
from ottla.wire.errors import Error
from ottla.wire.messages.quorum import UpdateRaftVoterRequest
from ottla.wire.messages.voters import AddRaftVoterRequest, RemoveRaftVoterRequest
from ottla.wire.schema import Message


def poll_follower(member: Member, role: Follower, now_ms: float) -> float:
    stands = elections.may_stand(member)
    if stands and now_ms >= role.deadline_ms:
        elections.stand(member, now_ms)
        return now_ms
    wake = role.deadline_ms if stands else NEVER
    if member.is_changing_log or member.journal.synced_end < member.journal.end_offset:
        return wake
    leader = member.destination(role.leader, role.addresses)
    if leader is not None:
        member.connections.give_up(leader.id, now_ms)
    if leader is None or member.connections.is_resting(leader.id, now_ms):
        wake = min(wake, elections.ask_anybody(member, now_ms))
    if member.connections.any_asked([place.id for place in member.bootstrap], now_ms):
        return min(wake, now_ms + member.timing.retry_backoff_ms)  # its answer may bring records as well
    if leader is None:
        return wake
    return min(wake, member.send(leader, _request(member, role, leader, now_ms), now_ms))


def _request(member: Member, role: Follower, leader: Destination, now_ms: float) -> Message:
    if now_ms >= role.update_ms and member.connections.free_ms(leader.id, now_ms) <= now_ms:
        role.update_ms = now_ms + member.timing.fetch_timeout_ms
        if _has_to_tell(member, role):
            return _update(member)
        if member.joins and not member.is_voter and member.history.kraft_version >= 1:
            return _join(member)
    if role.snapshot is None:
        return elections.fetch_request(member)
    return partition.fetch_snapshot(
        *(member.cluster_id, member.epoch, member.key, role.snapshot, role.snapshot_bytes),
        member.timing.snapshot_bytes_max,
    )


def _has_to_tell(member: Member, role: Follower) -> bool:
    """Whether we vote, and the leader may not know where we listen or which directory is ours."""
    written = member.voters.voter_of(member.key)
    if written is None or member.history.kraft_version == 0:
        return written is not None and not role.has_told
    return leading.needs_update(written, member.me)


def told(member: Member, error: Error) -> None:
    """The leader has heard it; one that does not want to hear it of fixed voters never will."""
    if isinstance(member.role, Follower) and error in (Error.NONE, Error.UNSUPPORTED_VERSION):
        member.role.has_told = True


def _update(member: Member) -> UpdateRaftVoterRequest:
    kind = UpdateRaftVoterRequest
    low, high = SUPPORTED_KRAFT_VERSIONS
    return kind(
        cluster_id=member.cluster_id,
        current_leader_epoch=member.epoch,
        voter_id=member.me.id,
        voter_directory_id=member.me.directory,
        listeners=[kind.Listener(name=a.name, host=a.host, port=a.port) for a in member.me.addresses],
        kraft_version_feature=kind.KRaftVersionFeature(min_supported_version=low, max_supported_version=high),
    )


def _join(member: Member) -> AddRaftVoterRequest | RemoveRaftVoterRequest:
    """Who wants to vote asks for it, first for the removal of the voter that it was before its disk was wiped (KIP-1186)."""
    kind, me = AddRaftVoterRequest, member.me
    former = member.voters.voter(me.id)
    if former is not None:
        return RemoveRaftVoterRequest(
            cluster_id=member.cluster_id, voter_id=former.id, voter_directory_id=former.directory
        )
    return kind(
        cluster_id=member.cluster_id,
        timeout_ms=int(member.timing.request_timeout_ms),
        voter_id=me.id,
        voter_directory_id=me.directory,
        listeners=[kind.Listener(name=a.name, host=a.host, port=a.port) for a in me.addresses],
        ack_when_committed=False,
    )


def refused(member: Member, send: Send, now_ms: float) -> None:
    """Nobody listens where the leader was: its process is gone, and there is no use in waiting for it.

    If it is only starting again, the others have heard from it, and our pre-vote fails.
    """
    role = member.role
    if isinstance(role, Follower) and send.destination.id == role.leader:
        role.has_fetched = False
        role.deadline_ms = min(role.deadline_ms, now_ms + member.between(*member.timing.refused_ms))


# --- answers


def fetch_answered(member: Member, send: Send, answer: Any, now_ms: float) -> bool:
    role, asked = member.role, partition.only_fetched(getattr(send.request, "topics", ()), "partition")
    if not isinstance(role, Follower) or asked is None:
        return True
    if member.is_changing_log or (asked.last_fetched_epoch, asked.fetch_offset) != member.last:
        return True  # two were asked, the leader among them under another name: the other answer was quicker
    snapshot = SnapshotId(answer.snapshot_id.end_offset, answer.snapshot_id.epoch)
    if answer.diverging_epoch.epoch >= 0:
        _cut(member, answer.diverging_epoch.epoch, answer.diverging_epoch.end_offset)
    elif snapshot.epoch >= 0 or snapshot.end_offset >= 0:
        if min(snapshot) < 0:
            return False
        _want(member, role, snapshot)
    else:
        _take(member, answer)
    _heard(member, role, now_ms)
    return True


def _heard(member: Member, role: Follower, now_ms: float) -> None:
    role.has_fetched = True
    role.deadline_ms = now_ms + member.timing.fetch_timeout_ms


def _cut(member: Member, epoch: int, end_offset: int) -> None:
    """The leader's log parts from ours: drop what it does not have, but never what was committed."""
    known, end = leading.end_of_epoch(member, epoch)
    offset = min(end, end_offset) if known == epoch else end
    if offset < member.high_watermark:
        raise Lost(f"the leader asks to cut the log to {offset}, and up to {member.high_watermark} it was committed")
    member.ready.truncate_to = min(offset, member.journal.end_offset)
    member.is_changing_log = True


def _want(member: Member, role: Follower, snapshot: SnapshotId) -> None:
    latest = member.journal.latest_snapshot
    if latest != snapshot:
        role.snapshot, role.snapshot_bytes = snapshot, 0


def _take(member: Member, answer: Any) -> None:
    if answer.records:
        member.ready.append = bytes(answer.records)
        member.is_changing_log = True
    member.leader_watermark = max(member.leader_watermark, answer.high_watermark)
    learn_watermark(member)


def learn_watermark(member: Member) -> None:
    """What is committed, as far as we have it. Having all of it makes a log good that had lost something."""
    if not isinstance(member.role, Follower) or member.leader_watermark < 0:
        return
    member.rise(min(member.journal.end_offset, member.leader_watermark))
    if member.journal.synced_end >= member.leader_watermark:
        member.is_sound, member.is_blank = True, False


def snapshot_answered(member: Member, send: Send, answer: Any, now_ms: float) -> bool:
    role = member.role
    if not isinstance(role, Follower) or role.snapshot is None:
        return True
    named = SnapshotId(answer.snapshot_id.end_offset, answer.snapshot_id.epoch)
    data = bytes(answer.unaligned_records or b"")
    if named != role.snapshot or answer.position != role.snapshot_bytes:
        role.snapshot = None  # not what we asked for: begin with a Fetch again
        return False
    is_last = role.snapshot_bytes + len(data) >= answer.size
    member.ready.snapshot = SnapshotPart(named, role.snapshot_bytes, data, is_last)
    member.is_changing_log = True
    role.snapshot_bytes += len(data)
    if is_last:
        role.snapshot = None
    _heard(member, role, now_ms)
    return True


def snapshot_refused(member: Member) -> None:
    """The leader has let go of it meanwhile: a Fetch tells of the next."""
    if isinstance(member.role, Follower):
        member.role.snapshot = None
