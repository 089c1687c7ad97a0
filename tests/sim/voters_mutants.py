"""Mistakes planted on purpose into how voters are changed: each breaks one rule of KIP-853, and `voters_play` has to notice.

Each names the kinds of faults with which it shows soonest; `KNOWN` has a seed that shows it then.
"""

from __future__ import annotations

import pytest

from ottla.raft import leading, reconfiguring
from ottla.raft.history import History
from ottla.raft.member import Member
from ottla.raft.quorum import Key, Voter, VoterSet
from ottla.raft.roles import Leader
from ottla.wire.errors import Error, KafkaError
from sim.planting import Planting
from sim.voters_play import prepare_all

mutant = Planting(prepare_all)

PARTINGS = ("kill_deciding", "cut_off_deciding", "kill_changing", "halves", "cut_off_from_peers", "one_way")


@mutant(*PARTINGS)
def voters_count_when_they_are_committed(patch: pytest.MonkeyPatch) -> None:
    """Instead of when they are appended: those of before decide whether they are gone."""

    def committed(self: Member) -> VoterSet:
        return self.history.voters_as_of(self.high_watermark - 1)

    patch.setattr(Member, "voters", property(committed))


@mutant(*PARTINGS)
def two_changes_at_once(patch: pytest.MonkeyPatch) -> None:
    """Nobody waits until the one before is committed."""

    def unchecked(member: Member, verb: str, now_ms: float) -> Leader:
        if not isinstance(member.role, Leader):
            raise KafkaError(Error.NOT_LEADER_OR_FOLLOWER)
        return member.role

    patch.setattr(reconfiguring, "_leading", unchecked)


@mutant("cut_off_deciding")
def a_leader_that_goes_counts_itself(patch: pytest.MonkeyPatch) -> None:
    """In place of the voter that is furthest behind."""
    honest = VoterSet.high_watermark
    advance = leading.advance

    def counting(member: Member, role: Leader) -> None:
        def generous(self: VoterSet, ends: dict[int, int], start: int, current: int) -> int:
            last = min(self.ids, key=lambda each: ends.get(each, 0))
            own = {} if member.is_voter else {last: member.journal.synced_end}
            return honest(self, {**ends, **own}, start, current)

        with pytest.MonkeyPatch.context() as inner:
            inner.setattr(VoterSet, "high_watermark", generous)
            advance(member, role)

    patch.setattr(leading, "advance", counting)


@mutant()
def a_leader_that_was_removed_stays(patch: pytest.MonkeyPatch) -> None:
    def conclude(member: Member, role: Leader, now_committed: int) -> None:
        change = role.change
        if change is not None and change.offset is not None and change.offset < now_committed:
            change.end(Error.NONE)
            role.change = None

    patch.setattr(leading, "_conclude", conclude)


@mutant("wiped_disk")
def a_new_disk_counts_for_the_old_one(patch: pytest.MonkeyPatch) -> None:
    """A voter is known by its id alone: what it has forgotten it never had."""

    def by_id(self: Voter, key: Key) -> bool:
        return self.id == key.id

    patch.setattr(Voter, "is_named_by", by_id)


@mutant("cut_off_deciding")
def a_change_that_was_cut_off_still_counts(patch: pytest.MonkeyPatch) -> None:
    """Who had it in its log and has not any more goes on with those voters."""
    patch.setattr(History, "truncate", lambda self, offset: None)


# A seed that shows it, with the faults that suit it.
KNOWN: dict[str, int] = {
    "voters_count_when_they_are_committed": 6,
    "two_changes_at_once": 7,
    "a_leader_that_goes_counts_itself": 1,
    "a_leader_that_was_removed_stays": 0,
    "a_new_disk_counts_for_the_old_one": 0,
    "a_change_that_was_cut_off_still_counts": 0,
}
