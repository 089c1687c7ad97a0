"""One member of a group, as a process: `python member.py CLIENT SETTINGS TOPIC`. It tells what it owns and what it reads.

Each line it prints is JSON: {"owns": [partitions]} when that changed, {"read": [[partition, offset], ...]}. It leaves the
group politely when its input ends. SETTINGS are Kafka's names as JSON; each client understands those that it has.
"""

from __future__ import annotations

import asyncio
import json
import sys
import threading
from typing import Any

POLL_SECONDS = 0.1


def tell(**said: Any) -> None:
    sys.stdout.write(json.dumps(said) + "\n")
    sys.stdout.flush()


class Ended:
    """Whether somebody wants us to leave."""

    def __init__(self) -> None:
        self._event = threading.Event()
        threading.Thread(target=self._wait, daemon=True).start()

    def _wait(self) -> None:
        sys.stdin.read()
        self._event.set()

    def __bool__(self) -> bool:
        return self._event.is_set()


class Owned:
    """Tells what is owned when that changes."""

    def __init__(self) -> None:
        self._told: list[int] | None = None

    def look(self, partitions: set[int]) -> None:
        if sorted(partitions) != self._told:
            self._told = sorted(partitions)
            tell(owns=self._told)


def confluent(settings: dict[str, Any], topic: str, ended: Ended) -> None:
    from confluent_kafka import Consumer

    consumer = Consumer({"auto.offset.reset": "earliest", "auto.commit.interval.ms": 200, **settings})
    consumer.subscribe([topic])
    owned = Owned()
    while not ended:
        messages = [m for m in consumer.consume(500, POLL_SECONDS) if not m.error()]
        owned.look({where.partition for where in consumer.assignment()})
        if messages:
            tell(read=[[m.partition(), m.offset()] for m in messages])
    consumer.close()


# The names that Python's own clients have for what Kafka calls otherwise.
RENAMED = {"partition.assignment.strategy", "group.protocol"}


def _pythonic(settings: dict[str, Any]) -> dict[str, Any]:
    return {name.replace(".", "_"): value for name, value in settings.items() if name not in RENAMED}


def kafka_python(settings: dict[str, Any], topic: str, ended: Ended) -> None:
    from kafka import KafkaConsumer  # type: ignore[import-untyped]
    from kafka.coordinator.assignors.cooperative_sticky import (  # type: ignore[import-untyped]
        CooperativeStickyAssignor,
    )
    from kafka.coordinator.assignors.range import RangePartitionAssignor  # type: ignore[import-untyped]
    from kafka.coordinator.assignors.roundrobin import RoundRobinPartitionAssignor  # type: ignore[import-untyped]
    from kafka.coordinator.assignors.sticky.sticky_assignor import (  # type: ignore[import-untyped]
        StickyPartitionAssignor,
    )

    assignors = {
        "range": RangePartitionAssignor,
        "roundrobin": RoundRobinPartitionAssignor,
        "sticky": StickyPartitionAssignor,
        "cooperative-sticky": CooperativeStickyAssignor,
    }
    consumer = KafkaConsumer(
        auto_offset_reset="earliest",
        auto_commit_interval_ms=200,
        partition_assignment_strategy=[assignors[settings["partition.assignment.strategy"]]],
        **_pythonic(settings),
    )
    # Who joins before it knows the topic joins again at once, and kafka-python 3.0.12 may then send no heartbeats for ever.
    consumer.partitions_for_topic(topic)
    consumer.subscribe([topic])
    owned = Owned()
    while not ended:
        found = consumer.poll(POLL_SECONDS * 1000)
        owned.look({where.partition for where in consumer.assignment()})
        if found:
            tell(read=[[r.partition, r.offset] for records in found.values() for r in records])
    consumer.close()


async def aiokafka(settings: dict[str, Any], topic: str, ended: Ended) -> None:
    from aiokafka import AIOKafkaConsumer  # type: ignore[import-untyped]
    from aiokafka.coordinator.assignors.range import RangePartitionAssignor  # type: ignore[import-untyped]
    from aiokafka.coordinator.assignors.roundrobin import RoundRobinPartitionAssignor  # type: ignore[import-untyped]
    from aiokafka.coordinator.assignors.sticky.sticky_assignor import (  # type: ignore[import-untyped]
        StickyPartitionAssignor,
    )

    assignors = {
        "range": RangePartitionAssignor,
        "roundrobin": RoundRobinPartitionAssignor,
        "sticky": StickyPartitionAssignor,
    }
    consumer = AIOKafkaConsumer(
        topic,
        auto_offset_reset="earliest",
        auto_commit_interval_ms=200,
        partition_assignment_strategy=[assignors[settings["partition.assignment.strategy"]]],
        **_pythonic(settings),
    )
    await consumer.start()
    owned = Owned()
    while not ended:
        found = await consumer.getmany(timeout_ms=int(POLL_SECONDS * 1000))
        owned.look({where.partition for where in consumer.assignment()})
        if found:
            tell(read=[[r.partition, r.offset] for records in found.values() for r in records])
    await consumer.stop()


def main() -> None:
    client, settings, topic = sys.argv[1], json.loads(sys.argv[2]), sys.argv[3]
    ended = Ended()
    if client == "aiokafka":
        asyncio.run(aiokafka(settings, topic, ended))
    else:
        {"confluent": confluent, "kafka-python": kafka_python}[client](settings, topic, ended)


if __name__ == "__main__":
    main()
