"""Small things that Kafka's tools do in a way of their own: numbers, releases, columns, and where replicas could live."""

from __future__ import annotations

import random

import pytest

from ottla.cli.kafka import releases
from ottla.cli.kafka.columns import columns, pretty
from ottla.cli.kafka.identities import uuid_of
from ottla.cli.kafka.java import double_text
from ottla.cli.kafka.options import Failed
from ottla.cli.kafka.placing import proposed_placement


@pytest.mark.parametrize(
    ("number", "text"),
    [
        (0.0, "0.0"),
        (1024.0, "1024.0"),
        (0.5, "0.5"),
        (9999999.0, "9999999.0"),
        (1e7, "1.0E7"),
        (12345678.5, "1.23456785E7"),
        (0.001, "0.001"),
        (0.0005, "5.0E-4"),
        (-1e20, "-1.0E20"),
        (float("inf"), "Infinity"),
        (float("nan"), "NaN"),
    ],
)
def test_doubles(number: float, text: str) -> None:
    assert double_text(number) == text


def test_releases() -> None:
    assert [releases.level_of(name) for name in ("3.3-IV3", "3.9", "4.0", "4.0.1", "4.3-IV0")] == [7, 21, 25, 25, 30]
    assert releases.defaults(21)["kraft.version"] == 1 and releases.defaults(21)["group.version"] == 0
    assert releases.name_of(24) == "4.0-IV2" and releases.name_of(99) is None
    for unknown in ("9.9", "4.4", "3.2", "4.0-IV9", ""):
        with pytest.raises(Failed, match=f"Unknown metadata.version '{unknown}'"):
            releases.level_of(unknown)
    with pytest.raises(Failed, match=r"4\.3-IV0$"):
        releases.stable_level_of("4.4-IV0")


def test_ids() -> None:
    assert uuid_of("4L6g3nShT-eMCtK--X86sw").hex().startswith("e0bea0de")
    for wrong in ("x", "nothere", "4L6g3nShT-eMCtK--X86swAAAA", "????????"):
        with pytest.raises(Failed):
            uuid_of(wrong)


def test_columns() -> None:
    text = columns([("--option <String: with a rather long description of it>", "It does something."), ("-x", "y")])
    assert text.splitlines() == [
        "--option <String: with a rather long  It does something.",
        "  description of it>                                    ",
        "-x                                    y                 ",
    ]
    assert pretty(["A", "Long"], [["xyz", "1"]]) == "A  \tLong\t\nxyz\t1   \t"


def test_placement_spreads_over_brokers_and_racks() -> None:
    current = {("t", n): [1, 2] for n in range(12)}
    racks: dict[int, str | None] = {1: "a", 2: "a", 3: "b", 4: "b"}
    placed = proposed_placement(current, racks, random.Random(7))
    assert all(len(set(row)) == 2 and {racks[b] for b in row} == {"a", "b"} for row in placed.values())
    leaders = [row[0] for row in placed.values()]
    assert {leaders.count(broker) for broker in racks} == {3}
    with pytest.raises(Failed, match="Not all brokers have rack information"):
        proposed_placement(current, {1: "a", 2: None}, random.Random(1))
    with pytest.raises(Failed, match="Unable to replicate the partition 2 time"):
        proposed_placement(current, {1: None}, random.Random(1))
