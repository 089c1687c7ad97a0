"""Offsets of a query: which partitions it reads, from where to where, and in how many pieces.

The arithmetic (shares of a limit, ranges cut into pieces) is that of Spark's Kafka connector, so that a query which comes
from there plans the same tasks.

An offset of a stream is the connector's `{"topic": {"0": 12}}`, which is what people see in a query's progress, and beside
the topics three notes of ours under names that no topic can have:

    @ids    the id of each topic: one that was deleted and made again has the same name and another id
    @from   in the end of the first batch, where that batch began. When a query dies in its first batch, Spark asks for the
            initial offset anew, and "latest" is another one by then: without the note, what lies between would be lost
    @group  the group that progress is mirrored into, made once for each query
"""

from __future__ import annotations

import asyncio
import difflib
import itertools
import logging
import math
import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from typing import Any

from ottla.client.cluster import EARLIEST, LATEST, Cluster, NoTopic, TopicPartition
from ottla.client.connection import check, failure
from ottla.pipeline.options import PROGRESS_TOPIC, BadOption, Limit, Reading
from ottla.wire.errors import Error
from ottla.wire.ids import uuid_text
from ottla.wire.messages.metadata import MetadataResponse
from ottla.wire.schema import ZERO_UUID

log = logging.getLogger(__name__)

IDS, FROM, GROUP = "@ids", "@from", "@group"

Positions = dict[TopicPartition, int]


class DataLoss(Exception):
    """Records that a query should have read are gone."""

    def __init__(self, what: str) -> None:
        super().__init__(
            f"{what}. Nothing was skipped: the query stops here. "
            "To go on with what is still there, set failOnDataLoss to false; to begin anew, use a new checkpoint"
        )


def lost(reading: Reading, what: str) -> None:
    """Fail or warn, as the user chose."""
    if reading.fail_on_data_loss:
        raise DataLoss(what)
    log.warning("%s. Going on without it, because failOnDataLoss is false", what)


# Offsets as Spark keeps them.


@dataclass(frozen=True)
class StreamOffset:
    """How far a stream is."""

    positions: Mapping[TopicPartition, int]
    ids: Mapping[str, str]
    group: str = ""
    begun: Mapping[TopicPartition, int] | None = None

    @classmethod
    def of(cls, text: Mapping[str, Any]) -> StreamOffset:
        begun = _positions(text[FROM]) if FROM in text else None
        return cls(_positions(text), text.get(IDS, {}), text.get(GROUP, ""), begun)

    def text(self) -> dict[str, Any]:
        """Sorted, because Spark compares offsets letter by letter."""
        notes: dict[str, Any] = {IDS: dict(sorted(self.ids.items())), GROUP: self.group}
        if self.begun is not None:
            notes[FROM] = _by_topic(self.begun)
        return {**_by_topic(self.positions), **notes}


def _positions(text: Mapping[str, Any]) -> Positions:
    return {
        TopicPartition(topic, int(partition)): offset
        for topic, partitions in text.items()
        if not topic.startswith("@")
        for partition, offset in partitions.items()
    }


def _by_topic(positions: Mapping[TopicPartition, int]) -> dict[str, dict[str, int]]:
    table: dict[str, dict[str, int]] = {}
    for (topic, partition), offset in sorted(positions.items()):
        table.setdefault(topic, {})[str(partition)] = offset
    return table


# Ranges.


@dataclass(frozen=True)
class Range:
    """Offsets of one partition, `end` exclusive; the id is empty where the broker gives none."""

    topic: str
    partition: int
    start: int
    end: int
    topic_id: str = ""

    @property
    def where(self) -> TopicPartition:
        return TopicPartition(self.topic, self.partition)

    @property
    def size(self) -> int:
        return self.end - self.start


def split(ranges: Iterable[Range], pieces_min: int | None, records_max: int | None) -> list[Range]:
    """Empty ranges left out, large ones cut: none above `records_max`, and about `pieces_min` of them altogether."""
    pieces = [piece for piece in ranges if piece.size > 0]
    if records_max is not None:
        pieces = [part for piece in pieces for part in _cut(piece, math.ceil(piece.size / records_max))]
    if pieces_min is None or pieces_min <= len(pieces):
        return pieces
    total = sum(piece.size for piece in pieces)
    # What is too small to be cut has no part in the sum that the others are cut by.
    small = {piece for piece in pieces if _share(piece.size, total, pieces_min) == 1}
    rest = total - sum(piece.size for piece in small)
    left = max(pieces_min - len(small), 1)
    cut = []
    for piece in pieces:
        cut += [piece] if piece in small else _cut(piece, _share(piece.size, rest, left))
    return cut


def _share(size: int, total: int, pieces: int) -> int:
    return max(math.floor(size / total * pieces + 0.5), 1)


def _cut(piece: Range, parts: int) -> list[Range]:
    bounds, parts = [piece.start], min(parts, piece.size)
    for number in range(parts):
        bounds.append(bounds[-1] + (piece.end - bounds[-1]) // (parts - number))
    return [replace(piece, start=start, end=end) for start, end in itertools.pairwise(bounds) if end > start]


def limited(limit: int, start: Mapping[TopicPartition, int], end: Mapping[TopicPartition, int]) -> Positions:
    """At most about `limit` offsets of what lies between, from each partition in proportion to what it has."""
    sizes = {where: until - start[where] for where, until in end.items() if until > start.get(where, until)}
    total = sum(sizes.values())
    if not total:
        return dict(end)
    chosen = dict(end)
    for where, size in sizes.items():
        share = limit * (size / total)
        # Less than one is one: a small partition shall not wait for ever.
        taken = math.ceil(share) if share < 1 else math.floor(share)
        chosen[where] = min(end[where], start[where] + taken)
    return chosen


# Asking the cluster.


@dataclass(frozen=True)
class Found:
    """The partitions that a query reads, and the ids of their topics."""

    partitions: frozenset[TopicPartition]
    ids: Mapping[str, str]


class Finder:
    """Looks up partitions and offsets for one query."""

    def __init__(self, cluster: Cluster, reading: Reading) -> None:
        self.cluster = cluster
        self.reading = reading

    async def partitions(self) -> Found:
        """Those that exist now. A topic named by the user that does not exist is an error."""
        return await self.cluster.retrying(self._partitions)

    async def partitions_left(self, known: frozenset[TopicPartition]) -> Found:
        """The same for a query that has read `known` before, without those that are not there any more. A broker that has
        just started may not know them yet: it is asked again a few times before it is believed."""
        for attempt in range(self.reading.attempts):
            if attempt:
                await asyncio.sleep(self.reading.attempt_pause_s)
            found = await self.cluster.retrying(lambda: self._partitions(strict=False))
            if known <= found.partitions:
                break
        return found

    async def _partitions(self, strict: bool = True) -> Found:
        topics = self.reading.topics
        names = topics.names or tuple(dict.fromkeys(where.topic for where in topics.assigned))
        response = await self.cluster.metadata(names if topics.pattern is None else None)
        found = [topic for topic in response.topics if self._is_wanted(topic)]
        for topic in found:
            if topic.error_code == Error.UNKNOWN_TOPIC_OR_PARTITION.code:
                if strict:
                    raise await self._no_topic(topic.name or "")
                continue
            check(topic.error_code, f"topic {topic.name!r}: {failure(topic.error_code).message}")
        ids = {topic.name or "": uuid_text(topic.topic_id) for topic in found if topic.topic_id != ZERO_UUID}
        all_of_them = frozenset(
            TopicPartition(topic.name or "", partition.partition_index)
            for topic in found
            for partition in topic.partitions
        )
        return Found(self._assigned_of(all_of_them, strict), ids)

    def _is_wanted(self, topic: MetadataResponse.Topic) -> bool:
        """A pattern is looked for anywhere in a name, as the connector does: who wants the whole writes ^ and $. Nobody means
        the topic of our sinks: a stream that reads it gets a record for each micro-batch that it writes, and never ends."""
        pattern = self.reading.topics.pattern
        if pattern is None:
            return True
        own = topic.is_internal or topic.name == PROGRESS_TOPIC
        return not own and re.search(pattern, topic.name or "") is not None

    def _assigned_of(self, there: frozenset[TopicPartition], strict: bool) -> frozenset[TopicPartition]:
        assigned = frozenset(self.reading.topics.assigned)
        if not assigned:
            return there
        if strict and (missing := sorted(assigned - there)):
            raise BadOption(f"assign names partitions that do not exist: {_names(missing)}")
        return assigned & there

    async def _no_topic(self, name: str) -> Exception:
        error = NoTopic(name)
        known = [topic.name or "" for topic in (await self.cluster.metadata(None)).topics if not topic.is_internal]
        if alike := difflib.get_close_matches(name, known, 1):
            error.args = (f"{error.args[0]}; did you mean {alike[0]!r}?",)
        return error

    async def earliest(self, partitions: Iterable[TopicPartition]) -> Positions:
        return await self._marks(dict.fromkeys(partitions, EARLIEST))

    async def latest(self, partitions: Iterable[TopicPartition], known: Mapping[TopicPartition, int]) -> Positions:
        """Where the partitions end now. A leader that has just been elected may know less than was `known` before: it is
        asked again a few times before it is believed."""
        wanted = dict.fromkeys(partitions, LATEST)
        for attempt in range(self.reading.attempts):
            if attempt:
                await asyncio.sleep(self.reading.attempt_pause_s)
            found = await self._marks(wanted)
            if all(found[where] >= known.get(where, 0) for where in wanted):
                break
        return found

    async def _marks(self, wanted: Mapping[TopicPartition, int]) -> Positions:
        """Offsets by mark or by time; -1 where there is none at or after that time."""
        if not wanted:
            return {}
        found = await self.cluster.list_offsets(wanted, read_committed=self.reading.read_committed)
        return {where: offset.offset for where, offset in found.items()}

    async def resolve(self, limit: Limit, partitions: frozenset[TopicPartition], *, is_start: bool) -> Positions:
        """One side of what is read, as offsets."""
        name = "starting" if is_start else "ending"
        if limit.mark is not None:
            return await self._marks(dict.fromkeys(partitions, limit.mark))
        if limit.offsets is not None:
            _must_match(f"{name}Offsets", limit.offsets.keys(), partitions)
            marks = {where: offset for where, offset in limit.offsets.items() if offset < 0}
            return {**limit.offsets, **await self._marks(marks)}
        times = limit.timestamps
        if times is None:
            assert limit.timestamp is not None
            times = dict.fromkeys(partitions, limit.timestamp)
        _must_match(f"{name}OffsetsByTimestamp", times.keys(), partitions)
        return await self._at_times(times, is_start)

    async def _at_times(self, times: Mapping[TopicPartition, int], is_start: bool) -> Positions:
        found = await self._marks(times)
        missing = sorted(where for where, offset in found.items() if offset < 0)
        if missing and is_start and not self.reading.latest_without_match:
            raise BadOption(
                f"{_names(missing)} have no record at or after {times[missing[0]]}: choose an earlier time, "
                "or set startingOffsetsByTimestampStrategy to latest to begin at their end"
            )
        return {**found, **await self._marks(dict.fromkeys(missing, LATEST))}

    async def from_time(self, timestamp_ms: int, partitions: Iterable[TopicPartition]) -> Positions:
        """The first offset at or after that time; -1 where there is none."""
        return await self._marks(dict.fromkeys(partitions, timestamp_ms))


def _must_match(name: str, given: Iterable[TopicPartition], there: frozenset[TopicPartition]) -> None:
    """The connector's rule: who names offsets names them for all partitions."""
    if missing := sorted(there - set(given)):
        marks = "" if name.endswith("ByTimestamp") else " (-2 earliest, -1 latest)"
        raise BadOption(f"{name} must name every partition; missing: {_names(missing)}{marks}")
    if extra := sorted(set(given) - there):
        raise BadOption(f"{name} names partitions that are not read: {_names(extra)}")


def _names(partitions: Iterable[TopicPartition]) -> str:
    return ", ".join(f"{topic}-{partition}" for topic, partition in partitions)
