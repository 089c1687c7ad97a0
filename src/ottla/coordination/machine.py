"""The shape that all state machines in internal topics share: decide, replay, ring.

*Decide*: a plain function looks at the state and a request and returns a `Decision`: records to append, the reply, replies
that others have been waiting for, and *orders*, which the driver sees to once all of that is committed. It changes nothing
that the records will change. *Replay*: memory changes by records alone, in the same way when they were just appended and
when they are read back at the start of a leadership. *Ring*: what nobody asks for but time brings (a session that ended, a
rebalance that took too long) is an alarm in `Timers`; when it is due, it is decided like a request.

Soft state (who waits for a join, sessions, alarms) is not in the records. It is changed by decisions directly, and it is
lost when the machine is dropped, which is what happens when its records could not be written: the driver then loads the
machine anew from its log. So nothing is ever rolled back.

The driver sends every reply only when all that the decision saw and wrote is committed.

A `Machine` is all of that for one partition of an internal topic. Which functions decide what clients ask is no part of it:
handlers name them, and they get the machine's `state`.
"""

from __future__ import annotations

import heapq
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import partial
from typing import Any, Generic, NamedTuple, Protocol, TypeVar

from ottla.coordination.records import Record
from ottla.metadata.image import Delta, Image
from ottla.wire.errors import KafkaError

Reply = TypeVar("Reply")
State_co = TypeVar("State_co", covariant=True)

# Whose record it is that was not written in a transaction.
NO_PRODUCER = -1
# Key and value of a record, as they stand in the topic.
Packed = tuple[bytes, bytes | None]

# Somebody who gets a reply later: kept by machines, understood by the driver alone.
Waiter = object
# What an alarm is about: its kind, a group or a transactional id, and a member or a number. The last two may be empty.
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
    # Turns the reply into a refusal. With it, the reply may be handed on before the records are written: it leaves after
    # that, and can be changed until then.
    revoke: Callable[[KafkaError], None] | None = None
    # What the driver is to see to as soon as the records are committed.
    orders: list[object] = field(default_factory=list)
    # What whoever runs the node should hear of it; most decisions are nothing to tell of.
    note: str = ""


# Decisions are taken one after another: each sees what the one before it changed.
Later = Callable[[], Decision[Any]]


class Timers:
    """Alarms and when they are due. Putting one off, as every heartbeat does, costs one entry in a dict."""

    __slots__ = ("_due", "_queue", "_ringing")

    def __init__(self) -> None:
        self._due: dict[Alarm, int] = {}
        self._queue: list[tuple[int, Alarm]] = []
        # Taken as due, and neither answered nor set or cancelled since.
        self._ringing: set[Alarm] = set()

    def set(self, alarm: Alarm, at_ms: int) -> None:
        """Ring at `at_ms` of the clock that never jumps, and no more at any other time."""
        before = self._due.get(alarm)
        self._due[alarm] = at_ms
        self._ringing.discard(alarm)
        if before is None or at_ms < before:
            heapq.heappush(self._queue, (at_ms, alarm))

    def cancel(self, alarm: Alarm) -> None:
        self._due.pop(alarm, None)
        self._ringing.discard(alarm)
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
        self._ringing.update(due)
        return due

    def ring(self, now_ms: int, answer: Callable[[str, str, str], Decision[Any]]) -> list[Later]:
        """What to do about the alarms that are due, each to be decided when the one before it was carried out. That one may
        have put others off, or cancelled them: a member that dies lets a rebalance go on, and all who waited in it have a
        session before them again, even if theirs would have ended in the same moment."""

        def decide(alarm: Alarm) -> Decision[Any]:
            if alarm not in self._ringing:
                return Decision()
            self._ringing.discard(alarm)
            return answer(*alarm)

        return [partial(decide, alarm) for alarm in self.take_due(now_ms)]


class Machine(Protocol[State_co]):
    """One partition of an internal topic, as its driver sees it."""

    @property
    def state(self) -> State_co: ...
    @property
    def timers(self) -> Timers: ...
    def pack(self, record: Record) -> Packed:
        """The record as it is to stand in the topic."""

    def replay(self, record: Record, offset: int, producer_id: int = NO_PRODUCER, packed: Packed | None = None) -> None:
        """Memory follows a record that was appended, by a producer if it was in a transaction."""

    def read(self, key: bytes | None, value: bytes | None, offset: int, producer_id: int = NO_PRODUCER) -> None:
        """The same for a record as it stands in the topic."""

    def end_transaction(self, producer_id: int, committed: bool) -> None:
        """A marker in the topic: what a producer wrote in its transaction holds, or never was."""

    def loaded(self, moment: Moment) -> list[Later]:
        """Everything was read back."""

    def ring(self, moment: Moment) -> list[Later]:
        """The alarms that are due."""

    def follow(self, image: Image, delta: Delta, moment: Moment) -> list[Later]:
        """The cluster changed."""
