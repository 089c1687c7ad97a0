"""The program on the client's page does what the page says."""

from __future__ import annotations

import asyncio
import re
import subprocess
import sys
from pathlib import Path

from harness import TREE
from ottla.client.cluster import LATEST, Cluster, TopicPartition
from ottla.client.consumer import Consumer
from ottla.client.producer import Producer


def test_the_program_on_the_page(own_broker: str, tmp_path: Path) -> None:
    """TXN-11: what it reads comes out once."""
    (program,) = re.findall(r"```python\n(.*?)```", (TREE / "docs" / "client.md").read_text(), re.S)
    path = tmp_path / "shouting.py"
    path.write_text(program.replace("localhost:9092", own_broker))
    asyncio.run(_write(own_broker))
    subprocess.run([sys.executable, path], check=True, timeout=100)
    assert asyncio.run(_read(own_broker)) == [b"ONE", b"THREE", b"TWO"]


async def _write(address: str) -> None:
    async with Cluster(address) as cluster, Producer(cluster) as producer:
        for word in (b"one", b"two", b"three"):
            await producer.send("words", value=word)


async def _read(address: str) -> list[bytes | None]:
    async with Cluster(address) as cluster:
        wheres = [TopicPartition("shouts", n) for n in range(await cluster.partition_count("shouts"))]
        ends = {
            where: found.offset for where, found in (await cluster.list_offsets(dict.fromkeys(wheres, LATEST))).items()
        }
        consumer = Consumer(cluster, dict.fromkeys(wheres, 0), ends=ends, read_committed=True)
        return sorted([record.value async for record in consumer], key=repr)
