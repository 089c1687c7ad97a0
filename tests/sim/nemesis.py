"""What befalls the node: ends of its process, of its power, of its disk; the network and the clock."""

from __future__ import annotations

import asyncio
import random
from collections.abc import Awaitable, Callable
from typing import TYPE_CHECKING

from ottla.sim.disk import UNLIMITED, Loss
from sim.topics import NODE, PLAIN, SAFE, SHORT

if TYPE_CHECKING:
    from sim.one_node import Play


class Nemesis:
    """One misfortune after the other, some of them overlapping; at the end everything is put right."""

    def __init__(self, play: Play) -> None:
        self.play = play
        self.cluster, self.loop, self.machine = play.cluster, play.loop, play.machine
        self.rng: random.Random = play.loop.chance("nemesis")
        self.faults = play.story.faults

    def kinds(self) -> list[Callable[[], Awaitable[None]]]:
        return [
            *(self.kill, self.kill, self.kill, self.kill_at_call, self.kill_at_call, self.kill_at_call),
            *(self.power_cut_in_retention, self.power_cut_in_retention),
            *(self.clean_restart, self.reset, self.stall, self.pause_node, self.pause_client, self.clock),
            *(self.lost_answers, self.slow_disk, self.full_disk, self.sync_error, self.metadata_sync_error),
        ]

    async def run(self) -> None:
        kinds = self.kinds()
        for _ in range(self.play.rounds):
            await asyncio.sleep(self.rng.expovariate(1 / 0.4))
            kind = self.rng.choice(kinds)
            await kind()
            if not self.cluster.is_up(NODE):
                await self.restart()
        await self.put_right()

    def count(self, kind: str) -> None:
        self.faults[kind] += 1
        self.loop.note("fault", kind)

    def loss(self) -> Loss | None:
        return self.rng.choice((None, None, Loss.LOST, Loss.SUBSET, Loss.TORN, Loss.TORN))

    async def restart(self) -> None:
        """Boot until it serves. It may be killed while it starts; without a fault of the disk it must start."""
        while True:
            await asyncio.sleep(self.rng.choice((0.0, 0.05, 0.5)))
            self.cluster.boot(NODE)
            if self.rng.random() < 0.2:
                loss = self.loss()
                self.count(f"kill while starting, {_text(loss)}")
                self.cluster.kill_at_call(NODE, self.rng.randint(1, 60), loss)
            if await self.play.until_ready():
                self.machine.disk.stop_at = None
                return
            if self.machine.exit is not None:
                self.play.history.report("will-not-start", NODE, repr(self.machine.exit))
                return

    # -- ends of the process

    async def kill(self) -> None:
        loss = self.loss()
        self.count(f"kill, {_text(loss)}")
        self.cluster.kill(NODE, loss)

    async def kill_at_call(self) -> None:
        """In the middle of a step of the loop; if the node has nothing to do with its disk, a little later."""
        loss = self.loss()
        self.count(f"kill at a disk call, {_text(loss)}")
        self.cluster.kill_at_call(NODE, self.rng.randint(1, 40), loss)
        for _ in range(100):
            if not self.cluster.is_up(NODE):
                return
            await asyncio.sleep(0.02)
        self.cluster.kill(NODE, loss)

    async def power_cut_in_retention(self) -> None:
        """Old files have just got other names, and nobody has synced that: any of the names may be the old one again."""
        assert self.machine.node is not None
        hosted = self.machine.node.replicas.hosted(SHORT.topic)
        log = hosted.partitions[SHORT.partition].log if hosted else None
        before = log.segments[0] if log else None
        self.machine.disk.latency_s, usual = 0.02, self.machine.disk.latency_s
        for _ in range(1500):
            if log is None or not self.cluster.is_up(NODE) or log.segments[0] is not before:
                break
            await asyncio.sleep(0.001)
        self.machine.disk.latency_s = usual
        self.count("power cut in retention")
        self.cluster.kill(NODE, self.rng.choice((Loss.SUBSET, Loss.SUBSET, Loss.TORN)))

    async def clean_restart(self) -> None:
        self.count("clean stop")
        self.machine.tell_to_stop()
        while self.cluster.is_up(NODE):
            await asyncio.sleep(0.01)
        if self.rng.random() < 0.5:
            self.count("power cut after a clean stop")
            self.cluster.cut_power(NODE, self.rng.choice(list(Loss)))

    # -- network and time

    def somebody(self) -> str:
        return self.rng.choice(("safe", "plain", "reader", "admin"))

    async def reset(self) -> None:
        self.count("connection reset")
        self.loop.network.reset(NODE, self.somebody())

    async def stall(self) -> None:
        self.count("stall")
        ends = [NODE, self.somebody()]
        self.rng.shuffle(ends)
        self.loop.network.stall(*ends, self.rng.uniform(0.05, 2.0))

    async def lost_answers(self) -> None:
        """Requests arrive, their answers do not; by the time they are repeated the node's clock is wrong."""
        self.count("answers lost, clock set back")
        name = self.rng.choice(("safe", "plain"))
        self.loop.network.cut(NODE, name)
        await asyncio.sleep(self.rng.uniform(0.1, 0.5))
        self.cluster.worlds.jump(NODE, -7_200_000)
        self.loop.network.reset(NODE, name)
        self.loop.network.heal(NODE, name)
        await asyncio.sleep(self.rng.uniform(0.1, 0.5))
        self.cluster.worlds.jump(NODE, 7_200_000)

    async def pause_node(self) -> None:
        self.count("node paused")
        self.loop.pause(NODE)
        await asyncio.sleep(self.rng.uniform(0.1, 3.0))
        self.loop.resume(NODE)

    async def pause_client(self) -> None:
        self.count("client paused")
        name = self.somebody()
        self.loop.pause(name)
        await asyncio.sleep(self.rng.uniform(0.1, 1.0))
        self.loop.resume(name)

    async def clock(self) -> None:
        self.count("clock jump")
        self.cluster.worlds.jump(NODE, self.rng.choice((-7_200_000, -3_600_000, -1000, 1000, 3_600_000)))

    # -- the disk

    async def slow_disk(self) -> None:
        self.count("slow disk")
        disk, before = self.machine.disk, self.machine.disk.latency_s
        disk.latency_s = self.rng.choice((0.05, 0.5))
        await asyncio.sleep(self.rng.uniform(0.2, 2.0))
        disk.latency_s = before
        if self.rng.random() < 0.4:
            await self.kill()

    async def full_disk(self) -> None:
        self.count("full disk")
        disk = self.machine.disk
        disk.capacity = disk.used + self.rng.choice((0, 100, 2000, 20_000))
        await asyncio.sleep(self.rng.uniform(0.2, 1.5))
        disk.capacity = UNLIMITED
        if self.rng.random() < 0.4:
            await self.kill()

    async def sync_error(self) -> None:
        """The partition refuses from then on; the node goes on, and only a restart brings the partition back."""
        self.count("fsync error of a log")
        disk, where = self.machine.disk, self.rng.choice((*SAFE, PLAIN, SHORT))
        disk.failing_syncs = lambda path: f"/{where.topic}-{where.partition}/" in path
        await asyncio.sleep(self.rng.uniform(0.2, 1.5))
        disk.failing_syncs = None
        if not self.cluster.is_up(NODE):
            self.play.history.report("fsync-error-spreads", NODE, f"the node ended: {self.machine.exit!r}")
        await self.kill()

    async def metadata_sync_error(self) -> None:
        """The node must end."""
        disk = self.machine.disk
        failed = False

        def fails(path: str) -> bool:
            nonlocal failed
            hit = "/__cluster_metadata-0/" in path and path.endswith(".log")
            failed |= hit
            return hit

        disk.failing_syncs = fails
        await asyncio.sleep(self.rng.uniform(0.2, 1.5))
        disk.failing_syncs = None
        await asyncio.sleep(0.5)
        if failed:
            self.count("fsync error of the metadata log")
            if self.cluster.is_up(NODE):
                self.play.history.report("fsync-error-ignored", NODE, "the metadata log failed, and the node goes on")
                await self.kill()

    async def put_right(self) -> None:
        """No more faults; a partition whose disk failed needs a new process."""
        self.loop.network.heal_all()
        self.cluster.worlds.jump(NODE, -(self.cluster.worlds.now_ms(NODE) - self.cluster.worlds.now_ms("judge")))
        self.machine.disk.capacity, self.machine.disk.failing_syncs = UNLIMITED, None
        self.machine.disk.stop_at = None
        if not self.cluster.is_up(NODE):
            await self.restart()
        assert self.machine.node is not None
        if any(partition.log.failed for partition in self.machine.node.replicas.all()):
            self.cluster.kill(NODE)
            self.cluster.boot(NODE)
            await self.play.until_ready()


def _text(loss: Loss | None) -> str:
    return "nothing lost" if loss is None else f"power {loss.value}"
