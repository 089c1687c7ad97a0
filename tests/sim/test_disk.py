"""The simulated disk: what survives a power cut, and faults on purpose."""

from __future__ import annotations

import asyncio
import errno
import os
import random
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from ottla.sim.disk import SECTOR, Loss, PowerCut, SimDisk
from ottla.world import RealDisk

SEEDS = range(60)


def disk_with(data: bytes = b"", *, synced: bool = True) -> SimDisk:
    disk = SimDisk()
    disk.make_directory("/d")
    disk.sync_directory("/")
    file = disk.open("/d/f", create=True)
    file.write_at(0, [data])
    if synced:
        file.sync()
        disk.sync_directory("/d")
    return disk


def after(disk: SimDisk, loss: Loss, seed: int = 0) -> bytes | None:
    left = disk.survivors(random.Random(seed), loss)
    return left.read("/d/f") if left.exists("/d/f") else None


@pytest.mark.parametrize("loss", Loss)
def test_what_was_synced_survives(loss: Loss) -> None:
    disk = disk_with(b"synced")
    for seed in SEEDS:
        assert after(disk, loss, seed) == b"synced"


@pytest.mark.parametrize("loss", Loss)
def test_a_file_needs_its_name_synced_too(loss: Loss) -> None:
    disk = disk_with(b"data", synced=False)
    disk.open("/d/f").sync()
    outcomes = {after(disk, loss, seed) for seed in SEEDS}
    assert None in outcomes
    disk.sync_directory("/d")
    assert {after(disk, loss, seed) for seed in SEEDS} == {b"data"}


def test_unsynced_writes_are_lost_kept_or_torn() -> None:
    disk = disk_with(b"a" * 10)
    file = disk.open("/d/f")
    file.write_at(10, [b"b" * 5])
    file.write_at(15, [b"c" * 5])
    assert file.read_at(0, 100) == b"a" * 10 + b"b" * 5 + b"c" * 5
    assert {after(disk, Loss.LOST, seed) for seed in SEEDS} == {b"a" * 10}
    subsets = {after(disk, Loss.SUBSET, seed) for seed in SEEDS}
    assert subsets == {
        b"a" * 10,
        b"a" * 10 + b"b" * 5,
        b"a" * 10 + bytes(5) + b"c" * 5,
        b"a" * 10 + b"b" * 5 + b"c" * 5,
    }


def test_a_torn_write_leaves_some_of_its_sectors() -> None:
    disk = disk_with(b"")
    disk.open("/d/f").write_at(100, [b"x" * 2000])
    outcomes = {after(disk, Loss.TORN, seed) for seed in SEEDS}
    assert len(outcomes) > 5
    for outcome in outcomes:
        assert outcome is not None
        for start in range(0, len(outcome), SECTOR):
            sector = outcome[max(start, 100) : start + SECTOR]
            assert sector == b"x" * len(sector) or not any(sector)


def test_truncations_are_lost_or_kept_like_writes() -> None:
    disk = disk_with(b"abcdef")
    disk.open("/d/f").truncate(2)
    assert {after(disk, Loss.SUBSET, seed) for seed in SEEDS} == {b"ab", b"abcdef"}
    disk.open("/d/f").truncate(4)
    assert disk.read("/d/f") == b"ab\0\0"


def test_renames_and_removals_vanish_without_a_directory_sync() -> None:
    disk = disk_with(b"x")
    disk.rename("/d/f", "/d/g")
    names = {tuple(disk.survivors(random.Random(seed), Loss.SUBSET).names("/d")) for seed in SEEDS}
    assert names == {("f",), ("g",)}
    disk.sync_directory("/d")
    assert disk.survivors(random.Random(1), Loss.LOST).names("/d") == ["g"]
    disk.remove("/d/g")
    assert disk.survivors(random.Random(1), Loss.LOST).names("/d") == ["g"]


@pytest.mark.parametrize("loss", Loss)
def test_replace_is_all_or_nothing_at_every_step(loss: Loss) -> None:
    for stop in range(1, 12):
        disk = disk_with(b"old")
        disk.stop_at = disk.calls + stop
        try:
            disk.replace("/d/f", b"new content")
        except PowerCut:
            assert {after(disk, loss, seed) for seed in SEEDS} <= {b"old", b"new content"}
        else:
            disk.stop_at = None
            assert {after(disk, loss, seed) for seed in SEEDS} == {b"new content"}
            assert stop > 5
            return


def test_the_power_goes_at_the_chosen_call_and_stays_away() -> None:
    disk = disk_with(b"one")
    file = disk.open("/d/f")
    disk.stop_at = disk.calls + 2
    file.write_at(0, [b"two"])
    with pytest.raises(PowerCut):
        file.write_at(0, [b"three"])
    calls: list[Callable[[], object]] = [file.size, lambda: disk.read("/d/f"), lambda: disk.names("/d"), file.sync]
    for call in calls:
        with pytest.raises(PowerCut):
            call()
    left = disk.crash(random.Random(0), Loss.LOST)
    assert left.read("/d/f") == b"one"


def test_the_same_seed_leaves_the_same_disk() -> None:
    disk = disk_with(b"start")
    for number in range(50):
        disk.open("/d/f").write_at(number * 7, [b"%d" % number * 3])
        disk.open(f"/d/{number}", create=True).write_at(0, [b"x" * 700])
    for loss in Loss:
        first, second = (disk.survivors(random.Random(9), loss) for _ in range(2))
        assert first.names("/d") == second.names("/d")
        assert [first.read(f"/d/{name}") for name in first.names("/d")] == [
            second.read(f"/d/{name}") for name in second.names("/d")
        ]


def test_a_full_disk_writes_what_fits() -> None:
    disk = disk_with(b"x" * 100)
    disk.capacity = 150
    file = disk.open("/d/f")
    with pytest.raises(OSError) as caught:
        file.write_at(100, [b"y" * 100])
    assert caught.value.errno == errno.ENOSPC and file.size() == 150
    file.truncate(100)
    file.write_at(0, [b"z" * 100])
    file.write_at(100, [b"y" * 50])
    assert disk.space("/d") == (150, 0)
    disk.remove("/d/f")
    assert disk.space("/d") == (150, 150)


def test_a_failing_sync_makes_nothing_durable() -> None:
    disk = disk_with(b"old")
    file = disk.open("/d/f")
    file.write_at(0, [b"new"])
    disk.failing_syncs = lambda path: path == "/d/f"
    with pytest.raises(OSError) as caught:
        file.sync()
    assert caught.value.errno == errno.EIO
    assert after(disk, Loss.LOST) == b"old"


def test_rot_flips_one_bit_for_good() -> None:
    disk = disk_with(b"\0\0")
    disk.rot("/d/f", 9)
    assert disk.read("/d/f") == b"\0\2" == after(disk, Loss.LOST)


def test_open_files_outlive_their_names() -> None:
    disk = disk_with(b"still here")
    file = disk.open("/d/f")
    disk.remove("/d/f")
    assert file.read_at(0, 100) == b"still here" and not disk.exists("/d/f")
    with pytest.raises(FileNotFoundError):
        disk.open("/d/f")


def test_directories_move_with_all_they_hold() -> None:
    disk = disk_with(b"x")
    disk.rename("/d", "/e")
    assert disk.read("/e/f") == b"x" and not disk.is_directory("/d")
    assert disk.survivors(random.Random(1), Loss.LOST).read("/d/f") == b"x"
    disk.sync_directory("/")
    assert disk.survivors(random.Random(1), Loss.LOST).read("/e/f") == b"x"
    disk.remove_tree("/e")
    assert disk.names("/") == []


def test_locks_are_held_by_one() -> None:
    disk = disk_with()
    release = disk.lock("/d/.lock")
    with pytest.raises(BlockingIOError):
        disk.lock("/d/.lock")
    release()
    disk.lock("/d/.lock")
    disk.survivors(random.Random(1), Loss.LOST).lock("/d/.lock")


def test_calls_made_away_take_their_time() -> None:
    async def scenario() -> float:
        disk = disk_with(b"x")
        disk.latency_s = 0.001
        begun = time.perf_counter()
        for _ in range(5):
            assert await disk.away(disk.read, "/d/f") == b"x"
        return time.perf_counter() - begun

    assert asyncio.run(scenario()) > 0


def test_it_answers_like_the_real_disk(tmp_path: object) -> None:
    """The same calls on both give the same answers."""

    def story(disk: SimDisk | RealDisk, root: str) -> list[object]:
        seen: list[object] = []
        disk.make_directory(f"{root}/a/b")
        disk.make_directory(f"{root}/a/b")
        file = disk.open(f"{root}/a/f", create=True)
        file.write_at(3, [b"x", bytearray(b"yz"), memoryview(b"w")])
        seen += [file.size(), file.read_at(0, 4), file.read_at(5, 100), file.read_at(50, 1)]
        file.truncate(2)
        file.sync()
        seen += [disk.size(f"{root}/a/f"), disk.read(f"{root}/a/f"), disk.names(f"{root}/a")]
        disk.replace(f"{root}/a/g", b"whole")
        disk.rename(f"{root}/a/g", f"{root}/a/f")
        seen += [disk.read(f"{root}/a/f"), disk.exists(f"{root}/a/g"), disk.is_directory(f"{root}/a/b")]
        for call in (disk.read, disk.remove, disk.size, disk.open):
            with pytest.raises(FileNotFoundError):
                call(f"{root}/a/none")
        disk.sync_directory(f"{root}/a")
        disk.remove_tree(f"{root}/a")
        seen.append(disk.exists(f"{root}/a"))
        return seen

    simulated = SimDisk()
    simulated.make_directory("/root")
    assert story(simulated, "/root") == story(RealDisk(), str(tmp_path))


def test_what_a_crash_left_is_in_memory_once_it_was_read() -> None:
    disk = disk_with(b"some bytes")
    assert disk.open("/d/f").read_cached(5, 5) == b"bytes"
    found = disk.survivors(random.Random(1), Loss.LOST).open("/d/f")
    assert found.read_cached(5, 5) is None and not found.is_cached(5, 5)
    found.bring_in(5, 5)
    assert found.is_cached(5, 5) and found.read_cached(5, 5) == b"bytes"
    assert found.read_cached(5, 6) is None


def test_a_real_file_tells_what_is_in_memory(tmp_path: Path) -> None:
    file = RealDisk().open(str(tmp_path / "f"), create=True)
    data = random.Random(1).randbytes(2_000_000)
    file.write_at(0, [data])
    assert file.is_cached(0, len(data))
    assert bytes(file.read_cached(1_000_000, 50) or b"") == data[1_000_000:1_000_050]
    assert file.read_cached(1_999_990, 11) is None
    file.sync()
    assert file.fd is not None
    os.posix_fadvise(file.fd, 0, 0, os.POSIX_FADV_DONTNEED)
    if file.is_cached(0, len(data)):
        pytest.skip("the file system keeps what it is told to forget")
    file.bring_in(0, len(data))
    assert file.is_cached(0, len(data))
    file.bring_in(1_900_000, 5_000_000)  # the file may have been cut since somebody looked


def test_a_copy_has_everything_synced_and_goes_its_own_way() -> None:
    disk = disk_with(b"here", synced=False)
    copy = disk.copy(random.Random(1))
    disk.open("/d/f").write_at(0, [b"more"])
    assert after(copy, Loss.LOST) == b"here"
    assert copy.used == len(b"here")
    copy.open("/d/f").write_at(0, [b"less"])
    assert disk.read("/d/f") == b"more"


def test_a_wiped_disk_is_empty_and_the_old_one_is_gone() -> None:
    disk = disk_with(b"here")
    assert disk.wipe().names("/") == []
    with pytest.raises(PowerCut):
        disk.read("/d/f")
