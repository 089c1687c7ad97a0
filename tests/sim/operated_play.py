"""Three unmodified nodes as in `cluster_play`, and somebody who moves replicas, elects leaders, changes settings and widens
topics meanwhile (`cluster_operator`). Seeds have names of their own, `m7`, and histories of their own.

What befalls the machines is the same, and three more things: the active controller is killed while the operator waits for its
answer; of a partition that is on its way somebody is killed who comes, goes, leads, or two of them.

`cd tests; python -m sim.operated_play m1 m2 m3` prints how these seeds went; `m7:2,5` leaves all faults of it out but its
second and its fifth.
"""

from __future__ import annotations

import asyncio
import random
import sys
from collections.abc import Collection

from ottla.metadata.image import Partition
from ottla.metadata.reassignments import under_way
from ottla.sim.cluster_checks import WatchOfMoves
from ottla.sim.disk import Loss
from sim.cluster_operator import Operator
from sim.cluster_play import ENDED_WITHIN_S, perform, print_played
from sim.operators import OperatorNemesis, OperatorPlay
from sim.stage import Story


def play(
    seed: int | str, rounds: int = 5, only: Collection[int] | None = None, kinds: Collection[str] | None = None
) -> Story:
    """One history, of `m7` for the seed 7."""
    return perform(Operated(seed, rounds, only, kinds))


class OperatedNemesis(OperatorNemesis):
    def kinds(self) -> dict[str, int]:
        return {**super().kinds(), "kill_deciding": 6, "kill_moving": 6, "cut_off_moving": 3}

    def loss(self, rng: random.Random, name: str) -> Loss | None:
        """A power cut that comes later, at some disk call, may hit the only one who has a record by then: a move from two
        replicas to another two is over when who came is in sync, and who stays may be behind."""
        return super().loss(rng, name) if self.play.is_synced else None

    async def moving(self, rng: random.Random) -> Partition | None:
        """A partition that is on its way, as soon as there is one."""
        for _ in range(300):
            for image in self.pictures():
                parts = [part for topic in under_way(image, None).values() for part in topic.values()]
                if parts:
                    return rng.choice(parts)
            await asyncio.sleep(0.005)
        return None

    async def kill_moving(self, rng: random.Random) -> None:
        if (partition := await self.moving(rng)) is not None:
            concerned = [*partition.adding, *partition.removing, partition.leader]
            names = sorted({self.names[node - 1] for node in concerned if node > 0})
            for name in rng.sample(names, min(len(names), rng.choice((1, 1, 2)))):
                self.end(name, None, "kill of who moves")

    async def cut_off_moving(self, rng: random.Random) -> None:
        if (partition := await self.moving(rng)) is not None:
            self.count("cut off who moves")
            name = self.names[rng.choice([*partition.adding, *partition.removing]) - 1]
            await self.lasting(rng, [pair for other in self.others(name) for pair in ((name, other), (other, name))])


class Operated(OperatorPlay):
    letter = "m"
    watches = WatchOfMoves
    torments = OperatedNemesis
    operates = Operator
    watch: WatchOfMoves

    async def put_right(self) -> None:
        """As long as replicas are held back, nobody gets in sync."""
        await self.until(lambda: self.operator.has_lifted, ENDED_WITHIN_S, "clients-stuck")

    async def close_books(self) -> None:
        await super().close_books()
        await self.everybody_knows()
        with self.client("judge") as cluster:
            await self.operator.compare(cluster)

    def told(self) -> Story:
        story = super().told()
        story.anomalies += self.operator.wishes.found
        return story


if __name__ == "__main__":
    print_played(play, sys.argv[1:])
