"""A broker for one test: how long until a test can use it, each time from nothing."""

from __future__ import annotations

import tempfile
import time
from pathlib import Path

from apache import kafka
from bench import client
from bench.scenes import Size, Tally
from harness import Node, Server
from ottla.testing import Broker, broker

TOPIC = "first"
LINES = frozenset({"testing-child", "testing-thread", "testing-renew"})


class Lent(Server):
    """A broker that somebody else has started."""

    def __init__(self, lent: Broker) -> None:
        self._address = lent.bootstrap

    @property
    def address(self) -> str:
        return self._address

    def must_live(self) -> None:
        pass


def testing(server: Server, size: Size, tally: Tally) -> None:
    """From the call to the first acknowledged record. Apache Kafka has nothing but a start on a new directory."""
    for _ in range(size.repeats):
        if not isinstance(server, Node):
            tally.add("testing-child", _apache())
            continue
        tally.add("testing-child", _ours(in_process=False))
        tally.add("testing-thread", _ours(in_process=True))
        tally.add("testing-renew", _renewed())


def _ours(*, in_process: bool) -> float:
    began = time.monotonic()
    with broker(in_process=in_process) as made:
        made.create_topic(TOPIC)
        client.wait_first_ack(Lent(made), TOPIC)
        return time.monotonic() - began


def _renewed() -> float:
    with broker() as made:
        made.create_topic(TOPIC)
        client.wait_first_ack(Lent(made), TOPIC)
        began = time.monotonic()
        made.renew()
        made.create_topic(TOPIC)
        client.wait_first_ack(Lent(made), TOPIC)
        return time.monotonic() - began


def _apache() -> float:
    with tempfile.TemporaryDirectory() as directory:
        began = time.monotonic()
        server = kafka.Apache(Path(directory) / "data", flags=kafka.MEASURED)
        try:
            server.start()
            client.make_topic(server, TOPIC)
            client.wait_first_ack(server, TOPIC)
            return time.monotonic() - began
        finally:
            server.kill()
