"""Single scenes of a simulated cluster, told step by step: what seeds once found."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping

import pytest

from ottla.client.admin import Admin
from ottla.client.cluster import Cluster, TopicPartition
from ottla.client.connection import Connection
from ottla.client.producer import Producer
from ottla.metadata.records import NO_LEADER
from ottla.server.peers import DOUBT_S, FAREWELL_S
from ottla.sim.cluster import PORT, SimCluster, Topology
from ottla.sim.cluster_checks import Watch
from ottla.sim.loop import SimLoop, run
from ottla.wire.messages.metadata import MetadataRequest
from ottla.wire.records import batches
from sim.cluster_play import NAMES, SETTINGS
from sim.many_seeds import quiet

__all__ = ["quiet"]

THREE = Topology.combined(NAMES)


class Scene:
    """Three machines that were formatted and never started, or those of another topology."""

    def __init__(
        self,
        loop: SimLoop,
        *,
        is_dynamic: bool = False,
        settings: Mapping[str, str] | None = None,
        topology: Topology = THREE,
    ) -> None:
        self.loop = loop
        self.cluster = SimCluster(loop)
        self.cluster.form(topology, {**SETTINGS, **(settings or {})}, is_dynamic=is_dynamic)
        self.watch = Watch(self.cluster)

    async def start(self) -> None:
        for name in self.cluster.machines:
            self.cluster.boot(name)
        await self.until_whole()

    async def until_whole(self) -> None:
        async with asyncio.timeout(30):
            while self.watch.not_whole() is not None:
                await asyncio.sleep(0.05)
                self.watch.look()

    def client(self) -> Cluster:
        worlds = self.cluster.worlds
        return Cluster(
            self.cluster.bootstrap, now_ms=lambda: worlds.now_ms("client"), rng=self.loop.chance("client", "client")
        )


async def producing(it: Scene, count: int) -> None:
    """A topic of one partition, and so many records in it."""
    cluster = it.client()
    await Admin(cluster).create_topic("t", partitions=1, replication_factor=3)
    producer = Producer(cluster)
    for number in range(count):
        await producer.send("t", value=b"%d" % number)
    cluster.close()


def test_failure_while_starting_ends_the_node() -> None:
    """Two that could elect a leader, and the disk of one fails as soon as it promises something. It must not wait any longer
    for the cluster: whoever supervises it would take it for one that is about to serve."""

    async def scene(loop: SimLoop) -> None:
        it = Scene(loop)
        machine = it.cluster.machines["n1"]
        machine.disk.failing_syncs = lambda path: "quorum-state" in path
        it.cluster.boot("n1")
        it.cluster.boot("n2")
        async with asyncio.timeout(10):
            while it.cluster.is_up("n1"):
                await asyncio.sleep(0.1)
        assert "could not sync" in str(machine.exit)

    run(1, scene)


def test_wiped_voter_gets_everything_back_and_votes_under_its_new_directory() -> None:
    """KRF-05: the old directory id is gone from the voters, the new one is there, and its replicas are in sync again."""

    async def scene(loop: SimLoop) -> None:
        it = Scene(loop, is_dynamic=True)
        await it.start()
        await it.cluster.client("client", producing(it, 5))
        before = voters(it, "n1")
        it.cluster.kill("n3")
        it.cluster.wipe("n3")
        it.cluster.boot("n3")
        await it.until_whole()
        after = voters(it, "n1")
        assert before[1] == after[1] and before[2] == after[2] and before[3] != after[3]
        node = it.cluster.machines["n3"].node
        assert node is not None and node.replicas.find("t", 0).log.end_offset == 5
        assert it.watch.found == []

    run(2, scene)


@pytest.mark.parametrize("seed", range(3))
def test_once_a_wiped_disk_is_noticed_all_others_may_be_killed(seed: int) -> None:
    """The leader loses its disk; as soon as the others have noticed they die, and it is not heard until they
    are back. What they have kept is all there is, and it must be enough: that is where the nemesis may go on."""

    async def scene(loop: SimLoop) -> None:
        it = Scene(loop)
        await it.start()
        await it.cluster.client("client", producing(it, 5))
        await it.until_whole()
        wiped = NAMES[leader_of(it) - 1]
        others = [name for name in NAMES if name != wiped]
        it.cluster.kill(wiped)
        it.cluster.wipe(wiped)
        async with asyncio.timeout(10):
            while leader_of(it) == NAMES.index(wiped) + 1:
                await asyncio.sleep(0.002)
        for name in others:
            it.cluster.kill(name)
        it.loop.network.part([wiped], others)
        for name in NAMES:
            it.cluster.boot(name)
        await asyncio.sleep(4)
        it.loop.network.heal_all()
        await it.until_whole()
        node = it.cluster.machines[wiped].node
        assert node is not None and node.replicas.find("t", 0).log.end_offset == 5
        assert it.watch.found == []

    run(seed, scene)


def voters(it: Scene, name: str) -> dict[int, bytes]:
    node = it.cluster.machines[name].node
    assert node is not None
    return {voter.id: voter.directory for voter in node.quorum.voters.voters}


def test_leader_that_is_cut_off_acknowledges_nothing() -> None:
    """REP-05: it may write, but nobody is told that it is done; and what it wrote gives way to what the others have."""

    async def scene(loop: SimLoop) -> None:
        it = Scene(loop)
        await it.start()
        await it.cluster.client("client", producing(it))
        await it.until_whole()
        assert it.watch.found == []

    async def producing(it: Scene) -> None:
        cluster = it.client()
        await Admin(cluster).create_topic("t", partitions=1, replication_factor=3)
        producer = Producer(cluster)
        await producer.send("t", value=b"before")
        await cluster.leader(TopicPartition("t", 0))
        leader = NAMES[leader_of(it) - 1]
        others = [name for name in NAMES if name != leader]
        it.loop.network.part([leader], others)
        began = it.loop.time()
        sent = await producer.send("t", value=b"meanwhile")
        assert leader_of(it) != NAMES.index(leader) + 1 and sent.offset == 1
        assert it.loop.time() - began > 1.0  # not before the others have put it out
        it.loop.network.heal_all()
        cluster.close()

    run(3, scene)


def leader_of(it: Scene) -> int:
    """As those see it who have seen most."""
    images = [machine.node.quorum.image for machine in it.cluster.machines.values() if machine.node is not None]
    newest = max(images, key=lambda image: image.offset)
    return next(topic for topic in newest.topics.values() if topic.name == "t").partitions[0].leader


def test_a_log_that_was_shortened_does_not_lead_while_another_is_whole() -> None:
    """The faults matrix: all have stopped cleanly, so two are eligible; the last records of one are taken away meanwhile. It
    led as soon as it was back, and the other cut off what it had."""

    async def scene(loop: SimLoop) -> None:
        it = Scene(loop)
        await it.start()
        await it.cluster.client("client", producing(it, 5))
        await it.until_whole()
        last = NAMES[leader_of(it) - 1]
        first, shortened = (name for name in NAMES if name != last)
        for name in (first, shortened, last):
            await stop(it, name)
        disk = it.cluster.machines[shortened].disk.outlive()
        path = "/data/t-0/00000000000000000000.log"
        _, _, (position, _), *_ = batches(disk.read(path))
        disk.open(path).truncate(position)
        it.cluster.machines[shortened].disk = disk
        for name in (first, shortened):
            it.cluster.boot(name)
        async with asyncio.timeout(10):
            while not it.cluster.machines[shortened].is_ready:
                await asyncio.sleep(0.02)
        assert leader_of(it) == NO_LEADER
        it.cluster.boot(last)
        await it.until_whole()
        node = it.cluster.machines[shortened].node
        assert node is not None and node.replicas.find("t", 0).log.end_offset == 5
        assert it.watch.found == []

    run(1, scene)


@pytest.mark.parametrize("seed", range(4))
def test_whoever_asks_at_once_after_a_kill_hears_of_the_new_leader(seed: int) -> None:
    """librdkafka does, and asks again a second later; and it takes another second if the old leader is not listed any more."""

    async def scene(loop: SimLoop) -> None:
        it = Scene(loop)
        await it.start()
        await it.cluster.client("client", producing(it, 1))
        await it.until_whole()
        dead = NAMES[leader_of(it) - 1]
        asked = next(name for name in NAMES if name != dead)
        await it.cluster.client("client", asking(it, dead, asked))

    run(seed, scene)


async def asking(it: Scene, dead: str, asked: str) -> None:
    connection = await Connection.open(asked, PORT)
    number, request = NAMES.index(dead) + 1, MetadataRequest(topics=[MetadataRequest.Topic(name="t")])
    it.cluster.kill(dead)
    await asyncio.sleep(0.01)
    told = await connection.request(request)
    assert told.topics[0].partitions[0].leader_id not in (number, NO_LEADER)
    assert number in [broker.node_id for broker in told.brokers]
    await asyncio.sleep(FAREWELL_S)
    told = await connection.request(request)
    assert number not in [broker.node_id for broker in told.brokers]
    connection.close()


@pytest.mark.parametrize("asks_after_s", [0.01, 1.0])
def test_whoever_asks_a_broker_that_alone_has_lost_the_leader_is_answered_all_the_same(asks_after_s: float) -> None:
    """The others still have it, so nobody else will lead: that it may be gone is thought for a moment after the loss."""

    async def scene(loop: SimLoop) -> None:
        it = Scene(loop)
        await it.start()
        await it.cluster.client("client", producing(it, 1))
        await it.until_whole()
        await it.cluster.client("client", asking_in_vain(it, asks_after_s))

    run(1, scene)


async def asking_in_vain(it: Scene, asks_after_s: float) -> None:
    number = leader_of(it)
    leader, asked = NAMES[number - 1], next(name for name in NAMES if name != NAMES[number - 1])
    connection = await Connection.open(asked, PORT)
    it.loop.network.part([leader], [asked])
    it.loop.network.reset(leader, asked)
    lost = it.loop.time()
    await asyncio.sleep(asks_after_s)
    for _ in range(2):
        began = it.loop.time()
        told = await connection.request(MetadataRequest(topics=[MetadataRequest.Topic(name="t")]))
        assert told.topics[0].partitions[0].leader_id == number
        answered = it.loop.time()
        assert answered >= lost + DOUBT_S
        assert answered - max(began, lost + DOUBT_S) < 0.1
    connection.close()


async def stop(it: Scene, name: str) -> None:
    it.cluster.machines[name].tell_to_stop()
    async with asyncio.timeout(10):
        while it.cluster.is_up(name):
            await asyncio.sleep(0.02)
