"""The oracle for groups: what members and those who ask for offsets were told, and what of it cannot all be true.

Clients write down in a `Ledger` what they do: commits with their outcome, fetches of committed offsets, partitions taken and
given up, generations and epochs, and when the coordinator last heard of them. `found` names each broken promise:

    lost-commit      an offset that was acknowledged, or shown to somebody, is not there any more or went back
    phantom-commit   an offset is shown that nobody committed
    skipped          an offset is committed before everything below it was handed to somebody
    owned-twice      two members use a partition at the same moment, and neither can have been put out of the group
    epoch-fell       a generation, or an epoch, is lower than one that somebody was in before
    not-settled      long after the last fault a partition has no owner that lives, or has two

A member is put out of its group when nothing was heard of it for its session timeout, not before. So its claim to a partition
holds at least that long, counted from the sending of its last request that was answered. A member that was out of touch for
longer may still believe that it owns something: that is nobody's fault. Nor does it count who was heard by a coordinator that
is one no more and does not know: the next one gives each member a session when it takes over, and puts out who stays away.

What a crash may take: nothing of what was acknowledged when only the process dies, nor when the power goes and the topic of
the offsets is synced before anything is acknowledged. Otherwise what was told before may have been lost with the power, and
records that members read as well: after `forget` only the end is judged. When a group is deleted a new page begins, and
answers to questions of an older page prove nothing.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field

from ottla.client.cluster import TopicPartition
from ottla.sim.checks import Anomaly

Where = tuple[str, TopicPartition]
NEVER = float("-inf")
FORGIVEN = ("lost-commit", "phantom-commit", "skipped", "owned-twice", "epoch-fell", "undead")


@dataclass(slots=True)
class Claim:
    """A member uses a partition."""

    member: str
    number: int  # its generation or epoch


@dataclass(slots=True)
class Question:
    """Something that was asked, and what was known then: the answer may not say less."""

    page: int
    floors: dict[TopicPartition, int] = field(default_factory=dict)
    highest: int = -1


class Ledger:
    """All groups of one history. `now` is the clock of the simulation."""

    def __init__(self, session_s: float) -> None:
        self.session_s = session_s
        self.found: list[Anomaly] = []
        self.may_be_old: Callable[[], bool] = lambda: False  # whether an answer may come from a coordinator of before
        self.page = 0
        self.is_lenient = False
        self.acked = self.shown = self.taken = 0
        self._floors: dict[Where, int] = {}
        self._attempted: dict[Where, set[int]] = {}
        self._handed: dict[Where, set[int]] = {}
        self._claims: dict[Where, list[Claim]] = {}
        self._heard: dict[str, float] = {}
        self._highest: dict[str, int] = {}

    def report(self, kind: str, where: str, detail: str) -> None:
        if (self.is_lenient and kind in FORGIVEN) or any(known[:2] == (kind, where) for known in self.found):
            return
        self.found.append(Anomaly(kind, where, detail))

    def forget(self) -> None:
        """The power took what nobody had promised to keep."""
        self.is_lenient = True

    def deleted(self, group: str) -> None:
        """The group was deleted, or perhaps was: its offsets are gone and its generations begin anew."""
        self.page += 1
        for where in [where for where in self._floors if where[0] == group]:
            del self._floors[where]
        self._highest.pop(group, None)

    # -- offsets

    def handed(self, group: str, where: TopicPartition, offset: int) -> None:
        """A member got this record."""
        self._handed.setdefault((group, where), set()).add(offset)

    def committing(self, group: str, offsets: Mapping[TopicPartition, int], *, complete: bool = True) -> Question:
        for where, offset in offsets.items():
            self._attempted.setdefault((group, where), set()).add(offset)
            handed = self._handed.get((group, where), set())
            missing = [at for at in range(offset) if at not in handed] if complete else []
            if missing:
                self.report("skipped", f"{group} {where}", f"{offset} is committed, but nobody got {missing[:5]}")
        return Question(self.page)

    def committed(self, group: str, offsets: Mapping[TopicPartition, int], question: Question) -> None:
        self.acked += len(offsets)
        if question.page == self.page:
            for where, offset in offsets.items():
                self._raise_floor((group, where), offset)

    def asking(self, group: str, partitions: Iterable[TopicPartition]) -> Question:
        if self.may_be_old():
            return Question(self.page)
        return Question(self.page, {where: self._floors.get((group, where), -1) for where in partitions})

    def told(self, group: str, offsets: Mapping[TopicPartition, int], question: Question) -> None:
        """Somebody was shown these committed offsets, of those it had asked for."""
        if question.page != self.page:
            return
        for where, floor in question.floors.items():
            offset = offsets.get(where, -1)
            self.shown += offset >= 0
            if offset < floor:
                self.report("lost-commit", f"{group} {where}", f"{floor} was committed, and {offset} is told")
            if offset >= 0 and offset not in self._attempted.get((group, where), ()):
                self.report("phantom-commit", f"{group} {where}", f"nobody committed {offset}")
            self._raise_floor((group, where), offset)

    def _raise_floor(self, where: Where, offset: int) -> None:
        self._floors[where] = max(self._floors.get(where, -1), offset)

    # -- owners

    def sending(self, now: float) -> float:
        """A member sends something. The moment of it, to be told when it was heard; NEVER if it may talk to a coordinator of
        before. (One that is deposed later hears it in time: the session that the next one gives begins even later.)"""
        return NEVER if self.may_be_old() else now

    def heard(self, member: str, sent_at: float) -> None:
        """The coordinator answered a request that the member had sent at that moment."""
        self._heard[member] = max(self._heard.get(member, NEVER), sent_at)

    def took(self, group: str, member: str, number: int, partitions: Iterable[TopicPartition], now: float) -> None:
        for where in partitions:
            self.taken += 1
            claims = self._claims.setdefault((group, where), [])
            others = [claim for claim in claims if claim.member != member]
            claims[:] = [*others, Claim(member, number)]
            if self._is_in(member, now):
                for other in others:
                    if self._is_in(other.member, now):
                        detail = f"{member} takes it at {number}, and {other.member} has had it since {other.number}"
                        self.report("owned-twice", f"{group} {where}", detail)

    def _is_in(self, member: str, now: float) -> bool:
        """Its session cannot be over yet."""
        return now < self._heard.get(member, NEVER) + self.session_s

    def gave_up(self, group: str, member: str, partitions: Iterable[TopicPartition]) -> None:
        for where in partitions:
            claims = self._claims.get((group, where), [])
            claims[:] = [claim for claim in claims if claim.member != member]

    def died(self, member: str) -> None:
        for claims in self._claims.values():
            claims[:] = [claim for claim in claims if claim.member != member]

    def owners(self, group: str, where: TopicPartition) -> list[str]:
        return [claim.member for claim in self._claims.get((group, where), [])]

    # -- generations and epochs

    def joining(self, group: str) -> Question:
        return Question(self.page, highest=self._highest.get(group, -1))

    def joined(self, group: str, number: int, question: Question) -> None:
        if question.page != self.page:
            return
        if number < question.highest:
            self.report("epoch-fell", group, f"somebody was in {question.highest} before, and now {number} is told")
        self._highest[group] = max(self._highest.get(group, -1), number)
