"""The records of the metadata log, in Apache Kafka's own layouts, so that its tools and its brokers can read them.

Every change to the cluster is one or more of these, appended to `__cluster_metadata-0`. A record's value is a frame
version (always 1), the record's key and its version as unsigned varints, and then the body. Which version is written
follows from the finalised metadata.version (`features.py`); every version can be read.
"""

from ottla.wire.codec import decode, encode
from ottla.wire.schema import (
    Message,
    Struct,
    boolean,
    byte_string,
    float64,
    int8,
    int16,
    int32,
    int64,
    string,
    uint16,
    uuid,
    v,
)

FRAME_VERSION = 1
NO_LEADER = -1
LEADER_UNCHANGED = -2


class RegisterBrokerRecord(Message, key=0, versions="0-4", flexible="0+"):
    """A broker's process introduced itself; it stays fenced until it has caught up."""

    class BrokerEndpoint(Struct):
        name: string = v("0+")
        host: string = v("0+")
        port: uint16 = v("0+")
        security_protocol: int16 = v("0+")

    class BrokerFeature(Struct):
        name: string = v("0+")
        min_supported_version: int16 = v("0+")
        max_supported_version: int16 = v("0+")

    broker_id: int32 = v("0+")
    is_migrating_zk_broker: boolean = v("2+", False)
    incarnation_id: uuid = v("0+")
    broker_epoch: int64 = v("0+")
    end_points: list[BrokerEndpoint] = v("0+")
    features: list[BrokerFeature] = v("0+")
    rack: string | None = v("0+", nullable="0+")
    fenced: boolean = v("0+", True)
    in_controlled_shutdown: boolean = v("1+", False)
    log_dirs: list[uuid] = v("3+", tag=0)
    cordoned_log_dirs: list[uuid] | None = v("4+", None, nullable="4+", tag=1)


class UnregisterBrokerRecord(Message, key=1, versions="0", flexible="0+"):
    """A broker was taken out of the cluster for good."""

    broker_id: int32 = v("0+")
    broker_epoch: int64 = v("0+")


class TopicRecord(Message, key=2, versions="0", flexible="0+"):
    """A topic exists from here on; its PartitionRecords follow."""

    name: string = v("0+")
    topic_id: uuid = v("0+")


class PartitionRecord(Message, key=3, versions="0-2", flexible="0+"):
    """One partition of a topic, whole: at its creation and in every snapshot."""

    partition_id: int32 = v("0+", -1)
    topic_id: uuid = v("0+")
    replicas: list[int32] = v("0+")
    isr: list[int32] = v("0+")
    removing_replicas: list[int32] = v("0+")
    adding_replicas: list[int32] = v("0+")
    leader: int32 = v("0+", -1)
    leader_recovery_state: int8 = v("0+", 0, tag=0)
    leader_epoch: int32 = v("0+", -1)
    partition_epoch: int32 = v("0+", -1)
    directories: list[uuid] = v("1+")
    eligible_leader_replicas: list[int32] | None = v("2+", None, nullable="2+", tag=1)
    last_known_elr: list[int32] | None = v("2+", None, nullable="2+", tag=2)


class ConfigRecord(Message, key=4, versions="0", flexible="0+"):
    """One setting of one resource; a null value takes it away."""

    resource_type: int8 = v("0+")
    resource_name: string = v("0+")
    name: string = v("0+")
    value: string | None = v("0+", nullable="0+")


class PartitionChangeRecord(Message, key=5, versions="0-2", flexible="0+"):
    """What changed in one partition. A field left at its default did not change."""

    partition_id: int32 = v("0+", -1)
    topic_id: uuid = v("0+")
    isr: list[int32] | None = v("0+", None, nullable="0+", tag=0)
    leader: int32 = v("0+", -2, tag=1)
    replicas: list[int32] | None = v("0+", None, nullable="0+", tag=2)
    removing_replicas: list[int32] | None = v("0+", None, nullable="0+", tag=3)
    adding_replicas: list[int32] | None = v("0+", None, nullable="0+", tag=4)
    leader_recovery_state: int8 = v("0+", -1, tag=5)
    directories: list[uuid] | None = v("1+", None, nullable="1+", tag=8)
    eligible_leader_replicas: list[int32] | None = v("2+", None, nullable="2+", tag=6)
    last_known_elr: list[int32] | None = v("2+", None, nullable="2+", tag=7)


class FenceBrokerRecord(Message, key=7, versions="0", flexible="0+"):
    """How metadata.version below 3.3 fenced a broker."""

    id: int32 = v("0+")
    epoch: int64 = v("0+")


class UnfenceBrokerRecord(Message, key=8, versions="0", flexible="0+"):
    """How metadata.version below 3.3 unfenced a broker."""

    id: int32 = v("0+")
    epoch: int64 = v("0+")


class RemoveTopicRecord(Message, key=9, versions="0", flexible="0+"):
    """A topic, its partitions and its settings are gone."""

    topic_id: uuid = v("0+")


class DelegationTokenRecord(Message, key=10, versions="0", flexible="0+"):
    """A delegation token (KIP-900)."""

    owner: string = v("0+")
    requester: string = v("0+")
    renewers: list[string] = v("0+")
    issue_timestamp: int64 = v("0+")
    max_timestamp: int64 = v("0+")
    expiration_timestamp: int64 = v("0+")
    token_id: string = v("0+")


class UserScramCredentialRecord(Message, key=11, versions="0", flexible="0+"):
    """What the broker knows of one user's password, per mechanism."""

    name: string = v("0+")
    mechanism: int8 = v("0+")
    salt: byte_string = v("0+")
    stored_key: byte_string = v("0+")
    server_key: byte_string = v("0+")
    iterations: int32 = v("0+")


class FeatureLevelRecord(Message, key=12, versions="0", flexible="0+"):
    """A feature is finalised at this level; the first record of every log and snapshot names metadata.version."""

    name: string = v("0+")
    feature_level: int16 = v("0+")


class ClientQuotaRecord(Message, key=14, versions="0", flexible="0+"):
    """One limit of one user, client or address, set or removed."""

    class EntityData(Struct):
        entity_type: string = v("0+")
        entity_name: string | None = v("0+", nullable="0+")

    entity: list[EntityData] = v("0+")
    key: string = v("0+")
    value: float64 = v("0+")
    remove: boolean = v("0+")


class ProducerIdsRecord(Message, key=15, versions="0", flexible="0+"):
    """A broker was given a block of producer ids; the next block begins at next_producer_id."""

    broker_id: int32 = v("0+")
    broker_epoch: int64 = v("0+", -1)
    next_producer_id: int64 = v("0+")


class BrokerRegistrationChangeRecord(Message, key=17, versions="0-3", flexible="0+"):
    """What changed in a broker's registration: fencing, shutdown, directories."""

    broker_id: int32 = v("0+")
    broker_epoch: int64 = v("0+")
    fenced: int8 = v("0+", tag=0)
    in_controlled_shutdown: int8 = v("1+", tag=1)
    log_dirs: list[uuid] = v("2+", tag=2)
    cordoned_log_dirs: list[uuid] | None = v("3+", None, nullable="3+", tag=3)


class AccessControlEntryRecord(Message, key=18, versions="0", flexible="0+"):
    """One access rule."""

    id: uuid = v("0+")
    resource_type: int8 = v("0+")
    resource_name: string = v("0+")
    pattern_type: int8 = v("0+")
    principal: string = v("0+")
    host: string = v("0+")
    operation: int8 = v("0+")
    permission_type: int8 = v("0+")


class RemoveAccessControlEntryRecord(Message, key=19, versions="0", flexible="0+"):
    """One access rule is gone."""

    id: uuid = v("0+")


class NoOpRecord(Message, key=20, versions="0", flexible="0+"):
    """Apache Kafka's controller shows twice a second that it can still write. It means nothing."""


class ZkMigrationStateRecord(Message, key=21, versions="0", flexible="0+"):
    """Left behind by clusters that came from ZooKeeper."""

    zk_migration_state: int8 = v("0+")


class RemoveUserScramCredentialRecord(Message, key=22, versions="0", flexible="0+"):
    """One user's password for one mechanism is gone."""

    name: string = v("0+")
    mechanism: int8 = v("0+")


class BeginTransactionRecord(Message, key=23, versions="0", flexible="0+"):
    """Records from here to the end of the transaction count together or not at all (KIP-868)."""

    name: string | None = v("0+", None, nullable="0+", tag=0)


class EndTransactionRecord(Message, key=24, versions="0", flexible="0+"):
    """The transaction counts."""


class AbortTransactionRecord(Message, key=25, versions="0", flexible="0+"):
    """The transaction's records never happened."""

    reason: string | None = v("0+", None, nullable="0+", tag=0)


class RemoveDelegationTokenRecord(Message, key=26, versions="0", flexible="0+"):
    """A delegation token is gone."""

    token_id: string = v("0+")


class RegisterControllerRecord(Message, key=27, versions="0", flexible="0+"):
    """A controller's process introduced itself (KIP-919)."""

    class ControllerEndpoint(Struct):
        name: string = v("0+")
        host: string = v("0+")
        port: uint16 = v("0+")
        security_protocol: int16 = v("0+")

    class ControllerFeature(Struct):
        name: string = v("0+")
        min_supported_version: int16 = v("0+")
        max_supported_version: int16 = v("0+")

    controller_id: int32 = v("0+")
    incarnation_id: uuid = v("0+")
    zk_migration_ready: boolean = v("0+")
    end_points: list[ControllerEndpoint] = v("0+")
    features: list[ControllerFeature] = v("0+")


class ClearElrRecord(Message, key=28, versions="0", flexible="0+"):
    """Eligible leader replicas are forgotten, of one topic or of all (KIP-966)."""

    topic_name: string = v("0+")


KINDS: dict[int, type[Message]] = {
    kind.key: kind
    for kind in (
        RegisterBrokerRecord,
        UnregisterBrokerRecord,
        TopicRecord,
        PartitionRecord,
        ConfigRecord,
        PartitionChangeRecord,
        FenceBrokerRecord,
        UnfenceBrokerRecord,
        RemoveTopicRecord,
        DelegationTokenRecord,
        UserScramCredentialRecord,
        FeatureLevelRecord,
        ClientQuotaRecord,
        ProducerIdsRecord,
        BrokerRegistrationChangeRecord,
        AccessControlEntryRecord,
        RemoveAccessControlEntryRecord,
        NoOpRecord,
        ZkMigrationStateRecord,
        RemoveUserScramCredentialRecord,
        BeginTransactionRecord,
        EndTransactionRecord,
        AbortTransactionRecord,
        RemoveDelegationTokenRecord,
        RegisterControllerRecord,
        ClearElrRecord,
    )
}


class UnknownRecord(ValueError):
    """A record this release cannot read: it was written by a newer one, or the log is damaged."""


def frame(record: Message, version: int) -> bytes:
    """The value that stands for `record` in the metadata log."""
    return b"".join((_varint(FRAME_VERSION), _varint(type(record).key), _varint(version), encode(record, version)))


def unframe(value: bytes | memoryview) -> Message:
    """The record that a value of the metadata log stands for."""
    return unframe_versioned(value)[0]


def unframe_versioned(value: bytes | memoryview) -> tuple[Message, int]:
    """The same, with the version in which it was written."""
    frame_version, position = _read_varint(value, 0)
    key, position = _read_varint(value, position)
    version, position = _read_varint(value, position)
    kind = KINDS.get(key)
    if frame_version != FRAME_VERSION or kind is None or not kind.versions[0] <= version <= kind.versions[1]:
        raise UnknownRecord(f"metadata record with frame {frame_version}, key {key} and version {version}")
    return decode(kind, value, version, position), version


def _varint(number: int) -> bytes:
    out = bytearray()
    while number > 0x7F:
        out.append(number & 0x7F | 0x80)
        number >>= 7
    out.append(number)
    return bytes(out)


def _read_varint(data: bytes | memoryview, position: int) -> tuple[int, int]:
    number = 0
    for shift in range(0, 35, 7):
        if position >= len(data):
            break
        byte = data[position]
        position += 1
        number |= (byte & 0x7F) << shift
        if byte < 0x80:
            return number, position
    raise UnknownRecord("metadata record without a whole frame")
