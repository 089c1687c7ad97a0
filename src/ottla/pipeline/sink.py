"""The write side of `format("ottla")`: options, and the two writers that Spark calls.

`write` runs in the tasks and only encodes (`rows.py`); `commit` runs once, on the driver, and sends (`committing.py`). Spark
makes a new writer for each: all they share is what the tasks return.

    topic              where rows go; wins over a column `topic`
    sinkId             the name under which this query writes, and by which what it wrote is known again: its transactional
                       id and the group of its marker. By default `ottla-sink-<topic>`: so a query that has lost its
                       checkpoint is noticed, which it could not be by a name that comes from the checkpoint. Two queries
                       that write to one topic need two names (the second is refused until it has its own), and so does a
                       stream whose topics come from a column
    delivery           exactly-once, or at-least-once for brokers without transactions
    acceptCheckpoint   the id of a query that may go on although its checkpoint does not fit to what was written; or `any`
    advice             in whose words a refusal says what to do: `options` of a DataFrame, or those of a pipeline's `file`,
                       which is how pipelines call this
    operationId        of a batch write: written once under this name, and skipped when it is repeated. Without one, a batch
                       write is a transaction (all or nothing) that is written again when it is repeated
    queryId, batchId   of a batch write inside of `foreachBatch`: whose micro-batch it is. It is then written as a stream
                       writes: skipped when it is repeated, refused when it does not fit to what was written
    checkpointLocation Spark's own, of a stream; and beside queryId and batchId that of their query. By what it says of a
                       micro-batch one that is repeated is told from another with its number (`plans.py`)
    tooLarge           what becomes of a row that the topic does not take: `fail`, or `cut`, and its first bytes are written
    spoolAbove         a task with more bytes than this hands them to the driver in a file (1 MiB)
    spoolPath          where such files are: a directory that all machines see, or a URI of an object store
"""

from __future__ import annotations

import random
import re
import uuid
from collections.abc import Callable, Coroutine, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

import pyarrow as pa
from pyspark import TaskContext
from pyspark.sql.datasource import (
    DataSourceArrowWriter,
    DataSourceStreamArrowWriter,
    WriterCommitMessage,
)
from pyspark.sql.types import (
    ArrayType,
    BinaryType,
    DataType,
    IntegerType,
    StringType,
    StructType,
)

from ottla.client.admin import Admin
from ottla.client.cluster import Cluster
from ottla.pipeline.advice import BY_NAME, Advice
from ottla.pipeline.blocking import Broker
from ottla.pipeline.committing import Batches, MicroBatch, Sink, SinkError, commit_once, commit_whole, deliver
from ottla.pipeline.options import BadOption, Connect, Text, refuse_unknown
from ottla.pipeline.plans import plan_of
from ottla.pipeline.rows import NO_TOPIC, Encoder, Shape
from ottla.pipeline.spool import Filling, Parcel, Spool
from ottla.wire.compression import Codec
from ottla.wire.errors import Error, KafkaError
from ottla.world import wall_clock_ms

WRITE_OPTIONS = (
    "topic",
    "sinkId",
    "delivery",
    "acceptCheckpoint",
    "advice",
    "operationId",
    "queryId",
    "batchId",
    "tooLarge",
    "spoolAbove",
    "spoolPath",
    # Spark's own, which come along.
    "checkpointLocation",
    "queryName",
    "path",
    "includeHeaders",
)
REFUSED_WHEN_WRITING = {
    "key.serializer": "keys are strings or binary columns; use columns of the DataFrame to encode them",
    "value.serializer": "values are strings or binary columns; use columns of the DataFrame to encode them",
    "transactional.id": "set sinkId, which is used as the transactional id",
    "partitioner.class": "rows go to the column partition, or by key as with Java's default partitioner",
    "interceptor.classes": "there is no Java producer here that could call them",
}
EXACTLY_ONCE, AT_LEAST_ONCE = "exactly-once", "at-least-once"
FAIL, CUT = "fail", "cut"
SINK_PREFIX = "ottla-sink-"
BATCH_BYTES = 512 << 10
REQUEST_BYTES_MAX = 1 << 20
SPOOL_ABOVE_BYTES = 1 << 20
DELIVERY_MS = 120_000
# A topic that is not there is made by the broker if it does such things; it is not waited for much longer than that takes.
TOPIC_SECONDS = 5.0
QUERY_ID = "sql.streaming.queryId"


def stream_writer(options: Mapping[str, str], schema: StructType, overwrite: bool) -> StreamWriter:
    """`overwrite` (output mode complete) is appended, as Spark's Kafka sink does: a topic cannot be rewritten."""
    writing = Writing.of(options, schema)
    for name in ("operationId", "queryId", "batchId"):
        if Text(options).get(name) is not None:
            raise BadOption(f"{name} is for batch writes: a stream numbers its batches itself")
    return StreamWriter(writing)


def batch_writer(options: Mapping[str, str], schema: StructType, overwrite: bool) -> BatchWriter:
    if overwrite:
        raise BadOption(
            "Save mode Overwrite not allowed for Kafka. Allowed save modes are Append and ErrorIfExists (default): "
            "a topic is only ever appended to; write .mode('append')"
        )
    return BatchWriter(Writing.of(options, schema, named=_has_a_name(Text(options))))


def _has_a_name(text: Text) -> bool:
    """Whether a batch write is to be known again. One that is not has a name of its own each time, and needs none."""
    return any(text.get(name) is not None for name in ("operationId", "queryId", "batchId"))


@dataclass(frozen=True)
class Writing:
    """Everything that was said about what to write, and how."""

    connect: Connect
    topic: str | None
    sink: Sink
    exactly_once: bool
    operation_id: str | None
    micro_batch: MicroBatch | None
    checkpoint: str | None
    codec: int
    level: int | None
    batch_bytes: int
    request_bytes_max: int
    cuts: bool
    ignores_keys: bool
    spool_path: str | None
    spool_above_bytes: int

    @classmethod
    def of(cls, options: Mapping[str, str], schema: StructType, *, named: bool = True) -> Writing:
        refuse_unknown(options, WRITE_OPTIONS)
        text, connect = Text(options), Connect.of(options)
        _refuse_settings(connect.settings)
        topic = _topic(text)
        _check_columns(schema, topic)
        exactly_once = _delivery(text)
        codec, level = _compression(text)
        return cls(
            connect=connect,
            topic=topic,
            sink=Sink(
                _sink_id(text, topic, named and exactly_once),
                text.get("acceptCheckpoint"),
                text.number("kafka.transaction.timeout.ms"),
                (text.number("kafka.delivery.timeout.ms") or DELIVERY_MS) / 1000,
                _advice(text),
            ),
            exactly_once=exactly_once,
            operation_id=text.get("operationId") or None,
            micro_batch=_micro_batch(text),
            checkpoint=text.get("checkpointLocation"),
            codec=codec,
            level=level,
            batch_bytes=text.number("kafka.batch.size", BATCH_BYTES, least=0) or 1,
            request_bytes_max=text.number("kafka.max.request.size") or REQUEST_BYTES_MAX,
            cuts=_cuts(text),
            ignores_keys=text.flag("kafka.partitioner.ignore.keys", False),
            spool_path=text.get("spoolPath") or None,
            spool_above_bytes=text.number("spoolAbove", SPOOL_ABOVE_BYTES, least=0) or 0,
        )


def _topic(text: Text) -> str | None:
    topic = text.get("topic")
    if topic == "":  # a name that was to be filled in, and was not: rows would go where a column of theirs says
        raise BadOption("topic is empty: name a topic, or leave the option out where a column 'topic' names it")
    return topic


def _micro_batch(text: Text) -> MicroBatch | None:
    query, number = text.get("queryId"), text.number("batchId", least=0)
    if query and number is not None and text.get("operationId") is None:
        return MicroBatch(query, number)
    if query or number is not None:
        raise BadOption("queryId and batchId belong together, and to no operationId")
    return None


def _refuse_settings(settings: Mapping[str, str]) -> None:
    for name, instead in REFUSED_WHEN_WRITING.items():
        if name in settings:
            raise BadOption(f"kafka.{name} is not for this sink: {instead}")
    if settings.get("acks", "all").lower() not in ("all", "-1"):
        raise BadOption(f"kafka.acks is {settings['acks']!r}: this sink writes with acks=all, and nothing less is safe")


def _advice(text: Text) -> Advice:
    value = text.get("advice") or "options"
    if value not in BY_NAME:
        raise BadOption(f"advice is {value!r}: write {' or '.join(BY_NAME)}")
    return BY_NAME[value]


def _delivery(text: Text) -> bool:
    value = text.get("delivery") or EXACTLY_ONCE
    if value.lower() not in (EXACTLY_ONCE, AT_LEAST_ONCE):
        raise BadOption(f"delivery is {value!r}: write {EXACTLY_ONCE} or {AT_LEAST_ONCE}")
    return value.lower() == EXACTLY_ONCE


def _cuts(text: Text) -> bool:
    value = (text.get("tooLarge") or FAIL).lower()
    if value not in (FAIL, CUT):
        raise BadOption(f"tooLarge is {value!r}: write {FAIL} or {CUT}")
    return value == CUT


def _sink_id(text: Text, topic: str | None, named: bool) -> str:
    given = text.get("sinkId")
    if given == "":
        raise BadOption("sinkId is empty: write a name for this query that no other query has")
    if given is None and topic is None and named:
        raise BadOption(
            "sinkId is missing: topics come from a column here, so it has no default. Write a name for this query that no "
            "other query has and that stays the same, as .option('sinkId', 'orders-by-country'). By it the sink knows what "
            "was written already, also when the checkpoint is lost"
        )
    return given or f"{SINK_PREFIX}{topic or 'topics'}"


def _compression(text: Text) -> tuple[int, int | None]:
    name = (text.get("kafka.compression.type") or "none").upper()
    if name not in Codec.__members__:
        raise BadOption(f"kafka.compression.type is {name.lower()!r}: write none, gzip, snappy, lz4 or zstd")
    value = text.get(f"kafka.compression.{name.lower()}.level")
    if value is not None and not re.fullmatch(r"-?\d+", value):
        raise BadOption(f"kafka.compression.{name.lower()}.level is {value!r}: write a whole number")
    return Codec[name], None if value is None else int(value)


# Columns, with the words of Spark's own connector.

_HEADER_TYPE = "array<struct<key:string,value:binary>>"
_TAKEN: dict[str, tuple[tuple[type[DataType], ...], str]] = {
    "topic": ((StringType,), "string"),
    "key": ((StringType, BinaryType), "string or binary"),
    "value": ((StringType, BinaryType), "string or binary"),
    "partition": ((IntegerType,), "int"),
}


def _check_columns(schema: StructType, topic: str | None) -> None:
    """As the connector: names are taken letter by letter, and a column that the option replaces may be anything."""
    found = {field.name: field.dataType for field in schema.fields if topic is None or field.name != "topic"}
    if topic is None and "topic" not in found:
        raise BadOption(NO_TOPIC)
    if "value" not in found:
        raise BadOption("Required attribute 'value' not found: name the column to be written, as in col AS value")
    for name, (types, expected) in _TAKEN.items():
        if name in found and not isinstance(found[name], types):
            raise _wrong_type(name, found[name], expected)
    if "headers" in found and not _are_headers(found["headers"]):
        raise _wrong_type("headers", found["headers"], _HEADER_TYPE)


def _wrong_type(name: str, kind: DataType, expected: str) -> BadOption:
    return BadOption(f"{name} attribute unsupported type {kind.simpleString()}. {name} must be a(n) {expected}")


def _are_headers(kind: DataType) -> bool:
    entry = kind.elementType if isinstance(kind, ArrayType) else None
    if not isinstance(entry, StructType) or len(entry.fields) != 2:
        return False
    name, value = entry.fields
    shaped = (name.name.lower(), value.name.lower()) == ("key", "value")
    return shaped and isinstance(name.dataType, StringType) and isinstance(value.dataType, BinaryType)


# In the tasks.


@dataclass
class Message(WriterCommitMessage):
    """What a task returns: its batches, where the driver finds what is too much for a message, and whose they are."""

    parcel: Parcel
    spool: Spool
    query_id: str | None


def encode(writing: Writing, spool: Spool, rows: Iterator[pa.RecordBatch]) -> Message:
    context = TaskContext.get()
    with writing.connect.broker() as broker, Filling(spool, writing.spool_above_bytes) as filling:
        encoder = Encoder(
            _remembering(partial(_shape_of, broker, writing)),
            topic=writing.topic,
            now_ms=wall_clock_ms,
            codec=writing.codec,
            level=writing.level,
            batch_bytes=writing.batch_bytes,
            start=random.randrange(1 << 16),
            cuts=writing.cuts,
            ignores_keys=writing.ignores_keys,
        )
        for part in rows:
            for made in encoder.add(part):
                filling.add(made)
        for made in encoder.finish():
            filling.add(made)
        return Message(filling.seal(), spool, None if context is None else context.getLocalProperty(QUERY_ID))


def _remembering(ask: Callable[[str], Shape]) -> Callable[[str], Shape]:
    known: dict[str, Shape] = {}

    def shape_of(topic: str) -> Shape:
        if topic not in known:
            known[topic] = ask(topic)
        return known[topic]

    return shape_of


def _shape_of(broker: Broker, writing: Writing, topic: str) -> Shape:
    try:
        partitions = broker.run(_partition_count(broker.cluster, topic))
    except KafkaError as error:
        if error.error is Error.UNKNOWN_TOPIC_OR_PARTITION:
            raise SinkError(f"there is no topic {topic!r}: create it, or let the broker (auto.create.topics.enable)")
        raise SinkError(f"topic {topic!r} cannot be written: {error.message}")
    allowed = broker.run(_message_bytes_max(broker.cluster, topic))
    if allowed is not None and allowed < writing.request_bytes_max:
        return Shape(partitions, allowed, "max.message.bytes of the topic")
    if allowed is None and writing.cuts:  # a broker that refuses it would refuse it each time
        return Shape(partitions, min(writing.request_bytes_max, REQUEST_BYTES_MAX))
    return Shape(partitions, writing.request_bytes_max)


async def _partition_count(cluster: Cluster, topic: str) -> int:
    """Brokers that are away may come back, and are waited for; a topic that they do not know is not, or not for long."""
    try:
        return await cluster.partition_count(topic, create=True, budget_s=TOPIC_SECONDS)
    except OSError:
        await cluster.retrying(cluster.any)
        return await cluster.partition_count(topic, create=True, budget_s=TOPIC_SECONDS)


async def _message_bytes_max(cluster: Cluster, topic: str) -> int | None:
    """What the topic takes; whoever may not ask finds out when he writes."""
    try:
        settings = await cluster.retrying(lambda: Admin(cluster).configs(topic))
    except KafkaError:
        return None
    found = [setting.value for setting in settings if setting.name == "max.message.bytes"]
    return int(found[0]) if found and found[0] else None


# On the driver.


class StreamWriter(DataSourceStreamArrowWriter):
    """Spark makes one before the tasks of each micro-batch, and another to commit or abort what they have made."""

    def __init__(self, writing: Writing) -> None:
        self.writing = writing
        name = writing.sink.sink_id
        # Nobody keeps others from writing at least once under the same name: each has a place of its own.
        self.spool = _spool(writing, name if writing.exactly_once else f"{name}/{uuid.uuid4().hex}")

    def write(self, iterator: Iterator[pa.RecordBatch]) -> Message:
        return encode(self.writing, self.spool, iterator)

    def commit(self, messages: Sequence[WriterCommitMessage | None], batchId: int) -> None:
        made, sink = _all(messages), self.writing.sink
        if self.writing.exactly_once:
            micro_batch = MicroBatch(_query_id(made), batchId, plan_of(self.writing.checkpoint, batchId))
            _send(
                self.writing,
                made,
                lambda cluster, batches, size: commit_once(cluster, sink, micro_batch, batches, size),
            )
        else:
            _send(self.writing, made, lambda cluster, batches, _: deliver(cluster, sink, batches))
        for spool in {self.spool, *(message.spool for message in made)}:
            spool.clear()

    def abort(self, messages: Sequence[WriterCommitMessage | None], batchId: int) -> None:
        """Spark calls this also after a commit that took effect and then failed: there is nothing here to undo."""
        for spool in {self.spool, *(message.spool for message in _made(messages))}:
            spool.give_up()


class BatchWriter(DataSourceArrowWriter):
    """One for the tasks and for the end: Spark carries it from one process to the other."""

    def __init__(self, writing: Writing) -> None:
        self.writing = writing
        self.sink, self.micro_batch = writing.sink, writing.micro_batch
        if self.micro_batch is not None:
            plan = plan_of(writing.checkpoint, self.micro_batch.batch_id)
            self.micro_batch = self.micro_batch._replace(plan=plan)
        if self.micro_batch is None:
            name = writing.operation_id or uuid.uuid4().hex
            self.sink = writing.sink._replace(sink_id=f"{writing.sink.sink_id}/{name}")
        if writing.operation_id is not None:
            self.micro_batch = MicroBatch(writing.operation_id, 0)
        self.spool = _spool(writing, self.sink.sink_id)

    def write(self, iterator: Iterator[pa.RecordBatch]) -> Message:
        return encode(self.writing, self.spool, iterator)

    def commit(self, messages: Sequence[WriterCommitMessage | None]) -> None:
        made, sink, micro_batch = _all(messages), self.sink, self.micro_batch
        if not self.writing.exactly_once:
            _send(self.writing, made, lambda cluster, batches, _: deliver(cluster, sink, batches))
        elif micro_batch is None:
            _send(self.writing, made, lambda cluster, batches, size: commit_whole(cluster, sink, batches, size))
        else:
            _send(
                self.writing,
                made,
                lambda cluster, batches, size: commit_once(cluster, sink, micro_batch, batches, size),
            )
        self.spool.clear()

    def abort(self, messages: Sequence[WriterCommitMessage | None]) -> None:
        self.spool.give_up()


def _spool(writing: Writing, name: str) -> Spool:
    """Of this name on this cluster: a sink elsewhere may have the same."""
    return Spool.prepare(writing.spool_path, f"{writing.connect.bootstrap}/{name}")


def _send(
    writing: Writing, made: Sequence[Message], delivery: Callable[[Cluster, Batches, int], Coroutine[Any, Any, object]]
) -> None:
    """Hand everything that the tasks have made to `delivery`."""
    total_bytes = sum(message.parcel.size for message in made)
    with writing.connect.broker() as broker:
        broker.run(delivery(broker.cluster, _batches(made), total_bytes))


def _batches(made: Iterable[Message]) -> Batches:
    for message in made:
        yield from message.spool.read(message.parcel)


def _all(messages: Sequence[WriterCommitMessage | None]) -> list[Message]:
    """What is committed, is committed whole."""
    made = _made(messages)
    if len(made) != len(messages):
        raise SinkError(
            f"{len(messages) - len(made)} of {len(messages)} tasks have not said what they made: not written"
        )
    return made


def _made(messages: Iterable[WriterCommitMessage | None]) -> list[Message]:
    return [message for message in messages if isinstance(message, Message)]


def _query_id(made: Sequence[Message]) -> str:
    found = {message.query_id for message in made}
    if len(found) != 1 or None in found:
        raise SinkError(f"Spark does not say which query this is ({QUERY_ID}); exactly-once output cannot do without")
    return str(found.pop())
