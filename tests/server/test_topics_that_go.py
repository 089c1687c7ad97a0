"""What a node keeps of topics that are deleted: nothing."""

from __future__ import annotations

from pathlib import Path

from desk import on_loop
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
            await node.quorum.propose(lambda image, gone=topic_id: delete_topics(image, [gone]))
        await node.upkeep.flush()
        assert not node.measures._topics and not node.upkeep._unflushed_since
        await served.topic("t0")
        assert (await client.produce("t0", batch(b"v"))).error_code == 0
        assert list(node.measures._topics) == ["t0"]
