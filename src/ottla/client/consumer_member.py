"""A member of a group under the consumer protocol (KIP-848): one request, the heartbeat, does everything.

The coordinator divides the partitions. Each heartbeat tells it what changed on our side, and its answer brings our epoch
and, when that changed, what we are to own. Getting there is our work, and done in `settle`: give up what is not ours any
more, take on what is new, and say so in a heartbeat sent at once. A partition is given out only after whoever had it has
said that it let go.
"""

from __future__ import annotations

import asyncio
import contextlib

from ottla.client.cluster import PAUSE_SECONDS, PAUSE_SECONDS_MAX, TopicPartition, may_pass
from ottla.client.commits import Committer
from ottla.client.coordinator import Coordinator
from ottla.client.membership import FORGOTTEN, Manners, Owner, Partitions
from ottla.wire.errors import KafkaError
from ottla.wire.ids import random_id, uuid_text
from ottla.wire.messages.groups import ConsumerGroupHeartbeatRequest, ConsumerGroupHeartbeatResponse

JOIN, LEAVE, LEAVE_FOR_A_WHILE = 0, -1, -2


class ConsumerMember:
    def __init__(self, coordinator: Coordinator, owner: Owner, manners: Manners) -> None:
        self.coordinator = coordinator
        self.cluster = coordinator.cluster
        self.owner = owner
        self.manners = manners
        self.member_id = uuid_text(random_id(self.cluster.rng))
        self.epoch = JOIN
        self.owned: Partitions = []
        self._target: Partitions | None = None
        self._topics: list[str] | None = None
        self._told: tuple[list[str] | None, Partitions | None] = (None, None)
        self._is_lost = False
        self._interval_s = manners.heartbeat_ms / 1000
        self._news = asyncio.Event()
        self._answered = asyncio.Event()
        self._beating: asyncio.Task[None] | None = None
        self._failure: Exception | None = None

    @property
    def committer(self) -> Committer:
        return Committer(self.member_id, self.epoch, self.manners.instance_id)

    def rejoin(self, why: str) -> None:
        """Subscribed topics are looked at anew; `why` goes nowhere in this protocol."""
        self._topics = None

    async def settle(self) -> None:
        if self._topics is None:
            self._topics = list(await self.owner.topics())
            self._news.set()
        if self._beating is None:
            self._answered.clear()
            self._beating = asyncio.get_running_loop().create_task(self._beat())
            await self._answered.wait()
        if self._failure is not None:
            raise self._failure
        if self._is_lost:
            await self._lose()
        if self._target is not None:
            await self._reconcile()

    async def leave(self) -> None:
        task, self._beating = self._beating, None
        if task is not None:
            task.cancel()
            await asyncio.wait([task])
        owned, self.owned = self.owned, []
        if owned:
            await self.owner.give_up(owned, lost=False)
        if task is not None and self.epoch > 0:
            with contextlib.suppress(KafkaError, OSError):
                static = self.manners.instance_id is not None
                await self._say(LEAVE_FOR_A_WHILE if static else LEAVE)
        self.epoch = JOIN

    async def topics_changed(self) -> bool:
        return list(await self.owner.topics()) != self._topics

    # What `settle` does.

    async def _lose(self) -> None:
        lost, self.owned = self.owned, []
        self._is_lost = False
        if lost:
            await self.owner.give_up(lost, lost=True)
        self._news.set()

    async def _reconcile(self) -> None:
        target, self._target = self._target or [], None
        wanted, had = set(target), set(self.owned)
        gone = [where for where in self.owned if where not in wanted]
        new = [where for where in target if where not in had]
        if gone:
            await self.owner.give_up(gone, lost=False)
        self.owned = target
        if gone or new:
            await self.owner.take_on(new)
        self._news.set()

    # The background.

    async def _beat(self) -> None:
        pause = PAUSE_SECONDS
        try:
            while True:
                self._news.clear()
                try:
                    await self._beat_once()
                    pause = PAUSE_SECONDS
                except (KafkaError, OSError) as error:
                    await self._survive(error, pause)
                    pause = min(2 * pause, PAUSE_SECONDS_MAX)
                    continue
                self._answered.set()
                with contextlib.suppress(TimeoutError):
                    async with asyncio.timeout(self._interval_s):
                        await self._news.wait()
        except Exception as error:
            self._failure = error
            self._answered.set()

    async def _survive(self, error: KafkaError | OSError, pause: float) -> None:
        """Whatever was said in a request that failed is said again."""
        self._told = (None, None)
        if isinstance(error, KafkaError) and error.error in FORGOTTEN:
            self.epoch, self._target, self._is_lost = JOIN, None, bool(self.owned)
            self._answered.set()
            while self._is_lost:  # we join as new when the owner has let go
                await self._news.wait()
                self._news.clear()
            return
        if not may_pass(error):
            raise error
        await self.cluster.pause(pause)

    async def _beat_once(self) -> None:
        answer = await self._say(self.epoch)
        self.epoch = answer.member_epoch
        self.member_id = answer.member_id or self.member_id
        self._interval_s = answer.heartbeat_interval_ms / 1000
        if answer.assignment is not None:
            self._target = await self._named(answer.assignment)

    async def _say(self, epoch: int) -> ConsumerGroupHeartbeatResponse:
        """All of it when joining and after an answer was lost, which may have been the only one with our assignment: the
        coordinator tells it again to whoever says everything. Otherwise what changed since the last time it was heard."""
        topics, owned = self._topics, list(self.owned)
        joins = epoch == JOIN or (epoch > JOIN and self._told == (None, None))
        request = ConsumerGroupHeartbeatRequest(
            group_id=self.coordinator.key,
            member_id=self.member_id,
            member_epoch=epoch,
            instance_id=self.manners.instance_id,
            rebalance_timeout_ms=self.manners.rebalance_timeout_ms if joins else -1,
            subscribed_topic_names=topics if joins or topics != self._told[0] else None,
            server_assignor=self.manners.server_assignor if joins else None,
            topic_partitions=self._by_id(owned) if joins or owned != self._told[1] else None,
        )
        answer: ConsumerGroupHeartbeatResponse = await self.coordinator.ask(request)
        self.coordinator.judge(answer.error_code, answer.error_message)
        self._told = (topics, owned)
        return answer

    def _by_id(self, owned: Partitions) -> list[ConsumerGroupHeartbeatRequest.TopicPartitions]:
        parts: dict[bytes, list[int]] = {}
        for where in owned:
            parts.setdefault(self.cluster.topic_id(where.topic), []).append(where.partition)
        part = ConsumerGroupHeartbeatRequest.TopicPartitions
        return [part(topic_id=topic_id, partitions=numbers) for topic_id, numbers in parts.items()]

    async def _named(self, assignment: ConsumerGroupHeartbeatResponse.Assignment) -> Partitions:
        """Partitions by topic name; an id whose name is not known yet is looked up among the subscribed topics."""
        if any(not self.cluster.topic_of(part.topic_id) for part in assignment.topic_partitions):
            await self.cluster.metadata(self._topics)
        return [
            TopicPartition(self.cluster.topic_of(part.topic_id), number)
            for part in assignment.topic_partitions
            for number in part.partitions
            if self.cluster.topic_of(part.topic_id)
        ]
