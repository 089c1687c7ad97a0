"""Replay: a batch of metadata records becomes the next picture, together with what changed, the delta.

Memory about the cluster changes in no other way: whoever wants a change decides on records, and the records are replayed
here, by the node that wrote them and by every node that reads them.

A batch costs what it changes. While it is replayed, the touched parts live in a draft, so a snapshot of a million records
makes one picture, not a million: maps that share all they can with their predecessor are changed once at the end, a topic's
partitions are copied once for each batch that touches the topic, and the few brokers, controllers and features when touched.

The records of a metadata transaction (KIP-868) are only collected; its end replays all of them at once.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import replace
from typing import Any, TypeVar

from ottla.metadata import records as r
from ottla.metadata.image import (
    DIRECTORY_MIGRATING,
    TOPIC,
    Broker,
    Controller,
    Credential,
    Delta,
    Endpoint,
    FeatureRange,
    Image,
    Partition,
    QuotaEntity,
    Resource,
    Topic,
    quota_entity,
    unify,
)
from ottla.wire.schema import Message

K = TypeVar("K")
V = TypeVar("V")


def replay(image: Image, batch: Iterable[Message], offset: int, epoch: int) -> tuple[Image, Delta]:
    """The picture after a batch whose last record is at `offset`."""
    draft = Draft(image)
    for record in batch:
        draft.replay(record)
    return draft.finish(offset, epoch)


class Draft:
    """The next picture while a batch is replayed: only what the batch touches."""

    def __init__(self, base: Image) -> None:
        self.base = base
        self.delta = Delta()
        self.topics: dict[bytes, Topic | None] = {}
        self.partitions: dict[bytes, dict[int, Partition]] = {}
        self.topic_ids: dict[str, bytes | None] = {}
        self.alike: dict[str, tuple[str, ...] | None] = {}
        self.settings: dict[Resource, dict[str, str] | None] = {}
        self.quotas: dict[QuotaEntity, dict[str, float]] = {}
        self.credentials: dict[tuple[str, int], Credential | None] = {}
        self.kept: dict[tuple[object, ...], Message | None] = {}
        self.next_producer_id = base.next_producer_id
        self.transaction: list[Message] | None = None if base.transaction is None else list(base.transaction)

    def replay(self, record: Message) -> None:
        kind = type(record)
        if kind is r.BeginTransactionRecord:
            self.transaction = []
        elif kind is r.AbortTransactionRecord:
            self.transaction = None
        elif kind is r.EndTransactionRecord:
            whole, self.transaction = self.transaction or [], None
            for held in whole:
                self._replay_now(held)
        elif self.transaction is not None:
            self.transaction.append(record)
        else:
            self._replay_now(record)

    def _replay_now(self, record: Message) -> None:
        REPLAY[type(record)](self, record)

    def finish(self, offset: int, epoch: int) -> tuple[Image, Delta]:
        base, delta = self.base, self.delta
        self._seal_topics()
        image = replace(
            base,
            offset=offset,
            epoch=epoch,
            features=_merged(base.features, delta.features),
            brokers=_merged(base.brokers, delta.brokers),
            controllers=_merged(base.controllers, delta.controllers),
            topics=base.topics.changed(self.topics),
            topic_ids=base.topic_ids.changed(self.topic_ids),
            alike=base.alike.changed(self.alike),
            settings=base.settings.changed({key: values or None for key, values in self.settings.items()}),
            quotas=base.quotas.changed({entity: limits or None for entity, limits in self.quotas.items()}),
            credentials=base.credentials.changed(self.credentials),
            next_producer_id=self.next_producer_id,
            kept=base.kept.changed(self.kept),
            transaction=None if self.transaction is None else tuple(self.transaction),
        )
        return image, delta

    def _seal_topics(self) -> None:
        """Created topics enter the delta as they are at the end of the batch."""
        for topic_id in self.delta.created:
            topic = self.topics[topic_id]
            assert topic is not None
            self.delta.created[topic_id] = topic

    def topic(self, topic_id: bytes) -> Topic:
        found = self.topics[topic_id] if topic_id in self.topics else self.base.topics.get(topic_id)
        if found is None:
            raise ValueError(f"metadata names topic id {topic_id.hex()}, which does not exist")
        return found

    def own_partitions(self, topic_id: bytes) -> dict[int, Partition]:
        """The partitions of a topic, as a dict that belongs to this draft."""
        if topic_id not in self.partitions:
            topic = self.topic(topic_id)
            self.partitions[topic_id] = own = dict(topic.partitions)
            self.topics[topic_id] = topic._replace(partitions=own)
        return self.partitions[topic_id]

    def put_partition(self, topic_id: bytes, index: int, partition: Partition) -> None:
        self.own_partitions(topic_id)[index] = partition
        self.delta.partitions[topic_id, index] = partition

    def own_settings(self, resource: Resource) -> dict[str, str]:
        if self.settings.get(resource) is None:
            deleted = resource in self.settings
            self.settings[resource] = {} if deleted else dict(self.base.settings.get(resource, {}))
        own = self.settings[resource]
        assert own is not None
        return own

    def broker(self, broker_id: int) -> Broker:
        found = self.delta.brokers.get(broker_id) or self.base.brokers.get(broker_id)
        if found is None:
            raise ValueError(f"metadata names broker {broker_id}, which is not registered")
        return found

    def names_alike(self, normal: str) -> tuple[str, ...]:
        if normal in self.alike:
            return self.alike[normal] or ()
        return self.base.alike.get(normal, ())


def _merged(old: Mapping[K, V], new: Mapping[K, V | None]) -> Mapping[K, V]:
    """A small map with changes made: None, and level 0 of a feature, take an entry away."""
    if not new:
        return old
    return {key: value for key, value in {**old, **new}.items() if value}


def _register_broker(draft: Draft, record: r.RegisterBrokerRecord) -> None:
    draft.delta.brokers[record.broker_id] = Broker(
        id=record.broker_id,
        epoch=record.broker_epoch,
        incarnation=record.incarnation_id,
        endpoints=_endpoints(record.end_points),
        features=_ranges(record.features),
        rack=record.rack,
        fenced=record.fenced,
        in_controlled_shutdown=record.in_controlled_shutdown,
        directories=tuple(record.log_dirs),
        cordoned=None if record.cordoned_log_dirs is None else tuple(record.cordoned_log_dirs),
    )


def _endpoints(
    listed: Iterable[r.RegisterBrokerRecord.BrokerEndpoint] | Iterable[r.RegisterControllerRecord.ControllerEndpoint],
) -> dict[str, Endpoint]:
    return {e.name: Endpoint(e.name, e.host, e.port, e.security_protocol) for e in listed}


def _ranges(
    listed: Iterable[r.RegisterBrokerRecord.BrokerFeature] | Iterable[r.RegisterControllerRecord.ControllerFeature],
) -> dict[str, FeatureRange]:
    return {f.name: (f.min_supported_version, f.max_supported_version) for f in listed}


def _unregister_broker(draft: Draft, record: r.UnregisterBrokerRecord) -> None:
    draft.delta.brokers[record.broker_id] = None


def _register_controller(draft: Draft, record: r.RegisterControllerRecord) -> None:
    draft.delta.controllers[record.controller_id] = Controller(
        record.controller_id, record.incarnation_id, _endpoints(record.end_points), _ranges(record.features)
    )


def _fence_broker(draft: Draft, record: r.FenceBrokerRecord) -> None:
    draft.delta.brokers[record.id] = draft.broker(record.id)._replace(fenced=True)


def _unfence_broker(draft: Draft, record: r.UnfenceBrokerRecord) -> None:
    draft.delta.brokers[record.id] = draft.broker(record.id)._replace(fenced=False)


def _change_broker(draft: Draft, record: r.BrokerRegistrationChangeRecord) -> None:
    broker = draft.broker(record.broker_id)
    if record.fenced:
        broker = broker._replace(fenced=record.fenced == 1)
    if record.in_controlled_shutdown:
        broker = broker._replace(in_controlled_shutdown=True)
    if record.log_dirs:
        broker = broker._replace(directories=tuple(record.log_dirs))
    if record.cordoned_log_dirs is not None:
        broker = broker._replace(cordoned=tuple(record.cordoned_log_dirs))
    draft.delta.brokers[record.broker_id] = broker


def _topic(draft: Draft, record: r.TopicRecord) -> None:
    own = draft.partitions[record.topic_id] = dict[int, Partition]()
    draft.topics[record.topic_id] = draft.delta.created[record.topic_id] = Topic(record.topic_id, record.name, own)
    draft.topic_ids[record.name] = record.topic_id
    if "." in record.name or "_" in record.name:
        normal = unify(record.name)
        draft.alike[normal] = (*draft.names_alike(normal), record.name)


def _remove_topic(draft: Draft, record: r.RemoveTopicRecord) -> None:
    topic = draft.topic(record.topic_id)
    for index in topic.partitions:
        draft.delta.partitions.pop((topic.id, index), None)
    if draft.delta.created.pop(topic.id, None) is None:
        draft.delta.deleted[topic.id] = draft.base.topics[topic.id]
    draft.topics[topic.id] = draft.topic_ids[topic.name] = None
    draft.partitions.pop(topic.id, None)
    _forget_settings(draft, (TOPIC, topic.name))
    if "." in topic.name or "_" in topic.name:
        normal = unify(topic.name)
        draft.alike[normal] = tuple(name for name in draft.names_alike(normal) if name != topic.name) or None


def _forget_settings(draft: Draft, resource: Resource) -> None:
    for name in list(draft.own_settings(resource)):
        draft.delta.configs.setdefault(resource, {})[name] = None
    draft.settings[resource] = None


def _partition(draft: Draft, record: r.PartitionRecord) -> None:
    partition = Partition(
        replicas=tuple(record.replicas),
        isr=tuple(record.isr),
        leader=record.leader,
        leader_epoch=record.leader_epoch,
        partition_epoch=record.partition_epoch,
        directories=tuple(record.directories) or (DIRECTORY_MIGRATING,) * len(record.replicas),
        removing=tuple(record.removing_replicas),
        adding=tuple(record.adding_replicas),
        elr=tuple(record.eligible_leader_replicas or ()),
        last_known_elr=tuple(record.last_known_elr or ()),
        recovering=record.leader_recovery_state == 1,
    )
    draft.put_partition(record.topic_id, record.partition_id, partition)


def _change_partition(draft: Draft, record: r.PartitionChangeRecord) -> None:
    old = draft.topic(record.topic_id).partitions.get(record.partition_id)
    if old is None:
        raise ValueError(f"metadata changes partition {record.partition_id} of {record.topic_id.hex()}, unknown so far")
    draft.put_partition(record.topic_id, record.partition_id, merged(old, record))


def merged(old: Partition, change: r.PartitionChangeRecord) -> Partition:
    """The partition after a change. Naming a leader, even the same one, begins a new leader epoch."""
    led = change.leader != r.LEADER_UNCHANGED
    return Partition(
        replicas=_changed(change.replicas, old.replicas),
        isr=_changed(change.isr, old.isr),
        leader=change.leader if led else old.leader,
        leader_epoch=old.leader_epoch + led,
        partition_epoch=old.partition_epoch + 1,
        directories=old.directories if change.directories is None else tuple(change.directories),
        removing=_changed(change.removing_replicas, old.removing),
        adding=_changed(change.adding_replicas, old.adding),
        elr=_changed(change.eligible_leader_replicas, old.elr),
        last_known_elr=_changed(change.last_known_elr, old.last_known_elr),
        recovering=old.recovering if change.leader_recovery_state == -1 else change.leader_recovery_state == 1,
    )


def _changed(new: list[int] | None, old: tuple[int, ...]) -> tuple[int, ...]:
    return old if new is None else tuple(new)


def _clear_elr(draft: Draft, record: r.ClearElrRecord) -> None:
    """Of one topic, or of all when no name is given."""
    if record.topic_name:
        topic_id = draft.topic_ids.get(record.topic_name) or draft.base.topic_ids[record.topic_name]
        _clear_elr_of(draft, draft.topic(topic_id))
        return
    for topic in [*draft.base.topics.values(), *draft.delta.created.values()]:
        if draft.topics.get(topic.id, topic) is not None:
            _clear_elr_of(draft, draft.topic(topic.id))


def _clear_elr_of(draft: Draft, topic: Topic) -> None:
    for index, partition in list(topic.partitions.items()):
        if partition.elr or partition.last_known_elr:
            cleared = r.PartitionChangeRecord(eligible_leader_replicas=[], last_known_elr=[])
            draft.put_partition(topic.id, index, merged(partition, cleared))


def _config(draft: Draft, record: r.ConfigRecord) -> None:
    resource = (record.resource_type, record.resource_name)
    own = draft.own_settings(resource)
    draft.delta.configs.setdefault(resource, {})[record.name] = record.value
    if record.value is None:
        own.pop(record.name, None)
    else:
        own[record.name] = record.value


def _feature_level(draft: Draft, record: r.FeatureLevelRecord) -> None:
    draft.delta.features[record.name] = record.feature_level


def _producer_ids(draft: Draft, record: r.ProducerIdsRecord) -> None:
    draft.next_producer_id = record.next_producer_id


def _quota(draft: Draft, record: r.ClientQuotaRecord) -> None:
    entity = quota_entity((each.entity_type, each.entity_name) for each in record.entity)
    own = draft.quotas.setdefault(entity, dict(draft.base.quotas.get(entity, {})))
    draft.delta.quotas.setdefault(entity, {})[record.key] = None if record.remove else record.value
    if record.remove:
        own.pop(record.key, None)
    else:
        own[record.key] = record.value


def _keep_access_rule(draft: Draft, record: r.AccessControlEntryRecord) -> None:
    draft.kept["access rule", record.id] = record


def _drop_access_rule(draft: Draft, record: r.RemoveAccessControlEntryRecord) -> None:
    draft.kept["access rule", record.id] = None


def _credential(draft: Draft, record: r.UserScramCredentialRecord) -> None:
    held = Credential(record.salt, record.stored_key, record.server_key, record.iterations)
    draft.credentials[record.name, record.mechanism] = held


def _remove_credential(draft: Draft, record: r.RemoveUserScramCredentialRecord) -> None:
    draft.credentials[record.name, record.mechanism] = None


def _keep_token(draft: Draft, record: r.DelegationTokenRecord) -> None:
    draft.kept["token", record.token_id] = record


def _drop_token(draft: Draft, record: r.RemoveDelegationTokenRecord) -> None:
    draft.kept["token", record.token_id] = None


def _nothing(draft: Draft, record: Message) -> None:
    """Records that mean nothing to a picture: proofs of life, and traces of ZooKeeper."""


REPLAY: dict[type[Message], Callable[[Draft, Any], None]] = {
    r.RegisterBrokerRecord: _register_broker,
    r.UnregisterBrokerRecord: _unregister_broker,
    r.RegisterControllerRecord: _register_controller,
    r.FenceBrokerRecord: _fence_broker,
    r.UnfenceBrokerRecord: _unfence_broker,
    r.BrokerRegistrationChangeRecord: _change_broker,
    r.TopicRecord: _topic,
    r.RemoveTopicRecord: _remove_topic,
    r.PartitionRecord: _partition,
    r.PartitionChangeRecord: _change_partition,
    r.ClearElrRecord: _clear_elr,
    r.ConfigRecord: _config,
    r.FeatureLevelRecord: _feature_level,
    r.ProducerIdsRecord: _producer_ids,
    r.ClientQuotaRecord: _quota,
    r.AccessControlEntryRecord: _keep_access_rule,
    r.RemoveAccessControlEntryRecord: _drop_access_rule,
    r.UserScramCredentialRecord: _credential,
    r.RemoveUserScramCredentialRecord: _remove_credential,
    r.DelegationTokenRecord: _keep_token,
    r.RemoveDelegationTokenRecord: _drop_token,
    r.NoOpRecord: _nothing,
    r.ZkMigrationStateRecord: _nothing,
}
