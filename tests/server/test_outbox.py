"""The outbox over real sockets and real files: order, back-pressure, sendfile, and ends of connections."""

from __future__ import annotations

import asyncio
import os
import random
from collections.abc import Awaitable, Callable
from pathlib import Path

import pytest

from ottla.server.outbox import JOIN_BELOW, TURN_BYTES, Outbox
from ottla.world import RealDisk, RealFile, Slice


class Speaker(asyncio.Protocol):
    """The server side: what it has to say goes through its outbox."""

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        assert isinstance(transport, asyncio.Transport)
        self.drained = 0
        self.lost = asyncio.get_running_loop().create_future()
        self.outbox = Outbox(asyncio.get_running_loop(), transport, self.on_drain, RealDisk().away)

    def on_drain(self) -> None:
        self.drained += 1

    def pause_writing(self) -> None:
        self.outbox.pause()

    def resume_writing(self) -> None:
        self.outbox.resume()

    def connection_lost(self, error: Exception | None) -> None:
        self.outbox.lost()
        self.lost.set_result(error)


@pytest.fixture
def data_file(tmp_path: Path) -> RealFile:
    (tmp_path / "data").write_bytes(random.Random(1).randbytes(20_000_000))
    return RealDisk().open(str(tmp_path / "data"))


def talk(main: Callable[[Speaker, asyncio.StreamReader, asyncio.StreamWriter], Awaitable[None]]) -> None:
    async def run() -> None:
        speakers: list[Speaker] = []

        def made() -> Speaker:
            speakers.append(Speaker())
            return speakers[-1]

        server = await asyncio.get_running_loop().create_server(made, "127.0.0.1", 0)
        reader, writer = await asyncio.open_connection("127.0.0.1", server.sockets[0].getsockname()[1], limit=1 << 16)
        while not speakers:
            await asyncio.sleep(0)
        await main(speakers[0], reader, writer)
        writer.close()
        server.close()

    asyncio.run(run())


def said(parts: list[bytes | Slice]) -> bytes:
    return b"".join(part.read() if isinstance(part, Slice) else part for part in parts)


def test_bytes_and_slices_of_all_sizes_arrive_in_order(data_file: RealFile) -> None:
    """IO-03: large slices leave by sendfile; the queue keeps the order whatever leaves how. TRAP-27: bytes that are written
    while a file is being sent wait for it."""
    rng = random.Random(7)
    batches = []
    for _ in range(60):
        parts: list[bytes | Slice] = []
        for _ in range(rng.randrange(1, 5)):
            size = rng.choice([1, 100, 4_000, JOIN_BELOW - 1, JOIN_BELOW, 200_000, 1_000_000])
            part = Slice(data_file, rng.randrange(0, 19_000_000), size) if rng.random() < 0.6 else rng.randbytes(size)
            parts.append(part)
        batches.append(parts)
    expected = b"".join(said(parts) for parts in batches)

    async def main(speaker: Speaker, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        for parts in batches:
            speaker.outbox.send(parts)
        speaker.outbox.close()
        assert speaker.outbox.is_stuck
        assert await reader.read(-1) == expected
        await speaker.lost
        assert speaker.drained

    talk(main)


def test_large_slices_leave_by_sendfile(data_file: RealFile, monkeypatch: pytest.MonkeyPatch) -> None:
    """IO-03"""
    sent, real = [], os.sendfile

    def counted(out: int, source: int, offset: int, count: int) -> int:
        sent.append(count)
        return real(out, source, offset, count)

    monkeypatch.setattr(os, "sendfile", counted)

    async def main(speaker: Speaker, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        speaker.outbox.send([b"head", Slice(data_file, 0, 100_000)])
        speaker.outbox.send([b"head", Slice(data_file, 0, 1_000)])
        expected = b"head" + data_file.read_at(0, 100_000) + b"head" + data_file.read_at(0, 1_000)
        assert await reader.readexactly(len(expected)) == expected

    talk(main)
    assert sent == [100_000]


def test_a_reader_that_takes_nothing_costs_no_memory(data_file: RealFile) -> None:
    """IO-08: what waits are slices, not bytes."""

    async def main(speaker: Speaker, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        for _ in range(50):
            speaker.outbox.send([Slice(data_file, 0, 10_000_000)])
        assert speaker.outbox.is_stuck
        writer.transport.abort()
        await speaker.lost

    talk(main)


def evict(file: RealFile) -> None:
    """Give its pages back, as a machine does that is short of memory."""
    assert file.fd is not None
    file.sync()
    os.posix_fadvise(file.fd, 0, 0, os.POSIX_FADV_DONTNEED)
    if file.is_cached(10_000_000, 1_000_000):
        pytest.skip("the file system keeps what it is told to forget")


def test_what_is_not_in_memory_is_read_in_off_the_loop(data_file: RealFile, monkeypatch: pytest.MonkeyPatch) -> None:
    """The loop sends nothing that it would have to wait for, be it small or large."""
    cold, real = [], os.sendfile

    def watched(out: int, source: int, offset: int, count: int) -> int:
        if not data_file.is_cached(offset, count):
            cold.append((offset, count))
        return real(out, source, offset, count)

    monkeypatch.setattr(os, "sendfile", watched)
    parts: list[bytes | Slice] = [
        b"head",
        *(Slice(data_file, 1_000_000, 3_000_000), b"middle", Slice(data_file, 9_000_000, 1_000)),
        *(Slice(data_file, 15_000_000, 100_000), b"end"),
    ]
    expected = said(parts)

    async def main(speaker: Speaker, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        evict(data_file)
        speaker.outbox.send(parts)
        assert speaker.outbox.is_stuck
        assert await reader.readexactly(len(expected)) == expected
        assert speaker.drained and not speaker.outbox.is_stuck

    talk(main)
    assert not cold


def test_a_reader_that_goes_while_the_disk_is_read(data_file: RealFile) -> None:
    async def main(speaker: Speaker, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        evict(data_file)
        speaker.outbox.send([b"head", Slice(data_file, 1_000_000, 1_000_000)])
        writer.transport.abort()
        await speaker.lost
        await asyncio.sleep(0.05)

    talk(main)


def test_others_have_their_turn_while_much_is_sent(data_file: RealFile, monkeypatch: pytest.MonkeyPatch) -> None:
    """A reader who takes everything at once gets only so much of one turn of the loop."""
    turns, sent, real = [0], [0], os.sendfile
    data_file.read_at(0, 20_000_000)

    def counted(out: int, source: int, offset: int, count: int) -> int:
        gone = real(out, source, offset, count)
        sent.extend([0] * (turns[0] + 1 - len(sent)))
        sent[turns[0]] += gone
        return gone

    monkeypatch.setattr(os, "sendfile", counted)

    async def count_turns() -> None:
        while True:
            turns[0] += 1
            await asyncio.sleep(0)

    async def main(speaker: Speaker, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        counting = asyncio.create_task(count_turns())
        speaker.outbox.send([Slice(data_file, n * 900_000, 900_000) for n in range(20)])
        await reader.readexactly(18_000_000)
        counting.cancel()

    talk(main)
    assert sum(sent) == 18_000_000
    assert max(sent) <= TURN_BYTES


def test_a_file_shorter_than_promised_ends_the_connection(data_file: RealFile) -> None:
    """TRAP-28: the length is on the wire already, so nothing that follows could be understood."""

    async def main(speaker: Speaker, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        speaker.outbox.send([b"1", Slice(data_file, 19_999_000, 100_000)])
        with pytest.raises(ConnectionError):
            while await reader.read(65536):
                pass
            raise ConnectionResetError
        await speaker.lost

    talk(main)


def test_no_descriptor_is_left_when_the_peer_goes(data_file: RealFile) -> None:
    before = len(os.listdir("/proc/self/fd"))

    async def main(speaker: Speaker, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        speaker.outbox.send([Slice(data_file, 0, 20_000_000)])
        writer.transport.abort()
        await speaker.lost

    for _ in range(5):
        talk(main)
    assert len(os.listdir("/proc/self/fd")) <= before + 1
