"""A network between the nodes of a cluster that can be cut, in one direction or both, without a word to anybody.

Every node is reached through a door, which passes bytes on as long as the road between the two nodes is open. On a road that
is cut nothing arrives and nobody is told, as with a cable that was pulled; when it is open again, what was on its way arrives
late. Who is behind a connection is found by its port: the process that has it open; all others are clients.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import threading
from collections.abc import Iterable
from pathlib import Path

from cluster.nodes import Cluster, Member
from harness import HOST, free_port

CLIENT = 0
PIECE_BYTES = 1 << 16
Road = tuple[int, int]


class Network:
    """Put between the nodes of a cluster before it is formatted; a context."""

    def __init__(self, cluster: Cluster) -> None:
        self._members = cluster.members
        self._cut: set[Road] = set()
        self._changed = asyncio.Event()
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever, daemon=True)
        self._tasks: set[asyncio.Task[None]] = set()
        self._doors: list[asyncio.Server] = []
        for member in cluster.members.values():
            member.reach, member.controller_reach = free_port(), free_port()

    def __enter__(self) -> Network:
        self._thread.start()
        asyncio.run_coroutine_threadsafe(self._open_doors(), self._loop).result(10)
        return self

    def __exit__(self, *_: object) -> None:
        asyncio.run_coroutine_threadsafe(self._close(), self._loop).result(10)
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join()
        self._loop.close()

    # --- what a test says

    def cut(self, *roads: Road) -> None:
        """Nothing arrives any more on these roads, each from one node to another."""
        self._set(self._cut | set(roads))

    def isolate(self, node_id: int) -> None:
        """No road leads to this node or from it, for clients neither: they would go on believing that it leads."""
        others = [CLIENT, *(n for n in self._members if n != node_id)]
        self.cut(*((node_id, n) for n in others), *((n, node_id) for n in others))

    def heal(self) -> None:
        self._set(())

    def _set(self, cut: Iterable[Road]) -> None:
        def change() -> None:
            self._cut = set(cut)
            self._changed.set()
            self._changed = asyncio.Event()

        self._loop.call_soon_threadsafe(change)

    # --- doors

    async def _open_doors(self) -> None:
        for member in self._members.values():
            await self._door(member, member.reach, member.port)
            await self._door(member, member.controller_reach, member.controller_port)

    async def _door(self, member: Member, outside: int, inside: int) -> None:
        async def come_in(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            task = asyncio.current_task()
            assert task is not None
            self._tasks.add(task)
            with contextlib.suppress(OSError, asyncio.CancelledError):
                await self._connect(member, inside, reader, writer)
            writer.close()
            self._tasks.discard(task)

        self._doors.append(await asyncio.start_server(come_in, HOST, outside))

    async def _connect(
        self, member: Member, port: int, reader: asyncio.StreamReader, writer: asyncio.StreamWriter
    ) -> None:
        who = self._owner(writer.get_extra_info("peername")[1], writer.get_extra_info("sockname")[1])
        there, back = (who, member.node_id), (member.node_id, who)
        await self._passable(there)
        far_reader, far_writer = await asyncio.open_connection(HOST, port)
        try:
            await asyncio.gather(self._carry(reader, far_writer, there), self._carry(far_reader, writer, back))
        finally:
            far_writer.close()

    async def _carry(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter, road: Road) -> None:
        """Until one end is closed, which is noticed at the other as soon as the road is open."""
        try:
            while piece := await reader.read(PIECE_BYTES):
                await self._passable(road)
                writer.write(piece)
                await writer.drain()
        finally:
            await self._passable(road)
            writer.close()

    async def _passable(self, road: Road) -> None:
        while road in self._cut:
            await self._changed.wait()

    def _owner(self, port: int, door: int) -> int:
        """Which node has this port open at its end of a connection; nobody else is known by name."""
        inode = _inode(port, door)
        for member in self._members.values():
            if member.process is not None and inode is not None and inode in _sockets(member.pid):
                return member.node_id
        return CLIENT

    async def _close(self) -> None:
        for door in self._doors:
            door.close()
        self._cut.clear()
        self._changed.set()
        for task in list(self._tasks):
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)


def _inode(port: int, door: int) -> str | None:
    """Of the socket at the far end of a connection. One port may lead to several places, so both ends must be right."""
    tables = [
        Path(f"/proc/net/{name}").read_text().splitlines()[1:] for name in ("tcp", "tcp6")
    ]  # Java uses the latter
    for fields in (line.split() for table in tables for line in table):
        ends = [int(field.rpartition(":")[2], 16) for field in fields[1:3]]
        if ends == [port, door] and fields[9] != "0":
            return fields[9]
    return None


def _sockets(pid: int) -> set[str]:
    found = set()
    for name in os.listdir(f"/proc/{pid}/fd"):
        with contextlib.suppress(OSError):
            target = os.readlink(f"/proc/{pid}/fd/{name}")
            if target.startswith("socket:["):
                found.add(target[8:-1])
    return found
