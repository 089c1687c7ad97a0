"""Partitions that a transaction writes to: added by the client, or by the partition's leader when it sees the first batch.

AddPartitionsToTxn and AddOffsetsToTxn add for clients of generation 1. In generation 2 (KIP-890) the leaders of partitions add
on behalf of producers; for those of generation 1 they only ask whether the partition is in the transaction (*verify*), so that
a batch that comes late cannot begin a transaction that nobody would end.
"""

from __future__ import annotations

from typing import NamedTuple

from ottla.coordination.machine import Caller, Decision, Moment
from ottla.coordination.transactions.expiry import expect_end
from ottla.coordination.transactions.states import (
    BUMPS_EVERY_END,
    ENDING,
    NONE,
    State,
    TopicPartition,
    Transaction,
    Transactions,
    Waiting,
    to_record,
)
from ottla.coordination.transactions.waiting import wait_for_end
from ottla.wire.errors import Error

Outcomes = dict[TopicPartition, Error]


class Admission(NamedTuple):
    """Partitions to add, or to verify."""

    transactional_id: str
    producer_id: int
    epoch: int
    partitions: tuple[TopicPartition, ...]
    verify_only: bool = False
    transaction_version: int = BUMPS_EVERY_END  # 0 where a client adds them itself

    def all(self, error: Error) -> Outcomes:
        return dict.fromkeys(self.partitions, error)


def is_admitted(state: Transactions, admission: Admission, committed_end: int) -> bool:
    """Whether there is nothing to add and nothing to wait for: all that is asked for is in the open transaction, and the
    record that says so is committed. Where it is not so, `admit` finds out why."""
    known = state.by_id.get(admission.transactional_id)
    return (
        known is not None
        and known.state is State.ONGOING
        and known.next_epoch == known.next_producer_id == NONE  # whoever came back to it may only end it
        and known.producer_id == admission.producer_id
        and known.epoch == admission.epoch
        and known.partitions.issuperset(admission.partitions)
        and state.written_at[admission.transactional_id] < committed_end
    )


def admit(state: Transactions, admission: Admission, caller: Caller, moment: Moment) -> Decision[Outcomes]:
    return (verify if admission.verify_only else add)(state, admission, caller, moment)


def verify(state: Transactions, admission: Admission, _caller: Caller, _moment: Moment) -> Decision[Outcomes]:
    """Whether the partitions are in the transaction."""
    known = _known(state, admission)
    if isinstance(known, Error):
        return Decision(admission.all(known))
    if known.state in ENDING:
        return Decision(admission.all(Error.CONCURRENT_TRANSACTIONS))
    added = known.partitions
    return Decision(
        {each: Error.NONE if each in added else Error.TRANSACTION_ABORTABLE for each in admission.partitions}
    )


def add(state: Transactions, admission: Admission, caller: Caller, moment: Moment) -> Decision[Outcomes]:
    known = _known(state, admission)
    if isinstance(known, Error):
        return Decision(admission.all(known))
    if known.state in ENDING:
        again = caller._replace(waiter=None)
        busy = admission.all(Error.CONCURRENT_TRANSACTIONS)
        waiting = Waiting(caller.waiter, lambda then: add(state, admission, again, then), busy)
        return wait_for_end(state, known.transactional_id, waiting, moment)
    if known.is_kept:  # whoever came back to a transaction may only end it
        return Decision(admission.all(Error.INVALID_TXN_STATE))
    if known.state is State.ONGOING and known.partitions.issuperset(admission.partitions):
        return Decision(admission.all(Error.NONE))
    return Decision(admission.all(Error.NONE), [to_record(_added(state, known, admission, moment))])


def _known(state: Transactions, admission: Admission) -> Transaction | Error:
    known = state.by_id.get(admission.transactional_id)
    if known is None or known.identity.producer_id != admission.producer_id:
        return Error.INVALID_PRODUCER_ID_MAPPING
    return known if known.identity.epoch == admission.epoch else Error.PRODUCER_FENCED


def _added(state: Transactions, known: Transaction, admission: Admission, moment: Moment) -> Transaction:
    began = known.state is not State.ONGOING
    if began:
        expect_end(state, known.transactional_id, known.timeout_ms, moment)
    return known.moved(
        State.ONGOING,
        moment,
        partitions=known.partitions.union(admission.partitions),
        started_ms=moment.wall_ms if began else known.started_ms,
        client_version=admission.transaction_version,
    )
