"""The metadata of a node after power cuts at unlucky moments: what was answered is there."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Iterator, Mapping

import pytest

from ottla.client.admin import Admin
from ottla.client.cluster import Cluster
from ottla.server.node import Node
from ottla.sim.cluster import SimCluster
from ottla.sim.disk import Loss
from ottla.sim.loop import SimLoop, run

METADATA = "/data/__cluster_metadata-0"


@pytest.fixture(autouse=True)
def quiet() -> Iterator[None]:
    logging.disable(logging.CRITICAL)
    yield
    logging.disable(logging.NOTSET)


class Scene:
    def __init__(self, loop: SimLoop, settings: Mapping[str, str]) -> None:
        self.loop = loop
        self.cluster = SimCluster(loop)
        self.machine = self.cluster.add("n1", settings)

    async def boot(self) -> Node:
        self.cluster.boot("n1")
        while not self.machine.is_ready:
            assert self.cluster.is_up("n1"), self.machine.exit
            await asyncio.sleep(0.01)
        assert self.machine.node is not None
        return self.machine.node

    async def create(self, name: str) -> None:
        async def creating() -> None:
            cluster = Cluster("n1:9092", client_id="client", rng=self.loop.chance("client", name))
            await Admin(cluster).create_topic(name, partitions=1)
            cluster.close()

        await self.cluster.client("client", creating())


def topics(node: Node) -> list[str]:
    return sorted(topic.name for topic in node.quorum.image.topics.values())


def test_a_metadata_directory_of_its_own_survives_the_first_power_cut() -> None:
    """A new directory is there for good only when its parent was synced, and its parent's parent."""

    async def scene(loop: SimLoop) -> None:
        it = Scene(loop, {"metadata.log.dir": "/fast/metadata"})
        await it.boot()
        await it.create("t")
        it.cluster.kill("n1", Loss.LOST)
        assert topics(await it.boot()) == ["t"]

    run(1, scene)


def test_a_hole_below_the_oldest_snapshot_costs_nothing() -> None:
    """Segments before the snapshot were being removed when the power went, and one of the names came back."""

    async def scene(loop: SimLoop) -> None:
        it = Scene(loop, {"metadata.max.retention.ms": "1"})
        node = await it.boot()
        for number in range(3):
            await it.create(f"t{number}")
            node.quorum.store.log.roll()
        await asyncio.sleep(1)
        await node.quorum.store.write_snapshot(node.quorum.image, node.quorum.voters)
        await it.create("after")
        it.cluster.kill("n1")
        disk = it.machine.disk.outlive()
        aside = [name for name in disk.names(METADATA) if name.endswith(".log.deleted")]
        assert len(aside) >= 3
        disk.rename(f"{METADATA}/{aside[0]}", f"{METADATA}/{aside[0].removesuffix('.deleted')}")
        it.machine.disk = disk
        assert topics(await it.boot()) == ["after", "t0", "t1", "t2"]

    run(2, scene)


def test_damage_below_a_snapshot_costs_nothing() -> None:
    """A flipped bit in what the snapshot makes up for must not end the log before what came after it."""

    async def scene(loop: SimLoop) -> None:
        it = Scene(loop, {})
        node = await it.boot()
        await it.create("before")
        await node.quorum.store.write_snapshot(node.quorum.image, node.quorum.voters)
        await it.create("after")
        it.cluster.kill("n1")
        disk = it.machine.disk.outlive()
        disk.rot(f"{METADATA}/00000000000000000000.log", 8 * 300)
        it.machine.disk = disk
        assert topics(await it.boot()) == ["after", "before"]

    run(3, scene)
