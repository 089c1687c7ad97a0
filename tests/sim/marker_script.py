"""A short fixed story about transactions whose first process is killed at a chosen disk call.

One producer writes to two partitions in each transaction, and commits or aborts; what fails is aborted, or begun anew by a
producer with the same id. Then everything is read, before and after one more restart: of each transaction all or nothing, of
those that were acknowledged all, of those that were not to be nothing, and no transaction is left open.
"""

from __future__ import annotations

import asyncio
from collections import Counter
from enum import Enum

from ottla.client.admin import Admin
from ottla.client.cluster import EARLIEST, LATEST, Cluster, TopicPartition
from ottla.client.consumer import Consumer
from ottla.client.producer import Producer
from ottla.sim.disk import Loss
from ottla.sim.loop import SimLoop
from ottla.wire.errors import Error, KafkaError
from sim.stage import Calls, Stage, Story, perform
from sim.topics import NODE, PATIENCE_S

TOPIC = "ledger"
WHERES = [TopicPartition(TOPIC, 0), TopicPartition(TOPIC, 1)]
# How each transaction is meant to end.
PLAN = (True, False, True, True, False)
SETTINGS = {"transaction.state.log.num.partitions": "1", "offsets.topic.num.partitions": "1"}


class End(Enum):
    COMMITTED = "committed"
    ABORTED = "aborted"
    UNKNOWN = "unknown"


class MarkerScript(Stage):
    """With a loss, the power goes as well: then the node syncs before it acknowledges, and nothing may be missing."""

    def __init__(self, call: int, loss: Loss | None) -> None:
        super().__init__(f"markers/{call}/{loss}", 0)
        self.call, self.loss = call, loss
        self.calls = 0
        self.ends: dict[bytes, End] = {}

    async def run(self, loop: SimLoop) -> Story:
        self.set_up(loop, {**SETTINGS, **({"log.flush.interval.messages": "1"} if self.loss is not None else {})})
        self.cluster.boot(NODE)
        self.cluster.kill_at_call(NODE, self.call, self.loss)
        calls = Calls(self)
        keeper = loop.create_task(calls.keep_looking())
        await self.cluster.client("teller", self.tell_the_story())
        for restarts in range(2):
            await self.cluster.client("reader", self.look())
            if restarts == 0:
                self.cluster.kill(NODE)
        keeper.cancel()
        await asyncio.wait([keeper])
        self.calls = calls.count
        return self.tell(committed=sum(end is End.COMMITTED for end in self.ends.values()))

    # -- writing

    async def tell_the_story(self) -> None:
        cluster = self.connect("teller")
        await self.make_topic(cluster)
        numbers = iter(range(len(PLAN)))
        while (number := next(numbers, None)) is not None:
            producer = Producer(cluster, transactional_id="teller", delivery_s=PATIENCE_S, linger_ms=0)
            try:
                await producer.init()
                while number is not None:
                    await self.one_transaction(producer, number)
                    number = next(numbers, None)
            except (KafkaError, OSError):
                continue  # begin anew, with the next one
        cluster.close()

    async def make_topic(self, cluster: Cluster) -> None:
        try:
            await cluster.retrying(lambda: Admin(cluster).create_topic(TOPIC, partitions=len(WHERES)))
        except KafkaError as error:
            if error.error is not Error.TOPIC_ALREADY_EXISTS:  # the first attempt had done it
                raise

    async def one_transaction(self, producer: Producer, number: int) -> None:
        value = b"%d" % number
        self.ends[value] = End.ABORTED
        producer.begin()
        for where in WHERES:
            await producer.send(TOPIC, value=value, partition=where.partition)
        if PLAN[number]:
            self.ends[value] = End.UNKNOWN
            await producer.commit()
            self.ends[value] = End.COMMITTED
        else:
            await producer.abort()

    # -- reading

    async def look(self) -> None:
        cluster = self.connect("reader")
        seen: Counter[bytes] = Counter()
        for where in WHERES:
            await self.until_nothing_is_open(cluster, where)
            seen.update(set(await self.read(cluster, where)))
        for value, end in self.ends.items():
            wanted = {End.COMMITTED: (len(WHERES),), End.ABORTED: (0,), End.UNKNOWN: (0, len(WHERES))}[end]
            if seen[value] not in wanted:
                self.history.report(f"transaction-{end.value}", value.decode(), f"is in {seen[value]} partitions")
        cluster.close()

    async def read(self, cluster: Cluster, where: TopicPartition) -> list[bytes]:
        start = (await cluster.list_offsets({where: EARLIEST}))[where].offset
        end = (await cluster.list_offsets({where: LATEST}))[where].offset
        consumer = Consumer(cluster, {where: start}, ends={where: end}, read_committed=True)
        values = [record.value or b"" async for record in consumer]
        if len(values) != len(set(values)):
            self.history.report("duplicate", where.topic, repr(values))
        return values

    async def until_nothing_is_open(self, cluster: Cluster, where: TopicPartition) -> None:
        """What the last producer left behind is aborted when its time is over."""
        for _ in range(200):
            stable = (await cluster.list_offsets({where: LATEST}, read_committed=True))[where].offset
            if stable == (await cluster.list_offsets({where: LATEST}))[where].offset:
                return
            await asyncio.sleep(1.0)
        self.history.report("hanging", str(where), "a transaction is open for ever")


def cut_at(call: int, loss: Loss | None) -> tuple[Story, int]:
    """The script with a cut at one call, and how many disk calls its first process made."""
    script = MarkerScript(call, loss)
    return perform(script), script.calls
