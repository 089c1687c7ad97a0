"""A node in the test's own process, on real sockets, and a client that says exactly what it is told to say."""

from __future__ import annotations

import asyncio
import contextlib
import errno
import os
import struct
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, TypeVar

from ottla.config import BrokerConfig, single_node_defaults
from ottla.log.producers import Origin
from ottla.metadata.controller import NewTopic, create_topics
from ottla.replication.partition import Partition
from ottla.server.node import Node
from ottla.wire.codec import decode
from ottla.wire.frames import read_response_header, request_frame
from ottla.wire.messages import RESPONSES
from ottla.wire.messages.fetch import FetchRequest, FetchResponse
from ottla.wire.messages.offsets import ListOffsetsRequest, ListOffsetsResponse
from ottla.wire.messages.produce import ProduceRequest, ProduceResponse
from ottla.wire.messages.settings import IncrementalAlterConfigsRequest
from ottla.wire.records import Batch, Record, batches, build, end_marker, iterate
from ottla.wire.schema import Message
from ottla.world import Bytes, RealDisk, RealFile, World

T = TypeVar("T", bound=Message)
SECONDS = 30.0  # only what never comes takes that long, also on a busy machine


async def until(is_so: Callable[[], Any], seconds: float = 60.0) -> None:
    async with asyncio.timeout(seconds):
        while not is_so():
            await asyncio.sleep(0.01)


class TouchyFile(RealFile):
    __slots__ = ("disk",)

    def __init__(self, path: str, flags: int, disk: TouchyDisk) -> None:
        self.disk = disk
        super().__init__(path, flags, disk.watch)

    def write_at(self, position: int, parts: Sequence[Bytes]) -> None:
        if self.disk.full and self.path.endswith(".log"):
            raise OSError(errno.ENOSPC, "No space left on device", self.path)
        super().write_at(position, parts)

    def sync(self) -> None:
        if self.path.endswith(".log"):
            self.disk.syncs.append(self.path)
            if self.disk.broken:
                raise OSError(errno.EIO, "Input/output error", self.path)
        super().sync()


class TouchyDisk(RealDisk):
    """The real disk, except that it can be full, can fail to sync, and counts how often segments are synced."""

    def __init__(self) -> None:
        super().__init__()
        self.full = self.broken = False
        self.syncs: list[str] = []
        self.waiting: list[asyncio.Future[None]] = []
        self.slow = False

    def open(self, path: str, *, create: bool = False) -> TouchyFile:
        return TouchyFile(path, os.O_RDWR | (os.O_CREAT if create else 0), self)

    async def away(self, call: Any, *args: Any) -> Any:
        if self.slow:
            gate: asyncio.Future[None] = asyncio.get_running_loop().create_future()
            self.waiting.append(gate)
            await gate
        return await super().away(call, *args)

    def let_go(self) -> None:
        """Whatever waits for the slow disk goes on."""
        gates, self.waiting = self.waiting, []
        for gate in gates:
            gate.set_result(None)


class Client:
    """One connection. Requests may be sent without waiting for their answers."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.reader, self.writer = reader, writer
        self._correlation = 0
        self._sent: list[tuple[int, type[Message], int]] = []

    def send(self, request: Message, version: int, client_id: str | None = "test") -> int:
        self._correlation += 1
        self.writer.write(frame(request, version, self._correlation, client_id))
        response = RESPONSES[type(request).key]
        self._sent.append((self._correlation, response, version))  # type: ignore[arg-type]
        return self._correlation

    async def receive(self, expected: type[T] | None = None) -> Any:
        """The answer to the oldest request without one; it must be the next to come."""
        correlation, response, version = self._sent.pop(0)
        data = await self.frame()
        answered, position = read_response_header(data, response, version)  # type: ignore[arg-type]
        assert answered == correlation, "answers must come in the order of the requests"
        return decode(expected or response, data, version, position)

    async def call(self, request: Message, version: int, client_id: str | None = "test") -> Any:
        self.send(request, version, client_id)
        return await self.receive()

    async def frame(self) -> bytes:
        async with asyncio.timeout(SECONDS):
            (size,) = struct.unpack(">i", await self.reader.readexactly(4))
            return await self.reader.readexactly(size)

    async def is_cut(self, seconds: float = SECONDS) -> bool:
        """Whether the server ends the connection without saying anything more."""
        try:
            async with asyncio.timeout(seconds):
                return await self.reader.read(1) == b""
        except ConnectionError:
            return True
        except TimeoutError:
            return False

    def close(self) -> None:
        self.writer.transport.abort()

    # Requests in short

    async def produce(
        self, topic: str, records: bytes | None, index: int = 0, acks: int = -1, version: int = 9, **more: Any
    ) -> Any:
        request = produce_request(topic, {index: records}, acks, **more)
        response: ProduceResponse = await self.call(request, version)
        return response.responses[0].partition_responses[0]

    async def fetch(self, topic: str, offset: int, index: int = 0, version: int = 12, **more: Any) -> Any:
        response: FetchResponse = await self.call(fetch_request(topic, {index: offset}, **more), version)
        return response.responses[0].partitions[0]

    async def list_offsets(self, topic: str, timestamp: int, index: int = 0, version: int = 11, **more: Any) -> Any:
        asked = ListOffsetsRequest.Topic.Partition(partition_index=index, timestamp=timestamp)
        asked.current_leader_epoch = more.pop("current_leader_epoch", -1)
        topics = [ListOffsetsRequest.Topic(name=topic, partitions=[asked])]
        response: ListOffsetsResponse = await self.call(
            ListOffsetsRequest(replica_id=-1, topics=topics, **more), version
        )
        return response.topics[0].partitions[0]


class Served:
    """A running node with what tests ask of it."""

    def __init__(self, node: Node) -> None:
        self.node = node
        self.port = node.listeners[0].port
        self._clients: list[Client] = []

    async def connect(self, limit: int = 1 << 16) -> Client:
        reader, writer = await asyncio.open_connection("127.0.0.1", self.port, limit=limit)
        self._clients.append(Client(reader, writer))
        return self._clients[-1]

    async def topic(self, name: str, partitions: int = 1, **configs: str) -> bytes:
        """Make a topic; its id."""
        dotted = {key.replace("_", "."): value for key, value in configs.items()}
        new = NewTopic(name, partitions, 1, configs=dotted)
        active = self.node.controller
        await active.propose(lambda image: create_topics(image, [new], active.rules, self.node.world.random))
        made = self.node.quorum.image.topic(name)
        assert made is not None
        return made.id

    def partition(self, topic: str, index: int = 0) -> Partition:
        return self.node.replicas.find(topic, index)

    def append_in_transaction(self, topic: str, data: bytes) -> None:
        """What a producer will do whose transaction the coordinator vouches for: a batch into the log."""
        now_ms = self.node.world.now_ms()
        self.partition(topic).append(memoryview(bytearray(data)), now_ms, Origin.CLIENT, Unheard())

    def end_transaction(self, topic: str, producer_id: int, epoch: int, commit: bool) -> None:
        """What the transaction coordinator will do: a marker into the log."""
        marker = end_marker(
            commit, self.node.world.now_ms(), producer_id=producer_id, producer_epoch=epoch, coordinator_epoch=0
        )
        self.partition(topic).append(memoryview(marker), self.node.world.now_ms(), Origin.COORDINATOR, Unheard())

    def close(self) -> None:
        for client in self._clients:
            client.close()


class Unheard:
    """The owner of an append whose failure is a failure of the test."""

    def fail(self, error: Exception) -> None:
        raise error


@contextlib.asynccontextmanager
async def serving(
    path: Path, settings: Mapping[str, str] | None = None, disk: RealDisk | None = None
) -> AsyncIterator[Served]:
    own = {"log.dirs": str(path / "data"), "listeners": "PLAINTEXT://127.0.0.1:0,CONTROLLER://127.0.0.1:0"}
    world = World(disk=disk) if disk is not None else World()
    node = Node(BrokerConfig({**single_node_defaults(), **own, **(settings or {})}), world)
    await node.start()
    served = Served(node)
    try:
        yield served
    finally:
        served.close()
        await node.stop()
        node.world.disk._threads.shutdown()  # type: ignore[attr-defined]


def frame(request: Message, version: int, correlation_id: int = 1, client_id: str | None = "test") -> bytes:
    parts = request_frame(request, version, correlation_id, client_id)
    return b"".join(bytes(part) for part in parts)  # type: ignore[arg-type]


def batch(*values: bytes | None, timestamp: int = 1_000, key: bytes | None = b"k", **more: Any) -> bytes:
    """A batch with these values, a millisecond apart."""
    return build([Record(timestamp=timestamp + n, key=key, value=value) for n, value in enumerate(values)], **more)


def produce_request(
    topic: str | bytes, data: Mapping[int, bytes | None], acks: int = -1, **more: Any
) -> ProduceRequest:
    parts = [ProduceRequest.Topic.Partition(index=index, records=records) for index, records in data.items()]  # type: ignore[arg-type]
    named = {"topic_id": topic} if isinstance(topic, bytes) else {"name": topic}
    topics = [ProduceRequest.Topic(partition_data=parts, **named)]
    return ProduceRequest(acks=acks, timeout_ms=more.pop("timeout_ms", 30_000), topic_data=topics, **more)


def fetch_request(topic: str | bytes, offsets: Mapping[int, int], **more: Any) -> FetchRequest:
    bytes_max = more.pop("partition_max_bytes", 1 << 20)
    epochs = {name: more.pop(name) for name in ("current_leader_epoch", "last_fetched_epoch") if name in more}
    parts = [
        FetchRequest.Topic.Partition(partition=index, fetch_offset=offset, partition_max_bytes=bytes_max, **epochs)
        for index, offset in offsets.items()
    ]
    named = {"topic_id": topic} if isinstance(topic, bytes) else {"topic": topic}
    topics = [FetchRequest.Topic(partitions=parts, **named)] if parts else []
    settings = {"max_wait_ms": 0, "min_bytes": 1, "session_epoch": -1, **more}
    return FetchRequest(topics=topics, **settings)


def heads(records: Any) -> list[Batch]:
    return [head for _, head in batches(records)]


def values(records: Any) -> list[bytes | None]:
    """The values of all records, control batches left out."""
    found: list[bytes | None] = []
    for position, head in batches(records):
        if not head.is_control:
            found += [record.value for record in iterate(bytes(records[position : position + head.size]))]
    return found


async def change(client: Client, broker: str, **settings: str | None) -> None:
    """Set settings of a broker, or of all with an empty name, while the node runs; None takes one away."""
    entries = [
        IncrementalAlterConfigsRequest.Resource.Config(
            name=name.replace("_", "."), config_operation=1 if value is None else 0, value=value
        )
        for name, value in settings.items()
    ]
    resource = IncrementalAlterConfigsRequest.Resource(resource_type=4, resource_name=broker, configs=entries)
    answer = await client.call(IncrementalAlterConfigsRequest(resources=[resource]), 1)
    assert answer.responses[0].error_code == 0, answer.responses[0].error_message
