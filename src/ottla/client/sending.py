"""The way out: which batches leave when, in which requests, and what becomes of them.

`wake` puts a lane on the list of those to look at; once per turn of the loop `_look` walks that list, and all batches
that may leave for the same broker go into one Produce request. Each request is a task that waits for its answer. There
is no other task while things go well, and no clock but the loop's.

An idempotent producer numbers its records: the leader then recognises a batch it has already written and only repeats
the answer. When the fate of a batch stays unknown, the numbers can no longer be trusted; all lanes then start from 0
with a new producer id, each as soon as nothing of the old one is under way in it.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Coroutine, Iterable, Sequence
from typing import Any, NamedTuple, Protocol

from ottla.client.batches import NOBODY, NOT_WRITTEN, Answer, Identity, Lane, Pending
from ottla.client.cluster import Cluster, TopicPartition, may_pass
from ottla.client.connection import REQUEST_SECONDS, Connection, Lost, failure
from ottla.wire.errors import Error, KafkaError
from ottla.wire.messages.produce import ProduceRequest, ProduceResponse
from ottla.wire.records import SEQUENCE_MODULUS, build, set_producer

REQUEST_BYTES_MAX = 1 << 20
# The end of the transaction before may still be under way: that is a matter of milliseconds.
ENDING_PAUSE_SECONDS = 0.02
# A leader remembers the numbers of so many batches of a producer.
FLYING_MAX = 5


class Manner(NamedTuple):
    """How batches are written."""

    acks: int
    codec: int
    level: int | None
    idempotent: bool
    flying_max: int


class Gate(Protocol):
    """Transactions decide what may be written, under which name, and hear of what was not."""

    transactional_id: str
    refusal: Exception | None  # why nothing is written any more

    @property
    def produce_version_max(self) -> int: ...

    def admits(self, where: TopicPartition) -> bool:
        """Whether records may go to this partition now; if not, its lane is woken later."""
        ...

    def heard(self, error: Exception) -> None:
        """A batch was given up."""
        ...


class Sender:
    def __init__(
        self,
        cluster: Cluster,
        manner: Manner,
        name: Callable[[], Awaitable[Identity]],
        on_closed: Callable[[Lane], None],
        on_settled: Callable[[int], None],
    ) -> None:
        """`name` asks for a new identity, as often as it takes; the others hear of batches and their sizes."""
        self.cluster = cluster
        self.manner = manner
        self.on_closed, self.on_settled = on_closed, on_settled
        self.requests = 0
        self.gate: Gate | None = None
        self.identity: Identity | None = None if manner.idempotent else NOBODY
        self.lanes: dict[TopicPartition, Lane] = {}
        self._name = name
        self._naming: dict[Lane, None] = {}
        self._awake: dict[Lane, None] = {}
        self._looking = False
        self._tasks: dict[asyncio.Task[None], None] = {}

    def lane(self, where: TopicPartition) -> Lane:
        found = self.lanes.get(where)
        if found is None:
            found = self.lanes[where] = Lane(where)
        return found

    def wake(self, lane: Lane) -> None:
        self._awake[lane] = None
        if not self._looking:
            self._looking = True
            asyncio.get_running_loop().call_soon(self._look)

    async def flush(self) -> None:
        """Send everything posted so far, and return when it has been acknowledged or refused."""
        for lane in self.lanes.values():
            if lane.queue and not lane.queue[-1].closed:
                self.on_closed(lane)
        await self.settled()

    async def settled(self) -> None:
        """Return when everything that is in the lanes now has been acknowledged or refused."""
        loop = asyncio.get_running_loop()
        waiting = []
        for lane in self.lanes.values():
            for batch in (*lane.flying, *lane.queue):
                if batch.settled is None:
                    batch.settled = loop.create_future()
                waiting.append(batch.settled)
        for settled in waiting:
            await asyncio.wait([settled])

    def drop(self, lane: Lane, error: Exception) -> None:
        """Refuse all that does not fly."""
        while lane.queue:
            self._refuse(lane.queue.popleft(), error)

    # Out.

    def _look(self) -> None:
        self._looking = False
        awake, self._awake = self._awake, {}
        now = asyncio.get_running_loop().time()
        loads: dict[Connection, list[tuple[Lane, Pending]]] = {}
        for lane in awake:
            connection = self._where_to(lane, now)
            if connection is not None:
                loads.setdefault(connection, []).append((lane, self._depart(lane, connection)))
        for connection, load in loads.items():
            for part in _in_parts(load):
                self._spawn(self._carry(connection, part))

    def _where_to(self, lane: Lane, now: float) -> Connection | None:
        """The connection on which the lane's next batch may leave at once; where something is missing, get it."""
        batch = lane.ready(now, self.manner.flying_max)
        if batch is None or not self._admitted(lane):
            return None
        if batch.deadline < now:
            self._give_up(lane, lane.queue.popleft(), batch.error or Lost("it could not be sent in time"))
            self.wake(lane)
            return None
        connection = self.cluster.leader_at_hand(lane.where)
        if connection is None:
            lane.seeking = True
            self._spawn(self._seek(lane))
            return None
        if lane.flying and lane.connection is not connection:
            return None
        if batch.data is None and not self._seal(lane, batch):
            return None
        return connection

    def _admitted(self, lane: Lane) -> bool:
        if self.gate is None:
            return True
        if self.gate.refusal is not None:
            self.drop(lane, self.gate.refusal)
            return False
        return self.gate.admits(lane.where)

    def _depart(self, lane: Lane, connection: Connection) -> Pending:
        batch = lane.queue.popleft()
        batch.error = None
        lane.flying.append(batch)
        lane.connection = connection
        if lane.queue:
            self.wake(lane)
        return batch

    def _seal(self, lane: Lane, batch: Pending) -> bool:
        """Give the batch its number and make it bytes, if there is an identity to do so with."""
        if lane.identity != self.identity:
            if lane.flying:
                return False
            if self.identity is None:
                self._ask_identity(lane)
                return False
            lane.rename(self.identity)
        if not batch.closed:
            self.on_closed(lane)
        batch.sequence = lane.sequence if self.manner.idempotent else -1
        batch.data = self._bytes_of(batch, lane.identity)
        lane.sequence = (lane.sequence + batch.count) % SEQUENCE_MODULUS
        return True

    def _bytes_of(self, batch: Pending, identity: Identity) -> bytes | bytearray:
        """A batch built elsewhere is stamped in place: no attempt to send it is under way when it gets (other) numbers."""
        if batch.built is not None:
            set_producer(batch.built, *identity, batch.sequence, self.gate is not None)
            return batch.built
        return build(
            batch.records,
            codec=self.manner.codec,
            level=self.manner.level,
            producer_id=identity.producer_id,
            producer_epoch=identity.epoch,
            base_sequence=batch.sequence,
            transactional=self.gate is not None,
        )

    async def _seek(self, lane: Lane) -> None:
        """Find out who leads the partition."""
        try:
            await self.cluster.leader(lane.where)
        except Exception as error:
            self._hold(lane, error)
        lane.seeking = False
        self.wake(lane)

    def _hold(self, lane: Lane, error: Exception) -> None:
        """The next batch cannot leave: later perhaps, or never."""
        if not lane.queue:
            return
        if may_pass(error) and asyncio.get_running_loop().time() + lane.pause_s < lane.queue[0].deadline:
            self._back_off(lane)
        else:
            self._give_up(lane, lane.queue.popleft(), error)

    def _back_off(self, lane: Lane) -> None:
        loop = asyncio.get_running_loop()
        lane.back_off(loop.time(), self.cluster.about(lane.pause_s))
        loop.call_at(lane.not_before, self.wake, lane)

    def _ask_identity(self, lane: Lane) -> None:
        self._naming[lane] = None
        if len(self._naming) == 1:
            self._spawn(self._identify())

    async def _identify(self) -> None:
        try:
            self.identity = await self._name()
        except Exception as error:
            for lane in self._naming:
                if lane.queue:
                    self._give_up(lane, lane.queue.popleft(), error)
        waiting, self._naming = self._naming, {}
        for lane in waiting:
            self.wake(lane)

    # There and back.

    async def _carry(self, connection: Connection, load: Sequence[tuple[Lane, Pending]]) -> None:
        """One request: every batch in it is answered, or has failed with it."""
        try:
            answers = await self._ask(connection, load)
        except Exception as error:
            for lane, batch in load:
                self._returned(lane, batch, error)
            return
        for lane, batch in load:
            answer = answers.get((lane.where.topic, lane.where.partition))
            if answer is None:
                self._returned(lane, batch, Lost(f"{connection.address} left a partition out of its answer"))
            elif answer.error_code in (0, Error.DUPLICATE_SEQUENCE_NUMBER.code):
                self._written(lane, batch, answer)
            else:
                self._returned(lane, batch, failure(answer.error_code, answer.error_message))

    async def _ask(self, connection: Connection, load: Sequence[tuple[Lane, Pending]]) -> dict[tuple[str, int], Answer]:
        self.requests += 1
        version = connection.version_of(ProduceRequest)
        if self.gate is not None:
            version = min(version, self.gate.produce_version_max)
        request = self._request(load)
        if self.manner.acks == 0:
            connection.tell(request)
            return {lane.where: Answer(index=lane.where.partition, base_offset=-1) for lane, _ in load}
        response: ProduceResponse = await connection.request(request, version=version)
        return {
            (topic.name or self.cluster.topic_of(topic.topic_id), answer.index): answer
            for topic in response.responses
            for answer in topic.partition_responses
        }

    def _request(self, load: Sequence[tuple[Lane, Pending]]) -> ProduceRequest:
        topics: dict[str, ProduceRequest.Topic] = {}
        for lane, batch in load:
            name = lane.where.topic
            if name not in topics:
                topics[name] = ProduceRequest.Topic(name=name, topic_id=self.cluster.topic_id(name))
            part = ProduceRequest.Topic.Partition(index=lane.where.partition, records=batch.data)
            topics[name].partition_data.append(part)
        return ProduceRequest(
            transactional_id=None if self.gate is None else self.gate.transactional_id,
            acks=self.manner.acks,
            timeout_ms=int(REQUEST_SECONDS * 1000),
            topic_data=list(topics.values()),
        )

    def _written(self, lane: Lane, batch: Pending, answer: Answer) -> None:
        lane.acknowledged(batch)
        batch.acknowledge(lane.where.partition, answer)
        self.on_settled(batch.size)
        self._landed(lane)

    def _returned(self, lane: Lane, batch: Pending, error: Exception) -> None:
        batch.fail(error)
        lane.draining = True
        self._landed(lane)

    def _landed(self, lane: Lane) -> None:
        """When one has failed, wait for all; then go on with those that were not written."""
        if lane.draining:
            if any(batch.error is None for batch in lane.flying):
                return
            back = list(lane.flying)
            lane.flying.clear()
            lane.draining = False
            self._again(lane, back)
        if lane.queue:
            self.wake(lane)

    def _again(self, lane: Lane, back: list[Pending]) -> None:
        """The first decides: what flew behind it was refused because of it, or its error will come again."""
        if not back:
            return
        first, error = back[0], back[0].error
        assert error is not None
        time_is_left = asyncio.get_running_loop().time() + lane.pause_s < first.deadline
        if may_pass(error) and time_is_left:
            lane.queue.extendleft(reversed(back))
            if isinstance(error, KafkaError) and error.error is Error.CONCURRENT_TRANSACTIONS:
                lane.pause_s = ENDING_PAUSE_SECONDS
            else:
                self.cluster.forget(lane.where.topic)
            self._back_off(lane)
        else:
            told = self._give_up(lane, first, error)
            self._renumber(lane, first.sequence, back[1:], told)

    def _renumber(self, lane: Lane, sequence: int, rest: list[Pending], told: Exception) -> None:
        """The batch of this number was given up: those behind it need others, and those that may be written get none.

        A leader that lost all it knew of us (with its power, say) takes whichever number comes first, and so may have
        written one that flew behind. The free number is then below what it expects, and cannot be given again.
        """
        if lane.expected != sequence:
            self._distrust(lane)
        clear = [batch for batch in rest if not batch.doubtful]
        for batch in rest:
            if batch.doubtful:
                self._distrust(lane)
                self._give_up(lane, batch, Lost(f"a batch before this one was given up: {told}"))
        for batch in clear:
            batch.data = None
        lane.sequence = sequence
        lane.queue.extendleft(reversed(clear))

    # What is given up.

    def _give_up(self, lane: Lane, batch: Pending, error: Exception) -> Exception:
        told = self._failed(lane, error, batch.doubtful, batch.data is not None)
        self._refuse(batch, told)
        if self.gate is not None:
            self.gate.heard(told)
        return told

    def _failed(self, lane: Lane, error: Exception, doubtful: bool, sealed: bool) -> Exception:
        """What to tell of a batch that failed. Unless it was surely not written, numbers that follow it cannot be trusted.

        A retry can be refused (the broker's clock was set back, say) although the first attempt was written and only its
        answer got lost. Going on with the same numbers, the next batch would be taken for that one, and dropped.
        """
        refused = isinstance(error, KafkaError) and error.error in NOT_WRITTEN
        if sealed and (doubtful or not refused):
            self._distrust(lane)
        if refused and doubtful:
            return Lost(f"an earlier attempt may have been written, but a retry was refused: {error}")
        return error

    def _distrust(self, lane: Lane) -> None:
        """Go on under another name. A transaction that lost a batch is aborted, and gets its next name by that."""
        if self.manner.idempotent and self.gate is None and self.identity == lane.identity:
            self.identity = None

    def _refuse(self, batch: Pending, error: Exception) -> None:
        batch.refuse(error, aloud=self.gate is None)  # of a transaction, `commit` tells
        self.on_settled(batch.size)

    def _spawn(self, work: Coroutine[Any, Any, None]) -> None:
        task = asyncio.get_running_loop().create_task(work)
        self._tasks[task] = None
        task.add_done_callback(lambda done: self._tasks.pop(done, None))


def _in_parts(load: list[tuple[Lane, Pending]]) -> Iterable[list[tuple[Lane, Pending]]]:
    """Requests of at most so many bytes, or of one batch that is larger."""
    part: list[tuple[Lane, Pending]] = []
    size = 0
    for lane, batch in load:
        length = len(batch.data or b"")
        if part and size + length > REQUEST_BYTES_MAX:
            yield part
            part, size = [], 0
        part.append((lane, batch))
        size += length
    yield part
