"""What administrators are told of groups that a socket test cannot easily bring about."""

from __future__ import annotations

import pytest

from classic_bench import ClassicBench
from groups_bench import GroupsBench
from ottla.coordination import commits, listing
from ottla.coordination.consumer_group import ConsumerGroup
from ottla.coordination.consumer_member import STABLE, UNREVOKED, ClassicSide, Member
from ottla.coordination.groups import Groups
from ottla.metadata.frozen import FrozenMap
from ottla.metadata.image import Image, Topic
from ottla.wire.errors import Error
from ottla.wire.messages.commits import OffsetCommitRequest
from ottla.wire.messages.groups import ListGroupsRequest

KNOWN, GONE = b"known-topic-id--", b"gone-topic-id---"


PICTURE = Image(
    features={"group.version": 1},
    topics=FrozenMap({KNOWN: Topic(KNOWN, "known", {})}),
    topic_ids=FrozenMap({"known": KNOWN}),
)


def commit(bench: GroupsBench, group: str) -> None:
    partition = OffsetCommitRequest.Topic.Partition(partition_index=0, committed_offset=1)
    topics = [OffsetCommitRequest.Topic(name="t", topic_id=KNOWN, partitions=[partition])]
    bench.ask(commits.commit, OffsetCommitRequest(group_id=group, topics=topics))


def names(groups: Groups, **filters: list[str]) -> set[str]:
    return {group.group_id for group in listing.listed(groups, ListGroupsRequest(**filters))}


def test_a_group_is_listed_once_whether_it_has_offsets_members_or_both() -> None:
    bench = ClassicBench()
    commit(bench, "simple")
    commit(bench, "g")
    bench.stable(1)
    bench.groups.by_id["consumers"] = ConsumerGroup("consumers")
    assert len(listing.listed(bench.groups, ListGroupsRequest())) == 3
    assert names(bench.groups, types_filter=["CONSUMER"]) == {"consumers"}
    assert names(bench.groups, states_filter=["Empty", "x"]) == {"simple", "consumers"}
    assert names(bench.groups, states_filter=["stable"], types_filter=["classic"]) == {"g"}


@pytest.mark.parametrize(
    ("members", "state"), [(0, "Empty"), (1, "PreparingRebalance"), (2, "CompletingRebalance"), (3, "Stable")]
)
def test_states_of_a_classic_group(members: int, state: str) -> None:
    """What members say and have is told only of a stable group; the protocol's type as soon as there is one."""
    bench = ClassicBench()
    commit(bench, "g")
    if members:
        member = bench.named()
        bench.join(member)
        bench.pass_ms(0 if members == 1 else 3_000)
        if members == 3:
            bench.settle()
    told = bench.ask(listing.describe, "g", version=6).reply
    assert (told.error_code, told.group_state) == (0, state)
    assert told.protocol_type == ("consumer" if members else "")
    assert told.protocol_data == ("range" if state == "Stable" else "")
    assert [m.member_metadata for m in told.members] == [b"topics" if state == "Stable" else b""] * min(members, 1)
    assert names(bench.groups, states_filter=[state.upper()]) == {"g"}


def consumers(*members: Member, image: Image = PICTURE, **settings: object) -> GroupsBench:
    bench = GroupsBench(image=image, **settings)
    group = ConsumerGroup("g")
    group.epoch = group.assignment_epoch = 4
    for member in members:
        group.put(member)
        group.targets[member.id] = {KNOWN: frozenset((2, 0)), GONE: frozenset((0,))}
    bench.groups.by_id["g"] = group
    return bench


def test_what_a_member_has_yet_to_give_up_still_counts_as_its_own() -> None:
    """Topics that are gone are left out."""
    held = {"assigned": {KNOWN: {2: 4}, GONE: {0: 4}}, "revoking": {KNOWN: {1: 3}}}
    bench = consumers(Member("m", epoch=4, state=UNREVOKED, names=frozenset("ba"), **held))
    told = bench.ask(listing.describe_consumers, "g").reply
    (member,) = told.members
    assert (told.group_state, told.group_epoch, told.assignment_epoch) == ("Reconciling", 4, 4)
    assert [(t.topic_name, t.partitions) for t in member.assignment.topic_partitions] == [("known", [1, 2])]
    assert [(t.topic_name, t.partitions) for t in member.target_assignment.topic_partitions] == [("known", [0, 2])]
    assert member.subscribed_topic_names == ["a", "b"]


def test_members_of_the_classic_protocol_are_told_apart() -> None:
    side = ClassicSide(10_000, (("range", b""),))
    bench = consumers(Member("old", epoch=4, state=STABLE, classic=side), Member("new", epoch=4, state=STABLE))
    told = bench.ask(listing.describe_consumers, "g").reply
    assert {member.member_id: member.member_type for member in told.members} == {"old": 0, "new": 1}
    assert told.assignor_name == "uniform"


def test_the_default_assignor_is_told_by_its_name_even_if_the_setting_names_a_class() -> None:
    bench = consumers(group_consumer_assignors="org.apache.kafka.coordinator.group.assignor.RangeAssignor,uniform")
    assert bench.ask(listing.describe_consumers, "g").reply.assignor_name == "range"


def test_deleting_takes_as_many_steps_as_it_needs() -> None:
    """Each writes no more than a batch holds, and the group itself goes with the last of its offsets."""
    bench = GroupsBench()
    group = "long" * 2_000
    for index in range(60):
        partition = OffsetCommitRequest.Topic.Partition(partition_index=index, committed_offset=1)
        topics = [OffsetCommitRequest.Topic(name="t", topic_id=KNOWN, partitions=[partition])]
        bench.ask(commits.commit, OffsetCommitRequest(group_id=group, topics=topics))
    steps = [bench.ask(listing.delete, group).reply]
    while not steps[-1]:
        assert names(bench.groups) == {group}
        steps.append(bench.ask(listing.delete, group).reply)
    assert steps == [False, False, True]
    assert names(bench.groups) == set()
    assert bench.ask(listing.delete, group).error is Error.GROUP_ID_NOT_FOUND
    bench.take_over()
    assert names(bench.groups) == set()
