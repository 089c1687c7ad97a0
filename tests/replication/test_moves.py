"""Replicas that move between directories: writes go on, nothing is lost wherever the power goes, and who may call it off."""

from __future__ import annotations

import asyncio
import contextlib
import random
import sys
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from desk import on_loop
from ottla.log import flushing, moving
from ottla.log.directories import Directories
from ottla.log.directory import DataDirectory
from ottla.log.log import Log
from ottla.log.producers import Origin
from ottla.log.settings import LogSettings
from ottla.metadata.controller import Decision
from ottla.metadata.image import DIRECTORY_UNASSIGNED
from ottla.metadata.image import Partition as Assignment
from ottla.replication.moves import Moves
from ottla.replication.partition import Partition
from ottla.sim.disk import Loss, PowerCut, SimDisk
from ottla.wire.errors import Error, KafkaError
from ottla.wire.messages.cluster import DescribeLogDirsRequest
from ottla.wire.messages.placement import AlterReplicaLogDirsRequest
from ottla.wire.messages.topics import DeleteTopicsRequest
from ottla.wire.records import Record, build
from served import Client, Served, batch, heads, serving, values

sys.path.insert(0, str(Path(__file__).parent.parent / "log"))
from crashing import Stage, read_all

NOW_MS = 1_767_225_600_000
SETTINGS = LogSettings(segment_bytes=700, index_interval_bytes=150, retention_ms=-1)
TOPIC_ID = b"t" * 16
BATCHES_MAX = 8
DELETED_TO = 8  # in the middle of a batch


@pytest.fixture(autouse=True)
def small_pieces(monkeypatch: pytest.MonkeyPatch) -> None:
    """So that a short log is copied in many steps, and synced in between."""
    monkeypatch.setattr(moving, "CHUNK_BYTES", 300)
    monkeypatch.setattr(moving, "UNSYNCED_BYTES", 900)


class Counts:
    """Traffic that nobody looks at."""

    bytes_in = bytes_out = records_in = produces = failed_produces = fetches = failed_fetches = 0


class Unheard:
    def fail(self, error: KafkaError) -> None:
        raise error


class Place:
    """Two directories, one partition in them, and somebody who writes to it."""

    def __init__(self, disk: SimDisk) -> None:
        rng = random.Random(5)
        self.directories = Directories(disk, ["/one", "/two"], 1, lambda: NOW_MS, rng)
        self.moves = Moves(self.directories, rng, 1)
        self.synced: dict[int, bytes] = {}
        self.written: dict[int, bytes] = {}
        self.deleted_to = 0
        self.partition: Partition

    async def open(self) -> None:
        self.directories.open("cluster")
        await self.directories.load(lambda topic: SETTINGS)
        log = await self.directories.log("t", 0, TOPIC_ID, SETTINGS, DIRECTORY_UNASSIGNED)
        ballast = self.directories.ballast_of(log)
        self.partition = Partition(
            *(log, "t", TOPIC_ID, 0, 1, lambda partition: None, asyncio.ensure_future),
            *(ballast, Counts(), lambda log, error: None),
        )
        self.partition.lead(Assignment((1,), (1,), 1, self.partition.leader_epoch + 1))

    async def produce(self, count: int, then: Callable[[], bool] = lambda: True) -> None:
        """Batches of different sizes, each of them synced before the next."""
        for _ in range(max(count, BATCHES_MAX)):
            if count <= 0 and then():
                return
            number = len(self.written)
            data = build([Record(timestamp=NOW_MS, value=b"%d " % number * (number % 20 + 1))] * (number % 3 + 1))
            appended = self.partition.append(memoryview(bytearray(data)), NOW_MS, Origin.CLIENT, Unheard())
            self.written[appended.first_offset] = data
            self.partition.write()
            if number % 2:
                await self.partition.log.flush()
                self.synced = dict(self.written)
            await asyncio.sleep(0)
            count -= 1
        while not then():  # whoever writes for ever is faster than any copy
            await asyncio.sleep(0)

    async def run(self) -> None:
        """There, and back again with some records deleted."""
        await self.open()
        await self.produce(8)
        first = self.partition.log
        await self.move()
        assert self.partition.log is not first and first.failed is not None
        self.partition.log.delete_records(DELETED_TO, self.partition.high_watermark.value)
        await self.directories.checkpoint({})
        self.deleted_to = DELETED_TO
        await self.move()
        await self.directories.sweep()

    async def move(self) -> None:
        await self.moves.move(self.partition, self.elsewhere())
        task = self.moves.under_way["t", 0].task
        await self.produce(3, task.done)
        task.result()

    def elsewhere(self) -> str:
        home = self.directories.home_of(self.partition.log)
        return next(each.path for each in self.directories.all if each is not home)


def whole_run(stage: Stage) -> int:
    disk = SimDisk()
    stage.run(Place(disk).run())
    return disk.calls


def cut_at(stage: Stage, call: int) -> Place:
    place = Place(SimDisk(stop_at=call))
    with contextlib.suppress(PowerCut):
        stage.run(run_to_the_cut(place))
    return place


async def run_to_the_cut(place: Place) -> None:
    """A power cut inside the move ends its task, and the writer soon after it."""
    try:
        await place.run()
    finally:
        for move in place.moves.under_way.values():
            move.task.cancel()


async def check_after(disk: SimDisk, before: Place) -> None:
    """One log is left, with all that was synced; it can be written, stopped and moved on."""
    place = Place(disk)
    place.written = dict(before.written)
    await place.open()
    homes = [home for home in place.directories.all if ("t", 0) in home.logs]
    assert len(homes) == 1
    log = place.partition.log
    found = await read_all(log)
    for at in before.synced:
        if at >= log.start_offset:
            assert at in found, f"the synced batch at {at} is lost; there are {sorted(found)}"
    assert before.deleted_to <= log.start_offset <= DELETED_TO
    assert all(data[16:] == before.written[at][16:] for at, data in found.items())
    place.moves.resume(lambda topic_id, index: place.partition)
    await place.produce(2, lambda: not place.moves.under_way)
    end = place.partition.log.end_offset
    await place.directories.sweep()
    await place.directories.close(7)
    again = Place(disk.outlive())
    await again.open()
    assert again.partition.log.end_offset == end
    left = [name for home in again.directories.all for name in disk.outlive().names(home.path)]
    assert not [name for name in left if name.endswith("-future")] and left.count("t-0") == 1


def enumerate_cuts(stage: Stage, step: int, first: int = 1) -> int:
    checked = 0
    for call in range(first, whole_run(stage) + 1, step):
        before = cut_at(stage, call)
        disk = before.directories.all[0].disk
        assert isinstance(disk, SimDisk)
        for loss in Loss:
            try:
                stage.run(check_after(disk.crash(random.Random(call), loss), before))
            except BaseException as error:
                raise AssertionError(f"cut before call {call}, {loss.value}: {error!r}") from error
            checked += 1
    return checked


@pytest.fixture
def stage() -> Iterator[Stage]:
    stage = Stage()
    yield stage
    stage.close()


@pytest.mark.parametrize("step", [5, pytest.param(1, marks=pytest.mark.slow)])
def test_the_power_goes_at_any_disk_call(stage: Stage, step: int) -> None:
    """Whatever was synced is there, once, after a move that was cut anywhere."""
    assert enumerate_cuts(stage, step) > 150


def the_log_goes_before_the_copy_is_synced(monkeypatch: pytest.MonkeyPatch) -> None:
    switch = Moves._switch

    def and_believe(moves: Moves, partition: Partition, copy: moving.Copy) -> None:
        switch(moves, partition, copy)
        copy.log.synced_end = copy.log.end_offset

    monkeypatch.setattr(Moves, "_switch", and_believe)


def the_shorter_one_counts(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("ottla.log.directories.how_far", lambda log, newest_epoch: -log.end_offset)


def the_new_name_is_not_synced(monkeypatch: pytest.MonkeyPatch) -> None:
    async def nothing(marks: object = None) -> None:
        """The checkpoint at the end of a move would sync the name too."""

    def rename(copy: moving.Copy, name: str) -> None:
        copy.home.disk.rename(copy.path, name)
        copy.path = name
        monkeypatch.setattr(copy.home, "checkpoint", nothing)

    monkeypatch.setattr(moving.Copy, "_rename", rename)


MISTAKES = [the_log_goes_before_the_copy_is_synced, the_shorter_one_counts, the_new_name_is_not_synced]


@pytest.mark.parametrize("mistake", MISTAKES)
def test_planted_mistakes_are_caught(
    stage: Stage, monkeypatch: pytest.MonkeyPatch, mistake: Callable[[pytest.MonkeyPatch], None]
) -> None:
    """A harness that catches nothing proves nothing."""
    mistake(monkeypatch)
    with pytest.raises(AssertionError):
        enumerate_cuts(stage, 2, first=100)


def test_a_copy_that_is_dropped_never_passes_for_the_log(stage: Stage) -> None:
    """The log fails when the copy has its name already, and the power goes while the copy is removed, file by file."""
    cut = 0
    for call in range(1, 1000):
        disk = SimDisk()
        wanted = stage.run(fail_when_the_copy_has_its_place(Place(disk), disk, call))
        for loss in Loss:
            found = stage.run(opened_and_read(disk.crash(random.Random(call), loss)))
            assert found == wanted, f"cut before call {call} of the removal, {loss.value}"
        if disk.calls < (disk.stop_at or 0):
            break
        cut += 1
    assert cut > 5


async def fail_when_the_copy_has_its_place(place: Place, disk: SimDisk, call: int) -> list[int]:
    await place.open()
    await place.produce(8)
    await place.partition.log.flush()
    move = moving.Copy(place.partition.log, place.directories.at(place.elsewhere()), random.Random(2))
    await move.begin()
    while await move.copy_some():
        pass
    await move.put_in_place()
    disk.stop_at = disk.calls + call
    with contextlib.suppress(PowerCut):
        await move.drop()
    return sorted(place.written)


async def opened_and_read(disk: SimDisk) -> list[int]:
    place = Place(disk)
    await place.open()
    return sorted(await read_all(place.partition.log))


class Held(SimDisk):
    """Syncs of one log do not begin before they may."""

    log: Log | None = None

    def __init__(self) -> None:
        super().__init__()
        self.may_sync = asyncio.Event()

    async def away(self, call: Callable[..., Any], *args: Any) -> Any:
        if call is flushing.sync and args[0] is self.log:
            await self.may_sync.wait()
        return await super().away(call, *args)


def test_a_sync_that_comes_too_late_for_a_log_that_moved(stage: Stage) -> None:
    """With `flush.messages`: what waited for the old log to be synced is acknowledged when the new one is."""

    async def scenario() -> None:
        place = Place(disk := Held())
        await place.open()
        partition = place.partition
        partition.configure(replace(SETTINGS, flush_messages=1), 1)
        disk.log = partition.log
        data = memoryview(bytearray(build([Record(timestamp=NOW_MS, value=b"v")])))
        partition.append(data, NOW_MS, Origin.CLIENT, Unheard())
        partition.write()
        acknowledged = asyncio.ensure_future(partition.acknowledged(1, 60))
        await place.moves.move(partition, place.elsewhere())
        await place.moves.under_way["t", 0].task
        disk.may_sync.set()
        await acknowledged
        assert partition.log is not disk.log and partition.log.synced_end == 1
        assert not partition.high_watermark.closed

    stage.run(scenario())


# --- while others lead


def of_another_leader(epoch: int, first: int, count: int) -> list[bytes]:
    return [
        build([Record(timestamp=NOW_MS, value=b"new %d" % at)], base_offset=at, leader_epoch=epoch)
        for at in range(first, first + count)
    ]


async def follow_and_be_cut(partition: Partition, offset: int, count: int) -> dict[int, bytes]:
    """Another leads now, and has other records from this offset on. All that is in the log then."""
    epoch = partition.leader_epoch + 1
    partition.follow(Assignment((2, 1), (2, 1), 2, epoch))
    await partition.cut(offset)
    for data in of_another_leader(epoch, offset, count):
        partition.take(memoryview(bytearray(data)), NOW_MS)
    await partition.log.flush()
    return await read_all(partition.log)


@pytest.mark.parametrize("count", [1, 9, 30])
@pytest.mark.parametrize("before", ["copy_some", "put_in_place", "is in place"])
def test_a_log_that_is_cut_while_it_moves(stage: Stage, before: str, count: int) -> None:
    """KIP-101: what had been copied of an old leader's records took the place of what a new one had acknowledged."""

    async def scenario() -> None:
        place = Place(SimDisk())
        await place.open()
        await place.produce(8)
        source = place.partition.log
        await place.moves.move(place.partition, place.elsewhere())
        move, wanted = place.moves.under_way["t", 0], dict[int, bytes]()
        copy, step = move.copy, getattr(move.copy, "copy_some" if before == "copy_some" else "put_in_place")

        async def and_be_cut() -> Any:
            if before == "is in place":
                await step()
            if not wanted and copy.log.end_offset > 3:
                wanted.update(await follow_and_be_cut(place.partition, 3, count))
            return await step() if before != "is in place" else None

        setattr(copy, step.__name__, and_be_cut)
        await move.task
        assert wanted and place.partition.log is not source
        assert await read_all(place.partition.log) == wanted
        assert place.partition.log.epochs.entries == [(0, 0), (1, 3)]

    stage.run(scenario())


@pytest.mark.parametrize("count", [0, 1, 9, 30])
def test_a_process_that_dies_when_a_log_was_cut_whose_copy_has_its_place(stage: Stage, count: int) -> None:
    """The copy may be the longer one, and is one of what is gone."""

    async def scenario() -> SimDisk:
        place = Place(disk := SimDisk())
        await place.open()
        await place.produce(8)
        copy = moving.Copy(place.partition.log, place.directories.at(place.elsewhere()), random.Random(2))
        await copy.begin()
        while not copy.is_close:
            await copy.copy_some()
        await copy.put_in_place()
        wanted.update(await follow_and_be_cut(place.partition, 3, count))
        return disk.outlive()

    async def look(disk: SimDisk) -> dict[int, bytes]:
        place = Place(disk)
        await place.open()
        return await read_all(place.partition.log)

    wanted: dict[int, bytes] = {}
    found = stage.run(look(stage.run(scenario())))
    assert found == wanted if count else list(found)[: len(wanted)] == list(wanted), "nobody else may have these"


# --- asked for by clients


def two(path: Path, **more: str) -> dict[str, str]:
    return {"log.dirs": f"{path}/one,{path}/two", **{name.replace("_", "."): value for name, value in more.items()}}


SLOWLY = {"replica.alter.log.dirs.io.max.bytes.per.second": "1"}


async def ask(client: Client, path: str, topic: str = "t", *indexes: int) -> list[int]:
    kind = AlterReplicaLogDirsRequest.Directory
    asked = kind(path=path, topics=[kind.Topic(name=topic, partitions=list(indexes or (0,)))])
    answer = await client.call(AlterReplicaLogDirsRequest(dirs=[asked]), 2)
    return [partition.error_code for told in answer.results for partition in told.partitions]


def elsewhere(served: Served, topic: str = "t") -> str:
    home = served.node.directories.home_of(served.partition(topic).log)
    return next(each.path for each in served.node.directories.all if each is not home)


async def arrived(served: Served) -> None:
    async with asyncio.timeout(60):
        while moves := list(served.node.replicas.moves.under_way.values()):
            await asyncio.wait([moves[0].task])
    await served.node.controller.propose(lambda image: Decision([], None))  # what was told before is committed


async def listed(client: Client) -> dict[str, list[tuple[int, int, bool]]]:
    answer = await client.call(DescribeLogDirsRequest(topics=None), 4)
    return {
        result.log_dir: [
            (p.partition_index, p.offset_lag, p.is_future_key) for t in result.topics for p in t.partitions
        ]
        for result in answer.results
    }


@pytest.mark.parametrize("fails", ["flush", "checkpoint"])
def test_a_log_that_was_left_does_not_stand_in_for_the_one_that_took_over(
    stage: Stage, monkeypatch: pytest.MonkeyPatch, fails: str
) -> None:
    """Something fails after the two have changed places, and later the new disk does. The old log was served again, without
    what had been acknowledged since, in the same leadership: followers cut that off."""

    async def scenario() -> None:
        place = Place(disk := SimDisk())
        await place.open()
        await place.produce(8)
        first, target = place.partition.log, place.directories.at(place.elsewhere())
        switch = place.moves._switch

        async def refuse(*_: Any) -> None:
            raise OSError(28, "No space left on device")

        def switch_and_fail(partition: Partition, copy: moving.Copy) -> None:
            switch(partition, copy)
            monkeypatch.setattr(*((Log, "flush") if fails == "flush" else (target, "checkpoint")), refuse)

        monkeypatch.setattr(place.moves, "_switch", switch_and_fail)
        await place.moves.move(place.partition, target.path)
        await place.moves.under_way["t", 0].task
        monkeypatch.undo()
        assert place.partition.log is not first
        await place.produce(2)
        left = place.directories.home_of(first)
        target.fail(OSError(5, "Input/output error"))
        for directory in (left, target):
            assert directory.meta is not None
            with pytest.raises(KafkaError, match="has failed"):
                await place.directories.log("t", 0, TOPIC_ID, SETTINGS, directory.meta.directory_id)
        assert first.directory.endswith("-stray") == (fails == "checkpoint"), "it may have what the copy lost"
        left.close(1)
        again = DataDirectory(disk, left.path, now_ms=lambda: NOW_MS, rng=random.Random(1))
        again.open()
        assert again.was_clean == (fails == "checkpoint"), (
            "nobody closed what lies there, its producers would be forgotten"
        )

    stage.run(scenario())


@on_loop
async def test_a_replica_moves_while_it_is_written(tmp_path: Path) -> None:
    """KIP-113: every answer given on the way holds, the metadata learns the place, and a restart finds it there."""
    async with serving(tmp_path, two(tmp_path)) as served:
        await served.topic("t", segment_bytes="1048576")
        client = await served.connect()
        wanted = [b"%d" % number + bytes(2000) for number in range(40)]
        for value in wanted[:20]:
            assert (await client.produce("t", batch(value))).error_code == 0
        target = elsewhere(served)
        assert await ask(client, target) == [0]
        for value in wanted[20:]:
            assert (await client.produce("t", batch(value))).error_code == 0
        await arrived(served)
        partition = served.partition("t")
        assert served.node.directories.home_of(partition.log).path == target
        assert (await listed(client))[target] == [(0, 0, False)]
        image = served.node.quorum.image.topic("t")
        assert image is not None
        assert image.partitions[0].directory_of(1) == served.node.directories.id_of(partition.log)
        await client.produce("t", batch(b"last"))
        assert values((await client.fetch("t", 0)).records) == [*wanted, b"last"]
    async with serving(tmp_path, two(tmp_path)) as served:
        client = await served.connect()
        assert served.node.directories.home_of(served.partition("t").log).path == target
        assert values((await client.fetch("t", 0)).records) == [*wanted, b"last"]


@on_loop
async def test_what_is_under_way_is_shown_and_can_be_called_off(tmp_path: Path) -> None:
    """The copy is listed as the future of the partition, with what it lacks; asking for the old place ends it."""
    async with serving(tmp_path, two(tmp_path) | SLOWLY) as served:
        await served.topic("t")
        client = await served.connect()
        for _ in range(3):
            await client.produce("t", batch(bytes(1000)))
        target, home = elsewhere(served), served.node.directories.home_of(served.partition("t").log)
        assert await ask(client, target) == [0]
        assert await ask(client, target) == [0], "it goes there already"
        moves = served.node.replicas.moves
        async with asyncio.timeout(60):
            while not moves.under_way["t", 0].copy.log.end_offset:
                await asyncio.sleep(0.01)
        lag = moves.under_way["t", 0].copy.lag
        assert lag and (await listed(client))[target] == [(0, lag, True)]
        assert (await listed(client))[home.path] == [(0, 0, False)]
        assert await ask(client, home.path) == [0]
        assert not moves.under_way and (await listed(client))[target] == []
        assert not [name for name in served.node.world.disk.names(target) if "future" in name]
        assert (await client.produce("t", batch(b"v"))).base_offset == 3


@on_loop
async def test_a_topic_that_is_deleted_and_made_again_on_the_way(tmp_path: Path) -> None:
    async with serving(tmp_path, two(tmp_path) | SLOWLY) as served:
        first = await served.topic("t")
        client = await served.connect()
        for _ in range(3):
            await client.produce("t", batch(bytes(1000)))
        target = elsewhere(served)
        assert await ask(client, target) == [0]
        gone = DeleteTopicsRequest(topics=[DeleteTopicsRequest.Topic(name="t")], timeout_ms=5000)
        assert (await client.call(gone, 6)).responses[0].error_code == 0
        assert not served.node.replicas.moves.under_way
        assert await served.topic("t") != first
        assert (await client.produce("t", batch(b"new"))).base_offset == 0
        names = [name for path in (f"{tmp_path}/one", target) for name in served.node.world.disk.names(path)]
        assert not [name for name in names if name.endswith("-future")]


@on_loop
async def test_a_move_goes_on_after_a_restart(tmp_path: Path) -> None:
    async with serving(tmp_path, two(tmp_path) | SLOWLY) as served:
        await served.topic("t")
        client = await served.connect()
        for number in range(5):
            await client.produce("t", batch(b"%d" % number + bytes(1000)))
        target = elsewhere(served)
        assert await ask(client, target) == [0]
        async with asyncio.timeout(60):
            while not served.node.replicas.moves.under_way["t", 0].has_begun:
                await asyncio.sleep(0.01)
    async with serving(tmp_path, two(tmp_path)) as served:
        await arrived(served)
        assert served.node.directories.home_of(served.partition("t").log).path == target
        client = await served.connect()
        found = values((await client.fetch("t", 0)).records)
        assert [value[:1] for value in found if value is not None] == [b"0", b"1", b"2", b"3", b"4"]


@on_loop
async def test_producers_transactions_epochs_and_the_start_come_along(tmp_path: Path) -> None:
    """A duplicate is still known, an aborted transaction still hidden, deleted records stay deleted."""
    async with serving(tmp_path, two(tmp_path)) as served:
        await served.topic("t")
        client = await served.connect()
        twice = batch(b"once", producer_id=7, producer_epoch=0, base_sequence=0)
        assert (await client.produce("t", twice)).base_offset == 0
        aborted = batch(b"never", producer_id=8, producer_epoch=0, base_sequence=0, transactional=True)
        served.append_in_transaction("t", aborted)
        served.end_transaction("t", 8, 0, commit=False)
        await client.produce("t", batch(b"a", b"b", b"c"))
        partition = served.partition("t")
        served.node.replicas.delete_records("t", 0, 5)
        epochs, open_to = list(partition.log.epochs.entries), partition.log.last_stable_offset(6)
        assert await ask(client, elsewhere(served)) == [0]
        await arrived(served)
        log = partition.log
        assert (log.start_offset, log.end_offset) == (5, 6) and log.last_stable_offset(6) == open_to
        assert log.epochs.entries == epochs
        assert (await client.produce("t", twice)).base_offset == 0, "a duplicate of what is deleted by now"
        assert (await client.produce("t", batch(b"next"))).base_offset == 6


@on_loop
async def test_a_log_that_loses_its_beginning_faster_than_it_is_copied(tmp_path: Path) -> None:
    async with serving(tmp_path, two(tmp_path)) as served:
        await served.topic("t")
        client = await served.connect()
        for _ in range(6):
            await client.produce("t", batch(bytes(400)))
        partition = served.partition("t")
        move = asyncio.ensure_future(ask(client, elsewhere(served)))
        moves = served.node.replicas.moves
        async with asyncio.timeout(60):
            while not moves.under_way or not moves.under_way["t", 0].has_begun:
                await asyncio.sleep(0)
        served.node.replicas.delete_records("t", 0, 6)
        assert await move == [0]
        await arrived(served)
        assert (partition.log.start_offset, partition.log.end_offset) == (6, 6)
        assert (await client.produce("t", batch(b"v"))).base_offset == 6


def numbered(offset: int, epoch: int) -> bytes:
    """A batch that has its place already."""
    data = bytearray(batch(b"at %d" % offset))
    data[:8], data[12:16] = offset.to_bytes(8, "big"), epoch.to_bytes(4, "big")
    return bytes(data)


@pytest.mark.parametrize("end", [31, 40])
@on_loop
async def test_holes_that_compaction_left_come_along(tmp_path: Path, end: int) -> None:
    """Between batches, between segments, and behind the last of them."""
    async with serving(tmp_path, two(tmp_path)) as served:
        await served.topic("t", cleanup_policy="compact")
        client = await served.connect()
        partition = served.partition("t")
        log = partition.log
        for offset in (3, 4, 10, 20, 30):
            log.append(memoryview(numbered(offset, partition.leader_epoch)), Origin.REPLICATION, 0, NOW_MS)
            log.publish()
            if offset in (4, 20):
                log.roll()
        if end > log.end_offset:
            log.roll(end)
            log.end_offset = log.staged_end = end
        partition.settle()
        found = await read_all_with_holes(log)
        assert await ask(client, elsewhere(served)) == [0]
        await arrived(served)
        assert partition.log is not log and partition.log.end_offset == end
        assert await read_all_with_holes(partition.log) == found
        assert (await client.produce("t", batch(b"next"))).base_offset == end


async def read_all_with_holes(log: Any) -> list[bytes | None]:
    found: list[bytes | None] = []
    offset = log.start_offset
    while (located := await log.read(offset, 1, log.end_offset)).size:
        data = located.read()
        found += values(data)
        offset = heads(data)[-1].next_offset
    return found


@on_loop
async def test_places_that_are_none_and_partitions_that_are_not_here(tmp_path: Path) -> None:
    """LOG_DIR_NOT_FOUND before anything else is looked at, as in Apache Kafka 4.3.1."""
    async with serving(tmp_path, two(tmp_path)) as served:
        await served.topic("t")
        client = await served.connect()
        for path in ("/nowhere", "", "one", f"{tmp_path}/one/"):
            assert await ask(client, path, "t", 0, 9) == [Error.LOG_DIR_NOT_FOUND.code] * 2
        known = f"{tmp_path}/one"
        assert await ask(client, known, "t", 9, -1) == [Error.UNKNOWN_TOPIC_OR_PARTITION.code] * 2
        assert await ask(client, known, "none") == [Error.UNKNOWN_TOPIC_OR_PARTITION.code]
        assert await ask(client, known, "__cluster_metadata") == [Error.UNKNOWN_TOPIC_OR_PARTITION.code]
        assert await ask(client, known, "z" * 213) == [Error.UNKNOWN_TOPIC_OR_PARTITION.code]
        assert await ask(client, "/nowhere", "z" * 214) == [Error.INVALID_TOPIC_EXCEPTION.code], "no name for the copy"
        assert (await client.call(AlterReplicaLogDirsRequest(), 1)).results == []


@on_loop
async def test_a_disk_that_refuses_ends_the_move_and_nothing_else(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with serving(tmp_path, two(tmp_path)) as served:
        await served.topic("t")
        client = await served.connect()
        await client.produce("t", batch(bytes(1000)))
        target, before = elsewhere(served), served.partition("t").log

        def refuse(copy: Any, name: str) -> None:
            raise OSError(5, "Input/output error", name)

        with monkeypatch.context() as broken:
            broken.setattr(moving.Copy, "_rename", refuse)
            assert await ask(client, target) == [0]
            await arrived(served)
        assert served.partition("t").log is before
        assert not [name for name in served.node.world.disk.names(target) if name.startswith("t-0")]
        assert (await client.produce("t", batch(b"v"))).base_offset == 1
        assert await ask(client, target) == [0]
        await arrived(served)
        assert served.partition("t").log is not before
