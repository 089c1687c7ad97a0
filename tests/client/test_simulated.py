"""The client on the simulator's loop: nothing in it needs real sockets, clocks, threads or chance."""

from __future__ import annotations

import asyncio
import contextlib
import random
import struct

from ottla.client.cluster import Cluster
from ottla.client.producer import Producer
from ottla.sim.loop import SimLoop, run
from ottla.wire.codec import encode
from ottla.wire.frames import read_request_header
from ottla.wire.messages.cluster import ApiVersionsResponse
from ottla.wire.messages.metadata import MetadataResponse
from ottla.wire.messages.produce import ProduceResponse
from ottla.wire.messages.transactions import InitProducerIdResponse

Partition = ProduceResponse.Topic.Partition
BROKER = MetadataResponse.Broker(node_id=1, host="broker", port=9092)
TOPIC = MetadataResponse.Topic(name="t", partitions=[MetadataResponse.Topic.Partition(leader_id=1)])
ANSWERS = {
    18: ApiVersionsResponse(
        api_keys=[
            ApiVersionsResponse.ApiVersion(api_key=key, max_version=version)
            for key, version in [(18, 3), (3, 8), (0, 8), (22, 1)]
        ]
    ),
    3: MetadataResponse(brokers=[BROKER], topics=[TOPIC]),
    22: InitProducerIdResponse(producer_id=77),
    0: ProduceResponse(responses=[ProduceResponse.Topic(name="t", partition_responses=[Partition(base_offset=5)])]),
}


async def broker() -> None:
    """Answers what a producer asks; it has been asked ApiVersions v4 first and says so in v0."""

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        with contextlib.suppress(ConnectionError, asyncio.IncompleteReadError):
            while True:
                await answer_one(reader, writer)

    server = await asyncio.start_server(serve, "broker", 9092)
    async with server:
        await server.serve_forever()


async def answer_one(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    (size,) = struct.unpack(">i", await reader.readexactly(4))
    key, version, correlation_id, _, _ = read_request_header(await reader.readexactly(size))
    answer = ANSWERS[key]
    if key == 18 and version > 3:
        answer, version = ApiVersionsResponse(error_code=35, api_keys=ANSWERS[18].api_keys), 0
    body = struct.pack(">i", correlation_id) + encode(answer, version)
    writer.write(struct.pack(">i", len(body)) + body)


async def produce(loop: SimLoop) -> tuple[list[int], str, float]:
    loop.boot("broker", broker())

    async def client() -> list[int]:
        await asyncio.sleep(1)
        async with Cluster("broker:9092", now_ms=lambda: int(loop.time() * 1000), rng=random.Random(1)) as cluster:
            async with Producer(cluster, delivery_s=10) as producer:
                offsets = [(await future).offset for future in [await producer.post("t", b"v") for _ in range(3)]]
            loop.network.reset("client", "broker")
            return [*offsets, (await producer.send("t", value=b"after the reset")).offset]

    return await loop.boot("client", client()), loop.trace(), loop.time()


def test_same_seed_same_history():
    """Also across a connection that is reset."""
    first, second = run(7, produce), run(7, produce)
    assert first == second
    assert first[0] == [5, 6, 7, 5]
    assert run(8, produce)[1] != first[1]
