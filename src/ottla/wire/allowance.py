"""How large an answer may become.

A short request can ask for long answers: it need only name one thing again and again. Apache Kafka answers each time, and
what is named a few times is answered so here. But there is an end to it, well before memory or the length of a frame, which
is a number of 31 bits, ends it. Who goes beyond is not answered at all: there is no error for that, and no client that only
does its work gets there.
"""

from __future__ import annotations

MIB = 1024 * 1024
# Tens of thousands of groups, each with a hundred offsets; thousands with a hundred members.
ANSWER_BYTES_MAX = 128 * MIB
# Of these, for things that the same request has named before.
REPEATED_BYTES_MAX = 16 * MIB


class Overlarge(Exception):
    """An answer would become too large. It costs the connection."""


class Allowance:
    """What one answer may still take."""

    __slots__ = ("_left", "_left_for_repeated", "_named")

    def __init__(self) -> None:
        self._left, self._left_for_repeated = ANSWER_BYTES_MAX, REPEATED_BYTES_MAX
        self._named: set[object] = set()

    def take(self, name: object, size: int) -> None:
        """So many bytes for what has this name; they need only be about right. Overlarge if there is no room for them."""
        self._left -= size
        if name in self._named:
            self._left_for_repeated -= size
        self._named.add(name)
        if self._left < 0:
            raise Overlarge(f"the answer would take more than {ANSWER_BYTES_MAX} bytes")
        if self._left_for_repeated < 0:
            raise Overlarge(f"what is named more than once would take more than {REPEATED_BYTES_MAX} bytes")
