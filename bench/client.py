"""The little protocol that the benchmark speaks itself: topics, the first ack, ends of logs, idle connections."""

from __future__ import annotations

import contextlib
import socket
import struct
import time
from collections.abc import Iterator, Mapping
from typing import Any

from confluent_kafka import Consumer, KafkaError, KafkaException, TopicPartition
from confluent_kafka.admin import AdminClient, NewTopic, OffsetSpec  # type: ignore[attr-defined]
from crc32c import crc32c

from bench.drivers import CannotMeasure
from harness import Server, split

API_VERSIONS = struct.pack(">ihhih", 10, 18, 0, 1, -1)


def make_topic(server: Server, name: str, partitions: int = 1, config: Mapping[str, str] | None = None) -> None:
    """Makes a topic; one that exists already is left as it is."""
    admin = AdminClient({"bootstrap.servers": server.address})
    made = admin.create_topics(
        [NewTopic(name, partitions, config=dict(config or {}))], operation_timeout=120, request_timeout=180
    )
    try:
        made[name].result(200)
    except KafkaException as error:
        if error.args[0].code() != KafkaError.TOPIC_ALREADY_EXISTS:
            raise
    _wait_for_partitions(admin, name, partitions)


def _wait_for_partitions(admin: AdminClient, name: str, partitions: int, seconds: float = 180.0) -> None:
    deadline = time.monotonic() + seconds
    spec: Any = OffsetSpec
    wanted = {TopicPartition(name, n): spec.latest() for n in range(partitions)}
    while time.monotonic() < deadline:
        answers = admin.list_offsets(wanted, request_timeout=20).values()
        if all(answer.exception(20) is None for answer in answers):
            return
        time.sleep(0.1)
    raise CannotMeasure(f"{name} did not get its leaders")


def log_end(server: Server, topic: str) -> int:
    consumer = Consumer({"bootstrap.servers": server.address, "group.id": "bench"})
    try:
        return int(consumer.get_watermark_offsets(TopicPartition(topic, 0), timeout=10)[1])
    finally:
        consumer.close()


def wait_first_ack(server: Server, topic: str, seconds: float = 120.0) -> None:
    """Asks again and again to append one record, until that is acknowledged by all replicas."""
    deadline = time.monotonic() + seconds
    while not is_acknowledged(server, topic):
        server.must_live()
        if time.monotonic() > deadline:
            raise CannotMeasure(f"no ack in {seconds} s")
        time.sleep(0.005)


def is_acknowledged(server: Server, topic: str) -> bool:
    """Whether one record is appended by this broker, and acknowledged by all replicas in sync."""
    request = _produce_request(topic)
    try:
        with socket.create_connection(split(server.address), 2) as connection:
            connection.settimeout(5)
            connection.sendall(struct.pack(">i", len(request)) + request)
            (size,) = struct.unpack(">i", connection.recv(4, socket.MSG_WAITALL))
            answer = connection.recv(size, socket.MSG_WAITALL)
    except (OSError, struct.error):
        return False
    at = 4 + 4 + 2 + len(topic) + 4 + 4  # correlation, topics, name, partitions, index
    return answer[at : at + 2] == b"\0\0"


def _produce_request(topic: str) -> bytes:
    """Produce v3, acks=all, one record for partition 0."""
    stamp = int(time.time() * 1000)
    body = struct.pack(">hiqqqhii", 0, 0, stamp, stamp, -1, -1, -1, 1) + b"\x14\0\0\0\x01\x08ping\0"
    batch = struct.pack(">qiibI", 0, 9 + len(body), 0, 2, crc32c(body)) + body
    name = struct.pack(">h", len(topic)) + topic.encode()
    head = struct.pack(">hhih", 0, 3, 1, -1) + struct.pack(">hhi", -1, -1, 10_000)
    return head + struct.pack(">i", 1) + name + struct.pack(">iii", 1, 0, len(batch)) + batch


@contextlib.contextmanager
def idle_connections(server: Server, count: int) -> Iterator[None]:
    """Connections that have each asked one thing and then say nothing."""
    with contextlib.ExitStack() as held:
        opened = [held.enter_context(socket.create_connection(split(server.address), 10)) for _ in range(count)]
        for connection in opened:
            connection.sendall(API_VERSIONS)
        for connection in opened:
            connection.settimeout(30)
            if not connection.recv(4):
                raise CannotMeasure("the broker closed an idle connection")
        yield
