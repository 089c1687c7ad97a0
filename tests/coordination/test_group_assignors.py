"""Assignors: every partition of a subscribed topic has one owner, who subscribes to it; loads are even; little moves."""

from __future__ import annotations

from hypothesis import given, settings
from hypothesis import strategies as st

from ottla.coordination.assignors import Candidate, Counts, Targets, named, range_, uniform

TOPICS = [bytes([number]) * 16 for number in range(1, 6)]


def candidates(subscriptions: dict[str, set[bytes]], targets: Targets | None = None) -> dict[str, Candidate]:
    return {m: Candidate(None, topics, (targets or {}).get(m, {})) for m, topics in subscriptions.items()}


def owners(targets: Targets) -> dict[tuple[bytes, int], str]:
    found: dict[tuple[bytes, int], str] = {}
    for member_id, topics in targets.items():
        for topic, partitions in topics.items():
            for partition in partitions:
                assert (topic, partition) not in found, "owned twice"
                found[topic, partition] = member_id
    return found


def sizes(targets: Targets) -> dict[str, int]:
    return {m: sum(len(partitions) for partitions in topics.values()) for m, topics in targets.items()}


counts = st.fixed_dictionaries({topic: st.integers(1, 9) for topic in TOPICS})
subscribing = st.dictionaries(
    st.sampled_from([f"member-{i}" for i in range(8)]), st.sets(st.sampled_from(TOPICS)), min_size=1
)


def check_owners(targets: Targets, subscriptions: dict[str, set[bytes]], partitions: Counts) -> None:
    assert targets.keys() == subscriptions.keys()
    found = owners(targets)
    wanted = set().union(*subscriptions.values())
    assert found.keys() == {(topic, index) for topic in wanted for index in range(partitions[topic])}
    assert all(topic in subscriptions[member] for (topic, _), member in found.items())


@given(counts, subscribing)
def test_every_partition_has_one_owner_who_subscribes_to_it(
    partitions: Counts, subscriptions: dict[str, set[bytes]]
) -> None:
    """GRP-03"""
    for assign in (uniform, range_):
        check_owners(assign(candidates(subscriptions), partitions), subscriptions, partitions)


@settings(max_examples=60)
@given(counts, st.lists(subscribing, min_size=2, max_size=4))
def test_uniform_is_as_even_as_single_moves_can_make_it_and_stays_so_when_nothing_changes(
    partitions: Counts, history: list[dict[str, set[bytes]]]
) -> None:
    targets: Targets = {}
    for subscriptions in history:
        targets = uniform(candidates(subscriptions, targets), partitions)
        check_owners(targets, subscriptions, partitions)
        load = sizes(targets)
        for (topic, _), member in owners(targets).items():
            poorest = min(load[other] for other, topics in subscriptions.items() if topic in topics)
            assert load[member] - poorest <= 1
        assert uniform(candidates(subscriptions, targets), partitions) == targets


@given(st.integers(1, 40), st.integers(1, 10), st.integers(1, 10))
def test_uniform_moves_no_more_than_it_must_when_all_subscribe_to_the_same(count: int, before: int, after: int) -> None:
    partitions, topic = {TOPICS[0]: count}, {TOPICS[0]}
    first = uniform(candidates({f"m{i}": topic for i in range(before)}), partitions)
    second = uniform(candidates({f"m{i}": topic for i in range(after)}, first), partitions)
    assert max(sizes(second).values()) - min(sizes(second).values()) <= 1
    old, new = owners(first), owners(second)
    moved = sum(old[partition] != new[partition] for partition in old)
    if after <= before:
        assert moved == sum(size for member, size in sizes(first).items() if member not in second)
    else:
        assert moved == sum(size for member, size in sizes(second).items() if member not in first)


def test_the_exercises_of_four_partitions() -> None:
    """GRP-05, GRP-06, GRP-07, GRP-10"""

    def shared(partitions: int, members: int) -> list[int]:
        subscriptions = {f"m{i}": {TOPICS[0]} for i in range(members)}
        return sorted(sizes(uniform(candidates(subscriptions), {TOPICS[0]: partitions})).values(), reverse=True)

    assert [shared(4, members) for members in (1, 2, 3, 4, 5)] == [
        [4],
        [2, 2],
        [2, 1, 1],
        [1, 1, 1, 1],
        [1, 1, 1, 1, 0],
    ]
    assert shared(12, 12) == [1] * 12


def test_range_divides_topics_of_one_size_at_the_same_places() -> None:
    """GRP-16: keys of two topics meet at one member."""
    subscriptions = {member: {TOPICS[0], TOPICS[1]} for member in ("b", "a", "c")}
    targets = range_(candidates(subscriptions), {TOPICS[0]: 7, TOPICS[1]: 7})
    assert {member: sorted(topics[TOPICS[0]]) for member, topics in targets.items()} == {
        "a": [0, 1, 2],
        "b": [3, 4],
        "c": [5, 6],
    }
    assert all(topics[TOPICS[0]] == topics[TOPICS[1]] for topics in targets.values())


def test_range_puts_static_members_first_by_their_instance() -> None:
    members = {
        "z": Candidate("instance-1", {TOPICS[0]}, {}),
        "y": Candidate("instance-2", {TOPICS[0]}, {}),
        "a": Candidate(None, {TOPICS[0]}, {}),
    }
    targets = range_(members, {TOPICS[0]: 3})
    assert {member: sorted(topics[TOPICS[0]]) for member, topics in targets.items()} == {"z": [0], "y": [1], "a": [2]}


def test_assignors_may_be_named_by_apaches_classes_and_unknown_ones_are_left_out() -> None:
    names = ["org.apache.kafka.coordinator.group.assignor.RangeAssignor", "uniform", "com.example.Mine"]
    assert named(names) == ["range", "uniform"]
    assert named(["com.example.Mine"]) == ["uniform"]
