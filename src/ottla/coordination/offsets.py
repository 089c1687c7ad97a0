"""Offsets that groups have committed."""

from __future__ import annotations

from typing import NamedTuple


class Commit(NamedTuple):
    """How far a group has come in one partition."""

    offset: int
    leader_epoch: int
    metadata: str
    committed_ms: int
    expire_ms: int = -1  # given by the client (versions 2-4); -1: the broker's retention counts
    topic_id: bytes = bytes(16)
    record_offset: int = -1


class Offsets:
    """By group, then by topic and partition."""

    __slots__ = ("by_group",)

    def __init__(self) -> None:
        self.by_group: dict[str, dict[tuple[str, int], Commit]] = {}
