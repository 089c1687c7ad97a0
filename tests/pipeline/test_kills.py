"""kill -9 of the driver at moments that nobody chose: the output is what it would have been without.

With the driver's process its JVM dies. A Python process that was just committing may live on for a moment: the driver that
comes after it has to shut it out.
"""

from __future__ import annotations

import os
import random
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from pipeline.copies import Copy

KILLS = 30
ROWS = 1_000_000


@pytest.fixture(params=["ottla", "apache"])
def long_copy(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Copy]:
    if request.param == "ottla":
        made = Copy(request.getfixturevalue("broker"), tmp_path)
    else:
        made = Copy(request.getfixturevalue("apache").address, tmp_path)
    yield made
    if made.driver is not None:
        made.kill()


@pytest.mark.slow
@pytest.mark.timeout(3600)
def test_many_kills(long_copy):
    """OTTLA_KILLS times (30), OTTLA_SEED chooses the moments. What Spark's own sink leaves behind here is duplicates."""
    kills, rng = int(os.environ.get("OTTLA_KILLS", KILLS)), random.Random(int(os.environ.get("OTTLA_SEED", "1")))
    long_copy.fill(ROWS)
    done = 0
    while done < kills:
        before = long_copy.written()
        long_copy.start(ROWS // 400)
        started = long_copy.wait_for("started")
        # One in four dies whenever it may be, the others at work: while they write, or between two writes.
        if rng.random() < 0.75:
            while long_copy.running() and long_copy.written() == before:
                time.sleep(0.02)
        time.sleep(rng.uniform(0, 4))
        if not long_copy.kill():
            assert started, long_copy.log_tail()
            break  # all is copied
        done += 1
        print(f"kill {done}: {long_copy.written()} offsets taken", flush=True)
    long_copy.start(ROWS)
    long_copy.finish()
    assert long_copy.misfits(ROWS) == (0, 0)
    assert done >= kills // 2, "the copy was finished before it could be killed often enough"
