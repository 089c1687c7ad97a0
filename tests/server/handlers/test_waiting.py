"""Requests that wait: what counts towards the end of the wait, and what may change during it."""

from __future__ import annotations

import asyncio
import time
from pathlib import Path

from desk import on_loop
from ottla.metadata.image import Partition as Assignment
from ottla.wire.errors import Error
from served import SECONDS, TouchyDisk, batch, produce_request, serving, values

WITHOUT_END_MS = int(2 * SECONDS * 1000)  # longer than the client here has patience


@on_loop
async def test_a_fetch_does_not_wait_for_more_than_it_may_have(tmp_path: Path) -> None:
    """More wanted at least than allowed at most: what is allowed is enough."""
    async with serving(tmp_path) as served:
        await served.topic("t")
        client = await served.connect()
        for _ in range(3):
            await client.produce("t", batch(b"x" * 1000))
        fetched = await client.fetch("t", 0, min_bytes=1 << 20, max_bytes=1000, max_wait_ms=WITHOUT_END_MS)
        assert len(values(fetched.records)) == 1


@on_loop
async def test_a_fetch_does_not_wait_because_of_what_is_cut_off(tmp_path: Path) -> None:
    """Kafka counts the part of the last batch that it sends and the client throws away; there is nothing to wait for."""
    async with serving(tmp_path) as served:
        await served.topic("t")
        client = await served.connect()
        for _ in range(5):
            await client.produce("t", batch(b"x" * 1000))
        for limits in ({"max_bytes": 2500}, {"partition_max_bytes": 2500}):
            fetched = await client.fetch("t", 0, min_bytes=2500, max_wait_ms=WITHOUT_END_MS, **limits)
            assert len(values(fetched.records)) == 2


@on_loop
async def test_a_partition_counts_only_as_far_as_its_own_limit(tmp_path: Path) -> None:
    """A fetch that waits for 5,000 bytes from a partition of which it wants 2,000 at most is not woken in vain."""
    async with serving(tmp_path) as served:
        await served.topic("t", 2)
        reader, writer = await served.connect(), await served.connect()
        began = time.monotonic()
        waiting = asyncio.create_task(reader.fetch("t", 0, min_bytes=5000, max_wait_ms=1500, partition_max_bytes=2000))
        await asyncio.sleep(0.05)
        for _ in range(8):
            await writer.produce("t", batch(b"x" * 900))
        fetched = await waiting
        assert time.monotonic() - began > 1.45
        assert len(values(fetched.records)) == 2


@on_loop
async def test_an_epoch_that_never_was_here_parts_where_the_one_before_it_ended(tmp_path: Path) -> None:
    """TRAP-24: although the reader's position lies below that end, it was written in another history."""
    async with serving(tmp_path) as served:
        await served.topic("t")
        client = await served.connect()
        for _ in range(4):
            await client.produce("t", batch(b"v"))
        partition = served.partition("t")
        partition.lead(Assignment((1,), (1,), 1, 3))
        await client.produce("t", batch(b"v"))
        parted = await client.fetch("t", 2, last_fetched_epoch=1)
        assert (parted.diverging_epoch.epoch, parted.diverging_epoch.end_offset) == (0, 4)
        assert bytes(parted.records) == b""
        agreed = await client.fetch("t", 2, last_fetched_epoch=0)
        assert agreed.diverging_epoch.epoch == -1 and len(values(agreed.records)) == 3


@on_loop
async def test_too_few_copies_after_the_append_are_told(tmp_path: Path) -> None:
    """PRD-06: the minimum in sync is looked at again when the records are safe; they stay in the log."""
    disk = TouchyDisk()
    async with serving(tmp_path, disk=disk) as served:
        await served.topic("t", flush_messages="1")
        client = await served.connect()
        partition = served.partition("t")
        disk.slow = True
        for acks in (-1, 1):
            client.send(produce_request("t", {0: batch(b"v")}, acks, timeout_ms=30_000), 9)
        while not disk.waiting:
            await asyncio.sleep(0.01)
        partition.replicas = (1, 2)
        partition.configure(partition.log.settings, min_insync=2)
        disk.slow = False
        disk.let_go()
        codes = [(await client.receive()).responses[0].partition_responses[0].error_code for _ in range(2)]
        assert codes == [Error.NOT_ENOUGH_REPLICAS_AFTER_APPEND.code, 0]
        assert partition.log.end_offset == 2
