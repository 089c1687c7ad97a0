"""One unmodified node, groups of both protocols and their misfortunes, all out of one seed.

Groups: `classic`, `consumer` (KIP-848) and `mixed`, which has members of both, each with a few seats on which members come
and go (`members`). `writer` produces what they read, `auditor` asks for committed offsets, `simple` commits without being a
member, to groups that it deletes again. Half of the seeds sync before they acknowledge, and lose their power as well.

`cd tests; python -m sim.group_play 1 2 3` prints how these seeds went.
"""

from __future__ import annotations

import asyncio
import sys
from collections.abc import Iterator
from contextlib import contextmanager

from ottla.client import commits
from ottla.client.admin import Admin
from ottla.client.cluster import Cluster, TopicPartition
from ottla.client.commits import Committed
from ottla.client.coordinator import Coordinator
from ottla.client.groups import GroupAdmin
from ottla.client.producer import Producer
from ottla.sim.cluster import Machine
from ottla.sim.group_checks import Ledger
from ottla.sim.loop import SimLoop
from ottla.wire.errors import Error, KafkaError
from sim.group_nemesis import GroupNemesis
from sim.members import PARTITIONS, SESSION_S, TOPIC, WHERES, Auditor, Seat
from sim.stage import Stage, Story, perform, print_stories
from sim.topics import NODE, PATIENCE_S

# After the last fault: sessions of the dead end, and a few rebalances follow one another. Less than the time after which a
# client gives up a request that is never answered, so that such a request shows.
SETTLED_WITHIN_S = 22.0
SETTLED_FOR_S = 1.5
SETTINGS = {
    "offsets.topic.num.partitions": "2",
    "group.min.session.timeout.ms": "1000",
    "group.initial.rebalance.delay.ms": "300",
    "group.consumer.min.session.timeout.ms": "1000",
    "group.consumer.session.timeout.ms": str(int(SESSION_S * 1000)),
    "group.consumer.min.heartbeat.interval.ms": "100",
    "group.consumer.heartbeat.interval.ms": "300",
    "group.consumer.assignment.interval.ms": "0",
    "log.initial.task.delay.ms": "100",
    "log.retention.check.interval.ms": "700",
    "offsets.retention.check.interval.ms": "800",
    "log.flush.offset.checkpoint.interval.ms": "900",
}
GROUPS = {"classic": ("classic",) * 3, "consumer": ("consumer",) * 3, "mixed": ("classic", "consumer", "classic")}


def play(seed: int | str, rounds: int = 6) -> Story:
    return perform(GroupPlay(seed, rounds))


class GroupPlay(Stage):
    def __init__(self, seed: int | str, rounds: int) -> None:
        super().__init__(seed, rounds)
        self.ledger = Ledger(SESSION_S)

    def begin(self, loop: SimLoop) -> None:
        chance = loop.chance("promises")
        self.is_durable = chance.random() < 0.5
        self.may_lose_power = self.is_durable or chance.random() < 0.3
        self.has_lost_records = False
        chosen = {"log.flush.interval.messages": "1"} if self.is_durable else {}
        self.set_up(loop, {**SETTINGS, **chosen})
        names = [name for name in GROUPS if name != "mixed" or chance.random() < 0.4]
        self.seats = [
            Seat(self, f"{group}{number}", group, protocol, group == "mixed")
            for group in names
            for number, protocol in enumerate(GROUPS[group])
        ]
        self.groups = names

    async def run(self, loop: SimLoop) -> Story:
        self.begin(loop)
        self.cluster.boot(NODE)
        await self.until_ready()
        await self.cluster.client("admin", self.make_topic())
        others = [
            self.cluster.client("writer", self.write()),
            self.cluster.client("simple", self.commit_without_a_group()),
        ]
        auditor = self.cluster.client("auditor", Auditor(self, self.groups).run())
        churn = loop.create_task(self.churn())
        await GroupNemesis(self).run()
        self.finishing = True
        for task in (churn, *others):
            await task
        await self.settle()
        self.finished = True
        await auditor
        await self.empty_the_seats()
        return self.told()

    def told(self) -> Story:
        ledger = self.ledger
        return self.tell(ledger.found, acked=ledger.acked, shown=ledger.shown, taken=ledger.taken)

    # -- the node

    def note_fall(self, machine: Machine) -> None:
        if machine.loss is not None and not self.is_durable:
            self.has_lost_records = True
            self.ledger.forget()

    # -- clients

    @contextmanager
    def client(self, name: str) -> Iterator[Cluster]:
        cluster = self.connect(name, self.loop.time())
        try:
            yield cluster
        finally:
            cluster.close()

    def is_complete(self) -> bool:
        """Whether members must have got every record: if the log lost some, there are gaps that are nobody's fault."""
        return not self.has_lost_records

    async def make_topic(self) -> None:
        with self.client("admin") as cluster:
            try:
                await cluster.retrying(lambda: Admin(cluster).create_topic(TOPIC, partitions=PARTITIONS))
            except KafkaError as error:
                if error.error is not Error.TOPIC_ALREADY_EXISTS:  # the first attempt had done it
                    raise

    async def write(self) -> None:
        rng = self.loop.chance("writer")
        with self.client("writer") as cluster:
            producer = Producer(cluster, delivery_s=PATIENCE_S)
            while not self.finishing:
                where = rng.choice(WHERES)
                sent = await producer.post(where.topic, b"%f" % self.loop.time(), partition=where.partition)
                sent.add_done_callback(lambda sent: sent.exception())  # what becomes of it is asked in test_node.py
                await asyncio.sleep(rng.expovariate(1 / 0.1))
            await producer.flush()

    async def churn(self) -> None:
        """Members come and go; in the end each group has one at least."""
        rng = self.loop.chance("churn")
        while not self.finishing:
            seat = rng.choice(self.seats)
            if not seat.is_up:
                seat.sit_down()
            elif rng.random() < 0.15:
                seat.leave()
            elif rng.random() < 0.15:
                seat.fall()
            await asyncio.sleep(rng.expovariate(1 / 0.25))
        for group in self.groups:
            if not any(seat.is_up and not seat.is_leaving for seat in self.seats if seat.group == group):
                seat = next(seat for seat in self.seats if seat.group == group)
                while seat.is_up:
                    await asyncio.sleep(0.01)
                seat.sit_down()

    async def empty_the_seats(self) -> None:
        for seat in self.seats:
            seat.leave()
        while any(seat.is_up for seat in self.seats):
            await asyncio.sleep(0.05)

    # -- a consumer that is in no group, and an administrator who deletes what it left behind

    async def commit_without_a_group(self) -> None:
        rng, where = self.loop.chance("simple"), TopicPartition(TOPIC, 0)
        with self.client("simple") as cluster:
            for number in range(1_000_000):
                if self.finishing:
                    break
                group = rng.choice(("alone/%s", "alone\n2"))
                await cluster.retrying(lambda group=group, at=number: self.commit_alone(cluster, group, where, at))  # type: ignore[misc]
                if rng.random() < 0.1:
                    await self.delete(cluster, group)
                await asyncio.sleep(rng.expovariate(1 / 0.1))

    async def commit_alone(self, cluster: Cluster, group: str, where: TopicPartition, offset: int) -> None:
        coordinator = Coordinator(cluster, group)
        try:
            await self.look_alone(coordinator, where)
            question = self.ledger.committing(group, {where: offset}, complete=False)
            await commits.commit(coordinator, {where: Committed(offset)})
            self.ledger.committed(group, {where: offset}, question)
            await self.look_alone(coordinator, where)
        finally:
            coordinator.close()

    async def look_alone(self, coordinator: Coordinator, where: TopicPartition) -> None:
        group = coordinator.key
        question = self.ledger.asking(group, [where])
        found = await commits.fetch(coordinator, [where])
        self.ledger.told(group, {where: what.offset for where, what in found.items()}, question)

    async def delete(self, cluster: Cluster, group: str) -> None:
        self.ledger.deleted(group)
        try:
            await GroupAdmin(cluster).delete(group)
        except KafkaError as error:
            if error.error is not Error.GROUP_ID_NOT_FOUND:  # the first attempt had done it
                raise
        self.ledger.deleted(group)
        with self.client("simple") as other:
            found = await GroupAdmin(other).offsets(group)
            if found:
                self.ledger.report("undead", group, f"it was deleted, and has committed {found}")

    # -- the end

    async def settle(self) -> None:
        """Every partition of every group has one owner, for a while."""
        deadline = self.loop.time() + SETTLED_WITHIN_S
        since: float | None = None
        while since is None or self.loop.time() < since + SETTLED_FOR_S:
            unsettled = self.unsettled()
            if unsettled:
                since = None
                if self.loop.time() > deadline:
                    for group, where, owners in unsettled:
                        self.ledger.report("not-settled", f"{group} {where}", f"owners: {owners}")
                    return
            elif since is None:
                since = self.loop.time()
            await asyncio.sleep(0.05)

    def unsettled(self) -> list[tuple[str, TopicPartition, list[str]]]:
        owners = self.ledger.owners
        return [(g, where, owners(g, where)) for g in self.groups for where in WHERES if len(owners(g, where)) != 1]


if __name__ == "__main__":
    print_stories(play, sys.argv[1:])
