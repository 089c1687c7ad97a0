"""Brokers that come and go in any order, leaders that say anything they may: what holds of every picture, always.

Beside the picture stands what the replicas would hold. A write is committed when all in sync have it and there are enough
of them; a process that dies may lose all it had. Whoever is made leader without force must have all that was committed.
"""

from __future__ import annotations

from typing import Any

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from ottla.metadata import controller
from ottla.metadata.directories import assign_replicas
from ottla.metadata.image import TOPIC, Partition
from ottla.metadata.leaders import PREFERRED, UNCLEAN, elect_leaders
from ottla.metadata.periodic import elect_uncleanly, return_leaderships
from ottla.wire.errors import Error
from pictures import TIMEOUT_MS, Pictured, directory

BROKERS = (1, 2, 3, 4)
brokers = st.sampled_from(BROKERS)


class Cluster(RuleBasedStateMachine):
    elr = True

    @initialize(replicas=st.permutations(BROKERS), factor=st.integers(2, 3), min_isr=st.integers(1, 3))
    def begin(self, replicas: list[int], factor: int, min_isr: int) -> None:
        self.cluster = Pictured(*BROKERS, elr=self.elr, min_isr=1)
        self.cluster.topic(tuple(replicas[:factor]), min_insync_replicas=str(min_isr))
        self.min_isr = min_isr
        self.copies = dict.fromkeys(BROKERS, 0)
        self.committed = 0
        self.clean: dict[int, int] = {}
        self.seen = self.cluster.partition()

    # --- what happens to brokers

    @rule(broker=brokers)
    def falls_silent(self, broker: int) -> None:
        self.clean.pop(broker, None)
        self.cluster.silence(broker)

    @rule(broker=brokers)
    def beats(self, broker: int) -> None:
        self.cluster.beat(broker)

    @rule(broker=brokers)
    def wants_the_fence(self, broker: int) -> None:
        self.cluster.beat(broker, want_fence=True)

    @rule(broker=brokers)
    def stops(self, broker: int) -> None:
        epoch = self.cluster.image.brokers[broker].epoch
        if self.cluster.beat(broker, want_shut_down=True).may_go:
            self.clean[broker] = epoch

    @rule(broker=brokers)
    def starts_anew(self, broker: int) -> None:
        """A process that stopped in order has lost nothing; any other may have lost all."""
        clean = self.clean.pop(broker, -1)
        self.cluster.sessions.suspect(broker)
        self.cluster.register(self.cluster.registration(broker, previous_epoch=clean))
        if clean < 0:
            self.copies[broker] = 0
        self.cluster.beat(broker)

    @rule(broker=brokers)
    def is_taken_out(self, broker: int) -> None:
        self.cluster.apply(controller.unregister(self.cluster.image, broker, self.cluster.rules))
        self.cluster.sessions.end(broker)
        self.clean.pop(broker, None)
        self.copies[broker] = 0
        self.cluster.register(self.cluster.registration(broker))

    @rule(broker=brokers)
    def fails_in_its_directory(self, broker: int) -> None:
        """The only directory: what was in it is gone, and the process starts with another one."""
        held = self.cluster.image.brokers[broker].directories
        self.cluster.beat(broker, want_fence=self.cluster.image.brokers[broker].fenced, offline_log_dirs=list(held))
        self.copies[broker] = 0
        self.cluster.sessions.suspect(broker)
        fresh = directory(broker, (held[0][0] % 200) + 1)
        self.cluster.register(self.cluster.registration(broker, directories=[fresh]))
        self.clean.pop(broker, None)

    @rule(broker=brokers)
    def says_where_its_replica_is(self, broker: int) -> None:
        image, topic = self.cluster.image, self.cluster.image.topic("t")
        assert topic is not None
        known = image.brokers[broker]
        wanted = [(known.directories[0], [(topic.id, 0)])]
        ((_, ((_, error),)),) = self.cluster.apply(
            assign_replicas(image, broker, known.epoch, wanted, self.cluster.rules)
        )
        assert (error is None) == (broker in self.partition.replicas)

    @rule()
    def a_controller_takes_over(self) -> None:
        self.cluster.now_ms += TIMEOUT_MS
        self.cluster.sessions.begin(self.cluster.image, self.cluster.now_ms)

    # --- what leaders do

    @property
    def partition(self) -> Partition:
        return self.cluster.partition()

    def is_led(self) -> bool:
        return self.partition.leader >= 0

    @precondition(is_led)
    @rule(wanted=st.sets(brokers))
    def says_who_is_in_sync(self, wanted: set[int]) -> None:
        partition, image = self.partition, self.cluster.image
        isr = [r for r in partition.replicas if r == partition.leader or r in wanted]
        ineligible = [r for r in isr if not image.brokers[r].active]
        told = self.cluster.alter(*isr)
        if ineligible:
            assert told.error_code == Error.INELIGIBLE_REPLICA.code
        else:
            assert told.error_code in (0, Error.NEW_LEADER_ELECTED.code)
            # Whoever is let in has caught up with the leader first.
            newly = set(isr) - set(partition.isr)
            self.copies.update(dict.fromkeys(newly, self.copies[partition.leader]))

    # --- what people ask for

    @rule(wanted=st.lists(brokers, unique=True, max_size=4))
    def is_reassigned(self, wanted: list[int]) -> None:
        error = self.cluster.reassign(*wanted)
        allowed = {None, Error.NO_REASSIGNMENT_IN_PROGRESS, Error.INVALID_REPLICA_ASSIGNMENT}
        assert error in allowed and (error is None or not wanted)

    @rule(kind=st.sampled_from([PREFERRED, None]))
    def leaders_are_elected(self, kind: int | None) -> None:
        if kind is None:
            self.cluster.apply(return_leaderships(self.cluster.image, self.cluster.rules))
        else:
            self.cluster.apply(elect_leaders(self.cluster.image, [("t", [0])], kind, self.cluster.rules))

    @rule(min_isr=st.integers(1, 3))
    def the_minimum_changes(self, min_isr: int) -> None:
        changes = {(TOPIC, "t"): {"min.insync.replicas": str(min_isr)}}
        self.cluster.apply(controller.incremental_alter_configs(self.cluster.image, changes))
        self.min_isr = min_isr

    # --- what always holds

    @invariant()
    def holds(self) -> None:
        if not hasattr(self, "seen"):
            return
        before, now = self.seen, self.partition
        self.seen = now
        assert_well_formed(now, self.cluster)
        assert_follows(before, now)
        if now.leader >= 0 and now.leader_epoch != before.leader_epoch:
            self.check_leader(now)
        self.write(now)

    def write(self, partition: Partition) -> None:
        if partition.leader >= 0 and len(partition.isr) >= min(self.min_isr, len(partition.replicas)):
            self.committed += 1
            self.copies.update(dict.fromkeys(partition.isr, self.committed))

    def check_leader(self, now: Partition) -> None:
        if now.recovering:
            self.committed = self.copies[now.leader]  # it was forced: what it has is what there is
        elif self.elr:
            assert self.copies[now.leader] == self.committed, "a leader lacks what was committed"


def assert_well_formed(partition: Partition, cluster: Pictured) -> None:
    replicas, isr, elr = set(partition.replicas), set(partition.isr), set(partition.elr)
    assert len(replicas) == len(partition.replicas) == len(partition.directories)
    assert isr <= replicas and elr <= replicas and not isr & elr
    assert partition.leader == -1 or partition.leader in isr
    assert set(partition.adding) <= replicas and set(partition.removing) <= replicas
    if partition.leader >= 0:
        assert cluster.image.brokers[partition.leader].active
    if not cluster.image.elr_enabled:
        assert isr and not elr


def assert_follows(before: Partition, now: Partition) -> None:
    assert now.leader_epoch >= before.leader_epoch and now.partition_epoch >= before.partition_epoch
    if now.leader != before.leader:
        assert now.leader_epoch > before.leader_epoch
    if now != before:
        assert now.partition_epoch > before.partition_epoch


class ClusterWithoutElr(Cluster):
    elr = False


class UncleanCluster(Cluster):
    """Where the topic allows it, somebody leads whenever anybody lives; and all but the data holds as before."""

    @rule()
    def unclean_elections_are_allowed(self) -> None:
        self.cluster.setting("unclean.leader.election.enable", "true", "t")

    @rule()
    def anybody_leads(self) -> None:
        topic = self.cluster.image.topic("t")
        assert topic is not None
        allowed = self.cluster.rules.terms(self.cluster.image, topic).unclean
        self.cluster.apply(elect_uncleanly(self.cluster.image, self.cluster.rules))
        if allowed and self.partition.leader == -1:
            self.cluster.apply(elect_leaders(self.cluster.image, [("t", [0])], UNCLEAN, self.cluster.rules))
            assert self.partition.leader == -1, "the controller could have done that itself"


SOME = settings(max_examples=60, stateful_step_count=40, deadline=None)
TestCluster: Any = Cluster.TestCase
TestCluster.settings = SOME
TestClusterWithoutElr: Any = ClusterWithoutElr.TestCase
TestClusterWithoutElr.settings = SOME
TestUncleanCluster: Any = UncleanCluster.TestCase
TestUncleanCluster.settings = SOME
