"""The bench for the transactional ids of one partition. Markers are written only by `mark`."""

from __future__ import annotations

from typing import Any

import machine_bench
from machine_bench import MachineBench
from ottla.coordination.machine import Decision, Packed
from ottla.coordination.transaction_coordinator import TransactionCoordinator
from ottla.coordination.transactions import adding, ending, init
from ottla.coordination.transactions.records import unpack
from ottla.coordination.transactions.states import Marking, State, Transaction, Transactions, to_record
from ottla.coordination.transactions.waiting import WantsProducerId
from ottla.metadata.image import Image
from ottla.wire.errors import Error, KafkaError
from ottla.wire.messages.transactions import (
    EndTxnRequest,
    EndTxnResponse,
    InitProducerIdRequest,
    InitProducerIdResponse,
)

ID = "payments"
P0, P1 = ("orders", 0), ("orders", 1)


class Asked(machine_bench.Asked):
    """The same for replies about many partitions, and for those that say who the producer is."""

    @property
    def error(self) -> Error:
        if not isinstance(self.reply, dict):
            return super().error
        errors = set(self.reply.values())
        assert len(errors) == 1, "partitions fare differently"
        error: Error = errors.pop()
        return error

    @property
    def identity(self) -> tuple[int, int]:
        assert self.error is Error.NONE, self.error
        assert isinstance(self.reply, InitProducerIdResponse | EndTxnResponse)
        return self.reply.producer_id, self.reply.producer_epoch


class TransactionsBench(MachineBench[Transactions]):
    asked_kind = Asked

    def __init__(self, transaction_version: int = 2, **settings: object) -> None:
        self.level = transaction_version
        self.next_producer_id = 1000
        self.is_full = False  # then nothing can be written
        super().__init__(**settings)

    def new_machine(self) -> TransactionCoordinator:
        image = Image(features={"transaction.version": self.level})
        return TransactionCoordinator(Transactions(self.config, lambda: image, self.chance))

    def check_room(self, packed: list[Packed]) -> None:
        if packed and self.is_full:
            raise KafkaError(Error.COORDINATOR_NOT_AVAILABLE)

    def known(self, transactional_id: str = ID) -> Transaction:
        return self.state.by_id[transactional_id]

    def fresh(self) -> int:
        self.next_producer_id += 1
        return self.next_producer_id

    # --- asking

    def init(self, transactional_id: str = ID, version: int = 6, **fields: Any) -> Asked:
        request = InitProducerIdRequest(
            transactional_id=transactional_id, **{"transaction_timeout_ms": 60_000, **fields}
        )
        init.check(request, self.config)
        try:
            return self.ask(init.init_producer_id, init.Initiating(request), version)
        except WantsProducerId:
            return self.ask(init.init_producer_id, init.Initiating(request, self.fresh()), version)

    def add(self, identity: tuple[int, int], *partitions: tuple[str, int], version: int = 2) -> Asked:
        admission = adding.Admission(ID, *identity, partitions or (P0,), transaction_version=version)
        return self.ask(adding.admit, admission, 5)

    def verify(self, identity: tuple[int, int], *partitions: tuple[str, int]) -> Asked:
        return self.ask(adding.admit, adding.Admission(ID, *identity, partitions or (P0,), verify_only=True), 5)

    def end(self, identity: tuple[int, int], committed: bool = True, version: int = 5) -> Asked:
        producer_id, epoch = identity
        request = EndTxnRequest(transactional_id=ID, producer_id=producer_id, producer_epoch=epoch, committed=committed)
        try:
            return self.ask(ending.end, ending.Ending(request), version)
        except WantsProducerId:
            return self.ask(ending.end, ending.Ending(request, self.fresh()), version)

    def end_1(self, identity: tuple[int, int], committed: bool = True) -> Asked:
        """As a client of generation 1 does."""
        return self.end(identity, committed, version=4)

    def aged(self, epoch: int) -> tuple[int, int]:
        """Let the producer of the id, which is at rest, be in this epoch."""
        late = self.known().moved(State.EMPTY, self.moment, epoch=epoch, partitions=frozenset())
        self.carry_out(Decision(records=[to_record(late)]))
        return late.producer_id, epoch

    # --- doing

    def mark(self) -> list[Marking]:
        """Write the markers that were ordered; whoever waited for that gets its turn."""
        orders, self.orders = self.orders, []
        for order in orders:
            self.carry_out(ending.marked(self.state, order, self.moment))
        self.pass_ms(0)
        return orders

    def written(self) -> list[Any]:
        read = [unpack(key, value) for key, value in self.log]
        return [record.value for record in read if record is not None]


WRITTEN = [
    State.EMPTY,
    State.ONGOING,
    State.PREPARE_COMMIT,
    State.PREPARE_ABORT,
    State.COMPLETE_COMMIT,
    State.COMPLETE_ABORT,
]


def led_to(state: State, level: int = 2) -> tuple[TransactionsBench, tuple[int, int], tuple[int, int]]:
    """A bench whose id stands in this state; and who the producer is there, and was before the last end."""
    bench = TransactionsBench(transaction_version=level)
    before = now = bench.init().identity
    if state is not State.EMPTY:
        bench.add(now, P0, P1)
    if state not in (State.EMPTY, State.ONGOING):
        committed = state in (State.PREPARE_COMMIT, State.COMPLETE_COMMIT)
        end = bench.end if level == 2 else bench.end_1
        now = end(now, committed).identity
    if state in (State.COMPLETE_COMMIT, State.COMPLETE_ABORT):
        bench.mark()
    assert bench.known().state is state
    return bench, now, before
