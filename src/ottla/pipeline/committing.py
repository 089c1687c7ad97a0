"""What the driver does with the parcels of its tasks: it writes them all, once, or not at all.

Tasks only encode. They may fail, run twice, or see other rows the second time: nothing they do is visible. When all are
done, the driver writes everything in one transaction, and with it a *marker*: which query has come how far. Whoever
comes later reads the marker first.

    look               is it refused anyway? then nobody else is disturbed
    InitProducerId     the sink's id is the transactional id: a driver from before is shut out, its transaction ended
    read the marker    is this batch written already? is it the next one? (no broker's word that there are no markers counts
                       before the controller's)
    begin, produce     what the tasks have made, as it is
    marker, commit     both become visible together, or neither

    marker says            the batch of this query is
    nothing                0: write it. Another: refused, because a marker is missing, not "not yet written"
    next is this one       to be written
    next is one more       written already: skipped. Spark repeats its last batch after a failure, and no other. If it was
                           planned otherwise (`plans.py`), it is none: refused, because the checkpoint is older
    anything else          refused: the checkpoint is older than the output (a backup?), or batches are missing
    another query          refused: the checkpoint was lost, or two queries use one sink id

A refusal is the user's to overrule, for one query by its id (`acceptCheckpoint`).

The marker is kept twice, in the same transaction. As an offset of the group that has the sink's name: one question, one
answer. But a broker forgets offsets some time after the last commit (`offsets.retention.minutes`, seven days), and a query
may stand still for longer; so it is also a record in a compacted topic, which nothing expires, and which is read from its
start when the offset is gone. Both work on any broker that has transactions.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
from collections.abc import AsyncIterator, Iterable, Iterator
from enum import Enum
from typing import NamedTuple

from ottla.client.admin import Admin
from ottla.client.cluster import EARLIEST, LATEST, Cluster, NoTopic, TopicPartition
from ottla.client.commits import Committed, fetch
from ottla.client.consumer import Consumer
from ottla.client.coordinator import Coordinator
from ottla.client.producer import Producer
from ottla.client.transactions import FENCED
from ottla.pipeline.advice import OPTIONS, Advice
from ottla.pipeline.options import PROGRESS_TOPIC
from ottla.pipeline.plans import UNKNOWN
from ottla.pipeline.spool import Entry
from ottla.wire.errors import Error, KafkaError

PROGRESS = TopicPartition(PROGRESS_TOPIC, 0)
PROGRESS_SETTINGS = {
    "cleanup.policy": "compact",
    "min.cleanable.dirty.ratio": "0.1",
    "segment.bytes": str(8 << 20),
    "segment.ms": str(24 * 3_600_000),
}
ANY = "any"
LOOK_SECONDS = 1.0

# A transaction may take this long, and longer by what it has to write at the least speed that is expected.
TIMEOUT_MS = 60_000
TIMEOUT_MS_MAX = 900_000
BYTES_PER_MS_MIN = 10_000

Batches = Iterable[tuple[Entry, bytearray]]


class SinkError(RuntimeError):
    """The batch was not written, or it is not known whether it was. The message says why, and what can be done."""


class Fenced(SinkError):
    """Somebody else writes under this sink's id."""


class Refused(SinkError):
    """What the checkpoint says and what the output says do not fit."""


class MicroBatch(NamedTuple):
    """One batch of one query; of a batch write, its operation and 0. The plan tells it from another of that number."""

    query_id: str
    batch_id: int
    plan: str = UNKNOWN


class Marker(NamedTuple):
    """How far a query has come, and the plan of the last batch."""

    query_id: str
    next_batch: int
    plan: str = UNKNOWN

    @classmethod
    def behind(cls, done: MicroBatch) -> Marker:
        return cls(done.query_id, done.batch_id + 1, done.plan)

    @classmethod
    def of_offset(cls, offset: Committed) -> Marker:
        query_id, _, plan = (offset.metadata or "").partition("\n")
        return cls(query_id, offset.offset, plan)

    def as_offset(self) -> Committed:
        return Committed(self.next_batch, metadata="\n".join(filter(None, (self.query_id, self.plan))))


class Outcome(Enum):
    WRITTEN = "written"
    SKIPPED = "written before"


class Sink(NamedTuple):
    """Who writes, and how long it may take."""

    sink_id: str
    accept: str | None = None
    transaction_timeout_ms: int | None = None
    delivery_s: float = 120.0
    advice: Advice = OPTIONS

    def timeout_ms(self, total_bytes: int) -> int:
        return self.transaction_timeout_ms or min(TIMEOUT_MS + total_bytes // BYTES_PER_MS_MIN, TIMEOUT_MS_MAX)


def judge(marker: Marker | None, micro_batch: MicroBatch, sink: Sink) -> Outcome:
    """What is to be done with this batch: write it, or skip it; or raise."""
    found = outcome_of(marker, micro_batch)
    if found is None and sink.accept in (ANY, micro_batch.query_id):
        return Outcome.WRITTEN
    if found is None:
        raise Refused(f"{_misfit(marker, micro_batch, sink)} {_way_out(micro_batch, sink.advice)}")
    return found


def outcome_of(marker: Marker | None, micro_batch: MicroBatch) -> Outcome | None:
    """The rule of the table above, wherever markers are kept; None if the two do not belong together."""
    if marker is None:
        return Outcome.WRITTEN if micro_batch.batch_id == 0 else None
    if marker.query_id != micro_batch.query_id:
        return None
    if marker.next_batch == micro_batch.batch_id:
        return Outcome.WRITTEN
    is_same = marker.plan == micro_batch.plan or UNKNOWN in (marker.plan, micro_batch.plan)
    return Outcome.SKIPPED if marker.next_batch == micro_batch.batch_id + 1 and is_same else None


def _misfit(marker: Marker | None, micro_batch: MicroBatch, sink: Sink) -> str:
    (query_id, batch_id, _), sink_id = micro_batch, sink.sink_id
    if marker is None:
        return (
            f"The checkpoint of query {query_id} has come to batch {batch_id}, but nothing says that the sink "
            f"{sink_id!r} has ever written: its marker in topic {PROGRESS_TOPIC} is missing. {sink.advice.renamed}, "
            "or does this query write to another cluster now?"
        )
    if marker.query_id != query_id:
        return (
            f"The sink {sink_id!r} was written by query {marker.query_id} (up to batch {marker.next_batch - 1}), and "
            f"this is query {query_id} with batch {batch_id}: it has a new checkpoint, and might write again what "
            f"is there already. {sink.advice.two_queries}"
        )
    if marker.next_batch > batch_id:
        return (
            f"Query {query_id} has written up to batch {marker.next_batch - 1} to sink {sink_id!r}, and comes with "
            f"batch {batch_id} now: its checkpoint is an older copy, and its batches may hold other rows than those "
            "of these numbers that were written."
        )
    return (
        f"Query {query_id} has written up to batch {marker.next_batch - 1} to sink {sink_id!r}, and comes with batch "
        f"{batch_id} now: the batches between were not written by this sink."
    )


def _way_out(micro_batch: MicroBatch, advice: Advice) -> str:
    accept = advice.accept.format(micro_batch.query_id)
    return f"Nothing was written. To go on from this checkpoint all the same, {accept}."


# Delivery.


async def commit_once(
    cluster: Cluster, sink: Sink, micro_batch: MicroBatch, batches: Batches, total_bytes: int
) -> Outcome:
    """Write this batch exactly once, however often it is tried."""
    await _look_first(cluster, sink, micro_batch)
    async with _transactional(cluster, sink, total_bytes) as producer:
        marker = await read_marker(cluster, sink.sink_id)
        if marker is None and await _ensure_progress_topic(cluster):
            marker = await read_marker(cluster, sink.sink_id)
        outcome = judge(marker, micro_batch, sink)
        if outcome is Outcome.WRITTEN:
            producer.begin()
            await _post(producer, batches)
            await _mark(producer, sink.sink_id, Marker.behind(micro_batch))
            await producer.commit()
        return outcome


async def commit_whole(cluster: Cluster, sink: Sink, batches: Batches, total_bytes: int) -> None:
    """All of it or nothing; tried again, it is written again."""
    async with _transactional(cluster, sink, total_bytes) as producer:
        producer.begin()
        await _post(producer, batches)
        await producer.commit()


async def deliver(cluster: Cluster, sink: Sink, batches: Batches) -> None:
    """Without a transaction: what is written is seen at once, and again when it is tried again."""
    with _explained(sink):
        async with Producer(cluster, create_topics=False, delivery_s=sink.delivery_s) as producer:
            sent = [await producer.post_batch(TopicPartition(e.topic, e.partition), batch) for e, batch in batches]
            for result in await asyncio.gather(*sent, return_exceptions=True):
                if isinstance(result, BaseException):
                    raise result


@contextlib.asynccontextmanager
async def _transactional(cluster: Cluster, sink: Sink, total_bytes: int) -> AsyncIterator[Producer]:
    """A producer that is the only one of its id. What it leaves open when something fails is aborted, if that is possible."""
    producer = Producer(
        cluster,
        transactional_id=sink.sink_id,
        transaction_timeout_ms=sink.timeout_ms(total_bytes),
        delivery_s=sink.delivery_s,
        create_topics=False,
    )
    with _explained(sink):
        try:
            await producer.init()
            yield producer
        except BaseException:
            with contextlib.suppress(KafkaError, OSError):
                await producer.close()
            raise
        await producer.close()


async def _post(producer: Producer, batches: Batches) -> None:
    """All of them, and wait until they are written: what follows is over quickly then."""
    for entry, batch in batches:
        await producer.post_batch(TopicPartition(entry.topic, entry.partition), batch)
    await producer.flush()


async def _mark(producer: Producer, sink_id: str, marker: Marker) -> None:
    fields = {"version": 1, "query": marker.query_id, "next_batch": marker.next_batch, "plan": marker.plan}
    value = json.dumps({name: field for name, field in fields.items() if field != UNKNOWN})
    await producer.post(PROGRESS_TOPIC, value.encode(), sink_id.encode(), partition=0)
    await producer.send_offsets({PROGRESS: marker.as_offset()}, sink_id)


@contextlib.contextmanager
def _explained(sink: Sink) -> Iterator[None]:
    try:
        yield
    except KafkaError as error:
        if error.error in FENCED:
            raise Fenced(
                f"{sink.advice.fenced.format(sink.sink_id)} (If there is no other, the transaction took longer than its "
                "timeout: set kafka.transaction.timeout.ms higher.)"
            ) from error
        raise SinkError(f"the batch could not be written: {error.message}{_advice(error, sink.advice)}") from error
    except OSError as error:
        raise SinkError(
            f"the batch may not have been written: {error}. When it comes again, the sink finds out"
        ) from error


def _advice(error: KafkaError, advice: Advice) -> str:
    if error.error in (Error.MESSAGE_TOO_LARGE, Error.RECORD_LIST_TOO_LARGE):
        return ". Set kafka.max.request.size to the topic's max.message.bytes, or raise that"
    if error.error is Error.INVALID_TRANSACTION_TIMEOUT:
        return ". Set kafka.transaction.timeout.ms no higher than the broker's transaction.max.timeout.ms"
    if error.error is Error.UNSUPPORTED_VERSION:
        return f". A broker without transactions can be written to with {advice.at_least_once}"
    return ""


# Markers.


async def read_marker(cluster: Cluster, sink_id: str) -> Marker | None:
    """How far the sink has come. Its transactional id must have been taken over before: nothing of it is open then."""
    try:
        return await _fetch_marker(cluster, sink_id) or await _scan(cluster, sink_id)
    except NoTopic:
        return None


async def _look_first(cluster: Cluster, sink: Sink, micro_batch: MicroBatch) -> None:
    """Refuse what would be refused later, before it shuts out whoever is at work under this name rightly."""
    try:
        marker = await _fetch_marker(cluster, sink.sink_id, LOOK_SECONDS)
    except (KafkaError, OSError):
        return  # not settled just now, or something is wrong that will be met again
    if marker is not None:
        judge(marker, micro_batch, sink)


async def _fetch_marker(cluster: Cluster, sink_id: str, budget_s: float | None = None) -> Marker | None:
    """The offset, once no transaction is about to change it."""
    await cluster.partition_count(PROGRESS_TOPIC)
    coordinator = Coordinator(cluster, sink_id)
    try:
        found = await cluster.retrying(lambda: fetch(coordinator, [PROGRESS], require_stable=True), budget_s)
    finally:
        coordinator.close()
    return Marker.of_offset(found[PROGRESS]) if PROGRESS in found else None


async def _scan(cluster: Cluster, sink_id: str) -> Marker | None:
    """The last record of this sink in the topic.

    Another sink's open transaction can stand before it: so it is read up to what is written now, and not only up to what is
    stable now. Such a transaction ends by itself, at the latest with its timeout.
    """
    end = (await cluster.list_offsets({PROGRESS: LATEST}))[PROGRESS].offset
    consumer = Consumer(cluster, {PROGRESS: EARLIEST}, ends={PROGRESS: end}, read_committed=True)
    latest: bytes | None = None
    try:
        async with asyncio.timeout(2 * TIMEOUT_MS / 1000):
            async for record in consumer:
                if record.key == sink_id.encode():
                    latest = record.value
    except TimeoutError:
        raise SinkError(
            f"an open transaction holds up topic {PROGRESS_TOPIC}: try again, or abort it. Nothing was written"
        )
    if latest is None:
        return None
    fields = json.loads(latest)
    return Marker(fields["query"], fields["next_batch"], fields.get("plan", UNKNOWN))


async def _ensure_progress_topic(cluster: Cluster) -> bool:
    """Make it if it is missing. Whether it was there, and only the broker that was asked did not know of it yet: one that is
    cut off from the others may be behind them, and the controller, which is asked here, is not."""
    if cluster.partitions_at_hand(PROGRESS_TOPIC) is not None:
        return False
    was_there = False
    try:
        await Admin(cluster).create_topic(PROGRESS_TOPIC, partitions=1, configs=PROGRESS_SETTINGS)
    except KafkaError as error:
        if error.error is not Error.TOPIC_ALREADY_EXISTS:
            raise SinkError(
                f"topic {PROGRESS_TOPIC}, where sinks keep how far they have come, cannot be created: "
                f"{error.message}. Create it with 1 partition and cleanup.policy=compact. Nothing was written"
            ) from error
        was_there = True
    # Its creation may not have reached every broker yet.
    await cluster.partition_count(PROGRESS_TOPIC, create=True)
    return was_there
