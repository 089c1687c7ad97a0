"""Room that is kept back and given up when the disk is full."""

from __future__ import annotations

import errno
from pathlib import Path

import pytest

from ottla.log.ballast import AMPLE_BYTES, BYTES, NAME, SHORT_BYTES, Ballast, is_full
from ottla.wire.errors import Error, KafkaError
from ottla.world import RealDisk, RealFile


class Tight(RealDisk):
    """A disk that says how much room it has, and refuses to write when that is nothing."""

    free = 10 * AMPLE_BYTES

    def space(self, path: str) -> tuple[int, int]:
        return 100 * AMPLE_BYTES, self.free

    def open(self, path: str, *, create: bool = False) -> RealFile:
        if not self.free:
            raise OSError(errno.ENOSPC, "No space left on device", path)
        return super().open(path, create=create)


@pytest.fixture
def disk() -> Tight:
    return Tight(threads=1)


def test_it_takes_up_room_and_gives_it_back(disk: Tight, tmp_path: Path) -> None:
    """TRAP-18: real bytes, not a hole in a file."""
    ballast, file = Ballast(disk, str(tmp_path)), tmp_path / NAME
    assert ballast.take() and not ballast.released
    assert file.stat().st_size == BYTES and file.stat().st_blocks * 512 >= BYTES
    ballast.release()
    assert ballast.released and not file.exists()
    ballast.release()
    assert ballast.take() and not ballast.released and file.exists()


def test_one_that_was_cut_short_is_made_whole(disk: Tight, tmp_path: Path) -> None:
    """TRAP-18: the node was killed while writing it."""
    (tmp_path / NAME).write_bytes(b"short")
    assert Ballast(disk, str(tmp_path)).take()
    assert (tmp_path / NAME).stat().st_size == BYTES


def test_without_room_there_is_none(disk: Tight, tmp_path: Path) -> None:
    """TRAP-18, LOG-23"""
    disk.free = 0
    ballast = Ballast(disk, str(tmp_path))
    assert not ballast.take()
    assert ballast.released and not (tmp_path / NAME).exists()


def test_records_are_taken_again_only_when_there_is_ample_room(disk: Tight, tmp_path: Path) -> None:
    """LOG-23: giving up the ballast makes room, which must not be taken for the end of the trouble."""
    ballast = Ballast(disk, str(tmp_path))
    disk.free = SHORT_BYTES
    assert ballast.has_room()
    disk.free = SHORT_BYTES - 1
    assert not ballast.has_room()
    ballast.release()
    disk.free = SHORT_BYTES - 1 + BYTES
    assert not ballast.has_room()
    disk.free = AMPLE_BYTES
    assert ballast.has_room()


def test_what_a_full_disk_says() -> None:
    """LOG-23: also where it was told on as a storage error."""
    full = OSError(errno.ENOSPC, "No space left on device")
    refused = KafkaError(Error.KAFKA_STORAGE_ERROR, "the disk refused")
    assert not is_full(refused)
    refused.__cause__ = full
    assert is_full(full) and is_full(refused) and is_full(OSError(errno.EDQUOT, "Disk quota exceeded"))
    assert not is_full(OSError(errno.EIO, "Input/output error")) and not is_full(None)
