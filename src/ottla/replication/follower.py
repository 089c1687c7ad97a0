"""The pull loop: one for each broker that leads partitions which this broker follows.

A fetch says with its offset that everything below is in our log: it goes out only when what came before is written (and
synced, where the topic wants that). Batches are appended as they come. With them the leader tells its watermark and log start.

Where two histories part (KIP-101, KIP-279, KIP-595): every fetch names the epoch of our last record. If the leader's log has
another history it answers with the largest epoch that it knows up to ours, and where that ended. We cut at the smaller of that
and of where that epoch ended here, and ask again: each round goes back by at least one epoch, until both agree. Nothing is
ever cut on our own account: a watermark may lag behind what was acknowledged.

One partition in trouble does not hold up the others: it pauses, for longer each time, and is left out meanwhile. What belongs
to an older picture (another leader epoch, another topic of the same name) is recognised by the epoch and the topic id that it
was asked with, and dropped.

Sessions (KIP-227): after the first fetch only what changed is named.
"""

from __future__ import annotations

import asyncio
import logging
import math
from collections.abc import Callable, Iterable
from contextlib import suppress
from typing import NamedTuple

from ottla.replication.neighbours import Line, Neighbours
from ottla.replication.partition import Partition
from ottla.replication.throttle import Throttle
from ottla.wire.errors import Error, KafkaError, error_of
from ottla.wire.messages.fetch import FetchRequest, FetchResponse
from ottla.wire.messages.offsets import ListOffsetsRequest, ListOffsetsResponse
from ottla.wire.records import HEADER_BYTES, PREFIX_BYTES
from ottla.wire.schema import maker

log_ = logging.getLogger("ottla.replication")

NO_SESSION = 0
FULL = 0  # the session epoch of a request that names all partitions
EPOCH_MAX = 2**31 - 1
LATEST, EARLIEST = -1, -2
# After a failure, and twice as long after each further one, up to `replica.fetch.backoff.ms`.
PAUSE_S = 0.02
# A new partition interrupts a fetch that waits for the old ones, but not sooner than after this.
INTERRUPT_S = 0.02
# The fetch after it names all partitions anew. Beyond so many that costs too much to be done again and again while many come
# one after the other: each of the rest puts the next interruption off. A fetch ends by itself within half a second.
NAMED_CHEAPLY = 100
NAMING_S = 0.01
NAMING_MAX_S = 5.0

SESSION_IS_GONE = {
    Error.FETCH_SESSION_ID_NOT_FOUND,
    Error.INVALID_FETCH_SESSION_EPOCH,
    Error.FETCH_SESSION_TOPIC_ID_ERROR,
}
# What happens while a picture of the cluster spreads; worth a line only for whoever looks closely.
ORDINARY = {Error.UNKNOWN_LEADER_EPOCH, Error.NOT_LEADER_OR_FOLLOWER, Error.FENCED_LEADER_EPOCH, Error.UNKNOWN_TOPIC_ID}

Key = tuple[bytes, int]
Asked = FetchRequest.Topic.Partition
Told = FetchResponse.Topic.Partition
make_asked = maker(
    *(Asked, "partition", "current_leader_epoch", "fetch_offset", "last_fetched_epoch", "log_start_offset"),
    *("high_watermark", "partition_max_bytes"),
)
make_topic = maker(FetchRequest.Topic, "topic_id", "partitions")
make_request = maker(
    *(
        FetchRequest,
        "replica_id",
        "replica_state",
        "max_wait_ms",
        "min_bytes",
        "max_bytes",
        "session_id",
        "session_epoch",
    ),
    *("topics", "forgotten_topics_data"),
)
make_state = maker(FetchRequest.ReplicaState, "replica_id", "replica_epoch")


class Position(NamedTuple):
    """What a fetch says of one partition, in the order of `make_asked`."""

    leader_epoch: int
    offset: int
    last_epoch: int
    start: int
    watermark: int
    bytes_max: int


class Followed:
    """One partition that is copied from its leader."""

    __slots__ = ("busy", "failures", "lag", "leader_epoch", "partition", "paused_until", "sent")

    def __init__(self, partition: Partition) -> None:
        self.partition = partition
        self.leader_epoch = partition.leader_epoch
        self.sent: Position | None = None  # what the leader's session knows of it
        self.paused_until = -math.inf
        self.failures = 0
        self.lag = 0  # how far it was behind the leader's watermark when that was last told
        self.busy: asyncio.Future[None] | None = None  # its log is being cut

    @property
    def key(self) -> Key:
        return self.partition.topic_id, self.partition.index

    @property
    def is_where_it_asked(self) -> bool:
        """Whether an answer is for what we are now. The partition may have been taken away and given back meanwhile."""
        return self.sent is not None and self.sent.offset == self.partition.log.end_offset

    def position(self, bytes_max: int) -> Position:
        partition, log = self.partition, self.partition.log
        watermark = partition.high_watermark.value
        return Position(self.leader_epoch, log.end_offset, log.epochs.latest, log.start_offset, watermark, bytes_max)


class Fetcher:
    """Follows one leader."""

    def __init__(
        self,
        leader_id: int,
        node_id: int,
        neighbours: Neighbours,
        now_ms: Callable[[], int],
        throttle: Throttle,
    ) -> None:
        self.leader_id = leader_id
        self._node_id = node_id
        self._neighbours = neighbours
        self._now_ms = now_ms
        self._throttle = throttle
        self._loop = asyncio.get_running_loop()
        self.followed: dict[Key, Followed] = {}
        self._news: dict[Key, None] = {}  # to be named in the next request
        self._gone: dict[Key, None] = {}  # to be forgotten with it
        self._paused: dict[Key, Followed] = {}
        self._session_id, self._session_epoch = NO_SESSION, FULL
        self._changed = asyncio.Event()
        self._interrupts = False
        self._interruptible_from = -math.inf
        self._failures = 0
        self._line: Line | None = None
        self._parted: list[tuple[Followed, Told]] = []  # whose history is not that of the leader
        self._task = self._loop.create_task(self._run(), name=f"follow {leader_id}")
        self.fetches = self.bytes_in = 0

    # --- what is followed

    def add(self, partition: Partition) -> None:
        followed = Followed(partition)
        self.followed[followed.key] = followed
        self._gone.pop(followed.key, None)
        self._news[followed.key] = None
        self._changed.set()
        if not self._interrupts:
            self._interrupts = True
            self._loop.call_at(max(self._loop.time() + INTERRUPT_S, self._interruptible_from), self._interrupt)

    def _interrupt(self) -> None:
        """A fetch may wait for half a second; a new partition should not."""
        now = self._loop.time()
        if self._interrupts and self._line is not None and now + INTERRUPT_S / 2 > self._interruptible_from:
            expensive = max(len(self.followed) - NAMED_CHEAPLY, 0)
            self._interruptible_from = now + min(expensive * NAMING_S, NAMING_MAX_S)
            self._line.close()

    async def remove(self, partition: Partition) -> None:
        """The partition is not touched any more when this returns."""
        followed = self.followed.pop((partition.topic_id, partition.index), None)
        if followed is None:
            return
        self._leave_out(followed)
        if followed.busy is not None:
            await asyncio.wait([followed.busy])

    def _leave_out(self, followed: Followed) -> None:
        key = followed.key
        self._news.pop(key, None)
        self._paused.pop(key, None)
        if followed.sent is not None:
            followed.sent = None
            self._gone[key] = None

    async def stop(self) -> None:
        for followed in list(self.followed.values()):
            await self.remove(followed.partition)
        self._task.cancel()
        await asyncio.wait([self._task])
        if self._line is not None:
            self._line.close()

    def is_following(self, followed: Followed) -> bool:
        """Whether this is still what the picture says."""
        return self.followed.get(followed.key) is followed

    # --- the loop

    async def _run(self) -> None:
        while True:
            try:
                await self._round()
            except (OSError, KafkaError) as error:
                await self._rest(error)
            except Exception:
                # A defect. The next round must not do the same at once and for ever.
                log_.exception("following broker %d: a round failed", self.leader_id)
                await self._rest(None)

    async def _rest(self, error: Exception | None) -> None:
        """There was no answer. The session may have seen the request or not: the next one begins anew."""
        self._begin_anew()
        if self._interrupts:
            self._interrupts = False
            return
        self._failures += 1
        pause_s = self._pause_s(self._failures)
        (log_.info if self._failures > 1 else log_.warning)("broker %d was not reached: %s", self.leader_id, error)
        await asyncio.sleep(pause_s)

    def _pause_s(self, failures: int) -> float:
        return min(PAUSE_S * 2.0 ** min(failures, 30), self._neighbours.seconds("replica.fetch.backoff.ms"))

    async def _round(self) -> None:
        self._take_back_paused()
        await self._sync(self._news)
        request = self._request()
        if request is None:
            self._changed.clear()
            await self._wait_for_change()
            return
        if self._line is None:
            self._line = self._neighbours.open_line("replica", self.leader_id)
        timeout_s = (request.max_wait_ms / 1000) + self._neighbours.seconds("replica.socket.timeout.ms")
        await self._line.ask(request, timeout_s, self._go_on)
        for followed, told in self._parted:
            await self._mend(followed, told)

    def _go_on(self, response: FetchResponse) -> FetchRequest | None:
        """Hear an answer, and ask on at once; nothing if there is something to wait for before."""
        self._failures = 0
        self.fetches += 1
        self._parted = self._hear(response)
        if self._parted or self._paused or any(_has_to_sync(self.followed[key]) for key in self._news):
            return None
        return self._request()

    async def _wait_for_change(self) -> None:
        seconds = self._soonest() - self._loop.time()
        with suppress(TimeoutError):
            async with asyncio.timeout(None if seconds == math.inf else max(seconds, 0)):
                await self._changed.wait()

    def _soonest(self) -> float:
        return min((followed.paused_until for followed in self._paused.values()), default=math.inf)

    def _take_back_paused(self) -> None:
        if not self._paused:
            return
        now = self._loop.time()
        for key, followed in list(self._paused.items()):
            if followed.paused_until <= now:
                del self._paused[key]
                self._gone.pop(key, None)  # or one request would name it and forget it
                self._news[key] = None

    # --- asking

    def _begin_anew(self) -> None:
        self._session_epoch = FULL
        self._gone.clear()
        for key, followed in self.followed.items():
            followed.sent = None
            if key not in self._paused:
                self._news[key] = None

    def _request(self) -> FetchRequest | None:
        """All that changed since the last one; None if there is nobody to ask for."""
        if len(self.followed) == len(self._paused):
            self._begin_anew()
            return None
        self._hold_back()
        topics = self._named()
        if not topics and self._session_epoch == FULL:
            return None
        self._interrupts = False
        forgotten: dict[bytes, list[int]] = {}
        for topic_id, index in self._gone:
            forgotten.setdefault(topic_id, []).append(index)
        self._gone.clear()
        setting = self._neighbours.setting
        return make_request(
            self._node_id,
            make_state(self._node_id, self._neighbours.broker_epoch()),
            self._wait_ms(),
            setting("replica.fetch.min.bytes"),
            setting("replica.fetch.response.max.bytes"),
            self._session_id,
            self._session_epoch,
            [make_topic(topic_id, asked) for topic_id, asked in topics.items()],
            [FetchRequest.ForgottenTopic(topic_id=topic_id, partitions=gone) for topic_id, gone in forgotten.items()],
        )

    def _wait_ms(self) -> int:
        """Not longer than until a pause is over."""
        longest: int = self._neighbours.setting("replica.fetch.wait.max.ms")
        if not self._paused:
            return longest
        left_s = self._soonest() - self._loop.time()
        return max(0, min(longest, math.ceil(left_s * 1000)))

    def _named(self) -> dict[bytes, list[Asked]]:
        bytes_max = self._neighbours.setting("replica.fetch.max.bytes")
        news, self._news = self._news, {}
        topics: dict[bytes, list[Asked]] = {}
        for topic_id, index in news:
            followed = self.followed[topic_id, index]
            position = followed.position(bytes_max)
            if position == followed.sent:
                continue
            followed.sent = position
            topics.setdefault(topic_id, []).append(make_asked(index, *position))
        return topics

    def _hold_back(self) -> None:
        """Partitions that are only brought here by a reassignment wait while they would be faster than they may."""
        if not self._throttle.is_exceeded(self._loop.time()):
            return
        for key in [key for key in self._news if self._throttle.concerns(self.followed[key].partition)]:
            self._pause(self.followed[key], self._throttle.wait_s)

    # --- hearing

    def _hear(self, response: FetchResponse) -> list[tuple[Followed, Told]]:
        """Take what came. Whose history parts from the leader's is told."""
        if response.error_code:
            return self._hear_refusal(error_of(response.error_code))
        answers = [
            (followed, told)
            for topic in response.responses
            for told in topic.partitions
            if (followed := self.followed.get((topic.topic_id, told.partition_index))) is not None
            and followed.is_where_it_asked
        ]
        self._session_id = response.session_id
        if response.session_id == NO_SESSION:
            self._begin_anew()
        else:
            self._session_epoch = 1 if self._session_epoch == EPOCH_MAX else self._session_epoch + 1
        return self._take_all(answers)

    def _hear_refusal(self, error: Error) -> list[tuple[Followed, Told]]:
        if error not in SESSION_IS_GONE:
            raise KafkaError(error)
        self._begin_anew()
        self._session_id = NO_SESSION
        return []

    def _take_all(self, answers: Iterable[tuple[Followed, Told]]) -> list[tuple[Followed, Told]]:
        parted = []
        for followed, told in answers:
            if told.error_code == Error.OFFSET_OUT_OF_RANGE.code or (
                not told.error_code and told.diverging_epoch.epoch >= 0
            ):
                parted.append((followed, told))
            elif told.error_code:
                self._trouble(followed, KafkaError(error_of(told.error_code)))
            else:
                self._take(followed, told)
        return parted

    def _take(self, followed: Followed, told: Told) -> None:
        """Append what came, and learn the rest."""
        partition, data = followed.partition, memoryview(told.records or b"")
        taken = size_of_batches(data, followed.leader_epoch)
        try:
            if taken:
                partition.take(data[:taken], self._now_ms())
                self._account(partition, taken)
            partition.learn(told.high_watermark, told.log_start_offset)
            followed.lag = max(told.high_watermark - partition.log.end_offset, 0)
        except KafkaError as error:
            self._trouble(followed, error)
        else:
            followed.failures = 0
            if self.is_following(followed):
                self._news[followed.key] = None

    def _account(self, partition: Partition, size: int) -> None:
        self.bytes_in += size
        if self._throttle.concerns(partition):
            self._throttle.record(size, self._loop.time())

    async def _sync(self, claims: Iterable[Key]) -> None:
        """TRAP-49: where the topic wants its records synced, the next fetch must not claim them before they are; neither what
        was just copied, nor what this broker wrote as a leader, nor what could not be synced the last time."""
        while due := [followed for key in claims if _has_to_sync(followed := self.followed[key])]:
            logs = [followed.partition.log for followed in due]
            results = await asyncio.gather(*(log.flush() for log in logs), return_exceptions=True)
            for followed, result in zip(due, results, strict=True):
                if isinstance(result, OSError | KafkaError):
                    self._trouble(followed, result)
                elif isinstance(result, BaseException):
                    raise result

    def _trouble(self, followed: Followed, error: Exception) -> None:
        """Leave the partition out for a while."""
        followed.failures += 1
        ordinary = isinstance(error, KafkaError) and error.error in ORDINARY
        name, leader = followed.partition.log.name, self.leader_id
        (log_.debug if ordinary else log_.warning)("%s: could not be copied from %d: %s", name, leader, error)
        self._pause(followed, self._pause_s(followed.failures))

    def _pause(self, followed: Followed, seconds: float) -> None:
        if self.is_following(followed):
            self._leave_out(followed)
            followed.paused_until = self._loop.time() + seconds
            self._paused[followed.key] = followed

    # --- histories that part

    async def _mend(self, followed: Followed, told: Told) -> None:
        if not self.is_following(followed):
            return
        followed.busy = self._loop.create_future()
        try:
            if told.diverging_epoch.epoch >= 0:
                await self._cut(followed.partition, told.diverging_epoch.epoch, told.diverging_epoch.end_offset)
            else:
                await self._find_place(followed)
            if self.is_following(followed):
                self._news[followed.key] = None
        except (OSError, KafkaError) as error:
            self._trouble(followed, error)
        finally:
            followed.busy.set_result(None)
            followed.busy = None

    async def _cut(self, partition: Partition, epoch: int, end: int) -> None:
        """The leader knows no epoch between this one and our last; it ended there at `end`."""
        log = partition.log
        known, ended = log.end_offset_for_epoch(epoch)
        target = min(end, log.end_offset)
        if known == epoch:
            target = min(ended, target)
        elif known >= 0:
            target = min(ended, log.end_offset)  # an epoch that we never had: back to the one before, and ask again
        if target < log.end_offset:
            log_.info("%s: cut from %d to %d, where epoch %d ended", log.name, log.end_offset, target, epoch)
        await partition.cut(target)

    async def _find_place(self, followed: Followed) -> None:
        """Our end is outside of the leader's log: it has less (an unclean election), or nothing that old."""
        partition, end = followed.partition, followed.partition.log.end_offset
        latest = await self._offset(followed, LATEST)
        if latest < end:
            await partition.cut(latest)
            return
        earliest = await self._offset(followed, EARLIEST)
        await partition.log.at_rest()
        if self.is_following(followed) and earliest > end:
            log_.info("%s: begins anew at %d, because the leader has nothing older", partition.log.name, earliest)
            partition.begin_anew(earliest)

    async def _offset(self, followed: Followed, timestamp: int) -> int:
        asked = ListOffsetsRequest.Topic.Partition(
            partition_index=followed.partition.index,
            current_leader_epoch=followed.leader_epoch,
            timestamp=timestamp,
        )
        topic = ListOffsetsRequest.Topic(name=followed.partition.topic, partitions=[asked])
        request = ListOffsetsRequest(replica_id=self._node_id, topics=[topic])
        assert self._line is not None
        timeout_s = self._neighbours.seconds("replica.socket.timeout.ms")
        response: ListOffsetsResponse = await self._line.ask(request, timeout_s)
        answer = response.topics[0].partitions[0]
        if answer.error_code:
            raise KafkaError(error_of(answer.error_code))
        if not self.is_following(followed):
            raise KafkaError(Error.FENCED_LEADER_EPOCH)
        return answer.offset


def _has_to_sync(followed: Followed) -> bool:
    log = followed.partition.log
    return log.unflushed >= log.settings.flush_messages


def size_of_batches(data: memoryview, epoch_max: int) -> int:
    """How many bytes of whole batches there are. One of a later epoch than we asked with was written by a leadership that we
    have not heard of (TRAP-47): it and what follows it come again when we have."""
    position = 0
    while position + HEADER_BYTES <= len(data):
        size = int.from_bytes(data[position + 8 : position + 12], "big", signed=True) + PREFIX_BYTES
        epoch = int.from_bytes(data[position + 12 : position + 16], "big", signed=True)
        if size < HEADER_BYTES or position + size > len(data) or epoch > epoch_max:
            break
        position += size
    return position


class Fetchers:
    """All leaders that are followed, each by one loop."""

    def __init__(
        self, node_id: int, neighbours: Neighbours, now_ms: Callable[[], int], throttle: Throttle | None = None
    ) -> None:
        self._node_id = node_id
        self._neighbours = neighbours
        self._now_ms = now_ms
        self._throttle = throttle or Throttle()
        self.by_leader: dict[int, Fetcher] = {}
        self._where: dict[Key, Fetcher] = {}

    def join(self, partition: Partition) -> None:
        """Copy it from its leader, from now on."""
        if partition.leader < 0:
            return
        fetcher = self.by_leader.get(partition.leader)
        if fetcher is None:
            fetcher = self.by_leader[partition.leader] = Fetcher(
                partition.leader, self._node_id, self._neighbours, self._now_ms, self._throttle
            )
        self._where[partition.topic_id, partition.index] = fetcher
        fetcher.add(partition)

    async def leave(self, partition: Partition) -> None:
        """Nobody touches its log any more when this returns."""
        fetcher = self._where.pop((partition.topic_id, partition.index), None)
        if fetcher is not None:
            await fetcher.remove(partition)

    async def stop(self) -> None:
        for fetcher in self.by_leader.values():
            await fetcher.stop()
        self.by_leader.clear()
        self._where.clear()

    def __len__(self) -> int:
        return len(self._where)
