"""Those who wait for a transaction to end.

A producer that has ended a transaction may begin the next one at once, long before the markers of the last one are written.
Apache Kafka tells it CONCURRENT_TRANSACTIONS until they are, and it comes back every 20 to 100 ms. Here its request is kept
and decided anew, once, as soon as the end is complete; only when that takes longer than
`add.partitions.to.txn.retry.backoff.max.ms` is it told to come back. Nobody else waits or asks again on a producer's behalf.
"""

from __future__ import annotations

from typing import Any

from ottla.coordination.machine import Alarm, Decision, Moment
from ottla.coordination.transactions.states import Transactions, Waiting

WAITS_MAX_MS = "add.partitions.to.txn.retry.backoff.max.ms"

GIVE_UP, WAKE = "give up waiting", "wake who waits"


class WantsProducerId(Exception):
    """Raised by a decision that needs a new producer id and was given none: get one, and ask again."""


def needed(fresh: int | None) -> int:
    if fresh is None:
        raise WantsProducerId
    return fresh


def wait_for_end(
    state: Transactions, transactional_id: str, waiting: Waiting, moment: Moment, decision: Decision[Any] | None = None
) -> Decision[Any]:
    """Keep the request until the transaction has ended. One that nobody may keep (it was kept before) is told so."""
    decision = Decision() if decision is None else decision
    waits_max_ms: int = state.config[WAITS_MAX_MS]
    if waiting.waiter is None or not waits_max_ms:
        decision.reply = waiting.busy
        return decision
    state.waited += 1
    number = str(state.waited)
    state.waiting.setdefault(transactional_id, {})[number] = waiting
    state.timers.set((GIVE_UP, transactional_id, number), moment.elapsed_ms + waits_max_ms)
    return decision


def ended(state: Transactions, transactional_id: str, moment: Moment) -> None:
    """Whoever waits gets its turn when this decision was carried out: at once, so the alarm is overdue from the start."""
    if transactional_id in state.waiting:
        state.timers.set(_wake(transactional_id), moment.elapsed_ms - 1)


def _wake(transactional_id: str) -> Alarm:
    return WAKE, transactional_id, ""


def wake(state: Transactions, transactional_id: str, _number: str, moment: Moment) -> Decision[None]:
    """The first of those who wait. The others have to see what it changes."""
    numbers = state.waiting.get(transactional_id)
    if not numbers:
        return Decision()
    waiting = _taken(state, transactional_id, next(iter(numbers)))
    ended(state, transactional_id, moment)
    try:
        decided = waiting.again(moment)
    except WantsProducerId:
        return _told_busy(waiting)
    answers = [*decided.answers, (waiting.waiter, decided.reply)]
    return Decision(None, decided.records, answers, refused=lambda _error: _told_busy(waiting), orders=decided.orders)


def give_up(state: Transactions, transactional_id: str, number: str, _moment: Moment) -> Decision[None]:
    if number not in state.waiting.get(transactional_id, ()):
        return Decision()
    return _told_busy(_taken(state, transactional_id, number))


def _told_busy(waiting: Waiting) -> Decision[None]:
    return Decision(answers=[(waiting.waiter, waiting.busy)])


def _taken(state: Transactions, transactional_id: str, number: str) -> Waiting:
    numbers = state.waiting[transactional_id]
    waiting = numbers.pop(number)
    if not numbers:
        del state.waiting[transactional_id]
    state.timers.cancel((GIVE_UP, transactional_id, number))
    return waiting


ALARMS = {WAKE: wake, GIVE_UP: give_up}
