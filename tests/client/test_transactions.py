"""Transactions of the client, in both generations, against real coordinators: ours and Apache's."""

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
from ottla.client.commits import Committed, Committer, GroupMetadata, fetch
from ottla.client.connection import Lost
from ottla.client.consumer import Consumer
from ottla.client.coordinator import Coordinator
from ottla.client.group import GroupConsumer
from ottla.client.producer import Producer
from ottla.client.transactions import Abortable, Fatal, State
from ottla.wire.errors import Error, KafkaError

NUMBERS = itertools.count()
LIMIT_S = 60
SETTINGS = {"group.initial.rebalance.delay.ms": "0", "transaction.state.log.num.partitions": "3"}
GENERATIONS = (1, 2)


@pytest.fixture(scope="module", params=["ottla", "apache"])
def coordinator(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    if request.param == "apache":
        yield request.getfixturevalue("apache").address
        return
    server = Node(tmp_path_factory.mktemp("transactions") / "data", settings=SETTINGS)
    try:
        yield server.start().address
    finally:
        stop_all([server])


def run(address: str, act: Callable[[Cluster, str], Awaitable[Any]]) -> Any:
    """`act` gets a cluster, and a name that nobody has used; the topic of that name has 3 partitions."""

    async def main() -> Any:
        async with asyncio.timeout(LIMIT_S), Cluster(address, budget_s=45) as cluster:
            name = f"tx-{os.getpid()}-{next(NUMBERS)}"
            await Admin(cluster).create_topic(name, partitions=3)
            return await act(cluster, name)

    return asyncio.run(main())


async def transactional(cluster: Cluster, name: str, generation: int = 2, **options: Any) -> Producer:
    """A producer that speaks this generation, whatever the cluster would speak."""
    producer = Producer(cluster, transactional_id=name, **options)
    if generation == 1:
        producer._tx._spoken = lambda: 1  # type: ignore[method-assign]
    await producer.init()
    return producer


async def values(cluster: Cluster, topic: str, *, committed: bool = True) -> list[bytes]:
    """What there is to read now, over all partitions."""
    places = [TopicPartition(topic, partition) for partition in range(await cluster.partition_count(topic))]
    ends = await cluster.list_offsets(dict.fromkeys(places, LATEST), read_committed=committed)
    limits = {where: offset.offset for where, offset in ends.items()}
    reader = Consumer(cluster, dict.fromkeys(places, EARLIEST), ends=limits, read_committed=committed)
    return sorted([record.value or b"" async for record in reader])


async def offset_of(cluster: Cluster, group: str, where: TopicPartition) -> int | None:
    coordinator = Coordinator(cluster, group)
    try:
        found = await cluster.retrying(lambda: fetch(coordinator, [where]))
    finally:
        coordinator.close()
    return found[where].offset if where in found else None


@pytest.mark.parametrize("generation", GENERATIONS)
def test_all_or_nothing(coordinator, generation):
    """TXN-02, TXN-03, TXN-04, TXN-09: several partitions and topics; what is aborted is passed over, and life goes on."""

    async def act(cluster: Cluster, topic: str) -> None:
        other = f"{topic}-other"
        await Admin(cluster).create_topic(other, partitions=1)
        async with await transactional(cluster, topic, generation) as producer:
            for number, ends in enumerate(("commit", "abort", "commit")):
                producer.begin()
                assert producer._tx.generation == generation
                for partition in range(3):
                    await producer.post(topic, b"%d-%d" % (number, partition), partition=partition)
                await producer.post(other, b"%d" % number)
                await producer.flush()
                assert len(await values(cluster, topic)) == (0, 3, 3)[number]
                await (producer.commit() if ends == "commit" else producer.abort())
                await marked(cluster, topic, other)
        assert await values(cluster, topic) == [b"0-0", b"0-1", b"0-2", b"2-0", b"2-1", b"2-2"]
        assert await values(cluster, other) == [b"0", b"2"]
        assert len(await values(cluster, topic, committed=False)) == 9

    run(coordinator, act)


async def marked(cluster: Cluster, *topics: str) -> None:
    """Until no transaction is open in these topics: a commit is answered before its markers are written."""
    for topic in topics:
        places = [TopicPartition(topic, partition) for partition in range(await cluster.partition_count(topic))]
        while True:
            ends = await cluster.list_offsets(dict.fromkeys(places, LATEST))
            if ends == await cluster.list_offsets(dict.fromkeys(places, LATEST), read_committed=True):
                break
            await asyncio.sleep(0.01)


@pytest.mark.parametrize("generation", GENERATIONS)
def test_many_transactions_in_a_row(coordinator, generation):
    """Nothing is waited for between them; large ones have several batches of a partition under way."""

    async def act(cluster: Cluster, topic: str) -> None:
        async with await transactional(cluster, topic, generation, batch_bytes=500) as producer:
            for number in range(15):
                async with producer.transaction():
                    for i in range(60):
                        await producer.post(topic, b"%03d-%03d" % (number, i), partition=i % 3)
        await marked(cluster, topic)
        assert await values(cluster, topic) == [b"%03d-%03d" % (number, i) for number in range(15) for i in range(60)]

    run(coordinator, act)


@pytest.mark.parametrize("generation", GENERATIONS)
def test_offsets_are_committed_with_the_transaction(coordinator, generation):
    """TXN-05: by the group's id and by its metadata; with an abort they are as they were."""

    async def act(cluster: Cluster, topic: str) -> None:
        where = TopicPartition(topic, 0)
        async with Producer(cluster) as plain:
            await plain.send(topic, value=b"in", partition=0)
        async with await transactional(cluster, topic, generation) as producer:
            async with GroupConsumer(
                cluster, topic, [topic], reset=EARLIEST, auto_commit_ms=None, wait_ms=50
            ) as member:
                while not await member.fetch():
                    pass
                producer.begin()
                await producer.send_offsets(member.consumed(), member.metadata)
                await producer.commit()
            assert await offset_of(cluster, topic, where) == 1
            producer.begin()
            await producer.send_offsets({where: Committed(7)}, topic)
            await producer.abort()
            assert await offset_of(cluster, topic, where) == 1
            producer.begin()
            await producer.send_offsets({where: Committed(9, metadata="by id")}, topic)
            await producer.send(topic, value=b"out", partition=1)
            await producer.commit()
            assert await offset_of(cluster, topic, where) == 9

    run(coordinator, act)


@pytest.mark.parametrize("generation", GENERATIONS)
def test_offsets_of_a_member_that_is_gone_are_refused(coordinator, generation):
    """The transaction is aborted, and the next one can be committed."""

    async def act(cluster: Cluster, topic: str) -> None:
        where = TopicPartition(topic, 0)
        async with GroupConsumer(cluster, topic, [topic], auto_commit_ms=None, wait_ms=50) as member:
            while not member.assignment:
                await member.fetch()
            stranger = GroupMetadata(topic, Committer("nobody", 1))
            async with await transactional(cluster, topic, generation) as producer:
                producer.begin()
                await producer.post(topic, b"never", partition=1)
                with pytest.raises(Abortable, match="abort it and begin again") as refused:
                    await producer.send_offsets({where: Committed(5)}, stranger)
                assert refused.value.error is Error.UNKNOWN_MEMBER_ID
                with pytest.raises(Abortable):
                    await producer.commit()
                await producer.abort()
                async with producer.transaction():
                    await producer.send_offsets({where: Committed(6)}, member.metadata)
            assert await offset_of(cluster, topic, where) == 6
        await marked(cluster, topic)
        assert await values(cluster, topic) == []

    run(coordinator, act)


@pytest.mark.parametrize("generation", GENERATIONS)
def test_a_second_producer_shuts_the_first_out(coordinator, generation):
    """TXN-08: what the first had open is aborted; whatever it tries next, it is told to close."""

    async def act(cluster: Cluster, topic: str) -> None:
        first = await transactional(cluster, topic, generation)
        first.begin()
        await first.send(topic, value=b"of the first", partition=0)
        second = await transactional(cluster, topic, generation)
        with pytest.raises(Fatal, match="has taken over") as refused:
            await first.commit()
        assert refused.value.error is Error.PRODUCER_FENCED
        with pytest.raises(Fatal):
            first.begin()
        with pytest.raises(Fatal):
            await first.post(topic, b"late")
        await first.close()
        async with second, second.transaction():
            await second.send(topic, value=b"of the second", partition=0)
        await marked(cluster, topic)
        assert await values(cluster, topic) == [b"of the second"]

    run(coordinator, act)


@pytest.mark.parametrize("generation", GENERATIONS)
def test_a_producer_that_is_shut_out_learns_of_it_by_writing(coordinator, generation):
    """A stale epoch at a partition is abortable; the coordinator then says what it means."""

    async def act(cluster: Cluster, topic: str) -> None:
        first = await transactional(cluster, topic, generation)
        async with first.transaction():
            await first.send(topic, value=b"1", partition=0)
        async with await transactional(cluster, topic, generation) as second, second.transaction():
            await second.send(topic, value=b"2", partition=0)
        first.begin()
        with pytest.raises(KafkaError) as refused:
            await first.send(topic, value=b"3", partition=0)
        assert refused.value.error in (Error.INVALID_PRODUCER_EPOCH, Error.PRODUCER_FENCED)
        if first._tx.state is State.FAILED:
            with pytest.raises(Fatal):
                await first.abort()
        assert first._tx.state is State.DEAD
        await first.close()
        await marked(cluster, topic)
        assert await values(cluster, topic) == [b"1", b"2"]

    run(coordinator, act)


@pytest.mark.parametrize("generation", GENERATIONS)
def test_a_batch_that_is_refused_fails_the_transaction(coordinator, generation):
    """What was posted with it is not committed, not even what was written; then the producer goes on."""

    async def act(cluster: Cluster, topic: str) -> None:
        topic += "-narrow"
        await Admin(cluster).create_topic(topic, partitions=3, configs={"max.message.bytes": "2000"})
        async with await transactional(cluster, topic, generation) as producer:
            producer.begin()
            await producer.send(topic, value=b"written", partition=0)
            large = await producer.post(topic, bytes(5000), partition=1)
            behind = [await producer.post(topic, b"behind", partition=partition) for partition in (1, 2)]
            with pytest.raises(Abortable, match="larger than"):
                await producer.commit()
            with pytest.raises((KafkaError, Lost), match="larger than"):
                await large
            await asyncio.wait(behind)
            for future in behind:
                future.exception()
            await producer.abort()
            async with producer.transaction():
                for partition in range(3):
                    await producer.post(topic, b"next", partition=partition)
        await marked(cluster, topic)
        assert await values(cluster, topic) == [b"next"] * 3

    run(coordinator, act)


def test_a_block_that_raises_is_aborted(coordinator):
    async def act(cluster: Cluster, topic: str) -> None:
        async with await transactional(cluster, topic) as producer:
            with pytest.raises(ZeroDivisionError):
                async with producer.transaction():
                    await producer.send(topic, value=b"no", partition=0)
                    raise ZeroDivisionError
            producer.begin()
            unsent = await producer.post(topic, b"neither", partition=0)
        with pytest.raises(KafkaError, match="aborted before"):
            await unsent
        await marked(cluster, topic)
        assert await values(cluster, topic) == []

    run(coordinator, act)


def test_an_empty_transaction_asks_nobody(coordinator):
    async def act(cluster: Cluster, topic: str) -> None:
        async with await transactional(cluster, topic) as producer:
            before = producer._sender.identity
            for end in (producer.commit, producer.abort):
                producer.begin()
                await end()
            assert producer._sender.identity == before

    run(coordinator, act)


def test_calls_out_of_turn_are_refused():
    """TXN-01: a transactional id makes a producer idempotent, and cannot be had without."""
    cluster = Cluster("localhost:1")

    async def act() -> None:
        producer = Producer(cluster, transactional_id="t")
        assert producer._sender.manner.idempotent and producer._sender.manner.acks == -1
        with pytest.raises(ValueError, match="init"):
            producer.begin()
        with pytest.raises(ValueError, match="no transactional id"):
            Producer(cluster).begin()
        with pytest.raises(ValueError, match="two_phase_commit"):
            await producer.prepare()
        with pytest.raises(ValueError, match="two_phase_commit"):
            await producer.init(keep_prepared=True)
        for options in ({"idempotent": False}, {"acks": 1}):
            with pytest.raises(ValueError):
                Producer(cluster, transactional_id="t", **options)  # type: ignore[arg-type]
        with pytest.raises(ValueError):
            Producer(cluster, two_phase_commit=True)

    asyncio.run(act())


@pytest.mark.parametrize("generation", GENERATIONS)
@pytest.mark.parametrize("moment", ["open", "committing", "aborting"])
def test_a_broker_killed_and_started_again(node, generation, moment):
    """TXN-03: leader and coordinator die together; what was begun goes on, and ends as it was meant to."""
    server = node(settings=SETTINGS)

    async def act(cluster: Cluster, topic: str) -> None:
        async with await transactional(cluster, topic, generation) as producer:
            async with producer.transaction():
                await producer.send(topic, value=b"before", partition=0)
            producer.begin()
            for partition in range(3):
                await producer.post(topic, b"during", partition=partition)
            await producer.flush()
            if moment != "open":
                ending = asyncio.ensure_future(producer.commit() if moment == "committing" else producer.abort())
                await asyncio.sleep(0)
            server.kill()
            await asyncio.to_thread(server.start)
            if moment == "open":
                await producer.post(topic, b"during", partition=0)
                await producer.commit()
            else:
                await ending
            async with producer.transaction():
                await producer.post(topic, b"then", partition=2)
        await marked(cluster, topic)
        during = {"open": 4, "committing": 3, "aborting": 0}[moment]
        assert await values(cluster, topic) == [b"before"] + [b"during"] * during + [b"then"]

    run(server.address, act)
