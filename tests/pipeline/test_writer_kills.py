"""kill -9 in the middle of commits, many times and without a JVM: no row is missing, none is there twice."""

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

from harness import die_with_parent
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
