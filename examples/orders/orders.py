"""Orders come in, and are confirmed or rejected. Nothing in here knows about Ottla: it is written for Kafka."""

from __future__ import annotations

import json
from collections.abc import Iterator

from confluent_kafka import Consumer, Message, Producer

ORDERS, CONFIRMED, REJECTED = "orders", "confirmed", "rejected"
QUANTITY_MAX = 100


def verdict(order: bytes) -> tuple[str, dict[str, object]]:
    """Which topic an order goes to, and what is said about it there."""
    try:
        parsed = json.loads(order)
        quantity = int(parsed["quantity"])
        order_id = str(parsed["id"])
    except (ValueError, KeyError, TypeError):
        return REJECTED, {"why": "not an order"}
    if not 0 < quantity <= QUANTITY_MAX:
        return REJECTED, {"id": order_id, "why": f"nobody buys {quantity} of anything"}
    return CONFIRMED, {"id": order_id, "quantity": quantity}


class OrderDesk:
    """Works through the orders topic. An order counts as done when its verdict is safe: a crash repeats, and never loses."""

    def __init__(self, bootstrap: str, group: str = "order-desk") -> None:
        self._consumer = Consumer(
            {
                "bootstrap.servers": bootstrap,
                "group.id": group,
                "auto.offset.reset": "earliest",
                "enable.auto.commit": False,
            }
        )
        self._producer = Producer({"bootstrap.servers": bootstrap, "enable.idempotence": True, "linger.ms": 0})
        self._consumer.subscribe([ORDERS])

    def work(self, count: int, seconds: float = 10.0) -> int:
        """Handle up to `count` orders; how many there were before it was quiet for `seconds`."""
        done = 0
        for order in self._orders(count, seconds):
            topic, said = verdict(order.value() or b"")
            self._producer.produce(topic, json.dumps(said).encode(), order.key())
            if self._producer.flush(seconds) > 0:
                raise TimeoutError("the verdict could not be written")
            self._consumer.commit(order, asynchronous=False)
            done += 1
        return done

    def _orders(self, count: int, seconds: float) -> Iterator[Message]:
        for _ in range(count):
            order = self._consumer.poll(seconds)
            if order is None:
                return
            if order.error():
                raise RuntimeError(order.error().str())
            yield order

    def close(self) -> None:
        self._consumer.close()
