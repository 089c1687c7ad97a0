"""What the active controller does by itself from time to time: fence who is silent, give leaderships back, force elections.

A step writes no more than a batch of elections; where more is left to do it says so, and is called again at once.
"""

from __future__ import annotations

from collections.abc import Iterator

from ottla.metadata import brokers
from ottla.metadata.decisions import Decision, Rules, Versioned
from ottla.metadata.image import Image, Partition, Topic
from ottla.metadata.leaders import change_of, record_of
from ottla.metadata.records import NO_LEADER

ELECTIONS_PER_STEP_MAX = 1_000


def fence_silent(image: Image, broker_id: int, epoch: int, rules: Rules) -> Decision[bool]:
    """The session of this process ran out. One broker in one decision: the next must see who leads by then.

    The reply says whether it was fenced; it may be gone, or another process, or fenced already."""
    broker = image.broker(broker_id)
    if broker is None or broker.epoch != epoch or broker.fenced:
        return Decision([], False)
    return Decision(brokers.fence(image, broker_id, rules).records, True)


def return_leaderships(image: Image, rules: Rules) -> Decision[bool]:
    """Whoever comes first in the assignment leads again, if it is in sync (`auto.leader.rebalance.enable`)."""
    strayed = (place for place in _partitions(image) if place[2].leader != place[2].replicas[0])
    return _elections(image, strayed, rules, prefers_first=True)


def elect_uncleanly(image: Image, rules: Rules) -> Decision[bool]:
    """Where the topic allows it, anybody who lives leads rather than nobody.

    Brokers that come or go see to that themselves; this is for topics that were allowed it only afterwards."""
    leaderless = (
        place for place in _partitions(image) if place[2].leader == NO_LEADER and rules.terms(image, place[0]).unclean
    )
    return _elections(image, leaderless, rules)


def _elections(
    image: Image, places: Iterator[tuple[Topic, int, Partition]], rules: Rules, *, prefers_first: bool = False
) -> Decision[bool]:
    records: list[Versioned] = []
    for topic, index, partition in places:
        change = change_of(image, topic, partition, rules)
        change.unclean, change.prefers_first = not prefers_first, prefers_first
        change.elect()
        record = record_of(change, topic.id, index, image)
        records += [] if record is None else [record]
        if len(records) == ELECTIONS_PER_STEP_MAX:
            return Decision(records, True)
    return Decision(records, False)


def _partitions(image: Image) -> Iterator[tuple[Topic, int, Partition]]:
    for topic in image.topics.values():
        for index, partition in topic.partitions.items():
            yield topic, index, partition
