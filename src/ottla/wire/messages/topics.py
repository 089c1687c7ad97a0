"""Making, growing and removing topics."""

from ottla.wire.schema import Message, Struct, boolean, int8, int16, int32, string, uuid, v


class CreateTopicsRequest(Message, key=19, versions="2-7", flexible="5+"):
    """New topics, placed by the cluster or by explicit assignment.

    Version 4 lets the broker choose both counts (KIP-464), 5 returns settings (KIP-525), 6 may be throttled (KIP-599),
    7 returns topic ids (KIP-516).
    """

    class Topic(Struct):
        class Assignment(Struct):
            partition_index: int32 = v("0+")
            broker_ids: list[int32] = v("0+")

        class Config(Struct):
            name: string = v("0+")
            value: string | None = v("0+", nullable="0+")

        name: string = v("0+")
        num_partitions: int32 = v("0+")  # -1: the broker's default, or as many as assigned
        replication_factor: int16 = v("0+")  # -1: the broker's default, or as assigned
        assignments: list[Assignment] = v("0+")
        configs: list[Config] = v("0+")

    topics: list[Topic] = v("0+")
    timeout_ms: int32 = v("0+", 60000)
    validate_only: boolean = v("1+")


class CreateTopicsResponse(Message, key=19, versions="2-7", flexible="5+"):
    """What became of each topic, with its counts and settings from version 5 on."""

    class Topic(Struct):
        class Config(Struct):
            name: string = v("5+")
            value: string | None = v("5+", nullable="5+")
            read_only: boolean = v("5+")
            config_source: int8 = v("5+", -1)
            is_sensitive: boolean = v("5+")

        name: string = v("0+")
        topic_id: uuid = v("7+")
        error_code: int16 = v("0+")
        error_message: string | None = v("1+", nullable="0+")
        topic_config_error_code: int16 = v("5+", tag=0)  # why configs is null
        num_partitions: int32 = v("5+", -1)
        replication_factor: int16 = v("5+", -1)
        configs: list[Config] | None = v("5+", nullable="5+")

    throttle_time_ms: int32 = v("2+")
    topics: list[Topic] = v("0+")


class DeleteTopicsRequest(Message, key=20, versions="1-6", flexible="4+"):
    """Topics to remove, by name, or from version 6 on by name or id."""

    class Topic(Struct):
        name: string | None = v("6+", None, nullable="6+")
        topic_id: uuid = v("6+")

    topics: list[Topic] = v("6+")
    topic_names: list[string] = v("0-5")
    timeout_ms: int32 = v("0+")


class DeleteTopicsResponse(Message, key=20, versions="1-6", flexible="4+"):
    """What became of each topic."""

    class Topic(Struct):
        name: string | None = v("0+", nullable="6+")
        topic_id: uuid = v("6+")
        error_code: int16 = v("0+")
        error_message: string | None = v("5+", None, nullable="5+")

    throttle_time_ms: int32 = v("1+")
    responses: list[Topic] = v("0+")


class CreatePartitionsRequest(Message, key=37, versions="0-3", flexible="2+"):
    """Raises the number of partitions of topics; it never falls."""

    class Topic(Struct):
        class Assignment(Struct):
            broker_ids: list[int32] = v("0+")

        name: string = v("0+")
        count: int32 = v("0+")  # in all, not in addition
        assignments: list[Assignment] | None = v("0+", nullable="0+")

    topics: list[Topic] = v("0+")
    timeout_ms: int32 = v("0+")
    validate_only: boolean = v("0+")


class CreatePartitionsResponse(Message, key=37, versions="0-3", flexible="2+"):
    """What became of each topic."""

    class Topic(Struct):
        name: string = v("0+")
        error_code: int16 = v("0+")
        error_message: string | None = v("0+", None, nullable="0+")

    throttle_time_ms: int32 = v("0+")
    results: list[Topic] = v("0+")
