"""Members of groups that write down what they do and are told: our own client, watched from inside.

A `Seat` is a machine on which one member after the other of the same group runs: it joins, reads, commits (by hand, or by
itself after a while), and goes again, politely or not. `Auditor` asks for committed offsets all the time.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from ottla.client import commits
from ottla.client.assignors import COOPERATIVE_STICKY, RANGE, Assignor
from ottla.client.classic_member import ClassicMember
from ottla.client.cluster import EARLIEST, Cluster, TopicPartition, may_pass
from ottla.client.commits import Committed
from ottla.client.consumer_member import JOIN, ConsumerMember
from ottla.client.coordinator import Coordinator
from ottla.client.group import GroupConsumer
from ottla.client.membership import Manners, Partitions
from ottla.sim.group_checks import Ledger
from ottla.wire.errors import Error, KafkaError
from ottla.wire.messages.groups import ConsumerGroupHeartbeatResponse, JoinGroupResponse

if TYPE_CHECKING:
    from sim.group_play import GroupPlay

SESSION_S = 3.0
REBALANCE_S = 20.0
TOPIC, PARTITIONS = "shared", 4
WHERES = [TopicPartition(TOPIC, index) for index in range(PARTITIONS)]


class WatchedClassic(ClassicMember):
    """Tells when it was heard, and the generations in which it got a part."""

    owner: Watched

    async def _sync(self, joined: JoinGroupResponse) -> None:
        question = self.owner.ledger.joining(self.coordinator.key)
        self.owner.question = question, self.owner.ledger.sending(asyncio.get_running_loop().time())
        await super()._sync(joined)

    async def _take(self, assigned: Partitions) -> None:
        question, sent_at = self.owner.question
        if not self.owner.is_mixed:
            self.owner.ledger.joined(self.coordinator.key, self.generation, question)
        self.owner.ledger.heard(self.owner.name, sent_at)
        await super()._take(assigned)

    async def _beat_once(self) -> None:
        sent_at = self.owner.ledger.sending(asyncio.get_running_loop().time())
        await super()._beat_once()
        if not self._is_lost:
            self.owner.ledger.heard(self.owner.name, sent_at)


class WatchedConsumer(ConsumerMember):
    owner: Watched

    async def _say(self, epoch: int) -> ConsumerGroupHeartbeatResponse:
        ledger, group = self.owner.ledger, self.coordinator.key
        sent_at, question = ledger.sending(asyncio.get_running_loop().time()), ledger.joining(group)
        answer = await super()._say(epoch)
        if epoch >= JOIN:
            ledger.heard(self.owner.name, sent_at)
        if epoch == JOIN and not self.owner.is_mixed:
            ledger.joined(group, answer.member_epoch, question)
        return answer


WATCHED = {"classic": WatchedClassic, "consumer": WatchedConsumer}


class Watched(GroupConsumer):
    """A member whose every step stands in the ledger."""

    def __init__(self, name: str, ledger: Ledger, cluster: Cluster, group: str, seat: Seat, **options: Any) -> None:
        super().__init__(cluster, group, [TOPIC], reset=EARLIEST, wait_ms=200, **options)
        self.name, self.ledger, self.group = name, ledger, group
        self.is_mixed, self.is_complete = seat.is_mixed, seat.play.is_complete
        self.question = ledger.joining(group), 0.0
        self.member = WATCHED[options["protocol"]](self.coordinator, self, options["manners"])
        self.on_assigned, self.on_revoked = self._assigned, self._revoked

    async def _assigned(self, partitions: Partitions) -> None:
        now = asyncio.get_running_loop().time()
        self.ledger.took(self.group, self.name, self.member.committer.generation, partitions, now)

    async def _revoked(self, partitions: Partitions) -> None:
        self.ledger.gave_up(self.group, self.name, partitions)

    async def fetch(self) -> list[Any]:
        records = await super().fetch()
        for record in records:
            self.ledger.handed(self.group, TopicPartition(record.topic, record.partition), record.offset)
        return records

    async def _commit(self, offsets: Mapping[TopicPartition, Committed]) -> None:
        plain = {where: what.offset for where, what in offsets.items()}
        question = self.ledger.committing(self.group, plain, complete=self.is_complete())
        await super()._commit(offsets)
        self.ledger.committed(self.group, plain, question)

    async def _start_offsets(self, partitions: Partitions) -> dict[TopicPartition, Committed]:
        question = self.ledger.asking(self.group, partitions)
        found = await super()._start_offsets(partitions)
        self.ledger.told(self.group, {where: what.offset for where, what in found.items()}, question)
        return found


class Seat:
    """A machine for members of one group."""

    def __init__(self, play: GroupPlay, name: str, group: str, protocol: str, is_mixed: bool) -> None:
        self.play, self.name, self.group, self.protocol, self.is_mixed = play, name, group, protocol, is_mixed
        self.rng = play.loop.chance("seat", name)
        self.is_up = self.is_leaving = False
        self.lives = 0

    def sit_down(self) -> None:
        self.lives += 1
        self.is_up, self.is_leaving = True, False
        self.play.cluster.client(self.name, self._live())

    def leave(self) -> None:
        self.is_leaving = True

    def fall(self) -> None:
        """No word to anybody."""
        self.play.loop.kill(self.name)
        self.is_up = False
        self.play.ledger.died(self.member_name)

    @property
    def member_name(self) -> str:
        return f"{self.name}/{self.lives}"

    def _assignors(self) -> tuple[Assignor, ...]:
        chance = self.play.loop.chance("assignors", self.group)
        return chance.choice(((RANGE,), (COOPERATIVE_STICKY,), (RANGE, COOPERATIVE_STICKY)))

    async def _live(self) -> None:
        rng = self.rng
        manners = Manners(
            int(SESSION_S * 1000), int(REBALANCE_S * 1000), rng.choice((200, 400)), assignors=self._assignors()
        )
        commits_by_itself = rng.random() < 0.6
        options = {"protocol": self.protocol, "manners": manners, "auto_commit_ms": 300 if commits_by_itself else None}
        while not self.is_leaving:
            try:
                await self._be_member(commits_by_itself, options)
            except (KafkaError, OSError) as error:
                self.play.ledger.died(self.member_name)
                self._judge(error)
                await asyncio.sleep(0.2)
                self.lives += 1
        self.play.ledger.died(self.member_name)
        self.is_up = False

    def _judge(self, error: KafkaError | OSError) -> None:
        """An application would begin anew. What it must not see are errors that no fault can explain. A member that was out of
        touch may find that its group was empty meanwhile and is gone, or went on as a classic one."""
        if not may_pass(error) and getattr(error, "error", None) is not Error.GROUP_ID_NOT_FOUND:
            self.play.ledger.report("member-failed", self.member_name, repr(error))

    async def _be_member(self, commits_by_itself: bool, options: Any) -> None:
        play = self.play
        with play.client(self.name) as cluster:
            consumer = Watched(self.member_name, play.ledger, cluster, self.group, self, **options)
            try:
                while not self.is_leaving:
                    records = await consumer.fetch()
                    if records and not commits_by_itself:
                        await self._commit(consumer)
                    await asyncio.sleep(self.rng.expovariate(1 / 0.05))
                await consumer.close()
            finally:
                consumer.reader.close()
                consumer.coordinator.close()
                await quietly(consumer.member._beating)  # type: ignore[attr-defined]

    async def _commit(self, consumer: Watched) -> None:
        try:
            await consumer.commit()
        except KafkaError as error:
            if error.error not in FENCED and not may_pass(error):
                raise
        except OSError:
            pass


# A member that was out of touch is told so, and joins anew.
FENCED = {
    Error.ILLEGAL_GENERATION,
    Error.UNKNOWN_MEMBER_ID,
    Error.REBALANCE_IN_PROGRESS,
    Error.STALE_MEMBER_EPOCH,
    Error.GROUP_ID_NOT_FOUND,
}


async def quietly(task: asyncio.Task[None] | None) -> None:
    if task is not None:
        task.cancel()
        await asyncio.wait([task])


class Auditor:
    """Asks for the offsets of all groups, again and again: what it was shown must stay."""

    def __init__(self, play: GroupPlay, groups: Sequence[str]) -> None:
        self.play, self.groups = play, groups
        self.rng = play.loop.chance("auditor")

    async def run(self) -> None:
        with self.play.client("auditor") as cluster:
            coordinators = [Coordinator(cluster, group) for group in self.groups]
            while not self.play.finished:
                await self.surviving(self.look(self.rng.choice(coordinators)))
                await asyncio.sleep(self.rng.expovariate(1 / 0.05))
            for coordinator in coordinators:
                await cluster.retrying(lambda c=coordinator: self.look(c))  # type: ignore[misc]
                coordinator.close()

    async def look(self, coordinator: Coordinator) -> None:
        ledger, group = self.play.ledger, coordinator.key
        question = ledger.asking(group, WHERES)
        found = await commits.fetch(coordinator, WHERES, require_stable=self.rng.random() < 0.5)
        ledger.told(group, {where: what.offset for where, what in found.items()}, question)

    async def surviving(self, step: Awaitable[None]) -> None:
        try:
            await step
        except (KafkaError, OSError) as error:
            if not may_pass(error):
                raise
            await asyncio.sleep(0.1)
