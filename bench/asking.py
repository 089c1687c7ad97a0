"""Requests of members, over plain sockets.

Members are played by the benchmark itself, so that the broker is what is measured: real clients would cost more than either
broker.
"""

from __future__ import annotations

import asyncio
import struct
import time
from typing import Any

from bench.drivers import CannotMeasure
from harness import Server, split
from ottla.wire.codec import decode
from ottla.wire.errors import Error
from ottla.wire.frames import read_response_header, request_frame
from ottla.wire.messages import RESPONSES
from ottla.wire.messages.commits import OffsetCommitRequest, OffsetFetchRequest
from ottla.wire.messages.groups import (
    ConsumerGroupHeartbeatRequest,
    FindCoordinatorRequest,
    HeartbeatRequest,
    JoinGroupRequest,
    LeaveGroupRequest,
    SyncGroupRequest,
)
from ottla.wire.schema import Message

VERSIONS: dict[type[Message], int] = {
    OffsetCommitRequest: 7,
    OffsetFetchRequest: 7,
    FindCoordinatorRequest: 2,
    JoinGroupRequest: 5,
    SyncGroupRequest: 3,
    HeartbeatRequest: 3,
    LeaveGroupRequest: 2,
    ConsumerGroupHeartbeatRequest: 1,
}
WAIT_FOR = {error.code for error in (Error.COORDINATOR_LOAD_IN_PROGRESS, Error.COORDINATOR_NOT_AVAILABLE)}
WAIT_FOR |= {Error.NOT_COORDINATOR.code}


def frame(request: Message) -> bytes:
    parts = request_frame(request, VERSIONS[type(request)], 1, "bench")
    return b"".join(bytes(part) for part in parts)  # type: ignore[arg-type]


class Line:
    """One connection; requests are answered in order."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._reader, self._writer = reader, writer
        self._turn = asyncio.Lock()

    @classmethod
    async def to(cls, server: Server) -> Line:
        return cls(*await asyncio.open_connection(*split(server.address)))

    async def ask(self, request: Message) -> Any:
        data = await self.exchange(frame(request))
        response, version = RESPONSES[type(request).key], VERSIONS[type(request)]
        _, position = read_response_header(data, response, version)
        return decode(response, data, version, position)  # type: ignore[arg-type]

    async def exchange(self, request: bytes) -> bytes:
        async with self._turn:
            self._writer.write(request)
            (size,) = struct.unpack(">i", await self._reader.readexactly(4))
            return await self._reader.readexactly(size)

    def close(self) -> None:
        self._writer.transport.abort()


async def find(line: Line, group: str) -> None:
    deadline = time.monotonic() + 60
    while (await line.ask(FindCoordinatorRequest(key=group))).error_code:
        if time.monotonic() > deadline:
            raise CannotMeasure("no coordinator")
        await asyncio.sleep(0.1)
