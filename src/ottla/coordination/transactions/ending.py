"""EndTxn and its two steps: an outcome that is written down, and the markers that make it complete.

What an end means in each state stands in three tables. In generation 1 a producer that says the same thing again in the same
epoch is taken to repeat itself. In generation 2 it comes with the epoch before the present one if it repeats itself, and with
the present one if it is the next end: that of a transaction to which nothing was added, which may only be aborted (after an
error a client does that to be sure).
"""

from __future__ import annotations

from collections.abc import Iterable
from enum import Enum, auto
from typing import NamedTuple

from ottla.coordination.machine import Caller, Decision, Moment
from ottla.coordination.transactions.states import (
    AT_REST,
    BUMPS_EVERY_END,
    COMPLETE,
    ENDING,
    EXHAUSTED,
    NONE,
    Identity,
    Marking,
    State,
    TopicPartition,
    Transaction,
    Transactions,
    Waiting,
    as_known,
    to_record,
)
from ottla.coordination.transactions.waiting import WantsProducerId, ended, needed, wait_for_end
from ottla.wire.errors import Error
from ottla.wire.messages.transactions import EndTxnRequest, EndTxnResponse
from ottla.wire.records import PRODUCER_EPOCH_MAX

# EndTxn: PRODUCER_FENCED from version 2 on, generation 2 from version 5 on.
KNOWS_FENCED, GENERATION_2 = 2, 5

COMMIT, ABORT = True, False


class Course(Enum):
    """What to do about an end."""

    END = auto()  # write down the outcome
    BUSY = auto()  # it is being ended in this way: wait until that is complete
    DONE = auto()  # it has ended in this way
    ILLEGAL = auto()


# What is not in a table is illegal.
Table = dict[tuple[State, bool], Course]
IN_GENERATION_1: Table = {
    (State.ONGOING, COMMIT): Course.END,
    (State.ONGOING, ABORT): Course.END,
    (State.PREPARE_COMMIT, COMMIT): Course.BUSY,
    (State.PREPARE_ABORT, ABORT): Course.BUSY,
    (State.COMPLETE_COMMIT, COMMIT): Course.DONE,
    (State.COMPLETE_ABORT, ABORT): Course.DONE,
}
# In generation 2: the end of the transaction that the present epoch began.
NEXT_END: Table = {
    (State.ONGOING, COMMIT): Course.END,
    (State.ONGOING, ABORT): Course.END,
    (State.EMPTY, ABORT): Course.END,
    (State.COMPLETE_COMMIT, ABORT): Course.END,
    (State.COMPLETE_ABORT, ABORT): Course.END,
    # The last end is not complete yet. (Apache Kafka fences the producer, which has done nothing wrong.)
    (State.PREPARE_COMMIT, ABORT): Course.BUSY,
    (State.PREPARE_ABORT, ABORT): Course.BUSY,
}
# The end that began the present epoch, said again.
SAME_END: Table = {
    (State.PREPARE_COMMIT, COMMIT): Course.BUSY,
    (State.PREPARE_ABORT, ABORT): Course.BUSY,
    (State.COMPLETE_COMMIT, COMMIT): Course.DONE,
    (State.COMPLETE_ABORT, ABORT): Course.DONE,
}


class Ending(NamedTuple):
    """`fresh` is a producer id that nobody has, or None if none was asked for yet."""

    request: EndTxnRequest
    fresh: int | None = None


def end(state: Transactions, ending: Ending, caller: Caller, moment: Moment) -> Decision[EndTxnResponse]:
    request, version = ending.request, caller.version
    known = state.by_id.get(request.transactional_id)
    if known is None:
        return _refused(Error.INVALID_PRODUCER_ID_MAPPING, version)
    client = Identity(request.producer_id, request.producer_epoch)
    course = (_course_1 if version < GENERATION_2 else _course_2)(known, client, request.committed)
    if isinstance(course, Error):
        return _refused(course, version)
    if course is Course.ILLEGAL:
        return _refused(Error.INVALID_TXN_STATE, version)
    if course is Course.DONE:
        return Decision(_told(known.identity))
    if course is Course.END:
        bumps = version >= GENERATION_2
        return _end(state, prepared(known, request.committed, bumps, ending.fresh, moment), moment)
    again = caller._replace(waiter=None)
    busy = EndTxnResponse(error_code=Error.CONCURRENT_TRANSACTIONS.code)
    waiting = Waiting(caller.waiter, lambda then: end(state, ending, again, then), busy)
    return wait_for_end(state, request.transactional_id, waiting, moment)


def _course_1(known: Transaction, client: Identity, committed: bool) -> Course | Error:
    if client.producer_id != known.identity.producer_id:
        return Error.INVALID_PRODUCER_ID_MAPPING
    if client.epoch != known.identity.epoch:
        return Error.PRODUCER_FENCED
    return IN_GENERATION_1.get((known.state, committed), Course.ILLEGAL)


def _course_2(known: Transaction, client: Identity, committed: bool) -> Course | Error:
    if _says_again(known, client):
        # An epoch that is kept for fencing is nobody's: whoever could go on with it has to start anew.
        is_over = known.identity.epoch == PRODUCER_EPOCH_MAX or known.state not in COMPLETE_OR_ENDING
        return Error.PRODUCER_FENCED if is_over else SAME_END.get((known.state, committed), Course.ILLEGAL)
    if client.producer_id != known.identity.producer_id:
        return Error.INVALID_PRODUCER_ID_MAPPING
    if client.epoch != known.identity.epoch:
        return Error.PRODUCER_FENCED
    return NEXT_END.get((known.state, committed), Course.ILLEGAL)


COMPLETE_OR_ENDING = ENDING | {State.COMPLETE_COMMIT, State.COMPLETE_ABORT}


def _says_again(known: Transaction, client: Identity) -> bool:
    """Whether the client is who it was before its own end began the present epoch. An end of generation 1 began none: then
    somebody took the id over, and who comes from before that must not learn who the producer is now. (Apache Kafka tells it,
    and both go on in one epoch.)"""
    if known.client_version < BUMPS_EVERY_END:
        return False
    now = known.identity
    if now == Identity(client.producer_id, client.epoch + 1):
        return True
    before = known.producer_id if known.state in ENDING else known.previous_producer_id
    rotated = now.epoch == 0 and before != now.producer_id
    return rotated and client == Identity(before, EXHAUSTED)


def _refused(error: Error, version: int) -> Decision[EndTxnResponse]:
    return Decision(EndTxnResponse(error_code=as_known(error, version, KNOWS_FENCED).code))


def _told(identity: Identity) -> EndTxnResponse:
    return EndTxnResponse(producer_id=identity.producer_id, producer_epoch=identity.epoch)


# --- the first step


def prepared(known: Transaction, committed: bool, bumps: bool, fresh: int | None, moment: Moment) -> Transaction:
    """The id with its outcome; in generation 2 the end `bumps` its epoch. WantsProducerId if its epochs are exhausted and
    there is no fresh producer id."""
    epoch = known.epoch + 1 if bumps else known.epoch
    after: Identity | None = None
    if known.is_kept:
        epoch, after = _after_kept(known, bumps, fresh)
    elif bumps and known.epoch >= EXHAUSTED:
        after = Identity(needed(fresh), NONE)
    return known.moved(
        State.PREPARE_COMMIT if committed else State.PREPARE_ABORT,
        moment,
        epoch=min(epoch, PRODUCER_EPOCH_MAX),
        next_producer_id=NONE if after is None else after.producer_id,
        next_epoch=NONE if after is None else after.epoch,
        started_ms=moment.wall_ms if known.state in AT_REST else known.started_ms,
        client_version=BUMPS_EVERY_END if bumps else 0,
    )


def _after_kept(known: Transaction, bumps: bool, fresh: int | None) -> tuple[int, Identity]:
    """The epoch of the markers, and who the client is afterwards: it has an identity of its own already."""
    client = known.identity
    epoch = client.epoch if client.producer_id == known.producer_id else known.epoch + 1
    if not bumps:
        return epoch, client
    if client.epoch >= EXHAUSTED:
        return epoch, Identity(needed(fresh), 0)
    return epoch, Identity(client.producer_id, client.epoch + 1)


def fenced(state: Transactions, known: Transaction, fresh: int | None, moment: Moment) -> Decision[EndTxnResponse]:
    """Abort what is going on, in an epoch that nobody gets: the producer may not go on."""
    if state.transaction_version >= BUMPS_EVERY_END:
        return _end(state, prepared(known, ABORT, True, fresh, moment), moment)
    bumped = known.moved(State.ONGOING, moment, epoch=min(known.epoch + 1, PRODUCER_EPOCH_MAX))
    decision = _end(state, prepared(bumped, ABORT, False, fresh, moment), moment)
    state.last_epochs[known.transactional_id] = NONE
    return decision


def timed_out(state: Transactions, known: Transaction, moment: Moment) -> Decision[EndTxnResponse]:
    """The same where no fresh producer id can be had: an exhausted producer stays at the epoch that nobody gets."""
    try:
        return fenced(state, known, None, moment)
    except WantsProducerId:
        aborted = known.moved(
            State.PREPARE_ABORT,
            moment,
            epoch=PRODUCER_EPOCH_MAX,
            next_producer_id=NONE,
            next_epoch=NONE,
            client_version=BUMPS_EVERY_END,
        )
        return _end(state, aborted, moment)


def _end(state: Transactions, outcome: Transaction, moment: Moment) -> Decision[EndTxnResponse]:
    """Write down the outcome. Where nothing was added there are no markers, and the end is complete at once."""
    before = state.by_id[outcome.transactional_id]
    if outcome.client_version >= BUMPS_EVERY_END:
        state.last_epochs[outcome.transactional_id] = before.identity.epoch
    decision = Decision(_told(outcome.identity), [to_record(outcome)])
    if outcome.partitions:
        decision.orders = [outcome.marking()]
    else:
        decision.records.append(to_record(completed(outcome, moment)))
        ended(state, outcome.transactional_id, moment)
    return decision


# --- the second step


def completed(known: Transaction, moment: Moment) -> Transaction:
    """The id with its end behind it."""
    producer_id, epoch = known.identity
    return known.moved(
        COMPLETE[known.state],
        moment,
        producer_id=producer_id,
        epoch=epoch,
        next_producer_id=NONE,
        next_epoch=NONE,
        partitions=frozenset(),
    )


def still_unmarked(state: Transactions, marking: Marking, left: Iterable[TopicPartition]) -> None:
    """Some markers are written, these are not yet: for those who look at the transaction meanwhile."""
    if _is_awaited(state, marking):
        state.unmarked[marking.transactional_id] = tuple(left)


def _is_awaited(state: Transactions, marking: Marking) -> bool:
    known = state.by_id.get(marking.transactional_id)
    return known is not None and known.state in ENDING and known.marking() == marking


def marked(state: Transactions, marking: Marking, moment: Moment) -> Decision[None]:
    """All markers are written. Nothing is to be done if that was heard before, or another coordinator did it."""
    if not _is_awaited(state, marking):
        return Decision()
    ended(state, marking.transactional_id, moment)
    return Decision(records=[to_record(completed(state.by_id[marking.transactional_id], moment))])
