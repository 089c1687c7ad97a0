"""Questions about offsets: where a timestamp lies, where an epoch ended; and moving a log's start forward.

ListOffsets versions: 2 isolation level, 4 leader epochs, 6 flexible, 7 the record with the largest timestamp (KIP-734),
8 the earliest local offset (KIP-405), 9 the last tiered one (KIP-1005), 10 a timeout (KIP-1075), 11 the earliest offset
waiting for upload (KIP-1023). OffsetForLeaderEpoch versions: 3 replica id, 4 flexible. DeleteRecords versions: 2 flexible.

A leader answers, and a new one not before its watermark has passed what came before it: until then it may lie below an offset
that a client has seen already (KIP-207). A follower asks for the end of the log, whatever the watermark.
"""

from __future__ import annotations

import asyncio

from ottla.replication.leadership import Leadership
from ottla.replication.partition import Partition
from ottla.server.context import Context
from ottla.server.dispatch import serves
from ottla.wire.errors import Error, KafkaError
from ottla.wire.messages.offsets import (
    DeleteRecordsRequest,
    DeleteRecordsResponse,
    ListOffsetsRequest,
    ListOffsetsResponse,
    OffsetForLeaderEpochRequest,
    OffsetForLeaderEpochResponse,
)

LATEST, EARLIEST, MAX_TIMESTAMP, EARLIEST_LOCAL, LATEST_TIERED, EARLIEST_PENDING_UPLOAD = -1, -2, -3, -4, -5, -6

# The version from which a special timestamp may be asked for. Other negative ones belong to no version yet.
SPECIAL_SINCE = {
    LATEST: 0,
    EARLIEST: 0,
    MAX_TIMESTAMP: 7,
    EARLIEST_LOCAL: 8,
    LATEST_TIERED: 9,
    EARLIEST_PENDING_UPLOAD: 11,
}
ISOLATION_LEVELS = (0, 1)
ANY_EPOCH = -1
NEVER = 2**15
CONSUMER, DEBUGGER = -1, -2
NOT_AVAILABLE_SINCE = 5

Asked = ListOffsetsRequest.Topic.Partition
Listed = ListOffsetsResponse.Topic.Partition


@serves(ListOffsetsRequest, versions="1-11")
async def list_offsets(request: ListOffsetsRequest, ctx: Context) -> ListOffsetsResponse:
    if request.isolation_level not in ISOLATION_LEVELS:
        return _all_refused(request, Error.UNKNOWN_SERVER_ERROR)
    asked_twice = _asked_twice(request)
    topics: dict[str, dict[int, Listed]] = {}  # each partition is answered once
    for topic in request.topics:
        for asked in topic.partitions:
            try:
                if (topic.name, asked.partition_index) in asked_twice:
                    raise KafkaError(Error.INVALID_REQUEST)
                answer = await _list_one(topic.name, asked, request, ctx)
            except KafkaError as error:
                answer = Listed(partition_index=asked.partition_index, error_code=error.code)
            topics.setdefault(topic.name, {})[asked.partition_index] = answer
    return ListOffsetsResponse(
        topics=[
            ListOffsetsResponse.Topic(name=name, partitions=list(answers.values())) for name, answers in topics.items()
        ]
    )


def _all_refused(request: ListOffsetsRequest, error: Error) -> ListOffsetsResponse:
    return ListOffsetsResponse(
        topics=[
            ListOffsetsResponse.Topic(
                name=topic.name,
                partitions=[Listed(partition_index=p.partition_index, error_code=error.code) for p in topic.partitions],
            )
            for topic in request.topics
        ]
    )


def _asked_twice(request: ListOffsetsRequest) -> set[tuple[str, int]]:
    seen: set[tuple[str, int]] = set()
    twice: set[tuple[str, int]] = set()
    for topic in request.topics:
        for asked in topic.partitions:
            key = (topic.name, asked.partition_index)
            (twice if key in seen else seen).add(key)
    return twice


async def _list_one(topic: str, asked: Asked, request: ListOffsetsRequest, ctx: Context) -> Listed:
    if asked.timestamp < 0 and ctx.version < SPECIAL_SINCE.get(asked.timestamp, NEVER):
        raise KafkaError(Error.UNSUPPORTED_VERSION)
    partition = ctx.replicas.find(topic, asked.partition_index)
    _open(partition, asked.current_leader_epoch, request.replica_id == DEBUGGER)
    if request.replica_id == CONSUMER:
        bound = partition.bound(request.isolation_level)
        timestamp, offset, epoch = await _look_up(partition, asked.timestamp, bound)
        if partition.is_behind_its_start and (asked.timestamp == LATEST or (asked.timestamp >= 0 and offset < 0)):
            is_known = ctx.version >= NOT_AVAILABLE_SINCE
            raise KafkaError(Error.OFFSET_NOT_AVAILABLE if is_known else Error.LEADER_NOT_AVAILABLE)
    else:
        timestamp, offset, epoch = await _look_up(partition, asked.timestamp, partition.log.end_offset)
    return Listed(partition_index=asked.partition_index, timestamp=timestamp, offset=offset, leader_epoch=epoch)


def _open(partition: Partition, wanted_epoch: int, or_follower: bool = False) -> None:
    """-1 stands for any epoch; what is below it is older than every leadership. (A Fetch takes both for any.)"""
    if wanted_epoch < ANY_EPOCH:
        raise KafkaError(Error.FENCED_LEADER_EPOCH)
    partition.open_to(wanted_epoch, or_follower=or_follower)


async def _look_up(partition: Partition, timestamp: int, bound: int) -> tuple[int, int, int]:
    """The timestamp, offset and epoch asked for; -1 for what there is not."""
    log = partition.log
    if timestamp == LATEST:
        return -1, bound, partition.leader_epoch
    if timestamp in (EARLIEST, EARLIEST_LOCAL):
        return -1, log.start_offset, log.epochs.epoch_for_offset(log.start_offset)
    if timestamp in (LATEST_TIERED, EARLIEST_PENDING_UPLOAD):
        return -1, -1, -1
    found = await (log.max_timestamp() if timestamp == MAX_TIMESTAMP else log.offset_for_timestamp(timestamp))
    if found is None or found.offset >= bound:
        return -1, -1, -1
    return found.timestamp, found.offset, found.leader_epoch


@serves(OffsetForLeaderEpochRequest, versions="2-4")
async def offset_for_leader_epoch(request: OffsetForLeaderEpochRequest, ctx: Context) -> OffsetForLeaderEpochResponse:
    topics = []
    for topic in request.topics:
        answers = [_epoch_end(topic.topic, asked, ctx) for asked in topic.partitions]
        topics.append(OffsetForLeaderEpochResponse.Topic(topic=topic.topic, partitions=answers))
    return OffsetForLeaderEpochResponse(topics=topics)


EpochAsked = OffsetForLeaderEpochRequest.Topic.Partition
EpochEnd = OffsetForLeaderEpochResponse.Topic.Partition


def _epoch_end(topic: str, asked: EpochAsked, ctx: Context) -> EpochEnd:
    try:
        partition = ctx.replicas.find(topic, asked.partition)
        _open(partition, asked.current_leader_epoch)
    except KafkaError as error:
        return EpochEnd(partition=asked.partition, error_code=error.code)
    epoch, end = partition.log.end_offset_for_epoch(asked.leader_epoch)
    return EpochEnd(partition=asked.partition, leader_epoch=epoch, end_offset=end)


Deleted = DeleteRecordsResponse.Topic.Partition


async def _deleted_everywhere(waits: list[tuple[Deleted, Leadership]], seconds: float) -> None:
    """Wait until no replica that lives has the records any more: another leader must not show them again."""
    loop = asyncio.get_running_loop()
    deadline = loop.time() + seconds
    for answer, leadership in waits:
        leadership.look_at_starts()
        try:
            await leadership.low_watermark.reaches(answer.low_watermark, max(deadline - loop.time(), 0.0))
        except TimeoutError:
            answer.error_code, answer.low_watermark = Error.REQUEST_TIMED_OUT.code, -1
        except KafkaError as error:
            answer.error_code, answer.low_watermark = error.code, -1


@serves(DeleteRecordsRequest, versions="0-2")
async def delete_records(request: DeleteRecordsRequest, ctx: Context) -> DeleteRecordsResponse:
    asked = {(t.name, p.partition_index): p.offset for t in request.topics for p in t.partitions}  # the last one counts
    topics: dict[str, list[Deleted]] = {}
    waits: list[tuple[Deleted, Leadership]] = []
    for (topic, index), offset in asked.items():
        answer = Deleted(partition_index=index, low_watermark=-1)
        topics.setdefault(topic, []).append(answer)
        try:
            answer.low_watermark = ctx.replicas.delete_records(topic, index, offset)
        except KafkaError as error:
            answer.error_code = error.code
        else:
            leadership = ctx.replicas.find(topic, index).leadership
            if leadership is not None:
                waits.append((answer, leadership))
    await _deleted_everywhere(waits, request.timeout_ms / 1000)
    return DeleteRecordsResponse(
        topics=[DeleteRecordsResponse.Topic(name=name, partitions=answers) for name, answers in topics.items()]
    )
