"""A data directory: lock, identity, checkpoints, logs that come and go."""

from __future__ import annotations

import errno
import random
import sys
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest

from ottla.log import identity, retention, trimming
from ottla.log.checkpoints import BadCheckpoint, read_epochs, read_offsets, write_offsets
from ottla.log.directory import DataDirectory, partition_of
from ottla.log.identity import MetaProperties
from ottla.log.settings import LogSettings
from ottla.sim.disk import Loss, SimDisk, SimFile
from ottla.wire.ids import uuid_text
from ottla.world import Disk, RealDisk

sys.path.insert(0, str(Path(__file__).parent))
from logs import NOW_MS, SMALL, Clock, batch, fill, offsets, put, read_batches, run

META = MetaProperties("cluster-1", 4, bytes(range(16)))
TOPIC_ID = b"topic id, 16 byt"


def opened(disk: Disk, path: str = "/logs/a", clock: Clock | None = None) -> DataDirectory:
    directory = DataDirectory(disk, path, now_ms=clock or Clock(), rng=random.Random(1))
    if directory.open() is None:
        directory.format(META)
    run(directory.load(lambda topic: SMALL))
    return directory


def test_logs_are_created_loaded_and_deleted() -> None:
    """LOG-01, LOG-09: a directory `<topic>-<partition>` each."""
    disk = SimDisk()
    directory = opened(disk)
    for topic in ("orders", "with-dash", "dots.and_under"):
        log = run(directory.create(topic, 3, TOPIC_ID, SMALL))
        fill(log, 5)
    assert disk.is_directory("/logs/a/with-dash-3")
    directory.close(broker_epoch=12)
    directory = opened(disk)
    assert directory.clean_epoch == 12
    assert sorted(directory.logs) == [("dots.and_under", 3), ("orders", 3), ("with-dash", 3)]
    assert directory.logs["orders", 3].topic_id == TOPIC_ID
    assert offsets(read_batches(directory.logs["orders", 3], 0)) == [0, 2, 4, 6, 8]


def test_one_process_at_a_time(tmp_path: Path) -> None:
    disk = SimDisk()
    directory = opened(disk)
    with pytest.raises(BlockingIOError):
        opened(disk)
    directory.close()
    opened(disk)


def test_identity_is_read_back() -> None:
    disk = SimDisk()
    opened(disk).close()
    assert opened(disk).meta == META
    text = disk.read("/logs/a/meta.properties").decode()
    assert "version=1\n" in text and "directory.id=AAECAwQFBgcICQoLDA0ODw\n" in text


def test_java_properties_are_understood() -> None:
    disk = SimDisk()
    disk.make_directory("/x")
    odd = MetaProperties("a:b=c#d!e\\f", 1, bytes(16))
    identity.write_meta_properties(disk, "/x", odd, NOW_MS)
    assert identity.read_meta_properties(disk, "/x") == odd


def test_other_versions_of_the_identity_are_refused() -> None:
    disk = SimDisk()
    disk.make_directory("/x")
    disk.replace("/x/meta.properties", b"version=0\nbroker.id=1\ncluster.id=c\n")
    with pytest.raises(identity.BadIdentity):
        identity.read_meta_properties(disk, "/x")
    disk.replace("/x/meta.properties", b"version=1\nnode.id=1\ncluster.id=c\ndirectory.id=short\n")
    with pytest.raises(identity.BadIdentity, match="no id"):
        identity.read_meta_properties(disk, "/x")


def test_the_clean_mark_is_gone_for_good_before_the_first_log_opens() -> None:
    """TRAP-12: per directory; its epoch is kept for the registration; a crash right after does not bring it back."""
    disk = SimDisk()
    opened(disk).close(broker_epoch=730)
    assert disk.read("/logs/a/.kafka_cleanshutdown") == b'{"version":0,"brokerEpoch":730}'
    directory = DataDirectory(disk, "/logs/a", now_ms=Clock(), rng=random.Random(1))
    directory.open()
    assert directory.clean_epoch == 730 and directory.was_clean
    after = disk.crash(random.Random(1), Loss.LOST)
    assert not after.exists("/logs/a/.kafka_cleanshutdown")


@pytest.mark.parametrize("content", [b"", b"{}", b"nonsense", b'{"version":0}'])
def test_a_mark_without_an_epoch_is_still_a_mark(content: bytes) -> None:
    """TRAP-12"""
    disk = SimDisk()
    opened(disk).close()
    disk.replace("/logs/a/.kafka_cleanshutdown", content)
    assert opened(disk).clean_epoch == -1


def test_the_topic_id_is_on_disk_before_the_first_byte_of_data() -> None:
    """TRAP-13"""
    disk = SimDisk()
    directory = opened(disk)
    disk.trace = []
    run(directory.create("t", 0, TOPIC_ID, SMALL))
    kinds = [(kind, path.rpartition("/")[2]) for kind, path in disk.trace]
    synced = kinds.index(("sync", "partition.metadata.tmp"))
    assert synced < kinds.index(("sync directory", "t-0")) < kinds.index(("sync directory", "a"))
    assert kinds.index(("create", "00000000000000000000.log")) > kinds.index(("sync directory", "a"))
    assert disk.read("/logs/a/t-0/partition.metadata") == b"version: 0\ntopic_id: " + uuid_text(TOPIC_ID).encode()


@pytest.mark.parametrize("records", [0, 3])
@pytest.mark.parametrize("damage", ["missing", "damaged"])
def test_a_directory_without_topic_id_is_kept(damage: str, records: int) -> None:
    """TRAP-13: renamed, never deleted; and one with records stays where it is until somebody knows that no topic misses it."""
    disk = SimDisk()
    directory = opened(disk)
    fill(run(directory.create("t", 0, TOPIC_ID, SMALL)), records)
    directory.close()
    spoil_identity(disk, damage)
    for _ in range(2):
        directory = opened(disk)
        assert not directory.logs and list(directory.unidentified) == ([("t", 0)] if records else [])
        [kept] = [name for name in disk.names("/logs/a") if name.startswith("t-0")]
        assert kept.endswith("-stray") == (not records) and f"{0:020d}.log" in disk.names(f"/logs/a/{kept}")
        assert run(directory.sweep()) == 0
        directory.close()
    log = run(opened(disk).create("t", 0, b"another id, 16 b", SMALL))
    [stray] = [name for name in disk.names("/logs/a") if name.endswith("-stray")]
    assert log.end_offset == 0 and (disk.size(f"/logs/a/{stray}/{0:020d}.log") > 0) == (records > 0)


def spoil_identity(disk: SimDisk, damage: str = "damaged") -> None:
    if damage == "missing":
        disk.remove("/logs/a/t-0/partition.metadata")
    else:
        disk.replace("/logs/a/t-0/partition.metadata", b"version: 9")


def test_a_log_that_no_topic_claims_can_be_set_aside() -> None:
    """TRAP-13: unknown to the image."""
    disk = SimDisk()
    directory = opened(disk)
    run(directory.create("t", 0, TOPIC_ID, SMALL))
    path = directory.set_aside("t", 0)
    assert path.endswith("-stray") and disk.is_directory(path) and not directory.logs


def test_what_is_left_of_a_namesake_is_set_aside(monkeypatch: pytest.MonkeyPatch) -> None:
    """TRAP-13: it could not be renamed when its topic was deleted, and then the name was given again."""
    disk, other_id = SimDisk(), b"another id, 16 b"
    directory = opened(disk)
    fill(run(directory.create("t", 0, TOPIC_ID, SMALL)), 3)

    def refuse(old: str, new: str) -> None:
        raise OSError(errno.EIO, "the disk is not well", old)

    with monkeypatch.context() as sick, pytest.raises(OSError, match="not well"):
        sick.setattr(disk, "rename", refuse)
        run(directory.delete("t", 0))
    log = run(directory.create("t", 0, other_id, SMALL))
    assert log.end_offset == 0 and not read_batches(log, 0)
    assert identity.read_topic_id(disk, "/logs/a/t-0") == other_id
    [stray] = [name for name in disk.names("/logs/a") if name.endswith("-stray")]
    assert identity.read_topic_id(disk, f"/logs/a/{stray}") == TOPIC_ID
    assert disk.size(f"/logs/a/{stray}/{0:020d}.log") > 0


@pytest.mark.parametrize("fails_at", ["partition.metadata.tmp", f"{0:020d}.log"])
def test_a_log_that_could_not_be_made_is_made_where_it_was_begun(
    fails_at: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """However often that is tried, nothing is set aside."""
    disk = SimDisk()
    directory, opens = opened(disk), disk.open

    def refuse(path: str, *, create: bool = False) -> SimFile:
        file = opens(path, create=create)
        if path.endswith(fails_at):
            raise OSError(errno.ENOSPC, "no room", path)
        return file

    with monkeypatch.context() as full:
        full.setattr(disk, "open", refuse)
        with pytest.raises(OSError, match="no room"):
            run(directory.create("t", 0, TOPIC_ID, SMALL))
        with suppress(OSError):
            run(directory.create("t", 0, TOPIC_ID, SMALL))
    fill(run(directory.create("t", 0, TOPIC_ID, SMALL)), 3)
    assert not [name for name in disk.names("/logs/a") if name.endswith("-stray")]


def test_deleting_a_topic_renames_at_once_and_removes_later() -> None:
    """LOG-09: `<topic>-<partition>.<32 hex>-delete`"""
    disk, clock = SimDisk(), Clock()
    directory = opened(disk, clock=clock)
    fill(run(directory.create("t", 0, TOPIC_ID, SMALL)), 3)
    run(directory.delete("t", 0))
    [name] = [name for name in disk.names("/logs/a") if name.endswith("-delete")]
    topic, unique = name.removesuffix("-delete").split(".")
    assert topic == "t-0" and len(unique) == 32 and int(unique, 16)
    run(directory.create("t", 0, TOPIC_ID, SMALL))
    assert run(directory.sweep()) == 0
    clock.now_ms += 60_000
    assert run(directory.sweep()) == 1 and name not in disk.names("/logs/a")


def test_what_checkpoints_say_of_a_log_that_is_gone_is_not_said_of_the_next_one() -> None:
    """Or a crash would make that one believe that it begins where the old one did."""
    disk = SimDisk()
    directory = opened(disk)
    log = run(directory.create("t", 0, TOPIC_ID, SMALL))
    fill(log, 20)
    log.delete_records(33, 40)
    run(directory.checkpoint())
    run(directory.delete("t", 0))
    fill(run(directory.create("t", 0, b"another topic id", SMALL)), 5)
    again = opened(disk.outlive())
    assert (again.logs["t", 0].start_offset, again.logs["t", 0].end_offset) == (0, 10)


def test_an_interrupted_deletion_is_finished_after_the_start() -> None:
    disk = SimDisk()
    directory = opened(disk)
    run(directory.create("t", 0, TOPIC_ID, SMALL))
    run(directory.delete("t", 0))
    directory.close()
    directory = opened(disk)
    assert not directory.logs and run(directory.sweep()) == 1
    assert not [name for name in disk.names("/logs/a") if name.endswith("-delete")]


def test_long_topic_names_are_cut_in_the_name_of_the_dead_directory() -> None:
    disk = SimDisk()
    directory = opened(disk)
    run(directory.create("x" * 249, 0, TOPIC_ID, SMALL))
    run(directory.delete("x" * 249, 0))
    [name] = [name for name in disk.names("/logs/a") if name.endswith("-delete")]
    assert len(name) == 255


def test_checkpoints_are_written_and_read_back() -> None:
    """TRAP-16: recovery points of all logs, log starts only of logs that begin inside a segment."""
    disk = SimDisk()
    directory = opened(disk)
    first, second = (run(directory.create("t", number, TOPIC_ID, SMALL)) for number in range(2))
    fill(first, 60)
    fill(second, 5)
    run(first.settle())
    first.delete_records(33, 120)
    run(directory.checkpoint({("t", 0): 100, ("t", 1): 4}))
    assert read_offsets(disk, "/logs/a/recovery-point-offset-checkpoint") == {("t", 0): 120, ("t", 1): 0}
    assert disk.read("/logs/a/log-start-offset-checkpoint") == b"0\n1\nt 0 33\n"
    assert disk.read("/logs/a/replication-offset-checkpoint") == b"0\n2\nt 0 100\nt 1 4\n"
    directory.release()
    directory = opened(disk)
    assert directory.high_watermarks == {("t", 0): 100, ("t", 1): 4}
    assert directory.logs["t", 0].start_offset == 33
    assert not directory.loading.clean and directory.loading.logs == 2


def test_the_start_of_a_log_is_written_down_until_the_names_before_it_are_gone(monkeypatch: pytest.MonkeyPatch) -> None:
    """A checkpoint beside retention: the log began with its first segment by then, so its start was left out, and a power cut
    brought back what was deleted, with holes in it."""
    found: list[SimDisk] = []
    disk = SimDisk()
    directory = opened(disk)
    log = run(directory.create("t", 0, TOPIC_ID, LogSettings(segment_bytes=600, retention_bytes=1000, retention_ms=-1)))
    fill(log, 40)
    run(log.flush())
    run(directory.checkpoint())
    away = disk.away

    async def and_checkpoint(call: Callable[..., Any], *args: Any) -> Any:
        if call is trimming.sync_names:
            await directory.checkpoint()
            found.extend(disk.survivors(random.Random(seed), loss) for seed in range(5) for loss in Loss)
        return await away(call, *args)

    monkeypatch.setattr(disk, "away", and_checkpoint)
    run(retention.perform(log, retention.plan(log, 0, log.end_offset)))
    assert log.start_offset > 20 and found
    for left in found:
        again = opened(left).logs["t", 0]
        assert (again.start_offset, again.end_offset) == (log.start_offset, log.end_offset)
    run(directory.checkpoint())
    assert disk.read("/logs/a/log-start-offset-checkpoint") == b"0\n0\n"


WAYS = ["none", "directory", "last segment", "all segments", "cut between", "cut inside", "identity"]


@pytest.mark.parametrize("damage", WAYS)
def test_what_was_taken_away_after_a_clean_stop_is_noticed(damage: str) -> None:
    """A broker must not vouch for such a log as its clean stop did, and says which one it is."""
    disk = SimDisk()
    directory = opened(disk)
    log = run(directory.create("t", 0, TOPIC_ID, SMALL))
    run(directory.create("empty", 0, TOPIC_ID, SMALL))
    fill(log, 60)
    end, paths = log.end_offset, [f"{segment.path}.log" for segment in log.segments]
    position = log.active.size - log.active.batch_size(0)
    directory.close()
    if damage == "directory":
        disk.remove_tree("/logs/a/t-0")
    elif damage.startswith("cut"):
        disk.open(paths[-1]).truncate(position + (damage == "cut inside"))
    elif damage == "identity":
        spoil_identity(disk)
    elif damage != "none":
        for path in paths if damage.startswith("all") else paths[-1:]:
            disk.remove(path)
    directory = DataDirectory(disk, "/logs/a", now_ms=Clock(), rng=random.Random(1))
    directory.open()
    run(directory.look_at_tails())
    assert directory.was_clean and directory.is_shortened == (damage != "none")
    run(directory.load(lambda topic: SMALL))
    told = [(name, known) for name, _, known in directory.loading.shortened]
    assert told == ([] if damage in ("none", "directory", "identity") else [("t-0", end)])


def test_what_all_replicas_had_and_a_power_cut_took_is_named() -> None:
    """Here it was never synced: only the watermark tells."""
    disk = SimDisk()
    directory = opened(disk)
    fill(run(directory.create("t", 0, TOPIC_ID, SMALL)), 5)
    run(directory.checkpoint({("t", 0): 8}))
    again = opened(disk.crash(random.Random(1), Loss.LOST))
    assert again.loading.shortened == [("t-0", 0, 8)]


def test_a_log_that_could_not_be_put_aside_spoils_the_mark_of_a_clean_stop(monkeypatch: pytest.MonkeyPatch) -> None:
    """Nobody closes it any more, and a start would find it where it was."""
    disk = SimDisk()
    directory = opened(disk)
    fill(run(directory.create("t", 0, TOPIC_ID, SMALL)), 5)

    def refuse(disk: SimDisk, old: str, new: str) -> None:
        raise OSError(errno.EIO, "Input/output error")

    with monkeypatch.context() as patch, pytest.raises(OSError):
        patch.setattr(SimDisk, "rename", refuse)
        directory.set_aside("t", 0)
    directory.close()
    assert not opened(disk).was_clean


def test_empty_and_damaged_checkpoints() -> None:
    """TRAP-16: 0 bytes are legal; nonsense is an error for whoever asks, and means "scan everything" at a start."""
    disk = SimDisk()
    disk.make_directory("/x")
    assert read_offsets(disk, "/x/none") == {} and read_epochs(disk, "/x/none") == []
    disk.replace("/x/empty", b"")
    assert read_offsets(disk, "/x/empty") == {}
    disk.replace("/x/no-lines", b"0\n0\n")
    assert read_offsets(disk, "/x/no-lines") == {}
    for bad in (b"0\n", b"1\n0\n", b"0\n2\nt 0 5\n", b"0\n1\nt 0\n", b"x\n", b"0\n1\nt\n"):
        disk.replace("/x/bad", bad)
        with pytest.raises(BadCheckpoint):
            read_offsets(disk, "/x/bad")
    write_offsets(disk, "/x/good", {("a.b-c", 2): 5})
    assert disk.read("/x/good") == b"0\n1\na.b-c 2 5\n"
    directory = opened(disk)
    fill(run(directory.create("t", 0, TOPIC_ID, SMALL)), 60)
    directory.release()
    disk.replace("/logs/a/recovery-point-offset-checkpoint", b"damaged")
    assert opened(disk).logs["t", 0].end_offset == 120


def test_the_metadata_log_is_somebody_elses() -> None:
    disk = SimDisk()
    disk.make_directory("/logs/a/__cluster_metadata-0")
    directory = opened(disk)
    assert not directory.logs and disk.is_directory("/logs/a/__cluster_metadata-0")


def test_names_of_partition_directories() -> None:
    assert partition_of("orders-12") == ("orders", 12)
    assert partition_of("with-dash-0") == ("with-dash", 0)
    for name in ("orders", "orders-", "-1", "orders-x", "orders-01", "orders-1.abc-delete", "orders-1.abc-future"):
        assert partition_of(name) is None


def test_two_directories_on_a_real_disk(tmp_path: Path) -> None:
    """LOG-14: several log.dirs, each with its own lock, checkpoints and logs."""
    disk = RealDisk()
    directories = [opened(disk, str(tmp_path / name)) for name in ("a", "b")]
    for number, directory in enumerate(directories):
        fill(run(directory.create("t", number, TOPIC_ID, SMALL)), 20)
        directory.close()
    for number, name in enumerate(("a", "b")):
        again = opened(disk, str(tmp_path / name))
        assert list(again.logs) == [("t", number)] and again.loading.clean


def test_a_log_that_cannot_be_closed_leaves_no_clean_mark() -> None:
    disk = SimDisk()
    directory = opened(disk)
    fill(run(directory.create("t", 0, TOPIC_ID, SMALL)), 3)
    disk.failing_syncs = lambda path: path.endswith(".log")
    directory.close()
    assert not disk.exists("/logs/a/.kafka_cleanshutdown")


@pytest.mark.parametrize("text", ["0\n1\nt 0 1x3\n", "0\n1\nt zero 13\n", "0\n1\nt 0 -13\n", "0\n1\nt 0 1 3\n"])
def test_a_checkpoint_that_is_damaged_is_as_good_as_none(text: str) -> None:
    """More is scanned, and nothing else happens."""
    disk = SimDisk()
    directory = opened(disk)
    fill(run(directory.create("t", 0, TOPIC_ID, SMALL)), 5)
    run(directory.checkpoint())
    directory.release()
    disk.replace("/logs/a/recovery-point-offset-checkpoint", text.encode())
    assert opened(disk).logs["t", 0].end_offset == 10


@pytest.mark.parametrize("text", [b"0\n2\n1 0\n2 1x\n", b"\xff\xfe", b"0\n7\n1 0\n"])
@pytest.mark.parametrize("clean", [True, False])
def test_epochs_are_found_in_the_batches_when_their_file_is_damaged(text: bytes, clean: bool) -> None:
    """Also below the recovery point, where nothing else is looked at."""
    disk = SimDisk()
    directory = opened(disk)
    log = run(directory.create("t", 0, TOPIC_ID, SMALL))
    for epoch in (1, 4, 9):
        put(log, batch(), batch(), epoch=epoch)
    run(log.settle())
    run(directory.checkpoint())
    directory.close() if clean else directory.release()
    disk.replace("/logs/a/t-0/leader-epoch-checkpoint", text)
    assert opened(disk).logs["t", 0].epochs.entries == [(1, 0), (4, 2), (9, 4)]
    assert read_epochs(disk, "/logs/a/t-0/leader-epoch-checkpoint") == [(1, 0), (4, 2), (9, 4)]


def test_a_log_whose_directory_was_removed_by_hand_can_be_deleted() -> None:
    """An error here would end the node: the deletion is committed and must be followed."""
    disk = SimDisk()
    directory = opened(disk)
    run(directory.create("t", 0, TOPIC_ID, SMALL))
    disk.remove_tree("/logs/a/t-0")
    run(directory.delete("t", 0))
    assert run(directory.sweep()) == 0 and not directory.logs


def test_a_log_is_not_compacted_beyond_its_end() -> None:
    """Files were lost, or put back from elsewhere: what comes up to there later was never looked at."""
    disk = SimDisk()
    directory = opened(disk)
    fill(run(directory.create("t", 0, TOPIC_ID, SMALL)), 5)
    directory.close()
    for cleaned_to, believed in ((10, 10), (11, -1)):
        write_offsets(disk, "/logs/a/cleaner-offset-checkpoint", {("t", 0): cleaned_to})
        directory = opened(disk)
        assert directory.logs["t", 0].cleaned_to == believed
        directory.close()
