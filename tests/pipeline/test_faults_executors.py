"""kill -9 of executors of a real cluster of Spark, while they read, encode and spool: their tasks run again elsewhere."""

from __future__ import annotations

import os
import random
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from pipeline.copies import Copy
from pipeline.standalone import Standalone, standalone

pytestmark = [pytest.mark.slow, pytest.mark.timeout(1800)]

KILLS = 8
ROWS = 400_000


@pytest.fixture
def cluster(tmp_path: Path) -> Iterator[Standalone]:
    with standalone(tmp_path) as made:
        yield made


def until_at_work(copy: Copy, cluster: Standalone, before: int) -> bool:
    """All executors are there and something was written since; or the copy is done."""
    while copy.running() and (copy.written() <= before or len(cluster.executors()) < 2):
        time.sleep(0.1)
    return copy.running()


def test_executors_are_killed(broker: str, cluster: Standalone, tmp_path: Path) -> None:
    """STR-05: OTTLA_SEED chooses the moments. The driver lives, and the query never fails."""
    rng = random.Random(int(os.environ.get("OTTLA_SEED", "1")))
    copy = Copy(broker, tmp_path)
    copy.fill(ROWS)
    copy.start(ROWS // 100, "--master", cluster.address)
    try:
        done = 0
        while done < KILLS and until_at_work(copy, cluster, copy.written()):
            time.sleep(rng.uniform(0, 1))
            cluster.kill(rng.choice(cluster.executors()))
            done += 1
            print(f"kill {done} of an executor: {copy.written()} offsets taken", flush=True)
        copy.finish()
    finally:
        if copy.driver is not None:
            copy.kill()
    lost, doubled = copy.misfits(ROWS)
    print(f"{ROWS} rows, {done} kills of executors: {lost} lost, {doubled} doubled", flush=True)
    assert (lost, doubled) == (0, 0)
    assert done >= KILLS // 2, "the copy was finished before executors could be killed often enough"
