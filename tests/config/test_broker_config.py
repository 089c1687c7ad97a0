"""The settings of a node: where a value comes from, what is refused, what is warned about."""

from __future__ import annotations

import subprocess
import sys

import pytest

from ottla.config import BrokerConfig, single_node_defaults
from ottla.wire.errors import Error, KafkaError


def config(**changes: str) -> BrokerConfig:
    return BrokerConfig(single_node_defaults() | {name.replace("_", "."): value for name, value in changes.items()})


def test_values_have_their_type() -> None:
    it = config(log_retention_bytes="12")
    assert it["log.segment.bytes"] == 1 << 30
    assert it["log.retention.bytes"] == 12
    assert it["auto.create.topics.enable"] is True
    assert it["process.roles"] == ("broker", "controller")
    assert it["log.cleaner.io.buffer.load.factor"] == 0.9
    assert it["broker.rack"] is None
    with pytest.raises(KeyError):
        it["no.such.setting"]


def test_a_single_node_can_have_groups() -> None:
    """TRAP-57: with Kafka's own default of 3 copies no group ever starts on one node."""
    it = BrokerConfig(single_node_defaults())
    assert it["offsets.topic.replication.factor"] == 1
    assert it["transaction.state.log.replication.factor"] == it["transaction.state.log.min.isr"] == 1
    assert it["share.coordinator.state.topic.replication.factor"] == 1
    assert it.node_id == 1
    assert it.warnings == []
    assert [endpoint.port for endpoint in it.broker_endpoints] == [9092]
    assert {endpoint.host for endpoint in it.endpoints} == {"localhost"}


def test_without_listeners_a_node_serves_this_machine_only() -> None:
    """Apache Kafka would serve every interface. Whoever advertises an address wants to be reached."""
    it = BrokerConfig({"broker.id": "7"})
    assert [(endpoint.host, endpoint.port) for endpoint in it.endpoints] == [("localhost", 9092)]
    assert len(it.warnings) == 1 and "listeners=PLAINTEXT://:9092" in it.warnings[0]
    for told in ({"listeners": "PLAINTEXT://:9092"}, {"advertised.listeners": "PLAINTEXT://broker.example:9092"}):
        it = BrokerConfig(told)
        assert [(endpoint.host, endpoint.port) for endpoint in it.endpoints] == [("", 9092)]
        assert it.warnings == []


def test_a_topic_falls_back_to_the_brokers_setting_in_its_own_unit() -> None:
    assert config(log_retention_hours="2").topic_settings({})["retention.ms"] == 7_200_000
    assert config(log_retention_hours="2", log_retention_minutes="5").topic_settings({})["retention.ms"] == 300_000
    both = {"log_retention_ms": "9", "log_retention_minutes": "5"}
    assert config(**both).topic_settings({})["retention.ms"] == 9
    assert config(log_retention_minutes="-1").topic_settings({})["retention.ms"] == -1
    assert config(log_roll_hours="1").topic_settings({})["segment.ms"] == 3_600_000
    assert config(log_roll_jitter_hours="1").topic_settings({})["segment.jitter.ms"] == 3_600_000
    assert config(log_flush_scheduler_interval_ms="70").topic_settings({})["flush.ms"] == 70
    assert config(log_flush_interval_ms="60").topic_settings({})["flush.ms"] == 60
    assert config(message_max_bytes="77").topic_settings({})["max.message.bytes"] == 77


def test_a_topic_wins_over_the_broker() -> None:
    values = config(log_retention_ms="9").topic_settings({"retention.ms": "5", "cleanup.policy": "compact,delete"})
    assert values["retention.ms"] == 5
    assert values["cleanup.policy"] == ("compact", "delete")


def test_what_another_release_stored_for_a_topic_does_no_harm() -> None:
    values = config().topic_settings({"message.format.version": "2.8", "segment.bytes": "14"})
    assert values["segment.bytes"] == 1 << 30
    assert "message.format.version" not in values


def test_dynamic_settings_count_at_once_and_in_order() -> None:
    it = config(log_retention_hours="2", message_max_bytes="1")
    told: list[frozenset[str]] = []
    it.listen(told.append)
    it.set_dynamic({"message.max.bytes": "2", "log.retention.ms": "4"}, {"message.max.bytes": "3"})
    assert it["message.max.bytes"] == 3
    assert it.topic_settings({})["retention.ms"] == 4
    assert it.topic_settings({})["max.message.bytes"] == 3
    it.set_dynamic({"message.max.bytes": "2"}, {})
    assert (it["message.max.bytes"], it.topic_settings({})["retention.ms"]) == (2, 7_200_000)
    it.set_dynamic({}, {})
    assert it["message.max.bytes"] == 1
    it.set_dynamic({}, {})
    assert told == [
        frozenset({"message.max.bytes", "log.retention.ms", "log.retention.hours"}),
        frozenset({"message.max.bytes", "log.retention.ms", "log.retention.hours"}),
        frozenset({"message.max.bytes"}),
    ]


def test_a_dynamic_setting_that_makes_no_sense_is_left_out() -> None:
    it = config()
    it.set_dynamic({"message.max.bytes": "banana", "compression.type": "zstd"}, {})
    assert (it["message.max.bytes"], it["compression.type"]) == (1048588, "zstd")


def test_unknown_and_removed_settings_are_named() -> None:
    """CFG: a user who sets what no longer exists is told what replaced it."""
    it = BrokerConfig(
        {
            "broker.id": "7",
            "zookeeper.connect": "localhost:2181",
            "replica.lag.max.messages": "4000",
            "rebalance.delay.ms": "5",
            "log.message.format.version": "2.8",
            "inter.broker.protocol.version": "3.0",
            "no.such.setting": "1",
            "listener.name.internal.ssl.client.auth": "none",
            "listeners": "PLAINTEXT://:9092",
        }
    )
    warnings = "\n".join(it.warnings)
    assert len(it.warnings) == 6
    for words in (
        "zookeeper.connect was removed: ZooKeeper is gone",
        "replica.lag.time.max.ms",
        "group.initial.rebalance.delay.ms",
        "log.message.format.version was removed",
        "metadata.version",
        "no.such.setting is not a setting",
    ):
        assert words in warnings
    assert it["node.id"] == it["broker.id"] == 7
    assert it["process.roles"] == ("broker", "controller")


ONLY_BROKER = {"process.roles": "broker", "listeners": "PLAINTEXT://localhost:9092"}
ONLY_CONTROLLER = {"process.roles": "controller", "listeners": "CONTROLLER://localhost:9093"}


@pytest.mark.parametrize(
    ("changes", "is_one"),
    [
        ({}, False),
        ({"controller.quorum.bootstrap.servers": "localhost:9093"}, False),  # as Apache's own example has it
        ({"controller.quorum.voters": "1@localhost:9093"}, False),
        ({"controller.quorum.voters": "1@a:9093,2@b:9093,3@c:9093"}, True),
        ({"controller.quorum.bootstrap.servers": "a:9093,b:9093,c:9093"}, True),
        (ONLY_BROKER | {"controller.quorum.bootstrap.servers": "a:9093"}, True),
        (ONLY_CONTROLLER | {"controller.quorum.voters": "1@a:9093,2@b:9093"}, True),
    ],
)
def test_nodes_of_a_cluster(changes: dict[str, str], is_one: bool) -> None:
    """KRF-07: combined and isolated roles, fixed voters and those that are found by an address."""
    assert BrokerConfig(single_node_defaults() | changes).is_one_of_several == is_one


def test_where_the_controller_is_found() -> None:
    """Where it listens, unless something else is advertised, as in a container."""
    assert config().advertised_controllers == config().controller_endpoints
    inside = {"listeners": "PLAINTEXT://0.0.0.0:9092,CONTROLLER://0.0.0.0:9093"}
    outside = {"advertised.listeners": "PLAINTEXT://kafka-1:9092,CONTROLLER://kafka-1:19093"}
    it = BrokerConfig(single_node_defaults() | inside | outside)
    assert [(each.host, each.port) for each in it.advertised] == [("kafka-1", 9092)]
    assert [(each.host, each.port) for each in it.advertised_controllers] == [("kafka-1", 19093)]


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"num.partitions": "banana"}, ("num.partitions", "banana", "number")),
        ({"num.partitions": "0"}, ("num.partitions", "0", "at least 1")),
        ({"process.roles": "broker,king"}, ("process.roles", "king", "broker, controller")),
        ({"broker.id": "2"}, ("node.id", "broker.id")),
        ({"authorizer.class.name": "some.Authorizer"}, ("authorizer.class.name",)),
        ({"max.connections.per.ip.overrides": "nonsense"}, ("max.connections.per.ip.overrides", "host:count")),
        ({"cordoned.log.dirs": "/elsewhere"}, ("cordoned.log.dirs", "/elsewhere")),
        ({"log.retention.ms": "0"}, ("log.retention",)),
        ({"broker.session.timeout.ms": "3000"}, ("broker.heartbeat.interval.ms",)),
        ({"listeners": "CONTROLLER://:9093"}, ("listeners", "controller.listener.names")),
        ({"controller.quorum.bootstrap.servers": "x:1", "listeners": "PLAINTEXT://:1"}, ("controller.listener.names",)),
        ({"controller.quorum.voters": "2@x:1,3@y:1"}, ("controller.quorum.voters", "must be included", "node.id 1")),
        (ONLY_BROKER | {"controller.quorum.voters": "1@x:1,2@y:1"}, ("must not be included", "node.id 1")),
        (ONLY_BROKER, ("controller.quorum.bootstrap.servers", "where controllers are")),
        ({"process.roles": "controller"}, ("listeners", "process.roles is controller")),
        ({"process.roles": "broker", "controller.quorum.voters": "2@x:1"}, ("listeners", "process.roles is broker")),
    ],
)
def test_what_no_node_could_run_with_is_refused(changes: dict[str, str], words: tuple[str, ...]) -> None:
    with pytest.raises(KafkaError) as refused:
        BrokerConfig(single_node_defaults() | changes)
    assert refused.value.error is Error.INVALID_CONFIG
    for word in words:
        assert word in refused.value.message


def test_data_directories() -> None:
    assert config(log_dirs="/a, /b").log_dirs == ("/a", "/b")
    assert BrokerConfig({"log.dir": "/c"}).log_dirs == ("/c",)
    assert BrokerConfig({"log.dir": "/c", "log.dirs": "/d"}).log_dirs == ("/d",)
    assert config(log_dirs="/a,/b").metadata_log_dir == "/a"
    assert config(metadata_log_dir="/m").metadata_log_dir == "/m"


@pytest.mark.parametrize(
    ("entry", "host", "port"),
    [
        ("PLAINTEXT://:9092", "", 9092),
        ("plaintext://[::1]:9092", "::1", 9092),
        ("PLAINTEXT://[fe80::1%eth0]:0", "fe80::1%eth0", 0),
        ("PLAINTEXT://a-b.example:1", "a-b.example", 1),
    ],
)
def test_listeners_are_read(entry: str, host: str, port: int) -> None:
    endpoint = config(listeners=entry).endpoints[0]
    assert (endpoint.name, endpoint.host, endpoint.port, endpoint.protocol) == ("PLAINTEXT", host, port, "PLAINTEXT")


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"listeners": "localhost:9092"}, "NAME://host:port"),
        ({"listeners": "FOO://:9092"}, "FOO"),
        ({"listeners": "PLAINTEXT://:70000"}, "port"),
        ({"listeners": "PLAINTEXT://a:1,PLAINTEXT://b:2"}, "different name"),
        ({"listeners": "PLAINTEXT://a:1,SSL://b:1"}, "different port"),
        ({"listeners": "PLAINTEXT://127.0.0.1:1,SSL://127.0.0.2:1"}, "different port"),
        ({"listeners": "PLAINTEXT://:1,SSL://:2"}, "SSL"),
        ({"listeners": "PLAINTEXT://0.0.0.0:9092"}, "0.0.0.0"),
        ({"listeners": "PLAINTEXT://[::]:9092"}, "::"),
        ({"advertised.listeners": "SSL://a:1"}, "SSL"),
        ({"advertised.listeners": "PLAINTEXT://0.0.0.0:9092"}, "0.0.0.0"),
        ({"listener.security.protocol.map": "A:NONSENSE"}, "NONSENSE"),
        ({"listener.security.protocol.map": "PLAINTEXT:PLAINTEXT"}, "CONTROLLER"),
    ],
)
def test_listeners_that_cannot_work_are_refused(changes: dict[str, str], words: str) -> None:
    with pytest.raises(KafkaError) as refused:
        BrokerConfig(single_node_defaults() | changes)
    assert words in refused.value.message


def test_a_listener_has_what_the_broker_has_unless_it_has_its_own() -> None:
    """Keys and the like; a limit of the broker, which all its listeners share, is not a limit of each of them."""
    own = {"listener.name.in.ssl.keystore.location": "/in", "listener.name.in.max.connections": "2"}
    it = BrokerConfig(single_node_defaults() | {"ssl.keystore.location": "/all", "max.connections": "9"} | own)
    assert [it.of_listener(name, "ssl.keystore.location") for name in ("IN", "OUT")] == ["/in", "/all"]
    assert it.of_listener("OUT", "ssl.client.auth") == it["ssl.client.auth"] == "none"
    assert [it.of_listener(name, "max.connections") for name in ("IN", "OUT")] == [2, 2147483647]
    it.set_dynamic({}, {"listener.name.out.ssl.keystore.location": "/new"})
    assert [it.of_listener(name, "ssl.keystore.location") for name in ("IN", "OUT")] == ["/in", "/new"]
    it.set_dynamic({}, {})
    assert it.of_listener("OUT", "ssl.keystore.location") == "/all"


NAMED = "inter.broker.listener.name"
PROTOCOL = "security.inter.broker.protocol"
TWO = {
    "listeners": "IN://:1,OUT://:2,CONTROLLER://:3",
    "listener.security.protocol.map": "IN:PLAINTEXT,OUT:PLAINTEXT,OTHER:PLAINTEXT,CONTROLLER:PLAINTEXT",
}


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({PROTOCOL: "SSL"}, (PROTOCOL, "(PLAINTEXT)", "speaks SSL")),
        ({PROTOCOL: "SASL_PLAINTEXT"}, (PROTOCOL, "speaks SASL_PLAINTEXT")),
        ({PROTOCOL: "SASL_SSL"}, (PROTOCOL, "speaks SASL_SSL")),
        ({NAMED: "INTERNAL"}, (NAMED, "INTERNAL", "listener.security.protocol.map")),
        ({NAMED: ""}, (NAMED, "listener.security.protocol.map")),
        ({NAMED: "SSL"}, (NAMED, "SSL is not one of", "(PLAINTEXT)")),
        ({NAMED: "CONTROLLER"}, (NAMED, "CONTROLLER is not one of")),
        (TWO | {NAMED: "OTHER"}, (NAMED, "OTHER is not one of", "(IN, OUT)")),
        (TWO | {NAMED: "OUT", "advertised.listeners": "IN://a:1"}, (NAMED, "OUT is not one of", "(IN)")),
        ({NAMED: "PLAINTEXT", PROTOCOL: "PLAINTEXT"}, ("only one of", NAMED, PROTOCOL)),
        (ONLY_CONTROLLER | {NAMED: "INTERNAL"}, (NAMED, "listener.security.protocol.map")),
    ],
)
def test_brokers_do_not_talk_over_another_listener_than_the_one_that_was_meant(
    changes: dict[str, str], words: tuple[str, ...]
) -> None:
    """Apache Kafka 4.3.1 refuses each of these."""
    with pytest.raises(KafkaError) as refused:
        BrokerConfig(single_node_defaults() | changes)
    assert refused.value.error is Error.INVALID_CONFIG
    assert "\n" not in refused.value.message
    for word in words:
        assert word in refused.value.message


@pytest.mark.parametrize(
    ("changes", "listener"),
    [
        ({}, "PLAINTEXT"),
        ({NAMED: "plaintext"}, "PLAINTEXT"),
        ({PROTOCOL: "PLAINTEXT"}, "PLAINTEXT"),
        (TWO, "IN"),  # Kafka refuses this one, as nothing is called PLAINTEXT
        (TWO | {NAMED: "OUT"}, "OUT"),
        (TWO | {"advertised.listeners": "OUT://a:1"}, "OUT"),
        (ONLY_CONTROLLER | {PROTOCOL: "SSL"}, "SSL"),  # it is no broker: nothing is sent
    ],
)
def test_the_listener_of_brokers(changes: dict[str, str], listener: str) -> None:
    assert BrokerConfig(single_node_defaults() | changes).inter_broker_listener == listener


@pytest.mark.parametrize("protocol", ["SSL", "SASL_PLAINTEXT", "SASL_SSL"])
@pytest.mark.parametrize(
    ("changes", "protected"),
    [
        ({"listeners": "{}://:1"}, "{}"),
        ({"listeners": "SAFE://:1"}, "SAFE"),
        ({"listeners": "PLAINTEXT://:1,CONTROLLER://:2"}, "CONTROLLER"),
        ({"listeners": "PLAINTEXT://:1,{}://:2", PROTOCOL: "{}"}, "{}"),
        (ONLY_CONTROLLER, "CONTROLLER"),
        (ONLY_BROKER | {"controller.quorum.voters": "2@x:1"}, "CONTROLLER"),
    ],
)
def test_what_should_be_protected_is_never_spoken_in_plain_text(
    changes: dict[str, str], protected: str, protocol: str
) -> None:
    """TLS and SASL are not served. Who is only a broker would send it to controllers that listen so."""
    told = {name: value.format(protocol) for name, value in changes.items()}
    name = protected.format(protocol)
    told["listener.security.protocol.map"] = (
        f"PLAINTEXT:PLAINTEXT,CONTROLLER:PLAINTEXT,SAFE:{protocol},{name}:{protocol}"
    )
    with pytest.raises(KafkaError) as refused:
        BrokerConfig(single_node_defaults() | told)
    assert f"{name} speaks {protocol}" in refused.value.message


def test_listeners_may_share_a_port_over_v4_and_v6() -> None:
    it = config(
        listeners="PLAINTEXT://127.0.0.1:9092,SIX://[::1]:9092",
        listener_security_protocol_map="PLAINTEXT:PLAINTEXT,SIX:PLAINTEXT",
    )
    assert [endpoint.family for endpoint in it.endpoints] == ["v4", "v6"]


def test_what_is_advertised() -> None:
    it = config(
        listeners="IN://:1,OUT://0.0.0.0:2,CONTROLLER://:3",
        advertised_listeners="IN://a:1,OUT://b:2,CONTROLLER://c:3",
        listener_security_protocol_map="IN:PLAINTEXT,OUT:PLAINTEXT,CONTROLLER:PLAINTEXT",
    )
    assert [(e.name, e.host, e.port, e.protocol) for e in it.advertised] == [
        ("IN", "a", 1, "PLAINTEXT"),
        ("OUT", "b", 2, "PLAINTEXT"),
    ]
    assert [e.name for e in it.broker_endpoints] == ["IN", "OUT"]
    assert [e.name for e in it.controller_endpoints] == ["CONTROLLER"]


def test_config_loads_fast() -> None:
    """The commands of the CLI start in 0.3 s; the tables must not eat into that (8 ms on a quiet machine)."""
    program = (
        "import logging, typing, re, ottla.wire.errors, time\n"
        "start = time.process_time()\nimport ottla.config\nprint(time.process_time() - start)"
    )
    run = [sys.executable, "-c", program]
    best = min(float(subprocess.run(run, capture_output=True, text=True, check=True).stdout) for _ in range(5))
    assert best < 0.060
