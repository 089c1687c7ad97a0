"""A bench for the transactional ids of one partition: a machine without a node, a loop or a disk around it.

It does what the driver does: it carries out decisions (records are packed into bytes, so that what is replayed at a takeover
is what a log would hold), replays them, rings alarms when their time has come, and notes who was answered what and which
markers were ordered. Time passes only by `pass_ms`; markers are written only by `mark`.
"""

from __future__ import annotations

from contextlib import suppress
from random import Random
from typing import Any

import groups_bench
from groups_bench import BEGAN_ELAPSED_MS, BEGAN_WALL_MS
from ottla.config import BrokerConfig, single_node_defaults
from ottla.coordination.machine import Caller, Decision, Moment
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


class Asked(groups_bench.Asked):
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


class TransactionsBench:
    def __init__(self, transaction_version: int = 2, **settings: object) -> None:
        dotted = {name.replace("_", "."): str(value) for name, value in settings.items()}
        self.config = BrokerConfig({**single_node_defaults(), "log.dirs": "/data", **dotted})
        self.level = transaction_version
        self.chance = Random(11)
        self.elapsed_ms = 0
        self.log: list[tuple[bytes, bytes | None]] = []
        self.asked: list[Asked] = []
        self.orders: list[Marking] = []
        self.next_producer_id = 1000
        self.is_full = False  # then nothing can be written
        self.coordinator = TransactionCoordinator(self._new_state())

    def _new_state(self) -> Transactions:
        return Transactions(self.config, lambda: Image(features={"transaction.version": self.level}), self.chance)

    @property
    def state(self) -> Transactions:
        return self.coordinator.state

    @property
    def moment(self) -> Moment:
        return Moment(BEGAN_WALL_MS + self.elapsed_ms, BEGAN_ELAPSED_MS + self.elapsed_ms)

    def known(self, transactional_id: str = ID) -> Transaction:
        return self.state.by_id[transactional_id]

    def fresh(self) -> int:
        self.next_producer_id += 1
        return self.next_producer_id

    # --- asking

    def ask(self, decide: Any, request: Any, version: int) -> Asked:
        """Ask now. What is raised is the reply, as handlers see it."""
        asked = Asked()
        self.asked.append(asked)
        try:
            decision = decide(self.state, request, Caller("client", "/127.0.0.1", version, asked), self.moment)
            reply = self.carry_out(decision).reply
        except KafkaError as error:
            asked.replies.append(error)
        else:
            if reply is not None:
                asked.replies.append(reply)
        return asked

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

    def carry_out(self, decision: Decision[Any]) -> Decision[Any]:
        try:
            self._append(decision.records)
        except KafkaError as error:
            if decision.refused is None:
                raise
            return self.carry_out(decision.refused(error))
        for waiter, reply in decision.answers:
            assert isinstance(waiter, Asked)
            waiter.replies.append(reply)
        for order in decision.orders:
            assert isinstance(order, Marking)
            self.orders.append(order)
        return decision

    def _append(self, records: list[Any]) -> None:
        if records and self.is_full:
            raise KafkaError(Error.COORDINATOR_NOT_AVAILABLE)
        for record in records:
            key, value = self.coordinator.pack(record)
            self.coordinator.replay(record, len(self.log), packed=(key, value))
            self.log.append((key, value))

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

    # --- time

    def pass_ms(self, duration_ms: int) -> None:
        """Let time pass; each alarm rings at its moment."""
        end_ms = self.elapsed_ms + duration_ms
        while (next_ms := self.state.timers.next_ms) is not None and next_ms - BEGAN_ELAPSED_MS <= end_ms:
            self.elapsed_ms = max(self.elapsed_ms, next_ms - BEGAN_ELAPSED_MS)
            self._carry_out_all(self.coordinator.ring(self.moment))
        self.elapsed_ms = end_ms

    def _carry_out_all(self, decisions: Any) -> None:
        for decide in decisions:
            with suppress(KafkaError):  # one that cannot be done does not keep the others from being done
                self.carry_out(decide())

    def take_over(self) -> None:
        """Another coordinator reads the log; whoever waits at this one is told to look for it, and markers go unwritten."""
        for asked in self.asked:
            if asked.is_waiting:
                asked.replies.append(KafkaError(Error.NOT_COORDINATOR))
        self.orders = []
        self.coordinator = TransactionCoordinator(self._new_state())
        for offset, (key, value) in enumerate(self.log):
            self.coordinator.read(key, value, offset)
        self._carry_out_all(self.coordinator.loaded(self.moment))


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
