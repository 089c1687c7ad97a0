"""Who votes, what they need to agree, and what a voter must never forget.

A *voter set* names the members of the metadata quorum. Under kraft.version 1 it stands in the log itself (VotersRecord,
KIP-853) and may change; under kraft.version 0 it is what `controller.quorum.voters` says. A member is told from its
successor on a wiped disk by its directory id.

The *high watermark* is the offset below which a majority of voters has synced the log. It moves only once it can pass
the first offset of the leader's own epoch: what earlier leaders left behind counts when a record of ours after it does.

The *quorum state* is what a voter has promised: the epoch it is in, whom it voted for, whom it follows. It is on disk
before anybody hears of it.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import NamedTuple

from ottla.wire.ids import uuid_bytes, uuid_text
from ottla.wire.messages.quorum import LeaderChangeMessage, VotersRecord
from ottla.wire.messages.quorum import Voter as NamedVoter
from ottla.wire.schema import ZERO_UUID

NOBODY = -1
# The feature that says whether voters are fixed or stand in the log, and which of its levels are served.
KRAFT_VERSION = "kraft.version"
SUPPORTED_KRAFT_VERSIONS = (0, 1)


class Address(NamedTuple):
    """Where a voter listens, under the name of the listener."""

    name: str
    host: str
    port: int


class Key(NamedTuple):
    """A replica: its id, and the directory that tells it from its successor on a wiped disk."""

    id: int
    directory: bytes = ZERO_UUID


class Voter(NamedTuple):
    id: int
    directory: bytes = ZERO_UUID
    addresses: tuple[Address, ...] = ()
    # Which kraft.versions it can speak.
    versions: tuple[int, int] = SUPPORTED_KRAFT_VERSIONS

    @property
    def key(self) -> Key:
        return Key(self.id, self.directory)

    def is_named_by(self, key: Key) -> bool:
        """A voter whose directory nobody has written down (kraft.version 0) is known by its id alone."""
        return self.id == key.id and self.directory in (ZERO_UUID, key.directory)


class VoterSet(NamedTuple):
    voters: tuple[Voter, ...] = ()

    @property
    def ids(self) -> tuple[int, ...]:
        return tuple(voter.id for voter in self.voters)

    @property
    def majority(self) -> int:
        return len(self.voters) // 2 + 1

    def voter(self, voter_id: int) -> Voter | None:
        return next((voter for voter in self.voters if voter.id == voter_id), None)

    def voter_of(self, key: Key) -> Voter | None:
        """The voter that this replica is, if it is one."""
        return next((voter for voter in self.voters if voter.is_named_by(key)), None)

    def with_voter(self, new: Voter) -> VoterSet:
        return VoterSet(tuple(sorted((*(v for v in self.voters if v.id != new.id), new))))

    def without(self, key: Key) -> VoterSet | None:
        """None unless it is there, or if nobody would be left."""
        rest = tuple(voter for voter in self.voters if voter.key != key)
        return VoterSet(rest) if 0 < len(rest) < len(self.voters) else None

    def high_watermark(self, synced_ends: Mapping[int, int], epoch_start: int, current: int) -> int:
        """What a majority has synced, if that reaches past the start of the leader's epoch; it never falls."""
        ends = sorted((synced_ends.get(voter_id, 0) for voter_id in self.ids), reverse=True)
        agreed = ends[self.majority - 1]
        return max(current, agreed) if agreed > epoch_start else current

    def to_record(self) -> VotersRecord:
        return VotersRecord(voters=[_written(voter) for voter in self.voters])

    @classmethod
    def of_record(cls, record: VotersRecord) -> VoterSet:
        return cls(tuple(_read(voter) for voter in record.voters))

    @classmethod
    def of_setting(cls, entries: str) -> VoterSet:
        """From `controller.quorum.voters`: 1@host:9093,2@host:9093."""
        voters = []
        for entry in filter(None, (part.strip() for part in entries.split(","))):
            voter_id, _, place = entry.partition("@")
            host, _, port = place.rpartition(":")
            voters.append(Voter(int(voter_id), addresses=(Address("", host.strip("[]"), int(port)),)))
        return cls(tuple(voters))


def _written(voter: Voter) -> VotersRecord.Voter:
    kind = VotersRecord.Voter
    low, high = voter.versions
    return kind(
        voter_id=voter.id,
        voter_directory_id=voter.directory,
        endpoints=[kind.Endpoint(name=a.name, host=a.host, port=a.port) for a in voter.addresses],
        kraft_version_feature=kind.KRaftVersionFeature(min_supported_version=low, max_supported_version=high),
    )


def _read(voter: VotersRecord.Voter) -> Voter:
    addresses = tuple(Address(e.name, e.host, e.port) for e in voter.endpoints)
    versions = (voter.kraft_version_feature.min_supported_version, voter.kraft_version_feature.max_supported_version)
    return Voter(voter.voter_id, voter.voter_directory_id, addresses, versions)


def leader_change(leader_id: int, voters: VoterSet, granting: tuple[int, ...]) -> LeaderChangeMessage:
    """The first record of a leadership. Version 0, as 4.3 writes it: voters by id only."""
    return LeaderChangeMessage(
        version=0,
        leader_id=leader_id,
        voters=[NamedVoter(voter_id=voter_id) for voter_id in voters.ids],
        granting_voters=[NamedVoter(voter_id=voter_id) for voter_id in granting],
    )


class QuorumState(NamedTuple):
    """The content of `quorum-state`."""

    epoch: int = 0
    leader: int = NOBODY
    voted: int = NOBODY
    voted_directory: bytes = ZERO_UUID

    def to_json(self, kraft_version: int, voters: VoterSet) -> bytes:
        """In the layout that belongs to the quorum's version; Apache Kafka reads only the matching one."""
        return json.dumps(self._layout(kraft_version, voters), separators=(",", ":")).encode()

    def _layout(self, kraft_version: int, voters: VoterSet) -> dict[str, object]:
        if kraft_version >= 1:
            return {
                "leaderId": self.leader,
                "leaderEpoch": self.epoch,
                "votedId": self.voted,
                "votedDirectoryId": uuid_text(self.voted_directory),
                "data_version": 1,
            }
        return {
            "clusterId": "",
            "leaderId": self.leader,
            "leaderEpoch": self.epoch,
            "votedId": self.voted,
            "appliedOffset": 0,
            "currentVoters": [{"voterId": voter_id} for voter_id in voters.ids],
            "data_version": 0,
        }

    @classmethod
    def of_json(cls, data: bytes) -> QuorumState:
        fields = json.loads(data)
        if fields["data_version"] not in (0, 1):
            raise ValueError(f"quorum-state has data_version {fields['data_version']}, which is too new")
        directory = fields.get("votedDirectoryId")
        return cls(
            epoch=fields["leaderEpoch"],
            leader=fields["leaderId"],
            voted=fields["votedId"],
            voted_directory=ZERO_UUID if directory is None else uuid_bytes(directory),
        )
