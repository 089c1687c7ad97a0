"""Several batches of a partition under way at once, seen from between client and broker."""

from __future__ import annotations

import asyncio
import itertools
import os
import struct
from collections import deque
from collections.abc import Awaitable, Callable
from typing import Any

import pytest

from ottla.client.admin import Admin
from ottla.client.batches import Identity, Pending
from ottla.client.cluster import EARLIEST, LATEST, Cluster, TopicPartition
from ottla.client.connection import Lost
from ottla.client.consumer import Consumer
from ottla.client.producer import Producer, Sent
from ottla.client.sending import FLYING_MAX, Manner, Sender
from ottla.wire.compression import Codec
from ottla.wire.errors import Error, KafkaError
from ottla.wire.records import Record, build
from puppet import PRODUCE, Puppet, play

NUMBERS = itertools.count()
LIMIT_S = 60


class Between:
    """A proxy that lets requests through, counts Produces, and holds their answers back while it is shut."""

    def __init__(self, target: tuple[str, int]) -> None:
        self.target = target
        self.produces = 0
        self.open = asyncio.Event()
        self.open.set()
        self.counted = asyncio.Condition()
        self._writers: list[asyncio.StreamWriter] = []

    async def start(self) -> tuple[str, int]:
        self.server = await asyncio.start_server(self.relay, "127.0.0.1", 0)
        host, port = self.server.sockets[0].getsockname()
        return host, port

    async def relay(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        from_broker, to_broker = await asyncio.open_connection(*self.target)
        self._writers += [writer, to_broker]
        asked: deque[int] = deque()
        up = asyncio.ensure_future(self.copy(reader, to_broker, asked))
        try:
            while True:
                frame = await read_frame(from_broker)
                if asked.popleft() == PRODUCE:
                    await self.open.wait()
                writer.write(frame)
        except (asyncio.IncompleteReadError, ConnectionError, asyncio.CancelledError):
            pass
        finally:
            up.cancel()
            writer.close()
            to_broker.close()

    async def copy(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter, asked: deque[int]) -> None:
        try:
            while True:
                frame = await read_frame(reader)
                writer.write(frame)
                asked.append(struct.unpack(">h", frame[4:6])[0])
                if asked[-1] == PRODUCE:
                    async with self.counted:
                        self.produces += 1
                        self.counted.notify_all()
        except (asyncio.IncompleteReadError, ConnectionError):
            writer.close()

    async def seen(self, count: int) -> None:
        async with self.counted:
            await self.counted.wait_for(lambda: self.produces >= count)

    def cut(self) -> None:
        """End every connection; what the broker has answered by then is lost."""
        for writer in self._writers:
            writer.transport.abort()
        self._writers.clear()
        self.open.set()


async def read_frame(reader: asyncio.StreamReader) -> bytes:
    size = await reader.readexactly(4)
    return size + await reader.readexactly(struct.unpack(">i", size)[0])


class Behind(Cluster):
    """A cluster all of whose brokers are reached through one proxy."""

    proxy: tuple[str, int]

    async def metadata(self, *args: Any, **options: Any) -> Any:
        response = await super().metadata(*args, **options)
        self.brokers = dict.fromkeys(self.brokers, self.proxy)
        return response


def run(broker: str, act: Callable[[Cluster, Cluster, Between, str], Awaitable[None]], partitions: int = 1) -> None:
    """`act` gets the cluster, the same behind a proxy, the proxy, and a new topic."""

    async def main() -> None:
        async with asyncio.timeout(LIMIT_S), Cluster(broker, budget_s=45) as cluster:
            topic = f"sending-{os.getpid()}-{next(NUMBERS)}"
            await Admin(cluster).create_topic(topic, partitions=partitions)
            await cluster.partition_count(topic)
            between = Between(next(iter(cluster.brokers.values())))
            behind = Behind(broker, budget_s=45)
            behind.proxy = await between.start()
            try:
                await act(cluster, behind, between, topic)
            finally:
                between.cut()
                behind.close()
                between.server.close()

    asyncio.run(main())


async def written(cluster: Cluster, topic: str) -> list[list[bytes]]:
    """The values of each partition."""
    places = [TopicPartition(topic, partition) for partition in range(await cluster.partition_count(topic))]
    ends = await cluster.list_offsets(dict.fromkeys(places, LATEST))
    limits = {where: offset.offset for where, offset in ends.items()}
    found: list[list[bytes]] = [[] for _ in places]
    async for record in Consumer(cluster, dict.fromkeys(places, EARLIEST), ends=limits):
        found[record.partition].append(record.value or b"")
    return found


def test_five_batches_of_a_partition_are_under_way(broker):
    """PRD-14: not one for each round trip, and no more than a leader remembers; the first of all flies alone."""

    async def act(cluster: Cluster, behind: Cluster, between: Between, topic: str) -> None:
        async with Producer(behind, linger_ms=0, batch_bytes=1) as producer:
            between.open.clear()
            posted = [await producer.post(topic, b"%d" % i) for i in range(30)]
            await between.seen(1)
            assert len(producer._sender.lane(TopicPartition(topic, 0)).flying) == 1
            between.open.set()
            await posted[0]
            between.open.clear()
            lane = producer._sender.lane(TopicPartition(topic, 0))
            while len(lane.flying) < FLYING_MAX:
                await asyncio.sleep(0)
            answered = sum(future.done() for future in posted)
            await between.seen(answered + FLYING_MAX)
            between.open.set()
            assert [(await future).offset for future in posted] == list(range(30))
        assert await written(cluster, topic) == [[b"%d" % i for i in range(30)]]

    run(broker, act)


def test_partitions_of_a_broker_share_requests(broker):
    """PRD-12: forty partitions, one request."""

    async def act(cluster: Cluster, _behind: Cluster, _between: Between, topic: str) -> None:
        async with Producer(cluster, linger_ms=20) as producer:
            await producer.send(topic, value=b"first", partition=0)
            before = producer.requests
            for partition in range(40):
                await producer.post(topic, b"v", partition=partition)
        assert producer.requests - before <= 3
        assert [len(values) for values in await written(cluster, topic)] == [2] + [1] * 39

    run(broker, act, partitions=40)


def test_all_that_fly_are_lost_at_once(broker):
    """IDM-01: their answers are cut off; sent again they are neither doubled nor out of order."""

    async def act(cluster: Cluster, behind: Cluster, between: Between, topic: str) -> None:
        async with Producer(behind, linger_ms=0, batch_bytes=1) as producer:
            await producer.send(topic, value=b"0")
            for turn in range(3):
                between.open.clear()
                posted = [await producer.post(topic, b"%d" % (1 + 8 * turn + i)) for i in range(8)]
                await between.seen(between.produces + FLYING_MAX)
                between.cut()
                for future in posted:
                    await future
        assert await written(cluster, topic) == [[b"%d" % i for i in range(25)]]

    run(broker, act)


def test_what_flies_behind_a_refused_batch_is_written_all_the_same(broker):
    """Its numbers follow those of the refused one: the leader refuses them too, and they get others."""

    async def act(cluster: Cluster, behind: Cluster, between: Between, topic: str) -> None:
        await Admin(cluster).alter_configs(topic, put={"max.message.bytes": "2000"})
        async with Producer(behind, linger_ms=0, batch_bytes=1) as producer:
            await producer.send(topic, value=b"first")
            identity = producer._sender.identity
            values = [b"a", bytes(5000), b"b", b"c", bytes(5000), b"d"]
            posted = [await producer.post(topic, value) for value in values]
            results = await asyncio.gather(*posted, return_exceptions=True)
            assert producer._sender.identity == identity
        refused = [result.error for result in results if isinstance(result, KafkaError)]
        assert refused == [Error.MESSAGE_TOO_LARGE, Error.MESSAGE_TOO_LARGE]
        assert [result[1] for result in results if isinstance(result, tuple)] == [1, 2, 3, 4]
        assert await written(cluster, topic) == [[b"first", b"a", b"b", b"c", b"d"]]

    run(broker, act)


@pytest.mark.parametrize("behind_it", [(), (b"a", b"b")])
def test_a_refused_retry_is_not_taken_for_a_batch_that_was_never_written(broker, behind_it):
    """What flew behind it is known to the leader.

    Whatever follows comes under another name, and nothing is written twice or taken for something else.
    """

    async def act(cluster: Cluster, behind: Cluster, between: Between, topic: str) -> None:
        async with Producer(behind, linger_ms=0, batch_bytes=1) as producer:
            await producer.send(topic, value=b"first")
            identity = producer._sender.identity
            between.open.clear()
            posted = [await producer.post(topic, value) for value in (bytes(3000), *behind_it)]
            await between.seen(between.produces + 1)
            while len(producer._sender.lane(TopicPartition(topic, 0)).flying) < len(posted):
                await asyncio.sleep(0)
            while len((await written(cluster, topic))[0]) < 1 + len(posted):
                await asyncio.sleep(0.01)
            await Admin(cluster).alter_configs(topic, put={"max.message.bytes": "2000"})
            between.cut()
            results = await asyncio.gather(*posted, return_exceptions=True)
            after = await producer.send(topic, value=b"after")
            assert producer._sender.identity != identity
        assert [type(result) for result in results] == [Lost, *(Sent for _ in behind_it)]
        assert after.offset == 1 + len(posted)
        assert await written(cluster, topic) == [[b"first", bytes(3000), *behind_it, b"after"]]

    run(broker, act)


@pytest.mark.parametrize("doubt", [Error.NOT_ENOUGH_REPLICAS_AFTER_APPEND, Error.REQUEST_TIMED_OUT])
def test_what_may_have_been_written_is_neither_refused_nor_numbered_anew(doubt):
    """The first attempt may have come to something: the refusal of the second one says nothing about that."""

    async def act(puppet: Puppet, producer: Producer) -> None:
        await producer.send("t", value=b"first")
        puppet.says[PRODUCE] = [doubt, doubt, Error.MESSAGE_TOO_LARGE, Error.OUT_OF_ORDER_SEQUENCE_NUMBER]
        posted = [await producer.post("t", value) for value in (b"one", b"two")]
        results = await asyncio.gather(*posted, return_exceptions=True)
        assert [type(result) for result in results] == [Lost, Lost]
        await asyncio.sleep(1)
        assert puppet.asked.count(PRODUCE) == 5 and puppet.says[PRODUCE] == []

    play(2, act, transactional_id=None, linger_ms=0, batch_bytes=1)


def test_a_leadership_that_moved_is_followed_when_all_that_flies_is_answered():
    """Or what comes later would be written before it."""

    class Moved(Cluster):
        def leader_at_hand(self, where: TopicPartition) -> Any:
            return new

    old, new = object(), object()
    manner = Manner(-1, Codec.NONE, None, False, FLYING_MAX)
    sender = Sender(Moved("localhost:1"), manner, name=None, on_closed=lambda _: None, on_settled=lambda _: None)  # type: ignore[arg-type]
    lane = sender.lane(TopicPartition("t", 0))
    flying, waiting = (Pending(0.0, 100.0) for _ in range(2))
    for batch in (flying, waiting):
        batch.closed, batch.data = True, b""
    lane.known_as = lane.identity.producer_id
    lane.flying.append(flying)
    lane.queue.append(waiting)
    lane.connection = old  # type: ignore[assignment]
    assert sender._where_to(lane, 1.0) is None
    lane.flying.clear()
    assert sender._where_to(lane, 1.0) is new


def test_a_leader_that_has_forgotten_us_takes_what_comes_first(broker):
    """One batch is refused, and the one behind it is written: its number is taken, and must not be given to another."""

    async def act(cluster: Cluster, _behind: Cluster, _between: Between, topic: str) -> None:
        await Admin(cluster).alter_configs(topic, put={"max.message.bytes": "2000"})
        async with Producer(cluster, linger_ms=0, batch_bytes=1) as producer:
            for number in range(3):
                await producer.send(topic, value=b"before %d" % number)
            lane = producer._sender.lane(TopicPartition(topic, 0))
            # The leader knows nothing of this name, and the producer does not know that.
            producer._sender.identity = Identity(lane.identity.producer_id + 1_000_000, 0)
            lane.rename(producer._sender.identity)
            lane.known_as, lane.sequence, lane.expected = lane.identity.producer_id, 3, 3
            values = [bytes(5000), b"behind", b"after", b"later", b"last"]
            results = []
            for part in (values[:2], values[2:]):
                posted = [await producer.post(topic, value) for value in part]
                results += await asyncio.gather(*posted, return_exceptions=True)
        assert [type(result) for result in results] == [KafkaError, Sent, Sent, Sent, Sent]
        assert await written(cluster, topic) == [[b"before 0", b"before 1", b"before 2", *values[1:]]]

    run(broker, act)


def built(*values: bytes) -> bytearray:
    return bytearray(
        build([Record(timestamp=1000 + i, value=value) for i, value in enumerate(values)], codec=Codec.LZ4)
    )


def test_batches_built_elsewhere_go_with_the_others_in_order(broker):
    """Each takes as many numbers as it has records, and what was posted before it is written before it."""

    async def act(cluster: Cluster, _behind: Cluster, _between: Between, topic: str) -> None:
        where = TopicPartition(topic, 0)
        async with Producer(cluster, linger_ms=1000) as producer:
            own = [await producer.post(topic, b"0")]
            one = await producer.post_batch(where, built(b"1", b"2", b"3"))
            own.append(await producer.post(topic, b"4"))
            other = await producer.post_batch(where, built(b"5", b"6"))
            assert await one == Sent(0, 1, 1002)
            assert (await other).offset == 5
            assert [(await future).offset for future in own] == [0, 4]
            lane = producer._sender.lane(where)
            assert lane.sequence == lane.expected == 7
        assert await written(cluster, topic) == [[b"%d" % i for i in range(7)]]

    run(broker, act)


def test_a_batch_built_elsewhere_is_sent_again_under_its_numbers(broker):
    """IDM-01: answers are cut off; nothing is doubled, nothing is missing."""

    async def act(cluster: Cluster, behind: Cluster, between: Between, topic: str) -> None:
        where = TopicPartition(topic, 0)
        async with Producer(behind) as producer:
            await producer.send(topic, value=b"0")
            for turn in range(3):
                between.open.clear()
                pairs = [b"%d" % (1 + 16 * turn + i) for i in range(16)]
                posted = [await producer.post_batch(where, built(*pairs[i : i + 2])) for i in range(0, 16, 2)]
                await between.seen(between.produces + FLYING_MAX)
                between.cut()
                await asyncio.gather(*posted)
        assert await written(cluster, topic) == [[b"%d" % i for i in range(49)]]

    run(broker, act)


def test_behind_a_refused_batch_one_built_elsewhere_gets_other_numbers(broker):
    async def act(cluster: Cluster, _behind: Cluster, _between: Between, topic: str) -> None:
        await Admin(cluster).alter_configs(topic, put={"max.message.bytes": "2000"})
        where = TopicPartition(topic, 0)
        async with Producer(cluster) as producer:
            await producer.send(topic, value=b"first")
            batches = [built(b"a", b"b"), built(os.urandom(5000)), built(b"c"), built(b"d", b"e")]
            posted = [await producer.post_batch(where, batch) for batch in batches]
            results = await asyncio.gather(*posted, return_exceptions=True)
        assert [getattr(result, "offset", None) for result in results] == [1, None, 3, 4]
        assert isinstance(results[1], KafkaError) and results[1].error is Error.MESSAGE_TOO_LARGE
        assert await written(cluster, topic) == [[b"first", b"a", b"b", b"c", b"d", b"e"]]

    run(broker, act)


def test_a_batch_built_elsewhere_belongs_to_the_transaction(broker):
    """It is seen once that is committed, and never when it is aborted."""

    async def act(cluster: Cluster, _behind: Cluster, _between: Between, topic: str) -> None:
        where = TopicPartition(topic, 0)
        async with Producer(cluster, transactional_id=f"id of {topic}") as producer:
            await producer.init()
            with pytest.raises(ValueError, match="no transaction has begun"):
                await producer.post_batch(where, built(b"too early"))
            for values, commits in (((b"x", b"y"), False), ((b"a", b"b"), True)):
                producer.begin()
                await (await producer.post_batch(where, built(*values)))
                await (producer.commit() if commits else producer.abort())
        end = (await cluster.list_offsets({where: LATEST}, read_committed=True))[where].offset
        committed = Consumer(cluster, {where: EARLIEST}, ends={where: end}, read_committed=True)
        assert [record.value async for record in committed] == [b"a", b"b"]
        with pytest.raises(KafkaError, match="has no partition 1"):
            async with Producer(cluster) as producer:
                await producer.post_batch(TopicPartition(topic, 1), built(b"a"))

    run(broker, act)


@pytest.mark.parametrize("flying_max", [0, 6])
def test_no_more_than_a_leader_remembers(flying_max):
    if flying_max:
        with pytest.raises(ValueError, match="1 to 5"):
            Producer(Cluster("localhost:1"), flying_max=flying_max)
    else:
        assert Producer(Cluster("localhost:1"), idempotent=False, acks=1)._sender.manner.flying_max == 1
