"""Writing topics from a real Spark: batches and streams, what is refused, and what a failure leaves behind."""

from __future__ import annotations

import asyncio
import itertools
import os
import shutil
import time
from collections import Counter
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from ottla.client.admin import Admin
from ottla.client.cluster import EARLIEST, LATEST, Cluster, TopicPartition
from ottla.client.consumer import Consumed, Consumer
from ottla.client.partitioning import by_key
from pipeline.copies import Copy

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

NUMBERS = itertools.count()
# A machine may be slow, and workers have to be started.
SECONDS = 300
pytestmark = pytest.mark.timeout(600)


class Topics:
    """Topics of a broker: made, filled and read without Spark."""

    def __init__(self, address: str) -> None:
        self.address = address
        self.options = {"kafka.bootstrap.servers": address}

    def new(self, partitions: int = 3) -> str:
        name = f"spark-sink-{os.getpid()}-{next(NUMBERS)}"

        async def main() -> None:
            async with Cluster(self.address) as cluster:
                await Admin(cluster).create_topic(name, partitions=partitions)

        asyncio.run(main())
        return name

    def records(self, topic: str) -> list[Consumed]:
        """What was committed, each partition in order."""

        async def main() -> list[Consumed]:
            async with Cluster(self.address) as cluster:
                places = [TopicPartition(topic, p) for p in range(await cluster.partition_count(topic))]
                ends = await cluster.list_offsets(dict.fromkeys(places, LATEST))
                limits = {where: found.offset for where, found in ends.items()}
                consumer = Consumer(cluster, dict.fromkeys(places, EARLIEST), ends=limits, read_committed=True)
                return [record async for record in consumer]

        return asyncio.run(main())

    def values(self, topic: str) -> Counter[str]:
        return Counter((record.value or b"").decode() for record in self.records(topic))


@pytest.fixture(scope="module")
def topics(broker: str) -> Topics:
    return Topics(broker)


def numbers(spark: SparkSession, count: int, parts: int = 3) -> DataFrame:
    return spark.range(0, count, 1, parts).selectExpr("cast(id % 7 as string) AS key", "cast(id as string) AS value")


def expected(count: int) -> Counter[str]:
    return Counter(str(number) for number in range(count))


def test_a_batch_write(spark, topics):
    """Keys go where Java's client sends them; headers, times and the codec arrive; a null is a null."""
    topic, began = topics.new(), int(time.time() * 1000)
    frame = numbers(spark, 3000).selectExpr(
        "key",
        "if(value = '13', null, value) AS value",
        "array(named_struct('key', 'of', 'value', cast(value AS binary))) AS headers",
        f"timestamp_millis({began} + cast(value AS bigint)) AS timestamp",
    )
    options = {**topics.options, "topic": topic, "kafka.compression.type": "lz4"}
    frame.write.format("ottla").mode("append").options(**options).save()
    records = topics.records(topic)
    assert len(records) == 3000
    for record in records:
        number = record.timestamp - began
        assert (record.key or b"").decode() == str(number % 7)
        assert record.value == (None if number == 13 else str(number).encode())
        assert record.headers == (("of", str(number).encode()),)
        assert record.partition == by_key(topic, record.key, 3)


def test_topics_by_column_and_partitions_by_column(spark, topics):
    one, two = topics.new(1), topics.new(2)
    frame = numbers(spark, 100).selectExpr("value", f"if(value < 50, '{one}', '{two}') AS topic", "0 AS partition")
    for _ in range(2):
        options = {**topics.options, "sinkId": f"by column {one}", "operationId": "first"}
        frame.write.format("ottla").mode("append").options(**options).save()
    found = {topic: topics.records(topic) for topic in (one, two)}
    assert {topic: len(records) for topic, records in found.items()} == {one: 50, two: 50}
    assert {record.partition for records in found.values() for record in records} == {0}


def test_what_is_refused_is_said_in_a_way_that_people_find(spark, topics):
    from pyspark.errors import PySparkException

    topic = topics.new(1)
    frame = numbers(spark, 10)
    for mode, columns, message in (
        ("overwrite", ["*"], "Save mode Overwrite not allowed for Kafka"),
        ("append", ["cast(value AS int) AS value"], "value attribute unsupported type int"),
        ("append", ["value", "9 AS partition"], "a row names partition 9"),
    ):
        written = frame.selectExpr(*columns).write.format("ottla").mode(mode).options(**topics.options)
        with pytest.raises(PySparkException, match=message):
            written.option("topic", topic).save()
    with pytest.raises(PySparkException, match="topic option required"):
        frame.write.format("ottla").mode("append").options(**topics.options).save()
    assert topics.records(topic) == []


def run_stream(frame: DataFrame, checkpoint: Path, options: dict[str, str], form: str = "ottla") -> None:
    """All that is there, in several micro-batches."""
    query = (
        frame.writeStream.format(form)
        .options(**options)
        .option("checkpointLocation", str(checkpoint))
        .trigger(availableNow=True)
        .start()
    )
    try:
        assert query.awaitTermination(SECONDS)
    finally:
        query.stop()


def stream(spark: SparkSession, topics: Topics, source: str, per_trigger: int = 400) -> DataFrame:
    reader = spark.readStream.format("ottla").options(**topics.options).option("subscribe", source)
    reader = reader.option("startingOffsets", "earliest").option("maxOffsetsPerTrigger", str(per_trigger))
    return reader.load().select("key", "value")


def fill(spark: SparkSession, topics: Topics, count: int) -> str:
    topic = topics.new()
    numbers(spark, count).write.format("ottla").mode("append").options(**topics.options, topic=topic).save()
    return topic


def files(root: Path) -> list[Path]:
    return [path for path in root.rglob("*") if path.is_file()]


def test_a_stream_from_topic_to_topic(spark, topics, tmp_path):
    """It goes on where it was; a new checkpoint is refused until it is accepted; files of the spool are gone."""
    from pyspark.errors import StreamingQueryException

    source, target = fill(spark, topics, 1000), topics.new()
    options = {**topics.options, "topic": target, "spoolPath": str(tmp_path / "spool"), "spoolAbove": "0"}
    run_stream(stream(spark, topics, source), tmp_path / "checkpoint", options)
    assert topics.values(target) == expected(1000)
    run_stream(stream(spark, topics, source), tmp_path / "checkpoint", options)
    assert topics.values(target) == expected(1000)
    with pytest.raises(StreamingQueryException, match="it has a new checkpoint") as refused:
        run_stream(stream(spark, topics, source), tmp_path / "lost", options)
    assert topics.values(target) == expected(1000) and files(tmp_path / "spool") == []
    given = str(refused.value).split("('acceptCheckpoint', '")[1].split("'")[0]
    run_stream(stream(spark, topics, source), tmp_path / "lost", {**options, "acceptCheckpoint": given})
    assert topics.values(target) == expected(1000) + expected(1000)


def test_a_checkpoint_that_was_put_back_is_refused(spark, topics, tmp_path):
    """One that is a single micro-batch older than the output comes with the number of that micro-batch, as a repetition
    after a failure does. To skip it would lose what has come since: nobody would ever read it again."""
    from pyspark.errors import StreamingQueryException

    def more(first: int) -> None:
        frame = spark.range(first, first + 10).selectExpr("'k' AS key", "cast(id as string) AS value")
        frame.write.format("ottla").mode("append").options(**topics.options, topic=source).save()

    source, target, checkpoint = topics.new(1), topics.new(1), tmp_path / "checkpoint"
    options = {**topics.options, "topic": target}
    more(0)
    run_stream(stream(spark, topics, source), checkpoint, options)
    shutil.copytree(checkpoint, tmp_path / "backup")
    more(10)
    run_stream(stream(spark, topics, source), checkpoint, options)
    shutil.rmtree(checkpoint)
    shutil.move(tmp_path / "backup", checkpoint)
    more(20)
    with pytest.raises(StreamingQueryException, match="its checkpoint is an older copy") as refused:
        run_stream(stream(spark, topics, source), checkpoint, options)
    assert topics.values(target) == expected(20)
    given = str(refused.value).split("('acceptCheckpoint', '")[1].split("'")[0]
    run_stream(stream(spark, topics, source), checkpoint, {**options, "acceptCheckpoint": given})
    assert topics.values(target) == expected(30) + Counter(map(str, range(10, 20)))


def failing_source(failures: Path) -> type:
    """The same format, whose commit fails once for each file: after it took effect, or before. Made here, so that Spark
    carries it to its workers as it is."""
    from ottla.pipeline.format import OttlaSource
    from ottla.pipeline.sink import StreamWriter, stream_writer

    class Failing(StreamWriter):
        def commit(self, messages: Any, batchId: int) -> None:
            before, after = failures / f"before-{batchId}", failures / f"after-{batchId}"
            if before.exists():
                before.unlink()
                raise RuntimeError("the driver fails before it commits")
            super().commit(messages, batchId)
            if after.exists():
                after.unlink()
                raise RuntimeError("the driver fails after it has committed")

    class FailingSource(OttlaSource):
        @classmethod
        def name(cls) -> str:
            return "failing"

        def streamWriter(self, schema: Any, overwrite: bool) -> Any:
            return Failing(stream_writer(self.options, schema, overwrite).writing)

    return FailingSource


def test_a_commit_that_fails_before_or_after_it_took_effect(spark, topics, tmp_path):
    """Spark aborts the batch and fails the query; started again, it repeats the batch: written once, skipped once."""
    from pyspark.errors import StreamingQueryException

    source, target = fill(spark, topics, 1000), topics.new()
    failures = tmp_path / "failures"
    failures.mkdir()
    for name in ("after-0", "before-1", "after-2"):
        (failures / name).touch()
    spark.dataSource.register(failing_source(failures))
    options = {**topics.options, "topic": target, "spoolPath": str(tmp_path / "spool"), "spoolAbove": "0"}
    seen = []
    for _ in range(3):
        with pytest.raises(StreamingQueryException, match="the driver fails"):
            run_stream(stream(spark, topics, source), tmp_path / "checkpoint", options, "failing")
        seen.append(sum(topics.values(target).values()))
        assert files(tmp_path / "spool") == []
    run_stream(stream(spark, topics, source), tmp_path / "checkpoint", options, "failing")
    assert topics.values(target) == expected(1000)
    assert seen == sorted(seen) and 0 < seen[0] == seen[1] < seen[2] <= 1000
    assert not list(failures.iterdir())


@pytest.mark.slow
def test_a_driver_that_is_killed(spark, topics, tmp_path):
    """A task of it fails once and is repeated; then it dies while it writes, and this Spark goes on from its checkpoint.

    Files that it left in the spool are gone after the next commit.
    """
    copy = Copy(topics.address, tmp_path)
    copy.fill(20_000)
    copy.start(2000, "1")
    try:
        assert copy.wait_for("started"), copy.log_tail()
        while not copy.written():
            assert copy.running(), copy.log_tail()
            time.sleep(0.05)
    finally:
        assert copy.kill()
    assert (tmp_path / "failed").exists()
    options = {**topics.options, "topic": copy.target, "spoolPath": str(tmp_path / "spool")}
    run_stream(stream(spark, topics, copy.source, 20_000), tmp_path / "checkpoint", options)
    assert copy.misfits(20_000) == (0, 0)
    assert files(tmp_path / "spool") == []


@pytest.mark.slow
def test_the_same_on_apache_kafka(spark, apache, tmp_path):
    topics = Topics(apache.address)
    source, target = fill(spark, topics, 1000), topics.new()
    for _ in range(2):
        run_stream(stream(spark, topics, source), tmp_path / "checkpoint", {**topics.options, "topic": target})
    assert topics.values(target) == expected(1000)


@pytest.mark.slow
def test_complete_mode_appends_as_the_connector_does(spark, topics, tmp_path):
    source, target = fill(spark, topics, 100), topics.new(1)
    counted = (
        stream(spark, topics, source, 1000).groupBy("key").count().selectExpr("key", "cast(count AS string) AS value")
    )
    query = (
        counted.writeStream.format("ottla")
        .options(**topics.options, topic=target)
        .option("checkpointLocation", str(tmp_path))
        .outputMode("complete")
        .trigger(availableNow=True)
        .start()
    )
    assert query.awaitTermination(SECONDS)
    found = {(record.key or b"").decode(): int(record.value or b"0") for record in topics.records(target)}
    assert found == {str(key): len(range(key, 100, 7)) for key in range(7)}
