"""Compaction on a running node: real files, a real child process, clients that go on meanwhile."""

from __future__ import annotations

import asyncio
import logging
import os
from dataclasses import replace
from multiprocessing import connection
from pathlib import Path
from typing import Any

import pytest
from crc32c import crc32c

from desk import on_loop
from ottla.log.log import Log
from ottla.log.producers import Origin
from ottla.log.segment import UNKNOWN
from ottla.wire.errors import Error
from ottla.wire.messages.settings import IncrementalAlterConfigsRequest
from ottla.wire.records import CRC_FROM, Record, batches, build, iterate
from served import Client, Served, batch, serving

ALWAYS = {"cleanup_policy": "compact", "segment_bytes": "1048576", "min_cleanable_dirty_ratio": "0.001"}
SECONDS = 60


def keyed(served: Served, key: bytes, value: bytes | None) -> bytes:
    return build([Record(timestamp=served.node.world.now_ms(), key=key, value=value)])


async def fill(client: Client, served: Served, topic: str, count: int) -> None:
    """One key again and again, a tenth of a segment at a time."""
    for number in range(count):
        answer = await client.produce(topic, keyed(served, b"key", b"%05d" % number * 20_000))
        assert answer.error_code == 0


async def left(client: Client, log: Log) -> list[int]:
    offsets: list[int] = []
    offset = log.start_offset
    while offset < log.end_offset:
        found = await client.fetch(log.topic, offset)
        assert found.error_code == 0
        for position, head in batches(found.records):
            offsets += [record.offset for record in iterate(memoryview(found.records)[position : position + head.size])]
            offset = head.next_offset
    return offsets


async def synced(served: Served) -> None:
    for partition in served.node.replicas.all():
        await partition.log.flush()


@on_loop
async def test_in_a_child_process_while_clients_go_on(tmp_path: Path) -> None:
    """RET-05, RET-06: and what was measured about it; the node stops while nothing is under way."""
    async with serving(tmp_path) as served:
        await served.topic("t", **ALWAYS)
        client = await served.connect()
        log = served.partition("t").log
        await fill(client, served, "t", 30)
        await synced(served)
        active = log.active.base
        assert active > 10
        running = asyncio.create_task(served.node.upkeep.compactions.run())
        produced = 0
        while not running.done() and produced < 50:
            await client.produce("t", keyed(served, b"other", b"v"))
            produced += 1
        await running
        assert produced > 0
        assert log.cleaned_to == active
        assert await left(client, log) == list(range(active - 1, log.end_offset))
        measures = served.node.measures
        assert measures.compaction_read.value > measures.compaction_written.value > 0
        assert sum(measures.compaction.counts) == 1
        text = measures.render()
        assert "ottla_uncleanable_partitions 0" in text and "ottla_dirtiest_log_ratio 0" in text
    assert (tmp_path / "data" / "cleaner-offset-checkpoint").read_text() == f"0\n1\nt 0 {active}\n"


@on_loop
async def test_when_nobody_asks(tmp_path: Path) -> None:
    """RET-05: every `log.cleaner.backoff.ms`, once segments are synced; and not where it is switched off."""
    async with serving(tmp_path, {"log.cleaner.backoff.ms": "20", "log.initial.task.delay.ms": "10"}) as served:
        await served.topic("t", **ALWAYS)
        client = await served.connect()
        await fill(client, served, "t", 15)
        log = served.partition("t").log
        async with asyncio.timeout(SECONDS):
            while log.cleaned_to < log.active.base:
                await asyncio.sleep(0.02)
    async with serving(tmp_path, {"log.cleaner.enable": "false"}) as served:
        client, log = await served.connect(), served.partition("t").log
        await fill(client, served, "t", 15)
        await synced(served)
        before = log.cleaned_to
        await served.node.upkeep.compactions.run()
        assert 0 <= before == log.cleaned_to < log.active.base


@on_loop
async def test_the_dirtiest_comes_first_and_as_many_at_a_time_as_allowed(tmp_path: Path) -> None:
    """RET-05: `log.cleaner.threads`, which may change while the node runs, and shares of the memory and of the bytes."""
    async with serving(tmp_path) as served:
        client = await served.connect()
        for topic in ("few", "many"):
            await served.topic(topic, **ALWAYS)
            await fill(client, served, topic, 13)
        await synced(served)
        await served.node.upkeep.compactions.run()
        for topic, count in (("few", 13), ("many", 35)):
            await fill(client, served, topic, count)
        await synced(served)
        node, order = served.node, list[str]()
        toil = node.world.workshop.toil
        at_work, most = 0, 0

        async def watched(call: Any, disk: Any, job: Any) -> Any:
            nonlocal at_work, most
            order.append(job.directory.rpartition("/")[2])
            at_work += 1
            most = max(most, at_work)
            try:
                return await toil(call, disk, job)
            finally:
                at_work -= 1

        node.world.workshop.toil = watched  # type: ignore[method-assign]
        tools = node.upkeep.compactions._tools(1)
        await node.upkeep.compactions.run()
        assert order == ["many-0", "few-0"] and most == 1
        order.clear()
        await alter(client, 4, "1", log_cleaner_threads="2")
        halved = node.upkeep.compactions._tools(2)
        assert halved.map_bytes == tools.map_bytes // 2 and halved.chunk_bytes == tools.chunk_bytes // 2
        for topic in ("few", "many"):
            await fill(client, served, topic, 13)
        await synced(served)
        await node.upkeep.compactions.run()
        assert sorted(order) == ["few-0", "many-0"] and most == 2


async def alter(client: Client, kind: int, name: str, **settings: str) -> None:
    entries = [
        IncrementalAlterConfigsRequest.Resource.Config(name=key.replace("_", "."), config_operation=0, value=value)
        for key, value in settings.items()
    ]
    resource = IncrementalAlterConfigsRequest.Resource(resource_type=kind, resource_name=name, configs=entries)
    answer = await client.call(IncrementalAlterConfigsRequest(resources=[resource]), 1)
    assert answer.responses[0].error_code == 0, answer.responses[0].error_message


@on_loop
async def test_one_that_cannot_be_read_is_left_out_and_told(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    """TRAP-71: others are compacted, and clients of that one go on."""
    async with serving(tmp_path) as served:
        client = await served.connect()
        for topic in ("bad", "good"):
            await served.topic(topic, **ALWAYS)
            await fill(client, served, topic, 2)
        nonsense = bytearray(keyed(served, b"key", b"value"))
        nonsense[61:62] = b"\x7f"
        nonsense[17:21] = crc32c(bytes(nonsense[CRC_FROM:])).to_bytes(4, "big")
        served.partition("bad").log.append(memoryview(nonsense), Origin.COORDINATOR, 0, served.node.world.now_ms())
        served.partition("bad").log.publish()
        for topic in ("bad", "good"):
            await fill(client, served, topic, 13)
        await synced(served)
        with caplog.at_level(logging.WARNING, "ottla.compaction"):
            await served.node.upkeep.compactions.run()
            await served.node.upkeep.compactions.run()
        (told,) = [record.getMessage() for record in caplog.records if record.name == "ottla.compaction"]
        assert told.startswith("bad-0 cannot be compacted any more: the batch at offset 2")
        assert "ottla_uncleanable_partitions 1" in served.node.measures.render()
        good = served.partition("good").log
        assert good.cleaned_to == good.active.base
        assert len(await left(client, good)) < 14
        await fill(client, served, "bad", 1)


@on_loop
async def test_a_child_that_dies_is_replaced(tmp_path: Path) -> None:
    """Out of memory, say: the log is as it was, and the next run compacts it."""
    async with serving(tmp_path) as served:
        await served.topic("t", **ALWAYS)
        client, workshop = await served.connect(), served.node.world.workshop
        await fill(client, served, "t", 15)
        await synced(served)
        with pytest.raises(ChildProcessError):
            await workshop.toil(os._exit, 3)
        log = served.partition("t").log
        await served.node.upkeep.compactions.run()
        assert log.cleaned_to == log.active.base


@on_loop
async def test_a_topic_that_becomes_compacted(tmp_path: Path) -> None:
    """RET-05, PRT-17: from then on records need keys, and those that came without go."""
    async with serving(tmp_path) as served:
        await served.topic("t", segment_bytes="1048576")
        client, log = await served.connect(), served.partition("t").log
        for _ in range(3):
            assert (
                await client.produce("t", batch(b"x" * 600_000, key=None, timestamp=served.node.world.now_ms()))
            ).error_code == 0
        await alter(client, 2, "t", cleanup_policy="compact", min_cleanable_dirty_ratio="0.0")
        refused = await client.produce("t", batch(b"x", key=None, timestamp=served.node.world.now_ms()))
        assert refused.error_code == Error.INVALID_RECORD.code
        large = build([Record(timestamp=served.node.world.now_ms(), value=b"x" * 100_000)])  # looked at by a child
        assert (await client.produce("t", large)).error_code == Error.INVALID_RECORD.code
        await fill(client, served, "t", 15)
        await synced(served)
        await served.node.upkeep.compactions.run()
        assert await left(client, log) == list(range(log.active.base - 1, 18))
        assert log.settings == replace(log.settings, cleanup_policy=frozenset({"compact"}))


@on_loop
async def test_one_whose_age_cannot_be_read_keeps_nobody_waiting(tmp_path: Path) -> None:
    """`max.compaction.lag.ms` asks for the first timestamp of every segment; the disk lost the beginning of one."""
    async with serving(tmp_path) as served:
        client = await served.connect()
        for topic in ("bad", "good"):
            await served.topic(topic, **ALWAYS, max_compaction_lag_ms="86400000")
            await fill(client, served, topic, 15)
        await synced(served)
        bad, good = (served.partition(topic).log for topic in ("bad", "good"))
        bad.segments[0].open().write_at(0, [bytes(100)])
        bad.segments[0].first_timestamp = UNKNOWN  # as after a restart
        await served.node.upkeep.compactions.run()
        assert bad.uncleanable and bad.cleaned_to == -1
        assert good.cleaned_to == good.active.base


@on_loop
async def test_a_log_that_moves_is_compacted_when_it_has_arrived(tmp_path: Path) -> None:
    """A copy is not made in one moment: what it has copied and what it has still to copy must be of one time."""
    settings = {"log.dirs": f"{tmp_path}/one,{tmp_path}/two", "replica.alter.log.dirs.io.max.bytes.per.second": "1"}
    async with serving(tmp_path, settings) as served:
        await served.topic("t", **ALWAYS)
        client = await served.connect()
        await fill(client, served, "t", 30)
        await synced(served)
        partition, moves = served.partition("t"), served.node.replicas.moves
        log, directories = partition.log, served.node.directories
        home = directories.home_of(log).path
        await moves.move(partition, next(each.path for each in directories.all if each.path != home))
        await served.node.upkeep.compactions.run()
        assert log.cleaned_to == -1
        await moves.move(partition, home)
        await served.node.upkeep.compactions.run()
        assert log.cleaned_to == log.active.base


@on_loop
async def test_nothing_is_compacted_in_a_directory_that_is_let_go(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The node stops in the middle: the child ends before another process can have the directory."""
    alive: list[bool] = []
    async with serving(tmp_path, {"log.cleaner.io.max.bytes.per.second": "1000"}) as served:
        await served.topic("t", **ALWAYS)
        client = await served.connect()
        await fill(client, served, "t", 15)
        await synced(served)
        workshop, close = served.node.world.workshop, served.node.directories.close
        compacting = asyncio.ensure_future(served.node.upkeep.compactions.run())
        async with asyncio.timeout(SECONDS):
            while not (children := [child for pool in workshop._pools.values() for child in pool._processes.values()]):
                await asyncio.sleep(0.01)

        async def close_and_look(broker_epoch: int) -> None:
            # Not `is_alive`, which says yes while another thread is asking: the pool's own asks, too.
            alive.extend(child.sentinel not in connection.wait([child.sentinel], 0) for child in children)
            await close(broker_epoch)

        monkeypatch.setattr(served.node.directories, "close", close_and_look)
        compacting.cancel()
    assert alive == [False]
