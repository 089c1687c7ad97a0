"""Compaction must not change what a coordinator knows: however much of the topic it has reached, and wherever it stopped."""

from __future__ import annotations

import sys
from contextlib import suppress
from pathlib import Path
from random import Random

import pytest

from consumers_bench import GROUP, Consumer, Crowd, topic_id
from ottla.coordination import commits, listing
from ottla.coordination.classic_group import ClassicGroup
from ottla.coordination.consumer_group import ConsumerGroup
from ottla.wire.messages.commits import OffsetCommitRequest, OffsetDeleteRequest

sys.path.insert(0, str(Path(__file__).parent))
from test_bridge import Classic

Entry = tuple[int, bytes, bytes | None]
GROUPS = (GROUP, "alone", "other")
KEPT = ("members", "targets", "epoch", "assignment_epoch", "regexes", "names", "metadata_hash")


class Play:
    """Members of both protocols come and go in one group; that one and others commit; topics are deleted and made again."""

    def __init__(self, seed: int) -> None:
        self.rng = Random(seed)
        self.crowd = Crowd({"t": 4, "u": 2}, group_initial_rebalance_delay_ms=0)
        self.members: list[Classic | Consumer] = []

    def go_on(self, steps: int) -> list[Entry]:
        moves = (
            self.come,
            self.come,
            self.beat,
            self.beat,
            self.commit,
            self.commit,
            self.leave,
            self.forget,
            self.topic,
        )
        for _ in range(steps):
            with suppress(AssertionError):  # members that are told off; what they are told is not the question here
                self.rng.choice(moves)()
            self.crowd.pass_ms(self.rng.choice((0, 0, 1000, 15_000, 50_000)))
        return [(offset, key, value) for offset, (key, value) in enumerate(self.crowd.log)]

    def come(self) -> None:
        number = len(self.crowd.log)
        fresh: Classic | Consumer = Classic(self.crowd)
        if self.rng.random() < 0.5:
            fresh = Consumer(self.crowd, f"m{number}", ["t"], self.rng.choice([None, "u|t"]))
        self.members.append(fresh)
        fresh.join()

    def beat(self) -> None:
        for member in self.members:
            with suppress(AssertionError):
                member.beat()

    def leave(self) -> None:
        if self.members:
            self.members.pop(self.rng.randrange(len(self.members))).leave()

    def commit(self) -> None:
        topic = self.rng.choice("tu")
        part = OffsetCommitRequest.Topic.Partition(
            partition_index=self.rng.randrange(2), committed_offset=self.rng.randrange(99)
        )
        known = self.crowd.image.topic(topic)
        asked = OffsetCommitRequest.Topic(name=topic, topic_id=known.id if known else bytes(16), partitions=[part])
        request = OffsetCommitRequest(
            group_id=self.rng.choice(GROUPS), generation_id_or_member_epoch=-1, topics=[asked]
        )
        self.crowd.ask(commits.commit, request, 9)

    def forget(self) -> None:
        group, draw = self.rng.choice(GROUPS), self.rng.random()
        if draw < 0.5:
            self.crowd.ask(listing.delete, group)
            return
        part = OffsetDeleteRequest.Topic.Partition(partition_index=self.rng.randrange(2))
        topics = [OffsetDeleteRequest.Topic(name="u", partitions=[part])]
        self.crowd.ask(commits.delete, OffsetDeleteRequest(group_id=group, topics=topics))

    def topic(self) -> None:
        if self.crowd.image.topic_by_id(topic_id("u")) is None:
            self.crowd.make("u", 2)
        elif self.rng.random() < 0.3:
            self.crowd.delete("u")


def compacted(log: list[Entry], mapped_to: int, swapped_to: int, forgotten_to: int) -> list[Entry]:
    """What is left if keys were mapped up to one offset, segments exchanged up to another, and old tombstones let go."""
    newest = {key: offset for offset, key, _ in log if offset < mapped_to}
    return [
        (offset, key, value)
        for offset, key, value in log
        if offset >= swapped_to or (offset >= newest.get(key, -1) and (value is not None or offset >= forgotten_to))
    ]


def known(crowd: Crowd, log: list[Entry]) -> tuple[object, ...]:
    coordinator = crowd.new_machine()
    for offset, key, value in log:
        coordinator.read(key, value, offset)
    groups = coordinator.state
    offsets = {group: kept for group, kept in groups.offsets.by_group.items() if kept}
    consumers = {
        group.group_id: [getattr(group, name) for name in KEPT]
        for group in groups.by_id.values()
        if isinstance(group, ConsumerGroup)
    }
    classic = {group.group_id: group for group in groups.by_id.values() if isinstance(group, ClassicGroup)}
    return offsets, consumers, classic


@pytest.mark.parametrize("seed", range(30))
def test_a_compacted_log_says_the_same(seed: int) -> None:
    """OFF-02, RET-06: offsets, members and generations, with a round that ended anywhere."""
    play = Play(seed)
    log = play.go_on(60)
    whole, rng = known(play.crowd, log), Random(seed)
    for _ in range(20):
        mapped_to = rng.randrange(len(log) + 1)
        swapped_to = rng.choice([mapped_to, rng.randrange(mapped_to + 1)])
        again = compacted(log, mapped_to, swapped_to, rng.choice([0, swapped_to, rng.randrange(swapped_to + 1)]))
        assert known(play.crowd, again) == whole, f"mapped to {mapped_to}, exchanged to {swapped_to}"
