"""What of a copy's time the driver spends in `commit`, through which all bytes of a micro-batch go.

    python -m bench.committing

Decides whether tasks should write to brokers by themselves: not while the driver sends several times what they make.
"""

from __future__ import annotations

import json
import statistics
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from bench import client, drivers
from bench.spark_jobs import session
from harness import Node

ROWS, VALUE_BYTES, PARTITIONS = 2_000_000, 100, 4
WARM_UPS, ROUNDS = 3, 5


def timed_source(told: Path) -> type:
    """The same format, whose commit writes down how long it took, for how many bytes. Made here, so that Spark carries it to
    its processes as it is."""
    from ottla.pipeline.format import OttlaSource
    from ottla.pipeline.sink import Message, StreamWriter, stream_writer

    class Timed(StreamWriter):
        def commit(self, messages: Sequence[Any], batchId: int) -> None:
            size = sum(each.parcel.size for each in messages if isinstance(each, Message))
            began = time.perf_counter()
            super().commit(messages, batchId)
            told.write_text(json.dumps([time.perf_counter() - began, size]))

    class TimedSource(OttlaSource):
        @classmethod
        def name(cls) -> str:
            return "timed"

        def streamWriter(self, schema: Any, overwrite: bool) -> Any:
            return Timed(stream_writer(self.options, schema, overwrite).writing)

    return TimedSource


def copy(spark: Any, address: str, directory: Path, number: int) -> tuple[float, float, int]:
    """Seconds of the only micro-batch, those of its commit, and bytes that were sent."""
    where = {"kafka.bootstrap.servers": address}
    rows = spark.readStream.format("ottla").options(subscribe="rows", startingOffsets="earliest", **where).load()
    writer = rows.select("key", "value").writeStream.format("timed").options(topic="copy", sinkId=f"c{number}", **where)
    query = writer.option("checkpointLocation", str(directory / f"c{number}")).trigger(availableNow=True).start()
    query.awaitTermination()
    [whole] = [each["durationMs"]["triggerExecution"] / 1000 for each in query.recentProgress if each["numInputRows"]]
    commit_s, size = json.loads((directory / "told").read_text())
    return whole, commit_s, size


def main() -> None:
    drivers.build()
    with tempfile.TemporaryDirectory(prefix="ottla-bench-") as made:
        directory = Path(made)
        node = Node(directory / "data")
        node.start()
        try:
            for topic in ("rows", "copy"):
                client.make_topic(node, topic, PARTITIONS)
            drivers.bulk(node, "produce", "rows", PARTITIONS, ROWS, VALUE_BYTES)
            spark = session("ottla", "")
            spark.dataSource.register(timed_source(directory / "told"))
            rounds = [copy(spark, node.address, directory, number) for number in range(WARM_UPS + ROUNDS)][WARM_UPS:]
            spark.stop()
        finally:
            node.kill()
    whole, commit, sent = (statistics.median(each) for each in zip(*rounds, strict=True))
    print(f"{ROWS:,} rows, {sent / 1e6:.0f} MB: the whole copy {whole:.2f} s, {sent / 1e6 / whole:.0f} MB/s")
    print(f"commit alone {commit:.2f} s, {sent / 1e6 / commit:.0f} MB/s: {commit / whole:.0%} of the time")


if __name__ == "__main__":
    main()
