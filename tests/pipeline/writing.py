"""A driver without Spark that is there to be killed: it calls the sink's writers as Spark does, and keeps Spark's two logs.

    python writing.py <bootstrap> <topic> <directory> <batches>

A batch is planned in one file before it is written, and done in another one after it: what is planned and not done comes
again, as in Spark, and with rows in another order. It says "batch <n>" before each commit.
"""

from __future__ import annotations

import sys
import uuid
from pathlib import Path

import pyarrow as pa
from pyspark.sql.types import BinaryType, StructType

from ottla.pipeline.sink import Message, stream_writer

ROWS = 300
TASKS = 2
SCHEMA = StructType().add("value", BinaryType())


def query_id(directory: Path) -> str:
    """Of the checkpoint, and so the same at each start."""
    named = directory / "metadata"
    if not named.exists():
        fresh = directory / "metadata.new"
        fresh.write_text(str(uuid.uuid4()))
        fresh.rename(named)
    return named.read_text()


def task(options: dict[str, str], number: int, batch: int, query: str, again: bool) -> Message:
    values = [b"%d" % (batch * ROWS + row) for row in range(number, ROWS, TASKS)]
    rows = pa.record_batch({"value": pa.array(values[::-1] if again else values, pa.binary())})
    message = stream_writer(options, SCHEMA, False).write(iter([rows]))
    message.query_id = query
    return message


def main() -> None:
    bootstrap, topic, place, batches = sys.argv[1:]
    directory = Path(place)
    query = query_id(directory)
    for batch in range(int(batches)):
        planned, done = directory / f"planned-{batch}", directory / f"done-{batch}"
        if done.exists():
            continue
        again = planned.exists()
        planned.touch()
        options = {"kafka.bootstrap.servers": bootstrap, "topic": topic, "spoolPath": str(directory / "spool")}
        options["spoolAbove"] = str(batch % 2 * 10_000)
        messages = [task(options, number, batch, query, again) for number in range(TASKS)]
        print(f"batch {batch}", flush=True)
        stream_writer(options, SCHEMA, False).commit(messages, batch)
        done.touch()


if __name__ == "__main__":
    main()
