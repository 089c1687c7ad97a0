"""Every request of a transactional producer is done by the broker, and its answer is lost: once, or three times in a row.

The client cannot know what happened, and asks again. Whatever was asked twice counts once: readers get what was committed, all
of it and in order, nothing that was aborted, and the group stands where the last transaction put it.
"""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine, Iterator
from typing import Any

import confluent_kafka
import pytest

from apache import kafka
from compat.transacting import (
    SECONDS,
    Aiokafka,
    Confluent,
    JavaLibrary,
    KafkaPython,
    Library,
    Transactor,
    committed_offsets,
    finalize,
    until,
)
from ottla.client.cluster import Cluster, TopicPartition
from ottla.client.commits import Committed
from ottla.client.producer import Producer
from ottla.testing import Broker, broker

APIS = (
    *("FindCoordinator", "InitProducerId", "AddPartitionsToTxn", "AddOffsetsToTxn"),
    *("Produce", "TxnOffsetCommit", "EndTxn"),
)
# Nothing of the second generation adds partitions or groups by a request of its own.
ADDING = {"AddPartitionsToTxn", "AddOffsetsToTxn"}


class OurProducer(Transactor):
    """The client of `ottla.client`, on a loop that runs while it is asked for something."""

    def __init__(self, address: str, transactional_id: str, loop: asyncio.AbstractEventLoop) -> None:
        super().__init__(address, transactional_id)
        self._loop = loop
        self.cluster = Cluster(address)
        self.producer = Producer(self.cluster, transactional_id=transactional_id, linger_ms=0, delivery_s=SECONDS)

    def _run(self, doing: Coroutine[Any, Any, Any]) -> Any:
        return self._loop.run_until_complete(asyncio.wait_for(doing, 2 * SECONDS))

    def init(self) -> Transactor:
        self._run(self.producer.init())
        return self

    def begin(self) -> None:
        self.producer.begin()

    def send(self, topic: str, value: str, partition: int = 0, key: str = "k") -> None:
        self._run(self.producer.post(topic, value.encode(), key=key.encode(), partition=partition))

    def flush(self) -> None:
        self._run(self.producer.flush())

    def offset(self, group: str, topic: str, offset: int, partition: int = 0, member: Any = None) -> None:
        self._run(self.producer.send_offsets({TopicPartition(topic, partition): Committed(offset)}, group))

    def commit(self) -> None:
        self._run(self.producer.commit())

    def abort(self) -> None:
        self._run(self.producer.abort())

    def close(self) -> None:
        self._run(self.producer.close())
        self.cluster.close()


class Ours(Library):
    name = "ottla"

    def __init__(self) -> None:
        self._loop = asyncio.new_event_loop()

    def producer(self, address: str, transactional_id: str, **_: Any) -> Transactor:
        return OurProducer(address, transactional_id, self._loop)

    def close(self) -> None:
        self._loop.close()


class Java(JavaLibrary):
    """Beside ours the only one that knows generation 2."""

    name = "java-4.3"

    def __init__(self) -> None:
        super().__init__(self.name, kafka.JARS)


# What makes a library ask again soon.
QUICK: dict[type[Library], dict[str, Any]] = {
    Confluent: {"retry_backoff_ms": 20, "reconnect_backoff_ms": 10, "reconnect_backoff_max_ms": 50},
    KafkaPython: {"retry_backoff_ms": 20, "reconnect_backoff_ms": 10, "reconnect_backoff_max_ms": 50},
    Aiokafka: {"retry_backoff_ms": 20},
    Java: {"retry_backoff_ms": 20, "reconnect_backoff_ms": 10, "reconnect_backoff_max_ms": 50},
    Ours: {},
}
# aiokafka does not ask for its coordinator again when that answer is lost: it tells the application.
GIVEN_UP: dict[type[Library], set[str]] = {Aiokafka: {"FindCoordinator"}}
# confluent takes half a second for each answer that was lost, so each generation gets half of it.
TIMES: dict[tuple[type[Library], int], tuple[int, ...]] = {(Confluent, 1): (1,), (Confluent, 2): (3,)}


@pytest.fixture(scope="module")
def running() -> Iterator[Broker]:
    with broker() as started:
        started.create_topic("in")
        yield started


@pytest.mark.timeout(300)
@pytest.mark.parametrize("generation", [1, 2])
@pytest.mark.parametrize("kind", [Confluent, Ours, Java, KafkaPython, Aiokafka], ids=lambda kind: kind.name)
def test_answers_that_are_lost_are_asked_for_again(running: Broker, kind: type[Library], generation: int) -> None:
    """TXN-03, TXN-05, TXN-07: init, add, produce, offsets and the ends, each of them done and not answered."""
    finalize(running.bootstrap, generation)
    library, topic = kind(), running.create_topic(f"{kind.name}-{generation}")
    if reason := library.why_missing():
        pytest.skip(reason)
    left_out = ADDING if kind in (Ours, Java) and generation == 2 else GIVEN_UP.get(kind, set())
    wanted = []
    for api in [api for api in APIS if api not in left_out]:
        for times in TIMES.get((kind, generation), (1, 3)):
            name = f"{topic}-{api}-{times}"
            with running.faults.lose_answer(api, times=times) as fault:
                producer = library.producer(running.bootstrap, name, **QUICK[kind]).init()
                # The end whose answer is lost is a commit, or an abort.
                for number, commits in enumerate((times == 1, times == 3, True)):
                    transact(producer, topic, f"{name}-{number}", number + 1, commits)
                    wanted += [f"{name}-{number}"] * commits
                assert fault.left == 0, f"{name}: not all answers were lost"
            producer.close()
            until(lambda: committed_offsets(running.bootstrap, name, "in", 1) == [3], "the offset")  # noqa: B023
    for api in sorted(left_out & ADDING):
        wanted.append(check_never_asks(running, library, topic, api))
    library.close()
    found = Confluent().read(running.bootstrap, topic, 1, "read_committed")
    assert [each.value for each in found] == wanted
    assert ends(running, topic, "read_committed") == ends(running, topic, "read_uncommitted")


def check_never_asks(running: Broker, library: Library, topic: str, api: str) -> str:
    """That is how one sees which generation it speaks. What it wrote on the way."""
    value = f"{topic}-without-{api}"
    with running.faults.lose_answer(api, times=1) as fault:
        producer = library.producer(running.bootstrap, value).init()
        transact(producer, topic, value, 1, True)
        assert fault.left == 1, f"{library.name} asked for {api}"
    producer.close()
    return value


def transact(producer: Transactor, topic: str, value: str, offset: int, commits: bool) -> None:
    producer.wrote(topic, value)
    producer.offset(producer.transactional_id, "in", offset)
    if commits:
        producer.commit()
    else:
        producer.abort()


def ends(running: Broker, topic: str, isolation: str) -> int:
    """The last stable offset, or the high watermark."""
    settings = {"bootstrap.servers": running.bootstrap, "group.id": "nobody", "isolation.level": isolation}
    reader = confluent_kafka.Consumer(settings)
    end: int = reader.get_watermark_offsets(confluent_kafka.TopicPartition(topic, 0), SECONDS)[1]
    reader.close()
    return end
