"""Orders become enriched orders, exactly once, with confluent-kafka: `python enriched_orders.py BOOTSTRAP COUNT`.

Orders with a price below zero make their whole transaction fail; it is aborted, and done again without them.
"""

from __future__ import annotations

import json
import sys

from confluent_kafka import Consumer, KafkaException, Message, Producer, TopicPartition

ORDERS, ENRICHED = "orders", "enriched-orders"
SECONDS = 30.0


class Enricher:
    def __init__(self, bootstrap: str) -> None:
        self._producer = Producer({"bootstrap.servers": bootstrap, "transactional.id": "python-enricher-1"})
        self._consumer = Consumer(
            {
                "bootstrap.servers": bootstrap,
                "group.id": "python-enricher",
                "isolation.level": "read_committed",
                "enable.auto.commit": False,
                "auto.offset.reset": "earliest",
            }
        )
        self._producer.init_transactions(SECONDS)
        self._consumer.subscribe([ORDERS])

    def work(self, count: int) -> None:
        """Handles so many orders."""
        while count > 0:
            orders = [message for message in self._consumer.consume(20, 0.2) if not message.error()]
            if orders:
                self._do(orders)
                count -= len(orders)
        self._consumer.close()

    def _do(self, orders: list[Message]) -> None:
        try:
            self._enrich(orders)
        except ValueError:
            self._producer.abort_transaction(SECONDS)
            self._enrich([order for order in orders if json.loads(order.value())["price"] >= 0])
        self._finish(orders)

    def _enrich(self, orders: list[Message]) -> None:
        self._producer.begin_transaction()
        for order in orders:
            self._producer.produce(ENRICHED, enriched(order.value()), order.key())

    def _finish(self, orders: list[Message]) -> None:
        """The offsets of all orders, whatever became of them, in the transaction that holds their fate."""
        offsets = [TopicPartition(order.topic(), order.partition(), order.offset() + 1) for order in orders]
        latest = {(each.topic, each.partition): each for each in offsets}
        members = self._consumer.consumer_group_metadata()
        self._producer.send_offsets_to_transaction(list(latest.values()), members, SECONDS)
        while True:
            try:
                self._producer.commit_transaction(SECONDS)
                return
            except KafkaException as exception:
                if not exception.args[0].retriable():
                    raise


def enriched(order: bytes) -> bytes:
    parsed = json.loads(order)
    if parsed["price"] < 0:
        raise ValueError("nobody is paid for taking something")
    return json.dumps({**parsed, "with tax": round(parsed["price"] * 1.2, 2)}).encode()


if __name__ == "__main__":
    Enricher(sys.argv[1]).work(int(sys.argv[2]))
