"""A network in memory for the simulated loop: unmodified asyncio servers and clients talk through it.

Each connection is two transports and two wires, one per direction. What TCP promises holds here too, and nothing more:

- Bytes of one direction arrive in order, or not at all. A wire is a queue; timers only say *when* its head arrives,
  never *which* piece, so equal times and shuffled callbacks cannot reorder a stream.
- Pieces have no meaning: what was written in one call may arrive in several, and several in one. Now and then a read is
  cut short on purpose.
- A window of 64 KiB bounds what is under way or unread. What does not fit stays in the writer's own buffer, and then
  `pause_writing` is called by asyncio's own rules (`set_write_buffer_limits`), `resume_writing` when it has drained.
- The kernel is not the process. A paused node still receives into its window; the bytes a killed node had already
  handed over still arrive, followed by a reset; what was still in its own buffer is gone.

Faults, all between two names and one way only unless called twice: `cut` (packets vanish; TCP repeats them, so an open
connection stalls and a new one hangs in its handshake), `heal`, `stall` (a cut that heals itself), `slow`, `reset`.
`ANY` stands for everybody else. Acknowledgements travel on the opposite wire, so a one-way cut stops both directions
sooner or later, as it does in the real world.
"""

from __future__ import annotations

import asyncio
import contextvars
import errno
import itertools
import random
import socket
from collections.abc import Callable, Iterable, Sequence
from typing import Any, Protocol

from ottla.sim.machine import Node
from ottla.sim.transport import Transport

# A connect whose packets vanish is repeated after these pauses, then fails as on Linux (tcp_syn_retries = 6).
HANDSHAKE_PAUSES_S = (1, 2, 4, 8, 16, 32, 64)

ANY = "*"
LOOPBACK = ("localhost", "127.0.0.1", "::1")
WILDCARD = ("", "0.0.0.0", "::")

Factory = Callable[[], Any]


class Host(Protocol):
    """What the network needs of the loop."""

    network: Network

    def time(self) -> float: ...
    def call_at(self, when: float, callback: Callable[..., Any], *args: Any, context: Any = None) -> Any: ...
    def call_soon(self, callback: Callable[..., Any], *args: Any, context: Any = None) -> Any: ...
    def create_future(self) -> asyncio.Future[Any]: ...
    def call_exception_handler(self, context: dict[str, Any]) -> None: ...
    def note(self, *facts: object) -> None: ...
    def machine(self, host: str) -> str | None: ...
    @property
    def here(self) -> Node: ...


class Network:
    """All wires, listeners and faults."""

    def __init__(self, loop: Host, rng: random.Random) -> None:
        self.latency_min_s = 0.000_05
        self.latency_mean_s = 0.000_3
        self.rng = rng
        self.loop = loop
        self.outside = contextvars.Context()  # of no node, so that what the network does survives every kill
        self.transports: dict[Transport, None] = {}
        self._listeners: dict[tuple[str, int], list[Server]] = {}
        self._cuts: dict[tuple[str, str], None] = {}
        self._slow: dict[tuple[str, str], float] = {}
        self._dark: dict[str, None] = {}
        self._ports = itertools.count()

    # Faults

    def cut(self, source: str, target: str) -> None:
        """From now on nothing sent by `source` reaches `target`."""
        self.loop.note("cut", source, target)
        self._cuts[source, target] = None

    def heal(self, source: str, target: str) -> None:
        """Take one cut back; what was held up arrives, in order."""
        self.loop.note("heal", source, target)
        self._cuts.pop((source, target), None)
        self._release_held()

    def heal_all(self) -> None:
        self.loop.note("heal all")
        self._cuts.clear()
        self._slow.clear()
        self._release_held()

    def isolate(self, name: str) -> None:
        """Cut a node off from everybody, both ways."""
        self.cut(name, ANY)
        self.cut(ANY, name)

    def part(self, ones: Iterable[str], others: Iterable[str]) -> None:
        """Nothing passes between two groups, either way. Whoever is in both keeps touch with both."""
        ones, others = list(ones), list(others)
        for one, other in ((one, other) for one in ones for other in others if one != other):
            self.cut(one, other)
            self.cut(other, one)

    def stall(self, source: str, target: str, seconds: float) -> None:
        """A cut that heals itself."""
        self.cut(source, target)
        self.loop.call_at(self.loop.time() + seconds, self.heal, source, target, context=self.outside)

    def slow(self, source: str, target: str, seconds: float) -> None:
        """Everything from `source` to `target` takes this much longer; 0 takes it back."""
        self.loop.note("slow", source, target, seconds)
        self._slow[source, target] = seconds

    def reset(self, one: str, other: str) -> int:
        """Break every open connection between two names at both ends; how many there were."""
        hit = [t for t in self.transports if _joins(t, one, other)]
        self.loop.note("reset", one, other, len(hit))
        for transport in hit:
            transport.reset_arrived()
        return len(hit)

    def darken(self, name: str) -> None:
        """The machine has no power: nobody hears from it, not even that its connections are gone."""
        self._dark[name] = None

    def light_up(self, name: str) -> None:
        """It is on again, and its kernel knows nothing of the connections of old."""
        if name in self._dark:
            del self._dark[name]
            self._release_held()

    def blocked(self, source: str, target: str) -> bool:
        cuts, dark = self._cuts, self._dark
        if not (cuts or dark) or source == target:
            return False
        if source in dark or target in dark:
            return True
        return (source, target) in cuts or (source, ANY) in cuts or (ANY, target) in cuts

    def delay(self, source: str, target: str) -> float:
        delay = self.latency_min_s + self.rng.expovariate(1.0) * self.latency_mean_s
        return delay + self._slow.get((source, target), 0.0) if self._slow else delay

    def _release_held(self) -> None:
        for transport in self.transports:
            transport.out.release()
            transport.peer.out.release()  # the peer may be gone already, while its last bytes are still under way

    # Servers and connections

    def fell(self, node: Node) -> None:
        """A node died: nobody listens there, and whoever was connected hears of it as soon as a packet gets through."""
        for key in [key for key, servers in self._listeners.items() if servers[0].node is node]:
            node.remains.append(self._listeners.pop(key))
        for transport in [t for t in self.transports if t.node is node]:
            node.remains.append(transport)
            transport.perish()

    def listen(self, server: Server) -> None:
        for port in server.ports:
            others = self._listeners.setdefault((server.node.name, port), [])
            if any(_overlap(server.hosts, other.hosts) for other in others):
                raise OSError(errno.EADDRINUSE, f"{server.node} already listens on port {port}")
            others.append(server)
        self.loop.note("listen", server.node, server.hosts, server.ports)

    def unlisten(self, server: Server) -> None:
        for port in server.ports:
            servers = self._listeners.get((server.node.name, port), [])
            if server in servers:
                servers.remove(server)
            if not servers:
                self._listeners.pop((server.node.name, port), None)

    def free_port(self) -> int:
        return 32768 + next(self._ports) % 28000

    def find(self, client: Node, host: str, port: int) -> Server | None:
        """Who would accept a connection from `client` to this address, if anybody."""
        target = client.name if host in LOOPBACK else self.loop.machine(host)
        if target is None:
            raise socket.gaierror(socket.EAI_NONAME, f"no machine in this simulation is called {host!r}")
        for server in self._listeners.get((target, port), []):
            if server.is_serving() and server.takes(host):
                return server
        return None

    async def connect(self, factory: Factory, host: str, port: int) -> tuple[Transport, Any]:
        client = self.loop.here
        await self._handshake(client.name, client.name if host in LOOPBACK else self.loop.machine(host) or host)
        server = self.find(client, host, port)
        if server is None:
            raise ConnectionRefusedError(errno.ECONNREFUSED, f"Connect call failed ({host!r}, {port})")
        near = self._join(client, server, port)
        protocol = factory()
        opened = self.loop.create_future()
        self.loop.call_soon(near.open, protocol, opened, context=near.context)
        try:
            await opened
        except BaseException:
            near.close()
            raise
        return near, protocol

    async def _handshake(self, source: str, target: str) -> None:
        """One round trip; while packets vanish, tried again and again, as a kernel does."""
        for pause in HANDSHAKE_PAUSES_S:
            await asyncio.sleep(self.delay(source, target) + self.delay(target, source))
            if not (self.blocked(source, target) or self.blocked(target, source)):
                return
            await asyncio.sleep(pause)
        raise TimeoutError(errno.ETIMEDOUT, f"Connection from {source} to {target} timed out")

    def _join(self, client: Node, server: Server, port: int) -> Transport:
        here, there = (client.address, self.free_port()), (server.node.address, port)
        near = Transport(self, client, contextvars.copy_context(), here, there)
        far = Transport(self, server.node, server.context.copy(), there, here)
        near.join(far)
        far.join(near)
        self.loop.note("connect", client, server.node, port)
        self.loop.call_soon(server.accept, far, context=far.context)
        return near


def _joins(transport: Transport, one: str, other: str) -> bool:
    ends = (transport.node.name, transport.peer.node.name)
    return ends in ((one, other), (other, one)) or (other == ANY and one in ends)


def _overlap(ours: Sequence[str], theirs: Sequence[str]) -> bool:
    return any(host in theirs for host in ours)


class _Bound:
    """Stands where code looks for a listening socket, to ask it for its address, or to have the port for sure: what is bound
    here has it."""

    family = socket.AF_INET

    def __init__(self, address: tuple[str, int]) -> None:
        self._address = address

    def getsockname(self) -> tuple[str, int]:
        return self._address

    def dup(self) -> _Bound:
        return self

    def listen(self, backlog: int) -> None:
        pass

    def __enter__(self) -> _Bound:
        return self

    def __exit__(self, *_: object) -> None:
        pass


class Server(asyncio.AbstractServer):
    """What `create_server` gives: listens on one port of one machine, on one or more of its addresses."""

    def __init__(self, network: Network, node: Node, factory: Factory, hosts: Sequence[str], port: int) -> None:
        self.node, self.hosts = node, tuple(hosts)
        self.context = contextvars.copy_context()
        self.ports = [port or network.free_port()]
        self._network, self._factory = network, factory
        self._serving = self._closed = False
        self._clients: dict[Transport, None] = {}
        self._waiters: list[asyncio.Future[Any]] = []
        self._forever: asyncio.Future[Any] | None = None
        network.listen(self)

    def takes(self, host: str) -> bool:
        """Bound to the loopback address, a server is reachable from its own machine only."""
        return host in self.hosts or any(h in WILDCARD for h in self.hosts) or self._same_reach(host in LOOPBACK)

    def _same_reach(self, local: bool) -> bool:
        return any((h in LOOPBACK) == local for h in self.hosts)

    def accept(self, transport: Transport) -> None:
        if self._closed:
            transport.abort()
            return
        self._clients[transport] = None
        transport.open(self._factory(), left=self.left)

    def left(self, transport: Transport) -> None:
        self._clients.pop(transport, None)
        self._wake_if_empty()

    @property
    def sockets(self) -> tuple[_Bound, ...]:
        return () if self._closed else tuple(_Bound((host or self.node.address, self.ports[0])) for host in self.hosts)

    def get_loop(self) -> asyncio.AbstractEventLoop:
        return self._network.loop  # type: ignore[return-value]

    def is_serving(self) -> bool:
        return self._serving and not self._closed

    async def start_serving(self) -> None:
        self._serving = True
        await asyncio.sleep(0)

    async def serve_forever(self) -> None:
        self._serving = True
        self._forever = self._network.loop.create_future()
        try:
            await self._forever
        except asyncio.CancelledError:
            self.close()
            await self.wait_closed()
            raise

    def close(self) -> None:
        if self._closed:
            return
        self._closed = True
        self._serving = False
        self._network.unlisten(self)
        if self._forever is not None and not self._forever.done():
            self._forever.cancel()
        self._wake_if_empty()

    def close_clients(self) -> None:
        for transport in list(self._clients):
            transport.close()

    def abort_clients(self) -> None:
        for transport in list(self._clients):
            transport.abort()

    async def wait_closed(self) -> None:
        """Until closed and every connection has ended, as Python 3.12 and later do."""
        if self._closed and not self._clients:
            return
        waiter = self._network.loop.create_future()
        self._waiters.append(waiter)
        await waiter

    def _wake_if_empty(self) -> None:
        if self._closed and not self._clients:
            waiters, self._waiters = self._waiters, []
            for waiter in waiters:
                if not waiter.done():
                    waiter.set_result(None)
