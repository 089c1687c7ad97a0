"""Small answers and new requests while a large answer is on its way."""

from __future__ import annotations

import asyncio
from pathlib import Path

from desk import on_loop
from ottla.wire.messages.cluster import ApiVersionsRequest
from served import batch, fetch_request, heads, produce_request, serving

PIECE = b"x" * 900_000
COUNT = 12


@on_loop
async def test_answers_behind_a_large_one_wait_for_it_and_nothing_breaks(tmp_path: Path) -> None:
    """TRAP-27: what is written while a file is being sent must neither fail nor overtake it, and what the client asks
    meanwhile is read and answered in its turn."""
    async with serving(tmp_path) as served:
        await served.topic("t", segment_bytes=str(1 << 30))
        client = await served.connect(limit=1 << 14)
        for _ in range(COUNT):
            assert (await client.produce("t", batch(PIECE))).error_code == 0
        whole = fetch_request("t", {0: 0}, partition_max_bytes=1 << 30, max_bytes=1 << 30)
        for _ in range(3):
            client.send(whole, 12)
            client.send(ApiVersionsRequest(), 0)
        await asyncio.sleep(0.2)  # the first answer fills the socket and stays there
        client.send(produce_request("t", {0: batch(b"late")}), 9)
        client.send(ApiVersionsRequest(), 0)
        for _ in range(3):
            fetched = (await client.receive()).responses[0].partitions[0]
            assert [head.base_offset for head in heads(fetched.records)] == list(range(COUNT))
            assert (await client.receive()).error_code == 0
        assert (await client.receive()).responses[0].partition_responses[0].base_offset == COUNT
        assert (await client.receive()).error_code == 0
