"""One unmodified node, transactions of both generations and their misfortunes, all out of one seed.

Machines: `teller*` write and `copier*` copy, two of each with the same transactional id, and what `preparer` writes is decided
elsewhere (`transacting`); `strict` reads what is committed and `loose` reads everything; `auditor` asks for the copiers'
offsets; `admin` lists, describes and fences, and in some seeds changes `transaction.version` while everybody is at work;
`echo` repeats requests of generation 2 late (`echoes`). Half of the seeds sync before they acknowledge, and lose their power
as well.

`cd tests; python -m sim.transaction_play 1 2 3` prints how these seeds went.
"""

from __future__ import annotations

import asyncio
import contextlib
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from ottla.client import commits
from ottla.client.admin import Admin
from ottla.client.cluster import EARLIEST, LATEST, Cluster, TopicPartition
from ottla.client.connection import check
from ottla.client.consumer import Consumer
from ottla.client.coordinator import Coordinator
from ottla.client.producer import Producer
from ottla.client.transaction_admin import TransactionAdmin
from ottla.sim.loop import SimLoop
from ottla.sim.transaction_checks import Accounts, End
from ottla.wire.errors import KafkaError
from ottla.wire.messages.cluster import UpdateFeaturesRequest
from sim.echoes import Echo, Said, overheard
from sim.stage import Stage, Story, perform, print_stories
from sim.topics import NODE
from sim.transacting import COPIES, GROUP, INPUTS, KEPT, KEYED, Actor, Auditor, Copier, Preparer, Reader, Teller
from sim.transaction_nemesis import TransactionNemesis

# After the last fault: what is open times out, what is prepared is ended.
STABLE_WITHIN_S = 40.0
SETTINGS = {
    "offsets.topic.num.partitions": "2",
    "transaction.state.log.num.partitions": "2",
    "transaction.abort.timed.out.transaction.cleanup.interval.ms": "300",
    "transaction.two.phase.commit.enable": "true",
    "log.initial.task.delay.ms": "100",
    "log.cleaner.backoff.ms": "150",
    "log.retention.check.interval.ms": "700",
    "log.flush.offset.checkpoint.interval.ms": "900",
}
# Ids that nobody uses are soon forgotten, by their coordinator and by the logs.
FORGETFUL = {
    "transactional.id.expiration.ms": "1500",
    "transaction.remove.expired.transaction.cleanup.interval.ms": "500",
    "producer.id.expiration.ms": "1200",
    "producer.id.expiration.check.interval.ms": "400",
}
TOPICS: dict[str, tuple[int, dict[str, str]]] = {
    "brief": (1, {}),
    "in": (2, {"internal.segment.bytes": "2500"}),
    "other": (1, {"internal.segment.bytes": "1500"}),
    "copies": (2, {"internal.segment.bytes": "4000"}),
    "keyed": (1, {"cleanup.policy": "compact", "internal.segment.bytes": "1000", "min.cleanable.dirty.ratio": "0.01"}),
}
SWITCHING = 0


def play(seed: int | str, rounds: int = 4, generation: int | None = None) -> Story:
    return perform(TransactionPlay(seed, rounds, generation))


class TransactionPlay(Stage):
    audits = Auditor

    def __init__(self, seed: int | str, rounds: int, generation: int | None = None) -> None:
        super().__init__(seed, rounds)
        self.accounts = Accounts()
        self.generation = generation
        self.ends: dict[TopicPartition, int] = {}
        # Those who poll all along, and have to get everything.
        self.watchers = ["strict"]

    def begin(self, loop: SimLoop) -> None:
        chance = loop.chance("promises")
        self.is_durable = chance.random() < 0.5
        chosen = chance.choice((2, 2, 1, SWITCHING))
        self.generation = chosen if self.generation is None else self.generation
        syncs = {"log.flush.interval.messages": "1"} if self.is_durable else {}
        forgets = FORGETFUL if chance.random() < 0.3 else {}
        self.set_up(loop, {**SETTINGS, **syncs, **forgets})
        self.actors: list[Actor] = [Teller(self, f"teller{n}", f"telling/{n // 2}") for n in range(3)]
        self.actors += [Copier(self, f"copier{n}", "copying") for n in range(2)]
        self.to_fence = [actor.transactional_id for actor in self.actors]
        if (
            self.generation == 2
        ):  # earlier ones cannot keep what is prepared; and an administrator had better not touch it
            self.actors.append(Preparer(self, "preparer", "preparing"))

    async def run(self, loop: SimLoop) -> Story:
        self.begin(loop)
        self.cluster.boot(NODE)
        await self.until_ready()
        await self.cluster.client("admin", self.prepare())
        with overheard() as said:
            await self.act(said)
        return self.told()

    async def act(self, said: list[Said]) -> None:
        workers = self.seat_workers(said)
        readers = self.seat_readers()
        workers.insert(0, self.loop.create_task(self.churn()))
        await TransactionNemesis(self).run()
        self.finishing = True
        await self.come_to_rest(workers, readers)
        await self.cluster.client("judge", self.close_books())

    def seat_workers(self, said: list[Said]) -> list[asyncio.Task[Any]]:
        workers = [self.cluster.client("admin", self.administrate())]
        if self.generation == 2:
            workers.append(self.cluster.client("echo", Echo(self, said).run()))
        return workers

    def seat_readers(self) -> list[asyncio.Task[Any]]:
        client = self.cluster.client
        return [
            client("strict", Reader(self, "strict", True).run()),
            client("loose", Reader(self, "loose", False).run()),
            client("auditor", self.audits(self).run()),
        ]

    async def come_to_rest(self, workers: list[asyncio.Task[Any]], readers: list[asyncio.Task[Any]]) -> None:
        """First those who act; when everything is decided, those who read."""
        for task in workers:
            await task
        for actor in self.actors:
            await actor.rest()
        await self.cluster.client("judge", self.stabilise())
        self.finished = True
        for task in readers:
            await task

    def told(self) -> Story:
        ended = {f"transactions {end.value}": count for end, count in self.accounts.ended.items()}
        polled, offsets = self.accounts.polled, self.accounts.told_offsets
        return self.tell(self.accounts.found, polled=polled, offsets=offsets, **ended)

    # -- clients

    @contextmanager
    def client(self, name: str) -> Iterator[Cluster]:
        cluster = self.connect(name, self.loop.time())
        try:
            yield cluster
        finally:
            cluster.close()

    async def churn(self) -> None:
        rng = self.loop.chance("churn")
        while not self.finishing:
            actor = rng.choice(self.actors)
            if not actor.is_up:
                actor.start()
            elif rng.random() < 0.04:
                self.story.faults["client dies"] += 1
                actor.fall()
            await asyncio.sleep(rng.expovariate(1 / 0.1))

    async def committed(self, cluster: Cluster) -> dict[TopicPartition, int]:
        """The offsets of the copiers. One attempt."""
        coordinator = Coordinator(cluster, GROUP)
        try:
            floors = self.accounts.asking()
            found = await commits.fetch(coordinator, INPUTS, require_stable=True)
        finally:
            coordinator.close()
        offsets = {where: what.offset for where, what in found.items()}
        self.accounts.told(offsets, floors)
        return offsets

    # -- the administrator

    async def prepare(self) -> None:
        with self.client("admin") as cluster:
            admin = Admin(cluster)
            for name, (partitions, configs) in TOPICS.items():
                await admin.create_topic(name, partitions=partitions, configs=configs)
            if self.generation != 2:
                await self.switch(cluster, 1)

    async def switch(self, cluster: Cluster, level: int) -> None:
        """Up, or down."""
        update = UpdateFeaturesRequest.Update(
            feature="transaction.version", max_version_level=level, upgrade_type=1 if level == 2 else 2
        )

        async def once() -> None:
            response = await (await cluster.any()).request(UpdateFeaturesRequest(feature_updates=[update]))
            check(response.error_code, response.error_message)

        await cluster.retrying(once)

    async def administrate(self) -> None:
        rng, level = self.loop.chance("administrator"), 1
        with self.client("admin") as cluster:
            admin = TransactionAdmin(cluster)
            while not self.finishing:
                what = rng.random()
                if self.generation == SWITCHING and what < 0.3:
                    level = 3 - level
                    self.story.faults["generation switched"] += 1
                    with contextlib.suppress(KafkaError):  # the first attempt had done it
                        await self.switch(cluster, level)
                elif what < 0.35:
                    await self.make_anew(cluster)
                elif what < 0.45:
                    self.story.faults["fenced by hand"] += 1
                    await admin.fence(rng.choice(self.to_fence))
                else:
                    await self.look_around(admin)
                await asyncio.sleep(rng.expovariate(1 / 0.4))

    async def make_anew(self, cluster: Cluster) -> None:
        """Delete a topic that transactions write to, and make it again."""
        self.story.faults["topic made anew"] += 1
        admin = Admin(cluster)
        for change in (lambda: admin.delete_topic("brief"), lambda: admin.create_topic("brief", partitions=1)):
            with contextlib.suppress(KafkaError):  # the first attempt had done it
                await cluster.retrying(change)

    async def look_around(self, admin: TransactionAdmin) -> None:
        for found in await admin.cluster.retrying(admin.transactions):
            with contextlib.suppress(KafkaError):
                await admin.describe(found.transactional_id)

    # -- the end

    async def stabilise(self) -> None:
        """Everything is decided before long, and every transactional id is good for another transaction."""
        with self.client("judge") as cluster:
            await self.all_stable(cluster)
            for transactional_id in sorted({actor.transactional_id for actor in self.actors}):
                await self.one_more(cluster, transactional_id)
            self.ends = await self.all_stable(cluster)

    async def all_stable(self, cluster: Cluster) -> dict[TopicPartition, int]:
        deadline = self.loop.time() + STABLE_WITHIN_S
        wheres = dict.fromkeys([*KEPT, KEYED], LATEST)
        while True:
            ends = {where: at.offset for where, at in (await cluster.list_offsets(wheres)).items()}
            stable = await cluster.list_offsets(wheres, read_committed=True)
            left = [where for where in wheres if stable[where].offset < ends[where]] or self.open_in_the_node()
            if not left:
                return ends
            if self.loop.time() > deadline:
                self.accounts.report("hanging", str(left[0]), f"not stable after {STABLE_WITHIN_S} s: {left}")
                return {where: at.offset for where, at in stable.items()}
            await asyncio.sleep(0.1)

    def open_in_the_node(self) -> list[TopicPartition]:
        """Internal topics too: a hanging transaction in the offsets keeps them from being compacted, and told."""
        assert self.machine.node is not None
        partitions = [p for p in self.machine.node.replicas.all() if p.log.producers.ongoing]
        return [TopicPartition(p.topic, p.index) for p in partitions]

    async def one_more(self, cluster: Cluster, transactional_id: str) -> None:
        producer = Producer(cluster, transactional_id=transactional_id, delivery_s=STABLE_WITHIN_S)
        attempt = self.accounts.begin(f"judge/{transactional_id}")
        try:
            await producer.init()
            producer.begin()
            for where in KEPT:
                value = f"{attempt.name}/{where.topic}/{where.partition}".encode()
                self.accounts.sends(attempt, where, value)
                await producer.post(where.topic, value, partition=where.partition)
            self.accounts.asks_to_commit(attempt)
            await producer.commit()
            self.accounts.ends(attempt, End.COMMITTED)
            await producer.close()
        except (KafkaError, OSError) as error:
            self.accounts.report("stuck", transactional_id, repr(error))

    async def close_books(self) -> None:
        with self.client("judge") as cluster:
            final = {where: await self.read(cluster, where) for where in KEPT}
            plain = {where: [(at, value) for at, _, value in records] for where, records in final.items()}
            self.accounts.close(plain, self.watchers)
            keyed = await self.read(cluster, KEYED)
            self.accounts.check_keys(KEYED, {key: (at, value) for at, key, value in keyed})
            copies = [value for where in COPIES for _, value in plain[where]]
            inputs = {where: [at for at, _ in plain[where]] for where in INPUTS}
            group = await cluster.retrying(lambda: self.committed(cluster))
            self.accounts.check_copies(copies, inputs, group)

    async def read(self, cluster: Cluster, where: TopicPartition) -> list[tuple[int, bytes, bytes]]:
        """All of it, as a new reader gets it."""
        consumer = Consumer(cluster, {where: EARLIEST}, ends={where: self.ends[where]}, read_committed=True)
        return [(record.offset, record.key or b"", record.value or b"") async for record in consumer]


if __name__ == "__main__":
    print_stories(play, sys.argv[1:])
