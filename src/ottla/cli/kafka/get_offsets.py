"""kafka-get-offsets.sh: one offset of each partition, found by time or by name."""

from __future__ import annotations

import re
import sys
from typing import TYPE_CHECKING

from ottla.cli.kafka.options import Failed, Options, Parser, flag, run, takes

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from ottla.client.admin import Admin
    from ottla.client.cluster import Cluster, TopicPartition

    Filter = Callable[[str, int], bool]

RULE = r"([^:,]*)(?::(?:([0-9]*)|(?:([0-9]*)-([0-9]*))))?"
MARKS = {
    "latest": -1,
    "earliest": -2,
    "max-timestamp": -3,
    "earliest-local": -4,
    "latest-tiered": -5,
    "earliest-pending-upload": -6,
}
MARKS_TEXT = " / ".join(f"{number} or {name}" for name, number in MARKS.items())
PARTITION_MAX = (1 << 31) - 1

PARSER = Parser(
    "An interactive shell for getting topic-partition offsets.",
    takes(
        "bootstrap-server",
        "REQUIRED. The server(s) to connect to in the form HOST1:PORT1,HOST2:PORT2.",
        "HOST1:PORT1,...,HOST3:PORT3",
    ),
    takes(
        "topic-partitions",
        f"Comma separated list of topic-partition patterns to get the offsets for, with the format of '{RULE}'. The first "
        "group is an optional regex for the topic name, if omitted, it matches any topic name. The section after ':' "
        "describes a 'partition' pattern, which can be: a number, a range in the format of 'NUMBER-NUMBER' (lower "
        "inclusive, upper exclusive), an inclusive lower bound in the format of 'NUMBER-', an exclusive upper bound in the "
        "format of '-NUMBER' or may be omitted to accept all partitions.",
        "topic1:1,topic2:0-3,topic3,topic4:5-,topic5:-3",
    ),
    takes(
        "topic",
        "The topic to get the offsets for. It also accepts a regular expression. If not present, all authorized topics are "
        "queried. Cannot be used if --topic-partitions is present.",
        "topic",
    ),
    takes(
        "partitions",
        "Comma separated list of partition ids to get the offsets for. If not present, all partitions of the authorized "
        "topics are queried. Cannot be used if --topic-partitions is present.",
        "partition ids",
    ),
    takes(
        "time",
        "timestamp of the offsets before that. [Note: No offset is returned, if the timestamp greater than recently "
        "committed record timestamp is given.]",
        f"<timestamp> / {MARKS_TEXT}",
        default="latest",
    ),
    takes("command-config", "Property file containing configs to be passed to Admin Client.", "config file"),
    flag(
        "exclude-internal-topics",
        "By default, internal topics are included. If specified, internal topics are excluded.",
    ),
    mistake=lambda text: Failed(f"Error occurred: {text}"),
)


def main(argv: Sequence[str] | None = None) -> int:
    return run(PARSER, argv, _get)


def _get(options: Options) -> None:
    from ottla.cli.kafka.connecting import with_admin

    options.require("bootstrap-server")
    try:
        timestamp, allowed = _timestamp(options.text("time")), _filter(options)
        with_admin(
            options.text("bootstrap-server"),
            options.value("command-config"),
            lambda admin: _show(admin, allowed, timestamp, options.has("exclude-internal-topics")),
        )
    except Failed as failure:
        raise Failed(f"Error occurred: {failure}")


async def _show(admin: Admin, allowed: Filter, timestamp: int, exclude_internal: bool) -> None:
    from ottla.client.cluster import TopicPartition

    topics = [topic for topic in await admin.describe_topics() if not (exclude_internal and topic.is_internal)]
    chosen = [TopicPartition(topic.name, p.partition) for topic in topics for p in topic.partitions]
    chosen = [where for where in chosen if allowed(where.topic, where.partition)]
    if not chosen:
        raise Failed("Could not match any topic-partitions with the specified filters")
    found = await _offsets(admin.cluster, chosen, timestamp)
    for where in sorted(found, key=lambda where: f"{where.topic}-{where.partition}"):
        if found[where] >= 0:
            print(f"{where.topic}:{where.partition}:{found[where]}")


async def _offsets(cluster: Cluster, chosen: list[TopicPartition], timestamp: int) -> dict[TopicPartition, int]:
    """All in one go, or, if any of them fails, one after the other, with a word about those that do."""
    from ottla.cli.kafka.java_errors import java_text
    from ottla.wire.errors import KafkaError

    try:
        found = await cluster.list_offsets(dict.fromkeys(chosen, timestamp))
        return {where: offset.offset for where, offset in found.items()}
    except KafkaError as error:
        if len(chosen) > 1:
            single = [await _offsets(cluster, [where], timestamp) for where in chosen]
            return {where: offset for one in single for where, offset in one.items()}
        name = f"{chosen[0].topic}-{chosen[0].partition}"
        print(f"Skip getting offsets for topic-partition {name} due to error: {java_text(error)}", file=sys.stderr)
        return {}


def _timestamp(text: str) -> int:
    try:
        return MARKS[text] if text in MARKS else int(text)
    except ValueError:
        raise Failed(f"Malformed time argument {text}. Please use {MARKS_TEXT}, or a specified long format timestamp")


def _filter(options: Options) -> Filter:
    rules = options.value("topic-partitions")
    if rules is not None:
        if options.has("topic") or options.has("partitions"):
            raise Failed("--topic-partitions cannot be used with --topic or --partitions")
        every = [_rule(rule) for rule in rules.rstrip(",").split(",")]
        return lambda topic, partition: any(rule(topic, partition) for rule in every)
    pattern = included(options.value("topic") or ".*")
    numbers = _numbers(options.value("partitions") or "")
    return lambda topic, partition: bool(pattern.fullmatch(topic)) and (not numbers or partition in numbers)


def _rule(text: str) -> Filter:
    match = re.fullmatch(RULE, text)
    if match is None:
        raise Failed(f"org.apache.kafka.tools.TerseException: Invalid rule specification: {text}")
    pattern = included(match[1] or ".*")
    low, high = (int(match[3] or 0), int(match[4] or PARTITION_MAX))
    if match[2]:
        low, high = int(match[2]), int(match[2]) + 1
    return lambda topic, partition: bool(pattern.fullmatch(topic)) and low <= partition < high


def _numbers(text: str) -> list[int]:
    parts = text.rstrip(",")  # so does Java, when it splits
    try:
        return [int(part) for part in parts.split(",")] if parts else []
    except ValueError:
        raise Failed(f"--partitions expects a comma separated list of numeric partition ids, but received: {text}")


def included(text: str) -> re.Pattern[str]:
    """A pattern of topics as Kafka's tools read it: commas stand for "or", blanks and quotes around it for nothing."""
    try:
        return re.compile(text.strip().replace(",", "|").replace(" ", "").strip("\"'"))
    except re.error:
        raise Failed(f"{text} is an invalid regex.")
