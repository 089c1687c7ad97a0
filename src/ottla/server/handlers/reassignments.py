"""Partitions that are given to other brokers (KIP-455).

AlterPartitionReassignments version 1 can insist that the replication factor stays (KIP-860). It is answered when what is
wanted stands in the metadata; it is over when those that come are in sync, which their leader tells (AlterPartition).
"""

from __future__ import annotations

from ottla.metadata import controller
from ottla.metadata.decisions import Decision
from ottla.metadata.reassignments import Reassigned, Wanted, under_way
from ottla.server.context import Context
from ottla.server.dispatch import serves
from ottla.server.handlers.topics import said
from ottla.wire.errors import Error, KafkaError
from ottla.wire.messages.placement import (
    AlterPartitionReassignmentsRequest,
    AlterPartitionReassignmentsResponse,
    ListPartitionReassignmentsRequest,
    ListPartitionReassignmentsResponse,
)

Told = AlterPartitionReassignmentsResponse.Topic
Listed = ListPartitionReassignmentsResponse.Topic


@serves(AlterPartitionReassignmentsRequest, versions="0-1", forwarded=True)
async def alter_partition_reassignments(
    request: AlterPartitionReassignmentsRequest, ctx: Context
) -> AlterPartitionReassignmentsResponse:
    if not request.topics:
        return AlterPartitionReassignmentsResponse(error_message="")
    wanted = [(t.name, [Wanted(p.partition_index, p.replicas) for p in t.partitions]) for t in request.topics]
    active, may_change = ctx.node.controller, request.allow_replication_factor_change
    try:
        if request.timeout_ms <= 0:
            raise KafkaError(Error.REQUEST_TIMED_OUT)
        reassigned = await active.propose(
            lambda image: controller.reassign(image, wanted, active.rules, may_change_factor=may_change)
        )
    except KafkaError as error:
        refused: Reassigned = [(topic, [(one.partition, error) for one in of]) for topic, of in wanted]
        return AlterPartitionReassignmentsResponse(
            error_code=error.code, error_message=said(error), responses=_told(refused)
        )
    return AlterPartitionReassignmentsResponse(allow_replication_factor_change=may_change, responses=_told(reassigned))


def _told(reassigned: Reassigned) -> list[Told]:
    return [
        Told(name=topic, partitions=[_outcome(index, error) for index, error in outcomes])
        for topic, outcomes in reassigned
    ]


def _outcome(index: int, error: KafkaError | None) -> Told.Partition:
    if error is None:
        return Told.Partition(partition_index=index)
    return Told.Partition(partition_index=index, error_code=error.code, error_message=said(error))


@serves(ListPartitionReassignmentsRequest, versions="0-0", forwarded=True)
async def list_partition_reassignments(
    request: ListPartitionReassignmentsRequest, ctx: Context
) -> ListPartitionReassignmentsResponse:
    """What the controllers have agreed on: a node that has just become the active one may not have shown anything yet to those
    who follow the picture here, and whoever hears that nothing is under way believes that all have arrived."""
    asked = None if request.topics is None else [(topic.name, topic.partition_indexes) for topic in request.topics]
    try:
        found = await ctx.node.controller.submit(lambda image: Decision([], under_way(image, asked)))
    except KafkaError as error:
        return ListPartitionReassignmentsResponse(error_code=error.code, error_message=said(error))
    return ListPartitionReassignmentsResponse(
        topics=[
            Listed(
                name=name,
                partitions=[
                    Listed.Partition(
                        partition_index=index,
                        replicas=list(partition.replicas),
                        adding_replicas=list(partition.adding),
                        removing_replicas=list(partition.removing),
                    )
                    for index, partition in partitions.items()
                ],
            )
            for name, partitions in found.items()
        ]
    )
