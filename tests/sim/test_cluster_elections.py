"""Elections that nobody asks for: the controller gives leaderships back, and lets somebody lead rather than nobody, from time
to time. Hours of the cluster's own clock cost nothing here."""

from __future__ import annotations

import asyncio
from collections.abc import Callable

import pytest

from ottla.client.admin import Admin
from ottla.client.cluster import Cluster
from ottla.metadata.image import Partition
from ottla.metadata.records import NO_LEADER
from ottla.sim.cluster import Topology
from ottla.sim.loop import SimLoop, run
from ottla.sim.voter_checks import WatchOfVoters
from sim.cluster_play import NAMES
from sim.many_seeds import quiet
from sim.test_cluster_scenes import Scene

__all__ = ["quiet"]

# Somebody decides also when all brokers are gone.
APART = Topology(NAMES, ("c1",), ("c1",))
# Much longer than anything else that happens by itself, and shorter than what is set where nothing is.
EVERY_S = 40
RETURN = {"leader.imbalance.check.interval.seconds": str(EVERY_S)}
UNCLEAN = {"unclean.leader.election.interval.ms": str(1000 * EVERY_S)}


def partitions(it: Scene) -> list[Partition]:
    """Those of the topic t, as the controller sees them."""
    images = [machine.node.quorum.image for machine in it.cluster.machines.values() if machine.node is not None]
    newest = max(images, key=lambda image: image.offset)
    return [*next(topic for topic in newest.topics.values() if topic.name == "t").partitions.values()]


async def until(is_so: Callable[[], bool], seconds: float) -> float:
    """How long it took."""
    loop = asyncio.get_running_loop()
    began = loop.time()
    async with asyncio.timeout(seconds):
        while not is_so():
            await asyncio.sleep(0.05)
    return loop.time() - began


def are_led_as_placed(it: Scene) -> bool:
    return all(partition.leader == partition.replicas[0] for partition in partitions(it))


async def make(cluster: Cluster, count: int, copies: int) -> None:
    await Admin(cluster).create_topic("t", partitions=count, replication_factor=copies)
    cluster.close()


async def lose_leaderships(it: Scene) -> None:
    """Node 2 is killed, and in sync again when it is back: others lead in its place."""
    await it.cluster.client("client", make(it.client(), 6, 3))
    await it.until_whole()
    assert are_led_as_placed(it)
    it.cluster.kill("n2")
    await until(lambda: all(2 not in partition.isr for partition in partitions(it)), 10)
    it.cluster.boot("n2")
    await it.until_whole()
    assert not are_led_as_placed(it)


def test_leaderships_return_by_themselves() -> None:
    """REP-15 (auto.leader.rebalance.enable): when it is time, and not as soon as the broker is back."""

    async def scene(loop: SimLoop) -> None:
        it = Scene(loop, settings=RETURN)
        await it.start()
        await lose_leaderships(it)
        assert await until(lambda: are_led_as_placed(it), 2 * EVERY_S) > EVERY_S / 4
        assert it.watch.found == []

    run(1, scene)


def test_leaderships_stay_where_nobody_wants_them_back() -> None:
    """REP-15 (auto.leader.rebalance.enable=false)."""

    async def scene(loop: SimLoop) -> None:
        it = Scene(loop, settings={**RETURN, "auto.leader.rebalance.enable": "false"})
        await it.start()
        await lose_leaderships(it)
        with pytest.raises(TimeoutError):
            await until(lambda: are_led_as_placed(it), 3 * EVERY_S)

    run(1, scene)


def test_a_topic_that_nobody_leads_gets_an_unclean_leader_once_it_may() -> None:
    """REP-13 (unclean.leader.election.interval.ms): who is not in sync is back, and may not lead. Then the topic is
    allowed it, and no broker comes or goes any more: it is the controller that looks again."""

    async def scene(loop: SimLoop) -> None:
        it = Scene(loop, settings={**UNCLEAN, "min.insync.replicas": "1"}, topology=APART, is_dynamic=True)
        it.watch = WatchOfVoters(it.cluster)
        await it.start()
        await it.cluster.client("client", make(it.client(), 1, 2))
        await it.until_whole()
        last = partitions(it)[0].leader
        behind = next(replica for replica in partitions(it)[0].replicas if replica != last)
        it.cluster.kill(NAMES[behind - 1])
        await until(lambda: partitions(it)[0].isr == (last,), 10)
        it.cluster.kill(NAMES[last - 1])
        await until(lambda: partitions(it)[0].leader == NO_LEADER, 10)
        it.cluster.boot(NAMES[behind - 1])
        with pytest.raises(TimeoutError):
            await until(lambda: partitions(it)[0].leader == behind, 2 * EVERY_S)
        await it.cluster.client("client", allow(it.client()))
        await until(lambda: partitions(it)[0].leader == behind, 2 * EVERY_S)

    async def allow(cluster: Cluster) -> None:
        await Admin(cluster).alter_configs("t", put={"unclean.leader.election.enable": "true"})
        cluster.close()

    run(1, scene)
