"""Real clients behind one face, so that a test can say "each of them" and mean it.

Each adapter produces a list of records to one partition and consumes a number of records from an offset, always in
assign mode. `carries` says which records a client is able to write at all (kcat takes its key from a command line).
"""

from __future__ import annotations

import asyncio
import shutil
import subprocess
import tempfile
import time
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import aiokafka  # type: ignore[import-untyped]
import confluent_kafka
import kafka as kafka_python  # type: ignore[import-untyped]

from apache import kafka as apache_kafka
from compat.corpus import Record, Seen, read_line, write_lines
from harness import die_with_parent

JAVA_SOURCE = Path(__file__).resolve().parent / "java" / "Clients.java"
SECONDS = 60.0
REQUEST_BYTES_MAX = 2_000_000


class Client:
    """One client library on one broker."""

    name = "client"
    keeps_timestamps = True

    def __init__(self, address: str) -> None:
        self.address = address

    def why_missing(self) -> str | None:
        return None

    def carries(self, record: Record) -> bool:
        return True

    def written(self, record: Record) -> Record:
        """The record as another client will read it."""
        return record if self.keeps_timestamps else replace(record, timestamp_ms=0)

    def read(self, record: Record) -> Record:
        """The record as this client will show it."""
        return record

    def produce(self, topic: str, partition: int, records: Sequence[Record], codec: str) -> None:
        raise NotImplementedError

    def consume(self, topic: str, partition: int, offset: int, count: int) -> list[Seen]:
        raise NotImplementedError

    def close(self) -> None:
        pass


class Confluent(Client):
    name = "confluent"

    def produce(self, topic: str, partition: int, records: Sequence[Record], codec: str, **settings: Any) -> None:
        failures: list[Any] = []
        config = {
            "bootstrap.servers": self.address,
            "compression.type": codec,
            "linger.ms": 20,
            "message.max.bytes": REQUEST_BYTES_MAX,
        }
        producer = confluent_kafka.Producer({**config, **settings})
        for r in records:
            producer.produce(
                topic,
                r.value,
                r.key,
                partition,
                timestamp=r.timestamp_ms,
                headers=list(r.headers),
                on_delivery=lambda error, _: failures.append(error) if error else None,
            )
        assert producer.flush(SECONDS) == 0, "not everything was delivered"
        if failures:
            raise confluent_kafka.KafkaException(failures[0])

    def consume(self, topic: str, partition: int, offset: int, count: int, **settings: Any) -> list[Seen]:
        config = {
            "bootstrap.servers": self.address,
            "group.id": "assigned",
            "enable.auto.commit": False,
            "auto.offset.reset": "error",
        }
        consumer = confluent_kafka.Consumer({**config, **settings})
        try:
            consumer.assign([confluent_kafka.TopicPartition(topic, partition, offset)])
            return self._take(consumer, count)
        finally:
            consumer.close()

    def _take(self, consumer: Any, count: int) -> list[Seen]:
        seen: list[Seen] = []
        deadline = time.monotonic() + SECONDS
        while len(seen) < count and time.monotonic() < deadline:
            for message in consumer.consume(count - len(seen), 0.5):
                if message.error():
                    raise confluent_kafka.KafkaException(message.error())
                headers = tuple((name, value) for name, value in message.headers() or ())
                seen.append(
                    Seen(message.offset(), Record(message.key(), message.value(), headers, message.timestamp()[1]))
                )
        return seen


class Aiokafka(Client):
    name = "aiokafka"

    def carries(self, record: Record) -> bool:
        return _is_whole(record)

    def produce(self, topic: str, partition: int, records: Sequence[Record], codec: str, **settings: Any) -> None:
        asyncio.run(self._produce(topic, partition, records, codec, settings))

    async def _produce(
        self, topic: str, partition: int, records: Sequence[Record], codec: str, settings: dict[str, Any]
    ) -> None:
        compression = None if codec == "none" else codec
        producer = aiokafka.AIOKafkaProducer(
            bootstrap_servers=self.address,
            compression_type=compression,
            max_request_size=REQUEST_BYTES_MAX,
            linger_ms=20,
            **settings,
        )
        await producer.start()
        try:
            sent = [
                await producer.send(topic, r.value, r.key, partition, r.timestamp_ms, list(r.headers)) for r in records
            ]
            await asyncio.wait_for(asyncio.gather(*sent), SECONDS)
        finally:
            await producer.stop()

    def consume(self, topic: str, partition: int, offset: int, count: int, **settings: Any) -> list[Seen]:
        return asyncio.run(self._consume(topic, partition, offset, count, settings))

    async def _consume(
        self, topic: str, partition: int, offset: int, count: int, settings: dict[str, Any]
    ) -> list[Seen]:
        consumer = aiokafka.AIOKafkaConsumer(bootstrap_servers=self.address, auto_offset_reset="none", **settings)
        await consumer.start()
        try:
            which = aiokafka.TopicPartition(topic, partition)
            consumer.assign([which])
            consumer.seek(which, offset)
            return [self._seen(await asyncio.wait_for(consumer.getone(), SECONDS)) for _ in range(count)]
        finally:
            await consumer.stop()

    def _seen(self, m: Any) -> Seen:
        return Seen(m.offset, Record(m.key, m.value, tuple((n, v) for n, v in m.headers), m.timestamp))


class KafkaPython(Client):
    name = "kafka-python"

    def carries(self, record: Record) -> bool:
        return _is_whole(record)

    def produce(self, topic: str, partition: int, records: Sequence[Record], codec: str, **settings: Any) -> None:
        compression = None if codec == "none" else codec
        producer = kafka_python.KafkaProducer(
            bootstrap_servers=self.address,
            compression_type=compression,
            max_request_size=REQUEST_BYTES_MAX,
            linger_ms=20,
            **settings,
        )
        try:
            sent = [producer.send(topic, r.value, r.key, list(r.headers), partition, r.timestamp_ms) for r in records]
            producer.flush(SECONDS)
            for one in sent:
                one.get(SECONDS)
        finally:
            producer.close(timeout=5)

    def consume(self, topic: str, partition: int, offset: int, count: int, **settings: Any) -> list[Seen]:
        consumer = kafka_python.KafkaConsumer(
            bootstrap_servers=self.address,
            auto_offset_reset="none",
            enable_auto_commit=False,
            consumer_timeout_ms=int(SECONDS * 1000),
            **settings,
        )
        try:
            which = kafka_python.TopicPartition(topic, partition)
            consumer.assign([which])
            consumer.seek(which, offset)
            return [self._seen(m) for _, m in zip(range(count), consumer, strict=False)]
        finally:
            consumer.close()

    def _seen(self, m: Any) -> Seen:
        return Seen(m.offset, Record(m.key, m.value, tuple((n, v) for n, v in m.headers), m.timestamp))


class Kcat(Client):
    """kcat takes one message from one file, its key and headers from the command line, and no timestamp."""

    name = "kcat"
    keeps_timestamps = False
    form = "%o %T %K %S\\n%k%s%h\\n"

    def why_missing(self) -> str | None:
        return None if shutil.which("kcat") else "kcat is not installed (Debian package kcat)"

    def carries(self, record: Record) -> bool:
        key_on_command_line = record.key is None or (
            b"\0" not in record.key and record.key != b"" and len(record.key) < 64
        )
        tombstone_with_key = record.value is not None or record.key is not None
        return key_on_command_line and tombstone_with_key and record.value != b""

    def produce(self, topic: str, partition: int, records: Sequence[Record], codec: str) -> None:
        with tempfile.TemporaryDirectory() as directory:
            for record in records:
                self._send(topic, partition, record, codec, Path(directory) / "value")

    def _send(self, topic: str, partition: int, record: Record, codec: str, path: Path) -> None:
        command = [b"kcat", b"-P", b"-b", self.address.encode(), b"-t", topic.encode(), b"-p", b"%d" % partition]
        command += [
            b"-X",
            b"compression.codec=" + codec.encode(),
            b"-X",
            b"message.max.bytes=%d" % REQUEST_BYTES_MAX,
            b"-X",
            b"linger.ms=0",
        ]
        for name, value in record.headers:
            command += [b"-H", name.encode() + (b"" if value is None else b"=" + value)]
        if record.value is None:
            assert record.key is not None
            self._run([*command, b"-Z", b"-K", b"\t"], record.key + b"\t\n")
            return
        path.write_bytes(record.value)
        key = [] if record.key is None else [b"-k", record.key]
        self._run([*command, *key, str(path).encode()], b"")

    def consume(self, topic: str, partition: int, offset: int, count: int) -> list[Seen]:
        command = [
            "kcat",
            "-C",
            "-q",
            "-b",
            self.address,
            "-t",
            topic,
            "-p",
            str(partition),
            "-o",
            str(offset),
            "-c",
            str(count),
            "-f",
            self.form,
        ]
        return self._parse(self._run([part.encode() for part in command], b""))

    def _parse(self, data: bytes) -> list[Seen]:
        seen, at = [], 0
        while at < len(data):
            end = data.index(b"\n", at)
            offset, timestamp, key_size, value_size = map(int, data[at:end].split())
            at = end + 1
            key, at = _cut(data, at, key_size)
            value, at = _cut(data, at, value_size)
            end = data.index(b"\n", at)
            seen.append(Seen(offset, Record(key, value, _rendered(data[at:end].decode()), timestamp)))
            at = end + 1
        return seen

    def read(self, record: Record) -> Record:
        """Headers come back as one string: n=v, separated by commas, null as NULL."""
        shown = ",".join(f"{name}={'NULL' if value is None else value.decode()}" for name, value in record.headers)
        return replace(record, headers=_rendered(shown))

    def _run(self, command: list[bytes], stdin: bytes) -> bytes:
        done = subprocess.run(command, input=stdin, capture_output=True, timeout=SECONDS)
        assert done.returncode == 0, done.stderr.decode(errors="replace")
        return done.stdout


class Java(Client):
    """Kafka's Java clients in one JVM that takes orders by a pipe (java/Clients.java, or another program of that shape)."""

    def __init__(self, address: str, jars: Path, name: str, source: Path = JAVA_SOURCE) -> None:
        super().__init__(address)
        self.name, self.jars, self.source = name, jars, source
        self.process: subprocess.Popen[str] | None = None

    def why_missing(self) -> str | None:
        return apache_kafka.why_missing(self.jars)

    def order(self, *words: object) -> list[str]:
        """Sends one order; the lines of its answer. Raises JavaError when the answer is an exception."""
        process = self.process or self._start()
        assert process.stdin is not None
        assert process.stdout is not None
        process.stdin.write("\t".join(map(str, words)) + "\n")
        process.stdin.flush()
        lines: list[str] = []
        for line in process.stdout:
            word, *rest = line.rstrip("\n").split("\t")
            if word == "error":
                raise JavaError(*rest)
            if word == "ok":
                return lines
            lines.append(line.rstrip("\n"))
        raise AssertionError(f"the JVM ended while it answered {words}")

    def produce(self, topic: str, partition: int, records: Sequence[Record], codec: str, options: str = "") -> None:
        with tempfile.TemporaryDirectory() as directory:
            path = Path(directory) / "records"
            write_lines(records, path)
            self.order("produce", topic, partition, path, f"compression.type={codec},{options}")

    def consume(self, topic: str, partition: int, offset: int, count: int, options: str = "") -> list[Seen]:
        return [read_line(line) for line in self.order("consume", topic, partition, offset, count, options)]

    def close(self) -> None:
        if self.process is not None:
            assert self.process.stdin is not None
            self.process.stdin.close()
            try:
                self.process.wait(10)
            except subprocess.TimeoutExpired:
                self.process.kill()
            self.process = None

    def _start(self) -> subprocess.Popen[str]:
        command = apache_kafka.java(str(self.source), self.address, jars=self.jars)
        self.process = subprocess.Popen(
            command,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            text=True,
            encoding="utf-8",
            preexec_fn=die_with_parent,
        )
        return self.process


class JavaError(Exception):
    """An exception of the Java client: its class, and its message."""

    def __init__(self, kind: str, message: str = "") -> None:
        super().__init__(f"{kind}: {message}")
        self.kind = kind


def every_client(address: str) -> dict[str, Client]:
    found = [
        Confluent(address),
        Aiokafka(address),
        KafkaPython(address),
        Kcat(address),
        Java(address, apache_kafka.JARS, "java-4.3"),
        Java(address, apache_kafka.JARS_39, "java-3.9"),
    ]
    return {client.name: client for client in found}


def _cut(data: bytes, at: int, size: int) -> tuple[bytes | None, int]:
    return (None, at) if size < 0 else (data[at : at + size], at + size)


def _rendered(text: str) -> tuple[tuple[str, bytes | None], ...]:
    return (("rendered", text.encode()),) if text else ()


def _is_whole(record: Record) -> bool:
    """The two Python clients take neither a null header nor a record without key and value."""
    return all(value is not None for _, value in record.headers) and (record.key, record.value) != (None, None)
