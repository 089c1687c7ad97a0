"""Whatever members do, and whenever: what always holds of a classic group."""

from __future__ import annotations

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, rule

from classic_bench import RANGE, REBALANCE_MS, SESSION_MS, ClassicBench
from machine_bench import Asked
from ottla.coordination.classic_group import COMPLETING, PREPARING, SESSION, STABLE, ClassicGroup
from ottla.coordination.classic_rebalance import JOIN_PHASE, SYNC_PHASE
from ottla.coordination.groups import EMPTY
from ottla.wire.errors import Error, KafkaError

OTHER = [("roundrobin", b"1"), ("range", b"2")]
WHO = st.integers(0, 5)
INSTANCE = st.sampled_from(["a", "b"])
VERSION = st.sampled_from([0, 3, 4, 6, 8, 9])
SPEAKS = st.sampled_from([RANGE, OTHER])
MOST = 4


class ClassicGroupRules(RuleBasedStateMachine):
    """Members join, sync, beat, leave and vanish in any order; the coordinator moves now and then."""

    def __init__(self) -> None:
        super().__init__()
        self.bench = ClassicBench(group_max_size=MOST)
        self.generation = 0
        self.told: list[str] = []  # ids that were ever given out

    @property
    def group(self) -> ClassicGroup | None:
        group = self.bench.groups.by_id.get("g")
        assert group is None or isinstance(group, ClassicGroup)
        return group

    def somebody(self, who: int) -> str:
        self._learn()
        return self.told[-1 - who] if who < len(self.told) else "stranger"

    def _learn(self) -> None:
        for asked in self.bench.asked:
            if not asked.is_waiting and not isinstance(asked.reply, KafkaError):
                member_id = getattr(asked.reply, "member_id", "")
                if member_id and member_id not in self.told:
                    self.told.append(member_id)

    def instance_of(self, member_id: str) -> str | None:
        member = self.group.members.get(member_id) if self.group else None
        return None if member is None else member.instance_id

    @rule(version=VERSION, speaks=SPEAKS)
    def come(self, version: int, speaks: list[tuple[str, bytes]]) -> None:
        self.bench.join(version=version, speaks=speaks)

    @rule(instance=INSTANCE, version=VERSION, speaks=SPEAKS)
    def come_by_instance(self, instance: str, version: int, speaks: list[tuple[str, bytes]]) -> None:
        self.bench.join(instance=instance, version=max(version, 5), speaks=speaks)

    @rule(who=WHO, version=VERSION, speaks=SPEAKS)
    def join_with_an_id(self, who: int, version: int, speaks: list[tuple[str, bytes]]) -> None:
        member_id = self.somebody(who)
        self.bench.join(member_id, self.instance_of(member_id), version=version, speaks=speaks)

    @rule()
    def everybody_joins(self) -> None:
        for member in list(self.group.members.values()) if self.group else []:
            self.bench.join(member.member_id, member.instance_id)

    @rule(who=WHO)
    def ask_for_a_part(self, who: int) -> None:
        member_id = self.somebody(who)
        if self.group is not None:
            self.bench.sync(member_id, instance=self.instance_of(member_id))

    @rule()
    def followers_ask_for_their_parts(self) -> None:
        group = self.group
        for member in list(group.members.values()) if group else []:
            if group is not None and member.member_id != group.leader:
                self.bench.sync(member.member_id, instance=member.instance_id)

    @rule()
    def everybody_syncs(self) -> None:
        if self.group is not None:
            self.bench.settle()

    @rule(too_large=st.booleans())
    def the_leader_divides(self, too_large: bool) -> None:
        group = self.group
        if group is None or group.leader is None:
            return
        self.bench.most_bytes = 0 if too_large else 1 << 20
        parts = {member_id: member_id.encode() for member_id in group.members}
        self.bench.sync(group.leader, parts, instance=self.instance_of(group.leader))
        self.bench.most_bytes = 1 << 20

    @rule(who=WHO)
    def beat(self, who: int) -> None:
        member_id = self.somebody(who)
        if self.group is not None:
            self.bench.heartbeat(member_id, instance=self.instance_of(member_id))

    @rule(who=WHO)
    def go(self, who: int) -> None:
        member_id = self.somebody(who)
        self.bench.leave((member_id, self.instance_of(member_id)))

    @rule(instance=INSTANCE)
    def be_removed(self, instance: str) -> None:
        self.bench.leave(("", instance))

    @rule(ms=st.sampled_from([1, 500, 3000, SESSION_MS // 2, SESSION_MS, REBALANCE_MS]))
    def time_passes(self, ms: int) -> None:
        self.bench.pass_ms(ms)

    @rule()
    def another_coordinator(self) -> None:
        """What was not written is forgotten, so an older generation may be back."""
        self.bench.take_over()
        self.generation = 0 if self.group is None else self.group.generation

    @invariant()
    def generations_only_rise(self) -> None:
        if self.group is not None:
            assert self.group.generation >= self.generation
            self.generation = self.group.generation

    @invariant()
    def everybody_has_one_place(self) -> None:
        """GRP-03."""
        group = self.group
        if group is None:
            return
        assert not group.members.keys() & group.pending.keys()
        assert group.by_instance == {m.instance_id: m.member_id for m in group.members.values() if m.instance_id}
        assert group.joined == sum(member.join is not None for member in group.members.values())
        assert all(member_id == member.member_id for member_id, member in group.members.items())
        assert group.awaited.keys() <= group.members.keys()
        assert (group.leader in group.members) if group.members else group.leader is None

    @invariant()
    def states_mean_what_they_say(self) -> None:
        group = self.group
        if group is None:
            return
        assert group.state in (EMPTY, PREPARING, COMPLETING, STABLE)
        assert group.state != EMPTY or not group.members
        assert group.members or group.state in (EMPTY, PREPARING)
        for member in group.members.values():
            assert member.join is None or group.state == PREPARING
            assert member.sync is None or group.state == COMPLETING
        timers = self.bench.groups.timers
        assert group.state != PREPARING or (JOIN_PHASE, "g", "") in timers
        assert group.state != COMPLETING or (SYNC_PHASE, "g", "") in timers

    @invariant()
    def nobody_is_there_unwatched(self) -> None:
        """GRP-12: whoever does not wait for us has a session that can end."""
        group = self.group
        for member in group.members.values() if group else []:
            assert member.is_excused or (SESSION, "g", member.member_id) in self.bench.groups.timers

    @invariant()
    def whoever_waits_is_waited_for(self) -> None:
        group = self.group
        members = list(group.members.values()) if group else []
        held = {id(w.waiter) for member in members for w in (member.join, member.sync) if w is not None}
        assert held == {id(asked) for asked in self.bench.waiting}

    @invariant()
    def only_leaders_learn_who_is_in(self) -> None:
        for asked in self.bench.asked:
            if not asked.is_waiting and not isinstance(asked.reply, KafkaError):
                assert _is_sound(asked)

    def teardown(self) -> None:
        """Nobody waits for ever, and members that are never heard of again are gone."""
        self.bench.pass_ms(5 * 60 * 1000 + 3 * REBALANCE_MS + 2 * SESSION_MS)
        assert not self.bench.waiting
        group = self.group
        assert group is None or (group.state == EMPTY and not group.members and not group.pending)


def _is_sound(asked: Asked) -> bool:
    reply = asked.reply
    if not hasattr(reply, "leader") or reply.error_code != Error.NONE.code:
        return True
    return bool(reply.members) <= (reply.leader == reply.member_id) and reply.protocol_name is not None


ClassicGroupRules.TestCase.settings = settings(max_examples=60, stateful_step_count=40, deadline=None)
TestInvariants = ClassicGroupRules.TestCase
