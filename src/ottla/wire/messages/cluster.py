"""What this node speaks, what the cluster is made of, and what lies on its disks."""

from ottla.wire.schema import Message, Struct, boolean, int8, int16, int32, int64, string, v

# Which operations are allowed, where nobody asked for that.
NO_OPERATIONS = -(2**31)


class ApiVersionsRequest(Message, key=18, versions="0-4", flexible="3+"):
    """What can you speak? Asked before anything else, so its answer always has the oldest response header (KIP-511)."""

    client_software_name: string = v("3+")
    client_software_version: string = v("3+")


class ApiVersionsResponse(Message, key=18, versions="0-4", flexible="3+"):
    """The versions served of each api, and the features of the cluster (KIP-584).

    Up to version 3 clients cannot read a feature whose minimum is 0, so it must be left out there (KAFKA-17011).
    """

    class ApiVersion(Struct):
        api_key: int16 = v("0+")
        min_version: int16 = v("0+")
        max_version: int16 = v("0+")

    class SupportedFeature(Struct):
        name: string = v("3+")
        min_version: int16 = v("3+")
        max_version: int16 = v("3+")

    class FinalizedFeature(Struct):
        name: string = v("3+")
        max_version_level: int16 = v("3+")
        min_version_level: int16 = v("3+")

    error_code: int16 = v("0+")
    api_keys: list[ApiVersion] = v("0+")
    throttle_time_ms: int32 = v("1+")
    supported_features: list[SupportedFeature] = v("3+", tag=0)
    finalized_features_epoch: int64 = v("3+", -1, tag=1)  # -1: unknown
    finalized_features: list[FinalizedFeature] = v("3+", tag=2)
    zk_migration_ready: boolean = v("3+", tag=3)


class UpdateFeaturesRequest(Message, key=57, versions="0-2", flexible="0+"):
    """Changes levels of features (KIP-584). Version 1 tells kinds of downgrades apart and can only try (KIP-778)."""

    class Update(Struct):
        feature: string = v("0+")
        max_version_level: int16 = v("0+")  # 0: the feature is switched off
        allow_downgrade: boolean = v("0")
        upgrade_type: int8 = v("1+", 1)  # 1 upgrade, 2 safe downgrade, 3 unsafe downgrade

    timeout_ms: int32 = v("0+", 60000)
    feature_updates: list[Update] = v("0+")
    validate_only: boolean = v("1+")


class UpdateFeaturesResponse(Message, key=57, versions="0-2", flexible="0+"):
    """All changed, or none. Version 2 has one error for all (KIP-1022)."""

    class Result(Struct):
        feature: string = v("0+")
        error_code: int16 = v("0+")
        error_message: string | None = v("0+", None, nullable="0+")

    throttle_time_ms: int32 = v("0+")
    error_code: int16 = v("0+")
    error_message: string | None = v("0+", None, nullable="0+")
    results: list[Result] = v("0-1")


class DescribeClusterRequest(Message, key=60, versions="0-2", flexible="0+"):
    """Asks for the nodes of the cluster (KIP-700).

    Version 1 can ask for controllers (KIP-919), 2 for fenced brokers too (KIP-1073).
    """

    include_cluster_authorized_operations: boolean = v("0+")
    endpoint_type: int8 = v("1+", 1)  # 1 brokers, 2 controllers
    include_fenced_brokers: boolean = v("2+")


class DescribeClusterResponse(Message, key=60, versions="0-2", flexible="0+"):
    """The nodes of the cluster and its id."""

    class Broker(Struct):
        broker_id: int32 = v("0+")
        host: string = v("0+")
        port: int32 = v("0+")
        rack: string | None = v("0+", None, nullable="0+")
        is_fenced: boolean = v("2+")

    throttle_time_ms: int32 = v("0+")
    error_code: int16 = v("0+")
    error_message: string | None = v("0+", None, nullable="0+")
    endpoint_type: int8 = v("1+", 1)
    cluster_id: string = v("0+")
    controller_id: int32 = v("0+", -1)
    brokers: list[Broker] = v("0+")
    cluster_authorized_operations: int32 = v("0+", NO_OPERATIONS)


class DescribeLogDirsRequest(Message, key=35, versions="1-5", flexible="2+"):
    """Asks what lies in the data directories; null topics means all."""

    class Topic(Struct):
        topic: string = v("0+")
        partitions: list[int32] = v("0+")

    topics: list[Topic] | None = v("0+", nullable="0+")


class DescribeLogDirsResponse(Message, key=35, versions="1-5", flexible="2+"):
    """For each data directory its partitions and sizes.

    Version 3 adds an error for the whole request, 4 the space on the volume (KIP-827), 5 whether the directory takes
    no new replicas (KIP-1066).
    """

    class Directory(Struct):
        class Topic(Struct):
            class Partition(Struct):
                partition_index: int32 = v("0+")
                partition_size: int64 = v("0+")
                offset_lag: int64 = v("0+")  # how far a moving copy is behind
                is_future_key: boolean = v("0+")  # a copy that is moving between directories

            name: string = v("0+")
            partitions: list[Partition] = v("0+")

        error_code: int16 = v("0+")
        log_dir: string = v("0+")
        topics: list[Topic] = v("0+")
        total_bytes: int64 = v("4+", -1)
        usable_bytes: int64 = v("4+", -1)
        is_cordoned: boolean = v("5+")

    throttle_time_ms: int32 = v("0+")
    error_code: int16 = v("3+")
    results: list[Directory] = v("0+")
