"""Mistakes planted on purpose into transactions: each breaks one promise, and the simulation has to notice."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

import pytest

from ottla.coordination.machine import Decision
from ottla.coordination.offsets import Offsets
from ottla.coordination.transactions import ending, expiry
from ottla.log import compacting, recovery
from ottla.log.log import Log
from ottla.log.producers import UNGUARDED
from ottla.server import verifying
from ottla.server.markers import Placed
from ottla.server.shard import Shard

Plant = Callable[[pytest.MonkeyPatch], None]


class Mutant(NamedTuple):
    """With the first seed that is tried: one that is known to notice it, until histories change."""

    plant: Plant
    seed: int


MUTANTS: dict[str, Mutant] = {}
# Those that take a power cut between two syncs: they are for the cuts of `cut_transactions`.
CUT_MUTANTS: dict[str, Plant] = {}


def cut_mutant(plant: Plant) -> Plant:
    CUT_MUTANTS[plant.__name__] = plant
    return plant


def mutant(seed: int) -> Callable[[Plant], Plant]:
    def enter(plant: Plant) -> Plant:
        MUTANTS[plant.__name__] = Mutant(plant, seed)
        return plant

    return enter


@cut_mutant
def markers_before_the_outcome_is_durable(patch: pytest.MonkeyPatch) -> None:
    """Markers are written while the decision they speak of may still be lost."""
    usual = Shard.carry_out

    def hasty(self: Shard[Any], decision: Decision[Any], producer: Any = None) -> Decision[Any]:
        orders, decision.orders = decision.orders, []
        usual(self, decision, producer)
        for order in orders:
            self._begin_errand(self._kind.see_to(self, order))
        return decision

    patch.setattr(Shard, "carry_out", hasty)


@cut_mutant
def complete_before_the_markers_are_safe(patch: pytest.MonkeyPatch) -> None:
    """A transaction counts as ended while its markers may still be lost."""

    async def at_once(self: Placed, seconds: float | None = None) -> None:
        return None

    patch.setattr(Placed, "is_safe", at_once)


@mutant(1)
def answers_before_the_outcome_is_durable(patch: pytest.MonkeyPatch) -> None:
    """A commit is acknowledged before it is written."""

    async def at_once(self: Shard[Any], end: int = -1) -> None:
        return None

    patch.setattr(Shard, "committed", at_once)


@mutant(0)
def last_stable_offset_one_too_far(patch: pytest.MonkeyPatch) -> None:
    """The first record of an open transaction is handed out."""
    usual = Log.last_stable_offset
    patch.setattr(Log, "last_stable_offset", lambda self, mark: min(mark, usual(self, mark) + 1))


@mutant(0)
def aborted_transactions_forgotten_by_a_restart(patch: pytest.MonkeyPatch) -> None:
    """Their records are handed out as if they had been committed."""
    usual = recovery.load

    def forgetful(log: Log, *args: Any) -> Any:
        report = usual(log, *args)
        log.with_aborted.clear()
        return report

    patch.setattr(recovery, "load", forgetful)


@mutant(0)
def no_new_epoch_at_the_end(patch: pytest.MonkeyPatch) -> None:
    """What is late of one transaction cannot be told from the next."""
    usual = ending.prepared

    def same_epoch(known: Any, committed: bool, _bumps: bool, fresh: Any, moment: Any) -> Any:
        return usual(known, committed, False, fresh, moment)

    patch.setattr(ending, "prepared", same_epoch)


@mutant(0)
def first_batches_let_in_unasked(patch: pytest.MonkeyPatch) -> None:
    """The coordinator is asked, and its answer not waited for: a late batch opens a transaction that nobody ends."""
    usual = verifying.ask

    async def deaf(node: Any, entrant: Any, verdicts: dict[Any, Any]) -> None:
        await usual(node, entrant, dict(verdicts))
        for place in verdicts:
            verdicts[place] = UNGUARDED

    patch.setattr(verifying, "ask", deaf)


@mutant(4)
def aborted_transactions_lost_in_compaction(patch: pytest.MonkeyPatch) -> None:
    """Compaction does not know what was aborted: it keeps the records, and the list of aborted ones goes."""
    patch.setattr(compacting, "_aborted_rows", lambda disk, job: [])


@mutant(8)
def prepared_ends_forgotten_by_a_restart(patch: pytest.MonkeyPatch) -> None:
    """Nobody goes on with the markers of a transaction whose coordinator died."""

    usual = expiry.after_load

    def forgetful(state: Any, moment: Any) -> list[Any]:
        usual(state, moment)
        return []

    patch.setattr(expiry, "after_load", forgetful)


@mutant(1)
def timeouts_forgotten_by_a_restart(patch: pytest.MonkeyPatch) -> None:
    """What a producer left open that died with its coordinator stays open."""
    usual = expiry.after_load

    def forgetful(state: Any, moment: Any) -> Any:
        later = usual(state, moment)
        for name in state.by_id:
            state.timers.cancel((expiry.TIMEOUT, name, ""))
        return later

    patch.setattr(expiry, "after_load", forgetful)


@mutant(0)
def offsets_of_an_aborted_transaction_stay(patch: pytest.MonkeyPatch) -> None:
    """What was not copied counts as copied."""
    usual = Offsets.end_transaction
    patch.setattr(Offsets, "end_transaction", lambda self, producer_id, committed: usual(self, producer_id, True))
