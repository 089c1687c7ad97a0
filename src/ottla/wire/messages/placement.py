"""Who leads, and who holds what: elections, reassignments, and replicas that move between the directories of a node."""

from ottla.wire.schema import Message, Struct, boolean, int8, int16, int32, string, v


class ElectLeadersRequest(Message, key=43, versions="0-2", flexible="2+"):
    """Asks for the preferred leader, or for any that lives. Version 1 adds the second kind (KIP-460)."""

    class Topic(Struct):
        topic: string = v("0+")
        partitions: list[int32] = v("0+")

    election_type: int8 = v("1+")  # 0 preferred, 1 unclean
    topic_partitions: list[Topic] | None = v("0+", nullable="0+")  # null: all there are
    timeout_ms: int32 = v("0+", 60000)


class ElectLeadersResponse(Message, key=43, versions="0-2", flexible="2+"):
    """What became of each election. Version 1 adds an error for all of them."""

    class Topic(Struct):
        class Partition(Struct):
            partition_id: int32 = v("0+")
            error_code: int16 = v("0+")
            error_message: string | None = v("0+", None, nullable="0+")

        topic: string = v("0+")
        partition_result: list[Partition] = v("0+")

    throttle_time_ms: int32 = v("0+")
    error_code: int16 = v("1+")
    replica_election_results: list[Topic] = v("0+")


class AlterPartitionReassignmentsRequest(Message, key=45, versions="0-1", flexible="0+"):
    """Gives partitions to other brokers, or stops doing so (KIP-455).

    Version 1 can insist on the replication factor (KIP-860).
    """

    class Topic(Struct):
        class Partition(Struct):
            partition_index: int32 = v("0+")
            replicas: list[int32] | None = v("0+", None, nullable="0+")  # null: stop

        name: string = v("0+")
        partitions: list[Partition] = v("0+")

    timeout_ms: int32 = v("0+", 60000)
    allow_replication_factor_change: boolean = v("1+", True)
    topics: list[Topic] = v("0+")


class AlterPartitionReassignmentsResponse(Message, key=45, versions="0-1", flexible="0+"):
    """Which reassignments were begun, or stopped."""

    class Topic(Struct):
        class Partition(Struct):
            partition_index: int32 = v("0+")
            error_code: int16 = v("0+")
            error_message: string | None = v("0+", None, nullable="0+")

        name: string = v("0+")
        partitions: list[Partition] = v("0+")

    throttle_time_ms: int32 = v("0+")
    allow_replication_factor_change: boolean = v("1+", True)
    error_code: int16 = v("0+")
    error_message: string | None = v("0+", None, nullable="0+")
    responses: list[Topic] = v("0+")


class ListPartitionReassignmentsRequest(Message, key=46, versions="0", flexible="0+"):
    """Asks which reassignments are under way; null topics means all."""

    class Topic(Struct):
        name: string = v("0+")
        partition_indexes: list[int32] = v("0+")

    timeout_ms: int32 = v("0+", 60000)
    topics: list[Topic] | None = v("0+", None, nullable="0+")


class ListPartitionReassignmentsResponse(Message, key=46, versions="0", flexible="0+"):
    """Partitions on their way to other brokers: all that hold them, those to come and those to go."""

    class Topic(Struct):
        class Partition(Struct):
            partition_index: int32 = v("0+")
            replicas: list[int32] = v("0+")
            adding_replicas: list[int32] = v("0+")
            removing_replicas: list[int32] = v("0+")

        name: string = v("0+")
        partitions: list[Partition] = v("0+")

    throttle_time_ms: int32 = v("0+")
    error_code: int16 = v("0+")
    error_message: string | None = v("0+", None, nullable="0+")
    topics: list[Topic] = v("0+")


class AlterReplicaLogDirsRequest(Message, key=34, versions="1-2", flexible="2+"):
    """Moves replicas of this broker to other directories of it (KIP-113)."""

    class Directory(Struct):
        class Topic(Struct):
            name: string = v("0+")
            partitions: list[int32] = v("0+")

        path: string = v("0+")
        topics: list[Topic] = v("0+")

    dirs: list[Directory] = v("0+")


class AlterReplicaLogDirsResponse(Message, key=34, versions="1-2", flexible="2+"):
    """Which moves were begun; DescribeLogDirs tells how far they are."""

    class Topic(Struct):
        class Partition(Struct):
            partition_index: int32 = v("0+")
            error_code: int16 = v("0+")

        topic_name: string = v("0+")
        partitions: list[Partition] = v("0+")

    throttle_time_ms: int32 = v("0+")
    results: list[Topic] = v("0+")
