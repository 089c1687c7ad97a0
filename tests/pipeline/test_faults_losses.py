"""What a query has not read yet goes away under it: it ends with an error that says so, and what it wrote is not touched."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable, Iterator
from pathlib import Path

import pytest

from harness import Node
from ottla.client.admin import Admin
from ottla.client.cluster import Cluster
from pipeline.copies import Copy

pytestmark = [pytest.mark.slow, pytest.mark.timeout(600)]

ROWS = 200_000
RETENTION = {"log.retention.check.interval.ms": "500", "log.segment.bytes": str(1 << 20)}


@pytest.fixture
def copy(tmp_path: Path) -> Iterator[Copy]:
    """At work, and slow: it has written something, and most is still to be done."""
    node = Node(tmp_path / "data", settings=RETENTION)
    made = Copy(node.start().address, tmp_path)
    made.fill(ROWS)
    made.start(ROWS // 200)
    while not made.written():
        assert made.running(), made.log_tail()
        time.sleep(0.05)
    yield made
    made.kill()
    node.kill()


def interfere(copy: Copy, what: Callable[[Admin], Awaitable[object]]) -> str:
    """What the driver says at its end after this has happened to its source."""

    async def main() -> None:
        async with Cluster(copy.address) as cluster:
            await what(Admin(cluster))

    asyncio.run(main())
    assert not copy.wait_for("done"), "it says that all is copied"
    return copy.log.read_text(errors="replace")


def only_once(copy: Copy) -> bool:
    missing, doubled = copy.misfits(ROWS)
    print(f"{ROWS - missing} of {ROWS} rows were copied, {doubled} twice")
    return 0 < missing < ROWS and doubled == 0


def test_retention_overtakes_a_slow_query(copy: Copy) -> None:
    said = interfere(copy, lambda admin: admin.alter_configs(copy.source, put={"retention.ms": "1"}))
    assert "were removed before they were read (by retention, or by DeleteRecords)" in said, copy.log_tail()
    assert only_once(copy)


def test_a_topic_is_deleted_while_it_is_read(copy: Copy) -> None:
    said = interfere(copy, lambda admin: admin.delete_topic(copy.source))
    assert "was deleted" in said or "does not exist any more" in said, copy.log_tail()
    assert only_once(copy)
