"""How the metadata quorum elects and copies, and the control records in its log and snapshots."""

from ottla.wire.schema import Message, Struct, boolean, int16, int32, int64, records, string, uint16, uuid, v

# The one topic that these messages are about; it has one partition.
METADATA_TOPIC = "__cluster_metadata"
METADATA_TOPIC_ID = bytes(15) + b"\x01"


class NodeEndpoint(Struct):
    """Where a leader named in an answer listens."""

    node_id: int32 = v("1+")
    host: string = v("1+")
    port: uint16 = v("1+")


class LeaderEndpoint(Struct):
    """One of the addresses a leader has."""

    name: string = v("1+")
    host: string = v("1+")
    port: uint16 = v("1+")


class VoteRequest(Message, key=52, versions="0-2", flexible="0+"):
    """A voter wants to lead (KIP-595).

    Version 1 names directories (KIP-853), 2 asks first whether standing makes sense (pre-vote, KIP-996).
    """

    class Topic(Struct):
        class Partition(Struct):
            partition_index: int32 = v("0+")
            replica_epoch: int32 = v("0+")
            replica_id: int32 = v("0+")
            replica_directory_id: uuid = v("1+")
            voter_directory_id: uuid = v("1+")
            last_offset_epoch: int32 = v("0+")
            last_offset: int64 = v("0+")
            pre_vote: boolean = v("2+")

        topic_name: string = v("0+")
        partitions: list[Partition] = v("0+")

    cluster_id: string | None = v("0+", None, nullable="0+")
    voter_id: int32 = v("1+", -1)
    topics: list[Topic] = v("0+")


class VoteResponse(Message, key=52, versions="0-2", flexible="0+"):
    """Whether it gets this vote."""

    class Topic(Struct):
        class Partition(Struct):
            partition_index: int32 = v("0+")
            error_code: int16 = v("0+")
            leader_id: int32 = v("0+")
            leader_epoch: int32 = v("0+")
            vote_granted: boolean = v("0+")

        topic_name: string = v("0+")
        partitions: list[Partition] = v("0+")

    error_code: int16 = v("0+")
    topics: list[Topic] = v("0+")
    node_endpoints: list[NodeEndpoint] = v("1+", tag=0)


class LeaderAnswer(Struct):
    """What the receiver of news about a leadership knows; -1 is no leader."""

    class Partition(Struct):
        partition_index: int32 = v("0+")
        error_code: int16 = v("0+")
        leader_id: int32 = v("0+")
        leader_epoch: int32 = v("0+")

    topic_name: string = v("0+")
    partitions: list[Partition] = v("0+")


class BeginQuorumEpochRequest(Message, key=53, versions="0-1", flexible="1+"):
    """A new leader says so (KIP-595). Version 1 says where it listens (KIP-853)."""

    class Topic(Struct):
        class Partition(Struct):
            partition_index: int32 = v("0+")
            voter_directory_id: uuid = v("1+")
            leader_id: int32 = v("0+")
            leader_epoch: int32 = v("0+")

        topic_name: string = v("0+")
        partitions: list[Partition] = v("0+")

    cluster_id: string | None = v("0+", None, nullable="0+")
    voter_id: int32 = v("1+", -1)
    topics: list[Topic] = v("0+")
    leader_endpoints: list[LeaderEndpoint] = v("1+")


class BeginQuorumEpochResponse(Message, key=53, versions="0-1", flexible="1+"):
    """Whether it is taken for the leader."""

    error_code: int16 = v("0+")
    topics: list[LeaderAnswer] = v("0+")
    node_endpoints: list[NodeEndpoint] = v("1+", tag=0)


class EndQuorumEpochRequest(Message, key=54, versions="0-1", flexible="1+"):
    """A leader goes, and says who should follow it (KIP-595). Version 1 names directories (KIP-853)."""

    class Topic(Struct):
        class Partition(Struct):
            class ReplicaInfo(Struct):
                candidate_id: int32 = v("1+")
                candidate_directory_id: uuid = v("1+")

            partition_index: int32 = v("0+")
            leader_id: int32 = v("0+")
            leader_epoch: int32 = v("0+")
            preferred_successors: list[int32] = v("0")
            preferred_candidates: list[ReplicaInfo] = v("1+")

        topic_name: string = v("0+")
        partitions: list[Partition] = v("0+")

    cluster_id: string | None = v("0+", None, nullable="0+")
    topics: list[Topic] = v("0+")
    leader_endpoints: list[LeaderEndpoint] = v("1+")


class EndQuorumEpochResponse(Message, key=54, versions="0-1", flexible="1+"):
    """Who leads, as far as the receiver knows."""

    error_code: int16 = v("0+")
    topics: list[LeaderAnswer] = v("0+")
    node_endpoints: list[NodeEndpoint] = v("1+", tag=0)


class SnapshotId(Struct):
    """A snapshot is named by the offset behind its last record and that record's epoch."""

    end_offset: int64 = v("0+")
    epoch: int32 = v("0+")


class FetchSnapshotRequest(Message, key=59, versions="0-1", flexible="0+"):
    """Asks for bytes of a snapshot of the metadata (KIP-630). Version 1 names the directory that asks (KIP-853)."""

    class Topic(Struct):
        class Partition(Struct):
            partition: int32 = v("0+")
            current_leader_epoch: int32 = v("0+")
            snapshot_id: SnapshotId = v("0+")
            position: int64 = v("0+")
            replica_directory_id: uuid = v("1+", tag=0)

        name: string = v("0+")
        partitions: list[Partition] = v("0+")

    cluster_id: string | None = v("0+", None, nullable="0+", tag=0)
    replica_id: int32 = v("0+", -1)
    max_bytes: int32 = v("0+", 0x7FFFFFFF)
    topics: list[Topic] = v("0+")


class FetchSnapshotResponse(Message, key=59, versions="0-1", flexible="0+"):
    """Bytes of a snapshot from a position on; they may begin and end inside a batch."""

    class Topic(Struct):
        class Partition(Struct):
            class LeaderIdAndEpoch(Struct):
                leader_id: int32 = v("0+")
                leader_epoch: int32 = v("0+")

            index: int32 = v("0+")
            error_code: int16 = v("0+")
            snapshot_id: SnapshotId = v("0+")
            current_leader: LeaderIdAndEpoch = v("0+", tag=0)
            size: int64 = v("0+")
            position: int64 = v("0+")
            unaligned_records: records = v("0+")

        name: string = v("0+")
        partitions: list[Partition] = v("0+")

    throttle_time_ms: int32 = v("0+")
    error_code: int16 = v("0+")
    topics: list[Topic] = v("0+")
    node_endpoints: list[NodeEndpoint] = v("1+", tag=0)


class UpdateRaftVoterRequest(Message, key=82, versions="0", flexible="0+"):
    """A voter listens elsewhere, or can do more than it could (KIP-853)."""

    class Listener(Struct):
        name: string = v("0+")
        host: string = v("0+")
        port: uint16 = v("0+")

    class KRaftVersionFeature(Struct):
        min_supported_version: int16 = v("0+")
        max_supported_version: int16 = v("0+")

    cluster_id: string | None = v("0+", nullable="0+")
    current_leader_epoch: int32 = v("0+")
    voter_id: int32 = v("0+")
    voter_directory_id: uuid = v("0+")
    listeners: list[Listener] = v("0+")
    kraft_version_feature: KRaftVersionFeature = v("0+")


class UpdateRaftVoterResponse(Message, key=82, versions="0", flexible="0+"):
    """Whether that is written down; if not, who leads."""

    class CurrentLeader(Struct):
        leader_id: int32 = v("0+", -1)
        leader_epoch: int32 = v("0+", -1)
        host: string = v("0+")
        port: int32 = v("0+")

    throttle_time_ms: int32 = v("0+")
    error_code: int16 = v("0+")
    current_leader: CurrentLeader = v("0+", tag=0)


class Voter(Struct):
    """A member of the quorum; the directory id tells a wiped disk from the one that voted."""

    voter_id: int32 = v("0+")
    voter_directory_id: uuid = v("1+")


class LeaderChangeMessage(Message, versions="0-1", flexible="0+"):
    """The first record of every leader of the metadata quorum: who leads and who voted for it (KIP-595).

    Version 1 names voters by directory as well (KIP-853).
    """

    version: int16 = v("0+")
    leader_id: int32 = v("0+")
    voters: list[Voter] = v("0+")
    granting_voters: list[Voter] = v("0+")


class KRaftVersionRecord(Message, versions="0", flexible="0+"):
    """Which version of the quorum's own protocol the log is written in (KIP-853)."""

    version: int16 = v("0+")
    kraft_version: int16 = v("0+")


class VotersRecord(Message, versions="0", flexible="0+"):
    """The voters from here on, and where they listen (KIP-853)."""

    class Voter(Struct):
        class Endpoint(Struct):
            name: string = v("0+")
            host: string = v("0+")
            port: uint16 = v("0+")

        class KRaftVersionFeature(Struct):
            min_supported_version: int16 = v("0+")
            max_supported_version: int16 = v("0+")

        voter_id: int32 = v("0+")
        voter_directory_id: uuid = v("0+")
        endpoints: list[Endpoint] = v("0+")
        kraft_version_feature: KRaftVersionFeature = v("0+")

    version: int16 = v("0+")
    voters: list[Voter] = v("0+")


class SnapshotHeaderRecord(Message, versions="0", flexible="0+"):
    """The first record of a snapshot (KIP-630)."""

    version: int16 = v("0+")
    last_contained_log_timestamp: int64 = v("0+")


class SnapshotFooterRecord(Message, versions="0", flexible="0+"):
    """The last record of a snapshot: without it the snapshot is not whole."""

    version: int16 = v("0+")
