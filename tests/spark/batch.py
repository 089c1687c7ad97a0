"""Spark's standard Kafka connector against our node, batch and stream, every record compared.

`make spark` runs it, in an environment of its own; `make test` does not, because Spark is half a gigabyte. Each check
prints a line. Spark's own writing and reading could agree on something wrong, so what it wrote is read once more by
`ottla consume`, and what it reads with given timestamps was written by `ottla produce`.
"""

from __future__ import annotations

import argparse
import base64
import json
import os
import subprocess
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any, NamedTuple

sys.path.insert(0, str(Path(__file__).parent.parent))
os.environ.setdefault("SPARK_LOCAL_IP", "127.0.0.1")
os.environ["PYSPARK_PYTHON"] = sys.executable

from pyspark.errors import StreamingQueryException
from pyspark.sql import DataFrame, Row, SparkSession

from harness import Node

JARS = Path(__file__).parent / "jars"
COLUMNS = "partition int, key binary, value binary, headers array<struct<key:string,value:binary>>"
CODECS = ("none", "gzip", "snappy", "lz4", "zstd")
SIZES = (0, 1, 100, 65_536, 1_000_000)
PARTITIONS = 4
RECORDS = 3_000
BULK_RECORDS = 500_000
STREAM_SECONDS = 60
HOUR_MS = 3_600_000


class Record(NamedTuple):
    partition: int
    key: bytes | None
    value: bytes | None
    headers: tuple[tuple[str, bytes | None], ...]


def record(n: int) -> Record:
    """Every kind in turn: with and without key, tombstones, empty values, no, one and repeated headers."""
    key = None if n % 3 == 0 else f"key {n % 50}".encode()
    value = None if n % 7 == 0 else b"" if n % 11 == 0 else bytes([n % 256]) + f" value {n}".encode()
    headers = ((), (("one", b"\x00\xff"),), (("twice", b"1"), ("twice", None)))[n % 5 % 3]
    return Record(n % PARTITIONS, key, value, headers)


class Trial:
    """One Spark session and one node, and what the checks say to them."""

    def __init__(self, node: Node, spark: SparkSession, scratch: Path) -> None:
        self.node, self.spark, self.scratch = node, spark, scratch
        self.topics = 0

    def topic(self, about: str) -> str:
        self.topics += 1
        name = f"{about}-{self.topics}"
        self.ottla("topic", "create", name, "--partitions", str(PARTITIONS))
        return name

    def ottla(self, *arguments: str, stdin: str = "") -> str:
        """What the command prints."""
        command = [sys.executable, "-m", "ottla", *arguments, "--bootstrap-server", self.node.address]
        return subprocess.run(command, input=stdin, capture_output=True, text=True, check=True).stdout

    def options(self, more: dict[str, str]) -> dict[str, str]:
        return {"kafka.bootstrap.servers": self.node.address, "includeHeaders": "true", **more}

    def frame(self, records: Iterable[Record]) -> DataFrame:
        return self.spark.createDataFrame(list(records), COLUMNS)

    def write(self, records: Iterable[Record], topic: str, **kafka: str) -> None:
        options = self.options({"topic": topic, **{f"kafka.{k.replace('_', '.')}": v for k, v in kafka.items()}})
        self.frame(records).write.format("kafka").options(**options).save()

    def load(self, topic: str | None = None, **more: str) -> DataFrame:
        named = {"subscribe": topic} if topic else {}
        return self.spark.read.format("kafka").options(**self.options({**named, **more})).load()

    def stream(self, topic: str, **more: str) -> Any:
        options = self.options({"subscribe": topic, "startingOffsets": "earliest", **more})
        return self.spark.readStream.format("kafka").options(**options).load()


def of_row(row: Row) -> Record:
    headers = tuple((h["key"], _bytes(h["value"])) for h in row["headers"] or ())
    return Record(row["partition"], _bytes(row["key"]), _bytes(row["value"]), headers)


def of_json(line: str) -> Record:
    """A line of `ottla consume`."""
    seen = json.loads(line)
    headers = tuple((h["key"], _plain(h["value"])) for h in seen["headers"])
    return Record(seen["partition"], _plain(seen["key"]), _plain(seen["value"]), headers)


def _bytes(value: bytearray | None) -> bytes | None:
    return None if value is None else bytes(value)


def _plain(value: Any) -> bytes | None:
    if value is None:
        return None
    return base64.b64decode(value["base64"]) if isinstance(value, dict) else value.encode()


def same(found: Iterable[Record], expected: Iterable[Record]) -> int:
    """How many they are. Spark's tasks write beside each other, so there is no one order to expect."""
    have, want = Counter(found), Counter(expected)
    assert have == want, f"missing {list((want - have).items())[:3]}, too many {list((have - want).items())[:3]}"
    return have.total()


def without_gaps(rows: Iterable[Row]) -> None:
    """Each partition's offsets are 0, 1, 2 and so on, each once."""
    offsets: dict[tuple[str, int], list[int]] = {}
    for row in rows:
        offsets.setdefault((row["topic"], row["partition"]), []).append(row["offset"])
    for place, seen in offsets.items():
        assert sorted(seen) == list(range(len(seen))), place


# The checks. Each returns how many records it compared.


def batch_write_and_read(trial: Trial) -> int:
    topic = trial.topic("batch")
    expected = [record(n) for n in range(RECORDS)]
    trial.write(expected, topic)
    rows = trial.load(topic).collect()
    without_gaps(rows)
    assert {(row["topic"], row["timestampType"]) for row in rows} == {(topic, 0)}
    lines = trial.ottla("consume", topic, "--from-beginning", "--no-follow").splitlines()
    return same(map(of_row, rows), expected) + same(map(of_json, lines), expected)


def codecs_and_sizes(trial: Trial) -> int:
    checked = 0
    for codec in CODECS:
        topic = trial.topic(codec)
        sizes = [Record(n % PARTITIONS, b"k", os.urandom(size), ()) for n, size in enumerate(SIZES)]
        expected = [*sizes, *(record(n) for n in range(500))]
        trial.write(expected, topic, compression_type=codec)
        checked += same(map(of_row, trial.load(topic).collect()), expected)
    return checked


def topics_by_column_and_ways_to_name_them(trial: Trial) -> int:
    """A `topic` column sends rows to several topics; `assign` and `subscribePattern` read them."""
    first, second = trial.topic("column"), trial.topic("column")
    expected = [record(n) for n in range(200)]
    frame = trial.frame(expected)
    for topic in (first, second):
        assert trial.load(topic).count() == 0
    named = frame.selectExpr(f"if(partition < 2, '{first}', '{second}') as topic", "*")
    named.write.format("kafka").options(**trial.options({})).save()
    rows = trial.load(subscribePattern=f"column-({first[7:]}|{second[7:]})").collect()
    assert all(row["topic"] == (first if row["partition"] < 2 else second) for row in rows)
    assigned = trial.load(assign=json.dumps({first: [0, 1], second: [2]})).collect()
    return same(map(of_row, rows), expected) + same(map(of_row, assigned), [r for r in expected if r.partition < 3])


def offsets(trial: Trial) -> int:
    """-2 is the earliest and -1 the latest; the end is exclusive."""
    topic = trial.topic("offsets")
    trial.write((record(n) for n in range(400)), topic)
    start, end = {"0": 10, "1": -2, "2": 99, "3": 50}, {"0": 20, "1": 30, "2": -1, "3": 50}
    asked = {"startingOffsets": json.dumps({topic: start}), "endingOffsets": json.dumps({topic: end})}
    rows = trial.load(topic, **asked).collect()
    expected = {0: range(10, 20), 1: range(30), 2: range(99, 100), 3: range(0)}
    seen = sorted((row["partition"], row["offset"]) for row in rows)
    assert seen == [(p, offset) for p, places in expected.items() for offset in places]
    return len(seen)


def dated(trial: Trial) -> tuple[str, int]:
    """A topic whose record n in each partition is n seconds younger than a moment, which comes with it."""
    topic, base = trial.topic("dated"), int(time.time() * 1000) - HOUR_MS
    places = [(p, n) for n in range(100) for p in range(PARTITIONS)]
    lines = [json.dumps({"value": str(n), "partition": p, "timestamp": base + 1000 * n}) for p, n in places]
    trial.ottla("produce", topic, "--json", "--quiet", stdin="\n".join(lines))
    return topic, base


def timestamps(trial: Trial) -> int:
    """A moment is the first record of that time or later, as start and as (exclusive) end; per partition or for all."""
    topic, base = dated(trial)

    def by(places: dict[int, int]) -> str:
        return json.dumps({topic: {str(p): base + ms for p, ms in places.items()}})

    start, end = by({0: 0, 1: 9_001, 2: 50_000, 3: 99_000}), by({0: 5_000, 1: 20_000, 2: 50_001, 3: 99_000})
    seen = values(trial.load(topic, startingOffsetsByTimestamp=start, endingOffsetsByTimestamp=end))
    expected = {0: range(5), 1: range(10, 20), 2: range(50, 51), 3: range(0)}
    assert seen == [(p, n) for p, numbers in expected.items() for n in numbers], seen
    both = values(trial.load(topic, startingTimestamp=str(base + 30_000), endingTimestamp=str(base + 40_000)))
    assert both == [(p, n) for p in range(PARTITIONS) for n in range(30, 40)], both
    late = {"startingTimestamp": str(base + HOUR_MS), "startingOffsetsByTimestampStrategy": "latest"}
    assert values(trial.load(topic, **late)) == []
    return len(seen) + len(both) + times_come_back(trial, topic, base)


def values(frame: DataFrame) -> list[tuple[int, int]]:
    return sorted((row["partition"], int(row["value"])) for row in frame.collect())


def times_come_back(trial: Trial, topic: str, base: int) -> int:
    exact = trial.load(topic).selectExpr("unix_millis(timestamp) as ms", "int(string(value)) as n").collect()
    assert all(row["ms"] == base + 1000 * row["n"] for row in exact)
    return len(exact)


def bulk(trial: Trial) -> int:
    """Compared inside Spark; and once more when read in many small ranges, committed records only."""
    topic = trial.topic("bulk")
    made = trial.spark.range(BULK_RECORDS).selectExpr(
        f"int(id % {PARTITIONS}) as partition",
        "string(id) as key",
        "concat(repeat('x', 90), lpad(id, 10, '0')) as value",
    )
    write = {"topic": topic, "kafka.compression.type": "lz4"}
    made.write.format("kafka").options(**trial.options(write)).save()
    split = {
        "minPartitions": "16",
        "kafka.isolation.level": "read_committed",
        "kafka.max.partition.fetch.bytes": "99999",
    }
    for asked in ({}, split):
        read = trial.load(topic, **asked)
        assert read.rdd.getNumPartitions() >= (16 if asked else PARTITIONS)
        read = read.selectExpr("partition", "string(key) as key", "string(value) as value")
        assert read.count() == BULK_RECORDS
        assert made.exceptAll(read).isEmpty()
    return 2 * BULK_RECORDS


def unknown_topic(trial: Trial) -> int:
    try:
        trial.load("never-made").collect()
    except Exception as error:
        assert "UnknownTopicOrPartition" in str(error), error
        return 0
    raise AssertionError("a topic that was never made could be read")


def stream_from_topic_to_topic(trial: Trial) -> int:
    """What is there now, in several micro-batches; a second run goes on where its checkpoint says."""
    source, sink = trial.topic("source"), trial.topic("sink")
    expected = [record(n) for n in range(RECORDS)]
    for part in (expected[: RECORDS // 2], expected[RECORDS // 2 :]):
        trial.write(part, source)
        reading = trial.stream(source, maxOffsetsPerTrigger="500").select("partition", "key", "value", "headers")
        writing = reading.writeStream.format("kafka").options(**trial.options({"topic": sink}))
        query = writing.option("checkpointLocation", str(trial.scratch / source)).trigger(availableNow=True).start()
        assert query.awaitTermination(STREAM_SECONDS), "the stream did not come to its end"
        assert sum(progress.numInputRows for progress in query.recentProgress) == len(part)
    return same(map(of_row, trial.load(sink).collect()), expected)


def stream_over_a_kill(trial: Trial) -> int:
    """A stream that waits for records sees those written before and after the node was killed and started again."""
    topic = trial.topic("tail")
    rows: list[Row] = []

    def keep(frame: DataFrame, _: int) -> None:
        rows.extend(frame.collect())

    query = trial.stream(topic).writeStream.foreachBatch(keep).trigger(processingTime="200 milliseconds").start()
    try:
        expected = [record(n) for n in range(300)]
        for count in (100, 200, 300):
            trial.write(expected[count - 100 : count], topic)
            wait_for(rows, count, query)
            trial.node.kill()
            trial.node.start()
    finally:
        query.stop()
    without_gaps(rows)
    return same(map(of_row, rows), expected)


def wait_for(rows: list[Row], count: int, query: Any) -> None:
    deadline = time.monotonic() + STREAM_SECONDS
    while len(rows) < count:
        if query.exception() is not None:
            raise query.exception()
        assert time.monotonic() < deadline, "the stream did not see the records in time"
        time.sleep(0.05)


CHECKS = (
    batch_write_and_read,
    codecs_and_sizes,
    topics_by_column_and_ways_to_name_them,
    offsets,
    timestamps,
    bulk,
    unknown_topic,
    stream_from_topic_to_topic,
    stream_over_a_kill,
)


def session() -> SparkSession:
    settings = {
        "spark.jars": ",".join(str(jar) for jar in sorted(JARS.glob("*.jar"))),
        "spark.driver.host": "127.0.0.1",
        "spark.driver.bindAddress": "127.0.0.1",
        "spark.ui.enabled": "false",
        "spark.ui.showConsoleProgress": "false",
        "spark.sql.shuffle.partitions": "2",
    }
    builder = SparkSession.builder.master("local[2]").appName("ottla")
    for name, value in settings.items():
        builder = builder.config(name, value)
    spark = builder.getOrCreate()
    spark.sparkContext.setLogLevel("ERROR")
    return spark


def main() -> int:
    parser = argparse.ArgumentParser(description="Spark's Kafka connector against a node, every record compared.")
    parser.add_argument("check", nargs="*", help=f"only these of {', '.join(check.__name__ for check in CHECKS)}")
    wanted = parser.parse_args().check
    print("starting Spark ...", flush=True)
    spark = session()
    with tempfile.TemporaryDirectory() as scratch:
        node = Node(Path(scratch) / "data")
        node.start()
        trial = Trial(node, spark, Path(scratch))
        passed = [passes(check, trial) for check in CHECKS if not wanted or check.__name__ in wanted]
        spark.stop()
        node.stop()
    return 0 if passed and all(passed) else 1


def passes(check: Callable[[Trial], int], trial: Trial) -> bool:
    began = time.monotonic()
    print(f"{check.__name__.replace('_', ' '):40}", end="", flush=True)
    try:
        compared = check(trial)
    except (AssertionError, StreamingQueryException, subprocess.CalledProcessError) as error:
        print(f"FAILED: {error}", flush=True)
        return False
    print(f"ok {compared:10,} records  {time.monotonic() - began:5.1f} s", flush=True)
    return True


if __name__ == "__main__":
    sys.exit(main())
