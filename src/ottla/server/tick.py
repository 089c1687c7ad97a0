"""Once per loop turn: write each dirty partition, step whoever waited for that, flush the replies.

Requests that arrive in one turn of the loop are handled as they are read, but their effects leave together: one write
per partition that got bytes, then one gathered send per connection. The order makes an ack honest without suspending
its handler: a reply that was put in a connection's queue during this turn is sent only after the write it speaks of, and
if that write fails the reply is changed before it is encoded (see `Partition.write`).

All that is after all reads of this turn and before the reads of the next: at its end, where the loop knows one (`loop`), else
by `call_soon`.

A turn of the loop costs as much as a small request. So a handler that waited for a write, or for a watermark that rose with
it, goes on in between (`step`), and what it has to say leaves with this turn. What it stages is written before that. What
another node waits for leaves at once: it can begin while the rest of the turn is done.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable
from contextvars import Context
from typing import Protocol

from ottla.server.loop import Loop

log = logging.getLogger("ottla.server")


class Dirty(Protocol):
    """A partition with staged batches."""

    def write(self) -> None: ...


class Talkative(Protocol):
    """A connection with replies that are ready."""

    @property
    def is_exempt(self) -> bool: ...
    def flush(self) -> None: ...
    def abort(self, reason: str) -> None: ...


class Tick:
    __slots__ = ("_armed", "_at_end", "_connections", "_dirty", "_fatal", "_steps")

    def __init__(self, loop: asyncio.AbstractEventLoop, fatal: Callable[[BaseException], None]) -> None:
        self._at_end = loop.at_end_of_turn if isinstance(loop, Loop) else loop.call_soon
        self._fatal = fatal
        self._armed = False
        self._dirty: list[Dirty] = []
        self._connections: list[Talkative] = []
        self._steps: list[tuple[Callable[[], None], Context]] = []

    def dirty(self, partition: Dirty) -> None:
        """The partition staged its first batch since its last write."""
        self._dirty.append(partition)
        if not self._armed:
            self._arm()

    def step(self, step: Callable[[], None], context: Context) -> None:
        """What a handler waited for has come: it goes on when what was accepted is written."""
        self._steps.append((step, context))
        if not self._armed:
            self._arm()

    def talk(self, connection: Talkative) -> None:
        """The connection got its first ready reply since its last flush."""
        self._connections.append(connection)
        if not self._armed:
            self._arm()

    def _arm(self) -> None:
        self._armed = True
        self._at_end(self._flush)

    def _flush(self) -> None:
        while self._dirty or self._steps:
            if not self._write():
                return
            steps, self._steps = self._steps, []
            for step, context in steps:
                try:
                    context.run(step)
                except Exception:
                    log.exception("a handler could not go on")
                if self._connections and self._connections[-1].is_exempt and not self._dirty:
                    self._send(self._connections.pop())
        # Who is told that its client takes answers again may stage more or have more to say: that arms the next turn.
        self._armed = False
        connections, self._connections = self._connections, []
        for connection in connections:
            self._send(connection)

    @staticmethod
    def _send(connection: Talkative) -> None:
        try:
            connection.flush()
        except Exception:
            log.exception("a reply could not be sent")
            connection.abort("a reply could not be sent")

    def _write(self) -> bool:
        dirty, self._dirty = self._dirty, []
        for partition in dirty:
            try:
                partition.write()
            except Exception as error:
                # Not a disk that refuses (the partition deals with that), but a defect: nobody knows what was written, so
                # no reply of this turn may leave, and the node ends. This tick stays armed, for good.
                log.critical("a partition could not be written", exc_info=True)
                self._fatal(error)
                return False
        return True
