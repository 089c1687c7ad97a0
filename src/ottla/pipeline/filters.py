"""Conditions of a batch query that can be looked up: they make ranges smaller before anything is fetched.

Conditions on topic, partition and offset are met exactly, so Spark need not look at them again. A condition on time only
moves the start: the broker knows the first record at or after a time, but records after it may be older. Those Spark
still has to filter.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field, replace
from datetime import datetime
from typing import Any

from pyspark.sql.datasource import EqualTo, GreaterThan, GreaterThanOrEqual, In, IsNotNull, LessThan, LessThanOrEqual

from ottla.pipeline.offsets import Finder, Range

# Columns that are never null.
ALWAYS_THERE = {"topic", "partition", "offset", "timestamp", "timestampType"}


@dataclass
class Narrowing:
    """What the conditions leave of ranges."""

    tests: list[tuple[str, frozenset[Any]]] = field(default_factory=list)
    offset_min: int = 0
    offset_end: int = 1 << 63
    timestamp_ms: int | None = None

    def take(self, condition: Any) -> bool:
        """Note what it says. True when nothing is left to be filtered."""
        column = condition.attribute[0] if getattr(condition, "attribute", None) else ""
        taker = {"topic": self._constant, "partition": self._constant, "offset": self._offset, "timestamp": self._time}
        if isinstance(condition, IsNotNull):
            return column in ALWAYS_THERE
        return column in taker and len(condition.attribute) == 1 and taker[column](column, condition)

    def _constant(self, column: str, condition: Any) -> bool:
        if isinstance(condition, EqualTo):
            self.tests.append((column, frozenset([condition.value])))
        elif isinstance(condition, In):
            self.tests.append((column, frozenset(condition.value)))
        else:
            return False
        return True

    def _offset(self, _: str, condition: Any) -> bool:
        bounds: dict[type, Callable[[int], tuple[int, int]]] = {
            EqualTo: lambda n: (n, n + 1),
            GreaterThan: lambda n: (n + 1, self.offset_end),
            GreaterThanOrEqual: lambda n: (n, self.offset_end),
            LessThan: lambda n: (0, n),
            LessThanOrEqual: lambda n: (0, n + 1),
        }
        if type(condition) not in bounds:
            return False
        low, high = bounds[type(condition)](condition.value)
        self.offset_min, self.offset_end = max(self.offset_min, low), min(self.offset_end, high)
        return True

    def _time(self, _: str, condition: Any) -> bool:
        value = condition.value if isinstance(condition, EqualTo | GreaterThan | GreaterThanOrEqual) else None
        if isinstance(value, datetime) and value.tzinfo is not None and value.timestamp() >= 0:
            self.timestamp_ms = max(self.timestamp_ms or 0, int(value.timestamp() * 1000))
        return False

    async def apply(self, finder: Finder, ranges: list[Range]) -> list[Range]:
        kept = [piece for piece in ranges if self._wants(piece)]
        kept = [
            replace(piece, start=max(piece.start, self.offset_min), end=min(piece.end, self.offset_end))
            for piece in kept
        ]
        kept = [piece for piece in kept if piece.size > 0]
        if self.timestamp_ms is None:
            return kept
        found = await finder.from_time(self.timestamp_ms, [piece.where for piece in kept])
        return [replace(piece, start=max(piece.start, found[piece.where])) for piece in kept if found[piece.where] >= 0]

    def _wants(self, piece: Range) -> bool:
        held = {"topic": piece.topic, "partition": piece.partition}
        return all(held[column] in wanted for column, wanted in self.tests)
