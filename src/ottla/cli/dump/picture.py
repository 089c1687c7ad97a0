"""The picture of a cluster as a tree of names, from the files of its metadata: a snapshot, a segment, or a directory of them.

Nothing is locked: files are read as they are at this moment, so a running node can be looked at as well.
"""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping
from dataclasses import replace
from datetime import UTC, datetime

from ottla import __version__
from ottla.cli.dump.control import control_message
from ottla.cli.dump.segments import Found, SegmentFile
from ottla.cli.kafka.java import boolean_text, double_text
from ottla.cli.kafka.releases import name_of
from ottla.config.listeners import PROTOCOLS
from ottla.log.directory import METADATA_LOG
from ottla.metadata.image import (
    BROKER,
    BROKER_LOGGER,
    CLIENT_METRICS,
    GROUP,
    TOPIC,
    Broker,
    Controller,
    Image,
    Partition,
)
from ottla.metadata.records import unframe
from ottla.metadata.replay import replay
from ottla.raft.snapshots import SnapshotId
from ottla.wire import scram
from ottla.wire.errors import KafkaError
from ottla.wire.ids import uuid_text
from ottla.wire.messages.quorum import KRaftVersionRecord

# A name leads to more names, or to a text.
Tree = Mapping[str, "Tree | str"]
RESOURCES = {
    TOPIC: "TOPIC",
    BROKER: "BROKER",
    BROKER_LOGGER: "BROKER_LOGGER",
    CLIENT_METRICS: "CLIENT_METRICS",
    GROUP: "GROUP",
}
MECHANISMS = {each.number: each.name for each in scram.MECHANISMS}


class Unreadable(ValueError):
    """This is no file of a metadata log."""


def load(path: str) -> tuple[Image, int]:
    """The picture that the files give, and the timestamp of the last record in it."""
    image, timestamp = Image(), 0
    for file in files_of(path):
        for found in SegmentFile(file):
            if found.head.base_offset <= image.offset and not file.endswith(".checkpoint"):
                continue
            image = _replayed(image, found)
            timestamp = timestamp if found.head.is_control else found.head.max_timestamp
        snapshot = SnapshotId.of_file_name(os.path.basename(file))
        if snapshot is not None:
            # The batches of a snapshot count from 0; what they stand for ends where its name says.
            image = replay(image, [], snapshot.end_offset - 1, snapshot.epoch)[0]
    return image, timestamp


def _replayed(image: Image, found: Found) -> Image:
    """What the quorum notes for itself is no part of the picture, and does not make it any newer."""
    messages = []
    try:
        for record in found.records():
            if not found.head.is_control:
                messages.append(unframe(record.value or b""))
                continue
            note = control_message(record)
            if note is not None and isinstance(note[1], KRaftVersionRecord):
                image = replace(image, kraft_version=note[1].kraft_version)
        if found.head.is_control:
            return image
        return replay(image, messages, found.head.last_offset, found.head.leader_epoch)[0]
    except (KafkaError, ValueError, LookupError, TypeError) as error:
        # Bytes that are no metadata, or metadata about something that never was.
        raise Unreadable(f"the batch at offset {found.head.base_offset} makes no sense: {error!r}")


def files_of(path: str) -> list[str]:
    """The files to read, in order: of a directory the newest snapshot and the segments."""
    if not os.path.isdir(path):
        return [path]
    inner = os.path.join(path, METADATA_LOG)
    home = inner if os.path.isdir(inner) else path
    names = sorted(os.listdir(home))
    snapshots = [name for name in names if SnapshotId.of_file_name(name)]
    segments = [name for name in names if name.endswith(".log")]
    if not segments and not snapshots:
        raise Unreadable(f"{path}: there is neither a snapshot nor a segment of the metadata log here")
    return [os.path.join(home, name) for name in (*snapshots[-1:], *segments)]


def tree_of(image: Image, timestamp: int) -> Tree:
    return {
        "image": {
            "acls": {"byId": _acls(image)},
            "clientQuotas": {
                _entity(entity): {name: double_text(value) for name, value in limits.items()}
                for entity, limits in image.quotas.items()
            },
            "cluster": {
                "brokers": {str(broker.id): _broker(broker) for broker in image.brokers.values()},
                "controllers": {str(each.id): _controller(each) for each in image.controllers.values()},
            },
            "configs": {
                f"{RESOURCES.get(kind, kind)}{f':{name}' if name else ''}": dict(values)
                for (kind, name), values in image.settings.items()
            },
            "delegationToken": {},
            "features": _features(image),
            "producerIds": {"nextProducerId": str(image.next_producer_id or -1)},  # none was given yet
            "provenance": _provenance(image, timestamp),
            "scram": _scram(image),
            "topics": _topics(image),
        },
        "local": {"commitId": "ottla", "version": __version__},
    }


def _topics(image: Image) -> Tree:
    by_id = {
        uuid_text(topic.id): {
            "id": uuid_text(topic.id),
            "name": topic.name,
            **{str(number): _partition(partition) for number, partition in topic.partitions.items()},
        }
        for topic in image.topics.values()
    }
    return {"byId": by_id, "byName": {str(topic["name"]): topic for topic in by_id.values()}}


def _partition(partition: Partition) -> str:
    directories = ", ".join(map(uuid_text, partition.directories))
    return (
        f"PartitionRegistration(replicas={list(partition.replicas)}, directories=[{directories}]"
        f", isr={list(partition.isr)}, removingReplicas={list(partition.removing)}"
        f", addingReplicas={list(partition.adding)}, elr={list(partition.elr)}"
        f", lastKnownElr={list(partition.last_known_elr)}, leader={partition.leader}"
        f", leaderRecoveryState={'RECOVERING' if partition.recovering else 'RECOVERED'}"
        f", leaderEpoch={partition.leader_epoch}, partitionEpoch={partition.partition_epoch})"
    )


def _listeners(member: Broker | Controller) -> str:
    return ", ".join(
        f"Endpoint(listenerName='{at.name}', securityProtocol={dict(enumerate(PROTOCOLS)).get(at.security_protocol)}"
        f", host='{at.host}', port={at.port})"
        for _, at in sorted(member.endpoints.items())
    )


def _supported(member: Broker | Controller) -> str:
    return ", ".join(f"{name}: {low}-{high}" for name, (low, high) in sorted(member.features.items()))


def _broker(broker: Broker) -> str:
    directories = ", ".join(map(uuid_text, broker.directories))
    cordoned = (
        "" if broker.cordoned is None else f", cordonedDirectories=[{', '.join(map(uuid_text, broker.cordoned))}]"
    )
    return (
        f"BrokerRegistration(id={broker.id}, epoch={broker.epoch}, incarnationId={uuid_text(broker.incarnation)}"
        f", listeners=[{_listeners(broker)}], supportedFeatures={{{_supported(broker)}}}"
        f", rack={f'Optional[{broker.rack}]' if broker.rack else 'Optional.empty'}"
        f", fenced={boolean_text(broker.fenced)}"
        f", inControlledShutdown={boolean_text(broker.in_controlled_shutdown)}"
        f", isMigratingZkBroker=false, directories=[{directories}]{cordoned})"
    )


def _controller(each: Controller) -> str:
    return (
        f"ControllerRegistration(id={each.id}, incarnationId={uuid_text(each.incarnation)}, zkMigrationReady=false"
        f", listeners=[{_listeners(each)}], supportedFeatures={{{_supported(each)}}})"
    )


def _features(image: Image) -> Tree:
    apart = ("metadata.version", "kraft.version")  # the second is the quorum's, not the picture's
    others = {f"finalized_{name}": str(level) for name, level in image.finalised.items() if name not in apart}
    version = name_of(image.metadata_version) or f"UNKNOWN {image.metadata_version}"
    return {"metadataVersion": f"Optional[{version}]", **others}


def _provenance(image: Image, timestamp: int) -> str:
    try:
        moment = datetime.fromtimestamp(timestamp / 1000, UTC).isoformat(timespec="milliseconds")
    except (OverflowError, ValueError, OSError):
        moment = str(timestamp)  # a time that no calendar knows
    return f"offset {image.offset}, epoch {image.epoch}, time {moment.replace('+00:00', 'Z[UTC]')}"


def _scram(image: Image) -> Tree:
    found: dict[str, dict[str, str]] = {name: {} for name in MECHANISMS.values()}
    for (user, mechanism), credential in image.credentials.items():
        hidden = "salt=[hidden], storedKey=[hidden], serverKey=[hidden]"
        text = f"ScramCredentialData({hidden}, iterations={credential.iterations})"
        found.setdefault(MECHANISMS.get(mechanism, str(mechanism)), {})[user] = text
    return found


def _entity(entity: tuple[tuple[str, str | None], ...]) -> str:
    names = {"client-id": "clientId", "ip": "ip", "user": "user"}
    return "_".join(f"{names[kind]}({_escaped(name or '')})" for kind, name in sorted(entity))


def _escaped(text: str) -> str:
    return text.replace("\\", "\\\\").replace("(", "\\(").replace(")", "\\)")


def _acls(image: Image) -> Tree:
    return dict(_kept(image, "AccessControlEntryRecord"))


def _kept(image: Image, kind: str) -> Iterator[tuple[str, str]]:
    """Records of kinds that nothing here serves yet, as they were written."""
    from ottla.cli.dump.jsonform import as_json, text

    for message in image.kept.values():
        if type(message).__name__ == kind:
            shown = as_json(message, 0)
            yield str(shown.pop("id", len(shown))), text(shown)
