"""AlterPartition: a leader says who is in sync with it, and the controller writes it down or says why not (KIP-497).

The leader and the controller may each know something that the other does not know yet; epochs tell. A leader of a newer
epoch than ours has heard of a later controller, so we are not the one. A leader of an older epoch leads no more. A
partition epoch that has passed means that the leader decided by an outdated state: it shall look again.

Whoever is to count as in sync must be there: not fenced, not about to stop, and the same process that the leader has seen
fetching (KIP-903), because a process that died and came back may have lost what it had.
"""

from __future__ import annotations

from ottla.metadata.brokers import check_epoch
from ottla.metadata.decisions import Decision, Rules, Terms, Versioned
from ottla.metadata.image import Image, Partition, Topic
from ottla.metadata.leaders import RECOVERING, change_on, record_of
from ottla.metadata.records import LEADER_UNCHANGED, PartitionChangeRecord
from ottla.metadata.replay import merged
from ottla.wire.errors import Error, KafkaError
from ottla.wire.messages.brokers import AlterPartitionRequest, AlterPartitionResponse

Asked = AlterPartitionRequest.Topic.Partition
Told = AlterPartitionResponse.Topic.Partition
ANY_PROCESS = -1
RECOVERED = 0


def alter_partition(image: Image, request: AlterPartitionRequest, rules: Rules) -> Decision[AlterPartitionResponse]:
    check_epoch(image, request.broker_id, request.broker_epoch)
    records: list[Versioned] = []
    response = AlterPartitionResponse()
    for asked in request.topics:
        topic = image.topic_by_id(asked.topic_id)
        terms = None if topic is None else rules.terms(image, topic)
        partitions = [_altered(image, topic, terms, one, request.broker_id, records) for one in asked.partitions]
        response.topics.append(AlterPartitionResponse.Topic(topic_id=asked.topic_id, partitions=partitions))
    return Decision(records, response)


def _altered(
    image: Image, topic: Topic | None, terms: Terms | None, asked: Asked, leader: int, records: list[Versioned]
) -> Told:
    try:
        if topic is None or terms is None:
            raise KafkaError(Error.UNKNOWN_TOPIC_ID)
        before = topic.partitions.get(asked.partition_index)
        if before is None:
            raise KafkaError(Error.UNKNOWN_TOPIC_OR_PARTITION)
        _check(image, before, asked, leader)
        change = _change(image, topic, terms, before, asked)
    except KafkaError as error:
        return Told(partition_index=asked.partition_index, error_code=error.code)
    if change is None:
        return _told(asked.partition_index, before)
    records.append(change)
    record, _ = change
    assert isinstance(record, PartitionChangeRecord)
    if record.leader not in (leader, LEADER_UNCHANGED):
        # A reassignment is over and its leader does not stay: it is written down, and the old leader looks for news.
        return Told(partition_index=asked.partition_index, error_code=Error.NEW_LEADER_ELECTED.code)
    return _told(asked.partition_index, merged(before, record))


def _change(image: Image, topic: Topic, terms: Terms, partition: Partition, asked: Asked) -> Versioned | None:
    change = change_on(terms, image, partition)
    change.isr = tuple(replica for replica, _ in _in_sync(asked))
    if (asked.leader_recovery_state == RECOVERING) != partition.recovering:
        change.recovery = asked.leader_recovery_state
    change.elect()
    return record_of(change, topic.id, asked.partition_index, image)


def _in_sync(asked: Asked) -> list[tuple[int, int]]:
    """Who is to be in sync, and in which epoch the leader knows it. Before version 3 no epochs were told."""
    told = [(state.broker_id, state.broker_epoch) for state in asked.new_isr_with_epochs]
    return told or [(replica, ANY_PROCESS) for replica in asked.new_isr]


def _check(image: Image, partition: Partition, asked: Asked, leader: int) -> None:
    """In the order of Apache Kafka: the first that is wrong is what the leader is told."""
    _check_epochs(partition, asked, leader)
    isr = [replica for replica, _ in _in_sync(asked)]
    if len(set(isr)) != len(isr) or not set(isr) <= set(partition.replicas) or partition.leader not in isr:
        raise KafkaError(Error.INVALID_REQUEST, f"{isr} cannot be in sync")
    if asked.leader_recovery_state not in (RECOVERED, RECOVERING):
        raise KafkaError(Error.INVALID_REQUEST, f"no such state as {asked.leader_recovery_state}")
    if asked.leader_recovery_state == RECOVERING and (len(isr) > 1 or not partition.recovering):
        raise KafkaError(Error.INVALID_REQUEST, "nobody is in sync with a leader that is recovering")
    for replica, epoch in _in_sync(asked):
        broker = image.broker(replica)
        if broker is None or not broker.active or epoch not in (ANY_PROCESS, broker.epoch):
            raise KafkaError(Error.INELIGIBLE_REPLICA)


def _check_epochs(partition: Partition, asked: Asked, leader: int) -> None:
    if asked.leader_epoch > partition.leader_epoch or asked.partition_epoch > partition.partition_epoch:
        raise KafkaError(Error.NOT_CONTROLLER)
    if asked.leader_epoch < partition.leader_epoch:
        raise KafkaError(Error.FENCED_LEADER_EPOCH)
    if leader != partition.leader:
        raise KafkaError(Error.INVALID_REQUEST, f"the leader is {partition.leader}")
    if asked.partition_epoch < partition.partition_epoch:
        raise KafkaError(Error.INVALID_UPDATE_VERSION)


def _told(index: int, partition: Partition) -> Told:
    return Told(
        partition_index=index,
        leader_id=partition.leader,
        leader_epoch=partition.leader_epoch,
        isr=list(partition.isr),
        leader_recovery_state=int(partition.recovering),
        partition_epoch=partition.partition_epoch,
    )
