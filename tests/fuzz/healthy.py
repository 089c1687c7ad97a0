"""An honest client among those that send damaged requests: it must always be answered, and rightly, and is timed.

It asks which versions there are, writes a record to a topic of its own, and reads that one and an older one. Nobody else
says the name of its topic, so it is no excuse that somebody deleted it.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable
from typing import TypeVar

from ottla.wire.messages.cluster import ApiVersionsRequest
from ottla.wire.messages.topics import CreateTopicsRequest
from served import Client, batch, values

PAUSE_S = 0.005
# A topic is there before its leader knows of it.
LEADER_S = 30.0
LATEST = -1

# What each question of a kind has waited, in seconds of whatever clock.
Waits = dict[str, list[float]]
T = TypeVar("T")


class Healthy:
    def __init__(self, client: Client, topic: str, waits: Waits, clock: Callable[[], float]) -> None:
        self.client, self.topic, self.waits, self.clock = client, topic, waits, clock
        self.written = 0

    async def make_topic(self) -> None:
        wanted = CreateTopicsRequest.Topic(name=self.topic, num_partitions=1, replication_factor=1)
        answer = await self.client.call(CreateTopicsRequest(topics=[wanted]), 7)
        assert answer.topics[0].error_code == 0, answer
        async with asyncio.timeout(LEADER_S):
            while (await self.client.list_offsets(self.topic, LATEST)).error_code != 0:
                await asyncio.sleep(PAUSE_S)

    async def ask_versions(self) -> None:
        answer = await self.timed("versions", self.client.call(ApiVersionsRequest(), 0, "healthy"))
        assert answer.error_code == 0 and answer.api_keys, answer

    async def write(self) -> None:
        records = batch(self.value(self.written), timestamp=int(time.time() * 1000))
        answer = await self.timed("produce", self.client.produce(self.topic, records))
        assert (answer.error_code, answer.base_offset) == (0, self.written), answer
        self.written += 1

    async def read(self, offset: int) -> None:
        answer = await self.timed("fetch", self.client.fetch(self.topic, offset, partition_max_bytes=1))
        assert (answer.error_code, answer.high_watermark) == (0, self.written), answer
        found = values(answer.records)
        assert found == [self.value(offset)], f"at {offset}: {found}"

    async def timed(self, kind: str, answer: Awaitable[T]) -> T:
        asked = self.clock()
        found = await answer
        self.waits.setdefault(kind, []).append(self.clock() - asked)
        await asyncio.sleep(PAUSE_S)
        return found

    @staticmethod
    def value(offset: int) -> bytes:
        return b"record %d" % offset


async def stay_healthy(
    host: str, port: int, topic: str, waits: Waits, stop: asyncio.Event, clock: Callable[[], float]
) -> None:
    """Asks every few milliseconds."""
    healthy = Healthy(Client(*await asyncio.open_connection(host, port)), topic, waits, clock)
    await healthy.make_topic()
    while not stop.is_set():
        await healthy.ask_versions()
        await healthy.write()
        await healthy.read(healthy.written - 1)
        await healthy.read(healthy.written // 2)
    healthy.client.close()
