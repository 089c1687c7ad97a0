"""What one connection still has to say, in order: bytes, and slices of files.

Bytes leave by `transport.write`. A large slice leaves by `os.sendfile` where there is a plain socket and a real file;
under TLS and in simulation it is read a piece at a time and written. Small slices are read and joined with the header
around them, because a second system call costs more than the copy. Nothing else may call `transport.write`.

sendfile works beside the transport on a duplicate of its socket, since asyncio refuses `add_writer` for a descriptor it
manages. With `high=0` the transport says at once when the kernel takes no more (`pause_writing`), so a slice never
overtakes bytes that still sit in the transport's own buffer.

Two things keep a reader of old data from holding up everybody else: what is not in memory is read in off the loop before
it is sent, and after `TURN_BYTES` the others have their turn.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import socket
from collections import deque
from collections.abc import Awaitable, Callable, Sequence
from typing import Any

from ottla.wire.codec import Part
from ottla.world import Slice

# Below this a slice is read and joined; above it sendfile costs less CPU (measured between 32 and 64 KiB).
JOIN_BELOW = 48 * 1024
# Joining stops at this many bytes: a reader of many small slices who takes nothing must not make us hold them all.
JOIN_BYTES_MAX = 1024 * 1024
# How much of a file is copied at a time where sendfile cannot be used.
COPY_PIECE = 256 * 1024
# How much of files leaves by one connection in one turn of the loop.
TURN_BYTES = 256 * 1024
# How much of a slice is looked for in memory, and brought there, at a time.
LOOK_BYTES = 1024 * 1024


class Outbox:
    __slots__ = (
        "_armed",
        "_away",
        "_closing",
        "_full",
        "_loop",
        "_on_drain",
        "_plain",
        "_queue",
        "_reading",
        "_socket",
        "_transport",
        "_turn_bytes",
        "_waits",
        "_warm_until",
        "is_stuck",
    )

    def __init__(
        self,
        loop: asyncio.AbstractEventLoop,
        transport: asyncio.Transport,
        on_drain: Callable[[], None],
        away: Callable[..., Awaitable[Any]],
    ) -> None:
        self._loop = loop
        self._transport = transport
        self._on_drain = on_drain
        self._away = away
        self._queue: deque[Part] = deque()
        self._full = self._armed = self._closing = False
        self._waits = False  # for the disk, or for its next turn
        self._reading: asyncio.Task[None] | None = None
        self._turn_bytes = 0  # how much may still leave in this turn
        self._warm_until = 0  # up to here the first slice of the queue is known to be in memory
        self.is_stuck = False  # nothing more can leave now: _full, _armed or _waits
        # What sendfile works on is made when first needed: most connections never do, and descriptors are few.
        self._socket: socket.socket | None = None
        self._plain: socket.socket | None = None
        encrypted = transport.get_extra_info("sslcontext") is not None
        if not encrypted:
            self._plain = transport.get_extra_info("socket")
        # asyncio pauses a socket above its limit, but an encrypted connection at it: with 0 that would be always.
        transport.set_write_buffer_limits(high=int(encrypted), low=0)

    def send(self, parts: Sequence[Part]) -> None:
        if Slice in map(type, parts):
            try:
                parts = self._joined(parts)
            except OSError:
                self._loop.call_soon(self._transport.abort)
                return
        if not self._queue and Slice not in map(type, parts):
            self._transport.write(parts[0] if len(parts) == 1 else b"".join(parts))  # type: ignore[arg-type]
            return
        self._queue.extend(parts)
        if not self.is_stuck:
            self._pump()

    @staticmethod
    def _joined(parts: Sequence[Part]) -> list[Part]:
        """The same with small slices read, as far as they are in memory."""
        ready: list[Part] = []
        left = JOIN_BYTES_MAX
        for part in parts:
            if type(part) is Slice and part.size < JOIN_BELOW and left > 0:
                left -= part.size
                data = part.file.read_cached(part.position, part.size)
                ready.append(part if data is None else data)
            else:
                ready.append(part)
        return ready

    def pause(self) -> None:
        self._full = self.is_stuck = True

    def resume(self) -> None:
        self._full = False
        self._go_on()

    def close(self) -> None:
        """Close once everything queued has left."""
        self._closing = True
        if not self._queue:
            self._transport.close()

    def lost(self) -> None:
        """The connection is gone: forget what was queued, give the duplicate descriptor back."""
        self._queue.clear()
        self._plain = None
        if self._socket is not None:
            if self._armed:
                self._armed = False
                self._loop.remove_writer(self._socket)
            self._socket.close()
            self._socket = None

    def _go_on(self) -> None:
        """The kernel takes bytes again, or the disk gave some, or others have had their turn."""
        self._pump()
        if not self.is_stuck:
            # Not from inside resume_writing: whoever is told may end the connection, and asyncio cannot bear that there.
            self._loop.call_soon(self._on_drain)

    def _pump(self) -> None:
        blocked = False
        self._turn_bytes = TURN_BYTES
        try:
            while self._queue and not (blocked or self._full or self._waits):
                if type(self._queue[0]) is Slice:
                    blocked = self._move(self._queue[0])
                else:
                    self._write_run()
        except OSError:
            # Either the peer is gone or a file is shorter than the length already on the wire: nothing more can be
            # said on this connection. Not from inside resume_writing: asyncio would run connection_lost twice.
            self._queue.clear()
            blocked = False
            self._loop.call_soon(self._transport.abort)
        self._arm(blocked)
        self.is_stuck = self._full or self._armed or self._waits
        if self._closing and not self._queue:
            self._loop.call_soon(self._transport.close)

    def _write_run(self) -> None:
        run: list[bytes] = []
        while self._queue and type(self._queue[0]) is not Slice:
            run.append(self._queue.popleft())  # type: ignore[arg-type]
        self._transport.write(b"".join(run))

    def _move(self, piece: Slice) -> bool:
        """Send some of a slice; True when the kernel takes no more now."""
        if not self._may_move(piece):
            return False
        native = piece.file.fd is not None and (self._socket is not None or self._duplicate())
        size = min(piece.size, self._turn_bytes, self._warm_until - piece.position)
        if native:
            try:
                sent = os.sendfile(self._socket.fileno(), piece.file.fd, piece.position, size)  # type: ignore[union-attr,arg-type]
            except BlockingIOError:
                return True
        else:
            data = piece.file.read_at(piece.position, min(size, COPY_PIECE))
            sent = len(data)
            self._transport.write(data)
        if not sent:
            raise OSError("the file is shorter than the length already promised")
        piece.position += sent
        piece.size -= sent
        self._turn_bytes -= sent
        if not piece.size:
            self._queue.popleft()
            self._warm_until = 0
        return native and sent < size  # a full socket: wait, do not ask again

    def _may_move(self, piece: Slice) -> bool:
        """Whether it is still our turn, and the next bytes of the slice are in memory; else we wait for what is missing."""
        if self._turn_bytes <= 0:
            self._waits = True
            self._loop.call_soon(self._waited)
        elif piece.position >= self._warm_until:
            size = min(piece.size, LOOK_BYTES)
            if piece.file.is_cached(piece.position, size):
                self._warm_until = piece.position + size
            else:
                self._waits = True
                self._reading = self._loop.create_task(self._bring_in(piece, size))
        return not self._waits

    async def _bring_in(self, piece: Slice, size: int) -> None:
        with contextlib.suppress(OSError):  # whoever sends it will meet the same error
            await self._away(piece.file.bring_in, piece.position, size)
        self._warm_until = piece.position + size  # whatever the kernel did with it since
        self._waited()

    def _waited(self) -> None:
        self._waits = False
        self._go_on()

    def _duplicate(self) -> bool:
        """Whether there is a socket to use sendfile on; without a descriptor left for it, bytes are copied."""
        if self._plain is None:
            return False
        try:
            self._socket = self._plain.dup()
        except OSError:
            self._plain = None
            return False
        return True

    def _arm(self, blocked: bool) -> None:
        if blocked == self._armed or self._socket is None:
            return
        self._armed = blocked
        if blocked:
            self._loop.add_writer(self._socket, self._go_on)
        else:
            self._loop.remove_writer(self._socket)
