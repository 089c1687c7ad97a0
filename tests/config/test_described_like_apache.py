"""Our listing of settings against what Apache Kafka 4.3.1 listed, for a node with the same properties and changes.

`described.jsonl` holds its answers to DescribeConfigs v4 with synonyms, one setting per line: resource type and name,
setting, value, read-only, source, sensitive, synonyms, type; and its answer to CreateTopics v7, without the last two.
Documentation is ours and not compared.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from ottla.config import BrokerConfig, read_properties
from ottla.config.describe import (
    Entry,
    created_topic,
    describe_all_brokers,
    describe_broker,
    describe_client_metrics,
    describe_group,
    describe_topic,
)

HERE = Path(__file__).parent / "apache-4.3.1"

OWN_TOPIC = {
    "retention.ms": "1000",
    "cleanup.policy": " delete , compact",
    "internal.segment.bytes": "100",
    "min.cleanable.dirty.ratio": "1e-4",
    "max.message.bytes": "5",
}
GROUP = {"consumer.session.timeout.ms": "50000", "share.isolation.level": "read_committed"}
CLIENT_METRICS = {"interval.ms": "1000", "metrics": "a,b"}


@pytest.fixture(scope="module")
def apache() -> dict[tuple[Any, str], dict[str, list[Any]]]:
    answers: dict[tuple[Any, str], dict[str, list[Any]]] = {}
    for line in (HERE / "described.jsonl").read_text().splitlines():
        kind, resource, name, *rest = json.loads(line)
        answers.setdefault((kind, resource), {})[name] = rest
    return answers


@pytest.fixture(scope="module")
def config() -> BrokerConfig:
    it = BrokerConfig(read_properties((HERE / "server.properties").read_text()))
    # With eligible leader replicas, the minimum of copies in sync is a setting for all brokers from the first start on.
    for_all = {"message.max.bytes": "3000000", "compression.type": "lz4", "some.thing": "y", "log.cleaner.threads": "2"}
    own = {
        "message.max.bytes": "2000000",
        "log.retention.ms": "90000",
        "sasl.jaas.config": "x",
        "leader.replication.throttled.rate": "5",
    }
    it.set_dynamic({"min.insync.replicas": "1"} | for_all, own)
    return it


def as_answered(entries: list[Entry]) -> dict[str, list[Any]]:
    return {
        e.name: [e.value, e.read_only, e.source, e.sensitive, [list(s) for s in e.synonyms], e.kind_code]
        for e in entries
    }


@pytest.mark.parametrize(
    ("kind", "resource"), [(4, "1"), (4, ""), (2, "plain"), (2, "own"), (32, "g"), (32, "other"), (16, "cm")]
)
def test_described_as_apache_does(kind: int, resource: str, apache: Any, config: BrokerConfig) -> None:
    """PRT-17: every setting, with its default and its source."""
    describe = {
        (4, "1"): lambda: describe_broker(config),
        (4, ""): lambda: describe_all_brokers(config),
        (2, "plain"): lambda: describe_topic(config, {}),
        (2, "own"): lambda: describe_topic(config, OWN_TOPIC),
        (32, "g"): lambda: describe_group(config, GROUP),
        (32, "other"): lambda: describe_group(config, {}),
        (16, "cm"): lambda: describe_client_metrics(config, CLIENT_METRICS),
    }
    ours = as_answered(describe[kind, resource]())
    theirs = apache[kind, resource]
    assert ours.keys() == theirs.keys()
    assert {name: (ours[name], theirs[name]) for name in ours if ours[name] != theirs[name]} == {}


def test_a_created_topic_is_told_as_apache_does(apache: Any, config: BrokerConfig) -> None:
    entries = created_topic(config, {"retention.ms": "12"})
    ours = {e.name: [e.value, e.read_only, e.source, e.sensitive] for e in entries}
    assert list(ours) == list(apache["created", "made"])
    assert ours == apache["created", "made"]


def test_what_another_release_stored_is_listed_but_not_shown(config: BrokerConfig) -> None:
    entries = {entry.name: entry for entry in describe_topic(config, {"message.format.version": "2.8"})}
    entry = entries["message.format.version"]
    assert (entry.value, entry.sensitive, entry.kind_code, entry.source) == (None, True, 0, 1)
