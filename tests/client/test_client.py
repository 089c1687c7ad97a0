"""The client against a real broker: ours, or any other that OTTLA_TEST_BOOTSTRAP names."""

from __future__ import annotations

import asyncio
import itertools
import os
import random
import struct
from collections.abc import Awaitable, Callable
from typing import Any

import pytest

from ottla.client.admin import Admin
from ottla.client.cluster import EARLIEST, LATEST, Cluster, NoTopic, TopicPartition, addresses
from ottla.client.consumer import Consumed, Consumer
from ottla.client.partitioning import RoundRobin
from ottla.client.producer import Producer
from ottla.wire.compression import Codec
from ottla.wire.errors import Error, KafkaError

KEPT = {"retention.ms": "-1"}  # however old their records are
NUMBERS = itertools.count()


def run(broker: str, act: Callable[[Cluster, str], Awaitable[Any]]) -> Any:
    """Call `act` with a cluster and the name of a topic nobody has used."""

    async def main() -> Any:
        async with Cluster(broker, budget_s=45) as cluster:
            return await act(cluster, f"client-{os.getpid()}-{next(NUMBERS)}-{random.randrange(1 << 32):x}")

    return asyncio.run(main())


async def read_all(cluster: Cluster, topic: str, **options: Any) -> list[Consumed]:
    places = [TopicPartition(topic, partition) for partition in range(await cluster.partition_count(topic))]
    ends = await cluster.list_offsets(dict.fromkeys(places, LATEST))
    limits = {where: offset.offset for where, offset in ends.items()}
    return [record async for record in Consumer(cluster, dict.fromkeys(places, EARLIEST), ends=limits, **options)]


def test_addresses_are_read_as_javas_clients_read_them():
    """Whoever copies a line of `advertised.listeners` has a protocol before it."""
    given = " a:1, b ,PLAINTEXT://c:2,SASL_SSL://[::1]:3, [::2]"
    assert addresses(given) == [("a", 1), ("b", 9092), ("c", 2), ("::1", 3), ("::2", 9092)]


@pytest.mark.parametrize("codec", Codec)
def test_records_come_back_as_they_went(broker, codec):
    """REC-03, REC-05: keys, headers, tombstones, timestamps, 1 B to 1 MB, in every codec."""

    async def act(cluster: Cluster, topic: str) -> None:
        await Admin(cluster).create_topic(topic, partitions=1, configs=KEPT)
        rng = random.Random(7)
        values: list[bytes | None] = [b"", b"x", None, rng.randbytes(1000), bytes(100_000), rng.randbytes(900_000)]
        async with Producer(cluster, codec=codec) as producer:
            for i, value in enumerate(values):
                sent = await producer.send(
                    topic,
                    value=value,
                    key=b"k%d" % i,
                    headers=(("h", b"1"), ("h", None)),
                    timestamp=1_700_000_000_000 + i,
                )
                assert sent == (0, i, 1_700_000_000_000 + i)
        found = await read_all(cluster, topic)
        expected = [
            Consumed(topic, 0, i, 1_700_000_000_000 + i, b"k%d" % i, value, (("h", b"1"), ("h", None)))
            for i, value in enumerate(values)
        ]
        assert found == expected

    run(broker, act)


def test_many_records_in_order(broker):
    """PRD-12, PRD-14: 5,000 records take few requests; each partition keeps the order they were posted in."""

    async def act(cluster: Cluster, topic: str) -> None:
        await Admin(cluster).create_topic(topic, partitions=3)
        async with Producer(cluster) as producer:
            waiting = [await producer.post(topic, b"%d" % i, key=b"%d" % (i % 50)) for i in range(5000)]
            sent = [await future for future in waiting]
        assert producer.requests < 100
        found = await read_all(cluster, topic, partition_bytes_max=20_000)
        assert len(found) == 5000
        for partition in range(3):
            mine = [int(record.value or b"") for record in found if record.partition == partition]
            assert mine == [i for i, answer in enumerate(sent) if answer.partition == partition]
            offsets = [record.offset for record in found if record.partition == partition]
            assert offsets == list(range(len(offsets)))

    run(broker, act)


def test_a_larger_batch_takes_fewer_requests(broker):
    """PRD-12: batch.size and linger."""

    async def act(cluster: Cluster, topic: str) -> None:
        await Admin(cluster).create_topic(topic, partitions=1)
        requests = []
        for batch_bytes in (1000, 100_000):
            async with Producer(cluster, batch_bytes=batch_bytes) as producer:
                for i in range(500):
                    await producer.post(topic, b"%099d" % i)
            requests.append(producer.requests)
        assert requests[0] > 50 > 5 > requests[1]

    run(broker, act)


def test_where_records_go(broker):
    """PRD-08, PRD-10, PRD-11: a named partition wins; a partitioner of one's own; sticky without a key."""

    async def act(cluster: Cluster, topic: str) -> None:
        await Admin(cluster).create_topic(topic, partitions=4)
        async with Producer(cluster) as producer:
            assert (await producer.send(topic, value=b"v", key=b"k", partition=3)).partition == 3
            waiting = [await producer.post(topic, b"sticky") for _ in range(20)]
            assert len({(await future).partition for future in waiting}) == 1
            with pytest.raises(KafkaError, match="no partition 4"):
                await producer.send(topic, value=b"v", partition=4)
        async with Producer(cluster, partitioner=RoundRobin()) as producer:
            waiting = [await producer.post(topic, b"v") for _ in range(8)]
            assert [(await future).partition for future in waiting] == [0, 1, 2, 3, 0, 1, 2, 3]
        async with Producer(cluster, partitioner=lambda _topic, key, _count: 2 if key == b"eu" else 1) as producer:
            assert (await producer.send(topic, value=b"v", key=b"eu")).partition == 2

    run(broker, act)


@pytest.mark.parametrize("acks", [0, 1])
def test_acks(broker, acks):
    """PRD-02, PRD-03: with acks=0 nobody answers, and the records are there all the same."""

    async def act(cluster: Cluster, topic: str) -> None:
        await Admin(cluster).create_topic(topic, partitions=1)
        async with Producer(cluster, acks=acks, idempotent=False) as producer:
            sent = [await producer.send(topic, value=b"%d" % i) for i in range(3)]
        assert [answer.offset for answer in sent] == ([-1, -1, -1] if acks == 0 else [0, 1, 2])
        where = TopicPartition(topic, 0)
        found = [record async for record in Consumer(cluster, {where: EARLIEST}, ends={where: 3})]
        assert [record.value for record in found] == [b"0", b"1", b"2"]

    run(broker, act)


def test_a_batch_too_large_is_refused_and_the_next_accepted(broker):
    async def act(cluster: Cluster, topic: str) -> None:
        await Admin(cluster).create_topic(topic, partitions=1)
        async with Producer(cluster) as producer:
            assert (await producer.send(topic, value=b"before")).offset == 0
            with pytest.raises(KafkaError) as refused:
                await producer.send(topic, value=random.Random(1).randbytes(2 << 20))
            assert refused.value.error is Error.MESSAGE_TOO_LARGE
            assert (await producer.send(topic, value=b"after")).offset == 1

    run(broker, act)


class Leaky:
    """A proxy that swallows one answer in `every` and drops the connection instead."""

    def __init__(self, target: tuple[str, int], every: int) -> None:
        self.target = target
        self.every = every
        self.answers = 0
        self.dropped = 0

    async def start(self) -> tuple[str, int]:
        self.server = await asyncio.start_server(self.relay, "127.0.0.1", 0)
        host, port = self.server.sockets[0].getsockname()
        return host, port

    async def relay(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        from_broker, to_broker = await asyncio.open_connection(*self.target)
        up = asyncio.ensure_future(self.copy(reader, to_broker))
        try:
            while True:
                size = await from_broker.readexactly(4)
                answer = await from_broker.readexactly(struct.unpack(">i", size)[0])
                self.answers += 1
                if self.answers % self.every == 0:
                    self.dropped += 1
                    return
                writer.write(size + answer)
        except (asyncio.IncompleteReadError, ConnectionError):
            pass
        finally:
            up.cancel()
            writer.close()
            to_broker.close()

    async def copy(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        while data := await reader.read(65536):
            writer.write(data)


class Behind(Cluster):
    """A cluster all of whose brokers are reached through one proxy."""

    proxy: tuple[str, int]

    async def metadata(self, *args: Any, **options: Any) -> Any:
        response = await super().metadata(*args, **options)
        self.brokers = dict.fromkeys(self.brokers, self.proxy)
        return response


def test_lost_answers_make_no_duplicates_and_no_disorder(broker):
    """IDM-01: each lost answer is a batch written whose producer does not know; sent again it must not count twice."""

    async def act(cluster: Cluster, topic: str) -> None:
        await Admin(cluster).create_topic(topic, partitions=1)
        await cluster.metadata([topic])
        leaky = Leaky(next(iter(cluster.brokers.values())), every=5)
        behind = Behind(broker)
        behind.proxy = await leaky.start()
        async with Producer(behind, linger_ms=0, batch_bytes=200) as producer:
            sent = [await future for future in [await producer.post(topic, b"%05d" % i) for i in range(300)]]
        behind.close()
        leaky.server.close()
        assert leaky.dropped >= 5
        assert [answer.offset for answer in sent] == list(range(300))
        assert [record.value for record in await read_all(cluster, topic)] == [b"%05d" % i for i in range(300)]

    run(broker, act)


def test_reading_goes_on_after_a_lost_connection(broker):
    async def act(cluster: Cluster, topic: str) -> None:
        await Admin(cluster).create_topic(topic, partitions=1)
        async with Producer(cluster, batch_bytes=500) as producer:
            for i in range(500):
                await producer.post(topic, b"%05d" % i)
        await cluster.metadata([topic])
        leaky = Leaky(next(iter(cluster.brokers.values())), every=7)
        behind = Behind(broker)
        behind.proxy = await leaky.start()
        found = await read_all(behind, topic, partition_bytes_max=600)
        behind.close()
        leaky.server.close()
        assert leaky.dropped >= 2
        assert [record.value for record in found] == [b"%05d" % i for i in range(500)]

    run(broker, act)


def test_where_reading_starts_and_ends(broker):
    """Offsets, timestamps and both ends; an end that lies inside a batch."""

    async def act(cluster: Cluster, topic: str) -> None:
        await Admin(cluster).create_topic(topic, partitions=1, configs=KEPT)
        async with Producer(cluster) as producer:
            for i in range(10):
                await producer.post(topic, b"%d" % i, timestamp=1_700_000_000_000 + 1000 * i)
        where = TopicPartition(topic, 0)
        middle = [record.value async for record in Consumer(cluster, {where: 3}, ends={where: 6})]
        assert middle == [b"3", b"4", b"5"]
        found = await cluster.list_offsets({where: 1_700_000_004_500})
        assert found[where] == (5, 1_700_000_005_000)
        assert (await cluster.list_offsets({where: 1_800_000_000_000}))[where].offset == -1
        with pytest.raises(KafkaError) as refused:
            await anext(aiter(Consumer(cluster, {where: 99})))
        assert refused.value.error is Error.OFFSET_OUT_OF_RANGE

    run(broker, act)


def test_following_sees_what_comes_later(broker):
    async def act(cluster: Cluster, topic: str) -> None:
        await Admin(cluster).create_topic(topic, partitions=2)
        consumer = Consumer(cluster, {TopicPartition(topic, p): LATEST for p in range(2)}, wait_ms=100)
        assert await consumer.fetch() == []
        async with Producer(cluster) as producer:
            await producer.send(topic, value=b"later", partition=1)
        async with asyncio.timeout(60):
            while not (records := await consumer.fetch()):
                pass
        consumer.close()
        assert [(record.partition, record.value) for record in records] == [(1, b"later")]

    run(broker, act)


def test_topics(broker):
    """Create, describe, grow, delete, each with its refusals."""

    async def act(cluster: Cluster, topic: str) -> None:
        admin = Admin(cluster)
        made = await admin.create_topic(topic, partitions=2, replication_factor=1, configs={"retention.ms": "1234567"})
        assert (made.num_partitions, made.replication_factor) == (2, 1)
        with pytest.raises(KafkaError) as refused:
            await admin.create_topic(topic)
        assert refused.value.error is Error.TOPIC_ALREADY_EXISTS
        assert topic in await admin.topics()
        (described,) = await admin.describe_topics([topic])
        assert [partition.partition for partition in described.partitions] == [0, 1]
        assert described.topic_id == made.topic_id
        await admin.create_partitions(topic, 3)
        assert await cluster.partition_count(topic) == 3
        with pytest.raises(KafkaError) as refused:
            await admin.create_partitions(topic, 1)
        assert refused.value.error is Error.INVALID_PARTITIONS
        await admin.delete_topic(topic)
        for missing in (admin.delete_topic(topic), admin.describe_topics([topic]), cluster.partition_count(topic)):
            with pytest.raises(NoTopic):
                await missing

    run(broker, act)


def test_settings(broker):
    async def act(cluster: Cluster, topic: str) -> None:
        admin = Admin(cluster)
        await admin.create_topic(topic, configs={"retention.ms": "1000000"})
        await admin.alter_configs(topic, put={"max.message.bytes": "2000"}, delete=["retention.ms"])
        settings = {setting.name: setting for setting in await admin.configs(topic)}
        while settings["max.message.bytes"].source != "topic":  # Apache's answer comes before its broker has heard
            await asyncio.sleep(0.05)
            settings = {setting.name: setting for setting in await admin.configs(topic)}
        assert settings["max.message.bytes"].value == "2000"
        assert (settings["retention.ms"].value, settings["retention.ms"].source) == ("604800000", "default")
        with pytest.raises(KafkaError) as refused:
            await admin.alter_configs(topic, put={"max.message.bytes": "many"})
        assert refused.value.error is Error.INVALID_CONFIG

    run(broker, act)


def test_delete_records(broker):
    async def act(cluster: Cluster, topic: str) -> None:
        admin = Admin(cluster)
        await admin.create_topic(topic, partitions=1)
        async with Producer(cluster) as producer:
            for i in range(10):
                await producer.send(topic, value=b"%d" % i)
        where = TopicPartition(topic, 0)
        assert await admin.delete_records({where: 4}) == {where: 4}
        assert [record.offset for record in await read_all(cluster, topic)] == [4, 5, 6, 7, 8, 9]

    run(broker, act)


def test_a_missing_topic_is_made_by_the_first_record(broker):
    async def act(cluster: Cluster, topic: str) -> None:
        async with Producer(cluster) as producer:
            assert (await producer.send(topic, value=b"first")).offset == 0

    run(broker, act)
