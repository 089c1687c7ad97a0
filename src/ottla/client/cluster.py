"""A cluster as a client sees it: a few addresses to begin with, and then whoever leads a partition.

Whatever may pass by itself (no leader yet, a lost connection, a broker that is starting) is tried again with growing
pauses until a budget of time is used up; the last error is then raised as it is.
"""

from __future__ import annotations

import asyncio
import random
import re
from collections.abc import Awaitable, Callable, Coroutine, Iterable, Mapping
from typing import Any, NamedTuple, TypeVar

from ottla.client.connection import Connection, address_text, check, failure
from ottla.wire.errors import Error, KafkaError
from ottla.wire.messages.metadata import MetadataRequest, MetadataResponse
from ottla.wire.messages.offsets import ListOffsetsRequest, ListOffsetsResponse
from ottla.wire.schema import ZERO_UUID
from ottla.world import wall_clock_ms

T = TypeVar("T")
V = TypeVar("V")

PORT = 9092
SCHEME = re.compile(r"[0-9A-Za-z%._-]*://")
BUDGET_SECONDS = 30.0
PAUSE_SECONDS = 0.05
PAUSE_SECONDS_MAX = 1.0

# Marks that stand for offsets in ListOffsets.
LATEST = -1
EARLIEST = -2

UNKNOWN_EPOCH = -1


class Unreachable(ConnectionError):
    """None of the addresses we were given has a broker behind it."""


class TopicPartition(NamedTuple):
    topic: str
    partition: int


class Offset(NamedTuple):
    """An offset found by ListOffsets; -1 when there is none. The timestamp is that of its record, where one was asked."""

    offset: int
    timestamp: int


class Leader(NamedTuple):
    node_id: int
    epoch: int


def addresses(text: str) -> list[tuple[str, int]]:
    """`a:9092,b,[::1]:9093` as hosts and ports. As Java's clients do, what may stand before `://` is passed over."""
    found = []
    for part in filter(None, (SCHEME.sub("", piece.strip()) for piece in text.split(","))):
        host, colon, port = part.rpartition(":")
        if not colon or part.endswith("]"):
            host, port = part, str(PORT)
        if not port.isdigit() or not 0 < int(port) < 65536:
            raise ValueError(f"{part!r} is not an address: write host:port")
        found.append((host.strip("[]") or "localhost", int(port)))
    if not found:
        raise ValueError("no address of a broker was given: write host:port")
    return found


class Cluster:
    """Connections, and what is known about topics. Use it as `async with Cluster("localhost:9092") as cluster`."""

    def __init__(
        self,
        bootstrap: str,
        *,
        client_id: str = "ottla",
        budget_s: float = BUDGET_SECONDS,
        now_ms: Callable[[], int] = wall_clock_ms,
        rng: random.Random | None = None,
    ) -> None:
        self.bootstrap = addresses(bootstrap)
        self.client_id = client_id
        self.budget_s = budget_s
        self.now_ms = now_ms
        self.rng = rng or random.SystemRandom()
        self.brokers: dict[int, tuple[str, int]] = {}
        self.cluster_id: str | None = None
        self._ids: dict[str, bytes] = {}
        self._names: dict[bytes, str] = {}
        self._leaders: dict[TopicPartition, Leader] = {}
        self._counts: dict[str, int] = {}
        self._connections: dict[tuple[str, int], Connection] = {}
        self._opening: dict[tuple[str, int], asyncio.Lock] = {}
        self._asking: dict[str, asyncio.Lock] = {}

    async def __aenter__(self) -> Cluster:
        await self.any()
        return self

    async def __aexit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        for connection in self._connections.values():
            connection.close()
        self._connections.clear()

    # Trying again.

    async def retrying(
        self, step: Callable[[], Awaitable[T]], budget_s: float | None = None, pause_s: float = PAUSE_SECONDS
    ) -> T:
        """Do it until it works, fails for good, or the budget is used up."""
        loop = asyncio.get_running_loop()
        deadline = loop.time() + (self.budget_s if budget_s is None else budget_s)
        pause = pause_s
        while True:
            try:
                return await step()
            except (KafkaError, OSError) as error:
                if not may_pass(error) or loop.time() + pause > deadline:
                    raise
            await self.pause(pause)
            pause = min(2 * pause, PAUSE_SECONDS_MAX)

    async def pause(self, seconds: float) -> None:
        """A pause of about that length, so that many clients do not come back at the same moment."""
        await asyncio.sleep(self.about(seconds))

    def about(self, seconds: float) -> float:
        return seconds * self.rng.uniform(0.8, 1.2)

    # Connections.

    async def any(self) -> Connection:
        """A connection to some broker: of those that are open the one that was heard last, for a broker whose power is gone
        closes none; else one to the first that answers."""
        is_open = [connection for connection in self._connections.values() if not connection.closed]
        if is_open:
            return max(is_open, key=lambda connection: connection.heard)
        reasons = []
        for address in dict.fromkeys([*self.bootstrap, *self.brokers.values()]):
            try:
                return await self._connect(address)
            except OSError as error:
                reasons.append(f"{address_text(*address)} ({reason(error)})")
        raise Unreachable(f"no broker at {', '.join(reasons)}")

    async def broker(self, node_id: int) -> Connection:
        """A connection to one broker, by its number. KafkaError when the cluster has none of that number."""
        if node_id not in self.brokers:
            await self.metadata([])
        if node_id not in self.brokers:
            raise KafkaError(Error.BROKER_NOT_AVAILABLE, f"there is no broker {node_id}")
        return await self._connect(self.brokers[node_id])

    async def _connect(self, address: tuple[str, int]) -> Connection:
        async with self._opening.setdefault(address, asyncio.Lock()):
            connection = self._connections.get(address)
            if connection is None or connection.closed:
                connection = self._connections[address] = await self.open(*address)
            return connection

    def open(self, host: str, port: int) -> Coroutine[Any, Any, Connection]:
        """A connection of the caller's own, made as all of this cluster's are."""
        return Connection.open(host, port, client_id=self.client_id)

    # Topics.

    async def metadata(self, topics: Iterable[str] | None = None, *, create: bool = False) -> MetadataResponse:
        """Ask anew about these topics, or about all. The answer holds an error per topic; nothing is raised for those."""
        wanted = None if topics is None else [MetadataRequest.Topic(name=name) for name in topics]
        request = MetadataRequest(topics=wanted, allow_auto_topic_creation=create)
        response: MetadataResponse = await (await self.any()).request(request)
        check(response.error_code)
        self.brokers = {broker.node_id: (broker.host, broker.port) for broker in response.brokers}
        self.cluster_id = response.cluster_id
        for topic in response.topics:
            self._learn(topic)
        return response

    def _learn(self, topic: MetadataResponse.Topic) -> None:
        name = topic.name or ""
        if topic.error_code:
            self.forget(name)
            return
        self._ids[name], self._names[topic.topic_id] = topic.topic_id, name
        self._counts[name] = len(topic.partitions)
        for partition in topic.partitions:
            found = Leader(partition.leader_id, partition.leader_epoch)
            self._leaders[TopicPartition(name, partition.partition_index)] = found

    def forget(self, topic: str) -> None:
        """What was known of this topic was wrong: the next question asks the cluster."""
        for partition in range(self._counts.pop(topic, 0)):
            self._leaders.pop(TopicPartition(topic, partition), None)

    def topic_id(self, topic: str) -> bytes:
        return self._ids.get(topic, ZERO_UUID)

    def topic_of(self, topic_id: bytes) -> str:
        return self._names.get(topic_id, "")

    def partitions_at_hand(self, topic: str) -> int | None:
        """How many partitions a topic has, if that is known."""
        return self._counts.get(topic)

    async def partition_count(self, topic: str, *, create: bool = False, budget_s: float | None = None) -> int:
        """How many partitions a topic has. With `create` a missing one is made, if the broker does such things."""
        if topic not in self._counts:
            await self.retrying(lambda: self._ask_about(topic, create), budget_s)
        return self._counts[topic]

    async def _ask_about(self, topic: str, create: bool) -> None:
        response = await self.metadata([topic], create=create)
        for found in response.topics:
            if found.error_code == Error.UNKNOWN_TOPIC_OR_PARTITION.code and not create:
                raise NoTopic(topic)
            if found.error_code == Error.UNKNOWN_TOPIC_OR_PARTITION.code:
                raise KafkaError(Error.UNKNOWN_TOPIC_OR_PARTITION, f"there is no topic {topic!r}, and none was created")
            check(found.error_code, f"topic {topic!r}: {failure(found.error_code).message}")

    async def leader(self, where: TopicPartition) -> tuple[Connection, int]:
        """A connection to the leader of a partition, and the leader's epoch."""
        leader = self._leaders.get(where)
        if leader is None or leader.node_id not in self.brokers:
            leader = await self._find_leader(where)
        if leader is None:
            raise KafkaError(
                Error.UNKNOWN_TOPIC_OR_PARTITION, f"topic {where.topic!r} has no partition {where.partition}"
            )
        if leader.node_id not in self.brokers:
            self.forget(where.topic)
            raise KafkaError(Error.LEADER_NOT_AVAILABLE, f"{where.topic}-{where.partition} has no leader")
        try:
            return await self._connect(self.brokers[leader.node_id]), leader.epoch
        except OSError:
            self.forget(where.topic)  # another may lead by the time we ask again
            raise

    async def _find_leader(self, where: TopicPartition) -> Leader | None:
        """Many partitions lose their leader at once: one question answers all who ask about a topic."""
        async with self._asking.setdefault(where.topic, asyncio.Lock()):
            leader = self._leaders.get(where)
            if leader is None or leader.node_id not in self.brokers:
                await self._ask_about(where.topic, create=False)
                leader = self._leaders.get(where)
            return leader

    def leader_at_hand(self, where: TopicPartition) -> Connection | None:
        """The same without asking anybody: None when the leader is not known, or there is no connection to it."""
        leader = self._leaders.get(where)
        address = None if leader is None else self.brokers.get(leader.node_id)
        connection = None if address is None else self._connections.get(address)
        return None if connection is None or connection.closed else connection

    def epoch_at_hand(self, where: TopicPartition) -> int:
        """The epoch of the leader that is known, to be said to whoever is asked: one that leads no more, or that follows
        another and has less, must not be taken for it."""
        leader = self._leaders.get(where)
        return UNKNOWN_EPOCH if leader is None else leader.epoch

    async def by_leader(self, wanted: Mapping[TopicPartition, V]) -> dict[Connection, dict[TopicPartition, V]]:
        """The same, sorted by who has to be asked."""
        parts: dict[Connection, dict[TopicPartition, V]] = {}
        for where, what in wanted.items():
            connection, _ = await self.leader(where)
            parts.setdefault(connection, {})[where] = what
        return parts

    async def list_offsets(
        self, wanted: Mapping[TopicPartition, int], *, read_committed: bool = False
    ) -> dict[TopicPartition, Offset]:
        """For each partition the first offset at or after a timestamp, or at one of the marks EARLIEST, LATEST."""
        found: dict[TopicPartition, Offset] = {}

        async def ask_for_the_rest() -> None:
            rest = {where: timestamp for where, timestamp in wanted.items() if where not in found}
            for connection, part in (await self.by_leader(rest)).items():
                response: ListOffsetsResponse = await connection.request(self._offsets_request(part, read_committed))
                for topic in response.topics:
                    for partition in topic.partitions:
                        if partition.error_code:
                            self.forget(topic.name)
                            raise failure(partition.error_code)
                        where = TopicPartition(topic.name, partition.partition_index)
                        found[where] = Offset(partition.offset, partition.timestamp)

        await self.retrying(ask_for_the_rest)
        return found

    def _offsets_request(self, part: Mapping[TopicPartition, int], read_committed: bool) -> ListOffsetsRequest:
        return ListOffsetsRequest(
            replica_id=-1,
            isolation_level=int(read_committed),
            timeout_ms=30000,
            topics=[
                ListOffsetsRequest.Topic(
                    name=topic,
                    partitions=[
                        ListOffsetsRequest.Topic.Partition(
                            partition_index=where.partition,
                            current_leader_epoch=self.epoch_at_hand(where),
                            timestamp=timestamp,
                        )
                        for where, timestamp in partitions.items()
                    ],
                )
                for topic, partitions in by_topic(part).items()
            ],
        )


class NoTopic(KafkaError):
    """Not retriable: nobody is about to make it."""

    def __init__(self, topic: str) -> None:
        super().__init__(Error.UNKNOWN_TOPIC_OR_PARTITION, f"there is no topic {topic!r}")
        self.topic = topic


def by_topic(parts: Mapping[TopicPartition, V]) -> dict[str, dict[TopicPartition, V]]:
    """The same, sorted by topic, as requests want it."""
    topics: dict[str, dict[TopicPartition, V]] = {}
    for where, what in parts.items():
        topics.setdefault(where.topic, {})[where] = what
    return topics


def may_pass(error: BaseException) -> bool:
    """Whether trying again can help."""
    if isinstance(error, NoTopic):
        return False
    return error.error.retriable if isinstance(error, KafkaError) else isinstance(error, OSError)


def reason(error: OSError) -> str:
    """Why a connection could not be made, in a few words."""
    if isinstance(error, ConnectionRefusedError) or "Connect call failed" in str(error):
        return "connection refused"
    return error.strerror or str(error)
