"""A bench for the groups of one partition of the offsets topic: a machine without a node, a loop or a disk around it.

It does what the driver does: it carries out decisions (records are packed into bytes, so that what is replayed at a takeover
is what a log would hold), replays them, rings alarms when their time has come, and notes who was answered what. Time passes
only by `pass_ms`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from contextlib import suppress
from random import Random
from typing import Any, TypeVar

from ottla.config import BrokerConfig, single_node_defaults
from ottla.coordination.group_coordinator import GroupCoordinator
from ottla.coordination.groups import Groups
from ottla.coordination.machine import Caller, Decision, Moment
from ottla.coordination.records import Record, pack, unpack
from ottla.metadata.image import Image
from ottla.wire.errors import Error, KafkaError

Request = TypeVar("Request")
Reply = TypeVar("Reply")
Decide = Callable[[Groups, Request, Caller, Moment], Decision[Reply]]

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


class GroupsBench:
    def __init__(self, image: Image | None = None, **settings: object) -> None:
        dotted = {name.replace("_", "."): str(value) for name, value in settings.items()}
        self.config = BrokerConfig({**single_node_defaults(), "log.dirs": "/data", **dotted})
        self.image = Image() if image is None else image
        self.chance = Random(11)
        self.elapsed_ms = 0
        self.log: list[tuple[bytes, bytes | None]] = []
        self.most_bytes = 1 << 20  # a batch beyond this is refused
        self.asked: list[Asked] = []
        self.coordinator = GroupCoordinator(self._new_groups())

    def _new_groups(self) -> Groups:
        return Groups(self.config, lambda: self.image, self.chance)

    @property
    def groups(self) -> Groups:
        return self.coordinator.state

    @property
    def moment(self) -> Moment:
        return Moment(BEGAN_WALL_MS + self.elapsed_ms, BEGAN_ELAPSED_MS + self.elapsed_ms)

    # --- asking

    def ask(
        self,
        decide: Decide[Request, Reply],
        request: Request,
        version: int = 9,
        client_id: str = "client",
        host: str = "/127.0.0.1",
    ) -> Asked:
        """Ask now. What is raised is the reply, as handlers see it."""
        asked = Asked()
        self.asked.append(asked)
        try:
            decision = decide(self.groups, request, Caller(client_id, host, version, asked), self.moment)
            reply = self.carry_out(decision).reply
        except KafkaError as error:
            asked.replies.append(error)
        else:
            if reply is not None:
                asked.replies.append(reply)
        return asked

    @property
    def waiting(self) -> list[Asked]:
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
        return decision

    def _append(self, records: list[Record]) -> None:
        packed = [pack(record) for record in records]
        if sum(len(key) + len(value or b"") for key, value in packed) > self.most_bytes:
            raise KafkaError(Error.UNKNOWN_SERVER_ERROR)  # what the driver makes of a batch that is too large
        first = len(self.log)
        self.log += packed
        for offset, record in enumerate(records, first):
            self.coordinator.replay(record, offset)

    def written(self, since: int = 0) -> list[Record]:
        """What stands in the log, read back from its bytes."""
        read = [unpack(key, value) for key, value in self.log[since:]]
        return [record for record in read if record is not None]

    # --- time

    def pass_ms(self, duration_ms: int) -> None:
        """Let time pass; each alarm rings at its moment."""
        end_ms = self.elapsed_ms + duration_ms
        while (next_ms := self._next_alarm_ms(end_ms)) is not None:
            self.elapsed_ms = max(self.elapsed_ms, next_ms)
            self._carry_out_all(self.coordinator.ring(self.moment))
        self.elapsed_ms = end_ms

    def _next_alarm_ms(self, end_ms: int) -> int | None:
        at = self.groups.timers.next_ms
        if at is None or at - BEGAN_ELAPSED_MS > end_ms:
            return None
        return at - BEGAN_ELAPSED_MS

    def _carry_out_all(self, decisions: Iterable[Callable[[], Decision[Any]]]) -> None:
        for decide in decisions:
            with suppress(KafkaError):  # one that cannot be done does not keep the others from being done
                self.carry_out(decide())

    def take_over(self) -> None:
        """Another coordinator reads the log; whoever waits at this one is told to look for it."""
        for asked in self.waiting:
            asked.replies.append(KafkaError(Error.NOT_COORDINATOR))
        self.coordinator = GroupCoordinator(self._new_groups())
        for offset, (key, value) in enumerate(self.log):
            record = unpack(key, value)
            if record is not None:
                self.coordinator.replay(record, offset)
        self._carry_out_all(self.coordinator.loaded(self.moment))
