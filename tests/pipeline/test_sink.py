"""The sink's options, columns and writers, called as Spark calls them, on a real node and without a JVM."""

from __future__ import annotations

import asyncio
import itertools
import os
import pickle
import re
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from pyspark.sql.types import (
    ArrayType,
    BinaryType,
    DoubleType,
    IntegerType,
    LongType,
    MapType,
    StringType,
    StructField,
    StructType,
    TimestampType,
)

from ottla.client.admin import Admin
from ottla.client.cluster import EARLIEST, LATEST, Cluster, TopicPartition
from ottla.client.consumer import Consumed, Consumer
from ottla.pipeline import sink
from ottla.pipeline.committing import Fenced, Refused, SinkError
from ottla.pipeline.options import BadOption
from ottla.pipeline.rows import RowError
from ottla.pipeline.sink import Message, Writing, batch_writer, stream_writer
from ottla.wire.compression import Codec
from pipeline.stores import store

NUMBERS = itertools.count()
VALUE = StructType().add("value", BinaryType())
HEADER = StructType().add("key", StringType()).add("value", BinaryType())
SWAPPED = StructType().add("value", BinaryType()).add("key", StringType())
NOWHERE = {"kafka.bootstrap.servers": "localhost:1", "topic": "t"}


def rows(*values: str, **columns: Any) -> pa.RecordBatch:
    return pa.record_batch({"value": pa.array([v.encode() for v in values], pa.binary()), **columns})


class Scene:
    def __init__(self, broker: str, spool: Path, partitions: int | None = 2) -> None:
        self.broker = broker
        self.topic = f"sink-{os.getpid()}-{next(NUMBERS)}"
        self.options = {"kafka.bootstrap.servers": broker, "topic": self.topic, "spoolPath": str(spool)}
        if partitions:
            self.make(partitions)

    def make(self, partitions: int, **configs: str) -> None:
        async def main() -> None:
            async with Cluster(self.broker) as cluster:
                settings = {name.replace("_", "."): value for name, value in configs.items()}
                await Admin(cluster).create_topic(self.topic, partitions=partitions, configs=settings)

        asyncio.run(main())

    def records(self) -> list[Consumed]:
        async def main() -> list[Consumed]:
            async with Cluster(self.broker) as cluster:
                places = [TopicPartition(self.topic, p) for p in range(await cluster.partition_count(self.topic))]
                ends = await cluster.list_offsets(dict.fromkeys(places, LATEST))
                limits = {where: found.offset for where, found in ends.items()}
                consumer = Consumer(cluster, dict.fromkeys(places, EARLIEST), ends=limits, read_committed=True)
                return [record async for record in consumer]

        return asyncio.run(main())

    def values(self) -> list[str]:
        return sorted((record.value or b"").decode() for record in self.records())

    def write(self, *values: str, **options: str) -> None:
        """A batch write, with each step in the hands of another process, so to say."""
        writer = batch_writer({**self.options, **options}, VALUE, False)
        messages = [carried(writer).write(iter([rows(value)])) for value in values]
        carried(writer).commit([carried(message) for message in messages])

    def stream(self, batch_id: int, *values: str, query: str = "q", **options: str) -> None:
        made = {**self.options, **options}
        messages = [self.task(value, query, **options) for value in values]
        stream_writer(made, VALUE, False).commit(messages, batch_id)

    def task(self, value: str, query: str = "q", **options: str) -> Message:
        message = carried(stream_writer({**self.options, **options}, VALUE, False)).write(iter([rows(value)]))
        message.query_id = query  # Spark tells a task
        return carried(message)


def carried(thing: Any) -> Any:
    return pickle.loads(pickle.dumps(thing))


@pytest.fixture
def scene(broker: str, tmp_path: Path) -> Scene:
    return Scene(broker, tmp_path)


def test_a_batch_write_is_a_transaction_and_leaves_no_file(scene, tmp_path):
    scene.write("a", "b", spoolAbove="0")
    scene.write("a", "b")
    assert scene.values() == ["a", "a", "b", "b"]
    assert [path for path in tmp_path.rglob("*") if path.is_file()] == []


def test_micro_batches_of_foreach_batch_are_each_written_once(scene):
    """Repeated they are skipped; one that leaves a hole is refused, and so is one of another checkpoint."""
    for number, value in [(0, "a"), (0, "a"), (1, "b"), (1, "x")]:
        scene.write(value, queryId="query", batchId=str(number))
    for query, number in (("query", "3"), ("another", "0"), ("another", "1")):
        with pytest.raises(SinkError):
            scene.write("d", queryId=query, batchId=number)
    assert scene.values() == ["a", "b"]


def test_a_micro_batch_that_was_planned_anew_is_no_repetition(scene, tmp_path):
    """What Spark has planned under a number stands in the checkpoint, if this machine can see that."""
    planned = tmp_path / "check point" / "offsets" / "1"
    planned.parent.mkdir(parents=True)
    planned.write_text("from 0 to 1")
    checkpoint = planned.parents[1]
    stream = {"checkpointLocation": checkpoint.as_uri()}
    batch = {"checkpointLocation": str(checkpoint), "queryId": "q", "batchId": "1", "sinkId": "batch"}
    scene.stream(0, "a", **stream)
    scene.stream(1, "b", **stream)
    scene.write("a", **{**batch, "batchId": "0"})
    scene.write("b", **batch)
    scene.stream(1, "b", **stream)
    scene.write("b", **batch)
    planned.write_text("from 0 to 2")
    scene.stream(1, "b", checkpointLocation="s3a://far/away")
    with pytest.raises(Refused, match="older copy"):
        scene.stream(1, "b", **stream)
    with pytest.raises(Refused, match="older copy"):
        scene.write("b", **batch)
    assert scene.values() == ["a", "a", "b", "b"]


def test_a_task_of_which_nothing_is_known_is_not_left_out(scene):
    """Spark has no message of a task that failed, and commits nothing then; should it do so, the others are not all."""
    writer = stream_writer(scene.options, VALUE, False)
    with pytest.raises(SinkError, match="1 of 2 tasks have not said"):
        writer.commit([scene.task("a"), None], 0)
    with pytest.raises(SinkError, match="1 of 2 tasks have not said"):
        batch_writer(scene.options, VALUE, False).commit([None, scene.task("a")])
    assert scene.values() == []


def test_a_micro_batch_may_wait_in_a_store_of_objects(scene):
    with store() as far:
        place = {"spoolPath": far.uri("bucket/spool"), "spoolAbove": "0"}
        messages = [scene.task(value, **place) for value in ("a", "b")]
        assert len(far.files()) == 2
        stream_writer({**scene.options, **place}, VALUE, False).commit(messages, 0)
        assert far.files() == []
    assert scene.values() == ["a", "b"]


def test_an_operation_is_written_once(scene):
    """Repeated under its name it is skipped; another name, and another topic under the same name, are other operations."""
    for _ in range(2):
        scene.write("a", "b", operationId="2026-11-16")
    scene.write("c", operationId="2026-11-17")
    scene.write("a", operationId="2026-11-16")
    assert scene.values() == ["a", "b", "c"]
    other = Scene(scene.broker, Path(scene.options["spoolPath"]))
    other.write("x", operationId="2026-11-16")
    assert other.values() == ["x"]


def test_a_stream_goes_on_from_its_marker(scene, tmp_path):
    scene.stream(0, "a", "b")
    scene.stream(0, "a", "b")
    scene.stream(1, "c", spoolAbove="0")
    scene.stream(2, "d")
    assert scene.values() == ["a", "b", "c", "d"]
    with pytest.raises(Refused, match="give each its own sinkId"):
        scene.stream(0, "x", query="another")
    scene.stream(0, "x", query="another", sinkId=f"mine of {scene.topic}")
    scene.stream(0, "y", query="third", acceptCheckpoint="third")
    assert scene.values() == ["a", "b", "c", "d", "x", "y"]


def test_an_abort_after_a_commit_that_took_effect_undoes_nothing(scene, tmp_path):
    """Spark calls it when `commit` raises, whatever it has done."""
    message = scene.task("a", spoolAbove="0")
    writer = stream_writer(scene.options, VALUE, False)
    writer.commit([message], 0)
    writer.abort([message, None], 0)
    assert scene.values() == ["a"]
    lost = scene.task("b", spoolAbove="0")
    stream_writer(scene.options, VALUE, False).abort([lost, None], 1)
    assert [path for path in tmp_path.rglob("*") if path.is_file()] == []
    assert scene.values() == ["a"]


def test_at_least_once_needs_no_transaction_and_keeps_no_marker(scene):
    for _ in range(2):
        scene.stream(5, "a", delivery="at-least-once")
    scene.write("b", delivery="at-least-once")
    assert scene.values() == ["a", "a", "b"]


def test_what_others_have_spooled_under_the_same_name_is_left_alone(scene, node, tmp_path):
    """Who writes at least once shares its name with others, and who writes to another cluster does not know of them."""
    spooled = {"delivery": "at-least-once", "spoolAbove": "0"}
    waiting = scene.task("a", **spooled)
    scene.stream(0, "b", **spooled)
    stream_writer({**scene.options, **spooled}, VALUE, False).commit([waiting], 0)
    assert scene.values() == ["a", "b"]
    elsewhere = Scene(node().address, tmp_path, None)
    elsewhere.topic = elsewhere.options["topic"] = scene.topic
    elsewhere.make(1)
    waiting = scene.task("c", spoolAbove="0")
    elsewhere.stream(0, "d", spoolAbove="0")
    stream_writer(scene.options, VALUE, False).commit([waiting], 0)
    assert scene.values() == ["a", "b", "c"]
    assert list(tmp_path.rglob("*.batches")) == []


def test_without_a_query_there_is_no_exactly_once(scene):
    message = scene.task("a")
    message.query_id = None
    with pytest.raises(SinkError, match="which query this is"):
        stream_writer(scene.options, VALUE, False).commit([message], 0)


def test_every_column(scene):
    """Keys, headers, a partition, a time; the codec is in the batches."""
    header = pa.list_(pa.struct([("key", pa.string()), ("value", pa.binary())]))
    columns = {
        "key": pa.array(["k", None], pa.string()),
        "headers": pa.array([[{"key": "h", "value": b"1"}], None], header),
        "partition": pa.array([1, None], pa.int32()),
        "timestamp": pa.array([1_700_000_000_123_456, None], pa.timestamp("us", "UTC")),
    }
    kinds = [BinaryType(), StringType(), ArrayType(HEADER), IntegerType(), TimestampType()]
    schema = StructType([StructField(n, kind) for n, kind in zip(["value", *columns], kinds, strict=True)])
    writer = batch_writer({**scene.options, "kafka.compression.type": "ZSTD"}, schema, False)
    writer.commit([writer.write(iter([rows("v" * 100, "w" * 100, **columns)]))])
    first, second = sorted(scene.records(), key=lambda record: record.value or b"")
    assert (first.partition, first.key, first.headers, first.timestamp) == (1, b"k", (("h", b"1"),), 1_700_000_000_123)
    assert (second.key, second.headers) == (None, ()) and second.timestamp > first.timestamp


def test_a_topic_that_is_not_there_is_said_or_made(broker, tmp_path, node):
    """It is the broker's setting whether it is made, as with Java's producer."""
    scene = Scene(broker, tmp_path, partitions=None)
    scene.write("a")
    assert scene.values() == ["a"]
    strict = node(settings={"auto.create.topics.enable": "false"})
    scene = Scene(strict.address, tmp_path, partitions=None)
    with pytest.raises(SinkError, match=r"there is no topic .* create it"):
        scene.write("a")


def test_rows_that_are_too_large_are_named(broker, tmp_path):
    scene = Scene(broker, tmp_path, partitions=None)
    scene.make(1, max_message_bytes="2000")
    with pytest.raises(RowError, match=r"value of 3000 bytes .* at most 2000 \(max.message.bytes of the topic\)"):
        scene.write("v" * 3000)
    with pytest.raises(RowError, match=r"value of 1500 bytes .* at most 1000 \(kafka.max.request.size\)"):
        scene.write("v" * 1500, **{"kafka.max.request.size": "1000"})
    scene.write("v" * 1500, *["w" * 500] * 10)
    assert len(scene.values()) == 11


def test_a_row_that_is_too_large_may_be_cut(broker, tmp_path):
    """To what the topic takes, whatever a request may have; packed it may fit as it is."""
    scene = Scene(broker, tmp_path, partitions=None)
    scene.make(1, max_message_bytes="2000")
    scene.write("v" * 3000, tooLarge="cut", **{"kafka.max.request.size": str(64 << 20)})
    scene.write("w" * 3000, tooLarge="cut", **{"kafka.compression.type": "zstd"})
    assert scene.values() == ["v" * 500, "w" * 3000]


def test_where_nobody_says_what_a_topic_takes_a_row_is_cut_to_what_brokers_take(monkeypatch):
    async def refused(*_: Any) -> None:
        return None

    class Asked:
        cluster = None

        def run(self, asked: Any) -> Any:
            return asyncio.run(asked)

    async def one(*_: Any) -> int:
        return 1

    monkeypatch.setattr(sink, "_message_bytes_max", refused)
    monkeypatch.setattr(sink, "_partition_count", one)
    for cuts, expected in (("fail", 64 << 20), ("cut", 1 << 20)):
        writing = Writing.of(NOWHERE | {"tooLarge": cuts, "kafka.max.request.size": str(64 << 20)}, VALUE)
        assert sink._shape_of(Asked(), writing, "t").batch_bytes_max == expected  # type: ignore[arg-type]


def test_two_that_write_under_one_name(scene, monkeypatch):
    """The one that came first finds itself shut out, and is told why."""
    from ottla.client.producer import Producer

    original = Producer.commit

    async def late(producer: Producer) -> None:
        with monkeypatch.context() as patch:
            patch.setattr(Producer, "commit", original)
            await asyncio.to_thread(scene.stream, 0, "b")
        await original(producer)

    first = scene.task("a")
    monkeypatch.setattr(Producer, "commit", late)
    with pytest.raises(Fenced, match="another query writes with the sinkId 'ottla-sink-"):
        stream_writer(scene.options, VALUE, False).commit([first], 0)
    assert scene.values() == ["b"]


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"topik": "t"}, "did you mean 'topic'"),
        ({"topic": " "}, "topic is empty"),
        ({"delivery": "maybe"}, "write exactly-once or at-least-once"),
        ({"tooLarge": "drop"}, "write fail or cut"),
        ({"sinkId": " "}, "sinkId is empty"),
        ({"kafka.compression.type": "brotli"}, "none, gzip, snappy, lz4 or zstd"),
        ({"kafka.compression.type": "zstd", "kafka.compression.zstd.level": "high"}, "a whole number"),
        ({"kafka.acks": "1"}, "acks=all"),
        ({"kafka.transactional.id": "x"}, "set sinkId"),
        ({"kafka.key.serializer": "x"}, "strings or binary columns"),
        ({"kafka.partitioner.class": "x"}, "the column partition"),
        ({"spoolAbove": "much"}, "a whole number"),
        ({"kafka.security.protocol": "SSL"}, "only PLAINTEXT"),
    ],
)
def test_options_that_are_refused(options, message):
    for make in (batch_writer, stream_writer):
        with pytest.raises(BadOption, match=message):
            make({**NOWHERE, **options}, VALUE, False)


def test_what_a_stream_and_a_batch_do_not_have_in_common(tmp_path):
    with pytest.raises(BadOption, match="operationId is for batch writes"):
        stream_writer({**NOWHERE, "operationId": "x"}, VALUE, False)
    with pytest.raises(BadOption, match="Save mode Overwrite not allowed for Kafka"):
        batch_writer(NOWHERE, VALUE, True)
    stream_writer({**NOWHERE, "spoolPath": str(tmp_path)}, VALUE, True)  # output mode complete, as the connector does


def test_the_default_of_the_sinks_id():
    """By its topic, so that a lost checkpoint is noticed; where topics come from a column there is none."""
    assert Writing.of(NOWHERE, VALUE).sink.sink_id == "ottla-sink-t"
    assert Writing.of({**NOWHERE, "SINKID": "mine"}, VALUE).sink.sink_id == "mine"
    by_column = {"kafka.bootstrap.servers": "localhost:1"}
    schema = StructType().add("value", StringType()).add("topic", StringType())
    with pytest.raises(BadOption, match="sinkId is missing"):
        Writing.of(by_column, schema)
    assert Writing.of({**by_column, "sinkId": "mine"}, schema).topic is None
    assert not Writing.of({**by_column, "delivery": "at-least-once"}, schema).exactly_once
    with pytest.raises(BadOption, match="sinkId is missing"):
        batch_writer({**by_column, "operationId": "x"}, schema, False)
    with pytest.raises(BadOption, match="sinkId is missing"):
        stream_writer(by_column, schema, False)


def test_a_batch_write_with_topics_of_a_column_needs_no_name(scene):
    """Nobody asks later whether it was written: the word of the format is all that changes."""
    schema = StructType().add("value", StringType()).add("topic", StringType())
    options = {name: value for name, value in scene.options.items() if name != "topic"}
    writer = batch_writer(options, schema, False)
    writer.commit([writer.write(iter([rows("a", topic=pa.array([scene.topic]))]))])
    assert scene.values() == ["a"]


def test_the_settings_of_a_producer():
    given = {"compression.type": "gzip", "compression.gzip.level": "9", "batch.size": "1000000", "linger.ms": "20"}
    given |= {"max.request.size": "5000000", "transaction.timeout.ms": "90000", "delivery.timeout.ms": "60000"}
    given |= {"partitioner.ignore.keys": "true"}
    writing = Writing.of({**NOWHERE, **{f"kafka.{name}": value for name, value in given.items()}}, VALUE)
    assert (writing.codec, writing.level) == (Codec.GZIP, 9)
    assert (writing.batch_bytes, writing.request_bytes_max, writing.ignores_keys) == (1_000_000, 5_000_000, True)
    assert (writing.sink.timeout_ms(1 << 40), writing.sink.delivery_s) == (90_000, 60.0)


@pytest.mark.parametrize(
    ("columns", "message"),
    [
        ({"key": BinaryType()}, "Required attribute 'value' not found"),
        ({"value": IntegerType()}, "value attribute unsupported type int. value must be a(n) string or binary"),
        ({"value": StringType(), "key": DoubleType()}, "key attribute unsupported type double"),
        ({"value": StringType(), "partition": StringType()}, "partition must be a(n) int"),
        ({"VALUE": StringType()}, "Required attribute 'value' not found"),
        (
            {"value": StringType(), "headers": MapType(StringType(), BinaryType())},
            "type map<string,binary>. headers must",
        ),
        ({"value": StringType(), "headers": ArrayType(SWAPPED)}, "be a(n) array<struct<key:string,value:binary>>"),
    ],
)
def test_columns_are_judged_as_the_connector_judges_them(columns, message):
    schema = StructType([StructField(name, kind) for name, kind in columns.items()])
    with pytest.raises(BadOption, match=re.escape(message)):
        Writing.of(NOWHERE, schema)


def test_columns_that_the_connector_does_not_look_at_may_be_anything():
    given = {"value": StringType(), "topic": IntegerType(), "timestamp": LongType(), "Partition": StringType()}
    Writing.of(NOWHERE, StructType([StructField(name, kind) for name, kind in given.items()]))
    with pytest.raises(BadOption, match="topic attribute unsupported type int"):
        Writing.of(
            {"kafka.bootstrap.servers": "localhost:1"},
            StructType().add("value", StringType()).add("topic", IntegerType()),
        )


def test_a_topic_must_come_from_somewhere():
    with pytest.raises(BadOption, match="topic option required when no 'topic' attribute is present"):
        Writing.of({"kafka.bootstrap.servers": "localhost:1"}, VALUE)
