"""kill -9 in the middle of commits, many times and without a JVM: no row is missing, none is there twice.

First of the driver, which comes again as Spark would; then of brokers, which are waited for.
"""

from __future__ import annotations

import asyncio
import os
import random
import subprocess
import sys
import time
from collections import Counter
from pathlib import Path

import pytest

from apache.kafka import Apache, why_missing
from cluster.coordination import TRANSACTION, coordinator_of
from cluster.nodes import Cluster as ClusterOfNodes
from harness import Node, die_with_parent
from ottla.client.admin import Admin
from ottla.client.cluster import EARLIEST, LATEST, Cluster, TopicPartition
from ottla.client.consumer import Consumer

DRIVER = Path(__file__).with_name("writing.py")
PARTITIONS = 3
ROWS = 300


def start(address: str, topic: str, directory: Path, batches: int) -> subprocess.Popen[str]:
    with (directory / "log").open("ab") as log:
        return subprocess.Popen(
            [sys.executable, str(DRIVER), address, topic, str(directory), str(batches)],
            stdout=subprocess.PIPE,
            stderr=log,
            text=True,
            preexec_fn=die_with_parent,
        )


def kill_at_work(driver: subprocess.Popen[str], rng: random.Random) -> bool:
    """Some batches after it began, at some moment of the commit of one, or just after it. Whether it was still at work."""
    assert driver.stdout is not None
    for _ in range(rng.randint(1, 3)):
        if not driver.stdout.readline():
            break
    time.sleep(rng.uniform(0, 0.06))
    alive = driver.poll() is None
    driver.kill()
    driver.wait()
    driver.stdout.close()
    return alive


def create(address: str, topic: str) -> None:
    async def main() -> None:
        async with Cluster(address) as cluster:
            await Admin(cluster).create_topic(topic, partitions=PARTITIONS)

    asyncio.run(main())


def values(address: str, topic: str) -> Counter[int]:
    async def main() -> Counter[int]:
        async with Cluster(address) as cluster:
            places = [TopicPartition(topic, partition) for partition in range(PARTITIONS)]
            ends = await cluster.list_offsets(dict.fromkeys(places, LATEST))
            limits = {where: found.offset for where, found in ends.items()}
            consumer = Consumer(cluster, dict.fromkeys(places, EARLIEST), ends=limits, read_committed=True)
            return Counter([int(record.value or b"-1") async for record in consumer])

    return asyncio.run(main())


@pytest.mark.timeout(1800)
@pytest.mark.parametrize(
    ("server", "kills"),
    [
        ("ottla", 6),
        pytest.param("ottla", 60, marks=pytest.mark.slow),
        pytest.param("apache", 30, marks=pytest.mark.slow),
    ],
)
def test_a_driver_that_is_killed_in_its_commits(request, tmp_path, server, kills):
    """OTTLA_SEED chooses the moments."""
    found = request.getfixturevalue("broker" if server == "ottla" else "apache")
    address = str(found) if server == "ottla" else found.address
    topic, batches = f"killed-{os.getpid()}-{kills}", 4 * kills
    create(address, topic)
    rng = random.Random(int(os.environ.get("OTTLA_SEED", "1")))
    log = tmp_path / "log"
    for _ in range(kills):
        assert kill_at_work(start(address, topic, tmp_path, batches), rng), log.read_text()
    last = start(address, topic, tmp_path, batches)
    last.communicate()
    assert last.returncode == 0, log.read_text()
    assert values(address, topic) == Counter(range(batches * ROWS))
    assert not [path for path in (tmp_path / "spool").rglob("*") if path.is_file()]


# Brokers.


def batches_begun(driver: subprocess.Popen[str], count: int) -> bool:
    """Whether it has said that so many more begin."""
    assert driver.stdout is not None
    return all(driver.stdout.readline() for _ in range(count))


def finished(driver: subprocess.Popen[str], log: Path) -> None:
    """It had patience: nobody had to start it again."""
    driver.communicate()
    assert driver.returncode == 0, log.read_text()


@pytest.mark.slow
@pytest.mark.timeout(900)
@pytest.mark.parametrize(("kind", "kills"), [(Node, 30), (Apache, 15)])
def test_a_broker_that_is_killed_while_it_is_written_to(tmp_path, kind, kills):
    """STR-05: it is away for up to two seconds. OTTLA_SEED chooses the moments."""
    if kind is Apache and (reason := why_missing()):
        pytest.skip(reason)
    rng = random.Random(int(os.environ.get("OTTLA_SEED", "1")))
    server, batches = kind(tmp_path / "data"), 4 * kills
    server.start()
    create(server.address, "written")
    driver = start(server.address, "written", tmp_path, batches)
    try:
        for _ in range(kills):
            assert batches_begun(driver, rng.randint(1, 3)), (tmp_path / "log").read_text()
            time.sleep(rng.uniform(0, 0.06))
            server.kill()
            time.sleep(rng.uniform(0, 2))
            server.start()
        finished(driver, tmp_path / "log")
        assert values(server.address, "written") == Counter(range(batches * ROWS))
    finally:
        driver.kill()
        driver.wait()
        server.kill()


@pytest.mark.slow
@pytest.mark.timeout(1800)
def test_the_coordinator_of_the_sink_is_killed_while_it_commits(tmp_path):
    """STR-05, TXN-07: in a cluster of three. OTTLA_SEED chooses the moments."""
    rng, kills, batches = random.Random(int(os.environ.get("OTTLA_SEED", "1"))), 12, 60
    with ClusterOfNodes(tmp_path / "nodes") as nodes:
        nodes.start()
        nodes.create("written", PARTITIONS)
        driver = start(nodes.bootstrap, "written", tmp_path, batches)
        try:
            for _ in range(kills):
                assert batches_begun(driver, rng.randint(1, 4)), (tmp_path / "log").read_text()
                time.sleep(rng.uniform(0, 0.06))
                nodes.members[coordinator_of(nodes, "ottla-sink-written", TRANSACTION)].kill()
                time.sleep(rng.uniform(0, 2))
                nodes.mend()
                for topic in ("__transaction_state", "__consumer_offsets", "written"):
                    nodes.wait_in_sync(topic)
            finished(driver, tmp_path / "log")
            assert values(nodes.bootstrap, "written") == Counter(range(batches * ROWS))
        finally:
            driver.kill()
            driver.wait()
