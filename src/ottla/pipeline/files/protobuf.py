"""Protocol Buffers: a message of a descriptor set in Spark's words, and records to and from bytes.

`protoc --include_imports --descriptor_set_out=shop.desc shop.proto` writes a descriptor set; no code is generated. A field
that knows whether it was set and was not is NULL; one that does not know it has its default, as its readers everywhere see.
A field that our message does not have is passed over, as its readers everywhere do. One that it has with another type would
be passed over as well, and its default be taken for what was sent: that is an error here.
"""

from __future__ import annotations

from collections.abc import Mapping
from datetime import UTC, datetime, timedelta
from typing import Any

from google.protobuf import descriptor_pb2, descriptor_pool, message_factory
from google.protobuf.descriptor import Descriptor, FieldDescriptor
from google.protobuf.message import Message
from google.protobuf.unknown_fields import UnknownFieldSet

from ottla.pipeline.files import fitting

PLAIN = {
    FieldDescriptor.CPPTYPE_BOOL: "BOOLEAN",
    FieldDescriptor.CPPTYPE_INT32: "INT",
    FieldDescriptor.CPPTYPE_INT64: "BIGINT",
    FieldDescriptor.CPPTYPE_UINT32: "BIGINT",
    FieldDescriptor.CPPTYPE_UINT64: "DECIMAL(20, 0)",
    FieldDescriptor.CPPTYPE_FLOAT: "FLOAT",
    FieldDescriptor.CPPTYPE_DOUBLE: "DOUBLE",
    FieldDescriptor.CPPTYPE_ENUM: "STRING",
}
TIMESTAMP = "google.protobuf.Timestamp"
REAL = {FieldDescriptor.CPPTYPE_FLOAT: 32, FieldDescriptor.CPPTYPE_DOUBLE: 64}
EPOCH = datetime(1970, 1, 1, tzinfo=UTC)


class Misfit(ValueError):
    """A value that its field cannot hold; the text names both."""


class Protobuf:
    """One message type, ready to read and write."""

    def __init__(self, descriptor_set: bytes, message: str, skip_bytes: int = 0) -> None:
        files = descriptor_pb2.FileDescriptorSet.FromString(descriptor_set)
        pool = descriptor_pool.DescriptorPool()
        for file in files.file:
            pool.Add(file)
        try:
            self._descriptor = pool.FindMessageTypeByName(message)
        except KeyError:
            known = [f"{file.package}.{each.name}".lstrip(".") for file in files.file for each in file.message_type]
            raise ValueError(f"there is no message {message!r} in it: it has {', '.join(known)}")
        self._class = message_factory.GetMessageClass(self._descriptor)
        self._skip_bytes = skip_bytes

    def columns(self) -> str:
        return ", ".join(f"`{field.name}` {_type(field, ())}" for field in self._descriptor.fields)

    def decode(self, data: bytes) -> dict[str, Any]:
        message = self._class.FromString(data[self._skip_bytes :])
        _check_types(message)
        row: dict[str, Any] = _row(message)
        return row

    def encode(self, row: Mapping[str, Any]) -> bytes:
        message = self._class()
        _fill(message, row)
        body: bytes = message.SerializeToString(deterministic=True)
        return b"\0" * self._skip_bytes + body


def _type(field: FieldDescriptor, above: tuple[str, ...]) -> str:
    if _is_map(field):
        key, value = field.message_type.fields_by_name["key"], field.message_type.fields_by_name["value"]
        return f"MAP<{_single(key, above)}, {_single(value, above)}>"
    one = _single(field, above)
    return f"ARRAY<{one}>" if _is_repeated(field) else one


def _single(field: FieldDescriptor, above: tuple[str, ...]) -> str:
    if field.type == FieldDescriptor.TYPE_BYTES:
        return "BINARY"
    if field.cpp_type == FieldDescriptor.CPPTYPE_STRING:
        return "STRING"
    if field.cpp_type == FieldDescriptor.CPPTYPE_MESSAGE:
        return _struct(field.message_type, above)
    return PLAIN[field.cpp_type]


def _struct(descriptor: Descriptor, above: tuple[str, ...]) -> str:
    if descriptor.full_name == TIMESTAMP:
        return "TIMESTAMP"
    if descriptor.full_name in above:
        raise ValueError(f"{descriptor.full_name} contains itself: no column of Spark does")
    inside = (*above, descriptor.full_name)
    return f"STRUCT<{', '.join(f'`{field.name}`: {_type(field, inside)}' for field in descriptor.fields)}>"


def _is_repeated(field: FieldDescriptor) -> bool:
    return bool(field.is_repeated)


def _is_map(field: FieldDescriptor) -> bool:
    return field.message_type is not None and bool(field.message_type.GetOptions().map_entry)


# Bytes to rows


def _check_types(message: Message) -> None:
    """What was sent under the number of a field and cannot be it; in proto2 also a value that its enum does not have."""
    known = message.DESCRIPTOR.fields_by_number
    for unknown in UnknownFieldSet(message):
        if unknown.field_number in known:
            told = f"{message.DESCRIPTOR.full_name}.{known[unknown.field_number].name}"
            raise ValueError(f"{told} is something else in it: another schema wrote it")
    for field, value in message.ListFields():
        if field.cpp_type == FieldDescriptor.CPPTYPE_MESSAGE and not _is_map(field):
            for each in value if _is_repeated(field) else [value]:
                _check_types(each)


def _row(message: Message) -> Any:
    if message.DESCRIPTOR.full_name == TIMESTAMP:
        return EPOCH + timedelta(seconds=message.seconds, microseconds=message.nanos // 1000)
    return {field.name: _value(message, field) for field in message.DESCRIPTOR.fields}


def _value(message: Message, field: FieldDescriptor) -> Any:
    value = getattr(message, field.name)
    if _is_map(field):
        of = field.message_type.fields_by_name["value"]
        return [(key, _one(each, of)) for key, each in value.items()]
    if _is_repeated(field):
        return [_one(each, field) for each in value]
    if field.has_presence and not message.HasField(field.name):
        return None
    return _one(value, field)


def _one(value: Any, field: FieldDescriptor) -> Any:
    if field.cpp_type == FieldDescriptor.CPPTYPE_MESSAGE:
        return _row(value)
    if field.cpp_type == FieldDescriptor.CPPTYPE_ENUM:
        known = field.enum_type.values_by_number.get(value)
        return known.name if known else str(value)  # a number from a newer schema is kept as it is
    return value


# Rows to bytes


def _fill(message: Message, row: Any) -> None:
    if message.DESCRIPTOR.full_name == TIMESTAMP:
        since = row - EPOCH
        message.seconds, message.nanos = since.days * 86_400 + since.seconds, since.microseconds * 1000
        return
    unknown = set(row) - set(message.DESCRIPTOR.fields_by_name)
    if unknown:
        raise ValueError(f"{message.DESCRIPTOR.full_name} has no field {', '.join(sorted(unknown))}")
    for name, value in row.items():
        if value is not None:
            _put_or_tell(message, message.DESCRIPTOR.fields_by_name[name], value)


def _put_or_tell(message: Message, field: FieldDescriptor, value: Any) -> None:
    """The library says what is wrong, and not where."""
    try:
        _put(message, field, value)
    except (TypeError, OverflowError, ValueError) as error:
        if isinstance(error, Misfit):
            raise
        raise Misfit(f"{field.full_name} cannot be {fitting.shown(value)}: {error}") from error


def _put(message: Message, field: FieldDescriptor, value: Any) -> None:
    inside = getattr(message, field.name)
    if _is_map(field):
        of = field.message_type.fields_by_name["value"]
        for key, each in dict(value).items():
            if of.cpp_type == FieldDescriptor.CPPTYPE_MESSAGE:
                _fill(inside[key], each)
            else:
                inside[key] = _said(each, of)
    elif field.cpp_type == FieldDescriptor.CPPTYPE_MESSAGE:
        for each, made in [(e, inside.add()) for e in value] if _is_repeated(field) else [(value, inside)]:
            _fill(made, each)
        if not _is_repeated(field):
            inside.SetInParent()
    elif _is_repeated(field):
        inside.extend(_said(each, field) for each in value)
    else:
        setattr(message, field.name, _said(value, field))


def _said(value: Any, field: FieldDescriptor) -> Any:
    """What the library would write as something else is refused: 1.5 as a whole number, infinity for what is too large."""
    if field.cpp_type == FieldDescriptor.CPPTYPE_ENUM and isinstance(value, str):
        known = field.enum_type.values_by_name.get(value)
        return known.number if known else int(value)
    if field.cpp_type in REAL and not fitting.is_real(value, REAL[field.cpp_type]):
        raise ValueError(f"a {REAL[field.cpp_type]}-bit float cannot hold it")
    if field.cpp_type == FieldDescriptor.CPPTYPE_BOOL and not isinstance(value, bool):
        raise TypeError("it is neither true nor false")
    if field.cpp_type == FieldDescriptor.CPPTYPE_UINT64:
        if not fitting.is_whole(value, 64, signed=False):
            raise ValueError("it is not a whole number from 0 to 18446744073709551615")
        return int(value)
    return value
