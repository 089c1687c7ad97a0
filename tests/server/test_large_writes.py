"""Large batches are written beside the loop, from the buffers they came in, while clients come, go and lose patience."""

from __future__ import annotations

import asyncio
import errno
import os
import time
from collections.abc import Sequence
from pathlib import Path

from desk import on_loop
from ottla.metadata.controller import delete_topics
from ottla.wire.errors import Error
from ottla.wire.records import crc_ok
from ottla.world import FLIES_FROM, Bytes, RealDisk, RealFile
from served import Served, batch, fetch_request, heads, produce_request, serving, values

SIZES = (300_000, 301_000, 600_000, 900_000)


class SlowFile(RealFile):
    __slots__ = ("disk",)

    def write_at(self, position: int, parts: Sequence[Bytes]) -> None:
        """Half of a large batch now, the rest a little later: whoever overwrites it meanwhile will be found out."""
        disk: SlowDisk = self.disk
        if not self.path.endswith(".log") or sum(map(len, parts)) < FLIES_FROM:
            super().write_at(position, parts)
            return
        *before, part = parts
        half = len(part) // 2
        super().write_at(position, [*before, memoryview(part)[:half]])
        position += sum(map(len, before))
        time.sleep(disk.seconds)
        if disk.full:
            raise OSError(errno.ENOSPC, "No space left on device", self.path)
        super().write_at(position + half, [memoryview(part)[half:]])


class SlowDisk(RealDisk):
    def __init__(self, seconds: float) -> None:
        super().__init__()
        self.seconds, self.full = seconds, False

    def open(self, path: str, *, create: bool = False) -> RealFile:
        file = SlowFile(path, os.O_RDWR | (os.O_CREAT if create else 0), self.watch)
        file.disk = self
        return file


def value(number: int) -> bytes:
    return b"%d " % number + bytes([number % 256]) * SIZES[number % len(SIZES)]


async def everything(served: Served, topic: str = "t") -> list[bytes | None]:
    """All values, read from the file and held against their checksums."""
    partition = served.partition(topic)
    partition.open_to(-1)
    log, found = partition.log, list[bytes | None]()
    data = log.disk.read(log.active.path + ".log")
    assert len(data) == log.active.size
    position = 0
    for head in heads(data):
        assert crc_ok(data, position, head.size) and head.base_offset == len(found)
        found += values(data[position : position + head.size])
        position += head.size
    assert position == len(data) and len(found) == log.end_offset
    return found


@on_loop
async def test_what_is_being_written_outlives_the_connection_it_came_by(tmp_path: Path) -> None:
    """Its buffer is not given to the next connection before the write is done with it."""
    async with serving(tmp_path, disk=SlowDisk(0.01)) as served:
        await served.topic("t")
        sent = []
        for number in range(24):
            client = await served.connect()
            sent.append(value(number))
            client.send(produce_request("t", {0: batch(sent[-1])}, acks=number % 2), 9)
            await client.writer.drain()
            while served.partition("t").log.staged_end <= number:
                await asyncio.sleep(0.001)
            client.close()
        assert await everything(served) == sent


@on_loop
async def test_only_who_wrote_it_waits_for_it(tmp_path: Path) -> None:
    """A client that does not wait for its answer reads what it wrote; others read what is there and are not held up."""
    async with serving(tmp_path, disk=SlowDisk(0.5)) as served:
        await served.topic("t")
        writer, other = await served.connect(1 << 22), await served.connect()
        writer.send(produce_request("t", {0: batch(value(0))}), 9)
        while not served.partition("t").log.is_flying:
            await asyncio.sleep(0.001)
        before = await other.fetch("t", 0, max_wait_ms=0)
        assert served.partition("t").log.is_flying and before.high_watermark == 0
        writer.send(fetch_request("t", {0: 0}, max_wait_ms=0), 12)
        await writer.receive()
        fetched = (await writer.receive()).responses[0].partitions[0]
        assert values(fetched.records) == [value(0)]


@on_loop
async def test_many_at_once(tmp_path: Path) -> None:
    async def send(name: int) -> None:
        client = await served.connect()
        for burst in range(4):
            numbers = [name * 100 + burst * 10 + n for n in range(3)]
            for number in numbers:
                small = batch(b"%d small" % number)
                client.send(produce_request("t", {0: small if number % 3 else batch(value(number))}, acks=1), 9)
            for number in numbers:
                answer = (await client.receive()).responses[0].partition_responses[0]
                assert answer.error_code == 0
                told[answer.base_offset] = value(number) if number % 3 == 0 else b"%d small" % number

    told: dict[int, bytes] = {}
    async with serving(tmp_path, disk=SlowDisk(0.003)) as served:
        await served.topic("t")
        await asyncio.gather(*map(send, range(6)))
        found = await everything(served)
        assert dict(enumerate(found)) == told


@on_loop
async def test_one_partition_flies_and_another_is_refused(tmp_path: Path) -> None:
    """Each is answered for itself, and no client has too little time for a write."""
    async with serving(tmp_path, disk=SlowDisk(0.05)) as served:
        await served.topic("t", partitions=3)
        client = await served.connect()
        data = {0: batch(value(1)), 1: batch(b"rotten")[:-1] + b"?", 2: batch(b"small")}
        answer = await client.call(produce_request("t", data, acks=1, timeout_ms=0), 9)
        codes = {each.index: each.error_code for each in answer.responses[0].partition_responses}
        assert codes[0] == codes[2] == 0 and codes[1] != 0
        assert served.partition("t", 0).log.end_offset == served.partition("t", 2).log.end_offset == 1


@on_loop
async def test_a_large_write_that_fails_is_told_or_costs_the_connection(tmp_path: Path) -> None:
    disk = SlowDisk(0.02)
    async with serving(tmp_path, disk=disk) as served:
        await served.topic("t")
        asks, does_not = await served.connect(), await served.connect()
        disk.full = True
        assert (await asks.produce("t", batch(value(1)))).error_code == Error.KAFKA_STORAGE_ERROR.code
        does_not.send(produce_request("t", {0: batch(value(2))}, acks=0), 9)
        assert await does_not.is_cut()
        disk.full = False
        assert (await asks.produce("t", batch(value(3)))).base_offset == 0
        assert await everything(served) == [value(3)]


@on_loop
async def test_a_node_that_stops_during_a_large_write_keeps_it(tmp_path: Path) -> None:
    async with serving(tmp_path, disk=SlowDisk(0.2)) as served:
        await served.topic("t")
        client = await served.connect()
        client.send(produce_request("t", {0: batch(value(1))}, acks=1), 9)
        while not served.partition("t").log.is_flying:
            await asyncio.sleep(0.001)
    async with serving(tmp_path) as served:
        assert all(directory.was_clean for directory in served.node.directories.all)
        assert await everything(served) == [value(1)]


@on_loop
async def test_a_topic_that_goes_during_a_large_write(tmp_path: Path) -> None:
    """Whoever waits is told, and one of the same name that comes after it is empty."""
    async with serving(tmp_path, disk=SlowDisk(0.1)) as served:
        topic_id = await served.topic("t")
        client = await served.connect()
        client.send(produce_request("t", {0: batch(value(1))}, acks=1), 9)
        while not (old := served.partition("t")).log.is_flying:
            await asyncio.sleep(0.001)
        await served.node.controller.propose(lambda image: delete_topics(image, [topic_id]))
        await served.topic("t")
        answer = (await client.receive()).responses[0].partition_responses[0]
        assert answer.error_code == Error.UNKNOWN_TOPIC_OR_PARTITION.code
        while old.log.is_flying:
            await asyncio.sleep(0.001)
        assert served.partition("t") is not old and await everything(served) == []
        assert (await client.produce("t", batch(value(2)))).base_offset == 0
        assert await everything(served) == [value(2)]
