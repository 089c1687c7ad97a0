"""Keys and values as text: plain ones by a decoder of Kafka's names, those of internal topics as JSON."""

from __future__ import annotations

import re
import struct
from collections.abc import Callable, Mapping
from typing import Any

from ottla.cli.dump.jsonform import as_json, text
from ottla.wire.codec import Malformed, decode
from ottla.wire.records import Record
from ottla.wire.schema import Message

Shown = tuple[str | None, str | None]
Decoder = Callable[[Record], Shown]
Kinds = Mapping[int, tuple[type[Message], type[Message]]]

DECODERS = "org.apache.kafka.tools.api."
STRING = DECODERS + "StringDecoder"
DELETED = "<DELETE>"


def as_string(data: bytes) -> str:
    """UTF-8 as Java reads it: what cannot be read becomes a replacement character."""
    return data.decode("utf-8", "replace")


def as_integer(data: bytes) -> str:
    return str(struct.unpack_from(">i", data)[0])


def as_long(data: bytes) -> str:
    return str(struct.unpack_from(">q", data)[0])


def as_hexadecimal(data: bytes) -> str:
    """Java prints an array as its address; the bytes themselves are of more use."""
    return data.hex()


CLASSES: dict[str, Callable[[bytes], str]] = {
    STRING: as_string,
    DECODERS + "IntegerDecoder": as_integer,
    DECODERS + "LongDecoder": as_long,
    DECODERS + "DefaultDecoder": as_hexadecimal,
}
# Names that these decoders had before.
CLASSES |= {name.replace(DECODERS, "kafka.serializer."): decoder for name, decoder in list(CLASSES.items())}


def plain(key: Callable[[bytes], str], value: Callable[[bytes], str]) -> Decoder:
    def shown(record: Record) -> Shown:
        return (
            None if record.key is None else key(record.key),
            None if record.value is None else value(record.value),
        )

    return shown


def cluster_metadata(record: Record) -> Shown:
    """Records of `__cluster_metadata` and of its snapshots: a frame around a message."""
    from ottla.metadata.records import UnknownRecord, unframe_versioned

    try:
        message, version = unframe_versioned(record.value or b"")
    except (UnknownRecord, Malformed) as error:
        return None, f"Error at {record.offset}, skipping. {error}"
    name = re.sub(r"(?<!^)(?=[A-Z])", "_", type(message).__name__).upper()
    return None, text({"type": name, "version": version, "data": as_json(message, version)})


def offsets(record: Record) -> Shown:
    """Records of `__consumer_offsets`; what consumers told each other inside of them is opened as well."""
    from ottla.cli.dump.layouts import SHARE_GROUP_KINDS
    from ottla.coordination.records import KINDS

    return _coordinator_record(record, {**KINDS, **SHARE_GROUP_KINDS}, "offset topic", _open_members)


def transactions(record: Record) -> Shown:
    """Records of `__transaction_state`."""
    from ottla.coordination.transactions.records import KINDS

    return _coordinator_record(record, KINDS, "transaction log")


def share_state(record: Record) -> Shown:
    """Records of `__share_group_state`."""
    from ottla.cli.dump.layouts import SHARE_STATE_KINDS

    return _coordinator_record(record, SHARE_STATE_KINDS, "share group state topic")


def _coordinator_record(
    record: Record, kinds: Kinds, where: str, opened: Callable[[dict[str, Any]], None] | None = None
) -> Shown:
    """A key is its type and a message, a value its version and a message."""
    if record.key is None:
        return (
            None,
            f"Failed to decode message at offset {record.offset} using {where} decoder (message had a missing key)",
        )
    kind = int.from_bytes(record.key[:2], "big", signed=True)
    if kind not in kinds:
        return f"Unknown record type {kind} at offset {record.offset}, skipping.", None
    key_layout, value_layout = kinds[kind]
    try:
        key = text({"type": str(kind), "data": as_json(decode(key_layout, record.key, 0, 2), 0)})
        if record.value is None:
            return key, DELETED
        version = int.from_bytes(record.value[:2], "big", signed=True)
        if version not in value_layout.versions:
            raise Malformed(f"Can't read version {version} of {value_layout.__name__}")
        data = as_json(decode(value_layout, record.value, version, 2), version)
    except Malformed as error:
        return f"Error at offset {record.offset}, skipping. {error}", None
    if opened is not None:
        opened(data)
    return key, text({"version": str(version), "data": data})


def _open_members(data: dict[str, Any]) -> None:
    """In a group of consumers, subscriptions and assignments are messages of their own."""
    import base64

    from ottla.wire.messages.subscriptions import ConsumerProtocolAssignment, ConsumerProtocolSubscription

    if data.get("protocolType") != "consumer":
        return
    layouts: dict[str, type[Message]] = {
        "subscription": ConsumerProtocolSubscription,
        "assignment": ConsumerProtocolAssignment,
    }
    for member in data.get("members", ()):
        for field, layout in layouts.items():
            raw = base64.b64decode(member[field])
            version = int.from_bytes(raw[:2], "big", signed=True)
            if version not in layout.versions:
                continue
            try:
                message: Message = decode(layout, raw, version, 2, trailing=True)
            except Malformed:
                continue
            member[field] = as_json(message, version)
