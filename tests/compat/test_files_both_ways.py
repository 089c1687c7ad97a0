"""One data directory, two brokers: Apache Kafka's files are ours, and ours are Apache's.

A directory is written by one, stopped, served and written by the other, stopped, and read by the first again. Every
record, setting, quota and SCRAM credential must be in place each time. Apache's own reader of files, kafka-dump-log, must
find nothing to say about what we wrote. Covers LOG-20, IDM-06 and TRAP-75.
"""

from __future__ import annotations

import re
import subprocess
from collections.abc import Callable
from pathlib import Path

import pytest
from confluent_kafka.admin import AdminClient, ConfigResource, NewTopic, ResourceType  # type: ignore[attr-defined]

from apache import kafka
from compat.clients import Confluent
from compat.corpus import CODECS, Record, corpus
from compat.peers import Peer, asking, until
from harness import Node, Server

pytestmark = pytest.mark.apache

RunTool = Callable[..., str]
PARTITIONS = 2
SETTINGS = {"retention.ms": "-1", "max.message.bytes": "3000000", "segment.bytes": "1048576"}
COMPLAINT = re.compile(
    r"mismatch|corrupt|not found|could not|exception|invalid|non-consecutive|discrepanc|unable", re.IGNORECASE
)


class Story:
    """What was written so far, topic by topic, so that any broker can be asked for all of it."""

    def __init__(self) -> None:
        self.written: dict[str, list[Record]] = {}

    def begin(self, server: Server) -> None:
        """A topic per codec with settings of its own."""
        wanted = [NewTopic(f"story-{codec}", PARTITIONS, config=SETTINGS) for codec in CODECS]
        admin = AdminClient({"bootstrap.servers": server.address})
        for made in admin.create_topics(wanted).values():
            made.result(60)
        self.written = {topic.topic: [] for topic in wanted}
        self.limit(Peer(server.address))

    def limit(self, peer: Peer) -> None:
        """A quota, and a user with a password for both mechanisms."""
        entity = [{"entity_type": "user", "entity_name": None}, {"entity_type": "client-id", "entity_name": "story"}]
        ops = [{"key": "producer_byte_rate", "value": 1e12, "remove": False}]
        peer.ask(asking(49, 1, entries=[{"entity": entity, "ops": ops}]))
        for mechanism in (1, 2):
            salted = {"iterations": 4096 * mechanism, "salt": b"salt", "salted_password": b"salted"}
            peer.ask(asking(51, 0, upsertions=[{"name": "reader", "mechanism": mechanism, **salted}]))

    def check_limits(self, peer: Peer) -> None:
        # Apache answers before what was changed can be seen.
        until(lambda: bool(peer.ask(asking(48, 1)).entries) and len(peer.ask(asking(50, 0, users=None)).results) == 1)
        (limited,) = peer.ask(asking(48, 1)).entries
        assert {(each.entity_type, each.entity_name) for each in limited.entity} == {
            ("user", None),
            ("client-id", "story"),
        }
        assert [(each.key, each.value) for each in limited.values] == [("producer_byte_rate", 1e12)]
        (user,) = peer.ask(asking(50, 0, users=None)).results
        assert user.user == "reader"
        assert sorted((each.mechanism, each.iterations) for each in user.credential_infos) == [(1, 4096), (2, 8192)]

    def go_on(self, server: Server, chapter: str) -> None:
        """More records to each topic, from an idempotent producer and from a plain one."""
        client = Confluent(server.address)
        for name, so_far in self.written.items():
            codec = name.removeprefix("story-")
            records = corpus(f"{chapter}/{codec}")
            half = len(records) // 2
            client.produce(name, 0, records[:half], codec, **{"enable.idempotence": True})
            client.produce(name, 0, records[half:], codec)
            so_far += records

    def check(self, server: Server) -> None:
        """Every record is there, in order, with its bytes; every setting, limit and password too."""
        client = Confluent(server.address)
        for name, records in self.written.items():
            seen = client.consume(name, 0, 0, len(records), **{"check.crcs": True})
            assert [s.offset for s in seen] == list(range(len(records)))
            assert [s.record for s in seen] == records
        admin = AdminClient({"bootstrap.servers": server.address})
        for name in self.written:
            which = ConfigResource(ResourceType.TOPIC, name)
            found = admin.describe_configs([which])[which].result(60)
            assert {key: found[key].value for key in SETTINGS} == SETTINGS
            assert len(admin.list_topics(name, timeout=60).topics[name].partitions) == PARTITIONS
        self.check_limits(Peer(server.address))


def chapter(server: Server, servers: list[Server], story: Story, name: str) -> None:
    """One broker's turn with the directory: finds everything, adds to it, finds everything again, stops cleanly."""
    servers.append(server)
    server.start()
    if not story.written:
        story.begin(server)
    story.check(server)
    story.go_on(server, name)
    story.check(server)
    server.stop()


def test_begun_by_apache(data: Path, servers: list[Server]) -> None:
    """Apache, then ours, then Apache again, then ours."""
    story, apache = Story(), kafka.Apache(data)
    chapter(apache, servers, story, "one")
    chapter(Node(data), servers, story, "two")
    chapter(kafka.Apache(data, controller_port=apache.controller_port), servers, story, "three")
    chapter(Node(data), servers, story, "four")


def test_begun_by_us(data: Path, servers: list[Server]) -> None:
    """Ours, then Apache, then ours again."""
    story = Story()
    chapter(Node(data), servers, story, "one")
    chapter(kafka.Apache(data), servers, story, "two")
    chapter(Node(data), servers, story, "three")


def test_apache_recovers_what_we_left_when_killed(data: Path, servers: list[Server]) -> None:
    """Ours is killed -9 after its records were acknowledged; Apache recovers the directory and finds them all."""
    story, ours = Story(), Node(data)
    servers.append(ours)
    ours.start()
    story.begin(ours)
    story.go_on(ours, "one")
    ours.kill()
    chapter(kafka.Apache(data), servers, story, "two")


def test_we_recover_what_apache_left_when_killed(data: Path, servers: list[Server]) -> None:
    """TRAP-03: index files of 10 MiB, no clean mark; and every record is there."""
    story, apache = Story(), kafka.Apache(data)
    servers.append(apache)
    apache.start()
    story.begin(apache)
    story.go_on(apache, "one")
    apache.kill()
    chapter(Node(data), servers, story, "two")


def dump(apache_tool: RunTool, files: list[Path], *options: str) -> str:
    assert files, "nothing to dump"
    return apache_tool("org.apache.kafka.tools.DumpLogSegments", "--files", ",".join(map(str, files)), *options)


def complaints(text: str) -> list[str]:
    return [line for line in text.splitlines() if COMPLAINT.search(re.sub(r"isvalid: true", "", line))]


def test_dump_log_reads_our_files(data: Path, servers: list[Server], apache_tool: RunTool) -> None:
    """Segments, both indexes, producer snapshots and transaction indexes, without a complaint."""
    story = Story()
    chapter(Node(data), servers, story, "one")
    partitions = [data / f"{name}-0" for name in story.written]
    logs = sorted(p for d in partitions for p in d.glob("*.log"))
    indexes = sorted(p for d in partitions for kind in ("index", "timeindex", "txnindex") for p in d.glob(f"*.{kind}"))
    snapshots = sorted(p for d in partitions for p in d.glob("*.snapshot"))
    assert len(logs) > len(partitions), "the segments were small enough to roll"
    text = dump(apache_tool, logs, "--deep-iteration", "--print-data-log")
    assert complaints(re.sub(r"payload:.*", "", text)) == []
    assert "isvalid: false" not in text
    assert text.count("baseOffset:") >= len(story.written)
    assert complaints(dump(apache_tool, indexes, "--index-sanity-check")) == []
    assert complaints(dump(apache_tool, indexes, "--verify-index-only")) == []
    assert "producerId:" in dump(apache_tool, snapshots)


def test_dump_log_decodes_our_metadata(data: Path, servers: list[Server], apache_tool: RunTool) -> None:
    """The metadata log and its snapshots, with the cluster metadata decoder."""
    story = Story()
    chapter(Node(data), servers, story, "one")
    metadata = data / "__cluster_metadata-0"
    text = dump(apache_tool, sorted(metadata.glob("*.log")), "--cluster-metadata-decoder")
    assert complaints(text) == []
    for wanted in (
        "FEATURE_LEVEL_RECORD",
        "REGISTER_BROKER_RECORD",
        "TOPIC_RECORD",
        "PARTITION_RECORD",
        "CONFIG_RECORD",
        "LeaderChange",
    ):
        assert wanted in text
    snapshots = sorted(metadata.glob("*.checkpoint"))
    assert "KRaftVoters" in dump(apache_tool, snapshots, "--cluster-metadata-decoder")


def test_metadata_survives_apaches_own_tool(data: Path, servers: list[Server]) -> None:
    """kafka-storage info finds a directory that we began to be in order."""
    ours = Node(data)
    servers.append(ours)
    ours.start()
    ours.stop()
    properties = kafka.Apache(data)
    properties.write_properties()
    command = kafka.java("kafka.tools.StorageTool", "info", "-c", str(properties.properties))
    said = subprocess.run(command, capture_output=True, text=True, timeout=60).stdout
    assert "Found problem" not in said
    assert "Found log directory" in said
