"""Ends of transactions: the markers that a coordinator's decision puts into every partition that was written to.

A transaction that is decided (PREPARE is committed) becomes an order; carried out, its markers are in the logs of all its
partitions and as safe as those promise, and only then the coordinator is told that it is complete. A marker that cannot be
written now is written later: nobody else would do it, and until it is there `read_committed` stops in front of it. Writing
one twice does no harm.

Many transactions end at once. Their markers are staged in the turn in which the orders come, and the tick writes them with
everything else: one write for a partition, however many markers it got, and one future for a transaction that waits for it.

Partitions that are led elsewhere get theirs by WriteTxnMarkers (`couriers`): `Markers._write` is where that parts, because
`place` is also what such a request comes to (`handlers/markers`), and must not send it on.
"""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING, NamedTuple

from ottla.coordination.transactions import ending
from ottla.log.producers import Marker
from ottla.metadata.topics import CONSUMER_OFFSETS
from ottla.rising import Rising
from ottla.server.couriers import Codes, Courier, Place, portions
from ottla.wire.errors import Error, KafkaError, error_of

if TYPE_CHECKING:
    from ottla.coordination.groups import Groups
    from ottla.coordination.transactions.states import Marking, Transactions
    from ottla.metadata.image import Delta, Image
    from ottla.replication.partition import Partition
    from ottla.server.node import Node
    from ottla.server.shard import Shard

log = logging.getLogger("ottla.transactions")

# How long to wait before what could not be written is tried again.
AGAIN_S = 0.1
AGAIN_MAX_S = 5.0

# What the coordinator of a group says that is not ready; to a coordinator of transactions it is a partition without a leader.
NOT_READY = {Error.COORDINATOR_NOT_AVAILABLE, Error.COORDINATOR_LOAD_IN_PROGRESS, Error.NOT_COORDINATOR}
GONE = Error.UNKNOWN_TOPIC_OR_PARTITION


class Fenced(Exception):
    """Another coordinator has ended transactions of this producer since."""


class Placed:
    """A marker that is staged: whose watermark has to pass which offset before it counts."""

    __slots__ = ("end", "error", "mark", "partition")

    def __init__(self, partition: Partition) -> None:
        self.partition = partition
        self.mark: Rising = partition.high_watermark
        self.end = 0
        self.error: KafkaError | None = None

    def fail(self, error: KafkaError) -> None:
        """Its write failed."""
        self.error = error

    async def is_safe(self, seconds: float | None = None) -> None:
        """Return when it is. KafkaError: it is not in the log, or nobody knows; TimeoutError: not yet."""
        if self.error is None and self.mark.value < self.end:
            await self.mark.reaches(self.end, seconds)
        if self.error is not None:
            raise self.error
        if self.partition.is_short_of_replicas:
            raise KafkaError(Error.NOT_ENOUGH_REPLICAS_AFTER_APPEND)


class PlacedInGroups(Placed):
    """One that the machine of some groups has heard of. If its write fails, that machine is dropped: perhaps while somebody
    waited for another marker, and nobody else may ever write there."""

    __slots__ = ("machine", "shard")

    def __init__(self, shard: Shard[Groups], marker: Marker) -> None:
        super().__init__(shard.partition)
        self.end = shard.append_marker(marker)
        self.shard, self.machine = shard, shard.machine

    async def is_safe(self, seconds: float | None = None) -> None:
        self._check_machine()
        await super().is_safe(seconds)
        self._check_machine()

    def _check_machine(self) -> None:
        if self.shard.machine is not self.machine:
            raise KafkaError(Error.NOT_LEADER_OR_FOLLOWER)


class Outcome(NamedTuple):
    """Places whose markers have to be written again, and why."""

    left: list[Place]
    why: KafkaError | None


class Pauses:
    """Between attempts at one thing, each twice as long as the one before, unless there is news of who leads what."""

    __slots__ = ("_known", "_news", "_seconds")

    def __init__(self, news: Rising) -> None:
        self._news = news
        self._known = news.value
        self._seconds = AGAIN_S

    async def next(self) -> None:
        """News may also have come during the attempt."""
        try:
            await self._news.reaches(self._known + 1, self._seconds)
            self._known, self._seconds = self._news.value, AGAIN_S
        except TimeoutError:
            self._seconds = min(self._seconds * 2, AGAIN_MAX_S)


class Markers:
    def __init__(self, node: Node) -> None:
        self._node = node
        self._couriers: dict[int, Courier] = {}
        # Rises when partitions have other leaders.
        self._news = Rising(0)

    def follow(self, new: Image, delta: Delta) -> None:
        """The cluster changed. Nobody waits for the answer of a broker that is thought dead: others lead what it led."""
        for broker_id, courier in self._couriers.items():
            broker = new.broker(broker_id)
            if broker_id in delta.brokers and (broker is None or broker.fenced):
                courier.give_up()
        if delta.partitions:
            self._news.rise(self._news.value + 1)

    # --- for this node's own coordinators

    async def see_to(self, shard: Shard[Transactions], marking: Marking) -> None:
        """Write all markers of a transaction, however long it takes, then let it be complete. Ends with the shard."""
        marker = Marker(
            marking.producer_id, marking.epoch, shard.leader_epoch, marking.committed, marking.transaction_version
        )
        left, pauses = list(marking.partitions), Pauses(self._news)
        try:
            while left:
                left, why = await self._write(marker, left)
                if left:
                    log.warning("%s: markers for %s are tried again: %s", marking.transactional_id, left, why)
                    ending.still_unmarked(shard.state, marking, left)
                    await pauses.next()
        except Fenced:
            log.error("%s: its transaction is left to the coordinator that came after", marking.transactional_id)
            return
        await self._complete(shard, marking)

    async def _complete(self, shard: Shard[Transactions], marking: Marking) -> None:
        pauses = Pauses(self._news)
        while True:
            try:
                shard.carry_out(ending.marked(shard.state, marking, shard.moment()))
                return
            except KafkaError as error:
                log.warning("%s: cannot be completed yet: %s", marking.transactional_id, error)
            await pauses.next()

    async def _write(self, marker: Marker, places: list[Place]) -> Outcome:
        """All that can be staged or sent is, before anything is waited for."""
        staged: list[tuple[Place, Placed]] = []
        errors: dict[Place, KafkaError] = {}
        elsewhere: dict[int, list[Place]] = {}
        for place in places:
            try:
                leader = self._leader_of(*place)
                if leader == self._node.config.node_id:
                    staged.append((place, self.place(marker, *place)))
                else:
                    elsewhere.setdefault(leader, []).append(place)
            except KafkaError as error:
                if error.error is Error.TRANSACTION_COORDINATOR_FENCED:
                    raise Fenced from error
                errors[place] = error
        receipts = [
            (self._courier(leader).bring(marker, some), some)
            for leader, led in elsewhere.items()
            for some in portions(led)
        ]
        for place, placed in staged:
            try:
                await placed.is_safe()
            except KafkaError as error:
                errors[place] = error
        for receipt, led in receipts:
            errors |= _refused(await receipt, led)
        left = [place for place, error in errors.items() if not self._is_over(place, error)]
        return Outcome(left, errors[left[-1]] if left else None)

    def _leader_of(self, name: str, index: int) -> int:
        topic = self._node.quorum.image.topic(name)
        partition = None if topic is None else topic.partitions.get(index)
        if partition is None:
            raise KafkaError(GONE)
        if partition.leader < 0:
            raise KafkaError(Error.LEADER_NOT_AVAILABLE)
        return partition.leader

    def _courier(self, broker_id: int) -> Courier:
        if broker_id not in self._couriers:
            self._couriers[broker_id] = Courier(self._node, broker_id)
        return self._couriers[broker_id]

    def _is_over(self, place: Place, error: KafkaError) -> bool:
        """Whether a refusal means that nothing is left to do there: the producer is known with a later epoch already, or the
        topic is gone. That only our own picture can say: another broker says the same of any partition it does not have."""
        if error.error is Error.TRANSACTION_COORDINATOR_FENCED:
            raise Fenced
        topic = self._node.quorum.image.topic(place[0])
        is_gone = error.error is GONE and (topic is None or place[1] not in topic.partitions)
        return is_gone or error.error is Error.INVALID_PRODUCER_EPOCH

    # --- for them and others

    def place(self, marker: Marker, topic: str, index: int) -> Placed:
        """Stage one marker. It is written with the tick; `Placed.is_safe` tells when it counts."""
        partition = self._node.replicas.find(topic, index)
        if partition.is_short_of_replicas:
            raise KafkaError(Error.NOT_ENOUGH_REPLICAS)
        if topic == CONSUMER_OFFSETS:
            return self._place_in_groups(marker, index)
        placed = Placed(partition)
        placed.end = partition.append_marker(marker, self._node.world.now_ms(), placed).last_offset + 1
        return placed

    def _place_in_groups(self, marker: Marker, index: int) -> Placed:
        """Offsets were committed in the transaction: the machine of their groups hears of its end in the same moment."""
        shard = self._node.groups.shards.get(index)
        if shard is None:
            raise KafkaError(Error.NOT_LEADER_OR_FOLLOWER)
        try:
            return PlacedInGroups(shard, marker)
        except KafkaError as error:
            raise KafkaError(Error.NOT_LEADER_OR_FOLLOWER, error.message) if error.error in NOT_READY else error


def _refused(codes: Codes, asked: list[Place]) -> dict[Place, KafkaError]:
    """What another broker did not write; where it said nothing, nobody knows."""
    told = {place: error_of(codes[place]) if place in codes else Error.NETWORK_EXCEPTION for place in asked}
    return {place: KafkaError(error) for place, error in told.items() if error is not Error.NONE}
