"""Ranges fetched from real brokers, without Spark."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pyarrow as pa
import pytest
from pyspark.sql.streaming.datasource import ReadAllAvailable
from pyspark.sql.types import BinaryType, StructType

from apache.kafka import Apache
from ottla.client import commits
from ottla.client.cluster import Cluster, NoTopic, TopicPartition
from ottla.client.connection import Connection
from ottla.client.coordinator import Coordinator
from ottla.client.fetching import Found
from ottla.client.producer import Producer
from ottla.pipeline import fetching
from ottla.pipeline.offsets import DataLoss, Range
from ottla.pipeline.options import Reading
from ottla.pipeline.sink import batch_writer
from ottla.pipeline.source import StreamReader
from ottla.wire.compression import Codec
from ottla.wire.errors import KafkaError
from spark_topics import Row, Topics


@pytest.fixture(scope="module", params=["ours", pytest.param("apache", marks=pytest.mark.apache)])
def topics(request: pytest.FixtureRequest) -> Iterator[Topics]:
    """A node of ours, and Apache Kafka 4.3.1: what a task does must hold on any broker."""
    if request.param == "ours":
        made = Topics(request.getfixturevalue("broker"))
    else:
        apache: Apache = request.getfixturevalue("apache")
        made = Topics(apache.address)
    yield made
    made.close()


def reading(topics: Topics, **more: str) -> Reading:
    options = {key.replace("_", "."): value for key, value in more.items()}
    return Reading.batch(topics.options({"subscribe": "any", **options}))


def read(topics: Topics, piece: Range, **more: str) -> list[Row]:
    return [row for batch in fetching.read(reading(topics, **more), piece) for row in batch.to_pylist()]


def offsets(rows: list[Row]) -> list[Any]:
    return [row["offset"] for row in rows]


def test_many_fetches_make_one_range(topics: Topics) -> None:
    """Answers of a few batches each: none is read twice and none is left out."""
    name = topics.make("many-fetches")
    values = [b"%05d" % number * 40 for number in range(2000)]
    topics.write(name, values, batch_bytes=4000)
    found = read(topics, Range(name, 0, 0, 2000), kafka_max_partition_fetch_bytes="9000")
    assert [row["value"] for row in found] == values
    assert offsets(found) == list(range(2000))


def test_a_fetch_is_under_way_while_the_last_is_read(topics: Topics, monkeypatch: pytest.MonkeyPatch) -> None:
    name = topics.make("ahead")
    topics.write(name, [b"x" * 1000] * 50, batch_bytes=2000)
    asked: list[int] = []
    step = fetching._Fetching.step

    async def noted(self: fetching._Fetching, position: int) -> fetching.Step:
        asked.append(position)
        return await step(self, position)

    monkeypatch.setattr(fetching._Fetching, "step", noted)
    how = reading(topics, kafka_max_partition_fetch_bytes="1500")
    with how.connect.broker() as broker:
        fetches = fetching.fetched(broker, how, Range(name, 0, 0, 50))
        next(fetches)
        broker.run(broker.cluster.metadata([]))  # a turn of the loop, so that what was started has begun
        assert len(asked) == 2
        fetches.close()


def test_a_range_is_cut_at_both_ends(topics: Topics) -> None:
    name = topics.make("cut")
    topics.write(name, [b"%d" % number for number in range(100)])
    assert offsets(read(topics, Range(name, 0, 37, 41))) == [37, 38, 39, 40]


@pytest.mark.parametrize("codec", list(Codec))
def test_every_codec_with_headers_and_nulls(topics: Topics, codec: Codec) -> None:
    name = topics.make(f"codec-{codec.name.lower()}")
    topics.write(name, [b"a" * 500, None, b""], codec=codec, headers=(("h", b"1"), ("n", None)), timestamp=1234)
    rows = read(topics, Range(name, 0, 0, 3), includeHeaders="true")
    assert [row["value"] for row in rows] == [b"a" * 500, None, b""]
    assert [row["key"] for row in rows] == [b"k" + b"a" * 500, None, b"k"]
    assert rows[0]["headers"] == [{"key": "h", "value": b"1"}, {"key": "n", "value": None}]


def transactions(topics: Topics, name: str) -> None:
    """Offsets 0-1 committed, 3-4 aborted, 6 committed; 2, 5 and 7 are markers."""

    async def work(producer: Producer) -> None:
        await producer.init()
        for values, ends_well in (((b"a", b"b"), True), ((b"c", b"d"), False), ((b"e",), True)):
            producer.begin()
            for value in values:
                await producer.post(name, value, partition=0)
            await producer.flush()
            await (producer.commit() if ends_well else producer.abort())

    topics.produce(work, transactional_id=f"tx-{name}")


def test_aborted_transactions_are_hidden_from_who_reads_committed(topics: Topics) -> None:
    """TXN-04."""
    name = topics.make("transactions")
    transactions(topics, name)
    whole = Range(name, 0, 0, 8)
    assert offsets(read(topics, whole)) == [0, 1, 3, 4, 6]
    assert offsets(read(topics, whole, kafka_isolation_level="read_committed")) == [0, 1, 6]
    assert offsets(read(topics, Range(name, 0, 4, 6), kafka_isolation_level="read_committed")) == []


def test_what_was_removed_before_it_was_read_is_an_error_that_says_so(topics: Topics) -> None:
    name = topics.make("removed")
    topics.write(name, [b"%d" % number for number in range(10)])
    topics.door.run(topics.admin.delete_records({TopicPartition(name, 0): 6}))
    whole = Range(name, 0, 0, 10)
    with pytest.raises(DataLoss, match=r"removed-0 begins at 6 now: 6 offsets from 0 on were removed .*failOnDataLoss"):
        read(topics, whole)
    assert offsets(read(topics, whole, failOnDataLoss="false")) == [6, 7, 8, 9]
    assert read(topics, Range(name, 0, 0, 5), failOnDataLoss="false") == []


def test_a_log_that_was_cut_back_is_an_error_that_says_so(topics: Topics) -> None:
    name = topics.make("short")
    topics.write(name, [b"a"])
    with pytest.raises(DataLoss, match=r"short-0 ends at 1 now, before offsets 5 to 8"):
        read(topics, Range(name, 0, 5, 9))
    assert read(topics, Range(name, 0, 5, 9), failOnDataLoss="false") == []


def test_a_topic_made_again_is_not_the_one_that_was_planned(topics: Topics) -> None:
    name = topics.make("again")
    topics.write(name, [b"new"])
    old = Range(name, 0, 0, 1, "AAAAAAAAAAAAAAAAAAAAAQ")
    with pytest.raises(DataLoss, match="topic 'again' was deleted"):
        read(topics, old)
    assert read(topics, old, failOnDataLoss="false") == []


def test_a_broker_that_has_not_heard_of_a_topic_yet_is_asked_again(
    topics: Topics, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The driver planned it with another broker. Believed at once, it would lose all of it where losses are allowed."""
    monkeypatch.setattr(fetching, "BELIEVED_SECONDS", 30.0)  # this machine may be slow
    told, forget = threading.Event(), Cluster.forget
    monkeypatch.setattr(Cluster, "forget", lambda cluster, topic: (forget(cluster, topic), told.set()))
    under_way = iter(fetching.read(reading(topics, failOnDataLoss="false"), Range("not-yet", 0, 0, 1)))
    with ThreadPoolExecutor(1) as task:
        first = task.submit(lambda: next(under_way).to_pylist())
        assert told.wait(30)
        topics.write(topics.make("not-yet"), [b"v"])
        assert offsets(first.result()) == [0]


def test_a_log_that_ends_before_the_range_is_waited_for_and_then_a_loss(topics: Topics) -> None:
    """The end was promised by somebody: a log that has less, and says so without an error, must not end a range early. Who
    can do without the rest gets what there is, as from the connector."""
    name = topics.make("ends-early")
    topics.write(name, [b"a"])
    with pytest.raises(DataLoss, match=r"ends-early-0 ends at 1 now, before offsets 1 to 1: .* more than there is"):
        read(topics, Range(name, 0, 0, 2), kafkaConsumer_pollTimeoutMs="600")
    assert offsets(read(topics, Range(name, 0, 0, 2), kafkaConsumer_pollTimeoutMs="600", failOnDataLoss="false")) == [0]


def test_a_leader_that_stays_silent_is_not_waited_for_for_ever(topics: Topics, monkeypatch: pytest.MonkeyPatch) -> None:
    """One that has records and does not give them is no loss, which would be skipped: the query fails either way."""

    async def nothing(*_: object) -> Found:
        return Found()

    name = topics.make("silent")
    topics.write(name, [b"a"])
    monkeypatch.setattr(fetching, "fetch_one", nothing)
    with pytest.raises(fetching.Silent, match=r"silent-0 gave nothing at offset 0 for 0\.6 s, though it has more"):
        read(topics, Range(name, 0, 0, 1), kafkaConsumer_pollTimeoutMs="600", failOnDataLoss="false")


def test_bytes_that_lead_nowhere_are_an_error_and_no_reason_to_wait(monkeypatch: pytest.MonkeyPatch) -> None:
    async def answer(*_: object) -> Found:
        return Found(records=b"no batch at all")

    work = fetching._Fetching(
        Cluster("localhost:1"),
        Reading.batch({"kafka.bootstrap.servers": "localhost:1", "subscribe": "t"}),
        Range("t", 0, 3, 5),
    )
    monkeypatch.setattr(work, "_fetch", answer)
    with pytest.raises(KafkaError, match="t-0 cannot be read at offset 3"):
        asyncio.run(work.step(3))


def test_an_open_transaction_is_no_loss(topics: Topics) -> None:
    """Its records come when it is committed: whoever planned further than the last stable offset must not skip them."""
    name = topics.make("undecided")
    topics.write(name, [b"a"])

    async def begin() -> Producer:
        producer = Producer(topics.door.cluster, transactional_id="undecided")
        await producer.init()
        producer.begin()
        await producer.post(name, b"b", partition=0)
        await producer.flush()
        return producer

    async def commit() -> None:
        await producer.commit()
        await producer.close()

    producer = topics.door.run(begin())
    options = {
        "kafka_isolation.level": "read_committed",
        "kafkaConsumer_pollTimeoutMs": "600",
        "failOnDataLoss": "false",
    }
    with pytest.raises(fetching.Silent, match="is a transaction open there"):
        read(topics, Range(name, 0, 0, 2), **options)
    topics.door.run(commit())
    assert offsets(read(topics, Range(name, 0, 0, 2), **options)) == [0, 1]


def test_a_reader_that_stops_early_leaves_nothing_running(topics: Topics) -> None:
    name = topics.make("early")
    topics.write(name, [b"x" * 1000] * 50, batch_bytes=2000)
    batches = fetching.read(reading(topics, kafka_max_partition_fetch_bytes="1500"), Range(name, 0, 0, 50))
    assert next(batches).num_rows < 50
    batches.close()  # type: ignore[attr-defined]


def test_nobody_at_the_address() -> None:
    how = Reading.batch(
        {"kafka.bootstrap.servers": "127.0.0.1:1", "subscribe": "t", "kafkaConsumer.pollTimeoutMs": "200"}
    )
    with pytest.raises(ConnectionError, match=r"no broker at 127\.0\.0\.1:1 \(connection refused\)"):
        list(fetching.read(how, Range("t", 0, 0, 1)))


def test_the_broker_may_be_away_for_a_while(node: Any) -> None:
    """The connection is lost in the middle of a range: the task finds the leader again and goes on."""
    server = node()
    topics = Topics(server.address)
    name = topics.make("away")
    topics.write(name, [b"x" * 1000] * 50, batch_bytes=2000)
    how = reading(topics, kafka_max_partition_fetch_bytes="1500")
    with how.connect.broker() as broker:
        fetches = fetching.fetched(broker, how, Range(name, 0, 0, 50))
        count = sum(1 for _ in (next(fetches), next(fetches)))
        topics.close()
        server.restart()
        assert count + sum(1 for _ in fetches) >= 20


def test_a_topic_that_is_not_there(topics: Topics) -> None:
    topics.make("orders-of-today")
    with pytest.raises(NoTopic, match=r"there is no topic 'order-of-today'; did you mean 'orders-of-today'\?"):
        topics.rows({"subscribe": "order-of-today"})


def test_queries_plan_the_same_on_any_broker(topics: Topics) -> None:
    """Names by pattern, offsets by mark and by time, a stream over two batches, progress in a group."""
    name = topics.make("any.broker", 2)
    now = topics.door.cluster.now_ms()
    for step in range(4):
        topics.write(name, [b"%d" % step], step % 2, timestamp=now + 1000 * step)
    late = topics.rows({"subscribePattern": r"any\..*", "startingTimestamp": str(now + 1500)})
    assert [row["value"] for row in late] == [b"2", b"3"]
    reader = StreamReader(Reading.stream(topics.options({"subscribe": name, "startingOffsets": "earliest"})))
    start = reader.initialOffset()
    end = reader.latestOffset(start, ReadAllAvailable())
    assert (start[name], end[name]) == ({"0": 0, "1": 0}, {"0": 2, "1": 2})
    pieces = reader.partitions(start, end)
    assert sum(batch.num_rows for piece in pieces for batch in reader.read(piece)) == 4
    reader.commit(end)
    reader.stop()
    coordinator = Coordinator(topics.door.cluster, end["@group"])
    found = topics.door.run(topics.door.cluster.retrying(lambda: commits.fetch(coordinator)))
    assert {where.partition: what.offset for where, what in found.items()} == {0: 2, 1: 2}


# The highest versions that brokers of Kafka 2.4 and 2.8 serve of what the format asks them, by the number of the request:
# those of 2.4 know no ids of topics.
SERVED_BY = {
    "2.4": {0: 8, 1: 11, 2: 5, 3: 8, 8: 7, 9: 6, 10: 2, 18: 3, 19: 4, 22: 1, 24: 1, 25: 1, 26: 1, 28: 2, 32: 2},
    "2.8": {0: 9, 1: 12, 2: 6, 3: 11, 8: 8, 9: 7, 10: 3, 18: 3, 19: 7, 22: 4, 24: 3, 25: 3, 26: 3, 28: 3, 32: 4},
}


@pytest.mark.parametrize("release", SERVED_BY)
def test_a_broker_that_knows_only_older_requests_is_written_and_read(
    topics: Topics, release: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Versions are what both sides know, and none of them is taken for granted."""
    known, negotiate = SERVED_BY[release], Connection._negotiate

    async def as_of_then(connection: Connection) -> None:
        await negotiate(connection)
        both = connection.served.keys() & known.keys()
        connection.served = {key: (connection.served[key][0], known[key]) for key in both}
        connection.features = {}

    name = topics.make(f"of-{release}")
    monkeypatch.setattr(Connection, "_negotiate", as_of_then)
    options = topics.options({"topic": name, "operationId": f"once-{release}"})
    for _ in range(2):
        writer = batch_writer(options, StructType().add("value", BinaryType()), False)
        writer.commit([writer.write(iter([pa.record_batch({"value": pa.array([b"a", b"b"], pa.binary())})]))])
    assert offsets(topics.rows({"subscribe": name, "kafka.isolation.level": "read_committed"})) == [0, 1]
    reader = StreamReader(Reading.stream(topics.options({"subscribe": name, "startingTimestamp": "0"})))
    start = reader.initialOffset()
    end = reader.latestOffset(start, ReadAllAvailable())
    assert (release == "2.8") == (name in end["@ids"])
    assert sum(batch.num_rows for piece in reader.partitions(start, end) for batch in reader.read(piece)) == 2
    reader.commit(end)
    reader.stop()
