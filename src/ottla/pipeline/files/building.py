"""A spec and a session make the queries: views in the order of the file, a query for each sink, and one for the quarantine
of each source that has one. A query can be started again and again; it goes on where its checkpoint says."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from pyspark.errors import PySparkException
from pyspark.sql import DataFrame, SparkSession

from ottla.pipeline.files import sinks, sources, steps
from ottla.pipeline.files.failures import first_lines
from ottla.pipeline.files.nodes import WrongPipeline
from ottla.pipeline.files.spec import AVAILABLE_NOW, ONCE, Format, Sink, Source, Spec

QUARANTINE = "quarantine"
EARLIEST = "earliest"
# What a producer packed well was allowed to be large, and headers are added: it is packed again, may be as large as the topic
# allows, and of what still does not fit a piece is written. Otherwise one record would end the pipeline each time.
WHATEVER_COMES = {"kafka.compression.type": "zstd", "kafka.max.request.size": str(64 << 20), "tooLarge": "cut"}


@dataclass(frozen=True)
class Query:
    """One that can be started."""

    name: str
    where: str
    into: str  # for people
    start: Callable[[], Any]  # -> StreamingQuery


def views_of(spark: SparkSession, spec: Spec) -> dict[str, DataFrame]:
    """Every source and step by its name; SQL knows them by the same names."""
    forget(spark, spec)
    views: dict[str, DataFrame] = {}
    for source in spec.sources:
        views[source.name] = _registered(source.name, _source(spark, source, spec))
    for step in spec.steps:
        views[step.name] = _registered(step.name, steps.frame_of(spark, step, views, spec.directory))
    return views


def forget(spark: SparkSession, spec: Spec) -> None:
    """A session may know views of these names from before: a step that stands above what it reads must not find those."""
    for name in [each.name for each in spec.sources] + [each.name for each in spec.steps]:
        spark.catalog.dropTempView(name)


def _registered(name: str, frame: DataFrame) -> DataFrame:
    frame.createOrReplaceTempView(name)
    return frame


def _source(spark: SparkSession, source: Source, spec: Spec) -> DataFrame:
    try:
        return sources.frame_of(spark, source, spec)
    except PySparkException as error:
        raise WrongPipeline([f"{source.where}: source {source.name!r}: {first_lines(error)}"])


def queries_of(spark: SparkSession, spec: Spec, views: Mapping[str, DataFrame]) -> list[Query]:
    """Quarantines first: one that began at a later end than its sinks would miss what they have read around."""
    made = []
    for source in spec.sources:
        if source.quarantine and source.may_refuse:
            sink = quarantine_of(source, spec)
            read = replace(source, start=EARLIEST) if _under_way(spec) else source
            writer = sinks.writer_of(sources.quarantined(spark, read, spec), sink, spec)
            made.append(_query(sink, writer, spec))
    return made + [_query(sink, sinks.writer_of(views[sink.of], sink, spec), spec) for sink in spec.sinks]


def _under_way(spec: Spec) -> bool:
    """Whether sinks may go on from before the latest. A quarantine that is named only now then begins at the beginning: the
    record that it was named for may be anywhere. Of a store far away that is taken for granted."""
    root = spec.checkpoint_root.removeprefix("file://")
    return "://" in root or any((Path(root) / sink.name / "offsets").exists() for sink in spec.sinks)


def _query(sink: Sink, writer: Any, spec: Spec) -> Query:
    return Query(sinks.query_name(spec, sink), sink.where, sink.into, lambda: writer.start())


def quarantine_of(source: Source, spec: Spec) -> Sink:
    """As often as the sinks that read around these records, and as long as any of them."""
    triggers = sorted((sink.trigger for sink in spec.sinks), key=lambda trigger: trigger in (AVAILABLE_NOW, ONCE))
    return Sink(
        name=f"{QUARANTINE}.{source.name}",
        where=source.where,
        of=source.name,
        kind="topic",
        target=source.quarantine,
        format=Format("raw"),
        key="",
        mode="append",
        trigger=triggers[0] if triggers else "",
        delivery="exactly-once",
        table="",
        keys=(),
        user="",
        password="",
        partition_by=(),
        options=WHATEVER_COMES | dict(source.quarantine_options),
    )
