"""The options of Spark's Kafka connector, read and checked once, before anything is connected.

Names and meanings are the connector's, so that a query changes one word, `format("kafka")` to `format("ottla")`. Spark
does not tell capital letters apart in names of options, and neither do we. What is wrong is said in terms of what was
written and what could be written instead: these messages are all that a user sees of a typing error.

Options that begin with `kafka.` are those of Kafka's own clients. Those that mean something here are used, those that
tune a client we do not have are passed over, and those that would be dangerous to pass over (security, and what the
connector itself refuses) are refused.
"""

from __future__ import annotations

import difflib
import json
import logging
import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any

from ottla.client.cluster import BUDGET_SECONDS, EARLIEST, LATEST, TopicPartition, addresses
from ottla.pipeline.blocking import Broker

log = logging.getLogger(__name__)

BOOTSTRAP = "kafka.bootstrap.servers"
KAFKA = "kafka."
PARTITION_FETCH_BYTES = 8 << 20
FETCH_BYTES = 50 << 20
# The client takes no answer above 100 MB.
FETCH_BYTES_CEILING = 64 << 20
POLL_SECONDS = 120.0
TRIGGER_DELAY_MS = 15 * 60_000
GROUP_PREFIX = "spark-ottla-source"
# How far sinks have come: see `committing.py`.
PROGRESS_TOPIC = "__ottla_sink_progress"

# What the source takes, as people write it. `filterPushdown` is ours.
READ_OPTIONS = (
    "subscribe",
    "subscribePattern",
    "assign",
    "startingOffsets",
    "endingOffsets",
    "startingTimestamp",
    "endingTimestamp",
    "startingOffsetsByTimestamp",
    "endingOffsetsByTimestamp",
    "startingOffsetsByTimestampStrategy",
    "maxOffsetsPerTrigger",
    "minOffsetsPerTrigger",
    "maxTriggerDelay",
    "minPartitions",
    "maxRecordsPerPartition",
    "failOnDataLoss",
    "includeHeaders",
    "groupIdPrefix",
    "fetchOffset.numRetries",
    "fetchOffset.retryIntervalMs",
    "kafkaConsumer.pollTimeoutMs",
    "partition.metadata.cache.ttl.ms",
    "filterPushdown",
)

# `kafka.` settings that the source cannot honour, and what to do instead.
REFUSED_WHEN_READING = {
    "auto.offset.reset": "set startingOffsets to earliest or latest: Spark itself keeps where a query goes on",
    "key.deserializer": "keys come as binary; use columns of the DataFrame to decode them",
    "value.deserializer": "values come as binary; use columns of the DataFrame to decode them",
    "enable.auto.commit": "progress is kept in Spark's checkpoint and only mirrored into the group",
    "interceptor.classes": "there is no Java consumer here that could call them",
}

# What `filterPushdown` may be: see `source.AnewReader`.
NARROWS_NOT, NARROWS, ANEW = "false", "true", "anew"

_DURATION = re.compile(r"(\d+)\s*(us|ms|s|m|min|h|d)?")
_UNIT_MS = {"us": 0.001, "ms": 1, "s": 1000, "m": 60_000, "min": 60_000, "h": 3_600_000, "d": 86_400_000}


class BadOption(ValueError):
    """An option that is missing, unknown, or has a value that means nothing. The message says what to write."""


class Text:
    """Options by name, whatever their capital letters; what is asked for twice is read the same way."""

    def __init__(self, options: Mapping[str, str]) -> None:
        self._values = {name.lower(): value for name, value in options.items()}

    def get(self, name: str) -> str | None:
        value = self._values.get(name.lower())
        return None if value is None else str(value).strip()

    def names(self) -> list[str]:
        return list(self._values)

    def number(self, name: str, default: int | None = None, *, least: int = 1) -> int | None:
        value = self.get(name)
        if value is None:
            return default
        if not re.fullmatch(r"-?\d+", value) or int(value) < least:
            raise BadOption(f"{name} is {value!r}: write a whole number, {least} or more")
        return int(value)

    def flag(self, name: str, default: bool) -> bool:
        value = self.get(name)
        if value is None:
            return default
        if value.lower() not in ("true", "false"):
            raise BadOption(f"{name} is {value!r}: write true or false")
        return value.lower() == "true"

    def duration_ms(self, name: str, default: int) -> int:
        value = self.get(name)
        if value is None:
            return default
        found = _DURATION.fullmatch(value.lower())
        if found is None:
            raise BadOption(f"{name} is {value!r}: write a time such as 30s, 15m or 500ms")
        return int(int(found[1]) * _UNIT_MS[found[2] or "ms"])


def refuse_unknown(options: Mapping[str, str], known: Iterable[str]) -> None:
    """An option nobody reads is a typing error, and would be passed over in silence."""
    names = {name.lower(): name for name in (*known, BOOTSTRAP)}
    for name in Text(options).names():
        if name in names or (name.startswith(KAFKA) and name != KAFKA):
            continue
        raise BadOption(f"there is no option {name!r}{_suggestion(name, names)}")


def _suggestion(name: str, names: Mapping[str, str]) -> str:
    alike = difflib.get_close_matches(name, [*names, *(known.removeprefix(KAFKA) for known in names)], 1, 0.7)
    if not alike:
        return f"; known are {', '.join(sorted(names.values(), key=str.lower))}, and kafka.* for settings of a client"
    return f"; did you mean {names.get(alike[0], names.get(KAFKA + alike[0]))!r}?"


@dataclass(frozen=True)
class Connect:
    """How to reach the cluster: what source and sink have in common."""

    bootstrap: str
    client_id: str = "ottla-spark"
    budget_s: float = BUDGET_SECONDS
    # Every `kafka.` option without that prefix, in small letters.
    settings: Mapping[str, str] = field(default_factory=dict)

    @classmethod
    def of(cls, options: Mapping[str, str]) -> Connect:
        text = Text(options)
        bootstrap = text.get(BOOTSTRAP)
        if not bootstrap:
            raise BadOption(f"{BOOTSTRAP} is missing: add .option({BOOTSTRAP!r}, 'host:9092')")
        try:
            addresses(bootstrap)
        except ValueError as error:
            raise BadOption(f"{BOOTSTRAP}: {error}")
        settings = {name.removeprefix(KAFKA): text.get(name) or "" for name in text.names() if name.startswith(KAFKA)}
        _refuse_security(settings)
        budget_ms = text.number("kafka.default.api.timeout.ms", int(BUDGET_SECONDS * 1000))
        return cls(bootstrap, settings.get("client.id") or cls.client_id, (budget_ms or 0) / 1000, settings)

    def broker(self) -> Broker:
        return Broker(self.bootstrap, client_id=self.client_id, budget_s=self.budget_s)


def _refuse_security(settings: Mapping[str, str]) -> None:
    protocol = settings.get("security.protocol", "PLAINTEXT")
    if protocol.upper() != "PLAINTEXT":
        raise BadOption(
            f"kafka.security.protocol is {protocol!r}: only PLAINTEXT listeners can be reached so far; "
            "nothing is sent over an unprotected connection in its place"
        )
    for name in settings:
        if name.startswith(("sasl.", "ssl.")):
            raise BadOption(
                f"kafka.{name}: TLS and SASL are not supported so far; remove it to use a PLAINTEXT listener"
            )


# Which partitions.


@dataclass(frozen=True)
class Topics:
    """One of three ways to say which partitions are read."""

    names: tuple[str, ...] = ()
    pattern: str | None = None
    assigned: tuple[TopicPartition, ...] = ()


WAYS = ("subscribe", "subscribePattern", "assign")


def _topics(text: Text) -> Topics:
    given = [name for name in WAYS if text.get(name) is not None]
    if not given:
        raise BadOption("no topic is named: add .option('subscribe', 'a-topic'), or subscribePattern, or assign")
    if len(given) > 1:
        raise BadOption(f"{' and '.join(given)} cannot be used together: keep one of them")
    value = text.get(given[0]) or ""
    if given[0] == "assign":
        return Topics(assigned=_assigned(value))
    if given[0] == "subscribePattern":
        return Topics(pattern=_pattern(value))
    names = tuple(dict.fromkeys(filter(None, (name.strip() for name in value.split(",")))))
    if not names:
        raise BadOption(f"subscribe is {value!r}: write one topic, or several with commas between")
    return Topics(names=names)


def _pattern(value: str) -> str:
    try:
        re.compile(value)
    except re.error as error:
        raise BadOption(f"subscribePattern {value!r} is not a regular expression: {error}")
    if not value:
        raise BadOption("subscribePattern is empty: write a regular expression such as 'orders.*'")
    return value


def _assigned(value: str) -> tuple[TopicPartition, ...]:
    example = f"""assign is {value!r}: write for example {{"topicA":[0,1],"topicB":[2,4]}}"""
    table = _json_object(value, example)
    for numbers in table.values():
        if not isinstance(numbers, list) or not all(_is_whole(number, 0) for number in numbers):
            raise BadOption(example)
    found = tuple(sorted({TopicPartition(topic, number) for topic, numbers in table.items() for number in numbers}))
    if not found:
        raise BadOption(example)
    return found


def _json_object(value: str, example: str) -> dict[str, Any]:
    try:
        table = json.loads(value)
    except ValueError:
        raise BadOption(example)
    if not isinstance(table, dict):
        raise BadOption(example)
    return table


def _is_whole(number: object, least: int) -> bool:
    return isinstance(number, int) and not isinstance(number, bool) and number >= least


# Where to begin and where to end.


@dataclass(frozen=True)
class Limit:
    """A side of what is read: a mark for all partitions, or an offset, or a time, for each or for all."""

    mark: int | None = None
    offsets: Mapping[TopicPartition, int] | None = None
    timestamp: int | None = None
    timestamps: Mapping[TopicPartition, int] | None = None


MARKS = {"earliest": EARLIEST, "latest": LATEST}


def _limit(text: Text, side: str, default: int) -> Limit:
    """The connector's order: a time for all, then times, then offsets."""
    if text.get(f"{side}Timestamp") is not None:
        return Limit(timestamp=text.number(f"{side}Timestamp", least=0))
    name = f"{side}OffsetsByTimestamp"
    if (value := text.get(name)) is not None:
        return Limit(timestamps=_by_partition(name, value, 0, '{"topicA":{"0":1700000000000}}'))
    name = f"{side}Offsets"
    value = text.get(name)
    if value is None or value.lower() in MARKS:
        return Limit(mark=default if value is None else MARKS[value.lower()])
    example = '{"topicA":{"0":23,"1":-1},"topicB":{"0":-2}} (-2 earliest, -1 latest)'
    return Limit(offsets=_by_partition(name, value, EARLIEST, f"earliest, latest, or {example}"))


def _by_partition(name: str, value: str, least: int, example: str) -> dict[TopicPartition, int]:
    message = f"{name} is {value!r}: write for example {example}"
    found: dict[TopicPartition, int] = {}
    for topic, partitions in _json_object(value, message).items():
        if not isinstance(partitions, dict):
            raise BadOption(message)
        for partition, number in partitions.items():
            if not partition.isdigit() or not _is_whole(number, least):
                raise BadOption(message)
            found[TopicPartition(topic, int(partition))] = number
    return found


@dataclass(frozen=True)
class Reading:
    """Everything that was said about what to read, and how."""

    connect: Connect
    topics: Topics
    start: Limit
    end: Limit
    latest_without_match: bool
    fail_on_data_loss: bool
    headers: bool
    read_committed: bool
    group_id: str | None
    group_prefix: str
    min_partitions: int | None
    partition_records_max: int | None
    offsets_per_trigger_max: int | None
    offsets_per_trigger_min: int | None
    trigger_delay_ms: int
    partition_bytes_max: int
    bytes_max: int
    poll_s: float
    attempts: int
    attempt_pause_s: float
    pushdown: str

    @classmethod
    def batch(cls, options: Mapping[str, str]) -> Reading:
        """Checked as a batch query needs it."""
        reading = cls._of(options, EARLIEST)
        _refuse_mark(
            reading.start, LATEST, "startingOffsets", "a batch query would have nothing to read from latest on"
        )
        _refuse_mark(reading.end, EARLIEST, "endingOffsets", "a batch query would have nothing to read before earliest")
        if reading.start.offsets is not None and reading.end.offsets is not None:
            _match(reading.start.offsets, reading.end.offsets, "Offsets")
        if reading.start.timestamps is not None and reading.end.timestamps is not None:
            _match(reading.start.timestamps, reading.end.timestamps, "OffsetsByTimestamp")
        for name in ("maxOffsetsPerTrigger", "minOffsetsPerTrigger", "maxTriggerDelay"):
            if Text(options).get(name) is not None:
                log.warning("%s is passed over in a batch query", name)
        return reading

    @classmethod
    def stream(cls, options: Mapping[str, str]) -> Reading:
        """Checked as a stream needs it."""
        for name in ("endingOffsets", "endingOffsetsByTimestamp", "endingTimestamp"):
            if Text(options).get(name) is not None:
                raise BadOption(f"{name} has no meaning in a stream: remove it, or use spark.read for a batch query")
        return cls._of(options, LATEST)

    @classmethod
    def _of(cls, options: Mapping[str, str], default_start: int) -> Reading:
        refuse_unknown(options, READ_OPTIONS)
        text = Text(options)
        connect = Connect.of(options)
        for name, instead in REFUSED_WHEN_READING.items():
            if name in connect.settings:
                raise BadOption(f"kafka.{name} is not for this source: {instead}")
        _refuse_fewest_above_most(text)
        return cls(
            connect=connect,
            topics=_topics(text),
            start=_limit(text, "starting", default_start),
            end=_limit(text, "ending", LATEST),
            latest_without_match=_latest_without_match(text),
            fail_on_data_loss=text.flag("failOnDataLoss", True),
            headers=text.flag("includeHeaders", False),
            read_committed=_read_committed(connect.settings),
            group_id=text.get("kafka.group.id") or None,
            group_prefix=text.get("groupIdPrefix") or GROUP_PREFIX,
            min_partitions=text.number("minPartitions"),
            partition_records_max=text.number("maxRecordsPerPartition"),
            offsets_per_trigger_max=text.number("maxOffsetsPerTrigger"),
            offsets_per_trigger_min=text.number("minOffsetsPerTrigger", least=0),
            trigger_delay_ms=text.duration_ms("maxTriggerDelay", TRIGGER_DELAY_MS),
            partition_bytes_max=_bytes(text, "kafka.max.partition.fetch.bytes", PARTITION_FETCH_BYTES),
            bytes_max=_bytes(text, "kafka.fetch.max.bytes", FETCH_BYTES),
            poll_s=(text.number("kafkaConsumer.pollTimeoutMs") or int(POLL_SECONDS * 1000)) / 1000,
            attempts=text.number("fetchOffset.numRetries") or 3,
            attempt_pause_s=(text.number("fetchOffset.retryIntervalMs", 10, least=0) or 0) / 1000,
            pushdown=_pushdown(text),
        )


def _refuse_fewest_above_most(text: Text) -> None:
    fewest, most = text.number("minOffsetsPerTrigger", least=0), text.number("maxOffsetsPerTrigger")
    if fewest is not None and most is not None and fewest > most:
        raise BadOption(
            f"minOffsetsPerTrigger ({fewest}) is above maxOffsetsPerTrigger ({most}): no batch could be both"
        )


def _bytes(text: Text, name: str, default: int) -> int:
    return min(text.number(name) or default, FETCH_BYTES_CEILING)


def _latest_without_match(text: Text) -> bool:
    value = text.get("startingOffsetsByTimestampStrategy") or "error"
    if value.lower() not in ("error", "latest"):
        raise BadOption(f"startingOffsetsByTimestampStrategy is {value!r}: write error or latest")
    return value.lower() == "latest"


def _pushdown(text: Text) -> str:
    value = (text.get("filterPushdown") or NARROWS_NOT).lower()
    if value not in (NARROWS_NOT, NARROWS, ANEW):
        raise BadOption(f"filterPushdown is {value!r}: write {NARROWS_NOT}, {NARROWS} or {ANEW}")
    return value


def _read_committed(settings: Mapping[str, str]) -> bool:
    value = settings.get("isolation.level", "read_uncommitted")
    if value.lower() not in ("read_committed", "read_uncommitted"):
        raise BadOption(f"kafka.isolation.level is {value!r}: write read_committed or read_uncommitted")
    return value.lower() == "read_committed"


def _refuse_mark(limit: Limit, mark: int, name: str, why: str) -> None:
    if limit.mark == mark or (limit.offsets is not None and mark in limit.offsets.values()):
        raise BadOption(f"{name}: {why}")


def _match(start: Mapping[TopicPartition, int], end: Mapping[TopicPartition, int], what: str) -> None:
    if start.keys() != end.keys():
        alone = ", ".join(sorted(f"{topic}-{partition}" for topic, partition in start.keys() ^ end.keys()))
        raise BadOption(f"starting{what} and ending{what} must name the same partitions; only one has {alone}")
    for (topic, partition), at in start.items():
        if 0 <= end[TopicPartition(topic, partition)] < at:
            until = end[TopicPartition(topic, partition)]
            raise BadOption(f"{topic}-{partition} would be read from {at} to {until}, which is before it")
