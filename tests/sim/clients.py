"""Those who produce and those who read: they write down in the play's history what they did and saw."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Awaitable
from typing import TYPE_CHECKING, Any

from ottla.client.cluster import EARLIEST, LATEST, Cluster, TopicPartition
from ottla.client.consumer import Consumer
from ottla.client.producer import NOT_WRITTEN, Producer
from ottla.sim.checks import Send
from ottla.wire.compression import Codec
from ottla.wire.errors import Error, KafkaError
from sim.topics import PATIENCE_S, PLAIN, SAFE, SHORT, VALUE_BYTES_MAX

if TYPE_CHECKING:
    from sim.one_node import Play


async def read_all(cluster: Cluster, where: TopicPartition, play: Play | Any) -> tuple[int, list[tuple[int, bytes]]]:
    """A partition from its start to its end, as a new consumer reads it; again if its start moves meanwhile."""
    while True:
        start = (await cluster.list_offsets({where: EARLIEST}))[where].offset
        end = (await cluster.list_offsets({where: LATEST}))[where].offset
        consumer = Watchful(play, cluster, {where: start}, ends={where: end})
        try:
            return start, [(record.offset, record.value or b"") async for record in consumer]
        except KafkaError as error:
            if error.error is not Error.OFFSET_OUT_OF_RANGE:
                raise


class Watchful(Consumer):
    """A consumer that does not forgive a damaged batch."""

    def __init__(self, play: Play, *args: Any, **options: Any) -> None:
        super().__init__(*args, **options)
        self._play = play

    async def _survive(self, error: KafkaError | OSError) -> None:
        if isinstance(error, KafkaError) and error.error in (Error.CORRUPT_MESSAGE, Error.UNKNOWN_SERVER_ERROR):
            self._play.history.report("damaged", "", str(error))
            raise error
        await super()._survive(error)


class Writer:
    """Sends small batches to its partitions, and writes down what became of each record."""

    pause_s = 0.08

    def __init__(self, play: Play, name: str, wheres: list[TopicPartition]) -> None:
        self.play, self.name, self.wheres = play, name, wheres
        self.rng = play.loop.chance("writer", name)
        self.counts: Counter[TopicPartition] = Counter()

    async def run(self) -> None:
        cluster = self.play.client(self.name)
        await cluster.retrying(cluster.any)
        delivery_s, codec = self.rng.choice((3.0, 30.0, PATIENCE_S)), self.rng.choice((*[Codec.NONE] * 4, *Codec))
        # With batches of one record, several of them are under way at once.
        batch_bytes = self.rng.choice((1, 16384))
        producer = Producer(cluster, delivery_s=delivery_s, linger_ms=2, codec=codec, batch_bytes=batch_bytes)
        while not self.play.finishing:
            where = self.rng.choice(self.wheres)
            await asyncio.gather(*[await self.post(producer, where) for _ in range(self.rng.randint(1, 4))])
            await asyncio.sleep(self.rng.expovariate(1 / self.pause_s))
        await producer.flush()
        cluster.close()

    async def post(self, producer: Producer, where: TopicPartition) -> Awaitable[None]:
        play = self.play
        self.counts[where] += 1
        size = self.rng.choice((0, 10, 60, 200, VALUE_BYTES_MAX, VALUE_BYTES_MAX))
        value = f"{self.name}/{where.topic}/{where.partition}/{self.counts[where]}/".encode() + b"." * size
        send = play.history.send(self.name, where, value)
        future = await producer.post(where.topic, value, partition=where.partition)
        return self.settle(where, send, future)

    async def settle(self, where: TopicPartition, send: Send, future: Awaitable[Any]) -> None:
        try:
            sent = await future
        except KafkaError as error:
            if error.error in NOT_WRITTEN:
                self.play.history.refuse(send)
        except OSError:
            pass
        else:
            self.play.history.ack(where, send, sent.offset)


class Reader:
    """Polls what it was assigned until it has seen the end of everything."""

    def __init__(self, play: Play) -> None:
        self.play = play

    async def run(self) -> None:
        play = self.play
        cluster = play.client("reader")
        await cluster.retrying(cluster.any)
        wheres = (*SAFE, PLAIN, SHORT)
        consumer = Watchful(play, cluster, dict.fromkeys(wheres, EARLIEST), wait_ms=250)
        while not (play.finished and all(consumer.positions[w] >= play.ends[w][1] for w in wheres)):
            began = play.history.moment()
            try:
                records = await consumer.fetch()
            except KafkaError as error:
                if error.error is not Error.OFFSET_OUT_OF_RANGE:
                    raise
                await self.find_back(cluster, consumer)
                continue
            for where in wheres:
                mine = [(r.offset, r.value or b"") for r in records if (r.topic, r.partition) == where]
                play.history.poll("reader", where, mine, began)
        consumer.close()
        cluster.close()

    async def find_back(self, cluster: Cluster, consumer: Consumer) -> None:
        """A log that lost its tail, or whose start moved: begin again at its start."""
        for where, position in list(consumer.positions.items()):
            start = (await cluster.list_offsets({where: EARLIEST}))[where].offset
            end = (await cluster.list_offsets({where: LATEST}))[where].offset
            if position >= 0 and not start <= position <= end:
                if where in SAFE:
                    self.play.history.report("lost-write", where.topic, f"{position} is not within {start}..{end}")
                self.play.history.seek("reader", where)
                consumer.positions[where] = EARLIEST
