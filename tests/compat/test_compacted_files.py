"""Compacted logs of ours and of Apache Kafka: the same records are left, and each opens what the other compacted.

The judge of our files is Apache's own reader, kafka-dump-log.
"""

from __future__ import annotations

import re
import time
from collections.abc import Callable
from pathlib import Path

import pytest
from confluent_kafka import Consumer, KafkaError, Producer, TopicPartition
from confluent_kafka.admin import AdminClient, NewTopic  # type: ignore[attr-defined]

from apache import kafka
from harness import Node, Server

pytestmark = pytest.mark.apache

RunTool = Callable[..., str]
TOPIC = "compacted"
CLEANING = {"log.cleaner.backoff.ms": "200", "log.cleaner.dedupe.buffer.size": "20000000"}
SETTINGS = {"cleanup.policy": "compact", "min.cleanable.dirty.ratio": "0.01", "internal.segment.bytes": "9000"}
SECONDS = 60


def begin(server: Server, servers: list[Server]) -> None:
    servers.append(server)
    server.start()
    admin = AdminClient({"bootstrap.servers": server.address})
    for made in admin.create_topics([NewTopic(TOPIC, 1, config=SETTINGS)]).values():
        made.result(SECONDS)


def write(server: Server, pairs: list[tuple[str, str | None]], **options: object) -> None:
    """One batch for each record, so that batches and segments lie alike in both."""
    producer = Producer({"bootstrap.servers": server.address, "linger.ms": 0, **options})
    for key, value in pairs:
        producer.produce(TOPIC, value, key, partition=0)
        assert producer.flush(SECONDS) == 0


def transact(server: Server, name: str, pairs: list[tuple[str, str | None]], commit: bool) -> None:
    producer = Producer({"bootstrap.servers": server.address, "transactional.id": name, "linger.ms": 0})
    producer.init_transactions(SECONDS)
    producer.begin_transaction()
    for key, value in pairs:
        producer.produce(TOPIC, value, key, partition=0)
        producer.flush(SECONDS)
    producer.commit_transaction(SECONDS) if commit else producer.abort_transaction(SECONDS)


def wait_until_clean(data: Path) -> int:
    """Until the round has reached the active segment; its base."""
    until = time.monotonic() + SECONDS
    while time.monotonic() < until:
        bases = sorted(int(path.stem) for path in (data / f"{TOPIC}-0").glob("*.log"))
        path = data / "cleaner-offset-checkpoint"
        points = dict(re.findall(rf"^({TOPIC} 0) (\d+)$", path.read_text() if path.exists() else "", re.MULTILINE))
        if bases and bases[-1] > 0 and int(points.get(f"{TOPIC} 0", 0)) == bases[-1]:
            return bases[-1]
        time.sleep(0.05)
    raise AssertionError("nothing was compacted")


def left(server: Server) -> list[tuple[int, str, str | None]]:
    """Offset, key and value of everything a consumer gets.

    A consumer waits by itself for a broker that answers and does not lead yet, as Apache's does after its start;
    a question for the end of the partition would not.
    """
    told = {"group.id": "left", "enable.auto.commit": False, "enable.partition.eof": True}
    consumer = Consumer({"bootstrap.servers": server.address, **told})
    consumer.assign([TopicPartition(TOPIC, 0, 0)])
    found = []
    while (message := consumer.poll(SECONDS)) is not None:
        error = message.error()
        if error is not None and error.code() == KafkaError._PARTITION_EOF:
            consumer.close()
            return found
        assert error is None, error
        value = message.value()
        found.append((message.offset(), message.key().decode(), None if value is None else value.decode()))
    raise AssertionError(f"no end of the partition in {SECONDS} s after {len(found)} records")


def dump(apache_tool: RunTool, data: Path, *options: str, kind: str = "log") -> str:
    files = sorted((data / f"{TOPIC}-0").glob(f"*.{kind}"))
    assert files
    return apache_tool("org.apache.kafka.tools.DumpLogSegments", "--files", ",".join(map(str, files)), *options)


def test_a_hundred_records_with_one_key(data: Path, servers: list[Server], apache_tool: RunTool) -> None:
    """RET-06: kafka-dump-log shows that the older ones are gone from the closed segments, and finds no fault."""
    ours = Node(data, settings=CLEANING)
    begin(ours, servers)
    write(ours, [("key", f"value {number} " + "x" * 400) for number in range(100)], **{"enable.idempotence": True})
    active = wait_until_clean(data)
    assert [offset for offset, _, _ in left(ours)] == list(range(active - 1, 100))
    ours.stop()
    text = dump(apache_tool, data, "--deep-iteration", "--print-data-log")
    shown = [int(offset) for offset in re.findall(r"^\| offset: (\d+)", text, re.MULTILINE)]
    assert shown == list(range(active - 1, 100))
    assert "isvalid: false" not in text and "isvalid: true" in text
    assert not re.search("mismatch|corrupt|exception|invalid", re.sub("isvalid|payload.*", "", text), re.IGNORECASE)
    for kind in ("index", "timeindex"):
        said = dump(apache_tool, data, "--index-sanity-check", kind=kind)
        assert not re.search("mismatch|corrupt|exception|could not", said, re.IGNORECASE), said


def history() -> list[tuple[str, str | None]]:
    pairs: list[tuple[str, str | None]] = [(f"k{number * 7 % 23}", f"{number} " + "x" * 150) for number in range(150)]
    pairs[60] = pairs[130] = ("k5", None)
    pairs[100] = ("once", None)
    return pairs


def live(server: Server, servers: list[Server], data: Path) -> list[tuple[int, str, str | None]]:
    """A history with transactions; what compaction leaves of the closed segments."""
    begin(server, servers)
    write(server, history()[:75])
    transact(server, "aborted", [("k1", "never"), ("new", "never")], commit=False)
    transact(server, "committed", [("k2", "at last")], commit=True)
    write(server, history()[75:])
    active = wait_until_clean(data)
    return [row for row in left(server) if row[0] < active]


def test_each_goes_on_with_what_the_other_compacted(data: Path, servers: list[Server]) -> None:
    """RET-05, RET-07, LOG-20: Apache, then ours, then Apache again, with transactions; nobody loses a key."""
    apache = kafka.Apache(data, settings=CLEANING)
    theirs = live(apache, servers, data)
    everything = left(apache)
    assert ("new", "never") not in {(key, value) for _, key, value in everything}
    apache.stop()
    ours = Node(data, settings=CLEANING)
    servers.append(ours)
    ours.start()
    assert left(ours) == everything
    write(ours, [(f"k{number % 4}", f"later {number} " + "x" * 150) for number in range(120)])
    until = time.monotonic() + SECONDS
    while {key for offset, key, _ in left(ours)[:-60] if key in {"k0", "k1", "k2", "k3"} and offset < 150}:
        assert time.monotonic() < until
        time.sleep(0.1)
    wait_until_clean(data)
    everything = left(ours)
    newest = {key: value for _, key, value in theirs} | {key: value for _, key, value in everything}
    assert {key: value for _, key, value in everything} == newest
    ours.stop()
    again = kafka.Apache(data, settings=CLEANING, controller_port=apache.controller_port)
    servers.append(again)
    again.start()
    assert {key: value for _, key, value in left(again)} == newest
    again.stop()


def test_the_same_records_stay(tmp_path: Path, data: Path, servers: list[Server]) -> None:
    """RET-05: offset by offset, after the same history without transactions."""
    mine, other = Node(data, settings=CLEANING), kafka.Apache(tmp_path / "apache", settings=CLEANING)
    found = []
    for server in (mine, other):
        begin(server, servers)
        write(server, history())
        active = wait_until_clean(server.directory)
        found.append((active, left(server)))
        server.stop()
    assert found[0] == found[1]
