"""Classic groups over time: silence, leaving, coming back, and what a coordinator that takes over knows of it."""

from __future__ import annotations

import pytest

from classic_bench import RANGE, REBALANCE_MS, SESSION_MS
from classic_bench import ClassicBench as Bench
from ottla.coordination.classic_group import PREPARING, STABLE
from ottla.coordination.groups import EMPTY
from ottla.coordination.offsets import Commit
from ottla.wire.errors import Error, KafkaError


class TestTime:
    def test_a_member_that_falls_silent_is_out(self) -> None:
        """GRP-12, GRP-14."""
        bench = Bench()
        one, two = bench.stable(2)
        bench.pass_ms(SESSION_MS // 2)
        assert bench.heartbeat(one) is Error.NONE
        bench.pass_ms(SESSION_MS // 2 + 1)
        assert list(bench.group.members) == [one]
        assert bench.heartbeat(one) is Error.REBALANCE_IN_PROGRESS
        assert bench.heartbeat(two) is Error.UNKNOWN_MEMBER_ID
        assert bench.join(one).reply.generation_id == 2

    def test_a_commit_counts_as_a_heartbeat(self) -> None:
        bench = Bench()
        (one,) = bench.stable(1)
        for _ in range(5):
            bench.pass_ms(SESSION_MS - 1)
            bench.group.keep_alive(one, bench.groups, bench.moment)
        assert bench.group.state == STABLE

    def test_whoever_waits_need_not_send_heartbeats(self) -> None:
        bench = Bench()
        one, two = bench.stable(2)
        leader = bench.join(one)
        for _ in range(5):
            bench.pass_ms(SESSION_MS - 1)
            assert bench.heartbeat(two) is Error.REBALANCE_IN_PROGRESS
        assert leader.is_waiting and one in bench.group.members
        bench.join(two)
        follower = bench.sync(two)
        bench.pass_ms(SESSION_MS - 1)
        bench.heartbeat(one)
        bench.pass_ms(SESSION_MS - 1)
        assert follower.is_waiting and two in bench.group.members
        bench.sync(one)
        bench.pass_ms(SESSION_MS - 1)
        assert follower.error is Error.NONE and two in bench.group.members
        bench.pass_ms(1)
        assert two not in bench.group.members  # from its answer on, its session counts again

    def test_who_does_not_join_in_time_is_out(self) -> None:
        """GRP-15."""
        bench = Bench()
        one, two = bench.stable(2)
        follower = bench.join(two, speaks=[("range", b"more")])
        for _ in range(REBALANCE_MS // 5000):
            bench.heartbeat(one)
            bench.pass_ms(5000)
        assert (follower.reply.generation_id, follower.reply.leader) == (2, two)
        assert list(bench.group.members) == [two]

    def test_who_does_not_ask_for_its_part_is_out(self) -> None:
        bench = Bench()
        one, two = bench.stable(2)
        bench.join(one), bench.join(two)
        leader = bench.sync(one, {one: b"x"})
        assert leader.error is Error.NONE and bench.group.state == STABLE
        for _ in range(REBALANCE_MS // 5000):
            bench.heartbeat(one), bench.heartbeat(two)
            bench.pass_ms(5000)
        assert list(bench.group.members) == [one] and bench.group.state == PREPARING

    def test_a_leader_that_does_not_divide_is_out_and_the_others_join_again(self) -> None:
        bench = Bench()
        one, two = bench.stable(2)
        bench.join(one), bench.join(two)
        follower = bench.sync(two)
        for _ in range(REBALANCE_MS // 5000):
            bench.heartbeat(one)
            bench.pass_ms(5000)
        assert follower.error is Error.REBALANCE_IN_PROGRESS
        assert bench.group.leader == two and list(bench.group.members) == [two]

    def test_a_pending_member_that_does_not_come_back(self) -> None:
        bench = Bench()
        (one,) = bench.stable(1)
        bench.named()
        leader = bench.join(one)
        assert leader.is_waiting  # the pending one is waited for
        bench.pass_ms(SESSION_MS)
        assert leader.reply.generation_id == 2 and not bench.group.pending

    def test_a_newcomer_does_not_wait_for_ever(self) -> None:
        bench = Bench()
        (one,) = bench.stable(1)
        newcomer = bench.join(version=3, rebalance_ms=10_000_000)
        for _ in range(60):
            bench.heartbeat(one)
            bench.pass_ms(5000)
        assert newcomer.error is Error.UNKNOWN_MEMBER_ID
        assert list(bench.group.members) == [one]

    def test_nothing_rings_for_groups_that_are_gone(self) -> None:
        bench = Bench()
        bench.stable(2)
        del bench.groups.by_id["g"]
        bench.pass_ms(10 * REBALANCE_MS)
        assert not bench.groups.by_id


class TestLeaving:
    def test_the_last_one_leaves_an_empty_group_behind(self) -> None:
        bench = Bench()
        (one,) = bench.stable(1)
        bench.pass_ms(1000)
        assert bench.leave((one, None), version=2).error is Error.NONE
        value = bench.last_written()
        assert (value.protocol_type, value.generation, value.protocol, value.leader) == ("consumer", 2, None, None)
        assert value.current_state_timestamp == bench.moment.wall_ms and value.members == []
        assert bench.group.state == EMPTY
        again = bench.join(version=3, protocol_type="connect")
        bench.pass_ms(3000)
        assert again.reply.generation_id == 3

    def test_one_of_many_leaves(self) -> None:
        bench = Bench()
        one, two = bench.stable(2)
        outcome = bench.leave((two, None), ("x", None)).reply
        assert [m.error_code for m in outcome.members] == [0, Error.UNKNOWN_MEMBER_ID.code]
        assert bench.heartbeat(one) is Error.REBALANCE_IN_PROGRESS
        assert bench.join(one).reply.generation_id == 2

    def test_who_is_not_there_and_leaves_disturbs_nobody(self) -> None:
        bench = Bench()
        (one,) = bench.stable(1)
        assert [m.error_code for m in bench.leave(("x", None)).reply.members] == [Error.UNKNOWN_MEMBER_ID.code]
        assert bench.heartbeat(one) is Error.NONE

    def test_a_pending_member_leaves(self) -> None:
        bench = Bench()
        (one,) = bench.stable(1)
        pending = bench.named()
        leader = bench.join(one)
        assert bench.leave((pending, None)).error is Error.NONE
        assert leader.reply.generation_id == 2

    def test_an_administrator_removes_static_members_by_instance(self) -> None:
        bench = Bench()
        bench.stable(0, 2)
        outcome = bench.leave(("", "i0"), ("", "unknown"), ("", None)).reply
        unknown = Error.UNKNOWN_MEMBER_ID.code
        assert [m.error_code for m in outcome.members] == [0, unknown, unknown]
        assert list(bench.group.by_instance) == ["i1"]

    def test_who_leaves_while_its_part_is_awaited_is_told_so(self) -> None:
        bench = Bench()
        one, two = bench.stable(2)
        bench.join(one), bench.join(two)
        waiting = bench.sync(two)
        bench.leave((two, None))
        assert waiting.error is Error.UNKNOWN_MEMBER_ID and not bench.waiting

    def test_who_leaves_while_it_waits_is_told_so(self) -> None:
        bench = Bench()
        one, two = bench.stable(2)
        waiting = bench.join(one)
        bench.leave((one, None))
        assert waiting.error is Error.UNKNOWN_MEMBER_ID
        bench.join(two)
        bench.settle()
        assert list(bench.group.members) == [two]


class TestStaticMembers:
    def test_one_that_comes_back_takes_its_place_without_a_rebalance(self) -> None:
        bench = Bench()
        one, two = bench.stable(0, 2)
        back = bench.join(instance="i1")
        new = back.reply.member_id
        assert new.startswith("i1-") and new != two and back.reply.generation_id == 1
        assert (back.reply.leader, back.reply.skip_assignment, back.reply.members) == (one, False, [])
        assert bench.sync(new, instance="i1").reply.assignment == two.encode()
        assert bench.heartbeat(two, instance="i1") is Error.FENCED_INSTANCE_ID
        assert bench.sync(two, instance="i1").error is Error.FENCED_INSTANCE_ID
        assert bench.join(two, "i1").error is Error.FENCED_INSTANCE_ID
        assert bench.leave((two, "i1")).reply.members[0].error_code == Error.FENCED_INSTANCE_ID.code
        assert [m.member_id for m in bench.last_written().members] == [one, new]

    def test_a_leader_that_comes_back_skips_the_assignment(self) -> None:
        """KIP-814: from version 9 on it leads again; before, it must not take itself for the leader."""
        bench = Bench()
        bench.stable(0, 2)
        back = bench.join(instance="i0", version=9).reply
        assert back.leader == back.member_id and back.skip_assignment
        assert {m.group_instance_id for m in back.members} == {"i0", "i1"}
        older = bench.join(instance="i0", version=8).reply
        assert older.leader == back.member_id != older.member_id
        assert (older.skip_assignment, older.members) == (False, [])
        assert bench.group.leader == older.member_id

    def test_one_that_changes_the_protocol_brings_about_a_rebalance(self) -> None:
        bench = Bench()
        a, b = ("a", b"1"), ("b", b"2")
        asked = [bench.join(instance=f"i{n}", speaks=[a, b]) for n in range(2)]
        bench.pass_ms(6000)
        assert asked[0].reply.protocol_name == "a"
        bench.settle()
        assert bench.join(instance="i1", speaks=[b]).is_waiting
        assert bench.group.state == PREPARING

    def test_one_that_comes_back_while_the_leader_divides(self) -> None:
        bench = Bench()
        bench.stable(0, 2)
        one, two = bench.group.members
        bench.join(one, "i0"), bench.join(two, "i1")
        waiting = bench.sync(two, instance="i1")
        back = bench.join(instance="i1")
        assert waiting.error is Error.FENCED_INSTANCE_ID and back.is_waiting
        assert bench.group.state == PREPARING
        assert bench.join(one, "i0").reply.generation_id == 3
        assert back.reply.generation_id == 3

    def test_one_that_comes_back_has_still_to_ask_for_its_part(self) -> None:
        bench = Bench()
        bench.stable(0, 2)
        one, two = bench.group.members
        bench.join(one, "i0"), bench.join(two, "i1")
        bench.sync(one, {two: b"x"}, instance="i0")
        back = bench.join(instance="i1").reply.member_id
        assert list(bench.group.awaited) == [back]
        assert bench.sync(back, instance="i1").reply.assignment == b"x"
        assert not bench.group.awaited

    def test_one_that_comes_back_while_it_waits_for_its_first_generation(self) -> None:
        """It is no newcomer any more: whoever waits for us need not send heartbeats."""
        bench = Bench()
        bench.stable(1)
        first = bench.join(instance="i", session_ms=6000)
        again = bench.join(instance="i", session_ms=6000)
        assert first.error is Error.FENCED_INSTANCE_ID
        bench.pass_ms(6001)
        assert again.is_waiting
        bench.pass_ms(SESSION_MS - 6000)  # the other's session ends, and with it the wait
        assert again.error is Error.NONE and again.reply.members

    def test_one_whose_join_waits_is_fenced_by_its_next_self(self) -> None:
        bench = Bench()
        first = bench.join(instance="i0")
        second = bench.join(instance="i0")
        assert first.error is Error.FENCED_INSTANCE_ID and first.reply.member_id
        bench.pass_ms(6000)
        assert second.error is Error.NONE and len(bench.group.members) == 1

    def test_an_absent_one_stays_until_its_session_ends(self) -> None:
        bench = Bench()
        bench.join(instance="i0", session_ms=1_800_000)
        member = bench.join(version=3)
        bench.pass_ms(6000)
        bench.settle()
        one = member.reply.member_id
        again = bench.join(one, speaks=[("range", b"more")])
        bench.pass_ms(REBALANCE_MS)
        assert again.reply.generation_id == 2 and len(bench.group.members) == 2
        assert again.reply.leader == one  # whoever does not join cannot lead

    def test_a_rebalance_without_anybody_is_put_off(self) -> None:
        bench = Bench()
        bench.stable(0, 1)
        one = next(iter(bench.group.members))
        newcomer = bench.named()
        bench.join(newcomer)
        assert bench.group.state == PREPARING
        bench.leave((newcomer, None))
        for _ in range(2 * REBALANCE_MS // 5000):
            bench.heartbeat(one, instance="i0")
            bench.pass_ms(5000)
        assert bench.group.state == PREPARING and one in bench.group.members
        assert bench.join(one, "i0").reply.generation_id == 2

    def test_a_pending_id_is_not_for_static_members(self) -> None:
        bench = Bench()
        assert bench.join(bench.named(), "i0").error is Error.UNKNOWN_SERVER_ERROR


class TestRecords:
    def test_a_coordinator_that_takes_over_knows_the_last_generation(self) -> None:
        """TRAP-54: every member gets a full session from there on."""
        bench = Bench()
        one, two = bench.stable(2)
        bench.pass_ms(SESSION_MS - 1)
        bench.take_over()
        group = bench.group
        assert (group.state, group.generation, group.leader, group.protocol) == (STABLE, 1, one, "range")
        assert bench.sync(two).reply.assignment == two.encode()
        bench.pass_ms(SESSION_MS - 1)
        assert bench.heartbeat(one) is Error.NONE and bench.heartbeat(two) is Error.NONE
        bench.pass_ms(SESSION_MS)
        assert bench.group.state == EMPTY or not bench.group.members

    def test_a_generation_that_was_not_divided_is_lost_with_its_coordinator(self) -> None:
        bench = Bench()
        one, two = bench.stable(2)
        bench.join(one), bench.join(two)
        waiting = bench.sync(two)
        bench.take_over()
        assert waiting.error is Error.NOT_COORDINATOR
        assert bench.heartbeat(two, generation=2) is Error.ILLEGAL_GENERATION
        assert bench.group.generation == 1

    def test_assignments_that_are_too_large(self) -> None:
        """Everybody hears of it, and the group joins again."""
        bench = Bench()
        one, two = bench.stable(2)
        bench.join(one), bench.join(two)
        follower, before = bench.sync(two), len(bench.log)
        leader = bench.sync(one, {one: bytes(bench.most_bytes)})
        assert leader.error is follower.error is Error.UNKNOWN_SERVER_ERROR
        assert bench.group.state == PREPARING and len(bench.log) == before
        bench.join(one)
        assert bench.join(two).reply.generation_id == 3

    def test_a_static_member_that_cannot_be_written(self) -> None:
        bench = Bench()
        _, two = bench.stable(0, 2)
        bench.most_bytes = 0
        back = bench.join(instance="i1", speaks=[("range", b"x" * 100)])
        assert back.error is Error.UNKNOWN_SERVER_ERROR
        assert bench.heartbeat(two, instance="i1") is Error.NONE
        assert bench.group.members[two].protocols == tuple(RANGE)

    def test_a_group_that_cannot_be_written_does_not_exist(self) -> None:
        bench = Bench()
        bench.most_bytes = 0
        assert bench.join(instance="i0").error is Error.UNKNOWN_SERVER_ERROR
        assert not bench.groups.by_id and bench.groups.timers.take_due(10**9) == []

    def test_a_tombstone_ends_the_group(self) -> None:
        bench = Bench()
        (one,) = bench.stable(1)
        with pytest.raises(KafkaError):
            bench.group.check_deletable()
        bench.leave((one, None))
        bench.group.check_deletable()
        bench._append(bench.group.tombstones())
        assert not bench.groups.by_id
        bench.take_over()
        assert not bench.groups.by_id

    def test_offsets_of_a_group_count_from_when_it_became_empty(self) -> None:
        """TRAP-52."""
        bench = Bench()
        commit = Commit(1, -1, "", 5)
        (one,) = bench.stable(1)
        assert not bench.group.may_expire()  # its subscriptions cannot be read
        bench.leave((one, None))
        assert bench.group.may_expire()
        assert bench.group.expires_from_ms(commit) == bench.moment.wall_ms
        bench.take_over()
        assert bench.group.expires_from_ms(commit) == bench.moment.wall_ms
