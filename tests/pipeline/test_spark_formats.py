"""A pipeline's file on a real Spark with every format in and out: rows come out as rows, and deletes as deletes."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from google.protobuf import descriptor_pb2

from harness import Node, stop_all
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


@pytest.fixture(scope="module")
def address(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    node = Node(tmp_path_factory.mktemp("formats") / "data")
    try:
        yield node.start().address
    finally:
        stop_all([node])


def descriptors() -> bytes:
    """sale.proto, as protoc would compile it."""
    file = descriptor_pb2.FileDescriptorProto(name="sale.proto", package="shop", syntax="proto3")
    sale = file.message_type.add(name="Sale")
    sale.field.add(name="shop", number=1, type=9, label=1)
    sale.field.add(name="n", number=2, type=5, label=1)
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
