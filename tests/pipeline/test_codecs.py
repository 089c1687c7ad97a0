"""Avro and Protocol Buffers without Spark: schemas in Spark's words, records there and back, and what does not fit."""

from __future__ import annotations

import io
import json
from datetime import UTC, date, datetime
from decimal import Decimal

import fastavro
import pyarrow as pa
import pytest
from google.protobuf import descriptor_pb2

from ottla.pipeline.files import reasons
from ottla.pipeline.files.avro import Avro
from ottla.pipeline.files.codecs import Recipe, decoded, decoder, encoder
from ottla.pipeline.files.protobuf import Protobuf

ORDER = {
    "type": "record",
    "name": "Order",
    "namespace": "shop",
    "fields": [
        {"name": "id", "type": "long"},
        {"name": "note", "type": ["null", "string"]},
        {"name": "at", "type": {"type": "long", "logicalType": "timestamp-micros"}},
        {"name": "day", "type": {"type": "int", "logicalType": "date"}},
        {"name": "price", "type": {"type": "bytes", "logicalType": "decimal", "precision": 9, "scale": 2}},
        {"name": "kind", "type": {"type": "enum", "name": "Kind", "symbols": ["A", "B"]}},
        {"name": "tags", "type": {"type": "array", "items": "string"}},
        {"name": "counts", "type": {"type": "map", "values": "int"}},
        {"name": "to", "type": {"type": "record", "name": "To", "fields": [{"name": "kind", "type": "Kind"}]}},
    ],
}
ROW = {
    "id": 7,
    "note": None,
    "at": datetime(2026, 1, 2, 3, 4, 5, 678901, UTC),
    "day": date(2026, 1, 2),
    "price": Decimal("12.34"),
    "kind": "B",
    "tags": ["x", "y"],
    "counts": {"n": 3},
    "to": {"kind": "A"},
}


def test_an_avro_schema_in_the_words_of_spark():
    assert Avro(json.dumps(ORDER)).columns() == (
        "`id` BIGINT, `note` STRING, `at` TIMESTAMP, `day` DATE, `price` DECIMAL(9, 2), `kind` STRING, "
        "`tags` ARRAY<STRING>, `counts` MAP<STRING, INT>, `to` STRUCT<`kind`: STRING>"
    )


@pytest.mark.parametrize("skip", [0, 5])
def test_avro_there_and_back(skip):
    codec = Avro(json.dumps(ORDER), skip)
    data = codec.encode(ROW)
    assert codec.decode(data) == ROW
    plain = io.BytesIO()
    fastavro.schemaless_writer(plain, fastavro.parse_schema(ORDER), ROW)
    assert data[skip:] == plain.getvalue()


def test_avro_leaves_no_column_out():
    """One that the schema does not have, and with it one that is misspelled, is an error; a default may stand in."""
    note = {"name": "note", "type": ["null", "string"], "default": None}
    codec = Avro(json.dumps({"type": "record", "name": "R", "fields": [{"name": "id", "type": "long"}, note]}))
    with pytest.raises(ValueError, match="more fields than the schema specifies: nte"):
        codec.encode({"id": 1, "nte": "x"})
    assert codec.decode(codec.encode({"id": 1})) == {"id": 1, "note": None}


def test_avro_of_another_schema_is_not_taken():
    codec = Avro(json.dumps(ORDER))
    with pytest.raises(ValueError, match="1 bytes are left over"):
        codec.decode(codec.encode(ROW) + b"x")
    with pytest.raises(ValueError, match="a union of 2 types has no column"):
        fields = [{"name": "u", "type": ["int", "string"]}]
        Avro(json.dumps({"type": "record", "name": "R", "fields": fields})).columns()
    with pytest.raises(ValueError, match="must be one record"):
        Avro('{"type": "string"}')


def sale(*fields: tuple[str, object]) -> str:
    more = [{"name": name, "type": kind, "default": None} for name, kind in fields]
    return json.dumps({"type": "record", "name": "Sale", "fields": [{"name": "n", "type": "int"}, *more]})


OLD, NEW = sale(), sale(("note", ["null", "string"]))


def numbered(number: int, data: bytes) -> bytes:
    return b"\0" + number.to_bytes(4, "big") + data


def test_avro_is_read_by_the_schema_that_wrote_it():
    """A schema changes in the middle of a topic: the header of a registry says where, and Avro's rules do the rest."""
    old, new = Avro(OLD), Avro(NEW)
    records = [numbered(3, old.encode({"n": 1})), numbered(4, new.encode({"n": 2, "note": "x"}))]
    for reader, rows in ((OLD, [{"n": 1}, {"n": 2}]), (NEW, [{"n": 1, "note": None}, {"n": 2, "note": "x"}])):
        codec = Avro(reader, writers={3: OLD, 4: NEW})
        assert [codec.decode(record) for record in records] == rows


@pytest.mark.parametrize(
    ("record", "told"),
    [
        (numbered(5, b"\x02"), "schema 5 wrote it, which is not among the 'writers'"),
        (b"\x02", "does not begin with the header of a registry"),
        (b"\x01" + numbered(3, b"\x02")[1:], "does not begin with the header of a registry"),
        (numbered(3, b"\x02\x02"), "1 bytes are left over"),
    ],
)
def test_avro_of_a_schema_that_nobody_named_is_not_taken(record, told):
    with pytest.raises(ValueError, match=told):
        Avro(OLD, writers={3: OLD}).decode(record)


def test_avro_of_a_newer_schema_without_a_registry_is_not_taken():
    """Its bytes do not say so, but something is left of them, or missing."""
    with pytest.raises(ValueError, match=r"2 bytes are left over .*: another schema wrote it"):
        Avro(OLD).decode(Avro(NEW).encode({"n": 2, "note": ""}))
    with pytest.raises((EOFError, IndexError)):
        Avro(NEW).decode(Avro(OLD).encode({"n": 2}))


def descriptors() -> bytes:
    """shop.proto, as protoc would compile it."""
    file = descriptor_pb2.FileDescriptorProto(name="shop.proto", package="shop", syntax="proto3")
    kind = file.enum_type.add(name="Kind")
    kind.value.add(name="NONE", number=0)
    kind.value.add(name="GIFT", number=1)
    item = file.message_type.add(name="Item")
    item.field.add(name="name", number=1, type=9, label=1)
    order = file.message_type.add(name="Order")
    order.field.add(name="id", number=1, type=3, label=1)
    order.field.add(name="kind", number=2, type=14, type_name=".shop.Kind", label=1)
    order.field.add(name="items", number=3, type=11, type_name=".shop.Item", label=3)
    order.field.add(name="first", number=4, type=11, type_name=".shop.Item", label=1)
    order.field.add(name="big", number=5, type=4, label=1)
    order.field.add(name="data", number=6, type=12, label=1)
    order.oneof_decl.add(name="_note")
    order.field.add(name="note", number=7, type=9, label=1, proto3_optional=True, oneof_index=0)
    entry = order.nested_type.add(name="CountsEntry")
    entry.options.map_entry = True
    entry.field.add(name="key", number=1, type=9, label=1)
    entry.field.add(name="value", number=2, type=5, label=1)
    order.field.add(name="counts", number=8, type=11, type_name=".shop.Order.CountsEntry", label=3)
    return descriptor_pb2.FileDescriptorSet(file=[file]).SerializeToString()


def test_protobuf_there_and_back():
    codec = Protobuf(descriptors(), "shop.Order")
    assert codec.columns() == (
        "`id` BIGINT, `kind` STRING, `items` ARRAY<STRUCT<`name`: STRING>>, `first` STRUCT<`name`: STRING>, "
        "`big` DECIMAL(20, 0), `data` BINARY, `note` STRING, `counts` MAP<STRING, INT>"
    )
    row = {"id": 1, "kind": "GIFT", "items": [{"name": "a"}, {"name": "b"}], "first": None, "big": Decimal(2**63)}
    read = codec.decode(codec.encode({**row, "data": b"\0", "note": None, "counts": {"n": 3}}))
    assert read == {**row, "big": 2**63, "data": b"\0", "note": None, "counts": [("n", 3)]}
    assert codec.decode(codec.encode({"first": {"name": ""}}))["first"] == {"name": ""}


def changed(*, kind: int, inside: bool = False) -> bytes:
    """Field 1 of shop.Order, or of the shop.Item in it, with another type, and a field that nobody knew."""
    files = descriptor_pb2.FileDescriptorSet.FromString(descriptors())
    item, order = files.file[0].message_type
    (item if inside else order).field[0].type = kind
    order.field.add(name="new", number=20, type=9, label=1)
    return files.SerializeToString()


def test_protobuf_of_a_newer_schema():
    """What is new is passed over; a field with another type was its default before, in silence."""
    codec = Protobuf(descriptors(), "shop.Order")
    assert codec.decode(Protobuf(changed(kind=3), "shop.Order").encode({"id": 7, "new": "x"}))["id"] == 7
    with pytest.raises(ValueError, match=r"shop\.Order\.id is something else in it: another schema wrote it"):
        codec.decode(Protobuf(changed(kind=9), "shop.Order").encode({"id": "7"}))
    inside = Protobuf(changed(kind=3, inside=True), "shop.Order")
    for row in ({"first": {"name": 1}}, {"items": [{"name": 1}]}):
        with pytest.raises(ValueError, match=r"shop\.Item\.name is something else in it"):
            codec.decode(inside.encode(row))


def test_a_message_that_is_not_there_is_told_with_those_that_are():
    with pytest.raises(ValueError, match=r"there is no message 'shop.Ordr' in it: it has shop.Item, shop.Order"):
        Protobuf(descriptors(), "shop.Ordr")
    with pytest.raises(ValueError, match=r"shop.Order has no field nothing"):
        Protobuf(descriptors(), "shop.Order").encode({"nothing": 1})


def test_records_that_cannot_be_decoded_keep_their_place_and_get_a_reason():
    """A bad record among good ones costs neither the good ones nor itself."""
    codec = Avro(json.dumps({"type": "record", "name": "R", "fields": [{"name": "id", "type": "long"}]}))
    good = codec.encode({"id": 5})
    columns, errors = decoded(codec, [good, b"", None, good + b"x"], pa.schema([("id", pa.int64())]))
    assert columns[0].to_pylist() == [5, None, None, None]
    first, empty, tombstone, long = errors.to_pylist()
    assert first is None and tombstone is None
    assert empty and "left over" in long


def test_a_batch_through_decoder_and_encoder():
    recipe = Recipe("avro", json.dumps(ORDER).encode(), "", 0)
    value = recipe.codec().encode(ROW)
    batch = pa.RecordBatch.from_pydict({"raw": [value, b"?"], "offset": [10, 11]})
    [out] = decoder(recipe, pa.schema([("id", pa.int64())]), "raw", ["offset"])([batch])
    assert out.schema.names == ["id", "offset", "_error"]
    assert out.column("offset").to_pylist() == [10, 11]
    row, gone = {"k": b"key", "gone": False, **ROW, "counts": [("n", 3)]}, {"k": b"key", "gone": True}
    [sent] = encoder(recipe, "k", "gone", list(ROW))([pa.RecordBatch.from_pylist([row, gone], _schema())])
    assert sent.to_pylist() == [{"key": b"key", "value": value}, {"key": b"key", "value": None}]


def _schema() -> pa.Schema:
    kinds = {
        "k": pa.binary(),
        "gone": pa.bool_(),
        "id": pa.int64(),
        "note": pa.string(),
        "at": pa.timestamp("us", "UTC"),
        "day": pa.date32(),
        "price": pa.decimal128(9, 2),
        "kind": pa.string(),
        "tags": pa.list_(pa.string()),
        "counts": pa.map_(pa.string(), pa.int32()),
        "to": pa.struct([("kind", pa.string())]),
    }
    return pa.schema(list(kinds.items()))


COLUMNS = [("id", "int"), ("name", "string"), ("tags", "array<string>")]


@pytest.mark.parametrize(
    ("value", "told"),
    [
        (b'{"id": 1', "not JSON: Expecting ',' delimiter"),
        (b"\xff\xfe", "not UTF-8"),
        (b"[1]", "not an object: [1]"),
        (b'{"id": "x"}', 'id is "x", not INT'),
        (b'{"id": 1.5, "tags": 3}', "id is 1.5, not INT; tags is 3, not ARRAY<STRING>"),
        (b'{"id": 99999999999}', "does not fit the columns id INT, name STRING, tags ARRAY<STRING>"),
    ],
)
def test_why_a_text_is_not_the_json_it_should_be(value, told):
    assert reasons.of_json(value, COLUMNS).startswith(told)


def test_why_a_line_is_not_the_csv_it_should_be():
    assert reasons.of_csv(b"1,2", COLUMNS) == "2 fields instead of 3"
    assert reasons.of_csv(b"x,y,z", COLUMNS).startswith("does not fit the columns id INT")
