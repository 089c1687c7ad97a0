"""Formats that Spark cannot read without jars, decoded and encoded by Python on the executors, a batch of Arrow at a time.

A record that cannot be decoded is not an error of the query: it gets NULL in every column and the reason in `_error`.
What a codec needs is only loaded where it is used, since its library is an extra of its own.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from importlib import import_module
from typing import Any, Protocol

import pyarrow as pa

from ottla.pipeline import needs

ERROR = "_error"
LIBRARIES = {"avro": "fastavro", "protobuf": "google.protobuf"}


class DoesNotFit(ValueError):
    """A row that its schema cannot hold: to try it again would not help."""


class Codec(Protocol):
    def columns(self) -> str: ...
    def decode(self, data: bytes) -> dict[str, Any]: ...
    def encode(self, row: Mapping[str, Any]) -> bytes: ...


@dataclass(frozen=True)
class Recipe:
    """How to make a codec; this is what travels to the executors."""

    name: str
    schema: bytes
    message: str
    skip_bytes: int
    writers: tuple[tuple[int, bytes], ...] = ()  # avro: other schemas, by their numbers in a registry

    def codec(self) -> Codec:
        needs.modules({LIBRARIES[self.name]: self.name})
        module = import_module(f"ottla.pipeline.files.{self.name}")
        if self.name == "avro":
            writers = {number: schema.decode() for number, schema in self.writers}
            made: Codec = module.Avro(self.schema.decode(), self.skip_bytes, writers)
        else:
            made = module.Protobuf(self.schema, self.message, self.skip_bytes)
        return made


Batches = Iterable[pa.RecordBatch]


def decoder(
    recipe: Recipe, fields: pa.Schema, value: str, kept: Sequence[str]
) -> Callable[[Batches], Iterator[pa.RecordBatch]]:
    """For mapInArrow: the column `value` becomes `fields` and `_error`; the columns `kept` stay as they are."""

    def decode(batches: Batches) -> Iterator[pa.RecordBatch]:
        codec = recipe.codec()
        for batch in batches:
            columns, errors = decoded(codec, batch.column(value).to_pylist(), fields)
            arrays = [*columns, *(batch.column(name) for name in kept), errors]
            yield pa.RecordBatch.from_arrays(arrays, names=[*fields.names, *kept, ERROR])

    return decode


def decoded(codec: Codec, values: Sequence[bytes | None], fields: pa.Schema) -> tuple[list[pa.Array], pa.Array]:
    """A column for each field, and one of reasons; a record without a value has neither."""
    rows: list[dict[str, Any] | None] = []
    errors: list[str | None] = []
    struct = pa.struct(list(fields))
    for value in values:
        row, error = _decoded_one(codec, value, struct)
        rows.append(row)
        errors.append(error)
    return pa.array(rows, struct).flatten(), pa.array(errors, pa.string())


def _decoded_one(codec: Codec, value: bytes | None, struct: pa.DataType) -> tuple[dict[str, Any] | None, str | None]:
    if value is None:
        return None, None
    try:
        row = codec.decode(value)
        pa.scalar(row, struct)  # what the column cannot hold is found here, where its record is known
    except Exception as error:  # whatever a library raises about bytes of strangers
        return None, reason(error)
    return row, None


def reason(error: Exception) -> str:
    text = " ".join(str(error).split())
    return f"{type(error).__name__}: {text}" if text else type(error).__name__


def encoder(
    recipe: Recipe, key: str, deleted: str, fields: Sequence[str]
) -> Callable[[Batches], Iterator[pa.RecordBatch]]:
    """For mapInArrow: the columns `fields` become `value`, or NULL where that called `deleted` is true; `key` stays."""

    def encode(batches: Batches) -> Iterator[pa.RecordBatch]:
        codec = recipe.codec()
        for batch in batches:
            rows = batch.select(list(fields)).to_pylist(maps_as_pydicts="strict")
            gone = batch.column(deleted).to_pylist()
            values = [None if is_gone else _encoded(codec, row) for row, is_gone in zip(rows, gone, strict=True)]
            yield pa.RecordBatch.from_arrays([batch.column(key), pa.array(values, pa.binary())], names=["key", "value"])

    return encode


def _encoded(codec: Codec, row: Mapping[str, Any]) -> bytes:
    try:
        return codec.encode(row)
    except Exception as error:  # whatever a library raises about a value it does not expect
        raise DoesNotFit(f"a row does not fit the schema that it is to be written with: {reason(error)}") from error
