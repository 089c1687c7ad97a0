"""Topics: creating them, adding partitions, deleting them; what a name may look like and where replicas go.

The checks and their order are Apache Kafka's, because clients see which error comes first. A request is answered topic
by topic: one that cannot be done does not keep others from being done, and all that can be done is one batch.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from typing import NamedTuple

from ottla.metadata.decisions import RECORDS_PER_REQUEST_MAX, Chance, Decision, Rules, Versioned
from ottla.metadata.features import partition_version
from ottla.metadata.image import TOPIC, Image, Partition, Topic, unify
from ottla.metadata.placement import spread, unable
from ottla.metadata.records import RemoveTopicRecord, TopicRecord
from ottla.metadata.settings import set_all
from ottla.metadata.snapshot import partition_record
from ottla.wire.errors import Error, KafkaError
from ottla.wire.ids import random_id

CONSUMER_OFFSETS = "__consumer_offsets"
TRANSACTION_STATE = "__transaction_state"
SHARE_GROUP_STATE = "__share_group_state"
INTERNAL = (CONSUMER_OFFSETS, TRANSACTION_STATE, SHARE_GROUP_STATE)

NAME_LENGTH_MAX = 249
DEFAULT = -1

# Told how many partitions a change makes or removes; raises if that is too much (KIP-599).
Charge = Callable[[int], None]

_LEGAL = re.compile(r"[a-zA-Z0-9._-]+")


def free(partitions: int) -> None:
    """The charge where nobody counts."""


class NewTopic(NamedTuple):
    """A topic that is asked for: by counts, or by naming the replicas of each partition."""

    name: str
    partitions: int = DEFAULT
    replication_factor: int = DEFAULT
    assignments: Sequence[tuple[int, Sequence[int]]] = ()
    configs: Mapping[str, str | None] = {}


class MorePartitions(NamedTuple):
    """How many partitions a topic is to have in all, and maybe where the new ones go."""

    name: str
    total: int
    assignments: Sequence[Sequence[int]] | None = None


def is_internal(name: str) -> bool:
    return name in INTERNAL


def check_name(name: str) -> None:
    reason = _illegal(name)
    if reason is not None:
        raise KafkaError(Error.INVALID_TOPIC_EXCEPTION, f"Topic name is invalid: {reason}")


def _illegal(name: str) -> str | None:
    if name == "":
        return "the empty string is not allowed"
    if name in (".", ".."):
        return f"'{name}' is not allowed"
    if len(name) > NAME_LENGTH_MAX:
        return f"the length of '{name}' is longer than the max allowed length {NAME_LENGTH_MAX}"
    if _LEGAL.fullmatch(name) is None:
        return f"'{name}' contains one or more characters other than ASCII alphanumerics, '.', '_' and '-'"
    return None


def create_topics(
    image: Image,
    wanted: Iterable[NewTopic],
    rules: Rules,
    rng: Chance,
    *,
    validate_only: bool = False,
    charge: Charge = free,
) -> Decision[dict[str, Topic | KafkaError]]:
    """Create what can be created. The reply says for each name what it became, or why it did not."""
    wanted = list(wanted)
    _check_size(wanted, rules)
    records: list[Versioned] = []
    outcomes: dict[str, Topic | KafkaError] = {}
    for new in wanted:
        try:
            topic = _new_topic(image, new, rules, rng)
            charge(len(topic.partitions))
        except KafkaError as error:
            outcomes[new.name] = error
        else:
            outcomes[new.name] = topic
            records += _records_of(topic, new.configs, image.metadata_version)
    return Decision([] if validate_only else records, outcomes)


def _check_size(wanted: Sequence[NewTopic], rules: Rules) -> None:
    """One request is one batch, and a batch has a limit."""
    counts = (
        len(new.assignments) or (rules.partitions if new.partitions == DEFAULT else max(new.partitions, 0))
        for new in wanted
    )
    if sum(counts) > RECORDS_PER_REQUEST_MAX:
        raise KafkaError(Error.POLICY_VIOLATION, "Excessively large number of partitions per request.")


def _new_topic(image: Image, new: NewTopic, rules: Rules, rng: Chance) -> Topic:
    _check_new_name(image, new.name)
    _check_configs(new.configs, rules)
    if new.assignments:
        placed = _placed_by_hand(image, new)
    else:
        placed = _placed_by_count(image, new, rules, rng)
    topic_id = random_id(rng)
    while topic_id in image.topics:
        topic_id = random_id(rng)
    return Topic(topic_id, new.name, placed)


def _check_new_name(image: Image, name: str) -> None:
    if name in image.topic_ids:
        raise KafkaError(Error.TOPIC_ALREADY_EXISTS, f"Topic '{name}' already exists.")
    check_name(name)
    alike = image.alike.get(unify(name))
    if alike and ("." in name or "_" in name):
        raise KafkaError(Error.INVALID_TOPIC_EXCEPTION, f"Topic '{name}' collides with existing topic: {alike[0]}")


def _check_configs(configs: Mapping[str, str | None], rules: Rules) -> None:
    nulls = [name for name, value in configs.items() if value is None]
    if nulls:
        raise KafkaError(Error.INVALID_CONFIG, f"Null value not supported for topic configs: {','.join(nulls)}")
    if configs:
        rules.check_topic_configs({name: value for name, value in configs.items() if value is not None})


def _placed_by_hand(image: Image, new: NewTopic) -> dict[int, Partition]:
    if new.replication_factor != DEFAULT:
        why = "A manual partition assignment was specified, but replication factor was not set to -1."
        raise KafkaError(Error.INVALID_REQUEST, why)
    if new.partitions != DEFAULT:
        why = "A manual partition assignment was specified, but numPartitions was not set to -1."
        raise KafkaError(Error.INVALID_REQUEST, why)
    placed: dict[int, Partition] = {}
    factor = None
    for index, replicas in new.assignments:
        if index in placed:
            raise _bad_assignment(f"Found multiple manual partition assignments for partition {index}")
        check_assignment(image, replicas, factor)
        factor = len(replicas)
        placed[index] = _partition(image, replicas, _no_live_replica(index))
    if set(placed) != set(range(len(placed))):
        raise _bad_assignment("partitions should be a consecutive 0-based integer sequence")
    return {index: placed[index] for index in range(len(placed))}


def _placed_by_count(image: Image, new: NewTopic, rules: Rules, rng: Chance) -> dict[int, Partition]:
    if new.replication_factor < DEFAULT or new.replication_factor == 0:
        why = "Replication factor must be larger than 0, or -1 to use the default value."
        raise KafkaError(Error.INVALID_REPLICATION_FACTOR, why)
    if new.partitions < DEFAULT or new.partitions == 0:
        raise KafkaError(Error.INVALID_PARTITIONS, "Number of partitions was set to an invalid non-positive value.")
    count = rules.partitions if new.partitions == DEFAULT else new.partitions
    factor = rules.replication_factor if new.replication_factor == DEFAULT else new.replication_factor
    return dict(enumerate(_spread(image, count, factor, rng)))


def _spread(image: Image, count: int, factor: int, rng: Chance) -> list[Partition]:
    nobody = unable(factor, "All brokers are currently fenced or in controlled shutdown.")
    return [_partition(image, replicas, nobody) for replicas in spread(image, count, factor, rng)]


def _partition(image: Image, replicas: Sequence[int], nobody: KafkaError) -> Partition:
    """A new partition: everybody who lives is in sync with nothing, and the first of them leads."""
    isr = tuple(replica for replica in replicas if image.brokers[replica].active)
    if not isr:
        raise nobody
    return Partition(
        replicas=tuple(replicas),
        isr=isr,
        leader=isr[0],
        directories=tuple(image.brokers[replica].default_directory for replica in replicas),
    )


def check_assignment(image: Image, replicas: Sequence[int], factor: int | None) -> None:
    if not replicas:
        raise _bad_assignment("The manual partition assignment includes an empty replica list.")
    for before, broker_id in zip((None, *sorted(replicas)), sorted(replicas), strict=False):
        if broker_id not in image.brokers:
            raise _bad_assignment(
                f"The manual partition assignment includes broker {broker_id}, but no such broker is registered."
            )
        if broker_id == before:
            raise _bad_assignment(f"The manual partition assignment includes the broker {before} more than once.")
    if factor is not None and len(replicas) != factor:
        raise _bad_assignment(
            f"The manual partition assignment includes a partition with {len(replicas)} replica(s), but this is not "
            f"consistent with previous partitions, which have {factor} replica(s)."
        )


def _bad_assignment(why: str) -> KafkaError:
    return KafkaError(Error.INVALID_REPLICA_ASSIGNMENT, why)


def _no_live_replica(index: int) -> KafkaError:
    return _bad_assignment(
        f"All brokers specified in the manual partition assignment for partition {index} are fenced or in controlled "
        "shutdown."
    )


def _records_of(topic: Topic, configs: Mapping[str, str | None], metadata_version: int) -> list[Versioned]:
    """The topic, then its settings, then its partitions."""
    head: list[Versioned] = [(TopicRecord(name=topic.name, topic_id=topic.id), 0)]
    partitions = [_record_of(topic.id, index, p, metadata_version) for index, p in topic.partitions.items()]
    return [*head, *set_all((TOPIC, topic.name), configs), *partitions]


def _record_of(topic_id: bytes, index: int, partition: Partition, metadata_version: int) -> Versioned:
    return partition_record(topic_id, index, partition), partition_version(metadata_version)


def add_partitions(
    image: Image,
    wanted: Iterable[MorePartitions],
    rng: Chance,
    *,
    validate_only: bool = False,
    charge: Charge = free,
) -> Decision[dict[str, KafkaError | None]]:
    records: list[Versioned] = []
    outcomes: dict[str, KafkaError | None] = {}
    for more in wanted:
        try:
            added = _added(image, more, rng)
            charge(len(added))
            records += added
            outcomes[more.name] = None
        except KafkaError as error:
            outcomes[more.name] = error
    if len(records) > RECORDS_PER_REQUEST_MAX:
        raise KafkaError(Error.POLICY_VIOLATION, "Unable to perform excessively large batch operation.")
    return Decision([] if validate_only else records, outcomes)


def _added(image: Image, more: MorePartitions, rng: Chance) -> list[Versioned]:
    topic = image.topic(more.name)
    if topic is None:
        raise KafkaError(Error.UNKNOWN_TOPIC_OR_PARTITION)
    count = len(topic.partitions)
    if more.total == count:
        raise KafkaError(Error.INVALID_PARTITIONS, f"Topic already has {count} partition(s).")
    if more.total < count:
        why = f"The topic {more.name} currently has {count} partition(s); {more.total} would not be an increase."
        raise KafkaError(Error.INVALID_PARTITIONS, why)
    additional = more.total - count
    if more.assignments is None and additional > RECORDS_PER_REQUEST_MAX:
        raise KafkaError(Error.POLICY_VIOLATION, "Unable to perform excessively large batch operation.")
    factor = len(topic.partitions[0].replicas)
    new = _added_by_hand(image, more, count, factor) or _spread(image, additional, factor, rng)
    level = image.metadata_version
    return [_record_of(topic.id, index, partition, level) for index, partition in enumerate(new, count)]


def _added_by_hand(image: Image, more: MorePartitions, count: int, factor: int) -> list[Partition]:
    if more.assignments is None:
        return []
    if len(more.assignments) != more.total - count:
        raise _bad_assignment(
            f"Attempted to add {more.total - count} additional partition(s), but only {len(more.assignments)} "
            "assignment(s) were specified."
        )
    partitions = []
    for index, replicas in enumerate(more.assignments, count):
        check_assignment(image, replicas, factor)
        partitions.append(_partition(image, replicas, _no_live_replica(index)))
    return partitions


def delete_topics(
    image: Image, topic_ids: Collection[bytes], *, charge: Charge = free
) -> Decision[dict[bytes, KafkaError | None]]:
    outcomes: dict[bytes, KafkaError | None] = {}
    records: list[Versioned] = []
    for topic_id in topic_ids:
        try:
            if topic_id not in image.topics:
                raise KafkaError(Error.UNKNOWN_TOPIC_ID)
            charge(len(image.topics[topic_id].partitions))
        except KafkaError as error:
            outcomes[topic_id] = error
        else:
            outcomes[topic_id] = None
            records.append((RemoveTopicRecord(topic_id=topic_id), 0))
    return Decision(records, outcomes)
