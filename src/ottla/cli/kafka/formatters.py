"""How kafka-console-consumer.sh writes a record: Kafka's own formatters, by their class names."""

from __future__ import annotations

import sys
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING

from ottla.cli.kafka.deserializers import deserializer
from ottla.cli.kafka.options import Usage

if TYPE_CHECKING:
    from ottla.client.consumer import Consumed
    from ottla.wire.schema import Message

    Kinds = Mapping[int, tuple[type[Message], type[Message]]]

Formatter = Callable[["Consumed"], bytes]
PACKAGE = "org.apache.kafka.tools.consumer."
DEFAULT = PACKAGE + "DefaultMessageFormatter"
TIMESTAMP_TYPES = ("CreateTime", "LogAppendTime")
# What --formatter-property can switch on, in the order of the columns.
COLUMNS = ("timestamp", "partition", "offset", "delivery", "epoch", "headers", "key", "value")
OFFSET_COMMIT, GROUP_METADATA = 1, 2


class DefaultFormatter:
    """Columns with a separator between them; by default the value alone."""

    def __init__(self, properties: Mapping[str, str]) -> None:
        self.columns = [name for name in COLUMNS if _is_on(properties, name)]
        self.separator = properties.get("key.separator", "\t").encode()
        self.end = properties.get("line.separator", "\n").encode()
        self.header_separator = properties.get("headers.separator", ",").encode()
        self.null = properties.get("null.literal", "null").encode()
        self._read = {name: self._reader(properties, f"{name}.deserializer") for name in ("key", "value", "headers")}

    def __call__(self, record: Consumed) -> bytes:
        parts = [self._column(name, record) for name in self.columns]
        return self.separator.join(parts) + self.end if parts else b""

    def _column(self, name: str, record: Consumed) -> bytes:
        if name == "timestamp":
            return f"{TIMESTAMP_TYPES[record.timestamp_type]}:{record.timestamp}".encode()
        if name in ("partition", "offset"):
            return f"{name.capitalize()}:{getattr(record, name)}".encode()
        if name in ("delivery", "epoch"):
            return f"{name.capitalize()}:NOT_PRESENT".encode()  # Kafka's tool does not hand them on either
        if name == "headers":
            return self._headers(record)
        return self._shown(record.key if name == "key" else record.value, name)

    def _headers(self, record: Consumed) -> bytes:
        shown = (
            name.encode("utf-8", "surrogateescape") + b":" + self._shown(value, "headers")
            for name, value in record.headers
        )
        return self.header_separator.join(shown) or b"NO_HEADERS"

    def _shown(self, data: bytes | None, what: str) -> bytes:
        if data is None:
            return self.null
        read = self._read[what]
        return data if read is None else read(data)

    def _reader(self, properties: Mapping[str, str], name: str) -> Callable[[bytes], bytes] | None:
        if name not in properties:
            return None
        found = deserializer(properties[name])
        if found is None:
            print(f"ERROR Unable to instantiate a deserializer from {properties[name]}", file=sys.stderr)
        return found


def _is_on(properties: Mapping[str, str], name: str) -> bool:
    return properties.get(f"print.{name}", str(name == "value")).strip().lower() == "true"


class LoggingFormatter(DefaultFormatter):
    """The same, and a line in the log (standard error) for each record."""

    def __call__(self, record: Consumed) -> bytes:
        key = "null " if record.key is None else record.key.decode("utf-8", "replace") + ", "
        value = "null" if record.value is None else record.value.decode("utf-8", "replace")
        kind = TIMESTAMP_TYPES[record.timestamp_type]
        print(f"INFO {kind}:{record.timestamp}, key:{key}value:{value}", file=sys.stderr)
        return super().__call__(record)


class CoordinatorFormatter:
    """Records of an internal topic as JSON. As in Kafka's tool nothing stands between two of them."""

    def __init__(self, kinds: Kinds) -> None:
        self.kinds = kinds

    def __call__(self, record: Consumed) -> bytes:
        from ottla.cli.dump.jsonform import as_json, text
        from ottla.wire.codec import decode

        kind = int.from_bytes((record.key or b"")[:2], "big", signed=True) if record.key else -1
        if kind not in self.kinds:
            return b""
        key_layout, value_layout = self.kinds[kind]
        shown: dict[str, object] = {
            "key": {"type": kind, "data": as_json(decode(key_layout, record.key or b"", 0, 2), 0)},
            "value": None,
        }
        if record.value is not None:
            version = int.from_bytes(record.value[:2], "big", signed=True)
            value = decode(value_layout, record.value, version, 2)
            shown["value"] = {"version": version, "data": as_json(value, version)}
        return text(shown).encode()


def formatter(name: str, properties: Mapping[str, str]) -> Formatter:
    short = name.removeprefix(PACKAGE).removeprefix("group.share.").removeprefix("kafka.tools.")
    if short == "DefaultMessageFormatter":
        return DefaultFormatter(properties)
    if short == "LoggingMessageFormatter":
        return LoggingFormatter(properties)
    if short == "NoOpMessageFormatter":
        return lambda _record: b""
    kinds = _kinds(short)
    if kinds is None:
        raise Usage(name)
    return CoordinatorFormatter(kinds)


def _kinds(short: str) -> Kinds | None:
    """The records of internal topics that a formatter shows."""
    from ottla.cli.dump.layouts import SHARE_STATE_KINDS
    from ottla.coordination.records import KINDS
    from ottla.coordination.transactions import records as transactions

    of_groups: dict[str, Kinds] = {
        "OffsetsMessageFormatter": {OFFSET_COMMIT: KINDS[OFFSET_COMMIT]},
        "GroupMetadataMessageFormatter": {GROUP_METADATA: KINDS[GROUP_METADATA]},
        "TransactionLogMessageFormatter": transactions.KINDS,
        "ShareGroupStateMessageFormatter": SHARE_STATE_KINDS,
    }
    return of_groups.get(short)
