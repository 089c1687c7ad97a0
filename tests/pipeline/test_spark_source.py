"""`format("ottla")` in a real Spark: batches and streams, as a user writes them."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from pyspark.errors import PySparkException
from pyspark.sql import DataFrame, DataFrameReader, Row, SparkSession
from pyspark.sql.streaming import DataStreamReader, StreamingQuery

from apache.kafka import Apache
from ottla.cli.kafka import consumer_groups
from ottla.client import commits
from ottla.client.coordinator import Coordinator
from ottla.wire.compression import Codec
from spark_topics import Topics

# The first job starts Spark's Python workers, which takes a busy machine its time.
pytestmark = pytest.mark.timeout(300)

QUERY_SECONDS = 100
COLUMNS = "key binary, value binary, topic string, partition int, offset bigint, timestamp timestamp, timestampType int"


@pytest.fixture(scope="module")
def topics(broker: str) -> Iterator[Topics]:
    made = Topics(broker)
    yield made
    made.close()


@pytest.fixture(scope="module")
def orders(topics: Topics) -> str:
    """Three partitions with 20 records each, packed in three ways."""
    name = topics.make("orders", 3)
    for partition, codec in enumerate((Codec.NONE, Codec.ZSTD, Codec.LZ4)):
        values = [b"%d" % number for number in range(20)]
        topics.write(name, values, partition, codec=codec, headers=(("trace", b"%d" % partition),))
    return name


def batch(spark: SparkSession, topics: Topics, name: str, **options: str) -> DataFrame:
    reader: DataFrameReader = spark.read.format("ottla").option("kafka.bootstrap.servers", topics.address)
    return reader.option("subscribe", name).options(**options).load()


def test_a_batch_query(spark: SparkSession, topics: Topics, orders: str) -> None:
    """STR-10: what a topic holds, between offsets, as a table."""
    frame = batch(spark, topics, orders)
    assert ", ".join(f"{name} {kind}" for name, kind in frame.dtypes) == COLUMNS
    assert frame.count() == 60
    sums = frame.selectExpr("partition", "cast(cast(value as string) as int) as n").groupBy("partition").sum("n")
    assert sorted((row[0], row[1]) for row in sums.collect()) == [(0, 190), (1, 190), (2, 190)]
    (one,) = frame.where("partition = 1 and offset = 7").collect()
    assert (bytes(one.key), bytes(one.value), one.topic, one.timestampType) == (b"k7", b"7", orders, 0)
    now_ms = topics.door.cluster.now_ms()
    assert abs(frame.selectExpr("max(unix_millis(timestamp))").first()[0] - now_ms) < 600_000  # type: ignore[index]


def test_headers_and_pieces(spark: SparkSession, topics: Topics, orders: str) -> None:
    frame = batch(spark, topics, orders, includeHeaders="true", maxRecordsPerPartition="10")
    assert frame.rdd.getNumPartitions() == 6
    found = frame.selectExpr("explode(headers) as h").selectExpr("h.key", "cast(h.value as string) as v").distinct()
    assert sorted(found.collect()) == [("trace", "0"), ("trace", "1"), ("trace", "2")]


def test_conditions_are_looked_up_when_the_option_says_so(spark: SparkSession, topics: Topics, orders: str) -> None:
    frame = batch(spark, topics, orders, filterPushdown="true").where(
        "partition in (0, 2) and offset >= 15 and offset < 18"
    )
    assert frame.count() == 6
    assert frame.rdd.getNumPartitions() == 2
    late = batch(spark, topics, orders, filterPushdown="true").where(
        "timestamp > current_timestamp() - interval 1 hour"
    )
    assert late.count() == 60


@pytest.mark.parametrize(("how", "counts", "whole"), [("anew", {0: 20, 1: 20}, 60), ("true", {1: 40}, 20)])
def test_one_frame_with_several_conditions(
    spark: SparkSession, topics: Topics, orders: str, how: str, counts: dict[int, int], whole: int
) -> None:
    """What is pushed down last, Spark reads for all uses of a frame; docs/pipeline.md warns of that."""
    frame = batch(spark, topics, orders, filterPushdown=how)
    both = frame.where("partition = 0").union(frame.where("partition = 1"))
    assert {row.partition: row["count"] for row in both.groupBy("partition").count().collect()} == counts
    assert frame.count() == whole


def test_a_frame_is_planned_once_unless_it_is_asked_for_anew(spark: SparkSession, topics: Topics) -> None:
    """If the first changes, so does docs/pipeline.md."""
    name = topics.make("growing")
    once, anew = batch(spark, topics, name), batch(spark, topics, name, filterPushdown="anew").where("offset >= 0")
    assert (once.count(), anew.count()) == (0, 0)
    topics.write(name, [b"v"])
    assert (once.count(), anew.count(), batch(spark, topics, name).count()) == (0, 1, 1)


def test_nothing_to_read(spark: SparkSession, topics: Topics) -> None:
    assert batch(spark, topics, topics.make("empty")).count() == 0


@pytest.mark.parametrize(
    ("name", "options", "said"),
    [
        ("orders", {"startingOfsets": "earliest"}, "did you mean 'startingOffsets'?"),
        ("no-such-topic", {}, "there is no topic 'no-such-topic'"),
        ("orders", {"kafka.security.protocol": "SSL"}, "only PLAINTEXT"),
    ],
)
def test_mistakes_are_told_through_spark(
    spark: SparkSession, topics: Topics, name: str, options: dict[str, str], said: str
) -> None:
    with pytest.raises(PySparkException) as caught:
        batch(spark, topics, name, **options).collect()
    assert said in str(caught.value)


class Stream:
    """A streaming query that collects what it gets; its checkpoint outlives it."""

    def __init__(self, spark: SparkSession, topics: Topics, checkpoint: Path, name: str, **options: str) -> None:
        reader: DataStreamReader = spark.readStream.format("ottla").option("kafka.bootstrap.servers", topics.address)
        frame = reader.option("subscribe", name).options(**options).load()
        self.rows: list[Row] = []
        writer = frame.select("partition", "offset", "value").writeStream.option("checkpointLocation", str(checkpoint))
        self.writer = writer.foreachBatch(lambda batch, _: self.rows.extend(batch.collect()))

    def run_once(self) -> StreamingQuery:
        """Everything there is now, and then the end."""
        query = self.writer.trigger(availableNow=True).start()
        assert query.awaitTermination(QUERY_SECONDS), "it should have ended"
        return query

    def offsets(self) -> list[tuple[int, int]]:
        return sorted((row.partition, row.offset) for row in self.rows)


def end_offset(progress: Any, name: str) -> Any:
    return json.loads(progress.sources[0].endOffset)[name]


def test_a_stream_in_two_runs(
    spark: SparkSession, topics: Topics, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """STR-09: limits, progress with offsets of each partition, a checkpoint, new partitions, and a group that shows it all, to
    us and to Kafka's own tool."""
    name = topics.make("stream", 2)
    topics.write(name, [b"v"] * 20, 0)
    topics.write(name, [b"v"] * 20, 1)
    options = {"startingOffsets": "earliest", "maxOffsetsPerTrigger": "30", "groupIdPrefix": "lag"}
    first = Stream(spark, topics, tmp_path, name, **options)
    query = first.run_once()
    assert first.offsets() == [(partition, offset) for partition in (0, 1) for offset in range(20)]
    done = [progress for progress in query.recentProgress if progress.numInputRows]
    assert [end_offset(progress, name) for progress in done] == [{"0": 15, "1": 15}, {"0": 20, "1": 20}]
    assert json.loads(done[0].sources[0].latestOffset)[name] == {"0": 20, "1": 20}

    topics.door.run(topics.admin.create_partitions(name, 3))
    topics.write(name, [b"v"] * 3, 2)
    second = Stream(spark, topics, tmp_path, name, **options)
    query = second.run_once()
    assert second.offsets() == [(2, 0), (2, 1), (2, 2)]
    last = json.loads(next(p for p in reversed(query.recentProgress) if p.numInputRows).sources[0].endOffset)
    assert last["@group"].startswith("lag-stream-")
    coordinator = Coordinator(topics.door.cluster, last["@group"])
    found = topics.door.run(topics.door.cluster.retrying(lambda: commits.fetch(coordinator)))
    assert {where.partition: what.offset for where, what in found.items()} == {0: 20, 1: 20, 2: 3}
    topics.write(name, [b"v"] * 4, 1)
    capsys.readouterr()
    asked = ["--bootstrap-server", topics.address, "--describe", "--group", last["@group"]]
    assert consumer_groups.main(asked) == 0
    heads, *lines = (line.split() for line in capsys.readouterr().out.splitlines() if name in line or "LAG" in line)
    told = [dict(zip(heads, line, strict=False)) for line in lines]
    assert {line["PARTITION"]: line["LAG"] for line in told} == {"0": "0", "1": "4", "2": "0"}


@pytest.mark.slow
def test_a_topic_made_again_stops_the_stream(spark: SparkSession, topics: Topics, tmp_path: Path) -> None:
    name = topics.make("stream-reborn")
    topics.write(name, [b"v"])
    stream = Stream(spark, topics, tmp_path, name, startingOffsets="earliest")
    stream.run_once()
    topics.door.run(topics.admin.delete_topic(name))
    topics.make(name)
    topics.write(name, [b"v"] * 2)
    with pytest.raises(PySparkException, match="was deleted and made again"):
        Stream(spark, topics, tmp_path, name, startingOffsets="earliest").run_once()
    assert len(stream.rows) == 1


@pytest.fixture
def elsewhere(apache: Apache) -> Iterator[Topics]:
    made = Topics(apache.address)
    yield made
    made.close()


def copy(spark: SparkSession, topics: Topics, checkpoint: Path, name: str, to: str) -> int:
    """Everything there is, in two micro-batches or more, from one topic to another; how many there were."""
    where = {"kafka.bootstrap.servers": topics.address}
    read = {**where, "subscribe": name, "startingOffsets": "earliest", "maxOffsetsPerTrigger": "150"}
    frame = spark.readStream.format("ottla").options(**read).load().select("key", "value")
    written = frame.writeStream.format("ottla").options(**where, topic=to, checkpointLocation=str(checkpoint))
    query = written.trigger(availableNow=True).start()
    assert query.awaitTermination(QUERY_SECONDS), "it should have ended"
    return sum(progress.numInputRows > 0 for progress in query.recentProgress)


@pytest.mark.slow
@pytest.mark.apache
def test_apache_kafka_is_read_and_written_as_well(spark: SparkSession, elsewhere: Topics, tmp_path: Path) -> None:
    """STR-05, STR-09, STR-10: a batch, a stream and a copy that is repeated after a failure, on Apache Kafka 4.3.1."""
    name, to = elsewhere.make("spark-in", 2), elsewhere.make("spark-out", 3)
    for partition, codec in enumerate((Codec.ZSTD, Codec.NONE)):
        values = [b"%d" % (number * 2 + partition) for number in range(100)]
        elsewhere.write(name, values, partition, codec=codec, headers=(("trace", b"%d" % partition),))
    found = batch(spark, elsewhere, name, includeHeaders="true").selectExpr(
        "count(*)", "sum(int(string(value)))", "count_if(string(headers[0].value) = string(partition))"
    )
    assert tuple(found.first() or ()) == (200, 19_900, 200)
    stream = Stream(spark, elsewhere, tmp_path / "stream", name, startingOffsets="earliest")
    stream.run_once()
    assert stream.offsets() == [(partition, offset) for partition in (0, 1) for offset in range(100)]

    assert copy(spark, elsewhere, tmp_path / "copy", name, to) == 2
    last = max((tmp_path / "copy" / "commits").glob("[0-9]*"), key=lambda file: int(file.name))
    last.unlink()  # as if the driver had died after its transaction: the last micro-batch comes again
    (last.parent / f".{last.name}.crc").unlink(missing_ok=True)
    elsewhere.write(name, [b"200"], 0)
    assert copy(spark, elsewhere, tmp_path / "copy", name, to) == 2
    options = {"subscribe": to, "kafka.isolation.level": "read_committed"}
    written = sorted(int(bytes(row["value"])) for row in elsewhere.rows(options))  # type: ignore[arg-type]
    assert written == list(range(201))
    with pytest.raises(PySparkException, match="has a new checkpoint"):
        copy(spark, elsewhere, tmp_path / "lost", name, to)


def test_workers_do_not_look_for_garbage_in_what_was_imported(spark):
    """From its second task on a worker has put that aside."""

    def ages(batches):
        import gc
        import os

        list(batches)
        yield pa.RecordBatch.from_pylist([{"worker": os.getpid(), "aside": gc.get_freeze_count()}])

    told = spark.range(16, numPartitions=16).mapInArrow(ages, "worker LONG, aside LONG").collect()
    first, *later = [row["aside"] for row in told if row["worker"] == told[0]["worker"]]
    assert first == 0 or first > 10_000  # others of this session may have used the worker
    assert later and all(aside > 10_000 for aside in later)
