"""Classic groups: who gets in, and what members are told. Time passes by hand."""

from __future__ import annotations

import pytest

from classic_bench import RANGE
from classic_bench import ClassicBench as Bench
from machine_bench import BEGAN_WALL_MS
from ottla.coordination import commits
from ottla.coordination.classic_group import COMPLETING, PREPARING, STABLE
from ottla.coordination.consumer_group import ConsumerGroup
from ottla.coordination.groups import CONSUMER, EMPTY
from ottla.coordination.machine import Decision
from ottla.coordination.records import ConsumerGroupMetadataKey, ConsumerGroupMetadataValue, Record
from ottla.wire.errors import Error, KafkaError
from ottla.wire.messages.commits import OffsetCommitRequest


class TestAFirstGeneration:
    def test_from_the_first_join_to_stable(self) -> None:
        """GRP-03, GRP-12: two members, one leader that learns of both, each gets its own part, and all of it is written."""
        bench = Bench()
        one, two = bench.named(), bench.named()
        assert one.startswith("client-") and len(one) == len("client-") + 36
        first, second = bench.join(one), bench.join(two)
        assert bench.group.state == PREPARING
        bench.pass_ms(3000)
        assert first.is_waiting  # the second came during the delay: it is extended
        bench.pass_ms(3000)
        assert (first.reply.leader, first.reply.generation_id) == (one, 1)
        assert [m.member_id for m in first.reply.members] == [one, two]
        assert (first.reply.protocol_type, first.reply.protocol_name) == ("consumer", "range")
        assert (second.reply.leader, second.reply.members) == (one, [])
        follower = bench.sync(two)
        assert follower.is_waiting and bench.group.state == COMPLETING
        leader = bench.sync(one, {one: b"p0", two: b"p1"})
        assert (leader.reply.assignment, follower.reply.assignment) == (b"p0", b"p1")
        assert bench.group.state == STABLE
        assert [(m.member_id, m.assignment) for m in bench.last_written().members] == [(one, b"p0"), (two, b"p1")]
        assert bench.heartbeat(one) is bench.heartbeat(two) is Error.NONE

    @pytest.mark.parametrize("asks", ["for its part", "to join again"])
    def test_who_asks_is_not_silent(self, asks: str) -> None:
        """Also where the answer is there at once: it may still be long on its way, and no heartbeat is sent before."""
        bench = Bench()
        one, two = bench.named(), bench.named()
        bench.join(one, session_ms=10_000), bench.join(two, session_ms=10_000)
        bench.pass_ms(6000)
        bench.sync(one, {one: b"p0", two: b"p1"})
        bench.pass_ms(9000)
        bench.heartbeat(one)
        asked = bench.sync(two) if asks == "for its part" else bench.join(two, session_ms=10_000)
        assert asked.error is Error.NONE
        bench.pass_ms(9000)
        assert bench.group.state == STABLE and two in bench.group.members
        bench.heartbeat(one)
        bench.pass_ms(1001)
        assert two not in bench.group.members

    def test_that_a_group_exists_is_written_first_as_apache_does(self) -> None:
        bench = Bench()
        bench.named()
        value = bench.last_written()
        assert (value.protocol_type, value.generation, value.protocol, value.leader) == ("", 0, None, None)
        assert value.current_state_timestamp == BEGAN_WALL_MS and value.members == []
        assert len(bench.log) == 1
        bench.named()
        assert len(bench.log) == 1

    def test_before_version_4_a_newcomer_is_in_at_once(self) -> None:
        bench = Bench()
        asked = bench.join(version=3)
        bench.pass_ms(3000)
        assert asked.error is Error.NONE and asked.reply.member_id == asked.reply.leader

    def test_before_version_1_the_session_timeout_is_the_rebalance_timeout(self) -> None:
        bench = Bench()
        bench.join(version=0, session_ms=7000, rebalance_ms=-1)
        assert bench.group.rebalance_timeout_ms == 7000

    def test_the_delay_ends_with_the_rebalance_timeout_however_many_come(self) -> None:
        """GRP-20: a herd that starts is damped, but not for ever."""
        bench = Bench()
        first = bench.join(rebalance_ms=8000, version=3)
        for _ in range(20):
            bench.pass_ms(1000)
            if first.reply is not None:
                break
            bench.join(rebalance_ms=8000, version=3)
        assert bench.elapsed_ms == 8000  # 3 s, 3 s, and the 2 s that are left
        assert len(first.reply.members) == 8

    def test_without_a_delay_the_first_alarm_completes(self) -> None:
        bench = Bench(group_initial_rebalance_delay_ms=0)
        asked = bench.join(version=3)
        bench.pass_ms(0)
        assert asked.error is Error.NONE

    def test_any_type_of_protocol_will_do(self) -> None:
        bench = Bench()
        asked = bench.join(protocol_type="connect", speaks=[("sessioned", b"\xff\xff"), ("compatible", b"")], version=2)
        bench.pass_ms(3000)
        assert asked.reply.protocol_name == "sessioned"
        assert bench.group.protocol_type == "connect"
        assert not bench.group.is_subscribed_to("any")


class TestWhoGetsIn:
    def test_an_id_that_nobody_gave_out(self) -> None:
        bench = Bench()
        assert bench.join("me").error is Error.UNKNOWN_MEMBER_ID
        assert not bench.groups.by_id and not bench.log
        bench.named()
        assert bench.join("me").error is Error.UNKNOWN_MEMBER_ID

    def test_a_group_of_offsets_alone_exists(self) -> None:
        """What its member speaks is looked at before who it is; neither is written down."""
        bench = Bench()
        commit = OffsetCommitRequest.Topic.Partition(partition_index=0, committed_offset=1)
        topic = OffsetCommitRequest.Topic(name="t", partitions=[commit])
        bench.ask(commits.commit, OffsetCommitRequest(group_id="g", topics=[topic]), 8)
        written = len(bench.log)
        assert bench.join("me").error is Error.UNKNOWN_MEMBER_ID
        assert bench.join("me", speaks=[]).error is Error.INCONSISTENT_GROUP_PROTOCOL
        assert bench.join(protocol_type="").error is Error.INCONSISTENT_GROUP_PROTOCOL
        assert len(bench.log) == written

    @pytest.mark.parametrize(("speaks", "protocol_type"), [([], "consumer"), (RANGE, "")])
    def test_members_need_protocols(self, speaks: list[tuple[str, bytes]], protocol_type: str) -> None:
        """As in Apache Kafka, the group exists from then on."""
        bench = Bench()
        asked = bench.join(speaks=speaks, protocol_type=protocol_type)
        assert asked.error is Error.INCONSISTENT_GROUP_PROTOCOL
        assert bench.group.state == EMPTY and len(bench.log) == 1

    def test_one_protocol_must_be_common(self) -> None:
        bench = Bench()
        bench.stable(2)
        assert bench.join(speaks=[("other", b"")]).error is Error.INCONSISTENT_GROUP_PROTOCOL
        assert bench.join(protocol_type="connect").error is Error.INCONSISTENT_GROUP_PROTOCOL
        assert bench.join(speaks=[("other", b""), *RANGE]).error is Error.MEMBER_ID_REQUIRED

    def test_members_vote_for_the_protocol(self) -> None:
        """GRP-19: the one that most members prefer, among those that all know."""
        bench = Bench()
        a, b, c = ("a", b"1"), ("b", b"2"), ("c", b"3")
        asked = [bench.join(speaks=speaks, version=3) for speaks in ([a, b], [c, b, a], [b, a])]
        bench.pass_ms(6000)
        assert {each.reply.protocol_name for each in asked} == {"b"}
        assert [m.metadata for m in asked[0].reply.members] == [b"2", b"2", b"2"]

    def test_a_full_group(self) -> None:
        bench = Bench(group_max_size=2)
        one, _ = bench.stable(2)
        assert bench.join().error is Error.GROUP_MAX_SIZE_REACHED
        assert bench.join(version=3).error is Error.GROUP_MAX_SIZE_REACHED
        assert bench.join(one).is_waiting  # a member may always join again
        assert len(bench.group.members) == 2

    def test_pending_members_find_a_full_group_too(self) -> None:
        bench = Bench(group_max_size=2)
        ids = [bench.named() for _ in range(3)]
        asked = [bench.join(member_id) for member_id in ids]
        assert asked[2].error is Error.GROUP_MAX_SIZE_REACHED and asked[2].reply.member_id == ""
        bench.pass_ms(10_000)
        assert [each.error for each in asked[:2]] == [Error.NONE] * 2

    def test_a_lower_limit_makes_a_loaded_group_shrink(self) -> None:
        """TRAP-54 and group.max.size: those who are the last to join again have to go."""
        bench = Bench()
        ids = bench.stable(3)
        bench.config.static["group.max.size"] = "2"
        bench.config._values["group.max.size"] = 2
        bench.take_over()
        assert bench.group.state == PREPARING
        asked = [bench.join(member_id) for member_id in ids]
        assert [each.error for each in asked] == [Error.NONE, Error.NONE, Error.GROUP_MAX_SIZE_REACHED]
        assert list(bench.group.members) == ids[:2]


class TestJoiningAgain:
    def test_an_unchanged_follower_hears_of_the_generation_it_is_in(self) -> None:
        bench = Bench()
        one, two = bench.stable(2)
        asked = bench.join(two)
        assert (asked.reply.generation_id, asked.reply.leader, asked.reply.members) == (1, one, [])
        assert bench.sync(two).reply.assignment == two.encode()
        assert bench.group.state == STABLE

    def test_a_leader_brings_about_a_rebalance(self) -> None:
        """GRP-14."""
        bench = Bench()
        one, two = bench.stable(2)
        leader = bench.join(one)
        assert leader.is_waiting and bench.group.state == PREPARING
        assert bench.heartbeat(two) is Error.REBALANCE_IN_PROGRESS
        assert bench.sync(two).error is Error.REBALANCE_IN_PROGRESS
        follower = bench.join(two)
        assert leader.reply.generation_id == follower.reply.generation_id == 2

    def test_so_does_a_follower_that_wants_something_else(self) -> None:
        bench = Bench()
        one, two = bench.stable(2)
        follower, leader = bench.join(two, speaks=[("range", b"more")]), bench.join(one)
        assert [m.metadata for m in leader.reply.members] == [b"topics", b"more"]
        assert follower.reply.generation_id == 2

    def test_lost_answers_are_given_again_while_the_leader_divides(self) -> None:
        bench = Bench()
        one, two = (bench.named() for _ in range(2))
        bench.join(one), bench.join(two)
        bench.pass_ms(6000)
        assert [m.member_id for m in bench.join(one).reply.members] == [one, two]
        assert bench.join(two).reply.members == []
        waiting = bench.sync(one if bench.group.leader != one else two)
        changed = bench.join(two, speaks=[("range", b"more")])
        assert waiting.error is Error.REBALANCE_IN_PROGRESS and changed.is_waiting
        assert bench.group.state == PREPARING

    def test_a_second_join_ends_the_wait_of_the_first(self) -> None:
        bench = Bench()
        one, _ = bench.stable(2)
        first, second = bench.join(one), bench.join(one)
        assert first.error is Error.REBALANCE_IN_PROGRESS and second.is_waiting
        assert bench.group.joined == 1

    def test_a_second_sync_ends_the_wait_of_the_first(self) -> None:
        bench = Bench()
        one, two = bench.stable(2)
        bench.join(one), bench.join(two)
        first, second = bench.sync(two), bench.sync(two)
        assert first.error is Error.REBALANCE_IN_PROGRESS and second.is_waiting
        bench.sync(one, {two: b"x"})
        assert second.reply.assignment == b"x"

    def test_the_parts_of_those_the_leader_forgot_are_empty(self) -> None:
        bench = Bench()
        one, two = bench.stable(2)
        bench.join(one), bench.join(two)
        bench.sync(one, {one: b"all", "stranger": b"none"})
        assert bench.sync(two).reply.assignment == b""
        assert [m.assignment for m in bench.last_written().members] == [b"all", b""]


class TestChecks:
    def test_of_a_sync(self) -> None:
        bench = Bench()
        (one,) = bench.stable(1)
        assert bench.sync("x").error is Error.UNKNOWN_MEMBER_ID
        assert bench.sync(one, generation=2).error is Error.ILLEGAL_GENERATION
        assert bench.sync(one, instance="i").error is Error.UNKNOWN_MEMBER_ID
        assert bench.sync(one, protocol_type="connect").error is Error.INCONSISTENT_GROUP_PROTOCOL
        assert bench.sync(one, protocol_name="other").error is Error.INCONSISTENT_GROUP_PROTOCOL
        assert bench.sync(one, protocol_type="consumer", protocol_name="range").error is Error.NONE

    def test_of_a_heartbeat(self) -> None:
        bench = Bench()
        (one,) = bench.stable(1)
        assert bench.heartbeat("x") is Error.UNKNOWN_MEMBER_ID
        assert bench.heartbeat(one, generation=0) is Error.ILLEGAL_GENERATION
        assert bench.heartbeat(one, instance="i") is Error.UNKNOWN_MEMBER_ID

    def test_of_groups_that_are_not_there(self) -> None:
        bench = Bench()
        assert bench.heartbeat("x", 1) is Error.UNKNOWN_MEMBER_ID
        assert bench.sync("x", generation=1).error is Error.UNKNOWN_MEMBER_ID
        assert bench.leave(("x", None)).reply.members[0].error_code == Error.UNKNOWN_MEMBER_ID.code
        assert bench.leave(("x", None), version=2).error is Error.UNKNOWN_MEMBER_ID

    def test_of_a_commit(self) -> None:
        bench = Bench()
        one, two = bench.stable(2)
        group = bench.group
        group.check_commit(one, None, 1, 9, False)
        for refused in [("x", None, 1), (one, None, 2), ("", None, -1), (one, "i", 1)]:
            with pytest.raises(KafkaError):
                group.check_commit(*refused, 9, False)
        group.check_commit("", None, -1, 0, True)  # transactions of old producers say nothing of members
        bench.join(one)
        group.check_commit(two, None, 1, 9, False)  # before it joins again
        bench.join(two)
        with pytest.raises(KafkaError) as refusal:
            group.check_commit(two, None, 2, 9, False)
        assert refusal.value.error is Error.REBALANCE_IN_PROGRESS


class TestAGroupOfTheOtherKind:
    def test_an_empty_one_gives_way(self) -> None:
        bench = Bench()
        bench.carry_out(
            Decision(records=[Record(ConsumerGroupMetadataKey(group_id="g"), ConsumerGroupMetadataValue(epoch=7))])
        )
        assert bench.groups.by_id["g"].kind == CONSUMER
        one = bench.named()
        assert [record.value is None for record in bench.written()[-2:]] == [True, False]
        joined = bench.join(one)
        bench.pass_ms(3000)
        assert joined.error is Error.NONE
        bench.take_over()
        assert bench.group.state == EMPTY

    @pytest.mark.parametrize("member_id", ["", "me"])
    def test_but_only_a_consumer_group_does(self, member_id: str) -> None:
        """As in Apache Kafka, which lets share groups stay, and whatever kind comes next."""

        class OfAnotherKind(ConsumerGroup):
            kind = "share"

        bench = Bench()
        before = bench.groups.by_id["g"] = OfAnotherKind("g")
        assert before.state == EMPTY
        asked = bench.join(member_id)
        assert asked.error is Error.INCONSISTENT_GROUP_PROTOCOL and asked.reply.member_id == ""
        assert bench.groups.by_id["g"] is before and not bench.log
        assert bench.heartbeat("me", 1) is Error.UNKNOWN_MEMBER_ID

    def test_unless_the_records_cannot_be_written(self) -> None:
        bench = Bench()
        bench.carry_out(
            Decision(records=[Record(ConsumerGroupMetadataKey(group_id="g"), ConsumerGroupMetadataValue(epoch=7))])
        )
        bench.most_bytes = 0
        assert bench.join().error is Error.UNKNOWN_SERVER_ERROR
        assert bench.groups.by_id["g"].kind == CONSUMER

    def test_whoever_brings_an_id_is_not_known(self) -> None:
        bench = Bench()
        bench.carry_out(
            Decision(records=[Record(ConsumerGroupMetadataKey(group_id="g"), ConsumerGroupMetadataValue(epoch=7))])
        )
        assert bench.join("me").error is Error.UNKNOWN_MEMBER_ID
        assert bench.heartbeat("me", 1) is Error.UNKNOWN_MEMBER_ID
        assert bench.groups.by_id["g"].kind == CONSUMER
