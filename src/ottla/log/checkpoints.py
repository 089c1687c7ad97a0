"""Apache Kafka's small text files: a version, a count, and lines of numbers, replaced as a whole.

A file of 0 bytes is legal and means the same as no file: Kafka creates them empty and fills them later.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from ottla.world import Disk

RECOVERY_POINTS = "recovery-point-offset-checkpoint"
HIGH_WATERMARKS = "replication-offset-checkpoint"
LOG_STARTS = "log-start-offset-checkpoint"
LEADER_EPOCHS = "leader-epoch-checkpoint"


class BadCheckpoint(ValueError):
    """A checkpoint file that is neither empty nor well formed."""


def read_offsets(disk: Disk, path: str) -> dict[tuple[str, int], int]:
    """Offsets by (topic, partition)."""
    offsets = {}
    for words in _read_lines(disk, path):
        if len(words) != 3:
            raise BadCheckpoint(f"{path}: expected topic, partition and offset")
        offsets[words[0], int(words[1])] = int(words[2])
    return offsets


def write_offsets(disk: Disk, path: str, offsets: Mapping[tuple[str, int], int]) -> None:
    disk.replace(path, _text(f"{topic} {partition} {offset}" for (topic, partition), offset in offsets.items()))


def read_epochs(disk: Disk, path: str) -> list[tuple[int, int]]:
    """(leader epoch, first offset), in the order of the file."""
    return [(int(words[0]), int(words[1])) for words in _read_lines(disk, path)]


def write_epochs(disk: Disk, path: str, epochs: Iterable[tuple[int, int]]) -> None:
    disk.replace(path, _text(f"{epoch} {offset}" for epoch, offset in epochs))


def _text(lines: Iterable[str]) -> bytes:
    rows = list(lines)
    return "".join(f"{line}\n" for line in ["0", str(len(rows)), *rows]).encode()


def _read_lines(disk: Disk, path: str) -> list[list[str]]:
    if not disk.exists(path):
        return []
    text = disk.read(path).decode("utf-8", "replace")
    if not text:
        return []
    lines = text.splitlines()
    try:
        version, count = int(lines[0]), int(lines[1])
        rows = [line.split() for line in lines[2 : 2 + count]]
    except (IndexError, ValueError) as error:
        raise BadCheckpoint(f"{path}: {error}") from error
    if version != 0 or len(rows) != count or any(len(row) < 2 for row in rows):
        raise BadCheckpoint(f"{path}: version {version}, {len(rows)} of {count} lines")
    return rows
