"""Quotas and SCRAM credentials as operators set them, with Apache's own tool and with admin clients; and producers and
consumers that feel them.

The node has short windows: what a quota allows for one second may come at once, and is forgotten after two.
"""

from __future__ import annotations

import time
from collections.abc import Iterator

import confluent_kafka
import pytest
from confluent_kafka import Consumer, Producer, TopicPartition
from confluent_kafka.admin import (  # type: ignore[attr-defined]
    AdminClient,
    NewTopic,
    ScramCredentialInfo,
    ScramMechanism,
    UserScramCredentialDeletion,
    UserScramCredentialUpsertion,
)
from kafka import KafkaAdminClient  # type: ignore[import-untyped]

from apache import kafka
from apache.tools import ApacheTools
from compat.peers import Peer, asking
from harness import Node, stop_all

SHORT = {"quota.window.num": "2", "controller.quota.window.num": "2", "num.partitions": "1"}
RATE = 150_000.0
RECORDS, SIZE = 45, 10_000


@pytest.fixture(scope="module")
def node(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Node]:
    own = Node(tmp_path_factory.mktemp("quotas") / "data", settings=SHORT)
    try:
        yield own.start()
    finally:
        stop_all([own])


@pytest.fixture(scope="module")
def tools() -> Iterator[ApacheTools]:
    if reason := kafka.why_missing():
        pytest.skip(reason)
    running = ApacheTools()
    yield running
    running.close()


@pytest.fixture(scope="module")
def admin(node: Node) -> AdminClient:
    return AdminClient({"bootstrap.servers": node.address})


class Configs:
    """kafka-configs.sh, at one node."""

    def __init__(self, tools: ApacheTools, node: Node) -> None:
        self.tools, self.node = tools, node

    def run(self, *arguments: str) -> str:
        ran = self.tools.run("kafka-configs", "--bootstrap-server", self.node.address, *arguments)
        assert ran.code == 0, (ran.out, ran.err)
        return ran.out.strip()

    def alter(self, entity: list[str], **limits: str) -> str:
        added = ",".join(
            f"{name.replace('SHA_', 'SHA-').replace('M_S', 'M-S')}={value}" for name, value in limits.items()
        )
        return self.run("--alter", *entity, "--add-config", added)

    def delete(self, entity: list[str], *names: str) -> str:
        return self.run("--alter", *entity, "--delete-config", ",".join(names))

    def describe(self, entity: list[str]) -> str:
        return self.run("--describe", *entity)


@pytest.fixture
def configs(tools: ApacheTools, node: Node) -> Configs:
    return Configs(tools, node)


def of(kind: str, name: str | None) -> list[str]:
    return ["--entity-type", kind, *(["--entity-default"] if name is None else ["--entity-name", name])]


@pytest.mark.apache
class TestConfigCommand:
    """CLI-08: kafka-configs.sh of 4.3.1."""

    def test_limits_of_users_clients_and_addresses(self, configs: Configs) -> None:
        both = [*of("users", "alice"), *of("clients", "app")]
        said = configs.alter(of("users", "alice"), producer_byte_rate="1000000", request_percentage="50.5")
        assert said == "Completed updating config for user alice."
        configs.alter(both, consumer_byte_rate="2000000")
        configs.alter(of("clients", None), controller_mutation_rate="1000000")
        configs.alter(of("ips", "192.0.2.7"), connection_creation_rate="10")
        shown = configs.describe(of("users", "alice"))
        assert "user-principal 'alice' are " in shown and "client-id" not in shown
        assert "producer_byte_rate=1000000.0" in shown and "request_percentage=50.5" in shown
        assert configs.describe(both) == (
            "Quota configs for user-principal 'alice', client-id 'app' are consumer_byte_rate=2000000.0"
        )
        assert configs.describe(of("clients", None)) == (
            "Quota configs for the default client-id are controller_mutation_rate=1000000.0"
        )
        assert configs.describe(["--entity-type", "ips"]) == (
            "Quota configs for ip '192.0.2.7' are connection_creation_rate=10.0"
        )
        configs.delete(of("users", "alice"), "producer_byte_rate", "request_percentage")
        assert configs.describe(of("users", "alice")) == ""
        configs.delete(both, "consumer_byte_rate")
        configs.delete(of("clients", None), "controller_mutation_rate")
        configs.delete(of("ips", "192.0.2.7"), "connection_creation_rate")

    def test_passwords(self, configs: Configs) -> None:
        """TRAP-75: one mechanism after the other, both told, one removed."""
        configs.alter(of("users", "bob"), SCRAM_SHA_256="[iterations=8192,password=secret]")
        configs.alter(of("users", "bob"), SCRAM_SHA_512="[password=secret]")
        shown = configs.describe(of("users", "bob"))
        assert "SCRAM-SHA-256=iterations=8192" in shown and "SCRAM-SHA-512=iterations=4096" in shown
        configs.delete(of("users", "bob"), "SCRAM-SHA-256")
        shown = configs.describe(of("users", "bob"))
        assert "SCRAM-SHA-256" not in shown and "SCRAM-SHA-512" in shown

    def test_what_is_refused(self, configs: Configs) -> None:
        ran = configs.tools.run(
            *("kafka-configs", "--bootstrap-server", configs.node.address, "--alter"),
            *(*of("ips", "no such host"), "--add-config", "connection_creation_rate=1"),
        )
        assert ran.code == 1 and "no such host" in ran.out + ran.err


class TestPasswords:
    def test_confluent(self, admin: AdminClient) -> None:
        """They are kept and described; nobody can log in with them yet."""
        strong = ScramCredentialInfo(ScramMechanism.SCRAM_SHA_512, 10_000)
        set_it = UserScramCredentialUpsertion("carol", strong, b"secret")
        admin.alter_user_scram_credentials([set_it])["carol"].result(60)
        told = admin.describe_user_scram_credentials(["carol"])["carol"].result(60)
        (held,) = told.scram_credential_infos
        assert (held.mechanism, held.iterations) == (ScramMechanism.SCRAM_SHA_512, 10_000)
        gone = UserScramCredentialDeletion("carol", ScramMechanism.SCRAM_SHA_512)
        admin.alter_user_scram_credentials([gone])["carol"].result(60)
        with pytest.raises(confluent_kafka.KafkaException) as refused:
            admin.describe_user_scram_credentials(["carol"])["carol"].result(60)
        assert refused.value.args[0].code() == 91  # RESOURCE_NOT_FOUND

    def test_kafka_python(self, node: Node) -> None:
        client = KafkaAdminClient(bootstrap_servers=node.address)
        try:
            answer = client.describe_user_scram_credentials(["nobody"])
            assert "nobody" in str(answer)
        finally:
            client.close()


def set_limit(node: Node, client_id: str, key: str, value: float) -> None:
    """By Apache's tool this would take a JVM; the layouts are the same."""
    entity = [{"entity_type": "client-id", "entity_name": client_id}]
    entry = {"entity": entity, "ops": [{"key": key, "value": value, "remove": False}]}
    answer = Peer(node.address).ask(asking(49, 1, entries=[entry]))
    assert answer.entries[0].error_code.name == "none"


def throttles(into: list[float]) -> dict[str, object]:
    return {"throttle_cb": lambda event: into.append(event.throttle_time)}


def test_a_producer_and_a_consumer_feel_their_quotas(node: Node, admin: AdminClient) -> None:
    """faults 5: as fast as the quota allows and not much faster; the client is told; nothing is lost."""
    admin.create_topics([NewTopic("limited", 1)])["limited"].result(60)
    set_limit(node, "limited-producer", "producer_byte_rate", RATE)
    set_limit(node, "limited-consumer", "consumer_byte_rate", RATE)
    least_s = RECORDS * SIZE / RATE - 2  # what the first two windows allow came at once
    told: list[float] = []
    producer = Producer(
        {"bootstrap.servers": node.address, "client.id": "limited-producer", "batch.size": 50_000, **throttles(told)}
    )
    began = time.monotonic()
    for number in range(RECORDS):
        producer.produce("limited", b"%d" % (number % 10) * SIZE)
    assert producer.flush(60) == 0
    assert time.monotonic() - began > least_s
    assert max(told) > 0
    told.clear()
    consumer = Consumer(
        {
            "bootstrap.servers": node.address,
            "group.id": "unused",
            "client.id": "limited-consumer",
            "enable.auto.commit": False,
            "fetch.message.max.bytes": 50_000,
            **throttles(told),
        }
    )
    consumer.assign([TopicPartition("limited", 0, 0)])
    began, seen, deadline = time.monotonic(), 0, time.monotonic() + 60
    while seen < RECORDS and time.monotonic() < deadline:
        seen += len([m for m in consumer.consume(10, 1.0) if m.error() is None])
    took = time.monotonic() - began
    consumer.close()
    assert seen == RECORDS and took > least_s
    assert max(told) > 0


def test_without_a_quota_nobody_is_told_to_wait(node: Node, admin: AdminClient) -> None:
    told: list[float] = []
    producer = Producer({"bootstrap.servers": node.address, "client.id": "free", **throttles(told)})
    for _ in range(RECORDS):
        producer.produce("limited", b"x" * SIZE)
    assert producer.flush(60) == 0 and told == []
