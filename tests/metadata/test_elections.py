"""Who may lead: the order of candidates, one rule at a time."""

from __future__ import annotations

from collections.abc import Iterable
from random import Random

import pytest

from ottla.metadata import controller
from ottla.metadata import records as r
from ottla.metadata.controller import Decision, NewTopic, Registration, Rules
from ottla.metadata.image import DIRECTORY_LOST, TOPIC, Endpoint, Image, Partition
from ottla.metadata.leaders import Change
from ottla.metadata.replay import replay

RULES = Rules()
ENDPOINT = Endpoint("PLAINTEXT", "localhost", 9092, 0)
NOBODY = -1


def elected(
    *,
    acceptable: Iterable[int],
    isr: tuple[int, ...] = (),
    elr: tuple[int, ...] = (),
    last_known: tuple[int, ...] = (),
    unclean: bool = False,
) -> tuple[int, tuple[int, ...]]:
    """The leader that a partition without one gets, and the set in sync after that."""
    partition = Partition(replicas=(1, 2, 3), isr=isr, elr=elr, last_known_elr=last_known, leader=NOBODY)
    change = Change(partition, isr, elr, set(acceptable).__contains__, elr_enabled=True, min_isr=2, unclean=unclean)
    change.elect()
    leader = NOBODY if change.leader == -2 else change.leader
    return leader, change.isr


def test_the_order_of_candidates() -> None:
    """TRAP-40: in sync by the order of the assignment; the eligible ones; the last known one; unclean."""
    assert elected(isr=(3, 2), acceptable=(2, 3)) == (2, (3, 2))
    assert elected(elr=(3, 2), acceptable=(2, 3)) == (2, (2,))
    assert elected(last_known=(3,), acceptable=(1, 3)) == (3, (3,))
    assert elected(acceptable=(3,), unclean=True) == (3, (3,))
    assert elected(acceptable=(3,)) == (NOBODY, ())


def test_eligible_ones_wait_while_anybody_is_in_sync() -> None:
    """TRAP-40: who is in sync has everything; while it is only away, somebody who may have less must not lead."""
    assert elected(isr=(1,), elr=(2,), acceptable=(2,)) == (NOBODY, (1,))
    assert elected(isr=(), elr=(2,), acceptable=(2,)) == (2, (2,))


def test_the_last_known_leader_counts_only_alone_and_only_when_nobody_is_eligible() -> None:
    """TRAP-41"""
    assert elected(last_known=(1, 2), acceptable=(1, 2)) == (NOBODY, ())
    assert elected(elr=(3,), last_known=(1,), acceptable=(1,)) == (NOBODY, ())
    assert elected(last_known=(1,), acceptable=(2,)) == (NOBODY, ())
    assert elected(last_known=(9,), acceptable=(9,)) == (NOBODY, ()), "it holds no replica any more"


def apply(image: Image, decision: Decision[object]) -> Image:
    held = [record for record, _ in decision.records]
    return replay(image, held, image.offset + len(held), 1)[0]


def started(image: Image, directory: bytes, previous_epoch: int = -1) -> Image:
    incarnation = image.offset.to_bytes(16, "big")
    who = Registration(1, incarnation, [ENDPOINT], [directory], previous_epoch=previous_epoch)
    image = apply(image, controller.register_broker(image, who, RULES))
    return apply(image, controller.unfence(image, 1, RULES))


def stopped(image: Image) -> Image:
    image = apply(image, controller.begin_shutdown(image, 1, RULES))
    return apply(image, controller.fence(image, 1, RULES))


def one_topic(directory: bytes) -> Image:
    image = started(apply(Image(), controller.bootstrap(Image(), [], RULES)), directory)
    return apply(image, controller.create_topics(image, [NewTopic("t")], RULES, Random(1)))


def partition_of(image: Image) -> Partition:
    return next(image.topics.values()).partitions[0]


@pytest.mark.parametrize("back", [0, 1])
def test_a_clean_mark_of_an_earlier_process_is_no_clean_stop(back: int) -> None:
    """TRAP-12: the epoch in it must be that of the last registration, or a process in between died without a word."""
    image = one_topic(b"directory of one")
    epoch = image.brokers[1].epoch - back
    image = started(stopped(image), b"directory of one", previous_epoch=epoch)
    partition = partition_of(image)
    assert partition.leader == 1
    assert partition.recovering is bool(back), "what it had may be gone, and whoever leads must say so"


def test_a_broker_without_the_directory_of_a_replica_does_not_lead_it() -> None:
    """TRAP-13: the disk that held it was taken out; the others of this broker do not have the records."""
    image = one_topic(b"directory of one")
    epoch = image.brokers[1].epoch
    image = stopped(image)
    elsewhere = started(image, b"another disk now", previous_epoch=epoch)
    assert partition_of(elsewhere).leader == NOBODY
    assert partition_of(started(image, b"directory of one", previous_epoch=epoch)).leader == 1


def test_who_has_room_again_leads_where_nobody_else_may() -> None:
    """Its replica was given up for lost while its disk was full; meanwhile the last one in sync has gone, too."""
    home = b"directory of one"
    image = one_topic(home)
    topic = next(image.topics.values())

    def told(image: Image, directory: bytes) -> Image:
        places = [(directory, [(topic.id, 0)])]
        return apply(image, controller.assign_replicas(image, 1, image.brokers[1].epoch, places, RULES))

    lost = told(image, DIRECTORY_LOST)
    assert (partition_of(lost).leader, partition_of(lost).elr) == (NOBODY, (1,))
    assert partition_of(told(lost, b"a directory that failed")).leader == NOBODY
    back = partition_of(told(lost, home))
    assert (back.leader, back.isr, back.directories) == (1, (1,), (home,))


def test_a_topic_that_comes_back_in_the_same_batch_has_none_of_its_old_settings() -> None:
    """LOG-01: same name, other topic."""
    old, new = b"o" * 16, b"n" * 16
    image = replay(
        Image(),
        [
            r.TopicRecord(name="t", topic_id=old),
            r.ConfigRecord(resource_type=TOPIC, resource_name="t", name="retention.ms", value="1"),
        ],
        1,
        1,
    )[0]
    image = replay(
        image,
        [
            r.RemoveTopicRecord(topic_id=old),
            r.TopicRecord(name="t", topic_id=new),
            r.ConfigRecord(resource_type=TOPIC, resource_name="t", name="segment.bytes", value="2000000"),
        ],
        4,
        1,
    )[0]
    assert dict(image.configs(TOPIC, "t")) == {"segment.bytes": "2000000"}
