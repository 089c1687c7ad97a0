"""A member of a group under the classic protocol: join, sync, heartbeat, leave.

The members of one *generation* joined together. Their leader divides the partitions, and everybody gets its part by
Sync. A heartbeat answered by REBALANCE_IN_PROGRESS means that the next generation is being made. Under an eager assignor
everything is given up before joining; under a cooperative one only what the new plan does not give back, and then the
member joins once more, so that others can have it (KIP-429).
"""

from __future__ import annotations

import asyncio
import contextlib

from ottla.client.assignors import (
    ASSIGNORS,
    Subscription,
    packed_assignment,
    packed_subscription,
    read_assignment,
    read_subscription,
)
from ottla.client.commits import Committer
from ottla.client.connection import REQUEST_SECONDS
from ottla.client.coordinator import Coordinator
from ottla.client.membership import COORDINATOR_BUSY, FORGOTTEN, Manners, Owner, Partitions
from ottla.wire.errors import Error, KafkaError
from ottla.wire.messages.groups import (
    HeartbeatRequest,
    HeartbeatResponse,
    JoinGroupRequest,
    JoinGroupResponse,
    LeaveGroupRequest,
    SyncGroupRequest,
    SyncGroupResponse,
)

PROTOCOL_TYPE = "consumer"
NO_GENERATION = -1
JOIN_SLACK_SECONDS = 5.0


class ClassicMember:
    def __init__(self, coordinator: Coordinator, owner: Owner, manners: Manners) -> None:
        self.coordinator = coordinator
        self.cluster = coordinator.cluster
        self.owner = owner
        self.manners = manners
        self.member_id = ""
        self.generation = NO_GENERATION
        self.owned: Partitions = []
        self.is_leader = False
        self.is_cooperative = all(assignor.is_cooperative for assignor in manners.assignors)
        self._why_join: str | None = "joining"
        self._is_lost = False
        self._counts: dict[str, int] = {}
        self._beating: asyncio.Task[None] | None = None
        self._failure: Exception | None = None
        self._settled_at = 0.0

    @property
    def committer(self) -> Committer:
        return Committer(self.member_id, self.generation, self.manners.instance_id)

    def rejoin(self, why: str) -> None:
        self._why_join = self._why_join or why

    async def settle(self) -> None:
        """Join, as often as it takes, until nothing speaks for joining again."""
        self._settled_at = asyncio.get_running_loop().time()
        if self._failure is not None:
            raise self._failure
        while self._is_lost or self._why_join is not None:
            await self._stop_beating()
            await self._let_go()
            await self.cluster.retrying(self._join_once, self.manners.rebalance_timeout_ms / 1000)
        if self._beating is None:
            self._beating = asyncio.get_running_loop().create_task(self._beat())

    async def leave(self) -> None:
        """Go, so that others need not wait for our session to end. Static members stay: they mean to come back."""
        await self._stop_beating()
        owned, self.owned = self.owned, []
        if owned:
            await self.owner.give_up(owned, lost=False)
        if self.member_id and self.generation != NO_GENERATION and self.manners.instance_id is None:
            with contextlib.suppress(KafkaError, OSError):
                await self._say_goodbye("the consumer is being closed")
        self.generation, self._why_join = NO_GENERATION, "joining"

    async def topics_changed(self) -> bool:
        """Whether the group must divide anew: other topics than before, or, for its leader, other partition counts."""
        counts = await self.owner.topics()
        return counts != self._counts if self.is_leader else list(counts) != list(self._counts)

    # Letting go.

    async def _let_go(self) -> None:
        if self._is_lost:
            self._is_lost = False
            lost, self.owned = self.owned, []
            self.generation = NO_GENERATION
            if lost:
                await self.owner.give_up(lost, lost=True)
        elif not self.is_cooperative and self.owned:
            owned, self.owned = self.owned, []
            await self.owner.give_up(owned, lost=False)

    # Joining.

    async def _join_once(self) -> None:
        why, self._why_join = self._why_join, None
        try:
            await self._sync(await self._join(why))
        except KafkaError as error:
            self._why_join = why or "rejoining"
            if not self._can_go_on(error):
                raise
        except BaseException:
            self._why_join = why or "rejoining"
            raise

    def _can_go_on(self, error: KafkaError) -> bool:
        """Whether joining again is the answer to what went wrong."""
        if error.error in FORGOTTEN:
            if error.error is Error.UNKNOWN_MEMBER_ID:
                self.member_id = ""
            self._is_lost = True
            return True
        return error.error in (Error.MEMBER_ID_REQUIRED, Error.REBALANCE_IN_PROGRESS)

    async def _join(self, why: str | None) -> JoinGroupResponse:
        self._counts = await self.owner.topics()
        subscription = Subscription(list(self._counts), self.owned, self.generation)
        metadata = packed_subscription(subscription)
        protocol = JoinGroupRequest.Protocol
        request = JoinGroupRequest(
            group_id=self.coordinator.key,
            session_timeout_ms=self.manners.session_timeout_ms,
            rebalance_timeout_ms=self.manners.rebalance_timeout_ms,
            member_id=self.member_id,
            group_instance_id=self.manners.instance_id,
            protocol_type=PROTOCOL_TYPE,
            protocols=[protocol(name=assignor.name, metadata=metadata) for assignor in self.manners.assignors],
            reason=why,
        )
        timeout_s = max(REQUEST_SECONDS, self.manners.rebalance_timeout_ms / 1000 + JOIN_SLACK_SECONDS)
        joined: JoinGroupResponse = await self.coordinator.ask(request, timeout_s)
        if joined.error_code == Error.MEMBER_ID_REQUIRED.code:
            self.member_id = joined.member_id
        self.coordinator.judge(joined.error_code)
        self.member_id, self.generation = joined.member_id, joined.generation_id
        self.is_leader = joined.leader == joined.member_id
        return joined

    async def _sync(self, joined: JoinGroupResponse) -> None:
        assignments = await self._plan(joined) if self.is_leader and not joined.skip_assignment else []
        request = SyncGroupRequest(
            group_id=self.coordinator.key,
            generation_id=self.generation,
            member_id=self.member_id,
            group_instance_id=self.manners.instance_id,
            protocol_type=PROTOCOL_TYPE,
            protocol_name=joined.protocol_name,
            assignments=assignments,
        )
        timeout_s = max(REQUEST_SECONDS, self.manners.rebalance_timeout_ms / 1000 + JOIN_SLACK_SECONDS)
        synced: SyncGroupResponse = await self.coordinator.ask(request, timeout_s)
        self.coordinator.judge(synced.error_code)
        await self._take(read_assignment(synced.assignment))

    async def _plan(self, joined: JoinGroupResponse) -> list[SyncGroupRequest.Assignment]:
        members = {m.member_id: read_subscription(m.metadata, m.group_instance_id) for m in joined.members}
        wanted = {topic: None for member in members.values() for topic in member.topics}
        counts = await self._count(list(wanted))
        plan = ASSIGNORS[joined.protocol_name or ""].assign(members, counts)
        return [
            SyncGroupRequest.Assignment(member_id=member, assignment=packed_assignment(partitions))
            for member, partitions in plan.items()
        ]

    async def _count(self, topics: list[str]) -> dict[str, int]:
        found = await self.cluster.metadata(topics)
        return {topic.name or "": len(topic.partitions) for topic in found.topics if not topic.error_code}

    async def _take(self, assigned: Partitions) -> None:
        kept = set(assigned)
        had = set(self.owned)
        gone = [where for where in self.owned if where not in kept]
        new = [where for where in assigned if where not in had]
        self.owned = assigned
        if gone:
            await self.owner.give_up(gone, lost=False)
            self.rejoin("gave up partitions for others to have")
        await self.owner.take_on(new)

    # Staying.

    async def _beat(self) -> None:
        """Until told to join again: the task ends, and `settle` sees why."""
        while self._why_join is None and not self._is_lost:
            await asyncio.sleep(self.manners.heartbeat_ms / 1000)
            try:
                await self._beat_once()
            except OSError:
                continue
            except KafkaError as error:
                self._heed(error)
            except Exception as error:
                self._failure = error
                return

    async def _beat_once(self) -> None:
        quiet_s = asyncio.get_running_loop().time() - self._settled_at
        if quiet_s * 1000 > self.manners.rebalance_timeout_ms:
            await self._say_goodbye("nobody asked for records for longer than the rebalance timeout")
            self._is_lost = True
            self.member_id = ""
            return
        request = HeartbeatRequest(
            group_id=self.coordinator.key,
            generation_id=self.generation,
            member_id=self.member_id,
            group_instance_id=self.manners.instance_id,
        )
        response: HeartbeatResponse = await self.coordinator.ask(request)
        self.coordinator.judge(response.error_code)

    def _heed(self, error: KafkaError) -> None:
        if error.error is Error.REBALANCE_IN_PROGRESS:
            self.rejoin("the group rebalances")
        elif error.error in FORGOTTEN:
            self._can_go_on(error)
        elif error.error not in COORDINATOR_BUSY:
            self._failure = error

    async def _stop_beating(self) -> None:
        task, self._beating = self._beating, None
        if task is not None:
            task.cancel()
            await asyncio.wait([task])

    async def _say_goodbye(self, why: str) -> None:
        member = LeaveGroupRequest.Member(member_id=self.member_id, group_instance_id=None, reason=why)
        request = LeaveGroupRequest(group_id=self.coordinator.key, member_id=self.member_id, members=[member])
        await self.coordinator.ask(request)
