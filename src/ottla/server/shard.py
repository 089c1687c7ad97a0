"""One partition of an internal topic that this broker leads, and the machine that lives in it: append, replay, timers, and
replies that are owed.

When the leadership begins, the shard reads its partition from the start and lets the machine replay it; until then whoever
asks gets COORDINATOR_LOAD_IN_PROGRESS.

A decision's records are appended as one batch and replayed at once, so that the next decision sees them. Its reply, the
replies it owes to others and what it orders leave when everything written so far is committed: an answer may also speak of
what somebody else wrote a moment ago. Where the write at the end of this turn of the loop commits them, a reply that can be
revoked is handed on at once: no answer leaves before that write. If a write fails, nobody knows any more what the machine
should remember: whoever waits is told to look for the coordinator again, the machine is dropped, and the shard loads anew.

Sessions are judged by the loop's clock, and only after what had arrived by then was read: a node that was held up must not
accuse members whose heartbeats lie in its sockets.
"""

from __future__ import annotations

import asyncio
import logging
from collections import deque
from collections.abc import Callable, Coroutine
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Generic, NamedTuple, TypeVar

from ottla.coordination.machine import NO_PRODUCER, Caller, Decision, Later, Machine, Moment, Waiter
from ottla.coordination.records import Record
from ottla.log.producers import UNGUARDED, Guard, Marker, Origin
from ottla.log.reading import Located
from ottla.server import loading
from ottla.wire import records as wire
from ottla.wire.codec import Malformed
from ottla.wire.errors import Error, KafkaError

if TYPE_CHECKING:
    from ottla.replication.partition import Partition
    from ottla.server.node import Node

log = logging.getLogger("ottla.coordination")

State = TypeVar("State")
Reply = TypeVar("Reply")
Request = TypeVar("Request")
Decide = Callable[[State, Request, Caller, Moment], Decision[Reply]]
Answers = list[tuple[Waiter, object]]

# Records are replayed in pieces of this size, and others get their turn between two of them.
LOADED_AT_ONCE_BYTES = 256 * 1024
# When to try again to load what could not be read.
LOAD_AGAIN_S = 10.0

# What a client is told when its records could not be written: words that make it look for the coordinator again.
TOLD = {
    Error.NOT_ENOUGH_REPLICAS: Error.COORDINATOR_NOT_AVAILABLE,
    Error.NOT_ENOUGH_REPLICAS_AFTER_APPEND: Error.COORDINATOR_NOT_AVAILABLE,
    Error.REQUEST_TIMED_OUT: Error.COORDINATOR_NOT_AVAILABLE,
    Error.UNKNOWN_TOPIC_OR_PARTITION: Error.COORDINATOR_NOT_AVAILABLE,
    Error.NOT_LEADER_OR_FOLLOWER: Error.NOT_COORDINATOR,
    Error.KAFKA_STORAGE_ERROR: Error.NOT_COORDINATOR,
    # The coordinator of a transaction could not be asked (`verifying`): the same broker is to be asked again.
    Error.NETWORK_EXCEPTION: Error.COORDINATOR_LOAD_IN_PROGRESS,
    # Trying again would not help, and no client expects more.
    Error.MESSAGE_TOO_LARGE: Error.UNKNOWN_SERVER_ERROR,
    Error.RECORD_LIST_TOO_LARGE: Error.UNKNOWN_SERVER_ERROR,
}


def told(error: KafkaError) -> KafkaError:
    return KafkaError(TOLD[error.error], error.message) if error.error in TOLD else error


# Who asks: its client id, its address, and the version of its request.
Who = tuple[str, str, int]
THIS_NODE: Who = ("", "", 0)


class ProducerKey(NamedTuple):
    """The producer in whose transaction records are written, and what it was admitted with (`verifying.py`)."""

    id: int
    epoch: int
    guard: Guard | None = UNGUARDED


@dataclass(frozen=True, slots=True)
class Kind(Generic[State]):
    """What tells coordinators of groups from coordinators of transactions."""

    topic: str
    what: str
    new_machine: Callable[[], Machine[State]]
    codec: Callable[[], int]
    commit_timeout_s: Callable[[], float]
    # Carries out what a decision orders.
    see_to: Callable[[Shard[State], Any], Coroutine[Any, Any, None]]


class Shard(Generic[State]):
    def __init__(self, partition: Partition, node: Node, kind: Kind[State]) -> None:
        self.partition = partition
        self.leader_epoch = partition.leader_epoch
        self.machine: Machine[State] | None = None
        self._node = node
        self._kind = kind
        self._mark = partition.high_watermark
        self._mark.watch(self._rose)
        self._written_end = 0
        self._owed: set[asyncio.Future[Any]] = set()
        # How to turn replies into refusals that were handed on before the write they speak of.
        self._revocable: list[Callable[[KafkaError], None]] = []
        # What is to be seen to once the watermark is there, each with where that is.
        self._orders: deque[tuple[int, list[object]]] = deque()
        self._errands: dict[asyncio.Task[Any], None] = {}
        self._alarm: asyncio.TimerHandle | None = None
        self._is_over = False
        self.is_loading = False

    @property
    def state(self) -> State:
        """What the machine knows, once it is loaded."""
        return self._loaded().state

    def _loaded(self) -> Machine[State]:
        if self.machine is None:
            raise KafkaError(Error.NOT_COORDINATOR if self._is_over else Error.COORDINATOR_LOAD_IN_PROGRESS)
        return self.machine

    def moment(self) -> Moment:
        """Rounded, because an alarm rings at `ms / 1000` of the loop's clock: cut off, that may be the millisecond before."""
        return Moment(self._node.world.now_ms(), round(self._node.loop.time() * 1000))

    # --- loading

    async def load(self) -> None:
        """Read the partition from its start and replay it."""
        machine, began, what = self._kind.new_machine(), self._node.loop.time(), self._kind.what
        try:
            records = await self._replay_log(machine)
        except (KafkaError, Malformed, OSError, ValueError) as error:  # names that are not UTF-8, say
            log.error("%s: its %s cannot be loaded, that is tried again: %s", self.partition.log.name, what, error)
            self._node.loop.call_later(LOAD_AGAIN_S, self._load_again)
            return
        if self._is_over:
            return
        if records:
            took_s = self._node.loop.time() - began
            log.info("%s: %d records of %s in %.2f s", self.partition.log.name, records, what, took_s)
        self.begin(machine)

    def _load_again(self) -> None:
        if not self._is_over:
            self._node.spawn(self.load())

    def begin(self, machine: Machine[State]) -> None:
        """From here on requests are decided."""
        self._written_end = self.partition.log.end_offset
        self.machine = machine
        self.carry_out_all(machine.loaded(self.moment()))

    async def _replay_log(self, machine: Machine[State]) -> int:
        """Where the log is trimmed below the reader, the read fails, and all is read again from where it begins then."""
        self.is_loading = True
        try:
            return await self._replay_all(machine)
        finally:
            self.is_loading = False

    async def _replay_all(self, machine: Machine[State]) -> int:
        log, count = self.partition.log, 0
        offset = log.start_offset
        while offset < log.end_offset and not self._is_over:
            data = (await self._read(offset)).read()
            if not data:
                break  # a hole up to the end
            replayed, offset = loading.replay(machine, data)
            count += replayed
            await asyncio.sleep(0)
        return count

    async def _read(self, offset: int) -> Located:
        log = self.partition.log
        try:
            return await log.read(offset, LOADED_AT_ONCE_BYTES, log.end_offset)
        except KafkaError as error:
            if not await self._node.replicas.mending.mends(self.partition, offset, error, LOAD_AGAIN_S):
                raise
        return await log.read(offset, LOADED_AT_ONCE_BYTES, log.end_offset)

    # --- deciding

    async def decide(
        self, decide: Decide[State, Request, Reply], request: Request, who: Who, producer: ProducerKey | None = None
    ) -> Reply:
        """Decide now; return the reply when all that it speaks of is committed."""
        state = self.state
        waiter: asyncio.Future[Any] = self._node.loop.create_future()
        try:
            decision = self.carry_out(decide(state, request, Caller(*who, waiter), self.moment()), producer)
        except KafkaError:
            await self.committed()
            raise
        if decision.reply is not None:
            if not self._may_go(decision.revoke):
                await self.committed()
            return decision.reply
        if not waiter.done():
            self._owed.add(waiter)
            waiter.add_done_callback(self._owed.discard)
        reply: Reply = await waiter
        return reply

    def carry_out(self, decision: Decision[Reply], producer: ProducerKey | None = None) -> Decision[Reply]:
        """Append and replay; see to the replies that are owed. Raises what the caller gets if that is not possible."""
        try:
            if decision.records:
                self._append(decision.records, producer)
        except KafkaError as error:
            if decision.refused is None:
                raise told(error)
            return self.carry_out(decision.refused(told(error)))
        finally:
            self._set_alarm()
        if decision.note:
            log.info("%s", decision.note)
        if decision.answers:
            self._owe(decision.answers)
        if decision.orders:
            self._orders.append((self._written_end, decision.orders))
            self._see_to_orders()
        return decision

    def carry_out_all(self, decisions: list[Later]) -> None:
        """What nobody asked for. One that cannot be done does not keep the others from being done."""
        for decide in decisions:
            if self.machine is None:
                return  # a write failed: all of this is forgotten
            try:
                self.carry_out(decide())
            except KafkaError as error:
                log.warning("%s: %s", self.partition.log.name, error)
            except Exception:
                log.exception("%s: an alarm could not be answered", self.partition.log.name)
        self._set_alarm()

    # --- writing

    def _append(self, records: list[Record], producer: ProducerKey | None) -> None:
        partition, machine, now_ms = self.partition, self.machine, self._node.world.now_ms()
        assert machine is not None
        packed = [machine.pack(record) for record in records]
        batch = wire.build(
            [wire.Record(-1, now_ms, key, value) for key, value in packed],
            codec=self._kind.codec(),
            producer_id=producer.id if producer else NO_PRODUCER,
            producer_epoch=producer.epoch if producer else -1,
            base_sequence=0 if producer else -1,  # nobody counts them, but Apache Kafka writes it
            transactional=producer is not None,
        )
        self._check_room(len(batch))
        guard = producer.guard if producer else UNGUARDED
        appended = partition.append(batch, now_ms, Origin.COORDINATOR, self, guard=guard)
        self._written_end = appended.last_offset + 1
        producer_id = producer.id if producer else NO_PRODUCER
        for offset, (record, bytes_of) in enumerate(zip(records, packed, strict=True), appended.first_offset):
            machine.replay(record, offset, producer_id, bytes_of)

    def _check_room(self, size: int) -> None:
        if self.partition.is_short_of_replicas:
            raise KafkaError(Error.NOT_ENOUGH_REPLICAS)
        if size > self.partition.log.settings.max_message_bytes:
            raise KafkaError(Error.MESSAGE_TOO_LARGE, f"{size} bytes of {self._kind.what} in one batch")

    def append_marker(self, marker: Marker) -> int:
        """A transaction that wrote here is decided. The offset that has to be committed."""
        machine = self._loaded()
        appended = self.partition.append_marker(marker, self._node.world.now_ms(), self)
        self._written_end = appended.last_offset + 1
        machine.end_transaction(marker.producer_id, marker.committed)
        return self._written_end

    # --- committing

    @property
    def committed_end(self) -> int:
        """Records below it are not lost any more."""
        return self._mark.value

    async def committed(self, end: int = -1) -> None:
        """Return when everything below `end`, or all that was written so far, is committed."""
        end = self._written_end if end < 0 else end
        if self._mark.value >= end:
            return
        try:
            await self.partition.acknowledged(end, self._kind.commit_timeout_s(), self._mark)
        except KafkaError as error:
            raise told(error)
        except TimeoutError:
            raise told(KafkaError(Error.REQUEST_TIMED_OUT))

    def _may_go(self, revoke: Callable[[KafkaError], None] | None) -> bool:
        """Whether a reply need not be held back here: it speaks of nothing that is not committed, or it leaves after the
        write that commits it, and can be revoked if that fails."""
        if self._mark.value >= self._written_end:
            return True
        if revoke is None or not self.partition.acknowledges_on_write:
            return False
        self._revocable.append(revoke)
        return True

    def _owe(self, answers: Answers) -> None:
        """Others get their replies as well, once what was decided is committed."""
        if self._mark.value >= self._written_end:
            _answer(answers)
        else:
            self._begin_errand(self._answer_when_committed(self._written_end, answers))

    async def _answer_when_committed(self, end: int, answers: Answers) -> None:
        try:
            await self.committed(end)
            _answer(answers)
        except KafkaError as error:
            for waiter, _ in answers:
                _refuse(_future(waiter), error)

    def _see_to_orders(self) -> None:
        """However long it took until they are committed: nobody gives them again while this machine lives."""
        while self._orders and self._orders[0][0] <= self._mark.value:
            for order in self._orders.popleft()[1]:
                self._begin_errand(self._kind.see_to(self, order))

    def _begin_errand(self, work: Coroutine[Any, Any, Any]) -> None:
        """Something that ends with the machine, at the latest."""
        task = self._node.spawn(work)
        self._errands[task] = None
        task.add_done_callback(lambda done: self._errands.pop(done, None))

    def _rose(self) -> None:
        """The watermark rose, or the leadership ended."""
        if self._mark.closed:
            self.end(Error.NOT_COORDINATOR)
            return
        if self._mark.value >= self._written_end:
            self._revocable.clear()
        self._see_to_orders()

    # --- time

    def _set_alarm(self) -> None:
        if self.machine is None or (next_ms := self.machine.timers.next_ms) is None:
            return
        if self._alarm is not None:
            if self._alarm.when() <= next_ms / 1000:
                return
            self._alarm.cancel()
        self._alarm = self._node.loop.call_at(next_ms / 1000, self._ring)

    def _ring(self) -> None:
        """One more turn of the loop: heartbeats that have arrived count."""
        self._node.loop.call_soon(self._judge)

    def _judge(self) -> None:
        self._alarm = None
        if self.machine is not None:
            self.carry_out_all(self.machine.ring(self.moment()))

    # --- ending

    def fail(self, error: KafkaError) -> None:
        """The log lost what was appended: forget the machine, and load it again."""
        if self.machine is None:
            return
        name, what = self.partition.log.name, self._kind.what
        log.error("%s: its %s are loaded again, because a write failed: %s", name, what, error)
        self._forget(told(error))
        self._node.spawn(self.load())

    def end(self, error: Error) -> None:
        """The leadership is over, or the node stops."""
        if not self._is_over:
            self._is_over = True
            self._mark.unwatch(self._rose)
            self._forget(KafkaError(error))

    def _forget(self, error: KafkaError) -> None:
        self.machine = None
        if self._alarm is not None:
            self._alarm.cancel()
            self._alarm = None
        self._orders.clear()
        for errand in list(self._errands):
            errand.cancel()
        for waiter in list(self._owed):
            _refuse(waiter, error)
        revocable, self._revocable = self._revocable, []
        for revoke in revocable:
            revoke(error)


def _answer(answers: Answers) -> None:
    for waiter, reply in answers:
        future = _future(waiter)
        if not future.done():
            future.set_result(reply)


def _future(waiter: Waiter) -> asyncio.Future[Any]:
    assert isinstance(waiter, asyncio.Future)
    return waiter


def _refuse(waiter: asyncio.Future[Any], error: KafkaError) -> None:
    if not waiter.done():
        waiter.set_exception(error)
        waiter.exception()  # whoever asked may be gone: then nobody looks at it, and asyncio need not complain
