"""Apache Kafka's tools for leaders, places, features and members: what they print about our node, and about Apache's.

The same commands go to both, in the same order; what they say is compared line by line after volatile words (addresses,
paths, ids, how far the metadata is) are made equal.
"""

from __future__ import annotations

import asyncio
import json
import random
import re
import time
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Any

import confluent_kafka
import pytest
from confluent_kafka import TopicPartition
from confluent_kafka.admin import AdminClient
from kafka import KafkaAdminClient  # type: ignore[import-untyped]

from apache import kafka
from apache.tools import ApacheTools, Ran
from compat.both_tools import ours
from compat.peers import OF_ONE_NODE, Peer, asking, compare
from compat.transacting import JavaLibrary, Transactor
from harness import HOST, Node, Server, free_port, stop_all
from ottla.client.cluster import Cluster
from ottla.client.transaction_admin import TransactionAdmin

pytestmark = pytest.mark.apache

VOLATILE = [
    (re.compile(r"127\.0\.0\.1:\d+"), "ADDRESS"),
    (re.compile(r"(127\.0\.0\.1 )\d+ +"), r"\1PORT "),
    (re.compile(r"\b[A-Za-z0-9_-]{22}\b"), "ID"),
    (re.compile(r"Epoch: +\d+|HighWatermark: +\d+|LeaderEpoch: +\d+|MaxFollowerLagTimeMs: +\d+"), "NUMBER"),
    (re.compile(r"\d+ +\t0 +\t\d+ ms ago +\t\d+ ms ago +"), "HOW FAR"),
    (re.compile(r'"size":\d+'), '"size":N'),
]
SECONDS = 30.0
# Features that Apache has and we do not serve yet.
NOT_SERVED = re.compile(r"(share|streams)\.version")


class Broker:
    """A node with two data directories and a controller's port that one knows."""

    def __init__(self, kind: str, root: Path, tools: ApacheTools) -> None:
        self.root, self.tools = root / kind, tools
        self.paths = [str(self.root / name) for name in ("one", "two")]
        self.controller = f"{HOST}:{free_port()}"
        settings = {"log.dirs": ",".join(self.paths)}
        self.server: Server
        if kind == "apache":
            port = int(self.controller.rpartition(":")[2])
            self.server = kafka.Apache(self.root / "one", settings=settings, controller_port=port)
        else:
            self.server = node = Node(self.root / "one", settings=settings)
            node.settings["listeners"] = f"PLAINTEXT://{node.address},CONTROLLER://{self.controller}"

    def run(self, tool: str, *words: object, controller: bool = False) -> Ran:
        """A tool, with the address where it asks for one; what it says made comparable."""
        where = (
            ["--bootstrap-controller", self.controller] if controller else ["--bootstrap-server", self.server.address]
        )
        ran = self.tools.run(tool, *(part for word in words for part in (where if word == "@" else [word])))
        return Ran(ran.code, self._comparable(ran.out), self._comparable(ran.err.partition("\n")[0]))

    def _comparable(self, text: str) -> str:
        for path in self.paths:
            text = text.replace(path, f"/{Path(path).name}")
        for pattern, word in VOLATILE:
            text = pattern.sub(word, text)
        return "\n".join(line for line in text.strip().splitlines() if not NOT_SERVED.search(line))

    def file(self, name: str, content: Any) -> Path:
        path = self.root / name
        path.write_text(json.dumps(content))
        return path

    def places(self, topic: str) -> dict[str, tuple[str, bool]]:
        """Of each partition its directory, and whether a copy of it is on its way."""
        ran = self.tools.run(
            "kafka-log-dirs", "--bootstrap-server", self.server.address, "--describe", "--topic-list", topic
        )
        (broker,) = json.loads(ran.out.strip().splitlines()[-1])["brokers"]
        return {p["partition"]: (d["logDir"], p["isFuture"]) for d in broker["logDirs"] for p in d["partitions"]}


@pytest.fixture(scope="module")
def brokers(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[Broker, Broker]]:
    if reason := kafka.why_missing():
        pytest.skip(reason)
    root, tools = tmp_path_factory.mktemp("administration"), ApacheTools()
    both = Broker("ours", root, tools), Broker("apache", root, tools)
    try:
        for broker in both:
            broker.root.mkdir()
            broker.server.start()
            broker.run("kafka-topics", "@", "--create", "--topic", "t", "--partitions", 2, "--replication-factor", 1)
        yield both
    finally:
        tools.close()
        stop_all([broker.server for broker in both])


QUESTIONS = {"describe", "--describe", "--list"}


def same(brokers: tuple[Broker, Broker], tool: str, *words: object, controller: bool = False) -> Ran:
    """What both say. Apache's answers before its broker has read what its controller decided, so questions are asked again."""
    ours, theirs = (broker.run(tool, *words, controller=controller) for broker in brokers)
    deadline = time.monotonic() + SECONDS
    while ours != theirs and QUESTIONS & {*words} and time.monotonic() < deadline:
        time.sleep(0.1)
        ours, theirs = (broker.run(tool, *words, controller=controller) for broker in brokers)
    assert ours == theirs, f"{tool} {' '.join(map(str, words))}"
    return ours


def test_features(brokers: tuple[Broker, Broker]) -> None:
    """KIP-584, KIP-1022: kafka-features describe, upgrade, downgrade, disable, by broker and by controller."""
    for controller in (False, True):
        assert "group.version" in same(brokers, "kafka-features", "@", "describe", controller=controller).out
    one, none = ("--feature", "group.version=1"), ("--feature", "group.version=0")
    assert same(brokers, "kafka-features", "@", "upgrade", *one).code == 0
    assert same(brokers, "kafka-features", "@", "downgrade", *none, "--dry-run").code == 0
    assert same(brokers, "kafka-features", "@", "upgrade", *none).code == 1
    assert same(brokers, "kafka-features", "@", "disable", "--feature", "group.version").code == 0
    assert "Level: 0" in same(brokers, "kafka-features", "@", "describe").out
    assert same(brokers, "kafka-features", "@", "upgrade", *one, controller=True).code == 0
    assert same(brokers, "kafka-features", "@", "upgrade", "--metadata", "4.3-IV0").code == 0
    assert same(brokers, "kafka-features", "@", "downgrade", "--metadata", "3.9").code == 1
    assert same(brokers, "kafka-features", "@", "upgrade", "--feature", "chosen=1").code == 1


@pytest.mark.parametrize("tool", ["apache", "ours"])
def test_the_version_of_transactions_changes_around_an_open_one(brokers: tuple[Broker, Broker], tool: str) -> None:
    """KIP-890: kafka-features lowers transaction.version and raises it again. What is open goes on and ends as it began, each
    time; whoever begins anew speaks as it is agreed by then, and brings a new epoch with every end, or none."""
    library = JavaLibrary("java-4.3", kafka.JARS)
    try:
        told = [_epochs_of_ends(broker, library, tool) for broker in brokers]
    finally:
        library.close()
    assert told == [[1, 1, 0, 0, 1]] * 2


def _epochs_of_ends(broker: Broker, library: JavaLibrary, tool: str) -> list[int]:
    """By how much each end of a transaction raised the epoch."""
    address, topic, rises = broker.server.address, f"switched-by-{tool}", []
    broker.run("kafka-topics", "@", "--create", "--topic", topic)

    def end(producer: Transactor) -> None:
        before = _epoch(address, topic)
        producer.commit()
        rises.append(_epoch(address, topic) - before)

    def switch(*words: str) -> None:
        run = broker.tools.run if tool == "apache" else ours
        assert run("kafka-features", "--bootstrap-server", address, *words).code == 0

    producer = library.producer(address, topic).init()
    end(producer.wrote(topic, "in 2"))
    producer.wrote(topic, "begun in 2")
    switch("downgrade", "--feature", "transaction.version=1")
    producer.send(topic, "ended in 1")
    end(producer)
    producer.close()
    producer = library.producer(address, topic).init()
    end(producer.wrote(topic, "in 1"))
    producer.wrote(topic, "begun in 1")
    switch("upgrade", "--feature", "transaction.version=2")
    producer.send(topic, "ended in 2")
    end(producer)
    producer.close()
    producer = library.producer(address, topic).init()
    end(producer.wrote(topic, "in 2 again"))
    producer.close()
    found = [each.value for each in library.read(address, topic, 1, "read_committed")]
    assert found == ["in 2", "begun in 2", "ended in 1", "in 1", "begun in 1", "ended in 2", "in 2 again"]
    return rises


def _epoch(address: str, transactional_id: str) -> int:
    """Once its last end is carried out."""

    async def found() -> int:
        async with Cluster(address) as cluster:
            while (info := await TransactionAdmin(cluster).describe(transactional_id)).state.startswith("Prepare"):
                await asyncio.sleep(0.01)
            return info.epoch

    return asyncio.run(found())


def test_the_quorum_and_the_cluster(brokers: tuple[Broker, Broker]) -> None:
    """KIP-595, KIP-853, KIP-919: kafka-metadata-quorum and kafka-cluster."""
    for controller in (False, True):
        assert (
            "CurrentVoters"
            in same(brokers, "kafka-metadata-quorum", "@", "describe", "--status", controller=controller).out
        )
        replication = ("describe", "--replication", "--human-readable")
        assert "Leader" in same(brokers, "kafka-metadata-quorum", "@", *replication, controller=controller).out
        assert same(brokers, "kafka-cluster", "list-endpoints", "@", controller=controller).code == 0
        assert same(brokers, "kafka-cluster", "cluster-id", "@", controller=controller).code == 0
    assert same(brokers, "kafka-cluster", "list-endpoints", "@", "--include-fenced-brokers").code == 0
    assert same(brokers, "kafka-cluster", "unregister", "@", "--id", 7).code == 1
    voter = ("remove-controller", "--controller-id", 9, "--controller-directory-id", "AAAAAAAAAAAAAAAAAAAAAQ")
    assert same(brokers, "kafka-metadata-quorum", "@", *voter).code == 1


def test_elections(brokers: tuple[Broker, Broker]) -> None:
    """KIP-460: kafka-leader-election for one partition, for all, and for one that is not there."""
    for kind in ("preferred", "unclean"):
        election = ("kafka-leader-election", "@", "--election-type", kind)
        assert same(brokers, *election, "--all-topic-partitions").code == 0
        assert "already elected" in same(brokers, *election, "--topic", "t", "--partition", 1).out
        assert same(brokers, *election, "--topic", "t", "--partition", 9).code == 1


def test_reassignments(brokers: tuple[Broker, Broker]) -> None:
    """KIP-455: generate, execute with a limit, verify, list and cancel."""
    tool = ("kafka-reassign-partitions", "@")
    for broker in brokers:
        broker.file("topics.json", {"version": 1, "topics": [{"topic": "t"}]})
        broker.file("bad.json", {"version": 1, "partitions": [{"topic": "t", "partition": 0, "replicas": [2]}]})
        place, _ = broker.places("t")["t-0"]
        target = next(path for path in broker.paths if path != place)
        moving = {"topic": "t", "partition": 0, "replicas": [1], "log_dirs": [target]}
        broker.file("plan.json", {"version": 1, "partitions": [moving]})

    def each(*words: str, file: str) -> list[Ran]:
        return [broker.run(*tool, *words, broker.root / file) for broker in brokers]

    generated = each("--generate", "--broker-list", "1", "--topics-to-move-json-file", file="topics.json")
    assert [ran.code for ran in generated] == [0, 0]
    assert [ran.out.splitlines()[-1] for ran in generated] == [generated[0].out.splitlines()[-1]] * 2
    refused = each("--execute", "--reassignment-json-file", file="bad.json")
    assert refused[0] == refused[1] and refused[0].code == 1
    limits = ("--throttle", "5000000", "--replica-alter-log-dirs-throttle", "10000000")
    executed = each("--execute", *limits, "--reassignment-json-file", file="plan.json")
    assert [ran.code for ran in executed] == [0, 0]
    assert _without_places(executed[0]) == _without_places(executed[1])
    for broker in brokers:
        _until(partial(_has_arrived, broker))
    for entity in (("brokers", "1"), ("topics", "t")):
        same(brokers, "kafka-configs", "@", "--describe", "--entity-type", entity[0], "--entity-name", entity[1])
    verified = each("--verify", "--reassignment-json-file", file="plan.json")
    assert _without_places(verified[0]) == _without_places(verified[1])
    assert "completed" in verified[0].out and "Clearing" in verified[0].out
    same(brokers, "kafka-configs", "@", "--describe", "--entity-type", "brokers", "--entity-name", "1")
    assert same(brokers, *tool, "--list").out == "No partition reassignments found."
    cancelled = each("--cancel", "--reassignment-json-file", file="plan.json")
    assert cancelled[0] == cancelled[1]


def _has_arrived(broker: Broker) -> bool:
    plan = json.loads((broker.root / "plan.json").read_text())
    return broker.places("t")["t-0"] == (plan["partitions"][0]["log_dirs"][0], False)


def _without_places(ran: Ran) -> Ran:
    """Which of two directories a partition was in first is chance."""
    return Ran(ran.code, re.sub(r"/(one|two)\b", "/SOMEWHERE", ran.out), ran.err)


def _until(done: Callable[[], bool], seconds: float = SECONDS) -> None:
    deadline = time.monotonic() + seconds
    while not done():
        assert time.monotonic() < deadline, "the replica did not arrive"
        time.sleep(0.1)


def test_what_has_settings(brokers: tuple[Broker, Broker]) -> None:
    """KIP-714, KIP-1142: subscriptions to client metrics, and settings of groups, listed and described."""
    metrics = ("kafka-client-metrics", "@")
    assert same(brokers, *metrics, "--alter", "--name", "m", "--interval", 5000, "--metrics", "a.b").code == 0
    assert same(brokers, *metrics, "--list").out == "m"
    assert same(brokers, *metrics, "--describe", "--name", "m").code == 0
    assert same(brokers, *metrics, "--delete", "--name", "m").code == 0
    assert same(brokers, *metrics, "--list").out == ""
    group = ("kafka-configs", "@", "--entity-type", "groups", "--entity-name", "g")
    setting = "consumer.session.timeout.ms"
    assert same(brokers, *group, "--alter", "--add-config", f"{setting}=50000").code == 0
    assert same(brokers, *group, "--alter", "--add-config", f"{setting}=1").code == 1
    assert "50000" in same(brokers, *group, "--describe").out
    assert same(brokers, "kafka-configs", "@", "--describe", "--entity-type", "groups").code == 0
    assert same(brokers, *group, "--alter", "--delete-config", setting).code == 0
    for kind in ("topics", "brokers", "client-metrics"):
        assert same(brokers, "kafka-configs", "@", "--describe", "--entity-type", kind).code == 0


def test_producers_of_a_partition(brokers: tuple[Broker, Broker]) -> None:
    """KIP-664: kafka-transactions describe-producers, after an idempotent producer wrote."""
    for broker in brokers:
        producer = confluent_kafka.Producer({"bootstrap.servers": broker.server.address, "enable.idempotence": True})
        producer.produce("t", b"v", partition=1)
        assert producer.flush(20) == 0
    told = [
        broker.run("kafka-transactions", "@", "describe-producers", "--topic", "t", "--partition", index)
        for index in (0, 1)
        for broker in brokers
    ]
    rows = [re.sub(r"\d{13}", "TIME", ran.out).splitlines()[1:] for ran in told]
    assert rows[0] == rows[1] == [], "nobody wrote to the first"
    assert rows[2] == rows[3] and len(rows[2]) == 1


KINDS = {"topics": (2, "t"), "this broker": (4, "1"), "all brokers": (4, ""), "metrics": (16, "m"), "groups": (32, "g")}
VALUES = [
    "",
    "0",
    "1",
    "-1",
    "-2",
    "x",
    "TRUE",
    "1.5",
    "2147483648",
    "9223372036854775808",
    " 5 ",
    "a,b",
    "60000",
    "compact",
]
SET, DELETE, APPEND, SUBTRACT = range(4)


@pytest.mark.parametrize("resource", KINDS)
def test_values_of_every_setting(brokers: tuple[Broker, Broker], resource: str) -> None:
    """Each setting there is, tried with values that it may not like, and never really set: `validate_only`."""
    kind, name = KINDS[resource]
    peers = Peer(brokers[0].server.address), Peer(brokers[1].server.address)
    asked = {"resource_type": kind, "resource_name": name or "1", "configuration_keys": None}
    known = [config.name for config in peers[1].ask(asking(32, 4, resources=[asked])).results[0].configs]
    rng, found = random.Random(resource), []
    for setting in (each for each in known if each not in OF_ONE_NODE):
        tries = [(SET, value) for value in rng.sample(VALUES, 3)]
        tries += [(DELETE, None), (rng.choice((APPEND, SUBTRACT)), rng.choice(VALUES))]
        for how, value in tries:
            configs = [{"name": setting, "config_operation": how, "value": value}]
            change = {"resource_type": kind, "resource_name": name, "configs": configs}
            if text := compare(asking(44, 1, resources=[change], validate_only=True), peers, settle=False):
                found.append(f"{setting} {how} {value!r}: {text}")
    assert not found, "\n".join(found)


def test_confluent_and_kafka_python(brokers: tuple[Broker, Broker]) -> None:
    """librdkafka's admin elects leaders; kafka-python's describes directories and reassigns."""
    for broker in brokers:
        admin = AdminClient({"bootstrap.servers": broker.server.address})
        kind = confluent_kafka.ElectionType.PREFERRED
        elected = admin.elect_leaders(kind, [TopicPartition("t", 0)]).result(60)
        (error,) = elected.values()
        assert error.code() == 84
    python = KafkaAdminClient(bootstrap_servers=brokers[0].server.address)
    try:
        assert python.describe_log_dirs() is not None
    finally:
        python.close()
