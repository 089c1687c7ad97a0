"""The console tools and the perf tools: ours beside Apache's, on one node."""

from __future__ import annotations

import asyncio
import itertools
import re
import struct
import time
from collections.abc import Iterator

import pytest

from apache import kafka
from compat.both_tools import Both, ours
from harness import Node, stop_all
from ottla.client.admin import Admin
from ottla.client.cluster import EARLIEST, LATEST, Cluster, TopicPartition
from ottla.client.consumer import Consumed, Consumer
from ottla.client.producer import Producer
from ottla.wire.compression import Codec
from ottla.wire.messages.fetch import FetchRequest, FetchResponse
from ottla.wire.records import batches

pytestmark = pytest.mark.apache

PRODUCER, CONSUMER = "kafka-console-producer", "kafka-console-consumer"
NUMBERS = itertools.count()
DOUBLES = (1.0, -0.5, 1e7, 123456789.125, 1e-3, 1e-4, 1.5e-300, 0.0, 1e21, 9999999.0, float("nan"), float("-inf"))


@pytest.fixture(scope="module")
def address(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    if reason := kafka.why_missing():
        pytest.skip(reason)
    settings = {"group.initial.rebalance.delay.ms": "0", "offsets.topic.num.partitions": "1"}
    node = Node(tmp_path_factory.mktemp("console-tools") / "data", settings=settings)
    try:
        address = node.start().address
        asyncio.run(_prepare(address))
        yield address
    finally:
        stop_all([node])


async def _prepare(address: str) -> None:
    async with Cluster(address) as cluster:
        keep = {"retention.ms": "-1"}
        for topic in ("texts", "numbers", "doubles", "stamped", "many"):
            log_time = {"message.timestamp.type": "LogAppendTime"} if topic == "stamped" else {}
            await Admin(cluster).create_topic(topic, partitions=1, configs=keep | log_time)
        async with Producer(cluster) as producer:
            for i in range(12):
                headers = (("h", b"x%d" % i), ("n", None)) if i % 3 else ()
                key, value = b"k%d" % i if i % 4 else None, b"v%d" % i if i % 5 else None
                await producer.post("texts", value, key, headers, timestamp=1_700_000_000_000 + 1000 * i)
            for number in (1, -5, 1 << 30):
                await producer.post("numbers", struct.pack(">i", number), struct.pack(">h", 7))
            await producer.post("numbers", b"no number", struct.pack(">h", 8))
            for double in DOUBLES:
                await producer.post("doubles", struct.pack(">d", double))
            await producer.post("stamped", b"when?")
            for _ in range(3000):
                await producer.post("many", b"one of many")


def read(address: str, topic: str) -> list[Consumed]:
    async def main() -> list[Consumed]:
        async with Cluster(address) as cluster:
            where = TopicPartition(topic, 0)
            end = (await cluster.list_offsets({where: LATEST}))[where].offset
            return [record async for record in Consumer(cluster, {where: EARLIEST}, ends={where: end})]

    return asyncio.run(main())


# Writing: both tools write to topics of their own, and the topics must be the same.


@pytest.mark.parametrize(
    ("words", "lines"),
    [
        ("", "one\ntwo\n\nthree"),
        ("--property parse.key=true --property key.separator=:", "k:v\n:no key\nk:\nk:v:w\n"),
        ("--reader-property parse.key=true", "k\tv\n"),
        ("--reader-property parse.key=true --reader-property ignore.error=true", "k\tv\nno key here\n"),
        (
            "--reader-property parse.headers=true --reader-property parse.key=true --reader-property null.marker=NIL",
            "a:1,b:2\tk\tv\nNIL\tNIL\tNIL\na:NIL\tk\tNIL\n",
        ),
        (
            "--reader-property parse.headers=true --reader-property headers.delimiter=| --reader-property headers.separator=;"
            " --reader-property headers.key.separator==",
            "a=1;b=x=y|the value|\n",
        ),
        ("--sync --request-required-acks 1 --compression-codec lz4", "a\nb\n"),
        ("--producer-property linger.ms=0 --producer-property batch.size=100 --max-block-ms 9000", "a\nb\n"),
    ],
)
def test_lines_become_the_same_records(both: Both, address: str, words: str, lines: str) -> None:
    """CLI-03, CLI-04, CLI-05, CLI-20"""
    number = next(NUMBERS)
    topics = f"written-{number}-a", f"written-{number}-o"
    arguments = [*both.bootstrap, *words.split()]
    theirs = both.apache.run(PRODUCER, *arguments, "--topic", topics[0], stdin=lines)
    mine = ours(PRODUCER, *arguments, "--topic", topics[1], stdin=lines)
    assert (mine.code, mine.out, mine.err) == (theirs.code, theirs.out, theirs.err)
    second = [record[4:7] for record in read(address, topics[1])]
    deadline = time.monotonic() + 30
    while len(first := read(address, topics[0])) < len(second) and time.monotonic() < deadline:
        time.sleep(0.05)  # Apache's tool sends when its process ends; here it lives on, and lingers
    assert second == [record[4:7] for record in first] != []


@pytest.mark.parametrize(
    "words", ["--compression-codec zstd", "--command-property compression.type=zstd", "--compression-codec"]
)
def test_batches_are_compressed(both: Both, address: str, words: str) -> None:
    """CLI-05: by the option or by the producer's own setting; without a value it is gzip."""
    topic = f"packed-{next(NUMBERS)}"
    assert ours(PRODUCER, *both.bootstrap, *words.split(), "--topic", topic, stdin="x\n" * 50).code == 0

    async def codecs() -> set[int]:
        async with Cluster(address) as cluster:
            connection, _ = await cluster.leader(TopicPartition(topic, 0))
            asked = FetchRequest.Topic.Partition(partition=0, fetch_offset=0, partition_max_bytes=1 << 20)
            wanted = FetchRequest.Topic(topic=topic, topic_id=cluster.topic_id(topic), partitions=[asked])
            answer: FetchResponse = await connection.request(FetchRequest(max_bytes=1 << 20, topics=[wanted]))
            return {batch.codec for _, batch in batches(answer.responses[0].partitions[0].records)}

    assert asyncio.run(codecs()) == {Codec.ZSTD if "zstd" in words else Codec.GZIP}


@pytest.mark.parametrize(
    ("words", "lines"),
    [
        ("--topic x --reader-property parse.key=true", "no key\n"),
        ("--topic x --reader-property parse.headers=true", "a:1,b\tv\n"),
        ("--topic x --reader-property null.marker=,", ""),
        ("--topic x --property a=b --reader-property c=d", ""),
        ("--topic x --compression-codec brotli", ""),
        ("--topic x --request-required-acks 2", ""),
        ("--topic x --batch-size many", ""),
        ("--topic x --command-property enable.idempotence=true --request-required-acks 1", ""),
        ("--topic texts --command-property transactional.id=x", "one\ntwo\n"),
        ("--topic texts --command-property transactional.id=x --sync", "one\n"),
        ("--topic texts --command-property transactional.id=x --command-property enable.idempotence=false", ""),
        ("--topic texts --command-property transactional.id=x --request-required-acks 1", ""),
        ("--topic x --line-reader Own", ""),
        ("--sync", ""),
        ("--topic", ""),
        ("--topic x --colour", ""),
        ("--help", ""),
    ],
)
def test_mistakes_of_writers(both: Both, words: str, lines: str) -> None:
    said = both.same(PRODUCER, *words.split(), stdin=lines)
    assert said.code == 1


# Reading

SHOWN = "--formatter-property print."
ALL = " ".join(
    f"{SHOWN}{name}=true" for name in ("timestamp", "partition", "offset", "epoch", "delivery", "headers", "key")
)


@pytest.mark.parametrize(
    "words",
    [
        "--topic texts --from-beginning --max-messages 12",
        "--topic texts --from-beginning --max-messages 12 --property print.key=true --property print.timestamp=true",
        f"--topic texts --from-beginning --max-messages 12 {ALL}",
        f"--topic texts --from-beginning --max-messages 5 {SHOWN}value=false {SHOWN}headers=true",
        f"--topic texts --from-beginning --max-messages 5 {SHOWN}key=true --formatter-property key.separator=| "
        "--formatter-property line.separator=# --formatter-property null.literal=NIL",
        "--topic texts --partition 0 --offset 3 --max-messages 4",
        "--topic texts --partition 0 --offset earliest --timeout-ms 3000 --isolation-level read_committed",
        f"--topic stamped --partition 0 --from-beginning --max-messages 1 {SHOWN}offset=true",
        "--topic texts --partition 0 --offset 4 --max-messages 3 --formatter org.apache.kafka.tools.consumer."
        "NoOpMessageFormatter",
        "--include text[s] --from-beginning --max-messages 12 --command-property client.id=me",
        "--topic texts --from-beginning --max-messages 12 --consumer-property group.protocol=consumer",
        "--topic doubles --partition 0 --from-beginning --max-messages 12 --value-deserializer "
        "org.apache.kafka.common.serialization.DoubleDeserializer",
        "--topic numbers --partition 0 --from-beginning --max-messages 3 --value-deserializer "
        "org.apache.kafka.common.serialization.IntegerDeserializer --key-deserializer "
        f"org.apache.kafka.common.serialization.ShortDeserializer {SHOWN}key=true",
    ],
)
def test_records_look_the_same(both: Both, words: str) -> None:
    """CLI-06, CLI-20: also how many there were, on standard error."""
    said = both.same(CONSUMER, *words.split(), sorts=False)
    assert said.code == 0 and said.err[-1].startswith("Processed a total of ")


def test_records_that_cannot_be_read(both: Both) -> None:
    """They end it, or are skipped with --skip-message-on-error."""
    kind = "--value-deserializer org.apache.kafka.common.serialization.IntegerDeserializer"
    words = f"--topic numbers --partition 0 --from-beginning --max-messages 4 {kind}".split()
    halting, skipping = (ours(CONSUMER, *both.bootstrap, *words, *more) for more in ([], ["--skip-message-on-error"]))
    theirs = both.apache.run(CONSUMER, *both.bootstrap, *words)
    assert (halting.code, halting.out) == (theirs.code, theirs.out) == (1, "1\n-5\n1073741824\n")
    assert (skipping.code, skipping.out) == (0, halting.out)
    assert "skipping this message" in skipping.err and "Processed a total of 4 messages" in skipping.err


def test_a_group_takes_turns_with_apaches_tool(both: Both) -> None:
    """CLI-06, OFF-03: what one of them read and committed, the other does not read again; unread records stay unread."""
    words = [*both.bootstrap, "--topic", "texts", "--group", "turns", "--from-beginning", "--max-messages", "4"]
    texts = [run(CONSUMER, *words).out.split() for run in (ours, both.apache.run, ours)]
    assert texts == [
        ["null", "v1", "v2", "v3"],
        ["v4", "null", "v6", "v7"],
        ["v8", "v9", "null", "v11"],
    ]


@pytest.mark.parametrize("kind", ["OffsetsMessageFormatter", "GroupMetadataMessageFormatter"])
def test_internal_topics_as_json(both: Both, kind: str) -> None:
    """The group of the test before is in there, and both tools find the same words for it."""
    formatter = f"--formatter org.apache.kafka.tools.consumer.{kind}"
    words = f"--topic __consumer_offsets --partition 0 --from-beginning --timeout-ms 3000 {formatter}"
    said = both.same(CONSUMER, *words.split(), sorts=False)
    assert '"turns"' in said.out[0]


@pytest.mark.parametrize(
    "words",
    [
        "",
        "--topic a --include b",
        "--topic texts --offset 4",
        "--partition 0 --include a",
        "--topic texts --partition 0 --offset -4",
        "--topic texts --partition 0 --offset 3 --from-beginning",
        "--topic texts --partition 0 --group g",
        "--topic texts --group g --command-property group.id=h",
        "--topic texts --from-beginning --command-property auto.offset.reset=latest",
        "--topic texts --property a=b --formatter-property c=d",
        "--topic texts --formatter Own",
        "--topic texts --group",
        "--topic texts --whitelist b",
        "--help",
    ],
)
def test_mistakes_of_readers(both: Both, words: str) -> None:
    said = both.same(CONSUMER, *words.split())
    assert said.code == 1


# Measuring: numbers differ, the words around them must not.


def without_numbers(line: str) -> str:
    return re.sub(r"\d[\d.:E-]*(?: \d\d:\d\d:\d\d:\d+)?", "N", line).rstrip()


def test_producer_performance(both: Both) -> None:
    size = [
        "--num-records",
        "2000",
        "--record-size",
        "100",
        "--warmup-records",
        "500",
        "--reporting-interval",
        "600000",
    ]
    words = ["--topic", "measured", "--throughput", "-1", *size]
    said = both.same("kafka-producer-perf-test", *words, normal=without_numbers, sorts=False)
    assert said.out[-1].startswith("N steady state records sent, N records/sec (N MB/sec), N ms avg latency")
    old = [*words, "--producer-props", f"bootstrap.servers={both.bootstrap[1]}", "acks=1", "compression.type=lz4"]
    both.same("kafka-producer-perf-test", *old, connects=False, normal=without_numbers, sorts=False)
    in_transactions = [*words, "--transactional-id", "measured", "--transaction-duration-ms", "20"]
    both.same("kafka-producer-perf-test", *in_transactions, normal=without_numbers, sorts=False)


def test_consumer_performance(both: Both) -> None:
    perf = "kafka-consumer-perf-test"
    words = ["--topic", "many", "--num-records", "2500"]
    said = both.same(perf, *words, normal=without_numbers, sorts=False)
    assert said.out[-1].startswith("N, N, N")
    both.same(perf, "--topic", "many", "--messages", "10", "--hide-header", normal=without_numbers)
    both.same(perf, *words[:2], "--num-records", "999999", "--timeout", "3000", normal=without_numbers)
    both.same(perf, *words, connects=False, normal=without_numbers)
    both.same(perf, "--topic", "many", normal=without_numbers)
    both.same(perf, "--num-records", "4", normal=without_numbers)
    both.same(perf, "--colour", normal=without_numbers)
