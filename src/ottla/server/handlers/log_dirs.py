"""What lies in the data directories: partitions with their sizes, and the space on each volume; and moving them about.

DescribeLogDirs versions: 2 flexible, 3 an error for the whole request, 4 space (KIP-827), 5 cordoned directories (KIP-1066).
The metadata log is not listed, and topics or partitions that are not here are left out without an error. A copy of a
partition that moves to another directory is listed there as its future.

AlterReplicaLogDirs begins to move replicas (KIP-113); its answer does not wait for them to arrive. Version 2 flexible.
"""

from __future__ import annotations

import os
from collections.abc import Collection, Mapping

from ottla.log.directory import DataDirectory
from ottla.log.moving import Copy
from ottla.replication.moves import Moves
from ottla.server.context import Context
from ottla.server.dispatch import serves
from ottla.wire.errors import Error, KafkaError
from ottla.wire.messages.cluster import DescribeLogDirsRequest, DescribeLogDirsResponse
from ottla.wire.messages.placement import AlterReplicaLogDirsRequest, AlterReplicaLogDirsResponse
from ottla.wire.messages.quorum import METADATA_TOPIC

Listed = DescribeLogDirsResponse.Directory

# Which partitions of which topics are asked for; None for all there are.
Wanted = Mapping[str, Collection[int]] | None


@serves(DescribeLogDirsRequest, versions="1-5")
async def describe_log_dirs(request: DescribeLogDirsRequest, ctx: Context) -> DescribeLogDirsResponse:
    wanted = _wanted(request)
    listed = [_listed(it, wanted, ctx) for it in ctx.node.directories.all]
    return DescribeLogDirsResponse(results=listed + [_offline(path) for path in ctx.node.directories.unopened])


def _offline(path: str) -> Listed:
    return Listed(error_code=Error.KAFKA_STORAGE_ERROR.code, log_dir=os.path.abspath(path))


def _wanted(request: DescribeLogDirsRequest) -> Wanted:
    if request.topics is None:
        return None
    wanted: dict[str, set[int]] = {}
    for topic in request.topics:
        wanted.setdefault(topic.topic, set()).update(topic.partitions)
    return wanted


def _listed(directory: DataDirectory, wanted: Wanted, ctx: Context) -> Listed:
    path = os.path.abspath(directory.path)
    if directory.failed is not None:
        return _offline(path)
    try:
        total, free = directory.disk.space(directory.path)
    except OSError:
        return _offline(path)
    return Listed(
        log_dir=path,
        topics=_topics(directory, wanted, ctx.replicas.moves),
        total_bytes=total,
        usable_bytes=free,
        is_cordoned=directory.path in ctx.node.directories.cordoned,
    )


def _topics(directory: DataDirectory, wanted: Wanted, moves: Moves) -> list[Listed.Topic]:
    by_name: dict[str, list[Listed.Topic.Partition]] = {}
    for (topic, index), log in directory.logs.items():
        if topic != METADATA_TOPIC and _is_wanted(topic, index, wanted) and not moves.has_left(log):
            # How far the log's end is behind the watermark: never, on a leader.
            listed = Listed.Topic.Partition(partition_index=index, partition_size=log.size, offset_lag=0)
            by_name.setdefault(topic, []).append(listed)
    for (topic, index), move in moves.under_way.items():
        if move.target is directory and _is_wanted(topic, index, wanted) and not moves.has_left(move.copy.source):
            by_name.setdefault(topic, []).append(_future(index, move.copy))
    return [Listed.Topic(name=name, partitions=partitions) for name, partitions in by_name.items()]


def _is_wanted(topic: str, index: int, wanted: Wanted) -> bool:
    return wanted is None or index in wanted.get(topic, ())


def _future(index: int, copy: Copy) -> Listed.Topic.Partition:
    return Listed.Topic.Partition(
        partition_index=index, partition_size=copy.log.size, offset_lag=copy.lag, is_future_key=True
    )


@serves(AlterReplicaLogDirsRequest, versions="1-2")
async def alter_replica_log_dirs(request: AlterReplicaLogDirsRequest, ctx: Context) -> AlterReplicaLogDirsResponse:
    """A partition that is named for two directories goes to the one that is named last."""
    own = {os.path.abspath(directory.path): directory.path for directory in ctx.node.directories.all}
    wanted = {
        (topic.name, index): own.get(directory.path, "")
        for directory in request.dirs
        for topic in directory.topics
        for index in topic.partitions
    }
    told: dict[str, list[AlterReplicaLogDirsResponse.Topic.Partition]] = {}
    for (topic, index), path in wanted.items():
        outcome = AlterReplicaLogDirsResponse.Topic.Partition(partition_index=index)
        try:
            ctx.replicas.moves.check(topic, index, path)
            if path in ctx.node.directories.cordoned:
                raise KafkaError(Error.INVALID_REPLICA_ASSIGNMENT, f"Log directory {path} is cordoned")
            await ctx.replicas.moves.move(ctx.replicas.find(topic, index), path)
        except KafkaError as error:
            outcome.error_code = error.code
        told.setdefault(topic, []).append(outcome)
    kind = AlterReplicaLogDirsResponse.Topic
    return AlterReplicaLogDirsResponse(results=[kind(topic_name=name, partitions=told[name]) for name in told])
