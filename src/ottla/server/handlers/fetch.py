"""Fetch: whole batches from the leader's files, bounded by what the reader may see, after waiting for enough of them.

Versions: 7 sessions (KIP-227), 9 leader epochs (KIP-320), 11 closest replica (KIP-392), 12 flexible and divergence by
epoch (KIP-595), 13 topic ids instead of names (KIP-516), 15 replica state as a tag (KIP-903), 16 endpoints of new leaders
(KIP-951), 17 replica directory (KIP-853), 18 the follower's watermark (KIP-1166).

A fetch reads first. If that is less than `min_bytes` it parks: at each rise of a watermark it counts bytes by file
position, without reading, until there are enough, something went wrong, or the deadline; then it reads once more. A
partition that does not exist is told at the end of the answer and does not keep the others from waiting, as in Kafka: a
consumer of a deleted topic would otherwise ask without pause.

A follower reads up to the end of the log, and says with its fetch that it has everything below (`replication/leadership`). It
waits for the log's end, and for a moment only where the watermark is above the one it knows.

A consumer may be sent to a replica in its own rack (KIP-392), and reads there up to the watermark that replica knows. One that
names no rack may read there too, but is not told that the log ends where this replica does.
"""

from __future__ import annotations

import asyncio
from typing import Any

from ottla.deadline import Deadline
from ottla.log.reading import Located
from ottla.replication.closest import closest
from ottla.replication.partition import Partition
from ottla.rising import Prompt, Rising
from ottla.server.context import Context
from ottla.server.dispatch import serves
from ottla.server.fetch_sessions import NO_SESSION, Key, Plan, Session, Wanted
from ottla.server.leaders import FETCH_SINCE, tell_leaders_to_reader
from ottla.wire.errors import Error, KafkaError
from ottla.wire.messages.fetch import FetchRequest, FetchResponse
from ottla.wire.schema import ZERO_UUID, maker

TopicAnswer = FetchResponse.Topic
Answer = FetchResponse.Topic.Partition
make_response = maker(FetchResponse, "responses")
make_topic_by_name = maker(TopicAnswer, "topic", "partitions")
make_topic_by_id = maker(TopicAnswer, "topic_id", "partitions")
make_answer = maker(
    *(Answer, "partition_index", "high_watermark", "last_stable_offset"),
    *("log_start_offset", "aborted_transactions", "records"),
)
Diverging = Answer.EpochEndOffset
Aborted = Answer.AbortedTransaction

READ_COMMITTED = 1
ISOLATION_LEVELS = (0, READ_COMMITTED)
FROM_FOLLOWERS_SINCE = 11
IDS_SINCE = 13
REPLICA_STATE_SINCE = 15
# A follower that waits for records is told so soon that the watermark rose; most often records come before.
WATERMARK_NEWS_S = 0.01
UNTOLD = 2**63 - 1
NOBODY = -1
# A follower that begins anew, or a consumer, may ask for thousands: after so many of them others get their turn.
PARTITIONS_PER_TURN = 200
RACK_AWARE = "org.apache.kafka.common.replica.RackAwareReplicaSelector"


@serves(FetchRequest, versions="4-18", guarded=False)
async def fetch(request: FetchRequest, ctx: Context) -> FetchResponse:
    try:
        plan = ctx.node.fetch_sessions.plan(request, ctx.version)
    except KafkaError as error:
        return FetchResponse(error_code=error.code)
    reading = Reading(plan, request, ctx)
    if reading.follower_id >= 0:
        ctx.connection.is_exempt = True
    charging = ctx.node.charging if reading.follower_id < 0 else None
    if charging is not None:
        reading.bring_at_most(charging.fetch_bytes_max(ctx))
    if request.isolation_level not in ISOLATION_LEVELS and reading.has_something_to_read():
        return _failed(request, ctx.version)
    await reading.read()
    if not reading.is_enough() and request.max_wait_ms > 0:
        await Parked(reading, ctx.node.loop).wait(request.max_wait_ms / 1000)
        reading.is_again = True
        await reading.read()
    try:
        plan.check_epoch()
    except KafkaError as error:
        return FetchResponse(error_code=error.code, session_id=plan.session.id if plan.session else NO_SESSION)
    if charging is not None:
        wait_ms, may_send = charging.fetched(ctx, reading.bytes_read)
        response = reading.response() if may_send else ctx.node.fetch_sessions.without_records(plan)
        response.throttle_time_ms = wait_ms
    else:
        response = reading.response()
    if reading.has_failed and ctx.version >= FETCH_SINCE:
        tell_leaders_to_reader(response, ctx.image, ctx.listener)
    return response


def _failed(request: FetchRequest, version: int) -> FetchResponse:
    """As Kafka answers where it stumbles over a request; before topic ids each partition is told as well."""
    error = KafkaError(Error.UNKNOWN_SERVER_ERROR)
    topics = [
        TopicAnswer(topic=topic.topic, partitions=[_refused(asked.partition, error, []) for asked in topic.partitions])
        for topic in (request.topics if version < IDS_SINCE else ())
    ]
    return FetchResponse(error_code=error.code, session_id=request.session_id, responses=topics)


class Reading:
    """All partitions of one fetch, read in order within the limits of the request."""

    __slots__ = (
        "answers",
        "bytes_max",
        "bytes_read",
        "comes_behind",
        "follower_id",
        "has_failed",
        "has_waited",
        "is_again",
        "isolation",
        "life",
        "may_ask_followers",
        "min_bytes",
        "missed",
        "names_rack",
        "patience_s",
        "plan",
        "rack",
        "replicas",
        "session_asked",
        "urgent",
    )

    def __init__(self, plan: Plan, request: FetchRequest, ctx: Context) -> None:
        self.plan = plan
        self.replicas = ctx.node.replicas
        self.isolation = request.isolation_level
        self.comes_behind = ctx.comes_behind
        self.session_asked = request.session_id
        state = request.replica_state if ctx.version >= REPLICA_STATE_SINCE else request
        self.follower_id = state.replica_id
        self.life = request.replica_state.replica_epoch
        self.is_again = False
        # Partitions that were not here when the request came; they may be when it is read again.
        self.missed: frozenset[Key] = frozenset()
        self.may_ask_followers = self.follower_id < 0 and ctx.version >= FROM_FOLLOWERS_SINCE
        self.names_rack, self.rack = bool(request.rack_id), ""
        if self.names_rack and self.may_ask_followers and ctx.node.config["replica.selector.class"] == RACK_AWARE:
            self.rack = request.rack_id
        self.bytes_max = min(request.max_bytes, ctx.node.fetch_bytes_max)
        self.min_bytes = min(request.min_bytes, self.bytes_max)
        self.patience_s = request.max_wait_ms / 1000
        self.answers: dict[Key, Answer] = {}
        self.bytes_read = 0
        self.urgent = self.has_failed = False
        self.has_waited = False  # something else may have happened while it read

    def bring_at_most(self, bytes_max: int) -> None:
        self.bytes_max = min(self.bytes_max, bytes_max)
        self.min_bytes = min(self.min_bytes, bytes_max)

    def has_something_to_read(self) -> bool:
        """Whether any of the partitions is there."""
        hosted = ((self.replicas.hosted(wanted.topic), wanted.index) for wanted in self.plan.wanted.values())
        return any(topic is not None and index in topic.partitions for topic, index in hosted)

    def is_enough(self) -> bool:
        return self.urgent or self.bytes_read >= self.min_bytes

    async def read(self) -> None:
        self.bytes_read = 0
        self.urgent = self.has_failed = self.has_waited = False
        if self.follower_id >= 0 and self.plan.session is not None:
            self._listen(self.plan.session)
        answers: dict[Key, Answer] = {}
        missing: dict[Key, Answer] = {}
        for key, wanted in self.plan.wanted.items():
            try:
                partition = self.replicas.find(wanted.topic, wanted.index)
            except KafkaError as error:
                missing[key] = _refused(wanted.index, error, [])
                self.has_failed = True
                continue
            try:
                answer = self._read_now(partition, wanted)
                if answer is None:
                    self.has_waited = True
                    answer = await self._read_later(partition, wanted)
                answers[key] = answer
            except KafkaError as error:
                self.has_waited = True
                answers[key] = await self._try_again(partition, wanted, error)
            if len(answers) % PARTITIONS_PER_TURN == 0:
                self.has_waited = True
                await asyncio.sleep(0)
        if not answers and (missing or not self.plan.is_part):
            self.urgent = True
        self.missed = frozenset(missing)
        self.answers = {**answers, **_unknown_ids_first(missing)} if missing else answers

    async def _try_again(self, partition: Partition, wanted: Wanted, error: KafkaError) -> Answer:
        """What is damaged here may be had from another replica before the reader loses patience."""
        if await self.replicas.mending.mends(partition, wanted.offset, error, self.patience_s):
            try:
                return self._read_now(partition, wanted) or await self._read_later(partition, wanted)
            except KafkaError as again:
                error = again
        self.urgent = self.has_failed = True
        return _refused(wanted.index, error, None)

    def _listen(self, session: Session) -> None:
        """From now on a follower's session is told when a partition that it has asked for has news."""
        for key in self.plan.wanted:
            if key not in session.standings:
                partition = self.partition(key)
                if partition is not None and partition.leadership is not None:
                    session.standings[key] = Listening(session, key, partition)

    def partition(self, key: Key) -> Partition | None:
        hosted = self.replicas.hosted(key[0])
        return hosted.partitions.get(key[1]) if hosted is not None else None

    def _read_now(self, partition: Partition, wanted: Wanted) -> Answer | None:
        """The answer for one partition, or None where the disk has to be waited for."""
        partition.open_to(wanted.current_leader_epoch, self.comes_behind, self.may_ask_followers)
        if self.follower_id >= 0:
            partition.check_follower(self.follower_id, wanted.current_leader_epoch)
        elif self.rack and (preferred := self._preferred(partition, wanted)) >= 0:
            self.urgent = True
            answer = self._answer(partition, wanted.index, b"", None)
            answer.preferred_read_replica = preferred
            return answer
        if wanted.last_fetched_epoch >= 0:
            diverging = self._divergence(partition, wanted)
            if diverging is not None:
                self.urgent = True
                answer = self._answer(partition, wanted.index, b"", None)
                answer.diverging_epoch = diverging
                return answer
        log, first = partition.log, not self.bytes_read
        limit = self._limit(wanted)
        if self.follower_id >= 0 and self._is_held_back(partition):
            limit, first = 0, False
        if wanted.offset > log.end_offset and not self.names_rack:
            # Nobody sent it here as to the closest replica: it takes us for the leader, and our end for that of the log.
            partition.check_leader(wanted.current_leader_epoch)
        located = log.locate(wanted.offset, limit, self.bound(partition), first, False)
        if self.follower_id >= 0 and partition.leadership is not None and self._is_first_look(wanted):
            partition.leadership.has_fetched(self.follower_id, wanted.offset, wanted.start, self.life)
        return self._found(partition, wanted, located) if located.verified else None

    def _is_first_look(self, wanted: Wanted) -> bool:
        """A follower says how far it is once with each request, and does not repeat it for a partition without news."""
        return not self.is_again or (wanted.topic, wanted.index) in self.missed

    async def _read_later(self, partition: Partition, wanted: Wanted) -> Answer:
        limit, bound = self._limit(wanted), self.bound(partition)
        located = await partition.log.read(wanted.offset, limit, bound, not self.bytes_read)
        return self._found(partition, wanted, located)

    def bound(self, partition: Partition) -> int:
        """The offset that this reader may not reach."""
        return partition.log.end_offset if self.follower_id >= 0 else partition.bound(self.isolation)

    def _is_held_back(self, partition: Partition) -> bool:
        return self.follower_id not in partition.isr and self.replicas.holds_back(partition, self.follower_id)

    def available(self, partition: Partition, wanted: Wanted) -> int:
        """How many bytes could be read. For a follower to which one is enough they are not counted."""
        if self.follower_id >= 0:
            if self._is_held_back(partition):
                return 0
            if self.min_bytes <= 1:
                return min(int(wanted.offset < partition.log.end_offset), wanted.partition_bytes_max)
        return min(partition.log.bytes_from(wanted.offset, self.bound(partition)), wanted.partition_bytes_max)

    def _preferred(self, partition: Partition, wanted: Wanted) -> int:
        """The follower that this consumer had better ask."""
        leadership, image = partition.leadership, self.replicas.image
        return NOBODY if leadership is None else closest(leadership, image, wanted.offset, self.rack)

    def _limit(self, wanted: Wanted) -> int:
        limit, left = wanted.partition_bytes_max, self.bytes_max - self.bytes_read
        if limit > left:
            limit = left
        return limit if limit > 0 else 0

    def _found(self, partition: Partition, wanted: Wanted, located: Located) -> Answer:
        aborted = None
        if self.isolation == READ_COMMITTED and self.follower_id < 0:
            aborted = self._aborted(partition, wanted, located)
        self.bytes_read += located.size
        if self.follower_id >= 0 and self.follower_id not in partition.isr:
            self.replicas.has_given(partition, self.follower_id, located.size)
        return self._answer(partition, wanted.index, located.slice or located.data, aborted)

    def _aborted(self, partition: Partition, wanted: Wanted, located: Located) -> list[Aborted] | None:
        if wanted.offset >= partition.bound(self.isolation):
            return []  # what lies further on does not concern the reader yet
        if not located.size and self._limit(wanted):
            return None  # of a partition whose first batch did not fit, Kafka tells nothing more
        log = partition.log
        return [
            Aborted(producer_id=row.producer_id, first_offset=row.first_offset)
            for row in log.aborted_transactions(wanted.offset, log.upper_bound(located))
        ]

    def _answer(self, partition: Partition, index: int, records: Any, aborted: list[Aborted] | None) -> Answer:
        log, mark = partition.log, partition.high_watermark.value
        return make_answer(index, mark, log.last_stable_offset(mark), log.start_offset, aborted, records)

    @staticmethod
    def _divergence(partition: Partition, wanted: Wanted) -> Diverging | None:
        """KIP-595: the reader's last epoch tells whether its history and ours part before its position."""
        if wanted.offset < partition.log.start_offset:
            raise KafkaError(Error.OFFSET_OUT_OF_RANGE)
        epoch, end = partition.log.end_offset_for_epoch(wanted.last_fetched_epoch)
        if epoch < 0 or end < 0:
            raise KafkaError(Error.OFFSET_OUT_OF_RANGE)
        if epoch < wanted.last_fetched_epoch or end < wanted.offset:
            return Diverging(epoch=epoch, end_offset=end)
        return None

    def response(self) -> FetchResponse:
        plan = self.plan
        session = plan.session
        topics: list[TopicAnswer] = []
        last: bytes | str | None = None
        with_data = []
        for key, answer in self.answers.items():
            records = answer.records
            size = len(records) if type(records) is bytes else records.size
            if self.follower_id < 0:
                self._count(key, answer, size)
            if session is not None:
                if session.is_follower and not size:
                    self._leave_for_later(session, key, answer)
                if not plan.session_mentions(key, answer, size > 0):
                    continue
                if size and plan.incremental:
                    with_data.append(key)
            if last == ZERO_UUID:
                # Kafka stumbles where an id of zero is followed by another partition, and refuses the fetch as a whole.
                return FetchResponse(error_code=Error.UNKNOWN_SERVER_ERROR.code, session_id=self.session_asked)
            if key[0] != last:  # a topic is told anew where others came between, as in Kafka
                last = key[0]
                partitions: list[Answer] = []
                if plan.uses_ids:
                    topics.append(make_topic_by_id(last, partitions))
                else:
                    topics.append(make_topic_by_name(last, partitions))
            partitions.append(answer)
        if session is None:
            return make_response(topics)
        session.move_last(with_data)
        return FetchResponse(session_id=session.id, responses=topics)

    def _leave_for_later(self, session: Session, key: Key, answer: Answer) -> None:
        """What found no room in the answer comes with the next one, whether the follower names it or not."""
        partition = self.partition(key)
        if partition is None or answer.error_code or answer.diverging_epoch.epoch >= 0:
            return
        if self.plan.wanted[key].offset < partition.log.end_offset:
            session.news[key] = None

    def _count(self, key: Key, answer: Answer, size: int) -> None:
        hosted = self.replicas.hosted(key[0])
        if hosted is not None:
            traffic = hosted.traffic
            traffic.fetches += 1
            if size:
                traffic.bytes_out += size
            elif answer.error_code:
                traffic.failed_fetches += 1


def _unknown_ids_first(missing: dict[Key, Answer]) -> dict[Key, Answer]:
    """The order in which Kafka tells what it could not find."""
    unknown = Error.UNKNOWN_TOPIC_ID.code
    return dict(sorted(missing.items(), key=lambda item: item[1].error_code != unknown))


def _refused(index: int, error: KafkaError, aborted: list[Aborted] | None) -> Answer:
    return Answer(
        partition_index=index, error_code=error.code, high_watermark=-1, records=b"", aborted_transactions=aborted
    )


class Parked:
    """A fetch that found too little and waits for more."""

    __slots__ = ("_deadline", "_loop", "_reading", "_woken")

    def __init__(self, reading: Reading, loop: asyncio.AbstractEventLoop) -> None:
        self._reading = reading
        self._loop = loop
        self._woken = Prompt(loop)

    async def wait(self, seconds: float) -> None:
        session = self._reading.plan.session
        if session is not None and self._reading.follower_id >= 0:
            await self._until_news(session, seconds)
            return
        self._deadline = Deadline(self._loop, self.wake)
        self._deadline.set(self._loop.time() + seconds)
        counts = [Counting(self, partition, wanted) for partition, wanted in self._partitions()]
        # Only whole batches are read, so a limit may leave a little less than `min_bytes` although there is plenty.
        self.gained(sum(each.counted for each in counts) - self._reading.bytes_read)
        try:
            await self._woken
        finally:
            self._deadline.close()
            for each in counts:
                each.end()

    async def _until_news(self, session: Session, seconds: float) -> None:
        self._deadline = session.park(self, self._loop)
        self._deadline.set(self._loop.time() + seconds)
        try:
            self._look_again(session)
            await self._woken
        finally:
            session.leave(self)

    def _look_again(self, session: Session) -> None:
        """Something may have happened since this fetch began to read. If it was read in one go, that is no more than what the
        fetch did itself: a watermark rose. But where something was read, though too little, there may be more that a limit
        left out."""
        reading, wanted = self._reading, self._reading.plan.wanted
        if not (reading.has_waited or reading.has_failed or reading.bytes_read):
            for key, each in wanted.items():
                session.news.pop(key, None)
                if min(reading.answers[key].high_watermark, each.offset) > each.watermark:
                    self.wake_soon()
            wanted = {}
        for key in [*wanted, *session.news]:
            self.notice(key)

    def notice(self, key: Key) -> None:
        """Something happened to a partition of a follower's session: it is looked at when the fetch goes on."""
        session, wanted = self._reading.plan.session, self._reading.plan.wanted
        if session is None or key not in session.partitions:
            return
        wanted[key] = session.partitions[key]
        session.news.pop(key, None)
        partition = self._reading.partition(key)
        if partition is None:
            return  # told at the end, as every partition that is not here
        if partition.leadership is None:
            self.wake()
        elif available := self._reading.available(partition, wanted[key]):
            self.gained(available)
        else:
            self._look_at_watermark(partition, wanted[key])

    def notice_watermark(self, key: Key, partition: Partition) -> None:
        """No more than that it rose. Who is not in sync may have been held back, and may be given records by now."""
        session = self._reading.plan.session
        if self._reading.follower_id not in partition.isr:
            self.notice(key)
            return
        if session is not None and (wanted := session.partitions.get(key)) is not None:
            self._reading.plan.wanted[key] = wanted
            session.news.pop(key, None)
            self._look_at_watermark(partition, wanted)

    def _look_at_watermark(self, partition: Partition, wanted: Wanted) -> None:
        """A follower takes as much of a watermark as it has records."""
        if min(partition.high_watermark.value, wanted.offset) > wanted.watermark:
            self.wake_soon()

    def _partitions(self) -> list[tuple[Partition, Wanted]]:
        """Those that are here, now: reading may have taken a while."""
        found = []
        for wanted in self._reading.plan.wanted.values():
            hosted = self._reading.replicas.hosted(wanted.topic)
            partition = hosted.partitions.get(wanted.index) if hosted is not None else None
            if partition is not None:
                found.append((partition, wanted))
        return found

    def wake(self) -> None:
        self._woken.give()

    def wake_soon(self) -> None:
        """There is something to tell for which nobody waits."""
        self._deadline.set(self._loop.time() + WATERMARK_NEWS_S)

    def gained(self, count: int) -> None:
        self._reading.bytes_read += count
        if self._reading.bytes_read >= self._reading.min_bytes:
            self.wake()


class Listening:
    """Tells a follower's session that a partition got longer, that its watermark rose, or that it is led elsewhere."""

    __slots__ = ("_end", "_key", "_partition", "_session", "_watermark")

    def __init__(self, session: Session, key: Key, partition: Partition) -> None:
        assert partition.leadership is not None
        self._session, self._key, self._partition = session, key, partition
        self._end, self._watermark = partition.leadership.end, partition.high_watermark
        self._end.watch(self.tell)
        self._watermark.watch(self.tell_watermark)

    def tell(self) -> None:
        session = self._session
        session.news[self._key] = None
        if self._end.closed or self._watermark.closed:
            session.standings.pop(self._key, None)
            self.end()
        if session.parked is not None:
            session.parked.notice(self._key)

    def tell_watermark(self) -> None:
        session = self._session
        if self._watermark.closed or session.parked is None:
            self.tell()
        else:
            session.parked.notice_watermark(self._key, self._partition)

    def end(self) -> None:
        self._end.unwatch(self.tell)
        self._watermark.unwatch(self.tell_watermark)


class Counting:
    """Counts what one partition gains while its fetch is parked."""

    __slots__ = ("_mark", "_parked", "_partition", "_wanted", "_watermark", "counted")

    def __init__(self, parked: Parked, partition: Partition, wanted: Wanted) -> None:
        self._parked, self._partition, self._wanted = parked, partition, wanted
        self._mark = partition.high_watermark
        self._watermark: Rising | None = None
        if parked._reading.follower_id >= 0 and partition.leadership is not None:
            self._mark = partition.leadership.end
            if wanted.watermark != UNTOLD:
                self._watermark = partition.high_watermark
                self._watermark.watch(self.look_at_watermark)
                self.look_at_watermark()
        self.counted = self._available()
        self._mark.watch(self.look)

    def look(self) -> None:
        if self._mark.closed:
            self._parked.wake()
            return
        available = self._available()
        gain, self.counted = available - self.counted, available
        self._parked.gained(gain)

    def look_at_watermark(self) -> None:
        """A follower takes as much of a watermark as it has records."""
        known = self._wanted.watermark
        if min(self._partition.high_watermark.value, self._wanted.offset) > known:
            self._parked.wake_soon()

    def end(self) -> None:
        self._mark.unwatch(self.look)
        if self._watermark is not None:
            self._watermark.unwatch(self.look_at_watermark)

    def _available(self) -> int:
        return self._parked._reading.available(self._partition, self._wanted)
