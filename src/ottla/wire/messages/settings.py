"""Reading and changing the settings of brokers and topics."""

from ottla.wire.schema import Message, Struct, boolean, int8, int16, int32, string, v


class DescribeConfigsRequest(Message, key=32, versions="1-4", flexible="4+"):
    """Asks for the settings of topics, brokers and groups. Version 3 adds documentation and types (KIP-569)."""

    class Resource(Struct):
        resource_type: int8 = v("0+")  # 2 topic, 4 broker, 8 broker logger, 16 client metrics, 32 group
        resource_name: string = v("0+")
        configuration_keys: list[string] | None = v("0+", nullable="0+")  # null: all

    resources: list[Resource] = v("0+")
    include_synonyms: boolean = v("1+")
    include_documentation: boolean = v("3+")


class DescribeConfigsResponse(Message, key=32, versions="1-4", flexible="4+"):
    """Each setting with its value, where the value comes from, and what it would be without that."""

    class Resource(Struct):
        class Config(Struct):
            class Synonym(Struct):
                name: string = v("1+")
                value: string | None = v("1+", nullable="0+")
                source: int8 = v("1+")

            name: string = v("0+")
            value: string | None = v("0+", nullable="0+")
            read_only: boolean = v("0+")
            # 1 topic, 2 broker, 3 default of all brokers, 4 file, 5 built in, 7 client metrics, 8 group
            config_source: int8 = v("1+", -1)
            is_sensitive: boolean = v("0+")
            synonyms: list[Synonym] = v("1+")
            config_type: int8 = v("3+")
            documentation: string | None = v("3+", nullable="0+")

        error_code: int16 = v("0+")
        error_message: string | None = v("0+", nullable="0+")
        resource_type: int8 = v("0+")
        resource_name: string = v("0+")
        configs: list[Config] = v("0+")

    throttle_time_ms: int32 = v("0+")
    results: list[Resource] = v("0+")


class AlterConfigsRequest(Message, key=33, versions="0-2", flexible="2+"):
    """Replaces all settings of a resource; those not named go back to their defaults."""

    class Resource(Struct):
        class Config(Struct):
            name: string = v("0+")
            value: string | None = v("0+", nullable="0+")

        resource_type: int8 = v("0+")
        resource_name: string = v("0+")
        configs: list[Config] = v("0+")

    resources: list[Resource] = v("0+")
    validate_only: boolean = v("0+")


class AlterConfigsResponse(Message, key=33, versions="0-2", flexible="2+"):
    """What became of each resource."""

    class Resource(Struct):
        error_code: int16 = v("0+")
        error_message: string | None = v("0+", nullable="0+")
        resource_type: int8 = v("0+")
        resource_name: string = v("0+")

    throttle_time_ms: int32 = v("0+")
    responses: list[Resource] = v("0+")


class IncrementalAlterConfigsRequest(Message, key=44, versions="0-1", flexible="1+"):
    """Changes single settings of a resource and leaves the others alone (KIP-339)."""

    class Resource(Struct):
        class Config(Struct):
            name: string = v("0+")
            config_operation: int8 = v("0+")  # 0 set, 1 delete, 2 append, 3 subtract
            value: string | None = v("0+", nullable="0+")

        resource_type: int8 = v("0+")
        resource_name: string = v("0+")
        configs: list[Config] = v("0+")

    resources: list[Resource] = v("0+")
    validate_only: boolean = v("0+")


class IncrementalAlterConfigsResponse(Message, key=44, versions="0-1", flexible="1+"):
    """What became of each resource."""

    class Resource(Struct):
        error_code: int16 = v("0+")
        error_message: string | None = v("0+", nullable="0+")
        resource_type: int8 = v("0+")
        resource_name: string = v("0+")

    throttle_time_ms: int32 = v("0+")
    responses: list[Resource] = v("0+")


class ListConfigResourcesRequest(Message, key=74, versions="0-1", flexible="0+"):
    """Asks what there is that has settings. Version 0 knows client metrics subscriptions only (KIP-714), 1 all (KIP-1142)."""

    resource_types: list[int8] = v("1+")  # none: all of them


class ListConfigResourcesResponse(Message, key=74, versions="0-1", flexible="0+"):
    """Names and types."""

    class Resource(Struct):
        resource_name: string = v("0+")
        resource_type: int8 = v("1+", 16)

    throttle_time_ms: int32 = v("0+")
    error_code: int16 = v("0+")
    config_resources: list[Resource] = v("0+")
