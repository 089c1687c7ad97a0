"""From the command line and a file of settings to Kafka's names and values."""

from __future__ import annotations

import argparse

import pytest

from ottla.cli import serve
from ottla.cli.mistakes import Mistake
from ottla.config import BrokerConfig, single_node_defaults


def settings(*words: str) -> dict[str, str]:
    parser = argparse.ArgumentParser()
    serve.arguments(parser)
    return serve.settings(parser.parse_args(words))


def test_without_flags_it_is_a_single_node():
    """FTM-01."""
    assert settings() == single_node_defaults()


def test_flags():
    found = settings("--data", "/a", "--data", "/b", "--listen", "127.0.0.1:0", "--set", "num.partitions=6")
    assert found["log.dirs"] == "/a,/b"
    assert found["listeners"].startswith("PLAINTEXT://127.0.0.1:0,CONTROLLER://")
    assert found["num.partitions"] == "6"


def test_several_listeners_get_names_of_their_own():
    found = settings("--listen", "127.0.0.1:9092", "--listen", "[::1]:9092", "--set", "log.dirs=/tmp/x")
    config = BrokerConfig(found)
    endpoints = [(endpoint.host, endpoint.port) for endpoint in config.broker_endpoints]
    assert endpoints == [("127.0.0.1", 9092), ("::1", 9092)]


def test_a_file_and_flags_on_top(tmp_path):
    file = tmp_path / "server.properties"
    file.write_text(
        "# Apache's\nprocess.roles=broker,controller\nnode.id = 7\nlog.dir:/old\nnum.partitions=2\n"
        "listeners=PLAINTEXT://:9092,CONTROLLER://:9093\nadvertised.listeners=PLAINTEXT://far:9092\n"
        "controller.listener.names=CONTROLLER\n"
    )
    plain = settings(str(file))
    assert (plain["node.id"], plain["log.dir"], plain["advertised.listeners"]) == ("7", "/old", "PLAINTEXT://far:9092")
    found = settings(str(file), "--data", "/new", "--listen", "0.0.0.0:1234", "--set", "num.partitions=9")
    assert found["listeners"] == "PLAINTEXT://0.0.0.0:1234,CONTROLLER://:9093"
    assert "log.dir" not in found
    assert (found["log.dirs"], found["num.partitions"], found["node.id"]) == ("/new", "9", "7")
    assert "advertised.listeners" not in found


@pytest.mark.parametrize(
    "words", [["--listen", "9092"], ["--listen", "host:port"], ["--listen", "host:70000"], ["--set", "alone"]]
)
def test_mistakes(words):
    with pytest.raises(Mistake, match="write"):
        settings(*words)
