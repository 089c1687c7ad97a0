"""Apache Kafka's small text files: a version, a count, and lines of numbers, replaced as a whole.

A file of 0 bytes is legal and means the same as no file: Kafka creates them empty and fills them later.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from ottla.world import Disk

RECOVERY_POINTS = "recovery-point-offset-checkpoint"
HIGH_WATERMARKS = "replication-offset-checkpoint"
LOG_STARTS = "log-start-offset-checkpoint"
CLEANED_TO = "cleaner-offset-checkpoint"
LEADER_EPOCHS = "leader-epoch-checkpoint"


class BadCheckpoint(ValueError):
    """A checkpoint file that is neither empty nor well formed."""


def read_offsets(disk: Disk, path: str) -> dict[tuple[str, int], int]:
    """Offsets by (topic, partition)."""
    return {(topic, _number(path, index)): _number(path, at) for topic, index, at in _read_rows(disk, path, 3)}


def write_offsets(disk: Disk, path: str, offsets: Mapping[tuple[str, int], int]) -> None:
    disk.replace(path, _text(f"{topic} {partition} {offset}" for (topic, partition), offset in offsets.items()))


def read_epochs(disk: Disk, path: str) -> list[tuple[int, int]]:
    """(leader epoch, first offset), in the order of the file."""
    return [(_number(path, epoch), _number(path, offset)) for epoch, offset in _read_rows(disk, path, 2)]


def write_epochs(disk: Disk, path: str, epochs: Iterable[tuple[int, int]]) -> None:
    disk.replace(path, _text(f"{epoch} {offset}" for epoch, offset in epochs))


def _text(lines: Iterable[str]) -> bytes:
    rows = list(lines)
    return "".join(f"{line}\n" for line in ["0", str(len(rows)), *rows]).encode()


def _number(path: str, text: str) -> int:
    """Digits and nothing else: a flipped bit is rather seen than believed."""
    if not (text.isascii() and text.isdigit()):
        raise BadCheckpoint(f"{path}: {text!r} is no number")
    return int(text)


def _read_rows(disk: Disk, path: str, width: int) -> list[list[str]]:
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
    if version != 0 or len(rows) != count or any(len(row) != width for row in rows):
        raise BadCheckpoint(f"{path}: version {version}, {len(rows)} of {count} lines")
    return rows
