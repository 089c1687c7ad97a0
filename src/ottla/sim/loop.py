"""The event loop of the simulator: a whole cluster in one process, one seed, one possible history.

Code under test is plain asyncio and knows nothing of this file. The loop differs from a real one in four ways.

**Time is a number.** When nothing is ready the clock jumps to the next timer. An hour of heartbeats takes seconds.

**Order is drawn from the seed.** All callbacks that are ready in one turn run in shuffled order, so code that only
worked because of the order it was written in fails for some seed. (What was scheduled *during* a turn runs in the next
one, as always.) Tasks and futures hash by their serial number instead of their address, because asyncio keeps them in
sets: `TaskGroup` cancels and `asyncio.wait` answers in the order of one. Hence: same seed, same history, also in
another process. `trace()` is a digest of every callback, packet and fault; `record=True` keeps the lines themselves,
to find where two histories part.

**Nodes die.** `boot` runs a coroutine as a node of its own; everything it starts inherits the node through the context
(see machine.py). After `kill` no callback of that node runs again, so none of its `finally` blocks do: this is kill -9,
not a cancellation. Its tasks are kept until the loop is closed, since collecting a suspended coroutine would run them
after all. At `close` they do run; by then the history is written, and a simulated disk must ignore the calls of a dead
incarnation. `pause` and `resume` are SIGSTOP and SIGCONT. Awaiting the task of a killed node never returns.

**There is no outside.** No sockets (network.py stands in), no threads, no executor, no signals.

A history that cannot go on (nothing ready, nothing scheduled) or that stands still (turn after turn at one moment) or
that outlives its limit ends with a `Stuck` that lists who waits where.
"""

from __future__ import annotations

import asyncio
import contextlib
import contextvars
import hashlib
import heapq
import random
import socket
from asyncio import base_events
from collections import deque
from collections.abc import Awaitable, Callable, Coroutine, Sequence
from typing import Any, TypeVar

from ottla.sim.machine import NODE, Node
from ottla.sim.network import LOOPBACK, WILDCARD, Factory, Network, Server
from ottla.sim.transport import Transport

T = TypeVar("T")

# So many turns without the clock moving are taken for a loop that spins.
TURNS_AT_ONE_MOMENT_MAX = 100_000
# Cancelled timers are swept out of the heap when there are this many and they are the majority.
_CANCELLED_TIMERS_MIN = 256


class Stuck(RuntimeError):
    """The history cannot go on; the message says who waits for what."""


class Mishap(AssertionError):
    """Something in the simulation raised an error that nobody caught."""


class _Serial:
    """Hashes by birth order, so that sets of these have the same order in every process."""

    serial: int

    def __hash__(self) -> int:
        return self.serial


class _Future(_Serial, asyncio.Future[Any]):
    pass


class _Task(_Serial, asyncio.Task[Any]):
    pass


class SimLoop(base_events.BaseEventLoop):
    _ready: deque[Any]
    _scheduled: list[Any]
    _stopping: bool
    _timer_cancelled_count: int

    def __init__(self, seed: int | str, *, record: bool = False) -> None:
        super().__init__()
        self.seed = seed
        self.limit_s = float("inf")
        self.steps = 0
        self.mishaps: list[dict[str, Any]] = []
        self.record: list[str] | None = [] if record else None
        self._now = 0.0
        self._turns_here = 0
        self._serials = 0
        self._order = self.chance("order")
        self._digest = hashlib.blake2b(digest_size=16)
        self._nodes: dict[str, Node] = {}
        self._fallen: list[Node] = []
        self._outside = self._running = Node("outside", "10.0.0.1", 0)
        self.network = Network(self, self.chance("network"))
        self.set_task_factory(_make_task)

    def chance(self, *purpose: object) -> random.Random:
        """A random source of its own for each purpose, so that drawing more for one does not change another."""
        return random.Random("/".join(map(str, (self.seed, *purpose))))

    # What happened

    def note(self, *facts: object) -> None:
        """Make something part of the history."""
        line = f"{self._now!r} {facts}"
        self._digest.update(line.encode())
        if self.record is not None:
            self.record.append(line)

    def trace(self) -> str:
        return self._digest.hexdigest()

    def call_exception_handler(self, context: dict[str, Any]) -> None:
        """An error that nobody caught is a finding, unless it comes from a node that is already dead."""
        if self._running.alive and not self.is_closed():
            self.mishaps.append({"node": self._running, **context})

    def check(self) -> None:
        """Raise the first error that nobody caught, if there was any."""
        nodes = dict.fromkeys([self._outside, *self._fallen, *self._nodes.values()])
        for task in [task for node in nodes if not node.killed for task in node.tasks if _failed_unseen(task)]:
            self.mishaps.append({"message": f"{_describe(task)} failed", "exception": task.exception()})
        if self.mishaps:
            first = self.mishaps[0]
            error = first.get("exception")
            details = f"{first.get('node', '')} {first.get('message')} {error!r}"
            raise Mishap(f"seed {self.seed}: {len(self.mishaps)} errors nobody caught; the first: {details}") from error

    # Nodes

    @property
    def here(self) -> Node:
        """The node whose code is running."""
        return NODE.get(self._outside)

    def node(self, name: str) -> Node:
        return self._nodes[name]

    def machine(self, host: str) -> str | None:
        """The name of the machine with this name or address, dead or alive."""
        for node in (self._outside, *self._nodes.values()):
            if host in (node.name, node.address):
                return node.name
        return None

    def boot(self, name: str, main: Coroutine[Any, Any, T]) -> asyncio.Task[T]:
        """Begin a new incarnation of a machine. When `main` ends the process exits: what is left of it is gone."""
        before = self._nodes.get(name)
        if before is not None and before.alive:
            if before.main is None or not before.main.done():
                main.close()
                raise RuntimeError(f"{before} still runs; kill it first")
            self._end(before, "exit")
        address = before.address if before else "10.0.{}.{}".format(*divmod(len(self._nodes) + 2, 250))
        node = self._nodes[name] = Node(name, address, before.incarnation + 1 if before else 1)
        context = contextvars.copy_context()
        context.run(NODE.set, node)
        self.note("boot", node)
        task: asyncio.Task[T] = context.run(self.create_task, main, context=context)
        node.main = task
        task.add_done_callback(lambda _: self._end(node, "exit"), context=self.network.outside)
        return task

    def kill(self, name: str) -> None:
        """As kill -9: nothing of the node runs from here on. If it kills itself, the current step is its last."""
        self._end(self._nodes[name], "kill")

    def pause(self, name: str) -> None:
        """As SIGSTOP: the kernel goes on for it, the process does not."""
        node = self._nodes[name]
        self.note("pause", node)
        node.runs = False

    def resume(self, name: str) -> None:
        node = self._nodes[name]
        self.note("resume", node)
        node.runs = node.alive
        if node.alive:
            held, node.held = node.held, []
            self._ready.extend(held)

    def known(self, name: str) -> bool:
        return name in self._nodes

    def alive(self, name: str) -> bool:
        return name in self._nodes and self._nodes[name].alive

    def _end(self, node: Node, how: str) -> None:
        if not node.alive:
            return
        self.note(how, node)
        node.alive = node.runs = False
        node.killed = how == "kill"
        node.remains.extend((node.tasks, node.held))
        self._fallen.append(node)
        self.network.fell(node)

    # Time and order

    def time(self) -> float:
        return self._now

    def _run_once(self) -> None:
        self._drop_stale_timers()
        if not self._ready and not self._stopping:
            self._jump()
        scheduled, ready, now = self._scheduled, self._ready, self._now
        while scheduled and scheduled[0]._when <= now:
            handle = heapq.heappop(scheduled)
            handle._scheduled = False
            ready.append(handle)
        self._turn()

    def _turn(self) -> None:
        batch = list(self._ready)
        self._ready.clear()
        if len(batch) > 1:
            self._order.shuffle(batch)
        self._turns_here += 1
        if self._turns_here > TURNS_AT_ONE_MOMENT_MAX:
            raise Stuck(self._story("it spins without the clock moving"))
        outside, update, record, now = self._outside, self._digest.update, self.record, repr(self._now)
        for handle in batch:
            if handle._cancelled:
                continue
            node = handle._context.get(NODE, outside)
            if not node.runs:
                node.withhold(handle)
                continue
            line = f"{now} {node.name} {_label(handle._callback)}"
            update(line.encode())
            if record is not None:
                record.append(line)
            self.steps += 1
            self._running = node
            handle._run()
        self._running = outside

    def _drop_stale_timers(self) -> None:
        """Cancelled timers, and those of the dead, must not move the clock."""
        scheduled = self._scheduled
        if self._timer_cancelled_count > max(_CANCELLED_TIMERS_MIN, len(scheduled) // 2):
            for handle in scheduled:
                handle._scheduled = not handle._cancelled
            self._scheduled = scheduled = [handle for handle in scheduled if not handle._cancelled]
            heapq.heapify(scheduled)
            self._timer_cancelled_count = 0
        while scheduled and (scheduled[0]._cancelled or not self._lives(scheduled[0])):
            handle = heapq.heappop(scheduled)
            handle._scheduled = False
            if handle._cancelled:
                self._timer_cancelled_count -= 1
            else:
                handle._context[NODE].withhold(handle)

    def _lives(self, handle: Any) -> bool:
        node: Node = handle._context.get(NODE, self._outside)
        return node.alive

    def _jump(self) -> None:
        """Nothing is ready: on to the next timer."""
        if not self._scheduled:
            raise Stuck(self._story("nothing is ready and nothing is scheduled"))
        when = self._scheduled[0]._when
        if when > self.limit_s:
            raise Stuck(self._story(f"it would go on after its limit of {self.limit_s} s"))
        if when > self._now:
            self._now = when
            self._turns_here = 0

    def _story(self, why: str) -> str:
        lines = [f"seed {self.seed}, {self._now:.6f} s, step {self.steps}: {why}. Who waits:"]
        for node in [self._outside, *self._nodes.values()]:
            state = "" if node.runs else " (paused)" if node.alive else " (dead)"
            waiting = [task for task in node.tasks if not task.done()]
            lines += [f"  {node}{state}: {_describe(task)} {_where(task)}" for task in waiting[:50]]
            lines += [f"  {node}: and {len(waiting) - 50} more"] if len(waiting) > 50 else []
        return "\n".join(lines)

    # What asyncio asks of a loop

    def create_future(self) -> asyncio.Future[Any]:
        future = _Future(loop=self)
        self._serials = future.serial = self._serials + 1
        return future

    def next_serial(self) -> int:
        self._serials += 1
        return self._serials

    def _process_events(self, event_list: object) -> None:
        pass

    def _write_to_self(self) -> None:
        pass

    def run_in_executor(self, executor: Any, func: Callable[..., Any], *args: Any) -> Any:  # type: ignore[override]
        raise RuntimeError(
            f"the simulator has no threads to run {getattr(func, '__qualname__', func)} in: "
            "blocking calls go through world.disk.away, heavy work through world.workshop.work"
        )

    async def getaddrinfo(self, host: Any, port: Any, **_: Any) -> Any:
        name = self.here.name if host in LOOPBACK else self.machine(str(host))
        if name is None:
            raise socket.gaierror(socket.EAI_NONAME, f"no machine in this simulation is called {host!r}")
        address = self._outside.address if name == "outside" else self._nodes[name].address
        return [(socket.AF_INET, socket.SOCK_STREAM, socket.IPPROTO_TCP, "", (address, int(port or 0)))]

    async def create_server(  # type: ignore[override]
        self,
        protocol_factory: Factory,
        host: str | Sequence[str] | None = None,
        port: int | None = None,
        *,
        ssl: Any = None,
        sock: Any = None,
        start_serving: bool = True,
        **_: Any,
    ) -> Server:
        _plain_only(ssl, sock)
        hosts = [host or ""] if host is None or isinstance(host, str) else list(host)
        for name in hosts:
            if name not in LOOPBACK + WILDCARD and self.machine(name) != self.here.name:
                raise OSError(
                    99, f"could not bind on any address out of [{name!r}]: it is not an address of {self.here}"
                )
        server = Server(self.network, self.here, protocol_factory, hosts, int(port or 0))
        if start_serving:
            await server.start_serving()
        return server

    async def create_connection(
        self,
        protocol_factory: Factory,
        host: str | None = None,
        port: int | None = None,
        *,
        ssl: Any = None,
        sock: Any = None,
        **_: Any,
    ) -> tuple[Transport, Any]:
        _plain_only(ssl, sock)
        if host is None or port is None:
            raise ValueError("host and port are needed")
        return await self.network.connect(protocol_factory, host, int(port))

    def close(self) -> None:
        """The dead are collected here, and their `finally` blocks run at last: quietly, and of no consequence."""
        if self.is_closed():
            return
        nodes = [self._outside, *self._nodes.values(), *self._fallen]
        super().close()
        # Handlers are no tasks: theirs run when Python collects them, and may want to cancel something.
        self.call_soon = _never  # type: ignore[method-assign, assignment]
        for task in [task for node in nodes for task in node.tasks if not task.done()]:
            task._log_destroy_pending = False  # type: ignore[attr-defined]
            with contextlib.suppress(BaseException):
                coroutine: Any = task.get_coro()
                coroutine.close()
        for node in nodes:
            node.tasks, node.held, node.remains = [], [], []


def _never(callback: Callable[..., object], *args: Any, context: contextvars.Context | None = None) -> None:
    """The loop is closed."""


def _make_task(loop: Any, coro: Any, **options: Any) -> _Task:
    """Tasks with a serial number, a name that does not count other loops, and someone who holds them."""
    serial: int = loop.next_serial()
    context: contextvars.Context | None = options.get("context")
    if options.get("name") is None:
        options["name"] = f"task-{serial}"
    # asyncio puts a new task into a set at once: the class must answer for its hash before the number is there.
    task = _Task.__new__(_Task)
    task.serial = serial
    task.__init__(coro, loop=loop, **options)  # type: ignore[misc]
    node: Node = context.get(NODE, loop._outside) if context is not None else loop.here
    node.adopt(task)
    return task


def _plain_only(ssl: Any, sock: Any) -> None:
    if ssl or sock is not None:
        raise NotImplementedError("the simulated network has neither TLS nor sockets: pass a host and a port")


def _label(callback: Any) -> str:
    owner = getattr(callback, "__self__", None)
    if type(owner) is _Task:
        return getattr(owner.get_coro(), "__qualname__", "?")
    return getattr(callback, "__qualname__", None) or type(callback).__name__


def _describe(task: asyncio.Task[Any]) -> str:
    return f"{task.get_name()} {getattr(task.get_coro(), '__qualname__', '?')}"


def _failed_unseen(task: asyncio.Task[Any]) -> bool:
    """It raised, and nobody awaited it: asyncio itself would complain when it is collected."""
    return task.done() and bool(getattr(task, "_log_traceback", False))


def _where(task: asyncio.Task[Any]) -> str:
    frames = task.get_stack(limit=1)
    return f"at {frames[0].f_code.co_filename}:{frames[0].f_lineno}" if frames else ""


def run(seed: int | str, main: Callable[[SimLoop], Awaitable[T]], *, limit_s: float = 3600.0) -> T:
    """Run `main(loop)` on a fresh loop. Errors that nobody caught fail the run; so does outliving the limit."""
    loop = SimLoop(seed)
    loop.limit_s = limit_s
    asyncio.set_event_loop(loop)
    try:
        answer = loop.run_until_complete(_awaited(main, loop))
        loop.check()
        return answer
    finally:
        asyncio.set_event_loop(None)
        loop.close()


async def _awaited(main: Callable[[SimLoop], Awaitable[T]], loop: SimLoop) -> T:
    return await main(loop)
