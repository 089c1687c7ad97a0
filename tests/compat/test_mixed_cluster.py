"""A cluster of two, one of each: a broker of Apache Kafka 4.3.1 at our controller, and our broker at Apache's.

Both copy the metadata of the one controller and the records of each other, both pass on what it has to decide, and when one
goes the other leads everything.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from apache import kafka
from apache.kafka import CLUSTER_ID, Apache, run_tool
from desk import on_loop
from harness import free_port
from ottla.client.connection import Connection
from ottla.config import BrokerConfig, single_node_defaults
from ottla.log.identity import MetaProperties, write_meta_properties
from ottla.server.node import Node
from ottla.wire.errors import Error
from ottla.wire.messages.metadata import MetadataRequest
from ottla.wire.messages.produce import ProduceRequest
from ottla.wire.messages.topics import CreateTopicsRequest
from ottla.world import World
from served import batch, fetch_request, produce_request, values

pytestmark = pytest.mark.apache

OURS, APACHES = 1, 2
PARTITIONS = 4
SECONDS = 60.0
# What our brokers cannot do yet must not be switched on where they are to take part.
FEATURES = ("--feature", "share.version=0", "--feature", "streams.version=0")


class ApacheBroker(Apache):
    """One without a controller: it looks for one at `controller`."""

    def __init__(self, directory: Path, cluster_id: str, controller: str) -> None:
        super().__init__(directory)
        self.cluster_id = cluster_id
        self.settings = {
            "process.roles": "broker",
            "node.id": str(APACHES),
            "listeners": f"PLAINTEXT://{self.address}",
            "advertised.listeners": f"PLAINTEXT://{self.address}",
            "controller.quorum.bootstrap.servers": controller,
        }

    def format(self) -> None:
        tool, options = "kafka.tools.StorageTool", ("-t", self.cluster_id, "-c", str(self.properties))
        run_tool(tool, "format", *options, "--no-initial-controllers")


class ApacheController(Apache):
    """A whole node, without what our brokers do not know."""

    def format(self) -> None:
        tool, options = "kafka.tools.StorageTool", ("-t", CLUSTER_ID, "-c", str(self.properties))
        run_tool(tool, "format", *options, "--standalone", *FEATURES)


async def until(is_so: Callable[[], Any]) -> None:
    async with asyncio.timeout(SECONDS):
        while not is_so():
            await asyncio.sleep(0.05)


def missing() -> None:
    if reason := kafka.why_missing():
        pytest.skip(reason)


async def create(door: Connection, name: str) -> None:
    topic = CreateTopicsRequest.Topic(name=name, num_partitions=PARTITIONS, replication_factor=2)
    answer = await door.request(CreateTopicsRequest(topics=[topic], timeout_ms=30_000))
    assert [(each.error_code, each.error_message) for each in answer.topics] == [(0, None)]


async def partitions(door: Connection, name: str) -> list[Any]:
    answer = await door.request(MetadataRequest(topics=[MetadataRequest.Topic(name=name)]))
    return sorted(answer.topics[0].partitions, key=lambda each: each.partition_index)


async def all_in_sync(door: Connection, name: str) -> list[int]:
    """The leader of each partition, once this broker knows that both copies of all of them are in sync."""
    async with asyncio.timeout(SECONDS):
        while True:
            found = await partitions(door, name)
            if len(found) == PARTITIONS and all(len(each.isr_nodes) == 2 and not each.error_code for each in found):
                return [each.leader_id for each in found]
            await asyncio.sleep(0.05)


async def write(doors: dict[int, Connection], name: str, leaders: list[int]) -> None:
    for index, leader in enumerate(leaders):
        request = produce_request(name, {index: batch(f"{name}-{index}".encode())}, timeout_ms=30_000)
        async with asyncio.timeout(SECONDS):  # Apache's broker tells who leads before it knows it itself
            while (code := await _written(doors[leader], request)) == Error.NOT_LEADER_OR_FOLLOWER.code:
                await asyncio.sleep(0.05)
        assert code == 0


async def _written(door: Connection, request: ProduceRequest) -> int:
    answer = await door.request(request, version=11)
    return int(answer.responses[0].partition_responses[0].error_code)


async def read(door: Connection, name: str) -> list[list[bytes | None]]:
    """The values of each partition, from a broker that leads them all."""
    found = []
    for index in range(PARTITIONS):
        # It tells that it leads before it knows it itself, and before it knows which records are on all copies.
        async with asyncio.timeout(SECONDS):
            while not (told := await _read(door, name, index)):
                await asyncio.sleep(0.05)
        found.append(told)
    return found


async def _read(door: Connection, name: str, index: int) -> list[bytes | None]:
    answer = await door.request(fetch_request(name, {index: 0}, max_wait_ms=500), version=12)
    (told,) = answer.responses[0].partitions
    assert told.error_code in (0, Error.NOT_LEADER_OR_FOLLOWER.code)
    return [] if told.error_code else values(told.records)


async def share_and_part(ours: Connection, theirs: Connection, go: Callable[[], Any], stays: Connection) -> None:
    """Topics made through either broker, written on both; then one goes, and the other has it all."""
    doors = {OURS: ours, APACHES: theirs}
    for name, door in (("through-ours", ours), ("through-apaches", theirs)):
        await create(door, name)
        leaders = await all_in_sync(ours, name)
        assert await all_in_sync(theirs, name) == leaders and set(leaders) == {OURS, APACHES}
        await write(doors, name, leaders)
    await go()
    me = OURS if stays is ours else APACHES
    async with asyncio.timeout(SECONDS):
        while {p.leader_id for name in ("through-ours", "through-apaches") for p in await partitions(stays, name)} != {
            me
        }:
            await asyncio.sleep(0.05)
    for name in ("through-ours", "through-apaches"):
        assert await read(stays, name) == [[f"{name}-{index}".encode()] for index in range(PARTITIONS)]


@on_loop
async def test_a_broker_of_apache_at_our_controller(tmp_path: Path) -> None:
    missing()
    port, controller_port = free_port(), free_port()
    listeners = f"PLAINTEXT://127.0.0.1:{port},CONTROLLER://127.0.0.1:{controller_port}"
    own = {"node.id": str(OURS), "listeners": listeners, "log.dirs": str(tmp_path / "ours")}
    node = Node(BrokerConfig({**single_node_defaults(), **own}), World())
    await node.start()
    apaches = ApacheBroker(tmp_path / "apache", node.directories.cluster_id, f"127.0.0.1:{controller_port}")
    try:
        await asyncio.to_thread(apaches.start)
        await until(lambda: APACHES in node.quorum.image.brokers and not node.quorum.image.brokers[APACHES].fenced)
        ours, theirs = await Connection.open("127.0.0.1", port), await Connection.open("127.0.0.1", apaches.port)
        await share_and_part(ours, theirs, lambda: asyncio.to_thread(apaches.stop), ours)
        ours.close()
    finally:
        apaches.kill()
        await node.stop()


@on_loop
async def test_our_broker_at_a_controller_of_apache(tmp_path: Path) -> None:
    missing()
    apaches = ApacheController(tmp_path / "apache", settings={"node.id": str(APACHES)})
    await asyncio.to_thread(apaches.start)
    world, path, port = World(), tmp_path / "ours", free_port()
    path.mkdir()
    write_meta_properties(world.disk, str(path), MetaProperties(CLUSTER_ID, OURS, b"o" * 16), world.now_ms())
    settings = {
        "process.roles": "broker",
        "node.id": str(OURS),
        "listeners": f"PLAINTEXT://127.0.0.1:{port}",
        "controller.listener.names": "CONTROLLER",
        "listener.security.protocol.map": "CONTROLLER:PLAINTEXT,PLAINTEXT:PLAINTEXT",
        "controller.quorum.bootstrap.servers": f"127.0.0.1:{apaches.controller_port}",
        "log.dirs": str(path),
    }
    node = Node(BrokerConfig(settings), world)
    try:
        await node.start()
        ours, theirs = await Connection.open("127.0.0.1", port), await Connection.open("127.0.0.1", apaches.port)
        await until(lambda: OURS in node.quorum.image.brokers and not node.quorum.image.brokers[OURS].fenced)
        await share_and_part(ours, theirs, node.stop, theirs)
        theirs.close()
    finally:
        apaches.kill()
