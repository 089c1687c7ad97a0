"""Work on a log that takes its time, and what may happen before it is over: the topic is deleted and made again under the same
name, or whoever waits for the work gives up."""

from __future__ import annotations

import asyncio
import random
import sys
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any, TypeVar

import pytest

from ottla.log import flushing, retention
from ottla.log.checkpoints import LEADER_EPOCHS, LOG_STARTS, read_epochs, read_offsets
from ottla.log.directory import DataDirectory
from ottla.log.log import Log
from ottla.log.producers import Origin
from ottla.log.settings import LogSettings
from ottla.sim.disk import Loss, SimDisk
from ottla.wire.errors import Error, KafkaError
from ottla.world import Disk, RealDisk

sys.path.insert(0, str(Path(__file__).parent))
from logs import NOW_MS, SMALL, Clock, batch, fill, make_log, offsets, put, read_batches, run
from test_directory import TOPIC_ID, opened

T = TypeVar("T")

OTHER_ID = b"another topic id"
SIZED = LogSettings(segment_bytes=600, retention_bytes=1000, retention_ms=-1)


def opened_within(disk: Disk, path: str = "/logs/a") -> DataDirectory:
    """The same as `opened`, for use inside a running loop: nothing is there to be loaded."""
    directory = DataDirectory(disk, path, now_ms=Clock(), rng=random.Random(1))
    directory.open()
    return directory


class Slow(SimDisk):
    """What is done off the loop takes a while, checkpoints most of all."""

    async def away(self, call: Callable[..., T], *args: Any) -> T:
        for _ in range(100 if call.__name__ == "_write_checkpoints" else 1):
            await asyncio.sleep(0)
        return call(*args)


async def replace_topic(directory: DataDirectory) -> Log:
    await directory.delete("t", 0)
    log = await directory.create("t", 0, OTHER_ID, SMALL)
    put(log, batch())
    return log


def test_retention_of_a_deleted_log_leaves_its_namesake_alone() -> None:
    """While the log start is being checkpointed, the topic is deleted and made again: the files there are new ones."""

    async def scenario() -> None:
        disk = SimDisk()
        directory = opened_within(disk)
        old = await directory.create("t", 0, TOPIC_ID, SIZED)
        fill(old, 20)
        checkpoint, replaced = directory.checkpoint, []

        async def overtaken() -> None:
            await checkpoint()
            replaced.append(await replace_topic(directory))

        old.checkpoint = overtaken
        count = retention.plan(old, 0, old.end_offset)
        assert count > 1
        assert await retention.perform(old, count) == 0
        names = disk.names("/logs/a/t-0")
        assert "00000000000000000000.log" in names and not [name for name in names if name.endswith(".deleted")]
        located = await replaced[0].read(0, 1 << 20, replaced[0].end_offset)
        assert located.size == replaced[0].active.size > 0

    run(scenario())


@pytest.mark.parametrize("upto", [0, 2, 8])
def test_retention_of_a_log_that_is_cut_takes_nothing_of_what_came_since(upto: int) -> None:
    """After an unclean election a follower's log may be cut below where retention was about to let it begin."""

    async def scenario() -> None:
        directory = opened_within(SimDisk())
        log = await directory.create("t", 0, TOPIC_ID, SIZED)
        fill(log, 20)
        checkpoint, cuts = directory.checkpoint, [upto]

        async def overtaken() -> None:
            await checkpoint()
            if cuts:
                await log.truncate_to(cuts.pop())
                put(log, batch())

        log.checkpoint = overtaken
        await retention.perform(log, retention.plan(log, 0, log.end_offset))
        assert log.active in log.segments and log.active.base <= upto
        put(log, batch())
        log.close()
        again = opened_within(directory.disk.outlive())  # type: ignore[attr-defined]
        await again.load(lambda topic: SIZED)
        assert again.logs["t", 0].end_offset == log.end_offset == upto + 2

    run(scenario())


def test_a_sync_of_a_deleted_log_writes_nothing_for_its_namesake() -> None:
    """The epochs of the old topic must not become those of the new one."""

    async def scenario() -> None:
        disk = SimDisk()
        directory = opened_within(disk)
        old = await directory.create("t", 0, TOPIC_ID, SMALL)
        put(old, batch(), epoch=9)
        paths, file = flushing.what_to_sync(old, [], False)
        await replace_topic(directory)
        with pytest.raises(KafkaError):
            flushing.sync(old, paths, file)
        assert read_epochs(disk, f"/logs/a/t-0/{LEADER_EPOCHS}") == []

    run(scenario())


@pytest.mark.parametrize("restarted", [False, True])
def test_where_a_deleted_log_began_is_not_where_its_namesake_begins(restarted: bool) -> None:
    """A crash soon after the topic was made again: checkpoints know names and no ids, and must not speak of the old one."""
    disk = SimDisk()
    directory = opened(disk)
    fill(old := run(directory.create("t", 0, TOPIC_ID, SMALL)), 60)
    old.delete_records(31, old.end_offset)
    run(old.flush())
    run(directory.checkpoint())
    run(directory.delete("t", 0))
    if restarted:
        directory.release()
        directory = opened(disk)
    fill(run(directory.create("t", 0, OTHER_ID, SMALL)), 5)
    directory.release()
    log = opened(disk).logs["t", 0]
    assert (log.topic_id, log.start_offset, log.recovery_point) == (OTHER_ID, 0, 0)
    assert offsets(read_batches(log, 0)) == [0, 2, 4, 6, 8]


def test_a_checkpoint_under_way_does_not_bring_a_deleted_log_back() -> None:
    """It was collected while the topic was there, and is written while the topic is made again."""

    async def scenario() -> None:
        disk = Slow()
        directory = opened_within(disk)
        fill(old := await directory.create("t", 0, TOPIC_ID, SMALL), 60)
        old.delete_records(31, old.end_offset)
        writing = asyncio.ensure_future(directory.checkpoint())
        while not directory._checkpointing.locked():
            await asyncio.sleep(0)
        await replace_topic(directory)
        await writing
        assert read_offsets(disk, f"/logs/a/{LOG_STARTS}") == {}

    run(scenario())


def test_a_write_to_a_deleted_log_that_fails_cuts_nothing_off_its_namesake() -> None:
    """What was staged when the topic was deleted is taken back: in the old file, whatever its name is by now."""

    async def scenario() -> None:
        disk = SimDisk()
        directory = opened_within(disk)
        old = await directory.create("t", 0, TOPIC_ID, SMALL)
        old.append(batch(), Origin.CLIENT, 0, NOW_MS)
        new = await replace_topic(directory)
        with pytest.raises(OSError, match="failed before"):
            old.publish()
        assert disk.size("/logs/a/t-0/00000000000000000000.log") == new.active.size > 0

    run(scenario())


def test_an_index_does_not_outlive_its_topic() -> None:
    """Index bytes are kept by path, and the next topic of that name has the same paths."""
    disk = SimDisk()
    directory = opened(disk)
    old = run(directory.create("t", 0, TOPIC_ID, SMALL))
    fill(old, 40)
    assert len(old.segments) > 2 and len(old.segments[0].read_index())
    new = run(replace_topic(directory))
    new.roll()
    assert len(new.segments[0].read_index()) == 0
    put(new, batch())
    assert offsets(read_batches(new, 1)) == [1]


class Gate:
    """A real disk whose file syncs take until the gate is opened; counts how many are under way at once."""

    def __init__(self) -> None:
        self.open = threading.Event()
        self.entered = threading.Event()
        self.disk = RealDisk(watch=self.pass_through)
        self.inside = self.most = 0
        self._lock = threading.Lock()

    def pass_through(self, seconds: float, failed: bool) -> None:
        with self._lock:
            self.inside += 1
            self.most = max(self.most, self.inside)
        self.entered.set()
        self.open.wait(60)
        with self._lock:
            self.inside -= 1

    async def until_entered(self) -> None:
        while not self.entered.is_set():
            await asyncio.sleep(0.001)


def test_a_sync_goes_on_when_nobody_waits_for_it(tmp_path: Path) -> None:
    """A thread cannot be called back. The next sync of the log waits until it is done, and what it saved counts."""

    async def scenario() -> None:
        gate = Gate()
        log = make_log(gate.disk, directory=str(tmp_path / "topic-0"))
        put(log, batch(), epoch=3)
        first = asyncio.create_task(log.flush())
        await gate.until_entered()
        first.cancel()
        second = asyncio.create_task(log.settle())
        await asyncio.sleep(0.05)
        assert gate.most == 1
        gate.open.set()
        await second
        with pytest.raises(asyncio.CancelledError):
            await first
        assert gate.most == 1 and log.is_settled

    run(scenario())


def test_a_checkpoint_goes_on_when_nobody_waits_for_it(tmp_path: Path) -> None:
    """Two that write the same file at once would leave a mix, or the older of the two."""

    async def scenario() -> None:
        gate = Gate()
        gate.open.set()
        directory = opened_within(gate.disk, str(tmp_path))
        log = await directory.create("t", 0, TOPIC_ID, SMALL)
        put(log, batch())
        gate.open.clear()
        gate.entered.clear()
        first = asyncio.create_task(directory.checkpoint({("t", 0): 1}))
        await gate.until_entered()
        first.cancel()
        last = asyncio.create_task(directory.stop())
        await asyncio.sleep(0.05)
        assert gate.most == 1
        gate.open.set()
        await last

    run(scenario())


def test_a_file_that_vanished_is_no_reason_to_believe_a_sync(monkeypatch: pytest.MonkeyPatch) -> None:
    """Only a log whose whole directory is gone has nothing left to save."""
    disk = SimDisk()
    log = make_log(disk)
    put(log, batch(), epoch=1)

    def vanish(path: str, data: bytes) -> None:
        raise FileNotFoundError(2, "gone", path)

    monkeypatch.setattr(disk, "replace", vanish)
    with pytest.raises(KafkaError) as refused:
        run(log.flush())
    assert refused.value.error is Error.KAFKA_STORAGE_ERROR
    assert log.failed is not None and log.synced_end == 0


def test_what_could_not_be_removed_is_not_forgotten(monkeypatch: pytest.MonkeyPatch) -> None:
    """An error, or a stop, in the middle of a sweep leaves the rest for the next."""
    disk = SimDisk()
    directory = opened(disk)
    for index in range(3):
        run(directory.create("t", index, TOPIC_ID, LogSettings(file_delete_delay_ms=0)))
        run(directory.delete("t", index))
    remove_tree, troubled = disk.remove_tree, [True]

    def once(path: str) -> None:
        if troubled.pop() if troubled else False:
            raise OSError(5, "trouble", path)
        remove_tree(path)

    monkeypatch.setattr(disk, "remove_tree", once)
    with pytest.raises(OSError, match="trouble"):
        run(directory.sweep())
    assert run(directory.sweep()) == 3
    assert not [name for name in disk.names("/logs/a") if name.endswith("-delete")]


def test_a_full_disk_does_not_wait_for_what_is_deleted() -> None:
    """The delay is a courtesy to readers, who hold their files open; room that is needed now is given now."""
    disk = SimDisk()
    directory = opened(disk)
    log = run(directory.create("t", 0, TOPIC_ID, SIZED))
    run(directory.create("u", 0, TOPIC_ID, SIZED))
    fill(log, 20)
    assert run(retention.perform(log, retention.plan(log, 0, log.end_offset))) > 0
    run(directory.delete("u", 0))
    assert run(directory.sweep()) == 0
    used = disk.used
    assert run(directory.sweep(at_once=True)) > 1
    assert disk.used < used
    assert not [name for name in disk.names("/logs/a/t-0") if name.endswith(".deleted")]
    assert not [name for name in disk.names("/logs/a") if name.endswith("-delete")]
    again = opened(disk.crash(random.Random(1), Loss.LOST))
    assert again.logs["t", 0].start_offset == log.start_offset
