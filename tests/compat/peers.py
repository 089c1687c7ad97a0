"""Two brokers that are asked the same: a plain socket to each, kio's classes for the words, and a comparison of answers.

Requests are made of kio's classes (an independent implementation of the protocol). What two runs of one broker would answer
differently (clocks, ports, ids, texts) is masked; topic ids are translated to names, so that both sides may have their own.
"""

from __future__ import annotations

import contextlib
import dataclasses
import datetime
import io
import os
import re
import socket
import struct
import time
import types
import typing
import uuid
from collections.abc import Callable, Iterator, Mapping
from functools import partial
from pathlib import Path
from typing import Any

from crc32c import crc32c
from kio.index import load_request_schema, load_response_schema
from kio.serial import entity_reader, entity_writer

from apache import kafka
from harness import Node, Server, split, stop_all

THEN_MS = 1_700_000_000_000

# Name, key, lowest and highest version: what issue by issue we serve. Kio knows no versions outside these.
SERVED = {
    "produce": (0, 3, 13),
    "fetch": (1, 4, 18),
    "list_offsets": (2, 1, 11),
    "metadata": (3, 0, 13),
    "offset_commit": (8, 2, 10),
    "offset_fetch": (9, 1, 10),
    "describe_groups": (15, 0, 6),
    "list_groups": (16, 0, 5),
    "api_versions": (18, 0, 4),
    "create_topics": (19, 2, 7),
    "delete_topics": (20, 1, 6),
    "delete_records": (21, 0, 2),
    "init_producer_id": (22, 0, 5),
    "offset_for_leader_epoch": (23, 2, 4),
    "describe_configs": (32, 1, 4),
    "alter_configs": (33, 0, 2),
    "alter_replica_log_dirs": (34, 1, 2),
    "describe_log_dirs": (35, 1, 4),
    "create_partitions": (37, 0, 3),
    "delete_groups": (42, 0, 2),
    "elect_leaders": (43, 0, 2),
    "incremental_alter_configs": (44, 0, 1),
    "alter_partition_reassignments": (45, 0, 1),
    "list_partition_reassignments": (46, 0, 0),
    "offset_delete": (47, 0, 0),
    "describe_client_quotas": (48, 0, 1),
    "alter_client_quotas": (49, 0, 1),
    "describe_user_scram_credentials": (50, 0, 0),
    "alter_user_scram_credentials": (51, 0, 0),
    "describe_quorum": (55, 0, 2),
    "update_features": (57, 0, 2),
    "describe_cluster": (60, 0, 2),
    "describe_producers": (61, 0, 0),
    "unregister_broker": (64, 0, 0),
    "consumer_group_describe": (69, 0, 1),
    "list_config_resources": (74, 0, 1),
    "describe_topic_partitions": (75, 0, 0),
    "add_raft_voter": (80, 0, 1),
    "remove_raft_voter": (81, 0, 0),
}
KEYS = {key for key, _, _ in SERVED.values()}

# What differs between any two nodes, or between two answers of one.
MASKED = re.compile(
    r"throttle|error_message|timestamp|_time|^port$|^host$|broker_epoch|producer_id$|session_id|cluster_id"
    r"|documentation|finalized_features|supported_features|leader_id$|authorized_operations|zk_migration"
    r"|log_dir|_bytes$|partition_size|offset_lag"
)

# How far the metadata log is says how long a node has run.
MASKED_THERE = {("describe_quorum", name) for name in ("high_watermark", "leader_epoch", "log_end_offset")}

# Settings that say where a node is, not what it does.
OF_ONE_NODE = {
    *kafka.SINGLE_NODE,
    "listeners",
    "advertised.listeners",
    "log.dirs",
    "log.dir",
    "controller.quorum.bootstrap.servers",
}

SETTLING_S = 30.0
# So long a broker may think before it is said to be silent.
PATIENCE_S = 30.0
PLAIN_TOPIC, COMPACTED_TOPIC, OFFSETS_TOPIC = "odd-plain", "odd-compacted", "__consumer_offsets"
TRANSACTIONS_TOPIC = "__transaction_state"
TRANSACTION = 1
# Stand-ins for topic ids; each side puts in its own.
PLAIN_ID, COMPACTED_ID, UNKNOWN_ID = uuid.UUID(int=0xA1), uuid.UUID(int=0xA2), uuid.UUID(int=0xA3)


def request_class(key: int, version: int) -> Any:
    """Kio's class for a request; its fields differ from version to version, which no type can say."""
    return load_request_schema(key, version)


def asking(key: int, version: int, /, **values: Any) -> Any:
    """A request of that version: the given values where it has such fields, and nothing much in the others."""
    return _filled(request_class(key, version), values)


def _filled(kind: Any, values: dict[str, Any]) -> Any:
    hints = typing.get_type_hints(kind)
    return kind(**{field.name: _field(field, hints[field.name], values) for field in dataclasses.fields(kind)})


def _field(field: Any, hint: Any, values: dict[str, Any]) -> Any:
    optional = typing.get_origin(hint) in (typing.Union, types.UnionType)
    if optional:
        hint = next(part for part in typing.get_args(hint) if part is not type(None))
    if field.name not in values:
        if field.default is not dataclasses.MISSING:
            return field.default
        return None if optional else _blank(field.metadata.get("kafka_type", ""), hint)
    value = values[field.name]
    if value is None:
        return None
    if typing.get_origin(hint) is tuple:
        inner = typing.get_args(hint)[0]
        return tuple(_value(inner, item) for item in value)
    return _value(hint, value)


def _value(hint: Any, value: Any) -> Any:
    if dataclasses.is_dataclass(hint):
        return _filled(hint, value)
    if isinstance(value, int) and not isinstance(value, bool) and "timedelta" in str(hint.__mro__):
        return datetime.timedelta(milliseconds=value)
    return hint(value) if isinstance(value, int) and not isinstance(value, bool) else value


def _blank(kind: str, hint: Any) -> Any:
    if typing.get_origin(hint) is tuple:
        return ()
    if dataclasses.is_dataclass(hint):
        return _filled(hint, {})
    blanks: dict[str, Any] = {"string": "", "bool": False, "uuid": uuid.UUID(int=0), "records": b"", "bytes": b""}
    return datetime.timedelta(seconds=5) if "timedelta" in kind else blanks.get(kind, 0)


class Peer:
    """One broker, spoken to with kio's classes over a plain socket."""

    def __init__(self, address: str) -> None:
        self.address = address
        self.connection: socket.socket | None = None
        self.ids: dict[uuid.UUID, uuid.UUID] = {}
        self.names: dict[uuid.UUID, str] = {}

    def ask(self, request: Any) -> Any:
        """The decoded response, or a word for what happened instead."""
        try:
            frame = self._exchange(self._encode(request))
        except TimeoutError:
            self._hang_up()
            return "silence"
        except OSError:
            self._hang_up()
            return "hung up"
        return self._decode(type(request), frame)

    def learn_topics(self) -> None:
        """Which ids this broker gave the two topics."""
        metadata = request_class(3, 12)
        found = self.ask(
            metadata(topics=None, allow_auto_topic_creation=False, include_topic_authorized_operations=False)
        )
        self.names = {topic.topic_id: topic.name for topic in found.topics if topic.error_code.name == "none"}
        real = {name: topic_id for topic_id, name in self.names.items()}
        self.ids = {
            stand_in: real[name]
            for stand_in, name in ((PLAIN_ID, PLAIN_TOPIC), (COMPACTED_ID, COMPACTED_TOPIC))
            if name in real
        }

    def with_own_ids(self, value: Any) -> Any:
        if dataclasses.is_dataclass(value) and not isinstance(value, type):
            return dataclasses.replace(
                value, **{f.name: self.with_own_ids(getattr(value, f.name)) for f in dataclasses.fields(value)}
            )
        if isinstance(value, tuple):
            return tuple(self.with_own_ids(item) for item in value)
        return self.ids.get(value, value) if isinstance(value, uuid.UUID) else value

    def _encode(self, request: Any) -> bytes:
        kind, body = type(request), io.BytesIO()
        header = kind.__header_schema__(
            request_api_key=kind.__api_key__, request_api_version=kind.__version__, correlation_id=1, client_id="odd"
        )
        entity_writer(type(header))(body, header)
        entity_writer(kind)(body, self.with_own_ids(request))
        return body.getvalue()

    def _exchange(self, frame: bytes) -> bytes:
        if self.connection is None:
            self.connection = socket.create_connection(split(self.address), PATIENCE_S)
        self.connection.sendall(struct.pack(">i", len(frame)) + frame)
        return self._exactly(struct.unpack(">i", self._exactly(4))[0])

    def _exactly(self, count: int) -> bytes:
        assert self.connection is not None
        data = bytearray()
        while len(data) < count:
            if not (piece := self.connection.recv(count - len(data))):
                raise ConnectionResetError
            data += piece
        return bytes(data)

    def _hang_up(self) -> None:
        if self.connection is not None:
            self.connection.close()
            self.connection = None

    def _decode(self, kind: Any, frame: bytes) -> Any:
        response = load_response_schema(kind.__api_key__, kind.__version__)
        try:
            _, head = entity_reader(response.__header_schema__)(frame, 0)
            value, body = entity_reader(response)(frame, head)
        except Exception as error:
            return f"undecodable: {type(error).__name__}"
        return value if head + body == len(frame) else f"{len(frame) - head - body} bytes too many"


def make_batch(
    count: int = 3,
    keys: bool = True,
    crc_error: int = 0,
    magic: int = 2,
    declared: int | None = None,
    attributes: int = 0,
    timestamp_ms: int = THEN_MS,
    producer: tuple[int, int, int] = (-1, -1, -1),
    base_offset: int = 0,
) -> bytes:
    """A record batch v2, right or wrong in one respect."""
    body = struct.pack(
        ">hiqqqhii",
        attributes,
        count - 1,
        timestamp_ms,
        timestamp_ms + 2,
        *producer,
        count if declared is None else declared,
    )
    for n in range(count):
        key = b"\x04k" + bytes([48 + n]) if keys else b"\x01"
        record = b"\0" + _varint(n) + _varint(n) + key + b"\x06odd" + b"\0"
        body += _varint(len(record)) + record
    return struct.pack(">qiibI", base_offset, 9 + len(body), 0, magic, crc32c(body) ^ crc_error) + body


def comparable(value: Any, peer: Peer, name: str = "") -> Any:
    """A response as plain data without what is masked, lists in an order of their own."""
    if value is not None and MASKED.search(name):
        return "masked"
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        api, fields = type(value).__module__.split(".")[2], dataclasses.fields(value)
        seen = [f.name for f in fields if (api, f.name) not in MASKED_THERE]
        return {name: comparable(getattr(value, name), peer, name) for name in seen}
    if isinstance(value, tuple):
        shared = (item for item in value if _is_shared(item))
        return sorted((comparable(item, peer) for item in shared), key=repr)
    if isinstance(value, uuid.UUID):
        return peer.names.get(value, str(value) if value.int in (0, UNKNOWN_ID.int) else "some id")
    return value


def _is_shared(item: Any) -> bool:
    """Not where a node is, not settings of our own, and not APIs that we do not serve."""
    name, key = getattr(item, "name", None), getattr(item, "api_key", None)
    is_ours = isinstance(name, str) and name.startswith("ottla.")
    return name not in OF_ONE_NODE and not is_ours and (key is None or key in KEYS)


def difference(ours: Any, theirs: Any, at: str = "") -> str | None:
    """Where two comparable answers part first, or None."""
    if isinstance(ours, dict) and isinstance(theirs, dict):
        found = (difference(ours.get(name), theirs[name], f"{at}.{name}") for name in theirs)
        return next((text for text in found if text), None)
    if isinstance(ours, list) and isinstance(theirs, list) and len(ours) == len(theirs):
        found = (difference(a, b, f"{at}[{n}]") for n, (a, b) in enumerate(zip(ours, theirs, strict=True)))
        return next((text for text in found if text), None)
    return None if ours == theirs else f"{at}: ours {str(ours)[:150]} | Apache {str(theirs)[:150]}"


def compare(request: Any, peers: tuple[Peer, Peer], settle: bool) -> str | None:
    answers = []
    for peer in peers:
        answers.append(comparable(peer.ask(request), peer))
    if settle:
        settled(peers)
    return difference(*answers)


def settled(peers: tuple[Peer, Peer]) -> None:
    """Wait until both know the same topics. Apache answers before a topic that a request made is everywhere."""
    deadline = time.monotonic() + SETTLING_S
    while time.monotonic() < deadline:
        for peer in peers:
            peer.learn_topics()
        if sorted(peers[0].names.values()) == sorted(peers[1].names.values()):
            return
        time.sleep(0.05)


@contextlib.contextmanager
def ours_and_apaches(root: Path, settings: Mapping[str, str] | None = None) -> Iterator[list[str]]:
    """Addresses of two fresh nodes. OTTLA_DIFFERENTIAL_SELF sets Apache against Apache."""
    first: Callable[..., Server] = kafka.Apache if os.environ.get("OTTLA_DIFFERENTIAL_SELF") else Node
    servers = [first(root / "ours", settings=settings), kafka.Apache(root / "apache", settings=settings)]
    try:
        yield [server.start().address for server in servers]
    finally:
        stop_all(servers)


@contextlib.contextmanager
def two_brokers(root: Path) -> Iterator[tuple[Peer, Peer]]:
    """Two fresh nodes, with the same topics and records."""
    with ours_and_apaches(root) as addresses:
        ours, theirs = (Peer(address) for address in addresses)
        prepare(ours)
        prepare(theirs)
        yield ours, theirs


def prepare(peer: Peer) -> None:
    """Two topics with records, and the internal one that a client may bring about by naming it."""
    wanted = [
        {"name": PLAIN_TOPIC, "num_partitions": 3, "configs": [{"name": "retention.ms", "value": "-1"}]},
        {"name": COMPACTED_TOPIC, "num_partitions": 1, "configs": [{"name": "cleanup.policy", "value": "compact"}]},
    ]
    create = asking(19, 5, topics=[{**topic, "replication_factor": 1} for topic in wanted])
    until(lambda: _has_only(peer.ask(create), "topics", "none", "topic_already_exists"))
    offsets = asking(3, 9, topics=[{"name": OFFSETS_TOPIC}], allow_auto_topic_creation=True)
    until(lambda: _has_only(peer.ask(offsets), "topics", "none"))
    latest = {"timestamp": -1, "current_leader_epoch": -1}
    led = asking(
        2, 6, replica_id=-1, topics=[{"name": OFFSETS_TOPIC, "partitions": [{**latest, "partition_index": 0}]}]
    )
    until(lambda: _are_led(peer.ask(led)))
    for name, index in ((PLAIN_TOPIC, 0), (PLAIN_TOPIC, 1), (COMPACTED_TOPIC, 0)):
        data = [{"name": name, "partition_data": [{"index": index, "records": make_batch()}]}]
        produce = asking(0, 9, acks=-1, topic_data=data)
        until(partial(_is_written, peer, produce))
    # So many groups that each partition of the offsets topic has some.
    coordinated = asking(9, 8, groups=[{"group_id": f"warm-{n}", "topics": []} for n in range(500)])
    until(lambda: _has_only(peer.ask(coordinated), "groups", "none"))
    _await_transactions(peer)
    ids = asking(22, 0)
    until(lambda: bool(peer.ask(ids).error_code.name == "none"))
    peer.learn_topics()


def _are_led(answer: Any) -> bool:
    return not isinstance(answer, str) and _has_only(answer.topics[0], "partitions", "none")


def _await_transactions(peer: Peer) -> None:
    """So many ids that each partition of the transactions topic has some."""
    find = asking(10, 4, key_type=TRANSACTION, coordinator_keys=["warm"])
    until(lambda: _has_only(peer.ask(find), "coordinators", "none"))
    for number in range(500):
        end = asking(26, 3, transactional_id=f"warm-{number}")
        until(lambda end=end: peer.ask(end).error_code.name == "invalid_producer_id_mapping")  # type: ignore[misc]


def _is_written(peer: Peer, produce: Any) -> bool:
    answer = peer.ask(produce)
    return not isinstance(answer, str) and _has_only(answer.responses[0], "partition_responses", "none")


def _has_only(answer: Any, field: str, *errors: str) -> bool:
    """Whether all that is in a field has one of these errors. A string is no answer: the node is still starting."""
    return not isinstance(answer, str) and all(each.error_code.name in errors for each in getattr(answer, field))


def until(done: Callable[[], bool], seconds: float = 60.0) -> None:
    deadline = time.monotonic() + seconds
    while not done():
        assert time.monotonic() < deadline, "the node does not get there"
        time.sleep(0.1)


def _varint(number: int) -> bytes:
    """Zigzag, as inside a record."""
    number = (number << 1) ^ (number >> 63)
    out = bytearray()
    while number > 0x7F:
        out.append(number & 0x7F | 0x80)
        number >>= 7
    return bytes([*out, number])
