"""Fixtures for pytest; installing Ottla makes them known.

`kafka_broker`: a broker with nothing in it, for one test. The process behind it is shared by all tests of the run and begins
anew between them, on the same port, which takes a fraction of a start. `kafka_topic`: the name of a new topic on it.

Settings for the whole run: a fixture `kafka_settings` of session scope in your conftest.py that returns a dict.
"""

from __future__ import annotations

import re
from collections.abc import Iterator

import pytest

TYPE_CHECKING = False  # as in `typing`, which this file need not load
if TYPE_CHECKING:
    from ottla.testing.broker import Broker

NAME_MAX = 200


@pytest.fixture(scope="session")
def kafka_settings() -> dict[str, str]:
    """Settings of the shared broker, with Kafka's names. Define a fixture of this name to change them."""
    return {}


@pytest.fixture(scope="session")
def _shared_kafka_broker(kafka_settings: dict[str, str]) -> Iterator[Broker]:
    from ottla.testing.broker import broker

    with broker(kafka_settings) as running:
        yield running


@pytest.fixture
def kafka_broker(_shared_kafka_broker: Broker) -> Iterator[Broker]:
    """A broker with nothing in it."""
    yield _shared_kafka_broker
    _shared_kafka_broker.renew()


@pytest.fixture
def kafka_topic(kafka_broker: Broker, request: pytest.FixtureRequest) -> str:
    """A new topic with one partition, named after the test."""
    name = re.sub(r"[^a-zA-Z0-9._-]", "-", request.node.name)[:NAME_MAX].strip(".") or "topic"
    return kafka_broker.create_topic(name)
