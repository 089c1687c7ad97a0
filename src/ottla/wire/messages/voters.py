"""Those who vote in the quorum of the metadata, as seen from outside: who they are, one more, one less."""

from ottla.wire.schema import Message, Struct, boolean, int16, int32, int64, string, uint16, uuid, v


class DescribeQuorumRequest(Message, key=55, versions="0-2", flexible="0+"):
    """Asks who copies the metadata, and how far (KIP-595)."""

    class Topic(Struct):
        class Partition(Struct):
            partition_index: int32 = v("0+")

        topic_name: string = v("0+")
        partitions: list[Partition] = v("0+")

    topics: list[Topic] = v("0+")


class ReplicaState(Struct):
    """How far one node has copied the metadata log."""

    replica_id: int32 = v("0+")
    replica_directory_id: uuid = v("2+")
    log_end_offset: int64 = v("0+")
    last_fetch_timestamp: int64 = v("1+", -1)
    last_caught_up_timestamp: int64 = v("1+", -1)


class DescribeQuorumResponse(Message, key=55, versions="0-2", flexible="0+"):
    """The leader of the metadata, its voters, and those who only listen.

    Version 1 says when they were last seen (KIP-836), 2 in which directory they are and where they listen (KIP-853).
    """

    class Topic(Struct):
        class Partition(Struct):
            partition_index: int32 = v("0+")
            error_code: int16 = v("0+")
            error_message: string | None = v("2+", None, nullable="2+")
            leader_id: int32 = v("0+")
            leader_epoch: int32 = v("0+")
            high_watermark: int64 = v("0+")
            current_voters: list[ReplicaState] = v("0+")
            observers: list[ReplicaState] = v("0+")

        topic_name: string = v("0+")
        partitions: list[Partition] = v("0+")

    class Node(Struct):
        class Listener(Struct):
            name: string = v("2+")
            host: string = v("2+")
            port: uint16 = v("2+")

        node_id: int32 = v("2+")
        listeners: list[Listener] = v("2+")

    error_code: int16 = v("0+")
    error_message: string | None = v("2+", None, nullable="2+")
    topics: list[Topic] = v("0+")
    nodes: list[Node] = v("2+")


class AddRaftVoterRequest(Message, key=80, versions="0-1", flexible="0+"):
    """A controller wants to vote (KIP-853). Version 1 need not wait for the commit."""

    class Listener(Struct):
        name: string = v("0+")
        host: string = v("0+")
        port: uint16 = v("0+")

    cluster_id: string | None = v("0+", nullable="0+")
    timeout_ms: int32 = v("0+")
    voter_id: int32 = v("0+")
    voter_directory_id: uuid = v("0+")
    listeners: list[Listener] = v("0+")
    ack_when_committed: boolean = v("1+", True)


class AddRaftVoterResponse(Message, key=80, versions="0-1", flexible="0+"):
    """Whether it votes now."""

    throttle_time_ms: int32 = v("0+")
    error_code: int16 = v("0+")
    error_message: string | None = v("0+", None, nullable="0+")


class RemoveRaftVoterRequest(Message, key=81, versions="0", flexible="0+"):
    """A controller shall vote no more (KIP-853)."""

    cluster_id: string | None = v("0+", nullable="0+")
    voter_id: int32 = v("0+")
    voter_directory_id: uuid = v("0+")


class RemoveRaftVoterResponse(Message, key=81, versions="0", flexible="0+"):
    """Whether it does not."""

    throttle_time_ms: int32 = v("0+")
    error_code: int16 = v("0+")
    error_message: string | None = v("0+", None, nullable="0+")
