"""A driver that is there to be killed: copies a topic to another one, batch by batch, and ends when all is copied.

    python copying.py <bootstrap> <source> <target> <directory> <rows per batch> [<task that fails once>] [--master ...]

It says "started" when the query runs, and "done" at its end. With `--jars` it reads and writes with Spark's own connector,
whose jars these are, on a PySpark that knows nothing of `format("ottla")`. With `--flow` it runs a pipeline that does more
than copy: it keeps state, or the target is not a topic.
"""

from __future__ import annotations

import argparse
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

HERE = {"spark.driver.host": "127.0.0.1", "spark.driver.bindAddress": "127.0.0.1", "spark.ui.enabled": "false"}
SETTINGS = {"spark.sql.shuffle.partitions": "2", "spark.driver.memory": "768m"}


def failing_once(directory: str, task: int) -> Callable[[Iterator[Any]], Iterator[Any]]:
    """The first attempt of this task comes to nothing, after it has made some of its rows."""

    def work(parts: Iterator[Any]) -> Iterator[Any]:
        from pyspark import TaskContext

        context = TaskContext.get()
        for part in parts:
            yield part.slice(0, part.num_rows // 2)
            failed = Path(directory) / "failed"
            if context is not None and context.partitionId() == task and not failed.exists():
                failed.touch()
                raise RuntimeError("this task fails once")
            yield part.slice(part.num_rows // 2)

    return work


def arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser()
    for name in ("bootstrap", "source", "target", "directory", "rows"):
        parser.add_argument(name)
    parser.add_argument("task", nargs="?", type=int)
    # A task is tried four times: what is on trial is the output, not how soon somebody gives up.
    parser.add_argument("--master", default="local[2,4]")
    parser.add_argument("--jars")
    parser.add_argument("--flow")
    return parser.parse_args()


def our_session(master: str) -> Any:
    from ottla.pipeline.session import session

    return session("copying", master=master, conf=HERE | SETTINGS | {"spark.executor.memory": "512m"})


def connector_session(master: str, jars: str) -> Any:
    from pyspark.sql import SparkSession

    builder = SparkSession.builder.appName("copying").master(master).config("spark.jars", jars)
    for name, value in {**HERE, **SETTINGS}.items():
        builder = builder.config(name, value)
    return builder.getOrCreate()


# Numbers of seconds as moments: every window is closed by numbers that are an hour further.
TIMED = "SELECT bigint(string(value)) AS n, timestamp_seconds(bigint(string(value))) AS at FROM numbers"
SUMS = "SELECT n % 100 AS k, count(*) AS n, sum(n) AS total FROM timed GROUP BY n % 100"
WINDOWS = """
    SELECT unix_seconds(window.start) AS start, count(*) AS n, sum(n) AS total
    FROM timed GROUP BY window(at, '100 seconds')
"""


def pipeline_of(asked: argparse.Namespace) -> Any:
    from ottla.pipeline import Pipeline, to_jdbc, to_parquet, to_topic, topic

    numbers = topic(asked.source, format="raw", options={"maxOffsetsPerTrigger": asked.rows})
    made = Pipeline(
        "flow", bootstrap=asked.bootstrap, trigger="available-now", spark=HERE | SETTINGS, directory=asked.directory
    )
    made.source("numbers", numbers).sql("timed", TIMED, watermark={"column": "at", "delay": "1 hour"})
    own = {"sinkId": asked.target}  # others on this broker have pipelines of this name
    if asked.flow == "sums":
        return made.sql("sums", SUMS).sink(
            "out", to_topic(asked.target, key="k", mode="update", options=own), of="sums"
        )
    if asked.flow == "windows":
        return made.sql("windows", WINDOWS).sink("out", to_topic(asked.target, key="start", options=own), of="windows")
    if asked.flow == "parquet":
        return made.sink("out", to_parquet(asked.target), of="timed")
    return made.sink("out", to_jdbc(f"jdbc:{asked.flow}", table=asked.target), of="timed")


def run_pipeline(asked: argparse.Namespace) -> None:
    pipeline = pipeline_of(asked)
    spark = pipeline.session(master=asked.master)
    running = pipeline.start()
    print("started", flush=True)
    running.wait()
    print("done", flush=True)
    spark.stop()


def copy(asked: argparse.Namespace) -> None:
    spark = connector_session(asked.master, asked.jars) if asked.jars else our_session(asked.master)
    form, where = "kafka" if asked.jars else "ottla", {"kafka.bootstrap.servers": asked.bootstrap}
    reading = {"subscribe": asked.source, "startingOffsets": "earliest", "maxOffsetsPerTrigger": asked.rows}
    writing = {"topic": asked.target, "checkpointLocation": f"{asked.directory}/checkpoint"}
    if not asked.jars:
        writing |= {"spoolPath": f"{asked.directory}/spool", "spoolAbove": "100000"}
    frame = spark.readStream.format(form).options(**where, **reading).load().select("key", "value")
    if asked.task is not None:
        frame = frame.mapInArrow(failing_once(asked.directory, asked.task), frame.schema)
    written = frame.writeStream.format(form).options(**where, **writing)
    query = written.trigger(availableNow=True).start()
    print("started", flush=True)
    query.awaitTermination()
    print("done", flush=True)
    spark.stop()


def main() -> None:
    asked = arguments()
    if asked.flow:
        run_pipeline(asked)
    else:
        copy(asked)


if __name__ == "__main__":
    main()
