"""Directories of earlier releases, and of Apache Kafka, open with every record and setting in place, and take new writes."""

from __future__ import annotations

import asyncio
import contextlib
import tarfile
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from golden.make import CODECS, RECORDS, SEGMENT_BYTES, value_of
from ottla.client.admin import Admin
from ottla.client.cluster import Cluster, TopicPartition
from ottla.client.consumer import Consumer
from ottla.client.producer import Producer
from ottla.config import BrokerConfig, single_node_defaults
from ottla.server.node import Node
from ottla.world import World

ARCHIVES = sorted(Path(__file__).parent.glob("*.tar.gz"))


def data_directory(archive: Path, target: Path) -> Path:
    with tarfile.open(archive) as packed:
        packed.extractall(target, filter="data")
    found = [path.parent for path in target.rglob("meta.properties")]
    assert len(found) == 1
    return found[0]


@pytest.mark.parametrize("archive", ARCHIVES, ids=lambda path: path.name)
def test_opens_with_everything_in_place(archive: Path, tmp_path: Path) -> None:
    """LOG-20, KRF-03"""
    asyncio.run(check(data_directory(archive, tmp_path)))


@contextlib.asynccontextmanager
async def opened(data: Path) -> AsyncIterator[Node]:
    own = {"log.dirs": str(data), "listeners": "PLAINTEXT://127.0.0.1:0,CONTROLLER://127.0.0.1:0"}
    node = Node(BrokerConfig(single_node_defaults() | own), World())
    await node.start()
    try:
        yield node
    finally:
        await node.stop()


async def check(data: Path) -> None:
    async with opened(data) as node, Cluster(node.addresses) as cluster:
        topics = [name for name in await Admin(cluster).topics() if not name.startswith("__")]
        assert sorted(topics) == sorted(CODECS)
        for codec in CODECS:
            await check_topic(cluster, codec)


def test_levels_of_features_that_are_not_served_stay_and_are_not_told(tmp_path: Path) -> None:
    """PRT-08: whoever gives the directory back finds them as they were; clients hear of nothing that nobody would do."""

    async def levels(data: Path) -> tuple[dict[str, int], dict[str, int]]:
        async with opened(data) as node, Cluster(node.addresses) as cluster:
            return dict(node.quorum.image.features), dict((await cluster.any()).features)

    data = data_directory(ARCHIVES[0].with_name("apache-4.3.1.tar.gz"), tmp_path)
    first, again = asyncio.run(levels(data)), asyncio.run(levels(data))
    kept, told = first
    assert {"share.version", "streams.version"} <= {*kept} - {*told}
    assert told["metadata.version"] == kept["metadata.version"]
    assert again == first


async def check_topic(cluster: Cluster, codec: str) -> None:
    settings = {setting.name: setting.value for setting in await Admin(cluster).configs(codec)}
    assert (settings["retention.ms"], settings["segment.bytes"]) == ("-1", str(SEGMENT_BYTES))
    ends = {TopicPartition(codec, index): RECORDS // 2 for index in range(2)}
    found = [record async for record in Consumer(cluster, dict.fromkeys(ends, 0), ends=ends)]
    expected = {
        (number % 2, number // 2, b"key %d" % number, value_of(codec, number), (("n", b"%d" % number),))
        for number in range(RECORDS)
    }
    assert {(r.partition, r.offset, r.key, r.value, tuple(r.headers)) for r in found} == expected
    async with Producer(cluster, linger_ms=0) as producer:
        sent = await producer.send(codec, value=b"more", partition=0)
    assert sent.offset == RECORDS // 2


def test_there_is_one_for_this_release_and_one_of_apache() -> None:
    assert {"apache-4.3.1.tar.gz", "ottla-0.1.0.tar.gz"} <= {path.name for path in ARCHIVES}
