"""Groups as administrators see them: list, describe, delete."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping

from ottla.coordination.assignors import named
from ottla.coordination.classic_group import STABLE, ClassicGroup, ClassicMember
from ottla.coordination.commits import fitting
from ottla.coordination.consumer_group import ConsumerGroup
from ottla.coordination.consumer_member import Member
from ottla.coordination.groups import CLASSIC, Group, Groups
from ottla.coordination.machine import Caller, Decision, Moment
from ottla.coordination.simple import SimpleGroup, find_any
from ottla.metadata.image import Image
from ottla.wire.errors import Error, KafkaError
from ottla.wire.messages.groups import (
    ConsumerGroupDescribeResponse,
    DescribeGroupsResponse,
    ListGroupsRequest,
    ListGroupsResponse,
)

Listed = ListGroupsResponse.Group
Consumer = ConsumerGroupDescribeResponse.Group.Member
DEAD = "Dead"
# From this version on DescribeGroups tells that a group does not exist.
NOT_FOUND_SINCE = 6
CLASSIC_MEMBER, CONSUMER_MEMBER = 0, 1


# --- list


def listed(groups: Groups, request: ListGroupsRequest) -> list[Listed]:
    """The groups of one partition that pass both filters. Neither cares for upper and lower case."""
    states = {state.lower().strip() for state in request.states_filter}
    kinds = {kind.lower() for kind in request.types_filter}
    return [
        Listed(
            group_id=group.group_id,
            protocol_type=group.protocol_type,
            group_state=group.state,
            group_type=group.kind,
        )
        for group in _all(groups)
        if (not states or group.state.lower() in states) and (not kinds or group.kind in kinds)
    ]


def _all(groups: Groups) -> Iterator[Group]:
    yield from groups.by_id.values()
    for group_id in groups.offsets.by_group:
        if group_id not in groups.by_id:
            yield SimpleGroup(group_id)


# --- describe


def describe(groups: Groups, group_id: str, caller: Caller, moment: Moment) -> Decision[DescribeGroupsResponse.Group]:
    """A classic group. One that does not exist is a dead one; from version 6 on that is said in so many words."""
    try:
        group = find_any(groups, group_id)
        if group.kind != CLASSIC:
            raise KafkaError(Error.GROUP_ID_NOT_FOUND, f"Group {group_id} is not a classic group.")
    except KafkaError as error:
        dead = DescribeGroupsResponse.Group(group_id=group_id, group_state=DEAD)
        if caller.version >= NOT_FOUND_SINCE:
            dead.error_code, dead.error_message = error.code, error.message
        return Decision(dead)
    answer = DescribeGroupsResponse.Group(group_id=group_id, group_state=group.state, protocol_type=group.protocol_type)
    if isinstance(group, ClassicGroup):
        is_stable = group.state == STABLE
        answer.protocol_data = group.protocol or "" if is_stable else ""
        answer.members = [_member(member, group.protocol if is_stable else None) for member in group.members.values()]
    return Decision(answer)


def _member(member: ClassicMember, protocol: str | None) -> DescribeGroupsResponse.Group.Member:
    """What a member subscribes to is told only while the group is stable; what it was given at last, always."""
    return DescribeGroupsResponse.Group.Member(
        member_id=member.member_id,
        group_instance_id=member.instance_id,
        client_id=member.client_id,
        client_host=member.client_host,
        member_metadata=b"" if protocol is None else member.subscription(protocol),
        member_assignment=member.assignment,
    )


def describe_consumers(
    groups: Groups, group_id: str, caller: Caller, moment: Moment
) -> Decision[ConsumerGroupDescribeResponse.Group]:
    """A consumer group, with what each member has and is to have."""
    group = find_any(groups, group_id)
    if not isinstance(group, ConsumerGroup):
        raise KafkaError(Error.GROUP_ID_NOT_FOUND, f"Group {group_id} is not a consumer group.")
    return Decision(
        ConsumerGroupDescribeResponse.Group(
            group_id=group_id,
            group_state=group.state,
            group_epoch=group.epoch,
            assignment_epoch=max(group.assignment_epoch, 0),
            assignor_name=group.preferred_assignor() or named(groups.config["group.consumer.assignors"])[0],
            members=[_consumer(group, member, groups.image) for member in group.members.values()],
        )
    )


def _consumer(group: ConsumerGroup, member: Member, image: Image) -> Consumer:
    # What it was told to give up and has not yet given up still counts as assigned.
    has: dict[bytes, list[int]] = {}
    for held in (member.assigned, member.revoking):
        for topic_id, partitions in held.items():
            has.setdefault(topic_id, []).extend(partitions)
    return Consumer(
        member_id=member.id,
        instance_id=member.instance_id,
        rack_id=member.rack_id,
        member_epoch=member.epoch,
        client_id=member.client_id,
        client_host=member.client_host,
        subscribed_topic_names=sorted(member.names),
        subscribed_topic_regex=member.regex,
        assignment=_assignment(has, image),
        target_assignment=_assignment(group.target_of(member.id), image),
        member_type=CLASSIC_MEMBER if member.classic is not None else CONSUMER_MEMBER,
    )


def _assignment(partitions: Mapping[bytes, Iterable[int]], image: Image) -> Consumer.Assignment:
    """With the names of the topics; those that do not exist any more are left out."""
    known = ((image.topic_by_id(topic_id), those) for topic_id, those in partitions.items())
    return Consumer.Assignment(
        topic_partitions=[
            Consumer.Assignment.TopicPartitions(topic_id=topic.id, topic_name=topic.name, partitions=sorted(those))
            for topic, those in known
            if topic is not None
        ]
    )


# --- delete


def delete(groups: Groups, group_id: str, caller: Caller, moment: Moment) -> Decision[bool]:
    """Forget an empty group, with its offsets. False if there are more of them than fit into one batch: ask again."""
    group = find_any(groups, group_id)
    group.check_deletable()
    offsets, at_once = groups.offsets.tombstones(group_id), fitting(group_id)
    if len(offsets) > at_once:
        return Decision(False, offsets[:at_once])
    return Decision(True, [*offsets, *group.tombstones()])
