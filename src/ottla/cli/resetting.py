"""Where the offsets of a group are to be set to: each way of saying it, worked out into an offset per partition.

Nothing is written here. Offsets outside a partition's log are brought to its nearer end, and the caller is told.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Mapping
from typing import TYPE_CHECKING, NamedTuple

from ottla.client.cluster import EARLIEST, LATEST, TopicPartition

if TYPE_CHECKING:
    from ottla.client.cluster import Cluster
    from ottla.client.commits import Committed

    Offsets = dict[TopicPartition, int]
    Commits = Mapping[TopicPartition, Committed]
    Tell = Callable[[str], None]

DURATION = re.compile(
    r"(?P<sign>[-+]?)P(?:(?P<days>[-+]?\d+)D)?"
    r"(?:T(?:(?P<hours>[-+]?\d+)H)?(?:(?P<minutes>[-+]?\d+)M)?(?:(?P<seconds>[-+]?\d+(?:[.,]\d{0,9})?)S)?)?",
    re.IGNORECASE,
)


class Way(NamedTuple):
    """How to find the new offsets: `earliest`, `latest`, `current`, or with a number `offset`, `shift`, `time`."""

    name: str
    number: int = 0


class Impossible(Exception):
    """What was asked for cannot be worked out; the text says why."""


class Unreadable(Exception):
    """A time or a length of time that is none; the text says why."""


async def new_offsets(
    cluster: Cluster, way: Way, partitions: Iterable[TopicPartition], committed: Commits, tell: Tell
) -> Offsets:
    """`tell` hears what was changed or made up on the way."""
    wanted = list(partitions)
    if way.name == "earliest":
        return await _ends(cluster, wanted, EARLIEST)
    if way.name == "latest":
        return await _ends(cluster, wanted, LATEST)
    if way.name == "time":
        return await _at_time(cluster, wanted, way.number, tell)
    if way.name == "current":
        return await _current(cluster, wanted, committed)
    if way.name == "shift":
        return await within(cluster, {where: _shifted(where, committed, way.number) for where in wanted}, tell)
    return await within(cluster, dict.fromkeys(wanted, way.number), tell)


async def within(cluster: Cluster, offsets: Mapping[TopicPartition, int], tell: Tell) -> Offsets:
    """The same offsets, none of them outside its partition's log."""
    begins = await _ends(cluster, list(offsets), EARLIEST)
    ends = await _ends(cluster, list(offsets), LATEST)
    return {where: _between(where, offset, begins[where], ends[where], tell) for where, offset in offsets.items()}


def _between(where: TopicPartition, offset: int, begin: int, end: int, tell: Tell) -> int:
    name = f"topic partition {where.topic}-{where.partition}"
    if offset > end:
        tell(f"New offset ({offset}) is higher than latest offset for {name}. Value will be set to {end}")
        return end
    if offset < begin:
        tell(f"New offset ({offset}) is lower than earliest offset for {name}. Value will be set to {begin}")
        return begin
    return offset


def _shifted(where: TopicPartition, committed: Commits, number: int) -> int:
    if where not in committed:
        name = f"{where.topic}-{where.partition}"
        raise Impossible(f"Cannot shift offset for partition {name} since there is no current committed offset")
    return committed[where].offset + number


async def _current(cluster: Cluster, wanted: list[TopicPartition], committed: Commits) -> Offsets:
    """What is committed; the end, where nothing is."""
    ends = await _ends(cluster, [where for where in wanted if where not in committed], LATEST)
    return {where: committed[where].offset if where in committed else ends[where] for where in wanted}


async def _at_time(cluster: Cluster, wanted: list[TopicPartition], time_ms: int, tell: Tell) -> Offsets:
    found = await _ends(cluster, wanted, time_ms)
    missing = [where for where in wanted if found[where] < 0]
    for where in missing:
        about = f"Partition {where.partition} from topic {where.topic}"
        tell(f"{about} is empty. Falling back to latest known offset.")
    return found | await _ends(cluster, missing, LATEST)


async def _ends(cluster: Cluster, partitions: list[TopicPartition], mark: int) -> Offsets:
    if not partitions:
        return {}
    found = await cluster.list_offsets(dict.fromkeys(partitions, mark))
    return {where: found[where].offset for where in partitions}


def duration_ms(text: str) -> int:
    """PnDTnHnMn.nS, as ISO 8601 and Java write it."""
    match = DURATION.fullmatch(text)
    if match is None or not any(match[part] for part in ("days", "hours", "minutes", "seconds")):
        raise Unreadable("Text cannot be parsed to a Duration")
    seconds = float((match["seconds"] or "0").replace(",", "."))
    whole = 86400 * int(match["days"] or 0) + 3600 * int(match["hours"] or 0) + 60 * int(match["minutes"] or 0)
    total = round((whole + seconds) * 1000)
    return -total if match["sign"] == "-" else total


def moment_ms(text: str) -> int:
    """A date and time of ISO 8601; without a time zone it is UTC."""
    from datetime import datetime

    _, letter, time = text.partition("T")
    if not letter:
        raise Unreadable("Error parsing timestamp. It does not contain a 'T' according to ISO8601 format")
    in_zone = text if any(mark in time for mark in "+-Z") else text + "Z"
    try:
        moment = datetime.fromisoformat(in_zone)
    except ValueError:
        raise Unreadable(f'Unparseable date: "{in_zone}"')
    return round(moment.timestamp() * 1000)
