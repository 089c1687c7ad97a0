"""`.txnindex`: the aborted transactions whose markers lie in a segment, 34 bytes each, in the order of their markers.

A read_committed consumer gets, with its records, the aborted transactions that overlap them, and drops their batches itself.
Only transactions that wrote data here are listed, and the file exists only where there is one. The last stable offset in each
row tells when a search may stop: later rows can only begin at or above it.
"""

from __future__ import annotations

from collections.abc import Iterator
from struct import Struct
from typing import NamedTuple

from ottla.world import File

_ROW = Struct(">hqqqq")
ROW_BYTES = _ROW.size
VERSION = 0
# Rows that are read at once.
ROWS_READ = 64


class AbortedTransaction(NamedTuple):
    producer_id: int
    first_offset: int
    last_offset: int
    last_stable_offset: int


class BadTransactionIndex(ValueError):
    """A row that is torn, of another version, or out of order: the file is rebuilt from the segment."""


def pack(rows: list[AbortedTransaction]) -> bytes:
    return b"".join(_ROW.pack(VERSION, *row) for row in rows)


def unpack(data: bytes) -> Iterator[AbortedTransaction]:
    for version, *numbers in _ROW.iter_unpack(data[: len(data) // ROW_BYTES * ROW_BYTES]):
        if version != VERSION:
            raise BadTransactionIndex(f"version {version}")
        yield AbortedTransaction(*numbers)


def check(data: bytes, base_offset: int) -> None:
    """Whole rows, in order, none from before this segment."""
    last = base_offset - 1
    if len(data) % ROW_BYTES:
        raise BadTransactionIndex(f"{len(data)} bytes are no whole number of rows")
    for row in unpack(data):
        if row.last_offset <= last:
            raise BadTransactionIndex(f"marker {row.last_offset} after {last}")
        last = row.last_offset


def bytes_below(data: bytes, offset: int) -> int:
    """How much of the file stays when everything from `offset` on is cut off."""
    kept = 0
    for row in unpack(data):
        if row.last_offset >= offset:
            break
        kept += ROW_BYTES
    return kept


def from_marker(file: File, first: int) -> Iterator[AbortedTransaction]:
    """The rows whose markers lie at `first` or above. Found by halves: a segment may hold a million of them."""
    low = 0
    high = count = file.size() // ROW_BYTES
    while high - low > ROWS_READ:
        middle = (low + high) // 2
        row = next(unpack(file.read_at(middle * ROW_BYTES, ROW_BYTES)))
        low, high = (middle + 1, high) if row.last_offset < first else (low, middle + 1)
    while low < count and (rows := list(unpack(file.read_at(low * ROW_BYTES, ROWS_READ * ROW_BYTES)))):
        yield from (row for row in rows if row.last_offset >= first)
        low += len(rows)
