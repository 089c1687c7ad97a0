"""Two hundred members of one group, one of whom comes or goes every tenth of a second: soon after the last one did, all is at
rest, and no partition was ever used by two."""

from __future__ import annotations

import asyncio

import pytest

from ottla.client.admin import Admin
from ottla.client.assignors import RANGE
from ottla.client.classic_member import ClassicMember
from ottla.client.cluster import Cluster, TopicPartition
from ottla.client.consumer_member import ConsumerMember
from ottla.client.coordinator import Coordinator
from ottla.client.membership import Manners, Partitions
from ottla.sim.cluster import SimCluster
from ottla.sim.group_checks import Ledger
from ottla.sim.loop import SimLoop, run

NODE, TOPIC, GROUP = "n1", "shared", "crowd"
MEMBERS, PARTITIONS = 200, 250
CHURN_S, PACE_S, REST_S = 8.0, 0.1, 10.0
SESSION_S = 6.0
SETTINGS = {
    "offsets.topic.num.partitions": "1",
    "group.initial.rebalance.delay.ms": "0",
    "group.consumer.heartbeat.interval.ms": "1000",
    "group.consumer.min.heartbeat.interval.ms": "1000",
    "group.consumer.session.timeout.ms": "6000",
    "group.consumer.min.session.timeout.ms": "6000",
}
MANNERS = Manners(int(SESSION_S * 1000), 20_000, 1000, assignors=(RANGE,))


class Holder:
    """Owns partitions and reads nothing: what is asked here is who may."""

    def __init__(self, crowd: Crowd, name: str, cluster: Cluster, protocol: str) -> None:
        self.crowd, self.name, self.is_leaving = crowd, name, False
        self.coordinator = Coordinator(cluster, GROUP)
        kind = {"classic": HeardClassic, "consumer": HeardConsumer}[protocol]
        self.member = kind(self.coordinator, self, MANNERS)

    async def topics(self) -> dict[str, int]:
        await self.coordinator.cluster.metadata([TOPIC])
        return {TOPIC: PARTITIONS}

    async def give_up(self, partitions: Partitions, *, lost: bool) -> None:
        self.crowd.ledger.gave_up(GROUP, self.name, partitions)

    async def take_on(self, partitions: Partitions) -> None:
        loop = asyncio.get_running_loop()
        self.crowd.ledger.took(GROUP, self.name, self.member.committer.generation, partitions, loop.time())

    async def live(self) -> None:
        while not self.is_leaving:
            await self.member.settle()
            await asyncio.sleep(0.2)
        await self.member.leave()
        self.coordinator.close()


class HeardClassic(ClassicMember):
    owner: Holder

    async def _beat_once(self) -> None:
        sent_at = asyncio.get_running_loop().time()
        await super()._beat_once()
        self.owner.crowd.ledger.heard(self.owner.name, sent_at)

    async def _take(self, assigned: Partitions) -> None:
        self.owner.crowd.ledger.heard(self.owner.name, asyncio.get_running_loop().time())
        await super()._take(assigned)


class HeardConsumer(ConsumerMember):
    owner: Holder

    async def _beat_once(self) -> None:
        sent_at = asyncio.get_running_loop().time()
        await super()._beat_once()
        self.owner.crowd.ledger.heard(self.owner.name, sent_at)


class Crowd:
    def __init__(self, loop: SimLoop, protocol: str) -> None:
        self.loop, self.protocol = loop, protocol
        self.ledger = Ledger(SESSION_S)
        self.cluster = SimCluster(loop)
        self.machine = self.cluster.add(NODE, SETTINGS)
        self.present: list[Holder] = []
        self.tasks: list[asyncio.Task[None]] = []

    async def run(self) -> None:
        self.cluster.boot(NODE)
        while not self.machine.is_ready:
            await asyncio.sleep(0.01)
        await self.cluster.client("members", self.play())

    async def play(self) -> None:
        """All members have one machine, and one connection for what is not about groups."""
        rng = self.loop.chance("churn")
        async with Cluster(self.cluster.bootstrap, rng=self.loop.chance("client")) as cluster:
            await Admin(cluster).create_topic(TOPIC, partitions=PARTITIONS)
            for number in range(MEMBERS):
                self.come(cluster, f"m{number}")
            ends = self.loop.time() + CHURN_S
            while self.loop.time() < ends:
                await asyncio.sleep(PACE_S)
                if rng.random() < 0.5:
                    self.present.pop(rng.randrange(len(self.present))).is_leaving = True
                else:
                    self.come(cluster, f"late{self.loop.time():.3f}")
            await self.rest()
            for holder in self.present:
                holder.is_leaving = True
            await asyncio.gather(*self.tasks)

    def come(self, cluster: Cluster, name: str) -> None:
        self.present.append(Holder(self, name, cluster, self.protocol))
        self.tasks.append(self.loop.create_task(self.present[-1].live()))

    async def rest(self) -> None:
        deadline = self.loop.time() + REST_S
        while not self.is_divided():
            assert self.loop.time() < deadline, "partitions without an owner, or with two"
            await asyncio.sleep(0.1)

    def is_divided(self) -> bool:
        """Each partition has one owner, who is still here, and nobody has more than its share."""
        here = {holder.name for holder in self.present}
        owners = [self.ledger.owners(GROUP, TopicPartition(TOPIC, index)) for index in range(PARTITIONS)]
        return all(len(each) == 1 and each[0] in here for each in owners)


@pytest.mark.timeout(300)
@pytest.mark.parametrize("protocol", ["classic", "consumer"])
def test_two_hundred_members_come_to_rest_after_churn(protocol: str) -> None:
    """GRP-03, OPS-05 (cascading rebalance): stable within ten seconds, and no partition owned by two in one generation or
    epoch."""

    async def main(loop: SimLoop) -> Crowd:
        crowd = Crowd(loop, protocol)
        await crowd.run()
        return crowd

    crowd = run(7, main, limit_s=200)
    assert crowd.ledger.found == []
    assert crowd.ledger.taken > 2 * PARTITIONS
