"""A short fixed story about groups whose first process is killed at a chosen disk call: commits, rebalances, a deletion.

Two consumers of each protocol join, read and commit, one after the other, so that there is a rebalance; the second one leaves
again. A consumer that is in no group commits, and its group is deleted. Everything is repeated until it is known to be done.
Then all that was acknowledged is looked for, before and after one more restart.
"""

from __future__ import annotations

import asyncio

from ottla.client.cluster import Cluster
from ottla.client.groups import GroupAdmin
from ottla.client.producer import Producer
from ottla.coordination.groups import Groups
from ottla.server.shard import Shard
from ottla.sim.disk import Loss
from ottla.sim.loop import SimLoop
from sim.group_play import GroupPlay
from sim.members import TOPIC, WHERES, Seat
from sim.stage import Calls, Story, perform
from sim.topics import NODE, PATIENCE_S

DELETED, KEPT = "deleted", "kept"


class GroupScript(GroupPlay):
    """With a loss, the power goes as well: then the node syncs before it acknowledges, and nothing may be missing."""

    def __init__(self, call: int, loss: Loss | None) -> None:
        super().__init__(f"groups/{call}/{loss}", 0)
        self.call, self.loss = call, loss
        self.calls = 0

    def begin(self, loop: SimLoop) -> None:
        super().begin(loop)
        self.is_durable = self.loss is not None
        chosen = {"log.flush.interval.messages": "1"} if self.is_durable else {}
        self.machine.settings = {**self.machine.settings, "log.flush.interval.messages": str(2**63 - 1), **chosen}
        self.groups = ["classic", "consumer"]
        self.seats = [Seat(self, f"{group}{number}", group, group, False) for group in self.groups for number in (0, 1)]

    async def run(self, loop: SimLoop) -> Story:
        self.begin(loop)
        self.cluster.boot(NODE)
        self.cluster.kill_at_call(NODE, self.call, self.loss)
        calls = Calls(self)
        keeper = loop.create_task(calls.keep_looking())
        await self.cluster.client("admin", self.tell_the_story())
        for restarts in range(2):
            await self.cluster.client("admin", self.look())
            if restarts == 0:
                self.cluster.kill(NODE)
        keeper.cancel()
        await asyncio.wait([keeper])
        self.calls = calls.count
        await self.empty_the_seats()
        return self.told()

    async def tell_the_story(self) -> None:
        await self.make_topic()
        with self.client("admin") as cluster:
            await self.produce(cluster)
            for seat in self.seats[::2]:
                seat.sit_down()
            for number in range(3):
                for group in (KEPT, DELETED):
                    await self.commit_until_done(cluster, group, number)
            for seat in self.seats[1::2]:
                seat.sit_down()
            await self.settle()
            await self.delete(cluster, DELETED)
            await self.produce(cluster)
            for seat in self.seats[1::2]:
                seat.leave()
            await self.commit_until_done(cluster, KEPT, 3)
            await asyncio.sleep(1.0)
            await self.settle()

    async def commit_until_done(self, cluster: Cluster, group: str, number: int) -> None:
        await cluster.retrying(lambda: self.commit_alone(cluster, group, WHERES[0], number))

    async def produce(self, cluster: Cluster) -> None:
        producer = Producer(cluster, delivery_s=PATIENCE_S)
        for where in WHERES:
            await producer.send(TOPIC, value=b"record", partition=where.partition)
        await producer.flush()

    async def look(self) -> None:
        """All that was acknowledged is there; every partition of the offsets can be loaded; what was deleted stays so."""
        with self.client("look") as cluster:
            for group in (*self.groups, KEPT):
                question = self.ledger.asking(group, WHERES)
                found = await GroupAdmin(cluster).offsets(group)
                self.ledger.told(group, {where: what.offset for where, what in found.items()}, question)
            if found := await GroupAdmin(cluster).offsets(DELETED):
                self.ledger.report("undead", DELETED, f"it was deleted, and has committed {found}")
        assert self.machine.node is not None
        for shard in self.machine.node.groups.all():
            await self.loaded(shard)

    async def loaded(self, shard: Shard[Groups]) -> None:
        for _ in range(500):
            if shard.machine is not None or not self.machine.is_ready:
                return
            await asyncio.sleep(0.01)
        self.ledger.report("not-loaded", shard.partition.log.name, "its groups cannot be loaded")


def cut_at(call: int, loss: Loss | None) -> tuple[Story, int]:
    """The script with a cut at one call, and how many disk calls its first process made."""
    script = GroupScript(call, loss)
    return perform(script), script.calls
