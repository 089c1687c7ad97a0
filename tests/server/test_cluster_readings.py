"""What three nodes measure of themselves while one of them goes and comes."""

from __future__ import annotations

import asyncio
from collections.abc import Callable

from ottla.client.admin import Admin
from ottla.client.cluster import Cluster
from ottla.client.producer import Producer
from ottla.sim.cluster import SimCluster
from ottla.sim.loop import SimLoop, run
from sim.cluster_play import NAMES, SETTINGS
from sim.many_seeds import quiet

__all__ = ["quiet"]
PARTITIONS = 6


def samples(cluster: SimCluster, name: str) -> dict[str, float]:
    node = cluster.machines[name].node
    assert node is not None
    lines = (line.rpartition(" ") for line in node.measures.render().splitlines() if not line.startswith("#"))
    return {sample: float(value) for sample, _, value in lines}


async def until(is_so: Callable[[], bool]) -> None:
    async with asyncio.timeout(60):
        while not is_so():
            await asyncio.sleep(0.05)


async def produce(cluster: SimCluster, loop: SimLoop, *, topic: bool) -> None:
    worlds = cluster.worlds
    client = Cluster(cluster.bootstrap, now_ms=lambda: worlds.now_ms("client"), rng=loop.chance("client", str(topic)))
    if topic:
        await Admin(client).create_topic("t", partitions=PARTITIONS, replication_factor=3)
    producer = Producer(client)
    for index in range(PARTITIONS):
        await producer.send("t", value=b"value" * 100, partition=index)
    await producer.flush()
    client.close()


def test_quorum_copies_and_in_sync_sets() -> None:
    """OPS-01, OPS-03, REP-18: one active controller; the sets shrink while a node is away and grow when it is back, and each
    follower tells what it copies from whom."""

    async def scene(loop: SimLoop) -> None:
        cluster = SimCluster(loop)
        cluster.form(NAMES, SETTINGS)
        for name in NAMES:
            cluster.boot(name)
        await until(lambda: all(cluster.machines[name].is_ready for name in NAMES))
        await cluster.client("client", produce(cluster, loop, topic=True))
        await until(lambda: all(samples(cluster, name)["ottla_cluster_partitions"] == PARTITIONS for name in NAMES))
        told = {name: samples(cluster, name) for name in NAMES}
        active = next(name for name in NAMES if told[name]["ottla_active_controller"])
        leader_id = NAMES.index(active) + 1
        check_quorum(told, active, leader_id)
        for number, name in enumerate(NAMES, 1):
            others = [str(n) for n in (1, 2, 3) if n != number]
            assert all(told[name][f'ottla_replica_fetches_total{{leader="{other}"}}'] > 0 for other in others)
            assert sum(told[name][f'ottla_replica_fetch_bytes_total{{leader="{other}"}}'] for other in others) > 500
            assert told[name]["ottla_under_replicated_partitions"] == told[name]["ottla_directories_failed"] == 0
            assert told[name]['ottla_brokers{state="active"}'] == 3
        await go_and_come(cluster, loop, active)

    run(3, scene)


def check_quorum(told: dict[str, dict[str, float]], active: str, leader_id: int) -> None:
    assert sum(each["ottla_active_controller"] for each in told.values()) == 1
    assert sum(each["ottla_quorum_leaderships_total"] for each in told.values()) == 1
    assert sum(each["ottla_quorum_elections_total"] for each in told.values()) >= 1
    for name, each in told.items():
        assert each["ottla_quorum_leader"] == leader_id
        assert each["ottla_quorum_voters"] == 3
        assert each[f'ottla_quorum_role{{role="{"leader" if name == active else "follower"}"}}'] == 1
        assert 0 < each["ottla_quorum_high_watermark"] <= each["ottla_metadata_end_offset"]
        assert each["ottla_quorum_leaderless_seconds_count"] == 1
        assert (each["ottla_quorum_commit_seconds_count"] > 0) == (name == active)
        assert each["ottla_metadata_epoch"] >= 1
    others = [n for n in (1, 2, 3) if n != leader_id]
    assert all(f'ottla_quorum_lag{{node="{n}"}}' in told[active] for n in others)
    assert not any(sample.startswith("ottla_quorum_lag") for name in told if name != active for sample in told[name])


async def go_and_come(cluster: SimCluster, loop: SimLoop, active: str) -> None:
    away = next(name for name in NAMES if name != active)
    others = [name for name in NAMES if name != away]
    cluster.kill(away)
    await until(lambda: samples(cluster, active)['ottla_brokers{state="fenced"}'] == 1)
    await cluster.client("client", produce(cluster, loop, topic=False))

    def total(sample: str) -> float:
        return sum(samples(cluster, name)[sample] for name in others)

    assert total("ottla_under_replicated_partitions") == total("ottla_at_min_isr_partitions") == PARTITIONS
    assert total("ottla_partitions_led_by_others") > 0
    cluster.boot(away)
    await until(lambda: cluster.machines[away].is_ready and total("ottla_under_replicated_partitions") == 0)
    assert total("ottla_isr_expands_total") == PARTITIONS
    assert total("ottla_at_min_isr_partitions") == 0
