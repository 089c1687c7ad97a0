"""Values of the control records in the metadata log and its snapshots."""

from ottla.wire.schema import Message, Struct, int16, int32, int64, string, uint16, uuid, v


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
