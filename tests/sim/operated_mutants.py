"""Mistakes planted on purpose into what an operator asks for: each breaks one promise, and `operated_play` has to notice.

Each names the kinds of faults with which it shows soonest; `KNOWN` has a seed that shows it then.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest

from ottla.log.directories import Directories
from ottla.metadata import reassignments, snapshot
from ottla.metadata.leaders import Change
from ottla.replication.replicas import Replicas
from sim.planting import Planting

mutant = Planting()

ENDS = ("kill", "kill_two", "kill_all", "kill_deciding", "kill_moving")


@mutant(*ENDS)
def a_move_is_over_before_who_comes_is_in_sync(patch: pytest.MonkeyPatch) -> None:
    """The controller believes who was told to come."""

    def complete(self: Change) -> None:
        if self.adding or self.removing:
            self.replicas = tuple(replica for replica in self.replicas if replica not in self.removing)
            self.isr, self.adding, self.removing = self.replicas, (), ()

    patch.setattr(Change, "_complete_reassignment", complete)


@mutant(*ENDS, "cut_off_moving")
def a_move_that_was_called_off_leaves_who_came(patch: pytest.MonkeyPatch) -> None:
    stopped = reassignments._stopped

    def half(*args: Any) -> Change:
        change = stopped(*args)
        change.replicas = change.partition.replicas
        return change

    patch.setattr(reassignments, "_stopped", half)


@mutant()
def who_lost_a_replica_keeps_it(patch: pytest.MonkeyPatch) -> None:
    """It is neither deleted nor does it stop to fetch."""

    async def nothing(self: Replicas, topic_id: bytes, index: int) -> None:
        return None

    patch.setattr(Replicas, "_give_up", nothing)


@mutant(*ENDS)
def who_lost_a_replica_while_it_was_away_keeps_it(patch: pytest.MonkeyPatch) -> None:
    """Only running nodes drop what they have lost."""
    patch.setattr(Directories, "set_strays_aside", lambda self, claimed_by: [])


@mutant(*ENDS)
def moves_are_forgotten_in_snapshots(patch: pytest.MonkeyPatch) -> None:
    """Who reads one believes that all replicas are there to stay."""
    whole = snapshot.partition_record

    def arrived(topic_id: bytes, index: int, partition: Any) -> Any:
        return whole(topic_id, index, partition._replace(adding=(), removing=()))

    patch.setattr(snapshot, "partition_record", arrived)


@mutant(*ENDS)
def settings_are_forgotten_in_snapshots(patch: pytest.MonkeyPatch) -> None:
    def none(image: Any) -> Iterator[Any]:
        return iter(())

    patch.setattr(snapshot, "_settings", none)


@mutant()
def settings_take_effect_at_the_next_start(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(Replicas, "reconfigure", lambda self, hosted: None)


# A seed that shows it, with the faults that suit it.
KNOWN: dict[str, int] = {
    "a_move_is_over_before_who_comes_is_in_sync": 0,
    "a_move_that_was_called_off_leaves_who_came": 1,
    "who_lost_a_replica_keeps_it": 0,
    "who_lost_a_replica_while_it_was_away_keeps_it": 3,
    "moves_are_forgotten_in_snapshots": 17,
    "settings_are_forgotten_in_snapshots": 1,
    "settings_take_effect_at_the_next_start": 1,
}
