"""AlterPartition: what a leader may say about who is in sync, and what is written for it."""

from __future__ import annotations

from typing import Any

import pytest

from ottla.metadata.in_sync import alter_partition
from ottla.metadata.records import PartitionChangeRecord
from ottla.wire.errors import Error, KafkaError
from ottla.wire.messages.brokers import AlterPartitionRequest
from pictures import Pictured


def three(**more: Any) -> Pictured:
    cluster = Pictured(1, 2, 3, **more)
    cluster.topic((1, 2, 3))
    return cluster


def test_a_follower_that_lags_leaves_and_comes_back() -> None:
    """REP-05, REP-06, REP-10: the answer is the partition as it is now, and only the partition epoch rises."""
    cluster = three(min_isr=2)
    before = cluster.partition()
    told = cluster.alter(1, 3)
    assert (told.error_code, told.leader_id, told.leader_epoch, told.isr) == (0, 1, before.leader_epoch, [1, 3])
    assert told.partition_epoch == before.partition_epoch + 1 == cluster.partition().partition_epoch
    ((record, version),) = cluster.written
    assert isinstance(record, PartitionChangeRecord) and version == 2
    assert record == PartitionChangeRecord(partition_id=0, topic_id=record.topic_id, isr=[1, 3])
    assert cluster.alter(1, 3, 2).isr == [1, 3, 2] == list(cluster.partition().isr)


def test_who_leaves_below_the_minimum_stays_eligible() -> None:
    """KIP-966: and is forgotten as such when enough are in sync again."""
    cluster = three(min_isr=2)
    cluster.alter(1)
    assert (cluster.partition().isr, cluster.partition().elr) == ((1,), (2, 3))
    cluster.alter(1, 3)
    assert (cluster.partition().isr, cluster.partition().elr) == ((1, 3), ())


def test_nothing_new_is_no_record() -> None:
    cluster = three()
    told = cluster.alter(1, 2, 3)
    assert told.error_code == 0 and told.isr == [1, 2, 3] and cluster.written == []


REFUSED = [
    ("a later controller is known to the leader", (1, 2), {"leader_epoch": 9}, Error.NOT_CONTROLLER),
    ("the same by the partition's epoch", (1, 2), {"partition_epoch": 9}, Error.NOT_CONTROLLER),
    ("it leads no more", (1, 2), {"leader_epoch": 0}, Error.FENCED_LEADER_EPOCH),
    ("it never led", (1, 2), {"broker_id": 2}, Error.INVALID_REQUEST),
    ("it looked at an old state", (1, 2), {"partition_epoch": 0}, Error.INVALID_UPDATE_VERSION),
    ("somebody who holds no replica", (1, 4), {}, Error.INVALID_REQUEST),
    ("twice the same", (1, 2, 2), {}, Error.INVALID_REQUEST),
    ("without the leader", (2, 3), {}, Error.INVALID_REQUEST),
    ("nobody", (), {}, Error.INVALID_REQUEST),
    ("recovering again", (1,), {"leader_recovery_state": 1}, Error.INVALID_REQUEST),
    ("recovering, but not alone", (1, 2), {"leader_recovery_state": 1}, Error.INVALID_REQUEST),
    ("another life of a broker", (1, (2, 0)), {}, Error.INELIGIBLE_REPLICA),
    ("no such partition", (1, 2), {"partition_index": 7}, Error.UNKNOWN_TOPIC_OR_PARTITION),
    # What comes first is told where several things are wrong.
    ("new before old", (1, 2), {"leader_epoch": 0, "partition_epoch": 9}, Error.NOT_CONTROLLER),
    ("old before wrong", (4,), {"leader_epoch": 0, "broker_id": 2}, Error.FENCED_LEADER_EPOCH),
    ("no leader before an old state", (1,), {"partition_epoch": 0, "broker_id": 2}, Error.INVALID_REQUEST),
    ("an old state before a wrong set", (4,), {"partition_epoch": 0}, Error.INVALID_UPDATE_VERSION),
    ("a wrong set before the dead", (2, 4), {}, Error.INVALID_REQUEST),
]


@pytest.mark.parametrize(("isr", "said", "error"), [row[1:] for row in REFUSED], ids=[row[0] for row in REFUSED])
def test_what_is_refused(isr: tuple[Any, ...], said: dict[str, int], error: Error) -> None:
    """TRAP-46, in the order of Apache Kafka."""
    cluster = Pictured(1, 2, 3, 4)
    cluster.topic((2, 1, 3))
    cluster.silence(2)  # now 1 leads, in epoch 1
    cluster.start(2)
    before = cluster.partition()
    assert before.leader_epoch == before.partition_epoch == 1
    told = cluster.alter(*isr, **said)
    assert told.error_code == error.code
    assert cluster.written == [] and cluster.partition() == before
    assert (told.leader_id, told.isr) == (0, []), "whoever is refused is told nothing else"


@pytest.mark.parametrize("how", ["fenced", "about to stop", "unknown", "another process"])
def test_only_the_living_are_in_sync(how: str) -> None:
    """TRAP-42, KIP-841, KIP-903."""
    cluster = Pictured(1, 2, 3, 4)
    cluster.topic((1, 2, 3), (2, 3, 1))
    epoch = cluster.image.brokers[2].epoch
    cluster.alter(1, 3)
    if how == "fenced":
        cluster.silence(2)
    elif how == "about to stop":
        cluster.beat(2, want_shut_down=True)
        assert cluster.image.brokers[2].in_controlled_shutdown
    elif how == "unknown":
        cluster.image.brokers.pop(2)  # type: ignore[attr-defined]
    else:
        cluster.silence(2)
        cluster.start(2)
    told = cluster.alter(1, (2, epoch), 3)
    assert told.error_code == Error.INELIGIBLE_REPLICA.code and cluster.written == []
    if how == "another process":
        assert cluster.alter(1, 2, 3).error_code == 0
        assert cluster.alter(1, (2, -1)).error_code == 0, "who does not know epochs is not asked for them"


def test_version_2_names_no_epochs() -> None:
    cluster = three()
    topic, partition = cluster.image.topic("t"), cluster.partition()
    assert topic is not None
    asked = AlterPartitionRequest.Topic.Partition(
        partition_index=0, leader_epoch=partition.leader_epoch, new_isr=[1, 2]
    )
    topics = [AlterPartitionRequest.Topic(topic_id=topic.id, partitions=[asked])]
    request = AlterPartitionRequest(broker_id=1, broker_epoch=cluster.image.brokers[1].epoch, topics=topics)
    cluster.apply(alter_partition(cluster.image, request, cluster.rules))
    assert cluster.partition().isr == (1, 2)


def asking(broker_id: int, epoch: int, topics: list[AlterPartitionRequest.Topic]) -> AlterPartitionRequest:
    return AlterPartitionRequest(broker_id=broker_id, broker_epoch=epoch, topics=topics)


def test_an_unknown_topic_and_another_process() -> None:
    """A topic that was made anew has another id; a leader that started anew has another epoch."""
    cluster = three()
    asked = AlterPartitionRequest.Topic.Partition(partition_index=0)
    topics = [AlterPartitionRequest.Topic(topic_id=b"x" * 16, partitions=[asked])]
    epoch = cluster.image.brokers[1].epoch
    reply = alter_partition(cluster.image, asking(1, epoch, topics), cluster.rules).reply
    assert reply.topics[0].partitions[0].error_code == Error.UNKNOWN_TOPIC_ID.code
    for broker_id, broker_epoch in ((1, epoch - 1), (9, epoch)):
        with pytest.raises(KafkaError) as refused:
            alter_partition(cluster.image, asking(broker_id, broker_epoch, topics), cluster.rules)
        assert refused.value.error is Error.STALE_BROKER_EPOCH


def test_a_leader_that_recovered_says_so() -> None:
    """KIP-704: after an unclean election nobody is in sync until the leader has recovered."""
    cluster = Pictured(1, 2, elr=False)
    cluster.topic((1, 2), unclean_leader_election_enable="true")
    cluster.silence(2)
    cluster.silence(1)
    cluster.start(2)
    assert cluster.partition().recovering and cluster.partition().isr == (2,)
    cluster.start(1)
    assert cluster.alter(2, 1, leader_recovery_state=1).error_code == Error.INVALID_REQUEST.code
    told = cluster.alter(2, 1)
    assert (told.error_code, told.leader_recovery_state, told.isr) == (0, 0, [2, 1])
    assert not cluster.partition().recovering


class TestReassignment:
    def test_it_is_over_when_all_that_stay_are_in_sync(self) -> None:
        """KIP-455: and whoever goes is gone in a new leader epoch."""
        cluster = Pictured(1, 2, 3, 4)
        cluster.topic((1, 2, 3))
        assert cluster.reassign(1, 2, 4) is None
        before = cluster.partition()
        assert (before.replicas, before.adding, before.removing) == ((1, 2, 4, 3), (4,), (3,))
        told = cluster.alter(1, 2, 3, 4)
        now = cluster.partition()
        assert (now.replicas, now.adding, now.removing, now.isr) == ((1, 2, 4), (), (), (1, 2, 4))
        assert now.leader_epoch == before.leader_epoch + 1 == told.leader_epoch
        assert told.error_code == 0 and told.isr == [1, 2, 4]

    def test_a_leader_that_goes_is_told_to_look_for_the_new_one(self) -> None:
        cluster = Pictured(1, 2, 3, 4)
        cluster.topic((1, 2))
        cluster.reassign(3, 4)
        assert cluster.alter(1, 2, 3).error_code == 0 and cluster.partition().adding == (3, 4)
        told = cluster.alter(1, 2, 3, 4)
        assert told.error_code == Error.NEW_LEADER_ELECTED.code and told.isr == []
        now = cluster.partition()
        assert (now.leader, now.replicas, now.isr, now.adding, now.removing) == (3, (3, 4), (3, 4), (), ())

    def test_it_is_not_over_while_one_of_the_new_ones_is_away(self) -> None:
        cluster = Pictured(1, 2, 3, 4)
        cluster.topic((1, 2))
        cluster.reassign(3, 4)
        cluster.silence(4)
        cluster.alter(1, 2, 3)
        assert cluster.partition().adding == (3, 4) and cluster.partition().leader == 1
        assert cluster.reassign() is None
        assert (cluster.partition().replicas, cluster.partition().isr) == ((1, 2), (1, 2))

    def test_another_aim_under_way(self) -> None:
        """The new aim counts from what holds replicas now, not from what held them once."""
        cluster = Pictured(1, 2, 3, 4)
        cluster.topic((1, 2))
        cluster.reassign(1, 3)
        assert cluster.reassign(1, 4) is None
        now = cluster.partition()
        assert (now.replicas, now.adding, now.removing) == ((1, 4, 2, 3), (4,), (2, 3))
        cluster.alter(1, 2, 4)
        assert (cluster.partition().replicas, cluster.partition().adding) == ((1, 4), ())


def test_below_metadata_version_12_a_smaller_set_is_a_new_epoch() -> None:
    """KAFKA-15021: brokers of that time need it."""
    cluster = three(elr=False)
    cluster.image.features["metadata.version"] = 11  # type: ignore[index]
    before = cluster.partition().leader_epoch
    told = cluster.alter(1, 2)
    assert told.error_code == 0 and told.leader_epoch == before + 1
    assert cluster.alter(1, 2, 3).leader_epoch == before + 1
