"""What a reader of committed data leaves out, on answers written by hand."""

from __future__ import annotations

import pytest

from ottla.client.cluster import Cluster, TopicPartition
from ottla.client.consumer import Consumed, Consumer, Found
from ottla.wire.errors import Error, KafkaError
from ottla.wire.messages.fetch import FetchResponse
from ottla.wire.records import Record, build, end_marker, stamp

WHERE = TopicPartition("t", 0)


def batch(offset: int, *values: bytes, producer: int = -1) -> bytes:
    records = [Record(timestamp=0, value=value) for value in values]
    options = {"producer_id": producer, "producer_epoch": 0, "base_sequence": 0, "transactional": True}
    return build(
        [r._replace(offset=offset + i) for i, r in enumerate(records)],
        base_offset=offset,
        **(options if producer >= 0 else {}),
    )


def end(offset: int, producer: int, commit: bool) -> bytes:
    marker = bytearray(end_marker(commit, 0, producer_id=producer, producer_epoch=0, coordinator_epoch=0))
    stamp(marker, offset, 0)
    return bytes(marker)


# Producer 1 aborts, then commits; producer 2 commits between; offset 9 holds the last marker.
LOG = b"".join(
    [
        batch(0, b"plain"),
        batch(1, b"1-aborted", b"1-aborted too", producer=1),
        batch(3, b"2-committed", producer=2),
        end(4, 1, commit=False),
        batch(5, b"1-committed", producer=1),
        end(6, 2, commit=True),
        batch(7, b"plain again"),
        end(8, 1, commit=True),
        batch(9, b"3-aborted", producer=3),
        end(10, 3, commit=False),
    ]
)
ABORTED = [
    Found.AbortedTransaction(producer_id=3, first_offset=9),
    Found.AbortedTransaction(producer_id=1, first_offset=1),
]


def taken(position: int, *, read_committed: bool, data: bytes = LOG, end_offset: int | None = None):
    ends = None if end_offset is None else {WHERE: end_offset}
    consumer = Consumer(Cluster("localhost:1"), {WHERE: position}, ends=ends, read_committed=read_committed)
    found = Found(records=memoryview(data), aborted_transactions=ABORTED)
    records: list[Consumed] = []
    trouble = consumer._take(WHERE, found, records)
    if trouble is not None:
        raise trouble
    return [record.value for record in records], consumer


def test_aborted_transactions_are_left_out():
    """PRT-16 from the reader's side, whatever the order of the list; the position ends behind the last marker."""
    values, consumer = taken(0, read_committed=True)
    assert values == [b"plain", b"2-committed", b"1-committed", b"plain again"]
    assert consumer.positions[WHERE] == 11


def test_a_transaction_that_is_committed_before_one_that_is_aborted_is_read():
    log = batch(0, b"committed", producer=1) + end(1, 1, commit=True) + batch(2, b"aborted", producer=1)
    consumer = Consumer(Cluster("localhost:1"), {WHERE: 0}, read_committed=True)
    aborted = [Found.AbortedTransaction(producer_id=1, first_offset=2)]
    records: list[Consumed] = []
    consumer._take(WHERE, Found(records=memoryview(log), aborted_transactions=aborted), records)
    assert [record.value for record in records] == [b"committed"]


def test_what_was_asked_at_a_position_that_was_left_is_passed_over():
    """Or a reader that goes back would go on where it was, and miss what lies between."""
    consumer = Consumer(Cluster("localhost:1"), {WHERE: 5})
    asked = dict(consumer.positions)
    consumer.seek(WHERE, 0)
    part = Found(partition_index=0, records=memoryview(batch(5, b"later")))
    answer = FetchResponse(responses=[FetchResponse.Topic(topic="t", partitions=[part])])
    assert consumer._accept(asked, answer) == []
    assert consumer.positions == {WHERE: 0}


def test_reading_uncommitted_shows_all_but_markers():
    values, consumer = taken(0, read_committed=False)
    assert len(values) == 7
    assert consumer.positions[WHERE] == 11


def test_starting_inside_an_aborted_transaction():
    assert taken(2, read_committed=True)[0] == [b"2-committed", b"1-committed", b"plain again"]


def test_a_range_that_ends_in_markers_is_finished():
    """TRAP-72: it is the position that reaches the end, not a record."""
    _, consumer = taken(9, read_committed=True, end_offset=11)
    assert consumer.open_partitions() == {}


def test_a_damaged_batch_is_noticed():
    damaged = bytearray(LOG)
    damaged[-1] ^= 1
    with pytest.raises(KafkaError) as refused:
        taken(0, read_committed=False, data=bytes(damaged))
    assert refused.value.error is Error.CORRUPT_MESSAGE


def test_what_lies_before_a_damaged_batch_is_not_lost():
    """The position stays in front of what could not be read, and whoever asks gets all that could: of every partition."""
    other = TopicPartition("t", 1)
    consumer = Consumer(Cluster("localhost:1"), {WHERE: 0, other: 0})
    damaged = bytearray(batch(0, b"a", b"b") + batch(2, b"c"))
    damaged[-1] ^= 1
    parts = [
        Found(partition_index=0, records=memoryview(bytes(damaged))),
        Found(partition_index=1, records=memoryview(batch(0, b"d"))),
    ]
    answer = FetchResponse(responses=[FetchResponse.Topic(topic="t", partitions=parts)])
    asked = dict(consumer.positions)
    assert [record.value for record in consumer._accept(asked, answer)] == [b"a", b"b", b"d"]
    assert consumer.positions == {WHERE: 2, other: 1}
    parts[0].records = memoryview(bytes(damaged[len(batch(0, b"a", b"b")) :]))
    del parts[1]
    with pytest.raises(KafkaError, match="damaged at 2"):
        consumer._accept(dict(consumer.positions), answer)
    assert consumer.positions[WHERE] == 2
