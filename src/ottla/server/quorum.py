"""Drives the metadata log of this node: records become pictures, pictures are shown.

There are two pictures. `written` is replayed as soon as records are appended, and every decision reads it, so two
creates of one name cannot both pass. `image` is the committed one: its records are on the disk of a majority of voters,
which for one voter means that they are synced. Handlers, replicas and everybody else see only `image`.

`append` appends and replays without an await in between. What was appended then waits for the disk together: one sync
serves everything appended before it began. After that, in the order of the log, each picture is given to the listeners
and becomes `image`. Showing goes on beside committing, because a listener may take its time: it opens logs. Whoever
appended chooses whether it is answered when its records are committed, or when everybody here follows them as well.

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
from ottla.log.directories import Directories
from ottla.metadata.decisions import RECORDS_PER_REQUEST_MAX, Versioned
from ottla.metadata.image import Delta, Endpoint, Image
from ottla.metadata.records import PartitionRecord
from ottla.raft.quorum import NOBODY, Address, QuorumState, Voter, VoterSet, leader_change
from ottla.rising import Rising
from ottla.server.metadata_store import Loaded, MetadataStore
from ottla.wire.errors import Error, KafkaError
from ottla.wire.messages.quorum import KRaftVersionRecord
from ottla.wire.schema import Message
from ottla.world import World

log = logging.getLogger("ottla.quorum")

T = TypeVar("T")
Follow = Callable[[Image, Image, Delta], Awaitable[None]]

PROTOCOL_CODES = {"PLAINTEXT": 0, "SSL": 1, "SASL_PLAINTEXT": 2, "SASL_SSL": 3}


@dataclass(slots=True)
class Waiting:
    """Appended, and not yet committed and shown. Its answer is given at the one moment or the other."""

    end: int
    reply: Any
    answer: asyncio.Future[Any]
    steps: list[tuple[Image, Delta]]
    when_shown: bool

    def settle(self) -> None:
        if not self.answer.done():
            self.answer.set_result(self.reply)

    def refuse(self, error: BaseException) -> None:
        if not self.answer.done():
            self.answer.set_exception(KafkaError(Error.NOT_CONTROLLER, f"this controller has ended: {error}"))
            self.answer.exception()


class Quorum:
    def __init__(
        self, config: BrokerConfig, world: World, directories: Directories, fatal: Callable[[BaseException], None]
    ) -> None:
        self.image = self.written = Image()
        self.voters = VoterSet()
        self.leader_id = NOBODY
        # Everything below it is committed, and this node knows it.
        self.committed_end = Rising(0)
        self.store: MetadataStore
        self._config = config
        self._world = world
        self._directories = directories
        self._fatal = fatal
        self._follow: list[Follow] = []
        self._began: list[Callable[[], None]] = []
        self._waiting: deque[Waiting] = deque()
        self._to_show: deque[Waiting] = deque()
        self._is_showing = False
        # The newest committed picture that is not inside a metadata transaction.
        self._committed = Image()
        self._committing: asyncio.Task[None] | None = None
        self._showing: asyncio.Task[None] | None = None
        self._snapshotting: asyncio.Task[None] | None = None
        self._snapshot_timer: asyncio.TimerHandle | None = None
        self._ended: BaseException | None = None
        self._ports: Mapping[str, int] = {}

    def listen(self, follow: Follow) -> None:
        """Await `follow(old, new, delta)` for every picture that becomes committed, in order."""
        self._follow.append(follow)

    def when_leading(self, began: Callable[[], None]) -> None:
        """Call `began` whenever this node has become the leader and has read everything that was written before."""
        self._began.append(began)

    @property
    def is_alone(self) -> bool:
        """Whether nobody else has a say: what this node decides is decided."""
        return self.voters.ids == (self._config.node_id,)

    @property
    def leads(self) -> bool:
        return self.leader_id == self._config.node_id and self._ended is None

    def check_leads(self) -> None:
        if self._ended is not None:
            raise KafkaError(Error.NOT_CONTROLLER, f"this controller has ended: {self._ended}")
        if not self.leads:
            raise KafkaError(Error.NOT_CONTROLLER, f"the controller is {self.leader_id}")

    # --- appending

    def append(self, records: list[Versioned], reply: T, *, when_shown: bool) -> asyncio.Future[T]:
        """Append and replay now: the next decision sees it. Await the answer for the reply."""
        self.check_leads()
        steps = self._append(records)
        answer: asyncio.Future[T] = asyncio.get_running_loop().create_future()
        self._waiting.append(Waiting(self.store.end_offset, reply, answer, steps, when_shown))
        if self._committing is None:
            self._committing = asyncio.get_running_loop().create_task(self._commit())
        return answer

    def _append(self, records: list[Versioned]) -> list[tuple[Image, Delta]]:
        """Elections may need more records than a batch holds; nothing else does."""
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

    # --- committing

    async def _commit(self) -> None:
        try:
            while self._waiting:
                if self._waiting[0].end > self.store.synced_end:
                    await self.store.flush()
                self._take_committed(self._waiting.popleft())
        except Exception as error:
            self._end(error)  # which tells everybody whom it concerns
        finally:
            self._committing = None
        self._consider_snapshot()

    def _take_committed(self, done: Waiting) -> None:
        for image, _ in done.steps:
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

    # --- showing

    async def show(self) -> None:
        """Begin to show pictures, with all that was appended up to now. Raises what keeps it from being committed."""
        while self._committing is not None:
            await self._committing
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
        if not image.in_transaction:
            for follow in self._follow:
                await follow(self.image, image, delta)
            self.image = image

    def _end(self, error: BaseException) -> None:
        """Nothing more can be committed: whoever waits is told, and so is the node."""
        self._ended = error
        for waiting in (*self._to_show, *self._waiting):
            waiting.refuse(error)
        self._to_show.clear()
        self._waiting.clear()
        log.critical("metadata cannot be committed any more", exc_info=error)
        self._fatal(error)

    # --- starting

    async def start(self, ports: Mapping[str, int]) -> None:
        """Read what is there, and lead. `ports` are those that the listeners really have."""
        self.store = MetadataStore(self._config, self._world, self._directories)
        self._ports = ports
        self.store.format(self._configured_voters(), 0 if self._config["controller.quorum.voters"] else 1)
        loaded = self.store.load()
        self._check_voters(loaded)
        self.written = loaded.image
        self._lead(loaded)

    def _configured_voters(self) -> VoterSet:
        """What the settings say about the quorum: its fixed members, or this node as the first."""
        fixed = VoterSet.of_setting(",".join(self._config["controller.quorum.voters"]))
        return fixed if fixed.voters else VoterSet((self._myself(),))

    def _myself(self) -> Voter:
        """As the settings have it: whoever gets this directory, Apache Kafka included, listens where they say."""
        endpoints = [endpoint(e, e.port or self._ports.get(e.name, 0)) for e in self._config.controller_endpoints]
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
        self._committed = replace(self.written)
        self.leader_id = me
        log.info("leading epoch %d of the metadata at offset %d", epoch, last)
        for began in self._began:
            began()

    # --- stopping

    async def stop(self) -> None:
        """Close the log. A node that never opened it has nothing to do."""
        if self.leader_id == NOBODY:
            return
        while self._showing is not None:
            await asyncio.wait([self._showing])
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
            await self.store.write_snapshot(self._committed, self.voters)
        except OSError as error:
            log.warning("the metadata snapshot could not be written: %s", error)
        finally:
            self._snapshotting = None


def endpoint(listener: Listener, port: int) -> Endpoint:
    return Endpoint(listener.name, listener.host or socket.gethostname(), port, PROTOCOL_CODES[listener.protocol])
