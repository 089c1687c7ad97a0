"""Kafka's tools against a node, without a JVM: what a first hour with Kafka needs. The comparison with Apache's is in
tests/compat/test_admin_tools.py."""

from __future__ import annotations

import importlib
import random
import subprocess
import sys

import pytest


class Tools:
    def __init__(self, bootstrap: str, capsys: pytest.CaptureFixture[str]) -> None:
        self.bootstrap = bootstrap
        self._capsys = capsys

    def run(self, name: str, *words: str, code: int = 0) -> str:
        main = importlib.import_module(f"ottla.cli.kafka.{name}").main
        ended = main(["--bootstrap-server", self.bootstrap, *words])
        said = self._capsys.readouterr()
        assert ended == code, said.out + said.err
        return str(said.out if code == 0 else said.out + said.err)


@pytest.fixture
def tools(broker: str, capsys: pytest.CaptureFixture[str]) -> Tools:
    return Tools(broker, capsys)


@pytest.fixture
def topic() -> str:
    return f"tools-{random.randrange(1 << 40):x}"


def test_a_topic(tools: Tools, topic: str) -> None:
    """CLI-01, CLI-02, CLI-11, CLI-19: created, described, configured, deleted; by a list of addresses."""
    assert tools.run("topics", "--create", "--topic", topic, "--partitions", "6") == f"Created topic {topic}.\n"
    described = tools.run("topics", "--describe", "--topic", topic).splitlines()
    assert len(described) == 7
    assert described[1] == f"\tTopic: {topic}\tPartition: 0\tLeader: 1\tReplicas: 1\tIsr: 1\tElr: \tLastKnownElr: "
    change = ("--alter", "--entity-type", "topics", "--entity-name", topic, "--add-config", "min.insync.replicas=1")
    assert tools.run("configs", *change) == f"Completed updating config for topic {topic}.\n"
    assert "min.insync.replicas=1 sensitive=false" in tools.run("configs", "--describe", "--topic", topic)
    tools.bootstrap = f"127.0.0.1:1,{tools.bootstrap}"
    assert topic in tools.run("topics", "--list").splitlines()
    assert tools.run("topics", "--delete", "--topic", topic) == ""
    assert tools.run("topics", "--describe", "--topic", topic, code=1) == (
        f"Error while executing topic command : Topic '{topic}' does not exist as expected\n"
    )


# What a tool needs that does nothing but ask: each with the least it can be asked.
AT = ("--bootstrap-server", "BROKER")
QUESTIONS = {
    "topics": (*AT, "--list"),
    "configs": (*AT, "--describe", "--entity-type", "brokers", "--entity-default"),
    "consumer_groups": (*AT, "--list"),
    "get_offsets": AT,
    "log_dirs": (*AT, "--describe"),
    "broker_api_versions": AT,
    "cluster": ("cluster-id", *AT),
    "features": (*AT, "describe"),
    "metadata_quorum": (*AT, "describe", "--status"),
    "leader_election": (*AT, "--election-type", "preferred", "--all-topic-partitions"),
    "reassign_partitions": (*AT, "--list"),
    "transactions": (*AT, "list"),
    "console_producer": (*AT, "--topic", "asked"),
    "console_consumer": (*AT, "--topic", "asked", "--timeout-ms", "1"),
}
# Loading any of these takes longer than all that a tool has to do.
HEAVY = ("ottla.server", "ottla.sim", "ottla.pipeline", "numpy", "pyarrow", "pyspark")


@pytest.mark.parametrize("name", QUESTIONS)
def test_a_tool_that_asks_loads_nothing_heavy(name: str, tools: Tools, broker: str) -> None:
    """A tool has answered before a JVM has started, so it loads the client and no more."""
    tools.run("topics", "--create", "--topic", "asked", "--if-not-exists")
    program = (
        "import sys\n"
        f"from ottla.cli.kafka.{name} import main\n"
        "code = main(sys.argv[1:])\n"
        f"heavy = [module for module in {HEAVY!r} if module in sys.modules]\n"
        "sys.exit(code or ' '.join(heavy) or 0)\n"
    )
    words = [word.replace("BROKER", broker) for word in QUESTIONS[name]]
    command = [sys.executable, "-c", program, *words]
    done = subprocess.run(command, stdin=subprocess.DEVNULL, capture_output=True, text=True, timeout=60)
    assert done.returncode == 0, done.stdout + done.stderr


def test_versions(tools: Tools) -> None:
    """CLI-15"""
    shown = tools.run("broker_api_versions")
    assert "(id: 1 rack: null isFenced: false) -> (\n\tProduce(0): 0 to 13 [usable: 13],\n" in shown
    assert "UNKNOWN" not in shown


def test_nobody_is_there(tools: Tools) -> None:
    tools.bootstrap = "127.0.0.1:1"
    assert "no broker at 127.0.0.1:1 (connection refused)" in tools.run("topics", "--list", code=1)
    tools.bootstrap = "nonsense"
    assert tools.run("topics", "--list", code=1).splitlines()[1] == "Invalid url in bootstrap.servers: nonsense"


def test_other_protocols_are_refused_in_words(tools: Tools, tmp_path: object) -> None:
    from pathlib import Path

    path = Path(str(tmp_path)) / "client.properties"
    path.write_text("security.protocol=SASL_SSL\n")
    said = tools.run("topics", "--command-config", str(path), "--list", code=1)
    assert "PLAINTEXT only" in said
