"""Transactional ids: where each stands, and which way it may go from there.

A *transactional id* names a producer across its restarts. It has a *producer id* and an *epoch*, which every batch of the
producer carries; whoever comes with the id of an earlier epoch is *fenced*. A transaction begins when the first partition is
*added* to it (ONGOING) and ends in two steps. First the outcome is written down (PREPARE_COMMIT, PREPARE_ABORT): from then on
nothing can change it. Then every partition gets a *marker*, and when all are written the end is complete (COMPLETE_COMMIT,
COMPLETE_ABORT). A coordinator that takes over finds ends that were prepared and goes on with their markers.

*Generation 1* (KIP-98): an epoch lasts until the producer starts again, and one that hears nothing of its end of a transaction
says it again in the same epoch; so a late request of one transaction cannot be told from one of the next. *Generation 2*
(KIP-890) begins a new epoch with every end: what is left of earlier transactions is fenced. Which one it is follows from the
version of the client's EndTxn; where nobody asked (a transaction that took too long), from the feature `transaction.version`.

Epochs are 16 bits. 32767 is kept for fencing and never handed to a client: a producer at 32766 that needs another epoch gets
a new producer id. In generation 2 that happens while a transaction ends: its markers carry the old id (and 32767), the client
already has the next one, and `next_producer_id` remembers it until the end is complete.

*Two-phase commit* (KIP-939): the transaction waits, as long as it takes, for what an outside coordinator decides. A client
that comes back after a crash asks to keep it: it gets a new epoch, `next_producer_id` and `next_epoch`, in which it may do
nothing but end the transaction that its earlier self left behind at `producer_id` and `epoch`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from enum import IntEnum
from typing import TYPE_CHECKING, Any, NamedTuple

from ottla.coordination.machine import Decision, Moment, Timers, Waiter
from ottla.coordination.records import Record
from ottla.coordination.transactions.records import TransactionLogKey, TransactionLogValue
from ottla.metadata.features import TRANSACTION_VERSION
from ottla.wire.errors import Error
from ottla.wire.messages.transactions import NO_TIMEOUT_MS
from ottla.wire.records import PRODUCER_EPOCH_MAX

if TYPE_CHECKING:
    from ottla.config import BrokerConfig
    from ottla.metadata.image import Image
    from ottla.wire.ids import Chance

# From this level of `transaction.version` on every end brings a new epoch.
BUMPS_EVERY_END = 2

NONE = -1
# A producer that has this epoch gets no other.
EXHAUSTED = PRODUCER_EPOCH_MAX - 1

TopicPartition = tuple[str, int]


class State(IntEnum):
    """By the number that stands in the topic. The last two are never written: in Apache Kafka they last for a moment."""

    EMPTY = 0
    ONGOING = 1
    PREPARE_COMMIT = 2
    PREPARE_ABORT = 3
    COMPLETE_COMMIT = 4
    COMPLETE_ABORT = 5
    DEAD = 6
    PREPARE_EPOCH_FENCE = 7


def as_known(error: Error, version: int, since: int) -> Error:
    """PRODUCER_FENCED in a word that clients had before there was one for it: since which version depends on the request."""
    return Error.INVALID_PRODUCER_EPOCH if error is Error.PRODUCER_FENCED and version < since else error


# As clients see it.
NAMES = {state: "".join(word.capitalize() for word in state.name.split("_")) for state in State}
ENDING = frozenset({State.PREPARE_COMMIT, State.PREPARE_ABORT})
# Nothing is going on: a transaction may begin, the producer may be replaced, the id may be forgotten.
AT_REST = frozenset({State.EMPTY, State.COMPLETE_COMMIT, State.COMPLETE_ABORT})

# State -> those that it may come from. In generation 2 a producer may abort what it never began.
BEFORE: dict[State, frozenset[State]] = {
    State.EMPTY: AT_REST,
    State.ONGOING: AT_REST | {State.ONGOING},
    State.PREPARE_COMMIT: frozenset({State.ONGOING}),
    State.PREPARE_ABORT: AT_REST | {State.ONGOING},
    State.COMPLETE_COMMIT: frozenset({State.PREPARE_COMMIT}),
    State.COMPLETE_ABORT: frozenset({State.PREPARE_ABORT}),
}
COMPLETE = {State.PREPARE_COMMIT: State.COMPLETE_COMMIT, State.PREPARE_ABORT: State.COMPLETE_ABORT}


class Identity(NamedTuple):
    """Who a client is, towards coordinators and partitions."""

    producer_id: int
    epoch: int


class Marking(NamedTuple):
    """An order: markers to be written to these partitions, which makes a prepared end complete."""

    transactional_id: str
    producer_id: int
    epoch: int  # that the markers carry; in generation 2 it is already the next one
    committed: bool
    partitions: tuple[TopicPartition, ...]
    transaction_version: int  # of the client that ended it


class Waiting(NamedTuple):
    """A request that is decided when a transaction has ended. One without a waiter cannot be kept."""

    waiter: Waiter | None
    again: Callable[[Moment], Decision[Any]]  # decides it in the state that is then
    busy: object  # what it is told if the end does not come


class Transaction(NamedTuple):
    """A transactional id as its last record left it."""

    transactional_id: str
    producer_id: int
    epoch: int
    timeout_ms: int
    state: State = State.EMPTY
    partitions: frozenset[TopicPartition] = frozenset()
    started_ms: int = NONE
    updated_ms: int = NONE
    previous_producer_id: int = NONE
    next_producer_id: int = NONE
    next_epoch: int = NONE
    client_version: int = 0

    @property
    def identity(self) -> Identity:
        """Who the client is; while an end is prepared, who it is from then on."""
        if self.next_producer_id == NONE:
            return Identity(self.producer_id, self.epoch)
        return Identity(self.next_producer_id, max(self.next_epoch, 0))

    @property
    def is_kept(self) -> bool:
        """Whether a client came back to a transaction that its earlier self left open (KIP-939)."""
        return self.state is State.ONGOING and self.next_epoch != NONE

    @property
    def is_two_phase(self) -> bool:
        return self.timeout_ms == NO_TIMEOUT_MS

    def moved(self, state: State, moment: Moment, **changes: object) -> Transaction:
        """The same id in its next state."""
        assert self.state in BEFORE[state], f"{self.transactional_id}: {self.state.name} -> {state.name}"
        changes = {"previous_producer_id": self.producer_id, "updated_ms": moment.wall_ms, **changes}
        return self._replace(state=state, **changes)  # type: ignore[arg-type]

    def marking(self) -> Marking:
        assert self.state in ENDING
        committed = self.state is State.PREPARE_COMMIT
        partitions = tuple(sorted(self.partitions))
        return Marking(self.transactional_id, self.producer_id, self.epoch, committed, partitions, self.client_version)


def to_record(transaction: Transaction) -> Record:
    value = TransactionLogValue(
        producer_id=transaction.producer_id,
        previous_producer_id=transaction.previous_producer_id,
        next_producer_id=transaction.next_producer_id,
        producer_epoch=transaction.epoch,
        next_producer_epoch=transaction.next_epoch,
        transaction_timeout_ms=transaction.timeout_ms,
        transaction_status=int(transaction.state),
        transaction_partitions=None if transaction.state is State.EMPTY else _written(transaction.partitions),
        transaction_last_update_timestamp_ms=transaction.updated_ms,
        transaction_start_timestamp_ms=transaction.started_ms,
        client_transaction_version=transaction.client_version,
    )
    return Record(TransactionLogKey(transactional_id=transaction.transactional_id), value)


def tombstone(transactional_id: str) -> Record:
    return Record(TransactionLogKey(transactional_id=transactional_id), None)


def _written(partitions: Iterable[TopicPartition]) -> list[TransactionLogValue.PartitionsSchema]:
    kind = TransactionLogValue.PartitionsSchema
    return [kind(topic=name, partition_ids=ids) for name, ids in by_topic(partitions).items()]


def by_topic(partitions: Iterable[TopicPartition]) -> dict[str, list[int]]:
    topics: dict[str, list[int]] = {}
    for topic, index in sorted(partitions):
        topics.setdefault(topic, []).append(index)
    return topics


def from_value(transactional_id: str, value: TransactionLogValue) -> Transaction:
    return Transaction(
        transactional_id,
        value.producer_id,
        value.producer_epoch,
        value.transaction_timeout_ms,
        State(value.transaction_status),
        frozenset((each.topic, index) for each in value.transaction_partitions or () for index in each.partition_ids),
        value.transaction_start_timestamp_ms,
        value.transaction_last_update_timestamp_ms,
        value.previous_producer_id,
        value.next_producer_id,
        value.next_producer_epoch,
        value.client_transaction_version,
    )


class Transactions:
    """All transactional ids of one partition of `__transaction_state`, with their alarms and those who wait."""

    def __init__(self, config: BrokerConfig, image: Callable[[], Image], chance: Chance) -> None:
        self.config = config
        self.chance = chance
        self._image = image
        self.by_id: dict[str, Transaction] = {}
        # Where the last record of each id lies: below what is committed, it is not news any more.
        self.written_at: dict[str, int] = {}
        self.timers = Timers()
        # The epoch that came before the present one, if a client that has not heard of the present one may ask again. Not in
        # the records: after a takeover such a client is fenced.
        self.last_epochs: dict[str, int] = {}
        # Partitions that still lack their marker, where others of the same end have it. Not in the records either: who takes
        # over writes them all again.
        self.unmarked: dict[str, tuple[TopicPartition, ...]] = {}
        # Transactional id -> number -> who waits for its transaction to end.
        self.waiting: dict[str, dict[str, Waiting]] = {}
        self.waited = 0
        # Ids that have still to be looked at in this round of expiry.
        self.to_look_at: list[str] = []

    @property
    def image(self) -> Image:
        """The committed picture of the cluster."""
        return self._image()

    @property
    def transaction_version(self) -> int:
        """What the cluster has agreed on."""
        return self.image.features.get(TRANSACTION_VERSION, 0)

    @property
    def record_version(self) -> int:
        """Fields that came later are written once all brokers can read them."""
        return 1 if self.transaction_version >= 1 else 0

    def replay(self, record: Record, offset: int) -> None:
        key, value = record
        assert isinstance(key, TransactionLogKey)
        if self.unmarked:
            self.unmarked.pop(key.transactional_id, None)
        if value is None:
            self.by_id.pop(key.transactional_id, None)
            self.written_at.pop(key.transactional_id, None)
            self.last_epochs.pop(key.transactional_id, None)
        else:
            assert isinstance(value, TransactionLogValue)
            self.by_id[key.transactional_id] = from_value(key.transactional_id, value)
            self.written_at[key.transactional_id] = offset
