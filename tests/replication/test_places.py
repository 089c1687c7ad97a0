"""A broker with several directories: where its logs are is written down, and a log whose directory is missing is missed."""

from __future__ import annotations

import asyncio
import errno
import logging
from collections.abc import Callable, Iterator, Mapping

import pytest

from ottla.client.admin import Admin
from ottla.client.cluster import Cluster
from ottla.client.producer import Producer
from ottla.metadata.image import DIRECTORY_UNASSIGNED, Image
from ottla.metadata.image import Partition as Assignment
from ottla.metadata.records import PartitionChangeRecord, PartitionRecord, unframe
from ottla.server.node import Node
from ottla.sim.cluster import SimCluster
from ottla.sim.disk import UNLIMITED, Loss, SimDisk
from ottla.sim.loop import SimLoop, run
from ottla.wire.errors import Error
from ottla.wire.records import batches, iterate

BOTH, ONE = "/one,/two", "/one"
PARTITIONS = 4


@pytest.fixture(autouse=True)
def quiet() -> Iterator[None]:
    logging.disable(logging.CRITICAL)
    yield
    logging.disable(logging.NOTSET)


class Broker:
    """A node with two directories, and a topic in them."""

    def __init__(self, loop: SimLoop) -> None:
        self.loop = loop
        self.cluster = SimCluster(loop)
        self.machine = self.cluster.add("n1", {"log.dirs": BOTH})

    async def boot(self, directories: str = BOTH) -> Node:
        self.machine.settings = {**self.machine.settings, "log.dirs": directories}
        self.cluster.boot("n1")
        while not self.machine.is_ready:
            assert self.cluster.is_up("n1"), self.machine.exit
            await asyncio.sleep(0.01)
        assert self.machine.node is not None
        await asyncio.sleep(0.1)
        return self.machine.node

    async def fill(self) -> None:
        clock = self.cluster.worlds
        cluster = Cluster(
            "n1:9092", client_id="client", now_ms=lambda: clock.now_ms("client"), rng=self.loop.chance("client")
        )
        await Admin(cluster).create_topic("t", partitions=PARTITIONS, configs={"flush.messages": "1"})
        producer = Producer(cluster)
        for index in range(PARTITIONS):
            await producer.send("t", value=b"%d" % index, partition=index)
        await producer.flush()
        cluster.close()


def assigned(image: Image) -> list[bytes]:
    topic = image.topic("t")
    assert topic is not None
    return [topic.partitions[index].directory_of(1) for index in range(PARTITIONS)]


def real(node: Node) -> list[bytes]:
    return [node.directories.id_of(node.replicas.find("t", index).log) for index in range(PARTITIONS)]


def test_the_metadata_learns_where_logs_were_put() -> None:
    """KIP-858. As Apache Kafka 4.3.1 writes it: first a partition without a place, then a change that has nothing else."""

    async def scene(loop: SimLoop) -> None:
        broker = Broker(loop)
        node = await broker.boot()
        await broker.cluster.client("client", broker.fill())
        assert assigned(node.quorum.image) == real(node)
        assert set(real(node)) == set(node.directories.ids)
        data = node.quorum.store.log.active.open().read_at(0, 1 << 20)
        held = [
            unframe(record.value or b"")
            for at, head in batches(data)
            if not head.is_control
            for record in iterate(memoryview(data)[at : at + head.size])
        ]
        made = [record for record in held if isinstance(record, PartitionRecord)]
        assert [record.directories for record in made] == [[DIRECTORY_UNASSIGNED]] * PARTITIONS
        changed = [record for record in held if isinstance(record, PartitionChangeRecord) and record.directories]
        assert {record.partition_id: record.directories for record in changed} == {
            index: [place] for index, place in enumerate(real(node))
        }
        assert all(record.leader == -2 and record.isr is None for record in changed)
        end = node.quorum.store.end_offset
        await asyncio.sleep(5)
        assert node.quorum.store.end_offset == end  # told once

    run(1, scene)


@pytest.mark.parametrize("loss", [None, Loss.LOST])
def test_a_log_whose_directory_is_missing_is_not_begun_anew(loss: Loss | None) -> None:
    """A disk that was not mounted must not cost the records on it, nor give their offsets to others."""

    async def scene(loop: SimLoop) -> None:
        broker = Broker(loop)
        node = await broker.boot()
        await broker.cluster.client("client", broker.fill())
        places, first = real(node), node.directories.ids[0]
        broker.cluster.kill("n1", loss)
        node = await broker.boot(ONE)
        for index, place in enumerate(places):
            if place == first:
                assert node.replicas.find("t", index).log.end_offset == 1
            else:
                assert node.replicas.why_missing("t", index).error is Error.KAFKA_STORAGE_ERROR
                assert not broker.machine.disk.exists(f"/one/t-{index}")
        assert assigned(node.quorum.image) == places
        await asyncio.sleep(3)  # upkeep tries again to open them, in vain
        broker.cluster.kill("n1", loss)
        node = await broker.boot(BOTH)
        assert real(node) == places
        assert [node.replicas.find("t", index).log.end_offset for index in range(PARTITIONS)] == [1] * PARTITIONS
        assert all(node.replicas.find("t", index).leader == 1 for index in range(PARTITIONS))

    run(2, scene)


def test_a_log_that_was_moved_by_hand_is_found_and_told() -> None:
    """The directory it lies in counts, not the one that was written down."""

    async def scene(loop: SimLoop) -> None:
        broker = Broker(loop)
        node = await broker.boot(ONE)
        await broker.cluster.client("client", broker.fill())
        broker.cluster.kill("n1")
        disk = broker.machine.disk
        disk._dead = False
        source, _ = disk._parent("/one/x")
        disk.make_directory("/two")
        target, _ = disk._parent("/two/x")
        target.entries["t-2"] = source.entries.pop("t-2")
        node = await broker.boot(BOTH)
        assert real(node)[2] == node.directories.ids[1]
        assert assigned(node.quorum.image) == real(node)
        assert node.replicas.find("t", 2).log.end_offset == 1

    run(3, scene)


def test_a_directory_that_cannot_be_opened_is_left_out() -> None:
    """As in Apache Kafka, a node starts with the directories that are in order. The only one must be in order."""

    def refuse(path: str) -> Callable[[], None]:
        raise OSError(errno.EIO, "the disk is broken", path)

    async def scene(loop: SimLoop) -> None:
        broker = Broker(loop)
        node = await broker.boot()
        await broker.cluster.client("client", broker.fill())
        places, first = real(node), node.directories.ids[0]
        broker.cluster.kill("n1")
        lock = SimDisk.lock
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(SimDisk, "lock", lambda disk, path: refuse(path) if "/two/" in path else lock(disk, path))
            node = await broker.boot()
            assert list(node.directories.unopened) == ["/two"]
            for index, place in enumerate(places):
                if place == first:
                    assert node.replicas.find("t", index).log.end_offset == 1
                else:
                    assert node.replicas.why_missing("t", index).error is Error.KAFKA_STORAGE_ERROR
            broker.cluster.kill("n1")
        assert real(await broker.boot()) == places

    run(7, scene)


async def pair(loop: SimLoop) -> SimCluster:
    """The only voter, which is a broker too, and another broker; both have two directories, and copies of one topic."""
    cluster, names = SimCluster(loop), ("n1", "n2")
    shared = {"log.dirs": "/data,/two", "controller.quorum.voters": "1@n1:9093"}
    cluster.form(names, {"offsets.topic.num.partitions": "1", **shared})
    only_broker = {"process.roles": "broker", "listeners": "PLAINTEXT://n2:9092"}
    cluster.machines["n2"].settings = {**cluster.machines["n2"].settings, **only_broker}
    for name in names:
        cluster.boot(name)
    await until(lambda: all(cluster.machines[name].is_ready for name in names))
    await cluster.client("client", make_topic(cluster, loop))
    await until(lambda: all(len(node_of(cluster, name).replicas.all()) == PARTITIONS for name in names))
    return cluster


def node_of(cluster: SimCluster, name: str) -> Node:
    node = cluster.machines[name].node
    assert node is not None
    return node


def held_in(node: Node, path: str) -> list[int]:
    return [p.index for p in node.replicas.all() if node.directories.home_of(p.log).path == path]


@pytest.mark.parametrize("name", ["n1", "n2"])
def test_a_failed_directory_is_left_to_another_broker(name: str) -> None:
    """KIP-858: told by a heartbeat, or written down by the only voter, which sends none."""

    async def scene(loop: SimLoop) -> None:
        cluster = await pair(loop)
        node, me = node_of(cluster, name), int(name[1])
        hurt = held_in(node, "/two")
        assert 0 < len(hurt) < PARTITIONS
        node.directories.suspect("/two", OSError(errno.EIO, "the disk is broken"))

        def moved() -> bool:
            topic = node_of(cluster, "n1").quorum.image.topic("t")
            assert topic is not None
            parts = topic.partitions.items()
            return all((me in part.isr) == (index not in hurt) for index, part in parts) and all(
                part.leader != me for index, part in parts if index in hurt
            )

        await until(moved)
        assert len(node_of(cluster, "n1").quorum.image.brokers[me].directories) == 1
        assert all(node.replicas.why_missing("t", index).error is Error.KAFKA_STORAGE_ERROR for index in hurt)
        await asyncio.sleep(60)
        assert cluster.is_up(name), "the controller knows it, so it need not end"

    run(8, scene)


def test_a_broker_that_can_tell_nobody_of_its_failed_directory_ends() -> None:
    """`log.dir.failure.timeout.ms`: others go on believing that it leads what it cannot serve."""

    async def scene(loop: SimLoop) -> None:
        cluster = await pair(loop)
        loop.network.part(["n1"], ["n2"])
        node_of(cluster, "n2").directories.suspect("/two", OSError(errno.EIO, "the disk is broken"))
        await asyncio.sleep(20)
        assert cluster.is_up("n2")
        await asyncio.sleep(20)
        assert not cluster.is_up("n2")
        assert "no controller could be told that /two has failed" in str(cluster.machines["n2"].exit)

    run(9, scene)


@pytest.mark.parametrize("name", ["n1", "n2"])
def test_a_node_whose_metadata_directory_fails_ends(name: str) -> None:
    async def scene(loop: SimLoop) -> None:
        cluster = await pair(loop)
        node_of(cluster, name).directories.suspect("/data", OSError(errno.EIO, "the disk is broken"))
        await until(lambda: not cluster.is_up(name))
        assert "the directory of the metadata has failed" in str(cluster.machines[name].exit)

    run(10, scene)


def test_an_eligible_replica_whose_directory_is_missing_is_not_begun_anew() -> None:
    """KIP-966: who is eligible leads when the last one in sync dies. It led with the beginning of a copy, in place of the log
    on the missing disk, and the other cut off what both had acknowledged."""

    async def scene(loop: SimLoop) -> None:
        cluster = await pair_and_controller(loop, {"min.insync.replicas": "2"})
        hurt = held_in(node_of(cluster, "n2"), "/two")
        await cluster.client("client", fill(cluster, loop))
        await stop(cluster, "n2")
        put_directories(cluster, "n2", "/data")
        loop.network.part(["n1"], ["n2"])
        cluster.boot("n2")
        await until(lambda: cluster.machines["n2"].is_ready)
        await asyncio.sleep(3)
        cluster.kill("n1")
        await asyncio.sleep(15)
        assert hurt and all((2 in part.isr) == (index not in hurt) for index, part in parts_of(cluster, "n3").items())
        loop.network.heal_all()
        cluster.boot("n1")
        await until(lambda: cluster.machines["n1"].is_ready)
        await stop(cluster, "n2")
        put_directories(cluster, "n2", "/data,/two")
        cluster.boot("n2")
        await until(lambda: all(set(part.isr) == {1, 2} for part in parts_of(cluster, "n3").values()))
        for name in ("n1", "n2"):
            assert [node_of(cluster, name).replicas.find("t", index).log.end_offset for index in range(4)] == [1] * 4

    run(12, scene)


def test_a_controller_whose_disk_was_full_takes_topics_again() -> None:
    """It is no broker, and those step back one after the other when their disks are full: it looked for its place among them,
    and never again for room. Until it was started anew it let nobody make a topic."""

    async def scene(loop: SimLoop) -> None:
        cluster = await pair_and_controller(loop, {})
        node, disk = node_of(cluster, "n3"), cluster.machines["n3"].disk
        disk.capacity = disk.used + 100
        await cluster.client("client", make_topic(cluster, loop, "second"))
        await asyncio.sleep(3)
        assert node.directories.is_full
        disk.capacity = UNLIMITED
        await asyncio.sleep(3)
        assert not node.directories.is_full
        await cluster.client("client", make_topic(cluster, loop, "third"))

    run(15, scene)


def test_a_log_that_does_not_say_whose_it_is_is_not_begun_anew() -> None:
    """The disk lies: the topic of that name got an empty log, and gave out its offsets a second time."""

    async def scene(loop: SimLoop) -> None:
        broker = Broker(loop)
        node = await broker.boot(ONE)
        await broker.cluster.client("client", broker.fill())
        await stop(broker.cluster, "n1")
        said = spoil_identity(broker.cluster, "n1", "/one/t-2")
        for _ in range(2):
            node = await broker.boot(ONE)
            assert node.replicas.why_missing("t", 2).error is Error.KAFKA_STORAGE_ERROR
            assert [node.replicas.find("t", index).log.end_offset for index in (0, 1, 3)] == [1] * 3
            await asyncio.sleep(3)  # upkeep tries again to open it, in vain
            await stop(broker.cluster, "n1")
        disk = broker.machine.disk = broker.machine.disk.outlive()
        disk.replace("/one/t-2/partition.metadata", said)
        node = await broker.boot(ONE)
        assert [node.replicas.find("t", index).log.end_offset for index in range(PARTITIONS)] == [1] * PARTITIONS

    run(13, scene)


def test_who_cannot_say_whose_a_log_is_does_not_lead_by_its_clean_stop() -> None:
    """All have stopped cleanly, and the last in sync has no log to lead with any more: the other cut off what it had."""

    async def scene(loop: SimLoop) -> None:
        cluster = await pair_and_controller(loop, {"min.insync.replicas": "2"})
        await cluster.client("client", fill(cluster, loop))
        for name in ("n1", "n2"):
            await stop(cluster, name)
        hurt = 0
        disk = cluster.machines["n2"].disk
        path = next(path for path in ("/data", "/two") if f"t-{hurt}" in disk.peek_at_names(path))
        spoil_identity(cluster, "n2", f"{path}/t-{hurt}")
        cluster.boot("n2")
        await until(lambda: cluster.machines["n2"].is_ready)
        await asyncio.sleep(3)
        cluster.boot("n1")
        await until(lambda: all(set(part.isr) == {1, 2} for part in parts_of(cluster, "n3").values()))
        for name in ("n1", "n2"):
            assert [node_of(cluster, name).replicas.find("t", index).log.end_offset for index in range(4)] == [1] * 4
        assert [name for name in disk.peek_at_names(path) if name.endswith("-stray")]

    run(14, scene)


def spoil_identity(cluster: SimCluster, name: str, path: str) -> bytes:
    """What a stopped node's partition.metadata said."""
    disk = cluster.machines[name].disk = cluster.machines[name].disk.outlive()
    said = disk.read(f"{path}/partition.metadata")
    disk.replace(f"{path}/partition.metadata", said.replace(b"version: 0", b"version: 8"))
    return said


async def pair_and_controller(loop: SimLoop, settings: dict[str, str]) -> SimCluster:
    """Two brokers with two directories each and copies of one topic, and somebody who decides."""
    cluster, names = SimCluster(loop), ("n1", "n2", "n3")
    cluster.form(names, {"offsets.topic.num.partitions": "1", "controller.quorum.voters": "3@n3:9093", **settings})
    for name in names:
        role, listener = (
            ("broker", f"PLAINTEXT://{name}:9092") if name < "n3" else ("controller", "CONTROLLER://n3:9093")
        )
        own = {"process.roles": role, "listeners": listener}
        cluster.machines[name].settings = {**cluster.machines[name].settings, **own}
        put_directories(cluster, name, "/data,/two")
    for name in reversed(names):
        cluster.boot(name)
    await until(lambda: all(cluster.machines[name].is_ready for name in names))
    await cluster.client("client", make_topic(cluster, loop))
    await until(lambda: all(len(node_of(cluster, name).replicas.all()) == PARTITIONS for name in ("n1", "n2")))
    return cluster


def put_directories(cluster: SimCluster, name: str, paths: str) -> None:
    machine = cluster.machines[name]
    machine.settings = {**machine.settings, "log.dirs": paths}


def parts_of(cluster: SimCluster, name: str) -> Mapping[int, Assignment]:
    topic = node_of(cluster, name).quorum.image.topic("t")
    assert topic is not None
    return topic.partitions


async def stop(cluster: SimCluster, name: str) -> None:
    cluster.machines[name].tell_to_stop()
    await until(lambda: not cluster.is_up(name))


async def fill(cluster: SimCluster, loop: SimLoop) -> None:
    client = Cluster("n1:9092", now_ms=lambda: cluster.worlds.now_ms("client"), rng=loop.chance("client"))
    producer = Producer(client)
    for index in range(PARTITIONS):
        await producer.send("t", value=b"%d" % index, partition=index)
    await producer.flush()
    client.close()


async def until(is_so: Callable[[], bool]) -> None:
    async with asyncio.timeout(30):
        while not is_so():
            await asyncio.sleep(0.05)


async def make_topic(cluster: SimCluster, loop: SimLoop, name: str = "t") -> None:
    client = Cluster("n1:9092", now_ms=lambda: cluster.worlds.now_ms("client"), rng=loop.chance("client"))
    await Admin(client).create_topic(name, partitions=PARTITIONS, replication_factor=2)
    client.close()


def test_places_are_told_until_the_controller_knows_them() -> None:
    """A log that is moved while no controller is reached: its place is known when there is one again."""

    async def scene(loop: SimLoop) -> None:
        cluster = await pair(loop)
        node, decides = node_of(cluster, "n2"), node_of(cluster, "n1")
        loop.network.part(["n1"], ["n2"])
        moved = node.replicas.find("t", held_in(node, "/data")[0])
        await node.replicas.moves.move(moved, "/two")
        await asyncio.sleep(120)
        loop.network.heal_all()

        def known() -> bool:
            topic = decides.quorum.image.topic("t")
            return topic is not None and topic.partitions[moved.index].directory_of(2) == node.directories.ids[1]

        await until(known)

    run(11, scene)
