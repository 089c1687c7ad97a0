"""Transactions of a producer: what was written between `begin` and `commit` becomes visible as a whole, or not at all.

A transactional id belongs to one producer at a time: `init` tells the coordinator who that is now, ends what the one
before left open, and shuts it out for good. There are two generations of the protocol. In the first the coordinator is
told of each partition before it is written to, and of each group before its offsets are; in the second (KIP-890, while
`transaction.version` is 2) the brokers see to that, and each end brings a new epoch, so that nothing late of an earlier
transaction can get into this one. Which one is spoken is decided at each `begin`.

    state      may go on by
    NEW        init
    READY      begin
    OPEN       post, send_offsets, prepare, commit, abort
    FAILED     abort           something was not written, or refused: this transaction cannot be committed (`Abortable`)
    PREPARED   commit, abort, complete                          another system decides when (KIP-939, two-phase commit)
    ENDING     what was begun: commit again, or abort again           the coordinator did not answer in time
    DEAD       nothing         another producer has taken over, or the coordinator does not trust us (`Fatal`)
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Awaitable, Callable, Mapping
from enum import Enum
from functools import partial
from typing import NamedTuple, TypeVar

from ottla.client.batches import NOBODY, Identity
from ottla.client.cluster import Cluster, TopicPartition, by_topic, may_pass
from ottla.client.commits import Committed, GroupMetadata, commit_in_transaction
from ottla.client.connection import Lost
from ottla.client.coordinator import TRANSACTION, Coordinator
from ottla.client.sending import Sender
from ottla.wire.errors import Error, KafkaError
from ottla.wire.messages.transactions import (
    NO_TIMEOUT_MS,
    AddOffsetsToTxnRequest,
    AddOffsetsToTxnResponse,
    AddPartitionsToTxnRequest,
    AddPartitionsToTxnResponse,
    EndTxnRequest,
    EndTxnResponse,
    InitProducerIdRequest,
    InitProducerIdResponse,
    TopicPartitions,
)

T = TypeVar("T")

TIMEOUT_MS = 60_000
# The end of the transaction before may still be under way: that is a matter of milliseconds.
PAUSE_SECONDS = 0.02
# The highest versions that leave it to the client to add partitions and groups (generation 1), and the first that do not.
CLIENT_ADDS = 3
PRODUCE_V1, PRODUCE_V2 = 11, 13
OFFSETS_V1, OFFSETS_V2 = 4, 5
END_V1, END_V2 = 4, 5
# Of InitProducerId: the version for two-phase commit may still change.
INIT_STABLE, INIT_TWO_PHASE = 5, 6

FENCED = {Error.PRODUCER_FENCED, Error.INVALID_PRODUCER_EPOCH}
# A coordinator that says one of these can still abort the transaction; anything else it says is the end of the producer.
ABORTABLE = {
    Error.TRANSACTION_ABORTABLE,
    Error.UNKNOWN_PRODUCER_ID,
    Error.INVALID_PRODUCER_ID_MAPPING,
    Error.GROUP_AUTHORIZATION_FAILED,
    Error.TOPIC_AUTHORIZATION_FAILED,
    Error.FENCED_INSTANCE_ID,
    Error.UNKNOWN_MEMBER_ID,
    Error.ILLEGAL_GENERATION,
    Error.STALE_MEMBER_EPOCH,
}
# The same from the other side, for what is said of single partitions: adding them, and writing to them.
FATAL_WHEN_ADDING = FENCED | {Error.TRANSACTIONAL_ID_AUTHORIZATION_FAILED, Error.INVALID_TXN_STATE}
FATAL_WHEN_WRITING = {
    Error.PRODUCER_FENCED,
    Error.TRANSACTIONAL_ID_AUTHORIZATION_FAILED,
    Error.CLUSTER_AUTHORIZATION_FAILED,
    Error.UNSUPPORTED_VERSION,
}


class State(Enum):
    NEW = "init() has not been called"
    READY = "no transaction has begun"
    OPEN = "a transaction is open"
    FAILED = "the transaction has failed"
    PREPARED = "the transaction is prepared"
    ENDING = "the transaction is being ended"
    DEAD = "the producer cannot go on"


class Outcome(Enum):
    """What `complete` did."""

    COMMITTED = "committed"
    ABORTED = "aborted"
    NOTHING = "there was no transaction"


class Abortable(KafkaError):
    """The transaction cannot be committed. After `abort()` the producer may begin another."""

    def __init__(self, cause: Exception) -> None:
        error = cause.error if isinstance(cause, KafkaError) and not may_pass(cause) else Error.TRANSACTION_ABORTABLE
        why = "its timeout is over, or another producer has taken over" if error in FENCED else _text(cause)
        super().__init__(error, f"{why}. The transaction cannot be committed: abort it and begin again")


class Fatal(KafkaError):
    """This producer is of no use any more."""

    def __init__(self, cause: KafkaError, transactional_id: str) -> None:
        if cause.error in FENCED:
            said = f"another producer with the transactional id {transactional_id!r} has taken over, or its timeout is over"
            super().__init__(Error.PRODUCER_FENCED, f"{said}: close this one")
        else:
            super().__init__(cause.error, f"{_text(cause)}. This producer cannot go on: close it and make another")


class Prepared(NamedTuple):
    """Names a prepared transaction. `str` makes a text to store with what is decided elsewhere, `read` the way back."""

    producer_id: int
    epoch: int

    def __str__(self) -> str:
        return f"{self.producer_id}:{self.epoch}" if self.producer_id >= 0 else ""

    @classmethod
    def read(cls, text: str) -> Prepared:
        if not text:
            return NOTHING
        producer_id, colon, epoch = text.partition(":")
        if not (colon and producer_id.isdecimal() and epoch.isdecimal()):
            raise ValueError(
                f"{text!r} names no prepared transaction: it must be a producer id and an epoch, as in 7:0"
            )
        return cls(int(producer_id), int(epoch))


NOTHING = Prepared(*NOBODY)


class Transactions:
    """The transactions of one producer, and the gate that its batches pass."""

    def __init__(
        self,
        cluster: Cluster,
        sender: Sender,
        transactional_id: str,
        *,
        timeout_ms: int = TIMEOUT_MS,
        two_phase: bool = False,
        patience_s: float = 120.0,
    ) -> None:
        self.cluster = cluster
        self.sender = sender
        self.transactional_id = transactional_id
        self.timeout_ms = NO_TIMEOUT_MS if two_phase else timeout_ms
        self.two_phase = two_phase
        self.patience_s = patience_s
        self.state = State.NEW
        self.generation = 1
        self.refusal: Exception | None = None
        self._coordinator = Coordinator(cluster, transactional_id, TRANSACTION)
        self._groups: dict[str, Coordinator] = {}
        self._added: set[TopicPartition] = set()
        self._to_add: dict[TopicPartition, None] = {}
        self._adding: asyncio.Task[None] | None = None
        self._closing = False  # what is posted now would come too late
        self._started = False  # the coordinator may know of the transaction
        self._known = False  # it has said that it does
        self._forgotten = False  # it knows nothing of us any more
        self._commits: bool | None = None  # how the transaction is being ended
        self._prepared = NOTHING
        self._wants_epoch = False

    # What a program calls.

    async def init(self, keep_prepared: bool = False) -> Prepared:
        """Become the producer of this transactional id. What the one before left open is aborted, or kept if prepared.

        What was kept is handed back; the next call is then `complete`, `commit` or `abort`.
        """
        if keep_prepared and not self.two_phase:
            raise ValueError("only a producer with two_phase_commit=True can keep what was prepared")
        self._expect(State.NEW)
        self._prepared = await self._ask_coordinator(lambda: self._init(NOBODY, keep_prepared))
        self.generation = self._spoken()
        self.state = State.READY if self._prepared == NOTHING else State.PREPARED
        self._started = self._prepared != NOTHING
        return self._prepared

    def begin(self) -> None:
        self._expect(State.READY)
        self.state = State.OPEN
        self.generation = self._spoken()

    def may_post(self) -> None:
        self._expect(State.OPEN)
        if self._closing:
            raise ValueError(f"not now: {State.ENDING.value}")

    async def send_offsets(self, offsets: Mapping[TopicPartition, Committed], group: str | GroupMetadata) -> None:
        """Commit these offsets of a group with the transaction. With the group's metadata, only if it is still a member."""
        self.may_post()
        if not offsets:
            return
        who = GroupMetadata(group) if isinstance(group, str) else group
        self._started = True
        if self.generation == 1:
            await self._ask_coordinator(lambda: self._add_offsets(who.group_id))
            self._known = True
        coordinator = self._groups.setdefault(who.group_id, Coordinator(self.cluster, who.group_id))
        version = OFFSETS_V1 if self.generation == 1 else OFFSETS_V2
        by_whom = (self.transactional_id, *self._identity())
        await self._ask_coordinator(lambda: commit_in_transaction(coordinator, offsets, who, by_whom, version))

    async def prepare(self) -> Prepared:
        """Write everything out, and wait for another system's decision. Store the name of what is prepared with it."""
        if not self.two_phase:
            raise ValueError("only a producer with two_phase_commit=True can prepare")
        self._expect(State.OPEN)
        await self._written()
        self.state = State.PREPARED
        self._prepared = Prepared(*self._identity()) if self._started else NOTHING
        return self._prepared

    async def commit(self) -> None:
        self._expect(State.OPEN, State.PREPARED, ending=True)
        if self.state is State.OPEN:
            await self._written()
        await self._end(True)

    async def abort(self) -> None:
        self._expect(State.OPEN, State.FAILED, State.PREPARED, ending=False)
        self._closing = True
        self.refusal = KafkaError(Error.TRANSACTION_ABORTABLE, "the transaction was aborted before this was written")
        if self.state is State.OPEN:
            self.state = State.FAILED  # if the caller does not wait for the end, nothing else is left to it
        numbered = [
            batch
            for lane in self.sender.lanes.values()
            for batch in (*lane.flying, *lane.queue)
            if batch.data is not None
        ]
        for lane in self.sender.lanes.values():
            self.sender.drop(lane, self.refusal)
        await self.sender.settled()
        if any(batch.error is not None for batch in numbered):
            self._wants_epoch = True  # what comes next would be missing them, or find them arriving late
        await self._added_all()
        self._expect(State.OPEN, State.FAILED, State.PREPARED, ending=False)
        await self._end(False)

    async def complete(self, prepared: Prepared) -> Outcome:
        """Commit if this is what was prepared here, abort if something else was."""
        self._expect(State.READY, State.PREPARED)
        if self.state is State.READY:
            return Outcome.NOTHING
        if prepared == self._prepared:
            await self.commit()
            return Outcome.COMMITTED
        await self.abort()
        return Outcome.ABORTED

    async def close(self) -> None:
        """An open transaction is aborted; a prepared one stays."""
        try:
            if self.state in (State.OPEN, State.FAILED):
                await self.abort()
        finally:
            for coordinator in (self._coordinator, *self._groups.values()):
                coordinator.close()

    # What the sender calls.

    @property
    def produce_version_max(self) -> int:
        return PRODUCE_V1 if self.generation == 1 else PRODUCE_V2

    def admits(self, where: TopicPartition) -> bool:
        if self.generation == 2:
            self._started = True
            return True
        if where in self._added:
            return True
        self._to_add[where] = None
        if self._adding is None:
            self._adding = asyncio.get_running_loop().create_task(self._add_partitions())
        return False

    def heard(self, error: Exception) -> None:
        self._wants_epoch = True
        if isinstance(error, KafkaError) and error.error in FATAL_WHEN_WRITING:
            self._die(error)
        else:
            self._fail(error)

    # States.

    def _expect(self, *states: State, ending: bool | None = None) -> None:
        """Raise unless in one of these states, or on the way to such an end."""
        if self.state in states or (ending is not None and self.state is State.ENDING and self._commits is ending):
            return
        if self.refusal is not None and self.state in (State.FAILED, State.DEAD):
            raise self.refusal
        said = self.state.value
        if self.state is State.ENDING:
            said += f": {'commit' if self._commits else 'abort'}() it again, its outcome is not known"
        raise ValueError(f"not now: {said}")

    def _spoken(self) -> int:
        return 2 if self._coordinator.features.get("transaction.version", 0) >= 2 else 1

    def _identity(self) -> Identity:
        return self.sender.identity or NOBODY

    def _fail(self, error: Exception) -> Abortable:
        failed = Abortable(error)
        self._forgotten = failed.error is Error.INVALID_PRODUCER_ID_MAPPING
        if self.state is State.OPEN:
            self.state, self.refusal = State.FAILED, failed
            self._wake()
        return failed

    def _die(self, error: KafkaError) -> Fatal:
        dead = Fatal(error, self.transactional_id)
        self.state, self.refusal = State.DEAD, dead
        self._wake()
        return dead

    def _wake(self) -> None:
        for lane in self.sender.lanes.values():
            self.sender.wake(lane)

    # Ends.

    async def _written(self) -> None:
        self._closing = True
        await self.sender.flush()
        self._expect(State.OPEN)

    async def _end(self, commits: bool) -> None:
        self.state, self._commits = State.ENDING, commits
        if self._started and not self._forgotten:
            await self._ask_to_end(commits)
        self._started = False  # whoever has to call again need not end it again
        if self._wants_epoch and (self.generation == 1 or self._forgotten):
            await self._ask_coordinator(lambda: self._init(self._identity(), False))
        if self._wants_epoch:
            await self._look_again()
        self.state, self.refusal, self._prepared = State.READY, None, NOTHING
        self._closing = self._started = self._known = self._forgotten = self._wants_epoch = False
        self._added.clear()

    async def _look_again(self) -> None:
        """What failed may have been of the wrong generation; a new connection tells which one is spoken now."""
        self._coordinator.close()
        with contextlib.suppress(KafkaError, OSError):
            await self._coordinator.connection()

    async def _ask_to_end(self, commits: bool) -> None:
        try:
            await self.cluster.retrying(lambda: self._end_once(commits), self.patience_s, PAUSE_SECONDS)
        except OSError as error:
            raise _unanswered(error, commits)
        except KafkaError as error:
            if may_pass(error):
                raise _unanswered(error, commits)
            if error.error is Error.INVALID_TXN_STATE and not commits and not self._known:
                return  # what would have begun the transaction has failed: there is nothing to end
            if error.error not in ABORTABLE or not commits:
                raise self._die(error)
            self._wants_epoch = True
            self.state = State.OPEN
            raise self._fail(error)

    async def _end_once(self, commits: bool) -> None:
        producer_id, epoch = self._identity()
        request = EndTxnRequest(
            transactional_id=self.transactional_id, producer_id=producer_id, producer_epoch=epoch, committed=commits
        )
        limit = END_V1 if self.generation == 1 else END_V2
        response: EndTxnResponse = await self._coordinator.ask_up_to(limit, request)
        self._coordinator.judge(response.error_code)
        if response.producer_id >= 0:
            self.sender.identity = Identity(response.producer_id, response.producer_epoch)

    # Questions to the coordinator.

    async def _ask_coordinator(self, step: Callable[[], Awaitable[T]]) -> T:
        """Until it works. An error leaves the transaction fit to be aborted, or the producer to be closed."""
        try:
            return await self.cluster.retrying(step, self.patience_s, PAUSE_SECONDS)
        except OSError as error:
            self._wants_epoch = self.state is not State.NEW
            raise error if self.state is State.NEW else self._fail(error)
        except KafkaError as error:
            if self.state is State.NEW and error.error not in FENCED:
                raise
            if may_pass(error) or error.error in ABORTABLE:
                self._wants_epoch = True
                raise self._fail(error)
            raise self._die(error)

    async def _init(self, current: Identity, keep_prepared: bool) -> Prepared:
        request = InitProducerIdRequest(
            transactional_id=self.transactional_id,
            transaction_timeout_ms=self.timeout_ms,
            producer_id=current.producer_id,
            producer_epoch=current.epoch,
            enable_2pc=self.two_phase,
            keep_prepared_txn=keep_prepared,
        )
        connection = await self._coordinator.connection()
        version = min(connection.version_of(InitProducerIdRequest), INIT_TWO_PHASE if self.two_phase else INIT_STABLE)
        if self.two_phase and version < INIT_TWO_PHASE:
            what = "has no two-phase commit: its setting transaction.two.phase.commit.enable must be true"
            raise KafkaError(Error.UNSUPPORTED_VERSION, f"the broker at {connection.address} {what}")
        if self.two_phase and self._spoken() < 2:  # the epoch would not tell one transaction from the next
            raise KafkaError(Error.UNSUPPORTED_VERSION, "two-phase commit needs the feature transaction.version at 2")
        response: InitProducerIdResponse = await self._coordinator.ask(request, version=version)
        self._coordinator.judge(response.error_code)
        self.sender.identity = Identity(response.producer_id, response.producer_epoch)
        return Prepared(response.ongoing_txn_producer_id, response.ongoing_txn_producer_epoch)

    async def _add_offsets(self, group: str) -> None:
        producer_id, epoch = self._identity()
        request = AddOffsetsToTxnRequest(
            transactional_id=self.transactional_id, producer_id=producer_id, producer_epoch=epoch, group_id=group
        )
        response: AddOffsetsToTxnResponse = await self._coordinator.ask(request)
        self._coordinator.judge(response.error_code)

    # Partitions that generation 1 adds before it writes to them.

    async def _added_all(self) -> None:
        if self._adding is not None:
            await asyncio.wait([self._adding])

    async def _add_partitions(self) -> None:
        try:
            while self._to_add and self.state is State.OPEN:
                wanted, self._to_add = self._to_add, {}
                await self.cluster.retrying(partial(self._add_once, list(wanted)), self.patience_s, PAUSE_SECONDS)
                self._added.update(wanted)
                self._known = True
        except (KafkaError, OSError) as error:
            self._wants_epoch = True
            if isinstance(error, KafkaError) and error.error in FATAL_WHEN_ADDING:
                self._die(error)
            else:
                self._fail(error)
        finally:
            self._to_add, self._adding = {}, None
            self._wake()

    async def _add_once(self, partitions: list[TopicPartition]) -> None:
        producer_id, epoch = self._identity()
        request = AddPartitionsToTxnRequest(
            v3_and_below_transactional_id=self.transactional_id,
            v3_and_below_producer_id=producer_id,
            v3_and_below_producer_epoch=epoch,
            v3_and_below_topics=[
                TopicPartitions(name=topic, partitions=[where.partition for where in part])
                for topic, part in by_topic(dict.fromkeys(partitions)).items()
            ],
        )
        self._started = True
        response: AddPartitionsToTxnResponse = await self._coordinator.ask_up_to(CLIENT_ADDS, request)
        codes = [p.partition_error_code for t in response.results_by_topic_v3_and_below for p in t.results_by_partition]
        # Where one partition is refused, the others are told that nobody tried: the one says why.
        for code in sorted(codes, key=lambda code: code == Error.OPERATION_NOT_ATTEMPTED.code):
            self._coordinator.judge(code)


def _text(error: Exception) -> str:
    return (error.message if isinstance(error, KafkaError) else None) or str(error) or type(error).__name__


def _unanswered(error: Exception, commits: bool) -> Lost:
    what = "commit" if commits else "abort"
    return Lost(f"the coordinator has not said how the {what} went: call {what}() again ({_text(error)})")
