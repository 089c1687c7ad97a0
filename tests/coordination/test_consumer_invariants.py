"""Whatever members do, and whatever gets lost: no partition is used by two, epochs rise, and in the end it ends well."""

from __future__ import annotations

from collections import Counter

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import Bundle, RuleBasedStateMachine, consumes, invariant, rule

from consumers_bench import GROUP, Consumer, Crowd
from ottla.coordination.consumer_group import ConsumerGroup

TOPICS = {"ta": 3, "tb": 4, "u": 2}


class Members(RuleBasedStateMachine):
    """Consumers come, beat, lose answers, change their minds, crash, and go; topics grow; coordinators change."""

    members = Bundle("members")

    def __init__(self) -> None:
        super().__init__()
        self.crowd = Crowd(TOPICS, group_consumer_assignment_interval_ms=0)
        self.alive: list[Consumer] = []
        self.count = 0
        self.epoch = 0

    @rule(
        target=members,
        topics=st.sampled_from([["ta"], ["ta", "tb"], ["tb", "u"], []]),
        regex=st.sampled_from([None, None, None, "t.", ".*"]),
        assignor=st.sampled_from([None, None, "range", "uniform"]),
    )
    def come(self, topics: list[str], regex: str | None, assignor: str | None) -> Consumer:
        self.count += 1
        consumer = Consumer(self.crowd, f"m{self.count}", topics, regex, assignor=assignor).join()
        self.alive.append(consumer)
        return consumer

    @rule(member=members, is_lost=st.booleans(), is_slow=st.booleans())
    def beat(self, member: Consumer, is_lost: bool, is_slow: bool) -> None:
        if member in self.alive:
            member.beat(is_lost, is_slow)

    @rule(member=members)
    def catch_up(self, member: Consumer) -> None:
        if member in self.alive:
            member.catch_up()

    @rule(member=members)
    def all_but_one_are_quick(self, member: Consumer) -> None:
        for _ in range(2):
            for other in self.alive:
                other.beat(is_slow=other is member)

    @rule(member=members, topics=st.sampled_from([["ta"], ["tb"], ["u", "ta"]]), regex=st.sampled_from(["", "u", "t."]))
    def subscribe(self, member: Consumer, topics: list[str], regex: str) -> None:
        if member in self.alive:
            member.topics, member.regex = topics, regex
            member._heed(member.send(member.full()))

    @rule(member=members)
    def join_again(self, member: Consumer) -> None:
        if member in self.alive:
            member.join()

    @rule(member=consumes(members))
    def leave(self, member: Consumer) -> None:
        if member in self.alive and member.epoch > 0 and member.id in self.known():
            member.leave()
        self.forget(member)

    @rule(member=consumes(members))
    def crash(self, member: Consumer) -> None:
        self.forget(member)

    def forget(self, member: Consumer) -> None:
        if member in self.alive:
            self.alive.remove(member)

    @rule(seconds=st.sampled_from([1, 5, 20, 46]))
    def wait(self, seconds: int) -> None:
        """Those who are out by then stop using what they had: their session is over for them as well."""
        self.crowd.pass_ms(seconds * 1000)
        for member in self.alive:
            if member.id not in self.known():
                member._begin_anew()

    @rule(topic=st.sampled_from(sorted(TOPICS)))
    def grow(self, topic: str) -> None:
        found = self.crowd.image.topic(topic)
        assert found is not None
        self.crowd.grow(topic, min(len(found.partitions) + 1, 8))

    @rule()
    def take_over(self) -> None:
        before = self.crowd.groups.by_id.get(GROUP)
        self.crowd.take_over()
        after = self.crowd.groups.by_id.get(GROUP)
        if isinstance(before, ConsumerGroup):
            assert isinstance(after, ConsumerGroup)
            for name in ("members", "targets", "epoch", "assignment_epoch", "regexes", "names", "_holders", "state"):
                assert getattr(before, name) == getattr(after, name), name

    def known(self) -> dict[str, object]:
        group = self.crowd.groups.by_id.get(GROUP)
        return dict(group.members) if isinstance(group, ConsumerGroup) else {}

    @invariant()
    def no_partition_is_used_twice(self) -> None:
        """GRP-03"""
        used = Counter(partition for member in self.alive for partition in member.uses)
        assert all(count == 1 for count in used.values()), used

    @invariant()
    def epochs_rise(self) -> None:
        group = self.crowd.groups.by_id.get(GROUP)
        if isinstance(group, ConsumerGroup):
            assert group.epoch >= self.epoch and group.assignment_epoch <= group.epoch
            self.epoch = group.epoch

    def teardown(self) -> None:
        """Once nobody does anything odd any more, everything is shared, in full, and the group is at rest."""
        for _ in range(10):
            self.crowd.settle(*self.alive, rounds=8)
        if not self.alive:
            return
        group = self.crowd.group()
        assert group.state == "Stable"
        wanted = set()
        for member in self.alive:
            for name in group.topics_of(group.members[member.id]):
                topic = self.crowd.image.topic(name)
                wanted |= {(topic.id, index) for index in topic.partitions} if topic else set()
        assert set().union(*(member.uses for member in self.alive)) == wanted


class TestMembers(Members.TestCase):
    settings = settings(max_examples=60, stateful_step_count=30, deadline=None)
