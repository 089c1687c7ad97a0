"""Records on their way to one partition: batches in a *lane*, in the order in which they must be written.

A batch is open while records go into it, then closed, then *sealed*: given its sequence number and made into bytes, which
stay the same however often they are sent. Of a lane up to a few batches are *flying* at once. They leave in order over
one connection, so the leader sees them in order too; and because a leader refuses a number that does not follow the
last one it has written, none that flies behind a failed batch is written before it. When one fails, nothing more leaves
the lane until all that fly are answered; then those not written go back to the front and are sent again.

A batch may also come as it is, built elsewhere (`built`): nothing is added to it, and sealing it only writes the number,
the identity and a new CRC into its header.

A batch is *doubtful* once an attempt ended without a clear answer: it may have been written. Its bytes may then be sent
again (the leader knows their numbers and writes them once), but never under other numbers.
"""

from __future__ import annotations

import asyncio
from collections import deque
from typing import NamedTuple

from ottla.client.cluster import TopicPartition
from ottla.client.connection import Connection
from ottla.wire.errors import Error, KafkaError
from ottla.wire.messages.produce import ProduceResponse
from ottla.wire.records import SEQUENCE_MODULUS, Record, look

# A record in a batch is at most this much longer than its key, value and headers.
RECORD_OVERHEAD = 21
HEADER_OVERHEAD = 10
PAUSE_SECONDS = 0.05
PAUSE_SECONDS_MAX = 1.0
# A timer may fire so much before its time.
EARLY_SECONDS = 0.001

Answer = ProduceResponse.Topic.Partition

# Errors that come before the broker has looked at sequence numbers.
NOT_WRITTEN = {
    Error.MESSAGE_TOO_LARGE,
    Error.RECORD_LIST_TOO_LARGE,
    Error.INVALID_RECORD,
    Error.INVALID_TIMESTAMP,
    Error.INVALID_TOPIC_EXCEPTION,
    Error.UNSUPPORTED_COMPRESSION_TYPE,
    Error.TOPIC_AUTHORIZATION_FAILED,
    Error.CLUSTER_AUTHORIZATION_FAILED,
}
# After one of these nothing was written by that attempt, and no copy of it is under way any more.
CLEAR = NOT_WRITTEN | {Error.OUT_OF_ORDER_SEQUENCE_NUMBER, Error.NOT_ENOUGH_REPLICAS}


class Sent(NamedTuple):
    """Where a record went. The offset is -1 when nobody was asked (acks=0)."""

    partition: int
    offset: int
    timestamp: int


class Identity(NamedTuple):
    producer_id: int
    epoch: int


NOBODY = Identity(-1, -1)


class Pending:
    """A batch, and those who wait for its records."""

    __slots__ = (
        "built",
        "closed",
        "data",
        "deadline",
        "doubtful",
        "due",
        "error",
        "futures",
        "records",
        "sequence",
        "settled",
        "size",
    )

    def __init__(self, due: float, deadline: float) -> None:
        self.due, self.deadline = due, deadline
        self.closed = False
        self.records: list[Record] = []
        self.futures: list[asyncio.Future[Sent]] = []
        self.size = 0
        self.built: bytearray | None = None
        self.data: bytes | bytearray | None = None
        self.sequence = -1
        self.doubtful = False
        self.error: Exception | None = None
        self.settled: asyncio.Future[None] | None = None

    @property
    def count(self) -> int:
        """Records in it, and so how many numbers it takes."""
        return len(self.records) if self.built is None else look(self.built).last_offset_delta + 1

    def fail(self, error: Exception) -> None:
        """This attempt came to nothing."""
        self.error = error
        if not (isinstance(error, KafkaError) and error.error in CLEAR):
            self.doubtful = True

    def acknowledge(self, partition: int, answer: Answer) -> None:
        base, appended_ms = answer.base_offset, answer.log_append_time_ms
        if self.built is not None:
            records = [Record(timestamp=look(self.built).max_timestamp)]  # one waits for all of them
        else:
            records = self.records
        for i, (record, future) in enumerate(zip(records, self.futures, strict=True)):
            if not future.done():
                offset = base + i if base >= 0 else -1
                future.set_result(Sent(partition, offset, record.timestamp if appended_ms < 0 else appended_ms))
        self._settle()

    def refuse(self, error: Exception, *, aloud: bool = True) -> None:
        """Not `aloud`, nobody needs to ask: where nothing is lost by it, or another will tell."""
        for future in self.futures:
            if not future.done():
                future.set_exception(error)
                if not aloud:
                    future.exception()
        self._settle()

    def _settle(self) -> None:
        if self.settled is not None and not self.settled.done():
            self.settled.set_result(None)


class Lane:
    """What is on its way to one partition. `queue` holds what does not fly: to be sent again, closed, or still open."""

    def __init__(self, where: TopicPartition) -> None:
        self.where = where
        self.queue: deque[Pending] = deque()
        self.flying: deque[Pending] = deque()
        self.connection: Connection | None = None
        self.identity = NOBODY
        self.sequence = 0  # of the next batch to be sealed
        self.expected = 0  # the one that follows what the leader has acknowledged
        # The producer id under which the leader has acknowledged something. Before that it may know nothing of us, and
        # such a leader takes whichever number comes first: so the first batch flies alone.
        self.known_as = NOBODY.producer_id
        self.draining = False
        self.seeking = False
        self.not_before = 0.0
        self.pause_s = PAUSE_SECONDS

    def ready(self, now: float, limit: int) -> Pending | None:
        """The batch that may leave at this moment."""
        now += EARLY_SECONDS
        if not self.queue or self.draining or self.seeking or now < self.not_before or len(self.flying) >= limit:
            return None
        batch = self.queue[0]
        if self.flying and self.identity.producer_id != self.known_as:
            return None
        return batch if batch.closed or now >= batch.due else None

    def rename(self, identity: Identity) -> None:
        """Numbers begin anew under each name."""
        self.identity, self.sequence, self.expected = identity, 0, 0

    def acknowledged(self, batch: Pending) -> None:
        self.flying.remove(batch)
        self.expected = (batch.sequence + batch.count) % SEQUENCE_MODULUS
        self.known_as = self.identity.producer_id
        self.pause_s, self.not_before = PAUSE_SECONDS, 0.0

    def back_off(self, now: float, pause_s: float) -> None:
        self.not_before = now + pause_s
        self.pause_s = min(2 * self.pause_s, PAUSE_SECONDS_MAX)


def size_of(record: Record) -> int:
    """At most so many bytes does it take in a batch."""
    _, _, key, value, headers = record
    size = RECORD_OVERHEAD + (len(key) if key is not None else 0) + (len(value) if value is not None else 0)
    if headers:
        size += sum(len(name) + len(content or b"") + HEADER_OVERHEAD for name, content in headers)
    return size
