"""Sources as frames of Spark.

A stream reads what comes; a table is what is there now. Of a topic that is the newest record of each key, which is what a
compacted topic keeps. A stream joined with it must see it as of each micro-batch, and Spark plans a batch read from Python
only once for the whole life of a query, unless there is a filter to be pushed down: then it asks anew every time. So a table
has one that excludes nothing (`offset >= 0`), and a reader that takes none: a table may be used with several conditions at
once, and what one pushes down Spark would read for all (`source.AnewReader`).
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from pyspark.sql import DataFrame, SparkSession

from ottla.pipeline.files import formats
from ottla.pipeline.files.spec import Source, Spec

# What another pipeline, or this one before it died, has written and not committed is in the log, and is no record.
COMMITTED = {"kafka.isolation.level": "read_committed"}
SUBSCRIBE = {"topic": "subscribe", "topics": "subscribe", "pattern": "subscribePattern"}


def frame_of(spark: SparkSession, source: Source, spec: Spec) -> DataFrame:
    """The view that steps and sinks know by the source's name."""
    if source.reads_topics:
        read = records(spark, source, spec)
        frame = (table_of if source.as_table else _fitting)(read, source, spec.directory)
    else:
        frame = _without_topic(spark, source, spec)
    return frame.withWatermark(source.watermark.column, source.watermark.delay) if source.watermark else frame


def _fitting(read: DataFrame, source: Source, directory: Path) -> DataFrame:
    return formats.good(formats.decoded(read, source, directory), source)


def table_of(read: DataFrame, source: Source, directory: Path) -> DataFrame:
    """The newest record of each key of a topic, unless it says that the key is gone: offsets of two topics say nothing about
    which is newer, and a key of one is none of the other, as in Kafka's own tables. With a quarantine, one that does not fit
    leaves things as they were; without one it ends the query, unless something newer has taken its place."""
    if source.quarantine:
        table = formats.newest(_fitting(read, source, directory), ("_topic", "_key"), "_offset")
    else:
        table = _fitting(formats.newest(read, ("topic", "key"), "offset"), source, directory)
    return table.where("NOT _deleted")


def quarantined(spark: SparkSession, source: Source, spec: Spec) -> DataFrame:
    """The stream of what frame_of leaves out."""
    read = records(spark, source, spec, stream=True, headers=True)
    return formats.bad(formats.decoded(read, source, spec.directory), source, spec.directory)


def records(
    spark: SparkSession, source: Source, spec: Spec, stream: bool | None = None, headers: bool = False
) -> DataFrame:
    """The topic as it is."""
    stream = not source.as_table if stream is None else stream
    options = {
        "kafka.bootstrap.servers": spec.bootstrap,
        SUBSCRIBE[source.kind]: source.target,
        "startingOffsets": source.start if stream else "earliest",
        **COMMITTED,
    }
    options |= {"groupIdPrefix": f"{spec.name}-{source.name}"} if stream else {"filterPushdown": "anew"}
    options |= {"includeHeaders": "true"} if headers else {}
    given = source.options if stream == (not source.as_table) else of_both(source.options)
    loaded: DataFrame = _reader(spark, stream).format("ottla").options(**(options | dict(given))).load()
    return loaded if stream else loaded.where("offset >= 0")


def of_both(options: Mapping[str, str]) -> dict[str, str]:
    """A quarantine streams what the table reads at once: only what says how to reach the broker holds for both."""
    return {name: value for name, value in options.items() if name.lower().startswith("kafka.")}


def _without_topic(spark: SparkSession, source: Source, spec: Spec) -> DataFrame:
    if source.kind == "catalog":
        named: DataFrame = _reader(spark, not source.as_table).options(**source.options).table(source.target)
        return named
    if source.kind == "rate":
        options = {"rowsPerSecond": source.target} | dict(source.options)
        return spark.readStream.format("rate").options(**options).load()
    reader = _reader(spark, not source.as_table).format(source.format.name).options(**source.options)
    if source.format.schema:
        reader = reader.schema(source.format.schema)
    loaded: DataFrame = reader.load(spec.path(source.target))
    return loaded


def _reader(spark: SparkSession, stream: bool) -> Any:
    return spark.readStream if stream else spark.read
