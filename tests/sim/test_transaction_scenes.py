"""Single scenes about transactions on a simulated node, told step by step: what no seed is likely to come upon."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable

import pytest

from ottla.client.cluster import LATEST
from ottla.client.producer import Producer
from ottla.sim.loop import SimLoop
from sim.many_seeds import quiet
from sim.stage import Story, perform
from sim.topics import NODE
from sim.transacting import OTHER
from sim.transaction_play import TransactionPlay

__all__ = ["quiet"]

HOUR_MS = 3_600_000


class Scene(TransactionPlay):
    """A node with the topics of the play, and a story about it."""

    def __init__(self, generation: int, tell: Callable[[Scene], Awaitable[None]]) -> None:
        super().__init__(f"scene/{generation}", 0, generation)
        self.tell_it = tell

    async def run(self, loop: SimLoop) -> Story:
        self.begin(loop)
        self.cluster.boot(NODE)
        await self.until_ready()
        await self.cluster.client("admin", self.prepare())
        await self.tell_it(self)
        return self.told()

    async def restart(self) -> None:
        self.cluster.kill(NODE)
        self.cluster.boot(NODE)
        await self.until_ready()

    async def leave_open(self, timeout_ms: int) -> None:
        """A transaction whose producer goes away."""
        with self.client("teller") as cluster:
            producer = Producer(cluster, transactional_id="left", transaction_timeout_ms=timeout_ms)
            await producer.init()
            producer.begin()
            await producer.send(OTHER.topic, value=b"open", partition=OTHER.partition)

    async def unstable_s(self) -> float:
        """For how long from now on something is open."""
        began = self.loop.time()
        with self.client("judge") as cluster:
            while True:
                end = (await cluster.list_offsets({OTHER: LATEST}))[OTHER].offset
                stable = (await cluster.list_offsets({OTHER: LATEST}, read_committed=True))[OTHER].offset
                if stable == end:
                    return self.loop.time() - began
                await asyncio.sleep(0.1)


@pytest.mark.parametrize("generation", [1, 2])
@pytest.mark.parametrize("jump_ms", [-2 * HOUR_MS, 0, 2 * HOUR_MS])
def test_a_transaction_times_out_whatever_the_clock_says_after_a_start(generation: int, jump_ms: int) -> None:
    """The time that is left is known by the wall clock only. One that was set back must not make it longer than it was at
    first, or nobody reads on for as long."""

    async def tell(scene: Scene) -> None:
        await scene.cluster.client("teller", scene.leave_open(3000))
        scene.cluster.worlds.jump(NODE, jump_ms)
        await scene.restart()
        unstable_s = await scene.cluster.client("judge", scene.unstable_s())
        assert (unstable_s < 1.0) if jump_ms > 0 else (1.0 < unstable_s < 4.0)

    perform(Scene(generation, tell))
