"""Consume, transform, produce, exactly once: `python copier.py JOB`, with one of three libraries, until its input ends.

JOB is JSON: library, bootstrap, input, output, partitions, group, id (transactional), size (records of a transaction), mode
and perhaps dies_after. A copier in mode "assigned" owns all partitions: who starts with its id ends what its predecessor had
begun before it asks where to go on. One in mode "group" subscribes, and sends what it knows of its group with the offsets, so
that one who lost its partitions cannot commit (KIP-447). dies_after names a step in the third transaction: there it kills
itself with -9. Every fifth transaction is aborted on purpose and done again.

It prints the count of records after each commit. Any error ends it, after it left its group; somebody starts it again.
"""

from __future__ import annotations

import asyncio
import json
import os
import signal
import sys
import threading
from typing import Any

SECONDS = 30.0
POLL_SECONDS = 0.1
STEPS = ("initialized", "begun", "sent", "flushed", "offsets", "committed", "aborted")
DEADLY_TRANSACTION, ABORTED_EACH = 3, 5

Job = dict[str, Any]


def transformed(value: bytes) -> bytes:
    return value + b"!"


class Places:
    """Where each partition goes on. A library that gives us what we have already copied is stopped before it does harm."""

    def __init__(self) -> None:
        self._next: dict[int, int] = {}
        self.touched: dict[int, int] = {}

    def read(self, partition: int, offset: int) -> None:
        assert offset >= self._next.get(partition, 0), f"partition {partition}: {offset} was read again"
        self._next[partition] = self.touched[partition] = offset + 1

    def rewind(self) -> None:
        self._next.clear()


class Steps:
    """Counts transactions, and dies where the job says so."""

    def __init__(self, job: Job) -> None:
        self._dies_after = job.get("dies_after")
        self.transactions = 0
        self.places = Places()

    def begin(self) -> None:
        self.transactions += 1
        self.places.touched.clear()
        self.passed("begun")

    def passed(self, step: str) -> None:
        deadly = step in ("initialized", "aborted") or self.transactions == DEADLY_TRANSACTION
        if step == self._dies_after and deadly:
            os.kill(os.getpid(), signal.SIGKILL)

    @property
    def to_be_aborted(self) -> bool:
        return self.transactions % ABORTED_EACH == 0

    def done(self, count: int) -> None:
        self.passed("committed")
        sys.stdout.write(f"{count}\n")
        sys.stdout.flush()


def end_with_input() -> None:
    """Politeness is for groups; everybody else may go at once."""

    def wait() -> None:
        sys.stdin.read()
        os.kill(os.getpid(), signal.SIGTERM)

    threading.Thread(target=wait, daemon=True).start()


def confluent(job: Job, steps: Steps) -> None:
    from confluent_kafka import Consumer, Producer, TopicPartition

    quick = {"reconnect.backoff.ms": 20, "reconnect.backoff.max.ms": 200, "retry.backoff.ms": 20, "log_level": 0}
    common = {"bootstrap.servers": job["bootstrap"], **quick}
    producer = Producer({**common, "transactional.id": job["id"], "transaction.timeout.ms": 10_000, "linger.ms": 0})
    producer.init_transactions(SECONDS)
    steps.passed("initialized")
    wanted = {"group.id": job["group"], "isolation.level": "read_committed", "auto.offset.reset": "earliest"}
    session = {"session.timeout.ms": 3000, "heartbeat.interval.ms": 300, "enable.auto.commit": False}
    consumer = Consumer({**common, **wanted, **session, "fetch.wait.max.ms": 50})
    everything = [TopicPartition(job["input"], each) for each in range(job["partitions"])]

    def rewind() -> None:
        steps.places.rewind()
        for where in consumer.committed(consumer.assignment(), SECONDS):
            where.offset = max(0, where.offset)
            consumer.seek(where)

    if job["mode"] == "group":
        consumer.subscribe([job["input"]])
    else:
        consumer.assign(
            [TopicPartition(w.topic, w.partition, max(0, w.offset)) for w in consumer.committed(everything)]
        )
    try:
        while True:
            found = [message for message in consumer.consume(job["size"], POLL_SECONDS) if not message.error()]
            if not found:
                continue
            producer.begin_transaction()
            steps.begin()
            for each in found:
                steps.places.read(each.partition(), each.offset())
                producer.produce(job["output"], transformed(each.value()), each.key(), each.partition())
            steps.passed("sent")
            assert producer.flush(SECONDS) == 0
            steps.passed("flushed")
            there = [TopicPartition(job["input"], *place) for place in steps.places.touched.items()]
            producer.send_offsets_to_transaction(there, consumer.consumer_group_metadata(), SECONDS)
            steps.passed("offsets")
            if steps.to_be_aborted:
                producer.abort_transaction(SECONDS)
                steps.passed("aborted")
                rewind()
            else:
                producer.commit_transaction(SECONDS)
                steps.done(len(found))
    finally:
        consumer.close()


def kafka_python(job: Job, steps: Steps) -> None:
    from kafka import (  # type: ignore[import-untyped]
        KafkaConsumer,
        KafkaProducer,
        OffsetAndMetadata,
        TopicPartition,
    )

    common = {"bootstrap_servers": job["bootstrap"], "reconnect_backoff_ms": 20, "reconnect_backoff_max_ms": 200}
    producer = KafkaProducer(**common, transactional_id=job["id"], transaction_timeout_ms=10_000, max_block_ms=30_000)
    producer.init_transactions()
    steps.passed("initialized")
    consumer = KafkaConsumer(
        **common,
        group_id=job["group"],
        isolation_level="read_committed",
        auto_offset_reset="earliest",
        enable_auto_commit=False,
        session_timeout_ms=3000,
        heartbeat_interval_ms=300,
        fetch_max_wait_ms=50,
        max_poll_records=job["size"],
    )
    everything = [TopicPartition(job["input"], each) for each in range(job["partitions"])]

    def rewind() -> None:
        steps.places.rewind()
        for where in consumer.assignment():
            consumer.seek(where, consumer.committed(where) or 0)

    if job["mode"] == "group":
        consumer.partitions_for_topic(job["input"])
        consumer.subscribe([job["input"]])
    else:
        consumer.assign(everything)
    try:
        while True:
            found = [each for some in consumer.poll(POLL_SECONDS * 1000).values() for each in some]
            if not found:
                continue
            producer.begin_transaction()
            steps.begin()
            sent = []
            for each in found:
                steps.places.read(each.partition, each.offset)
                value = transformed(each.value)
                sent.append(producer.send(job["output"], value, each.key, partition=each.partition))
            steps.passed("sent")
            for future in sent:
                future.get(SECONDS)
            steps.passed("flushed")
            there = {
                TopicPartition(job["input"], partition): OffsetAndMetadata(offset, "", -1)
                for partition, offset in steps.places.touched.items()
            }
            producer.send_offsets_to_transaction(there, consumer.group_metadata())
            steps.passed("offsets")
            if steps.to_be_aborted:
                producer.abort_transaction()
                steps.passed("aborted")
                rewind()
            else:
                producer.commit_transaction()
                steps.done(len(found))
    finally:
        consumer.close(timeout_ms=3000)


async def aiokafka(job: Job, steps: Steps) -> None:
    from aiokafka import AIOKafkaConsumer, AIOKafkaProducer, TopicPartition  # type: ignore[import-untyped]

    producer = AIOKafkaProducer(
        bootstrap_servers=job["bootstrap"], transactional_id=job["id"], transaction_timeout_ms=10_000
    )
    await producer.start()
    steps.passed("initialized")
    consumer = AIOKafkaConsumer(
        bootstrap_servers=job["bootstrap"],
        group_id=job["group"],
        isolation_level="read_committed",
        auto_offset_reset="earliest",
        enable_auto_commit=False,
        fetch_max_wait_ms=50,
        max_poll_records=job["size"],
    )
    await consumer.start()
    everything = [TopicPartition(job["input"], each) for each in range(job["partitions"])]
    consumer.assign(everything)
    while True:
        some = await consumer.getmany(timeout_ms=int(POLL_SECONDS * 1000))
        found = [each for records in some.values() for each in records]
        if not found:
            continue
        await producer.begin_transaction()
        steps.begin()
        sent = []
        for each in found:
            steps.places.read(each.partition, each.offset)
            sent.append(await producer.send(job["output"], transformed(each.value), each.key, each.partition))
        steps.passed("sent")
        await asyncio.gather(*sent)
        steps.passed("flushed")
        there = {TopicPartition(job["input"], each): offset for each, offset in steps.places.touched.items()}
        await producer.send_offsets_to_transaction(there, job["group"])
        steps.passed("offsets")
        if steps.to_be_aborted:
            await producer.abort_transaction()
            steps.passed("aborted")
            steps.places.rewind()
            for where in everything:
                consumer.seek(where, await consumer.committed(where) or 0)
        else:
            await producer.commit_transaction()
            steps.done(len(found))


def main() -> None:
    job: Job = json.loads(sys.argv[1])
    end_with_input()
    steps = Steps(job)
    if job["library"] == "aiokafka":
        asyncio.run(aiokafka(job, steps))
    else:
        {"confluent": confluent, "kafka-python": kafka_python}[job["library"]](job, steps)


if __name__ == "__main__":
    main()
