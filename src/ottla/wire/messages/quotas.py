"""Limits of users, clients and addresses (KIP-546)."""

from ottla.wire.schema import Message, Struct, boolean, float64, int8, int16, int32, string, v


class DescribeClientQuotasRequest(Message, key=48, versions="0-1", flexible="1+"):
    """Asks for the limits of all entities that match."""

    class Component(Struct):
        entity_type: string = v("0+")  # user, client-id or ip
        match_type: int8 = v("0+")  # 0 this name, 1 the default, 2 any
        match: string | None = v("0+", nullable="0+")

    components: list[Component] = v("0+")
    strict: boolean = v("0+")  # leave out entities that have other types beside


class DescribeClientQuotasResponse(Message, key=48, versions="0-1", flexible="1+"):
    """Limits by entity; a name of null is the default of its type."""

    class Entry(Struct):
        class Entity(Struct):
            entity_type: string = v("0+")
            entity_name: string | None = v("0+", nullable="0+")

        class Value(Struct):
            key: string = v("0+")
            value: float64 = v("0+")

        entity: list[Entity] = v("0+")
        values: list[Value] = v("0+")

    throttle_time_ms: int32 = v("0+")
    error_code: int16 = v("0+")
    error_message: string | None = v("0+", nullable="0+")
    entries: list[Entry] | None = v("0+", nullable="0+")


class AlterClientQuotasRequest(Message, key=49, versions="0-1", flexible="1+"):
    """Sets and removes single limits of entities."""

    class Entry(Struct):
        class Entity(Struct):
            entity_type: string = v("0+")
            entity_name: string | None = v("0+", nullable="0+")

        class Op(Struct):
            key: string = v("0+")
            value: float64 = v("0+")
            remove: boolean = v("0+")

        entity: list[Entity] = v("0+")
        ops: list[Op] = v("0+")

    entries: list[Entry] = v("0+")
    validate_only: boolean = v("0+")


class AlterClientQuotasResponse(Message, key=49, versions="0-1", flexible="1+"):
    """What became of each entity."""

    class Entry(Struct):
        class Entity(Struct):
            entity_type: string = v("0+")
            entity_name: string | None = v("0+", nullable="0+")

        error_code: int16 = v("0+")
        error_message: string | None = v("0+", nullable="0+")
        entity: list[Entity] = v("0+")

    throttle_time_ms: int32 = v("0+")
    entries: list[Entry] = v("0+")
