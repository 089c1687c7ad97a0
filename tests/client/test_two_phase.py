"""Two-phase commit (KIP-939): another system decides, and a producer that comes back carries the decision out."""

from __future__ import annotations

import asyncio
import itertools
import os
from collections.abc import Awaitable, Callable, Iterator
from typing import Any

import pytest

from harness import Node, stop_all
from ottla.client.admin import Admin
from ottla.client.cluster import EARLIEST, LATEST, Cluster, TopicPartition
from ottla.client.consumer import Consumer
from ottla.client.producer import Producer
from ottla.client.transactions import NOTHING, Fatal, Outcome, Prepared
from ottla.wire.errors import Error, KafkaError

NUMBERS = itertools.count()
LIMIT_S = 60
SETTINGS = {"transaction.two.phase.commit.enable": "true", "transaction.state.log.num.partitions": "3"}


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Node]:
    node = Node(tmp_path_factory.mktemp("two-phase") / "data", settings=SETTINGS)
    try:
        node.start()
        yield node
    finally:
        stop_all([node])


def run(server: Node, act: Callable[[Cluster, str], Awaitable[Any]]) -> Any:
    """`act` gets a cluster, and a name that nobody has used; the topic of that name has 2 partitions."""

    async def main() -> Any:
        async with asyncio.timeout(LIMIT_S), Cluster(server.address, budget_s=45) as cluster:
            name = f"two-{os.getpid()}-{next(NUMBERS)}"
            await Admin(cluster).create_topic(name, partitions=2)
            return await act(cluster, name)

    return asyncio.run(main())


async def prepared(cluster: Cluster, topic: str, *values: bytes) -> tuple[Producer, Prepared]:
    """A producer with a transaction that waits for its end."""
    producer = Producer(cluster, transactional_id=topic, two_phase_commit=True)
    await producer.init()
    producer.begin()
    for number, value in enumerate(values):
        await producer.post(topic, value, partition=number % 2)
    return producer, await producer.prepare()


async def come_back(cluster: Cluster, topic: str) -> tuple[Producer, Prepared]:
    """The producer after a crash."""
    producer = Producer(cluster, transactional_id=topic, two_phase_commit=True)
    return producer, await producer.init(keep_prepared=True)


async def values(cluster: Cluster, topic: str) -> list[bytes]:
    """What is committed, once nothing is open any more."""
    places = [TopicPartition(topic, partition) for partition in range(2)]
    while True:
        ends = await cluster.list_offsets(dict.fromkeys(places, LATEST), read_committed=True)
        if ends == await cluster.list_offsets(dict.fromkeys(places, LATEST)):
            break
        await asyncio.sleep(0.01)
    limits = {where: offset.offset for where, offset in ends.items()}
    reader = Consumer(cluster, dict.fromkeys(places, EARLIEST), ends=limits, read_committed=True)
    return sorted([record.value or b"" async for record in reader])


def test_the_decision_is_carried_out_by_the_producer_that_prepared(server):
    async def act(cluster: Cluster, topic: str) -> None:
        producer, name = await prepared(cluster, topic, b"a", b"b")
        assert Prepared.read(str(name)) == name
        with pytest.raises(ValueError, match="prepared"):
            await producer.post(topic, b"too late")
        assert await producer.complete(name) is Outcome.COMMITTED
        producer.begin()
        await producer.post(topic, b"c")
        await producer.prepare()
        assert await producer.complete(name) is Outcome.ABORTED
        await producer.close()
        assert await values(cluster, topic) == [b"a", b"b"]

    run(server, act)


@pytest.mark.parametrize("same", [True, False])
def test_the_decision_after_a_crash(server, same):
    """Commit if what was prepared is what was decided, else abort; the one that crashed is shut out."""

    async def act(cluster: Cluster, topic: str) -> None:
        lost, name = await prepared(cluster, topic, b"a", b"b")
        decided = Prepared.read(str(name)) if same else Prepared(name.producer_id, name.epoch + 1)
        producer, kept = await come_back(cluster, topic)
        assert kept == name
        assert await producer.complete(decided) is (Outcome.COMMITTED if same else Outcome.ABORTED)
        with pytest.raises(Fatal):
            await lost.commit()
        async with producer.transaction():
            await producer.post(topic, b"next")
        await producer.close()
        assert await values(cluster, topic) == ([b"a", b"b"] if same else []) + [b"next"]

    run(server, act)


@pytest.mark.parametrize("commits", [True, False])
def test_by_the_id_alone(server, commits):
    """Whoever knows what was decided needs no name."""

    async def act(cluster: Cluster, topic: str) -> None:
        await prepared(cluster, topic, b"a")
        producer, _ = await come_back(cluster, topic)
        await (producer.commit() if commits else producer.abort())
        await producer.close()
        assert await values(cluster, topic) == ([b"a"] if commits else [])

    run(server, act)


def test_coming_back_twice(server):
    """It may crash again and again before it says the decision: what is prepared keeps its name."""

    async def act(cluster: Cluster, topic: str) -> None:
        _, name = await prepared(cluster, topic, b"a")
        for _ in range(3):
            producer, kept = await come_back(cluster, topic)
            assert kept == name
        assert await producer.complete(name) is Outcome.COMMITTED
        producer, kept = await come_back(cluster, topic)
        assert kept == NOTHING
        assert await producer.complete(name) is Outcome.NOTHING
        assert await values(cluster, topic) == [b"a"]

    run(server, act)


def test_who_does_not_keep_it_aborts_it(server):
    async def act(cluster: Cluster, topic: str) -> None:
        await prepared(cluster, topic, b"a")
        producer = Producer(cluster, transactional_id=topic, two_phase_commit=True)
        assert await producer.init() == NOTHING
        assert await values(cluster, topic) == []

    run(server, act)


def test_a_broker_that_is_killed_remembers_what_is_prepared(server):
    async def act(cluster: Cluster, topic: str) -> None:
        _, name = await prepared(cluster, topic, b"a", b"b")
        server.kill()
        server.start()
        producer, kept = await come_back(cluster, topic)
        assert kept == name
        assert await producer.complete(name) is Outcome.COMMITTED
        assert await values(cluster, topic) == [b"a", b"b"]

    run(server, act)


def test_where_it_is_not_served(broker):
    """The error names the setting."""

    async def act() -> None:
        async with Cluster(broker) as cluster:
            producer = Producer(cluster, transactional_id=f"two-{os.getpid()}", two_phase_commit=True)
            with pytest.raises(KafkaError, match=r"transaction\.two\.phase\.commit\.enable") as refused:
                await producer.init()
            assert refused.value.error is Error.UNSUPPORTED_VERSION

    asyncio.run(act())


def test_names_of_what_is_prepared():
    assert str(Prepared(7, 3)) == "7:3" and Prepared.read("7:3") == (7, 3)
    assert str(NOTHING) == "" and Prepared.read("") == NOTHING
    for text in ("7", "7:", ":3", "a:b", "7:-1"):
        with pytest.raises(ValueError, match="names no prepared"):
            Prepared.read(text)
