"""Pipelines that do more than copy, by the same driver that can be killed: with state, into files, into a database.

Each knows how much it has written, and what is wrong with it, against what plain Python makes of the same numbers.
"""

from __future__ import annotations

import asyncio
import json
from collections import Counter, defaultdict
from collections.abc import Callable
from itertools import pairwise
from pathlib import Path
from typing import Any

from ottla.client.cluster import Cluster
from ottla.client.producer import Producer
from pipeline.copies import Copy

KEYS = 100
WINDOW = 100
AFTER_ALL = 10_000_000


class Sums(Copy):
    """A running sum for each key, whenever it changes."""

    flow = "sums"

    def misfits(self, count: int) -> tuple[int, int]:
        """Keys whose last sum is wrong; and sums that do not follow from the one before, such as one that is there twice."""
        seen: dict[int, list[tuple[int, int]]] = defaultdict(list)
        for row in map(json.loads, self.values()):
            seen[row["k"]].append((row["n"], row["total"]))
        wrong = sum(seen[key][-1:] != [summed(range(key, count, KEYS))] for key in range(KEYS))
        return wrong, sum(later[0] <= before[0] for each in seen.values() for before, later in pairwise(each))


class Windows(Copy):
    """Sums over windows of time, each once, when it is closed."""

    flow = "windows"

    def close(self) -> None:
        """A number so late that no window of the others stays open. Spark closes windows after a micro-batch that has rows."""

        async def main() -> None:
            async with Cluster(self.address) as cluster, Producer(cluster) as producer:
                await producer.send(self.source, value=b"%d" % AFTER_ALL)

        asyncio.run(main())

    def misfits(self, count: int) -> tuple[int, int]:
        rows = [json.loads(value) for value in self.values()]
        found = Counter((row["start"], row["n"], row["total"]) for row in rows)
        starts = range(0, count, WINDOW)
        return differences(found, Counter((at, *summed(range(at, min(at + WINDOW, count)))) for at in starts))


class Files(Copy):
    """Numbers in a directory of Parquet."""

    flow = "parquet"

    def __init__(self, address: str, directory: Path, spark: Callable[[], Any]) -> None:
        super().__init__(address, directory)
        self._place, self._spark = directory / self.target, spark

    def written(self) -> int:
        """Micro-batches: each has a file in Spark's log, some with all before them."""
        numbers = [int(path.stem) for path in (self._place / "_spark_metadata").glob("[0-9]*")]
        return max(numbers, default=-1) + 1

    def misfits(self, count: int) -> tuple[int, int]:
        """As Spark reads it: by its log of files, not by what lies in the directory."""
        rows = self._spark().read.parquet(str(self._place)).select("n").collect()
        return differences(Counter(row.n for row in rows), Counter(range(count)))


class Rows(Copy):
    """Numbers in a table of PostgreSQL, which takes each as often as it comes."""

    def __init__(self, address: str, directory: Path, database: str) -> None:
        super().__init__(address, directory)
        self.flow = database
        self._ask(f'CREATE TABLE "{self.target}" (n bigint, at timestamptz)')

    def written(self) -> int:
        return int(self._ask(f'SELECT count(*) FROM "{self.target}"')[0][0])

    def misfits(self, count: int) -> tuple[int, int]:
        found = Counter(number for (number,) in self._ask(f'SELECT n FROM "{self.target}"'))
        return differences(found, Counter(range(count)))

    def _ask(self, words: str) -> list[tuple[Any, ...]]:
        import psycopg

        with psycopg.connect(self.flow) as connection:
            asked = connection.execute(words)
            return asked.fetchall() if asked.description else []


def summed(numbers: range) -> tuple[int, int]:
    return len(numbers), sum(numbers)


def differences(found: Counter[Any], expected: Counter[Any]) -> tuple[int, int]:
    """How many are missing, and how many too many."""
    return (expected - found).total(), (found - expected).total()
