"""Brokers and controllers: how they come, wait behind the fence, serve, and go.

A broker's process registers itself and is given an epoch, the offset at which its registration is written. It is fenced
until it has read the metadata up to there; then it may lead. A fenced broker leads nothing. Before it stops it says so
(controlled shutdown), its leaderships move, and it is fenced. A process that died without that is found out when the
next one registers without knowing the epoch of the last: it may have lost what it had not synced, so it no longer
counts as in sync with anything.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import NamedTuple

from ottla.metadata.decisions import Decision, Rules, Versioned
from ottla.metadata.features import (
    CONTROLLER_REGISTRATION,
    CORDONED_DIRECTORIES,
    DIRECTORY_ASSIGNMENT,
    SERVED,
    partition_version,
    register_broker_version,
)
from ottla.metadata.image import Broker, Endpoint, FeatureRange, Image
from ottla.metadata.leaders import changes_for_broker
from ottla.metadata.records import (
    BrokerRegistrationChangeRecord,
    PartitionChangeRecord,
    RegisterBrokerRecord,
    RegisterControllerRecord,
    UnregisterBrokerRecord,
)
from ottla.wire.errors import Error, KafkaError
from ottla.wire.ids import is_reserved

FENCE = 1
UNFENCE = -1
NO_EPOCH = -1


class Registration(NamedTuple):
    """How a broker introduces itself. `previous_epoch` is what its last clean stop left behind, if it was clean."""

    id: int
    incarnation: bytes
    endpoints: Sequence[Endpoint]
    directories: Sequence[bytes]
    rack: str | None = None
    previous_epoch: int = NO_EPOCH
    features: Mapping[str, FeatureRange] = SERVED


def register_broker(image: Image, who: Registration, rules: Rules) -> Decision[int]:
    """Write down a new process of a broker; the reply is its epoch."""
    _check_directories(image, who)
    old = image.broker(who.id)
    records = [] if old is None else _farewell(image, old, who, rules)
    # The epoch is the offset at which this decision begins, also when the registration itself comes a little later.
    epoch = image.offset + 1
    version = register_broker_version(image.metadata_version)
    record = RegisterBrokerRecord(
        broker_id=who.id,
        incarnation_id=who.incarnation,
        broker_epoch=epoch,
        end_points=[_broker_endpoint(endpoint) for endpoint in who.endpoints],
        features=[_broker_feature(name, levels) for name, levels in who.features.items()],
        rack=who.rack,
        fenced=True,
        log_dirs=list(who.directories) if image.metadata_version >= DIRECTORY_ASSIGNMENT else [],
    )
    return Decision([*records, (record, version)], epoch)


def _check_directories(image: Image, who: Registration) -> None:
    if len(set(who.directories)) != len(who.directories) or any(is_reserved(d) for d in who.directories):
        raise KafkaError(Error.INVALID_REGISTRATION, "Reserved or duplicate directory id")
    for broker in image.brokers.values():
        if broker.id != who.id and set(broker.directories) & set(who.directories):
            raise KafkaError(
                Error.INVALID_REGISTRATION, f"Broker {broker.id} is already registered with that directory"
            )


def _farewell(image: Image, old: Broker, who: Registration, rules: Rules) -> list[Versioned]:
    """The process before this one is gone; what it led and what it was in sync with follows from how it went."""
    if who.previous_epoch == old.epoch:
        return changes_for_broker(image, rules, gone=who.id)
    return changes_for_broker(image, rules, died_uncleanly=who.id)


def _broker_endpoint(endpoint: Endpoint) -> RegisterBrokerRecord.BrokerEndpoint:
    name, host, port, protocol = endpoint
    return RegisterBrokerRecord.BrokerEndpoint(name=name, host=host, port=port, security_protocol=protocol)


def _broker_feature(name: str, levels: FeatureRange) -> RegisterBrokerRecord.BrokerFeature:
    low, high = levels
    return RegisterBrokerRecord.BrokerFeature(name=name, min_supported_version=low, max_supported_version=high)


def register_controller(
    image: Image, controller_id: int, incarnation: bytes, endpoints: Iterable[Endpoint]
) -> Decision[None]:
    if image.metadata_version < CONTROLLER_REGISTRATION:
        return Decision([], None)
    kind = RegisterControllerRecord
    record = kind(
        controller_id=controller_id,
        incarnation_id=incarnation,
        end_points=[
            kind.ControllerEndpoint(name=name, host=host, port=port, security_protocol=protocol)
            for name, host, port, protocol in endpoints
        ],
        features=[
            kind.ControllerFeature(name=name, min_supported_version=low, max_supported_version=high)
            for name, (low, high) in SERVED.items()
        ],
    )
    return Decision([(record, 0)], None)


def unfence(image: Image, broker_id: int, rules: Rules) -> Decision[None]:
    """The broker has caught up: it may lead, and partitions without a leader may choose it."""
    broker = _registered(image, broker_id)
    record = _changed(broker, fenced=UNFENCE)
    if image.metadata_version >= CORDONED_DIRECTORIES and broker.cordoned is None:
        no_cordon = _changed(broker, cordoned_log_dirs=[])
        return Decision([no_cordon, record, *changes_for_broker(image, rules, back=broker_id)], None)
    return Decision([record, *changes_for_broker(image, rules, back=broker_id)], None)


def fence(image: Image, broker_id: int, rules: Rules) -> Decision[None]:
    """The broker is not heard of any more, or has said goodbye: it leads nothing until it is unfenced."""
    broker = _registered(image, broker_id)
    if broker.fenced:
        return Decision([], None)
    return Decision([*changes_for_broker(image, rules, gone=broker_id), _changed(broker, fenced=FENCE)], None)


def begin_shutdown(image: Image, broker_id: int, rules: Rules) -> Decision[None]:
    """The broker wants to stop: take its leaderships away while it can still hand them over."""
    broker = _registered(image, broker_id)
    said = [] if broker.in_controlled_shutdown else [_changed(broker, in_controlled_shutdown=1)]
    return Decision([*said, *changes_for_broker(image, rules, gone=broker_id)], None)


def unregister(image: Image, broker_id: int, rules: Rules) -> Decision[None]:
    """The broker is gone for good. What it held a copy of stays assigned to it until somebody reassigns it."""
    broker = _registered(image, broker_id)
    changes = changes_for_broker(image, rules, gone=broker_id)
    record = UnregisterBrokerRecord(broker_id=broker_id, broker_epoch=broker.epoch)
    return Decision([*changes, (record, 0)], None)


def assign_directories(image: Image, broker_id: int, places: Mapping[tuple[bytes, int], bytes]) -> Decision[None]:
    """A broker with several directories says where it put its replicas (KIP-858)."""
    records: list[Versioned] = []
    if image.metadata_version < DIRECTORY_ASSIGNMENT:
        return Decision(records, None)
    for (topic_id, index), directory in places.items():
        topic = image.topic_by_id(topic_id)
        partition = None if topic is None else topic.partitions.get(index)
        if partition is None or broker_id not in partition.replicas or partition.directory_of(broker_id) == directory:
            continue
        directories = list(partition.directories)
        directories[partition.replicas.index(broker_id)] = directory
        record = PartitionChangeRecord(partition_id=index, topic_id=topic_id, directories=directories)
        records.append((record, partition_version(image.metadata_version)))
    return Decision(records, None)


def _registered(image: Image, broker_id: int) -> Broker:
    broker = image.broker(broker_id)
    if broker is None:
        raise KafkaError(Error.BROKER_ID_NOT_REGISTERED, f"Broker ID {broker_id} is not currently registered")
    return broker


def _changed(
    broker: Broker, *, fenced: int = 0, in_controlled_shutdown: int = 0, cordoned_log_dirs: list[bytes] | None = None
) -> Versioned:
    """A change of one field, in the oldest version that has it, as Apache Kafka writes it."""
    record = BrokerRegistrationChangeRecord(
        broker_id=broker.id,
        broker_epoch=broker.epoch,
        fenced=fenced,
        in_controlled_shutdown=in_controlled_shutdown,
        cordoned_log_dirs=cordoned_log_dirs,
    )
    return record, 3 if cordoned_log_dirs is not None else 1 if in_controlled_shutdown else 0
