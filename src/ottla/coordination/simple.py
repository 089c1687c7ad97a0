"""Simple groups: a name that offsets were committed under, and no members.

Admin clients and consumers that assign partitions to themselves commit without ever joining. For everybody who asks, that
is an empty classic group without a type of protocol; it exists as long as the store of offsets has an entry for it.
"""

from __future__ import annotations

from typing import NamedTuple

from ottla.coordination.groups import CLASSIC, EMPTY, Group, Groups
from ottla.coordination.machine import Moment
from ottla.coordination.offsets import Commit
from ottla.coordination.records import GroupMetadataKey, Record
from ottla.wire.errors import Error, KafkaError


class SimpleGroup(NamedTuple):
    group_id: str
    kind: str = CLASSIC
    protocol_type: str = ""
    state: str = EMPTY

    def check_commit(
        self, member_id: str, instance_id: str | None, generation: int, version: int, is_transactional: bool
    ) -> None:
        if generation >= 0:
            raise KafkaError(Error.UNKNOWN_MEMBER_ID)

    def keep_alive(self, member_id: str, groups: Groups, moment: Moment) -> None:
        """Nobody is there."""

    def check_fetch(self, member_id: str | None, member_epoch: int) -> None:
        """Anybody may."""

    def check_deletable(self) -> None:
        """It is empty."""

    def is_subscribed_to(self, topic: str) -> bool:
        return False

    def may_expire(self) -> bool:
        return True

    def expires_from_ms(self, commit: Commit) -> int:
        return commit.committed_ms

    def tombstones(self) -> list[Record]:
        return [Record(GroupMetadataKey(group=self.group_id), None)]


def find_any(groups: Groups, group_id: str) -> Group:
    """The group of whatever kind, or GROUP_ID_NOT_FOUND."""
    group = groups.by_id.get(group_id)
    if group is not None:
        return group
    if group_id in groups.offsets:
        return SimpleGroup(group_id)
    raise KafkaError(Error.GROUP_ID_NOT_FOUND, f"Group {group_id} not found.")
