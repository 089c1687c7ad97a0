"""Who a data directory and the partitions in it belong to: `meta.properties`, `partition.metadata`, the clean-shutdown mark.

`meta.properties` is a Java properties file.
"""

from __future__ import annotations

import json
from contextlib import suppress
from dataclasses import dataclass
from datetime import UTC, datetime

from ottla.properties import escaped, read_properties
from ottla.wire.ids import uuid_bytes, uuid_text
from ottla.world import Disk

META_PROPERTIES = "meta.properties"
PARTITION_METADATA = "partition.metadata"
CLEAN_MARK = ".kafka_cleanshutdown"
VERSION = 1
NO_EPOCH = -1


class BadIdentity(ValueError):
    """A file that should say who we are, and does not."""


@dataclass(frozen=True, slots=True)
class MetaProperties:
    """Which node of which cluster this directory serves, and the directory's own id."""

    cluster_id: str
    node_id: int
    directory_id: bytes


def read_meta_properties(disk: Disk, directory: str) -> MetaProperties | None:
    """None where no directory was formatted yet."""
    path = f"{directory}/{META_PROPERTIES}"
    if not disk.exists(path):
        return None
    values = read_properties(disk.read(path).decode("latin-1"))
    try:
        if int(values["version"]) != VERSION:
            raise BadIdentity(f"{path}: version {values['version']} is not {VERSION}")
        return MetaProperties(values["cluster.id"], int(values["node.id"]), uuid_bytes(values["directory.id"]))
    except (KeyError, ValueError) as error:
        raise BadIdentity(f"{path}: {error}") from error


def write_meta_properties(disk: Disk, directory: str, meta: MetaProperties, now_ms: int) -> None:
    date = datetime.fromtimestamp(now_ms / 1000, UTC).strftime("%a %b %d %H:%M:%S UTC %Y")
    values = {
        "node.id": str(meta.node_id),
        "directory.id": uuid_text(meta.directory_id),
        "version": str(VERSION),
        "cluster.id": meta.cluster_id,
    }
    lines = ["#", f"#{date}", *(f"{name}={escaped(value)}" for name, value in values.items())]
    disk.replace(f"{directory}/{META_PROPERTIES}", "".join(f"{line}\n" for line in lines).encode("latin-1"))


def read_topic_id(disk: Disk, directory: str) -> bytes | None:
    """The topic id in `partition.metadata`; None if the file is missing or damaged."""
    path = f"{directory}/{PARTITION_METADATA}"
    if not disk.exists(path):
        return None
    values = dict(
        line.split(": ", 1) for line in disk.read(path).decode("utf-8", "replace").splitlines() if ": " in line
    )
    try:
        return uuid_bytes(values["topic_id"]) if values["version"] == "0" else None
    except (KeyError, ValueError):
        return None


def write_topic_id(disk: Disk, directory: str, topic_id: bytes) -> None:
    disk.replace(f"{directory}/{PARTITION_METADATA}", f"version: 0\ntopic_id: {uuid_text(topic_id)}".encode())


def take_clean_mark(disk: Disk, directory: str) -> int | None:
    """The broker epoch of a clean stop, or None. The mark is gone, for good, when this returns."""
    path = f"{directory}/{CLEAN_MARK}"
    if not disk.exists(path):
        return None
    epoch = NO_EPOCH
    with suppress(ValueError, KeyError, TypeError):  # older releases leave an empty file
        epoch = int(json.loads(disk.read(path))["brokerEpoch"])
    disk.remove(path)
    disk.sync_directory(directory)
    return epoch


def write_clean_mark(disk: Disk, directory: str, broker_epoch: int) -> None:
    text = json.dumps({"version": 0, "brokerEpoch": broker_epoch}, separators=(",", ":"))
    disk.replace(f"{directory}/{CLEAN_MARK}", text.encode())
