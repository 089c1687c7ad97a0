"""The tests of an ordinary application. `kafka_broker` comes with Ottla."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator

import pytest
from confluent_kafka import Consumer, Producer, TopicPartition
from orders import CONFIRMED, ORDERS, REJECTED, OrderDesk, verdict

from ottla.testing import Broker


@pytest.fixture
def bootstrap(kafka_broker: Broker) -> str:
    for topic in (ORDERS, CONFIRMED, REJECTED):
        kafka_broker.create_topic(topic)
    return kafka_broker.bootstrap


@pytest.fixture
def desk(bootstrap: str) -> Iterator[Callable[[], OrderDesk]]:
    """Opens desks, and closes them when the test is over."""
    opened: list[OrderDesk] = []

    def another() -> OrderDesk:
        opened.append(OrderDesk(bootstrap))
        return opened[-1]

    yield another
    for each in opened:
        each.close()


def send(bootstrap: str, *orders: object) -> None:
    producer = Producer({"bootstrap.servers": bootstrap, "linger.ms": 0})
    for order in orders:
        producer.produce(ORDERS, order if isinstance(order, bytes) else json.dumps(order).encode())
    assert producer.flush(10) == 0


def read(bootstrap: str, topic: str) -> list[dict[str, object]]:
    """Everything in a topic."""
    consumer = Consumer({"bootstrap.servers": bootstrap, "group.id": "reader", "enable.auto.commit": False})
    where = TopicPartition(topic, 0, 0)
    _, end = consumer.get_watermark_offsets(where, 10)
    consumer.assign([where])
    found = [message for message in consumer.consume(end, 10) if not message.error()] if end else []
    consumer.close()
    return [json.loads(message.value()) for message in found]


def done(bootstrap: str) -> int:
    """Where the next desk would go on."""
    observer = Consumer({"bootstrap.servers": bootstrap, "group.id": "order-desk"})
    (committed,) = observer.committed([TopicPartition(ORDERS, 0)], 10)
    observer.close()
    return committed.offset


@pytest.mark.parametrize(
    "order", [b"{", b"[]", b'{"id": 1}', b'{"id": 1, "quantity": 0}', b'{"id": 1, "quantity": 101}']
)
def test_bad_orders_are_rejected(order: bytes) -> None:
    assert verdict(order)[0] == REJECTED


def test_an_order_is_confirmed(bootstrap: str, desk: Callable[[], OrderDesk]) -> None:
    send(bootstrap, {"id": "a", "quantity": 3})
    assert desk().work(1) == 1
    assert read(bootstrap, CONFIRMED) == [{"id": "a", "quantity": 3}]
    assert read(bootstrap, REJECTED) == []


def test_the_next_desk_goes_on_where_the_last_one_stopped(bootstrap: str, desk: Callable[[], OrderDesk]) -> None:
    send(bootstrap, {"id": "a", "quantity": 1}, {"id": "b", "quantity": 2}, {"id": "c", "quantity": 3})
    first = desk()
    assert first.work(2) == 2
    first.close()
    assert desk().work(1) == 1
    assert [each["id"] for each in read(bootstrap, CONFIRMED)] == ["a", "b", "c"]


def test_a_verdict_is_written_once_although_its_answer_was_lost(
    kafka_broker: Broker, bootstrap: str, desk: Callable[[], OrderDesk]
) -> None:
    send(bootstrap, {"id": "a", "quantity": 1})
    kafka_broker.faults.lose_answer("Produce", times=1)
    assert desk().work(1) == 1
    assert read(bootstrap, CONFIRMED) == [{"id": "a", "quantity": 1}]


def test_a_coordinator_that_is_busy_is_asked_again(
    kafka_broker: Broker, bootstrap: str, desk: Callable[[], OrderDesk]
) -> None:
    send(bootstrap, {"id": "a", "quantity": 1})
    kafka_broker.faults.refuse("OffsetCommit", "COORDINATOR_LOAD_IN_PROGRESS", times=1)
    assert desk().work(1) == 1
    assert done(bootstrap) == 1
