"""Whole nodes inside the simulator: booted, killed, started again, each with a disk that outlives its process.

A *machine* has a name, a disk and settings, and at most one process at a time. The process is an unmodified `Node`, run as
`ottla serve` runs it: start, serve until told to stop or until the node says that it cannot go on. What ends a process:

    stop        as SIGTERM: leaderships handed back, everything synced, the mark of a clean stop
    kill        as kill -9: the process is gone, all it has written is still in the page cache, synced or not
    kill + Loss as pulling the plug: of what was not synced the seed decides what is left
    exit        the node ended by itself, because it could not start or its metadata could not be kept; `Machine.exit` says why

A kill can come at any moment, or at a chosen disk call, in the middle of what for the event loop is a single step.

`add` gives a machine for a node of its own; `form` gives several that know each other, each of them broker and voter unless a
`Topology` says otherwise, their disks formatted for one cluster. Disks may also be copies of those of an earlier history, so
that a seed begins with a cluster that has been in use.

`on_ready` and `on_fall` tell whoever keeps the books; they see the real `Node`.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine, Mapping, Sequence
from typing import Any, NamedTuple

from ottla.config import BrokerConfig, single_node_defaults
from ottla.log.directories import WrongDirectory
from ottla.log.directory import METADATA_LOG, make_durable_directory
from ottla.log.identity import META_PROPERTIES, BadIdentity, MetaProperties, write_meta_properties
from ottla.metadata.controller import format_records
from ottla.metadata.records import frame
from ottla.properties import read_properties
from ottla.raft import snapshots
from ottla.raft.quorum import Address, Voter, VoterSet
from ottla.server.node import Node
from ottla.sim.disk import Loss, SimDisk
from ottla.sim.loop import SimLoop
from ottla.sim.world import Worlds
from ottla.wire.errors import KafkaError
from ottla.wire.ids import random_id, uuid_bytes

PORT = 9092
DATA = "/data"
CLUSTER_ID = "U2ltdWxhdGVkQ2x1c3Rlcg"

# What `ottla serve` turns into one clear line and an exit code; anything else is a defect.
REASONS_NOT_TO_START = (OSError, KafkaError, WrongDirectory, BadIdentity)


class Topology(NamedTuple):
    """Who is broker, who is controller, and which of the controllers vote in the beginning."""

    brokers: tuple[str, ...]
    controllers: tuple[str, ...]
    voters: tuple[str, ...]

    @property
    def names(self) -> tuple[str, ...]:
        """In the order of their node ids: brokers come first."""
        return tuple(dict.fromkeys((*self.brokers, *self.controllers)))

    @classmethod
    def combined(cls, names: Sequence[str], votes: int | None = None) -> Topology:
        return cls(tuple(names), tuple(names), tuple(names[:votes]))

    def settings(self, name: str) -> dict[str, str]:
        """What a node is, and where it listens."""
        doors = {"broker": (self.brokers, "PLAINTEXT", PORT), "controller": (self.controllers, "CONTROLLER", PORT + 1)}
        roles = [role for role, (names, _, _) in doors.items() if name in names]
        return {
            "process.roles": ",".join(roles),
            "listeners": ",".join(f"{doors[role][1]}://{name}:{doors[role][2]}" for role in roles),
            "controller.listener.names": "CONTROLLER",
        }

    def quorum_settings(self, is_dynamic: bool) -> dict[str, str]:
        if not is_dynamic:
            voters = [f"{n}@{name}:{PORT + 1}" for n, name in enumerate(self.names, 1) if name in self.voters]
            return {"controller.quorum.voters": ",".join(voters)}
        return {
            "controller.quorum.bootstrap.servers": ",".join(f"{name}:{PORT + 1}" for name in self.controllers),
            "controller.quorum.auto.join.enable": "true",
        }


class Machine:
    """One computer of the cluster, from process to process."""

    def __init__(self, name: str, settings: Mapping[str, str], disk: SimDisk) -> None:
        self.name = name
        self.settings = settings
        self.disk = disk
        self.node: Node | None = None
        self.is_ready = False
        self.exit: BaseException | None = None
        self.loss: Loss | None = None
        self._told: asyncio.Event | None = None

    @property
    def number(self) -> int:
        return int(self.settings["node.id"])

    @property
    def directory_id(self) -> bytes:
        """What tells its disk from the one that it had before, whether a process runs or not."""
        data = self.disk.peek(f"{self.settings['log.dirs']}/{META_PROPERTIES}") or b""
        return uuid_bytes(read_properties(data.decode("latin-1"))["directory.id"])

    def tell_to_stop(self) -> None:
        if self._told is not None:
            self._told.set()

    async def run(self, world: Any, on_ready: Callable[[Machine], None]) -> None:
        """The process, as server/process.py runs it."""
        self.node = node = Node(BrokerConfig(self.settings), world)
        told = self._told = asyncio.Event()
        node.failed.add_done_callback(lambda _: told.set())
        try:
            await node.start()
        except REASONS_NOT_TO_START as error:
            self.exit = error
            return
        self.is_ready = True
        on_ready(self)
        await told.wait()
        self.is_ready = False
        if node.failed.done():
            self.exit = node.failed.result()
        else:
            await node.stop()


def _nobody(machine: Machine) -> None:
    pass


# So small that the batches of a simulation are written in each of the ways that large ones are.
COPIES_BELOW, FLIES_FROM = 700, 1000


def _snapshot(values: list[bytes], kraft_version: int, voters: VoterSet, now_ms: int) -> bytes:
    timestamp = now_ms if kraft_version else 0
    return b"".join(
        snapshots.pieces(
            values, last_timestamp=timestamp, kraft_version=kraft_version, voters=voters, epoch=0, now_ms=now_ms
        )
    )


class SimCluster:
    """Machines that run nodes, and machines that run clients, on one simulated loop."""

    def __init__(self, loop: SimLoop, *, disk_latency_s: float = 0.001) -> None:
        self.loop = loop
        self.worlds = Worlds(loop)
        self.machines: dict[str, Machine] = {}
        self.on_ready: Callable[[Machine], None] = _nobody
        self.on_fall: Callable[[Machine], None] = _nobody
        self.disk_latency_s = disk_latency_s
        # Whether a machine without power falls silent; else its kernel goes on, and tells others that the process is gone.
        self._falls_silent = False

    @property
    def bootstrap(self) -> str:
        """Where brokers listen."""
        brokers = [name for name, machine in self.machines.items() if "broker" in machine.settings["process.roles"]]
        return ",".join(f"{name}:{PORT}" for name in brokers)

    def add(self, name: str, settings: Mapping[str, str] | None = None) -> Machine:
        """A machine with an empty disk. It runs nothing yet."""
        chosen = {
            **single_node_defaults(),
            "node.id": str(len(self.machines) + 1),
            "listeners": f"PLAINTEXT://{name}:{PORT},CONTROLLER://{name}:{PORT + 1}",
            "log.dirs": DATA,
            **(settings or {}),
        }
        return self._place(name, chosen, self._empty_disk(name))

    def _place(self, name: str, settings: Mapping[str, str], disk: SimDisk) -> Machine:
        self.machines[name] = Machine(name, settings, disk)
        return self.machines[name]

    def _empty_disk(self, name: str) -> SimDisk:
        disk = SimDisk(self.loop.chance("disk", name), latency_s=self.disk_latency_s)
        disk.copies_below, disk.flies_from = COPIES_BELOW, FLIES_FROM
        return disk

    def form(
        self,
        names: Sequence[str] | Topology,
        settings: Mapping[str, str],
        disks: Mapping[str, SimDisk] | None = None,
        *,
        is_dynamic: bool = False,
    ) -> list[Machine]:
        """Machines of one cluster. They run nothing yet. Who votes is a setting, or, if `is_dynamic`, stands in the log."""
        self._falls_silent = True
        topology = names if isinstance(names, Topology) else Topology.combined(names)
        for number, name in enumerate(topology.names, 1):
            chosen = {
                "node.id": str(number),
                **topology.settings(name),
                "log.dirs": DATA,
                **topology.quorum_settings(is_dynamic),
                **settings,
            }
            self._place(
                name, chosen, disks[name].copy(self.loop.chance("disk", name)) if disks else self._empty_disk(name)
            )
        machines = [self.machines[name] for name in topology.names]
        if disks is None:
            voting = [self._voter(self.machines[name]) for name in topology.voters] if is_dynamic else []
            for machine in machines:
                self.format(machine, VoterSet(tuple(sorted(voting)) if machine.name in topology.voters else ()))
        return machines

    def _voter(self, machine: Machine) -> Voter:
        address = Address("CONTROLLER", machine.name, PORT + 1)
        return Voter(int(machine.settings["node.id"]), self._identity(machine), (address,))

    def _identity(self, machine: Machine) -> bytes:
        """The id of its directory, another one for each disk."""
        life = self.loop.node(machine.name).incarnation if self.loop.known(machine.name) else 0
        return random_id(self.loop.chance("identity", machine.name, life))

    def format(self, machine: Machine, voters: VoterSet) -> None:
        """Give its directory an identity, as `kafka-storage format` does; and the first voters, if there are any."""
        disk, now_ms, log = machine.disk, self.worlds.now_ms(machine.name), f"{DATA}/{METADATA_LOG}"
        make_durable_directory(disk, DATA)
        make_durable_directory(disk, log)
        values = [frame(record, version) for record, version in format_records()]
        disk.replace(f"{DATA}/{snapshots.BOOTSTRAP}", _snapshot(values, 0, VoterSet(), now_ms))
        if voters.voters:
            disk.replace(f"{log}/{snapshots.SnapshotId(0, 0).file_name}", _snapshot([], 1, voters, now_ms))
        meta = MetaProperties(CLUSTER_ID, int(machine.settings["node.id"]), self._identity(machine))
        write_meta_properties(disk, DATA, meta, now_ms)

    def wipe(self, name: str) -> None:
        """An empty disk, formatted for the same cluster, in a machine whose process has ended."""
        if self.is_up(name):
            raise RuntimeError(f"{name} still runs a process: kill it")
        self.loop.note("wipe", name)
        machine = self.machines[name]
        machine.disk, machine.loss = machine.disk.wipe(), None
        self.format(machine, VoterSet())

    def boot(self, name: str) -> Machine:
        """Start the process, on the disk as the last one left it."""
        machine = self.machines[name]
        if self.loop.known(name):
            machine.disk = self._inherited(machine)
        machine.loss, machine.exit, machine.is_ready = None, None, False
        self.loop.network.light_up(name)
        world = self.worlds.of(name, machine.disk)
        self.loop.boot(name, machine.run(world, self.on_ready))
        return machine

    def _inherited(self, machine: Machine) -> SimDisk:
        incarnation = self.loop.node(machine.name).incarnation
        if machine.loss is None:
            return machine.disk.outlive()
        return machine.disk.crash(self.loop.chance("crash", machine.name, incarnation), machine.loss)

    def is_up(self, name: str) -> bool:
        """Whether a process runs, ready or not."""
        main = self.loop.node(name).main if self.loop.known(name) else None
        return self.loop.alive(name) and main is not None and not main.done()

    def kill(self, name: str, loss: Loss | None = None) -> None:
        """End the process now; with a Loss the whole machine loses power."""
        machine = self.machines[name]
        machine.loss = loss
        self.on_fall(machine)
        machine.is_ready = False
        if loss is not None and self._falls_silent:
            self.loop.network.darken(name)
        self.loop.kill(name)

    def kill_at_call(self, name: str, calls: int, loss: Loss | None = None) -> None:
        """The same at the disk call that comes `calls` calls from now, before it has any effect."""
        disk = self.machines[name].disk
        disk.stop_at = disk.calls + max(calls, 1)
        disk.at_cut = lambda: self.kill(name, loss)

    def cut_power(self, name: str, loss: Loss) -> None:
        """The plug is pulled on a machine whose process has already ended."""
        if self.is_up(name):
            raise RuntimeError(f"{name} still runs a process: kill it")
        self.loop.note("power", name, loss.value)
        self.machines[name].loss = loss

    def client(self, name: str, main: Coroutine[Any, Any, Any]) -> asyncio.Task[Any]:
        """Run a coroutine on a machine of its own, so that its connections can be cut, stalled and reset by name."""
        return self.loop.boot(name, main)
