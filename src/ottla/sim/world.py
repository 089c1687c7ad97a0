"""The surroundings of simulated nodes: wall clocks that can be set wrong, seeded chance, work without a child process.

The disk comes from the caller, because what a crash leaves of it is a question of its own. The monotonic clock is the
loop's and never jumps; only the wall clock does, as on a machine whose time is being set.
"""

from __future__ import annotations

import asyncio
import random
from collections.abc import Callable
from typing import Any, TypeVar

from ottla.sim.loop import SimLoop
from ottla.world import Disk, World

T = TypeVar("T")

# Thursday, 1 January 2026, so that a timestamp in a failing run is easy to read.
BASE_MS = 1_767_225_600_000
WORK_MEAN_S = 0.05


class SimWorkshop:
    """Runs a heavy call as one step of the simulation, after a while. A node that died meanwhile sees no answer."""

    def __init__(self, rng: random.Random) -> None:
        self._rng = rng

    async def work(self, call: Callable[..., T], *args: Any) -> T:
        await asyncio.sleep(self._rng.expovariate(1 / WORK_MEAN_S))
        return call(*args)

    toil = work

    def close(self) -> None:
        pass


class Worlds:
    """Hands each node its World, and sets its clock wrong on request."""

    def __init__(self, loop: SimLoop, base_ms: int = BASE_MS) -> None:
        self._loop = loop
        self._base_ms = base_ms
        self._offsets_ms: dict[str, int] = {}

    def of(self, name: str, disk: Disk) -> World:
        """Surroundings for the next incarnation of `name`. Chance differs from one incarnation to the next."""
        incarnation = self._loop.node(name).incarnation + 1 if self._loop.known(name) else 1
        rng = self._loop.chance("node", name, incarnation)
        workshop = SimWorkshop(self._loop.chance("workshop", name, incarnation))
        return World(disk=disk, now_ms=lambda: self.now_ms(name), random=rng, workshop=workshop)

    def now_ms(self, name: str) -> int:
        return self._base_ms + int(self._loop.time() * 1000) + self._offsets_ms.get(name, 0)

    def jump(self, name: str, ms: int) -> None:
        """Move one node's wall clock, forwards or backwards. It stays wrong over restarts."""
        self._loop.note("clock", name, ms)
        self._offsets_ms[name] = self._offsets_ms.get(name, 0) + ms
