"""What plays have in common in which somebody operates the cluster meanwhile: the operator is a client of the play, and some
faults wait until it asks for something."""

from __future__ import annotations

import asyncio
import random
from collections.abc import Mapping
from typing import Any

from ottla.sim.disk import SimDisk
from ottla.sim.loop import SimLoop
from sim.cluster_nemesis import Nemesis
from sim.cluster_play import Play


class OperatorNemesis(Nemesis):
    play: OperatorPlay

    async def asking(self) -> bool:
        """As soon as somebody is asked for something, if that comes soon."""
        for _ in range(300):
            if self.play.operator.is_asking:
                return True
            await asyncio.sleep(0.005)
        return False

    async def kill_deciding(self, rng: random.Random) -> None:
        """The controller falls while the operator asks it for something."""
        for _ in range(300):
            if self.play.operator.is_asking and (name := self.controller()) is not None:
                await asyncio.sleep(rng.choice((0.0, 0.001, 0.004, 0.01, 0.03)))
                self.end(name, None, "kill of who decides")
                return
            await asyncio.sleep(0.005)


class OperatorPlay(Play):
    operates: type[Any]

    def begin(self, loop: SimLoop, disks: Mapping[str, SimDisk] | None) -> None:
        super().begin(loop, disks)
        self.operator = self.operates(self)

    def more_clients(self) -> list[asyncio.Task[Any]]:
        return [self.cluster.client("operator", self.operator.run())]
