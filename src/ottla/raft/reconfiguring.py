"""Voters that come, go or move (KIP-853): one change at a time, and each is a record in the log.

A set of voters counts from the moment its record is in the log, and is agreed on by its own majority. Two sets that
differ by one voter have a voter in common in any two majorities; so a change waits until the one before is committed,
and until the leader has committed anything at all in its epoch.

Fixed voters (kraft.version 0) are named by the settings of each node. They become such that can change by two records, one
with the new version and one that names the same voters with their directories, which they have told the leader.
"""

from __future__ import annotations

from ottla.raft.connections import Destination
from ottla.raft.leading import needs_update
from ottla.raft.member import Member
from ottla.raft.quorum import KRAFT_VERSION, Key, Voter, VoterSet
from ottla.raft.roles import Change, Leader
from ottla.wire.errors import Error, KafkaError, error_of
from ottla.wire.ids import uuid_text
from ottla.wire.messages.cluster import ApiVersionsRequest, ApiVersionsResponse
from ottla.wire.messages.quorum import KRaftVersionRecord
from ottla.wire.schema import ZERO_UUID

CAUGHT_UP_WITHIN_MS = 3_600_000
SOFTWARE = "ottla"


def spelled(key: Key) -> str:
    return f"ReplicaKey(id={key.id}, directoryId={uuid_text(key.directory)})"


def spelled_all(voters: VoterSet) -> str:
    return f"[{', '.join(spelled(voter.key) for voter in voters.voters)}]"


def _leading(member: Member, verb: str, now_ms: float) -> Leader:
    """The checks that every change has to pass, in the order of Apache Kafka."""
    role = member.role
    if not isinstance(role, Leader):
        raise KafkaError(Error.NOT_LEADER_OR_FOLLOWER)
    if role.change is not None and now_ms < role.change.deadline_ms:
        why = "Request timed out waiting for leader to handle previous voter change request"
        raise KafkaError(Error.REQUEST_TIMED_OUT, why)
    if role.watermark < 0:
        why = "Request timed out waiting for leader to establish HWM and fence previous voter changes"
        raise KafkaError(Error.REQUEST_TIMED_OUT, why)
    if (version := member.history.kraft_version) < 1:
        why = f"Cluster doesn't support {verb} voter because the {KRAFT_VERSION} feature is {version}"
        raise KafkaError(Error.UNSUPPORTED_VERSION, why)
    at = member.history.voters_at
    if at is None or at >= role.watermark:
        why = (
            f"Request timed out waiting for voters to commit the latest voter change at {at} with HWM {role.watermark}"
        )
        raise KafkaError(Error.REQUEST_TIMED_OUT, why)
    return role


def add(member: Member, new: Voter, now_ms: float, until_committed: bool = True) -> Change:
    """Ask the new voter first what it can speak; `added` goes on when it has answered."""
    if new.id < 0 or new.directory == ZERO_UUID:
        if not isinstance(member.role, Leader):
            raise KafkaError(Error.NOT_LEADER_OR_FOLLOWER)
        raise KafkaError(Error.INVALID_REQUEST, "Add voter request didn't include a valid voter")
    role = _leading(member, "adding", now_ms)
    if new.id in member.voters.ids:
        why = f"The voter id for {spelled(new.key)} is already part of the set of voters {spelled_all(member.voters)}."
        raise KafkaError(Error.DUPLICATE_VOTER, why)
    place = member.destination(new.id, new.addresses)
    if place is None or member.connections.free_ms(place.id, now_ms) > now_ms:
        raise KafkaError(Error.REQUEST_TIMED_OUT, f"New voter {spelled(new.key)} is not ready to receive requests")
    change = Change(now_ms + member.timing.request_timeout_ms, new.key, new.addresses, is_asked=True)
    change.is_written_enough = not until_committed
    role.change = change
    _ask_versions(member, place, now_ms)
    return change


def _ask_versions(member: Member, place: Destination, now_ms: float) -> None:
    request = ApiVersionsRequest(client_software_name=SOFTWARE, client_software_version="1")
    member.send(place, request, now_ms)


def added(member: Member, node_id: int, response: ApiVersionsResponse | None, now_ms: float) -> bool:
    """What the new voter can speak is known, or that it does not answer."""
    role = member.role
    change = role.change if isinstance(role, Leader) else None
    if change is None or not change.is_asked or change.key.id != node_id or not isinstance(role, Leader):
        return True
    change.is_asked = False
    error = Error.NETWORK_EXCEPTION if response is None else error_of(response.error_code)
    if response is None or error is not Error.NONE:
        why = f"Aborted add voter operation for since API_VERSIONS returned an error {error.name}"
        return _abandon(role, change, Error.REQUEST_TIMED_OUT, why)
    spoken = ((f.min_version, f.max_version) for f in response.supported_features if f.name == KRAFT_VERSION)
    versions = next(spoken, (0, 0))
    level = member.history.kraft_version
    if not versions[0] <= level <= versions[1]:
        why = (
            f"Aborted add voter operation for {spelled(change.key)} since the {KRAFT_VERSION} range "
            f"(min: {versions[0]}, max: {versions[1]} doesn't support the finalized version {level}"
        )
        return _abandon(role, change, Error.INVALID_REQUEST, why)
    if not _is_caught_up(role, change.key, now_ms):
        why = f"Aborted add voter operation for {spelled(change.key)} since it is lagging behind"
        return _abandon(role, change, Error.REQUEST_TIMED_OUT, why)
    _write(member, change, member.voters.with_voter(Voter(*change.key, change.addresses, versions)))
    return True


def _abandon(role: Leader, change: Change, error: Error, why: str) -> bool:
    change.end(error, why)
    role.change = None
    return error is not Error.REQUEST_TIMED_OUT


def _is_caught_up(role: Leader, key: Key, now_ms: float) -> bool:
    progress = role.replicas.get(key)
    if progress is None or progress.caught_up_ms is None or progress.fetched_ms is None:
        return False
    return progress.fetched_ms > now_ms - CAUGHT_UP_WITHIN_MS


def _write(member: Member, change: Change, voters: VoterSet) -> None:
    """The record goes to the end of the log at once; nothing else is appended in between."""
    member.ready.notes.append(voters.to_record())
    change.offset = member.journal.end_offset
    if change.is_written_enough:
        change.error = Error.NONE


def remove(member: Member, key: Key, now_ms: float) -> Change:
    if key.id < 0 or key.directory == ZERO_UUID:
        if not isinstance(member.role, Leader):
            raise KafkaError(Error.NOT_LEADER_OR_FOLLOWER)
        raise KafkaError(Error.INVALID_REQUEST, "Remove voter request didn't include a valid voter")
    role = _leading(member, "removing", now_ms)
    rest = member.voters.without(key)
    if rest is None:
        why = f"Cannot remove voter {spelled(key)} from the set of voters {spelled_all(member.voters)}"
        raise KafkaError(Error.VOTER_NOT_FOUND, why)
    role.change = Change(now_ms + member.timing.request_timeout_ms, key)
    _write(member, role.change, rest)
    return role.change


def update(member: Member, now: Voter, now_ms: float) -> None:
    """A voter listens elsewhere. Nobody waits for the commit. Of fixed voters it is only remembered, until `upgrade`."""
    if isinstance(member.role, Leader) and member.history.kraft_version == 0:
        if now.id not in member.voters.ids:
            raise KafkaError(Error.VOTER_NOT_FOUND)
        member.role.told[now.id] = now
        return
    _leading(member, "updating", now_ms)
    low, high = now.versions
    if not low <= member.history.kraft_version <= high:
        raise KafkaError(Error.INVALID_REQUEST)
    written = member.voters.voter_of(now.key)
    if written is None:
        raise KafkaError(Error.VOTER_NOT_FOUND)
    if needs_update(written, now):
        member.ready.notes.append(member.voters.with_voter(now).to_record())


def named_voters(member: Member, level: int) -> VoterSet:
    """The fixed voters with all that a log has to say of them. INVALID_UPDATE_VERSION while they have not told everything."""
    role = member.role
    if not isinstance(role, Leader):
        raise KafkaError(Error.NOT_CONTROLLER)
    told = {**role.told, member.me.id: member.me}
    voters = [told.get(voter.id, voter) for voter in member.voters.voters]
    if any(voter.directory == ZERO_UUID or not voter.versions[0] <= level <= voter.versions[1] for voter in voters):
        why = f"Invalid upgrade of {KRAFT_VERSION} to KRAFT_VERSION_{level} because not all of the voters support it"
        raise KafkaError(Error.INVALID_UPDATE_VERSION, why)
    return VoterSet(tuple(voters))


def upgrade(member: Member, level: int, now_ms: float) -> Change:
    """From now on the log says who votes: the same as before."""
    role, voters = member.role, named_voters(member, level)
    assert isinstance(role, Leader)
    if role.watermark < 0 or role.change is not None:
        raise KafkaError(
            Error.REQUEST_TIMED_OUT, f"{KRAFT_VERSION} cannot be changed before what came before it is committed"
        )
    member.ready.notes.append(KRaftVersionRecord(kraft_version=level))
    role.change = Change(now_ms + member.timing.request_timeout_ms, member.key)
    _write(member, role.change, voters)
    known = {voter.id: voter.key for voter in voters.voters}
    role.replicas = {known.get(key.id, key): progress for key, progress in role.replicas.items()}
    return role.change
