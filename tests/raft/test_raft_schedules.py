"""Whatever happens to messages, disks and nodes: one leader per epoch, one vote per epoch, nothing committed is lost.

And a harness that notices nothing proves nothing: each planted mistake has to be found by some schedule.
"""

from __future__ import annotations

import random
from collections.abc import Callable
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from ottla.raft import elections, following, leading, reconfiguring, roles
from ottla.raft.connections import Send
from ottla.raft.member import Lost, Member
from ottla.raft.quorum import QuorumState, VoterSet
from ottla.raft.replica import ANSWERS
from ottla.raft.roles import Follower
from ottla.wire.messages.fetch import FetchResponse
from raft.assembly import Disk, Peer
from raft.schedules import MOVES, Schedule

STEPS = 150
Choice = st.integers(0, len(MOVES) * 960 - 1)


@settings(max_examples=40, deadline=None, suppress_health_check=[HealthCheck.too_slow, HealthCheck.data_too_large])
@given(seed=st.integers(0, 1 << 16), choices=st.lists(Choice, min_size=20, max_size=STEPS))
def test_no_schedule_breaks_the_rules_and_the_quorum_recovers(seed: int, choices: list[int]) -> None:
    """KRF-18."""
    schedule = Schedule(seed)
    schedule.play(choices)
    schedule.settle()


def played(seed: int) -> Schedule:
    rng = random.Random(seed)
    schedule = Schedule(seed)
    schedule.play([rng.randrange(len(MOVES) * 960) for _ in range(300)])
    return schedule


@pytest.mark.parametrize("seed", [28, 94, 134])
def test_what_was_found_once_stays_found(seed: int) -> None:
    """94: two answers to one question, the leader asked under two names. 134: a leader that removed itself and fell before
    that was committed had the only full log, and did not stand."""
    played(seed).settle()


def test_the_same_seed_gives_the_same_history() -> None:
    assert played(7).assembly.trace == played(7).assembly.trace


# --- planted mistakes

Plant = Callable[[pytest.MonkeyPatch], None]
MISTAKES: dict[str, Plant] = {}


def mistake(plant: Plant) -> Plant:
    MISTAKES[plant.__name__] = plant
    return plant


@mistake
def a_vote_is_given_twice(patch: pytest.MonkeyPatch) -> None:
    """Whoever is up to date gets a vote, also when another had it."""
    patch.setattr(
        elections, "grants", lambda role, who, is_up_to_date, pre: is_up_to_date and not isinstance(role, roles.Leader)
    )


@mistake
def promises_are_forgotten(patch: pytest.MonkeyPatch) -> None:
    """A crash takes the vote with it, and the epoch."""
    start = Peer.start

    def forgetful(self: Peer) -> None:
        self.promise = QuorumState()
        start(self)

    patch.setattr(Peer, "start", forgetful)


@mistake
def votes_do_not_look_at_the_log(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(elections, "grants", lambda role, who, up, pre: roles.grants(role, who, True, pre))


@mistake
def unsynced_records_count(patch: pytest.MonkeyPatch) -> None:
    """The leader counts what its disk does not have yet, and so does a follower's fetch."""
    patch.setattr(Disk, "synced_end", property(lambda self: self.end_offset))


@mistake
def the_watermark_counts_older_epochs(patch: pytest.MonkeyPatch) -> None:
    """What an earlier leader left behind is taken for committed as soon as a majority has it."""
    whole = VoterSet.high_watermark
    patch.setattr(VoterSet, "high_watermark", lambda self, ends, start, current: whole(self, ends, -1, current))


@mistake
def a_minority_commits(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(VoterSet, "majority", property(lambda self: len(self.voters) // 2))


@mistake
def a_minority_elects(patch: pytest.MonkeyPatch) -> None:
    won = lambda self: len(self.granting) >= max(1, self._majority - 1)  # noqa: E731
    patch.setattr(roles.Ballots, "is_won", property(won))


@mistake
def nothing_is_cut_off(patch: pytest.MonkeyPatch) -> None:
    """A follower appends to whatever it has."""

    def append_anyway(member: Member, send: Send, answer: Any, now_ms: float) -> bool:
        if isinstance(member.role, Follower) and answer.diverging_epoch.epoch >= 0:
            return True
        return following.fetch_answered(member, send, answer, now_ms)

    patch.setitem(ANSWERS, FetchResponse, append_anyway)
    patch.setattr(leading, "_compare", lambda member, offset, epoch: (None, None))


@mistake
def voters_change_while_they_change(patch: pytest.MonkeyPatch) -> None:
    """The change before need not be committed."""
    before = reconfiguring._leading

    def hasty(member: Member, verb: str, now_ms: float) -> roles.Leader:
        role = member.role
        if isinstance(role, roles.Leader):
            role.change = None
            if member.history.kraft_version >= 1:
                return role
        return before(member, verb, now_ms)

    patch.setattr(reconfiguring, "_leading", hasty)


@pytest.mark.parametrize("name", MISTAKES)
def test_planted_mistakes_are_found(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    MISTAKES[name](monkeypatch)
    for seed in range(80):
        try:
            played(seed)
        except (AssertionError, Lost, IndexError):
            return
    pytest.fail("no schedule found it")
