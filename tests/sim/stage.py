"""What every history of one node has: the seed, the machine, the story that is told of it, and clients that may connect.

A play is a `Stage` with those who act on it. `perform` runs one from its seed; run as a program, a play prints how its seeds
went (`print_stories`).
"""

from __future__ import annotations

import asyncio
import logging
from collections import Counter
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field

from ottla.client.cluster import Cluster
from ottla.sim.checks import Anomaly, History
from ottla.sim.cluster import Machine, SimCluster
from ottla.sim.loop import SimLoop, run
from sim.topics import LIMIT_S, NODE, PATIENCE_S


@dataclass
class Story:
    """How one seed went: the anomalies, which are to be none, and figures."""

    seed: int | str
    trace: str = ""
    anomalies: list[Anomaly] = field(default_factory=list)
    faults: Counter[str] = field(default_factory=Counter)
    figures: Counter[str] = field(default_factory=Counter)
    simulated_s: float = 0.0
    restarts: int = 0


class Stage:
    """One unmodified node. Whoever plays on it gives `run` and `anomalies`."""

    def __init__(self, seed: int | str, rounds: int) -> None:
        self.story = Story(seed)
        self.rounds = rounds
        self.history = History()
        self.finishing = self.finished = False

    async def run(self, loop: SimLoop) -> Story:
        raise NotImplementedError

    def set_up(self, loop: SimLoop, settings: Mapping[str, str]) -> None:
        self.loop = loop
        self.cluster = SimCluster(loop)
        self.cluster.on_ready, self.cluster.on_fall = self.note_ready, self.note_fall
        self.machine = self.cluster.add(NODE, settings)

    def note_fall(self, machine: Machine) -> None:
        """The process ends now, or the power goes; the node is still there to be looked at."""

    def note_ready(self, machine: Machine) -> None:
        self.story.restarts += 1

    async def until_ready(self) -> bool:
        """Wait for the process to serve, or to end."""
        while self.cluster.is_up(NODE) and not self.machine.is_ready:
            await asyncio.sleep(0.01)
        return self.machine.is_ready

    def connect(self, name: str, *more: object) -> Cluster:
        """It connects when something is asked, so that it may begin while there is no node."""
        return Cluster(
            self.cluster.bootstrap,
            client_id=name,
            budget_s=PATIENCE_S,
            now_ms=lambda: self.cluster.worlds.now_ms(name),
            rng=self.loop.chance("client", name, *more),
        )

    def tell(self, *others: list[Anomaly], **figures: int) -> Story:
        story = self.story
        story.anomalies = [*self.history.anomalies, *(anomaly for found in others for anomaly in found)]
        story.figures.update(figures)
        story.simulated_s, story.trace = self.loop.time(), self.loop.trace()
        return story


class Calls:
    """Boots the node again whenever it is down, and counts the disk calls of its first process."""

    def __init__(self, stage: Stage) -> None:
        self.stage, self.first = stage, stage.machine.disk
        self.count = 0

    def look(self) -> None:
        self.count = max(self.count, self.first.calls)
        if not self.stage.cluster.is_up(NODE):
            self.stage.cluster.boot(NODE)

    async def keep_looking(self) -> None:
        while True:
            await asyncio.sleep(0.01)
            self.look()


def perform(stage: Stage, limit_s: float = LIMIT_S) -> Story:
    """One history. Whatever nobody caught, and a node that never gets well again, are raised as errors."""
    return run(stage.story.seed, stage.run, limit_s=limit_s)


def print_stories(play: Callable[[str], Story], seeds: list[str]) -> None:
    logging.disable(logging.CRITICAL)
    for seed in seeds:
        story = play(seed)
        print(seed, story.trace, sorted(story.figures.items()), story.restarts, sorted(story.faults.items()))
        for anomaly in story.anomalies:
            print("   ", *anomaly)
