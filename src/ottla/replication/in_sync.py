"""Asks the controller to change in-sync sets: one request at a time for all partitions that want a change (AlterPartition).

What is wanted while a request is under way goes with the next one. So do most of thousands that want a change when a broker
is back: whoever decides about all of them in one go does nothing else meanwhile.

A request that is lost is sent again: the controller takes a proposal only for the version of the partition that it was made
for, so that the second one does nothing.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable
from itertools import islice
from typing import TYPE_CHECKING, Any

from ottla.metadata.image import Image
from ottla.replication.leadership import Leadership
from ottla.replication.neighbours import ANY_LIFE, Neighbours
from ottla.wire.errors import Error, KafkaError, error_of
from ottla.wire.messages.brokers import AlterPartitionRequest, AlterPartitionResponse

if TYPE_CHECKING:
    from ottla.replication.partition import Partition

log_ = logging.getLogger("ottla.replication")

AGAIN_S = 0.05
AGAIN_MAX_S = 1.0
ASKED_AT_ONCE = 500

Topic = AlterPartitionRequest.Topic
Asked = Topic.Partition
BrokerState = Asked.BrokerState
Key = tuple[bytes, int]
# Leaderships with what each of them proposes.
Proposals = dict[Key, tuple[Leadership, tuple[int, ...]]]


class InSync:
    """The in-sync sets of the partitions that this broker leads."""

    def __init__(
        self,
        node_id: int,
        neighbours: Neighbours,
        image: Callable[[], Image],
        spawn: Callable[[Any], Any],
    ) -> None:
        self._node_id = node_id
        self._neighbours = neighbours
        self._image = image
        self._spawn = spawn
        self._waiting: dict[Key, Leadership] = {}
        self._is_asking = False
        self.expanded = self.shrunk = self.failed = 0

    # --- who counts

    def may_join(self, broker_id: int, life: int | None) -> bool:
        """Not fenced, not about to stop, and in the life in which it fetched (KIP-903)."""
        broker = self._image().brokers.get(broker_id)
        return broker is not None and broker.active and life is not None and life in (ANY_LIFE, broker.epoch)

    def has_room(self, broker_id: int, partition: Partition) -> bool:
        """Whether the follower's directory has not failed, and is not so full that it stepped back (`server/disks.py`)."""
        image = self._image()
        broker, topic = image.brokers.get(broker_id), image.topic_by_id(partition.topic_id)
        known = None if topic is None else topic.partitions.get(partition.index)
        return broker is None or known is None or broker.has_online(known.directory_of(broker_id))

    def is_over(self, broker_id: int, life: int) -> bool:
        """Whether the broker has begun another life since: what it said in this one counts no more."""
        broker = self._image().brokers.get(broker_id)
        return broker is not None and ANY_LIFE != life < broker.epoch

    def is_alive(self, broker_id: int) -> bool:
        broker = self._image().brokers.get(broker_id)
        return broker is not None and not broker.fenced

    def lag_max_s(self) -> float:
        return self._neighbours.seconds("replica.lag.time.max.ms")

    # --- asking

    def submit(self, leadership: Leadership) -> None:
        partition = leadership.partition
        self._waiting[partition.topic_id, partition.index] = leadership
        if not self._is_asking:
            self._is_asking = True
            self._spawn(self._ask_for_all())

    async def _ask_for_all(self) -> None:
        wait_s = AGAIN_S
        try:
            while self._waiting:
                await asyncio.sleep(0)  # all that one turn of the loop brings goes together
                answered = await self._ask(self._take())
                if self._waiting:
                    wait_s = AGAIN_S if answered else min(2 * wait_s, AGAIN_MAX_S)
                    await asyncio.sleep(wait_s if not answered else 0)
        finally:
            self._is_asking = False

    def _take(self) -> Proposals:
        taken = dict(islice(self._waiting.items(), ASKED_AT_ONCE))
        for key in taken:
            del self._waiting[key]
        return {key: (each, each.proposed) for key, each in taken.items() if each.proposed is not None}

    async def _ask(self, proposals: Proposals) -> bool:
        """Whether all were answered; those that were not wait again."""
        if not proposals:
            return True
        sizes = {key: len(leadership.partition.isr) for key, (leadership, _) in proposals.items()}
        try:
            response = await self._neighbours.ask_controller(self._request(proposals))
            error = error_of(response.error_code)
        except (OSError, KafkaError) as problem:
            log_.warning("the controller was not reached about %d in-sync sets: %s", len(proposals), problem)
            error = Error.NETWORK_EXCEPTION
        if error is not Error.NONE:
            self.failed += len(proposals)
            self._put_back(proposals)
            return False
        return self._hear(proposals, response, sizes)

    def _put_back(self, proposals: Proposals) -> None:
        for key, (leadership, proposed) in proposals.items():
            if leadership.proposed is proposed:
                self._waiting.setdefault(key, leadership)

    def _request(self, proposals: Proposals) -> AlterPartitionRequest:
        topics: dict[bytes, Topic] = {}
        for (topic_id, index), (leadership, proposed) in proposals.items():
            topic = topics.setdefault(topic_id, Topic(topic_id=topic_id, partitions=[]))
            partition = leadership.partition
            asked = Asked(
                partition_index=index,
                leader_epoch=leadership.leader_epoch,
                new_isr=list(proposed),
                new_isr_with_epochs=[self._member(leadership, broker_id) for broker_id in proposed],
                partition_epoch=partition.partition_epoch,
            )
            topic.partitions.append(asked)
            log_.info("%s: in sync should be %s instead of %s", partition.log.name, proposed, partition.isr)
        epoch = self._neighbours.broker_epoch()
        return AlterPartitionRequest(broker_id=self._node_id, broker_epoch=epoch, topics=list(topics.values()))

    def _member(self, leadership: Leadership, broker_id: int) -> BrokerState:
        if broker_id == self._node_id:
            return BrokerState(broker_id=broker_id, broker_epoch=self._neighbours.broker_epoch())
        life = leadership.life_of(broker_id)
        return BrokerState(broker_id=broker_id, broker_epoch=ANY_LIFE if life is None else life)

    def _hear(self, proposals: Proposals, response: AlterPartitionResponse, sizes: dict[Key, int]) -> bool:
        told = {(topic.topic_id, each.partition_index): each for topic in response.topics for each in topic.partitions}
        again: Proposals = {}
        for key, (leadership, proposed) in proposals.items():
            answer = told.get(key)
            if answer is None:
                again[key] = leadership, proposed
                continue
            error = error_of(answer.error_code)
            if leadership.answered(proposed, error, answer.leader_epoch, answer.partition_epoch, answer.isr):
                again[key] = leadership, proposed
            self._count(leadership.partition, answer.isr, sizes[key], error)
        self._put_back(again)
        return not again

    def _count(self, partition: Partition, isr: list[int], size_before: int, error: Error) -> None:
        name = partition.log.name
        if error is Error.NONE:
            self.expanded += len(isr) > size_before
            self.shrunk += len(isr) < size_before
            log_.info("%s: %s are in sync", name, tuple(isr))
            return
        self.failed += 1
        if error is Error.NEW_LEADER_ELECTED:
            log_.info("%s: the controller agrees, and lets another broker lead now", name)
        else:
            log_.warning("%s: the controller refuses to change who is in sync: %s", name, error.name)
