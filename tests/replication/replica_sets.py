"""Brokers that hold copies of one topic, each with a simulated disk, real replicas and the real handlers of Fetch and of
ListOffsets; a line between two of them calls the handler. Who leads is decided by whoever writes the test: a `Cluster` has one
picture, and tells it to whom it is told to."""

from __future__ import annotations

import asyncio
import random
from collections.abc import Awaitable, Callable
from types import SimpleNamespace
from typing import Any

from ottla.config import BrokerConfig
from ottla.log.directories import Directories
from ottla.log.log import Appended
from ottla.log.producers import Origin
from ottla.log.settings import LogSettings
from ottla.metadata import records as r
from ottla.metadata.decisions import Rules
from ottla.metadata.features import SERVED
from ottla.metadata.image import Delta, Image
from ottla.metadata.image import Partition as Assignment
from ottla.metadata.in_sync import alter_partition
from ottla.metadata.replay import replay
from ottla.replication.moves import Moves
from ottla.replication.neighbours import DEFAULTS, Neighbours
from ottla.replication.partition import Partition
from ottla.replication.replicas import Replicas
from ottla.server.fetch_sessions import FetchSessions
from ottla.server.handlers.fetch import fetch
from ottla.server.handlers.offsets import delete_records, list_offsets
from ottla.sim.disk import Loss, SimDisk
from ottla.wire.errors import KafkaError
from ottla.wire.messages.brokers import AlterPartitionRequest, AlterPartitionResponse
from ottla.wire.messages.fetch import FetchRequest, FetchResponse
from ottla.wire.messages.offsets import DeleteRecordsRequest, ListOffsetsRequest
from ottla.wire.records import Record, build
from ottla.world import Slice

NOW_MS = 1_767_225_600_000
TOPIC = "t"
TOPIC_ID = b"t" * 16
VERSIONS = {FetchRequest: 18}


class Traffic:
    bytes_in = bytes_out = records_in = produces = failed_produces = fetches = failed_fetches = 0


class Owner:
    def __init__(self) -> None:
        self.error: KafkaError | None = None

    def fail(self, error: KafkaError) -> None:
        self.error = error


class Wire:
    """From one broker to another. It can be cut, and it can lose answers."""

    def __init__(self, cluster: Cluster, asker: Broker, asked: int) -> None:
        self.cluster, self.asker, self.asked = cluster, asker, asked
        self.waiting: set[asyncio.Task[Any]] = set()

    async def ask(self, request: Any, timeout_s: float, go_on: Callable[[Any], Any] | None = None) -> Any:
        while True:
            response = await self._answer(request)
            following = go_on(response) if go_on is not None else None
            if following is None:
                return response
            request = following

    async def _answer(self, request: Any) -> Any:
        other = self.cluster.brokers.get(self.asked)
        if other is None or not self.cluster.reaches(self.asker.id, self.asked):
            await asyncio.sleep(0.001)
            raise ConnectionError(f"{self.asked} is not there")
        task = asyncio.ensure_future(other.answer(request))
        self.waiting.add(task)
        other.serving.add(task)
        try:
            response = await task
        except asyncio.CancelledError:
            if not asyncio.current_task().cancelling():  # type: ignore[union-attr]
                raise ConnectionError("the line was closed") from None
            raise
        finally:
            self.waiting.discard(task)
            other.serving.discard(task)
            task.cancel()
        await asyncio.sleep(self.cluster.rng.random() * self.cluster.line_s)
        if self.cluster.loses_answer(self.asker.id, self.asked):
            raise ConnectionError("the answer was lost")
        return response

    def close(self) -> None:
        for task in self.waiting:
            task.cancel()


class Broker:
    def __init__(self, cluster: Cluster, broker_id: int, disk: SimDisk, settings: dict[str, int]) -> None:
        self.cluster, self.id, self.disk = cluster, broker_id, disk
        self.is_dead = False
        self.serving: set[asyncio.Task[Any]] = set()
        self.tasks: set[asyncio.Task[Any]] = set()
        self.epoch = cluster.next_epoch()
        self.image = Image()
        loop = asyncio.get_running_loop()
        self.config = BrokerConfig({"node.id": str(broker_id), "log.dirs": "/d"})
        self.directories = Directories(disk, ["/d"], broker_id, lambda: NOW_MS, random.Random(broker_id))
        self.neighbours = Neighbours(
            open_line=lambda _, other: Wire(cluster, self, other),
            ask_controller=self.ask_controller,
            broker_epoch=lambda: self.epoch,
            setting={**DEFAULTS, **settings}.__getitem__,
        )
        moves = Moves(self.directories, random.Random(1), 1)
        self.replicas = Replicas(
            *(broker_id, self.directories, self.config.topic_settings, self.dirty, self.spawn, lambda topic: Traffic()),
            *(lambda log, error: None, moves, lambda: NOW_MS, self.neighbours),
        )
        sessions = FetchSessions(100, 120.0, random.Random(broker_id), loop.time)
        self.node = SimpleNamespace(
            replicas=self.replicas,
            fetch_sessions=sessions,
            charging=None,
            loop=asyncio.get_running_loop(),
            fetch_bytes_max=1 << 20,
            config={"replica.selector.class": cluster.selector},
        )

    async def start(self) -> None:
        self.directories.open("cluster")
        await self.directories.load(lambda topic: self.cluster.log_settings(self))

    def spawn(self, work: Any) -> asyncio.Task[Any]:
        task: asyncio.Task[Any] = asyncio.ensure_future(work)
        self.tasks.add(task)
        task.add_done_callback(self.tasks.discard)
        return task

    def dirty(self, partition: Partition) -> None:
        asyncio.get_running_loop().call_soon(self._write, partition)

    def _write(self, partition: Partition) -> None:
        if not self.is_dead:
            partition.write()

    async def ask_controller(self, request: AlterPartitionRequest) -> AlterPartitionResponse:
        return await self.cluster.controller(request)

    async def answer(self, request: Any, version: int = 0) -> Any:
        version = version or VERSIONS.get(type(request), 11)
        ctx: Any = SimpleNamespace(
            node=self.node,
            version=version,
            comes_behind=False,
            replicas=self.replicas,
            image=self.image,
            listener="PLAINTEXT",
            connection=SimpleNamespace(is_exempt=False),
        )
        if isinstance(request, ListOffsetsRequest):
            return await list_offsets(request, ctx)
        if isinstance(request, DeleteRecordsRequest):
            return await delete_records(request, ctx)
        response = await fetch(request, ctx)
        for topic in response.responses:
            for part in topic.partitions:
                part.records = part.records.read() if isinstance(part.records, Slice) else part.records
        return response

    async def see(self, image: Image | None = None) -> None:
        """Hear of the cluster's picture, as it is now."""
        image = image or self.cluster.image
        delta = difference(self.image, image)
        self.image = image
        await self.replicas.apply(image, delta)

    @property
    def partition(self) -> Partition:
        return self.replicas.find(TOPIC, 0)

    def produce(self, *values: bytes, index: int = 0) -> Appended:
        data = build([Record(timestamp=NOW_MS, value=value) for value in values])
        partition = self.replicas.find(TOPIC, index)
        return partition.append(memoryview(bytearray(data)), NOW_MS, Origin.CLIENT, Owner())

    async def write(self, *values: bytes, seconds: float = 60.0) -> int:
        """Produce with acks=all: the first offset."""
        partition = self.partition
        appended = self.produce(*values)
        await partition.acknowledged(appended.last_offset + 1, seconds, partition.high_watermark)
        return appended.first_offset

    async def records(self, upto: int | None = None) -> list[tuple[int, bytes]]:
        """All that lies in the log, batch by batch: offset and bytes."""
        log = self.partition.log
        end, offset, found = log.end_offset if upto is None else upto, log.start_offset, []
        while offset < end:
            located = await log.read(offset, 1, log.end_offset)
            data = located.read()
            if not data:
                break
            base, delta = int.from_bytes(data[:8], "big"), int.from_bytes(data[23:27], "big")
            if base < end:
                found.append((base, bytes(data)))
            offset = base + delta + 1
        return found

    async def stop(self) -> None:
        await self.replicas.stop()
        self.directories.note(self.replicas.watermarks())
        await self.directories.close(self.epoch)
        self.die()

    def die(self) -> None:
        self.is_dead = True
        for fetcher in self.replicas.fetchers.by_leader.values():
            fetcher._task.cancel()
        for task in [*self.serving, *self.tasks]:
            task.cancel()


class Cluster:
    """The controller's half: one picture. Brokers hear of it when the test says so, or at once (`tell`)."""

    def __init__(self, *, selector: str = "", topic: dict[str, str] | None = None, **settings: int) -> None:
        self.brokers: dict[int, Broker] = {}
        self.disks: dict[int, SimDisk] = {}
        self.settings = {name.replace("_", "."): value for name, value in settings.items()}
        self.topic = topic or {}
        self.selector = selector
        self.image = Image()
        self.replay(r.FeatureLevelRecord(name="metadata.version", feature_level=SERVED["metadata.version"][1]))
        self.cut: set[tuple[int, int]] = set()
        self.lost = 0.0
        self.controller_s = self.line_s = 0.002
        self.rng = random.Random(7)
        self.asked: list[AlterPartitionRequest] = []
        self.refusals: list[Callable[[AlterPartitionRequest], AlterPartitionResponse]] = []
        self.after: Callable[[], Awaitable[None]] = self.tell
        self._epoch = 100

    def next_epoch(self) -> int:
        self._epoch += 1
        return self._epoch

    def log_settings(self, broker: Broker) -> LogSettings:
        return LogSettings.of(broker.config.topic_settings(self.topic))

    def reaches(self, asker: int, asked: int) -> bool:
        return (asker, asked) not in self.cut and (asked, asker) not in self.cut

    def loses_answer(self, asker: int, asked: int) -> bool:
        return not self.reaches(asker, asked) or self.rng.random() < self.lost

    # --- brokers

    async def start(self, *ids: int, racks: dict[int, str] | None = None) -> None:
        for broker_id in ids:
            disk = self.disks.setdefault(broker_id, SimDisk())
            broker = self.brokers[broker_id] = Broker(self, broker_id, disk, self.settings)
            await broker.start()
            rack = (racks or {}).get(broker_id)
            self.replay(
                r.RegisterBrokerRecord(
                    broker_id=broker_id, incarnation_id=bytes(16), broker_epoch=broker.epoch, rack=rack, fenced=False
                )
            )

    def kill(self, broker_id: int, loss: Loss | None = None) -> None:
        """The process dies; with a loss the machine does, and takes what was not synced."""
        broker = self.brokers.pop(broker_id)
        broker.die()
        self.disks[broker_id] = broker.disk.outlive() if loss is None else broker.disk.crash(self.rng, loss)

    def fence(self, broker_id: int) -> None:
        epoch = self.image.brokers[broker_id].epoch
        self.replay(r.BrokerRegistrationChangeRecord(broker_id=broker_id, broker_epoch=epoch, fenced=1))

    # --- the picture

    def replay(self, *batch: Any) -> None:
        self.image, _ = replay(self.image, batch, self.image.offset + 1, 1)

    def create(
        self, replicas: list[int], topic_id: bytes = TOPIC_ID, count: int = 1, isr: list[int] | None = None
    ) -> None:
        configs = [
            r.ConfigRecord(resource_type=2, resource_name=TOPIC, name=name, value=value)
            for name, value in self.topic.items()
        ]
        partitions = [
            r.PartitionRecord(
                partition_id=index,
                topic_id=topic_id,
                replicas=replicas,
                isr=isr or replicas,
                leader=(isr or replicas)[0],
                leader_epoch=0,
                partition_epoch=0,
            )
            for index in range(count)
        ]
        self.replay(r.TopicRecord(name=TOPIC, topic_id=topic_id), *configs, *partitions)

    def change(self, index: int = 0, **what: Any) -> None:
        topic_id = self.image.topic(TOPIC).id  # type: ignore[union-attr]
        self.replay(r.PartitionChangeRecord(partition_id=index, topic_id=topic_id, **what))

    @property
    def assignment(self) -> Assignment:
        topic = self.image.topic(TOPIC)
        assert topic is not None
        return topic.partitions[0]

    async def elect(self, leader: int, *isr: int) -> None:
        self.change(leader=leader, isr=list(isr) or list(self.assignment.isr))
        await self.tell()

    async def tell(self) -> None:
        for broker in list(self.brokers.values()):
            await broker.see()

    async def controller(self, request: AlterPartitionRequest) -> AlterPartitionResponse:
        self.asked.append(request)
        await asyncio.sleep(self.rng.random() * self.controller_s)
        if self.refusals:
            return self.refusals.pop(0)(request)
        decision = alter_partition(self.image, request, Rules())
        if decision.records:
            self.replay(*(record for record, _ in decision.records))
            await self.after()
            await asyncio.sleep(self.rng.random() * self.controller_s)
        if self.rng.random() < self.lost:
            raise ConnectionError("the controller's answer was lost")
        return decision.reply

    @property
    def leader(self) -> Broker:
        return self.brokers[self.assignment.leader]


def difference(old: Image, new: Image) -> Delta:
    """What a broker hears that slept from one picture to the other."""
    delta = Delta.everything(new)
    delta.deleted = {topic.id: topic for topic in old.topics.values() if topic.id not in new.topics}
    return delta


async def until(is_so: Callable[[], bool], seconds: float = 60.0) -> None:
    """Time is virtual: whoever waits in vain is told soon."""
    deadline = asyncio.get_running_loop().time() + seconds
    while not is_so():
        assert asyncio.get_running_loop().time() < deadline, "it never came to pass"
        await asyncio.sleep(0.005)


def told(response: FetchResponse) -> Any:
    return response.responses[0].partitions[0]
