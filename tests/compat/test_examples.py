"""The programs in examples/ do what their pages say. OTTLA_TEST_BOOTSTRAP names another broker to run them on."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

import pytest
from confluent_kafka import Producer
from confluent_kafka.admin import AdminClient, NewTopic  # type: ignore[attr-defined]

from apache import kafka
from compat.transacting import Confluent, committed_offsets

EXAMPLES = Path(__file__).resolve().parents[2] / "examples"
COUNT, PARTITIONS, SECONDS = 60, 2, 60.0


def run(command: Sequence[str]) -> str:
    done = subprocess.run(command, capture_output=True, text=True, timeout=SECONDS)
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


@pytest.fixture(scope="module")
def broker(own_broker: str) -> str:
    return own_broker


@pytest.fixture(scope="module")
def admin(broker: str) -> AdminClient:
    return AdminClient({"bootstrap.servers": broker, "log_level": 0})


@pytest.fixture(scope="module")
def java(tmp_path_factory: pytest.TempPathFactory) -> str:
    """The class path of the Java programs, which are compiled together."""
    if reason := kafka.why_missing():
        pytest.skip(reason)
    classes = tmp_path_factory.mktemp("classes")
    sources = map(str, sorted((EXAMPLES / "java").glob("*.java")))
    jars = ":".join(map(str, sorted(kafka.JARS.glob("kafka-clients-*.jar"))))
    run(["javac", "-Werror", "-cp", jars, "-d", str(classes), *sources])
    return f"{classes}:{kafka.JARS}/*"


def run_java(class_path: str, program: str, broker: str, count: int = COUNT) -> str:
    logging = f"-Dlog4j2.configurationFile={kafka.logging_file('ERROR')}"
    return run(["java", *kafka.LIGHT, logging, "-cp", class_path, program, broker, str(count)])


def create(admin: AdminClient, *names: str) -> None:
    """Anew, because several programs have the same topics."""
    there = set(admin.list_topics(timeout=15).topics) & set(names)
    for gone in admin.delete_topics(list(there), operation_timeout=15).values() if there else ():
        gone.result()
    for made in admin.create_topics([NewTopic(name, PARTITIONS) for name in names], request_timeout=15).values():
        made.result()


def write(broker: str, topic: str, values: Sequence[str]) -> None:
    producer = Producer({"bootstrap.servers": broker, "linger.ms": 5})
    for number, value in enumerate(values):
        producer.produce(topic, value, f"key {number % 7}", number % PARTITIONS)
    assert producer.flush(SECONDS) == 0


def read(broker: str, topic: str) -> list[str]:
    return sorted(found.value for found in Confluent().read(broker, topic, PARTITIONS, "read_committed"))


def committed(broker: str, group: str, topic: str) -> list[int]:
    return committed_offsets(broker, group, topic, PARTITIONS)


@pytest.mark.apache
def test_idempotent_producer_in_java(java: str, broker: str, admin: AdminClient) -> None:
    """API-01, API-06: IdempotentProducerExample."""
    create(admin, "payments")
    said = run_java(java, "IdempotentProducerExample", broker)
    assert said.count("went to partition") == COUNT
    assert read(broker, "payments") == sorted(f"payment-{number}" for number in range(COUNT))


@pytest.mark.apache
def test_click_consumer_in_java(java: str, broker: str, admin: AdminClient) -> None:
    """API-02, API-03, API-06: ClickConsumer."""
    create(admin, "clicks")
    write(broker, "clicks", [f"page {number}" for number in range(COUNT)])
    said = run_java(java, "ClickConsumer", broker)
    assert len(set(said.splitlines())) == COUNT
    assert committed(broker, "click-analytics", "clicks") == [COUNT // 2] * PARTITIONS


@pytest.mark.apache
def test_offset_management_in_java(java: str, broker: str, admin: AdminClient) -> None:
    """API-03, API-06: OffsetManagementExamples."""
    create(admin, "events")
    write(broker, "events", [f"event {number}" for number in range(COUNT)])
    said = run_java(java, "OffsetManagementExamples", broker)
    assert f"synchronous: {COUNT}" in said and f"seeking: read {2 * COUNT}" in said
    for group in ("automatic", "synchronous", "asynchronous", "one-by-one"):
        assert committed(broker, group, "events") == [COUNT // 2] * PARTITIONS


@pytest.mark.apache
def test_transactional_producer_in_java(java: str, broker: str, admin: AdminClient) -> None:
    """API-02, API-03, API-06, TXN-05, TXN-11: TransactionalProducerExample, orders to enriched-orders."""
    create(admin, "orders", "enriched-orders")
    write(broker, "orders", [f"order {number}" for number in range(COUNT)])
    run_java(java, "TransactionalProducerExample", broker)
    assert read(broker, "enriched-orders") == sorted(f"order {number} (checked)" for number in range(COUNT))
    assert committed(broker, "order-enricher", "orders") == [COUNT // 2] * PARTITIONS


def run_batch_loop(broker: str, count: int, end: int, attempts: int = 3) -> None:
    """Read so many, up to that end in all.

    On a busy machine kafka-python 3.0.12 now and then waits for ever for a thread of its own, which sleeps (on Apache Kafka in
    9 of 170 starts). It is killed then, and the next one must go on where the last transaction ended, as after a crash.
    """
    try:
        run([sys.executable, str(EXAMPLES / "exactly_once" / "batch_loop.py"), broker, str(count)])
    except subprocess.TimeoutExpired:
        if attempts == 1:
            raise
        done = sum(max(offset, 0) for offset in committed(broker, "batch-processor", "input-topic"))
        run_batch_loop(broker, end - done, end, attempts - 1)


@pytest.mark.timeout(400)
def test_batch_loop_of_kafka_python(broker: str, admin: AdminClient) -> None:
    """API-04, API-06, TXN-05: it is started twice, and goes on where it stopped."""
    create(admin, "input-topic", "output-topic")
    for first in (0, COUNT):
        write(broker, "input-topic", [f"line {number}" for number in range(first, first + COUNT)])
        run_batch_loop(broker, COUNT, first + COUNT)
    assert read(broker, "output-topic") == sorted(f"LINE {number}" for number in range(2 * COUNT))
    assert committed(broker, "batch-processor", "input-topic") == [COUNT] * PARTITIONS


def test_enriched_orders_of_confluent(broker: str, admin: AdminClient) -> None:
    """API-06, TXN-09: what was aborted is not seen, and all is done in the end."""
    create(admin, "orders", "enriched-orders")
    prices = [-1 if number % 20 == 19 else number for number in range(COUNT)]
    write(broker, "orders", [json.dumps({"id": number, "price": price}) for number, price in enumerate(prices)])
    run([sys.executable, str(EXAMPLES / "exactly_once" / "enriched_orders.py"), broker, str(COUNT)])
    found = [json.loads(value) for value in read(broker, "enriched-orders")]
    assert sorted(each["id"] for each in found) == [number for number, price in enumerate(prices) if price >= 0]
    assert all(each["with tax"] == round(each["price"] * 1.2, 2) for each in found)
    assert committed(broker, "python-enricher", "orders") == [COUNT // 2] * PARTITIONS
