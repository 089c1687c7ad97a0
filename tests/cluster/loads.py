"""Records that are counted: what was acknowledged is read back once, and in the order in which it was sent.

Each partition gets the numbers from 0 on. A producer with idempotence may send a batch twice, never append it twice; so what
is read must be exactly the numbers that were sent, and no acknowledged one may be missing.
"""

from __future__ import annotations

import itertools
import json
import subprocess
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from confluent_kafka import Consumer, Producer, TopicPartition

from apache import kafka
from cluster.nodes import eventually
from harness import die_with_parent

DELIVERY_SECONDS = 90


class Writer:
    """Sends at a steady rate from a thread of its own, with acks=all and idempotence, until it is stopped."""

    def __init__(self, bootstrap: str, topic: str, partitions: int, per_second: int = 1000) -> None:
        self.topic = topic
        self.sent = [0] * partitions
        self.acknowledged: list[list[int]] = [[] for _ in range(partitions)]
        self.gaps_s: list[float] = [0.0] * partitions
        self.errors: list[str] = []
        self._last = [time.monotonic()] * partitions
        self._pause_s = partitions / per_second
        self._producer = Producer(
            {
                "bootstrap.servers": bootstrap,
                "enable.idempotence": True,
                "acks": "all",
                "linger.ms": 1,
                "log_level": 0,
                "delivery.timeout.ms": 1000 * DELIVERY_SECONDS,
                # A leader that is cut off keeps requests, and does not know that another leads: time and others tell.
                "request.timeout.ms": 3000,
                "socket.timeout.ms": 6000,
                "topic.metadata.refresh.interval.ms": 1000,
                "retry.backoff.ms": 20,
                "retry.backoff.max.ms": 100,
                "reconnect.backoff.ms": 20,
                "reconnect.backoff.max.ms": 200,
                "topic.metadata.refresh.fast.interval.ms": 50,
            }
        )
        self._stopping = threading.Event()
        self._thread = threading.Thread(target=self._run, daemon=True)

    def __enter__(self) -> Writer:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._stopping.set()
        self._thread.join()

    def _run(self) -> None:
        while not self._stopping.is_set():
            for partition in range(len(self.sent)):
                self._send(partition)
            self._producer.poll(0)
            time.sleep(self._pause_s)

    def _send(self, partition: int) -> None:
        number = self.sent[partition]

        def answered(error: Any, message: Any) -> None:
            if error is not None:
                self.errors.append(f"{number} of partition {partition}: {error}")
                return
            self.acknowledged[partition].append(number)
            now = time.monotonic()
            self.gaps_s[partition] = max(self.gaps_s[partition], now - self._last[partition])
            self._last[partition] = now

        try:
            self._producer.produce(self.topic, b"%d" % number, partition=partition, on_delivery=answered)
        except BufferError:
            return
        self.sent[partition] += 1

    @property
    def count(self) -> int:
        return sum(map(len, self.acknowledged))

    def wait_for(self, more: int, seconds: float = DELIVERY_SECONDS) -> None:
        """Until so many more records are acknowledged in every partition."""
        wanted = [len(held) + more for held in self.acknowledged]
        eventually(
            lambda: all(len(held) >= least for held, least in zip(self.acknowledged, wanted, strict=True)),
            f"{more} more records are acknowledged in every partition of {self.topic}",
            seconds,
        )

    def finish(self) -> None:
        """Send nothing more, and wait for what is under way."""
        self._stopping.set()
        self._thread.join()
        left = self._producer.flush(DELIVERY_SECONDS)
        assert not left, f"{left} records got no answer"

    def check(self, bootstrap: str) -> int:
        """After `finish`: everything was acknowledged, and is read back once and in order; how many."""
        assert not self.errors, self.errors[:3]
        for partition, acknowledged in enumerate(self.acknowledged):
            found = [int(value) for value in read_all(bootstrap, self.topic, partition)]
            assert found == list(range(self.sent[partition])), _difference(found, self.sent[partition], partition)
            assert acknowledged == found, f"partition {partition}: acknowledged out of order"
        return self.count


class JavaWriter:
    """The same from Kafka's own client: its VerifiableProducer numbers records and prints what was acknowledged."""

    def __init__(self, bootstrap: str, topic: str, partitions: int, directory: Path, per_second: int = 300) -> None:
        self.topic, self.partitions = topic, partitions
        self._said = directory / f"{topic}.said"
        settings = directory / f"{topic}.properties"
        patient = f"delivery.timeout.ms={1000 * DELIVERY_SECONDS}\nrequest.timeout.ms=3000\n"
        settings.write_text(patient + f"retries={2**31 - 1}\nenable.idempotence=true\n")  # by itself it does not retry
        words = ("--bootstrap-server", bootstrap, "--topic", topic, "--throughput", str(per_second))
        self._command = kafka.java(
            "org.apache.kafka.tools.VerifiableProducer", *words, "--acks", "-1", "--command-config", str(settings)
        )

    def __enter__(self) -> JavaWriter:
        with self._said.open("wb") as said:
            self._process = subprocess.Popen(
                self._command, stdout=said, stderr=subprocess.DEVNULL, preexec_fn=die_with_parent
            )
        return self

    def __exit__(self, *_: object) -> None:
        self._process.kill()
        self._process.wait()

    @property
    def count(self) -> int:
        return self._said.read_bytes().count(b'"producer_send_success"')

    def wait_for(self, more: int, seconds: float = DELIVERY_SECONDS) -> None:
        wanted = self.count + more
        eventually(lambda: self.count >= wanted, f"{more} more records of Java's client are acknowledged", seconds)

    def finish(self) -> None:
        self._process.terminate()
        self._process.wait(DELIVERY_SECONDS)

    def check(self, bootstrap: str) -> int:
        """After `finish`: what was acknowledged is where it was said to be, once, and nothing else is there twice or out of
        order; how many. What was under way when the client was stopped may be there or not."""
        events = [json.loads(line) for line in self._said.read_text().splitlines() if line.startswith("{")]
        failed = [each for each in events if each["name"] == "producer_send_error"]
        assert not failed, failed[:3]
        sent = [each for each in events if each["name"] == "producer_send_success"]
        for partition in range(self.partitions):
            found = [int(value) for value in read_all(bootstrap, self.topic, partition)]
            assert all(a < b for a, b in itertools.pairwise(found)), f"partition {partition}: twice or out of order"
            for each in sent:
                if each["partition"] == partition:
                    assert found[each["offset"]] == int(each["value"]), each
        return len(sent)


def _difference(found: list[int], sent: int, partition: int) -> str:
    missing, held = sorted(set(range(sent)) - set(found)), set[int]()
    twice = [number for number in found if number in held or held.add(number)]  # type: ignore[func-returns-value]
    at = next((i for i, (a, b) in enumerate(itertools.pairwise(found)) if b != a + 1), None)
    around = found[max(0, (at or 0) - 2) : (at or 0) + 4]
    return f"partition {partition}: sent {sent}, missing {missing[:5]}, twice {twice[:5]}, around {around} at {at}"


def read_all(bootstrap: str, topic: str, partition: int, seconds: float = 60.0) -> Iterator[bytes]:
    """Every record from the beginning to the high watermark."""
    consumer = Consumer(
        {"bootstrap.servers": bootstrap, "group.id": "reading", "enable.auto.commit": False, "log_level": 0}
    )
    try:
        _, end = eventually(lambda: _watermarks(consumer, topic, partition), f"{topic}-{partition} says where it ends")
        consumer.assign([TopicPartition(topic, partition, 0)])
        deadline, position = time.monotonic() + seconds, 0
        while position < end:
            assert time.monotonic() < deadline, f"{topic}-{partition}: only {position} of {end} were read"
            for message in consumer.consume(1000, 1.0):
                if message.error() is None:
                    position = int(message.offset() or 0) + 1
                    yield message.value() or b""
    finally:
        consumer.close()


def _watermarks(consumer: Consumer, topic: str, partition: int) -> Any:
    try:
        return consumer.get_watermark_offsets(TopicPartition(topic, partition), timeout=5)
    except Exception:  # no leader at the moment
        return None
