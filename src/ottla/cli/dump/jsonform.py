"""Messages as the JSON that Kafka's own converters make of them."""

from __future__ import annotations

import base64
import json
from typing import Any

from ottla.wire.ids import uuid_text
from ottla.wire.schema import Kind, Layout, ListOf, Struct


def as_json(message: Struct, version: int) -> dict[str, Any]:
    """The fields of that version under Kafka's names. Tagged fields appear only where they say something."""
    shown = {}
    for field in type(message).fields:
        value = getattr(message, field.name)
        if version not in field.versions or (version in field.tagged and value == field.default):
            continue
        shown[_camel(field.name)] = _value(field.kind, value, version)
    return shown


def text(value: Any) -> str:
    """One line of JSON, as Jackson writes it."""
    return json.dumps(value, ensure_ascii=False, separators=(",", ":"))


def _value(kind: Any, value: Any, version: int) -> Any:
    if value is None:
        return None
    if isinstance(kind, ListOf):
        return [_value(kind.element, item, version) for item in value]
    if isinstance(kind, Layout):
        return as_json(value, version)
    assert isinstance(kind, Kind)
    if kind.name == "uuid":
        return uuid_text(value)
    return base64.b64encode(value).decode() if kind.name == "byte_string" else value


def _camel(name: str) -> str:
    first, *rest = name.replace("kraft", "kRaft").split("_")
    return first + "".join(part[:1].upper() + part[1:] for part in rest)
