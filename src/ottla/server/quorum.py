"""The metadata of the cluster as this node knows it: records become pictures, pictures are shown.

There are two pictures. `written` is replayed as soon as records are appended, and every decision reads it, so two
creates of one name cannot both pass; only the leader of the quorum has it. `image` is the committed one: its records are
on the disks of a majority of voters, which for one voter means that they are synced. Handlers, replicas and everybody
else see only `image`.

While this node leads, `append` appends and replays without an await in between, and what was appended waits until it is
committed. While it follows, committed records are replayed from its copy of the log. In both cases each picture is then
given to the listeners, in the order of the log, and becomes `image`. Showing goes on beside committing, because a listener
may take its time: it opens logs. Whoever appended chooses whether it is answered when its records are committed, or when
everybody here follows them as well.

When leadership is lost, whoever waits for a commit is refused: what became of its records, only the next leader knows.

Nothing is shown before `show` is called; the first picture is then everything that was committed by that time.

A failed append (a full disk, even without its ballast) refuses the one request. A failed sync is the end of the node:
nobody knows what the disk holds then, and `fatal` is called.
"""

from __future__ import annotations

import asyncio
import logging
import socket
from collections import deque
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass, replace
from typing import Any, TypeVar

from ottla.config import BrokerConfig
from ottla.config import Endpoint as Listener
from ottla.config.listeners import PROTOCOLS
from ottla.log.directories import Directories
from ottla.metadata.decisions import RECORDS_PER_REQUEST_MAX, Versioned
from ottla.metadata.image import Delta, Endpoint, Image
from ottla.metadata.records import PartitionRecord
from ottla.metadata.replay import replay
from ottla.raft.quorum import NOBODY, Address, Voter, VoterSet
from ottla.raft.roles import Resigned
from ottla.rising import Rising
from ottla.server.consensus import Consensus, Hooks, Meters, OpenLine
from ottla.server.metadata_store import Loaded, MetadataStore
from ottla.wire.errors import Error, KafkaError
from ottla.world import World

log = logging.getLogger("ottla.quorum")

T = TypeVar("T")
Follow = Callable[[Image, Image, Delta], Awaitable[None]]
Step = tuple[Image, Delta]

LOOPBACK = ("localhost", "127.0.0.1", "::1")


@dataclass(slots=True)
class Waiting:
    """In the log, and not yet committed and shown. If somebody wants an answer, it is given at the one moment or the other."""

    end: int
    steps: list[Step]
    reply: Any = None
    since: float = 0.0
    answer: asyncio.Future[Any] | None = None
    when_shown: bool = False

    def settle(self) -> None:
        if self.answer is not None and not self.answer.done():
            self.answer.set_result(self.reply)

    def refuse(self, why: str) -> None:
        if self.answer is not None and not self.answer.done():
            self.answer.set_exception(KafkaError(Error.NOT_CONTROLLER, why))
            self.answer.exception()


class Quorum:
    def __init__(
        self, config: BrokerConfig, world: World, directories: Directories, fatal: Callable[[BaseException], None]
    ) -> None:
        self.image = self.written = Image()
        # Everything below it is committed, and this node has read it.
        self.committed_end = Rising(0)
        self.store: MetadataStore
        self.consensus: Consensus
        self.is_started = False
        self.meters = Meters()
        self._config = config
        self._world = world
        self._directories = directories
        self._fatal = fatal
        self._open_line: OpenLine
        self._follow: list[Follow] = []
        self._began: list[Callable[[], None]] = []
        self._other_voters: list[Callable[[], None]] = []
        self._leads = False
        self._waiting: deque[Waiting] = deque()
        self._to_show: deque[Waiting] = deque()
        self._is_showing = False
        # The first picture takes longest, because it opens all logs; those that come meanwhile wait for it.
        self._one_picture = asyncio.Lock()
        # The picture that everything committed makes, and the newest one that is not inside a metadata transaction.
        self._replayed = self._committed = Image()
        self._catching_up: asyncio.Task[None] | None = None
        self._showing: asyncio.Task[None] | None = None
        self._snapshotting: asyncio.Task[None] | None = None
        self._snapshot_timer: asyncio.TimerHandle | None = None
        self._ended: BaseException | None = None
        self._ports: Mapping[str, int] = {}

    def connect(self, open_line: OpenLine) -> None:
        """How other nodes are reached."""
        self._open_line = open_line

    def listen(self, follow: Follow) -> None:
        """Await `follow(old, new, delta)` for every picture that becomes committed, in order."""
        self._follow.append(follow)

    def when_leading(self, began: Callable[[], None]) -> None:
        """Call `began` whenever this node has become the leader and has read everything that was written before."""
        self._began.append(began)

    def when_voters_change(self, changed: Callable[[], None]) -> None:
        self._other_voters.append(changed)

    @property
    def newest(self) -> Image:
        """The newest committed picture, which may not be shown yet."""
        return self._committed

    @property
    def voters(self) -> VoterSet:
        return self.consensus.replica.voters if self.is_started else VoterSet()

    @property
    def leader_id(self) -> int:
        """Who leads, as far as this node knows."""
        if not self.is_started or isinstance(self.consensus.replica.role, Resigned):
            return NOBODY
        return self.consensus.replica.leader_id

    @property
    def epoch(self) -> int:
        return self.consensus.replica.epoch if self.is_started else 0

    @property
    def is_alone(self) -> bool:
        """Whether nobody else has a say: what this node decides is decided."""
        return self.voters.ids == (self._config.node_id,) and self.consensus.replica.member.is_sound

    @property
    def leads(self) -> bool:
        return self._leads and self._ended is None

    def check_leads(self) -> None:
        if self._ended is not None:
            raise KafkaError(Error.NOT_CONTROLLER, f"this controller has ended: {self._ended}")
        if not self._leads:
            raise KafkaError(Error.NOT_CONTROLLER, f"the controller is {self.leader_id}")

    # --- appending

    def append(self, records: list[Versioned], reply: T, *, when_shown: bool) -> asyncio.Future[T]:
        """Append and replay now: the next decision sees it. Await the answer for the reply."""
        self.check_leads()
        steps = self._append(records)
        answer: asyncio.Future[T] = asyncio.get_running_loop().create_future()
        now = asyncio.get_running_loop().time()
        self._waiting.append(Waiting(self.store.end_offset, steps, reply, now, answer, when_shown))
        if records:
            self.consensus.appended()
        else:
            self._take_committed()
        return answer

    async def upgrade(self, kraft_version: int) -> None:
        """From now on the log says who votes. The quorum writes that down itself; the picture only shows the version."""
        self.check_leads()
        if kraft_version <= self.written.kraft_version:
            return  # somebody was faster
        self.consensus.replica.upgrade(kraft_version, self.consensus.now_ms())
        self.consensus.step()
        self.written = replace(self.written, kraft_version=kraft_version, offset=self.store.end_offset - 1)
        answer: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        step = self.written, Delta()
        self._waiting.append(Waiting(self.store.end_offset, [step], answer=answer, when_shown=True))
        self._take_committed()
        await answer

    def _append(self, records: list[Versioned]) -> list[Step]:
        """Elections may need more records than a batch holds; nothing else does."""
        steps: list[Step] = []
        try:
            for start in range(0, len(records), RECORDS_PER_REQUEST_MAX):
                batch = records[start : start + RECORDS_PER_REQUEST_MAX]
                last = self._append_batch(batch)
                self.written, delta = replay(self.written, [record for record, _ in batch], last, self.written.epoch)
                steps.append((self.written, delta))
        except KafkaError:
            if steps:  # in the log, whoever is refused: everybody has to follow it
                self._waiting.append(Waiting(self.store.end_offset, steps))
                self.consensus.appended()
            raise
        return steps

    def _append_batch(self, batch: list[Versioned]) -> int:
        if self._directories.is_full and any(isinstance(record, PartitionRecord) for record, _ in batch):
            raise KafkaError(Error.KAFKA_STORAGE_ERROR, "the disk is full: there is no room for new partitions")
        try:
            return self.store.append_records(batch, self.written.epoch)
        except OSError as error:
            raise KafkaError(Error.KAFKA_STORAGE_ERROR, f"the metadata log could not be written: {error}") from error

    # --- leading

    def _begin_to_lead(self) -> None:
        """Read what is written and not committed yet, our own first record included: decisions build on it."""
        steps = list(self.store.replay(self._replayed, self.store.end_offset))
        self.written = steps[-1][0]
        self._waiting.append(Waiting(self.store.end_offset, steps))
        self._leads = True
        self.meters.leaderships.value += 1
        log.info("leading epoch %d of the metadata at offset %d", self.epoch, self.written.offset)
        for began in self._began:
            began()

    def _lose(self) -> None:
        self._leads = False
        waiting, self._waiting = self._waiting, deque()
        for each in waiting:
            each.refuse("this node leads no more: what became of it, only the next controller knows")
        self.written = self._replayed
        log.info("leading the metadata no more: epoch %d", self.epoch)
        self._committed_more()

    def _voters_changed(self) -> None:
        for changed in self._other_voters:
            changed()

    # --- committing

    def _committed_more(self) -> None:
        if self._leads:
            self._take_committed()
        elif self._catching_up is None and self._ended is None:
            self._catching_up = asyncio.get_running_loop().create_task(self._catch_up())

    def _take_committed(self) -> None:
        end = self.consensus.replica.high_watermark
        while self._waiting and self._waiting[0].end <= end:
            done = self._waiting.popleft()
            if done.answer is not None and done.steps:
                self.meters.commit_s.observe(asyncio.get_running_loop().time() - done.since)
            self._take(done)
        self._consider_snapshot()

    async def _catch_up(self) -> None:
        """Replay what others have committed, a stretch at a time: there may be much of it."""
        try:
            while not self._leads and self._replayed.offset + 1 < self.consensus.replica.high_watermark:
                end = self.consensus.replica.high_watermark
                step = next(self.store.replay(self._replayed, end), None)
                if step is None:
                    break
                self._take(Waiting(step[0].offset + 1, [step]))
                await asyncio.sleep(0)
        except Exception as error:
            self._end(error)
        finally:
            self._catching_up = None
        self._consider_snapshot()

    def _take(self, done: Waiting) -> None:
        for image, _ in done.steps:
            self._replayed = image
            if not image.in_transaction:
                self._committed = image
        self.committed_end.rise(done.end)
        if not self._is_showing:
            done.settle()
            return
        if not done.when_shown:
            done.settle()
        self._to_show.append(done)
        if self._showing is None:
            self._showing = asyncio.get_running_loop().create_task(self._show_waiting())

    def _install(self, image: Image) -> None:
        """A snapshot of the leader's has taken the place of everything we had."""
        delta = Delta.between(self._committed, image)
        self._take(Waiting(image.offset + 1, [(image, delta)]))

    # --- showing

    async def show(self) -> None:
        """Begin to show pictures, with all that was appended up to now. Raises what keeps it from being committed."""
        if self._leads and self.is_alone and self._ended is None:
            await self.consensus.when(lambda: self._ended is not None or not self._waiting, float("inf"))
        if self._ended is not None:
            raise self._ended
        self._is_showing = True
        await self._show(self._committed, Delta.everything(self._committed))

    async def _show_waiting(self) -> None:
        try:
            while self._to_show:
                for image, delta in self._to_show[0].steps:
                    await self._show(image, delta)
                self._to_show.popleft().settle()
        except Exception as error:
            self._end(error)
        finally:
            self._showing = None

    async def _show(self, image: Image, delta: Delta) -> None:
        """Nobody is shown the inside of a metadata transaction."""
        if image.in_transaction:
            return
        async with self._one_picture:
            for follow in self._follow:
                await follow(self.image, image, delta)
            self.image = image

    def _end(self, error: BaseException) -> None:
        """Nothing more can be committed: whoever waits is told, and so is the node."""
        self._ended = error
        for waiting in (*self._to_show, *self._waiting):
            waiting.refuse(f"this controller has ended: {error}")
        self._to_show.clear()
        self._waiting.clear()
        log.critical("metadata cannot be committed any more", exc_info=error)
        self._fatal(error)

    # --- starting

    async def start(self, ports: Mapping[str, int]) -> None:
        """Read what is there, and take part. A node that is alone leads when this returns."""
        self.store = MetadataStore(self._config, self._world, self._directories)
        self._ports = ports
        fixed = self._configured_voters()
        is_fixed = bool(self._config["controller.quorum.voters"])
        self.store.format(VoterSet() if is_fixed else fixed, 0 if is_fixed else 1)
        loaded = self.store.load(fixed)
        self._check_voters(loaded)
        self._replayed = self._committed = self.written = loaded.snapshot
        if not self.store.is_sound:
            log.error(
                "%s was damaged: this node elects nobody until a leader has sent what is missing", self.store.path
            )
        elif loaded.history.voters.ids == (self._config.node_id,):
            self._replayed = self._committed = self.written = loaded.image  # nobody else could say otherwise
        hooks = Hooks(
            leads=self._begin_to_lead,
            lost=self._lose,
            committed=self._committed_more,
            voters=self._voters_changed,
            installed=self._install,
            failed=self._end,
        )
        self.consensus = Consensus(
            *(self._config, self._world, self.store, loaded, self._myself(), self._open_line, hooks),
            self.meters,
        )
        self.is_started = True
        self.committed_end.rise(self._committed.offset + 1)
        self.consensus.step()
        if self._ended is not None:
            raise self._ended

    def _configured_voters(self) -> VoterSet:
        """What the settings say about the quorum: its fixed members, or this node as the first, or nothing."""
        fixed = VoterSet.of_setting(",".join(self._config["controller.quorum.voters"]))
        if fixed.voters:
            return fixed
        servers = self._config["controller.quorum.bootstrap.servers"]
        elsewhere = [server for server in servers if not self._is_here(server)]
        is_first = "controller" in self._config["process.roles"] and not elsewhere
        return VoterSet((self._myself(),)) if is_first else VoterSet()

    def _is_here(self, server: str) -> bool:
        """Whether a bootstrap server is this node. Kafka's own example names localhost, and a listener without a host."""
        host, _, port = server.strip().rpartition(":")
        ours = [e for e in self._config.controller_endpoints if str(e.port or self._ports.get(e.name, 0)) == port]
        return any(host.strip("[]") in (*LOOPBACK, socket.gethostname(), listener.host) for listener in ours)

    def _myself(self) -> Voter:
        """As the settings have it: whoever gets this directory, Apache Kafka included, listens where they say."""
        endpoints = [endpoint(e, e.port or self._ports.get(e.name, 0)) for e in self._config.advertised_controllers]
        addresses = tuple(Address(e.name, e.host, e.port) for e in endpoints)
        return Voter(self._config.node_id, self.store.directory_id, addresses)

    def _check_voters(self, loaded: Loaded) -> None:
        """Somebody has to be known who can be asked."""
        others = [voter_id for voter_id in loaded.history.voters.ids if voter_id != self._config.node_id]
        is_member = self._config.node_id in loaded.history.voters.ids
        if not is_member and not others and not self._config["controller.quorum.bootstrap.servers"]:
            raise KafkaError(
                Error.INVALID_CONFIG,
                f"the metadata in {self.store.path} knows no voters, and controller.quorum.bootstrap.servers names nobody "
                f"who does; this node is {self._config.node_id}",
            )

    # --- stopping

    async def stop(self) -> None:
        """Leave the quorum and close the log. A node that never opened it has nothing to do."""
        if not self.is_started:
            return
        await self.consensus.stop()
        for task in (self._catching_up, self._showing):
            while task is not None and not task.done():
                await asyncio.wait([task])
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
        if self._snapshotting is None and self._committed.offset + 1 > self.store.snapshot_end:
            self._snapshotting = asyncio.get_running_loop().create_task(self._snapshot())

    async def _snapshot(self) -> None:
        """A snapshot that fails costs nothing but time at the next start: it is told, and tried again later."""
        try:
            image, history = self._committed, self.consensus.replica.history
            await self.store.write_snapshot(image, history.voters_as_of(image.offset))
            history.trim(self.store.start_offset)
        except OSError as error:
            log.warning("the metadata snapshot could not be written: %s", error)
        finally:
            self._snapshotting = None


def endpoint(listener: Listener, port: int) -> Endpoint:
    return Endpoint(listener.name, listener.host or socket.gethostname(), port, PROTOCOLS.index(listener.protocol))
