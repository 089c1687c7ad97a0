"""One unmodified node with its clients under the simulated loop: killed, restarted, out of luck in every way that the disk,
the network and the clock have to offer; and the promises it made are kept. The workload is in one_node.py, the oracle in
ottla/sim/checks.py."""

from __future__ import annotations

import asyncio
import time

import pytest

from ottla.client.admin import Admin
from ottla.client.cluster import Cluster, TopicPartition
from ottla.client.connection import Lost
from ottla.client.producer import Producer
from ottla.server.node import Node
from ottla.sim.checks import History
from ottla.sim.cluster import SimCluster
from ottla.sim.disk import Loss
from ottla.sim.loop import SimLoop, run
from ottla.wire.errors import KafkaError
from sim.clients import read_all
from sim.many_seeds import assert_same_in_every_process, caught, cut_everywhere, play_all, quiet, show
from sim.mutants import MUTANTS
from sim.one_node import cut_at, play
from sim.seeds import NAMED

__all__ = ["quiet"]

SEEDS = 300
ROUNDS = 4
SEEDS_SLOW = 3000
ROUNDS_SLOW = 8
HOUR_MS = 3_600_000

FAULTS = [
    *("kill, nothing lost", "kill, power lost", "kill, power subset", "kill, power torn"),
    *("kill at a disk call, nothing lost", "kill at a disk call, power lost"),
    *("kill at a disk call, power subset", "kill at a disk call, power torn"),
    *("kill while starting, nothing lost", "kill while starting, power lost", "power cut in retention"),
    *("kill while starting, power subset", "kill while starting, power torn"),
    *("clean stop", "power cut after a clean stop", "connection reset", "stall", "node paused", "client paused"),
    *(
        "answers lost, clock set back",
        "clock jump",
        "slow disk",
        "full disk",
        "fsync error of a log",
        "fsync error of the metadata log",
    ),
]


@pytest.mark.timeout(600)
def test_promises_are_kept_whatever_happens(capsys: pytest.CaptureFixture[str]) -> None:
    """LOG-04, LOG-05, LOG-18, LOG-23, REC-04, RET-02, RET-04, IDM-03, IDM-06: nothing acknowledged is lost, doubled,
    reordered or served damaged."""
    began = time.perf_counter()
    wrong, figures = play_all(play, range(SEEDS), ROUNDS)
    with capsys.disabled():
        show("one node", figures, began)
    assert not wrong, "\n".join(wrong[:20])
    assert figures["acked"] > 30 * SEEDS
    rare = [kind for kind in FAULTS if figures[f"fault: {kind}"] < SEEDS / 20]
    assert not rare, f"hardly tried: {rare}"


@pytest.mark.slow
@pytest.mark.timeout(7200)
def test_promises_are_kept_through_thousands_of_seeds(capsys: pytest.CaptureFixture[str]) -> None:
    began = time.perf_counter()
    wrong, figures = play_all(play, range(10_000, 10_000 + SEEDS_SLOW), ROUNDS_SLOW)
    with capsys.disabled():
        show("one node", figures, began)
    assert not wrong, "\n".join(wrong[:20])


@pytest.mark.parametrize("finding", NAMED)
def test_what_was_found_once_stays_found(finding: str) -> None:
    seed, rounds = NAMED[finding]
    assert play(seed, rounds).anomalies == []


@pytest.mark.timeout(600)
def test_cut_at_disk_calls_from_the_first_format_on() -> None:
    """LOG-18: every third call of a node's first life, from formatting its directory on; each with another loss."""
    wrong, cuts, calls = cut_everywhere(cut_at, 3)
    assert not wrong, "\n".join(wrong[:20])
    assert cuts > 100 and calls > 300


@pytest.mark.slow
@pytest.mark.timeout(3600)
def test_cut_at_every_disk_call(capsys: pytest.CaptureFixture[str]) -> None:
    """LOG-18: every call, with nothing lost and with each of the three losses."""
    wrong, cuts, calls = cut_everywhere(cut_at, 1)
    with capsys.disabled():
        print(f"\n{cuts} cuts at {calls} disk calls of a whole node")
    assert not wrong, "\n".join(wrong[:20])


def test_same_seed_same_history_in_every_process() -> None:
    assert_same_in_every_process("sim.one_node", ["1", "2", "3", "4", "5"], ("0", "1", "4242"))


# Seeds before these show nothing of them.
SHOWN_LATE = {
    "ack_before_landing": 243,
    "retention_goes_before_its_start_is_written": 125,
    "recovery_ignores_crc": 91,
    "reply_before_write": 61,
    "retention_forgets_the_start": 25,
    "show_before_sync": 25,
    "failed_write_keeps_its_offsets": 23,
    "retention_takes_too_much": 21,
    "sync_covers_later_writes": 19,
}


@pytest.mark.timeout(600)
@pytest.mark.parametrize("name", MUTANTS)
def test_planted_mistakes_are_noticed(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """A harness that catches none proves nothing."""
    MUTANTS[name](monkeypatch)
    first = SHOWN_LATE.get(name, 0)
    seeds = range(first, first + SEEDS)
    assert any(caught(play, seed, ROUNDS) for seed in seeds), f"{name} went unnoticed through {SEEDS} seeds"


# -- single scenes, told step by step


class Scene:
    """A node and a client, ready to be played with."""

    def __init__(self, loop: SimLoop) -> None:
        self.loop = loop
        self.cluster = SimCluster(loop)
        self.machine = self.cluster.add("n1")
        self.history = History()

    async def start(self) -> None:
        self.cluster.boot("n1")
        await self.ready()

    async def ready(self) -> Node:
        while not self.machine.is_ready:
            assert self.cluster.is_up("n1"), self.machine.exit
            await asyncio.sleep(0.01)
        assert self.machine.node is not None
        return self.machine.node

    def client(self, name: str = "client") -> Cluster:
        clock = self.cluster.worlds
        return Cluster(
            "n1:9092", client_id=name, now_ms=lambda: clock.now_ms(name), rng=self.loop.chance("client", name)
        )

    async def values(self, cluster: Cluster, where: TopicPartition) -> list[bytes]:
        return [value for _, value in (await read_all(cluster, where, self))[1]]


SAFE = {"flush.messages": "1"}


def test_producer_goes_on_after_a_refused_retry() -> None:
    """The answer to a batch is lost, the broker's clock is set back, the retry is refused for its timestamp. If the producer
    kept its sequence numbers, the next batch would be taken for a repetition of the first, and be dropped (IDM-03)."""

    async def scene(loop: SimLoop) -> None:
        it = Scene(loop)
        await it.start()
        await it.cluster.client("client", producing(it))

    async def producing(it: Scene) -> None:
        cluster = it.client()
        await Admin(cluster).create_topic("t", partitions=1)
        producer = Producer(cluster, create_topics=False)
        await producer.send("t", value=b"before")
        it.loop.network.cut("n1", "client")
        answer = await producer.post("t", b"first")
        await asyncio.sleep(0.1)
        it.cluster.worlds.jump("n1", -2 * HOUR_MS)
        it.loop.network.reset("n1", "client")
        it.loop.network.heal_all()
        with pytest.raises(Lost, match="earlier attempt"):
            await answer
        it.cluster.worlds.jump("n1", 2 * HOUR_MS)
        await producer.send("t", value=b"second")
        assert await it.values(cluster, TopicPartition("t", 0)) == [b"before", b"first", b"second"]
        cluster.close()

    run(1, scene)


@pytest.mark.parametrize("loss", [None, *Loss])
def test_acknowledged_after_sync_survives(loss: Loss | None) -> None:
    """LOG-17: flush.messages=1 means on disk before the ack, whatever the power does."""

    async def scene(loop: SimLoop) -> None:
        it = Scene(loop)
        await it.start()
        await it.cluster.client("client", producing(it))
        it.cluster.kill("n1", loss)
        it.cluster.boot("n1")
        await it.ready()
        await it.cluster.client("client", consuming(it))

    async def producing(it: Scene) -> None:
        cluster = it.client()
        await Admin(cluster).create_topic("t", partitions=1, configs=SAFE)
        producer = Producer(cluster)
        await asyncio.gather(*[producer.send("t", value=b"%d" % n) for n in range(20)])
        cluster.close()

    async def consuming(it: Scene) -> None:
        cluster = it.client()
        assert sorted(await it.values(cluster, TopicPartition("t", 0))) == sorted(b"%d" % n for n in range(20))
        cluster.close()

    run(2, scene)


def test_start_of_a_log_that_lost_its_records_stays() -> None:
    """RET-04, LOG-04: DeleteRecords moved the start, the power took the records after it. The log begins anew at its start,
    and stays there when the power goes again: offsets that consumers have seen are not given out a second time."""

    async def scene(loop: SimLoop) -> None:
        it = Scene(loop)
        await it.start()
        await it.cluster.client("client", trimming(it))
        for _ in range(2):
            await asyncio.sleep(61)  # for the checkpoint
            it.cluster.kill("n1", Loss.LOST)
            it.cluster.boot("n1")
            log = (await it.ready()).replicas.find("t", 0).log
            assert (log.start_offset, log.end_offset) == (2, 2)

    async def trimming(it: Scene) -> None:
        cluster = it.client()
        await Admin(cluster).create_topic("t", partitions=1)
        producer = Producer(cluster)
        for number in range(3):
            await producer.send("t", value=b"%d" % number)
        await Admin(cluster).delete_records({TopicPartition("t", 0): 2})
        cluster.close()

    run(5, scene)


def test_failed_sync_of_a_log_stops_that_partition_only() -> None:
    """Never retried and believed. The partition refuses, the others go on, and a restart shows what was acked."""

    async def scene(loop: SimLoop) -> None:
        it = Scene(loop)
        await it.start()
        await it.cluster.client("client", producing(it))
        assert it.cluster.is_up("n1")

    async def producing(it: Scene) -> None:
        cluster = it.client()
        await Admin(cluster).create_topic("t", partitions=2, configs=SAFE)
        producer = Producer(cluster, delivery_s=2.0)
        for index in (0, 1):
            await producer.send("t", value=b"before", partition=index)
        it.machine.disk.failing_syncs = lambda path: path.startswith("/data/t-0/")
        with pytest.raises(KafkaError, match="KAFKA_STORAGE_ERROR"):
            await producer.send("t", value=b"lost", partition=0)
        it.machine.disk.failing_syncs = None
        with pytest.raises(KafkaError, match="KAFKA_STORAGE_ERROR"):
            await producer.send("t", value=b"refused", partition=0)
        await producer.send("t", value=b"after", partition=1)
        assert await it.values(cluster, TopicPartition("t", 0)) == [b"before"]
        assert await it.values(cluster, TopicPartition("t", 1)) == [b"before", b"after"]
        cluster.close()

    run(3, scene)


def test_failed_sync_of_the_metadata_ends_the_node() -> None:
    """Nobody knows what the disk holds then. What was not acknowledged is not there after a power cut."""

    async def scene(loop: SimLoop) -> None:
        it = Scene(loop)
        await it.start()
        await it.cluster.client("client", creating(it))
        assert not it.cluster.is_up("n1")
        assert "could not sync" in str(it.machine.exit)
        it.machine.disk.failing_syncs = None
        it.cluster.cut_power("n1", Loss.LOST)
        it.cluster.boot("n1")
        node = await it.ready()
        assert [topic.name for topic in node.quorum.image.topics.values()] == ["before"]

    async def creating(it: Scene) -> None:
        cluster = it.client()
        await Admin(cluster).create_topic("before", partitions=1)
        it.machine.disk.failing_syncs = lambda path: "__cluster_metadata" in path
        cluster.budget_s = 1.0
        with pytest.raises((KafkaError, OSError)):
            await Admin(cluster).create_topic("after", partitions=1)
        cluster.close()

    run(4, scene)
