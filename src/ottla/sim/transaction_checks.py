"""The oracle for transactions: what producers did, what readers saw, and what of it cannot all be true.

Producers write down in `Accounts` every attempt at a transaction, before they ask for anything: its values, the offsets it
commits, that they now ask for its commit, and what they were told of its end. Readers write down what they polled. `found`
names each broken promise:

    aborted-read          somebody at read_committed got a value of a transaction that was aborted
    precommitted-read     ... or of one whose commit nobody had asked for yet; the same for an offset that was told
    lost-write            a transaction whose commit was acknowledged, and something of it is not there
    torn                  of a transaction whose end nobody heard of, some is there and some is not
    duplicate             one value at two offsets; or one input was copied twice
    inconsistent-offsets  two different values at one offset
    unseen                the reader that polled all along never got something that is there at the end
    nonmonotonic-send     the values of one attempt stand in a partition in another order than they were sent
    phantom               a value that nobody sent, an offset that nobody committed
    offset-fell           a committed offset went back
    hanging               long after the last fault something is still not stable
    stuck                 long after the last fault a transactional id can do nothing

An attempt is aborted for certain when its producer was told so, and when its commit was never asked for: whoever dies, or is
fenced, before that can leave nothing behind. One whose commit was asked for, but not answered, may have ended either way, as
a whole. What this knows holds as long as nothing that was acknowledged may be lost: then a power cut takes nothing but what
nobody was told of.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from enum import Enum

from ottla.client.cluster import TopicPartition
from ottla.sim.checks import Anomaly

Found = Iterable[tuple[int, bytes]]


class End(Enum):
    NOT_ASKED = "not asked for"
    ASKED = "asked for, and not answered"
    COMMITTED = "committed"
    ABORTED = "aborted"


@dataclass(slots=True)
class Attempt:
    """One transaction, as far as its producer knows."""

    name: str
    end: End = End.NOT_ASKED
    values: dict[bytes, TopicPartition] = field(default_factory=dict)
    offsets: dict[TopicPartition, int] = field(default_factory=dict)
    # By key of a compacted topic: only the newest value of a key has to stay.
    keys: dict[bytes, bytes] = field(default_factory=dict)

    @property
    def may_be_seen(self) -> bool:
        return self.end in (End.ASKED, End.COMMITTED)


class Accounts:
    """All transactions of one history."""

    def __init__(self) -> None:
        self.found: list[Anomaly] = []
        self.attempts: list[Attempt] = []
        self.ended: Counter[End] = Counter()
        self.polled = self.told_offsets = 0
        self._by_value: dict[bytes, Attempt] = {}
        self._truth: dict[TopicPartition, dict[int, bytes]] = {}
        self._places: dict[TopicPartition, dict[bytes, int]] = {}
        self._seen: dict[str, set[bytes]] = {}
        self._copied: dict[bytes, tuple[TopicPartition, int]] = {}
        self._floors: dict[TopicPartition, int] = {}

    def report(self, kind: str, where: str, detail: str) -> None:
        if not any(known[:2] == (kind, where) for known in self.found):
            self.found.append(Anomaly(kind, where, detail))

    # -- producers

    def begin(self, producer: str) -> Attempt:
        attempt = Attempt(f"{producer}#{len(self.attempts)}")
        self.attempts.append(attempt)
        return attempt

    def sends(self, attempt: Attempt, where: TopicPartition, value: bytes, key: bytes | None = None) -> None:
        attempt.values[value] = where
        self._by_value[value] = attempt
        if key is not None:
            attempt.keys[value] = key

    def copies(self, value: bytes, source: TopicPartition, offset: int) -> None:
        """The value stands for this input."""
        self._copied[value] = source, offset

    def asks_to_commit(self, attempt: Attempt) -> None:
        attempt.end = End.ASKED

    def ends(self, attempt: Attempt, end: End) -> None:
        attempt.end = end
        self.ended[end] += 1

    # -- readers

    def poll(self, reader: str, where: TopicPartition, records: Found, *, committed: bool) -> None:
        for offset, value in records:
            self.polled += 1
            self._learn(where, offset, value)
            attempt = self._by_value.get(value)
            if attempt is None:
                self.report("phantom", _text(where), f"nobody sent {value!r}")
            elif committed:
                self._seen.setdefault(reader, set()).add(value)
                self._judge(attempt, _text(where), f"{reader} got {value!r} at {offset}")

    def _learn(self, where: TopicPartition, offset: int, value: bytes) -> None:
        before = self._truth.setdefault(where, {}).setdefault(offset, value)
        if before != value:
            self.report("inconsistent-offsets", _text(where), f"{offset} was {before!r} and is {value!r}")
        place = self._places.setdefault(where, {}).setdefault(value, offset)
        if place != offset:
            self.report("duplicate", _text(where), f"{value!r} at {place} and {offset}")

    def _judge(self, attempt: Attempt, where: str, what: str) -> None:
        if attempt.end is End.ABORTED:
            self.report("aborted-read", where, f"{what}, and it was aborted")
        elif attempt.end is End.NOT_ASKED:
            self.report("precommitted-read", where, f"{what}, and nobody has asked for its commit")

    def asking(self) -> dict[TopicPartition, int]:
        """What is known when somebody asks for committed offsets: the answer may not say less."""
        return dict(self._floors)

    def told(self, offsets: Mapping[TopicPartition, int], floors: Mapping[TopicPartition, int]) -> None:
        for where, offset in offsets.items():
            self.told_offsets += 1
            if offset < floors.get(where, 0):
                self.report("offset-fell", _text(where), f"{floors[where]} was told before, now it is {offset}")
            self._floors[where] = max(self._floors.get(where, 0), offset)
            self._judge_offset(where, offset)

    def _judge_offset(self, where: TopicPartition, offset: int) -> None:
        its = [attempt for attempt in self.attempts if attempt.offsets.get(where) == offset]
        if not its:
            self.report("phantom", _text(where), f"nobody committed offset {offset}")
        elif not any(attempt.may_be_seen for attempt in its):
            self._judge(its[-1], f"offset of {_text(where)}", f"offset {offset} of {its[-1].name} was told")

    def committed_offsets(self, attempt: Attempt) -> None:
        """The commit was acknowledged: nobody may be told less from now on."""
        for where, offset in attempt.offsets.items():
            self._floors[where] = max(self._floors.get(where, 0), offset)

    # -- at the end

    def close(self, final: Mapping[TopicPartition, list[tuple[int, bytes]]], watchers: Iterable[str]) -> None:
        """`final` is all that a new reader gets at read_committed from the partitions that keep everything."""
        for where, records in final.items():
            self.poll("the last reader", where, records, committed=True)
            self._check_order(where, records)
        there = {value for records in final.values() for _, value in records}
        for attempt in self.attempts:
            self._check_whole(attempt, there, set(final))
        for watcher in watchers:
            unseen = there - self._seen.get(watcher, set())
            if unseen:
                self.report("unseen", watcher, f"never got {len(unseen)}, the first {min(unseen)!r}")

    def _check_order(self, where: TopicPartition, records: list[tuple[int, bytes]]) -> None:
        numbers = {value: n for attempt in self.attempts for n, value in enumerate(attempt.values)}
        last: dict[str, int] = {}
        for offset, value in records:
            attempt = self._by_value.get(value)
            if attempt is not None and numbers[value] < last.get(attempt.name, -1):
                self.report("nonmonotonic-send", _text(where), f"{value!r} at {offset} stands after a later one")
            if attempt is not None:
                last[attempt.name] = numbers[value]

    def _check_whole(self, attempt: Attempt, there: set[bytes], kept: set[TopicPartition]) -> None:
        wanted = [value for value, where in attempt.values.items() if where in kept]
        missing = [value for value in wanted if value not in there]
        if not missing:
            return
        if attempt.end is End.COMMITTED:
            self.report("lost-write", _text(attempt.values[missing[0]]), f"{missing[0]!r} was committed, and is gone")
        elif len(missing) < len(wanted):
            self.report("torn", attempt.name, f"of {len(wanted)} values {len(missing)} are not there: {missing[0]!r}")

    def check_keys(self, where: TopicPartition, final: Mapping[bytes, tuple[int, bytes]]) -> None:
        """Of a compacted partition the newest record of each key is there, and nothing that was aborted."""
        self.poll("the last reader", where, final.values(), committed=True)
        places = self._places.get(where, {})
        for attempt in self.attempts:
            for value, key in attempt.keys.items():
                known, place = final.get(key), places.get(value, -1)
                if attempt.end is End.COMMITTED and (known is None or known[0] < place):
                    self.report("lost-write", _text(where), f"{value!r} at {place} was committed, now there is {known}")

    def check_copies(
        self, final: Iterable[bytes], inputs: Mapping[TopicPartition, list[int]], group: Mapping[TopicPartition, int]
    ) -> None:
        """Inputs below the group's offset were copied once, all others not at all."""
        copies = Counter(self._copied[value] for value in final if value in self._copied)
        for (where, offset), count in copies.items():
            if count > 1:
                self.report("duplicate", _text(where), f"the input at {offset} was copied {count} times")
            if offset >= group.get(where, 0):
                self.report("torn", _text(where), f"the input at {offset} was copied, but {group.get(where)} committed")
        for where, offsets in inputs.items():
            missing = [at for at in offsets if at < group.get(where, 0) and not copies[where, at]]
            if missing:
                self.report("torn", _text(where), f"{group[where]} is committed, but {missing[0]} was not copied")


def _text(where: TopicPartition) -> str:
    return f"{where.topic}-{where.partition}"
