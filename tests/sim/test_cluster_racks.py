"""Six nodes in three racks, and one rack after the other loses its power while somebody writes."""

from __future__ import annotations

import asyncio

from ottla.client.admin import Admin
from ottla.client.cluster import EARLIEST, LATEST, TopicPartition
from ottla.client.consumer import Consumer
from ottla.client.producer import Producer
from ottla.sim.cluster import Topology
from ottla.sim.disk import Loss
from ottla.sim.loop import SimLoop, run
from ottla.sim.voter_checks import WatchOfVoters
from sim.many_seeds import quiet
from sim.test_cluster_elections import partitions, until
from sim.test_cluster_scenes import Scene

__all__ = ["quiet"]

NAMES = ("n1", "n2", "n3", "n4", "n5", "n6")
# A voter and another broker in each.
RACKS = ({1, 4}, {2, 5}, {3, 6})
PARTITIONS = 12


class Racks(Scene):
    """Partitions get the numbers from 0 on, one record each in turn, for as long as `is_open`."""

    def __init__(self, loop: SimLoop) -> None:
        super().__init__(loop, is_dynamic=True, topology=Topology(NAMES, NAMES[:3], NAMES[:3]))
        for number, rack in enumerate(RACKS):
            for node in rack:
                self.cluster.machines[NAMES[node - 1]].settings["broker.rack"] = f"rack-{number}"
        self.watch = WatchOfVoters(self.cluster)
        self.is_open = asyncio.Event()
        self.is_over = False
        self.turns = 0

    async def write(self) -> None:
        cluster = self.client()
        await Admin(cluster).create_topic("t", partitions=PARTITIONS, replication_factor=3)
        producer = Producer(cluster)
        while not self.is_over:
            await self.is_open.wait()
            for partition in range(PARTITIONS):
                sent = await producer.send("t", value=b"%d" % self.turns, partition=partition)
                assert sent.offset == self.turns
            self.turns += 1
        cluster.close()

    async def more_turns(self) -> None:
        """More records are acknowledged in every partition. A request to somebody whose power is gone hears nothing, and is
        given up after half a minute."""
        self.is_open.set()
        wanted = self.turns + 4
        await until(lambda: self.turns >= wanted, 60)

    async def read(self) -> None:
        cluster = self.client()
        wheres = [TopicPartition("t", partition) for partition in range(PARTITIONS)]
        starts = await cluster.list_offsets(dict.fromkeys(wheres, EARLIEST))
        ends = await cluster.list_offsets(dict.fromkeys(wheres, LATEST))
        for where in wheres:
            consumer = Consumer(cluster, {where: starts[where].offset}, ends={where: ends[where].offset})
            found = [record.value async for record in consumer]
            assert found == [b"%d" % number for number in range(self.turns)]
        cluster.close()

    def led_from(self, rack: set[int]) -> int:
        return sum(partition.leader in rack for partition in partitions(self))

    async def lose(self, rack: set[int]) -> None:
        """Others lead and go on, with all copies that are left; it comes back, and all is whole again."""
        assert self.led_from(rack) > 0
        for node in rack:
            self.cluster.kill(NAMES[node - 1], Loss.LOST)
        await self.more_turns()
        assert self.led_from(rack) == 0
        assert all(len(partition.isr) == 2 and not rack & set(partition.isr) for partition in partitions(self))
        for node in rack:
            self.cluster.boot(NAMES[node - 1])
        await self.more_turns()
        self.is_open.clear()
        await self.until_whole()


def test_a_rack_loses_its_power() -> None:
    """OPS-08 (a zone fails), REP-12, KRF-12: first the rack of the active controller, then another. Every acknowledged record
    is read once, in order."""

    async def scene(loop: SimLoop) -> None:
        it = Racks(loop)
        await it.start()
        writing = it.cluster.client("client", it.write())
        await it.more_turns()
        assert all(len(rack & set(partition.replicas)) == 1 for partition in partitions(it) for rack in RACKS)
        first = next(rack for rack in RACKS if it.watch.cluster.machines["n1"].node.quorum.leader_id in rack)
        await it.lose(first)
        await it.lose(next(rack for rack in RACKS if it.led_from(rack)))
        it.is_over = True
        it.is_open.set()
        await writing
        await it.cluster.client("reader", it.read())
        assert it.watch.found == []

    run(1, scene)
