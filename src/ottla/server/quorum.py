"""Drives the metadata log of this node: decisions become records, records become pictures, pictures are published.

There are two pictures. `written` is replayed as soon as records are appended, and every decision reads it, so two
creates of one name cannot both pass. `image` is the committed one: its records are on the disk of a majority of voters,
which for one voter means that they are synced. Handlers, replicas and everybody else see only `image`.

`submit` decides, appends and replays without an await in between. What was submitted then waits for the disk together:
one sync serves everything appended before it began. After that, in the order of the log, each picture is given to the
listeners, becomes `image`, and only then its reply goes out: when a create is answered, the topic is usable here.

A decision without records is answered when all that it looked at is committed.

A failed append (a full disk, even without its ballast) refuses the one request. A failed sync is the end of the node:
nobody knows what the disk holds then, and `fatal` is called.

A start reads snapshot and log, begins an epoch, lets the broker of this node in, and publishes one picture with all of
that. A broker that was still unfenced in the log was killed: this process holds the lock on its directory, so nobody has
to wait until its session runs out.
"""

from __future__ import annotations

import asyncio
import logging
import socket
from collections import deque
from collections.abc import Awaitable, Callable, Iterable, Mapping
from dataclasses import dataclass, field, replace
from typing import Any, TypeVar

from ottla.config import BrokerConfig, validate_topic_configs
from ottla.config import Endpoint as Listener
from ottla.log.directories import Directories
from ottla.metadata import controller
from ottla.metadata.controller import Block, Decision, NewTopic, Registration, Rules
from ottla.metadata.decisions import RECORDS_PER_REQUEST_MAX, Versioned
from ottla.metadata.image import Delta, Endpoint, Image, Topic
from ottla.metadata.records import PartitionRecord
from ottla.raft.quorum import Address, QuorumState, Voter, VoterSet, leader_change
from ottla.server.metadata_store import Loaded, MetadataStore
from ottla.wire.errors import Error, KafkaError
from ottla.wire.messages.quorum import KRaftVersionRecord
from ottla.wire.schema import Message
from ottla.world import World

log = logging.getLogger("ottla.quorum")

T = TypeVar("T")
Follow = Callable[[Image, Image, Delta], Awaitable[None]]

# How long topics that nobody waits for are collected (the default of Apache's controller.quorum.append.linger.ms).
LINGER_S = 0.025

PROTOCOL_CODES = {"PLAINTEXT": 0, "SSL": 1, "SASL_PLAINTEXT": 2, "SASL_SSL": 3}


@dataclass(slots=True)
class Waiting:
    """Appended, but not committed yet."""

    end: int
    reply: Any
    answer: asyncio.Future[Any]
    steps: list[tuple[Image, Delta]] = field(default_factory=list)


class Quorum:
    def __init__(
        self, config: BrokerConfig, world: World, directories: Directories, fatal: Callable[[BaseException], None]
    ) -> None:
        self.image = self.written = Image()
        self.voters = VoterSet()
        self.broker_epoch = -1
        self.store: MetadataStore
        self._config = config
        self._world = world
        self._directories = directories
        self._fatal = fatal
        self._follow: list[Follow] = []
        self._waiting: deque[Waiting] = deque()
        self._committing: asyncio.Task[None] | None = None
        self._snapshotting: asyncio.Task[None] | None = None
        self._snapshot_timer: asyncio.TimerHandle | None = None
        self._ended: BaseException | None = None
        self._block: Block | None = None
        self._ids = range(0)
        self._refill: asyncio.Future[Block] | None = None
        self._to_create: dict[str, NewTopic] = {}
        self._ports: Mapping[str, int] = {}

    def listen(self, follow: Follow) -> None:
        """Await `follow(old, new, delta)` for every picture that becomes committed, in order."""
        self._follow.append(follow)

    @property
    def rules(self) -> Rules:
        config = self._config
        return Rules(
            partitions=config["num.partitions"],
            replication_factor=config["default.replication.factor"],
            min_insync_replicas=config["min.insync.replicas"],
            unclean_election=config["unclean.leader.election.enable"],
            check_topic_configs=lambda configs: validate_topic_configs(configs, broker=config),
        )

    # --- deciding

    async def propose(self, decide: Callable[[Image], Decision[T]]) -> T:
        """Decide now, and return the reply once its records are committed and everybody follows."""
        return await self.submit(decide)

    def submit(self, decide: Callable[[Image], Decision[T]]) -> asyncio.Future[T]:
        """The same in two halves: when this returns, the next decision sees this one; await it for the reply."""
        if self._ended is not None:
            raise KafkaError(Error.NOT_CONTROLLER, f"this controller has ended: {self._ended}")
        decision = decide(self.written)
        steps = self._append(decision.records)
        answer: asyncio.Future[T] = asyncio.get_running_loop().create_future()
        self._waiting.append(Waiting(self.store.end_offset, decision.reply, answer, steps))
        if self._committing is None:
            self._committing = asyncio.get_running_loop().create_task(self._commit())
        return answer

    def _append(self, records: list[Versioned]) -> list[tuple[Image, Delta]]:
        """Append and replay. Elections may need more records than a batch holds; nothing else does."""
        steps = []
        for start in range(0, len(records), RECORDS_PER_REQUEST_MAX):
            batch = records[start : start + RECORDS_PER_REQUEST_MAX]
            last = self._append_batch(batch)
            self.written, delta = self.written.replay([record for record, _ in batch], last, self.written.epoch)
            steps.append((self.written, delta))
        return steps

    def _append_batch(self, batch: list[Versioned]) -> int:
        if self._directories.is_full and any(isinstance(record, PartitionRecord) for record, _ in batch):
            raise KafkaError(Error.KAFKA_STORAGE_ERROR, "the disk is full: there is no room for new partitions")
        try:
            try:
                return self.store.append_records(batch, self.written.epoch)
            except (OSError, KafkaError) as error:
                if not self._directories.relieve(error):
                    raise
                return self.store.append_records(batch, self.written.epoch)
        except OSError as error:
            raise KafkaError(Error.KAFKA_STORAGE_ERROR, f"the metadata log could not be written: {error}") from error

    def create_soon(self, wanted: Iterable[NewTopic]) -> None:
        """Create topics that nobody waits for. Clients that start together ask together: one decision for all of them."""
        first = not self._to_create
        self._to_create.update((new.name, new) for new in wanted)
        if first and self._to_create:
            asyncio.get_running_loop().call_later(LINGER_S, self._create_wanted)

    def _create_wanted(self) -> None:
        wanted, self._to_create = list(self._to_create.values()), {}
        rng = self._world.random
        try:
            done = self.submit(lambda image: controller.create_topics(image, wanted, self.rules, rng))
        except KafkaError as error:
            log.warning("topics %s could not be created: %s", [new.name for new in wanted], error)
        else:
            done.add_done_callback(_tell_failures)

    async def producer_id(self) -> int:
        """The next id of this broker's block. Whoever finds it used up waits for the next one, together."""
        while not self._ids:
            refill = self._refill = self._refill or self.submit(self._next_ids)
            try:
                block = await refill
            finally:
                if self._refill is refill:
                    self._refill = None
            if block is not self._block:
                self._block, self._ids = block, range(block.first, block.first + block.size)
        taken, self._ids = self._ids[0], self._ids[1:]
        return taken

    def _next_ids(self, image: Image) -> Decision[Block]:
        return controller.next_producer_ids(image, self._config.node_id)

    # --- committing

    async def _commit(self) -> None:
        try:
            while self._waiting:
                if self._waiting[0].end > self.store.synced_end:
                    await self.store.flush()
                await self._publish(self._waiting[0])
                self._waiting.popleft()
        except Exception as error:
            self._end(error)  # which tells everybody whom it concerns
        finally:
            self._committing = None
        self._consider_snapshot()

    async def _publish(self, done: Waiting) -> None:
        for image, delta in done.steps:
            await self._show(image, delta)
        if not done.answer.done():
            done.answer.set_result(done.reply)

    async def _show(self, image: Image, delta: Delta) -> None:
        """Nobody is shown the inside of a metadata transaction."""
        if not image.in_transaction:
            for follow in self._follow:
                await follow(self.image, image, delta)
            self.image = image

    def _end(self, error: BaseException) -> None:
        """Nothing more can be committed: whoever waits is told, and so is the node."""
        self._ended = error
        refused = KafkaError(Error.NOT_CONTROLLER, f"this controller has ended: {error}")
        for waiting in self._waiting:
            if not waiting.answer.done():
                waiting.answer.set_exception(refused)
                waiting.answer.exception()
        self._waiting.clear()
        log.critical("metadata cannot be committed any more", exc_info=error)
        self._fatal(error)

    # --- starting

    async def start(self, ports: Mapping[str, int]) -> None:
        """Read what is there, lead, let this node's broker in. `ports` are those that the listeners really have."""
        self.store = MetadataStore(self._config, self._world, self._directories)
        self._ports = ports
        self.store.format(self._configured_voters(), 0 if self._config["controller.quorum.voters"] else 1)
        loaded = self.store.load()
        self._check_voters(loaded)
        self.written = loaded.image
        self._lead(loaded)
        self._decide_now(lambda image: controller.bootstrap(image, self.store.formatted_with(), self.rules))
        self._join()
        await self.store.flush()
        await self._show(self.written, Delta.everything(self.written))
        log.info("leading epoch %d of the metadata at offset %d", self.written.epoch, self.written.offset)

    def _configured_voters(self) -> VoterSet:
        """What the settings say about the quorum: its fixed members, or this node as the first."""
        fixed = VoterSet.of_setting(",".join(self._config["controller.quorum.voters"]))
        return fixed if fixed.voters else VoterSet((self._myself(),))

    def _myself(self) -> Voter:
        """As the settings have it: whoever gets this directory, Apache Kafka included, listens where they say."""
        endpoints = [_endpoint(e, e.port or self._ports.get(e.name, 0)) for e in self._config.controller_endpoints]
        addresses = tuple(Address(e.name, e.host, e.port) for e in endpoints)
        return Voter(self._config.node_id, self.store.directory_id, addresses)

    def _check_voters(self, loaded: Loaded) -> None:
        if loaded.kraft_version == 0:
            loaded.voters = self._configured_voters()
        if loaded.voters.ids != (self._config.node_id,):
            raise KafkaError(
                Error.INVALID_CONFIG,
                f"the metadata in {self.store.path} belongs to voters {list(loaded.voters.ids)}; this release runs a "
                f"quorum of one, and this node is {self._config.node_id}",
            )

    def _lead(self, loaded: Loaded) -> None:
        """Begin an epoch: first the promise on disk, then the record that says who leads."""
        me = self._config.node_id
        epoch = max(loaded.state.epoch, self.store.log.epochs.latest, loaded.image.epoch) + 1
        self.store.write_state(QuorumState(epoch=epoch, leader=me), loaded.kraft_version, loaded.voters)
        notes: list[Message] = [leader_change(me, loaded.voters, (me,))]
        if loaded.kraft_version >= 1 and loaded.voters_at < 0:
            # Only the format has named the voters so far. Afterwards the record stays as it is, whatever port we listen
            # on: an Apache broker that gets its directory back finds its own controller by it.
            notes += [KRaftVersionRecord(kraft_version=loaded.kraft_version), loaded.voters.to_record()]
        self.voters = loaded.voters
        last = self.store.append_notes(notes, epoch)
        self.written = replace(self.written, offset=last, epoch=epoch, controller_id=me)

    def _decide_now(self, decide: Callable[[Image], Decision[T]]) -> T:
        """As `submit`, while nobody is served yet: the one sync at the end of the start covers it."""
        decision = decide(self.written)
        self._append(decision.records)
        return decision.reply

    def _join(self) -> None:
        """Register controller and broker of this process, and take the broker off the fence."""
        me, rules, clean_epoch = self._config.node_id, self.rules, self._directories.clean_epoch
        incarnation = self._world.random.randbytes(16)
        ports = self._ports
        controllers = [_endpoint(e, ports.get(e.name, e.port)) for e in self._config.controller_endpoints]
        self._decide_now(lambda image: controller.register_controller(image, me, incarnation, controllers))
        if me in self.written.brokers:
            self._decide_now(lambda image: controller.fence(image, me, rules))
        who = Registration(
            id=me,
            incarnation=incarnation,
            endpoints=[_endpoint(e, e.port or ports.get(e.name, 0)) for e in self._config.advertised],
            directories=self._directories.ids,
            rack=self._config["broker.rack"],
            previous_epoch=-1 if clean_epoch is None else clean_epoch,
        )
        self.broker_epoch = self._decide_now(lambda image: controller.register_broker(image, who, rules))
        self._decide_now(lambda image: controller.unfence(image, me, rules))

    # --- stopping

    async def stop(self) -> None:
        """Hand leaderships back, wait until that is committed, close the log. A node that never led has nothing to do."""
        if self.broker_epoch < 0:
            return
        me, rules = self._config.node_id, self.rules
        if self._ended is None and me in self.written.brokers:  # somebody may have unregistered it
            self.submit(lambda image: controller.begin_shutdown(image, me, rules))
            await self.submit(lambda image: controller.fence(image, me, rules))
        if self._snapshot_timer is not None:
            self._snapshot_timer.cancel()
        if self._snapshotting is not None:
            await asyncio.wait([self._snapshotting])
        self._ended = self._ended or RuntimeError("the node has stopped")
        await self.store.close()

    # --- snapshots

    def _consider_snapshot(self) -> None:
        if self._snapshotting is not None or self._ended is not None:
            return
        if self.store.bytes_since_snapshot >= self._config["metadata.log.max.record.bytes.between.snapshots"]:
            self._begin_snapshot()
        elif self._snapshot_timer is None and (interval_ms := self._config["metadata.log.max.snapshot.interval.ms"]):
            loop = asyncio.get_running_loop()
            self._snapshot_timer = loop.call_later(interval_ms / 1000, self._begin_snapshot)

    def _begin_snapshot(self) -> None:
        if self._snapshot_timer is not None:
            self._snapshot_timer.cancel()
            self._snapshot_timer = None
        if self._snapshotting is None and self.image.offset + 1 > self.store.snapshot_end:
            self._snapshotting = asyncio.get_running_loop().create_task(self._snapshot())

    async def _snapshot(self) -> None:
        """A snapshot that fails costs nothing but time at the next start: it is told, and tried again later."""
        try:
            await self.store.write_snapshot(self.image, self.voters)
        except OSError as error:
            log.warning("the metadata snapshot could not be written: %s", error)
        finally:
            self._snapshotting = None


def _tell_failures(done: asyncio.Future[dict[str, Topic | KafkaError]]) -> None:
    """Whoever asked for a topic by naming it only ever hears "unknown"; the reason is for the log."""
    for name, outcome in {} if done.exception() else done.result().items():
        if isinstance(outcome, KafkaError) and outcome.error is not Error.TOPIC_ALREADY_EXISTS:
            log.warning("topic %s could not be created: %s", name, outcome)


def _endpoint(listener: Listener, port: int) -> Endpoint:
    return Endpoint(listener.name, listener.host or socket.gethostname(), port, PROTOCOL_CODES[listener.protocol])
