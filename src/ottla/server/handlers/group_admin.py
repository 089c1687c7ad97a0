"""Groups as administrators see them.

ListGroups versions: 1 throttle time, 3 flexible, 4 states (KIP-518), 5 types (KIP-848). DescribeGroups: 3 authorized
operations (KIP-430), 4 static members (KIP-345), 5 flexible, 6 groups that do not exist are told apart from dead ones
(KIP-1043). ConsumerGroupDescribe: 1 tells members of the classic protocol apart. DeleteGroups: 2 flexible.
"""

from __future__ import annotations

from ottla.coordination import listing
from ottla.coordination.checks import check_named, check_served
from ottla.server.access import GROUP_OPERATIONS
from ottla.server.context import Context
from ottla.server.dispatch import serves
from ottla.server.portions import Portions
from ottla.wire.errors import Error, KafkaError
from ottla.wire.messages.cluster import NO_OPERATIONS
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


@serves(ListGroupsRequest, versions="0-5")
async def list_groups(request: ListGroupsRequest, ctx: Context) -> ListGroupsResponse:
    """Of all partitions that are led here. While one of them loads there is no answer, as it would not be complete."""
    answer = ListGroupsResponse()
    for shard in ctx.groups.all():
        try:
            answer.groups += listing.listed(shard.state, request)
            await shard.committed()
        except KafkaError as error:
            if error.error is not Error.NOT_COORDINATOR:
                return ListGroupsResponse(error_code=error.code)
    return answer


@serves(DescribeGroupsRequest, versions="0-6")
async def describe_groups(request: DescribeGroupsRequest, ctx: Context) -> DescribeGroupsResponse:
    operations = GROUP_OPERATIONS if request.include_authorized_operations else NO_OPERATIONS
    portions = Portions(DescribeGroupsResponse, len(request.groups), ctx)
    for group_id in request.groups:
        try:
            group = await ctx.groups.decide(group_id, listing.describe, group_id, ctx)
            if not group.error_code:
                group.authorized_operations = operations
        except KafkaError as error:
            group = DescribeGroupsResponse.Group(group_id=group_id, error_code=error.code)
        await portions.add(group_id, group)
    return portions.answer


@serves(ConsumerGroupDescribeRequest, versions="0-1")
async def consumer_group_describe(request: ConsumerGroupDescribeRequest, ctx: Context) -> ConsumerGroupDescribeResponse:
    operations = GROUP_OPERATIONS if request.include_authorized_operations else NO_OPERATIONS
    portions = Portions(ConsumerGroupDescribeResponse, len(request.group_ids), ctx)
    for group_id in request.group_ids:
        try:
            check_served(ctx.image)
            check_named(group_id)
            group = await ctx.groups.decide(group_id, listing.describe_consumers, group_id, ctx)
            group.authorized_operations = operations
        except KafkaError as error:
            said = error.message if error.error is Error.GROUP_ID_NOT_FOUND else None
            group = ConsumerGroupDescribeResponse.Group(group_id=group_id, error_code=error.code, error_message=said)
        await portions.add(group_id, group)
    return portions.answer


@serves(DeleteGroupsRequest, versions="0-2")
async def delete_groups(request: DeleteGroupsRequest, ctx: Context) -> DeleteGroupsResponse:
    answer = DeleteGroupsResponse()
    for group_id in dict.fromkeys(request.groups_names):
        code = 0
        try:
            while not await ctx.groups.decide(group_id, listing.delete, group_id, ctx):
                pass
        except KafkaError as error:
            code = error.code
        answer.results.append(DeleteGroupsResponse.Result(group_id=group_id, error_code=code))
    return answer
