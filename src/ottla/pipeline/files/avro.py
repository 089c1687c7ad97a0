"""Avro: its schemas in Spark's words, and records to and from bytes with fastavro.

A record is one schemaless datum, as producers put it into a value. Its bytes do not say which schema wrote them: where that
is not the one of the reader, they can be read wrongly and nobody notices. What a registry puts before a record (one zero
byte and the schema's number) says it: with `writers`, schemas by their numbers, each record is read by the one that wrote it
and brought to ours by Avro's rules, and one of a schema that is not among them is an error. Without them it is skipped by
`skip_bytes`.
"""

from __future__ import annotations

import datetime
import io
import json
from collections.abc import Callable, Mapping
from typing import Any

import fastavro

from ottla.pipeline.files import fitting

PLAIN = {
    "boolean": "BOOLEAN",
    "int": "INT",
    "long": "BIGINT",
    "float": "FLOAT",
    "double": "DOUBLE",
    "bytes": "BINARY",
    "string": "STRING",
    "enum": "STRING",
    "fixed": "BINARY",
}
HEADER_BYTES = 5
LOGICAL = {
    "date": "DATE",
    "timestamp-millis": "TIMESTAMP",
    "timestamp-micros": "TIMESTAMP",
    "local-timestamp-millis": "TIMESTAMP_NTZ",
    "local-timestamp-micros": "TIMESTAMP_NTZ",
    "uuid": "STRING",
}


class Avro:
    """One schema, ready to read and write."""

    def __init__(self, schema: str, skip_bytes: int = 0, writers: Mapping[int, str] | None = None) -> None:
        self.text = schema
        self._declared = json.loads(schema)
        self._parsed = fastavro.parse_schema(self._declared)
        self._skip_bytes = skip_bytes
        self._writers = {
            number: fastavro.parse_schema(json.loads(text), named_schemas={})
            for number, text in (writers or {}).items()
        }
        if not isinstance(self._declared, dict) or self._declared.get("type") != "record":
            raise ValueError("the schema must be one record: its fields become the columns")

        self._check = _check(self._declared, _names(self._declared))

    def columns(self) -> str:
        """The fields as Spark declares columns."""
        named = _names(self._declared)
        return ", ".join(_field(each, " ", named) for each in self._declared["fields"])

    def decode(self, data: bytes) -> dict[str, Any]:
        stream = io.BytesIO(data)
        if self._writers:
            record = fastavro.schemaless_reader(stream, self._writer_of(stream.read(HEADER_BYTES)), self._parsed)
        else:
            stream.seek(self._skip_bytes)
            record = fastavro.schemaless_reader(stream, self._parsed, None)
        left = len(data) - stream.tell()
        if left:
            raise ValueError(f"{left} bytes are left over behind the record: another schema wrote it")
        return _speakable(record)  # type: ignore[no-any-return]

    def _writer_of(self, header: bytes) -> Any:
        if len(header) < HEADER_BYTES or header[0] != 0:
            raise ValueError("it does not begin with the header of a registry: a zero byte and the number of a schema")
        number = int.from_bytes(header[1:], "big")
        if number not in self._writers:
            raise ValueError(f"schema {number} wrote it, which is not among the 'writers'")
        return self._writers[number]

    def encode(self, row: Mapping[str, Any]) -> bytes:
        stream = io.BytesIO(b"\0" * self._skip_bytes)
        stream.seek(self._skip_bytes)
        if self._check is not None:
            self._check("", row)
        # A column that the schema does not have would be left out in silence, and one misspelled be null.
        fastavro.schemaless_writer(stream, self._parsed, row, strict_allow_default=True)
        return stream.getvalue()


def _names(schema: Any) -> dict[str, Any]:
    named: dict[str, Any] = {}
    _remember(schema, named)
    return named


def _remember(schema: Any, named: dict[str, Any]) -> None:
    """Records, enums and fixed are declared once and meant by name afterwards."""
    if isinstance(schema, list):
        for each in schema:
            _remember(each, named)
    elif isinstance(schema, dict):
        if "name" in schema and schema.get("type") in ("record", "enum", "fixed"):
            named[schema["name"]] = schema
            named[f"{schema.get('namespace', '')}.{schema['name']}"] = schema
        for inside in (schema.get("items"), schema.get("values"), *(f["type"] for f in schema.get("fields", ()))):
            _remember(inside, named)


def _field(field: Mapping[str, Any], between: str, named: Mapping[str, Any]) -> str:
    return f"`{field['name']}`{between}{_type(field['type'], named)}"


def _type(schema: Any, named: Mapping[str, Any]) -> str:
    if isinstance(schema, list):
        return _union(schema, named)
    if isinstance(schema, str):
        return PLAIN[schema] if schema in PLAIN else _type(_meant(schema, named), named)
    kind = schema["type"]
    if schema.get("logicalType") == "decimal":
        return f"DECIMAL({schema['precision']}, {schema.get('scale', 0)})"
    if schema.get("logicalType") in LOGICAL:
        return LOGICAL[schema["logicalType"]]
    if kind == "record":
        return f"STRUCT<{', '.join(_field(each, ': ', named) for each in schema['fields'])}>"
    if kind == "array":
        return f"ARRAY<{_type(schema['items'], named)}>"
    if kind == "map":
        return f"MAP<STRING, {_type(schema['values'], named)}>"
    return _type(kind, named) if not isinstance(kind, str) or kind not in PLAIN else PLAIN[kind]


def _meant(name: str, named: Mapping[str, Any]) -> Any:
    if name not in named:
        raise ValueError(f"the schema has no type {name!r}")
    return named[name]


def _union(schema: list[Any], named: Mapping[str, Any]) -> str:
    """Something or nothing; a union of several somethings has no column that fits."""
    something = [each for each in schema if each != "null"]
    if len(something) != 1:
        raise ValueError(f"a union of {len(something)} types has no column in Spark: {json.dumps(schema)}")
    return _type(something[0], named)


# What fastavro would write as something else


Check = Callable[[str, Any], None]  # a path of fields, and what is there; raises ValueError
FITS: dict[str, Callable[[Any], bool]] = {
    "int": lambda value: fitting.is_whole(value, 32),
    "long": lambda value: fitting.is_whole(value, 64),
    "float": lambda value: fitting.is_real(value, 32),
    "double": lambda value: fitting.is_real(value, 64),
    "boolean": lambda value: isinstance(value, bool),
}
# A time of no zone would be taken for one of the machine's; a date of a time would have lost its hours.
FITS_LOGICAL: dict[str, Callable[[Any], bool]] = {
    "date": lambda value: isinstance(value, datetime.date) and not isinstance(value, datetime.datetime),
    "timestamp-millis": lambda value: isinstance(value, datetime.datetime) and value.tzinfo is not None,
    "timestamp-micros": lambda value: isinstance(value, datetime.datetime) and value.tzinfo is not None,
    "local-timestamp-millis": lambda value: isinstance(value, datetime.datetime),
    "local-timestamp-micros": lambda value: isinstance(value, datetime.datetime),
}


def _check(schema: Any, named: Mapping[str, Any]) -> Check | None:
    """None where fastavro itself refuses what does not fit."""
    if isinstance(schema, list):
        return _check_of_union(schema, named)
    if isinstance(schema, str):
        return _check_of_number(schema, schema) if schema in PLAIN else _check(_meant(schema, named), named)
    kind, logical = schema["type"], schema.get("logicalType")
    if kind == "record":
        return _check_of_record({each["name"]: _check(each["type"], named) for each in schema["fields"]})
    if kind == "array":
        return _check_of_many(_check(schema["items"], named), enumerate)
    if kind == "map":
        return _check_of_many(_check(schema["values"], named), lambda found: found.items())
    if kind in PLAIN:
        return None if logical == "decimal" else _check_of_number(kind, logical if logical in FITS_LOGICAL else kind)
    return _check(kind, named)


def _check_of_number(kind: str, name: str) -> Check | None:
    fits, as_number = FITS_LOGICAL.get(name), FITS.get(kind)
    if fits is None and as_number is None:
        return None

    def check(path: str, value: Any) -> None:
        if not ((fits and fits(value)) or (as_number and as_number(value))):
            raise ValueError(
                f"{path} is {fitting.shown(value)}, which {name} cannot hold: CAST it, or change the schema"
            )

    return check


def _check_of_union(schema: list[Any], named: Mapping[str, Any]) -> Check | None:
    something = [each for each in schema if each != "null"]
    inside = _check(something[0], named) if len(something) == 1 else None
    if inside is None:
        return None

    def check(path: str, value: Any) -> None:
        if value is not None or "null" not in schema:
            inside(path, value)

    return check


def _check_of_record(fields: Mapping[str, Check | None]) -> Check | None:
    checks = {name: check for name, check in fields.items() if check is not None}
    if not checks:
        return None

    def check(path: str, value: Any) -> None:
        if isinstance(value, Mapping):
            for name, inside in checks.items():
                if name in value:
                    inside(f"{path}.{name}" if path else name, value[name])

    return check


def _check_of_many(inside: Check | None, items: Callable[[Any], Any]) -> Check | None:
    if inside is None:
        return None

    def check(path: str, value: Any) -> None:
        for place, each in items(value) if isinstance(value, Mapping | list) else ():
            inside(f"{path}[{place}]", each)

    return check


def _speakable(value: Any) -> Any:
    """What Arrow takes: a UUID becomes its text."""
    if isinstance(value, dict):
        return {key: _speakable(each) for key, each in value.items()}
    if isinstance(value, list):
        return [_speakable(each) for each in value]
    return str(value) if type(value).__name__ == "UUID" else value
