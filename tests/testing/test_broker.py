"""The broker that users put into their own tests, used as they would."""

from __future__ import annotations

import asyncio
import gc
import logging
import multiprocessing
import os
import re
import signal
import subprocess
import sys
import textwrap
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from confluent_kafka import Consumer, KafkaError, KafkaException, Producer, TopicPartition

from ottla.client.cluster import Cluster
from ottla.client.producer import Producer as OttlaProducer
from ottla.testing import Broker, broker
from ottla.testing.broker import BrokerFailed

SECONDS = 60.0


@pytest.fixture(scope="module", params=["child", "thread"])
def shared(request: pytest.FixtureRequest) -> Iterator[Broker]:
    with broker({"num.partitions": "2"}, in_process=request.param == "thread") as running:
        yield running


@pytest.fixture
def running(shared: Broker) -> Iterator[Broker]:
    yield shared
    shared.renew()


def produce(address: str, topic: str, *values: bytes, **settings: object) -> list[object]:
    """What became of each: its offset, or the error."""
    outcomes: list[object] = []
    producer = Producer({"bootstrap.servers": address, "message.timeout.ms": 45_000, **settings})
    for value in values:
        producer.produce(
            topic, value, partition=0, callback=lambda e, m: outcomes.append(e.name() if e else m.offset())
        )
    producer.flush(SECONDS)
    return outcomes


def consume(address: str, topic: str, count: int) -> list[bytes]:
    consumer = Consumer({"bootstrap.servers": address, "group.id": "unused", "enable.auto.commit": False})
    consumer.assign([TopicPartition(topic, 0, 0)])
    found: list[bytes] = []
    deadline = time.monotonic() + SECONDS
    while len(found) < count and time.monotonic() < deadline:
        message = consumer.poll(0.2)
        if message is not None and not message.error():
            found.append(message.value())
    consumer.close()
    return found


def ends(running: Broker, topic: str) -> int:
    consumer = Consumer({"bootstrap.servers": running.bootstrap, "group.id": "unused"})
    try:
        return int(consumer.get_watermark_offsets(TopicPartition(topic, 0), SECONDS)[1])
    finally:
        consumer.close()


def test_a_real_broker_in_a_with_block(running: Broker) -> None:
    """FTM-08."""
    topic = running.create_topic("orders", partitions=3, configs={"retention.ms": "1000000"})
    assert produce(running.bootstrap, topic, b"one", b"two") == [0, 1]
    assert consume(running.bootstrap, topic, 2) == [b"one", b"two"]
    assert os.path.isdir(os.path.join(running.directory, "orders-2"))


def test_a_topic_that_cannot_be_made_says_why(running: Broker) -> None:
    running.create_topic("twice")
    with pytest.raises(BrokerFailed, match="exists"):
        running.create_topic("twice")


def test_beginning_anew_leaves_nothing_and_keeps_the_address(running: Broker) -> None:
    before, directory = running.bootstrap, running.directory
    produce(before, running.create_topic("gone"), b"x")
    running.faults.refuse("Produce", "NOT_ENOUGH_REPLICAS")
    running.renew()
    assert not os.path.exists(directory)
    assert produce(before, running.create_topic("gone"), b"y") == [0]


def test_records_outlive_a_restart(running: Broker) -> None:
    topic = running.create_topic("kept")
    produce(running.bootstrap, topic, b"one")
    running.restart()
    assert consume(running.bootstrap, topic, 1) == [b"one"]


def test_an_api_is_refused_as_often_as_wanted(running: Broker) -> None:
    """Twice: a producer that tries twice fails, and one that tries once is served after that."""
    topic = running.create_topic("refused")
    running.faults.refuse("Produce", "NOT_ENOUGH_REPLICAS", times=2)
    twice = {"retries": 1, "retry.backoff.ms": 10}
    assert produce(running.bootstrap, topic, b"one", **twice) == ["NOT_ENOUGH_REPLICAS"]
    assert produce(running.bootstrap, topic, b"two", retries=0) == [0]
    assert consume(running.bootstrap, topic, 1) == [b"two"]


def test_who_wants_no_answer_gets_none_when_it_is_refused(running: Broker) -> None:
    """Or the next answer on that connection would be taken for another one's."""
    topic = running.create_topic("unasked")

    async def act() -> None:
        async with Cluster(running.bootstrap) as cluster:
            async with OttlaProducer(cluster, acks=0, idempotent=False) as producer:
                await producer.send(topic, value=b"one")
            assert [found.name for found in (await cluster.metadata([topic])).topics] == [topic]

    with running.faults.refuse("Produce", "NOT_ENOUGH_REPLICAS"):
        asyncio.run(act())
    assert ends(running, topic) == 0


def test_a_refusal_is_tried_again(running: Broker) -> None:
    topic = running.create_topic("refused")
    running.faults.refuse("Produce", "NOT_ENOUGH_REPLICAS", times=2)
    assert produce(running.bootstrap, topic, b"one", **{"retry.backoff.ms": 10}) == [0]
    assert ends(running, topic) == 1


def test_a_rule_of_a_with_block_ends_with_it(running: Broker) -> None:
    topic = running.create_topic("refused")
    with running.faults.refuse("Produce", "TOPIC_AUTHORIZATION_FAILED"):
        assert produce(running.bootstrap, topic, b"one") == ["TOPIC_AUTHORIZATION_FAILED"]
    assert produce(running.bootstrap, topic, b"two") == [0]


def test_a_rule_tells_how_much_of_it_is_left(running: Broker) -> None:
    topic = running.create_topic("counted")
    with running.faults.refuse("Produce", "TOPIC_AUTHORIZATION_FAILED", times=2) as rule:
        for left in (1, 0):
            produce(running.bootstrap, topic, b"one")
            assert rule.left == left
    with running.faults.delay("CreateTopics", 0.0) as rule:
        assert rule.left is None


def test_a_lost_answer_is_no_lost_and_no_doubled_record(running: Broker) -> None:
    """IDM-03: what an idempotent producer is for."""
    topic = running.create_topic("once")
    running.faults.lose_answer("Produce", times=1)
    assert produce(running.bootstrap, topic, b"one", **{"enable.idempotence": True}) == [0]
    assert ends(running, topic) == 1
    running.faults.lose_answer("Produce", times=1)
    produce(running.bootstrap, topic, b"two", **{"enable.idempotence": False, "retry.backoff.ms": 10})
    assert ends(running, topic) == 3


def test_a_dropped_connection_is_made_again(running: Broker) -> None:
    """Who does not try again loses the record, because nothing of the request was done; who does finds a new connection."""
    topic = running.create_topic("dropped")
    running.faults.drop("Produce", times=1)
    assert produce(running.bootstrap, topic, b"one", retries=0) == ["_TRANSPORT"]
    assert ends(running, topic) == 0
    running.faults.drop("Produce", times=1)
    assert produce(running.bootstrap, topic, b"two", **{"retry.backoff.ms": 10}) == [0]
    assert consume(running.bootstrap, topic, 1) == [b"two"]


def test_a_delay_is_felt(running: Broker) -> None:
    topic = running.create_topic("late")
    running.faults.delay("Produce", 0.5, times=1)
    began = time.monotonic()
    assert produce(running.bootstrap, topic, b"one") == [0]
    assert time.monotonic() - began >= 0.5


def test_a_full_disk_refuses_and_recovers(running: Broker) -> None:
    """LOG-23."""
    topic = running.create_topic("full")
    running.faults.fill_disk()
    assert produce(running.bootstrap, topic, b"one", retries=0) == ["KAFKA_STORAGE_ERROR"]
    assert ends(running, topic) == 0
    running.faults.free_disk()
    deadline = time.monotonic() + SECONDS
    # Its error may be one that the client gives up at; but a record that is given up in a hurry may be there all the same.
    while produce(running.bootstrap, topic, b"two") != [0]:
        assert time.monotonic() < deadline, "the broker does not take records although there is room"
    assert consume(running.bootstrap, topic, 1) == [b"two"]


def test_time_can_be_moved(running: Broker) -> None:
    """RET-01 without waiting: what is older than the retention goes."""
    topic = running.create_topic("old", configs={"retention.ms": "60000"})
    produce(running.bootstrap, topic, b"one")
    running.move_clock(3600)
    running.run_upkeep()
    consumer = Consumer({"bootstrap.servers": running.bootstrap, "group.id": "unused"})
    assert consumer.get_watermark_offsets(TopicPartition(topic, 0), SECONDS) == (1, 1)
    consumer.close()


@pytest.mark.parametrize(
    ("api", "error", "said"),
    [
        ("Prodcue", "NOT_ENOUGH_REPLICAS", "there is no API 'Prodcue': .*, Produce,"),
        ("Produce", "NO_SUCH_ERROR", "there is no error 'NO_SUCH_ERROR': .*, NOT_ENOUGH_REPLICAS,"),
    ],
)
def test_a_fault_that_does_not_exist_is_refused(running: Broker, api: str, error: str, said: str) -> None:
    with pytest.raises(BrokerFailed, match=said):
        running.faults.refuse(api, error)


def test_kill_9_and_start_on_what_is_left() -> None:
    with broker() as running:
        topic = running.create_topic("kept")
        produce(running.bootstrap, topic, b"one", acks="all")
        directory = running.directory
        running.restart(kill=True)
        assert running.directory == directory
        assert consume(running.bootstrap, topic, 1) == [b"one"]
    assert not os.path.exists(directory)


def test_a_broker_on_a_thread_leaves_the_process_to_the_test() -> None:
    """What a process of its own may do for a node, a guest may not: take signals, or change how garbage is collected."""

    def ways() -> tuple[object, ...]:
        taken = {number: signal.getsignal(number) for number in signal.valid_signals()}
        collecting = (gc.isenabled(), gc.get_threshold(), gc.get_freeze_count())
        return taken, collecting, logging.getLogger().handlers[:], sys.excepthook, threading.excepthook

    before = ways()
    with broker(in_process=True) as running:
        produce(running.bootstrap, running.create_topic("guest"), b"one")
        assert ways() == before
        running.restart()
        assert ways() == before
    assert ways() == before


def test_a_broker_on_a_thread_makes_no_processes() -> None:
    """They would run the test's main module once more. What a node leaves to its children is done on a thread."""
    with broker(in_process=True) as running:
        topic = running.create_topic("packed", configs={"compression.type": "gzip"})
        assert produce(running.bootstrap, topic, bytes(20_000)) == [0]
        assert multiprocessing.active_children() == []


def test_a_broker_on_a_thread_is_not_stopped_by_a_process_that_inherited_it() -> None:
    """A test that forks has the object in its child as well, but no thread that could do anything."""
    with broker(in_process=True) as running:
        runner: Any = running._runner
        stage, runner._pid = runner._stage, -1
        running.close()
        runner._stage, runner._pid = stage, os.getpid()
        assert produce(running.bootstrap, running.create_topic("alive"), b"one") == [0]


def test_a_broker_on_a_thread_cannot_be_killed_and_says_so() -> None:
    with broker(in_process=True) as running, pytest.raises(BrokerFailed, match="in_process"):
        running.restart(kill=True)


def test_settings_that_are_wrong_are_told() -> None:
    with pytest.raises(BrokerFailed, match=r"num\.partitions"), broker({"num.partitions": "many"}):
        pass


@pytest.mark.parametrize("in_process", [False, True])
def test_nothing_is_left_when_the_test_fails(in_process: bool) -> None:
    directory = ""
    with pytest.raises(ZeroDivisionError), broker(in_process=in_process) as running:
        directory = running.directory
        raise ZeroDivisionError
    assert directory and not os.path.exists(directory)


def test_nothing_is_left_when_the_test_is_killed() -> None:
    program = "from ottla.testing.broker import open_broker; b = open_broker(); print(b.directory, flush=True); input()"
    parent = subprocess.Popen([sys.executable, "-c", program], stdin=subprocess.PIPE, stdout=subprocess.PIPE)
    assert parent.stdout is not None
    directory = parent.stdout.readline().decode().strip()
    assert os.path.isdir(directory)
    os.kill(parent.pid, signal.SIGKILL)
    parent.wait()
    deadline = time.monotonic() + SECONDS
    while os.path.exists(directory):
        assert time.monotonic() < deadline, "the broker did not notice that its test is gone"
        time.sleep(0.05)
    parent.stdout.close()


def test_fixtures_for_pytest(tmp_path: Path) -> None:
    """FTM-08: each test finds an empty broker, and a topic named after it."""
    (tmp_path / "test_application.py").write_text(
        textwrap.dedent(
            """
            from confluent_kafka.admin import AdminClient

            def topics(broker):
                listed = AdminClient({"bootstrap.servers": broker.bootstrap}).list_topics(timeout=20).topics
                return {name: len(topic.partitions) for name, topic in listed.items()}

            def test_topic(kafka_broker, kafka_topic):
                assert kafka_topic == "test_topic"
                assert topics(kafka_broker) == {"test_topic": 1}
                kafka_broker.create_topic("another")

            def test_nothing_is_left(kafka_broker):
                assert topics(kafka_broker) == {}
            """
        )
    )
    assert "2 passed" in pytest_in(tmp_path)


def test_the_suite_of_an_ordinary_application() -> None:
    """The example is run as its page says: in its own directory, by `pytest` and nothing else."""
    said = pytest_in(Path(__file__).parents[2] / "examples" / "orders")
    assert "9 passed" in said, said


# What the blocks of the page leave to the reader.
APPLICATION = """
from confluent_kafka import Producer

def run_my_application(bootstrap):
    producer = Producer({"bootstrap.servers": bootstrap})
    producer.produce("orders", b"order")
    assert producer.flush(60) == 0
"""
CASE = """
    def test_it_serves(self):
        run_my_application(self.broker.bootstrap)
"""


def test_every_block_of_the_page(tmp_path: Path) -> None:
    """FTM-08: copied and pasted, with an application where the page speaks of one, and a test where the class has none."""
    page = (Path(__file__).parents[2] / "docs" / "testing.md").read_text()
    fixture, block, case, by_hand, cluster = re.findall(r"```python\n(.*?)```", page, re.DOTALL)
    used = by_hand.replace("kafka.bootstrap\n", "kafka.bootstrap\n    run_my_application(bootstrap)\n")
    assert used != by_hand
    files = {
        "fixture": fixture,
        "block": f"{APPLICATION}\ndef test_block():\n{textwrap.indent(block, '    ')}",
        "case": APPLICATION + case + CASE,
        "by_hand": f"{APPLICATION}\ndef test_by_hand():\n{textwrap.indent(used, '    ')}",
        "cluster": cluster,
    }
    for name, text in files.items():
        (tmp_path / f"test_{name}.py").write_text(text)
    said = pytest_in(tmp_path)
    assert f"{len(files)} passed" in said, said


def pytest_in(directory: Path) -> str:
    done = subprocess.run(
        [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider"],
        cwd=directory,
        capture_output=True,
        text=True,
        timeout=100,
        env={k: v for k, v in os.environ.items() if not k.startswith("PYTEST")},
    )
    return done.stdout + done.stderr


def test_errors_of_the_client_are_its_own() -> None:
    """A refused topic creation reaches the client with Kafka's code."""
    with broker({"auto.create.topics.enable": "false"}, in_process=True) as running:
        consumer = Consumer({"bootstrap.servers": running.bootstrap, "group.id": "unused"})
        with pytest.raises(KafkaException) as refused:
            consumer.get_watermark_offsets(TopicPartition("missing", 0), 5)
        consumer.close()
        assert refused.value.args[0].code() in (KafkaError._UNKNOWN_PARTITION, KafkaError.UNKNOWN_TOPIC_OR_PART)
