"""How a leader is found: asking first, standing, voting, and saying who leads.

Standing has two rounds. In the first (pre-vote, KIP-996) nothing changes but our own role: the others are asked whether
they would vote for us, and they say no while they hear from a leader. Only a majority of yes makes us raise the epoch.
So a voter that was cut off for a while, or that has a short log, disturbs nobody.

A vote belongs to an epoch and is given once. Whoever asks again, because the answer was lost, gets the same one.
"""

from __future__ import annotations

from typing import Any

from ottla.raft import leading, partition
from ottla.raft.connections import NEVER, Send
from ottla.raft.member import NOTHING, Member
from ottla.raft.quorum import NOBODY, Key
from ottla.raft.roles import (
    Ballots,
    Candidate,
    Follower,
    Prospective,
    Resigned,
    Role,
    Unattached,
    grants,
)
from ottla.wire.errors import Error
from ottla.wire.messages.fetch import FetchRequest
from ottla.wire.messages.quorum import (
    METADATA_TOPIC,
    BeginQuorumEpochRequest,
    BeginQuorumEpochResponse,
    EndQuorumEpochRequest,
    EndQuorumEpochResponse,
    LeaderAnswer,
    NodeEndpoint,
    VoteRequest,
    VoteResponse,
)
from ottla.wire.schema import ZERO_UUID

# --- standing


def stand(member: Member, now_ms: float) -> None:
    """Ask whether we should stand; alone we know the answer."""
    role = member.role
    ballots = Ballots(member.voters.ids, member.me.id)
    leader, addresses = member.leader_id, member.leader_addresses
    if isinstance(role, Candidate):
        leader, addresses = NOBODY, ()
    deadline = member.election_deadline(now_ms)
    member.become(Prospective(deadline, ballots, leader, addresses, role.voted))
    _go_on(member, now_ms)


def _go_on(member: Member, now_ms: float) -> None:
    """Take the next step for which there are votes enough."""
    role = member.role
    if isinstance(role, Prospective) and role.ballots.is_won:
        ballots = Ballots(member.voters.ids, member.me.id)
        role = Candidate(member.election_deadline(now_ms), ballots, member.key)
        member.is_blank = False
        member.become(role, member.epoch + 1)
    if isinstance(role, Candidate) and role.ballots.is_won:
        leading.lead(member, role.ballots.granting, now_ms)


def may_stand(member: Member) -> bool:
    return member.may_lead and member.is_sound and not member.is_changing_log


def poll_unattached(member: Member, role: Unattached, now_ms: float) -> float:
    if may_stand(member) and now_ms >= role.deadline_ms:
        stand(member, now_ms)
        return now_ms
    wake = role.deadline_ms if may_stand(member) else NEVER
    return min(wake, ask_anybody(member, now_ms))


def ask_anybody(member: Member, now_ms: float) -> float:
    """A Fetch to whoever may know the leader: its answer says who that is. Whom it reaches may be the leader itself, and takes
    its offset for our word (TRAP-33): so it waits for the disk as any other."""
    if member.is_changing_log or member.is_only_voter or member.journal.synced_end < member.journal.end_offset:
        return NEVER
    places = [place.id for place in member.bootstrap] + [each for each in member.voters.ids if each != member.me.id]
    if not places:
        return NEVER
    if member.connections.any_asked(places, now_ms):
        return now_ms + member.timing.request_timeout_ms
    server = member.any_server(now_ms)
    if server is None:
        return now_ms + member.timing.retry_backoff_ms
    return min(member.send(server, fetch_request(member), now_ms), now_ms + member.timing.request_timeout_ms)


def fetch_request(member: Member) -> FetchRequest:
    timing, watermark = member.timing, member.high_watermark
    return partition.fetch(
        *(member.cluster_id, member.epoch, member.key, member.last, watermark),
        *(timing.fetch_bytes_max, timing.fetch_wait_ms),
    )


def poll_nominee(member: Member, role: Prospective | Candidate, now_ms: float) -> float:
    if now_ms >= role.deadline_ms:
        if isinstance(role, Prospective):
            _give_up(member, role, now_ms)
        elif may_stand(member):
            stand(member, now_ms)
        else:
            member.unattach(member.epoch + 1, now_ms)
        return now_ms
    wake = role.deadline_ms
    for voter_id in () if role.ballots.is_lost else role.ballots.missing:
        wake = min(wake, _ask_for_vote(member, voter_id, isinstance(role, Prospective), now_ms))
    return wake


def _ask_for_vote(member: Member, voter_id: int, is_pre_vote: bool, now_ms: float) -> float:
    voter = member.voters.voter(voter_id)
    if voter is None:
        return NEVER
    request = partition.vote(member.cluster_id, member.epoch, member.key, voter.key, member.last, is_pre_vote)
    return member.send(member.destination(voter.id, voter.addresses), request, now_ms)


def _give_up(member: Member, role: Prospective, now_ms: float) -> None:
    """Go back to where we came from."""
    if role.leader not in (NOBODY, member.me.id) and role.addresses:
        member.follow(member.epoch, role.leader, role.addresses, now_ms)
    else:
        member.unattach(member.epoch, now_ms, role.leader)


def poll_resigned(member: Member, role: Resigned, now_ms: float) -> float:
    if now_ms >= role.deadline_ms:
        member.unattach(member.epoch + 1, now_ms)
        return now_ms
    wake = role.deadline_ms
    request = partition.end_epoch(member.cluster_id, member.epoch, member.me.id, role.successors, member.me.addresses)
    for voter_id in sorted(role.unaware):
        wake = min(wake, member.send(member.destination(voter_id, member.addresses_of(voter_id)), request, now_ms))
    return wake


# --- being asked


def wrong_cluster(member: Member, cluster_id: str | None) -> bool:
    return cluster_id is not None and cluster_id != member.cluster_id


def vote(member: Member, request: VoteRequest, now_ms: float, listener: str) -> VoteResponse:
    """Order of the checks as in Apache Kafka: cluster, shape, epoch, then whether this voter is meant."""
    if wrong_cluster(member, request.cluster_id):
        return VoteResponse(error_code=Error.INCONSISTENT_CLUSTER_ID.code)
    asked = partition.only(request.topics)
    if asked is None:
        return VoteResponse(error_code=Error.INVALID_REQUEST.code)
    error, is_granted = _judge(member, request, asked, now_ms)
    answer = VoteResponse.Topic.Partition(
        error_code=error.code, leader_id=member.leader_id, leader_epoch=member.epoch, vote_granted=is_granted
    )
    topics = [VoteResponse.Topic(topic_name=METADATA_TOPIC, partitions=[answer])]
    return VoteResponse(topics=topics, node_endpoints=where(member, listener))


def _judge(member: Member, request: VoteRequest, asked: Any, now_ms: float) -> tuple[Error, bool]:
    is_illegal = asked.last_offset_epoch > asked.replica_epoch - (not asked.pre_vote)
    if asked.last_offset < 0 or asked.last_offset_epoch < 0 or is_illegal:
        return Error.INVALID_REQUEST, False
    if error := _refusal(member, asked.replica_id, asked.replica_epoch):
        return error, False
    if asked.replica_epoch > member.epoch:
        member.unattach(asked.replica_epoch, now_ms)
    if not _is_meant(member, request.voter_id, asked.voter_directory_id):
        return Error.INVALID_VOTER_KEY, False
    candidate = Key(asked.replica_id, asked.replica_directory_id)
    last = (asked.last_offset_epoch, asked.last_offset)
    is_up_to_date = last >= member.last and (last == NOTHING or not member.is_blank)
    if not member.is_sound or not grants(member.role, candidate, is_up_to_date, asked.pre_vote):
        return Error.NONE, False
    if not asked.pre_vote:
        _give_vote(member, member.role, candidate, now_ms)
    return Error.NONE, True


def _give_vote(member: Member, role: Role, candidate: Key, now_ms: float) -> None:
    """Whom we vote for has at least as good a chance as we: it gets the time of a whole election."""
    if isinstance(role, Unattached | Prospective) and role.voted is None:
        role.voted = candidate
        member.is_blank = False
        role.deadline_ms = member.election_deadline(now_ms) if isinstance(role, Unattached) else role.deadline_ms
        member.promise()


def _refusal(member: Member, sender: int, epoch: int) -> Error | None:
    if epoch < member.epoch:
        return Error.FENCED_LEADER_EPOCH
    return Error.INVALID_REQUEST if sender < 0 else None


def _is_meant(member: Member, voter_id: int, directory: bytes) -> bool:
    """Whoever writes to the voter on a disk that was wiped must not get an answer from its successor."""
    if voter_id < 0:
        return True
    return voter_id == member.me.id and directory in (ZERO_UUID, member.me.directory)


def where(member: Member, listener: str) -> list[NodeEndpoint]:
    """Where the leader named in an answer listens."""
    address = member.leader_address(listener)
    if member.leader_id == NOBODY or address is None:
        return []
    return [NodeEndpoint(node_id=member.leader_id, host=address.host, port=address.port)]


def begin_epoch(
    member: Member, request: BeginQuorumEpochRequest, now_ms: float, listener: str
) -> BeginQuorumEpochResponse:
    """A leader says that it leads."""
    if wrong_cluster(member, request.cluster_id):
        return BeginQuorumEpochResponse(error_code=Error.INCONSISTENT_CLUSTER_ID.code)
    told = partition.only(request.topics)
    if told is None:
        return BeginQuorumEpochResponse(error_code=Error.INVALID_REQUEST.code)
    error = _refusal(member, told.leader_id, told.leader_epoch)
    if error is None:
        member.hear_of(told.leader_epoch, told.leader_id, partition.addresses_of(request.leader_endpoints), now_ms)
        if not _is_meant(member, request.voter_id, told.voter_directory_id):
            error = Error.INVALID_VOTER_KEY
    return BeginQuorumEpochResponse(topics=_heard(member, error), node_endpoints=where(member, listener))


def _heard(member: Member, error: Error | None) -> list[LeaderAnswer]:
    answer = LeaderAnswer.Partition(
        error_code=(error or Error.NONE).code, leader_id=member.leader_id, leader_epoch=member.epoch
    )
    return [LeaderAnswer(topic_name=METADATA_TOPIC, partitions=[answer])]


def end_epoch(member: Member, request: EndQuorumEpochRequest, now_ms: float, listener: str) -> EndQuorumEpochResponse:
    """A leader goes: whoever it prefers stands first, the others wait, each twice as long as the one before."""
    if wrong_cluster(member, request.cluster_id):
        return EndQuorumEpochResponse(error_code=Error.INCONSISTENT_CLUSTER_ID.code)
    told = partition.only(request.topics)
    if told is None:
        return EndQuorumEpochResponse(error_code=Error.INVALID_REQUEST.code)
    error = _refusal(member, told.leader_id, told.leader_epoch)
    if error is None:
        member.hear_of(told.leader_epoch, told.leader_id, partition.addresses_of(request.leader_endpoints), now_ms)
        role = member.role
        if isinstance(role, Follower) and role.leader == told.leader_id:
            role.deadline_ms = now_ms + _turn(member, told)
            role.has_fetched = False  # it has said itself that it leads no more
    return EndQuorumEpochResponse(topics=_heard(member, error), node_endpoints=where(member, listener))


def _turn(member: Member, told: Any) -> float:
    """How long to wait before standing: nothing for the first, up to the largest backoff for the last."""
    candidates = [Key(c.candidate_id, c.candidate_directory_id) for c in told.preferred_candidates]
    named = candidates or [Key(node_id) for node_id in told.preferred_successors]
    mine = [
        at
        for at, key in enumerate(named)
        if key.id == member.me.id and key.directory in (ZERO_UUID, member.me.directory)
    ]
    largest = member.timing.election_backoff_max_ms
    if not mine:
        return largest
    return 0 if mine[0] == 0 else min(largest, largest / 2 ** (len(named) - 1) * 2 ** (mine[0] - 1))


# --- being answered


def vote_answered(member: Member, send: Send, answer: Any, now_ms: float) -> bool:
    role = member.role
    if not isinstance(role, Prospective | Candidate):
        return True
    role.ballots.record(send.destination.id, granted=answer.vote_granted)
    _go_on(member, now_ms)
    if isinstance(role, Prospective) and member.role is role and role.ballots.is_lost:
        _give_up(member, role, now_ms)
    return True


def end_answered(member: Member, send: Send) -> bool:
    if isinstance(member.role, Resigned):
        member.role.unaware.discard(send.destination.id)
    return True
