"""Transactional producers of four libraries behind one face, and readers of both isolation levels.

`Refused.why` is what a library calls its error: the name of an error code, or of an exception. aiokafka has an event loop of
its own here, so that it can be driven step by step like the others; its `start` is what others call `init_transactions`.
"""

from __future__ import annotations

import asyncio
import itertools
import time
from collections.abc import Callable, Coroutine, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any, NamedTuple

import aiokafka  # type: ignore[import-untyped]
import aiokafka.errors  # type: ignore[import-untyped]
import confluent_kafka
import kafka as kafka_python  # type: ignore[import-untyped]
import kafka.errors  # type: ignore[import-untyped]

from apache import kafka as apache_kafka
from compat.clients import Java, JavaError
from compat.peers import Peer, asking

SECONDS = 60.0
# How long a broker keeps a reader waiting for more, when it has read everything.
FETCH_MS = 20
JAVA_SOURCE = Path(__file__).resolve().parent / "java" / "Transactions.java"


class Refused(Exception):
    """A library would not, or was not allowed to."""

    def __init__(self, why: str, message: str) -> None:
        super().__init__(f"{why}: {message}")
        self.why, self.message = why, message


class Found(NamedTuple):
    """A record as a reader shows it."""

    partition: int
    offset: int
    key: str
    value: str


class Transactor:
    """One producer with a transactional id. `offset` takes the group's id, or with `member` what its member knows of it."""

    def __init__(self, address: str, transactional_id: str, **settings: Any) -> None:
        self.address, self.transactional_id = address, transactional_id
        self.settings = settings

    def init(self) -> Transactor:
        raise NotImplementedError

    def begin(self) -> None:
        raise NotImplementedError

    def send(self, topic: str, value: str, partition: int = 0, key: str = "k") -> None:
        raise NotImplementedError

    def flush(self) -> None:
        """Waits until what was sent is in the log, though not yet committed."""
        raise NotImplementedError

    def offset(self, group: str, topic: str, offset: int, partition: int = 0, member: Any = None) -> None:
        raise NotImplementedError

    def commit(self) -> None:
        raise NotImplementedError

    def abort(self) -> None:
        raise NotImplementedError

    def close(self) -> None:
        """Goes without ending the transaction, if there is one."""
        raise NotImplementedError

    def wrote(self, topic: str, *values: str, partition: int = 0) -> Transactor:
        """Begins, sends, and waits until it is all in the log."""
        self.begin()
        for value in values:
            self.send(topic, value, partition)
        self.flush()
        return self


class Library:
    """What a library's producers and readers are made by."""

    name = "library"
    # Whether its producers may send what a member of the group knows of it (KIP-447), or only the group's id.
    knows_members = True

    def why_missing(self) -> str | None:
        return None

    def producer(self, address: str, transactional_id: str, **settings: Any) -> Transactor:
        raise NotImplementedError

    def read(self, address: str, topic: str, partitions: int, isolation: str) -> list[Found]:
        """Everything that is there for this isolation level now."""
        raise NotImplementedError

    @contextmanager
    def member(self, address: str, group: str, topic: str) -> Iterator[Any]:
        """A member of a group that owns all of a topic."""
        raise NotImplementedError

    def close(self) -> None:
        pass


def finalize(address: str, generation: int) -> None:
    """Changes transaction.version while the broker runs."""
    for safely_down in (False, True):
        update = {
            "feature": "transaction.version",
            "max_version_level": generation,
            "upgrade_type": 2 if safely_down else 1,
        }
        answer = Peer(address).ask(asking(57, 1, feature_updates=[update], validate_only=False))
        if answer.error_code.name == "none":
            return
    raise AssertionError(answer)


def committed_offsets(address: str, group: str, topic: str, partitions: int) -> list[int]:
    """How far a group is, -1 where it has said nothing. A coordinator that is not there yet is asked again.

    confluent's own admin client would end the process when such a coordinator answers it (librdkafka 2.16)."""
    wanted = [{"group_id": group, "topics": [{"name": topic, "partition_indexes": list(range(partitions))}]}]
    deadline = time.monotonic() + SECONDS
    while True:
        answer = Peer(address).ask(asking(9, 8, groups=wanted, require_stable=False))
        if not isinstance(answer, str) and answer.groups[0].error_code.name == "none":
            found = {each.partition_index: each.committed_offset for each in answer.groups[0].topics[0].partitions}
            return [found[partition] for partition in range(partitions)]
        assert time.monotonic() < deadline, answer
        time.sleep(0.05)


def until(is_so: Callable[[], object], what: str) -> None:
    deadline = time.monotonic() + SECONDS
    while not is_so():
        assert time.monotonic() < deadline, f"waited for {what}"


class ConfluentProducer(Transactor):
    def __init__(self, address: str, transactional_id: str, **settings: Any) -> None:
        super().__init__(address, transactional_id, **settings)
        asked = {"bootstrap.servers": address, "transactional.id": transactional_id, "linger.ms": 0, "log_level": 0}
        self._failures: list[Any] = []
        with told_by_confluent():
            self.producer = confluent_kafka.Producer({**asked, **settings})

    def init(self) -> Transactor:
        with told_by_confluent():
            self.producer.init_transactions(SECONDS)
        return self

    def begin(self) -> None:
        with told_by_confluent():
            self.producer.begin_transaction()

    def send(self, topic: str, value: str, partition: int = 0, key: str = "k") -> None:
        self.producer.produce(topic, value, key, partition, on_delivery=self._delivered)

    def _delivered(self, error: Any, _: object) -> None:
        if error is not None:
            self._failures.append(error)

    def flush(self) -> None:
        assert self.producer.flush(SECONDS) == 0
        if self._failures:
            raise Refused(self._failures[0].name(), str(self._failures[0]))

    def offset(self, group: str, topic: str, offset: int, partition: int = 0, member: Any = None) -> None:
        reader = member or confluent_kafka.Consumer({"bootstrap.servers": self.address, "group.id": group})
        there = [confluent_kafka.TopicPartition(topic, partition, offset)]
        with told_by_confluent():
            self.producer.send_offsets_to_transaction(there, reader.consumer_group_metadata(), SECONDS)

    def commit(self) -> None:
        with told_by_confluent():
            self.producer.commit_transaction(SECONDS)

    def abort(self) -> None:
        with told_by_confluent():
            self.producer.abort_transaction(SECONDS)

    def close(self) -> None:
        del self.producer


@contextmanager
def told_by_confluent() -> Iterator[None]:
    try:
        yield
    except confluent_kafka.KafkaException as exception:
        raise Refused(exception.args[0].name(), str(exception)) from exception


class Confluent(Library):
    name = "confluent"

    def producer(self, address: str, transactional_id: str, **settings: Any) -> Transactor:
        dotted = {name.replace("_", "."): value for name, value in settings.items()}
        return ConfluentProducer(address, transactional_id, **dotted)

    def read(self, address: str, topic: str, partitions: int, isolation: str) -> list[Found]:
        settings = {
            "bootstrap.servers": address,
            "group.id": "nobody",
            "enable.auto.commit": False,
            "isolation.level": isolation,
            "enable.partition.eof": True,
            "fetch.wait.max.ms": FETCH_MS,
        }
        reader = confluent_kafka.Consumer(settings)
        reader.assign([confluent_kafka.TopicPartition(topic, each, 0) for each in range(partitions)])
        found, ends = [], set()
        deadline = time.monotonic() + SECONDS
        while len(ends) < partitions:
            assert time.monotonic() < deadline, "the end was not reached"
            for message in reader.consume(500, FETCH_MS / 1000):
                if message.error():
                    assert message.error().code() == confluent_kafka.KafkaError._PARTITION_EOF, message.error()
                    ends.add(message.partition())
                else:
                    key, value = message.key().decode(), message.value().decode()
                    found.append(Found(message.partition(), message.offset(), key, value))
        reader.close()
        return found

    @contextmanager
    def member(self, address: str, group: str, topic: str) -> Iterator[Any]:
        settings = {"bootstrap.servers": address, "group.id": group, "auto.offset.reset": "earliest"}
        member = confluent_kafka.Consumer({**settings, "enable.auto.commit": False})
        member.subscribe([topic])
        until(lambda: member.poll(0.1) is not None or member.assignment(), "an assignment")
        yield member
        member.close()


class KafkaPythonProducer(Transactor):
    def __init__(self, address: str, transactional_id: str, **settings: Any) -> None:
        super().__init__(address, transactional_id, **settings)
        asked = {"max_block_ms": SECONDS * 1000, **settings}
        self.producer = kafka_python.KafkaProducer(
            bootstrap_servers=address, transactional_id=transactional_id, **asked
        )

    def init(self) -> Transactor:
        with told_by_kafka_python():
            self.producer.init_transactions()
        return self

    def begin(self) -> None:
        with told_by_kafka_python():
            self.producer.begin_transaction()

    def send(self, topic: str, value: str, partition: int = 0, key: str = "k") -> None:
        with told_by_kafka_python():
            self.last = self.producer.send(topic, value.encode(), key.encode(), partition=partition)

    def flush(self) -> None:
        with told_by_kafka_python():
            self.producer.flush(SECONDS)
            self.last.get(SECONDS)

    def offset(self, group: str, topic: str, offset: int, partition: int = 0, member: Any = None) -> None:
        there = {kafka_python.TopicPartition(topic, partition): kafka_python.OffsetAndMetadata(offset, "", -1)}
        with told_by_kafka_python():
            self.producer.send_offsets_to_transaction(there, member.group_metadata() if member else group)

    def commit(self) -> None:
        with told_by_kafka_python():
            self.producer.commit_transaction()

    def abort(self) -> None:
        with told_by_kafka_python():
            self.producer.abort_transaction()

    def close(self) -> None:
        self.producer.close(timeout=0)


@contextmanager
def told_by_kafka_python() -> Iterator[None]:
    try:
        yield
    except kafka.errors.KafkaError as exception:
        raise Refused(type(exception).__name__, str(exception)) from exception


class KafkaPython(Library):
    name = "kafka-python"

    def producer(self, address: str, transactional_id: str, **settings: Any) -> Transactor:
        return KafkaPythonProducer(address, transactional_id, **settings)

    def read(self, address: str, topic: str, partitions: int, isolation: str) -> list[Found]:
        reader = kafka_python.KafkaConsumer(
            bootstrap_servers=address, isolation_level=isolation, group_id=None, fetch_max_wait_ms=FETCH_MS
        )
        all_of_it = [kafka_python.TopicPartition(topic, each) for each in range(partitions)]
        reader.assign(all_of_it)
        reader.seek_to_beginning()
        ends = reader.end_offsets(all_of_it)
        found: list[Found] = []
        deadline = time.monotonic() + SECONDS
        while any(reader.position(each) < ends[each] for each in all_of_it):
            assert time.monotonic() < deadline, "the end was not reached"
            found += [_found(each) for some in reader.poll(100).values() for each in some]
        reader.close()
        return found

    @contextmanager
    def member(self, address: str, group: str, topic: str) -> Iterator[Any]:
        member = kafka_python.KafkaConsumer(
            bootstrap_servers=address, group_id=group, auto_offset_reset="earliest", enable_auto_commit=False
        )
        member.partitions_for_topic(topic)
        member.subscribe([topic])
        until(lambda: member.poll(100) or member.assignment(), "an assignment")
        yield member
        member.close()


def _found(record: Any) -> Found:
    return Found(record.partition, record.offset, record.key.decode(), record.value.decode())


class AiokafkaProducer(Transactor):
    def __init__(self, address: str, transactional_id: str, run: Callable[..., Any], **settings: Any) -> None:
        super().__init__(address, transactional_id, **settings)
        self._run, self._sent = run, []
        self.producer = run(self._made())

    async def _made(self) -> Any:
        return aiokafka.AIOKafkaProducer(
            bootstrap_servers=self.address, transactional_id=self.transactional_id, **self.settings
        )

    def init(self) -> Transactor:
        self._run(self.producer.start())
        return self

    def begin(self) -> None:
        self._run(self.producer.begin_transaction())

    def send(self, topic: str, value: str, partition: int = 0, key: str = "k") -> None:
        self._sent.append(self._run(self.producer.send(topic, value.encode(), key.encode(), partition)))

    def flush(self) -> None:
        async def all_sent() -> None:
            while self._sent:
                await self._sent.pop()

        self._run(all_sent())

    def offset(self, group: str, topic: str, offset: int, partition: int = 0, member: Any = None) -> None:
        there = {aiokafka.TopicPartition(topic, partition): offset}
        self._run(self.producer.send_offsets_to_transaction(there, group))

    def commit(self) -> None:
        self._run(self.producer.commit_transaction())

    def abort(self) -> None:
        self._run(self.producer.abort_transaction())

    def close(self) -> None:
        """Its own `stop` would end the transaction."""
        self.producer._closed = True
        self._run(self.producer.client.close())


class Aiokafka(Library):
    name = "aiokafka"
    knows_members = False

    def __init__(self) -> None:
        self._loop = asyncio.new_event_loop()

    def _run(self, doing: Coroutine[Any, Any, Any]) -> Any:
        try:
            return self._loop.run_until_complete(asyncio.wait_for(doing, SECONDS))
        except aiokafka.errors.KafkaError as exception:
            raise Refused(type(exception).__name__, str(exception)) from exception

    def producer(self, address: str, transactional_id: str, **settings: Any) -> Transactor:
        return AiokafkaProducer(address, transactional_id, self._run, **settings)

    def read(self, address: str, topic: str, partitions: int, isolation: str) -> list[Found]:
        found: list[Found] = self._run(self._read(address, topic, partitions, isolation))
        return found

    async def _read(self, address: str, topic: str, partitions: int, isolation: str) -> list[Found]:
        reader = aiokafka.AIOKafkaConsumer(
            bootstrap_servers=address, isolation_level=isolation, fetch_max_wait_ms=FETCH_MS
        )
        await reader.start()
        all_of_it = [aiokafka.TopicPartition(topic, each) for each in range(partitions)]
        reader.assign(all_of_it)
        await reader.seek_to_beginning()
        ends = await reader.end_offsets(all_of_it)
        found: list[Found] = []
        while any([await reader.position(each) < ends[each] for each in all_of_it]):
            some = await reader.getmany(timeout_ms=100)
            found += [_found(each) for records in some.values() for each in records]
        await reader.stop()
        return found

    def close(self) -> None:
        for task in asyncio.all_tasks(self._loop):
            task.cancel()
        self._loop.run_until_complete(asyncio.sleep(0))
        self._loop.close()


class JavaProducer(Transactor):
    NAMES = itertools.count()

    def __init__(self, address: str, transactional_id: str, jvm: Java, **settings: Any) -> None:
        super().__init__(address, transactional_id, **settings)
        self._jvm, self._name = jvm, f"{transactional_id}-{next(self.NAMES)}"
        asked = {"transactional.id": transactional_id, "linger.ms": 0, "max.block.ms": int(SECONDS * 1000), **settings}
        self._order("open", ",".join(f"{name}={value}" for name, value in asked.items()))

    def _order(self, what: str, *words: object) -> None:
        try:
            self._jvm.order(what, self._name, *words)
        except JavaError as error:
            raise Refused(error.kind, str(error)) from error

    def init(self) -> Transactor:
        self._order("init")
        return self

    def begin(self) -> None:
        self._order("begin")

    def send(self, topic: str, value: str, partition: int = 0, key: str = "k") -> None:
        self._order("send", topic, partition, key, value)

    def flush(self) -> None:
        self._order("flush")

    def offset(self, group: str, topic: str, offset: int, partition: int = 0, member: Any = None) -> None:
        self._order("offset", group, topic, partition, offset)

    def commit(self) -> None:
        self._order("commit")

    def abort(self) -> None:
        self._order("abort")

    def close(self) -> None:
        self._order("close")


class JavaLibrary(Library):
    def __init__(self, name: str, jars: Path) -> None:
        self.name, self._jars = name, jars
        self._jvms: dict[str, Java] = {}

    def why_missing(self) -> str | None:
        return apache_kafka.why_missing(self._jars)

    def _jvm(self, address: str) -> Java:
        if address not in self._jvms:
            self._jvms[address] = Java(address, self._jars, self.name, JAVA_SOURCE)
        return self._jvms[address]

    def producer(self, address: str, transactional_id: str, **settings: Any) -> Transactor:
        dotted = {name.replace("_", "."): value for name, value in settings.items()}
        return JavaProducer(address, transactional_id, self._jvm(address), **dotted)

    def read(self, address: str, topic: str, partitions: int, isolation: str) -> list[Found]:
        lines = [line.split("\t") for line in self._jvm(address).order("read", topic, partitions, isolation)]
        return [Found(int(partition), int(offset), key, value) for partition, offset, key, value in lines]

    @contextmanager
    def member(self, address: str, group: str, topic: str) -> Iterator[Any]:
        self._jvm(address).order("join", group, topic)
        yield group
        self._jvm(address).order("leave", group)

    def close(self) -> None:
        for jvm in self._jvms.values():
            jvm.close()


def every_library() -> dict[str, Library]:
    java = [JavaLibrary("java-4.3", apache_kafka.JARS), JavaLibrary("java-3.9", apache_kafka.JARS_39)]
    found: Sequence[Library] = [Confluent(), KafkaPython(), Aiokafka(), *java]
    return {library.name: library for library in found}
