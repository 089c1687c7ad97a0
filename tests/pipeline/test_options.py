"""Options as Spark's Kafka connector takes them, and what is said to those who mistype one."""

from __future__ import annotations

import pickle

import pytest

from ottla.client.cluster import EARLIEST, LATEST, TopicPartition
from ottla.pipeline.options import READ_OPTIONS, BadOption, Connect, Limit, Reading, Text, Topics, refuse_unknown

REACH = {"kafka.bootstrap.servers": "localhost:9092"}
TOPIC = {**REACH, "subscribe": "orders"}


def refused(options: dict[str, str], stream: bool = False) -> str:
    with pytest.raises(BadOption) as caught:
        (Reading.stream if stream else Reading.batch)(options)
    return str(caught.value)


def test_names_of_options_have_no_capital_letters() -> None:
    options = {"KAFKA.Bootstrap.Servers": "h:1", "SubScribe": "t", "MINPARTITIONS": "4", "includeHeaders": "TRUE"}
    reading = Reading.batch(options)
    assert (reading.connect.bootstrap, reading.topics.names, reading.min_partitions) == ("h:1", ("t",), 4)
    assert reading.headers


def test_the_defaults_are_those_of_the_connector() -> None:
    batch, stream = Reading.batch(TOPIC), Reading.stream(TOPIC)
    assert (batch.start, batch.end) == (Limit(mark=EARLIEST), Limit(mark=LATEST))
    assert stream.start == Limit(mark=LATEST)
    for reading in (batch, stream):
        assert reading.fail_on_data_loss
        assert not reading.headers
        assert not reading.read_committed
        assert not reading.latest_without_match
        assert reading.trigger_delay_ms == 15 * 60 * 1000
        assert (reading.attempts, reading.attempt_pause_s, reading.poll_s) == (3, 0.01, 120)
        assert (reading.min_partitions, reading.partition_records_max) == (None, None)


def test_all_options_travel_to_the_executors() -> None:
    reading = Reading.stream({**TOPIC, "kafka.client.id": "me", "kafka.linger.ms": "5"})
    assert pickle.loads(pickle.dumps(reading)) == reading
    assert reading.connect.client_id == "me"
    assert reading.connect.settings["linger.ms"] == "5"


def test_three_ways_to_name_partitions() -> None:
    assert Reading.batch({**REACH, "subscribe": " a , b,,a"}).topics == Topics(names=("a", "b"))
    assert Reading.batch({**REACH, "subscribePattern": "a.*"}).topics == Topics(pattern="a.*")
    assigned = Reading.batch({**REACH, "assign": '{"b":[1,0],"a":[2]}'}).topics.assigned
    assert assigned == (TopicPartition("a", 2), TopicPartition("b", 0), TopicPartition("b", 1))


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ({}, "no topic is named"),
        ({"subscribe": "a", "assign": '{"a":[0]}'}, "subscribe and assign cannot be used together"),
        ({"subscribe": " , "}, "write one topic"),
        ({"subscribePattern": "("}, "not a regular expression"),
        ({"subscribePattern": ""}, "is empty"),
        ({"assign": "a"}, '{"topicA":[0,1]'),
        ({"assign": '{"a":["x"]}'}, '{"topicA":[0,1]'),
        ({"assign": "{}"}, '{"topicA":[0,1]'),
    ],
)
def test_what_is_wrong_with_the_partitions_is_said(options: dict[str, str], said: str) -> None:
    assert said in refused({**REACH, **options})


def test_a_time_goes_before_times_and_these_before_offsets() -> None:
    options = {**TOPIC, "startingOffsets": "earliest"}
    assert Reading.stream(options).start == Limit(mark=EARLIEST)
    options["startingOffsetsByTimestamp"] = '{"orders":{"0":5}}'
    assert Reading.stream(options).start == Limit(timestamps={TopicPartition("orders", 0): 5})
    options["startingTimestamp"] = "1700000000000"
    assert Reading.stream(options).start == Limit(timestamp=1700000000000)


def test_offsets_as_json_with_marks() -> None:
    options = {**TOPIC, "startingOffsets": '{"orders":{"0":23,"1":-2}}', "endingOffsets": '{"orders":{"0":24,"1":-1}}'}
    reading = Reading.batch(options)
    assert reading.start == Limit(offsets={TopicPartition("orders", 0): 23, TopicPartition("orders", 1): EARLIEST})
    assert reading.end == Limit(offsets={TopicPartition("orders", 0): 24, TopicPartition("orders", 1): LATEST})


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ({"startingOffsets": "latest"}, "nothing to read from latest on"),
        ({"startingOffsets": '{"orders":{"0":-1}}'}, "nothing to read from latest on"),
        ({"endingOffsets": "earliest"}, "nothing to read before earliest"),
        ({"startingOffsets": "oldest"}, "write for example earliest, latest"),
        ({"startingOffsets": '{"orders":{"0":-3}}'}, "write for example"),
        ({"startingOffsets": '{"orders":5}'}, "write for example"),
        ({"startingTimestamp": "yesterday"}, "startingTimestamp is 'yesterday': write a whole number"),
        ({"startingOffsets": '{"o":{"0":9}}', "endingOffsets": '{"o":{"0":8}}'}, "o-0 would be read from 9 to 8"),
        ({"startingOffsets": '{"o":{"0":9}}', "endingOffsets": '{"o":{"1":9}}'}, "only one has o-0, o-1"),
        ({"startingOffsetsByTimestampStrategy": "never"}, "write error or latest"),
        ({"minPartitions": "0"}, "1 or more"),
        ({"maxRecordsPerPartition": "many"}, "whole number"),
        ({"minOffsetsPerTrigger": "20", "maxOffsetsPerTrigger": "10"}, "(20) is above maxOffsetsPerTrigger (10)"),
        ({"failOnDataLoss": "maybe"}, "write true or false"),
        ({"filterPushdown": "maybe"}, "write false, true or anew"),
        ({"maxTriggerDelay": "soon"}, "a time such as 30s"),
        ({"kafka.isolation.level": "serializable"}, "read_committed or read_uncommitted"),
        ({"kafka.auto.offset.reset": "earliest"}, "set startingOffsets"),
        ({"kafka.enable.auto.commit": "true"}, "checkpoint"),
        ({"kafka.security.protocol": "SASL_SSL"}, "only PLAINTEXT"),
        ({"kafka.sasl.mechanism": "PLAIN"}, "TLS and SASL are not supported"),
        ({"kafka.ssl.truststore.location": "ca.pem"}, "TLS and SASL are not supported"),
        ({"kafka.default.api.timeout.ms": "no"}, "whole number"),
        ({"startingOfsets": "earliest"}, "did you mean 'startingOffsets'?"),
        ({"bootstrap.servers": "x:1"}, "did you mean 'kafka.bootstrap.servers'?"),
        ({"zzz": "1"}, "known are"),
    ],
)
def test_what_is_wrong_is_said(options: dict[str, str], said: str) -> None:
    assert said in refused({**TOPIC, **options})


def test_no_offset_is_enough_for_a_batch() -> None:
    """As for the connector, for which it is one way not to wait."""
    reading = Reading.stream({**TOPIC, "minOffsetsPerTrigger": "0", "maxOffsetsPerTrigger": "5"})
    assert (reading.offsets_per_trigger_min, reading.offsets_per_trigger_max) == (0, 5)


def test_a_stream_has_no_end() -> None:
    for name in ("endingOffsets", "endingTimestamp", "endingOffsetsByTimestamp"):
        assert f"{name} has no meaning in a stream" in refused({**TOPIC, name: "latest"}, stream=True)


@pytest.mark.parametrize(("text", "ms"), [("30s", 30_000), ("15m", 900_000), ("2 h", 7_200_000), ("250", 250)])
def test_times_have_units(text: str, ms: int) -> None:
    assert Text({"maxTriggerDelay": text}).duration_ms("maxTriggerDelay", 1) == ms


def test_the_address_is_asked_for_and_checked() -> None:
    with pytest.raises(BadOption, match=r"kafka\.bootstrap\.servers is missing: add"):
        Connect.of({})
    with pytest.raises(BadOption, match="host:port"):
        Connect.of({"kafka.bootstrap.servers": "host:none"})


def test_settings_of_kafka_clients_are_no_typing_errors() -> None:
    refuse_unknown({**TOPIC, "kafka.receive.buffer.bytes": "1"}, READ_OPTIONS)
    with pytest.raises(BadOption, match="there is no option 'topic'"):
        refuse_unknown({**TOPIC, "topic": "x"}, READ_OPTIONS)
