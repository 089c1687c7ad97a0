"""One unmodified node, its clients and its misfortunes, all out of one seed.

Machines: `n1` runs the node; `safe` and `plain` produce, idempotently and with acks=all; `reader` polls everything it was
assigned, all the time; `admin` makes, changes and deletes topics. Topics:

    safe    flush.messages=1: what is acknowledged survives a power cut
    plain   Kafka's default: what is acknowledged survives a kill -9
    short   small segments and retention.bytes: the start of the log moves
    t0..t2  made, written to, altered and deleted, again and again under the same names

`play(seed)` gives a Story: the anomalies, which are to be none, and figures. `python tests/sim/one_node.py 1 2 3` prints them.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import random
import sys
from collections import Counter
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field
from typing import Any

from ottla.client.admin import Admin
from ottla.client.cluster import EARLIEST, LATEST, Cluster, NoTopic, TopicPartition
from ottla.client.connection import Lost
from ottla.client.consumer import Consumer
from ottla.client.producer import NOT_WRITTEN, Producer
from ottla.metadata.image import TOPIC
from ottla.sim.checks import ABSENT, Anomaly, History, Registry, Send, TopicState
from ottla.sim.cluster import DATA, Machine, SimCluster
from ottla.sim.disk import UNLIMITED, Loss
from ottla.sim.loop import SimLoop, run
from ottla.wire.compression import Codec
from ottla.wire.errors import Error, KafkaError
from ottla.wire.messages.transactions import InitProducerIdRequest

NODE = "n1"
LIMIT_S = 300.0
PATIENCE_S = 250.0
SETTINGS = {
    "log.initial.task.delay.ms": "100",
    "log.retention.check.interval.ms": "700",
    "log.flush.offset.checkpoint.interval.ms": "900",
    "metadata.log.max.record.bytes.between.snapshots": "3000",
    "metadata.log.segment.bytes": "8388608",
}
SAFE = [TopicPartition("safe", 0), TopicPartition("safe", 1)]
PLAIN = TopicPartition("plain", 0)
SHORT = TopicPartition("short", 0)
TOPICS: dict[str, TopicState] = {
    "safe": TopicState(2, (("flush.messages", "1"), ("internal.segment.bytes", "3000"), ("retention.ms", "-1"))),
    "plain": TopicState(1, (("flush.ms", "2500"), ("internal.segment.bytes", "9000"), ("retention.ms", "-1"))),
    "short": TopicState(
        1,
        (
            ("file.delete.delay.ms", "500"),
            ("internal.segment.bytes", "1200"),
            ("retention.bytes", "3000"),
            ("retention.ms", "-1"),
            ("segment.ms", "1500"),
        ),
    ),
}
VALUE_BYTES_MAX = 1400
MESSAGE_BYTES_MAX = 2000


@dataclass
class Story:
    """How one seed went."""

    seed: int | str
    trace: str = ""
    anomalies: list[Anomaly] = field(default_factory=list)
    faults: Counter[str] = field(default_factory=Counter)
    simulated_s: float = 0.0
    acked: int = 0
    polled: int = 0
    restarts: int = 0


def play(seed: int | str, rounds: int = 7) -> Story:
    """One history. Whatever nobody caught, and a cluster that never gets well again, are raised as errors."""
    play_ = Play(seed, rounds)

    async def main(loop: SimLoop) -> Story:
        return await play_.run(loop)

    return run(seed, main, limit_s=LIMIT_S)


class Play:
    def __init__(self, seed: int | str, rounds: int) -> None:
        self.story = Story(seed)
        self.rounds = rounds
        self.history = History()
        self.registry = Registry()
        self.finishing = self.finished = False
        self.lost_power = False
        self.disk_trouble = False
        self.floors: dict[TopicPartition, int] = {}

    def begin(self, loop: SimLoop) -> None:
        self.loop = loop
        self.cluster = SimCluster(loop)
        self.cluster.on_ready, self.cluster.on_fall = self.note_ready, self.note_fall
        directories = loop.chance("directories").choice((DATA, DATA, f"{DATA}/one,{DATA}/two"))
        self.machine = self.cluster.add(NODE, {**SETTINGS, "log.dirs": directories})

    async def run(self, loop: SimLoop) -> Story:
        self.begin(loop)
        self.cluster.boot(NODE)
        await self.until_ready()
        await self.cluster.client("admin", Administrator(self).make_topics())
        admin = self.cluster.client("admin", Administrator(self).run())
        writers = [
            self.cluster.client("safe", Writer(self, "safe", SAFE).run()),
            self.cluster.client("plain", Writer(self, "plain", [PLAIN, SHORT]).run()),
        ]
        reader = self.cluster.client("reader", Reader(self).run())
        await Nemesis(self).run()
        self.finishing = True
        for task in (*writers, admin):
            await task
        await self.cluster.client("judge", self.final_sends())
        ends = await self.cluster.client("judge", self.final_reads())
        self.finished = True
        self.ends = ends
        await reader
        await self.cluster.client("judge", self.close_books())
        await self.stop_and_look_again(ends)
        return self.tell()

    def tell(self) -> Story:
        story, loop = self.story, self.loop
        story.anomalies = [*self.history.anomalies, *self.registry.found]
        story.acked, story.polled = self.history.acked, self.history.polled
        story.simulated_s, story.trace = loop.time(), loop.trace()
        return story

    # -- what restarts find

    def note_fall(self, machine: Machine) -> None:
        node = machine.node
        self.lost_power |= machine.loss is not None
        if machine.is_ready and node is not None:
            for partition in node.replicas.all():
                self.floors[TopicPartition(partition.topic, partition.index)] = partition.log.synced_end

    def note_ready(self, machine: Machine) -> None:
        node = machine.node
        assert node is not None
        self.story.restarts += 1
        for partition in node.replicas.all():
            where, log = TopicPartition(partition.topic, partition.index), partition.log
            if where in self.history.books:
                floor = self.floors.get(where, 0) if where.topic in TOPICS else 0
                self.history.restarted(
                    where, log.end_offset, lost_power=self.lost_power, floor=floor, epoch=partition.leader_epoch
                )
        self.floors.clear()
        self.lost_power = False
        image = node.quorum.image
        self.registry.compare(
            {
                topic.name: (topic.id, _state(len(topic.partitions), image.configs(TOPIC, topic.name)))
                for topic in image.topics.values()
            }
        )

    async def until_ready(self) -> bool:
        """Wait for the process to serve, or to end."""
        while self.cluster.is_up(NODE) and not self.machine.is_ready:
            await asyncio.sleep(0.01)
        return self.machine.is_ready

    # -- clients

    def client(self, name: str) -> Cluster:
        return Cluster(
            self.cluster.bootstrap,
            client_id=name,
            budget_s=PATIENCE_S,
            now_ms=lambda: self.cluster.worlds.now_ms(name),
            rng=self.loop.chance("client", name),
        )

    async def final_sends(self) -> None:
        """After everything has healed, every partition takes records."""
        cluster = self.client("judge")
        producer = Producer(cluster, delivery_s=PATIENCE_S)
        for where in (*SAFE, PLAIN, SHORT):
            value = f"judge/{where.topic}/{where.partition}".encode()
            send = self.history.send("judge", where, value)
            sent = await producer.send(where.topic, value=value, partition=where.partition)
            self.history.ack(where, send, sent.offset)
        await producer.flush()
        cluster.close()

    async def final_reads(self) -> dict[TopicPartition, tuple[int, int]]:
        cluster = self.client("judge")
        wanted = (*SAFE, PLAIN, SHORT)
        starts = await cluster.list_offsets(dict.fromkeys(wanted, EARLIEST))
        ends = await cluster.list_offsets(dict.fromkeys(wanted, LATEST))
        cluster.close()
        return {where: (starts[where].offset, ends[where].offset) for where in wanted}

    async def close_books(self) -> None:
        cluster = self.client("judge")
        watched = ["reader"] if self.rounds else []
        for where in self.ends:
            start, records = await read_all(cluster, where, self)
            self.history.books[where].close(start, records, watched)
        admin = Admin(cluster)
        seen = {}
        for topic in await cluster.retrying(admin.describe_topics):
            configs = await cluster.retrying(lambda name=topic.name: admin.configs(name))  # type: ignore[misc]
            chosen = {s.name: s.value or "" for s in configs if s.source == "topic"}
            seen[topic.name] = (topic.topic_id, _state(len(topic.partitions), chosen))
        self.registry.compare(seen)
        cluster.close()

    async def stop_and_look_again(self, ends: dict[TopicPartition, tuple[int, int]]) -> None:
        """A clean stop leaves nothing to a power cut, and nothing to repair."""
        self.machine.tell_to_stop()
        while self.cluster.is_up(NODE):
            await asyncio.sleep(0.01)
        self.cluster.cut_power(NODE, Loss.LOST)
        self.cluster.boot(NODE)
        if not await self.until_ready():
            self.history.report("will-not-start", NODE, repr(self.machine.exit))
            return
        assert self.machine.node is not None
        for directory in self.machine.node.directories.all:
            loading = directory.loading
            if not loading.clean or loading.repaired or loading.truncated_bytes or loading.scanned_bytes:
                self.history.report("unclean-stop", NODE, f"after a clean stop: {loading}")


class Script(Play):
    """A short fixed story whose first process is killed at its disk call number `call`, from the very first one on."""

    def __init__(self, call: int, loss: Loss | None) -> None:
        super().__init__(f"script/{call}/{loss}", 0)
        self.call, self.loss = call, loss
        self.calls = 0

    async def run(self, loop: SimLoop) -> Story:
        self.begin(loop)
        self.cluster.boot(NODE)
        self.cluster.kill_at_call(NODE, self.call, self.loss)
        first = self.machine.disk
        admin = self.cluster.client("admin", Administrator(self).script())
        while not admin.done():
            await asyncio.sleep(0.01)
            self.calls = max(self.calls, first.calls)
            if not self.cluster.is_up(NODE):
                self.cluster.boot(NODE)
        await admin
        self.ends = await self.cluster.client("judge", self.final_reads())
        await self.cluster.client("judge", self.close_books())
        await self.crash_again()
        return self.tell()

    async def crash_again(self) -> None:
        """What was repaired once is in order: the next start finds nothing to cut."""
        self.cluster.kill(NODE)
        self.cluster.boot(NODE)
        await self.until_ready()
        assert self.machine.node is not None
        for directory in self.machine.node.directories.all:
            if directory.loading.truncated_bytes:
                self.history.report("repaired-twice", NODE, str(directory.loading))


def cut_at(call: int, loss: Loss | None) -> tuple[Story, int]:
    """The script with a cut at one call, and how many disk calls its first process made."""
    script = Script(call, loss)
    return run(script.story.seed, script.run, limit_s=LIMIT_S), script.calls


def _state(partitions: int, configs: Any) -> TopicState:
    return TopicState(partitions, tuple(sorted(configs.items())))


async def read_all(cluster: Cluster, where: TopicPartition, play: Play | Any) -> tuple[int, list[tuple[int, bytes]]]:
    """A partition from its start to its end, as a new consumer reads it; again if its start moves meanwhile."""
    while True:
        start = (await cluster.list_offsets({where: EARLIEST}))[where].offset
        end = (await cluster.list_offsets({where: LATEST}))[where].offset
        consumer = Watchful(play, cluster, {where: start}, ends={where: end})
        try:
            return start, [(record.offset, record.value or b"") async for record in consumer]
        except KafkaError as error:
            if error.error is not Error.OFFSET_OUT_OF_RANGE:
                raise


class Watchful(Consumer):
    """A consumer that does not forgive a damaged batch."""

    def __init__(self, play: Play, *args: Any, **options: Any) -> None:
        super().__init__(*args, **options)
        self._play = play

    async def _survive(self, error: KafkaError | OSError) -> None:
        if isinstance(error, KafkaError) and error.error in (Error.CORRUPT_MESSAGE, Error.UNKNOWN_SERVER_ERROR):
            self._play.history.report("damaged", "", str(error))
            raise error
        await super()._survive(error)


class Writer:
    """Sends small batches to its partitions, and writes down what became of each record."""

    def __init__(self, play: Play, name: str, wheres: list[TopicPartition]) -> None:
        self.play, self.name, self.wheres = play, name, wheres
        self.rng = play.loop.chance("writer", name)
        self.counts: Counter[TopicPartition] = Counter()

    async def run(self) -> None:
        cluster = self.play.client(self.name)
        await cluster.retrying(cluster.any)
        delivery_s, codec = self.rng.choice((3.0, 30.0, PATIENCE_S)), self.rng.choice((*[Codec.NONE] * 4, *Codec))
        producer = Producer(cluster, delivery_s=delivery_s, linger_ms=2, codec=codec)
        while not self.play.finishing:
            where = self.rng.choice(self.wheres)
            await asyncio.gather(*[await self.post(producer, where) for _ in range(self.rng.randint(1, 4))])
            await asyncio.sleep(self.rng.expovariate(1 / 0.08))
        await producer.flush()
        cluster.close()

    async def post(self, producer: Producer, where: TopicPartition) -> Awaitable[None]:
        play = self.play
        self.counts[where] += 1
        size = self.rng.choice((0, 10, 60, 200, VALUE_BYTES_MAX, VALUE_BYTES_MAX))
        value = f"{self.name}/{where.topic}/{where.partition}/{self.counts[where]}/".encode() + b"." * size
        send = play.history.send(self.name, where, value)
        future = await producer.post(where.topic, value, partition=where.partition)
        return self.settle(where, send, future)

    async def settle(self, where: TopicPartition, send: Send, future: Awaitable[Any]) -> None:
        try:
            sent = await future
        except KafkaError as error:
            if error.error in NOT_WRITTEN:
                self.play.history.refuse(send)
        except OSError:
            pass
        else:
            self.play.history.ack(where, send, sent.offset)


class Reader:
    """Polls what it was assigned until it has seen the end of everything."""

    def __init__(self, play: Play) -> None:
        self.play = play

    async def run(self) -> None:
        play = self.play
        cluster = play.client("reader")
        await cluster.retrying(cluster.any)
        wheres = (*SAFE, PLAIN, SHORT)
        consumer = Watchful(play, cluster, dict.fromkeys(wheres, EARLIEST), wait_ms=250)
        while not (play.finished and all(consumer.positions[w] >= play.ends[w][1] for w in wheres)):
            began = play.history.moment()
            try:
                records = await consumer.fetch()
            except KafkaError as error:
                if error.error is not Error.OFFSET_OUT_OF_RANGE:
                    raise
                await self.find_back(cluster, consumer)
                continue
            for where in wheres:
                mine = [(r.offset, r.value or b"") for r in records if (r.topic, r.partition) == where]
                play.history.poll("reader", where, mine, began)
        consumer.close()
        cluster.close()

    async def find_back(self, cluster: Cluster, consumer: Consumer) -> None:
        """A log that lost its tail, or whose start moved: begin again at its start."""
        for where, position in list(consumer.positions.items()):
            start = (await cluster.list_offsets({where: EARLIEST}))[where].offset
            end = (await cluster.list_offsets({where: LATEST}))[where].offset
            if position >= 0 and not start <= position <= end:
                if where in SAFE:
                    self.play.history.report("lost-write", where.topic, f"{position} is not within {start}..{end}")
                self.play.history.seek("reader", where)
                consumer.positions[where] = EARLIEST


class Administrator:
    """Makes topics, writes a little, changes settings, deletes; each change is repeated until its outcome is known."""

    def __init__(self, play: Play) -> None:
        self.play = play
        self.rng = play.loop.chance("administrator")
        self.made = 0

    async def connect(self) -> None:
        self.cluster = self.play.client("admin")
        self.admin = Admin(self.cluster)
        await self.cluster.retrying(self.cluster.any)

    async def make_topics(self) -> None:
        await self.connect()
        for name, state in TOPICS.items():
            await self.create(name, state)
        self.cluster.close()

    async def run(self) -> None:
        await self.connect()
        while not self.play.finishing:
            changes = (self.make_or_delete, self.make_or_delete, self.alter, self.identify, self.trim, self.widen)
            await self.rng.choice(changes)()
            await asyncio.sleep(self.rng.expovariate(1 / 0.25))
        self.cluster.close()

    async def script(self) -> None:
        """A little of everything, always in the same order."""
        await self.make_topics()
        await self.connect()
        producer = Producer(self.cluster, delivery_s=PATIENCE_S)
        for number in range(12):
            for where in (SAFE[number % 2], PLAIN, SHORT):
                size = VALUE_BYTES_MAX if number % 3 == 0 and where != SHORT else 100
                await self.send(producer, where, f"admin/{where.topic}/{number}/".encode() + b"." * size)
            if number % 4 == 1:
                await self.make("t0")
                await self.identify()
            elif number % 4 == 3:
                await self.look_and_delete("t0")
                await self.alter()
            await asyncio.sleep(0.25)  # for upkeep to come in between
        await producer.flush()
        self.cluster.close()

    async def certain(self, name: str, state: TopicState | None, step: Callable[[], Awaitable[Any]]) -> None:
        """Do it until it is known to be done."""
        registry = self.play.registry
        registry.changing(name, state)
        await self.cluster.retrying(step)
        registry.changed(name)

    async def make_or_delete(self) -> None:
        name = f"t{self.rng.randrange(3)}"
        if self.play.registry.state(name) is ABSENT:
            await self.make(name)
        else:
            await self.look_and_delete(name)

    async def create(self, name: str, state: TopicState) -> None:
        async def step() -> None:
            try:
                await self.admin.create_topic(name, partitions=state.partitions, configs=dict(state.configs))
            except KafkaError as error:
                if error.error is not Error.TOPIC_ALREADY_EXISTS:
                    raise

        await self.certain(name, state, step)
        for index in range(state.partitions):
            self.play.history.open(TopicPartition(name, index), durable=name not in ("plain", "short"))
        self.cluster.forget(name)

    async def make(self, name: str) -> None:
        self.made += 1
        state = TopicState(1, (("flush.messages", "1"), ("max.message.bytes", str(MESSAGE_BYTES_MAX + self.made))))
        await self.create(name, state)
        where = TopicPartition(name, 0)
        producer = Producer(self.cluster, delivery_s=PATIENCE_S)
        for number in range(self.rng.randrange(4)):
            await self.send(producer, where, f"admin/{name}/{self.made}/{number}/".encode())
        await self.send(producer, where, f"admin/{name}/{self.made}/big/".encode() + bytes(4000))
        await producer.flush()

    async def send(self, producer: Producer, where: TopicPartition, value: bytes) -> None:
        send = self.play.history.send("admin", where, value)
        try:
            sent = await producer.send(where.topic, value=value, partition=where.partition)
        except KafkaError as error:
            if error.error in NOT_WRITTEN:
                self.play.history.refuse(send)
        except Lost:
            pass
        else:
            self.play.history.ack(where, send, sent.offset)

    async def look_and_delete(self, name: str) -> None:
        where = TopicPartition(name, 0)
        start, records = await read_all(self.cluster, where, self.play)
        self.play.history.books[where].close(start, records, [])
        if start:
            self.play.history.report("lost-write", name, f"starts at {start}")

        async def step() -> None:
            with contextlib.suppress(NoTopic):
                await self.admin.delete_topic(name)

        found = self.play.history.books.pop(where).found
        self.play.history.other += found
        await self.certain(name, ABSENT, step)

    async def alter(self) -> None:
        before = self.play.registry.state("short")
        assert before is not ABSENT
        put = {"retention.bytes": str(self.rng.choice((2000, 3000, 5000)))}
        state = TopicState(1, tuple(sorted({**dict(before.configs), **put}.items())))
        await self.certain("short", state, lambda: self.admin.alter_configs("short", put=put))

    async def trim(self) -> None:
        """DeleteRecords. As in Apache Kafka its answer does not promise that the new start survives a crash."""
        start = (await self.cluster.list_offsets({SHORT: EARLIEST}))[SHORT].offset
        end = (await self.cluster.list_offsets({SHORT: LATEST}))[SHORT].offset
        with contextlib.suppress(KafkaError, OSError):
            await self.admin.delete_records({SHORT: self.rng.randint(start, end)})

    async def widen(self) -> None:
        """One partition more for a topic that has few."""
        made = [name for name in ("t0", "t1", "t2") if self.play.registry.state(name) is not ABSENT]
        if not made:
            return
        name = self.rng.choice(made)
        before = self.play.registry.state(name)
        assert before is not ABSENT

        async def step() -> None:
            try:
                await self.admin.create_partitions(name, before.partitions + 1)
            except KafkaError as error:
                if error.error is not Error.INVALID_PARTITIONS:
                    raise

        await self.certain(name, before._replace(partitions=before.partitions + 1), step)

    async def identify(self) -> None:
        """Ask for a producer id. An answer that was lost is an id that nobody uses."""
        request = InitProducerIdRequest(transactional_id=None, transaction_timeout_ms=60000)
        try:
            response = await (await self.cluster.any()).request(request, version=5)
        except (Lost, OSError):
            return
        if not response.error_code:
            self.play.registry.gave(response.producer_id)


class Nemesis:
    """One misfortune after the other, some of them overlapping; at the end everything is put right."""

    def __init__(self, play: Play) -> None:
        self.play = play
        self.cluster, self.loop, self.machine = play.cluster, play.loop, play.machine
        self.rng: random.Random = play.loop.chance("nemesis")
        self.faults = play.story.faults

    async def run(self) -> None:
        kinds = [
            *(self.kill, self.kill, self.kill, self.kill_at_call, self.kill_at_call, self.kill_at_call),
            *(self.clean_restart, self.reset, self.stall, self.pause_node, self.pause_client, self.clock),
            *(self.lost_answers, self.slow_disk, self.full_disk, self.sync_error, self.metadata_sync_error),
        ]
        for _ in range(self.play.rounds):
            await asyncio.sleep(self.rng.expovariate(1 / 0.4))
            kind = self.rng.choice(kinds)
            await kind()
            if not self.cluster.is_up(NODE):
                await self.restart()
        await self.put_right()

    def count(self, kind: str) -> None:
        self.faults[kind] += 1
        self.loop.note("fault", kind)

    def loss(self) -> Loss | None:
        return self.rng.choice((None, None, Loss.LOST, Loss.SUBSET, Loss.TORN, Loss.TORN))

    async def restart(self) -> None:
        """Boot until it serves. It may be killed while it starts; without a fault of the disk it must start."""
        while True:
            await asyncio.sleep(self.rng.choice((0.0, 0.05, 0.5)))
            self.cluster.boot(NODE)
            if self.rng.random() < 0.2:
                loss = self.loss()
                self.count(f"kill while starting, {_text(loss)}")
                self.cluster.kill_at_call(NODE, self.rng.randint(1, 60), loss)
            if await self.play.until_ready():
                self.machine.disk.stop_at = None
                return
            if self.machine.exit is not None:
                self.play.history.report("will-not-start", NODE, repr(self.machine.exit))
                return

    # -- ends of the process

    async def kill(self) -> None:
        loss = self.loss()
        self.count(f"kill, {_text(loss)}")
        self.cluster.kill(NODE, loss)

    async def kill_at_call(self) -> None:
        """In the middle of a step of the loop; if the node has nothing to do with its disk, a little later."""
        loss = self.loss()
        self.count(f"kill at a disk call, {_text(loss)}")
        self.cluster.kill_at_call(NODE, self.rng.randint(1, 40), loss)
        for _ in range(100):
            if not self.cluster.is_up(NODE):
                return
            await asyncio.sleep(0.02)
        self.cluster.kill(NODE, loss)

    async def clean_restart(self) -> None:
        self.count("clean stop")
        self.machine.tell_to_stop()
        while self.cluster.is_up(NODE):
            await asyncio.sleep(0.01)
        if self.rng.random() < 0.5:
            self.count("power cut after a clean stop")
            self.cluster.cut_power(NODE, self.rng.choice(list(Loss)))

    # -- network and time

    def somebody(self) -> str:
        return self.rng.choice(("safe", "plain", "reader", "admin"))

    async def reset(self) -> None:
        self.count("connection reset")
        self.loop.network.reset(NODE, self.somebody())

    async def stall(self) -> None:
        self.count("stall")
        ends = [NODE, self.somebody()]
        self.rng.shuffle(ends)
        self.loop.network.stall(*ends, self.rng.uniform(0.05, 2.0))

    async def lost_answers(self) -> None:
        """Requests arrive, their answers do not; by the time they are repeated the node's clock is wrong."""
        self.count("answers lost, clock set back")
        name = self.rng.choice(("safe", "plain"))
        self.loop.network.cut(NODE, name)
        await asyncio.sleep(self.rng.uniform(0.1, 0.5))
        self.cluster.worlds.jump(NODE, -7_200_000)
        self.loop.network.reset(NODE, name)
        self.loop.network.heal(NODE, name)
        await asyncio.sleep(self.rng.uniform(0.1, 0.5))
        self.cluster.worlds.jump(NODE, 7_200_000)

    async def pause_node(self) -> None:
        self.count("node paused")
        self.loop.pause(NODE)
        await asyncio.sleep(self.rng.uniform(0.1, 3.0))
        self.loop.resume(NODE)

    async def pause_client(self) -> None:
        self.count("client paused")
        name = self.somebody()
        self.loop.pause(name)
        await asyncio.sleep(self.rng.uniform(0.1, 1.0))
        self.loop.resume(name)

    async def clock(self) -> None:
        self.count("clock jump")
        self.cluster.worlds.jump(NODE, self.rng.choice((-7_200_000, -3_600_000, -1000, 1000, 3_600_000)))

    # -- the disk

    async def slow_disk(self) -> None:
        self.count("slow disk")
        disk, before = self.machine.disk, self.machine.disk.latency_s
        disk.latency_s = self.rng.choice((0.05, 0.5))
        await asyncio.sleep(self.rng.uniform(0.2, 2.0))
        disk.latency_s = before
        if self.rng.random() < 0.4:
            await self.kill()

    async def full_disk(self) -> None:
        self.count("full disk")
        disk = self.machine.disk
        disk.capacity = disk.used + self.rng.choice((0, 100, 2000, 20_000))
        await asyncio.sleep(self.rng.uniform(0.2, 1.5))
        disk.capacity = UNLIMITED
        if self.rng.random() < 0.4:
            await self.kill()

    async def sync_error(self) -> None:
        """The partition refuses from then on; the node goes on, and only a restart brings the partition back."""
        self.count("fsync error of a log")
        disk, where = self.machine.disk, self.rng.choice((*SAFE, PLAIN, SHORT))
        disk.failing_syncs = lambda path: f"/{where.topic}-{where.partition}/" in path
        await asyncio.sleep(self.rng.uniform(0.2, 1.5))
        disk.failing_syncs = None
        if not self.cluster.is_up(NODE):
            self.play.history.report("fsync-error-spreads", NODE, f"the node ended: {self.machine.exit!r}")
        await self.kill()

    async def metadata_sync_error(self) -> None:
        """The node must end."""
        disk = self.machine.disk
        failed = False

        def fails(path: str) -> bool:
            nonlocal failed
            hit = "/__cluster_metadata-0/" in path and path.endswith(".log")
            failed |= hit
            return hit

        disk.failing_syncs = fails
        await asyncio.sleep(self.rng.uniform(0.2, 1.5))
        disk.failing_syncs = None
        await asyncio.sleep(0.5)
        if failed:
            self.count("fsync error of the metadata log")
            if self.cluster.is_up(NODE):
                self.play.history.report("fsync-error-ignored", NODE, "the metadata log failed, and the node goes on")
                await self.kill()

    async def put_right(self) -> None:
        """No more faults; a partition whose disk failed needs a new process."""
        self.loop.network.heal_all()
        self.cluster.worlds.jump(NODE, -(self.cluster.worlds.now_ms(NODE) - self.cluster.worlds.now_ms("judge")))
        self.machine.disk.capacity, self.machine.disk.failing_syncs = UNLIMITED, None
        self.machine.disk.stop_at = None
        if not self.cluster.is_up(NODE):
            await self.restart()
        assert self.machine.node is not None
        if any(partition.log.failed for partition in self.machine.node.replicas.all()):
            self.cluster.kill(NODE)
            self.cluster.boot(NODE)
            await self.play.until_ready()


def _text(loss: Loss | None) -> str:
    return "nothing lost" if loss is None else f"power {loss.value}"


def main(seeds: list[str]) -> None:
    logging.disable(logging.CRITICAL)
    for seed in seeds:
        story = play(seed)
        print(seed, story.trace, story.acked, story.polled, story.restarts, sorted(story.faults.items()))
        for anomaly in story.anomalies:
            print("   ", *anomaly)


if __name__ == "__main__":
    main(sys.argv[1:])
