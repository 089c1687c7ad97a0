"""Which directory of a broker holds which replica, and what happens when a directory fails (KIP-858).

A broker with several directories is not told where to put a replica: it chooses, and says so. A replica in a directory that
failed cannot lead, and is in sync with nothing.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence

from ottla.metadata.brokers import check_epoch
from ottla.metadata.decisions import Decision, Rules, Versioned
from ottla.metadata.features import DIRECTORY_ASSIGNMENT
from ottla.metadata.image import DIRECTORY_LOST, Broker, Image, Partition, Topic
from ottla.metadata.leaders import acceptable_leaders, change_of, record_of
from ottla.metadata.records import BrokerRegistrationChangeRecord
from ottla.wire.errors import Error, KafkaError

Place = tuple[bytes, int]
# What became of each replica that a broker spoke of, by directory: topic id and partition, and why it was refused.
Assigned = list[tuple[bytes, list[tuple[Place, KafkaError | None]]]]


def assign_replicas(
    image: Image, broker_id: int, epoch: int, wanted: Sequence[tuple[bytes, Sequence[Place]]], rules: Rules
) -> Decision[Assigned]:
    """A broker says where it put its replicas. What is in a directory that has failed meanwhile goes the way of that."""
    if image.metadata_version < DIRECTORY_ASSIGNMENT:
        raise KafkaError(Error.UNSUPPORTED_VERSION, "Directory assignment is not supported yet.")
    broker = check_epoch(image, broker_id, epoch)
    records: list[Versioned] = []
    outcomes: Assigned = []
    failed: list[Place] = []
    for directory, places in wanted:
        told: list[tuple[Place, KafkaError | None]] = []
        for place in places:
            try:
                records += _assigned(image, place, broker_id, directory, rules)
                told.append((place, None))
                failed += [] if broker.has_online(directory) else [place]
            except KafkaError as error:
                told.append((place, error))
        outcomes.append((directory, told))
    return Decision([*records, *_without(image, broker_id, failed, rules)], outcomes)


def _held(image: Image, place: Place, broker_id: int) -> tuple[Topic, Partition]:
    topic = image.topic_by_id(place[0])
    if topic is None:
        raise KafkaError(Error.UNKNOWN_TOPIC_ID)
    partition = topic.partitions.get(place[1])
    if partition is None:
        raise KafkaError(Error.UNKNOWN_TOPIC_OR_PARTITION)
    if broker_id not in partition.replicas:
        raise KafkaError(Error.NOT_LEADER_OR_FOLLOWER)
    return topic, partition


def _assigned(image: Image, place: Place, broker_id: int, directory: bytes, rules: Rules) -> list[Versioned]:
    """Like every change of a partition it may end a reassignment, and finds a leader if somebody could have led already; or
    can now, because what was given up for lost is back (a disk has room again): nothing else that follows looks at that."""
    topic, partition = _held(image, place, broker_id)
    is_back = partition.directory_of(broker_id) == DIRECTORY_LOST
    now = partition.placed(broker_id, directory) if is_back else partition
    change = change_of(image, topic, partition, rules, acceptable_leaders(image, now))
    change.unclean = False
    change.placed = {broker_id: directory}
    change.elect()
    record = record_of(change, *place, image)
    return [] if record is None else [record]


def fail_directories(image: Image, broker: Broker, failed: Collection[bytes], rules: Rules) -> list[Versioned]:
    """Some directories of a broker cannot be read or written any more."""
    news = [directory for directory in broker.directories if directory in failed]
    if not news or image.metadata_version < DIRECTORY_ASSIGNMENT:
        return []
    places = [
        (topic.id, index)
        for topic in image.topics.values()
        for index, partition in topic.partitions.items()
        if partition.directory_of(broker.id) in news
    ]
    record = BrokerRegistrationChangeRecord(
        broker_id=broker.id,
        broker_epoch=broker.epoch,
        log_dirs=[directory for directory in broker.directories if directory not in failed],
    )
    return [*_without(image, broker.id, places, rules), (record, 2)]


def lose_directories(image: Image, broker_id: int, failed: Collection[bytes], rules: Rules) -> Decision[None]:
    """The same of a broker that is its own controller, and sends no heartbeats."""
    return Decision(fail_directories(image, image.brokers[broker_id], failed, rules), None)


def _without(image: Image, broker_id: int, places: Sequence[Place], rules: Rules) -> list[Versioned]:
    """These replicas of a broker are in sync with nothing, and do not lead."""
    records: list[Versioned] = []
    for topic_id, index in places:
        topic = image.topics[topic_id]
        partition = topic.partitions[index]
        change = change_of(image, topic, partition, rules, acceptable_leaders(image, partition, (broker_id,)))
        change.isr = tuple(replica for replica in partition.isr if replica != broker_id)
        change.elect()
        record = record_of(change, topic_id, index, image)
        records += [] if record is None else [record]
    return records
