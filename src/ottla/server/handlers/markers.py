"""WriteTxnMarkers: how transactions ended, told to the leader of partitions by a coordinator, or by an operator who ends one
that nobody else will (`kafka-transactions.sh abort`, KIP-664).

Version 2 says of which generation the marker is (KIP-1228): one of generation 2 must carry a later epoch than the transaction
it ends.
"""

from __future__ import annotations

import asyncio

from ottla.log.producers import Marker
from ottla.metadata.topics import CONSUMER_OFFSETS
from ottla.server.context import Context
from ottla.server.dispatch import serves
from ottla.server.markers import Placed
from ottla.wire.errors import Error, KafkaError
from ottla.wire.messages.transactions import WriteTxnMarkersRequest, WriteTxnMarkersResponse

Answer = WriteTxnMarkersResponse.Marker
# Error codes by producer id, topic and partition: markers of one producer are answered together.
Codes = dict[int, dict[tuple[str, int], int]]


@serves(WriteTxnMarkersRequest, versions="1-2")
async def write_txn_markers(request: WriteTxnMarkersRequest, ctx: Context) -> WriteTxnMarkersResponse:
    ctx.connection.is_exempt = True  # a coordinator speaks, not a client
    codes: Codes = {}
    if any(_is_impossible(each) and _is_for_topics(each, ctx) for each in request.markers):
        return _refused(request, Error.UNKNOWN_SERVER_ERROR)  # and so is all of it
    staged = [each for wanted in request.markers for each in _stage(wanted, codes, ctx)]
    deadline = asyncio.get_running_loop().time() + ctx.node.config["request.timeout.ms"] / 1000
    for told, place, placed in staged:
        told[place] = await _written(placed, deadline)
    return WriteTxnMarkersResponse(markers=[_answer(producer_id, told) for producer_id, told in codes.items()])


def _stage(
    wanted: WriteTxnMarkersRequest.Marker, codes: Codes, ctx: Context
) -> list[tuple[dict[tuple[str, int], int], tuple[str, int], Placed]]:
    """Stage one marker everywhere it is wanted; what cannot be is answered already."""
    marker = Marker(
        wanted.producer_id,
        wanted.producer_epoch,
        wanted.coordinator_epoch,
        wanted.transaction_result,
        wanted.transaction_version,
    )
    places, impossible = _places(wanted), _is_impossible(wanted) or wanted.transaction_version < 0
    told, staged = codes.setdefault(wanted.producer_id, {}) if places else {}, []
    for place in places:
        try:
            if impossible and _is_here(*place, ctx):
                raise KafkaError(Error.UNKNOWN_SERVER_ERROR)
            staged.append((told, place, _place(marker, *place, ctx)))
        except KafkaError as error:
            told[place] = error.code
    return staged


def _places(wanted: WriteTxnMarkersRequest.Marker) -> dict[tuple[str, int], None]:
    return dict.fromkeys((topic.name, index) for topic in wanted.topics for index in topic.partition_indexes)


def _is_impossible(wanted: WriteTxnMarkersRequest.Marker) -> bool:
    """Kafka cannot even make a batch of it."""
    return -1 in (wanted.producer_id, wanted.producer_epoch)


def _is_for_topics(wanted: WriteTxnMarkersRequest.Marker, ctx: Context) -> bool:
    """Whether it is for a partition here. Coordinators of groups write their own, and refuse for themselves."""
    return any(name != CONSUMER_OFFSETS and _is_here(name, index, ctx) for name, index in _places(wanted))


def _is_here(topic: str, index: int, ctx: Context) -> bool:
    hosted = ctx.replicas.by_name.get(topic)
    return hosted is not None and index in hosted.partitions


def _refused(request: WriteTxnMarkersRequest, error: Error) -> WriteTxnMarkersResponse:
    """For each producer what its last marker was about, as Kafka does it."""
    told = {wanted.producer_id: dict.fromkeys(_places(wanted), error.code) for wanted in request.markers}
    return WriteTxnMarkersResponse(markers=[_answer(*each) for each in told.items()])


def _place(marker: Marker, topic: str, index: int, ctx: Context) -> Placed:
    if not _is_here(topic, index, ctx):
        raise KafkaError(Error.UNKNOWN_TOPIC_OR_PARTITION)
    return ctx.node.markers.place(marker, topic, index)


async def _written(placed: Placed, deadline: float) -> int:
    try:
        await placed.is_safe(max(deadline - asyncio.get_running_loop().time(), 0.0))
    except TimeoutError:
        return Error.REQUEST_TIMED_OUT.code
    except KafkaError as error:
        return error.code
    return Error.NONE.code


def _answer(producer_id: int, told: dict[tuple[str, int], int]) -> Answer:
    topics: dict[str, Answer.Topic] = {}
    for (name, index), code in told.items():
        topic = topics.setdefault(name, Answer.Topic(name=name, partitions=[]))
        topic.partitions.append(Answer.Topic.Partition(partition_index=index, error_code=code))
    return Answer(producer_id=producer_id, topics=list(topics.values()))
