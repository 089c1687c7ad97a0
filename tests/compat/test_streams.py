"""A Kafka Streams application with exactly_once_v2, a join and a state store (java/Enriching.java), killed again and again.

OTTLA_TRANSACTIONS_ON_APACHE runs the same on Apache Kafka. How long the long one lasts is said by OTTLA_KILLING_SECONDS.
"""

from __future__ import annotations

import os
import random
import subprocess
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from confluent_kafka import Producer
from confluent_kafka.admin import AdminClient, NewTopic  # type: ignore[attr-defined]

from apache import kafka
from compat.exactly_once import RECONNECT, SETTINGS, Copier
from compat.transacting import Confluent, Found
from harness import Node, Server, stop_all

pytestmark = pytest.mark.apache

SOURCE = Path(__file__).resolve().parent / "java" / "Enriching.java"
CUSTOMERS, PARTITIONS = 6, 2
LONG_SECONDS = float(os.environ.get("OTTLA_KILLING_SECONDS", "300"))


class Application:
    """The application, as a process that may be killed. It is compiled once."""

    def __init__(self, address: str, directory: Path) -> None:
        self._address, self._directory = address, directory
        classes = directory / "classes"
        jars = ":".join(map(str, sorted(kafka.JARS.glob("*.jar"))))
        subprocess.run(["javac", "-nowarn", "-cp", jars, "-d", str(classes), str(SOURCE)], check=True)
        self._class_path = f"{classes}:{kafka.JARS}/*"
        self._process: Copier | None = None
        self.starts = 0

    def start(self) -> None:
        self.starts += 1
        log4j = f"-Dlog4j2.configurationFile={kafka.logging_file('ERROR')}"
        words = ["Enriching", self._address, str(self._directory / "state")]
        self._process = Copier(["java", *kafka.LIGHT, log4j, "-cp", self._class_path, *words])

    def kill(self) -> None:
        if self._process is not None:
            self._process.kill()
            self._process = None


class Orders:
    """What the application is given, and what it must make of that."""

    def __init__(self, address: str) -> None:
        self._address = address
        admin = AdminClient({"bootstrap.servers": address})
        topics = [NewTopic(name, PARTITIONS) for name in ("orders", "customers", "enriched")]
        for made in admin.create_topics(topics, request_timeout=15).values():
            made.result()
        idempotent = {"enable.idempotence": True, "linger.ms": 5, "message.timeout.ms": 120_000}
        self._producer = Producer({"bootstrap.servers": address, **idempotent, **RECONNECT})
        self.count = 0
        for customer in range(CUSTOMERS):
            self._producer.produce("customers", f"name {customer}", f"{customer}", customer % PARTITIONS)
        assert self._producer.flush(30) == 0

    def place(self, count: int) -> None:
        for number in range(self.count, self.count + count):
            customer = number % CUSTOMERS
            self._producer.produce("orders", f"order {number}", f"{customer}", customer % PARTITIONS)
        self.count += count
        assert self._producer.flush(60) == 0

    def wanted(self) -> dict[str, list[str]]:
        return {
            f"{customer}": [
                f"{at + 1} order {number} name {customer}"
                for at, number in enumerate(range(customer, self.count, CUSTOMERS))
            ]
            for customer in range(CUSTOMERS)
        }

    def enriched(self) -> list[Found]:
        return Confluent().read(self._address, "enriched", PARTITIONS, "read_committed")

    def wait_for(self, count: int, seconds: float = 90.0) -> None:
        deadline = time.monotonic() + seconds
        while (there := len(self.enriched())) < count:
            assert time.monotonic() < deadline, f"{there} instead of {count}"
            time.sleep(0.1)

    def check(self) -> None:
        self.wait_for(self.count)
        found: dict[str, list[str]] = {}
        for each in self.enriched():
            found.setdefault(each.key, []).append(each.value)
        assert found == self.wanted()


@pytest.fixture
def server(tmp_path: Path) -> Iterator[Server]:
    if reason := kafka.why_missing():
        pytest.skip(reason)
    on_apache = os.environ.get("OTTLA_TRANSACTIONS_ON_APACHE")
    made: Server = (kafka.Apache if on_apache else Node)(tmp_path / "data", settings=SETTINGS)
    try:
        yield made.start()
    finally:
        stop_all([made])


@pytest.fixture
def application(server: Server, tmp_path: Path) -> Iterator[Application]:
    made = Application(server.address, tmp_path)
    yield made
    made.kill()


@pytest.mark.timeout(400)
def test_streams_exactly_once(server: Server, application: Application) -> None:
    """TXN-06, TXN-11, STR-03, STR-05, STR-07: killed with -9 and started again, the broker too; orders are numbered once."""
    orders = Orders(server.address)
    application.start()
    orders.place(300)
    orders.wait_for(1)
    application.kill()
    orders.place(300)
    application.start()
    orders.wait_for(301)
    server.kill()
    server.start()
    orders.place(300)
    orders.check()


@pytest.mark.slow
@pytest.mark.timeout(900)
def test_streams_exactly_once_for_five_minutes(
    server: Server, application: Application, capsys: pytest.CaptureFixture[str]
) -> None:
    """TXN-06, TXN-11, STR-05, STR-07: the same for longer."""
    orders, rng = Orders(server.address), random.Random(2026)
    application.start()
    deadline, kills = time.monotonic() + LONG_SECONDS, 0
    while time.monotonic() < deadline:
        for _ in range(rng.randrange(5, 60)):
            orders.place(20)
            time.sleep(0.1)
        kills += 1
        if rng.random() < 0.4:
            server.kill()
            server.start()
        else:
            application.kill()
            application.start()
    orders.check()
    with capsys.disabled():
        print(f" [{orders.count} orders, {kills} kills, {application.starts} starts]", end="")
