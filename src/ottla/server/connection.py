"""One connection of a client: frames in, handlers started, replies out in the order of the requests.

All connections of a listener receive into one shared buffer. A connection owns a buffer only while it holds part of a
frame, and that one grows with the bytes that really came, never on trust of the length the frame announces. Frames are
handled in place; whatever a handler keeps past its first await it has copied (large idle buffers per connection cost
279 MB for 1,000 of them).

A connection stops reading requests while it has too many in flight, while the peer does not take its replies, or while
a request that must take effect before later ones still waits (`hold`), or while its client is over a quota (`mute`).
Bytes that already came are kept and looked at again when the reason is gone.
"""

from __future__ import annotations

import asyncio
import logging
from collections import deque
from typing import TYPE_CHECKING

from ottla.server.context import ANONYMOUS
from ottla.server.dispatch import HANDLERS, ON_CONTROLLER, Exchange, dispatch
from ottla.server.outbox import Outbox
from ottla.wire.codec import Part, size_of
from ottla.wire.frames import SIZE, add_response

if TYPE_CHECKING:
    from ottla.server.listener import Listener
    from ottla.server.node import Node

log = logging.getLogger("ottla.server")

frame_size = SIZE.unpack_from

# Fits what one turn of the loop usually brings; larger frames continue in a buffer of their own.
SHARED_BUFFER = 256 * 1024
# Buffers of finished frames are used again, so that a bulk producer does not fault in fresh pages for each frame.
POOLED_BUFFERS = 8
POOLED_BYTES_FROM = 64 * 1024
POOLED_BYTES_MAX = 4 * 1024 * 1024
# What a connection gets that has sent only the start of a frame: thousands may do no more than that.
FIRST_BUFFER = 4 * 1024
# So many requests of one connection are worked on at a time if they are not Produce: their answers wait in memory, and that
# to a small question about all topics may have megabytes and takes long. Clients send a few; Apache Kafka looks at one.
QUESTIONS_IN_FLIGHT_MAX = 5
PRODUCE = b"\0\0"


class Buffers:
    """One receive buffer that all connections share, and a few spare ones for frames that come in pieces."""

    __slots__ = ("_spare", "shared")

    def __init__(self) -> None:
        self.shared = memoryview(bytearray(SHARED_BUFFER))
        self._spare: list[bytearray] = []

    def take(self, size: int, received: int) -> bytearray:
        """A buffer for a frame of `size` bytes of which `received` have come; it may be too small and grow later."""
        for index, spare in enumerate(self._spare):
            if len(spare) >= size and is_free(spare):
                return self._spare.pop(index)
        return bytearray(min(size, max(FIRST_BUFFER, 2 * received)))

    def give_back(self, buffer: bytearray) -> None:
        """It may still be in use: a batch that is being written lies in it."""
        if POOLED_BYTES_FROM < len(buffer) <= POOLED_BYTES_MAX and len(self._spare) < POOLED_BUFFERS:
            self._spare.append(buffer)


def is_free(buffer: bytearray) -> bool:
    try:
        buffer.append(buffer.pop())  # costs nothing, and fails while anybody holds a view into it
    except BufferError:
        return False
    return True


class Mute:
    """A client is not listened to until its time is over. `behind`: who else holds the connection meanwhile."""

    __slots__ = ("behind", "timer", "until")

    def __init__(self, behind: object, until: float) -> None:
        self.behind, self.until = behind, until
        self.timer: asyncio.TimerHandle | None = None


class Connection(asyncio.BufferedProtocol):
    __slots__ = (
        "_backlog",
        "_doomed",
        "_have",
        "_holds",
        "_need",
        "_over",
        "_own",
        "_reading",
        "_talking",
        "exchanges",
        "frame_began",
        "introduced",
        "is_exempt",
        "last_active",
        "listener",
        "node",
        "outbox",
        "peer_host",
        "principal",
        "transport",
    )

    def __init__(self, listener: Listener) -> None:
        self.listener = listener
        self.node: Node = listener.node
        self.principal = ANONYMOUS
        self.peer_host = ""
        self.transport: asyncio.Transport | None = None
        self.outbox: Outbox | None = None
        self.exchanges: deque[Exchange] = deque()
        self.last_active = self.frame_began = 0.0
        self.introduced = False  # becomes true with its first whole request
        # From quotas, and from waiting for the rest of a turn (`Tick`): nodes that wait for one another serve nobody.
        self.is_exempt = False
        self._own: bytearray | None = None
        self._have = self._need = 0
        self._backlog: bytes | None = None
        self._holds: object = None
        self._talking = False
        self._reading = True
        self._over = False  # nothing that comes now is looked at
        self._doomed = False  # and when all is answered, it ends

    dispatch = dispatch
    handlers = HANDLERS

    # --- the transport calls these

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        assert isinstance(transport, asyncio.Transport)
        peer = transport.get_extra_info("peername")
        self.peer_host = peer[0] if isinstance(peer, tuple) else str(peer)
        self.transport = transport
        self.last_active = self.listener.loop.time()
        self.outbox = Outbox(self.listener.loop, transport, self._drained, self.node.world.disk.away)
        self.listener.opened(self)

    def connection_lost(self, error: Exception | None) -> None:
        self._over = True
        self.transport = None
        if self.outbox is not None:
            self.outbox.lost()
        self.listener.closed(self)
        exchanges, self.exchanges = self.exchanges, deque()
        for exchange in exchanges:
            exchange.cancel()
        self._backlog = None
        self._own = None
        if type(self._holds) is Mute and self._holds.timer is not None:
            self._holds.timer.cancel()

    def get_buffer(self, sizehint: int) -> memoryview:
        if self._own is None:
            return self.listener.buffers.shared
        if self._have == len(self._own):
            self._own.extend(bytes(min(self._need, 2 * len(self._own)) - len(self._own)))
        return memoryview(self._own)[self._have : self._need]

    def buffer_updated(self, count: int) -> None:
        self.last_active = self.listener.loop.time()
        if self._own is None:
            self._frames(self.listener.buffers.shared[:count])
        else:
            self._continue_frame(count)

    def eof_received(self) -> bool:
        return False

    def pause_writing(self) -> None:
        self.outbox.pause()  # type: ignore[union-attr]
        self._throttle()

    def resume_writing(self) -> None:
        self.outbox.resume()  # type: ignore[union-attr]

    # --- bytes to frames

    def _frames(self, data: memoryview) -> None:
        """Handle every whole frame; keep the rest."""
        position, end, bytes_max = 0, len(data), self.listener.frame_bytes_max
        while end - position >= 4:
            (size,) = frame_size(data, position)
            if not 0 <= size <= bytes_max:
                self.refuse(f"a frame of {size} bytes is not allowed")
                return
            start = position + 4
            if end - start < size or self._must_wait(data, start):
                break
            position = start + size
            self.introduced = True
            self.dispatch(data[start:position])
            if self._over:
                return
        if position < end:
            self._keep(data[position:])

    def _must_wait(self, data: memoryview, start: int) -> bool:
        """Whether the frame that starts here has to wait until others are answered, or their answers are taken."""
        if self._holds is not None or self.outbox.is_stuck:  # type: ignore[union-attr]
            return True
        waiting = len(self.exchanges)
        if waiting < self.listener.questions_max:
            return False
        return waiting >= self.listener.in_flight_max or data[start : start + 2] != PRODUCE

    def _keep(self, rest: memoryview) -> None:
        """What is no whole frame yet gets a buffer that it can grow in; what has to wait is looked at again later."""
        if len(rest) >= 4 and frame_size(rest)[0] <= len(rest) - 4:
            self._backlog = bytes(rest)
            self._throttle()
        else:
            self._begin_own(rest)

    def _begin_own(self, part: memoryview) -> None:
        """The start of a frame came, or even only of its length."""
        have = len(part)
        need = 4 + int.from_bytes(part[:4], "big") if have >= 4 else 4
        own = self.listener.buffers.take(need, have) if need > FIRST_BUFFER else bytearray(FIRST_BUFFER)
        own[:have] = part
        self._own, self._have, self._need = own, have, need
        self.frame_began = self.last_active

    def _continue_frame(self, count: int) -> None:
        assert self._own is not None
        self._have += count
        if self._have < self._need:
            return
        if self._need == 4:
            size = int.from_bytes(self._own[:4], "big", signed=True)
            if not 0 <= size <= self.listener.frame_bytes_max:
                self.refuse(f"a frame of {size} bytes is not allowed")
                return
            self._need = 4 + size
            if size:
                return
        own, need = self._own, self._need
        self._own = None
        self._frames(memoryview(own)[:need])
        self.listener.buffers.give_back(own)

    # --- when to stop reading

    def _is_full(self) -> bool:
        return (
            self._holds is not None
            or len(self.exchanges) >= self.listener.in_flight_max
            or self.outbox.is_stuck  # type: ignore[union-attr]
            or self._over
        )

    def hold(self, holder: object) -> None:
        """Look at nothing further until whoever holds says so: a request that must take effect before later ones, or the
        listener, which lets in only so many a second."""
        if type(self._holds) is Mute:
            self._holds.behind = holder
        else:
            self._holds = holder

    def release(self, holder: object) -> None:
        if self._holds is holder:
            self._holds = None
            self.listener.loop.call_soon(self._unthrottle)
        elif type(self._holds) is Mute and self._holds.behind is holder:
            self._holds.behind = None

    def mute(self, seconds: float) -> None:
        """Its client is over a quota: read nothing for so long. Answers leave meanwhile."""
        if self._over:
            return
        until = self.listener.loop.time() + seconds
        if type(self._holds) is Mute:
            self._holds.until = max(self._holds.until, until)
            return
        mute = self._holds = Mute(self._holds, until)
        mute.timer = self.listener.loop.call_at(until, self._unmute, mute)
        self._throttle()

    def _unmute(self, mute: Mute) -> None:
        if mute.until > self.listener.loop.time():
            mute.timer = self.listener.loop.call_at(mute.until, self._unmute, mute)
            return
        self._holds = mute.behind
        self.last_active = self.listener.loop.time()
        self._unthrottle()

    @property
    def is_muted(self) -> bool:
        return type(self._holds) is Mute

    def _throttle(self) -> None:
        if self._reading and self.transport is not None and not self.transport.is_closing():
            self._reading = False
            self.transport.pause_reading()

    def _unthrottle(self) -> None:
        if self.node.charging is not None:
            self.node.charging.begins()
        while self._backlog is not None and not self._is_full():
            backlog, self._backlog = self._backlog, None
            self._frames(memoryview(backlog))
            if self._backlog is not None and len(self._backlog) == len(backlog):
                break  # the next request is no Produce, and has to wait until others are answered
        if not self._reading and self._backlog is None and not self._is_full():
            self._reading = True
            if self.transport is not None and not self.transport.is_closing():
                self.transport.resume_reading()

    # --- replies

    def answered(self, exchange: Exchange) -> None:
        """A reply is ready; it leaves with the tick, in its turn."""
        if self._holds is not None:
            self.release(exchange)
        if self.node.charging is not None:
            self.node.charging.settle(exchange)
        if self.exchanges[0].ready:
            self._talk()

    def _drained(self) -> None:
        """There is room for more answers. But one that is ready may speak of what this turn has yet to write."""
        self._talk()

    def _talk(self) -> None:
        if not self._talking:
            self._talking = True
            self.node.tick.talk(self)

    def flush(self) -> None:
        """Send the replies at the head of the queue that are ready."""
        self._talking = False
        exchanges = self.exchanges
        if self.outbox is None or self.transport is None:
            return
        parts: list[Part] = []
        buffer = bytearray()
        measures, now = self.node.measures.api, self.listener.loop.time()
        while exchanges and exchanges[0].ready and not self.outbox.is_stuck:
            exchange = exchanges.popleft()
            measure, answer, before = measures[exchange.handler.key], exchange.response, len(buffer)
            if answer is not None:
                held = len(parts)
                buffer = add_response(buffer, parts, answer, exchange.answer_version, exchange.correlation_id)
                before -= size_of(parts[held:]) if len(parts) > held else 0
                measure.look(answer)
            measure.observe(now - exchange.started, exchange.size, len(buffer) - before)
        if buffer:
            parts.append(buffer)
        if parts:
            self.outbox.send(parts)
        if self._doomed and not exchanges:
            self.close()
        elif not self._reading:
            self._unthrottle()

    def refuse(self, reason: str) -> None:
        """What came now cannot be understood: read no further, answer what came before it, and close."""
        log.info("closing connection from %s: %s", self.peer_host, reason)
        self._over = self._doomed = True
        self._throttle()
        if not self.exchanges:
            self.abort(reason)

    def abort(self, reason: str) -> None:
        """Close at once; what was asked before and is not answered yet stays unanswered."""
        self._over = True
        if self.transport is not None:
            self.transport.abort()

    def close(self) -> None:
        self._over = True
        if self.outbox is not None and self.transport is not None:
            self.outbox.close()

    def is_overdue(self, now: float) -> bool:
        if self._own is not None and not self.introduced and now - self.frame_began > self.listener.first_frame_s:
            return True
        if self._doomed and now - self.last_active > self.listener.first_frame_s:
            return True
        # A request that waits is not idle; a peer that does not take its answers is.
        is_waiting = bool(self.exchanges) and not self.outbox.is_stuck  # type: ignore[union-attr]
        return not is_waiting and now - self.last_active > self.listener.idle_s


class ControllerConnection(Connection):
    """A connection to the controller of this node, not to its broker."""

    __slots__ = ("broker_id",)
    handlers = ON_CONTROLLER

    def __init__(self, listener: Listener) -> None:
        super().__init__(listener)
        self.is_exempt = True
        self.broker_id: int | None = None  # the broker whose heartbeats come on it

    def connection_lost(self, error: Exception | None) -> None:
        super().connection_lost(error)
        if self.broker_id is not None:
            self.node.watch.lost(self.broker_id, self)
