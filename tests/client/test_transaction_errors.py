"""Which answers fail a transaction, which end its producer, and which are asked again: a broker that says as it is told."""

from __future__ import annotations

import asyncio
import contextlib
import random
import struct
from collections.abc import Awaitable, Callable

import pytest

from ottla.client.cluster import Cluster, TopicPartition
from ottla.client.commits import Committed
from ottla.client.connection import Lost
from ottla.client.producer import Producer
from ottla.client.transactions import Abortable, Fatal, State
from ottla.sim.loop import SimLoop, run
from ottla.wire.codec import encode
from ottla.wire.errors import Error, KafkaError
from ottla.wire.frames import read_request_header
from ottla.wire.messages.cluster import ApiVersionsResponse
from ottla.wire.messages.groups import FindCoordinatorResponse
from ottla.wire.messages.metadata import MetadataResponse
from ottla.wire.messages.produce import ProduceResponse
from ottla.wire.messages.transactions import (
    AddedTopic,
    AddOffsetsToTxnResponse,
    AddPartitionsToTxnResponse,
    EndTxnResponse,
    InitProducerIdResponse,
    TxnOffsetCommitResponse,
)
from ottla.wire.schema import Message

PRODUCE, METADATA, FIND, VERSIONS, INIT, ADD, ADD_OFFSETS, END, OFFSETS = 0, 3, 10, 18, 22, 24, 25, 26, 28
SERVED = {PRODUCE: 12, METADATA: 8, FIND: 4, VERSIONS: 3, INIT: 5, ADD: 3, ADD_OFFSETS: 3, END: 5, OFFSETS: 5}
FLEXIBLE_HEADER = {FIND: 3, INIT: 2, ADD: 3, ADD_OFFSETS: 3, END: 3, OFFSETS: 3, PRODUCE: 9}
WHERE = TopicPartition("t", 0)
TAIL_S = 10.0


class Told:
    """A broker that keeps nothing. `says` holds errors to say, per request, before it says that all is well."""

    def __init__(self, transaction_version: int) -> None:
        self.transaction_version = transaction_version
        self.says: dict[int, list[Error]] = {}
        self.asked: list[int] = []
        self.holds: dict[int, asyncio.Event] = {}  # what is answered only then
        self.epoch = 0

    async def serve_forever(self) -> None:
        server = await asyncio.start_server(self.serve, "broker", 9092)
        async with server:
            await server.serve_forever()

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        with contextlib.suppress(ConnectionError, asyncio.IncompleteReadError):
            while True:
                (size,) = struct.unpack(">i", await reader.readexactly(4))
                key, version, correlation_id, _, _ = read_request_header(await reader.readexactly(size))
                version = min(version, SERVED[key])
                self.asked.append(key)
                if key in self.holds:
                    await self.holds[key].wait()
                errors = self.says.get(key)
                body = encode(self.answer(key, errors.pop(0) if errors else Error.NONE), version)
                tags = b"\0" if version >= FLEXIBLE_HEADER.get(key, 99) else b""
                frame = struct.pack(">i", correlation_id) + tags + body
                writer.write(struct.pack(">i", len(frame)) + frame)

    def answer(self, key: int, error: Error) -> Message:
        code = error.code
        if key == VERSIONS:
            return ApiVersionsResponse(
                api_keys=[ApiVersionsResponse.ApiVersion(api_key=k, max_version=v) for k, v in SERVED.items()],
                finalized_features_epoch=1,
                finalized_features=[
                    ApiVersionsResponse.FinalizedFeature(
                        name="transaction.version", max_version_level=self.transaction_version
                    )
                ],
            )
        if key == METADATA:
            topic = MetadataResponse.Topic(name="t", partitions=[MetadataResponse.Topic.Partition(leader_id=1)])
            broker = MetadataResponse.Broker(node_id=1, host="broker", port=9092)
            return MetadataResponse(brokers=[broker], topics=[topic])
        if key == FIND:
            found = FindCoordinatorResponse.Coordinator(node_id=1, host="broker", port=9092, error_code=code)
            return FindCoordinatorResponse(coordinators=[found])
        if key == INIT:
            self.epoch += 1
            return InitProducerIdResponse(error_code=code, producer_id=7, producer_epoch=self.epoch)
        if key == END:
            self.epoch += self.transaction_version >= 2
            return EndTxnResponse(error_code=code, producer_id=7, producer_epoch=self.epoch)
        if key == ADD:
            partition = AddedTopic.Partition(partition_error_code=code)
            topics = [AddedTopic(name="t", results_by_partition=[partition])]
            return AddPartitionsToTxnResponse(results_by_topic_v3_and_below=topics)
        if key == ADD_OFFSETS:
            return AddOffsetsToTxnResponse(error_code=code)
        if key == OFFSETS:
            place = TxnOffsetCommitResponse.Topic.Partition(error_code=code)
            return TxnOffsetCommitResponse(topics=[TxnOffsetCommitResponse.Topic(name="t", partitions=[place])])
        part = ProduceResponse.Topic.Partition(error_code=code)
        return ProduceResponse(responses=[ProduceResponse.Topic(name="t", partition_responses=[part])])


def play(generation: int, act: Callable[[Told, Producer], Awaitable[None]]) -> None:
    async def main(loop: SimLoop) -> None:
        told = Told(2 if generation == 2 else 1)
        loop.boot("broker", told.serve_forever())

        async def client() -> None:
            await asyncio.sleep(1)
            clock = {"now_ms": lambda: int(loop.time() * 1000), "rng": random.Random(1)}
            async with Cluster("broker:9092", **clock) as cluster:  # type: ignore[arg-type]
                producer = Producer(cluster, transactional_id="t", delivery_s=TAIL_S)
                await producer.init()
                await act(told, producer)

        await loop.boot("client", client())

    run(7, main)


async def try_all(producer: Producer) -> None:
    """A transaction with everything in it."""
    producer.begin()
    await producer.post("t", b"v")
    await producer.send_offsets({WHERE: Committed(1)}, "g")
    await producer.commit()


FENCED = (Error.PRODUCER_FENCED, Error.INVALID_PRODUCER_EPOCH)
# Java's TransactionManager draws the same lines.
ABORTABLE = [
    (PRODUCE, Error.INVALID_TXN_STATE),
    (PRODUCE, Error.INVALID_PRODUCER_EPOCH),
    (PRODUCE, Error.TRANSACTION_ABORTABLE),
    (PRODUCE, Error.MESSAGE_TOO_LARGE),
    (PRODUCE, Error.OUT_OF_ORDER_SEQUENCE_NUMBER),
    (PRODUCE, Error.UNKNOWN_PRODUCER_ID),
    (ADD, Error.TRANSACTION_ABORTABLE),
    (ADD, Error.TOPIC_AUTHORIZATION_FAILED),
    (ADD, Error.OPERATION_NOT_ATTEMPTED),
    (ADD, Error.INVALID_PRODUCER_ID_MAPPING),
    (ADD_OFFSETS, Error.GROUP_AUTHORIZATION_FAILED),
    (ADD_OFFSETS, Error.UNKNOWN_PRODUCER_ID),
    (OFFSETS, Error.ILLEGAL_GENERATION),
    (OFFSETS, Error.UNKNOWN_MEMBER_ID),
    (OFFSETS, Error.FENCED_INSTANCE_ID),
    (OFFSETS, Error.TRANSACTION_ABORTABLE),
    (OFFSETS, Error.GROUP_AUTHORIZATION_FAILED),
    (END, Error.TRANSACTION_ABORTABLE),
    (END, Error.INVALID_PRODUCER_ID_MAPPING),
]
FATAL = [
    (PRODUCE, Error.PRODUCER_FENCED),
    (PRODUCE, Error.CLUSTER_AUTHORIZATION_FAILED),
    (PRODUCE, Error.TRANSACTIONAL_ID_AUTHORIZATION_FAILED),
    *[(key, error) for key in (ADD, ADD_OFFSETS, OFFSETS, END) for error in FENCED],
    (ADD, Error.INVALID_TXN_STATE),
    (ADD_OFFSETS, Error.INVALID_TXN_STATE),
    (ADD_OFFSETS, Error.TRANSACTIONAL_ID_AUTHORIZATION_FAILED),
    (OFFSETS, Error.TRANSACTIONAL_ID_AUTHORIZATION_FAILED),
    (OFFSETS, Error.UNSUPPORTED_FOR_MESSAGE_FORMAT),
    (END, Error.INVALID_TXN_STATE),
    (END, Error.UNKNOWN_SERVER_ERROR),
]
PASSING = [
    (PRODUCE, Error.NOT_LEADER_OR_FOLLOWER),
    (PRODUCE, Error.CONCURRENT_TRANSACTIONS),
    (ADD, Error.CONCURRENT_TRANSACTIONS),
    (ADD, Error.NOT_COORDINATOR),
    (ADD_OFFSETS, Error.COORDINATOR_LOAD_IN_PROGRESS),
    (OFFSETS, Error.NOT_COORDINATOR),
    (OFFSETS, Error.UNKNOWN_TOPIC_OR_PARTITION),
    (END, Error.CONCURRENT_TRANSACTIONS),
    (END, Error.COORDINATOR_NOT_AVAILABLE),
]


def cases(table: list[tuple[int, Error]]) -> list[tuple[int, int, Error]]:
    """In each generation that asks so."""
    return [(g, key, error) for key, error in table for g in ((1,) if key in (ADD, ADD_OFFSETS) else (1, 2))]


@pytest.mark.parametrize(("generation", "key", "error"), cases(ABORTABLE))
def test_the_transaction_fails_and_the_next_one_works(generation, key, error):
    async def act(told: Told, producer: Producer) -> None:
        told.says[key] = [error]
        with pytest.raises(Abortable):
            await try_all(producer)
        assert producer._tx.state is State.FAILED
        with pytest.raises(Abortable):
            await producer.post("t", b"refused")
        await producer.abort()
        await try_all(producer)
        assert producer._tx.state is State.READY

    play(generation, act)


@pytest.mark.parametrize(("generation", "key", "error"), cases(FATAL))
def test_the_producer_is_at_its_end(generation, key, error):
    """TXN-08"""

    async def act(told: Told, producer: Producer) -> None:
        told.says[key] = [error]
        with pytest.raises(Fatal, match="close") as ended:
            await try_all(producer)
        assert ended.value.error is (Error.PRODUCER_FENCED if error in FENCED else error)
        for call in (producer.abort, producer.commit):
            with pytest.raises(Fatal):
                await call()
        with pytest.raises(Fatal):
            producer.begin()

    play(generation, act)


@pytest.mark.parametrize(("generation", "key", "error"), cases(PASSING))
def test_what_passes_is_asked_again(generation, key, error):
    async def act(told: Told, producer: Producer) -> None:
        told.says[key] = [error] * 3
        await try_all(producer)
        assert told.asked.count(key) >= 4

    play(generation, act)


@pytest.mark.parametrize("generation", [1, 2])
def test_an_end_that_nobody_confirms_can_be_asked_for_again(generation):
    """Its outcome is not known: it cannot be turned into the other one."""

    async def act(told: Told, producer: Producer) -> None:
        told.says[END] = [Error.COORDINATOR_NOT_AVAILABLE] * 1000
        with pytest.raises(Lost, match=r"call commit\(\) again"):
            await try_all(producer)
        with pytest.raises(ValueError, match=r"commit\(\) it again"):
            await producer.abort()
        told.says.clear()
        await producer.commit()
        await try_all(producer)

    play(generation, act)


def test_a_batch_that_is_dropped_with_its_number_costs_the_epoch():
    """TXN-09: in generation 1 the next transaction would go on behind a number that was never written, and a copy of the
    batch that is still under way would fit right there. So it gets an epoch of its own."""

    async def act(told: Told, producer: Producer) -> None:
        told.says[PRODUCE] = [Error.NOT_LEADER_OR_FOLLOWER] * 1000
        producer.begin()
        await producer.post("t", b"never written")
        await asyncio.sleep(1)
        before = producer._sender.identity
        await producer.abort()
        assert producer._sender.identity != before
        told.says.clear()
        await try_all(producer)
        assert producer._sender.lane(WHERE).sequence == 1

    play(1, act)


@pytest.mark.parametrize("generation", [1, 2])
def test_an_abort_that_was_given_up_is_no_way_to_commit(generation):
    """TXN-03: some of the records were dropped already."""

    async def act(told: Told, producer: Producer) -> None:
        told.holds[PRODUCE] = asyncio.Event()
        producer.begin()
        await producer.post("t", b"flies")
        await asyncio.sleep(1)
        dropped = await producer.post("t", b"dropped")
        with pytest.raises(TimeoutError):
            await asyncio.wait_for(producer.abort(), 1)
        told.holds[PRODUCE].set()
        assert isinstance(dropped.exception(), KafkaError)
        with pytest.raises(KafkaError, match="aborted"):
            await producer.commit()
        assert END not in told.asked
        await producer.abort()
        await try_all(producer)

    play(generation, act)


@pytest.mark.parametrize("generation", [1, 2])
def test_an_abort_that_was_given_up_when_it_was_nearly_done_goes_on_from_there(generation):
    """TXN-09: the coordinator has nothing left to end, and would say so."""

    async def act(told: Told, producer: Producer) -> None:
        told.says[PRODUCE] = [Error.OUT_OF_ORDER_SEQUENCE_NUMBER]
        with pytest.raises(Abortable):
            await try_all(producer)
        told.says[END] = [Error.NONE, Error.INVALID_TXN_STATE]
        told.holds[VERSIONS] = asyncio.Event()
        with pytest.raises(TimeoutError):
            await asyncio.wait_for(producer.abort(), 1)
        told.holds[VERSIONS].set()
        await producer.abort()
        told.says.clear()
        await try_all(producer)

    play(generation, act)


@pytest.mark.parametrize("generation", [1, 2])
def test_what_each_generation_asks(generation):
    """Generation 2 has no question of its own before it writes, and learns its next epoch from the end."""

    async def act(told: Told, producer: Producer) -> None:
        before = producer._sender.identity
        await try_all(producer)
        added = [key for key in told.asked if key in (ADD, ADD_OFFSETS)]
        assert sorted(added) == ([] if generation == 2 else [ADD, ADD_OFFSETS])
        assert (producer._sender.identity != before) is (generation == 2)

    play(generation, act)


def test_first_words():
    """A producer that may not have the id can ask again; one that was shut out meanwhile cannot."""

    async def act(told: Told, producer: Producer) -> None:
        for error in (Error.TRANSACTIONAL_ID_AUTHORIZATION_FAILED, Error.INVALID_TRANSACTION_TIMEOUT):
            other = Producer(producer.cluster, transactional_id="u")
            told.says[INIT] = [error]
            with pytest.raises(KafkaError) as refused:
                await other.init()
            assert refused.value.error is error
            told.says[INIT] = [Error.CONCURRENT_TRANSACTIONS, Error.COORDINATOR_LOAD_IN_PROGRESS]
            await other.init()
        other = Producer(producer.cluster, transactional_id="u")
        told.says[INIT] = [Error.PRODUCER_FENCED]
        with pytest.raises(Fatal):
            await other.init()

    play(2, act)
