"""A picture of the cluster: what the metadata log says when it is replayed up to one offset.

Pictures are frozen; the next one is made by replaying a batch of records (`replay.py`), which also tells what changed, the
delta. Topics and settings are kept in maps that share all they can with their predecessor (`frozen.py`); a topic's
partitions are a plain dict; brokers, controllers and features are few.

Inside a metadata transaction (KIP-868) a picture only collects records and is otherwise as it was before:
`in_transaction` says so, and nobody publishes such a picture.

Records of kinds that nothing serves yet (access rules, tokens) are kept as they are, by key, so that a snapshot we write
loses none of them.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import NamedTuple

from ottla.metadata.features import ELIGIBLE_LEADER_REPLICAS, level
from ottla.metadata.frozen import FrozenMap
from ottla.raft.quorum import KRAFT_VERSION
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

    def placed(self, broker_id: int, directory: bytes) -> Partition:
        """The same, with this broker's replica somewhere else."""
        return self._replace(
            directories=tuple(
                directory if replica == broker_id else self.directory_of(replica) for replica in self.replicas
            )
        )


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
    """What one batch changed. `partitions` holds every new or changed one, also those of `created` topics.

    What is only ever looked up when somebody asks (credentials, records that are kept as they are) is not told here."""

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
        delta.features.update((name, 0) for name in old.features if name not in new.features)
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


def unify(name: str) -> str:
    """Names that are equal after this share their metric names."""
    return name.replace(".", "_")


def quota_entity(named: Iterable[tuple[str, str | None]]) -> QuotaEntity:
    """The same entity however its types are ordered; of a type that is named twice the last name counts."""
    return tuple(sorted(dict(named).items()))
