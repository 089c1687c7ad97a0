"""How a leader divides partitions: examples with known answers, and what must hold whatever the group looks like."""

from __future__ import annotations

import random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from ottla.client.assignors import (
    ASSIGNORS,
    Members,
    Plan,
    Subscription,
    cooperative_sticky_assign,
    packed_assignment,
    packed_subscription,
    range_assign,
    read_assignment,
    read_subscription,
    round_robin_assign,
)
from ottla.client.cluster import TopicPartition


def numbers(plan: Plan) -> dict[str, list[str]]:
    return {member: [f"{where.topic}{where.partition}" for where in got] for member, got in plan.items()}


def subscribed(**topics: str) -> Members:
    return {member: Subscription(list(names)) for member, names in topics.items()}


def test_range_gives_consecutive_partitions() -> None:
    """GRP-16: partition n of two topics lies with one member; the first members get one more."""
    plan = range_assign(subscribed(b="xy", a="xy", c="x"), {"x": 4, "y": 3})
    assert numbers(plan) == {"a": ["x0", "x1", "y0", "y1"], "b": ["x2", "y2"], "c": ["x3"]}


def test_static_members_come_first_and_by_instance() -> None:
    members = {
        "z": Subscription("x", instance_id="1"),
        "a": Subscription("x"),
        "y": Subscription("x", instance_id="2"),
    }
    assert numbers(range_assign(members, {"x": 4})) == {"z": ["x0", "x1"], "y": ["x2"], "a": ["x3"]}


def test_round_robin_deals_in_turn_and_passes_over_who_did_not_subscribe() -> None:
    """GRP-17"""
    plan = round_robin_assign(subscribed(a="xy", b="x"), {"x": 3, "y": 2})
    assert numbers(plan) == {"a": ["x0", "x2", "y0", "y1"], "b": ["x1"]}
    assert numbers(round_robin_assign(subscribed(a="x"), {"x": 1, "nobody": 3})) == {"a": ["x0"]}


def test_cooperative_rounds_move_only_what_must_move() -> None:
    """GRP-18: the one who has too much lets go in the first round, the newcomer gets it in the second."""
    all_of_it = [TopicPartition("x", n) for n in range(4)]
    first = cooperative_sticky_assign({"a": Subscription("x", all_of_it, 1), "b": Subscription("x")}, {"x": 4})
    assert numbers(first) == {"a": ["x0", "x1"], "b": []}
    second = cooperative_sticky_assign({"a": Subscription("x", first["a"], 2), "b": Subscription("x", [], 2)}, {"x": 4})
    assert numbers(second) == {"a": ["x0", "x1"], "b": ["x2", "x3"]}


def test_of_two_claims_the_later_generation_counts() -> None:
    zero = [TopicPartition("x", 0)]
    members = {"a": Subscription("x", zero, 3), "b": Subscription("x", zero, 4)}
    assert numbers(cooperative_sticky_assign(members, {"x": 1})) == {"a": [], "b": ["x0"]}
    torn = {"a": Subscription("x", zero, 4), "b": Subscription("x", zero, 4)}
    assert sum(len(got) for got in cooperative_sticky_assign(torn, {"x": 1}).values()) == 1


TOPICS = "xyz"
GROUPS = st.lists(st.sets(st.sampled_from(TOPICS), min_size=1), min_size=1, max_size=6)
COUNTS = st.dictionaries(st.sampled_from(TOPICS), st.integers(0, 9))


@pytest.mark.parametrize("name", ASSIGNORS)
@settings(max_examples=60, deadline=None)
@given(wishes=GROUPS, counts=COUNTS)
def test_every_partition_somebody_wants_has_one_owner(
    name: str, wishes: list[set[str]], counts: dict[str, int]
) -> None:
    """GRP-03: and nobody gets what it did not ask for."""
    members = {f"m{n}": Subscription(sorted(topics)) for n, topics in enumerate(wishes)}
    plan = ASSIGNORS[name].assign(members, counts)
    given_out = [where for got in plan.values() for where in got]
    wanted = {topic for topics in wishes for topic in topics}
    assert sorted(given_out) == sorted(TopicPartition(t, n) for t in counts if t in wanted for n in range(counts[t]))
    assert all(where.topic in members[member].topics for member, got in plan.items() for where in got)


@settings(max_examples=60, deadline=None)
@given(seed=st.integers(0, 1 << 32), counts=COUNTS, size=st.integers(1, 8))
def test_cooperative_rounds_settle_and_are_even(seed: int, counts: dict[str, int], size: int) -> None:
    """After at most two rounds everything is given out, within one of each other, and a further round changes nothing."""
    rng = random.Random(seed)
    everything = [TopicPartition(topic, n) for topic in counts for n in range(counts[topic])]
    owned: dict[str, list[TopicPartition]] = {f"m{n}": [] for n in range(size)}
    for where in everything:
        if rng.random() < 0.7:
            owned[rng.choice(list(owned))].append(where)
    plans = []
    for generation in range(3):
        members = {member: Subscription(TOPICS, got, generation) for member, got in owned.items()}
        owned = cooperative_sticky_assign(members, counts)
        plans.append(owned)
    assert sorted(where for got in owned.values() for where in got) == sorted(everything)
    sizes = [len(got) for got in owned.values()]
    assert max(sizes) - min(sizes) <= 1
    assert plans[1] == plans[2]


def test_what_members_tell_each_other() -> None:
    """As Java writes it, version 3; and as old clients do, with the generation in the data of the assignor."""
    owned = [TopicPartition("x", 1), TopicPartition("x", 2)]
    data = packed_subscription(Subscription(["x", "y"], owned, 7))
    assert data[:2] == b"\x00\x03"
    assert read_subscription(data, "i") == Subscription(["x", "y"], owned, 7, "i")
    old = b"\x00\x00" + b"\x00\x00\x00\x01\x00\x01x" + b"\x00\x00\x00\x04\x00\x00\x00\x09"
    assert read_subscription(old, None) == Subscription(["x"], [], 9)
    assert read_assignment(packed_assignment(owned)) == owned
    assert read_assignment(b"") == read_assignment(b"\xff\xff") == read_assignment(b"no assignment") == []
