"""What brokers and controllers say to the active controller: that they are there, what they hold, and for whom they ask;
and what operators say of those that are gone."""

from ottla.wire.schema import Message, Struct, boolean, byte_string, int8, int16, int32, int64, string, uint16, uuid, v


class AlterPartitionRequest(Message, key=56, versions="2-3", flexible="0+"):
    """A leader says who is in sync with it (KIP-497). Version 3 names the lives of those brokers (KIP-903)."""

    class Topic(Struct):
        class Partition(Struct):
            class BrokerState(Struct):
                broker_id: int32 = v("3+")
                broker_epoch: int64 = v("3+", -1)  # -1: whichever life it is

            partition_index: int32 = v("0+")
            leader_epoch: int32 = v("0+")
            new_isr: list[int32] = v("0-2")
            new_isr_with_epochs: list[BrokerState] = v("3+")
            leader_recovery_state: int8 = v("1+", 0)  # 1: still recovering from an unclean election
            partition_epoch: int32 = v("0+")

        topic_id: uuid = v("2+")
        partitions: list[Partition] = v("0+")

    broker_id: int32 = v("0+")
    broker_epoch: int64 = v("0+", -1)
    topics: list[Topic] = v("0+")


class AlterPartitionResponse(Message, key=56, versions="2-3", flexible="0+"):
    """Each partition as it is now."""

    class Topic(Struct):
        class Partition(Struct):
            partition_index: int32 = v("0+")
            error_code: int16 = v("0+")
            leader_id: int32 = v("0+")
            leader_epoch: int32 = v("0+")
            isr: list[int32] = v("0+")
            leader_recovery_state: int8 = v("1+", 0)
            partition_epoch: int32 = v("0+")

        topic_id: uuid = v("2+")
        partitions: list[Partition] = v("0+")

    throttle_time_ms: int32 = v("0+")
    error_code: int16 = v("0+")
    topics: list[Topic] = v("0+")


class EnvelopeRequest(Message, key=58, versions="0", flexible="0+"):
    """A client's request as it came, with who sent it and from where (KIP-590)."""

    request_data: byte_string = v("0+")  # header and body, without the length
    request_principal: byte_string | None = v("0+", nullable="0+")  # a DefaultPrincipalData behind its version
    client_host_address: byte_string = v("0+")  # 4 or 16 bytes


class EnvelopeResponse(Message, key=58, versions="0", flexible="0+"):
    """The answer for that client, header and body; or why the envelope was not opened."""

    response_data: byte_string | None = v("0+", None, nullable="0+")
    error_code: int16 = v("0+")


class DefaultPrincipalData(Message, versions="0", flexible="0+"):
    """A principal inside an envelope."""

    type: string = v("0+")
    name: string = v("0+")
    token_authenticated: boolean = v("0+")


class Listener(Struct):
    """An endpoint that a registering node offers."""

    name: string = v("0+")
    host: string = v("0+")
    port: uint16 = v("0+")
    security_protocol: int16 = v("0+")


class Feature(Struct):
    """Versions of a feature that a registering node can live with."""

    name: string = v("0+")
    min_supported_version: int16 = v("0+")
    max_supported_version: int16 = v("0+")


class BrokerRegistrationRequest(Message, key=62, versions="0-4", flexible="0+"):
    """A broker joins the cluster (KIP-500).

    Version 2 names its directories (KIP-858), 3 its last life if that ended well (KIP-966), 4 features that begin at 0.
    """

    broker_id: int32 = v("0+")
    cluster_id: string = v("0+")
    incarnation_id: uuid = v("0+")
    listeners: list[Listener] = v("0+")
    features: list[Feature] = v("0+")
    rack: string | None = v("0+", nullable="0+")
    is_migrating_zk_broker: boolean = v("1+", False)
    log_dirs: list[uuid] = v("2+")
    previous_broker_epoch: int64 = v("3+", -1)


class BrokerRegistrationResponse(Message, key=62, versions="0-4", flexible="0+"):
    """The epoch of this life of the broker."""

    throttle_time_ms: int32 = v("0+")
    error_code: int16 = v("0+")
    broker_epoch: int64 = v("0+", -1)


class BrokerHeartbeatRequest(Message, key=63, versions="0-2", flexible="0+"):
    """A broker is alive, how far it has read, and what it wants (KIP-631).

    Version 1 tells of failed directories (KIP-858), 2 of those that take no new replicas (KIP-1066).
    """

    broker_id: int32 = v("0+")
    broker_epoch: int64 = v("0+", -1)
    current_metadata_offset: int64 = v("0+")
    want_fence: boolean = v("0+")
    want_shut_down: boolean = v("0+")
    offline_log_dirs: list[uuid] = v("1+", tag=0)
    cordoned_log_dirs: list[uuid] | None = v("2+", None, nullable="2+", tag=1)  # null: not known yet


class BrokerHeartbeatResponse(Message, key=63, versions="0-2", flexible="0+"):
    """Whether it has caught up, takes part, and may go."""

    throttle_time_ms: int32 = v("0+")
    error_code: int16 = v("0+")
    is_caught_up: boolean = v("0+", False)
    is_fenced: boolean = v("0+", True)
    should_shut_down: boolean = v("0+")


class AllocateProducerIdsRequest(Message, key=67, versions="0", flexible="0+"):
    """A broker has given out its producer ids and wants more (KIP-730)."""

    broker_id: int32 = v("0+")
    broker_epoch: int64 = v("0+", -1)


class AllocateProducerIdsResponse(Message, key=67, versions="0", flexible="0+"):
    """A row of producer ids that nobody else gets."""

    throttle_time_ms: int32 = v("0+")
    error_code: int16 = v("0+")
    producer_id_start: int64 = v("0+")
    producer_id_len: int32 = v("0+")


class ControllerRegistrationRequest(Message, key=70, versions="0", flexible="0+"):
    """A controller says where it listens and what it can (KIP-919)."""

    controller_id: int32 = v("0+")
    incarnation_id: uuid = v("0+")
    zk_migration_ready: boolean = v("0+")
    listeners: list[Listener] = v("0+")
    features: list[Feature] = v("0+")


class ControllerRegistrationResponse(Message, key=70, versions="0", flexible="0+"):
    """Whether it is written down."""

    throttle_time_ms: int32 = v("0+")
    error_code: int16 = v("0+")
    error_message: string | None = v("0+", nullable="0+")


class AssignReplicasToDirsRequest(Message, key=73, versions="0", flexible="0+"):
    """A broker says in which of its directories replicas are (KIP-858)."""

    class Directory(Struct):
        class Topic(Struct):
            class Partition(Struct):
                partition_index: int32 = v("0+")

            topic_id: uuid = v("0+")
            partitions: list[Partition] = v("0+")

        id: uuid = v("0+")
        topics: list[Topic] = v("0+")

    broker_id: int32 = v("0+")
    broker_epoch: int64 = v("0+", -1)
    directories: list[Directory] = v("0+")


class AssignReplicasToDirsResponse(Message, key=73, versions="0", flexible="0+"):
    """Which of them are written down."""

    class Directory(Struct):
        class Topic(Struct):
            class Partition(Struct):
                partition_index: int32 = v("0+")
                error_code: int16 = v("0+")

            topic_id: uuid = v("0+")
            partitions: list[Partition] = v("0+")

        id: uuid = v("0+")
        topics: list[Topic] = v("0+")

    throttle_time_ms: int32 = v("0+")
    error_code: int16 = v("0+")
    directories: list[Directory] = v("0+")


class UnregisterBrokerRequest(Message, key=64, versions="0", flexible="0+"):
    """A broker that is gone for good."""

    broker_id: int32 = v("0+")


class UnregisterBrokerResponse(Message, key=64, versions="0", flexible="0+"):
    """Whether it is forgotten."""

    throttle_time_ms: int32 = v("0+")
    error_code: int16 = v("0+")
    error_message: string | None = v("0+", None, nullable="0+")
