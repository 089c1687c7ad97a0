"""Controllers that are asked the same: a cluster of ours beside one of Apache Kafka 4.3.1, on their controllers' listeners.

What each cluster has its own of stands in requests as a symbol: the epochs of brokers that exist only here, the epoch of the
quorum, directories, topics, and nodes by their part (the one that is asked first, then the others). Answers are compared after
the same has been put back.
"""

from __future__ import annotations

import base64
import dataclasses
import re
import socket
import uuid
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

from cluster.nodes import ApacheMember, Cluster, Member, eventually
from compat.peers import Peer, asking, difference
from harness import split

# Symbols: the epoch of broker n is EPOCH + n, that of the quorum QUORUM, the nodes NODE and up, their directories likewise.
EPOCH, QUORUM, NODE = 4_000_000_000_000_000, 2_000_000_000, 9001
NODES = {str(NODE + number) for number in range(9)}
CLUSTER_ID = "the cluster's own"
METADATA, METADATA_ID = "__cluster_metadata", uuid.UUID(int=1)
ZERO_ID, UNKNOWN_ID = uuid.UUID(int=0), uuid.UUID(int=0xDEAD)
DIRECTORY, TOPIC = 0xD000, 0x70000
MADE_BY_NODES = 1 << 64
PATIENCE_S = 60.0
IDS_OF_NODES = {"leader_id", "controller_id", "replica_id", "node_id"}

# What two runs of one cluster would answer differently, and texts.
MASKED = re.compile(
    r"throttle|timestamp|_time|^(port|host|size|rack)$|cluster_id|high_watermark|log_start_offset|end_offset"
    r"|session_id|feature|authorized|producer_id_start|^broker_epoch$|error_message"
)


def directory(node: int) -> uuid.UUID:
    return uuid.UUID(int=DIRECTORY + node)


def topic(number: int) -> uuid.UUID:
    return uuid.UUID(int=TOPIC + number)


class Side:
    """One of the two clusters."""

    def __init__(self, cluster: Cluster) -> None:
        self.cluster = cluster
        members = cluster.members.values()
        self.brokers = {m.node_id: Door(m.address, self) for m in members}
        self.controllers = {m.node_id: Door(f"127.0.0.1:{m.controller_port}", self) for m in members}
        self.directories = {m.node_id: _directory_of(m) for m in members}
        self.epochs: dict[int, int] = {}
        self.names: dict[uuid.UUID, str] = {}
        self.order: list[int] = []
        self.leader = self.epoch = -1
        self.learn()

    def learn(self) -> None:
        """Who leads the quorum, and the ids of topics t1, t2, ...: all that the first broker shows from now on is not older
        than what the controller had decided. Without that two clusters may show the same because both are late."""
        state = self.cluster.quorum_state()
        self.leader, self.epoch = int(state.leader_id), int(state.leader_epoch)
        self.order = [self.leader, *(n for n in self.controllers if n != self.leader)]
        first = next(iter(self.brokers.values()))
        eventually(lambda: first.has_read() >= int(state.high_watermark) - 1, "a broker has read the metadata")
        told = first.ask(asking(3, 12, topics=None))
        self.names = {each.topic_id: each.name for each in told.topics if each.topic_id is not None}

    @property
    def active(self) -> Door:
        return self.controllers[self.leader]

    def own_id(self, value: uuid.UUID) -> uuid.UUID:
        if DIRECTORY <= value.int < DIRECTORY + len(self.order):
            return self.directories[self.order[value.int - DIRECTORY]]
        name = f"t{value.int - TOPIC}"
        return next((topic_id for topic_id, each in self.names.items() if each == name), value)

    def own_number(self, value: int) -> int:
        if EPOCH <= value < EPOCH + 1_000_000:
            return self.epochs.get(value - EPOCH, value)
        if abs(value - QUORUM) <= 5:
            return self.epoch + value - QUORUM
        return self.order[value - NODE] if NODE <= value < NODE + len(self.order) else value

    def own_text(self, value: str) -> str:
        """A broker with settings is named by text. Whoever is asked looks whether that is itself."""
        if value == CLUSTER_ID:
            return self.cluster.id
        return str(self.own_number(int(value))) if value in NODES else value


def _directory_of(member: Member) -> uuid.UUID:
    lines = (member.directory / "meta.properties").read_text().replace("\\", "").splitlines()
    told = dict(line.split("=", 1) for line in lines if "=" in line)
    return uuid.UUID(bytes=base64.urlsafe_b64decode(told["directory.id"] + "=="))


class Door(Peer):
    """One listener of one node."""

    def __init__(self, address: str, side: Side) -> None:
        super().__init__(address)
        self.side = side

    def _exchange(self, frame: bytes) -> bytes:
        """With more patience: a broker whose connection is given up is fenced, by ours at once."""
        if self.connection is None:
            self.connection = socket.create_connection(split(self.address), PATIENCE_S)
        return super()._exchange(frame)

    def has_read(self) -> int:
        """How far a broker has read the metadata: that is what it calls the epoch of its features."""
        return int(
            self.ask(asking(18, 3, client_software_name="a", client_software_version="1")).finalized_features_epoch
        )

    def with_own_ids(self, value: Any) -> Any:
        if dataclasses.is_dataclass(value) and not isinstance(value, type):
            own = {f.name: self.with_own_ids(getattr(value, f.name)) for f in dataclasses.fields(value)}
            return dataclasses.replace(value, **own)
        if isinstance(value, tuple):
            return tuple(self.with_own_ids(item) for item in value)
        if isinstance(value, uuid.UUID):
            return self.side.own_id(value)
        if isinstance(value, int) and not isinstance(value, bool):
            return type(value)(self.side.own_number(value))
        return self.side.own_text(value) if isinstance(value, str) else value


def plain(value: Any, side: Side, name: str = "", *, of_quorum: bool = True) -> Any:
    """An answer without what is masked, and with symbols for what the cluster has of its own. Epochs are those of the quorum,
    or else of partitions, which do not depend on how many elections there were of controllers."""
    if value is None:
        return None
    if MASKED.search(name):
        return "masked"
    if name in ("records", "unaligned_records"):
        return bool(value)
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        return {
            f.name: plain(getattr(value, f.name), side, f.name, of_quorum=of_quorum) for f in dataclasses.fields(value)
        }
    if isinstance(value, tuple):
        items = [plain(item, side, name, of_quorum=of_quorum) for item in value]
        return items if name.endswith("replicas") else sorted(items, key=repr)
    if isinstance(value, uuid.UUID):
        return side.names.get(value, str(value) if value.int < MADE_BY_NODES else "some id")
    if name in IDS_OF_NODES and value in side.order:
        return f"node {side.order.index(value)}"
    if name == "resource_name" and value in map(str, side.order):
        return f"node {side.order.index(int(value))}"
    if of_quorum and name in ("leader_epoch", "epoch") and value == side.epoch:
        return "that of the quorum"
    return value


def compare(request: Any, doors: tuple[Door, Door], *, of_quorum: bool = True) -> tuple[str | None, tuple[Any, Any]]:
    """Where the answers of ours and Apache's differ, or None; and both of them."""
    answers = (doors[0].ask(request), doors[1].ask(request))
    ours, theirs = (plain(answer, door.side, of_quorum=of_quorum) for answer, door in zip(answers, doors, strict=True))
    return difference(ours, theirs), answers


@contextmanager
def two_clusters(root: Path, nodes: int, settings: dict[str, str]) -> Iterator[tuple[Side, Side]]:
    """Ours and Apache's, with one id."""
    with ExitStack() as ends:
        clusters = [
            Cluster(root / kind.name, nodes, settings=settings, kinds=dict.fromkeys(range(1, nodes + 1), kind))
            for kind in (Member, ApacheMember)
        ]
        clusters[1].id = clusters[0].id
        for cluster in clusters:
            ends.enter_context(cluster).format()
            cluster.launch()
        for cluster in clusters:
            cluster.wait_ready()
        yield Side(clusters[0]), Side(clusters[1])
