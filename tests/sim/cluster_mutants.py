"""Mistakes planted on purpose into a cluster: each breaks one promise, and the simulation has to notice.

Each names the kinds of faults with which it shows soonest; `KNOWN` has a seed that shows it then, and `make test` plays these.
`make mutants` looks for each of them among many seeds, first with the faults that suit it, then with all.
"""

from __future__ import annotations

from typing import Any

import pytest

from ottla.metadata import brokers, in_sync, leaders, replay
from ottla.raft import elections, following, leading, replica
from ottla.raft import quorum as majorities
from ottla.raft.roles import Follower, Unattached
from ottla.replication.follower import Fetcher
from ottla.replication.leadership import Leadership
from ottla.replication.partition import Partition
from ottla.server.handlers.fetch import Reading
from ottla.server.metadata_store import MetadataStore
from sim.planting import Planting

mutant = Planting()

ENDS = ("kill", "kill_two", "kill_all", "kill_at_call")
LOSSES = ("power_cut", "kill_at_call", "power_cut_of_all")
CUTS = ("cut_off", "cut_off_from_peers", "one_way", "partial", "pause")


# -- copies


@mutant(*ENDS, *CUTS)
def ack_before_the_in_sync_set_has_it(patch: pytest.MonkeyPatch) -> None:
    """The watermark is where the leader's own log ends."""
    patch.setattr(Leadership, "watermark", lambda self: self.stored.value)


@mutant(*ENDS, *CUTS)
def watermark_off_by_one(patch: pytest.MonkeyPatch) -> None:
    watermark = Leadership.watermark
    patch.setattr(Leadership, "watermark", lambda self: min(self.stored.value, watermark(self) + 1))


@mutant(*ENDS, *CUTS)
def ack_when_stored_here(patch: pytest.MonkeyPatch) -> None:
    """acks=all waits for what acks=1 waits for."""
    patch.setattr(Partition, "acknowledged", Partition.stored)


@mutant(*ENDS, *CUTS)
def what_was_sent_counts_as_written(patch: pytest.MonkeyPatch) -> None:
    """A follower that fetches is believed to have what it is about to get."""
    has_fetched = Leadership.has_fetched

    def believing(self: Leadership, broker_id: int, offset: int, start: int, life: int) -> None:
        has_fetched(self, broker_id, self.partition.log.end_offset, start, life)

    patch.setattr(Leadership, "has_fetched", believing)


@mutant(*LOSSES)
def follower_acks_before_sync(patch: pytest.MonkeyPatch) -> None:
    """A follower claims records that the topic wants synced before they are."""

    async def nothing(self: Fetcher, written: Any) -> None:
        return None

    patch.setattr(Fetcher, "_sync", nothing)


@mutant(*ENDS, *CUTS)
def no_truncation_on_epoch_change(patch: pytest.MonkeyPatch) -> None:
    """A leader does not tell where histories part."""
    patch.setattr(Reading, "_divergence", staticmethod(lambda partition, wanted: None))


@mutant(*ENDS, *CUTS)
def truncation_one_too_few(patch: pytest.MonkeyPatch) -> None:
    """What contradicts the leader is cut but for its first record."""
    cut = Partition.cut

    async def sparing(self: Partition, offset: int) -> None:
        await cut(self, min(offset + 1, self.log.end_offset))

    patch.setattr(Partition, "cut", sparing)


@mutant("kill_as_it_shrinks")
def followers_cut_to_their_watermark(patch: pytest.MonkeyPatch) -> None:
    """As Kafka did before KIP-101: whoever follows anew drops what is above its own watermark."""
    once, seen = Fetcher._round, set()

    async def forgetful(self: Fetcher) -> None:
        for followed in [each for each in self.followed.values() if each not in seen]:
            seen.add(followed)
            await followed.partition.cut(
                min(followed.partition.high_watermark.value, followed.partition.log.end_offset)
            )
        await once(self)

    patch.setattr(Fetcher, "_round", forgetful)


@mutant(*CUTS, "kill")
def reads_beyond_the_watermark(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(Partition, "bound", lambda self, isolation: self.log.end_offset)


@mutant(*CUTS)
def followers_serve_as_leaders(patch: pytest.MonkeyPatch) -> None:
    """Whoever led once goes on to serve, and shows all it has."""

    def lenient(self: Partition, wanted_epoch: int, or_follower: bool = False) -> None:
        return None

    patch.setattr(Partition, "check_leader", lenient)
    patch.setattr(Partition, "bound", lambda self, isolation: self.log.end_offset)


@mutant(*CUTS)
def in_sync_set_shrinks_without_the_controller(patch: pytest.MonkeyPatch) -> None:
    """A leader that is cut off goes on alone."""

    def propose(self: Leadership, isr: tuple[int, ...]) -> None:
        self.partition.agree(isr, self.partition.partition_epoch)

    patch.setattr(Leadership, "_propose", propose)


@mutant(*CUTS)
def proposed_set_counts_at_once(patch: pytest.MonkeyPatch) -> None:
    """The watermark waits for those that are to stay, before the controller has said so."""
    propose = Leadership._propose

    def hasty(self: Leadership, isr: tuple[int, ...]) -> None:
        propose(self, isr)
        self.maximal = frozenset(isr)

    patch.setattr(Leadership, "_propose", hasty)


@mutant("kill", "slow_link", "slow_disk")
def in_sync_before_caught_up(patch: pytest.MonkeyPatch) -> None:
    """Whoever fetches is in sync."""

    def propose(self: Leadership, follower: Any) -> None:
        if self.proposed is None and self._cluster.may_join(follower.id, follower.life):
            self._propose((*self.partition.isr, follower.id))

    patch.setattr(Leadership, "_propose_to_join", propose)


@mutant(*CUTS, *ENDS)
def enough_is_one(patch: pytest.MonkeyPatch) -> None:
    """min.insync.replicas is not obeyed: the leader alone acknowledges."""
    settle = Partition.settle

    def alone(self: Partition) -> None:
        before, self.min_insync = self.min_insync, 1
        settle(self)
        self.min_insync = before

    patch.setattr(Partition, "settle", alone)


@mutant(*ENDS, *CUTS)
def lost_producer_state_on_failover(patch: pytest.MonkeyPatch) -> None:
    """A new leader does not know what producers have sent to the old one."""
    lead = Partition.lead

    def forgetful(self: Partition, assignment: Any) -> None:
        if assignment.leader_epoch > self.leader_epoch >= 0:
            self.log.producers.entries.clear()
        lead(self, assignment)

    patch.setattr(Partition, "lead", forgetful)


@mutant(*LOSSES)
def who_came_back_with_less_stays_in_sync(patch: pytest.MonkeyPatch) -> None:
    """A broker that died without a farewell is taken for one that said it."""
    patch.setattr(brokers, "_farewell", lambda image, old, who, rules: [])


@mutant(*LOSSES)
def old_lives_count(patch: pytest.MonkeyPatch) -> None:
    """KIP-903: the leader's word for a process that has died meanwhile is taken for its successor."""
    patch.setattr(in_sync, "_in_sync", lambda asked: [(state.broker_id, -1) for state in asked.new_isr_with_epochs])
    patch.setattr(brokers, "_farewell", lambda image, old, who, rules: [])


@mutant(*CUTS, *ENDS)
def anybody_may_lead(patch: pytest.MonkeyPatch) -> None:
    """A leader is chosen from all replicas, in sync or not."""
    patch.setattr(leaders.Change, "_valid", lambda self, replica: self.acceptable(replica))


@mutant(*CUTS, *ENDS)
def epoch_stays_when_the_leader_changes(patch: pytest.MonkeyPatch) -> None:
    merged = replay.merged

    def same_epoch(before: Any, record: Any) -> Any:
        return merged(before, record)._replace(leader_epoch=before.leader_epoch)

    patch.setattr(replay, "merged", same_epoch)


# -- the quorum


@mutant("kill_in_election")
def vote_is_not_kept(patch: pytest.MonkeyPatch) -> None:
    """The promise is not on disk when the voter falls."""
    patch.setattr(MetadataStore, "write_state", lambda self, *args: None)


@mutant("kill_in_election", *CUTS)
def votes_twice_in_an_epoch(patch: pytest.MonkeyPatch) -> None:
    def generous(role: Any, candidate: Any, is_up_to_date: bool, is_pre_vote: bool) -> bool:
        if not is_pre_vote and isinstance(role, Unattached):
            role.voted = None
        return is_up_to_date

    patch.setattr(elections, "grants", generous)


@mutant(*CUTS, *ENDS)
def votes_for_a_shorter_log(patch: pytest.MonkeyPatch) -> None:
    grants = elections.grants
    patch.setattr(
        elections, "grants", lambda role, candidate, _, is_pre_vote: grants(role, candidate, True, is_pre_vote)
    )


@mutant(*CUTS, *ENDS)
def committed_without_a_majority(patch: pytest.MonkeyPatch) -> None:
    """What one voter has counts as committed."""

    def high_watermark(self: Any, synced_ends: Any, epoch_start: int, current: int) -> int:
        return max(current, *synced_ends.values())

    patch.setattr(majorities.VoterSet, "high_watermark", high_watermark)


@mutant(*LOSSES)
def metadata_is_never_synced(patch: pytest.MonkeyPatch) -> None:
    """All count what they have written as synced, and nobody syncs."""
    patch.setattr(MetadataStore, "synced_end", property(lambda self: self.end_offset))


@mutant(*CUTS, *ENDS)
def metadata_is_not_cut(patch: pytest.MonkeyPatch) -> None:
    """A follower goes on behind what its leader does not have."""
    patch.setattr(leading, "_compare", lambda member, offset, epoch: (None, None))


@mutant(*CUTS, *ENDS)
def any_majority_of_two_is_one(patch: pytest.MonkeyPatch) -> None:
    """One vote elects."""
    patch.setattr(elections.Ballots, "is_won", property(lambda self: True))


@mutant("slow_disk", *LOSSES)
def follower_fetches_before_it_has_synced(patch: pytest.MonkeyPatch) -> None:
    poll = following.poll_follower

    def hasty(member: Any, role: Any, now_ms: float) -> float:
        journal = member.journal
        member.journal = _Synced(journal)
        try:
            return poll(member, role, now_ms)
        finally:
            member.journal = journal

    patch.setitem(replica.POLLS, Follower, hasty)


class _Synced:
    """A journal that believes its disk."""

    def __init__(self, journal: Any) -> None:
        self._journal = journal

    @property
    def synced_end(self) -> int:
        return self._journal.end_offset

    def __getattr__(self, name: str) -> Any:
        return getattr(self._journal, name)


# A seed that shows it, with the faults that suit it.
KNOWN: dict[str, int] = {
    "enough_is_one": 1,
    "in_sync_before_caught_up": 70,
    "follower_fetches_before_it_has_synced": 1,
    "ack_before_the_in_sync_set_has_it": 2,
    "watermark_off_by_one": 2,
    "ack_when_stored_here": 0,
    "what_was_sent_counts_as_written": 15,
    "follower_acks_before_sync": 3,
    "no_truncation_on_epoch_change": 17,
    "truncation_one_too_few": 2,
    "reads_beyond_the_watermark": 2,
    "followers_serve_as_leaders": 9,
    "in_sync_set_shrinks_without_the_controller": 0,
    "proposed_set_counts_at_once": 1,
    "epoch_stays_when_the_leader_changes": 2,
    "any_majority_of_two_is_one": 1,
    "votes_for_a_shorter_log": 10,
    "vote_is_not_kept": 4,
    "committed_without_a_majority": 1,
    "metadata_is_never_synced": 1,
    "anybody_may_lead": 3,
    "metadata_is_not_cut": 1,
    "lost_producer_state_on_failover": 8,
    "followers_cut_to_their_watermark": 3,
    "who_came_back_with_less_stays_in_sync": 27,
    "old_lives_count": 27,
    "votes_twice_in_an_epoch": 28,
}
