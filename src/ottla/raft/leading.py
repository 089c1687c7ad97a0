"""Leading: what the first record says, how far the others are, what is therefore committed, and when to give up.

A voter's fetch offset is its word that everything below is synced on its disk. Our own log counts only as far as it is
synced too. What a majority has is committed, once that reaches past the first record of our own epoch.

A leader that does not hear from a majority resigns (check-quorum): it could not commit anything, and others may have
elected a leader that it cannot hear of.
"""

from __future__ import annotations

from typing import NamedTuple

from ottla.raft import partition
from ottla.raft.connections import NEVER
from ottla.raft.member import Member
from ottla.raft.quorum import Key, Voter, VoterSet, leader_change
from ottla.raft.roles import Leader, Progress, Resigned
from ottla.raft.snapshots import SnapshotId
from ottla.wire.errors import Error
from ottla.wire.messages.quorum import KRaftVersionRecord
from ottla.wire.schema import Message

CHECK_QUORUM_FACTOR = 1.5
OBSERVER_SESSION_MS = 300_000
FORMAT_ONLY = SnapshotId(0, 0)


class Verdict(NamedTuple):
    """What a Fetch gets: an error, or where logs part, or a snapshot instead, or records; and what is committed."""

    error: Error = Error.NONE
    diverging: tuple[int, int] | None = None
    snapshot: SnapshotId | None = None
    watermark: int = -1

    @property
    def has_records(self) -> bool:
        return self.error is Error.NONE and self.diverging is None and self.snapshot is None


def lead(member: Member, granting: tuple[int, ...], now_ms: float) -> None:
    """Won. The first record of the epoch names the leader, and with it the voters if only the format has so far."""
    timing = member.timing
    role = Leader(
        leader=member.me.id,
        epoch_start=member.journal.end_offset,
        granting=granting,
        check_ms=now_ms + timing.fetch_timeout_ms * CHECK_QUORUM_FACTOR,
        begin_ms=now_ms,
    )
    member.become(role)
    notes: list[Message] = [leader_change(member.me.id, member.voters, granting)]
    history = member.history
    if history.kraft_version >= 1 and _has_to_name_voters(member):
        # A voter that listens elsewhere now says so. Alone it need not: the record stays as it was formatted, and
        # whoever gets the directory, Apache Kafka included, listens where that says.
        named = member.voters if member.is_only_voter else member.voters.with_voter(member.me)
        notes += [KRaftVersionRecord(kraft_version=history.kraft_version), named.to_record()]
    member.ready.notes += notes


def _has_to_name_voters(member: Member) -> bool:
    own = member.voters.voter_of(member.key)
    is_elsewhere = own is not None and not member.is_only_voter and needs_update(own, member.me)
    return member.history.voters_at == -1 or is_elsewhere


def needs_update(written: Voter, now: Voter) -> bool:
    return written.addresses != now.addresses or written.versions != now.versions


def resign(member: Member, role: Leader, now_ms: float) -> None:
    """Never again in this epoch; the best copy first should take over."""
    by_end = sorted(_others(member), key=lambda voter: (-_progress(member, role, voter.key).end, voter.id))
    member.become(
        Resigned(
            member.election_deadline(now_ms),
            member.me.id,
            {voter.id for voter in by_end},
            tuple(voter.key for voter in by_end),
        )
    )


def _others(member: Member) -> list[Voter]:
    return [voter for voter in member.voters.voters if voter.id != member.me.id]


def poll_leader(member: Member, role: Leader, now_ms: float) -> float:
    if member.is_only_voter:
        role.check_ms = NEVER
    elif role.check_ms == NEVER:  # there is somebody to hear from now, and it has had no time to say anything
        role.check_ms = now_ms + member.timing.fetch_timeout_ms * CHECK_QUORUM_FACTOR
    if now_ms >= role.check_ms:
        resign(member, role, now_ms)
        return now_ms
    if role.change is not None and now_ms >= role.change.deadline_ms:
        role.change.end(Error.REQUEST_TIMED_OUT)
        role.change = None
    if now_ms >= role.begin_ms:
        _say_who_leads(member, role, now_ms)
        role.begin_ms = now_ms + member.timing.fetch_timeout_ms / 2
    others = not member.is_only_voter
    change = NEVER if role.change is None else role.change.deadline_ms
    return min(role.check_ms, role.begin_ms if others else NEVER, change)


def _say_who_leads(member: Member, role: Leader, now_ms: float) -> None:
    """To every voter that has not fetched lately: it may not have heard."""
    quiet_ms = member.timing.fetch_timeout_ms / 2
    for voter in _others(member):
        progress = _progress(member, role, voter.key)
        if progress.fetched_ms is None or now_ms - progress.fetched_ms >= quiet_ms:
            request = partition.begin_epoch(
                member.cluster_id, member.epoch, member.me.id, voter.key, member.me.addresses
            )
            member.send(member.destination(voter.id, voter.addresses), request, now_ms)


# --- others report


def leader_refusal(member: Member, epoch: int) -> Error | None:
    """Why a request that is meant for the leader of `epoch` is not served here."""
    if epoch < member.epoch:
        return Error.FENCED_LEADER_EPOCH
    if epoch > member.epoch:
        return Error.UNKNOWN_LEADER_EPOCH
    return None if member.is_leader else Error.NOT_LEADER_OR_FOLLOWER


def fetch(member: Member, key: Key, epoch: int, offset: int, last_epoch: int, now_ms: float) -> Verdict:
    if offset < 0 or last_epoch < 0 or last_epoch > epoch:
        return Verdict(Error.INVALID_REQUEST)
    role = member.role
    if (error := leader_refusal(member, epoch)) or not isinstance(role, Leader):
        return Verdict(error or Error.NOT_LEADER_OR_FOLLOWER)
    diverging, snapshot = _compare(member, offset, last_epoch)
    if diverging is None and snapshot is None and key.id >= 0 and key.id != member.me.id:
        progress = _progress(member, role, key)
        progress.report(offset, member.journal.end_offset, now_ms)
        hear_from(member, role, key, now_ms)
        advance(member, role)
    return Verdict(Error.NONE, diverging, snapshot, role.watermark)


def _compare(member: Member, offset: int, epoch: int) -> tuple[tuple[int, int] | None, SnapshotId | None]:
    """Where a follower's log parts from ours, or the snapshot it needs first, or neither."""
    journal, latest = member.journal, member.journal.latest_snapshot
    if offset == 0 and latest is not None and latest != FORMAT_ONLY:
        return None, latest
    if journal.start_offset == 0 and offset == 0:
        return None, None
    earliest = journal.earliest_snapshot
    if earliest is not None and (
        offset < journal.start_offset
        or (offset == journal.start_offset and epoch != earliest.epoch)
        or epoch < earliest.epoch
    ):
        return None, latest
    known, end = end_of_epoch(member, epoch)
    return (None, None) if known == epoch and end >= offset else ((known, end), None)


def end_of_epoch(member: Member, epoch: int) -> tuple[int, int]:
    """The largest epoch up to this one in our log, and where it ends."""
    journal = member.journal
    earliest = journal.earliest_snapshot
    if epoch >= journal.last_epoch:
        return journal.last_epoch, journal.end_offset
    known, end = journal.end_offset_for_epoch(epoch)
    if known < 0:
        return journal.last_epoch, journal.end_offset
    if earliest is not None and end == earliest.end_offset and known == epoch:
        return earliest.epoch, earliest.end_offset
    return known, end


def hear_from(member: Member, role: Leader, key: Key, now_ms: float) -> None:
    """A voter that fetches takes us for the leader. When a majority does, the clock of check-quorum starts anew."""
    if (voter := member.voters.voter_of(key)) is None or voter.id == member.me.id:
        return
    role.fetched.add(voter.id)
    needed = member.voters.majority - member.is_voter
    if len(role.fetched & set(member.voters.ids)) >= needed:
        role.fetched.clear()
        role.check_ms = now_ms + member.timing.fetch_timeout_ms * CHECK_QUORUM_FACTOR


def _progress(member: Member, role: Leader, key: Key) -> Progress:
    """Of a voter under the key that the voter set has for it, of anybody else under its own."""
    voter = member.voters.voter_of(key)
    return role.replicas.setdefault(voter.key if voter is not None else key, Progress())


def advance(member: Member, role: Leader) -> None:
    """Our log or another's has grown: what is committed now?"""
    ends = {voter.id: max(0, _progress(member, role, voter.key).end) for voter in _others(member)}
    if member.is_voter:
        ends[member.me.id] = member.journal.synced_end
    role.watermark = member.voters.high_watermark(ends, role.epoch_start, role.watermark)
    member.rise(role.watermark)
    _conclude(member, role, now_committed=role.watermark)


def _conclude(member: Member, role: Leader, now_committed: int) -> None:
    """A change of the voters is done when its record is committed; a leader that is none of them any more goes."""
    change = role.change
    if change is not None and change.offset is not None and change.offset < now_committed:
        change.end(Error.NONE)
        role.change = None
    voters_at = member.history.voters_at
    if not member.is_voter and voters_at is not None and voters_at < now_committed:
        role.check_ms = 0


def observers(member: Member, role: Leader, now_ms: float) -> dict[Key, Progress]:
    """Who pulls without being a voter, and did so lately."""
    voters: VoterSet = member.voters
    role.replicas = {
        key: progress
        for key, progress in role.replicas.items()
        if voters.voter_of(key) is not None
        or (progress.fetched_ms is not None and now_ms - progress.fetched_ms < OBSERVER_SESSION_MS)
    }
    return {key: progress for key, progress in role.replicas.items() if voters.voter_of(key) is None}
