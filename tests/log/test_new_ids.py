"""Ids that a node gives to itself: cluster and directories."""

from __future__ import annotations

import random

from ottla.log.directories import Directories
from ottla.sim.disk import SimDisk
from ottla.wire.ids import uuid_bytes, uuid_text


class Drawn(random.Random):
    """Chance that draws what it is told to."""

    def __init__(self, *draws: bytes) -> None:
        super().__init__(1)
        self.draws = list(draws)

    def randbytes(self, n: int) -> bytes:
        return self.draws.pop(0)


def test_ids_are_neither_reserved_nor_look_like_an_option() -> None:
    """TRAP-35: the first hundred have a meaning (unassigned, lost, migrating ...), and text never begins with a dash."""
    looks_like_an_option, last_reserved = b"\xf8" + bytes(15), (99).to_bytes(16, "big")
    assert uuid_text(looks_like_an_option).startswith("-")
    first_free, other = (100).to_bytes(16, "big"), b"\x10" * 16
    rng = Drawn(bytes(16), looks_like_an_option, first_free, last_reserved, other)
    node = Directories(SimDisk(), ["/data"], 1, lambda: 0, rng)
    node.open()
    assert (uuid_bytes(node.cluster_id), node.ids) == (first_free, [other])
