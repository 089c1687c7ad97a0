"""Topics to be read by Spark: written by our client, on any broker."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence

from ottla.client.admin import Admin
from ottla.client.producer import Producer
from ottla.pipeline.blocking import Broker
from ottla.pipeline.options import Reading
from ottla.pipeline.source import Reader

Row = dict[str, object]


class Topics:
    """A broker to write to, and batch queries on it without Spark: the driver and the workers are played by calling them."""

    def __init__(self, address: str) -> None:
        self.address = address
        self.door = Broker(address)
        self.admin = Admin(self.door.cluster)

    def close(self) -> None:
        self.door.close()

    def make(self, name: str, partitions: int = 1) -> str:
        self.door.run(self.admin.create_topic(name, partitions=partitions))
        return name

    def write(self, topic: str, values: Sequence[bytes | None], partition: int = 0, **options: object) -> None:
        """Keys are the values with a k in front. What is not an option of a producer is one of a record."""
        records = {name: options.pop(name) for name in ("headers", "timestamp") if name in options}

        async def send(producer: Producer) -> None:
            for value in values:
                key = None if value is None else b"k" + value
                await producer.post(topic, value, key, partition=partition, **records)  # type: ignore[arg-type]

        self.produce(send, **options)

    def produce(self, work: Callable[[Producer], Awaitable[None]], **options: object) -> None:
        async def run() -> None:
            async with Producer(self.door.cluster, **options) as producer:  # type: ignore[arg-type]
                await work(producer)
                await producer.flush()

        self.door.run(run())

    def options(self, options: dict[str, str]) -> dict[str, str]:
        return {"kafka.bootstrap.servers": self.address, **options}

    def rows(self, options: dict[str, str]) -> list[Row]:
        reader = Reader(Reading.batch(self.options(options)))
        return [row for piece in reader.partitions() for batch in reader.read(piece) for row in batch.to_pylist()]
