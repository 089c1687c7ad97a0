"""Where the offsets of a group are set to: times as people and Java write them, and what a log can offer."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from typing import cast

import pytest

from ottla.cli.resetting import Unreadable, Way, duration_ms, moment_ms, new_offsets
from ottla.client.cluster import EARLIEST, LATEST, Cluster, Offset, TopicPartition
from ottla.client.commits import Committed


def test_durations() -> None:
    assert duration_ms("P1D") == 86_400_000
    assert duration_ms("PT1H2M3.5S") == 3_723_500
    assert duration_ms("-PT10S") == duration_ms("PT-10S") == -10_000
    assert duration_ms("p1dt1s") == 86_401_000
    for wrong in ("", "P", "10d", "P1H", "PT"):
        with pytest.raises(Unreadable):
            duration_ms(wrong)


def test_moments() -> None:
    """CLI-10: without a time zone it is UTC, whatever the machine's is."""
    assert moment_ms("2023-11-14T22:13:20.000") == 1_700_000_000_000
    assert moment_ms("2023-11-14T23:13:20.500+01:00") == 1_700_000_000_500
    assert moment_ms("2023-11-14T22:13:20Z") == 1_700_000_000_000
    with pytest.raises(Unreadable, match="does not contain a 'T'"):
        moment_ms("2023-11-14")
    with pytest.raises(Unreadable, match="Unparseable date"):
        moment_ms("2023-31-14T00:00:00")


class Kept:
    """A cluster that has offsets 5 to 8 of every partition, all of them old."""

    async def list_offsets(self, wanted: Mapping[TopicPartition, int]) -> dict[TopicPartition, Offset]:
        found = {EARLIEST: 5, LATEST: 9}
        return {where: Offset(found.get(mark, -1), -1) for where, mark in wanted.items()}


@pytest.mark.parametrize(
    ("way", "offset", "said"),
    [
        (
            Way("offset", 3),
            5,
            "New offset (3) is lower than earliest offset for topic partition t-0. Value will be set to 5",
        ),
        (
            Way("shift", 20),
            9,
            "New offset (27) is higher than latest offset for topic partition t-0. Value will be set to 9",
        ),
        (Way("shift", -1), 6, None),
        (Way("time", 1), 9, "Partition 0 from topic t is empty. Falling back to latest known offset."),
        (Way("current"), 7, None),
    ],
)
def test_no_offset_is_set_that_a_log_does_not_have(way: Way, offset: int, said: str | None) -> None:
    """In the words of Kafka's tool."""
    where, told, cluster = TopicPartition("t", 0), list[str](), cast(Cluster, Kept())
    found = asyncio.run(new_offsets(cluster, way, [where], {where: Committed(7)}, told.append))
    assert (found, told) == ({where: offset}, [said] if said else [])
