"""Readers of batches and streams as Spark drives them, without Spark: what they plan, and what they refuse."""

from __future__ import annotations

import asyncio
import json
import pickle
import subprocess
import sys
from collections.abc import Iterator
from datetime import UTC, datetime
from types import SimpleNamespace
from typing import Any

import pytest
from pyspark.sql.datasource import (
    CaseInsensitiveDict,
    EqualTo,
    GreaterThan,
    GreaterThanOrEqual,
    In,
    InputPartition,
    IsNotNull,
    LessThan,
)
from pyspark.sql.streaming.datasource import ReadAllAvailable, ReadMaxRows, ReadMinRows
from pyspark.sql.types import StructType

from ottla.client import commits
from ottla.client.cluster import TopicPartition
from ottla.client.coordinator import Coordinator
from ottla.client.producer import Producer
from ottla.pipeline import source
from ottla.pipeline.format import OttlaSource
from ottla.pipeline.offsets import DataLoss, Range
from ottla.pipeline.options import BadOption, Reading
from ottla.pipeline.source import NarrowedReader, Reader, StreamReader
from spark_topics import Row, Topics

ALL = ReadAllAvailable()
Offset = dict[str, Any]


@pytest.fixture(scope="module")
def topics(broker: str) -> Iterator[Topics]:
    made = Topics(broker)
    yield made
    made.close()


def spans(pieces: list[InputPartition]) -> list[tuple[int, int, int]]:
    return [(piece.value.partition, piece.value.start, piece.value.end) for piece in pieces]


def offsets(rows: list[Row]) -> list[tuple[Any, Any]]:
    return [(row["partition"], row["offset"]) for row in rows]


# Batches.


def test_a_batch_reads_from_the_earliest_to_the_latest(topics: Topics) -> None:
    name = topics.make("batch", 3)
    topics.write(name, [b"a", b"b"], 0)
    topics.write(name, [b"c"], 2)
    assert offsets(topics.rows({"subscribe": name})) == [(0, 0), (0, 1), (2, 0)]


def test_the_end_is_fixed_when_the_query_is_planned(topics: Topics) -> None:
    name = topics.make("fixed")
    topics.write(name, [b"a"])
    reader = Reader(Reading.batch(topics.options({"subscribe": name})))
    pieces = reader.partitions()
    topics.write(name, [b"later"])
    assert sum(batch.num_rows for piece in pieces for batch in reader.read(piece)) == 1


def test_a_reader_and_its_pieces_travel_to_the_workers(topics: Topics) -> None:
    name = topics.make("travel")
    topics.write(name, [b"a"])
    reader = Reader(Reading.batch(topics.options({"subscribe": name})))
    far, (piece,) = pickle.loads(pickle.dumps(reader)), pickle.loads(pickle.dumps(reader.partitions()))
    assert [batch.num_rows for batch in far.read(piece)] == [1]
    assert list(far.read(InputPartition(None))) == []


def test_three_ways_to_name_partitions(topics: Topics) -> None:
    topics.make("ways.one", 2)
    topics.make("ways.two")
    for name, partition in (("ways.one", 0), ("ways.one", 1), ("ways.two", 0)):
        topics.write(name, [b"v"], partition)
    topics.make("not.ways.one")
    assert len(topics.rows({"subscribe": "ways.one, ways.two"})) == 3
    assert len(topics.rows({"subscribePattern": r"ways\..*"})) == 3
    assert len(topics.rows({"subscribePattern": "ays"})) == 3, "the connector looks for it anywhere in a name"
    assert topics.rows({"subscribePattern": "^ways$"}) == []
    assert offsets(topics.rows({"assign": '{"ways.one":[1]}'})) == [(1, 0)]
    with pytest.raises(BadOption, match=r"partitions that do not exist: ways\.two-7"):
        topics.rows({"assign": '{"ways.two":[7]}'})


def test_offsets_as_json_name_every_partition(topics: Topics) -> None:
    name = topics.make("json", 2)
    topics.write(name, [b"v"] * 10, 0)
    topics.write(name, [b"v"] * 10, 1)
    start, end = {name: {"0": 4, "1": -2}}, {name: {"0": 6, "1": -1}}
    rows = topics.rows({"subscribe": name, "startingOffsets": json.dumps(start), "endingOffsets": json.dumps(end)})
    assert offsets(rows) == [(0, 4), (0, 5), *((1, offset) for offset in range(10))]
    for wrong, said in (
        ({name: {"0": 1}}, r"missing: json-1 \(-2 earliest"),
        ({name: {"0": 1, "1": 1, "2": 1}}, "json-2"),
    ):
        with pytest.raises(BadOption, match=said):
            topics.rows({"subscribe": name, "startingOffsets": json.dumps(wrong)})
    with pytest.raises(BadOption, match=r"missing: json-1$"):  # times have no such marks
        topics.rows({"subscribe": name, "startingOffsetsByTimestamp": json.dumps({name: {"0": 1}})})


def test_offsets_by_time(topics: Topics) -> None:
    name = topics.make("times")
    now = topics.door.cluster.now_ms()
    for step in range(5):
        topics.write(name, [b"%d" % step], timestamp=now + 1000 * step)
    middle = {"subscribe": name, "startingTimestamp": str(now + 1500), "endingTimestamp": str(now + 3500)}
    assert offsets(topics.rows(middle)) == [(0, 2), (0, 3)]
    by_partition = {"subscribe": name, "startingOffsetsByTimestamp": json.dumps({name: {"0": now + 4000}})}
    assert offsets(topics.rows(by_partition)) == [(0, 4)]
    assert len(topics.rows({"subscribe": name, "endingTimestamp": str(now + 99_000)})) == 5


def test_a_time_after_the_last_record_is_an_error_unless_latest_is_meant(topics: Topics) -> None:
    name = topics.make("future")
    topics.write(name, [b"a"])
    options = {"subscribe": name, "startingTimestamp": str(topics.door.cluster.now_ms() + 86_400_000)}
    with pytest.raises(BadOption, match=r"future-0 have no record at or after .*startingOffsetsByTimestampStrategy"):
        topics.rows(options)
    assert topics.rows({**options, "startingOffsetsByTimestampStrategy": "latest"}) == []


def test_pieces_are_cut_as_asked(topics: Topics) -> None:
    name = topics.make("pieces")
    topics.write(name, [b"v"] * 10)
    reader = Reader(Reading.batch(topics.options({"subscribe": name, "minPartitions": "2"})))
    assert spans(reader.partitions()) == [(0, 0, 5), (0, 5, 10)]
    assert len(topics.rows({"subscribe": name, "maxRecordsPerPartition": "3"})) == 10


def test_conditions_are_looked_up(topics: Topics) -> None:
    name = topics.make("narrow", 3)
    now = topics.door.cluster.now_ms()
    for partition in range(3):
        for step in range(10):
            topics.write(name, [b"v"], partition, timestamp=now + 1000 * step)
    reader = NarrowedReader(Reading.batch(topics.options({"subscribe": name})))
    noon = datetime.fromtimestamp((now + 3000) / 1000, UTC)
    on_time = GreaterThanOrEqual(("timestamp",), noon)
    on_value = EqualTo(("value",), b"v")
    conditions = [
        IsNotNull(("offset",)),
        In(("partition",), (0, 2)),
        GreaterThan(("offset",), 1),
        LessThan(("offset",), 8),
        EqualTo(("topic",), name),
        on_time,
        on_value,
    ]
    assert list(reader.pushFilters(conditions)) == [on_time, on_value]
    assert spans(reader.partitions()) == [(0, 3, 8), (2, 3, 8)]
    far = pickle.loads(pickle.dumps(reader))
    assert sum(batch.num_rows for piece in far.partitions() for batch in far.read(piece)) == 10


def test_only_an_option_makes_the_reader_that_spark_may_refuse() -> None:
    options = {"kafka.bootstrap.servers": "h:1", "subscribe": "t"}
    schema = OttlaSource(CaseInsensitiveDict(options)).schema()
    assert type(OttlaSource(CaseInsensitiveDict(options)).reader(schema)) is Reader
    asked = OttlaSource(CaseInsensitiveDict({**options, "filterPushdown": "true"}))
    assert type(asked.reader(schema)) is NarrowedReader


def test_a_reader_that_is_only_to_be_planned_anew_takes_no_condition() -> None:
    """Of two uses of one frame, each would get what the other has pushed down."""
    options = {"kafka.bootstrap.servers": "h:1", "subscribe": "t", "filterPushdown": "anew"}
    source = OttlaSource(CaseInsensitiveDict(options))
    conditions = [EqualTo(("topic",), "t"), GreaterThanOrEqual(("offset",), 0)]
    assert list(source.reader(source.schema()).pushFilters(conditions)) == conditions


def test_the_columns_are_fixed() -> None:
    source = OttlaSource(CaseInsensitiveDict({"kafka.bootstrap.servers": "h:1", "subscribe": "t"}))
    assert source.schema().fieldNames() == [
        "key",
        "value",
        "topic",
        "partition",
        "offset",
        "timestamp",
        "timestampType",
    ]
    with pytest.raises(BadOption, match=r"remove \.schema"):
        source.reader(StructType())
    with_headers = OttlaSource(CaseInsensitiveDict({"includeHeaders": "true"}))
    assert with_headers.schema()["headers"].dataType.simpleString() == "array<struct<key:string,value:binary>>"


# Streams.


def test_wrong_options_of_a_stream_are_told_when_it_is_asked() -> None:
    """A reader that Spark does not get is one it fails to stop, and that is what a user would read last."""
    options = {"kafka.bootstrap.servers": "h:1", "subscribe": "t", "endingOffsets": "latest"}
    source = OttlaSource(CaseInsensitiveDict(options))
    reader = source.streamReader(source.schema())
    for ask in (reader.initialOffset, reader.getDefaultReadLimit, lambda: reader.partitions({}, {})):
        with pytest.raises(BadOption, match="endingOffsets has no meaning in a stream"):
            ask()
    reader.stop()


class Query:
    """What Spark does with a stream: offsets pass through JSON, and each batch begins where the last ended."""

    def __init__(self, topics: Topics, options: dict[str, str], checkpoint: Offset | None = None) -> None:
        self.reader = StreamReader(Reading.stream(topics.options(options)))
        self.at = checkpoint if checkpoint is not None else through_json(self.reader.initialOffset())

    def next(self, limit: Any = None) -> list[Row]:
        end = through_json(self.reader.latestOffset(self.at, limit or self.reader.getDefaultReadLimit()))
        rows = [] if end == self.at else rows_between(self.reader, self.at, end)
        self.at = end
        return rows

    def stop(self) -> Offset:
        self.reader.stop()
        return self.at


def through_json(offset: Offset) -> Offset:
    return json.loads(json.dumps(offset))  # type: ignore[no-any-return]


def rows_between(reader: StreamReader, start: Offset, end: Offset) -> list[Row]:
    pieces = pickle.loads(pickle.dumps(reader.partitions(start, end)))
    assert spans(reader.partitions(start, end)) == spans(pieces)
    worker = StreamReader(reader.reading)
    return [row for piece in pieces for batch in worker.read(piece) for row in batch.to_pylist()]


def test_a_stream_begins_at_the_latest_and_follows(topics: Topics) -> None:
    name = topics.make("follow", 2)
    topics.write(name, [b"before"])
    query = Query(topics, {"subscribe": name})
    assert query.next() == []
    topics.write(name, [b"a"], 0)
    topics.write(name, [b"b"], 1)
    assert offsets(query.next()) == [(0, 1), (1, 0)]
    assert query.next() == []
    assert query.at[name] == {"0": 2, "1": 1}
    query.stop()


def test_an_offset_does_not_change_while_nothing_happens(topics: Topics) -> None:
    """Spark makes a batch whenever the text of an offset is another."""
    name = topics.make("quiet")
    topics.write(name, [b"a"])
    query = Query(topics, {"subscribe": name, "startingOffsets": "earliest"})
    assert len(query.next()) == 1
    for _ in range(3):
        before = query.at
        assert query.reader.latestOffset(before, ALL) == before
    topics.write(name, [b"b"])
    assert len(query.next()) == 1
    assert "@from" not in query.at
    query.stop()


def test_a_query_that_died_in_its_first_batch_reads_the_same_again(topics: Topics) -> None:
    """Spark asks for the initial offset anew, and "latest" has moved on by then."""
    name = topics.make("first-batch")
    query = Query(topics, {"subscribe": name})
    topics.write(name, [b"a", b"b"])
    end = through_json(query.reader.latestOffset(query.at, ALL))
    query.stop()
    topics.write(name, [b"later"])
    again = Query(topics, {"subscribe": name})
    assert again.at[name] == {"0": 3}
    assert offsets(rows_between(again.reader, again.at, end)) == [(0, 0), (0, 1)]
    again.at = end
    assert offsets(again.next()) == [(0, 2)]
    again.stop()


def test_a_stream_goes_on_from_its_checkpoint(topics: Topics) -> None:
    name = topics.make("goes-on")
    options = {"subscribe": name, "startingOffsets": "earliest"}
    topics.write(name, [b"a"])
    query = Query(topics, options)
    assert len(query.next()) == 1
    checkpoint = query.stop()
    topics.write(name, [b"b"])
    again = Query(topics, options, checkpoint)
    assert offsets(again.next()) == [(0, 1)]
    again.stop()


def test_a_limit_is_spread_over_the_partitions(topics: Topics) -> None:
    name = topics.make("limited", 2)
    topics.write(name, [b"v"] * 30, 0)
    topics.write(name, [b"v"] * 10, 1)
    options = {"subscribe": name, "startingOffsets": "earliest", "maxOffsetsPerTrigger": "20"}
    query = Query(topics, options)
    assert query.reader.getDefaultReadLimit() == ReadMaxRows(20)
    assert len(query.next()) == 20
    assert query.at[name] == {"0": 15, "1": 5}
    assert query.reader.reportLatestOffset()[name] == {"0": 30, "1": 10}
    assert len(query.next()) == 20
    assert query.next() == []
    query.stop()


def test_a_single_trigger_takes_everything_whatever_the_limit(topics: Topics) -> None:
    name = topics.make("once")
    topics.write(name, [b"v"] * 30)
    query = Query(topics, {"subscribe": name, "startingOffsets": "earliest", "maxOffsetsPerTrigger": "5"})
    assert len(query.next(ALL)) == 30
    query.stop()


def test_too_little_waits_but_not_for_ever(topics: Topics, monkeypatch: pytest.MonkeyPatch) -> None:
    name = topics.make("enough")
    options = {"subscribe": name, "startingOffsets": "earliest", "minOffsetsPerTrigger": "10", "maxTriggerDelay": "60s"}
    query = Query(topics, options)
    assert query.reader.getDefaultReadLimit() == ReadMinRows(10)
    topics.write(name, [b"v"])
    assert len(query.next()) == 1, "the first is always made"
    topics.write(name, [b"v"] * 9)
    assert query.next() == []
    topics.write(name, [b"v"])
    assert len(query.next()) == 10
    topics.write(name, [b"v"])
    assert query.next() == []
    assert query.reader._started_at is not None
    query.reader._started_at -= 61
    assert len(query.next()) == 1
    query.stop()


def test_available_now_ends_where_it_was_when_it_began(topics: Topics) -> None:
    name = topics.make("available-now")
    topics.write(name, [b"v"] * 10)
    options = {"subscribe": name, "startingOffsets": "earliest", "maxOffsetsPerTrigger": "4"}
    query = Query(topics, {**options, "minOffsetsPerTrigger": "4"})
    query.reader.prepareForTriggerAvailableNow()
    assert len(query.next()) == 4
    topics.write(name, [b"later"] * 10)
    assert len(query.next()) == 4
    assert len(query.next()) == 2
    assert query.next() == []
    query.stop()


def test_partitions_added_while_running_begin_at_their_beginning(topics: Topics) -> None:
    name = topics.make("growing")
    query = Query(topics, {"subscribe": name, "maxOffsetsPerTrigger": "100"})
    topics.door.run(topics.admin.create_partitions(name, 2))
    topics.write(name, [b"new"], 1)
    assert offsets(query.next()) == [(1, 0)]
    query.stop()


def test_a_new_partition_that_has_lost_its_beginning_is_a_loss(topics: Topics) -> None:
    name = topics.make("trimmed")
    options = {"subscribe": name, "startingOffsets": "earliest"}
    query = Query(topics, options)
    topics.door.run(topics.admin.create_partitions(name, 2))
    topics.write(name, [b"v"] * 5, 1)
    topics.door.run(topics.admin.delete_records({TopicPartition(name, 1): 2}))
    with pytest.raises(DataLoss, match="trimmed-1 is new to this query and begins at 2"):
        query.next()
    going_on = Query(topics, {**options, "failOnDataLoss": "false"}, query.stop())
    assert offsets(going_on.next()) == [(1, 2), (1, 3), (1, 4)]
    going_on.stop()


def test_topics_that_come_to_match_a_pattern_begin_at_their_beginning(topics: Topics) -> None:
    query = Query(topics, {"subscribePattern": r"appearing\..*"})
    assert query.next() == []
    topics.write(topics.make("appearing.1"), [b"v"])
    assert [row["topic"] for row in query.next()] == ["appearing.1"]
    query.stop()


def test_a_topic_made_again_is_a_clear_failure(topics: Topics) -> None:
    name = topics.make("reborn")
    topics.write(name, [b"old"] * 3)
    options = {"subscribe": name, "startingOffsets": "earliest"}
    query = Query(topics, options)
    assert len(query.next()) == 3
    checkpoint = query.stop()
    topics.door.run(topics.admin.delete_topic(name))
    topics.make(name)
    topics.write(name, [b"new"] * 5)
    again = Query(topics, options, checkpoint)
    with pytest.raises(DataLoss, match=r"topic 'reborn' was deleted and made again .*failOnDataLoss"):
        again.next()
    again.stop()
    going_on = Query(topics, {**options, "failOnDataLoss": "false"}, checkpoint)
    assert offsets(going_on.next()) == [(0, offset) for offset in range(5)]
    assert going_on.next() == []
    going_on.stop()


def test_a_topic_made_again_before_the_first_rows_is_read_from_its_beginning(topics: Topics) -> None:
    """The note of where the first batch began is of the topic that is there, not of the one that was."""
    name = topics.make("reborn-early")
    topics.write(name, [b"old"] * 3)
    query = Query(topics, {"subscribe": name, "failOnDataLoss": "false"})
    assert query.next() == []
    topics.door.run(topics.admin.delete_topic(name))
    topics.make(name)
    topics.write(name, [b"new"] * 5)
    assert offsets(query.next()) == [(0, offset) for offset in range(5)]
    query.stop()


def test_a_deleted_topic_is_a_clear_failure(topics: Topics) -> None:
    name, other = topics.make("deleted"), topics.make("stays")
    options = {"subscribe": f"{name},{other}", "startingOffsets": "earliest"}
    query = Query(topics, options)
    topics.door.run(topics.admin.delete_topic(name))
    with pytest.raises(DataLoss, match="deleted-0 does not exist any more, and was read up to 0"):
        query.next()
    checkpoint = query.stop()
    topics.write(other, [b"v"])
    going_on = Query(topics, {**options, "failOnDataLoss": "false"}, checkpoint)
    assert [row["topic"] for row in going_on.next()] == ["stays"]
    going_on.stop()


def test_who_reads_committed_ends_at_the_last_stable_offset(topics: Topics) -> None:
    """TXN-04: an open transaction holds back what is behind it."""
    name = topics.make("stable")
    options = {"subscribe": name, "startingOffsets": "earliest", "kafka.isolation.level": "read_committed"}
    query = Query(topics, options)

    async def work(producer: Producer) -> None:
        await producer.init()
        producer.begin()
        await producer.send(name, value=b"open", partition=0)
        assert (await asyncio.to_thread(query.next)) == []
        await producer.commit()

    topics.write(name, [b"plain"])
    assert offsets(query.next()) == [(0, 0)]
    topics.produce(work, transactional_id="stable")
    assert offsets(query.next()) == [(0, 1)]
    query.stop()


def test_progress_is_mirrored_into_a_group(topics: Topics) -> None:
    name = topics.make("mirrored", 2)
    topics.write(name, [b"v"] * 5)
    query = Query(topics, {"subscribe": name, "startingOffsets": "earliest", "groupIdPrefix": "dashboards"})
    query.next()
    group = query.at["@group"]
    assert group.startswith("dashboards-mirrored-")
    query.reader.commit(query.at)
    query.stop()
    assert committed(topics, group) == {TopicPartition(name, 0): 5, TopicPartition(name, 1): 0}


def test_a_group_of_ones_own_choice(topics: Topics) -> None:
    name = topics.make("own-group")
    topics.write(name, [b"v"])
    query = Query(topics, {"subscribe": name, "startingOffsets": "earliest", "kafka.group.id": "mine"})
    query.next()
    query.reader.commit(query.at)
    query.stop()
    assert committed(topics, "mine") == {TopicPartition(name, 0): 1}


def test_a_query_with_nothing_to_do_stays_in_its_group(topics: Topics, monkeypatch: pytest.MonkeyPatch) -> None:
    """A broker forgets offsets that nobody has committed for some time; Spark goes on asking for the ends meanwhile."""
    name = topics.make("idle")
    topics.write(name, [b"v"])
    query = Query(topics, {"subscribe": name, "startingOffsets": "earliest", "kafka.group.id": "idle-group"})

    def idle(query: Query) -> dict[TopicPartition, int]:
        """Asked once more, what its group has then."""
        assert query.next() == [] and query.reader._settle(source.COMMIT_SECONDS)
        return committed(topics, "idle-group")

    query.next()
    assert idle(query) == {TopicPartition(name, 0): 1}
    coordinator = Coordinator(topics.door.cluster, "idle-group")
    topics.door.run(commits.delete(coordinator, [TopicPartition(name, 0)]))
    assert idle(query) == {}, "not each time"
    later = source.time.monotonic() + source.ANEW_SECONDS
    monkeypatch.setattr(source, "time", SimpleNamespace(monotonic=lambda: later))
    assert idle(query) == {TopicPartition(name, 0): 1}
    query.stop()


def committed(topics: Topics, group: str) -> dict[TopicPartition, int]:
    coordinator = Coordinator(topics.door.cluster, group)
    found = topics.door.run(topics.door.cluster.retrying(lambda: commits.fetch(coordinator)))
    return {where: what.offset for where, what in found.items()}


def test_a_mirror_that_fails_is_only_a_warning(node: Any, caplog: pytest.LogCaptureFixture) -> None:
    server = node()
    topics = Topics(server.address)
    query = Query(topics, {"subscribe": topics.make("no-mirror")})
    topics.close()
    server.kill()
    query.reader.commit(query.at)
    query.stop()
    assert "progress could not be mirrored into group 'spark-ottla-source-no-mirror-" in caplog.text


def test_offsets_of_the_connector_are_understood(topics: Topics) -> None:
    """Without our notes: who brings offsets from elsewhere can go on from them."""
    name = topics.make("brought")
    topics.write(name, [b"v"] * 5)
    query = Query(topics, {"subscribe": name}, {name: {"0": 3}})
    assert offsets(query.next()) == [(0, 3), (0, 4)]
    assert query.at["@group"]
    query.stop()


def test_a_range_knows_its_topic(topics: Topics) -> None:
    name = topics.make("knows")
    topics.write(name, [b"v"])
    (piece,) = Reader(Reading.batch(topics.options({"subscribe": name}))).partitions()
    assert isinstance(piece.value, Range)
    assert len(piece.value.topic_id) == 22


def test_what_cannot_be_imported_is_told_to_whoever_uses_the_format() -> None:
    """Spark passes over a module that fails to load, and says that there is no such format."""
    program = (
        "import sys; sys.modules['pyarrow'] = None\n"
        "from pyspark_ottla import DefaultSource\n"
        "assert DefaultSource.name() == 'ottla'\n"
        "DefaultSource({}).schema()"
    )
    ended = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True)
    assert ended.returncode == 1
    assert f'format("ottla") cannot be loaded by {sys.executable}' in ended.stderr
    assert "pip install 'ottla[spark]'" in ended.stderr
    assert "PYSPARK_PYTHON" in ended.stderr
