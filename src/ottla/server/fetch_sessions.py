"""Fetch sessions (KIP-227): a consumer of many partitions names them once, then only what changes.

The broker remembers, per session, each partition's fetch parameters and what it last told of it. An incremental answer
holds a partition only if it has records, an error, a diverging epoch, or a changed watermark or log start. Partitions that
gave data move to the end of the order, so that a response limit does not starve the others.

A session is named by id and epoch: the epoch counts its requests, so that a lost or repeated request is noticed. When the
table is full, a new session replaces the one unused for longest, if that was long enough, or one with fewer partitions. A
follower's session comes before those of consumers.

A follower may have thousands of partitions of which few change. Its session is told of those (`news`), and a request looks
at no others: what it names and what has news.
"""

from __future__ import annotations

import asyncio
import random
from collections.abc import Callable, Iterable
from typing import TYPE_CHECKING, Protocol

from ottla.deadline import Deadline
from ottla.wire.errors import Error, KafkaError
from ottla.wire.messages.fetch import FetchRequest, FetchResponse

if TYPE_CHECKING:
    from ottla.replication.partition import Partition

FINAL_EPOCH = -1
INITIAL_EPOCH = 0
NO_SESSION = 0
EPOCH_MAX = 2**31 - 1

# A topic (its id from version 13 on, its name before) and a partition index.
Key = tuple[bytes | str, int]


class Wanted:
    """One partition of a fetch: what the client asks for, and what a session last told it."""

    __slots__ = (
        "current_leader_epoch",
        "index",
        "last_fetched_epoch",
        "offset",
        "partition_bytes_max",
        "start",
        "told_start",
        "told_watermark",
        "topic",
        "watermark",
    )

    def __init__(self, topic: bytes | str, asked: FetchRequest.Topic.Partition) -> None:
        self.topic = topic
        self.index = asked.partition
        self.told_watermark = self.told_start = -1
        self.update(asked)

    def update(self, asked: FetchRequest.Topic.Partition) -> None:
        self.offset = asked.fetch_offset
        self.partition_bytes_max = asked.partition_max_bytes
        self.current_leader_epoch = asked.current_leader_epoch
        self.last_fetched_epoch = asked.last_fetched_epoch
        # Where the log of a follower begins, and the watermark it knows of.
        self.start, self.watermark = asked.log_start_offset, asked.high_watermark

    def is_news(self, answer: FetchResponse.Topic.Partition, has_records: bool) -> bool:
        """Whether an incremental answer must mention this partition; remembers what is told."""
        if answer.error_code or answer.diverging_epoch.epoch >= 0:
            # Mentioned again once it is well, whatever its watermark then is: a follower that has to cut its log takes no
            # watermark from the answer that says so.
            self.told_watermark = -1
            return True
        news = (
            has_records
            or answer.preferred_read_replica >= 0
            or answer.high_watermark != self.told_watermark
            or answer.log_start_offset != self.told_start
        )
        self.told_watermark, self.told_start = answer.high_watermark, answer.log_start_offset
        return news


class Waiting(Protocol):
    """A fetch that waits for news of its session."""

    def notice(self, key: Key) -> None: ...
    def notice_watermark(self, key: Key, partition: Partition) -> None: ...
    def wake(self) -> None: ...


class Standing(Protocol):
    """Somebody who tells a session that one of its partitions has news."""

    def end(self) -> None: ...


class Session:
    __slots__ = (
        "_deadline",
        "created",
        "epoch",
        "id",
        "is_follower",
        "last_used",
        "news",
        "parked",
        "partitions",
        "standings",
        "uses_ids",
    )

    def __init__(
        self, session_id: int, uses_ids: bool, partitions: dict[Key, Wanted], now: float, is_follower: bool
    ) -> None:
        self.id = session_id
        self.is_follower = is_follower
        self.epoch = 1
        self.uses_ids = uses_ids
        self.partitions = partitions
        self.created = self.last_used = now
        self.standings: dict[Key, Standing] = {}
        self.news: dict[Key, None] = {}
        self.parked: Waiting | None = None
        self._deadline: Deadline | None = None

    def take_news(self, request: FetchRequest) -> dict[Key, Wanted]:
        """The partitions that a follower's request is about: those that had to wait first."""
        news, self.news = self.news, {}
        for topic in request.topics:
            for asked in topic.partitions:
                news[topic.topic_id if self.uses_ids else topic.topic, asked.partition] = None
        return {key: self.partitions[key] for key in news if key in self.partitions}

    def park(self, waiting: Waiting, loop: asyncio.AbstractEventLoop) -> Deadline:
        """A fetch waits from now on, until this deadline wakes it at the latest. The one before it has waited long enough."""
        if self.parked is not None:
            self.parked.wake()
        self.parked = waiting
        if self._deadline is None:
            self._deadline = Deadline(loop, self._wake)
        self._deadline.clear()
        return self._deadline

    def leave(self, waiting: Waiting) -> None:
        if self.parked is waiting:
            self.parked = None
            if self._deadline is not None:
                self._deadline.clear()

    def _wake(self) -> None:
        if self.parked is not None:
            self.parked.wake()

    def close(self) -> None:
        for standing in self.standings.values():
            standing.end()
        self.standings.clear()
        if self.parked is not None:
            self.parked.wake()
        if self._deadline is not None:
            self._deadline.close()

    def update(self, request: FetchRequest, uses_ids: bool) -> None:
        for topic in request.topics:
            name: bytes | str = topic.topic_id if uses_ids else topic.topic
            for asked in topic.partitions:
                known = self.partitions.get((name, asked.partition))
                if known is None:
                    self.partitions[name, asked.partition] = Wanted(name, asked)
                else:
                    known.update(asked)
        for forgotten in request.forgotten_topics_data:
            name = forgotten.topic_id if uses_ids else forgotten.topic
            for index in forgotten.partitions:
                self.partitions.pop((name, index), None)
                standing = self.standings.pop((name, index), None)
                if standing is not None:
                    standing.end()

    def move_last(self, keys: Iterable[Key]) -> None:
        for key in keys:
            wanted = self.partitions.pop(key, None)
            if wanted is not None:
                self.partitions[key] = wanted


class Plan:
    """What one fetch request comes to: the partitions to read, and the session it belongs to, if any."""

    __slots__ = ("epoch", "incremental", "session", "uses_ids", "wanted")

    def __init__(self, wanted: dict[Key, Wanted], uses_ids: bool) -> None:
        self.wanted = wanted
        self.uses_ids = uses_ids
        self.session: Session | None = None
        self.incremental = False
        self.epoch = 0

    @property
    def is_part(self) -> bool:
        """Whether there are more partitions in its session, of which there is nothing to say."""
        return self.session is not None and self.session.is_follower

    def session_mentions(self, key: Key, answer: FetchResponse.Topic.Partition, has_records: bool) -> bool:
        """Whether the answer of this session must hold a partition: a first answer holds all."""
        return self.wanted[key].is_news(answer, has_records) or not self.incremental

    def check_epoch(self) -> None:
        """A duplicate of this request may have moved the session on while we waited for data."""
        if self.incremental and self.session is not None and self.session.epoch != self.epoch:
            raise KafkaError(Error.INVALID_FETCH_SESSION_EPOCH)


class FetchSessions:
    def __init__(self, slots: int, eviction_s: float, rng: random.Random, clock: Callable[[], float]) -> None:
        self._slots = slots
        self._eviction_s = eviction_s
        self._rng = rng
        self._clock = clock
        self._sessions: dict[int, Session] = {}

    def __len__(self) -> int:
        return len(self._sessions)

    def plan(self, request: FetchRequest, version: int) -> Plan:
        """Find or begin the session of a request; KafkaError when it names one that is not there."""
        uses_ids = version >= 13
        if request.session_epoch in (FINAL_EPOCH, INITIAL_EPOCH):
            return self._full(request, uses_ids, keep=request.session_epoch == INITIAL_EPOCH and version >= 7)
        session = self._sessions.get(request.session_id)
        if session is None:
            raise KafkaError(Error.FETCH_SESSION_ID_NOT_FOUND)
        if session.epoch != request.session_epoch:
            raise KafkaError(Error.INVALID_FETCH_SESSION_EPOCH)
        if session.uses_ids != uses_ids:
            raise KafkaError(Error.FETCH_SESSION_TOPIC_ID_ERROR)
        return self._incremental(session, request, uses_ids)

    def without_records(self, plan: Plan) -> FetchResponse:
        """The answer to a client that is over its quota: it tells nothing, and a session does not begin with it (KIP-219)."""
        if plan.session is None or plan.incremental:
            return FetchResponse(session_id=plan.session.id if plan.session else NO_SESSION)
        self._drop(plan.session.id)
        return FetchResponse()

    def _drop(self, session_id: int) -> None:
        session = self._sessions.pop(session_id, None)
        if session is not None:
            session.close()

    def _full(self, request: FetchRequest, uses_ids: bool, keep: bool) -> Plan:
        self._drop(request.session_id)
        wanted: dict[Key, Wanted] = {}
        for topic in request.topics:
            name: bytes | str = topic.topic_id if uses_ids else topic.topic
            for asked in topic.partitions:
                wanted[name, asked.partition] = Wanted(name, asked)
        plan = Plan(wanted, uses_ids)
        if keep:
            is_follower = request.replica_id >= 0 or request.replica_state.replica_id >= 0
            plan.session = self._begin(wanted, uses_ids, is_follower)
        return plan

    def _incremental(self, session: Session, request: FetchRequest, uses_ids: bool) -> Plan:
        session.update(request, uses_ids)
        if not session.partitions:
            self._drop(session.id)
            return Plan({}, uses_ids)
        session.last_used = self._clock()
        session.epoch = 1 if session.epoch == EPOCH_MAX else session.epoch + 1
        wanted = session.take_news(request) if session.is_follower else dict(session.partitions)
        plan = Plan(wanted, uses_ids)
        plan.session, plan.incremental, plan.epoch = session, True, session.epoch
        return plan

    def _begin(self, wanted: dict[Key, Wanted], uses_ids: bool, is_follower: bool) -> Session | None:
        now = self._clock()
        if len(self._sessions) >= self._slots and not self._evict(len(wanted), is_follower, now):
            return None
        session_id = NO_SESSION
        while session_id == NO_SESSION or session_id in self._sessions:
            session_id = self._rng.randrange(1, 2**31)
        session = self._sessions[session_id] = Session(session_id, uses_ids, dict(wanted), now, is_follower)
        return session

    def _evict(self, size: int, for_follower: bool, now: float) -> bool:
        """Make room for a session of `size` partitions, by age first, then by who it is for and by size."""
        if not self._sessions:
            return False
        oldest = min(self._sessions.values(), key=lambda session: session.last_used)
        if now - oldest.last_used > self._eviction_s:
            self._drop(oldest.id)
            return True
        least = min(self._sessions.values(), key=lambda session: (session.is_follower, len(session.partitions)))
        is_old = now - least.created > self._eviction_s
        is_lesser = (least.is_follower, len(least.partitions)) < (for_follower, size)
        if is_lesser and (is_old or (for_follower and not least.is_follower)):
            self._drop(least.id)
            return True
        return False
