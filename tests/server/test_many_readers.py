"""Readers of one partition, at any place in it, beside each other and beside its writer."""

from __future__ import annotations

import asyncio
import random
from pathlib import Path

from desk import on_loop
from served import Client, Served, batch, serving, values

READERS = 20
BATCHES = 300


def value(number: int) -> bytes:
    return b"%06d" % number + b"." * 400


async def write(client: Client) -> None:
    for number in range(BATCHES):
        assert (await client.produce("t", batch(value(number)))).base_offset == number


async def read(served: Served, start: int) -> list[bytes | None]:
    """Everything from `start` to the end of what will be written, in whatever pieces it comes."""
    client = await served.connect()
    seen: list[bytes | None] = []
    while start + len(seen) < BATCHES:
        fetched = await client.fetch("t", start + len(seen), max_wait_ms=100, partition_max_bytes=4000)
        assert fetched.error_code in (0, 1)  # 1: this far it is not written yet
        seen += values(fetched.records)
        if fetched.error_code:
            await asyncio.sleep(0.01)
    return seen


@on_loop
async def test_readers_everywhere_while_it_is_written(tmp_path: Path) -> None:
    """LOG-07: each gets what it should; the writer goes on, also while nobody of them is done. LOG-08: all of them read the
    same records in full, and they are still there afterwards."""
    rng = random.Random(3)
    async with serving(tmp_path) as served:
        await served.topic("t", internal_segment_bytes="16384")
        starts = [0, 0, *(rng.randrange(BATCHES) for _ in range(READERS - 2))]
        async with asyncio.timeout(60):
            readers = [asyncio.create_task(read(served, start)) for start in starts]
            await write(await served.connect())
            seen = await asyncio.gather(*readers)
            again = await read(served, 0)
        assert len(served.partition("t").log.segments) > 3
    written = [value(number) for number in range(BATCHES)]
    assert again == written
    for start, found in zip(starts, seen, strict=True):
        assert found == written[start:]
