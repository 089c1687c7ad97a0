"""What befalls a cluster in the midst of a transaction: whoever coordinates it, whoever leads one of its partitions, or both
at once, are killed at a chosen step. Beside that, everything of `cluster_nemesis` that can meet a transaction."""

from __future__ import annotations

import asyncio
import random
from collections.abc import Callable
from itertools import product
from typing import TYPE_CHECKING, Any, cast

from ottla.coordination import commits
from ottla.server.node import Node
from ottla.sim.disk import PowerCut
from ottla.wire.records import look
from sim.cluster_nemesis import Nemesis
from sim.transaction_nemesis import APPENDS, DECIDED, STEPS, watch_appends

if TYPE_CHECKING:
    from sim.cluster_transaction_play import ClusterTransactionPlay

VICTIMS = ("coordinator", "leader", "both")
MOMENTS = list(product(STEPS, VICTIMS))
WAITS_FOR_STEP_S = 3.0
FALLS_WITHIN_S = 0.3


class Trap:
    """Waits on every node that runs now until one of them comes to a step. Later processes have parts of their own."""

    def __init__(self, step: str) -> None:
        self.step = step
        self.caught: str | None = None
        self.places: list[tuple[str, int]] = []
        self.producer_id = -1
        self.on_caught: Callable[[str], None] = lambda _: None

    def lay(self, name: str, node: Node) -> None:
        if self.step == "markers":
            self._before(name, node.markers, "_write")
        elif self.step == "complete":
            self._before(name, node.markers, "_complete")
        elif self.step == "offsets":
            self._before(name, node.groups, "decide", lambda args: args[1] is commits.commit_in_transaction)
        elif self.step in APPENDS:
            watch_appends(node, self.step, lambda data: self._appends(name, data))
        else:
            for way in ("decide", "ask"):
                self._before(name, node.transactions, way, lambda args: args[1] is DECIDED[self.step])

    def _before(self, name: str, owner: Any, method: str, concerns: Callable[..., bool] = lambda _: True) -> None:
        usual = getattr(owner, method)

        async def step_in(*args: Any, **more: Any) -> Any:
            if self.caught is None and concerns(args):
                self.caught = name
                self.places = list(args[1]) if self.step == "markers" else []
                self.on_caught(name)
            return await usual(*args, **more)

        setattr(owner, method, step_in)

    def _appends(self, name: str, data: memoryview) -> None:
        if self.caught is None:
            self.caught, self.producer_id = name, look(data).producer_id
            self.on_caught(name)


class TransactionNemesis(Nemesis):
    def __init__(self, play: ClusterTransactionPlay) -> None:
        super().__init__(cast("Any", play))
        self.wheres = play.wheres
        # Seeds that follow each other begin with one moment after the other, so that a few of them have all.
        self.next = MOMENTS[int(play.story.seed) % len(MOMENTS)]

    def kinds(self) -> dict[str, int]:
        others = (
            "kill",
            "kill_at_call",
            "kill_two",
            "kill_all",
            "power_cut",
            "clean_stop",
            "rolling_restart",
            "cut_off",
        )
        others += ("cut_off_from_peers", "one_way", "partial", "slow_link", "reset", "stall", "pause", "slow_disk")
        usual = super().kinds()
        return {"kill_at_step": 30, **{kind: usual[kind] for kind in others}}

    async def kill_at_step(self, rng: random.Random) -> None:
        """The one who is at this step falls right before what it does is written, or a few disk calls later; the other one
        when it may have heard of it, or not. A leader that appends falls at once: before its append, or after the write."""
        (step, victims), self.next = self.next, rng.choice(MOMENTS)
        trap, calls, pause_s = Trap(step), rng.randint(1, 4), rng.choice((0.0, 0.002, 0.01))
        first, second = ("leader", "coordinator") if step in APPENDS else ("coordinator", "leader")
        if victims != second:
            trap.on_caught = self.falls_at_once if step in APPENDS else lambda name: self.fell(name, calls)
        for name, machine in self.cluster.machines.items():
            if machine.is_ready and machine.node is not None:
                trap.lay(name, machine.node)
        deadline = self.loop.time() + WAITS_FOR_STEP_S
        while trap.caught is None and self.loop.time() < deadline:
            await asyncio.sleep(0.001)
        if trap.caught is None:
            trap.caught = ""  # too late for whoever comes now
            return
        self.loop.note("at step", step, victims, trap.caught)
        self.count(f"{step}: {victims}")
        if victims != first:
            await asyncio.sleep(pause_s)
            other = self.coordinator(trap) if second == "coordinator" else self.leader(rng, trap)
            self.end(other, None, f"kill of a {second}")
        if victims != second:
            await self.has_fallen(trap.caught)

    def falls_at_once(self, name: str) -> None:
        if self.may_end(name):
            self.cluster.kill(name)
            raise PowerCut

    def fell(self, name: str, calls: int) -> None:
        if self.may_end(name):
            self.cluster.kill_at_call(name, calls)

    async def has_fallen(self, name: str) -> None:
        """If it has nothing to do with its disk, a little later."""
        life = self.loop.node(name)
        deadline = self.loop.time() + FALLS_WITHIN_S
        while life.alive and self.loop.time() < deadline:
            await asyncio.sleep(0.01)
        if life.alive and life is self.loop.node(name):
            self.end(name, None, "kill")

    def leader(self, rng: random.Random, trap: Trap) -> str:
        """Of a partition that waits for its marker, or of some; not the one that was caught, if there is another."""
        found = sorted(name for name in self.leaders(trap.places or list(self.wheres)) if name != trap.caught)
        return rng.choice(found or self.others(trap.caught or ""))

    def coordinator(self, trap: Trap) -> str:
        """Of the transaction whose batch was caught. It may be the one that was caught."""
        for name, machine in self.cluster.machines.items():
            shards = machine.node.transactions.all() if machine.is_ready and machine.node is not None else []
            machines = [shard.machine for shard in shards if shard.machine is not None]
            if any(trap.producer_id == each.producer_id for one in machines for each in one.state.by_id.values()):
                return name
        return trap.caught or ""

    def leaders(self, places: list[tuple[str, int]]) -> set[str]:
        images = [m.node.quorum.image for m in self.cluster.machines.values() if m.is_ready and m.node is not None]
        found = set()
        for image, (topic, index) in ((image, place) for image in images for place in places):
            known = image.topic(topic)
            if known is not None and index in known.partitions and known.partitions[index].leader > 0:
                found.add(self.names[known.partitions[index].leader - 1])
        return found

    def some_leader(self, rng: random.Random) -> str | None:
        found = sorted(self.leaders(list(self.wheres)))
        return rng.choice(found) if found else None
