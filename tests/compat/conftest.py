"""The clients under test, one set for the whole run; and servers that a test starts itself."""

from __future__ import annotations

import itertools
import secrets
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from confluent_kafka.admin import AdminClient, NewTopic  # type: ignore[attr-defined]

from apache import kafka
from apache.tools import ApacheTools
from compat.both_tools import Both
from compat.clients import Client, Confluent, Java, every_client
from harness import Server, stop_all

Topic = Callable[..., str]


@pytest.fixture
def servers() -> Iterator[list[Server]]:
    """Servers of one test; whatever still runs at its end is stopped."""
    started: list[Server] = []
    yield started
    stop_all(started)


@pytest.fixture
def data(tmp_path: Path) -> Path:
    """A directory that our node and Apache's serve in turn."""
    if reason := kafka.why_missing():
        pytest.skip(reason)
    return tmp_path / "data"


@pytest.fixture(scope="module")
def both(address: str) -> Iterator[Both]:
    """Apache's tools and ours, for the node whose `address` the module gives."""
    tools = ApacheTools()
    try:
        yield Both(tools, address)
    finally:
        tools.close()


@pytest.fixture(scope="session")
def clients(broker: str) -> Iterator[dict[str, Client]]:
    """Every client by name. Ask `usable` for one, so that a missing one is skipped with its reason."""
    made = every_client(broker)
    yield made
    for client in made.values():
        client.close()


@pytest.fixture(scope="session")
def usable(clients: dict[str, Client]) -> Callable[[str], Client]:
    def find(name: str) -> Client:
        if reason := clients[name].why_missing():
            pytest.skip(reason)
        return clients[name]

    return find


@pytest.fixture
def confluent(broker: str) -> Confluent:
    return Confluent(broker)


@pytest.fixture
def java(usable: Callable[[str], Client]) -> Java:
    client = usable("java-4.3")
    assert isinstance(client, Java)
    return client


@pytest.fixture(scope="session")
def admin(broker: str) -> AdminClient:
    """It cannot be closed, and may outlive its broker for a moment: it is not to say so then."""
    return AdminClient({"bootstrap.servers": broker, "log_level": 0})


@pytest.fixture(scope="session")
def topic(admin: AdminClient) -> Topic:
    """Makes a topic with a name of its own, kept for ever: `topic("sizes", max_message_bytes="9")`."""
    numbers, run = itertools.count(), secrets.token_hex(2)

    def make(about: str, partitions: int = 1, **config: str) -> str:
        name = f"{about}-{run}-{next(numbers)}"
        wanted = NewTopic(
            name,
            num_partitions=partitions,
            config={"retention.ms": "-1", **{k.replace("_", "."): v for k, v in config.items()}},
        )
        admin.create_topics([wanted], request_timeout=15)[name].result()
        return name

    return make
