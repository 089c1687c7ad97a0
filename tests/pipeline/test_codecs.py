"""Avro and Protocol Buffers without Spark: schemas in Spark's words, records there and back, and what does not fit."""

from __future__ import annotations

import io
import json
import traceback
from datetime import UTC, date, datetime
from decimal import Decimal
from math import isinf

import fastavro
import numpy as np
import pyarrow as pa
import pytest
from google.protobuf import descriptor_pb2
from hypothesis import given
from hypothesis import strategies as st

from ottla.pipeline.files import failures, reasons
from ottla.pipeline.files.avro import Avro
from ottla.pipeline.files.codecs import DoesNotFit, Recipe, decoded, decoder, encoder
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


def of_one(kind: object, name: str = "R") -> Avro:
    return Avro(json.dumps({"type": "record", "name": name, "fields": [{"name": "x", "type": kind}]}))


def logical(kind: str, name: str, **more: int) -> dict[str, object]:
    return {"type": kind, "logicalType": name, **more}


MOMENT = datetime(2026, 1, 2, 3, 4, 5, 678901, UTC)


@pytest.mark.parametrize(
    ("kind", "value", "told"),
    [
        ("int", 3_000_000_000, "x is 3000000000, which int cannot hold"),
        ("int", -(2**31) - 1, "x is -2147483649, which int cannot hold"),
        ("int", 0.5, "x is 0.5, which int cannot hold"),
        ("int", True, "x is True, which int cannot hold"),
        ("int", Decimal("1.5"), "x is 1.5, which int cannot hold"),
        ("int", None, "x is NULL, which int cannot hold"),
        ("long", 0.5, "x is 0.5, which long cannot hold"),
        ("long", Decimal(2**63), "x is 9223372036854775808, which long cannot hold"),
        ("float", 1e300, r"x is 1e\+300, which float cannot hold"),
        ("float", 2**24 + 1, "x is 16777217, which float cannot hold"),
        ("double", 2**53 + 1, "x is 9007199254740993, which double cannot hold"),
        ("double", "1", "x is '1', which double cannot hold"),
        ("boolean", 5, "x is 5, which boolean cannot hold"),
        (["null", "float"], 1e300, r"x is 1e\+300, which float cannot hold"),
        (["null", "int"], 3_000_000_000, "x is 3000000000, which int cannot hold"),
        ({"type": "array", "items": "int"}, [1, 0.5], r"x\[1\] is 0.5, which int cannot hold"),
        ({"type": "map", "values": ["null", "long"]}, {"a": None, "b": 0.5}, r"x\[b\] is 0.5, which long cannot hold"),
        (
            {"type": "record", "name": "In", "fields": [{"name": "y", "type": "int"}]},
            {"y": 2**40},
            r"x\.y is 1099511627776, which int cannot hold",
        ),
        (logical("int", "date"), MOMENT, "which date cannot hold"),
        (logical("int", "date"), 0.5, "x is 0.5, which date cannot hold"),
        (logical("long", "timestamp-micros"), MOMENT.replace(tzinfo=None), "which timestamp-micros cannot hold"),
        (logical("int", "time-millis"), 2**40, "x is 1099511627776, which int cannot hold"),
    ],
)
def test_avro_writes_no_other_number_than_it_was_given(kind, value, told):
    with pytest.raises(ValueError, match=told):
        of_one(kind).encode({"x": value})


@pytest.mark.parametrize(
    ("kind", "value"),
    [
        ("int", -(2**31)),
        ("long", 2**63 - 1),
        ("long", Decimal(5)),
        ("float", float("inf")),
        ("float", 2**24),
        ("double", 2**60),
        ("double", -1e308),
        (["null", "int"], None),
        (logical("int", "date"), date(2026, 1, 2)),
        (logical("long", "timestamp-micros"), MOMENT),
        (logical("long", "local-timestamp-micros"), MOMENT.replace(tzinfo=None)),
        (logical("bytes", "decimal", precision=5, scale=2), Decimal("1.23")),
    ],
)
def test_avro_takes_what_fits(kind, value):
    codec = of_one(kind)
    assert codec.decode(codec.encode({"x": value})) == {"x": value}


@given(st.floats(width=32))
def test_avro_takes_every_float_as_it_is(value):
    codec = of_one("float")
    assert repr(codec.decode(codec.encode({"x": value}))["x"]) == repr(value)


@given(st.floats() | st.integers() | st.decimals(allow_nan=False))
def test_what_avro_takes_for_a_float_is_the_nearest_to_it(value):
    """And a whole number stays the same, or is refused."""
    for kind, nearest in (("float", np.float32), ("double", np.float64)):
        codec = of_one(kind)
        try:
            found = codec.decode(codec.encode({"x": value}))["x"]
        except ValueError:
            continue
        assert repr(found) == repr(float(nearest(float(value))))
        assert not isinstance(value, int) or found == value
        assert isinf(found) == isinf(value)


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


def message(**fields: int) -> Protobuf:
    """A message of these fields, and of their types."""
    file = descriptor_pb2.FileDescriptorProto(name="m.proto", package="p", syntax="proto3")
    made = file.message_type.add(name="M")
    for number, (name, kind) in enumerate(fields.items(), 1):
        made.field.add(name=name, number=number, type=kind, label=1)
    return Protobuf(descriptor_pb2.FileDescriptorSet(file=[file]).SerializeToString(), "p.M")


@pytest.mark.parametrize(
    ("kind", "value", "told"),
    [
        (5, 3_000_000_000, r"p\.M\.x cannot be 3000000000: Value out of range"),
        (5, 0.5, r"p\.M\.x cannot be 0.5: "),
        (4, Decimal("1.5"), r"p\.M\.x cannot be 1.5: it is not a whole number from 0"),
        (4, -1, r"p\.M\.x cannot be -1: it is not a whole number from 0"),
        (2, 1e300, r"p\.M\.x cannot be 1e\+300: a 32-bit float cannot hold it"),
        (1, 2**53 + 1, r"p\.M\.x cannot be 9007199254740993: a 64-bit float cannot hold it"),
        (8, 5, r"p\.M\.x cannot be 5: it is neither true nor false"),
    ],
)
def test_protobuf_writes_no_other_number_than_it_was_given(kind, value, told):
    with pytest.raises(ValueError, match=told):
        message(x=kind).encode({"x": value})


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


def test_a_row_that_does_not_fit_is_no_weather():
    """To start the query again would not mend it; the words that are told name the field."""
    recipe = Recipe("avro", sale().encode(), "", 0)
    batch = pa.RecordBatch.from_pydict({"k": [b"k"], "gone": [False], "n": [3_000_000_000]})
    with pytest.raises(
        DoesNotFit, match=r"a row does not fit .*: ValueError: n is 3000000000, which int cannot hold"
    ) as it:
        list(encoder(recipe, "k", "gone", ["n"])([batch]))
    text = "".join(traceback.format_exception(it.value))
    assert failures.is_fatal(text) and failures.cause(text) == str(it.value)


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
        (b'{"id": 99999999999}', "id is 99999999999, which INT cannot hold"),
        (b'{"id": %s}' % (b"1" * 9000), "id is 11111"),
        (b'{"id": 1e999999999999999999999}', "id is 1e999999999999999999999, not INT"),
        (b'{"tags": [{"\\ud800": 1}]}', "does not fit the columns id INT, name STRING, tags ARRAY<STRING>"),
        (b'{"id": ' * 3000, "not JSON that can be read: it is nested too deeply"),
        (b"[" * 900 + b"]" * 900, "not an object: [[["),
    ],
)
def test_why_a_text_is_not_the_json_it_should_be(value, told):
    assert reasons.of_json(value, COLUMNS).startswith(told)


SIZES = [("tiny", "tinyint"), ("price", "decimal(5,2)"), ("f", "float"), ("d", "double")]


@pytest.mark.parametrize(
    ("value", "told"),
    [
        (b'{"tiny": 200}', "tiny is 200, which TINYINT cannot hold"),
        (b'{"price": 1.239}', "price is 1.239, which DECIMAL(5,2) cannot hold"),
        (b'{"price": 1234.5}', "price is 1234.5, which DECIMAL(5,2) cannot hold"),
        (b'{"f": 1e60, "d": -1e400}', "f is 1e60, which FLOAT cannot hold; d is -1e400, which DOUBLE cannot hold"),
        (b'{"price": 120e-2, "f": 0.1, "tiny": -128, "d": 0e-9}', "does not fit the columns"),
    ],
)
def test_a_number_that_a_column_would_change_is_told_as_it_was_written(value, told):
    assert reasons.of_json(value, SIZES).startswith(told)


@pytest.mark.parametrize(
    ("value", "told"),
    [
        (b"1,2", "2 fields instead of 3"),
        (b"x,y,z", "does not fit the columns id INT"),
        (b"1,a,b\n2,c,d", "2 lines instead of one"),
        (b"1,a,b\r\n2,c,d", "2 lines instead of one"),
        (b'1,"a\n', "2 fields instead of 3"),
        (b"1," + b"x" * 200_000, "2 fields instead of 3"),
    ],
)
def test_why_a_line_is_not_the_csv_it_should_be(value, told):
    assert reasons.of_csv(value, COLUMNS).startswith(told)


def test_csv_is_looked_at_with_the_options_it_is_read_with():
    assert reasons.of_csv(b"1;2", COLUMNS, {"Sep": ";"}) == "2 fields instead of 3"
    assert reasons.of_csv(b"1;'a;b';3", COLUMNS, {"delimiter": ";", "quote": "'"}).startswith("does not fit")
    assert reasons.of_csv(b"1\t2", COLUMNS, {"sep": "\\t"}) == "2 fields instead of 3"
    assert reasons.of_csv(b"1||2", COLUMNS, {"sep": "||"}).startswith("does not fit"), (
        "nobody here knows how to read it"
    )
    assert reasons.of_csv(b"0,1.239,1e60,1", SIZES) == (
        "price is 1.239, which DECIMAL(5,2) cannot hold; f is 1e60, which FLOAT cannot hold"
    )


TEXTS = st.one_of(
    st.binary(),
    st.text("{}[]\"':,.eE+-0129 \\\n\r\tu\0tinypriced").map(str.encode),
    st.recursive(
        st.none() | st.booleans() | st.integers() | st.floats() | st.text(),
        lambda inside: st.lists(inside) | st.dictionaries(st.sampled_from(["tiny", "price", "f", "d", "x"]), inside),
    ).map(lambda value: json.dumps(value).encode()),
    st.tuples(st.sampled_from([b"[", b'{"f":', b'"', b"1", b"1e", b",", b"\n"]), st.integers(0, 5000)).map(
        lambda drawn: drawn[0] * drawn[1]
    ),
)


@given(TEXTS)
def test_whatever_comes_has_a_reason(value):
    """An exception here would end the query, and the next start would meet the same record."""
    for columns in (COLUMNS, SIZES, []):
        for why in (reasons.of_json, reasons.of_csv):
            told = why(value, columns)
            assert told and told.encode()
