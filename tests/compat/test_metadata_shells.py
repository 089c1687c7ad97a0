"""Apache's metadata shell and ours on the same files of ours: a snapshot, and the log.

Apache's begins to answer before it has read the whole file, and asked for one command alone it often ends with half of the
tree. So it is started once for each file, as a conversation, and asked until it has all.
"""

from __future__ import annotations

import difflib
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from apache import kafka
from compat.both_tools import ours
from compat.members import wait_until
from harness import Node, die_with_parent, stop_all

pytestmark = pytest.mark.apache

PROMPT = b">> "
COMPLAINTS = ("[20", "[ Kafka Metadata Shell ]", "Loading...", "Starting...")  # its log, and before the first prompt
EVERYTHING = "find /image"
SETTINGS = (
    "--topic orders --add-config retention.ms=1000,cleanup.policy=[compact,delete]",
    "--broker 1 --add-config log.cleaner.threads=2",
    "--broker-defaults --add-config log.cleaner.io.buffer.load.factor=0.8",
    "--entity-type users --entity-name ann --add-config producer_byte_rate=1000",
    "--entity-type users --entity-name ann --entity-type clients --entity-name app --add-config consumer_byte_rate=2000",
    "--entity-type ips --entity-name 1.2.3.4 --add-config connection_creation_rate=5",
    "--entity-type users --entity-name bob --add-config SCRAM-SHA-256=[password=x]",
    "--client-metrics m1 --add-config interval.ms=1000",
    "--entity-type groups --entity-name g --add-config consumer.heartbeat.interval.ms=6000",
)
COMMANDS = (
    "ls /",
    "ls /image",
    "ls /image/topics/byName /image/scram",
    "ls /image/*",
    "ls /local",
    "find /image/cluster /image/topics/byName/{orders,with*}",
    "find /nope",
    "tree /image/topics/byName",
    "tree /image/topics",
    "tree /image/cluster",
    "tree /image/configs",
    "tree /image/clientQuotas",
    "tree /image/features",
    "tree /image/producerIds",
    "tree /image/acls",
    "tree /image/delegationToken",
    "cat /image/topics/byName/orders/*",
    "cat /image/cluster/brokers/1",
    "cat /image/features/metadataVersion",
    "cat /image/nope",
    "cat /image",
    "ls -l",
    "tree",
    "cd image/topics",
    "pwd",
    "ls byName ..",
    "cat byName/with.dot/name byName/?rders/name",
    "cd nope",
    "cd byName/orders/name",
    "cd ../..",
    "pwd",
    "man nope",
)


class Theirs:
    """Apache's shell in conversation; `says` is all that it answers to a command."""

    def __init__(self, path: Path) -> None:
        command = kafka.java(
            "org.apache.kafka.shell.MetadataShell", "--snapshot", str(path), logging=kafka.logging_file("ERROR")
        )
        self.process = subprocess.Popen(
            command,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            preexec_fn=die_with_parent,
        )
        self._answer()

    def says(self, command: str) -> list[str]:
        assert self.process.stdin is not None
        self.process.stdin.write(command.encode() + b"\n")
        self.process.stdin.flush()
        return self._answer()

    def _answer(self) -> list[str]:
        """What comes before the next prompt."""
        assert self.process.stdout is not None
        found = bytearray()
        while not (found == PROMPT or found.endswith(b"\n" + PROMPT)):
            more = self.process.stdout.read1()  # type: ignore[union-attr]
            assert more, f"the shell ended: {found.decode()}"
            found += more
        lines = found.removesuffix(PROMPT).decode().splitlines()
        return [line for line in lines if not line.startswith(COMPLAINTS)]

    def close(self) -> None:
        self.process.kill()
        self.process.communicate()


@pytest.fixture(scope="module")
def metadata(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The metadata that a node of ours has left, with its snapshots."""
    if reason := kafka.why_missing():
        pytest.skip(reason)
    data = tmp_path_factory.mktemp("shells") / "data"
    node = Node(data, settings={"metadata.log.max.snapshot.interval.ms": "500"})
    log = data / "__cluster_metadata-0"
    try:
        there = ("--bootstrap-server", node.start().address)
        for name, partitions in (("orders", "3"), ("with.dot", "1")):
            assert ours("kafka-topics", *there, "--create", "--topic", name, "--partitions", partitions).code == 0
        for words in SETTINGS:
            assert ours("kafka-configs", *there, "--alter", *words.split()).code == 0
        before = len(list(log.glob("*.checkpoint")))
        wait_until(lambda: len(list(log.glob("*.checkpoint"))) > before, "a snapshot of all this")
    finally:
        stop_all([node])
    return log


@pytest.fixture(params=["snapshot", "log"])
def file(metadata: Path, request: pytest.FixtureRequest) -> Path:
    return max(metadata.glob("*.checkpoint")) if request.param == "snapshot" else metadata / f"{0:020}.log"


@pytest.fixture
def theirs(file: Path) -> Iterator[Theirs]:
    shell = Theirs(file)
    yield shell
    shell.close()


def test_both_shells_show_the_same(file: Path, theirs: Theirs) -> None:
    """CLI-14, KRF-15: names, contents, patterns, ways, and what is wrong; of ours as a conversation, too."""
    whole = mine(file, EVERYTHING)
    assert len(whole) > 50
    wait_until(lambda: theirs.says(EVERYTHING) == whole, "the whole tree")
    said = [line for command in COMMANDS for line in theirs.says(command)]
    differences = difflib.unified_diff(said, mine(file, *COMMANDS), "apache", "ours", lineterm="")
    assert "\n".join(differences) == ""


def mine(file: Path, *commands: str) -> list[str]:
    ran = ours("kafka-metadata-shell", "--snapshot", str(file), stdin="\n".join(commands))
    return [line for line in ran.out.splitlines() if not line.startswith(COMPLAINTS)]
