"""Partitions that are given to other brokers, and elections that somebody asks for."""

from __future__ import annotations

import random
from typing import Any

import pytest

from ottla.metadata import controller
from ottla.metadata import records as r
from ottla.metadata.controller import Decision, NewTopic, Registration, Rules
from ottla.metadata.image import TOPIC, Endpoint, Image, Partition
from ottla.metadata.leaders import PREFERRED, UNCLEAN, elect_leaders
from ottla.metadata.reassignments import Wanted, reassign, under_way
from ottla.metadata.replay import replay
from ottla.wire.errors import Error, KafkaError

RULES = Rules()
ENDPOINT = Endpoint("PLAINTEXT", "localhost", 9092, 0)


def after(image: Image, decision: Decision[Any]) -> Image:
    held = [record for record, _ in decision.records]
    return replay(image, held, image.offset + max(1, len(held)), 1)[0]


def directory(broker_id: int) -> bytes:
    return bytes([broker_id]) * 16


def cluster(*brokers: int) -> Image:
    image = after(Image(controller_id=1), controller.bootstrap(Image(), [], RULES))
    for broker_id in brokers:
        who = Registration(broker_id, directory(broker_id), [ENDPOINT], [directory(broker_id)])
        image = after(image, controller.register_broker(image, who, RULES))
        image = after(image, controller.unfence(image, broker_id, RULES))
    return image


def with_topic(image: Image, *replicas: int, **configs: str) -> Image:
    new = NewTopic("t", assignments=[(0, list(replicas))], configs={k.replace("_", "."): v for k, v in configs.items()})
    return after(image, controller.create_topics(image, [new], RULES, random.Random(1)))


def partition(image: Image) -> Partition:
    topic = image.topic("t")
    assert topic is not None
    return topic.partitions[0]


def move(image: Image, *replicas: int, **more: bool) -> tuple[Image, KafkaError | None]:
    decision = reassign(image, [("t", [Wanted(0, replicas)])], RULES, **more)
    ((_, ((_, error),)),) = decision.reply
    return after(image, decision), error


def in_sync(image: Image, *isr: int) -> Image:
    """What a leader that sees its followers catch up has written down."""
    topic = image.topic("t")
    assert topic is not None
    return replay(image, [r.PartitionChangeRecord(partition_id=0, topic_id=topic.id, isr=list(isr))], 99, 1)[0]


def test_a_new_order_needs_no_reassignment() -> None:
    image = with_topic(cluster(1, 2, 3), 1, 2, 3)
    moved, error = move(image, 3, 1, 2)
    assert error is None and partition(moved).replicas == (3, 1, 2)
    assert partition(moved).leader == 1 and partition(moved).leader_epoch == partition(image).leader_epoch
    assert partition(moved).directories == tuple(map(directory, (3, 1, 2)))
    assert not under_way(moved, None)


def test_fewer_replicas_are_there_at_once_in_a_new_epoch() -> None:
    image = with_topic(cluster(1, 2, 3), 1, 2, 3)
    moved, _ = move(image, 2)
    now = partition(moved)
    assert (now.replicas, now.isr, now.leader, now.adding, now.removing) == ((2,), (2,), 2, (), ())
    assert now.leader_epoch == partition(image).leader_epoch + 1
    same_leader, _ = move(image, 1, 2)
    assert partition(same_leader).leader_epoch == partition(image).leader_epoch + 1, "a follower must hear of it"


def test_a_new_replica_has_to_catch_up_first() -> None:
    image = with_topic(cluster(1, 2, 3), 1, 2)
    moved, error = move(image, 3, 1)
    now = partition(moved)
    assert error is None and (now.replicas, now.adding, now.removing) == ((3, 1, 2), (3,), (2,))
    assert now.isr == (1, 2) and now.directories == tuple(map(directory, (3, 1, 2)))
    assert list(under_way(moved, None)) == list(under_way(moved, [("t", [0, 5]), ("none", [0])])) == ["t"]
    caught_up = in_sync(moved, 1, 2, 3)
    done = after(caught_up, controller.fence(caught_up, 2, RULES))
    assert (partition(done).replicas, partition(done).isr) == ((3, 1), (1, 3))
    assert not under_way(done, None)


def placed(image: Image, broker_id: int) -> Partition:
    """After a broker has said that its replica is where it always was."""
    topic = image.topic("t")
    assert topic is not None
    where = [(directory(broker_id), [(topic.id, 0)])]
    epoch = image.brokers[broker_id].epoch
    return partition(after(image, controller.assign_replicas(image, broker_id, epoch, where, RULES)))


def test_who_says_where_its_replica_is_ends_what_waits_for_nobody() -> None:
    """As any change of a partition: a reassignment is over, and somebody leads who could have led before."""
    moved, _ = move(with_topic(cluster(1, 2, 3), 1, 2), 1, 3)
    assert placed(moved, 3) == partition(moved)
    now = placed(in_sync(moved, 1, 2, 3), 3)
    assert (now.replicas, now.isr, now.adding, now.removing) == ((1, 3), (1, 3), (), ())
    assert now.directories == (directory(1), directory(3))
    image = with_topic(cluster(1), 1)
    lost = after(image, controller.lose_directories(image, 1, [directory(1)], RULES))
    assert (partition(lost).leader, partition(lost).elr) == (-1, (1,))
    assert (placed(lost, 1).leader, placed(lost, 1).isr, placed(lost, 1).elr) == (1, (1,), ())


def test_stopping_puts_things_back() -> None:
    image = with_topic(cluster(1, 2, 3), 1, 2)
    moved, _ = move(image, 3)
    stop = reassign(moved, [("t", [Wanted(0, None)])], RULES)
    back = partition(after(moved, stop))
    assert (back.replicas, back.isr, back.adding, back.removing) == ((1, 2), (1, 2), (), ())
    again = reassign(image, [("t", [Wanted(0, None)])], RULES)
    assert again.reply[0][1][0][1].error is Error.NO_REASSIGNMENT_IN_PROGRESS  # type: ignore[union-attr]


def test_stopping_must_not_lose_records_silently() -> None:
    """Only the new replica is in sync: going back would need an unclean election."""
    image = with_topic(cluster(1, 2), 1)
    moved, _ = move(image, 2)
    only_new = in_sync(moved, 2)
    stop = reassign(only_new, [("t", [Wanted(0, None)])], RULES)
    assert stop.reply[0][1][0][1].error is Error.INVALID_REPLICA_ASSIGNMENT  # type: ignore[union-attr]
    allowed = r.ConfigRecord(
        resource_type=TOPIC, resource_name="t", name="unclean.leader.election.enable", value="true"
    )
    risky = replay(only_new, [allowed], 100, 1)[0]
    back = partition(after(risky, reassign(risky, [("t", [Wanted(0, None)])], RULES)))
    assert (back.replicas, back.isr) == ((1,), (1,))


@pytest.mark.parametrize(
    ("replicas", "error"),
    [((), 39), ((1, 1), 39), ((9,), 39), ((1, 9), 39), ((-1,), 39)],
)
def test_assignments_that_make_no_sense(replicas: tuple[int, ...], error: int) -> None:
    _, refused = move(with_topic(cluster(1), 1), *replicas)
    assert refused is not None and refused.code == error


def test_the_replication_factor_may_have_to_stay() -> None:
    """KIP-860; a reassignment under way counts as done."""
    image = with_topic(cluster(1, 2, 3), 1)
    _, refused = move(image, 1, 2, may_change_factor=False)
    assert refused is not None and refused.message == "The replication factor is changed from 1 to 2"
    moved, error = move(image, 2, may_change_factor=False)
    assert error is None
    assert move(moved, 3, may_change_factor=False)[1] is None


def test_unknown_topics_and_partitions() -> None:
    image = with_topic(cluster(1), 1)
    decision = reassign(image, [("none", [Wanted(0, [1])]), ("t", [Wanted(7, [1]), Wanted(0, [1])])], RULES)
    assert [[error and error.code for _, error in told] for _, told in decision.reply] == [[3], [3, None]]
    assert decision.records == []


def elected(image: Image, kind: int) -> tuple[Image, Error | None]:
    decision = elect_leaders(image, [("t", [0])], kind, RULES)
    ((_, ((_, error),)),) = decision.reply
    return after(image, decision), None if error is None else error.error


def test_the_preferred_leader_leads_again() -> None:
    """KIP-460."""
    image = with_topic(cluster(1, 2), 1, 2)
    assert elected(image, PREFERRED)[1] is Error.ELECTION_NOT_NEEDED
    swapped, _ = move(image, 2, 1)
    again, error = elected(swapped, PREFERRED)
    assert error is None and partition(again).leader == 2
    gone = after(again, controller.fence(again, 2, RULES))
    assert elected(gone, PREFERRED)[1] is Error.PREFERRED_LEADER_NOT_AVAILABLE


def test_an_unclean_election_takes_whoever_lives() -> None:
    image = with_topic(cluster(1, 2), 1, 2, min_insync_replicas="1")
    assert elected(image, UNCLEAN)[1] is Error.ELECTION_NOT_NEEDED
    image = after(image, controller.fence(image, 2, RULES))
    image = after(image, controller.fence(image, 1, RULES))
    assert partition(image).leader == -1
    assert elected(image, UNCLEAN)[1] is Error.ELIGIBLE_LEADERS_NOT_AVAILABLE
    back = replay(image, [r.BrokerRegistrationChangeRecord(broker_id=2, broker_epoch=0, fenced=-1)], 200, 1)[0]
    forced, error = elected(back, UNCLEAN)
    assert error is None and (partition(forced).leader, partition(forced).isr) == (2, (2,))
    assert partition(forced).recovering


def test_all_partitions_and_kinds_nobody_knows() -> None:
    image = with_topic(cluster(1), 1)
    assert elect_leaders(image, None, PREFERRED, RULES).reply == [("t", [])], "what is right is not mentioned"
    with pytest.raises(KafkaError) as refused:
        elect_leaders(image, [], 7, RULES)
    assert refused.value.error is Error.INVALID_REQUEST


def test_a_broker_that_is_gone_for_good() -> None:
    image = with_topic(cluster(1, 2), 1, 2)
    image = after(image, controller.unregister(image, 1, RULES))
    assert 1 not in image.brokers and partition(image).leader == 2
    assert partition(image).replicas == (1, 2), "its replicas stay its own until they are reassigned"
    with pytest.raises(KafkaError) as refused:
        controller.unregister(image, 1, RULES)
    assert refused.value.error is Error.BROKER_ID_NOT_REGISTERED


@pytest.mark.parametrize(("minimum", "eligible"), [("2", (2,)), ("1", ())])
def test_who_is_eligible_and_gone_for_good_stays_so_while_it_is_needed(minimum: str, eligible: tuple[int, ...]) -> None:
    image = with_topic(cluster(1, 2), 1, 2, min_insync_replicas="2")
    image = after(image, controller.fence(image, 2, RULES))
    lower = r.ConfigRecord(resource_type=TOPIC, resource_name="t", name="min.insync.replicas", value=minimum)
    image = replay(image, [lower], image.offset + 1, 1)[0]
    assert partition(image).elr == (2,)
    image = after(image, controller.unregister(image, 2, RULES))
    assert (partition(image).isr, partition(image).elr) == ((1,), eligible)
