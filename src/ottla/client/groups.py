"""Looking at groups from outside, and changing them: list, describe, delete, and their committed offsets."""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterable, Mapping, Sequence
from contextlib import asynccontextmanager
from typing import NamedTuple

from ottla.client import commits
from ottla.client.assignors import read_assignment
from ottla.client.cluster import Cluster, TopicPartition
from ottla.client.commits import Committed
from ottla.client.connection import Connection, check
from ottla.client.coordinator import Coordinator, Node, find
from ottla.wire.errors import Error, KafkaError
from ottla.wire.messages.groups import (
    ConsumerGroupDescribeRequest,
    ConsumerGroupDescribeResponse,
    DeleteGroupsRequest,
    DeleteGroupsResponse,
    DescribeGroupsRequest,
    DescribeGroupsResponse,
    ListGroupsRequest,
    ListGroupsResponse,
)

CLASSIC, CONSUMER = "Classic", "Consumer"
# Protocol types of groups of consumers; a group that only ever committed offsets has none.
CONSUMER_PROTOCOLS = ("consumer", "")
UPGRADED = 1


class GroupListing(NamedTuple):
    group: str
    protocol: str
    state: str
    kind: str


class MemberInfo(NamedTuple):
    """A member. Epochs, the target and whether it is upgraded are known of consumer groups only."""

    member_id: str
    instance_id: str | None
    client_id: str
    host: str
    assignment: list[TopicPartition]
    target: list[TopicPartition]
    epoch: int | None = None
    is_upgraded: bool | None = None


class GroupInfo(NamedTuple):
    group: str
    kind: str
    state: str
    protocol: str
    assignor: str
    coordinator: Node
    members: list[MemberInfo]
    epoch: int | None = None
    target_epoch: int | None = None


class GroupAdmin:
    def __init__(self, cluster: Cluster) -> None:
        self.cluster = cluster

    async def groups(
        self,
        *,
        states: Sequence[str] = (),
        kinds: Sequence[str] = (),
        protocols: Sequence[str] | None = CONSUMER_PROTOCOLS,
    ) -> list[GroupListing]:
        """The groups that all brokers coordinate; by default those of consumers only."""
        request = ListGroupsRequest(states_filter=list(states), types_filter=list(kinds))
        found = await self.cluster.retrying(lambda: self._list_all(request))
        return sorted(each for each in found if protocols is None or each.protocol in protocols)

    async def _list_all(self, request: ListGroupsRequest) -> list[GroupListing]:
        """When a broker is gone, others have its groups: all of them are asked again, and only those that are there."""
        found: dict[str, GroupListing] = {}
        for node_id in sorted(broker.node_id for broker in (await self.cluster.metadata([])).brokers):
            for each in (await self._list(node_id, request)).groups:
                found[each.group_id] = GroupListing(
                    each.group_id, each.protocol_type, each.group_state, each.group_type
                )
        return list(found.values())

    async def _list(self, node_id: int, request: ListGroupsRequest) -> ListGroupsResponse:
        response: ListGroupsResponse = await (await self.cluster.broker(node_id)).request(request)
        check(response.error_code)
        return response

    async def describe(self, group: str) -> GroupInfo:
        """GROUP_ID_NOT_FOUND for a group that does not exist."""
        return await self.cluster.retrying(lambda: self._describe(group))

    async def _describe(self, group: str) -> GroupInfo:
        node, connection = await self._coordinator(group)
        if ConsumerGroupDescribeRequest.key in connection.served:
            request = ConsumerGroupDescribeRequest(group_ids=[group])
            answer: ConsumerGroupDescribeResponse = await connection.request(request)
            (found,) = answer.groups
            if found.error_code not in (Error.GROUP_ID_NOT_FOUND.code, Error.UNSUPPORTED_VERSION.code):
                check(found.error_code, found.error_message)
                return _consumer_group(found, node)
        classic: DescribeGroupsResponse = await connection.request(DescribeGroupsRequest(groups=[group]))
        check(classic.groups[0].error_code, classic.groups[0].error_message)
        return _classic_group(classic.groups[0], node)

    async def _coordinator(self, group: str) -> tuple[Node, Connection]:
        node = await find(self.cluster, group)
        if node.node_id not in self.cluster.brokers:
            await self.cluster.metadata([])
        return node, await self.cluster.broker(node.node_id)

    async def delete(self, group: str) -> None:
        async def step() -> None:
            _, connection = await self._coordinator(group)
            answer: DeleteGroupsResponse = await connection.request(DeleteGroupsRequest(groups_names=[group]))
            check(answer.results[0].error_code)

        await self.cluster.retrying(step)

    async def offsets(self, group: str, *, require_stable: bool = False) -> dict[TopicPartition, Committed]:
        async with self._group(group) as coordinator:
            return await self.cluster.retrying(lambda: commits.fetch(coordinator, require_stable=require_stable))

    async def alter_offsets(self, group: str, offsets: Mapping[TopicPartition, Committed]) -> None:
        """Only while nobody is in the group."""
        async with self._group(group) as coordinator:
            await self.cluster.retrying(lambda: commits.commit(coordinator, offsets))

    async def delete_offsets(
        self, group: str, partitions: Iterable[TopicPartition]
    ) -> dict[TopicPartition, KafkaError | None]:
        wanted = list(partitions)
        async with self._group(group) as coordinator:
            return await self.cluster.retrying(lambda: commits.delete(coordinator, wanted))

    @asynccontextmanager
    async def _group(self, group: str) -> AsyncIterator[Coordinator]:
        coordinator = Coordinator(self.cluster, group)
        try:
            yield coordinator
        finally:
            coordinator.close()


def _classic_group(found: DescribeGroupsResponse.Group, node: Node) -> GroupInfo:
    members = [
        MemberInfo(m.member_id, m.group_instance_id, m.client_id, m.client_host, assigned, [])
        for m in found.members
        for assigned in [read_assignment(m.member_assignment) if found.protocol_type in CONSUMER_PROTOCOLS else []]
    ]
    return GroupInfo(
        found.group_id, CLASSIC, found.group_state, found.protocol_type, found.protocol_data, node, members
    )


def _consumer_group(found: ConsumerGroupDescribeResponse.Group, node: Node) -> GroupInfo:
    members = [
        MemberInfo(
            member.member_id,
            member.instance_id,
            member.client_id,
            member.client_host,
            _partitions(member.assignment),
            _partitions(member.target_assignment),
            member.member_epoch,
            None if member.member_type < 0 else member.member_type == UPGRADED,
        )
        for member in found.members
    ]
    return GroupInfo(
        found.group_id,
        CONSUMER,
        found.group_state,
        "consumer",
        found.assignor_name,
        node,
        members,
        found.group_epoch,
        found.assignment_epoch,
    )


def _partitions(assignment: ConsumerGroupDescribeResponse.Group.Member.Assignment) -> list[TopicPartition]:
    parts = assignment.topic_partitions
    return [TopicPartition(part.topic_name, number) for part in parts for number in part.partitions]
