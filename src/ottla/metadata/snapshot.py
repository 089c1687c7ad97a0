"""A picture written out as records, from which the same picture can be replayed.

The order is Apache Kafka's: features first, because they say how to read the rest, then brokers, topics, settings and
everything else. Inside each kind the order is that of names and ids, so equal pictures make equal bytes.
"""

from __future__ import annotations

from collections.abc import Iterator

from ottla.metadata.decisions import Versioned
from ottla.metadata.features import METADATA_VERSION, partition_version, register_broker_version
from ottla.metadata.image import Broker, Controller, Credential, Image, Partition, QuotaEntity
from ottla.metadata.records import (
    ClientQuotaRecord,
    ConfigRecord,
    FeatureLevelRecord,
    PartitionRecord,
    ProducerIdsRecord,
    RegisterBrokerRecord,
    RegisterControllerRecord,
    TopicRecord,
    UserScramCredentialRecord,
)


def records_of(image: Image) -> Iterator[Versioned]:
    assert not image.in_transaction, "a picture inside a transaction is no picture"
    yield from _features(image)
    for broker_id in sorted(image.brokers):
        yield _broker(image.brokers[broker_id]), register_broker_version(image.metadata_version)
    for controller_id in sorted(image.controllers):
        yield _controller(image.controllers[controller_id]), 0
    yield from _topics(image)
    yield from _settings(image)
    yield from _quotas(image)
    if image.next_producer_id:
        yield ProducerIdsRecord(broker_id=-1, broker_epoch=-1, next_producer_id=image.next_producer_id), 0
    for key in sorted(image.kept, key=repr):
        yield image.kept[key], 0
    yield from _credentials(image)


def _features(image: Image) -> Iterator[Versioned]:
    for name in sorted(image.features, key=lambda name: (name != METADATA_VERSION, name)):
        yield FeatureLevelRecord(name=name, feature_level=image.features[name]), 0


def _broker(broker: Broker) -> RegisterBrokerRecord:
    kind = RegisterBrokerRecord
    return kind(
        broker_id=broker.id,
        incarnation_id=broker.incarnation,
        broker_epoch=broker.epoch,
        end_points=[
            kind.BrokerEndpoint(name=name, host=host, port=port, security_protocol=protocol)
            for name, host, port, protocol in broker.endpoints.values()
        ],
        features=[
            kind.BrokerFeature(name=name, min_supported_version=low, max_supported_version=high)
            for name, (low, high) in broker.features.items()
        ],
        rack=broker.rack,
        fenced=broker.fenced,
        in_controlled_shutdown=broker.in_controlled_shutdown,
        log_dirs=list(broker.directories),
        cordoned_log_dirs=None if broker.cordoned is None else list(broker.cordoned),
    )


def _controller(controller: Controller) -> RegisterControllerRecord:
    kind = RegisterControllerRecord
    return kind(
        controller_id=controller.id,
        incarnation_id=controller.incarnation,
        end_points=[
            kind.ControllerEndpoint(name=name, host=host, port=port, security_protocol=protocol)
            for name, host, port, protocol in controller.endpoints.values()
        ],
        features=[
            kind.ControllerFeature(name=name, min_supported_version=low, max_supported_version=high)
            for name, (low, high) in controller.features.items()
        ],
    )


def _topics(image: Image) -> Iterator[Versioned]:
    version = partition_version(image.metadata_version)
    for name in sorted(image.topic_ids):
        topic = image.topics[image.topic_ids[name]]
        yield TopicRecord(name=name, topic_id=topic.id), 0
        for index in sorted(topic.partitions):
            yield partition_record(topic.id, index, topic.partitions[index]), version


def partition_record(topic_id: bytes, index: int, partition: Partition) -> PartitionRecord:
    """One partition, whole."""
    return PartitionRecord(
        partition_id=index,
        topic_id=topic_id,
        replicas=list(partition.replicas),
        isr=list(partition.isr),
        removing_replicas=list(partition.removing),
        adding_replicas=list(partition.adding),
        leader=partition.leader,
        leader_recovery_state=int(partition.recovering),
        leader_epoch=partition.leader_epoch,
        partition_epoch=partition.partition_epoch,
        directories=list(partition.directories),
        eligible_leader_replicas=list(partition.elr) or None,
        last_known_elr=list(partition.last_known_elr) or None,
    )


def _settings(image: Image) -> Iterator[Versioned]:
    for kind, name in sorted(image.settings):
        values = image.settings[kind, name]
        for key in sorted(values):
            yield ConfigRecord(resource_type=kind, resource_name=name, name=key, value=values[key]), 0


def _quotas(image: Image) -> Iterator[Versioned]:
    for entity in sorted(image.quotas, key=repr):
        limits = image.quotas[entity]
        for key in sorted(limits):
            yield quota_record(entity, key, limits[key]), 0


def quota_record(entity: QuotaEntity, key: str, value: float | None) -> ClientQuotaRecord:
    """One limit is so much, or, with None, is gone."""
    named = [ClientQuotaRecord.EntityData(entity_type=kind, entity_name=name) for kind, name in entity]
    return ClientQuotaRecord(entity=named, key=key, value=value or 0.0, remove=value is None)


def _credentials(image: Image) -> Iterator[Versioned]:
    for name, mechanism in sorted(image.credentials):
        yield credential_record(name, mechanism, image.credentials[name, mechanism]), 0


def credential_record(name: str, mechanism: int, held: Credential) -> UserScramCredentialRecord:
    salt, stored_key, server_key, iterations = held
    return UserScramCredentialRecord(
        name=name,
        mechanism=mechanism,
        salt=salt,
        stored_key=stored_key,
        server_key=server_key,
        iterations=iterations,
    )
