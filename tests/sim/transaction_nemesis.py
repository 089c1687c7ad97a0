"""What befalls the node and its transactional producers, above all at the steps of a transaction."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import TYPE_CHECKING, Any, cast

from ottla.coordination import commits
from ottla.coordination.transactions import adding, ending, init
from ottla.log.producers import Origin
from ottla.replication.partition import Partition
from ottla.server.node import Node
from ottla.sim.disk import Loss, PowerCut
from ottla.wire.records import TRANSACTIONAL_BIT
from sim.nemesis import Nemesis
from sim.topics import NODE

if TYPE_CHECKING:
    from sim.transaction_play import TransactionPlay

# Step -> the function whose decision is about to be written, or was.
DECIDED: dict[str, Callable[..., Any]] = {
    "init": init.init_producer_id,
    "add": adding.admit,
    "prepare": ending.end,
}
# Right before the leader takes a batch of a transaction, and right after it wrote it.
APPENDS = ("produce", "produced")
STEPS = (*DECIDED, *APPENDS, "offsets", "markers", "complete")
WAITS_FOR_STEP_S = 2.0
ATTRIBUTES_AT = 22


def watch_appends(node: Node, step: str, come: Callable[[memoryview], None]) -> None:
    """`come` is told of each batch of a transaction that is at this step. Partitions have no room for a method of their own:
    those of this process get another class."""
    classes: dict[type[Partition], type[Partition]] = {}
    for partition in node.replicas.all():
        usual = type(partition)
        partition.__class__ = classes.setdefault(usual, _watched(usual, step, come))


def _watched(usual: type[Partition], step: str, come: Callable[[memoryview], None]) -> type[Partition]:
    written: dict[tuple[bytes, int], tuple[int, memoryview]] = {}

    class Watched(usual):  # type: ignore[valid-type, misc]
        __slots__ = ()

        def append(self, data: Any, now_ms: int, origin: Origin, *more: Any, **named: Any) -> Any:
            concerns = origin is Origin.CLIENT and data[ATTRIBUTES_AT] & TRANSACTIONAL_BIT
            if concerns and step == "produce":
                come(data)
            appended = super().append(data, now_ms, origin, *more, **named)
            if concerns and step == "produced":
                written[self.key] = appended.last_offset, memoryview(bytes(data))
            return appended

        def write(self) -> None:
            super().write()
            last_offset, data = written.get(self.key, (self.log.end_offset, memoryview(b"")))
            if last_offset < self.log.end_offset:
                del written[self.key]
                come(data)

    return Watched


class TransactionNemesis(Nemesis):
    def __init__(self, play: TransactionPlay) -> None:
        super().__init__(cast("Any", play))
        self.stage = play
        # Seeds that follow each other begin with one step after the other, so that not too many of them have all.
        self.next = STEPS[int(play.story.seed) % len(STEPS)]

    def kinds(self) -> list[Callable[[], Awaitable[None]]]:
        """A little of everything, or one theme."""
        steps = [self.kill_at_step] * 4
        node = [*steps, self.kill, self.kill_at_call, self.kill_at_call, self.clean_restart]
        node += [self.disappear_together] * 4
        network = [self.reset, self.stall, self.cut_off, self.slow_client, self.pause_node, self.pause_client]
        network += [self.lost_answers, self.lost_answers, self.partition]
        disk = [self.full_disk, self.full_disk, self.slow_disk, self.sync_error]
        everything = [*node, *network, *disk, self.clock]
        return self.rng.choice((everything, everything, [*steps, self.kill_at_call, *disk], [*network, *steps]))

    def loss(self) -> Loss | None:
        return super().loss() if self.stage.is_durable else None

    def somebody(self) -> str:
        known = [actor.name for actor in self.stage.actors if self.loop.known(actor.name)]
        return self.rng.choice([*known, "strict"])

    # -- ends of the process

    async def kill_at_step(self) -> None:
        """Right before something of this step is written, or a few disk calls later."""
        step, self.next = self.next, self.rng.choice(STEPS)
        self.count(f"kill at {step}")
        node = self.machine.node
        assert node is not None
        self.lie_in_wait(node, step)
        deadline = self.loop.time() + WAITS_FOR_STEP_S
        while self.cluster.is_up(NODE) and self.loop.time() < deadline:
            await asyncio.sleep(0.01)
        self.cluster.kill(NODE, self.loss())

    def lie_in_wait(self, node: Node, step: str) -> None:
        """The parts of this one process are told to fall; the next one has new ones."""
        if step == "markers":
            self.before(node.markers, "_write", step)
        elif step == "complete":
            self.before(node.markers, "_complete", step)
        elif step == "offsets":
            self.before(node.groups, "decide", step, lambda args: args[1] is commits.commit_in_transaction)
        elif step in APPENDS:
            loss = self.loss()
            watch_appends(node, step, lambda _: self.fall_at_once(step, loss))
        else:
            for way in ("decide", "ask"):
                self.before(node.transactions, way, step, lambda args: args[1] is DECIDED[step])

    def before(self, owner: Any, name: str, step: str, concerns: Callable[..., bool] = lambda _: True) -> None:
        usual, loss, calls = getattr(owner, name), self.loss(), self.rng.randint(1, 4)

        async def fall(*args: Any, **more: Any) -> Any:
            if concerns(args) and self.machine.disk.stop_at is None:
                self.loop.note("at step", step)
                self.faults[f"killed at {step}"] += 1
                self.cluster.kill_at_call(NODE, calls, loss)
            return await usual(*args, **more)

        setattr(owner, name, fall)

    def fall_at_once(self, step: str, loss: Loss | None) -> None:
        """Nothing more happens, not even the answer that was about to leave."""
        self.loop.note("at step", step)
        self.faults[f"killed at {step}"] += 1
        self.cluster.kill(NODE, loss)
        raise PowerCut

    async def clean_restart(self) -> None:
        self.count("clean stop")
        self.machine.tell_to_stop()
        while self.cluster.is_up(NODE):
            await asyncio.sleep(0.01)

    async def disappear_together(self) -> None:
        """The node dies, and while it is away so do producers: their transactions are nobody's. When it comes back it may
        believe that it is earlier, until somebody sets its clock."""
        self.count("node and clients die")
        if self.rng.random() < 0.4:
            await self.clock()
        self.cluster.kill(NODE, self.loss())
        for actor in self.stage.actors:
            if actor.is_up and self.rng.random() < 0.5:
                actor.fall()

    # -- the network

    async def pause_client(self) -> None:
        """A zombie: when it goes on, another may have its transactional id, or its transaction has timed out."""
        self.count("client paused")
        name = self.somebody()
        if self.loop.alive(name):
            self.loop.pause(name)
            await asyncio.sleep(self.rng.uniform(0.1, 2.0))
            if self.loop.alive(name):
                self.loop.resume(name)

    async def cut_off(self) -> None:
        self.count("client cut off")
        ends = [NODE, self.somebody()]
        self.rng.shuffle(ends)
        self.loop.network.stall(*ends, self.rng.uniform(1.0, 6.0))

    async def partition(self) -> None:
        """Nothing goes either way for a while, and nobody is told."""
        self.count("client partitioned")
        name = self.somebody()
        for ends in ((NODE, name), (name, NODE)):
            self.loop.network.cut(*ends)
        await asyncio.sleep(self.rng.uniform(0.2, 3.0))
        for ends in ((NODE, name), (name, NODE)):
            self.loop.network.heal(*ends)

    async def slow_client(self) -> None:
        self.count("client slow")
        ends = [NODE, self.somebody()]
        self.rng.shuffle(ends)
        self.loop.network.slow(*ends, self.rng.uniform(0.05, 0.3))

    async def lost_answers(self) -> None:
        """Requests arrive, their answers do not; then they are repeated over another connection."""
        self.count("answers lost")
        name = self.somebody()
        self.loop.network.cut(NODE, name)
        await asyncio.sleep(self.rng.uniform(0.05, 0.5))
        self.loop.network.reset(NODE, name)
        self.loop.network.heal(NODE, name)

    # -- the disk

    async def sync_error(self) -> None:
        """Of one partition, internal or not. It refuses from then on, and only a restart brings it back."""
        where = self.rng.choice(
            ("__transaction_state-0", "__transaction_state-1", "__consumer_offsets-0", "in-0", "other-0")
        )
        self.count("fsync error")
        disk = self.machine.disk
        disk.failing_syncs = lambda path: f"/{where}/" in path
        await asyncio.sleep(self.rng.uniform(0.2, 1.5))
        disk.failing_syncs = None
        if not self.cluster.is_up(NODE):
            self.play.history.report("fsync-error-spreads", NODE, f"the node ended: {self.machine.exit!r}")
        await self.kill()
