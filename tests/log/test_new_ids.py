"""Ids that a node gives to itself: cluster and directories."""

from __future__ import annotations

import random
import uuid

from ottla.log.directories import Directories
from ottla.sim.disk import SimDisk
from ottla.wire.ids import is_reserved, uuid_bytes, uuid_text


class Drawn(random.Random):
    """Chance that draws what it is told to."""

    def __init__(self, *draws: bytes) -> None:
        super().__init__(1)
        self.draws = list(draws)

    def randbytes(self, n: int) -> bytes:
        return self.draws.pop(0)


def test_ids_are_neither_reserved_nor_look_like_an_option() -> None:
    """TRAP-35: the first hundred have a meaning (unassigned, lost, migrating ...), and text never begins with a dash."""
    looks_like_an_option = b"\xf8" + bytes(15)
    assert uuid_text(looks_like_an_option).startswith("-")
    rng = Drawn(looks_like_an_option, b"\x20" * 16, looks_like_an_option, bytes(16))
    node = Directories(SimDisk(), ["/data"], 1, lambda: 0, rng)
    node.open()
    drawn = [uuid_bytes(node.cluster_id), *node.ids]
    assert [made[:6] for made in drawn] == [b"\x20" * 6, bytes(6)]
    assert [uuid.UUID(bytes=made).version for made in drawn] == [4, 4]
    assert is_reserved(bytes(15) + b"\x63") and not is_reserved(bytes(15) + b"\x64")
    assert not any(is_reserved(made) for made in drawn)
