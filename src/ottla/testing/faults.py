"""What a test may let go wrong, and the rules that follow from it.

APIs are named as in Kafka's protocol ("Produce", "OffsetCommit"), errors by their names ("NOT_LEADER_OR_FOLLOWER"). A rule
holds for `times` requests, or until it is taken back: by `clear`, or at the end of a `with` block.

    with b.faults.refuse("Produce", "NOT_ENOUGH_REPLICAS", times=2):
        ...
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from contextlib import AbstractContextManager
from dataclasses import dataclass
from types import TracebackType
from typing import Any

Order = Callable[[Mapping[str, Any]], Any]


@dataclass(slots=True)
class Rule:
    """What happens to requests of one API. `left` is None for as long as nobody takes it back."""

    number: int
    api: str
    kind: str  # refuse, delay, drop, lose
    left: int | None
    error: str = ""
    seconds: float = 0.0


class Standing(AbstractContextManager["Standing"]):
    """A rule that holds until it is taken back."""

    def __init__(self, order: Order, number: int) -> None:
        self._order, self._number = order, number

    def take_back(self) -> None:
        self._order({"do": "take_back", "number": self._number})

    @property
    def left(self) -> int | None:
        """How many requests it will still befall: 0 when it has done all it should, None if it ends only when taken back."""
        left: int | None = self._order({"do": "left", "number": self._number})
        return left

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.take_back()


class Faults:
    def __init__(self, order: Order) -> None:
        self._order = order

    def refuse(self, api: str, error: str, times: int | None = None) -> Standing:
        """Answer with this error, and do nothing of what was asked."""
        return self._rule(api, "refuse", times, error=error)

    def delay(self, api: str, seconds: float, times: int | None = None) -> Standing:
        """Begin with the request only after some time; what its connection sends later waits as well."""
        return self._rule(api, "delay", times, seconds=seconds)

    def drop(self, api: str, times: int | None = None) -> Standing:
        """Close the connection instead of doing what was asked."""
        return self._rule(api, "drop", times)

    def lose_answer(self, api: str, times: int | None = None) -> Standing:
        """Do what was asked, and close the connection instead of saying so: the client cannot know what happened."""
        return self._rule(api, "lose", times)

    def fill_disk(self) -> None:
        """From now on the disk has no room for records."""
        self._order({"do": "fill_disk", "full": True})

    def free_disk(self) -> None:
        self._order({"do": "fill_disk", "full": False})

    def clear(self) -> None:
        """Take back all of it."""
        self._order({"do": "clear"})

    def _rule(self, api: str, kind: str, times: int | None, **more: Any) -> Standing:
        number = self._order({"do": "rule", "api": api, "kind": kind, "left": times, **more})
        return Standing(self._order, number)
