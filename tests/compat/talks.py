"""Talks of two producers with one transactional id, from a seed: most of what they say makes sense, in some generation.

What they say next depends on what they were told, so a talk is the same on two brokers for as long as these answer alike. It
goes around what docs/compatibility.md says is different.
"""

from __future__ import annotations

import random
from collections.abc import Callable
from typing import Any

from compat.dealings import Dealings
from ottla.wire.messages.transactions import DescribeTransactionsRequest

# The second producer speaks seldom: it takes over.
WHO = ("a", "a", "a", "b")
# The last two are refused; none is so short that a slow machine would notice.
TIMEOUTS_MS = (60_000, 60_000, 60_000, 120_000, 120_001, 0)
GENERATION_2 = 5


class Talk:
    def __init__(self, deal: Dealings, rng: random.Random) -> None:
        self.deal, self.rng = deal, rng
        # The version of the last end, which nobody may take for one of his own (TRAP-65).
        self.ended_in = GENERATION_2
        self.kinds: list[tuple[Callable[[str], Any], int]] = [
            (self.begin, 12),
            (self.begin_anew, 8),
            (self.add, 12),
            (self.add_as_a_leader, 5),
            (self.add_group, 5),
            (self.produce, 20),
            (self.hold, 10),
            (self.end, 22),
            (self.mark, 2),
            (self.look, 4),
        ]

    def go_on(self, steps: int) -> None:
        self.deal.init("a", self.rng.choice((0, 2, 4, 5, 5, 5)))
        kinds, weights = zip(*self.kinds, strict=True)
        for step in self.rng.choices(kinds, weights, k=steps):
            step(self.rng.choice(WHO))
            self.deal.settle()
        self.deal.look()

    def slip(self) -> dict[str, int]:
        """Now and then somebody has another epoch than he should, or another id."""
        return self.rng.choices(
            ({}, {"off": -2}, {"off": -1}, {"off": 1}, {"producer_id": 77}), weights=(84, 5, 5, 5, 1)
        )[0]

    def partition(self) -> int:
        return self.rng.choice((0, 0, 0, 1, 1, 1, 9))

    def now(self) -> Any:
        return self.deal.aside(
            "", DescribeTransactionsRequest(transactional_ids=[self.deal.name]), 0
        ).transaction_states[0]

    def begin(self, who: str) -> None:
        timeout_ms = self.rng.choice(TIMEOUTS_MS)
        self.deal.init(who, self.rng.choice((0, 1, 2, 3, 4, 5, 5)), again=True, transaction_timeout_ms=timeout_ms)

    def begin_anew(self, who: str) -> None:
        """Not while somebody else is at work: Apache aborts that."""
        version, now, dealer = self.rng.choice((3, 4, 5)), self.now(), self.deal.dealer(who)
        is_late = (dealer.id, dealer.epoch) != (now.producer_id, now.producer_epoch)
        if not (is_late and now.transaction_state == "Ongoing"):
            self.deal.init(who, version, again=True, is_known=True)

    def add(self, who: str) -> None:
        self.deal.add(who, self.partition(), version=self.rng.choice((0, 1, 2, 3, 3, 3)), **self.slip())

    def add_as_a_leader(self, who: str) -> None:
        version, only = self.rng.choice((4, 5)), self.rng.random() < 0.5
        self.deal.add(who, self.partition(), version=version, verify_only=only, **self.slip())

    def add_group(self, who: str) -> None:
        self.deal.add_group(who, self.rng.randrange(5), **self.slip())

    def produce(self, who: str) -> None:
        version = self.rng.choice((3, 9, 10, 11, 11, 12, 12, 12))
        sequence = self.rng.choice((0, 1, 5)) if version < 12 and self.rng.random() < 0.1 else None
        self.deal.produce(who, self.partition(), version, sequence=sequence, **self.slip())

    def hold(self, who: str) -> None:
        version, offset = self.rng.choice((0, 2, 3, 4, 5, 5)), self.rng.randrange(50)
        self.deal.offsets(who, self.partition(), version=version, offset=offset, **self.slip())

    def end(self, who: str) -> None:
        version, committed = self.rng.choice((0, 1, 2, 3, 4, 4, 5, 5, 5, 5)), self.rng.random() < 0.6
        slip = self.slip()
        says_again = self.deal.dealer(who).epoch + slip.get("off", 0) == self.now().producer_epoch - 1
        if version == GENERATION_2 and says_again and self.ended_in < GENERATION_2:
            return
        if self.deal.end(who, committed, version, **slip).error_code == 0:
            self.ended_in = version

    def mark(self, who: str) -> None:
        """By hand, and in no later epoch: Apache would never complete the transaction."""
        self.deal.mark(who, self.rng.choice((0, 1)), committed=self.rng.random() < 0.5, off=-self.rng.randrange(2))

    def look(self, _who: str) -> None:
        self.deal.look()
