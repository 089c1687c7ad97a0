"""Sinks: where a frame goes, and how often a row arrives there.

| sink | how often |
|---|---|
| topic | once: rows and a marker in one transaction. Spark lets no Python sink take an output mode other than append; what
  updates goes through `foreachBatch`, with the same marker |
| parquet | once: Spark's own log of files |
| jdbc, PostgreSQL | once: rows and a marker in one transaction |
| jdbc, others | at least once: a micro-batch that failed half-way is written again |
| console, memory | for looking at |
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterator
from importlib import import_module
from pathlib import Path
from typing import Any

from py4j.protocol import Py4JError
from pyspark.errors import PySparkException
from pyspark.sql import DataFrame
from pyspark.sql.utils import is_remote

from ottla.pipeline import needs
from ottla.pipeline.committing import MicroBatch, SinkError
from ottla.pipeline.files import failures, formats, modes
from ottla.pipeline.files.nodes import WrongPipeline
from ottla.pipeline.files.spec import AVAILABLE_NOW, ONCE, Sink, Spec
from ottla.pipeline.plans import plan_of
from ottla.pipeline.sink import QUERY_ID

POSTGRES = "jdbc:postgresql:"
NUMBERED = re.compile(r"(\d+)(\.compact)?")


def writer_of(frame: DataFrame, sink: Sink, spec: Spec) -> Any:
    """A DataStreamWriter that only has to be started."""
    if not frame.isStreaming:
        told = f"{sink.of!r} is a table, and a sink needs a stream: write 'as: stream' at a source, and for a run that ends"
        raise WrongPipeline([f"{sink.where}: {told} 'trigger: {AVAILABLE_NOW}'"])
    modes.judge(frame, sink)
    kinds = {"topic": _topic, "parquet": _parquet, "jdbc": _jdbc, "console": _console, "memory": _memory}
    writer = kinds[sink.kind](frame, sink, spec).outputMode(sink.mode)
    return triggered(_known_again(writer.queryName(query_name(spec, sink)), sink, spec), sink.trigger)


def _known_again(writer: Any, sink: Sink, spec: Spec) -> Any:
    """A table in memory is gone when the query ends. A checkpoint that outlives it would say that its rows are there: Spark
    refuses to go on from one, and begins with an empty checkpoint that it removes if it is given none."""
    return writer if sink.kind == "memory" else writer.option("checkpointLocation", checkpoint_of(sink, spec))


def checkpoint_of(sink: Sink, spec: Spec) -> str:
    return f"{spec.checkpoint_root}/{sink.name}"


def query_name(spec: Spec, sink: Sink) -> str:
    """Memory tables have the name of their query, so that one alone has the sink's."""
    return sink.target or sink.name if sink.kind == "memory" else f"{spec.name}.{sink.name}"


def triggered(writer: Any, trigger: str) -> Any:
    if not trigger:
        return writer
    if trigger == AVAILABLE_NOW:
        return writer.trigger(availableNow=True)
    if trigger == ONCE:
        return writer.trigger(once=True)
    return writer.trigger(processingTime=trigger)


def _topic(frame: DataFrame, sink: Sink, spec: Spec) -> Any:
    records = formats.encoded(frame, sink.format, sink.key, spec.directory)
    options = topic_options(sink, spec)
    if sink.mode == "append":
        return records.writeStream.format("ottla").options(**options)
    return records.writeStream.foreachBatch(_in_few_words(_to_topic(options, Asked(checkpoint_of(sink, spec)))))


def topic_options(sink: Sink, spec: Spec) -> dict[str, str]:
    return {
        "kafka.bootstrap.servers": spec.bootstrap,
        "topic": sink.target,
        "sinkId": f"{spec.name}.{sink.name}",
        "delivery": sink.delivery,
        "advice": "file",
        **sink.options,
    }


def _to_topic(options: dict[str, str], asked: Asked) -> Callable[[DataFrame, int], None]:
    """Micro-batches under their numbers: one that is repeated after a failure is skipped."""
    once = options["delivery"] == "exactly-once"

    def write(batch: DataFrame, number: int) -> None:
        named = {"queryId": asked.query_of(batch), "batchId": str(number)} if once else {}
        named["checkpointLocation"] = asked.checkpoint
        batch.write.format("ottla").options(**options, **named).mode("append").save()

    return write


def _in_few_words(write: Callable[[DataFrame, int], None]) -> Callable[[DataFrame, int], None]:
    """A query that is stopped in the middle of it is told so by an exception, in whose text Spark looks for the reason with
    an expression that goes as deep as the text is long: with all of Java's trace in it, that ends in a StackOverflowError."""

    def written(batch: DataFrame, number: int) -> None:
        try:
            write(batch, number)
        except (PySparkException, Py4JError) as error:
            if failures.is_fatal(text := failures.text_of(error)):
                raise
            raise SinkError(failures.cause(text)) from None

    return written


class Asked:
    """Which query a micro-batch belongs to: by the id that its checkpoint has, so that one that was lost is noticed.

    Spark says it to its own process. To a function that a server of Spark Connect calls, in a process beside it, nobody says
    it: the server reads it there from the checkpoint, wherever that is. A query writes it before its first micro-batch, and
    it stays the same for as long as the query runs; a query that is started again comes with a new copy of this.
    """

    def __init__(self, checkpoint: str) -> None:
        self.checkpoint = checkpoint
        self._found = ""

    def query_of(self, batch: DataFrame) -> str:
        if not is_remote():
            return str(batch.sparkSession.sparkContext.getLocalProperty(QUERY_ID) or self._unknown(QUERY_ID))
        self._found = self._found or self._read(batch)
        return self._found

    def _read(self, batch: DataFrame) -> str:
        place = f"{self.checkpoint}/metadata"
        lines = [row.value for row in batch.sparkSession.read.text(place).collect()]
        try:
            return str(json.loads("".join(lines))["id"])
        except (ValueError, KeyError, TypeError):
            return self._unknown(place)

    def _unknown(self, place: str) -> str:
        told = f"{place} does not say which query this is, and exactly once needs it"
        raise SinkError(f"{told}: write 'delivery: at-least-once', or mode: append")


def _parquet(frame: DataFrame, sink: Sink, spec: Spec) -> Any:
    _judge_files(sink, spec)
    writer = frame.writeStream.format("parquet").option("path", spec.path(sink.target)).options(**sink.options)
    return writer.partitionBy(*sink.partition_by) if sink.partition_by else writer


def _judge_files(sink: Sink, spec: Spec) -> None:
    """Spark passes over micro-batches whose numbers its log of files has, whatever is in them now: of a checkpoint that was
    lost, or is older than the files, that would be rows that nobody wrote. What is planned always comes first. Of stores far
    away this is not known."""
    target, root = (text.removeprefix("file://") for text in (spec.path(sink.target), spec.checkpoint_root))
    if "://" in target or "://" in root:
        return
    written, planned = _last_number(Path(target) / "_spark_metadata"), _last_number(Path(root) / sink.name / "offsets")
    if written > planned:
        told = (
            f"{target} has micro-batches up to {written}, and the checkpoint in {root} knows of those up to {planned}"
        )
        way_out = "was it lost? Write to another directory, or remove this one to begin anew"
        raise WrongPipeline([f"{sink.where}: {told}: {way_out}"])


def _last_number(directory: Path) -> int:
    """Of the files that Spark has numbered there; -1 if there are none."""
    found = (NUMBERED.fullmatch(each.name) for each in directory.glob("*"))
    return max((int(each[1]) for each in found if each), default=-1)


def _console(frame: DataFrame, sink: Sink, spec: Spec) -> Any:
    return frame.writeStream.format("console").options(**{"truncate": "false", **sink.options})


def _memory(frame: DataFrame, sink: Sink, spec: Spec) -> Any:
    return frame.writeStream.format("memory").options(**sink.options)


def _jdbc(frame: DataFrame, sink: Sink, spec: Spec) -> Any:
    columns = [name for name in frame.columns if name not in formats.KNOWN]
    write = _to_postgres(sink, spec) if sink.target.startswith(POSTGRES) else _to_database(sink)
    return frame.select(*[f"`{name}`" for name in columns]).writeStream.foreachBatch(_in_few_words(write))


def _to_postgres(sink: Sink, spec: Spec) -> Callable[[DataFrame, int], None]:
    needs.modules({"psycopg": "postgres"})
    postgres = import_module("ottla.pipeline.files.postgres")
    address = sink.target.removeprefix("jdbc:")
    target = postgres.Target(address, sink.table, sink.keys, sink.user, sink.password, f"{spec.name}.{sink.name}")
    asked = Asked(checkpoint_of(sink, spec))

    def write(batch: DataFrame, number: int) -> None:
        micro_batch = MicroBatch(asked.query_of(batch), number, plan_of(asked.checkpoint, number))
        if not postgres.write(target, micro_batch, batch.columns, _rows(batch)):
            # Spark wants to see all of it computed: with a micro-batch its state is kept, or the query cannot go on.
            batch.write.format("noop").mode("overwrite").save()

    return write


def _rows(batch: DataFrame) -> Iterator[Any]:
    """Computed when somebody takes the first."""
    yield from batch.toLocalIterator(prefetchPartitions=True)


def _to_database(sink: Sink) -> Callable[[DataFrame, int], None]:
    if sink.keys:
        raise WrongPipeline([f"{sink.where}: 'keys' work with PostgreSQL only: leave them out to add rows"])
    login = {name: value for name, value in (("user", sink.user), ("password", sink.password)) if value}
    options = {"url": sink.target, "dbtable": sink.table, **login, **sink.options}

    def write(batch: DataFrame, number: int) -> None:
        batch.write.format("jdbc").options(**options).mode("append").save()

    return write
