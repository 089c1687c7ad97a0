"""Retention and cuts at their exact limits, and in which order they reach the disk."""

from __future__ import annotations

import random
import sys
from pathlib import Path

import pytest

from ottla.log import retention
from ottla.log.directory import DataDirectory
from ottla.log.identity import MetaProperties
from ottla.log.settings import LogSettings
from ottla.sim.disk import SimDisk

sys.path.insert(0, str(Path(__file__).parent))
from logs import NOW_MS, SMALL, Clock, fill, make_log, offsets, read_batches, run


def test_the_new_start_is_on_disk_before_the_first_file_goes() -> None:
    """RET-04, LOG-04: or a crash in between would leave a log that begins with a hole, or shows again what was gone."""
    disk = SimDisk()
    directory = DataDirectory(disk, "/logs", now_ms=Clock(), rng=random.Random(1))
    assert directory.open() is None
    directory.format(MetaProperties("cluster", 1, bytes(range(16))))
    run(directory.load(lambda topic: SMALL))
    log = run(directory.create("t", 0, b"topic id, 16 byt", SMALL))
    fill(log, 60)
    disk.trace = []
    assert run(retention.perform(log, 2)) > 0
    did = [(kind, path.rpartition("/")[2]) for kind, path in disk.trace]
    written = next(at for at, (kind, name) in enumerate(did) if kind == "rename" and "log-start-offset" in name)
    first_gone = next(at for at, (kind, name) in enumerate(did) if kind == "rename" and name.startswith("0000"))
    assert written < first_gone
    assert ("sync directory", "logs") in did[written:first_gone]


@pytest.mark.parametrize(("spare", "gone"), [(-1, 2), (0, 2), (1, 1)])
def test_by_size_a_segment_goes_if_enough_is_left_without_it(spare: int, gone: int) -> None:
    """RET-02: what is left may be exactly `retention.bytes`, as in Kafka."""
    log = make_log()
    fill(log, 60)
    rest = sum(segment.size for segment in log.segments[2:])
    log.configure(LogSettings(segment_bytes=4096, retention_bytes=rest + spare, retention_ms=-1))
    assert retention.plan(log, NOW_MS, log.end_offset) == gone


def test_a_cut_below_the_start_takes_the_start_along() -> None:
    """LOG-02: a follower whose leader ends below our log start; a log never begins behind its end."""
    log = make_log(settings=LogSettings())
    fill(log, 10)
    log.delete_records(11, log.end_offset)
    assert run(log.truncate_to(6))
    assert (log.start_offset, log.end_offset) == (6, 6)
    fill(log, 1)
    assert offsets(read_batches(log, 6)) == [6]
