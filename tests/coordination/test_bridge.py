"""Members of both protocols in one group, and groups that change their kind while their members go on."""

from __future__ import annotations

from types import SimpleNamespace

import pytest

from consumers_bench import GROUP, Consumer, Crowd, topic_id
from machine_bench import Asked
from ottla.coordination import doors
from ottla.coordination.classic_group import COMPLETING, PREPARING, STABLE, ClassicGroup
from ottla.coordination.consumer_group import ConsumerGroup
from ottla.coordination.machine import Decision
from ottla.coordination.records import GroupMetadataKey, GroupMetadataValue, Record
from ottla.wire.errors import Error, KafkaError
from ottla.wire.messages.groups import (
    HeartbeatRequest,
    JoinGroupRequest,
    JoinGroupResponse,
    LeaveGroupRequest,
    SyncGroupRequest,
)
from ottla.wire.messages.subscriptions import (
    ConsumerProtocolAssignment,
    ConsumerProtocolSubscription,
    packed,
    unpacked,
)

SESSION_MS = 10_000
REBALANCE_MS = 20_000


class Classic:
    """A consumer of the classic protocol, with a cooperative assignor: it says what it owns, and leads if it has to."""

    def __init__(self, crowd: Crowd, instance_id: str | None = None, protocol: str = "cooperative-sticky") -> None:
        self.crowd, self.instance_id, self.protocol = crowd, instance_id, protocol
        self.id, self.generation = "", -1
        self.uses: set[tuple[str, int]] = set()
        self.joining: object = None
        self.user_data: bytes | None = None

    def subscription(self) -> bytes:
        owned = ConsumerProtocolSubscription.TopicPartition(topic="t", partitions=sorted(p for _, p in self.uses))
        said = ConsumerProtocolSubscription(topics=["t"], owned_partitions=[owned] if self.uses else [])
        said.generation_id = self.generation
        return packed(said, 3)

    def ask_to_join(self, **said: object) -> Asked:
        request = JoinGroupRequest(
            group_id=GROUP,
            session_timeout_ms=SESSION_MS,
            rebalance_timeout_ms=REBALANCE_MS,
            member_id=self.id,
            group_instance_id=self.instance_id,
            protocol_type="consumer",
            protocols=[JoinGroupRequest.Protocol(name=self.protocol, metadata=self.subscription())],
        )
        for name, value in said.items():
            setattr(request, name, value)
        return self.crowd.ask(doors.join, request, 9)

    def join(self) -> Classic:
        """Join and sync; as the leader of a classic group, take everything."""
        reply = self.ask_to_join().reply
        if isinstance(reply, JoinGroupResponse) and reply.error_code == Error.MEMBER_ID_REQUIRED.code:
            self.id = reply.member_id
            reply = self.ask_to_join().reply
        assert isinstance(reply, JoinGroupResponse), reply
        assert reply.error_code == 0, Error(reply.error_code)
        return self.sync(reply)

    def sync(self, joined: JoinGroupResponse) -> Classic:
        self.id, self.generation = joined.member_id, joined.generation_id
        request = SyncGroupRequest(group_id=GROUP, generation_id=self.generation, member_id=self.id)
        request.group_instance_id = self.instance_id
        request.protocol_type, request.protocol_name = "consumer", self.protocol
        if joined.leader == self.id:
            request.assignments = self.divide([member.member_id for member in joined.members])
        reply = self.crowd.ask(doors.sync, request, 5).reply
        if isinstance(reply, KafkaError):
            assert reply.error == Error.REBALANCE_IN_PROGRESS
            return self
        assignment = unpacked(ConsumerProtocolAssignment, bytes(reply.assignment))
        self.uses = {(topic.topic, p) for topic in assignment.assigned_partitions for p in topic.partitions}
        return self

    def divide(self, members: list[str]) -> list[SyncGroupRequest.Assignment]:
        parts: dict[str, list[int]] = {member: [] for member in members}
        topic = self.crowd.image.topic("t")
        for index in topic.partitions if topic else ():
            parts[members[index % len(members)]].append(index)
        topics = {
            member: [ConsumerProtocolAssignment.TopicPartition(topic="t", partitions=those)] if those else []
            for member, those in parts.items()
        }
        return [
            SyncGroupRequest.Assignment(
                member_id=member,
                assignment=packed(ConsumerProtocolAssignment(assigned_partitions=t, user_data=self.user_data), 1),
            )
            for member, t in topics.items()
        ]

    def beat(self) -> Error:
        """A heartbeat; one that is told to join again does so at once."""
        request = HeartbeatRequest(group_id=GROUP, generation_id=self.generation, member_id=self.id)
        request.group_instance_id = self.instance_id
        error = self.crowd.ask(doors.heartbeat, request, 4).error
        if error == Error.REBALANCE_IN_PROGRESS:
            self.join()
        return error

    def leave(self) -> None:
        one = LeaveGroupRequest.Member(member_id=self.id, group_instance_id=self.instance_id)
        reply = self.crowd.ask(doors.leave, LeaveGroupRequest(group_id=GROUP, members=[one]), 5).reply
        assert [member.error_code for member in reply.members] == [0]
        self.uses = set()

    def partitions(self) -> list[int]:
        return sorted(partition for _, partition in self.uses)


def crowd_of(**settings: object) -> Crowd:
    return Crowd({"t": 4}, group_initial_rebalance_delay_ms=0, **settings)


def classic_alone(crowd: Crowd, instance_id: str | None = None) -> Classic:
    """A classic group of one, which has everything."""
    one = Classic(crowd, instance_id)
    asked = one.ask_to_join()
    if instance_id is None:
        one.id = asked.reply.member_id
        asked = one.ask_to_join()
    crowd.pass_ms(0)
    one.sync(asked.reply)
    assert one.partitions() == [0, 1, 2, 3]
    return one


def settle(crowd: Crowd, *members: Classic | Consumer, rounds: int = 8) -> None:
    for _ in range(rounds):
        crowd.pass_ms(1000)
        for member in members:
            member.beat()


def shared(*members: Classic | Consumer) -> list[list[int]]:
    return [member.partitions() for member in members]


# --- up


def test_a_consumer_that_joins_turns_a_classic_group_into_a_consumer_group() -> None:
    """Its classic member goes on, gives up half, and nobody uses a partition of the other's."""
    crowd = crowd_of()
    one = classic_alone(crowd)
    crowd.pass_ms(1000)
    other = Consumer(crowd, "other").join()
    assert isinstance(crowd.groups.by_id[GROUP], ConsumerGroup)
    assert [type(record.key).key for record in crowd.written()[2:]] == [2, 5, 3, 7, 6, 8, 5, 3, 7, 7, 6, 8]
    assert (one.partitions(), other.partitions()) == ([0, 1, 2, 3], [])
    settle(crowd, one, other)
    assert sorted(shared(one, other)) == [[0, 1], [2, 3]] and crowd.group().state == "Stable"
    before = crowd.group().members
    crowd.take_over()
    assert crowd.group().members == before
    settle(crowd, one, other, rounds=2)
    assert sorted(shared(one, other)) == [[0, 1], [2, 3]]


def test_those_who_wait_in_a_classic_group_that_becomes_another_join_again() -> None:
    crowd = crowd_of()
    one = classic_alone(crowd)
    two = Classic(crowd)
    two.id = two.ask_to_join().reply.member_id
    waiting = two.ask_to_join()
    assert waiting.reply is None
    other = Consumer(crowd, "other").join()
    assert waiting.reply.error_code == Error.REBALANCE_IN_PROGRESS.code
    two.join()
    settle(crowd, one, two, other, rounds=14)
    assert sorted(len(part) for part in shared(one, two, other)) == [1, 1, 2]


def held_by_classic_ones(crowd: Crowd) -> dict[str, list[int]]:
    members = crowd.group().members.values()
    return {member.id: sorted(member.assigned.get(topic_id("t"), ())) for member in members if member.classic}


def asking(crowd: Crowd) -> tuple[Classic, Asked]:
    """A newcomer that has its id, and waits for the next generation of a classic group."""
    one = Classic(crowd)
    one.id = one.ask_to_join().reply.member_id
    return one, one.ask_to_join()


def test_what_members_own_is_nobody_elses_when_their_rebalance_began_anew() -> None:
    """GRP-03, KIP-429: cooperative members keep what they have while they join. Nobody has got a part in the generation that
    began, and now there will be another: only what they said when they joined tells what they use."""
    crowd = crowd_of()
    one = classic_alone(crowd)
    two, _ = asking(crowd)
    one.ask_to_join()
    assert crowd.groups.by_id[GROUP].state == COMPLETING
    three, _ = asking(crowd)
    assert crowd.groups.by_id[GROUP].state == PREPARING
    other = Consumer(crowd, "other").join()
    crowd.pass_ms(1000)
    other.beat()
    assert shared(one, other) == [[0, 1, 2, 3], []]
    for each in (one, two, three):
        each.join()
    settle(crowd, one, two, three, other, rounds=14)
    assert sorted(shared(one, two, three, other)) == [[0], [1], [2], [3]]


def test_what_the_leader_withholds_from_all_is_in_use_until_its_owner_joins_again() -> None:
    """GRP-03, KIP-429: partitions that are to change hands are given to nobody at first. The one that has them goes on with
    them until it gets its new part, and that is on its way."""
    crowd = crowd_of()
    one = classic_alone(crowd)
    asking(crowd)
    joined = one.ask_to_join().reply
    one.divide = lambda members: Classic.divide(one, [one.id, "nobody"])  # type: ignore[method-assign]
    uses = one.uses
    one.sync(joined)
    assert one.partitions() == [0, 2] and crowd.groups.by_id[GROUP].state == STABLE
    one.uses = uses  # the answer was not read yet
    crowd.take_over()
    other = Consumer(crowd, "other").join()
    crowd.pass_ms(1000)
    other.beat()
    assert shared(one, other) == [[0, 1, 2, 3], []]


def test_of_two_who_claim_a_partition_the_one_that_it_was_given_to_has_it() -> None:
    """A member may say that it owns what it lost long ago; and leaders may err."""
    crowd = crowd_of()
    one = classic_alone(crowd)
    two, asked = asking(crowd)
    joined = one.ask_to_join().reply
    one.divide = lambda members: Classic.divide(one, [one.id, two.id, one.id, two.id])  # type: ignore[method-assign]
    one.sync(joined)
    two.sync(asked.reply)
    assert shared(one, two) == [[0, 2], [1, 3]]
    Consumer(crowd, "other").join()
    assert held_by_classic_ones(crowd) == {one.id: [0, 2], two.id: [1, 3]}


@pytest.mark.parametrize("later", [0, 1])
def test_of_two_who_say_that_a_partition_is_theirs_the_one_that_had_it_later_has_it(later: int) -> None:
    """KIP-792: cooperative members say since which generation they own what they own. Nobody was given anything yet."""
    crowd = crowd_of()
    claiming = [Classic(crowd), Classic(crowd)]
    for number, one in enumerate(claiming):
        one.uses, one.generation = {("t", 0), ("t", 1)}, 5 if number == later else 4
        one.id = one.ask_to_join().reply.member_id
        one.ask_to_join()
    Consumer(crowd, "other").join()
    held = held_by_classic_ones(crowd)
    assert [held[one.id] for one in claiming] == ([[0, 1], []] if later == 0 else [[], [0, 1]])


def test_a_partition_that_a_leader_gave_to_two_goes_to_one_of_them() -> None:
    crowd = crowd_of()
    one = classic_alone(crowd)
    two, asked = asking(crowd)
    joined = one.ask_to_join().reply
    all_of_it = Classic.divide(one, [one.id])[0].assignment
    both = [SyncGroupRequest.Assignment(member_id=each, assignment=all_of_it) for each in (one.id, two.id)]
    one.divide = lambda members: both  # type: ignore[method-assign]
    one.sync(joined)
    two.sync(asked.reply)
    Consumer(crowd, "other").join()
    held = [
        partition
        for member in crowd.group().members.values()
        for those in member.assigned.values()
        for partition in those
    ]
    assert sorted(held) == [0, 1, 2, 3]


def test_partitions_that_do_not_exist_take_no_place_of_others() -> None:
    """The topic was made anew with fewer, say. Apache Kafka 4.3.1 fails, and the group cannot change."""
    crowd = crowd_of()
    one = classic_alone(crowd)
    joined = one.ask_to_join().reply
    parts = [ConsumerProtocolAssignment.TopicPartition(topic="t", partitions=[0, 1, 2, 3, 9, -1])]
    given = packed(ConsumerProtocolAssignment(assigned_partitions=parts), 1)
    one.divide = lambda members: [SyncGroupRequest.Assignment(member_id=one.id, assignment=given)]  # type: ignore[method-assign]
    one.sync(joined)
    assert one.partitions() == [-1, 0, 1, 2, 3, 9]
    other = Consumer(crowd, "other").join()
    settle(crowd, one, other)
    assert sorted(shared(one, other)) == [[0, 1], [2, 3]] and crowd.group().state == "Stable"


def test_a_group_goes_up_while_it_still_speaks_what_a_newcomer_does_not() -> None:
    crowd = crowd_of()
    one = Classic(crowd)
    both = [
        JoinGroupRequest.Protocol(name=name, metadata=one.subscription()) for name in ("range", "cooperative-sticky")
    ]
    one.id = one.ask_to_join(protocols=both).reply.member_id
    asked = one.ask_to_join(protocols=both)
    crowd.pass_ms(0)
    one.protocol = "range"
    one.sync(asked.reply)
    asking(crowd)
    Consumer(crowd, "other").join()
    assert len(crowd.group().members) == 3


def test_ways_up_that_are_closed() -> None:
    for settings, protocol_type, why in (
        ({"group_consumer_migration_policy": "downgrade"}, "consumer", "online upgrade is disabled."),
        ({}, "connect", "the group does not use the consumer embedded protocol."),
        ({"group_consumer_max_size": 1}, "consumer", "the group size exceeds the consumer group maximum size."),
    ):
        crowd = crowd_of(**settings)
        for one in (Classic(crowd), Classic(crowd)):
            one.id = one.ask_to_join(protocol_type=protocol_type).reply.member_id
            one.ask_to_join(protocol_type=protocol_type)
            crowd.pass_ms(0)
        other = Consumer(crowd, "other")
        said = f"Cannot upgrade classic group {GROUP} to consumer group because {why}"
        assert other.refused(other.full()) == (Error.GROUP_ID_NOT_FOUND, said)
        assert isinstance(crowd.groups.by_id[GROUP], ClassicGroup)


def test_a_group_whose_assignor_keeps_data_of_its_own_cannot_go_up() -> None:
    crowd = crowd_of()
    one = Classic(crowd)
    one.user_data = b"mine"
    one.id = one.ask_to_join().reply.member_id
    asked = one.ask_to_join()
    crowd.pass_ms(0)
    one.sync(asked.reply)
    other = Consumer(crowd, "other")
    error, said = other.refused(other.full())
    assert error == Error.GROUP_ID_NOT_FOUND and said is not None and "custom assignor" in said


@pytest.mark.parametrize("said", [b"", b"\0", b"\xff\xff", b"\0\1\0\0\0\0"])
def test_who_says_nothing_that_can_be_read_shares_with_no_other_kind(said: bytes) -> None:
    """What it reads and owns must be known before others are given a part; b"" is no subscription to nothing."""
    protocols = [JoinGroupRequest.Protocol(name="range", metadata=said)]
    crowd = crowd_of()
    one = Classic(crowd)
    one.id = one.ask_to_join(protocols=protocols).reply.member_id
    one.ask_to_join(protocols=protocols)
    crowd.pass_ms(0)
    other = Consumer(crowd, "other")
    error, why = other.refused(other.full())
    assert error == Error.GROUP_ID_NOT_FOUND and why is not None and why.endswith("protocol is malformed.")
    assert isinstance(crowd.groups.by_id[GROUP], ClassicGroup)

    crowd = crowd_of()
    Consumer(crowd, "first").join()
    one = Classic(crowd)
    one.id = one.ask_to_join(protocols=protocols).reply.member_id
    assert one.ask_to_join(protocols=protocols).error == Error.UNKNOWN_SERVER_ERROR
    assert [member.id for member in crowd.group().members.values()] == ["first"]


def test_a_group_of_any_other_kind_keeps_its_name() -> None:
    """As in Apache Kafka, where share groups and streams groups live among the others."""

    crowd = crowd_of()
    before = crowd.groups.by_id[GROUP] = SimpleNamespace(group_id=GROUP, kind="share", state="Empty")
    other = Consumer(crowd, "other")
    assert other.refused(other.full()) == (Error.GROUP_ID_NOT_FOUND, f"Group {GROUP} is not a consumer group.")
    crowd.carry_out(Decision(records=[Record(GroupMetadataKey(group=GROUP), None)]))
    assert crowd.groups.by_id[GROUP] is before


def test_an_empty_group_of_either_kind_becomes_the_other_without_ado() -> None:
    crowd = crowd_of(group_consumer_migration_policy="disabled")
    classic_alone(crowd).leave()
    other = Consumer(crowd, "other").join()
    assert other.partitions() == [0, 1, 2, 3]
    other.leave()
    again = classic_alone(crowd)
    assert isinstance(crowd.groups.by_id[GROUP], ClassicGroup) and again.partitions() == [0, 1, 2, 3]
    crowd.take_over()
    assert isinstance(crowd.groups.by_id[GROUP], ClassicGroup)


# --- classic members of consumer groups


def test_a_classic_member_joins_a_consumer_group_and_gets_its_part_by_steps() -> None:
    crowd = crowd_of()
    one = Consumer(crowd, "one").join()
    crowd.pass_ms(1000)
    other = Classic(crowd).join()
    assert other.partitions() == []
    settle(crowd, one, other)
    assert sorted(shared(one, other)) == [[0, 1], [2, 3]] and crowd.group().state == "Stable"


def test_a_classic_member_that_is_silent_or_does_not_rejoin_or_sync_is_out() -> None:
    """Its own session timeout counts, and its rebalance timeout for the rest."""
    crowd = crowd_of()
    one = Consumer(crowd, "one").join()
    crowd.pass_ms(1000)
    silent = Classic(crowd).join()
    crowd.pass_ms(SESSION_MS)
    assert silent.id not in crowd.group().members
    lazy = Classic(crowd).join()
    settle(crowd, one, lazy, rounds=3)
    third = Consumer(crowd, "third").join()
    for _ in range(REBALANCE_MS // 2000 + 6):
        crowd.pass_ms(2000)
        one.beat()
        third.beat()
        request = HeartbeatRequest(group_id=GROUP, generation_id=lazy.generation, member_id=lazy.id)
        last = crowd.ask(doors.heartbeat, request, 4).error
    assert last == Error.UNKNOWN_MEMBER_ID and lazy.id not in crowd.group().members


def test_what_is_refused_to_classic_members() -> None:
    crowd = crowd_of()
    Consumer(crowd, "one").join()
    other = Classic(crowd).join()
    assert crowd.ask(
        doors.heartbeat, HeartbeatRequest(group_id=GROUP, generation_id=99, member_id=other.id), 4
    ).error == (Error.ILLEGAL_GENERATION)
    heartbeat = HeartbeatRequest(group_id=GROUP, generation_id=2, member_id="one")
    assert crowd.ask(doors.heartbeat, heartbeat, 4).error == Error.UNKNOWN_MEMBER_ID
    sync = SyncGroupRequest(
        group_id=GROUP, generation_id=other.generation, member_id=other.id, protocol_type="consumer"
    )
    sync.protocol_name = "x"
    assert crowd.ask(doors.sync, sync, 5).error == Error.INCONSISTENT_GROUP_PROTOCOL
    stranger = Classic(crowd, protocol="range")
    assert stranger.ask_to_join().error == Error.INCONSISTENT_GROUP_PROTOCOL
    connect = other.ask_to_join(protocol_type="connect")
    assert connect.error == Error.INCONSISTENT_GROUP_PROTOCOL
    assert connect.reply.member_id == ""
    closed = crowd_of(group_consumer_migration_policy="disabled")
    Consumer(closed, "one").join()
    assert Classic(closed).ask_to_join().error == Error.INCONSISTENT_GROUP_PROTOCOL


# --- down


def test_when_the_last_consumer_leaves_the_classic_ones_are_a_classic_group_again() -> None:
    crowd = crowd_of()
    one = classic_alone(crowd)
    other = Consumer(crowd, "other").join()
    settle(crowd, one, other)
    other.leave()
    group = crowd.groups.by_id[GROUP]
    assert isinstance(group, ClassicGroup) and group.state == PREPARING
    asked = one.ask_to_join()
    one.sync(asked.reply)
    assert one.partitions() == [0, 1, 2, 3]
    crowd.take_over()
    loaded = crowd.groups.by_id[GROUP]
    assert isinstance(loaded, ClassicGroup) and list(loaded.members) == [one.id]
    assert one.beat() == Error.NONE


def test_a_consumer_whose_session_ends_leaves_a_classic_group_behind() -> None:
    crowd = crowd_of()
    one = classic_alone(crowd)
    Consumer(crowd, "other").join()
    settle(crowd, one, rounds=44)
    assert isinstance(crowd.groups.by_id[GROUP], ConsumerGroup)
    settle(crowd, one, rounds=1)
    assert isinstance(crowd.groups.by_id[GROUP], ClassicGroup)
    value = next(r.value for r in reversed(crowd.written()) if isinstance(r.value, GroupMetadataValue))
    assert [member.member_id for member in value.members] == [one.id]


def test_a_static_consumer_that_comes_back_with_the_classic_protocol_needs_no_rebalance() -> None:
    """The others keep what they have, and so does it: the target is the assignment."""
    crowd = crowd_of()
    one = classic_alone(crowd, "i1")
    other = Consumer(crowd, "other", instance_id="i2").join()
    settle(crowd, one, other)
    had = shared(one, other)
    other.leave()
    again = Classic(crowd, "i2").join()
    group = crowd.groups.by_id[GROUP]
    assert isinstance(group, ClassicGroup) and group.state == "Stable"
    assert shared(one, again) == had
    assert (one.beat(), again.beat()) == (Error.NONE, Error.NONE)
    crowd.take_over()
    assert (one.beat(), again.beat()) == (Error.NONE, Error.NONE)


def test_a_static_classic_member_that_comes_back_with_the_new_protocol_takes_over_its_part() -> None:
    crowd = crowd_of()
    one, two = classic_alone(crowd, "i1"), Consumer(crowd, "two", instance_id="i1")
    two.join()
    assert two.partitions() == [0, 1, 2, 3]
    assert list(crowd.group().members) == ["two"] and crowd.group().state == "Stable"
    assert one.beat() == Error.FENCED_INSTANCE_ID


def test_with_the_way_down_closed_classic_members_stay_in_a_consumer_group() -> None:
    crowd = crowd_of(group_consumer_migration_policy="upgrade")
    one = classic_alone(crowd)
    other = Consumer(crowd, "other").join()
    settle(crowd, one, other)
    other.leave()
    settle(crowd, one, rounds=3)
    assert crowd.group().state == "Stable" and one.partitions() == [0, 1, 2, 3]


def test_what_a_member_has_not_given_up_is_nobody_elses_after_a_way_down_and_up_again() -> None:
    """GRP-03: a consumer comes, goes and comes again before the classic member says another word. It was to give up half of
    what it uses, and has not heard of it."""
    crowd = crowd_of()
    one = classic_alone(crowd)
    visitor = Consumer(crowd, "visitor").join()
    crowd.pass_ms(1000)
    visitor.beat()
    visitor.leave()
    assert isinstance(crowd.groups.by_id[GROUP], ClassicGroup)
    other = Consumer(crowd, "other").join()
    crowd.pass_ms(1000)
    other.beat()
    assert one.partitions() == [0, 1, 2, 3] and other.partitions() == []
    assert one.beat() == Error.ILLEGAL_GENERATION
    one.uses = set()
    one.join()
    settle(crowd, one, other, rounds=10)
    assert sorted(shared(one, other)) == [[0, 1], [2, 3]]


def test_a_downgrade_that_cannot_be_written_leaves_everything_as_it_was() -> None:
    crowd = crowd_of()
    one = classic_alone(crowd)
    other = Consumer(crowd, "other").join()
    settle(crowd, one, other)
    had, crowd.most_bytes = shared(one, other), 0
    assert isinstance(other.send(other.request(member_epoch=-1)), KafkaError)
    crowd.most_bytes = 1 << 20
    settle(crowd, one, other, rounds=3)
    assert shared(one, other) == had and crowd.group().state == "Stable"


def test_an_upgrade_that_cannot_be_written_answers_those_who_wait_and_leaves_a_classic_group() -> None:
    """The disk is full: nobody waits for ever, and sessions still end."""
    crowd = crowd_of()
    one, two = classic_alone(crowd), Classic(crowd)
    two.id = two.ask_to_join().reply.member_id
    waiting = two.ask_to_join()
    crowd.most_bytes = 0
    assert Consumer(crowd, "other").send(Consumer(crowd, "other").full()).error_code != 0  # type: ignore[union-attr]
    assert waiting.reply.error_code == Error.REBALANCE_IN_PROGRESS.code
    assert isinstance(crowd.groups.by_id[GROUP], ClassicGroup)
    crowd.most_bytes = 1 << 20
    again = two.ask_to_join()
    joined = one.ask_to_join()
    assert again.reply.error_code == joined.reply.error_code == 0
    crowd.pass_ms(SESSION_MS + REBALANCE_MS)
    assert crowd.groups.by_id[GROUP].state == "Empty"


def test_a_member_that_was_not_heard_of_while_nothing_could_be_written_goes_later() -> None:
    """A session that ends, and a last word: both are refused by a full disk. Neither may leave a member behind for ever."""
    for says_goodbye in (False, True):
        crowd = Crowd({"t": 4})
        one, other = Consumer(crowd, "one").join(), Consumer(crowd, "other").join()
        crowd.settle(one, other)
        crowd.most_bytes = 0
        if says_goodbye:
            assert isinstance(other.send(other.request(member_epoch=-1)), KafkaError)
        else:
            crowd.pass_ms(46_000)
            assert len(crowd.group().members) == 2
        crowd.most_bytes = 1 << 20
        crowd.settle(one, rounds=60)
        assert list(crowd.group().members) == ["one"]
        assert one.partitions() == [0, 1, 2, 3]


def test_the_epoch_of_a_classic_member_is_checked_when_it_commits() -> None:
    crowd = crowd_of()
    Consumer(crowd, "one").join()
    other = Classic(crowd).join()
    group = crowd.group()
    assert group.check_commit(other.id, None, other.generation, 8, False) is None
    for generation in (other.generation + 1, other.generation - 1):
        try:
            check = group.check_commit(other.id, None, generation, 8, False)
            assert check is not None
            check("t", topic_id("t"), 0)
        except KafkaError as error:
            assert error.error == Error.ILLEGAL_GENERATION
        else:
            raise AssertionError("it was allowed")
