"""Who coordinates what: ids hash to partitions of an internal topic, and each partition that this broker leads has a shard
(`shard.py`) with the machine of the ids that belong to it. Groups live in `__consumer_offsets`, transactional ids in
`__transaction_state`."""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine
from functools import lru_cache
from struct import unpack
from typing import TYPE_CHECKING, Any, Generic, TypeVar

from ottla.coordination import consumer
from ottla.coordination.group_coordinator import GroupCoordinator
from ottla.coordination.groups import Groups
from ottla.coordination.transaction_coordinator import TransactionCoordinator
from ottla.coordination.transactions.states import Transactions
from ottla.metadata.image import Delta, Image
from ottla.metadata.topics import CONSUMER_OFFSETS, TRANSACTION_STATE
from ottla.raft.quorum import NOBODY
from ottla.server.shard import THIS_NODE, Decide, Kind, ProducerKey, Shard
from ottla.wire.errors import Error, KafkaError

if TYPE_CHECKING:
    from ottla.log.log import Log
    from ottla.replication.partition import Partition
    from ottla.server.context import Context
    from ottla.server.node import Node

# Names whose place is not worked out again for every commit and heartbeat.
REMEMBERED = 8192

State = TypeVar("State")
Reply = TypeVar("Reply")
Request = TypeVar("Request")


@lru_cache(REMEMBERED)
def partition_of(name: str, partitions: int) -> int:
    """Where an id lives: the absolute value of Java's hash of its name, as every broker and tool works it out."""
    number = 0
    for unit in name.encode() if name.isascii() else _utf16(name):
        number = number * 31 + unit & 0xFFFFFFFF
    if number >> 31:  # below zero in Java, where the lowest number has no absolute value and counts as 0
        number = 0 if number == 1 << 31 else (1 << 32) - number
    return number % partitions


def _utf16(name: str) -> tuple[int, ...]:
    units = name.encode("utf-16-be", "surrogatepass")
    return unpack(f">{len(units) // 2}H", units)


class Coordinators(Generic[State]):
    """All shards of one kind on this broker."""

    def __init__(self, node: Node, kind: Kind[State]) -> None:
        self._node = node
        self._kind = kind
        self.shards: dict[int, Shard[State]] = {}
        self._partitions = 0

    # --- asking

    def decide(
        self,
        name: str,
        decide: Decide[State, Request, Reply],
        request: Request,
        ctx: Context,
        producer: ProducerKey | None = None,
    ) -> Coroutine[Any, Any, Reply]:
        """Let the machine decide that this group, or transactional id, belongs to. Raises what the client is to be told."""
        who = (ctx.client_id or "", f"/{ctx.client_host}", ctx.version)
        return self.shard_of(name).decide(decide, request, who, producer)

    def ask(self, name: str, decide: Decide[State, Request, Reply], request: Request) -> Coroutine[Any, Any, Reply]:
        """The same where not a client asks, but this node."""
        return self.shard_of(name).decide(decide, request, THIS_NODE)

    def shard_here(self, name: str) -> Shard[State] | None:
        """The shard that this group, or transactional id, belongs to, if this broker leads it."""
        return self.shards.get(partition_of(name, self._partitions)) if self._partitions else None

    def leader_of(self, name: str) -> int:
        """The broker that coordinates this group, or transactional id."""
        topic = self._node.quorum.image.topic(self._kind.topic)
        leader = NOBODY if topic is None else topic.partitions[partition_of(name, len(topic.partitions))].leader
        if leader == NOBODY:
            raise KafkaError(Error.COORDINATOR_NOT_AVAILABLE)
        return leader

    def shard_of(self, name: str) -> Shard[State]:
        shard = self.shard_here(name)
        if shard is None:
            raise KafkaError(Error.NOT_COORDINATOR)
        return shard

    def all(self) -> list[Shard[State]]:
        """Every shard of this broker, also those that are loading."""
        return [self.shards[index] for index in sorted(self.shards)]

    def is_loading(self, log: Log) -> bool:
        """Whether a shard is being read back from this log."""
        shard = self.shards.get(log.partition)
        return shard is not None and shard.is_loading and shard.partition.log is log

    # --- following the picture

    def follow(self, image: Image, delta: Delta) -> None:
        """Begin and end leaderships, and tell the machines what happened to the cluster."""
        topic = image.topic(self._kind.topic)
        self._partitions = 0 if topic is None else len(topic.partitions)
        for index in [index for index, shard in self.shards.items() if not self._still_leads(shard)]:
            self.shards.pop(index).end(Error.NOT_COORDINATOR)
        for shard in self.shards.values():
            if shard.machine is not None:
                shard.carry_out_all(shard.machine.follow(image, delta, shard.moment()))
        self.take_up()

    def take_up(self) -> None:
        """Begin leaderships of partitions that are here by now: some logs are opened late."""
        hosted = self._node.replicas.by_name.get(self._kind.topic)
        fresh = [p for p in hosted.partitions.values() if self._is_new(p)] if hosted else []
        self._begin(fresh)

    def _is_new(self, partition: Partition) -> bool:
        return partition.leader == self._node.config.node_id and partition.index not in self.shards

    def _still_leads(self, shard: Shard[State]) -> bool:
        partition = shard.partition
        hosted = self._node.replicas.by_id.get(partition.topic_id)
        same = hosted is not None and hosted.partitions.get(partition.index) is partition
        is_leader = partition.leader == self._node.config.node_id
        return same and is_leader and partition.leader_epoch == shard.leader_epoch

    def _begin(self, partitions: list[Partition]) -> None:
        """A partition without records needs no loading; the others are loaded one after another, the shortest first."""
        waiting = []
        for partition in sorted(partitions, key=lambda p: (p.log.size, p.index)):
            shard = self.shards[partition.index] = Shard(partition, self._node, self._kind)
            if partition.log.end_offset == partition.log.start_offset:
                shard.begin(self._kind.new_machine())
            else:
                waiting.append(shard)
        if waiting:
            self._node.spawn(self._load(waiting))

    async def _load(self, shards: list[Shard[State]]) -> None:
        for shard in shards:
            await shard.load()

    def stop(self) -> None:
        """The node stops: whoever waits for others looks for the next coordinator."""
        for shard in self.shards.values():
            shard.end(Error.NOT_COORDINATOR)
        self.shards.clear()


def group_coordinators(node: Node) -> Coordinators[Groups]:
    config = node.config

    def new_machine() -> GroupCoordinator:
        return GroupCoordinator(Groups(config, lambda: node.quorum.image, node.world.random))

    evaluates = asyncio.Lock()  # however many groups have expressions: one slice in a turn of the loop

    async def evaluate(shard: Shard[Groups], order: consumer.Evaluating) -> None:
        is_over = False
        while not is_over:
            async with evaluates:
                is_over = order.evaluation.go_on()
                await asyncio.sleep(0)
        shard.carry_out_all([lambda: consumer.resolve(shard.state, order, shard.moment())])

    kind = Kind(
        topic=CONSUMER_OFFSETS,
        what="groups",
        new_machine=new_machine,
        codec=lambda: int(config["offsets.topic.compression.codec"]),
        commit_timeout_s=lambda: config["offsets.commit.timeout.ms"] / 1000,
        see_to=evaluate,
    )
    return Coordinators(node, kind)


def transaction_coordinators(node: Node) -> Coordinators[Transactions]:
    config = node.config

    def new_machine() -> TransactionCoordinator:
        return TransactionCoordinator(Transactions(config, lambda: node.quorum.image, node.world.random))

    kind = Kind(
        topic=TRANSACTION_STATE,
        what="transactions",
        new_machine=new_machine,
        codec=lambda: 0,
        commit_timeout_s=lambda: config["request.timeout.ms"] / 1000,
        see_to=node.markers.see_to,
    )
    return Coordinators(node, kind)
