"""What one connection still has to say, in order: bytes, and slices of files.

Bytes leave by `transport.write`. A large slice leaves by `os.sendfile` where there is a plain socket and a real file;
under TLS and in simulation it is read a piece at a time and written. Small slices are read and joined with the header
around them, because a second system call costs more than the copy. Nothing else may call `transport.write`.

sendfile works beside the transport on a duplicate of its socket, since asyncio refuses `add_writer` for a descriptor it
manages. With `high=0` the transport says at once when the kernel takes no more (`pause_writing`), so a slice never
overtakes bytes that still sit in the transport's own buffer.
"""

from __future__ import annotations

import asyncio
import os
import socket
from collections import deque
from collections.abc import Callable, Sequence

from ottla.wire.codec import Part
from ottla.world import Slice

# Below this a slice is read and joined; above it sendfile costs less CPU (measured between 32 and 64 KiB).
JOIN_BELOW = 48 * 1024
# Joining stops at this many bytes: a reader of many small slices who takes nothing must not make us hold them all.
JOIN_BYTES_MAX = 1024 * 1024
# How much of a file is copied at a time where sendfile cannot be used.
COPY_PIECE = 256 * 1024


class Outbox:
    __slots__ = (
        "_armed",
        "_closing",
        "_full",
        "_loop",
        "_on_drain",
        "_plain",
        "_queue",
        "_socket",
        "_transport",
        "is_stuck",
    )

    def __init__(
        self, loop: asyncio.AbstractEventLoop, transport: asyncio.Transport, on_drain: Callable[[], None]
    ) -> None:
        self._loop = loop
        self._transport = transport
        self._on_drain = on_drain
        self._queue: deque[Part] = deque()
        self._full = self._armed = self._closing = False
        self.is_stuck = False  # the peer does not take what it asked for: _full or _armed
        transport.set_write_buffer_limits(high=0)
        # What sendfile works on is made when first needed: most connections never do, and descriptors are few.
        self._socket: socket.socket | None = None
        self._plain: socket.socket | None = None
        if transport.get_extra_info("sslcontext") is None:
            self._plain = transport.get_extra_info("socket")

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
        if not (self._armed or self._full):
            self._pump()

    @staticmethod
    def _joined(parts: Sequence[Part]) -> list[Part]:
        """The same with small slices read. Their length is already in the frame, so a shorter file is the end."""
        ready: list[Part] = []
        left = JOIN_BYTES_MAX
        for part in parts:
            if type(part) is Slice and part.size < JOIN_BELOW and left > 0:
                data = part.read()
                if len(data) != part.size:
                    raise OSError("the file is shorter than the length already promised")
                left -= part.size
                ready.append(data)
            else:
                ready.append(part)
        return ready

    def pause(self) -> None:
        self._full = self.is_stuck = True

    def resume(self) -> None:
        self._full = False
        self.is_stuck = self._armed
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
        """The kernel takes bytes again."""
        self._pump()
        if not self.is_stuck:
            # Not from inside resume_writing: whoever is told may end the connection, and asyncio cannot bear that there.
            self._loop.call_soon(self._on_drain)

    def _pump(self) -> None:
        blocked = False
        try:
            while self._queue and not self._full and not blocked:
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
        if self._closing and not self._queue:
            self._loop.call_soon(self._transport.close)

    def _write_run(self) -> None:
        run: list[bytes] = []
        while self._queue and type(self._queue[0]) is not Slice:
            run.append(self._queue.popleft())  # type: ignore[arg-type]
        self._transport.write(b"".join(run))

    def _move(self, piece: Slice) -> bool:
        """Send some of a slice; True when the kernel takes no more now."""
        native = piece.file.fd is not None and (self._socket is not None or self._duplicate())
        if native:
            try:
                sent = os.sendfile(self._socket.fileno(), piece.file.fd, piece.position, piece.size)  # type: ignore[union-attr,arg-type]
            except BlockingIOError:
                return True
        else:
            data = piece.file.read_at(piece.position, min(piece.size, COPY_PIECE))
            sent = len(data)
            self._transport.write(data)
        if not sent:
            raise OSError("the file is shorter than the length already promised")
        piece.position += sent
        piece.size -= sent
        if not piece.size:
            self._queue.popleft()
            return False
        return native  # a short sendfile means a full socket: wait, do not ask again

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
        self.is_stuck = self._full or blocked
        if blocked:
            self._loop.add_writer(self._socket, self._go_on)
        else:
            self._loop.remove_writer(self._socket)
