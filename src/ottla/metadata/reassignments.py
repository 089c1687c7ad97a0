"""Partitions on their way from some brokers to others (KIP-455).

Whoever is to get a replica is *adding*, whoever is to lose one is *removing*; until the reassignment is over, both hold it.
It is over when all that come are in sync (where more go than come: all that stay), which may be at once: `leaders.Change`
sees to that. Stopping one puts things back to where they were.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import NamedTuple

from ottla.metadata.decisions import RECORDS_PER_REQUEST_MAX, Decision, Rules, Versioned
from ottla.metadata.image import Image, Partition, Topic
from ottla.metadata.leaders import Change, change_of, record_of
from ottla.metadata.topics import check_assignment
from ottla.wire.errors import Error, KafkaError


class Wanted(NamedTuple):
    """Who shall hold a partition; None to stop what is under way."""

    partition: int
    replicas: Sequence[int] | None


# Topics in the order of the request, and what became of each of their partitions.
Reassigned = list[tuple[str, list[tuple[int, KafkaError | None]]]]


def reassign(
    image: Image, wanted: Iterable[tuple[str, Iterable[Wanted]]], rules: Rules, *, may_change_factor: bool = True
) -> Decision[Reassigned]:
    records: list[Versioned] = []
    outcomes: Reassigned = []
    for topic, partitions in wanted:
        told: list[tuple[int, KafkaError | None]] = []
        for one in partitions:
            try:
                record = _reassigned(image, topic, one, rules, may_change_factor)
                records += [] if record is None else [record]
                told.append((one.partition, None))
            except KafkaError as error:
                told.append((one.partition, error))
        outcomes.append((topic, told))
    if len(records) > RECORDS_PER_REQUEST_MAX:
        raise KafkaError(Error.POLICY_VIOLATION, "Unable to perform excessively large batch operation.")
    return Decision(records, outcomes)


def _reassigned(image: Image, name: str, wanted: Wanted, rules: Rules, may_change_factor: bool) -> Versioned | None:
    topic = image.topic(name)
    if topic is None:
        raise KafkaError(Error.UNKNOWN_TOPIC_OR_PARTITION, f"Unable to find a topic named {name}.")
    partition = topic.partitions.get(wanted.partition)
    if partition is None:
        raise KafkaError(Error.UNKNOWN_TOPIC_OR_PARTITION, f"Unable to find partition {name}:{wanted.partition}.")
    if wanted.replicas is None:
        change = _stopped(image, topic, wanted.partition, rules)
    else:
        check_assignment(image, wanted.replicas, None)
        if not may_change_factor:
            _check_factor(partition, len(wanted.replicas))
        change = _begun(image, topic, partition, wanted.replicas, rules)
    change.elect()
    return record_of(change, topic.id, wanted.partition, image)


def _check_factor(partition: Partition, wanted: int) -> None:
    now = len(set(partition.replicas) - set(partition.removing))
    if now != wanted:
        why = f"The replication factor is changed from {now} to {wanted}"
        raise KafkaError(Error.INVALID_REPLICATION_FACTOR, why)


def _begun(image: Image, topic: Topic, partition: Partition, target: Sequence[int], rules: Rules) -> Change:
    removing = tuple(sorted(set(partition.replicas) - set(target)))
    adding = tuple(sorted(set(target) - set(partition.replicas)))
    change = change_of(image, topic, partition, rules)
    change.unclean = False
    change.replicas = (*target, *removing)
    change.removing, change.adding = removing or partition.removing, adding or partition.adding
    return change


def _stopped(image: Image, topic: Topic, index: int, rules: Rules) -> Change:
    partition = topic.partitions[index]
    if not is_under_way(partition):
        raise KafkaError(Error.NO_REASSIGNMENT_IN_PROGRESS)
    change = change_of(image, topic, partition, rules)
    change.replicas = tuple(replica for replica in partition.replicas if replica not in partition.adding)
    change.isr = tuple(replica for replica in partition.isr if replica not in partition.adding)
    change.adding = change.removing = ()
    if not change.isr:
        # Only those are in sync that shall not have been there: going back loses what they alone have.
        if not change.unclean:
            why = "because it would require an unclean leader election."
            raise KafkaError(
                Error.INVALID_REPLICA_ASSIGNMENT,
                f"Unable to revert partition assignment for {topic.name}:{index} {why}",
            )
        change.isr = change.replicas[:1]
    return change


def is_under_way(partition: Partition) -> bool:
    return bool(partition.adding or partition.removing)


def under_way(image: Image, asked: Iterable[tuple[str, Iterable[int]]] | None) -> dict[str, dict[int, Partition]]:
    """Reassignments that are not over: of these partitions, or of all."""
    everything = ((topic.name, topic.partitions) for topic in image.topics.values())
    found: dict[str, dict[int, Partition]] = {}
    for name, indexes in everything if asked is None else asked:
        topic = image.topic(name)
        for index in indexes:
            partition = None if topic is None else topic.partitions.get(index)
            if partition is not None and is_under_way(partition):
                found.setdefault(name, {})[index] = partition
    return found
