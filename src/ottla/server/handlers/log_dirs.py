"""What lies in the data directories: partitions with their sizes, and the space on each volume.

DescribeLogDirs versions: 2 flexible, 3 an error for the whole request, 4 space (KIP-827), 5 cordoned directories (KIP-1066).
The metadata log is not listed, and topics or partitions that are not here are left out without an error.
"""

from __future__ import annotations

import os
from collections.abc import Collection, Mapping

from ottla.log.directory import METADATA_TOPIC, DataDirectory
from ottla.server.context import Context
from ottla.server.dispatch import serves
from ottla.wire.errors import Error
from ottla.wire.messages.cluster import DescribeLogDirsRequest, DescribeLogDirsResponse

Listed = DescribeLogDirsResponse.Directory

# Which partitions of which topics are asked for; None for all there are.
Wanted = Mapping[str, Collection[int]] | None


@serves(DescribeLogDirsRequest, versions="1-5")
async def describe_log_dirs(request: DescribeLogDirsRequest, ctx: Context) -> DescribeLogDirsResponse:
    wanted = _wanted(request)
    cordoned = ctx.node.config["cordoned.log.dirs"]
    return DescribeLogDirsResponse(results=[_listed(it, wanted, cordoned) for it in ctx.node.directories.all])


def _wanted(request: DescribeLogDirsRequest) -> Wanted:
    if request.topics is None:
        return None
    wanted: dict[str, set[int]] = {}
    for topic in request.topics:
        wanted.setdefault(topic.topic, set()).update(topic.partitions)
    return wanted


def _listed(directory: DataDirectory, wanted: Wanted, cordoned: Collection[str]) -> Listed:
    path = os.path.abspath(directory.path)
    try:
        total, free = directory.disk.space(directory.path)
    except OSError:
        return Listed(error_code=Error.KAFKA_STORAGE_ERROR.code, log_dir=path)
    return Listed(
        log_dir=path,
        topics=_topics(directory, wanted),
        total_bytes=total,
        usable_bytes=free,
        is_cordoned="*" in cordoned or directory.path in cordoned,
    )


def _topics(directory: DataDirectory, wanted: Wanted) -> list[Listed.Topic]:
    by_name: dict[str, list[Listed.Topic.Partition]] = {}
    for (topic, index), log in directory.logs.items():
        if topic != METADATA_TOPIC and (wanted is None or index in wanted.get(topic, ())):
            # How far the log's end is behind the watermark: never, on a leader.
            listed = Listed.Topic.Partition(partition_index=index, partition_size=log.size, offset_lag=0)
            by_name.setdefault(topic, []).append(listed)
    return [Listed.Topic(name=name, partitions=partitions) for name, partitions in by_name.items()]
