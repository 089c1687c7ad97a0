"""A cluster inside a test: three real nodes, killed and started again under a real client."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from confluent_kafka import Consumer, Producer, TopicPartition

from ottla.testing import Cluster, cluster


@pytest.fixture(scope="module")
def three() -> Iterator[Cluster]:
    with cluster(3) as running:
        yield running


def write(producer: Producer, topic: str, numbers: range) -> None:
    """All of them acknowledged when this returns."""
    failures: list[object] = []
    for number in numbers:
        producer.produce(topic, str(number), partition=0, on_delivery=lambda error, _: failures.append(error))
    assert producer.flush(60) == 0
    assert failures == [None] * len(numbers)


def read(bootstrap: str, topic: str, count: int) -> list[int]:
    consumer = Consumer({"bootstrap.servers": bootstrap, "group.id": "g", "enable.auto.commit": False})
    consumer.assign([TopicPartition(topic, 0, 0)])
    try:
        got: list[int] = []
        while len(got) < count:
            message = consumer.poll(60)
            assert message is not None and message.error() is None
            got.append(int(message.value() or b""))
        return got
    finally:
        consumer.close()


def test_what_was_acknowledged_survives_the_leader(three: Cluster) -> None:
    """REP-22: the leader is killed, another one of those in sync takes over, and nothing is missing or double."""
    topic = three.create_topic("orders")
    producer = Producer({"bootstrap.servers": three.bootstrap, "acks": "all", "enable.idempotence": True})
    write(producer, topic, range(100))
    leader = three.leader_of(topic)
    three.kill(leader)
    write(producer, topic, range(100, 200))
    assert three.leader_of(topic) not in (leader, -1)
    three.start(leader)
    three.wait_until_in_sync(topic)
    assert sorted(three.in_sync(topic)) == [1, 2, 3]
    assert read(three.bootstrap, topic, 200) == list(range(200))


def test_the_controller_is_stopped_and_the_cluster_goes_on(three: Cluster) -> None:
    controller = three.controller()
    three.stop(controller)
    topic = three.create_topic("after", partitions=2, copies=2)
    assert three.controller() not in (controller, -1)
    three.start(controller)
    assert three.nodes == [1, 2, 3]
    write(Producer({"bootstrap.servers": three.bootstrap}), topic, range(3))
