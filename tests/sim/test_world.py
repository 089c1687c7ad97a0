"""The surroundings of simulated nodes."""

import asyncio
from typing import Any

from ottla.sim.loop import SimLoop, run
from ottla.sim.world import BASE_MS, Worlds
from ottla.world import RealDisk


def test_wall_clocks_follow_virtual_time_and_jump_each_for_itself():
    async def main(loop: SimLoop) -> list[int]:
        worlds, disk = Worlds(loop), RealDisk()
        one, two = worlds.of("b0", disk), worlds.of("b1", disk)
        await asyncio.sleep(1.5)
        worlds.jump("b0", -3_600_000)
        return [one.now_ms() - BASE_MS, two.now_ms() - BASE_MS]

    assert run(1, main) == [1500 - 3_600_000, 1500]


def test_chance_is_seeded_per_node_and_incarnation():
    async def main(loop: SimLoop) -> list[float]:
        worlds, disk = Worlds(loop), RealDisk()
        draws = [worlds.of(name, disk).random.random() for name in ("b0", "b0", "b1")]
        await loop.boot("b0", asyncio.sleep(1))
        return [*draws, worlds.of("b0", disk).random.random()]

    first, again, other_node, other_life = run(1, main)
    assert first == again and len({first, other_node, other_life}) == 3
    assert run(1, main)[0] == first != run(2, main)[0]


def test_work_is_a_step_that_a_dead_node_never_sees_the_end_of():
    async def main(loop: SimLoop) -> list[Any]:
        done: list[Any] = []

        async def node(name: str) -> None:
            world = Worlds(loop).of(name, RealDisk())
            done.append((name, await world.workshop.work(sum, [1, 2, 3])))

        loop.boot("b0", node("b0"))
        loop.boot("b1", node("b1"))
        await asyncio.sleep(0.0001)
        loop.kill("b1")
        await asyncio.sleep(10)
        return done

    assert run(1, main) == [("b0", 6)]
