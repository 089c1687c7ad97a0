"""Members that come and go, in the classic protocol and in the consumer protocol (KIP-848).

A new member comes every tenth of a second, and as often the oldest goes without a word. Then the churn is over, and what is
measured is how long the group takes until its partitions are divided among those who are left. All the time nobody may own
what somebody else owns in the same generation, or epoch.
"""

from __future__ import annotations

import asyncio
import itertools
import struct
import time
from abc import ABC, abstractmethod
from collections import Counter
from collections.abc import Iterable
from typing import Any

from bench import client
from bench.asking import WAIT_FOR, Line, find
from bench.drivers import CannotMeasure
from bench.scenes import Size
from harness import Server
from ottla.wire.errors import Error
from ottla.wire.messages.groups import (
    ConsumerGroupHeartbeatRequest,
    ConsumerGroupHeartbeatResponse,
    HeartbeatRequest,
    JoinGroupRequest,
    SyncGroupRequest,
)

TOPIC = "churn"
PARTITIONS = 200
PAUSE_SECONDS = 0.1
BEAT_SECONDS = 0.5
SESSION_MS = 6_000
REBALANCE_MS = 5_000
SETTLED_SECONDS_MAX = 120.0
# When a group settles depends on when its rounds began, so both brokers begin without the delay of a group's first one. The
# pace of the consumer protocol is the broker's to say: the one that the members of the classic protocol choose.
SETTINGS = {
    "group.initial.rebalance.delay.ms": "0",
    "group.consumer.heartbeat.interval.ms": str(int(BEAT_SECONDS * 1000)),
    "group.consumer.min.heartbeat.interval.ms": str(int(BEAT_SECONDS * 1000)),
    "group.consumer.session.timeout.ms": str(SESSION_MS),
    "group.consumer.min.session.timeout.ms": str(SESSION_MS),
}
# Errors after which a member begins anew.
FORGOTTEN = {Error.UNKNOWN_MEMBER_ID.code, Error.FENCED_MEMBER_EPOCH.code}


class Owners:
    """Who owned which partition in which generation, or epoch."""

    def __init__(self) -> None:
        self._members: dict[tuple[int, int], str] = {}

    def note(self, epoch: int, partitions: Iterable[int], member: str) -> None:
        for partition in partitions:
            owner = self._members.setdefault((epoch, partition), member)
            if owner != member:
                raise CannotMeasure(f"partition {partition} had two owners in epoch {epoch}: {owner} and {member}")


class Churner(ABC):
    """A member of the one large group: it takes part until it is told to go. A generation is called an epoch here, too."""

    group: str

    def __init__(self, server: Server, owners: Owners) -> None:
        self._server, self._owners = server, owners
        self.member, self.epoch, self.owns = "", -1, frozenset[int]()

    async def live(self) -> None:
        line = await Line.to(self._server)
        try:
            while True:
                await self._take_part(line)
        finally:
            line.close()

    @abstractmethod
    async def _take_part(self, line: Line) -> None:
        """Joins, and stays as long as the group goes on without asking members to join again."""

    def _own(self, epoch: int, partitions: frozenset[int]) -> None:
        self.epoch, self.owns = epoch, partitions
        self._owners.note(epoch, partitions, self.member)


class ClassicChurner(Churner):
    group = "churn-classic"

    async def _take_part(self, line: Line) -> None:
        self._own(-1, frozenset())
        generation = await self._join(line)
        beat = HeartbeatRequest(group_id=self.group, generation_id=generation, member_id=self.member)
        while self.epoch >= 0 and (await line.ask(beat)).error_code == 0:
            await asyncio.sleep(BEAT_SECONDS)

    async def _join(self, line: Line) -> int:
        join = JoinGroupRequest(
            group_id=self.group,
            session_timeout_ms=SESSION_MS,
            rebalance_timeout_ms=REBALANCE_MS,
            member_id=self.member,
            protocol_type="bench",
            protocols=[JoinGroupRequest.Protocol(name="range", metadata=b"")],
        )
        joined = await line.ask(join)
        self.member = "" if joined.error_code == Error.UNKNOWN_MEMBER_ID.code else joined.member_id
        if joined.error_code == 0:
            await self._sync(line, joined.generation_id, [member.member_id for member in joined.members])
        return int(joined.generation_id)

    async def _sync(self, line: Line, generation: int, members: list[str]) -> None:
        """The leader, who alone knows the members, gives each of them its place among so many."""
        parts = [
            SyncGroupRequest.Assignment(member_id=member, assignment=struct.pack(">HH", place, len(members)))
            for place, member in enumerate(members)
        ]
        sync = SyncGroupRequest(group_id=self.group, generation_id=generation, member_id=self.member, assignments=parts)
        synced = await line.ask(sync)
        if synced.error_code == 0 and synced.assignment:
            place, count = struct.unpack(">HH", synced.assignment)
            self._own(generation, frozenset(range(place, PARTITIONS, count)))


class ConsumerChurner(Churner):
    """Partitions are the broker's to give: whatever it takes back is let go at once, and told by the next heartbeat."""

    group = "churn-consumer"
    _numbers = itertools.count()

    def __init__(self, server: Server, owners: Owners) -> None:
        super().__init__(server, owners)
        self.member = f"churner-{next(self._numbers)}"
        self._topic_id = bytes(16)

    async def _take_part(self, line: Line) -> None:
        self._own(0, frozenset())
        beat = self._beat(rebalance_timeout_ms=REBALANCE_MS, subscribed_topic_names=[TOPIC], topic_partitions=[])
        while (answer := await line.ask(beat)).error_code == 0:
            if self._heed(answer):
                beat = self._beat(topic_partitions=self._said())
            else:
                await asyncio.sleep(answer.heartbeat_interval_ms / 1000)
                beat = self._beat()
        if answer.error_code in WAIT_FOR:
            await asyncio.sleep(PAUSE_SECONDS)
        elif answer.error_code not in FORGOTTEN:
            raise CannotMeasure(f"ConsumerGroupHeartbeat got {answer.error_code}: {answer.error_message}")

    def _beat(self, **said: Any) -> ConsumerGroupHeartbeatRequest:
        """What has not changed is left unsaid."""
        return ConsumerGroupHeartbeatRequest(
            group_id=self.group, member_id=self.member, member_epoch=self.epoch, **said
        )

    def _heed(self, answer: ConsumerGroupHeartbeatResponse) -> bool:
        """Whether that changes what the member owns."""
        before, owns = self.owns, self.owns
        if answer.assignment is not None:
            topics = answer.assignment.topic_partitions
            owns = frozenset(partition for topic in topics for partition in topic.partitions)
            self._topic_id = topics[0].topic_id if topics else self._topic_id
        self._own(answer.member_epoch, owns)
        return owns != before

    def _said(self) -> list[ConsumerGroupHeartbeatRequest.TopicPartitions]:
        owned = ConsumerGroupHeartbeatRequest.TopicPartitions(topic_id=self._topic_id, partitions=sorted(self.owns))
        return [owned] if self.owns else []


Crowd = dict[asyncio.Task[None], Churner]


def seconds_to_settle(server: Server, size: Size, kind: type[Churner]) -> float:
    if kind is ConsumerChurner:
        client.make_topic(server, TOPIC, PARTITIONS)
    return asyncio.run(churn(server, size, kind))


async def churn(server: Server, size: Size, kind: type[Churner]) -> float:
    """Seconds until the group has settled, after its members came and went for a while."""
    line, owners = await Line.to(server), Owners()
    await find(line, kind.group)
    line.close()
    crowd: Crowd = {}
    for _ in range(int(size.churn_seconds / PAUSE_SECONDS)):
        _add(crowd, kind(server, owners))
        if len(crowd) > size.members:
            next(iter(crowd)).cancel()
        await asyncio.sleep(PAUSE_SECONDS)
        _bury(crowd)
    while len(crowd) < size.members:
        _add(crowd, kind(server, owners))
    settled = await _settling(crowd)
    for task in crowd:
        task.cancel()
    await asyncio.gather(*crowd, return_exceptions=True)
    return settled


def _add(crowd: Crowd, churner: Churner) -> None:
    crowd[asyncio.get_running_loop().create_task(churner.live())] = churner


def _bury(crowd: Crowd) -> None:
    """Forgets who was told to go; whoever ended otherwise ends the measurement."""
    for task in [task for task in crowd if task.done()]:
        del crowd[task]
        if not task.cancelled() and (error := task.exception()) is not None:
            raise CannotMeasure(f"a member ended with {error!r}")


async def _settling(crowd: Crowd) -> float:
    began = time.monotonic()
    while time.monotonic() - began < SETTLED_SECONDS_MAX:
        _bury(crowd)
        if _is_settled(list(crowd.values())):
            return time.monotonic() - began
        await asyncio.sleep(0.05)
    raise CannotMeasure(f"the group did not settle in {SETTLED_SECONDS_MAX} s")


def _is_settled(members: list[Churner]) -> bool:
    """All partitions are divided, and evenly: who has just come may be in the epoch of the others before it gets a share."""
    epochs, shares = {member.epoch for member in members}, [len(member.owns) for member in members]
    owned = Counter(partition for member in members for partition in member.owns)
    return len(epochs) == 1 and owned == Counter(range(PARTITIONS)) and max(shares) - min(shares) <= 1


LINES: dict[str, type[Churner]] = {
    "groups-churn-settled": ClassicChurner,
    "groups-churn-consumer": ConsumerChurner,
}
