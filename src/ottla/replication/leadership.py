"""What a leader knows of those who follow it: how far each of them is, who is in sync, and what follows for the watermark.

Words
- *end* of a follower: the offset it fetches from. A fetch says "I have everything below", so it is also its acknowledgement.
- *caught up at T*: it has read up to where the leader's log ended at T. A follower that asks without pause is never at the end
  of a log that grows; but what it asks for now was the end when it asked the last time.
- *committed in-sync set*: what the controller has said. *Proposed*: what it was asked for and has not answered yet.
- *maximal set*: both together. The high watermark waits for all of them, because nobody knows which one the controller will
  choose a new leader from; a set that is too large is only slower.

The watermark also waits for a follower that is caught up and may join, or it could run away from it for ever. It does not
move while fewer are in sync than `min.insync.replicas` wants (TRAP-44), and never falls.

One proposal for a partition is under way at a time (KIP-497). It is over when the controller answers it, or when a later
picture of the partition makes it void.
"""

from __future__ import annotations

import asyncio
import math
from typing import TYPE_CHECKING, Protocol

from ottla.metadata.image import Partition as Assignment
from ottla.rising import Rising
from ottla.wire.errors import Error, KafkaError

if TYPE_CHECKING:
    from ottla.replication.partition import Partition

UNKNOWN = -1
# Somebody whom the controller has just refused is not proposed again for so long.
REFUSED_S = 1.0

# The controller has refused, and nothing changed.
BACK_TO_COMMITTED = {Error.INELIGIBLE_REPLICA, Error.OPERATION_NOT_ATTEMPTED}
# The controller knows more than we do: the next picture tells.
WAIT_FOR_PICTURE = {
    Error.UNKNOWN_TOPIC_OR_PARTITION,
    Error.UNKNOWN_TOPIC_ID,
    Error.FENCED_LEADER_EPOCH,
    Error.INVALID_UPDATE_VERSION,
    Error.INVALID_REQUEST,
    Error.NEW_LEADER_ELECTED,
}


class Cluster(Protocol):
    """Who may join, how long one may lag, and the way to the controller."""

    def may_join(self, broker_id: int, life: int | None) -> bool: ...
    def has_room(self, broker_id: int, partition: Partition) -> bool: ...
    def is_over(self, broker_id: int, life: int) -> bool: ...
    def is_alive(self, broker_id: int) -> bool: ...
    def lag_max_s(self) -> float: ...
    def submit(self, leadership: Leadership) -> None: ...


class Follower:
    """How far one follower is, as its fetches tell."""

    __slots__ = ("caught_up", "end", "fetched", "id", "leader_end", "life", "start")

    def __init__(self, broker_id: int, caught_up: float) -> None:
        self.id = broker_id
        self.end = self.start = self.leader_end = UNKNOWN
        self.fetched = -math.inf
        self.caught_up = caught_up
        self.life: int | None = None

    def has_fetched(self, offset: int, start: int, life: int, leader_end: int, now: float) -> None:
        if offset >= leader_end:
            self.caught_up = max(self.caught_up, now)
        elif offset >= self.leader_end:
            self.caught_up = max(self.caught_up, self.fetched)
        self.end, self.start, self.life = offset, start, life
        self.leader_end = max(self.leader_end, leader_end)
        self.fetched = now

    def is_caught_up(self, leader_end: int, now: float, lag_max_s: float) -> bool:
        return self.end == leader_end or now - self.caught_up <= lag_max_s


class Leadership:
    """One leader epoch of a partition with several replicas."""

    __slots__ = (
        "_cluster",
        "_now",
        "_proposable_from",
        "end",
        "followers",
        "leader_epoch",
        "low_watermark",
        "maximal",
        "partition",
        "proposed",
        "stored",
    )

    def __init__(self, partition: Partition, assignment: Assignment, cluster: Cluster) -> None:
        self.partition = partition
        self.leader_epoch = assignment.leader_epoch
        self._cluster = cluster
        self._now = asyncio.get_running_loop().time
        self._proposable_from = -math.inf
        self.followers: dict[int, Follower] = {}
        self.proposed: tuple[int, ...] | None = None
        self.maximal: frozenset[int] = frozenset(assignment.isr)
        # Where the log ends, for followers who wait for more; and how far we vouch for our own copy.
        self.end = Rising(partition.log.end_offset)
        self.stored = Rising(partition.high_watermark.value)
        # Below it no replica that lives has records any more, as far as anybody who deleted some has asked.
        self.low_watermark = Rising(UNKNOWN)
        self.assign(assignment)

    def assign(self, assignment: Assignment) -> None:
        """The picture says who follows and who is in sync. It is newer than whatever was proposed before."""
        now, me = self._now(), assignment.leader
        known = self.followers
        self.followers = {
            broker_id: known.get(broker_id) or Follower(broker_id, now if broker_id in assignment.isr else -math.inf)
            for broker_id in assignment.replicas
            if broker_id != me
        }
        self._settle()

    def _settle(self) -> None:
        """What was proposed is over: the set is what the controller has said."""
        self.proposed = None
        self.maximal = frozenset(self.partition.isr)

    def close(self, error: KafkaError) -> None:
        self.proposed = None
        for each in (self.end, self.stored, self.low_watermark):
            each.close(error)

    # --- fetches of followers

    def grow(self, end: int) -> None:
        """The log got longer. Until now those were caught up who have all that was there before: they need not say so again
        and again while nothing happens."""
        before = self.end.value
        if end > before:
            for follower in self.followers.values():
                if follower.end == before:
                    follower.caught_up = max(follower.caught_up, self._now())
            self.end.rise(end)

    def has_fetched(self, broker_id: int, offset: int, start: int, life: int) -> None:
        """A follower has everything below `offset`."""
        follower = self.followers[broker_id]
        if self._cluster.is_over(broker_id, life):
            raise KafkaError(Error.NOT_LEADER_OR_FOLLOWER, f"broker {broker_id} has begun another life than {life}")
        before, start_before = follower.end, follower.start
        follower.has_fetched(offset, start, life, self.partition.log.end_offset, self._now())
        if broker_id not in self.maximal:
            self._propose_to_join(follower)
        if offset != before:
            self.partition.raise_watermark()
        if start != start_before and self.low_watermark.waiting:
            self.look_at_starts()

    def watermark(self) -> int:
        """Up to where everybody has it who counts."""
        mark = self.stored.value
        for follower in self.followers.values():
            if follower.end < mark and (follower.id in self.maximal or self._is_about_to_join(follower)):
                mark = follower.end
        return mark

    def _is_about_to_join(self, follower: Follower) -> bool:
        is_caught_up = follower.is_caught_up(self.partition.log.end_offset, self._now(), self._cluster.lag_max_s())
        return is_caught_up and self._may_join(follower)

    def _may_join(self, follower: Follower) -> bool:
        cluster = self._cluster
        return cluster.may_join(follower.id, follower.life) and cluster.has_room(follower.id, self.partition)

    def look_at_starts(self) -> None:
        starts = [follower.start for follower in self.followers.values() if self._cluster.is_alive(follower.id)]
        self.low_watermark.rise(min([self.partition.log.start_offset, *starts]))

    # --- the in-sync set

    def _propose_to_join(self, follower: Follower) -> None:
        partition = self.partition
        behind = max(partition.high_watermark.value, partition.epoch_start)
        if self.proposed is not None or follower.end < behind or self._now() < self._proposable_from:
            return
        if self._may_join(follower):
            self._propose((*partition.isr, follower.id))

    def look_for_joiners(self) -> None:
        """Somebody may have what it takes by now, though it has nothing new to fetch. Nobody who would have to leave again."""
        now, lag_max_s, end = self._now(), self._cluster.lag_max_s(), self.partition.log.end_offset
        for follower in self.followers.values():
            if follower.id not in self.maximal and follower.is_caught_up(end, now, lag_max_s):
                self._propose_to_join(follower)

    def look_for_laggards(self, now: float, lag_max_s: float) -> None:
        """Called now and then: whoever has not been caught up for too long has to leave."""
        end = self.partition.log.end_offset
        laggards = [
            follower.id
            for follower in self.followers.values()
            if follower.id in self.partition.isr and not follower.is_caught_up(end, now, lag_max_s)
        ]
        if laggards and self.proposed is None:
            self._propose(tuple(each for each in self.partition.isr if each not in laggards))
        self.partition.raise_watermark()  # somebody it waited for may not count any more
        if self.low_watermark.waiting:
            self.look_at_starts()

    def _propose(self, isr: tuple[int, ...]) -> None:
        self.proposed = isr
        self.maximal = frozenset((*self.partition.isr, *isr))
        self._cluster.submit(self)

    def life_of(self, broker_id: int) -> int | None:
        """In which life an in-sync follower was when it last fetched."""
        follower = self.followers.get(broker_id)
        return follower.life if follower is not None else None

    def answered(self, proposed: tuple[int, ...], error: Error, leader_epoch: int, epoch: int, isr: list[int]) -> bool:
        """What the controller says to a proposal; whether to ask again."""
        if self.proposed is not proposed or self.end.closed:
            return False  # a picture was faster
        if error in BACK_TO_COMMITTED:
            self._settle()
            self._proposable_from = self._now() + REFUSED_S
            asyncio.get_running_loop().call_later(REFUSED_S, self._try_again)
            self.partition.raise_watermark()
        elif error is Error.NONE:
            if leader_epoch == self.leader_epoch and epoch >= self.partition.partition_epoch:
                self.partition.agree(tuple(isr), epoch)
        else:
            return error not in WAIT_FOR_PICTURE
        return False

    def agree(self) -> None:
        """The controller's word is in `partition.isr`."""
        self._settle()

    def _try_again(self) -> None:
        if not self.end.closed:
            self.look_for_joiners()
