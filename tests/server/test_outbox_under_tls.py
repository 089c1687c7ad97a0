"""The outbox on a TLS connection, where files cannot go from the page cache to the socket by themselves."""

from __future__ import annotations

import asyncio
import os
import random
import ssl
from pathlib import Path

import pytest
import trustme

from desk import on_loop
from ottla.server.outbox import JOIN_BELOW, Outbox
from ottla.world import RealDisk, Slice


class Speaker(asyncio.Protocol):
    def __init__(self) -> None:
        self.made = asyncio.Event()

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self.outbox = Outbox(asyncio.get_running_loop(), transport, lambda: None, RealDisk().away)  # type: ignore[arg-type]
        self.made.set()

    def pause_writing(self) -> None:
        self.outbox.pause()

    def resume_writing(self) -> None:
        self.outbox.resume()

    def connection_lost(self, error: Exception | None) -> None:
        self.outbox.lost()


@on_loop
async def test_files_are_copied_and_arrive_whole_and_in_order(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """IO-04: sendfile would write plain bytes past the encryption; it must not be used, and nothing else may differ."""
    monkeypatch.setattr(os, "sendfile", lambda *_: pytest.fail("sendfile on an encrypted connection"))
    (tmp_path / "data").write_bytes(random.Random(1).randbytes(5_000_000))
    file = RealDisk().open(str(tmp_path / "data"))
    inside, outside = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER), ssl.create_default_context()
    authority = trustme.CA()
    authority.issue_cert("127.0.0.1").configure_cert(inside)
    authority.configure_trust(outside)
    speaker = Speaker()
    server = await asyncio.get_running_loop().create_server(lambda: speaker, "127.0.0.1", 0, ssl=inside)
    port = server.sockets[0].getsockname()[1]
    reader, writer = await asyncio.open_connection("127.0.0.1", port, ssl=outside, limit=1 << 16)
    await speaker.made.wait()
    sizes = (JOIN_BELOW - 1, JOIN_BELOW, 300_000, 4_000_000)
    for number, size in enumerate(sizes):
        speaker.outbox.send([b"head%d" % number, Slice(file, number, size), b"tail"])
    speaker.outbox.close()
    expected = b"".join(b"head%d" % n + file.read_at(n, size) + b"tail" for n, size in enumerate(sizes))
    assert await reader.read(-1) == expected
    writer.close()
    server.close()
