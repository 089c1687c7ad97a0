"""What time brings: transactions that take too long are aborted, and ids that nobody uses are forgotten.

Apache Kafka looks for overdue transactions every `transaction.abort.timed.out.transaction.cleanup.interval.ms`; here each has
an alarm of its own, and the interval is how long to wait when its abort could not be written.
"""

from __future__ import annotations

from ottla.coordination.machine import Alarm, Decision, Later, Moment
from ottla.coordination.records import Record
from ottla.coordination.transactions.ending import completed, timed_out
from ottla.coordination.transactions.states import (
    AT_REST,
    ENDING,
    State,
    Transactions,
    to_record,
    tombstone,
)
from ottla.wire.messages.transactions import NO_TIMEOUT_MS

TIMEOUT, EXPIRY = "transaction timeout", "expiry of ids"
EXPIRY_ALARM: Alarm = (EXPIRY, "", "")
# Ids that are looked at in one go, and bytes of ids that are forgotten in one batch.
LOOKED_AT_MAX = 2_000
FORGOTTEN_BYTES_MAX = 256 * 1024

OVERDUE_AGAIN_MS = "transaction.abort.timed.out.transaction.cleanup.interval.ms"
EXPIRES_EVERY_MS = "transaction.remove.expired.transaction.cleanup.interval.ms"


def expect_end(state: Transactions, transactional_id: str, within_ms: int, moment: Moment) -> None:
    """A transaction has begun, and ends within this time. The alarm of the one before it is put off to then."""
    if within_ms != NO_TIMEOUT_MS:
        state.timers.set((TIMEOUT, transactional_id, ""), moment.elapsed_ms + max(within_ms, 0) + 1)


def overdue(state: Transactions, transactional_id: str, _number: str, moment: Moment) -> Decision[None]:
    """Nobody cancels the alarm when a transaction ends: then there is nothing to do."""
    known = state.by_id.get(transactional_id)
    if known is None or known.state is not State.ONGOING or known.is_two_phase:
        return Decision()
    expect_end(state, transactional_id, state.config[OVERDUE_AGAIN_MS], moment)
    decided = timed_out(state, known, moment)
    note = f"{transactional_id}: its transaction took longer than {known.timeout_ms} ms and is aborted"
    return Decision(records=decided.records, orders=decided.orders, note=note)


def begin_expiry(state: Transactions, moment: Moment) -> None:
    """The first look is due in the second half of the interval: all partitions load together, but should not look so."""
    interval_ms: int = state.config[EXPIRES_EVERY_MS]
    sooner_ms = int.from_bytes(state.chance.randbytes(6), "big") % (interval_ms // 2 + 1)
    state.timers.set(EXPIRY_ALARM, moment.elapsed_ms + interval_ms - sooner_ms)


def expire(state: Transactions, _id: str, _number: str, moment: Moment) -> Decision[None]:
    """Look at some ids. When all were looked at, the next round is due after the interval."""
    if not state.to_look_at:
        state.to_look_at = list(state.by_id)
    records: list[Record] = []
    looked_at, bytes_left = 0, FORGOTTEN_BYTES_MAX
    while state.to_look_at and looked_at < LOOKED_AT_MAX and bytes_left > 0:
        transactional_id = state.to_look_at.pop()
        looked_at += 1
        if _is_idle(state, transactional_id, moment):
            records.append(tombstone(transactional_id))
            bytes_left -= 32 + 4 * len(transactional_id)
    rest_ms: int = 0 if state.to_look_at else state.config[EXPIRES_EVERY_MS]
    state.timers.set(EXPIRY_ALARM, moment.elapsed_ms + rest_ms)
    return Decision(records=records)


def _is_idle(state: Transactions, transactional_id: str, moment: Moment) -> bool:
    known = state.by_id.get(transactional_id)
    if known is None or known.state not in AT_REST:
        return False
    expires_ms: int = state.config["transactional.id.expiration.ms"]
    return known.updated_ms <= moment.wall_ms - expires_ms


def after_load(state: Transactions, moment: Moment) -> list[Later]:
    """Ends that were prepared go on, and open transactions have what is left of their time. By a clock that was set back that
    would be more than they ever had."""
    begin_expiry(state, moment)
    for known in state.by_id.values():
        if known.state is State.ONGOING and not known.is_two_phase:
            left_ms = known.started_ms + known.timeout_ms - moment.wall_ms
            expect_end(state, known.transactional_id, min(left_ms, known.timeout_ms), moment)
    ending = [known.transactional_id for known in state.by_id.values() if known.state in ENDING]
    return [lambda name=name: _go_on(state, name, moment) for name in ending]  # type: ignore[misc]


def _go_on(state: Transactions, transactional_id: str, moment: Moment) -> Decision[None]:
    known = state.by_id[transactional_id]
    if known.partitions:
        return Decision(orders=[known.marking()])
    return Decision(records=[to_record(completed(known, moment))])


ALARMS = {TIMEOUT: overdue, EXPIRY: expire}
