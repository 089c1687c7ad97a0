"""Large and small batches side by side, sent without waiting for answers, on a disk that takes its time: whatever was answered
is in the file, even if the process is killed in that very moment."""

from __future__ import annotations

import asyncio
import logging
import struct
from collections.abc import Iterator
from itertools import count

import pytest

from ottla.client.admin import Admin
from ottla.client.cluster import Cluster, TopicPartition
from ottla.sim.cluster import SimCluster
from ottla.sim.loop import SimLoop, run
from ottla.wire.codec import decode
from ottla.wire.frames import read_response_header, request_frame
from ottla.wire.messages.produce import ProduceRequest, ProduceResponse
from ottla.wire.records import Record, build
from sim.clients import read_all

VERSION = 9
FULL_BYTES = 8000


@pytest.fixture(autouse=True)
def quiet() -> Iterator[None]:
    logging.disable(logging.CRITICAL)
    yield
    logging.disable(logging.NOTSET)


def frame(number: int, value: bytes, now_ms: int, acks: int) -> bytes:
    records = build([Record(timestamp=now_ms, value=value)])
    part = ProduceRequest.Topic.Partition(index=0, records=records)
    topic = ProduceRequest.Topic(name="t", partition_data=[part])
    request = ProduceRequest(acks=acks, timeout_ms=1000, topic_data=[topic])
    return b"".join(bytes(part) for part in request_frame(request, VERSION, number, "c"))


def answered(data: bytes) -> tuple[int, int, int]:
    """Which request this answers, the code, and the offset."""
    number, position = read_response_header(data, ProduceResponse, VERSION)
    answer = decode(ProduceResponse, memoryview(data), VERSION, position).responses[0].partition_responses[0]
    return number, answer.error_code, answer.base_offset


class Play:
    """Clients that send bursts until their node dies; what they were told, by offset; and what they sent in vain."""

    def __init__(self, loop: SimLoop) -> None:
        self.rng = loop.chance("play")
        self.loop, self.cluster = loop, SimCluster(loop, disk_latency_s=0.02)
        self.machine = self.cluster.add("n1")
        self.told: dict[int, bytes] = {}
        self.refused: set[bytes] = set()
        self.held: dict[int, bytes] = {}

    async def ready(self) -> None:
        self.cluster.boot("n1")
        while not self.machine.is_ready:
            await asyncio.sleep(0.01)

    async def create(self) -> None:
        cluster = self._cluster()
        await Admin(cluster).create_topic("t", partitions=1)
        cluster.close()

    async def read(self) -> None:
        cluster = self._cluster()
        self.held = dict((await read_all(cluster, TopicPartition("t", 0), self))[1])
        cluster.close()

    def _cluster(self) -> Cluster:
        return Cluster(
            "n1:9092", client_id="c", now_ms=lambda: self.cluster.worlds.now_ms("c"), rng=self.loop.chance("client")
        )

    async def send(self, name: str) -> None:
        reader, writer = await asyncio.open_connection("n1", 9092)
        for burst in count():
            values = [
                b"%s/%d/%d" % (name.encode(), burst, n) + b"." * self.rng.choice((0, 0, 800, 2000)) for n in range(5)
            ]
            now_ms = self.cluster.worlds.now_ms("n1")
            frames = [frame(n, value, now_ms, self.rng.choice((1, -1))) for n, value in enumerate(values)]
            writer.write(b"".join(frames))
            for value in values:
                (size,) = struct.unpack(">i", await reader.readexactly(4))
                number, code, offset = answered(await reader.readexactly(size))
                assert values[number] == value
                if code:
                    self.refused.add(value)
                else:
                    assert self.told.setdefault(offset, value) == value
            await asyncio.sleep(0.02 * self.rng.random())

    async def fill_up(self) -> None:
        """The disk is full for a while, again and again."""
        while True:
            await asyncio.sleep(0.1 * self.rng.random())
            self.machine.disk.capacity = self.machine.disk.used + self.rng.randrange(FULL_BYTES)
            await asyncio.sleep(0.1)
            self.machine.disk.capacity = 1 << 40
            await asyncio.sleep(1.5)  # until it has been noticed


@pytest.mark.parametrize(("seeds", "fills_up"), [(200, False), (50, True)])
def test_whatever_was_answered_survives_the_process(seeds: int, fills_up: bool) -> None:
    """LOG-05, LOG-23: also a small batch that was followed by a large one in the same turn of the loop."""
    told = refused = 0

    async def scene(loop: SimLoop) -> None:
        nonlocal told, refused
        play = Play(loop)
        await play.ready()
        await play.cluster.client("admin", play.create())
        names = ("a", "b")
        sending = [asyncio.ensure_future(play.cluster.client(name, play.send(name))) for name in names]
        filling = asyncio.ensure_future(play.fill_up()) if fills_up else None
        await asyncio.sleep(play.rng.random() * (3.0 if fills_up else 0.2))
        if filling is not None:
            filling.cancel()
        play.cluster.kill("n1", None)
        play.machine.disk.capacity = 1 << 40
        await asyncio.gather(*sending, return_exceptions=True)
        await play.ready()
        await play.cluster.client("reader", play.read())
        lost = {offset for offset, value in play.told.items() if play.held.get(offset) != value}
        assert not lost
        assert not play.refused & set(play.held.values())
        told, refused = told + len(play.told), refused + len(play.refused)

    for seed in range(seeds):
        run(seed, scene)
    assert told > 10 * seeds and (refused > seeds) == fills_up
