"""Batches from input-topic to output-topic, one transaction each, with kafka-python: `python batch_loop.py BOOTSTRAP COUNT`.

What is written and how far the input has been read are committed together. A crash leaves both or neither, and the next run
goes on where the last committed batch ended.
"""

from __future__ import annotations

import sys

from kafka import KafkaConsumer, KafkaProducer, OffsetAndMetadata
from kafka.errors import KafkaError, ProducerFencedError

INPUT, OUTPUT, GROUP = "input-topic", "output-topic", "batch-processor"


def make_producer(bootstrap: str) -> KafkaProducer:
    producer = KafkaProducer(
        bootstrap_servers=bootstrap,
        enable_idempotence=True,
        acks="all",
        max_in_flight_requests_per_connection=5,
        retries=2**31 - 1,
        transactional_id="batch-processor-1",
    )
    producer.init_transactions()
    return producer


def make_consumer(bootstrap: str) -> KafkaConsumer:
    return KafkaConsumer(
        INPUT,
        bootstrap_servers=bootstrap,
        group_id=GROUP,
        isolation_level="read_committed",
        enable_auto_commit=False,
        auto_offset_reset="earliest",
        max_poll_records=50,
    )


def process(value: bytes) -> bytes:
    """What the work is."""
    return value.upper()


def rewind(consumer: KafkaConsumer) -> None:
    """Back to where the last committed transaction ended."""
    for partition in consumer.assignment():
        consumer.seek(partition, consumer.committed(partition) or 0)


def copy(batch: dict, consumer: KafkaConsumer, producer: KafkaProducer) -> int:
    """One batch in one transaction; how many records are done with now."""
    producer.begin_transaction()
    try:
        offsets = {}
        for partition, records in batch.items():
            for record in records:
                producer.send(OUTPUT, process(record.value), record.key)
            offsets[partition] = OffsetAndMetadata(records[-1].offset + 1, "", -1)
        producer.send_offsets_to_transaction(offsets, consumer.group_metadata())
        producer.commit_transaction()
    except ProducerFencedError:
        raise  # another producer has our id now: it does the work
    except KafkaError:
        producer.abort_transaction()
        rewind(consumer)
        return 0
    return sum(map(len, batch.values()))


def main(bootstrap: str, count: int) -> None:
    producer, consumer = make_producer(bootstrap), make_consumer(bootstrap)
    while count > 0:
        batch = consumer.poll(timeout_ms=100)
        if batch:
            count -= copy(batch, consumer, producer)
    consumer.close()
    producer.close()


if __name__ == "__main__":
    main(sys.argv[1], int(sys.argv[2]))
