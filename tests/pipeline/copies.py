"""A copy from one topic to another, by a driver in a process of its own that can be killed."""

from __future__ import annotations

import asyncio
import json
import os
import signal
import subprocess
import sys
from collections import Counter
from collections.abc import Iterator
from itertools import chain
from pathlib import Path

import pyarrow as pa

from harness import die_with_parent
from ottla.client.admin import Admin
from ottla.client.cluster import EARLIEST, LATEST, Cluster, TopicPartition
from ottla.client.consumer import Consumer
from ottla.client.producer import Producer
from ottla.pipeline.rows import Encoder, Shape

DRIVER = Path(__file__).with_name("copying.py")
TREE = Path(__file__).resolve().parents[2]
CONNECTOR_PYTHON = TREE / ".venv-spark" / "bin" / "python"
CONNECTOR_JARS = TREE / "tests" / "spark" / "jars"
PARTITIONS = 4
SECONDS = 300
CHUNK = 200_000


def why_no_connector() -> str:
    """Why Spark's own connector cannot be asked to do the same; empty if it can."""
    is_here = CONNECTOR_PYTHON.exists() and any(CONNECTOR_JARS.glob("*.jar"))
    return "" if is_here else "Spark's own connector is not here: `make spark` fetches it"


class Copy:
    """Two topics, and the driver that copies one into the other: with our format, or with Spark's own connector."""

    flow = ""  # what else than a copy its driver makes

    def __init__(self, address: str, directory: Path, *, with_connector: bool = False) -> None:
        self.address, self.directory, self.with_connector = address, directory, with_connector
        self.source, self.target = (f"{name}-{os.getpid()}-{directory.name}" for name in ("source", "target"))
        self.log = directory / "driver.log"
        self.driver: subprocess.Popen[str] | None = None

    def fill(self, count: int) -> None:
        """Numbers, each once."""

        async def main() -> None:
            async with Cluster(self.address) as cluster:
                for topic in (self.source, self.target):
                    await Admin(cluster).create_topic(topic, partitions=PARTITIONS)
                encoder = Encoder(lambda _: Shape(PARTITIONS, 1 << 20), topic=self.source, now_ms=cluster.now_ms)
                async with Producer(cluster) as producer:
                    for made in chain.from_iterable((*map(encoder.add, numbers(count)), encoder.finish())):
                        await producer.post_batch(TopicPartition(made.topic, made.partition), made.data)

        asyncio.run(main())

    def start(self, rows_per_batch: int, *more: str) -> None:
        arguments = [self.address, self.source, self.target, str(self.directory), str(rows_per_batch), *more]
        if self.flow:
            arguments += ["--flow", self.flow]
        python = sys.executable
        if self.with_connector:
            python = str(CONNECTOR_PYTHON)
            arguments += ["--jars", ",".join(map(str, sorted(CONNECTOR_JARS.glob("*.jar"))))]
        with self.log.open("ab") as log:
            self.driver = subprocess.Popen(
                [python, str(DRIVER), *arguments],
                stdout=subprocess.PIPE,
                stderr=log,
                text=True,
                start_new_session=True,
                preexec_fn=die_with_parent,
            )

    def close(self) -> None:
        """Whatever has to be said before the last run."""

    def wait_for(self, word: str) -> bool:
        """Whether it said so before it ended."""
        assert self.driver is not None and self.driver.stdout is not None
        return any(line.strip() == word for line in self.driver.stdout)

    def running(self) -> bool:
        return self.driver is not None and self.driver.poll() is None

    def kill(self) -> bool:
        """Whether it was still at work."""
        assert self.driver is not None
        alive = self.driver.poll() is None
        if alive:
            os.killpg(self.driver.pid, signal.SIGKILL)
        self.driver.wait()
        assert self.driver.stdout is not None
        self.driver.stdout.close()
        self.driver = None
        return alive

    def finish(self) -> None:
        assert self.wait_for("done"), self.log_tail()
        assert self.driver is not None
        assert self.driver.wait(SECONDS) == 0
        self.kill()

    def written(self) -> int:
        """Offsets that are taken in the target, by whatever."""

        async def main() -> int:
            async with Cluster(self.address) as cluster:
                places = [TopicPartition(self.target, partition) for partition in range(PARTITIONS)]
                return sum(f.offset for f in (await cluster.list_offsets(dict.fromkeys(places, LATEST))).values())

        return asyncio.run(main())

    def begun(self) -> int:
        """Rows up to the end of the last micro-batch that was begun, as the checkpoint has it."""
        place = self.directory / (".ottla/flow/checkpoints/out" if self.flow else "checkpoint") / "offsets"
        last = max(place.glob("[0-9]*"), key=lambda file: int(file.name), default=None)
        return sum(json.loads(last.read_text().splitlines()[-1])[self.source].values()) if last else 0

    def misfits(self, count: int) -> tuple[int, int]:
        """How many are missing, and how many too many."""

        found = Counter(int(value) for value in self.values())
        missing = sum(number not in found for number in range(count))
        return missing, sum(found.values()) - (count - missing)

    def values(self) -> list[bytes]:
        """What a reader of the target sees, each partition in its order."""

        async def main() -> list[bytes]:
            async with Cluster(self.address) as cluster:
                places = [TopicPartition(self.target, partition) for partition in range(PARTITIONS)]
                ends = await cluster.list_offsets(dict.fromkeys(places, LATEST))
                limits = {where: found.offset for where, found in ends.items()}
                consumer = Consumer(cluster, dict.fromkeys(places, EARLIEST), ends=limits, read_committed=True)
                return [record.value or b"-1" async for record in consumer]

        return asyncio.run(main())

    def log_tail(self) -> str:
        return "\n".join(self.log.read_text(errors="replace").splitlines()[-40:])


def numbers(count: int) -> Iterator[pa.RecordBatch]:
    for first in range(0, count, CHUNK):
        values = pa.array([b"%d" % number for number in range(first, min(first + CHUNK, count))], pa.binary())
        yield pa.record_batch({"key": values, "value": values})
