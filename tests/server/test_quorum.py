"""The metadata log of one voter on a real disk: formatting, epochs, group commit, restarts, snapshots."""

from __future__ import annotations

import asyncio
import errno
import json
import os
import random
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from desk import Governed, on_loop
from ottla.config import BrokerConfig, single_node_defaults
from ottla.log.ballast import NAME
from ottla.log.directories import Directories
from ottla.metadata import controller
from ottla.metadata.controller import NewTopic
from ottla.metadata.image import TOPIC, Delta, Image, Topic
from ottla.raft import snapshots
from ottla.raft.quorum import QuorumState, VoterSet
from ottla.server.quorum import Quorum
from ottla.wire.errors import Error, KafkaError
from ottla.wire.records import batches, control_type, iterate
from ottla.world import Bytes, RealDisk, RealFile, World

PORTS = {"PLAINTEXT": 19092}


class Slow(RealDisk):
    """A disk whose syncs can be counted, held back, and made to fail."""

    def __init__(self) -> None:
        super().__init__(threads=1)
        self.away_calls = 0
        self.broken = False

    async def away(self, call: Callable[..., Any], *args: Any) -> Any:
        self.away_calls += 1
        await asyncio.sleep(0.005)
        if self.broken:
            raise OSError(errno.EIO, "the disk is gone")
        return await super().away(call, *args)


class Running:
    def __init__(self, path: Path, disk: RealDisk | None = None, **settings: str) -> None:
        self.path = path
        dotted = {name.replace("_", "."): value for name, value in settings.items()}
        self.config = BrokerConfig({**single_node_defaults(), "log.dirs": str(path), **dotted})
        self.world = World(disk=disk or RealDisk(threads=1), random=random.Random(7))
        self.directories = Directories(self.world.disk, self.config.log_dirs, 1, self.world.now_ms, self.world.random)
        self.seen: list[tuple[Image, Image, Delta]] = []
        self.fatal: list[BaseException] = []
        self.governed = Governed(self.config, self.world, self.directories, self.fatal.append)
        self.quorum, self.controller = self.governed.quorum, self.governed.controller
        self.quorum.listen(self._follow)

    async def _follow(self, old: Image, new: Image, delta: Delta) -> None:
        self.seen.append((old, new, delta))

    async def start(self) -> Quorum:
        self.directories.open()
        await self.governed.start(PORTS)
        return self.quorum

    async def stop(self) -> None:
        await self.governed.stop()
        await self.directories.close(self.governed.membership.broker_epoch)

    def kill(self) -> None:
        """As a power cut would: nothing more is written, the lock is free."""
        self.directories.release()


@asynccontextmanager
async def running(path: Path, **settings: Any) -> AsyncIterator[Running]:
    node = Running(path, **settings)
    await node.start()
    try:
        yield node
    finally:
        await node.stop()


def create(*names: str, partitions: int = 1) -> Callable[[Image], Any]:
    wanted = [NewTopic(name, partitions) for name in names]
    return lambda image: controller.create_topics(image, wanted, controller.Rules(), random.Random(3))


def control_records(path: Path) -> list[list[int]]:
    data = path.read_bytes()
    return [
        [control_type(record.key) for record in iterate(memoryview(data)[position:])]
        for position, batch in batches(data)
        if batch.is_control
    ]


@on_loop
async def test_a_new_directory_looks_like_one_that_was_formatted_standalone(tmp_path: Path) -> None:
    """TRAP-29, KRF-03."""
    async with running(tmp_path):
        pass
    home = tmp_path / "__cluster_metadata-0"
    first = home / "00000000000000000000-0000000000.checkpoint"
    assert control_records(first) == [[3, 5, 6], [4]]
    assert first.stat().st_mode & 0o777 == 0o400
    assert control_records(tmp_path / "bootstrap.checkpoint") == [[3], [4]]
    assert control_records(home / "00000000000000000000.log") == [[2, 5, 6]]
    state = json.loads((home / "quorum-state").read_text())
    assert state["leaderId"] == 1 and state["leaderEpoch"] == 1 and state["data_version"] == 1
    assert (home / "partition.metadata").read_text() == "version: 0\ntopic_id: AAAAAAAAAAAAAAAAAAAAAQ"


@on_loop
async def test_every_start_is_a_new_epoch_and_a_new_leader_epoch(tmp_path: Path) -> None:
    async with running(tmp_path) as node:
        topic = (await node.controller.propose(create("t")))["t"]
        assert node.quorum.image.topic("t") == topic and isinstance(topic, Topic)
        assert node.quorum.image.epoch == 1
    async with running(tmp_path) as node:
        image = node.quorum.image
        assert image.epoch == 2 and image.controller_id == 1
        partition = image.topics[topic.id].partitions[0]
        assert (partition.leader, partition.leader_epoch, partition.recovering) == (1, 2, False)
        old, new, delta = node.seen[0]
        assert old == Image() and new is image and set(delta.created) == {topic.id} and len(node.seen) == 1
    assert control_records(tmp_path / "__cluster_metadata-0" / "00000000000000000000.log") == [[2, 5, 6], [2]]


@on_loop
async def test_after_a_kill_everything_acknowledged_is_there_and_led(tmp_path: Path) -> None:
    node = Running(tmp_path)
    await node.start()
    await node.controller.propose(create("t", partitions=3))
    node.kill()
    async with running(tmp_path) as again:
        topic = again.quorum.image.topic("t")
        assert topic is not None and [p.leader for p in topic.partitions.values()] == [1, 1, 1]
        assert all(p.leader_epoch == 2 for p in topic.partitions.values())


@on_loop
async def test_a_stopped_node_leads_nothing_and_its_broker_is_fenced(tmp_path: Path) -> None:
    """TRAP-39: no leadership is left when it goes; there is no other broker yet whose picture would have to follow first."""
    node = Running(tmp_path)
    quorum = await node.start()
    await node.controller.propose(create("t"))
    await node.stop()
    partition = next(quorum.image.topics.values()).partitions[0]
    assert partition.leader == -1 and quorum.image.brokers[1].fenced
    with pytest.raises(KafkaError):
        await node.controller.propose(create("u"))


@on_loop
async def test_decisions_see_each_other_before_they_are_committed_and_share_one_sync(tmp_path: Path) -> None:
    """TRAP-79: when the create is answered, whoever follows has already followed."""
    disk = Slow()
    async with running(tmp_path, disk=disk) as node:
        before = disk.away_calls
        answers = [node.controller.propose(create(f"t{n % 10}")) for n in range(20)]
        assert node.quorum.written.topic("t9") is not None and node.quorum.image.topic("t9") is None
        replies = [await answer for answer in answers]
        assert disk.away_calls - before <= 2, "one sync serves all that wait"
        assert all(isinstance(reply[f"t{n}"], Topic) for n, reply in enumerate(replies[:10]))
        exists = [reply[f"t{n}"] for n, reply in enumerate(replies[10:])]
        assert all(isinstance(e, KafkaError) and e.error is Error.TOPIC_ALREADY_EXISTS for e in exists)
        order = [topic.name for _, _, delta in node.seen[1:] for topic in delta.created.values()]
        assert order == [f"t{n}" for n in range(10)]


@on_loop
async def test_listeners_run_before_the_picture_is_shown_and_before_the_reply(tmp_path: Path) -> None:
    async with running(tmp_path) as node:
        shown: list[bool] = []

        async def follow(old: Image, new: Image, delta: Delta) -> None:
            await asyncio.sleep(0)
            shown.append(node.quorum.image.topic("t") is not None)

        node.quorum.listen(follow)
        await node.controller.propose(create("t"))
        assert shown == [False] and node.quorum.image.topic("t") is not None


@on_loop
async def test_a_read_only_answer_waits_for_what_it_saw(tmp_path: Path) -> None:
    async with running(tmp_path, disk=Slow()) as node:
        node.controller.propose(create("t"))
        reply = await node.controller.propose(create("t"))
        assert isinstance(reply["t"], KafkaError) and node.quorum.image.topic("t") is not None


@on_loop
async def test_a_caller_that_goes_away_changes_nothing(tmp_path: Path) -> None:
    async with running(tmp_path, disk=Slow()) as node:
        task = node.controller.propose(create("t"))
        await asyncio.sleep(0)
        task.cancel()
        await node.controller.propose(create("u"))
        assert node.quorum.image.topic("t") is not None


@on_loop
async def test_a_failed_sync_ends_the_node(tmp_path: Path) -> None:
    disk = Slow()
    node = Running(tmp_path, disk=disk)
    quorum = await node.start()
    disk.broken = True
    with pytest.raises(KafkaError):
        await node.controller.propose(create("t"))
    assert len(node.fatal) == 1 and quorum.image.topic("t") is None
    with pytest.raises(KafkaError):
        await node.controller.propose(create("u"))
    node.kill()


@on_loop
async def test_snapshots_are_written_and_replace_the_log_before_them(tmp_path: Path) -> None:
    """KRF-10, TRAP-29."""
    small = {
        "metadata_log_max_record_bytes_between_snapshots": "3000",
        "metadata_max_retention_bytes": "4000",
    }
    async with running(tmp_path, **small) as node:
        for n in range(40):
            await node.controller.propose(create(f"t{n}"))
            await asyncio.sleep(0.01)
        node.quorum.store.log.roll()
        for n in range(40, 60):
            await node.controller.propose(create(f"t{n}"))
            await asyncio.sleep(0.01)
        home = tmp_path / "__cluster_metadata-0"
        async with asyncio.timeout(60):  # trimmed beside the loop
            while (home / "00000000000000000000.log").exists():
                await asyncio.sleep(0.01)
    found = sorted(home.glob("*.checkpoint"))
    assert len(found) < 4 and found[0].name != "00000000000000000000-0000000000.checkpoint"
    assert all(path.stat().st_mode & 0o777 == 0o400 for path in found)
    assert not (home / "00000000000000000000.log").exists(), "the log before the oldest snapshot is gone"
    async with running(tmp_path, **small) as node:
        assert len(node.quorum.image.topics) == 60
        assert node.quorum.image.finalised["kraft.version"] == 1
        assert node.quorum.voters.ids == (1,)


@on_loop
async def test_a_damaged_snapshot_is_passed_over_when_the_log_still_has_it_all(tmp_path: Path) -> None:
    async with running(tmp_path) as node:
        await node.controller.propose(create("t"))
        await node.quorum.store.write_snapshot(node.quorum.image, node.quorum.voters)
    newest = sorted((tmp_path / "__cluster_metadata-0").glob("*.checkpoint"))[-1]
    newest.chmod(0o600)
    newest.write_bytes(newest.read_bytes()[:-20])
    async with running(tmp_path) as node:
        assert node.quorum.image.topic("t") is not None


@on_loop
async def test_settings_that_were_set_are_there_after_a_restart(tmp_path: Path) -> None:
    change = {(TOPIC, "t"): {"retention.ms": "77"}}
    async with running(tmp_path) as node:
        await node.controller.propose(create("t"))
        await node.controller.propose(lambda image: controller.incremental_alter_configs(image, change))
    async with running(tmp_path) as node:
        assert node.quorum.image.configs(TOPIC, "t") == {"retention.ms": "77"}


@on_loop
async def test_a_quorum_with_fixed_voters_stays_at_kraft_version_0(tmp_path: Path) -> None:
    fixed = {"controller_quorum_voters": "1@localhost:9093"}
    for epoch in (1, 2):
        async with running(tmp_path, **fixed) as node:
            assert node.quorum.image.kraft_version == 0 and node.quorum.image.epoch == epoch
    home = tmp_path / "__cluster_metadata-0"
    assert json.loads((home / "quorum-state").read_text())["data_version"] == 0
    assert not list(home.glob("*.checkpoint"))
    assert control_records(home / "00000000000000000000.log") == [[2], [2]]


@on_loop
async def test_metadata_of_other_voters_is_refused(tmp_path: Path) -> None:
    with pytest.raises(KafkaError, match="must be included in the set of voters"):
        await Running(tmp_path, controller_quorum_voters="2@localhost:9093").start()


@on_loop
async def test_a_transaction_that_nobody_ended_is_undone(tmp_path: Path) -> None:
    from ottla.metadata.records import BeginTransactionRecord, TopicRecord

    half = [(BeginTransactionRecord(name="x"), 0), (TopicRecord(name="ghost", topic_id=b"g" * 16), 0)]
    node = Running(tmp_path)
    quorum = await node.start()
    await node.controller.propose(lambda _: controller.Decision(half, None))  # type: ignore[arg-type]
    assert quorum.written.in_transaction and not quorum.image.in_transaction
    node.kill()
    async with running(tmp_path) as again:
        assert not again.quorum.image.in_transaction and again.quorum.image.topic("ghost") is None


@on_loop
async def test_the_listener_ports_that_were_bound_are_registered(tmp_path: Path) -> None:
    settings = {"listeners": "PLAINTEXT://localhost:0,CONTROLLER://localhost:0"}
    async with running(tmp_path, **settings) as node:
        endpoint = node.quorum.image.brokers[1].endpoints["PLAINTEXT"]
        assert (endpoint.host, endpoint.port, endpoint.security_protocol) == ("localhost", 19092, 0)


@on_loop
async def test_the_voters_in_the_log_stay_as_they_are_when_our_port_is_another(tmp_path: Path) -> None:
    """An Apache broker that takes its directory back finds its controller by this record."""
    async with running(tmp_path) as node:
        before = node.quorum.voters
    moved = {"listeners": "PLAINTEXT://localhost:0,CONTROLLER://localhost:9999"}
    async with running(tmp_path, **moved) as node:
        assert node.quorum.voters == before
    assert control_records(tmp_path / "__cluster_metadata-0" / "00000000000000000000.log") == [[2, 5, 6], [2]]


@on_loop
async def test_a_node_that_could_not_start_can_be_stopped(tmp_path: Path) -> None:
    node = Running(tmp_path)
    await node.quorum.stop()


@on_loop
async def test_a_listener_that_fails_is_the_end_of_the_node(tmp_path: Path) -> None:
    """Whoever follows the metadata and cannot go on would serve something else than what was promised."""
    node = Running(tmp_path)
    quorum = await node.start()

    async def fail(old: Image, new: Image, delta: Delta) -> None:
        raise RuntimeError("cannot follow")

    quorum.listen(fail)
    waiting = [node.controller.propose(create("t")), node.controller.propose(create("u"))]
    for answer in waiting:
        with pytest.raises(KafkaError):
            await answer
    assert [str(error) for error in node.fatal] == ["cannot follow"]
    node.kill()


@on_loop
async def test_pictures_that_are_committed_while_the_first_is_shown_wait_for_it(tmp_path: Path) -> None:
    """Whoever opens logs for the first picture must not be shown the next one meanwhile, nor the first one last."""
    node = Running(tmp_path)
    begun, go_on = asyncio.Event(), asyncio.Event()
    order: list[tuple[str, int]] = []

    async def slowly(old: Image, new: Image, delta: Delta) -> None:
        order.append(("begins", new.offset))
        begun.set()
        await go_on.wait()
        order.append(("ends", new.offset))

    node.quorum.listen(slowly)
    starting = asyncio.ensure_future(node.start())
    await begun.wait()
    created = node.controller.propose(create("t"))
    await node.quorum.committed_end.reaches(node.quorum.store.end_offset)
    await asyncio.sleep(0.01)
    go_on.set()
    await asyncio.gather(starting, created)
    offsets = [offset for _, offset in order]
    assert [what for what, _ in order] == ["begins", "ends"] * (len(order) // 2) and offsets == sorted(offsets)
    assert node.quorum.image.topic("t") is not None
    await node.stop()


@on_loop
async def test_a_decision_of_which_only_a_part_was_written_is_shown_as_far_as_it_goes(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The first batch of a large election is in the log, though there was no room for the second one."""
    async with running(tmp_path) as node:
        monkeypatch.setattr("ottla.server.quorum.RECORDS_PER_REQUEST_MAX", 2)
        append, calls = node.quorum.store.append_records, 0

        def fails_then(*args: Any) -> int:
            nonlocal calls
            calls += 1
            if calls == 2:
                raise OSError(errno.EIO, "not now")
            return append(*args)

        monkeypatch.setattr(node.quorum.store, "append_records", fails_then)
        with pytest.raises(KafkaError):
            await node.controller.propose(create("t", partitions=3))
        await node.controller.propose(create("u"))
        shown = {topic.name for _, _, delta in node.seen for topic in delta.created.values()}
        assert shown == {name for name in ("t", "u") if node.quorum.image.topic(name) is not None} == {"t", "u"}


@on_loop
async def test_a_snapshot_of_a_later_epoch_takes_the_place_of_a_log_that_parted_before_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A crash came after the leader's snapshot was kept, and before the log that contradicts it was let go."""

    async def keep_all() -> None: ...

    async with running(tmp_path) as node:
        await node.controller.propose(create("t"))
        image, store = node.quorum.image, node.quorum.store
        monkeypatch.setattr(store, "trim", keep_all)
        await node.controller.propose(create("never-committed"))
        await store.write_snapshot(replace(image, epoch=9), node.quorum.voters)
        assert store.end_offset > image.offset + 1
    async with running(tmp_path) as again:
        assert again.quorum.store.start_offset == image.offset + 1
        assert again.quorum.image.topic("t") and not again.quorum.image.topic("never-committed")


@on_loop
async def test_a_long_log_is_replayed_in_pieces(tmp_path: Path) -> None:
    """Who catches up with one gives the loop back between two of them, and ends with the same picture."""
    async with running(tmp_path) as node:
        for number in range(9):
            await node.controller.propose(create(f"t{number}", partitions=2_000))
        store, image = node.quorum.store, node.quorum.image
        steps = list(store.replay(Image(cluster_id=image.cluster_id), store.end_offset))
        counts = [len(delta.partitions) for _, delta in steps]
        assert sum(counts) == 18_000 and max(counts) <= 14_000
        assert steps[-1][0].topics == image.topics and steps[-1][0].offset == image.offset


class Crammed(RealFile):
    __slots__ = ("disk",)

    def __init__(self, path: str, flags: int, disk: Full) -> None:
        self.disk = disk
        super().__init__(path, flags)

    def write_at(self, position: int, parts: Sequence[Bytes]) -> None:
        self.disk.must_have_room()
        super().write_at(position, parts)


class Full(RealDisk):
    """Once there is a ballast, there is no room beside it."""

    def __init__(self) -> None:
        super().__init__(threads=1)
        self.ballast: Path | None = None

    def must_have_room(self) -> None:
        if self.ballast is not None and self.ballast.exists():
            raise OSError(errno.ENOSPC, "No space left on device")

    def open(self, path: str, *, create: bool = False) -> RealFile:
        return Crammed(path, os.O_RDWR | (os.O_CREAT if create else 0), self)

    def replace(self, path: str, data: bytes) -> None:
        self.must_have_room()
        super().replace(path, data)

    def space(self, path: str) -> tuple[int, int]:
        return 1 << 30, 0 if self.ballast is not None else 1 << 30


WRITES = {
    "copies": lambda store: list(
        store.append_copies(snapshots.batch_of([b"x"], store.end_offset, store.log.epochs.latest, 0), 99)
    ),
    "a promise": lambda store: store.write_state(QuorumState(), 1, VoterSet()),
}


@pytest.mark.parametrize("what", WRITES)
@on_loop
async def test_the_last_room_of_a_full_disk_is_for_the_metadata(tmp_path: Path, what: str) -> None:
    """TRAP-18: a node whose metadata is the first to find the disk full ended, with a megabyte kept back for that day."""
    async with running(tmp_path, disk=(disk := Full())) as node:
        await node.controller.propose(create("t"))
        store = node.quorum.store
        ballast = node.directories.ballasts[str(tmp_path)]
        assert ballast.take()
        disk.ballast = Path(ballast.directory) / NAME
        WRITES[what](store)
        assert ballast.released
        disk.ballast.touch()
        with pytest.raises((OSError, KafkaError)):
            WRITES[what](store)
        disk.ballast = None
