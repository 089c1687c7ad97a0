"""A compacted topic of a million records, compacted while others produce: how long it takes, and how long anybody waits.

Who waits is a client that asks the shortest question there is every few milliseconds: its answers are late whenever the broker
does something else.
"""

from __future__ import annotations

import re
import socket
import struct
import time
from pathlib import Path
from typing import Any

from confluent_kafka import Producer
from confluent_kafka.admin import (  # type: ignore[attr-defined]
    AdminClient,
    AlterConfigOpType,
    ConfigEntry,
    ConfigResource,
    ResourceType,
)

from bench import client, drivers
from bench.drivers import BUILT, CannotMeasure
from bench.scenes import Size, Tally, rounds
from harness import Server, split

TOPIC = "table"
KEYS = 100_000
SECONDS_MAX = 300
QUESTION_EVERY_S = 0.002
NEVER = {"cleanup.policy": "compact", "segment.bytes": "16777216", "min.cleanable.dirty.ratio": "1.0"}
LINES = frozenset({"compaction-seconds", "compaction-stall"})


def compaction(server: Server, size: Size, tally: Tally) -> None:
    settings: dict[str, str] = server.settings  # type: ignore[attr-defined]
    settings["log.cleaner.backoff.ms"] = "500"
    server.start()
    client.make_topic(server, "load")
    for number, counts in enumerate(rounds(size)):
        topic = f"{TOPIC}-{number}"
        client.make_topic(server, topic, 1, NEVER)
        fill(server, topic, size.offsets)
        load = [str(BUILT / "bulk"), drivers.librdkafka(), "ack", server.address, "load", "1000", "600", "100"]
        producing = drivers.start(load)
        try:
            time.sleep(3)
            begin(server, topic)
            seconds, late = ask_until_clean(server, topic)
        finally:
            producing.kill()
            producing.wait()
        if counts:
            tally.add("compaction-seconds", seconds)
            tally.add("compaction-stall", 1000 * sorted(late)[int(len(late) * 0.999)])
    server.stop(120)


def fill(server: Server, topic: str, count: int) -> None:
    producer = Producer({"bootstrap.servers": server.address, "queue.buffering.max.messages": 1_000_000})
    for number in range(count):
        key = b"key %d" % (number * 7919 % KEYS)
        producer.produce(topic, b"%d" % number * 10, key, partition=0)
        if number % 10_000 == 0:
            producer.poll(0)
    if producer.flush(120):
        raise CannotMeasure("not everything was written")


def begin(server: Server, topic: str) -> None:
    """From now on it is due."""
    ratio: Any = ConfigEntry("min.cleanable.dirty.ratio", "0.01", incremental_operation=AlterConfigOpType.SET)
    resource = ConfigResource(ResourceType.TOPIC, topic, incremental_configs=[ratio])
    admin = AdminClient({"bootstrap.servers": server.address})
    for done in admin.incremental_alter_configs([resource]).values():
        done.result(30)


def ask_until_clean(server: Server, topic: str) -> tuple[float, list[float]]:
    """How long compaction took, and how long each answer took meanwhile."""
    late: list[float] = []
    began = time.monotonic()
    with socket.create_connection(split(server.address), 10) as connection:
        connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        connection.settimeout(30)
        while not is_clean(server.directory, topic):
            if time.monotonic() - began > SECONDS_MAX:
                raise CannotMeasure(f"not compacted within {SECONDS_MAX} s")
            for _ in range(50):
                asked = time.monotonic()
                connection.sendall(client.API_VERSIONS)
                (size,) = struct.unpack(">i", connection.recv(4, socket.MSG_WAITALL))
                connection.recv(size, socket.MSG_WAITALL)
                late.append(time.monotonic() - asked)
                time.sleep(QUESTION_EVERY_S)
    return time.monotonic() - began, late


def is_clean(directory: Path, topic: str) -> bool:
    """Whether all closed segments are."""
    checkpoint = directory / "cleaner-offset-checkpoint"
    text = checkpoint.read_text() if checkpoint.exists() else ""
    point = re.search(rf"^{topic} 0 (\d+)$", text, re.MULTILINE)
    bases = [int(path.stem) for path in (directory / f"{topic}-0").glob("*.log")]
    return point is not None and int(point[1]) >= max(bases)
