"""Drives this node's replica of the metadata log: `raft.replica` says what to do, this does it.

Whenever something has happened (a request, an answer, a sync, a time that is up) `step` asks the replica what is to be done
and does it, in this order and without an await: the promise to disk, records into the log, requests on their way. What
takes longer runs beside it and is an event when it is over: the sync of the log, cutting it, taking a snapshot. A promise
is written on the loop's own time: that is a file of a few bytes, once per election, and nothing may be said before it.

Whoever waits for anything here to change (a Fetch that found nothing, a change of the voters) waits for `news`.

A disk that fails is the end of the node, and so is a leader who wants committed records back: nobody knows then what is true.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Coroutine, Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol

from ottla.config import BrokerConfig
from ottla.metadata.image import Image
from ottla.metrics import Counter, Histogram
from ottla.raft.connections import NEVER, Send
from ottla.raft.quorum import NOBODY, Address, QuorumState, Voter
from ottla.raft.replica import Lost, Ready, Replica, SnapshotPart, Timing
from ottla.raft.roles import Candidate, Change, Resigned, Role
from ottla.raft.snapshots import Damaged
from ottla.rising import Rising
from ottla.server.metadata_store import Loaded, MetadataStore
from ottla.wire.errors import Error, KafkaError
from ottla.wire.ids import uuid_text
from ottla.wire.messages.fetch import FetchRequest
from ottla.wire.messages.quorum import FetchSnapshotRequest
from ottla.wire.schema import Message
from ottla.world import World

log = logging.getLogger("ottla.quorum")


class Line(Protocol):
    """A way to ask another node (server/peers.py)."""

    is_refused: bool

    async def ask(self, request: Message, timeout_s: float) -> Any: ...
    def close(self) -> None: ...


OpenLine = Callable[[str, str, int], Line]
# How long a leader that stops waits for somebody else to take over.
FAREWELL_S = 1.0
# How often a voter writes down how far its log is committed, while it grows.
NOTED_S = 5.0


@dataclass
class Meters:
    """What is counted of the quorum as it happens."""

    elections: Counter = field(default_factory=Counter)
    leaderships: Counter = field(default_factory=Counter)
    leaderless_s: Histogram = field(default_factory=Histogram)
    commit_s: Histogram = field(default_factory=Histogram)


@dataclass
class Hooks:
    """Whom to tell, within the step in which it happened."""

    leads: Callable[[], None]
    lost: Callable[[], None]
    committed: Callable[[], None]
    voters: Callable[[], None]
    installed: Callable[[Image], None]
    failed: Callable[[BaseException], None]


class Consensus:
    def __init__(
        self,
        config: BrokerConfig,
        world: World,
        store: MetadataStore,
        loaded: Loaded,
        me: Voter,
        open_line: OpenLine,
        hooks: Hooks,
        meters: Meters,
    ) -> None:
        self.store = store
        self.news = Rising(0)
        self._config = config
        self._hooks = hooks
        self._open_line = open_line
        self._loop = asyncio.get_running_loop()
        self._timing = _timing(config)
        self.replica = Replica(
            *(me, store.cluster_id, store, loaded.history, loaded.state, world.random, self.now_ms()),
            *(self._timing, _bootstrap(config), store.is_sound),
            joins="controller" in config["process.roles"] and config["controller.quorum.auto.join.enable"],
        )
        self._asking: dict[tuple[str, str, int], asyncio.Task[None]] = {}
        self._working: set[asyncio.Task[None]] = set()
        self._timer: asyncio.TimerHandle | None = None
        self._syncing = self._is_noting = False
        self._is_stepping = self._has_news = False
        self._led = False
        self._meters = meters
        self._stood: Role | None = None
        self._leaderless_since: float | None = None
        self._watermark = self.replica.high_watermark
        self._voters = self.replica.voters
        self._is_over = False

    def now_ms(self) -> float:
        return self._loop.time() * 1000

    # --- stepping

    def step(self) -> None:
        """Something has happened: do what follows from it."""
        self._has_news = True
        if self._is_stepping or self._is_over:
            return
        self._is_stepping = True
        try:
            while self._has_news:
                self._has_news = False
                self._do(self.replica.take_ready(self.now_ms()))
                self._tell()
        except (OSError, KafkaError, Lost) as error:
            self._fail(error)
        finally:
            self._is_stepping = False
        self._arm()

    def step_before_answer(self) -> None:
        """What a request made us promise must be on disk before it is answered. A node that can write nothing down any
        more, because it stops or its disk failed, gives no answer: its successor would not know of it."""
        self.step()
        if self._is_over:
            raise KafkaError(Error.BROKER_NOT_AVAILABLE, "this node takes no part in the quorum any more")

    def _do(self, ready: Ready) -> None:
        replica, store = self.replica, self.store
        if ready.promise is not None:
            self._promise(ready.promise)
        if ready.truncate_to is not None:
            self._begin(self._truncate(ready.truncate_to))
        if ready.append:
            self._append_copies(ready.append)
        if ready.notes:
            first = store.end_offset
            store.append_notes(ready.notes, replica.epoch)
            replica.appended(enumerate(ready.notes, first))
        if ready.snapshot is not None:
            self._take_part(ready.snapshot)
        for send in ready.sends:
            self._send(send)
        self._has_news |= ready.changes_log
        self.sync()

    def _promise(self, promise: QuorumState) -> None:
        history = self.replica.history
        self.store.write_state(promise, history.kraft_version, history.voters)

    def _append_copies(self, records: bytes) -> None:
        """What of a damaged answer was sound is in the log; the rest is asked for again."""
        notes = []
        try:
            for note in self.store.append_copies(records, self.replica.epoch):
                notes.append(note)
        except KafkaError as error:
            log.warning("the leader's records could not be appended: %s", error)
        self.replica.appended(notes)

    def _tell(self) -> None:
        """Leadership and commitment, to those who live by them; and that there is news, to whoever waits."""
        replica = self.replica
        self._count_elections(replica.role)
        if self._led and not replica.is_leader:
            self._led = False
            self._hooks.lost()
        if replica.high_watermark > self._watermark:
            self._watermark = replica.high_watermark
            self._hooks.committed()
            self._note_soon()
        if replica.voters != self._voters:
            self._voters = replica.voters
            log.info("the voters of the metadata quorum are %s", list(self._voters.ids))
            self._warn_of_lost_vote()
            self._hooks.voters()
        if replica.is_leader and not self._led:
            self._led = True
            self._hooks.leads()
        self.news.rise(self.news.value + 1)

    def _warn_of_lost_vote(self) -> None:
        """A disk that took the place of a lost one is another voter, and until it is one a majority has a member less."""
        member = self.replica.member
        old = next((voter for voter in member.voters.voters if voter.id == member.me.id), None)
        if old is not None and not member.is_voter and not member.joins:
            log.warning(
                "this node does not vote, for its directory is not the one that does: `kafka-metadata-quorum "
                "remove-controller --controller-id %d --controller-directory-id %s` takes that out, `add-controller` on this "
                "host brings it in",
                *(old.id, uuid_text(old.directory)),
            )

    def _count_elections(self, role: Role) -> None:
        if isinstance(role, Candidate) and role is not self._stood:
            self._stood = role
            self._meters.elections.value += 1
        if self.replica.leader_id != NOBODY and not isinstance(role, Resigned):
            if self._leaderless_since is not None:
                self._meters.leaderless_s.observe(self._loop.time() - self._leaderless_since)
            self._leaderless_since = None
        elif self._leaderless_since is None:
            self._leaderless_since = self._loop.time()

    def _arm(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        wake_ms = self.replica.wake_ms
        if wake_ms != NEVER and not self._is_over:
            self._timer = self._loop.call_later(max(wake_ms - self.now_ms(), 0) / 1000, self.step)

    def _fail(self, error: BaseException) -> None:
        self._is_over = True
        self._hooks.failed(error)
        self.news.rise(self.news.value + 1)

    # --- the log

    def appended(self) -> None:
        """Records of ours are in the log; their sync is begun."""
        self.replica.appended()
        self.step()

    def sync(self) -> None:
        if not self._syncing and self.store.synced_end < self.store.end_offset and not self._is_over:
            self._syncing = True
            self._begin(self._sync())

    async def _sync(self) -> None:
        try:
            await self.store.flush()
        finally:
            self._syncing = False
        self.replica.synced()
        self.step()

    def _note_soon(self) -> None:
        """For a voter among others: alone it has nobody whose log could be better."""
        if not self._is_noting and self.replica.is_voter and len(self.replica.voters.voters) > 1:
            self._is_noting = True
            self._loop.call_later(NOTED_S, self._note)

    def _note(self) -> None:
        self._is_noting = False
        if not self._is_over:
            self._begin(self._note_committed())

    async def _note_committed(self) -> None:
        try:
            await self.store.note_committed(self.replica.high_watermark)
        except OSError as error:  # nobody relies on it before something else goes wrong
            log.warning("how far the metadata is committed could not be written down: %s", error)

    async def _truncate(self, offset: int) -> None:
        log.info(
            "cutting the metadata log to offset %d: the leader of epoch %d has no more", offset, self.replica.epoch
        )
        await self.store.truncate(offset)
        self.replica.truncated(offset)
        self.step()

    def _take_part(self, part: SnapshotPart) -> None:
        self.store.take_part(part.position, part.data)
        if part.is_last:
            self._begin(self._install(part))
        else:
            self.replica.kept()

    async def _install(self, part: SnapshotPart) -> None:
        try:
            image, notes = await self.store.install(part.snapshot)
        except Damaged as damage:
            log.warning("the leader's snapshot at offset %d is damaged: %s", part.snapshot.end_offset, damage)
            self.replica.kept()
        else:
            log.info("took the leader's snapshot at offset %d", part.snapshot.end_offset)
            self._hooks.installed(image)
            self.replica.installed(part.snapshot.end_offset, notes)
        self.step()

    # --- work beside the steps

    def _begin(self, work: Coroutine[Any, Any, None]) -> None:
        task = self._loop.create_task(work)
        self._working.add(task)
        task.add_done_callback(self._ended)

    def _ended(self, task: asyncio.Task[None]) -> None:
        self._working.discard(task)
        if not task.cancelled() and (error := task.exception()) is not None:
            self._fail(error)

    def _send(self, send: Send) -> None:
        """A question that is not answered yet stands in the way of the next: then nobody waits for its answer any more."""
        purpose = "raft-fetch" if isinstance(send.request, FetchRequest | FetchSnapshotRequest) else "raft"
        where = (purpose, send.destination.host, send.destination.port)
        line = self._open_line(*where)
        if (old := self._asking.get(where)) is not None and not old.done():
            old.cancel()
            line.close()
        self._asking[where] = self._loop.create_task(self._ask(line, send))

    async def _ask(self, line: Line, send: Send) -> None:
        replica = self.replica
        try:
            response: Message = await line.ask(send.request, self._timing.request_timeout_ms / 1000)
        except (OSError, KafkaError) as error:
            log.debug("no answer from %s to %s: %s", send.destination, type(send.request).__name__, error)
            if line.is_refused:
                replica.refused(send.number, self.now_ms())
            else:
                replica.failed(send.number, self.now_ms())
        else:
            try:
                replica.answered(send.number, response, self.now_ms())
            except Lost as error:
                self._fail(error)
        self.step()

    # --- waiting

    async def when(self, is_so: Callable[[], bool], seconds: float) -> bool:
        """Wait until it is so; False if it is not by then."""
        deadline = self._loop.time() + seconds
        while not is_so():
            left_s = None if seconds == float("inf") else max(deadline - self._loop.time(), 0)
            try:
                await self.news.reaches(self.news.value + 1, left_s)
            except TimeoutError:
                return is_so()
        return True

    async def changed(self, change: Change) -> None:
        """Wait until a change of the voters has an outcome; raise if it failed."""
        await self.when(lambda: change.error is not None, self._timing.request_timeout_ms / 1000 + 1)
        error = change.error or Error.REQUEST_TIMED_OUT
        if error is not Error.NONE:
            raise KafkaError(error, change.message)

    # --- stopping

    async def stop(self) -> None:
        """A leader resigns and waits for its successor, so that nobody has to find out that it is gone."""
        replica = self.replica
        if replica.is_leader and len(replica.voters.voters) > 1 and not self._is_over:
            replica.resign(self.now_ms())
            self.step()
            await self.when(self._is_followed, FAREWELL_S)
        self._is_over = True
        if self._timer is not None:
            self._timer.cancel()
        for task in [*self._asking.values()]:
            task.cancel()
        while self._working:
            await asyncio.wait(self._working)

    def _is_followed(self) -> bool:
        """Somebody stands or leads in a new epoch. Until then our vote may be needed."""
        return not isinstance(self.replica.role, Resigned)


def _timing(config: BrokerConfig) -> Timing:
    return Timing(
        election_timeout_ms=config["controller.quorum.election.timeout.ms"],
        election_backoff_max_ms=config["controller.quorum.election.backoff.max.ms"],
        fetch_timeout_ms=config["controller.quorum.fetch.timeout.ms"],
        request_timeout_ms=config["controller.quorum.request.timeout.ms"],
        retry_backoff_ms=config["controller.quorum.retry.backoff.ms"],
        fetch_bytes_max=config["controller.quorum.fetch.max.bytes"],
        snapshot_bytes_max=config["controller.quorum.fetch.snapshot.max.bytes"],
    )


def _bootstrap(config: BrokerConfig) -> Sequence[Address]:
    places = []
    for each in config["controller.quorum.bootstrap.servers"]:
        host, _, port = each.strip().rpartition(":")
        places.append(Address("", host.strip("[]"), int(port)))
    return places
