"""The schedules that showed a flaw in the first generation of the protocol, and not in an implementation of it.

A producer hears no answer, says it again over another connection, is answered, and begins its next transaction. Then the
first copy arrives. In generation 1 it carries the same producer id and epoch as the transaction of now, and nobody can tell it
apart: it ends that one (`late_commit`, `late_abort`), becomes a part of it (`late_batch`), or opens what nobody asked for
(`late_add`). In generation 2 every end brings a new epoch, and the late copy is refused.

A network that delivers a request late is played by another machine that sends the same bytes at the moment in question.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable

from ottla.client.cluster import TopicPartition
from ottla.client.producer import Producer
from ottla.client.transaction_admin import TransactionAdmin, TransactionInfo
from ottla.sim.loop import SimLoop
from ottla.sim.transaction_checks import Attempt, End
from ottla.wire.errors import KafkaError
from ottla.wire.messages.produce import ProduceRequest
from ottla.wire.messages.transactions import (
    AddOffsetsToTxnRequest,
    AddPartitionsToTxnRequest,
    EndTxnRequest,
    TopicPartitions,
)
from ottla.wire.records import Record, build
from ottla.wire.schema import Message
from sim.stage import Story, perform
from sim.topics import NODE
from sim.transacting import GROUP, INPUTS, OTHER
from sim.transaction_play import TransactionPlay

END_VERSION, PRODUCE_VERSION = {1: 4, 2: 5}, {1: 11, 2: 12}
# Clients of generation 2 add nothing themselves; one that did would speak the last version that clients may.
ADD_VERSION, ADD_GROUP_VERSION = {1: 3, 2: 3}, {1: 3, 2: 4}
ID = "late"


class LateRequest(TransactionPlay):
    """Two transactions of one producer, and what is left of the first arrives in the midst of the second."""

    def __init__(self, schedule: str, generation: int) -> None:
        super().__init__(f"{schedule}/{generation}", 0, generation)
        self.schedule = schedule
        self.watchers = []

    async def run(self, loop: SimLoop) -> Story:
        self.begin(loop)
        self.actors = []
        self.cluster.boot(NODE)
        await self.until_ready()
        await self.cluster.client("admin", self.prepare())
        await self.cluster.client("teller", self.tell_the_story())
        await self.cluster.client("judge", self.stabilise())
        await self.cluster.client("judge", self.close_books())
        return self.told()

    async def tell_the_story(self) -> None:
        with self.client("teller") as cluster:
            self.producer = Producer(cluster, transactional_id=ID, transaction_timeout_ms=3000, linger_ms=0)
            await self.producer.init()
            story: Callable[[], Awaitable[None]] = getattr(self, self.schedule)
            await story()

    # -- schedules

    async def late_commit(self) -> None:
        """The commit of the first transaction ends the second one too early; that one is then aborted, or so it is told."""
        late = self.end(committed=True)
        await self.finish(await self.opened([OTHER]), commits=True)
        second = await self.opened([INPUTS[0]])
        await self.arrives(late, END_VERSION)
        await self.goes_on(second, INPUTS[1], commits=False)

    async def late_abort(self) -> None:
        """The abort of the first transaction takes away what the second has written so far."""
        late = self.end(committed=False)
        await self.finish(await self.opened([OTHER]), commits=False)
        second = await self.opened([INPUTS[0]])
        await self.arrives(late, END_VERSION)
        await self.goes_on(second, INPUTS[1], commits=True)

    async def late_batch(self) -> None:
        """A batch of the first transaction, which was aborted, is committed with the second."""
        first = await self.opened([OTHER])
        late = self.batch(first, INPUTS[0])
        await self.finish(first, commits=False)
        second = await self.opened([OTHER])
        if self.generation == 1:  # the second transaction is about to write there as well, and has said so
            await self.producer._tx._add_once([INPUTS[0]])
        await self.arrives(late, PRODUCE_VERSION)
        await self.finish(second, commits=True)

    async def late_add(self) -> None:
        """A partition and a group of the first transaction become part of the second, and then of one that nobody began."""
        late = [(self.adding(INPUTS[0]), ADD_VERSION), (self.adding_group(), ADD_GROUP_VERSION)]
        await self.finish(await self.opened([INPUTS[0]]), commits=True)
        second = await self.opened([OTHER])
        for request, versions in late:
            await self.arrives(request, versions)
        if (found := await self.described()).partitions != [OTHER]:
            self.accounts.report("grown", ID, f"the transaction is open in {found.partitions}")
        await self.finish(second, commits=True)
        await self.is_complete()
        for request, versions in late:
            await self.arrives(request, versions)
        if not (found := await self.described()).state.startswith("Complete"):
            self.accounts.report("begun", ID, f"{found.state} in {found.partitions}")

    # -- what the producer does

    async def opened(self, wheres: list[TopicPartition]) -> Attempt:
        attempt = self.accounts.begin("teller")
        self.producer.begin()
        for where in wheres:
            await self.send(attempt, where)
        return attempt

    async def send(self, attempt: Attempt, where: TopicPartition) -> None:
        value = f"{attempt.name}/{where.topic}/{where.partition}".encode()
        self.accounts.sends(attempt, where, value)
        await self.producer.send(where.topic, value=value, partition=where.partition)

    async def finish(self, attempt: Attempt, commits: bool) -> None:
        if commits:
            self.accounts.asks_to_commit(attempt)
            await self.producer.commit()
        else:
            await self.producer.abort()
        self.accounts.ends(attempt, End.COMMITTED if commits else End.ABORTED)

    async def goes_on(self, attempt: Attempt, where: TopicPartition, commits: bool) -> None:
        """In generation 1 it may notice that something is wrong, but what is done is done."""
        try:
            await self.send(attempt, where)
            await self.finish(attempt, commits)
        except KafkaError:
            assert self.generation == 1

    # -- what its coordinator knows

    async def described(self) -> TransactionInfo:
        return await TransactionAdmin(self.producer.cluster).describe(ID)

    async def is_complete(self) -> None:
        while not (await self.described()).state.startswith("Complete"):
            await asyncio.sleep(0.01)

    # -- what comes late

    def end(self, committed: bool) -> EndTxnRequest:
        producer_id, epoch = self.producer._sender.identity or (-1, -1)
        return EndTxnRequest(transactional_id=ID, producer_id=producer_id, producer_epoch=epoch, committed=committed)

    def adding(self, where: TopicPartition) -> AddPartitionsToTxnRequest:
        producer_id, epoch = self.producer._sender.identity or (-1, -1)
        return AddPartitionsToTxnRequest(
            v3_and_below_transactional_id=ID,
            v3_and_below_producer_id=producer_id,
            v3_and_below_producer_epoch=epoch,
            v3_and_below_topics=[TopicPartitions(name=where.topic, partitions=[where.partition])],
        )

    def adding_group(self) -> AddOffsetsToTxnRequest:
        producer_id, epoch = self.producer._sender.identity or (-1, -1)
        return AddOffsetsToTxnRequest(
            transactional_id=ID, producer_id=producer_id, producer_epoch=epoch, group_id=GROUP
        )

    def batch(self, attempt: Attempt, where: TopicPartition) -> ProduceRequest:
        producer_id, epoch = self.producer._sender.identity or (-1, -1)
        value = f"{attempt.name}/late".encode()
        self.accounts.sends(attempt, where, value)
        records = build(
            [Record(-1, 0, None, value)],
            producer_id=producer_id,
            producer_epoch=epoch,
            base_sequence=0,
            transactional=True,
        )
        partition = ProduceRequest.Topic.Partition(index=where.partition, records=records)
        return ProduceRequest(
            transactional_id=ID,
            acks=-1,
            timeout_ms=5000,
            topic_data=[ProduceRequest.Topic(name=where.topic, partition_data=[partition])],
        )

    async def arrives(self, late: Message, versions: dict[int, int]) -> None:
        """What it is told reaches nobody."""
        await self.cluster.client("network", self.deliver(late, versions[self.generation or 2]))

    async def deliver(self, late: Message, version: int) -> None:
        with self.client("network") as cluster:
            await (await cluster.any()).request(late, version=version)


def play_late(schedule: str, generation: int) -> Story:
    return perform(LateRequest(schedule, generation))
