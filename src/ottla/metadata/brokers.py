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
    METADATA_VERSION,
    SERVED,
    register_broker_version,
)
from ottla.metadata.image import Broker, Endpoint, FeatureRange, Image
from ottla.metadata.leaders import changes_for_broker
from ottla.metadata.records import (
    BrokerRegistrationChangeRecord,
    RegisterBrokerRecord,
    RegisterControllerRecord,
    UnregisterBrokerRecord,
)
from ottla.wire.errors import Error, KafkaError
from ottla.wire.ids import is_reserved, uuid_text

FENCE = 1
UNFENCE = -1
NO_EPOCH = -1


class Registration(NamedTuple):
    """How a broker introduces itself. `previous_epoch` is what its last clean stop left behind, if it was clean.

    Without a `cluster_id` it is the broker of this very node."""

    id: int
    incarnation: bytes
    endpoints: Sequence[Endpoint]
    directories: Sequence[bytes]
    rack: str | None = None
    previous_epoch: int = NO_EPOCH
    features: Mapping[str, FeatureRange] = SERVED
    cluster_id: str | None = None
    is_of_zookeeper: bool = False


def register_broker(image: Image, who: Registration, rules: Rules, *, in_session: bool = False) -> Decision[int]:
    """Write down a new process of a broker, or anew what the same process says; the reply is its epoch.

    `in_session`: whoever has this id was heard of a moment ago, so another process cannot have it.
    """
    old = image.broker(who.id)
    _check_identity(image, old, who, in_session)
    _check_directories(image, who)
    _check_features(image, who)
    record = _registration(image, who)
    if old is not None and old.incarnation == who.incarnation:
        record.broker_epoch, record.fenced = old.epoch, old.fenced
        record.in_controlled_shutdown = old.in_controlled_shutdown
        farewell = []
    else:
        farewell = _farewell(image, old, who, rules)
    version = register_broker_version(image.metadata_version)
    return Decision([*farewell, (record, version)], record.broker_epoch)


def _registration(image: Image, who: Registration) -> RegisterBrokerRecord:
    return RegisterBrokerRecord(
        broker_id=who.id,
        incarnation_id=who.incarnation,
        # The offset at which this decision begins, also when the registration itself comes a little later.
        broker_epoch=image.offset + 1,
        end_points=[_broker_endpoint(endpoint) for endpoint in who.endpoints],
        features=[_broker_feature(name, levels) for name, levels in who.features.items()],
        rack=who.rack,
        fenced=True,
        log_dirs=list(who.directories) if image.metadata_version >= DIRECTORY_ASSIGNMENT else [],
    )


def _check_identity(image: Image, old: Broker | None, who: Registration, in_session: bool) -> None:
    if who.cluster_id not in (None, image.cluster_id):
        why = f"Expected cluster ID {image.cluster_id}, but got cluster ID {who.cluster_id}"
        raise KafkaError(Error.INCONSISTENT_CLUSTER_ID, why)
    if old is not None and old.incarnation != who.incarnation and in_session:
        raise KafkaError(Error.DUPLICATE_BROKER_REGISTRATION, "Another broker is registered with that broker id.")
    if who.is_of_zookeeper:
        raise KafkaError(Error.BROKER_ID_NOT_REGISTERED, "Controller does not support registering ZK brokers.")


def _check_directories(image: Image, who: Registration) -> None:
    if image.metadata_version < DIRECTORY_ASSIGNMENT:
        return
    if not who.directories:
        raise KafkaError(Error.INVALID_REGISTRATION, "No directories specified in request")
    if any(is_reserved(directory) for directory in who.directories):
        raise KafkaError(Error.INVALID_REGISTRATION, "Reserved directory ID in request")
    if len(set(who.directories)) != len(who.directories):
        raise KafkaError(Error.INVALID_REGISTRATION, "Duplicate directory ID in request")
    for broker in image.brokers.values():
        if broker.id != who.id and (taken := set(broker.directories) & set(who.directories)):
            why = f"Broker {broker.id} is already registered with directory {uuid_text(min(taken))}"
            raise KafkaError(Error.INVALID_REGISTRATION, why)


def _check_features(image: Image, who: Registration) -> None:
    """Whoever cannot live with a level that the cluster has agreed on must stay out.

    This node itself has looked at the levels before it led. Of features that this release does not know (their levels
    came with a directory that it took over) nobody has to know anything.
    """
    if who.cluster_id is None:
        return
    if METADATA_VERSION not in who.features:
        raise KafkaError(Error.INVALID_REGISTRATION, f"Request features do not contain '{METADATA_VERSION}'")
    levels = {**image.finalised, METADATA_VERSION: image.metadata_version}
    for name, (low, high) in who.features.items():
        _check_feature(name, levels.get(name, 0), low, high)
    for name in SERVED:
        if name in image.features and name not in who.features:
            _check_feature(name, levels[name], 0, 0)


def _check_feature(name: str, finalised: int, low: int, high: int) -> None:
    if not low <= finalised <= high:
        raise KafkaError(
            Error.UNSUPPORTED_VERSION,
            f"Unable to register because the broker does not support finalized version {finalised} of {name}. "
            f"The broker wants a version between {low} and {high}, inclusive.",
        )


def _farewell(image: Image, old: Broker | None, who: Registration, rules: Rules) -> list[Versioned]:
    """The process before this one is gone; what it led and what it was in sync with follows from how it went.

    Somebody who was unregistered may still count as eligible, but nobody knows what it has kept.
    """
    if old is not None and who.previous_epoch == old.epoch:
        return changes_for_broker(image, rules, gone=who.id)
    return changes_for_broker(image, rules, died_uncleanly=who.id)


def _broker_endpoint(endpoint: Endpoint) -> RegisterBrokerRecord.BrokerEndpoint:
    name, host, port, protocol = endpoint
    return RegisterBrokerRecord.BrokerEndpoint(name=name, host=host, port=port, security_protocol=protocol)


def _broker_feature(name: str, levels: FeatureRange) -> RegisterBrokerRecord.BrokerFeature:
    low, high = levels
    return RegisterBrokerRecord.BrokerFeature(name=name, min_supported_version=low, max_supported_version=high)


def register_controller(
    image: Image,
    controller_id: int,
    incarnation: bytes,
    endpoints: Iterable[Endpoint],
    features: Mapping[str, FeatureRange] = SERVED,
) -> Decision[None]:
    known = image.controllers.get(controller_id)
    if image.metadata_version < CONTROLLER_REGISTRATION or (known is not None and known.incarnation == incarnation):
        return Decision([], None)  # asked again by one that has not read its own record yet
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
            for name, (low, high) in features.items()
        ],
    )
    return Decision([(record, 0)], None)


def unfence(image: Image, broker_id: int, rules: Rules, cordoned: Sequence[bytes] = ()) -> Decision[None]:
    """The broker of this node has caught up. What it has cordoned others say in a heartbeat."""
    records = cordon(image, _registered(image, broker_id), cordoned)
    return Decision([*records, *unfence_only(image, broker_id, rules).records], None)


def unfence_only(image: Image, broker_id: int, rules: Rules) -> Decision[None]:
    """The broker has caught up: it may lead, and partitions without a leader may choose it."""
    record = _changed(_registered(image, broker_id), fenced=UNFENCE)
    return Decision([record, *changes_for_broker(image, rules, back=broker_id)], None)


def cordon(image: Image, broker: Broker, directories: Sequence[bytes]) -> list[Versioned]:
    """The directories of a broker that take no new replicas (KIP-1066), where that is news."""
    known = broker.cordoned is not None and set(broker.cordoned) == set(directories)
    if known or image.metadata_version < CORDONED_DIRECTORIES:
        return []
    return [_changed(broker, cordoned_log_dirs=list(directories))]


def cordon_own(image: Image, broker_id: int, directories: Sequence[bytes]) -> Decision[None]:
    """The broker of this node has cordoned these, and no others."""
    return Decision(cordon(image, _registered(image, broker_id), directories), None)


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
    changes = changes_for_broker(image, rules, gone=broker_id, for_good=True)
    record = UnregisterBrokerRecord(broker_id=broker_id, broker_epoch=broker.epoch)
    return Decision([*changes, (record, 0)], None)


def check_epoch(image: Image, broker_id: int, epoch: int) -> Broker:
    """The broker, if it is this very process that asks."""
    broker = image.broker(broker_id)
    if broker is None:
        raise KafkaError(Error.STALE_BROKER_EPOCH, f"No broker registration found for broker id {broker_id}")
    if broker.epoch != epoch:
        raise KafkaError(
            Error.STALE_BROKER_EPOCH, f"Expected broker epoch {broker.epoch}, but got broker epoch {epoch}"
        )
    return broker


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
