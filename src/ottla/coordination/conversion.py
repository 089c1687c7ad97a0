"""Groups that change their kind: a classic one becomes a consumer group when a member of the new protocol joins it."""

from __future__ import annotations

from ottla.coordination.advancing import Turn, remove_members
from ottla.coordination.classic_group import EMPTY, ClassicGroup
from ottla.coordination.consumer_group import ConsumerGroup
from ottla.coordination.consumer_member import Member
from ottla.coordination.groups import Groups
from ottla.coordination.machine import Moment
from ottla.coordination.simple import SimpleGroup
from ottla.wire.errors import Error, KafkaError


def upgrade(groups: Groups, group_id: str, moment: Moment) -> Turn:
    """A consumer group for one that joins: in the place of what was there before, if anything was."""
    turn = Turn(groups, ConsumerGroup(group_id), moment)
    group = groups.by_id.get(group_id)
    if group is None and group_id in groups.offsets:
        turn.records += SimpleGroup(group_id).tombstones()
    elif isinstance(group, ClassicGroup) and group.state == EMPTY:
        turn.records += group.tombstones()
    elif group is not None:
        raise KafkaError(Error.GROUP_ID_NOT_FOUND, f"Group {group_id} is not a consumer group.")
    return turn


def fence(turn: Turn, members: list[Member]) -> None:
    """These members are out of the group."""
    remove_members(turn, members)
