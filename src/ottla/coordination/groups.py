"""The groups of one partition of `__consumer_offsets`: what all who decide about them share.

A group id names one group, whichever protocol it speaks: a *classic* one (`classic.py`: members choose a leader who divides
the work) or a *consumer* one (`consumer.py`, KIP-848: the coordinator divides it). A group of one kind may become one of the
other. Committed offsets (`offsets.py`) belong to a group id, also to one that nobody ever joined.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Protocol

from ottla.config import BrokerConfig
from ottla.coordination.machine import Moment, Timers
from ottla.coordination.offsets import Commit, Offsets
from ottla.coordination.records import Record
from ottla.metadata.image import Image, Topic
from ottla.wire.ids import Chance

# Kinds of groups.
CLASSIC, CONSUMER = "classic", "consumer"
# What members of a classic group do together if they are consumers: its protocol type. All consumer groups have it.
CONSUMER_PROTOCOL = "consumer"
# The state of a group of any kind in which nobody is.
EMPTY = "Empty"

# Raises unless an offset may be committed for this partition: name and id of the topic, index.
CheckPartition = Callable[[str, bytes, int], None]


class Group(Protocol):
    """What can be asked of a group of either kind. Checks raise the error that the client gets."""

    @property
    def group_id(self) -> str: ...
    @property
    def kind(self) -> str:
        """CLASSIC or CONSUMER: the type that ListGroups tells."""

    @property
    def protocol_type(self) -> str:
        """What its members do together: "consumer", "connect", ...; empty while nobody has joined."""

    @property
    def state(self) -> str:
        """The state as clients see it: Empty, Stable, PreparingRebalance, Assigning ..."""

    def check_commit(
        self, member_id: str, instance_id: str | None, generation: int, version: int, is_transactional: bool
    ) -> CheckPartition | None:
        """May this member commit offsets in this generation, or at this epoch?

        What is returned, if anything, is asked once more for every partition (KIP-1251: a member that lags behind its
        epoch may still commit what it has held since). One that may not be committed refuses the whole request.
        """

    def keep_alive(self, member_id: str, groups: Groups, moment: Moment) -> None:
        """A commit that was allowed counts as a heartbeat: in a classic group that is Stable or PreparingRebalance."""

    def check_fetch(self, member_id: str | None, member_epoch: int) -> None:
        """May it ask for committed offsets?"""

    def check_deletable(self) -> None:
        """May the group be deleted?"""

    def is_subscribed_to(self, topic: str) -> bool:
        """Does a member read this topic, as far as anybody can know?"""

    def may_expire(self) -> bool:
        """May its offsets be forgotten at all, given the state it is in?"""

    def expires_from_ms(self, commit: Commit) -> int:
        """The time from which the retention of this offset counts."""

    def tombstones(self) -> list[Record]:
        """Records that end the group; its offsets not included."""


class Groups:
    """All groups of one partition, with their offsets and their alarms."""

    def __init__(self, config: BrokerConfig, image: Callable[[], Image], chance: Chance) -> None:
        self.config = config
        self.chance = chance
        self._image = image
        self.by_id: dict[str, Group] = {}
        self.offsets = Offsets()
        self.timers = Timers()
        # Hashes of topics, for groups that notice when theirs change; the topic as it was then.
        self.topic_hashes: dict[str, tuple[Topic, int]] = {}
        # The picture in which topics last came into being: expressions that were evaluated before are evaluated anew.
        self.topics_came_at = -1
        # Groups whose offsets have still to be looked at in this round of expiry.
        self.to_look_at: list[str] = []
        # Topics that are gone and still have offsets here.
        self.deleted_topics: dict[bytes, str] = {}

    @property
    def image(self) -> Image:
        """The committed picture of the cluster."""
        return self._image()
