"""Drives the machines of `__consumer_offsets`: append, replay, timers, and replies that are owed.

Each partition of the topic that this broker leads has a *shard*: the machine of the groups that hash to it. When the
leadership begins, the shard reads its partition from the start and replays it; until then its groups get
COORDINATOR_LOAD_IN_PROGRESS.

A decision's records are appended as one batch and replayed at once, so that the next decision sees them. Its reply, and the
replies it owes to others, leave when everything written so far is committed: an answer may also speak of what somebody
else wrote a moment ago. If a write fails, nobody knows any more what the machine should remember: whoever waits is told to
look for the coordinator again, the machine is dropped, and the shard loads anew.

Sessions are judged by the loop's clock, and only after what had arrived by then was read: a node that was held up must not
accuse members whose heartbeats lie in its sockets.
"""

from __future__ import annotations

import asyncio
import logging
from collections import deque
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, TypeVar

from ottla.coordination.coordinator import Coordinator, Later
from ottla.coordination.groups import Groups
from ottla.coordination.machine import Caller, Decision, Moment, Waiter
from ottla.coordination.records import Record, pack
from ottla.log.producers import Origin
from ottla.metadata.image import Delta, Image
from ottla.metadata.topics import CONSUMER_OFFSETS
from ottla.server import loading
from ottla.wire import records as wire
from ottla.wire.codec import Malformed
from ottla.wire.errors import Error, KafkaError

if TYPE_CHECKING:
    from ottla.replication.partition import Partition
    from ottla.server.context import Context
    from ottla.server.node import Node

log = logging.getLogger("ottla.groups")

Reply = TypeVar("Reply")
Request = TypeVar("Request")
Decide = Callable[[Groups, Request, Caller, Moment], Decision[Reply]]

# Records are replayed in pieces of this size, and others get their turn between two of them.
LOADED_AT_ONCE_BYTES = 256 * 1024
# When to try again to load what could not be read.
LOAD_AGAIN_S = 10.0
COMMITTED_OFFSETS_CODEC = "offsets.topic.compression.codec"

# What a client is told when its records could not be written: words that make it look for the coordinator again.
TOLD = {
    Error.NOT_ENOUGH_REPLICAS: Error.COORDINATOR_NOT_AVAILABLE,
    Error.NOT_ENOUGH_REPLICAS_AFTER_APPEND: Error.COORDINATOR_NOT_AVAILABLE,
    Error.REQUEST_TIMED_OUT: Error.COORDINATOR_NOT_AVAILABLE,
    Error.UNKNOWN_TOPIC_OR_PARTITION: Error.COORDINATOR_NOT_AVAILABLE,
    Error.NOT_LEADER_OR_FOLLOWER: Error.NOT_COORDINATOR,
    Error.KAFKA_STORAGE_ERROR: Error.NOT_COORDINATOR,
    # Trying again would not help, and no client expects more.
    Error.MESSAGE_TOO_LARGE: Error.UNKNOWN_SERVER_ERROR,
    Error.RECORD_LIST_TOO_LARGE: Error.UNKNOWN_SERVER_ERROR,
}


def told(error: KafkaError) -> KafkaError:
    return KafkaError(TOLD[error.error], error.message) if error.error in TOLD else error


def partition_of(group_id: str, partitions: int) -> int:
    """Where a group lives: the absolute value of Java's hash of its name, as every broker and tool works it out."""
    number = 0
    units = group_id.encode("utf-16-be", "surrogatepass")
    for high, low in zip(units[::2], units[1::2], strict=True):
        number = number * 31 + (high << 8 | low) & 0xFFFFFFFF
    if number >> 31:  # below zero in Java, where the lowest number has no absolute value and counts as 0
        number = 0 if number == 1 << 31 else (1 << 32) - number
    return number % partitions


class Shard:
    """The groups of one partition, while this broker leads it."""

    def __init__(self, partition: Partition, node: Node, new_groups: Callable[[], Groups]) -> None:
        self.partition = partition
        self.leader_epoch = partition.leader_epoch
        self._node = node
        self._new_groups = new_groups
        self.coordinator: Coordinator | None = None
        self._mark = partition.high_watermark
        self._mark.watch(self._rose)
        self._written_end = 0
        self._owed: set[asyncio.Future[Any]] = set()
        self._leaving: deque[tuple[int, asyncio.Future[Any], object]] = deque()
        self._alarm: asyncio.TimerHandle | None = None
        self._is_over = False

    @property
    def groups(self) -> Groups:
        """What the machine knows, once it is loaded."""
        if self.coordinator is None:
            raise KafkaError(Error.NOT_COORDINATOR if self._is_over else Error.COORDINATOR_LOAD_IN_PROGRESS)
        return self.coordinator.groups

    # --- loading

    async def load(self) -> None:
        """Read the partition from its start and replay it."""
        coordinator, began = Coordinator(self._new_groups()), self._node.loop.time()
        try:
            records = await self._replay_log(coordinator)
        except (KafkaError, Malformed, OSError, ValueError) as error:  # names that are not UTF-8, say
            log.error("%s: its groups cannot be loaded, that is tried again: %s", self.partition.log.name, error)
            self._node.loop.call_later(LOAD_AGAIN_S, self._load_again)
            return
        if self._is_over:
            return
        if records:
            log.info(
                "%s: %d records of groups in %.2f s", self.partition.log.name, records, self._node.loop.time() - began
            )
        self.begin(coordinator)

    def _load_again(self) -> None:
        if not self._is_over:
            self._node.spawn(self.load())

    def begin(self, coordinator: Coordinator) -> None:
        """From here on requests are decided."""
        self._written_end = self.partition.log.end_offset
        self.coordinator = coordinator
        self.carry_out_all(coordinator.loaded(self._node.groups.moment()))

    async def _replay_log(self, coordinator: Coordinator) -> int:
        log, count = self.partition.log, 0
        offset = log.start_offset
        while offset < log.end_offset and not self._is_over:
            located = await log.read(offset, LOADED_AT_ONCE_BYTES, log.end_offset)
            data = located.read()
            if not data:
                break  # a hole up to the end
            replayed, offset = loading.replay(coordinator, data)
            count += replayed
            await asyncio.sleep(0)
        return count

    # --- deciding

    async def decide(self, decide: Decide[Request, Reply], request: Request, ctx: Context) -> Reply:
        """Decide now; return the reply when all that it speaks of is committed."""
        node, groups = self._node, self.groups
        waiter: asyncio.Future[Any] = node.loop.create_future()
        caller = Caller(ctx.client_id or "", f"/{ctx.connection.peer_host}", ctx.version, waiter)
        try:
            decision = self.carry_out(decide(groups, request, caller, node.groups.moment()))
        except KafkaError:
            await self.committed()
            raise
        if decision.reply is not None:
            await self.committed()
            return decision.reply
        if not waiter.done():
            self._owed.add(waiter)
            waiter.add_done_callback(self._owed.discard)
        reply: Reply = await waiter
        return reply

    def carry_out(self, decision: Decision[Reply]) -> Decision[Reply]:
        """Append and replay; see to the replies that are owed. Raises what the caller gets if that is not possible."""
        try:
            if decision.records:
                self._append(decision.records)
        except KafkaError as error:
            if decision.refused is None:
                raise told(error)
            return self.carry_out(decision.refused(told(error)))
        finally:
            self._set_alarm()
        for waiter, reply in decision.answers:
            self._leaving.append((self._written_end, _future(waiter), reply))
        self._rose()
        return decision

    def carry_out_all(self, decisions: list[Later]) -> None:
        """What nobody asked for. One that cannot be done does not keep the others from being done."""
        for decide in decisions:
            if self.coordinator is None:
                return  # a write failed: all of this is forgotten
            try:
                self.carry_out(decide())
            except KafkaError as error:
                log.warning("%s: %s", self.partition.log.name, error)
            except Exception:
                log.exception("%s: an alarm could not be answered", self.partition.log.name)
        self._set_alarm()

    def _append(self, records: list[Record]) -> None:
        partition, coordinator, now_ms = self.partition, self.coordinator, self._node.world.now_ms()
        assert coordinator is not None
        if partition.is_short_of_replicas:
            raise KafkaError(Error.NOT_ENOUGH_REPLICAS)
        packed = [pack(record) for record in records]
        codec = self._node.config[COMMITTED_OFFSETS_CODEC]
        batch = wire.build([wire.Record(-1, now_ms, key, value) for key, value in packed], codec=codec)
        if len(batch) > partition.log.settings.max_message_bytes:
            raise KafkaError(Error.MESSAGE_TOO_LARGE, f"{len(batch)} bytes of group records in one batch")
        appended = partition.append(batch, now_ms, Origin.COORDINATOR, self)
        self._written_end = appended.last_offset + 1
        for offset, (record, bytes_of) in enumerate(zip(records, packed, strict=True), appended.first_offset):
            coordinator.replay(record, offset, packed=bytes_of)

    async def committed(self) -> None:
        """Return when everything that was written so far is committed."""
        if self._mark.value >= self._written_end:
            return
        seconds = self._node.config["offsets.commit.timeout.ms"] / 1000
        try:
            await self.partition.acknowledged(self._written_end, seconds)
        except KafkaError as error:
            raise told(error)
        except TimeoutError:
            raise told(KafkaError(Error.REQUEST_TIMED_OUT))

    def _rose(self) -> None:
        """The watermark rose, or the leadership ended."""
        if self._mark.closed:
            self.end(Error.NOT_COORDINATOR)
            return
        leaving, mark = self._leaving, self._mark.value
        while leaving and leaving[0][0] <= mark:
            _, waiter, reply = leaving.popleft()
            if not waiter.done():
                waiter.set_result(reply)

    # --- time

    def _set_alarm(self) -> None:
        if self.coordinator is None or (next_ms := self.coordinator.groups.timers.next_ms) is None:
            return
        if self._alarm is not None:
            if self._alarm.when() <= next_ms / 1000:
                return
            self._alarm.cancel()
        self._alarm = self._node.loop.call_at(next_ms / 1000, self._ring)

    def _ring(self) -> None:
        """One more turn of the loop: heartbeats that have arrived count."""
        self._node.loop.call_soon(self._judge)

    def _judge(self) -> None:
        self._alarm = None
        if self.coordinator is not None:
            self.carry_out_all(self.coordinator.ring(self._node.groups.moment()))

    # --- ending

    def fail(self, error: KafkaError) -> None:
        """The log lost what was appended: forget the machine, and load it again."""
        if self.coordinator is None:
            return
        log.error("%s: groups are loaded again, because a write failed: %s", self.partition.log.name, error)
        self._forget(told(error))
        self._node.spawn(self.load())

    def end(self, error: Error) -> None:
        """The leadership is over, or the node stops."""
        if not self._is_over:
            self._is_over = True
            self._mark.unwatch(self._rose)
            self._forget(KafkaError(error))

    def _forget(self, error: KafkaError) -> None:
        self.coordinator = None
        if self._alarm is not None:
            self._alarm.cancel()
            self._alarm = None
        owed = [*(waiter for _, waiter, _ in self._leaving), *self._owed]
        self._leaving.clear()
        for waiter in owed:
            if not waiter.done():
                waiter.set_exception(error)
                waiter.exception()  # whoever asked may be gone: then nobody looks at it, and asyncio need not complain


def _future(waiter: Waiter) -> asyncio.Future[Any]:
    assert isinstance(waiter, asyncio.Future)
    return waiter


class GroupCoordinators:
    """All shards of this broker."""

    def __init__(self, node: Node) -> None:
        self._node = node
        self.shards: dict[int, Shard] = {}
        self._partitions = 0

    def moment(self) -> Moment:
        """Rounded, because an alarm rings at `ms / 1000` of the loop's clock: cut off, that may be the millisecond before."""
        return Moment(self._node.world.now_ms(), round(self._node.loop.time() * 1000))

    # --- asking

    async def decide(self, group_id: str, decide: Decide[Request, Reply], request: Request, ctx: Context) -> Reply:
        """Let the machine of this group decide. Raises what the client is to be told."""
        return await self.shard_of(group_id).decide(decide, request, ctx)

    def shard_of(self, group_id: str) -> Shard:
        shard = self.shards.get(partition_of(group_id, self._partitions)) if self._partitions else None
        if shard is None:
            raise KafkaError(Error.NOT_COORDINATOR)
        return shard

    def all(self) -> list[Shard]:
        """Every shard of this broker, also those that are loading."""
        return [self.shards[index] for index in sorted(self.shards)]

    # --- following the picture

    def follow(self, old: Image, new: Image, delta: Delta) -> None:
        """Begin and end leaderships, and tell the machines what happened to topics."""
        topic = new.topic(CONSUMER_OFFSETS)
        self._partitions = 0 if topic is None else len(topic.partitions)
        for index in [index for index, shard in self.shards.items() if not self._still_leads(shard)]:
            self.shards.pop(index).end(Error.NOT_COORDINATOR)
        for shard in self.shards.values():
            if shard.coordinator is not None:
                shard.carry_out_all(shard.coordinator.follow(old, new, delta, self.moment()))
        hosted = self._node.replicas.by_name.get(CONSUMER_OFFSETS)
        fresh = [p for p in hosted.partitions.values() if self._is_new(p)] if hosted else []
        self._begin(fresh)

    def _is_new(self, partition: Partition) -> bool:
        return partition.leader == self._node.config.node_id and partition.index not in self.shards

    def _still_leads(self, shard: Shard) -> bool:
        partition = shard.partition
        hosted = self._node.replicas.by_id.get(partition.topic_id)
        same = hosted is not None and hosted.partitions.get(partition.index) is partition
        is_leader = partition.leader == self._node.config.node_id
        return same and is_leader and partition.leader_epoch == shard.leader_epoch

    def _begin(self, partitions: list[Partition]) -> None:
        """A partition without records needs no loading; the others are loaded one after another, the shortest first."""
        waiting = []
        for partition in sorted(partitions, key=lambda p: (p.log.size, p.index)):
            shard = self.shards[partition.index] = Shard(partition, self._node, self._new_groups)
            if partition.log.end_offset == partition.log.start_offset:
                shard.begin(Coordinator(self._new_groups()))
            else:
                waiting.append(shard)
        if waiting:
            self._node.spawn(self._load(waiting))

    async def _load(self, shards: list[Shard]) -> None:
        for shard in shards:
            await shard.load()

    def _new_groups(self) -> Groups:
        node = self._node
        return Groups(node.config, lambda: node.quorum.image, node.world.random)

    def stop(self) -> None:
        """The node stops: whoever waits for others looks for the next coordinator."""
        for shard in self.shards.values():
            shard.end(Error.NOT_COORDINATOR)
        self.shards.clear()
