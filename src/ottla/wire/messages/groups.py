"""Consumer groups: finding the coordinator, the classic protocol, the consumer protocol of KIP-848, and looking at groups."""

from ottla.wire.messages.cluster import NO_OPERATIONS
from ottla.wire.schema import Message, Struct, boolean, byte_string, int8, int16, int32, string, uuid, v


class FindCoordinatorRequest(Message, key=10, versions="0-6", flexible="3+"):
    """Who coordinates these groups (0), transactional ids (1) or share partitions (2)? Version 4 asks for many (KIP-699)."""

    key: string = v("0-3")
    key_type: int8 = v("1+")
    coordinator_keys: list[string] = v("4+")


class FindCoordinatorResponse(Message, key=10, versions="0-6", flexible="3+"):
    """The broker to speak to, for each key."""

    class Coordinator(Struct):
        key: string = v("4+")
        node_id: int32 = v("4+")
        host: string = v("4+")
        port: int32 = v("4+")
        error_code: int16 = v("4+")
        error_message: string | None = v("4+", nullable="4+")

    throttle_time_ms: int32 = v("1+")
    error_code: int16 = v("0-3")
    error_message: string | None = v("1-3", nullable="1-3")
    node_id: int32 = v("0-3")
    host: string = v("0-3")
    port: int32 = v("0-3")
    coordinators: list[Coordinator] = v("4+")


class JoinGroupRequest(Message, key=11, versions="0-9", flexible="6+"):
    """A member of a classic group takes part in the next generation.

    Version 1 has a rebalance timeout apart from the session's, 4 asks newcomers to come back with the id they were given
    (KIP-394), 5 knows static members (KIP-345), 8 gives a reason (KIP-800).
    """

    class Protocol(Struct):
        name: string = v("0+")
        metadata: byte_string = v("0+")

    group_id: string = v("0+")
    session_timeout_ms: int32 = v("0+")
    rebalance_timeout_ms: int32 = v("1+", -1)
    member_id: string = v("0+")  # empty for a newcomer
    group_instance_id: string | None = v("5+", None, nullable="5+")
    protocol_type: string = v("0+")
    protocols: list[Protocol] = v("0+")
    reason: string | None = v("8+", None, nullable="8+")


class JoinGroupResponse(Message, key=11, versions="0-9", flexible="6+"):
    """The new generation; its leader also gets all members, to divide the work among them."""

    class Member(Struct):
        member_id: string = v("0+")
        group_instance_id: string | None = v("5+", None, nullable="5+")
        metadata: byte_string = v("0+")

    throttle_time_ms: int32 = v("2+")
    error_code: int16 = v("0+")
    generation_id: int32 = v("0+", -1)
    protocol_type: string | None = v("7+", None, nullable="7+")
    protocol_name: string | None = v("0+", nullable="7+")
    leader: string = v("0+")
    skip_assignment: boolean = v("9+")  # a leader that came back: what it assigned before still holds (KIP-814)
    member_id: string = v("0+")
    members: list[Member] = v("0+")


class SyncGroupRequest(Message, key=14, versions="0-5", flexible="4+"):
    """A member asks for its part of the work; the leader brings everybody's."""

    class Assignment(Struct):
        member_id: string = v("0+")
        assignment: byte_string = v("0+")

    group_id: string = v("0+")
    generation_id: int32 = v("0+")
    member_id: string = v("0+")
    group_instance_id: string | None = v("3+", None, nullable="3+")
    protocol_type: string | None = v("5+", None, nullable="5+")
    protocol_name: string | None = v("5+", None, nullable="5+")
    assignments: list[Assignment] = v("0+")


class SyncGroupResponse(Message, key=14, versions="0-5", flexible="4+"):
    """What the leader gave to this member."""

    throttle_time_ms: int32 = v("1+")
    error_code: int16 = v("0+")
    protocol_type: string | None = v("5+", None, nullable="5+")
    protocol_name: string | None = v("5+", None, nullable="5+")
    assignment: byte_string = v("0+")


class HeartbeatRequest(Message, key=12, versions="0-4", flexible="4+"):
    """A member of a classic group says it is alive."""

    group_id: string = v("0+")
    generation_id: int32 = v("0+")
    member_id: string = v("0+")
    group_instance_id: string | None = v("3+", None, nullable="3+")


class HeartbeatResponse(Message, key=12, versions="0-4", flexible="4+"):
    """REBALANCE_IN_PROGRESS tells the member to join again."""

    throttle_time_ms: int32 = v("1+")
    error_code: int16 = v("0+")


class LeaveGroupRequest(Message, key=13, versions="0-5", flexible="4+"):
    """Members go; version 3 takes many, also static ones by instance (KIP-345), 5 gives reasons (KIP-800)."""

    class Member(Struct):
        member_id: string = v("3+")
        group_instance_id: string | None = v("3+", None, nullable="3+")
        reason: string | None = v("5+", None, nullable="5+")

    group_id: string = v("0+")
    member_id: string = v("0-2")
    members: list[Member] = v("3+")


class LeaveGroupResponse(Message, key=13, versions="0-5", flexible="4+"):
    """What became of each."""

    class Member(Struct):
        member_id: string = v("3+")
        group_instance_id: string | None = v("3+", nullable="3+")
        error_code: int16 = v("3+")

    throttle_time_ms: int32 = v("1+")
    error_code: int16 = v("0+")
    members: list[Member] = v("3+")


class ConsumerGroupHeartbeatRequest(Message, key=68, versions="0-1", flexible="0+"):
    """A member of a consumer group joins (epoch 0), lives on, or leaves (-1; a static one that will be back: -2).

    What did not change since the last one is null or -1. Version 1 has regular expressions, and member ids that the client
    makes itself.
    """

    class TopicPartitions(Struct):
        topic_id: uuid = v("0+")
        partitions: list[int32] = v("0+")

    group_id: string = v("0+")
    member_id: string = v("0+")
    member_epoch: int32 = v("0+")
    instance_id: string | None = v("0+", None, nullable="0+")
    rack_id: string | None = v("0+", None, nullable="0+")
    rebalance_timeout_ms: int32 = v("0+", -1)
    subscribed_topic_names: list[string] | None = v("0+", None, nullable="0+")
    subscribed_topic_regex: string | None = v("1+", None, nullable="1+")
    server_assignor: string | None = v("0+", None, nullable="0+")
    topic_partitions: list[TopicPartitions] | None = v("0+", None, nullable="0+")  # what the member owns now


class ConsumerGroupHeartbeatResponse(Message, key=68, versions="0-1", flexible="0+"):
    """The member's epoch, and its assignment when that changed."""

    class Assignment(Struct):
        class TopicPartitions(Struct):
            topic_id: uuid = v("0+")
            partitions: list[int32] = v("0+")

        topic_partitions: list[TopicPartitions] = v("0+")

    throttle_time_ms: int32 = v("0+")
    error_code: int16 = v("0+")
    error_message: string | None = v("0+", None, nullable="0+")
    member_id: string | None = v("0+", None, nullable="0+")
    member_epoch: int32 = v("0+")
    heartbeat_interval_ms: int32 = v("0+")
    assignment: Assignment | None = v("0+", None, nullable="0+")


class ConsumerGroupDescribeRequest(Message, key=69, versions="0-1", flexible="0+"):
    """Consumer groups (KIP-848) to describe; classic ones have an API of their own."""

    group_ids: list[string] = v("0+")
    include_authorized_operations: boolean = v("0+")


class ConsumerGroupDescribeResponse(Message, key=69, versions="0-1", flexible="0+"):
    """Each group with its members, what they have and what they are to have. Version 1 tells classic members apart."""

    class Group(Struct):
        class Member(Struct):
            class Assignment(Struct):
                class TopicPartitions(Struct):
                    topic_id: uuid = v("0+")
                    topic_name: string = v("0+")
                    partitions: list[int32] = v("0+")

                topic_partitions: list[TopicPartitions] = v("0+")

            member_id: string = v("0+")
            instance_id: string | None = v("0+", None, nullable="0+")
            rack_id: string | None = v("0+", None, nullable="0+")
            member_epoch: int32 = v("0+")
            client_id: string = v("0+")
            client_host: string = v("0+")
            subscribed_topic_names: list[string] = v("0+")
            subscribed_topic_regex: string | None = v("0+", None, nullable="0+")
            assignment: Assignment = v("0+")
            target_assignment: Assignment = v("0+")
            member_type: int8 = v("1+", -1)  # 0 classic, 1 consumer

        error_code: int16 = v("0+")
        error_message: string | None = v("0+", None, nullable="0+")
        group_id: string = v("0+")
        group_state: string = v("0+")
        group_epoch: int32 = v("0+")
        assignment_epoch: int32 = v("0+")
        assignor_name: string = v("0+")
        members: list[Member] = v("0+")
        authorized_operations: int32 = v("0+", NO_OPERATIONS)

    throttle_time_ms: int32 = v("0+")
    groups: list[Group] = v("0+")


class ListGroupsRequest(Message, key=16, versions="0-5", flexible="3+"):
    """Groups that this broker coordinates, filtered by state from version 4 on (KIP-518), by type from 5 on (KIP-848)."""

    states_filter: list[string] = v("4+")
    types_filter: list[string] = v("5+")


class ListGroupsResponse(Message, key=16, versions="0-5", flexible="3+"):
    """The groups, each with the type of its protocol."""

    class Group(Struct):
        group_id: string = v("0+")
        protocol_type: string = v("0+")
        group_state: string = v("4+")
        group_type: string = v("5+")

    throttle_time_ms: int32 = v("1+")
    error_code: int16 = v("0+")
    groups: list[Group] = v("0+")


class DescribeGroupsRequest(Message, key=15, versions="0-6", flexible="5+"):
    """Classic groups to describe."""

    groups: list[string] = v("0+")
    include_authorized_operations: boolean = v("3+")


class DescribeGroupsResponse(Message, key=15, versions="0-6", flexible="5+"):
    """Each group with its members. From version 6 on, GROUP_ID_NOT_FOUND instead of an empty dead group (KIP-1043)."""

    class Group(Struct):
        class Member(Struct):
            member_id: string = v("0+")
            group_instance_id: string | None = v("4+", None, nullable="4+")
            client_id: string = v("0+")
            client_host: string = v("0+")
            member_metadata: byte_string = v("0+")
            member_assignment: byte_string = v("0+")

        error_code: int16 = v("0+")
        error_message: string | None = v("6+", None, nullable="6+")
        group_id: string = v("0+")
        group_state: string = v("0+")
        protocol_type: string = v("0+")
        protocol_data: string = v("0+")
        members: list[Member] = v("0+")
        authorized_operations: int32 = v("3+", NO_OPERATIONS)

    throttle_time_ms: int32 = v("1+")
    groups: list[Group] = v("0+")


class DeleteGroupsRequest(Message, key=42, versions="0-2", flexible="2+"):
    """Groups to forget, with their offsets (KIP-229)."""

    groups_names: list[string] = v("0+")


class DeleteGroupsResponse(Message, key=42, versions="0-2", flexible="2+"):
    """What became of each."""

    class Result(Struct):
        group_id: string = v("0+")
        error_code: int16 = v("0+")

    throttle_time_ms: int32 = v("0+")
    results: list[Result] = v("0+")
