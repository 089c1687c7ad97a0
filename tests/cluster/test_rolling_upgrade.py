"""Three nodes get another release and another setting, one after the other, while two kinds of clients write."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
import threading
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import IO

import pytest

import ottla
from apache import kafka
from apache.tools import ApacheTools
from cluster.loads import Writer, read_all
from cluster.nodes import Cluster, Member, eventually
from harness import die_with_parent, free_port
from operations.speaking import samples
from ottla.wire.messages.settings import DescribeConfigsRequest, DescribeConfigsResponse

pytestmark = [pytest.mark.apache, pytest.mark.slow]

PARTITIONS = 3
BEFORE, AFTER = "4.0-IV3", "4.3-IV0"
SETTING = "message.max.bytes"
BROKER = 4


class Released(Member):
    """A node that runs the release found in `source`, in place of the one that is installed."""

    def __init__(self, directory: Path, node_id: int, roles: str, ports: tuple[int, int]) -> None:
        super().__init__(directory, node_id, roles, ports)
        self.source: Path | None = None
        self.metrics = free_port()

    def command(self) -> Sequence[str]:
        options = ["--metrics-port", str(self.metrics)]
        return [sys.executable, "-m", "ottla", "serve", str(self.properties), *options]

    def environment(self) -> Mapping[str, str]:
        return {**os.environ, "PYTHONPATH": str(self.source)} if self.source else os.environ

    def format(self, *options: str) -> None:
        super().format(*options, "--release-version", BEFORE)

    def version(self) -> str:
        labels = next(name for name in samples(self.metrics) if name.startswith("ottla_build_info"))
        return labels.split('version="')[1].split('"')[0]


def next_release(place: Path) -> Path:
    """A copy of the source that has another version."""
    package = Path(ottla.__file__).parent
    shutil.copytree(package, place / "ottla", ignore=shutil.ignore_patterns("__pycache__"))
    first = place / "ottla" / "__init__.py"
    first.write_text(re.sub(r'__version__ = ".*"', '__version__ = "99.0.0"', first.read_text()))
    return place


class JavaWriter:
    """Java's producer, by way of Kafka's console: numbers from 0 on to one partition, until it is finished."""

    def __init__(self, bootstrap: str, topic: str) -> None:
        properties = ("acks=all", "enable.idempotence=true", "linger.ms=5", "delivery.timeout.ms=90000")
        words = [word for each in properties for word in ("--producer-property", each)]
        self.sent = 0
        self._process = subprocess.Popen(
            kafka.java(
                *("org.apache.kafka.tools.ConsoleProducer", "--bootstrap-server", bootstrap, "--topic", topic, *words),
                logging=kafka.logging_file("ERROR"),
            ),
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            preexec_fn=die_with_parent,
        )
        self._stopping = threading.Event()
        self._thread = threading.Thread(target=self._run, daemon=True)

    def __enter__(self) -> JavaWriter:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._stopping.set()
        self._thread.join()
        if self._process.poll() is None:
            self._process.kill()
        self._process.wait()

    def _run(self) -> None:
        pipe: IO[bytes] | None = self._process.stdin
        assert pipe is not None
        while not self._stopping.wait(0.02):
            pipe.write(b"".join(b"%d\n" % n for n in range(self.sent, self.sent + 5)))
            pipe.flush()
            self.sent += 5

    def finish(self) -> str:
        """Wait for what is under way; what it said."""
        self._stopping.set()
        self._thread.join()
        out, _ = self._process.communicate(timeout=120)
        assert self._process.returncode == 0, out
        return out.decode(errors="replace")


def setting(nodes: Cluster, of: int) -> str:
    resource = DescribeConfigsRequest.Resource(
        resource_type=BROKER, resource_name=str(of), configuration_keys=[SETTING]
    )
    request = DescribeConfigsRequest(resources=[resource])
    answer = nodes.ask(lambda line: line.ask(request, DescribeConfigsResponse, 4), of)
    return str(answer.results[0].configs[0].value)


def test_code_and_settings_change_under_load(tools: ApacheTools, tmp_path: Path) -> None:
    """REP-12, REP-16, KRF-11: neither client sees an error, and all they wrote is there once and in order. When the last node
    runs the new release, the cluster agrees on what only that can do."""
    with Cluster(tmp_path, kinds=dict.fromkeys((1, 2, 3), Released)) as nodes:
        nodes.start()
        nodes.create("rolled", PARTITIONS)
        nodes.create("java", 1)
        release = next_release(tmp_path / "next")
        with (
            Writer(nodes.bootstrap, "rolled", PARTITIONS, per_second=500) as writer,
            JavaWriter(nodes.bootstrap, "java") as java,
        ):
            writer.wait_for(50)
            eventually(lambda: sum(1 for _ in read_all(nodes.bootstrap, "java", 0)) > 20, "Java's producer writes")
            for member in nodes.members.values():
                upgrade(nodes, member, release)
                writer.wait_for(50)
            agree(tools, nodes)
            writer.wait_for(50)
            writer.finish()
            said = java.finish()
        assert "rror" not in said, said
        writer.check(nodes.bootstrap)
        numbers = [int(value) for value in read_all(nodes.bootstrap, "java", 0)]
        assert numbers == list(range(java.sent))


def upgrade(nodes: Cluster, member: Member, release: Path) -> None:
    assert isinstance(member, Released)
    assert (member.version(), setting(nodes, member.node_id)) == (ottla.__version__, "1048588")
    assert member.stop(60) == 0
    member.source = release
    member.write_properties(nodes.settings | nodes._quorum_settings() | {SETTING: "2000000"})
    member.start()
    nodes.wait_brokers({1, 2, 3})
    for topic in ("rolled", "java"):
        nodes.wait_in_sync(topic)
    assert (member.version(), setting(nodes, member.node_id)) == ("99.0.0", "2000000")


def agree(tools: ApacheTools, nodes: Cluster) -> None:
    where = ("--bootstrap-server", nodes.bootstrap)
    assert f"FinalizedVersionLevel: {BEFORE}" in tools.run("kafka-features", *where, "describe").out
    ran = tools.run("kafka-features", *where, "upgrade", "--metadata", AFTER)
    assert ran.code == 0, ran
    assert f"FinalizedVersionLevel: {AFTER}" in tools.run("kafka-features", *where, "describe").out
