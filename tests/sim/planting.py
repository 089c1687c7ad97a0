"""Mistakes that are planted on purpose into a cluster, so that its simulation can show that it notices them."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

import pytest

from sim.cluster_play import prepare_all
from sim.many_seeds import Play, caught

Plant = Callable[[pytest.MonkeyPatch], None]
Kinds = tuple[str, ...] | None
SEEDS_MAX = 25


class Planting:
    """Collects mistakes by their names: `directed` has the kinds of faults with which each shows soonest, None for any."""

    def __init__(self, prepare: Callable[[], None] = prepare_all) -> None:
        self.prepare = prepare
        self.plants: dict[str, Plant] = {}
        self.directed: dict[str, Kinds] = {}

    def __call__(self, *kinds: str) -> Callable[[Plant], Plant]:
        def enter(plant: Plant) -> Plant:
            self.plants[plant.__name__] = plant
            self.directed[plant.__name__] = kinds or None
            return plant

        return enter

    def assert_noticed(
        self, name: str, seed: int, play: Callable[..., object], rounds: int, patch: pytest.MonkeyPatch
    ) -> None:
        """What a seed shows may change with the code; the next ones are as likely to show it as this one was."""
        self.prepare()  # by nodes that make no mistakes
        self.plants[name](patch)
        directed: Play = partial(play, kinds=self.directed[name])  # type: ignore[assignment]
        assert any(caught(directed, each, rounds) for each in range(seed, seed + SEEDS_MAX)), f"{name} went unnoticed"
