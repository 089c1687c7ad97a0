"""Clusters of other shapes than three equal nodes, and somebody who changes the voters meanwhile (`voters_operator`). Seeds
have names of their own, `v7`, and histories of their own.

The seed chooses the shape: controllers apart from brokers, some of both, five that all vote, or four of which three vote.
What befalls the machines is the same as in `cluster_play`, and more: the leader of the quorum is killed or cut off while it
is asked for a change, or whom the change is about is killed; the cluster falls into two halves. In a quarter of the seeds
controllers that do not vote join by themselves (KIP-1186); in the others a wiped voter stays out until the operator has
replaced it.

`cd tests; python -m sim.voters_play v1 v2 v3` prints how these seeds went; `v7:2,5` leaves all faults of it out but its second
and its fifth.
"""

from __future__ import annotations

import asyncio
import functools
import itertools
import random
import sys
from collections.abc import Collection, Mapping
from typing import Any

from ottla.sim.cluster import Topology
from ottla.sim.disk import SimDisk
from ottla.sim.loop import SimLoop, run
from ottla.sim.voter_checks import WatchOfVoters
from sim.cluster_play import ENDED_WITHIN_S, LIMIT_S, Preparation, perform, print_played
from sim.operators import OperatorNemesis, OperatorPlay
from sim.stage import Story
from sim.voters_operator import VotersOperator

JOIN = "controller.quorum.auto.join.enable"
BROKERS = ("n1", "n2", "n3")
ISOLATED = Topology(BROKERS, ("c1", "c2", "c3"), ("c1", "c2", "c3"))
MIXED = Topology(BROKERS, ("n3", "c1", "c2"), ("n3", "c1", "c2"))
FIVE = Topology.combined((*BROKERS, "n4", "n5"))
FOUR = Topology.combined((*BROKERS, "n4"), votes=3)
TOPOLOGIES = (ISOLATED, MIXED, FIVE, FOUR, FOUR)


def play(
    seed: int | str, rounds: int = 5, only: Collection[int] | None = None, kinds: Collection[str] | None = None
) -> Story:
    """One history, of `v7` for the seed 7."""
    return perform(VotersPlay(seed, rounds, only, kinds))


@functools.cache
def prepared(is_synced: bool, topology: Topology) -> Mapping[str, SimDisk]:
    return run("prepared", VotersPreparation(is_synced, topology).run, limit_s=LIMIT_S)


def prepare_all() -> None:
    for is_synced, topology in itertools.product((False, True), TOPOLOGIES):
        prepared(is_synced, topology)


class VotersPreparation(Preparation):
    watches = WatchOfVoters

    def __init__(self, is_synced: bool, topology: Topology) -> None:
        super().__init__(is_synced, is_dynamic=True)
        self.topology = topology

    def settings(self) -> Mapping[str, str]:
        return {**super().settings(), JOIN: "false"}


class VotersNemesis(OperatorNemesis):
    play: VotersPlay

    def kinds(self) -> dict[str, int]:
        more = {"kill_deciding": 8, "cut_off_deciding": 6, "kill_changing": 6, "halves": 5, "wiped_disk": 6}
        return {**super().kinds(), **more}

    async def wipe(self, name: str, rng: random.Random) -> None:
        """As soon as it may be: until then nothing else is asked for."""
        operator, watch = self.play.operator, self.play.watch
        operator.held += 1
        deadline = self.loop.time() + 4.0
        while self.loop.time() < deadline and (not operator.allows_wipe(name) or watch.not_whole() is not None):
            await asyncio.sleep(0.05)
        if operator.allows_wipe(name):
            await super().wipe(name, rng)
        operator.held -= 1
        if name not in self.play.topology.brokers:
            self.unnoticed = None  # nobody counts on it for records

    async def cut_off_deciding(self, rng: random.Random) -> None:
        """It takes changes that only it knows of, and others lead meanwhile."""
        if (name := self.controller()) is not None:
            self.count("cut off who decides")
            self.play.operator.is_pressed = True
            others = rng.sample(self.others(name), rng.randint(len(self.names) // 2, len(self.names) - 1))
            await self.lasting(rng, [pair for other in others for pair in ((name, other), (other, name))])

    async def kill_changing(self, rng: random.Random) -> None:
        if await self.asking():
            number = rng.choice(self.play.operator.wishes).key.id
            await asyncio.sleep(rng.choice((0.0, 0.001, 0.004, 0.01, 0.03)))
            self.end(self.names[number - 1], None, "kill of who comes or goes")

    async def halves(self, rng: random.Random) -> None:
        self.count("two halves")
        some = rng.sample(self.names, len(self.names) // 2)
        rest = [name for name in self.names if name not in some]
        await self.lasting(rng, [pair for one in some for other in rest for pair in ((one, other), (other, one))])


class VotersPlay(OperatorPlay):
    letter = "v"
    watches = WatchOfVoters
    torments = VotersNemesis
    operates = VotersOperator
    watch: WatchOfVoters

    def __init__(self, seed: int | str, *args: Any) -> None:
        super().__init__(seed, *args)
        chance = random.Random(f"{self.story.seed}/voters")
        self.topology = chance.choice(TOPOLOGIES)
        self.joins = chance.random() < 0.25
        # What groups go through costs much and has plays of its own.
        self.is_dynamic, self.has_groups = True, False

    def settings(self) -> Mapping[str, str]:
        return {**super().settings(), JOIN: "true" if self.joins else "false"}

    def disks(self) -> Mapping[str, SimDisk]:
        return prepared(self.is_synced, self.topology)

    def begin(self, loop: SimLoop, disks: Any) -> None:
        super().begin(loop, disks)
        if self.joins:
            machines = [self.cluster.machines[name] for name in self.topology.controllers]
            self.watch.wanted = frozenset(machine.number for machine in machines)

    async def put_right(self) -> None:
        """Voters whose disks were wiped stay wiped until somebody has replaced them."""
        await self.until(lambda: self.operator.has_ended, ENDED_WITHIN_S, "clients-stuck")

    async def close_books(self) -> None:
        await super().close_books()
        await self.operator.compare()

    def told(self) -> Story:
        story = super().told()
        story.anomalies += self.operator.found
        story.figures["voters changed"] += len(self.watch.turns)
        return story


if __name__ == "__main__":
    print_played(play, sys.argv[1:])
