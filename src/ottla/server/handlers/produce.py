"""Produce: batches are checked, stamped and staged here; the tick writes them, and the reply leaves after the write.

Versions: 3 transactions, 5 log start, 7 zstd, 8 errors by record (KIP-467), 9 flexible, 10 the new leader in the answer
(KIP-951), 11-12 transactions of generation 2 (KIP-890), 13 topic ids (KIP-516). 0 to 2 are gone but still advertised,
because librdkafka takes their absence for a broker without message format 2 (KAFKA-18659).

This is the hot path: for the usual request (one batch a partition, nothing to recompress, this replica alone in sync) the
handler never waits. With acks=0 there is no answer at all; then an error costs the client its connection, as in Kafka.
"""

from __future__ import annotations

import asyncio

from ottla.log.log import Appended
from ottla.log.producers import Origin
from ottla.log.validation import RecordsRefused, needs_work, prepare
from ottla.replication.partition import Partition
from ottla.replication.replicas import Hosted
from ottla.server.context import Context
from ottla.server.dispatch import serves
from ottla.wire.errors import Error, KafkaError
from ottla.wire.messages.produce import ProduceRequest, ProduceResponse

TopicAnswer = ProduceResponse.Topic
Answer = ProduceResponse.Topic.Partition

NO_ACK, LEADER_ACK, ALL_ACK = 0, 1, -1
CLIENT = Origin.CLIENT

# The one client that may write into internal topics, as in Kafka.
ADMIN_CLIENT = "__admin_client"

# What a client waits for after its append: the partition, the offset to be reached, and the answer it may still change.
Wait = tuple[Partition, int, Answer]
Prepared = dict[int, bytearray | KafkaError]


@serves(ProduceRequest, versions="3-13", advertised_low=0, ordered=True)
async def produce(request: ProduceRequest, ctx: Context) -> ProduceResponse | None:
    if request.acks not in (ALL_ACK, LEADER_ACK, NO_ACK):
        return _refuse_all(request, Error.INVALID_REQUIRED_ACKS)
    prepared = await _prepare(request, ctx) if ctx.node.replicas.looking_inside else {}
    appending = Appending(request.acks, prepared, ctx)
    topics = [appending.topic(topic) for topic in request.topic_data]
    if appending.waits:
        ctx.effective()
        await _acknowledged(appending.waits, request.acks, request.timeout_ms / 1000)
    if request.acks == NO_ACK:
        if appending.failed:
            ctx.connection.abort("a produce with acks=0 failed")
        return None
    return ProduceResponse(responses=topics)


class Appending:
    """The append half of one request: everything in it happens without a wait."""

    __slots__ = ("acks", "by_id", "client_id", "failed", "now_ms", "prepared", "replicas", "waits")

    def __init__(self, acks: int, prepared: Prepared, ctx: Context) -> None:
        self.acks = acks
        self.prepared = prepared
        self.by_id = ctx.version >= 13
        self.client_id = ctx.client_id
        self.replicas = ctx.node.replicas
        self.now_ms = ctx.node.world.now_ms()
        self.waits: list[Wait] = []
        self.failed = False

    def topic(self, topic: ProduceRequest.Topic) -> TopicAnswer:
        hosted = self.replicas.by_id.get(topic.topic_id) if self.by_id else self.replicas.by_name.get(topic.name)
        answers = []
        for part in topic.partition_data:
            answer = Answer(index=part.index)
            answers.append(answer)
            try:
                partition = hosted.partitions[part.index]  # type: ignore[union-attr]
                if hosted.internal:  # type: ignore[union-attr]
                    self._check_internal()
                if self.acks == ALL_ACK and len(partition.isr) < partition.min_insync:
                    raise KafkaError(Error.NOT_ENOUGH_REPLICAS)
                if self.prepared and id(part) in self.prepared:
                    appended = self._append_prepared(partition, self.prepared[id(part)], answer)
                else:
                    appended = partition.append(part.records, self.now_ms, CLIENT, answer)
                answer.base_offset = appended.first_offset
                answer.log_append_time_ms = appended.append_time_ms
                answer.log_start_offset = partition.log.start_offset
                if not partition.acknowledges_on_write and self.acks:
                    self.waits.append((partition, appended.last_offset + 1, answer))
            except KafkaError as error:
                self._refuse(answer, error)
            except (KeyError, AttributeError):
                self._refuse(answer, self._why_missing(topic, hosted, part.index))
        return TopicAnswer(name=topic.name, topic_id=topic.topic_id, partition_responses=answers)

    def _check_internal(self) -> None:
        if self.client_id != ADMIN_CLIENT:
            raise KafkaError(Error.INVALID_TOPIC_EXCEPTION)

    def _why_missing(self, topic: ProduceRequest.Topic, hosted: Hosted | None, index: int) -> KafkaError:
        if hosted is not None and index in hosted.partitions:
            raise  # noqa: PLE0704 - a defect of ours, not a missing partition
        return self.replicas.why_missing(topic.topic_id if self.by_id else topic.name, index)

    def _refuse(self, answer: Answer, error: KafkaError) -> None:
        self.failed = True
        answer.fail(error)
        if isinstance(error, RecordsRefused):
            answer.record_errors = [
                Answer.RecordError(batch_index=index, batch_index_error_message=why) for index, why in error.record_errors
            ]

    def _append_prepared(self, partition: Partition, batch: bytearray | KafkaError, answer: Answer) -> Appended:
        if isinstance(batch, KafkaError):
            raise batch
        return partition.append(memoryview(batch), self.now_ms, CLIENT, answer, prepared=True)


async def _acknowledged(waits: list[Wait], acks: int, timeout_s: float) -> None:
    """Wait for all partitions together; whoever is not safe in time is told so, though its records stay in the log."""
    deadline = asyncio.get_running_loop().time() + timeout_s
    for partition, offset, answer in waits:
        try:
            await partition.acknowledged(offset, max(deadline - asyncio.get_running_loop().time(), 0.0))
            if acks == ALL_ACK and len(partition.isr) < partition.min_insync:
                raise KafkaError(Error.NOT_ENOUGH_REPLICAS_AFTER_APPEND)
        except TimeoutError:
            answer.error_code = Error.REQUEST_TIMED_OUT.code
        except KafkaError as error:
            answer.error_code = error.code


async def _prepare(request: ProduceRequest, ctx: Context) -> Prepared:
    """Large batches for topics that look into them (a codec of the topic's own, keys that must be there) are prepared in
    another process; small ones are done in place by the append. By the id of the request's partition object."""
    by_id, now_ms = ctx.version >= 13, ctx.now_ms
    work = []
    for topic in request.topic_data:
        hosted = ctx.replicas.hosted(topic.topic_id if by_id else topic.name)
        if hosted is not None and hosted.looks_inside:
            work += [
                (part, hosted.settings)
                for part in topic.partition_data
                if needs_work(part.records, hosted.settings, now_ms)
            ]
    if not work:
        return {}
    for topic in request.topic_data:
        for part in topic.partition_data:
            part.records = memoryview(bytearray(part.records or b""))  # the frame is gone after the first wait
    prepared: Prepared = {}
    for part, settings in work:
        try:
            prepared[id(part)] = await ctx.node.world.workshop.work(prepare, bytes(part.records), settings, now_ms)
        except KafkaError as error:
            prepared[id(part)] = error
    return prepared


def _refuse_all(request: ProduceRequest, error: Error) -> ProduceResponse:
    refused = [
        TopicAnswer(
            name=topic.name,
            topic_id=topic.topic_id,
            partition_responses=[
                Answer(index=part.index, error_code=error.code, base_offset=-1) for part in topic.partition_data
            ],
        )
        for topic in request.topic_data
    ]
    return ProduceResponse(responses=refused)
