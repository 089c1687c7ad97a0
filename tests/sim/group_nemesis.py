"""What befalls the node and the members of its groups."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import TYPE_CHECKING, Any, cast

from ottla.metadata.topics import CONSUMER_OFFSETS
from ottla.sim.disk import Loss
from sim.nemesis import Nemesis
from sim.topics import NODE

if TYPE_CHECKING:
    from sim.group_play import GroupPlay


class GroupNemesis(Nemesis):
    def __init__(self, play: GroupPlay) -> None:
        super().__init__(cast("Any", play))
        self.group_play = play

    def kinds(self) -> list[Callable[[], Awaitable[None]]]:
        """A little of everything, or one theme: some mistakes need the same misfortune again and again."""
        node = [self.kill, self.kill, self.kill_at_call, self.kill_at_call, self.clean_restart, self.disappear_together]
        network = [self.reset, self.stall, self.cut_off, self.slow_member, self.pause_node, self.pause_client]
        disk = [self.full_disk, self.full_disk, self.slow_disk, self.sync_error]
        everything = [*node, *network, *disk, self.clock]
        return self.rng.choice((everything, everything, [*disk, self.full_disk, self.kill], [*network, self.kill]))

    def loss(self) -> Loss | None:
        return super().loss() if self.group_play.may_lose_power else None

    def somebody(self) -> str:
        return self.rng.choice(
            [seat.name for seat in self.group_play.seats if self.loop.known(seat.name)] or ["writer"]
        )

    async def clean_restart(self) -> None:
        self.count("clean stop")
        self.machine.tell_to_stop()
        while self.cluster.is_up(NODE):
            await asyncio.sleep(0.01)

    async def pause_client(self) -> None:
        """For longer than its session, perhaps: it does not know then that others have its partitions."""
        self.count("client paused")
        name = self.somebody()
        if self.loop.alive(name):
            self.loop.pause(name)
            await asyncio.sleep(self.rng.uniform(0.1, 5.0))
            if self.loop.alive(name):
                self.loop.resume(name)

    async def cut_off(self) -> None:
        """Nothing of what a member says arrives, or nothing of what it is told."""
        self.count("member cut off")
        ends = [NODE, self.somebody()]
        self.rng.shuffle(ends)
        self.loop.network.stall(*ends, self.rng.uniform(1.0, 6.0))

    async def slow_member(self) -> None:
        """To the end of the faults: what others do comes between its join and its sync."""
        self.count("member slow")
        ends = [NODE, self.somebody()]
        self.rng.shuffle(ends)
        self.loop.network.slow(*ends, self.rng.uniform(0.05, 0.5))

    async def disappear_together(self) -> None:
        """The node dies, and while it is away so do members: nobody but the next process can notice that."""
        self.count("node and members die")
        self.cluster.kill(NODE, self.loss())
        for seat in self.group_play.seats:
            if seat.is_up and self.rng.random() < 0.4:
                seat.fall()

    async def sync_error(self) -> None:
        """Of a partition of the offsets. It refuses from then on, and only a restart brings it back."""
        self.count("fsync error of the offsets")
        where = f"/{CONSUMER_OFFSETS}-{self.rng.randrange(2)}/"
        disk = self.machine.disk
        disk.failing_syncs = lambda path: where in path
        await asyncio.sleep(self.rng.uniform(0.2, 1.5))
        disk.failing_syncs = None
        if not self.cluster.is_up(NODE):
            self.play.history.report("fsync-error-spreads", NODE, f"the node ended: {self.machine.exit!r}")
        await self.kill()
