"""Transactions on three unmodified nodes: the coordinator, the leaders of partitions and the coordinator of the group are
different processes, and any of them falls in the midst of it, all out of one seed.

Those who take part are those of `transaction_play`; the machines are those of `cluster_play`, each of them broker and voter,
with three replicas of everything, of which two must have what is acknowledged.
What befalls them is in `cluster_transaction_nemesis`. The oracles of both plays judge.

`cd tests; python -m sim.cluster_transaction_play 1 2 3` prints how these seeds went.
"""

from __future__ import annotations

import asyncio
import sys
from collections.abc import Callable, Mapping
from typing import Any, cast

from ottla.client.cluster import Cluster, TopicPartition
from ottla.sim.cluster import Machine, SimCluster
from ottla.sim.cluster_checks import Watch
from ottla.sim.loop import SimLoop
from sim import cluster_play, transaction_play
from sim.cluster_nemesis import Keeper, planned
from sim.cluster_play import LOOK_EVERY_S, NAMES, OFFSETS
from sim.cluster_transaction_nemesis import TransactionNemesis
from sim.echoes import Said, overheard
from sim.stage import Story, perform, print_stories
from sim.transacting import KEPT, Auditor
from sim.transaction_play import TransactionPlay

WHOLE_WITHIN_S = 30.0
SETTINGS = {
    **cluster_play.SETTINGS,
    **{name: value for name, value in transaction_play.SETTINGS.items() if name.startswith("transaction.")},
    "transaction.state.log.replication.factor": "3",
    "transaction.state.log.min.isr": "2",
}


def play(seed: int | str, rounds: int = 4, generation: int | None = None) -> Story:
    return perform(ClusterTransactionPlay(seed, rounds, generation))


class CarefulAuditor(Auditor):
    async def look(self, coordinator: Any, stable: bool) -> None:
        play = cast("ClusterTransactionPlay", self.play)
        await super().look(coordinator, stable and not play.watch.has_deposed(OFFSETS))


class ClusterTransactionPlay(TransactionPlay):
    audits = CarefulAuditor
    wheres: list[TopicPartition] = KEPT

    def set_up(self, loop: SimLoop, settings: Mapping[str, str]) -> None:
        self.loop = loop
        self.is_synced = self.is_durable
        self.cluster = SimCluster(loop)
        self.cluster.on_ready, self.cluster.on_fall = self.note_ready, self.note_fall
        syncs = {"log.flush.interval.messages": "1"} if self.is_synced else {}
        is_dynamic = loop.chance("topology").random() < 0.5
        self.machine = self.cluster.form(NAMES, {**SETTINGS, **syncs}, is_dynamic=is_dynamic)[0]
        self.watch = Watch(self.cluster)
        self.keeper = Keeper(cast("Any", self))

    async def run(self, loop: SimLoop) -> Story:
        self.begin(loop)
        background = [loop.create_task(self.keeper.run()), loop.create_task(self.keep_looking())]
        await self.until(self.keeper.all_ready, "never-started")
        await self.cluster.client("admin", self.prepare())
        with overheard() as said:
            await self.play_on(said)
        for task in background:
            task.cancel()
        self.watch.look_from_the_beginning()
        return self.told()

    async def play_on(self, said: list[Said]) -> None:
        workers = self.seat_workers(said)
        readers = self.seat_readers()
        workers.insert(0, self.loop.create_task(self.churn()))
        nemesis = TransactionNemesis(self)
        first, *others = planned(self.loop.chance("plan"), self.rounds, nemesis.kinds(), None, None)
        await nemesis.run([first._replace(kind="kill_at_step"), *others])
        self.finishing = True
        await self.until(lambda: self.watch.not_whole() is None, "not-settled")
        await self.come_to_rest(workers, readers)
        await self.until(lambda: self.watch.not_whole() is None, "not-settled")
        await self.cluster.client("judge", self.close_books())

    def told(self) -> Story:
        story = super().told()
        story.anomalies += self.watch.found
        return story

    async def until(self, is_so: Callable[[], bool], kind: str) -> None:
        await cluster_play.until(self.watch, self.history, is_so, WHOLE_WITHIN_S, kind)

    # -- onlookers

    async def keep_looking(self) -> None:
        while True:
            await asyncio.sleep(LOOK_EVERY_S)
            self.watch.look()

    def note_ready(self, machine: Machine) -> None:
        super().note_ready(machine)
        self.watch.look_at(machine)

    def note_fall(self, machine: Machine) -> None:
        self.watch.look_at(machine)

    def open_in_the_node(self) -> list[TopicPartition]:
        """In none of the three, internal topics and followers included."""
        nodes = [machine.node for machine in self.cluster.machines.values() if machine.node is not None]
        partitions = [p for node in nodes for p in node.replicas.all() if p.log.producers.ongoing]
        return [TopicPartition(p.topic, p.index) for p in partitions]

    # -- what may be old

    async def committed(self, cluster: Cluster) -> dict[TopicPartition, int]:
        """A coordinator that is cut off from the controllers goes on telling what it knows, as in Kafka; who copies once must
        not go on from there, so nobody asks while there is one."""
        while self.watch.has_deposed(OFFSETS):
            await asyncio.sleep(0.02)
        return await super().committed(cluster)


if __name__ == "__main__":
    print_stories(play, sys.argv[1:])
