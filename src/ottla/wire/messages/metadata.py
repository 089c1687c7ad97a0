"""Where things are: brokers, topics, partitions and their leaders."""

from ottla.wire.messages.cluster import NO_OPERATIONS
from ottla.wire.schema import Message, Struct, boolean, int16, int32, string, uuid, v


class MetadataRequest(Message, key=3, versions="0-13", flexible="9+"):
    """What a client asks first: where are the leaders?

    No topics means all of them in version 0 and none later, where null means all. Version 4 adds auto-creation, 8
    authorized operations (KIP-430), 10 topic ids, which work from 12 on (KIP-516); 11 leaves the cluster's operations
    to DescribeCluster (KIP-700).
    """

    class Topic(Struct):
        topic_id: uuid = v("10+")
        name: string | None = v("0+", nullable="10+")

    topics: list[Topic] | None = v("0+", nullable="1+")
    allow_auto_topic_creation: boolean = v("4+", True)
    include_cluster_authorized_operations: boolean = v("8-10")
    include_topic_authorized_operations: boolean = v("8+")


class MetadataResponse(Message, key=3, versions="0-13", flexible="9+"):
    """Brokers, and for each topic its partitions with leader and replicas.

    Version 5 adds offline replicas, 7 leader epochs (KIP-320), 8 authorized operations (KIP-430), 10 topic ids
    (KIP-516), 13 an error for the whole request.
    """

    class Broker(Struct):
        node_id: int32 = v("0+")
        host: string = v("0+")
        port: int32 = v("0+")
        rack: string | None = v("1+", None, nullable="1+")

    class Topic(Struct):
        class Partition(Struct):
            error_code: int16 = v("0+")
            partition_index: int32 = v("0+")
            leader_id: int32 = v("0+")
            leader_epoch: int32 = v("7+", -1)
            replica_nodes: list[int32] = v("0+")
            isr_nodes: list[int32] = v("0+")
            offline_replicas: list[int32] = v("5+")

        error_code: int16 = v("0+")
        name: string | None = v("0+", nullable="12+")
        topic_id: uuid = v("10+")
        is_internal: boolean = v("1+")
        partitions: list[Partition] = v("0+")
        topic_authorized_operations: int32 = v("8+", NO_OPERATIONS)

    throttle_time_ms: int32 = v("3+")
    brokers: list[Broker] = v("0+")
    cluster_id: string | None = v("2+", None, nullable="2+")
    controller_id: int32 = v("1+", -1)
    topics: list[Topic] = v("0+")
    cluster_authorized_operations: int32 = v("8-10", NO_OPERATIONS)
    error_code: int16 = v("13+")


class DescribeTopicPartitionsRequest(Message, key=75, versions="0", flexible="0+"):
    """Metadata in pages (KIP-966): topics in order of name, from a cursor on."""

    class Topic(Struct):
        name: string = v("0+")

    class Cursor(Struct):
        topic_name: string = v("0+")
        partition_index: int32 = v("0+")

    topics: list[Topic] = v("0+")
    response_partition_limit: int32 = v("0+", 2000)
    cursor: Cursor | None = v("0+", None, nullable="0+")


class DescribeTopicPartitionsResponse(Message, key=75, versions="0", flexible="0+"):
    """One page of topics; `next_cursor` says where the next one starts, null after the last."""

    class Topic(Struct):
        class Partition(Struct):
            error_code: int16 = v("0+")
            partition_index: int32 = v("0+")
            leader_id: int32 = v("0+")
            leader_epoch: int32 = v("0+", -1)
            replica_nodes: list[int32] = v("0+")
            isr_nodes: list[int32] = v("0+")
            eligible_leader_replicas: list[int32] | None = v("0+", None, nullable="0+")
            last_known_elr: list[int32] | None = v("0+", None, nullable="0+")
            offline_replicas: list[int32] = v("0+")

        error_code: int16 = v("0+")
        name: string | None = v("0+", nullable="0+")
        topic_id: uuid = v("0+")
        is_internal: boolean = v("0+")
        partitions: list[Partition] = v("0+")
        topic_authorized_operations: int32 = v("0+", NO_OPERATIONS)

    class Cursor(Struct):
        topic_name: string = v("0+")
        partition_index: int32 = v("0+")

    throttle_time_ms: int32 = v("0+")
    topics: list[Topic] = v("0+")
    next_cursor: Cursor | None = v("0+", None, nullable="0+")
