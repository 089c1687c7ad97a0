"""Settings of a broker that change while it runs: a node obeys them at once, in logs that are open already."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest

from desk import on_loop
from ottla.config.settings import NODE_SETTINGS, TOPIC_SETTINGS
from ottla.wire.errors import Error
from ottla.wire.messages.cluster import DescribeLogDirsRequest
from ottla.wire.messages.placement import AlterReplicaLogDirsRequest
from ottla.wire.messages.topics import CreateTopicsRequest
from served import Client, TouchyDisk, batch, change, heads, serving

# Another value for each setting that logs obey.
CHANGED = {
    "log.segment.bytes": "2000000",
    "log.roll.ms": "60000",
    "log.roll.jitter.ms": "7",
    "log.index.size.max.bytes": "5000",
    "log.index.interval.bytes": "123",
    "log.segment.delete.delay.ms": "321",
    "log.retention.ms": "1234567",
    "log.retention.bytes": "9999",
    "log.cleanup.policy": "compact",
    "log.flush.interval.messages": "10",
    "log.flush.interval.ms": "777",
    "message.max.bytes": "5000",
    "compression.type": "lz4",
    "compression.gzip.level": "3",
    "compression.lz4.level": "4",
    "compression.zstd.level": "5",
    "log.message.timestamp.type": "LogAppendTime",
    "log.message.timestamp.before.max.ms": "11",
    "log.message.timestamp.after.max.ms": "12",
    "producer.id.expiration.ms": "54321",
    "log.cleaner.min.cleanable.ratio": "0.25",
    "log.cleaner.delete.retention.ms": "4321",
    "log.cleaner.min.compaction.lag.ms": "99",
    "log.cleaner.max.compaction.lag.ms": "88888",
}
# Obeyed elsewhere: by listeners (test_limits), by elections (each asks anew), by partitions (below; only for all brokers
# while ELR is on), by compaction (each run asks anew: test_compactions), by moves (test_moves), by consumer groups (each
# assignment asks anew: test_consumer), by Produce (each asks anew: test_verifying), by followers and leaders that are
# throttled (test_histories), by directories (below), and not at all while the node runs.
ELSEWHERE = {
    "min.insync.replicas",
    "max.connections",
    "max.connections.per.ip",
    "max.connections.per.ip.overrides",
    "max.connection.creation.rate",
    "unclean.leader.election.enable",
    "listeners",
    "listener.security.protocol.map",
    "log.cleaner.threads",
    "log.cleaner.io.max.bytes.per.second",
    "log.cleaner.dedupe.buffer.size",
    "log.cleaner.io.buffer.size",
    "log.cleaner.io.buffer.load.factor",
    "log.cleaner.backoff.ms",
    "replica.alter.log.dirs.io.max.bytes.per.second",
    "leader.replication.throttled.rate",
    "follower.replication.throttled.rate",
    "group.consumer.assignment.interval.ms",
    "transaction.partition.verification.enable",
    "cordoned.log.dirs",
}


def meaning(name: str, value: str) -> object:
    if "policy" in name:
        return frozenset({value})
    return float(value) if "." in value else int(value) if value.isdigit() else value


def test_every_setting_that_can_change_is_tried() -> None:
    dynamic = {name for name, row in NODE_SETTINGS.items() if row.scope and row.effect}
    assert dynamic == CHANGED.keys() | ELSEWHERE


@pytest.mark.parametrize("broker", ["1", ""])
@on_loop
async def test_open_logs_obey(tmp_path: Path, broker: str) -> None:
    """For this broker and for all; a topic with a value of its own keeps it; deleting the setting brings the old value."""
    async with serving(tmp_path) as served:
        await served.topic("t")
        await served.topic("own", segment_bytes="3000000")
        client = await served.connect()
        partition, stubborn = served.partition("t"), served.partition("own")
        first = partition.log.settings
        for name, value in CHANGED.items():
            await change(client, broker, **{name: value})
            fields = [topic for topic, row in TOPIC_SETTINGS.items() if name in row.stand_ins] or [name]
            (field,) = [field.replace(".", "_") for field in fields if not field.startswith("internal")]
            found = getattr(partition.log.settings, field)
            assert found == meaning(name, value), name
        assert stubborn.log.settings.segment_bytes == 3_000_000
        await change(client, broker, **dict.fromkeys(CHANGED))
        assert partition.log.settings == first


@on_loop
async def test_what_clients_see_of_it(tmp_path: Path) -> None:
    disk = TouchyDisk()
    async with serving(tmp_path, disk=disk) as served:
        await served.topic("t")
        client, now = await served.connect(), served.node.world.now_ms()
        assert (await client.produce("t", batch(b"x" * 6_000, timestamp=now))).error_code == 0
        await change(client, "1", message_max_bytes="5000")
        assert (
            await client.produce("t", batch(b"x" * 6_000, timestamp=now))
        ).error_code == Error.MESSAGE_TOO_LARGE.code
        await change(client, "1", message_max_bytes=None, log_message_timestamp_type="LogAppendTime")
        assert (await client.produce("t", batch(b"x" * 6_000, timestamp=now))).log_append_time_ms > 0
        before = [path for path in disk.syncs if "/t-0/" in path]
        await change(client, "1", log_flush_interval_messages="1")
        assert (await client.produce("t", batch(b"y", timestamp=now))).error_code == 0
        after = [path for path in disk.syncs if "/t-0/" in path]
        assert len(after) > len(before)
        await change(client, "1", compression_type="gzip")
        await client.produce("t", batch(b"z" * 1_000))
        assert [head.codec for head in heads((await client.fetch("t", 3)).records)] == [1]
        await change(client, "", min_insync_replicas="2")
        assert served.partition("t").min_insync == 2
        assert (await client.produce("t", batch(b"z"))).error_code == 0, "of one replica nobody can want two"


@on_loop
async def test_retention_by_a_new_rule(tmp_path: Path) -> None:
    async with serving(tmp_path) as served:
        await served.topic("t", segment_bytes="1048576")
        client = await served.connect()
        for _ in range(4):
            await client.produce("t", batch(b"x" * 700_000, timestamp=served.node.world.now_ms()))
        await served.node.upkeep.retain()
        assert served.partition("t").log.start_offset == 0
        await change(client, "", log_retention_bytes="1000000")
        await served.node.upkeep.retain()
        assert served.partition("t").log.start_offset == 2
        await change(client, "", log_retention_ms="1")
        await asyncio.sleep(0.01)
        await served.node.upkeep.retain()
        assert served.partition("t").log.start_offset == 4


@on_loop
async def test_a_cordoned_directory_gets_nothing_new(tmp_path: Path) -> None:
    """KIP-1066: it keeps what it has, and takes neither new replicas nor such as are moved; a broker that has cordoned all is
    none for whoever places replicas."""
    async with serving(tmp_path, {"log.dirs": f"{tmp_path}/one,{tmp_path}/two"}) as served:
        node, client = served.node, await served.connect()
        one, two = (directory.path for directory in node.directories.all)
        await served.topic("before", 4)
        await change(client, "1", cordoned_log_dirs=one)
        await served.topic("after", 4)
        homes = {
            topic: [node.directories.home_of(served.partition(topic, index).log).path for index in range(4)]
            for topic in ("before", "after")
        }
        assert sorted(homes["before"]) == [one, one, two, two]
        assert homes["after"] == [two] * 4
        described = await client.call(DescribeLogDirsRequest(topics=[]), 5)
        assert [(listed.log_dir, listed.is_cordoned) for listed in described.results] == [(one, True), (two, False)]
        assert await moved(client, one, "after") == Error.INVALID_REPLICA_ASSIGNMENT.code
        await change(client, "1", cordoned_log_dirs="*")
        wanted = CreateTopicsRequest.Topic(name="nowhere", num_partitions=1, replication_factor=1)
        (refused,) = (await client.call(CreateTopicsRequest(topics=[wanted]), 7)).topics
        assert refused.error_code == Error.INVALID_REPLICATION_FACTOR.code
        assert "cordoned" in (refused.error_message or "")
        await change(client, "1", cordoned_log_dirs=None)
        assert await moved(client, one, "after") == 0
        await served.topic("again")


async def moved(client: Client, directory: str, topic: str) -> int:
    kind = AlterReplicaLogDirsRequest.Directory
    request = AlterReplicaLogDirsRequest(dirs=[kind(path=directory, topics=[kind.Topic(name=topic, partitions=[0])])])
    return (await client.call(request, 2)).results[0].partitions[0].error_code
