"""A driver that is there to be killed: copies a topic to another one, batch by batch, and ends when all is copied.

    python copying.py <bootstrap> <source> <target> <directory> <rows per batch> [<task that fails once>]

It says "started" when the query runs, and "done" at its end.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator
from pathlib import Path

import pyarrow as pa

from ottla.pipeline.session import session


def failing_once(directory: str, task: int) -> object:
    """The first attempt of this task comes to nothing, after it has made some of its rows."""

    def work(parts: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
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


def main() -> None:
    bootstrap, source, target, directory, rows, *task = sys.argv[1:]
    settings = {"spark.sql.shuffle.partitions": "2", "spark.driver.memory": "768m"}
    spark = session("copying", master="local[2,4]", conf=settings)
    reader = spark.readStream.format("ottla").option("kafka.bootstrap.servers", bootstrap).option("subscribe", source)
    reader = reader.option("startingOffsets", "earliest").option("maxOffsetsPerTrigger", rows)
    frame = reader.load().select("key", "value")
    if task:
        frame = frame.mapInArrow(failing_once(directory, int(task[0])), frame.schema)  # type: ignore[arg-type]
    query = (
        frame.writeStream.format("ottla")
        .option("kafka.bootstrap.servers", bootstrap)
        .option("topic", target)
        .option("spoolPath", f"{directory}/spool")
        .option("spoolAbove", "100000")
        .option("checkpointLocation", f"{directory}/checkpoint")
        .trigger(availableNow=True)
        .start()
    )
    print("started", flush=True)
    query.awaitTermination()
    print("done", flush=True)
    spark.stop()


if __name__ == "__main__":
    main()
