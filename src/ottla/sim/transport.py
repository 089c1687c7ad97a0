"""One end of a simulated connection, and the wire it sends on. What they promise is told in network.py."""

from __future__ import annotations

import asyncio
import contextvars
import errno
import random
import zlib
from asyncio import transports
from collections import deque
from collections.abc import Callable, Iterable
from typing import Any, Protocol

from ottla.sim.machine import Node

WINDOW_BYTES = 64 * 1024
READ_BYTES_MAX = 256 * 1024  # what asyncio asks of a socket in one read
SHORT_READ_CHANCE = 0.05

Protocols = asyncio.Protocol | asyncio.BufferedProtocol


class Ether(Protocol):
    """What a connection needs of the network around it."""

    rng: random.Random
    outside: contextvars.Context
    transports: dict[Transport, None]

    @property
    def loop(self) -> Any: ...
    def blocked(self, source: str, target: str) -> bool: ...
    def delay(self, source: str, target: str) -> float: ...


class Wire:
    """One direction of one connection: a queue of deliveries under way."""

    __slots__ = ("_held", "_last", "_network", "_queue", "source", "target")

    def __init__(self, network: Ether, source: str, target: str) -> None:
        self.source, self.target = source, target
        self._network = network
        self._queue: deque[tuple[Callable[..., None], tuple[Any, ...]]] = deque()
        self._last = 0.0
        self._held = 0  # arrivals that came due while the way was cut

    def put(self, deliver: Callable[..., None], *args: Any) -> None:
        self._queue.append((deliver, args))
        self._schedule()

    def release(self) -> None:
        if self._held and not self._network.blocked(self.source, self.target):
            held, self._held = self._held, 0
            for _ in range(held):
                self._schedule()

    def _schedule(self) -> None:
        network = self._network
        loop = network.loop
        self._last = max(self._last, loop.time() + network.delay(self.source, self.target))
        loop.call_at(self._last, self._arrive, context=network.outside)

    def _arrive(self) -> None:
        if self._network.blocked(self.source, self.target):
            self._held += 1
            return
        deliver, args = self._queue.popleft()
        deliver(*args)


class _Mark:
    """Something in a receive queue that is not bytes."""


_EOF, _RESET = _Mark(), _Mark()


class Transport(transports._FlowControlMixin, asyncio.Transport):
    """One end of a connection. The flow-control mixin is asyncio's own, so its rules are the real ones.

    Methods named `..._arrived`, `credit` and `perish` are the kernel: they run in no node's name and only queue things.
    `_read`, `_flush`, `_finish` and whatever they call are the process: they run in the node's context, so they wait
    while the node is paused and never run once it is dead.
    """

    _loop: Any
    _protocol: Any
    _protocol_paused: bool

    def __init__(
        self,
        network: Ether,
        node: Node,
        context: contextvars.Context,
        here: tuple[str, int],
        there: tuple[str, int],
    ) -> None:
        super().__init__({"sockname": here, "peername": there}, network.loop)
        self.network, self.node, self.context = network, node, context
        self._protocol = None
        self._left: Callable[[Transport], None] | None = None
        # Sending: what the process still holds, and what the kernel would take.
        self._buffer: deque[bytes] = deque()
        self._buffered = 0
        self._room = WINDOW_BYTES
        self._ending = self._end_sent = False
        # Receiving: what the kernel holds.
        self._inbox: deque[bytes | _Mark] = deque()
        self._reading = self._paused = self._read_armed = False
        self._broken = False  # a reset arrived
        self._closing = self._lost = self._shut = False
        self._resuming = False

    def join(self, peer: Transport) -> None:
        self.peer = peer
        self.out = Wire(self.network, self.node.name, peer.node.name)
        self.network.transports[self] = None

    def open(
        self,
        protocol: Protocols,
        opened: asyncio.Future[Any] | None = None,
        left: Callable[[Transport], None] | None = None,
    ) -> None:
        self._protocol, self._left = protocol, left
        protocol.connection_made(self)
        if not self._closing:
            self._reading = True
            self._wake_reader()
        if opened is not None and not opened.done():
            opened.set_result(None)

    # What protocols call

    def get_protocol(self) -> Any:
        return self._protocol

    def set_protocol(self, protocol: asyncio.BaseProtocol) -> None:
        self._protocol = protocol

    def is_closing(self) -> bool:
        return self._closing

    def is_reading(self) -> bool:
        return self._reading and not self._paused and not self._closing

    def get_write_buffer_size(self) -> int:
        return self._buffered

    def can_write_eof(self) -> bool:
        return True

    def pause_reading(self) -> None:
        self._paused = True

    def resume_reading(self) -> None:
        if self._paused:
            self._paused = False
            self._wake_reader()

    def write(self, data: bytes | bytearray | memoryview) -> None:
        if self._ending:
            raise RuntimeError("Cannot call write() after write_eof()")
        if self._lost or not data:
            return
        if self._broken:
            self._fail(ConnectionResetError(errno.ECONNRESET, "Connection reset by peer"))
            return
        rest = bytes(data)
        if not self._buffer:
            rest = rest[self._transmit(rest) :]
        if rest:
            self._buffer.append(rest)
            self._buffered += len(rest)
            self._maybe_pause_protocol()  # type: ignore[attr-defined]

    def writelines(self, list_of_data: Iterable[bytes | bytearray | memoryview]) -> None:
        self.write(b"".join(list_of_data))

    def write_eof(self) -> None:
        if self._closing or self._ending:
            return
        self._ending = True
        if not self._buffer:
            self._send_end()

    def close(self) -> None:
        self._not_while_resuming("close")
        if self._closing:
            return
        self._closing = True
        if not self._buffer:
            self._lost = True
            self._loop.call_soon(self._finish, None, context=self.context)

    def abort(self) -> None:
        self._not_while_resuming("abort")
        self._fail(None)

    def _not_while_resuming(self, what: str) -> None:
        if self._resuming:
            message = f"transport.{what}() inside resume_writing: connection_lost runs twice on Python 3.11"
            self._loop.call_exception_handler({"message": message, "transport": self, "protocol": self._protocol})

    # Sending

    def _transmit(self, data: bytes) -> int:
        """Hand the kernel as much as the window takes."""
        size = min(len(data), self._room)
        if size:
            piece = data if size == len(data) else data[:size]
            self._room -= size
            self._loop.note("send", self.node, self.peer.node, size, zlib.crc32(piece))
            self.out.put(self.peer.bytes_arrived, piece)
        return size

    def _flush(self) -> None:
        """The kernel has room again."""
        if self._lost:
            return
        if self._broken:
            self._fail(ConnectionResetError(errno.ECONNRESET, "Connection reset by peer"))
            return
        self._drain()
        self._resuming = True
        try:
            self._maybe_resume_protocol()  # type: ignore[attr-defined]
        finally:
            self._resuming = False
        if self._buffer or self._lost:
            return
        if self._closing:
            self._lost = True
            self._finish(None)
        elif self._ending:
            self._send_end()

    def _drain(self) -> None:
        while self._buffer and self._room:
            piece = self._buffer[0]
            sent = self._transmit(piece)
            self._buffered -= sent
            if sent == len(piece):
                self._buffer.popleft()
            else:
                self._buffer[0] = piece[sent:]

    def _send_end(self) -> None:
        if not self._end_sent:
            self._end_sent = True
            self.out.put(self.peer.end_arrived)

    # Receiving

    def _wake_reader(self) -> None:
        if self._inbox and self._reading and not (self._read_armed or self._paused or self._closing):
            self._read_armed = True
            self._loop.call_soon(self._read, context=self.context)

    def _read(self) -> None:
        self._read_armed = False
        if self._paused or self._closing or not self._inbox:
            return
        head = self._inbox[0]
        if head is _EOF:
            self._inbox.popleft()
            self._read_end()
        elif head is _RESET:
            self._inbox.popleft()
            self._fail(ConnectionResetError(errno.ECONNRESET, "Connection reset by peer"))
        else:
            self._read_bytes()
            self._wake_reader()

    def _read_bytes(self) -> None:
        protocol = self._protocol
        try:
            if isinstance(protocol, asyncio.BufferedProtocol):
                buffer = memoryview(protocol.get_buffer(-1))
                data = self._take(len(buffer))
                buffer[: len(data)] = data
                protocol.buffer_updated(len(data))
            else:
                protocol.data_received(self._take(READ_BYTES_MAX))
        except Exception as error:
            message = "Fatal error: the protocol failed on received data."
            self._loop.call_exception_handler(
                {"message": message, "exception": error, "transport": self, "protocol": protocol}
            )
            self._fail(error)

    def _take(self, bytes_max: int) -> bytes:
        """Bytes from the receive queue, which gives the peer that much window back."""
        if bytes_max <= 0:
            raise RuntimeError("get_buffer() returned an empty buffer")
        rng = self.network.rng
        if rng.random() < SHORT_READ_CHANCE:
            bytes_max = rng.randint(1, bytes_max if bytes_max < 64 else 64)
        pieces, size = [], 0
        while size < bytes_max and self._inbox and isinstance(self._inbox[0], bytes):
            piece = self._inbox.popleft()
            assert isinstance(piece, bytes)
            if size + len(piece) > bytes_max:
                self._inbox.appendleft(piece[bytes_max - size :])
                piece = piece[: bytes_max - size]
            pieces.append(piece)
            size += len(piece)
        self._give_window(size)
        return pieces[0] if len(pieces) == 1 else b"".join(pieces)

    def _give_window(self, size: int) -> None:
        """Acknowledge. Only a sender that waits needs a packet for it, or a cut on the way back, to be held up by."""
        peer = self.peer
        if peer._buffer or self.network.blocked(self.node.name, peer.node.name):
            self.out.put(peer.credit, size)
        else:
            peer._room += size

    def _read_end(self) -> None:
        if self._protocol.eof_received():
            self._reading = False
        else:
            self.close()

    # The kernel

    def bytes_arrived(self, data: bytes) -> None:
        if self._shut:
            self.out.put(self.peer.reset_arrived)  # nobody is at home
        else:
            self._inbox.append(data)
            self._wake_reader()

    def end_arrived(self) -> None:
        if not self._shut:
            self._inbox.append(_EOF)
            self._wake_reader()

    def reset_arrived(self) -> None:
        if self._shut or self._broken:
            return
        self._broken = True
        self._inbox.append(_RESET)
        self._wake_reader()
        if self._buffer:
            self._loop.call_soon(self._flush, context=self.context)

    def credit(self, size: int) -> None:
        self._room += size
        if self._buffer:
            self._loop.call_soon(self._flush, context=self.context)

    def perish(self) -> None:
        """The process is gone. What the kernel already had still goes out, then a reset."""
        self._shut = self._lost = self._closing = True
        self._buffer.clear()
        self.network.transports.pop(self, None)
        self.out.put(self.peer.reset_arrived)

    # Ending

    def _fail(self, error: BaseException | None) -> None:
        """Drop what is unsent and tell the protocol, once."""
        if self._lost:
            return
        self._lost = self._closing = True
        self._buffer.clear()
        self._buffered = 0
        self._loop.call_soon(self._finish, error, context=self.context)

    def _finish(self, error: BaseException | None) -> None:
        try:
            if self._protocol is not None:
                self._protocol.connection_lost(error)
        finally:
            self._shut = True
            self.network.transports.pop(self, None)
            self._hang_up()
            if self._left is not None:
                self._left(self)

    def _hang_up(self) -> None:
        """As a kernel closes a socket: politely, unless there are bytes that nobody read."""
        if self._broken:
            return
        if any(isinstance(piece, bytes) for piece in self._inbox):
            self.out.put(self.peer.reset_arrived)
        else:
            self._send_end()
