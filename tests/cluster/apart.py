"""Clusters whose controller is a node of its own: brokers may all be gone, and somebody still decides."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

from confluent_kafka import KafkaError, Message, Producer

from cluster.conftest import KIND
from cluster.nodes import Cluster, Member
from harness import free_port
from operations.speaking import samples

CONTROLLER, BROKERS = 1, (2, 3, 4)
ANSWER_SECONDS = 60


class Counted(Member):
    """A node that tells what it counts: `numbers` by name and labels."""

    def __init__(self, directory: Path, node_id: int, roles: str, ports: tuple[int, int]) -> None:
        super().__init__(directory, node_id, roles, ports)
        self.metrics_port = free_port()

    def command(self) -> Sequence[str]:
        return [*super().command(), "--metrics-port", str(self.metrics_port)]

    def numbers(self) -> dict[str, float]:
        return samples(self.metrics_port)


def three_brokers(directory: Path, settings: Mapping[str, str] | None = None, brokers: type[Member] = KIND) -> Cluster:
    """Node 1 decides, nodes 2 to 4 have the data. A context; nothing is started yet."""
    roles = {CONTROLLER: "controller", **dict.fromkeys(BROKERS, "broker")}
    kinds = {CONTROLLER: KIND, **dict.fromkeys(BROKERS, brokers)}
    return Cluster(directory, len(roles), settings=settings, roles=roles, kinds=kinds)


def send(
    nodes: Cluster, topic: str, values: Iterable[bytes], acks: str = "all", partition: int = 0, **options: Any
) -> list[int]:
    """Send records once each, without retries, to one partition, and wait for the answers: their error codes, in order."""
    answers: dict[int, int] = {}

    def answered(number: int, error: KafkaError | None) -> None:
        answers[number] = error.code() if error is not None else 0

    producer = Producer(
        {
            "bootstrap.servers": nodes.bootstrap,
            "acks": acks,
            "retries": 0,
            "linger.ms": 1,
            "log_level": 0,
            "message.timeout.ms": 1000 * ANSWER_SECONDS,
            "reconnect.backoff.ms": 20,
            "reconnect.backoff.max.ms": 200,
            "topic.metadata.refresh.fast.interval.ms": 50,
            **options,
        }
    )
    for number, value in enumerate(values):

        def on_delivery(error: KafkaError | None, _: Message, number: int = number) -> None:
            answered(number, error)

        producer.produce(topic, value, partition=partition, on_delivery=on_delivery)
        producer.poll(0)
    assert not producer.flush(ANSWER_SECONDS), "some records got no answer"
    return [answers[number] for number in sorted(answers)]
