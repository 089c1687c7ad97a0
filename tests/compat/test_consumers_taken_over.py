"""Consumer groups in a directory that goes from our node to Apache Kafka and back: members go on where they were.

Each side finds what the other wrote: epochs, targets, what members have, expressions with their topics, members that speak
the classic protocol. That nobody's epoch rises also shows that both compute the same hash of a group's topics.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from apache import kafka
from compat.test_consumer_scripts import SETTINGS, Play
from harness import Node, Server, stop_all
from ottla.wire.errors import Error
from ottla.wire.messages.groups import ConsumerGroupDescribeRequest

pytestmark = pytest.mark.apache

ROOMY = {**SETTINGS, "group.consumer.max.size": "9"}
LIVE, MIXED, PATTERN, DOWN = "live", "mixed", "pattern", "down"


class Meeting:
    """The groups of this test, on whichever broker has the directory now."""

    def __init__(self) -> None:
        self.plays: dict[str, Play] = {}

    def open(self, address: str) -> None:
        for name in (LIVE, MIXED, PATTERN, DOWN):
            before, self.plays[name] = self.plays.get(name), Play(address, name)
            if before is not None:
                for what in ("names", "epochs", "owned"):
                    setattr(self.plays[name], what, getattr(before, what))

    def close(self) -> None:
        for play in self.plays.values():
            play.line.close()

    def begin(self) -> None:
        """Groups in all kinds of states."""
        live = self.plays[LIVE]
        t = live.topic("t")
        for who, instance in (("a", None), ("b", None), ("s", "i")):
            live.join(who, t, instance_id=instance)
        for _ in range(3):
            for who in ("a", "b", "s"):
                live.beat(who, owns=True)
        live.beat("s", instance_id="i", member_epoch=-2)
        pattern = self.plays[PATTERN]
        pattern.topic("ta", 2)
        pattern.join("r", subscribed_topic_regex=f"{PATTERN}-t.")
        pattern.until("r", 2)
        for name in (MIXED, DOWN):
            self.mix(self.plays[name])
        down = self.plays[DOWN]
        down.beat("n", member_epoch=-1)
        down.classic_join("c", f"{DOWN}-t")
        down.sync("c", {"c": {f"{DOWN}-t": [0, 1, 2, 3]}})

    @staticmethod
    def mix(play: Play) -> None:
        t = play.topic("t")
        play.classic_join("c", t)
        play.sync("c", {"c": {t: [0, 1, 2, 3]}})
        play.join("n", t)
        for _ in range(2):
            play.classic_join("c", t)
            play.sync("c")
            play.beat("n", owns=True)
        assert play.heartbeat("c").error_code == 0

    def go_on(self) -> None:
        """Nobody has to do anything."""
        live, mixed, down = self.plays[LIVE], self.plays[MIXED], self.plays[DOWN]
        for play, who in ((live, "a"), (live, "b"), (mixed, "n"), (self.plays[PATTERN], "r")):
            same(play, who)
        assert mixed.heartbeat("c").error_code == 0 and down.heartbeat("c").error_code == 0
        assert live.beat("b", instance_id="i", is_lost=True).error_code == Error.FENCED_INSTANCE_ID.code
        states = {name: self.state(name) for name in (LIVE, MIXED, PATTERN)}
        assert states == {LIVE: "Reconciling", MIXED: "Stable", PATTERN: "Stable"}, "one of the live is away"

    def state(self, name: str) -> str:
        play = self.plays[name]
        found = play.aside(ConsumerGroupDescribeRequest(group_ids=[play.group_id]), 1).groups[0]
        return str(found.group_state)

    def change(self, who: str) -> None:
        """Something that the next broker has to know: the static member was back, under another id."""
        live = self.plays[LIVE]
        answer = live.join(who, f"{LIVE}-t", instance_id="i")
        assert answer.error_code == 0 and live.owned[who] == live.owned["s"]
        live.beat(who, instance_id="i", member_epoch=-2)


def same(play: Play, who: str) -> Any:
    """A heartbeat in full is answered with the epoch and the partitions that the member has."""
    owned, epoch = play.owned[who], play.epochs[who]
    answer = play.beat(who)
    assert (answer.error_code, play.epochs[who], play.owned[who]) == (0, epoch, owned)


def test_consumer_groups_change_hands(tmp_path: Path) -> None:
    """TRAP-54, GRP-11"""
    if reason := kafka.why_missing():
        pytest.skip(reason)
    meeting, began = Meeting(), False
    brokers: list[Callable[..., Server]] = [Node, kafka.Apache, Node, kafka.Apache]
    for number, broker in enumerate(brokers):
        server = broker(tmp_path / "data", settings=ROOMY)
        try:
            meeting.open(server.start().address)
            meeting.go_on() if began else meeting.begin()
            began = True
            meeting.change(f"s{number}")
        finally:
            meeting.close()
            stop_all([server])
