"""ottla cluster elect and unregister, on three brokers of which one goes away."""

from __future__ import annotations

import json
import time
from collections.abc import Callable
from typing import Any

import pytest

from ottla.cli.kafka import cluster as kafka_cluster
from ottla.cli.main import main
from ottla.testing import cluster


def until(is_so: Callable[[], bool]) -> None:
    """Brokers hear of what the controller has done a little later."""
    deadline = time.monotonic() + 60
    while not is_so():
        assert time.monotonic() < deadline
        time.sleep(0.05)


def test_leaders_are_elected_and_brokers_forgotten(capsys: pytest.CaptureFixture[str]) -> None:
    """The preferred replica leads again when it is told to, and who was forgotten is not listed as fenced."""
    with cluster(3, {"auto.leader.rebalance.enable": "false"}) as running:

        def ottla(*words: str, code: int = 0) -> str:
            capsys.readouterr()
            assert main(["cluster", *words, "-b", running.bootstrap]) == code
            said = capsys.readouterr()
            return said.out or said.err

        def registered(bootstrap: str) -> list[str]:
            capsys.readouterr()
            kafka_cluster.main(["list-endpoints", "--include-fenced-brokers", "--bootstrap-server", bootstrap])
            return [line.split()[0] for line in capsys.readouterr().out.splitlines()[1:]]

        def as_json(*words: str) -> Any:
            return json.loads(ottla(*words, "--json"))

        running.create_topic("orders")
        preferred = running.leader_of("orders")
        assert as_json("elect", "-t", "orders") == [{"partition": "orders-0", "elected": False, "error": None}]
        running.restart(preferred)
        running.wait_until_in_sync("orders")
        until(lambda: running.leader_of("orders") != preferred)
        assert "orders-0" in (said := ottla("elect", "--topic", "orders:0")) and "elected" in said
        until(lambda: running.leader_of("orders") == preferred)

        assert registered(running.bootstrap) == ["1", "2", "3"]
        running.stop(3)
        until(lambda: [broker["id"] for broker in as_json("show")["brokers"] if broker["fenced"]] == [3])
        assert ottla("unregister", "3") == "broker 3 is no longer registered\n"
        until(lambda: registered(running.bootstrap) == ["1", "2"])
        assert "(BROKER_ID_NOT_REGISTERED)" in ottla("unregister", "77", code=1)
