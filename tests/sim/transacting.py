"""Those who take part in transactions: our own client, and beside it one that repeats what others said long ago.

A `Teller` writes to several partitions in each transaction, and aborts some. A `Copier` reads what tellers committed, writes a
copy of each record and commits its position, all in one transaction. Several machines use the same transactional id, so that
each is the zombie of the other. All write down in the play's accounts what they do before they do it.
"""

from __future__ import annotations

import asyncio
import random
from collections.abc import Sequence
from typing import TYPE_CHECKING

from ottla.client import commits
from ottla.client.cluster import EARLIEST, Cluster, TopicPartition, may_pass
from ottla.client.commits import Committed
from ottla.client.connection import Lost
from ottla.client.consumer import Consumed, Consumer
from ottla.client.coordinator import Coordinator
from ottla.client.producer import Producer
from ottla.client.transactions import NOTHING, Abortable
from ottla.sim.transaction_checks import Attempt, End
from ottla.wire.errors import Error, KafkaError

if TYPE_CHECKING:
    from sim.transaction_play import TransactionPlay

INPUTS = [TopicPartition("in", 0), TopicPartition("in", 1)]
OTHER = TopicPartition("other", 0)
COPIES = [TopicPartition("copies", 0), TopicPartition("copies", 1)]
KEYED = TopicPartition("keyed", 0)
KEPT = [*INPUTS, OTHER, *COPIES]
# Deleted and made again all the time: nobody reads it, but transactions that wrote to it have to end.
BRIEF = TopicPartition("brief", 0)
KEYS = 6
GROUP = "copiers"
# A copier takes no more at once, so that there are several transactions even after a long pause.
COPIED_MAX = 12
# What tells a producer that it is not the one any more, or that time ran out for its transaction; or that the node's clock
# was set back, and its records lie in the future.
EXPECTED = {
    Error.PRODUCER_FENCED,
    Error.INVALID_PRODUCER_EPOCH,
    Error.INVALID_TXN_STATE,
    Error.INVALID_PRODUCER_ID_MAPPING,
    Error.TRANSACTION_ABORTABLE,
    Error.UNKNOWN_PRODUCER_ID,
    Error.OUT_OF_ORDER_SEQUENCE_NUMBER,
    Error.UNKNOWN_TOPIC_OR_PARTITION,
    Error.UNKNOWN_TOPIC_ID,
    Error.INVALID_TIMESTAMP,
}


class Actor:
    """A machine on which one process after the other uses the same transactional id."""

    def __init__(self, play: TransactionPlay, name: str, transactional_id: str) -> None:
        self.play, self.name, self.transactional_id = play, name, transactional_id
        self.accounts = play.accounts
        self.rng: random.Random = play.loop.chance("actor", name)
        self.is_up = False

    def start(self) -> None:
        self.is_up = True
        self.play.cluster.client(self.name, self.live())

    def fall(self) -> None:
        """No word to anybody."""
        self.play.loop.kill(self.name)
        self.is_up = False

    async def rest(self) -> None:
        """After the last fault: come to an end."""
        while self.is_up:
            await asyncio.sleep(0.02)

    async def live(self) -> None:
        while not self.play.finishing:
            with self.play.client(self.name) as cluster:
                producer = self.producer(cluster)
                try:
                    await producer.init()
                    await self.work(cluster, producer)
                    await producer.close()
                except (KafkaError, OSError) as error:
                    self.judge(error)
            await asyncio.sleep(self.rng.choice((0.05, 0.3, 2.0)))
        self.is_up = False

    def producer(self, cluster: Cluster) -> Producer:
        timeout_ms, patience_s = self.rng.choice((800, 4000, 20_000)), self.rng.choice((0.1, 2.0, 30.0))
        return Producer(
            cluster,
            transactional_id=self.transactional_id,
            transaction_timeout_ms=timeout_ms,
            delivery_s=patience_s,
            linger_ms=self.rng.choice((0, 2)),
            batch_bytes=self.rng.choice(
                (1, 16384)
            ),  # with batches of one record, several of them are under way at once
        )

    def judge(self, error: KafkaError | OSError) -> None:
        """An application would begin anew. What it must not see are errors that no fault can explain."""
        if isinstance(error, KafkaError) and error.error not in EXPECTED and not may_pass(error):
            self.accounts.report("producer-failed", self.name, repr(error))

    async def work(self, cluster: Cluster, producer: Producer) -> None:
        raise NotImplementedError

    # -- one transaction

    async def post(
        self, producer: Producer, attempt: Attempt, where: TopicPartition, value: bytes, key: bytes | None = None
    ) -> None:
        self.accounts.sends(attempt, where, value, key)
        await producer.post(where.topic, value, key=key, partition=where.partition)

    async def finish(self, producer: Producer, attempt: Attempt, commits: bool) -> bool:
        """Whether it was committed. What raises an Abortable has to be aborted by the caller."""
        if not commits:
            await self.abort(producer, attempt)
            return False
        self.accounts.asks_to_commit(attempt)
        try:
            await producer.commit()
        except Lost:
            await producer.commit()  # nobody knows how it went: ask once more
        self.accounts.ends(attempt, End.COMMITTED)
        self.accounts.committed_offsets(attempt)
        return True

    async def abort(self, producer: Producer, attempt: Attempt, why: Abortable | None = None) -> None:
        """If the coordinator has forgotten the id since its commit was asked for, nobody knows how that went."""
        try:
            await producer.abort()
        except Lost:
            await producer.abort()
        is_forgotten = why is not None and why.error is Error.INVALID_PRODUCER_ID_MAPPING
        if not (is_forgotten and attempt.end is End.ASKED):
            self.accounts.ends(attempt, End.ABORTED)

    async def dawdle(self) -> None:
        """Some take so long that their transaction times out."""
        if self.rng.random() < 0.5:
            await asyncio.sleep(self.rng.choice((0.001, 0.02, 0.1, 1.2)))


class Teller(Actor):
    async def work(self, cluster: Cluster, producer: Producer) -> None:
        while not self.play.finishing:
            attempt = self.accounts.begin(self.name)
            producer.begin()
            try:
                await self.write(producer, attempt)
                await self.finish(producer, attempt, self.rng.random() < 0.7)
            except Abortable as error:
                await self.abort(producer, attempt, error)
            await asyncio.sleep(self.rng.choice((0.0, 0.0, 0.05, 0.2)))

    async def write(self, producer: Producer, attempt: Attempt) -> None:
        wheres = self.rng.sample([*INPUTS, OTHER, KEYED, BRIEF], self.rng.randint(1, 3))
        for number in range(self.rng.randint(1, 5)):
            where = self.rng.choice(wheres)
            key = b"key%d" % self.rng.randrange(KEYS) if where == KEYED else None
            value = f"{attempt.name}/{where.topic}/{where.partition}/{number}".encode()
            await self.post(producer, attempt, where, value, key)
            await self.dawdle()


class Copier(Actor):
    async def work(self, cluster: Cluster, producer: Producer) -> None:
        positions = await cluster.retrying(lambda: self.play.committed(cluster))
        starts = {where: positions.get(where, 0) for where in INPUTS}
        consumer = Consumer(cluster, starts, wait_ms=200, read_committed=True)
        try:
            while not self.play.finishing:
                records = await consumer.fetch()
                for left in reversed(records[COPIED_MAX:]):
                    consumer.seek(TopicPartition(left.topic, left.partition), left.offset)
                if records and not await self.copy(producer, consumer, records[:COPIED_MAX]):
                    return
        finally:
            consumer.close()

    async def copy(self, producer: Producer, consumer: Consumer, records: Sequence[Consumed]) -> bool:
        """Whether the positions may be gone on from. If not, begin again where the group is."""
        attempt = self.accounts.begin(self.name)
        producer.begin()
        try:
            for record in records:
                source = TopicPartition(record.topic, record.partition)
                value = f"{attempt.name}/{source.topic}/{source.partition}/{record.offset}".encode()
                self.accounts.copies(value, source, record.offset)
                await self.post(producer, attempt, self.rng.choice(COPIES), value)
                attempt.offsets[source] = record.offset + 1
            await self.dawdle()
            offsets = {where: Committed(offset) for where, offset in attempt.offsets.items()}
            await producer.send_offsets(offsets, GROUP)
            if not await self.finish(producer, attempt, self.rng.random() < 0.8):
                return False
        except Abortable as error:
            await self.abort(producer, attempt, error)
            return False
        for where, offset in attempt.offsets.items():
            consumer.seek(where, offset)
        if self.rng.random() < 0.5:  # its markers may be on their way: nobody may be told what was committed before
            await producer.cluster.retrying(lambda: self.play.committed(producer.cluster))
        return True


class Preparer(Actor):
    """Lets another system decide (KIP-939), one that never forgets: what it decided has to come true, whoever dies."""

    def __init__(self, play: TransactionPlay, name: str, transactional_id: str) -> None:
        super().__init__(play, name, transactional_id)
        self.decided = NOTHING  # to be committed, and not known to be
        self.is_over = False

    async def rest(self) -> None:
        """What was decided is carried out, however late."""
        if not self.is_up:
            self.start()
        await super().rest()

    async def live(self) -> None:
        while not (self.play.finishing and self.is_over):
            with self.play.client(self.name) as cluster:
                producer = Producer(
                    cluster, transactional_id=self.transactional_id, two_phase_commit=True, delivery_s=5.0, linger_ms=0
                )
                try:
                    await producer.init(keep_prepared=True)
                    await producer.complete(self.decided)
                    self.decided = NOTHING
                    self.is_over = self.play.finishing
                    await self.work(cluster, producer)
                    await producer.close()
                except (KafkaError, OSError) as error:
                    self.judge(error)
            await asyncio.sleep(0.1)
        self.is_up = False

    async def work(self, cluster: Cluster, producer: Producer) -> None:
        while not self.play.finishing:
            attempt = self.accounts.begin(self.name)
            producer.begin()
            for where in self.rng.sample([*INPUTS, OTHER], 2):
                value = f"{attempt.name}/{where.topic}/{where.partition}".encode()
                await self.post(producer, attempt, where, value)
            prepared = await producer.prepare()
            await self.dawdle()
            commits = self.rng.random() < 0.7
            self.accounts.ends(attempt, End.COMMITTED if commits else End.ABORTED)
            self.decided = prepared if commits else NOTHING
            await self.dawdle()
            await producer.complete(self.decided)
            self.decided = NOTHING
            await asyncio.sleep(0.05)


class Reader:
    """Polls everything until it has seen the end."""

    def __init__(self, play: TransactionPlay, name: str, committed: bool) -> None:
        self.play, self.name, self.committed = play, name, committed

    async def run(self) -> None:
        play = self.play
        with play.client(self.name) as cluster:
            await cluster.retrying(cluster.any)
            wheres = [*KEPT, KEYED]
            options = {"wait_ms": 250, "read_committed": self.committed}
            consumer = Consumer(cluster, dict.fromkeys(wheres, EARLIEST), **options)  # type: ignore[arg-type]
            while not (play.finished and all(consumer.positions[w] >= play.ends[w] for w in wheres)):
                records = await consumer.fetch()
                for where in wheres:
                    mine = [(r.offset, r.value or b"") for r in records if (r.topic, r.partition) == where]
                    play.accounts.poll(self.name, where, mine, committed=self.committed)
            consumer.close()


class Auditor:
    """Asks for the offsets of the copiers, again and again."""

    def __init__(self, play: TransactionPlay) -> None:
        self.play = play
        self.rng = play.loop.chance("auditor")

    async def run(self) -> None:
        play = self.play
        with play.client("auditor") as cluster:
            coordinator = Coordinator(cluster, GROUP)
            while not play.finished:
                await self.look(coordinator, self.rng.random() < 0.7)
                await asyncio.sleep(self.rng.expovariate(1 / 0.1))
            coordinator.close()

    async def look(self, coordinator: Coordinator, stable: bool) -> None:
        accounts = self.play.accounts
        floors = accounts.asking() if stable else {}
        try:
            found = await commits.fetch(coordinator, INPUTS, require_stable=stable)
        except (KafkaError, OSError) as error:
            if not may_pass(error):
                raise
            return
        accounts.told({where: what.offset for where, what in found.items()}, floors)
