"""What holds as soon as a node has started, and in which order its start reaches the disk."""

from __future__ import annotations

import logging
import random
import re
from pathlib import Path

import pytest

from desk import Governed, on_loop
from ottla.config import BrokerConfig, single_node_defaults
from ottla.log.directories import Directories
from ottla.metadata import controller
from ottla.metadata.image import Delta, Image
from ottla.sim.disk import Loss, SimDisk
from ottla.wire.errors import Error
from ottla.world import World
from served import batch, serving, values

LATEST, EARLIEST = -1, -2


class Started:
    """The metadata of a node on a simulated disk, and every picture it showed."""

    def __init__(self, disk: SimDisk, seed: int = 7) -> None:
        config = BrokerConfig({**single_node_defaults(), "log.dirs": "/data"})
        world = World(disk=disk, random=random.Random(seed))
        self.directories = Directories(disk, config.log_dirs, 1, world.now_ms, world.random)
        self.governed = Governed(config, world, self.directories, lambda error: None)
        self.quorum = self.governed.quorum
        self.quorum.listen(self._follow)
        self.pictures: list[Image] = []

    async def _follow(self, old: Image, new: Image, delta: Delta) -> None:
        self.pictures.append(new)

    async def start(self) -> None:
        self.directories.open()
        await self.governed.start({})


@on_loop
async def test_the_promise_of_an_epoch_is_on_disk_before_its_first_record() -> None:
    """TRAP-34: temporary file, sync, rename, sync of the directory; and only then the log speaks of that epoch."""
    disk = SimDisk()
    for epoch in (1, 2):
        node = Started(disk)
        disk.trace = []
        await node.start()
        did = [(kind, path.rpartition("/")[2]) for kind, path in disk.trace]
        written = did.index(("sync", "quorum-state.tmp"))
        named = next(at for at in range(written, len(did)) if did[at][0] == "rename" and "quorum-state" in did[at][1])
        safe = did.index(("sync directory", "__cluster_metadata-0"), named)
        first_record = next(at for at, (kind, name) in enumerate(did) if kind == "write" and name.endswith("0.log"))
        assert written < named < safe < first_record
        assert node.quorum.image.epoch == epoch
        node.directories.release()
        disk = disk.crash(random.Random(epoch), Loss.LOST)


@on_loop
async def test_a_broker_is_off_the_fence_only_with_its_registration_behind_it() -> None:
    """TRAP-37: no picture shows the one without the other, on the first start and on one that follows a crash. TRAP-38: the
    second process does not wait for a session of the first to run out; it holds the lock, so the first is gone."""
    disk, epochs = SimDisk(), []
    for process in range(2):
        node = Started(disk, process)
        await node.start()
        for picture in node.pictures:
            broker = picture.brokers[1]
            assert broker.fenced or picture.offset > broker.epoch == node.governed.membership.broker_epoch
        assert not node.quorum.image.brokers[1].fenced
        epochs.append(node.governed.membership.broker_epoch)
        node.directories.release()
        disk = disk.crash(random.Random(1), Loss.LOST)
    assert epochs[0] < epochs[1]


@on_loop
async def test_a_snapshot_that_reaches_further_than_the_log_is_enough() -> None:
    """The log went with a disk, or its tail did: whatever it had below the snapshot is in the snapshot, and goes on there."""
    disk = SimDisk()
    node = Started(disk)
    await node.start()
    wanted = [controller.NewTopic("kept")]
    await node.governed.controller.propose(
        lambda image: controller.create_topics(image, wanted, node.governed.controller.rules, random.Random(3))
    )
    await node.quorum.store.write_snapshot(node.quorum.image, node.quorum.voters)
    reached = node.quorum.image.offset
    node.directories.release()
    home = "/data/__cluster_metadata-0"
    for name in disk.names(home):
        if name.endswith((".log", ".index", ".timeindex", ".snapshot")):
            disk.remove(f"{home}/{name}")
    for _ in range(2):
        node = Started(disk)
        await node.start()
        kept = node.quorum.image.topic("kept")
        assert kept is not None and kept.partitions[0].leader == 1
        assert node.quorum.image.offset > reached, "offsets are never given out a second time"
        reached = node.quorum.image.offset
        node.directories.release()


@on_loop
async def test_the_end_of_a_log_is_told_at_once_after_an_election(tmp_path: Path) -> None:
    """TRAP-25: with one copy the watermark is past the start of the new epoch before anybody can ask, also where it stands
    for what is synced: there is no moment for OFFSET_NOT_AVAILABLE."""
    async with serving(tmp_path) as served:
        await served.topic("plain")
        await served.topic("synced", flush_messages="1")
        client = await served.connect()
        for topic in ("plain", "synced"):
            assert (await client.produce(topic, batch(b"a", b"b"))).error_code == Error.NONE.code
    async with serving(tmp_path) as served:
        client = await served.connect()
        for topic in ("plain", "synced"):
            partition = served.partition(topic)
            assert partition.leader_epoch > 0
            assert partition.high_watermark.value >= partition.log.epochs.entries[-1][1]
            latest = await client.list_offsets(topic, LATEST)
            assert (latest.error_code, latest.offset, latest.leader_epoch) == (0, 2, partition.leader_epoch)
            assert (await client.list_offsets(topic, EARLIEST)).offset == 0
            assert values((await client.fetch(topic, 0)).records) == [b"a", b"b"]


@on_loop
async def test_a_start_after_a_crash_says_what_it_did_and_how_long_it_took(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """LOG-18: in the log, and as metrics that somebody can watch."""
    async with serving(tmp_path) as served:
        await served.topic("t")
        assert (await (await served.connect()).produce("t", batch(b"a"))).error_code == 0
    (tmp_path / "data" / ".kafka_cleanshutdown").unlink()
    with (tmp_path / "data" / "t-0" / f"{0:020}.log").open("ab") as log:
        log.write(b"half of a batch")
    caplog.clear()
    with caplog.at_level(logging.INFO, "ottla.node"):
        async with serving(tmp_path) as served:
            measures = served.node.measures
            assert measures.truncated_bytes.value == len(b"half of a batch")
            assert measures.recovered_bytes.value > 0 and measures.recovery.value >= 0
            assert values((await (await served.connect()).fetch("t", 0)).records) == [b"a"]
    said = [record.getMessage() for record in caplog.records if "opened" in record.getMessage()]
    assert len(said) == 1
    assert re.fullmatch(r"opened 1 logs in \d+\.\d\d s, after an unclean stop: \d+ MB scanned, 15 bytes cut", said[0])
