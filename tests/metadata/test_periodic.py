"""What a controller does by itself: fence who is silent, give leaderships back, force elections where that is allowed."""

from __future__ import annotations

import pytest

from ottla.metadata import periodic
from ottla.metadata.leaders import PREFERRED, UNCLEAN, elect_leaders
from ottla.metadata.periodic import elect_uncleanly, fence_silent, return_leaderships
from ottla.metadata.records import BrokerRegistrationChangeRecord, PartitionChangeRecord
from pictures import Pictured


def test_a_silent_broker_leads_nothing_and_is_in_sync_with_nothing() -> None:
    """KRF-12, REP-12, REP-14: first the partitions, then the fence, as Apache Kafka writes it."""
    cluster = Pictured(1, 2, 3)
    cluster.topic((1, 2, 3), (2, 3, 1))
    cluster.topic((3, 2), name="elsewhere")
    cluster.silence(1)
    kinds = [type(record) for record, _ in cluster.written]
    assert kinds == [PartitionChangeRecord, PartitionChangeRecord, BrokerRegistrationChangeRecord]
    assert [cluster.partition(i).leader for i in range(2)] == [2, 2]
    assert [cluster.partition(i).leader_epoch for i in range(2)] == [1, 0]
    assert all(1 not in cluster.partition(i).isr for i in range(2))


def test_who_is_fenced_already_or_lives_again_is_left_alone() -> None:
    cluster = Pictured(1, 2)
    epoch = cluster.image.brokers[2].epoch
    assert not fence_silent(cluster.image, 2, epoch - 1, cluster.rules).records, "another process"
    assert not fence_silent(cluster.image, 9, epoch, cluster.rules).records, "nobody"
    cluster.silence(2)
    assert fence_silent(cluster.image, 2, epoch, cluster.rules) == ([], False)


def test_when_several_fall_silent_the_second_sees_what_the_first_did() -> None:
    """Two of three are gone: whoever is left leads, and nobody gives a leadership to the other dead one."""
    cluster = Pictured(1, 2, 3, min_isr=2)
    cluster.topic((1, 2, 3))
    cluster.silence(1)
    cluster.silence(2)
    partition = cluster.partition()
    assert (partition.leader, partition.isr, partition.elr) == (3, (3,), (2,))


class TestLeadershipsReturn:
    def test_to_who_comes_first_once_it_is_in_sync(self) -> None:
        """REP-15."""
        cluster = Pictured(1, 2, 3)
        cluster.topic((1, 2, 3), (2, 3, 1))
        cluster.silence(1)
        cluster.start(1)
        assert cluster.apply(return_leaderships(cluster.image, cluster.rules)) is False and cluster.written == []
        cluster.alter(2, 3, 1)
        cluster.apply(return_leaderships(cluster.image, cluster.rules))
        assert (cluster.partition().leader, cluster.partition().leader_epoch) == (1, 2)
        assert cluster.partition(1).leader == 2 and len(cluster.written) == 1

    def test_in_steps(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(periodic, "ELECTIONS_PER_STEP_MAX", 2)
        cluster = Pictured(1, 2)
        cluster.topic(*[(2, 1)] * 5)
        cluster.silence(2)
        cluster.start(2)
        topic = cluster.image.topic("t")
        assert topic is not None
        for index in range(5):
            cluster.replay(PartitionChangeRecord(partition_id=index, topic_id=topic.id, isr=[1, 2]))
        more = [cluster.apply(return_leaderships(cluster.image, cluster.rules)) for _ in range(3)]
        assert more == [True, True, False]
        assert all(cluster.partition(index).leader == 2 for index in range(5))


class TestUnclean:
    def offline(self, *, elr: bool) -> Pictured:
        """Broker 2 is back, but only broker 1 has everything."""
        cluster = Pictured(1, 2, elr=elr)
        cluster.topic((1, 2))
        cluster.silence(2)
        cluster.silence(1)
        cluster.start(2)
        assert cluster.partition().leader == -1
        return cluster

    @pytest.mark.parametrize("elr", [True, False])
    def test_only_where_the_topic_allows_it(self, elr: bool) -> None:
        """REP-13."""
        cluster = self.offline(elr=elr)
        cluster.apply(elect_uncleanly(cluster.image, cluster.rules))
        assert cluster.written == [] and cluster.partition().leader == -1
        cluster.setting("unclean.leader.election.enable", "true", "t")
        cluster.apply(elect_uncleanly(cluster.image, cluster.rules))
        partition = cluster.partition()
        assert (partition.leader, partition.isr, partition.elr, partition.recovering) == (2, (2,), (), True)
        assert partition.last_known_elr == ()

    def test_not_where_leaderships_return(self) -> None:
        """REP-13, REP-15: a partition without a leader has strayed as well, but nobody leads it who may lack records."""
        cluster = self.offline(elr=True)
        assert cluster.apply(return_leaderships(cluster.image, cluster.rules)) is False
        assert cluster.written == [] and cluster.partition().leader == -1

    def test_when_asked_for(self) -> None:
        """KIP-460, KRF-02: whoever asks for it need not ask the topic."""
        cluster = self.offline(elr=True)
        reply = cluster.apply(elect_leaders(cluster.image, None, UNCLEAN, cluster.rules))
        assert reply == [("t", [(0, None)])] and cluster.partition().leader == 2

    def test_preferred_when_asked_for(self) -> None:
        cluster = Pictured(1, 2, 3)
        cluster.topic((1, 2), (2, 1), (3, 1))
        cluster.silence(3)
        reply = cluster.apply(elect_leaders(cluster.image, None, PREFERRED, cluster.rules))
        ((name, told),) = reply
        assert name == "t" and [index for index, _ in told] == [2], "what is right is not mentioned"
        assert cluster.partition(2).leader == 1
