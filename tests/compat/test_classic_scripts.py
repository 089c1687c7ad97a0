"""Scripts of classic groups, played on our node and on Apache Kafka 4.3.1: all are told the same, and the same is written.

OTTLA_DIFFERENTIAL_SELF sets Apache against Apache.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import pytest
from confluent_kafka import Consumer, TopicPartition

from apache import kafka
from compat.parties import Party
from compat.peers import ours_and_apaches

pytestmark = pytest.mark.apache

SETTINGS = {
    "group.initial.rebalance.delay.ms": "0",
    "group.min.session.timeout.ms": "500",
    "group.max.size": "4",
    "offsets.topic.num.partitions": "1",
}
OFFSETS_TOPIC = "__consumer_offsets"
# So long a script has until those are given up who shall not have joined; its own steps have to be done by then.
REBALANCE_MS = 3000
Script = Callable[[Party], None]
SCRIPTS: list[Script] = []


def script(play: Script) -> Script:
    SCRIPTS.append(play)
    return play


@pytest.fixture(scope="module")
def addresses(tmp_path_factory: pytest.TempPathFactory) -> Iterator[list[str]]:
    if reason := kafka.why_missing():
        pytest.skip(reason)
    with ours_and_apaches(tmp_path_factory.mktemp("scripts"), SETTINGS) as both:
        yield both


# --- generations


def first_generation(party: Party, version: int) -> None:
    """From nobody to nobody, in one version of everything."""
    syncs, beats = min(version, 5), min(version, 4)
    party.come("a", version)
    party.until("CompletingRebalance", 1)
    party.hear("a")
    party.come("b", version)
    party.until("PreparingRebalance", 2)
    party.heartbeat("a'", beats, id_of="a")
    party.join("a", version)
    party.hear("a", "b")
    party.sync("b", syncs)
    party.sync("a", syncs, parts="a:one b:two")
    party.hear("a", "b")
    for who in ("a", "b"):
        party.heartbeat(who, beats)
    party.leave("a", ("a", None), version=min(version, 5))
    party.join("b", version)
    party.hear("b")
    party.leave("b", ("b", None), version=min(version, 5))
    party.until("Empty", 0)


for number in range(10):
    SCRIPTS.append(lambda party, version=number: first_generation(party, version))  # type: ignore[misc]
    SCRIPTS[-1].__name__ = f"first_generation_v{number}"


def pair(party: Party, **more: Any) -> None:
    """A stable group of two; a leads."""
    instances: dict[str, str | None] = more.pop("instances", {})
    party.come("a", group_instance_id=instances.get("a"), **more)
    party.until("CompletingRebalance", 1)
    party.hear("a")
    party.come("b", group_instance_id=instances.get("b"), **more)
    party.until("PreparingRebalance", 2)
    party.join("a", group_instance_id=instances.get("a"), **more)
    party.hear("a", "b")
    party.sync("b", group_instance_id=instances.get("b"))
    party.sync("a", parts="a:one b:two", group_instance_id=instances.get("a"))
    party.hear("a", "b")
    party.until("Stable", 2)


@script
def administrators_look_on(party: Party) -> None:
    """What a member was given at last is told also while the group rebalances; what it subscribes to is not."""
    party.come("a")
    party.hear("a")
    party.describe()
    party.sync("a", parts="a:all")
    party.hear("a")
    party.describe()
    party.come("b")
    party.until("PreparingRebalance", 2)
    party.describe()
    party.join("a")
    party.hear("a", "b")
    party.describe()
    party.sync("a", parts="a:one b:two")
    party.sync("b")
    party.hear("a", "b")
    party.describe()
    party.leave("b", ("b", None))
    party.until("PreparingRebalance", 1)
    party.describe()
    party.leave("a", ("a", None))
    party.until("Empty", 0)
    party.describe()


@script
def a_static_member_comes_back_while_it_waits(party: Party) -> None:
    """It is no newcomer any more, so that its session may end: whoever waits need not send heartbeats."""
    party.come("a", session_timeout_ms=2500)
    party.hear("a")
    party.join("b", group_instance_id="i", session_timeout_ms=500)
    party.until("PreparingRebalance", 2)
    party.join("b'", group_instance_id="i", session_timeout_ms=2000)
    party.hear("b", "b'")


@script
def joining_again(party: Party) -> None:
    pair(party)
    party.join("b")  # nothing changed: the answer comes at once
    party.hear("b")
    party.sync("b")
    party.hear("b")
    party.join("b", speaks="range:more")
    party.until("PreparingRebalance", 2)
    party.heartbeat("a")
    party.sync("a")
    party.hear("a")
    party.join("a")
    party.hear("b", "a")
    party.join("a")  # the answer got lost: here it is again
    party.hear("a")
    party.join("b", speaks="range:more")
    party.hear("b")
    party.sync("b")
    party.join("b'", id_of="b", speaks="range:less")
    party.hear("b")
    party.until("PreparingRebalance", 2)
    party.join("a")
    party.hear("a", "b'")


@script
def a_leader_brings_about_a_rebalance(party: Party) -> None:
    pair(party)
    party.join("a")
    party.until("PreparingRebalance", 2)
    party.heartbeat("b")
    party.join("b")
    party.hear("a", "b")
    party.sync("a", parts="b:all")
    party.hear("a")
    for more in ({"protocol_type": None}, {"protocol_name": None}, {"protocol_type": "", "protocol_name": ""}, {}):
        party.sync("b", **more)
        party.hear("b")


@script
def votes(party: Party) -> None:
    party.join("a", 3, speaks="x y z")
    party.until("CompletingRebalance", 1)
    party.hear("a")
    party.join("b", 3, speaks="z x y")
    party.until("PreparingRebalance", 2)
    party.join("c", 3, speaks="y z")
    party.until("PreparingRebalance", 3)
    party.join("d", speaks="w")
    party.hear("d")
    party.join("d", protocol_type="connect", speaks="y")
    party.hear("d")
    party.join("a", 3, speaks="z y x")
    party.hear("a", "b", "c")


# --- checks


@script
def what_cannot_be(party: Party) -> None:
    for version in range(10):
        party.join("a", version, session_timeout_ms=499)
        party.hear("a")
        party.join("a", version, session_timeout_ms=2_000_000)
        party.hear("a")
        party.join("a", version, member_id="me")
        party.hear("a")
        party.join("a", version, group_id="")
        party.hear("a")
    for version in range(6):
        party.sync("a", version, member_id="me", generation_id=1)
        party.hear("a")
        party.sync("a", version, member_id="", generation_id=-1, group_id="")
        party.hear("a")
    for version in range(5):
        party.heartbeat("a", version, member_id="me")
        party.heartbeat("a", version, group_id="")
    for version in range(6):
        party.leave("a", ("me", None), version=version)
        party.leave("a", ("", None), version=version)
        party.leave("a", ("me", None), version=version, group_id="")
    party.leave("a")
    party.join("a", speaks="")
    party.hear("a")
    party.until("Empty", 0)
    party.join("a", protocol_type="")
    party.hear("a")
    party.join("a", 0, speaks="")
    party.hear("a")
    party.sync("a", member_id="me")
    party.hear("a")
    party.heartbeat("a", member_id="me")
    party.leave("a", ("me", None))


@script
def a_protocol_without_a_name(party: Party) -> None:
    for version in (6, 7, 9):
        party.come(f"of {version}", version, speaks=":x")
        party.until("CompletingRebalance", 1)
        party.hear(f"of {version}")
        party.leave("admin", (f"of {version}", None))
        party.until("Empty", 0)


@script
def words_of_strangers(party: Party) -> None:
    pair(party)
    for more in (
        {"member_id": "me"},
        {"member_id": ""},
        {"generation_id": 1},
        {"generation_id": -1},
        {"group_instance_id": "i"},
        {"member_id": "me", "generation_id": 0},
    ):
        party.heartbeat("a", **more)
        party.sync("a", **more)
        party.hear("a")
    party.sync("a", protocol_type="connect")
    party.hear("a")
    party.sync("a", protocol_name="other")
    party.hear("a")
    party.join("c", member_id="me")
    party.hear("c")
    party.join("c", member_id="me", group_instance_id="i")
    party.hear("c")
    party.join("c", member_id=party.ids["b"], group_instance_id="i")
    party.hear("c")
    party.leave("c", ("me", None), ("", None), ("", "i"), ("me", "i"))
    party.join("c")
    party.hear("c")  # told its id
    party.heartbeat("c")
    party.sync("c")
    party.hear("c")
    party.join("c", group_instance_id="i")  # an id that was given to a dynamic member
    party.hear("c")
    party.leave("c", ("c", None))
    party.until("PreparingRebalance", 2)


@script
def a_full_group(party: Party) -> None:
    brief = {"rebalance_timeout_ms": REBALANCE_MS, "session_timeout_ms": 30_000}
    pair(party, **brief)
    for who in "cde":
        party.join(who, **brief)
        party.hear(who)
    party.join("a", **brief)
    party.until("PreparingRebalance", 2)
    for count, who in enumerate("cde", 3):
        party.join(who, **brief)
        party.until("PreparingRebalance", count)
    party.join("f", 3)
    party.hear("f")
    party.join("f", group_instance_id="i")
    party.hear("f")
    party.join("b", **brief)  # it comes too late: there is no room left for it
    party.hear("b")
    party.hear("a", "c", "d", "e")
    party.join("f")
    party.hear("f")
    party.join("c", **brief)
    party.hear("c")


# --- static members


@script
def a_static_follower_comes_back(party: Party) -> None:
    pair(party, instances={"a": "ia", "b": "ib"})
    party.join("b2", group_instance_id="ib")
    party.hear("b2")
    party.heartbeat("b", group_instance_id="ib")
    party.heartbeat("b")
    party.sync("b", group_instance_id="ib")
    party.hear("b")
    party.join("b", group_instance_id="ib")
    party.hear("b")
    party.leave("b", ("b", "ib"))
    party.sync("b2", group_instance_id="ib")
    party.hear("b2")
    party.heartbeat("b2", group_instance_id="ib")
    party.heartbeat("b2")
    party.until("Stable", 2)
    party.join("b3", 5, group_instance_id="ib", session_timeout_ms=20_000)
    party.hear("b3")
    party.leave("c", ("", "ia"), ("", "ix"), ("", "ib"))
    party.until("Empty", 0)


@script
def a_static_leader_comes_back(party: Party) -> None:
    pair(party, instances={"a": "ia", "b": "ib"})
    party.join("a2", 9, group_instance_id="ia")
    party.hear("a2")
    party.join("a3", 8, group_instance_id="ia")
    party.hear("a3")
    party.join("a4", 9, group_instance_id="ia")
    party.hear("a4")
    party.sync("a4", group_instance_id="ia", parts="b:other")
    party.hear("a4")
    party.sync("b", group_instance_id="ib")
    party.hear("b")
    party.join("a4", group_instance_id="ia")  # as the leader that it is
    party.until("PreparingRebalance", 2)
    party.join("b", group_instance_id="ib")
    party.hear("a4", "b")


@script
def a_static_member_with_other_wishes(party: Party) -> None:
    pair(party, instances={"a": "ia", "b": "ib"}, speaks="x y")
    party.join("b2", group_instance_id="ib", speaks="x:more y")
    party.hear("b2")
    party.join("b3", group_instance_id="ib", speaks="y")
    party.until("PreparingRebalance", 2)
    party.join("a", group_instance_id="ia", speaks="x y")
    party.hear("a", "b3")
    party.sync("b3", group_instance_id="ib")
    party.join("b4", group_instance_id="ib", speaks="y")
    party.hear("b3")
    party.until("PreparingRebalance", 2)
    party.join("b5", group_instance_id="ib", speaks="y")
    party.hear("b4")
    party.join("a", group_instance_id="ia", speaks="x y")
    party.hear("a", "b5")


# --- time


@script
def silence(party: Party) -> None:
    """A member whose session ends, a pending one that never comes, one that does not join again in time."""
    short = {"session_timeout_ms": 500, "rebalance_timeout_ms": 1000}
    party.come("a", 3, **short)
    party.hear("a")
    party.until("Empty", 0)
    party.heartbeat("a")
    party.join("b")
    party.hear("b")
    party.join("c", session_timeout_ms=600)
    party.hear("c")
    party.join("b")
    party.hear("b")
    party.come("d", 3, session_timeout_ms=30_000, rebalance_timeout_ms=700)
    party.until("PreparingRebalance", 2)


@script
def those_who_do_not_join_in_time(party: Party) -> None:
    patient = {"session_timeout_ms": 30_000, "rebalance_timeout_ms": REBALANCE_MS}
    pair(party, **patient)
    party.join("b", speaks="range:more", **patient)
    party.hear("b")  # after that time
    party.heartbeat("a")
    party.join("a", **patient)
    party.hear("a")


@script
def those_who_do_not_ask_for_their_part(party: Party) -> None:
    patient = {"session_timeout_ms": 30_000, "rebalance_timeout_ms": REBALANCE_MS}
    pair(party, **patient)
    party.join("a", **patient)
    party.until("PreparingRebalance", 2)
    party.join("b", **patient)
    party.hear("a", "b")
    party.sync("b")
    party.hear("b")  # after that time: the leader never brought the parts
    party.heartbeat("a")
    party.join("b", **patient)
    party.hear("b")


@script
def an_absent_static_member(party: Party) -> None:
    patient = {"session_timeout_ms": 30_000, "rebalance_timeout_ms": REBALANCE_MS}
    pair(party, instances={"a": "ia"}, **patient)
    party.join("b", speaks="range:more", **patient)
    party.hear("b")
    party.sync("b", parts="a:x b:y")
    party.hear("b")
    party.sync("a", group_instance_id="ia")
    party.hear("a")


@script
def a_comer_before_the_silent_one_is_given_up(party: Party) -> None:
    """The second generation: the silent one is waited for, and missing from it."""
    party.come("a", session_timeout_ms=3000, rebalance_timeout_ms=1500, group_instance_id="ia")
    party.hear("a")
    party.join("b", group_instance_id="ib")
    party.until("PreparingRebalance", 2)
    party.hear("b")


@script
def a_comer_after_the_silent_one_was_given_up(party: Party) -> None:
    """The third: a generation without anybody lay between."""
    party.come("a", session_timeout_ms=3000, rebalance_timeout_ms=1500, group_instance_id="ia")
    party.hear("a")
    party.until("Empty", 0)
    party.join("b", group_instance_id="ib")
    party.hear("b")


@script
def one_who_leaves_while_it_waits(party: Party) -> None:
    pair(party)
    party.join("a")
    party.until("PreparingRebalance", 2)
    party.leave("c", ("a", None))
    party.hear("a")
    party.join("b")
    party.hear("b")


@pytest.mark.parametrize("play", SCRIPTS, ids=lambda play: play.__name__)
def test_same_words(play: Script, addresses: list[str]) -> None:
    """GRP-12, GRP-14: what members are told, and what is written about them."""
    minutes, written = [], []
    for address in addresses:
        party = Party(address, f"g-{play.__name__}")
        try:
            play(party)
        finally:
            party.close()
        minutes.append(party.minutes())
        written.append(party.records(read_topic(address, OFFSETS_TOPIC)))
    for ours, theirs in zip(*minutes, strict=True):
        assert ours == theirs
    assert written[0] == written[1]


def read_topic(address: str, name: str) -> list[tuple[bytes | None, bytes | None]]:
    """All of its only partition: keys and values."""
    consumer = Consumer({"bootstrap.servers": address, "group.id": "none", "enable.auto.commit": False})
    everything: list[tuple[bytes | None, bytes | None]] = []
    try:
        _, end = consumer.get_watermark_offsets(TopicPartition(name, 0), timeout=60)
        consumer.assign([TopicPartition(name, 0, 0)])
        while end > 0:
            message = consumer.poll(60)
            assert message is not None and message.error() is None, f"{name} cannot be read"
            everything.append((message.key(), message.value()))
            if (message.offset() or 0) >= end - 1:
                break
    finally:
        consumer.close()
    return everything
