"""What a log knows of the producers that number their batches: sequences, duplicates, open transactions.

An idempotent producer has an id and an epoch and numbers its records per partition, from 0, wrapping after 2^31-1. The log
remembers the last five batches of each producer. A batch that continues the numbers is accepted; one that repeats a
remembered batch is answered with the offsets it got the first time; anything else is OUT_OF_ORDER_SEQUENCE_NUMBER. An unknown
producer (new here, or forgotten after `producer.id.expiration.ms`) may begin with any number, except that transactions of
generation 2 begin with 0. A new epoch begins with 0, an older one is fenced.

A transaction is open from its first transactional batch to its marker. Until then nothing at or above its first offset is
stable: the *last stable offset* is where the first undecided transaction begins. A decided one still counts until its marker
lies below the high watermark, for a consumer must not see a decision that may yet be lost.

A transaction must not begin here unless its coordinator knows of it, or nobody would ever end it (KIP-890). So whoever brings
its first batch asks the coordinator first, and holds a *guard* while it does: any marker of that producer takes the guard
away, for then the answer is about a transaction that is over. The batch may come in only with the guard that is still there.

Entries are immutable. What is staged lies in an overlay (`staged`, `events`) and is merged when the bytes are written, or
dropped when the write failed. Snapshots hold one batch per producer, so after a restart the memory of duplicates is one
batch deep plus whatever was scanned again; this is Kafka's own format and limit.
"""

from __future__ import annotations

from collections.abc import Iterator
from enum import Enum
from struct import Struct
from struct import error as StructError
from typing import Final, NamedTuple

from crc32c import crc32c

from ottla.log.aborted import AbortedTransaction
from ottla.wire.errors import Error, KafkaError
from ottla.wire.records import PRODUCER_EPOCH_MAX

SEQUENCE_MAX = 2**31 - 1
BATCHES_KEPT = 5
NONE = -1

SNAPSHOT_VERSION = 1
_HEAD = Struct(">hIi")
_ENTRY = Struct(">qhiqiqiq")
_CRC_FROM = 6
# A named tuple made this way costs a third of calling its class.
_new = tuple.__new__


class Origin(Enum):
    """Who appends: it decides what is checked and who numbers the records."""

    CLIENT = "client"
    COORDINATOR = "coordinator"
    REPLICATION = "replication"
    RAFT = "raft"


CLIENT = Origin.CLIENT  # a name of the module is found in 4 ns, a member of an enumeration in 50


class BadSnapshot(ValueError):
    """A producer snapshot that is torn, rotten or from another version."""


class Sent(NamedTuple):
    """One batch of a producer that is in the log."""

    first_sequence: int
    last_sequence: int
    first_offset: int
    last_offset: int
    timestamp: int


class Producer(NamedTuple):
    """One producer as of its last batch. `transaction_first` is -1 outside a transaction."""

    epoch: int
    coordinator_epoch: int
    timestamp: int
    transaction_first: int
    batches: tuple[Sent, ...]

    @property
    def last_sequence(self) -> int:
        return self.batches[-1].last_sequence if self.batches else NONE


class Completed(NamedTuple):
    """A transaction with data whose marker was appended at `last_offset`."""

    producer_id: int
    first_offset: int
    last_offset: int
    aborted: bool


class Marker(NamedTuple):
    """The end of a producer's transaction, as its coordinator decided it; in generation 2 with the next epoch already."""

    producer_id: int
    epoch: int
    coordinator_epoch: int
    committed: bool
    transaction_version: int = 0


NOBODY = Producer(NONE, NONE, NONE, NONE, ())


class Guard:
    """One transaction that wants to begin here, while its coordinator is asked.

    It also knows the lowest sequence that asked: if that one is refused and has to come again, a higher one must not get in
    before it, or the lower would be out of order for ever.
    """

    __slots__ = ("epoch", "lowest_sequence", "next_generation", "since_ms")

    def __init__(self, epoch: int, sequence: int, next_generation: bool, since_ms: int) -> None:
        self.epoch = epoch
        self.lowest_sequence = sequence
        self.next_generation = next_generation
        self.since_ms = since_ms

    def meet(self, epoch: int, sequence: int, next_generation: bool) -> None:
        """One more batch of that producer asks; one of a later epoch may be of another generation."""
        if epoch > self.epoch:
            self.epoch, self.lowest_sequence, self.next_generation = epoch, sequence, next_generation
        elif epoch == self.epoch and sequence < self.lowest_sequence:
            self.lowest_sequence = sequence


# Stands for a guard where nobody has to ask: verification is off, or a log is used without coordinators.
UNGUARDED: Final = Guard(NONE, SEQUENCE_MAX, False, 0)


def sequence_plus(sequence: int, delta: int) -> int:
    """`delta` records further on, wrapping from 2^31-1 to 0."""
    return sequence + delta if sequence + delta <= SEQUENCE_MAX else sequence + delta - SEQUENCE_MAX - 1


def sequence_minus(sequence: int, delta: int) -> int:
    return sequence - delta if sequence >= delta else sequence - delta + SEQUENCE_MAX + 1


class Producers:
    __slots__ = ("completed", "entries", "events", "first_undecided", "guards", "ongoing", "staged")

    def __init__(self) -> None:
        self.entries: dict[int, Producer] = {}
        self.staged: dict[int, Producer] = {}
        # Staged begins (producer id, first offset) and ends, in the order of the log.
        self.events: list[tuple[int, int] | Completed] = []
        self.ongoing: dict[int, int] = {}
        self.completed: list[Completed] = []
        self.first_undecided = NONE
        self.guards: dict[int, Guard] = {}

    def known(self, producer_id: int) -> Producer | None:
        """The newest entry, staged or not."""
        return self.staged.get(producer_id) or self.entries.get(producer_id)

    # -- admitting

    def guard(self, producer_id: int, epoch: int, sequence: int, next_generation: bool, now_ms: int) -> Guard | None:
        """What a batch needs to begin a transaction here; None if the transaction is open already."""
        known = self.known(producer_id)
        if known is not None:
            if epoch < known.epoch:
                raise fenced(epoch, known.epoch)
            if known.transaction_first >= 0 and known.epoch == epoch:
                return None
        guard = self.guards.get(producer_id)
        if guard is None:
            guard = self.guards[producer_id] = Guard(epoch, sequence, next_generation, now_ms)
        else:
            guard.meet(epoch, sequence, next_generation)
        return guard

    def _check_guard(self, producer_id: int, known: Producer, epoch: int, sequence: int, guard: Guard | None) -> None:
        """A batch would begin a transaction: may it?"""
        if epoch < known.epoch:
            raise fenced(epoch, known.epoch)
        if guard is UNGUARDED:
            return
        if guard is None or self.guards.get(producer_id) is not guard:
            raise KafkaError(Error.INVALID_TXN_STATE, "the batch is not part of an open transaction")
        self._check_turn(guard, sequence)

    @staticmethod
    def _check_turn(guard: Guard, sequence: int) -> None:
        """A lower sequence that asked comes first, also before a batch outside of transactions."""
        if sequence > guard.lowest_sequence:
            raise out_of_order(sequence, guard.lowest_sequence)

    def _drop_guard(self, producer_id: int, entry: Producer) -> None:
        """The transaction has begun, or one has ended. In generation 2 a marker carries the epoch that the next transaction
        has: it says nothing about that one."""
        guard = self.guards.get(producer_id)
        if guard is None:
            return
        has_begun, is_of_before = entry.transaction_first >= 0, guard.next_generation and entry.epoch == guard.epoch
        if has_begun or not is_of_before:
            del self.guards[producer_id]

    # -- deciding

    def data_batch(
        self,
        producer_id: int,
        epoch: int,
        first_sequence: int,
        first_offset: int,
        delta: int,
        timestamp: int,
        transactional: bool,
        origin: Origin,
        transaction_version: int,
        guard: Guard | None = UNGUARDED,
    ) -> Producer | Sent:
        """What the producer's entry becomes with this batch, or the earlier batch that this one repeats."""
        known = self.staged.get(producer_id) or self.entries.get(producer_id) or NOBODY
        batches, begun = known[4], known[3]
        last_sequence = first_sequence + delta if first_sequence >= 0 else NONE
        if last_sequence > SEQUENCE_MAX:
            last_sequence -= SEQUENCE_MAX + 1
        if origin is CLIENT:
            # Nearly every batch just continues the numbers of the one before.
            continues = known[0] == epoch and batches and first_sequence == batches[-1][1] + 1
            if not continues:
                repeated = self._repeated(known, epoch, first_sequence, last_sequence)
                if repeated is not None:
                    return repeated
            if transactional and (begun < 0 or known[0] != epoch):
                self._check_guard(producer_id, known, epoch, first_sequence, guard)
            elif producer_id in self.guards and epoch >= known[0]:
                self._check_turn(self.guards[producer_id], first_sequence)
            if not continues:
                check_sequence(known, epoch, first_sequence, transactional and transaction_version >= 2)
        elif origin is Origin.COORDINATOR:
            if epoch < known[0]:
                raise fenced(epoch, known[0])
            if transactional and (begun < 0 or known[0] != epoch):
                self._check_guard(producer_id, known, epoch, NONE, guard)
        if transactional:
            begun = first_offset if begun < 0 else begun
        elif begun >= 0 and origin is not Origin.REPLICATION:
            raise KafkaError(
                Error.INVALID_TXN_STATE, "a transaction of this producer is open, but the batch is not part of one"
            )
        sent = _new(Sent, (first_sequence, last_sequence, first_offset, first_offset + delta, timestamp))
        kept = (*batches[1 - BATCHES_KEPT :], sent) if known[0] == epoch else (sent,)
        return _new(Producer, (epoch, known[1], timestamp, begun, kept))

    @staticmethod
    def _repeated(known: Producer, epoch: int, first_sequence: int, last_sequence: int) -> Sent | None:
        if known.epoch == epoch:
            for sent in known.batches:
                if sent.first_sequence == first_sequence and sent.last_sequence == last_sequence:
                    return sent
        return None

    def marker(
        self,
        producer_id: int,
        epoch: int,
        coordinator_epoch: int,
        offset: int,
        timestamp: int,
        aborted: bool,
        origin: Origin,
        transaction_version: int,
    ) -> tuple[Producer, Completed | None]:
        """What an end marker makes of the producer, and the transaction it decides, if that one has data."""
        known = self.known(producer_id) or NOBODY
        if origin is not Origin.REPLICATION:
            # A marker of generation 2 carries the next epoch already; one of generation 1 the producer's own. The same epoch
            # again is a coordinator that repeats itself after a start, unless a later transaction is open by now; the last
            # epoch there is cannot be followed by another.
            is_late = transaction_version >= 2 and epoch == known.epoch and known.transaction_first >= 0
            if epoch < known.epoch or (is_late and epoch != PRODUCER_EPOCH_MAX):
                raise fenced(epoch, known.epoch)
            if coordinator_epoch < known.coordinator_epoch:
                raise KafkaError(Error.TRANSACTION_COORDINATOR_FENCED, f"coordinator epoch {coordinator_epoch} is over")
        completed = None
        if known.transaction_first >= 0:
            completed = Completed(producer_id, known.transaction_first, offset, aborted)
        batches = known.batches if known.epoch == epoch else ()
        return Producer(epoch, coordinator_epoch, timestamp, NONE, batches), completed

    # -- staging and merging

    def stage(
        self, producer_id: int, entry: Producer, completed: Completed | None = None, is_marker: bool = False
    ) -> None:
        if completed is not None:
            self.events.append(completed)
        elif entry.transaction_first >= 0:
            known = self.known(producer_id)
            if known is None or known.transaction_first != entry.transaction_first:
                self.events.append((producer_id, entry.transaction_first))
        self.staged[producer_id] = entry
        if self.guards and (is_marker or entry.transaction_first >= 0):
            self._drop_guard(producer_id, entry)

    def aborted_rows(self) -> list[AbortedTransaction]:
        """Index rows for the aborted transactions that are staged, each with the last stable offset after it."""
        ongoing, rows = dict(self.ongoing), []
        for event in self.events:
            if not isinstance(event, Completed):
                ongoing[event[0]] = event[1]
                continue
            ongoing.pop(event.producer_id, None)
            if event.aborted:
                stable = min(ongoing.values(), default=event.last_offset + 1)
                rows.append(AbortedTransaction(event.producer_id, event.first_offset, event.last_offset, stable))
        return rows

    def merge(self) -> None:
        """The staged batches are in the file."""
        self.entries.update(self.staged)
        self.staged.clear()
        if self.events:
            for event in self.events:
                if isinstance(event, Completed):
                    self.ongoing.pop(event.producer_id, None)
                    self.completed.append(event)
                else:
                    self.ongoing[event[0]] = event[1]
            self.events.clear()
            self.first_undecided = min(self.ongoing.values(), default=NONE)

    def discard(self) -> None:
        """The staged batches never reached the file."""
        self.staged.clear()
        self.events.clear()

    # -- reading

    def first_unstable(self, high_watermark: int) -> int:
        """The first offset that read_committed must not pass, or -1. Decided transactions below the watermark are dropped."""
        if self.completed:
            self.completed = [done for done in self.completed if done.last_offset >= high_watermark]
            first = min((done.first_offset for done in self.completed), default=NONE)
            if first >= 0 and (self.first_undecided < 0 or first < self.first_undecided):
                return first
        return self.first_undecided

    def last_sign_of_oldest(self) -> int:
        """When the producer last wrote whose transaction has been open for longest; -1 if none is."""
        if self.first_undecided < 0:
            return NONE
        return self.entries[min(self.ongoing, key=self.ongoing.__getitem__)].timestamp

    def expire(self, now_ms: int, expiration_ms: int) -> None:
        """Forget who has been silent, by batch timestamp; never inside a transaction."""
        silent = [
            producer_id
            for producer_id, entry in self.entries.items()
            if entry.transaction_first < 0 and now_ms - entry.timestamp >= expiration_ms
        ]
        for producer_id in silent:
            del self.entries[producer_id]
        for producer_id in [p for p, guard in self.guards.items() if now_ms - guard.since_ms >= expiration_ms]:
            del self.guards[producer_id]

    def clear(self) -> None:
        self.__init__()  # type: ignore[misc]

    # -- snapshots

    def snapshot(self) -> bytes:
        rows = b"".join(self._snapshot_rows())
        body = len(self.entries).to_bytes(4, "big") + rows
        return SNAPSHOT_VERSION.to_bytes(2, "big") + crc32c(body).to_bytes(4, "big") + body

    def _snapshot_rows(self) -> Iterator[bytes]:
        for producer_id, entry in sorted(self.entries.items()):
            last = entry.batches[-1] if entry.batches else None
            yield _ENTRY.pack(
                producer_id,
                entry.epoch,
                last.last_sequence if last else NONE,
                last.last_offset if last else NONE,
                last.last_offset - last.first_offset if last else 0,
                entry.timestamp,
                entry.coordinator_epoch,
                entry.transaction_first,
            )

    def load(self, data: bytes, now_ms: int, expiration_ms: int) -> None:
        """Begin anew from a snapshot."""
        self.clear()
        self.entries = read_snapshot(data)
        for producer_id, entry in self.entries.items():
            if entry.transaction_first >= 0:
                self.ongoing[producer_id] = entry.transaction_first
        self.first_undecided = min(self.ongoing.values(), default=NONE)
        self.expire(now_ms, expiration_ms)


def check_sequence(known: Producer, epoch: int, first_sequence: int, strict: bool) -> None:
    """A client's batch that neither follows nor repeats: is there another right for it to be here?"""
    if epoch < known.epoch:
        raise fenced(epoch, known.epoch)
    if known.epoch == NONE:
        if strict and first_sequence != 0:
            raise out_of_order(first_sequence, NONE)
    elif epoch != known.epoch:
        if first_sequence != 0:
            raise out_of_order(first_sequence, NONE)
    elif first_sequence != (sequence_plus(known.last_sequence, 1) if known.batches else 0):
        raise out_of_order(first_sequence, known.last_sequence)


def fenced(epoch: int, current: int) -> KafkaError:
    return KafkaError(Error.INVALID_PRODUCER_EPOCH, f"producer epoch {epoch} is older than {current}")


def out_of_order(sequence: int, last: int) -> KafkaError:
    return KafkaError(Error.OUT_OF_ORDER_SEQUENCE_NUMBER, f"sequence {sequence} does not follow {last}")


def read_snapshot(data: bytes) -> dict[int, Producer]:
    """Producers by id; BadSnapshot for anything that is not a whole snapshot with a right checksum."""
    try:
        version, crc, count = _HEAD.unpack_from(data)
    except StructError as error:
        raise BadSnapshot(str(error)) from error
    if version != SNAPSHOT_VERSION or len(data) != _HEAD.size + count * _ENTRY.size or crc32c(data[_CRC_FROM:]) != crc:
        raise BadSnapshot(f"version {version}, {count} entries in {len(data)} bytes, or a wrong checksum")
    producers = {}
    for row in _ENTRY.iter_unpack(data[_HEAD.size :]):
        producer_id, epoch, last_sequence, last_offset, delta, timestamp, coordinator_epoch, first = row
        batches: tuple[Sent, ...] = ()
        if last_offset >= 0:
            first_sequence = sequence_minus(last_sequence, delta) if last_sequence >= 0 else NONE
            batches = (Sent(first_sequence, last_sequence, last_offset - delta, last_offset, timestamp),)
        producers[producer_id] = Producer(epoch, coordinator_epoch, timestamp, first, batches)
    return producers
