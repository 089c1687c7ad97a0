"""The small files beside a segment: offset and time index, producer snapshot, aborted transactions.

Each function yields lines as Kafka's tool prints them, and notes in `Complaints` where an index and its log disagree.
"""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence

from ottla.cli.dump.segments import Found, SegmentFile
from ottla.log import aborted
from ottla.log.index import OFFSET_BYTES, OFFSET_ENTRY, TIME_BYTES, TIME_ENTRY
from ottla.log.producers import BadSnapshot, read_snapshot, sequence_minus

Pairs = dict[str, list[tuple[int, int]]]


class Damaged(ValueError):
    """A file that cannot be what its name says."""


class Complaints:
    """Where indexes and logs disagree, by file."""

    def __init__(self) -> None:
        self.offsets: Pairs = {}
        self.timestamps: Pairs = {}
        self.order: Pairs = {}
        self.missing: Pairs = {}

    def lines(self) -> Iterator[str]:
        for path, pairs in self.offsets.items():
            yield f"Mismatches in :{path}"
            yield from (f"  Index offset: {index}, log offset: {log}" for index, log in reversed(pairs))
        for path, pairs in self.timestamps.items():
            yield f"Found timestamp mismatch in :{path}"
            yield from (f"  Index timestamp: {index}, log timestamp: {log}" for index, log in pairs)
        for path, pairs in self.order.items():
            yield f"Found out of order timestamp in :{path}"
            yield from (f"  Index timestamp: {now}, Previously indexed timestamp: {last}" for now, last in pairs)
        for pairs in self.missing.values():
            yield "The following indexed offsets are not found in the log."
            yield from (f"Indexed offset: {index}, found log offset: {log}" for index, log in pairs)


def offset_index(path: str, sanity: bool, verify: bool, complaints: Complaints) -> Iterator[str]:
    """Offsets and positions; each must be that of a batch in the log."""
    base, raw = base_offset(path), _read(path)
    entries = [
        (base + relative, position) for relative, position in OFFSET_ENTRY.iter_unpack(_whole(raw, OFFSET_BYTES))
    ]
    if not entries:
        yield f"{path} is empty."
        return
    if sanity:
        yield _sane_offsets(path, raw, base, entries[-1][0])
        return
    for n, (offset, position) in enumerate(entries):
        if offset == base and n:
            return  # the rest of a file that was made in advance
        found = next(iter(SegmentFile(_beside(path, ".log"), start=position)), None)
        last = found.head.last_offset if found else -1
        if last != offset:
            complaints.offsets.setdefault(os.path.abspath(path), []).append((offset, last))
        if not verify:
            yield f"offset: {offset} position: {position}"


def time_index(path: str, sanity: bool, verify: bool, complaints: Complaints) -> Iterator[str]:
    """Timestamps and offsets; each must be the largest timestamp of the batch that ends there."""
    base, raw = base_offset(path), _read(path)
    entries = [(timestamp, base + relative) for timestamp, relative in TIME_ENTRY.iter_unpack(_whole(raw, TIME_BYTES))]
    if sanity:
        yield _sane_times(path, raw, base, entries)
        return
    where, previous = os.path.abspath(path), -1
    for n, (timestamp, offset) in enumerate(entries):
        if offset == base and n:
            return
        batch = _batch_of(path, base, offset)
        if batch is None or batch.head.last_offset != offset:
            complaints.missing.setdefault(where, []).append((offset, batch.head.last_offset if batch else -1))
        else:
            largest = max((record.timestamp for record in batch.records()), default=-1)
            if largest != timestamp:
                complaints.timestamps.setdefault(where, []).append((timestamp, largest))
            if previous >= timestamp:
                complaints.order.setdefault(where, []).append((timestamp, previous))
        if not verify:
            yield f"timestamp: {timestamp} offset: {offset}"
        previous = timestamp


def producers(path: str) -> Iterator[str]:
    try:
        known = read_snapshot(_read(path))
    except BadSnapshot as error:
        raise Damaged(str(error)) from error
    for producer_id, producer in known.items():
        line = (
            f"producerId: {producer_id} producerEpoch: {producer.epoch}"
            f" coordinatorEpoch: {producer.coordinator_epoch}"
            f" currentTxnFirstOffset: {_optional(producer.transaction_first)} lastTimestamp: {producer.timestamp} "
        )
        for batch in producer.batches[:1]:
            delta = sequence_minus(batch.last_sequence, batch.first_sequence)
            line += (
                f"firstSequence: {batch.first_sequence} lastSequence: {batch.last_sequence}"
                f" lastOffset: {batch.last_offset} offsetDelta: {delta} timestamp: {batch.timestamp}"
            )
        yield line


def aborted_transactions(path: str) -> Iterator[str]:
    try:
        for row in aborted.unpack(_read(path)):
            yield (
                f"version: {aborted.VERSION} producerId: {row.producer_id} firstOffset: {row.first_offset}"
                f" lastOffset: {row.last_offset} lastStableOffset: {row.last_stable_offset}"
            )
    except aborted.BadTransactionIndex as error:
        raise Damaged(str(error)) from error


def base_offset(path: str) -> int:
    name = os.path.basename(path).split(".")[0]
    try:
        return int(name)
    except ValueError:
        raise Damaged(f'For input string: "{name}"')


def _optional(offset: int) -> str:
    return "OptionalLong.empty" if offset < 0 else f"OptionalLong[{offset}]"


def _beside(path: str, suffix: str) -> str:
    return os.path.join(os.path.dirname(path), os.path.basename(path).split(".")[0] + suffix)


def _read(path: str) -> bytes:
    with open(path, "rb") as file:
        return file.read()


def _whole(raw: bytes, entry_bytes: int) -> bytes:
    return raw[: len(raw) // entry_bytes * entry_bytes]


def _check_size(path: str, raw: bytes, entry_bytes: int, what: str) -> None:
    if len(raw) % entry_bytes:
        found = f"found {len(raw)} bytes which is neither positive nor a multiple of {entry_bytes}"
        raise Damaged(f"{what} file {os.path.abspath(path)} is corrupt, {found}")


def _sane_offsets(path: str, raw: bytes, base: int, last_offset: int) -> str:
    """The check that a start makes."""
    if last_offset < base:
        what = f"the last offset is {last_offset} which is less than the base offset {base}"
        raise Damaged(f"Corrupt index found, index file ({os.path.abspath(path)}) has non-zero size but {what}")
    _check_size(path, raw, OFFSET_BYTES, "Index")
    return f"{path} passed sanity check."


def _sane_times(path: str, raw: bytes, base: int, entries: Sequence[tuple[int, int]]) -> str:
    what = ""
    if entries and entries[-1][0] < entries[0][0]:
        what = f"the last timestamp is {entries[-1][0]} which is less than the first timestamp {entries[0][0]}"
    elif entries and entries[-1][1] < base:
        what = f"the last offset is {entries[-1][1]} which is less than the first offset {base}"
    if what:
        where = f"time index file ({os.path.abspath(path)})"
        raise Damaged(f"Corrupt time index found, {where} has non-zero size but {what}")
    _check_size(path, raw, TIME_BYTES, "Time index")
    return f"{path} passed sanity check."


def _batch_of(path: str, base: int, offset: int) -> Found | None:
    """The first batch that ends at or behind an offset, from where the offset index points to."""
    start = 0
    index = _beside(path, ".index")
    if os.path.exists(index):
        for relative, position in OFFSET_ENTRY.iter_unpack(_whole(_read(index), OFFSET_BYTES)):
            if base + relative > offset:
                break
            start = max(start, position)
    for found in SegmentFile(_beside(path, ".log"), start=start):
        if found.head.last_offset >= offset:
            return found
    return None
