"""Snapshots of the metadata log: `<end offset>-<epoch>.checkpoint`, everything below the end offset as records (KIP-630).

A snapshot is a row of batches numbered from 0: first a control batch with the header and, under kraft.version 1, the
version and the voters; then the records; at last a control batch with the footer. Without the footer it is not whole.
`bootstrap.checkpoint` has the same shape, and so has the snapshot at offset 0 that names the first voters.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from itertools import islice
from typing import NamedTuple

from ottla.raft.quorum import VoterSet
from ottla.wire.codec import decode, encode
from ottla.wire.errors import KafkaError
from ottla.wire.messages.quorum import (
    KRaftVersionRecord,
    LeaderChangeMessage,
    SnapshotFooterRecord,
    SnapshotHeaderRecord,
    VotersRecord,
)
from ottla.wire.records import ControlType, Record, batches, build, build_control, control_type, crc_ok, iterate
from ottla.wire.schema import Message

SUFFIX = ".checkpoint"
BOOTSTRAP = "bootstrap.checkpoint"
VALUES_PER_BATCH = 500

Note = tuple[ControlType, bytes]

KINDS: dict[int, type[Message]] = {
    ControlType.LEADER_CHANGE: LeaderChangeMessage,
    ControlType.SNAPSHOT_HEADER: SnapshotHeaderRecord,
    ControlType.SNAPSHOT_FOOTER: SnapshotFooterRecord,
    ControlType.KRAFT_VERSION: KRaftVersionRecord,
    ControlType.KRAFT_VOTERS: VotersRecord,
}
TYPES = {kind: number for number, kind in KINDS.items()}


class SnapshotId(NamedTuple):
    """`end_offset` is exclusive; `epoch` is that of the last record before it."""

    end_offset: int
    epoch: int

    @property
    def file_name(self) -> str:
        return f"{self.end_offset:020d}-{self.epoch:010d}{SUFFIX}"

    @classmethod
    def of_file_name(cls, name: str) -> SnapshotId | None:
        stem = name.removesuffix(SUFFIX)
        offset, dash, epoch = stem.partition("-")
        if stem == name or not dash or len(offset) != 20 or len(epoch) != 10 or not (offset + epoch).isdecimal():
            return None
        return cls(int(offset), int(epoch))


class Damaged(ValueError):
    """A file that should be a snapshot and is not a whole one."""


def note(message: Message) -> Note:
    """A control record: its type and its value, in the version that its own first field names."""
    number = ControlType(TYPES[type(message)])
    return number, encode(message, getattr(message, "version", 0))


def read_note(key: bytes | None, value: bytes | None) -> Message | None:
    """The message in a control record, or None if it is of a kind that does not concern us."""
    kind = KINDS.get(control_type(key))
    if kind is None or value is None:
        return None
    version = int.from_bytes(value[:2], "big")
    return decode(kind, value, min(version, kind.versions.high))


def pieces(
    values: Iterable[bytes], *, last_timestamp: int, kraft_version: int, voters: VoterSet, epoch: int, now_ms: int
) -> Iterator[bytes]:
    """A snapshot batch by batch. Record values are asked for as they are needed."""
    notes = [note(SnapshotHeaderRecord(last_contained_log_timestamp=last_timestamp))]
    if kraft_version >= 1 and voters.voters:
        notes += [note(KRaftVersionRecord(kraft_version=kraft_version)), note(voters.to_record())]
    yield build_control(notes, now_ms, leader_epoch=epoch)
    offset, rest = len(notes), iter(values)
    while held := list(islice(rest, VALUES_PER_BATCH)):
        yield batch_of(held, offset, epoch, now_ms)
        offset += len(held)
    yield build_control([note(SnapshotFooterRecord())], now_ms, base_offset=offset, leader_epoch=epoch)


def batch_of(values: Sequence[bytes], base_offset: int, epoch: int, now_ms: int) -> bytes:
    records = [Record(timestamp=now_ms, value=value) for value in values]
    return build(records, base_offset=base_offset, leader_epoch=epoch)


def read(data: bytes) -> Iterator[tuple[list[Message], list[bytes]]]:
    """Batch by batch: the control messages or the record values in it. Damaged if anything is wrong or missing."""
    position, finished = 0, False
    try:
        for at, batch in batches(data):
            if not crc_ok(data, at, batch.size):
                raise Damaged(f"batch at byte {at} fails its CRC")
            notes, values = _contents(memoryview(data)[at : at + batch.size], batch.is_control)
            finished = any(isinstance(message, SnapshotFooterRecord) for message in notes)
            position = at + batch.size
            yield notes, values
    except KafkaError as error:
        raise Damaged(error.message) from error
    if not finished or position != len(data):
        raise Damaged("the end is missing")


def _contents(batch: memoryview, is_control: bool) -> tuple[list[Message], list[bytes]]:
    held = iterate(batch)
    if not is_control:
        return [], [record.value or b"" for record in held]
    return [message for record in held if (message := read_note(record.key, record.value)) is not None], []
