"""One life of one machine in the simulator, and how running code knows whose code it is.

A machine has a name that doubles as its host name, and an address that never changes. Each `boot` begins a new
incarnation of it: a `Node`. Everything a node does carries it in its context variables: asyncio copies the context into
every task, timer and callback, so the loop can look at any callback and say whose it is, whether that node still lives,
and whether it is paused.
"""

from __future__ import annotations

import asyncio
import contextvars
from typing import Any

# Tasks are looked through for finished ones only when this many have come since the last time.
_SWEEP_EVERY = 256


class Node:
    """One incarnation of a machine: from boot to kill."""

    __slots__ = (
        "_sweep_at",
        "address",
        "alive",
        "held",
        "incarnation",
        "killed",
        "main",
        "name",
        "remains",
        "runs",
        "tasks",
    )

    def __init__(self, name: str, address: str, incarnation: int) -> None:
        self.name = name
        self.address = address
        self.incarnation = incarnation
        self.alive = True
        self.killed = False
        self.runs = True  # alive and not paused: the one flag the loop reads for every callback
        self.main: asyncio.Task[Any] | None = None
        self.tasks: list[asyncio.Task[Any]] = []
        self.held: list[asyncio.Handle] = []
        self.remains: list[object] = []
        self._sweep_at = _SWEEP_EVERY

    def adopt(self, task: asyncio.Task[Any]) -> None:
        """Hold on to a task. One that nobody holds would be collected some day, and its `finally` blocks would run."""
        self.tasks.append(task)
        if len(self.tasks) >= self._sweep_at:
            self.tasks = [task for task in self.tasks if not task.done()]
            self._sweep_at = 2 * len(self.tasks) + _SWEEP_EVERY

    def withhold(self, handle: asyncio.Handle) -> None:
        """A callback came due that must not run: keep it for later if paused, and for ever if dead."""
        (self.held if self.alive else self.remains).append(handle)

    def __repr__(self) -> str:
        return f"{self.name}#{self.incarnation}"


# Code that belongs to no node (the test itself, the network) finds nothing here.
NODE: contextvars.ContextVar[Node] = contextvars.ContextVar("ottla.sim.node")
