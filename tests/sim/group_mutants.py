"""Mistakes planted on purpose into the coordinator of groups: each breaks one promise, and the simulation has to notice."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from ottla.coordination import classic_group, classic_rebalance, commits, consumer_replay, group_coordinator
from ottla.coordination.classic_group import ClassicGroup
from ottla.coordination.classic_rebalance import Step
from ottla.coordination.consumer_group import ConsumerGroup
from ottla.coordination.records import ConsumerGroupMetadataKey
from ottla.server.shard import Shard

Plant = Callable[[pytest.MonkeyPatch], None]
MUTANTS: dict[str, Plant] = {}


def mutant(plant: Plant) -> Plant:
    MUTANTS[plant.__name__] = plant
    return plant


@mutant
def answer_before_commit(patch: pytest.MonkeyPatch) -> None:
    """Commits are acknowledged, and offsets told, before the records are written."""

    async def at_once(self: Shard[Any], end: int = -1) -> None:
        return None

    patch.setattr(Shard, "committed", at_once)


@mutant
def generation_not_read_back(patch: pytest.MonkeyPatch) -> None:
    """A classic group begins to count anew after a restart."""
    read = classic_group.written_group

    def forgetful(group_id: str, value: Any) -> ClassicGroup:
        group = read(group_id, value)
        group.generation = 0
        return group

    patch.setattr(classic_group, "written_group", forgetful)


@mutant
def epoch_not_replayed(patch: pytest.MonkeyPatch) -> None:
    """A consumer group does not remember that its epoch rose."""

    def forgetful(groups: Any, record: Any, offset: int) -> None:
        before = groups.by_id.get(record.key.group_id)
        consumer_replay.replay_group(groups, record, offset)
        group = groups.by_id.get(record.key.group_id)
        if before is not None and group is not None and group.epoch > 3:
            group.epoch = 3

    patch.setitem(group_coordinator.REPLAY, ConsumerGroupMetadataKey.key, forgetful)


@mutant
def sessions_not_begun_after_load(patch: pytest.MonkeyPatch) -> None:
    """Members that died with the node are waited for, for ever."""
    patch.setattr(classic_rebalance, "after_load", lambda groups, moment: [])
    patch.setattr(consumer_replay, "after_load", lambda groups, moment: None)


@mutant
def partition_given_before_it_is_released(patch: pytest.MonkeyPatch) -> None:
    """TRAP-56: a consumer gets what another has not given up yet."""
    patch.setattr(ConsumerGroup, "has_holder", lambda *_: False)


@mutant
def generation_begins_without_the_absent(patch: pytest.MonkeyPatch) -> None:
    """A rebalance does not wait for everybody to join: who has not yet is thrown out, and still owns what it had."""
    patch.setattr(ClassicGroup, "has_all_joined", property(lambda self: self.joined > 0))


@mutant
def machine_kept_after_a_failed_write(patch: pytest.MonkeyPatch) -> None:
    """What the disk refused is remembered all the same."""
    patch.setattr(Shard, "fail", lambda self, error: None)


@mutant
def offsets_expire_too_early(patch: pytest.MonkeyPatch) -> None:
    """The retention of offsets is not waited for."""
    patch.setattr(commits, "MINUTE_MS", 0)


@mutant
def joins_dropped_without_an_answer(patch: pytest.MonkeyPatch) -> None:
    """Whoever waits and is out is not told so."""
    patch.setattr(Step, "refuse_join", lambda *_: None)
    patch.setattr(Step, "refuse_sync", lambda *_: None)


@mutant
def end_of_a_session_forgotten_when_it_cannot_be_written(patch: pytest.MonkeyPatch) -> None:
    """A full disk makes members immortal."""
    from ottla.coordination import consumer

    patch.setattr(consumer, "undo", lambda turn: None)
