"""Three unmodified nodes, their clients and their misfortunes, all out of one seed.

Machines: `n1` to `n3` run the nodes, each of them broker and voter. `w1` and `w2` produce, idempotently and with
acks=all; `reader` polls all partitions it was assigned; `classic0` and `consumer0` and their like are members of
groups; `admin` makes and deletes topics (`cluster_clients`). All topics have three replicas, of which two must have a
record before it is acknowledged. What befalls them is in `cluster_nemesis`; it is planned in advance, so that parts
of it can be left out. `keeper` starts again whatever has ended.

A third of the seeds are *synced*: records are on disk before they are acknowledged, and then the power of all
machines may go at once. In the others at most one machine at a time has lost what it had not synced. In half of them
the voters are a setting, in the others they stand in the log, and a machine whose disk was wiped joins them again by
itself.

Every seed begins with copies of the same disks: those of a cluster that was formed, used a little and stopped.

`cd tests; python -m sim.cluster_play 1 2 3` prints how these seeds went; `7:2,5` leaves all faults of seed 7 out but
its second and its fifth.
"""

from __future__ import annotations

import asyncio
import functools
import itertools
import random
import sys
from collections.abc import Callable, Collection, Mapping
from typing import Any

from ottla.client.admin import Admin
from ottla.client.cluster import LATEST, Cluster, TopicPartition
from ottla.client.producer import Producer
from ottla.sim.checks import History, Registry
from ottla.sim.cluster import Machine, SimCluster, Topology
from ottla.sim.cluster_checks import Watch
from ottla.sim.disk import SimDisk
from ottla.sim.group_checks import Ledger
from ottla.sim.loop import SimLoop, run
from sim.clients import read_all
from sim.cluster_clients import Maker, Quiet, Reader, Session
from sim.cluster_nemesis import Keeper, Nemesis, planned
from sim.members import SESSION_S, Auditor, Seat
from sim.stage import Story, print_stories

OFFSETS = "__consumer_offsets"
NAMES = ("n1", "n2", "n3")
LIMIT_S = 200.0
PATIENCE_S = 150.0
LOOK_EVERY_S = 0.03
# After the last fault: a start, an election, a session that runs out, catching up.
WHOLE_WITHIN_S = 20.0
# A request whose answer never comes is given up after 30 s, then it is tried again.
ENDED_WITHIN_S = 45.0
TOPICS = {"safe": 2, "shared": 4}
WHERES = [TopicPartition(topic, index) for topic, count in TOPICS.items() for index in range(count)]
GROUPS = {"classic": ("classic", "classic"), "consumer": ("consumer", "consumer")}
SETTINGS = {
    "broker.heartbeat.interval.ms": "400",
    "broker.session.timeout.ms": "1500",
    "controller.quorum.election.timeout.ms": "300",
    "controller.quorum.election.backoff.max.ms": "200",
    "controller.quorum.fetch.timeout.ms": "800",
    "controller.quorum.request.timeout.ms": "600",
    "replica.lag.time.max.ms": "1500",
    "replica.fetch.wait.max.ms": "400",
    "replica.fetch.backoff.ms": "100",
    "replica.socket.timeout.ms": "1000",
    "replica.high.watermark.checkpoint.interval.ms": "700",
    "default.replication.factor": "3",
    "min.insync.replicas": "2",
    "offsets.topic.replication.factor": "3",
    "offsets.topic.num.partitions": "2",
    "auto.create.topics.enable": "false",
    "log.initial.task.delay.ms": "100",
    "log.retention.check.interval.ms": "2000",
    "log.flush.offset.checkpoint.interval.ms": "900",
    "log.cleaner.enable": "false",
    "group.min.session.timeout.ms": "1000",
    "group.initial.rebalance.delay.ms": "200",
    "group.consumer.min.session.timeout.ms": "1000",
    "group.consumer.session.timeout.ms": str(int(SESSION_S * 1000)),
    "group.consumer.min.heartbeat.interval.ms": "100",
    "group.consumer.heartbeat.interval.ms": "500",
    "group.consumer.assignment.interval.ms": "0",
    "metadata.log.max.record.bytes.between.snapshots": "6000",
}


def settings(is_synced: bool) -> Mapping[str, str]:
    return {**SETTINGS, "log.flush.interval.messages": "1"} if is_synced else SETTINGS


def play(
    seed: int | str, rounds: int = 5, only: Collection[int] | None = None, kinds: Collection[str] | None = None
) -> Story:
    """One history. `only` leaves out all other faults than these; `kinds` draws faults of these kinds only."""
    return perform(Play(seed, rounds, only, kinds))


class Play:
    letter = ""  # of a play whose seeds have names of their own: the seed 7 is `m7` then
    watches: type[Watch] = Watch
    torments: type[Nemesis] = Nemesis
    topology = Topology.combined(NAMES)

    def __init__(
        self, seed: int | str, rounds: int, only: Collection[int] | None = None, kinds: Collection[str] | None = None
    ) -> None:
        self.story = Story(f"{self.letter}{seed}" if self.letter and isinstance(seed, int) else seed)
        self.rounds, self.only, self.kinds = rounds, only, kinds
        chance = random.Random(f"{self.story.seed}/topology")
        self.is_synced = chance.random() < 0.33
        self.has_groups, self.has_admin = chance.random() < 0.4, chance.random() < 0.5
        self.is_dynamic = chance.random() < 0.5
        self.history = History()
        self.registry = Registry()
        self.ledger = Ledger(SESSION_S)
        self.finishing = self.finished = self.is_healed = False
        self.ends: dict[TopicPartition, int] = {}

    def begin(self, loop: SimLoop, disks: Mapping[str, SimDisk] | None) -> None:
        self.loop = loop
        self.cluster = SimCluster(loop)
        self.cluster.on_ready, self.cluster.on_fall = self.note_ready, self.note_fall
        self.cluster.form(self.topology, self.settings(), disks, is_dynamic=self.is_dynamic)
        self.watch = self.watches(self.cluster)
        self.ledger.may_be_old = self.may_be_old
        self.keeper = Keeper(self)

    def settings(self) -> Mapping[str, str]:
        return settings(self.is_synced)

    def disks(self) -> Mapping[str, SimDisk]:
        return prepared(self.is_synced, self.is_dynamic)

    async def run(self, loop: SimLoop) -> Story:
        """To the end, or until it is known that this ends badly."""
        self.begin(loop, self.disks())
        self.alarm: asyncio.Future[None] = loop.create_future()
        acting = loop.create_task(self.act(loop))
        await asyncio.wait([acting, self.alarm], return_when=asyncio.FIRST_COMPLETED)
        if acting.done():
            await acting
        return self.told()

    async def act(self, loop: SimLoop) -> None:
        for where in WHERES:
            self.history.open(where, durable=True)
        background = [loop.create_task(self.keeper.run()), loop.create_task(self.keep_looking())]
        clients = [
            self.cluster.client("w1", Quiet(self, "w1", WHERES[:3]).run()),
            self.cluster.client("w2", Quiet(self, "w2", WHERES[2:]).run()),
        ]
        reader = self.cluster.client("reader", Reader(self, WHERES).run())
        if self.has_admin:
            clients.append(self.cluster.client("admin", Maker(self).run()))
        clients += self.more_clients()
        seats = self.take_seats() if self.has_groups else []
        await self.until(self.keeper.all_ready, PATIENCE_S, "never-started")
        nemesis = self.torments(self)
        await nemesis.run(planned(loop.chance("plan"), self.rounds, nemesis.kinds(), self.only, self.kinds))
        self.finishing = True
        await self.put_right()
        healed = loop.time()
        await self.until(lambda: self.watch.not_whole() is None, WHOLE_WITHIN_S, "not-settled")
        self.story.figures["ms until whole"] = round((loop.time() - healed) * 1000)
        self.is_healed = True
        if not await self.ended(*clients):
            return
        await self.leave(seats)
        await self.cluster.client("judge", self.final_sends())
        await self.until(lambda: self.watch.not_whole() is None, WHOLE_WITHIN_S, "not-settled")
        await self.cluster.client("judge", self.final_reads())
        self.finished = True
        if not await self.ended(reader):
            return
        await self.cluster.client("judge", self.close_books())
        for task in background:
            task.cancel()
        self.watch.look_from_the_beginning()

    def more_clients(self) -> list[asyncio.Task[Any]]:
        """Those of other plays."""
        return []

    async def put_right(self) -> None:
        """What somebody did in whose presence a cluster need not become whole."""

    def may_be_old(self) -> bool:
        """A coordinator that is cut off from the controllers goes on telling what it knows, as in Kafka: reading must go on
        when all controllers are away, and it cannot tell the one from the other. Nothing can be committed there."""
        return self.watch.has_deposed(OFFSETS)

    async def ended(self, *tasks: asyncio.Task[Any]) -> bool:
        """In a cluster that is whole, clients get through with what they have begun."""
        await self.until(lambda: all(task.done() for task in tasks), ENDED_WITHIN_S, "clients-stuck")
        for task in [task for task in tasks if task.done()]:
            await task
        return all(task.done() for task in tasks)

    def told(self) -> Story:
        story, history = self.story, self.history
        story.anomalies = [*self.watch.found, *history.anomalies, *self.registry.found, *self.ledger.found]
        story.figures.update(acked=history.acked, polled=history.polled, looks=self.watch.looks)
        story.figures.update(batches=self.watch.batches, steps=self.loop.steps)
        story.figures["group commits"] = self.ledger.acked
        story.simulated_s, story.trace = self.loop.time(), self.loop.trace()
        return story

    async def until(self, is_so: Callable[[], bool], seconds: float, kind: str) -> None:
        await until(self.watch, self.history, is_so, seconds, kind)

    # -- onlookers

    async def keep_looking(self) -> None:
        while True:
            await asyncio.sleep(LOOK_EVERY_S)
            self.watch.look()
            if (self.watch.found or self.history.other) and not self.alarm.done():
                self.alarm.set_result(None)

    def note_ready(self, machine: Machine) -> None:
        self.story.restarts += 1
        self.watch.look_at(machine)

    def note_fall(self, machine: Machine) -> None:
        self.watch.look_at(machine)

    # -- clients

    def client(self, name: str) -> Session:
        return Session(
            self.cluster.bootstrap,
            client_id=name,
            budget_s=PATIENCE_S,
            now_ms=lambda: self.cluster.worlds.now_ms(name),
            rng=self.loop.chance("client", name, self.loop.time()),
        )

    def is_complete(self) -> bool:
        return True

    def take_seats(self) -> list[Seat]:
        chance = self.loop.chance("groups")
        group = chance.choice(sorted(GROUPS))
        seats = [
            Seat(self, f"{group}{number}", group, protocol, False) for number, protocol in enumerate(GROUPS[group])
        ]
        for seat in seats:
            seat.sit_down()
        self.auditor = self.cluster.client("auditor", Auditor(self, [group]).run())
        return seats

    async def leave(self, seats: list[Seat]) -> None:
        for seat in seats:
            seat.leave()
        if seats:
            await self.until(lambda: not any(seat.is_up for seat in seats), 30.0, "member-stays")

    async def final_sends(self) -> None:
        """After everything has healed, every partition takes records."""
        with self.client("judge") as cluster:
            producer = Producer(cluster, delivery_s=20.0)
            for where in WHERES:
                value = f"judge/{where.topic}/{where.partition}".encode()
                send = self.history.send("judge", where, value)
                sent = await producer.send(where.topic, value=value, partition=where.partition)
                self.history.ack(where, send, sent.offset)
            await producer.flush()

    async def final_reads(self) -> None:
        with self.client("judge") as cluster:
            found = await cluster.list_offsets(dict.fromkeys(WHERES, LATEST))
            self.ends = {where: found[where].offset for where in WHERES}

    async def close_books(self) -> None:
        with self.client("judge") as cluster:
            for where in WHERES:
                start, records = await read_all(cluster, where, self)
                self.history.books[where].close(start, records, ["reader"])
            if self.has_admin:
                await self.everybody_knows()
                await Maker(self).compare(cluster)

    async def everybody_knows(self) -> None:
        """Any broker may be asked, and one whose disk still works off what it was given while it was slow is behind (seed 82).
        It must not stay so."""
        await self.until(lambda: len(set(self.topics_known())) == 1, WHOLE_WITHIN_S, "metadata-behind")

    def topics_known(self) -> list[frozenset[bytes]]:
        nodes = [machine.node for machine in self.cluster.machines.values()]
        return [frozenset() if node is None else frozenset(node.quorum.image.topics) for node in nodes]


def perform(stage: Play) -> Story:
    """The disks are made first, on a loop of their own."""
    stage.disks()
    return run(stage.story.seed, stage.run, limit_s=LIMIT_S)


async def until(watch: Watch, history: History, is_so: Callable[[], bool], seconds: float, kind: str) -> None:
    """Wait for it; that it did not come in time is a finding of this kind."""
    loop = asyncio.get_running_loop()
    deadline = loop.time() + seconds
    while not is_so():
        if loop.time() > deadline:
            history.report(kind, "cluster", f"after {seconds} s: {watch.not_whole()}")
            return
        await asyncio.sleep(0.02)


# -- where every seed begins


@functools.cache
def prepared(is_synced: bool, is_dynamic: bool) -> Mapping[str, SimDisk]:
    """The disks of a cluster that was formed, has its topics, was written to, and stopped."""
    return run("prepared", Preparation(is_synced, is_dynamic).run, limit_s=LIMIT_S)


class Preparation(Play):
    def __init__(self, is_synced: bool, is_dynamic: bool) -> None:
        super().__init__("prepared", 0)
        self.is_synced, self.is_dynamic = is_synced, is_dynamic

    async def run(self, loop: SimLoop) -> Mapping[str, SimDisk]:
        self.begin(loop, None)
        for name in self.topology.names:
            self.cluster.boot(name)
        await self.until(self.keeper.all_ready, PATIENCE_S, "never-started")
        assert self.keeper.all_ready(), [machine.exit for machine in self.cluster.machines.values()]
        await self.cluster.client("admin", self.make_topics())
        await self.until(lambda: self.watch.not_whole() is None, WHOLE_WITHIN_S, "not-settled")
        assert not self.history.anomalies, self.history.anomalies
        for machine in self.cluster.machines.values():
            machine.tell_to_stop()
        while any(self.cluster.is_up(name) for name in self.topology.names):
            await asyncio.sleep(0.01)
        return {name: machine.disk for name, machine in self.cluster.machines.items()}

    async def make_topics(self) -> None:
        with self.client("admin") as cluster:
            for topic, count in TOPICS.items():
                await Admin(cluster).create_topic(topic, partitions=count, replication_factor=3)
            await self.make_offsets_topic(cluster)

    async def make_offsets_topic(self, cluster: Cluster) -> None:
        seat = Seat(self, "classic0", "before", "classic", False)
        seat.sit_down()
        while OFFSETS not in await cluster.retrying(Admin(cluster).topics):
            await asyncio.sleep(0.1)
        seat.leave()
        while seat.is_up:
            await asyncio.sleep(0.1)


def prepare_all() -> None:
    for is_synced, is_dynamic in itertools.product((False, True), repeat=2):
        prepared(is_synced, is_dynamic)


def parse(text: str) -> tuple[str, list[int] | None]:
    """`7` or `7:2,5`."""
    seed, _, only = text.partition(":")
    return seed, [int(number) for number in only.split(",") if number] if _ else None


def print_played(play: Callable[..., Story], texts: list[str]) -> None:
    """How these seeds went, each perhaps with the faults that are left of it."""

    def play_text(text: str) -> Story:
        seed, only = parse(text)
        return play(int(seed) if seed.isdecimal() else seed, only=only)

    print_stories(play_text, texts)


if __name__ == "__main__":
    print_played(play, sys.argv[1:])
