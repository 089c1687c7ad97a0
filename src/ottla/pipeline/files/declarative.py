"""A pipeline as a Spark Declarative Pipeline, for runs that end (`spark-pipelines run`).

What maps: a source becomes a temporary view, a step a temporary view, a topic a sink with one flow, a Parquet directory a
streaming table, a quarantine a sink of its own. What does not, is said: a run is always available-now and nothing restarts
it; a sink that updates, a database, a console and a table in memory have no counterpart and are refused.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Iterator
from pathlib import Path

from ottla.pipeline.files.nodes import WrongPipeline
from ottla.pipeline.files.spec import Sink, Spec

HEADER = '''"""Written by `ottla pipeline export` from {file}. Run it with `spark-pipelines run`."""

from pathlib import Path

from pyspark import pipelines as dp
from pyspark.sql import SparkSession

from ottla.pipeline.files import formats, sources, steps
from ottla.pipeline.files.spec import read_file

spark = SparkSession.active()
SPEC = read_file(Path({path!r}))
SOURCES = {{source.name: source for source in SPEC.sources}}
STEPS = {{step.name: step for step in SPEC.steps}}
SINKS = {{sink.name: sink for sink in SPEC.sinks}}
'''
SOURCE = """

@dp.temporary_view(name={name!r})
def source_{name}():
    return sources.frame_of(spark, SOURCES[{name!r}], SPEC)
"""
PYTHON_STEP = """

@dp.temporary_view(name={name!r})
def step_{name}():
    return steps.frame_of(spark, STEPS[{name!r}], _views({before!r}), SPEC.directory)
"""
SQL_STEP = """

@dp.temporary_view(name={name!r})
def step_{name}():
    frame = spark.sql({sql!r})
    return steps.finished(frame, STEPS[{name!r}])
"""
VIEWS = """

def _views(names):
    return {{name: spark.table(name) if name in {tables!r} else spark.readStream.table(name) for name in names}}
"""
TOPIC = """

dp.create_sink({name!r}, format="ottla", options={options!r})


@dp.append_flow(target={name!r})
def to_{name}():
    sink = SINKS[{name!r}]
    return formats.encoded(spark.readStream.table(sink.of), sink.format, sink.key, SPEC.directory)
"""
QUARANTINE = """

dp.create_sink("quarantine_{name}", format="ottla", options={options!r})


@dp.append_flow(target="quarantine_{name}")
def quarantine_{name}():
    return sources.quarantined(spark, SOURCES[{name!r}], SPEC)
"""
TABLE = """

@dp.table(name={name!r}, format="parquet"{partitions})
def table_{name}():
    return spark.readStream.table({of!r})
"""


def export(spec: Spec, file: Path, directory: Path) -> list[str]:
    """Writes it. What a declarative pipeline does differently comes back as notes; what it cannot do at all is refused."""
    _refuse(spec)
    (directory / "transformations").mkdir(parents=True, exist_ok=True)
    storage = f"file://{(directory / 'storage').resolve()}"
    lines = [f"name: {spec.name}", f"storage: {storage}", "libraries: [{glob: {include: transformations/**}}]"]
    settings = {"spark.sql.python.filterPushdown.enabled": "true", **spec.settings}
    lines += ["configuration:", *(f"  {name}: {json.dumps(value)}" for name, value in settings.items())]
    (directory / "spark-pipeline.yml").write_text("\n".join(lines) + "\n")
    (directory / "transformations" / f"{spec.name.replace('-', '_')}.py").write_text(code_of(spec, file))
    return list(_notes(spec))


def _refuse(spec: Spec) -> None:
    wrong = [(sink, _why_not(sink)) for sink in spec.sinks]
    problems = [f"{sink.where}: sink {sink.name!r} has no counterpart: {why}" for sink, why in wrong if why]
    if problems:
        raise WrongPipeline(problems)


def _why_not(sink: Sink) -> str:
    if sink.kind not in ("topic", "parquet"):
        return f"declarative pipelines know no {sink.kind}; write to a topic or to parquet"
    if sink.mode != "append":
        return "its flows only append; write 'mode: append', with a watermark"
    return ""


def code_of(spec: Spec, file: Path) -> str:
    text = HEADER.format(file=file.name, path=str(file.resolve()))
    tables = [source.name for source in spec.sources if source.as_table]
    text += VIEWS.format(tables=tables) if any(step.function for step in spec.steps) else ""
    text += "".join(SOURCE.format(name=source.name) for source in spec.sources)
    before = [source.name for source in spec.sources]
    for step in spec.steps:
        sql = streamed(step.sql, [name for name in before if name not in tables])
        text += SQL_STEP.format(name=step.name, sql=sql) if sql else PYTHON_STEP.format(name=step.name, before=before)
        before.append(step.name)
    for sink in spec.sinks:
        text += _topic(sink, spec) if sink.kind == "topic" else _table(sink)
    for source in spec.sources:
        if source.quarantine and source.format.name != "raw":
            options = _options(spec, source.quarantine, f"quarantine.{source.name}")
            text += QUARANTINE.format(name=source.name, options=options)
    return text


def streamed(sql: str, streams: Iterable[str]) -> str:
    """There a view is read as a whole unless one says STREAM."""
    for name in streams:
        sql = re.sub(rf"\b(FROM|JOIN)(\s+){name}\b", rf"\1\2STREAM({name})", sql, flags=re.IGNORECASE)
    return sql


def _options(spec: Spec, topic: str, name: str) -> dict[str, str]:
    return {"kafka.bootstrap.servers": spec.bootstrap, "topic": topic, "sinkId": f"{spec.name}.declarative.{name}"}


def _topic(sink: Sink, spec: Spec) -> str:
    options = _options(spec, sink.target, sink.name) | {"delivery": sink.delivery, **sink.options}
    return TOPIC.format(name=sink.name, options=options)


def _table(sink: Sink) -> str:
    partitions = f", partition_cols={list(sink.partition_by)!r}" if sink.partition_by else ""
    return TABLE.format(name=sink.name, of=sink.of, partitions=partitions)


def _notes(spec: Spec) -> Iterator[str]:
    yield "a run ends when everything that is there was done: triggers are left out, and nothing restarts a query"
    yield "the second run needs a catalog that lasts: add --conf spark.sql.catalogImplementation=hive"
    for sink in spec.sinks:
        if sink.kind == "parquet":
            yield f"sink {sink.name!r} becomes a table of that name in the pipeline's own storage, not in {sink.target}"
