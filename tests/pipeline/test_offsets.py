"""The arithmetic of ranges and limits, as Spark's Kafka connector does it; and offsets as Spark keeps them."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Mapping
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ottla.client.cluster import Cluster, TopicPartition
from ottla.pipeline.offsets import DataLoss, Finder, Found, Positions, Range, StreamOffset, limited, lost, split
from ottla.pipeline.options import PROGRESS_TOPIC, Reading
from ottla.pipeline.source import StreamReader
from ottla.wire.messages.metadata import MetadataResponse


def at(partition: int) -> TopicPartition:
    return TopicPartition("t", partition)


def ranges(*sizes: int) -> list[Range]:
    return [Range("t", number, 100, 100 + size) for number, size in enumerate(sizes)]


def spans(pieces: list[Range]) -> list[tuple[int, int, int]]:
    return [(piece.partition, piece.start, piece.end) for piece in pieces]


def test_without_options_one_piece_for_each_partition_that_has_something() -> None:
    assert split(ranges(5, 0, 7), None, None) == [Range("t", 0, 100, 105), Range("t", 2, 100, 107)]


def test_as_many_pieces_as_asked_for() -> None:
    assert spans(split(ranges(10), 3, None)) == [(0, 100, 103), (0, 103, 106), (0, 106, 110)]
    assert len(split(ranges(10, 10), 2, None)) == 2
    assert len(split(ranges(10, 10), 4, None)) == 4
    assert len(split(ranges(10, 10), 1 << 40, None)) == 20, "and not as many steps as were asked for"


def test_a_small_partition_is_not_cut_and_leaves_its_share_to_the_others() -> None:
    """The connector's example: 1, 1000 and 1000 offsets for six tasks."""
    pieces = split(ranges(1, 1000, 1000), 6, None)
    assert [piece.partition for piece in pieces].count(0) == 1
    assert [piece.partition for piece in pieces].count(1) == 3


def test_no_piece_is_larger_than_allowed() -> None:
    pieces = split(ranges(25, 10), None, 10)
    assert spans(pieces) == [(0, 100, 108), (0, 108, 116), (0, 116, 125), (1, 100, 110)]


def test_both_limits_at_once() -> None:
    pieces = split(ranges(100), 4, 50)
    assert len(pieces) == 4
    assert max(piece.size for piece in pieces) <= 50


@given(
    st.lists(st.integers(0, 5000), min_size=1, max_size=6),
    st.one_of(st.none(), st.integers(1, 40)),
    st.one_of(st.none(), st.integers(1, 999)),
)
def test_pieces_cover_what_was_cut_without_gap_or_overlap(
    sizes: list[int], fewest: int | None, most: int | None
) -> None:
    pieces = split(ranges(*sizes), fewest, most)
    assert all(piece.size > 0 for piece in pieces)
    assert most is None or all(piece.size <= most for piece in pieces)
    for number, size in enumerate(sizes):
        mine = sorted((piece.start, piece.end) for piece in pieces if piece.partition == number)
        position = 100
        for start, end in mine:
            assert start == position
            position = end
        assert position == 100 + size


def test_a_limit_is_shared_in_proportion() -> None:
    start, end = {at(0): 0, at(1): 0, at(2): 5}, {at(0): 300, at(1): 100, at(2): 5}
    assert limited(40, start, end) == {at(0): 30, at(1): 10, at(2): 5}


def test_a_small_partition_is_not_starved() -> None:
    assert limited(10, {at(0): 0, at(1): 0}, {at(0): 10_000, at(1): 1}) == {at(0): 9, at(1): 1}


def test_a_limit_above_what_there_is_takes_it_all() -> None:
    assert limited(1000, {at(0): 0}, {at(0): 7}) == {at(0): 7}
    assert limited(1000, {at(0): 7}, {at(0): 7}) == {at(0): 7}


@given(st.lists(st.tuples(st.integers(0, 100), st.integers(0, 10_000)), min_size=1, max_size=8), st.integers(1, 5000))
def test_a_limit_never_goes_back_or_beyond_and_always_makes_progress(parts: list[tuple[int, int]], limit: int) -> None:
    start = {at(n): begin for n, (begin, _) in enumerate(parts)}
    end = {at(n): begin + size for n, (begin, size) in enumerate(parts)}
    chosen = limited(limit, start, end)
    assert all(start[where] <= offset <= end[where] for where, offset in chosen.items())
    taken = sum(chosen[where] - start[where] for where in chosen)
    assert taken <= limit + len(parts)
    assert taken > 0 or start == end


def test_an_offset_looks_like_the_connectors_and_comes_back() -> None:
    offset = StreamOffset({at(10): 5, at(2): 0, TopicPartition("a", 0): 1}, {"t": "ID"}, "group", {at(2): 0})
    text = json.loads(json.dumps(offset.text()))
    assert text["t"] == {"2": 0, "10": 5}
    assert list(text)[:2] == ["a", "t"]
    assert StreamOffset.of(text) == offset
    assert StreamOffset.of({"t": {"0": 3}}) == StreamOffset({at(0): 3}, {})


def test_offsets_are_spelled_the_same_whatever_their_order() -> None:
    one = StreamOffset({at(0): 1, at(1): 2}, {"a": "1", "b": "2"})
    other = StreamOffset({at(1): 2, at(0): 1}, {"b": "2", "a": "1"})
    assert json.dumps(one.text()) == json.dumps(other.text())


def test_a_loss_fails_or_warns_as_the_user_chose(caplog: pytest.LogCaptureFixture) -> None:
    options = {"kafka.bootstrap.servers": "h:1", "subscribe": "t"}
    with pytest.raises(DataLoss, match=r"t-0 is gone\. Nothing was skipped.*failOnDataLoss to false"):
        lost(Reading.batch(options), "t-0 is gone")
    lost(Reading.batch({**options, "failOnDataLoss": "false"}), "t-0 is gone")
    assert "t-0 is gone. Going on without it" in caplog.text


# What a cluster says, and how far it is believed.


def stream(**more: str) -> Reading:
    options = {"kafka.bootstrap.servers": "localhost:1", "subscribePattern": ".*", "fetchOffset.retryIntervalMs": "1"}
    return Reading.stream({**options, **more})


class Forgetful(Finder):
    """Asks a broker that has just started: it knows less at first than was known before."""

    def __init__(self) -> None:
        super().__init__(Cluster("localhost:1"), stream())
        self.asked = 0

    async def _partitions(self, strict: bool = True) -> Found:
        self.asked += 1
        return Found(frozenset([at(0)] if self.asked == 1 else [at(0), at(1)]), {})

    async def _marks(self, wanted: Mapping[TopicPartition, int]) -> Positions:
        self.asked += 1
        return dict.fromkeys(wanted, 5 if self.asked == 1 else 9)


def test_a_broker_that_knows_less_than_was_known_is_asked_again() -> None:
    finder = Forgetful()
    found = asyncio.run(finder.partitions_left(frozenset([at(0), at(1)])))
    assert (found.partitions, finder.asked) == ({at(0), at(1)}, 2)


def test_a_leader_whose_log_ends_before_what_was_read_is_asked_again() -> None:
    finder = Forgetful()
    assert asyncio.run(finder.latest([at(0)], {at(0): 9})) == {at(0): 9}
    assert finder.asked == 2


def test_a_pattern_does_not_mean_the_clusters_own_topics() -> None:
    finder = Finder(Cluster("localhost:1"), stream())
    names = ("orders", "__consumer_offsets", PROGRESS_TOPIC)
    kinds = [MetadataResponse.Topic(name=name, is_internal=name == "__consumer_offsets") for name in names]
    assert [topic.name for topic in kinds if finder._is_wanted(topic)] == ["orders"]


@pytest.mark.parametrize("fails", ["true", "false"])
def test_a_log_that_was_cut_back_below_what_was_read_is_a_loss(fails: str) -> None:
    """DataLoss, or a warning: never rows that are read twice or passed over without a word."""
    reader: Any = StreamReader(stream(failOnDataLoss=fails))
    start = StreamOffset({at(0): 7}, {})
    begin = reader._begin(start, Found(frozenset([at(0)]), {}), {at(0): 5})
    try:
        if fails == "true":
            with pytest.raises(DataLoss, match="ends at 5, and was read up to 7 before"):
                asyncio.run(begin)
        else:
            assert asyncio.run(begin) == {at(0): 7}
    finally:
        reader.stop()
