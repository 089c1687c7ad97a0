"""A broker that says as it is told, and a producer that asks it, in simulated time."""

from __future__ import annotations

import asyncio
import contextlib
import random
import struct
from collections.abc import Awaitable, Callable
from typing import Any

from ottla.client.cluster import Cluster, TopicPartition
from ottla.client.producer import Producer
from ottla.sim.loop import SimLoop, run
from ottla.wire.codec import encode
from ottla.wire.errors import Error
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


class Puppet:
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
            codes = [Error.OPERATION_NOT_ATTEMPTED.code, code] if error is Error.TOPIC_AUTHORIZATION_FAILED else [code]
            partitions = [AddedTopic.Partition(partition_error_code=each) for each in codes]
            topics = [AddedTopic(name="t", results_by_partition=partitions)]
            return AddPartitionsToTxnResponse(results_by_topic_v3_and_below=topics)
        if key == ADD_OFFSETS:
            return AddOffsetsToTxnResponse(error_code=code)
        if key == OFFSETS:
            place = TxnOffsetCommitResponse.Topic.Partition(error_code=code)
            return TxnOffsetCommitResponse(topics=[TxnOffsetCommitResponse.Topic(name="t", partitions=[place])])
        part = ProduceResponse.Topic.Partition(error_code=code)
        return ProduceResponse(responses=[ProduceResponse.Topic(name="t", partition_responses=[part])])


def play(
    generation: int,
    act: Callable[[Puppet, Producer], Awaitable[None]],
    transactional_id: str | None = "t",
    **options: Any,
) -> None:
    async def main(loop: SimLoop) -> None:
        puppet = Puppet(2 if generation == 2 else 1)
        loop.boot("broker", puppet.serve_forever())

        async def client() -> None:
            await asyncio.sleep(1)
            clock = {"now_ms": lambda: int(loop.time() * 1000), "rng": random.Random(1)}
            async with Cluster("broker:9092", **clock) as cluster:  # type: ignore[arg-type]
                producer = Producer(cluster, transactional_id=transactional_id, delivery_s=TAIL_S, **options)
                if transactional_id is not None:
                    await producer.init()
                await act(puppet, producer)

        await loop.boot("client", client())

    run(7, main)
