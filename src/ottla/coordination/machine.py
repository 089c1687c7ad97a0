"""The shape that all state machines in internal topics share: decide, replay, ring.

*Decide*: a plain function looks at the state and a request and returns a `Decision`: records to append, the reply, and
replies that others have been waiting for. It changes nothing that the records will change. *Replay*: memory changes by
records alone, in the same way when they were just appended and when they are read back at the start of a leadership.
*Ring*: what nobody asks for but time brings (a session that ended, a rebalance that took too long) is an alarm in
`Timers`; when it is due, it is decided like a request.

Soft state (who waits for a join, sessions, alarms) is not in the records. It is changed by decisions directly, and it is
lost when the machine is dropped, which is what happens when its records could not be written: the driver then loads the
machine anew from its log. So nothing is ever rolled back.

The driver sends every reply only when all that the decision saw and wrote is committed.
"""

from __future__ import annotations

import heapq
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Generic, NamedTuple, TypeVar

from ottla.coordination.records import Record
from ottla.wire.errors import KafkaError

Reply = TypeVar("Reply")

# Somebody who gets a reply later: kept by machines, understood by the driver alone.
Waiter = object
# What an alarm is about: its kind, a group, a member. The last two may be empty.
Alarm = tuple[str, str, str]


class Moment(NamedTuple):
    """Now. `wall_ms` is what is written down; `elapsed_ms`, of a clock that never jumps, is what others are judged by."""

    wall_ms: int
    elapsed_ms: int


class Caller(NamedTuple):
    """Who asks: as it calls itself, where it is ("/127.0.0.1"), the version of its request, and where its reply goes."""

    client_id: str
    host: str
    version: int
    waiter: Waiter


@dataclass(slots=True)
class Decision(Generic[Reply]):
    """What is to be done. Without a `reply`, the caller's waiter was kept and is among the `answers` of a later decision."""

    reply: Reply | None = None
    records: list[Record] = field(default_factory=list)
    answers: list[tuple[Waiter, object]] = field(default_factory=list)
    # The records cannot be written (too large for one batch, a full disk): what to do instead, given what clients are told
    # of that. Without it, the caller alone gets the error.
    refused: Callable[[KafkaError], Decision[Reply]] | None = None
    # What the driver is to see to as soon as the records are committed.
    orders: list[object] = field(default_factory=list)


class Timers:
    """Alarms and when they are due. Putting one off, as every heartbeat does, costs one entry in a dict."""

    __slots__ = ("_due", "_queue")

    def __init__(self) -> None:
        self._due: dict[Alarm, int] = {}
        self._queue: list[tuple[int, Alarm]] = []

    def set(self, alarm: Alarm, at_ms: int) -> None:
        """Ring at `at_ms` of the clock that never jumps, and no more at any other time."""
        before = self._due.get(alarm)
        self._due[alarm] = at_ms
        if before is None or at_ms < before:
            heapq.heappush(self._queue, (at_ms, alarm))

    def cancel(self, alarm: Alarm) -> None:
        self._due.pop(alarm, None)
        if len(self._queue) > 64 and len(self._queue) > 4 * len(self._due):
            self._queue = [(at, alarm) for alarm, at in self._due.items()]
            heapq.heapify(self._queue)

    def __contains__(self, alarm: Alarm) -> bool:
        return alarm in self._due

    def due_at(self, alarm: Alarm) -> int | None:
        return self._due.get(alarm)

    @property
    def next_ms(self) -> int | None:
        """No alarm rings before this."""
        return self._queue[0][0] if self._queue else None

    def take_due(self, now_ms: int) -> list[Alarm]:
        """The alarms that ring now, in the order of their times; they are not set any more."""
        due = []
        while self._queue and self._queue[0][0] <= now_ms:
            _, alarm = heapq.heappop(self._queue)
            at = self._due.get(alarm)
            if at is None:
                continue
            if at > now_ms:
                heapq.heappush(self._queue, (at, alarm))  # it was put off
            else:
                del self._due[alarm]
                due.append(alarm)
        return due
