"""The state machine of one partition of `__transaction_state`, as its driver sees it: replay, ring, and what is left to do
after a load. What clients ask is decided by the functions of `transactions/`, called by the handlers with
`TransactionCoordinator.state`."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from ottla.coordination.machine import NO_PRODUCER, Decision, Later, Moment, Packed, Timers
from ottla.coordination.records import Record
from ottla.coordination.transactions import expiry, waiting
from ottla.coordination.transactions.records import pack, unpack
from ottla.coordination.transactions.states import Transactions
from ottla.metadata.image import Delta, Image

# Kind of alarm -> what to do about it, for a transactional id; the last is a number where several may be set for one.
ALARMS: dict[str, Callable[[Transactions, str, str, Moment], Decision[Any]]] = {**expiry.ALARMS, **waiting.ALARMS}


class TransactionCoordinator:
    def __init__(self, transactions: Transactions) -> None:
        self.state = transactions

    @property
    def timers(self) -> Timers:
        return self.state.timers

    def pack(self, record: Record) -> Packed:
        return pack(record, self.state.record_version)

    def replay(self, record: Record, offset: int, producer_id: int = NO_PRODUCER, packed: Packed | None = None) -> None:
        self.state.replay(record, offset)

    def read(self, key: bytes | None, value: bytes | None, offset: int, producer_id: int = NO_PRODUCER) -> None:
        record = unpack(key, value)
        if record is not None:
            self.state.replay(record, offset)

    def end_transaction(self, producer_id: int, committed: bool) -> None:
        """Nobody writes to this topic in a transaction."""

    def loaded(self, moment: Moment) -> list[Later]:
        return expiry.after_load(self.state, moment)

    def ring(self, moment: Moment) -> list[Later]:
        return self.timers.ring(
            moment.elapsed_ms, lambda kind, name, number: ALARMS[kind](self.state, name, number, moment)
        )

    def follow(self, image: Image, delta: Delta, moment: Moment) -> list[Later]:
        """Topics that are gone matter only to those who write markers."""
        return []
