"""What is measured of Spark, in a process of its own: `python spark_jobs.py FORMAT BOOTSTRAP JARS`.

Reads the names of jobs from standard input, one a line, and answers each with one line of JSON. With FORMAT `kafka` it runs
on a PySpark that knows nothing of Ottla, with Spark's own connector and the options that suit it best.
"""

from __future__ import annotations

import json
import shutil
import sys
import tempfile
import time
from collections.abc import Callable
from typing import Any

READ_TUNED = {
    "kafka.max.partition.fetch.bytes": str(8 << 20),
    "kafka.max.poll.records": "10000",
    "kafka.fetch.max.bytes": str(100 << 20),
    "kafka.receive.buffer.bytes": str(1 << 20),
}
WRITE_TUNED = {"kafka.linger.ms": "20", "kafka.batch.size": "1000000", "kafka.buffer.memory": str(128 << 20)}
LOOPBACK = {"spark.driver.host": "127.0.0.1", "spark.driver.bindAddress": "127.0.0.1", "spark.ui.enabled": "false"}
SMALL_ROWS, SMALL_BATCHES = 80, 20
EMPTY_TRIGGERS = 50
TELL_EMPTY_MS = "spark.sql.streaming.noDataProgressEventInterval"

# What a progress is known by, if it is of the kind that counts.
Kind = Callable[[Any], object]


def session(kind: str, jars: str) -> Any:
    if kind == "ottla":
        from ottla.pipeline import session as ours

        return ours.session("bench", master="local[2]", conf={"spark.sql.shuffle.partitions": "2"})
    from pyspark.sql import SparkSession

    builder = SparkSession.builder.master("local[2]").config("spark.jars", jars)
    for name, value in {**LOOPBACK, "spark.sql.shuffle.partitions": "2"}.items():
        builder = builder.config(name, value)
    made = builder.getOrCreate()
    made.sparkContext.setLogLevel("ERROR")
    return made


class Jobs:
    def __init__(self, kind: str, bootstrap: str, spark: Any) -> None:
        self.kind, self.spark = kind, spark
        self._where = {"kafka.bootstrap.servers": bootstrap}
        self._reading = self._where | (READ_TUNED if kind == "kafka" else {})
        self._writing = self._where | (WRITE_TUNED if kind == "kafka" else {})
        self._made = 0

    def _read(self) -> Any:
        return self.spark.read.format(self.kind).options(subscribe="rows", **self._reading).load()

    def _stream(self, topic: str = "rows", **options: str) -> Any:
        asked = {"subscribe": topic, "startingOffsets": "earliest", **self._reading, **options}
        return self.spark.readStream.format(self.kind).options(**asked).load()

    def session_made(self) -> None:
        """It is, before the first job is asked for."""

    def first_row(self) -> None:
        assert self._read().head() is not None

    def batch_read(self) -> None:
        self._read().write.format("noop").mode("overwrite").save()

    def group_by(self) -> None:
        self._read().groupBy("key").count().write.format("noop").mode("overwrite").save()

    def stream_read(self) -> None:
        self._run(self._stream().writeStream.format("noop"), availableNow=True)

    def copy(self) -> None:
        rows = self._stream().select("key", "value")
        self._run(
            rows.writeStream.format(self.kind).options(topic="copy", **self._named(), **self._writing),
            availableNow=True,
        )

    def write(self) -> None:
        rows = self.spark.range(1_000_000, numPartitions=4).selectExpr(
            "CAST(id AS STRING) AS key", "repeat('x', 100) AS value"
        )
        rows.write.format(self.kind).options(topic="written", **self._writing).mode("append").save()

    def small_batches(self) -> float:
        """The median of the time that Spark takes for a micro-batch of a few rows."""
        return self._small(self._few().writeStream.format("noop"))

    def small_copies(self) -> float:
        """The same with a topic at the other end."""
        rows = self._few().select("key", "value")
        return self._small(rows.writeStream.format(self.kind).options(topic="copy", **self._named(), **self._writing))

    def empty_triggers(self) -> float:
        """The median of the time that a trigger takes which finds nothing new.

        Spark makes no micro-batch then, and tasks have no part in it: what is left is the question how far the topic goes,
        which it asks again after ten milliseconds. A micro-batch without rows, as state has for its watermark, would say
        less: nothing is read for that one. Of empty triggers Spark tells every ten seconds, unless it is to tell of each.
        """
        self.spark.conf.set(TELL_EMPTY_MS, "0")
        try:
            quiet = self._stream(startingOffsets="latest").writeStream.format("noop")
            return _median(self._run(quiet, EMPTY_TRIGGERS, _empty_trigger))
        finally:
            self.spark.conf.unset(TELL_EMPTY_MS)

    def _few(self) -> Any:
        return self._stream(maxOffsetsPerTrigger=str(SMALL_ROWS))

    def _small(self, writer: Any) -> float:
        return _median(self._run(writer, SMALL_BATCHES, _micro_batch))

    def _named(self) -> dict[str, str]:
        """Each run is a query of its own, and would be taken for one that has lost its checkpoint."""
        self._made += 1
        return {"sinkId": f"copy-{self._made}"} if self.kind == "ottla" else {}

    def _run(self, writer: Any, many: int = 0, kind: Kind = lambda _: None, **trigger: bool) -> list[float]:
        """Until it is done, or has told of so many of a kind. How long they took, without the first."""
        checkpoint = tempfile.mkdtemp(prefix="ottla-bench-")
        try:
            writer = writer.option("checkpointLocation", checkpoint)
            query = (writer.trigger(**trigger) if trigger else writer).start()
            taken: dict[object, float] = {}
            while query.isActive and not (many and len(taken) > many):
                for each in query.recentProgress if many else ():
                    if (name := kind(each)) is not None:
                        taken[name] = each["durationMs"].get("triggerExecution", 0.0)
                time.sleep(0.01)
            query.stop()
            if (error := query.exception()) is not None:
                raise error
            return list(taken.values())[1:]
        finally:
            shutil.rmtree(checkpoint, ignore_errors=True)


def _micro_batch(progress: Any) -> object:
    return progress["batchId"]


def _empty_trigger(progress: Any) -> object:
    """All of them have the number of the micro-batch that would come next."""
    return None if "addBatch" in progress["durationMs"] else progress["timestamp"]


def _median(taken: list[float]) -> float:
    return sorted(taken)[len(taken) // 2]


def main() -> None:
    kind, bootstrap, jars = sys.argv[1:4]
    began = time.perf_counter()
    jobs = Jobs(kind, bootstrap, session(kind, jars))
    for line in sys.stdin:
        name = line.strip()
        job: Callable[[], float | None] = getattr(jobs, name)
        since = began if name == "first_row" else time.perf_counter()
        told = job()
        print(json.dumps({"seconds": time.perf_counter() - since, "told": told}), flush=True)
    jobs.spark.stop()


if __name__ == "__main__":
    main()
