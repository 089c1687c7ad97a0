"""A bench for the machine of one partition of an internal topic, without a node, a loop or a disk around it.

It does what the driver does: it carries out decisions (records are packed into bytes, so that what is replayed at a takeover
is what a log would hold), replays them, rings alarms when their time has come, and notes who was answered what and what was
ordered. Time passes only by `pass_ms`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from contextlib import suppress
from random import Random
from typing import Any, Generic, TypeVar

from ottla.config import BrokerConfig, single_node_defaults
from ottla.coordination.machine import Caller, Decision, Machine, Moment, Packed
from ottla.wire.errors import Error, KafkaError

State = TypeVar("State")
Request = TypeVar("Request")
Reply = TypeVar("Reply")
Decide = Callable[[State, Request, Caller, Moment], Decision[Reply]]

BEGAN_WALL_MS = 1_700_000_000_000
BEGAN_ELAPSED_MS = 5_000


class Asked:
    """Somebody who asked; `reply` is what it got, None while it waits."""

    def __init__(self) -> None:
        self.replies: list[Any] = []

    @property
    def reply(self) -> Any:
        assert len(self.replies) <= 1, "answered twice"
        return self.replies[0] if self.replies else None

    @property
    def is_waiting(self) -> bool:
        return not self.replies

    @property
    def error(self) -> Error:
        """What it was refused with; Error.NONE if it was not."""
        assert self.replies, "not answered yet"
        if isinstance(self.reply, KafkaError):
            return self.reply.error
        return next(row for row in Error if row.code == self.reply.error_code)


class MachineBench(Generic[State]):
    """A subclass makes the machine, and says what cannot be written."""

    asked_kind: type[Any] = Asked

    def __init__(self, **settings: object) -> None:
        dotted = {name.replace("_", "."): str(value) for name, value in settings.items()}
        self.config = BrokerConfig({**single_node_defaults(), "log.dirs": "/data", **dotted})
        self.chance = Random(11)
        self.elapsed_ms = 0
        self.log: list[Packed] = []
        self.asked: list[Any] = []
        self.orders: list[Any] = []
        self.coordinator = self.new_machine()

    def new_machine(self) -> Machine[State]:
        raise NotImplementedError

    def check_room(self, packed: list[Packed]) -> None:
        """KafkaError if these records cannot be written."""

    @property
    def state(self) -> State:
        return self.coordinator.state

    @property
    def moment(self) -> Moment:
        return Moment(BEGAN_WALL_MS + self.elapsed_ms, BEGAN_ELAPSED_MS + self.elapsed_ms)

    # --- asking

    def ask(
        self,
        decide: Decide[State, Request, Reply],
        request: Request,
        version: int = 9,
        client_id: str = "client",
        host: str = "/127.0.0.1",
    ) -> Any:
        """Ask now. What is raised is the reply, as handlers see it."""
        asked = self.asked_kind()
        self.asked.append(asked)
        try:
            decision = decide(self.state, request, Caller(client_id, host, version, asked), self.moment)
            reply = self.carry_out(decision).reply
        except KafkaError as error:
            asked.replies.append(error)
        else:
            if reply is not None:
                asked.replies.append(reply)
        return asked

    @property
    def waiting(self) -> list[Any]:
        return [asked for asked in self.asked if asked.is_waiting]

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
        self.orders += decision.orders
        return decision

    def _append(self, records: list[Any]) -> None:
        packed = [self.coordinator.pack(record) for record in records]
        self.check_room(packed)
        for record, bytes_of in zip(records, packed, strict=True):
            self.coordinator.replay(record, len(self.log), packed=bytes_of)
            self.log.append(bytes_of)

    # --- time

    def pass_ms(self, duration_ms: int) -> None:
        """Let time pass; each alarm rings at its moment."""
        end_ms = self.elapsed_ms + duration_ms
        while (at := self.coordinator.timers.next_ms) is not None and at - BEGAN_ELAPSED_MS <= end_ms:
            self.elapsed_ms = max(self.elapsed_ms, at - BEGAN_ELAPSED_MS)
            self.carry_out_all(self.coordinator.ring(self.moment))
        self.elapsed_ms = end_ms

    def carry_out_all(self, decisions: Iterable[Callable[[], Decision[Any]]]) -> None:
        for decide in decisions:
            with suppress(KafkaError):  # one that cannot be done does not keep the others from being done
                self.carry_out(decide())

    def take_over(self) -> None:
        """Another coordinator reads the log; whoever waits at this one is told to look for it, and orders are forgotten."""
        for asked in self.waiting:
            asked.replies.append(KafkaError(Error.NOT_COORDINATOR))
        self.orders = []
        self.coordinator = self.new_machine()
        for offset, (key, value) in enumerate(self.log):
            self.coordinator.read(key, value, offset)
        self.carry_out_all(self.coordinator.loaded(self.moment))
