"""A pipeline's file on a real Spark with every format in and out: rows come out as rows, and deletes as deletes."""

from __future__ import annotations

import asyncio
import json
from pathlib import Path
from typing import Any

import pytest
from google.protobuf import descriptor_pb2

from ottla.client.cluster import Cluster
from ottla.client.producer import Producer
from ottla.pipeline import Pipeline
from ottla.pipeline.files.avro import Avro
from ottla.pipeline.files.protobuf import Protobuf
from pipeline.databases import postgresql

pytestmark = pytest.mark.timeout(400)

AVRO = {"type": "record", "name": "Sale", "fields": [{"name": "shop", "type": "string"}, {"name": "n", "type": "int"}]}
PIPELINE = """
name: formats
trigger: available-now
sources:
  of_avro: {topic: of-avro, format: avro, schema: sale.avsc}
  of_protobuf: {topic: of-protobuf, format: protobuf, schema: sale.desc, message: shop.Sale}
steps:
  more: {sql: "SELECT shop, n + 1 AS n, _key, _deleted FROM of_avro"}
  sums: {sql: "SELECT shop, sum(n) AS n, sum(n) = 0 AS _deleted FROM of_protobuf WHERE NOT _deleted GROUP BY shop"}
sinks:
  to_protobuf: {from: more, topic: to-protobuf, format: protobuf, schema: sale.desc, message: shop.Sale}
  to_avro: {from: of_protobuf, topic: to-avro, format: avro, schema: sale.avsc}
  to_json: {from: of_protobuf, topic: to-json}
  to_csv: {from: of_protobuf, topic: to-csv, format: csv}
  to_sums: {from: sums, topic: to-sums, key: shop, mode: update}
"""
DATABASE = """
name: sold
trigger: available-now
sources:
  sales: {{topic: sales, format: json, schema: "shop STRING, n INT"}}
steps:
  sums: {{sql: "SELECT shop, sum(n) AS n FROM sales GROUP BY shop"}}
sinks:
  sums: {{from: sums, "jdbc": "jdbc:{address}", table: sums, keys: [shop], mode: update}}
"""


CHANGING = """
name: changing
trigger: available-now
quarantine: unfit
sources:
  of_json: {topic: changing-json, format: json, schema: "shop STRING, n INT"}
  of_avro: {topic: changing-avro, format: avro, schema: sale.avsc}
  of_registry: {topic: changing-registry, format: avro, schema: sale.avsc, writers: {1: sale.avsc, 2: wider.avsc}}
  of_protobuf: {topic: changing-protobuf, format: protobuf, schema: sale.desc, message: shop.Sale}
steps:
  all: {sql: "SELECT shop, n, _topic AS at FROM of_json UNION ALL SELECT shop, n, _topic FROM of_avro
    UNION ALL SELECT shop, n, _topic FROM of_registry UNION ALL SELECT shop, n, _topic FROM of_protobuf"}
sinks:
  out: {from: all, topic: read, key: at}
"""


@pytest.fixture(scope="module")
def address(own_broker: str) -> str:
    return own_broker


def descriptors(kind_of_n: int = 5) -> bytes:
    """sale.proto, as protoc would compile it."""
    file = descriptor_pb2.FileDescriptorProto(name="sale.proto", package="shop", syntax="proto3")
    sale = file.message_type.add(name="Sale")
    sale.field.add(name="shop", number=1, type=9, label=1)
    sale.field.add(name="n", number=2, type=kind_of_n, label=1)
    return descriptor_pb2.FileDescriptorSet(file=[file]).SerializeToString()


def send(address: str, name: str, records: list[tuple[bytes, bytes | None]]) -> None:
    async def sending() -> None:
        async with Cluster(address, client_id="test") as cluster, Producer(cluster, linger_ms=5) as producer:
            for key, value in records:
                await producer.send(name, key=key, value=value)

    asyncio.run(sending())


def read(spark: Any, address: str, name: str) -> list[tuple[bytes, bytes | None]]:
    found = spark.read.format("ottla").options(**{"kafka.bootstrap.servers": address, "subscribe": name}).load()
    rows = found.orderBy("partition", "offset").collect()
    return [(bytes(row.key), None if row.value is None else bytes(row.value)) for row in rows]


def run(text: str, address: str, directory: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OTTLA_BOOTSTRAP", address)
    (directory / "pipeline.yml").write_text(f"bootstrap: ${{OTTLA_BOOTSTRAP}}\n{text}")
    Pipeline.from_file(directory / "pipeline.yml").run()


def test_rows_and_deletes_through_every_format(spark, address, tmp_path, monkeypatch):
    """STR-02: a record without a value says that its key is gone. Whoever copies a compacted topic needs it to arrive as one;
    a step may say it as well, here of sums that are 0."""
    avro, protobuf = Avro(json.dumps(AVRO)), Protobuf(descriptors(), "shop.Sale")
    (tmp_path / "sale.avsc").write_text(json.dumps(AVRO))
    (tmp_path / "sale.desc").write_bytes(descriptors())
    rows: list[tuple[bytes, dict[str, Any] | None]]
    rows = [(b"a", {"shop": "a", "n": 1}), (b"b", {"shop": "b", "n": 0}), (b"a", None)]
    for name, codec in (("of-avro", avro), ("of-protobuf", protobuf)):
        send(address, name, [(key, None if row is None else codec.encode(row)) for key, row in rows])
    run(PIPELINE, address, tmp_path, monkeypatch)
    more = [(key, row and {**row, "n": row["n"] + 1}) for key, row in rows]
    assert [(key, value and protobuf.decode(value)) for key, value in read(spark, address, "to-protobuf")] == more
    assert [(key, value and avro.decode(value)) for key, value in read(spark, address, "to-avro")] == rows
    assert [(key, value and json.loads(value)) for key, value in read(spark, address, "to-json")] == rows
    assert read(spark, address, "to-csv") == [(b"a", b"a,1"), (b"b", b"b,0"), (b"a", None)]
    assert sorted(read(spark, address, "to-sums")) == [(b"a", b'{"shop":"a","n":1}'), (b"b", None)]


def test_a_schema_that_changes_in_the_middle_of_a_stream(spark, address, tmp_path, monkeypatch):
    """What the rules of a format can read is read, and all else is in the quarantine with a reason: nothing is missing."""
    wider = {**AVRO, "fields": [*AVRO["fields"], {"name": "note", "type": ["null", "string"], "default": None}]}
    (tmp_path / "sale.avsc").write_text(json.dumps(AVRO))
    (tmp_path / "wider.avsc").write_text(json.dumps(wider))
    (tmp_path / "sale.desc").write_bytes(descriptors())
    old, new = {"shop": "old", "n": 1}, {"shop": "new", "n": 2, "note": "x"}
    avro, avro_new = Avro(json.dumps(AVRO)).encode(old), Avro(json.dumps(wider)).encode(new)
    text = Protobuf(descriptors(kind_of_n=9), "shop.Sale").encode({"shop": "new", "n": "two"})
    head = b"\0\0\0\0"
    given: dict[str, list[bytes]] = {
        "json": [json.dumps(old).encode(), json.dumps(new).encode(), b'{"shop": "new", "n": "two"}'],
        "avro": [avro, avro_new],
        "registry": [head + b"\1" + avro, head + b"\2" + avro_new, head + b"\3" + avro_new],
        "protobuf": [Protobuf(descriptors(), "shop.Sale").encode(old), text],
    }
    for name, records in given.items():
        send(address, f"changing-{name}", [(b"k", record) for record in records])
    run(CHANGING, address, tmp_path, monkeypatch)
    both, first = [("old", 1), ("new", 2)], [("old", 1)]
    found: dict[str, list[tuple[str, int]]] = {}
    for key, value in read(spark, address, "read"):
        row = json.loads(value or b"")
        found.setdefault(key.decode().removeprefix("changing-"), []).append((row["shop"], row["n"]))
    assert found == {"json": both, "avro": first, "registry": both, "protobuf": first}
    assert reasons(spark, address, "unfit") == {
        (b"changing-json", b'n is "two", not INT'),
        (b"changing-avro", b"ValueError: 3 bytes are left over behind the record: another schema wrote it"),
        (b"changing-registry", b"ValueError: schema 3 wrote it, which is not among the 'writers'"),
        (b"changing-protobuf", b"ValueError: shop.Sale.n is something else in it: another schema wrote it"),
    }


def reasons(spark: Any, address: str, name: str) -> set[tuple[bytes, bytes]]:
    """Which topic a record of the quarantine is from, and why it is there."""
    options = {"kafka.bootstrap.servers": address, "subscribe": name, "includeHeaders": "true"}
    rows = spark.read.format("ottla").options(**options).load().collect()
    told = [{header.key: bytes(header.value) for header in row.headers} for row in rows]
    assert len(told) == 4, "each once"
    return {(each["ottla.topic"], each["ottla.error"]) for each in told}


def test_rows_into_a_database(spark, address, tmp_path, monkeypatch):
    """STR-02: JDBC, PostgreSQL: rows with the same keys are replaced, over two runs."""
    psycopg = pytest.importorskip("psycopg", reason="psycopg is not installed: pip install 'ottla[postgres]'")
    with postgresql() as database:
        with psycopg.connect(database) as connection:
            connection.execute("CREATE TABLE sums (shop text PRIMARY KEY, n bigint)")
        send(address, "sales", [(b"a", b'{"shop":"a","n":1}'), (b"b", b'{"shop":"b","n":2}')])
        run(DATABASE.format(address=database), address, tmp_path, monkeypatch)
        send(address, "sales", [(b"a", b'{"shop":"a","n":3}')])
        run(DATABASE.format(address=database), address, tmp_path, monkeypatch)
        with psycopg.connect(database) as connection:
            assert connection.execute("SELECT * FROM sums ORDER BY shop").fetchall() == [("a", 4), ("b", 2)]
        # As if the driver had died after its transaction: the micro-batch comes again, with its state, and is skipped.
        last = max((tmp_path / ".ottla").rglob("commits/[0-9]*"), key=lambda file: int(file.name))
        for file in (last, last.with_name(f".{last.name}.crc")):
            file.unlink(missing_ok=True)
        send(address, "sales", [(b"b", b'{"shop":"b","n":5}')])
        run(DATABASE.format(address=database), address, tmp_path, monkeypatch)
        with psycopg.connect(database) as connection:
            assert connection.execute("SELECT * FROM sums ORDER BY shop").fetchall() == [("a", 4), ("b", 7)]
