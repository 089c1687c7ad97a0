"""A consumer that is a member of a group: partitions come and go, positions are committed.

`fetch` does everything that has to be done in order: joins, gives up and takes on partitions, commits what earlier calls
returned (with `auto_commit_ms`), and then reads. What a call returned counts as processed when the next one begins; so a
crash in between makes the group read some records again, and none are skipped.
"""

from __future__ import annotations

import asyncio
import re
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from typing import Any

from ottla.client import commits
from ottla.client.classic_member import ClassicMember
from ottla.client.cluster import LATEST, Cluster, NoTopic, TopicPartition
from ottla.client.commits import Committed, Committer, GroupMetadata
from ottla.client.connection import failure
from ottla.client.consumer import Consumed, Consumer
from ottla.client.consumer_member import ConsumerMember
from ottla.client.coordinator import Coordinator
from ottla.client.membership import FORGOTTEN, Listener, Manners, Member, Owner, Partitions
from ottla.wire.errors import Error, KafkaError
from ottla.wire.messages.metadata import MetadataResponse

MEMBERS: dict[str, Callable[[Coordinator, Owner, Manners], Member]] = {
    "classic": ClassicMember,
    "consumer": ConsumerMember,
}
# How long to wait for news while there is nothing to read; how often to look for topics that do not exist yet.
IDLE_SECONDS = 0.1
MISSING_TOPIC_SECONDS = 1.0
REFRESH_SECONDS = 300.0
# A new epoch may arrive while a commit is under way: so often the commit is said again with it.
STALE_EPOCH_RETRIES = 5
NOT_YET = {Error.UNKNOWN_TOPIC_OR_PARTITION.code, Error.LEADER_NOT_AVAILABLE.code}


class NoOffset(KafkaError):
    """The group has no committed offset for a partition, and was not told where to start without one."""

    def __init__(self, where: TopicPartition) -> None:
        text = f"no committed offset for {where.topic}-{where.partition}, and no rule where to start"
        super().__init__(Error.OFFSET_OUT_OF_RANGE, text)


class GroupConsumer:
    """`topics` are names, or a pattern that names must match as a whole."""

    def __init__(
        self,
        cluster: Cluster,
        group: str,
        topics: Sequence[str] | re.Pattern[str],
        *,
        protocol: str = "classic",
        manners: Manners | None = None,
        auto_commit_ms: int | None = 5000,
        reset: int | None = LATEST,
        on_assigned: Listener | None = None,
        on_revoked: Listener | None = None,
        on_lost: Listener | None = None,
        refresh_s: float = REFRESH_SECONDS,
        **reading: Any,
    ) -> None:
        self.cluster = cluster
        self.subscribed = topics
        self.auto_commit_ms = auto_commit_ms
        self.reset = reset
        self.on_assigned, self.on_revoked, self.on_lost = on_assigned, on_revoked, on_lost
        self.refresh_s = refresh_s
        self.coordinator = Coordinator(cluster, group)
        self.reader = Consumer(cluster, {}, reset=reset, **reading)
        self.member = MEMBERS[protocol](self.coordinator, self, manners or Manners())
        self._commit_at: float | None = None
        self._refresh_at: float | None = None

    async def __aenter__(self) -> GroupConsumer:
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.close()

    async def __aiter__(self) -> AsyncIterator[Consumed]:
        while True:
            for record in await self.fetch():
                yield record

    @property
    def assignment(self) -> Partitions:
        return sorted(self.reader.positions)

    @property
    def metadata(self) -> GroupMetadata:
        """Who this member is, for a transaction that commits offsets of the group."""
        return GroupMetadata(self.coordinator.key, self.member.committer)

    async def fetch(self) -> list[Consumed]:
        """The next records; none when there are none for a while."""
        await self._look_for_topics()
        await self.member.settle()
        await self._commit_if_due()
        if not self.reader.positions:
            await asyncio.sleep(IDLE_SECONDS)
            return []
        try:
            return await self.reader.fetch()
        except NoTopic as gone:
            for where in [where for where in self.reader.positions if where.topic == gone.topic]:
                self.reader.drop(where)
            self.member.rejoin(f"topic {gone.topic!r} is gone")
            return []

    async def commit(self, offsets: Mapping[TopicPartition, Committed] | None = None) -> None:
        """Commit these, or all positions. What may pass is tried again; anything else is raised."""
        wanted = self.consumed() if offsets is None else offsets
        attempts = STALE_EPOCH_RETRIES
        while wanted:
            try:
                return await self.cluster.retrying(lambda: self._commit(wanted))
            except KafkaError as error:
                attempts -= 1
                if error.error is not Error.STALE_MEMBER_EPOCH or not attempts:
                    self._heed(error)
                    raise
            await self.cluster.pause(IDLE_SECONDS)
        return None

    async def _commit(self, offsets: Mapping[TopicPartition, Committed]) -> None:
        await commits.commit(self.coordinator, offsets, self.member.committer)

    async def committed(self, partitions: Sequence[TopicPartition]) -> dict[TopicPartition, Committed]:
        return await self.cluster.retrying(lambda: commits.fetch(self.coordinator, partitions))

    def consumed(self, partitions: Partitions | None = None) -> dict[TopicPartition, Committed]:
        """What there is to commit: the positions, of all partitions or of these, where reading has begun."""
        reader = self.reader
        return {
            where: Committed(at, reader.leader_epochs.get(where, -1))
            for where, at in reader.positions.items()
            if at >= 0 and (partitions is None or where in partitions)
        }

    def seek(self, where: TopicPartition, position: int) -> None:
        self.reader.seek(where, position)

    async def close(self) -> None:
        try:
            await self.member.leave()
        finally:
            self.reader.close()
            self.coordinator.close()

    # What the member calls.

    async def topics(self) -> dict[str, int]:
        if isinstance(self.subscribed, re.Pattern):
            found = (await self.cluster.metadata(None)).topics
            pattern = self.subscribed
            found = [topic for topic in found if not topic.is_internal and pattern.fullmatch(topic.name or "")]
        else:
            found = (await self.cluster.metadata(self.subscribed, create=True)).topics
        counts = {topic.name or "": _count(topic) for topic in found}
        missing = any(not count for count in counts.values())
        self._refresh_at = self._now() + (MISSING_TOPIC_SECONDS if missing else self.refresh_s)
        return dict(sorted(counts.items()))

    async def give_up(self, partitions: Partitions, *, lost: bool) -> None:
        if not lost:
            await self._commit_quietly(partitions)
        listener = self.on_lost if lost and self.on_lost else self.on_revoked
        if listener is not None:
            await listener(partitions)
        for where in partitions:
            self.reader.drop(where)

    async def take_on(self, partitions: Partitions) -> None:
        found = await self._start_offsets(partitions)
        for where in partitions:
            start = found.get(where)
            if start is None and self.reset is None:
                raise NoOffset(where)
            self.reader.seek(where, start.offset if start is not None else self.reset or 0)
            if start is not None and start.leader_epoch >= 0:
                self.reader.leader_epochs[where] = start.leader_epoch
        if self.on_assigned is not None:
            await self.on_assigned(partitions)

    async def _start_offsets(self, partitions: Partitions) -> dict[TopicPartition, Committed]:
        if not partitions:
            return {}
        if not isinstance(self.member, ConsumerMember):
            return await self._fetch_committed(partitions, commits.ANYBODY)
        try:
            return await self._fetch_committed(partitions, self.member.committer)
        except KafkaError as error:
            if error.error not in {Error.STALE_MEMBER_EPOCH, *FORGOTTEN}:
                raise
        # The epoch has changed since we asked. If the partitions are ours no more, the next heartbeat tells.
        return await self._fetch_committed(partitions, commits.ANYBODY)

    async def _fetch_committed(self, partitions: Partitions, committer: Committer) -> dict[TopicPartition, Committed]:
        return await self.cluster.retrying(lambda: commits.fetch(self.coordinator, partitions, committer=committer))

    # What is due.

    async def _look_for_topics(self) -> None:
        if self._refresh_at is not None and self._now() >= self._refresh_at and await self.member.topics_changed():
            self.member.rejoin("topics have changed")

    async def _commit_if_due(self) -> None:
        if self.auto_commit_ms is None:
            return
        if self._commit_at is not None and self._now() >= self._commit_at:
            await self._commit_quietly(None)
        elif self._commit_at is not None:
            return
        self._commit_at = self._now() + self.auto_commit_ms / 1000

    async def _commit_quietly(self, partitions: Partitions | None) -> None:
        """A commit nobody asked for; when it fails, the next one makes up for it, or records are read again."""
        if self.auto_commit_ms is None:
            return
        try:
            offsets = self.consumed(partitions)
            if offsets:
                await self._commit(offsets)
        except KafkaError as error:
            self._heed(error)
        except OSError:
            pass

    def _heed(self, error: KafkaError) -> None:
        if error.error is Error.REBALANCE_IN_PROGRESS or error.error in FORGOTTEN:
            self.member.rejoin("a commit was refused")

    def _now(self) -> float:
        return asyncio.get_running_loop().time()


def _count(topic: MetadataResponse.Topic) -> int:
    if topic.error_code in NOT_YET:
        return 0
    if topic.error_code:
        raise failure(topic.error_code, f"topic {topic.name!r}: {failure(topic.error_code).message}")
    return len(topic.partitions)
