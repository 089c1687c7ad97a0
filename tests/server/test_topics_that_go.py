"""What a node keeps of topics that are deleted: nothing."""

from __future__ import annotations

import asyncio
import errno
import logging
from pathlib import Path

import pytest

from desk import on_loop
from ottla.log.directory import DataDirectory
from ottla.log.epochs import EpochCache
from ottla.log.flushing import Deleted
from ottla.log.identity import read_topic_id
from ottla.log.log import Log
from ottla.log.settings import LogSettings
from ottla.metadata.controller import delete_topics
from served import batch, serving


@on_loop
async def test_metrics_and_upkeep_forget_topics_that_are_gone(tmp_path: Path) -> None:
    async with serving(tmp_path) as served:
        node = served.node
        client = await served.connect()
        for number in range(5):
            topic_id = await served.topic(f"t{number}", flush_ms="3600000")
            assert (await client.produce(f"t{number}", batch(b"v"))).error_code == 0
            await node.upkeep.flush()
            await node.controller.propose(lambda image, gone=topic_id: delete_topics(image, [gone]))
        await node.upkeep.flush()
        assert not node.measures._topics and not node.upkeep._unflushed_since
        await served.topic("t0")
        assert (await client.produce("t0", batch(b"v"))).error_code == 0
        assert list(node.measures._topics) == ["t0"]


@on_loop
async def test_a_topic_that_goes_while_its_log_is_synced_is_no_failure_of_the_disk(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """Before the sync, and in the middle of it: what it then cannot find is not what is wrong."""
    async with serving(tmp_path) as served:
        node, client = served.node, await served.connect()
        topic_id = await served.topic("t", flush_ms="0")
        assert (await client.produce("t", batch(b"v"))).error_code == 0
        log = served.partition("t").log
        monkeypatch.setattr(node.upkeep, "_logs", lambda: [log])

        def vanish(_: EpochCache) -> None:
            log.failed = deleted
            raise FileNotFoundError(errno.ENOENT, "No such file or directory", "leader-epoch-checkpoint.tmp")

        await node.controller.propose(lambda image: delete_topics(image, [topic_id]))
        deleted = log.failed
        assert isinstance(deleted, Deleted)
        await node.upkeep.flush()
        monkeypatch.setattr(EpochCache, "write", vanish)
        log.epochs.unwritten, log.failed = True, None
        await node.upkeep.flush()
        assert log.failed is deleted
        told = [each for each in caplog.records if each.levelno >= logging.ERROR and each.name.startswith("ottla")]
        assert not told


@on_loop
async def test_a_topic_that_finds_a_home_while_it_is_deleted_and_made_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its log could not be made at first. When it is tried again the topic goes, and its namesake gets the directory."""
    async with serving(tmp_path) as served:
        node, (directory,) = served.node, served.node.directories.all
        make, may_make, is_waiting = DataDirectory.create, asyncio.Event(), asyncio.Event()

        async def refuse(*_: object) -> Log:
            raise OSError(errno.EIO, "the disk is not well")

        async def wait(self: DataDirectory, topic: str, index: int, topic_id: bytes, settings: LogSettings) -> Log:
            if topic_id == first:
                is_waiting.set()
                await may_make.wait()
            return await make(self, topic, index, topic_id, settings)

        monkeypatch.setattr(DataDirectory, "create", refuse)
        first = await served.topic("t")
        monkeypatch.setattr(DataDirectory, "create", wait)
        housing = asyncio.ensure_future(node.upkeep.find_room())
        await is_waiting.wait()
        deleting = asyncio.ensure_future(node.controller.propose(lambda image: delete_topics(image, [first])))
        making = asyncio.ensure_future(served.topic("t"))
        for _ in range(100):
            await asyncio.sleep(0.001)  # long enough for whoever does not wait
        may_make.set()
        await asyncio.gather(housing, deleting, making)
        client = await served.connect()
        assert (await client.produce("t", batch(b"v"))).error_code == 0
        log = served.partition("t").log
        assert directory.logs["t", 0] is log and log.topic_id == making.result()
        assert read_topic_id(directory.disk, log.directory) == log.topic_id
        assert not node.replicas.homeless
