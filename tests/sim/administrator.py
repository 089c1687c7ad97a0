"""The one who makes, changes and deletes topics."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Awaitable, Callable
from typing import TYPE_CHECKING, Any

from ottla.client.admin import Admin
from ottla.client.cluster import EARLIEST, LATEST, NoTopic, TopicPartition
from ottla.client.connection import Lost
from ottla.client.producer import NOT_WRITTEN, Producer
from ottla.sim.checks import ABSENT, TopicState
from ottla.wire.errors import Error, KafkaError
from ottla.wire.messages.transactions import InitProducerIdRequest
from sim.clients import read_all
from sim.topics import MESSAGE_BYTES_MAX, PATIENCE_S, PLAIN, SAFE, SHORT, TOPICS, VALUE_BYTES_MAX

if TYPE_CHECKING:
    from sim.one_node import Play


def may_pass_by(error: KafkaError) -> KafkaError:
    """A node that is about to stop takes no new replicas, and says so, as Kafka does, with an error that sounds final."""
    if error.error is Error.INVALID_REPLICATION_FACTOR:
        return KafkaError(Error.LEADER_NOT_AVAILABLE, error.message)
    return error


class Administrator:
    """Makes topics, writes a little, changes settings, deletes; each change is repeated until its outcome is known."""

    def __init__(self, play: Play) -> None:
        self.play = play
        self.rng = play.loop.chance("administrator")
        self.made = 0

    async def connect(self) -> None:
        self.cluster = self.play.client("admin")
        self.admin = Admin(self.cluster)
        await self.cluster.retrying(self.cluster.any)

    async def make_topics(self) -> None:
        await self.connect()
        for name, state in TOPICS.items():
            await self.create(name, state)
        self.cluster.close()

    async def run(self) -> None:
        await self.connect()
        while not self.play.finishing:
            changes = (self.make_or_delete, self.make_or_delete, self.alter, self.identify, self.trim, self.widen)
            await self.rng.choice(changes)()
            await asyncio.sleep(self.rng.expovariate(1 / 0.25))
        self.cluster.close()

    async def script(self) -> None:
        """A little of everything, always in the same order."""
        await self.make_topics()
        await self.connect()
        producer = Producer(self.cluster, delivery_s=PATIENCE_S)
        for number in range(12):
            for where in (SAFE[number % 2], PLAIN, SHORT):
                size = VALUE_BYTES_MAX if number % 3 == 0 and where != SHORT else 100
                await self.send(producer, where, f"admin/{where.topic}/{number}/".encode() + b"." * size)
            if number % 4 == 1:
                await self.make("t0")
                await self.identify()
            elif number % 4 == 3:
                await self.look_and_delete("t0")
                await self.alter()
            await asyncio.sleep(0.25)  # for upkeep to come in between
        await producer.flush()
        self.cluster.close()

    async def certain(self, name: str, state: TopicState | None, step: Callable[[], Awaitable[Any]]) -> None:
        """Do it until it is known to be done."""
        registry = self.play.registry
        registry.changing(name, state)
        await self.cluster.retrying(step)
        registry.changed(name)

    async def make_or_delete(self) -> None:
        name = f"t{self.rng.randrange(3)}"
        if self.play.registry.state(name) is ABSENT:
            await self.make(name)
        else:
            await self.look_and_delete(name)

    async def create(self, name: str, state: TopicState) -> None:
        async def step() -> None:
            try:
                await self.admin.create_topic(name, partitions=state.partitions, configs=dict(state.configs))
            except KafkaError as error:
                if error.error is not Error.TOPIC_ALREADY_EXISTS:
                    raise may_pass_by(error)

        await self.certain(name, state, step)
        for index in range(state.partitions):
            self.play.history.open(TopicPartition(name, index), durable=name not in ("plain", "short"))
        self.cluster.forget(name)

    async def make(self, name: str) -> None:
        self.made += 1
        state = TopicState(1, (("flush.messages", "1"), ("max.message.bytes", str(MESSAGE_BYTES_MAX + self.made))))
        await self.create(name, state)
        where = TopicPartition(name, 0)
        producer = Producer(self.cluster, delivery_s=PATIENCE_S)
        for number in range(self.rng.randrange(4)):
            await self.send(producer, where, f"admin/{name}/{self.made}/{number}/".encode())
        await self.send(producer, where, f"admin/{name}/{self.made}/big/".encode() + bytes(4000))
        await producer.flush()

    async def send(self, producer: Producer, where: TopicPartition, value: bytes) -> None:
        send = self.play.history.send("admin", where, value)
        try:
            sent = await producer.send(where.topic, value=value, partition=where.partition)
        except KafkaError as error:
            if error.error in NOT_WRITTEN:
                self.play.history.refuse(send)
        except Lost:
            pass
        else:
            self.play.history.ack(where, send, sent.offset)

    async def look_and_delete(self, name: str) -> None:
        where = TopicPartition(name, 0)
        start, records = await read_all(self.cluster, where, self.play)
        self.play.history.books[where].close(start, records, [])
        if start:
            self.play.history.report("lost-write", name, f"starts at {start}")

        async def step() -> None:
            with contextlib.suppress(NoTopic):
                await self.admin.delete_topic(name)

        found = self.play.history.books.pop(where).found
        self.play.history.other += found
        await self.certain(name, ABSENT, step)

    async def alter(self) -> None:
        before = self.play.registry.state("short")
        assert before is not ABSENT
        put = {"retention.bytes": str(self.rng.choice((2000, 3000, 5000)))}
        state = TopicState(1, tuple(sorted({**dict(before.configs), **put}.items())))
        await self.certain("short", state, lambda: self.admin.alter_configs("short", put=put))

    async def trim(self) -> None:
        """DeleteRecords. As in Apache Kafka its answer does not promise that the new start survives a crash."""
        start = (await self.cluster.list_offsets({SHORT: EARLIEST}))[SHORT].offset
        end = (await self.cluster.list_offsets({SHORT: LATEST}))[SHORT].offset
        end = max(start, end)  # a power cut between the two questions may have taken records
        with contextlib.suppress(KafkaError, OSError):
            await self.admin.delete_records({SHORT: self.rng.randint(start, end)})

    async def widen(self) -> None:
        """One partition more for a topic that has few."""
        made = [name for name in ("t0", "t1", "t2") if self.play.registry.state(name) is not ABSENT]
        if not made:
            return
        name = self.rng.choice(made)
        before = self.play.registry.state(name)
        assert before is not ABSENT

        async def step() -> None:
            try:
                await self.admin.create_partitions(name, before.partitions + 1)
            except KafkaError as error:
                if error.error is not Error.INVALID_PARTITIONS:
                    raise may_pass_by(error)

        await self.certain(name, before._replace(partitions=before.partitions + 1), step)

    async def identify(self) -> None:
        """Ask for a producer id. An answer that was lost is an id that nobody uses."""
        request = InitProducerIdRequest(transactional_id=None, transaction_timeout_ms=60000)
        try:
            response = await (await self.cluster.any()).request(request, version=5)
        except (Lost, OSError):
            return
        if not response.error_code:
            self.play.registry.gave(response.producer_id)
