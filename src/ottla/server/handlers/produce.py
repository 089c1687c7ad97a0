"""Produce: batches are checked, stamped and staged here; the tick writes them, and the reply leaves after the write.

Versions: 3 transactions, 5 log start, 7 zstd, 8 errors by record (KIP-467), 9 flexible, 10 the new leader in the answer
(KIP-951), 11-12 transactions of generation 2 (KIP-890), 13 topic ids (KIP-516). 0 to 2 are gone but still advertised,
because librdkafka takes their absence for a broker without message format 2 (KAFKA-18659).

This is the hot path: for the usual request (one batch a partition, nothing to recompress, this replica alone in sync) the
handler answers at once. With acks=0 there is no answer at all; then an error costs the client its connection, as in Kafka.

A request with a transactional id may have to wait until the coordinator admits its transaction to the partitions
(`server/verifying`); while it does, later ones of its connection are held back.

What is unusual about a request (a partition named twice, bytes that are no batch, acks that do not exist) is noticed by a
glance at each batch and takes the long way round: `sort_out` finds fault with it in the order in which Kafka does, so that
both refuse the same requests with the same codes.
"""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine
from struct import Struct
from struct import error as StructError
from typing import Any

from ottla.log.log import Appended
from ottla.log.producers import CLIENT
from ottla.log.settings import AFTER_MAX_MS
from ottla.log.validation import INLINE_BYTES_MAX, RecordsRefused, bytes_to_walk, check_header, prepare
from ottla.replication.partition import Partition
from ottla.replication.replicas import Hosted
from ottla.rising import Rising
from ottla.server import verifying
from ottla.server.context import Context
from ottla.server.dispatch import serves
from ottla.server.leaders import tell_leaders_to_producer
from ottla.server.verifying import Entrant, Manner, NotAdmitted, Place, Verdict
from ottla.wire.errors import Error, KafkaError
from ottla.wire.messages.produce import ProduceRequest, ProduceResponse
from ottla.wire.records import HEADER_BYTES, PREFIX_BYTES, TRANSACTIONAL_BIT
from ottla.wire.schema import maker
from ottla.world import Bytes

TopicAnswer = ProduceResponse.Topic
Answer = ProduceResponse.Topic.Partition
make_response = maker(ProduceResponse, "responses")
make_topic = maker(TopicAnswer, "name", "topic_id", "partition_responses")
make_answer = maker(Answer, "index")

NO_ACK, LEADER_ACK, ALL_ACK = 0, 1, -1

# The one client that may write into internal topics, as in Kafka.
ADMIN_CLIENT = "__admin_client"

# What a client waits for after its append: the partition, the offset to be reached and the number that has to reach it (of
# this leadership: in the next one somebody else's records may lie there), and the answer that may still change.
Wait = tuple[Partition, int, Rising, Answer]
Prepared = dict[int, bytearray | KafkaError]
# What became of the wish to begin a transaction in a partition; None for a request that has no transaction.
Verdicts = dict[Place, Verdict] | None

Topics = list[ProduceRequest.Topic]
Part = ProduceRequest.Topic.Partition

# Length, magic, attributes, and first and largest timestamp of the first batch in some records.
_glance = Struct(">8xi4xb4xh4xqq").unpack_from
# The same with producer id, epoch and sequence.
_glance_at_producer = Struct(">8xi4xb4xh20xqhi").unpack_from
LENGTH_MAX = 2**31 - 1 - PREFIX_BYTES
# So much is prepared in place for one request, however many partitions it is for.
INLINE_REQUEST_BYTES_MAX = 4 * INLINE_BYTES_MAX
MAGIC_AT = 16
OLDEST_RECORD_BYTES = 14
ZSTD, ZSTD_SINCE = 4, 7
ABORTABLE_SINCE, GENERATION_2_SINCE, IDS_SINCE = 11, 12, 13
# How compressed records begin, by codec; snappy has no mark of its own.
MARKS = (b"", b"\x1f\x8b", b"", b"\x04\x22\x4d\x18", b"\x28\xb5\x2f\xfd")
# With these Kafka does not say where the log starts.
WITHOUT_START = {
    Error.UNKNOWN_TOPIC_OR_PARTITION,
    Error.INVALID_TOPIC_EXCEPTION,
    Error.NOT_LEADER_OR_FOLLOWER,
    Error.MESSAGE_TOO_LARGE,
    Error.RECORD_LIST_TOO_LARGE,
    Error.CORRUPT_MESSAGE,
    Error.KAFKA_STORAGE_ERROR,
}


Told = ProduceResponse | None


@serves(ProduceRequest, versions="3-13", advertised_low=0, ordered=True, guarded=False)
def produce(request: ProduceRequest, ctx: Context) -> Told | Coroutine[Any, Any, Told]:
    if request.transactional_id is not None:
        return _in_transaction(request, ctx)
    now_ms = ctx.now_ms
    usual = is_usual(request, ctx, now_ms, False)
    if not usual or ctx.node.replicas.looking_inside:
        return _look_inside(request, ctx, None, usual)
    appending = Appending(request.acks, {}, ctx, now_ms)
    answer = appending.answer(request, usual)
    return _when_safe(request, ctx, appending, answer) if appending.waits else answer


async def _look_inside(request: ProduceRequest, ctx: Context, verdicts: Verdicts, usual: bool) -> Told:
    prepared = await _prepare(request, ctx, usual)
    appending = Appending(request.acks, prepared, ctx, ctx.now_ms, verdicts)
    answer = appending.answer(request, usual)
    return await _when_safe(request, ctx, appending, answer) if appending.waits else answer


async def _when_safe(request: ProduceRequest, ctx: Context, appending: Appending, answer: Told) -> Told:
    ctx.effective()
    # What is written is not kept until other replicas have it, or the disk: a client may send a hundred requests meanwhile.
    request.topic_data = []
    appending.prepared.clear()
    all_safe = await _acknowledged(appending.waits, request.acks, request.timeout_ms / 1000, ctx.node.loop)
    if answer is not None and not all_safe:
        tell_leaders_to_producer(answer, ctx.image, ctx.listener)
    return answer


def is_usual(request: ProduceRequest, ctx: Context, now_ms: int, in_transaction: bool) -> bool:
    """One whole batch of today's format for each partition, none of them named twice, with timestamps that make sense."""
    topics, version, horizon = request.topic_data, ctx.version, now_ms + AFTER_MAX_MS
    if not -1 <= request.acks <= 1 or (len(topics) > 1 and _names_twice(topics)) or ctx.client_id == ADMIN_CLIENT:
        return False
    try:
        for topic in topics:
            parts = topic.partition_data
            if len(parts) != 1 and not 0 < len({part.index for part in parts}) == len(parts):
                return False
            for part in parts:
                records = part.records
                length, magic, attributes, first_time, largest_time = _glance(records)
                if magic != 2 or length + PREFIX_BYTES != len(records) or not first_time <= largest_time <= horizon:
                    return False
                if attributes and (
                    (attributes & TRANSACTIONAL_BIT and not in_transaction)
                    or not _begins_as_said(records, attributes & 7, version)
                ):
                    return False
    except (StructError, TypeError):
        return False
    return True


def _begins_as_said(records: memoryview, codec: int, version: int) -> bool:
    """We do not unpack what a producer packed; but what does not even begin like its codec, no consumer could read."""
    if codec == ZSTD and version < ZSTD_SINCE:
        return False
    return codec < len(MARKS) and records[HEADER_BYTES : HEADER_BYTES + len(MARKS[codec])] == MARKS[codec]


def _names_twice(topics: Topics) -> bool:
    return len({(topic.name, topic.topic_id) for topic in topics}) < len(topics)


class Appending:
    """The append half of one request: everything in it happens without a wait."""

    __slots__ = (
        "acks",
        "careful",
        "ctx",
        "failed",
        "generation",
        "now_ms",
        "prepared",
        "unusual",
        "verdicts",
        "waits",
    )

    def __init__(self, acks: int, prepared: Prepared, ctx: Context, now_ms: int, verdicts: Verdicts = None) -> None:
        self.acks = acks
        self.prepared = prepared
        self.ctx = ctx
        self.now_ms = now_ms
        self.verdicts = verdicts
        self.careful: object = prepared
        if verdicts is not None:
            self.careful, self.generation = True, 2 if ctx.version >= GENERATION_2_SINCE else 1
        self.waits: list[Wait] = []
        self.failed = self.unusual = False

    def answer(self, request: ProduceRequest, usual: bool) -> Told:
        """Append all there is. The answer holds for what need not be waited for."""
        topics = [self.topic(topic) for topic in request.topic_data] if usual else sort_out(request, self)
        return self.told(request, topics)

    def told(self, request: ProduceRequest, topics: list[TopicAnswer]) -> Told:
        if request.acks == NO_ACK:
            if self.failed:
                self.ctx.connection.abort("a produce with acks=0 failed")
            return None
        told = make_response(topics)
        if self.failed:
            tell_leaders_to_producer(told, self.ctx.replicas.image, self.ctx.listener)
        return told

    def topic(self, topic: ProduceRequest.Topic) -> TopicAnswer:
        ctx, acks, now_ms, answers = self.ctx, self.acks, self.now_ms, []
        replicas = ctx.node.replicas
        hosted = replicas.by_id.get(topic.topic_id) if ctx.version >= IDS_SINCE else replicas.by_name.get(topic.name)
        careful = self.careful or hosted is None or hosted.internal
        for part in topic.partition_data:
            answer = make_answer(part.index)
            answers.append(answer)
            try:
                partition = hosted.partitions[part.index]  # type: ignore[union-attr]
                if acks == ALL_ACK and partition.is_short_of_replicas:
                    raise KafkaError(Error.NOT_ENOUGH_REPLICAS)
                if careful:
                    appended = self._append_carefully(hosted, partition, part, answer)  # type: ignore[arg-type]
                else:
                    appended = partition.append(part.records, now_ms, CLIENT, answer if acks else self)
                answer.base_offset = appended.first_offset
                answer.log_append_time_ms = appended.append_time_ms
                answer.log_start_offset = partition.log.start_offset
                if acks and not partition.acknowledges_on_write and (acks == ALL_ACK or not partition.stores_on_write):
                    mark = partition.high_watermark if acks == ALL_ACK else partition.stored
                    self.waits.append((partition, appended.last_offset + 1, mark, answer))
            except KafkaError as error:
                self.refuse(answer, error)
                if error.error not in WITHOUT_START and not isinstance(error, NotAdmitted):
                    answer.log_start_offset = partition.log.start_offset
            except (KeyError, AttributeError):
                self.refuse(answer, self._why_missing(topic, hosted, part.index))
        return make_topic(topic.name, topic.topic_id, answers)

    def _append_carefully(self, hosted: Hosted, partition: Partition, part: Part, answer: Answer) -> Appended:
        """As always, but for internal topics, transactions, unusual requests, and batches that were prepared elsewhere."""
        verdict = self.verdicts.get((hosted.name, part.index)) if self.verdicts else None
        if isinstance(verdict, KafkaError):
            raise verdict
        if hosted.internal and self.ctx.client_id != ADMIN_CLIENT:
            raise KafkaError(Error.INVALID_TOPIC_EXCEPTION)
        if self.unusual:
            check_header(part.records, partition.log.settings)
            _check_codec(part)
        batch: Bytes | KafkaError | None = self.prepared.get(id(part), part.records)
        if isinstance(batch, KafkaError):
            raise batch
        assert batch is not None
        owner, is_prepared = (answer if self.acks else self), id(part) in self.prepared
        generation = self.generation if self.verdicts else 0
        return partition.append(memoryview(batch), self.now_ms, CLIENT, owner, is_prepared, generation, verdict)

    def _why_missing(self, topic: ProduceRequest.Topic, hosted: Hosted | None, index: int) -> KafkaError:
        if hosted is not None and index in hosted.partitions:
            raise  # noqa: PLE0704 - a defect of ours, not a missing partition
        return self.ctx.replicas.why_missing(self._key(topic), index)

    def refuse(self, answer: Answer, error: KafkaError) -> Answer:
        """Kafka explains itself only where single records are to blame, the disk, or a transaction."""
        self.failed = True
        answer.fail(error)
        if isinstance(error, RecordsRefused) and error.record_errors:
            answer.record_errors = [
                Answer.RecordError(batch_index=index, batch_index_error_message=why)
                for index, why in error.record_errors
            ]
        elif isinstance(error, NotAdmitted):
            answer.error_message = error.explanation
        elif error.error is not Error.KAFKA_STORAGE_ERROR:
            answer.error_message = None
        return answer

    def exists(self, topic: ProduceRequest.Topic, index: int) -> bool:
        hosted = self.ctx.replicas.hosted(self._key(topic))
        return hosted is not None and index in hosted.partitions

    def not_admitted(self, topic: ProduceRequest.Topic, index: int) -> KafkaError | None:
        """Why the coordinator keeps the batch for a partition out of its transaction, if it does."""
        hosted = self.ctx.replicas.hosted(self._key(topic))
        verdict = self.verdicts.get((hosted.name, index)) if self.verdicts and hosted else None
        return verdict if isinstance(verdict, KafkaError) else None

    def check_exists(self, topic: ProduceRequest.Topic, index: int) -> None:
        self.ctx.replicas.find(self._key(topic), index)

    def fail(self, error: KafkaError) -> None:
        """The write failed after all, and with acks=0 there is no answer that could say so."""
        self.ctx.connection.abort(f"a produce with acks=0 was lost: {error.message}")

    def _key(self, topic: ProduceRequest.Topic) -> bytes | str:
        """What the request calls a topic by."""
        return topic.topic_id if self.ctx.version >= IDS_SINCE else topic.name


async def _acknowledged(waits: list[Wait], acks: int, timeout_s: float, loop: asyncio.AbstractEventLoop) -> bool:
    """Wait for all partitions together; whoever is not safe in time is told so, though its records stay in the log."""
    deadline, all_safe = loop.time() + timeout_s, True
    for partition, offset, mark, answer in waits:
        if answer.error_code:
            continue  # its write failed while we waited for another
        try:
            await partition.acknowledged(offset, max(deadline - loop.time(), 0.0), mark)
            if acks == ALL_ACK and partition.is_short_after_append:
                raise KafkaError(Error.NOT_ENOUGH_REPLICAS_AFTER_APPEND)
        except TimeoutError:
            answer.error_code = Error.REQUEST_TIMED_OUT.code
        except KafkaError as error:
            answer.error_code, all_safe = error.code, False
    return all_safe


async def _prepare(request: ProduceRequest, ctx: Context, usual: bool) -> Prepared:
    """Batches whose records have to be looked at (a codec of the topic's own, keys that must be there, timestamps out of the
    ordinary) are prepared in another process if they are large, or many; the others are done in place by the append. By the id
    of the request's partition object."""
    by_id, now_ms, left = ctx.version >= IDS_SINCE, ctx.now_ms, INLINE_REQUEST_BYTES_MAX
    work = []
    for topic in request.topic_data:
        hosted = ctx.replicas.hosted(topic.topic_id if by_id else topic.name)
        if hosted is None or (usual and not hosted.settings.looks_inside):
            continue
        for part in topic.partition_data:
            size = bytes_to_walk(part.records or b"", hosted.settings, now_ms)
            left -= size
            if size > INLINE_BYTES_MAX or (size and left < 0):
                work.append((part, hosted.settings))
    if not work:
        return {}
    _keep_records(request)
    prepared: Prepared = {}
    for part, settings in work:
        try:
            prepared[id(part)] = await ctx.node.world.workshop.work(prepare, bytes(part.records), settings, now_ms)
        except KafkaError as error:
            prepared[id(part)] = error
    return prepared


def _keep_records(request: ProduceRequest) -> None:
    """The frame they lie in is gone after the first wait."""
    for topic in request.topic_data:
        for part in topic.partition_data:
            if part.records is not None:
                part.records = memoryview(bytearray(part.records))


# --- transactions


def _in_transaction(request: ProduceRequest, ctx: Context) -> Told | Coroutine[Any, Any, Told]:
    """Where its transaction is open already, there is nothing to ask."""
    manner = manner_of(ctx.version)
    try:
        wanted, producer = _entering(request, ctx)
        entrant = Entrant(request.transactional_id or "", *producer, manner)
        verdicts = verifying.guard(ctx.node, entrant, wanted)
    except KafkaError as error:
        appending = Appending(request.acks, {}, ctx, ctx.now_ms)
        return appending.told(request, _refuse_all(request, appending, error))
    if verifying.must_wait(ctx.node, entrant, verdicts):
        return _when_admitted(request, ctx, entrant, verdicts)
    _put_in_words(verdicts, manner)
    now_ms = ctx.now_ms
    usual = is_usual(request, ctx, now_ms, True)
    if not usual or ctx.node.replicas.looking_inside:
        return _look_inside(request, ctx, verdicts, usual)
    appending = Appending(request.acks, {}, ctx, now_ms, verdicts)
    answer = appending.answer(request, usual)
    return _when_safe(request, ctx, appending, answer) if appending.waits else answer


async def _when_admitted(
    request: ProduceRequest, ctx: Context, entrant: Entrant, verdicts: dict[Place, Verdict]
) -> Told:
    _keep_records(request)
    await verifying.ask(ctx.node, entrant, verdicts)
    _put_in_words(verdicts, entrant.manner)
    return await _look_inside(request, ctx, verdicts, is_usual(request, ctx, ctx.now_ms, True))


def manner_of(version: int) -> Manner:
    if version >= GENERATION_2_SINCE:
        return Manner.ADDS
    return Manner.ABORTS if version >= ABORTABLE_SINCE else Manner.OLD


def _entering(request: ProduceRequest, ctx: Context) -> tuple[dict[Place, int], tuple[int, int]]:
    """The partitions here to which batches of a transaction want, each with its sequence; and the one producer they are of."""
    wanted: dict[Place, int] = {}
    producers: dict[tuple[int, int], None] = {}
    for topic in request.topic_data:
        hosted = ctx.replicas.hosted(topic.topic_id if ctx.version >= IDS_SINCE else topic.name)
        for part in topic.partition_data:
            try:
                length, magic, attributes, producer_id, epoch, sequence = _glance_at_producer(part.records)
            except (StructError, TypeError):
                _look_at_all(request)
                continue  # there is no room in it for a producer
            is_whole = magic == 2 and length + PREFIX_BYTES == len(part.records)
            if not is_whole and not _begins_in_transaction(part, request):
                continue
            if attributes & TRANSACTIONAL_BIT and producer_id >= 0 and hosted and part.index in hosted.partitions:
                wanted[hosted.name, part.index] = sequence
                producers[producer_id, epoch] = None
    if len(producers) > 1:
        raise KafkaError(Error.INVALID_PRODUCER_ID_MAPPING, "Transactional records contained more than one producer ID")
    return wanted, next(iter(producers), (-1, -1))


def _begins_in_transaction(part: Part, request: ProduceRequest) -> bool:
    """Of a part that is not just one batch. For some faults Kafka refuses all of the request: then nothing is asked."""
    _look_at_all(request)
    try:
        return _is_transactional(part)
    except KafkaError:
        return False


def _put_in_words(verdicts: dict[Place, Verdict], manner: Manner) -> None:
    for place, verdict in verdicts.items():
        if isinstance(verdict, KafkaError):
            verdicts[place] = verifying.for_producer(verdict.error, manner)


# --- the long way round


def sort_out(request: ProduceRequest, appending: Appending) -> list[TopicAnswer]:
    """Append what may be appended of an unusual request.

    As in Kafka each partition is answered once: of one that is named twice the last sound batch is appended, and a fault
    found in any of its batches is the answer.
    """
    appending.unusual = appending.careful = True
    version = appending.ctx.version
    try:
        _look_at_all(request)
        if version < ZSTD_SINCE:
            _look_for_codecs(request, appending)
        _look_for_nulls(request, appending)
    except KafkaError as error:
        return _refuse_all(request, appending, error)
    answers = []
    for topic in _merged(request.topic_data):
        chosen: dict[int, Part] = {}
        faults: dict[int, KafkaError] = {}
        for part in topic.partition_data:
            try:
                appending.check_exists(topic, part.index)
                if part.records is None:
                    continue  # a later batch for the same partition stands in for it
                part.records = _checked(part, version)
                chosen[part.index] = part
            except KafkaError as error:
                faults[part.index] = error
        topic.partition_data = list(chosen.values())
        told = {answer.index: answer for answer in _appended(topic, appending)}
        told |= {index: appending.refuse(Answer(index=index), error) for index, error in faults.items()}
        answers.append(TopicAnswer(name=topic.name, topic_id=topic.topic_id, partition_responses=list(told.values())))
    return answers


def _appended(topic: ProduceRequest.Topic, appending: Appending) -> list[Answer]:
    if appending.acks in (ALL_ACK, LEADER_ACK, NO_ACK):
        return appending.topic(topic).partition_responses
    wrong = KafkaError(Error.INVALID_REQUIRED_ACKS)
    indexes = [part.index for part in topic.partition_data]
    return [appending.refuse(Answer(index=index), appending.not_admitted(topic, index) or wrong) for index in indexes]


def _merged(topics: Topics) -> Topics:
    """Each topic once, without those that name no partition."""
    merged: dict[tuple[str, bytes], ProduceRequest.Topic] = {}
    for topic in topics:
        if topic.partition_data:
            known = merged.setdefault((topic.name, topic.topic_id), topic)
            if known is not topic:
                known.partition_data += topic.partition_data
    return list(merged.values())


def _look_at_all(request: ProduceRequest) -> None:
    """Faults for which Kafka refuses the whole request, up to the first batch in a transaction."""
    for topic in request.topic_data:
        for part in topic.partition_data:
            if _is_transactional(part):
                if request.transactional_id is None:
                    raise KafkaError(Error.TRANSACTIONAL_ID_AUTHORIZATION_FAILED)
                return


def _look_for_codecs(request: ProduceRequest, appending: Appending) -> None:
    """Before zstd Kafka asked each batch for its codec, and one that does not exist fails the request."""
    for topic in request.topic_data:
        for part in topic.partition_data:
            if _has_unknown_codec(part) and appending.exists(topic, part.index):
                raise KafkaError(Error.UNKNOWN_SERVER_ERROR)


def _look_for_nulls(request: ProduceRequest, appending: Appending) -> None:
    """Kafka dies of a partition without records and never answers. Nothing of such a request is appended here either."""
    last = {(t.name, t.topic_id, part.index): (t, part) for t in request.topic_data for part in t.partition_data}
    if any(part.records is None and appending.exists(topic, part.index) for topic, part in last.values()):
        raise KafkaError(Error.INVALID_RECORD)


def _has_unknown_codec(part: Part) -> bool:
    try:
        batch = _first_batch(part.records)
    except KafkaError:
        return False
    return batch is not None and len(batch) >= HEADER_BYTES and batch[MAGIC_AT] == 2 and batch[22] & 7 >= len(MARKS)


def _is_transactional(part: Part) -> bool:
    batch = _first_batch(part.records)
    return batch is not None and batch[MAGIC_AT] == 2 and len(batch) > 22 and bool(batch[22] & TRANSACTIONAL_BIT)


def _first_batch(data: Bytes | None) -> memoryview | None:
    """The bytes of the first whole batch, if there is one. CORRUPT_MESSAGE for what cannot be the start of one."""
    records = memoryview(data or b"")
    if len(records) < PREFIX_BYTES:
        return None
    length = int.from_bytes(records[8:12], "big", signed=True)
    if length > LENGTH_MAX:
        raise KafkaError(Error.UNKNOWN_SERVER_ERROR)  # Kafka's number for the whole batch overflows
    if length < OLDEST_RECORD_BYTES:
        raise KafkaError(Error.CORRUPT_MESSAGE, f"a batch of {length} bytes")
    if len(records) > MAGIC_AT and records[MAGIC_AT] > 2:
        raise KafkaError(Error.CORRUPT_MESSAGE, f"record format {records[MAGIC_AT]} does not exist")
    return None if len(records) < PREFIX_BYTES + length else records[: PREFIX_BYTES + length]


def _checked(part: Part, version: int) -> memoryview:
    """The one batch that a client may send for a partition. What follows it without being a batch is dropped."""
    batch = _first_batch(part.records)
    if batch is None or batch[MAGIC_AT] != 2:
        raise KafkaError(Error.INVALID_RECORD, "no batch of record format 2")
    if version < ZSTD_SINCE and len(batch) > 22 and batch[22] & 7 == ZSTD:
        raise KafkaError(Error.UNSUPPORTED_COMPRESSION_TYPE, f"zstd came with version {ZSTD_SINCE}")
    if _first_batch(memoryview(part.records)[len(batch) :]) is not None:
        raise KafkaError(Error.INVALID_RECORD, "more than one batch for a partition")
    return batch


def _check_codec(part: Part) -> None:
    records = part.records
    if records is None or len(records) < HEADER_BYTES or not _begins_as_said(records, records[22] & 7, ZSTD_SINCE):
        raise KafkaError(Error.UNKNOWN_SERVER_ERROR)


def _refuse_all(request: ProduceRequest, appending: Appending, error: KafkaError) -> list[TopicAnswer]:
    appending.failed = True
    refused = []
    for topic in _merged(request.topic_data):
        indexes = dict.fromkeys(part.index for part in topic.partition_data)
        parts = [Answer(index=index) for index in indexes]
        for answer in parts:
            answer.fail(error)
            if error.error not in (Error.CORRUPT_MESSAGE, Error.INVALID_PRODUCER_ID_MAPPING):
                answer.error_message = None
        refused.append(TopicAnswer(name=topic.name, topic_id=topic.topic_id, partition_responses=parts))
    return refused
