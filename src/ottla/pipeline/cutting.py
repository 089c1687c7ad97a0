"""A row that its topic does not take, made small enough to be taken: for those who would rather have a piece of it, and know
which, than none. A quarantine is such: what a record holds is no reason not to be told where it is.

Key and value keep their first bytes, and of the headers those at the end stay, where a quarantine has its own; one more
header says what is missing.
"""

from __future__ import annotations

from typing import NamedTuple

HEADER = "ottla.cut"
KEPT_BYTES = 64 << 10

Headers = list[tuple[str, bytes | None]]


class Row(NamedTuple):
    key: bytes | None
    value: bytes | None
    headers: Headers


def cut(row: Row, limit: int) -> Row:
    """Key, value and headers may each have a quarter of what the topic takes; the last is for all else."""
    share = min(KEPT_BYTES, limit // 4)
    headers = _last(row.headers, share)
    told = [_told("key", row.key, share), _told("value", row.value, share)]
    if len(headers) < len(row.headers):
        told.append(f"headers: {len(row.headers) - len(headers)} of {len(row.headers)} are left out")
    said = "; ".join(filter(None, told)).encode()
    return Row(_first(row.key, share), _first(row.value, share), [*headers, (HEADER, said)])


def _first(data: bytes | None, share: int) -> bytes | None:
    return None if data is None else data[:share]


def _told(name: str, data: bytes | None, share: int) -> str:
    return "" if data is None or len(data) <= share else f"{name}: the first {share} of {len(data)} bytes"


def _last(headers: Headers, share: int) -> Headers:
    """As many as fit, counted from the end."""
    first = len(headers)
    while first and share >= (size := len(headers[first - 1][0].encode()) + len(headers[first - 1][1] or b"") + 10):
        share -= size
        first -= 1
    return headers[first:]
