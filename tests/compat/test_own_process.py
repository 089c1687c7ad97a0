"""Producers that are processes: they do what the others do, and one that hangs is a failure and no hanging run."""

from __future__ import annotations

import os
import signal

import pytest

from compat.own_process import ConfluentOnItsOwn, OwnProcess
from compat.transacting import Refused, committed_offsets, until


def test_a_process_transacts_and_tells_why_it_may_not(broker: str) -> None:
    """TXN-01: what is committed is read, offsets hold, and a second producer with the id of the first fences it."""
    library = ConfluentOnItsOwn()
    first = library.producer(broker, "own-process", retry_backoff_ms=20).init()
    first.wrote("own-process", "whole").offset("own-process", "own-process", 7)
    first.commit()
    assert [each.value for each in library.read(broker, "own-process", 1, "read_committed")] == ["whole"]
    until(lambda: committed_offsets(broker, "own-process", "own-process", 1) == [7], "the offset")
    second = library.producer(broker, "own-process").init()
    with pytest.raises(Refused) as refusal:
        first.begin()
        first.offset("own-process", "own-process", 9)
    assert refusal.value.why == "_FENCED"
    for each in (first, second):
        each.close()


def test_a_process_that_hangs_is_a_failure_and_is_ended(broker: str) -> None:
    producer = OwnProcess(broker, "own-process-hangs")
    producer.init()
    assert producer.process.pid is not None
    os.kill(producer.process.pid, signal.SIGSTOP)
    producer.patience_s = 0.2
    with pytest.raises(AssertionError, match=r"hangs: offset\('g', 't', 7, 0\) of own-process-hangs has not come back"):
        producer.offset("g", "t", 7)
    assert producer.process.exitcode == -signal.SIGKILL


def test_a_process_that_ends_is_a_failure(broker: str) -> None:
    producer = OwnProcess(broker, "own-process-ends")
    producer.process.kill()
    with pytest.raises(AssertionError, match=r"begin\(\) of own-process-ends: the process has ended"):
        producer.begin()
