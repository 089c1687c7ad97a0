"""A picture of the cluster: what the metadata log says when it is replayed up to one offset.

Pictures are frozen. `Image.replay` takes a batch of records and gives the next picture together with what changed, the
delta. Memory about the cluster changes in no other way: whoever wants a change decides on records, and the records are
replayed here, by the node that wrote them and by every node that reads them.

A batch costs what it changes. Topics and settings are kept in maps that share all they can with their predecessor
(`frozen.py`); a topic's partitions are a plain dict, copied once for each batch that touches the topic; brokers,
controllers and features are few, and are copied when touched. While a batch is replayed the touched parts live in a
draft, so a snapshot of a million records makes one picture, not a million.

Inside a metadata transaction (KIP-868) a picture only collects records and is otherwise as it was before:
`in_transaction` says so, and nobody publishes such a picture. The end of the transaction replays all of it at once.

Records of kinds that nothing serves yet (access rules, tokens) are kept as they are, by key, so that a snapshot we write
loses none of them.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field, replace
from typing import Any, NamedTuple, TypeVar

from ottla.metadata import records as r
from ottla.metadata.features import ELIGIBLE_LEADER_REPLICAS, KRAFT_VERSION, level
from ottla.metadata.frozen import FrozenMap
from ottla.wire.schema import Message

# Kinds of resources that have settings, as in ConfigRecord and in the requests about settings.
TOPIC = 2
BROKER = 4
BROKER_LOGGER = 8
CLIENT_METRICS = 16
GROUP = 32

# Where a replica lies when no directory is named (KIP-858). The first hundred ids are reserved for such meanings.
DIRECTORY_MIGRATING = bytes(16)
DIRECTORY_UNASSIGNED = bytes(15) + b"\x01"
DIRECTORY_LOST = bytes(15) + b"\x02"

K = TypeVar("K")
V = TypeVar("V")
Resource = tuple[int, str]
FeatureRange = tuple[int, int]
# Whom a limit is for: pairs of a type (user, client-id, ip) and a name, in the order of types; None is the default.
QuotaEntity = tuple[tuple[str, str | None], ...]


class Partition(NamedTuple):
    """One partition: who holds it, who leads it, and in which epoch."""

    replicas: tuple[int, ...]
    isr: tuple[int, ...]
    leader: int
    leader_epoch: int = 0
    partition_epoch: int = 0
    directories: tuple[bytes, ...] = ()
    removing: tuple[int, ...] = ()
    adding: tuple[int, ...] = ()
    elr: tuple[int, ...] = ()
    last_known_elr: tuple[int, ...] = ()
    recovering: bool = False

    def directory_of(self, broker_id: int) -> bytes:
        """The directory that holds this broker's replica, or one of the reserved meanings."""
        if broker_id not in self.replicas or len(self.directories) != len(self.replicas):
            return DIRECTORY_UNASSIGNED
        return self.directories[self.replicas.index(broker_id)]


class Topic(NamedTuple):
    id: bytes
    name: str
    partitions: Mapping[int, Partition]


class Endpoint(NamedTuple):
    name: str
    host: str
    port: int
    security_protocol: int


class Broker(NamedTuple):
    id: int
    epoch: int
    incarnation: bytes
    endpoints: Mapping[str, Endpoint]
    features: Mapping[str, FeatureRange]
    rack: str | None
    fenced: bool
    in_controlled_shutdown: bool
    directories: tuple[bytes, ...]
    cordoned: tuple[bytes, ...] | None = None

    @property
    def active(self) -> bool:
        """May lead, and may count as in sync. Where new replicas may go is said in `placement`: to fenced ones too."""
        return not self.fenced and not self.in_controlled_shutdown

    def has_online(self, directory: bytes) -> bool:
        """Whether a replica in this directory can be served; a replica without a place yet can."""
        if directory in (DIRECTORY_UNASSIGNED, DIRECTORY_MIGRATING):
            return True
        return directory != DIRECTORY_LOST and (not self.directories or directory in self.directories)

    @property
    def default_directory(self) -> bytes:
        """Where a new replica goes. Only a broker with one directory that is not cordoned need not be asked."""
        if not self.directories:
            return DIRECTORY_MIGRATING
        open_ones = [directory for directory in self.directories if directory not in (self.cordoned or ())]
        return open_ones[0] if len(open_ones) == 1 else DIRECTORY_UNASSIGNED


class Controller(NamedTuple):
    id: int
    incarnation: bytes
    endpoints: Mapping[str, Endpoint]
    features: Mapping[str, FeatureRange]


class Credential(NamedTuple):
    """What is kept of one user's password for one mechanism; nobody can log in with it."""

    salt: bytes
    stored_key: bytes
    server_key: bytes
    iterations: int


@dataclass(slots=True)
class Delta:
    """What one batch changed. `partitions` holds every new or changed one, also those of `created` topics."""

    created: dict[bytes, Topic] = field(default_factory=dict)
    deleted: dict[bytes, Topic] = field(default_factory=dict)
    partitions: dict[tuple[bytes, int], Partition] = field(default_factory=dict)
    configs: dict[Resource, dict[str, str | None]] = field(default_factory=dict)
    brokers: dict[int, Broker | None] = field(default_factory=dict)
    controllers: dict[int, Controller] = field(default_factory=dict)
    features: dict[str, int] = field(default_factory=dict)
    quotas: dict[QuotaEntity, dict[str, float | None]] = field(default_factory=dict)
    _names: frozenset[str] | None = field(default=None, init=False, compare=False)

    @classmethod
    def everything(cls, image: Image) -> Delta:
        """The delta from nothing to `image`: what whoever follows pictures is told first."""
        topics = dict(image.topics.items())
        return cls(
            created=topics,
            partitions={(t.id, index): p for t in topics.values() for index, p in t.partitions.items()},
            configs={resource: {**values} for resource, values in image.settings.items()},
            brokers={**image.brokers},
            controllers={**image.controllers},
            features={**image.features},
            quotas={entity: {**limits} for entity, limits in image.quotas.items()},
        )

    @classmethod
    def between(cls, old: Image, new: Image) -> Delta:
        """From one picture to a later one, when nobody knows what happened in between."""
        delta = cls.everything(new)
        delta.created = {key: topic for key, topic in delta.created.items() if key not in old.topics}
        delta.deleted = {key: topic for key, topic in old.topics.items() if key not in new.topics}
        for resource, values in old.settings.items():
            gone = {name: None for name in values if name not in new.settings.get(resource, {})}
            delta.configs.setdefault(resource, {}).update(gone)
        for entity, limits in old.quotas.items():
            lifted = {name: None for name in limits if name not in new.quotas.get(entity, {})}
            delta.quotas.setdefault(entity, {}).update(lifted)
        delta.brokers.update((broker_id, None) for broker_id in old.brokers if broker_id not in new.brokers)
        return delta

    def names(self, image: Image) -> frozenset[str]:
        """Of the topics that came, went or changed until this picture. They may be thousands, and many ask."""
        if self._names is None:
            changed = (image.topics.get(topic_id) for topic_id in {topic_id for topic_id, _ in self.partitions})
            topics = [*self.created.values(), *self.deleted.values(), *changed]
            self._names = frozenset(topic.name for topic in topics if topic is not None)
        return self._names


@dataclass(frozen=True, slots=True)
class Image:
    """The cluster as of `offset` (inclusive; -1 before the first record), written in `epoch`."""

    offset: int = -1
    epoch: int = 0
    cluster_id: str = ""
    controller_id: int = -1
    kraft_version: int = 0
    features: Mapping[str, int] = field(default_factory=dict)
    brokers: Mapping[int, Broker] = field(default_factory=dict)
    controllers: Mapping[int, Controller] = field(default_factory=dict)
    topics: FrozenMap[bytes, Topic] = field(default_factory=FrozenMap)
    topic_ids: FrozenMap[str, bytes] = field(default_factory=FrozenMap)
    # Names with `.` or `_`, under the name with `_` for both: they would share metric names, so only one may exist.
    alike: FrozenMap[str, tuple[str, ...]] = field(default_factory=FrozenMap)
    settings: FrozenMap[Resource, Mapping[str, str]] = field(default_factory=FrozenMap)
    quotas: FrozenMap[QuotaEntity, Mapping[str, float]] = field(default_factory=FrozenMap)
    # By user and mechanism.
    credentials: FrozenMap[tuple[str, int], Credential] = field(default_factory=FrozenMap)
    next_producer_id: int = 0
    kept: FrozenMap[tuple[object, ...], Message] = field(default_factory=FrozenMap)
    transaction: tuple[Message, ...] | None = None

    @property
    def metadata_version(self) -> int:
        return level(self.features)

    @property
    def elr_enabled(self) -> bool:
        return self.features.get(ELIGIBLE_LEADER_REPLICAS, 0) >= 1

    @property
    def in_transaction(self) -> bool:
        return self.transaction is not None

    @property
    def finalised(self) -> dict[str, int]:
        """All finalised features. kraft.version is one of them, though it lives in the quorum's control records."""
        raft = {KRAFT_VERSION: self.kraft_version} if self.kraft_version else {}
        return {**self.features, **raft}

    def topic(self, name: str) -> Topic | None:
        topic_id = self.topic_ids.get(name)
        return None if topic_id is None else self.topics[topic_id]

    def topic_by_id(self, topic_id: bytes) -> Topic | None:
        return self.topics.get(topic_id)

    def broker(self, broker_id: int) -> Broker | None:
        return self.brokers.get(broker_id)

    def configs(self, resource_type: int, name: str) -> Mapping[str, str]:
        """What was set on this very resource; defaults are not among it."""
        return self.settings.get((resource_type, name), {})

    def replay(self, batch: Iterable[Message], offset: int, epoch: int) -> tuple[Image, Delta]:
        """The picture after a batch whose last record is at `offset`."""
        draft = Draft(self)
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


def unify(name: str) -> str:
    """Names that are equal after this share their metric names."""
    return name.replace(".", "_")


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


def quota_entity(named: Iterable[tuple[str, str | None]]) -> QuotaEntity:
    """The same entity however its types are ordered; of a type that is named twice the last name counts."""
    return tuple(sorted(dict(named).items()))


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
