"""What the oracle of a cluster asks of whoever leads."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

from ottla.sim.cluster_checks import Truth, Watch


def shown(truth: Truth, offset: int, *, written_in: int, committed_in: int) -> None:
    batch: Any = SimpleNamespace(
        base_offset=offset, next_offset=offset + 1, leader_epoch=written_in, crc=0, base_sequence=-1, producer_id=-1
    )
    cluster: Any = None
    Watch(cluster)._compare_batch(truth, "n1", batch, committed_in)


def test_a_leader_must_have_what_was_committed_before_it() -> None:
    truth = Truth("t-0")
    shown(truth, 0, written_in=3, committed_in=3)
    shown(truth, 1, written_in=3, committed_in=4)
    assert [truth.end_for(epoch) for epoch in (2, 3, 4, 5)] == [0, 1, 2, 2]


def test_a_deposed_leader_need_not_have_what_was_committed_after_it() -> None:
    """Node 2 writes a record in epoch 3 and tells nobody. Node 3 leads in epoch 4 without it, alone in sync, and is cut off.
    Node 2 has all that was committed, leads in epoch 5, and commits its record: node 3 has not heard of that."""
    truth = Truth("t-0")
    shown(truth, 0, written_in=3, committed_in=5)
    shown(truth, 0, written_in=3, committed_in=4)  # a replica that is late has heard of it later
    assert [truth.end_for(epoch) for epoch in (3, 4, 5)] == [0, 0, 1]


def looked_at(*looks: tuple[int, tuple[int, ...], int]) -> list[str]:
    """What is said of a leader that is seen again and again: its partition epoch, who is in sync, and its end."""
    cluster: Any = SimpleNamespace(loop=SimpleNamespace(time=lambda: 0.0))
    watch, truth = Watch(cluster), Truth("t-0")
    for partition_epoch, isr, end in looks:
        partition: Any = SimpleNamespace(
            leader_epoch=1,
            partition_epoch=partition_epoch,
            isr=isr,
            replicas=(1, 2, 3),
            min_insync=2,
            log=SimpleNamespace(end_offset=end),
        )
        watch._look_at_numbers(truth, "n2", partition)
    return [anomaly.kind for anomaly in watch.found]


def test_a_leader_with_too_few_in_sync_takes_nothing() -> None:
    assert looked_at((5, (2,), 86), (5, (2,), 87)) == ["too-few"]
    assert looked_at((5, (2, 1), 86), (6, (2,), 87), (6, (2,), 87)) == []


def test_somebody_may_be_in_sync_between_two_looks() -> None:
    """For two milliseconds, in which the leader took a record."""
    assert looked_at((5, (2,), 86), (7, (2,), 87)) == []
