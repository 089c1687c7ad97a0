"""A compacted topic on a node that dies again and again, while it is written to and compacted: the newest acknowledged record
of every key is there, and what was deleted does not come back."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Iterator
from itertools import count

import pytest

from ottla.client.admin import Admin
from ottla.client.cluster import Cluster, TopicPartition
from ottla.client.consumer import Consumer
from ottla.client.producer import Producer
from ottla.log import recovery, swapping
from ottla.log.compacting import Rewriter
from ottla.log.log import Log
from ottla.sim.cluster import SimCluster
from ottla.sim.disk import Loss
from ottla.sim.loop import SimLoop, run
from ottla.wire.errors import KafkaError

WHERE = TopicPartition("t", 0)
TOPIC = {
    "cleanup.policy": "compact",
    "delete.retention.ms": "300",
    "flush.messages": "1",
    "internal.segment.bytes": "700",
    "min.cleanable.dirty.ratio": "0.01",
}
NODE = {"log.cleaner.backoff.ms": "50", "log.initial.task.delay.ms": "50", "offsets.topic.num.partitions": "1"}
# Few are written often, most rarely: the newest record of those lies where compaction is at work.
KEYS = 25


@pytest.fixture(autouse=True)
def quiet() -> Iterator[None]:
    logging.disable(logging.CRITICAL)
    yield
    logging.disable(logging.NOTSET)


class Play:
    """What was sent for each key, in order, and which of it was acknowledged."""

    def __init__(self, loop: SimLoop) -> None:
        self.rng, self.loop = loop.chance("play"), loop
        self.cluster = SimCluster(loop)
        self.machine = self.cluster.add("n1", NODE)
        self.sent: dict[bytes, list[bytes | None]] = {b"k%d" % n: [] for n in range(KEYS)}
        # By key: how many of those sent were sent when the newest acknowledged one was, and its offset.
        self.acked: dict[bytes, tuple[int, int]] = {}
        self.finishing = False
        self.rounds = 0

    async def ready(self) -> None:
        if not self.cluster.is_up("n1"):
            self.cluster.boot("n1")
        while not self.machine.is_ready:
            await asyncio.sleep(0.01)

    def client(self) -> Cluster:
        now_ms = lambda: self.cluster.worlds.now_ms("c")  # noqa: E731
        return Cluster("n1:9092", client_id="c", now_ms=now_ms, rng=self.loop.chance("client"))

    async def create(self) -> None:
        cluster = self.client()
        await Admin(cluster).create_topic("t", partitions=1, configs=TOPIC)
        cluster.close()

    async def write(self) -> None:
        cluster = self.client()
        await cluster.retrying(cluster.any)
        producer = Producer(cluster, delivery_s=30.0, linger_ms=0)
        for number in count():
            if self.finishing:
                break
            key = b"k%d" % int(KEYS * self.rng.random() ** 3)
            value = None if self.rng.random() < 0.2 else b"%s/%d/" % (key, number) + b"." * self.rng.randrange(150)
            self.sent[key].append(value)
            place = len(self.sent[key])
            try:
                done = await (await producer.post("t", value, key=key, partition=0))
            except (KafkaError, OSError):
                continue
            self.acked[key] = place, done.offset
            await asyncio.sleep(self.rng.expovariate(1 / 0.01))
        await producer.flush()
        cluster.close()

    async def look(self) -> None:
        """Read all, and hold it against what was acknowledged before."""
        cluster, acked = self.client(), dict(self.acked)
        end = (await cluster.list_offsets({WHERE: -1}))[WHERE].offset
        consumer = Consumer(cluster, {WHERE: 0}, ends={WHERE: end})
        found = [(record.offset, record.key, record.value) async for record in consumer]
        cluster.close()
        self.judge(found, acked)

    async def fall_at_a_call(self, loss: Loss | None) -> None:
        """Some disk calls from now: most of those are of compaction."""
        self.cluster.kill_at_call("n1", self.rng.randrange(1, 150), loss)
        for _ in range(500):
            if not self.cluster.is_up("n1"):
                break
            await asyncio.sleep(0.01)
        else:
            self.cluster.kill("n1", loss)
        self.machine.disk.stop_at = None

    def judge(self, found: list[tuple[int, bytes | None, bytes | None]], acked: dict[bytes, tuple[int, int]]) -> None:
        offsets = [offset for offset, _, _ in found]
        assert offsets == sorted(set(offsets)), "out of order"
        for key, sent in self.sent.items():
            mine = [(offset, value) for offset, k, value in found if k == key]
            assert all(value in sent for _, value in mine), "never sent"
            place, last = acked.get(key, (0, -1))
            possible = sent[place - 1 :] if place else [None, *sent]
            newest = mine[-1][1] if mine else None
            assert newest in possible, f"{key!r}: {newest!r} is older than {possible[0]!r}"
            if place and sent[place - 1] is not None and len(possible) == 1:
                assert mine[-1][0] >= last


async def scene(loop: SimLoop) -> Play:
    play = Play(loop)
    await play.ready()
    await play.cluster.client("admin", play.create())
    writing = asyncio.ensure_future(play.cluster.client("writer", play.write()))
    for _ in range(3):
        await asyncio.sleep(play.rng.random() * 1.5)
        node = play.machine.node
        assert node is not None
        play.rounds += sum(node.measures.compaction.counts)
        loss = play.rng.choice([None, *Loss])
        if play.rng.random() < 0.7:
            await play.fall_at_a_call(loss)
        else:
            play.cluster.kill("n1", loss)
        await play.ready()
        await play.cluster.client("reader", play.look())
    play.finishing = True
    await writing
    await play.cluster.client("reader", play.look())
    return play


def caught(seed: int) -> bool:
    """A promise was broken, or the node could not start any more."""
    try:
        run(seed, scene, limit_s=300.0)
    except (AssertionError, KafkaError) as error:
        print(f"seed {seed}: {error!r}")
        return True
    return False


@pytest.mark.parametrize("seeds", [40, pytest.param(2000, marks=[pytest.mark.slow, pytest.mark.timeout(1800)])])
def test_the_newest_of_every_key_survives(seeds: int) -> None:
    """RET-05, RET-07, TRAP-15, TRAP-69: kill -9 and power cuts in the middle of compaction, exchange and repair."""
    rounds = sum(run(seed, scene, limit_s=300.0).rounds for seed in range(seeds))
    assert rounds > seeds


def newest_goes(patch: pytest.MonkeyPatch) -> None:
    """Off by one: what is as new as the map says goes too."""
    stays = Rewriter._stays
    patch.setattr(Rewriter, "_stays", lambda self, entry, keeps: entry.offset % 7 != 3 and stays(self, entry, keeps))


def swap_is_not_synced(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(swapping, "sync_names", lambda log: None)


def swap_is_not_finished(patch: pytest.MonkeyPatch) -> None:
    """A start throws away what was being swapped in, though the old segments may be gone."""

    def forget(log: Log, swaps: list[str]) -> None:
        for name in swaps:
            log.disk.remove(f"{log.directory}/{name}")

    patch.setattr(recovery, "_finish_swap", forget)


@pytest.mark.parametrize("mutant", [newest_goes, swap_is_not_synced, swap_is_not_finished])
def test_planted_mistakes_of_compaction_are_noticed(
    mutant: Callable[[pytest.MonkeyPatch], None], monkeypatch: pytest.MonkeyPatch
) -> None:
    mutant(monkeypatch)
    assert any(caught(seed) for seed in range(100)), "went unnoticed"
