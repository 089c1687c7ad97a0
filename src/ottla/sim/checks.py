"""The oracle: what clients did and saw, and what of it cannot be true of a log that keeps its promises.

Clients write down what they do in a `History`: every send with its outcome, every poll with what it gave. Whoever runs the
nodes adds what each restart found. At the end everything is read once more, and `anomalies` names each broken promise:

    lost-write            acknowledged (or polled by somebody), and not there any more
    unseen                in the log at the end, but the consumer that polled all along never got it
    aborted-read          a value was read whose send had definitely failed
    phantom               a value was read that nobody sent
    inconsistent-offsets  two different values at one offset
    duplicate             one value at two offsets, although its producer is idempotent
    poll-skip, nonmonotonic-poll    successive polls of one assigned consumer skip offsets or go backwards
    nonmonotonic-send     a producer's records stand in the log in another order than it sent them
    lost-sync             a crash took what had been synced
    stale-epoch           a restart did not raise the leader epoch
    lost-metadata         an acknowledged change of topics or settings is not there, or one that was refused is
    reused-producer-id    two producers were given the same id

What a crash may take. A process that dies takes nothing. A machine that loses power takes what was not synced: for a partition
that syncs before it acknowledges (`durable`) that is nothing anybody was told of; for others the tail may go, and its offsets
are given to other values then, as in Apache Kafka. An answer that was under way while the power went speaks of the log before
or of the log after: such an interval is judged only below the offset that survived.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from enum import Enum
from typing import NamedTuple

from ottla.client.cluster import TopicPartition

Found = Iterable[tuple[int, bytes]]


class Anomaly(NamedTuple):
    kind: str
    where: str
    detail: str


class Outcome(Enum):
    UNKNOWN = "unknown"
    ACKED = "acked"
    REFUSED = "refused"


@dataclass(slots=True)
class Send:
    """One record on its way. Numbers rise within a process and partition."""

    process: str
    number: int
    value: bytes
    began: int
    outcome: Outcome = Outcome.UNKNOWN
    offset: int = -1


@dataclass(slots=True)
class Restart:
    """What the next process found of one partition: the log ends at `end`."""

    at: int
    end: int
    lost_power: bool


class Book:
    """All that is known of one partition."""

    def __init__(self, where: TopicPartition, durable: bool) -> None:
        self.where = where
        self.durable = durable
        self.found: list[Anomaly] = []
        self.sends: dict[bytes, Send] = {}
        self.truth: dict[int, bytes] = {}
        self.places: dict[bytes, int] = {}
        self.polled: dict[str, set[bytes]] = {}
        self.positions: dict[str, int] = {}
        self.losses: list[Restart] = []
        self.epoch = -1

    def report(self, kind: str, detail: str) -> None:
        self.found.append(Anomaly(kind, f"{self.where.topic}-{self.where.partition}", detail))

    # -- while it runs

    def learn(self, offset: int, value: bytes, began: int) -> None:
        """Somebody was told that this value is at this offset, in answer to a question asked at `began`."""
        if any(began < loss.at and offset >= loss.end for loss in self.losses) and not self.durable:
            return
        before = self.truth.setdefault(offset, value)
        if before != value:
            self.report("inconsistent-offsets", f"offset {offset} was {before[:40]!r} and is {value[:40]!r}")
        place = self.places.setdefault(value, offset)
        if place != offset:
            self.report("duplicate", f"{value[:40]!r} at offsets {place} and {offset}")

    def poll(self, process: str, records: Found, began: int) -> None:
        for offset, value in records:
            due = self.positions.get(process, offset)
            if offset != due:
                kind = "poll-skip" if offset > due else "nonmonotonic-poll"
                self.report(kind, f"{process} polled {offset} where {due} was due")
            self.positions[process] = offset + 1
            self.polled.setdefault(process, set()).add(value)
            self.learn(offset, value, began)
            self._check_sent(value)

    def restarted(self, restart: Restart, floor: int, epoch: int) -> None:
        if epoch <= self.epoch:
            self.report("stale-epoch", f"leader epoch {epoch} after {self.epoch}")
        self.epoch = epoch
        if restart.end < floor:
            self.report("lost-sync", f"synced up to {floor}, but the log ends at {restart.end}")
        gone = sorted(offset for offset in self.truth if offset >= restart.end)
        if restart.lost_power and not self.durable:
            for offset in gone:
                del self.places[self.truth.pop(offset)]
            self.losses.append(restart)
        elif gone:
            self.report("lost-write", f"told of offsets {gone[:5]}, but after a restart the log ends at {restart.end}")

    # -- at the end

    def close(self, start: int, records: Found, watched: Iterable[str]) -> None:
        """`records` is all that is left, from the log's start on."""
        final = dict(records)
        for number, (offset, value) in enumerate(sorted(final.items())):
            if offset != start + number:
                self.report("poll-skip", f"the log starts at {start}, but the record number {number} is {offset}")
                break
            self.learn(offset, value, 1 << 60)
            self._check_sent(value)
        missing = sorted(offset for offset in self.truth if offset >= start and offset not in final)
        if missing:
            texts = [f"{offset}: {self.truth[offset][:40]!r}" for offset in missing[:5]]
            self.report("lost-write", f"{len(missing)} gone, the first {', '.join(texts)}")
        self._check_acked(start, final)
        self._check_order({**self.truth, **final})
        if self.durable or not self.losses:
            for process in watched:
                unseen = [value[:40] for value in final.values() if value not in self.polled.get(process, ())]
                if unseen:
                    self.report("unseen", f"{process} never got {len(unseen)}, the first {unseen[0]!r}")

    def _check_sent(self, value: bytes) -> None:
        send = self.sends.get(value)
        if send is None:
            self.report("phantom", f"nobody sent {value[:40]!r}")
        elif send.outcome is Outcome.REFUSED:
            self.report("aborted-read", f"{value[:40]!r} was refused, and is there")

    def _check_acked(self, start: int, final: Mapping[int, bytes]) -> None:
        """The same as for `truth`, straight from the acknowledgements, where no power loss can excuse anything."""
        if self.losses and not self.durable:
            return
        for send in self.sends.values():
            if send.outcome is Outcome.ACKED and send.offset >= start and final.get(send.offset) != send.value:
                self.report("lost-write", f"{send.value[:40]!r} was acknowledged at {send.offset}")
                return

    def _check_order(self, log: Mapping[int, bytes]) -> None:
        last: dict[str, int] = {}
        for offset in sorted(log):
            send = self.sends.get(log[offset])
            if send is not None:
                if send.number < last.get(send.process, -1):
                    self.report("nonmonotonic-send", f"{send.value[:40]!r} at {offset} stands after a later one")
                last[send.process] = send.number


class History:
    """What happened, in order. `now` rises with every entry, so that intervals can be compared."""

    def __init__(self) -> None:
        self.now = 0
        self.books: dict[TopicPartition, Book] = {}
        self.other: list[Anomaly] = []
        self.acked = self.polled = 0
        self._numbers = 0

    def open(self, where: TopicPartition, *, durable: bool) -> Book:
        """A partition begins; one of the same name before it is forgotten."""
        book = self.books[where] = Book(where, durable)
        return book

    def moment(self) -> int:
        self.now += 1
        return self.now

    def report(self, kind: str, where: str, detail: str) -> None:
        self.other.append(Anomaly(kind, where, detail))

    def send(self, process: str, where: TopicPartition, value: bytes) -> Send:
        self._numbers += 1
        send = self.books[where].sends[value] = Send(process, self._numbers, value, self.moment())
        return send

    def ack(self, where: TopicPartition, send: Send, offset: int) -> None:
        self.moment()
        self.acked += 1
        send.outcome, send.offset = Outcome.ACKED, offset
        self.books[where].learn(offset, send.value, send.began)

    def refuse(self, send: Send) -> None:
        self.moment()
        send.outcome = Outcome.REFUSED

    def poll(self, process: str, where: TopicPartition, records: Found, began: int) -> None:
        self.moment()
        records = list(records)
        self.polled += len(records)
        self.books[where].poll(process, records, began)

    def seek(self, process: str, where: TopicPartition) -> None:
        """The consumer found its position outside of the log and begins anew."""
        self.moment()
        self.books[where].positions.pop(process, None)

    def restarted(self, where: TopicPartition, end: int, *, lost_power: bool, floor: int, epoch: int) -> None:
        self.books[where].restarted(Restart(self.moment(), end, lost_power), floor, epoch)

    @property
    def anomalies(self) -> list[Anomaly]:
        return [*self.other, *(anomaly for book in self.books.values() for anomaly in book.found)]


# -- topics, settings, ids


class TopicState(NamedTuple):
    partitions: int
    configs: tuple[tuple[str, str], ...]


ABSENT = None


@dataclass(slots=True)
class Registry:
    """What the metadata must say: for each topic the states it may be in, one unless a change is under way."""

    possible: dict[str, list[TopicState | None]] = field(default_factory=dict)
    ids: dict[str, bytes] = field(default_factory=dict)
    producer_ids: set[int] = field(default_factory=set)
    found: list[Anomaly] = field(default_factory=list)

    def changing(self, name: str, state: TopicState | None) -> None:
        """From here on until `changed`, the topic is in its old state or in this one."""
        self.possible[name] = [*self.possible.get(name, [ABSENT]), state]

    def changed(self, name: str) -> None:
        """The change was acknowledged."""
        self.possible[name] = self.possible[name][-1:]
        if self.possible[name] == [ABSENT]:
            self.ids.pop(name, None)

    def unchanged(self, name: str) -> None:
        """The change was refused for good."""
        self.possible[name] = self.possible[name][:-1]

    def state(self, name: str) -> TopicState | None:
        return self.possible.get(name, [ABSENT])[-1]

    def compare(self, seen: Mapping[str, tuple[bytes, TopicState]]) -> None:
        """Is what is there now something that may be there?"""
        for name in sorted({*self.possible, *seen}):
            topic_id, state = seen.get(name, (b"", ABSENT))
            may_be = self.possible.get(name, [ABSENT])
            if state not in may_be:
                self.found.append(Anomaly("lost-metadata", name, f"is {state}, and should be one of {may_be}"))
            elif state is not ABSENT and len(may_be) == 1 and self.ids.setdefault(name, topic_id) != topic_id:
                self.found.append(Anomaly("lost-metadata", name, "has another topic id than before"))

    def gave(self, producer_id: int) -> None:
        if producer_id in self.producer_ids:
            self.found.append(Anomaly("reused-producer-id", str(producer_id), "was given twice"))
        self.producer_ids.add(producer_id)
