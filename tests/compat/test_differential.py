"""The same odd requests to our node and to Apache Kafka 4.3.1; their answers compared field by field.

Requests are made from kio's classes (an independent implementation of the protocol) by a seeded generator that knows,
for each field name, which values a broker has an opinion about. What two runs of one broker would answer differently
(clocks, ports, ids, texts) is masked; topic ids are translated to names, so that both sides may have their own.
A difference is a defect of ours until docs/compatibility.md gives its reason.
"""

from __future__ import annotations

import dataclasses
import datetime
import io
import os
import random
import re
import socket
import struct
import time
import types
import typing
import uuid
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from crc32c import crc32c
from kio.index import load_request_schema, load_response_schema
from kio.serial import entity_reader, entity_writer

from apache import kafka
from harness import Node, Server, split, stop_all

pytestmark = pytest.mark.apache

SEED = os.environ.get("OTTLA_DIFFERENTIAL_SEED", "ottla")
ROUNDS = int(os.environ.get("OTTLA_DIFFERENTIAL_ROUNDS", "6"))
THEN_MS = 1_700_000_000_000

# Name, key, lowest and highest version: what issue by issue we serve. Kio knows no versions outside these.
SERVED = {
    "produce": (0, 3, 13),
    "fetch": (1, 4, 18),
    "list_offsets": (2, 1, 11),
    "metadata": (3, 0, 13),
    "api_versions": (18, 0, 4),
    "create_topics": (19, 2, 7),
    "delete_topics": (20, 1, 6),
    "delete_records": (21, 0, 2),
    "init_producer_id": (22, 0, 5),
    "offset_for_leader_epoch": (23, 2, 4),
    "describe_configs": (32, 1, 4),
    "alter_configs": (33, 0, 2),
    "describe_log_dirs": (35, 1, 4),
    "create_partitions": (37, 0, 3),
    "incremental_alter_configs": (44, 0, 1),
    "describe_cluster": (60, 0, 2),
    "describe_topic_partitions": (75, 0, 0),
}
# A topic that Metadata creates takes its time, and not the same on both sides.
AUTO_CREATION_TRIES = 4
KEYS = {key for key, _, _ in SERVED.values()}
CHANGES_TOPICS = {
    "create_topics",
    "delete_topics",
    "create_partitions",
    "delete_records",
    "alter_configs",
    "incremental_alter_configs",
}

# What differs between any two nodes, or between two answers of one.
MASKED = re.compile(
    r"throttle|error_message|timestamp|_time|^port$|^host$|broker_epoch|producer_id$|session_id|cluster_id"
    r"|documentation|finalized_features|supported_features|leader_id$|authorized_operations|zk_migration"
    r"|log_dir|_bytes$|partition_size|offset_lag"
)

# Settings that say where a node is, not what it does.
OF_ONE_NODE = {
    *kafka.SINGLE_NODE,
    "listeners",
    "advertised.listeners",
    "log.dirs",
    "log.dir",
    "controller.quorum.bootstrap.servers",
}

PLAIN_TOPIC, COMPACTED_TOPIC = "odd-plain", "odd-compacted"
# Stand-ins for topic ids; each side puts in its own.
PLAIN_ID, COMPACTED_ID, UNKNOWN_ID = uuid.UUID(int=0xA1), uuid.UUID(int=0xA2), uuid.UUID(int=0xA3)

TOPICS = [PLAIN_TOPIC] * 5 + [COMPACTED_TOPIC, "odd-unknown", "odd-new-1", "odd-new-2", "odd/slash", "", ".", "y" * 251]
CONFIG_NAMES = [
    "retention.ms",
    "cleanup.policy",
    "max.message.bytes",
    "segment.ms",
    "compression.type",
    "odd.config",
    "flush.ms",
]
CONFIG_VALUES = ["60000", "compact", "delete", "-1", "-7", "lz4", "maybe", "", "1000012"]
TEXTS: list[tuple[str, list[str]]] = [
    (r"^(topic|topic_name|topic_names)$|topic.*\.name$", TOPICS),
    (r"resource_name$", [*TOPICS[:8], "1", "7", "one"]),
    (r"config.*\.name$|configuration_keys$", CONFIG_NAMES),
    (r"\.value$", CONFIG_VALUES),
    (r"transactional_id$", ["tx"]),
    (r"", ["", "kio", "odd"]),
]
NUMBERS: list[tuple[str, list[int]]] = [
    (r"^(partition|index|partition_index|partition_indexes|partitions|partition_id)$", [0, 0, 0, 1, 2, 3, 50, -1]),
    (r"^acks$", [-1, -1, 1, 3]),
    (r"^replica_id$", [-1, -1, -2]),
    (r"^timestamp$", [-1, -2, -3, -4, -5, -6, THEN_MS, THEN_MS + 2, 0]),
    (r"epoch$", [-1, -1, 0, 0, 2, 9]),
    (r"offset$", [0, 0, 1, 3, 777, -1, -2]),
    (r"min_bytes$", [0, 1, 500]),
    (r"max_bytes$", [0, 1, 90, 1_000_000]),
    (r"^num_partitions$", [1, 2, -1, 0, -4]),
    (r"^replication_factor$", [1, 1, -1, 0, 2]),
    (r"^count$", [0, 2, 4, -3]),
    (r"broker_ids?$|^replicas$", [1, 1, 4]),
    (r"^resource_type$", [2, 2, 2, 4, 8, 0, 77]),
    (r"operation$", [0, 0, 1, 2, 3, 7]),
    (r"session_id$", [0, 0, 0, 3]),
    (r"isolation_level$", [0, 1]),
    (r"response_partition_limit$", [1, 2, 2000]),
    (r"endpoint_type$", [1, 1, 2, 3]),
    (r"", [0, 1, -1]),
]


def request_class(key: int, version: int) -> Any:
    """Kio's class for a request; its fields differ from version to version, which no type can say."""
    return load_request_schema(key, version)


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
        self.names = {topic.topic_id: topic.name for topic in found.topics}
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
            self.connection = socket.create_connection(split(self.address), 5)
            self.connection.settimeout(5)
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


class Odd:
    """Requests from a seed: valid for the wire, and seldom for the broker."""

    def __init__(self, rng: random.Random) -> None:
        self.rng = rng

    def entity(self, kind: Any) -> Any:
        hints = typing.get_type_hints(kind)
        return kind(**{f.name: self.field(kind, f, hints[f.name]) for f in dataclasses.fields(kind)})

    def field(self, owner: Any, field: Any, hint: Any) -> Any:
        if typing.get_origin(hint) in (typing.Union, types.UnionType):
            # Apache never answers a Produce with null records: an exception inside it leaves the connection mute.
            if self.rng.random() < 0.2 and field.name != "records":
                return None
            if field.name == "transactional_id" and "InitProducerId" in owner.__name__:
                return None  # transactions need a coordinator
            hint = next(part for part in typing.get_args(hint) if part is not type(None))
        if typing.get_origin(hint) is tuple:
            inner = typing.get_args(hint)[0]
            count = self.rng.choice([0, 1, 1, 1, 2])
            if getattr(inner, "__name__", "") == "AlterableConfig":
                count = min(count, 1)  # of two faults in one resource Apache reports either, by the order of a hash map
            return tuple(self.value(owner, field, inner) for _ in range(count))
        return self.value(owner, field, hint)

    def value(self, owner: Any, field: Any, hint: Any) -> Any:
        kind = field.metadata.get("kafka_type", "")
        if dataclasses.is_dataclass(hint):
            return self.entity(hint)
        if kind == "records":
            return self.rng.choice(odd_batches())
        if kind == "uuid":
            return self.rng.choice([PLAIN_ID, PLAIN_ID, COMPACTED_ID, UNKNOWN_ID, uuid.UUID(int=0)])
        if kind == "bool":
            return self.rng.random() < 0.5
        if "timedelta" in kind:
            return datetime.timedelta(
                milliseconds=self.rng.choice([0, 50, 150, 5000] if "wait" not in field.name else [0, 50])
            )
        if "datetime" in kind:
            return datetime.datetime.fromtimestamp(THEN_MS / 1000, datetime.UTC)
        path = f"{_snake(owner.__name__)}.{field.name}"
        return self.text(path, field.name) if kind == "string" else self.number(hint, field.name)

    def text(self, path: str, name: str) -> str:
        return self.rng.choice(
            next(pool for pattern, pool in TEXTS if re.search(pattern, name) or re.search(pattern, path))
        )

    def number(self, hint: Any, name: str) -> Any:
        pool = next(pool for pattern, pool in NUMBERS if re.search(pattern, name))
        low, high = getattr(hint, "__low__", -(2**63)), getattr(hint, "__high__", 2**63 - 1)
        return max(low, min(high, self.rng.choice(pool)))


def odd_batches() -> list[bytes]:
    good = make_batch()
    return [
        good,
        good,
        make_batch(count=1),
        make_batch(keys=False),
        make_batch(crc_error=1),
        make_batch(magic=1),
        make_batch(magic=4),
        make_batch(declared=9),
        make_batch(attributes=0x20),
        make_batch(attributes=0x10),
        make_batch(attributes=5),
        make_batch(timestamp_ms=THEN_MS * 50),
        make_batch(producer=(77, 0, 3)),
        make_batch(producer=(77, 0, -1)),
        make_batch(base_offset=4),
        good + good,
        good[:-4],
        good[:30],
        b"",
    ]


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
        return {f.name: comparable(getattr(value, f.name), peer, f.name) for f in dataclasses.fields(value)}
    if isinstance(value, tuple):
        shared = (item for item in value if _is_shared(item))
        return sorted((comparable(item, peer) for item in shared), key=repr)
    if isinstance(value, uuid.UUID):
        return peer.names.get(value, str(value) if value.int in (0, UNKNOWN_ID.int) else "some id")
    return value


def _is_shared(item: Any) -> bool:
    """Not where a node is; not internal topics, which appear when first needed; not APIs that we do not serve."""
    name, key = getattr(item, "name", None), getattr(item, "api_key", None)
    is_internal = isinstance(name, str) and name.startswith("__")
    return name not in OF_ONE_NODE and not is_internal and (key is None or key in KEYS)


def difference(ours: Any, theirs: Any, at: str = "") -> str | None:
    """Where two comparable answers part first, or None."""
    if isinstance(ours, dict) and isinstance(theirs, dict):
        found = (difference(ours.get(name), theirs[name], f"{at}.{name}") for name in theirs)
        return next((text for text in found if text), None)
    if isinstance(ours, list) and isinstance(theirs, list) and len(ours) == len(theirs):
        found = (difference(a, b, f"{at}[{n}]") for n, (a, b) in enumerate(zip(ours, theirs, strict=True)))
        return next((text for text in found if text), None)
    return None if ours == theirs else f"{at}: ours {str(ours)[:150]} | Apache {str(theirs)[:150]}"


@pytest.fixture(scope="module")
def peers(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[Peer, Peer]]:
    """Two fresh nodes, with the same two topics and records. OTTLA_DIFFERENTIAL_SELF sets Apache against Apache."""
    if reason := kafka.why_missing():
        pytest.skip(reason)
    root = tmp_path_factory.mktemp("differential")
    first: Callable[[Path], Server] = kafka.Apache if os.environ.get("OTTLA_DIFFERENTIAL_SELF") else Node
    servers = [first(root / "ours"), kafka.Apache(root / "apache")]
    try:
        for server in servers:
            server.start()
        ours, theirs = (Peer(server.address) for server in servers)
        prepare(ours)
        prepare(theirs)
        yield ours, theirs
    finally:
        stop_all(servers)


def prepare(peer: Peer) -> None:
    request = request_class(19, 5)
    create = __import__(request.__module__, fromlist=["x"])
    compacted = create.CreatableTopicConfig(name="cleanup.policy", value="compact")
    kept = create.CreatableTopicConfig(name="retention.ms", value="-1")
    wanted = ((PLAIN_TOPIC, 3, (kept,)), (COMPACTED_TOPIC, 1, (compacted,)))
    topics = tuple(
        create.CreatableTopic(name=n, num_partitions=p, replication_factor=1, assignments=(), configs=c)
        for n, p, c in wanted
    )
    asked = request(topics=topics, timeout=datetime.timedelta(seconds=5), validate_only=False)
    _until(lambda: _accepted(peer.ask(asked)))
    for name, index in ((PLAIN_TOPIC, 0), (PLAIN_TOPIC, 1), (COMPACTED_TOPIC, 0)):
        _until(partial(_produce, peer, name, index))
    ids = request_class(22, 0)(transactional_id=None, transaction_timeout=datetime.timedelta(seconds=5))
    _until(lambda: bool(peer.ask(ids).error_code.name == "none"))
    peer.learn_topics()


def _accepted(answer: Any) -> bool:
    if isinstance(answer, str):  # no answer yet: the node is still starting
        return False
    return all(t.error_code.name in ("none", "topic_already_exists") for t in answer.topics)


def _produce(peer: Peer, topic: str, index: int) -> bool:
    request = request_class(0, 9)
    produce = __import__(request.__module__, fromlist=["x"])
    data = produce.TopicProduceData(
        name=topic, partition_data=(produce.PartitionProduceData(index=index, records=make_batch()),)
    )
    answer = peer.ask(
        request(transactional_id=None, acks=-1, timeout=datetime.timedelta(seconds=5), topic_data=(data,))
    )
    return not isinstance(answer, str) and bool(answer.responses[0].partition_responses[0].error_code.name == "none")


def _until(done: Callable[[], bool], seconds: float = 20.0) -> None:
    deadline = time.monotonic() + seconds
    while not done():
        assert time.monotonic() < deadline, "the node does not accept the first requests"
        time.sleep(0.1)


def ranges(peer: Peer) -> dict[int, tuple[int, int]]:
    answer = peer.ask(request_class(18, 0)())
    return {key.api_key: (key.min_version, key.max_version) for key in answer.api_keys}


def test_advertised_ranges(peers: tuple[Peer, Peer]) -> None:
    """PRT-03, PRT-13: for each API we serve, the range of one real release."""
    ours, theirs = map(ranges, peers)
    assert {key: span for key, span in ours.items() if theirs.get(key) != span} == {}


@pytest.mark.parametrize("api", SERVED)
def test_same_answers(api: str, peers: tuple[Peer, Peer]) -> None:
    """Each version, several odd requests; the seed of the one that differs is in the message."""
    key, low, high = SERVED[api]
    found = []
    for version in range(low, high + 1):
        for number in range(ROUNDS):
            request = Odd(random.Random(f"{SEED}/{api}/{version}/{number}")).entity(request_class(key, version))
            text = compare(request, peers, settle=api in CHANGES_TOPICS)
            for _ in range(AUTO_CREATION_TRIES if text and api == "metadata" else 0):
                time.sleep(0.2)
                text = text and compare(request, peers, settle=True)
            if text:
                found.append(f"{api} v{version} #{number}: {text}\n    {request}")
    assert not found, f"{len(found)} of {ROUNDS * (high - low + 1)} answers differ (seed {SEED}):\n" + "\n".join(found)


def compare(request: Any, peers: tuple[Peer, Peer], settle: bool) -> str | None:
    answers = []
    for peer in peers:
        answers.append(comparable(peer.ask(request), peer))
    if settle:
        time.sleep(0.1)
        for peer in peers:
            peer.learn_topics()
    return difference(*answers)


def _varint(number: int) -> bytes:
    """Zigzag, as inside a record."""
    number = (number << 1) ^ (number >> 63)
    out = bytearray()
    while number > 0x7F:
        out.append(number & 0x7F | 0x80)
        number >>= 7
    return bytes([*out, number])


def _snake(name: str) -> str:
    return re.sub(r"(?<!^)(?=[A-Z])", "_", name).lower()
