"""What befalls the machines of a cluster. It is planned from the seed before anything happens: a fault that is left out
changes nothing about the others but what follows from it. Whom a fault hits is decided when it comes, by dice of its
own: somebody, the active controller, or the leader of some partition.

No fault asks for more than can be promised. Where records are not synced before they are acknowledged, a machine that
lost its power or its disk is *weak* until all replicas are in sync again, and as long as one is weak no process of
another is killed: if all replicas die without a farewell, nobody can tell which of them has lost something. A disk is
wiped only in a cluster that is whole, because with fixed voters a voter that forgets its vote is nothing that the others
can know.

A wiped disk takes synced records too. As long as the controllers have not noticed that its process is gone, it leads and
is in sync in the metadata. If all others die without a farewell meanwhile, each of them is put out of the in-sync set when
it comes back, and the one that has nothing any more is left in it, as the last known leader that everybody waits for (seed
8300752; the controller of Apache Kafka 4.3 decides the same). So until it is noticed no process of another is killed,
synced or not; from then on the last one known is somebody who has everything.
"""

from __future__ import annotations

import asyncio
import random
from collections.abc import Awaitable, Callable, Collection, Iterator, Mapping
from typing import TYPE_CHECKING, NamedTuple

from ottla.metadata.image import Image
from ottla.replication.partition import Partition
from ottla.sim.disk import UNLIMITED, Loss

if TYPE_CHECKING:
    from sim.cluster_play import Play

DISK_FAULTS = ("could not sync", "no space left")
CLIENTS = ("w1", "w2", "reader", "classic0", "consumer0")
HOUR_MS = 3_600_000

Deed = Callable[[random.Random], Awaitable[None]]


class Fault(NamedTuple):
    number: int
    at_s: float
    kind: str


def planned(
    rng: random.Random,
    rounds: int,
    weights: Mapping[str, int],
    only: Collection[int] | None,
    kinds: Collection[str] | None,
) -> list[Fault]:
    chosen = {kind: weight for kind, weight in weights.items() if kinds is None or kind in kinds}
    odds = list(chosen.values()) if any(chosen.values()) else None
    plan, now = [], 0.0
    for number in range(1, rounds + 1):
        now += rng.expovariate(1 / 1.1)
        plan.append(Fault(number, now, rng.choices(list(chosen), odds)[0]))
    return [fault for fault in plan if only is None or fault.number in only]


class Keeper:
    """Starts again whatever has ended, after a while."""

    def __init__(self, play: Play) -> None:
        self.play, self.cluster = play, play.cluster
        self.rng = play.loop.chance("keeper")
        self.held: set[str] = set()

    def all_ready(self) -> bool:
        return all(machine.is_ready for machine in self.cluster.machines.values())

    async def run(self) -> None:
        due: dict[str, float] = {}
        now = self.cluster.loop.time
        for name in self.cluster.machines:
            due[name] = self.rng.random() * 0.1
        while True:
            for name, machine in self.cluster.machines.items():
                if self.cluster.is_up(name) or name in self.held:
                    due.pop(name, None)
                    continue
                if name not in due:
                    due[name] = now() + self.rng.choice((0.0, 0.05, 0.5, 2.5))
                    self.judge(name, machine.exit)
                if now() >= due[name]:
                    self.cluster.boot(name)
            await asyncio.sleep(0.02)

    def judge(self, name: str, why: BaseException | None) -> None:
        """A process may end by itself only because of its disk."""
        if why is not None and not any(text in str(why) for text in DISK_FAULTS):
            self.play.history.report("will-not-run", name, repr(why))


class Nemesis:
    """Faults overlap; at the end everything is put right."""

    def __init__(self, play: Play) -> None:
        self.play, self.keeper, self.watch = play, play.keeper, play.watch
        self.cluster, self.loop, self.network = play.cluster, play.loop, play.loop.network
        self.names = list(play.cluster.machines)
        self.faults = play.story.faults
        self.weak: dict[str, int] = {}  # and which of its processes was, or will be, the last one to know everything
        # Whose disk was wiped, and the end of the metadata at that time, until the controllers have noticed.
        self.unnoticed: tuple[str, int] | None = None

    def kinds(self) -> dict[str, int]:
        """All of them, and how often each comes in comparison."""
        return {
            "kill": 3,
            "kill_at_call": 3,
            "kill_two": 2,
            "kill_all": 1,
            "kill_in_election": 2,
            "power_cut": 3,
            "power_cut_of_all": 2 if self.play.is_synced else 0,
            "wiped_disk": 2,
            "clean_stop": 2,
            "rolling_restart": 1,
            "cut_off": 3,
            "cut_off_from_peers": 3,
            "one_way": 3,
            "partial": 3,
            "flapping": 1,
            "slow_link": 2,
            "reset": 2,
            "stall": 2,
            "cut_off_client": 1,
            "pause": 3,
            "clock": 1,
            "slow_disk": 2,
            "full_disk": 1,
            "sync_error": 1,
            "metadata_sync_error": 1,
            "kill_as_it_shrinks": 0,  # where a mistake asks for it
        }

    async def run(self, plan: list[Fault]) -> None:
        began, tasks = self.loop.time(), []
        for fault in plan:
            await asyncio.sleep(max(0.0, began + fault.at_s - self.loop.time()))
            self.loop.note("fault", fault.number, fault.kind)
            deed: Deed = getattr(self, fault.kind)
            tasks.append(self.loop.create_task(deed(self.loop.chance("fault", fault.number))))
        for task in tasks:
            await task
        await asyncio.sleep(self.loop.chance("pause").random())
        self.put_right()

    def count(self, kind: str) -> None:
        self.faults[kind] += 1

    def put_right(self) -> None:
        self.network.heal_all()
        for name, machine in self.cluster.machines.items():
            self.cluster.worlds.jump(name, self.cluster.worlds.now_ms("judge") - self.cluster.worlds.now_ms(name))
            machine.disk.capacity, machine.disk.failing_syncs, machine.disk.stop_at = UNLIMITED, None, None
            if self.cluster.is_up(name) and self.has_failed_logs(name):
                self.cluster.kill(name)

    def has_failed_logs(self, name: str) -> bool:
        """A log whose disk failed takes nothing any more until its process has ended."""
        node = self.cluster.machines[name].node
        return node is not None and (
            any(partition.log.failed for partition in node.replicas.all()) or bool(node.replicas.homeless)
        )

    # -- who

    def somebody(self, rng: random.Random) -> str:
        """Often one of those on whom others depend."""
        choice = rng.random()
        if choice < 0.35:
            return self.controller() or rng.choice(self.names)
        if choice < 0.6:
            return self.some_leader(rng) or rng.choice(self.names)
        return rng.choice(self.names)

    def controller(self) -> str | None:
        for name, machine in self.cluster.machines.items():
            if machine.is_ready and machine.node is not None and machine.node.quorum.leads:
                return name
        return None

    def some_leader(self, rng: random.Random) -> str | None:
        topics = [topic for image in self.pictures() for topic in image.topics.values() if topic.name == "safe"]
        leaders = sorted({p.leader for topic in topics for p in topic.partitions.values() if p.leader > 0})
        return self.names[rng.choice(leaders) - 1] if leaders else None

    def pictures(self) -> list[Image]:
        """The cluster, as each that serves sees it."""
        return [m.node.quorum.image for m in self.cluster.machines.values() if m.is_ready and m.node is not None]

    def others(self, name: str) -> list[str]:
        return [other for other in self.names if other != name]

    # -- ends of processes

    def may_lose(self, name: str) -> bool:
        """Whether a machine may lose now what it has not synced."""
        if self.play.is_synced:
            return True
        if self.is_anybody_weak() or self.watch.not_whole() is not None:
            return False
        self.weaken(name)
        return True

    def weaken(self, name: str) -> None:
        self.weak = {name: self.loop.node(name).incarnation}

    def is_anybody_weak(self) -> bool:
        lives = [(self.loop.node(name).incarnation, life) for name, life in self.weak.items()]
        if all(now > then for now, then in lives) and self.watch.not_whole() is None:
            self.weak.clear()
        return bool(self.weak)

    def may_end(self, name: str) -> bool:
        """Whether a process may end now without a farewell."""
        return name in self.weak or not (self.is_loss_unnoticed() if self.play.is_synced else self.is_anybody_weak())

    def is_loss_unnoticed(self) -> bool:
        """Whether the controllers still count on a disk that was wiped: its last process is not fenced, and no other one has
        registered. The epoch of a broker is the place of its registration in the metadata."""
        if self.unnoticed is not None:
            name, offset = self.unnoticed
            number = self.names.index(name) + 1
            brokers = [image.broker(number) for image in self.pictures() if image.offset > offset]
            if any(broker is not None and (broker.fenced or broker.epoch > offset) for broker in brokers):
                self.unnoticed = None
        return self.unnoticed is not None

    def loss(self, rng: random.Random, name: str) -> Loss | None:
        if rng.random() < 0.5 or not self.may_lose(name):
            return None
        return rng.choice((Loss.LOST, Loss.SUBSET, Loss.TORN))

    def end(self, name: str, loss: Loss | None, kind: str) -> None:
        if self.cluster.is_up(name) and self.may_end(name):
            self.count(f"{kind}, {_text(loss)}")
            self.cluster.kill(name, loss)

    async def kill(self, rng: random.Random) -> None:
        self.end(self.somebody(rng), None, "kill")

    async def kill_at_call(self, rng: random.Random) -> None:
        """In the middle of a step of the loop."""
        name = self.somebody(rng)
        loss = self.loss(rng, name)
        if not self.cluster.is_up(name) or not self.may_end(name):
            return
        self.count(f"kill at a disk call, {_text(loss)}")
        life = self.loop.node(name)
        self.cluster.kill_at_call(name, rng.randint(1, 40), loss)
        for _ in range(50):
            if not life.alive:
                return
            await asyncio.sleep(0.02)
        self.cluster.kill(name, loss)

    async def kill_two(self, rng: random.Random) -> None:
        for name in rng.sample(self.names, 2):
            self.end(name, None, "kill of two")
            await asyncio.sleep(rng.choice((0.0, 0.0, 0.1, 0.8)))

    async def kill_all(self, rng: random.Random) -> None:
        for name in rng.sample(self.names, len(self.names)):
            self.end(name, None, "kill of all")
            await asyncio.sleep(rng.choice((0.0, 0.0, 0.05)))

    async def kill_in_election(self, rng: random.Random) -> None:
        """The active controller falls, and when somebody stands for election, so do those who vote: what they promised must
        not be forgotten."""
        before = max((epoch for _, epoch in self.epochs()), default=0)
        self.end(self.controller() or self.somebody(rng), None, "kill")
        for _ in range(600):
            await asyncio.sleep(0.002)
            risen = [name for name, epoch in self.epochs() if epoch > before]
            if risen:
                for name in rng.sample(risen, len(risen)):
                    self.end(name, None, "kill in an election")
                return

    async def kill_as_it_shrinks(self, rng: random.Random) -> None:
        """The leader of something falls, and when a log gets shorter behind the next one, so does that: who let go of records
        may lead now."""
        self.end(self.some_leader(rng) or self.somebody(rng), None, "kill")
        ends: dict[Partition, int] = {}
        for _ in range(1000):
            await asyncio.sleep(0.001)
            for partition in self.replicas():
                end = partition.log.end_offset
                if end < ends.get(partition, 0) and partition.leader > 0:
                    self.end(self.names[partition.leader - 1], None, "kill as a log shrinks")
                    return
                ends[partition] = end

    def replicas(self) -> Iterator[Partition]:
        """All that there are in processes that run."""
        for name, machine in self.cluster.machines.items():
            if self.cluster.is_up(name) and machine.node is not None:
                yield from machine.node.replicas.all()

    def epochs(self) -> list[tuple[str, int]]:
        """The epoch of the quorum, as each that runs sees it."""
        nodes = [(name, m.node) for name, m in self.cluster.machines.items() if self.cluster.is_up(name)]
        return [(name, node.quorum.epoch) for name, node in nodes if node is not None]

    async def power_cut(self, rng: random.Random) -> None:
        name = self.somebody(rng)
        if self.may_lose(name):
            self.end(name, rng.choice(list(Loss)), "power cut")

    async def power_cut_of_all(self, rng: random.Random) -> None:
        for name in self.names:
            self.end(name, rng.choice(list(Loss)), "power cut of all")

    async def wiped_disk(self, rng: random.Random) -> None:
        await self.wipe(self.somebody(rng), rng)

    async def wipe(self, name: str, rng: random.Random) -> None:
        if self.is_anybody_weak() or self.watch.not_whole() is not None:
            return
        self.weaken(name)
        self.unnoticed = name, max(image.offset for image in self.pictures())
        self.count("wiped disk")
        self.keeper.held.add(name)
        self.cluster.kill(name)
        await asyncio.sleep(rng.choice((0.1, 1.0)))
        self.cluster.wipe(name)
        self.keeper.held.discard(name)

    async def clean_stop(self, rng: random.Random) -> None:
        await self.stop(self.somebody(rng))

    async def stop(self, name: str) -> None:
        machine = self.cluster.machines[name]
        if not machine.is_ready:
            return
        self.count("clean stop")
        life = self.loop.node(name)
        machine.tell_to_stop()
        deadline = self.loop.time() + 8.0
        while life.alive and self.loop.time() < deadline:
            await asyncio.sleep(0.02)
        if life.alive and self.may_end(name):
            self.count("clean stop took too long")
            self.cluster.kill(name)

    async def rolling_restart(self, rng: random.Random) -> None:
        self.count("rolling restart")
        for name in rng.sample(self.names, len(self.names)):
            await self.stop(name)
            deadline = self.loop.time() + 4.0
            while not self.keeper.all_ready() and self.loop.time() < deadline:
                await asyncio.sleep(0.02)

    # -- the network

    async def lasting(self, rng: random.Random, cuts: list[tuple[str, str]]) -> None:
        for source, target in cuts:
            self.network.cut(source, target)
        await asyncio.sleep(rng.choice((0.3, 1.0, 2.0, 3.5)))
        for source, target in cuts:
            self.network.heal(source, target)

    async def cut_off(self, rng: random.Random) -> None:
        """Nobody hears a machine, and it hears nobody."""
        self.count("cut off")
        name = self.somebody(rng)
        await self.lasting(rng, [(name, "*"), ("*", name)])

    async def cut_off_from_peers(self, rng: random.Random) -> None:
        """Its clients still talk to it."""
        self.count("cut off from peers")
        name = self.somebody(rng)
        await self.lasting(rng, [pair for other in self.others(name) for pair in ((name, other), (other, name))])

    async def one_way(self, rng: random.Random) -> None:
        """It hears the others and they do not hear it, or the reverse; one of them, or both."""
        self.count("one-way cut")
        name = self.somebody(rng)
        others = rng.sample(self.others(name), rng.randint(1, 2))
        is_deaf = rng.random() < 0.5
        await self.lasting(rng, [(other, name) if is_deaf else (name, other) for other in others])

    async def partial(self, rng: random.Random) -> None:
        """Two do not hear each other, the third hears both. Of three machines this is also the ring of majorities."""
        self.count("partial partition")
        name = self.somebody(rng)
        other = rng.choice(self.others(name))
        await self.lasting(rng, [(name, other), (other, name)])

    async def flapping(self, rng: random.Random) -> None:
        self.count("flapping link")
        name = self.somebody(rng)
        for _ in range(rng.randint(3, 8)):
            other = rng.choice(self.others(name))
            self.network.part([name], [other])
            await asyncio.sleep(rng.uniform(0.05, 0.6))
            for pair in ((name, other), (other, name)):
                self.network.heal(*pair)
            await asyncio.sleep(rng.uniform(0.0, 0.3))

    async def slow_link(self, rng: random.Random) -> None:
        self.count("slow link")
        name = self.somebody(rng)
        pairs = [(name, other) for other in rng.sample(self.others(name), rng.randint(1, 2))]
        delay = rng.choice((0.02, 0.2, 0.7))
        for pair in pairs:
            self.network.slow(*pair, delay)
        await asyncio.sleep(rng.uniform(0.5, 3.0))
        for pair in pairs:
            self.network.slow(*pair, 0.0)

    async def reset(self, rng: random.Random) -> None:
        name = self.somebody(rng)
        for _ in range(rng.randint(1, 4)):
            self.count("connections reset")
            self.network.reset(name, rng.choice((*self.others(name), *CLIENTS, "*")))
            await asyncio.sleep(rng.uniform(0.0, 0.2))

    async def stall(self, rng: random.Random) -> None:
        self.count("stall")
        name = self.somebody(rng)
        ends = [name, rng.choice((*self.others(name), *CLIENTS))]
        rng.shuffle(ends)
        self.network.stall(*ends, rng.uniform(0.05, 2.0))

    async def cut_off_client(self, rng: random.Random) -> None:
        self.count("client cut off")
        client, name = rng.choice(CLIENTS), rng.choice(self.names)
        is_deaf = rng.random() < 0.5
        await self.lasting(rng, [(name, client) if is_deaf else (client, name)])

    # -- time

    async def pause(self, rng: random.Random) -> None:
        """SIGSTOP: it comes back believing that no time has passed."""
        name = self.somebody(rng)
        if not self.cluster.is_up(name):
            return
        self.count("pause")
        life = self.loop.node(name)
        self.loop.pause(name)
        await asyncio.sleep(rng.choice((0.2, 1.0, 2.0, 4.0)))
        if life.alive:
            self.loop.resume(name)

    async def clock(self, rng: random.Random) -> None:
        self.count("clock jump")
        jump = rng.choice((-2 * HOUR_MS, -HOUR_MS, -1000, 1000, HOUR_MS // 2))
        self.cluster.worlds.jump(rng.choice(self.names), jump)

    # -- disks

    async def slow_disk(self, rng: random.Random) -> None:
        self.count("slow disk")
        machine = self.cluster.machines[self.somebody(rng)]
        machine.disk.latency_s = rng.choice((0.03, 0.2, 1.0))
        await asyncio.sleep(rng.uniform(0.3, 3.0))
        machine.disk.latency_s = self.cluster.disk_latency_s

    async def full_disk(self, rng: random.Random) -> None:
        machine = self.cluster.machines[self.somebody(rng)]
        if not self.may_end(machine.name):  # without room even for metadata a node ends
            return
        self.count("full disk")
        machine.disk.capacity = machine.disk.used + rng.choice((0, 100, 2000, 20_000))
        await asyncio.sleep(rng.uniform(0.3, 2.0))
        machine.disk.capacity = UNLIMITED

    async def sync_error(self, rng: random.Random) -> None:
        """The sync of one log fails. Nobody may believe in it afterwards; only a new process takes the log up again."""
        name, topic = self.somebody(rng), rng.choice(("safe", "shared"))
        if not self.may_end(name):
            return
        self.count("fsync error of a log")
        disk = self.cluster.machines[name].disk
        disk.failing_syncs = lambda path: f"/{topic}-0/" in path
        await asyncio.sleep(rng.uniform(0.3, 1.5))
        disk.failing_syncs = None
        if self.cluster.is_up(name) and self.has_failed_logs(name):
            self.cluster.kill(name)

    async def metadata_sync_error(self, rng: random.Random) -> None:
        """The node must end."""
        name, failed = self.somebody(rng), False
        if not self.may_end(name) or not self.cluster.is_up(name):
            return
        disk, life = self.cluster.machines[name].disk, self.loop.node(name)

        def fails(path: str) -> bool:
            nonlocal failed
            hit = "/__cluster_metadata-0/" in path and (path.endswith(".log") or "quorum-state" in path)
            failed |= hit
            return hit

        disk.failing_syncs = fails
        await asyncio.sleep(rng.uniform(0.3, 1.5))
        disk.failing_syncs = None
        await asyncio.sleep(1.0)
        if failed:
            self.count("fsync error of the metadata")
            if life.alive and life.runs:
                self.play.history.report("fsync-error-ignored", name, "the metadata failed, and the node goes on")
                self.cluster.kill(name)


def _text(loss: Loss | None) -> str:
    return "nothing lost" if loss is None else f"power {loss.value}"
