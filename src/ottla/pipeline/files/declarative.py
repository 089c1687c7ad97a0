"""A pipeline as one of Spark's own Declarative Pipelines, for runs that end: what `ottla pipeline export` writes.

Three files: `spark-pipeline.yml`, which `spark-pipelines run` reads; definitions, in which every topic is a sink with one
flow, every Parquet directory a streaming table, and every quarantine a sink of its own; and settings of Spark's process. The
definitions make their frames of the pipeline's file (`exported`), so that it stays the one place to change. What has no
counterpart is refused by name; what happens differently there comes back as notes.
"""

from __future__ import annotations

import json
import shlex
import sys
from collections.abc import Iterator
from pathlib import Path

from ottla.pipeline.files.nodes import WrongPipeline
from ottla.pipeline.files.spec import AVAILABLE_NOW, ONCE, Sink, Source, Spec
from ottla.pipeline.session import LOCAL, settings_of

# Settings of the process are in a file that Spark reads by itself: of those in a command, this version forgets some.
SPEC, DEFINITIONS, DEFAULTS = "spark-pipeline.yml", "definitions.py", "conf/spark-defaults.conf"
# Those of Spark SQL that belong to the process: a session cannot change them.
STATIC = ("spark.sql.warehouse.dir", "spark.sql.catalogImplementation", "spark.sql.extensions")
# Each flow starts processes of its own, and Spark gives them ten seconds to come up.
ONE_BY_ONE = {"spark.sql.pipelines.execution.maxConcurrentFlows": "1"}

HEADER = '''"""Written by `ottla pipeline export` from {name}, and made of it anew in every run: change it there."""

from pyspark import pipelines as dp

from ottla.pipeline.files.exported import Exported

made = Exported(spark, {file!r}, {bootstrap!r})  # noqa: F821, spark-pipelines defines it
'''
TOPIC = """

dp.create_sink({name!r}, format="ottla", options=made.options[{name!r}])


@dp.append_flow(target={name!r})
def to_{name}():
    return made.frames[{name!r}]
"""
TABLE = """

@dp.table(name={name!r}, format="parquet")
def table_{name}():
    return made.frames[{name!r}]
"""


def export(spec: Spec, file: Path, bootstrap: str | None, directory: Path) -> list[str]:
    """Writes it; the notes say what is different there."""
    problems = [*map(_refused_source, spec.sources), *map(_refused_sink, spec.sinks)]
    if any(problems):
        raise WrongPipeline([problem for problem in problems if problem])
    (directory / DEFAULTS).parent.mkdir(parents=True, exist_ok=True)
    (directory / DEFAULTS).write_text("".join(f"{name} {value}\n" for name, value in _of_process(spec, directory)))
    (directory / SPEC).write_text("\n".join(_lines(spec, directory)) + "\n")
    (directory / DEFINITIONS).write_text(code_of(spec, file, bootstrap))
    return list(_notes(spec))


def _refused_source(source: Source) -> str:
    if source.kind == "rate":
        return f"{source.where}: source {source.name!r} has no counterpart: 'rate' never ends, and such a run does"
    return ""


def _refused_sink(sink: Sink) -> str:
    why = ""
    if sink.kind not in ("topic", "parquet"):
        why = f"a declarative pipeline has no {sink.kind}: write to a topic or to parquet"
    elif sink.mode != "append":
        why = f"its flows only append, and this is 'mode: {sink.mode}'"
    return f"{sink.where}: sink {sink.name!r} has no counterpart: {why}" if why else ""


def _lines(spec: Spec, directory: Path) -> Iterator[str]:
    yield f"name: {json.dumps(spec.name)}"
    yield f"storage: {json.dumps((directory.resolve() / 'storage').as_uri())}"
    yield f"libraries: [{{glob: {{include: {DEFINITIONS}}}}}]"
    yield "configuration:"
    settings = ONE_BY_ONE | {name: value for name, value in _settings(spec).items() if _is_of_session(name)}
    yield from (f"  {name}: {json.dumps(value)}" for name, value in settings.items())


def _settings(spec: Spec) -> dict[str, str]:
    return settings_of(LOCAL, spec.settings, "error")


def _is_of_session(name: str) -> bool:
    return name.startswith("spark.sql.") and name not in STATIC


def _of_process(spec: Spec, directory: Path) -> Iterator[tuple[str, str]]:
    """Spark's usual catalog forgets its tables, and then the second run finds files it does not know: so where there are
    tables, they are kept in a catalog of Hive beside them."""
    settings = {name: value for name, value in _settings(spec).items() if not _is_of_session(name)}
    if any(sink.kind == "parquet" for sink in spec.sinks):
        place = directory.resolve()
        settings = {
            "spark.sql.catalogImplementation": "hive",
            "spark.sql.warehouse.dir": (place / "tables").as_uri(),
            "spark.hadoop.javax.jdo.option.ConnectionURL": f"jdbc:derby:;databaseName={place / 'catalog'};create=true",
        } | settings
    yield from settings.items()


def code_of(spec: Spec, file: Path, bootstrap: str | None) -> str:
    text = HEADER.format(name=file.name, file=str(file.resolve()), bootstrap=bootstrap)
    text += "".join(TOPIC.format(name=name_of_quarantine(source)) for source in quarantines(spec))
    for sink in spec.sinks:
        text += (TOPIC if sink.kind == "topic" else TABLE).format(name=sink.name)
    return text


def quarantines(spec: Spec) -> list[Source]:
    return [source for source in spec.sources if source.quarantine and source.may_refuse]


def name_of_quarantine(source: Source) -> str:
    return f"quarantine_{source.name}"


def _notes(spec: Spec) -> Iterator[str]:
    yield "it has checkpoints of its own: what `ottla pipeline run` has written comes a second time"
    yield "nothing restarts a query that failed; the next run goes on where it was"
    for sink in spec.sinks:
        if sink.trigger not in (AVAILABLE_NOW, ONCE):
            often = f"trigger {sink.trigger!r}" if sink.trigger else "a sink that never ends"
            yield f"sink {sink.name!r}: {often} has no counterpart: a run does what is there, and ends"
        if sink.kind == "parquet":
            yield f"sink {sink.name!r} is the table {sink.name!r} of Spark's catalog, and not files in {sink.target}"
        if sink.options and sink.kind == "parquet":
            yield f"sink {sink.name!r}: its options have no counterpart: {', '.join(sink.options)}"
        if sink.partition_by:
            # It takes `partition_cols`, and then writes all files into one directory, where the catalog looks for none.
            yield f"sink {sink.name!r}: 'partition_by' has no counterpart: the files of such a table are in one directory"


def command(directory: Path) -> str:
    """That runs it."""
    place = directory.resolve()
    settings = {"SPARK_CONF_DIR": str((place / DEFAULTS).parent), "PYSPARK_PYTHON": sys.executable}
    words = ["spark-pipelines", "run", "--spec", str(place / SPEC), "--remote", LOCAL]
    return " ".join([*(f"{name}={shlex.quote(value)}" for name, value in settings.items()), shlex.join(words)])
