"""InitProducerId: a producer with a transactional id begins, or begins anew.

Whoever asks without an identity takes over: all others that use the id are fenced. Who brings its identity along (KIP-360)
goes on after an error, and only if nobody took over since. What the one before left open is aborted, in an epoch that nobody
gets; the request is decided again when that is complete.
"""

from __future__ import annotations

from typing import NamedTuple

from ottla.config import BrokerConfig
from ottla.coordination.machine import Caller, Decision, Moment
from ottla.coordination.transactions.ending import fenced
from ottla.coordination.transactions.expiry import expect_end
from ottla.coordination.transactions.states import (
    AT_REST,
    BUMPS_EVERY_END,
    ENDING,
    EXHAUSTED,
    NONE,
    Identity,
    State,
    Transaction,
    Transactions,
    Waiting,
    as_known,
    to_record,
)
from ottla.coordination.transactions.waiting import needed, wait_for_end
from ottla.wire.errors import Error, KafkaError
from ottla.wire.messages.transactions import NO_TIMEOUT_MS, InitProducerIdRequest, InitProducerIdResponse

# PRODUCER_FENCED is known from this version on.
KNOWS_FENCED = 4

Reply = InitProducerIdResponse


class Initiating(NamedTuple):
    """`fresh` is a producer id that nobody has, or None if none was asked for yet."""

    request: InitProducerIdRequest
    fresh: int | None = None


def check(request: InitProducerIdRequest, config: BrokerConfig) -> None:
    """What is wrong with a request whichever coordinator it reaches."""
    if (request.producer_id == NONE) != (request.producer_epoch == NONE) or request.transactional_id == "":
        raise KafkaError(Error.INVALID_REQUEST)
    if request.transactional_id is None:
        return
    serves_two_phases: bool = config["transaction.two.phase.commit.enable"]
    if request.enable_2pc and not serves_two_phases:  # KIP-939 wants this word, though nobody's rights are looked at
        raise KafkaError(Error.TRANSACTIONAL_ID_AUTHORIZATION_FAILED)
    if request.keep_prepared_txn and not serves_two_phases:
        raise KafkaError(Error.UNSUPPORTED_VERSION)
    most_ms: int = config["transaction.max.timeout.ms"]
    if not request.enable_2pc and not 0 < request.transaction_timeout_ms <= most_ms:
        raise KafkaError(Error.INVALID_TRANSACTION_TIMEOUT)


def refused(error: Error, version: int) -> InitProducerIdResponse:
    code = as_known(error, version, KNOWS_FENCED).code
    return InitProducerIdResponse(error_code=code, producer_id=NONE, producer_epoch=NONE)


def init_producer_id(
    state: Transactions, initiating: Initiating, caller: Caller, moment: Moment
) -> Decision[InitProducerIdResponse]:
    """`check` has passed. WantsProducerId if it takes a fresh producer id and there is none."""
    request = initiating.request
    assert request.transactional_id is not None
    known = state.by_id.get(request.transactional_id)
    if known is None:
        return _begin(state, initiating, moment)
    if not _may_go_on(known, request):
        return Decision(refused(Error.PRODUCER_FENCED, caller.version))
    if known.state is State.ONGOING and _is_late(known, request):
        return Decision(refused(Error.PRODUCER_FENCED, caller.version))
    if known.state in AT_REST:
        return _renew(state, known, initiating, caller, moment)
    if known.state is State.ONGOING and request.keep_prepared_txn:
        return _keep(state, known, initiating, caller, moment)
    decision: Decision[InitProducerIdResponse] = Decision()
    if known.state not in ENDING:
        aborted = fenced(state, known, initiating.fresh, moment)
        note = f"{known.transactional_id}: its open transaction is aborted, a producer begins anew under this id"
        decision = Decision(records=aborted.records, orders=aborted.orders, note=note)
    again = caller._replace(waiter=None)
    busy = refused(Error.CONCURRENT_TRANSACTIONS, caller.version)
    waiting = Waiting(caller.waiter, lambda then: init_producer_id(state, initiating, again, then), busy)
    return wait_for_end(state, known.transactional_id, waiting, moment, decision)


def _may_go_on(known: Transaction, request: InitProducerIdRequest) -> bool:
    """Whether nobody took over since the client got the identity that it brings along, if it brings one."""
    if request.producer_id in (NONE, known.identity.producer_id):
        return True
    # A new producer id took the place of one whose epochs are exhausted, but its answer was lost.
    return request.producer_id == known.previous_producer_id and request.producer_epoch >= EXHAUSTED


def _is_late(known: Transaction, request: InitProducerIdRequest) -> bool:
    """Whether it comes from before the transaction that is open, which it must not touch: whoever began that one knows its own
    identity. (Apache Kafka aborts the transaction first and refuses afterwards.)"""
    return request.producer_id != NONE and Identity(request.producer_id, request.producer_epoch) != known.identity


def _timeout_ms(request: InitProducerIdRequest) -> int:
    return NO_TIMEOUT_MS if request.enable_2pc else request.transaction_timeout_ms


def _begin(state: Transactions, initiating: Initiating, moment: Moment) -> Decision[Reply]:
    """The first that is heard of this id. Who brings an identity along had one that is forgotten by now."""
    request, producer_id = initiating.request, needed(initiating.fresh)
    assert request.transactional_id is not None
    began = Transaction(
        request.transactional_id,
        producer_id,
        0,
        _timeout_ms(request),
        updated_ms=moment.wall_ms,
        previous_producer_id=producer_id,
    )
    return _as(state, began, NONE)


def _renew(
    state: Transactions, known: Transaction, initiating: Initiating, caller: Caller, moment: Moment
) -> Decision[Reply]:
    """The next epoch; the same again for who asks again; another producer id where there are no more epochs."""
    request, last = initiating.request, state.last_epochs.get(known.transactional_id, NONE)
    brought = request.producer_epoch
    if brought not in (NONE, known.epoch, last):
        return Decision(refused(Error.PRODUCER_FENCED, caller.version))
    now, before = Identity(known.producer_id, known.epoch + 1), brought
    if brought not in (NONE, known.epoch) and known.epoch <= EXHAUSTED:
        now = Identity(known.producer_id, known.epoch)
    elif known.epoch >= EXHAUSTED:
        now = Identity(needed(initiating.fresh), 0)
    renewed = known.moved(
        State.EMPTY,
        moment,
        producer_id=now.producer_id,
        epoch=now.epoch,
        timeout_ms=_timeout_ms(request),
        partitions=frozenset(),
        started_ms=NONE,
    )
    return _as(state, renewed, before)


def _as(state: Transactions, renewed: Transaction, last_epoch: int) -> Decision[Reply]:
    state.last_epochs[renewed.transactional_id] = last_epoch
    reply = InitProducerIdResponse(producer_id=renewed.producer_id, producer_epoch=renewed.epoch)
    return Decision(reply, [to_record(renewed)])


def _keep(
    state: Transactions, known: Transaction, initiating: Initiating, caller: Caller, moment: Moment
) -> Decision[Reply]:
    """Who comes back to a prepared transaction gets an identity of its own, and hears whose the transaction is (KIP-939)."""
    if state.transaction_version < BUMPS_EVERY_END:  # the records have no place for it
        return Decision(refused(Error.UNSUPPORTED_VERSION, caller.version))
    client, timeout_ms = known.identity, _timeout_ms(initiating.request)
    now = Identity(client.producer_id, client.epoch + 1)
    if client.epoch >= EXHAUSTED:
        now = Identity(needed(initiating.fresh), 0)
    kept = known.moved(
        State.ONGOING, moment, next_producer_id=now.producer_id, next_epoch=now.epoch, timeout_ms=timeout_ms
    )
    expect_end(state, known.transactional_id, timeout_ms, moment)
    reply = InitProducerIdResponse(
        producer_id=now.producer_id,
        producer_epoch=now.epoch,
        ongoing_txn_producer_id=known.producer_id,
        ongoing_txn_producer_epoch=known.epoch,
    )
    return Decision(reply, [to_record(kept)])
