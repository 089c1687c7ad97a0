"""Whom we have asked, and whom we may ask again.

Each node is asked one thing at a time. An answer that comes after its question was given up is not listened to. After a
failure a node is left alone for a moment.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import NamedTuple

from ottla.wire.schema import Message

NEVER = float("inf")


class Destination(NamedTuple):
    """Where a request goes. Bootstrap servers have no id that anybody knows: theirs are -2, -3, ..."""

    id: int
    host: str
    port: int


class Send(NamedTuple):
    """A request to be made, and the number under which its answer is expected."""

    number: int
    destination: Destination
    request: Message


class Connections:
    def __init__(self, request_timeout_ms: float, retry_backoff_ms: float) -> None:
        self._request_timeout_ms = request_timeout_ms
        self._retry_backoff_ms = retry_backoff_ms
        self._numbers = 0
        self._asked: dict[int, tuple[Send, float]] = {}
        self._resting: dict[int, float] = {}

    def free_ms(self, node_id: int, now_ms: float) -> float:
        """When this node may be asked: now, or a time to come."""
        asked = self._asked.get(node_id)
        given_up = now_ms if asked is None else asked[1] + self._request_timeout_ms
        return max(now_ms, given_up, self._resting.get(node_id, now_ms))

    def is_resting(self, node_id: int, now_ms: float) -> bool:
        """It failed lately."""
        return self._resting.get(node_id, now_ms) > now_ms

    def give_up(self, node_id: int, now_ms: float) -> None:
        """A question that got no answer in time has failed, whether its end was heard of or not."""
        asked = self._asked.get(node_id)
        if asked is not None and now_ms >= asked[1] + self._request_timeout_ms:
            del self._asked[node_id]
            self.rest(node_id, now_ms)

    def any_asked(self, node_ids: Iterable[int], now_ms: float) -> bool:
        return any(
            self._asked[node_id][1] + self._request_timeout_ms > now_ms
            for node_id in node_ids
            if node_id in self._asked
        )

    def ask(self, destination: Destination, request: Message, now_ms: float) -> Send:
        self._numbers += 1
        send = Send(self._numbers, destination, request)
        self._asked[destination.id] = (send, now_ms)
        self._resting.pop(destination.id, None)
        return send

    def take(self, number: int) -> Send | None:
        """The question to an answer; None if nobody waits for it any more."""
        for node_id, (send, _) in self._asked.items():
            if send.number == number:
                del self._asked[node_id]
                return send
        return None

    def rest(self, node_id: int, now_ms: float) -> None:
        self._resting[node_id] = now_ms + self._retry_backoff_ms

    def reset(self) -> None:
        """A new role has new questions."""
        self._asked.clear()
        self._resting.clear()
